// SPDX-License-Identifier: Apache-2.0
//
// Collectives of any kind for tests of recovery: kinds_job.h.

#include "tests/fault/kinds_job.h"

#include <stdio.h>
#include <string.h>

int32_t kinds_value(uint32_t id, uint32_t to, uint32_t turn, uint64_t e)
{
    return (int32_t)(1 + (e + 3 * to + turn) % 7) << 5 * id;
}

static bool varies(enum operation operation)
{
    return operation == GATHER_V || operation == SCATTER_V || operation == ALL_GATHER_V ||
           operation == REDUCE_SCATTER_V || operation == ALL_TO_ALL_V;
}

static bool in_place(enum operation operation)
{
    return operation == ALL_GATHER_IN_PLACE || operation == REDUCE_SCATTER_IN_PLACE ||
           operation == ALL_TO_ALL_IN_PLACE;
}

static lockstep_collective_kind kind_of(enum operation operation)
{
    static const lockstep_collective_kind kinds[] = {
        [REDUCE] = LOCKSTEP_REDUCE,
        [GATHER] = LOCKSTEP_GATHER,
        [GATHER_V] = LOCKSTEP_GATHER,
        [SCATTER] = LOCKSTEP_SCATTER,
        [SCATTER_V] = LOCKSTEP_SCATTER,
        [ALL_GATHER] = LOCKSTEP_ALL_GATHER,
        [ALL_GATHER_V] = LOCKSTEP_ALL_GATHER,
        [ALL_GATHER_IN_PLACE] = LOCKSTEP_ALL_GATHER,
        [REDUCE_SCATTER] = LOCKSTEP_REDUCE_SCATTER,
        [REDUCE_SCATTER_V] = LOCKSTEP_REDUCE_SCATTER,
        [REDUCE_SCATTER_IN_PLACE] = LOCKSTEP_REDUCE_SCATTER,
        [ALL_TO_ALL] = LOCKSTEP_ALL_TO_ALL,
        [ALL_TO_ALL_V] = LOCKSTEP_ALL_TO_ALL,
        [ALL_TO_ALL_IN_PLACE] = LOCKSTEP_ALL_TO_ALL,
        [SUM] = LOCKSTEP_ALLREDUCE,
        [COPY] = LOCKSTEP_BROADCAST,
        [GROUP_SUM] = LOCKSTEP_ALLREDUCE,
        [GROUP_GATHER] = LOCKSTEP_ALL_GATHER,
        [GROUP_COPY] = LOCKSTEP_BROADCAST,
    };
    return kinds[operation];
}

// Where the part of a place begins.
static uint64_t begin_of(const struct kinds_job *job, uint32_t place)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < place; i++)
        at += job->counts[i];
    return at;
}

// ALL_TO_ALL_V sends to each member as much as that member gets from each.
static void name_counts(struct kinds_job *job)
{
    const lockstep_collective_kind kind = job->what.kind;
    for (uint32_t i = 0; i < job->n; i++)
        job->received[i] = job->counts[job->own];
    if (!varies(job->operation))
        return;
    if (job->parts)
        job->what.input_counts = job->counts;
    if (kind == LOCKSTEP_GATHER || kind == LOCKSTEP_ALL_GATHER)
        job->what.output_counts = job->counts;
    if (kind == LOCKSTEP_ALL_TO_ALL)
        job->what.output_counts = job->received;
}

static void fill(const struct kinds_job *job, int32_t *data)
{
    const uint32_t parts = job->parts ? job->n : 1;
    for (uint32_t p = 0; p < parts; p++) {
        const uint32_t to = job->parts ? job->members[p] : KINDS_RANKS;
        const uint64_t count = job->counts[job->parts ? p : job->own];
        int32_t *part = data + (job->parts ? begin_of(job, p) : 0);
        for (uint64_t e = 0; e < count; e++)
            part[e] = kinds_value(job->id, to, job->turn, e);
    }
}

void kinds_lay(struct kinds_job *job)
{
    const uint64_t count =
        (job->turn + (uint32_t)job->operation) % 5 == 0 ? KINDS_MOST : 30 + job->operation;
    struct lockstep_collective *what = &job->what;
    *what = (struct lockstep_collective)LOCKSTEP_COLLECTIVE_INIT;
    snprintf(job->name, sizeof(job->name), "k%u", (unsigned)job->operation % 100);
    what->kind = kind_of(job->operation);
    what->name = job->name;
    what->group = job->group;
    what->count = count;
    what->dtype = LOCKSTEP_INT32;
    what->root = job->turn % 2 == 0 ? 0 : job->n - 1;
    what->input = in_place(job->operation) ? NULL : job->input;
    what->output = job->output;
    for (uint32_t i = 0; i < job->n; i++)
        job->counts[i] = varies(job->operation) ? count / 2 + job->members[i] * 7 : count;
    job->parts = what->kind == LOCKSTEP_SCATTER || what->kind == LOCKSTEP_REDUCE_SCATTER ||
                 what->kind == LOCKSTEP_ALL_TO_ALL;
    job->sums = what->kind == LOCKSTEP_REDUCE || what->kind == LOCKSTEP_ALLREDUCE ||
                what->kind == LOCKSTEP_REDUCE_SCATTER;
    name_counts(job);
    memset(job->output, -1, (count + 100) * job->n * sizeof(*job->output));
    if (what->input)
        fill(job, job->input);
    else
        fill(job, job->output + (job->parts ? 0 : begin_of(job, job->own)));
}

// True if data is what the member `from`, or all of them together, gives to `to`.
static bool part_is(const struct kinds_job *job, const int32_t *data, uint64_t count, uint32_t from,
                    uint32_t to)
{
    for (uint64_t e = 0; e < count; e++) {
        int32_t right = 0;
        for (uint32_t i = 0; i < job->n; i++)
            if (job->sums || job->members[i] == from)
                right += kinds_value(job->members[i], to, job->turn, e);
        if (data[e] != right)
            return false;
    }
    return true;
}

bool kinds_right(const struct kinds_job *job)
{
    const struct lockstep_collective *what = &job->what;
    const bool root = what->root == job->own;
    const uint32_t from = job->members[what->root];
    const uint64_t own = job->counts[job->own];
    const int32_t *data = job->output;
    bool right = true;
    if (what->kind == LOCKSTEP_ALLREDUCE || what->kind == LOCKSTEP_BROADCAST ||
        (what->kind == LOCKSTEP_REDUCE && root))
        right = part_is(job, data, what->count, from, KINDS_RANKS);
    if (what->kind == LOCKSTEP_SCATTER)
        right = part_is(job, data, own, from, job->id);
    if (what->kind == LOCKSTEP_REDUCE_SCATTER)
        right = part_is(job, data + (what->input ? 0 : begin_of(job, job->own)), own, 0, job->id);
    for (uint32_t p = 0; p < job->n && right; p++) {
        if (what->kind == LOCKSTEP_ALL_GATHER || (what->kind == LOCKSTEP_GATHER && root))
            right =
                part_is(job, data + begin_of(job, p), job->counts[p], job->members[p], KINDS_RANKS);
        if (what->kind == LOCKSTEP_ALL_TO_ALL)
            right = part_is(job, data + p * own, own, job->members[p], job->id);
    }
    return right;
}

bool kinds_untouched(const struct kinds_job *job)
{
    const uint64_t count = job->parts ? begin_of(job, job->n) : job->counts[job->own];
    if (!job->what.input)
        return true;
    fill(job, job->output);
    return memcmp(job->input, job->output, count * sizeof(*job->input)) == 0;
}

int kinds_open(lockstep_session **session, uint32_t id, uint16_t port, const char *transport,
               const char *device)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    struct lockstep_module_config module = LOCKSTEP_MODULE_INIT;
    struct lockstep_parameter parameter = {.name = "p", .dtype = LOCKSTEP_FLOAT32, .dims = 1};
    static float value[2];
    static const int64_t length = 1;
    lockstep_module *made;
    char address[64];
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    config.coordinator = address;
    config.job = "recovery-kinds";
    config.world_size = KINDS_RANKS;
    config.rank_hint = (int32_t)id;
    config.on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    config.device = device;
    config.transport =
        strcmp(transport, "tcp") == 0 ? LOCKSTEP_TRANSPORT_TCP : LOCKSTEP_TRANSPORT_AUTO;
    int status = lockstep_open(&config, session);
    parameter.shape = &length;
    parameter.data = &value[0];
    parameter.gradient = &value[1];
    module.name = "m";
    module.parameters = &parameter;
    module.parameter_count = 1;
    if (status == 0)
        status = lockstep_module_register(*session, &module, &made);
    return status < 0 ? status : lockstep_start(*session);
}
