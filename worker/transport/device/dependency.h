// SPDX-License-Identifier: Apache-2.0
//
// Streams that a result must follow and that the trainer names late. The driver's thread.

#ifndef WORKER_TRANSPORT_DEVICE_DEPENDENCY_H
#define WORKER_TRANSPORT_DEVICE_DEPENDENCY_H

#include <stdbool.h>

struct device_flow;
struct device_ready;
struct devices;

// What the result of the flow has to come behind was said, or it has to come behind nothing.
bool dependency_is_known(const struct device_flow *flow);
// True if something is written where this rank has no input. Its used bits are those of all ranks.
bool dependency_matters(const struct device_flow *flow);
// What was said has to happen before what DEVICE_BEHIND is given from now on. 0 or -1.
int dependency_wait(struct devices *devices, const struct device_flow *flow);
// That of a flow which only waits for it; NULL: it has happened.
const struct device_ready *dependency_awaited(const struct devices *devices,
                                              const struct device_flow *flow);

#endif
