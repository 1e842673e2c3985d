// SPDX-License-Identifier: Apache-2.0
//
// See port.h. A test owns a port by the name of a local socket that it leaves open. Such names
// belong to a network namespace, as ports do.

#include "tests/support/port.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    FIRST = 20000,
    END = 32768,
    SPREAD = 10000, // Tests that run at the same time begin at different ports.
};

static bool is_bound(int fd, const void *name, size_t size)
{
    return bind(fd, name, (socklen_t)size) == 0;
}

// The socket stays open if the port is free.
static bool takes(uint16_t port)
{
    struct sockaddr_un owner = {.sun_family = AF_UNIX}; // Its path begins with a zero: no file.
    const struct sockaddr_in anywhere = {.sin_family = AF_INET, .sin_port = htons(port)};
    const int owning = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int one = 1;
    snprintf(owner.sun_path + 1, sizeof(owner.sun_path) - 1, "lockstep-test-port-%u", port);
    setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    const bool taken =
        is_bound(owning, &owner, sizeof(owner)) && is_bound(probe, &anywhere, sizeof(anywhere));
    close(probe);
    if (!taken)
        close(owning);
    return taken;
}

uint16_t test_port(void)
{
    const int begin = FIRST + (int)getpid() * 37 % SPREAD;
    for (int port = begin; port < END; port++) {
        if (takes((uint16_t)port))
            return (uint16_t)port;
    }
    fprintf(stderr, "no port from %d to %d is free\n", begin, END - 1);
    abort();
}
