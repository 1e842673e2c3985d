// SPDX-License-Identifier: Apache-2.0
//
// Makes a capture. First the Python frames, before any thread is disturbed. Then the threads that
// have called the library, one after the other, as addresses. Then the other threads. Last the
// names, when no thread waits any more.
//
//     a thread that        gets its frames
//     sleeps               from its stack, without being disturbed (sleep.h)
//     sleeps, and some     by a signal, if its call continues afterwards (sleep_again.h) and its
//     frames are guesses   stack has room (room.h); otherwise it keeps the frames that are known
//     runs                 by a signal, if its stack has room
//     is no caller         from its stack while it sleeps, otherwise not at all

#include "worker/stacks/stacks.h"

#include "base/clock.h"
#include "base/mutex.h"
#include "worker/stacks/namer.h"
#include "worker/stacks/proc_task.h"
#include "worker/stacks/python.h"
#include "worker/stacks/room.h"
#include "worker/stacks/signal.h"
#include "worker/stacks/sleep.h"
#include "worker/stacks/sleep_again.h"
#include "worker/stacks/symbols.h"
#include "worker/support/error.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

_Static_assert(STACKS_FRAMES <= NAMER_FRAMES, "all frames of a capture can have names");

static struct mutex stacks_mutex = MUTEX_INITIALIZER; // A leaf; held for one capture.

int stacks_open(struct stacks **stacks)
{
    struct stacks *made = calloc(1, sizeof(*made));
    *stacks = made;
    if (!made)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory for the stacks of threads");
    made->namer = namer_open();
    if (!made->namer) {
        free(made);
        *stacks = NULL;
        return error_set(LOCKSTEP_E_SYSTEM, "no memory for the names of functions");
    }
    made->pid = getpid();
    stacks_find_python(made);
    stack_signal_prepare();
    return 0;
}

void stacks_find_python(struct stacks *stacks)
{
    if (!atomic_load(&stacks->python))
        atomic_store(&stacks->python, python_open());
}

void stacks_close(struct stacks *stacks)
{
    if (!stacks)
        return;
    python_close(stacks->python);
    namer_close(stacks->namer);
    free(stacks);
}

// ---- Capture -----------------------------------------------------------------------------------

static void stacks_add_python(struct stacks *stacks, uint32_t index, pthread_t id)
{
    const uint32_t room = STACKS_FRAMES - stacks->frame_count;
    const uint32_t most = room < LOCKSTEP_STACK_FRAMES ? room : LOCKSTEP_STACK_FRAMES;
    const uint32_t from = stacks->frame_count;
    stacks->frame_count += python_frames(stacks->python, id, index, stacks->frames + from, most);
    memset(stacks->code + from, 0, (stacks->frame_count - from) * sizeof(stacks->code[0]));
}

static void stacks_add_native(struct stacks *stacks, uint32_t index,
                              const struct stack_addresses *addresses, uint32_t most)
{
    for (uint32_t i = 0; i < addresses->count && i < most && stacks->frame_count < STACKS_FRAMES;
         i++) {
        // If a call is the last instruction of its function, the return address belongs to the next
        // function.
        stacks->code[stacks->frame_count] = addresses->code[i] - (i > 0);
        stacks->frames[stacks->frame_count] =
            (struct stack_frame){.thread = index, .guessed = i >= addresses->sure};
        stacks->frame_count++;
    }
}

// True if a signal has no lasting effect on the thread: its stack has room for a handler.
static bool stacks_may_ask(const struct thread_note *note, const struct proc_signals *signals)
{
    const bool sleeps = signals->call.stack != 0;
    if (note->alternate != 0 && note->alternate < stack_room_bytes())
        return false;
    return stack_room(sleeps ? (uintptr_t)signals->call.stack : note->stack, sleeps);
}

// Finds out whether the frames that a signal has fetched are all frames of the thread. A walk also
// ends at a function without call frame information, such as generated code.
static enum stack_how stacks_judge(struct stack_addresses *addresses, bool resident)
{
    addresses->whole =
        addresses->count == LOCKSTEP_STACK_FRAMES ||
        (addresses->count > 0 && unwind_begins(addresses->code[addresses->count - 1], resident));
    return addresses->whole ? STACK_SIGNAL : STACK_CUT;
}

// Asks a thread that sleeps and whose frames are not all proven. The frames stay as they are unless
// the thread answers.
static void stacks_ask_sleeper(const struct thread_note *note, struct stack_thread *thread,
                               const struct proc_signals *signals, bool resident,
                               uint64_t deadline_ms, struct stack_addresses *addresses)
{
    if (thread->state == 'S' && sleep_again_unnoticed(&signals->call) &&
        stacks_may_ask(note, signals) &&
        stack_signal_ask(note->tid, signals, deadline_ms, addresses) == STACK_SIGNAL)
        thread->how = stacks_judge(addresses, resident);
}

// Asks a thread that runs. Returns false if the thread blocks the signal, which may change soon:
// the thread may be leaving another handler, or be in pthread_create.
static bool stacks_ask_runner(const struct thread_note *note, struct stack_thread *thread,
                              const struct proc_signals *signals, bool resident,
                              uint64_t deadline_ms, struct stack_addresses *addresses)
{
    thread->how = STACK_NO_ROOM;
    if (stacks_may_ask(note, signals))
        thread->how = stack_signal_ask(note->tid, signals, deadline_ms, addresses);
    if (thread->how == STACK_SIGNAL)
        thread->how = stacks_judge(addresses, resident);
    return thread->how != STACK_BLOCKED;
}

// Finds out where a thread that has called the library is. Returns false if the thread has ended.
static bool stacks_ask(const struct thread_note *note, struct stack_thread *thread, bool resident,
                       uint64_t deadline_ms, struct stack_addresses *addresses)
{
    const uint64_t own_ms = clock_now_ms() + STACKS_ANSWER_MS;
    const struct timespec pause = {.tv_nsec = 1000000};
    struct proc_signals signals;
    if (own_ms < deadline_ms)
        deadline_ms = own_ms;
    for (;;) {
        switch (stack_sleep_look(note->tid, resident, thread, &signals, addresses)) {
        case LOOK_GONE:
            return false;
        case LOOK_SLEEPS:
            if (!addresses->whole || addresses->sure < addresses->count)
                stacks_ask_sleeper(note, thread, &signals, resident, deadline_ms, addresses);
            return true;
        case LOOK_UNKNOWN:
            // On a busy machine a thread that polls may wake up during each walk.
            thread->how = thread->state == 'D' ? STACK_DISK : STACK_LEFT_ALONE;
            if (thread->how == STACK_DISK || clock_now_ms() >= deadline_ms)
                return true;
            break;
        case LOOK_RUNS:
            if (stacks_ask_runner(note, thread, &signals, resident, deadline_ms, addresses) ||
                clock_now_ms() >= deadline_ms)
                return true;
        }
        nanosleep(&pause, NULL);
    }
}

static void stacks_add_thread(struct stacks *stacks, const struct thread_note *note,
                              uint64_t deadline_ms)
{
    const uint32_t index = stacks->thread_count;
    struct stack_addresses addresses;
    stacks->threads[index] = (struct stack_thread){.trainer = note->last};
    if (!stacks_ask(note, &stacks->threads[index], stacks->disk, deadline_ms, &addresses))
        return;
    if (stacks->python)
        stacks_add_python(stacks, index, note->id);
    stacks_add_native(stacks, index, &addresses, LOCKSTEP_STACK_FRAMES);
    stacks->thread_count++;
}

// ---- Threads that have not called the library --------------------------------------------------

// Adds a thread that has not called the library. Such a thread is never interrupted, because it
// must not suffer from a library that it does not use.
static void stacks_add_other(struct stacks *stacks, uint32_t tid, uint64_t deadline_ms)
{
    const uint32_t index = stacks->thread_count;
    struct stack_thread *thread = &stacks->threads[index];
    struct stack_addresses addresses;
    struct proc_signals signals;
    *thread = (struct stack_thread){.how = STACK_LEFT_ALONE, .other = true};
    // There is no time left for frames, only for the kernel's facts.
    if (clock_now_ms() >= deadline_ms) {
        stacks->thread_count += proc_task_read(PROC_TASK_DIRECTORY, tid, thread, &signals);
        return;
    }
    switch (stack_sleep_look(tid, stacks->disk, thread, &signals, &addresses)) {
    case LOOK_GONE:
        return;
    case LOOK_SLEEPS:
        break;
    case LOOK_UNKNOWN:
        thread->how = thread->state == 'D' ? STACK_DISK : STACK_LEFT_ALONE;
        break;
    case LOOK_RUNS:
        thread->how = STACK_NOT_ASKED;
    }
    stacks_add_native(stacks, index, &addresses, STACKS_OTHER_FRAMES);
    stacks->thread_count++;
}

static void stacks_add_others(struct stacks *stacks, uint64_t deadline_ms)
{
    const uint32_t own = (uint32_t)gettid();
    const uint32_t names = namer_tid(stacks->namer);
    const uint32_t callers = stacks->thread_count;
    for (uint32_t i = 0; i < stacks->tid_count && stacks->thread_count < LOCKSTEP_STACK_THREADS;
         i++) {
        bool known = stacks->tids[i] == own || stacks->tids[i] == names;
        for (uint32_t t = 0; t < callers; t++)
            known |= stacks->threads[t].tid == stacks->tids[i];
        if (!known)
            stacks_add_other(stacks, stacks->tids[i], deadline_ms);
    }
}

// ---- Threads of the library --------------------------------------------------------------------

// True for the names that gRPC gives its threads.
static bool stacks_is_grpcs(const char *name)
{
    static const char *const names[] = {"default-executo", "resolver-execut", "grpc_global_tim",
                                        "event_engine", "timer_manager"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

// Marks the threads that the library has started, after the frames have names. Inside
// liblockstep.so every frame is the library's or its gRPC's. In a program with liblockstep.a both
// are in the program, or gRPC is libgrpc.so, which the program may use, too. There the names of
// threads decide.
static void stacks_mark_own(struct stacks *stacks)
{
    struct stack_frame here = {.thread = 0};
    const uintptr_t address = (uintptr_t)stacks_mark_own;
    symbols_name(&here, &address, 1, false);
    const bool shared = strncmp(here.object, "liblockstep.", 12) == 0;
    for (uint32_t t = 0; t < stacks->thread_count; t++) {
        struct stack_thread *thread = &stacks->threads[t];
        thread->own = thread->other && strncmp(thread->name, "lockstep-", 9) == 0;
    }
    for (uint32_t f = 0; f < stacks->frame_count; f++) {
        const struct stack_frame *frame = &stacks->frames[f];
        struct stack_thread *thread = &stacks->threads[frame->thread];
        const bool inside = !frame->python && strcmp(frame->object, here.object) == 0;
        const bool grpcs = inside || strncmp(frame->object, "libgrpc.", 8) == 0;
        thread->own |= thread->other && (shared ? inside : grpcs && stacks_is_grpcs(thread->name));
    }
}

// ---- Capture of all -----------------------------------------------------------------------------

// True if some thread sleeps in state D. The thread may wait for a file system that does not
// answer. Then the watch thread touches no page that would have to be read from a file. A separate
// thread reads the names (namer.h).
static bool stacks_waits_for_disk(const struct stacks *stacks)
{
    struct stack_thread thread;
    struct proc_signals signals;
    for (uint32_t i = 0; i < stacks->tid_count; i++) {
        if (proc_task_read(PROC_TASK_DIRECTORY, stacks->tids[i], &thread, &signals) &&
            thread.state == 'D')
            return true;
    }
    return false;
}

static void stacks_capture_locked(struct stacks *stacks, const struct callers *callers)
{
    struct thread_note notes[LOCKSTEP_STACK_THREADS];
    const uint32_t count = callers_list(callers, notes, LOCKSTEP_STACK_THREADS);
    mutex_assert_held(&stacks_mutex);
    stacks->tid_count = proc_task_list(PROC_TASK_DIRECTORY, stacks->tids, STACKS_TIDS);
    stacks->disk = stacks_waits_for_disk(stacks);
    if (stacks->python && count > 0)
        (void)python_dump(stacks->python);
    const uint64_t deadline_ms = clock_now_ms() + STACKS_MS;
    for (uint32_t i = 0; i < count; i++)
        stacks_add_thread(stacks, &notes[i], deadline_ms);
    stacks_add_others(stacks, deadline_ms);
    namer_name(stacks->namer, stacks->frames, stacks->code, stacks->frame_count);
    stacks_mark_own(stacks);
}

void stacks_capture(struct stacks *stacks, const struct callers *callers)
{
    stacks->thread_count = 0;
    stacks->frame_count = 0;
    if (getpid() != stacks->pid)
        return;
    mutex_lock(&stacks_mutex);
    stacks_capture_locked(stacks, callers);
    mutex_unlock(&stacks_mutex);
}
