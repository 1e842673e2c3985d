// SPDX-License-Identifier: Apache-2.0
//
// A rank that goes on in a new generation, in the same step, after a death. Pure; part of the order
// core, see order.h. docs/internals/recovery.md has the rules R1 to R9.
//
// - Freeze. A frozen core launches, joins and sends nothing. Its trainer goes on: slots become
//   ready, the step may end, calls may be waited for. A step may begin, too: its open wave and its
//   header follow in the new generation. The caller brings no header or wave of the old generation
//   any more. It may bring headers of the new one, from members that go on earlier.
// - Facts. order_report says what the coordinator needs for its decision.
// - Decision. All members get the same one. It names the last step that some member has settled,
//   and the results of the waves of the next step that some member has. Every rank had joined such
//   a wave, so the wave cannot be joined again with less: the result is handed on. A wave that no
//   member has is joined again by the new world.
// - A rank that is one step behind has joined the commit wave of that step (R2). The step settles.
//   Or the step was opened and no rank had data, and another rank has skipped it already: then this
//   rank gets the result of that open wave.
// - Slots of the open step: a slot of which some element is final on some member is repeated
//   (ORDER_REDO), unless it is done on every member. Also a slot that is whole on every member and
//   not done on all of them: otherwise it would run again with inputs that are gone. Repeated slots
//   come before all other slots and outside of the window. A slot that was launched and is
//   final nowhere becomes ready again, and runs as every other slot. What was given up stays given
//   up.
// - A learning step goes on. Grants are sent to all ranks in one order, but a coordinator that dies
//   may have sent some of them to some members only. So a rank says again, in order, the slots that
//   are granted to it, then all that are ready and not granted, and the end of the step. The
//   coordinator gathers all of it (coordinator/relearn.h). A rank that has the plan that closes the
//   step forgets the plan first: it may rest on layouts that only lost ranks had. No member has
//   settled the step.
// - Every rank sends its header again, because its ring successor may be another rank. Plans stay.

#ifndef WORKER_ORDER_RECOVER_H
#define WORKER_ORDER_RECOVER_H

#include <stdbool.h>
#include <stdint.h>

#include "protos/types.h"
#include "worker/order/order.h"

// What a frozen rank knows of its step. Positions are those of order.slots[].
struct order_facts {
    uint64_t settled; // The last step that is settled on this rank.
    uint64_t step; // The step that is being opened or is open; `settled` if there is none.
    bool opened; // True if this rank has the result of the step's open wave, or has begun the step.
    bool begun; // True if the step is open.
    bool closed; // True if this rank has the result of the step's close wave, or the learned plan.
    bool all_final; // True if this rank has joined the step's commit wave.
    // True if the step `settled` was opened and not run, and this rank does not have the result of
    // a later open wave.
    bool skipped;
    uint32_t slot_count; // Slots of the step that have a position.
    struct slot_set contributed; // Slots that this rank has launched.
    struct slot_set final; // Slots that are done: final in this rank's memory.
};

// What was decided. Pointers are borrowed for the call.
struct order_decision {
    struct generation_id generation;
    uint32_t rank;
    uint32_t world_size;
    uint64_t settled; // The last step that some member has settled.
    // True if some member has skipped `settled`. A rank that has not gets the result of the open
    // wave of that step in `opened`.
    bool skipped;
    // The result of the next step's open wave and close wave; NULL: no member has it.
    const struct open_wave *opened;
    const struct close_wave *closed;
    struct slot_set redo; // Slots of the next step that are repeated.
};

void order_freeze(struct order *order);
// The rank is frozen.
void order_report(const struct order *order, struct order_facts *facts);
// The rank is frozen, and goes on. If decision->settled is the rank's open step, the caller has
// handed the result of the commit wave to the trainer before, as after every commit wave. If the
// rank is in an open wave whose result it does not have, and decision->opened is not NULL, the
// caller hands that result to the trainer afterwards. In a learning step that has ended here, the
// new rank 0 sends its layout proposals before.
void order_recover(struct order *order, const struct order_decision *decision);
// The open wave of the step that is being opened has a result on this rank. The result is copied.
void order_open_completed(struct order *order, const struct open_wave *result);

// True while the open step has no plan yet.
bool order_learns(const struct order *order);
// Says again what the coordinator needs of a learning step, but for layouts and the end of the
// step.
void order_learn_again(struct order *order);

#endif
