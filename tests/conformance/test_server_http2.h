// SPDX-License-Identifier: Apache-2.0
//
// A client that writes HTTP/2 frames by hand, in plaintext, for tests of the daemon's gRPC server.
// Unlike a client of a library, it can violate the protocol. Runs on the test's thread.

#ifndef LOCKSTEP_TESTS_TEST_SERVER_HTTP2_H
#define LOCKSTEP_TESTS_TEST_SERVER_HTTP2_H

#include "tests/fault/test_server_daemon.h"

#include <stdint.h>

#define FRAME_BYTES 9 // Size of an HTTP/2 frame's header.

enum frame_type {
    FRAME_DATA = 0,
    FRAME_HEADERS = 1,
    FRAME_RESET = 3,
    FRAME_SETTINGS = 4,
    FRAME_WINDOW = 8
};
enum {
    END_HEADERS = 4,
    END_STREAM = 1
};

static inline void frame_write(int fd, enum frame_type type, uint8_t flags, uint32_t stream,
                               const void *bytes, size_t size)
{
    uint8_t frame[512] = {0, (uint8_t)(size >> 8),    (uint8_t)size,          (uint8_t)type,  flags,
                          0, (uint8_t)(stream >> 16), (uint8_t)(stream >> 8), (uint8_t)stream};
    assert_true(FRAME_BYTES + size <= sizeof(frame));
    memcpy(frame + FRAME_BYTES, bytes, size);
    assert_int_equal(send(fd, frame, FRAME_BYTES + size, MSG_NOSIGNAL), FRAME_BYTES + size);
}

// Writes a header as an HPACK literal without indexing. Returns its size in bytes.
static inline size_t header_put(uint8_t *out, const char *name, const char *value)
{
    const size_t name_bytes = strlen(name);
    const size_t value_bytes = strlen(value);
    out[0] = 0;
    out[1] = (uint8_t)name_bytes;
    memcpy(out + 2, name, name_bytes);
    out[2 + name_bytes] = (uint8_t)value_bytes;
    memcpy(out + 3 + name_bytes, value, value_bytes);
    return 3 + name_bytes + value_bytes;
}

static inline void call_begin(int fd, const char *path, uint32_t stream)
{
    static const char *const headers[][2] = {{":method", "POST"},
                                             {":scheme", "http"},
                                             {":authority", "a"},
                                             {"te", "trailers"},
                                             {"content-type", "application/grpc"}};
    uint8_t block[256];
    size_t size = header_put(block, ":path", path);
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++)
        size += header_put(block + size, headers[i][0], headers[i][1]);
    frame_write(fd, FRAME_HEADERS, END_HEADERS, stream, block, size);
}

// Sends the preface and the settings of HTTP/2 on a connection. Returns the connection.
static inline int client_begin(int fd)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    assert_true(fd >= 0);
    assert_int_equal(send(fd, preface, sizeof(preface) - 1, 0), sizeof(preface) - 1);
    frame_write(fd, FRAME_SETTINGS, 0, 0, "", 0); // The server's settings are never acknowledged.
    return fd;
}

static inline int client_open(uint16_t port)
{
    return client_begin(raw_connect(port));
}

#endif
