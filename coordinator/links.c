// SPDX-License-Identifier: Apache-2.0
//
// The tuning of a generation. Every member reports once the speed of its links and whether it
// shares memory with its mates. When all members have reported, the slowest link decides, and every
// member gets the same tuning. lockstep_open returns only after that. Runs inside coordinator_step.

#include "coordinator/links.h"

#include "coordinator/ballot.h"
#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/job.h"
#include "coordinator/names.h"
#include "coordinator/resume.h"
#include "coordinator/send.h"
#include "coordinator/sentence.h"
#include "coordinator/table.h"
#include "coordinator/verdict.h"
#include "protos/tuning.h"

// Values for links that no rank could measure: those of an idle loopback interface.
#define LINKS_LATENCY_NS 20000
#define LINKS_BYTES_PER_S UINT64_C(1000000000)

static struct tuning_world links_world(const struct job *job)
{
    return (struct tuning_world){.world_size = job->count, .hosts = job->hosts};
}

// Returns the highest latency, the lowest bandwidth, and whether all members share memory.
static struct tuning links_worst(struct coordinator *core, const struct job *job)
{
    struct tuning tuning = {.shares = true, .wish = job_worker(core, job, 0)->links.wish};
    for (uint32_t i = 0; i < job->count; i++) {
        const struct up_links *links = &job_worker(core, job, i)->links;
        if (links->latency_ns > tuning.latency_ns)
            tuning.latency_ns = links->latency_ns;
        if (links->bytes_per_s != 0 &&
            (tuning.bytes_per_s == 0 || links->bytes_per_s < tuning.bytes_per_s))
            tuning.bytes_per_s = links->bytes_per_s;
        tuning.shares = tuning.shares && links->shares;
    }
    if (tuning.latency_ns == 0)
        tuning.latency_ns = LINKS_LATENCY_NS;
    if (tuning.bytes_per_s == 0)
        tuning.bytes_per_s = LINKS_BYTES_PER_S;
    return tuning;
}

static void links_halt(struct coordinator *core, struct job *job, const char *text)
{
    const struct verdict verdict = {.kind = HALT_TUNING, .text = text};
    verdict_halt(core, job, &verdict);
}

// Adds "rank 1 (host b) has LOCKSTEP_SUM=ranks", with the setting that a wish comes from. other:
// the links of the other rank of the sentence.
static void links_name_wish(struct text *sentence, const struct worker *worker,
                            const struct up_links *other)
{
    const struct up_links *links = &worker->links;
    core_rank_name(sentence, worker);
    if (links->sums_ranks)
        text_append(sentence, " has LOCKSTEP_SUM=ranks (config.sum)");
    else if (other->sums_ranks && links->wish == ALGORITHM_BY_SIZE)
        text_append(sentence, " has LOCKSTEP_SUM=fast");
    else
        text_append(sentence, " has LOCKSTEP_ALGORITHM=%s", tuning_name(links->wish));
}

// If another member has a different wish: makes a verdict that names both, and returns true.
static bool links_differs(struct coordinator *core, struct job *job, const struct worker *worker)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *other = job_worker(core, job, i);
        if (!other->linked || other->links.wish == worker->links.wish)
            continue;
        text_init(&sentence, text, sizeof(text));
        links_name_wish(&sentence, other, &worker->links);
        text_append(&sentence, ", ");
        links_name_wish(&sentence, worker, &other->links);
        text_append(&sentence, ": set it to the same on every rank");
        links_halt(core, job, text);
        return true;
    }
    return false;
}

static void links_refuse(struct coordinator *core, struct job *job, const struct tuning *tuning,
                         const char *why)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    text_init(&sentence, text, sizeof(text));
    text_append(&sentence, "LOCKSTEP_ALGORITHM=%s cannot be had here: %s",
                tuning_name(tuning->wish), why);
    for (uint32_t i = 0; job->hosts == 1 && !tuning->shares && i < job->count; i++) {
        const struct worker *worker = job_worker(core, job, i);
        if (worker->links.shares)
            continue;
        text_append(&sentence, " (");
        core_rank_name(&sentence, worker);
        text_append(&sentence, " does not)");
        break;
    }
    links_halt(core, job, text);
}

static void links_decide(struct coordinator *core, struct job *job)
{
    const struct tuning_world world = links_world(job);
    struct tuning tuning = links_worst(core, job);
    cost_tuning(job->count, tuning.latency_ns, tuning.bytes_per_s, &tuning);
    if (tuning_two_levels(&tuning, &world))
        cost_tuning_two_levels(job->count, &job->placement, &tuning);
    const char *why = tuning_refusal(&tuning, &world);
    if (why) {
        links_refuse(core, job, &tuning, why);
        return;
    }
    job->tuned = true;
    job->tuning = tuning;
    lineage_establish(job);
    ballot_linked(core, job);
    core_message(core, job, DOWN_TUNING)->u.tuning = tuning;
    core_send_all(core, job);
    resume_probe_all(core, job);
    core_log(core, "links_tuned",
             "job=%s generation=%" PRIu64 " latency_ns=%" PRIu64 " bytes_per_s=%" PRIu64
             " doubling_bytes=%" PRIu64 " halving_bytes=%" PRIu64 " shares=%d wish=%s",
             job->name, job->number, tuning.latency_ns, tuning.bytes_per_s, tuning.doubling_bytes,
             tuning.halving_bytes, tuning.shares, tuning_name(tuning.wish));
}

void links_reported(struct coordinator *core, struct worker *worker, const struct up_links *links)
{
    struct job *job = core_job_of(core, worker);
    if (links->wish > ALGORITHM_BY_SIZE) {
        verdict_protocol(core, worker, "asked for the unknown algorithm %" PRIu32, links->wish);
        return;
    }
    // The links of a generation that another coordinator decided: a ballot has ended it.
    if (worker->linked && worker->hello.resumes && worker->hello.resume.frozen)
        return;
    if (worker->linked) {
        verdict_protocol(core, worker, "said twice that its links stand");
        return;
    }
    worker->linked = true;
    worker->links = *links;
    job->linked++;
    if (verdict_left_behind(core, worker, 0) || links_differs(core, job, worker))
        return;
    if (job->linked == job->count && !ballot_runs(job)) // A ballot has ended this generation.
        links_decide(core, job);
}
