// SPDX-License-Identifier: Apache-2.0
//
// The daemon's end of the control streams: listens, moves bytes, and says when streams open, speak
// and end. It knows gRPC and nothing of what the bytes mean, except for grpc.health.v1, which it
// answers by itself. Its files are server/rpc/*.c (parts.h), the only ones of the server that
// include gRPC, and no gRPC type is named here. gRPC owns the prefix grpc_server_,
// so everything is rpc_*.
//
// Rules, in prose:
//
// Streams. A stream is one call of the method given at open. Its name is a 64-bit peer (a slot and
// a generation), never a pointer: a stale name finds nothing and every function ignores it. A
// stream that says nothing for RPC_SILENCE_MS is closed by name.
//
// Back-pressure. At most one message is in flight on a stream, the others wait here. When
// RPC_QUEUE_PAUSE of them wait, the stream is not read until its peer has read some; when
// LOCKSTEP_SEND_QUEUE of them wait, the peer is a slow consumer and its stream is closed by name.
//
// A deaf listener. This gRPC never accepts again once one accept has failed, for instance because
// the process had no descriptor left (CVE-2023-4785). The failure is seen in gRPC's own log; then
// the listener is closed, and opened again on the same port as soon as descriptors are free.
// Streams that stand are not touched.
//
// Newcomers. Who connects has proven nothing before his stream stands, and gRPC tells nobody of
// him. What bounds such connections is the limit of descriptors, which follows the streams: as many
// as stand, RPC_NEWCOMERS, and what the rest of the process needs.
//
// Bytes. gRPC reads on as long as a connection says something, so what a connection says in one
// turn of the loop has a bound; one that says more ends (sockets.h).
//
// Paths. Who may connect to a path is said by its directory. Where that lets in nobody but its
// owner, the system is also asked whose process has connected.
//
// Calls. A connection has RPC_CONNECTION_CALLS at once; it is told so, and who does not listen gets
// no more than twice as many. A call of which the first message does not come within RPC_SILENCE_MS
// ends, whatever it asks for.
//
// Memory. Bounds of each connection do not bound all of them together, so what the process has from
// its allocator is looked at: above memory_bytes connections end until it is less, those first
// that have no stream, then those that do not read or have more calls than a worker has, then the
// latest streams. Workers are told why.
//
// TLS. With tls_dir a stream begins only for a certificate that may be a worker's; of which job,
// the service asks with allows when it knows the job. What was refused is told in words that say
// nothing about jobs (credentials.h).
//
// Threads: one thread opens, runs and closes the server, and calls everything but rpc_server_wake,
// which any thread may call. All events come on that thread, from rpc_server_run.

#ifndef LOCKSTEP_SERVER_RPC_SERVER_H
#define LOCKSTEP_SERVER_RPC_SERVER_H

#include "base/log.h"
#include "protos/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RPC_MAX_STREAMS (LOCKSTEP_MAX_WORKERS + 64) // The rest is there to be refused by name.
#define RPC_NEWCOMERS 2048 // Connections without a stream: two of the largest worlds at once.
#define RPC_MAX_WATCHES 256 // grpc.health.v1 Watch calls.
#define RPC_CONNECTION_CALLS 16 // At once on one connection; a worker has one.
#define RPC_QUEUE_PAUSE 64
#define RPC_QUEUE_BYTES (16 * 1024 * 1024) // Queued bytes of one stream.
#define RPC_SILENCE_MS 10000
#define RPC_LINGER_MS 5000 // For a finished stream to take what was sent.

static_assert(RPC_NEWCOMERS >= 2 * LOCKSTEP_MAX_WORLD, "a world can come all at once");
static_assert(RPC_QUEUE_PAUSE < LOCKSTEP_SEND_QUEUE, "a stream is paused before it is closed");

// The text for a client without the right; it tells nothing about jobs that exist.
#define RPC_UNAUTHORIZED_TEXT \
    "this certificate does not allow what was asked for; ask whoever issued it for one with the " \
    "name lockstep://job/NAME/worker of your job"

// The end of a stream, with gRPC's numbers.
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
    // A stream stands. address: "ipv4:127.0.0.1:4711", borrowed for the call.
    void (*opened)(void *context, rpc_peer peer, const char *address);
    // bytes are borrowed for the call; never above LOCKSTEP_MESSAGE_BYTES.
    void (*message)(void *context, rpc_peer peer, const uint8_t *bytes, size_t size);
    // The peer ended its stream, or it broke; text says which, borrowed for the call. Once, and
    // not for a stream that was ended here with finish or abort.
    void (*closed)(void *context, rpc_peer peer, const char *text);
    // After every event, after rpc_server_wake, and when the returned time has come: the time, in
    // clock_now_ms, of the next call; UINT64_MAX: none is wanted.
    uint64_t (*turn)(void *context, uint64_t now_ms);
    void *context;
};

struct rpc_config {
    const char *host; // Numeric, without brackets; or "unix:" and a path, then without a port.
    uint16_t port; // 0: any.
    const char *method; // Path of the streams: "/package.Service/Method".
    const char *service; // Its name for health checks; "" is the process itself.
    struct log *log; // Borrowed until close. gRPC's own errors go there too.
    const char *tls_dir; // Borrowed until close; NULL: plaintext.
    uint64_t memory_bytes; // Memory of the whole process, above which connections end; 0: no bound.
    uint64_t (*memory)(void); // Measures that memory; NULL: budget_memory. For tests.
    uint32_t descriptors; // Descriptors for the rest of the process; 0: its limit is left alone.
};

// Counts since the start, for metrics.
struct rpc_counts {
    uint64_t streams_opened;
    uint64_t streams_refused; // Above RPC_MAX_STREAMS.
    uint64_t streams_silent; // Closed for saying nothing.
    uint64_t slow_consumers; // Closed for not reading.
    uint64_t budget_ended; // Connections and streams, because all together cost too much.
    uint64_t memory_bytes; // Memory of the process when it was measured last.
    uint64_t unknown_methods;
    uint64_t accept_failures; // Times the listener went deaf.
    uint64_t listener_reopens; // Times it was opened again.
    uint64_t streams_unauthorized; // Their certificate is no worker's, or of another job.
    uint64_t handshakes_failed; // Handshakes of TLS that either side refused.
    uint64_t tls_reloads;
    uint64_t tls_reload_failures;
    uint64_t tls_expires_s; // Unix time at which our certificate ends; 0: no TLS.
    uint32_t streams; // Standing now.
    bool listening;
};

struct rpc_server; // Opaque.

// The functions of a server that the service calls, so that a test can stand in for one.
struct rpc_calls {
    // Copies bytes into the stream's queue. False: there is no such stream, or it was just closed
    // as a slow consumer; closed() follows from the loop, never from inside this call.
    bool (*send)(void *server, rpc_peer peer, const uint8_t *bytes, size_t size);
    // Whether the certificate of this stream allows a worker of that job; without TLS all do.
    bool (*allows)(void *server, rpc_peer peer, const char *job);
    // Stands for the address from which this stream came, without its port: equal for equal ones,
    // never 0 for one that stands. All that come by a path are from one.
    uint64_t (*origin)(void *server, rpc_peer peer);
    // Ends the stream after everything queued was sent. text is copied.
    void (*finish)(void *server, rpc_peer peer, enum rpc_status status, const char *text);
    // Ends the stream at once; what waits is dropped. text is copied.
    void (*abort)(void *server, rpc_peer peer, enum rpc_status status, const char *text);
    // Readiness, as grpc.health.v1 tells it. The process itself is always serving.
    void (*set_serving)(void *server, bool serving);
    // Closes everything; rpc_server_run returns when all of it has ended.
    void (*stop)(void *server);
    struct rpc_counts (*counts)(const void *server);
};

extern const struct rpc_calls rpc_server_calls; // The first argument is a struct rpc_server.

// Listens; streams are served once rpc_server_run runs. Signals must be blocked before, because
// gRPC's threads inherit the mask. Returns 0, or -1 with a sentence in error.
int rpc_server_open(const struct rpc_config *config, const struct rpc_events *events,
                    struct rpc_server **server, char *error, size_t error_bytes);

uint16_t rpc_server_port(const struct rpc_server *server);

// After rpc_server_run returned, or instead of it.
void rpc_server_close(struct rpc_server *server);

// gRPC's version, for the start line.
const char *rpc_server_version(void);

// Whether it listens at a path.
bool rpc_server_is_unix(const struct rpc_server *server);

#endif
