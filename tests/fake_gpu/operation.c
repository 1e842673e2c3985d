// SPDX-License-Identifier: Apache-2.0
//
// libcuda-fake.so: runs the operations of streams. Runs on the stream's thread, with the mutex
// locked except during the work itself. The operations of a broken context are dropped: nothing is
// copied and no host function is called.
#include "tests/fake_gpu/driver.h"

#include <string.h>
#include <time.h>

#include "base/clock.h"

// ---- kernels ------------------------------------------------------------------------------------

// The kernel that runs on this thread. It may access the memory of `context`; any other access
// jumps to `end`.
static _Thread_local struct {
    struct context *context;
    const char *name;
    jmp_buf end;
} kernel;

// Translates a device address to a host address. If the kernel may not access that memory, the
// kernel ends at once and the context is broken, as on a device.
static void *reach(const void *address, uint64_t bytes)
{
    mutex_lock(&driver.mutex);
    void *bytes_at =
        memory_view_locked(kernel.context, (uintptr_t)address, bytes, false, kernel.name);
    if (!bytes_at)
        context_break_locked(kernel.context, CUDA_ILLEGAL_ADDRESS);
    mutex_unlock(&driver.mutex);
    if (!bytes_at)
        longjmp(kernel.end, 1);
    return bytes_at;
}

static void run_kernel(struct stream *stream, const struct operation *operation)
{
    const struct device_reference *reference = operation->kernel.reference;
    kernel.context = stream->context;
    kernel.name = reference->name;
    mutex_unlock(&driver.mutex);
    if (setjmp(kernel.end) == 0)
        reference->run(operation->kernel.parameters, reach);
    mutex_lock(&driver.mutex);
}

// ---- copies -------------------------------------------------------------------------------------

// Checks both sides again, because an allocation may have been freed since the call.
static void run_copy(struct stream *stream, const struct operation *operation)
{
    const size_t bytes = operation->copy.bytes;
    void *to = memory_view_locked(stream->context, operation->copy.to, bytes, true, "copy to");
    const void *from =
        memory_view_locked(stream->context, operation->copy.from, bytes, true, "copy from");
    if (!to || !from) {
        context_break_locked(stream->context, CUDA_ILLEGAL_ADDRESS);
        return;
    }
    mutex_unlock(&driver.mutex);
    memmove(to, from, bytes);
    mutex_lock(&driver.mutex);
}

static void run_set(struct stream *stream, const struct operation *operation)
{
    const size_t bytes = operation->set.count * operation->set.width;
    unsigned char *to =
        memory_view_locked(stream->context, operation->set.address, bytes, false, "memset");
    if (!to) {
        context_break_locked(stream->context, CUDA_ILLEGAL_ADDRESS);
        return;
    }
    mutex_unlock(&driver.mutex);
    for (size_t i = 0; i < bytes; i += operation->set.width)
        memcpy(to + i, &operation->set.value, operation->set.width);
    mutex_lock(&driver.mutex);
}

// ---- words --------------------------------------------------------------------------------------

static bool value_reached(uint32_t now, uint32_t value, unsigned flags)
{
    return flags == CUDA_WAIT_VALUE_EQUAL ? now == value : (int32_t)(now - value) >= 0;
}

static void run_value(struct stream *stream, const struct operation *operation)
{
    const struct timespec pause = {.tv_nsec = 50000};
    const uint32_t value = operation->value.value;
    uint32_t *word = memory_view_locked(stream->context, operation->value.address, sizeof(*word),
                                        false, "a word of a stream");
    if (!word) {
        context_break_locked(stream->context, CUDA_ILLEGAL_ADDRESS);
        return;
    }
    if (operation->kind == OPERATION_WRITE_VALUE) {
        __atomic_store_n(word, value, __ATOMIC_RELEASE);
        return;
    }
    while (!value_reached(__atomic_load_n(word, __ATOMIC_ACQUIRE), value, operation->value.flags) &&
           !stream_broken_locked(stream)) {
        mutex_unlock(&driver.mutex);
        nanosleep(&pause, NULL);
        mutex_lock(&driver.mutex);
    }
}

// ---- the others ---------------------------------------------------------------------------------

static void run_host(const struct operation *operation)
{
    mutex_unlock(&driver.mutex);
    inside_host_function = true;
    operation->host.function(operation->host.argument);
    inside_host_function = false;
    mutex_lock(&driver.mutex);
}

static void run_record(const struct operation *operation)
{
    struct event *event = &driver.events[operation->record.event];
    if (event->record == operation->record.record)
        event->time_ns = clock_now_ns();
}

static void run_wait(const struct stream *stream, const struct operation *operation)
{
    struct stream *other = operation->wait.stream;
    stream_want_locked(other, operation->wait.position);
    while (other->done < operation->wait.position && !stream_broken_locked(stream))
        cond_wait(&driver.progress, &driver.mutex);
}

static void run_call(const struct operation *operation, bool dropped)
{
    mutex_unlock(&driver.mutex);
    operation->call.run(operation->call.argument, dropped);
    mutex_lock(&driver.mutex);
}

void operation_run(struct stream *stream, struct operation *operation)
{
    const bool dropped = stream_broken_locked(stream);
    if (operation->kind == OPERATION_CALL) {
        run_call(operation, dropped);
        return;
    }
    if (dropped)
        return;
    switch (operation->kind) {
    case OPERATION_KERNEL:
        run_kernel(stream, operation);
        break;
    case OPERATION_COPY:
        run_copy(stream, operation);
        break;
    case OPERATION_SET:
        run_set(stream, operation);
        break;
    case OPERATION_HOST:
        run_host(operation);
        break;
    case OPERATION_RECORD:
        run_record(operation);
        break;
    case OPERATION_WAIT:
        run_wait(stream, operation);
        break;
    case OPERATION_WAIT_VALUE:
    case OPERATION_WRITE_VALUE:
        run_value(stream, operation);
        break;
    case OPERATION_CALL:
        break;
    }
}
