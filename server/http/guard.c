// SPDX-License-Identifier: Apache-2.0
//
// Bounds on HTTP connections, which evhttp does not have: on their number, on the number from one
// address, on the time to send a request, and on the time to read its answer. See parts.h.
//
// evhttp asks this file for a bufferevent for each connection that it accepts, but does not report
// when it frees the bufferevent. So this file holds a reference of its own to each. If a
// bufferevent has no callbacks any more, evhttp has freed it. All are checked a few times a second
// while there are any. HTTP thread.

#include "server/http/guard.h"

#include "base/clock.h"
#include "server/http/parts.h"
#include "server/http/tls.h"

#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/listener.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define LOOK_MS 100
#define NEVER UINT64_MAX

struct guarded {
    struct bufferevent *buffered; // Our reference; evhttp has one, too. NULL: this entry is free.
    // When the current request or answer must be complete, in clock_now_ms; NEVER: no deadline.
    uint64_t deadline_ms;
    uint64_t began_ms;
    bool waits; // True while it waits for a request, or for the rest of one.
    bool cut; // True once the connection was cut.
    bool known; // True if `peer` holds the client's address.
    struct in6_addr peer;
};

struct http_guard {
    struct http_tls *tls; // Borrowed; NULL: plaintext.
    uint32_t request_ms;
    struct event *look;
    struct evconnlistener *listener; // Borrowed.
    bool full; // True while the listener pauses.
    uint32_t count;
    struct http_guard_counts counts;
    struct guarded connections[HTTP_CONNECTIONS];
};

// ---- one connection ---------------------------------------------------------------------------

// Returns the peer's address. An IPv4 address is mapped to IPv6.
static bool peer_of(int fd, struct in6_addr *peer)
{
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof(address);
    *peer = (struct in6_addr){0};
    if (getpeername(fd, (struct sockaddr *)&address, &size) < 0)
        return false;
    if (address.ss_family == AF_INET6) {
        *peer = ((const struct sockaddr_in6 *)&address)->sin6_addr;
    } else {
        peer->s6_addr[10] = peer->s6_addr[11] = 0xff;
        memcpy(&peer->s6_addr[12], &((const struct sockaddr_in *)&address)->sin_addr, 4);
    }
    return true;
}

// Cuts a connection: evhttp sees its end and frees it.
static void cut(struct guarded *connection)
{
    connection->cut = true;
    shutdown(bufferevent_getfd(connection->buffered), SHUT_RDWR);
}

static bool freed_by_evhttp(const struct guarded *connection)
{
    bufferevent_data_cb read = NULL;
    bufferevent_event_cb event = NULL;
    bufferevent_getcb(connection->buffered, &read, NULL, &event, NULL);
    return !read && !event;
}

static void let_go(struct http_guard *guard, struct guarded *connection)
{
    bufferevent_decref(connection->buffered);
    connection->buffered = NULL;
    guard->count--;
}

// ---- checking all connections -----------------------------------------------------------------

static uint32_t count_of_peer(const struct http_guard *guard, const struct guarded *connection)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < HTTP_CONNECTIONS; i++) {
        const struct guarded *other = &guard->connections[i];
        if (other->buffered && other->known && !other->cut &&
            memcmp(&other->peer, &connection->peer, sizeof(other->peer)) == 0)
            count++;
    }
    return count;
}

// Fills in the facts that were not known at the accept.
static void meet(struct http_guard *guard, struct guarded *connection)
{
    connection->known = peer_of(bufferevent_getfd(connection->buffered), &connection->peer);
    if (!connection->known || count_of_peer(guard, connection) <= HTTP_PEER_CONNECTIONS)
        return;
    guard->counts.refused++;
    cut(connection);
}

static void look_at(struct http_guard *guard, struct guarded *connection, uint64_t now_ms)
{
    if (freed_by_evhttp(connection)) {
        let_go(guard, connection);
        return;
    }
    if (!connection->known && !connection->cut)
        meet(guard, connection);
    if (!connection->cut && now_ms >= connection->deadline_ms) {
        guard->counts.late++;
        cut(connection);
    }
}

// If all entries are used, closes the connection that has waited longest for a request.
static void make_room(struct http_guard *guard)
{
    struct guarded *oldest = NULL;
    for (uint32_t i = 0; i < HTTP_CONNECTIONS; i++) {
        struct guarded *connection = &guard->connections[i];
        if (!connection->buffered || connection->cut || !connection->waits)
            continue;
        if (!oldest || connection->began_ms < oldest->began_ms)
            oldest = connection;
    }
    if (!oldest)
        return;
    guard->counts.late++;
    cut(oldest);
}

static void on_look(evutil_socket_t fd, short what, void *context)
{
    static const struct timeval soon = {.tv_usec = LOOK_MS * 1000};
    struct http_guard *guard = context;
    const uint64_t now_ms = clock_now_ms();
    (void)fd;
    (void)what;
    for (uint32_t i = 0; i < HTTP_CONNECTIONS; i++) {
        if (guard->connections[i].buffered)
            look_at(guard, &guard->connections[i], now_ms);
    }
    if (guard->count == HTTP_CONNECTIONS)
        make_room(guard);
    if (guard->full && guard->count < HTTP_CONNECTIONS) {
        guard->full = false;
        evconnlistener_enable(guard->listener);
    }
    if (guard->count > 0)
        event_add(guard->look, &soon);
}

// ---- calls from evhttp ------------------------------------------------------------------------

static struct bufferevent *make_buffered(struct http_guard *guard, struct event_base *base)
{
    if (!guard->tls)
        return bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    SSL *ssl = http_tls_accept(guard->tls);
    struct bufferevent *made =
        ssl ? bufferevent_openssl_socket_new(base, -1, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                             BEV_OPT_CLOSE_ON_FREE)
            : NULL;
    if (made)
        bufferevent_openssl_set_allow_dirty_shutdown(made, 1);
    return made;
}

// Called when evhttp has accepted a connection; evhttp sets the socket afterwards. If this function
// returns NULL, evhttp makes a plaintext bufferevent itself. http_guard_asked does not know such a
// connection, so its requests are not answered.
static struct bufferevent *on_accepted(struct event_base *base, void *context)
{
    static const struct timeval at_once = {0};
    struct http_guard *guard = context;
    struct guarded *free_one = guard->connections;
    struct guarded *end = guard->connections + HTTP_CONNECTIONS;
    while (free_one < end && free_one->buffered)
        free_one++; // There is a free entry: when the last one is taken, the listener pauses.
    struct bufferevent *made = free_one < end ? make_buffered(guard, base) : NULL;
    if (!made)
        return NULL;
    const uint64_t now_ms = clock_now_ms();
    bufferevent_incref(made);
    *free_one = (struct guarded){.buffered = made,
                                 .began_ms = now_ms,
                                 .deadline_ms = now_ms + guard->request_ms,
                                 .waits = true};
    guard->count++;
    guard->full = guard->count == HTTP_CONNECTIONS;
    if (guard->full)
        evconnlistener_disable(guard->listener);
    event_add(guard->look, &at_once);
    return made;
}

static struct guarded *find(struct http_guard *guard, struct evhttp_request *request)
{
    struct evhttp_connection *connection = evhttp_request_get_connection(request);
    const struct bufferevent *buffered =
        connection ? evhttp_connection_get_bufferevent(connection) : NULL;
    for (uint32_t i = 0; buffered && i < HTTP_CONNECTIONS; i++) {
        if (guard->connections[i].buffered == buffered)
            return &guard->connections[i];
    }
    return NULL;
}

// The whole answer was sent, so the next request may come.
static void on_answered(struct evhttp_request *request, void *context)
{
    struct http_guard *guard = context;
    struct guarded *connection = find(guard, request);
    if (!connection)
        return;
    connection->waits = true;
    connection->began_ms = clock_now_ms();
    connection->deadline_ms = connection->began_ms + guard->request_ms;
}

bool http_guard_asked(struct http_guard *guard, struct evhttp_request *request)
{
    struct guarded *connection = find(guard, request);
    if (!connection)
        return false;
    connection->waits = false;
    connection->deadline_ms = clock_now_ms() + HTTP_ANSWER_MS;
    evhttp_request_set_on_complete_cb(request, on_answered, guard);
    return true;
}

void http_guard_streams(struct http_guard *guard, struct evhttp_request *request)
{
    struct guarded *connection = find(guard, request);
    if (connection)
        connection->deadline_ms = NEVER;
}

struct http_guard_counts http_guard_counts(const struct http_guard *guard)
{
    struct http_guard_counts counts = guard->counts;
    counts.connections = guard->count;
    return counts;
}

// ---- open and close ---------------------------------------------------------------------------

struct http_guard *http_guard_open(struct event_base *base, struct evhttp *evhttp,
                                   struct http_tls *tls, uint32_t request_ms)
{
    struct http_guard *guard = calloc(1, sizeof(*guard));
    if (!guard)
        return NULL;
    guard->tls = tls;
    guard->request_ms = request_ms > 0 ? request_ms : HTTP_REQUEST_MS;
    guard->look = event_new(base, -1, 0, on_look, guard);
    if (!guard->look) {
        free(guard);
        return NULL;
    }
    evhttp_set_bevcb(evhttp, on_accepted, guard);
    return guard;
}

void http_guard_listens(struct http_guard *guard, struct evconnlistener *listener)
{
    guard->listener = listener;
}

void http_guard_close(struct http_guard *guard)
{
    if (!guard)
        return;
    for (uint32_t i = 0; i < HTTP_CONNECTIONS; i++) {
        if (guard->connections[i].buffered)
            let_go(guard, &guard->connections[i]);
    }
    event_free(guard->look);
    free(guard);
}
