// SPDX-License-Identifier: Apache-2.0
// groups: ranks in a grid of two columns. Each rank is in two groups that overlap in it alone: its
// row (as for tensor parallelism) and its column (as for data parallelism). A row sums the parts of
// a result; a column then averages over its rows, without waiting: a poll loop hears of the end. At
// last the ranks make a training step: each column has a module of its own, the shard of a layer.
#include <lockstep/lockstep.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define COLUMNS 2

static void check(int status)
{
    if (status < 0) {
        fprintf(stderr, "%s\n", lockstep_error_text());
        exit(1);
    }
}

// Waits for the work in a poll loop, which could have other descriptors, too.
static void finish(lockstep_session *session, lockstep_work *work)
{
    uint64_t bell;
    int status;
    struct pollfd ready = {-1, POLLIN, 0};
    check(lockstep_session_fd(session, &ready.fd));
    do {
        if (poll(&ready, 1, -1) < 0 || read(ready.fd, &bell, sizeof(bell)) < 0)
            exit(1);
        status = lockstep_work_wait(work, 0);
    } while (status == LOCKSTEP_E_TIMEOUT);
    check(status);
}

// Makes one step. The gradient of this rank's shard is averaged in its column. Returns the average.
static float average_shard(lockstep_session *session, lockstep_group *column, float gradient)
{
    static float value;
    const int64_t shape = 1;
    const struct lockstep_parameter weight = {
        .name = "weight", .dtype = LOCKSTEP_FLOAT32, .dims = 1, .shape = &shape, .data = &value};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *shard;
    lockstep_call *call;
    config.name = "shard";
    config.parameters = &weight;
    config.parameter_count = 1;
    config.group = column;
    check(lockstep_module_register(session, &config, &shard));
    check(lockstep_start(session));
    check(lockstep_step_begin(session, NULL, NULL));
    check(lockstep_call_begin(shard, &call));
    check(lockstep_grad_ready(shard, NULL, 0, &gradient, NULL));
    check(lockstep_call_end(call));
    check(lockstep_step_end(session, NULL));
    check(lockstep_module_close(shard));
    return gradient;
}

int main(void)
{
    lockstep_session *session;
    lockstep_group *row, *column;
    lockstep_work *work;
    uint32_t rank, world_size, ranks[64], count = 0;
    check(lockstep_open(NULL, &session));
    check(lockstep_world(session, &rank, &world_size));
    if (world_size > 64) {
        fprintf(stderr, "this example has room for 64 ranks\n");
        return 1;
    }

    // All ranks of one row give the same ranks and the same name; other rows may use the name, too.
    for (uint32_t r = rank - rank % COLUMNS; r < world_size && count < COLUMNS; r++)
        ranks[count++] = r;
    const uint32_t row_size = count;
    check(lockstep_group_create(session, ranks, count, "row", &row));
    count = 0;
    for (uint32_t r = rank % COLUMNS; r < world_size; r += COLUMNS)
        ranks[count++] = r;
    const uint32_t column_size = count;
    check(lockstep_group_create(session, ranks, count, "column", &column));

    float value = (float)(rank + 1);
    struct lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
    what.kind = LOCKSTEP_ALLREDUCE;
    what.name = "value";
    what.output = &value; // In place.
    what.count = 1;
    what.dtype = LOCKSTEP_FLOAT32;
    what.group = row;
    what.op = LOCKSTEP_SUM;
    check(lockstep_collective_run(session, &what, LOCKSTEP_WAIT_FOREVER));
    const float sum = value;
    what.group = column; // The same name: each group has names of its own.
    what.op = LOCKSTEP_MEAN;
    check(lockstep_collective_begin(session, &what, &work));
    finish(session, work);
    const float shard = average_shard(session, column, (float)(10 * rank));

    check(lockstep_group_close(row));
    check(lockstep_group_close(column));
    check(lockstep_close(session));
    printf("rank %u of %u: a row of %u sums to %.1f, a column of %u averages to %.1f; its "
           "shard to %.1f\n",
           (unsigned)rank, (unsigned)world_size, (unsigned)row_size, (double)sum,
           (unsigned)column_size, (double)value, (double)shard);
    return 0;
}
