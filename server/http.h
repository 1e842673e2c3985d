// SPDX-License-Identifier: Apache-2.0
//
// The HTTP side: health, metrics, the JSON API and the page. It only reads: every answer is made
// from a snapshot, nothing that arrives here reaches the core. http.c is the only file that knows
// libevent. It runs one thread of its own.
//
// /healthz          200 while the core thread answers, else 503
// /readyz           200 while new workers are taken, else 503
// /metrics          Prometheus text
// /api/v1/jobs      JSON
// /api/v1/jobs/NAME JSON
// /                 the page

#ifndef LOCKSTEP_SERVER_HTTP_H
#define LOCKSTEP_SERVER_HTTP_H

#include "base/log.h"
#include "server/options.h"
#include "server/render.h"
#include "server/snapshot.h"

#include <stddef.h>
#include <stdint.h>

struct http; // Opaque.

struct http_config {
    struct endpoint endpoint;
    struct render_process process;
    struct snapshot_board *board; // Borrowed until close; its reader is the HTTP thread.
    struct log *log; // Borrowed until close.
};

// Listens and starts the thread. The board may be asked from now on, so whoever answers it must
// run soon. Returns 0, or -1 with a sentence in error.
int http_open(const struct http_config *config, struct http **http, char *error,
              size_t error_bytes);

uint16_t http_port(const struct http *http);

// Ends the thread and its connections. Blocks for the answer that is being made, at most
// SNAPSHOT_WAIT_MS.
void http_close(struct http *http);

#endif
