// SPDX-License-Identifier: Apache-2.0
//
// libcuda-fake.so: initialization, devices, primary contexts and errors of the fake driver; the
// begin and end of every call; and the functions for tests. It uses no hardware; see fake_gpu.h.
// Any thread.
#include "tests/fake_gpu/driver.h"

#include "tests/fake_gpu/hooks.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    NOT_PERMITTED = 800,
    CONTEXT_STACK = 16
};

struct driver driver = {.mutex = MUTEX_INITIALIZER};
_Thread_local bool inside_host_function;

// Each thread has a stack of context handles; the top one is the thread's current context.
static _Thread_local void *stack[CONTEXT_STACK];
static _Thread_local uint32_t stack_depth;
static _Thread_local int capture_mode; // enum cuda_capture_mode

// ---- settings -----------------------------------------------------------------------------------

static void weather_read(struct weather *weather)
{
    *weather = (struct weather){
        .devices = (uint32_t)setting_number("FAKE_CUDA_DEVICES", 8),
        .version = (int)setting_number("FAKE_CUDA_VERSION", 13000),
        .capability = (int)setting_number("FAKE_CUDA_CAPABILITY", 90),
        .seed = setting_number("FAKE_CUDA_SEED", 1),
        .urgent_us = setting_number("FAKE_CUDA_URGENT_US", 0),
        .lazy_us = setting_number("FAKE_CUDA_LAZY_US", 0),
        .kernel_us = setting_number("FAKE_CUDA_KERNEL_US", 0),
        .everywhere = setting_number("FAKE_CUDA_EVERYWHERE", 0) != 0,
        .sync = setting_number("FAKE_CUDA_SYNC", 1) != 0,
        .verbose = setting_number("FAKE_GPU_VERBOSE", 0) != 0,
    };
    setting_range("FAKE_CUDA_DELAY_US", &weather->delay_low_us, &weather->delay_high_us);
    faults_read(&weather->faults, "FAKE_CUDA_FAIL");
    if (weather->devices > DEVICES_MAX)
        weather->devices = DEVICES_MAX;
}

// A forked child has no stream threads, so the fake driver refuses calls there, as CUDA does.
static void driver_forked(void)
{
    mutex_init(&driver.mutex);
    driver.forked = true;
}

__attribute__((constructor)) static void driver_load(void)
{
    pthread_atfork(NULL, NULL, driver_forked);
    cond_init(&driver.progress);
    for (int i = 0; i < DEVICES_MAX; i++) {
        driver.contexts[i].device = i;
        driver.contexts[DEVICES_MAX + i].device = i;
    }
    weather_read(&driver.weather);
}

EXPORTED fake_gpu_reload_function fake_gpu_reload;
void fake_gpu_reload(void)
{
    mutex_lock(&driver.mutex);
    weather_read(&driver.weather);
    memset(driver.calls, 0, sizeof(driver.calls));
    driver.complaint[0] = '\0';
    mutex_unlock(&driver.mutex);
}

// ---- handles ------------------------------------------------------------------------------------

#define HANDLE_TAG ((uintptr_t)0xfa << 56) // No user address begins with these bits.

void *handle_make(enum handle_kind kind, uint32_t index, uint32_t life)
{
    return (void *)(HANDLE_TAG | (uintptr_t)kind << 48 | (uintptr_t)(life & 0xffffff) << 24 |
                    index);
}

bool handle_read(const void *handle, enum handle_kind kind, uint32_t *index, uint32_t *life)
{
    const uintptr_t bits = (uintptr_t)handle;
    if (bits >> 48 != (HANDLE_TAG >> 48 | (uintptr_t)kind))
        return false;
    *index = bits & 0xffffff;
    *life = bits >> 24 & 0xffffff;
    return true;
}

struct context *context_of_locked(const void *handle)
{
    uint32_t index, life;
    if (!handle_read(handle, HANDLE_CONTEXT, &index, &life) || index >= 2 * DEVICES_MAX)
        return NULL;
    struct context *context = &driver.contexts[index];
    return context->retained && context->life == life ? context : NULL;
}

void *context_handle_locked(const struct context *context)
{
    return handle_make(HANDLE_CONTEXT, (uint32_t)(context - driver.contexts), context->life);
}

// ---- how calls begin and end --------------------------------------------------------------------

void complain_locked(const char *format, ...)
{
    char text[COMPLAINT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (driver.weather.verbose)
        fprintf(stderr, "fake cuda: %s\n", text);
    if (!driver.complaint[0])
        memcpy(driver.complaint, text, sizeof(text));
}

// Length of a function's name without the suffix "_v2" of its symbol.
static size_t name_length(const char *name)
{
    const char *version = strstr(name, "_v2");
    return version ? (size_t)(version - name) : strlen(name);
}

static void count_call(const char *name)
{
    for (size_t i = 0; i < CALL_NAMES_MAX; i++) {
        struct call_count *count = &driver.calls[i];
        if (!count->name)
            count->name = name;
        if (strcmp(count->name, name) == 0) {
            count->calls++;
            return;
        }
    }
}

// True for error codes that make a context unusable.
static bool is_fatal(int code)
{
    return code == 214 || code == 220 || code == 226 || code == 700 || code == 702 ||
           (code >= 710 && code <= 719 && code != 712 && code != 713) || code == 999;
}

// Calls that CUDA counts as unsafe while another thread, or this one, captures a stream.
static bool is_unsafe(const char *name)
{
    static const char *const names[] = {
        "cuEventQuery", "cuEventSynchronize", "cuStreamQuery",  "cuStreamSynchronize",
        "cuMemAlloc",   "cuMemFree",          "cuMemHostAlloc", "cuMemFreeHost"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static struct context *current_locked(void)
{
    return stack_depth ? context_of_locked(stack[stack_depth - 1]) : NULL;
}

int call_enter(const char *name)
{
    mutex_lock(&driver.mutex);
    count_call(name);
    if (driver.forked)
        return CUDA_NOT_INITIALIZED;
    if (inside_host_function) {
        complain_locked("%s is called by a host function, which must call nothing of CUDA", name);
        return NOT_PERMITTED;
    }
    if (driver.captures > 0 && capture_mode == CUDA_CAPTURE_GLOBAL && is_unsafe(name)) {
        complain_locked("%s while a stream is being captured", name);
        return CUDA_CAPTURE_UNSUPPORTED;
    }
    struct context *current = current_locked();
    const int code = faults_strike(&driver.weather.faults, name, current ? current->device : -1);
    if (current && is_fatal(code))
        context_break_locked(current, code);
    return code;
}

static int enter_initialized(const char *name)
{
    const int result = call_enter(name);
    return result || driver.initialized ? result : CUDA_NOT_INITIALIZED;
}

int call_enter_context(const char *name, struct context **context)
{
    const int result = enter_initialized(name);
    *context = current_locked();
    if (result)
        return result;
    if (!*context) {
        complain_locked("%s: no context is current on this thread", name);
        return CUDA_INVALID_CONTEXT;
    }
    return (*context)->error;
}

int call_enter_stream(const char *name, const void *handle, struct stream **stream)
{
    const int result = enter_initialized(name);
    *stream = stream_of_locked(handle, current_locked());
    if (result)
        return result;
    if (!*stream) {
        complain_locked("%s: there is no stream %p", name, handle);
        return CUDA_INVALID_HANDLE;
    }
    return (*stream)->context->error;
}

int call_leave(int result)
{
    mutex_unlock(&driver.mutex);
    return result;
}

// ---- beginning and devices ----------------------------------------------------------------------

EXPORTED int cuInit(unsigned flags);
int cuInit(unsigned flags)
{
    int result = call_enter("cuInit");
    if (!result && flags)
        result = CUDA_INVALID_VALUE;
    if (!result && driver.weather.devices == 0)
        result = CUDA_NO_DEVICE;
    if (!result)
        driver.initialized = true;
    return call_leave(result);
}

EXPORTED int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version)
{
    const int result = call_enter("cuDriverGetVersion");
    *version = driver.weather.version;
    return call_leave(result);
}

static int enter_device(const char *name, int device)
{
    const int result = enter_initialized(name);
    if (result)
        return result;
    return device >= 0 && device < (int)driver.weather.devices ? 0 : CUDA_INVALID_DEVICE;
}

EXPORTED int cuDeviceGet(int *device, int ordinal);
int cuDeviceGet(int *device, int ordinal)
{
    const int result = enter_device("cuDeviceGet", ordinal);
    *device = ordinal;
    return call_leave(result);
}

EXPORTED int cuDeviceGetCount(int *count);
int cuDeviceGetCount(int *count)
{
    const int result = enter_initialized("cuDeviceGetCount");
    *count = (int)driver.weather.devices;
    return call_leave(result);
}

EXPORTED int cuDeviceGetName(char *name, int bytes, int device);
int cuDeviceGetName(char *name, int bytes, int device)
{
    const int result = enter_device("cuDeviceGetName", device);
    if (!result && bytes > 0)
        snprintf(name, (size_t)bytes, "Fake GPU");
    return call_leave(result);
}

EXPORTED int cuDeviceGetUuid_v2(struct cuda_uuid *uuid, int device);
int cuDeviceGetUuid_v2(struct cuda_uuid *uuid, int device)
{
    const int result = enter_device("cuDeviceGetUuid", device);
    if (!result) {
        memcpy(uuid->bytes, "fake gpu number", 16);
        uuid->bytes[15] = (unsigned char)device;
    }
    return call_leave(result);
}

EXPORTED int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    enum {
        ATTRIBUTES = 150
    };
    const int result = enter_device("cuDeviceGetAttribute", device);
    if (result || attribute <= 0 || attribute >= ATTRIBUTES)
        return call_leave(result ? result : CUDA_INVALID_VALUE);
    const struct weather *weather = &driver.weather;
    int known[ATTRIBUTES] = {
        [1] = 1024, // threads of a block
        [CUDA_DEVICE_MULTIPROCESSORS] = 4,
        [CUDA_DEVICE_PCI_BUS] = device + 1,
        [CUDA_DEVICE_COPY_ENGINES] = 2,
        [CUDA_DEVICE_UNIFIED_ADDRESSING] = 1,
        [CUDA_DEVICE_CAPABILITY_MAJOR] = weather->capability / 10,
        [CUDA_DEVICE_CAPABILITY_MINOR] = weather->capability % 10,
        [CUDA_DEVICE_PAGEABLE_ACCESS] = weather->everywhere,
        [CUDA_DEVICE_REGISTERED_SAME_ADDRESS] = 1,
    };
    *value = known[attribute];
    return call_leave(0);
}

// ---- contexts -----------------------------------------------------------------------------------

EXPORTED int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRetain(void **context, int device)
{
    const int result = enter_device("cuDevicePrimaryCtxRetain", device);
    if (!result) {
        struct context *primary = &driver.contexts[device];
        if (primary->retained++ == 0) {
            primary->life++;
            primary->error = 0;
            primary->streams_made = 0;
            primary->legacy = NULL;
        }
        *context = context_handle_locked(primary);
    }
    return call_leave(result);
}

// Ends all streams, events, modules and memory of a context whose last reference is released.
static void context_end_locked(struct context *context)
{
    context_break_locked(context, 709);
    for (size_t i = 0; i < STREAMS_MAX; i++) {
        struct stream *stream = driver.streams[i];
        if (stream && stream->alive && stream->context == context)
            stream_close_locked(stream);
    }
    for (size_t i = 0; i < EVENTS_MAX; i++)
        if (driver.events[i].context == context)
            driver.events[i].alive = false;
    for (size_t i = 0; i < MODULES_MAX; i++)
        if (driver.modules[i].context == context)
            driver.modules[i].alive = false;
    memory_drop_locked(context);
}

EXPORTED int cuDevicePrimaryCtxRelease_v2(int device);
int cuDevicePrimaryCtxRelease_v2(int device)
{
    int result = enter_device("cuDevicePrimaryCtxRelease", device);
    if (!result) {
        struct context *context = &driver.contexts[device];
        if (context->retained == 0)
            result = CUDA_INVALID_CONTEXT;
        else if (context->retained > 1)
            context->retained--;
        else {
            context_end_locked(context);
            context->retained = 0;
        }
    }
    return call_leave(result);
}

EXPORTED int cuCtxGetCurrent(void **context);
int cuCtxGetCurrent(void **context)
{
    const int result = enter_initialized("cuCtxGetCurrent");
    *context = stack_depth ? stack[stack_depth - 1] : NULL;
    return call_leave(result);
}

EXPORTED int cuCtxSetCurrent(void *context);
int cuCtxSetCurrent(void *context)
{
    int result = enter_initialized("cuCtxSetCurrent");
    if (!result && context && !context_of_locked(context))
        result = CUDA_INVALID_CONTEXT;
    if (!result && stack_depth == 0 && context)
        stack_depth = 1;
    if (!result && stack_depth > 0) {
        stack[stack_depth - 1] = context;
        stack_depth -= !context;
    }
    return call_leave(result);
}

EXPORTED int cuCtxPushCurrent_v2(void *context);
int cuCtxPushCurrent_v2(void *context)
{
    int result = enter_initialized("cuCtxPushCurrent");
    if (!result && (!context_of_locked(context) || stack_depth == CONTEXT_STACK))
        result = CUDA_INVALID_CONTEXT;
    if (!result)
        stack[stack_depth++] = context;
    return call_leave(result);
}

EXPORTED int cuCtxPopCurrent_v2(void **context);
int cuCtxPopCurrent_v2(void **context)
{
    int result = enter_initialized("cuCtxPopCurrent");
    if (!result && stack_depth == 0)
        result = CUDA_INVALID_CONTEXT;
    if (!result) {
        stack_depth--;
        if (context)
            *context = stack[stack_depth];
    }
    return call_leave(result);
}

EXPORTED int cuCtxGetDevice(int *device);
int cuCtxGetDevice(int *device)
{
    struct context *context;
    const int result = call_enter_context("cuCtxGetDevice", &context);
    if (context)
        *device = context->device;
    return call_leave(context ? 0 : result);
}

EXPORTED int cuCtxGetStreamPriorityRange(int *least, int *greatest);
int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    struct context *context;
    const int result = call_enter_context("cuCtxGetStreamPriorityRange", &context);
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return call_leave(result);
}

EXPORTED int cuThreadExchangeStreamCaptureMode(int *mode);
int cuThreadExchangeStreamCaptureMode(int *mode)
{
    const int result = call_enter("cuThreadExchangeStreamCaptureMode");
    const int before = capture_mode;
    if (!result) {
        capture_mode = *mode;
        *mode = before;
    }
    return call_leave(result);
}

// ---- errors -------------------------------------------------------------------------------------

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

EXPORTED int cuGetErrorName(int result, const char **name);
int cuGetErrorName(int result, const char **name)
{
    *name = NULL;
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        if (errors[i].code == result)
            *name = errors[i].name;
    return *name ? 0 : CUDA_INVALID_VALUE;
}

EXPORTED int cuGetErrorString(int result, const char **text);
int cuGetErrorString(int result, const char **text)
{
    *text = NULL;
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        if (errors[i].code == result)
            *text = errors[i].text;
    return *text ? 0 : CUDA_INVALID_VALUE;
}

void context_break_locked(struct context *context, int code)
{
    if (context->error == 0)
        context->error = code;
    cond_broadcast(&driver.progress);
    for (size_t i = 0; i < STREAMS_MAX; i++)
        if (driver.streams[i])
            cond_broadcast(&driver.streams[i]->work);
}

// ---- functions for tests ------------------------------------------------------------------------

EXPORTED fake_gpu_calls_function fake_gpu_calls;
uint64_t fake_gpu_calls(const char *name)
{
    const size_t length = name_length(name);
    uint64_t calls = 0;
    mutex_lock(&driver.mutex);
    for (size_t i = 0; i < CALL_NAMES_MAX && driver.calls[i].name; i++)
        if (strncmp(driver.calls[i].name, name, length) == 0 &&
            driver.calls[i].name[length] == '\0')
            calls = driver.calls[i].calls;
    mutex_unlock(&driver.mutex);
    return calls;
}

EXPORTED fake_gpu_live_function fake_gpu_live;
void fake_gpu_live(struct fake_gpu_live *live)
{
    *live = (struct fake_gpu_live){0};
    mutex_lock(&driver.mutex);
    for (size_t i = 0; i < DEVICES_MAX; i++)
        live->contexts += driver.contexts[i].retained > 0;
    for (size_t i = 0; i < STREAMS_MAX; i++) {
        const struct stream *stream = driver.streams[i];
        live->streams += stream && stream->alive && stream->ordinal > 0; // 0: made by the driver.
    }
    for (size_t i = 0; i < EVENTS_MAX; i++)
        live->events += driver.events[i].alive;
    for (size_t i = 0; i < MODULES_MAX; i++)
        live->modules += driver.modules[i].alive;
    for (size_t i = 0; i < driver.memory_count; i++) {
        const struct memory *memory = &driver.memories[i];
        live->device_allocations += !memory->freed && memory->kind == MEMORY_DEVICE;
        live->host_allocations += !memory->freed && memory->kind == MEMORY_PINNED;
        live->registrations += !memory->freed && memory->kind == MEMORY_REGISTERED;
    }
    mutex_unlock(&driver.mutex);
}

EXPORTED fake_gpu_complaint_function fake_gpu_complaint;
void fake_gpu_complaint(char *text, size_t bytes)
{
    mutex_lock(&driver.mutex);
    snprintf(text, bytes, "%s", driver.complaint);
    mutex_unlock(&driver.mutex);
}

EXPORTED fake_gpu_context_function fake_gpu_context;
void *fake_gpu_context(int device)
{
    mutex_lock(&driver.mutex);
    struct context *context = &driver.contexts[DEVICES_MAX + device];
    context->retained = 1;
    void *handle = context_handle_locked(context);
    mutex_unlock(&driver.mutex);
    return handle;
}

EXPORTED fake_gpu_capture_function fake_gpu_capture;
void fake_gpu_capture(void *handle, bool captured)
{
    mutex_lock(&driver.mutex);
    struct stream *stream = stream_of_locked(handle, NULL);
    if (stream && stream->captured != captured) {
        stream->captured = captured;
        if (captured)
            driver.captures++;
        else
            driver.captures--;
    }
    mutex_unlock(&driver.mutex);
}

EXPORTED fake_gpu_hold_function fake_gpu_hold;
void fake_gpu_hold(int device, bool held)
{
    mutex_lock(&driver.mutex);
    driver.contexts[device].held = held;
    cond_broadcast(&driver.progress);
    mutex_unlock(&driver.mutex);
}

EXPORTED fake_gpu_lose_function fake_gpu_lose;
void fake_gpu_lose(int device, int code)
{
    mutex_lock(&driver.mutex);
    if (driver.contexts[device].retained)
        context_break_locked(&driver.contexts[device], code);
    mutex_unlock(&driver.mutex);
}

// ---- hooks of libnccl-fake.so -------------------------------------------------------------------

EXPORTED int fake_cuda_current_device(void);
int fake_cuda_current_device(void)
{
    mutex_lock(&driver.mutex);
    const struct context *context = current_locked();
    const int device = context ? context->device : -1;
    mutex_unlock(&driver.mutex);
    return device;
}

EXPORTED bool fake_cuda_lost(int device);
bool fake_cuda_lost(int device)
{
    mutex_lock(&driver.mutex);
    const bool lost = driver.contexts[device].error != 0;
    mutex_unlock(&driver.mutex);
    return lost;
}
