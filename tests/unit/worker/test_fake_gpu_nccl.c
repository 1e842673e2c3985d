// SPDX-License-Identifier: Apache-2.0
//
// The fake NCCL against what is known of the real one: values, work in progress, groups, order with
// streams, and what is refused. Through the fences, as the library uses it. Its ends are in
// test_fake_gpu_abort.c.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/worker/fake_ranks.h"

// ---- values -------------------------------------------------------------------------------------

static void sums_body(struct rank *rank)
{
    static const size_t counts[] = {1, SMALL, LARGE};
    ok(rank_comm_open(rank));
    float *row = row_of(rank->rank, LARGE);
    rank_put(rank, row, LARGE * sizeof(*row));
    free(row);
    ok(rank_all_reduce(rank, 0));
    for (size_t i = 0; i < 3; i++) {
        ok(rank_all_reduce(rank, counts[i]));
        assert_sum(rank_get(rank, rank->out, counts[i] * sizeof(float)), rank->ranks, 0, counts[i]);
    }
    // In place.
    ok(rank_launched(rank, nccl->all_reduce((void *)rank->in, (void *)rank->in, LARGE, NCCL_FLOAT32,
                                            NCCL_SUM, rank->comm, rank->stream)));
    assert_sum(rank_get(rank, rank->in, LARGE * sizeof(float)), rank->ranks, 0, LARGE);
    ok(nccl->comm_destroy(rank->comm));
}

static void test_sums_in_the_order_of_ranks(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= TEST_RANKS; ranks++)
        rank_threads_run(ranks, ranks % 2, sums_body);
}

// Reduce-scatter and all-gather are the two halves of an all-reduce; a broadcast is one rank's.
static void parts_body(struct rank *rank)
{
    const size_t part = LARGE / TEST_RANKS;
    const size_t bytes = part * sizeof(float);
    ok(rank_comm_open(rank));
    float *row = row_of(rank->rank, LARGE);
    rank_put(rank, row, LARGE * sizeof(*row));
    ok(rank_launched(rank, nccl->broadcast((void *)rank->in, (void *)rank->out, LARGE, NCCL_FLOAT32,
                                           2, rank->comm, rank->stream)));
    const float *copied = rank_get(rank, rank->out, LARGE * sizeof(float));
    for (size_t i = 0; i < LARGE; i += 99)
        assert_true(copied[i] == value_of(2, i));
    void *mine = (void *)(rank->out + (uint64_t)rank->rank * bytes);
    ok(rank_launched(rank, nccl->reduce_scatter((void *)rank->in, mine, part, NCCL_FLOAT32,
                                                NCCL_SUM, rank->comm, rank->stream)));
    assert_sum(rank_get(rank, (uintptr_t)mine, bytes), rank->ranks, (size_t)rank->rank * part,
               part);
    ok(rank_launched(rank, nccl->all_gather(mine, (void *)rank->out, part, NCCL_FLOAT32, rank->comm,
                                            rank->stream)));
    assert_sum(rank_get(rank, rank->out, TEST_RANKS * bytes), rank->ranks, 0, TEST_RANKS * part);
    free(row);
    ok(nccl->comm_destroy(rank->comm));
}

static void test_halves_of_a_sum(void **state)
{
    (void)state;
    rank_threads_run(TEST_RANKS, true, parts_body);
}

// Every 16-bit number plus zero is itself, but for NaNs and the negative zero.
static void types_body(struct rank *rank)
{
    static const int types[] = {NCCL_FLOAT16, NCCL_BFLOAT16};
    ok(rank_comm_open(rank));
    uint16_t *row = calloc(1 << 16, sizeof(*row));
    for (size_t type = 0; type < 2; type++) {
        const unsigned infinity = type == 0 ? 0x7c00 : 0x7f80;
        for (unsigned i = 0; i < 1 << 16; i++)
            row[i] = rank->rank == 0 ? (uint16_t)i : 0;
        rank_put(rank, row, sizeof(*row) << 16);
        ok(rank_launched(rank, nccl->all_reduce((void *)rank->in, (void *)rank->out, 1 << 16,
                                                types[type], NCCL_SUM, rank->comm, rank->stream)));
        const uint16_t *out = rank_get(rank, rank->out, sizeof(*out) << 16);
        for (unsigned i = 0; i < 1 << 16; i++)
            if ((i & 0x7fff) <= infinity && i != 0x8000)
                assert_int_equal(out[i], i);
    }
    const uint64_t words[2] = {UINT64_MAX, (uint64_t)rank->rank << 40};
    rank_put(rank, words, sizeof(words));
    ok(rank_launched(rank, nccl->all_reduce((void *)rank->in, (void *)rank->out, 2, NCCL_UINT64,
                                            NCCL_SUM, rank->comm, rank->stream)));
    const uint64_t *sums = rank_get(rank, rank->out, sizeof(words));
    assert_true(sums[0] == UINT64_MAX - 1 && sums[1] == (uint64_t)1 << 40);
    free(row);
    ok(nccl->comm_destroy(rank->comm));
}

static void test_other_types(void **state)
{
    (void)state;
    rank_threads_run(2, true, types_body);
}

// ---- work in progress ---------------------------------------------------------------------------

// A launch of a communicator that does not block is not on the stream when it returns: an event
// that is recorded behind it says nothing. The real one is like that, and that is easily
// overlooked.
static void progress_body(struct rank *rank)
{
    void *event;
    ok(cuda->event_create(&event, CUDA_EVENT_DISABLE_TIMING));
    ok(rank_comm_open(rank));
    ok(cuda->memset_d32_async(rank->in, 0x3f800000, SMALL, rank->stream));
    assert_int_equal(nccl->all_reduce((void *)rank->in, (void *)rank->out, SMALL, NCCL_FLOAT32,
                                      NCCL_SUM, rank->comm, rank->stream),
                     NCCL_IN_PROGRESS);
    ok(cuda->event_record(event, rank->stream));
    ok(cuda->event_synchronize(event));
    const uint32_t *out = fake->peek(rank->out, 4);
    assert_int_equal(*out, 0xA5A5A5A5);
    assert_int_equal(rank_error(rank), NCCL_IN_PROGRESS);
    assert_int_equal(rank_all_reduce(rank, SMALL), NCCL_INVALID_ARGUMENT);
    ok(rank_settle(rank));
    const float *sums = rank_get(rank, rank->out, sizeof(float));
    assert_true(*sums == 2);
    ok(cuda->event_destroy(event));
    assert_int_equal(nccl->comm_finalize(rank->comm), NCCL_IN_PROGRESS);
    ok(rank_settle(rank));
    ok(nccl->comm_destroy(rank->comm));
}

static void test_launches_are_in_progress(void **state)
{
    (void)state;
    fake_gpu_weather("FAKE_NCCL_LAUNCH_US=300000", NULL);
    rank_threads_run(2, false, progress_body);
}

// One thread, two devices: each init and each launch would wait for the other but for the groups.
static void test_groups(void **state)
{
    (void)state;
    for (int blocking = 0; blocking < 2; blocking++) {
        struct rank ranks[2] = {{.rank = 0, .ranks = 2}, {.rank = 1, .ranks = 2}};
        struct nccl_config config = NCCL_CONFIG_INIT;
        struct nccl_unique_id id;
        config.blocking = blocking;
        ok(nccl->get_unique_id(&id));
        ok(nccl->group_start());
        for (int i = 0; i < 2; i++) {
            rank_device_open(&ranks[i]);
            assert_int_equal(nccl->comm_init_rank_config(&ranks[i].comm, 2, id, i, &config),
                             blocking ? 0 : NCCL_IN_PROGRESS);
        }
        ok(nccl->group_end());
        for (int i = 0; i < 2; i++)
            ok(rank_settle(&ranks[i]));
        ok(nccl->group_start());
        for (int twice = 0; twice < 2; twice++)
            for (int i = 0; i < 2; i++) {
                ok(cuda->memset_d32_async(ranks[i].in, 0x3f800000, SMALL, ranks[i].stream));
                ok(nccl->all_reduce((void *)ranks[i].in, (void *)ranks[i].in, SMALL, NCCL_FLOAT32,
                                    NCCL_SUM, ranks[i].comm, ranks[i].stream));
            }
        assert_int_equal(nccl->group_end(), blocking ? 0 : NCCL_IN_PROGRESS);
        for (int i = 0; i < 2; i++) {
            ok(rank_settle(&ranks[i]));
            ok(cuda->ctx_set_current(ranks[i].context));
            const float *sums = rank_get(&ranks[i], ranks[i].in, sizeof(float));
            assert_true(*sums == 4);
            ok(nccl->comm_destroy(ranks[i].comm));
            rank_device_close(&ranks[i]);
        }
    }
}

// The collective is in its stream's order, whatever the host does.
static void order_body(struct rank *rank)
{
    void *event, *producer;
    ok(rank_comm_open(rank));
    ok(cuda->event_create(&event, CUDA_EVENT_DISABLE_TIMING));
    ok(cuda->stream_create_with_priority(&producer, CUDA_STREAM_NON_BLOCKING, 0));
    for (int waits = 0; waits < 2; waits++) {
        ok(cuda->memset_d32_async(rank->in, 0, SMALL, rank->stream));
        ok(cuda->stream_synchronize(rank->stream));
        ok(cuda->memset_d32_async(rank->in, 0x3f800000, SMALL, producer));
        ok(cuda->event_record(event, producer));
        if (waits)
            ok(cuda->stream_wait_event(rank->stream, event, 0));
        ok(rank_all_reduce(rank, SMALL));
        const float *sums = rank_get(rank, rank->out, sizeof(float));
        assert_true(*sums == (waits ? 3.0f : 0.0f)); // A missing wait is seen, each time.
        ok(cuda->stream_synchronize(producer));
    }
    ok(cuda->stream_destroy(producer));
    ok(cuda->event_destroy(event));
    ok(nccl->comm_destroy(rank->comm));
}

static void test_a_collective_waits_for_its_stream(void **state)
{
    (void)state;
    fake_gpu_weather("FAKE_CUDA_LAZY_US=5000000", NULL);
    rank_threads_run(3, false, order_body);
}

// Collectives of a communicator are done in the order in which they were launched, on whichever
// stream.
static void test_two_streams_of_a_communicator(void **state)
{
    (void)state;
    struct rank rank = {.rank = 0, .ranks = 1, .blocking = true};
    void *other;
    uint32_t *flag;
    rank_device_open(&rank);
    ok(nccl->get_unique_id(&rank.id));
    ok(rank_comm_open(&rank));
    ok(cuda->stream_create_with_priority(&other, CUDA_STREAM_NON_BLOCKING, 0));
    ok(cuda->mem_host_alloc((void **)&flag, sizeof(*flag), 0));
    *flag = 0;
    ok(cuda->stream_wait_value32(other, (uintptr_t)flag, 1, CUDA_WAIT_VALUE_AT_LEAST));
    ok(nccl->all_reduce((void *)rank.in, (void *)rank.out, SMALL, NCCL_FLOAT32, NCCL_SUM, rank.comm,
                        other));
    ok(rank_all_reduce(&rank, SMALL));
    assert_true(rank_stands(&rank));
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
    ok(cuda->stream_synchronize(rank.stream));
    ok(cuda->stream_synchronize(other));
    ok(nccl->comm_destroy(rank.comm));
    rank_device_close(&rank);
}

// ---- what is refused ----------------------------------------------------------------------------

// Refused arguments: another device's stream, types that are none, handles that have ended.
static void test_misuse(void **state)
{
    (void)state;
    struct rank rank = {.rank = 0, .ranks = 1, .blocking = true};
    struct rank other = {.rank = 1, .ranks = 1, .blocking = true};
    int version;
    fake_gpu_weather("FAKE_NCCL_VERSION=21805", NULL);
    ok(nccl->get_version(&version));
    assert_int_equal(version, 21805);
    rank_device_open(&other);
    rank_device_open(&rank);
    ok(nccl->get_unique_id(&rank.id));
    ok(rank_comm_open(&rank));
    void *const memory = (void *)rank.in;
    const int invalid = NCCL_INVALID_ARGUMENT;
    assert_int_equal(nccl->all_reduce(memory, memory, 1, 99, NCCL_SUM, rank.comm, rank.stream),
                     invalid);
    assert_int_equal(nccl->all_reduce(memory, memory, 1, NCCL_INT8, 9, rank.comm, rank.stream),
                     invalid);
    assert_int_equal(nccl->all_reduce(memory, NULL, 1, NCCL_INT8, 0, rank.comm, rank.stream),
                     invalid);
    assert_int_equal(nccl->all_reduce(memory, memory, 1, NCCL_INT8, 0, rank.comm, other.stream),
                     invalid);
    assert_non_null(strstr(nccl->get_last_error(NULL), "not of the communicator's device"));
    assert_int_equal(nccl->group_end(), NCCL_INVALID_USAGE);
    ok(nccl->comm_destroy(rank.comm));
    assert_int_equal(nccl->comm_destroy(rank.comm), invalid);
    rank_device_close(&rank);
    ok(cuda->ctx_set_current(other.context));
    rank_device_close(&other);
}

// The result is checked by the device, when it is written.
static void test_memory_of_the_host_is_refused(void **state)
{
    (void)state;
    static float mine[SMALL];
    struct rank rank = {.rank = 0, .ranks = 1, .blocking = true};
    rank_device_open(&rank);
    ok(nccl->get_unique_id(&rank.id));
    ok(rank_comm_open(&rank));
    ok(nccl->all_reduce(mine, mine, SMALL, NCCL_FLOAT32, NCCL_SUM, rank.comm, rank.stream));
    assert_int_equal(cuda->stream_synchronize(rank.stream), CUDA_ILLEGAL_ADDRESS);
    ok(nccl->comm_abort(rank.comm));
    rank_device_close(&rank);
}

#define with_fair_weather(test) \
    cmocka_unit_test_setup_teardown(test, fake_weather_fair, fake_nothing_left)

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_fair_weather(test_sums_in_the_order_of_ranks),
        with_fair_weather(test_halves_of_a_sum),
        with_fair_weather(test_other_types),
        with_fair_weather(test_launches_are_in_progress),
        with_fair_weather(test_groups),
        with_fair_weather(test_a_collective_waits_for_its_stream),
        with_fair_weather(test_two_streams_of_a_communicator),
        with_fair_weather(test_misuse),
        with_fair_weather(test_memory_of_the_host_is_refused),
    };
    return cmocka_run_group_tests(tests, fake_rig_load, NULL);
}
