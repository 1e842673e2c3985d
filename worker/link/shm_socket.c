// SPDX-License-Identifier: Apache-2.0
//
// The socket beside the rings of a link between ranks of one host. It carries the proofs of both
// sides, the link's memory, bells, and descriptors with their notes. shm.c explains how a link is
// formed. Thread: the owner of the link.

#include "worker/link/shm_socket.h"

#include "worker/link/shm_memory.h"
#include "worker/link/shm_pull.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SHM_PLAIN_VECTORS 8
// Room for several descriptors, so that a message with more than one is noticed.
#define SHM_MESSAGE_DESCRIPTORS 4

// ---- the memory of the link --------------------------------------------------------------------

static void socket_attach(struct shm_link *shm)
{
    const int own = shm->maker ? 0 : 1;
    shm_ring_writer_init(&shm->writer, shm->memory, own);
    shm_ring_reader_init(&shm->reader, shm->memory, 1 - own);
    shm_pull_offer(shm);
    shm->ready = true;
    shm->full = true; // There was no room before this call, so pending has to report the room.
}

// The peer has passed the memory of the link. The descriptor is closed after the mapping.
static void socket_accept_memory(struct shm_link *shm, int fd)
{
    if (shm->maker || shm->memory || !shm_memory_is_sound(fd)) {
        (void)shm_fail(shm, EPROTO);
    } else {
        shm->memory = shm_memory_map(fd);
        if (shm->memory)
            socket_attach(shm);
        else
            (void)shm_fail(shm, errno);
    }
    (void)close(fd);
}

// ---- sending ------------------------------------------------------------------------------------

static ssize_t socket_send(int to, const struct iovec *iov, int count, int fd)
{
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)iov,
                             .msg_iovlen = (size_t)count};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof(control.bytes);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    }
    ssize_t sent = 0;
    do
        sent = sendmsg(to, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    // Too many descriptors of this user are on the way; some of them will arrive later.
    if (sent < 0 && errno == ETOOMANYREFS)
        errno = EAGAIN;
    return sent;
}

int shm_socket_say(struct shm_link *shm, enum shm_message_kind kind, const struct link_note *note,
                   int fd)
{
    struct shm_message message = {.kind = kind};
    if (note)
        message.note = *note;
    const struct iovec vector = {.iov_base = &message, .iov_len = sizeof(message)};
    return socket_send(shm->link.fd, &vector, 1, fd) < 0 ? -1 : 0;
}

void shm_socket_hand_over(struct shm_link *shm)
{
    if (shm->ready || shm->error != 0)
        return;
    if (shm_socket_say(shm, SHM_MEMORY, NULL, shm->memory_fd) < 0) {
        if (errno != EAGAIN)
            (void)shm_fail(shm, errno);
        return;
    }
    (void)close(shm->memory_fd);
    shm->memory_fd = -1;
    socket_attach(shm);
}

ssize_t shm_socket_send_plain(struct shm_link *shm, const struct iovec *iov, int count)
{
    struct iovec vectors[SHM_PLAIN_VECTORS];
    int used = 0;
    size_t left = shm->plain_out;
    for (int i = 0; i < count && left > 0 && used < SHM_PLAIN_VECTORS; i++) {
        const size_t part = iov[i].iov_len < left ? iov[i].iov_len : left;
        if (part == 0)
            continue;
        vectors[used++] = (struct iovec){.iov_base = iov[i].iov_base, .iov_len = part};
        left -= part;
    }
    assert(used > 0); // The peer would take an empty message for an end.
    const ssize_t sent = socket_send(shm->link.fd, vectors, used, -1);
    if (sent > 0)
        shm->plain_out -= (uint32_t)sent;
    return sent;
}

// ---- receiving ----------------------------------------------------------------------------------

// Takes the descriptors out of a message: the first into *fd; all others are closed. Returns the
// number of descriptors.
static size_t socket_descriptors(struct msghdr *message, int *fd)
{
    size_t count = 0;
    *fd = -1;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t bytes = header->cmsg_len - CMSG_LEN(0);
        for (size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int), count++) {
            int passed = -1;
            memcpy(&passed, CMSG_DATA(header) + at, sizeof(passed));
            if (count == 0)
                *fd = passed;
            else
                (void)close(passed);
        }
    }
    return count;
}

// Receives one message. Returns its bytes; 0: the end; -1: EAGAIN, or the link is broken now. With
// control == NULL the kernel drops descriptors and sets MSG_CTRUNC.
static ssize_t socket_receive(struct shm_link *shm, void *bytes, size_t size, void *control,
                              size_t control_bytes, struct msghdr *message)
{
    struct iovec vector = {.iov_base = bytes, .iov_len = size};
    ssize_t received = 0;
    do {
        *message = (struct msghdr){.msg_iov = &vector,
                                   .msg_iovlen = 1,
                                   .msg_control = control,
                                   .msg_controllen = control_bytes};
        received = recvmsg(shm->link.fd, message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        // ECONNRESET: the peer closed with unread messages of ours; messages of the peer may still
        // be here.
    } while (received < 0 && (errno == EINTR || errno == ECONNRESET));
    message->msg_iov = NULL;
    if (received == 0)
        shm->gone = true;
    else if (received < 0 && errno != EAGAIN)
        (void)shm_fail(shm, errno);
    return received;
}

static void socket_queue_note(struct shm_link *shm, const struct link_note *note, int fd)
{
    if (!shm->ready || shm->note_count == SHM_NOTES) {
        if (fd >= 0)
            (void)close(fd);
        (void)shm_fail(shm, EPROTO);
        return;
    }
    shm->notes[(shm->note_first + shm->note_count++) % SHM_NOTES] =
        (struct shm_note){.note = *note, .fd = fd};
}

// Takes one message from the socket. Returns false if there is none, or if the link has ended or is
// broken.
static bool socket_hear(struct shm_link *shm)
{
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(SHM_MESSAGE_DESCRIPTORS * sizeof(int))];
    } control;
    struct shm_message message;
    struct msghdr header;
    int fd = -1;
    const ssize_t received = socket_receive(shm, &message, sizeof(message), control.bytes,
                                            sizeof(control.bytes), &header);
    if (received <= 0)
        return false;
    const size_t count = socket_descriptors(&header, &fd);
    const bool cut = (header.msg_flags & MSG_CTRUNC) != 0;
    const bool whole = received == sizeof(message) && (header.msg_flags & MSG_TRUNC) == 0 && !cut;
    // This process has no free descriptor, so the kernel has dropped the one of the message. A
    // region is memory that the peer can do without.
    const bool lacked = received == sizeof(message) && cut && count == 0;
    if (whole && count == 0 && message.kind == SHM_BELL)
        return true;
    if (whole && count == 1 && message.kind == SHM_MEMORY) {
        socket_accept_memory(shm, fd);
        return shm->error == 0;
    }
    const bool region = message.kind == SHM_DESCRIPTOR && message.note.kind == LINK_NOTE_REGION;
    if ((whole && count == 1 && message.kind == SHM_DESCRIPTOR) || (lacked && region)) {
        socket_queue_note(shm, &message.note, fd);
        return shm->error == 0;
    }
    if (fd >= 0)
        (void)close(fd);
    (void)shm_fail(shm, lacked ? EMFILE : EPROTO);
    return false;
}

void shm_socket_drain(struct shm_link *shm)
{
    if (!shm->trusted || shm->plain_in > 0)
        return;
    while (!shm->gone && shm->error == 0 && socket_hear(shm))
        continue;
}

static ssize_t socket_give_plain(struct shm_link *shm, const struct iovec *iov, int count)
{
    size_t done = 0;
    for (int i = 0; i < count && shm->plain_first < shm->plain_end; i++) {
        const size_t left = shm->plain_end - shm->plain_first;
        const size_t part = iov[i].iov_len < left ? iov[i].iov_len : left;
        if (part == 0)
            continue;
        memcpy(iov[i].iov_base, shm->plain + shm->plain_first, part);
        shm->plain_first += (uint32_t)part;
        done += part;
    }
    return (ssize_t)done;
}

ssize_t shm_socket_receive_plain(struct shm_link *shm, const struct iovec *iov, int count)
{
    uint8_t none = 0;
    struct msghdr header;
    if (shm->plain_first < shm->plain_end)
        return socket_give_plain(shm, iov, count);
    const bool more = shm->plain_in > 0;
    const ssize_t received =
        socket_receive(shm, more ? shm->plain : &none, more ? shm->plain_in : 1, NULL, 0, &header);
    if (received <= 0)
        return received;
    if (!more || (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
        return shm_fail(shm, EPROTO);
    shm->plain_in -= (uint32_t)received;
    shm->plain_first = 0;
    shm->plain_end = (uint32_t)received;
    return socket_give_plain(shm, iov, count);
}
