// SPDX-License-Identifier: Apache-2.0
//
// The functions of check.c that other files call.

#ifndef WORKER_ORDER_CHECK_H
#define WORKER_ORDER_CHECK_H

struct wave_origin;

// Whether a payload that a peer sent can be: struct wave, check. context: struct wave_bounds; of
// the open wave: NULL. In check.c.
const char *order_open_check(const void *context, const struct wave_origin *origin,
                             const void *payload, const void *own);
const char *order_close_check(const void *context, const struct wave_origin *origin,
                              const void *payload, const void *own);
const char *order_commit_check(const void *context, const struct wave_origin *origin,
                               const void *payload, const void *own);

#endif
