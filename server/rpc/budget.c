// SPDX-License-Identifier: Apache-2.0
//
// See budget.h. gRPC gives no access to its connections or their descriptors. So this file tests
// every descriptor of the process: gRPC's connections are those that were accepted at the given
// port. A test takes about a microsecond, and there are a few thousand descriptors.

#include "server/rpc/budget.h"

#include "protos/limits.h"

#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <linux/sockios.h>

// Fewer unread bytes do not show that a client does not read: an answer takes time.
#define UNDER_WAY_BYTES 4096
#define NAME_BYTES (INET6_ADDRSTRLEN + 32)

// The core's room for ballots, most of which is never touched.
#define BALLOTS_BYTES (8ull * LOCKSTEP_MAX_JOBS * LOCKSTEP_BALLOT_WORDS)

uint64_t budget_memory(void)
{
    const struct mallinfo2 info = mallinfo2();
    const uint64_t memory = info.uordblks + info.hblkhd;
    return memory > BALLOTS_BYTES ? memory - BALLOTS_BYTES : 0;
}

void budget_trim(void)
{
    malloc_trim(0);
}

static bool address_of(int (*ask)(int, struct sockaddr *, socklen_t *), int fd,
                       struct sockaddr_in6 *address)
{
    socklen_t size = sizeof(*address);
    if (ask(fd, (struct sockaddr *)address, &size) < 0)
        return false;
    return address->sin6_family == AF_INET || address->sin6_family == AF_INET6;
}

// The port is at the same place in IPv4 and IPv6 addresses.
static uint16_t port_of(const struct sockaddr_in6 *address)
{
    return ntohs(address->sin6_port);
}

// Writes gRPC's name for a peer. An IPv4 address has an IPv4 name also if the socket listens on
// IPv6.
static void name_of(const struct sockaddr_in6 *address, char *name, size_t bytes)
{
    char text[INET6_ADDRSTRLEN] = "";
    const struct sockaddr_in *four = (const struct sockaddr_in *)address;
    const bool six = address->sin6_family == AF_INET6;
    if (six && IN6_IS_ADDR_V4MAPPED(&address->sin6_addr)) {
        inet_ntop(AF_INET, &address->sin6_addr.s6_addr[12], text, sizeof(text));
        snprintf(name, bytes, "ipv4:%s:%u", text, port_of(address));
        return;
    }
    if (six)
        inet_ntop(AF_INET6, &address->sin6_addr, text, sizeof(text));
    else
        inet_ntop(AF_INET, &four->sin_addr, text, sizeof(text));
    snprintf(name, bytes, six ? "ipv6:%%5B%s%%5D:%u" : "ipv4:%s:%u", text, port_of(address));
}

static uint8_t state_of(int fd)
{
    struct tcp_info info;
    socklen_t size = sizeof(info);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? info.tcpi_state : TCP_LISTEN;
}

static bool is_of_port(int fd, uint16_t port)
{
    struct sockaddr_in6 own;
    return address_of(getsockname, fd, &own) && port_of(&own) == port;
}

// Fills in the fields of one connection. Returns false if the descriptor is not an open connection.
static bool look_at(struct connections *connections, struct budget_socket *found)
{
    struct sockaddr_in6 other;
    char name[NAME_BYTES];
    int unread = 0;
    if (!address_of(getpeername, found->fd, &other))
        return false;
    name_of(&other, name, sizeof(name));
    found->connection = connections_find(connections, name);
    found->unread = ioctl(found->fd, SIOCOUTQ, &unread) == 0 ? (uint64_t)unread : 0;
    found->unread += found->connection ? found->connection->queued : 0;
    if (found->unread < UNDER_WAY_BYTES)
        found->unread = 0;
    return true;
}

static uint32_t streams_of(const struct budget_socket *socket)
{
    return socket->connection ? socket->connection->streams : 0;
}

static uint32_t calls_of(const struct budget_socket *socket)
{
    return socket->connection ? socket->connection->calls : 0;
}

bool budget_is_modest(const struct budget_socket *socket)
{
    return streams_of(socket) == 1 && calls_of(socket) == 1 && socket->unread == 0;
}

static int compare(const void *left, const void *right)
{
    const struct budget_socket *a = left, *b = right;
    if ((streams_of(a) > 0) != (streams_of(b) > 0))
        return streams_of(a) > 0 ? 1 : -1;
    if (a->unread != b->unread)
        return a->unread > b->unread ? -1 : 1;
    if (calls_of(a) != calls_of(b))
        return calls_of(a) > calls_of(b) ? -1 : 1;
    return b->fd - a->fd;
}

size_t budget_sockets(struct connections *connections, uint16_t port,
                      struct budget_socket sockets[BUDGET_SOCKETS], size_t *leaving)
{
    size_t count = 0;
    *leaving = 0;
    for (int fd = 0; fd < BUDGET_SOCKETS; fd++) {
        if (!is_of_port(fd, port))
            continue;
        const uint8_t state = state_of(fd);
        sockets[count].fd = fd;
        if (state == TCP_ESTABLISHED || state == TCP_CLOSE_WAIT)
            count += look_at(connections, &sockets[count]) ? 1 : 0;
        else if (state != TCP_LISTEN)
            ++*leaving;
    }
    qsort(sockets, count, sizeof(*sockets), compare);
    return count;
}

void budget_end(const struct budget_socket *socket)
{
    const struct linger none = {.l_onoff = 1};
    setsockopt(socket->fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
    shutdown(socket->fd, SHUT_RDWR);
}
