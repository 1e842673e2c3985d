// SPDX-License-Identifier: Apache-2.0
//
// How processes of one host find each other for a link in memory: by a unix socket in the abstract
// namespace, named by 128 random bits. The socket has no file, so no file is left behind and no
// disk can be full. Another network namespace (another container) does not see the socket; then TCP
// is used. Not here: the link (shm.c). Thread: engine thread; unix_listener_open may run on any
// thread.
//
// The name is no secret: every process of the network namespace can read it. So both sides check
// the user id of the peer, which the kernel reports, and then the proofs (hello.h).

#include "worker/link/unix.h"

#include "worker/link/link.h"

#include "base/text.h"
#include "worker/link/shm.h"
#include "worker/link/shm_memory.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define UNIX_PREFIX "lockstep-"
#define UNIX_BACKLOG 128

static void unix_fail(char *error, size_t error_bytes, const char *what, int number)
{
    char reason[64];
    struct text text;
    text_init(&text, error, error_bytes);
    text_append(&text, "%s: %s", what, strerror_r(number, reason, sizeof(reason)));
}

// Writes the socket address of a well-formed token. Returns the length of the address.
static socklen_t unix_name(const char *token, struct sockaddr_un *name)
{
    const size_t prefix = sizeof(UNIX_PREFIX) - 1;
    memset(name, 0, sizeof(*name));
    name->sun_family = AF_UNIX;
    // A first byte of 0 means that the name is not a path.
    memcpy(name->sun_path + 1, UNIX_PREFIX, prefix);
    memcpy(name->sun_path + 1 + prefix, token, LINK_TOKEN_BYTES - 1);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + prefix + LINK_TOKEN_BYTES - 1);
}

static int unix_socket(void)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

// True if the process at the other end belongs to this process's user.
static bool unix_same_user(int fd)
{
    struct ucred peer;
    socklen_t length = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

// ---- connecting ---------------------------------------------------------------------------------

// Returns a connected socket, or -1 with errno. Never waits: a unix socket connects at once or
// fails.
static int unix_reach(const char *token)
{
    struct sockaddr_un name;
    const socklen_t length = unix_name(token, &name);
    const int fd = unix_socket();
    if (fd < 0)
        return -1;
    if (connect(fd, (const struct sockaddr *)&name, length) == 0) {
        if (unix_same_user(fd))
            return fd;
        errno = EACCES;
    }
    const int number = errno;
    (void)close(fd);
    errno = number;
    return -1;
}

struct link *link_connect_unix(const char *token, char *error, size_t error_bytes)
{
    char whole[sizeof("unix:") + LINK_TOKEN_BYTES];
    char parsed[LINK_TOKEN_BYTES];
    struct shm_memory *memory = NULL;
    struct text text;
    text_init(&text, whole, sizeof(whole));
    if (!text_append(&text, "unix:%s", token) || !link_token(whole, parsed)) {
        unix_fail(error, error_bytes, "connect to a process of this host", EINVAL);
        return NULL;
    }
    const int fd = unix_reach(parsed);
    const int memory_fd = fd < 0 ? -1 : shm_memory_make(&memory);
    if (memory_fd < 0) {
        unix_fail(error, error_bytes, "connect to a process of this host", errno);
        if (fd >= 0)
            (void)close(fd);
        return NULL;
    }
    struct link *link = shm_link_make(fd, memory, memory_fd);
    if (!link)
        unix_fail(error, error_bytes, "connect to a process of this host", ENOMEM);
    return link;
}

// ---- the listener -------------------------------------------------------------------------------

static struct link *unix_accept(struct listener *listener)
{
    for (;;) {
        const int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0)
            return NULL;
        if (unix_same_user(fd))
            return shm_link_make(fd, NULL, -1);
        listener->refused++;
        (void)close(fd);
    }
}

static void unix_listener_close(struct listener *listener)
{
    (void)close(listener->fd);
    free(listener);
}

static const struct listener_ops unix_listener_ops = {
    .accept = unix_accept,
    .close = unix_listener_close,
};

static int unix_token(char token[LINK_TOKEN_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t random[(LINK_TOKEN_BYTES - 1) / 2];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return -1;
    for (size_t i = 0; i < sizeof(random); i++) {
        token[2 * i] = digits[random[i] >> 4];
        token[2 * i + 1] = digits[random[i] & 15];
    }
    token[LINK_TOKEN_BYTES - 1] = '\0';
    return 0;
}

static int unix_listen(struct listener *listener)
{
    char token[LINK_TOKEN_BYTES];
    struct sockaddr_un name;
    struct text text;
    if (unix_token(token) < 0)
        return -1;
    const socklen_t length = unix_name(token, &name);
    listener->fd = unix_socket();
    if (listener->fd < 0 || bind(listener->fd, (const struct sockaddr *)&name, length) < 0 ||
        listen(listener->fd, UNIX_BACKLOG) < 0)
        return -1;
    text_init(&text, listener->address, sizeof(listener->address));
    text_append(&text, "unix:%s", token);
    return 0;
}

struct listener *unix_listener_open(char *error, size_t error_bytes)
{
    struct listener *listener = calloc(1, sizeof(*listener));
    if (!listener) {
        unix_fail(error, error_bytes, "listen for processes of this host", ENOMEM);
        return NULL;
    }
    listener->ops = &unix_listener_ops;
    listener->fd = -1;
    if (unix_listen(listener) == 0)
        return listener;
    unix_fail(error, error_bytes, "listen for processes of this host", errno);
    if (listener->fd >= 0)
        (void)close(listener->fd);
    free(listener);
    return NULL;
}
