// SPDX-License-Identifier: Apache-2.0
//
// Shared by the files server/http/*.c: answers, streams of events, and questions that wait for a
// worker. Only these files use libevent. Everything runs on the HTTP thread.

#ifndef LOCKSTEP_SERVER_HTTP_PARTS_H
#define LOCKSTEP_SERVER_HTTP_PARTS_H

#include "base/json.h"
#include "server/http/http.h"

#define HTTP_TYPE_JSON "application/json"
#define HTTP_TYPE_TEXT "text/plain; charset=utf-8"
#define HTTP_MISDIRECTED 421

struct evconnlistener;
struct event_base;
struct evbuffer;
struct evhttp;
struct evhttp_request;
struct http_streams;
struct http_guard;
struct http_tls;
struct http_token;
struct http_waits;
struct ssl_st;

// Everything that an answer needs.
struct http_core {
    const struct http_config *config;
    struct event_base *base;
    struct http_token *token; // NULL: none.
    struct http_guard *guard;
    struct http_streams *streams;
    struct http_waits *waits;
    struct json json;
    char *metrics; // RENDER_METRICS_BYTES
};

// ---- guard.c: bounds on connections -----------------------------------------------------------
//
// A client has HTTP_REQUEST_MS to send a whole request, counted from the handshake or from the last
// answer, and HTTP_ANSWER_MS to read an answer. One address may have HTTP_PEER_CONNECTIONS
// connections; more are closed. At HTTP_CONNECTIONS connections the server accepts no other until
// one has ended, and it closes the connection that has waited longest for a request.

#define HTTP_CONNECTIONS 512
#define HTTP_PEER_CONNECTIONS 128
#define HTTP_REQUEST_MS 10000
#define HTTP_ANSWER_MS 60000

struct http_guard_counts {
    uint32_t connections; // Open now.
    uint64_t refused; // Closed because their address had HTTP_PEER_CONNECTIONS already.
    uint64_t late; // Closed because they took too long, or to make room.
};

// ---- stream.c: server-sent events -------------------------------------------------------------
//
// Each stream gets `state` once a second, `stall` when a stall begins or ends, `log` for a new
// line, and a comment when nothing else is sent. A state is rendered once for all streams of its
// job. A client with HTTP_UNSENT_BYTES unread bytes gets nothing more until it reads. A client that
// does not read for HTTP_DEAF_MS is closed. Other clients never wait for it.

#define HTTP_STREAMS 64
#define HTTP_UNSENT_BYTES ((size_t)256 * 1024)
#define HTTP_DEAF_MS 30000

// ---- wait.c: questions to workers -------------------------------------------------------------

#define HTTP_WAITS 16
#define HTTP_WAIT_MS 2000
#define HTTP_TIMELINE_RANKS 16

#endif
