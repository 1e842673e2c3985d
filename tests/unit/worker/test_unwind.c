// SPDX-License-Identifier: Apache-2.0
//
// Stacks of threads that sleep, read without disturbing them, against what a signal says of the
// same threads; whom a thread waits for; threads that have not called the library; and threads that
// run where a signal has no room.

#include "base/clock.h"
#include "tests/support/choice.h"
#include "tests/unit/worker/stuck.h"
#include "worker/stacks/cfi.h"
#include "worker/stacks/peek.h"
#include "worker/stacks/proc_task.h"
#include "worker/stacks/room.h"
#include "worker/stacks/signal.h"
#include "worker/stacks/sleep.h"
#include "worker/stacks/sleep_again.h"
#include "worker/stacks/stacks.h"
#include "worker/stacks/symbols.h"
#include "worker/stacks/unwind.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <alloca.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SEEN __attribute__((noinline))
#define STAY() __asm__ volatile("" ::: "memory")

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

// ---- Shapes of frames --------------------------------------------------------------------------

static size_t some_bytes = 100;
static volatile size_t some = 100;

// Needs a frame pointer: how much room it takes is known at run time only.
SEEN static void frame_of_variable_size(struct stuck *stuck)
{
    char *bytes = alloca(some);
    memset(bytes, 1, some);
    stuck_in_read(stuck);
    stuck->result += bytes[some - 1] - 1;
    STAY();
}

SEEN static void two_frames_of_variable_size(struct stuck *stuck)
{
    char *bytes = alloca(some * 3);
    memset(bytes, 1, some * 3);
    frame_of_variable_size(stuck);
    stuck->result += bytes[some - 1] - 1;
    STAY();
}

// Old return addresses lie in the frame, of a deeper call that was.
SEEN static void leaves_return_addresses(unsigned depth)
{
    char bytes[64];
    memset(bytes, (int)depth, sizeof(bytes));
    if (depth > 0)
        leaves_return_addresses(depth - 1);
    __asm__ volatile("" ::"r"(bytes) : "memory");
}

SEEN static void frame_with_old_addresses(struct stuck *stuck)
{
    char bytes[4096];
    char *more = alloca(some);
    more[0] = 1;
    __asm__ volatile("" ::"r"(bytes) : "memory");
    stuck_in_read(stuck);
    stuck->result += more[0] - 1;
    STAY();
}

SEEN static void after_a_deep_call(struct stuck *stuck)
{
    leaves_return_addresses(30);
    frame_with_old_addresses(stuck);
    STAY();
}

SEEN static void frame_that_is_aligned(struct stuck *stuck)
{
    _Alignas(64) volatile char bytes[128];
    bytes[some % 128] = 1;
    stuck_in_read(stuck);
    stuck->result += bytes[some % 128] - 1;
    STAY();
}

static void (*volatile by_pointer)(struct stuck *stuck) = frame_of_variable_size;

SEEN static void frame_called_by_a_pointer(struct stuck *stuck)
{
    by_pointer(stuck);
    STAY();
}

static struct stuck *in_handler;

static void handles(int number)
{
    (void)number;
    frame_of_variable_size(in_handler);
    STAY();
}

SEEN static void frame_in_a_handler(struct stuck *stuck)
{
    in_handler = stuck;
    must(signal(SIGUSR1, handles) != SIG_ERR);
    must(pthread_kill(pthread_self(), SIGUSR1) == 0);
    STAY();
}

static void sleeps_now(struct stuck *stuck, struct stack_thread *thread,
                       struct proc_signals *signals, struct stack_addresses *addresses)
{
    const uint64_t until_ms = clock_now_ms() + 10000;
    do
        assert_true(clock_now_ms() < until_ms);
    while (stack_sleep_look(stuck->tid, false, thread, signals, addresses) != LOOK_SLEEPS ||
           thread->state != 'S' || signals->call.number == UINT64_MAX);
}

#if defined(__x86_64__)

// Needs a frame pointer, and is reached by a jump only.
void frame_after_a_jump(struct stuck *stuck);
SEEN void frame_after_a_jump(struct stuck *stuck)
{
    char *bytes = alloca(some * 2);
    memset(bytes, 1, some * 2);
    stuck_in_read(stuck);
    stuck->result += bytes[some - 1] - 1;
    STAY();
}

// As compilers make of a function whose last call is the one.
void jumps(struct stuck *stuck);
__asm__(".type jumps, @function\n"
        "jumps:\n"
        ".cfi_startproc\n"
        "    jmp frame_after_a_jump\n"
        ".cfi_endproc\n"
        ".size jumps, . - jumps\n");

SEEN static void caller_of_one_that_jumps(struct stuck *stuck)
{
    jumps(stuck);
    STAY();
}

static void expect_as_by_signal(void (*how)(struct stuck *stuck), bool sure)
{
    static struct stuck stuck;
    struct stack_thread thread;
    struct proc_signals signals;
    struct stack_addresses quiet, loud;
    stuck_start(&stuck, how, &callers);
    sleeps_now(&stuck, &thread, &signals, &quiet);
    assert_int_equal(stack_signal_ask(stuck.tid, &signals, clock_now_ms() + 10000, &loud),
                     STACK_SIGNAL);
    assert_true(quiet.whole);
    assert_int_equal(quiet.sure >= quiet.count, sure);
    assert_int_equal(thread.how, STACK_ASLEEP);
    assert_true(quiet.count >= 5 && quiet.count <= loud.count);
    // A call that the kernel makes again is interrupted before its instruction, of two bytes.
    assert_in_range(quiet.code[0] - loud.code[0], 0, 2);
    for (uint32_t i = 1; i < quiet.count; i++)
        assert_int_equal(quiet.code[i], loud.code[i]);
    stuck_free(&stuck);
    assert_int_equal(stuck.result, 1);
}

static void test_as_by_signal(void **state)
{
    (void)state;
    expect_as_by_signal(stuck_in_read, true);
    expect_as_by_signal(frame_of_variable_size, false); // stuck_run calls it by a pointer.
    expect_as_by_signal(frame_that_is_aligned, false);
    expect_as_by_signal(frame_called_by_a_pointer, false);
}

// The caller's call leads to this function: no guess, though the frame pointer was not known.
static void test_proven_by_the_call(void **state)
{
    (void)state;
    expect_as_by_signal(two_frames_of_variable_size, true);
    expect_as_by_signal(after_a_deep_call, true);
    expect_as_by_signal(caller_of_one_that_jumps, true);
    expect_as_by_signal(frame_in_a_handler, true);
}

#endif

// Wherever it starts, it ends.
static void test_starts_anywhere(void **state)
{
    const uintptr_t stack = (uintptr_t)__builtin_frame_address(0);
    uint64_t seed = 88172645463325252u;
    struct stack_addresses addresses;
    (void)state;
    for (unsigned i = 0; i < 2000; i++) {
        choice_below(&seed, 1);
        const uintptr_t codes[] = {(uintptr_t)unwind + seed % 4096, (uintptr_t)memcpy + seed % 4096,
                                   (uintptr_t)seed, seed % 4096, UINTPTR_MAX - seed % 4096};
        const uintptr_t places[] = {stack + seed % 2048, (uintptr_t)seed, seed % 4096,
                                    UINTPTR_MAX - seed % 4096};
        unwind(codes[i % 5], places[i % 4], i % 3 == 0, &addresses);
        assert_in_range(addresses.count, 1, LOCKSTEP_STACK_FRAMES);
        assert_int_equal(addresses.code[0], codes[i % 5]);
    }
}

static void test_peek(void **state)
{
    const long page = sysconf(_SC_PAGESIZE);
    char *pages =
        mmap(NULL, (size_t)page * 3, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const uintptr_t at = (uintptr_t)pages;
    char bytes[16];
    (void)state;
    assert_ptr_not_equal(pages, MAP_FAILED);
    assert_int_equal(munmap(pages + 2 * page, (size_t)page), 0);
    assert_true(peek_untouched(at, at + (uintptr_t)page));
    memset(pages, 7, 16);
    assert_false(peek_untouched(at, at + (uintptr_t)page));
    assert_true(peek_untouched(at + (uintptr_t)page, at + 2 * (uintptr_t)page));
    assert_true(peek(at, bytes, 16) && bytes[15] == 7);
    assert_true(peek_resident(at, bytes, 16));
    assert_false(peek_resident(at + (uintptr_t)page - 8, bytes, 16));
    assert_false(peek(at + 2 * (uintptr_t)page - 8, bytes, 16));
    assert_false(peek_resident(at + 2 * (uintptr_t)page - 8, bytes, 16));
    assert_false(peek(0, bytes, 1));
    assert_int_equal(munmap(pages, (size_t)page * 2), 0);
}

// ---- Whom it waits for -------------------------------------------------------------------------

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

SEEN static void waits_for_the_lock(struct stuck *stuck)
{
    stuck->result = pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    STAY();
}

SEEN static void holds_the_lock(struct stuck *stuck)
{
    pthread_mutex_lock(&lock);
    stuck_in_futex(stuck);
    pthread_mutex_unlock(&lock);
    STAY();
}

static struct stuck holder;

SEEN static void waits_for_the_end(struct stuck *stuck)
{
    stuck->result = pthread_join(holder.id, NULL);
    STAY();
}

static void expect_awaits(struct stuck *stuck, enum stack_awaits awaits, uint32_t owner)
{
    struct stack_thread thread;
    struct proc_signals signals;
    struct stack_addresses addresses;
    const uint64_t until_ms = clock_now_ms() + 10000;
    do {
        assert_true(clock_now_ms() < until_ms);
        sleeps_now(stuck, &thread, &signals, &addresses);
    } while (thread.awaits != awaits);
    assert_int_equal(thread.owner, owner);
    assert_string_equal(thread.owner_name, owner != 0 ? "stuck" : "");
}

static void test_lock_has_an_owner(void **state)
{
    static struct stuck waiter, joiner, neither;
    char byte = 0;
    (void)state;
    stuck_start(&holder, holds_the_lock, &callers);
    expect_awaits(&holder, AWAITS_NOTHING, 0);
    stuck_start(&waiter, waits_for_the_lock, &callers);
    stuck_start(&joiner, waits_for_the_end, &callers);
    stuck_start(&neither, stuck_in_read, &callers);
    expect_awaits(&waiter, AWAITS_LOCK, holder.tid);
    expect_awaits(&joiner, AWAITS_END, holder.tid);
    expect_awaits(&neither, AWAITS_NOTHING, 0);
    must(sem_post(&holder.sem) == 0); // Not stuck_free(), for it is joined by another thread.
    stuck_free(&waiter);
    stuck_free(&joiner);
    stuck_free(&neither);
    assert_int_equal(waiter.result, 0);
    assert_int_equal(joiner.result, 0);
    must(write(holder.pipe[1], &byte, 1) == 1);
    close(holder.pipe[0]);
    close(holder.pipe[1]);
}

static pthread_rwlock_t table = PTHREAD_RWLOCK_INITIALIZER;

SEEN static void reads_the_table(struct stuck *stuck)
{
    stuck->result = pthread_rwlock_rdlock(&table);
    pthread_rwlock_unlock(&table);
    STAY();
}

SEEN static void writes_the_table(struct stuck *stuck)
{
    stuck->result = pthread_rwlock_wrlock(&table);
    pthread_rwlock_unlock(&table);
    STAY();
}

SEEN static void holds_the_table(struct stuck *stuck)
{
    pthread_rwlock_wrlock(&table);
    stuck_in_futex(stuck);
    pthread_rwlock_unlock(&table);
    STAY();
}

// Readers and writers wait at different words.
static void test_table_has_a_writer(void **state)
{
    static struct stuck writer, reader, other;
    (void)state;
    stuck_start(&writer, holds_the_table, &callers);
    expect_awaits(&writer, AWAITS_NOTHING, 0);
    stuck_start(&other, writes_the_table, &callers);
    expect_awaits(&other, AWAITS_LOCK, writer.tid);
    stuck_start(&reader, reads_the_table, &callers);
    expect_awaits(&reader, AWAITS_LOCK, writer.tid);
    expect_awaits(&other, AWAITS_LOCK, writer.tid);
    stuck_free(&writer);
    stuck_free(&reader);
    stuck_free(&other);
}

static pthread_mutex_t special; // Initialized anew by each test.

SEEN static void holds_the_special(struct stuck *stuck)
{
    must(pthread_mutex_lock(&special) == 0);
    stuck_in_read(stuck);
    must(pthread_mutex_unlock(&special) == 0);
}

SEEN static void waits_for_the_special(struct stuck *stuck)
{
    stuck->result = pthread_mutex_lock(&special);
    STAY();
    must(pthread_mutex_unlock(&special) == 0);
}

static void test_robust_lock_has_an_owner(void **state)
{
    static struct stuck owner, waiter;
    pthread_mutexattr_t robust;
    (void)state;
    must(pthread_mutexattr_init(&robust) == 0);
    must(pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST) == 0);
    must(pthread_mutex_init(&special, &robust) == 0);
    stuck_start(&owner, holds_the_special, &callers);
    expect_awaits(&owner, AWAITS_NOTHING, 0);
    stuck_start(&waiter, waits_for_the_special, &callers);
    expect_awaits(&waiter, AWAITS_LOCK, owner.tid);
    stuck_free(&owner);
    stuck_free(&waiter);
    assert_int_equal(waiter.result, 0);
}

SEEN static void waits_for_itself(struct stuck *stuck)
{
    must(pthread_mutex_lock(&special) == 0);
    stuck->result = pthread_mutex_lock(&special);
    STAY();
}

// Condition: a thread locks a mutex twice. Decision: the owner is the thread itself.
static void test_lock_that_it_holds_itself(void **state)
{
    static struct stuck stuck;
    (void)state;
    must(pthread_mutex_init(&special, NULL) == 0);
    stuck_start(&stuck, waits_for_itself, &callers);
    expect_awaits(&stuck, AWAITS_LOCK, stuck.tid);
    must(pthread_mutex_unlock(&special) == 0); // The second lock succeeds.
    stuck_free(&stuck);
    assert_int_equal(stuck.result, 0);
}

// ---- Other threads -----------------------------------------------------------------------------

static atomic_bool other_goes_on;
static int other_pipe[2];

SEEN static void other_spins(void)
{
    while (!atomic_load_explicit(&other_goes_on, memory_order_relaxed))
        ;
}

static void *other_runs(void *argument)
{
    char byte;
    pthread_setname_np(pthread_self(), argument ? "spinner" : "reader");
    if (argument)
        other_spins();
    else
        must(read(other_pipe[0], &byte, 1) == 1);
    return NULL;
}

static const struct stack_thread *thread_named(const char *name)
{
    for (uint32_t i = 0; i < stacks->thread_count; i++)
        if (strcmp(stacks->threads[i].name, name) == 0)
            return &stacks->threads[i];
    return NULL;
}

static bool other_is(const char *name, enum stack_how how)
{
    const struct stack_thread *thread = thread_named(name);
    return thread && thread->other && !thread->trainer && thread->how == how;
}

// They are there, behind the callers; the one that runs is not interrupted.
static void test_other_threads(void **state)
{
    static struct stuck caller;
    pthread_t reader, spinner;
    uint32_t frames = 0;
    (void)state;
    must(pipe(other_pipe) == 0);
    must(pthread_create(&reader, NULL, other_runs, NULL) == 0);
    must(pthread_create(&spinner, NULL, other_runs, &some_bytes) == 0);
    stuck_start(&caller, stuck_in_futex, &callers);
    const uint64_t until_ms = clock_now_ms() + 10000;
    do {
        assert_true(clock_now_ms() < until_ms);
        stacks_capture(stacks, &callers);
    } while (!other_is("reader", STACK_ASLEEP) || !other_is("spinner", STACK_NOT_ASKED));
    assert_int_equal(stacks->thread_count, 3);
    assert_true(stacks->threads[0].trainer && !stacks->threads[0].other);
    for (uint32_t i = 0; i < stacks->frame_count; i++) {
        const struct stack_frame *frame = &stacks->frames[i];
        frames += &stacks->threads[frame->thread] == thread_named("reader");
        assert_ptr_not_equal(&stacks->threads[frame->thread], thread_named("spinner"));
    }
    assert_true(frames >= 2);
    atomic_store(&other_goes_on, true);
    must(write(other_pipe[1], "", 1) == 1);
    pthread_join(reader, NULL);
    pthread_join(spinner, NULL);
    stuck_free(&caller);
    close(other_pipe[0]);
    close(other_pipe[1]);
}

// ---- Room --------------------------------------------------------------------------------------

static struct stuck in_little_room;

static void *runs_in_little_room(void *argument)
{
    callers_note(&callers);
    atomic_store(&in_little_room.tid, (uint32_t)gettid());
    stuck_in_spin(&in_little_room);
    return argument;
}

static enum stack_how how_with_stack(size_t bytes, bool used)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    pthread_attr_t attributes;
    pthread_t thread;
    // A page without rights on each side, so that the stack is a mapping of its own.
    char *memory = mmap(NULL, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    assert_int_equal(mprotect(memory + page, bytes, PROT_READ | PROT_WRITE), 0);
    if (used)
        memset(memory + page, 1, bytes);
    memset(&in_little_room, 0, sizeof(in_little_room));
    must(pthread_attr_init(&attributes) == 0);
    must(pthread_attr_setstack(&attributes, memory + page, bytes) == 0);
    must(pthread_create(&thread, &attributes, runs_in_little_room, NULL) == 0);
    while (atomic_load(&in_little_room.tid) == 0)
        sched_yield();
    do
        stacks_capture(stacks, &callers);
    while (stacks->threads[0].how == STACK_LEFT_ALONE || stacks->threads[0].how == STACK_SILENT ||
           stacks->threads[0].how == STACK_ASLEEP || stacks->threads[0].how == STACK_CUT);
    const enum stack_how how = stacks->threads[0].how;
    atomic_store(&in_little_room.go_on, true);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    munmap(memory, bytes + 2 * page);
    return how;
}

// A signal on a stack without room ends the process.
static void test_room_for_a_signal(void **state)
{
    (void)state;
    assert_int_equal(how_with_stack(1 << 20, false), STACK_SIGNAL);
    assert_int_equal(how_with_stack(1 << 20, true), STACK_NO_ROOM);
    assert_int_equal(how_with_stack(32768, false), STACK_NO_ROOM);
}

static void test_room(void **state)
{
    char here;
    (void)state;
    assert_true(stack_room((uintptr_t)&here, true));
    assert_true(stack_room((uintptr_t)&here, false)); // The main thread's stack grows.
    assert_false(stack_room(0, true));
    assert_false(stack_room(1, false));
    assert_true(stack_room_bytes() >= 16384);
}

static void test_calls_that_bear_a_signal(void **state)
{
    struct proc_call call = {.number = UINT64_MAX};
    (void)state;
    assert_false(sleep_again_unnoticed(&call));
    call = (struct proc_call){.number = SYS_futex, .arguments = {0, 128}}; // FUTEX_WAIT, for ever
    assert_true(sleep_again_unnoticed(&call));
    call.arguments[3] = 1; // FUTEX_WAIT, for a time
    assert_false(sleep_again_unnoticed(&call));
    call = (struct proc_call){.number = SYS_ppoll};
#if defined(__x86_64__)
    assert_true(sleep_again_unnoticed(&call));
    call = (struct proc_call){.number = SYS_poll, .arguments = {0, 0, 20000}};
#endif
    assert_false(sleep_again_unnoticed(&call));
    call = (struct proc_call){.number = SYS_recvfrom};
    assert_false(sleep_again_unnoticed(&call));
}

int main(void)
{
#define WITH_STACKS(test) cmocka_unit_test_setup_teardown(test, open_stacks, close_stacks)
    const struct CMUnitTest tests[] = {
#if defined(__x86_64__)
        WITH_STACKS(test_as_by_signal),
        WITH_STACKS(test_proven_by_the_call),
#endif
        WITH_STACKS(test_starts_anywhere),
        WITH_STACKS(test_peek),
        WITH_STACKS(test_lock_has_an_owner),
        WITH_STACKS(test_table_has_a_writer),
        WITH_STACKS(test_robust_lock_has_an_owner),
        WITH_STACKS(test_lock_that_it_holds_itself),
        WITH_STACKS(test_other_threads),
        WITH_STACKS(test_room_for_a_signal),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_calls_that_bear_a_signal),
    };
    const struct CMUnitTest few[] = {
        WITH_STACKS(test_starts_anywhere),
        WITH_STACKS(test_peek),
        cmocka_unit_test(test_calls_that_bear_a_signal),
    };
    // Sanitizers keep signals back, put functions of their own before those of the C library, and
    // have stacks of their own kind.
    const char *sanitizer = getenv("LOCKSTEP_TEST_SANITIZER");
    if (sanitizer && sanitizer[0] != '\0')
        return cmocka_run_group_tests(few, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
