// SPDX-License-Identifier: Apache-2.0
//
// A small world of real cores, of which every interleaving can be tried: an order core for each
// rank (worker/order/order.h), one coordinator core, the streams between them, and trainers that
// run short programs. It has no clock and draws nothing: its user asks which events can happen now
// (world_events) and lets one happen (world_do). A state can be kept, compared and gone back to
// (world_snapshot), so explore.h can walk through all of them.
//
// Left out, because other tests have it: bytes, links, starting again, data that runs out. Bigger
// worlds under a clock are sim_network.h's.
//
// - Control messages go through the real codec and are FIFO in each direction.
// - A header waits at the ring successor until an event takes it.
// - A wave is complete when all ranks have joined; each rank hears of it by an event of its own.
// - A slot becomes final on each rank by an event of its own, after all ranks have launched it. A
//   *strict* rank carries out its launches one after the other, and pairs them with those of other
//   strict ranks by their number; what is launched there as the same number must be the same slot.
//   All other pairing is by tag.
// - What a trainer makes of a bucket is followed by name: it is in one result, or in the stash.
//
// Programs. One step of one rank is a row of words, modules are letters from A:
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
    WORLD_PLANS = 4, // Learned before the programs begin.
    WORLD_STEPS = 8, // Steps of a program, with those that learn plans.
    WORLD_OPS = 40, // Operations of one thread in one step.
    WORLD_SLOTS = 32, // Slots of one step.
    WORLD_MADE = 48, // Buckets that one rank makes in a run.
    WORLD_CHANNEL = 24, // Messages on their way in one direction of a stream.
    WORLD_HEADERS = 4,
    WORLD_EVENTS = 64, // Events that are possible at a time.
    WORLD_TEXT = 256, // One line about an event, one sentence about a fault.
};

enum world_disaster {
    DISASTER_NONE = 0,
    DISASTER_DEATH, // The victim dies at any moment.
    DISASTER_BREAK, // Its control stream breaks at any moment.
};

// Strings are borrowed for as long as the world is used.
struct world_config {
    uint32_t ranks;
    const char *programs[WORLD_RANKS];
    const char *plans[WORLD_PLANS]; // Learned before: "A B", or ":x A B". NULL ends the list.
    const char *publish; // A plan that the coordinator publishes at any moment; NULL: none.
    uint32_t buckets[WORLD_MODULES]; // 0: one.
    uint32_t window; // W
    uint32_t strict; // Set of ranks whose data plane pairs by position.
    uint32_t reversed; // Set of ranks that make the buckets of a call last to first.
    bool zero_defer;
    enum order_unplanned unplanned;
    bool wait_while_open;
    uint32_t threads; // Threads of each trainer; 0: one.
    bool prompt; // Headers arrive at once: fewer states.
    enum world_disaster disaster;
    uint32_t victim;
};

// ---- Programs (world_program.c) ----------------------------------------------------------------

enum world_op_kind {
    OP_BEGIN, // step_begin
    OP_OPEN, // call_begin
    OP_MAKE, // The gradients of one bucket are there.
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

// The actions of a rank in one step. Thread 0 begins and ends it.
struct world_row {
    char phase;
    struct world_part threads[WORLD_THREADS];
};

struct world_program {
    uint32_t plans; // The first steps: one for each plan to be learned.
    uint32_t steps; // All steps, with those that learn plans.
    struct world_row rows[WORLD_RANKS][WORLD_STEPS];
};

// False: the text of some program or plan makes no sense.
bool world_program_read(struct world_program *program, const struct world_config *config);
// The calls of a plan, in order: false as above. Its phase is in *phase.
bool world_plan_read(const char *text, const struct world_config *config, char *phase,
                     struct slot_id slots[WORLD_SLOTS], uint32_t *count);
uint32_t world_buckets(const struct world_config *config, uint32_t module);
// Whether some thread of some rank waits in this step; whether all ranks call just what the first
// plan of their phase has.
bool world_step_waits(const struct world_program *program, uint32_t ranks, uint32_t step);
bool world_step_conforms(const struct world_program *program, uint32_t ranks, uint32_t step);

// ---- State (world.c) ---------------------------------------------------------------------------

enum world_mode {
    MODE_RUNS = 0,
    MODE_ENDS, // The trainer is in step_end.
    MODE_DONE, // The program is through.
    MODE_FAILED,
    MODE_DEAD,
};

enum made_where {
    MADE_READY = 0, // Said, and not launched.
    MADE_LAUNCHED,
    MADE_RESULT, // The contribution is in a result.
    MADE_STASHED,
};

// A bucket that a trainer has made.
struct world_made {
    uint8_t step;
    uint8_t module;
    uint8_t call;
    uint8_t bucket;
    uint8_t where; // enum made_where
    uint8_t carrier; // Index of the one with which it travels: itself, or a later one.
};

struct world_launch {
    uint64_t space;
    uint8_t module;
    uint8_t call;
    uint8_t bucket;
    uint8_t index; // Position in the order of the step.
    bool data; // True if it is data, not zeros.
    bool final;
    uint8_t unused[2]; // No padding: states are compared as bytes.
};

struct world_thread {
    uint8_t at; // Its next op, or the one it waits in.
    bool waits;
    bool withdrawn; // The time of its wait is over.
    bool unused;
};

struct world_rank {
    uint8_t mode; // enum world_mode
    uint8_t step; // Steps are counted from 0 here, from 1 in the cores.
    bool begun;
    uint8_t settled; // Steps.
    uint8_t halt; // enum halt_kind, when it has failed.
    uint8_t launched_before; // Launches in earlier steps.
    uint8_t launch_count;
    uint8_t made_count;
    uint8_t header_count;
    uint8_t close_joined; // Step whose close wave it has joined last, from 1; the same of results.
    uint8_t close_heard;
    uint8_t commit_joined;
    uint8_t commit_heard;
    bool cut; // True if its control stream has broken.
    bool cut_known; // True if the rank knows that its stream has broken.
    bool cut_heard; // True if the coordinator knows it.
    bool reported; // It waits for the sentence about what it has seen.
    uint8_t lost_seen; // Set of ranks.
    uint8_t lost_rank; // The first rank of this set.
    uint8_t up_count;
    uint8_t down_count;
    uint8_t unused[3];
    uint64_t halt_text; // Hash.
    struct world_thread threads[WORLD_THREADS];
    uint32_t up[WORLD_CHANNEL]; // Numbers of messages.
    uint32_t down[WORLD_CHANNEL];
    struct step_header headers[WORLD_HEADERS];
    struct close_wave close;
    struct world_launch launches[WORLD_SLOTS]; // Launches of the present step, in their order.
    struct world_made made[WORLD_MADE];
};

struct world_state {
    struct world_rank ranks[WORLD_RANKS];
    uint8_t slots[WORLD_STEPS][WORLD_MODULES][WORLD_CALLS]; // Buckets that were final somewhere.
    bool published;
    bool struck; // The disaster has happened.
    uint8_t unused[6];
};

struct world_message;

struct world {
    // Set by world_begin, then constant.
    struct world_config config;
    struct world_program program;
    struct coordinator *core;
    uint32_t port[WORLD_RANKS]; // Place of its stream in the coordinator's table.
    void (*say)(void *context, const char *line); // NULL: nobody listens.
    void *context;

    // Every message that was ever sent in this world, once.
    struct world_message *messages;
    uint32_t message_count;
    uint32_t message_room;

    char fault[2 * WORLD_TEXT]; // The first invariant that does not hold; empty: all do.
    uint32_t acts; // Rank whose event is going on.

    struct world_state state;
    struct order orders[WORLD_RANKS];
};

enum world_event_kind {
    EVENT_TRAINER, // A thread takes its next step.
    EVENT_TIMEOUT, // The time of its wait is over.
    EVENT_UP, // The coordinator reads a message of the rank.
    EVENT_DOWN,
    EVENT_HEADER,
    EVENT_FINAL,
    EVENT_CLOSE_WAVE, // The rank hears the result of the close wave.
    EVENT_COMMIT_WAVE,
    EVENT_PUBLISH,
    EVENT_STRIKE, // The disaster happens.
    EVENT_CUT_HEARD, // The coordinator learns that the rank's stream has ended.
    EVENT_CUT_KNOWN, // The rank learns that its stream has ended.
    EVENT_PEER_LOST, // It learns of the end of the links to `index`.
};

struct world_event {
    uint8_t kind; // enum world_event_kind
    uint8_t rank;
    uint8_t index; // Thread, launch or rank.
};

// Opens and starts the job, learns the plans; then nothing but the programs can go on. False: the
// configuration makes no sense, and fault says why. A world that was not begun yet must be zero.
bool world_begin(struct world *world, const struct world_config *config);
void world_end(struct world *world); // Frees the world's memory.

// The events that are possible now, always in the same order. 0: the world has come to its end, or
// hangs.
uint32_t world_events(const struct world *world, struct world_event events[WORLD_EVENTS]);
// Lets it happen and looks at all invariants: fault.
void world_do(struct world *world, const struct world_event *event);
// "rank 1: end of step 0"
void world_event_text(const struct world *world, const struct world_event *event,
                      char text[WORLD_TEXT]);

// ---- What must hold (world_check.c) ------------------------------------------------------------

void world_fault(struct world *world, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
// After every event.
void world_check(struct world *world);
// For world.c: at a launch, at a release, when a step has settled, when something is said.
void world_check_launch(struct world *world, uint32_t rank, const struct order_action *action);
void world_check_release(struct world *world, uint32_t rank, const struct order_action *action);
void world_check_settled(struct world *world, uint32_t rank);
void world_check_said(struct world *world, uint32_t rank, const struct up_message *message);

// The outcome of a world in which no event is possible any more. Steps are those of the programs,
// from 0. "error 0 order": all ranks failed in step 0, by a verdict of that kind. Else what is in
// the result of every slot and in the stashes, as rank:StepModuleCall, all sorted: "ok
// 0A0={0:0A0,1:0A0} 0B0={} stash={1:0B0}". Buckets of modules with several follow as ".1". "stall":
// some rank runs, and fewer of its threads wait than it has: nobody is told of that. False: it is
// no end, and fault says why.
bool world_outcome(struct world *world, char *text, size_t bytes);
// For people: where every rank is.
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

// Copies what is in use, no more. snapshot must be zero the first time; world_snapshot_free.
void world_save(struct world *world, struct world_snapshot *snapshot);
void world_restore(struct world *world, const struct world_snapshot *snapshot);
void world_snapshot_free(struct world_snapshot *snapshot);
// Hash of all state that decides how the world goes on, and of what was made, without totals.
struct world_hash world_hash(const struct world_snapshot *snapshot);

// ---- Messages (world_message.c) ----------------------------------------------------------------

// Encodes, decodes and keeps it, once. Equal messages have equal numbers. UINT32_MAX: it cannot be
// encoded.
uint32_t world_keep_up(struct world *world, const struct up_message *message);
uint32_t world_keep_down(struct world *world, const struct down_message *message);
const struct up_message *world_up(const struct world *world, uint32_t number);
const struct down_message *world_down(const struct world *world, uint32_t number);
void world_up_text(const struct up_message *message, char *text, size_t bytes);
void world_down_text(const struct down_message *message, char *text, size_t bytes);
void world_forget_messages(struct world *world);

#endif
