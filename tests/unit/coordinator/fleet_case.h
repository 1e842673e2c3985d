// SPDX-License-Identifier: Apache-2.0
//
// The story and the fleet of the test that runs, made before it and freed after it:
//
//     cmocka_unit_test_setup_teardown(test, fleet_setup, fleet_teardown)
//
// A test begins its fleet itself, by fleet_begin or fleet_begin_waiting.

#ifndef TESTS_UNIT_COORDINATOR_FLEET_CASE_H
#define TESTS_UNIT_COORDINATOR_FLEET_CASE_H

#include "tests/unit/coordinator/fleet.h"

extern struct story story;
extern struct fleet fleet;

int fleet_setup(void **state);
int fleet_teardown(void **state);

// A fleet whose modules have names and whose first heartbeats are three seconds old. All its ranks
// wait.
void fleet_begin_waiting(uint32_t world, uint32_t per_host);

#endif
