// SPDX-License-Identifier: Apache-2.0
//
// A coordinator core with scripted workers. Holds, after every event: nothing is sent to a stream
// that the core has closed or that nobody opened.

#include "tests/unit/coordinator/story.h"

#include "coordinator/core.h"
#include "coordinator/view.h"

#include "tests/support/describe.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void story_write(struct story *story, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void story_write(struct story *story, const char *format, ...)
{
    va_list arguments;
    if (story->quiet)
        return;
    va_start(arguments, format);
    const int size =
        vsnprintf(story->trace + story->used, STORY_TRACE_BYTES - story->used, format, arguments);
    va_end(arguments);
    assert_true(size >= 0 && (size_t)size < STORY_TRACE_BYTES - story->used);
    story->used += (size_t)size;
}

static void story_remember(struct story *story, coordinator_peer peer,
                           const struct down_message *message)
{
    story->received[peer]++;
    story->last[peer % STORY_LAST] = *message;
    if (message->kind != DOWN_GENERATION)
        return;
    story->generation[peer] = message->generation;
    story->rank[peer] = message->u.generation_start.rank;
    memcpy(story->secret[peer], message->u.generation_start.secret, LOCKSTEP_SECRET_BYTES);
}

static void story_action(void *context, const struct coordinator_action *action)
{
    char text[DESCRIBE_BYTES];
    struct story *story = context;
    if (action->kind == ACTION_PROBE)
        return;
    if (action->kind == ACTION_LOG) {
        if (story->logging)
            story_write(story, "log %s %s\n", action->log_id, action->text);
        return;
    }
    assert_true(action->peer < STORY_PEERS);
    assert_true(story->known[action->peer]);
    assert_false(story->closed[action->peer]);
    if (action->kind == ACTION_CLOSE) {
        story->closed[action->peer] = true;
        story->known[action->peer] = false;
        story_write(story, "%" PRIu64 " closed\n", action->peer);
        return;
    }
    describe_down(text, sizeof(text), action->message);
    story_remember(story, action->peer, action->message);
    story_write(story, "%" PRIu64 " < %s\n", action->peer, text);
}

static void story_step(struct story *story, struct coordinator_event *event)
{
    const struct coordinator_sink sink = {story_action, story};
    story->secrets++;
    memcpy(event->entropy, &story->secrets, sizeof(story->secrets));
    coordinator_step(story->core, event, story->now_ms, sink);
}

void story_begin(struct story *story)
{
    story_begin_as(story, STORY_INCARNATION);
}

// Memory of a story that has ended, for the next one. Fresh pages from the system would take more
// time than most stories do.
static void *story_spare;

void story_begin_as(struct story *story, uint64_t incarnation)
{
    const struct coordinator_config config = {.incarnation = incarnation};
    memset(story, 0, sizeof(*story));
    story->memory = story_spare ? story_spare : malloc(coordinator_bytes());
    story_spare = NULL;
    assert_non_null(story->memory);
    // Bytes that the core does not write itself must not matter. It reads no word of a layout that
    // it has not written, and these are most of the memory, so only the first row of them is
    // filled.
    memset(story->memory, 0xa5, offsetof(struct coordinator, words[1]));
    story->trace = malloc(STORY_TRACE_BYTES);
    assert_non_null(story->trace);
    story->trace[0] = '\0';
    story->now_ms = 1000;
    story->core = coordinator_init(story->memory, &config);
}

void story_end(struct story *story)
{
    free(story_spare);
    story_spare = story->memory;
    free(story->trace);
}

int story_setup(void **state)
{
    *state = malloc(sizeof(struct story));
    assert_non_null(*state);
    story_begin(*state);
    return 0;
}

int story_teardown(void **state)
{
    story_end(*state);
    free(*state);
    return 0;
}

void story_forget(struct story *story)
{
    story->used = 0;
    story->trace[0] = '\0';
}

void story_expect(struct story *story, const char *trace)
{
    if (strcmp(story->trace, trace) != 0)
        print_error("--- expected\n%s--- happened\n%s---\n", trace, story->trace);
    assert_string_equal(story->trace, trace);
    story_forget(story);
}

void story_expect_piece(struct story *story, const char *piece)
{
    if (!strstr(story->trace, piece))
        print_error("--- expected somewhere\n%s\n--- happened\n%s---\n", piece, story->trace);
    assert_non_null(strstr(story->trace, piece));
    story_forget(story);
}

// ---- Facts -----------------------------------------------------------------------------------

struct up_hello story_hello(const char *job, uint32_t world, const char *host)
{
    struct up_hello hello = {
        .version = LOCKSTEP_PROTOCOL_VERSION,
        .world_min = world,
        .world_max = world,
        .open_timeout_ms = 10000,
    };
    snprintf(hello.job, sizeof(hello.job), "%s", job);
    snprintf(hello.host, sizeof(hello.host), "%s", host);
    snprintf(hello.host_id, sizeof(hello.host_id), "id-of-%.100s", host);
    return hello;
}

void story_say(struct story *story, uint32_t peer, struct up_message *message)
{
    char text[DESCRIBE_BYTES];
    struct coordinator_event event = {.kind = EVENT_MESSAGE, .peer = peer, .message = message};
    assert_false(story->closed[peer]);
    story->known[peer] = true;
    if (message->kind != UP_HELLO)
        message->generation = story->generation[peer];
    describe_up(text, sizeof(text), message);
    story_write(story, "%" PRIu32 " > %s\n", peer, text);
    story_step(story, &event);
}

void story_say_hello(struct story *story, uint32_t peer, const struct up_hello *hello)
{
    struct up_message message = {.kind = UP_HELLO, .u.hello = *hello};
    snprintf(message.u.hello.address, sizeof(message.u.hello.address), "w%" PRIu32, peer);
    if (!hello->resumes)
        memcpy(message.u.hello.uuid.bytes, &peer, sizeof(peer));
    message.u.hello.pid = 100 + peer;
    story_say(story, peer, &message);
}

void story_join(struct story *story, uint32_t peer, const char *host)
{
    const struct up_hello hello = story_hello("j", 2, host);
    story_say_hello(story, peer, &hello);
}

void story_form(struct story *story, uint32_t world)
{
    for (uint32_t peer = 1; peer <= world; peer++) {
        char host[16];
        snprintf(host, sizeof(host), "h%" PRIu32, peer);
        const struct up_hello hello = story_hello("j", world, host);
        story_say_hello(story, peer, &hello);
    }
    story_forget(story);
}

void story_run(struct story *story, uint32_t world)
{
    story_form(story, world);
    for (uint32_t peer = 1; peer <= world; peer++)
        story_start(story, peer, 7, 3, 0);
    story_forget(story);
}

void story_form_on(struct story *story, uint32_t world)
{
    for (uint32_t peer = 1; peer <= world; peer++) {
        char host[16];
        snprintf(host, sizeof(host), "h%" PRIu32, peer);
        struct up_hello hello = story_hello("j", world, host);
        hello.on_failure = FAILURE_CONTINUE;
        story_say_hello(story, peer, &hello);
    }
    story_forget(story);
}

void story_run_on(struct story *story, uint32_t world)
{
    story_form_on(story, world);
    for (uint32_t peer = 1; peer <= world; peer++)
        story_links(story, peer, &(struct up_links){.wish = ALGORITHM_BY_SIZE});
    for (uint32_t peer = 1; peer <= world; peer++)
        story_start(story, peer, 7, 3, 0);
    story_forget(story);
}

void story_links(struct story *story, uint32_t peer, const struct up_links *links)
{
    struct up_message message = {.kind = UP_LINKS, .u.links = *links};
    story_say(story, peer, &message);
}

void story_start(struct story *story, uint32_t peer, uint64_t hash, uint32_t items, uint32_t root)
{
    struct up_message message = {
        .kind = UP_START,
        .u.start = {.manifest_hash = hash,
                    .item_count = items,
                    .root = root,
                    .zero_defer = story->zero_defer},
    };
    story_say(story, peer, &message);
}

void story_ready(struct story *story, uint32_t peer, uint64_t step, struct slot_id slot)
{
    struct up_message message = {
        .kind = UP_READY,
        .u.ready = {.step = step, .slot = slot, .dtype = DTYPE_FLOAT32, .elements = 10},
    };
    story_say(story, peer, &message);
}

void story_granted(struct story *story, uint32_t peer, uint64_t step, struct slot_id slot,
                   uint32_t place, uint32_t grants, bool unmade)
{
    struct up_message message = {
        .kind = UP_READY,
        .u.ready =
            {.step = step, .slot = slot, .granted = place + 1, .grants = grants, .unmade = unmade},
    };
    story_say(story, peer, &message);
}

void story_wait(struct story *story, uint32_t peer, uint64_t step, struct slot_id slot)
{
    struct up_message message = {.kind = UP_WAIT, .u.wait = {.step = step, .slot = slot}};
    story_say(story, peer, &message);
}

void story_await(struct story *story, uint32_t peer, uint64_t step, struct slot_id slot)
{
    story_ready(story, peer, step, slot);
    story_wait(story, peer, step, slot);
}

void story_step_end(struct story *story, uint32_t peer, uint64_t step)
{
    struct up_message message = {.kind = UP_END, .u.end = {.step = step}};
    story_say(story, peer, &message);
}

void story_layout(struct story *story, uint32_t peer, uint32_t module, const uint32_t *words,
                  uint32_t count)
{
    uint32_t first = 0;
    do {
        struct up_message message = {.kind = UP_LAYOUT_PART};
        struct layout_part *part = &message.u.layout_part;
        part->module = module;
        part->total = count;
        part->first = first;
        part->count = count - first < LOCKSTEP_LAYOUT_PART ? count - first : LOCKSTEP_LAYOUT_PART;
        memcpy(part->words, words + first, part->count * sizeof(words[0]));
        first += part->count;
        story_say(story, peer, &message);
    } while (first < count);
}

void story_fail(struct story *story, uint32_t peer, uint64_t step, enum halt_kind kind,
                const char *text)
{
    struct up_message message = {.kind = UP_FAIL, .u.fail = {.step = step, .kind = kind}};
    snprintf(message.u.fail.text, sizeof(message.u.fail.text), "%s", text);
    story_say(story, peer, &message);
}

void story_lost(struct story *story, uint32_t peer, uint32_t rank, uint64_t step, bool left)
{
    struct up_message message = {
        .kind = UP_LOST,
        .u.lost = {.rank = rank, .step = step, .left = left, .text = "connection reset by peer"},
    };
    story_say(story, peer, &message);
}

void story_leave(struct story *story, uint32_t peer, uint64_t settled)
{
    struct up_message message = {.kind = UP_LEAVE, .u.leave = {.settled = settled}};
    story_say(story, peer, &message);
}

void story_close(struct story *story, uint32_t peer, const char *text)
{
    struct coordinator_event event = {
        .kind = EVENT_CLOSED, .peer = peer, .text = text, .proven = true};
    story_write(story, "%" PRIu32 " broke\n", peer);
    story->known[peer] = false;
    story_step(story, &event);
}

void story_cut(struct story *story, uint32_t peer)
{
    struct coordinator_event event = {.kind = EVENT_CLOSED, .peer = peer};
    story_write(story, "%" PRIu32 " is cut\n", peer);
    story->known[peer] = false;
    story_step(story, &event);
}

void story_probed(struct story *story, uint32_t peer, bool reached, bool refused)
{
    struct coordinator_event event = {
        .kind = EVENT_PROBED, .peer = peer, .reached = reached, .refused = refused};
    story_step(story, &event);
}

void story_drain(struct story *story)
{
    struct coordinator_event event = {.kind = EVENT_DRAIN};
    story_write(story, "drain\n");
    story_step(story, &event);
}

void story_absent(struct story *story, const char *job, const char *text)
{
    struct coordinator_event event = {.kind = EVENT_ABSENT, .job = job, .text = text};
    story_write(story, "absent in %s\n", job);
    story_step(story, &event);
}

void story_stopping(struct story *story, const char *signal_name)
{
    struct coordinator_event event = {.kind = EVENT_STOPPING, .text = signal_name};
    story_write(story, "stopping %s\n", signal_name);
    story_step(story, &event);
}

void story_ask(struct story *story, const char *job, uint32_t rank, uint32_t what)
{
    struct coordinator_event event = {.kind = EVENT_ASK, .job = job, .rank = rank, .what = what};
    story_write(story, "ask %s rank %" PRIu32 "\n", job, rank);
    story_step(story, &event);
}

void story_sleep(struct story *story, uint64_t ms)
{
    const uint64_t until = story->now_ms + ms;
    while (coordinator_deadline(story->core) <= until) {
        struct coordinator_event event = {.kind = EVENT_TICK};
        if (coordinator_deadline(story->core) > story->now_ms)
            story->now_ms = coordinator_deadline(story->core);
        story_write(story, "-- %" PRIu64 " ms\n", story->now_ms - 1000);
        story_step(story, &event);
    }
    story->now_ms = until;
}

struct job_view story_job(const struct story *story, uint32_t index)
{
    struct job_view view;
    assert_true(coordinator_job_view(story->core, index, &view));
    return view;
}

struct worker_view story_worker(const struct story *story, uint32_t job, uint32_t index)
{
    struct worker_view view;
    assert_true(coordinator_worker_view(story->core, job, index, story->now_ms, &view));
    return view;
}
