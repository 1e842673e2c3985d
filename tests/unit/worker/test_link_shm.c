// SPDX-License-Identifier: Apache-2.0
//
// Links in memory, where they differ from others: who sleeps and who wakes, descriptors, and a peer
// that writes what it likes into the memory or passes what is none. test_link.c has what all links
// have in common.

#include "worker/link/shm.h"
#include "worker/link/shm_memory.h"
#include "worker/link/shm_ring.h"
#include "worker/link/shm_socket.h"

#include "base/clock.h"
#include "tests/support/bounds.h"
#include "tests/support/full.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define BOUND_MS 20000

static uint64_t bound_ms(void)
{
    return test_bound_ms(BOUND_MS);
}

static const uint8_t key[LOCKSTEP_PROOF_BYTES] = {7};

// A link and the other end of its socket, spoken by hand.
struct puppet {
    struct link *link;
    int fd;
    int memory_fd; // -1: not there.
    struct shm_memory *memory; // The puppet's mapping.
    bool link_is_maker;
};

static ssize_t link_send(struct link *link, const void *bytes, size_t size)
{
    const struct iovec vector = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    return link->ops->send(link, &vector, 1);
}

static ssize_t link_receive(struct link *link, void *bytes, size_t size)
{
    const struct iovec vector = {.iov_base = bytes, .iov_len = size};
    return link->ops->receive(link, &vector, 1);
}

static void say(int to, uint32_t kind, const int *fds, size_t count)
{
    struct shm_message message = {.kind = kind, .note = {.kind = LINK_NOTE_BOARD, .number = 9}};
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(16 * sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec vector = {.iov_base = &message, .iov_len = sizeof(message)};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
    if (count > 0) {
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(rights), fds, count * sizeof(int));
    }
    assert_int_equal(sendmsg(to, &header, MSG_NOSIGNAL), sizeof(message));
}

// The hellos, both ways.
static void plain(struct puppet *puppet)
{
    uint8_t bytes[LINK_PLAIN_BYTES] = {3};
    const size_t in = puppet->link_is_maker ? LINK_ANSWER_BYTES : LINK_HELLO_BYTES;
    const size_t out = puppet->link_is_maker ? LINK_HELLO_BYTES : LINK_ANSWER_BYTES;
    assert_int_equal(send(puppet->fd, bytes, in, MSG_NOSIGNAL), in);
    assert_int_equal(link_receive(puppet->link, bytes, in), in);
    assert_int_equal(link_send(puppet->link, bytes, out), out);
    assert_int_equal(recv(puppet->fd, bytes, sizeof(bytes), 0), out);
}

static void puppet_open(struct puppet *puppet, bool link_is_maker)
{
    int fds[2];
    struct shm_memory *memory = NULL;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    *puppet = (struct puppet){.fd = fds[1], .link_is_maker = link_is_maker};
    puppet->memory_fd = shm_memory_make(&memory);
    assert_true(puppet->memory_fd >= 0);
    if (link_is_maker) {
        puppet->memory =
            mmap(NULL, sizeof(*memory), PROT_READ | PROT_WRITE, MAP_SHARED, puppet->memory_fd, 0);
        assert_ptr_not_equal(puppet->memory, MAP_FAILED);
        puppet->link = shm_link_make(fds[0], memory, fcntl(puppet->memory_fd, F_DUPFD_CLOEXEC, 0));
    } else {
        puppet->memory = memory;
        puppet->link = shm_link_make(fds[0], NULL, -1);
    }
    assert_non_null(puppet->link);
    plain(puppet);
}

// Opens a puppet and brings its link to the ready state: membership proven, memory mapped.
static void puppet_stands(struct puppet *puppet, bool link_is_maker)
{
    uint8_t byte = 0;
    puppet_open(puppet, link_is_maker);
    puppet->link->ops->proven(puppet->link, key);
    if (!link_is_maker)
        say(puppet->fd, SHM_MEMORY, &puppet->memory_fd, 1);
    assert_int_equal(link_receive(puppet->link, &byte, 1), -1);
    assert_int_equal(errno, EAGAIN);
    assert_true(puppet->link->ops->ready(puppet->link));
    (void)puppet->link->ops->pending(puppet->link); // The room that has come into being.
    assert_false(puppet->link->ops->pending(puppet->link));
}

static void puppet_close(struct puppet *puppet)
{
    puppet->link->ops->close(puppet->link, false);
    shm_memory_unmap(puppet->memory);
    (void)close(puppet->memory_fd);
    (void)close(puppet->fd);
}

static struct shm_direction *from_puppet(struct puppet *puppet)
{
    return &puppet->memory->directions[puppet->link_is_maker ? 1 : 0];
}

static struct shm_direction *to_puppet(struct puppet *puppet)
{
    return &puppet->memory->directions[puppet->link_is_maker ? 0 : 1];
}

static struct shm_side *puppet_side(struct puppet *puppet)
{
    return &puppet->memory->sides[puppet->link_is_maker ? 1 : 0];
}

static unsigned open_descriptors(void)
{
    unsigned count = 0;
    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void expect_broken(struct puppet *puppet)
{
    uint8_t bytes[64];
    assert_int_equal(link_receive(puppet->link, bytes, sizeof(bytes)), -1);
    assert_int_equal(errno, EPROTO);
    assert_int_equal(link_send(puppet->link, bytes, sizeof(bytes)), -1);
    assert_int_equal(errno, EPROTO);
    assert_int_equal(link_receive(puppet->link, bytes, sizeof(bytes)), -1);
    assert_int_equal(errno, EPROTO);
}

// ---- impossible memory --------------------------------------------------------------------------

static void counts_of_the_writer(void **state)
{
    (void)state;
    static const uint64_t counts[] = {SHM_RING_BYTES + 1, UINT64_MAX, UINT64_MAX / 2, 9};
    for (size_t i = 0; i < LENGTH(counts); i++) {
        struct puppet puppet;
        uint8_t bytes[16];
        puppet_stands(&puppet, i % 2 == 0);
        // Ten good bytes, of which the link has seen all and taken four.
        atomic_store(&from_puppet(&puppet)->written, 10);
        assert_int_equal(puppet.link->ops->readable(puppet.link), 10);
        assert_int_equal(link_receive(puppet.link, bytes, 4), 4);
        atomic_store(&from_puppet(&puppet)->written,
                     counts[i] == SHM_RING_BYTES + 1 ? counts[i] + 4 : counts[i]);
        assert_true(puppet.link->ops->pending(puppet.link));
        // The promised bytes come all the same.
        assert_int_equal(puppet.link->ops->readable(puppet.link), 6);
        assert_int_equal(link_receive(puppet.link, bytes, sizeof(bytes)), 6);
        expect_broken(&puppet);
        puppet_close(&puppet);
    }
}

static void counts_of_the_reader(void **state)
{
    (void)state;
    static const uint64_t counts[] = {SHM_RING_BYTES + 1, UINT64_MAX, 3};
    uint8_t *bytes = calloc(1, SHM_RING_BYTES);
    for (size_t i = 0; i < LENGTH(counts); i++) {
        struct puppet puppet;
        puppet_stands(&puppet, i % 2 == 0);
        assert_int_equal(link_send(puppet.link, bytes, SHM_RING_BYTES), SHM_RING_BYTES);
        atomic_store(&to_puppet(&puppet)->read, 4);
        assert_int_equal(link_send(puppet.link, bytes, 100), 4);
        atomic_store(&to_puppet(&puppet)->read,
                     counts[i] == SHM_RING_BYTES + 1 ? counts[i] + 4 : counts[i]);
        assert_int_equal(link_send(puppet.link, bytes, 100), -1);
        assert_int_equal(errno, EPROTO);
        puppet_close(&puppet);
    }
    free(bytes);
}

static void other_words(void **state)
{
    (void)state;
    struct puppet puppet;
    struct link_note note;
    uint8_t bytes[8];
    // An end that is none.
    puppet_stands(&puppet, false);
    atomic_store(&from_puppet(&puppet)->end, 77);
    assert_true(puppet.link->ops->pending(puppet.link));
    expect_broken(&puppet);
    puppet_close(&puppet);
    // Descriptors announced and not passed, or taken and not passed.
    puppet_stands(&puppet, true);
    atomic_store(&puppet_side(&puppet)->passed, UINT64_MAX);
    assert_true(puppet.link->ops->pending(puppet.link));
    assert_false(puppet.link->ops->pending(puppet.link)); // Said once.
    assert_int_equal(puppet.link->ops->take(puppet.link, &note), -1);
    assert_int_equal(errno, EAGAIN);
    atomic_store(&puppet_side(&puppet)->taken, 1);
    assert_int_equal(puppet.link->ops->pass(puppet.link, &(struct link_note){.kind = 1}, 0), -1);
    assert_int_equal(errno, EPROTO);
    puppet_close(&puppet);
    // Somebody asleep in a way that there is not is woken.
    puppet_stands(&puppet, true);
    atomic_store(&puppet_side(&puppet)->asleep, 1234567);
    assert_int_equal(link_send(puppet.link, bytes, sizeof(bytes)), sizeof(bytes));
    struct pollfd waiting = {.fd = puppet.fd, .events = POLLIN};
    assert_int_equal(poll(&waiting, 1, 0), 1);
    puppet_close(&puppet);
}

// ---- impossible descriptors ---------------------------------------------------------------------

static int memfd_of(size_t bytes, int seals, bool filled)
{
    const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    if (filled)
        assert_int_equal(fallocate(fd, 0, 0, (off_t)bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void memory_that_is_none(void **state)
{
    (void)state;
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    const size_t size = sizeof(struct shm_memory);
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    const int bad[] = {
        open("/dev/null", O_RDWR | O_CLOEXEC),
        open("/dev/zero", O_RDWR | O_CLOEXEC),
        pipes[0],
        memfd_of(size, 0, true), // Could be cut while it is mapped: a bus error.
        memfd_of(size, F_SEAL_GROW | F_SEAL_SEAL, true),
        memfd_of(size, F_SEAL_SHRINK | F_SEAL_GROW, true),
        memfd_of(size - 4096, seals, true),
        memfd_of(0, seals, false),
        memfd_of(size + 4096, seals, true),
        memfd_of(size, seals, false), // Pages that may be missing later.
    };
    const unsigned before = open_descriptors();
    for (size_t i = 0; i < LENGTH(bad); i++) {
        struct puppet puppet;
        puppet_open(&puppet, false);
        puppet.link->ops->proven(puppet.link, key);
        say(puppet.fd, SHM_MEMORY, &bad[i], 1);
        expect_broken(&puppet);
        assert_false(puppet.link->ops->ready(puppet.link));
        puppet_close(&puppet);
        assert_int_equal(open_descriptors(), before);
    }
    for (size_t i = 0; i < LENGTH(bad); i++)
        (void)close(bad[i]);
    (void)close(pipes[1]);
}

static void descriptors_out_of_place(void **state)
{
    (void)state;
    const unsigned before = open_descriptors();
    static const struct {
        uint32_t kind;
        size_t count;
        bool maker;
        bool stands;
    } bad[] = {
        {SHM_MEMORY, 1, true, true}, // The link made the memory itself.
        {SHM_MEMORY, 1, false, true}, // A second one.
        {SHM_MEMORY, 0, false, false},
        {SHM_MEMORY, 2, false, false},
        {SHM_BELL, 1, false, true},
        {SHM_DESCRIPTOR, 0, true, true},
        {SHM_DESCRIPTOR, 2, false, true},
        {SHM_DESCRIPTOR, 16, true, true},
        {SHM_DESCRIPTOR, 1, false, false}, // Before there is memory.
        {0, 0, true, true},
        {4, 1, true, true},
    };
    for (size_t i = 0; i < LENGTH(bad); i++) {
        struct puppet puppet;
        int fds[16];
        if (bad[i].stands)
            puppet_stands(&puppet, bad[i].maker);
        else
            puppet_open(&puppet, bad[i].maker);
        puppet.link->ops->proven(puppet.link, key);
        for (size_t k = 0; k < LENGTH(fds); k++)
            fds[k] = puppet.memory_fd;
        say(puppet.fd, bad[i].kind, fds, bad[i].count);
        expect_broken(&puppet);
        puppet_close(&puppet);
        assert_int_equal(open_descriptors(), before);
    }
}

// Before membership is proven, nothing behind the hello, and no descriptor at all.
static void strangers_pass_nothing(void **state)
{
    (void)state;
    const unsigned before = open_descriptors();
    for (int i = 0; i < 3; i++) {
        struct puppet puppet;
        uint8_t bytes[LINK_PLAIN_BYTES];
        puppet_open(&puppet, i == 1);
        const unsigned open_now = open_descriptors();
        if (i == 2)
            assert_int_equal(send(puppet.fd, bytes, 1, MSG_NOSIGNAL), 1);
        else
            say(puppet.fd, SHM_MEMORY, &puppet.memory_fd, 1);
        expect_broken(&puppet);
        assert_int_equal(open_descriptors(), open_now);
        puppet_close(&puppet);
    }
    // With the hello, or a hello that is too long.
    for (int i = 0; i < 2; i++) {
        int fds[2];
        uint8_t bytes[LINK_HELLO_BYTES + 1] = {0};
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
        struct link *link = shm_link_make(fds[0], NULL, -1);
        if (i == 0)
            say(fds[1], SHM_MEMORY, &fds[0], 1);
        else
            assert_int_equal(send(fds[1], bytes, sizeof(bytes), 0), sizeof(bytes));
        assert_int_equal(link_receive(link, bytes, sizeof(bytes)), -1);
        assert_int_equal(errno, EPROTO);
        link->ops->close(link, false);
        (void)close(fds[1]);
    }
    assert_int_equal(open_descriptors(), before);
}

// ---- reading the other process's memory ---------------------------------------------------------

// The puppet's number is in no memory of this process, or there is none.
static void numbers_that_are_not_found(void **state)
{
    static const uint64_t here = 4711;
    uint64_t copy = 0;
    (void)state;
    for (int found = 0; found < 2; found++) {
        struct puppet puppet;
        puppet_stands(&puppet, true);
        const struct link_ops *ops = puppet.link->ops;
        assert_true(ops->pulls(puppet.link));
        atomic_store(&puppet.memory->sides[1].probe_address, (uintptr_t)&here);
        atomic_store(&puppet.memory->sides[1].probe, found ? here : here + 1);
        const int status = ops->pull(puppet.link, (uintptr_t)&here, &copy, sizeof(copy), true);
        assert_int_equal(status, found ? 0 : -1);
        assert_int_equal(copy, found ? here : 0);
        assert_true(ops->pulls(puppet.link) == (found != 0));
        puppet_close(&puppet);
    }
}

// ---- two good ends ------------------------------------------------------------------------------

// Two links with each other. ends[0] made the memory.
static void pair_open(struct link *ends[2])
{
    int fds[2];
    uint8_t bytes[LINK_PLAIN_BYTES] = {0};
    struct shm_memory *memory = NULL;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    const int memory_fd = shm_memory_make(&memory);
    assert_true(memory_fd >= 0);
    ends[0] = shm_link_make(fds[0], memory, memory_fd);
    ends[1] = shm_link_make(fds[1], NULL, -1);
    for (int i = 0; i < 2; i++) {
        const size_t size = i == 0 ? LINK_HELLO_BYTES : LINK_ANSWER_BYTES;
        assert_int_equal(link_send(ends[i], bytes, size), size);
        assert_int_equal(link_receive(ends[1 - i], bytes, sizeof(bytes)), size);
    }
    ends[0]->ops->proven(ends[0], key);
    ends[1]->ops->proven(ends[1], key);
    assert_int_equal(link_receive(ends[1], bytes, 1), -1);
    for (int i = 0; i < 2; i++) {
        assert_true(ends[i]->ops->ready(ends[i]));
        (void)ends[i]->ops->pending(ends[i]); // The room that has come into being.
        assert_false(ends[i]->ops->pending(ends[i]));
    }
}

// Memory that is not there is not read, nor that of a peer that has gone; the link stays whole.
static void a_side_reads_the_other(void **state)
{
    static const uint8_t bytes[3] = {1, 2, 3};
    uint8_t copy[3] = {0};
    struct link *ends[2];
    (void)state;
    pair_open(ends);
    for (int i = 0; i < 2; i++) {
        memset(copy, 0, sizeof(copy));
        assert_int_equal(ends[i]->ops->pull(ends[i], (uintptr_t)bytes, copy, sizeof(copy), true),
                         0);
        assert_memory_equal(copy, bytes, sizeof(copy));
        assert_int_equal(ends[i]->ops->pull(ends[i], 16, copy, sizeof(copy), true), -1);
    }
    assert_int_equal(link_send(ends[0], bytes, sizeof(bytes)), sizeof(bytes));
    assert_int_equal(link_receive(ends[1], copy, sizeof(copy)), sizeof(copy));
    ends[0]->ops->close(ends[0], false);
    // Only the last read of a piece says whether the peer was there.
    assert_int_equal(ends[1]->ops->pull(ends[1], (uintptr_t)bytes, copy, sizeof(copy), false), 0);
    assert_int_equal(ends[1]->ops->pull(ends[1], (uintptr_t)bytes, copy, sizeof(copy), true), -1);
    ends[1]->ops->close(ends[1], false);
}

static bool rings(struct link *link)
{
    struct pollfd waiting = {.fd = link->fd, .events = POLLIN};
    return poll(&waiting, 1, 0) == 1;
}

static void bells_are_for_sleepers(void **state)
{
    (void)state;
    struct link *ends[2];
    uint8_t *bytes = calloc(1, SHM_RING_BYTES);
    pair_open(ends);
    // Awake: nothing is written to the socket, whatever happens.
    assert_int_equal(link_send(ends[0], bytes, 5), 5);
    ends[0]->ops->wake(ends[0]);
    assert_false(rings(ends[1]));
    assert_true(ends[1]->ops->pending(ends[1]));
    assert_int_equal(link_receive(ends[1], bytes, 100), 5);
    // Asleep: bytes, a change elsewhere in memory, and an end ring. One bell for one sleep.
    for (int i = 0; i < 2; i++) {
        ends[1]->ops->sleep(ends[1], true);
        assert_false(ends[1]->ops->pending(ends[1]));
        assert_false(rings(ends[1]));
        if (i == 0)
            assert_int_equal(link_send(ends[0], bytes, 5), 5);
        else
            ends[0]->ops->wake(ends[0]);
        assert_true(rings(ends[1]));
        ends[0]->ops->wake(ends[0]);
        ends[1]->ops->sleep(ends[1], false);
        assert_false(rings(ends[1])); // Taken, and there was no second one.
        if (i == 0)
            assert_int_equal(link_receive(ends[1], bytes, 100), 5);
    }
    // Room is signalled only to a sender that waits for it, and only when it is worth it.
    assert_int_equal(link_send(ends[0], bytes, SHM_RING_BYTES), SHM_RING_BYTES);
    ends[0]->ops->sleep(ends[0], true);
    assert_int_equal(link_receive(ends[1], bytes, SHM_RING_BYTES), SHM_RING_BYTES);
    assert_false(rings(ends[0]));
    ends[0]->ops->sleep(ends[0], false);
    assert_int_equal(link_send(ends[0], bytes, SHM_RING_BYTES), SHM_RING_BYTES);
    assert_int_equal(link_send(ends[0], bytes, 1), -1);
    ends[0]->ops->sleep(ends[0], true);
    assert_int_equal(link_receive(ends[1], bytes, SHM_ROOM_BYTES - 1), SHM_ROOM_BYTES - 1);
    assert_false(rings(ends[0]));
    assert_false(ends[0]->ops->pending(ends[0]));
    assert_int_equal(link_receive(ends[1], bytes, 1), 1);
    assert_true(rings(ends[0]));
    assert_true(ends[0]->ops->pending(ends[0]));
    ends[0]->ops->sleep(ends[0], false);
    // An end.
    ends[0]->ops->sleep(ends[0], true);
    ends[1]->ops->shut(ends[1]);
    assert_true(rings(ends[0]));
    ends[0]->ops->sleep(ends[0], false);
    assert_true(ends[0]->ops->pending(ends[0]));
    assert_int_equal(link_receive(ends[0], bytes, 1), 0);
    for (int i = 0; i < 2; i++)
        ends[i]->ops->close(ends[i], false);
    free(bytes);
}

static void descriptors_are_handed_over(void **state)
{
    (void)state;
    const unsigned before = open_descriptors();
    struct link *ends[2];
    struct link_note note;
    struct stat own;
    struct stat taken;
    pair_open(ends);
    const int fd = memfd_of(4096, 0, true);
    assert_int_equal(fstat(fd, &own), 0);
    for (int from = 0; from < 2; from++) {
        struct link *passer = ends[from];
        struct link *taker = ends[1 - from];
        assert_int_equal(taker->ops->take(taker, &note), -1);
        assert_int_equal(errno, EAGAIN);
        // As many as are allowed, in order; then there has to be room.
        for (uint32_t i = 0; i < SHM_NOTES; i++) {
            const struct link_note said = {
                .kind = LINK_NOTE_REGION, .number = i, .bytes = UINT64_C(5) << 40};
            assert_int_equal(passer->ops->pass(passer, &said, fd), 0);
        }
        assert_int_equal(passer->ops->pass(passer, &note, fd), -1);
        assert_int_equal(errno, EAGAIN);
        assert_true(taker->ops->pending(taker));
        passer->ops->sleep(passer, true);
        for (uint32_t i = 0; i < SHM_NOTES; i++) {
            const int got = taker->ops->take(taker, &note);
            assert_true(got >= 0);
            assert_true(fcntl(got, F_GETFD) & FD_CLOEXEC);
            assert_int_equal(note.kind, LINK_NOTE_REGION);
            assert_int_equal(note.number, i);
            assert_true(note.bytes == UINT64_C(5) << 40);
            assert_int_equal(fstat(got, &taken), 0);
            assert_true(taken.st_ino == own.st_ino && taken.st_dev == own.st_dev);
            (void)close(got);
        }
        assert_true(rings(passer)); // It may have waited for the room.
        passer->ops->sleep(passer, false);
        assert_int_equal(taker->ops->take(taker, &note), -1);
    }
    // Those that nobody takes are not left open.
    assert_int_equal(ends[0]->ops->pass(ends[0], &note, fd), 0);
    assert_int_equal(link_receive(ends[1], &note, 1), -1);
    for (int i = 0; i < 2; i++)
        ends[i]->ops->close(ends[i], false);
    (void)close(fd);
    assert_int_equal(open_descriptors(), before);
}

// A region that finds no free descriptor is told by its note alone, and the link goes on. Anything
// else breaks the link, because the peer cannot do without it.
static void no_descriptor_is_free(void **state)
{
    (void)state;
    const unsigned before = open_descriptors();
    struct link *ends[2];
    struct link_note note = {.kind = 0};
    struct full full;
    pair_open(ends);
    const int fd = memfd_of(4096, 0, true);
    const struct link_note region = {.kind = LINK_NOTE_REGION, .number = 7};
    const struct link_note board = {.kind = LINK_NOTE_BOARD};
    full_begin(&full, 64);
    assert_int_equal(ends[0]->ops->pass(ends[0], &region, fd), 0);
    assert_int_equal(ends[1]->ops->take(ends[1], &note), -1);
    assert_int_equal(errno, EMFILE);
    assert_int_equal(note.number, 7);
    // One that is never taken.
    assert_int_equal(ends[0]->ops->pass(ends[0], &region, fd), 0);
    assert_int_equal(link_receive(ends[1], &note, 1), -1);
    assert_int_equal(errno, EAGAIN);
    close(full.fds[--full.count]);
    assert_int_equal(ends[1]->ops->take(ends[1], &note), -1);
    assert_int_equal(errno, EMFILE);
    assert_int_equal(ends[0]->ops->pass(ends[0], &region, fd), 0);
    const int got = ends[1]->ops->take(ends[1], &note);
    assert_true(got >= 0);
    assert_int_equal(ends[0]->ops->pass(ends[0], &board, fd), 0);
    assert_int_equal(ends[1]->ops->take(ends[1], &note), -1);
    assert_int_equal(link_receive(ends[1], &note, 1), -1);
    assert_int_equal(errno, EMFILE);
    full_end(&full);
    for (int i = 0; i < 2; i++)
        ends[i]->ops->close(ends[i], false);
    (void)close(got);
    (void)close(fd);
    assert_int_equal(open_descriptors(), before);
}

// ---- two threads that sleep ---------------------------------------------------------------------

#define TURNS 20000
#define BURST (SHM_RING_BYTES * 3 / 2)

struct sleeper {
    struct link *link;
    bool first;
    uint64_t polls;
};

// Blocks until the link may have something; a wake-up that is lost ends the test.
static void sleep_until_told(struct sleeper *sleeper)
{
    struct link *link = sleeper->link;
    struct pollfd waiting = {.fd = link->fd, .events = POLLIN};
    link->ops->sleep(link, true);
    if (!link->ops->pending(link)) {
        sleeper->polls++;
        if (poll(&waiting, 1, (int)bound_ms()) != 1) {
            fprintf(stderr, "a wake-up is lost\n");
            abort();
        }
    }
    link->ops->sleep(link, false);
}

// Moves all of it in one direction, sleeping whenever nothing moves.
static void move(struct sleeper *sleeper, uint8_t *bytes, size_t size, bool sends)
{
    size_t done = 0;
    while (done < size) {
        const ssize_t moved = sends ? link_send(sleeper->link, bytes + done, size - done)
                                    : link_receive(sleeper->link, bytes + done, size - done);
        if (moved > 0)
            done += (size_t)moved;
        else if (moved == 0 || errno != EAGAIN)
            abort();
        else
            sleep_until_told(sleeper);
    }
}

static void *ping_pong(void *argument)
{
    struct sleeper *sleeper = argument;
    uint8_t *bytes = calloc(1, BURST);
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        // Mostly a few bytes, sometimes more than the ring holds, so that the writer sleeps too.
        const size_t size = turn % 100 == 99 ? BURST : 1 + turn % 7;
        for (int half = 0; half < 2; half++) {
            const bool sends = (half == 0) == sleeper->first;
            if (sends)
                memset(bytes, (int)(turn & 0xff), size);
            move(sleeper, bytes, size, sends);
            if (bytes[0] != (turn & 0xff) || bytes[size - 1] != (turn & 0xff))
                abort();
        }
    }
    free(bytes);
    return NULL;
}

static void no_wake_up_is_lost(void **state)
{
    (void)state;
    struct link *ends[2];
    struct sleeper sleepers[2];
    pthread_t other;
    pair_open(ends);
    for (int i = 0; i < 2; i++)
        sleepers[i] = (struct sleeper){.link = ends[i], .first = i == 0};
    assert_int_equal(pthread_create(&other, NULL, ping_pong, &sleepers[1]), 0);
    (void)ping_pong(&sleepers[0]);
    assert_int_equal(pthread_join(other, NULL), 0);
    assert_true(sleepers[0].polls + sleepers[1].polls > 0);
    for (int i = 0; i < 2; i++)
        ends[i]->ops->close(ends[i], false);
}

// A wrap of the ring at every place, with sizes that share no factor with it.
static void bytes_across_the_end(void **state)
{
    (void)state;
    struct link *ends[2];
    uint8_t out[1021];
    uint8_t in[1021];
    pair_open(ends);
    for (uint32_t i = 0; i < 2000; i++) {
        for (size_t b = 0; b < sizeof(out); b++)
            out[b] = (uint8_t)(i * 31 + b);
        assert_int_equal(link_send(ends[0], out, sizeof(out)), sizeof(out));
        assert_int_equal(ends[1]->ops->readable(ends[1]), sizeof(out));
        assert_int_equal(link_receive(ends[1], in, 1000), 1000);
        assert_int_equal(link_receive(ends[1], in + 1000, 21), 21);
        assert_memory_equal(out, in, sizeof(out));
    }
    for (int i = 0; i < 2; i++)
        ends[i]->ops->close(ends[i], true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_of_the_writer),
        cmocka_unit_test(counts_of_the_reader),
        cmocka_unit_test(other_words),
        cmocka_unit_test(memory_that_is_none),
        cmocka_unit_test(descriptors_out_of_place),
        cmocka_unit_test(strangers_pass_nothing),
        cmocka_unit_test(numbers_that_are_not_found),
        cmocka_unit_test(a_side_reads_the_other),
        cmocka_unit_test(bells_are_for_sleepers),
        cmocka_unit_test(descriptors_are_handed_over),
        cmocka_unit_test(no_descriptor_is_free),
        cmocka_unit_test(no_wake_up_is_lost),
        cmocka_unit_test(bytes_across_the_end),
    };
    return cmocka_run_group_tests_name("links in memory", tests, NULL, NULL);
}
