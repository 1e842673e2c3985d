// SPDX-License-Identifier: Apache-2.0
//
// A small world of real order cores (worker/order/) whose ranks die and go on: events happen one at
// a time, in an order that a seed draws, and any event or action may be the last one of a rank.
//
// - Real: the order core of each rank with its freeze, report and recovery, and its promises to
//   coordinators (promise.h).
// - Modelled: the coordinator (crash_core.c), which grants slots of learning steps, and decides
//   after a death when all ranks that it keeps have reported. It may also suspect ranks that live:
//   those that it does not keep are excluded. Copies of its PREPARE and DECISION may arrive again,
//   much later, as they would from a second stream.
// - Modelled: the data plane. A slot has two elements. An element becomes final on each rank by an
//   event of its own, once all ranks of the generation have launched the slot, or never. A wave is
//   complete once all ranks have joined it; each rank gets the result by an event of its own, or
//   never. A repeated element is reduced again, or copied from a rank that has it.
//
// - Modelled: the stash (worker/session/module/deferral.c), as the set of calls whose gradients it
//   keeps.
//
// An element's value is the set of calls whose gradients it holds. A rank's calls of a module have
// a number each, from the first step to the last. What is checked after every event is in
// crash_check.c.

#ifndef TESTS_SIM_CRASH_H
#define TESTS_SIM_CRASH_H

#include "protos/types.h"
#include "worker/order/order.h"
#include "worker/order/promise.h"
#include "worker/order/recover.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum crash_limit {
    CRASH_RANKS = 4,
    CRASH_STEPS = 4,
    CRASH_MODULES = 3,
    CRASH_CALLS = 6, // Calls that a rank makes in a step.
    CRASH_SLOTS = 12, // Slots of a step.
    CRASH_ELEMENTS = 2, // Elements of a slot.
    CRASH_BALLOTS = 24,
    CRASH_CHANNEL = 48, // Messages in flight to or from one rank.
    CRASH_HEADERS = 16, // Headers in flight to one rank.
    CRASH_EVENTS = 128, // Events that are possible at a time.
    CRASH_CALL_NUMBERS = 3, // Calls of a module in a step.
    CRASH_BUCKETS = 2, // Buckets of a module at most.
    CRASH_TOKENS = 16, // Calls of a module that a rank makes: a value has so many bits of a rank.
    CRASH_TEXT = 256,
};

// What a world draws and what happens in it. A rank is named by its number in generation 1.
struct crash_config {
    uint64_t seed;
    uint32_t ranks;
    bool uneven; // True if steps begin with an open wave.
    bool suspicions; // True if ranks that live may be suspected.
    // True if another coordinator, which knows nothing, may begin a ballot: some of the grants and
    // plans that are on their way to a rank are lost.
    bool restarts;
    // True if trainers wait for calls before the end of the step. Without `defers` all ranks make
    // the same calls then: ranks that wait in other orders may wait for each other.
    bool waits;
    bool defers; // True if waits give up calls.
    bool unplanned_defers; // True if calls outside the plan count later.
    // Event and action after which a rank dies; UINT32_MAX: none. An action is one of a rank's
    // order core: that rank dies within the event.
    uint32_t kill_at[2];
    uint32_t victim[2];
    uint32_t kill_action;
};

struct crash_call {
    uint32_t module;
    uint32_t call;
};

struct crash_program {
    uint32_t count[CRASH_STEPS + 1]; // Calls of each step, from step 1.
    struct crash_call calls[CRASH_STEPS + 1][CRASH_CALLS];
    uint32_t phase[CRASH_STEPS + 1];
    // The last step for which the rank has data, if steps begin with an open wave, in each of two
    // epochs. The step between them is opened, and skipped.
    uint32_t data[2];
    bool leaves; // True if it closes its session after the last step, while others may need it.
};

struct crash_element {
    bool final;
    uint64_t value; // Set of calls: see crash_tokens.
};

enum crash_row {
    ROW_NONE, // The element is final on every member.
    ROW_REDUCE,
    ROW_HAVE,
};

struct crash_slot {
    bool launched; // In the rank's generation.
    bool repeated;
    struct crash_element elements[CRASH_ELEMENTS];
};

// One of the ranks' messages to the coordinator, or the coordinator's to a rank.
enum crash_message_kind {
    CRASH_UP, // Any message of the order core.
    CRASH_REPORT,
    CRASH_LEAVE, // With the last report.
    CRASH_GRANT,
    CRASH_PLAN,
    CRASH_PREPARE,
    CRASH_DECISION,
    CRASH_EXCLUDED,
};

// The finals of a rank's open step, with its facts.
struct crash_report {
    struct generation_id ballot;
    struct order_facts facts;
    struct crash_slot slots[CRASH_SLOTS];
    struct open_wave opened;
    struct close_wave closed;
};

struct crash_message {
    enum crash_message_kind kind;
    struct generation_id generation;
    struct generation_id ballot;
    bool suspect; // PREPARE: the receiver is a suspect.
    enum up_kind up;
    uint64_t step;
    uint64_t phase;
    struct slot_id slot; // UP_READY, UP_WAIT, GRANT.
    uint32_t granted; // UP_READY, as in struct up_ready.
    uint32_t grants;
    bool unmade;
    uint64_t holds; // UP_END: number of the plan that the rank holds.
    bool forced; // GRANT
    uint32_t plan_count; // PLAN.
    struct slot_id plan[CRASH_SLOTS];
    struct crash_report report;
};

struct crash_channel {
    uint32_t count;
    struct crash_message messages[CRASH_CHANNEL];
};

enum crash_mode {
    CRASH_BETWEEN, // The trainer is between steps.
    CRASH_FINISHED, // The trainer is between two epochs.
    CRASH_OPENING, // The trainer waits for the open wave.
    CRASH_BACKWARD,
    CRASH_WAITING, // The trainer waits for its last call.
    CRASH_ENDING, // The trainer is in step_end.
    CRASH_DONE,
    CRASH_LEFT, // The trainer has closed its session, after all steps.
    CRASH_DEAD,
    CRASH_OUT, // The rank was excluded.
};

// A bucket of a call, in the open step. Sets are of this rank's calls.
struct crash_run {
    bool put_off;
    bool decided;
    uint32_t own; // The call; 0: it was not made.
    uint32_t carries; // The calls whose gradients travel.
};

struct crash_wave {
    bool joined;
    bool heard;
    uint64_t step;
};

struct crash_rank {
    enum crash_mode mode;
    struct crash_program program;
    uint32_t world; // Set of ranks of its generation.
    uint64_t step;
    uint32_t made; // Calls of the step that were made.
    bool waited; // True if the trainer has waited for the last of them.
    // By position in the step's order: what the trainer has read after a wait; 0: nothing.
    uint64_t read[CRASH_SLOTS][CRASH_ELEMENTS];
    uint32_t tokens[CRASH_MODULES]; // Calls of each module so far.
    struct crash_run runs[CRASH_MODULES][CRASH_CALL_NUMBERS][CRASH_BUCKETS];
    uint32_t stash[CRASH_MODULES][CRASH_BUCKETS]; // Sets of calls.
    bool taken[CRASH_MODULES][CRASH_BUCKETS]; // True if a call of the step carries the stash.
    uint32_t epoch;
    struct crash_wave waves[WAVE_KINDS];
    struct close_wave closed;
    struct crash_slot slots[CRASH_SLOTS]; // By position in the step's order.
    uint32_t header_count;
    struct step_header headers[CRASH_HEADERS];
    struct generation_id header_generations[CRASH_HEADERS];
    struct crash_channel up;
    struct crash_channel down;
    struct crash_channel late; // Copies that may arrive at any moment.
    struct promise promise;
    struct order order;
};

// Contributions of one generation, by the number of its ballot. They outlive the ranks that made
// them: what was sent may still arrive.
struct crash_data {
    uint32_t launched; // Set of ranks that have launched the slot.
    uint64_t gave; // Set of calls whose gradients were given.
};

struct crash_generation {
    struct generation_id id;
    uint32_t members; // Set of ranks.
    struct crash_data slots[CRASH_STEPS + 1][CRASH_SLOTS];
    uint32_t joined[WAVE_KINDS][CRASH_STEPS + 2]; // Sets of ranks.
    struct open_wave openings[CRASH_STEPS + 2][CRASH_RANKS];
    struct close_wave closes[CRASH_STEPS + 2][CRASH_RANKS];
};

struct crash_decision {
    struct generation_id ballot;
    uint32_t members;
    uint64_t settled;
    bool skipped;
    bool has_opened;
    bool has_closed;
    struct open_wave opened;
    struct close_wave closed;
    struct slot_set redo;
    enum crash_row rows[CRASH_SLOTS][CRASH_ELEMENTS];
    uint64_t values[CRASH_SLOTS][CRASH_ELEMENTS]; // HAVE: the value.
    uint32_t owners[CRASH_SLOTS][CRASH_ELEMENTS];
};

// The learning step, as the coordinator sees it.
struct crash_learning {
    bool active;
    uint64_t step;
    uint64_t phase;
    uint64_t last_step;
    uint32_t entered; // Sets of ranks.
    uint32_t ended;
    uint32_t count;
    struct slot_id slots[CRASH_SLOTS];
    uint32_t made[CRASH_SLOTS];
    uint32_t waits[CRASH_RANKS]; // 1 + the slot for which a rank waits; 0: it does not.
    bool granted[CRASH_SLOTS];
    uint32_t grant_count;
    uint32_t grants[CRASH_SLOTS];
    uint32_t recalled[CRASH_RANKS]; // Grants that a rank has said again.
    uint32_t holds; // Set of ranks that have the plan of the step.
};

struct crash_core {
    uint32_t members;
    uint32_t removed; // Set of ranks that decisions removed.
    uint64_t number; // Of the last ballot.
    uint64_t established; // Of the last ballot that was decided.
    bool collects;
    uint32_t kept; // Ranks whose reports are awaited.
    uint32_t reported;
    struct crash_report reports[CRASH_RANKS];
    uint32_t left; // Set of ranks that have left, with their last reports.
    uint32_t known_dead;
    uint32_t suspicions; // Suspicions left.
    uint64_t plan_number;
    bool forgets; // True if another coordinator has begun the ballot.
    struct crash_learning learning;
};

struct crash_world {
    struct crash_config config;
    uint64_t random;
    uint32_t events;
    uint32_t actions;
    uint32_t acts; // The rank whose event is handled.
    bool prints;
    struct crash_rank ranks[CRASH_RANKS];
    struct crash_core core;
    struct crash_generation generations[CRASH_BALLOTS];
    struct crash_decision decisions[CRASH_BALLOTS];
    // The value of each element on the first rank that settled the step.
    uint32_t settled[CRASH_STEPS + 1]; // Set of ranks.
    uint32_t slot_counts[CRASH_STEPS + 1];
    struct slot_id slots[CRASH_STEPS + 1][CRASH_SLOTS];
    uint64_t values[CRASH_STEPS + 1][CRASH_SLOTS][CRASH_ELEMENTS];
    uint32_t recoveries; // Decisions.
    uint32_t words; // Decisions that rest on the last report of a rank that has left.
    uint32_t repeated; // Slots that were repeated.
    uint32_t waits; // Waits that were answered.
    uint32_t put_off; // Buckets whose gradients count later.
    uint32_t carried; // Buckets that travelled with gradients of earlier calls.
    char fault[CRASH_TEXT];
};

// Runs a world to its end. False: world->fault says which rule does not hold.
bool crash_run(struct crash_world *world, const struct crash_config *config);

// ---- Between the files of the world ------------------------------------------------------------

void crash_fault(struct crash_world *world, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void crash_say(const struct crash_world *world, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
uint32_t crash_draw(struct crash_world *world, uint32_t bound);
bool crash_lives(const struct crash_rank *rank); // Neither dead nor excluded, and has not left.
void crash_push(struct crash_world *world, struct crash_channel *channel,
                const struct crash_message *message);
// Removes a message, by its place.
void crash_pop(struct crash_channel *channel, uint32_t at, struct crash_message *message);
static inline bool crash_in(uint32_t set, uint32_t rank)
{
    return (set >> rank & 1) != 0;
}
// A set of calls of rank r, as a part of a value.
static inline uint64_t crash_tokens(uint32_t set, uint32_t r)
{
    return (uint64_t)set << r * CRASH_TOKENS;
}
static inline uint32_t crash_bucket_count(uint32_t module)
{
    return 1 + module % CRASH_BUCKETS;
}
static inline struct crash_run *crash_run_of(struct crash_rank *rank, const struct slot_id *id)
{
    return &rank->runs[id->module][id->call][id->bucket];
}

// crash_core.c
void crash_core_begin(struct crash_world *world);
void crash_core_hears(struct crash_world *world, uint32_t r, const struct crash_message *message);
bool crash_core_can_prepare(const struct crash_world *world);
void crash_core_prepares(struct crash_world *world);

// crash_rank.c
void crash_rank_begin(struct crash_world *world, uint32_t r);
bool crash_trainer_can(const struct crash_world *world, uint32_t r);
void crash_trainer_acts(struct crash_world *world, uint32_t r);
void crash_rank_hears(struct crash_world *world, uint32_t r, const struct crash_message *message);
bool crash_wave_can(const struct crash_world *world, uint32_t r, enum wave_kind kind);
void crash_wave_completes(struct crash_world *world, uint32_t r, enum wave_kind kind);
bool crash_final_can(const struct crash_world *world, uint32_t r, uint32_t slot, uint32_t element);
void crash_final_happens(struct crash_world *world, uint32_t r, uint32_t slot, uint32_t element);

// crash_check.c
void crash_check_commit(struct crash_world *world, uint32_t r);
void crash_check_wait(struct crash_world *world, uint32_t r, const struct order_action *action);
void crash_check_settled(struct crash_world *world, uint32_t r);
void crash_check_decision(struct crash_world *world, uint32_t members, uint64_t settled);
void crash_check_event(struct crash_world *world);
void crash_check_end(struct crash_world *world);

#endif
