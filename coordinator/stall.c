// SPDX-License-Identifier: Apache-2.0
//
// Where workers are, as far as the core has to know: what modules are called, and who was asked
// where it is. It makes no verdict yet. Runs inside coordinator_step.

#include "coordinator/core.h"

// ---- Names of modules --------------------------------------------------------------------------

void core_module_name(struct sentence *sentence, const struct job *job, uint32_t module)
{
    if (module < job->module_count && job->modules[module][0] != '\0')
        sentence_add(sentence, "'%s'", job->modules[module]);
    else
        sentence_add(sentence, "module %" PRIu32, module);
}

// Manifests are equal, or the generation ends: the names of rank 0 are those of all.
void stall_modules(struct coordinator *core, struct worker *worker,
                   const struct up_modules *modules)
{
    struct job *job = core_job_of(core, worker);
    if (worker->rank != 0 || (uint64_t)modules->first + modules->count > LOCKSTEP_MAX_MODULES ||
        modules->count > LOCKSTEP_NAMES_PART) {
        verdict_protocol(core, worker, "named modules that are not its to name");
        return;
    }
    if (modules->first == 0)
        job->module_count = 0;
    if (modules->first != job->module_count) {
        verdict_protocol(core, worker, "named module %" PRIu32 " after %" PRIu32 " others",
                         modules->first, job->module_count);
        return;
    }
    for (uint32_t i = 0; i < modules->count; i++)
        sentence_clean(job->modules[job->module_count++], sizeof(job->modules[0]),
                       modules->names[i], sizeof(modules->names[i]));
}

// ---- Inspections -------------------------------------------------------------------------------

static struct worker *stall_member(struct coordinator *core, const char *name, uint32_t rank)
{
    const struct job *job = job_find(core, name);
    if (job == NULL || !job_running(job) || rank >= job->count)
        return NULL;
    struct worker *worker = job_worker(core, job, rank);
    return worker->connected ? worker : NULL;
}

void stall_asked(struct coordinator *core, const char *job, uint32_t rank, uint32_t what)
{
    struct worker *worker = stall_member(core, job, rank);
    if (worker == NULL || (what & INSPECT_ALL) == 0 || core->now < worker->ask_again_ms)
        return;
    struct down_inspect *inspect =
        &core_message(core, core_job_of(core, worker), DOWN_INSPECT)->u.inspect;
    worker->asked = ++core->asked;
    worker->ask_again_ms = core->now + LOCKSTEP_INSPECT_PAUSE_MS;
    inspect->id = worker->asked;
    inspect->what = what & INSPECT_ALL;
    core_send(core, worker);
}

// An answer to an earlier question comes late, and one to no question says nothing to anybody.
void stall_answer(struct coordinator *core, struct worker *worker, const struct up_answer *answer)
{
    if (answer->id == 0 || answer->id != worker->asked)
        core_job_of(core, worker)->dropped_total++;
    else if (answer->last)
        worker->asked = 0;
}

// ---- Views
// ---------------------------------------------------------------------------------------

bool coordinator_stall_view(const struct coordinator *coordinator, uint32_t job, uint32_t index,
                            uint64_t now_ms, struct stall_view *view)
{
    (void)coordinator;
    (void)job;
    (void)index;
    (void)now_ms;
    memset(view, 0, sizeof(*view));
    return false;
}
