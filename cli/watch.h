// SPDX-License-Identifier: Apache-2.0
//
// --watch: what a command prints, again and again. A terminal shows the last picture only, from its
// upper left corner on; anything else gets one after the other. Main thread.

#ifndef LOCKSTEP_CLI_WATCH_H
#define LOCKSTEP_CLI_WATCH_H

#include "cli/ask.h"

#include <stdint.h>
#include <stdio.h>

#define WATCH_DEFAULT_MS 1000

struct watch {
    struct ask *ask;
    uint32_t every_ms; // 0: once.
    // Prints one picture. Returns an exit status; CLI_FAILED: ask->error says why.
    int (*paint)(void *context, FILE *out);
    void *context;
};

// The value of --watch: seconds, NULL for the default. 0, or CLI_MISUSE with a sentence on stderr.
int watch_read(const struct ask *ask, const char *value, uint32_t *every_ms);

// Returns the exit status of one picture, or paints for ever: SIGINT ends the process with 0. What
// fails before anything was painted ends it; later it is shown, and asked again.
int watch_run(const struct watch *watch);

#endif
