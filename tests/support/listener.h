// SPDX-License-Identifier: Apache-2.0
//
// Counts the warnings about one event that the library logs on each rank.

#ifndef TESTS_SUPPORT_LISTENER_H
#define TESTS_SUPPORT_LISTENER_H

#include "base/mutex.h"
#include "tests/support/cluster.h"

struct listener {
    const char *event; // "event=unused_parameters"; set before the ranks run, then constant
    struct mutex mutex;
    // guarded by mutex
    uint32_t lines; // Warnings about the event.
    char last[1024]; // The last of them.
};

// Runs the body on every rank, with one listener for each rank. `further` changes more of the
// configuration; NULL: nothing.
void listener_run(const struct setting *setting, const char *event,
                  void (*further)(struct rank *rank, struct lockstep_config *config),
                  void (*body)(struct rank *rank));
// Returns the listener of a rank, for the body.
struct listener *listener_of(const struct rank *rank);

#endif
