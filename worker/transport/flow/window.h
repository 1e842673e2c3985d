// SPDX-License-Identifier: Apache-2.0
//
// How many stripes of a collective are in flight. Pure; any thread.

#ifndef WORKER_TRANSPORT_FLOW_WINDOW_H
#define WORKER_TRANSPORT_FLOW_WINDOW_H

#include <stdint.h>

// Stripes of so many chunks that one collective has in flight.
uint32_t flow_window(uint32_t chunks, uint32_t chunk_bytes);

#endif
