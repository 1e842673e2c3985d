// SPDX-License-Identifier: Apache-2.0
//
// What modules are called, and who was asked where it is. Decides nothing about stalls: stall.c
// does. Runs inside coordinator_step.

#include "coordinator/inspect.h"

#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/job.h"
#include "coordinator/sentence.h"
#include "coordinator/verdict.h"

// ---- Names of modules --------------------------------------------------------------------------

void core_module_name(struct sentence *sentence, const struct job *job, uint32_t module)
{
    if (module < job->module_count && job->modules[module][0] != '\0')
        sentence_add(sentence, "'%s'", job->modules[module]);
    else
        sentence_add(sentence, "module %" PRIu32, module);
}

void core_call_name(struct sentence *sentence, const struct job *job, struct call_id call)
{
    core_module_name(sentence, job, call.module);
    sentence_add(sentence, " (call %" PRIu64 ")", (uint64_t)call.call + 1);
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

uint64_t inspect_ask(struct coordinator *core, struct worker *worker, uint32_t what)
{
    if (!worker->connected || core->now < worker->ask_again_ms)
        return 0;
    struct down_inspect *inspect =
        &core_message(core, core_job_of(core, worker), DOWN_INSPECT)->u.inspect;
    worker->asked = ++core->asked;
    worker->ask_again_ms = core->now + LOCKSTEP_INSPECT_PAUSE_MS;
    inspect->id = worker->asked;
    inspect->what = what;
    core_send(core, worker);
    return worker->asked;
}

void stall_asked(struct coordinator *core, const char *name, uint32_t rank, uint32_t what)
{
    const struct job *job = job_find(core, name);
    if (job && job_running(job) && rank < job->count && (what & INSPECT_ALL) != 0)
        inspect_ask(core, job_worker(core, job, rank), what & INSPECT_ALL);
}

// An answer to an earlier question comes late, and one to no question says nothing to anybody.
void stall_answer(struct coordinator *core, struct worker *worker, const struct up_answer *answer)
{
    if (answer->id == 0 || answer->id != worker->asked) {
        core_job_of(core, worker)->dropped_total++;
        return;
    }
    if (answer->last)
        worker->asked = 0;
    stall_answered(core, worker, answer);
}
