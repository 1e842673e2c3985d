// SPDX-License-Identifier: Apache-2.0
//
// Shared by the files of the gRPC side: server.c (open and close, the calls of the service),
// loop.c, listener.c, call.c, health.c, memory.c, log.c. They and credentials.c alone know gRPC,
// whose C API changes between releases. There is one completion queue, served by one thread.
//
// Words. A tag is a pointer to a struct op, whose function handles the completion. A call is one
// RPC: a worker's stream, a health watch, or a reply that ends at once. A listener is one
// grpc_server object: there is one, and for as long as streams of a deaf one go on, also that.
//
// Lifetimes. Every started batch counts as one in call->pending; at 0 the call is freed. The batch
// RECV_CLOSE_ON_SERVER is started first and returns last in meaning: it is the only reliable sign
// that a call has ended, and nothing is started after it. A listener outlives its calls and its
// accepts, and the server its listeners.
//
// Stream thread only, but for the log of gRPC and rpc_server_wake.

#ifndef LOCKSTEP_SERVER_RPC_PARTS_H
#define LOCKSTEP_SERVER_RPC_PARTS_H

#include "base/list.h"
#include "base/mutex.h"
#include "server/rpc/budget.h"
#include "server/rpc/connections.h"
#include "server/rpc/server.h"

#include <grpc/grpc.h>

enum health {
    HEALTH_UNKNOWN = 0,
    HEALTH_SERVING = 1,
    HEALTH_NOT_SERVING = 2,
    HEALTH_NO_SERVICE = 3
};

struct op {
    void (*fn)(struct op *op, bool ok);
};

enum method {
    METHOD_STREAM,
    METHOD_CHECK,
    METHOD_WATCH,
    METHOD_UNKNOWN,
    METHOD_COUNT
};

// One posted request for the next call of a method.
struct accept {
    struct op op;
    struct listener *listener;
    enum method method;
    grpc_call *call;
    grpc_metadata_array metadata;
    grpc_call_details details; // METHOD_UNKNOWN only.
    gpr_timespec deadline;
};

struct listener {
    struct list link; // In server->listeners.
    struct rpc_server *server;
    grpc_server *grpc;
    void *registered[METHOD_COUNT];
    struct accept accepts[METHOD_COUNT];
    struct op shut;
    uint32_t pending; // Posted accepts, calls that live, the shutdown tag.
    bool closing;
};

// An encoded message on its way out.
struct packet {
    struct packet *next;
    grpc_byte_buffer *buffer;
    size_t size;
};

struct call {
    struct list link; // In server->calls.
    struct list timer; // In server->silent until it speaks, in server->lingering once finished.
    struct list watcher; // In server->watches.
    struct rpc_server *server;
    struct listener *listener;
    struct connection *connection; // NULL: not counted.
    grpc_call *grpc;
    enum method method;
    uint32_t pending; // Started batches.

    struct op sent;
    struct op received;
    struct op ended_op;
    grpc_byte_buffer *incoming;
    int cancelled; // Written by gRPC before ended_op.

    struct packet *first; // Queue of what is to be sent.
    struct packet *last;
    size_t queue_count;
    size_t queue_bytes;

    bool sending; // A batch that sends is in flight.
    bool header_sent;
    bool status_sent;
    bool reading; // RECV_MESSAGE is in flight.
    bool read_over; // The peer sends nothing more.
    bool finishing; // The status goes out when the queue is empty.
    bool dead; // Cancelled here, or ended: nothing more is started.
    bool silent_end; // closed() was called, or must not be.
    enum rpc_status status;
    char text[LOCKSTEP_TEXT_BYTES]; // The text of the status, or for closed().

    uint64_t deadline_ms; // While in a timer list.
    uint32_t slot; // METHOD_STREAM: index + 1 in server->slots, else 0.
    bool asked; // METHOD_CHECK, METHOD_WATCH: the question has come.
    bool watches_service; // METHOD_WATCH: readiness, else a constant.
    enum health health; // METHOD_WATCH: what was queued last.
};

struct slot {
    struct call *call;
    uint32_t generation;
    uint32_t next_free; // Index + 1.
};

struct rpc_server {
    // set at open, then constant
    struct rpc_config config;
    struct rpc_events events;
    char address[LOCKSTEP_ADDRESS_BYTES]; // With the port that was bound.
    uint16_t port;
    struct rpc_credentials *credentials; // NULL: plaintext.
    grpc_completion_queue *queue;
    grpc_channel *lame; // Carries wake_call, which is never started.
    grpc_call *wake_call;

    // guarded by wake_mutex
    struct mutex wake_mutex;
    struct op wake;
    bool wake_posted;

    // loop thread only
    struct listener *listener; // NULL while deaf and when stopping.
    struct list listeners;
    struct list calls;
    struct list silent;
    struct list lingering;
    struct list watches;
    struct connections connections;
    uint32_t stream_connections; // Those of them that have a stream.
    uint32_t call_count;
    uint32_t watch_count;
    struct slot slots[RPC_MAX_STREAMS];
    uint32_t free_slot; // Index + 1.
    uint64_t budget_look_ms; // When memory is looked at next (UINT64_MAX: it has no bound),
    uint64_t budget_log_ms; // and when the next line may be written.
    struct budget_socket sockets[BUDGET_SOCKETS];
    bool over_budget;
    uint64_t reopen_ms;
    uint64_t reopen_wait_ms;
    uint64_t cut_ms; // After stop: when patience ends; else UINT64_MAX.
    uint64_t turn_ms; // When the owner wants its next turn.
    bool serving;
    bool stopping;
    struct rpc_counts counts;
};

#endif
