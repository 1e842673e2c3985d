// SPDX-License-Identifier: Apache-2.0
//
// The daemon's end of the control streams: it listens, moves bytes, and reports when a stream
// opens, sends a message, or ends. It uses gRPC and does not know what the bytes mean, except for
// grpc.health.v1, which it answers itself. Its files are server/rpc/*.c (parts.h). They are the
// only files of the server that include gRPC, and this header names no gRPC type. gRPC owns the
// prefix grpc_server_, so all names here begin with rpc_.
//
// Rules, in prose:
//
// Streams. A stream is one call of the method given at open. Its name is a 64-bit peer (a slot and
// a generation), never a pointer. Every function ignores the name of a stream that has ended. A
// stream that sends nothing for RPC_SILENCE_MS is closed with a reason.
//
// Back-pressure. At most one message is in flight on a stream; the others wait in its queue. While
// RPC_QUEUE_PAUSE messages wait, the server does not read from the stream. When LOCKSTEP_SEND_QUEUE
// messages wait, the peer is a slow consumer, and its stream is closed with a reason.
//
// A deaf listener. gRPC 1.51 never accepts again once one accept has failed, for instance because
// the process had no free descriptor (CVE-2023-4785). The failure is visible only in gRPC's log.
// The server then closes the listener, and opens a new one on the same port as soon as descriptors
// are free. Open streams continue.
//
// Newcomers. gRPC reports a client only when its first call begins. Until then the client has
// proven nothing and is not counted. The limit of descriptors bounds such connections. The limit is
// the number of connections with a stream, plus RPC_NEWCOMERS, plus what the rest of the process
// needs.
//
// Bytes. gRPC reads from a connection as long as data comes. So the bytes that a connection may
// send in one turn of the loop have a bound, and a connection that sends more is ended (sockets.h).
//
// Paths. The directory of a Unix socket decides who may connect. If only its owner may enter the
// directory, the server also checks the user of each connecting process.
//
// Calls. A client is told that it may have RPC_CONNECTION_CALLS calls at once on a connection. A
// client that ignores this gets at most twice as many. A call of any method ends if its first
// message does not come within RPC_SILENCE_MS.
//
// Memory. The bounds of single connections do not bound their sum, so the server measures the
// memory that the process has allocated. While it is above memory_bytes, connections are ended:
// first those without a stream, then those that do not read or have more calls than a worker has,
// then the latest streams. Workers are told the reason.
//
// TLS. With tls_dir, a stream may begin only if its certificate is some worker's. The service
// checks the job with allows() once it knows the job. The text of a refusal reveals nothing about
// jobs (credentials.h).
//
// Threads: one thread opens, runs and closes the server. It calls every function except
// rpc_server_wake, which any thread may call. rpc_server_run calls all events on that thread.

#ifndef LOCKSTEP_SERVER_RPC_SERVER_H
#define LOCKSTEP_SERVER_RPC_SERVER_H

#include "base/log.h"
#include "protos/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The extra streams are accepted so that they can be refused with a reason.
#define RPC_MAX_STREAMS (LOCKSTEP_MAX_WORKERS + 64)
// Connections without a stream. Enough for two of the largest worlds to connect at once.
#define RPC_NEWCOMERS 2048
#define RPC_MAX_WATCHES 256 // grpc.health.v1 Watch calls.
#define RPC_CONNECTION_CALLS 16 // Calls at once on one connection. A worker has one.
#define RPC_QUEUE_PAUSE 64
#define RPC_QUEUE_BYTES (16 * 1024 * 1024) // Queued bytes of one stream.
#define RPC_SILENCE_MS 10000
#define RPC_LINGER_MS 5000 // How long the peer of a finished stream has to read what was sent.

static_assert(RPC_NEWCOMERS >= 2 * LOCKSTEP_MAX_WORLD, "a world can come all at once");
static_assert(RPC_QUEUE_PAUSE < LOCKSTEP_SEND_QUEUE, "a stream is paused before it is closed");

// The text for a client whose certificate does not allow the call. It reveals nothing about jobs
// that exist.
#define RPC_UNAUTHORIZED_TEXT \
    "this certificate does not allow what was asked for; ask whoever issued it for one with the " \
    "name lockstep://job/NAME/worker of your job"

// The status with which a stream ends, with gRPC's numbers.
enum rpc_status {
    RPC_OK = 0,
    RPC_INVALID_ARGUMENT = 3,
    RPC_DEADLINE_EXCEEDED = 4,
    RPC_NOT_FOUND = 5,
    RPC_PERMISSION_DENIED = 7,
    RPC_RESOURCE_EXHAUSTED = 8,
    RPC_UNIMPLEMENTED = 12,
    RPC_INTERNAL = 13,
    RPC_UNAVAILABLE = 14,
};

typedef uint64_t rpc_peer;

struct rpc_events {
    // A stream has opened. address: for instance "ipv4:127.0.0.1:4711", borrowed for the call.
    void (*opened)(void *context, rpc_peer peer, const char *address);
    // A message has come. bytes are borrowed for the call; size is at most LOCKSTEP_MESSAGE_BYTES.
    void (*message)(void *context, rpc_peer peer, const uint8_t *bytes, size_t size);
    // The peer ended its stream, or the stream broke; text says which, and is borrowed for the
    // call. Called once for a stream, and never for a stream that finish or abort ended.
    void (*closed)(void *context, rpc_peer peer, const char *text);
    // Called after every event, after rpc_server_wake, and at the time that it returned last.
    // Returns the time of the next call in clock_now_ms, or UINT64_MAX if none is needed.
    uint64_t (*turn)(void *context, uint64_t now_ms);
    void *context;
};

struct rpc_config {
    // A numeric address without brackets; or "unix:" and a path, and then port is not used.
    const char *host;
    uint16_t port; // 0: any free port.
    const char *method; // The method's path: "/package.Service/Method".
    // The service's name for health checks. The name "" means the process itself.
    const char *service;
    struct log *log; // Borrowed until close. Also gets gRPC's own errors.
    const char *tls_dir; // Borrowed until close; NULL: plaintext.
    // Bytes of memory of the whole process above which connections are ended; 0: no bound.
    uint64_t memory_bytes;
    uint64_t (*memory)(void); // Measures that memory, for tests; NULL: budget_memory.
    // Descriptors that the rest of the process needs; 0: the limit of descriptors is not changed.
    uint32_t descriptors;
};

// Counts since the start, for metrics.
struct rpc_counts {
    uint64_t streams_opened;
    uint64_t streams_refused; // Refused because RPC_MAX_STREAMS were open already.
    uint64_t streams_silent; // Closed because they sent nothing.
    uint64_t slow_consumers; // Closed because they did not read.
    // Connections and streams that were ended because memory was above its bound.
    uint64_t budget_ended;
    uint64_t memory_bytes; // Memory of the process when it was measured last.
    uint64_t unknown_methods;
    uint64_t accept_failures; // Times the listener went deaf.
    uint64_t listener_reopens; // Times a new listener was opened in its place.
    // Refused because the certificate is not a worker's, or is for another job.
    uint64_t streams_unauthorized;
    uint64_t handshakes_failed; // Handshakes of TLS that either side refused.
    uint64_t tls_reloads;
    uint64_t tls_reload_failures;
    uint64_t tls_expires_s; // Unix time in seconds at which our certificate expires; 0: no TLS.
    uint32_t streams; // Open now.
    bool listening;
};

struct rpc_server;

// The functions of a server that the service calls. A test can replace them.
struct rpc_calls {
    // Copies bytes into the stream's queue. Returns false if there is no such stream, or it was
    // just closed as a slow consumer. The loop calls closed() later, never inside this call.
    bool (*send)(void *server, rpc_peer peer, const uint8_t *bytes, size_t size);
    // Returns true if the certificate of this stream allows a worker of that job. Always true
    // without TLS.
    bool (*allows)(void *server, rpc_peer peer, const char *job);
    // Returns a number for the stream's address without its port. Equal addresses have equal
    // numbers. The number of an open stream is never 0. All streams over a Unix socket have the
    // same number.
    uint64_t (*origin)(void *server, rpc_peer peer);
    // Ends the stream after everything queued was sent. text is copied.
    void (*finish)(void *server, rpc_peer peer, enum rpc_status status, const char *text);
    // Ends the stream at once. Queued messages are dropped.
    void (*abort)(void *server, rpc_peer peer, enum rpc_status status, const char *text);
    // Sets the readiness that grpc.health.v1 reports for the service. The process itself always
    // counts as serving.
    void (*set_serving)(void *server, bool serving);
    // Ends all streams and stops listening. rpc_server_run returns when all calls and listeners
    // have ended.
    void (*stop)(void *server);
    struct rpc_counts (*counts)(const void *server);
};

extern const struct rpc_calls rpc_server_calls; // The first argument is a struct rpc_server.

// Opens the server and listens. Streams are served only by rpc_server_run. Signals must be blocked
// before the call, because gRPC's threads inherit the mask. Returns 0, or -1 with a sentence in
// error.
int rpc_server_open(const struct rpc_config *config, const struct rpc_events *events,
                    struct rpc_server **server, char *error, size_t error_bytes);

uint16_t rpc_server_port(const struct rpc_server *server);

// Call it after rpc_server_run has returned, or instead of rpc_server_run.
void rpc_server_close(struct rpc_server *server);

// Returns gRPC's version, for the log line at the start.
const char *rpc_server_version(void);

// Returns true if the server listens on a Unix socket.
bool rpc_server_is_unix(const struct rpc_server *server);

#endif
