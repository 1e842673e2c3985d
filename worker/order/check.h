// SPDX-License-Identifier: Apache-2.0
//
// Whether the payload of a wave is possible. Pure; any thread.

#ifndef WORKER_ORDER_CHECK_H
#define WORKER_ORDER_CHECK_H

struct wave_origin;

// The check of `struct wave`, one for each kind of wave. Each returns NULL, or why no honest peer
// can have sent the payload. context is a struct wave_bounds; for the open wave it is NULL. own is
// what this rank contributes.
const char *order_open_check(const void *context, const struct wave_origin *origin,
                             const void *payload, const void *own);
const char *order_close_check(const void *context, const struct wave_origin *origin,
                              const void *payload, const void *own);
const char *order_commit_check(const void *context, const struct wave_origin *origin,
                               const void *payload, const void *own);

#endif
