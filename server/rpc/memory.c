// SPDX-License-Identifier: Apache-2.0
//
// Ends connections when the bound of memory is reached. budget.h has the order. Stream thread.

#include "server/rpc/memory.h"

#include "server/rpc/call.h"
#include "server/rpc/parts.h"
#include "server/rpc/server.h"

#include "base/log.h"

#define BUDGET_LOOK_MS 100 // How often memory is measured.
#define BUDGET_NEAR_LOOK_MS 20 // How often memory is measured above three quarters of the bound.
#define BUDGET_LOG_MS 1000 // At most one log line about memory in this time.
#define BUDGET_EACH_BYTES (64 * 1024) // The end of one connection gives back at least this.
#define BUDGET_TEXT \
    "the coordinator has no memory left for all who are connected; what did not read or came " \
    "last was ended"

static_assert(RPC_MAX_STREAMS + RPC_NEWCOMERS + 1024 <= BUDGET_SOCKETS, "all descriptors are seen");

static void server_end_connection(struct rpc_server *server, const struct budget_socket *socket)
{
    list_for_each (node, &server->calls) {
        struct call *call = list_entry(node, struct call, link);
        if (socket->connection && call->connection == socket->connection)
            rpc_call_cancel(call, RPC_RESOURCE_EXHAUSTED, BUDGET_TEXT);
    }
    budget_end(socket);
}

// Ends the connections that jobs need least. Returns how many of `most` have been ended, now or
// earlier.
static uint64_t server_end_connections(struct rpc_server *server, uint64_t most)
{
    size_t ended = 0;
    if (rpc_server_is_unix(server))
        return 0;
    const size_t count =
        budget_sockets(&server->connections, server->port, server->sockets, &ended);
    for (size_t i = 0; i < count && ended < most; i++) {
        if (budget_is_modest(&server->sockets[i]))
            continue;
        server_end_connection(server, &server->sockets[i]);
        server->counts.budget_ended++;
        ended++;
    }
    return ended;
}

// Ends streams, the latest ones first.
static void server_end_streams(struct rpc_server *server, uint64_t most)
{
    struct list *node = server->calls.previous;
    for (; node != &server->calls && most > 0; node = node->previous) {
        struct call *call = list_entry(node, struct call, link);
        if (call->slot == 0 || call->dead)
            continue;
        rpc_call_cancel(call, RPC_RESOURCE_EXHAUSTED, BUDGET_TEXT);
        server->counts.budget_ended++;
        most--;
    }
}

static void server_shrink(struct rpc_server *server, uint64_t memory, uint64_t now_ms)
{
    const uint64_t most = (memory - server->config.memory_bytes) / BUDGET_EACH_BYTES + 1;
    if (server_end_connections(server, most) == 0)
        server_end_streams(server, most);
    server->over_budget = true;
    if (now_ms < server->budget_log_ms)
        return;
    server->budget_log_ms = now_ms + BUDGET_LOG_MS;
    log_event(server->config.log, LOG_LEVEL_ERROR, "memory_over_budget",
              "mib=%llu budget_mib=%llu ended_total=%llu hint=%s", (unsigned long long)memory >> 20,
              (unsigned long long)server->config.memory_bytes >> 20,
              (unsigned long long)server->counts.budget_ended,
              "somebody connects too often or does not read, or --memory-mib is too low for so "
              "many workers; see SECURITY.md");
}

void rpc_memory_keep(struct rpc_server *server, uint64_t now_ms)
{
    if (now_ms < server->budget_look_ms)
        return;
    const uint64_t memory = server->config.memory ? server->config.memory() : budget_memory();
    const bool near = memory > server->config.memory_bytes / 4 * 3;
    server->budget_look_ms = now_ms + (near ? BUDGET_NEAR_LOOK_MS : BUDGET_LOOK_MS);
    server->counts.memory_bytes = memory;
    if (memory > server->config.memory_bytes) {
        server_shrink(server, memory, now_ms);
    } else if (server->over_budget) {
        server->over_budget = false;
        budget_trim();
    }
}
