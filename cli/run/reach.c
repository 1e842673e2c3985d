// SPDX-License-Identifier: Apache-2.0
//
// Finds the address of host 0 in what ssh says of its connections; reach.h has the contract.

#include "cli/run/reach.h"

#include "base/address.h"
#include "cli/run/remote.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct reach_connection {
    char client[INET6_ADDRSTRLEN];
    char server[INET6_ADDRSTRLEN];
};

// Reads SSH_CONNECTION: the addresses and ports of the client and of the server.
static bool read_connection(const struct remote *remote, struct reach_connection *connection)
{
    return sscanf(remote->connection, "%45s %*u %45s %*u", connection->client,
                  connection->server) == 2;
}

static bool is_loopback(const char *address)
{
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, address, &four.sin_addr) == 1)
        return address_is_loopback((const struct sockaddr *)&four);
    return inet_pton(AF_INET6, address, &six.sin6_addr) == 1 &&
           address_is_loopback((const struct sockaddr *)&six);
}

void reach_host(const struct remote *remotes, uint32_t count, char *address, size_t capacity)
{
    struct reach_connection connection;
    const char *name = remotes[0].host->name;
    const char *at = strrchr(name, '@');
    if (!read_connection(&remotes[0], &connection)) {
        snprintf(address, capacity, "%s", at ? at + 1 : name);
        return;
    }
    snprintf(address, capacity, "%s", connection.server);
    if (!is_loopback(address))
        return;
    for (uint32_t i = 1; i < count; i++) {
        if (read_connection(&remotes[i], &connection) && !is_loopback(connection.client)) {
            snprintf(address, capacity, "%s", connection.client);
            return;
        }
    }
}
