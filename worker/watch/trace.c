// SPDX-License-Identifier: Apache-2.0
//
// The trace of a session. Any thread writes events: a writer takes a number, and owns the slot of
// that number until it has stored the slot's sequence. Everything that others may read meanwhile is
// stored in whole words, so that a reader, in this process or of the file, sees either the old or
// the new value of each word.
//
// If a thread is stopped inside trace_event until other threads have written LOCKSTEP_TRACE_EVENTS
// events, its event may mix with the event that has replaced it. No decision depends on an event,
// and readers check what they read, so that is accepted instead of a lock.

#include "worker/watch/trace.h"

#include "base/clock.h"
#include "base/file_limit.h"
#include "base/memory_file.h"
#include "base/text.h"
#include "worker/support/config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define WORD sizeof(uint64_t)

static_assert(LOCKSTEP_MARK_BYTES % WORD == 0, "a cell's text is whole words");

// ---- Memory ------------------------------------------------------------------------------------

// Makes the path of the file. Characters of the job's name that a file's name must not have become
// '_'.
static void trace_path(const struct config *config, const struct uuid *uuid, struct trace *trace)
{
    char job[LOCKSTEP_JOB_NAME_BYTES];
    struct text text;
    text_copy(job, sizeof(job), config->job);
    for (char *c = job; *c != '\0'; c++) {
        if (!isalnum((unsigned char)*c) && *c != '-' && *c != '.')
            *c = '_';
    }
    text_init(&text, trace->path, sizeof(trace->path));
    text_append(&text, "%s/lockstep-%s-%ld-%02x%02x%02x%02x.trace", config->trace_dir, job,
                (long)getpid(), uuid->bytes[0], uuid->bytes[1], uuid->bytes[2], uuid->bytes[3]);
    if (text.truncated)
        trace->path[0] = '\0';
}

// All blocks of the file are allocated at once, because a full disk would later cause a signal.
static int trace_make_file(const struct config *config, const struct uuid *uuid, struct log *log,
                           struct trace *trace)
{
    int error;
    char reason[64];
    trace_path(config, uuid, trace);
    errno = ENAMETOOLONG;
    const int fd =
        trace->path[0] == '\0'
            ? -1
            : open(trace->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0 && file_limit_fill(fd, TRACE_BYTES) == 0)
        return fd;
    error = errno;
    log_event(log, LOG_LEVEL_WARN, "trace_dir_refused", "path=%s text=%s", config->trace_dir,
              strerror_r(error, reason, sizeof(reason)));
    if (fd >= 0) {
        (void)unlink(trace->path);
        (void)close(fd);
    }
    trace->path[0] = '\0';
    return -1;
}

static int trace_make_memory(void)
{
    const int fd = memory_file_open("lockstep-trace");
    if (fd < 0 || memory_file_resize(fd, TRACE_BYTES) == 0)
        return fd;
    (void)close(fd);
    return -1;
}

static void trace_write_header(const struct config *config, const struct uuid *uuid,
                               struct trace *trace)
{
    struct trace_header *header = (struct trace_header *)(void *)trace->base;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    header->version = TRACE_VERSION;
    header->event_bytes = sizeof(struct trace_slot);
    header->event_count = LOCKSTEP_TRACE_EVENTS;
    header->progress_bytes = sizeof(struct progress);
    header->pid = (uint32_t)getpid();
    header->rank = TRACE_NO_RANK;
    header->real_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    header->monotonic_ns = clock_now_ns();
    memcpy(header->uuid, uuid->bytes, sizeof(header->uuid));
    text_copy(header->job, sizeof(header->job), config->job);
    text_copy(header->host, sizeof(header->host), config->host);
    memcpy(header->magic, TRACE_MAGIC, sizeof(header->magic));
}

int trace_open(const struct config *config, const struct uuid *uuid, struct log *log,
               struct trace *trace)
{
    static _Atomic(uint64_t) serials = 1;
    void *base;
    *trace = (struct trace){.fd = -1};
    if (config->trace_dir[0] != '\0')
        trace->fd = trace_make_file(config, uuid, log, trace);
    if (trace->fd < 0)
        trace->fd = trace_make_memory();
    base = mmap(NULL, TRACE_BYTES, PROT_READ | PROT_WRITE,
                trace->fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, trace->fd, 0);
    if (base == MAP_FAILED) {
        if (trace->path[0] != '\0')
            (void)unlink(trace->path);
        if (trace->fd >= 0)
            (void)close(trace->fd);
        return -1;
    }
    trace->base = base;
    trace->serial = atomic_fetch_add(&serials, 1);
    trace_write_header(config, uuid, trace);
    return 0;
}

void trace_close(struct trace *trace, bool keep)
{
    if (!trace->base)
        return;
    ((struct trace_header *)(void *)trace->base)->closed = 1;
    (void)munmap(trace->base, TRACE_BYTES);
    if (trace->path[0] != '\0' && !keep)
        (void)unlink(trace->path);
    if (trace->fd >= 0)
        (void)close(trace->fd);
    *trace = (struct trace){.fd = -1};
}

void trace_formed(struct trace *trace, const struct generation_id *generation, uint32_t rank,
                  uint32_t world_size)
{
    struct trace_header *header = (struct trace_header *)(void *)trace->base;
    header->generation = generation->number;
    header->incarnation = generation->incarnation;
    header->world_size = world_size;
    header->rank = rank;
}

void trace_module(struct trace *trace, uint32_t module, const char *name)
{
    char *at = (char *)trace->base + TRACE_NAMES + (size_t)module * LOCKSTEP_NAME_BYTES;
    text_copy(at, LOCKSTEP_NAME_BYTES, !name ? "" : name);
}

// ---- Cells -------------------------------------------------------------------------------------

void trace_cell_write(struct trace_cell *cell, const char *text)
{
    _Alignas(8) char bytes[LOCKSTEP_MARK_BYTES] = {0};
    _Atomic(uint64_t) *words = (_Atomic(uint64_t) *)(void *)cell->text;
    const uint64_t version = atomic_load_explicit(&cell->version, memory_order_relaxed);
    text_copy(bytes, sizeof(bytes), text);
    atomic_store_explicit(&cell->version, version + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (size_t i = 0; i < sizeof(bytes) / WORD; i++) {
        uint64_t word;
        memcpy(&word, bytes + i * WORD, WORD);
        atomic_store_explicit(&words[i], word, memory_order_relaxed);
    }
    atomic_store_explicit(&cell->version, version + 2, memory_order_release);
}

#define CELL_ATTEMPTS 1000

void trace_cell_read(const struct trace_cell *cell, char text[LOCKSTEP_MARK_BYTES])
{
    const _Atomic(uint64_t) *words = (const _Atomic(uint64_t) *)(const void *)cell->text;
    for (int attempt = 0; attempt < CELL_ATTEMPTS; attempt++) {
        const uint64_t version = atomic_load_explicit(&cell->version, memory_order_acquire);
        for (size_t i = 0; i < LOCKSTEP_MARK_BYTES / WORD; i++) {
            const uint64_t word = atomic_load_explicit(&words[i], memory_order_relaxed);
            memcpy(text + i * WORD, &word, WORD);
        }
        atomic_thread_fence(memory_order_acquire);
        if (version % 2 == 0 &&
            atomic_load_explicit(&cell->version, memory_order_relaxed) == version)
            return;
    }
    text[0] = '\0';
}

// ---- Threads -----------------------------------------------------------------------------------

// The calling thread's index in the table of the trace that it wrote to last.
static _Thread_local struct {
    uint64_t serial;
    uint16_t index;
} trace_known;

// Gives the calling thread the place of a thread that has ended. The search begins behind the place
// that was given last, so events of the thread that had it are old, and most are gone. Returns
// TRACE_THREAD_PLACES if no thread has ended.
static uint16_t trace_inherit_place(struct trace_thread *threads, uint32_t tid)
{
    static atomic_uint hand;
    const int error = errno;
    uint16_t found = TRACE_THREAD_PLACES;
    for (uint32_t n = 0; n < TRACE_THREAD_PLACES && found == TRACE_THREAD_PLACES; n++) {
        const uint16_t i = (uint16_t)(atomic_fetch_add(&hand, 1) % TRACE_THREAD_PLACES);
        _Atomic(uint32_t) *place = (_Atomic(uint32_t) *)&threads[i].tid;
        uint32_t seen = atomic_load(place);
        if (tgkill(getpid(), (pid_t)seen, 0) < 0 && errno == ESRCH &&
            atomic_compare_exchange_strong(place, &seen, tid))
            found = i;
    }
    errno = error;
    return found;
}

// Returns the thread's index. A thread that is not in the table yet takes the first free place, or
// that of a thread that has ended. If there is none, the index is TRACE_THREAD_PLACES.
static uint16_t trace_find_thread(const struct trace *trace)
{
    struct trace_thread *threads = (struct trace_thread *)(void *)(trace->base + TRACE_THREADS);
    const uint32_t tid = (uint32_t)gettid();
    uint16_t i = 0;
    for (; i < TRACE_THREAD_PLACES; i++) {
        _Atomic(uint32_t) *place = (_Atomic(uint32_t) *)&threads[i].tid;
        uint32_t seen = 0;
        if (atomic_compare_exchange_strong(place, &seen, tid) || seen == tid)
            break;
    }
    if (i == TRACE_THREAD_PLACES)
        i = trace_inherit_place(threads, tid);
    // Also where the number was there already: it may be that of a thread that has ended.
    if (i < TRACE_THREAD_PLACES)
        (void)pthread_getname_np(pthread_self(), threads[i].name, sizeof(threads[i].name));
    trace_known.serial = trace->serial;
    trace_known.index = i;
    return i;
}

static inline uint16_t trace_thread(const struct trace *trace)
{
    return trace_known.serial == trace->serial ? trace_known.index : trace_find_thread(trace);
}

// ---- Events ------------------------------------------------------------------------------------

// The words of a slot, as struct trace_slot lies in memory.
enum event_word {
    EVENT_SEQUENCE,
    EVENT_TIME,
    EVENT_STEP,
    EVENT_VALUE,
    EVENT_KIND, // Kind, thread, module and call: 16 bits each.
    EVENT_BUCKET,
    EVENT_WORDS,
};
static_assert(sizeof(struct trace_slot) == EVENT_WORDS * WORD, "a slot is words");
static_assert(offsetof(struct trace_slot, kind) == EVENT_KIND * WORD &&
                  offsetof(struct trace_slot, bucket) == EVENT_BUCKET * WORD,
              "and they lie where the format has them");

static _Atomic(uint64_t) *trace_slot(const struct trace *trace, uint64_t number)
{
    const size_t place = number % LOCKSTEP_TRACE_EVENTS;
    return (_Atomic(uint64_t) *)(void *)(trace->base + TRACE_EVENTS +
                                         place * sizeof(struct trace_slot));
}

static _Atomic(uint64_t) *trace_next(const struct trace *trace)
{
    return (_Atomic(uint64_t) *)(void *)(trace->base + TRACE_NEXT);
}

// Takes the slot for an event. A thread may be held up while others write as many events as there
// are slots; then two threads want the same slot. Returns false, and the event is lost, if another
// thread writes the slot, or if the slot has a newer event.
static bool trace_claim(_Atomic(uint64_t) *slot, uint64_t number)
{
    uint64_t seen = atomic_load_explicit(&slot[EVENT_SEQUENCE], memory_order_relaxed);
    do {
        if (seen > number) // TRACE_WRITING is greater than any number.
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&slot[EVENT_SEQUENCE], &seen, TRACE_WRITING,
                                                    memory_order_acquire, memory_order_relaxed));
    return true;
}

void trace_event_at(const struct trace *trace, uint64_t time_ns, enum trace_kind kind,
                    uint64_t step, uint32_t module, uint32_t call, uint32_t bucket, uint64_t value)
{
    const uint64_t number = atomic_fetch_add_explicit(trace_next(trace), 1, memory_order_relaxed);
    const uint64_t what = (uint64_t)kind | (uint64_t)trace_thread(trace) << 16 |
                          (uint64_t)(module & 0xffff) << 32 | (uint64_t)(call & 0xffff) << 48;
    _Atomic(uint64_t) *slot = trace_slot(trace, number);
    if (!trace_claim(slot, number))
        return;
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&slot[EVENT_TIME], time_ns, memory_order_relaxed);
    atomic_store_explicit(&slot[EVENT_STEP], step, memory_order_relaxed);
    atomic_store_explicit(&slot[EVENT_VALUE], value, memory_order_relaxed);
    atomic_store_explicit(&slot[EVENT_KIND], what, memory_order_relaxed);
    atomic_store_explicit(&slot[EVENT_BUCKET], bucket, memory_order_relaxed);
    atomic_store_explicit(&slot[EVENT_SEQUENCE], number + 1, memory_order_release);
}

void trace_event(const struct trace *trace, enum trace_kind kind, uint64_t step, uint32_t module,
                 uint32_t call, uint32_t bucket, uint64_t value)
{
    trace_event_at(trace, clock_now_ns(), kind, step, module, call, bucket, value);
}

uint64_t trace_begun(const struct trace *trace)
{
    return atomic_load_explicit(trace_next(trace), memory_order_relaxed);
}

bool trace_read(const struct trace *trace, uint64_t number, struct trace_event *event)
{
    const _Atomic(uint64_t) *slot = trace_slot(trace, number);
    uint64_t words[EVENT_WORDS];
    if (atomic_load_explicit(&slot[EVENT_SEQUENCE], memory_order_acquire) != number + 1)
        return false;
    for (size_t i = EVENT_TIME; i < EVENT_WORDS; i++)
        words[i] = atomic_load_explicit(&slot[i], memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&slot[EVENT_SEQUENCE], memory_order_relaxed) != number + 1)
        return false;
    *event = (struct trace_event){.time_ns = words[EVENT_TIME],
                                  .step = words[EVENT_STEP],
                                  .value = words[EVENT_VALUE],
                                  .kind = (uint16_t)words[EVENT_KIND],
                                  .thread = (uint16_t)(words[EVENT_KIND] >> 16),
                                  .module = (uint16_t)(words[EVENT_KIND] >> 32),
                                  .call = (uint16_t)(words[EVENT_KIND] >> 48),
                                  .bucket = (uint32_t)words[EVENT_BUCKET]};
    return true;
}
