// SPDX-License-Identifier: Apache-2.0
//
// libcuda-fake.so: events. An event is done when its stream has done all operations that were
// queued when the event was last recorded. A wait refers to the latest record at the time of the
// call.
#include "tests/fake_gpu/driver.h"

struct event *event_of_locked(const void *handle)
{
    uint32_t index, life;
    if (!handle_read(handle, HANDLE_EVENT, &index, &life) || index >= EVENTS_MAX)
        return NULL;
    struct event *event = &driver.events[index];
    return event->alive && (event->life & 0xffffff) == life ? event : NULL;
}

// The begin of calls that name an event. Fails if the event's context has an error.
static int enter_event(const char *name, const void *handle, struct event **event)
{
    const int result = call_enter(name);
    *event = event_of_locked(handle);
    if (result)
        return result;
    if (!*event) {
        complain_locked("%s: there is no event %p", name, handle);
        return CUDA_INVALID_HANDLE;
    }
    return (*event)->context->error;
}

EXPORTED int cuEventCreate(void **handle, unsigned flags);
int cuEventCreate(void **handle, unsigned flags)
{
    struct context *context;
    int result = call_enter_context("cuEventCreate", &context);
    uint32_t index = driver.event_next;
    uint32_t tried = 0;
    while (driver.events[index].alive && ++tried < EVENTS_MAX)
        index = (index + 1) % EVENTS_MAX;
    if (!result && flags > (CUDA_EVENT_BLOCKING_SYNC | CUDA_EVENT_DISABLE_TIMING))
        result = CUDA_INVALID_VALUE;
    if (!result && tried == EVENTS_MAX)
        result = CUDA_OUT_OF_MEMORY;
    if (!result) {
        struct event *event = &driver.events[index];
        *event = (struct event){
            .alive = true, .life = event->life + 1, .flags = flags, .context = context};
        driver.event_next = (index + 1) % EVENTS_MAX;
        *handle = handle_make(HANDLE_EVENT, index, event->life);
    }
    return call_leave(result);
}

EXPORTED int cuEventDestroy_v2(void *handle);
int cuEventDestroy_v2(void *handle)
{
    struct event *event;
    const int result = enter_event("cuEventDestroy", handle, &event);
    if (event)
        event->alive = false; // Operations that already wait for the event go on waiting.
    return call_leave(result);
}

EXPORTED int cuEventRecord(void *handle, void *stream_handle);
int cuEventRecord(void *handle, void *stream_handle)
{
    struct stream *stream;
    int result = call_enter_stream("cuEventRecord", stream_handle, &stream);
    struct event *event = event_of_locked(handle);
    if (!result && event && event->context != stream->context &&
        event->context->device == stream->context->device)
        return call_leave(CUDA_INVALID_HANDLE);
    if (!result && (!event || event->context != stream->context)) {
        complain_locked("cuEventRecord: %s",
                        event ? "the event belongs to another context than the stream"
                              : "there is no such event");
        result = CUDA_INVALID_HANDLE;
    }
    if (!result)
        event->captured = stream->captured;
    if (!result && !event->captured) {
        const struct operation operation = {
            .kind = OPERATION_RECORD,
            .record = {.event = (uint32_t)(event - driver.events), .record = event->record + 1},
        };
        event->record++;
        event->time_ns = 0;
        result = stream_push_locked(stream, &operation);
        event->stream = stream;
        event->position = stream->queued;
    }
    return call_leave(result);
}

EXPORTED int cuStreamWaitEvent(void *stream_handle, void *handle, unsigned flags);
int cuStreamWaitEvent(void *stream_handle, void *handle, unsigned flags)
{
    struct stream *stream;
    int result = call_enter_stream("cuStreamWaitEvent", stream_handle, &stream);
    struct event *event = event_of_locked(handle);
    if (!result && (!event || flags)) {
        complain_locked("cuStreamWaitEvent: %s", event ? "flags" : "there is no such event");
        result = event ? CUDA_INVALID_VALUE : CUDA_INVALID_HANDLE;
    }
    if (!result && event->stream) {
        const struct operation operation = {
            .kind = OPERATION_WAIT,
            .wait = {.stream = event->stream, .position = event->position},
        };
        result = stream_push_locked(stream, &operation);
    }
    return call_leave(result);
}

static bool event_done(const struct event *event)
{
    return !event->stream || event->stream->done >= event->position;
}

EXPORTED int cuEventQuery(void *handle);
int cuEventQuery(void *handle)
{
    struct event *event;
    int result = enter_event("cuEventQuery", handle, &event);
    if (!result && event->captured)
        return call_leave(CUDA_CAPTURED_EVENT);
    if (!result && !event_done(event)) {
        stream_want_locked(event->stream, event->position);
        result = CUDA_NOT_READY;
    }
    return call_leave(result);
}

EXPORTED int cuEventSynchronize(void *handle);
int cuEventSynchronize(void *handle)
{
    struct event *event;
    int result = enter_event("cuEventSynchronize", handle, &event);
    if (!result && event->stream)
        result = stream_wait_locked(event->stream, event->position, event->context);
    return call_leave(result);
}

EXPORTED int cuEventElapsedTime(float *milliseconds, void *start_handle, void *end_handle);
int cuEventElapsedTime(float *milliseconds, void *start_handle, void *end_handle)
{
    struct event *start;
    int result = enter_event("cuEventElapsedTime", start_handle, &start);
    const struct event *end = event_of_locked(end_handle);
    if (!result && (!end || !start->stream || !end->stream ||
                    ((start->flags | end->flags) & CUDA_EVENT_DISABLE_TIMING)))
        result = CUDA_INVALID_HANDLE;
    if (!result && (!event_done(start) || !event_done(end)))
        result = CUDA_NOT_READY;
    if (!result)
        *milliseconds = (float)((double)(int64_t)(end->time_ns - start->time_ns) / 1e6);
    return call_leave(result);
}
