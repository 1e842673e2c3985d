// SPDX-License-Identifier: Apache-2.0
//
// Checks whether an honest peer can have sent the payload of a wave. Pure; any thread.

#ifndef WORKER_ORDER_CHECK_H
#define WORKER_ORDER_CHECK_H

struct wave_origin;

// The check function of `struct wave`, one for each kind of wave. Each function returns NULL, or
// the reason why no honest peer can have sent the payload. context is a struct wave_bounds; for the
// open wave it is NULL. own is this rank's contribution.
const char *order_open_check(const void *context, const struct wave_origin *origin,
                             const void *payload, const void *own);
const char *order_close_check(const void *context, const struct wave_origin *origin,
                              const void *payload, const void *own);
const char *order_commit_check(const void *context, const struct wave_origin *origin,
                               const void *payload, const void *own);

#endif
