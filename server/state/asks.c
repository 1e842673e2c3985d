// SPDX-License-Identifier: Apache-2.0
//
// See asks.h.

#include "server/state/asks.h"

#include "base/text.h"

void asks_init(struct asks *asks)
{
    asks->posted = 0;
    asks->taken = 0;
    mutex_init(&asks->mutex);
}

void asks_fini(struct asks *asks)
{
    mutex_fini(&asks->mutex);
}

bool asks_post(struct asks *asks, const char *job, uint32_t rank, uint32_t what)
{
    mutex_lock(&asks->mutex);
    const bool room = asks->posted - asks->taken < ASKS;
    if (room) {
        struct ask *ask = &asks->ring[asks->posted++ % ASKS];
        text_copy(ask->job, sizeof(ask->job), job);
        ask->rank = rank;
        ask->what = what;
    }
    mutex_unlock(&asks->mutex);
    return room;
}

bool asks_take(struct asks *asks, struct ask *ask)
{
    mutex_lock(&asks->mutex);
    const bool any = asks->posted != asks->taken;
    if (any)
        *ask = asks->ring[asks->taken++ % ASKS];
    mutex_unlock(&asks->mutex);
    return any;
}
