// SPDX-License-Identifier: Apache-2.0
//
// Compares the stalls that a coordinator reports (`lockstep stalls`) with the expected ones, by
// stall_check.py. Output that matched is appended to the file LOCKSTEP_TEST_STALL_KEEP, for
// docs/stalls.md. The test's thread.

#ifndef LOCKSTEP_TESTS_STALL_ASK_H
#define LOCKSTEP_TESTS_STALL_ASK_H

#include "tests/fault/process_world.h"

// Waits until the reported stalls match `wanted`. After ms the test fails, and prints the last
// report. wanted: arguments of stall_check.py. "": no stall now. "never": no stall so far.
void stall_expect(const struct coordinator_process *coordinator, const char *wanted, uint64_t ms);

// The number of stalls that /metrics counts. The test fails if /metrics does not answer.
unsigned stall_total(const struct coordinator_process *coordinator);

#endif
