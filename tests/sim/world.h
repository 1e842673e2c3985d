// SPDX-License-Identifier: Apache-2.0
//
// A small world of real cores, of which every interleaving can be tried: an order core for each
// rank (worker/order/order.h), one coordinator core, the streams between them, and trainers that
// run short programs. A world has no clock and no random choices: its user asks which events are
// possible now (world_events) and lets one happen (world_do). A state can be saved, compared and
// restored (world_snapshot), so explore.h can walk through all states.
//
// Not modelled, because other tests have it: bytes, links, a second start, data that runs out.
// sim_network.h has bigger worlds, with a clock.
//
// - Control messages go through the real codec and are FIFO in each direction.
// - A header waits at the ring successor until an event takes it.
// - A wave is complete when all ranks have joined; each rank gets its result by an event of its
// own.
// - A slot becomes final on each rank by an event of its own, after all ranks have launched it. A
//   *strict* rank carries out its launches one after the other, and pairs them with those of other
//   strict ranks by their number; what is launched there as the same number must be the same slot.
//   All other pairing is by tag.
// - Each contribution of a trainer is tracked by name: it is in one result, or in the stash.
//
// Programs. One step of one rank is a list of words; modules are letters from A:
//
//     A     call A: begin it, make its buckets, end it     A!   the same, then wait for it
//     A(    begin it     A)   make its buckets, end it     A?   wait for it
//     A%    wait for it, for a time that may end at any moment
//     :x    at the head of a step: its phase (p when there is none)
//     &     what follows is done by another thread of the same trainer; a module's calls are made
//           by one thread of a step
//     /     the next step
//
// So "A! B / B" waits for A before it calls B in step 0, and calls B alone in step 1.

#ifndef TESTS_SIM_WORLD_H
#define TESTS_SIM_WORLD_H

#include "coordinator/coordinator.h"
#include "protos/types.h"
#include "worker/order/order.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum world_limit {
    WORLD_RANKS = 4,
    WORLD_MODULES = 4,
    WORLD_CALLS = 6, // Calls of one module in one step.
    WORLD_BUCKETS = 3, // Buckets of one module.
    WORLD_THREADS = 2, // Threads of one trainer.
    WORLD_PLANS = 4, // Plans that are learned before the programs begin.
    WORLD_STEPS = 8, // Steps of a program, with those that learn plans.
    WORLD_OPS = 40, // Operations of one thread in one step.
    WORLD_SLOTS = 32, // Slots of one step.
    WORLD_MADE = 48, // Contributions that one rank makes in a run.
    WORLD_CHANNEL = 24, // Messages in flight in one direction of a stream.
    WORLD_HEADERS = 4,
    WORLD_EVENTS = 64, // Events that are possible at a time.
    WORLD_TEXT = 256, // Bytes of the text of an event or a fault.
};

enum world_disaster {
    DISASTER_NONE = 0,
    DISASTER_DEATH, // The victim dies at any moment.
    DISASTER_BREAK, // The control stream of the victim breaks at any moment.
    // The coordinator dies at any moment, and another one takes its place. Each rank has heard its
    // last messages or not, and comes back at a moment of its own. There is no victim.
    DISASTER_RESTART,
};

// Strings are borrowed for as long as the world is used.
struct world_config {
    uint32_t ranks;
    const char *programs[WORLD_RANKS];
    // Plans that are learned before the programs begin: "A B", or ":x A B". NULL ends the list.
    const char *plans[WORLD_PLANS];
    const char *publish; // A plan that the coordinator publishes at any moment; NULL: none.
    uint32_t buckets[WORLD_MODULES]; // Number of buckets of each module; 0: one.
    uint32_t window; // W of the order protocol, in slots.
    uint32_t strict; // Set of ranks whose data plane pairs by position.
    uint32_t reversed; // Set of ranks that make the buckets of a call last to first.
    bool zero_defer;
    enum order_unplanned unplanned;
    bool wait_while_open;
    uint32_t threads; // Threads of each trainer; 0: one.
    bool prompt; // True if headers arrive at once, which makes fewer states.
    enum world_disaster disaster;
    uint32_t victim;
};

// ---- Programs (world_program.c) ----------------------------------------------------------------

enum world_op_kind {
    OP_BEGIN, // step_begin
    OP_OPEN, // call_begin
    OP_MAKE, // The gradients of one bucket are ready.
    OP_CLOSE, // call_end
    OP_WAIT, // call_wait
    OP_TRY, // call_wait with a timeout
    OP_END, // step_end
};

struct world_op {
    uint8_t kind; // enum world_op_kind
    uint8_t module;
    uint8_t call;
    uint8_t bucket;
};

struct world_part { // The actions of one thread in one step.
    uint32_t count;
    struct world_op ops[WORLD_OPS];
};

// The actions of a rank in one step. Thread 0 begins and ends the step.
struct world_row {
    char phase;
    struct world_part threads[WORLD_THREADS];
};

struct world_program {
    uint32_t plans; // Number of steps that learn a plan; they come first.
    uint32_t steps; // Number of all steps, including steps that learn plans.
    struct world_row rows[WORLD_RANKS][WORLD_STEPS];
};

// Parses the programs and plans of a configuration. False: a text is not valid.
bool world_program_read(struct world_program *program, const struct world_config *config);
// Parses a plan into its phase and its slots, in order. False: the text is not valid.
bool world_plan_read(const char *text, const struct world_config *config, char *phase,
                     struct slot_id slots[WORLD_SLOTS], uint32_t *count);
uint32_t world_buckets(const struct world_config *config, uint32_t module);
// world_step_waits: true if some thread of some rank waits in this step. world_step_conforms: true
// if each rank makes exactly the calls of the first plan of its phase.
bool world_step_waits(const struct world_program *program, uint32_t ranks, uint32_t step);
bool world_step_conforms(const struct world_program *program, uint32_t ranks, uint32_t step);

// ---- State (world.c) ---------------------------------------------------------------------------

enum world_mode {
    MODE_RUNS = 0,
    MODE_ENDS, // The trainer is in step_end.
    MODE_DONE, // The program has finished.
    MODE_FAILED,
    MODE_DEAD,
};

enum made_where {
    MADE_READY = 0, // The bucket was reported ready, and not launched.
    MADE_LAUNCHED,
    MADE_RESULT, // The contribution is in a result.
    MADE_STASHED, // The contribution is in the stash.
};

// One contribution: a bucket that a trainer has made in a call.
struct world_made {
    uint8_t step;
    uint8_t module;
    uint8_t call;
    uint8_t bucket;
    uint8_t where; // enum made_where
    // Index of the contribution with which this one travels: its own, or that of a later one.
    uint8_t carrier;
};

struct world_launch {
    uint64_t space;
    uint8_t module;
    uint8_t call;
    uint8_t bucket;
    uint8_t index; // Position in the order of the step.
    bool data; // True if the rank contributes data, false if it contributes zeros.
    bool final;
    uint8_t unused[2]; // No padding: states are compared as bytes.
};

struct world_thread {
    uint8_t at; // Index of the thread's next op, or of the op in which it waits.
    bool waits;
    bool withdrawn; // True if the wait has timed out.
    bool unused;
};

struct world_rank {
    uint8_t mode; // enum world_mode
    uint8_t step; // Steps are counted from 0 here, from 1 in the cores.
    bool begun;
    uint8_t settled; // Number of settled steps.
    uint8_t halt; // enum halt_kind of the verdict, if the rank has failed.
    uint8_t launched_before; // Number of launches in earlier steps.
    uint8_t launch_count;
    uint8_t made_count;
    uint8_t header_count;
    // The last step, from 1, whose close wave the rank has joined; whose close result the rank has
    // got; and the same for the commit wave.
    uint8_t close_joined;
    uint8_t close_heard;
    uint8_t commit_joined;
    uint8_t commit_heard;
    bool cut; // True if the rank's control stream has broken.
    bool cut_known; // True if the rank knows that its stream has broken.
    bool cut_heard; // True if the coordinator knows that the stream has broken.
    bool reported; // True if the rank has reported a loss and waits for the verdict.
    uint8_t lost_seen; // Set of ranks whose links have ended, as this rank has seen.
    uint8_t lost_rank; // The first rank of this set.
    uint8_t up_count;
    uint8_t down_count;
    uint8_t unused[3];
    uint64_t halt_text; // Hash of the text of the verdict.
    struct world_thread threads[WORLD_THREADS];
    uint32_t up[WORLD_CHANNEL]; // Numbers of the messages in flight to the coordinator.
    uint32_t down[WORLD_CHANNEL]; // Numbers of the messages in flight to the rank.
    struct step_header headers[WORLD_HEADERS];
    struct close_wave close;
    struct world_launch launches[WORLD_SLOTS]; // Launches of the present step, in their order.
    struct world_made made[WORLD_MADE];
};

struct world_state {
    struct world_rank ranks[WORLD_RANKS];
    // Set of buckets that were final on some rank, by step, module and call.
    uint8_t slots[WORLD_STEPS][WORLD_MODULES][WORLD_CALLS];
    bool published;
    bool struck; // True if the disaster has happened.
    uint8_t unused[6];
};

struct world_message;

struct world {
    // Set by world_begin, then constant.
    struct world_config config;
    struct world_program program;
    struct coordinator *core;
    uint32_t port[WORLD_RANKS]; // Index of each rank's stream in the coordinator's table.
    void (*say)(void *context, const char *line); // Gets a line for each effect. May be NULL.
    void *context;

    // All different messages that were ever sent in this world.
    struct world_message *messages;
    uint32_t message_count;
    uint32_t message_room;

    char fault[2 * WORLD_TEXT]; // The first invariant that does not hold; empty: all hold.
    uint32_t acts; // The rank whose event is being handled.

    struct world_state state;
    struct order orders[WORLD_RANKS];
};

enum world_event_kind {
    EVENT_TRAINER, // A thread does its next op.
    EVENT_TIMEOUT, // The wait of a thread times out.
    EVENT_UP, // The coordinator reads a message of the rank.
    EVENT_DOWN,
    EVENT_HEADER,
    EVENT_FINAL,
    EVENT_CLOSE_WAVE, // The rank gets the result of the close wave.
    EVENT_COMMIT_WAVE,
    EVENT_PUBLISH,
    EVENT_STRIKE, // The disaster happens.
    EVENT_CUT_HEARD, // The coordinator learns that the rank's stream has ended.
    EVENT_CUT_KNOWN, // The rank learns that its stream has ended.
    EVENT_PEER_LOST, // The rank learns that its links to the rank `index` have ended.
    EVENT_BACK, // The rank comes to the coordinator that has taken the place of a dead one.
};

struct world_event {
    uint8_t kind; // enum world_event_kind
    uint8_t rank;
    uint8_t index; // Thread, launch or rank.
};

// Opens and starts the job and learns the plans; then the programs are about to begin. False: the
// configuration is not valid, and world->fault says why. A world must be zero before its first
// world_begin.
bool world_begin(struct world *world, const struct world_config *config);
void world_end(struct world *world); // Frees the world's memory.

// Returns the number of events that are possible now, always in the same order. 0: the world has
// ended, or hangs.
uint32_t world_events(const struct world *world, struct world_event events[WORLD_EVENTS]);
// Lets the event happen and checks all invariants. The first that fails is in world->fault.
void world_do(struct world *world, const struct world_event *event);
// Describes an event: "rank 1: end of step 0".
void world_event_text(const struct world *world, const struct world_event *event,
                      char text[WORLD_TEXT]);

// ---- What must hold (world_check.c) ------------------------------------------------------------

void world_fault(struct world *world, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
// Checks the invariants that hold after every event.
void world_check(struct world *world);
// Called at a launch, at the release of a wait, when a step has settled, and when a rank sends a
// message to the coordinator.
void world_check_launch(struct world *world, uint32_t rank, const struct order_action *action);
void world_check_release(struct world *world, uint32_t rank, const struct order_action *action);
void world_check_settled(struct world *world, uint32_t rank);
void world_check_said(struct world *world, uint32_t rank, const struct up_message *message);

// Writes the outcome of a world in which no event is possible any more. Steps are those of the
// programs, from 0. There are three outcomes:
//
// - "error 0 order": all ranks failed in step 0, by a verdict of that kind.
// - "ok 0A0={0:0A0,1:0A0} 0B0={} stash={1:0B0}": the contributions in the result of every slot and
//   in the stashes, as rank:StepModuleCall, sorted. ".1" follows for bucket 1 of a module.
// - "stall": some rank runs, and not all of its threads wait. No verdict exists for that.
//
// Returns false if the state is no valid end; world->fault says why.
bool world_outcome(struct world *world, char *text, size_t bytes);
// Describes the state of every rank, for people.
void world_describe(const struct world *world, char *text, size_t bytes);

// ---- States (world_snapshot.c) -----------------------------------------------------------------

struct world_hash {
    uint64_t words[2];
};

struct world_snapshot {
    uint8_t *bytes;
    size_t size;
    size_t room;
};

// Copies the used part of the state. snapshot must be zero the first time, and is freed by
// world_snapshot_free.
void world_save(struct world *world, struct world_snapshot *snapshot);
void world_restore(struct world *world, const struct world_snapshot *snapshot);
void world_snapshot_free(struct world_snapshot *snapshot);
// Hash of all state that decides how the world goes on, and of the contributions. Totals are left
// out.
struct world_hash world_hash(const struct world_snapshot *snapshot);

// ---- Messages (world_message.c) ----------------------------------------------------------------

// Encodes and decodes a message, and keeps one copy of it. Returns the message's number; equal
// messages have equal numbers. UINT32_MAX: the message cannot be encoded.
uint32_t world_keep_up(struct world *world, const struct up_message *message);
uint32_t world_keep_down(struct world *world, const struct down_message *message);
const struct up_message *world_up(const struct world *world, uint32_t number);
const struct down_message *world_down(const struct world *world, uint32_t number);
void world_up_text(const struct up_message *message, char *text, size_t bytes);
void world_down_text(const struct down_message *message, char *text, size_t bytes);
void world_forget_messages(struct world *world);

#endif
