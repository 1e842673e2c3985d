// SPDX-License-Identifier: Apache-2.0
//
// libcuda-fake.so: streams. A stream is a queue and a thread, which runs the queued operations one
// after the other, with the delays of the settings, asynchronously to the host. operation.c
// implements the operations. A position is the number of an operation in its stream; an event is a
// stream and a position.
#include "tests/fake_gpu/driver.h"

#include "base/clock.h"
#include "tests/fake_gpu/hooks.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static _Thread_local void *per_thread_streams[DEVICES_MAX]; // handles
_Thread_local const struct stream *stream_of_thread;

// ---- waiting ------------------------------------------------------------------------------------

bool stream_ended_locked(const struct stream *stream)
{
    return stream->context->retained == 0 || stream->context->life != stream->context_life;
}

bool stream_broken_locked(const struct stream *stream)
{
    return stream->context->error || stream->context->life != stream->context_life;
}

void stream_want_locked(struct stream *stream, uint64_t position)
{
    if (stream->wanted >= position)
        return;
    stream->wanted = position;
    cond_signal(&stream->work);
}

int stream_wait_locked(struct stream *stream, uint64_t position, const struct context *context)
{
    stream_want_locked(stream, position);
    while (stream->done < position && !context->error)
        cond_wait(&driver.progress, &driver.mutex);
    return context->error;
}

int context_wait_locked(struct context *context)
{
    for (size_t i = 0; i < STREAMS_MAX; i++) {
        struct stream *stream = driver.streams[i];
        if (stream && stream->context == context && stream->context_life == context->life)
            stream_wait_locked(stream, stream->queued, context);
    }
    return context->error;
}

int context_wait_perhaps_locked(struct context *context)
{
    return driver.weather.sync ? context_wait_locked(context) : context->error;
}

// ---- the thread ---------------------------------------------------------------------------------

// A random number that depends only on the seed, device, stream and position, not on the timing of
// threads.
static uint64_t draw(const struct stream *stream)
{
    uint64_t x = driver.weather.seed * 0x9e3779b97f4a7c15u;
    x ^= (uint64_t)stream->context->device << 40 ^ (uint64_t)stream->ordinal << 32 ^
         (stream->done - stream->born);
    for (int i = 0; i < 2; i++) {
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        x ^= x >> 31;
    }
    return x;
}

static uint64_t delay_us(const struct stream *stream)
{
    const struct weather *weather = &driver.weather;
    const uint64_t width = weather->delay_high_us - weather->delay_low_us;
    const uint64_t drawn = width ? draw(stream) % (width + 1) : 0;
    return weather->delay_low_us + drawn + (stream->urgent ? weather->urgent_us : 0);
}

static void sleep_unlocked(uint64_t us)
{
    const struct timespec time = {.tv_sec = (time_t)(us / 1000000),
                                  .tv_nsec = (long)(us % 1000000 * 1000)};
    mutex_unlock(&driver.mutex);
    nanosleep(&time, NULL);
    mutex_lock(&driver.mutex);
}

// With FAKE_CUDA_LAZY_US, delays an operation until a thread waits for it, at most for that time.
static void wait_until_wanted(struct stream *stream, const struct operation *operation)
{
    const uint64_t lazy_us = driver.weather.lazy_us;
    const uint64_t begin_ms = (operation->queued_us + lazy_us) / 1000 + 1;
    while (lazy_us && stream->wanted <= stream->done && !stream_broken_locked(stream))
        if (!cond_wait_until(&stream->work, &driver.mutex, begin_ms))
            return;
}

static const char *family_of(const struct operation *operation)
{
    static const char *const families[] = {
        [OPERATION_KERNEL] = "kernel",    [OPERATION_COPY] = "copy",
        [OPERATION_SET] = "set",          [OPERATION_HOST] = "host",
        [OPERATION_RECORD] = "record",    [OPERATION_WAIT] = "wait",
        [OPERATION_WAIT_VALUE] = "value", [OPERATION_WRITE_VALUE] = "value",
        [OPERATION_CALL] = "nccl",
    };
    return families[operation->kind];
}

static void strike(struct stream *stream, const struct operation *operation)
{
    struct faults *faults = &driver.weather.faults;
    const int device = stream->context->device;
    const int every = faults_strike(faults, "op", device);
    const int family = faults_strike(faults, family_of(operation), device);
    const int named = operation->name ? faults_strike(faults, operation->name, device) : 0;
    const int code = every ? every : family ? family : named;
    if (code > 0 && !stream_broken_locked(stream))
        context_break_locked(stream->context, code);
    while (code == FAULT_HANG && !stream_broken_locked(stream))
        cond_wait(&driver.progress, &driver.mutex);
}

// Applies all delays and faults of the settings before an operation.
static void stream_weather(struct stream *stream, const struct operation *operation)
{
    wait_until_wanted(stream, operation);
    const uint64_t late = delay_us(stream);
    if (late && !stream_broken_locked(stream))
        sleep_unlocked(late);
    while (stream->context->held && !stream_broken_locked(stream))
        cond_wait(&driver.progress, &driver.mutex);
    if (!stream_broken_locked(stream))
        strike(stream, operation);
    if (operation->kind == OPERATION_KERNEL && driver.weather.kernel_us &&
        !stream_broken_locked(stream))
        sleep_unlocked(driver.weather.kernel_us);
}

static void stream_thread(void *argument)
{
    struct stream *stream = argument;
    stream_of_thread = stream;
    mutex_lock(&driver.mutex);
    for (;;) {
        while (stream->done == stream->queued && stream->alive)
            cond_wait(&stream->work, &driver.mutex);
        if (stream->done == stream->queued)
            break;
        struct operation *operation = &stream->queue[stream->done % QUEUE_OPERATIONS];
        stream_weather(stream, operation);
        operation_run(stream, operation);
        stream->done++;
        cond_broadcast(&driver.progress);
    }
    stream->running = false;
    mutex_unlock(&driver.mutex);
}

// ---- making and ending --------------------------------------------------------------------------

// Returns an unused stream, or allocates one; NULL: out of memory, or STREAMS_MAX are in use.
static struct stream *stream_free_locked(void)
{
    for (uint32_t i = 0; i < STREAMS_MAX; i++) {
        struct stream *stream = driver.streams[i];
        if (stream && !stream->alive && !stream->running)
            return stream;
        if (stream)
            continue;
        stream = calloc(1, sizeof(*stream));
        if (stream)
            stream->queue = calloc(QUEUE_OPERATIONS, sizeof(*stream->queue));
        if (!stream || !stream->queue)
            return NULL;
        cond_init(&stream->work);
        stream->index = i;
        driver.streams[i] = stream;
        return stream;
    }
    return NULL;
}

int stream_open_locked(struct context *context, bool blocking, bool urgent, struct stream **opened)
{
    struct stream *stream = stream_free_locked();
    if (!stream)
        return CUDA_OUT_OF_MEMORY;
    stream->life++;
    stream->context = context;
    stream->context_life = context->life;
    stream->blocking = blocking;
    stream->urgent = urgent;
    stream->ordinal = ++context->streams_made;
    stream->born = stream->queued;
    stream->alive = stream->running = true;
    if (thread_start(&stream->thread, "fake-stream", stream_thread, stream)) {
        stream->alive = stream->running = false;
        return CUDA_OUT_OF_MEMORY;
    }
    // The thread is detached, so that an operation that hangs does not keep the process from
    // ending.
    pthread_detach(stream->thread.id);
    *opened = stream;
    return 0;
}

// Queued operations still run.
void stream_close_locked(struct stream *stream)
{
    stream->alive = false;
    stream_want_locked(stream, stream->queued);
    cond_signal(&stream->work);
}

// ---- handles ------------------------------------------------------------------------------------

static struct stream *stream_handle_locked(const void *handle)
{
    uint32_t index, life;
    if (!handle_read(handle, HANDLE_STREAM, &index, &life) || index >= STREAMS_MAX)
        return NULL;
    struct stream *stream = driver.streams[index];
    return stream && stream->alive && stream->life == life ? stream : NULL;
}

// Makes a default stream. A program cannot destroy it, and streams_made does not count it.
static struct stream *stream_of_driver_locked(struct context *context, bool blocking)
{
    struct stream *stream = NULL;
    if (!context || stream_open_locked(context, blocking, false, &stream))
        return NULL;
    context->streams_made--;
    stream->ordinal = 0;
    return stream;
}

static struct stream *stream_per_thread_locked(struct context *context)
{
    void **handle = &per_thread_streams[context->device];
    struct stream *stream = stream_handle_locked(*handle);
    if (stream)
        return stream;
    stream = stream_of_driver_locked(context, true);
    *handle = stream ? handle_make(HANDLE_STREAM, stream->index, stream->life) : NULL;
    return stream;
}

struct stream *stream_of_locked(const void *handle, struct context *current)
{
    if (handle && handle != CUDA_STREAM_LEGACY && handle != CUDA_STREAM_PER_THREAD)
        return stream_handle_locked(handle);
    if (!current)
        return NULL;
    if (handle == CUDA_STREAM_PER_THREAD)
        return stream_per_thread_locked(current);
    if (!current->legacy)
        current->legacy = stream_of_driver_locked(current, false);
    return current->legacy;
}

// ---- queueing -----------------------------------------------------------------------------------

static int push_locked(struct stream *stream, const struct operation *operation)
{
    while (stream->queued - stream->done == QUEUE_OPERATIONS && !stream->context->error) {
        stream_want_locked(stream, stream->done + 1);
        cond_wait(&driver.progress, &driver.mutex);
    }
    if (stream->context->error)
        return stream->context->error;
    struct operation *place = &stream->queue[stream->queued % QUEUE_OPERATIONS];
    *place = *operation;
    place->queued_us = clock_now_us();
    stream->queued++;
    // A thread that does not query the stream may wait for this host function.
    if (operation->kind == OPERATION_HOST)
        stream_want_locked(stream, stream->queued);
    cond_signal(&stream->work);
    return 0;
}

static int push_wait_locked(struct stream *stream, struct stream *other)
{
    if (other == stream || other->done == other->queued)
        return 0;
    const struct operation wait = {
        .kind = OPERATION_WAIT,
        .wait = {.stream = other, .position = other->queued},
    };
    return push_locked(stream, &wait);
}

// The legacy stream waits for all blocking streams, and blocking streams wait for the legacy one.
int stream_push_locked(struct stream *stream, const struct operation *operation)
{
    struct context *context = stream->context;
    if (stream == context->legacy) {
        for (size_t i = 0; i < STREAMS_MAX; i++) {
            struct stream *other = driver.streams[i];
            if (other && other->alive && other->blocking && other->context == context)
                push_wait_locked(stream, other);
        }
    } else if (stream->blocking && context->legacy) {
        push_wait_locked(stream, context->legacy);
    }
    return push_locked(stream, operation);
}

// ---- functions of streams -----------------------------------------------------------------------

EXPORTED int cuStreamCreateWithPriority(void **handle, unsigned flags, int priority);
int cuStreamCreateWithPriority(void **handle, unsigned flags, int priority)
{
    struct context *context;
    struct stream *stream;
    int result = call_enter_context("cuStreamCreateWithPriority", &context);
    if (!result && flags > CUDA_STREAM_NON_BLOCKING)
        result = CUDA_INVALID_VALUE;
    if (!result)
        result =
            stream_open_locked(context, flags != CUDA_STREAM_NON_BLOCKING, priority < 0, &stream);
    if (!result)
        *handle = handle_make(HANDLE_STREAM, stream->index, stream->life);
    return call_leave(result);
}

EXPORTED int cuStreamCreate(void **handle, unsigned flags);
int cuStreamCreate(void **handle, unsigned flags)
{
    return cuStreamCreateWithPriority(handle, flags, 0);
}

EXPORTED int cuStreamDestroy_v2(void *handle);
int cuStreamDestroy_v2(void *handle)
{
    struct stream *stream;
    const int result = call_enter_stream("cuStreamDestroy", handle, &stream);
    if (stream && stream->ordinal == 0) {
        complain_locked("cuStreamDestroy: the driver's own stream is nobody's to destroy");
        return call_leave(CUDA_INVALID_HANDLE);
    }
    if (stream)
        stream_close_locked(stream);
    return call_leave(result);
}

EXPORTED int cuStreamQuery(void *handle);
int cuStreamQuery(void *handle)
{
    struct stream *stream;
    int result = call_enter_stream("cuStreamQuery", handle, &stream);
    if (!result) {
        stream_want_locked(stream, stream->queued);
        result = stream->done == stream->queued ? 0 : CUDA_NOT_READY;
    }
    return call_leave(result);
}

EXPORTED int cuStreamGetCtx(void *handle, void **context);
int cuStreamGetCtx(void *handle, void **context)
{
    struct stream *stream;
    const int result = call_enter_stream("cuStreamGetCtx", handle, &stream);
    if (!result)
        *context = context_handle_locked(stream->context);
    return call_leave(result);
}

EXPORTED int cuStreamIsCapturing(void *handle, int *status);
int cuStreamIsCapturing(void *handle, int *status)
{
    struct stream *stream;
    const int result = call_enter_stream("cuStreamIsCapturing", handle, &stream);
    if (!result)
        *status = stream->captured;
    return call_leave(result);
}

EXPORTED int cuStreamSynchronize(void *handle);
int cuStreamSynchronize(void *handle)
{
    struct stream *stream;
    int result = call_enter_stream("cuStreamSynchronize", handle, &stream);
    if (!result)
        result = stream_wait_locked(stream, stream->queued, stream->context);
    return call_leave(result);
}

EXPORTED int cuCtxSynchronize(void);
int cuCtxSynchronize(void)
{
    struct context *context;
    const int result = call_enter_context("cuCtxSynchronize", &context);
    return call_leave(result ? result : context_wait_locked(context));
}

EXPORTED int cuLaunchHostFunc(void *handle, void (*function)(void *argument), void *argument);
int cuLaunchHostFunc(void *handle, void (*function)(void *argument), void *argument)
{
    struct stream *stream;
    int result = call_enter_stream("cuLaunchHostFunc", handle, &stream);
    const struct operation operation = {
        .kind = OPERATION_HOST,
        .host = {.function = function, .argument = argument},
    };
    if (!result)
        result = stream_push_locked(stream, &operation);
    return call_leave(result);
}

static int push_value(const char *name, enum operation_kind kind, void *handle, uint64_t address,
                      uint32_t value, unsigned flags)
{
    struct stream *stream;
    int result = call_enter_stream(name, handle, &stream);
    const struct operation operation = {
        .kind = kind,
        .value = {.address = address, .value = value, .flags = flags},
    };
    if (!result && (address % 4 != 0 || flags > CUDA_WAIT_VALUE_EQUAL))
        result = CUDA_INVALID_VALUE;
    if (!result && !memory_view_locked(stream->context, address, sizeof(value), false, name))
        result = CUDA_INVALID_VALUE;
    if (!result)
        result = stream_push_locked(stream, &operation);
    return call_leave(result);
}

EXPORTED int cuStreamWaitValue32_v2(void *stream, uint64_t address, uint32_t value, unsigned flags);
int cuStreamWaitValue32_v2(void *stream, uint64_t address, uint32_t value, unsigned flags)
{
    return push_value("cuStreamWaitValue32", OPERATION_WAIT_VALUE, stream, address, value, flags);
}

EXPORTED int cuStreamWriteValue32_v2(void *stream, uint64_t address, uint32_t value,
                                     unsigned flags);
int cuStreamWriteValue32_v2(void *stream, uint64_t address, uint32_t value, unsigned flags)
{
    return push_value("cuStreamWriteValue32", OPERATION_WRITE_VALUE, stream, address, value, flags);
}

// ---- hooks of libnccl-fake.so -------------------------------------------------------------------

EXPORTED int fake_cuda_stream_device(const void *handle, int device);
int fake_cuda_stream_device(const void *handle, int device)
{
    mutex_lock(&driver.mutex);
    const struct stream *stream = stream_of_locked(handle, &driver.contexts[device]);
    device = stream ? stream->context->device : -1;
    mutex_unlock(&driver.mutex);
    return device;
}

EXPORTED int fake_cuda_call(const void *handle, int device, const char *name,
                            void (*run)(void *argument, bool dropped), void *argument);
int fake_cuda_call(const void *handle, int device, const char *name,
                   void (*run)(void *argument, bool dropped), void *argument)
{
    mutex_lock(&driver.mutex);
    struct stream *stream = stream_of_locked(handle, &driver.contexts[device]);
    const struct operation operation = {
        .kind = OPERATION_CALL,
        .name = name,
        .call = {.run = run, .argument = argument},
    };
    const int result = stream ? stream_push_locked(stream, &operation) : CUDA_INVALID_HANDLE;
    mutex_unlock(&driver.mutex);
    return result;
}
