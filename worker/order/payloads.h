// SPDX-License-Identifier: Apache-2.0
//
// How the payloads of waves are merged, and how the lists in payloads are sorted. Pure; any thread.

#ifndef WORKER_ORDER_PAYLOADS_H
#define WORKER_ORDER_PAYLOADS_H

#include "protos/types.h"

struct aborted_call;
struct close_wave;
struct unused_parameter;

// Each function merges `from` into `into`. The merge is commutative. It is also exact and
// associative, but for the sums of metrics, which are rounded (metric_list.h).
void order_open_merge(void *into, const void *from);
void order_close_merge(void *into, const void *from);
void order_commit_merge(void *into, const void *from);
// Adds a call to the list of the wave. The list is sorted and keeps the smallest calls. A total of
// LOCKSTEP_MAX_EXTRA_CALLS + 1 means "more calls than the list can name".
void order_close_add(struct close_wave *wave, struct call_id id);
// Compare two entries of the lists in waves. The result is below 0, 0 or above 0.
int order_call_compare(const struct call_id *a, const struct call_id *b);
int order_unused_compare(const struct unused_parameter *a, const struct unused_parameter *b);
int order_aborted_compare(const struct aborted_call *a, const struct aborted_call *b);

#endif
