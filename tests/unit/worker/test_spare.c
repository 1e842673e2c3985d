// SPDX-License-Identifier: Apache-2.0
//
// Unit tests: what a process that has used up a limit can still do. /proc is read with no
// descriptor free, by a spare one; a file that may not grow is an error and no signal. And what an
// error says if the system refuses a call although no limit is reached.

#include "base/file_limit.h"
#include "base/thread.h"
#include "protos/limits.h"
#include "tests/support/full.h"
#include "worker/session/headroom.h"
#include "worker/support/proc_text.h"
#include "worker/support/spare.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <lockstep/lockstep.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// ---- System calls that are refused -------------------------------------------------------------

static atomic_bool refuses_eventfd;
static atomic_bool refuses_getrandom;

static long refused(int number)
{
    errno = number;
    return -1;
}

int eventfd(unsigned int count, int flags)
{
    if (atomic_load(&refuses_eventfd))
        return (int)refused(EPERM);
    return (int)syscall(SYS_eventfd2, count, flags);
}

ssize_t getrandom(void *bytes, size_t size, unsigned int flags)
{
    return atomic_load(&refuses_getrandom) ? refused(ENOSYS)
                                           : syscall(SYS_getrandom, bytes, size, flags);
}

static void a_refused_descriptor_is_no_limit(void **state)
{
    char text[LOCKSTEP_TEXT_BYTES] = "";
    (void)state;
    atomic_store(&refuses_eventfd, true);
    assert_false(headroom_descriptors(3, "a test needs", text, sizeof(text)));
    atomic_store(&refuses_eventfd, false);
    assert_string_equal(text, "a test needs 3 file descriptors, and this process can open 0 more: "
                              "the system refuses them (Operation not permitted): look for a "
                              "filter of system calls (seccomp) of its container");
}

static void refused_random_bytes_are_no_lack_of_memory(void **state)
{
    const struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    lockstep_session *session = NULL;
    (void)state;
    atomic_store(&refuses_getrandom, true);
    assert_int_equal(lockstep_open(&config, &session), LOCKSTEP_E_SYSTEM);
    atomic_store(&refuses_getrandom, false);
    assert_string_equal(lockstep_error_text(), "the kernel gives this process no random bytes "
                                               "(getrandom): Function not implemented");
    assert_int_equal(lockstep_open(&config, &session), 0);
    assert_int_equal(lockstep_close(session), 0);
}

// ---- Limits that are used up -------------------------------------------------------------------

// Everything that this test can open is open.
static void proc_is_read_without_a_free_descriptor(void **state)
{
    char text[PROC_TEXT_BYTES];
    struct full full;
    (void)state;
    spare_begin();
    full_begin(&full, 64);
    for (int i = 0; i < 3 * LOCKSTEP_SPARE_DESCRIPTORS; i++) { // Each is taken back.
        proc_text(AT_FDCWD, "/proc/self/stat", text);
        assert_non_null(strchr(text, ')'));
    }
    assert_int_equal(dup(STDERR_FILENO), -1);
    spare_end();
    proc_text(AT_FDCWD, "/proc/self/stat", text);
    assert_non_null(strchr(text, ')'));
    full_end(&full);
}

static void two_sessions_share_the_spare_ones(void **state)
{
    struct full full;
    (void)state;
    spare_begin();
    spare_begin();
    full_begin(&full, 64);
    spare_end();
    assert_int_equal(dup(STDERR_FILENO), -1);
    spare_end();
    const int fd = dup(STDERR_FILENO);
    assert_true(fd >= 0);
    close(fd);
    full_end(&full);
}

static void what_descriptors_are_missing_is_said(void **state)
{
    char text[LOCKSTEP_TEXT_BYTES] = "";
    struct full full;
    (void)state;
    assert_true(headroom_descriptors(5, "a test needs", text, sizeof(text)));
    full_begin(&full, 64);
    close(full.fds[--full.count]);
    close(full.fds[--full.count]);
    assert_true(headroom_descriptors(2, "a test needs", text, sizeof(text)));
    assert_false(headroom_descriptors(3, "a test needs", text, sizeof(text)));
    full_end(&full);
    assert_string_equal(text, "a test needs 3 file descriptors, and this process can open 2 more: "
                              "its limit is 64 (ulimit -n); raise the limit, or close files before "
                              "lockstep_open");
}

struct opener {
    atomic_bool ends;
    int refused; // Times at which no descriptor was free.
};

static void opens_again_and_again(void *argument)
{
    struct opener *opener = argument;
    while (!atomic_load(&opener->ends)) {
        const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        opener->refused += fd < 0;
        if (fd >= 0)
            close(fd);
    }
}

static void room_is_not_taken_from_other_threads(void **state)
{
    struct opener opener = {.refused = 0};
    struct thread thread;
    struct full full;
    (void)state;
    assert_true(spare_is_room(LOCKSTEP_SESSION_DESCRIPTORS_MOST));
    full_begin(&full, 64);
    assert_false(spare_is_room(1));
    assert_int_equal(errno, EMFILE);
    for (int i = 0; i < 8; i++)
        close(full.fds[--full.count]);
    assert_true(spare_is_room(8));
    assert_false(spare_is_room(9));
    assert_int_equal(errno, EMFILE);
    assert_int_equal(thread_start(&thread, "opener", opens_again_and_again, &opener), 0);
    for (int i = 0; i < 20000; i++)
        assert_false(spare_is_room(LOCKSTEP_SESSION_DESCRIPTORS_MOST));
    atomic_store(&opener.ends, true);
    thread_join(&thread);
    full_end(&full);
    assert_int_equal(opener.refused, 0);
}

static volatile sig_atomic_t signals;

static void count_signal(int number)
{
    (void)number;
    signals++;
}

// The thread sanitizer puts a handler off until its thread sleeps.
static int signals_handled(void)
{
    usleep(1);
    return signals;
}

static void a_file_that_may_not_grow_raises_no_signal(void **state)
{
    struct sigaction before;
    const struct sigaction action = {.sa_handler = count_signal};
    struct file_limit limit;
    struct rlimit rlimit;
    const int fd = memfd_create("test", MFD_CLOEXEC);
    (void)state;
    assert_int_equal(sigaction(SIGXFSZ, &action, &before), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &rlimit), 0);
    const struct rlimit low = {4096, rlimit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    file_limit_begin(&limit);
    assert_int_equal(ftruncate(fd, 4097), -1);
    file_limit_end(&limit);
    assert_int_equal(errno, EFBIG);
    assert_int_equal(signals_handled(), 0);
    assert_int_equal(ftruncate(fd, 4097), -1); // The trainer's own keep raising it.
    assert_int_equal(signals_handled(), 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &rlimit), 0);
    assert_int_equal(sigaction(SIGXFSZ, &before, NULL), 0);
    close(fd);
}

// Some kernels end an allocation of pages when any signal comes: a call with signals fails here.
int posix_fallocate(int fd, off_t offset, off_t bytes)
{
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    if (!sigismember(&blocked, SIGALRM) || !sigismember(&blocked, SIGPROF))
        return EINTR;
    return fallocate(fd, 0, offset, bytes) < 0 ? errno : 0;
}

static void a_file_is_filled_without_signals(void **state)
{
    sigset_t before;
    sigset_t after;
    struct stat about;
    const int fd = memfd_create("test", MFD_CLOEXEC);
    (void)state;
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    assert_int_equal(file_limit_fill(fd, 8192), 0);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    assert_int_equal(fstat(fd, &about), 0);
    assert_int_equal(about.st_size, 8192);
    assert_true(about.st_blocks * 512 >= 8192);
    assert_int_equal(sigismember(&after, SIGALRM), sigismember(&before, SIGALRM));
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(proc_is_read_without_a_free_descriptor),
        cmocka_unit_test(two_sessions_share_the_spare_ones),
        cmocka_unit_test(what_descriptors_are_missing_is_said),
        cmocka_unit_test(a_refused_descriptor_is_no_limit),
        cmocka_unit_test(refused_random_bytes_are_no_lack_of_memory),
        cmocka_unit_test(room_is_not_taken_from_other_threads),
        cmocka_unit_test(a_file_that_may_not_grow_raises_no_signal),
        cmocka_unit_test(a_file_is_filled_without_signals),
    };
    return cmocka_run_group_tests_name("spare", tests, NULL, NULL);
}
