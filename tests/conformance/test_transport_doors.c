// SPDX-License-Identifier: Apache-2.0
//
// A rank that has no file descriptor left for a connecting peer. It does not spin, accepts the
// connection once descriptors are free again, and blames itself if none ever is.

#include "base/clock.h"
#include "tests/conformance/transport_stage.h"
#include "tests/support/full.h"
#include "worker/transport/lifecycle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WATCHED_MS 600
#define PATIENCE_MS 400 // Half of the time limit of forming a world.
#define LOOKS_MOST 2000 // Maximum calls of epoll_wait; a rank that spins makes over ten thousand.

static uint32_t looks;

// Counts the calls and calls the kernel.
__attribute__((visibility("default"))) int epoll_wait(int epoll, struct epoll_event *events,
                                                      int most, int timeout_ms)
{
    looks++;
    return (int)syscall(SYS_epoll_wait, epoll, events, most, timeout_ms);
}

static int refused; // The error with which epoll_ctl refuses descriptors; 0: it accepts all.

__attribute__((visibility("default"))) int epoll_ctl(int epoll, int what, int fd,
                                                     struct epoll_event *event)
{
    if (refused != 0 && what == EPOLL_CTL_ADD) {
        errno = refused;
        return -1;
    }
    return (int)syscall(SYS_epoll_ctl, epoll, what, fd, event);
}

// Condition: a trainer has closed a descriptor of the library, so a connection cannot be watched.
// Decision: the connection is refused, and the process goes on.
static void a_closed_descriptor_ends_no_trainer(void **state)
{
    const struct stage_variant *variant = *state;
    struct stage stage;
    stage_open(&stage, variant);
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    struct link *link = stage_connect(&stage);
    refused = EBADF;
    transport_progress(stage.transport, 100);
    refused = 0;
    link->ops->close(link, false);
    stage_join(&stage);
    stage_close(&stage);
}

// The process has no free descriptor while the peer connects.
static void a_connection_without_descriptor_waits(void **state)
{
    const struct stage_variant *variant = *state;
    struct stage stage;
    struct full full;
    uint8_t challenge[LOCKSTEP_NONCE_BYTES];
    if (variant->kind == TRANSPORT_LOOPBACK) {
        print_message("a loopback accepts without descriptors\n");
        skip();
    }
    stage_open(&stage, variant);
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    struct link *link = stage_connect(&stage);
    full_begin(&full, 128);
    looks = 0;
    const uint64_t until_ms = clock_now_ms() + WATCHED_MS;
    while (clock_now_ms() < until_ms)
        transport_progress(stage.transport, 100);
    full_end(&full);
    print_message("%u looks\n", looks);
    assert_true(looks > 0 && looks <= LOOKS_MOST);
    stage_challenge(&stage, link, challenge); // The rank has accepted the connection.
    link->ops->close(link, false);
    stage_join(&stage);
    stage_close(&stage);
}

// Condition: the peer connects in time, but this rank has no descriptor for it until its time
// limit. Decision: this rank's error says what it lacks and how to raise the limit; it does not
// blame the peer.
static void a_rank_without_descriptors_blames_itself(void **state)
{
    const struct stage_variant *variant = *state;
    struct stage stage;
    struct full full;
    if (variant->kind == TRANSPORT_LOOPBACK) {
        print_message("a loopback accepts without descriptors\n");
        skip();
    }
    stage_open(&stage, variant);
    stage.world.form_timeout_ms = 2 * PATIENCE_MS;
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    struct link *link = stage_connect(&stage);
    const uint64_t since_ms = clock_now_ms();
    full_begin(&full, 128);
    while (stage.lost == 0 && !stage.form_failed && clock_now_ms() < since_ms + STAGE_BOUND_MS)
        transport_progress(stage.transport, 100);
    full_end(&full);
    print_message("%s\n", stage.text);
    assert_false(stage.form_failed); // That error would name the peer.
    assert_int_equal(stage.lost, 1);
    assert_true(stage.here);
    assert_int_equal(stage.lost_rank, stage.world.rank);
    assert_string_equal(stage.text, "this rank could not make its links: Too many open files; "
                                    "raise the limit on open files (ulimit -n)");
    link->ops->close(link, false);
    stage_close(&stage);
}

int main(void)
{
    static const struct stage_test tests[] = {STAGE_TEST(a_closed_descriptor_ends_no_trainer),
                                              STAGE_TEST(a_connection_without_descriptor_waits),
                                              STAGE_TEST(a_rank_without_descriptors_blames_itself)};
    return stage_run("transport and its listeners", tests, LENGTH(tests));
}
