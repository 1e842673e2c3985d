// SPDX-License-Identifier: Apache-2.0
//
// The words by which the API, the metrics and the page call things. They are a promise, like keys:
// docs/http.md lists them. Pure functions, any thread.

#ifndef LOCKSTEP_SERVER_RENDER_NAMES_H
#define LOCKSTEP_SERVER_RENDER_NAMES_H

#include "coordinator/coordinator.h"

#include <stddef.h>

const char *name_activity(enum worker_activity activity);
const char *name_how(enum stack_how how);
const char *name_awaits(enum stack_awaits awaits); // NULL: nothing.

// By number, from 0, of the bits of enum place_flag; NULL: there is no such flag.
const char *name_flag(unsigned bit);

// The state of a worker as a member: "present", "frozen", "left" or "lost".
const char *name_worker(const struct worker_view *worker);
// The one word that says most about a worker.
const char *name_state(const struct worker_view *worker);

#endif
