// SPDX-License-Identifier: Apache-2.0
//
// Slots can be filled through the caches or past them. The bits are the same, the setting of the
// lowest rank decides, and without a setting both ways are tried.

#include "tests/conformance/transport_fleet.h"
#include "tests/conformance/transport_job.h"
#include "worker/transport/host/trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define RUNS (2 * TRIAL_TASKS + 4)

struct scene {
    struct job *job;
    enum slot_fill fills[FLEET_MAX]; // By rank.
};

static void script(struct member *member)
{
    const struct scene *scene = member->fleet->argument;
    struct transport_statistics statistics;
    job_run(member, scene->job);
    transport_statistics(member->transport, &statistics);
    const uint64_t *filled = statistics.runs_filled;
    MEMBER_CHECK(member, filled[0] + filled[1] == RUNS);
    switch (scene->fills[0]) {
    case FILL_CACHED:
        MEMBER_CHECK(member, filled[1] == 0);
        break;
    case FILL_PAST:
        MEMBER_CHECK(member, filled[0] == 0);
        break;
    case FILL_MEASURED:
        MEMBER_CHECK(member, filled[0] >= TRIAL_TASKS && filled[1] >= TRIAL_TASKS);
        break;
    }
}

static void run(uint32_t world, const struct job_spec *spec, const enum slot_fill fills[2])
{
    struct fleet_options options = {.name = "fill",
                                    .kind = TRANSPORT_LOOPBACK,
                                    .world = world,
                                    .chunk_bytes = 65536,
                                    .mates = true,
                                    .algorithm = ALGORITHM_SHARED};
    struct scene scene = {.job = job_make(world, options.chunk_bytes, spec->elements + world)};
    for (uint32_t r = 0; r < world; r++)
        options.fills[r] = scene.fills[r] = fills[r > 0];
    job_use(scene.job, options.algorithm);
    for (uint32_t i = 0; i < RUNS; i++)
        job_add(scene.job, spec);
    fleet_run(&options, script, &scene);
    job_check(scene.job, options.name);
    job_free(scene.job);
}

static void same_bits(void **state)
{
    // The sizes give several pieces, one piece, and one piece of a few blocks; and parts that end
    // inside a cache line.
    static const struct job_spec specs[] = {
        {.dtype = DTYPE_FLOAT32, .op = REDUCE_SUM, .elements = 140001},
        {.dtype = DTYPE_BFLOAT16, .op = REDUCE_MIN, .elements = 50003, .holes = true},
        {.dtype = DTYPE_FLOAT64,
         .op = REDUCE_MEAN,
         .elements = 9001,
         .weights = {3, 1, 2},
         .units = 7},
        {.kind = COLLECTIVE_BROADCAST, .dtype = DTYPE_UINT8, .root = 1, .elements = 100001},
    };
    static const enum slot_fill fills[][2] = {
        {FILL_CACHED, FILL_PAST}, {FILL_PAST, FILL_CACHED}, {FILL_MEASURED, FILL_PAST}};
    (void)state;
    for (uint32_t world = 2; world <= 3; world++)
        for (size_t s = 0; s < (world == 2 ? LENGTH(specs) : 1); s++)
            for (size_t f = world == 2 ? 0 : 2; f < LENGTH(fills); f++)
                run(world, &specs[s], fills[f]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
