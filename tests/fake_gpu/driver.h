// SPDX-License-Identifier: Apache-2.0
//
// The inside of libcuda-fake.so: what its files share. One mutex guards everything; streams run
// their operations without it. Not for tests: they have fake_gpu.h, and libnccl-fake.so has
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
    QUEUE_OPERATIONS = 1024, // A launch waits for room when so many are queued, as in reality.
    PARAMETER_BYTES = 512, // Bytes of a kernel's parameters.
    CALL_NAMES_MAX = 96,
    COMPLAINT_BYTES = 300,
    POISON = 0xA5, // In memory that was just allocated, and where memory was.
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

// A device's primary context; there are no others. Handles carry its life, so that one that was
// kept beyond the last release is refused.
struct context {
    int device;
    uint32_t retained;
    uint32_t life;
    int error; // Every call returns this once it is not 0.
    bool held;
    uint32_t streams_made; // Streams made in this life.
    struct stream *legacy;
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
    const char *name; // Name for faults.
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

// Ordered work with a thread of its own. Memory of a stream is never given back, and positions go
// on from one life to the next: a wait for a position of a stream that was destroyed is right.
struct stream {
    bool alive; // There is a handle.
    bool running; // There is a thread.
    uint32_t index; // in streams
    uint32_t life;
    struct context *context;
    uint32_t context_life;
    bool urgent; // True if its priority is higher than the usual one.
    bool blocking; // Ordered with the legacy stream.
    uint32_t ordinal; // Number in its context.
    uint64_t born; // The position that was next when this life began.
    uint64_t queued; // Positions below this were queued,
    uint64_t done; // below this are done,
    uint64_t wanted; // and below this somebody waits for.
    struct cond work;
    struct thread thread;
    struct operation *queue; // [QUEUE_OPERATIONS]
};

struct event {
    bool alive;
    uint32_t life;
    unsigned flags;
    struct context *context;
    struct stream *stream; // Stream of the latest record; NULL: none.
    uint64_t position;
    uint64_t record; // Counts records.
    uint64_t time_ns; // When the latest was reached; 0: not yet.
};

enum memory_kind {
    MEMORY_DEVICE,
    MEMORY_PINNED,
    MEMORY_REGISTERED
};

struct memory {
    uint64_t start;
    size_t bytes;
    unsigned char *alias; // Where the bytes are; not `start` for device memory, unless everywhere.
    enum memory_kind kind;
    struct context *context;
    bool freed; // Kept, because the addresses are never used again.
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
    struct cond progress; // Something is done, lost, or let go.
    // all of it guarded by mutex
    struct weather weather;
    bool initialized;
    bool forked; // This process is a child of the one that loaded it.
    struct context contexts[DEVICES_MAX];
    struct stream *streams[STREAMS_MAX];
    struct event events[EVENTS_MAX];
    struct module modules[MODULES_MAX];
    struct memory *memories; // Memories, ordered by start.
    size_t memory_count, memory_capacity;
    uint32_t event_next; // Where to look for a free one first.
    struct call_count calls[CALL_NAMES_MAX];
    char complaint[COMPLAINT_BYTES];
};

extern struct driver driver;

#define EXPORTED __attribute__((visibility("default")))

// ---- handles ------------------------------------------------------------------------------------
// Handles are no addresses: a program that follows one faults. They hold what they are, which one,
// and its life.

enum handle_kind {
    HANDLE_CONTEXT = 1,
    HANDLE_STREAM,
    HANDLE_EVENT,
    HANDLE_MODULE,
    HANDLE_FUNCTION
};

void *handle_make(enum handle_kind kind, uint32_t index, uint32_t life);
bool handle_read(const void *handle, enum handle_kind kind, uint32_t *index, uint32_t *life);

struct context *context_of_locked(const void *handle); // NULL: no context that lives.
void *context_handle_locked(const struct context *context);
struct event *event_of_locked(const void *handle);

// NULL: no such stream. NULL, legacy and per-thread streams are those of `current`, which may be
// NULL.
struct stream *stream_of_locked(const void *handle, struct context *current);

// ---- calls (driver.c) ---------------------------------------------------------------------------

// How every function begins: takes the mutex, counts, lets faults strike. Another result than 0 is
// what the function answers, at once; the mutex is held either way, until call_leave.
int call_enter(const char *name);
// The same for functions that need a current context, which has no error.
int call_enter_context(const char *name, struct context **context);
// And for those of a stream: of its context, current or not.
int call_enter_stream(const char *name, const void *handle, struct stream **stream);
int call_leave(int result);

// Somebody asked for what must not be: remembered, and printed when the weather is verbose.
void complain_locked(const char *format, ...) __attribute__((format(printf, 1, 2)));

// The context is broken: all calls answer `code`, work is dropped.
void context_break_locked(struct context *context, int code);

// The calling thread runs a host function, in which no call is permitted.
extern _Thread_local bool inside_host_function;

// ---- streams (stream.c) -------------------------------------------------------------------------

int stream_open_locked(struct context *context, bool blocking, bool urgent, struct stream **stream);
void stream_close_locked(struct stream *stream);

// Queues a copy of the operation; waits for room. 0, or the error of the context.
int stream_push_locked(struct stream *stream, const struct operation *operation);

// Somebody waits for everything below the position.
void stream_want_locked(struct stream *stream, uint64_t position);
// Waits until everything below it is done. 0, or the error of the context.
int stream_wait_locked(struct stream *stream, uint64_t position, const struct context *context);
// For all streams of a context.
int context_wait_locked(struct context *context);
// When the weather says so: what allocates, frees and registers waits first.
int context_wait_perhaps_locked(struct context *context);

// The stream's context has an error, or is gone: another one may live in its place.
bool stream_broken_locked(const struct stream *stream);

// On the stream's thread; gives the mutex away while it works.
void operation_run(struct stream *stream, struct operation *operation);

// ---- memory (memory.c) --------------------------------------------------------------------------

// The allocation that holds the address, or held it; NULL: none.
struct memory *memory_find_locked(uint64_t address);

// Finds the bytes behind an address that operations of a context may touch. `pageable`: also memory
// of the host that nobody knows. NULL, and a complaint with `who`, of everything else.
void *memory_view_locked(struct context *context, uint64_t address, uint64_t bytes, bool pageable,
                         const char *who);

// All allocations of a context that ends.
void memory_drop_locked(struct context *context);

#endif
