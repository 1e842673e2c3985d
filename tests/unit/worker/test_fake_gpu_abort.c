// SPDX-License-Identifier: Apache-2.0
//
// How communicators of the fake NCCL end when not all is well: ranks that launch in different
// orders, aborts and what they leave, faults that were asked for, deaths. Ranks are threads, and
// once processes: this program again.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/worker/fake_ranks.h"

// ---- different orders, aborts -------------------------------------------------------------------

static atomic_int standing;

static void wait_for_standing(int ranks)
{
    atomic_fetch_add(&standing, 1);
    while (atomic_load(&standing) < ranks)
        usleep(100);
}

static void assert_garbage(const struct rank *rank, size_t bytes)
{
    const unsigned char *out = rank_get(rank, rank->out, bytes);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(out[i], 0xDB);
}

static void wait_for_report(const char *words)
{
    char report[1000];
    for (int i = 0; i < 10000; i++) {
        fake->nccl_report(report, sizeof(report));
        if (strstr(report, words))
            return;
        usleep(1000);
    }
    fail_msg("\"%s\" does not say \"%s\"", report, words);
}

// Rank 0 launches A, B; rank 1 launches B, A. Both stand, until rank 0 aborts.
static void mismatch_body(struct rank *rank)
{
    const size_t first = rank->rank == 0 ? SMALL : 2 * SMALL;
    ok(rank_comm_open(rank));
    rank_put(rank, "", 1);
    ok(rank_all_reduce(rank, first));
    ok(rank_all_reduce(rank, 3 * SMALL - first));
    assert_true(rank_stands(rank));
    if (rank->rank == 0)
        wait_for_report("rank 0 of 2 stands at operation 0, all_reduce of 100 float32, "
                        "rank 1 is at all_reduce of 200 float32\n");
    wait_for_standing(2);
    if (rank->rank == 0) {
        ok(nccl->comm_abort(rank->comm));
    } else {
        ok(cuda->stream_synchronize(rank->stream)); // The stream goes on by itself.
        assert_int_equal(rank_error(rank), NCCL_REMOTE_ERROR);
        assert_int_equal(rank_all_reduce(rank, 1), NCCL_REMOTE_ERROR);
        ok(nccl->comm_abort(rank->comm));
    }
    assert_garbage(rank, 2 * SMALL * sizeof(float));
}

static void test_different_orders_stand_until_aborted(void **state)
{
    (void)state;
    for (int blocking = 0; blocking < 2; blocking++) {
        atomic_store(&standing, 0);
        rank_threads_run(2, blocking, mismatch_body);
    }
}

// Rank 1 never comes; rank 0's abort is its own affair, and rank 2 stands on.
static void absent_body(struct rank *rank)
{
    ok(rank_comm_open(rank));
    if (rank->rank != 1) {
        ok(rank_all_reduce(rank, SMALL));
        assert_true(rank_stands(rank));
        wait_for_standing(2);
    }
    if (rank->rank == 2) {
        while (atomic_load(&standing) < 3)
            usleep(100);
        assert_true(rank_stands(rank));
        ok(rank_error(rank));
        atomic_fetch_add(&standing, 1);
    }
    if (rank->rank == 1)
        while (atomic_load(&standing) < 4)
            usleep(100);
    ok(nccl->comm_abort(rank->comm));
    atomic_fetch_add(&standing, 1);
    if (rank->rank != 1)
        assert_garbage(rank, SMALL * sizeof(float));
}

static void test_an_abort_may_be_its_own_affair(void **state)
{
    (void)state;
    atomic_store(&standing, 0);
    fake_gpu_weather("FAKE_NCCL_ABORT=own", NULL);
    rank_threads_run(3, false, absent_body);
}

struct aborting {
    struct rank *rank;
    atomic_bool returned;
};

static void abort_it(void *argument)
{
    struct aborting *aborting = argument;
    (void)nccl->comm_abort(aborting->rank->comm);
    atomic_store(&aborting->returned, true);
}

static void hanging_abort_body(struct rank *rank)
{
    struct aborting aborting = {.rank = rank};
    struct thread thread;
    ok(rank_comm_open(rank));
    // A rank that is told of the abort while it opens would not finish opening.
    wait_for_standing(2);
    if (rank->rank == 0) {
        ok(rank_all_reduce(rank, SMALL));
        assert_true(rank_stands(rank));
        fake_gpu_weather("FAKE_NCCL_ABORT_HANGS=1", NULL);
        ok(thread_start(&thread, "abort", abort_it, &aborting));
        assert_true(rank_stands(rank));
        assert_false(atomic_load(&aborting.returned));
        fake_gpu_weather(NULL);
        thread_join(&thread);
        ok(cuda->stream_synchronize(rank->stream));
    } else {
        while (rank_error(rank) != NCCL_REMOTE_ERROR)
            usleep(100);
        ok(nccl->comm_abort(rank->comm));
    }
}

static void test_an_abort_may_hang(void **state)
{
    (void)state;
    atomic_store(&standing, 0);
    rank_threads_run(2, false, hanging_abort_body);
}

// ---- faults -------------------------------------------------------------------------------------

static void fault_body(struct rank *rank)
{
    ok(rank_comm_open(rank));
    ok(rank_all_reduce(rank, SMALL));
    ok(cuda->stream_synchronize(rank->stream));
    (void)rank_all_reduce(rank, SMALL); // May say it already.
    while (rank->rank == 1 && rank_error(rank) == NCCL_OK)
        usleep(100);
    assert_true(rank_stands(rank));
    assert_int_equal(rank_error(rank), rank->rank == 1 ? NCCL_SYSTEM_ERROR : NCCL_OK);
    assert_int_equal(rank_all_reduce(rank, SMALL), rank->rank == 1 ? NCCL_SYSTEM_ERROR : NCCL_OK);
    wait_for_standing(2);
    ok(nccl->comm_abort(rank->comm));
    assert_garbage(rank, SMALL * sizeof(float));
}

static void test_an_operation_fails(void **state)
{
    (void)state;
    atomic_store(&standing, 0);
    fake_gpu_weather("FAKE_NCCL_FAIL=op:2:2@1", NULL);
    rank_threads_run(2, false, fault_body);
}

static void call_fault_body(struct rank *rank)
{
    ok(rank_comm_open(rank));
    assert_int_equal(rank_all_reduce(rank, SMALL), rank->rank == 0 ? NCCL_INTERNAL_ERROR : NCCL_OK);
    wait_for_standing(2);
    ok(nccl->comm_abort(rank->comm));
}

static void test_a_call_fails(void **state)
{
    (void)state;
    atomic_store(&standing, 0);
    fake_gpu_weather("FAKE_NCCL_FAIL=ncclAllReduce:1:3@0", NULL);
    rank_threads_run(2, false, call_fault_body);
    assert_int_equal(fake->nccl_calls("ncclAllReduce"), 2);
}

static void lost_device_body(struct rank *rank)
{
    ok(rank_comm_open(rank));
    ok(rank_all_reduce(rank, SMALL));
    if (rank->rank == 1)
        assert_int_equal(cuda->stream_synchronize(rank->stream), CUDA_LAUNCH_FAILED);
    else
        assert_true(rank_stands(rank)); // Nobody tells it.
    wait_for_standing(2);
    ok(nccl->comm_abort(rank->comm));
}

static void test_a_device_is_lost(void **state)
{
    (void)state;
    atomic_store(&standing, 0);
    fake_gpu_weather("FAKE_CUDA_FAIL=nccl:1:719@1", NULL);
    rank_threads_run(2, false, lost_device_body);
}

// Rank 1 never arrives: nobody's init ends, and all can be aborted.
static void init_body(struct rank *rank)
{
    struct nccl_config config = NCCL_CONFIG_INIT;
    config.blocking = 0;
    assert_int_equal(
        nccl->comm_init_rank_config(&rank->comm, rank->ranks, rank->id, rank->rank, &config),
        NCCL_IN_PROGRESS);
    usleep(NOT_YET_MS * 1000);
    assert_int_equal(rank_error(rank), NCCL_IN_PROGRESS);
    wait_for_standing(2);
    ok(nccl->comm_abort(rank->comm));
}

static void test_an_init_hangs(void **state)
{
    (void)state;
    atomic_store(&standing, 0);
    fake_gpu_weather("FAKE_NCCL_FAIL=init:1:hang@1", NULL);
    rank_threads_run(2, false, init_body);
}

static void same_device_body(struct rank *rank)
{
    void *context = rank->context;
    ok(cuda->device_primary_ctx_retain(&rank->context, 5));
    ok(cuda->ctx_set_current(rank->context));
    assert_int_equal(rank_comm_open(rank), NCCL_INVALID_USAGE);
    wait_for_standing(2);
    ok(nccl->comm_abort(rank->comm));
    ok(cuda->device_primary_ctx_release(5));
    rank->context = context;
}

static void test_two_ranks_on_one_device(void **state)
{
    (void)state;
    atomic_store(&standing, 0);
    rank_threads_run(2, false, same_device_body);
}

// ---- processes ----------------------------------------------------------------------------------

// Rank 1 tells rank 0 by the pipe that it has launched.
static pid_t process_start(const struct nccl_unique_id *id, int rank, const int pipe_ends[2])
{
    char text[2 * sizeof(id->bytes) + 1];
    char number[16];
    for (size_t i = 0; i < sizeof(id->bytes); i++)
        sprintf(text + 2 * i, "%02x", (unsigned char)id->bytes[i]);
    snprintf(number, sizeof(number), "%d", rank);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        if (rank < 2)
            dup2(pipe_ends[rank], rank);
        execl("/proc/self/exe", "rank", number, text, (char *)NULL);
        _exit(99);
    }
    return child;
}

// One of three processes: all sum; then rank 2 is killed, and the others stand until they abort.
static int process_main(int number, const char *text)
{
    struct rank rank = {.rank = number, .ranks = 3};
    for (size_t i = 0; i < sizeof(rank.id.bytes); i++) {
        unsigned byte;
        sscanf(text + 2 * i, "%2x", &byte);
        rank.id.bytes[i] = (char)byte;
    }
    rank_device_open(&rank);
    if (rank_comm_open(&rank) != 0)
        return 2;
    float *row = row_of(number, LARGE);
    rank_put(&rank, row, LARGE * sizeof(*row));
    free(row);
    if (rank_all_reduce(&rank, LARGE) != 0)
        return 3;
    const float *out = rank_get(&rank, rank.out, LARGE * sizeof(float));
    for (size_t i = 0; i < LARGE; i++)
        if (out[i] != value_of(0, i) + value_of(1, i) + value_of(2, i))
            return 4;
    if (number == 2)
        raise(SIGKILL);
    if (rank_all_reduce(&rank, LARGE) != 0)
        return 5;
    char byte = 0;
    if (number == 0 ? read(0, &byte, 1) != 1 : write(1, &byte, 1) != 1)
        return 10;
    if (number == 0 && (!rank_stands(&rank) || rank_error(&rank) != 0))
        return 9;
    if (number == 0 && nccl->comm_abort(rank.comm) != 0)
        return 6;
    if (cuda->stream_synchronize(rank.stream) != 0)
        return 7;
    if (number == 1 && (rank_error(&rank) != NCCL_REMOTE_ERROR || nccl->comm_abort(rank.comm)))
        return 8;
    assert_garbage(&rank, LARGE * sizeof(float));
    return 0;
}

static int open_files(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static void test_ranks_in_processes_and_a_death(void **state)
{
    (void)state;
    struct nccl_unique_id id;
    pid_t children[3];
    int pipe_ends[2];
    ok(pipe2(pipe_ends, O_CLOEXEC));
    ok(nccl->get_unique_id(&id));
    for (int i = 0; i < 3; i++)
        children[i] = process_start(&id, i, pipe_ends);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    for (int i = 0; i < 3; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        if (i == 2)
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else
            assert_int_equal(status, 0);
    }
}

static void test_nothing_is_left(void **state)
{
    (void)state;
    const int before = open_files();
    for (int i = 0; i < 3; i++) {
        atomic_store(&standing, 0);
        rank_threads_run(2, false, mismatch_body);
    }
    assert_int_equal(open_files(), before);
}

#define with_fair_weather(test) \
    cmocka_unit_test_setup_teardown(test, fake_weather_fair, fake_nothing_left)

int main(int count, char **arguments)
{
    if (count == 3)
        return fake_rig_load(NULL) ? 1 : process_main(atoi(arguments[1]), arguments[2]);
    const struct CMUnitTest tests[] = {
        with_fair_weather(test_different_orders_stand_until_aborted),
        with_fair_weather(test_an_abort_may_be_its_own_affair),
        with_fair_weather(test_an_abort_may_hang),
        with_fair_weather(test_an_operation_fails),
        with_fair_weather(test_a_call_fails),
        with_fair_weather(test_a_device_is_lost),
        with_fair_weather(test_an_init_hangs),
        with_fair_weather(test_two_ranks_on_one_device),
        with_fair_weather(test_ranks_in_processes_and_a_death),
        with_fair_weather(test_nothing_is_left),
    };
    return cmocka_run_group_tests(tests, fake_rig_load, NULL);
}
