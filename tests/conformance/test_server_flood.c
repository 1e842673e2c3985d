// SPDX-License-Identifier: Apache-2.0
//
// A plaintext client begins calls and resets them as fast as it can. The test checks what that
// costs a real coordinator. If the test fails because the connection is never ended, gRPC no longer
// reads with the function that server/rpc/sockets.c replaces.

#include "tests/conformance/test_server_http2.h"

#include "base/clock.h"

#define FLOOD_BYTES (16 * 1024 * 1024)
#define MOST_KIB (192 * 1024)

static struct daemon server;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool sanitized = true; // Most memory belongs to the sanitizer, so it is not checked.
#else
static const bool sanitized = false;
#endif

// The daemon's peak memory use in KiB.
static unsigned most_kib(void)
{
    char path[64];
    char line[256];
    unsigned kib = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)server.pid);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file))
        (void)sscanf(line, "VmHWM: %u kB", &kib);
    fclose(file);
    return kib;
}

static size_t frame_put(uint8_t *out, enum frame_type type, uint32_t stream, const uint8_t *bytes,
                        size_t size)
{
    const uint8_t header[FRAME_BYTES] = {
        0,
        0,
        (uint8_t)size,
        (uint8_t)type,
        type == FRAME_HEADERS ? END_HEADERS : 0,
        (uint8_t)(stream >> 24),
        (uint8_t)(stream >> 16),
        (uint8_t)(stream >> 8),
        (uint8_t)stream,
    };
    memcpy(out, header, sizeof(header));
    memcpy(out + FRAME_BYTES, bytes, size);
    return FRAME_BYTES + size;
}

// Writes a call whose headers the server already knows, and a reset. Returns the size: 28 bytes.
static size_t pair_put(uint8_t *out, uint32_t stream)
{
    static const uint8_t known[] = {0x83, 0x86, 0xbe, 0xbf, 0xc0, 0xc1}; // HPACK: by number.
    static const uint8_t code[4] = {0};
    const size_t size = frame_put(out, FRAME_HEADERS, stream, known, sizeof(known));
    return size + frame_put(out + size, FRAME_RESET, stream, code, sizeof(code));
}

// Begins a call whose headers the server has to store in its HPACK table.
static void begin_to_be_known(int fd)
{
    static const char *const headers[][2] = {{":authority", "a"},
                                             {"te", "trailers"},
                                             {"content-type", "application/grpc"},
                                             {":path", "/lockstep.v1.Coordinator/Session"}};
    uint8_t block[256] = {0x83, 0x86}; // POST, http
    size_t size = 2;
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        const size_t begin = size;
        size += header_put(block + size, headers[i][0], headers[i][1]);
        block[begin] = 0x40; // With incremental indexing.
    }
    frame_write(fd, FRAME_HEADERS, END_HEADERS, 1, block, size);
}

// Sends all bytes. False: the server has ended the connection.
static bool send_all(int fd, const uint8_t *bytes, size_t size)
{
    while (size > 0) {
        const ssize_t sent = send(fd, bytes, size, MSG_NOSIGNAL);
        if (sent < 0)
            return false;
        bytes += sent;
        size -= (size_t)sent;
    }
    return true;
}

static bool flood(int fd)
{
    static uint8_t bytes[64 * 1024];
    uint32_t stream = 3;
    for (size_t said = 0; said < FLOOD_BYTES;) {
        size_t size = 0;
        while (size + 64 <= sizeof(bytes)) {
            size += pair_put(bytes + size, stream);
            stream += 2;
        }
        if (!send_all(fd, bytes, size))
            return false;
        said += size;
    }
    return true;
}

// Condition: a client begins 600,000 calls on one connection, and resets each at once. Decision:
// the server ends the connection long before it has processed all calls, and serves the next
// client.
static void calls_that_are_reset_are_not_heard(void **state)
{
    static const char *const quiet[] = {"--log-level=info",
                                        NULL}; // The test does not read the daemon's log.
    char answer[9];
    (void)state;
    daemon_start(&server, quiet, 0);
    const int fd = client_open(server.grpc);
    begin_to_be_known(fd);
    assert_false(flood(fd));
    const int next = client_open(server.grpc);
    const struct timeval wait = {.tv_sec = (time_t)(2 * wait_bound_ms() / 1000)};
    setsockopt(next, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
    assert_int_equal(recv(next, answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
    if (!sanitized)
        assert_in_range(most_kib(), 1, MOST_KIB);
    close(next);
    close(fd);
    daemon_stop(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_that_are_reset_are_not_heard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
