// SPDX-License-Identifier: Apache-2.0
//
// Replaces send and sendmsg of the C library, so that a test sees each send of its own process and
// can end the process at a chosen one. gRPC sends by sendmsg, too, and its few messages count
// unless the test leaves them out. One file of a program includes this header and defines
// before_send. Any thread.

#ifndef LOCKSTEP_TESTS_SENDS_H
#define LOCKSTEP_TESTS_SENDS_H

#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

// Called before each send.
static void before_send(int fd);

static atomic_int sends_left = -1; // Sends until sends_over is true; below 0: it never is.

// Counts a send. Returns true for the one at which the process has to end.
static inline bool sends_over(void)
{
    return atomic_load(&sends_left) >= 0 && atomic_fetch_sub(&sends_left, 1) == 0;
}

// The port of a connection's other end, or 0 if this is no connection over TCP. gRPC's sockets are
// of IPv6, also for addresses of IPv4.
static inline uint16_t send_port(int fd)
{
    struct sockaddr_storage to;
    socklen_t size = sizeof(to);
    if (getpeername(fd, (struct sockaddr *)&to, &size) < 0)
        return 0;
    if (to.ss_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)&to)->sin6_port);
    return to.ss_family == AF_INET ? ntohs(((const struct sockaddr_in *)&to)->sin_port) : 0;
}

// They are exported, so that gRPC calls them as well.
__attribute__((visibility("default"))) ssize_t send(int fd, const void *bytes, size_t size,
                                                    int flags)
{
    before_send(fd);
    return syscall(SYS_sendto, fd, bytes, size, flags, NULL, 0);
}

__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const struct msghdr *message,
                                                       int flags)
{
    before_send(fd);
    return syscall(SYS_sendmsg, fd, message, flags);
}

#endif
