// SPDX-License-Identifier: Apache-2.0
//
// Lists of the tests that run with devices; see devices.h.

#include "tests/support/devices.h"

#include <fnmatch.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

// Patterns of "group/name".
static const char *const always[] = {
    "reducer: buckets/case_02_*",
    "reducer: buckets/case_05_*",
    "reducer: buckets/case_08_*",
    "reducer: numbers/case_22_*",
    "reducer: numbers/case_24_*",
    "reducer: numbers/case_26_*",
    "reducer: wire/case_23_rounded_once_per_hop",
    "reducer: wire/case_23_dtypes_do_not_leak",
    "reducer: wire/case_24_*",
    "reducer: wire/case_26_weights_and_unused_in_every_format",
    "reducer: replicas/replicas_are_*",
    "reducer: replicas/case_13_*",
    "reducer: unused/case_10_rank_dependent_branch",
    "reducer: unused/case_10_bucket_of_nobody",
    "reducer: separate calls/case_40_*",
    "reducer: calls/case_20_*",
    "reducer: saved/case_36_saved_in_the_middle",
    "start/case_31_differences_reach_all_ranks",
    "start/case_32_*",
    "state/case_32_*",
};

static const char *const of_four[] = {
    "reducer: buckets/*",
    "reducer: numbers/*",
    "reducer: calls/*",
    "start/*",
};

static const char *const never[] = {
    "reducer: large weights/case_40_*", // Gradients on devices are never deferred.
    "reducer: deferred*/*", // Gradients on devices are never deferred.
    "reducer: next bucket/case_51_deferred", // Gradients on devices are never deferred.
    "reducer: memory/gradients_each_by_itself", // Only host memory is reduced in place by mates.
    // Uses replicas, and the fakes allocate. test_device_streams counts allocations instead.
    "allocations/*",
    "start/case_33_*", // Counts bytes; with devices the start needs a few more.
    "module_groups/*", // A module with a group is in host memory.
};

// Tests that never run in the settings "nccl" and "mixed", where NCCL sums gradients.
static const char *const never_by_nccl[] = {
    "reducer: wire/a_wire_of_half_the_bytes", // Counts the bytes between hosts.
    // With NCCL the layout does not decide the bits of a sum.
    "reducer: saved/case_36_layout_decides_the_bits",
    // NCCL needs one launch order on all ranks, so waits in another order can never end, whichever
    // rank makes which call. The verdicts differ; the simulator tests them.
    "reducer: waits/case_38_a_wait_that_was_given_up",
    "reducer: waits/case_38_one_rank_waits_in_another_order",
    "reducer: waits/case_38_opposite_waits",
};

static bool devices_match(const char *const *patterns, size_t count, const char *group,
                          const char *name)
{
    char whole[256];
    snprintf(whole, sizeof(whole), "%s/%s", group, name);
    for (size_t i = 0; i < count; i++) {
        if (fnmatch(patterns[i], whole, 0) == 0)
            return true;
    }
    return false;
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

bool devices_always(const char *group, const char *name)
{
    return devices_match(always, COUNT(always), group, name);
}

bool devices_never(const char *group, const char *name, const char *setting)
{
    return devices_match(never, COUNT(never), group, name) ||
           ((strcmp(setting, "nccl") == 0 || strcmp(setting, "mixed") == 0) &&
            devices_match(never_by_nccl, COUNT(never_by_nccl), group, name));
}

bool devices_of_four(const char *group, const char *name)
{
    return devices_match(of_four, COUNT(of_four), group, name);
}
