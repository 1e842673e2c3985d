// SPDX-License-Identifier: Apache-2.0
// The intrusive list, the ring buffer and the set of bits.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>

#include "base/bits.h"
#include "base/list.h"
#include "base/ring_buffer.h"

struct item {
    int value;
    struct list link;
};

// The values of a list as a decimal number: 1, 2, 3 is 123.
static int digits(const struct list *head)
{
    int sum = 0;
    for (const struct list *node = head->next; node != head; node = node->next)
        sum = 10 * sum + list_entry(node, struct item, link)->value;
    return sum;
}

static void test_list_order(void **state)
{
    (void)state;
    struct list head;
    struct item items[] = {{.value = 1}, {.value = 2}, {.value = 3}, {.value = 4}};
    list_init(&head);
    assert_true(list_empty(&head));
    assert_null(list_first(&head));
    assert_null(list_pop_front(&head));
    list_push_back(&head, &items[1].link);
    list_push_back(&head, &items[3].link);
    list_push_front(&head, &items[0].link);
    list_insert_before(&items[3].link, &items[2].link);
    assert_int_equal(digits(&head), 1234);
    list_remove(&items[1].link);
    assert_int_equal(digits(&head), 134);
    list_remove(&items[1].link); // in no list: harmless
    assert_int_equal(digits(&head), 134);
    assert_ptr_equal(list_pop_front(&head), &items[0].link);
    assert_true(list_empty(&items[0].link));
    assert_int_equal(digits(&head), 34);
}

static void test_list_removal_while_walking(void **state)
{
    (void)state;
    struct list head;
    struct item items[] = {{.value = 1}, {.value = 2}, {.value = 3}, {.value = 4}};
    int seen = 0;
    list_init(&head);
    for (int i = 0; i < 4; i++)
        list_push_back(&head, &items[i].link);
    list_for_each_safe (node, &head)
        if (list_entry(node, struct item, link)->value % 2 == 0)
            list_remove(node);
    list_for_each (node, &head)
        seen = 10 * seen + list_entry(node, struct item, link)->value;
    assert_int_equal(seen, 13);
}

static void test_ring_fifo_and_bounds(void **state)
{
    (void)state;
    struct ring_buffer ring;
    uint32_t in = 0;
    uint32_t out = 0;
    uint32_t item = 0;
    assert_true(ring_buffer_init(&ring, 3, sizeof(uint32_t)));
    assert_false(ring_buffer_pop(&ring, &item));
    // Fill and drain by different amounts, so that the places wrap.
    for (int round = 0; round < 20; round++) {
        while (ring_buffer_push(&ring, &in))
            in++;
        assert_true(ring_buffer_full(&ring));
        assert_int_equal(ring_buffer_count(&ring), 3);
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(*(uint32_t *)ring_buffer_at(&ring, i), out + i);
        assert_null(ring_buffer_at(&ring, 3));
        for (int i = 0; i <= round % 3; i++) {
            assert_true(ring_buffer_pop(&ring, &item));
            assert_int_equal(item, out++);
        }
    }
    ring_buffer_clear(&ring);
    assert_int_equal(ring_buffer_count(&ring), 0);
    ring_buffer_fini(&ring);
}

static void test_ring_of_pointers(void **state)
{
    (void)state;
    struct ring_buffer ring;
    int a = 0;
    int *pointer = &a;
    int *found = NULL;
    assert_true(ring_buffer_init(&ring, 1, sizeof(pointer)));
    assert_true(ring_buffer_push(&ring, &pointer));
    assert_false(ring_buffer_push(&ring, &pointer));
    assert_true(ring_buffer_pop(&ring, &found));
    assert_ptr_equal(found, &a);
    ring_buffer_fini(&ring);
}

static void test_ring_refuses_nonsense(void **state)
{
    (void)state;
    struct ring_buffer ring;
    assert_false(ring_buffer_init(&ring, 0, 4));
    ring_buffer_fini(&ring);
    assert_false(ring_buffer_init(&ring, 4, 0));
    assert_false(ring_buffer_init(&ring, SIZE_MAX / 2, 4));
    ring_buffer_fini(&ring);
}

static void test_bits(void **state)
{
    (void)state;
    uint64_t words[2] = {0};
    bits_add(words, 0);
    bits_add(words, 63);
    bits_add(words, 64);
    bits_add(words, 64);
    assert_true(words[0] == (UINT64_C(1) << 63 | 1) && words[1] == 1);
    assert_true(bits_has(words, 0) && bits_has(words, 63) && bits_has(words, 64));
    assert_false(bits_has(words, 1) || bits_has(words, 127));
    bits_remove(words, 63);
    bits_remove(words, 127);
    assert_true(words[0] == 1 && words[1] == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_order),
        cmocka_unit_test(test_list_removal_while_walking),
        cmocka_unit_test(test_ring_fifo_and_bounds),
        cmocka_unit_test(test_ring_of_pointers),
        cmocka_unit_test(test_ring_refuses_nonsense),
        cmocka_unit_test(test_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
