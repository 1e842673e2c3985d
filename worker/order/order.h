// SPDX-License-Identifier: Apache-2.0
//
// The worker's side of the order protocol: it decides which slot of a step is launched when, and
// drives the small exchanges of a step (open wave, header, close wave, commit wave), learning,
// plans and halts. Pure: facts come in as function calls, and actions go out through a sink. There
// is no clock, socket, thread or allocation. The driver of a session runs one order core; the
// simulator runs thousands.
//
// The order core is not the data plane. It never sees a byte of a gradient; it only learns that a
// slot is ready, summed or final.
//
// Rules, in the words of docs/internals/order.md:
//
// - R0 Open wave. If ranks may run out of data, step_begin joins the open wave before the step
//   begins, and waits for the result: the number of exhausted ranks, and the phase of the lowest
//   rank that still has data. All ranks get the same result, so the step begins on all ranks or on
//   none. A halt or a loss can name a step that is only being opened, before any slot of the step
//   is launched. A rank also sends a header with its open wave. The header tells a rank in
//   lockstep_start, which never joins the wave, that other ranks wait in the wave.
// - R1 Header. step_begin sends a header to the ring successor. A rank joins the close wave only
//   when the predecessor's header of the same step has arrived and names the same phase. If the
//   header names another phase, or another plan of the same phase, the rank reports that once
//   (UP_FAIL) and waits for the verdict. Planned slots may run before the header arrives: their
//   frames carry the plan's hash, so slots of different phases never pair. A learning step has no
//   close wave and does not wait for the header. A header that arrives after its step is settled is
//   dropped, because the coordinator has already compared the phases. The data plane of a strict
//   rank pairs collectives by their order, so a strict rank launches nothing of a step before the
//   header has arrived.
// - R3 Launch. Let L be the lowest slot that is neither final nor summed on this rank. In a planned
//   step slot i is launched when it is ready or zero and i < L + W. The slot at L can always be
//   launched. A summed slot does not hold L back: every rank has done its part of that slot, and
//   only this rank's trainer still has to take the result. So a slow trainer delays no other rank.
//   A strict rank also launches the slots in the order of the plan.
// - Learning. In the first step of a phase a rank reports every ready slot, and launches the slot
//   when the coordinator grants it. All ranks receive the grants in the same order. When all ranks
//   have ended the step, the coordinator sends the plan, which closes the step; there is no close
//   wave.
// - R5 Local fulfilment. At step_end every planned slot that is not ready becomes zero. A granted
//   slot whose gradients this rank has not produced is zero, too. After an aborted separate call,
//   the planned slots of later calls of its module become zero at once.
// - R6 Close wave. After step_end a rank joins the close wave with its calls outside the plan and
//   the highest plan number that it holds. All ranks get the same result. What the result means
//   depends on the policy. Extend: the buckets of the calls outside the plan are appended to the
//   order, by call number and module, and run like all other slots; a rank that has not made such a
//   call contributes zeros. Fail, or more such calls than a step can run: the verdict on all ranks
//   is UNPLANNED, at this step. The verdict takes effect after the commit wave, when no rank needs
//   anything from another rank any more. Defer: a call outside the plan is in no wave; its
//   gradients count in a later step (R10).
// - R7 Commit wave. A rank joins the commit wave when the step is closed and all slots of the step
//   are final on this rank. When the wave is complete, the step is settled: every slot is final on
//   every rank.
// - R9 Waits. The trainer waits for call X, which has ended on this rank.
//   1. If a slot of X was given up, or X is outside the plan and the policy is defer, the wait ends
//      as deferred, at once.
//   2. If X is outside the plan and the policy is another one, X cannot complete before this rank's
//      step_end. The rank reports that (UP_FAIL) and waits for the verdict.
//   3. With zero_defer, the rank gives up (forfeits) every planned slot that is before the last
//      slot of X and is not ready on this rank: the slot becomes zero. The rank does this even if X
//      is final, so that the set of forfeited slots depends only on the program of this rank, and
//      never on time.
//   4. If X is final, the wait is over. Otherwise the rank reports (UP_BLOCKED) which slots X needs
//      and which slots this rank lacks. It reports only if a slot before X in the plan is not ready
//      on this rank, or if some rank is known to be blocked in this step; and again only when the
//      content of the report has changed. Ranks that wait in the order of the plan report nothing.
//   In a learning step the rank reports (UP_WAIT) the lowest bucket of X that is not granted, and
//   then the next one. A trainer with several threads gives up or reports only when all of the
//   threads wait. A call that is open counts as not made, unless wait_while_open says that other
//   threads end it.
// - R9, timeouts. When a wait is withdrawn after the rank has reported that it is blocked, the rank
//   takes the report back, and the wait ends when the coordinator has answered. So as long as the
//   coordinator holds a report, the reported wait has not ended, except because X is final. The
//   coordinator therefore finds ranks that wait for each other, however late a report arrives.
// - R10 Deferral. Gradients that this rank produces for a forfeited slot, or for a call outside the
//   plan with the policy defer, count in a later step (ORDER_DEFER). In a learning step a slot is
//   forfeited when the coordinator grants it by force.
// - R12 A halt for step s takes effect when step s - 1 is settled here; a halt for step 0 at once.
// - R12, losses. A rank that sees a peer end names the first step that cannot be completed. That
//   step is the open step; or the next step, if the rank has joined the commit wave and the wave no
//   longer needs that peer. A rank that names the open step before it has joined the commit wave
//   never joins that wave. So no rank completes a step that another rank calls lost, unless a peer
//   ends without a goodbye in the middle of the commit wave.
// - R13 New plans. A new plan can arrive while the job runs. A rank holds the new plan until the
//   minimum of a close wave says that all ranks hold it. Then the new plan replaces the plan that
//   it was made from, before the same step on all ranks; if that older plan is no longer in force,
//   the new plan is dropped. A new plan is also dropped when a later one closes a learning step: a
//   rank whose stream has ended may have lost it. A rank can hold one new plan. A rank that gives
//   up the same calls in successive steps of a phase tells the coordinator what the plan should be
//   (UP_REPLAN), and so does rank 0 when the same calls are appended to successive steps. A step is
//   correct with either plan.
// - Groups. A module with a group is absent on the ranks that are no members of the group. Its
//   slots have a place in the order of all ranks; on a rank where the module is absent they are
//   final from the beginning. The coordinator does not wait for such a rank in a learning step.
// - Start again. When lockstep_start is called again, every rank forgets all plans, at the same
//   step; plan numbers continue. A header says how often its rank has started. If a header says
//   that its rank has started less often than this rank, the other rank is in a step instead of in
//   lockstep_start. This rank reports that (UP_FAIL) and waits for the verdict. If some ranks have
//   begun a step and others are in lockstep_start, at least one rank in lockstep_start has a ring
//   predecessor that has begun the step, and so receives such a header.
// - Forgetting. A rank holds a bounded number of plans. When there is no room, a new plan replaces
//   the plan whose phase was begun longest ago; that phase is learned again when it comes back. The
//   choice depends only on the steps, so all ranks forget the same plan.
// - Recovery. recover.h has the rules of a rank that goes on in a new generation, in the same step.
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

#define OPEN_NOBODY UINT32_MAX // In place of a rank number: no rank has data.

// Payload of the open wave.
struct open_wave {
    uint32_t exhausted; // Number of ranks without data.
    uint32_t first; // Lowest rank with data, or OPEN_NOBODY.
    // Phase of rank `first`, padded with zeros; empty if `first` is OPEN_NOBODY.
    char phase[LOCKSTEP_NAME_BYTES];
};

// Payload of the close wave. Lists are sorted and without duplicates.
struct close_wave {
    uint64_t plan_number; // Minimum: the highest plan that every rank holds.
    // Number of distinct calls outside the plan, over all ranks; LOCKSTEP_MAX_EXTRA_CALLS + 1 means
    // "more than the list can name".
    uint32_t extra_total;
    uint32_t too_many; // 1 if some rank has more slots outside the plan than fit into unplaced[].
    struct call_id extras[LOCKSTEP_MAX_EXTRA_CALLS];
};

#define ORDER_UNUSED_NAMED 16 // Unused parameters that a commit wave can name.

// How serious an unused parameter is. A commit wave names the most serious entries first.
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
    uint32_t call; // The call's number if the module reduces each call separately; else 0.
};

#define ORDER_ABORTED_NAMED 8 // Calls that were given up and that a commit wave can name.

struct aborted_call {
    uint32_t module;
    uint32_t rank;
    // 1 if the module's policy accepts a call that is given up; 0 if the call is an error.
    uint32_t accepted;
};

struct counter_delta {
    uint64_t name; // Hash of the counter's name; 0 in an unused entry.
    int64_t delta;
};

// What some ranks have added to a metric in a step.
struct metric_part {
    char name[LOCKSTEP_METRIC_NAME_BYTES]; // Padded with zeros.
    double value; // Minimum and maximum: of the values; sum and mean: the sum of the values.
    uint32_t kind; // enum metric_kind
    uint32_t count; // Number of values, above 0.
};

// Metrics of a step, sorted by name, then by kind. A name has two kinds if ranks use it
// differently.
struct metric_list {
    uint32_t count; // Entries of parts[].
    uint32_t overflow; // 1 if there are more than LOCKSTEP_MAX_METRICS, else 0.
    struct metric_part parts[LOCKSTEP_MAX_METRICS];
};

// Payload of the commit wave. Lists are sorted; a list that overflows keeps its smallest entries.
struct commit_wave {
    uint64_t unused_total; // (parameter, rank) pairs without a gradient.
    uint64_t unused_errors; // Pairs in unused_total that are errors.
    uint64_t unused_warnings; // Pairs in unused_total that are warnings.
    uint32_t unused_named; // Entries of unused[].
    uint32_t counter_count; // Entries of counters[].
    uint32_t counter_overflow; // 1 if more than LOCKSTEP_MAX_COUNTERS names were used, else 0.
    uint32_t aborted_total; // (module, rank) pairs whose call was given up.
    uint64_t called; // Bit m is 1 if some rank called module m.
    // Bit m is 1 if some rank called module m with a weight above 0, or called it at all in a step
    // in which another rank was lost.
    uint64_t weighted;
    uint32_t aborted_named; // Entries of aborted[].
    uint32_t aborted_errors; // Pairs in aborted_total that are not accepted.
    struct aborted_call aborted[ORDER_ABORTED_NAMED];
    struct unused_parameter unused[ORDER_UNUSED_NAMED];
    struct counter_delta counters[LOCKSTEP_MAX_COUNTERS];
    // Last, because zeros at the end of a payload do not travel: a job without metrics does not pay
    // for them.
    struct metric_list metrics;
};

static_assert(LOCKSTEP_MAX_MODULES <= 64, "one bit for each module");
static_assert(sizeof(struct open_wave) <= LOCKSTEP_WAVE_BYTES, "an open wave fits");
static_assert(sizeof(struct close_wave) <= LOCKSTEP_WAVE_BYTES, "a close wave fits");
static_assert(sizeof(struct commit_wave) <= LOCKSTEP_WAVE_BYTES, "a commit wave fits");

// The longest report of a rank in a ballot (worker/engine/recovery.c) with this number of
// unfinished slots, in words: the results of three waves, the sets of slots that are given and
// final, and one run of each unfinished slot.
#define ORDER_REPORT_WORDS(slots) \
    ((sizeof(struct commit_wave) + sizeof(struct open_wave) + sizeof(struct close_wave)) / 8 + \
     2 * LOCKSTEP_SLOT_WORDS + 5 * LOCKSTEP_RECORD_HEAD + (slots) * (LOCKSTEP_RECORD_HEAD + 3))
static_assert(ORDER_REPORT_WORDS(16) * LOCKSTEP_MAX_WORLD <= LOCKSTEP_BALLOT_WORDS,
              "the reports of all ranks fit in a ballot");

// Limits of what a wave may name; equal on all ranks.
struct wave_bounds {
    uint32_t module_count;
    uint32_t parameters[LOCKSTEP_MAX_MODULES]; // Parameters of each module.
    // Calls of each module in a step that are reduced separately.
    uint32_t calls[LOCKSTEP_MAX_MODULES];
};

enum slot_state {
    SLOT_UNREADY = 0,
    SLOT_READY,
    SLOT_ZERO, // Fulfilled with zeros: weight 0.
    SLOT_LAUNCHED, // Given to the data plane.
    SLOT_SUMMED, // All ranks have done their part; the result waits for this rank's trainer.
    SLOT_FINAL, // The slot's result is in user memory on this rank.
};

struct order_slot {
    struct slot_id id;
    enum slot_state state;
    bool zero; // True if the slot was launched with zeros.
    // True if the slot was given up before its call was made; gradients of the call count in a
    // later step.
    bool forfeited;
    // If the slot was forfeited in a planned step: last position of the call that was waited for.
    uint32_t behind;
    bool extension; // True if the close wave appended the slot to the plan.
    uint32_t algorithm; // As in struct plan_slot.
};

// What happens to calls that are not in the step's plan.
enum order_unplanned {
    UNPLANNED_EXTEND = 0, // All ranks run these calls at the end of the step.
    UNPLANNED_FAIL, // The verdict on every rank is UNPLANNED.
    UNPLANNED_DEFER, // The gradients of these calls count in the module's next contribution.
};

// Options of the order core. Zeros are the defaults.
struct order_options {
    // Values that are equal on all ranks.
    uint32_t window; // W of the rules, in slots. 0: LOCKSTEP_WINDOW. Only tests set another value.
    // True if a wait gives up planned slots that are not ready and come before the awaited call.
    bool zero_defer;
    enum order_unplanned unplanned;
    // Values of this rank only.
    bool strict; // True if this rank's data plane pairs collectives by their order.
    bool wait_while_open; // True if an open call counts as made, because other threads end it.
    // Number of trainer threads that must all wait before the rank counts as blocked; 0: one.
    uint32_t threads;
};

struct order_plan {
    uint64_t phase;
    uint64_t number; // 0: this entry holds no plan.
    uint64_t
        replaces; // Number of the plan that this plan replaces; 0: this one closes a learning step.
    uint64_t hash;
    uint64_t used; // Last step in which the plan's phase was run.
    // A hash of how the last step differed from the plan; 0: the step followed the plan.
    uint64_t deviation;
    uint32_t alike; // Number of successive steps with that deviation.
    // As order_options.strict, for any rank: true if some rank's data plane pairs collectives by
    // their order.
    bool strict;
    uint32_t count; // Slots of the plan.
    struct slot_id slots[LOCKSTEP_MAX_SLOTS];
    uint8_t algorithms[LOCKSTEP_MAX_SLOTS]; // The algorithm of each slot, as in struct plan_slot.
};

// A thread of the trainer that waits for a call.
struct order_wait {
    struct call_id call;
    uint32_t at; // All slots of the call at positions below this one are final.
    uint32_t finals; // Number of slots of the call below position `at`.
    bool deferred; // True if gradients of some of the call's slots count in a later step.
    bool withdrawn; // True if the timeout has passed; the coordinator may not know yet.
};

enum order_action_kind {
    ORDER_SEND, // Send up to the coordinator.
    ORDER_OPEN, // Join the open wave with the payload `opening`.
    ORDER_HEADER, // Send header to the ring successor.
    ORDER_LAUNCH, // Launch the slot at `index`: with this rank's data, or with zeros.
    // Repeat the slot at `index`, of which some elements are final on some rank: see recover.h.
    ORDER_REDO,
    // This rank's part of `deferred` counts in a later step; in this step zeros or nothing travel
    // instead.
    ORDER_DEFER,
    ORDER_RELEASE, // The wait for `call` is over; `release` says how.
    ORDER_CLOSE, // Join the close wave with the payload `close`.
    ORDER_COMMIT, // Join the commit wave; the engine fills its payload.
    ORDER_SETTLED, // The step is final on all ranks: release step_end.
    ORDER_IMPOSSIBLE, // A peer sent an impossible message: treat the peer as lost. `text` says why.
    // The session has failed: see `halt` and `text`. The order core ignores all later events.
    ORDER_FAILED,
};

// How a wait for a call ends.
enum order_release {
    RELEASE_FINAL, // The call's results are in user memory.
    RELEASE_DEFERRED, // Some slots of the call count in a later step.
    RELEASE_WITHDRAWN, // The wait was withdrawn before the call was final.
};

struct order_action {
    enum order_action_kind kind;
    const struct up_message
        *up; // ORDER_SEND. All pointers of this struct are borrowed for the call.
    const struct step_header *header; // ORDER_HEADER
    // ORDER_LAUNCH, ORDER_REDO. The user gets no result yet of a forfeited slot.
    const struct order_slot *slot;
    const struct slot_id *deferred; // ORDER_DEFER
    uint32_t index; // ORDER_LAUNCH, ORDER_REDO: position in the order of this step.
    uint64_t space; // ORDER_LAUNCH, ORDER_REDO: first half of the slot's tag in frames.
    uint64_t step;
    const struct open_wave *opening; // ORDER_OPEN
    const struct close_wave *close;
    struct call_id call; // ORDER_RELEASE, and ORDER_SEND of UP_FAIL: the call that is waited for.
    enum order_release release; // ORDER_RELEASE
    enum halt_kind halt; // ORDER_FAILED
    uint32_t rank; // ORDER_IMPOSSIBLE
    // ORDER_IMPOSSIBLE, ORDER_FAILED: the reason. NULL in ORDER_FAILED if calls outside the plan
    // are the reason; order->verdict names those calls.
    const char *text;
};

struct order_sink {
    // Called during an event. The function must not call back into the order core.
    void (*action)(void *context, const struct order_action *action);
    void *context;
};

// The plans that this rank holds. Owner: plan.c. replan.c updates in each plan how many steps
// differed from that plan.
struct order_plans {
    uint32_t room; // Most plans that can be in force: LOCKSTEP_MAX_PLANS, except in tests.
    uint32_t count; // Plans in force.
    uint64_t number; // Highest plan number that this rank holds.
    uint64_t in_force; // No plan with a higher number is in force.
    // Rises by ORDER_DISPLACED_STEPS when a plan or a layout makes room for a new one, and falls by
    // 1 in each step that has a plan. At ORDER_CROWDED there are more phases than plans.
    uint64_t crowd;
    struct order_plan held[LOCKSTEP_MAX_PLANS]; // The plans in force, one for each phase.
    struct order_plan newer; // A plan that is held but not yet in force; number 0: none.
    struct order_plan incoming; // A plan whose parts are arriving.
};

// The waits of the trainer's threads, and what this rank has told the coordinator of them. Owner:
// waits.c.
// order.c sets `changed` when a slot becomes ready.
struct order_waits {
    struct order_wait held[LOCKSTEP_MAX_WAITS]; // [count]; the oldest wait first.
    uint32_t count; // Waits held.
    // Calls that have begun on this rank and not ended.
    struct call_id open_calls[LOCKSTEP_MAX_MODULES];
    uint32_t open_call_count;
    uint64_t watched; // Last step about whose waits the coordinator has asked.
    bool changed; // True if something has changed since the rank last considered a report.
    // Last UP_BLOCKED of this step; wait_count 0: none was sent, or it was taken back.
    struct up_blocked said;
    // Last UP_WAIT of this learning step; step 0: none was sent, or it was taken back.
    struct up_wait said_wait;
    // Reports that were taken back, and whose withdrawal the coordinator has not answered yet.
    uint32_t unanswered;
};

// Headers of the ring predecessor. Owner: header.c.
struct order_headers {
    uint32_t starts; // Calls of lockstep_start on this rank.
    uint32_t uneven; // This rank's rule for ranks that run out of data: enum lockstep_uneven.
    struct step_header early[2]; // Headers of steps that this rank has not begun.
    uint32_t early_count;
    struct step_header early_opening; // Last header that announced an open wave.
};

// A slot that is ready on this rank and has no place in the order yet.
struct order_unplaced {
    struct slot_id id;
    enum dtype dtype;
    uint64_t elements;
};

// What a rank keeps for a new generation. Owner: recover.c.
struct order_recovery {
    // True between order_freeze and order_recover: the core launches, joins and sends nothing.
    bool frozen;
    // True if this rank has the result of the open wave of the step in order.opening.
    bool opened;
    struct open_wave opening; // This rank's part of its last open wave.
    struct open_wave result; // The result of the last open wave that is complete on this rank.
    uint64_t result_step; // The step of that wave; 0: none.
    uint64_t skipped; // The last step that was opened and not run; 0: none.
};

// The order core of one rank. Owner: order.c, except the structs above, whose owners are named
// there.
struct order {
    // Set by order_init; order_recover replaces these three.
    struct generation_id generation;
    uint32_t rank;
    uint32_t world_size;
    // Set by order_init, then constant. As given to order_init, with the defaults filled in: window
    // and threads are not 0.
    struct order_options options;
    struct order_sink sink;

    bool alone; // True if the coordinator is lost.
    uint64_t opening; // Step whose open wave this rank has joined and that has not begun; 0: none.

    // The state of the open step; of the last step if none is open.
    uint64_t step;
    uint64_t phase;
    uint64_t space; // First half of the frame tags of this step's slots.
    bool open; // True between order_step_begun and the end of the commit wave.
    bool learning; // True if the phase has no plan yet.
    bool strict; // True if the data plane of some rank pairs collectives by their order.
    bool ended; // True if the trainer is in step_end.
    bool header_equal; // True if the predecessor's header has arrived and equals this rank's.
    bool fail_said; // True if this rank has sent UP_FAIL.
    bool close_joined;
    bool closed; // True if the close wave, or the plan of a learning step, has arrived.
    bool commit_joined;
    enum halt_kind refused; // The close wave's verdict on the calls outside the plan.
    uint64_t given_up; // Step that this rank has reported as impossible to complete; 0: none.
    uint64_t settled; // Last step that is final on every rank.
    // Slots of the plan: the first `planned` entries of slots[]. 0 in a learning step.
    uint32_t planned;
    uint32_t slot_count;
    uint32_t low; // Lowest slot that is not final.
    uint32_t front; // L of the rules: lowest slot that is neither final nor summed.
    uint32_t unplaced_count;
    uint32_t buckets[LOCKSTEP_MAX_MODULES]; // Buckets of each module.
    uint64_t absent; // Bit m is 1 if this rank does not have module m.
    struct close_wave close; // This rank's contribution to the close wave.
    // The result of the close wave, equal on all ranks; valid when the step is closed.
    struct close_wave verdict;

    bool halt_held; // True if the halt in `halt` waits until the step before it is settled.
    bool failed; // True if ORDER_FAILED was emitted; all later events are ignored.
    struct down_halt halt;

    struct order_headers headers;
    struct order_waits waits;
    struct order_recovery recovery;
    struct order_slot slots[LOCKSTEP_MAX_SLOTS]; // The order of this step.
    struct order_unplaced unplaced[LOCKSTEP_MAX_SLOTS];
    struct order_plans plans;
};

// Begins a new generation: forgets all state. options and sink are copied.
void order_init(struct order *order, struct generation_id generation, uint32_t rank,
                uint32_t world_size, const struct order_options *options, struct order_sink sink);
// Called before lockstep_start when the job continues an earlier, saved job: the next step is
// settled + 1.
void order_resume(struct order *order, uint64_t settled);

// ---- Facts from the trainer --------------------------------------------------------------------

// The trainer called step_begin. opening is this rank's contribution to the open wave. The caller
// gives the result of the wave to the trainer: the step begins after that result, or never.
void order_step_opening(struct order *order, uint64_t step, const struct open_wave *opening);
// The step was opened and is not run, because no rank has data. It counts as settled.
void order_step_skipped(struct order *order, uint64_t step);
// The modules that this rank does not have, from the next step on: bit m is 1 for module m.
void order_set_absent(struct order *order, uint64_t absent);
// The step begins. buckets: the number of buckets of each module in the layout in force,
// LOCKSTEP_MAX_MODULES entries; copied.
void order_step_begun(struct order *order, uint64_t step, uint64_t phase, const uint32_t *buckets);
// All gradients of this slot are in memory.
void order_slot_ready(struct order *order, struct slot_id id, enum dtype dtype, uint64_t elements);
// The trainer does not make this call and later calls of its module in the open step: planned slots
// of these calls become zero.
void order_calls_over(struct order *order, struct call_id first);
// The trainer called step_end. In a learning step the caller sends layout proposals before this
// call.
void order_step_ended(struct order *order);

// Returns the first step that no rank can complete if this rank does nothing after the commit wave
// that it has joined.
uint64_t order_first_impossible(const struct order *order);
// Returns the step that is being opened or is open; if there is none, the last step.
uint64_t order_present_step(const struct order *order);
// Returns the first step that cannot be completed because a peer is gone; 0: no step has begun.
// needed: true if the commit wave of the open step still needs the lost peer, or if this rank's own
// part of that wave has not started.
uint64_t order_lost_step(const struct order *order, bool needed);
// This rank has reported that the step cannot be completed. From now on it does not join the commit
// wave of that step.
void order_give_up(struct order *order, uint64_t step);

// ---- Facts from the data plane -----------------------------------------------------------------

// All ranks have done their part of the slot, and the result waits for this rank's trainer.
// order_slot_final follows later.
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
// Sends the report that a slot of a learning step is ready, and the report that this rank has ended
// the step.
void order_send_ready(struct order *order, const struct order_unplaced *unplaced);
void order_send_end(struct order *order);
// Sends the header of the step that is being opened or is open, if another rank is in the world.
void order_send_header(struct order *order);
void order_fail(struct order *order, enum halt_kind halt, const char *text);
// Takes every action that the state allows now. Every event ends with this call.
void order_advance(struct order *order);
// Returns one more than the position of the last planned slot of a call; 0 if the plan does not
// have the call.
uint32_t order_call_end(const struct order *order, const struct call_id *call);

#endif
