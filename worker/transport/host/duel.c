// SPDX-License-Identifier: Apache-2.0
//
// Two ways of doing the same work; see duel.h. Pure.

#include "worker/transport/host/duel.h"

#include <assert.h>
#include <stdbool.h>

#define DUEL_UNIT 65536 // Times are compared for so many bytes.

uint32_t duel_give(struct duel *duel, uint64_t now_ns, uint32_t *way)
{
    *way = duel->chosen;
    if (duel->given == 2 * DUEL_TASKS || (duel->given == 0 && now_ns < duel->next_ns))
        return DUEL_NONE;
    if (duel->given >= DUEL_TASKS)
        *way = !duel->chosen;
    return ++duel->given;
}

static void duel_decide(struct duel *duel, uint64_t now_ns)
{
    const uint32_t chosen = duel->chosen;
    const uint32_t other = !chosen;
    const bool known = duel->best[chosen] > 0 && duel->best[other] > 0;
    const uint64_t loss_ns = duel->spent_ns[other] > duel->spent_ns[chosen]
                                 ? duel->spent_ns[other] - duel->spent_ns[chosen]
                                 : 0;
    uint64_t pause_ns = 2 * duel->pause_ns;
    if (pause_ns > DUEL_PAUSE_MOST_NS)
        pause_ns = DUEL_PAUSE_MOST_NS;
    if (pause_ns < DUEL_PAUSE_NS)
        pause_ns = DUEL_PAUSE_NS;
    if (known && duel->best[other] < duel->best[chosen] - duel->best[chosen] / 20) {
        duel->chosen = other;
        pause_ns = DUEL_PAUSE_NS;
    }
    *duel = (struct duel){.chosen = duel->chosen, .pause_ns = pause_ns};
    duel->next_ns = now_ns + (pause_ns > DUEL_LOSS * loss_ns ? pause_ns : DUEL_LOSS * loss_ns);
}

void duel_took(struct duel *duel, uint32_t task, uint64_t took_ns, uint64_t bytes, uint64_t now_ns)
{
    assert(task > 0 && task <= duel->given && duel->heard < duel->given);
    const uint32_t way = task > DUEL_TASKS ? !duel->chosen : duel->chosen;
    duel->heard++;
    duel->spent_ns[way] += took_ns;
    if ((task - 1) % DUEL_TASKS != 0 && bytes > 0) {
        const uint64_t unit_ns = took_ns * DUEL_UNIT / bytes + 1;
        if (duel->best[way] == 0 || unit_ns < duel->best[way])
            duel->best[way] = unit_ns;
    }
    if (duel->heard == 2 * DUEL_TASKS)
        duel_decide(duel, now_ns);
}
