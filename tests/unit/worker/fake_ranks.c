// SPDX-License-Identifier: Apache-2.0
//
// See fake_ranks.h.
#include "tests/unit/worker/fake_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum {
    SOON_MS = 20000
}; // For what comes, on any machine.

int rank_error(const struct rank *rank)
{
    int error;
    ok(nccl->comm_get_async_error(rank->comm, &error));
    return error;
}

int rank_settle(const struct rank *rank)
{
    const uint64_t deadline = clock_now_ms() + SOON_MS;
    int error = rank_error(rank);
    while (error == NCCL_IN_PROGRESS && clock_now_ms() < deadline) {
        usleep(100);
        error = rank_error(rank);
    }
    return error;
}

int rank_launched(const struct rank *rank, int result)
{
    return result == NCCL_IN_PROGRESS ? rank_settle(rank) : result;
}

void rank_device_open(struct rank *rank)
{
    ok(cuda->init(0));
    ok(cuda->device_primary_ctx_retain(&rank->context, rank->rank));
    ok(cuda->ctx_set_current(rank->context));
    ok(cuda->stream_create_with_priority(&rank->stream, CUDA_STREAM_NON_BLOCKING, 0));
    ok(cuda->mem_alloc(&rank->in, ROW_BYTES));
    ok(cuda->mem_alloc(&rank->out, ROW_BYTES));
    ok(cuda->mem_host_alloc((void **)&rank->host, ROW_BYTES, 0));
}

void rank_device_close(struct rank *rank)
{
    ok(cuda->ctx_set_current(NULL));
    ok(cuda->device_primary_ctx_release(rank->rank));
}

int rank_comm_open(struct rank *rank)
{
    struct nccl_config config = NCCL_CONFIG_INIT;
    config.blocking = rank->blocking;
    return rank_launched(
        rank, nccl->comm_init_rank_config(&rank->comm, rank->ranks, rank->id, rank->rank, &config));
}

static void run_body(void *argument)
{
    struct rank *rank = argument;
    rank_device_open(rank);
    rank->body(rank);
    rank_device_close(rank);
}

void rank_threads_run(int ranks, bool blocking, void (*body)(struct rank *rank))
{
    struct rank all[TEST_RANKS] = {0};
    struct nccl_unique_id id;
    ok(nccl->get_unique_id(&id));
    for (int i = 0; i < ranks; i++) {
        all[i] =
            (struct rank){.rank = i, .ranks = ranks, .id = id, .blocking = blocking, .body = body};
        ok(thread_start(&all[i].thread, "rank", run_body, &all[i]));
    }
    for (int i = 0; i < ranks; i++)
        thread_join(&all[i].thread);
}

void rank_put(const struct rank *rank, const void *values, size_t bytes)
{
    memcpy(rank->host, values, bytes);
    ok(cuda->memcpy_htod_async(rank->in, rank->host, bytes, rank->stream));
    ok(cuda->stream_synchronize(rank->stream));
}

const void *rank_get(const struct rank *rank, uint64_t from, size_t bytes)
{
    ok(cuda->memcpy_dtoh_async(rank->host, from, bytes, rank->stream));
    ok(cuda->stream_synchronize(rank->stream));
    return rank->host;
}

int rank_all_reduce(const struct rank *rank, size_t count)
{
    return rank_launched(rank, nccl->all_reduce((void *)rank->in, (void *)rank->out, count,
                                                NCCL_FLOAT32, NCCL_SUM, rank->comm, rank->stream));
}

bool rank_stands(const struct rank *rank)
{
    usleep(NOT_YET_MS * 1000);
    return cuda->stream_query(rank->stream) == CUDA_NOT_READY;
}

float value_of(int rank, size_t i)
{
    return (float)(rank + 1) + (float)i * 0.37f;
}

float *row_of(int rank, size_t count)
{
    float *row = malloc(count * sizeof(*row));
    for (size_t i = 0; i < count; i++)
        row[i] = value_of(rank, i);
    return row;
}

void assert_sum(const float *out, int ranks, size_t first, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float sum = value_of(0, first + i);
        for (int rank = 1; rank < ranks; rank++)
            sum += value_of(rank, first + i);
        if (out[i] != sum)
            fail_msg("element %zu is %g, not %g", i, (double)out[i], (double)sum);
    }
}
