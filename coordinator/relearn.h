// SPDX-License-Identifier: Apache-2.0
//
// Learning steps that go on after a change of generation, after a stream has ended, or with another
// coordinator. Runs inside coordinator_step.
//
// - A coordinator that dies may have told some grants to some members only. Grants are told in one
//   order, so each member has a prefix of that order, and the longest one is the order.
// - So a member says its prefix again (UP_READY with `granted`), in the order of grants, before all
//   else of the step. The coordinator compares each slot with its own order by the place, and
//   appends what it does not have. Two slots at one place are a verdict.
// - A member has *entered* when it has said all of its prefix, or, without one, something else of
//   the step. Then it gets the grants that it does not have, and each grant that is appended later.
//   Nothing else is granted, and no plan is made, before all members have entered.
// - What follows is as if for the first time: slots that are ready and not granted, waits, layouts,
//   the end of the step. A coordinator that has it already takes no notice.
// - A coordinator may also die when some members have the plan, and others do not. The end of the
//   step, as a member says it again, names the plan that it has. The plan that follows from what
//   all say must be the same. It gets that number, and is sent to the others. That is so without a
//   death only: when another generation begins, members forget the plan of such a step.
// - If all members have the plan, they need nothing, and may be in the next step before a slow one
//   has said all again. What is said of the older step is of no account then.
// - After a plan was published, its slots and layouts are kept until the next step is learned, for
//   members that have missed it, or that have forgotten it when another generation began.

#ifndef COORDINATOR_RELEARN_H
#define COORDINATOR_RELEARN_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;
struct learning;
struct up_end;
struct up_ready;
struct worker;

// Another generation of the job begins. Its members say again what they know of the step: a grant
// that only lost ranks have is none. reported: the members have reported their steps in a ballot.
void relearn_generation(struct coordinator *core, struct job *job, bool reported);
// A member has come back. If it learns a step, it says again what it knows of that step.
void relearn_resumed(struct coordinator *core, struct worker *worker);
// True if the member says this step again.
bool relearn_is_again(const struct worker *worker, uint64_t step);
// A member says the next slot that is granted to it.
void relearn_granted(struct coordinator *core, struct worker *worker, const struct up_ready *ready);
// A member says the end of a step. Returns true if the plan was published before; then the member
// gets it if it has missed it.
bool relearn_ended(struct coordinator *core, struct worker *worker, const struct up_end *end);
// Notes the plan that the member holds. Returns false if another member holds another one; then a
// verdict was made.
bool relearn_holds(struct coordinator *core, struct worker *worker, const struct up_end *end);
// The next three functions are about layouts. A layout does not name its step. If a member says a
// step again, its layouts belong to that step until it has said the end of the step. Returns true
// if the layout that the member says is known already, or belongs to a step that is over.
bool relearn_is_known(const struct learning *learning, const struct worker *worker);
// True if the member proposes a layout of a later step than the one that others say again.
bool relearn_is_later(const struct learning *learning, const struct worker *worker);
// True if layouts have come for a step before this one, which is over.
bool relearn_is_stale(struct coordinator *core, const struct job *job, uint64_t step);
// A member is in a later step than the one that others say again: all have the plan of that one.
void relearn_overtaken(struct learning *learning);

#endif
