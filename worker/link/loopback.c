// SPDX-License-Identifier: Apache-2.0
//
// Links inside one process, for tests. A link has two bounded pipes of bytes, one for each
// direction, and an eventfd at each end. The eventfd is written when that end should try again: a
// pipe that was empty has bytes, or one that was full has room. A registry of the process finds
// listeners by number. Not fast, and not for links between processes.
//
// Thread: each end has its own owner thread. All ends of the process share the registry's mutex;
// each pair has its own mutex. Lock order: registry -> pair.

#include "worker/link/loopback.h"

#include "worker/link/link.h"

#include "base/list.h"
#include "base/mutex.h"
#include "base/parse.h"
#include "base/text.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define LOOPBACK_PIPE_BYTES (256 * 1024)
#define LOOPBACK_BACKLOG 128
#define LOOPBACK_PASSED 8 // Most descriptors that were passed in one direction and not taken.

struct loopback_passed {
    struct link_note note;
    int fd;
};

struct loopback_pipe {
    size_t first; // Index of the oldest byte in bytes[].
    size_t count;
    bool ended; // True if the writer sends nothing more.
    bool broken; // True if the writer reset the connection.
    uint32_t passed_count;
    struct loopback_passed passed[LOOPBACK_PASSED];
    uint8_t bytes[LOOPBACK_PIPE_BYTES];
};

struct loopback_end {
    struct link link;
    // set when made, then constant
    struct loopback_pair *pair;
    int side; // This end reads pair->pipes[side] and writes the other pipe.
    uint32_t torn_bytes;
    // guarded by pair->mutex
    bool open;
};

struct loopback_pair {
    struct mutex mutex;
    // guarded by mutex
    struct loopback_pipe pipes[2];
    struct loopback_end ends[2];
    // guarded by registry.mutex
    struct list backlog;
};

struct loopback_listener {
    struct listener listener;
    // set at open, then constant
    uint64_t number;
    uint32_t torn_bytes;
    // guarded by registry.mutex
    struct list registered;
    struct list backlog; // Pairs whose side 1 waits to be accepted.
    uint32_t waiting;
};

static struct {
    struct mutex mutex;
    // guarded by mutex
    struct list listeners;
    uint64_t last_number;
} registry = {
    .mutex = MUTEX_INITIALIZER,
    .listeners = {&registry.listeners, &registry.listeners},
};

static void loopback_signal(int fd)
{
    const uint64_t one = 1;
    const ssize_t written = write(fd, &one, sizeof(one));
    (void)written; // If the counter is full, the descriptor is readable already.
}

static struct loopback_end *loopback_of(struct link *link)
{
    return (struct loopback_end *)(void *)link;
}

static struct loopback_end *loopback_other(const struct loopback_end *end)
{
    return &end->pair->ends[1 - end->side];
}

static void loopback_signal_other_locked(const struct loopback_end *end)
{
    mutex_assert_held(&end->pair->mutex);
    if (loopback_other(end)->open)
        loopback_signal(loopback_other(end)->link.fd);
}

static size_t loopback_bound(const struct loopback_end *end, size_t bytes)
{
    return end->torn_bytes != 0 && end->torn_bytes < bytes ? end->torn_bytes : bytes;
}

// ---- one end ------------------------------------------------------------------------------------

static int loopback_connected(struct link *link)
{
    (void)link;
    return 1;
}

static size_t pipe_write(struct loopback_pipe *pipe, const uint8_t *bytes, size_t size)
{
    size_t done = 0;
    while (done < size && pipe->count < LOOPBACK_PIPE_BYTES) {
        const size_t at = (pipe->first + pipe->count) % LOOPBACK_PIPE_BYTES;
        size_t part = size - done;
        if (part > LOOPBACK_PIPE_BYTES - pipe->count)
            part = LOOPBACK_PIPE_BYTES - pipe->count;
        if (part > LOOPBACK_PIPE_BYTES - at)
            part = LOOPBACK_PIPE_BYTES - at;
        memcpy(pipe->bytes + at, bytes + done, part);
        pipe->count += part;
        done += part;
    }
    return done;
}

static size_t pipe_read(struct loopback_pipe *pipe, uint8_t *bytes, size_t size)
{
    size_t done = 0;
    while (done < size && pipe->count > 0) {
        size_t part = size - done;
        if (part > pipe->count)
            part = pipe->count;
        if (part > LOOPBACK_PIPE_BYTES - pipe->first)
            part = LOOPBACK_PIPE_BYTES - pipe->first;
        memcpy(bytes + done, pipe->bytes + pipe->first, part);
        pipe->first = (pipe->first + part) % LOOPBACK_PIPE_BYTES;
        pipe->count -= part;
        done += part;
    }
    return done;
}

// Moves up to `most` bytes between the vectors and the pipe. Returns the number of bytes moved.
static size_t pipe_move(struct loopback_pipe *pipe, const struct iovec *iov, int count, size_t most,
                        bool writes)
{
    size_t done = 0;
    for (int i = 0; i < count && done < most; i++) {
        size_t size = iov[i].iov_len;
        if (size > most - done)
            size = most - done;
        const size_t moved = writes ? pipe_write(pipe, iov[i].iov_base, size)
                                    : pipe_read(pipe, iov[i].iov_base, size);
        done += moved;
        if (moved < size)
            break;
    }
    return done;
}

static ssize_t loopback_send(struct link *link, const struct iovec *iov, int count)
{
    struct loopback_end *end = loopback_of(link);
    struct loopback_pipe *pipe = &end->pair->pipes[1 - end->side];
    ssize_t result = -1;
    mutex_lock(&end->pair->mutex);
    if (!loopback_other(end)->open || pipe->ended) {
        errno = EPIPE;
    } else if (pipe->count == LOOPBACK_PIPE_BYTES) {
        errno = EAGAIN;
    } else {
        const bool was_empty = pipe->count == 0;
        result = (ssize_t)pipe_move(pipe, iov, count, loopback_bound(end, SIZE_MAX), true);
        if (was_empty)
            loopback_signal_other_locked(end);
    }
    mutex_unlock(&end->pair->mutex);
    return result;
}

static ssize_t loopback_receive(struct link *link, const struct iovec *iov, int count)
{
    struct loopback_end *end = loopback_of(link);
    struct loopback_pipe *pipe = &end->pair->pipes[end->side];
    ssize_t result = -1;
    mutex_lock(&end->pair->mutex);
    if (pipe->count > 0) {
        const bool was_full = pipe->count == LOOPBACK_PIPE_BYTES;
        result = (ssize_t)pipe_move(pipe, iov, count, loopback_bound(end, SIZE_MAX), false);
        if (was_full)
            loopback_signal_other_locked(end);
    } else if (pipe->broken) {
        errno = ECONNRESET;
    } else if (pipe->ended) {
        result = 0;
    } else {
        errno = EAGAIN;
    }
    mutex_unlock(&end->pair->mutex);
    return result;
}

static size_t loopback_readable(struct link *link)
{
    struct loopback_end *end = loopback_of(link);
    mutex_lock(&end->pair->mutex);
    const size_t bytes = loopback_bound(end, end->pair->pipes[end->side].count);
    mutex_unlock(&end->pair->mutex);
    return bytes;
}

static int loopback_check(struct link *link)
{
    (void)link;
    return 0;
}

static void loopback_wake(struct link *link)
{
    struct loopback_end *end = loopback_of(link);
    mutex_lock(&end->pair->mutex);
    loopback_signal_other_locked(end);
    mutex_unlock(&end->pair->mutex);
}

static int loopback_pass(struct link *link, const struct link_note *note, int fd)
{
    struct loopback_end *end = loopback_of(link);
    struct loopback_pipe *pipe = &end->pair->pipes[1 - end->side];
    int result = -1;
    mutex_lock(&end->pair->mutex);
    if (!loopback_other(end)->open) {
        errno = EPIPE;
    } else if (pipe->passed_count == LOOPBACK_PASSED) {
        errno = EAGAIN;
    } else {
        struct loopback_passed *passed = &pipe->passed[pipe->passed_count];
        *passed = (struct loopback_passed){.note = *note, .fd = fcntl(fd, F_DUPFD_CLOEXEC, 0)};
        result = passed->fd < 0 ? -1 : 0;
        pipe->passed_count += result == 0;
        loopback_signal_other_locked(end);
    }
    mutex_unlock(&end->pair->mutex);
    return result;
}

static int loopback_take(struct link *link, struct link_note *note)
{
    struct loopback_end *end = loopback_of(link);
    struct loopback_pipe *pipe = &end->pair->pipes[end->side];
    int fd = -1;
    mutex_lock(&end->pair->mutex);
    errno = EAGAIN;
    if (pipe->passed_count > 0) {
        fd = pipe->passed[0].fd;
        *note = pipe->passed[0].note;
        pipe->passed_count--;
        memmove(&pipe->passed[0], &pipe->passed[1], pipe->passed_count * sizeof(pipe->passed[0]));
    }
    mutex_unlock(&end->pair->mutex);
    return fd;
}

static void loopback_shut(struct link *link)
{
    struct loopback_end *end = loopback_of(link);
    mutex_lock(&end->pair->mutex);
    end->pair->pipes[1 - end->side].ended = true;
    loopback_signal_other_locked(end);
    mutex_unlock(&end->pair->mutex);
}

static void loopback_close(struct link *link, bool reset)
{
    struct loopback_end *end = loopback_of(link);
    struct loopback_pair *pair = end->pair;
    mutex_lock(&pair->mutex);
    end->open = false;
    pair->pipes[1 - end->side].ended = true;
    pair->pipes[1 - end->side].broken = reset;
    loopback_signal_other_locked(end);
    (void)close(end->link.fd);
    const bool last = !loopback_other(end)->open;
    mutex_unlock(&pair->mutex);
    if (!last)
        return;
    for (int i = 0; i < 2; i++)
        for (uint32_t k = 0; k < pair->pipes[i].passed_count; k++)
            (void)close(pair->pipes[i].passed[k].fd);
    mutex_fini(&pair->mutex);
    free(pair);
}

static const struct link_ops loopback_ops = {
    .connected = loopback_connected,
    .send = loopback_send,
    .receive = loopback_receive,
    .readable = loopback_readable,
    .check = loopback_check,
    .wake = loopback_wake,
    .pass = loopback_pass,
    .take = loopback_take,
    .shut = loopback_shut,
    .close = loopback_close,
};

// ---- connecting ---------------------------------------------------------------------------------

static bool loopback_end_init(struct loopback_pair *pair, int side, uint32_t torn_bytes)
{
    struct loopback_end *end = &pair->ends[side];
    *end = (struct loopback_end){
        .link = {.ops = &loopback_ops, .fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)},
        .pair = pair,
        .side = side,
        .torn_bytes = torn_bytes,
        .open = true,
    };
    return end->link.fd >= 0;
}

static struct loopback_pair *loopback_pair_make(uint32_t torn_here, uint32_t torn_there)
{
    struct loopback_pair *pair = calloc(1, sizeof(*pair));
    if (!pair)
        return NULL;
    mutex_init(&pair->mutex);
    list_init(&pair->backlog);
    const bool made[2] = {loopback_end_init(pair, 0, torn_here),
                          loopback_end_init(pair, 1, torn_there)};
    if (made[0] && made[1])
        return pair;
    for (int i = 0; i < 2; i++)
        if (made[i])
            (void)close(pair->ends[i].link.fd);
    mutex_fini(&pair->mutex);
    free(pair);
    return NULL;
}

static struct loopback_listener *registry_find_locked(uint64_t number)
{
    mutex_assert_held(&registry.mutex);
    list_for_each (node, &registry.listeners) {
        struct loopback_listener *found = list_entry(node, struct loopback_listener, registered);
        if (found->number == number)
            return found;
    }
    return NULL;
}

static struct loopback_pair *registry_connect_locked(uint64_t number, uint32_t torn_bytes)
{
    struct loopback_listener *listener = registry_find_locked(number);
    if (!listener || listener->waiting == LOOPBACK_BACKLOG)
        return NULL;
    struct loopback_pair *pair = loopback_pair_make(torn_bytes, listener->torn_bytes);
    if (!pair)
        return NULL;
    list_push_back(&listener->backlog, &pair->backlog);
    listener->waiting++;
    loopback_signal(listener->listener.fd);
    return pair;
}

struct link *link_connect_loopback(const char *number, uint32_t torn_bytes, char *error,
                                   size_t error_bytes)
{
    uint64_t value = 0;
    struct loopback_pair *pair = NULL;
    if (parse_u64(number, &value)) {
        mutex_lock(&registry.mutex);
        pair = registry_connect_locked(value, torn_bytes);
        mutex_unlock(&registry.mutex);
    }
    if (pair)
        return &pair->ends[0].link;
    struct text text;
    text_init(&text, error, error_bytes);
    text_append(&text, "connect to loopback:%s: connection refused", number);
    return NULL;
}

static struct link *loopback_accept(struct listener *base)
{
    struct loopback_listener *listener = (struct loopback_listener *)(void *)base;
    uint64_t drained = 0;
    mutex_lock(&registry.mutex);
    struct list *node = list_pop_front(&listener->backlog);
    if (node)
        listener->waiting--;
    else if (read(base->fd, &drained, sizeof(drained)) < 0)
        drained = 0; // The descriptor was not readable, so there is nothing to drain.
    mutex_unlock(&registry.mutex);
    return node ? &list_entry(node, struct loopback_pair, backlog)->ends[1].link : NULL;
}

static void loopback_listener_close(struct listener *base)
{
    struct loopback_listener *listener = (struct loopback_listener *)(void *)base;
    mutex_lock(&registry.mutex);
    list_remove(&listener->registered);
    mutex_unlock(&registry.mutex);
    for (struct link *link = loopback_accept(base); link; link = loopback_accept(base))
        loopback_close(link, true);
    (void)close(base->fd);
    free(listener);
}

static const struct listener_ops loopback_listener_ops = {
    .accept = loopback_accept,
    .close = loopback_listener_close,
};

struct listener *loopback_listener_open(uint32_t torn_bytes, char *error, size_t error_bytes)
{
    struct text text;
    struct loopback_listener *listener = calloc(1, sizeof(*listener));
    const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!listener || fd < 0) {
        text_init(&text, error, error_bytes);
        text_append(&text, "listen: no memory or no descriptor");
        if (fd >= 0)
            (void)close(fd);
        free(listener);
        return NULL;
    }
    listener->listener.ops = &loopback_listener_ops;
    listener->listener.fd = fd;
    listener->torn_bytes = torn_bytes;
    list_init(&listener->backlog);
    list_init(&listener->registered);
    mutex_lock(&registry.mutex);
    listener->number = ++registry.last_number;
    list_push_back(&registry.listeners, &listener->registered);
    mutex_unlock(&registry.mutex);
    text_init(&text, listener->listener.address, sizeof(listener->listener.address));
    text_append(&text, "loopback:%llu", (unsigned long long)listener->number);
    return &listener->listener;
}
