// SPDX-License-Identifier: Apache-2.0
//
// libnccl-fake.so: launches, alone and in groups. Each thread has its own group. The end of a group
// queues the operations of blocking communicators in their streams, and hands the operations of
// non-blocking communicators to the communicators' threads, which queue them. A group must not
// contain both kinds.
#include "tests/fake_gpu/nccl_inside.h"

#include "tests/fake_gpu/hooks.h"

static _Thread_local uint32_t group_depth;
static _Thread_local uint32_t group_count;
static _Thread_local struct nccl_task *group[GROUP_TASKS];
static _Thread_local int group_error;
// Blocking communicators for whose init the end of the group waits.
static _Thread_local struct comm *inits[GROUP_TASKS];
static _Thread_local uint32_t init_count;

bool group_defers_init(struct comm *comm)
{
    if (group_depth == 0 || init_count == GROUP_TASKS)
        return false;
    inits[init_count++] = comm;
    return true;
}

// ---- tasks of a group ---------------------------------------------------------------------------

static struct nccl_task *task_take_locked(struct comm *comm)
{
    for (;;) {
        for (uint32_t i = 0; i < COMM_TASKS; i++)
            if (!comm->tasks[i].used)
                return &comm->tasks[i];
        cond_wait(&world.changed, &world.mutex);
    }
}

static bool is_in_group(const struct comm *comm)
{
    for (uint32_t i = 0; i < group_count; i++)
        if (group[i]->comm == comm)
            return true;
    return false;
}

static int group_add_locked(struct comm *comm, const struct nccl_task *wanted)
{
    if (group_count == GROUP_TASKS)
        return NCCL_INVALID_USAGE;
    if (group_count && group[0]->comm->blocking != comm->blocking) {
        nccl_complain_locked("a group holds communicators that block and others that do not");
        return NCCL_INVALID_ARGUMENT;
    }
    struct nccl_task *task = task_take_locked(comm);
    *task = *wanted;
    task->comm = comm;
    task->used = true;
    task->call.position = comm->launched++;
    comm->holders++;
    group[group_count++] = task;
    return 0;
}

// Hands each communicator's operations of the group to the communicator's thread.
static void group_hand_over_locked(void)
{
    for (uint32_t i = 0; i < group_count; i++) {
        struct comm *comm = group[i]->comm;
        comm->group[comm->group_count++] = group[i];
        comm->step = STEP_LAUNCH;
    }
    cond_broadcast(&world.changed);
}

static int group_init(void)
{
    int result = 0;
    mutex_lock(&world.mutex);
    for (uint32_t i = 0; i < init_count; i++) {
        const int error = comm_init_wait_locked(inits[i]);
        result = result ? result : error;
    }
    init_count = 0;
    mutex_unlock(&world.mutex);
    return result;
}

static int group_launch(void)
{
    const uint32_t count = group_count;
    const int init = group_init();
    int result = group_error ? group_error : init;
    if (count && !group[0]->comm->blocking) {
        mutex_lock(&world.mutex);
        group_hand_over_locked();
        mutex_unlock(&world.mutex);
        result = result ? result : NCCL_IN_PROGRESS;
    } else {
        tasks_launch(group, count);
    }
    group_count = 0;
    group_error = 0;
    return result;
}

EXPORTED int ncclGroupStart(void);
int ncclGroupStart(void)
{
    const int result = nccl_enter("ncclGroupStart", -1);
    group_depth += !result;
    return nccl_leave(result);
}

EXPORTED int ncclGroupEnd(void);
int ncclGroupEnd(void)
{
    int result = nccl_enter("ncclGroupEnd", -1);
    if (group_depth == 0)
        result = NCCL_INVALID_USAGE;
    nccl_leave(0);
    if (result || --group_depth > 0)
        return result;
    return group_launch();
}

// ---- collectives --------------------------------------------------------------------------------

static int arguments_fault(const struct comm *comm, const struct nccl_task *wanted)
{
    const struct segment_call *call = &wanted->call;
    const bool gives = call->kind != KIND_BROADCAST || call->root == comm->rank;
    if (nccl_type_bytes(call->type) == 0 || call->reduction < 0 || call->reduction >= REDUCTIONS)
        return NCCL_INVALID_ARGUMENT;
    if (call->root < 0 || call->root >= comm->ranks)
        return NCCL_INVALID_ARGUMENT;
    if (call->count && (!wanted->out || (gives && !wanted->in)))
        return NCCL_INVALID_ARGUMENT;
    return 0;
}

static int collective(const char *name, void *handle, const struct nccl_task *wanted)
{
    mutex_lock(&world.mutex);
    struct comm *comm = comm_of_locked(handle);
    const int rank = comm ? comm->rank : -1;
    const int device = comm ? comm->device : 0;
    mutex_unlock(&world.mutex);
    const int stream_device = fake_cuda_stream_device(wanted->stream, device);
    int result = nccl_enter(name, rank);
    comm = comm_of_locked(handle);
    // A group may contain several operations of one communicator.
    if (!result && !(comm && is_in_group(comm)))
        result = comm_ready_locked(name, comm);
    if (!result)
        result = arguments_fault(comm, wanted);
    if (!result && stream_device != device) {
        nccl_complain_locked("%s: the stream is not of the communicator's device", name);
        result = NCCL_INVALID_ARGUMENT;
    }
    if (!result)
        result = group_add_locked(comm, wanted);
    nccl_leave(0);
    if (group_depth == 0)
        return result ? result : group_launch();
    if (result)
        group_error = result;
    return result;
}

EXPORTED int ncclAllReduce(const void *in, void *out, size_t count, int type, int reduction,
                           void *comm, void *stream);
int ncclAllReduce(const void *in, void *out, size_t count, int type, int reduction, void *comm,
                  void *stream)
{
    const struct nccl_task wanted = {
        .in = in,
        .out = out,
        .stream = stream,
        .call = {.kind = KIND_ALL_REDUCE, .type = type, .reduction = reduction, .count = count},
    };
    return collective("ncclAllReduce", comm, &wanted);
}

EXPORTED int ncclReduceScatter(const void *in, void *out, size_t count, int type, int reduction,
                               void *comm, void *stream);
int ncclReduceScatter(const void *in, void *out, size_t count, int type, int reduction, void *comm,
                      void *stream)
{
    const struct nccl_task wanted = {
        .in = in,
        .out = out,
        .stream = stream,
        .call = {.kind = KIND_REDUCE_SCATTER, .type = type, .reduction = reduction, .count = count},
    };
    return collective("ncclReduceScatter", comm, &wanted);
}

EXPORTED int ncclAllGather(const void *in, void *out, size_t count, int type, void *comm,
                           void *stream);
int ncclAllGather(const void *in, void *out, size_t count, int type, void *comm, void *stream)
{
    const struct nccl_task wanted = {
        .in = in,
        .out = out,
        .stream = stream,
        .call = {.kind = KIND_ALL_GATHER, .type = type, .count = count},
    };
    return collective("ncclAllGather", comm, &wanted);
}

EXPORTED int ncclBroadcast(const void *in, void *out, size_t count, int type, int root, void *comm,
                           void *stream);
int ncclBroadcast(const void *in, void *out, size_t count, int type, int root, void *comm,
                  void *stream)
{
    const struct nccl_task wanted = {
        .in = in,
        .out = out,
        .stream = stream,
        .call = {.kind = KIND_BROADCAST, .type = type, .root = root, .count = count},
    };
    return collective("ncclBroadcast", comm, &wanted);
}
