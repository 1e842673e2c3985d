// SPDX-License-Identifier: Apache-2.0
//
// Links by themselves, TCP, encrypted, memory and loopback alike: bytes arrive in order, ends come
// after them, nothing blocks.

#include "worker/link/link.h"
#include "worker/link/loopback.h"
#include "worker/link/tcp.h"
#include "worker/link/tls.h"
#include "worker/link/unix.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BOUND_MS 20000

enum family {
    FAMILY_LOOPBACK,
    FAMILY_TCP,
    FAMILY_MEMORY,
};

static const uint8_t key[LOCKSTEP_PROOF_BYTES] = {7};

struct kind {
    const char *name;
    enum family family;
    const char *host;
    uint32_t torn_bytes;
    bool encrypts;
};

static const struct kind kinds[] = {
    {.name = "loopback", .family = FAMILY_LOOPBACK},
    {.name = "torn", .family = FAMILY_LOOPBACK, .torn_bytes = 3},
    {.name = "tcp", .family = FAMILY_TCP, .host = "127.0.0.1"},
    {.name = "tcp6", .family = FAMILY_TCP, .host = "::1"},
    {.name = "memory", .family = FAMILY_MEMORY},
    {.name = "tls", .family = FAMILY_TCP, .host = "127.0.0.1", .encrypts = true},
    {.name = "tls, torn", .family = FAMILY_LOOPBACK, .torn_bytes = 3, .encrypts = true},
};

static struct listener *open_listener(const struct kind *kind)
{
    char error[256] = "";
    struct listener *listener = NULL;
    if (kind->family == FAMILY_TCP)
        listener = tcp_listener_open(kind->host, 0, 0, error, sizeof(error));
    else if (kind->family == FAMILY_MEMORY)
        listener = unix_listener_open(error, sizeof(error));
    else
        listener = loopback_listener_open(kind->torn_bytes, error, sizeof(error));
    if (!listener)
        print_message("%s\n", error);
    return listener;
}

static void wait_for(int fd, short events)
{
    struct pollfd poll_fd = {.fd = fd, .events = events};
    assert_int_equal(poll(&poll_fd, 1, BOUND_MS), 1);
}

// Sends all bytes, in as many calls as needed.
static void send_all(struct link *link, const uint8_t *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        const struct iovec vector = {.iov_base = (void *)(uintptr_t)(bytes + done),
                                     .iov_len = size - done};
        const ssize_t sent = link->ops->send(link, &vector, 1);
        assert_true(sent > 0);
        done += (size_t)sent;
    }
}

static void receive_all(struct link *link, uint8_t *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        const struct iovec vector = {.iov_base = bytes + done, .iov_len = size - done};
        const ssize_t received = link->ops->receive(link, &vector, 1);
        assert_true(received > 0 || (received < 0 && errno == EAGAIN));
        done += received > 0 ? (size_t)received : 0;
    }
}

// Exchanges bytes that stand for proofs of membership, and waits until both links are ready.
static void prove_pair(struct link *ends[2])
{
    uint8_t bytes[LINK_PLAIN_BYTES] = {1};
    for (int i = 0; i < 2; i++) {
        const size_t size = i == 0 ? LINK_HELLO_BYTES : LINK_ANSWER_BYTES;
        send_all(ends[i], bytes, size);
        receive_all(ends[1 - i], bytes, size);
    }
    for (int i = 1; i >= 0; i--)
        ends[i]->ops->proven(ends[i], key);
    for (int i = 1; !ends[0]->ops->ready(ends[0]) || !ends[1]->ops->ready(ends[1]); i = 1 - i) {
        assert_int_equal(ends[i]->ops->receive(ends[i], &(struct iovec){bytes, 1}, 1), -1);
        assert_int_equal(errno, EAGAIN);
    }
}

// Connects two links: the two ends of one connection.
static void connect_pair(const struct kind *kind, struct listener *listener, struct link *ends[2])
{
    char error[256] = "";
    ends[0] = link_connect(listener->address, kind->torn_bytes, error, sizeof(error));
    assert_non_null(ends[0]);
    wait_for(listener->fd, POLLIN);
    ends[1] = listener->ops->accept(listener);
    assert_non_null(ends[1]);
    assert_null(listener->ops->accept(listener));
    if (kind->family == FAMILY_TCP)
        wait_for(ends[0]->fd, POLLOUT);
    assert_int_equal(ends[0]->ops->connected(ends[0]), 1);
    for (int i = 0; i < 2; i++) {
        assert_true(fcntl(ends[i]->fd, F_GETFL) & O_NONBLOCK);
        assert_true(fcntl(ends[i]->fd, F_GETFD) & FD_CLOEXEC);
    }
    for (int i = 0; kind->encrypts && i < 2; i++)
        ends[i] = link_encrypt(ends[i], i == 1);
    if (kind->family == FAMILY_MEMORY || kind->encrypts)
        prove_pair(ends);
}

static ssize_t send_some(struct link *link, const void *bytes, size_t size)
{
    const struct iovec vectors[2] = {
        {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size / 3},
        {.iov_base = (char *)(uintptr_t)bytes + size / 3, .iov_len = size - size / 3}};
    return link->ops->send(link, vectors, 2);
}

static ssize_t receive_some(struct link *link, void *bytes, size_t size)
{
    const struct iovec vectors[2] = {
        {.iov_base = bytes, .iov_len = size / 2},
        {.iov_base = (char *)bytes + size / 2, .iov_len = size - size / 2}};
    return link->ops->receive(link, vectors, 2);
}

static void fill(uint8_t *bytes, size_t size, uint32_t seed)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)((i * 2654435761u + seed) >> 13);
}

static void bytes_arrive_in_order(void **state)
{
    const struct kind *kind = *state;
    struct listener *listener = open_listener(kind);
    struct link *ends[2];
    if (!listener)
        skip();
    connect_pair(kind, listener, ends);
    const size_t size = kind->torn_bytes ? 20000 : 3000000;
    uint8_t *sent = malloc(size);
    uint8_t *got = malloc(size);
    fill(sent, size, 7);
    size_t out = 0;
    size_t in = 0;
    bool was_full = false;
    const uint64_t since_ms = clock_now_ms();
    while (in < size) {
        assert_true(clock_now_ms() - since_ms < BOUND_MS);
        ssize_t moved = out < size ? send_some(ends[0], sent + out, size - out) : 0;
        if (moved > 0)
            out += (size_t)moved;
        else if (moved < 0) {
            assert_int_equal(errno, EAGAIN);
            was_full = true;
        }
        if (was_full || out == size || kind->torn_bytes) {
            const size_t sure = ends[1]->ops->readable(ends[1]);
            moved = receive_some(ends[1], got + in, size - in);
            assert_true(sure == 0 || (moved > 0 && (size_t)moved >= sure));
            if (moved > 0)
                in += (size_t)moved;
        }
    }
    assert_memory_equal(sent, got, size);
    assert_int_equal(receive_some(ends[1], got, 10), -1);
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(ends[0]->ops->check(ends[0]), 0);
    free(sent);
    free(got);
    ends[0]->ops->close(ends[0], false);
    ends[1]->ops->close(ends[1], false);
    listener->ops->close(listener);
}

// Condition: a link is full, because the process at its other end does not read. Decision: bytes
// are unsent, and they have reached the peer's host: the network is not what holds them up.
static void bytes_that_nobody_takes(void **state)
{
    const struct kind *kind = *state;
    struct listener *listener = open_listener(kind);
    struct link *ends[2];
    static uint8_t bytes[65536];
    if (!listener)
        skip();
    connect_pair(kind, listener, ends);
    const struct link_ops *ops = ends[0]->ops;
    if (kind->family != FAMILY_LOOPBACK) {
        const uint64_t since_ms = clock_now_ms();
        while (send_some(ends[0], bytes, sizeof(bytes)) > 0)
            assert_true(clock_now_ms() - since_ms < BOUND_MS);
        assert_int_equal(errno, EAGAIN);
        while (!ops->reached(ends[0]))
            assert_true(clock_now_ms() - since_ms < BOUND_MS);
        assert_true(ops->unsent(ends[0]) > 0);
    }
    for (int i = 0; i < 2; i++)
        ends[i]->ops->close(ends[i], true);
    listener->ops->close(listener);
}

// Data that a call sends in several vectors, one of them empty, arrives like data in one vector.
// The lengths include those around the one up to which TCP copies them together.
static void vectors_arrive_as_one(void **state)
{
    const struct kind *kind = *state;
    static const size_t lengths[] = {1, 4, 100, 4200, 8191, 8192, 8193, 20000};
    enum {
        HEAD = 96,
        MOST = 20000
    };
    struct listener *listener = open_listener(kind);
    struct link *ends[2];
    uint8_t sent[MOST];
    uint8_t got[MOST];
    if (!listener)
        skip();
    connect_pair(kind, listener, ends);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        const size_t length = lengths[i];
        const size_t head = length < HEAD ? length : HEAD;
        const struct iovec vectors[3] = {{.iov_base = sent, .iov_len = head},
                                         {.iov_base = sent, .iov_len = 0},
                                         {.iov_base = sent + head, .iov_len = length - head}};
        fill(sent, length, (uint32_t)i);
        const ssize_t taken = ends[0]->ops->send(ends[0], vectors, 3);
        assert_true(taken > 0 && (size_t)taken <= length);
        send_all(ends[0], sent + taken, length - (size_t)taken);
        receive_all(ends[1], got, length);
        assert_memory_equal(sent, got, length);
    }
    ends[0]->ops->close(ends[0], false);
    ends[1]->ops->close(ends[1], false);
    listener->ops->close(listener);
}

static ssize_t receive_end(struct link *link, size_t *before)
{
    uint8_t bytes[100];
    const uint64_t since_ms = clock_now_ms();
    *before = 0;
    for (;;) {
        const ssize_t moved = receive_some(link, bytes, sizeof(bytes));
        assert_true(clock_now_ms() - since_ms < BOUND_MS);
        if (moved > 0)
            *before += (size_t)moved;
        else if (moved == 0 || errno != EAGAIN)
            return moved;
    }
}

static void ends_come_after_the_bytes(void **state)
{
    const struct kind *kind = *state;
    struct listener *listener = open_listener(kind);
    struct link *ends[2];
    size_t before = 0;
    if (!listener)
        skip();
    // An orderly end of one direction; the other one goes on.
    connect_pair(kind, listener, ends);
    const ssize_t sent = send_some(ends[0], "goodbye", 7);
    ends[0]->ops->shut(ends[0]);
    assert_int_equal(receive_end(ends[1], &before), 0);
    assert_int_equal(before, sent);
    assert_true(send_some(ends[1], "so long", 7) > 0);
    ends[1]->ops->close(ends[1], false);
    assert_int_equal(receive_end(ends[0], &before), 0);
    assert_true(before > 0);
    ends[0]->ops->close(ends[0], false);
    // A reset.
    connect_pair(kind, listener, ends);
    ends[0]->ops->close(ends[0], true);
    assert_int_equal(receive_end(ends[1], &before), -1);
    assert_int_equal(errno, ECONNRESET);
    assert_int_equal(send_some(ends[1], "hello?", 6), -1);
    assert_int_equal(errno, EPIPE);
    ends[1]->ops->close(ends[1], false);
    listener->ops->close(listener);
}

static bool has_event(int fd)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    return poll(&poll_fd, 1, 0) > 0;
}

static void send_and_see(struct link *ends[2], size_t bytes, size_t together)
{
    static const uint8_t zeros[10000];
    const uint64_t since_ms = clock_now_ms();
    assert_int_equal(send_some(ends[0], zeros, bytes), bytes);
    while (ends[1]->ops->readable(ends[1]) < together)
        assert_true(clock_now_ms() - since_ms < BOUND_MS);
}

// An event comes for so many bytes as were asked for, for fewer when fewer are asked for, and for
// an end.
static void few_bytes_are_no_event(void **state)
{
    const struct kind *kind = *state;
    struct listener *listener = open_listener(kind);
    struct link *ends[2];
    size_t before = 0;
    if (!listener)
        skip();
    connect_pair(kind, listener, ends);
    // How many bytes what has come will be, a link that encrypts knows only when it has decrypted.
    if (ends[1]->ops->await && !kind->encrypts) {
        ends[1]->ops->await(ends[1], 10000);
        send_and_see(ends, 6000, 6000);
        assert_false(has_event(ends[1]->fd));
        send_and_see(ends, 4000, 10000);
        wait_for(ends[1]->fd, POLLIN);
        ends[1]->ops->await(ends[1], 20000);
        assert_false(has_event(ends[1]->fd));
        ends[1]->ops->await(ends[1], 1);
        wait_for(ends[1]->fd, POLLIN);
        ends[1]->ops->await(ends[1], 20000);
        ends[0]->ops->shut(ends[0]);
        wait_for(ends[1]->fd, POLLIN);
        assert_int_equal(receive_end(ends[1], &before), 0);
        assert_int_equal(before, 10000);
    }
    ends[0]->ops->close(ends[0], false);
    ends[1]->ops->close(ends[1], false);
    listener->ops->close(listener);
}

static void nobody_listens(void **state)
{
    const struct kind *kind = *state;
    char error[256] = "";
    char address[LOCKSTEP_ADDRESS_BYTES];
    struct listener *listener = open_listener(kind);
    if (!listener)
        skip();
    memcpy(address, listener->address, sizeof(address));
    listener->ops->close(listener);
    struct link *link = link_connect(address, 0, error, sizeof(error));
    if (!link) {
        assert_non_null(strstr(error, "refused"));
        return;
    }
    const uint64_t since_ms = clock_now_ms();
    int connected = 0;
    while ((connected = link->ops->connected(link)) == 0)
        assert_true(clock_now_ms() - since_ms < BOUND_MS);
    assert_int_equal(connected, -1);
    assert_int_equal(errno, ECONNREFUSED);
    link->ops->close(link, false);
}

static void unusable_addresses(void **state)
{
    (void)state;
    static const char *const addresses[] = {"",
                                            "tcp",
                                            "tcp:",
                                            "tcp:127.0.0.1",
                                            "tcp:127.0.0.1:",
                                            "tcp:x:1",
                                            "tcp:[::1:5",
                                            "udp:1.2.3.4:5",
                                            "loopback:",
                                            "loopback:x",
                                            "loopback:999999",
                                            "tcp:1.2.3.4:70000",
                                            "unix:",
                                            "unix:0123456789abcdef",
                                            "unix:0123456789abcdef0123456789abcdeg",
                                            "unix:0123456789abcdef0123456789abcdef0",
                                            ";tcp:127.0.0.1:1"};
    for (size_t i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
        char error[256] = "";
        assert_null(link_connect(addresses[i], 0, error, sizeof(error)));
        assert_true(strlen(error) > 0);
    }
    char error[256] = "";
    assert_null(tcp_listener_open("no.such.name", 0, 0, error, sizeof(error)));
    assert_null(tcp_listener_open("127.0.0.1", 9, 8, error, sizeof(error)));
    assert_null(tcp_listener_open("203.0.113.1", 0, 0, error, sizeof(error))); // Not ours.
    assert_true(strlen(error) > 0);
}

// The other ways to a rank stand behind its address.
static void addresses_of_parts(void **state)
{
    (void)state;
    static const char digits[] = "0123456789abcdef0123456789abcdef";
    static const struct {
        const char *address;
        bool has_token;
    } cases[] = {
        {"tcp:127.0.0.1:1", false},
        {"tcp:127.0.0.1:1;unix:0123456789abcdef0123456789abcdef", true},
        {"tcp:[::1]:1;rdma:7;unix:0123456789abcdef0123456789abcdef;x", true},
        {"unix:0123456789abcdef0123456789abcdef", true},
        {"tcp:127.0.0.1:1;unix:0123456789ABCDEF0123456789ABCDEF", false},
        {"tcp:127.0.0.1:1;unix:0123456789abcdef0123456789abcde", false},
        {"tcp:127.0.0.1:1;unix:0123456789abcdef0123456789abcdef0", false},
        {"tcp:127.0.0.1:1; unix:0123456789abcdef0123456789abcdef", false},
        {"tcp:127.0.0.1:1;unix:", false},
        {"", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char token[LINK_TOKEN_BYTES] = "";
        assert_true(link_token(cases[i].address, token) == cases[i].has_token);
        assert_string_equal(token, cases[i].has_token ? digits : "");
    }
    // Further parts behind the address do not disturb a reader that does not know them.
    char error[256] = "";
    char address[LOCKSTEP_ADDRESS_BYTES];
    struct listener *listener = tcp_listener_open("127.0.0.1", 0, 0, error, sizeof(error));
    assert_non_null(listener);
    snprintf(address, sizeof(address), "%.60s;new:way;unix:x", listener->address);
    struct link *link = link_connect(address, 0, error, sizeof(error));
    assert_non_null(link);
    wait_for(listener->fd, POLLIN);
    link->ops->close(link, false);
    listener->ops->close(listener);
    // Nobody there is known at once.
    assert_null(link_connect_unix(digits, error, sizeof(error)));
    assert_non_null(strstr(error, "refused"));
}

// A range: the first port that is free is taken, and a full range is an error.
static void port_ranges(void **state)
{
    (void)state;
    char error[256] = "";
    struct listener *any = tcp_listener_open("127.0.0.1", 0, 0, error, sizeof(error));
    assert_non_null(any);
    const unsigned long port = strtoul(strrchr(any->address, ':') + 1, NULL, 10);
    assert_null(
        tcp_listener_open("127.0.0.1", (uint16_t)port, (uint16_t)port, error, sizeof(error)));
    // The error says which ports, and which process has them: this one.
    char wanted[64];
    (void)snprintf(wanted, sizeof(wanted), "%lu to %lu (LOCKSTEP_DATA_PORTS) is in use", port,
                   port);
    assert_non_null(strstr(error, wanted));
    (void)snprintf(wanted, sizeof(wanted), "%lu by process %ld (test_link)", port, (long)getpid());
    assert_non_null(strstr(error, wanted));
    any->ops->close(any);
    struct listener *same =
        tcp_listener_open("127.0.0.1", (uint16_t)port, (uint16_t)port, error, sizeof(error));
    assert_non_null(same);
    // Takes the second of two ports when the first one is taken.
    struct listener *next =
        tcp_listener_open("127.0.0.1", (uint16_t)port, UINT16_MAX, error, sizeof(error));
    assert_non_null(next);
    assert_string_not_equal(next->address, same->address);
    next->ops->close(next);
    same->ops->close(same);
}

// Makes reno the algorithm of new sockets, in a network of this process alone. False: not possible.
static bool use_reno(void)
{
    static const char name[] = "/proc/sys/net/ipv4/tcp_congestion_control";
    if (unshare(CLONE_NEWNET) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
        return false;
    const int fd = open(name, O_WRONLY | O_CLOEXEC);
    const bool written = fd >= 0 && write(fd, "reno", 4) == 4;
    if (fd >= 0)
        (void)close(fd);
    return written;
}

enum {
    CHILD_GOOD,
    CHILD_BAD,
    CHILD_HAS_NO_NETWORK,
    CHILD_HAS_NO_CUBIC,
};

static int listen_with_cubic(void)
{
    char chosen[16] = "";
    char error[256] = "";
    socklen_t length = sizeof(chosen);
    if (!use_reno())
        return CHILD_HAS_NO_NETWORK;
    const int bare = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (setsockopt(bare, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) < 0)
        return CHILD_HAS_NO_CUBIC;
    struct listener *listener = tcp_listener_open("0.0.0.0", 0, 0, error, sizeof(error));
    if (!listener || getsockopt(listener->fd, IPPROTO_TCP, TCP_CONGESTION, chosen, &length) < 0)
        return CHILD_BAD;
    return strncmp(chosen, "cubic", sizeof(chosen)) == 0 ? CHILD_GOOD : CHILD_BAD;
}

// An accepted socket never is of the algorithm that the system chooses: with BBR it would be paced
// for ever.
static void listeners_choose_the_algorithm(void **state)
{
    (void)state;
    int status = 0;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(listen_with_cubic());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == CHILD_HAS_NO_NETWORK || WEXITSTATUS(status) == CHILD_HAS_NO_CUBIC) {
        print_message("skipped: no network of its own, or no cubic\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), CHILD_GOOD);
}

#define TEST(function) \
    { \
#function, function \
    }

int main(void)
{
    static const struct {
        const char *name;
        void (*function)(void **state);
    } stamped[] = {TEST(bytes_arrive_in_order),     TEST(vectors_arrive_as_one),
                   TEST(ends_come_after_the_bytes), TEST(few_bytes_are_no_event),
                   TEST(bytes_that_nobody_takes),   TEST(nobody_listens)};
    enum {
        STAMPS = sizeof(stamped) / sizeof(stamped[0]),
        KINDS = sizeof(kinds) / sizeof(kinds[0])
    };
    static struct CMUnitTest tests[STAMPS * KINDS + 4];
    static char names[STAMPS * KINDS][80];
    size_t count = 0;
    for (size_t k = 0; k < KINDS; k++) {
        for (size_t i = 0; i < STAMPS; i++, count++) {
            snprintf(names[count], sizeof(names[count]), "%s/%s", stamped[i].name, kinds[k].name);
            tests[count] = (struct CMUnitTest){.name = names[count],
                                               .test_func = stamped[i].function,
                                               .initial_state = (void *)(uintptr_t)&kinds[k]};
        }
    }
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(unusable_addresses);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(port_ranges);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(addresses_of_parts);
    tests[count++] = (struct CMUnitTest)cmocka_unit_test(listeners_choose_the_algorithm);
    return _cmocka_run_group_tests("link", tests, count, NULL, NULL);
}
