// SPDX-License-Identifier: Apache-2.0
//
// The kernels inside the library, as this build has them, or as it has none.

#include "worker/device/image.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#define FATBIN_MAGIC 0xba55ed50u

static void test_image(void **state)
{
    uint32_t first = 0;
    (void)state;
    assert_int_equal((uintptr_t)device_image() % 64, 0);
    memcpy(&first, device_image(), sizeof(first));
    assert_int_equal(first, device_image_present() ? FATBIN_MAGIC : 0);
    assert_true(device_image_present() == (strlen(device_image_targets()) > 0));
    print_message("kernels for: %s\n", device_image_present() ? device_image_targets() : "nothing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_image)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
