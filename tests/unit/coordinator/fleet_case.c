// SPDX-License-Identifier: Apache-2.0
//
// See fleet_case.h.

#include "tests/unit/coordinator/fleet_case.h"

struct story story;
struct fleet fleet;

int fleet_setup(void **state)
{
    (void)state;
    story_begin(&story);
    return 0;
}

int fleet_teardown(void **state)
{
    (void)state;
    story_end(&story);
    return 0;
}

void fleet_begin_waiting(uint32_t world, uint32_t per_host)
{
    fleet_begin(&fleet, &story, world, per_host);
    fleet_name_modules(&fleet);
    fleet_pass(&fleet, 3000);
    fleet_all_wait(&fleet);
}
