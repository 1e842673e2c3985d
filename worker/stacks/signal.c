// SPDX-License-Identifier: Apache-2.0
//
// One question at a time, in static memory, because the handler gets no argument except the signal,
// and the question must outlive its session. A word holds the phase of the question:
//
//     open -> walking    by the handler, which then owns the answer's addresses
//     walking -> done    by the handler; then the asker reads the addresses
//     open -> closed     by the asker, which stops waiting
//
// The other bits of the word hold the number of the question, and so does the signal. A handler
// that runs late, when its question is closed and another one is open, finds another number and
// does nothing. A handler may be held up for long in the middle, for example because its process
// was stopped. Then no thread is asked until that handler is done.

#include "worker/stacks/signal.h"

#include "base/clock.h"
#include "worker/stacks/room.h"
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

// First signal, counted from SIGRTMIN; programs usually begin with SIGRTMIN itself.
#define SIGNAL_FIRST 3
// Room for the frames of the handler, of the kernel's signal frame, and of sanitizers.
#define SIGNAL_FRAMES 8

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
    // used by the handler in the phase walking, and by the asker in all other phases
    // Address at which the thread was interrupted; 0: not known on this machine.
    uintptr_t interrupted;
    bool room; // False if the stack of the handler had no room to walk.
    int count;
    void *frames[LOCKSTEP_STACK_FRAMES + SIGNAL_FRAMES];
    // written by the asker before the question is open; constant while it is open
    bool again; // True if the thread sleeps in `call`, which the handler may restart.
    struct proc_call call;
    // asker only
    uintptr_t number;
    int signal; // 0: no signal was chosen yet.
} question;
static sem_t question_done; // Posted by the handler; a post may come late.

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
    // A signal of another sender has another word. In a forked child the sender's pid differs.
    if (info->si_code == SI_QUEUE && info->si_pid == getpid() &&
        word % QUESTION_PHASES == QUESTION_OPEN &&
        atomic_compare_exchange_strong(&question.word, &word,
                                       word - QUESTION_OPEN + QUESTION_WALKING)) {
        question.interrupted = interrupted_at(context);
        question.room = stack_room_in_handler(context, (uintptr_t)__builtin_frame_address(0));
        question.count = question.room ? backtrace(question.frames,
                                                   (int)(sizeof(question.frames) / sizeof(void *)))
                                       : 0;
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
    // The first call of backtrace loads the unwinder, which allocates and takes the loader's locks.
    (void)backtrace(&frame, 1);
}

static bool signal_is_ours(int number)
{
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
           now.sa_sigaction == stack_signal_handler;
}

// Takes a signal that has no handler. If the program installs a handler at the same time, that
// handler is put back.
static bool signal_take(int number)
{
    struct sigaction ours = {.sa_sigaction = stack_signal_handler,
                             .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
    struct sigaction before;
    // No other handler may run on top of this one, because the stack may be small.
    sigfillset(&ours.sa_mask);
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

// Waits until the handler has answered. A late post of an earlier question only causes a needless
// wake-up.
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

// Copies the answer. The first frames are those of the handler; then comes the address that was
// interrupted. If the walk does not contain that address, only the address is used.
static void question_answer(struct stack_addresses *addresses)
{
    int first = 0;
    addresses->count = 0;
    addresses->sure = LOCKSTEP_STACK_FRAMES;
    addresses->whole = false;
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
    // The thread has not even taken the signal of the last question.
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
    if (!question.room)
        return STACK_NO_ROOM;
    question_answer(addresses);
    return STACK_SIGNAL;
}
