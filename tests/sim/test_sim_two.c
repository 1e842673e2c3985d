// SPDX-License-Identifier: Apache-2.0
//
// Two real coordinator cores and up to five workers, in simulated time. While a job trains,
// coordinators stop, die and come back, control streams end, and workers die, at instants that a
// seed draws.
//
// - Real: coordinator/, and a worker's promise and ancestry (worker/order/).
// - Modelled: a worker's control stream, which tries the addresses in turn; its steps. A step has
//   one slot of one element, which becomes final on a member once all members of the generation
//   have given, or is copied by the rows of a decision; and a commit wave, which is complete on a
//   member once all have joined it. Both may happen at any time from then on, or never. The value
//   of the element is the generation in which it was made.
//
// What is checked (rules M1 to M7 of docs/internals/membership.md): two ranks that committed the
// same step have the same result, unless all members of a generation are dead; a rank that is
// behind is told a step that it can commit; no rank is excluded or halted, because silence is no
// evidence; after the last fault every rank that lives ends its last step. If the link between two
// ranks is cut, ranks are excluded; the job may end if others are lost then, too.
//
// LOCKSTEP_TEST_SIM_TWO: a seed; runs that world only, and prints its events.

#include "coordinator/coordinator.h"
#include "protos/redo.h"
#include "tests/support/choice.h"
#include "tests/support/describe.h"
#include "worker/order/ancestry.h"
#include "worker/order/promise.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    RANKS = 5,
    CORES = 2,
    STEPS = 8,
    QUEUE = 512,
    GENERATIONS = 64,
    WORLDS = 3000,
    FAULTS = 4,
    NEVER = -1,
    KEEPALIVE_MS = 30000, // Until a worker notices that its coordinator is stopped.
    ATTEMPT_MS = 3000, // Until an attempt at a stopped coordinator is given up.
    PAUSE_MS = 250,
    PATIENCE_MS = 300000, // Simulated time in which a world has to end.
    EXIT_MS = 5000, // From the end of the session of an excluded or halted rank: its port refuses.
};

struct generation {
    struct generation_id id;
    uint32_t members; // Set of ranks of the first generation, as all sets here.
    uint32_t started;
    uint32_t given[STEPS + 2]; // By step.
    uint32_t joined[STEPS + 2];
};

struct incoming { // Of a core: a message, or the end of a stream.
    coordinator_peer peer;
    struct up_message *message; // NULL: the end.
};

struct core {
    void *memory;
    struct coordinator *core;
    uint64_t incarnation;
    bool alive;
    uint64_t stopped_until;
    uint32_t count;
    struct incoming incoming[QUEUE];
};

struct rank {
    bool dead;
    bool out;
    uint64_t out_ms; // When its session ended, if it is out.
    uint32_t told; // Set of dead ranks that this stream was told of, in the present generation.
    uint32_t cut; // Set of ranks that its data does not reach.
    uint32_t accused; // Set of those that this stream was told of, in the present generation.
    // The control stream.
    int at; // Index of the address.
    coordinator_peer peer; // 0: none.
    uint64_t retry_ms;
    uint64_t silent_ms; // Since when its coordinator is stopped; 0: it is not.
    uint64_t blocked_until[CORES];
    uint32_t count;
    struct down_message *incoming[QUEUE]; // NULL: the end of the stream.
    // The member.
    bool formed; // It has a generation.
    bool running; // That generation is tuned.
    bool linked; // It has said that its links stand.
    bool decided;
    struct down_decision decision;
    bool committed; // The decision says how `decision.settled` ended.
    bool rows; // The decision says that the element is copied from `owner`.
    uint32_t owner; // A rank of the decided generation.
    bool given; // In the open step.
    uint64_t value; // Of the open step; 0: not final here.
    struct promise promise;
    struct ancestry ancestry;
    uint32_t place; // Its rank in the present generation.
    uint64_t settled;
    uint64_t results[STEPS + 2];
};

static struct {
    uint64_t seed;
    uint64_t random;
    uint64_t now;
    bool prints;
    uint32_t size;
    coordinator_peer peers;
    struct core cores[CORES];
    struct rank ranks[RANKS];
    uint32_t generation_count;
    struct generation generations[GENERATIONS];
    uint32_t recoveries;
    uint32_t excluded;
    uint32_t halted;
    uint32_t secrets;
} world;

#define SAY(...) \
    do { \
        if (world.prints) \
            printf("%8llu ", (unsigned long long)world.now), printf(__VA_ARGS__), printf("\n"); \
    } while (0)

#define FAULT(...) \
    do { \
        print_error("seed %llu at %llu ms: ", (unsigned long long)world.seed, \
                    (unsigned long long)world.now); \
        fail_msg(__VA_ARGS__); \
    } while (0)

static uint32_t draw(uint32_t bound)
{
    return (uint32_t)choice_below(&world.random, bound);
}

static bool lives(const struct rank *rank)
{
    return !rank->dead && !rank->out;
}

static struct generation *generation_of(struct generation_id id)
{
    for (uint32_t i = 0; i < world.generation_count; i++)
        if (world.generations[i].id.number == id.number &&
            world.generations[i].id.incarnation == id.incarnation)
            return &world.generations[i];
    assert_true(world.generation_count < GENERATIONS);
    struct generation *generation = &world.generations[world.generation_count++];
    *generation = (struct generation){.id = id};
    return generation;
}

static struct generation *present(const struct rank *rank)
{
    return generation_of(rank->ancestry.chain[rank->ancestry.count - 1].id);
}

static uint64_t result_of(struct generation_id id)
{
    return id.number << 16 | (id.incarnation & 0xffff);
}

// ---- Streams -----------------------------------------------------------------------------------

static void rank_push(struct rank *rank, const struct down_message *message)
{
    assert_true(rank->count < QUEUE);
    struct down_message *copy = message ? malloc(sizeof(*copy)) : NULL;
    if (message)
        *copy = *message;
    rank->incoming[rank->count++] = copy;
}

static void core_push(struct core *core, coordinator_peer peer, const struct up_message *message)
{
    struct up_message *copy = message ? malloc(sizeof(*copy)) : NULL;
    if (!core->alive) {
        free(copy);
        return;
    }
    assert_true(core->count < QUEUE);
    if (message)
        *copy = *message;
    core->incoming[core->count++] = (struct incoming){peer, copy};
}

static void rank_drop_incoming(struct rank *rank, uint32_t kept)
{
    while (rank->count > kept)
        free(rank->incoming[--rank->count]);
}

static void rank_say(struct rank *rank, struct up_message *message)
{
    if (rank->peer == 0)
        return;
    if (message->kind != UP_HELLO)
        message->generation = rank->ancestry.chain[rank->ancestry.count - 1].id;
    core_push(&world.cores[rank->at], rank->peer, message);
}

// The worker's side of the stream is over. The core hears of it when it runs; the last messages may
// be lost.
static void rank_breaks(struct rank *rank, bool turns)
{
    struct core *core = &world.cores[rank->at];
    if (rank->peer != 0) {
        for (uint32_t lost = draw(3); lost > 0 && core->count > 0; lost--) {
            if (core->incoming[core->count - 1].peer != rank->peer)
                break;
            free(core->incoming[--core->count].message);
        }
        core_push(core, rank->peer, NULL);
    }
    rank_drop_incoming(rank, 0);
    rank->peer = 0;
    rank->told = rank->accused = 0;
    rank->silent_ms = 0;
    if (turns)
        rank->at = (rank->at + 1) % CORES;
    rank->retry_ms = world.now + 1 + draw(PAUSE_MS);
}

static struct rank *rank_of(coordinator_peer peer)
{
    for (uint32_t i = 0; i < world.size; i++)
        if (world.ranks[i].peer == peer && peer != 0)
            return &world.ranks[i];
    return NULL;
}

static uint32_t number_of(const struct rank *rank)
{
    return (uint32_t)(rank - world.ranks);
}

// ---- Coordinators ------------------------------------------------------------------------------

struct probe {
    coordinator_peer peer;
    bool wanted;
};
static struct probe probes[CORES][RANKS]; // By core and rank: a data port is to be probed.
static coordinator_peer peers_of[RANKS][256]; // All streams of a rank, ever.
static uint32_t peer_counts[RANKS];

static uint32_t rank_of_any(coordinator_peer peer)
{
    for (uint32_t i = 0; i < world.size; i++)
        for (uint32_t k = 0; k < peer_counts[i]; k++)
            if (peers_of[i][k] == peer)
                return i;
    fail_msg("no rank had this stream");
    return 0;
}

static void core_acts(void *context, const struct coordinator_action *action)
{
    char text[DESCRIBE_BYTES];
    struct core *core = context;
    const uint32_t at = (uint32_t)(core - world.cores);
    if (action->kind == ACTION_LOG)
        return;
    if (action->kind == ACTION_PROBE) {
        probes[at][rank_of_any(action->peer)] = (struct probe){action->peer, true};
        return;
    }
    struct rank *rank = rank_of(action->peer);
    if (action->kind == ACTION_SEND && world.prints) {
        describe_down(text, sizeof(text), action->message);
        SAY("core %u -> rank %u%s: %s", at, rank_of_any(action->peer), rank ? "" : " (gone)", text);
    }
    if (rank && !rank->dead)
        rank_push(rank, action->kind == ACTION_SEND ? action->message : NULL);
}

static void core_step(struct core *core, struct coordinator_event *event)
{
    const struct coordinator_sink sink = {core_acts, core};
    world.secrets++;
    memcpy(event->entropy, &world.secrets, sizeof(world.secrets));
    coordinator_step(core->core, event, world.now, sink);
}

static bool core_runs(const struct core *core)
{
    return core->alive && core->stopped_until <= world.now;
}

static void core_takes(struct core *core)
{
    char text[DESCRIBE_BYTES];
    const struct incoming first = core->incoming[0];
    struct coordinator_event event = {.kind = first.message ? EVENT_MESSAGE : EVENT_CLOSED,
                                      .peer = first.peer,
                                      .message = first.message};
    core->count--;
    memmove(&core->incoming[0], &core->incoming[1], core->count * sizeof(core->incoming[0]));
    if (world.prints && first.message) {
        describe_up(text, sizeof(text), first.message);
        SAY("core %u <- rank %u: %s", (uint32_t)(core - world.cores), rank_of_any(first.peer),
            text);
    }
    core_step(core, &event);
    free(first.message);
}

static void core_begin(struct core *core)
{
    const struct coordinator_config config = {.incarnation = ++core->incarnation};
    core->core = coordinator_init(core->memory, &config);
    core->alive = true;
    core->stopped_until = 0;
}

static void core_dies(struct core *core)
{
    while (core->count > 0)
        free(core->incoming[--core->count].message);
    core->alive = false;
    for (uint32_t i = 0; i < world.size; i++) {
        struct rank *rank = &world.ranks[i];
        if (rank->peer == 0 || &world.cores[rank->at] != core || rank->dead)
            continue;
        rank_drop_incoming(rank, draw(rank->count + 1));
        rank_push(rank, NULL);
    }
}

// ---- Workers -----------------------------------------------------------------------------------

static void rank_hello(struct rank *rank)
{
    struct up_message message = {.kind = UP_HELLO};
    struct up_hello *hello = &message.u.hello;
    const uint32_t number = number_of(rank);
    hello->version = LOCKSTEP_PROTOCOL_VERSION;
    hello->world_min = hello->world_max = world.size;
    hello->open_timeout_ms = 60000;
    hello->on_failure = FAILURE_CONTINUE;
    hello->elsewhere = true;
    hello->uuid.bytes[0] = (uint8_t)(number + 1);
    hello->has_rank_hint = true;
    hello->rank_hint = number;
    hello->pid = 100 + number;
    strcpy(hello->job, "j");
    strcpy(hello->host_id, "host");
    strcpy(hello->host, "host");
    snprintf(hello->address, sizeof(hello->address), "w%u", number);
    hello->resumes = rank->formed;
    if (rank->formed) {
        struct up_resume *resume = &hello->resume;
        ancestry_describe(&rank->ancestry, resume);
        resume->generation = resume->chain[resume->chain_count - 1].id;
        resume->rank = rank->place;
        for (uint32_t i = 0; i < world.size; i++)
            resume->world_size += present(rank)->members >> i & 1;
        resume->settled = rank->settled;
        resume->rounds = 1;
        resume->frozen = !rank->running;
        resume->promised = rank->promise.ballot;
    }
    rank_say(rank, &message);
}

static void rank_connects(struct rank *rank)
{
    struct core *core = &world.cores[rank->at];
    if (!core_runs(core) || rank->blocked_until[rank->at] > world.now) {
        rank->retry_ms = world.now + (core->alive ? ATTEMPT_MS : 1 + draw(PAUSE_MS));
        rank->at = (rank->at + 1) % CORES;
        return;
    }
    rank->peer = ++world.peers;
    assert_true(peer_counts[number_of(rank)] < 256);
    peers_of[number_of(rank)][peer_counts[number_of(rank)]++] = rank->peer;
    rank_hello(rank);
}

static void rank_commits(struct rank *rank, uint64_t result)
{
    const uint64_t step = ++rank->settled;
    rank->results[step] = result;
    rank->given = rank->rows = false;
    rank->value = 0;
    SAY("rank %u commits step %llu: %llx", number_of(rank), (unsigned long long)step,
        (unsigned long long)result);
    for (uint32_t i = 0; i < world.size; i++) {
        const struct rank *other = &world.ranks[i];
        if (other->settled < step || other->results[step] == result)
            continue;
        bool any = !other->dead; // All members of its generation are dead: older ranks may go on.
        for (uint32_t m = 0; m < world.size; m++)
            any = any || ((present(other)->members >> m & 1) != 0 && !world.ranks[m].dead);
        if (any)
            FAULT("ranks %u and %u have different results of step %llu", i, number_of(rank),
                  (unsigned long long)step);
    }
}

static void rank_record(struct rank *rank, enum record_kind kind, uint64_t word)
{
    struct up_message message = {.kind = UP_RECORD_PART};
    message.u.record_part = (struct record_part){.kind = kind, .total = 1, .count = 1};
    message.u.record_part.words[0] = word;
    rank_say(rank, &message);
}

static void rank_reports(struct rank *rank)
{
    struct up_message message = {.kind = UP_REPORT};
    const bool joined = (present(rank)->joined[rank->settled + 1] >> number_of(rank) & 1) != 0;
    if (rank->given)
        rank_record(rank, RECORD_GIVEN, 1);
    if (rank->given)
        rank_record(rank, rank->value != 0 ? RECORD_FINAL : RECORD_RUNS, 1);
    if (rank->settled > 0)
        rank_record(rank, RECORD_COMMIT, rank->results[rank->settled]);
    message.u.report =
        (struct up_report){.ballot = rank->promise.ballot,
                           .settled = rank->settled,
                           .step = rank->settled + rank->given,
                           .flags = (rank->given ? REPORT_BEGUN : 0u) |
                                    (joined && rank->value != 0 ? REPORT_ALL_FINAL : 0u)};
    rank_say(rank, &message);
}

static void rank_prepared(struct rank *rank, struct generation_id ballot)
{
    struct up_message refuse = {.kind = UP_REFUSE};
    const enum promise_answer answer = promise_prepare(&rank->promise, ballot);
    if (answer == PROMISE_FREEZE) {
        rank->running = rank->decided = rank->committed = rank->rows = false;
    }
    if (answer == PROMISE_FREEZE || answer == PROMISE_REPORT) {
        rank_reports(rank);
    } else if (answer == PROMISE_REFUSE) {
        refuse.u.refuse.promised = rank->promise.ballot;
        rank_say(rank, &refuse);
    }
}

static void rank_starts(struct rank *rank, const struct down_message *message)
{
    const struct down_decision *decision = &rank->decision;
    if (!rank->formed) {
        promise_init(&rank->promise, message->generation);
        ancestry_begin(&rank->ancestry, message->generation, world.size);
        rank->formed = true;
    } else {
        if (!rank->decided || decision->ballot.number != message->generation.number ||
            decision->ballot.incarnation != message->generation.incarnation)
            return;
        (void)promise_decided(&rank->promise, decision->ballot);
        if (decision->settled > rank->settled + 1 ||
            (decision->settled == rank->settled + 1 && (rank->value == 0 || !rank->committed)))
            FAULT("rank %u cannot commit step %llu", number_of(rank),
                  (unsigned long long)decision->settled);
        if (decision->settled == rank->settled + 1)
            rank_commits(rank, rank->value);
        ancestry_decided(&rank->ancestry, decision);
        rank->decided = false;
        world.recoveries++;
    }
    struct generation *generation = present(rank);
    generation->members = (uint32_t)rank->ancestry.chain[rank->ancestry.count - 1].members[0];
    generation->started |= 1u << number_of(rank);
    rank->place = message->u.generation_start.rank;
    rank->running = rank->linked = false;
    // A rank looks for its peers anew in each generation, and finds out again which of them are
    // dead.
    rank->told = rank->accused = 0;
}

static bool any_cut(void)
{
    uint32_t cut = 0;
    for (uint32_t i = 0; i < world.size; i++)
        cut |= world.ranks[i].cut;
    return cut != 0;
}

// The trainer closes its session when the others went on without it. The word may be lost.
static void rank_is_out(struct rank *rank)
{
    struct up_message leave = {.kind = UP_LEAVE};
    leave.u.leave.settled = rank->settled;
    rank->out = true;
    rank->out_ms = world.now;
    rank_say(rank, &leave);
    if (rank->peer != 0)
        rank_breaks(rank, false);
}

static bool is_of_present(const struct rank *rank, const struct down_message *message)
{
    const struct generation_id id = present(rank)->id;
    return message->generation.number == id.number &&
           message->generation.incarnation == id.incarnation;
}

static void rank_hears(struct rank *rank, const struct down_message *message)
{
    const struct down_decision *decision = &message->u.decision;
    struct up_message start = {.kind = UP_START, .u.start = {.manifest_hash = 7, .item_count = 3}};
    switch (message->kind) {
    case DOWN_GENERATION:
        rank_starts(rank, message);
        break;
    case DOWN_TUNING:
        if (rank->promise.frozen || !rank->linked || !is_of_present(rank, message))
            break;
        ancestry_establish(&rank->ancestry);
        if (rank->settled == 0 && present(rank)->id.number == 1)
            rank_say(rank, &start);
        rank->running = true;
        break;
    case DOWN_PREPARE:
        rank_prepared(rank, message->u.prepare.ballot);
        break;
    case DOWN_RECORD_PART:
        if (message->u.record_part.kind == RECORD_COMMIT)
            rank->committed = true;
        if (message->u.record_part.kind != RECORD_ROWS)
            break;
        assert_int_equal(message->u.record_part.words[2] & 1, REDO_HAVE);
        rank->rows = true;
        rank->owner = (uint32_t)(message->u.record_part.words[2] >> 1);
        break;
    case DOWN_DECISION:
        rank->decided = rank->promise.frozen &&
                        decision->ballot.number == rank->promise.ballot.number &&
                        decision->ballot.incarnation == rank->promise.ballot.incarnation;
        rank->decision = *decision;
        break;
    case DOWN_EXCLUDED:
        if (!promise_excluded(&rank->promise, message->u.excluded.ballot))
            break;
        if (!any_cut())
            FAULT("rank %u is excluded: %s", number_of(rank), message->u.excluded.text);
        world.excluded++;
        rank_is_out(rank);
        break;
    case DOWN_HALT:
        if (!is_of_present(rank, message))
            break;
        if (!any_cut())
            FAULT("rank %u is halted: %s", number_of(rank), message->u.halt.text);
        world.halted++;
        rank_is_out(rank);
        break;
    case DOWN_NONE:
    case DOWN_WELCOME:
    case DOWN_REFUSED:
    case DOWN_VERIFIED:
    case DOWN_MANIFEST_REQUEST:
    case DOWN_GRANT:
    case DOWN_LAYOUT_PART:
    case DOWN_PLAN_PART:
    case DOWN_QUERY:
    case DOWN_INSPECT:
    case DOWN_ADDRESSES:
        break;
    }
}

static void rank_takes(struct rank *rank)
{
    struct down_message *first = rank->incoming[0];
    rank->count--;
    memmove(&rank->incoming[0], &rank->incoming[1], rank->count * sizeof(rank->incoming[0]));
    if (!first) {
        rank_breaks(rank, false);
        return;
    }
    if (first->kind == DOWN_REFUSED && first->u.refused.refusal == REFUSAL_INVALID && any_cut())
        rank_is_out(rank); // The job has ended without it.
    else if (first->kind == DOWN_REFUSED)
        rank_breaks(rank, true);
    else
        rank_hears(rank, first);
    free(first);
}

// Tells the coordinator of a mate that has died. False: there is nothing to tell.
static bool rank_tells_death(struct rank *rank)
{
    struct up_message message = {.kind = UP_LOST};
    const uint32_t members = present(rank)->members;
    uint32_t place = 0;
    for (uint32_t m = 0; m < world.size; m++) {
        if ((members >> m & 1) == 0)
            continue;
        if (world.ranks[m].dead && (rank->told >> m & 1) == 0) {
            rank->told |= 1u << m;
            message.u.lost.rank = place;
            message.u.lost.step = rank->settled + 1;
            message.u.lost.proof = PROOF_PROCESS;
            rank_say(rank, &message);
            return true;
        }
        place++;
    }
    return false;
}

// Tells the coordinator that a mate acknowledges nothing any more. A frozen rank has no links.
static bool rank_accuses(struct rank *rank)
{
    struct up_message message = {.kind = UP_LOST, .u.lost = {.silent = true}};
    const uint32_t members = present(rank)->members;
    uint32_t place = 0;
    for (uint32_t m = 0; m < world.size && !rank->promise.frozen; m++) {
        if ((members >> m & 1) == 0)
            continue;
        if ((rank->cut >> m & 1) != 0 && (rank->accused >> m & 1) == 0) {
            rank->accused |= 1u << m;
            message.u.lost.rank = place;
            message.u.lost.step = rank->settled + 1;
            rank_say(rank, &message);
            return true;
        }
        place++;
    }
    return false;
}

// The value that another rank has of the step after `settled`; 0: none.
static uint64_t rank_has(const struct rank *rank, uint64_t settled)
{
    return rank->settled > settled ? rank->results[settled + 1] : rank->value;
}

static void rank_makes_final(struct rank *rank)
{
    const struct generation *generation = present(rank);
    uint32_t place = 0;
    if (!rank->rows) {
        if ((generation->given[rank->settled + 1] & generation->members) == generation->members)
            rank->value = result_of(generation->id);
        return;
    }
    for (uint32_t m = 0; m < world.size; m++)
        if ((generation->members >> m & 1) != 0 && place++ == rank->owner)
            rank->value = rank_has(&world.ranks[m], rank->settled);
}

// One event of the open step. False: there is none.
static bool rank_trains(struct rank *rank)
{
    struct generation *generation = present(rank);
    const uint32_t own = 1u << number_of(rank);
    const uint64_t step = rank->settled + 1;
    if ((generation->given[step] & own) == 0) {
        rank->given = true; // What was given before is given again in a new generation.
        generation->given[step] |= own;
    } else if (rank->value == 0) {
        rank_makes_final(rank);
        return rank->value != 0;
    } else if ((generation->joined[step] & own) == 0) {
        generation->joined[step] |= own;
    } else if ((generation->joined[step] & generation->members) == generation->members) {
        rank_commits(rank, rank->value);
    } else {
        return false;
    }
    return true;
}

// One thing that the rank can do besides taking a message. False: there is none.
static bool rank_works(struct rank *rank)
{
    struct up_message links = {.kind = UP_LINKS, .u.links = {.wish = ALGORITHM_BY_SIZE}};
    if (rank->peer == 0 && rank->retry_ms <= world.now) {
        rank_connects(rank);
        return true;
    }
    if (!rank->formed)
        return false;
    struct generation *generation = present(rank);
    const uint64_t step = rank->settled + 1;
    if (rank->peer != 0 && (rank_tells_death(rank) || rank_accuses(rank)))
        return true;
    if (!rank->linked && !rank->promise.frozen && rank->peer != 0 &&
        generation->started == generation->members) {
        rank->linked = true;
        rank_say(rank, &links);
        return true;
    }
    return rank->running && step <= STEPS && rank_trains(rank);
}

// ---- Faults ------------------------------------------------------------------------------------

enum fault_kind {
    FAULT_RANK_DIES,
    FAULT_CORE_STOPS,
    FAULT_CORE_DIES,
    FAULT_STREAM_ENDS,
    FAULT_RANK_TURNS, // Its stream ends, and it tries the other coordinator.
    FAULT_CUT, // The link between two ranks is cut, and stays so.
    FAULT_BLOCKED, // A rank does not reach a coordinator for a while.
    FAULT_KINDS,
};

struct fault {
    enum fault_kind kind;
    uint32_t at; // Events before it.
    uint32_t rank;
    uint32_t core;
    uint32_t ms;
};

static void rank_dies(struct rank *rank)
{
    uint32_t live = 0;
    for (uint32_t i = 0; i < world.size; i++)
        live += lives(&world.ranks[i]);
    if (live == 1 || rank->dead)
        return;
    rank_breaks(rank, false);
    rank->dead = true;
}

static void fault_happens(const struct fault *fault)
{
    struct rank *rank = &world.ranks[fault->rank % world.size];
    struct core *core = &world.cores[fault->core];
    SAY("fault %d: rank %u, core %u, %u ms", (int)fault->kind, number_of(rank), fault->core,
        fault->ms);
    switch (fault->kind) {
    case FAULT_RANK_DIES:
        rank_dies(rank);
        break;
    case FAULT_CORE_STOPS:
        core->stopped_until = world.now + fault->ms;
        break;
    case FAULT_CORE_DIES:
        if (core->alive)
            core_dies(core);
        core->stopped_until = world.now + fault->ms; // Then another one begins there.
        break;
    case FAULT_CUT:
        rank->cut |= 1u << (number_of(rank) + 1) % world.size;
        world.ranks[(number_of(rank) + 1) % world.size].cut |= 1u << number_of(rank);
        break;
    case FAULT_BLOCKED:
        rank->blocked_until[fault->core] = world.now + fault->ms % 8000;
        if (rank->peer != 0 && rank->at == (int)fault->core && !rank->dead)
            rank_breaks(rank, false);
        break;
    case FAULT_STREAM_ENDS:
    case FAULT_RANK_TURNS:
        if (!rank->dead)
            rank_breaks(rank, fault->kind == FAULT_RANK_TURNS);
        break;
    case FAULT_KINDS:
        break;
    }
}

// ---- Time --------------------------------------------------------------------------------------

static void core_probes(struct core *core, uint32_t r)
{
    struct probe *probe = &probes[core - world.cores][r];
    struct coordinator_event event = {.kind = EVENT_PROBED,
                                      .peer = probe->peer,
                                      .reached = !world.ranks[r].dead,
                                      .refused = world.ranks[r].dead};
    probe->wanted = false;
    core_step(core, &event);
}

// One event of a coordinator. False: there is none.
static bool core_acts_now(struct core *core, uint32_t what)
{
    struct coordinator_event tick = {.kind = EVENT_TICK};
    if (!core->alive && core->stopped_until <= world.now) {
        core_begin(core);
        return true;
    }
    if (!core_runs(core))
        return false;
    if (what < world.size && probes[core - world.cores][what].wanted) {
        core_probes(core, what);
        return true;
    }
    if (what % 2 == 0 && coordinator_deadline(core->core) <= world.now) {
        core_step(core, &tick);
        return true;
    }
    if (core->count == 0)
        return false;
    core_takes(core);
    return true;
}

static bool rank_acts_now(struct rank *rank, bool works)
{
    if (!lives(rank))
        return false;
    const bool waits = rank->peer != 0 && !core_runs(&world.cores[rank->at]);
    if (!waits)
        rank->silent_ms = 0;
    else if (rank->silent_ms == 0)
        rank->silent_ms = world.now;
    if (waits && world.now >= rank->silent_ms + KEEPALIVE_MS) {
        rank_breaks(rank, false);
        return true;
    }
    if (!works && rank->count > 0) {
        rank_takes(rank);
        return true;
    }
    return works && rank_works(rank);
}

static bool anything_happens(void)
{
    const uint32_t places = CORES * 8 + RANKS * 2;
    const uint32_t begin = draw(places);
    for (uint32_t i = 0; i < places; i++) {
        const uint32_t place = (begin + i * 7) % places; // Neighbours differ.
        if (place < CORES * 8 ? core_acts_now(&world.cores[place / 8], place % 8)
            : (place - CORES * 8) / 2 < world.size
                ? rank_acts_now(&world.ranks[(place - CORES * 8) / 2], place % 2 == 0)
                : false)
            return true;
    }
    return false;
}

static void time_passes(void)
{
    uint64_t next = world.now + 1000;
    for (uint32_t c = 0; c < CORES; c++) {
        const struct core *core = &world.cores[c];
        uint64_t due = core_runs(core) ? coordinator_deadline(core->core) : core->stopped_until;
        if (due > world.now && due < next)
            next = due;
    }
    for (uint32_t i = 0; i < world.size; i++)
        if (world.ranks[i].peer == 0 && world.ranks[i].retry_ms > world.now &&
            world.ranks[i].retry_ms < next)
            next = world.ranks[i].retry_ms;
    world.now = next;
    for (uint32_t i = 0; i < world.size; i++)
        if (world.ranks[i].out && world.now >= world.ranks[i].out_ms + EXIT_MS)
            world.ranks[i].dead = true;
}

static bool all_have(uint64_t settled)
{
    for (uint32_t i = 0; i < world.size; i++)
        if (lives(&world.ranks[i]) && world.ranks[i].settled < settled)
            return false;
    return true;
}

static void world_begin(uint64_t seed, uint32_t size)
{
    void *memory[CORES] = {world.cores[0].memory, world.cores[1].memory};
    const bool prints = world.prints;
    for (uint32_t i = 0; i < RANKS; i++)
        rank_drop_incoming(&world.ranks[i], 0);
    for (uint32_t c = 0; c < CORES; c++)
        while (world.cores[c].count > 0)
            free(world.cores[c].incoming[--world.cores[c].count].message);
    memset(&world, 0, sizeof(world));
    memset(probes, 0, sizeof(probes));
    memset(peer_counts, 0, sizeof(peer_counts));
    world.prints = prints;
    world.seed = seed;
    world.random = seed * 0x9e3779b97f4a7c15u + 1;
    world.size = size;
    world.now = 1000;
    for (uint32_t c = 0; c < CORES; c++) {
        world.cores[c].memory = memory[c];
        world.cores[c].incarnation = 0x100 * (1 + draw(200)) + 0x10 * c;
        core_begin(&world.cores[c]);
    }
}

// Returns the number of events from the first fault on.
static uint32_t world_runs(const struct fault *faults, uint32_t count)
{
    uint32_t done = 0;
    uint32_t events = 0;
    const uint64_t until = world.now + PATIENCE_MS;
    while (!all_have(2) || world.cores[0].count > 0)
        if (!anything_happens())
            time_passes();
    while (done < count || !all_have(STEPS)) {
        if (done < count && events >= faults[done].at)
            fault_happens(&faults[done++]);
        if (!anything_happens() || draw(16) == 0)
            time_passes();
        events++;
        if (all_have(STEPS) && done < count && events > faults[done].at)
            break;
        for (uint32_t i = 0; world.now > until && i < world.size; i++)
            if (lives(&world.ranks[i]) && world.ranks[i].settled < STEPS)
                FAULT("rank %u waits for ever in step %llu, %s", i,
                      (unsigned long long)world.ranks[i].settled + 1,
                      world.ranks[i].promise.frozen ? "frozen"
                      : world.ranks[i].running      ? "running"
                                                    : "without links");
    }
    return events;
}

// ---- Tests -------------------------------------------------------------------------------------

static void random_world(uint64_t seed)
{
    struct fault faults[FAULTS];
    uint32_t at = 0;
    world_begin(seed, 3 + (uint32_t)(seed % (RANKS - 2)));
    const uint32_t count = 1 + draw(FAULTS);
    for (uint32_t i = 0; i < count; i++) {
        at += draw(60);
        faults[i] = (struct fault){.kind = (enum fault_kind)draw(FAULT_KINDS),
                                   .at = at,
                                   .rank = draw(RANKS),
                                   .core = draw(CORES),
                                   .ms = 1 + draw(30000)};
    }
    world_runs(faults, count);
}

// Seeds above WORLDS: one that has found a fault; eight in which the remaining ranks go on only
// after the data port of an excluded or halted rank has closed; one in which a rank of a new
// generation dies before the decision reaches the others.
static const uint64_t found[] = {4765,  10833, 14944, 15122, 32899,
                                 40228, 45088, 49957, 59838, 196250};

static void random_worlds(void **state)
{
    const uint64_t first = choice_number("LOCKSTEP_TEST_SIM_TWO", 0);
    const uint64_t worlds = choice_number("LOCKSTEP_TEST_SIM_TWO_WORLDS", WORLDS);
    uint64_t recoveries = 0;
    uint64_t excluded = 0;
    uint64_t halted = 0;
    (void)state;
    world.prints = first != 0;
    for (uint32_t i = 0; i < sizeof(found) / sizeof(found[0]) && first == 0; i++)
        random_world(found[i]);
    for (uint64_t seed = 1; seed <= worlds && first == 0; seed++) {
        random_world(seed);
        recoveries += world.recoveries;
        excluded += world.excluded;
        halted += world.halted;
    }
    if (first != 0)
        random_world(first);
    printf("%llu worlds, %llu starts of a generation after a fault, %llu ranks excluded, %llu "
           "halted\n",
           (unsigned long long)worlds, (unsigned long long)recoveries, (unsigned long long)excluded,
           (unsigned long long)halted);
    assert_true(first != 0 || (recoveries > worlds / 2 && excluded > worlds / 20));
}

// A rank dies, and before each event after that the coordinator does, or stops, or a rank goes to
// the other one.
static void every_event_of_a_recovery(void **state)
{
    const enum fault_kind kinds[] = {FAULT_CORE_DIES, FAULT_CORE_STOPS, FAULT_RANK_TURNS};
    struct fault faults[2] = {{.kind = FAULT_RANK_DIES, .at = 3, .rank = 1}};
    uint32_t runs = 0;
    (void)state;
    for (uint32_t k = 0; k < 3; k++) {
        for (uint32_t at = 3; at < 90; at++) {
            world_begin(77, 4);
            faults[1] = (struct fault){.kind = kinds[k], .at = at, .rank = 2, .ms = 20000};
            world_runs(faults, 2);
            runs++;
        }
    }
    printf("%u runs\n", runs);
}

static int memory_begins(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < CORES; c++) {
        world.cores[c].memory = calloc(1, coordinator_bytes());
        assert_non_null(world.cores[c].memory);
    }
    return 0;
}

static int memory_ends(void **state)
{
    (void)state;
    world.prints = false;
    world_begin(1, 3);
    for (uint32_t c = 0; c < CORES; c++)
        free(world.cores[c].memory);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_worlds),
        cmocka_unit_test(every_event_of_a_recovery),
    };
    return cmocka_run_group_tests(tests, memory_begins, memory_ends);
}
