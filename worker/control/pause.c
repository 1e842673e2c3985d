// SPDX-License-Identifier: Apache-2.0
//
// The pause between two attempts to reach a coordinator; pause.h has the contract. Control thread.

#include "worker/control/pause.h"

#include "base/clock.h"

#define PAUSE_FIRST_MS 10

void pause_reset(struct pause *pause)
{
    pause->length_ms = PAUSE_FIRST_MS;
}

void pause_begin(struct pause *pause, uint64_t now_ms, uint64_t longest_ms)
{
    const uint64_t half_ms = pause->length_ms / 2;
    uint64_t moment = clock_now_us() ^ (uint64_t)(uintptr_t)pause;
    moment = (moment ^ moment >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    pause->until_ms = now_ms + half_ms + (moment >> 32) % (half_ms + 1);
    pause->length_ms *= 2;
    if (pause->length_ms > longest_ms)
        pause->length_ms = longest_ms;
}
