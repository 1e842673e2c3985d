// SPDX-License-Identifier: Apache-2.0
//
// Reads memory of the other process of a link in memory, by process_vm_readv: one copy, where the
// rings take two. Thread: the owner of the link.
//
// The kernel allows it between processes of one user, unless a rule forbids it: Yama's ptrace_scope
// (1 on Ubuntu), a security module, or a container's filter of system calls. Then the link says so
// at the first attempt, and the rings carry the bytes. Nothing is changed in the process to get the
// permission.
//
// Which process it is. The socket tells the process that has connected or listened. Its number may
// be that of another process: none in this namespace, or one that has inherited the socket. So each
// side puts a random number into the memory of the link and, at an address that it tells, into its
// own memory. A process in whose memory the number is found is the peer. The number of a process is
// free for another one only after its sockets are closed. So a socket that is open after a copy
// proves that the bytes were the peer's, of this copy and of all before it.

#include "worker/link/shm_pull.h"

#include "worker/link/crypto.h"
#include "worker/link/shm_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

void shm_pull_offer(struct shm_link *shm)
{
    struct shm_side *own = shm_own_side(shm);
    if (!crypto_random(&shm->probe, sizeof(shm->probe)))
        return; // The address stays 0.
    atomic_store_explicit(&own->probe, shm->probe, memory_order_relaxed);
    atomic_store_explicit(&own->probe_address, (uintptr_t)&shm->probe, memory_order_relaxed);
}

static bool pull_bytes(pid_t pid, uint64_t address, void *to, size_t bytes)
{
    uint8_t *place = to;
    while (bytes > 0) {
        const struct iovec here = {.iov_base = place, .iov_len = bytes};
        const struct iovec there = {.iov_base = (void *)(uintptr_t)address, .iov_len = bytes};
        const ssize_t copied = process_vm_readv(pid, &here, 1, &there, 1, 0);
        if (copied <= 0)
            return false;
        address += (uint64_t)copied;
        place += copied;
        bytes -= (size_t)copied;
    }
    return true;
}

static bool pull_finds(struct shm_link *shm)
{
    struct ucred peer = {.pid = 0};
    socklen_t length = sizeof(peer);
    const struct shm_side *other = shm_peer_side(shm);
    const uint64_t address = atomic_load_explicit(&other->probe_address, memory_order_relaxed);
    const uint64_t probe = atomic_load_explicit(&other->probe, memory_order_relaxed);
    uint64_t found = 0;
    if (address == 0 || getsockopt(shm->link.fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
        peer.pid <= 0 || !pull_bytes(peer.pid, address, &found, sizeof(found)) || found != probe)
        return false;
    shm->pid = peer.pid;
    return true;
}

static bool pull_peer_lives(const struct shm_link *shm)
{
    struct pollfd socket = {.fd = shm->link.fd, .events = POLLRDHUP};
    return poll(&socket, 1, 0) >= 0 && (socket.revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0;
}

int shm_pull(struct link *link, uint64_t address, void *to, size_t bytes, bool last)
{
    struct shm_link *shm = shm_of(link);
    if (shm->ready && shm->pulls == SHM_PULL_UNTRIED)
        shm->pulls = pull_finds(shm) ? SHM_PULL_WORKS : SHM_PULL_REFUSED;
    if (shm->pulls == SHM_PULL_WORKS && pull_bytes(shm->pid, address, to, bytes) &&
        (!last || pull_peer_lives(shm)))
        return 0;
    return -1;
}

bool shm_pull_may(const struct link *link)
{
    const struct shm_link *shm = (const struct shm_link *)(const void *)link;
    return shm->ready && shm->pulls != SHM_PULL_REFUSED;
}
