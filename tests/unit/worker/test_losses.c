// SPDX-License-Identifier: Apache-2.0
//
// Farewells on the wire, also those of a peer that lies, and which of several losses is named.

#include "protos/farewell.h"
#include "worker/session/losses.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

// ---- The wire -----------------------------------------------------------------------------------

static struct farewell example(void)
{
    return (struct farewell){.kind = FAREWELL_LEFT,
                             .rank = 2,
                             .witness = 1,
                             .step = 812,
                             .host = "b",
                             .text = "LOCKSTEP_E_INVALID: no"};
}

static void a_farewell_comes_back(void **state)
{
    (void)state;
    static const uint8_t head[FAREWELL_HEAD_BYTES] = {2, 0, 0, 0, 2,    0, 0, 0, 1, 0, 0, 0,
                                                      0, 0, 0, 0, 0x2c, 3, 0, 0, 0, 0, 0, 0};
    uint8_t bytes[FAREWELL_BYTES];
    struct farewell farewell = example();
    struct farewell back;
    size_t size = farewell_encode(&farewell, bytes);
    assert_int_equal(size, FAREWELL_HEAD_BYTES + 2 + strlen(farewell.text) + 1);
    assert_memory_equal(bytes, head, sizeof(head));
    assert_null(farewell_decode(bytes, size, 3, &back));
    assert_memory_equal(&back, &farewell, sizeof(back));
    memset(farewell.text, 'x', sizeof(farewell.text)); // Without an end: it is cut.
    memset(farewell.host, 'h', sizeof(farewell.host));
    size = farewell_encode(&farewell, bytes);
    assert_int_equal(size, FAREWELL_BYTES);
    assert_null(farewell_decode(bytes, size, 3, &back));
    assert_int_equal(strlen(back.text), sizeof(back.text) - 1);
    assert_int_equal(strlen(back.host), sizeof(back.host) - 1);
}

static void impossible_farewells_are_refused(void **state)
{
    static const struct {
        size_t at;
        uint8_t value;
    } pokes[] = {{0, 4}, {1, 1}, {3, 0x80}, {4, 3}, {7, 1}, {8, 3}, {11, 1}, {12, 1}, {15, 1}};
    uint8_t bytes[FAREWELL_BYTES + 1] = {0};
    struct farewell farewell = example();
    static const struct farewell none;
    (void)state;
    const size_t size = farewell_encode(&farewell, bytes);
    for (size_t i = 0; i < sizeof(pokes) / sizeof(pokes[0]); i++) {
        uint8_t poked[FAREWELL_BYTES];
        memcpy(poked, bytes, sizeof(poked));
        poked[pokes[i].at] = pokes[i].value;
        assert_non_null(farewell_decode(poked, size, 3, &farewell));
        assert_memory_equal(&farewell, &none, sizeof(none));
    }
    for (size_t shorter = 0; shorter < size; shorter++)
        assert_non_null(farewell_decode(bytes, shorter, 3, &farewell));
    assert_non_null(farewell_decode(bytes, size + 1, 3, &farewell)); // Something behind its end.
    memset(bytes + FAREWELL_HEAD_BYTES, 'x', LOCKSTEP_HOST_BYTES); // The host is too long.
    assert_non_null(farewell_decode(bytes, FAREWELL_BYTES, 3, &farewell));
    assert_non_null(farewell_decode(bytes, sizeof(bytes), 3, &farewell));
}

static void texts_of_others_are_cleaned(void **state)
{
    uint8_t bytes[FAREWELL_BYTES];
    struct farewell farewell = example();
    (void)state;
    strcpy(farewell.text, "a\nb\033[2Jc\x7f\xff\xc3\xa9\xc3");
    strcpy(farewell.host, "h\th");
    const size_t size = farewell_encode(&farewell, bytes);
    assert_null(farewell_decode(bytes, size, 3, &farewell));
    assert_string_equal(farewell.text, "a?b?[2Jc??\xc3\xa9?");
    assert_string_equal(farewell.host, "h?h");
}

// ---- Which loss is named ------------------------------------------------------------------------

// "2<1": rank 2 was lost, as rank 1 tells.
static uint32_t named(const char *accounts, uint32_t own)
{
    struct losses losses = {0};
    for (const char *at = accounts; *at != '\0'; at += at[3] == ' ' ? 4 : 3) {
        const struct farewell loss = {.kind = FAREWELL_LOST,
                                      .rank = (uint32_t)(at[0] - '0'),
                                      .witness = (uint32_t)(at[2] - '0')};
        losses_add(&losses, &loss);
    }
    const struct farewell *first = losses_first(&losses, own);
    return first ? first->rank : UINT32_MAX;
}

static void the_first_loss_is_named(void **state)
{
    (void)state;
    assert_int_equal(named("", 0), UINT32_MAX);
    assert_int_equal(named("2<1", 0), 2);
    // Rank 1 saw the end of rank 2, so it was alive then: its own end is a consequence.
    assert_int_equal(named("1<0 2<1", 0), 2);
    assert_int_equal(named("2<1 1<0 0<4", 5), 2);
    // Two ranks died at once: the lower one is named, in whatever order the reports arrive.
    assert_int_equal(named("4<3 2<1", 0), 2);
    assert_int_equal(named("2<1 4<3", 0), 2);
    // Two ranks report each other as lost: the link between them was cut.
    assert_int_equal(named("2<1 1<2", 0), 1);
    // A rank that gives itself up is no witness of another one's end.
    assert_int_equal(named("2<2", 0), 2);
    assert_int_equal(named("3<0 2<2", 0), 2);
    // This rank is alive, so another lost rank is named first. If no other rank is reported as
    // lost, this rank is named.
    assert_int_equal(named("0<1 3<2", 0), 3);
    assert_int_equal(named("0<1", 0), 0);
    // The first account of a rank is kept.
    assert_int_equal(named("2<1 2<3 3<0", 0), 2);
}

static void too_many_losses_are_dropped(void **state)
{
    struct losses losses = {0};
    (void)state;
    for (uint32_t rank = 100; rank > 0; rank--) {
        const struct farewell loss = {.kind = FAREWELL_LOST, .rank = rank, .witness = 200};
        losses_add(&losses, &loss);
    }
    assert_int_equal(losses.count, LOCKSTEP_LOSSES);
    assert_int_equal(losses_first(&losses, 0)->rank, 100 - LOCKSTEP_LOSSES + 1);
}

// A witness that has completed step 4 speaks of step 5: a rank in step 4 does not call step 4 lost.
static void a_word_is_of_the_step_of_its_witness(void **state)
{
    (void)state;
    assert_int_equal(losses_word_step(&(struct farewell){.step = 5}, 4), 5);
    assert_int_equal(losses_word_step(&(struct farewell){.step = 3}, 4), 3);
    assert_int_equal(losses_word_step(&(struct farewell){.step = 0}, 4), 4);
}

static void an_earlier_step_moves_the_first_cause_forward(void **state)
{
    const struct down_halt first = {.kind = HALT_LOST, .step = 5, .rank = 1, .text = "first"};
    const struct down_halt later = {.kind = HALT_LEFT, .step = 5, .rank = 2, .text = "later"};
    const struct down_halt earlier = {.kind = HALT_LEFT, .step = 4, .rank = 2, .text = "earlier"};
    struct down_halt now = {.text = ""};
    (void)state;
    assert_true(losses_change(NULL, &first, &now));
    assert_int_equal(now.step, 5);
    assert_string_equal(now.text, "first");
    assert_false(losses_change(&now, &later, &now));
    assert_true(losses_change(&now, &earlier, &now));
    assert_int_equal(now.step, 4);
    assert_int_equal(now.kind, HALT_LOST);
    assert_int_equal(now.rank, 1);
    assert_string_equal(now.text, "first");
    assert_false(losses_change(&now, &first, &now));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_farewell_comes_back),
        cmocka_unit_test(impossible_farewells_are_refused),
        cmocka_unit_test(texts_of_others_are_cleaned),
        cmocka_unit_test(the_first_loss_is_named),
        cmocka_unit_test(too_many_losses_are_dropped),
        cmocka_unit_test(a_word_is_of_the_step_of_its_witness),
        cmocka_unit_test(an_earlier_step_moves_the_first_cause_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
