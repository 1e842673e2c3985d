// SPDX-License-Identifier: Apache-2.0
//
// A small HTTP client; http.h has the contract. It asks the server to close the connection, and
// reads until then. An answer that is shorter than its own length or chunks say broke off.

#include "cli/ask/http.h"

#include "base/clock.h"
#include "base/parse.h"
#include "base/text.h"
#include "cli/ask/http_tls.h"

#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_BYTES 16384

struct connection {
    int fd; // -1: not connected.
    struct http_tls *tls; // NULL: plaintext.
    uint64_t deadline;
};

struct answer {
    char *bytes; // owned, NUL-terminated
    size_t size;
    size_t capacity;
};

// Waits for events. Returns 0, or -1 with errno (ETIMEDOUT).
static int wait_for(int fd, short events, uint64_t deadline)
{
    uint64_t now = clock_now_ms();
    struct pollfd ready = {.fd = fd, .events = events};
    int count = now < deadline ? poll(&ready, 1, (int)(deadline - now)) : 0;
    if (count == 0)
        errno = ETIMEDOUT;
    return count > 0 ? 0 : -1;
}

static int connect_one(const struct addrinfo *candidate, uint64_t deadline)
{
    int failure = 0;
    socklen_t size = sizeof(failure);
    int fd = socket(candidate->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, candidate->ai_addr, candidate->ai_addrlen) == 0)
        return fd;
    if (errno == EINPROGRESS && wait_for(fd, POLLOUT, deadline) == 0 &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &size) == 0) {
        if (failure == 0)
            return fd;
        errno = failure;
    }
    failure = errno;
    close(fd);
    errno = failure;
    return -1;
}

// Tries the addresses of a name one after the other. Each has an equal share of the time that is
// left, so that an address without an answer leaves time for those after it.
static int connect_any(const struct addrinfo *found, uint64_t deadline)
{
    uint64_t left = 0;
    int fd = -1;
    for (const struct addrinfo *next = found; next; next = next->ai_next)
        left++;
    for (const struct addrinfo *next = found; next && fd < 0; next = next->ai_next) {
        const uint64_t now = clock_now_ms();
        fd = connect_one(next, now < deadline ? now + (deadline - now) / left-- : deadline);
    }
    return fd;
}

static int connect_to(const char *host, uint16_t port, uint64_t deadline, const char **reason)
{
    char service[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    snprintf(service, sizeof(service), "%u", port);
    int failure = getaddrinfo(host, service, &hints, &found);
    if (failure != 0) {
        *reason = gai_strerror(failure);
        return -1;
    }
    const int fd = connect_any(found, deadline);
    if (fd < 0)
        *reason = strerror(errno);
    freeaddrinfo(found);
    return fd;
}

static int send_all(struct connection *connection, const char *bytes, size_t size)
{
    if (connection->tls)
        return http_tls_send(connection->tls, bytes, size, connection->deadline);
    while (size > 0) {
        ssize_t sent = send(connection->fd, bytes, size, MSG_NOSIGNAL);
        if (sent < 0 &&
            (errno != EAGAIN || wait_for(connection->fd, POLLOUT, connection->deadline) < 0))
            return -1;
        if (sent > 0) {
            bytes += sent;
            size -= (size_t)sent;
        }
    }
    return 0;
}

// Returns how many bytes were received; 0 at the end; -1 with errno.
static ssize_t receive_some(struct connection *connection, char *bytes, size_t size)
{
    if (connection->tls)
        return http_tls_receive(connection->tls, bytes, size, connection->deadline);
    for (;;) {
        const ssize_t got = recv(connection->fd, bytes, size, 0);
        if (got >= 0)
            return got;
        if (errno != EAGAIN || wait_for(connection->fd, POLLIN, connection->deadline) < 0)
            return -1;
    }
}

static int make_room(struct answer *answer)
{
    if (answer->capacity - answer->size > READ_BYTES)
        return 0;
    size_t capacity = answer->capacity ? 2 * answer->capacity : 2 * READ_BYTES;
    char *bytes = capacity <= HTTP_MAX_BYTES ? realloc(answer->bytes, capacity) : NULL;
    errno = EMSGSIZE;
    if (!bytes)
        return -1;
    answer->bytes = bytes;
    answer->capacity = capacity;
    return 0;
}

static int receive_all(struct connection *connection, struct answer *answer)
{
    for (;;) {
        if (make_room(answer) < 0)
            return -1;
        const ssize_t size = receive_some(connection, answer->bytes + answer->size, READ_BYTES);
        if (size < 0)
            return -1;
        answer->size += (size_t)size;
        answer->bytes[answer->size] = '\0';
        if (size == 0)
            return 0;
    }
}

// Returns the value of a header field, or NULL. name: with its colon.
static const char *field_of(const char *head, const char *head_end, const char *name)
{
    const size_t size = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line < head_end; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, size) == 0)
            return line + size + strspn(line + size, " \t");
    }
    return NULL;
}

// Joins the chunks in place. Returns the size of the body, or -1 if a chunk is malformed or
// missing.
static ssize_t join_chunks(char *body, size_t size)
{
    char *from = body;
    char *to = body;
    const char *end = body + size;
    for (;;) {
        char *line_end = strstr(from, "\r\n");
        unsigned long chunk = strtoul(from, NULL, 16);
        if (!line_end || !isxdigit((unsigned char)from[0]) || chunk > (size_t)(end - line_end - 2))
            return -1;
        if (chunk == 0)
            return to - body;
        memmove(to, line_end + 2, chunk);
        to += chunk;
        from = line_end + 2 + chunk;
        if (from + 2 > end)
            return -1;
        from += 2;
    }
}

// Returns the size of the body, or -1 if bytes of it are missing. size: how many bytes came after
// the head.
static ssize_t size_of_body(const char *head, char *body, size_t size)
{
    const char *head_end = body - 4;
    const char *encoding = field_of(head, head_end, "Transfer-Encoding:");
    const char *length = field_of(head, head_end, "Content-Length:");
    if (encoding && strncasecmp(encoding, "chunked", strlen("chunked")) == 0)
        return join_chunks(body, size);
    if (!length)
        return (ssize_t)size;
    const unsigned long whole = strtoul(length, NULL, 10);
    return whole <= size ? (ssize_t)whole : -1;
}

// Returns the HTTP status, and moves the body to the beginning of the buffer. Returns -1 with a
// reason if the answer is not a whole answer of HTTP.
static int take_apart(struct answer *answer, bool tls, const char **reason)
{
    int code = 0;
    *reason = tls ? "it does not speak HTTP"
                  : "it does not speak HTTP; where it speaks HTTPS, say https://";
    if (sscanf(answer->bytes, "HTTP/1.%*d %d", &code) != 1)
        return -1;
    *reason = "the answer broke off";
    char *head_end = strstr(answer->bytes, "\r\n\r\n");
    if (!head_end)
        return -1;
    char *body = head_end + 4;
    const ssize_t size =
        size_of_body(answer->bytes, body, answer->size - (size_t)(body - answer->bytes));
    if (size < 0)
        return -1;
    memmove(answer->bytes, body, (size_t)size);
    answer->bytes[size] = '\0';
    return code;
}

static int exchange(struct connection *connection, const struct http_peer *peer, const char *path,
                    struct answer *answer)
{
    char request[2048];
    struct text text;
    text_init(&text, request, sizeof(request));
    text_append(&text, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n", path, peer->address);
    if (peer->token[0])
        text_append(&text, "Authorization: Bearer %s\r\n", peer->token);
    text_append(&text, "\r\n");
    errno = EMSGSIZE;
    if (text.truncated || send_all(connection, request, text.size) < 0)
        return -1;
    return receive_all(connection, answer);
}

// Connects, and makes the TLS handshake if TLS is wanted. Returns false with a reason.
static bool reach(struct connection *connection, const struct http_peer *peer, const char **reason)
{
    static char sentence[LOCKSTEP_TEXT_BYTES]; // *reason may point to this. Main thread only.
    char host[LOCKSTEP_ADDRESS_BYTES];
    uint16_t port = 0;
    *reason = "not HOST:PORT";
    if (!parse_address(peer->address, host, sizeof(host), &port))
        return false;
    connection->fd = connect_to(host, port, connection->deadline, reason);
    if (connection->fd < 0 || !peer->tls)
        return connection->fd >= 0;
    *reason = sentence;
    connection->tls = http_tls_open(connection->fd, host, peer->cacert, connection->deadline,
                                    sentence, sizeof(sentence));
    return connection->tls != NULL;
}

// Returns the token in an address, and its size, or NULL. It ends where another parameter or the
// fragment begins.
static const char *token_in(const char *value, size_t *size)
{
    static const char name[] = "?token=";
    const char *token = strstr(value, name);
    if (!token)
        return NULL;
    token += sizeof(name) - 1;
    *size = strcspn(token, "&#");
    return token;
}

// Takes a token. Its characters must be allowed in a header.
static bool take_token(const char *value, struct http_peer *peer)
{
    size_t size = 0;
    const char *token = token_in(value, &size);
    if (!token || peer->token[0])
        return true;
    if (size == 0 || size >= sizeof(peer->token))
        return false;
    for (size_t i = 0; i < size; i++) {
        if (token[i] <= ' ' || token[i] > '~')
            return false;
    }
    memcpy(peer->token, token, size);
    peer->token[size] = '\0';
    return true;
}

void http_hide_token(char *value)
{
    size_t size = 0;
    const char *token = token_in(value, &size);
    if (token)
        memset(value + (token - value), '*', size);
}

bool http_read_address(const char *value, struct http_peer *peer)
{
    static const char plain[] = "http://";
    static const char secure[] = "https://";
    char host[LOCKSTEP_ADDRESS_BYTES];
    uint16_t port = 0;
    struct text text;
    peer->tls = strncmp(value, secure, strlen(secure)) == 0;
    if (peer->tls)
        value += strlen(secure);
    else if (strncmp(value, plain, strlen(plain)) == 0)
        value += strlen(plain);
    text_init(&text, peer->address, sizeof(peer->address));
    text_append_bytes(&text, value, strcspn(value, "/?#"));
    return !text.truncated && take_token(value, peer) &&
           parse_address(peer->address, host, sizeof(host), &port) && port > 0;
}

int http_get(const struct http_peer *peer, const char *path, uint64_t timeout_ms, char **body,
             char *error, size_t error_bytes)
{
    struct connection connection = {.fd = -1, .deadline = clock_now_ms() + timeout_ms};
    struct answer answer = {0};
    const char *reason = NULL;
    int code = -1;
    if (reach(&connection, peer, &reason)) {
        if (exchange(&connection, peer, path, &answer) < 0)
            reason = strerror(errno);
        else
            code = take_apart(&answer, peer->tls, &reason);
    }
    http_tls_close(connection.tls);
    if (connection.fd >= 0)
        close(connection.fd);
    if (code < 0) {
        snprintf(error, error_bytes, "cannot ask %s: %s", peer->address, reason);
        free(answer.bytes);
        return -1;
    }
    *body = answer.bytes;
    return code;
}
