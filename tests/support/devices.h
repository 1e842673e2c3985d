// SPDX-License-Identifier: Apache-2.0
//
// The stamped tests that run in worlds with devices (cluster.h). All of them could, and do with
// LOCKSTEP_TEST_ALGORITHMS=all, but for those that are of what devices do not have. A few do
// always: those whose cases take other ways there.

#ifndef LOCKSTEP_TESTS_DEVICES_H
#define LOCKSTEP_TESTS_DEVICES_H

#include <stdbool.h>

// Group and name of a stamp, as stamp_run has them.
bool devices_always(const char *group, const char *name);
bool devices_never(const char *group, const char *name, const char *setting);
// It is for worlds of four, too; else it knows of three ranks at most.
bool devices_of_four(const char *group, const char *name);

#endif
