// SPDX-License-Identifier: Apache-2.0
//
// Finds ranks that wait for each other forever. The search uses only the reports of ranks; they
// come from waits.c (planned steps) and learning.c. Runs inside coordinator_step.
//
// Words. A *party* is a rank that is blocked. It has one *wait* for each thread of its trainer that
// waits. A wait *needs* positions of the step's plan; it ends only when every rank has made all of
// them. A party *lacks* the positions that it has not made. The *knot* is the largest set of
// parties in which every wait of every party needs a position that some party of the set lacks. If
// every trainer has one thread, the knot is all ranks on a cycle of waits, and all ranks that wait
// for a rank of the knot.
//
// A party of the knot waits forever. Proof: let r be the first party of the knot that goes on, and
// w the wait of r that ended. Some party q of the knot lacked, when it reported, a position that w
// needs, and has made it since. A blocked rank makes no positions, so q went on before r, which
// contradicts that r was the first. The proof does not use the times of the reports: reports may be
// old, and may be from different moments. (A wait may also end by its timeout. Such a wait does not
// return until the coordinator has forgotten its report; then its rank is not a party.)
//
// Every deadlock is a knot once its ranks have reported. worker/order/order.h (R9) says which ranks
// report.
//
// A report changes only the edges of its own rank. So a new knot has a cycle through that rank:
// otherwise the parties that can be reached from it would have been a knot before the report.
//
// The search begins with all parties, and drops a party if it has a wait that no remaining party
// holds up. Each wait watches one position that it needs and that some remaining party lacks. Only
// when the last of these parties is dropped, the wait looks for another position. So the search
// scans the needs of a wait once, and once more for each position that the wait has watched.

#include "coordinator/knot.h"

#include "base/bits.h"
#include "coordinator/core.h"
#include "coordinator/job.h"

static bool knot_takes(const struct worker *worker, const struct up_blocked *report)
{
    return !worker->left && worker->blocked.wait_count > 0 &&
           worker->blocked.step == report->step && worker->blocked.space == report->space;
}

// Collects the parties, and the positions that any of them needs.
static void knot_gather(struct coordinator *core, const struct job *job,
                        const struct up_blocked *report)
{
    struct knot *knot = &core->knot;
    knot->count = 0;
    memset(&knot->needed, 0, sizeof(knot->needed));
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *worker = job_worker(core, job, i);
        if (!knot_takes(worker, report))
            continue;
        knot->dropped[knot->count] = false;
        knot->parties[knot->count++] = worker;
        for (uint32_t k = 0; k < worker->blocked.wait_count; k++)
            for (uint32_t word = 0; word < LOCKSTEP_SLOT_WORDS; word++)
                knot->needed.words[word] |= worker->blocked.waits[k].needs.words[word];
    }
}

// Counts the parties that lack each needed position.
static void knot_count(struct knot *knot)
{
    memset(&knot->lacked, 0, sizeof(knot->lacked));
    memset(knot->lackers, 0, sizeof(knot->lackers));
    memset(knot->watching, 0, sizeof(knot->watching));
    for (uint32_t party = 0; party < knot->count; party++) {
        for (uint32_t word = 0; word < LOCKSTEP_SLOT_WORDS; word++) {
            uint64_t bits =
                knot->parties[party]->blocked.lacks.words[word] & knot->needed.words[word];
            knot->lacked.words[word] |= bits;
            for (; bits != 0; bits &= bits - 1)
                knot->lackers[word * 64 + (uint32_t)__builtin_ctzll(bits)]++;
        }
    }
}

// Finds a position for this wait to watch. If there is none, drops the party of the wait.
static void knot_watch(struct knot *knot, uint32_t wait)
{
    const uint32_t party = wait / LOCKSTEP_MAX_WAITS;
    const struct slot_set *needs =
        &knot->parties[party]->blocked.waits[wait % LOCKSTEP_MAX_WAITS].needs;
    for (uint32_t word = 0; word < LOCKSTEP_SLOT_WORDS; word++) {
        const uint64_t bits = needs->words[word] & knot->lacked.words[word];
        if (bits == 0)
            continue;
        const uint32_t position = word * 64 + (uint32_t)__builtin_ctzll(bits);
        knot->next[wait] = knot->watching[position];
        knot->watching[position] = (uint16_t)(wait + 1);
        return;
    }
    if (knot->dropped[party])
        return;
    knot->dropped[party] = true;
    knot->queue[knot->queued++] = (uint16_t)party;
}

// No remaining party lacks this position: each wait that watched it looks for another one.
static void knot_release(struct knot *knot, uint32_t position)
{
    uint32_t wait = knot->watching[position];
    bits_remove(knot->lacked.words, position);
    while (wait != 0) {
        const uint32_t next = knot->next[wait - 1];
        knot_watch(knot, wait - 1);
        wait = next;
    }
}

static void knot_drop(struct knot *knot, uint32_t party)
{
    for (uint32_t word = 0; word < LOCKSTEP_SLOT_WORDS; word++) {
        uint64_t bits = knot->parties[party]->blocked.lacks.words[word] & knot->needed.words[word];
        for (; bits != 0; bits &= bits - 1) {
            const uint32_t position = word * 64 + (uint32_t)__builtin_ctzll(bits);
            if (--knot->lackers[position] == 0)
                knot_release(knot, position);
        }
    }
}

bool knot_find(struct coordinator *core, const struct job *job, const struct up_blocked *report)
{
    struct knot *knot = &core->knot;
    knot_gather(core, job, report);
    knot_count(knot);
    knot->queued = 0;
    for (uint32_t party = 0; party < knot->count; party++)
        for (uint32_t k = 0; k < knot->parties[party]->blocked.wait_count; k++)
            knot_watch(knot, party * LOCKSTEP_MAX_WAITS + k);
    for (uint32_t i = 0; i < knot->queued; i++)
        knot_drop(knot, knot->queue[i]);
    return knot->queued < knot->count;
}

// ---- A cycle -----------------------------------------------------------------------------------

bool knot_edge(const struct worker *from, const struct worker *to, struct knot_edge *edge)
{
    for (uint32_t k = 0; k < from->blocked.wait_count; k++) {
        for (uint32_t word = 0; word < LOCKSTEP_SLOT_WORDS; word++) {
            const uint64_t bits =
                from->blocked.waits[k].needs.words[word] & to->blocked.lacks.words[word];
            if (bits == 0)
                continue;
            edge->wait = k;
            edge->position = word * 64 + (uint32_t)__builtin_ctzll(bits);
            return true;
        }
    }
    return false;
}

// Searches breadth first from `start` for a party that waits for `start`, and returns it. Takes
// time in the square of the parties, but runs only once in a generation.
static uint32_t knot_search(struct knot *knot, uint32_t start, uint16_t before[LOCKSTEP_MAX_WORLD])
{
    struct knot_edge edge;
    knot->queue[0] = (uint16_t)start;
    knot->queued = 1;
    knot->dropped[start] = true; // From here on `dropped` means: reached by the search.
    for (uint32_t i = 0; i < knot->queued; i++) {
        const uint16_t from = knot->queue[i];
        if (knot_edge(knot->parties[from], knot->parties[start], &edge))
            return from;
        for (uint32_t to = 0; to < knot->count; to++) {
            if (knot->dropped[to] || !knot_edge(knot->parties[from], knot->parties[to], &edge))
                continue;
            knot->dropped[to] = true;
            before[to] = from;
            knot->queue[knot->queued++] = (uint16_t)to;
        }
    }
    return start; // Never happens: a new knot has a cycle through `start`, see above.
}

uint32_t knot_cycle(struct coordinator *core, const struct worker *start,
                    const struct worker *cycle[LOCKSTEP_MAX_WORLD])
{
    struct knot *knot = &core->knot;
    uint16_t before[LOCKSTEP_MAX_WORLD]; // By party: the party whose edge reached it.
    uint32_t count = 1;
    uint32_t first = 0;
    while (knot->parties[first] != start)
        first++;
    const uint32_t last = knot_search(knot, first, before);
    for (uint32_t at = last; at != first; at = before[at])
        count++;
    uint32_t place = count;
    for (uint32_t at = last; at != first; at = before[at])
        cycle[--place] = knot->parties[at];
    cycle[0] = start;
    return count;
}
