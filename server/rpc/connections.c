// SPDX-License-Identifier: Apache-2.0
//
// See connections.h. The table has at most as many connections as there are calls, so its buckets
// are short. A client cannot choose names that collide, because a name is an address that it must
// own.

#include "server/rpc/connections.h"

#include <stdlib.h>
#include <string.h>

void connections_init(struct connections *connections)
{
    for (uint32_t i = 0; i < CONNECTIONS_BUCKETS; i++)
        list_init(&connections->buckets[i]);
}

static struct list *bucket_of(struct connections *connections, const char *name)
{
    uint32_t hash = 2166136261u;
    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 16777619u;
    return &connections->buckets[hash % CONNECTIONS_BUCKETS];
}

static struct connection *find(struct list *bucket, const char *name)
{
    list_for_each (node, bucket) {
        struct connection *connection = list_entry(node, struct connection, link);
        if (strcmp(connection->name, name) == 0)
            return connection;
    }
    return NULL;
}

struct connection *connections_enter(struct connections *connections, const char *name,
                                     uint32_t most)
{
    struct list *bucket = bucket_of(connections, name);
    struct connection *connection = find(bucket, name);
    if (!connection) {
        const size_t bytes = strlen(name) + 1;
        connection = calloc(1, sizeof(*connection) + bytes);
        if (!connection)
            return NULL;
        memcpy(connection->name, name, bytes);
        list_push_back(bucket, &connection->link);
    }
    if (connection->calls >= most)
        return NULL;
    connection->calls++;
    return connection;
}

struct connection *connections_find(struct connections *connections, const char *name)
{
    return find(bucket_of(connections, name), name);
}

void connections_leave(struct connection *connection)
{
    if (!connection || --connection->calls > 0)
        return;
    list_remove(&connection->link);
    free(connection);
}
