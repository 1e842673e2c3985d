// SPDX-License-Identifier: Apache-2.0
//
// Hears what the library of each rank logs about one event, as a warning.

#ifndef TESTS_SUPPORT_LISTENER_H
#define TESTS_SUPPORT_LISTENER_H

#include "base/mutex.h"
#include "tests/support/cluster.h"

struct listener {
    const char *event; // "event=unused_parameters"; set before the ranks run, then constant
    struct mutex mutex;
    // guarded by mutex
    uint32_t lines;
    char last[1024];
};

// Runs the body on every rank, with a listener for each; further: what else is configured, or NULL.
void listener_run(const struct setting *setting, const char *event,
                  void (*further)(struct rank *rank, struct lockstep_config *config),
                  void (*body)(struct rank *rank));
// In the body: that of this rank.
struct listener *listener_of(const struct rank *rank);

#endif
