// SPDX-License-Identifier: Apache-2.0
//
// Jobs of collectives: their memory, and how ranks run them; see transport_job.h. The checks are in
// transport_reference.c.

#include "tests/conformance/transport_job_inside.h"

#include "base/clock.h"
#include "protos/topology.h"
#include "tests/support/choice.h"
#include "worker/kernels/kernels.h"
#include "worker/memory/regions.h"
#include "worker/memory/units.h"
#include "worker/transport/ring/schedule.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define JOB_BLOCK 8
#define JOB_REGION_BYTES (1024 * 1024)
uint64_t job_random(uint64_t *state)
{
    return choice_random(state);
}

struct job *job_make(uint32_t world, uint32_t chunk_bytes, uint64_t seed)
{
    struct job *job = calloc(1, sizeof(*job));
    job->world = world;
    job->chunk_bytes = chunk_bytes;
    job->seed = seed;
    return job;
}

void job_use(struct job *job, enum plan_algorithm algorithm)
{
    job->algorithm = algorithm;
}

void job_use_nccl(struct job *job)
{
    job->loose = true;
}

struct regions **job_register(struct job *job)
{
    for (uint32_t r = 0; !job->registered && r < job->world; r++) {
        job->regions[r] = regions_open();
        if (!job->regions[r])
            abort();
    }
    job->registered = true;
    return job->regions;
}

// Allocates memory in a region of the rank, aligned to the size of an element only.
static void *job_take(struct job *job, uint32_t rank, size_t bytes, size_t element)
{
    struct home *home = &job->homes[rank];
    if (!job->registered)
        return malloc(bytes);
    if (home->count == 0 || home->bytes - home->filled < bytes + element) {
        void *made = NULL;
        home->bytes = bytes + element > JOB_REGION_BYTES ? bytes + element : JOB_REGION_BYTES;
        if (home->count == JOB_REGIONS || regions_make(job->regions[rank], home->bytes, &made) < 0)
            abort();
        home->regions[home->count++] = made;
        home->filled = 0;
    }
    const size_t at = (home->filled + element - 1) / element * element;
    home->filled = at + bytes;
    return home->regions[home->count - 1] + at;
}

void job_wait_mapped(struct member *member, struct job *job)
{
    const struct home *home = &job->homes[member->rank];
    const uint64_t since_ms = clock_now_ms();
    uint32_t number = 0;
    uint64_t offset = 0;
    for (uint32_t i = 0; i < home->count; i++) {
        while (!regions_find(job->regions[member->rank], home->regions[i], 1, &number, &offset)) {
            transport_progress(member->transport, 10);
            MEMBER_CHECK(member, clock_now_ms() - since_ms < fleet_bound_ms(FLEET_BOUND_MS));
        }
    }
    atomic_fetch_add(&job->mapped, 1);
    while (atomic_load(&job->mapped) < job->world) {
        transport_progress(member->transport, 10); // Maps the memory of other ranks.
        MEMBER_CHECK(member, clock_now_ms() - since_ms < fleet_bound_ms(FLEET_BOUND_MS));
    }
}

static void job_put(const struct job_spec *spec, uint8_t *at, uint64_t random)
{
    const double small = (double)(int64_t)(random % 20001) / 1000.0 - 10.0;
    const int pick = (int)(random >> 40) % 97;
    double value = small;
    if (spec->special && pick == 0)
        value = NAN;
    if (spec->special && pick == 1)
        value = INFINITY;
    if (spec->special && pick == 2)
        value = -INFINITY;
    if (spec->dtype == DTYPE_FLOAT32) {
        const float narrow = (float)value;
        memcpy(at, &narrow, sizeof(narrow));
    } else if (spec->dtype == DTYPE_FLOAT64) {
        memcpy(at, &value, sizeof(value));
    } else if (dtype_is_small(spec->dtype) && spec->op == REDUCE_PRODUCT) {
        // Products of any bits overflow or underflow nearly always.
        const float narrow = (float)value;
        uint16_t half;
        kernel_narrow(spec->dtype, &half, &narrow, 1);
        memcpy(at, &half, sizeof(half));
    } else if (spec->dtype == DTYPE_BOOL) {
        *at = random >> 32 & 1 ? (uint8_t)random : 0;
    } else {
        memcpy(at, &random, dtype_size(spec->dtype));
    }
}

static int compare_ends(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

// Draws the ends of the units. A quarter of all collectives has units of 3 elements and a large
// last unit; in the others the ends are random.
static uint64_t *item_units(const struct job_spec *spec, uint64_t *random)
{
    uint64_t *ends = calloc(spec->units + 1, sizeof(*ends));
    const bool small = job_random(random) % 4 == 0;
    for (uint32_t u = 0; u < spec->units; u++) {
        uint64_t place = job_random(random) % (spec->elements + 1);
        if (small)
            place = spec->elements < u * 3 ? spec->elements : u * 3;
        ends[u] = place;
    }
    qsort(ends, spec->units, sizeof(*ends), compare_ends);
    if (spec->units > 0)
        ends[spec->units - 1] = spec->elements;
    return ends;
}

// True if the rank uses the unit. A draw that is the same on all ranks decides whether no rank, all
// ranks, one rank or a random set of ranks uses it.
static bool side_uses(uint64_t seed, uint32_t unit, uint32_t rank, uint32_t world)
{
    uint64_t shared = seed * 7919 + unit;
    uint64_t own = shared * 31 + rank;
    switch (job_random(&shared) % 4) {
    case 0:
        return false;
    case 1:
        return true;
    case 2:
        return job_random(&shared) % world == rank;
    default:
        return job_random(&own) % 2 == 0;
    }
}

// Makes two extents for each unit, of which one may be empty. The extents of a unit that the rank
// does not use have no input.
static void side_layout_units(struct side *side, const struct job_spec *spec, const uint64_t *ends,
                              uint64_t *random)
{
    const size_t element = dtype_size(spec->dtype);
    uint64_t at = 0;
    side->extents = calloc(2 * (size_t)spec->units, sizeof(struct extent));
    for (uint32_t i = 0; i < 2 * spec->units; i++) {
        const uint64_t left = ends[i / 2] - at;
        const uint64_t take = i % 2 == 1 ? left : job_random(random) % (left + 1);
        const bool used = units_is_used(side->used, i / 2);
        const bool in = used && (!spec->holes || job_random(random) % 4 != 0);
        const bool out = !spec->holes || job_random(random) % 4 != 0;
        side->extents[i] = (struct extent){.in = in ? side->memory + at * element : NULL,
                                           .out = out ? side->outputs + at * element : NULL,
                                           .elements = take};
        memset(side->has_in + at, in, take);
        memset(side->has_out + at, out, take);
        at += take;
    }
    side->extent_count = 2 * spec->units;
}

static void side_layout(struct side *side, const struct job_spec *spec, uint64_t *random)
{
    const size_t element = dtype_size(spec->dtype);
    const uint32_t most = 2 + (uint32_t)(job_random(random) % 12);
    side->extents = calloc(most, sizeof(struct extent));
    uint64_t at = 0;
    for (uint32_t i = 0; i < most; i++) {
        const uint64_t left = spec->elements - at;
        uint64_t take = i == most - 1 ? left : job_random(random) % (left / 2 + 1);
        if (job_random(random) % 5 == 0 && i != most - 1)
            take = 0;
        const bool in = !spec->holes || job_random(random) % 4 != 0;
        const bool out = !spec->holes || job_random(random) % 4 != 0;
        side->extents[i] = (struct extent){.in = in ? side->memory + at * element : NULL,
                                           .out = out ? side->outputs + at * element : NULL,
                                           .elements = take};
        memset(side->has_in + at, in, take);
        memset(side->has_out + at, out, take);
        at += take;
    }
    side->extent_count = most;
}

static void side_make(struct job *job, uint32_t rank, struct side *side,
                      const struct job_spec *spec, const uint64_t *ends, uint64_t *random)
{
    const size_t element = dtype_size(spec->dtype);
    const size_t bytes = spec->elements * element + 8;
    side->memory = job_take(job, rank, bytes, element);
    side->outputs = spec->separate ? job_take(job, rank, bytes, element) : side->memory;
    side->inputs_before = calloc(1, bytes);
    side->outputs_before = malloc(bytes);
    side->has_in = calloc(1, spec->elements + 1);
    side->has_out = calloc(1, spec->elements + 1);
    memset(side->outputs, 0xa5, bytes);
    for (uint64_t i = 0; i < spec->elements; i++)
        job_put(spec, side->memory + i * element, job_random(random));
    memcpy(side->outputs_before, side->outputs, bytes);
    if (spec->units > 0)
        side_layout_units(side, spec, ends, random);
    else
        side_layout(side, spec, random);
    for (uint64_t i = 0; i < spec->elements; i++)
        if (side->has_in[i])
            memcpy(side->inputs_before + i * element, side->memory + i * element, element);
}

void job_add(struct job *job, const struct job_spec *spec)
{
    struct item *item = &job->items[job->count++];
    if (job->count > JOB_MAX)
        abort();
    item->spec = *spec;
    const uint64_t seed = job->seed * 1000003 + job->count * 64;
    uint64_t shared = ~seed;
    item->unit_ends = item_units(spec, &shared);
    for (uint32_t r = 0; r < job->world; r++) {
        struct side *side = &item->sides[r];
        uint64_t random = seed + r;
        side->used = calloc(units_words(spec->units) + 1, sizeof(uint64_t));
        side->used_after = calloc(units_words(spec->units) + 1, sizeof(uint64_t));
        for (uint32_t u = 0; u < spec->units; u++) {
            if (side_uses(seed, u, r, job->world))
                units_set_used(side->used, u);
        }
        side_make(job, r, side, spec, item->unit_ends, &random);
    }
}

bool job_is_pair(const struct job *job)
{
    return job->algorithm == ALGORITHM_DOUBLING || job->algorithm == ALGORITHM_HALVING;
}

static void job_launch(struct member *member, struct job *job, uint32_t index)
{
    struct item *item = &job->items[index];
    const struct job_spec *spec = &item->spec;
    struct side *side = &item->sides[member->rank];
    memcpy(side->used_after, side->used, units_words(spec->units) * sizeof(uint64_t));
    side->collective = (struct collective){
        .kind = spec->kind,
        .dtype = spec->dtype,
        .op = spec->op,
        .partial = spec->partial,
        .final = spec->final,
        .exponent = spec->exponent,
        .root = spec->root,
        .algorithm = spec->kind == COLLECTIVE_BROADCAST && job->algorithm != ALGORITHM_SHARED
                         ? ALGORITHM_RING
                         : member->fleet->options.algorithm,
        .tag = {.step = job->run, .space = job->seed, .slot = index},
        .signature = index * 77 + 1,
        .extents = side->extents,
        .extent_count = side->extent_count,
        .elements = spec->elements,
        .weight = spec->weights[member->rank],
        .input_is_sum = spec->input_is_sum,
        .unit_ends = item->unit_ends,
        .unit_count = spec->units,
        .used = side->used_after,
    };
    member_place(member, &side->collective);
    transport_launch(member->transport, &side->collective);
}

void job_launch_all(struct member *member, struct job *job)
{
    for (uint32_t i = 0; i < job->count; i++)
        job_launch(member, job, i);
}

void job_again(struct job *job)
{
    job->run++;
}

static void job_shuffle(uint32_t *order, uint32_t count, uint64_t *random)
{
    for (uint32_t i = count; i > 1; i--) {
        const uint32_t j = (uint32_t)(job_random(random) % i);
        const uint32_t kept = order[i - 1];
        order[i - 1] = order[j];
        order[j] = kept;
    }
}

void job_run(struct member *member, struct job *job)
{
    uint32_t order[JOB_MAX];
    uint64_t random = job->seed * 31 + member->rank + job->run * 1009;
    for (uint32_t i = 0; i < job->count; i++)
        order[i] = i;
    for (uint32_t i = 0; member_has_any_order(member) && i < job->count; i += JOB_BLOCK) {
        const uint32_t left = job->count - i;
        job_shuffle(order + i, left < JOB_BLOCK ? left : JOB_BLOCK, &random);
    }
    const uint32_t before = member->done_count;
    for (uint32_t i = 0; i < job->count; i++) {
        if (i >= JOB_BLOCK)
            member_until(member, &member->done_count, before + i + 1 - JOB_BLOCK,
                         "a place in the window");
        job_launch(member, job, order[i]);
    }
    member_until(member, &member->done_count, before + job->count, "all collectives");
}

void job_free(struct job *job)
{
    for (uint32_t i = 0; i < job->count; i++) {
        for (uint32_t r = 0; r < job->world; r++) {
            struct side *side = &job->items[i].sides[r];
            if (side->outputs != side->memory && !job->registered)
                free(side->outputs);
            if (!job->registered)
                free(side->memory);
            free(side->inputs_before);
            free(side->outputs_before);
            free(side->has_in);
            free(side->has_out);
            free(side->extents);
            free(side->used);
            free(side->used_after);
        }
        free(job->items[i].unit_ends);
    }
    for (uint32_t r = 0; job->registered && r < job->world; r++) {
        for (uint32_t i = 0; i < job->homes[r].count; i++)
            (void)regions_free(job->regions[r], job->homes[r].regions[i]);
        regions_close(job->regions[r]);
    }
    free(job);
}
