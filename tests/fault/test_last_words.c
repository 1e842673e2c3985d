// SPDX-License-Identifier: Apache-2.0
//
// The cause travels. A wait whose time is over while the coordinator is gone says that it is.

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
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS 2
#define ELEMENTS 100

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

static int register_line(struct trainer *trainer, lockstep_module **module)
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
    return lockstep_module_register(trainer->session, &config, module);
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
    must(register_line(trainer, &trainer->module), "register");
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

// The coordinator's death is noticed some time after it.
static void say_when_gone(struct trainer *trainer, int socket, lockstep_call *call, bool step)
{
    int status;
    for (int i = 0; i < 500; i++) {
        status =
            step ? lockstep_step_wait(trainer->session, NULL, 20) : lockstep_call_wait(call, 20);
        if (status != LOCKSTEP_E_TIMEOUT)
            break;
        if (strstr(lockstep_error_text(), "is gone since") != NULL)
            break;
    }
    say(socket, lockstep_error_text());
}

_Noreturn static void play_late(uint32_t rank, int socket)
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
               strstr(lockstep_error_text(), "is gone since") == NULL)
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

static void start_rank(uint32_t rank)
{
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    pids[rank] = process_fork();
    assert_true(pids[rank] >= 0);
    if (pids[rank] == 0) {
        close(ends[0]);
        alarm(120);
        play_late(rank, ends[1]);
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
        start_rank(rank);
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
        cmocka_unit_test_teardown(a_wait_says_that_the_coordinator_is_gone, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
