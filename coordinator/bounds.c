// SPDX-License-Identifier: Apache-2.0
//
// How long a rank may stay in a place, learned from the times that ranks with the same class of
// device report for this place. A place here is a function of the library, a module and a call of
// the module. The times come from workers, so each has a maximum. Runs inside coordinator_step.

#include "coordinator/bounds.h"

#include "coordinator/beat.h"
#include "coordinator/core.h"
#include "coordinator/hash.h"
#include "coordinator/names.h"
#include "coordinator/sentence.h"

static_assert((STALL_BOUNDS & (STALL_BOUNDS - 1)) == 0, "a mask selects a place");

void bounds_reset(struct bounds *bounds)
{
    memset(bounds, 0, sizeof(*bounds));
}

// ---- Usual times -------------------------------------------------------------------------------

static uint64_t bounds_key(const struct worker *worker)
{
    const struct place *place = &worker->heartbeat.place;
    const char *device = worker->hello.device;
    uint64_t key = hash_bytes(HASH_START, device, strnlen(device, LOCKSTEP_DEVICE_BYTES));
    key = hash_number(key, (uint64_t)place->api, 4);
    key = hash_number(key, place->module, 4);
    key = hash_number(key, place->call, 4);
    return key == 0 ? 1 : key;
}

static uint32_t bounds_place(const struct bounds *bounds, uint64_t key)
{
    uint32_t place = (uint32_t)(key ^ key >> 32) & (STALL_BOUNDS - 1);
    while (bounds->entries[place].key != 0 && bounds->entries[place].key != key)
        place = (place + 1) & (STALL_BOUNDS - 1);
    return place;
}

static uint64_t bounds_clip(uint64_t us)
{
    const uint64_t ms = us / 1000;
    return ms < STALL_USUAL_MOST_MS ? ms : STALL_USUAL_MOST_MS;
}

// Ends a turn: the times of this turn become those of the last one.
static void bounds_turn(struct bounds *bounds, uint64_t now_ms)
{
    if (now_ms < bounds->turn_ms)
        return;
    bounds->turn_ms = now_ms + STALL_BOUNDS_TURN_MS;
    for (uint32_t i = 0; i < STALL_BOUNDS; i++) {
        struct bound_entry *entry = &bounds->entries[i];
        entry->usual_ms[1] = entry->usual_ms[0];
        entry->longest_ms[1] = entry->longest_ms[0];
        entry->usual_ms[0] = 0;
        entry->longest_ms[0] = 0;
    }
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

void bounds_learn(struct bounds *bounds, const struct worker *worker, uint64_t now_ms)
{
    const struct place *place = &worker->heartbeat.place;
    bounds_turn(bounds, now_ms);
    if (place->usual_us == 0 && place->longest_us == 0)
        return;
    const uint64_t key = bounds_key(worker);
    struct bound_entry *entry = &bounds->entries[bounds_place(bounds, key)];
    if (entry->key == 0) {
        // The table is used up to one half. Without an entry only the times of the worker itself
        // count.
        if (bounds->used == STALL_BOUNDS / 2)
            return;
        bounds->used++;
        entry->key = key;
    }
    entry->usual_ms[0] = larger(entry->usual_ms[0], bounds_clip(place->usual_us));
    entry->longest_ms[0] = larger(entry->longest_ms[0], bounds_clip(place->longest_us));
}

// ---- Bounds ------------------------------------------------------------------------------------

static bool bounds_first(const struct worker *worker)
{
    const struct up_heartbeat *beat = &worker->heartbeat;
    return (beat->flags & PLACE_FIRST) != 0 || beat->place.learning ||
           beat->totals.steps < LOCKSTEP_STALL_FIRST_STEPS;
}

static void bounds_place_name(struct text *why, const struct job *job, const struct place *place)
{
    if (place->module >= LOCKSTEP_MAX_MODULES) {
        text_append(why, "%s", api_function_name(place->api));
        return;
    }
    core_module_name(why, job, place->module);
    text_append(why, " call %" PRIu64, (uint64_t)place->call + 1); // Texts count from 1.
}

static void bounds_plain(const struct coordinator *core, const struct job *job,
                         const struct worker *worker, struct stall_bound *bound)
{
    const struct place *place = &worker->heartbeat.place;
    const struct bounds *bounds = &job->stall.bounds;
    const struct bound_entry *entry = &bounds->entries[bounds_place(bounds, bounds_key(worker))];
    const uint64_t usual =
        larger(larger(entry->usual_ms[0], entry->usual_ms[1]), bounds_clip(place->usual_us));
    const uint64_t longest =
        larger(larger(entry->longest_ms[0], entry->longest_ms[1]), bounds_clip(place->longest_us));
    struct text why;
    text_init(&why, bound->why, sizeof(bound->why));
    bound->plain_ms = core->config.stall_floor_ms;
    if (larger(LOCKSTEP_STALL_FACTOR * usual, 2 * longest) <= bound->plain_ms) {
        text_append(&why, "floor");
        return;
    }
    const bool by_usual = LOCKSTEP_STALL_FACTOR * usual >= 2 * longest;
    bound->plain_ms = by_usual ? LOCKSTEP_STALL_FACTOR * usual : 2 * longest;
    text_append(&why, by_usual ? "%d x p99 of " : "%d x the longest of ",
                by_usual ? LOCKSTEP_STALL_FACTOR : 2);
    bounds_place_name(&why, job, place);
    text_append(&why, " (");
    sentence_seconds(&why, by_usual ? usual : longest);
    text_append(&why, ")");
}

// Disk, throttling and a debugger make the bound longer, but not infinite: a dead mount never comes
// back, and a debugger may be attached because the process was stuck before.
static void bounds_excused(const struct worker *worker, struct stall_bound *bound)
{
    static const struct {
        uint32_t flag;
        uint64_t factor;
        const char *why;
    } excuses[] = {{PLACE_DISK, LOCKSTEP_STALL_DISK_FACTOR, "sleeps in the kernel"},
                   {PLACE_THROTTLED, LOCKSTEP_STALL_FIRST_FACTOR, "throttled"},
                   {PLACE_TRACED, LOCKSTEP_STALL_FIRST_FACTOR, "traced"}};
    for (size_t i = 0; i < sizeof(excuses) / sizeof(excuses[0]); i++) {
        struct text why;
        if ((worker->heartbeat.flags & excuses[i].flag) == 0 ||
            excuses[i].factor * bound->plain_ms <= bound->bound_ms)
            continue;
        bound->bound_ms = excuses[i].factor * bound->plain_ms;
        text_init(&why, bound->why, sizeof(bound->why));
        text_append(&why, "%s", excuses[i].why);
    }
}

void bounds_of(const struct coordinator *core, const struct job *job, const struct worker *worker,
               struct stall_bound *bound)
{
    struct text why;
    bounds_plain(core, job, worker, bound);
    const uint64_t long_ms = LOCKSTEP_STALL_FIRST_FACTOR * bound->plain_ms;
    bound->bound_ms = bound->plain_ms;
    if (bounds_first(worker)) {
        bound->bound_ms = long_ms;
        text_init(&why, bound->why, sizeof(bound->why));
        text_append(&why, "first steps");
    }
    bounds_excused(worker, bound);
    if ((worker->heartbeat.flags & PLACE_PAUSED) == 0)
        return;
    // A rank that does not say how long it pauses has the bound of a first step.
    uint64_t pause_ms = worker->heartbeat.pause_ms;
    if (pause_ms > STALL_USUAL_MOST_MS * UINT64_C(24))
        pause_ms = STALL_USUAL_MOST_MS * UINT64_C(24);
    const uint64_t paused = pause_ms == 0 ? long_ms : 2 * pause_ms;
    if (paused <= bound->bound_ms)
        return;
    bound->bound_ms = paused;
    text_init(&why, bound->why, sizeof(bound->why));
    text_append(&why, "pause");
}

uint64_t bounds_of_links(const struct coordinator *core, const struct job *job)
{
    // A shorter time proves nothing: no heartbeat may have arrived in it.
    const uint64_t silence_ms = beat_silence_ms(core);
    uint64_t bound_ms = core->config.stall_floor_ms;
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *worker = &core->workers[job->workers[i]];
        if (worker->left || !bounds_first(worker))
            continue;
        bound_ms *= LOCKSTEP_STALL_FIRST_FACTOR;
        break;
    }
    return larger(bound_ms, silence_ms);
}
