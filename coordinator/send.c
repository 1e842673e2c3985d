// SPDX-License-Identifier: Apache-2.0
//
// Sends messages to workers, and log lines. Runs inside coordinator_step.

#include "coordinator/send.h"

#include "coordinator/core.h"
#include "coordinator/job.h"
#include "coordinator/sentence.h"

struct down_message *core_message(struct coordinator *core, const struct job *job,
                                  enum down_kind kind)
{
    memset(&core->out, 0, sizeof(core->out));
    core->out.kind = kind;
    core->out.generation.incarnation = !job ? core->config.incarnation : job->resuming.incarnation;
    core->out.generation.number = !job ? 0 : job->number;
    return &core->out;
}

void core_send_peer(struct coordinator *core, coordinator_peer peer)
{
    const struct coordinator_action action = {
        .kind = ACTION_SEND, .peer = peer, .message = &core->out};
    core->sink.action(core->sink.context, &action);
}

void core_send(struct coordinator *core, const struct worker *worker)
{
    if (worker->connected)
        core_send_peer(core, worker->peer);
}

void core_send_all(struct coordinator *core, const struct job *job)
{
    for (uint32_t i = 0; i < job->count; i++)
        core_send(core, job_worker(core, job, i));
}

static void core_log_v(struct coordinator *core, enum halt_kind halt, const char *id,
                       const char *format, va_list arguments) __attribute__((format(printf, 4, 0)));

static void core_log_v(struct coordinator *core, enum halt_kind halt, const char *id,
                       const char *format, va_list arguments)
{
    char text[CORE_LOG_BYTES];
    struct text line;
    text_init(&line, text, sizeof(text));
    text_append_v(&line, format, arguments);
    const struct coordinator_action action = {
        .kind = ACTION_LOG, .log_id = id, .text = text, .halt = halt};
    core->sink.action(core->sink.context, &action);
}

void core_log(struct coordinator *core, const char *id, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    core_log_v(core, HALT_NONE, id, format, arguments);
    va_end(arguments);
}

void core_log_halt(struct coordinator *core, enum halt_kind halt, const char *id,
                   const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    core_log_v(core, halt, id, format, arguments);
    va_end(arguments);
}
