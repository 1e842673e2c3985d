// SPDX-License-Identifier: Apache-2.0
//
// Facts that explain a stall: links that stand still, and what a device waits for. Engine thread.

#ifndef WORKER_TRANSPORT_INSPECT_H
#define WORKER_TRANSPORT_INSPECT_H

#include "worker/transport/device/inspect.h"

#include <stddef.h>
#include <stdint.h>

struct link_state;
struct transport;

// Links on which something is on its way, or awaited, and nothing has moved for a second: up to
// `most`, those that hold bytes first, and how many. Two calls at least: the first one only looks.
uint32_t transport_inspect(struct transport *transport, uint64_t now_ms, struct link_state *links,
                           uint32_t most);

// What the first collective launched here waits for on this rank's device.
struct device_held transport_inspect_device(struct transport *transport);
// The last thing that NCCL has said of whatever went wrong, in one line; "": nothing.
void transport_inspect_nccl(const struct transport *transport, char *text, size_t bytes);

#endif
