// SPDX-License-Identifier: Apache-2.0
//
// The listeners of a rank that has no descriptor left for who connects: it does not spin, and hears
// the connection when descriptors are free again.

#include "base/clock.h"
#include "tests/conformance/transport_stage.h"
#include "tests/support/full.h"

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
#define LOOKS_MOST 2000 // A rank that spins looks some ten thousand times.

static uint32_t looks;

// As the kernel's, and counted.
__attribute__((visibility("default"))) int epoll_wait(int epoll, struct epoll_event *events,
                                                      int most, int timeout_ms)
{
    looks++;
    return (int)syscall(SYS_epoll_wait, epoll, events, most, timeout_ms);
}

// Everything that this process can open is open.
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
    stage_challenge(&stage, link, challenge); // It is heard.
    link->ops->close(link, false);
    stage_join(&stage);
    stage_close(&stage);
}

int main(void)
{
    static const struct stage_test tests[] = {STAGE_TEST(a_connection_without_descriptor_waits)};
    return stage_run("transport and its listeners", tests, LENGTH(tests));
}
