// SPDX-License-Identifier: Apache-2.0
//
// A thread that sleeps in the kernel does not change its stack. The kernel counts how often a
// thread has left its processor. If that count, the system call and its place are the same before
// and after the walk, the thread has slept during the whole walk.
//
// The futex that a thread waits for shows which thread it waits for. A mutex of glibc with waiters
// has the value 2, and next to the value is the id of the thread that holds the mutex. A robust
// mutex with waiters has that id as its value, with a bit for the waiters. pthread_join waits for a
// word that is the joined thread's id until that thread ends. A read-write lock that a thread holds
// for writing has the value 3 where others wait, and the id of that thread further on. Who holds it
// for reading is not written anywhere. An id counts only if a thread of that id exists.

#include "worker/stacks/sleep.h"

#include "base/text.h"
#include "worker/stacks/peek.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLEEP_TRIES 5 // Tries for a thread that wakes up during the walk.
#define MUTEX_CONTENDED 2 // The value of a mutex that has waiters.

// The first words of glibc's pthread_mutex_t, on all 64-bit machines.
struct mutex_words {
    uint32_t lock;
    uint32_t count;
    uint32_t owner;
    uint32_t users;
};

#define RWLOCK_CONTENDED 3 // The value of a word of a read-write lock that has waiters.

// ---- The thread that it waits for --------------------------------------------------------------

static bool futex_waits(const struct proc_call *call)
{
    const uint64_t command = call->arguments[1] & (uint64_t)FUTEX_CMD_MASK;
    return call->number == SYS_futex &&
           (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET || command == FUTEX_LOCK_PI);
}

// Returns the id of the thread that holds the read-write lock for writing; 0: not known. glibc's
// pthread_rwlock_t has the word for which readers wait, that for which other writers wait, two
// words that are 0, and the id, on all 64-bit machines. at: one of the first two.
static uint32_t rwlock_writer(uintptr_t at)
{
    uint32_t words[5];
    if (!peek(at, words, sizeof(words)) || words[2] != 0)
        return 0;
    return words[1] == 0 && words[3] != 0 ? words[3] : words[3] == 0 ? words[4] : 0;
}

// Returns the id of the thread that a futex belongs to; 0: not known.
static uint32_t futex_owner(const struct proc_call *call, enum stack_awaits *awaits)
{
    const uint32_t expected = (uint32_t)call->arguments[2];
    struct mutex_words words;
    *awaits = AWAITS_LOCK;
    if (!peek((uintptr_t)call->arguments[0], &words, sizeof(words)))
        return 0;
    if ((call->arguments[1] & (uint64_t)FUTEX_CMD_MASK) == FUTEX_LOCK_PI)
        return words.lock & FUTEX_TID_MASK;
    if (words.lock != expected)
        return 0;
    if (expected == MUTEX_CONTENDED && words.users != 0)
        return words.owner;
    if (expected == RWLOCK_CONTENDED)
        return rwlock_writer((uintptr_t)call->arguments[0]);
    if ((expected & FUTEX_WAITERS) != 0) // A robust mutex: its value holds the owner.
        return expected & FUTEX_TID_MASK;
    *awaits = AWAITS_END;
    return expected;
}

static void sleep_owner(const struct proc_call *call, struct stack_thread *thread)
{
    struct stack_thread owner;
    struct proc_signals signals;
    enum stack_awaits awaits;
    if (!futex_waits(call))
        return;
    const uint32_t tid = futex_owner(call, &awaits);
    if (tid == 0 || (tid == thread->tid && awaits != AWAITS_LOCK) ||
        !proc_task_read(PROC_TASK_DIRECTORY, tid, &owner, &signals))
        return;
    thread->awaits = awaits;
    thread->owner = tid;
    text_copy(thread->owner_name, sizeof(thread->owner_name), owner.name);
}

// ---- Where it is -------------------------------------------------------------------------------

static bool sleeps_on(const struct proc_signals *before, const struct proc_signals *after)
{
    return before->switches == after->switches &&
           memcmp(&before->call, &after->call, sizeof(before->call)) == 0;
}

enum stack_look stack_sleep_look(uint32_t tid, bool resident, struct stack_thread *thread,
                                 struct proc_signals *signals, struct stack_addresses *addresses)
{
    struct proc_signals after;
    for (unsigned i = 0; i < SLEEP_TRIES; i++) {
        *addresses = (struct stack_addresses){.sure = LOCKSTEP_STACK_FRAMES};
        thread->awaits = AWAITS_NOTHING;
        thread->owner = 0;
        thread->owner_name[0] = '\0';
        if (!proc_task_read(PROC_TASK_DIRECTORY, tid, thread, signals) &&
            access(PROC_TASK_DIRECTORY, F_OK) == 0)
            return LOOK_GONE;
        if (signals->call.stack == 0 && thread->state == 'R')
            return LOOK_RUNS;
        if (signals->call.stack == 0)
            // The thread has just fallen asleep or woken up, or the kernel does not report its
            // stack.
            continue;
        unwind((uintptr_t)signals->call.code, (uintptr_t)signals->call.stack, resident, addresses);
        sleep_owner(&signals->call, thread);
        if (!proc_task_read(PROC_TASK_DIRECTORY, tid, thread, &after))
            return LOOK_GONE;
        if (sleeps_on(signals, &after)) {
            thread->how = addresses->whole ? STACK_ASLEEP : STACK_CUT;
            return LOOK_SLEEPS;
        }
    }
    addresses->count = 0;
    return LOOK_UNKNOWN;
}
