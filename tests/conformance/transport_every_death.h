// SPDX-License-Identifier: Apache-2.0
//
// Runs a crew with a death at every turn of a rank.

#ifndef TESTS_TRANSPORT_EVERY_DEATH_H
#define TESTS_TRANSPORT_EVERY_DEATH_H

#include "tests/conformance/transport_crew.h"

#include <stdbool.h>
#include <stdint.h>

// By day every `by_day`-th turn is tried; all with LOCKSTEP_TEST_ALGORITHMS=all.
uint32_t every_death_stride(uint32_t by_day);
// One death at every `step`-th turn of the victim, and once nobody dies. second: also a death in
// the repetition, at a turn that the seed gives. Returns the number of runs with a death.
uint32_t every_death_run(const struct crew_plan *plan, uint32_t step, bool second,
                         struct crew_tally *sum);
void every_death_report(const char *what, uint32_t runs, const struct crew_tally *sum);

#endif
