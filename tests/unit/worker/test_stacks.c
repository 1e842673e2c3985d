// SPDX-License-Identifier: Apache-2.0
//
// Stacks of threads that are stuck in every way in which a trainer can be, and of many that are
// not; what is done to the process for it, and what is not.

#include "base/clock.h"
#include "tests/unit/worker/stuck.h"
#include "worker/stacks/proc_task.h"
#include "worker/stacks/signal.h"
#include "worker/stacks/stacks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct stacks *stacks;
static struct callers callers;

static int open_stacks(void **state)
{
    (void)state;
    return stacks_open(&stacks);
}

static int close_stacks(void **state)
{
    (void)state;
    stacks_close(stacks);
    return 0;
}

// ---- Threads that are stuck --------------------------------------------------------------------

static bool has_symbol(const char *symbol)
{
    for (uint32_t i = 0; i < stacks->frame_count; i++) {
        if (strcmp(stacks->frames[i].symbol, symbol) == 0)
            return true;
    }
    return false;
}

// The innermost frame of the last caller that is of this program.
static const struct stack_frame *top_of_program(void)
{
    for (uint32_t i = 0; i < stacks->frame_count; i++) {
        const struct stack_frame *frame = &stacks->frames[i];
        if (frame->thread == 0 && stacks->threads[0].trainer &&
            strcmp(frame->object, "test_stacks") == 0)
            return frame;
    }
    return NULL;
}

// Captures until the thread has got where it is to be stuck, and its top frame is this function.
static void expect_top(const char *symbol)
{
    const uint64_t until_ms = clock_now_ms() + 10000;
    const struct stack_frame *top = NULL;
    while (!top || strcmp(top->symbol, symbol) != 0) {
        if (clock_now_ms() >= until_ms)
            fail_msg("the top frame is %s, not %s", top ? top->symbol : "(none)", symbol);
        stacks_capture(stacks, &callers);
        top = top_of_program();
    }
    assert_false(top->python);
    assert_true(top->offset > 0);
    assert_true(has_symbol("stuck_run"));
}

static void expect_thread(const struct stuck *stuck, enum stack_how how)
{
    assert_int_equal(stacks->thread_count, 1);
    assert_int_equal(stacks->threads[0].tid, atomic_load(&stuck->tid));
    assert_string_equal(stacks->threads[0].name, "stuck");
    assert_true(stacks->threads[0].trainer);
    assert_int_equal(stacks->threads[0].how, how);
}

static void test_read(void **state)
{
    static struct stuck stuck;
    (void)state;
    stuck_start(&stuck, stuck_in_read, &callers);
    expect_top("stuck_in_read");
    // Again, now that it is there for sure.
    while (stacks->threads[0].syscall != SYS_read)
        stacks_capture(stacks, &callers);
    expect_thread(&stuck, STACK_ASLEEP);
    assert_int_equal(stacks->threads[0].state, 'S');
    stuck_free(&stuck);
    assert_int_equal(stuck.result, 1); // And not EINTR, which no trainer of ours need expect.
}

static void test_futex(void **state)
{
    static struct stuck stuck;
    (void)state;
    stuck_start(&stuck, stuck_in_futex, &callers);
    expect_top("stuck_in_futex");
    expect_thread(&stuck, STACK_ASLEEP);
    stuck_free(&stuck);
    assert_int_equal(stuck.result, 0);
}

static void test_spin(void **state)
{
    static struct stuck stuck;
    (void)state;
    stuck_start(&stuck, stuck_in_spin, &callers);
    expect_top("stuck_in_spin");
    expect_thread(&stuck, STACK_SIGNAL);
    assert_int_equal(stacks->threads[0].syscall, -1);
    assert_string_equal(stacks->frames[0].symbol, "stuck_in_spin");
    stuck_free(&stuck);
}

#if defined(__x86_64__)

// A function without call frame information, as generated code is: it calls `how` with `stuck`.
void without_information(struct stuck *stuck, void (*how)(struct stuck *stuck));
__asm__(".text\n"
        ".type without_information, @function\n"
        "without_information:\n"
        "    push %rbx\n"
        "    call *%rsi\n"
        "    pop %rbx\n"
        "    ret\n"
        ".size without_information, .-without_information\n");

static void spins_below(struct stuck *stuck)
{
    without_information(stuck, stuck_in_spin);
    __asm__ volatile("" ::: "memory");
}

// Condition: the walk of the handler ends at a function without information. Decision: the stack
// counts as cut, and has the frames before.
static void test_cut_of_one_that_runs(void **state)
{
    static struct stuck stuck;
    const uint64_t until_ms = clock_now_ms() + 10000;
    (void)state;
    stuck_start(&stuck, spins_below, &callers);
    do
        stacks_capture(stacks, &callers);
    while (!has_symbol("without_information") && clock_now_ms() < until_ms);
    assert_false(has_symbol("stuck_run"));
    expect_thread(&stuck, STACK_CUT);
    stuck_free(&stuck);
}

#endif

static void test_sleep(void **state)
{
    static struct stuck stuck;
    (void)state;
    stuck_start(&stuck, stuck_in_sleep, &callers);
    expect_top("stuck_in_sleep");
    expect_thread(&stuck, STACK_ASLEEP);
    stuck_free(&stuck);
    assert_int_equal(stuck.result, 0);
}

// ---- Threads that sleep ------------------------------------------------------------------------

#if defined(__x86_64__) // Elsewhere a system call may be a function without a frame of its own.

#define SLEEP_MS 2000
#define SLEEP_MOST_MS 3500 // A sleep that began anew ends later.

static const struct timespec sleep_time = {.tv_sec = 2};

static struct timespec sleep_end(void)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += sleep_time.tv_sec;
    return end;
}

static bool by_sleep(void)
{
    return sleep(2) == 0;
}

static bool by_usleep(void)
{
    return usleep(SLEEP_MS * 1000 - 1) == 0;
}

static bool by_nanosleep(void)
{
    struct timespec left = sleep_time;
    return nanosleep(&left, &left) == 0;
}

static bool by_clock(void)
{
    const struct timespec end = sleep_end();
    return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == 0;
}

static bool by_poll(void)
{
    return poll(NULL, 0, SLEEP_MS) == 0;
}

static bool by_ppoll(void)
{
    return ppoll(NULL, 0, &sleep_time, NULL) == 0;
}

static bool by_select(void)
{
    struct timeval time = {.tv_sec = 2};
    return select(0, NULL, NULL, NULL, &time) == 0;
}

static bool by_pselect(void)
{
    sigset_t none;
    sigemptyset(&none);
    return pselect(0, NULL, NULL, NULL, &sleep_time, &none) == 0;
}

static bool by_epoll(void)
{
    struct epoll_event event;
    const int fd = epoll_create1(EPOLL_CLOEXEC);
    const bool whole = epoll_wait(fd, &event, 1, SLEEP_MS) == 0;
    close(fd);
    return whole;
}

static bool by_semaphore(void)
{
    const struct timespec end = sleep_end();
    sem_t sem;
    sem_init(&sem, 0, 0);
    const bool whole = sem_clockwait(&sem, CLOCK_MONOTONIC, &end) == -1 && errno == ETIMEDOUT;
    sem_destroy(&sem);
    return whole;
}

struct sleeper {
    struct stuck stuck; // First: the thread gets its address.
    bool (*sleeps)(void); // True: not ended early.
    long number; // Number of the system call.
    uint64_t took_ms;
};

static void sleeper_run(struct stuck *stuck)
{
    struct sleeper *sleeper = (struct sleeper *)stuck;
    const uint64_t begin_ms = clock_now_ms();
    stuck->result = sleeper->sleeps();
    sleeper->took_ms = clock_now_ms() - begin_ms;
}

// Starts a sleeper and waits until its thread sleeps. False: the thread has ended before that.
static bool sleeper_start(struct sleeper *sleeper)
{
    struct stack_thread thread = {.syscall = -1};
    struct proc_signals signals;
    stuck_start(&sleeper->stuck, sleeper_run, &callers);
    while (thread.syscall != sleeper->number || thread.state != 'S') {
        if (!proc_task_read(PROC_TASK_DIRECTORY, sleeper->stuck.tid, &thread, &signals))
            return false;
    }
    return true;
}

static struct sleeper sleepers[] = {
    {.sleeps = by_sleep, .number = SYS_clock_nanosleep},
    {.sleeps = by_usleep, .number = SYS_clock_nanosleep},
    {.sleeps = by_nanosleep, .number = SYS_clock_nanosleep},
    {.sleeps = by_clock, .number = SYS_clock_nanosleep},
    {.sleeps = by_poll, .number = SYS_poll},
    {.sleeps = by_ppoll, .number = SYS_ppoll},
    {.sleeps = by_select, .number = SYS_pselect6},
    {.sleeps = by_pselect, .number = SYS_pselect6},
    {.sleeps = by_epoll, .number = SYS_epoll_wait},
    {.sleeps = by_semaphore, .number = SYS_futex},
};
enum {
    SLEEPERS = sizeof(sleepers) / sizeof(sleepers[0])
};

// Captures the stacks, and checks that all threads are asleep. False: this thread was held up, so a
// sleep may have ended before the capture.
static bool sleepers_asked(uint64_t begin_ms)
{
    stacks_capture(stacks, &callers);
    if (clock_now_ms() - begin_ms >= SLEEP_MS - 100)
        return false;
    assert_int_equal(stacks->thread_count, SLEEPERS);
    for (uint32_t t = 0; t < SLEEPERS; t++)
        assert_int_equal(stacks->threads[t].how, STACK_ASLEEP);
    return true;
}

static void sleeper_judge(uint32_t i, uint32_t questions)
{
    const struct sleeper *sleeper = &sleepers[i];
    if (sleeper->stuck.result != 1 || sleeper->took_ms < SLEEP_MS - 1 ||
        sleeper->took_ms >= SLEEP_MOST_MS)
        fail_msg("sleeper %u, %u questions: result %d after %u ms", i, questions,
                 sleeper->stuck.result, (unsigned)sleeper->took_ms);
}

// Checks that all sleepers sleep for their full time although stacks are captured meanwhile. False:
// the captures did not happen in time.
static bool sleepers_go_on(uint32_t questions)
{
    const uint64_t begin_ms = clock_now_ms();
    uint32_t started = 0;
    bool in_time = true;
    for (; in_time && started < SLEEPERS; started++)
        in_time = sleeper_start(&sleepers[started]);
    for (uint32_t i = 0; in_time && i < questions; i++)
        in_time = sleepers_asked(begin_ms);
    for (uint32_t i = 0; i < started; i++) {
        stuck_free(&sleepers[i].stuck);
        if (in_time)
            sleeper_judge(i, questions);
    }
    return in_time;
}

// A sleep has its time, no less and no more, however often somebody asks meanwhile.
static void test_sleeps_go_on(void **state)
{
    (void)state;
    for (uint32_t questions = 1; questions <= 3; questions += 2) {
        uint32_t tries = 1;
        while (!sleepers_go_on(questions))
            assert_true(tries++ < 20);
    }
}

#endif

static void test_call_that_never_returns(void **state)
{
    static struct stuck stuck;
    (void)state;
    stuck_start(&stuck, stuck_at_its_end, &callers);
    expect_top("stuck_in_read");
    assert_true(has_symbol("stuck_at_its_end"));
    stuck_free(&stuck);
}

static void test_alternate_stack(void **state)
{
    static struct stuck stuck;
    (void)state;
    stuck_start(&stuck, stuck_on_small_stack, &callers);
    expect_top("stuck_in_read");
    assert_true(has_symbol("stuck_on_small_stack"));
    stuck_free(&stuck);
    assert_false(stuck.result);
}

// Condition: the thread has set its alternate stack after its last call of the library. Decision:
// the handler does not walk there.
static void test_alternate_stack_of_later(void **state)
{
    static struct stuck stuck;
    (void)state;
    stuck_start(&stuck, stuck_on_late_stack, &callers);
    stacks->threads[0].how = STACK_SIGNAL;
    for (int i = 0; i < 1000 && stacks->threads[0].how != STACK_NO_ROOM; i++)
        stacks_capture(stacks, &callers);
    expect_thread(&stuck, STACK_NO_ROOM);
    stuck_free(&stuck);
    assert_false(stuck.result);
}

static void test_blocked_signal(void **state)
{
    static struct stuck stuck;
    (void)state;
    stuck_start(&stuck, stuck_without_signals, &callers);
    expect_top("stuck_in_read");
    while (stacks->threads[0].syscall != SYS_read)
        stacks_capture(stacks, &callers);
    expect_thread(&stuck, STACK_ASLEEP);
    assert_true(has_symbol("stuck_without_signals"));
    stuck_free(&stuck);
    assert_int_equal(stuck.result, 1);
}

// The kernel says that it blocks the signal, and nobody waits for its answer.
static void test_blocked_signal_of_one_that_runs(void **state)
{
    static struct stuck stuck;
    (void)state;
    stuck_start(&stuck, stuck_deaf, &callers);
    do
        stacks_capture(stacks, &callers);
    while (stacks->threads[0].how != STACK_BLOCKED);
    expect_thread(&stuck, STACK_BLOCKED);
    assert_int_equal(stacks->frame_count, 0);
    atomic_store(&stuck.deaf_until_ms, 0);
    expect_top("stuck_in_spin");
    stuck_free(&stuck);
}

// ---- Threads that do not answer ----------------------------------------------------------------

// A thread that sleeps on a disk has frames, too, with names.
static void test_state_d(void **state)
{
    static struct stuck sleeper, reader;
    uint32_t of_reader = 0, of_reader_named = 0;
    (void)state;
    stuck_start(&sleeper, stuck_in_read, &callers);
    expect_top("stuck_in_read");
    stuck_start(&reader, stuck_in_state_d, &callers);
    do
        stacks_capture(stacks, &callers);
    while (stacks->threads[0].state != 'D');
    assert_int_equal(stacks->threads[0].syscall, SYS_clone);
    assert_int_equal(stacks->threads[0].how, STACK_ASLEEP);
    assert_int_equal(stacks->threads[1].how, STACK_ASLEEP);
    for (uint32_t i = 0; i < stacks->frame_count; i++) {
        of_reader += stacks->frames[i].thread == 0;
        assert_true(stacks->frames[i].object[0] != '\0' && stacks->frames[i].offset > 0);
        of_reader_named += stacks->frames[i].thread == 0 &&
                           strcmp(stacks->frames[i].symbol, "stuck_in_state_d") == 0;
    }
    assert_int_equal(of_reader_named, 1);
    assert_true(of_reader > 3 && stacks->frame_count > of_reader + 3);
    stuck_free(&reader);
    assert_int_equal(reader.result, 1);
    stuck_free(&sleeper);
}

static enum stack_how ask(const struct stuck *stuck, const struct proc_signals *signals,
                          unsigned within_ms, struct stack_addresses *addresses)
{
    return stack_signal_ask(stuck->tid, signals, clock_now_ms() + within_ms, addresses);
}

// A signal that is taken late answers no question: not its own, which is closed, and not that of
// another thread, which is open. The asker does not know here that these threads are deaf.
static void test_late_answer(void **state)
{
    static struct stuck stuck[2];
    struct stack_addresses addresses;
    struct stack_thread thread;
    struct proc_signals signals;
    const struct proc_signals none = {0};
    uint64_t began_ms;
    (void)state;
    for (int i = 0; i < 2; i++) {
        stuck_start(&stuck[i], stuck_deaf, &callers);
        do
            assert_true(proc_task_read(PROC_TASK_DIRECTORY, stuck[i].tid, &thread, &signals));
        while ((signals.blocked & (UINT64_C(1) << (SIGRTMIN + 3 - 1))) == 0);
        began_ms = clock_now_ms();
        addresses.count = 0;
        assert_int_equal(ask(&stuck[i], &none, 20, &addresses), STACK_SILENT);
        assert_true(clock_now_ms() >= began_ms + 20);
        assert_int_equal(addresses.count, 0);
    }
    // A thread with a signal that it has not taken is not sent another one.
    assert_true(proc_task_read(PROC_TASK_DIRECTORY, stuck[0].tid, &thread, &signals));
    assert_true(signals.pending != 0);
    signals.blocked = 0;
    began_ms = clock_now_ms();
    assert_int_equal(ask(&stuck[0], &signals, 5000, &addresses), STACK_SILENT);
    assert_true(clock_now_ms() < began_ms + 5000);
    // One takes its signal while the other one is asked.
    atomic_store(&stuck[1].deaf_until_ms, clock_now_ms() + 50);
    assert_int_equal(ask(&stuck[0], &none, 200, &addresses), STACK_SILENT);
    assert_int_equal(ask(&stuck[1], &none, 5000, &addresses), STACK_SIGNAL);
    assert_true(addresses.count > 2);
    atomic_store(&stuck[0].deaf_until_ms, 0);
    assert_int_equal(ask(&stuck[0], &none, 5000, &addresses), STACK_SIGNAL);
    stuck_free(&stuck[0]);
    stuck_free(&stuck[1]);
    assert_int_equal(ask(&stuck[0], &none, 5000, &addresses), STACK_SILENT); // It is no more.
}

// ---- What is done to the process ---------------------------------------------------------------

static atomic_int foreign_signals;

static void foreign_handler(int number)
{
    (void)number;
    foreign_signals++;
}

// Signals with a handler.
static uint64_t handled(void)
{
    uint64_t set = 0;
    for (int number = 1; number <= SIGRTMAX; number++) {
        struct sigaction now;
        if (sigaction(number, NULL, &now) == 0 && now.sa_handler != SIG_DFL &&
            now.sa_handler != SIG_IGN)
            set |= UINT64_C(1) << (number - 1);
    }
    return set;
}

// Signals that have a handler are left alone, whenever they got it; without any left the kernel is
// asked only. In a child, for its handlers.
static int child_of_signals(void)
{
    const uint64_t before = handled();
    static struct stuck stuck;
    struct stacks *opened;
    if (stacks_open(&opened) != 0 || handled() != before)
        return 1; // Opening has installed something.
    stuck_start(&stuck, stuck_in_read, &callers);
    struct stack_thread thread = {0};
    struct proc_signals signals;
    do // A capture of a thread that still runs would install a handler.
        (void)proc_task_read(PROC_TASK_DIRECTORY, stuck.tid, &thread, &signals);
    while (thread.syscall != SYS_read);
    stacks_capture(opened, &callers);
    if (handled() != before)
        return 6; // A thread that sleeps needs none.
    stuck_free(&stuck);
    stuck_start(&stuck, stuck_in_spin, &callers);
    do
        stacks_capture(opened, &callers);
    while (opened->threads[0].how != STACK_SIGNAL);
    const uint64_t first = handled() ^ before;
    if (first != UINT64_C(1) << (SIGRTMIN + 4 - 1))
        return 2; // SIGRTMIN + 3 was taken, so it is the next one, and no other.
    if (raise(SIGRTMIN + 4) != 0 || raise(SIGRTMIN + 3) != 0 || foreign_signals != 1)
        return 3; // A signal that nobody asked for does nothing.
    signal(SIGRTMIN + 4, foreign_handler);
    stacks_capture(opened, &callers);
    if (opened->threads[0].how != STACK_SIGNAL || foreign_signals != 1 ||
        (handled() ^ before ^ first) != UINT64_C(1) << (SIGRTMIN + 5 - 1))
        return 4; // The program has taken it since.
    for (int number = SIGRTMIN + 3; number <= SIGRTMAX; number++)
        signal(number, foreign_handler);
    stacks_capture(opened, &callers);
    if (opened->threads[0].how != STACK_TAKEN || opened->frame_count != 0 || foreign_signals != 1)
        return 5;
    return 0;
}

static int status_of_child(int (*run)(void))
{
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(run());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

// Runs first: nothing is installed yet, and a child inherits what is.
static void test_signals_of_the_program(void **state)
{
    (void)state;
    assert_true(signal(SIGRTMIN + 3, foreign_handler) != SIG_ERR);
    assert_int_equal(status_of_child(child_of_signals), 0);
    assert_true(signal(SIGRTMIN + 3, SIG_DFL) != SIG_ERR);
}

static int child_of_fork(void)
{
    callers_note(&callers);
    stacks_capture(stacks, &callers);
    return stacks->thread_count == 0 && stacks->frame_count == 0 ? 0 : 1;
}

// Captures until the spinning thread has named frames; the status of the process says whether.
static void *goes_on_alone(void *argument)
{
    static struct stuck stuck;
    const uint64_t until_ms = clock_now_ms() + 5000;
    bool spins = false, reads = false;
    (void)argument;
    stuck_start(&stuck, stuck_in_spin, &callers);
    while (!spins && clock_now_ms() < until_ms) {
        stacks_capture(stacks, &callers);
        spins = has_symbol("stuck_in_spin") && has_symbol("stuck_run");
    }
    stuck_free(&stuck);
    stuck_start(&stuck, stuck_in_read, &callers);
    while (!reads && clock_now_ms() < until_ms) {
        stacks_capture(stacks, &callers);
        reads = stacks->threads[0].how == STACK_ASLEEP && has_symbol("stuck_in_read");
    }
    _exit(spins && reads ? 0 : 1);
}

static int child_without_main_thread(void)
{
    pthread_t id;
    if (stacks_open(&stacks) != 0 || pthread_create(&id, NULL, goes_on_alone, NULL) != 0)
        return 2;
    pthread_exit(NULL);
}

// Condition: the main thread has ended, and training goes on in another one. Decision: stacks are
// as ever.
static void test_main_thread_has_ended(void **state)
{
    (void)state;
    assert_int_equal(status_of_child(child_without_main_thread), 0);
}

static void test_several_threads(void **state)
{
    static struct stuck stuck[3];
    (void)state;
    for (int i = 0; i < 3; i++)
        stuck_start(&stuck[i], i < 2 ? stuck_in_futex : stuck_in_spin, &callers);
    expect_top("stuck_in_spin");
    assert_int_equal(stacks->thread_count, 3);
    assert_int_equal(stacks->threads[0].tid, stuck[2].tid);
    assert_true(stacks->threads[0].trainer);
    assert_false(stacks->threads[1].trainer || stacks->threads[2].trainer);
    for (uint32_t i = 1; i < stacks->frame_count; i++) // Thread after thread.
        assert_in_range(stacks->frames[i].thread, stacks->frames[i - 1].thread, 2);
    assert_int_equal(stacks->frames[stacks->frame_count - 1].thread, 2);
    for (int i = 0; i < 3; i++)
        stuck_free(&stuck[i]);
}

static void test_forked_child(void **state)
{
    static struct stuck stuck;
    (void)state;
    stuck_start(&stuck, stuck_in_read, &callers);
    expect_top("stuck_in_read");
    assert_int_equal(status_of_child(child_of_fork), 0);
    expect_top("stuck_in_read");
    stuck_free(&stuck);
}

// ---- Many --------------------------------------------------------------------------------------

struct load {
    atomic_bool end;
    _Atomic(uint64_t) rounds;
};

__attribute__((noinline)) static int load_deeply(unsigned depth, struct load *load)
{
    char text[64];
    if (depth > 0)
        return load_deeply(depth - 1, load) + 1;
    load->rounds++;
    return snprintf(text, sizeof(text), "%p %f", (void *)load, 1.5);
}

// Memory, formatted output, deep stacks, system calls, locks; and errno has to survive it all.
static void *load_works(void *argument)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    struct load *load = argument;
    callers_note(&callers);
    for (unsigned i = 0; !atomic_load(&load->end); i++) {
        char *memory = malloc(1 + i % 8192);
        memset(memory, (int)i, 1 + i % 8192);
        errno = 4711;
        (void)load_deeply(i % 64, load);
        must(errno == 4711);
        pthread_mutex_lock(&mutex);
        free(memory);
        pthread_mutex_unlock(&mutex);
        must(read(-1, NULL, 0) < 0 && errno == EBADF);
    }
    return NULL;
}

static void *load_ends(void *argument)
{
    (void)argument;
    callers_note(&callers);
    return NULL;
}

// Threads come and go, under the same pthread_t and in the same place; so do libraries.
static void *load_starts(void *argument)
{
    struct load *load = argument;
    while (!atomic_load(&load->end)) {
        pthread_t id;
        void *library = dlopen("libBrokenLocale.so.1", RTLD_NOW);
        if (library)
            dlclose(library);
        if (pthread_create(&id, NULL, load_ends, NULL) == 0)
            pthread_join(id, NULL);
        load->rounds++;
    }
    return NULL;
}

static void test_many_captures(void **state)
{
    const char *captures = getenv("LOCKSTEP_TEST_CAPTURES");
    const int count = captures ? atoi(captures) : 100;
    struct thread_note notes[LOCKSTEP_STACK_THREADS];
    struct load load = {0};
    pthread_t threads[4];
    uint64_t answered = 0;
    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, i < 3 ? load_works : load_starts, &load),
                         0);
    while (callers_list(&callers, notes, LOCKSTEP_STACK_THREADS) < 3) // They have begun.
        sched_yield();
    for (int i = 0; i < count; i++) {
        stacks_capture(stacks, i % 2 == 0 ? &callers : NULL);
        for (uint32_t t = 0; t < stacks->thread_count; t++)
            answered +=
                stacks->threads[t].how == STACK_SIGNAL || stacks->threads[t].how == STACK_ASLEEP;
    }
    const uint64_t rounds = load.rounds;
    while (load.rounds == rounds) // They still run.
        sched_yield();
    atomic_store(&load.end, true);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_true(answered >= (uint64_t)count);
}

static void test_not_under_this_sanitizer(void **state)
{
    (void)state;
    print_message("ThreadSanitizer keeps signals back until a thread calls it: a thread that is "
                  "stuck never answers\n");
    skip();
}

int main(void)
{
#define WITH_STACKS(test) cmocka_unit_test_setup_teardown(test, open_stacks, close_stacks)
    const struct CMUnitTest none[] = {cmocka_unit_test(test_not_under_this_sanitizer)};
    const struct CMUnitTest captures[] = {
        cmocka_unit_test(test_signals_of_the_program),
        WITH_STACKS(test_read),
        WITH_STACKS(test_futex),
        WITH_STACKS(test_spin),
        WITH_STACKS(test_sleep),
#if defined(__x86_64__)
        WITH_STACKS(test_cut_of_one_that_runs),
        WITH_STACKS(test_sleeps_go_on),
#endif
        WITH_STACKS(test_call_that_never_returns),
        WITH_STACKS(test_alternate_stack),
        WITH_STACKS(test_alternate_stack_of_later),
        WITH_STACKS(test_blocked_signal),
        WITH_STACKS(test_blocked_signal_of_one_that_runs),
        WITH_STACKS(test_state_d),
        WITH_STACKS(test_late_answer),
        WITH_STACKS(test_main_thread_has_ended),
        WITH_STACKS(test_several_threads),
        WITH_STACKS(test_forked_child),
        WITH_STACKS(test_many_captures),
    };
    // The functions that AddressSanitizer puts before those of the C library cut a walk off.
    const struct CMUnitTest few[] = {
        cmocka_unit_test(test_signals_of_the_program),
        WITH_STACKS(test_spin),
        WITH_STACKS(test_late_answer),
        WITH_STACKS(test_many_captures),
    };
    const char *sanitizer = getenv("LOCKSTEP_TEST_SANITIZER");
    if (sanitizer && strstr(sanitizer, "address"))
        return cmocka_run_group_tests(few, NULL, NULL);
    if (sanitizer && strcmp(sanitizer, "thread") == 0)
        return cmocka_run_group_tests(none, NULL, NULL);
    return cmocka_run_group_tests(captures, NULL, NULL);
}
