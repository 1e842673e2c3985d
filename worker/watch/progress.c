// SPDX-License-Identifier: Apache-2.0
//
// Where the trainer is. The code that knows a fact writes its word, and each word is read by
// itself: two words may be a moment apart. A blocking call only makes stores, and no atomic
// additions, because an atomic addition waits until earlier stores have reached the memory that
// ranks share.
//
// Visits. The word `api` names the function that was entered or left last. If threads overlap, that
// may be the function of another thread than the one that is still inside. Whether a thread is
// blocked inside the library is in the word `waiting`, which is exact, because the session's mutex
// guards it.
//
// Time. clock_coarse_ms costs a fifth of the precise clock, and it is precise enough, because stall
// times are seconds.

#include "worker/watch/progress.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

static uint64_t progress_load(const _Atomic(uint64_t) *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static void progress_store(_Atomic(uint64_t) *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_relaxed);
}

// ---- What is usual -----------------------------------------------------------------------------

#define USUAL_PLACES 1024 // Number of entries; places with the same hash share an entry.
#define USUAL_CLASSES 32 // Class c counts times from 2^c ms up to, but not including, 2^(c+1) ms.
#define USUAL_AGED 1024 // After this many times all counts are halved.
#define USUAL_RECENT 64 // longest_ms covers at least this many of the latest times.

// Written by the trainer. Several threads may overwrite each other's counts; no decision needs an
// exact count.
struct usual {
    _Atomic(uint32_t) counts[USUAL_CLASSES];
    _Atomic(uint32_t) noted; // Times counted; halving the counts also reduces this number.
    _Atomic(uint32_t) recent; // Times counted since longest_ms[0] was last reset.
    // Longest time since the last reset, and longest time of the period before it, in ms.
    _Atomic(uint32_t) longest_ms[2];
};

static struct usual *usual_of(const struct tracker *tracker, uint64_t place)
{
    const uint64_t function = place & 0xff;
    const uint64_t module = place >> PROGRESS_MODULE_SHIFT & 0xff;
    const uint64_t call = place >> PROGRESS_CALL_SHIFT & 0xffff;
    return &tracker->usual[((module * 31 + call) * 16 + function) % USUAL_PLACES];
}

static uint32_t usual_load(const _Atomic(uint32_t) *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

static void usual_store(_Atomic(uint32_t) *word, uint32_t value)
{
    atomic_store_explicit(word, value, memory_order_relaxed);
}

static void usual_age(struct usual *usual)
{
    uint32_t left = 0;
    for (uint32_t c = 0; c < USUAL_CLASSES; c++) {
        const uint32_t half = usual_load(&usual->counts[c]) / 2;
        usual_store(&usual->counts[c], half);
        left += half;
    }
    usual_store(&usual->noted, left);
}

// The trainer was outside the library for away_ms after a function. The caller does not report
// times below one tick of the coarse clock: no stall time is that low, and without these times the
// percentile is only higher.
static void usual_note(const struct tracker *tracker, uint64_t place, uint64_t away_ms)
{
    struct usual *usual = usual_of(tracker, place);
    const uint32_t ms = away_ms > INT32_MAX ? INT32_MAX : (uint32_t)away_ms;
    const uint32_t class = 31 - (uint32_t)__builtin_clz(ms);
    usual_store(&usual->counts[class], usual_load(&usual->counts[class]) + 1);
    if (ms > usual_load(&usual->longest_ms[0]))
        usual_store(&usual->longest_ms[0], ms);
    usual_store(&usual->noted, usual_load(&usual->noted) + 1);
    if (usual_load(&usual->noted) >= USUAL_AGED)
        usual_age(usual);
    usual_store(&usual->recent, usual_load(&usual->recent) + 1);
    if (usual_load(&usual->recent) < USUAL_RECENT)
        return;
    usual_store(&usual->recent, 0);
    usual_store(&usual->longest_ms[1], usual_load(&usual->longest_ms[0]));
    usual_store(&usual->longest_ms[0], 0);
}

// Sets the upper end of the class that contains the 99th percentile, and the longest time.
static void usual_read(const struct usual *usual, struct place *place)
{
    const uint32_t now = usual_load(&usual->longest_ms[0]);
    const uint32_t before = usual_load(&usual->longest_ms[1]);
    const uint32_t hundredth = usual_load(&usual->noted) / 100;
    uint32_t above = 0;
    for (uint32_t c = USUAL_CLASSES; c-- > 0 && place->usual_us == 0;) {
        above += usual_load(&usual->counts[c]);
        if (above > hundredth)
            place->usual_us = ((uint64_t)2 << c) * 1000;
    }
    place->longest_us = (uint64_t)(now > before ? now : before) * 1000;
}

// ---- Opening -----------------------------------------------------------------------------------

int progress_open(struct tracker *tracker)
{
    tracker->words = trace_progress(tracker->trace);
    tracker->usual = calloc(USUAL_PLACES, sizeof(*tracker->usual));
    progress_store(&tracker->words->api_ms, clock_coarse_ms());
    return !tracker->usual ? -1 : 0;
}

void progress_close(struct tracker *tracker)
{
    free(tracker->usual);
    tracker->usual = NULL;
}

// ---- Visits ------------------------------------------------------------------------------------

static enum api_function visit_function(const struct visit *visit)
{
    return (enum api_function)(visit->place & 0xff);
}

static void visit_event(const struct visit *visit, enum trace_kind kind, uint64_t value)
{
    const uint32_t module = visit->place >> PROGRESS_MODULE_SHIFT & 0xff;
    trace_event(visit->tracker->trace, kind, progress_load(&visit->tracker->words->step),
                module == PROGRESS_NO_MODULE ? TRACE_NO_MODULE : module,
                (uint32_t)(visit->place >> PROGRESS_CALL_SHIFT), 0, value);
}

// True for functions whose begin and end are trace events. Other functions have their own kind of
// event, or are so frequent that their events would push out all others.
static bool visit_is_traced(const struct visit *visit)
{
    const uint32_t traced = 1u << API_OPEN | 1u << API_START | 1u << API_STATE | 1u << API_CLOSE |
                            1u << API_CALL_WAIT | 1u << API_CALL_NEXT;
    return (traced >> visit_function(visit) & 1) != 0;
}

struct visit progress_enter(const struct tracker *tracker, enum api_function function,
                            uint32_t module, uint32_t call)
{
    struct progress *progress = tracker->words;
    const struct visit visit = {.tracker = tracker,
                                .place = (uint64_t)function |
                                         (uint64_t)module << PROGRESS_MODULE_SHIFT |
                                         (uint64_t)(call & 0xffff) << PROGRESS_CALL_SHIFT,
                                .entered_ms = clock_coarse_ms()};
    const uint64_t before = progress_load(&progress->api);
    const uint64_t before_ms = progress_load(&progress->api_ms);
    progress_store(&progress->api, visit.place | PROGRESS_INSIDE);
    progress_store(&progress->api_ms, visit.entered_ms);
    if (visit.entered_ms > before_ms && (before & PROGRESS_INSIDE) == 0 &&
        progress_load(&progress->paused_ms) == 0)
        usual_note(tracker, before, visit.entered_ms - before_ms);
    if (visit_is_traced(&visit))
        visit_event(&visit, TRACE_API_ENTER, function);
    return visit;
}

// True if the time inside this function counts as waiting for other ranks. A trainer that saves a
// file or copies gradients works.
static bool progress_function_waits(enum api_function function)
{
    return function != API_CALL_BEGIN && function != API_CALL_END && function != API_CALL_ABORT &&
           function != API_STATE;
}

static void visit_left_blocking(const struct visit *visit, uint64_t now_ms, int status)
{
    struct progress *progress = visit->tracker->words;
    const enum api_function function = visit_function(visit);
    if (function == API_COLLECTIVE || function == API_WORK_WAIT)
        progress_store(&progress->plain, progress_load(&progress->plain) + (status == 0));
    if (now_ms == visit->entered_ms)
        return;
    if (progress_function_waits(function))
        progress_store(&progress->waited_ms,
                       progress_load(&progress->waited_ms) + now_ms - visit->entered_ms);
    if (function != API_COLLECTIVE && function != API_WORK_WAIT)
        return;
    trace_event_at(visit->tracker->trace, visit->entered_ms * 1000000, TRACE_PLAIN,
                   progress_load(&progress->step), TRACE_NO_MODULE, 0, 0, 0);
    visit_event(visit, TRACE_PLAIN_DONE, (uint32_t)status);
}

// True if a success of this function needed all ranks. After such a success no earlier failure is a
// reason to close. Other functions, such as the begin of a step or a pause, can also succeed
// between a failure and the close.
static bool visit_settles(const struct visit *visit)
{
    const uint32_t settling =
        1u << API_START | 1u << API_STEP_END | 1u << API_COLLECTIVE | 1u << API_WORK_WAIT;
    return (settling >> visit_function(visit) & 1) != 0;
}

// Failures before this visit are no longer a reason to close.
static void progress_note_over(const struct tracker *tracker)
{
    if (atomic_load_explicit(tracker->noted, memory_order_relaxed))
        atomic_store_explicit(tracker->noted, false, memory_order_relaxed);
}

int progress_leave(const struct visit *visit, int status)
{
    struct progress *progress = visit->tracker->words;
    const uint64_t now_ms = clock_coarse_ms();
    progress_store(&progress->api, visit->place);
    progress_store(&progress->api_ms, now_ms);
    visit_left_blocking(visit, now_ms, status);
    if (status >= 0 && visit_settles(visit))
        progress_note_over(visit->tracker);
    if (visit_is_traced(visit) || visit_function(visit) == API_STEP_END)
        visit_event(visit, TRACE_API_LEAVE,
                    (uint64_t)(uint32_t)status << 32 | visit_function(visit));
    return status;
}

// ---- Calls, waits, pauses ----------------------------------------------------------------------

static void progress_add(_Atomic(uint64_t) *word, uint64_t more)
{
    atomic_fetch_add_explicit(word, more, memory_order_relaxed);
}

void progress_call_begun(const struct tracker *tracker, const struct tracked_call *call)
{
    struct progress *progress = tracker->words;
    progress_add(&progress->gradients, call->gradients);
    progress_add(&progress->calls_open, 1);
    trace_event(tracker->trace, TRACE_CALL_BEGIN, call->step, call->module, call->number, 0, 0);
}

void progress_call_over(const struct tracker *tracker, const struct tracked_call *call,
                        uint32_t complete)
{
    struct progress *progress = tracker->words;
    progress_add(&progress->gradients, -(uint64_t)call->gradients);
    progress_add(&progress->ready, -(uint64_t)complete);
    progress_add(&progress->calls_open, (uint64_t)-1);
    trace_event(tracker->trace, TRACE_CALL_END, call->step, call->module, call->number, 0,
                complete);
}

void progress_mark_locked(const struct tracker *tracker, const char *text)
{
    mutex_assert_held(tracker->mutex);
    trace_cell_write(trace_cell(tracker->trace, TRACE_MARK), text);
}

void progress_pause_locked(const struct tracker *tracker, const char *reason, uint64_t pause_ms)
{
    struct progress *progress = tracker->words;
    mutex_assert_held(tracker->mutex);
    progress_mark_locked(tracker, reason);
    trace_cell_write(trace_cell(tracker->trace, TRACE_PAUSE_REASON), reason);
    progress_store(&progress->pause_ms, pause_ms);
    progress_store(&progress->paused_ms, clock_coarse_ms());
    trace_event(tracker->trace, TRACE_PAUSE, progress_load(&progress->step), TRACE_NO_MODULE, 0, 0,
                pause_ms);
}

void progress_resume_locked(const struct tracker *tracker)
{
    struct progress *progress = tracker->words;
    mutex_assert_held(tracker->mutex);
    progress_mark_locked(tracker, "");
    trace_cell_write(trace_cell(tracker->trace, TRACE_PAUSE_REASON), "");
    progress_store(&progress->paused_ms, 0);
    progress_store(&progress->pause_ms, 0);
    trace_event(tracker->trace, TRACE_RESUME, progress_load(&progress->step), TRACE_NO_MODULE, 0, 0,
                0);
}

// ---- Words that the driver writes --------------------------------------------------------------

void progress_formed(const struct tracker *tracker, const struct generation_id *generation,
                     uint32_t rank, uint32_t world_size)
{
    struct progress *progress = tracker->words;
    trace_formed(tracker->trace, generation, rank, world_size);
    progress_store(&progress->incarnation, generation->incarnation);
    atomic_store_explicit(&progress->generation, generation->number, memory_order_release);
}

// ---- Reading -----------------------------------------------------------------------------------

static void progress_read_place(uint64_t word, struct place *place)
{
    place->position = word & 0x7ff;
    place->count = word >> PLACE_COUNT & 0x7ff;
    place->done = (word >> PLACE_DONE & 1) != 0;
    place->open = (word >> PLACE_OPEN & 1) != 0;
    place->learning = (word >> PLACE_LEARNING & 1) != 0;
    place->slot = (struct slot_id){.module = word >> PLACE_MODULE & 0x7f,
                                   .call = word >> PLACE_CALL & 0x1ff,
                                   .bucket = word >> PLACE_BUCKET & 0x7ff};
}

static uint64_t progress_age(uint64_t now_ms, uint64_t since_ms)
{
    return now_ms > since_ms ? now_ms - since_ms : 0;
}

// True if the trainer is blocked. Threads that wait for calls block the trainer only when as many
// threads wait as may wait; until then the other threads go on.
static bool progress_is_blocked(const struct tracker *tracker)
{
    const uint64_t waiting = progress_load(&tracker->words->waiting);
    const uint32_t for_calls = atomic_load_explicit(tracker->call_waits, memory_order_relaxed);
    return waiting > for_calls || (waiting > 0 && for_calls >= *tracker->trainer_threads);
}

// Sets the function, and how long ago it was entered or left. Reporting a gradient is no visit, so
// a gradient that was reported after the last visit counts as the function instead.
static void progress_read_api(const struct tracker *tracker, struct place *place)
{
    const struct progress *progress = tracker->words;
    const uint64_t api = progress_load(&progress->api);
    const uint64_t module = api >> PROGRESS_MODULE_SHIFT & 0xff;
    const uint64_t ready_ms = progress_load(&progress->ready_us) / 1000;
    uint64_t since_ms = progress_load(&progress->api_ms);
    place->waits = progress_is_blocked(tracker);
    place->inside = (api & PROGRESS_INSIDE) != 0 || place->waits;
    place->api = (enum api_function)(api & 0xff);
    place->module = module == PROGRESS_NO_MODULE ? LOCKSTEP_MAX_MODULES : (uint32_t)module;
    place->call = api >> PROGRESS_CALL_SHIFT & 0xffff;
    if (!place->inside)
        usual_read(usual_of(tracker, api), place);
    if (place->calls_open > 0 && !place->inside && ready_ms > since_ms) {
        place->api = API_GRAD_READY;
        since_ms = ready_ms;
    }
    place->api_ms = progress_age(clock_coarse_ms(), since_ms);
}

static enum worker_activity progress_activity(const struct place *place, bool paused)
{
    if (place->inside && place->api == API_OPEN)
        return ACTIVITY_OPENING;
    if (place->inside && place->api == API_START)
        return ACTIVITY_STARTING;
    if (place->waits)
        return ACTIVITY_WAITING;
    if (paused)
        return ACTIVITY_PAUSED;
    return place->calls_open > 0 ? ACTIVITY_IN_CALL : ACTIVITY_OUTSIDE;
}

static void progress_read_totals(const struct progress *progress, struct step_totals *totals)
{
    *totals = (struct step_totals){.steps = progress_load(&progress->steps),
                                   .bytes_copied = progress_load(&progress->bytes_copied),
                                   .in_flight_us = progress_load(&progress->in_flight_us),
                                   .overlap_us = progress_load(&progress->overlap_us),
                                   .exposed_us = progress_load(&progress->exposed_us),
                                   .zero_filled = progress_load(&progress->zero_filled),
                                   .unused = progress_load(&progress->unused)};
}

// Reads `settled` and `place` until they are consistent: a place belongs to the step after the
// settled one, and the driver stores `settled` before the place.
static void progress_read_settled(const struct progress *progress, struct up_heartbeat *beat)
{
    uint64_t again = atomic_load_explicit(&progress->settled, memory_order_acquire);
    do {
        beat->settled = again;
        progress_read_place(atomic_load_explicit(&progress->place, memory_order_acquire),
                            &beat->place);
        again = atomic_load_explicit(&progress->settled, memory_order_acquire);
    } while (again != beat->settled);
}

void progress_read(const struct tracker *tracker, struct up_message *message)
{
    const struct progress *progress = tracker->words;
    struct up_heartbeat *beat = &message->u.heartbeat;
    struct place *place = &beat->place;
    const uint64_t paused_ms = progress_load(&progress->paused_ms);
    memset(message, 0, sizeof(*message));
    message->kind = UP_HEARTBEAT;
    message->generation.number = atomic_load_explicit(&progress->generation, memory_order_acquire);
    message->generation.incarnation = progress_load(&progress->incarnation);
    beat->step = progress_load(&progress->step);
    progress_read_settled(progress, beat);
    place->calls_open = (uint32_t)progress_load(&progress->calls_open);
    place->ready = (uint32_t)progress_load(&progress->ready);
    place->gradients = (uint32_t)progress_load(&progress->gradients);
    place->plain = progress_load(&progress->plain);
    place->waited_us = progress_load(&progress->waited_ms) * 1000;
    progress_read_api(tracker, place);
    if (place->waits && progress_function_waits(place->api))
        place->waited_us += place->api_ms * 1000; // This wait is not over.
    beat->activity = progress_activity(place, paused_ms != 0);
    beat->since_ms = beat->activity == ACTIVITY_PAUSED ? progress_age(clock_coarse_ms(), paused_ms)
                                                       : place->api_ms;
    beat->pause_ms = progress_load(&progress->pause_ms);
    progress_read_totals(progress, &beat->totals);
    beat->flags = paused_ms != 0 ? PLACE_PAUSED : 0;
    if (beat->totals.steps < LOCKSTEP_STALL_FIRST_STEPS)
        beat->flags |= PLACE_FIRST;
    beat->bytes_sent = progress_load(&progress->bytes_sent);
    beat->bytes_received = progress_load(&progress->bytes_received);
    trace_cell_read(trace_cell(tracker->trace, TRACE_MARK), beat->mark);
}
