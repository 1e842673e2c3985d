// SPDX-License-Identifier: Apache-2.0
//
// Chooses between two ways of doing the same work; see trial.h. Pure.

#include "worker/transport/host/trial.h"

#include <assert.h>
#include <stdbool.h>

#define TRIAL_UNIT 65536 // Times are compared for this many bytes.

uint32_t trial_give(struct trial *trial, uint64_t now_ns, uint32_t *way)
{
    *way = trial->chosen;
    if (trial->given == 2 * TRIAL_TASKS || (trial->given == 0 && now_ns < trial->next_ns))
        return TRIAL_NONE;
    if (trial->given >= TRIAL_TASKS)
        *way = !trial->chosen;
    return ++trial->given;
}

static void trial_decide(struct trial *trial, uint64_t now_ns)
{
    const uint32_t chosen = trial->chosen;
    const uint32_t other = !chosen;
    const bool known = trial->best[chosen] > 0 && trial->best[other] > 0;
    const uint64_t loss_ns = trial->spent_ns[other] > trial->spent_ns[chosen]
                                 ? trial->spent_ns[other] - trial->spent_ns[chosen]
                                 : 0;
    uint64_t pause_ns = 2 * trial->pause_ns;
    if (pause_ns > TRIAL_PAUSE_MOST_NS)
        pause_ns = TRIAL_PAUSE_MOST_NS;
    if (pause_ns < TRIAL_PAUSE_NS)
        pause_ns = TRIAL_PAUSE_NS;
    if (known && trial->best[other] < trial->best[chosen] - trial->best[chosen] / 20) {
        trial->chosen = other;
        pause_ns = TRIAL_PAUSE_NS;
    }
    *trial = (struct trial){.chosen = trial->chosen, .pause_ns = pause_ns};
    trial->next_ns = now_ns + (pause_ns > TRIAL_LOSS * loss_ns ? pause_ns : TRIAL_LOSS * loss_ns);
}

void trial_took(struct trial *trial, uint32_t task, uint64_t took_ns, uint64_t bytes,
                uint64_t now_ns)
{
    assert(task > 0 && task <= trial->given && trial->heard < trial->given);
    const uint32_t way = task > TRIAL_TASKS ? !trial->chosen : trial->chosen;
    trial->heard++;
    trial->spent_ns[way] += took_ns;
    if ((task - 1) % TRIAL_TASKS != 0 && bytes > 0) {
        const uint64_t unit_ns = took_ns * TRIAL_UNIT / bytes + 1;
        if (trial->best[way] == 0 || unit_ns < trial->best[way])
            trial->best[way] = unit_ns;
    }
    if (trial->heard == 2 * TRIAL_TASKS)
        trial_decide(trial, now_ns);
}
