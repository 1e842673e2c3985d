// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite of transports. The same tests run over loopback, over loopback that splits
// every read and write, over TCP, over shared memory between mates, and with fake devices, for
// which all memory is device memory. Ranks are threads; see transport_fleet.h.

#include "tests/conformance/transport_fleet.h"
#include "tests/conformance/transport_job.h"
#include "worker/transport/headers.h"
#include "worker/transport/lifecycle.h"

#include "base/clock.h"
#include "tests/support/bounds.h"
#include "tests/support/fake_gpu.h"
#include "worker/kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct variant {
    const char *name;
    enum transport_kind kind;
    uint32_t torn_bytes;
    bool mates;
    bool registered;
    bool encrypts;
    enum plan_algorithm algorithm; // ALGORITHM_TWO_LEVEL: on two or three hosts.
    bool rare; // True if the variant runs with LOCKSTEP_TEST_ALGORITHMS=all only.
    bool has_twin; // True if another variant shows ThreadSanitizer the same.
    enum fleet_devices devices; // Ranks with fake devices (tests/fake_gpu/fake_gpu.h).
    uint32_t turn; // Of the test: which of two worlds stands for both under a sanitizer.
};

static const struct variant variants[] = {
    {.name = "loopback", .kind = TRANSPORT_LOOPBACK},
    {.name = "torn 1", .kind = TRANSPORT_LOOPBACK, .torn_bytes = 1, .rare = true},
    {.name = "torn 3", .kind = TRANSPORT_LOOPBACK, .torn_bytes = 3, .rare = true},
    {.name = "torn 7", .kind = TRANSPORT_LOOPBACK, .torn_bytes = 7},
    {.name = "torn 1000", .kind = TRANSPORT_LOOPBACK, .torn_bytes = 1000},
    {.name = "tcp", .kind = TRANSPORT_TCP},
    {.name = "tls", .kind = TRANSPORT_TCP, .encrypts = true},
    {.name = "tls, torn 1000",
     .kind = TRANSPORT_LOOPBACK,
     .torn_bytes = 1000,
     .encrypts = true,
     .rare = true},
    {.name = "loopback, doubling", .kind = TRANSPORT_LOOPBACK, .algorithm = ALGORITHM_DOUBLING},
    {.name = "loopback, halving",
     .kind = TRANSPORT_LOOPBACK,
     .algorithm = ALGORITHM_HALVING,
     .has_twin = true},
    {.name = "torn 7, doubling",
     .kind = TRANSPORT_LOOPBACK,
     .torn_bytes = 7,
     .algorithm = ALGORITHM_DOUBLING},
    {.name = "torn 7, halving",
     .kind = TRANSPORT_LOOPBACK,
     .torn_bytes = 7,
     .algorithm = ALGORITHM_HALVING},
    {.name = "tcp, doubling", .kind = TRANSPORT_TCP, .algorithm = ALGORITHM_DOUBLING, .rare = true},
    {.name = "tcp, halving",
     .kind = TRANSPORT_TCP,
     .algorithm = ALGORITHM_HALVING,
     .has_twin = true},
    {.name = "loopback, direct",
     .kind = TRANSPORT_LOOPBACK,
     .algorithm = ALGORITHM_DIRECT,
     .has_twin = true},
    {.name = "torn 7, direct",
     .kind = TRANSPORT_LOOPBACK,
     .torn_bytes = 7,
     .algorithm = ALGORITHM_DIRECT,
     .rare = true},
    {.name = "tcp, direct", .kind = TRANSPORT_TCP, .algorithm = ALGORITHM_DIRECT, .has_twin = true},
    {.name = "memory, direct",
     .kind = TRANSPORT_TCP,
     .mates = true,
     .algorithm = ALGORITHM_DIRECT,
     .rare = true},
    {.name = "memory", .kind = TRANSPORT_TCP, .mates = true, .has_twin = true},
    {.name = "shared",
     .kind = TRANSPORT_LOOPBACK,
     .mates = true,
     .algorithm = ALGORITHM_SHARED,
     .rare = true},
    {.name = "shared memory", .kind = TRANSPORT_TCP, .mates = true, .algorithm = ALGORITHM_SHARED},
    {.name = "registered",
     .kind = TRANSPORT_LOOPBACK,
     .mates = true,
     .registered = true,
     .algorithm = ALGORITHM_SHARED},
    {.name = "two levels",
     .kind = TRANSPORT_LOOPBACK,
     .mates = true,
     .algorithm = ALGORITHM_TWO_LEVEL,
     .rare = true},
    {.name = "two levels, tcp",
     .kind = TRANSPORT_TCP,
     .mates = true,
     .algorithm = ALGORITHM_TWO_LEVEL},
    {.name = "staged", .kind = TRANSPORT_LOOPBACK, .devices = FLEET_STAGED},
    {.name = "staged, torn 7",
     .kind = TRANSPORT_LOOPBACK,
     .torn_bytes = 7,
     .devices = FLEET_STAGED,
     .rare = true},
    {.name = "staged, shared memory",
     .kind = TRANSPORT_TCP,
     .mates = true,
     .algorithm = ALGORITHM_SHARED,
     .devices = FLEET_STAGED,
     .rare = true},
    {.name = "nccl", .kind = TRANSPORT_LOOPBACK, .devices = FLEET_NCCL},
    {.name = "mixed", .kind = TRANSPORT_LOOPBACK, .devices = FLEET_MIXED},
    {.name = "mixed, torn 7",
     .kind = TRANSPORT_LOOPBACK,
     .torn_bytes = 7,
     .devices = FLEET_MIXED,
     .rare = true},
    {.name = "mixed, halving",
     .kind = TRANSPORT_LOOPBACK,
     .algorithm = ALGORITHM_HALVING,
     .devices = FLEET_MIXED,
     .rare = true},
    {.name = "mixed, shared memory",
     .kind = TRANSPORT_TCP,
     .mates = true,
     .algorithm = ALGORITHM_SHARED,
     .devices = FLEET_MIXED,
     .rare = true},
    {.name = "mixed, two levels",
     .kind = TRANSPORT_LOOPBACK,
     .mates = true,
     .algorithm = ALGORITHM_TWO_LEVEL,
     .devices = FLEET_MIXED,
     .rare = true},
};

// Size of the segments of a device's data. The ends of stripes and pieces are not ends of segments.
#define SEGMENT_BYTES 1500
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

#define MOST_THAT_FAIL 5 // Ranks of the largest world in which ranks die, or disagree.

// World sizes, the most important first; a short run uses only the first ones.
static const uint32_t worlds[] = {1, 2, 3, 5, 4, 7};
static const uint32_t pair_worlds[] = {2, 3, 4, 7, 5, 8}; // As many worlds as above.
static const uint32_t host_worlds[] = {3, 4, 5, 7, 6, 8};

static enum plan_algorithm algorithm_of(void **state)
{
    return ((const struct variant *)*state)->algorithm;
}

static bool is_pair(enum plan_algorithm algorithm)
{
    return algorithm == ALGORITHM_DOUBLING || algorithm == ALGORITHM_HALVING;
}

static bool is_in_memory(enum plan_algorithm algorithm)
{
    return algorithm == ALGORITHM_SHARED || algorithm == ALGORITHM_TWO_LEVEL;
}

// True for the ring over plain loopback or TCP, of which all others are variants.
static bool is_plain(const struct variant *variant)
{
    return variant->algorithm == ALGORITHM_RING && variant->torn_bytes == 0 && !variant->encrypts &&
           !variant->mates && variant->devices == FLEET_ON_HOSTS;
}

static bool is_sanitized(void)
{
    const char *sanitizer = getenv("LOCKSTEP_TEST_SANITIZER");
    return sanitizer && sanitizer[0] != '\0';
}

// True under a sanitizer, which sees the most on plain links: elsewhere one world stands for
// others.
static bool is_short(const struct variant *variant)
{
    return is_sanitized() && !test_everything() && !is_plain(variant);
}

// Number of world sizes in which a test runs.
static size_t worlds_of(void **state)
{
    const struct variant *variant = *state;
    if (test_everything() && !is_sanitized() && variant->torn_bytes != 1)
        return LENGTH(worlds);
    if (is_short(variant))
        return 2;
    return is_plain(variant) && !is_sanitized() ? 4 : 3;
}

static uint32_t world_of(void **state, size_t index)
{
    const struct variant *variant = *state;
    if (worlds_of(state) == 2 && index == 1)
        index += variant->turn % 2;
    if (algorithm_of(state) == ALGORITHM_TWO_LEVEL)
        return host_worlds[index];
    return is_pair(algorithm_of(state)) ? pair_worlds[index] : worlds[index];
}

static struct fleet_options options_of(void **state, uint32_t world, uint32_t chunk_bytes)
{
    const struct variant *variant = *state;
    const bool two_levels = variant->algorithm == ALGORITHM_TWO_LEVEL;
    if (two_levels && world < 3)
        return (struct fleet_options){.name = variant->name,
                                      .kind = variant->kind,
                                      .world = world,
                                      .devices = variant->devices,
                                      .segment_bytes = SEGMENT_BYTES,
                                      .chunk_bytes = chunk_bytes};
    return (struct fleet_options){.name = variant->name,
                                  .kind = variant->kind,
                                  .torn_bytes = variant->torn_bytes,
                                  .mates = variant->mates,
                                  .hosts = two_levels ? (world < 5 ? 2 : 3) : 0,
                                  .registered = variant->registered,
                                  .encrypts = variant->encrypts,
                                  .algorithm = variant->algorithm,
                                  .devices = variant->devices,
                                  .segment_bytes = SEGMENT_BYTES,
                                  .world = world,
                                  .chunk_bytes = chunk_bytes};
}

// The divisor of sizes in slow variants: torn loopbacks, which make a call for every few bytes, and
// sanitizers, which find the same errors with fewer chunks.
static uint64_t slowness(void **state)
{
    const struct variant *variant = *state;
    if (variant->torn_bytes == 1)
        return 400;
    if (variant->torn_bytes > 0 && variant->torn_bytes < 100)
        return 100;
    if (is_sanitized())
        return 16;
    if (variant->torn_bytes > 0)
        return 4;
    return test_everything() ? 1 : 6;
}

// Makes a job for these options. With options->registered, the options get the job's regions.
static struct job *make_job(struct fleet_options *options, uint64_t seed)
{
    struct job *job = job_make(options->world, options->chunk_bytes, seed);
    job_use(job, options->algorithm);
    if ((options->devices == FLEET_NCCL && options->world > 1) ||
        (options->devices == FLEET_MIXED && options->world > 2))
        job_use_nccl(job);
    if (options->registered && options->world > 1)
        options->regions = job_register(job);
    return job;
}

static void script_job(struct member *member)
{
    if (member->fleet->options.regions)
        job_wait_mapped(member, member->fleet->argument);
    job_run(member, member->fleet->argument);
}

static void run_script(const struct fleet_options *options, struct job *job,
                       void (*script)(struct member *member))
{
    fleet_run(options, script, job);
    job_check(job, options->name);
    job_free(job);
}

static void run_job(const struct fleet_options *options, struct job *job)
{
    run_script(options, job, script_job);
}

static void weights_fill(struct job_spec *spec, uint32_t world, uint64_t *random)
{
    static const uint64_t choices[] = {1, 0, 3, 1, 128, 7};
    for (uint32_t r = 0; r < world; r++)
        spec->weights[r] = choices[job_random(random) % LENGTH(choices)];
    if (job_random(random) % 6 == 0)
        memset(spec->weights, 0, sizeof(spec->weights));
}

// Number of random draws; fewer in slow runs.
static uint32_t draws(uint32_t count)
{
    return test_slow() > 1 ? count / 3 : count;
}

// ---- values -------------------------------------------------------------------------------------

static void test_sizes(void **state)
{
    for (size_t w = 0; w < worlds_of(state); w++) {
        const uint32_t n = world_of(state, w);
        struct fleet_options options = options_of(state, n, 256);
        const uint64_t sizes[] = {
            0,          1,      n - 1,      n,          n + 1,          63,  64, 65,
            64 * n - 1, 64 * n, 64 * n + 1, 5 * 64 * n, 5 * 64 * n + 3, 1000};
        struct job *job = make_job(&options, 11 + n);
        for (size_t i = 0; i < LENGTH(sizes); i++) {
            const struct job_spec spec = {.dtype = DTYPE_FLOAT32,
                                          .op = REDUCE_SUM,
                                          .elements = sizes[i],
                                          .separate = i % 2 == 0};
            job_add(job, &spec);
        }
        run_job(&options, job);
    }
}

static void test_every_dtype_and_op(void **state)
{
    for (size_t w = 0; w < worlds_of(state); w++) {
        const uint32_t n = world_of(state, w);
        struct fleet_options options = options_of(state, n, 1024);
        uint64_t random = 5 * n;
        struct job *job = make_job(&options, 100 + n);
        for (uint32_t dtype = DTYPE_FLOAT32; dtype <= DTYPE_LAST; dtype++) {
            for (uint32_t op = REDUCE_SUM; op <= REDUCE_LAST; op++) {
                if (!kernel_supported((enum dtype)dtype, (enum reduce_op)op))
                    continue;
                struct job_spec spec = {.dtype = (enum dtype)dtype,
                                        .op = (enum reduce_op)op,
                                        .elements =
                                            100 + job_random(&random) % 3000 / slowness(state),
                                        .special = job_random(&random) % 2 == 0,
                                        .holes = job_random(&random) % 2 == 0,
                                        .separate = job_random(&random) % 2 == 0};
                weights_fill(&spec, n, &random);
                job_add(job, &spec);
            }
        }
        run_job(&options, job);
    }
}

static void test_many_at_random(void **state)
{
    static const enum dtype floats[] = {DTYPE_FLOAT32, DTYPE_FLOAT64,  DTYPE_INT32, DTYPE_INT64,
                                        DTYPE_FLOAT16, DTYPE_BFLOAT16, DTYPE_UINT8};
    static const uint32_t chunks[] = {8, 64, 4096, 65536};
    for (size_t w = 0; w < worlds_of(state); w++) {
        const uint32_t n = world_of(state, w);
        uint64_t random = 99 + n;
        const uint32_t chunk = chunks[w % LENGTH(chunks)];
        struct fleet_options options = options_of(state, n, chunk);
        struct job *job = make_job(&options, 1000 + n);
        for (uint32_t i = 0; i < draws(60); i++) {
            const enum dtype dtype = floats[job_random(&random) % LENGTH(floats)];
            const uint64_t most = job_random(&random) % 8 == 0 ? 40000 : 2000;
            const uint64_t bound = (chunk < 4096 ? most / 8 : most) / slowness(state) + 2;
            struct job_spec spec = {.dtype = dtype,
                                    .op = dtype_is_float(dtype) ? REDUCE_MEAN : REDUCE_SUM,
                                    .elements = job_random(&random) % bound,
                                    .input_is_sum = job_random(&random) % 2 == 0,
                                    .special = job_random(&random) % 4 == 0,
                                    .holes = job_random(&random) % 3 == 0,
                                    .separate = job_random(&random) % 3 == 0};
            if (job_random(&random) % 5 == 0) {
                spec.kind = COLLECTIVE_BROADCAST;
                spec.root = (uint32_t)(job_random(&random) % n);
            }
            weights_fill(&spec, n, &random);
            job_add(job, &spec);
        }
        run_job(&options, job);
    }
}

// Formats in which frames have another dtype than the memory.
struct format {
    enum dtype dtype;
    enum dtype partial;
    enum dtype final;
    int exponent;
};

static const struct format formats[] = {
    {DTYPE_FLOAT32, DTYPE_BFLOAT16, DTYPE_BFLOAT16, 0},
    {DTYPE_FLOAT16, DTYPE_FLOAT32, 0, 0},
    {DTYPE_BFLOAT16, DTYPE_FLOAT32, 0, 0},
    {DTYPE_FLOAT16, 0, 0, -3},
    {DTYPE_FLOAT16, 0, 0, -14},
};

// Random formats with and without units, weights and holes. Chunks end inside units and pieces.
static void test_formats_at_random(void **state)
{
    static const uint32_t chunks[] = {8, 64, 4096, 65536};
    for (size_t i = 0; i < worlds_of(state); i++) {
        const uint32_t n = world_of(state, i);
        struct fleet_options options = options_of(state, n, chunks[i % LENGTH(chunks)]);
        struct job *job = make_job(&options, 900 + i);
        uint64_t random = 31 + i;
        const uint32_t most = options.chunk_bytes * (n + 2) * 2;
        for (uint32_t k = 0; k < draws(6) * LENGTH(formats); k++) {
            const struct format *format = &formats[k % LENGTH(formats)];
            struct job_spec spec = {.dtype = format->dtype,
                                    .partial = format->partial,
                                    .final = format->final,
                                    .exponent = format->exponent,
                                    .op = k % 3 == 0 ? REDUCE_SUM : REDUCE_MEAN,
                                    .elements = job_random(&random) % 3 * (most / 8) +
                                                job_random(&random) % 2500,
                                    .units = k % 2 == 0 ? 0 : 1 + (uint32_t)(random % 30),
                                    .input_is_sum = job_random(&random) % 2 == 0,
                                    .holes = job_random(&random) % 2 == 0,
                                    .special = job_random(&random) % 3 == 0,
                                    .separate = job_random(&random) % 3 == 0};
            spec.elements = spec.elements / slowness(state);
            if (spec.elements > most)
                spec.elements = most;
            if (k < LENGTH(formats))
                spec.elements = k % 2;
            weights_fill(&spec, n, &random);
            job_add(job, &spec);
        }
        run_job(&options, job);
    }
}

#define MEASURED 20000 // Elements.

// Checks the sent bytes. Each of two ranks sends half of the elements as partial sums and half as
// final values. With doubling it sends all elements as partial sums. In shared memory inputs keep
// their dtype, and all results are copied from there. Sent straight to the owner, inputs have the
// dtype of final values, and owners' parts are multiples of 16 elements.
static void script_measure(struct member *member)
{
    const struct format *format = member->fleet->argument;
    const uint64_t size = dtype_size(format->dtype);
    const bool shared = member->fleet->options.algorithm == ALGORITHM_SHARED;
    const bool direct = member->fleet->options.algorithm == ALGORITHM_DIRECT;
    const uint64_t final = dtype_size(format->final && !shared ? format->final : format->dtype);
    const uint64_t partial =
        direct ? final : dtype_size(format->partial && !shared ? format->partial : format->dtype);
    const bool whole = member->fleet->options.algorithm == ALGORITHM_DOUBLING;
    const uint64_t expected = MEASURED / 2 * (partial + (whole ? partial : final));
    const uint64_t slack = shared ? 64 * size : direct ? 16 * size : 0;
    uint8_t *memory = calloc(MEASURED, size);
    struct extent extent = {memory, memory, MEASURED};
    struct collective collective = {.dtype = format->dtype,
                                    .op = REDUCE_MEAN,
                                    .partial = format->partial,
                                    .final = format->final,
                                    .exponent = format->exponent,
                                    .algorithm = member->fleet->options.algorithm,
                                    .tag = {.space = 1},
                                    .extents = &extent,
                                    .extent_count = 1,
                                    .elements = MEASURED,
                                    .weight = 1};
    struct transport_statistics statistics;
    member_place(member, &collective);
    transport_launch(member->transport, &collective);
    member_until(member, &member->done_count, 1, "the collective");
    transport_statistics(member->transport, &statistics);
    // In shared memory a rank's part of the sum is a number of whole cache lines.
    const uint64_t sent = statistics.payload_bytes_sent;
    MEMBER_CHECK(member, (sent > expected ? sent - expected : expected - sent) <= slack);
    MEMBER_CHECK(member,
                 statistics.bytes_copied == (final == size && !shared ? 0 : MEASURED * size));
    free(memory);
}

static void test_bytes_of_formats(void **state)
{
    static struct format same = {DTYPE_FLOAT32, 0, 0, 0};
    const struct fleet_options options = options_of(state, 2, 4096);
    fleet_run(&options, script_measure, &same);
    for (size_t i = 0; i < LENGTH(formats); i++) {
        struct format format = formats[i];
        fleet_run(&options, script_measure, &format);
    }
}

static void test_large(void **state)
{
    for (size_t w = 1; w < worlds_of(state); w++) {
        const uint32_t n = world_of(state, w);
        struct fleet_options options = options_of(state, n, 65536);
        struct job *job = make_job(&options, 2000 + n);
        for (int i = 0; i < 2; i++) {
            struct job_spec spec = {.dtype = i == 0 ? DTYPE_FLOAT32 : DTYPE_FLOAT64,
                                    .op = REDUCE_MEAN,
                                    .elements = 600007 / slowness(state)};
            for (uint32_t r = 0; r < n; r++)
                spec.weights[r] = r % 3 + (i == 0);
            job_add(job, &spec);
        }
        run_job(&options, job);
    }
}

static void test_broadcast(void **state)
{
    for (size_t w = 0; w < worlds_of(state); w++) {
        const uint32_t n = world_of(state, w);
        struct fleet_options options = options_of(state, n, 4096);
        struct job *job = make_job(&options, 3000 + n);
        static const uint64_t sizes[] = {0, 1, 1024, 1025, 60000};
        for (uint32_t root = 0; root < n; root++) {
            for (size_t i = 0; i < LENGTH(sizes); i++) {
                const struct job_spec spec = {
                    .kind = COLLECTIVE_BROADCAST,
                    .dtype = DTYPE_FLOAT32,
                    .root = root,
                    .elements = sizes[i] > 2000 ? sizes[i] / slowness(state) : sizes[i],
                    .special = true,
                    .holes = root % 2 == 1,
                    .separate = i % 2 == 0};
                job_add(job, &spec);
            }
        }
        run_job(&options, job);
    }
}

// Registered memory is reduced in place: no bytes are copied. The first run is not checked, because
// mates may not have mapped the memory yet.
static void script_in_place(struct member *member)
{
    struct job *job = member->fleet->argument;
    struct transport_statistics statistics;
    const uint64_t others = member->fleet->options.world - 1;
    if (member->fleet->options.regions)
        job_wait_mapped(member, job);
    job_run(member, job);
    transport_statistics(member->transport, &statistics);
    MEMBER_CHECK(member, statistics.bytes_copied == 0 || !member->fleet->options.regions);
    MEMBER_CHECK(member, statistics.payload_bytes_sent > 0 || others == 0);
}

static void test_in_place(void **state)
{
    for (size_t w = 1; w < worlds_of(state); w++) {
        const uint32_t n = worlds[w];
        struct fleet_options options = options_of(state, n, 65536);
        struct job *job = make_job(&options, 2500 + n);
        for (uint32_t i = 0; i < 12; i++) {
            struct job_spec spec = {.dtype = i % 3 == 0   ? DTYPE_FLOAT32
                                             : i % 3 == 1 ? DTYPE_BFLOAT16
                                                          : DTYPE_INT64,
                                    .op = i % 3 == 2 ? REDUCE_MAX : REDUCE_MEAN,
                                    .elements = 700 + i * 7919 / slowness(state)};
            for (uint32_t r = 0; r < n; r++)
                spec.weights[r] = (r + i) % 3;
            job_add(job, &spec);
        }
        run_script(&options, job, script_in_place);
    }
}

// ---- units --------------------------------------------------------------------------------------

static const uint32_t unit_worlds[] = {1, 2, 3, 5};

// Units that span chunks and stripes, many units in one chunk, and empty units; used by no rank, by
// all ranks, by one rank, or by some ranks.
static void test_units_at_random(void **state)
{
    static const uint32_t chunks[] = {64, 4096, 256, 1024};
    for (size_t w = 0; w < (is_short(*state) ? 3 : LENGTH(unit_worlds)); w++) {
        const uint32_t n = unit_worlds[w];
        uint64_t random = 77 + n;
        struct fleet_options options = options_of(state, n, chunks[w]);
        struct job *job = make_job(&options, 8000 + n);
        for (uint32_t i = 0; i < draws(60); i++) {
            const uint64_t most = job_random(&random) % 4 == 0 ? 20000 : 1000;
            struct job_spec spec = {.dtype = i % 3 == 0 ? DTYPE_FLOAT64 : DTYPE_FLOAT32,
                                    .op = i % 4 == 3 ? REDUCE_SUM : REDUCE_MEAN,
                                    .elements = job_random(&random) % (most / slowness(state) + 2),
                                    .input_is_sum = job_random(&random) % 2 == 0,
                                    .special = job_random(&random) % 4 == 0,
                                    .holes = job_random(&random) % 3 == 0,
                                    .separate = job_random(&random) % 3 == 0,
                                    .units = 1 + (uint32_t)(job_random(&random) % 40)};
            weights_fill(&spec, n, &random);
            job_add(job, &spec);
        }
        run_job(&options, job);
    }
}

// The maximum number of units, which have more bits than fit in one frame.
static void test_units_tiny(void **state)
{
    const struct variant *variant = *state;
    for (size_t w = 0; w < (is_short(variant) ? 1 : LENGTH(unit_worlds)); w++) {
        const uint32_t n = unit_worlds[is_short(variant) ? variant->turn % LENGTH(unit_worlds) : w];
        struct fleet_options options = options_of(state, n, 65536);
        struct job *job = make_job(&options, 9000 + n);
        for (uint32_t i = 0; i < draws(6); i++) {
            struct job_spec spec = {.dtype = DTYPE_FLOAT32,
                                    .op = REDUCE_MEAN,
                                    .elements = 1500 + i * 777,
                                    .units = i == 0 ? LOCKSTEP_BUCKET_PARAMETERS : 300 * i + 1};
            for (uint32_t r = 0; r < n; r++)
                spec.weights[r] = r + 1;
            job_add(job, &spec);
        }
        run_job(&options, job);
    }
}

// ---- waves and headers --------------------------------------------------------------------------

struct sum_payload {
    uint64_t sum;
    uint64_t ranks;
    uint8_t rest[LOCKSTEP_WAVE_BYTES - 16];
};

static void sum_merge(void *into, const void *from)
{
    struct sum_payload *a = into;
    const struct sum_payload *b = from;
    a->sum += b->sum;
    a->ranks |= b->ranks;
    for (size_t i = 0; i < sizeof(a->rest); i++)
        a->rest[i] = (uint8_t)(a->rest[i] + b->rest[i]);
}

static void wave_fill(const struct member *member, struct wave *wave, uint64_t step, uint32_t kind)
{
    *wave = (struct wave){.step = step, .kind = kind, .size = sizeof(struct sum_payload)};
    wave->merge = sum_merge;
    struct sum_payload payload = {.sum = member->rank + step, .ranks = 1u << member->rank};
    memset(payload.rest, (int)(member->rank + 1), sizeof(payload.rest));
    memcpy(wave->payload, &payload, sizeof(payload));
}

static void wave_check(const struct member *member, const struct wave *wave)
{
    struct sum_payload payload;
    const uint64_t n = member->fleet->options.world;
    memcpy(&payload, wave->payload, sizeof(payload));
    MEMBER_CHECK(member, payload.sum == n * wave->step + n * (n - 1) / 2);
    MEMBER_CHECK(member, payload.ranks == (1u << n) - 1);
    MEMBER_CHECK(member, payload.rest[0] == (uint8_t)(n * (n + 1) / 2));
    MEMBER_CHECK(member, payload.rest[sizeof(payload.rest) - 1] == payload.rest[0]);
}

// Two kinds of waves at a time; ranks join them in different orders.
static void script_waves(struct member *member)
{
    const uint64_t steps = member->fleet->options.torn_bytes == 1 ? 5 : test_everything() ? 20 : 10;
    for (uint64_t step = 1; step <= steps; step++) {
        struct wave waves[2];
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t kind = (member->rank + step) % 2 == 0 ? k : 1 - k;
            wave_fill(member, &waves[kind], step, kind);
            transport_wave(member->transport, &waves[kind]);
        }
        member_until(member, &member->wave_count, (uint32_t)step * 2, "both waves");
        wave_check(member, &waves[0]);
        wave_check(member, &waves[1]);
    }
}

static void test_waves(void **state)
{
    const struct variant *variant = *state;
    const uint32_t stride = is_short(variant) ? 3 : 1;
    for (uint32_t n = 1 + variant->turn % stride; n <= 9; n += stride) {
        const struct fleet_options options = options_of(state, n, 64);
        fleet_run(&options, script_waves, NULL);
    }
}

static void script_headers(struct member *member)
{
    static const uint32_t note_bytes[] = {0, 1, LOCKSTEP_NOTE_BYTES, 3, LOCKSTEP_NOTE_BYTES - 1};
    const uint32_t n = member->fleet->options.world;
    for (uint64_t step = 1; step <= 5; step++) {
        uint8_t note[LOCKSTEP_NOTE_BYTES];
        memset(note, (int)step, sizeof(note));
        const struct step_header header = {.step = step,
                                           .phase = 1000 + step,
                                           .plan_number = member->rank,
                                           .plan_hash = ~step,
                                           .starts = 7};
        transport_header(member->transport, &header, note, note_bytes[step - 1]);
        transport_progress(member->transport, 0);
        if (n == 1) {
            MEMBER_CHECK(member, member->header_count == 0);
            continue;
        }
        member_until(member, &member->header_count, 1, "the predecessor's header");
        const struct step_header *got = &member->headers[0];
        MEMBER_CHECK(member, got->step == step && got->phase == 1000 + step);
        MEMBER_CHECK(member, got->plan_number == (member->rank + n - 1) % n);
        MEMBER_CHECK(member, got->plan_hash == ~step && got->starts == 7);
        MEMBER_CHECK(member, member->note_bytes == note_bytes[step - 1]);
        MEMBER_CHECK(member, memcmp(member->note, note, member->note_bytes) == 0);
        member->header_count = 0;
        member_barrier(member);
    }
}

static void test_headers(void **state)
{
    for (size_t w = 0; w < worlds_of(state); w++) {
        const struct fleet_options options = options_of(state, worlds[w], 64);
        fleet_run(&options, script_headers, NULL);
    }
}

// ---- bounds -------------------------------------------------------------------------------------

#define BOUND_CHUNK 4096

// Rank 1 launches late. The other ranks must have sent only a few frames before.
static void script_late(struct member *member)
{
    struct job *job = member->fleet->argument;
    const uint32_t n = member->fleet->options.world;
    struct transport_statistics before;
    struct transport_statistics statistics;
    transport_statistics(member->transport, &before);
    if (member->rank == 1)
        member_idle(member, 100);
    transport_statistics(member->transport, &statistics);
    if (member->rank == 1) {
        // Only eager frames are parked: those of small collectives.
        MEMBER_CHECK(member, statistics.frames_parked_max <= 8 * (n - 1));
        MEMBER_CHECK(member, statistics.scratch_bytes == before.scratch_bytes);
    }
    job_run(member, job);
    transport_statistics(member->transport, &statistics);
    // The limit is 8 collectives, each with its window of stripes.
    MEMBER_CHECK(member,
                 statistics.scratch_bytes <= 8 * LOCKSTEP_STRIPES_IN_FLIGHT * n * BOUND_CHUNK);
}

static void test_late_launch_is_bounded(void **state)
{
    for (size_t w = 0; w < worlds_of(state); w++) {
        const uint32_t n = world_of(state, w);
        if (n < 2 || n > MOST_THAT_FAIL)
            continue;
        struct fleet_options options = options_of(state, n, BOUND_CHUNK);
        struct job *job = make_job(&options, 4000 + n);
        for (uint32_t i = 0; i < 8; i++) {
            const struct job_spec spec = {.dtype = DTYPE_FLOAT32,
                                          .op = REDUCE_SUM,
                                          .elements = i % 2 == 0 ? 500 : 400000 / slowness(state)};
            job_add(job, &spec);
        }
        run_script(&options, job, script_late);
    }
}

static void script_steady(struct member *member)
{
    const uint32_t torn_bytes = member->fleet->options.torn_bytes;
    const bool few = (torn_bytes > 0 && torn_bytes < 100) || is_sanitized() || !test_everything();
    const uint32_t rounds = few ? 6 : 20;
    struct job *job = member->fleet->argument;
    struct transport_statistics before = {0};
    struct transport_statistics after = {0};
    for (uint32_t round = 0; round < rounds; round++) {
        member_barrier(member);
        if (member->rank == 0)
            job_again(job);
        member_barrier(member);
        job_run(member, job);
        if (round == rounds / 2 - 1)
            transport_statistics(member->transport, &before);
    }
    transport_statistics(member->transport, &after);
    // The number of parked frames depends on timing, so a few more allocations are possible.
    MEMBER_CHECK(member, after.allocations <= before.allocations + before.allocations / 2 + 8);
}

static void test_steady_state_allocates_nothing(void **state)
{
    for (size_t w = 0; w < worlds_of(state); w++) {
        const uint32_t n = world_of(state, w);
        if (n < 2 || n > MOST_THAT_FAIL)
            continue;
        struct fleet_options options = options_of(state, n, 4096);
        struct job *job = make_job(&options, 5000 + n);
        for (uint32_t i = 0; i < 16; i++) {
            const struct job_spec spec = {.dtype = DTYPE_INT32,
                                          .op = REDUCE_MAX,
                                          .elements = 30000 * (i % 4) / slowness(state) + 5};
            job_add(job, &spec);
        }
        run_script(&options, job, script_steady);
    }
}

#define EARLY 500
#define EARLY_ROUNDS (is_sanitized() ? 2u : 4u)
#define EARLY_MOST 2100

static uint64_t early_elements(uint32_t slot)
{
    static const uint64_t most[] = {5, 256, 257, 900, EARLY_MOST};
    return most[slot % 5] - slot % 4;
}

// The input of an element: an integer, so that sums are exact in any order.
static float early_value(uint32_t rank, uint32_t slot, uint64_t element)
{
    return (float)(1000 * (rank + 1) + slot + element % 7);
}

static void early_launch(struct member *member, struct collective *collective,
                         struct extent *extent, uint32_t slot, uint64_t step)
{
    float *memory = extent->out;
    for (uint64_t e = 0; e < extent->elements; e++)
        memory[e] = early_value(member->rank, slot, e);
    *collective = (struct collective){.dtype = DTYPE_FLOAT32,
                                      .op = REDUCE_SUM,
                                      .algorithm = member->fleet->options.algorithm,
                                      .tag = {.step = step, .space = 9, .slot = slot},
                                      .signature = 77,
                                      .extents = extent,
                                      .extent_count = 1,
                                      .elements = extent->elements,
                                      .weight = 1};
    member_place(member, collective);
    transport_launch(member->transport, collective);
}

static void early_check(const struct member *member, const struct extent *extent, uint32_t slot)
{
    const uint32_t n = member->fleet->options.world;
    const float *memory = extent->out;
    for (uint64_t e = 0; e < extent->elements; e++) {
        float sum = 0;
        for (uint32_t r = 0; r < n; r++)
            sum += early_value(r, slot, e);
        MEMBER_CHECK(member, memory[e] == sum);
    }
}

// Every second rank launches the collectives in reverse order if it may. So no collective is done
// before most are launched, far more payloads wait than the board has room for, and records are
// used several times.
static void script_early(struct member *member)
{
    struct collective *collectives = calloc(EARLY, sizeof(*collectives));
    struct extent *extents = calloc(EARLY, sizeof(*extents));
    float *memory = calloc((size_t)EARLY * EARLY_MOST, sizeof(*memory));
    for (uint32_t i = 0; i < EARLY; i++) {
        float *own = memory + (size_t)i * EARLY_MOST;
        extents[i] = (struct extent){.in = own, .out = own, .elements = early_elements(i)};
    }
    for (uint32_t round = 0; round < EARLY_ROUNDS; round++) {
        for (uint32_t i = 0; i < EARLY; i++) {
            const uint32_t odd = member_has_any_order(member) ? member->rank + 1 : 0;
            const uint32_t slot = (odd + round) % 2 == 0 ? i : EARLY - 1 - i;
            early_launch(member, &collectives[slot], &extents[slot], slot, round + 1);
        }
        member_until(member, &member->done_count, (round + 1) * EARLY, "all collectives");
        for (uint32_t i = 0; i < EARLY; i++)
            early_check(member, &extents[i], i);
    }
    free(memory);
    free(extents);
    free(collectives);
}

static void test_many_early(void **state)
{
    for (uint32_t n = 2; n <= 4 && algorithm_of(state) == ALGORITHM_SHARED; n++) {
        const struct fleet_options options = options_of(state, n, 4096);
        fleet_run(&options, script_early, NULL);
    }
}

// ---- disagreement and ends ----------------------------------------------------------------------

static void launch_plain(struct member *member, struct collective *collective,
                         struct extent *extent, uint32_t slot, uint64_t signature)
{
    *collective = (struct collective){.dtype = DTYPE_FLOAT32,
                                      .op = REDUCE_SUM,
                                      .algorithm = member->fleet->options.algorithm,
                                      .tag = {.step = 1, .space = 2, .slot = slot},
                                      .signature = signature,
                                      .extents = extent,
                                      .extent_count = 1,
                                      .elements = extent->elements};
    member_place(member, collective);
    transport_launch(member->transport, collective);
}

static bool is_neighbour(uint32_t a, uint32_t b, uint32_t n)
{
    return (a + 1) % n == b || (b + 1) % n == a;
}

static atomic_bool mismatch_noticed;

static void script_mismatch(struct member *member)
{
    const uint32_t n = member->fleet->options.world;
    const uint64_t elements = *(const uint64_t *)member->fleet->argument;
    float *memory = calloc(elements, sizeof(float));
    struct extent extent = {.in = memory, .out = memory, .elements = elements};
    struct collective collective;
    launch_plain(member, &collective, &extent, 0, member->rank == 0 ? 1 : 2);
    // Rank 0 has another signature than its neighbours. At least one rank detects the mismatch; in
    // a real job the coordinator tells the others.
    for (int i = 0; i < 50; i++) {
        transport_progress(member->transport, 1);
        if (member->mismatch_count > 0)
            atomic_store(&mismatch_noticed, true);
    }
    const uint64_t since_ms = clock_now_ms();
    while (!atomic_load(&mismatch_noticed)) {
        transport_progress(member->transport, 1);
        if (member->mismatch_count > 0)
            atomic_store(&mismatch_noticed, true);
        MEMBER_CHECK(member, clock_now_ms() - since_ms < fleet_bound_ms(FLEET_BOUND_MS));
    }
    MEMBER_CHECK(member, member->mismatch_count <= 1);
    MEMBER_CHECK(member, member->mismatch_count == 0 || is_neighbour(member->rank, 0, n) ||
                             member->rank == 0 || member->fleet->options.mates ||
                             is_pair(member->fleet->options.algorithm) ||
                             member->fleet->options.algorithm == ALGORITHM_DIRECT);
    MEMBER_CHECK(member, member->done_count == 0 && member->lost_count == 0);
    member_barrier(member);
    transport_abandon(member->transport);
    transport_close(member->transport);
    member->closed = true;
    free(memory);
}

static void test_mismatch(void **state)
{
    for (size_t w = 0; w < worlds_of(state); w++) {
        const uint32_t n = world_of(state, w);
        if (n < 2 || n > MOST_THAT_FAIL)
            continue;
        uint64_t elements = 100;
        const struct fleet_options options = options_of(state, n, 4096);
        atomic_store(&mismatch_noticed, false);
        fleet_run(&options, script_mismatch, &elements);
        atomic_store(&mismatch_noticed, false);
        elements = 20000;
        fleet_run(&options, script_mismatch, &elements);
    }
}

// The signatures are equal, but rank 0 uses another algorithm.
static void script_other_algorithm(struct member *member)
{
    static const enum plan_algorithm others[] = {
        [ALGORITHM_RING] = ALGORITHM_DOUBLING,  [ALGORITHM_DOUBLING] = ALGORITHM_RING,
        [ALGORITHM_HALVING] = ALGORITHM_RING,   [ALGORITHM_SHARED] = ALGORITHM_RING,
        [ALGORITHM_TWO_LEVEL] = ALGORITHM_RING, [ALGORITHM_DIRECT] = ALGORITHM_RING,
    };
    const uint64_t elements = *(const uint64_t *)member->fleet->argument;
    float *memory = calloc(elements, sizeof(float));
    struct extent extent = {.in = memory, .out = memory, .elements = elements};
    const enum plan_algorithm algorithm = member->fleet->options.algorithm;
    struct collective collective = {.dtype = DTYPE_FLOAT32,
                                    .op = REDUCE_SUM,
                                    .algorithm = member->rank == 0 ? others[algorithm] : algorithm,
                                    .tag = {.step = 1, .space = 2},
                                    .extents = &extent,
                                    .extent_count = 1,
                                    .elements = elements};
    const uint64_t since_ms = clock_now_ms();
    member_place(member, &collective);
    transport_launch(member->transport, &collective);
    while (!atomic_load(&mismatch_noticed)) {
        transport_progress(member->transport, 1);
        if (member->mismatch_count > 0)
            atomic_store(&mismatch_noticed, true);
        MEMBER_CHECK(member, clock_now_ms() - since_ms < fleet_bound_ms(FLEET_BOUND_MS));
    }
    MEMBER_CHECK(member, member->done_count == 0 && member->lost_count == 0);
    member_barrier(member);
    transport_abandon(member->transport);
    transport_close(member->transport);
    member->closed = true;
    free(memory);
}

static void test_other_algorithm(void **state)
{
    for (size_t w = 0; w < worlds_of(state); w++) {
        const uint32_t n = world_of(state, w);
        if (n < 2 || n > MOST_THAT_FAIL)
            continue;
        const struct fleet_options options = options_of(state, n, 4096);
        // With few elements the ring may send nothing to a rank that waits for shared memory.
        const uint64_t least = is_in_memory(options.algorithm) ? 20000 : 100;
        for (uint64_t elements = least; elements <= 20000; elements *= 200) {
            uint64_t count = elements;
            atomic_store(&mismatch_noticed, false);
            fleet_run(&options, script_other_algorithm, &count);
        }
    }
}

// The last rank breaks its links while collectives are in flight.
static void script_killed(struct member *member)
{
    struct job *job = member->fleet->argument;
    const uint32_t n = member->fleet->options.world;
    if (member->fleet->options.regions)
        job_wait_mapped(member, job);
    if (member->rank != n - 1) {
        job_launch_all(member, job);
        const uint64_t since_ms = clock_now_ms();
        if (is_neighbour(member->rank, n - 1, n)) {
            member_until(member, &member->lost_count, 1, "the loss");
            MEMBER_CHECK(member, !member->lost_left && member->lost_rank == n - 1);
            MEMBER_CHECK(member, clock_now_ms() - since_ms < fleet_bound_ms(5000));
        } else {
            member_idle(member, 50);
        }
    } else {
        // Stops when some collectives are done and most are not.
        job_launch_all(member, job);
        for (int i = 0; i < 20 && member->done_count == 0; i++)
            transport_progress(member->transport, 1);
    }
    if (member->rank != n - 1)
        member_barrier(member);
    transport_abandon(member->transport);
    transport_close(member->transport);
    member->closed = true;
    if (member->rank == n - 1)
        member_barrier(member);
}

static void test_killed_rank(void **state)
{
    for (size_t w = 0; w < worlds_of(state); w++) {
        const uint32_t n = world_of(state, w);
        if (n < 2 || n > MOST_THAT_FAIL)
            continue;
        struct fleet_options options = options_of(state, n, 4096);
        struct job *job = make_job(&options, 6000 + n);
        const uint64_t elements = 200000 / slowness(state);
        for (uint32_t i = 0; i < 4; i++) {
            const struct job_spec spec = {.dtype = i % 2 == 0 ? DTYPE_FLOAT32 : DTYPE_FLOAT64,
                                          .op = REDUCE_SUM,
                                          .elements = elements,
                                          .units = i < 2 ? 0 : 50};
            job_add(job, &spec);
        }
        for (uint32_t i = 0; i < LENGTH(formats); i++) {
            const struct job_spec spec = {.dtype = formats[i].dtype,
                                          .partial = formats[i].partial,
                                          .final = formats[i].final,
                                          .exponent = formats[i].exponent,
                                          .op = REDUCE_SUM,
                                          .elements = elements,
                                          .units = i % 2 == 0 ? 0 : 50};
            job_add(job, &spec);
        }
        fleet_run(&options, script_killed, job);
        job_check_intact_or_final(job, options.name, n - 1);
        job_free(job);
    }
}

static void script_idle_death(struct member *member)
{
    const uint32_t n = member->fleet->options.world;
    member_barrier(member);
    if (member->rank == 0) {
        transport_close(member->transport);
        member->closed = true;
        return;
    }
    if (is_neighbour(member->rank, 0, n)) {
        member_until(member, &member->lost_count, 1, "the loss");
        MEMBER_CHECK(member, !member->lost_left && member->lost_rank == 0);
    }
}

static void test_idle_death(void **state)
{
    for (size_t w = 0; w < worlds_of(state); w++) {
        const uint32_t n = world_of(state, w);
        if (n < 2 || n > MOST_THAT_FAIL)
            continue;
        const struct fleet_options options = options_of(state, n, 4096);
        fleet_run(&options, script_idle_death, NULL);
    }
}

static atomic_bool first_has_left;

// Rank 0 completes the job and leaves. The other ranks complete the job as well, and lose rank 0
// only in a later collective.
static void script_leave(struct member *member)
{
    struct job *job = member->fleet->argument;
    job_run(member, job);
    if (member->rank == 0) {
        const uint64_t since_ms = clock_now_ms();
        transport_leave(member->transport, fleet_bound_ms(5000));
        MEMBER_CHECK(member, clock_now_ms() - since_ms < fleet_bound_ms(5000));
        transport_close(member->transport);
        member->closed = true;
        atomic_store(&first_has_left, true);
        member_barrier(member);
        return;
    }
    member_idle(member, 30);
    MEMBER_CHECK(member, member->lost_count == 0);
    float memory[2] = {1, 2};
    struct extent extent = {.in = memory, .out = memory, .elements = 2};
    struct collective collective;
    const uint32_t before = member->done_count;
    launch_plain(member, &collective, &extent, 0, 5);
    // The successor waits for data of rank 0 and loses it. The predecessor may have sent all its
    // data, and need not notice.
    if (member->rank == 1)
        member_until(member, &member->lost_count, 1, "the one that left");
    // A leaving rank waits until its neighbours have noticed.
    while (!atomic_load(&first_has_left))
        member_idle(member, 1);
    MEMBER_CHECK(member, member->lost_count == 0 || (member->lost_left && member->lost_rank == 0));
    MEMBER_CHECK(member, member->done_count == before);
    member_barrier(member);
    transport_abandon(member->transport);
    transport_close(member->transport);
    member->closed = true;
}

static void test_leave(void **state)
{
    for (size_t w = 0; w < worlds_of(state); w++) {
        const uint32_t n = world_of(state, w);
        if (n < 2 || n > MOST_THAT_FAIL)
            continue;
        struct fleet_options options = options_of(state, n, 4096);
        struct job *job = make_job(&options, 7000 + n);
        for (uint32_t i = 0; i < 6; i++) {
            const struct job_spec spec = {
                .dtype = DTYPE_FLOAT64, .op = REDUCE_SUM, .elements = 300000 / slowness(state)};
            job_add(job, &spec);
        }
        atomic_store(&first_has_left, false);
        run_script(&options, job, script_leave);
    }
}

#define TEST(function) \
    { \
#function, function, true, false \
    }
#define LINK_TEST(function) \
    { \
#function, function, true, true \
    }
#define RING_TEST(function) \
    { \
#function, function, false, false \
    }

static const struct {
    const char *name;
    void (*function)(void **state);
    bool by_pairs; // True if the test has allreduces, which the algorithm changes.
    bool by_links; // True if the test checks the behaviour of links.
} tests[] = {
    TEST(test_sizes),
    TEST(test_every_dtype_and_op),
    TEST(test_many_at_random),
    TEST(test_formats_at_random),
    LINK_TEST(test_bytes_of_formats),
    TEST(test_large),
    RING_TEST(test_broadcast),
    LINK_TEST(test_in_place),
    TEST(test_units_at_random),
    TEST(test_units_tiny),
    RING_TEST(test_waves),
    RING_TEST(test_headers),
    LINK_TEST(test_late_launch_is_bounded),
    LINK_TEST(test_many_early),
    LINK_TEST(test_steady_state_allocates_nothing),
    LINK_TEST(test_mismatch),
    LINK_TEST(test_other_algorithm),
    LINK_TEST(test_killed_rank),
    RING_TEST(test_idle_death),
    LINK_TEST(test_leave),
};

// The only torn loopback that runs under a sanitizer, where millions of calls of a few bytes would
// take minutes. Parts of 1000 bytes show the same races, and parts of 7 bytes the same split
// elements.
static uint32_t stands_for_torn(const char *sanitizer)
{
    return strcmp(sanitizer, "thread") == 0 ? 1000 : 7;
}

static bool left_out(const struct variant *variant)
{
    const char *sanitizer = getenv("LOCKSTEP_TEST_SANITIZER");
    if (!sanitizer || sanitizer[0] == '\0')
        return false;
    if (variant->has_twin && strcmp(sanitizer, "thread") == 0)
        return true;
    return variant->torn_bytes > 0 && variant->torn_bytes != stands_for_torn(sanitizer);
}

static bool is_rare(const struct variant *variant)
{
    return variant->rare && !test_everything() && !getenv("LOCKSTEP_TEST_ONLY");
}

static void test_rare(void **state)
{
    print_message("%s: with LOCKSTEP_TEST_ALGORITHMS=all\n",
                  ((const struct variant *)*state)->name);
    skip();
}

static void test_left_out(void **state)
{
    const struct variant *variant = *state;
    print_message("not on %s under this sanitizer: another variant stands for it\n", variant->name);
    skip();
}

int main(void)
{
    static struct CMUnitTest stamped[LENGTH(tests) * LENGTH(variants)];
    static struct variant turns[LENGTH(stamped)];
    static char names[LENGTH(stamped)][80];
    const char *only = getenv("LOCKSTEP_TEST_ONLY"); // A part of a name such as "test_waves/tcp".
    size_t count = 0;
    (void)fake_gpu_install();
    fake_gpu_weather("FAKE_CUDA_DEVICES=16", "FAKE_CUDA_EVERYWHERE=1", NULL);
    for (size_t v = 0; v < LENGTH(variants); v++) {
        const size_t wanted = is_rare(&variants[v]) ? 0 : LENGTH(tests);
        if (wanted == 0) {
            snprintf(names[count], sizeof(names[count]), "all/%s", variants[v].name);
            stamped[count] = (struct CMUnitTest){.name = names[count],
                                                 .test_func = test_rare,
                                                 .initial_state = (void *)&variants[v]};
            count++;
        }
        for (size_t t = 0; t < wanted; t++) {
            snprintf(names[count], sizeof(names[count]), "%s/%s", tests[t].name, variants[v].name);
            if (only && !strstr(names[count], only))
                continue;
            if ((is_pair(variants[v].algorithm) || variants[v].registered ||
                 variants[v].algorithm == ALGORITHM_TWO_LEVEL) &&
                !tests[t].by_pairs)
                continue;
            if (variants[v].devices == FLEET_NCCL && tests[t].by_links)
                continue;
            turns[count] = variants[v];
            turns[count].turn = (uint32_t)(t + v);
            stamped[count] = (struct CMUnitTest){
                .name = names[count],
                .test_func = left_out(&variants[v]) ? test_left_out : tests[t].function,
                .initial_state = &turns[count]};
            count++;
        }
    }
    return _cmocka_run_group_tests("transport", stamped, count, NULL, NULL);
}
