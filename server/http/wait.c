// SPDX-License-Identifier: Apache-2.0
//
// Stacks and timelines, see parts.h. If the archive has the answer, it is sent at once. Otherwise
// the core asks the worker, and the request waits here until the answer is in the archive or
// HTTP_WAIT_MS have passed. The core asks a worker for its stacks, and for its events, at most once
// in LOCKSTEP_INSPECT_PAUSE_MS, and does not report when it drops a question.

#include "server/http/wait.h"

#include "server/http/answer.h"
#include "server/http/parts.h"
#include "server/render/stack.h"
#include "server/render/timeline.h"

#include "base/clock.h"

#include <event2/event.h>
#include <event2/http.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_MS 20

struct wait {
    struct evhttp_request *request; // NULL: this entry is free.
    struct archive_job job;
    uint32_t first; // The first and the last rank.
    uint32_t last;
    uint32_t what; // INSPECT_STACKS or INSPECT_EVENTS
    uint64_t asked_ms;
};

struct http_waits {
    struct http_core *core;
    struct event *look;
    struct wait waits[HTTP_WAITS];
};

static struct archive *archive_of(const struct http_waits *waits)
{
    return waits->core->config->archive;
}

// ---- answers ----------------------------------------------------------------------------------

// fresh: true if the worker was asked for this answer just now.
static void answer_stack(struct http_waits *waits, struct evhttp_request *request,
                         const struct archive_job *job, uint32_t rank, bool fresh)
{
    struct archived archived;
    if (archive_time(archive_of(waits), job, rank, INSPECT_STACKS) == 0 ||
        !archive_copy(archive_of(waits), job, rank, &archived)) {
        http_answer_error(waits->core, request, HTTP_NOTFOUND,
                          "that rank has not been asked for its stack yet; ask it with "
                          "?fresh=1, or lockstep stacks with --fresh");
        return;
    }
    json_reset(&waits->core->json);
    render_stack(&waits->core->json, &archived, clock_now_ms(), fresh);
    archive_copy_fini(&archived);
    http_answer_json(waits->core, request, HTTP_OK);
}

static void answer_timeline(struct http_waits *waits, const struct wait *wait)
{
    bool answered;
    const struct snapshot *snapshot = snapshot_read(waits->core->config->board, &answered);
    struct json *json = &waits->core->json;
    json_reset(json);
    render_timeline_begin(json);
    for (uint32_t rank = wait->first; snapshot && rank <= wait->last; rank++) {
        struct archived archived;
        if (!archive_copy(archive_of(waits), &wait->job, rank, &archived))
            continue;
        if (archived.events_ms > 0)
            render_timeline_rank(json, snapshot, &archived);
        archive_copy_fini(&archived);
    }
    render_timeline_end(json);
    http_answer_json(waits->core, wait->request, HTTP_OK);
}

// ---- waiting ----------------------------------------------------------------------------------

static bool all_answered(const struct http_waits *waits, const struct wait *wait)
{
    for (uint32_t rank = wait->first; rank <= wait->last; rank++) {
        // The core did not ask a worker again that has answered so short a time ago.
        const uint64_t taken_ms = archive_time(archive_of(waits), &wait->job, rank, wait->what);
        if (taken_ms + LOCKSTEP_INSPECT_PAUSE_MS <= wait->asked_ms)
            return false;
    }
    return true;
}

static void finish(struct http_waits *waits, struct wait *wait, bool answered)
{
    // A timeline is sent even if not all ranks answered: it shows the older events of the others.
    if (wait->what == INSPECT_EVENTS)
        answer_timeline(waits, wait);
    else if (answered)
        answer_stack(waits, wait->request, &wait->job, wait->first, true);
    else
        http_answer_error(waits->core, wait->request, HTTP_SERVUNAVAIL,
                          "the worker did not answer in time");
    wait->request = NULL;
}

static void on_look(evutil_socket_t fd, short what, void *context)
{
    static const struct timeval soon = {.tv_usec = LOOK_MS * 1000};
    struct http_waits *waits = context;
    const uint64_t now_ms = clock_now_ms();
    bool any = false;
    (void)fd;
    (void)what;
    for (size_t i = 0; i < HTTP_WAITS; i++) {
        struct wait *wait = &waits->waits[i];
        if (!wait->request)
            continue;
        const bool answered = all_answered(waits, wait);
        if (answered || now_ms - wait->asked_ms >= HTTP_WAIT_MS)
            finish(waits, wait, answered);
        else
            any = true;
    }
    if (any)
        event_add(waits->look, &soon);
}

static bool post(struct http_waits *waits, const struct wait *wait)
{
    const uint32_t what = INSPECT_PLACE | wait->what;
    for (uint32_t rank = wait->first; rank <= wait->last; rank++) {
        if (!asks_post(waits->core->config->asks, wait->job.name, rank, what))
            return false;
    }
    snapshot_wake(waits->core->config->board);
    return true;
}

static void begin(struct http_waits *waits, struct evhttp_request *request,
                  const struct archive_job *job, uint32_t first, uint32_t last, uint32_t what)
{
    static const struct timeval soon = {.tv_usec = LOOK_MS * 1000};
    struct wait *wait = waits->waits;
    while (wait < waits->waits + HTTP_WAITS && wait->request)
        wait++;
    if (wait < waits->waits + HTTP_WAITS) {
        *wait = (struct wait){
            .job = *job, .first = first, .last = last, .what = what, .asked_ms = clock_now_ms()};
    }
    if (wait == waits->waits + HTTP_WAITS || !post(waits, wait)) {
        http_answer_error(waits->core, request, HTTP_SERVUNAVAIL,
                          "too many workers are being asked; try again");
        return;
    }
    wait->request = request;
    event_add(waits->look, &soon);
}

void http_waits_stack(struct http_waits *waits, struct evhttp_request *request,
                      const struct archive_job *job, uint32_t rank, bool fresh, const char *gone)
{
    const uint64_t taken_ms = archive_time(archive_of(waits), job, rank, INSPECT_STACKS);
    const bool young = taken_ms > 0 && clock_now_ms() - taken_ms < LOCKSTEP_INSPECT_PAUSE_MS;
    if (gone && !young && (fresh || taken_ms == 0))
        http_answer_error(waits->core, request, HTTP_NOTFOUND, gone);
    else if (!fresh || young)
        answer_stack(waits, request, job, rank, false);
    else
        begin(waits, request, job, rank, rank, INSPECT_STACKS);
}

void http_waits_timeline(struct http_waits *waits, struct evhttp_request *request,
                         const struct archive_job *job, uint32_t first, uint32_t last)
{
    begin(waits, request, job, first, last, INSPECT_EVENTS);
}

// ---- open and close ---------------------------------------------------------------------------

struct http_waits *http_waits_open(struct http_core *core)
{
    struct http_waits *waits = calloc(1, sizeof(*waits));
    if (!waits)
        return NULL;
    waits->core = core;
    waits->look = event_new(core->base, -1, 0, on_look, waits);
    if (!waits->look) {
        free(waits);
        return NULL;
    }
    return waits;
}

void http_waits_close(struct http_waits *waits)
{
    for (size_t i = 0; i < HTTP_WAITS; i++) {
        if (waits->waits[i].request)
            http_answer_error(waits->core, waits->waits[i].request, HTTP_SERVUNAVAIL,
                              "the coordinator ends");
    }
    event_free(waits->look);
    free(waits);
}
