// SPDX-License-Identifier: Apache-2.0
//
// The cause travels. A worker process that ends after a failed call, in any way, without
// lockstep_close: the survivor's error has the text of that failure. If the call was
// lockstep_abort, it has the reason. A wait whose time is over while the coordinator is gone says
// that it is.

#include "tests/fault/process_world.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <lockstep/lockstep.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 2
#define ELEMENTS 100
#define TOLD_US (slow_ms(20) * 1000) // From a failed call until the coordinator has been told.

enum end {
    END_RETURN, // Rank 1 returns from main.
    END_EXIT, // Rank 1 calls exit.
    END_EXIT_CHILD, // Rank 1 calls exit after a child of it did.
    END_QUICK, // Rank 1 calls _exit.
    END_ABORT,
    END_KILL, // Rank 1 waits for SIGKILL.
    END_SLICES, // Rank 1 waits in slices, each of which times out, and is killed in one of them.
    END_GIVE_UP, // Rank 1 calls _exit right after lockstep_abort.
    END_GIVE_UP_RETURN, // Rank 1 returns from main right after lockstep_abort.
    END_WELL, // A collective ends well after the failure: it is no cause any more.
};

struct trainer {
    lockstep_session *session;
    lockstep_module *module;
    float data[ELEMENTS];
    float gradient[ELEMENTS];
};

static struct coordinator_process coordinator;
static pid_t pids[RANKS];
static int sockets[RANKS] = {-1, -1};

// ---- In the workers -----------------------------------------------------------------------------

static void must(int status, const char *what)
{
    if (status == 0)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, lockstep_status_name(status), lockstep_error_text());
    _exit(9);
}

static void say(int socket, const char *text)
{
    if (send(socket, text, strlen(text) + 1, MSG_NOSIGNAL) < 0)
        _exit(9);
}

static void await_word(int socket)
{
    char word[16];
    if (recv(socket, word, sizeof(word), 0) <= 0)
        _exit(9);
}

static int register_line(struct trainer *trainer)
{
    static const int64_t shape = ELEMENTS;
    struct lockstep_parameter parameter = LOCKSTEP_PARAMETER_INIT;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    parameter.name = "w";
    parameter.dims = 1;
    parameter.shape = &shape;
    parameter.data = trainer->data;
    parameter.gradient = trainer->gradient;
    config.name = "line";
    config.parameters = &parameter;
    config.parameter_count = 1;
    return lockstep_module_register(trainer->session, &config, &trainer->module);
}

static void open_world(struct trainer *trainer, uint32_t rank)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    char address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%u", coordinator.port);
    config.coordinator = address;
    config.job = "words";
    config.world_size = RANKS;
    config.rank_hint = (int32_t)rank;
    must(lockstep_open(&config, &trainer->session), "open");
    must(register_line(trainer), "register");
    must(lockstep_start(trainer->session), "start");
}

static lockstep_call *begin_step(struct trainer *trainer)
{
    lockstep_call *call;
    must(lockstep_step_begin(trainer->session, NULL, NULL), "step_begin");
    must(lockstep_call_begin(trainer->module, &call), "call_begin");
    must(lockstep_grad_ready(trainer->module, call, 0, NULL, NULL), "grad_ready");
    must(lockstep_call_end(call), "call_end");
    return call;
}

// No step is open.
static void fail_call(struct trainer *trainer)
{
    lockstep_call *call;
    if (lockstep_call_begin(trainer->module, &call) != LOCKSTEP_E_INVALID)
        _exit(8);
}

static void wait_in_slices(struct trainer *trainer, int socket)
{
    lockstep_work *work;
    must(lockstep_barrier_async(trainer->session, "slices", &work), "barrier_async");
    for (int i = 0;; i++) {
        if (lockstep_work_wait(work, 200) != LOCKSTEP_E_TIMEOUT)
            _exit(8);
        if (i == 0)
            say(socket, "kill me");
    }
}

static int give_up(struct trainer *trainer, enum end end)
{
    must(lockstep_abort(trainer->session, "disk is full"), "abort");
    if (end == END_GIVE_UP)
        _exit(4);
    return 4;
}

static int end_after_failure(struct trainer *trainer, int socket, enum end end)
{
    begin_step(trainer);
    must(lockstep_step_end(trainer->session, NULL), "step_end");
    if (end == END_SLICES)
        wait_in_slices(trainer, socket);
    if (end == END_GIVE_UP || end == END_GIVE_UP_RETURN)
        return give_up(trainer, end);
    fail_call(trainer);
    if (end == END_EXIT_CHILD) {
        const pid_t child = fork();
        if (child == 0)
            exit(0);
        if (child < 0 || waitpid(child, NULL, 0) != child)
            _exit(8);
    }
    if (end == END_WELL)
        must(lockstep_barrier(trainer->session, "well", LOCKSTEP_WAIT_FOREVER), "barrier");
    // Stands for the last work of a process, such as printing and closing files. After END_WELL the
    // watch thread needs the time: it reports at its next poll that the failure is over.
    if (end == END_QUICK || end == END_ABORT)
        pause_us(TOLD_US);
    if (end == END_WELL)
        pause_us(slow_ms(1000) * 1000);
    if (end == END_EXIT || end == END_EXIT_CHILD)
        exit(1);
    if (end == END_ABORT)
        abort();
    if (end == END_KILL) {
        say(socket, "kill me");
        pause();
    }
    if (end != END_RETURN)
        _exit(1);
    return 1;
}

static int survive(struct trainer *trainer, int socket, enum end end)
{
    begin_step(trainer);
    int status = lockstep_step_end(trainer->session, NULL); // Rank 1 may have left it, and ended.
    if (status == 0 && end == END_WELL)
        must(lockstep_barrier(trainer->session, "well", LOCKSTEP_WAIT_FOREVER), "barrier");
    if (status == 0)
        status = lockstep_barrier(trainer->session, "never", LOCKSTEP_WAIT_FOREVER);
    if (status != LOCKSTEP_E_PEER_LOST)
        _exit(8);
    say(socket, lockstep_error_text());
    must(lockstep_close(trainer->session), "close");
    return 0;
}

static int play_end(uint32_t rank, int socket, enum end end)
{
    static struct trainer trainer;
    prctl(PR_SET_DUMPABLE, 0);
    open_world(&trainer, rank);
    return rank == 0 ? survive(&trainer, socket, end) : end_after_failure(&trainer, socket, end);
}

// The coordinator's death is noticed some time after it.
static void say_when_gone(struct trainer *trainer, int socket, lockstep_call *call, bool step)
{
    int status;
    for (int i = 0; i < 500; i++) {
        status =
            step ? lockstep_step_wait(trainer->session, NULL, 20) : lockstep_call_wait(call, 20);
        if (status != LOCKSTEP_E_TIMEOUT)
            break;
        if (strstr(lockstep_error_text(), "is gone since"))
            break;
    }
    say(socket, lockstep_error_text());
}

static int play_late(uint32_t rank, int socket)
{
    static struct trainer trainer;
    lockstep_call *call;
    lockstep_work *work;
    open_world(&trainer, rank);
    begin_step(&trainer);
    must(lockstep_step_end(trainer.session, NULL), "step_end");
    say(socket, "ready");
    await_word(socket);
    if (rank == 0) {
        must(lockstep_barrier_async(trainer.session, "late", &work), "barrier_async");
        while (lockstep_work_wait(work, 20) == LOCKSTEP_E_TIMEOUT &&
               !strstr(lockstep_error_text(), "is gone since"))
            ;
        say(socket, lockstep_error_text());
        call = begin_step(&trainer);
        say_when_gone(&trainer, socket, call, false);
        say_when_gone(&trainer, socket, call, true);
        await_word(socket);
    }
    _exit(0);
}

// ---- In the test --------------------------------------------------------------------------------

static void start_rank(uint32_t rank, int end)
{
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    pids[rank] = process_fork();
    assert_true(pids[rank] >= 0);
    if (pids[rank] == 0) {
        close(ends[0]);
        alarm(120);
        exit(end < 0 ? play_late(rank, ends[1]) : play_end(rank, ends[1], (enum end)end));
    }
    close(ends[1]);
    sockets[rank] = ends[0];
}

static void hear(uint32_t rank, char *text, size_t bytes)
{
    const struct timeval patience = {.tv_sec = (time_t)(WAIT_MS / 1000)};
    ssize_t size;
    setsockopt(sockets[rank], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    size = recv(sockets[rank], text, bytes - 1, 0);
    assert_true(size > 0);
    text[size] = '\0';
}

static int teardown(void **state)
{
    (void)state;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        if (pids[rank] > 0) {
            kill(pids[rank], SIGKILL);
            waitpid(pids[rank], NULL, 0);
        }
        if (sockets[rank] >= 0)
            close(sockets[rank]);
        pids[rank] = 0;
        sockets[rank] = -1;
    }
    if (coordinator.pid > 0) {
        coordinator_signal(&coordinator, SIGKILL);
        coordinator_wait(&coordinator);
    }
    return 0;
}

static void ends_after_failure(enum end end, char *text, size_t bytes)
{
    char pid[32];
    coordinator_start(&coordinator, NULL);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        start_rank(rank, (int)end);
    if (end == END_KILL || end == END_SLICES) {
        hear(1, text, bytes);
        // The other pause is of two heartbeats, which carry the last failure if any.
        pause_us(end == END_KILL ? TOLD_US : 2500000);
        kill(pids[1], SIGKILL);
    }
    hear(0, text, bytes);
    printf("%s\n", text);
    assert_non_null(strstr(text, "rank 1 "));
    if (end == END_WELL || end == END_SLICES) {
        assert_null(strstr(text, "LOCKSTEP_E_INVALID"));
        assert_null(strstr(text, "LOCKSTEP_E_TIMEOUT"));
        return;
    }
    if (end == END_GIVE_UP || end == END_GIVE_UP_RETURN) {
        assert_non_null(strstr(text, "aborted: disk is full"));
        return;
    }
    snprintf(pid, sizeof(pid), "pid %d ended", (int)pids[1]);
    assert_non_null(strstr(text, pid));
    assert_non_null(strstr(text, "ended without lockstep_close after LOCKSTEP_E_INVALID: "));
    assert_non_null(strstr(text, "module 'line'"));
}

// Condition: a process ends in this way after a failed call. Decision: the other rank's E_PEER_LOST
// has the text of the failure.
#define ENDS(function, end) \
    static void function(void **state) \
    { \
        char text[4096]; \
        (void)state; \
        ends_after_failure(end, text, sizeof(text)); \
    }
ENDS(a_return_from_main_tells_the_failure, END_RETURN)
ENDS(an_exit_tells_the_failure, END_EXIT)
ENDS(the_exit_of_a_child_tells_nothing_and_breaks_nothing, END_EXIT_CHILD)
ENDS(a_quick_exit_tells_the_failure, END_QUICK)
ENDS(an_abort_tells_the_failure, END_ABORT)
ENDS(a_kill_tells_the_failure, END_KILL)
// Condition: a process ends in this way right after lockstep_abort. Decision: the other rank's
// E_PEER_LOST has the reason.
ENDS(a_quick_exit_after_an_abort_loses_no_reason, END_GIVE_UP)
ENDS(a_return_after_an_abort_loses_no_reason, END_GIVE_UP_RETURN)
// Condition: the waits of a process time out, and it is killed in the next one. Decision: a timeout
// is no cause.
ENDS(a_wait_in_slices_is_no_failure, END_SLICES)
// Condition: a collective has ended well after the failure. Decision: the failure is no cause.
ENDS(an_old_failure_is_no_cause, END_WELL)

// Condition: the coordinator is gone and rank 1 is late. Decision: each wait whose time is over
// says which coordinator is gone since when.
static void a_wait_says_that_the_coordinator_is_gone(void **state)
{
    static const char *const begins[] = {"collective 'late' did not complete within 20 ms",
                                         "step 2: module 'line' call 1 is not averaged after 20 ms",
                                         "step 2 is not over after 20 ms"};
    char text[4096];
    char gone[128];
    (void)state;
    coordinator_start(&coordinator, NULL);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        start_rank(rank, -1);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        hear(rank, text, sizeof(text));
    snprintf(gone, sizeof(gone), "; the coordinator at 127.0.0.1:%u is gone since ",
             coordinator.port);
    coordinator_signal(&coordinator, SIGKILL);
    coordinator_wait(&coordinator);
    say(sockets[0], "go on");
    for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++) {
        hear(0, text, sizeof(text));
        printf("%s\n", text);
        assert_memory_equal(text, begins[i], strlen(begins[i]));
        assert_non_null(strstr(text, gone));
        assert_non_null(strstr(text, " s, so nothing can say which rank is late"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_return_from_main_tells_the_failure, teardown),
        cmocka_unit_test_teardown(an_exit_tells_the_failure, teardown),
        cmocka_unit_test_teardown(the_exit_of_a_child_tells_nothing_and_breaks_nothing, teardown),
        cmocka_unit_test_teardown(a_quick_exit_tells_the_failure, teardown),
        cmocka_unit_test_teardown(an_abort_tells_the_failure, teardown),
        cmocka_unit_test_teardown(a_kill_tells_the_failure, teardown),
        cmocka_unit_test_teardown(a_quick_exit_after_an_abort_loses_no_reason, teardown),
        cmocka_unit_test_teardown(a_return_after_an_abort_loses_no_reason, teardown),
        cmocka_unit_test_teardown(a_wait_in_slices_is_no_failure, teardown),
        cmocka_unit_test_teardown(an_old_failure_is_no_cause, teardown),
        cmocka_unit_test_teardown(a_wait_says_that_the_coordinator_is_gone, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
