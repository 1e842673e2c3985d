// SPDX-License-Identifier: Apache-2.0
//
// The metrics of a step, as a list in the commit wave. Pure; any thread.

#ifndef WORKER_ORDER_METRIC_LIST_H
#define WORKER_ORDER_METRIC_LIST_H

#include "protos/basic.h"

#include <stdbool.h>

struct metric_list;
struct metric_part;

// True if the name has 1 to LOCKSTEP_METRIC_NAME_BYTES - 1 letters, digits and "_./-", and zeros
// behind them up to LOCKSTEP_METRIC_NAME_BYTES.
bool metric_list_name_valid(const char *name);
// One value of a metric: canonical, so that equal values have equal bits. Every NaN is the same
// NaN.
double metric_list_value(double value);
// Combines two values. The result has the same bits if a and b change places.
double metric_list_combine(enum metric_kind kind, double a, double b);
// Compares two entries. The result is below 0, 0 or above 0.
int metric_list_compare(const struct metric_part *a, const struct metric_part *b);
// Returns the entry of a name and kind; NULL: there is none. kind 0: the first of any kind.
const struct metric_part *metric_list_find(const struct metric_list *list, const char *name,
                                           uint32_t kind);
// Merges `from` into `into`. The merge is commutative.
void metric_list_merge(struct metric_list *into, const struct metric_list *from);

#endif
