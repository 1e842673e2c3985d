// SPDX-License-Identifier: Apache-2.0
//
// Messages of four workers to one coordinator, in any order. The coordinator's core must accept
// every message that decodes. An input is a list of records: a byte that says which worker (above
// 0xf0: its stream ends, or time passes), two bytes of length, and that many bytes of a message.

#include "coordinator/coordinator.h"
#include "coordinator/stall_view.h"
#include "coordinator/view.h"
#include "protos/codec/codec.h"
#include "protos/codec/down.h"
#include "protos/codec/up.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static bool closed[8];

// Checks that the core sends only messages that can be encoded, and only to open streams.
static void core_action(void *context, const struct coordinator_action *action)
{
    static uint8_t encoded[LOCKSTEP_MESSAGE_BYTES];
    size_t size = 0;
    (void)context;
    if (action->kind == ACTION_LOG || action->kind == ACTION_PROBE)
        return;
    FUZZ_CHECK(action->peer >= 1 && action->peer < 8 && !closed[action->peer]);
    if (action->kind == ACTION_CLOSE)
        closed[action->peer] = true;
    else
        FUZZ_CHECK(codec_encode_down(action->message, encoded, sizeof(encoded), &size) == CODEC_OK);
}

static void core_views(const struct coordinator *core, uint64_t now_ms)
{
    static struct job_view job;
    static struct worker_view worker;
    static struct stall_view stall;
    for (uint32_t i = 0; i < coordinator_job_count(core); i++) {
        FUZZ_CHECK(coordinator_job_view(core, i, &job));
        (void)coordinator_worker_view(core, i, 0, now_ms, &worker);
        (void)coordinator_stall_view(core, i, 0, now_ms, &stall);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static void *memory;
    static struct up_message message;
    const struct coordinator_config config = {.incarnation = 0xc0};
    const struct coordinator_sink sink = {core_action, NULL};
    uint64_t now_ms = 1000;
    if (!memory)
        memory = malloc(coordinator_bytes());
    FUZZ_CHECK(memory != NULL);
    struct coordinator *core = coordinator_init(memory, &config);
    memset(closed, 0, sizeof(closed));
    while (size >= 3) {
        const uint8_t who = bytes[0];
        size_t length = (size_t)bytes[1] << 8 | bytes[2];
        struct coordinator_event event = {.peer = 1 + who % 4};
        bytes += 3;
        size -= 3;
        if (length > size)
            length = size;
        now_ms += who >= 0xf8 ? 700 : 1;
        event.kind = who >= 0xf8 ? EVENT_TICK : who >= 0xf0 ? EVENT_CLOSED : EVENT_MESSAGE;
        event.message = &message;
        if (!closed[event.peer] && (event.kind != EVENT_MESSAGE ||
                                    codec_decode_up(bytes, length, &message, NULL) == CODEC_OK))
            coordinator_step(core, &event, now_ms, sink);
        if (event.kind == EVENT_CLOSED)
            closed[event.peer] = true;
        bytes += length;
        size -= length;
    }
    core_views(core, now_ms);
    return 0;
}
