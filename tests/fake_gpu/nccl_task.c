// SPDX-License-Identifier: Apache-2.0
//
// libnccl-fake.so: collectives. An operation runs on the thread of its stream, when its turn in
// that stream has come and all earlier operations of its communicator are done. It then waits for
// the operation at the same position on every other rank. Ranks that launch in different orders or
// with different counts hang until a rank aborts, as on devices. The data goes through the segment
// in chunks; sums are added in the order of ranks.
#include "tests/fake_gpu/nccl_inside.h"

#include "tests/fake_gpu/hooks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *kind_name(int kind)
{
    static const char *const names[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast"};
    return names[kind];
}

// ---- data ---------------------------------------------------------------------------------------

// The data of one operation on one rank.
struct passage {
    struct comm *comm;
    const struct segment_call *call;
    const unsigned char *in;
    unsigned char *out;
    uint64_t out_bytes;
    size_t element;
};

static unsigned char *area(const struct passage *passage, int rank)
{
    return passage->comm->segment->data[rank];
}

// Copies a chunk of this rank's input to its area; all ranks can read it after the next
// comm_meet().
static void put(const struct passage *passage, uint64_t from, size_t bytes)
{
    memcpy(area(passage, passage->comm->rank), passage->in + from, bytes);
}

static void reduce_into(const struct passage *passage, unsigned char *out, size_t bytes)
{
    const struct segment_call *call = passage->call;
    const size_t count = bytes / passage->element;
    const enum nccl_reduction op = (enum nccl_reduction)call->reduction;
    memcpy(out, area(passage, 0), bytes);
    for (int rank = 1; rank < passage->comm->ranks; rank++)
        nccl_combine(op, call->type, out, area(passage, rank), count);
    if (op == REDUCTION_AVG)
        nccl_average(call->type, out, count, (unsigned)passage->comm->ranks);
}

// Writes this rank's output from the chunks of all ranks, which are in the segment.
static void take(const struct passage *passage, uint64_t at, int part, size_t bytes)
{
    const struct comm *comm = passage->comm;
    const uint64_t row = passage->call->count * passage->element;
    switch ((enum nccl_kind)passage->call->kind) {
    case KIND_ALL_REDUCE:
        reduce_into(passage, passage->out + at, bytes);
        break;
    case KIND_REDUCE_SCATTER:
        if (part == comm->rank)
            reduce_into(passage, passage->out + at, bytes);
        break;
    case KIND_ALL_GATHER:
        for (int rank = 0; rank < comm->ranks; rank++)
            memcpy(passage->out + (uint64_t)rank * row + at, area(passage, rank), bytes);
        break;
    case KIND_BROADCAST:
        memcpy(passage->out + at, area(passage, passage->call->root), bytes);
        break;
    }
}

// Moves all chunks. Each rank reads a chunk of its input before it writes that chunk of its output,
// so in-place operations work.
static bool pass(const struct passage *passage)
{
    const struct segment_call *call = passage->call;
    const uint64_t row = call->count * passage->element;
    const int parts = call->kind == KIND_REDUCE_SCATTER ? passage->comm->ranks : 1;
    const bool gives = call->kind != KIND_BROADCAST || call->root == passage->comm->rank;
    for (int part = 0; part < parts; part++)
        for (uint64_t at = 0; at < row; at += SEGMENT_CHUNK_BYTES) {
            const uint64_t left = row - at;
            const size_t bytes = left < SEGMENT_CHUNK_BYTES ? (size_t)left : SEGMENT_CHUNK_BYTES;
            if (gives)
                put(passage, (uint64_t)part * row + at, bytes);
            if (!comm_meet(passage->comm))
                return false;
            take(passage, at, part, bytes);
            if (!comm_meet(passage->comm))
                return false;
        }
    return true;
}

// ---- meeting ------------------------------------------------------------------------------------

static bool calls_agree(const struct comm *comm)
{
    const struct segment_call *mine = &comm->segment->rank[comm->rank].call;
    for (int rank = 0; rank < comm->ranks; rank++) {
        const struct segment_call *other = &comm->segment->rank[rank].call;
        if (other->kind != mine->kind || other->type != mine->type ||
            other->reduction != mine->reduction || other->root != mine->root ||
            other->count != mine->count || other->position != mine->position)
            return false;
    }
    return true;
}

// Waits until the communicator is aborted or the device is lost, as kernels do that wait for the
// data of other ranks in vain.
static void stand_until_given_up(struct comm *comm)
{
    while (!comm_given_up(comm) && !fake_cuda_lost(comm->device)) {
        const uint32_t bell = atomic_load(&comm->segment->bell);
        segment_wait(comm->segment, bell);
    }
}

// Waits for the operation's turn in its communicator. False: its own rank aborted the communicator.
static bool wait_for_turn(struct comm *comm, const struct nccl_task *task)
{
    while (comm->turn != task->call.position && !comm->aborted)
        cond_wait(&world.changed, &world.mutex);
    return !comm->aborted;
}

static int task_strike(const struct comm *comm, const struct nccl_task *task)
{
    struct faults *faults = &world.weather.faults;
    const int every = faults_strike(faults, "op", comm->rank);
    const int named = faults_strike(faults, kind_name(task->call.kind), comm->rank);
    return every ? every : named;
}

// Runs the operation together with the other ranks. False: aborted, or the device was lost.
static bool meet_and_pass(struct comm *comm, const struct passage *passage)
{
    comm->segment->rank[comm->rank].call = *passage->call;
    if (!comm_meet(comm))
        return false;
    if (!calls_agree(comm)) {
        stand_until_given_up(comm);
        return false;
    }
    return pass(passage) && comm_meet(comm);
}

// ---- the run ------------------------------------------------------------------------------------

static uint64_t in_bytes(const struct comm *comm, const struct segment_call *call)
{
    const uint64_t rows = call->kind == KIND_REDUCE_SCATTER ? (uint64_t)comm->ranks : 1;
    return rows * call->count * nccl_type_bytes(call->type);
}

static uint64_t out_bytes(const struct comm *comm, const struct segment_call *call)
{
    const uint64_t rows = call->kind == KIND_ALL_GATHER ? (uint64_t)comm->ranks : 1;
    return rows * call->count * nccl_type_bytes(call->type);
}

static void task_run_unlocked(struct comm *comm, struct nccl_task *task, int strike)
{
    const struct segment_call *call = &task->call;
    struct passage passage = {
        .comm = comm,
        .call = call,
        .out_bytes = out_bytes(comm, call),
        .element = nccl_type_bytes(call->type),
    };
    const bool gives = call->kind != KIND_BROADCAST || call->root == comm->rank;
    if (call->count) {
        passage.out = fake_cuda_view(comm->device, (uintptr_t)task->out, passage.out_bytes, "NCCL");
        passage.in =
            gives ? fake_cuda_view(comm->device, (uintptr_t)task->in, in_bytes(comm, call), "NCCL")
                  : NULL;
        if (!passage.out || (gives && !passage.in))
            return; // The context is broken, and the other ranks hang.
    }
    if (strike)
        stand_until_given_up(comm);
    if ((strike || !meet_and_pass(comm, &passage)) && !fake_cuda_lost(comm->device))
        memset(passage.out, GARBAGE, passage.out_bytes);
}

static void task_end_locked(struct comm *comm, struct nccl_task *task)
{
    // Aborted operations end in the order in which their streams reach them.
    comm->turn++;
    task->used = false;
    comm_release_locked(comm);
}

// On the stream's thread.
static void task_run(void *argument, bool dropped)
{
    struct nccl_task *task = argument;
    struct comm *comm = task->comm;
    mutex_lock(&world.mutex);
    if (!dropped) {
        task->stands = true;
        const bool runs = wait_for_turn(comm, task);
        const int strike = runs ? task_strike(comm, task) : 0;
        if (strike > 0) {
            nccl_complain_locked("%s on rank %d:\n\tas it was told to\n",
                                 kind_name(task->call.kind), comm->rank);
            comm_fail_locked(comm, strike);
        }
        comm->running += runs;
        mutex_unlock(&world.mutex);
        task_run_unlocked(comm, task, strike);
        mutex_lock(&world.mutex);
        comm->running -= runs;
        task->stands = false;
    }
    task_end_locked(comm, task);
    mutex_unlock(&world.mutex);
}

void tasks_launch(struct nccl_task **tasks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct nccl_task *task = tasks[i];
        struct comm *comm = task->comm;
        const int result =
            fake_cuda_call(task->stream, comm->device, kind_name(task->call.kind), task_run, task);
        if (!result)
            continue;
        mutex_lock(&world.mutex);
        comm_fail_locked(comm, NCCL_CUDA_ERROR);
        task_end_locked(comm, task);
        mutex_unlock(&world.mutex);
    }
}

// ---- the report ---------------------------------------------------------------------------------

// Prints the position of each rank that is not at the same operation. The other ranks change these
// fields concurrently, so the report may be inexact.
static void report_others(const struct comm *comm, const struct segment_call *call, FILE *out)
{
    const struct segment_rank *ranks = comm->segment->rank;
    const uint64_t phase = atomic_load(&ranks[comm->rank].phase);
    for (int rank = 0; rank < comm->ranks; rank++) {
        if (rank == comm->rank)
            continue;
        const struct segment_call *other = &ranks[rank].call;
        if (atomic_load(&ranks[rank].phase) < phase)
            fprintf(out, ", rank %d has not come", rank);
        else if (other->position != call->position || other->kind != call->kind ||
                 other->count != call->count)
            fprintf(out, ", rank %d is at %s of %" PRIu64 " %s", rank, kind_name(other->kind),
                    other->count, nccl_type_name(other->type));
    }
}

static void report_task(const struct comm *comm, const struct nccl_task *task, FILE *out)
{
    const struct segment_call *call = &task->call;
    fprintf(out, "rank %d of %d stands at operation %" PRIu64 ", %s of %" PRIu64 " %s", comm->rank,
            comm->ranks, call->position, kind_name(call->kind), call->count,
            nccl_type_name(call->type));
    if (call->position != comm->turn)
        fprintf(out, ", behind operation %" PRIu64, comm->turn);
    else if (comm->segment)
        report_others(comm, call, out);
    fputc('\n', out);
}

EXPORTED fake_nccl_report_function fake_nccl_report;
void fake_nccl_report(char *text, size_t bytes)
{
    text[0] = '\0';
    FILE *out = fmemopen(text, bytes, "w");
    if (!out)
        return;
    mutex_lock(&world.mutex);
    for (size_t i = 0; i < COMMS_MAX && world.comms[i]; i++) {
        const struct comm *comm = world.comms[i];
        for (size_t k = 0; k < COMM_TASKS && comm->holders; k++)
            if (comm->tasks[k].used && comm->tasks[k].stands)
                report_task(comm, &comm->tasks[k], out);
    }
    mutex_unlock(&world.mutex);
    fclose(out);
}
