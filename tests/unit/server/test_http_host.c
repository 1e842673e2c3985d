// SPDX-License-Identifier: Apache-2.0
//
// The host names that plaintext HTTP requests may use. A foreign name that resolves to our address
// is refused.

#include "server/http/host.h"
#include "server/http/parts.h"
#include "tests/support/http_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void names_and_addresses(void **state)
{
    static const struct {
        const char *host;
        bool allowed;
    } cases[] = {
        {"127.0.0.1", true},
        {"127.0.0.1:8080", true},
        {"10.0.0.7:80", true},
        {"[::1]:8080", true},
        {"[2001:db8::1]", true},
        {"localhost", true},
        {"LocalHost:8080", true},
        {"localhost.:8080", true},
        {"dash.example", true},
        {"Dash.Example:443", true},
        {"other.example:1", true},
        {"evil.example", false},
        {"127.0.0.1.evil.example", false},
        {"localhost.evil.example:8080", false},
        {"dash.example.evil", false},
        {"dash", false},
        {"dash.example,other.example", false},
        {"", false},
        {":8080", false},
        {"127.1", false},
        {"[::1", true},
        {"[evil.example]", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (http_host_allowed(cases[i].host, "dash.example,other.example") != cases[i].allowed)
            fail_msg("Host: %s", cases[i].host);
    }
    assert_true(http_host_allowed(NULL, NULL));
    assert_false(http_host_allowed("dash.example", NULL));
    char own[256] = "";
    assert_int_equal(gethostname(own, sizeof(own) - 1), 0);
    assert_true(http_host_allowed(own, NULL));
}

// The status of the answer to GET with this Host.
static int ask(struct http_fixture *server, const char *path, const char *host)
{
    char bytes[512];
    int status = 0;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(http_port(server->http)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    const int size =
        snprintf(bytes, sizeof(bytes), "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
                 path, host);
    assert_int_equal(send(fd, bytes, (size_t)size, MSG_NOSIGNAL), size);
    const ssize_t got = recv(fd, bytes, sizeof(bytes) - 1, MSG_WAITALL);
    assert_true(got > 0);
    bytes[got] = '\0';
    assert_int_equal(sscanf(bytes, "HTTP/1.1 %d", &status), 1);
    close(fd);
    return status;
}

// Condition: the page, the API and metrics are asked for by a foreign name. Decision: nothing is
// told; probes are answered, and so are other names.
static void a_foreign_name_is_told_nothing(void **state)
{
    static const char *const paths[] = {"/", "/page.js", "/metrics", "/api/v1/jobs", "/events"};
    static struct http_fixture server;
    const struct http_config config = {.hosts = "dash.example"};
    char error[256];
    (void)state;
    assert_int_equal(http_fixture_open(&server, config, error, sizeof(error)), 0);
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        assert_int_equal(ask(&server, paths[i], "evil.example:8080"), 421);
    assert_int_equal(ask(&server, "/healthz", "evil.example"), 200);
    assert_int_equal(ask(&server, "/", "localhost:8080"), 200);
    assert_int_equal(ask(&server, "/api/v1/jobs", "127.0.0.1"), 200);
    assert_int_equal(ask(&server, "/api/v1/jobs", "dash.example"), 200);
    http_fixture_close(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_addresses),
        cmocka_unit_test(a_foreign_name_is_told_nothing),
    };
    return cmocka_run_group_tests_name("http_host", tests, NULL, NULL);
}
