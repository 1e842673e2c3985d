// SPDX-License-Identifier: Apache-2.0
//
// Checks on gRPC's sockets before gRPC has them: bytes of a connection in one turn, and users that
// may connect to a path. The functions are called as gRPC calls them, by their names in libc.

#include "server/rpc/sockets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define PART_BYTES 8192
#define OTHER_USER 65534

// Says so many bytes at one end and reads them at the other. Returns how many were read before an
// error.
static size_t say(const int ends[2], size_t bytes)
{
    static uint8_t said[PART_BYTES];
    uint8_t heard[PART_BYTES];
    size_t got = 0;
    for (size_t i = 0; i < bytes; i += PART_BYTES) {
        struct iovec place = {heard, sizeof(heard)};
        struct msghdr message = {.msg_iov = &place, .msg_iovlen = 1};
        assert_int_equal(send(ends[0], said, sizeof(said), MSG_NOSIGNAL), sizeof(said));
        errno = 0;
        const ssize_t part = recvmsg(ends[1], &message, 0);
        if (part < 0)
            assert_int_equal(errno, ECONNRESET);
        if (part <= 0)
            break;
        got += (size_t)part;
    }
    return got;
}

// Condition: a connection says something before each turn, then very much before the next one.
// Decision: all is heard, then no more than the bound.
static void much_at_once_is_not_heard(void **state)
{
    const size_t much = RPC_TURN_BYTES / 4 * 3;
    int ends[2];
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    assert_int_equal(say(ends, 2 * RPC_TURN_BYTES), 2 * RPC_TURN_BYTES); // No turn was ever.
    for (int i = 0; i < 3; i++) {
        rpc_sockets_turn();
        assert_int_equal(say(ends, much), much);
    }
    rpc_sockets_turn();
    assert_int_equal(say(ends, 2 * RPC_TURN_BYTES), RPC_TURN_BYTES);
    close(ends[0]);
    close(ends[1]);
}

// ---- listeners --------------------------------------------------------------------------------

// A listener on a name that is no file, so that only who connects matters.
static int listen_abstract(struct sockaddr_un *address, socklen_t *size)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)address, sizeof(address->sun_family)), 0);
    assert_int_equal(listen(fd, 8), 0);
    *size = sizeof(*address);
    assert_int_equal(getsockname(fd, (struct sockaddr *)address, size), 0);
    return fd;
}

static int connect_to(const struct sockaddr_un *address, socklen_t size)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)address, size), 0);
    return fd;
}

// ---- calls ------------------------------------------------------------------------------------

// Says this in pieces of so many bytes, each read before the next. Returns whether all was heard.
static bool say_pieces(const int ends[2], const uint8_t *bytes, size_t size, size_t piece)
{
    for (size_t at = 0; at < size; at += piece) {
        uint8_t heard[2][PART_BYTES / 2];
        struct iovec places[2] = {{heard[0], 3}, {heard[1], sizeof(heard[1])}};
        struct msghdr message = {.msg_iov = places, .msg_iovlen = 2};
        const size_t part = size - at < piece ? size - at : piece;
        assert_int_equal(send(ends[0], bytes + at, part, MSG_NOSIGNAL), part);
        if (recvmsg(ends[1], &message, 0) < 0)
            return false;
    }
    return true;
}

// The preface, then so many calls of which each is reset, with frames of data in between.
static size_t calls_put(uint8_t *bytes, unsigned count)
{
    static const uint8_t call[] = {0, 0, 2, 1, 4, 0, 0, 0, 1, 0x83, 0x86, // HEADERS
                                   0, 0, 3, 0, 0, 0, 0, 0, 1, 1,    1,    1, // DATA
                                   0, 0, 4, 3, 0, 0, 0, 0, 1, 0,    0,    0, 1}; // RST_STREAM
    size_t size = 24;
    memcpy(bytes, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", size);
    for (unsigned i = 0; i < count; i++, size += sizeof(call))
        memcpy(bytes + size, call, sizeof(call));
    return size;
}

// Condition: a connection in plaintext begins as many calls at once as it may, or one more, in
// pieces of any size. Decision: one too many is not heard; in the next turn it may begin as many.
static void calls_at_once_have_a_bound(void **state)
{
    static const size_t pieces[] = {1, 2, 7, 9, 24, 25, 1000, 4000};
    static uint8_t bytes[PART_BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        struct sockaddr_un address;
        socklen_t size;
        const int listener = listen_abstract(&address, &size);
        for (unsigned more = 0; more < 2; more++) {
            const int ends[2] = {connect_to(&address, size),
                                 accept4(listener, NULL, NULL, SOCK_CLOEXEC)};
            const size_t first = calls_put(bytes, RPC_TURN_CALLS + more);
            rpc_sockets_turn();
            assert_int_equal(say_pieces(ends, bytes, first, pieces[i]), more == 0);
            rpc_sockets_turn();
            if (more == 0)
                assert_true(say_pieces(ends, bytes + 24, first - 24, pieces[i]));
            close(ends[0]);
            close(ends[1]);
        }
        close(listener);
    }
}

// ---- connections ------------------------------------------------------------------------------

// Condition: in one turn a connection says as much as it may and ends, and the next one has the
// number of its descriptor. Decision: the next one may say as much.
static void a_new_connection_begins_anew(void **state)
{
    struct sockaddr_un address;
    socklen_t size;
    int first = -1;
    (void)state;
    const int listener = listen_abstract(&address, &size);
    rpc_sockets_turn();
    for (int i = 0; i < 3; i++) {
        int ends[2] = {connect_to(&address, size), -1};
        ends[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        assert_true(ends[1] >= 0 && (first < 0 || ends[1] == first));
        first = ends[1];
        assert_int_equal(say(ends, RPC_TURN_BYTES), RPC_TURN_BYTES);
        close(ends[1]);
        close(ends[0]);
    }
    close(listener);
}

// Condition: a process of another user has connected. Decision: where the path is closed to others
// it is hung up on, and the next client is accepted; else it is accepted.
static void another_user_is_hung_up_on(void **state)
{
    struct sockaddr_un address;
    socklen_t size;
    int status;
    (void)state;
    if (geteuid() != 0)
        skip(); // Nobody else can become another user.
    const int listener = listen_abstract(&address, &size);
    for (int closed = 1; closed >= 0; closed--) {
        rpc_sockets_close_to_others(closed);
        const pid_t other = fork();
        if (other == 0)
            _exit(setuid(OTHER_USER) == 0 && connect_to(&address, size) >= 0 ? 0 : 1);
        assert_int_equal(waitpid(other, &status, 0), other);
        assert_int_equal(status, 0);
        const int own = connect_to(&address, size);
        const int first = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        assert_true(first >= 0);
        const int second = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        assert_int_equal(second >= 0, !closed);
        close(first);
        if (second >= 0)
            close(second);
        close(own);
    }
    close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(much_at_once_is_not_heard),
        cmocka_unit_test(calls_at_once_have_a_bound),
        cmocka_unit_test(a_new_connection_begins_anew),
        cmocka_unit_test(another_user_is_hung_up_on),
    };
    return cmocka_run_group_tests_name("grpc_sockets", tests, NULL, NULL);
}
