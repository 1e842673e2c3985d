// SPDX-License-Identifier: Apache-2.0
//
// See window.h. Pure.

#include "worker/transport/flow/window.h"

#include "protos/limits.h"

uint32_t flow_window(uint32_t chunks, uint32_t chunk_bytes)
{
    const uint64_t window = LOCKSTEP_FLIGHT_BYTES / ((uint64_t)chunks * chunk_bytes);
    if (window < 2)
        return 2;
    return window > LOCKSTEP_STRIPES_IN_FLIGHT ? LOCKSTEP_STRIPES_IN_FLIGHT : (uint32_t)window;
}
