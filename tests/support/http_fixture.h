// SPDX-License-Identifier: Apache-2.0
//
// Runs the HTTP server without a coordinator, for tests and a fuzzer. A thread replaces the core:
// it publishes a snapshot of one job when the board wants one, and answers for the job's workers.

#ifndef LOCKSTEP_TESTS_HTTP_FIXTURE_H
#define LOCKSTEP_TESTS_HTTP_FIXTURE_H

#include "base/clock.h"
#include "base/thread.h"
#include "server/http/http.h"

#include <assert.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct http_fixture {
    struct snapshot_board board;
    struct asks asks;
    struct archive archive;
    struct thread thread;
    struct http *http;
    struct log log;
    atomic_bool stopping;
    atomic_bool answering; // True while workers answer the requests of the HTTP server.
    atomic_uint workers; // Number of workers of the job.
    atomic_bool renamed; // True if the job is "other" instead of "job".
    atomic_uint stall; // Number of the active stall; 0: none.
    atomic_uint lines; // Number of lines in the job's log. All are of one time.
    atomic_ullong lines_ms; // That time, in clock_now_ms.
};

static inline struct snapshot *http_fixture_picture(const struct http_fixture *fixture)
{
    struct snapshot *snapshot = calloc(1, sizeof(*snapshot));
    const uint32_t count = atomic_load(&fixture->workers);
    const uint32_t stall = atomic_load(&fixture->stall);
    const uint32_t lines = atomic_load(&fixture->lines);
    if (!snapshot)
        abort();
    snapshot->made_ms = clock_now_ms();
    snapshot->job_count = 1;
    snapshot->worker_count = count;
    snapshot->workers = calloc(count, sizeof(*snapshot->workers));
    snapshot->modules = calloc(1, sizeof(*snapshot->modules));
    snapshot->stalls = calloc(1, sizeof(*snapshot->stalls));
    snapshot->rates = calloc(1, sizeof(*snapshot->rates));
    snapshot->events = calloc(lines + 1, sizeof(*snapshot->events));
    if (!snapshot->workers || !snapshot->modules || !snapshot->stalls || !snapshot->rates ||
        !snapshot->events)
        abort();
    struct snapshot_job *job = &snapshot->jobs[0];
    snprintf(job->view.name, sizeof(job->view.name), "%s",
             atomic_load(&fixture->renamed) ? "other" : "job");
    job->view.world_size = 4;
    job->workers.count = count;
    for (uint32_t i = 0; i < count; i++) {
        snapshot->workers[i].rank = i;
        snapshot->workers[i].has_rank = true;
        memset(snapshot->workers[i].mark, 'm', sizeof(snapshot->workers[i]).mark - 1);
    }
    job->events.count = lines;
    for (uint32_t i = 0; i < lines; i++)
        snapshot->events[i] =
            (struct event_view){.age_ms = snapshot->made_ms - atomic_load(&fixture->lines_ms),
                                .id = "line",
                                .number = lines - i};
    job->stalls.count = stall > 0;
    snapshot->stalls[0] = (struct stall_view){.number = stall, .active = true, .kind = STALL_LINK};
    return snapshot;
}

// Answers in the name of a worker: with one thread for INSPECT_STACKS, else with one event.
static inline void http_fixture_answer(struct http_fixture *fixture, const struct ask *ask)
{
    static struct up_answer answer;
    const struct peer_view who = {.job = "job", .rank = ask->rank, .pid = 7};
    answer = (struct up_answer){.id = clock_now_ms() + 1, .last = true, .clock_ns = 1};
    if (ask->what & INSPECT_STACKS) {
        answer.kind = ANSWER_THREADS;
        answer.u.threads.count = 1;
    } else {
        answer.kind = ANSWER_EVENTS;
        answer.u.events.count = 1;
    }
    archive_put(&fixture->archive, &who, &answer, clock_now_ms());
}

static inline void http_fixture_run(void *context)
{
    struct http_fixture *fixture = context;
    while (!atomic_load(&fixture->stopping)) {
        struct ask ask;
        if (snapshot_wanted(&fixture->board))
            snapshot_publish(&fixture->board, http_fixture_picture(fixture));
        while (asks_take(&fixture->asks, &ask)) {
            if (atomic_load(&fixture->answering))
                http_fixture_answer(fixture, &ask);
        }
        poll(NULL, 0, 1);
    }
}

static inline void http_fixture_wake(void *context)
{
    (void)context;
}

// Opens the server on 127.0.0.1. `config` has the fields that the fixture does not set. Returns 0,
// or -1; the reason is in `error` if the server did not open.
static inline int http_fixture_open(struct http_fixture *fixture, struct http_config config,
                                    char *error, size_t error_bytes)
{
    log_init(&fixture->log, LOG_LEVEL_ERROR, NULL, NULL);
    snapshot_board_init(&fixture->board, http_fixture_wake, NULL);
    asks_init(&fixture->asks);
    archive_init(&fixture->archive);
    atomic_store(&fixture->stopping, false);
    atomic_store(&fixture->answering, true);
    atomic_store(&fixture->workers, 4);
    atomic_store(&fixture->stall, 0);
    atomic_store(&fixture->lines, 0);
    atomic_store(&fixture->renamed, false);
    snprintf(config.endpoint.host, sizeof(config.endpoint.host), "127.0.0.1");
    config.process.version = "1";
    config.board = &fixture->board;
    config.asks = &fixture->asks;
    config.archive = &fixture->archive;
    config.log = &fixture->log;
    if (thread_start(&fixture->thread, "core", http_fixture_run, fixture) != 0)
        return -1;
    return http_open(&config, &fixture->http, error, error_bytes);
}

static inline void http_fixture_close(struct http_fixture *fixture)
{
    http_close(fixture->http);
    atomic_store(&fixture->stopping, true);
    thread_join(&fixture->thread);
    snapshot_board_fini(&fixture->board);
    asks_fini(&fixture->asks);
    archive_fini(&fixture->archive);
}

#endif
