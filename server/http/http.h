// SPDX-License-Identifier: Apache-2.0
//
// The HTTP server: health, metrics, the JSON API and the page. It changes nothing: every answer is
// made from a snapshot or from the archive. All that it sends to the core are questions to workers
// about their place. Only the files server/http/*.c use libevent. The server runs one thread of its
// own.
//
// /healthz          200 while the core thread answers, else 503
// /readyz           200 while new workers are taken, else 503
// /metrics          Prometheus text
// /api/v1/jobs      JSON
// /api/v1/jobs/NAME JSON
// /api/v1/stalls    JSON
// /                 the page, with /page.css and /page.js
//
// The paths below are appended to /api/v1/jobs/NAME. A path with a * also works after /api/v1, or
// alone; then it is about the latest job:
//
// /state            what the page shows, once
// /stalls           its stalls
// /events *         the same as server-sent events
// /timeline *       a Chrome trace of some ranks
// /ranks/N/stack *  the threads of a worker

#ifndef LOCKSTEP_SERVER_HTTP_HTTP_H
#define LOCKSTEP_SERVER_HTTP_HTTP_H

#include "base/log.h"
#include "server/render/render.h"
#include "server/state/archive.h"
#include "server/state/asks.h"
#include "server/state/endpoint.h"
#include "server/state/snapshot.h"

#include <stddef.h>
#include <stdint.h>

struct http; // Opaque.

struct http_config {
    struct endpoint endpoint;
    struct render_process process;
    struct snapshot_board *board; // Borrowed until close; its reader is the HTTP thread.
    struct asks *asks; // Borrowed until close.
    struct archive *archive; // Borrowed until close.
    uint32_t deaf_ms; // How long a client may leave events unread, in ms; 0: HTTP_DEAF_MS.
    uint32_t request_ms; // How long a client may take to send a request, in ms; 0: HTTP_REQUEST_MS.
    // The file with the token; NULL: no token is needed, and stacks and events are for loopback
    // only. Borrowed until close.
    const char *token_file;
    const char *tls_dir; // Borrowed until close; NULL: plaintext.
    // Further names of this server, separated by commas; NULL: none. Borrowed until close.
    const char *hosts;
    struct log *log; // Borrowed until close.
};

// Listens and starts the thread, which may ask the board from now on. So the core thread, which
// answers, must run soon. Returns 0, or -1 with a sentence in error.
int http_open(const struct http_config *config, struct http **http, char *error,
              size_t error_bytes);

uint16_t http_port(const struct http *http);

// Ends the thread and its connections. Blocks until the current answer is made, at most
// SNAPSHOT_WAIT_MS.
void http_close(struct http *http);

#endif
