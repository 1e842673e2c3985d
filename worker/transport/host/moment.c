// SPDX-License-Identifier: Apache-2.0
//
// See moment.h. worker/transport/wait.c explains what polling costs other threads, and when it
// stops. Engine thread.

#include "worker/transport/host/moment.h"

#include "base/clock.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/host/spread.h"

#include <sched.h>

bool moment_pass(struct flows *flows, struct moment *moment, bool patient, bool beside)
{
    const bool crowded = flows->crowded;
    if (crowded && !patient)
        return false;
    if (!(crowded && beside) && moment->looks < MOMENT_LOOKS) {
        moment_pause();
        moment->looks++;
        return true;
    }
    if (moment->turns == 0)
        spread_wait(flows);
    if (!crowded)
        return false;
    if (moment->turns == 1)
        moment->end_us = clock_now_us() + MOMENT_CROWDED_US;
    if (moment->turns == MOMENT_YIELDS || (moment->turns > 1 && clock_now_us() >= moment->end_us))
        return false;
    (void)sched_yield();
    moment->turns++;
    moment->looks = 0;
    return true;
}
