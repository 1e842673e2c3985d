// SPDX-License-Identifier: Apache-2.0
//
// Connects the core to its streams. It decodes the messages of workers, steps the core, sends the
// messages that the core returns, counts, drains, makes snapshots for HTTP, and keeps what workers
// answer about themselves. The core alone decides about jobs. This file uses no sockets: it calls
// struct rpc_calls, which a test can replace.
//
// Threads: all functions run on the stream thread, except service_drain and service_outlive, which
// any thread may call.

#ifndef LOCKSTEP_SERVER_SERVICE_H
#define LOCKSTEP_SERVER_SERVICE_H

#include "base/log.h"
#include "server/launcher.h"
#include "server/prober.h"
#include "server/rpc/server.h"
#include "server/state/archive.h"
#include "server/state/asks.h"
#include "server/state/snapshot.h"

#include <stdint.h>

#define SERVICE_METHOD "/lockstep.v1.Coordinator/Session"
#define SERVICE_NAME "lockstep.v1.Coordinator"

struct service_config {
    uint32_t chunk_bytes; // 0: the core's default.
    uint32_t drain_ms;
    uint32_t outlive_ms; // After service_outlive: how long no stream is there before it drains.
    uint32_t stall_floor_ms; // 0: the core's default.
    struct log *log; // Borrowed until close.
};

struct service; // Opaque.

// Returns 0, or -1 with a sentence in error.
int service_open(const struct service_config *config, struct service **service, char *error,
                 size_t error_bytes);

// Returns the events that the streams must report. The service calls no stream before
// service_attach.
struct rpc_events service_events(struct service *service);

// Sets the functions of the streams. server is passed to each of them, and must live until
// service_close.
void service_attach(struct service *service, const struct rpc_calls *calls, void *server);

// What the HTTP thread and the stream thread share. Borrowed until close.
struct service_shown {
    struct snapshot_board *board; // Gets a snapshot when the HTTP thread has asked for one.
    struct asks *asks; // Questions of the HTTP thread to workers.
    struct archive *archive; // The answers of workers.
};
void service_show(struct service *service, const struct service_shown *shown);

// Sets the launcher that this coordinator belongs to. Borrowed until close. Without it the service
// has no launcher.
void service_serve(struct service *service, struct launcher *launcher);

// Sets the prober that reaches the data ports of workers. Borrowed until close. Without it no port
// is probed.
void service_probe(struct service *service, struct prober *prober);

// Begins to drain. From the next turn on, which the caller must cause with rpc_server_wake, the
// service takes no new workers and is not ready. The service stops when all streams have ended or
// drain_ms has passed. Any thread.
void service_drain(struct service *service);

// The parent has ended. From the next turn on the service drains once no stream has been there for
// outlive_ms. Until then it serves all workers, also new ones. Any thread.
void service_outlive(struct service *service);

void service_close(struct service *service);

#endif
