// SPDX-License-Identifier: Apache-2.0
//
// Requests to the HTTP side, over a real connection: the client sends the input, then shuts down
// its sending side. The server shows one job, whose workers answer queries.

#include "tests/fuzz/fuzz.h"
#include "tests/support/http_fixture.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_MS 20000

static struct http_fixture server;

static void server_open(void)
{
    char error[256];
    FUZZ_CHECK(http_fixture_open(&server, (struct http_config){0}, error, sizeof(error)) == 0);
}

static int server_connect(void)
{
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_port = htons(http_port(server.http)),
                                        .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const struct linger at_once = {.l_onoff = 1};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FUZZ_CHECK(fd >= 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    FUZZ_CHECK(connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0);
    return fd;
}

// Checks that the server answers or ends the connection. Only the first bytes are read, because an
// event stream does not end.
static void server_answers(int fd)
{
    char answer[4096];
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    int ready;
    do
        ready = poll(&readable, 1, ANSWER_MS);
    while (ready < 0 && errno == EINTR); // libFuzzer's timer interrupts poll.
    FUZZ_CHECK(ready == 1);
    (void)recv(fd, answer, sizeof(answer), MSG_DONTWAIT);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const char well[] = "GET /healthz HTTP/1.0\r\n\r\n";
    int fd;
    if (!server.http)
        server_open();
    fd = server_connect();
    if (send(fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size) {
        (void)shutdown(fd, SHUT_WR);
        server_answers(fd);
    }
    close(fd);
    fd = server_connect();
    FUZZ_CHECK(send(fd, well, sizeof(well) - 1, MSG_NOSIGNAL) == (ssize_t)sizeof(well) - 1);
    server_answers(fd);
    close(fd);
    return 0;
}
