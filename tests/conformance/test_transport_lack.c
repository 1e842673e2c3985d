// SPDX-License-Identifier: Apache-2.0
//
// A rank without memory for a member's frames blames itself, not the member. Under a sanitizer,
// whose allocator cannot be replaced, the test is skipped.

#include "tests/conformance/transport_stage.h"
#include "tests/support/interposer.h"
#include "worker/transport/lifecycle.h"

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

// Condition: a rank is alone in its world, so there is no link to lose. Decision: it blames itself.
static void a_rank_alone_blames_itself(void **state)
{
    static struct collective collectives[4096];
    static float element;
    const struct extent extent = {&element, &element, 1};
    struct stage stage;
    stage_open(&stage, *state);
    stage.world.world_size = 1;
    stage.world.peer_count = 0;
    assert_int_equal(transport_form(stage.transport, &stage.world), 0);
    stage_until(&stage, &stage.formed);
    atomic_store(&nothing_left, true);
    for (uint32_t i = 0; i < LENGTH(collectives); i++) {
        collectives[i] = (struct collective){.dtype = DTYPE_FLOAT32,
                                             .op = REDUCE_SUM,
                                             .tag = {.step = STAGE_STEP, .slot = i},
                                             .extents = &extent,
                                             .extent_count = 1,
                                             .elements = 1};
        transport_launch(stage.transport, &collectives[i]);
    }
    stage_until_count(&stage, &stage.lost, 1);
    atomic_store(&nothing_left, false);
    assert_true(stage.here);
    assert_int_equal(stage.lost_rank, 0);
    assert_string_equal(stage.text, "this rank has no memory for what it has to send or receive");
    stage_close(&stage);
}

#else

static void a_rank_alone_blames_itself(void **state)
{
    (void)state;
    print_message("not under a sanitizer: its allocator is in the place of ours\n");
    skip();
}

static void a_rank_without_memory_blames_itself(void **state)
{
    (void)state;
    print_message("not under a sanitizer: its allocator is in the place of ours\n");
    skip();
}

#endif

int main(void)
{
    static const struct stage_test tests[] = {STAGE_TEST(a_rank_without_memory_blames_itself),
                                              STAGE_TEST(a_rank_alone_blames_itself)};
    return stage_run("transport without memory", tests, LENGTH(tests));
}
