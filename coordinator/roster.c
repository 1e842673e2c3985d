// SPDX-License-Identifier: Apache-2.0
//
// Who gets which rank, and the birth of a generation. Runs inside coordinator_step.
//
// Words: the *gatherers* are the job's workers in order of arrival; a *group* is named by the first
// gatherer of a host, so that hosts have an order too. Workers with a hint get it when all hints
// are below the world size. The rest fill the free ranks from the lowest, group by group.

#include "coordinator/core.h"
#include "protos/topology.h"

struct roster {
    uint32_t size;
    uint16_t group[LOCKSTEP_MAX_WORLD]; // Of each gatherer: index of the first one of its host.
    uint16_t at[LOCKSTEP_MAX_WORLD]; // Of each rank: the gatherer that has it, or CORE_NONE.
};

static void roster_group(struct coordinator *core, const struct job *job, struct roster *roster)
{
    for (uint16_t i = 0; i < roster->size; i++) {
        const char *host = job_worker(core, job, i)->hello.host_id;
        uint16_t first = 0;
        while (first < i && (roster->group[first] != first ||
                             strcmp(job_worker(core, job, first)->hello.host_id, host) != 0))
            first++;
        roster->group[i] = first;
    }
}

static bool roster_hints_hold(struct coordinator *core, const struct job *job)
{
    for (uint32_t i = 0; i < job->count; i++) {
        const struct up_hello *hello = &job_worker(core, job, i)->hello;
        if (hello->has_rank_hint && hello->rank_hint >= job->count)
            return false;
    }
    return true;
}

static uint32_t roster_fill_group(struct roster *roster, const bool *placed, uint16_t group,
                                  uint32_t rank)
{
    for (uint16_t i = group; i < roster->size; i++) {
        if (placed[i] || roster->group[i] != group)
            continue;
        while (roster->at[rank] != CORE_NONE)
            rank++;
        roster->at[rank] = i;
    }
    return rank;
}

static void roster_assign(struct coordinator *core, const struct job *job, struct roster *roster)
{
    bool placed[LOCKSTEP_MAX_WORLD] = {false};
    const bool hints = roster_hints_hold(core, job);
    uint32_t rank = 0;
    for (uint32_t i = 0; i < roster->size; i++)
        roster->at[i] = CORE_NONE;
    for (uint16_t i = 0; hints && i < roster->size; i++) {
        const struct up_hello *hello = &job_worker(core, job, i)->hello;
        placed[i] = hello->has_rank_hint;
        if (placed[i])
            roster->at[hello->rank_hint] = i;
    }
    for (uint16_t i = 0; i < roster->size; i++)
        if (roster->group[i] == i)
            rank = roster_fill_group(roster, placed, i, rank);
}

static void roster_fill_peers(struct coordinator *core, const struct job *job, uint32_t rank,
                              struct down_generation *start)
{
    uint32_t ranks[LOCKSTEP_MAX_NEIGHBOURS];
    start->peer_count = topology_neighbours(rank, job->count, ranks);
    for (uint32_t i = 0; i < start->peer_count; i++) {
        const struct up_hello *hello = &job_worker(core, job, ranks[i])->hello;
        struct peer *peer = &start->peers[i];
        peer->rank = ranks[i];
        memcpy(peer->address, hello->address, sizeof(peer->address));
        memcpy(peer->host, hello->host, sizeof(peer->host));
    }
}

// local[0] is the worker's index on its host, local[1] how many are there.
static void roster_send(struct coordinator *core, const struct job *job, uint32_t rank,
                        const uint32_t local[2])
{
    struct down_generation *start = &core_message(core, job, DOWN_GENERATION)->u.generation_start;
    start->rank = rank;
    start->world_size = job->count;
    start->local_rank = local[0];
    start->local_size = local[1];
    start->chunk_bytes = core->config.chunk_bytes;
    memcpy(start->secret, core->entropy, sizeof(start->secret));
    roster_fill_peers(core, job, rank, start);
    core_send(core, job_worker(core, job, rank));
}

static void roster_announce(struct coordinator *core, const struct job *job,
                            const struct roster *roster)
{
    uint32_t sizes[LOCKSTEP_MAX_WORLD] = {0};
    uint32_t seen[LOCKSTEP_MAX_WORLD] = {0};
    uint32_t hosts = 0;
    for (uint32_t i = 0; i < roster->size; i++)
        hosts += sizes[roster->group[i]]++ == 0;
    for (uint32_t rank = 0; rank < roster->size; rank++) {
        const uint16_t group = roster->group[roster->at[rank]];
        const uint32_t local[2] = {seen[group]++, sizes[group]};
        roster_send(core, job, rank, local);
    }
    core_log(core, "world_formed", "job=%s generation=%" PRIu64 " world=%" PRIu32 " hosts=%" PRIu32,
             job->name, job->number, job->count, hosts);
}

void roster_form(struct coordinator *core, struct job *job)
{
    struct roster roster = {.size = job->count};
    uint16_t workers[LOCKSTEP_MAX_WORLD];
    roster_group(core, job, &roster);
    roster_assign(core, job, &roster);
    memcpy(workers, job->workers, sizeof(workers[0]) * job->count);
    core->formed = true;
    job->number++;
    job->state = JOB_STARTING;
    job->deadline_ms = UINT64_MAX;
    for (uint32_t rank = 0; rank < job->count; rank++) {
        struct worker *worker = &core->workers[workers[roster.at[rank]]];
        job->workers[rank] = core_worker_index(core, worker);
        worker->stage = STAGE_MEMBER;
        worker->rank = rank;
        worker->generation = job->number;
    }
    roster_announce(core, job, &roster);
}
