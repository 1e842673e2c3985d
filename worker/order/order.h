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
// Rules, in the words of docs/internals/order.md:
//
// - R0 Open wave. Where ranks may run out of data, step_begin joins it before the step is begun,
//   and waits for it: how many ranks are exhausted, and the phase of the lowest one that is not.
//   All ranks get the same result, so all begin the step, or none does. A step that is being opened
//   is one that a halt or a loss can name, although nothing of it is under way. A header goes ahead
//   of the wave: a rank in lockstep_start never joins it, and has to learn that others wait there.
// - R1 Header. step_begin sends a header to the ring successor. The close wave is joined only when
//   the predecessor's header of the same step has arrived and names the same phase; a different
//   phase, or another plan of it, is reported once (UP_FAIL), and the verdict is waited for.
//   Planned slots may run before: their frames carry the plan's hash, so slots of different phases
//   never pair. A learning step has no close wave and does not wait for the header: it may come
//   when the step is settled, and is dropped, for the coordinator has compared the phases. A strict
//   rank, whose data plane pairs collectives by their order, launches nothing of a step before it.
// - R3 Launch. In a planned step slot i is launched when it is ready or zero and i < L + W, where L
//   is the lowest slot that is neither final here nor summed: of a summed one every rank has done
//   its part, and its result waits for what this rank's trainer has still to say. So what a trainer
//   does late is in no other rank's way. The slot at L can always be launched. A strict rank
//   launches them in the order of the plan besides.
// - Learning. In the first step of a phase every ready slot is reported and launched when the
//   coordinator grants it; grants come in one order everywhere. The plan that arrives when all
//   have ended closes the step; there is no close wave.
// - R5 Local fulfilment. At step_end every unready planned slot becomes zero. A slot granted that
//   this rank has not made is zero too.
// - R6 Close wave. Joined after step_end with the calls outside the plan and the highest plan
//   number held. The result is the same everywhere. Extend: the buckets of those calls are appended
//   to the order, by call number and module, and run like all others; who has not made one
//   contributes zero. When they are too many, or the policy is fail, they are the verdict UNPLANNED
//   on all ranks, at this step: it takes effect after the commit wave, when no rank needs anything
//   from another any more. Defer: a call outside the plan is in no wave; it counts later (R10).
// - R7 Commit wave. Joined when the step is closed and all its slots are final here. When it is
//   complete the step is settled: every slot is final on every rank.
// - R9 Waits. The trainer waits for call X, which has ended here.
//   1. Some of X was given up, or X is outside the plan and counts later: deferred, at once.
//   2. X is outside the plan otherwise: it cannot complete before this rank's step_end. That is
//      said (UP_FAIL), and the verdict is waited for.
//   3. zero_defer: every slot of the plan before the last of X that is unready here is given up
//      (forfeited): it becomes zero. Also when X is final: what is given up follows from the
//      program of this rank, never from time.
//   4. X is final: the wait is over. Else, when a slot before it in the plan is unready here, or
//      somebody is known to be blocked in this step, it is said (UP_BLOCKED): what X needs, what
//      is lacking here. Again only if that changed. Ranks that wait in the order of the plan say
//      nothing.
//   In learning UP_WAIT is said of the lowest bucket of X that is not granted, and then of the
//   next. With several threads a rank gives up or says something only when all of them wait. A call
//   that is open counts as not made, unless wait_while_open says that other threads end it.
// - R9, time. When a wait is withdrawn after the rank has said that it is blocked, that is said,
//   and the wait ends when the coordinator has answered: a report that it holds is never of a wait
//   that is over for another reason than that X is final. So ranks that are found to wait for each
//   other do so, however late a report arrives.
// - R10 Deferral. What this rank makes of a forfeited slot, and of a call outside the plan with the
//   policy defer, counts later (ORDER_DEFER). In learning a slot is forfeited when the coordinator
//   grants it by force.
// - R12 A halt for step s takes effect when s - 1 is settled here; one for step 0 at once.
// - R12, losses. A rank that sees a peer end names the first step that cannot be completed: the
//   open one, or, when it has joined the commit wave and that wave needs nothing from the peer, the
//   next one. A rank that names the open step before it has joined the commit wave never joins it.
//   So no rank completes a step that another one calls lost, unless a peer ends without a goodbye
//   in the middle of the commit wave.
// - R13 Plans that come while the job runs. A plan is held until the minimum of a close wave says
//   that all ranks hold it, or a later plan closes a learning step; then it takes the place of the
//   one that it was made from, before the same step everywhere, or of none when that one is not in
//   force any more. One can be held. A rank that gives up the same calls in steps of a phase that
//   follow each other says what the plan should be (UP_REPLAN), and so does rank 0 when the same
//   calls are appended to them. The steps are right without it.
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

#ifndef WORKER_ORDER_ORDER_H
#define WORKER_ORDER_ORDER_H

#include <stddef.h>
#include <stdint.h>

#include "protos/frame.h"
#include "protos/types.h"

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
    uint32_t too_many; // 1: some rank has more slots outside the plan than it can keep.
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

// What all ranks have declared alike: what a wave may name.
struct wave_bounds {
    uint32_t module_count;
    uint32_t parameters[LOCKSTEP_MAX_MODULES]; // Of each module.
    uint32_t calls[LOCKSTEP_MAX_MODULES]; // Of each module, in a step: those that travel apart.
};

enum slot_state {
    SLOT_UNREADY = 0,
    SLOT_READY,
    SLOT_ZERO, // Fulfilled with zeros: weight 0.
    SLOT_LAUNCHED, // Given to the data plane.
    SLOT_SUMMED, // No rank has anything more to do for it but this one's trainer.
    SLOT_FINAL, // Its result is in user memory here.
};

struct order_slot {
    struct slot_id id;
    enum slot_state state;
    bool zero; // Was launched with zeros.
    bool forfeited; // Given up before its call was made: what the call brings counts later.
    uint32_t behind; // Forfeited in a planned step: the last position of what was waited for.
    bool extension; // Not in the plan: from the close wave.
    uint32_t algorithm; // As in struct plan_slot.
};

// Calls that a step's plan does not have.
enum order_unplanned {
    UNPLANNED_EXTEND = 0, // All ranks run them at the end of the step.
    UNPLANNED_FAIL, // The verdict UNPLANNED on every rank.
    UNPLANNED_DEFER, // They count in the module's next contribution.
};

// All zero: the defaults.
struct order_options {
    // Equal on all ranks.
    uint32_t window; // W; 0: LOCKSTEP_WINDOW, as everywhere but in tests.
    bool zero_defer; // A wait gives up what is planned before it and was not made yet.
    enum order_unplanned unplanned;
    // Of this rank.
    bool strict; // Its data plane pairs collectives by their order. A plan says whether any does.
    bool wait_while_open; // Calls that are open do not count as not made.
    uint32_t threads; // So many have to wait before the rank counts as blocked; 0: 1.
};

struct order_plan {
    uint64_t phase;
    uint64_t number; // 0: none.
    uint64_t replaces; // Number of the plan whose place it takes; 0: that of a learning step.
    uint64_t hash;
    uint64_t used; // Last step of its phase.
    uint64_t deviation; // How the last step with it differed from it, as a number; 0: it did not.
    uint32_t alike; // So many steps running did alike.
    bool strict; // Some rank's data plane pairs collectives by their order.
    uint32_t count;
    struct slot_id slots[LOCKSTEP_MAX_SLOTS];
    uint8_t algorithms[LOCKSTEP_MAX_SLOTS]; // Of each: as in struct plan_slot.
};

// A thread of the trainer that waits for a call.
struct order_wait {
    struct call_id call;
    uint32_t at; // Its slots at lower positions are final, ...
    uint32_t finals; // ... which are so many.
    bool deferred; // Some of its slots count later.
    bool withdrawn; // Its time is over; the coordinator has not said yet that it knows.
};

enum order_action_kind {
    ORDER_SEND, // Send up to the coordinator.
    ORDER_OPEN, // Join the open wave with opening.
    ORDER_HEADER, // Send header to the ring successor.
    ORDER_LAUNCH, // Launch the slot at index: with this rank's data, or with zeros.
    ORDER_DEFER, // This rank's part of the slot counts later: zeros travel for it, or nothing.
    ORDER_RELEASE, // The wait for call is over, as release says.
    ORDER_CLOSE, // Join the close wave with close.
    ORDER_COMMIT, // Join the commit wave; the engine fills its payload.
    ORDER_SETTLED, // The step is final everywhere: release step_end.
    ORDER_IMPOSSIBLE, // A peer has sent what cannot be: it is to be lost, and text says why.
    ORDER_FAILED, // The session has failed: kind and text. Nothing is answered any more.
};

// How a wait for a call ends.
enum order_release {
    RELEASE_FINAL, // Its results are in user memory.
    RELEASE_DEFERRED, // Some of it counts later.
    RELEASE_WITHDRAWN, // Neither: it was withdrawn.
};

struct order_action {
    enum order_action_kind kind;
    const struct up_message *up; // ORDER_SEND; borrowed for the call, like all pointers here.
    const struct step_header *header; // ORDER_HEADER
    const struct order_slot *slot; // ORDER_LAUNCH: forfeited: its result is not the user's yet.
    const struct slot_id *deferred; // ORDER_DEFER
    uint32_t index; // ORDER_LAUNCH: position in the order of this step.
    uint64_t space; // ORDER_LAUNCH: first half of the slot's tag.
    uint64_t step;
    const struct open_wave *opening; // ORDER_OPEN
    const struct close_wave *close;
    struct call_id call; // ORDER_RELEASE; ORDER_SEND of a UP_FAIL for a wait: what is waited for.
    enum order_release release; // ORDER_RELEASE
    enum halt_kind halt; // ORDER_FAILED
    uint32_t rank; // ORDER_IMPOSSIBLE
    // ORDER_IMPOSSIBLE, ORDER_FAILED. Of the latter NULL: order->verdict names calls outside the
    // plan.
    const char *text;
};

struct order_sink {
    // Called in the middle of an event; must not call back into the order.
    void (*action)(void *context, const struct order_action *action);
    void *context;
};

// The plans that this rank holds. Owner: plan.c; replan.c counts in a plan how often steps differ
// from it.
struct order_plans {
    uint32_t room; // Most plans in force: LOCKSTEP_MAX_PLANS but in tests.
    uint32_t count; // Plans in force.
    uint64_t number; // Highest plan number held.
    uint64_t in_force; // No plan with a higher number is in force.
    struct order_plan held[LOCKSTEP_MAX_PLANS]; // In force, one for each phase.
    struct order_plan newer; // A plan with a higher number, not yet in force; number 0: none.
    struct order_plan incoming; // A plan whose parts are arriving.
};

// What the trainer's threads wait for, and what the coordinator knows of it. Owner: waits.c.
// order.c sets `changed` when a slot becomes ready.
struct order_waits {
    struct order_wait held[LOCKSTEP_MAX_WAITS]; // In the order in which the waits began.
    uint32_t count; // Waits held.
    struct call_id open_calls[LOCKSTEP_MAX_MODULES]; // Calls that have begun and not ended.
    uint32_t open_call_count;
    uint64_t watched; // Step whose waits the coordinator asks about.
    bool changed; // True if something has changed since the last report was considered.
    struct up_blocked said; // Last report of this step; no waits: none, or it was taken back.
    struct up_wait said_wait; // Last report of a learning step; step 0: none, or taken back.
    uint32_t unanswered; // Reports taken back that the coordinator has not answered yet.
};

// Headers of the ring predecessor. Owner: header.c.
struct order_headers {
    uint32_t starts; // Calls of lockstep_start on this rank.
    struct step_header early[2]; // Headers of steps that this rank has not begun.
    uint32_t early_count;
    struct step_header early_opening; // The last header that came in front of an open wave.
};

// One generation of one rank. Owner: order.c, but for the three parts above.
struct order {
    // Set by order_init, then constant.
    struct generation_id generation;
    uint32_t rank;
    uint32_t world_size;
    struct order_options options; // Window and threads are not 0 here: the defaults are filled in.
    struct order_sink sink;

    bool alone; // True if the coordinator is lost.
    uint64_t opening; // Step whose open wave is joined and that has not begun; else 0.

    // The open step, or the last one when none is open.
    uint64_t step;
    uint64_t phase;
    uint64_t space; // First half of the tags of its slots.
    bool open; // True between order_step_begun and the end of the commit wave.
    bool learning; // True if the phase has no plan yet.
    bool strict; // True if the data plane of some rank pairs collectives by their order.
    bool ended; // True if the trainer is in step_end.
    bool header_equal; // True if the predecessor's header has arrived and equals this rank's.
    bool fail_said; // True if this rank has sent UP_FAIL.
    bool close_joined;
    bool closed; // True if the close wave, or the plan of a learning step, has arrived.
    bool commit_joined;
    bool unplanned; // True if the close wave's verdict is UNPLANNED.
    uint64_t given_up; // Step that this rank has said cannot be completed; 0: none.
    uint64_t settled; // Last step that is final on every rank.
    uint32_t planned; // Slots of the plan, the first ones of slots[]; 0 in a learning step.
    uint32_t slot_count;
    uint32_t low; // Lowest slot that is not final.
    uint32_t front; // L of the rules: lowest slot that is neither final nor summed.
    uint32_t unplaced_count;
    uint32_t buckets[LOCKSTEP_MAX_MODULES]; // Buckets of each module.
    struct close_wave close; // What this rank contributes.
    struct close_wave verdict; // The result on all ranks, once the step is closed.

    bool halt_held; // True if a halt waits for its step.
    bool failed; // True if a failure was reported; all later events are ignored.
    struct down_halt halt;

    struct order_headers headers;
    struct order_waits waits;
    struct order_slot slots[LOCKSTEP_MAX_SLOTS]; // The order of this step.
    struct slot_id
        unplaced[LOCKSTEP_MAX_SLOTS]; // Slots that are ready here and have no place in it.
    struct order_plans plans;
};

// A new generation: all state is forgotten. options and sink are copied.
void order_init(struct order *order, struct generation_id generation, uint32_t rank,
                uint32_t world_size, const struct order_options *options, struct order_sink sink);
// Before lockstep_start: the next step will be settled + 1, for the job goes on where an earlier
// one was saved.
void order_resume(struct order *order, uint64_t settled);

// ---- Facts from the trainer --------------------------------------------------------------------

// step_begin was called, and what this rank says in the open wave. Its result is the trainer's: the
// step is begun after it, or never.
void order_step_opening(struct order *order, uint64_t step, const struct open_wave *opening);
// buckets: of each module in the layout in force, LOCKSTEP_MAX_MODULES numbers, copied.
void order_step_begun(struct order *order, uint64_t step, uint64_t phase, const uint32_t *buckets);
// All gradients of this slot are in memory.
void order_slot_ready(struct order *order, struct slot_id id, enum dtype dtype, uint64_t elements);
// In a learning step layout proposals are sent before this.
void order_step_ended(struct order *order);

// The first step that no rank can complete when this one does nothing more, but for the commit wave
// that it has joined.
uint64_t order_first_impossible(const struct order *order);
// The step that is being opened, is open, or was the last.
uint64_t order_present_step(const struct order *order);
// The first step that cannot be completed because a peer is gone. needed: the commit wave of the
// open step still needs that peer, or is not joined in fact. 0: no step has begun.
uint64_t order_lost_step(const struct order *order, bool needed);
// This rank says that the step cannot be completed: it does not join its commit wave any more.
void order_give_up(struct order *order, uint64_t step);

// ---- Facts from the data plane -----------------------------------------------------------------

// All ranks have done their part, and the result waits for this rank's trainer. Final follows.
void order_slot_summed(struct order *order, uint32_t index);
void order_slot_final(struct order *order, uint32_t index);
void order_close_completed(struct order *order, const struct close_wave *result);
void order_commit_completed(struct order *order);

// ---- Facts from the coordinator ----------------------------------------------------------------

void order_granted(struct order *order, const struct down_grant *grant);
void order_halted(struct order *order, const struct down_halt *halt);

void order_emit(struct order *order, const struct order_action *action);
void order_send(struct order *order, struct up_message *message);
void order_fail(struct order *order, enum halt_kind halt, const char *text);
// Everything that can happen now. Called at the end of every event.
void order_advance(struct order *order);
// One more than the position of the last planned slot of a call; 0: it is not in the plan.
uint32_t order_call_end(const struct order *order, const struct call_id *call);

#endif
