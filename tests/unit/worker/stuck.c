// SPDX-License-Identifier: Apache-2.0
//
// The ways to be stuck, and the thread that is.
#include "tests/unit/worker/stuck.h"

#include "base/clock.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// A function that is to be seen keeps its frame while it calls another one: it is not copied into
// its caller, and its last call is no jump.
#define SEEN __attribute__((noinline))
#define STAY() __asm__ volatile("" ::: "memory")

void must(bool holds)
{
    if (!holds)
        abort();
}

SEEN void stuck_in_read(struct stuck *stuck)
{
    char byte;
    stuck->result = (int)syscall(SYS_read, stuck->pipe[0], &byte, 1);
    STAY();
}

SEEN void stuck_in_futex(struct stuck *stuck)
{
    stuck->result = sem_wait(&stuck->sem);
    STAY();
}

SEEN void stuck_in_spin(struct stuck *stuck)
{
    while (!atomic_load_explicit(&stuck->go_on, memory_order_relaxed))
        ;
}

SEEN void stuck_in_sleep(struct stuck *stuck)
{
    const struct timespec time = {.tv_nsec = 100000000};
    while (!atomic_load(&stuck->go_on))
        stuck->result = nanosleep(&time, NULL);
}

SEEN void stuck_without_signals(struct stuck *stuck)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    stuck_in_read(stuck);
    pthread_sigmask(SIG_UNBLOCK, &all, NULL);
}

SEEN _Noreturn static void stuck_for_good(struct stuck *stuck)
{
    stuck_in_read(stuck);
    pthread_exit(NULL);
}

SEEN void stuck_at_its_end(struct stuck *stuck)
{
    stuck_for_good(stuck);
}

SEEN void stuck_on_small_stack(struct stuck *stuck)
{
    static char memory[32768];
    const stack_t none = {.ss_flags = SS_DISABLE};
    const stack_t stack = {.ss_sp = memory, .ss_size = sizeof(memory)};
    bool used = false;
    memset(memory, 0, sizeof(memory));
    must(sigaltstack(&stack, NULL) == 0);
    stuck_in_read(stuck);
    must(sigaltstack(&none, NULL) == 0);
    for (size_t i = 0; i < sizeof(memory); i++)
        used |= memory[i] != 0;
    stuck->result = used;
}

SEEN void stuck_on_late_stack(struct stuck *stuck)
{
    static char memory[65536];
    const size_t below = 32768;
    const unsigned long frame = getauxval(AT_MINSIGSTKSZ);
    const stack_t none = {.ss_flags = SS_DISABLE};
    const stack_t stack = {.ss_sp = memory + below,
                           .ss_size = (frame != 0 ? frame : (unsigned long)MINSIGSTKSZ) + 1024};
    bool written = false;
    memset(memory, 0, sizeof(memory));
    must(sigaltstack(&stack, NULL) == 0);
    stuck_in_spin(stuck);
    must(sigaltstack(&none, NULL) == 0);
    for (size_t i = 0; i < below; i++)
        written |= memory[i] != 0;
    stuck->result = written;
}

static int sleep_half_a_second(void *argument)
{
    const struct timespec time = {.tv_nsec = 500000000};
    (void)argument;
    syscall(SYS_nanosleep, &time, NULL);
    return 0;
}

// As vfork does it: the kernel lets no signal interrupt this wait.
SEEN void stuck_in_state_d(struct stuck *stuck)
{
    static _Alignas(16) char stack[16384];
    const pid_t pid =
        clone(sleep_half_a_second, stack + sizeof(stack), CLONE_VM | CLONE_VFORK, NULL);
    must(pid > 0);
    stuck->result = waitpid(pid, NULL, (int)__WCLONE) == pid;
}

SEEN void stuck_deaf(struct stuck *stuck)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (clock_now_ms() < atomic_load(&stuck->deaf_until_ms))
        sched_yield();
    pthread_sigmask(SIG_UNBLOCK, &all, NULL);
    stuck_in_spin(stuck);
}

static void *stuck_run(void *argument)
{
    struct stuck *stuck = argument;
    pthread_setname_np(pthread_self(), "stuck");
    callers_note(stuck->callers);
    atomic_store(&stuck->tid, (uint32_t)gettid());
    stuck->how(stuck);
    return NULL;
}

void stuck_start(struct stuck *stuck, void (*how)(struct stuck *stuck), struct callers *callers)
{
    memset(stuck, 0, sizeof(*stuck));
    stuck->how = how;
    stuck->callers = callers;
    atomic_store(&stuck->deaf_until_ms, UINT64_MAX);
    must(pipe(stuck->pipe) == 0);
    must(sem_init(&stuck->sem, 0, 0) == 0);
    must(pthread_create(&stuck->id, NULL, stuck_run, stuck) == 0);
    while (atomic_load(&stuck->tid) == 0)
        sched_yield();
}

void stuck_free(struct stuck *stuck)
{
    char byte = 0;
    atomic_store(&stuck->go_on, true);
    must(write(stuck->pipe[1], &byte, 1) == 1);
    sem_post(&stuck->sem);
    pthread_join(stuck->id, NULL);
    close(stuck->pipe[0]);
    close(stuck->pipe[1]);
    sem_destroy(&stuck->sem);
}
