// SPDX-License-Identifier: Apache-2.0
//
// The names of modules, calls and ranks, as sentences write them. Runs inside coordinator_step.

#include "coordinator/names.h"

#include "coordinator/core.h"
#include "coordinator/job.h"
#include "coordinator/learning.h"
#include "coordinator/sentence.h"
#include "coordinator/table.h"
#include "coordinator/verdict.h"

void core_module_name(struct text *sentence, const struct job *job, uint32_t module)
{
    if (module < job->module_count && job->modules[module][0] != '\0')
        text_append(sentence, "'%s'", job->modules[module]);
    else
        text_append(sentence, "module %" PRIu32, module);
    if (module < job->module_count && job->groups[module][0] != '\0')
        text_append(sentence, " of group '%s'", job->groups[module]);
}

void core_call_name(struct text *sentence, const struct job *job, struct call_id call)
{
    core_module_name(sentence, job, call.module);
    text_append(sentence, " (call %" PRIu64 ")", (uint64_t)call.call + 1);
}

// Rank 0 sends the names: if manifests differ between ranks, the generation ends anyway. A rank
// that comes back to a coordinator sends them, too, because rank 0 may come later, or may be what
// hangs.
void names_told(struct coordinator *core, struct worker *worker, const struct up_modules *modules)
{
    struct job *job = core_job_of(core, worker);
    const bool first_rank = worker->rank == 0;
    learning_grouped(core, worker, modules);
    if ((uint64_t)modules->first + modules->count > LOCKSTEP_MAX_MODULES ||
        modules->count > LOCKSTEP_NAMES_PART) {
        verdict_protocol(core, worker, "named %" PRIu32 " modules after %" PRIu32 " others",
                         modules->count, modules->first);
        return;
    }
    if (first_rank && modules->first == 0 && modules->count > 0)
        job->module_count = 0;
    if (first_rank && modules->first > job->module_count) {
        verdict_protocol(core, worker, "named module %" PRIu32 " after %" PRIu32 " others",
                         modules->first, job->module_count);
        return;
    }
    for (uint32_t i = 0; i < modules->count; i++) {
        const uint32_t module = modules->first + i;
        if (module > job->module_count || (!first_rank && module < job->module_count))
            continue;
        sentence_clean(job->groups[module], sizeof(job->groups[0]), modules->groups[i],
                       sizeof(modules->groups[i]));
        sentence_clean(job->modules[module], sizeof(job->modules[0]), modules->names[i],
                       sizeof(modules->names[i]));
        if (module == job->module_count)
            job->module_count++;
    }
}

void core_rank_name(struct text *sentence, const struct worker *worker)
{
    text_append(sentence, "rank %" PRIu32 " (host %s)", worker->rank, worker->hello.host);
}

void names_link(struct text *sentence, const struct worker *a, const struct worker *b)
{
    text_append(sentence, "the link between ");
    core_rank_name(sentence, a);
    text_append(sentence, " and ");
    core_rank_name(sentence, b);
}

void names_step(struct text *sentence, uint64_t step)
{
    if (step != 0)
        text_append(sentence, " in step %" PRIu64, step);
}

const struct worker *names_witness(struct coordinator *core, const struct worker *reporter,
                                   const struct up_lost *lost)
{
    const struct job *job = core_job_of(core, reporter);
    return lost->told && lost->witness < job->count ? job_worker(core, job, lost->witness)
                                                    : reporter;
}

void names_loss(struct coordinator *core, struct text *sentence, const struct worker *reporter,
                const struct up_lost *lost)
{
    char clean[LOCKSTEP_TEXT_BYTES / 4];
    const struct worker *witness = names_witness(core, reporter, lost);
    sentence_clean_lines(clean, sizeof(clean), lost->text, sizeof(lost->text));
    core_rank_name(sentence, witness);
    text_append(sentence, " saw \"%s\"", clean);
    names_step(sentence, lost->step);
    if (witness != reporter)
        text_append(sentence, ", as rank %" PRIu32 " heard", reporter->rank);
}

const char *core_dtype_name(enum dtype dtype)
{
    static const char *const names[] = {
        [DTYPE_FLOAT32] = "float32", [DTYPE_FLOAT64] = "float64", [DTYPE_INT32] = "int32",
        [DTYPE_INT64] = "int64",     [DTYPE_FLOAT16] = "float16", [DTYPE_BFLOAT16] = "bfloat16",
        [DTYPE_UINT8] = "uint8",     [DTYPE_INT8] = "int8",       [DTYPE_INT16] = "int16",
        [DTYPE_UINT16] = "uint16",   [DTYPE_UINT32] = "uint32",   [DTYPE_UINT64] = "uint64",
        [DTYPE_BOOL] = "bool"};
    const size_t count = sizeof(names) / sizeof(names[0]);
    return (size_t)dtype < count && names[dtype] ? names[dtype] : "none";
}
