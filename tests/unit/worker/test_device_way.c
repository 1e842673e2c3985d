// SPDX-License-Identifier: Apache-2.0
//
// The way of collectives on devices. It depends on the world, on where this rank's memory is, and
// on the computation.

#include "worker/transport/device/device_flow.h"
#include "worker/transport/device/devices.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define RANKS 4

// A world of four, the lowest `devices` of which have one.
static struct transport_world world_of(uint32_t devices, bool meet)
{
    return (struct transport_world){
        .world_size = RANKS, .devices = {((uint64_t)1 << devices) - 1}, .devices_meet = meet};
}

static struct collective mean_of(enum dtype dtype)
{
    static uint8_t somewhere; // A device: nobody looks at it.
    return (struct collective){.dtype = dtype,
                               .op = REDUCE_MEAN,
                               .elements = 10,
                               .on_devices = true,
                               .device = (struct device *)(void *)&somewhere};
}

static void test_by_the_world(void **state)
{
    static const struct {
        uint32_t devices;
        bool meet;
        enum device_way way;
        bool strict;
    } cases[] = {
        {1, false, DEVICE_WAY_STAGED, false}, {1, true, DEVICE_WAY_STAGED, false},
        {2, false, DEVICE_WAY_STAGED, false}, {2, true, DEVICE_WAY_MIXED, true},
        {3, false, DEVICE_WAY_STAGED, false}, {3, true, DEVICE_WAY_MIXED, true},
        {4, false, DEVICE_WAY_NCCL, true},    {4, true, DEVICE_WAY_NCCL, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct transport_world world = world_of(cases[i].devices, cases[i].meet);
        struct collective mean = mean_of(DTYPE_FLOAT32);
        assert_int_equal(device_way_of(&world, &mean), cases[i].way);
        assert_int_equal(device_flow_is_strict(&world), cases[i].strict);
        mean.device = NULL;
        assert_int_equal(device_way_of(&world, &mean), DEVICE_WAY_HOST);
    }
}

// A job that began without NCCL goes on without it after a death.
static void test_by_hosts(void **state)
{
    (void)state;
    for (uint32_t devices = 1; devices <= RANKS; devices++) {
        struct transport_world world = world_of(devices, true);
        struct collective mean = mean_of(DTYPE_FLOAT32);
        world.by_hosts = true;
        assert_int_equal(device_way_of(&world, &mean), DEVICE_WAY_STAGED);
        assert_false(device_flow_is_strict(&world));
    }
}

static void test_by_what_is_computed(void **state)
{
    static const struct {
        enum dtype dtype;
        enum device_way meet; // Where devices meet, and where all ranks have one.
        enum device_way all;
    } cases[] = {
        {DTYPE_FLOAT32, DEVICE_WAY_MIXED, DEVICE_WAY_NCCL},
        {DTYPE_FLOAT64, DEVICE_WAY_MIXED, DEVICE_WAY_NCCL},
        {DTYPE_FLOAT16, DEVICE_WAY_STAGED, DEVICE_WAY_NCCL},
        {DTYPE_BFLOAT16, DEVICE_WAY_STAGED, DEVICE_WAY_NCCL},
        {DTYPE_INT32, DEVICE_WAY_STAGED, DEVICE_WAY_STAGED},
        {DTYPE_UINT8, DEVICE_WAY_STAGED, DEVICE_WAY_STAGED},
        {DTYPE_UINT32, DEVICE_WAY_STAGED, DEVICE_WAY_STAGED},
        {DTYPE_BOOL, DEVICE_WAY_STAGED, DEVICE_WAY_STAGED},
    };
    const struct transport_world meet = world_of(2, true);
    const struct transport_world all = world_of(4, false);
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct collective collective = mean_of(cases[i].dtype);
        collective.op = REDUCE_SUM;
        assert_int_equal(device_way_of(&meet, &collective), cases[i].meet);
        assert_int_equal(device_way_of(&all, &collective), cases[i].all);
        collective.op = REDUCE_MAX;
        assert_int_equal(device_way_of(&meet, &collective), DEVICE_WAY_STAGED);
        assert_int_equal(device_way_of(&all, &collective), DEVICE_WAY_STAGED);
        collective.op = REDUCE_SUM;
        collective.on_devices = false; // This rank's own matter.
        assert_int_equal(device_way_of(&meet, &collective), DEVICE_WAY_STAGED);
    }
}

static void test_barriers_and_broadcasts(void **state)
{
    const struct transport_world meet = world_of(2, true);
    struct collective collective = mean_of(DTYPE_FLOAT32);
    (void)state;
    collective.elements = 0;
    assert_int_equal(device_way_of(&meet, &collective), DEVICE_WAY_STAGED);
    collective.elements = 10;
    collective.kind = COLLECTIVE_BROADCAST;
    assert_int_equal(device_way_of(&meet, &collective), DEVICE_WAY_STAGED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_the_world),
        cmocka_unit_test(test_by_hosts),
        cmocka_unit_test(test_by_what_is_computed),
        cmocka_unit_test(test_barriers_and_broadcasts),
    };
    return cmocka_run_group_tests_name("device way", tests, NULL, NULL);
}
