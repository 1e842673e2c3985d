// SPDX-License-Identifier: Apache-2.0
//
// The worker's side of the order protocol: which slot of a step may be launched when, the small
// exchanges of a step (open wave, header, close wave, commit wave), learning, plans and halts.
// Pure: facts go in as function calls, actions come out through a sink. There is no clock, socket,
// thread or allocation. The driver of a session runs one order core; the simulator runs thousands.
//
// It is not the data plane: it never sees a byte of a gradient, only that a slot is ready, launched
// or final.
//
// Rules, in the words of docs/internals/order.md:
//
// - R0 Open wave. If ranks may run out of data, step_begin joins the open wave before the step
//   begins, and waits for its result: how many ranks are exhausted, and the phase of the lowest
//   rank that is not. All ranks get the same result, so all of them begin the step, or none does. A
//   halt or a loss can name a step that is being opened, although nothing of the step is under way.
//   A header goes ahead of the wave, because a rank in lockstep_start never joins the wave, and has
//   to learn that others wait there.
// - R1 Header. step_begin sends a header to the ring successor. A rank joins the close wave only
//   when the predecessor's header of the same step has arrived and names the same phase. Another
//   phase, or another plan of the same phase, is reported once (UP_FAIL), and the rank waits for
//   the verdict. Planned slots may run before the header arrives: their frames carry the plan's
//   hash, so slots of different phases never pair. A learning step has no close wave and does not
//   wait for the header. The header may come when the step is settled, and is then dropped, because
//   the coordinator has compared the phases. The data plane of a strict rank pairs collectives by
//   their order, so a strict rank launches nothing of a step before the header has arrived.
// - R3 Launch. Let L be the lowest slot that is neither final nor summed on this rank. In a planned
//   step slot i is launched when it is ready or zero and i < L + W. Every rank has done its part of
//   a summed slot, and the result waits only for this rank's trainer; so a slow trainer delays no
//   other rank. The slot at L can always be launched. A strict rank also launches the slots in the
//   order of the plan.
// - Learning. In the first step of a phase every ready slot is reported, and launched when the
//   coordinator grants it. Grants come in one order everywhere. When all ranks have ended the step,
//   the plan arrives and closes it; there is no close wave.
// - R5 Local fulfilment. At step_end every unready planned slot becomes zero. A granted slot that
//   this rank has not made is zero, too.
// - R6 Close wave. After step_end a rank joins the close wave with its calls outside the plan and
//   the highest plan number that it holds. The result is the same everywhere. Extend: the buckets
//   of those calls are appended to the order, by call number and module, and run like all others; a
//   rank that has not made such a call contributes zeros. If there are too many calls, or the
//   policy is fail, the verdict on all ranks is UNPLANNED, at this step. It takes effect after the
//   commit wave, when no rank needs anything from another rank any more. Defer: a call outside the
//   plan is in no wave; it counts later (R10).
// - R7 Commit wave. A rank joins it when the step is closed and all its slots are final here. When
//   the wave is complete, the step is settled: every slot is final on every rank.
// - R9 Waits. The trainer waits for call X, which has ended on this rank.
//   1. If some of X was given up, or X is outside the plan and counts later, the wait ends as
//      deferred, at once.
//   2. If X is outside the plan otherwise, X cannot complete before this rank's step_end. The rank
//      reports that (UP_FAIL) and waits for the verdict.
//   3. With zero_defer, every slot of the plan that is before the last slot of X and is unready
//   here
//      is given up (forfeited): it becomes zero. This happens even if X is final, so that what is
//      given up follows from the program of this rank and never from time.
//   4. If X is final, the wait is over. Otherwise the rank reports (UP_BLOCKED) what X needs and
//      what is lacking here, if a slot before X in the plan is unready here, or if some rank is
//      known to be blocked in this step. It reports again only if that changed. Ranks that wait in
//      the order of the plan report nothing.
//   In a learning step the rank reports (UP_WAIT) the lowest bucket of X that is not granted, and
//   then the next one. With several threads a rank gives up or reports only when all of them wait.
//   A call that is open counts as not made, unless wait_while_open says that other threads end it.
// - R9, time. When a wait is withdrawn after the rank has reported that it is blocked, the rank
//   reports that as well, and the wait ends when the coordinator has answered. So a report that the
//   coordinator holds is never about a wait that ended for another reason than that X is final, and
//   ranks that wait for each other are found however late a report arrives.
// - R10 Deferral. What this rank makes of a forfeited slot, or of a call outside the plan with the
//   policy defer, counts later (ORDER_DEFER). In a learning step a slot is forfeited when the
//   coordinator grants it by force.
// - R12 A halt for step s takes effect when step s - 1 is settled here; a halt for step 0 at once.
// - R12, losses. A rank that sees a peer end names the first step that cannot be completed. That is
//   the open step; or the next one, if the rank has joined the commit wave and the wave needs
//   nothing from that peer. A rank that names the open step before it has joined the commit wave
//   never joins it. So no rank completes a step that another rank calls lost, unless a peer ends
//   without a goodbye in the middle of the commit wave.
// - R13 Plans that come while the job runs. A plan is held until the minimum of a close wave says
//   that all ranks hold it, or until a later plan closes a learning step. Then it replaces the plan
//   that it was made from, before the same step everywhere; if that plan is no longer in force, it
//   replaces none. One plan can be held. A rank that gives up the same calls in successive steps of
//   a phase says what the plan should be (UP_REPLAN), and so does rank 0 when the same calls are
//   appended to successive steps. The steps are correct without it.
// - Start again. When lockstep_start begins again, every rank forgets all plans, at the same step;
//   plan numbers continue. A header says how often its rank has started. A header of a rank that
//   has started less often than this one means that the other rank is in a step instead: that is
//   reported (UP_FAIL), and the rank waits for the verdict. Between a rank that has begun a step
//   and a rank in lockstep_start there is always such a header, somewhere in the ring.
// - Forgetting. A bounded number of plans is held. A new plan replaces the plan whose phase was
// begun
//   longest ago; that phase is learned again when it comes back. Which plan that is follows from
//   the steps alone, so all ranks forget the same one.
//
// A phase here is a hash of everything that decides what a step is like: the trainer's label for it
// and the set of parameters that are trained in it.
//
// One step is open at a time, because step_end blocks until the step is settled. A peer may be one
// step ahead, so the header of the next step is kept.

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

#define OPEN_NOBODY UINT32_MAX // Stands for a rank: no rank has data.

// Payload of the open wave.
struct open_wave {
    uint32_t exhausted; // Ranks without data.
    uint32_t first; // Lowest rank with data, or OPEN_NOBODY.
    char
        phase[LOCKSTEP_NAME_BYTES]; // Phase of that rank, padded with zeros; empty for OPEN_NOBODY.
};

// Payload of the close wave. Lists are sorted and without duplicates.
struct close_wave {
    uint64_t plan_number; // Minimum: the highest plan that every rank holds.
    uint32_t extra_total; // Distinct calls outside the plan; one above the bound means "more".
    uint32_t too_many; // 1 if some rank has more slots outside the plan than it can keep, else 0.
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
    uint32_t call; // Number of the call if the calls of the module are separate; else 0.
};

#define ORDER_ABORTED_NAMED 8 // Calls that were given up, which a commit wave can name.

struct aborted_call {
    uint32_t module;
    uint32_t rank;
    uint32_t accepted; // 1 if the module's policy accepts it, so that it is no error; else 0.
};

struct counter_delta {
    uint64_t name; // Hash of the counter's name; 0 is free.
    int64_t delta;
};

// Payload of the commit wave. Lists are sorted; the smallest entries are kept when they overflow.
struct commit_wave {
    uint64_t unused_total; // (parameter, rank) pairs without a gradient.
    uint64_t unused_errors; // Pairs in unused_total that are errors.
    uint64_t unused_warnings; // Pairs in unused_total that are warnings.
    uint32_t unused_named; // Entries of unused[].
    uint32_t counter_count; // Entries of counters[].
    uint32_t counter_overflow; // 1 if more than LOCKSTEP_MAX_COUNTERS names were used, else 0.
    uint32_t aborted_total; // (module, rank) pairs whose call was given up.
    uint64_t called; // A bit for each module: 1 if some rank called it.
    uint64_t weighted; // A bit for each module: 1 if some rank called it with a weight above 0.
    uint32_t aborted_named; // Entries of aborted[].
    uint32_t aborted_errors; // Pairs in aborted_total that are not accepted.
    struct aborted_call aborted[ORDER_ABORTED_NAMED];
    struct unused_parameter unused[ORDER_UNUSED_NAMED];
    struct counter_delta counters[LOCKSTEP_MAX_COUNTERS];
};

static_assert(LOCKSTEP_MAX_MODULES <= 64, "one bit for each module");
static_assert(sizeof(struct open_wave) <= LOCKSTEP_WAVE_BYTES, "an open wave fits");
static_assert(sizeof(struct close_wave) <= LOCKSTEP_WAVE_BYTES, "a close wave fits");
static_assert(sizeof(struct commit_wave) <= LOCKSTEP_WAVE_BYTES, "a commit wave fits");

// What a wave may name; equal on all ranks.
struct wave_bounds {
    uint32_t module_count;
    uint32_t parameters[LOCKSTEP_MAX_MODULES]; // Parameters of each module.
    uint32_t calls[LOCKSTEP_MAX_MODULES]; // Calls of each module in a step that travel apart.
};

enum slot_state {
    SLOT_UNREADY = 0,
    SLOT_READY,
    SLOT_ZERO, // Fulfilled with zeros: weight 0.
    SLOT_LAUNCHED, // Given to the data plane.
    SLOT_SUMMED, // All ranks have done their part; the result waits for this rank's trainer.
    SLOT_FINAL, // Its result is in user memory here.
};

struct order_slot {
    struct slot_id id;
    enum slot_state state;
    bool zero; // True if the slot was launched with zeros.
    bool forfeited; // True if it was given up before its call was made: the call counts later.
    uint32_t behind; // Last position of the call waited for, if forfeited in a planned step.
    bool extension; // True if the close wave appended the slot to the plan.
    uint32_t algorithm; // As in struct plan_slot.
};

// Calls that a step's plan does not have.
enum order_unplanned {
    UNPLANNED_EXTEND = 0, // All ranks run these calls at the end of the step.
    UNPLANNED_FAIL, // The verdict on every rank is UNPLANNED.
    UNPLANNED_DEFER, // These calls count in the module's next contribution.
};

// The defaults are zeros.
struct order_options {
    // Equal on all ranks.
    uint32_t window; // W of the rules; 0: LOCKSTEP_WINDOW. Only tests set another one.
    bool zero_defer; // True if a wait gives up slots that are planned before it and unready.
    enum order_unplanned unplanned;
    // This rank's own.
    bool strict; // True if this rank's data plane pairs collectives by their order.
    bool wait_while_open; // True if a call that is open does not count as not made.
    uint32_t threads; // Threads that have to wait before the rank counts as blocked; 0: one.
};

struct order_plan {
    uint64_t phase;
    uint64_t number; // 0: there is no plan here.
    uint64_t replaces; // Number of the plan that this one replaces; 0: it closes a learning step.
    uint64_t hash;
    uint64_t used; // Last step of its phase.
    uint64_t deviation; // A hash of how the last step differed from the plan; 0: it did not.
    uint32_t alike; // Successive steps with that deviation.
    bool strict; // True if some rank's data plane pairs collectives by their order.
    uint32_t count; // Slots of the plan.
    struct slot_id slots[LOCKSTEP_MAX_SLOTS];
    uint8_t algorithms[LOCKSTEP_MAX_SLOTS]; // The algorithm of each slot, as in struct plan_slot.
};

// A thread of the trainer that waits for a call.
struct order_wait {
    struct call_id call;
    uint32_t at; // All slots of the call at positions below this one are final.
    uint32_t finals; // How many slots these are.
    bool deferred; // True if some of the call's slots count later.
    bool withdrawn; // True if the timeout has passed; the coordinator may not know yet.
};

enum order_action_kind {
    ORDER_SEND, // Send up to the coordinator.
    ORDER_OPEN, // Join the open wave with opening.
    ORDER_HEADER, // Send header to the ring successor.
    ORDER_LAUNCH, // Launch the slot at index: with this rank's data, or with zeros.
    ORDER_DEFER, // This rank's part of the slot counts later: zeros or nothing travel instead.
    ORDER_RELEASE, // The wait for call is over, as release says.
    ORDER_CLOSE, // Join the close wave with close.
    ORDER_COMMIT, // Join the commit wave; the engine fills its payload.
    ORDER_SETTLED, // The step is final everywhere: release step_end.
    ORDER_IMPOSSIBLE, // A peer sent something impossible: treat it as lost. text says why.
    ORDER_FAILED, // The session has failed: halt and text. Later events have no answer.
};

// How a wait for a call ends.
enum order_release {
    RELEASE_FINAL, // Its results are in user memory.
    RELEASE_DEFERRED, // Some slots of the call count later.
    RELEASE_WITHDRAWN, // Neither: the wait was withdrawn.
};

struct order_action {
    enum order_action_kind kind;
    const struct up_message *up; // ORDER_SEND; borrowed for the call, like all pointers here.
    const struct step_header *header; // ORDER_HEADER
    const struct order_slot *slot; // ORDER_LAUNCH. Of a forfeited slot the user gets no result yet.
    const struct slot_id *deferred; // ORDER_DEFER
    uint32_t index; // ORDER_LAUNCH: position in the order of this step.
    uint64_t space; // ORDER_LAUNCH: first half of the slot's tag.
    uint64_t step;
    const struct open_wave *opening; // ORDER_OPEN
    const struct close_wave *close;
    struct call_id call; // ORDER_RELEASE, and ORDER_SEND of UP_FAIL: the call that is waited for.
    enum order_release release; // ORDER_RELEASE
    enum halt_kind halt; // ORDER_FAILED
    uint32_t rank; // ORDER_IMPOSSIBLE
    // ORDER_IMPOSSIBLE, ORDER_FAILED. NULL in ORDER_FAILED: order->verdict names the calls outside
    // the plan that are the reason.
    const char *text;
};

struct order_sink {
    // Called in the middle of an event. It must not call back into the order.
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

// A new generation: forgets all state. options and sink are copied.
void order_init(struct order *order, struct generation_id generation, uint32_t rank,
                uint32_t world_size, const struct order_options *options, struct order_sink sink);
// Before lockstep_start: the next step is settled + 1, because the job continues an earlier one
// that was saved.
void order_resume(struct order *order, uint64_t settled);

// ---- Facts from the trainer --------------------------------------------------------------------

// The trainer called step_begin. opening is what this rank contributes to the open wave. The result
// of the wave goes to the trainer: the step begins after it, or never.
void order_step_opening(struct order *order, uint64_t step, const struct open_wave *opening);
// The step begins. buckets: how many buckets each module has in the layout in force, one number for
// each of LOCKSTEP_MAX_MODULES; copied.
void order_step_begun(struct order *order, uint64_t step, uint64_t phase, const uint32_t *buckets);
// All gradients of this slot are in memory.
void order_slot_ready(struct order *order, struct slot_id id, enum dtype dtype, uint64_t elements);
// The trainer called step_end. In a learning step, layout proposals are sent before this.
void order_step_ended(struct order *order);

// The first step that no rank can complete if this rank does nothing more than the commit wave that
// it has joined.
uint64_t order_first_impossible(const struct order *order);
// The step that is being opened or is open; else the last one.
uint64_t order_present_step(const struct order *order);
// The first step that cannot be completed because a peer is gone. 0: no step has begun. needed:
// true if the commit wave of the open step still needs that peer, or this rank has not really
// joined it.
uint64_t order_lost_step(const struct order *order, bool needed);
// This rank has said that the step cannot be completed: it no longer joins the commit wave.
void order_give_up(struct order *order, uint64_t step);

// ---- Facts from the data plane -----------------------------------------------------------------

// All ranks have done their part of the slot, and the result waits for this rank's trainer.
// order_slot_final follows.
void order_slot_summed(struct order *order, uint32_t index);
void order_slot_final(struct order *order, uint32_t index);
void order_close_completed(struct order *order, const struct close_wave *result);
void order_commit_completed(struct order *order);

// ---- Facts from the coordinator ----------------------------------------------------------------

void order_granted(struct order *order, const struct down_grant *grant);
void order_halted(struct order *order, const struct down_halt *halt);

// ---- For the other files of this wing ----------------------------------------------------------

void order_emit(struct order *order, const struct order_action *action);
void order_send(struct order *order, struct up_message *message);
void order_fail(struct order *order, enum halt_kind halt, const char *text);
// Does everything that can happen now. Every event ends with it.
void order_advance(struct order *order);
// One more than the position of the last planned slot of a call; 0 if the call is not in the plan.
uint32_t order_call_end(const struct order *order, const struct call_id *call);

#endif
