// SPDX-License-Identifier: Apache-2.0
//
// Invariants of every run, whatever the workers do:
//
//   - all members of a generation get the same world, each its own rank, and its true neighbours;
//   - grants, layouts, plans and halts reach all members in one order with one content;
//   - a slot is granted once, and when every member has made it or has ended the step (or, where
//   the policy is zero_defer, gives it up); a plan comes when all have ended, and has the granted
//   calls in their order;
//   - numbers of generations only grow;
//   - a halt that names a lost rank names one that died, one that names a leaver one that left;
//   - nothing of another generation is sent, and nothing at all to a stream that has ended (this
//     one is checked in sim_network.c);
//   - a join ends in time: a world, or a refusal;
//   - in the end nobody waits, and the coordinator knows of nobody who is connected.

#include "coordinator/view.h"
#include "tests/sim/sim_network.h"

#include "protos/topology.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    HISTORY_WORLD = LOCKSTEP_MAX_WORLD
};

// Messages of one kind in the order in which they were first received anywhere.
struct sequence {
    struct down_message **messages;
    uint32_t count;
};

// A slot of the present learning step, as the coordinator has been told of it.
struct known_slot {
    struct slot_id id;
    bool made[HISTORY_WORLD];
    bool granted;
};

enum {
    HISTORY_SLOTS = 256
};

struct sim_history {
    struct sim_history *next;
    char job[LOCKSTEP_JOB_NAME_BYTES];
    struct generation_id generation;
    struct down_generation start; // As the first member got it.
    struct sim_worker *members[HISTORY_WORLD];
    uint32_t member_count;
    uint32_t world_size;

    // The present learning step.
    struct known_slot slots[HISTORY_SLOTS];
    uint32_t slot_count;
    struct slot_id calls[HISTORY_SLOTS]; // In the order of their first grants.
    uint32_t call_count;
    bool ended[HISTORY_WORLD];
    uint32_t ended_count;

    struct sequence grants;
    struct sequence plans; // Plans and layouts.
    struct sequence halts;
};

void check_begin(struct sim *sim)
{
    sim->histories = NULL;
}

static void sequence_free(struct sequence *sequence)
{
    for (uint32_t i = 0; i < sequence->count; i++)
        free(sequence->messages[i]);
    free(sequence->messages);
}

void check_end(struct sim *sim)
{
    while (sim->histories) {
        struct sim_history *history = sim->histories;
        sim->histories = history->next;
        sequence_free(&history->grants);
        sequence_free(&history->plans);
        sequence_free(&history->halts);
        free(history);
    }
}

// History of the generation that the coordinator has assigned to this worker.
static struct sim_history *history_of(struct sim_worker *worker)
{
    struct sim *sim = worker->sim;
    struct sim_history *history = sim->histories;
    for (; history; history = history->next)
        if (strcmp(history->job, worker->job) == 0 &&
            history->generation.number == worker->assigned_number)
            return history;
    history = calloc(1, sizeof(*history));
    assert_non_null(history);
    memcpy(history->job, worker->job, sizeof(history->job));
    history->generation.number = worker->assigned_number;
    history->next = sim->histories;
    sim->histories = history;
    return history;
}

static void check_peers(struct sim_worker *worker, const struct down_generation *start)
{
    struct sim *sim = worker->sim;
    const struct locality *locality = &start->locality;
    uint32_t ranks[LOCKSTEP_MAX_NEIGHBOURS];
    uint32_t count = topology_neighbours(start->rank, start->world_size, ranks);
    for (uint32_t i = 0; i < locality->mate_count; i++)
        count = topology_add(ranks, count, start->rank, locality->mates[i]);
    if (locality->hosts > 1 && locality->local < locality->rings) {
        count = topology_add(ranks, count, start->rank, locality->successor);
        count = topology_add(ranks, count, start->rank, locality->predecessor);
    }
    if (start->peer_count != count)
        sim_fail(sim, "%s has %" PRIu32 " neighbours", sim_name(worker), start->peer_count);
    for (uint32_t i = 0; i < count; i++) {
        unsigned index = 0;
        if (start->peers[i].rank != ranks[i] ||
            sscanf(start->peers[i].address, "sim:%u", &index) != 1 || index >= sim->worker_count)
            sim_fail(sim, "%s has a wrong neighbour %" PRIu32, sim_name(worker), ranks[i]);
        const struct sim_worker *peer = sim->workers[index];
        if (peer->assigned_rank != ranks[i] || peer->assigned_number != worker->generation.number)
            sim_fail(sim, "%s has the address of another as rank %" PRIu32, sim_name(worker),
                     ranks[i]);
    }
}

static void check_generation(struct sim_worker *worker, const struct down_message *message)
{
    struct sim *sim = worker->sim;
    const struct down_generation *start = &message->u.generation_start;
    struct sim_history *history = history_of(worker);
    if (worker->history)
        sim_fail(sim, "%s gets a second generation", sim_name(worker));
    worker->history = history;
    if (history->member_count++ == 0) {
        history->start = *start;
        history->generation = message->generation;
    }
    if (history->generation.incarnation != message->generation.incarnation ||
        history->start.world_size != start->world_size ||
        history->start.chunk_bytes != start->chunk_bytes ||
        memcmp(history->start.secret, start->secret, sizeof(start->secret)) != 0)
        sim_fail(sim, "%s is told of another world than rank %" PRIu32, sim_name(worker),
                 history->start.rank);
    if (start->rank >= start->world_size || start->local_rank >= start->local_size ||
        start->local_size > start->world_size)
        sim_fail(sim, "%s has a rank outside its world", sim_name(worker));
    if (history->members[start->rank])
        sim_fail(sim, "two workers are %s", sim_name(worker));
    history->members[start->rank] = worker;
    check_peers(worker, start);
}

static void check_sequence(struct sim_worker *worker, struct sequence *sequence, uint32_t *seen,
                           const struct down_message *message)
{
    const uint32_t at = (*seen)++;
    if (at == sequence->count) {
        sequence->messages = realloc(sequence->messages, (at + 1) * sizeof(struct down_message *));
        assert_non_null(sequence->messages);
        sequence->messages[at] = malloc(sizeof(*message));
        assert_non_null(sequence->messages[at]);
        *sequence->messages[at] = *message;
        sequence->count++;
    } else if (memcmp(sequence->messages[at], message, sizeof(*message)) != 0) {
        sim_fail(worker->sim,
                 "%s receives another message than the others at place %" PRIu32 " of its kind %d",
                 sim_name(worker), at, (int)message->kind);
    }
}

static void check_halt(struct sim_worker *worker, const struct down_halt *halt)
{
    struct sim *sim = worker->sim;
    for (uint32_t i = 0; i < sim->worker_count && halt->has_rank; i++) {
        const struct sim_worker *named = sim->workers[i];
        if (named->assigned_number != worker->generation.number ||
            named->assigned_rank != halt->rank || strcmp(named->job, worker->job) != 0)
            continue;
        if (halt->kind == HALT_LOST && !named->broken && !named->gave_up &&
            named->end != SIM_CRASHED)
            sim_fail(sim, "rank %" PRIu32 " is called lost, but lives", halt->rank);
        if (halt->kind == HALT_LEFT && !named->left && named->end == SIM_RUNNING)
            sim_fail(sim, "rank %" PRIu32 " is said to have left, but is here", halt->rank);
        return;
    }
    if (halt->has_rank)
        sim_fail(sim, "a halt names rank %" PRIu32 ", which nobody has", halt->rank);
    if (halt->text[0] == '\0')
        sim_fail(sim, "a halt says nothing");
}

// The same for all, but for who gives the slot up.
static void check_grant_received(struct sim_worker *worker, struct sim_history *history,
                                 const struct down_message *message)
{
    struct down_message same = *message;
    same.u.grant.forced = false;
    check_sequence(worker, &history->grants, &worker->grants_seen, &same);
}

void check_received(struct sim_worker *worker, const struct down_message *message)
{
    struct sim *sim = worker->sim;
    struct sim_history *history = worker->history;
    if (message->kind == DOWN_WELCOME || message->kind == DOWN_REFUSED)
        return;
    if (message->kind == DOWN_GENERATION) {
        check_generation(worker, message);
        return;
    }
    if (!history ||
        memcmp(&message->generation, &worker->generation, sizeof(worker->generation)) != 0)
        sim_fail(sim, "%s receives a message of another generation", sim_name(worker));
    if (message->kind == DOWN_GRANT)
        check_grant_received(worker, history, message);
    else if (message->kind == DOWN_PLAN_PART || message->kind == DOWN_LAYOUT_PART)
        check_sequence(worker, &history->plans, &worker->plans_seen, message);
    else if (message->kind == DOWN_HALT)
        check_sequence(worker, &history->halts, &worker->halts_seen, message);
    if (message->kind == DOWN_HALT)
        check_halt(worker, &message->u.halt);
}

// ---- Learning, told by what the coordinator hears and says -----------------------------------

static struct known_slot *known_slot(struct sim_history *history, const struct slot_id *id)
{
    struct known_slot *slot = history->slots;
    while (slot < history->slots + history->slot_count && memcmp(&slot->id, id, sizeof(*id)) != 0)
        slot++;
    if (slot == history->slots + history->slot_count) {
        assert_true(history->slot_count < HISTORY_SLOTS);
        memset(slot, 0, sizeof(*slot));
        slot->id = *id;
        history->slot_count++;
    }
    return slot;
}

void check_up(struct sim_worker *worker, const struct up_message *message)
{
    if (worker->assigned_number == 0)
        return;
    struct sim_history *history = history_of(worker);
    if (message->kind == UP_FAIL && message->u.fail.kind == HALT_LOST)
        worker->gave_up = true;
    if (message->kind == UP_READY)
        known_slot(history, &message->u.ready.slot)->made[worker->assigned_rank] = true;
    if (message->kind != UP_END)
        return;
    history->ended[worker->assigned_rank] = true;
    history->ended_count++;
}

// A rank that has not made the slot and may still make it is told that it gives it up.
static void check_grant_to(struct sim_worker *worker, struct sim_history *history,
                           const struct down_grant *grant)
{
    const uint32_t rank = worker->assigned_rank;
    const bool open = !known_slot(history, &grant->slot)->made[rank] && !history->ended[rank];
    if (open != grant->forced || (open && !worker->sim->forces))
        sim_fail(worker->sim, "a slot is granted that not everybody has made");
}

static void check_grant(struct sim_worker *worker, struct sim_history *history,
                        const struct down_grant *grant)
{
    struct sim *sim = worker->sim;
    struct known_slot *slot = known_slot(history, &grant->slot);
    struct slot_id call = grant->slot;
    if (slot->granted)
        sim_fail(sim, "a slot is granted twice");
    slot->granted = true;
    call.bucket = 0;
    for (uint32_t i = 0; i < history->call_count; i++)
        if (memcmp(&history->calls[i], &call, sizeof(call)) == 0)
            return;
    history->calls[history->call_count++] = call;
}

static void check_plan(struct sim_worker *worker, struct sim_history *history,
                       const struct down_plan_part *part)
{
    struct sim *sim = worker->sim;
    uint32_t call = 0;
    if (history->ended_count != history->world_size)
        sim_fail(sim, "a plan comes before everybody has ended the step");
    for (uint32_t i = 0; i < history->slot_count; i++)
        if (!history->slots[i].granted)
            sim_fail(sim, "a plan comes before everything is granted");
    for (uint32_t i = 0; i < part->slot_count; i++) {
        struct slot_id id = part->slots[i].id;
        call += i > 0 && id.bucket == 0;
        id.bucket = 0;
        if (call >= history->call_count || memcmp(&history->calls[call], &id, sizeof(id)) != 0)
            sim_fail(sim, "a plan has another order than the grants");
    }
    if (call + (part->slot_count > 0) != history->call_count)
        sim_fail(sim, "a plan lacks a call that was granted");
    history->slot_count = 0;
    history->call_count = 0;
    history->ended_count = 0;
    memset(history->ended, 0, sizeof(history->ended));
}

// Looks at what goes to rank 0, for the others get the same, which is checked when they receive it.
void check_sent(struct sim_worker *worker, const struct down_message *message)
{
    if (worker->assigned_number == 0)
        return;
    struct sim_history *history = history_of(worker);
    if (message->kind == DOWN_GENERATION)
        history->world_size = message->u.generation_start.world_size;
    if (message->kind == DOWN_GRANT)
        check_grant_to(worker, history, &message->u.grant);
    if (worker->assigned_rank != 0)
        return;
    if (message->kind == DOWN_GRANT)
        check_grant(worker, history, &message->u.grant);
    else if (message->kind == DOWN_PLAN_PART && message->u.plan_part.last &&
             message->u.plan_part.closes_step)
        check_plan(worker, history, &message->u.plan_part);
}

// ---- The end of a run ------------------------------------------------------------------------

// A death ends a generation for every worker that has not left: each survivor has a verdict, unless
// its own stream broke.
static void check_survivors(struct sim *sim, const struct sim_history *history)
{
    bool died = false;
    for (uint32_t i = 0; i < history->start.world_size; i++) {
        const struct sim_worker *member = history->members[i];
        died |= !member || member->end == SIM_CRASHED || member->broken;
        if (member && member->end == SIM_HALTED && !member->broken && !member->agreed &&
            member->halts_seen == 0)
            sim_fail(sim, "%s is halted without a verdict", sim_name(member));
    }
    if (!died && history->member_count != history->start.world_size)
        sim_fail(sim, "generation %" PRIu64 " of %s has not reached all its members",
                 history->generation.number, history->job);
}

static void check_times(struct sim *sim, const struct sim_worker *worker)
{
    const uint64_t slack_ms = 4 * (uint64_t)sim->delay_ms;
    if (worker->end == SIM_RUNNING)
        sim_fail(sim, "%s waits for ever", sim_name(worker));
    if (worker->end == SIM_REFUSED && worker->hello_ms != 0 &&
        worker->ended_ms > worker->hello_ms + worker->open_timeout_ms + slack_ms)
        sim_fail(sim, "%s was refused after %" PRIu64 " ms", sim_name(worker),
                 worker->ended_ms - worker->hello_ms);
}

void check_finished(struct sim *sim)
{
    struct job_view job;
    for (uint32_t i = 0; i < sim->worker_count; i++)
        check_times(sim, sim->workers[i]);
    for (const struct sim_history *at = sim->histories; at; at = at->next) {
        check_survivors(sim, at);
        for (const struct sim_history *older = at->next; older; older = older->next)
            if (strcmp(older->job, at->job) == 0 &&
                older->generation.number >= at->generation.number)
                sim_fail(sim, "generation %" PRIu64 " of %s came after a later one",
                         at->generation.number, at->job);
    }
    for (uint32_t i = 0; !sim->core_dead && coordinator_job_view(sim->core, i, &job); i++) {
        if (job.joined != 0)
            sim_fail(sim, "job %s still has %" PRIu32 " workers", job.name, job.joined);
        if (job.state == JOB_STARTING || job.state == JOB_RUNNING)
            sim_fail(sim, "job %s is still %s", job.name, coordinator_job_state_name(job.state));
    }
}
