// SPDX-License-Identifier: Apache-2.0
//
// The window: how many stripes of a collective are in flight. Pure; any thread.

#ifndef WORKER_TRANSPORT_FLOW_WINDOW_H
#define WORKER_TRANSPORT_FLOW_WINDOW_H

#include <stdint.h>

// Returns the number of stripes that one collective has in flight, if a stripe has `chunks` chunks
// of chunk_bytes.
uint32_t flow_window(uint32_t chunks, uint32_t chunk_bytes);

#endif
