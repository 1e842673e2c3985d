// SPDX-License-Identifier: Apache-2.0
//
// The functions of inspect.c that other files call.

#ifndef WORKER_TRANSPORT_INSPECT_H
#define WORKER_TRANSPORT_INSPECT_H

#include <stdint.h>

struct link_state;
struct transport;

// Links on which something is on its way, or awaited, and nothing has moved for a second: up to
// `most`, those that hold bytes first, and how many. Two calls at least: the first one only looks.
uint32_t transport_inspect(struct transport *transport, uint64_t now_ms, struct link_state *links,
                           uint32_t most);

#endif
