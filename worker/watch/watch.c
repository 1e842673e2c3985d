// SPDX-License-Identifier: Apache-2.0
//
// The watch of a session; watch.h explains its purpose. A heartbeat is due at every heartbeat
// interval. An extra heartbeat is sent, within LOCKSTEP_WATCH_MS, when the trainer pauses, when it
// goes on after a pause, or when it moves after two heartbeats that showed no progress, because the
// coordinator may have based a verdict on those two. So a running trainer costs one message in an
// interval, and one look at a few words every LOCKSTEP_WATCH_MS. /proc is read only for heartbeats
// that are due; the driver is asked for its links only while the trainer does not move.

#include "worker/watch/watch.h"

#include "base/clock.h"
#include "base/cond.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "base/utf8.h"
#include "worker/stacks/proc_task.h"
#include "worker/stacks/stacks.h"
#include "worker/support/process.h"
#include "worker/watch/kernel_sleep.h"
#include "worker/watch/proc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WATCH_DRIVER_MS 150 // How long an answer waits for the driver, in ms.

struct watch {
    // set at start, then constant
    struct watch_events events;
    const struct tracker *tracker;
    const struct callers *callers;
    struct stacks *stacks;
    struct thread thread;
    bool runs; // True while the thread runs. Trainer's thread only.

    // guarded by mutex
    struct mutex mutex;
    struct cond changed; // Signalled when stop, inspect or asked changes.
    bool stop;
    // Milliseconds between heartbeats; 0: the coordinator has not welcomed this worker yet.
    uint32_t interval_ms;
    struct locality locality;
    struct down_query query; // The things that other ranks wait for; without keys: none.
    bool queried; // True if `query` is new.
    uint64_t notes_asked; // Number of times that watch_note has asked for a heartbeat at once.
    uint64_t notes_seen; // The value of notes_asked when the thread last woke.
    uint64_t notes_told; // The value of notes_asked that the last heartbeat covers.
    uint64_t notes_from_ms; // Until this time (clock_coarse_ms) a failure does not wake the thread.
    struct down_inspect inspect; // The question to answer; id 0: none.
    bool asked; // True while COMMAND_INSPECT waits for the driver's answer.
    struct watch_driven driven; // The driver's last answer.

    // watch thread only
    uint64_t stood; // The value that events.fill keeps from look to look.
    uint64_t due_ms; // Time of the next due heartbeat (clock_now_ms); 0: not set yet.
    struct up_heartbeat said; // The last heartbeat.
    bool still; // True if the last heartbeat showed the same place as the one before it.
    bool note_due; // True if a heartbeat has to report a failure.
    uint32_t proc_flags; // Flags from /proc, as of the last due heartbeat.
    uint64_t throttled;
    // The trainer's sleep in state D; empty: it does not sleep so.
    char sleeps[LOCKSTEP_KERNEL_BYTES];
    // True if `part` waits to be sent; it waits until the watch knows whether it is the last part.
    bool part_held;
    struct up_message part;
    struct up_message beat;
};

// ---- The driver's side -------------------------------------------------------------------------

void watch_driven(struct watch *watch, const struct watch_driven *driven)
{
    mutex_lock(&watch->mutex);
    watch->driven = *driven;
    watch->asked = false;
    cond_signal(&watch->changed);
    mutex_unlock(&watch->mutex);
}

// At most one question at a time is on its way to the driver, so that questions cannot fill the
// driver's inbox.
static void watch_ask_driver(struct watch *watch)
{
    bool asks;
    mutex_lock(&watch->mutex);
    asks = !watch->asked && !watch->stop;
    watch->asked |= asks;
    mutex_unlock(&watch->mutex);
    if (asks)
        watch->events.ask_driver(watch->events.context);
}

// ---- What /proc says ---------------------------------------------------------------------------

// Replaces bytes that are not UTF-8, because programs choose the names of threads and files, and
// the kernel may cut a name within a character.
static void watch_clean(char *text)
{
    for (size_t left = strlen(text); left > 0;) {
        const size_t bytes = utf8_length(text, left);
        if (bytes == 0)
            *text = '?';
        text += bytes + (bytes == 0);
        left -= bytes + (bytes == 0);
    }
}

// True if the thread that called the library last sleeps in state D. Then `sleeps` describes the
// sleep.
static bool watch_sleeps_on_disk(struct watch *watch)
{
    struct thread_note note;
    struct stack_thread thread;
    struct proc_signals signals;
    watch->sleeps[0] = '\0';
    if (callers_list(watch->callers, &note, 1) == 0 ||
        !proc_task_read(PROC_TASK_DIRECTORY, note.tid, &thread, &signals) || thread.state != 'D')
        return false;
    watch_clean(thread.wchan);
    kernel_sleep_text(thread.syscall, thread.wchan, watch->sleeps, sizeof(watch->sleeps));
    return true;
}

static void watch_read_proc(struct watch *watch)
{
    const uint64_t throttled = watch_proc_throttled(WATCH_PROC_DIRECTORY, WATCH_CGROUP_DIRECTORY);
    watch->proc_flags = 0;
    if (watch_proc_tracer(WATCH_PROC_DIRECTORY, "self") != 0)
        watch->proc_flags |= PLACE_TRACED;
    if (throttled > watch->throttled && watch->throttled != 0)
        watch->proc_flags |= PLACE_THROTTLED;
    if (watch_sleeps_on_disk(watch))
        watch->proc_flags |= PLACE_DISK;
    watch->throttled = throttled;
}

// Reads a mate. Returns true if the mate's process is in one of these states. The process must have
// the mate's pid and the mate's start time.
static bool watch_mate(const struct locality *locality, uint32_t index, const char *states,
                       struct mate_state *mate)
{
    struct watch_process process;
    char pid[16];
    if (index == locality->local || locality->mate_started[index] == 0 ||
        locality->mate_pids[index] == (uint32_t)getpid())
        return false;
    snprintf(pid, sizeof(pid), "%" PRIu32, locality->mate_pids[index]);
    if (!watch_proc_process(WATCH_PROC_DIRECTORY, pid, &process) ||
        process_started_at(process.started) != locality->mate_started[index] ||
        !strchr(states, process.state))
        return false;
    *mate = (struct mate_state){.rank = locality->mates[index],
                                .state = process.state,
                                .tracer = watch_proc_tracer(WATCH_PROC_DIRECTORY, pid)};
    return true;
}

static void watch_read_mates(struct watch *watch, struct up_heartbeat *beat)
{
    // Stopped mates come first: many other mates may sleep on one disk, or be about to end.
    static const char *const states[] = {"Tt", "DZ"};
    struct locality locality;
    mutex_lock(&watch->mutex);
    locality = watch->locality;
    mutex_unlock(&watch->mutex);
    for (size_t s = 0; s < sizeof(states) / sizeof(states[0]); s++)
        for (uint32_t i = 0; i < locality.mate_count && beat->mate_count < LOCKSTEP_MATES_NAMED;
             i++)
            beat->mate_count += watch_mate(&locality, i, states[s], &beat->mates[beat->mate_count]);
}

// ---- Heartbeats --------------------------------------------------------------------------------

static bool watch_same_place(const struct up_heartbeat *a, const struct up_heartbeat *b)
{
    const struct place *p = &a->place;
    const struct place *q = &b->place;
    return a->step == b->step && a->settled == b->settled && p->position == q->position &&
           p->done == q->done && p->open == q->open && p->waits == q->waits && p->api == q->api &&
           p->inside == q->inside && p->module == q->module && p->call == q->call &&
           p->ready == q->ready && p->plain == q->plain && p->api_ms >= q->api_ms &&
           a->bytes_received == b->bytes_received;
}

// True if the wait has to be reported, because the last heartbeat reported another wait, or another
// list of things that this rank has not done.
static bool watch_is_blocked_anew(const struct await *now, const struct await *said)
{
    return now->key.kind != AWAIT_NONE &&
           (!await_key_equal(&now->key, &said->key) || now->lack_count != said->lack_count ||
            memcmp(now->lacks, said->lacks, now->lack_count * sizeof(now->lacks[0])) != 0);
}

// True if a collective is overdue that the last heartbeat did not report.
static bool watch_is_overdue_anew(const struct up_heartbeat *now, const struct up_heartbeat *said)
{
    return now->overdue_count > 0 &&
           (now->overdue_count != said->overdue_count ||
            memcmp(now->overdue, said->overdue, now->overdue_count * sizeof(now->overdue[0])) != 0);
}

static bool watch_is_urgent(const struct watch *watch, const struct up_heartbeat *beat)
{
    const bool over = watch->said.failure[0] != '\0' && beat->failure[0] == '\0';
    return watch->note_due || over || watch_is_blocked_anew(&beat->await, &watch->said.await) ||
           watch_is_overdue_anew(beat, &watch->said) ||
           ((beat->flags ^ watch->said.flags) & PLACE_PAUSED) != 0 ||
           (watch->still && !watch_same_place(beat, &watch->said));
}

// Adds what the driver answered last. The answer may be about an earlier place of the trainer; the
// next heartbeat corrects that.
static void watch_take_links(struct watch *watch, struct up_heartbeat *beat)
{
    watch_ask_driver(watch);
    mutex_lock(&watch->mutex);
    beat->link_count = watch->driven.link_count;
    memcpy(beat->links, watch->driven.links, beat->link_count * sizeof(beat->links[0]));
    beat->held = watch->driven.held;
    mutex_unlock(&watch->mutex);
}

static uint64_t watch_notes_asked(struct watch *watch)
{
    mutex_lock(&watch->mutex);
    const uint64_t asked = watch->notes_asked;
    mutex_unlock(&watch->mutex);
    return asked;
}

static void watch_told_note(struct watch *watch, uint64_t asked)
{
    mutex_lock(&watch->mutex);
    watch->notes_told = asked;
    mutex_unlock(&watch->mutex);
}

// asked: the value of watch_notes_asked before the failure in the heartbeat was read.
static void watch_beat(struct watch *watch, uint64_t asked)
{
    struct up_heartbeat *beat = &watch->beat.u.heartbeat;
    watch_read_mates(watch, beat);
    beat->flags |= watch->proc_flags;
    memcpy(beat->sleeps, watch->sleeps, sizeof(beat->sleeps));
    watch->still = watch_same_place(beat, &watch->said);
    if (watch->still)
        watch_take_links(watch, beat);
    watch->said = *beat;
    // If the stream has ended or another heartbeat waits, this heartbeat is dropped; the next one
    // says more.
    if (watch->events.send(watch->events.context, &watch->beat) == 0)
        watch_told_note(watch, asked);
}

static void watch_fill(struct watch *watch, struct up_message *beat)
{
    struct down_query query;
    mutex_lock(&watch->mutex);
    query = watch->query;
    watch->queried = false;
    mutex_unlock(&watch->mutex);
    watch->events.fill(watch->events.context, &query, &watch->stood, beat);
}

static void watch_look(struct watch *watch, uint32_t interval_ms)
{
    const uint64_t now_ms = clock_now_ms();
    if (interval_ms == 0)
        return;
    const uint64_t asked = watch_notes_asked(watch);
    progress_read(watch->tracker, &watch->beat);
    watch_fill(watch, &watch->beat);
    if (watch->due_ms == 0)
        watch->due_ms = now_ms + interval_ms;
    if (now_ms >= watch->due_ms) {
        watch->due_ms = now_ms + interval_ms;
        watch_read_proc(watch);
    } else if (!watch_is_urgent(watch, &watch->beat.u.heartbeat)) {
        return;
    }
    watch_beat(watch, asked);
}

// ---- Answers -----------------------------------------------------------------------------------

static void watch_send_part(struct watch *watch, bool last)
{
    if (!watch->part_held)
        return;
    watch->part_held = false;
    watch->part.u.answer.last = last;
    (void)watch->events.send(watch->events.context, &watch->part);
}

static struct up_answer *watch_part(struct watch *watch, const struct down_inspect *inspect,
                                    enum answer_kind kind)
{
    const struct progress *progress = watch->tracker->words;
    struct up_message *part = &watch->part;
    watch_send_part(watch, false);
    memset(part, 0, sizeof(*part));
    part->kind = UP_ANSWER;
    part->generation.number = atomic_load_explicit(&progress->generation, memory_order_acquire);
    part->generation.incarnation = atomic_load(&progress->incarnation);
    part->u.answer.id = inspect->id;
    part->u.answer.clock_ns = clock_now_ns();
    part->u.answer.kind = kind;
    watch->part_held = true;
    return &part->u.answer;
}

static void watch_answer_place(struct watch *watch, const struct down_inspect *inspect)
{
    const uint64_t deadline_ms = clock_now_ms() + WATCH_DRIVER_MS;
    struct up_answer *answer = watch_part(watch, inspect, ANSWER_PLACE);
    watch_ask_driver(watch);
    mutex_lock(&watch->mutex);
    while (watch->asked && !watch->stop &&
           cond_wait_until(&watch->changed, &watch->mutex, deadline_ms))
        ;
    if (!watch->asked)
        answer->u.place = watch->driven.place;
    mutex_unlock(&watch->mutex);
}

static void watch_answer_threads(struct watch *watch, const struct down_inspect *inspect)
{
    const struct stacks *stacks = watch->stacks;
    struct answer_threads *part = NULL;
    for (uint32_t i = 0; i < stacks->thread_count; i++) {
        if (!part || part->count == LOCKSTEP_THREADS_PART)
            part = &watch_part(watch, inspect, ANSWER_THREADS)->u.threads;
        part->threads[part->count] = stacks->threads[i];
        watch_clean(part->threads[part->count].name);
        watch_clean(part->threads[part->count].owner_name);
        watch_clean(part->threads[part->count++].wchan);
    }
}

static void watch_answer_frames(struct watch *watch, const struct down_inspect *inspect)
{
    const struct stacks *stacks = watch->stacks;
    struct answer_frames *part = NULL;
    for (uint32_t i = 0; i < stacks->frame_count; i++) {
        if (!part || part->count == LOCKSTEP_FRAMES_PART)
            part = &watch_part(watch, inspect, ANSWER_FRAMES)->u.frames;
        part->frames[part->count] = stacks->frames[i];
        watch_clean(part->frames[part->count].object);
        watch_clean(part->frames[part->count++].symbol);
    }
}

static void watch_answer_stacks(struct watch *watch, const struct down_inspect *inspect)
{
    stacks_capture(watch->stacks, watch->callers);
    watch_answer_threads(watch, inspect);
    watch_answer_frames(watch, inspect);
}

static void watch_answer_events(struct watch *watch, const struct down_inspect *inspect)
{
    const struct trace *trace = watch->tracker->trace;
    const uint64_t end = trace_begun(trace);
    struct answer_events *part = NULL;
    uint64_t number = end > LOCKSTEP_TRACE_EVENTS ? end - LOCKSTEP_TRACE_EVENTS : 0;
    for (; number < end; number++) {
        if (!part || part->count == LOCKSTEP_EVENTS_PART)
            part = &watch_part(watch, inspect, ANSWER_EVENTS)->u.events;
        part->count += trace_read(trace, number, &part->events[part->count]);
    }
}

static void watch_answer(struct watch *watch, const struct down_inspect *inspect)
{
    const struct tracker *tracker = watch->tracker;
    trace_event(tracker->trace, TRACE_INSPECTED,
                atomic_load_explicit(&tracker->words->step, memory_order_relaxed), TRACE_NO_MODULE,
                0, 0, inspect->what);
    watch_answer_place(watch, inspect);
    if ((inspect->what & INSPECT_STACKS) != 0)
        watch_answer_stacks(watch, inspect);
    if ((inspect->what & INSPECT_EVENTS) != 0)
        watch_answer_events(watch, inspect);
    watch_send_part(watch, true);
}

// ---- The thread --------------------------------------------------------------------------------

// Sleeps until the next look, or until there is a question. Returns false if the watch has been
// stopped.
static bool watch_rest(struct watch *watch, struct down_inspect *inspect, uint32_t *interval_ms)
{
    const uint64_t deadline_ms = clock_now_ms() + LOCKSTEP_WATCH_MS;
    bool runs;
    mutex_lock(&watch->mutex);
    while (!watch->stop && watch->inspect.id == 0 && !watch->queried &&
           watch->notes_seen == watch->notes_asked &&
           cond_wait_until(&watch->changed, &watch->mutex, deadline_ms))
        ;
    *inspect = watch->inspect;
    *interval_ms = watch->interval_ms;
    watch->inspect.id = 0;
    watch->notes_seen = watch->notes_asked;
    watch->note_due = watch->notes_told != watch->notes_asked;
    runs = !watch->stop;
    mutex_unlock(&watch->mutex);
    return runs;
}

// Sends what has happened since the last heartbeat. The session closes, so nothing that only
// explains a stall is looked for. A worker whose world has not formed has nothing to tell.
static void watch_last(struct watch *watch, uint32_t interval_ms)
{
    progress_read(watch->tracker, &watch->beat);
    if (interval_ms == 0 || watch->beat.generation.number == 0)
        return;
    watch_fill(watch, &watch->beat);
    (void)watch->events.send(watch->events.context, &watch->beat);
}

static void watch_run(void *argument)
{
    struct watch *watch = argument;
    struct down_inspect inspect;
    uint32_t interval_ms;
    while (watch_rest(watch, &inspect, &interval_ms)) {
        watch_look(watch, interval_ms);
        if (inspect.id != 0 && interval_ms != 0)
            watch_answer(watch, &inspect);
    }
    watch_last(watch, interval_ms);
}

int watch_start(const struct watch_events *events, const struct tracker *tracker,
                const struct callers *callers, struct watch **started)
{
    struct watch *watch = calloc(1, sizeof(*watch));
    *started = watch;
    if (!watch)
        return -1;
    mutex_init(&watch->mutex);
    cond_init(&watch->changed);
    watch->events = *events;
    watch->tracker = tracker;
    watch->callers = callers;
    watch->runs = stacks_open(&watch->stacks) == 0 &&
                  thread_start(&watch->thread, "lockstep-watch", watch_run, watch) == 0;
    return watch->runs ? 0 : -1;
}

void watch_stop(struct watch *watch)
{
    if (!watch || !watch->runs)
        return;
    mutex_lock(&watch->mutex);
    watch->stop = true;
    cond_signal(&watch->changed);
    mutex_unlock(&watch->mutex);
    thread_join(&watch->thread);
    watch->runs = false;
}

void watch_close(struct watch *watch)
{
    if (!watch)
        return;
    stacks_close(watch->stacks);
    cond_fini(&watch->changed);
    mutex_fini(&watch->mutex);
    free(watch);
}

void watch_find_python(struct watch *watch)
{
    if (watch)
        stacks_find_python(watch->stacks);
}

void watch_interval(struct watch *watch, uint32_t heartbeat_ms)
{
    mutex_lock(&watch->mutex);
    if (watch->interval_ms != 0) { // The coordinator is back, and may know nothing of this rank.
        watch->notes_asked++;
        cond_signal(&watch->changed);
    }
    watch->interval_ms = heartbeat_ms;
    mutex_unlock(&watch->mutex);
}

void watch_formed(struct watch *watch, const struct locality *locality)
{
    mutex_lock(&watch->mutex);
    watch->locality = *locality;
    mutex_unlock(&watch->mutex);
}

void watch_query(struct watch *watch, const struct down_query *query)
{
    mutex_lock(&watch->mutex);
    watch->query = *query;
    watch->queried = true;
    cond_signal(&watch->changed);
    mutex_unlock(&watch->mutex);
}

void watch_inspect(struct watch *watch, const struct down_inspect *inspect)
{
    mutex_lock(&watch->mutex);
    watch->inspect = *inspect;
    cond_signal(&watch->changed);
    mutex_unlock(&watch->mutex);
}

void watch_note(struct watch *watch, bool last)
{
    const uint64_t now_ms = clock_coarse_ms();
    mutex_lock(&watch->mutex);
    if (last || now_ms >= watch->notes_from_ms) {
        watch->notes_from_ms = now_ms + LOCKSTEP_WATCH_MS;
        watch->notes_asked++;
        cond_signal(&watch->changed);
    }
    mutex_unlock(&watch->mutex);
}

bool watch_has_told(struct watch *watch)
{
    mutex_lock(&watch->mutex);
    const bool told = watch->notes_told == watch->notes_asked;
    mutex_unlock(&watch->mutex);
    return told;
}
