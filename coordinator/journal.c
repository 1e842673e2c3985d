// SPDX-License-Identifier: Apache-2.0
//
// The last lines of a job's log. The job's page shows them, so users need not read the log of the
// daemon. Runs inside coordinator_step.

#include "coordinator/journal.h"

#include "coordinator/coordinator.h"
#include "coordinator/core.h"
#include "coordinator/send.h"
#include "coordinator/sentence.h"

static void journal_line(struct coordinator *core, struct job *job, const char *id,
                         const char *text)
{
    struct text sentence;
    struct journal_line *line = &job->journal.lines[job->journal.count++ % LOCKSTEP_JOB_EVENTS];
    line->at_ms = core->now;
    text_init(&sentence, line->id, sizeof(line->id));
    text_append(&sentence, "%s", id);
    text_init(&sentence, line->text, sizeof(line->text));
    text_append(&sentence, "%s", text);
}

void journal_note(struct coordinator *core, struct job *job, const char *id, const char *format,
                  ...)
{
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    va_list arguments;
    text_init(&sentence, text, sizeof(text));
    va_start(arguments, format);
    text_append_v(&sentence, format, arguments);
    va_end(arguments);
    journal_line(core, job, id, text);
}

void journal_log(struct coordinator *core, struct job *job, const char *id, const char *format, ...)
{
    char quoted[CORE_LOG_BYTES / 2];
    char text[LOCKSTEP_TEXT_BYTES];
    struct text sentence;
    va_list arguments;
    text_init(&sentence, text, sizeof(text));
    va_start(arguments, format);
    text_append_v(&sentence, format, arguments);
    va_end(arguments);
    journal_line(core, job, id, text);
    text_init(&sentence, quoted, sizeof(quoted));
    sentence_quote(&sentence, text);
    core_log(core, id, "job=%s generation=%" PRIu64 " text=%s", job->name, job->number, quoted);
}

bool coordinator_event_view(const struct coordinator *coordinator, uint32_t job, uint32_t index,
                            uint64_t now_ms, struct event_view *view)
{
    memset(view, 0, sizeof(*view));
    if (job >= coordinator->job_count)
        return false;
    const struct journal *journal = &coordinator->jobs[coordinator->job_order[job]].journal;
    if (index >= journal->count || index >= LOCKSTEP_JOB_EVENTS)
        return false;
    const struct journal_line *line =
        &journal->lines[(journal->count - 1 - index) % LOCKSTEP_JOB_EVENTS];
    view->age_ms = now_ms - line->at_ms;
    view->number = journal->count - index;
    memcpy(view->id, line->id, sizeof(view->id));
    memcpy(view->text, line->text, sizeof(view->text));
    return true;
}
