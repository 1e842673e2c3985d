// SPDX-License-Identifier: Apache-2.0
//
// The loop of the stream thread: one completion, one turn. Only rpc_server_wake may be called by
// any thread.

#include "server/rpc/loop.h"

#include "server/rpc/call.h"
#include "server/rpc/listener.h"
#include "server/rpc/memory.h"
#include "server/rpc/parts.h"

#include "base/clock.h"
#include "server/rpc/sockets.h"

#include <grpc/support/time.h>

#define DEAF_CHECK_MS 250 // The longest time until a failed accept is noticed.

// ---- the loop ---------------------------------------------------------------------------------

static struct call *expired(const struct list *list, uint64_t now_ms)
{
    struct list *node = list_first(list);
    if (!node)
        return NULL;
    struct call *call = list_entry(node, struct call, timer);
    return call->deadline_ms <= now_ms ? call : NULL;
}

static void server_expire(struct rpc_server *server, uint64_t now_ms)
{
    struct call *call;
    while ((call = expired(&server->silent, now_ms))) {
        server->counts.streams_silent += call->slot != 0 ? 1 : 0;
        rpc_call_report_closed(call, "it opened a control stream and said nothing");
        rpc_call_finish(call, RPC_DEADLINE_EXCEEDED,
                        call->method == METHOD_STREAM ? "a stream begins with a hello; none came"
                                                      : "the call began, and no message came");
    }
    while ((call = expired(&server->lingering, now_ms))) {
        list_remove(&call->timer);
        rpc_call_cancel(call, call->status == RPC_OK ? RPC_DEADLINE_EXCEEDED : call->status,
                        "the end of the stream was not read");
    }
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t first_deadline(const struct list *list)
{
    struct list *node = list_first(list);
    return node ? list_entry(node, struct call, timer)->deadline_ms : UINT64_MAX;
}

// Returns how long the queue may block, in ms. The time is limited, because nothing wakes the queue
// when the listener goes deaf, or when gRPC allocates memory for bytes that belong to no call.
static uint64_t server_wait_ms(const struct rpc_server *server, uint64_t now_ms)
{
    uint64_t next = earlier(server->turn_ms, now_ms + DEAF_CHECK_MS);
    next = earlier(next, server->cut_ms);
    next = earlier(next, server->budget_look_ms);
    next = earlier(next, first_deadline(&server->silent));
    next = earlier(next, first_deadline(&server->lingering));
    if (!server->listener && !server->stopping)
        next = earlier(next, server->reopen_ms);
    return next > now_ms ? next - now_ms : 0;
}

static void server_close_listeners(struct rpc_server *server)
{
    list_for_each (node, &server->listeners)
        rpc_listener_close(list_entry(node, struct listener, link));
}

static void server_cut_calls(struct rpc_server *server)
{
    list_for_each (node, &server->calls)
        rpc_call_cancel(list_entry(node, struct call, link), RPC_UNAVAILABLE, "shutting down");
    list_for_each (node, &server->listeners)
        grpc_server_cancel_all_calls(list_entry(node, struct listener, link)->grpc);
}

// After stop: first the calls end with their status, then the listeners and their connections,
// because bytes that are written while a connection closes may be lost. Calls that are still open
// at cut_ms are cut.
static void server_wind_down(struct rpc_server *server, uint64_t now_ms)
{
    if (!server->stopping)
        return;
    bool cut = now_ms >= server->cut_ms;
    if (cut || list_empty(&server->calls))
        server_close_listeners(server);
    if (cut) {
        server_cut_calls(server);
        server->cut_ms = UINT64_MAX;
    }
}

static void server_turn(struct rpc_server *server)
{
    uint64_t now_ms = clock_now_ms();
    rpc_sockets_turn();
    rpc_listener_reopen(server, now_ms);
    server_expire(server, now_ms);
    rpc_memory_keep(server, now_ms);
    if (!server->stopping)
        server->turn_ms = server->events.turn(server->events.context, now_ms);
    else
        server->turn_ms = UINT64_MAX;
    server_wind_down(server, now_ms);
}

static bool server_has_ended(const struct rpc_server *server)
{
    return server->stopping && list_empty(&server->listeners) && list_empty(&server->calls);
}

void rpc_server_run(struct rpc_server *server)
{
    server_turn(server);
    while (!server_has_ended(server)) {
        uint64_t wait_ms = server_wait_ms(server, clock_now_ms());
        gpr_timespec deadline = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                             gpr_time_from_millis((int64_t)wait_ms, GPR_TIMESPAN));
        grpc_event event = grpc_completion_queue_next(server->queue, deadline, NULL);
        if (event.type == GRPC_OP_COMPLETE) {
            struct op *op = event.tag;
            op->fn(op, event.success != 0);
        }
        server_turn(server);
    }
}

// ---- waking -----------------------------------------------------------------------------------

// The C API has no alarm. But an empty batch on a call that was never started completes at once,
// and puts its tag into the queue. The mutex is needed because such a call is only
// "thread-compatible".
void rpc_server_wake(struct rpc_server *server)
{
    mutex_lock(&server->wake_mutex);
    if (!server->wake_posted) {
        server->wake_posted =
            grpc_call_start_batch(server->wake_call, NULL, 0, &server->wake, NULL) == GRPC_CALL_OK;
    }
    mutex_unlock(&server->wake_mutex);
}

static void server_on_wake(struct op *op, bool ok)
{
    (void)ok;
    struct rpc_server *server = list_entry(op, struct rpc_server, wake);
    mutex_lock(&server->wake_mutex);
    server->wake_posted = false;
    mutex_unlock(&server->wake_mutex);
}

void rpc_loop_open_wake(struct rpc_server *server)
{
    mutex_init(&server->wake_mutex);
    server->wake.fn = server_on_wake;
    server->lame = grpc_lame_client_channel_create(NULL, GRPC_STATUS_UNAVAILABLE, "wake");
    server->wake_call = grpc_channel_create_call(
        server->lame, NULL, GRPC_PROPAGATE_DEFAULTS, server->queue,
        grpc_slice_from_static_string("/wake"), NULL, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
}
