// SPDX-License-Identifier: Apache-2.0
//
// Events that a result must wait for and that the trainer names late (struct device_behind). The
// driver's thread.

#ifndef WORKER_TRANSPORT_DEVICE_DEPENDENCY_H
#define WORKER_TRANSPORT_DEVICE_DEPENDENCY_H

#include <stdbool.h>

struct device_flow;
struct device_ready;
struct devices;

// True if the trainer has named the events that the result must wait for, or the collective has no
// `behind`.
bool dependency_is_known(const struct device_flow *flow);
// True if the result is also written where this rank has no input. The used bits must already be
// those of all ranks.
bool dependency_matters(const struct device_flow *flow);
// Makes DEVICE_BEHIND wait for the named events: work enqueued on it from now on runs after them. 0
// or -1.
int dependency_wait(struct devices *devices, const struct device_flow *flow);
// Returns the first named event that has not happened, for a flow that waits only for these; NULL:
// none.
const struct device_ready *dependency_awaited(const struct devices *devices,
                                              const struct device_flow *flow);

#endif
