// SPDX-License-Identifier: Apache-2.0
//
// Assigns ranks to workers, and forms a generation. Runs inside coordinator_step.
//
// Words: the *gatherers* are the job's workers in order of arrival. A *group* is the gatherers with
// one host_id; its number is the index of its first gatherer, so groups are ordered by arrival.
// Workers with a hint get the rank of their hint if all hints are below the world size. The other
// workers fill the free ranks from the lowest, group by group.

#include "coordinator/roster.h"

#include "base/bits.h"
#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/crossing.h"
#include "coordinator/decision.h"
#include "coordinator/gpus.h"
#include "coordinator/job.h"
#include "coordinator/journal.h"
#include "coordinator/kin.h"
#include "coordinator/lineage.h"
#include "coordinator/rates.h"
#include "coordinator/relearn.h"
#include "coordinator/send.h"
#include "coordinator/table.h"
#include "coordinator/verdict.h"
#include "coordinator/verify.h"
#include "protos/topology.h"

struct roster {
    uint32_t size;
    uint16_t group[LOCKSTEP_MAX_WORLD]; // By gatherer: its group.
    uint16_t at[LOCKSTEP_MAX_WORLD]; // By rank: the gatherer with this rank, or CORE_NONE.
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

// ---- Hosts -------------------------------------------------------------------------------------

// Hosts in the sense of struct locality: the ranks of one host share memory. A group of more than
// LOCKSTEP_MAX_MATES ranks is split, in the order of ranks, into parts of nearly the same size, and
// each part counts as a host.
struct roster_hosts {
    uint32_t count;
    uint32_t of[LOCKSTEP_MAX_WORLD]; // By rank: its host. Hosts are in the order of lowest ranks.
    uint32_t size[LOCKSTEP_MAX_WORLD]; // By host: number of its ranks.
    uint32_t rings; // Number of ranks of the smallest host.
};

static uint32_t roster_parts(uint32_t ranks)
{
    return (ranks + LOCKSTEP_MAX_MATES - 1) / LOCKSTEP_MAX_MATES;
}

// sizes: the number of ranks of each group.
static void roster_find_hosts(const struct roster *roster, const uint32_t *sizes,
                              struct roster_hosts *hosts)
{
    uint32_t host_of_group[LOCKSTEP_MAX_WORLD]; // By group: the host of the group's present part.
    uint32_t seen[LOCKSTEP_MAX_WORLD] = {0}; // By group: number of its ranks so far.
    hosts->count = 0;
    for (uint32_t rank = 0; rank < roster->size; rank++) {
        const uint16_t group = roster->group[roster->at[rank]];
        const uint32_t parts = roster_parts(sizes[group]);
        const uint32_t index = seen[group]++;
        if (index == 0 || index * parts / sizes[group] != (index - 1) * parts / sizes[group]) {
            host_of_group[group] = hosts->count;
            hosts->size[hosts->count++] = 0;
        }
        hosts->of[rank] = host_of_group[group];
        hosts->size[hosts->of[rank]]++;
    }
    hosts->rings = roster->size;
    for (uint32_t host = 0; host < hosts->count; host++)
        if (hosts->size[host] < hosts->rings)
            hosts->rings = hosts->size[host];
}

// Logs one line if some group has more than LOCKSTEP_MAX_MATES ranks, even if several groups have.
static void roster_say_parts(struct coordinator *core, struct job *job, const struct roster *roster,
                             const uint32_t *sizes)
{
    const struct worker *first = NULL; // A worker of the first group that is too large.
    uint32_t ranks = 0, hosts = 0;
    for (uint32_t rank = 0; rank < roster->size; rank++) {
        const uint16_t group = roster->group[roster->at[rank]];
        if (sizes[group] <= LOCKSTEP_MAX_MATES || roster->at[rank] != group)
            continue; // The group is small enough, or this rank is not its first gatherer.
        if (hosts++ == 0) {
            first = job_worker(core, job, rank);
            ranks = sizes[group];
        }
    }
    if (!first)
        return;
    const uint32_t parts = roster_parts(ranks);
    journal_log(core, job, "memory_in_groups",
                "host %s has %" PRIu32 " ranks, and at most %d can share memory: they share it in "
                "%" PRIu32 " groups of at most %" PRIu32 "%s",
                first->hello.host, ranks, LOCKSTEP_MAX_MATES, parts, (ranks + parts - 1) / parts,
                hosts > 1 ? "; other hosts of this world have too many ranks as well" : "");
}

// Returns the rank with index `local` on a host.
static uint32_t roster_mate(const struct roster *roster, const struct roster_hosts *hosts,
                            uint32_t host, uint32_t local)
{
    for (uint32_t rank = 0; rank < roster->size; rank++)
        if (hosts->of[rank] == host && local-- == 0)
            return rank;
    return 0;
}

static void roster_locate(const struct roster *roster, const struct roster_hosts *hosts,
                          uint32_t own, struct locality *locality)
{
    const uint32_t host = hosts->of[own];
    const uint32_t count = hosts->count;
    memset(locality, 0, sizeof(*locality));
    locality->host = host;
    locality->hosts = count;
    locality->rings = hosts->rings;
    for (uint32_t rank = 0; rank < roster->size; rank++) {
        if (hosts->of[rank] != host)
            continue;
        if (rank == own)
            locality->local = locality->mate_count;
        locality->mates[locality->mate_count++] = rank;
    }
    if (count == 1 || locality->local >= hosts->rings)
        return;
    locality->successor = roster_mate(roster, hosts, (host + 1) % count, locality->local);
    locality->predecessor = roster_mate(roster, hosts, (host + count - 1) % count, locality->local);
}

// ---- DOWN_GENERATION ---------------------------------------------------------------------------

static uint32_t roster_neighbours(uint32_t rank, uint32_t world, const struct locality *locality,
                                  uint32_t ranks[LOCKSTEP_MAX_NEIGHBOURS])
{
    uint32_t count = topology_neighbours(rank, world, ranks);
    for (uint32_t i = 0; i < locality->mate_count; i++)
        count = topology_add(ranks, count, rank, locality->mates[i]);
    if (locality->hosts > 1 && locality->local < locality->rings) {
        count = topology_add(ranks, count, rank, locality->successor);
        count = topology_add(ranks, count, rank, locality->predecessor);
    }
    return count;
}

static void roster_fill_peer(struct coordinator *core, const struct job *job, uint32_t rank,
                             struct peer *peer)
{
    const struct up_hello *hello = &job_worker(core, job, rank)->hello;
    peer->rank = rank;
    memcpy(peer->address, hello->address, sizeof(peer->address));
    memcpy(peer->host, hello->host, sizeof(peer->host));
}

static void roster_fill_peers(struct coordinator *core, const struct job *job, uint32_t rank,
                              struct down_generation *start)
{
    uint32_t ranks[LOCKSTEP_MAX_NEIGHBOURS];
    start->peer_count = roster_neighbours(rank, job->count, &start->locality, ranks);
    for (uint32_t i = 0; i < start->peer_count; i++)
        roster_fill_peer(core, job, ranks[i], &start->peers[i]);
}

static bool roster_is_peer(const struct down_generation *start, uint32_t rank)
{
    for (uint32_t i = 0; i < start->peer_count; i++)
        if (start->peers[i].rank == rank)
            return true;
    return false;
}

// The list begins behind the rank itself, so ranks do not all reach the same data port first.
static void roster_fill_further(struct coordinator *core, const struct job *job,
                                struct down_generation *start)
{
    if (job_worker(core, job, start->rank)->hello.on_failure != FAILURE_CONTINUE)
        return;
    for (uint32_t i = 1; i < job->count && start->further_count < LOCKSTEP_MAX_FURTHER_PORTS; i++) {
        const uint32_t rank = (start->rank + i) % job->count;
        struct data_port *port = &start->further[start->further_count];
        if (roster_is_peer(start, rank))
            continue;
        start->further_count++;
        port->rank = rank;
        memcpy(port->address, job_worker(core, job, rank)->hello.address, sizeof(port->address));
    }
}

static uint32_t roster_chunk_bytes(const struct coordinator *core, const struct job *job)
{
    if (core->config.chunk_bytes != 0)
        return core->config.chunk_bytes;
    return job->count == 2 ? CORE_CHUNK_BYTES_OF_TWO : CORE_CHUNK_BYTES;
}

static uint32_t roster_core_ranks(struct coordinator *core, const struct job *job, uint32_t rank)
{
    const uint64_t cores = job_worker(core, job, rank)->hello.cores;
    uint32_t count = 0;
    for (uint32_t i = 0; cores != 0 && i < job->count; i++)
        count += job_worker(core, job, i)->hello.cores == cores;
    return count;
}

// local[0]: the worker's index in its group; local[1]: number of workers in the group.
static void roster_send(struct coordinator *core, const struct job *job, uint32_t rank,
                        const uint32_t local[2], const struct locality *locality)
{
    struct down_generation *start = &core_message(core, job, DOWN_GENERATION)->u.generation_start;
    start->rank = rank;
    start->world_size = job->count;
    start->local_rank = local[0];
    start->local_size = local[1];
    start->chunk_bytes = roster_chunk_bytes(core, job);
    memcpy(start->secret, core->entropy, sizeof(start->secret));
    start->locality = *locality;
    for (uint32_t i = 0; i < locality->mate_count; i++) {
        const struct up_hello *mate = &job_worker(core, job, locality->mates[i])->hello;
        start->locality.mate_pids[i] = mate->pid;
        start->locality.mate_started[i] = mate->started;
    }
    for (uint32_t i = 0; i < job->count; i++)
        if (job_worker(core, job, i)->hello.has_gpu)
            bits_add(start->gpus, i);
    start->gpus_meet = gpus_meet(core, job);
    start->core_ranks = roster_core_ranks(core, job, rank);
    roster_fill_peers(core, job, rank, start);
    roster_fill_further(core, job, start);
    core_send(core, job_worker(core, job, rank));
}

static void roster_announce(struct coordinator *core, struct job *job, const struct roster *roster)
{
    struct roster_hosts sharing;
    struct locality locality;
    uint32_t sizes[LOCKSTEP_MAX_WORLD] = {0};
    uint32_t seen[LOCKSTEP_MAX_WORLD] = {0};
    uint32_t hosts = 0;
    for (uint32_t i = 0; i < roster->size; i++)
        hosts += sizes[roster->group[i]]++ == 0;
    roster_find_hosts(roster, sizes, &sharing);
    job->hosts = sharing.count;
    job->placement = cost_place(sharing.of, roster->size, sharing.count);
    for (uint32_t rank = 0; rank < roster->size; rank++) {
        const uint16_t group = roster->group[roster->at[rank]];
        const uint32_t local[2] = {seen[group]++, sizes[group]};
        roster_locate(roster, &sharing, rank, &locality);
        roster_send(core, job, rank, local, &locality);
    }
    core_log(core, "world_formed",
             "job=%s generation=%" PRIu64 " world=%" PRIu32 " hosts=%" PRIu32
             " memory_groups=%" PRIu32,
             job->name, job->number, job->count, hosts, sharing.count);
    journal_note(core, job, "world_formed", "%" PRIu32 " rank%s on %" PRIu32 " host%s", job->count,
                 job->count == 1 ? "" : "s", hosts, hosts == 1 ? "" : "s");
    roster_say_parts(core, job, roster, sizes);
}

void roster_form(struct coordinator *core, struct job *job)
{
    struct roster roster = {.size = job->count};
    uint16_t workers[LOCKSTEP_MAX_WORLD];
    roster_group(core, job, &roster);
    roster_assign(core, job, &roster);
    memcpy(workers, job->workers, sizeof(workers[0]) * job->count);
    core->formed = true;
    if (job->number < core->number_floor)
        job->number =
            core->number_floor; // A rebuilt job may be younger than one that was forgotten.
    job->number++;
    job->resuming.incarnation = core->config.incarnation;
    job->state = JOB_STARTING;
    job->formed_ms = core->now;
    job->gathering.deadline_ms = UINT64_MAX;
    for (uint32_t rank = 0; rank < job->count; rank++) {
        struct worker *worker = &core->workers[workers[roster.at[rank]]];
        job->workers[rank] = core_worker_index(core, worker);
        worker->stage = STAGE_MEMBER;
        worker->rank = rank;
        worker->generation = job->number;
        worker->heard_ms = core->now; // No rank needed it before.
    }
    lineage_found(job);
    stall_reset(job);
    rates_begin(core, job);
    roster_announce(core, job, &roster);
}

// Removes the suspects of the ballot. The other members keep their order.
static void roster_remove(struct coordinator *core, struct job *job)
{
    const struct descent *descent = &job->ballot.descent;
    const struct lineage *before = &descent->chain[descent->count - 2]; // lineage_decide made one.
    uint32_t kept = 0;
    for (uint32_t rank = 0; rank < job->count; rank++) {
        struct worker *worker = job_worker(core, job, rank);
        job->left -= worker->left && decision_removes(job, rank);
        if (decision_removes(job, rank) && worker->back.unseen)
            job->resuming.unseen--;
        if (!decision_removes(job, rank))
            job->workers[kept++] = job->workers[rank];
        else
            kin_remove(core, job, worker, lineage_member(before, rank), lineage_newest(job)->id);
    }
    job->count = kept;
}

void roster_reform(struct coordinator *core, struct job *job)
{
    struct roster roster = {.size = 0};
    rates_end(core, job);
    roster_remove(core, job);
    roster.size = job->count;
    relearn_generation(core, job, true);
    verify_recover(core, job);
    job->number = job->ballot.number;
    job->resuming.incarnation = core->config.incarnation;
    job->linked = 0;
    job->tuned = false;
    job->queried_step = 0;
    job->sides.active = false;
    crossing_reset(job);
    for (uint16_t rank = 0; rank < job->count; rank++) {
        struct worker *worker = job_worker(core, job, rank);
        roster.at[rank] = rank;
        worker->rank = rank;
        worker->generation = job->number;
        worker->behind = false;
        worker->linked = false;
        worker->accused.until_ms = 0;
        worker->blocked.wait_count = 0;
        worker->awaits = worker->lacks = 0;
    }
    stall_reset(job);
    rates_begin(core, job);
    roster_group(core, job, &roster);
    roster_announce(core, job, &roster);
}

// The members of a rebuilt job have their ranks already.
void roster_restored(struct coordinator *core, struct job *job)
{
    struct roster roster = {.size = job->count};
    struct roster_hosts sharing;
    uint32_t sizes[LOCKSTEP_MAX_WORLD] = {0};
    roster_group(core, job, &roster);
    for (uint16_t rank = 0; rank < roster.size; rank++) {
        roster.at[rank] = rank;
        sizes[roster.group[rank]]++;
    }
    roster_find_hosts(&roster, sizes, &sharing);
    job->hosts = sharing.count;
    job->placement = cost_place(sharing.of, roster.size, sharing.count);
}

// ---- Addresses that a member asks for ----------------------------------------------------------

void roster_reach(struct coordinator *core, struct worker *worker, const struct up_reach *reach)
{
    struct job *job = core_job_of(core, worker);
    if (reach->count == 0 || reach->count > LOCKSTEP_REACH_RANKS) {
        verdict_protocol(core, worker, "asked for the addresses of %" PRIu32 " ranks",
                         reach->count);
        return;
    }
    for (uint32_t i = 0; i < reach->count; i++) {
        if (reach->ranks[i] < job->count && reach->ranks[i] != worker->rank)
            continue;
        verdict_protocol(core, worker,
                         "asked for the address of rank %" PRIu32 ", which is no other rank of it",
                         reach->ranks[i]);
        return;
    }
    struct down_addresses *answer = &core_message(core, job, DOWN_ADDRESSES)->u.addresses;
    for (uint32_t i = 0; i < reach->count; i++) {
        const uint32_t rank = reach->ranks[i];
        if (job_worker(core, job, rank)->back.unseen)
            bits_add(worker->back.seeks, rank);
        else
            roster_fill_peer(core, job, rank, &answer->peers[answer->count++]);
    }
    if (answer->count > 0)
        core_send(core, worker);
}

void roster_seen(struct coordinator *core, struct job *job, uint32_t rank)
{
    for (uint32_t i = 0; i < job->count; i++) {
        struct worker *worker = job_worker(core, job, i);
        if (!bits_has(worker->back.seeks, rank))
            continue;
        bits_remove(worker->back.seeks, rank);
        struct down_addresses *answer = &core_message(core, job, DOWN_ADDRESSES)->u.addresses;
        roster_fill_peer(core, job, rank, &answer->peers[answer->count++]);
        core_send(core, worker);
    }
}
