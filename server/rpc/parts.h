// SPDX-License-Identifier: Apache-2.0
//
// Shared by the files of the gRPC side: server.c (open and close, the calls of the service),
// loop.c, listener.c, call.c, health.c, memory.c, log.c. Only these files and credentials.c use
// gRPC, because its C API changes between releases. There is one completion queue, and one thread
// serves it.
//
// Words. A tag is a pointer to a struct op, whose function handles the completion. A call is one
// RPC: a worker's stream, a health watch, or a reply that ends at once. A listener is one
// grpc_server object. Usually there is one. A deaf listener (server.h) also stays until its streams
// have ended.
//
// Lifetimes. call->pending counts the started batches; at 0 the call is freed. At any time a call
// reads a message, or awaits its end (RECV_CLOSE_ON_SERVER), or is paused and sends. Only the
// completion of the second batch proves that a call has ended, and no batch is started after it. A
// call that reads, or will read again, does not await its end, because gRPC then drops messages
// that have come, as soon as the peer breaks the call or its process ends. The last of them may be
// a worker's goodbye, which many heartbeats precede if the coordinator was stopped. A listener
// outlives its calls and its accepts, and the server outlives its listeners.
//
// Stream thread only, except for gRPC's log and rpc_server_wake.

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
    grpc_call_details details; // Used for METHOD_UNKNOWN only.
    gpr_timespec deadline;
};

struct listener {
    struct list link; // The link in server->listeners.
    struct rpc_server *server;
    grpc_server *grpc;
    void *registered[METHOD_COUNT];
    struct accept accepts[METHOD_COUNT];
    struct op shut;
    uint32_t pending; // Posted accepts, plus open calls, plus the shutdown tag if it is due.
    bool closing;
};

// An encoded message to send.
struct packet {
    struct packet *next;
    grpc_byte_buffer *buffer;
    size_t size;
};

// One call of a worker or of a probe, from its accept until gRPC has given back all of its batches.
struct call {
    // set at the start, then constant
    struct rpc_server *server;
    struct listener *listener;
    // NULL: the call is not counted on any connection (Unix sockets).
    struct connection *connection;
    grpc_call *grpc;
    enum method method;

    // links
    struct list link; // The link in server->calls.
    // The link in server->silent until the first message comes, in server->lingering once the call
    // is finishing.
    struct list timer;
    struct list watcher; // The link in server->watches.
    uint64_t deadline_ms; // In clock_now_ms; used while the call is in a timer list.

    uint32_t pending; // Batches that were started and have not completed.

    // sending
    struct packet *first; // The queue of messages to send.
    struct packet *last;
    size_t queue_count;
    size_t queue_bytes;
    struct op sent;
    bool sending; // True while a batch that sends is in flight.
    bool header_sent;
    bool status_sent;

    // receiving
    struct op received;
    grpc_byte_buffer *incoming;
    bool reading; // True while RECV_MESSAGE is in flight.
    bool read_over; // True once the peer sends nothing more.

    // the end
    struct op ended_op;
    int cancelled; // gRPC sets it before it completes ended_op.
    bool awaits_end; // True once RECV_CLOSE_ON_SERVER was started.
    bool finishing; // True once the call ends: the status is sent when the queue is empty.
    // True once the call was cancelled here or has ended. Then at most RECV_CLOSE_ON_SERVER is
    // started.
    bool dead;
    bool silent_end; // True once closed() was called, or must not be called any more.
    enum rpc_status status;
    char text[LOCKSTEP_TEXT_BYTES]; // The text for the status or for closed().

    // of one method
    uint32_t slot; // METHOD_STREAM: index + 1 in server->slots. Other methods: 0.
    bool asked; // METHOD_CHECK, METHOD_WATCH: true once the client's request has come.
    // METHOD_WATCH: true if the client watches readiness, which changes. False if its answer is
    // constant.
    bool watches_service;
    enum health health; // METHOD_WATCH: the answer that was queued last.
};

struct slot {
    struct call *call;
    uint32_t generation;
    uint32_t next_free; // Index + 1 of the next free slot; 0: none.
};

struct rpc_server {
    // set at open, then constant
    struct rpc_config config;
    struct rpc_events events;
    char address[LOCKSTEP_ADDRESS_BYTES]; // Includes the port that was bound.
    uint16_t port;
    struct rpc_credentials *credentials; // NULL: plaintext.
    grpc_completion_queue *queue;
    // A channel that connects to nothing. It carries wake_call, which is never started.
    grpc_channel *lame;
    grpc_call *wake_call;

    // guarded by wake_mutex
    struct mutex wake_mutex;
    struct op wake;
    bool wake_posted;

    // stream thread only
    struct listener *listener; // NULL after the listener went deaf, and while the server stops.
    struct list listeners;
    struct list calls;
    struct list silent;
    struct list lingering;
    struct list watches;
    struct connections connections;
    uint32_t stream_connections; // Connections that have a stream.
    uint32_t call_count;
    uint32_t watch_count;
    struct slot slots[RPC_MAX_STREAMS];
    uint32_t free_slot; // Index + 1 of the first free slot; 0: none.
    // When memory is measured next, in clock_now_ms. UINT64_MAX: memory has no bound.
    uint64_t budget_look_ms;
    uint64_t budget_log_ms; // When the next log line about memory may be written, in clock_now_ms.
    struct budget_socket sockets[BUDGET_SOCKETS];
    bool over_budget;
    uint64_t reopen_ms;
    uint64_t reopen_wait_ms;
    // After stop: when the remaining calls are cut, in clock_now_ms. Else UINT64_MAX.
    uint64_t cut_ms;
    uint64_t turn_ms; // When the service wants its next turn, in clock_now_ms.
    bool serving;
    bool stopping;
    struct rpc_counts counts;
};

#endif
