// SPDX-License-Identifier: Apache-2.0
//
// See names.h.

#include "server/render/names.h"

const char *name_activity(enum worker_activity activity)
{
    switch (activity) {
    case ACTIVITY_OUTSIDE:
        return "outside";
    case ACTIVITY_OPENING:
        return "opening";
    case ACTIVITY_STARTING:
        return "starting";
    case ACTIVITY_IN_CALL:
        return "in_call";
    case ACTIVITY_WAITING:
        return "waiting";
    case ACTIVITY_PAUSED:
        return "paused";
    }
    return "unknown";
}

const char *name_how(enum stack_how how)
{
    static const char *const names[] = {"signal", "blocked", "silent",  "disk",       "taken",
                                        "asleep", "cut",     "no_room", "left_alone", "not_asked"};
    return (unsigned)how < sizeof(names) / sizeof(names[0]) ? names[how] : "unknown";
}

const char *name_awaits(enum stack_awaits awaits)
{
    static const char *const names[] = {NULL, "lock", "end"};
    return (unsigned)awaits < sizeof(names) / sizeof(names[0]) ? names[awaits] : NULL;
}

const char *name_flag(unsigned bit)
{
    static const char *const names[] = {"paused", "traced", "throttled", "disk", "first"};
    return bit < sizeof(names) / sizeof(names[0]) ? names[bit] : NULL;
}

const char *name_worker(const struct worker_view *worker)
{
    if (worker->lost)
        return "lost";
    if (worker->left)
        return "left";
    if (worker->awaited)
        return "awaited";
    return worker->frozen ? "frozen" : "present";
}

const char *name_state(const struct worker_view *worker)
{
    if (worker->kind == STALL_STOPPED && !worker->lost && !worker->left)
        return "stopped";
    if (worker->lost || worker->left || worker->awaited || worker->frozen)
        return name_worker(worker);
    if (worker->flags & PLACE_PAUSED)
        return "paused";
    if (worker->place.api == API_NONE) // The worker has not reported its place yet.
        return name_activity(worker->activity);
    if (worker->place.waits)
        return "waiting";
    if (worker->place.inside)
        return "inside";
    return worker->place.calls_open > 0 ? "in_call" : "outside";
}
