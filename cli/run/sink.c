// SPDX-License-Identifier: Apache-2.0
//
// A buffer in front of a descriptor, and the thread that empties it; sink.h has the contract. The
// writer runs write_out, the thread that opened the sink runs everything else.

#include "cli/run/sink.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

// ---- The writer --------------------------------------------------------------------------------

static void notify(const struct sink *sink)
{
    uint64_t one = 1;
    ssize_t ignored = write(sink->event_fd, &one, sizeof(one));
    (void)ignored; // If the counter is full, event_fd is readable already.
}

// Blocks until some bytes were written. Returns their number, or -1 with errno.
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

// Waits for bytes. Returns how many are contiguous in the ring, or 0 at the end.
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

// Takes bytes out of the ring. error: 0 if they were written, else why they are dropped.
static void consumed(struct sink *sink, size_t size, int error)
{
    mutex_lock(&sink->mutex);
    sink->first = (sink->first + size) % SINK_BYTES;
    sink->size -= size;
    sink->broken |= error == EPIPE;
    if (error && error != EPIPE) {
        sink->error = sink->error ? sink->error : error;
        sink->lost += size;
    }
    mutex_unlock(&sink->mutex);
    notify(sink);
}

// Writes bytes whose predecessors were dropped. A line that was written in part ends first.
static ssize_t write_again(int fd, const char *bytes, size_t size, bool *torn)
{
    if (*torn && write_some(fd, "\n", 1) < 0)
        return -1;
    *torn = false;
    return write_some(fd, bytes, size);
}

static void write_out(void *argument)
{
    struct sink *sink = argument;
    const char *bytes = NULL;
    int error = 0;
    bool torn = false; // True if the last byte that was written is inside a line.
    for (size_t run = next_run(sink, &bytes); run > 0; run = next_run(sink, &bytes)) {
        ssize_t written = -1;
        if (error == 0)
            written = write_some(sink->fd, bytes, run);
        else if (error != EPIPE)
            written = write_again(sink->fd, bytes, run, &torn);
        if (written > 0)
            torn = bytes[written - 1] != '\n';
        if (error != EPIPE)
            error = written >= 0 ? 0 : sink->framed ? EPIPE : errno;
        consumed(sink, written < 0 ? run : (size_t)written, error);
    }
    // The launcher's last line must not begin in the middle of a worker's line.
    if (error && error != EPIPE && torn)
        (void)write_some(sink->fd, "\n", 1);
    mutex_lock(&sink->mutex);
    sink->done = true;
    mutex_unlock(&sink->mutex);
    notify(sink);
}

// ---- The sink, from the reader's side ----------------------------------------------------------

int sink_open(struct sink *sink, int fd, bool framed)
{
    memset(sink, 0, sizeof(*sink));
    sink->fd = fd;
    sink->framed = framed;
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

void sink_dump(struct sink *sink)
{
    while (sink->size > 0) {
        const size_t run =
            SINK_BYTES - sink->first < sink->size ? SINK_BYTES - sink->first : sink->size;
        const ssize_t written = write_some(sink->fd, sink->bytes + sink->first, run);
        if (written < 0)
            return;
        sink->first = (sink->first + (size_t)written) % SINK_BYTES;
        sink->size -= (size_t)written;
    }
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

int sink_error(struct sink *sink, uint64_t *lost)
{
    mutex_lock(&sink->mutex);
    const int error = sink->error;
    *lost = sink->lost;
    mutex_unlock(&sink->mutex);
    return error;
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

void sink_put_locked(struct sink *sink, const char *bytes, size_t size)
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

void sink_put_frame(struct sink *sink, const struct relay_header *header, const void *bytes)
{
    unsigned char encoded[RELAY_HEADER_BYTES];
    relay_put_header(encoded, header);
    mutex_lock(&sink->mutex);
    sink_put_locked(sink, (const char *)encoded, sizeof(encoded));
    if (header->size > 0)
        sink_put_locked(sink, bytes, header->size);
    cond_signal(&sink->changed);
    mutex_unlock(&sink->mutex);
}
