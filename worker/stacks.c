// SPDX-License-Identifier: Apache-2.0
//
// Puts a capture together: Python first, before any thread is disturbed; then the threads, one
// after the other, as addresses; names last, when no thread waits for anything.

#include "worker/stacks.h"

#include "base/clock.h"
#include "base/thread.h"
#include "worker/error.h"
#include "worker/proc_task.h"
#include "worker/python.h"
#include "worker/stack_signal.h"
#include "worker/symbols.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct mutex stacks_mutex = MUTEX_INITIALIZER; // A leaf; held for one capture.

int stacks_open(struct stacks **stacks)
{
    struct stacks *made = calloc(1, sizeof(*made));
    *stacks = made;
    if (made == NULL)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory for the stacks of threads");
    made->pid = getpid();
    made->python = python_open();
    stack_signal_prepare();
    return 0;
}

void stacks_close(struct stacks *stacks)
{
    if (stacks == NULL)
        return;
    python_close(stacks->python);
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
                              const struct stack_addresses *addresses)
{
    for (uint32_t i = 0; i < addresses->count && stacks->frame_count < STACKS_FRAMES; i++) {
        // A return address may be that of the next function, when a call comes last in its own.
        stacks->code[stacks->frame_count] = addresses->code[i] - (i > 0);
        stacks->frames[stacks->frame_count] = (struct stack_frame){.thread = index};
        stacks->frame_count++;
    }
}

// Asks one thread until it answers, or the kernel says why not. false: it is no more. Who blocks
// the signal and runs may be just leaving another handler, or in pthread_create; who sleeps means
// it.
static bool stacks_ask(const struct thread_note *note, struct stack_thread *thread,
                       uint64_t deadline_ms, struct stack_addresses *addresses)
{
    const uint64_t own_ms = clock_now_ms() + STACKS_ANSWER_MS;
    const struct timespec pause = {.tv_nsec = 1000000};
    struct proc_signals signals;
    if (own_ms < deadline_ms)
        deadline_ms = own_ms;
    for (;;) {
        if (!proc_task_read(PROC_TASK_DIRECTORY, note->tid, thread, &signals) &&
            access(PROC_TASK_DIRECTORY, F_OK) == 0)
            return false;
        thread->how = stack_signal_ask(note->tid, thread->state, &signals, deadline_ms, addresses);
        if (thread->how != STACK_BLOCKED || thread->state != 'R' || clock_now_ms() >= deadline_ms)
            return true;
        nanosleep(&pause, NULL);
    }
}

static void stacks_add_thread(struct stacks *stacks, const struct thread_note *note,
                              uint64_t deadline_ms)
{
    const uint32_t index = stacks->thread_count;
    struct stack_addresses addresses;
    stacks->threads[index] = (struct stack_thread){.trainer = note->last};
    if (!stacks_ask(note, &stacks->threads[index], deadline_ms, &addresses))
        return;
    if (stacks->python != NULL)
        stacks_add_python(stacks, index, note->id);
    stacks_add_native(stacks, index, &addresses);
    stacks->thread_count++;
}

// Whether the file systems can be trusted to answer: a thread that hangs on one must not take the
// watch thread with it.
static bool stacks_disk_answers(const struct stacks *stacks)
{
    for (uint32_t i = 0; i < stacks->thread_count; i++) {
        if (stacks->threads[i].state == 'D')
            return false;
    }
    return true;
}

static void stacks_capture_locked(struct stacks *stacks, const struct thread_callers *callers)
{
    struct thread_note notes[LOCKSTEP_STACK_THREADS];
    const uint32_t count = threads_list(callers, notes, LOCKSTEP_STACK_THREADS);
    mutex_assert_held(&stacks_mutex);
    if (stacks->python != NULL && count > 0)
        (void)python_dump(stacks->python);
    const uint64_t deadline_ms = clock_now_ms() + STACKS_MS;
    for (uint32_t i = 0; i < count; i++)
        stacks_add_thread(stacks, &notes[i], deadline_ms);
    symbols_name(stacks->frames, stacks->code, stacks->frame_count, stacks_disk_answers(stacks));
}

void stacks_capture(struct stacks *stacks, const struct thread_callers *callers)
{
    stacks->thread_count = 0;
    stacks->frame_count = 0;
    if (getpid() != stacks->pid)
        return;
    mutex_lock(&stacks_mutex);
    stacks_capture_locked(stacks, callers);
    mutex_unlock(&stacks_mutex);
}
