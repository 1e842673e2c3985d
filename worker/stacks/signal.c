// SPDX-License-Identifier: Apache-2.0
//
// One question at a time, in static memory: the handler has nowhere to take an argument from but
// the signal, and the question must outlive its session. A word says how far the question is:
//
//     open -> walking    the handler, which then owns the answer's addresses
//     walking -> done    the handler; the asker reads them
//     open -> closed     the asker, who waits no longer
//
// The word has the number of the question in its other bits, and so has the signal. A handler that
// runs late, when its question is closed and another one open, finds another number and does
// nothing. A handler that is interrupted for long in the middle (its process was stopped, say)
// keeps the answer to itself: nobody is asked until it is done.

#include "worker/stacks/signal.h"

#include "base/clock.h"
#include "worker/stacks/sleep_again.h"

#include <errno.h>
#include <execinfo.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define SIGNAL_FIRST 3 // After SIGRTMIN: glibc keeps two below it, and people begin with it.
#define SIGNAL_FRAMES 8 // Of the handler, the frame that the kernel makes, and sanitizers.

enum question_phase {
    QUESTION_CLOSED = 0,
    QUESTION_OPEN = 1,
    QUESTION_WALKING = 2,
    QUESTION_DONE = 3,
};
#define QUESTION_PHASES 4u

static struct {
    // atomic
    _Atomic(uintptr_t) word; // Number * QUESTION_PHASES + phase.
    // handler only while walking, asker only in all other phases
    uintptr_t interrupted; // Where the thread was; 0: not known on this machine.
    int count;
    void *frames[LOCKSTEP_STACK_FRAMES + SIGNAL_FRAMES];
    // asker only, before the question is open; then nobody writes it
    bool again; // True if the thread sleeps in `call`, which may be made anew.
    struct proc_call call;
    // asker only
    uintptr_t number;
    int signal; // 0: none yet.
} question;
static sem_t question_done; // Posted by the handler; a post may be late.

static uintptr_t question_word(enum question_phase phase)
{
    return question.number * QUESTION_PHASES + phase;
}

// ---- The thread that is asked ------------------------------------------------------------------

static uintptr_t interrupted_at(const void *context)
{
    const ucontext_t *user = context;
#if defined(__x86_64__)
    return (uintptr_t)user->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (uintptr_t)user->uc_mcontext.pc;
#else
    (void)user;
    return 0;
#endif
}

static void stack_signal_handler(int number, siginfo_t *info, void *context)
{
    const int saved = errno;
    uintptr_t word = (uintptr_t)info->si_value.sival_ptr;
    (void)number;
    // Other senders have other words; a forked child has another pid than the one that asked.
    if (info->si_code == SI_QUEUE && info->si_pid == getpid() &&
        word % QUESTION_PHASES == QUESTION_OPEN &&
        atomic_compare_exchange_strong(&question.word, &word,
                                       word - QUESTION_OPEN + QUESTION_WALKING)) {
        question.interrupted = interrupted_at(context);
        question.count =
            backtrace(question.frames, (int)(sizeof(question.frames) / sizeof(void *)));
        if (question.again)
            sleep_again(context, &question.call);
        atomic_store(&question.word, word - QUESTION_OPEN + QUESTION_DONE);
        sem_post(&question_done);
    }
    errno = saved;
}

// ---- The asker ---------------------------------------------------------------------------------

void stack_signal_prepare(void)
{
    void *frame;
    // The first call loads the unwinder, which allocates and takes the loader's locks.
    (void)backtrace(&frame, 1);
}

static bool signal_is_ours(int number)
{
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
           now.sa_sigaction == stack_signal_handler;
}

// Takes a signal that has no handler. If a handler came in between, it is put back.
static bool signal_take(int number)
{
    struct sigaction ours = {.sa_sigaction = stack_signal_handler,
                             .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
    struct sigaction before;
    sigfillset(&ours.sa_mask); // No other handler on top of this one: the stack may be small.
    if (sigaction(number, NULL, &before) != 0 || before.sa_handler != SIG_DFL)
        return false;
    if (sigaction(number, &ours, &before) != 0)
        return false;
    if (before.sa_handler == SIG_DFL)
        return true;
    (void)sigaction(number, &before, NULL);
    return false;
}

static bool signal_find(void)
{
    if (question.signal != 0 && signal_is_ours(question.signal))
        return true;
    if (question.signal == 0)
        sem_init(&question_done, 0, 0);
    for (int number = SIGRTMIN + SIGNAL_FIRST; number <= SIGRTMAX; number++) {
        if (signal_take(number)) {
            question.signal = number;
            return true;
        }
    }
    return false;
}

static bool signal_in(uint64_t set, int number)
{
    return (set >> (number - 1) & 1) != 0;
}

static bool signal_send(uint32_t tid)
{
    siginfo_t info = {.si_signo = question.signal, .si_code = SI_QUEUE};
    info.si_pid = getpid();
    info.si_uid = getuid();
    info.si_value.sival_ptr = (void *)question_word(QUESTION_OPEN);
    return syscall(SYS_rt_tgsigqueueinfo, getpid(), (pid_t)tid, question.signal, &info) == 0;
}

// Until the handler has answered. Posts of earlier questions wake it up for nothing.
static bool question_wait(uint64_t deadline_ms)
{
    const struct timespec until = {.tv_sec = (time_t)(deadline_ms / 1000),
                                   .tv_nsec = (long)(deadline_ms % 1000) * 1000000};
    while (atomic_load(&question.word) != question_word(QUESTION_DONE)) {
        if (sem_clockwait(&question_done, CLOCK_MONOTONIC, &until) != 0 && errno != EINTR)
            return atomic_load(&question.word) == question_word(QUESTION_DONE);
    }
    return true;
}

// Frames of the handler come first, then the place that was interrupted. A walk that missed it says
// nothing about the thread.
static void question_answer(struct stack_addresses *addresses)
{
    int first = 0;
    addresses->count = 0;
    addresses->sure = LOCKSTEP_STACK_FRAMES;
    addresses->whole = true;
    while (question.interrupted != 0 && first < question.count &&
           (uintptr_t)question.frames[first] != question.interrupted)
        first++;
    if (question.interrupted != 0 && first == question.count)
        addresses->code[addresses->count++] = question.interrupted;
    for (int i = first; i < question.count && addresses->count < LOCKSTEP_STACK_FRAMES; i++)
        addresses->code[addresses->count++] = (uintptr_t)question.frames[i];
}

enum stack_how stack_signal_ask(uint32_t tid, const struct proc_signals *signals,
                                uint64_t deadline_ms, struct stack_addresses *addresses)
{
    const uint64_t now_ms = clock_now_ms();
    if (atomic_load(&question.word) == question_word(QUESTION_WALKING))
        return STACK_SILENT;
    if (!signal_find())
        return STACK_TAKEN;
    if (signal_in(signals->blocked, question.signal))
        return STACK_BLOCKED;
    // It has not even taken the last one.
    if (signal_in(signals->pending, question.signal) || now_ms >= deadline_ms)
        return STACK_SILENT;
    question.number++;
    question.again = signals->call.stack != 0;
    question.call = signals->call;
    atomic_store(&question.word, question_word(QUESTION_OPEN));
    bool answered = signal_send(tid) && question_wait(deadline_ms);
    if (!answered) {
        uintptr_t open = question_word(QUESTION_OPEN);
        if (atomic_compare_exchange_strong(&question.word, &open, question_word(QUESTION_CLOSED)))
            return STACK_SILENT;
        answered = question_wait(deadline_ms + (deadline_ms - now_ms));
    }
    if (!answered)
        return STACK_SILENT;
    question_answer(addresses);
    return STACK_SIGNAL;
}
