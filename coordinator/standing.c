// SPDX-License-Identifier: Apache-2.0
//
// The sentence about a stall that no rank and no link explains. It blames no rank. It says what
// each rank waits for, ranks that do the same thing in one group; then which bytes wait for a
// process that does not read them. Runs inside coordinator_step, and in views.

#include "coordinator/standing.h"

#include "coordinator/beat.h"
#include "coordinator/core.h"
#include "coordinator/culprit.h"
#include "coordinator/names.h"
#include "coordinator/sentence.h"

#include <string.h>

enum standing_limit {
    STANDING_GROUPS = 4, // Groups of ranks that the sentence describes.
    STANDING_RANKS = 6, // Ranks of one group that the sentence names.
    STANDING_LINKS = 2, // Links with unread bytes that the sentence names.
};

// The state of one rank.
struct standing {
    const struct worker *worker;
    const struct place *place;
    bool ended; // True if the step that its trainer opened last is settled.
};

static struct standing standing_of(const struct coordinator *core, const struct job *job,
                                   uint32_t rank)
{
    const struct worker *worker = &core->workers[job->workers[rank]];
    return (struct standing){.worker = worker,
                             .place = &worker->heartbeat.place,
                             .ended = worker->heartbeat.settled >= worker->heartbeat.step};
}

static bool standing_same_slot(const struct place *a, const struct place *b)
{
    if (a->open != b->open || a->count != b->count || a->learning != b->learning ||
        (a->position < a->count) != (b->position < b->count))
        return false;
    return a->position >= a->count ||
           (a->done == b->done && a->slot.module == b->slot.module && a->slot.call == b->slot.call);
}

static bool standing_alike(const struct standing *a, const struct standing *b)
{
    const struct place *p = a->place;
    const struct place *q = b->place;
    return a->worker->heartbeat.step == b->worker->heartbeat.step && a->ended == b->ended &&
           strcmp(a->worker->heartbeat.collective, b->worker->heartbeat.collective) == 0 &&
           a->worker->heartbeat.collective_use == b->worker->heartbeat.collective_use &&
           strcmp(a->worker->heartbeat.collective_detail, b->worker->heartbeat.collective_detail) ==
               0 &&
           p->waits == q->waits && p->inside == q->inside && p->api == q->api &&
           p->module == q->module && p->call == q->call && standing_same_slot(p, q);
}

// Adds "rank 2", or "ranks 0, 1 and 3": the ranks from index `first` on that do the same as rank
// `first`. Returns their number.
static uint32_t standing_ranks(const struct coordinator *core, const struct job *job,
                               uint32_t first, struct text *sentence)
{
    const struct standing like = standing_of(core, job, first);
    uint32_t count = 0;
    uint32_t told = 0;
    for (uint32_t i = first; i < job->count; i++) {
        const struct standing other = standing_of(core, job, i);
        count += !other.worker->left && standing_alike(&like, &other);
    }
    const uint32_t named = count <= STANDING_RANKS ? count : STANDING_RANKS - 1;
    text_append(sentence, count == 1 ? "rank" : "ranks");
    for (uint32_t i = first; i < job->count && told < named; i++) {
        const struct standing other = standing_of(core, job, i);
        if (other.worker->left || !standing_alike(&like, &other))
            continue;
        text_append(sentence, told == 0 ? " " : told + 1 == count ? " and " : ", ");
        text_append(sentence, "%" PRIu32, other.worker->rank);
        told++;
    }
    if (count > named)
        text_append(sentence, " and %" PRIu32 " more", count - named);
    return count;
}

// Adds how far the step is: the next slot, and whether the group has done its part of it.
static void standing_step(const struct job *job, const struct standing *standing, bool several,
                          struct text *sentence)
{
    const struct place *place = standing->place;
    text_append(sentence, " %s step %" PRIu64,
                standing->ended ? "after"
                : place->waits  ? "of"
                                : "in",
                standing->worker->heartbeat.step);
    if (!place->open || standing->ended)
        return;
    if (place->position < place->count) {
        text_append(sentence, place->waits ? " until all ranks exchange " : ", while ");
        core_call_name(sentence, job, (struct call_id){place->slot.module, place->slot.call});
        text_append(sentence, "%s, to which %s %sgiven %s part",
                    place->waits ? "" : " is to be exchanged", several ? "they have" : "it has",
                    place->done ? "" : "not ", several ? "their" : "its");
    } else if (place->learning) {
        text_append(sentence, ", whose order is being learned");
    } else if (place->count > 0) {
        text_append(sentence, ", all of whose gradients are exchanged");
    }
}

static void standing_collective(const struct standing *standing, struct text *sentence)
{
    const struct up_heartbeat *beat = &standing->worker->heartbeat;
    if (standing->place->waits && beat->collective[0] != '\0')
        text_append(sentence, " '%s' (use %" PRIu64 "%s%s)", beat->collective,
                    beat->collective_use + 1, beat->collective_detail[0] != '\0' ? ", " : "",
                    beat->collective_detail);
}

static uint32_t standing_group(const struct coordinator *core, const struct job *job,
                               uint32_t first, struct text *sentence)
{
    const struct standing standing = standing_of(core, job, first);
    const struct place *place = standing.place;
    const uint32_t count = standing_ranks(core, job, first, sentence);
    if (place->waits)
        text_append(sentence, count == 1 ? " waits in " : " wait in ");
    else if (place->inside)
        text_append(sentence, count == 1 ? " is inside " : " are inside ");
    else
        text_append(sentence, count == 1 ? " is outside the library, after "
                                         : " are outside the library, after ");
    culprit_api(sentence, job, place);
    standing_collective(&standing, sentence);
    standing_step(job, &standing, count > 1, sentence);
    return count;
}

// True if a lower rank does the same as this one: the sentence has described it already.
static bool standing_told(const struct coordinator *core, const struct job *job, uint32_t index)
{
    const struct standing standing = standing_of(core, job, index);
    for (uint32_t i = 0; i < index; i++) {
        const struct standing other = standing_of(core, job, i);
        if (!other.worker->left && standing_alike(&standing, &other))
            return true;
    }
    return false;
}

// Adds the links whose bytes have reached the other host but are not read by its process. A process
// has no room for them until it takes part in the same collective as the sender.
static void standing_links(const struct coordinator *core, const struct job *job,
                           struct text *sentence)
{
    uint32_t told = 0;
    for (uint32_t r = 0; r < job->count; r++) {
        const struct worker *worker = &core->workers[job->workers[r]];
        const struct up_heartbeat *beat = &worker->heartbeat;
        for (uint32_t i = 0; i < beat->link_count && told < STANDING_LINKS; i++) {
            const struct link_state *link = &beat->links[i];
            if (worker->left || link->unsent == 0 || !beat_link_stands(job, worker, i))
                continue;
            text_append(sentence,
                        "; rank %" PRIu32 " does not take %" PRIu64 " bytes of rank %" PRIu32,
                        link->rank, link->unsent, worker->rank);
            told++;
        }
    }
}

void standing_sentence(const struct coordinator *core, const struct job *job, uint64_t now_ms,
                       struct text *sentence)
{
    uint32_t look[2] = {0, 0}; // The lowest ranks of the first two groups.
    uint32_t groups = 0;
    uint32_t told = 0;
    text_append(sentence, "nothing has moved for ");
    sentence_seconds(sentence, now_ms - job->stall.began_ms);
    text_append(sentence, ", and no rank is seen to be in the way");
    for (uint32_t i = 0; i < job->count; i++) {
        const struct standing standing = standing_of(core, job, i);
        if (standing.worker->left || groups == STANDING_GROUPS || standing_told(core, job, i))
            continue;
        text_append(sentence, groups == 0 ? ": " : "; ");
        if (groups < 2)
            look[groups] = standing.worker->rank;
        told += standing_group(core, job, i, sentence);
        groups++;
    }
    const uint32_t members = job->count - job->left;
    if (members > told)
        text_append(sentence, "; %" PRIu32 " more rank%s elsewhere", members - told,
                    members - told == 1 ? " is" : "s are");
    standing_links(core, job, sentence);
    text_append(sentence,
                groups > 1 ? ". Compare what they do: " : ". Look at the stacks of all ranks: ");
    culprit_stacks(core, job, sentence, look[0]);
    if (groups > 1) {
        text_append(sentence, ", ");
        culprit_stacks(core, job, sentence, look[1]);
    }
    text_append(sentence, ".");
}
