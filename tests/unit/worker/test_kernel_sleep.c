// SPDX-License-Identifier: Apache-2.0
//
// The state in which a thread sleeps, in words.

#include "worker/watch/kernel_sleep.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/syscall.h>

static void expect(int32_t number, const char *wchan, const char *expected)
{
    char text[64];
    kernel_sleep_text(number, wchan, text, sizeof(text));
    assert_string_equal(text, expected);
}

static void test_a_call_and_a_function(void **state)
{
    (void)state;
    expect(SYS_read, "nfs_wait_bit_killable", "read (nfs_wait_bit_killable)");
    expect(SYS_fsync, "", "fsync");
    expect(99999, "do_x", "system call 99999 (do_x)");
    expect(-2, "folio_wait_bit_common", "folio_wait_bit_common"); // In no call: a page is awaited.
    expect(-2, "", "");
}

// Nothing is written behind the room, and the text ends.
static void test_little_room(void **state)
{
    (void)state;
    char text[16];
    for (size_t room = 1; room < 12; room++) {
        memset(text, '#', sizeof(text));
        kernel_sleep_text(SYS_read, "io_schedule", text, room);
        assert_true(strlen(text) < room);
        assert_int_equal(text[room], '#');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_call_and_a_function),
        cmocka_unit_test(test_little_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
