// SPDX-License-Identifier: Apache-2.0
//
// The worker's side of the order protocol: which slot of a step may be launched when, the tiny
// exchanges of a step (open wave, header, close wave, commit wave), learning, plans, halts. Pure:
// facts go in as function calls, actions come out through a sink. No clock, socket, thread or
// allocation. The driver of a session runs it; the simulator runs thousands of them.
//
// It is not the data plane: it never sees a byte of a gradient, only that a slot is ready, launched
// or final.
//
// Rules, in the words of docs/protocol.md:
//
// - R0 Open wave. Where ranks may run out of data, step_begin joins it before the step is begun,
// and
//   waits for it: how many ranks are exhausted, and the phase of the lowest one that is not. All
//   ranks get the same result, so all begin the step, or none does. A step that is being opened is
//   one that a halt or a loss can name, although nothing of it is under way. A header goes ahead of
//   the wave: a rank in lockstep_start never joins it, and has to learn that others wait there.
// - R1 Header. step_begin sends a header to the ring successor. The close wave is joined only when
//   the predecessor's header of the same step has arrived and names the same phase; a different
//   phase is reported once (UP_FAIL), and the verdict is waited for. Planned slots may run before:
//   their frames carry the plan's hash, so slots of different phases never pair. A learning step
//   has no close wave and does not wait for the header: it may come when the step is settled, and
//   is dropped, for the coordinator has compared the phases.
// - R3 Launch. In a planned step slot i is launched when it is ready or zero and i < L + W, where L
//   is the lowest slot that is not final here. The slot at L can always be launched.
// - Learning. In the first step of a phase every ready slot is reported and launched when the
//   coordinator grants it; grants come in one order everywhere. The plan that arrives when all
//   have ended closes the step; there is no close wave.
// - R5 Local fulfilment. At step_end every unready planned slot becomes zero. A slot granted that
//   this rank has not made is zero too.
// - R6 Close wave. Joined after step_end with the calls outside the plan and the highest plan
//   number held. The result is the same everywhere: a call outside the plan is the verdict
//   UNPLANNED on all ranks, at this step. It takes effect after the commit wave, when no rank needs
//   anything from another any more.
// - R7 Commit wave. Joined when the step is closed and all its slots are final here. When it is
//   complete the step is settled: every slot is final on every rank.
// - R12 A halt for step s takes effect when s - 1 is settled here; one for step 0 at once.
// - Start again. When lockstep_start begins again, all plans are forgotten, on every rank at the
//   same step; their numbers go on. A header says how often its rank has started. One that has
//   started less often than this rank is in a step instead: that is said (UP_FAIL), and the verdict
//   is waited for. Between a rank that has begun a step and one that is in lockstep_start there is
//   always such a header, somewhere in the ring.
// - Forgetting. A bounded number of plans is held. A new one takes the place of the one whose phase
//   was begun longest ago; that phase is learned again when it comes back. Which one that is
//   follows from the steps alone, so all ranks forget the same one.
//
// A phase here is a hash of all that decides what a step is like: the trainer's label for it and
// the set of parameters that are trained in it.
//
// One step is open at a time (step_end blocks until the step is settled); a peer may be one step
// ahead, so the header of the next step is kept.

#ifndef WORKER_ORDER_H
#define WORKER_ORDER_H

#include "protos/types.h"
#include "worker/transport.h"

enum wave_kind {
    WAVE_CLOSE = 0,
    WAVE_COMMIT = 1,
    WAVE_OPEN = 2,
};
#define WAVE_KINDS 3

#define OPEN_NOBODY UINT32_MAX // No rank has data.

// Payload of the open wave.
struct open_wave {
    uint32_t exhausted; // Ranks without data.
    uint32_t first; // Lowest rank with data, or OPEN_NOBODY.
    char phase[LOCKSTEP_NAME_BYTES]; // Its phase, filled up with zeros; of OPEN_NOBODY: empty.
};

// Payload of the close wave. Lists are sorted and without duplicates.
struct close_wave {
    uint64_t plan_number; // Minimum: the highest plan that every rank holds.
    uint32_t extra_total; // Distinct calls outside the plan; above the bound it saturates.
    uint32_t reserved;
    struct call_id extras[LOCKSTEP_MAX_EXTRA_CALLS];
};

#define ORDER_UNUSED_NAMED 16 // Unused parameters that a commit wave can name.

// What an unused parameter leads to. The most serious ones are named first.
enum unused_severity {
    UNUSED_IS_ERROR = 0,
    UNUSED_IS_WARNING = 1,
    UNUSED_IS_ACCEPTED = 2,
};

struct unused_parameter {
    uint32_t module;
    uint32_t parameter;
    uint32_t rank;
    uint32_t severity; // enum unused_severity
    uint32_t call; // Of a module whose calls are separate; else 0.
};

#define ORDER_ABORTED_NAMED 8 // Calls given up that a commit wave can name.

struct aborted_call {
    uint32_t module;
    uint32_t rank;
    uint32_t accepted; // 1: by the module's policy it is no error.
};

struct counter_delta {
    uint64_t name; // Hash of the counter's name; 0 is free.
    int64_t delta;
};

// Payload of the commit wave. Lists are sorted; the smallest entries are kept when they overflow.
struct commit_wave {
    uint64_t unused_total; // (parameter, rank) pairs without a gradient.
    uint64_t unused_errors; // Of these: errors, ...
    uint64_t unused_warnings; // ... and warnings.
    uint32_t unused_named;
    uint32_t counter_count;
    uint32_t counter_overflow; // More than LOCKSTEP_MAX_COUNTERS names were used.
    uint32_t aborted_total; // (module, rank) pairs whose call was given up.
    uint64_t called; // One bit for each module: some rank called it, ...
    uint64_t weighted; // ... some rank with a weight above 0.
    uint32_t aborted_named;
    uint32_t aborted_errors; // Of aborted_total: not accepted.
    struct aborted_call aborted[ORDER_ABORTED_NAMED];
    struct unused_parameter unused[ORDER_UNUSED_NAMED];
    struct counter_delta counters[LOCKSTEP_MAX_COUNTERS];
};

static_assert(LOCKSTEP_MAX_MODULES <= 64, "one bit for each module");
static_assert(sizeof(struct open_wave) <= LOCKSTEP_WAVE_BYTES, "an open wave fits");
static_assert(sizeof(struct close_wave) <= LOCKSTEP_WAVE_BYTES, "a close wave fits");
static_assert(sizeof(struct commit_wave) <= LOCKSTEP_WAVE_BYTES, "a commit wave fits");

// Exact, commutative, associative.
void order_open_merge(void *into, const void *from);
void order_close_merge(void *into, const void *from);
void order_commit_merge(void *into, const void *from);

enum slot_state {
    SLOT_UNREADY = 0,
    SLOT_READY,
    SLOT_ZERO, // Fulfilled with zeros: weight 0.
    SLOT_LAUNCHED, // Given to the data plane.
    SLOT_FINAL, // Its result is in user memory here.
};

struct order_slot {
    struct slot_id id;
    enum slot_state state;
    bool zero; // Was launched with zeros.
    uint32_t algorithm; // As in struct plan_slot.
};

struct order_plan {
    uint64_t phase;
    uint64_t number; // 0: none.
    uint64_t hash;
    uint64_t used; // Last step of its phase.
    uint32_t count;
    struct slot_id slots[LOCKSTEP_MAX_SLOTS];
    uint8_t algorithms[LOCKSTEP_MAX_SLOTS]; // Of each: as in struct plan_slot.
};

enum order_action_kind {
    ORDER_SEND, // Send up to the coordinator.
    ORDER_OPEN, // Join the open wave with opening.
    ORDER_HEADER, // Send header to the ring successor.
    ORDER_LAUNCH, // Launch the slot at index: with this rank's data, or with zeros.
    ORDER_CLOSE, // Join the close wave with close.
    ORDER_COMMIT, // Join the commit wave; the engine fills its payload.
    ORDER_SETTLED, // The step is final everywhere: release step_end.
    ORDER_FAILED, // The session has failed: kind and text.
};

struct order_action {
    enum order_action_kind kind;
    const struct up_message *up; // ORDER_SEND; borrowed for the call, like all pointers here.
    const struct step_header *header; // ORDER_HEADER
    const struct order_slot *slot; // ORDER_LAUNCH
    uint32_t index; // ORDER_LAUNCH: position in the order of this step.
    uint64_t space; // ORDER_LAUNCH: first half of the slot's tag.
    uint64_t step;
    const struct open_wave *opening; // ORDER_OPEN
    const struct close_wave *close;
    enum halt_kind halt; // ORDER_FAILED
    const char *text; // ORDER_FAILED
};

struct order_sink {
    // Called in the middle of an event; must not call back into the order.
    void (*action)(void *context, const struct order_action *action);
    void *context;
};

struct order {
    // Set by order_init, then constant.
    struct generation_id generation;
    uint32_t rank;
    uint32_t world_size;
    struct order_sink sink;

    // Plans in force, one per phase, and the one whose parts are arriving.
    struct order_plan plans[LOCKSTEP_MAX_PLANS];
    uint32_t plan_room; // Of them in use; LOCKSTEP_MAX_PLANS but in tests.
    uint32_t plan_count;
    struct order_plan incoming;
    uint64_t plan_number; // Highest number held.

    uint64_t opening; // Step whose open wave was joined, while it is not begun; else 0.
    uint32_t starts; // Calls of lockstep_start.

    // The open step, or the last one when none is open.
    uint64_t step;
    uint64_t phase;
    uint64_t space;
    bool open;
    bool learning;
    bool ended; // The trainer is in step_end.
    bool header_equal; // The predecessor's header has arrived and equals ours.
    bool fail_said;
    bool close_joined;
    bool closed;
    bool commit_joined;
    uint64_t settled;
    struct order_slot slots[LOCKSTEP_MAX_SLOTS]; // The order of this step.
    uint32_t slot_count;
    uint32_t low; // L: lowest slot that is not final.
    struct slot_id reported[LOCKSTEP_MAX_SLOTS]; // Learning: ready here.
    uint32_t reported_count;
    struct close_wave close; // What this rank contributes.
    struct close_wave verdict; // What all ranks agreed on, once closed.

    // Headers of the predecessor that came early.
    struct step_header early[2];
    uint32_t early_count;
    struct step_header early_opening; // Its last one in front of an open wave.

    // The halt that waits for its step, and whether one has taken effect.
    bool halt_held;
    struct down_halt halt;
    bool failed;
};

// A new generation: all state is forgotten. sink is copied.
void order_init(struct order *order, struct generation_id generation, uint32_t rank,
                uint32_t world_size, struct order_sink sink);
// Before lockstep_start: the next step will be settled + 1, for the job goes on where an earlier
// one was saved.
void order_resume(struct order *order, uint64_t settled);
// No step is open, and every rank does it before the same step: all phases are learned again.
void order_forget_plans(struct order *order);

// The plan of a phase, or NULL: its next step is a learning step.
const struct order_plan *order_plan_of(const struct order *order, uint64_t phase);

// ---- Facts from the trainer --------------------------------------------------------------------

// step_begin was called, and what this rank says in the open wave. Its result is the trainer's: the
// step is begun after it, or never.
void order_step_opening(struct order *order, uint64_t step, const struct open_wave *opening);
// lockstep_start was called, for the first time or again; no step is open.
void order_start_begun(struct order *order);
void order_step_begun(struct order *order, uint64_t step, uint64_t phase);
// All gradients of this slot are in memory. Unplanned slots count as a call outside the plan.
void order_slot_ready(struct order *order, struct slot_id id, enum dtype dtype, uint64_t elements);
// In a learning step layout proposals are sent before this.
void order_step_ended(struct order *order);

// The step that a loss is reported in: the one that is being opened, is open, or was the last.
uint64_t order_present_step(const struct order *order);

// ---- Facts from the data plane -----------------------------------------------------------------

void order_slot_final(struct order *order, uint32_t index);
void order_header_received(struct order *order, const struct step_header *header);
void order_close_completed(struct order *order, const struct close_wave *result);
void order_commit_completed(struct order *order);

// ---- Facts from the coordinator ----------------------------------------------------------------

void order_granted(struct order *order, const struct down_grant *grant);
void order_plan_received(struct order *order, const struct down_plan_part *part);
void order_halted(struct order *order, const struct down_halt *halt);

#endif
