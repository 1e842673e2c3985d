// SPDX-License-Identifier: Apache-2.0
//
// Conformance, case 25: one gradient of more than 2^31 bytes, in a bucket of its own. It needs
// 5 GiB of memory and half a minute, so it runs with LOCKSTEP_TEST_LARGE=1 only:
//
//     LOCKSTEP_TEST_LARGE=1 make test ONLY=test_reducer_large

#include "tests/support/trainer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cmocka.h>

// A number that is no multiple of a chunk or a stripe.
#define ELEMENTS (((uint64_t)1 << 29) + 1000003)
#define BYTES (ELEMENTS * sizeof(float))

// The known gradient of an element: a small integer, so that the sum and the mean of two of them
// are exact even in bfloat16.
static float large_value(uint32_t rank, uint64_t element)
{
    return (float)(((element ^ element >> 17) + 5 * rank) & 63);
}

static void *large_map(struct rank *rank, int protection)
{
    void *memory =
        mmap(NULL, BYTES, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    RANK_TRUE(rank, memory != MAP_FAILED);
    return memory;
}

static void large_check(struct rank *rank, const float *gradient)
{
    for (uint64_t i = 0; i < ELEMENTS; i++) {
        const float mean = (large_value(0, i) + large_value(1, i)) / 2;
        if (gradient[i] < mean || gradient[i] > mean)
            rank_fail(rank, __FILE__, __LINE__, "element %" PRIu64 " is %g, not %g", i,
                      (double)gradient[i], (double)mean);
    }
}

static void large_body(struct rank *rank)
{
    static const int64_t shape[] = {(int64_t)ELEMENTS};
    const lockstep_wire *wire = rank->context;
    // Pages that no code writes take no memory.
    void *data = large_map(rank, PROT_READ);
    float *gradient = large_map(rank, PROT_READ | PROT_WRITE);
    const struct lockstep_parameter parameter = {.name = "large",
                                                 .dtype = LOCKSTEP_FLOAT32,
                                                 .dims = 1,
                                                 .shape = shape,
                                                 .data = data,
                                                 .gradient = gradient};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    lockstep_call *call;
    config.name = "large";
    config.parameters = &parameter;
    config.parameter_count = 1;
    config.wire = *wire;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_begin(rank, NULL);
    for (uint64_t i = 0; i < ELEMENTS; i++)
        gradient[i] = large_value(rank->rank, i);
    RANK_OK(rank, lockstep_call_begin(module, &call));
    RANK_OK(rank, lockstep_grad_ready(module, call, 0, NULL, NULL));
    RANK_OK(rank, lockstep_call_end(call));
    trainer_end(rank);
    large_check(rank, gradient);
    RANK_EQUAL(rank, trainer_report(rank).buckets, 1);
    RANK_TRUE(rank,
              trainer_report(rank).bytes_sent > (*wire == LOCKSTEP_WIRE_SAME ? BYTES : BYTES / 2));
    (void)munmap(data, BYTES);
    (void)munmap(gradient, BYTES);
}

static void large(lockstep_wire wire)
{
    static const struct setting setting = {
        .name = "loopback", .transport = LOCKSTEP_TRANSPORT_LOOPBACK, .world_size = 2};
    if (!getenv("LOCKSTEP_TEST_LARGE")) {
        print_message("it needs 5 GiB of memory: LOCKSTEP_TEST_LARGE=1\n");
        skip();
    }
    ranks_run(&setting, large_body, &wire);
}

static void case_25_above_two_gigabytes(void **state)
{
    (void)state;
    large(LOCKSTEP_WIRE_SAME);
}

static void case_25_above_two_gigabytes_as_bfloat16(void **state)
{
    (void)state;
    large(LOCKSTEP_WIRE_BFLOAT16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_25_above_two_gigabytes),
        cmocka_unit_test(case_25_above_two_gigabytes_as_bfloat16),
    };
    setenv("LOCKSTEP_TEST_SLOW", "20", 0); // The usual time limit of a world is too short here.
    return cmocka_run_group_tests_name("reducer: large", tests, NULL, NULL);
}
