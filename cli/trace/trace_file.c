// SPDX-License-Identifier: Apache-2.0
//
// Reads a trace. The file is read twice, because the worker may be writing it. An event is taken
// only if both copies have it with the expected sequence. The worker sets the sequence to
// TRACE_WRITING before it changes the event, and to the new number afterwards.

#include "cli/trace/trace_file.h"

#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int trace_fail(char *error, size_t error_bytes, const char *path, const char *why)
{
    struct text text;
    text_init(&text, error, error_bytes);
    text_append(&text, "%s: %s", path, why);
    return -1;
}

// Reads all TRACE_BYTES. Returns false if that is not possible.
static bool trace_copy(int fd, uint8_t *bytes)
{
    size_t size = 0;
    while (size < TRACE_BYTES) {
        const ssize_t got = pread(fd, bytes + size, TRACE_BYTES - size, (off_t)size);
        if (got == 0 || (got < 0 && errno != EINTR))
            return false;
        size += got > 0 ? (size_t)got : 0;
    }
    return true;
}

static const char *trace_check_header(const struct trace_header *header)
{
    if (memcmp(header->magic, TRACE_MAGIC, sizeof(header->magic)) != 0)
        return "not a trace of lockstep";
    if (header->version != TRACE_VERSION || header->event_bytes != sizeof(struct trace_slot) ||
        header->event_count != LOCKSTEP_TRACE_EVENTS)
        return "a trace of another version of lockstep";
    return NULL;
}

// Copies a text of the file. Its last byte becomes a NUL.
static void trace_take_text(char *text, size_t bytes, const uint8_t *from)
{
    memcpy(text, from, bytes);
    text[bytes - 1] = '\0';
}

static void trace_take_cell(char text[LOCKSTEP_MARK_BYTES], const uint8_t *from)
{
    uint64_t version;
    memcpy(&version, from, sizeof(version));
    trace_take_text(text, LOCKSTEP_MARK_BYTES, from + offsetof(struct trace_cell, text));
    if (version % 2 != 0)
        text[0] = '\0';
}

static void trace_take_events(struct trace_file *file, const uint8_t *first, const uint8_t *second)
{
    uint64_t end;
    memcpy(&end, first + TRACE_NEXT, sizeof(end));
    uint64_t number = end > LOCKSTEP_TRACE_EVENTS ? end - LOCKSTEP_TRACE_EVENTS : 0;
    for (; number < end; number++) {
        const size_t at =
            TRACE_EVENTS + (size_t)(number % LOCKSTEP_TRACE_EVENTS) * sizeof(struct trace_slot);
        struct trace_slot slot;
        uint64_t before;
        uint64_t after;
        memcpy(&slot, first + at, sizeof(slot));
        memcpy(&before, first + at, sizeof(before));
        memcpy(&after, second + at, sizeof(after));
        if (before != number + 1 || after != number + 1) {
            file->torn++;
            continue;
        }
        file->events[file->event_count++] = (struct trace_event){.time_ns = slot.time_ns,
                                                                 .step = slot.step,
                                                                 .value = slot.value,
                                                                 .kind = slot.kind,
                                                                 .thread = slot.thread,
                                                                 .module = slot.module,
                                                                 .call = slot.call,
                                                                 .bucket = slot.bucket};
    }
}

static const char *trace_take(struct trace_file *file, const uint8_t *first, const uint8_t *second)
{
    const char *why;
    memset(file, 0, sizeof(*file));
    memcpy(&file->header, first, sizeof(file->header));
    why = trace_check_header(&file->header);
    if (why)
        return why;
    file->header.job[sizeof(file->header.job) - 1] = '\0';
    file->header.host[sizeof(file->header.host) - 1] = '\0';
    memcpy(&file->progress, first + TRACE_PROGRESS, sizeof(file->progress));
    trace_take_cell(file->mark, first + TRACE_MARK);
    trace_take_cell(file->pause_reason, first + TRACE_PAUSE_REASON);
    for (size_t i = 0; i < LOCKSTEP_MAX_MODULES; i++)
        trace_take_text(file->modules[i], LOCKSTEP_NAME_BYTES,
                        first + TRACE_NAMES + i * LOCKSTEP_NAME_BYTES);
    memcpy(file->threads, first + TRACE_THREADS, sizeof(file->threads));
    for (size_t i = 0; i < TRACE_THREAD_PLACES; i++)
        file->threads[i].name[LOCKSTEP_THREAD_BYTES - 1] = '\0';
    trace_take_events(file, first, second);
    return NULL;
}

int trace_file_read(const char *path, struct trace_file *file, char *error, size_t error_bytes)
{
    uint8_t *copies = malloc(2 * TRACE_BYTES);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    const char *why = NULL;
    char reason[64];
    if (!copies)
        why = "no memory";
    else if (fd < 0)
        why = strerror_r(errno, reason, sizeof(reason));
    else if (!trace_copy(fd, copies) || !trace_copy(fd, copies + TRACE_BYTES))
        why = "too short for a trace of lockstep";
    else
        why = trace_take(file, copies, copies + TRACE_BYTES);
    free(copies);
    if (fd >= 0)
        (void)close(fd);
    return !why ? 0 : trace_fail(error, error_bytes, path, why);
}
