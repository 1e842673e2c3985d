// SPDX-License-Identifier: Apache-2.0
//
// Links to ranks of this host. A link is two rings of bytes in memory that both processes have
// mapped (shm_ring.h), and a connected unix socket beside the rings (SOCK_SEQPACKET, so that
// messages stay whole). The socket passes descriptors, shows at once that the other process has
// died, and is the doorbell. Not here: which rank connects to which (unix.c), frames.
// Thread: one owner of a link at a time; the two ends may be in different processes.
//
// How a link is formed. The first bytes of each direction, the proofs (link.h), travel over the
// socket. Until the peer has proven membership, this side reads nothing else and accepts no
// descriptor: the kernel drops descriptors before they get a number in this process. Then the side
// that connected passes the memory that it has made; the other side checks the seals and the size
// of the memory, and maps it. All later bytes go through the rings. Neither the memory nor the
// socket has a name in a file system, so the kernel frees both with the last process, whenever a
// process dies.
//
// Why no wake-up is lost. A side that is about to block exchanges SHM_ASLEEP into its word
// `asleep`, and then looks into the memory once more. A side that has changed something in memory
// exchanges SHM_AWAKE into the other side's word, and rings the bell if the word said that the
// other side slept. Both exchanges are read-modify-writes of one word, so one of them comes first
// in the word's modification order. If the sleeper's exchange is first, the other side reads ASLEEP
// and rings. If the other side's exchange is first, the sleeper reads the value that it left
// (acquire of a release), so the sleeper's look sees the change. That holds for every change before
// the exchange, also for changes of memory that link_ops.wake is called for. Only the side that
// clears the word rings, so at most one bell answers a sleep. A side that finds its word cleared
// when it runs again empties the socket, so bells do not pile up in the socket. If the socket is
// full, a bell can be dropped: the socket has unread messages, and each of them has made it
// readable.
//
// A reader announces room only to a writer that sleeps because the ring was full (SHM_ASLEEP_FULL),
// and only when at least SHM_ROOM_BYTES are free. No writer is forgotten: a reader goes on until
// the ring is empty, publishes its count, and then reads the writer's word.
//
// Ends. A writer that ends writes SHM_SHUT or SHM_RESET to memory. A process that dies writes
// nothing, but its socket ends. In both cases the bytes in the ring are received first: a receiver
// reads the end before its last look at the ring, and the memory outlives its writer.

#include "worker/link/shm.h"

#include "worker/link/shm_memory.h"
#include "worker/link/shm_pull.h"
#include "worker/link/shm_socket.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

// ---- receiving ----------------------------------------------------------------------------------

// Tells the writer of room early enough that the writer can go on while this side copies the next
// piece.
static void shm_give_room(struct shm_link *shm)
{
    struct shm_side *peer = shm_peer_side(shm);
    shm_ring_publish_read(&shm->reader);
    // A read-modify-write that changes nothing. A load is not enough: see "Why no wake-up is lost"
    // above.
    const uint32_t asleep = atomic_fetch_or_explicit(&peer->asleep, 0, memory_order_acq_rel);
    const uint64_t used = shm->reader.written - shm->reader.read;
    if (asleep == SHM_ASLEEP_FULL && used <= SHM_RING_BYTES - SHM_ROOM_BYTES)
        shm_tell(shm);
}

static ssize_t shm_receive_ring(struct shm_link *shm, const struct iovec *iov, int count)
{
    size_t total = 0;
    size_t untold = 0;
    for (int i = 0; i < count; i++) {
        uint8_t *bytes = iov[i].iov_base;
        size_t left = iov[i].iov_len;
        size_t part = 0;
        for (; left > 0; left -= part, bytes += part) {
            if (!shm_ring_get(&shm->reader, bytes, left < SHM_PIECE_BYTES ? left : SHM_PIECE_BYTES,
                              &part))
                (void)shm_fail(shm, EPROTO);
            if (part == 0)
                break;
            total += part;
            untold += part;
            if (untold >= SHM_PIECE_BYTES) {
                shm_give_room(shm);
                untold = 0;
            }
        }
        if (left > 0)
            break;
    }
    if (untold > 0)
        shm_give_room(shm);
    return (ssize_t)total;
}

// How the peer's direction ends, as seen by this side. It is read before the last look at the ring.
enum shm_close_state {
    SHM_GOES_ON,
    SHM_ENDED,
    SHM_BROKEN, // See shm->error.
};

static enum shm_close_state shm_look_end(struct shm_link *shm)
{
    const bool ready = shm->ready;
    const uint32_t end =
        ready ? atomic_load_explicit(&shm->reader.shared->end, memory_order_acquire) : SHM_OPEN;
    if (shm->error != 0)
        return SHM_BROKEN;
    if (end == SHM_RESET || end > SHM_RESET) {
        (void)shm_fail(shm, end == SHM_RESET ? ECONNRESET : EPROTO);
        return SHM_BROKEN;
    }
    return shm->gone || end == SHM_SHUT ? SHM_ENDED : SHM_GOES_ON;
}

static ssize_t shm_receive(struct link *link, const struct iovec *iov, int count)
{
    struct shm_link *shm = shm_of(link);
    if (shm->plain_in > 0 || shm->plain_first < shm->plain_end || !shm->trusted) {
        if (shm->error != 0)
            return shm_fail(shm, shm->error);
        return shm_socket_receive_plain(shm, iov, count);
    }
    ssize_t received = shm->ready ? shm_receive_ring(shm, iov, count) : 0;
    if (received > 0)
        return received;
    shm_socket_drain(shm);
    const enum shm_close_state state = shm_look_end(shm);
    received = shm->ready ? shm_receive_ring(shm, iov, count) : 0;
    if (received > 0)
        return received;
    if (state == SHM_ENDED)
        return 0;
    errno = shm->error != 0 ? shm->error : EAGAIN;
    return -1;
}

static size_t shm_readable(struct link *link)
{
    struct shm_link *shm = shm_of(link);
    size_t available = 0;
    if (shm->plain_first < shm->plain_end)
        return shm->plain_end - shm->plain_first;
    if (shm->ready && !shm_ring_look_bytes(&shm->reader, &available))
        (void)shm_fail(shm, EPROTO);
    return available;
}

static size_t shm_unsent(struct link *link)
{
    struct shm_link *shm = shm_of(link);
    size_t room = SHM_RING_BYTES;
    if (shm->ready && !shm_ring_look_room(&shm->writer, &room))
        (void)shm_fail(shm, EPROTO);
    return SHM_RING_BYTES - room;
}

// Both processes map the ring, so all unsent bytes have reached the peer's host.
static bool shm_reached(struct link *link)
{
    return shm_of(link)->ready;
}

// ---- sending ------------------------------------------------------------------------------------

static void shm_give_bytes(struct shm_link *shm)
{
    shm_ring_publish_written(&shm->writer);
    shm_tell(shm);
}

static ssize_t shm_send_ring(struct shm_link *shm, const struct iovec *iov, int count)
{
    size_t total = 0;
    size_t untold = 0;
    for (int i = 0; i < count; i++) {
        const uint8_t *bytes = iov[i].iov_base;
        size_t left = iov[i].iov_len;
        size_t part = 0;
        for (; left > 0; left -= part, bytes += part) {
            if (!shm_ring_put(&shm->writer, bytes, left < SHM_PIECE_BYTES ? left : SHM_PIECE_BYTES,
                              &part))
                return shm_fail(shm, EPROTO);
            if (part == 0)
                break;
            total += part;
            untold += part;
            if (untold >= SHM_PIECE_BYTES) {
                shm_give_bytes(shm);
                untold = 0;
            }
        }
        if (left > 0)
            break;
    }
    if (untold > 0)
        shm_give_bytes(shm);
    return (ssize_t)total;
}

// True if there will never be room again. The function asks the kernel only while there is no
// memory; later the epoll event of the socket shows the end.
static bool shm_hopeless(const struct shm_link *shm)
{
    struct pollfd socket = {.fd = shm->link.fd, .events = POLLRDHUP};
    if (shm->ready)
        return atomic_load_explicit(&shm->reader.shared->end, memory_order_acquire) == SHM_RESET;
    return poll(&socket, 1, 0) == 1 && (socket.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

static ssize_t shm_send(struct link *link, const struct iovec *iov, int count)
{
    struct shm_link *shm = shm_of(link);
    if (shm->error != 0 || shm->gone || shm->shut) {
        errno = shm->error == 0 || shm->error == ECONNRESET ? EPIPE : shm->error;
        return -1;
    }
    if (shm->plain_out > 0)
        return shm_socket_send_plain(shm, iov, count);
    if (!shm->ready && shm->maker && shm->trusted)
        shm_socket_hand_over(shm);
    if (shm->error != 0)
        return shm_fail(shm, shm->error);
    const ssize_t sent = shm->ready ? shm_send_ring(shm, iov, count) : 0;
    shm->full = sent == 0;
    if (sent != 0)
        return sent;
    errno = shm_hopeless(shm) ? EPIPE : EAGAIN;
    return -1;
}

static void shm_say_end(struct shm_link *shm, enum shm_end end)
{
    shm->shut = true;
    if (!shm->ready) {
        (void)shutdown(shm->link.fd, SHUT_WR);
        return;
    }
    atomic_store_explicit(&shm->writer.shared->end, end, memory_order_release);
    shm_tell(shm);
}

static void shm_shut(struct link *link)
{
    struct shm_link *shm = shm_of(link);
    if (!shm->shut)
        shm_say_end(shm, SHM_SHUT);
}

// ---- waiting ------------------------------------------------------------------------------------

static bool shm_pending(struct link *link)
{
    struct shm_link *shm = shm_of(link);
    if (!shm->ready)
        return false;
    const struct shm_direction *in = shm->reader.shared;
    if (shm->error != 0 || shm->gone ||
        atomic_load_explicit(&in->written, memory_order_acquire) != shm->reader.read ||
        atomic_load_explicit(&in->end, memory_order_acquire) != SHM_OPEN)
        return true;
    const uint64_t announced =
        atomic_load_explicit(&shm_peer_side(shm)->passed, memory_order_acquire);
    if (announced != shm->announced) {
        shm->announced = announced;
        return true;
    }
    size_t room = 0;
    if (!shm->full)
        return false;
    if (!shm_ring_look_room(&shm->writer, &room))
        (void)shm_fail(shm, EPROTO);
    else if (room < SHM_ROOM_BYTES)
        return false;
    shm->full = false; // Room is reported once.
    return true;
}

static void shm_sleep(struct link *link, bool asleep)
{
    struct shm_link *shm = shm_of(link);
    if (!shm->ready)
        return;
    const uint32_t sleeps = shm->full ? SHM_ASLEEP_FULL : SHM_ASLEEP;
    const uint32_t before = atomic_exchange_explicit(
        &shm_own_side(shm)->asleep, asleep ? sleeps : SHM_AWAKE, memory_order_acq_rel);
    if (shm->asleep && before == SHM_AWAKE)
        shm_socket_drain(shm); // The peer cleared the word, so it has rung the bell.
    shm->asleep = asleep;
}

static void shm_wake(struct link *link)
{
    struct shm_link *shm = shm_of(link);
    if (shm->ready)
        shm_tell(shm);
}

// ---- descriptors --------------------------------------------------------------------------------

static int shm_pass(struct link *link, const struct link_note *note, int fd)
{
    struct shm_link *shm = shm_of(link);
    if (shm->error != 0 || shm->gone) {
        errno = shm->error != 0 ? shm->error : EPIPE;
        return -1;
    }
    if (!shm->ready) {
        errno = EAGAIN;
        return -1;
    }
    const uint64_t taken = atomic_load_explicit(&shm_peer_side(shm)->taken, memory_order_acquire);
    if (taken > shm->passed)
        return (int)shm_fail(shm, EPROTO);
    if (shm->passed - taken >= SHM_NOTES) {
        errno = EAGAIN;
        return -1;
    }
    if (shm_socket_say(shm, SHM_DESCRIPTOR, note, fd) < 0)
        return -1;
    atomic_store_explicit(&shm_own_side(shm)->passed, ++shm->passed, memory_order_release);
    shm_tell(shm);
    return 0;
}

static int shm_take(struct link *link, struct link_note *note)
{
    struct shm_link *shm = shm_of(link);
    errno = EAGAIN;
    if (!shm->ready)
        return -1;
    // The socket is read only if the peer's count says that a descriptor is in it.
    if (shm->note_count == 0 &&
        atomic_load_explicit(&shm_peer_side(shm)->passed, memory_order_acquire) != shm->taken)
        shm_socket_drain(shm);
    if (shm->note_count == 0) {
        errno = EAGAIN;
        return -1;
    }
    const struct shm_note *next = &shm->notes[shm->note_first];
    *note = next->note;
    const int fd = next->fd;
    shm->note_first = (shm->note_first + 1) % SHM_NOTES;
    shm->note_count--;
    atomic_store_explicit(&shm_own_side(shm)->taken, ++shm->taken, memory_order_release);
    shm_tell(shm); // The peer may wait for a free place in notes[].
    if (fd < 0)
        errno = EMFILE;
    return fd;
}

// ---- life ---------------------------------------------------------------------------------------

static int shm_connected(struct link *link)
{
    (void)link;
    return 1;
}

// A stopped process of this host is alive, and the death of a process ends the socket.
static int shm_check(struct link *link)
{
    (void)link;
    return 0;
}

static void shm_proven(struct link *link, const uint8_t key[LOCKSTEP_PROOF_BYTES])
{
    struct shm_link *shm = shm_of(link);
    (void)key;
    shm->trusted = true;
    if (shm->maker)
        shm_socket_hand_over(shm);
}

static bool shm_ready(struct link *link)
{
    return shm_of(link)->ready;
}

static void shm_close(struct link *link, bool reset)
{
    struct shm_link *shm = shm_of(link);
    if (shm->ready && (reset || !shm->shut))
        shm_say_end(shm, reset ? SHM_RESET : SHM_SHUT);
    for (; shm->note_count > 0; shm->note_count--) {
        if (shm->notes[shm->note_first].fd >= 0)
            (void)close(shm->notes[shm->note_first].fd);
        shm->note_first = (shm->note_first + 1) % SHM_NOTES;
    }
    shm_memory_unmap(shm->memory);
    if (shm->memory_fd >= 0)
        (void)close(shm->memory_fd);
    (void)close(shm->link.fd);
    free(shm);
}

static const struct link_ops shm_ops = {
    .connected = shm_connected,
    .proven = shm_proven,
    .ready = shm_ready,
    .send = shm_send,
    .receive = shm_receive,
    .readable = shm_readable,
    .unsent = shm_unsent,
    .reached = shm_reached,
    .check = shm_check,
    .pending = shm_pending,
    .sleep = shm_sleep,
    .wake = shm_wake,
    .pass = shm_pass,
    .take = shm_take,
    .pull = shm_pull,
    .pulls = shm_pull_may,
    .shut = shm_shut,
    .close = shm_close,
};

struct link *shm_link_make(int fd, struct shm_memory *memory, int memory_fd)
{
    struct shm_link *shm = calloc(1, sizeof(*shm));
    if (!shm) {
        shm_memory_unmap(memory);
        if (memory_fd >= 0)
            (void)close(memory_fd);
        (void)close(fd);
        return NULL;
    }
    shm->link = (struct link){.ops = &shm_ops, .fd = fd, .short_is_dry = true};
    shm->maker = memory != NULL;
    shm->memory = memory;
    shm->memory_fd = memory_fd;
    shm->plain_out = shm->maker ? LINK_HELLO_BYTES : LINK_ANSWER_BYTES;
    shm->plain_in = shm->maker ? LINK_ANSWER_BYTES : LINK_HELLO_BYTES;
    return &shm->link;
}
