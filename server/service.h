// SPDX-License-Identifier: Apache-2.0
//
// Joins the core to its streams: decodes what workers say, steps the core, sends what it answers,
// counts, drains, makes pictures for HTTP, and keeps what workers answer about themselves. It
// decides nothing about jobs (the core does) and knows no sockets (struct rpc_calls stands for
// them, so that a test can too).
//
// Threads: everything on the thread that runs the streams, but service_drain, which any thread may
// call.

#ifndef LOCKSTEP_SERVER_SERVICE_H
#define LOCKSTEP_SERVER_SERVICE_H

#include "base/log.h"
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
    uint32_t stall_floor_ms; // 0: the core's default.
    struct log *log; // Borrowed until close.
};

struct service; // Opaque.

// Returns 0, or -1 with a sentence in error.
int service_open(const struct service_config *config, struct service **service, char *error,
                 size_t error_bytes);

// The streams are told to this, and are not used before service_attach.
struct rpc_events service_events(struct service *service);

// The streams themselves. server is given to every call and must outlive the service's use.
void service_attach(struct service *service, const struct rpc_calls *calls, void *server);

// Where the HTTP thread meets this one. Borrowed until close.
struct service_shown {
    struct snapshot_board *board; // Pictures are made when it asks.
    struct asks *asks; // Questions to workers.
    struct archive *archive; // All answers of workers.
};
void service_show(struct service *service, const struct service_shown *shown);

// Takes no new workers, is not ready, and stops when all streams have ended or drain_ms has
// passed. Takes effect in the next turn: wake the server. Any thread.
void service_drain(struct service *service);

void service_close(struct service *service);

#endif
