// SPDX-License-Identifier: Apache-2.0
//
// Deaths at every turn; see transport_every_death.h.

#include "tests/conformance/transport_every_death.h"

#include "tests/support/bounds.h"

#include <stdio.h>

uint32_t every_death_stride(uint32_t by_day)
{
    return test_everything() ? 1 : by_day;
}

static void add(struct crew_tally *sum, const struct crew_tally *one)
{
    sum->turns += one->turns;
    sum->have += one->have;
    sum->reduce += one->reduce;
    sum->again += one->again;
    sum->whole += one->whole;
    sum->torn += one->torn;
    sum->refused += one->refused;
}

uint32_t every_death_run(const struct crew_plan *plan, uint32_t step, bool second,
                         struct crew_tally *sum)
{
    struct crew_plan run = *plan;
    struct crew_tally tally = {0};
    uint32_t count = 0;
    for (uint32_t i = 0; i < CREW_DEATHS; i++)
        run.turns[i] = CREW_NEVER;
    crew_run(&run, &tally);
    const uint32_t turns = tally.turns;
    for (uint32_t turn = (uint32_t)(plan->seed % step); turn <= turns; turn += step) {
        struct crew_tally one = {0};
        run = *plan;
        run.turns[0] = turn;
        run.seed = plan->seed * 1000 + turn;
        run.end = (enum crew_end)((plan->seed + turn) % CREW_ENDS);
        run.tear_page = (uint32_t)(run.seed * 2654435761u >> 7);
        run.tear_mate = (uint32_t)(plan->seed + turn / step);
        run.victims[1] = (uint32_t)(run.seed % 3);
        run.turns[1] = second ? (uint32_t)(run.seed * 7 % 41) : CREW_NEVER;
        run.victims[2] = (uint32_t)(run.seed % 2);
        run.turns[2] = second ? (uint32_t)(run.seed * 5 % 53) : CREW_NEVER;
        crew_run(&run, &one);
        add(sum, &one);
        count++;
    }
    return count;
}

void every_death_report(const char *what, uint32_t runs, const struct crew_tally *sum)
{
    printf("%s: %u runs, %u rows given, %u rows summed, %u slots again, %u slots whole\n", what,
           runs, sum->have, sum->reduce, sum->again, sum->whole);
}
