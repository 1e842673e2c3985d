// SPDX-License-Identifier: Apache-2.0
//
// lockstep_devices_find and lockstep_device_describe on a machine without a driver, with fake GPUs,
// and with GPUs that cannot be used; and with structures of other versions.

#include "tests/support/fake_gpu.h"
#include "worker/device/cuda.h"

#include <lockstep/lockstep.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

static void test_nothing(void **state)
{
    struct lockstep_devices devices = LOCKSTEP_DEVICES_INIT;
    struct lockstep_device device = LOCKSTEP_DEVICE_INIT;
    (void)state;
    setenv("LOCKSTEP_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1);
    setenv("LOCKSTEP_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
    assert_int_equal(lockstep_devices_find(&devices), LOCKSTEP_OK);
    assert_int_equal(devices.count, 0);
    assert_int_equal(devices.driver_version, 0);
    assert_int_equal(devices.nccl_version, 0);
    assert_non_null(strstr(devices.driver_text, "cannot load /nowhere/libcuda.so.1: "));
    assert_non_null(strstr(devices.nccl_text, "cannot load /nowhere/libnccl.so.2: "));
    assert_int_equal(lockstep_device_describe(0, &device), LOCKSTEP_E_INVALID);
    assert_non_null(strstr(lockstep_error_text(), "there is no device: cannot load /nowhere"));
}

// Nothing is left behind, and nothing was asked for that must not be.
static void expect_clean(const struct fake_controls *fake)
{
    struct fake_gpu_live live;
    char complaint[256];
    fake->live(&live);
    assert_int_equal(live.modules + live.streams + live.events + live.device_allocations, 0);
    fake->complaint(complaint, sizeof(complaint));
    assert_string_equal(complaint, "");
}

// From here on: the fakes are loaded, and what is loaded stays.
static void test_fakes(void **state)
{
    const struct fake_controls *fake = fake_gpu_install();
    struct lockstep_devices devices = LOCKSTEP_DEVICES_INIT;
    (void)state;
    fake_gpu_weather("FAKE_CUDA_DEVICES=2", "FAKE_CUDA_VERSION=12080", "FAKE_CUDA_CAPABILITY=86",
                     NULL);
    assert_int_equal(lockstep_devices_find(&devices), LOCKSTEP_OK);
    assert_int_equal(devices.count, 2);
    assert_int_equal(devices.driver_version, 12080);
    assert_non_null(strstr(devices.driver_text, "libcuda-fake.so"));
    struct lockstep_device device[2] = {LOCKSTEP_DEVICE_INIT, LOCKSTEP_DEVICE_INIT};
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(lockstep_device_describe(i, &device[i]), LOCKSTEP_OK);
        assert_int_equal(device[i].capability, 86);
        assert_true(device[i].name[0]);
        assert_string_equal(device[i].problem, "");
    }
    assert_memory_not_equal(device[0].uuid, device[1].uuid, sizeof(device[0].uuid));
    assert_int_equal(lockstep_device_describe(2, &device[0]), LOCKSTEP_E_INVALID);
    assert_string_equal(lockstep_error_text(), "there is no device 2, of 2");
    expect_clean(fake);
}

// A trainer's own context is current; it is afterwards, whatever went wrong.
static void test_problems(void **state)
{
    static const struct {
        const char *fail;
        const char *problem;
    } cases[] = {
        {"FAKE_CUDA_FAIL=cuDevicePrimaryCtxRetain:1:2", "cuDevicePrimaryCtxRetain: "},
        {"FAKE_CUDA_FAIL=cuCtxPushCurrent_v2:1:201", "cuCtxPushCurrent: "},
        {"FAKE_CUDA_FAIL=cuModuleLoadData:1:200", "cuModuleLoadData: "},
        {"FAKE_CUDA_FAIL=cuModuleLoadData:1:209",
         "cuModuleLoadData: no kernel image is available for execution on the device (209): this "
         "liblockstep has kernels for sm_"},
        {"FAKE_CUDA_FAIL=cuModuleLoadData:1:222", "cuModuleLoadData: unknown error (222): this "},
    };
    const struct fake_controls *fake = fake_gpu_install();
    char error[256];
    const struct cuda *cuda = cuda_load(error, sizeof(error));
    void *own = NULL;
    void *current = NULL;
    (void)state;
    fake_gpu_weather("FAKE_CUDA_DEVICES=2", NULL);
    assert_int_equal(cuda->device_primary_ctx_retain(&own, 1), CUDA_OK);
    assert_int_equal(cuda->ctx_set_current(own), CUDA_OK);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct lockstep_device device = LOCKSTEP_DEVICE_INIT;
        fake_gpu_weather("FAKE_CUDA_DEVICES=2", cases[i].fail, NULL);
        assert_int_equal(lockstep_device_describe(0, &device), LOCKSTEP_OK);
        // Without kernels the library says that, whatever the driver's reason.
        if (!strstr(device.problem, "built without nvcc"))
            assert_ptr_equal(strstr(device.problem, cases[i].problem), device.problem);
        assert_int_equal(cuda->ctx_get_current(&current), CUDA_OK);
        assert_ptr_equal(current, own);
        expect_clean(fake);
    }
    assert_int_equal(cuda->ctx_set_current(NULL), CUDA_OK);
    assert_int_equal(cuda->device_primary_ctx_release(1), CUDA_OK);
    struct lockstep_devices devices = LOCKSTEP_DEVICES_INIT;
    fake_gpu_weather("FAKE_CUDA_FAIL=cuInit:1:100", NULL);
    assert_int_equal(lockstep_devices_find(&devices), LOCKSTEP_OK);
    assert_int_equal(devices.count, 0);
    assert_int_equal(devices.driver_version, 0);
    assert_ptr_equal(strstr(devices.driver_text, "cuInit: "), devices.driver_text);
}

static void test_versions(void **state)
{
    struct lockstep_devices devices = LOCKSTEP_DEVICES_INIT;
    struct {
        struct lockstep_devices known;
        char unknown[8];
    } newer = {.unknown = "as it is"};
    (void)state;
    assert_int_equal(lockstep_devices_find(NULL), LOCKSTEP_E_INVALID);
    assert_int_equal(lockstep_device_describe(0, NULL), LOCKSTEP_E_INVALID);
    devices.struct_bytes = 0;
    assert_int_equal(lockstep_devices_find(&devices), LOCKSTEP_E_INVALID);

    // An older program's, which ends before the texts; nothing behind its end is written.
    devices.struct_bytes = offsetof(struct lockstep_devices, driver_text);
    memset(devices.driver_text, 'x', sizeof(devices.driver_text));
    assert_int_equal(lockstep_devices_find(&devices), LOCKSTEP_OK);
    assert_int_equal(devices.struct_bytes, offsetof(struct lockstep_devices, driver_text));
    assert_int_equal(devices.driver_text[0], 'x');

    // A newer one's.
    newer.known.struct_bytes = sizeof(newer);
    assert_int_equal(lockstep_devices_find(&newer.known), LOCKSTEP_OK);
    assert_int_equal(newer.known.struct_bytes, sizeof(newer.known));
    assert_memory_equal(newer.unknown, "as it is", sizeof(newer.unknown));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing), // Before anything is loaded.
        cmocka_unit_test(test_fakes),
        cmocka_unit_test(test_problems),
        cmocka_unit_test(test_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
