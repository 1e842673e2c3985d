// SPDX-License-Identifier: Apache-2.0
//
// Addresses that people paste: the tool reads the server's address and the token from them. And
// answers that break off, and a name with two addresses, from a server of this program.

#include "cli/ask/http.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static void an_address_may_hold_a_token(void **state)
{
    static const struct {
        const char *value;
        const char *address;
        const char *token;
        bool tls;
    } cases[] = {
        {"127.0.0.1:8080", "127.0.0.1:8080", "", false},
        {"http://127.0.0.1:8080/", "127.0.0.1:8080", "", false},
        {"http://127.0.0.1:8080/?token=abc", "127.0.0.1:8080", "abc", false},
        {"http://127.0.0.1:8080/?token=abc&x=1#mnist", "127.0.0.1:8080", "abc", false},
        {"https://[::1]:8080?token=abc", "[::1]:8080", "abc", true},
        {"127.0.0.1:8080?token=abc", "127.0.0.1:8080", "abc", false},
        {"http://127.0.0.1:8080/#mnist", "127.0.0.1:8080", "", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct http_peer peer = {0};
        if (!http_read_address(cases[i].value, &peer))
            fail_msg("%s was refused", cases[i].value);
        assert_string_equal(peer.address, cases[i].address);
        assert_string_equal(peer.token, cases[i].token);
        assert_int_equal(peer.tls, cases[i].tls);
    }
}

// The token becomes part of an HTTP header, so it must not be able to begin another header.
static void an_impossible_token_is_refused(void **state)
{
    char huge[HTTP_TOKEN_BYTES + 64] = "127.0.0.1:1/?token=";
    struct http_peer peer = {0};
    (void)state;
    assert_false(http_read_address("127.0.0.1:1/?token=", &peer));
    assert_false(http_read_address("127.0.0.1:1/?token=a\r\nX: y", &peer));
    assert_false(http_read_address("127.0.0.1:1/?token=a b", &peer));
    memset(huge + strlen(huge), 'x', sizeof(huge) - strlen(huge) - 1);
    assert_false(http_read_address(huge, &peer));
}

// --token-file wins, whichever comes first on the command line.
static void a_token_that_is_there_stays(void **state)
{
    struct http_peer peer = {.token = "from-a-file"};
    (void)state;
    assert_true(http_read_address("127.0.0.1:1/?token=abc", &peer));
    assert_string_equal(peer.token, "from-a-file");
}

static void an_argument_hides_its_token(void **state)
{
    char value[] = "http://127.0.0.1:8080/?token=abc&x=1";
    char other[] = "127.0.0.1:8080";
    (void)state;
    http_hide_token(value);
    assert_string_equal(value, "http://127.0.0.1:8080/?token=***&x=1");
    http_hide_token(other);
    assert_string_equal(other, "127.0.0.1:8080");
}

// ---- answers ------------------------------------------------------------------------------------

// A socket that listens on the loopback interface.
static int listen_at(struct sockaddr_in *address)
{
    socklen_t size = sizeof(*address);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *address = (struct sockaddr_in){.sin_family = AF_INET};
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)address, sizeof(*address)), 0);
    assert_int_equal(listen(fd, 0), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)address, &size), 0);
    return fd;
}

struct server {
    int fd;
    const char *answer;
};

static void *answer_once(void *context)
{
    const struct server *server = context;
    char request[2048];
    const int fd = accept(server->fd, NULL, NULL);
    (void)!recv(fd, request, sizeof(request), 0);
    (void)!send(fd, server->answer, strlen(server->answer), MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    (void)!recv(fd, request, sizeof(request), 0);
    close(fd);
    return NULL;
}

// Asks a server that gives this answer. host: "127.0.0.1", or a name.
static int ask_for(const char *host, const char *answer, char **body, char error[256])
{
    struct sockaddr_in address;
    struct server server = {.fd = listen_at(&address), .answer = answer};
    struct http_peer peer = {0};
    pthread_t thread;
    snprintf(peer.address, sizeof(peer.address), "%s:%u", host, ntohs(address.sin_port));
    assert_int_equal(pthread_create(&thread, NULL, answer_once, &server), 0);
    const int code = http_get(&peer, "/", 4000, body, error, 256);
    shutdown(server.fd, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(server.fd);
    return code;
}

static void an_answer_that_breaks_off_is_none(void **state)
{
    static const struct {
        const char *answer;
        const char *body; // NULL: the answer broke off.
    } cases[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n", "ok\n"},
        {"HTTP/1.1 200 OK\r\nX: y\r\ncontent-length:3\r\n\r\nok\nand more", "ok\n"},
        {"HTTP/1.1 200 OK\r\n\r\nok\n", "ok\n"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n1\r\n\n\r\n0\r\n\r\n",
         "ok\n"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n{\"stalls\":[", NULL},
        {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", NULL},
        {"HTTP/1.1 200 OK\r\nContent-Len", NULL},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", NULL},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\no", NULL},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n\r\n", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *body = NULL;
        char error[256] = "";
        const int code = ask_for("127.0.0.1", cases[i].answer, &body, error);
        if (code != (cases[i].body ? 200 : -1))
            fail_msg("'%s': %d, %s", cases[i].answer, code, error);
        if (cases[i].body)
            assert_string_equal(body, cases[i].body);
        else
            assert_non_null(strstr(error, "the answer broke off"));
        free(body);
    }
}

// ---- a name with two addresses ------------------------------------------------------------------

static struct sockaddr_in silent; // The first address of the name "dual".

// These take the place of libc's. The second address of "dual" is the loopback interface.
int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **found)
{
    static struct sockaddr_in answers;
    static struct addrinfo list[2];
    (void)hints;
    answers = (struct sockaddr_in){.sin_family = AF_INET};
    answers.sin_port = htons((uint16_t)strtoul(service, NULL, 10));
    answers.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (size_t i = 0; i < 2; i++)
        list[i] = (struct addrinfo){.ai_family = AF_INET, .ai_addrlen = sizeof(answers)};
    list[0].ai_addr = (struct sockaddr *)&silent;
    list[0].ai_next = &list[1];
    list[1].ai_addr = (struct sockaddr *)&answers;
    *found = strcmp(host, "dual") == 0 ? &list[0] : &list[1];
    return 0;
}

void freeaddrinfo(struct addrinfo *found)
{
    (void)found;
}

// The first address does not answer: its queue of connections is full.
static void a_silent_address_leaves_time_for_the_next(void **state)
{
    char *body = NULL;
    char error[256] = "";
    int waiting[4];
    const int fd = listen_at(&silent);
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        waiting[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)!connect(waiting[i], (struct sockaddr *)&silent, sizeof(silent));
    }
    const int code =
        ask_for("dual", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n", &body, error);
    if (code != 200)
        fail_msg("%s", error);
    assert_string_equal(body, "ok\n");
    free(body);
    for (size_t i = 0; i < 4; i++)
        close(waiting[i]);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_may_hold_a_token),
        cmocka_unit_test(an_impossible_token_is_refused),
        cmocka_unit_test(a_token_that_is_there_stays),
        cmocka_unit_test(an_argument_hides_its_token),
        cmocka_unit_test(an_answer_that_breaks_off_is_none),
        cmocka_unit_test(a_silent_address_leaves_time_for_the_next),
    };
    return cmocka_run_group_tests_name("cli_http", tests, NULL, NULL);
}
