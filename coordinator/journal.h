// SPDX-License-Identifier: Apache-2.0
//
// The last lines of a job's log, which its page shows. Runs inside coordinator_step.

#ifndef COORDINATOR_JOURNAL_H
#define COORDINATOR_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct event_view;
struct job;

bool coordinator_event_view(const struct coordinator *coordinator, uint32_t job, uint32_t index,
                            uint64_t now_ms, struct event_view *view);
// Adds a line to the job's log. The text is for people.
void journal_note(struct coordinator *core, struct job *job, const char *id, const char *format,
                  ...) __attribute__((format(printf, 4, 5)));
// Adds a line to the job's log and to the log of the daemon.
void journal_log(struct coordinator *core, struct job *job, const char *id, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
