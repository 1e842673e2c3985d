// SPDX-License-Identifier: Apache-2.0
//
// Compares what a coordinator says of stalls with what it should say, by `lockstep stalls` and
// stall_check.py, whose words are used. What was right is appended to the file
// LOCKSTEP_TEST_STALL_KEEP, for docs/stalls.md. The test's thread.

#ifndef LOCKSTEP_TESTS_STALL_ASK_H
#define LOCKSTEP_TESTS_STALL_ASK_H

#include "tests/fault/process_world.h"

// Waits until it is so; fails the test at the bound, with what was said last. wanted: arguments of
// stall_check.py, "" where nothing may stand still, "never" where nothing may have stood still yet.
void stall_expect(const struct coordinator_process *coordinator, const char *wanted, uint64_t ms);

// How many stalls /metrics counts; fails the test if it cannot be asked.
unsigned stall_total(const struct coordinator_process *coordinator);

#endif
