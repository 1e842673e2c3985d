// SPDX-License-Identifier: Apache-2.0
//
// Frames of Python: from texts that the interpreter writes, and from texts that it never would; and
// the helper that lets it write them, which may crash, hang and die without harm to this process.

#include "base/clock.h"
#include "tests/support/bounds.h"
#include "worker/stacks/python.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define FRAMES 8
#define TWO_THREADS \
    "Thread 0x00007fc6e2a656c0 (most recent call first):\n" \
    "  File \"/data/train.py\", line 3 in load\n" \
    "  File \"<string>\", line 11 in <lambda>\n" \
    "  File \"/usr/lib/python3.11/threading.py\", line 982 in run\n" \
    "\n" \
    "Current thread 0x00007fc6e3ffab80 [main] (most recent call first):\n" \
    "  File \"/data/train.py\", line 15 in <module>\n"
#define FIRST ((pthread_t)0x7fc6e2a656c0)
#define SECOND ((pthread_t)0x7fc6e3ffab80)

static struct stack_frame frames[FRAMES];

static uint32_t parse(const char *text, size_t size, pthread_t id)
{
    const int fd = memfd_create("text", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, size), (ssize_t)size);
    const uint32_t count = python_parse(fd, id, 5, frames, FRAMES);
    close(fd);
    assert_true(count <= FRAMES);
    return count;
}

static void expect(uint32_t index, const char *file, const char *function, uint64_t line)
{
    assert_string_equal(frames[index].object, file);
    assert_string_equal(frames[index].symbol, function);
    assert_int_equal(frames[index].offset, line);
    assert_int_equal(frames[index].thread, 5);
    assert_true(frames[index].python);
}

static void test_threads(void **state)
{
    (void)state;
    assert_int_equal(parse(TWO_THREADS, strlen(TWO_THREADS), FIRST), 3);
    expect(0, "train.py", "load", 3);
    expect(1, "<string>", "<lambda>", 11);
    expect(2, "threading.py", "run", 982);
    assert_int_equal(parse(TWO_THREADS, strlen(TWO_THREADS), SECOND), 1);
    expect(0, "train.py", "<module>", 15);
    assert_int_equal(parse(TWO_THREADS, strlen(TWO_THREADS), (pthread_t)0x7fc6), 0);
    assert_int_equal(parse("", 0, FIRST), 0);
}

// Files that belong to Python itself, wherever it is installed, but not packages that were
// installed beside it.
static void test_library(void **state)
{
    static const char text[] =
        "Thread 0x00007fc6e2a656c0 (most recent call first):\n"
        "  File \"/opt/conda/lib/python3.12/queue.py\", line 1 in f\n"
        "  File \"/usr/lib64/python3.9/threading.py\", line 1 in f\n"
        "  File \"/usr/lib/python3.13t/selectors.py\", line 1 in f\n"
        "  File \"<frozen importlib._bootstrap>\", line 1 in f\n"
        "  File \"/v/lib/python3.12/site-packages/torch/a.py\", line 1 in f\n"
        "  File \"/usr/lib/python3/dist-packages/a.py\", line 1 in f\n"
        "  File \"/data/lib/pythonic/train.py\", line 1 in f\n"
        "  File \"<string>\", line 1 in f\n";
    (void)state;
    assert_int_equal(parse(text, strlen(text), FIRST), 8);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(frames[i].library, i < 4);
}

// Possible names, and what the interpreter writes when it knows none.
static void test_odd_frames(void **state)
{
    static const char text[] = "Thread 0x00007fc6e2a656c0 (most recent call first):\n"
                               "  Garbage-collecting\n"
                               "  File \"/a, line 7 in b/c.py\", line 8 in d\n"
                               "  File ???, line ??? in ???\n"
                               "  File \"/x/\\xe9t\\xe9.py\", line 9 in \\u4e2d in f\n"
                               "  File \"no slash.py\", line 10 in g";
    (void)state;
    assert_int_equal(parse(text, strlen(text), FIRST), 4);
    expect(0, "c.py", "d", 8);
    expect(1, "???", "???", 0);
    expect(2, "\\xe9t\\xe9.py", "\\u4e2d in f", 9);
    expect(3, "no slash.py", "g", 10);
}

static void test_many_frames(void **state)
{
    static char text[1 << 20];
    size_t size = (size_t)sprintf(text, "Thread 0x00007fc6e2a656c0 (most recent call first):\n");
    (void)state;
    for (int i = 0; i < 100; i++) {
        size += (size_t)sprintf(text + size, "  File \"/%0*d.py\", line %d in %0*d\n", 3000, i, i,
                                3000, i);
    }
    (void)parse(text, size, FIRST); // All lines are too long: none is a frame, or eight are.
    size = (size_t)sprintf(text, "Thread 0x00007fc6e2a656c0 (most recent call first):\n");
    for (int i = 0; i < 100; i++)
        size += (size_t)sprintf(text + size, "  File \"/%0500d.py\", line %d in %0500d\n", i, i, i);
    assert_int_equal(parse(text, size, FIRST), FRAMES);
    for (uint32_t i = 0; i < FRAMES; i++) {
        assert_int_equal(frames[i].offset, i);
        assert_int_equal(strlen(frames[i].object), LOCKSTEP_OBJECT_BYTES - 1);
        assert_int_equal(strlen(frames[i].symbol), LOCKSTEP_SYMBOL_BYTES - 1);
    }
}

// Every beginning of a text, and bytes changed at random: frames are clean whatever comes.
static void test_damaged_texts(void **state)
{
    uint64_t random = 88172645463325252u;
    char text[] = TWO_THREADS;
    (void)state;
    for (size_t size = 0; size <= strlen(text); size++)
        (void)parse(text, size, SECOND);
    for (int round = 0; round < 3000; round++) {
        char damaged[sizeof(text)];
        memcpy(damaged, text, sizeof(text));
        for (unsigned changes = 0; changes < 6; changes++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            damaged[(random >> 40) % (sizeof(text) - 1)] = (char)(random >> 32);
        }
        const uint32_t count = parse(damaged, sizeof(text) - 1, FIRST);
        for (uint32_t i = 0; i < count; i++) {
            for (const char *c = frames[i].symbol; *c != '\0'; c++)
                assert_in_range(*c, ' ', '~');
            for (const char *c = frames[i].object; *c != '\0'; c++)
                assert_in_range(*c, ' ', '~');
        }
    }
}

// ---- The helper --------------------------------------------------------------------------------

// In the helper, where cmocka's assertions cannot be used.
static void must(bool holds)
{
    if (!holds)
        abort();
}

static pid_t writer_pid; // The helper has this process's memory.

static const char *write_some(int fd)
{
    writer_pid = getpid();
    return write(fd, TWO_THREADS, strlen(TWO_THREADS)) > 0 ? NULL : "it cannot write";
}

static const char *writes(int fd, void *interpreter, void *current, size_t threads)
{
    must(!interpreter && !current && threads == 100);
    return write_some(fd);
}

static const char *writes_and_crashes(int fd, void *interpreter, void *current, size_t threads)
{
    (void)interpreter, (void)current, (void)threads;
    write_some(fd);
    raise(SIGSEGV);
    return NULL;
}

static const char *writes_and_aborts(int fd, void *interpreter, void *current, size_t threads)
{
    (void)interpreter, (void)current, (void)threads;
    write_some(fd);
    abort();
}

static const char *writes_and_spins(int fd, void *interpreter, void *current, size_t threads)
{
    (void)interpreter, (void)current, (void)threads;
    write_some(fd);
    while (writer_pid != 0)
        __asm__ volatile("" ::: "memory");
    return NULL;
}

static const char *writes_nothing(int fd, void *interpreter, void *current, size_t threads)
{
    (void)fd, (void)interpreter, (void)current, (void)threads;
    return "unable to get the interpreter state";
}

static volatile sig_atomic_t handled;

static void trainers_handler(int number)
{
    handled = number;
}

// However the helper ends, its output is read, no handler of this process runs, and no thread that
// waits for children of this process sees it.
static void expect_harmless(python_writer *writer)
{
    static const int numbers[] = {SIGSEGV, SIGABRT, SIGALRM, SIGCHLD};
    struct sigaction ours = {.sa_handler = trainers_handler}, before[4], after;
    struct python *python = python_open_with(writer);
    assert_non_null(python);
    for (int i = 0; i < 4; i++)
        sigaction(numbers[i], &ours, &before[i]);
    handled = 0;
    writer_pid = 0;
    for (int round = 0; round < 3; round++) {
        assert_true(python_dump(python));
        assert_true(writer_pid != 0 && writer_pid != getpid());
        assert_int_equal(kill(writer_pid, 0), -1); // It is no more.
        assert_int_equal(errno, ESRCH);
        assert_int_equal(python_frames(python, FIRST, 5, frames, FRAMES), 3);
        expect(0, "train.py", "load", 3);
        assert_int_equal(python_frames(python, FIRST, 5, frames, 2), 2);
    }
    for (int i = 0; i < 4; i++) {
        sigaction(numbers[i], &before[i], &after);
        assert_ptr_equal(after.sa_handler, trainers_handler);
    }
    assert_int_equal(handled, 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    python_close(python);
}

static void test_helper_writes(void **state)
{
    (void)state;
    expect_harmless(writes);
}

static void test_helper_crashes(void **state)
{
    (void)state;
    expect_harmless(writes_and_crashes);
}

static void test_helper_aborts(void **state)
{
    (void)state;
    expect_harmless(writes_and_aborts);
}

static void test_helper_spins(void **state)
{
    const uint64_t began_ms = clock_now_ms();
    (void)state;
    expect_harmless(writes_and_spins);
    assert_in_range(clock_now_ms() - began_ms, 3 * PYTHON_MS, 3 * PYTHON_MS + test_bound_ms(2000));
}

// Signals are blocked on the thread that asks, as on all of this library's.
static void test_helper_where_signals_are_blocked(void **state)
{
    sigset_t all, before;
    (void)state;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    expect_harmless(writes_and_crashes);
    expect_harmless(writes_and_spins);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void test_nothing_written(void **state)
{
    struct python *python = python_open_with(writes_nothing);
    (void)state;
    assert_int_equal(python_frames(python, FIRST, 5, frames, FRAMES), 0); // No dump yet.
    assert_false(python_dump(python));
    assert_int_equal(python_frames(python, FIRST, 5, frames, FRAMES), 0);
    python_close(python);
    assert_null(python_open()); // There is no interpreter here.
    python_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),       cmocka_unit_test(test_library),
        cmocka_unit_test(test_odd_frames),    cmocka_unit_test(test_many_frames),
        cmocka_unit_test(test_damaged_texts),
    };
    const struct CMUnitTest helpers[] = {
        cmocka_unit_test(test_helper_writes),
        cmocka_unit_test(test_helper_crashes),
        cmocka_unit_test(test_helper_aborts),
        cmocka_unit_test(test_helper_spins),
        cmocka_unit_test(test_helper_where_signals_are_blocked),
        cmocka_unit_test(test_nothing_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) + cmocka_run_group_tests(helpers, NULL, NULL);
}
