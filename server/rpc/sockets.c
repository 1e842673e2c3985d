// SPDX-License-Identifier: Apache-2.0
//
// See sockets.h. In plaintext this file can read the frames of HTTP/2. A frame begins with a header
// of nine bytes: three of them are the length of the rest of the frame, and one is the frame's
// kind.

#include "server/rpc/sockets.h"

#include "base/mutex.h"
#include "server/rpc/budget.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// These three functions have the names of libc's functions for the linker, and so replace them.
ssize_t sockets_recvmsg(int fd, struct msghdr *message, int flags) __asm__("recvmsg")
    __attribute__((visibility("default")));
int sockets_accept4(int fd, struct sockaddr *address, socklen_t *restrict size,
                    int flags) __asm__("accept4") __attribute__((visibility("default")));
int sockets_unlink(const char *path) __asm__("unlink") __attribute__((visibility("default")));

#define PREFACE_FIRST 'P' // The P of "PRI * HTTP/2.0". A TLS connection begins with the byte 22.
#define PREFACE_BYTES 24
#define HEADER_BYTES 9
#define KIND_AT 3
#define KIND_HEADERS 1

// What a connection has sent. The index in the array is the descriptor.
struct said {
    uint64_t turn; // The turn to which bytes and calls belong.
    size_t bytes;
    uint32_t calls; // Calls that the connection has begun in this turn.
    bool known; // True once the connection's first byte has come.
    bool plain; // True if that byte was the first one of HTTP/2 in plaintext.
    uint32_t skip; // Bytes up to the header of the next frame.
    uint32_t header; // Bytes of the next frame's header that have come.
    uint32_t length; // Length of the frame, as far as its header has come.
};

// guarded by mutex: gRPC may read on any thread.
static struct mutex mutex = MUTEX_INITIALIZER;
static struct said connections[BUDGET_SOCKETS];
static uint64_t turns; // Turns of the stream thread so far.
static bool closed_to_others;
static bool files_kept;

static _Thread_local bool thread_replaces; // True while this thread binds a path.

// ---- bytes ------------------------------------------------------------------------------------

static void take_header_byte(struct said *said, uint8_t byte)
{
    if (said->header < KIND_AT)
        said->length = said->length << 8 | byte;
    else if (said->header == KIND_AT && byte == KIND_HEADERS)
        said->calls++;
    if (++said->header < HEADER_BYTES)
        return;
    said->skip = said->length;
    said->header = said->length = 0;
}

// Counts the calls that begin in these bytes of a connection in plaintext.
static void count_calls(struct said *said, const uint8_t *bytes, size_t size)
{
    while (size > 0) {
        const size_t skipped = said->skip < size ? said->skip : size;
        said->skip -= (uint32_t)skipped;
        bytes += skipped;
        size -= skipped;
        for (; size > 0 && said->skip == 0; size--)
            take_header_byte(said, *bytes++);
    }
}

static void count(struct said *said, const uint8_t *bytes, size_t size)
{
    if (!said->known && size > 0) {
        said->known = true;
        said->plain = bytes[0] == PREFACE_FIRST;
        said->skip = PREFACE_BYTES;
    }
    said->bytes += size;
    if (said->plain)
        count_calls(said, bytes, size);
}

// Counts the bytes that a connection sent. Returns true if the connection is within the bounds of
// this turn.
static bool hear(int fd, const struct msghdr *message, size_t size)
{
    bool within = true;
    mutex_lock(&mutex);
    if (fd < BUDGET_SOCKETS) {
        struct said *said = &connections[fd];
        if (said->turn != turns) {
            said->turn = turns;
            said->bytes = said->calls = 0;
        }
        for (size_t i = 0; i < message->msg_iovlen && size > 0; i++) {
            const struct iovec *part = &message->msg_iov[i];
            const size_t taken = part->iov_len < size ? part->iov_len : size;
            count(said, part->iov_base, taken);
            size -= taken;
        }
        within = turns == 0 || (said->bytes <= RPC_TURN_BYTES && said->calls <= RPC_TURN_CALLS);
    }
    mutex_unlock(&mutex);
    return within;
}

ssize_t sockets_recvmsg(int fd, struct msghdr *message, int flags)
{
    const ssize_t size = syscall(SYS_recvmsg, fd, message, flags);
    if (size <= 0 || hear(fd, message, (size_t)size))
        return size;
    errno = ECONNRESET;
    return -1;
}

// ---- connections ------------------------------------------------------------------------------

static bool is_ours(int fd)
{
    struct ucred peer;
    socklen_t size = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
        return false;
    return peer.uid == geteuid() || peer.uid == 0;
}

static bool is_behind_path(int fd)
{
    int family = 0;
    socklen_t size = sizeof(family);
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 && family == AF_UNIX;
}

// A new connection may get the descriptor of one that has ended, so the record of that descriptor
// is cleared. Returns true if the new connection may stay.
static bool meet(int fd)
{
    mutex_lock(&mutex);
    if (fd < BUDGET_SOCKETS)
        connections[fd] = (struct said){0};
    const bool closed = closed_to_others;
    mutex_unlock(&mutex);
    return !closed || !is_behind_path(fd) || is_ours(fd);
}

int sockets_accept4(int fd, struct sockaddr *address, socklen_t *restrict size, int flags)
{
    for (;;) {
        const int accepted = (int)syscall(SYS_accept4, fd, address, size, flags);
        if (accepted < 0 || meet(accepted))
            return accepted;
        close(accepted);
    }
}

// ---- files of Unix sockets ---------------------------------------------------------------------

static bool is_kept(const char *path)
{
    struct stat file;
    mutex_lock(&mutex);
    const bool kept = files_kept;
    mutex_unlock(&mutex);
    return kept && !thread_replaces && lstat(path, &file) == 0 && S_ISSOCK(file.st_mode);
}

int sockets_unlink(const char *path)
{
    return is_kept(path) ? 0 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

// ---- calls of the server ----------------------------------------------------------------------

void rpc_sockets_turn(void)
{
    mutex_lock(&mutex);
    turns++;
    mutex_unlock(&mutex);
}

void rpc_sockets_close_to_others(bool closed)
{
    mutex_lock(&mutex);
    closed_to_others = closed;
    mutex_unlock(&mutex);
}

void rpc_sockets_keep_files(bool kept)
{
    mutex_lock(&mutex);
    files_kept = kept;
    mutex_unlock(&mutex);
}

void rpc_sockets_replace_file(bool replaces)
{
    thread_replaces = replaces;
}
