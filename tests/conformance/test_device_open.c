// SPDX-License-Identifier: Apache-2.0
//
// Worlds that cannot form because of their devices. lockstep_open fails at once on every rank, with
// a sentence, and the ranks can open a correct world afterwards. Runs on fake devices.

#include "base/clock.h"
#include "tests/support/cluster.h"
#include "tests/support/fake_gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <unistd.h>

#define WORLD 3
#define SOON_MS 5000 // Time limit, before test_bound_ms(); lockstep_open could wait for a minute.

struct expectation {
    const char *devices[WORLD]; // The configured device of each rank.
    int status[WORLD]; // The expected status of lockstep_open on each rank.
    const char *text[WORLD];
    uint32_t virtual_ranks;
};

static void open_body(struct rank *rank)
{
    const struct expectation *expected = rank->context;
    const uint64_t before_ms = clock_now_ms();
    struct lockstep_config config = rank_config(rank);
    config.device = expected->devices[rank->rank];
    config.virtual_ranks = expected->virtual_ranks;
    if (expected->status[rank->rank] == LOCKSTEP_OK) {
        RANK_OK(rank, lockstep_open(&config, &rank->session));
        return;
    }
    RANK_FAILS(rank, expected->status[rank->rank], lockstep_open(&config, &rank->session));
    RANK_SAYS(rank, expected->text[rank->rank]);
    RANK_TRUE(rank, !rank->session);
    RANK_TRUE(rank, clock_now_ms() - before_ms < test_bound_ms(SOON_MS));
}

static void open_world(struct expectation *expected)
{
    struct setting setting = setting_named("staged");
    struct fake_gpu_live live;
    setting.world_size = WORLD;
    ranks_run_test(&(struct cluster_test){
        .setting = &setting, .body = open_body, .context = expected, .without_session = true});
    fake_gpu_install()->live(&live);
    assert_int_equal(live.modules + live.streams + live.events, 0);
}

// Opens a correct world, which shows that the devices and NCCL still work.
static void open_a_good_world(void)
{
    struct expectation good = {.devices = {"cuda:0", "cuda:1", "none"}};
    open_world(&good);
}

static void test_a_device_that_there_is_not(void **state)
{
    static const char others[] = " cannot compute on its GPU, cuda:9: cuDeviceGet: ";
    struct expectation expected = {
        .devices = {"none", "cuda:9", "cuda:0"},
        .status = {LOCKSTEP_E_CONFIG, LOCKSTEP_E_UNSUPPORTED, LOCKSTEP_E_CONFIG},
        .text = {others, "the device cannot be used, cuda:9: cuDeviceGet: ", others},
    };
    (void)state;
    fake_gpu_weather("FAKE_CUDA_DEVICES=8", NULL);
    open_world(&expected);
    open_a_good_world();
}

static void test_one_device_for_two(void **state)
{
    static const char text[] = " compute on the same GPU, GPU-";
    struct expectation expected = {
        .devices = {"cuda:3", "none", "cuda:3"},
        .status = {LOCKSTEP_E_CONFIG, LOCKSTEP_E_CONFIG, LOCKSTEP_E_CONFIG},
        .text = {text, text, text},
    };
    (void)state;
    fake_gpu_weather("FAKE_CUDA_DEVICES=8", NULL);
    open_world(&expected);
    expected.devices[0] = "cuda:0,1,2"; // A replica of rank 0 is on the device of rank 2.
    expected.devices[2] = "cuda:2";
    open_world(&expected);
    expected.devices[2] = "cuda:5,1"; // Replicas of both ranks are on the same device.
    open_world(&expected);
    open_a_good_world();
}

static void test_an_old_nccl(void **state)
{
    static const char text[] =
        " has NCCL 2.17.3; workers with GPUs exchange gradients by NCCL, 2.18";
    struct expectation expected = {
        .devices = {"cuda:0", "none", "cuda:1"},
        .status = {LOCKSTEP_E_CONFIG, LOCKSTEP_E_CONFIG, LOCKSTEP_E_CONFIG},
        .text = {text, text, text},
    };
    (void)state;
    fake_gpu_weather("FAKE_CUDA_DEVICES=8", "FAKE_NCCL_VERSION=21703", NULL);
    open_world(&expected);
    fake_gpu_weather("FAKE_CUDA_DEVICES=8", NULL);
    open_a_good_world();
}

// NCCL's own variable would make it wait without a deadline, also if a file sets it.
static void test_an_nccl_that_blocks(void **state)
{
    static const char text[] = "NCCL_COMM_BLOCKING is set, and a rank would wait";
    static const char line[] = "NCCL_DEBUG=WARN\nNCCL_COMM_BLOCKING=1\n";
    char file[] = "/tmp/lockstep-nccl-XXXXXX";
    struct expectation expected = {
        .devices = {"cuda:0", "none", "cuda:1"},
        .status = {LOCKSTEP_E_CONFIG, LOCKSTEP_E_CONFIG, LOCKSTEP_E_CONFIG},
        .text = {text, text, text},
    };
    (void)state;
    fake_gpu_weather("FAKE_CUDA_DEVICES=8", NULL);
    setenv("NCCL_COMM_BLOCKING", "1", 1);
    open_world(&expected);
    setenv("NCCL_COMM_BLOCKING", "0", 1);
    open_a_good_world();
    unsetenv("NCCL_COMM_BLOCKING");
    const int descriptor = mkstemp(file);
    assert_true(descriptor >= 0 && write(descriptor, line, sizeof(line) - 1) > 0);
    setenv("NCCL_CONF_FILE", file, 1);
    open_world(&expected);
    unsetenv("NCCL_CONF_FILE");
    (void)unlink(file);
    (void)close(descriptor);
    open_a_good_world();
}

// Virtual ranks are for host memory.
static void test_virtual_ranks(void **state)
{
    static const char others[] = " cannot compute on its GPU, config.virtual_ranks ";
    struct expectation expected = {
        .devices = {"none", "cuda:1", "none"},
        .status = {LOCKSTEP_E_CONFIG, LOCKSTEP_E_UNSUPPORTED, LOCKSTEP_E_CONFIG},
        .text = {others,
                 "the device cannot be used, config.virtual_ranks adds in host memory only; "
                 "LOCKSTEP_DEVICE=none",
                 others},
        .virtual_ranks = 3,
    };
    (void)state;
    fake_gpu_weather("FAKE_CUDA_DEVICES=8", NULL);
    open_world(&expected);
    open_a_good_world();
}

// NCCL fails on the rank whose place among the GPUs is 1: rank 2. Every rank hears why.
static void test_an_nccl_that_does_not_connect(void **state)
{
    static const char text[] = "): its GPU cannot be connected to the others: NCCL: ";
    struct expectation expected = {
        .devices = {"cuda:0", "none", "cuda:1"},
        .status = {LOCKSTEP_E_PEER_LOST, LOCKSTEP_E_PEER_LOST, LOCKSTEP_E_PEER_LOST},
        .text = {text, text, text},
    };
    (void)state;
    fake_gpu_weather("FAKE_CUDA_DEVICES=8", "FAKE_NCCL_FAIL=init:1:5@1", NULL);
    open_world(&expected);
    fake_gpu_weather("FAKE_CUDA_DEVICES=8", NULL);
    open_a_good_world();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_device_that_there_is_not),
        cmocka_unit_test(test_one_device_for_two),
        cmocka_unit_test(test_an_old_nccl),
        cmocka_unit_test(test_an_nccl_that_blocks),
        cmocka_unit_test(test_virtual_ranks),
        cmocka_unit_test(test_an_nccl_that_does_not_connect),
    };
    return _cmocka_run_group_tests("devices: open", tests, sizeof(tests) / sizeof(tests[0]), NULL,
                                   NULL);
}
