// SPDX-License-Identifier: Apache-2.0
//
// Lines from pipes to a terminal; relay.h has the rules. Two threads a sink: the reader, which runs
// everything but write_out, and the writer.

#include "cli/run/relay.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define ERASE_LINE "\r\x1b[K"
#define LIVE_BYTES 1024 // Of an unfinished line, as much as is drawn.
#define FIRST_LINE_BYTES 256

// ---- The writer --------------------------------------------------------------------------------

static void notify(const struct sink *sink)
{
    uint64_t one = 1;
    ssize_t ignored = write(sink->event_fd, &one, sizeof(one));
    (void)ignored; // Full means that it is readable already.
}

// Blocks until some of it was written. Returns how much, or -1 when nobody reads any more.
static ssize_t write_some(int fd, const char *bytes, size_t size)
{
    for (;;) {
        ssize_t written = write(fd, bytes, size);
        if (written >= 0)
            return written;
        if (errno == EAGAIN) {
            struct pollfd ready = {.fd = fd, .events = POLLOUT};
            poll(&ready, 1, -1);
        } else if (errno != EINTR) {
            return -1;
        }
    }
}

// Waits for bytes. Returns how many lie side by side, 0 at the end.
static size_t next_run(struct sink *sink, const char **bytes)
{
    mutex_lock(&sink->mutex);
    while (sink->size == 0 && !sink->closing)
        cond_wait(&sink->changed, &sink->mutex);
    size_t run = SINK_BYTES - sink->first;
    if (run > sink->size)
        run = sink->size;
    *bytes = sink->bytes + sink->first;
    mutex_unlock(&sink->mutex);
    return run;
}

static void consumed(struct sink *sink, size_t size, bool broken)
{
    mutex_lock(&sink->mutex);
    sink->first = (sink->first + size) % SINK_BYTES;
    sink->size -= size;
    sink->broken |= broken;
    mutex_unlock(&sink->mutex);
    notify(sink);
}

static void write_out(void *argument)
{
    struct sink *sink = argument;
    const char *bytes = NULL;
    bool broken = false;
    for (size_t run = next_run(sink, &bytes); run > 0; run = next_run(sink, &bytes)) {
        ssize_t written = broken ? (ssize_t)run : write_some(sink->fd, bytes, run);
        broken |= written < 0;
        consumed(sink, written < 0 ? run : (size_t)written, broken);
    }
    mutex_lock(&sink->mutex);
    sink->done = true;
    mutex_unlock(&sink->mutex);
    notify(sink);
}

// ---- The sink, from the reader's side ----------------------------------------------------------

int sink_open(struct sink *sink, int fd)
{
    memset(sink, 0, sizeof(*sink));
    sink->fd = fd;
    sink->terminal = isatty(fd) == 1;
    sink->bytes = malloc(SINK_BYTES);
    sink->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    mutex_init(&sink->mutex);
    cond_init(&sink->changed);
    return sink->bytes && sink->event_fd >= 0 ? 0 : -1;
}

int sink_start(struct sink *sink)
{
    errno = thread_start(&sink->thread, "output", write_out, sink);
    return errno ? -1 : 0;
}

static bool sink_ask(struct sink *sink, const bool *what)
{
    mutex_lock(&sink->mutex);
    bool answer = *what;
    mutex_unlock(&sink->mutex);
    return answer;
}

bool sink_has_room(struct sink *sink)
{
    mutex_lock(&sink->mutex);
    bool room = SINK_BYTES - sink->size >= SINK_RESERVE;
    mutex_unlock(&sink->mutex);
    return room;
}

bool sink_broken(struct sink *sink)
{
    return sink_ask(sink, &sink->broken);
}

bool sink_done(struct sink *sink)
{
    return sink_ask(sink, &sink->done);
}

void sink_finish(struct sink *sink)
{
    mutex_lock(&sink->mutex);
    sink->closing = true;
    cond_signal(&sink->changed);
    mutex_unlock(&sink->mutex);
}

void sink_close(struct sink *sink)
{
    thread_join(&sink->thread);
    cond_fini(&sink->changed);
    mutex_fini(&sink->mutex);
    close(sink->event_fd);
    free(sink->bytes);
}

// Held: mutex. The reserve guarantees the room; what would still not fit is dropped.
static void put_locked(struct sink *sink, const char *bytes, size_t size)
{
    mutex_assert_held(&sink->mutex);
    if (size > SINK_BYTES - sink->size)
        size = SINK_BYTES - sink->size;
    size_t end = (sink->first + sink->size) % SINK_BYTES;
    size_t run = SINK_BYTES - end < size ? SINK_BYTES - end : size;
    memcpy(sink->bytes + end, bytes, run);
    memcpy(sink->bytes, bytes + run, size - run);
    sink->size += size;
}

static void put_text_locked(struct sink *sink, const char *text)
{
    put_locked(sink, text, strlen(text));
}

// ---- Lines -------------------------------------------------------------------------------------

static void hide_live_locked(struct sink *sink)
{
    if (sink->live_shown)
        put_text_locked(sink, ERASE_LINE);
    sink->live_shown = false;
}

static void show_live_locked(struct sink *sink)
{
    struct stream *live = sink->live;
    if (!live || sink->live_shown)
        return;
    put_text_locked(sink, live->prefix);
    put_locked(sink, live->line, live->size < LIVE_BYTES ? live->size : LIVE_BYTES);
    sink->live_shown = true;
}

// One whole line goes out.
static void end_line_locked(struct stream *stream)
{
    struct sink *sink = stream->sink;
    hide_live_locked(sink);
    if (sink->live == stream)
        sink->live = NULL;
    put_text_locked(sink, stream->prefix);
    put_locked(sink, stream->line, stream->size);
    put_text_locked(sink, "\n");
    stream->size = 0;
    stream->carriage = false;
    stream->updating = false;
}

// False when memory is short: the line is cut there.
static bool reserve(struct stream *stream, size_t size)
{
    if (size <= stream->capacity)
        return true;
    size_t capacity = stream->capacity ? stream->capacity : FIRST_LINE_BYTES;
    while (capacity < size)
        capacity *= 2;
    char *line = realloc(stream->line, capacity);
    if (!line)
        return false;
    stream->line = line;
    stream->capacity = capacity;
    return true;
}

static void append_locked(struct stream *stream, const char *bytes, size_t size)
{
    while (size > 0) {
        size_t part = STREAM_LINE_BYTES - stream->size;
        if (part > size)
            part = size;
        if (!reserve(stream, stream->size + part))
            return;
        memcpy(stream->line + stream->size, bytes, part);
        stream->size += part;
        bytes += part;
        size -= part;
        if (stream->size == STREAM_LINE_BYTES)
            end_line_locked(stream);
    }
}

// Bytes follow a carriage return: the line starts again.
static void start_again(struct stream *stream)
{
    stream->carriage = false;
    stream->updating = true;
    stream->size = 0;
}

static void feed_locked(struct stream *stream, const char *bytes, size_t size)
{
    const char *end = bytes + size;
    while (bytes < end) {
        if (*bytes == '\n') {
            end_line_locked(stream);
            bytes++;
        } else if (*bytes == '\r') {
            stream->carriage = true;
            bytes++;
        } else {
            const char *stop = bytes;
            while (stop < end && *stop != '\n' && *stop != '\r')
                stop++;
            if (stream->carriage)
                start_again(stream);
            append_locked(stream, bytes, (size_t)(stop - bytes));
            bytes = stop;
        }
    }
    if (stream->live && stream->updating) {
        hide_live_locked(stream->sink);
        stream->sink->live = stream;
    }
    show_live_locked(stream->sink);
}

static void feed(struct stream *stream, const char *bytes, size_t size)
{
    struct sink *sink = stream->sink;
    mutex_lock(&sink->mutex);
    feed_locked(stream, bytes, size);
    cond_signal(&sink->changed);
    mutex_unlock(&sink->mutex);
}

// ---- Streams -----------------------------------------------------------------------------------

void stream_open(struct stream *stream, struct sink *sink, int fd, const char *prefix, bool live)
{
    memset(stream, 0, sizeof(*stream));
    stream->sink = sink;
    stream->fd = fd;
    stream->live = live && sink->terminal;
    size_t size = strlen(prefix);
    if (size >= sizeof(stream->prefix))
        size = sizeof(stream->prefix) - 1;
    memcpy(stream->prefix, prefix, size);
}

bool stream_read(struct stream *stream)
{
    char bytes[STREAM_READ_BYTES];
    ssize_t size = read(stream->fd, bytes, sizeof(bytes));
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (size > 0) {
        feed(stream, bytes, (size_t)size);
        return true;
    }
    if (stream->size > 0)
        feed(stream, "\n", 1);
    stream_close(stream);
    return false;
}

void stream_close(struct stream *stream)
{
    if (stream->sink->live == stream)
        stream->sink->live = NULL;
    if (stream->fd >= 0)
        close(stream->fd);
    stream->fd = -1;
    free(stream->line);
    stream->line = NULL;
    stream->size = 0;
    stream->capacity = 0;
}
