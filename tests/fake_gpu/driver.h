// SPDX-License-Identifier: Apache-2.0
//
// The internal header of libcuda-fake.so. One mutex guards all of its state; a stream runs the work
// of an operation without the mutex. Tests use fake_gpu.h instead, and libnccl-fake.so uses
// hooks.h.
#ifndef TESTS_FAKE_GPU_DRIVER_H
#define TESTS_FAKE_GPU_DRIVER_H

#include "base/cond.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "tests/fake_gpu/fake_gpu.h"
#include "tests/fake_gpu/settings.h"
#include "tests/support/device_reference.h"
#include "worker/device/cuda.h"

#include <setjmp.h>

enum {
    DEVICES_MAX = 64,
    STREAMS_MAX = 1024,
    EVENTS_MAX = 1 << 16,
    MODULES_MAX = 256,
    // Operations that one stream can queue. A launch waits while the queue is full, as in CUDA.
    QUEUE_OPERATIONS = 1024,
    PARAMETER_BYTES = 512, // Size limit of a kernel's parameters.
    CALL_NAMES_MAX = 96,
    COMPLAINT_BYTES = 300,
    POISON = 0xA5, // Fills memory at allocation and when it is freed.
};

// ---- settings (settings.h), read again by fake_gpu_reload ---------------------------------------

struct weather {
    uint32_t devices;
    int version;
    int capability;
    uint64_t delay_low_us, delay_high_us, seed;
    uint64_t urgent_us;
    uint64_t lazy_us;
    uint64_t kernel_us;
    bool everywhere;
    bool sync;
    bool verbose;
    struct faults faults;
};

// ---- objects ------------------------------------------------------------------------------------

// The primary context of a device, or a further one (fake_gpu_context). `life` counts how often the
// context began. A handle carries the life in which it was made, so a handle kept after the last
// release is refused.
struct context {
    int device;
    uint32_t retained;
    uint32_t life;
    int error; // Every call returns this once it is not 0.
    bool held; // True while fake_gpu_hold stops the device.
    uint32_t streams_made; // Streams made in this life.
    struct stream *legacy; // The legacy default stream; NULL until its first use.
};

enum operation_kind {
    OPERATION_KERNEL,
    OPERATION_COPY,
    OPERATION_SET,
    OPERATION_HOST,
    OPERATION_RECORD,
    OPERATION_WAIT,
    OPERATION_WAIT_VALUE,
    OPERATION_WRITE_VALUE,
    OPERATION_CALL,
};

struct operation {
    enum operation_kind kind;
    uint64_t queued_us;
    const char *name; // A name by which FAKE_CUDA_FAIL can select the operation; may be NULL.
    union {
        struct {
            const struct device_reference *reference;
            _Alignas(16) unsigned char parameters[PARAMETER_BYTES];
        } kernel;
        struct {
            uint64_t to, from;
            size_t bytes;
        } copy;
        struct {
            uint64_t address;
            size_t count;
            uint32_t value;
            uint32_t width; // 1 or 4 bytes
        } set;
        struct {
            void (*function)(void *argument);
            void *argument;
        } host;
        struct {
            uint32_t event; // index
            uint64_t record;
        } record;
        struct {
            struct stream *stream;
            uint64_t position;
        } wait;
        struct {
            uint64_t address;
            uint32_t value;
            unsigned flags;
        } value;
        struct {
            void (*run)(void *argument, bool dropped);
            void *argument;
        } call;
    };
};

// A stream: a queue of operations, and the thread that runs them in order. The memory of a stream
// is never freed but used again for a later stream, whose positions continue after those of the
// earlier one. So a wait for a position of a destroyed stream remains valid.
struct stream {
    bool alive; // True while the stream has a handle.
    bool running; // True while the stream has a thread.
    uint32_t index; // in streams
    uint32_t life;
    struct context *context;
    uint32_t context_life;
    bool urgent; // True if its priority is higher than the default.
    bool blocking; // True if the stream is ordered with the legacy stream.
    uint32_t ordinal; // Number of the stream in its context, from 1; 0: made by the driver.
    uint64_t born; // The first position of this life.
    uint64_t queued; // Operations at lower positions are queued or done.
    uint64_t done; // Operations at lower positions are done.
    uint64_t wanted; // Some thread waits for all operations at lower positions.
    bool captured; // True while the stream is being captured into a graph.
    struct cond work;
    struct thread thread;
    struct operation *queue; // [QUEUE_OPERATIONS]
};

struct event {
    bool alive;
    bool captured; // True if the latest record is part of a graph.
    uint32_t life;
    unsigned flags;
    struct context *context;
    struct stream *stream; // Stream of the latest record; NULL: none.
    uint64_t position;
    uint64_t record; // Number of the latest record.
    uint64_t time_ns; // When the stream reached the latest record; 0: not yet.
};

enum memory_kind {
    MEMORY_DEVICE,
    MEMORY_PINNED,
    MEMORY_REGISTERED
};

struct memory {
    uint64_t start;
    size_t bytes;
    // Host address of the bytes. For device memory it differs from `start`, unless
    // FAKE_CUDA_EVERYWHERE is set.
    unsigned char *alias;
    enum memory_kind kind;
    struct context *context;
    bool freed; // True for freed device memory, whose addresses stay reserved.
};

struct module {
    bool alive;
    uint32_t life;
    struct context *context;
};

struct call_count {
    const char *name;
    uint64_t calls;
};

struct driver {
    struct mutex mutex;
    struct cond progress; // Signalled when an operation is done or a device is lost or released.
    // guarded by mutex
    struct weather weather;
    bool initialized;
    uint32_t captures; // Streams that are being captured.
    bool forked; // True in a child of the process that loaded the library.
    struct context contexts[2 * DEVICES_MAX]; // The second half: further contexts.
    struct stream *streams[STREAMS_MAX];
    struct event events[EVENTS_MAX];
    struct module modules[MODULES_MAX];
    struct memory *memories; // Memories, ordered by start.
    size_t memory_count, memory_capacity;
    uint32_t event_next; // Index in `events` where the search for a free event begins.
    struct call_count calls[CALL_NAMES_MAX];
    char complaint[COMPLAINT_BYTES];
};

extern struct driver driver;

#define EXPORTED __attribute__((visibility("default")))

// ---- handles ------------------------------------------------------------------------------------
// A handle is not an address: a program that dereferences it faults. A handle holds the kind of the
// object, its index, and its life.

enum handle_kind {
    HANDLE_CONTEXT = 1,
    HANDLE_STREAM,
    HANDLE_EVENT,
    HANDLE_MODULE,
    HANDLE_FUNCTION
};

void *handle_make(enum handle_kind kind, uint32_t index, uint32_t life);
bool handle_read(const void *handle, enum handle_kind kind, uint32_t *index, uint32_t *life);

struct context *context_of_locked(const void *handle); // NULL: no retained context.
void *context_handle_locked(const struct context *context);
struct event *event_of_locked(const void *handle);

// Returns the stream of a handle, or NULL if there is none. The handles NULL, CUDA_STREAM_LEGACY
// and CUDA_STREAM_PER_THREAD mean streams of the context `current`, which may be NULL.
struct stream *stream_of_locked(const void *handle, struct context *current);

// ---- calls (driver.c) ---------------------------------------------------------------------------

// Every exported function of the driver begins with call_enter: it locks the mutex, counts the
// call, and applies FAKE_CUDA_FAIL. The function returns any result other than 0 at once. The mutex
// stays locked in either case until call_leave.
int call_enter(const char *name);
// As call_enter, for functions that need a current context. Fails if the context has an error.
int call_enter_context(const char *name, struct context **context);
// As call_enter, for functions of a stream. Fails if the context of the stream has an error; the
// context need not be current.
int call_enter_stream(const char *name, const void *handle, struct stream **stream);
// Unlocks the mutex and returns `result`.
int call_leave(int result);

// Reports misuse of the driver: keeps the first complaint, and prints each one if FAKE_GPU_VERBOSE
// is set.
void complain_locked(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Breaks the context: all later calls return `code`, and queued operations are dropped.
void context_break_locked(struct context *context, int code);

// True while the calling thread runs a host function, which must not call CUDA.
extern _Thread_local bool inside_host_function;

// ---- streams (stream.c) -------------------------------------------------------------------------

int stream_open_locked(struct context *context, bool blocking, bool urgent, struct stream **stream);
void stream_close_locked(struct stream *stream);

// Queues a copy of the operation; waits while the queue is full. Returns 0, or the error of the
// context.
int stream_push_locked(struct stream *stream, const struct operation *operation);

// Notes that some thread waits for all operations below the position, so that a lazy stream runs
// them.
void stream_want_locked(struct stream *stream, uint64_t position);
// Waits until all operations below the position are done. Returns 0, or the error of the context.
int stream_wait_locked(struct stream *stream, uint64_t position, const struct context *context);
// Waits for all queued operations of all streams of a context.
int context_wait_locked(struct context *context);
// The same if FAKE_CUDA_SYNC is set; else only returns the context's error. Called by functions
// that allocate, free, register or load.
int context_wait_perhaps_locked(struct context *context);

// The stream whose operations run on this thread; NULL on all other threads.
extern _Thread_local const struct stream *stream_of_thread;
// True if the stream's context was released since the stream was made.
bool stream_ended_locked(const struct stream *stream);
// True if the stream's context has an error, or was released since the stream was made.
bool stream_broken_locked(const struct stream *stream);

// Runs an operation on the stream's thread; unlocks the mutex during the work itself.
void operation_run(struct stream *stream, struct operation *operation);

// ---- memory (memory.c) --------------------------------------------------------------------------

// Returns the allocation that contains the address, also a freed one of device memory; NULL: none.
struct memory *memory_find_locked(uint64_t address);

// Returns the host address of `bytes` bytes that operations of the context may access at `address`.
// With `pageable`, that includes pageable host memory and memory of other devices. Otherwise
// complains in the name of `who` and returns NULL.
void *memory_view_locked(struct context *context, uint64_t address, uint64_t bytes, bool pageable,
                         const char *who);

// Frees all allocations of a context that ends.
void memory_drop_locked(struct context *context);

#endif
