// SPDX-License-Identifier: Apache-2.0
//
// A table of places in static memory. A thread takes a place at its first call, and a destructor of
// thread-specific data gives the place back when the thread ends. All fields are atomic and are
// read one by one. If a place changes its thread during a read, the reader may get fields of both
// threads. Both threads have called the library, and one of them has ended.

#include "worker/support/callers.h"

#include "protos/limits.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

struct thread_place {
    // atomic
    _Atomic(uint32_t) tid; // 0: the place is free.
    _Atomic(pthread_t) id;
    _Atomic(uint64_t) number; // The thread's number, which is unique in the process.
    _Atomic(const struct callers *) callers; // The session that the thread called last.
    _Atomic(uintptr_t) stack; // As in struct thread_note.
    _Atomic(size_t) alternate; // As in struct thread_note.
    _Atomic(bool) helper; // True for a thread of the backend for torch.distributed.
};

_Atomic(uint32_t) callers_ended;

static struct thread_place places[LOCKSTEP_STACK_THREADS];
static _Atomic(uint64_t) callers_begun; // Number of thread numbers given out.
static struct thread_place no_place; // Stands for all threads for which no place was free.
static _Thread_local struct thread_place *here;

static pthread_once_t callers_once = PTHREAD_ONCE_INIT;
static pthread_key_t callers_key; // set once, then constant
static bool callers_keyed;

static void callers_leave(void *argument)
{
    struct thread_place *place = argument;
    here = NULL;
    atomic_fetch_add_explicit(&callers_ended, 1, memory_order_relaxed);
    atomic_store_explicit(&place->callers, NULL, memory_order_relaxed);
    atomic_store_explicit(&place->tid, 0, memory_order_release);
}

static void callers_begin(void)
{
    callers_keyed = pthread_key_create(&callers_key, callers_leave) == 0;
}

// Notes the calling thread's stack and its alternate signal stack.
static void callers_enter_stack(struct thread_place *place)
{
    stack_t alternate;
    const bool has = sigaltstack(NULL, &alternate) == 0 && (alternate.ss_flags & SS_DISABLE) == 0;
    atomic_store_explicit(&place->stack, (uintptr_t)__builtin_frame_address(0),
                          memory_order_relaxed);
    atomic_store_explicit(&place->alternate, has ? alternate.ss_size : 0, memory_order_relaxed);
}

// The backend for torch.distributed names its threads so. What they do says nothing about the
// trainer. A prefix would not do: the main thread has the name of the program.
static bool callers_is_helper(void)
{
    char name[16] = "";
    return prctl(PR_GET_NAME, name) == 0 && strcmp(name, "lockstep-c10d") == 0;
}

// Without the destructor a place would never be given back, so then no place is taken.
static struct thread_place *callers_enter(void)
{
    pthread_once(&callers_once, callers_begin);
    const uint32_t tid = (uint32_t)gettid();
    for (size_t i = 0; callers_keyed && i < LOCKSTEP_STACK_THREADS; i++) {
        struct thread_place *place = &places[i];
        uint32_t nobody = 0;
        if (!atomic_compare_exchange_strong_explicit(&place->tid, &nobody, tid,
                                                     memory_order_acq_rel, memory_order_relaxed))
            continue;
        atomic_store_explicit(&place->id, pthread_self(), memory_order_relaxed);
        atomic_store_explicit(&place->number, 1 + atomic_fetch_add(&callers_begun, 1),
                              memory_order_relaxed);
        callers_enter_stack(place);
        atomic_store_explicit(&place->helper, callers_is_helper(), memory_order_relaxed);
        if (pthread_setspecific(callers_key, place) == 0)
            return place;
        atomic_store_explicit(&place->tid, 0, memory_order_release);
        break;
    }
    return &no_place;
}

// The function reads the count of ended threads before it writes the thread. If the thread has
// ended before a later call, the stored count is out of date, so a later thread with the same
// thread pointer is noted again.
void callers_note_change(struct callers *callers)
{
    const uint32_t ended = atomic_load_explicit(&callers_ended, memory_order_acquire);
    if (!here)
        here = callers_enter();
    atomic_store_explicit(&here->callers, callers, memory_order_relaxed);
    if (!atomic_load_explicit(&here->helper, memory_order_relaxed))
        atomic_store_explicit(&callers->last,
                              atomic_load_explicit(&here->number, memory_order_relaxed),
                              memory_order_relaxed);
    atomic_store_explicit(&callers->thread, thread_self(), memory_order_release);
    atomic_store_explicit(&callers->ended, ended, memory_order_release);
}

uint32_t callers_list(const struct callers *callers, struct thread_note *notes, uint32_t most)
{
    const uint64_t last = callers ? atomic_load_explicit(&callers->last, memory_order_relaxed) : 0;
    uint32_t count = 0;
    for (size_t i = 0; i < LOCKSTEP_STACK_THREADS && count < most; i++) {
        struct thread_place *place = &places[i];
        const struct thread_note note = {
            .tid = atomic_load_explicit(&place->tid, memory_order_acquire),
            .id = atomic_load_explicit(&place->id, memory_order_relaxed),
            .last = last != 0 && atomic_load_explicit(&place->number, memory_order_relaxed) == last,
            .stack = atomic_load_explicit(&place->stack, memory_order_relaxed),
            .alternate = atomic_load_explicit(&place->alternate, memory_order_relaxed),
        };
        if (note.tid == 0 ||
            (callers && !note.last &&
             atomic_load_explicit(&place->callers, memory_order_relaxed) != callers))
            continue;
        notes[count++] = note;
        if (note.last) {
            notes[count - 1] = notes[0];
            notes[0] = note;
        }
    }
    return count;
}
