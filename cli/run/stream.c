// SPDX-License-Identifier: Apache-2.0
//
// Copies lines from a worker's pipe into a sink; stream.h has the rules.

#include "cli/run/stream.h"

#include "cli/run/log_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ERASE_LINE "\r\x1b[K"
#define LIVE_BYTES 1024 // An unfinished line is drawn up to this length.
#define FIRST_LINE_BYTES 256

static void put_text_locked(struct sink *sink, const char *text)
{
    sink_put_locked(sink, text, strlen(text));
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
    sink_put_locked(sink, live->line, live->size < LIVE_BYTES ? live->size : LIVE_BYTES);
    sink->live_shown = true;
}

// Puts the complete line into the sink.
static void end_line_locked(struct stream *stream)
{
    struct sink *sink = stream->sink;
    hide_live_locked(sink);
    if (sink->live == stream)
        sink->live = NULL;
    put_text_locked(sink, stream->prefix);
    sink_put_locked(sink, stream->line, stream->size);
    put_text_locked(sink, "\n");
    stream->size = 0;
    stream->carriage = false;
    stream->updating = false;
}

// Makes room for size bytes in the line. Returns false if there is no memory; then the line is cut.
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
        if (stream->size == STREAM_LINE_BYTES)
            end_line_locked(stream);
        size_t part = STREAM_LINE_BYTES - stream->size;
        if (part > size)
            part = size;
        if (!reserve(stream, stream->size + part))
            return;
        memcpy(stream->line + stream->size, bytes, part);
        stream->size += part;
        bytes += part;
        size -= part;
    }
}

// Starts the line again, because bytes follow a carriage return.
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

static void feed_lines(struct stream *stream, const char *bytes, size_t size)
{
    struct sink *sink = stream->sink;
    mutex_lock(&sink->mutex);
    feed_locked(stream, bytes, size);
    cond_signal(&sink->changed);
    mutex_unlock(&sink->mutex);
}

static void feed_frame(struct stream *stream, enum relay_kind kind, const char *bytes, size_t size)
{
    const struct relay_header header = {.kind = (uint8_t)kind,
                                        .stream = stream->number,
                                        .rank = stream->rank,
                                        .size = (uint32_t)size};
    sink_put_frame(stream->sink, &header, bytes);
}

void stream_feed(struct stream *stream, const char *bytes, size_t size)
{
    if (stream->log)
        log_file_write(stream->log, bytes, size);
    if (stream->framed)
        feed_frame(stream, RELAY_OUTPUT, bytes, size);
    else
        feed_lines(stream, bytes, size);
}

// ---- Streams -----------------------------------------------------------------------------------

void stream_open(struct stream *stream, struct sink *sink, int fd, const char *prefix, bool live,
                 struct log_file *log)
{
    memset(stream, 0, sizeof(*stream));
    stream->sink = sink;
    stream->open = true;
    stream->fd = fd;
    stream->log = log;
    stream->live = live && sink->terminal;
    size_t size = strlen(prefix);
    if (size >= sizeof(stream->prefix))
        size = sizeof(stream->prefix) - 1;
    memcpy(stream->prefix, prefix, size);
}

void stream_open_framed(struct stream *stream, struct sink *sink, int fd, uint32_t rank,
                        uint8_t number)
{
    stream_open(stream, sink, fd, "", false, NULL);
    stream->framed = true;
    stream->rank = rank;
    stream->number = number;
}

void stream_end(struct stream *stream)
{
    if (stream->framed)
        feed_frame(stream, RELAY_CLOSED, NULL, 0);
    else if (stream->size > 0)
        feed_lines(stream, "\n", 1);
    stream_close(stream);
}

bool stream_read(struct stream *stream)
{
    char bytes[STREAM_READ_BYTES];
    ssize_t size = read(stream->fd, bytes, sizeof(bytes));
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (size > 0)
        stream_feed(stream, bytes, (size_t)size);
    else
        stream_end(stream);
    return size > 0;
}

void stream_close(struct stream *stream)
{
    if (!stream->open)
        return;
    if (stream->sink->live == stream)
        stream->sink->live = NULL;
    if (stream->fd >= 0)
        close(stream->fd);
    stream->open = false;
    stream->fd = -1;
    free(stream->line);
    stream->line = NULL;
    stream->size = 0;
    stream->capacity = 0;
}
