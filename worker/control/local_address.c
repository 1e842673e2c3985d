// SPDX-License-Identifier: Apache-2.0
//
// Finds the address of this host that faces a coordinator. No packet is sent: connecting a UDP
// socket only asks the routing table. A host name is looked up, which may block. Any thread.

#include "worker/control/local_address.h"

#include "base/address.h"
#include "base/parse.h"
#include "base/text.h"
#include "protos/limits.h"
#include "worker/control/control.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int lacking(void)
{
    return errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS ? -2 : -1;
}

// Writes the socket's own address after it was connected to one candidate. Returns 0, -1 or -2.
static int facing(const struct addrinfo *candidate, char *text, size_t text_bytes)
{
    struct sockaddr_storage own;
    socklen_t size = sizeof(own);
    int result = -1;
    int fd = socket(candidate->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return lacking();
    if (connect(fd, candidate->ai_addr, candidate->ai_addrlen) == 0 &&
        getsockname(fd, (struct sockaddr *)&own, &size) == 0 &&
        getnameinfo((struct sockaddr *)&own, size, text, (socklen_t)text_bytes, NULL, 0,
                    NI_NUMERICHOST) == 0)
        result = 0;
    close(fd);
    return result;
}

static int control_facing(const char *address, char *text, size_t text_bytes)
{
    char host[LOCKSTEP_ADDRESS_BYTES];
    char service[8];
    uint16_t port = 0;
    if (strncmp(address, "unix:", 5) == 0) // The coordinator of a unix path runs on this host.
        return text_copy(text, text_bytes, address_loopback()) ? 0 : -1;
    if (!parse_address(address, host, sizeof(host), &port))
        return -1;
    snprintf(service, sizeof(service), "%u", port);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM};
    struct addrinfo *found = NULL;
    // As in channel.c: the name does not depend on /etc/hosts.
    const char *name = strcmp(host, "localhost") == 0 ? address_loopback() : host;
    const int unknown = getaddrinfo(name, service, &hints, &found);
    if (unknown == EAI_MEMORY)
        errno = ENOMEM;
    if (unknown == EAI_MEMORY || (unknown == EAI_SYSTEM && lacking() == -2))
        return -2;
    if (unknown != 0) {
        snprintf(text, text_bytes, "the host name '%.200s' cannot be resolved: %s", host,
                 unknown == EAI_SYSTEM ? strerror(errno) : gai_strerror(unknown));
        return -3;
    }
    int result = -1;
    for (const struct addrinfo *candidate = found; candidate && result == -1;
         candidate = candidate->ai_next)
        result = facing(candidate, text, text_bytes);
    freeaddrinfo(found);
    return result;
}

// The first address that leads somewhere counts. The others are tried after it.
int control_local_address(const char *list, char *text, size_t text_bytes)
{
    char address[LOCKSTEP_ADDRESS_BYTES];
    int result = -1;
    for (const char *rest = list; rest && result != 0 && result != -2;) {
        if (!parse_next_address(&rest, address, sizeof(address)))
            return -1;
        result = control_facing(address, text, text_bytes);
    }
    return result;
}
