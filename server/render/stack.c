// SPDX-License-Identifier: Apache-2.0
//
// The threads of one rank as JSON. See render.h.

#include "server/render/stack.h"

#include "server/render/names.h"
#include "server/render/render.h"

#include <inttypes.h>
#include <stdio.h>

static void render_frame(struct json *json, const struct stack_frame *frame)
{
    json_object_begin(json, NULL);
    if (frame->python) {
        json_string(json, "file", frame->object);
        json_u64(json, "line", frame->offset);
        json_string(json, "function", frame->symbol);
        json_bool(json, "library", frame->library);
    } else {
        char offset[24];
        snprintf(offset, sizeof(offset), "0x%" PRIx64, frame->offset);
        json_string(json, "module", frame->object);
        json_string(json, "offset", offset);
        json_string(json, "symbol", frame->symbol[0] ? frame->symbol : NULL);
        json_bool(json, "guessed", frame->guessed);
    }
    json_object_end(json);
}

static void render_frames(struct json *json, const struct archived *archived, uint32_t thread,
                          bool python)
{
    const struct stack_frame *frames = archived->frames.items;
    json_array_begin(json, python ? "python" : "native");
    for (uint32_t i = 0; i < archived->frames.count; i++) {
        if (frames[i].thread == thread && frames[i].python == python)
            render_frame(json, &frames[i]);
    }
    json_array_end(json);
}

static void render_thread(struct json *json, const struct archived *archived, uint32_t index)
{
    const struct stack_thread *thread =
        (const struct stack_thread *)archived->threads.items + index;
    const char state[2] = {thread->state, '\0'};
    json_object_begin(json, NULL);
    json_u64(json, "tid", thread->tid);
    json_string(json, "name", thread->name);
    json_string(json, "state", thread->state ? state : NULL);
    json_i64(json, "syscall", thread->syscall);
    json_string(json, "wchan", thread->wchan[0] ? thread->wchan : NULL);
    json_bool(json, "trainer", thread->trainer);
    json_bool(json, "other", thread->other);
    json_bool(json, "own", thread->own);
    json_string(json, "how", name_how(thread->how));
    json_string(json, "awaits", name_awaits(thread->awaits));
    json_u64(json, "owner", thread->owner);
    json_string(json, "owner_name", thread->owner ? thread->owner_name : NULL);
    render_frames(json, archived, index, true);
    render_frames(json, archived, index, false);
    json_object_end(json);
}

void render_stack(struct json *json, const struct archived *archived, uint64_t now_ms, bool fresh)
{
    json_object_begin(json, NULL);
    json_string(json, "job", archived->who.job);
    json_u64(json, "generation", archived->who.generation);
    json_u64(json, "rank", archived->who.rank);
    json_string(json, "host", archived->who.host);
    json_u64(json, "pid", archived->who.pid);
    json_u64(json, "age_ms", now_ms - archived->stacks_ms);
    json_bool(json, "fresh", fresh);
    json_string(json, "phase", archived->place.phase[0] ? archived->place.phase : NULL);
    json_string(json, "doing", archived->place.doing[0] ? archived->place.doing : NULL);
    json_array_begin(json, "threads");
    for (uint32_t i = 0; i < archived->threads.count; i++)
        render_thread(json, archived, i);
    json_array_end(json);
    json_object_end(json);
}
