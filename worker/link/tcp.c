// SPDX-License-Identifier: Apache-2.0
//
// Links over TCP. Not here: frames, retries, connect deadlines, access control.
// Thread: engine thread; tcp_listener_open may run on any thread.
//
// A peer's process may be stopped and continue later. So this file does not use TCP's user timeout,
// because that timeout also ends a connection whose peer answers but has no room (a stopped trainer
// with a full buffer). Instead tcp_check asks the kernel how long nothing has come from the peer's
// host while bytes were on the way to it. Keep-alive probes watch idle connections; the host of a
// stopped process answers the probes.

#include "worker/link/tcp.h"

#include "worker/link/link.h"

#include "base/parse.h"
#include "base/text.h"
#include "worker/link/own_address.h"
#include "worker/link/port_holder.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define TCP_BACKLOG 128
// Most processes that an error names if all ports of a range are in use.
#define TCP_HOLDERS_NAMED 3
#define TCP_KEEP_IDLE_S 10
#define TCP_KEEP_INTERVAL_S 5
#define TCP_KEEP_COUNT 4
#define TCP_SILENT_MS 20000
#define TCP_SILENT_ATTEMPTS 6
#define TCP_UNSENT_BYTES (1024 * 1024)
#define TCP_GATHER_BYTES (8 * 1024)

union tcp_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static void tcp_fail(char *error, size_t error_bytes, const char *what, const char *where,
                     int number)
{
    char reason[64];
    struct text text;
    text_init(&text, error, error_bytes);
    text_append(&text, "%s %s: %s", what, where, strerror_r(number, reason, sizeof(reason)));
}

static bool tcp_parse(const char *host, uint16_t port, union tcp_address *address,
                      socklen_t *length)
{
    memset(address, 0, sizeof(*address));
    if (inet_pton(AF_INET, host, &address->v4.sin_addr) == 1) {
        address->v4.sin_family = AF_INET;
        address->v4.sin_port = htons(port);
        *length = sizeof(address->v4);
        return true;
    }
    if (inet_pton(AF_INET6, host, &address->v6.sin6_addr) == 1) {
        address->v6.sin6_family = AF_INET6;
        address->v6.sin6_port = htons(port);
        *length = sizeof(address->v6);
        return true;
    }
    return false;
}

// BBR paces the bytes, which halves the throughput of loopback and of short links. A socket that
// was connected with BBR is paced for ever, even if it gets another algorithm later. So the
// algorithm is set before connect, and before listen, because an accepted socket inherits it.
static int tcp_socket(int family)
{
    static const char cubic[] = "cubic";
    const int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd >= 0)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cubic, sizeof(cubic) - 1);
    return fd;
}

static void tcp_set(int fd, int level, int option, int value)
{
    // No option is necessary; each is only an improvement. So a failure of setsockopt is ignored.
    (void)setsockopt(fd, level, option, &value, sizeof(value));
}

static void tcp_tune(int fd)
{
    tcp_set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    // Bytes that are not on the wire yet stay in the stream's queue, where urgent frames can
    // overtake them.
    tcp_set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, TCP_UNSENT_BYTES);
    tcp_set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    tcp_set(fd, IPPROTO_TCP, TCP_KEEPIDLE, TCP_KEEP_IDLE_S);
    tcp_set(fd, IPPROTO_TCP, TCP_KEEPINTVL, TCP_KEEP_INTERVAL_S);
    tcp_set(fd, IPPROTO_TCP, TCP_KEEPCNT, TCP_KEEP_COUNT);
}

// ---- links --------------------------------------------------------------------------------------

static int tcp_connected(struct link *link)
{
    int number = 0;
    socklen_t length = sizeof(number);
    if (getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &number, &length) < 0)
        return -1;
    if (number != 0) {
        errno = number;
        return -1;
    }
    union tcp_address peer;
    length = sizeof(peer);
    if (getpeername(link->fd, &peer.any, &length) == 0)
        return 1;
    return errno == ENOTCONN ? 0 : -1;
}

// Sending one buffer costs less than sending several vectors: 0.4 of 9 us when two ranks exchange 4
// bytes. So short vectors are copied into one buffer. Returns that buffer; its length is 0 if the
// vectors are not short.
static struct iovec tcp_gather(uint8_t into[TCP_GATHER_BYTES], const struct iovec *iov, int count)
{
    struct iovec one = {.iov_base = into, .iov_len = 0};
    for (int i = 0; i < count; i++) {
        if (iov[i].iov_len > TCP_GATHER_BYTES - one.iov_len)
            return (struct iovec){.iov_base = into, .iov_len = 0};
        memcpy(into + one.iov_len, iov[i].iov_base, iov[i].iov_len);
        one.iov_len += iov[i].iov_len;
    }
    return one;
}

static ssize_t tcp_send(struct link *link, const struct iovec *iov, int count)
{
    uint8_t gathered[TCP_GATHER_BYTES];
    const struct iovec one = count == 1 ? iov[0] : tcp_gather(gathered, iov, count);
    const struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)iov,
                                   .msg_iovlen = (size_t)count};
    ssize_t sent = 0;
    do
        sent = one.iov_len > 0
                   ? send(link->fd, one.iov_base, one.iov_len, MSG_DONTWAIT | MSG_NOSIGNAL)
                   : sendmsg(link->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent;
}

static ssize_t tcp_receive(struct link *link, const struct iovec *iov, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)iov,
                             .msg_iovlen = (size_t)count};
    ssize_t received = 0;
    do
        received = count == 1 ? recv(link->fd, iov[0].iov_base, iov[0].iov_len, MSG_DONTWAIT)
                              : recvmsg(link->fd, &message, MSG_DONTWAIT);
    while (received < 0 && errno == EINTR);
    return received;
}

static size_t tcp_readable(struct link *link)
{
    int bytes = 0;
    if (ioctl(link->fd, FIONREAD, &bytes) < 0 || bytes < 0)
        return 0;
    return (size_t)bytes;
}

static size_t tcp_unsent(struct link *link)
{
    int bytes = 0;
    if (ioctl(link->fd, SIOCOUTQ, &bytes) < 0 || bytes < 0)
        return 0;
    return (size_t)bytes;
}

static uint32_t tcp_round_trip_ms(struct link *link)
{
    struct tcp_info info;
    socklen_t length = sizeof(info);
    if (getsockopt(link->fd, IPPROTO_TCP, TCP_INFO, &info, &length) < 0)
        return 0;
    return info.tcpi_rtt / 1000;
}

// True if the peer's host has acknowledged everything it could. A host whose process does not read
// closes its window, but the host still acknowledges the bytes that were sent before, or each
// attempt to send more.
static bool tcp_reached(struct link *link)
{
    struct tcp_info info;
    socklen_t length = sizeof(info);
    if (getsockopt(link->fd, IPPROTO_TCP, TCP_INFO, &info, &length) < 0)
        return false;
    if (info.tcpi_unacked == 0)
        return info.tcpi_probes <= 1; // One may be on its way.
    return info.tcpi_retransmits > 0 && info.tcpi_last_ack_recv <= info.tcpi_last_data_sent;
}

static void tcp_await(struct link *link, size_t bytes)
{
    tcp_set(link->fd, SOL_SOCKET, SO_RCVLOWAT, (int)bytes);
}

static int tcp_check(struct link *link)
{
    struct tcp_info info;
    socklen_t length = sizeof(info);
    if (getsockopt(link->fd, IPPROTO_TCP, TCP_INFO, &info, &length) < 0)
        return 0;
    const bool data = info.tcpi_unacked > 0 && info.tcpi_retransmits >= TCP_SILENT_ATTEMPTS;
    const bool probe = info.tcpi_unacked == 0 && info.tcpi_probes >= TCP_SILENT_ATTEMPTS;
    const uint64_t silent_us = (uint64_t)info.tcpi_last_ack_recv * 1000;
    // A live host without room answers each attempt, and the attempts are one retransmission
    // timeout apart.
    if ((!data && !probe) || info.tcpi_last_ack_recv < TCP_SILENT_MS ||
        (data && silent_us < (uint64_t)info.tcpi_rto * 3 / 2))
        return 0;
    errno = ETIMEDOUT;
    return -1;
}

static void tcp_shut(struct link *link)
{
    (void)shutdown(link->fd, SHUT_WR);
}

static void tcp_close(struct link *link, bool reset)
{
    const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    if (reset)
        (void)setsockopt(link->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    (void)close(link->fd);
    free(link);
}

static const struct link_ops tcp_ops = {
    .connected = tcp_connected,
    .send = tcp_send,
    .receive = tcp_receive,
    .readable = tcp_readable,
    .unsent = tcp_unsent,
    .round_trip_ms = tcp_round_trip_ms,
    .reached = tcp_reached,
    .await = tcp_await,
    .check = tcp_check,
    .shut = tcp_shut,
    .close = tcp_close,
};

static struct link *tcp_link(int fd)
{
    struct link *link = malloc(sizeof(*link));
    if (!link) {
        (void)close(fd);
        return NULL;
    }
    *link = (struct link){.ops = &tcp_ops, .fd = fd, .short_is_dry = true};
    tcp_tune(fd);
    return link;
}

struct link *link_connect_tcp(const char *host_and_port, char *error, size_t error_bytes)
{
    char host[LOCKSTEP_ADDRESS_BYTES];
    uint16_t port = 0;
    union tcp_address address;
    socklen_t length = 0;
    if (!parse_address(host_and_port, host, sizeof(host), &port) ||
        !tcp_parse(host, port, &address, &length)) {
        tcp_fail(error, error_bytes, "connect to", host_and_port, EINVAL);
        return NULL;
    }
    const int fd = tcp_socket(address.any.sa_family);
    struct link *link = fd < 0 ? NULL : tcp_link(fd);
    if (!link) {
        tcp_fail(error, error_bytes, "connect to", host_and_port, fd < 0 ? errno : ENOMEM);
        return NULL;
    }
    if (connect(fd, &address.any, length) < 0 && errno != EINPROGRESS) {
        tcp_fail(error, error_bytes, "connect to", host_and_port, errno);
        tcp_close(link, false);
        return NULL;
    }
    return link;
}

// ---- the listener -------------------------------------------------------------------------------

static struct link *tcp_accept(struct listener *listener)
{
    int fd = -1;
    do
        fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
    return fd < 0 ? NULL : tcp_link(fd);
}

static void tcp_listener_close(struct listener *listener)
{
    (void)close(listener->fd);
    free(listener);
}

static const struct listener_ops tcp_listener_ops = {
    .accept = tcp_accept,
    .close = tcp_listener_close,
};

// Returns a socket that listens at the address and port; -1 with errno on failure.
static int tcp_bind(union tcp_address *address, socklen_t length, uint16_t port)
{
    const int fd = tcp_socket(address->any.sa_family);
    if (fd < 0)
        return -1;
    tcp_set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (address->any.sa_family == AF_INET)
        address->v4.sin_port = htons(port);
    else
        address->v6.sin6_port = htons(port);
    if (bind(fd, &address->any, length) == 0 && listen(fd, TCP_BACKLOG) == 0)
        return fd;
    const int number = errno;
    (void)close(fd);
    errno = number;
    return -1;
}

// Listens on the first free port of the range. On failure errno is the error of the last port that
// was tried.
static int tcp_bind_range(union tcp_address *address, socklen_t length, uint16_t first,
                          uint16_t last)
{
    for (uint32_t port = first; port <= last; port++) {
        const int fd = tcp_bind(address, length, (uint16_t)port);
        if (fd >= 0 || (errno != EADDRINUSE && errno != EACCES))
            return fd;
    }
    return -1;
}

static int tcp_describe(struct listener *listener, const char *host)
{
    union tcp_address own;
    socklen_t length = sizeof(own);
    if (getsockname(listener->fd, &own.any, &length) < 0)
        return -1;
    const bool v6 = own.any.sa_family == AF_INET6;
    const uint16_t port = ntohs(v6 ? own.v6.sin6_port : own.v4.sin_port);
    struct text text;
    text_init(&text, listener->address, sizeof(listener->address));
    text_append(&text, v6 ? "tcp:[%s]:%u" : "tcp:%s:%u", host, (unsigned)port);
    return 0;
}

static int tcp_listen(struct listener *listener, const char *host, uint16_t first, uint16_t last)
{
    union tcp_address address;
    socklen_t length = 0;
    if (first > last || !tcp_parse(host, first, &address, &length)) {
        errno = EINVAL;
        return -1;
    }
    listener->fd = tcp_bind_range(&address, length, first, last);
    if (listener->fd < 0)
        return -1;
    return tcp_describe(listener, host);
}

// Writes into error why the listener cannot be opened.
static void tcp_fail_to_listen(char *error, size_t error_bytes, const char *host, uint16_t first,
                               uint16_t last, int number)
{
    struct text text;
    text_init(&text, error, error_bytes);
    if (number == EADDRNOTAVAIL) {
        text_append(&text, "listen on %s (LOCKSTEP_ADVERTISE): this host has no such address",
                    host);
        own_address_list(&text);
        return;
    }
    if (number == EACCES && first != 0) {
        text_append(&text,
                    "listen on %s: no port from %u to %u (LOCKSTEP_DATA_PORTS) is both free and "
                    "allowed: ports below 1024 need a privilege",
                    host, (unsigned)first, (unsigned)last);
        return;
    }
    if (number != EADDRINUSE || first == 0) {
        tcp_fail(error, error_bytes, "listen on", host, number);
        return;
    }
    text_append(&text,
                "listen on %s: every port from %u to %u (LOCKSTEP_DATA_PORTS) is in use: ", host,
                (unsigned)first, (unsigned)last);
    for (uint32_t port = first; port <= last && port < (uint32_t)first + TCP_HOLDERS_NAMED;
         port++) {
        if (port > first)
            text_append(&text, ", ");
        port_holder_append(&text, (uint16_t)port);
    }
    if ((uint32_t)last - first >= TCP_HOLDERS_NAMED)
        text_append(&text, ", and so on");
}

struct listener *tcp_listener_open(const char *host, uint16_t port_first, uint16_t port_last,
                                   char *error, size_t error_bytes)
{
    struct listener *listener = calloc(1, sizeof(*listener));
    if (!listener) {
        tcp_fail(error, error_bytes, "listen on", host, ENOMEM);
        return NULL;
    }
    listener->ops = &tcp_listener_ops;
    listener->fd = -1;
    if (tcp_listen(listener, host, port_first, port_last) == 0)
        return listener;
    tcp_fail_to_listen(error, error_bytes, host, port_first, port_last, errno);
    if (listener->fd >= 0)
        (void)close(listener->fd);
    free(listener);
    return NULL;
}
