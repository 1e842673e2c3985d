// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are blocked in a planned step, and the verdict on waits that cannot end (order
// protocol, section 6). learning.c has the waits of a learning step. knot.c explains what a knot is
// and why old reports do no harm. Runs inside coordinator_step.
//
// A rank whose wait may be part of a deadlock reports the wait. At the first report of a step the
// coordinator asks all other ranks to report their waits in that step. Each report is examined
// together with all others of the same step and plan. A knot is HALT_ORDER for all ranks as soon as
// its last rank has reported; no timeout is involved. Steps without reports cost nothing. A rank
// whose last wait has timed out reports that, and gets an answer.

#include "coordinator/waits.h"

#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/job.h"
#include "coordinator/knot.h"
#include "coordinator/names.h"
#include "coordinator/send.h"
#include "coordinator/sentence.h"
#include "coordinator/table.h"
#include "coordinator/verdict.h"

#define WAITS_NAMED 6 // Ranks of a cycle that one text names.

// ---- The sentence ------------------------------------------------------------------------------

// Adds the name of the call to which a lacking position belongs. The buckets of a call have
// neighbouring positions in a plan.
static void waits_lack(struct text *sentence, const struct job *job,
                       const struct up_blocked *blocked, uint32_t position)
{
    uint32_t i = 0;
    while (i < blocked->lack_count && blocked->lacking[i].position <= position)
        i++;
    const bool known =
        i > 0 && (i < LOCKSTEP_LACKS_NAMED || blocked->lacking[i - 1].position == position);
    if (known)
        core_call_name(sentence, job, blocked->lacking[i - 1].call);
    else
        text_append(sentence, "the call at position %" PRIu32 " of the plan", position);
}

// Adds what `from` waits for (a call that `to` has not made), and which call it has not made itself
// though `before` needs it.
static void waits_party(struct text *sentence, const struct job *job, const struct worker *before,
                        const struct worker *from, const struct worker *to)
{
    const struct up_blocked *blocked = &from->blocked;
    struct knot_edge out = {0};
    struct knot_edge in = {0};
    knot_edge(from, to, &out);
    knot_edge(before, from, &in);
    core_rank_name(sentence, from);
    text_append(sentence, " waits for ");
    core_call_name(sentence, job, blocked->waits[out.wait].call);
    if (blocked->wait_count > 1)
        text_append(sentence, ", in other threads for %" PRIu32 " more,", blocked->wait_count - 1);
    text_append(sentence, " and has not made ");
    waits_lack(sentence, job, blocked, in.position);
    text_append(sentence, "; ");
}

void waits_halt(struct coordinator *core, struct job *job, const struct worker *last)
{
    const struct worker *cycle[LOCKSTEP_MAX_WORLD];
    const uint32_t count = knot_cycle(core, last, cycle);
    char text[LOCKSTEP_REPORT_BYTES];
    struct text sentence;
    text_init(&sentence, text, sizeof(text));
    if (count > 1)
        text_append(&sentence, "waits form a cycle: ");
    for (uint32_t i = 0; i < count && i < WAITS_NAMED; i++)
        waits_party(&sentence, job, cycle[(i + count - 1) % count], cycle[i],
                    cycle[(i + 1) % count]);
    if (count > WAITS_NAMED)
        text_append(&sentence, "and so on over %" PRIu32 " ranks; ", count);
    // A rank that waits for itself: all ranks may have the same order.
    text_append(&sentence, "%s, or only in lockstep_step_end",
                count > 1 ? "wait for calls in one order on every rank"
                          : "wait for calls in the order of the plan, which is that of the first "
                            "step of the phase");
    const struct verdict verdict = {.kind = HALT_ORDER, .step = last->blocked.step, .text = text};
    verdict_halt(core, job, &verdict);
}

// ---- Reports -----------------------------------------------------------------------------------

static void waits_query(struct coordinator *core, struct job *job, const struct worker *first)
{
    struct down_query *query = &core_message(core, job, DOWN_QUERY)->u.query;
    query->step = job->queried_step = first->blocked.step;
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *worker = job_worker(core, job, i);
        if (worker != first)
            core_send(core, worker);
    }
}

// Answers a report without waits. Only then the wait that timed out returns, so the coordinator
// never has a report of a wait that has ended.
static void waits_forgotten(struct coordinator *core, const struct job *job,
                            const struct worker *worker)
{
    struct down_query *query = &core_message(core, job, DOWN_QUERY)->u.query;
    query->step = worker->blocked.step;
    query->withdrawn = true;
    core_send(core, worker);
}

void waits_blocked(struct coordinator *core, struct worker *worker,
                   const struct up_blocked *blocked)
{
    struct job *job = core_job_of(core, worker);
    if (blocked->step == 0 || blocked->wait_count > LOCKSTEP_MAX_WAITS ||
        blocked->lack_count > LOCKSTEP_LACKS_NAMED) {
        verdict_protocol(core, worker, "is blocked by %" PRIu32 " waits in step %" PRIu64,
                         blocked->wait_count, blocked->step);
        return;
    }
    // During a learning step such a report is out of date, because its step is settled; or it is of
    // the same step in another phase, which the ranks notice from their step headers.
    if (job->learning.active && blocked->wait_count > 0)
        return;
    worker->blocked = *blocked;
    if (blocked->wait_count == 0) {
        waits_forgotten(core, job, worker);
        return;
    }
    if (job->queried_step != blocked->step)
        waits_query(core, job, worker);
    if (knot_find(core, job, blocked))
        waits_halt(core, job, worker);
}
