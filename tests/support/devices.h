// SPDX-License-Identifier: Apache-2.0
//
// Selects the stamped tests (cluster.h) that run in worlds with devices. In every run these are a
// few tests that take different code paths with devices. With LOCKSTEP_TEST_ALGORITHMS=all these
// are all tests, except those of features that do not exist with devices.

#ifndef LOCKSTEP_TESTS_DEVICES_H
#define LOCKSTEP_TESTS_DEVICES_H

#include <stdbool.h>

// The group and the name of a stamp are those of stamp_run(). True if the test runs with devices in
// every run.
bool devices_always(const char *group, const char *name);
// True if the test never runs in this setting with devices.
bool devices_never(const char *group, const char *name, const char *setting);
// True if the test supports worlds of 4 ranks. Other tests support at most 3.
bool devices_of_four(const char *group, const char *name);

#endif
