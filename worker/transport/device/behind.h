// SPDX-License-Identifier: Apache-2.0
//
// The functions of behind.c that other files call.

#ifndef WORKER_TRANSPORT_DEVICE_BEHIND_H
#define WORKER_TRANSPORT_DEVICE_BEHIND_H

#include <stdbool.h>

struct device_flow;
struct device_ready;
struct devices;

// What the result of the flow has to come behind was said, or it has to come behind nothing.
bool device_behind_is_said(const struct device_flow *flow);
// Whether something is written where this rank has no input. Its used bits are those of all ranks.
bool device_behind_matters(const struct device_flow *flow);
// What was said has to happen before what DEVICE_BEHIND is given from now on. 0 or -1.
int device_behind_wait(struct devices *devices, const struct device_flow *flow);
// That of a flow which only waits for it; NULL: it has happened.
const struct device_ready *device_behind_awaited(const struct devices *devices,
                                                 const struct device_flow *flow);

#endif
