// SPDX-License-Identifier: Apache-2.0
//
// Facts that explain a stall: links on which nothing moves, and the event that a device waits for.
// Engine thread.

#ifndef WORKER_TRANSPORT_INSPECT_H
#define WORKER_TRANSPORT_INSPECT_H

#include "worker/transport/device/inspect.h"

#include <stddef.h>
#include <stdint.h>

struct link_state;
struct transport;

// Finds the links that have bytes to send or a frame to receive and on which nothing has moved for
// a second. Writes at most `most` of them, preferring links with unsent bytes, and returns their
// number. It compares a link with its state at the previous call, so the first call finds none.
uint32_t transport_inspect(struct transport *transport, uint64_t now_ms, struct link_state *links,
                           uint32_t most);

// What the oldest unfinished collective waits for on this rank's device.
struct device_held transport_inspect_device(struct transport *transport);
// The last error message of NCCL, in one line; "": NCCL reported no error.
void transport_inspect_nccl(const struct transport *transport, char *text, size_t bytes);

#endif
