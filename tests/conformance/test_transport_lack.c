// SPDX-License-Identifier: Apache-2.0
//
// A rank without memory for a member's frames blames itself, not the member. Under a sanitizer,
// whose allocator cannot be replaced, the test is skipped.

#include "tests/conformance/transport_stage.h"
#include "tests/support/interposer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdatomic.h>

#if INTERPOSER

static atomic_bool nothing_left;

static bool allocation_fails(const void *caller)
{
    return atomic_load_explicit(&nothing_left, memory_order_relaxed) && interposer_is_ours(caller);
}

// Condition: a member sends frames of collectives that this rank has not launched, and allocations
// for them fail. Decision: the rank reports the loss as its own fault.
static void a_rank_without_memory_blames_itself(void **state)
{
    const struct stage_variant *variant = *state;
    struct stage stage;
    if (variant->kind == TRANSPORT_LOOPBACK) {
        print_message("the puppet of a loopback needs memory itself\n");
        skip();
    }
    stage_form(&stage, variant);
    atomic_store(&nothing_left, true);
    for (uint32_t sent = 0; stage.lost == 0 && sent < LOCKSTEP_PARKINGS_OF_PEER; sent++) {
        struct frame_header header = stage_tensor(&stage, FRAME_REDUCE, 0, 4);
        header.slot = sent;
        (void)stage_send_frame(&stage, &header, NULL);
        transport_progress(stage.transport, 1);
    }
    atomic_store(&nothing_left, false);
    assert_int_equal(stage.lost, 1);
    assert_string_equal(stage.text, "this rank has no memory for what it has to send or receive");
    assert_true(stage.here);
    stage_close(&stage);
}

#else

static void a_rank_without_memory_blames_itself(void **state)
{
    (void)state;
    print_message("not under a sanitizer: its allocator is in the place of ours\n");
    skip();
}

#endif

int main(void)
{
    static const struct stage_test tests[] = {STAGE_TEST(a_rank_without_memory_blames_itself)};
    return stage_run("transport without memory", tests, LENGTH(tests));
}
