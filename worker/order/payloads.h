// SPDX-License-Identifier: Apache-2.0
//
// How the payloads of waves are merged, and the order of the lists in them. Pure; any thread.

#ifndef WORKER_ORDER_PAYLOADS_H
#define WORKER_ORDER_PAYLOADS_H

#include "protos/types.h"

struct aborted_call;
struct close_wave;
struct unused_parameter;

// Each merges `from` into `into`: exact, commutative and associative.
void order_open_merge(void *into, const void *from);
void order_close_merge(void *into, const void *from);
void order_commit_merge(void *into, const void *from);
// Adds a call. The list keeps the smallest calls, in order. A saturated total means "more calls
// than the list can name".
void order_close_add(struct close_wave *wave, struct call_id id);
// The orders of the lists in waves. The result is below 0, 0 or above 0.
int order_call_compare(const struct call_id *a, const struct call_id *b);
int order_unused_compare(const struct unused_parameter *a, const struct unused_parameter *b);
int order_aborted_compare(const struct aborted_call *a, const struct aborted_call *b);

#endif
