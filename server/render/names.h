// SPDX-License-Identifier: Apache-2.0
//
// The words that the API, the metrics and the page use for states and kinds. They are a promise,
// like the keys: docs/http.md lists them. Pure functions, any thread.

#ifndef LOCKSTEP_SERVER_RENDER_NAMES_H
#define LOCKSTEP_SERVER_RENDER_NAMES_H

#include "coordinator/coordinator.h"

#include <stddef.h>

const char *name_activity(enum worker_activity activity);
const char *name_how(enum stack_how how);
const char *name_awaits(enum stack_awaits awaits); // Returns NULL if it waits for nothing.

// Returns the name of a bit of enum place_flag, counted from 0, or NULL if there is no such flag.
const char *name_flag(unsigned bit);

// Returns the worker's membership: "present", "frozen", "awaited", "left" or
// "lost".
const char *name_worker(const struct worker_view *worker);
// Returns the word that says most about the worker's state, for the page.
const char *name_state(const struct worker_view *worker);

#endif
