// SPDX-License-Identifier: Apache-2.0
//
// The memory of the fake driver: what the host and what kernels may touch, copies, pointers, and
// what waits for the device. See test_fake_gpu_cuda.c.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/thread.h"
#include "tests/unit/worker/fake_rig.h"

enum {
    OLD = 7,
    NEW = 11
};

// ---- memory -------------------------------------------------------------------------------------

// Ends the child by the signal that touching the address raises, or with 0.
static void touch_in_a_child(uint64_t address, int signal_expected)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        const unsigned char byte = *(volatile unsigned char *)address;
        _exit(byte == 0xA5 ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (signal_expected)
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == signal_expected);
    else
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_the_host_cannot_touch_device_memory(void **state)
{
    (void)state;
    struct rig rig;
    uint64_t freed;
    rig_open(&rig, 0, CUDA_STREAM_NON_BLOCKING);
    touch_in_a_child(rig.memory, SIGSEGV);
    touch_in_a_child((uintptr_t)rig.host, 0); // Poisoned, and the host's.
    ok(cuda->mem_alloc(&freed, 100));
    ok(cuda->mem_free(freed));
    touch_in_a_child(freed, SIGSEGV);
    const unsigned char *bytes = fake->peek(rig.memory, RIG_BYTES);
    assert_int_equal(bytes[0], 0xA5);
    assert_int_equal(bytes[RIG_BYTES - 1], 0xA5);
    rig_close(&rig);
}

enum target {
    BEYOND,
    FREED,
    OTHER_DEVICE,
    PAGEABLE,
    NOTHING,
    TARGETS
};

static uint64_t bad_address(const struct rig *rig, enum target target)
{
    static uint32_t pageable[RIG_COUNT];
    uint64_t address = 0;
    void *context;
    switch (target) {
    case BEYOND:
        return rig->memory + 4;
    case FREED:
        ok(cuda->mem_alloc(&address, RIG_BYTES));
        ok(cuda->mem_free(address));
        return address;
    case OTHER_DEVICE:
        ok(cuda->device_primary_ctx_retain(&context, 1));
        ok(cuda->ctx_push_current(context));
        ok(cuda->mem_alloc(&address, RIG_BYTES));
        ok(cuda->ctx_pop_current(&context));
        return address;
    case PAGEABLE:
        return (uintptr_t)pageable;
    case NOTHING:
    case TARGETS:
        break;
    }
    return 0;
}

// A kernel that goes astray breaks the context: every call answers with that from then on.
static void test_kernels_may_not_touch_everything(void **state)
{
    (void)state;
    static const char *const words[TARGETS] = {"from byte 4 of device memory", "that was freed",
                                               "of device 1 is used on device 0",
                                               "no memory of the device", "no memory"};
    for (enum target target = 0; target < TARGETS; target++) {
        struct rig rig;
        void *event;
        fake_gpu_weather(NULL);
        rig_open(&rig, 0, CUDA_STREAM_NON_BLOCKING);
        ok(rig_fill_at(&rig, rig.a, bad_address(&rig, target), RIG_COUNT, 1));
        assert_int_equal(cuda->stream_synchronize(rig.a), CUDA_ILLEGAL_ADDRESS);
        assert_int_equal(rig_fill(&rig, rig.a, 1), CUDA_ILLEGAL_ADDRESS);
        assert_int_equal(cuda->event_create(&event, 0), CUDA_ILLEGAL_ADDRESS);
        assert_int_equal(cuda->mem_free(rig.memory), CUDA_ILLEGAL_ADDRESS);
        assert_complaint(words[target]);
        if (target == OTHER_DEVICE)
            ok(cuda->device_primary_ctx_release(1));
        rig_abandon(&rig);
    }
}

static void test_copies_are_checked(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t pageable[4] = {0};
    rig_open(&rig, 0, CUDA_STREAM_NON_BLOCKING);
    const uint64_t host = (uintptr_t)rig.host;
    void *const device = (void *)rig.memory;
    const int invalid = CUDA_INVALID_VALUE;
    assert_int_equal(cuda->memcpy_dtoh_async(device, rig.memory, 4, rig.a), invalid);
    assert_complaint("is device memory, not the host's");
    assert_int_equal(cuda->memcpy_htod_async(rig.memory, device, 4, rig.a), invalid);
    assert_int_equal(cuda->memcpy_htod_async((uintptr_t)pageable, pageable, 4, rig.a), invalid);
    assert_int_equal(cuda->memcpy_dtoh_async(pageable, rig.memory, RIG_BYTES + 4, rig.a), invalid);
    assert_int_equal(cuda->memset_d8_async((uintptr_t)pageable, 0, 4, rig.a), invalid);
    assert_int_equal(cuda->memset_d32_async(rig.memory + 2, 0, 1, rig.a), invalid);
    ok(cuda->memcpy_dtod_async(host, rig.memory, 8, rig.a)); // Pinned memory has an address there.
    ok(cuda->memcpy_async((uintptr_t)pageable, rig.memory, 8, rig.a));
    ok(cuda->stream_synchronize(rig.a));
    assert_int_equal(pageable[1], 0xA5A5A5A5);
    assert_int_equal(pageable[2], 0);
    rig_close(&rig);
}

// If the host's memory changes before the copy has its turn, the copy has the new bytes.
static void test_copies_from_the_host_are_late(void **state)
{
    (void)state;
    struct rig rig;
    uint32_t pageable = OLD;
    rig_open(&rig, 0, CUDA_STREAM_NON_BLOCKING);
    fake->hold(0, true);
    ok(cuda->memcpy_htod_async(rig.memory, &pageable, 4, rig.a));
    ok(rig_fetch(&rig, rig.a));
    pageable = NEW;
    assert_int_equal(cuda->stream_query(rig.a), CUDA_NOT_READY);
    fake->hold(0, false);
    ok(cuda->stream_synchronize(rig.a));
    assert_int_equal(rig.host[0], NEW);
    rig_close(&rig);
}

static void test_copies_between_devices(void **state)
{
    (void)state;
    struct rig first, second;
    rig_open(&first, 0, CUDA_STREAM_NON_BLOCKING);
    rig_open(&second, 1, CUDA_STREAM_NON_BLOCKING);
    ok(rig_fill(&second, second.a, NEW));
    ok(cuda->memcpy_peer_async(first.memory, first.context, second.memory, second.context,
                               RIG_BYTES, second.a));
    ok(cuda->stream_synchronize(second.a));
    assert_int_equal(cuda->memcpy_peer_async(first.memory, second.context, second.memory,
                                             second.context, RIG_BYTES, second.a),
                     CUDA_INVALID_VALUE);
    ok(cuda->ctx_set_current(first.context));
    ok(rig_fetch(&first, first.a));
    ok(cuda->stream_synchronize(first.a));
    assert_int_equal(first.host[RIG_COUNT - 1], NEW);
    ok(cuda->ctx_push_current(second.context));
    rig_close(&second);
    ok(cuda->ctx_set_current(first.context));
    rig_close(&first);
}

static void test_pointers_say_what_they_are(void **state)
{
    (void)state;
    struct rig rig;
    unsigned type;
    int device;
    uint64_t start;
    size_t bytes;
    uint32_t mine[4];
    rig_open(&rig, 3, CUDA_STREAM_NON_BLOCKING);
    const uint64_t inside = rig.memory + 100;
    ok(cuda->pointer_get_attribute(&type, CUDA_POINTER_MEMORY_TYPE, inside));
    assert_int_equal(type, CUDA_MEMORY_DEVICE);
    ok(cuda->pointer_get_attribute(&device, CUDA_POINTER_DEVICE, inside));
    assert_int_equal(device, 3);
    ok(cuda->pointer_get_attribute(&start, CUDA_POINTER_RANGE_START, inside));
    ok(cuda->pointer_get_attribute(&bytes, CUDA_POINTER_RANGE_BYTES, inside));
    assert_true(start == rig.memory && bytes == RIG_BYTES);
    ok(cuda->pointer_get_attribute(&type, CUDA_POINTER_MEMORY_TYPE, (uintptr_t)rig.host));
    assert_int_equal(type, CUDA_MEMORY_HOST);
    const uint64_t address = (uintptr_t)mine;
    const int invalid = CUDA_INVALID_VALUE;
    assert_int_equal(cuda->pointer_get_attribute(&type, CUDA_POINTER_MEMORY_TYPE, address),
                     invalid);
    ok(cuda->mem_host_register(mine, sizeof(mine), CUDA_HOST_REGISTER_PORTABLE));
    ok(cuda->pointer_get_attribute(&type, CUDA_POINTER_MEMORY_TYPE, address));
    assert_int_equal(type, CUDA_MEMORY_HOST);
    assert_int_equal(cuda->mem_host_register(&mine[1], 4, 0), CUDA_MEMORY_ALREADY_REGISTERED);
    ok(cuda->mem_host_unregister(mine));
    assert_int_equal(cuda->mem_host_unregister(mine), 713);
    rig_close(&rig);
}

// As on machines with coherent memory: for whole suites whose tensors come from malloc.
static void test_everywhere(void **state)
{
    (void)state;
    struct rig rig;
    unsigned type;
    int device;
    uint32_t *mine = calloc(RIG_COUNT, sizeof(*mine));
    fake_gpu_weather("FAKE_CUDA_EVERYWHERE=1", NULL);
    rig_open(&rig, 2, CUDA_STREAM_NON_BLOCKING);
    ok(cuda->pointer_get_attribute(&type, CUDA_POINTER_MEMORY_TYPE, (uintptr_t)mine));
    ok(cuda->pointer_get_attribute(&device, CUDA_POINTER_DEVICE, (uintptr_t)mine));
    assert_true(type == CUDA_MEMORY_DEVICE && device == 2);
    ok(rig_fill_at(&rig, rig.a, (uintptr_t)mine, RIG_COUNT, NEW));
    ok(cuda->memcpy_dtod_async(rig.memory, (uintptr_t)mine, RIG_BYTES, rig.a));
    ok(cuda->stream_synchronize(rig.a));
    assert_int_equal(mine[RIG_COUNT - 1], NEW);
    assert_int_equal(((uint32_t *)rig.memory)[RIG_COUNT - 1], NEW); // The host reaches it, too.
    // Allocated memory still has bounds.
    ok(rig_fill_at(&rig, rig.a, rig.memory + 4, RIG_COUNT, NEW));
    assert_int_equal(cuda->stream_synchronize(rig.a), CUDA_ILLEGAL_ADDRESS);
    rig_abandon(&rig);
    free(mine);
}

struct allocating {
    const struct rig *rig;
    _Atomic bool done;
};

static void allocate(void *argument)
{
    struct allocating *allocating = argument;
    uint64_t memory;
    ok(cuda->ctx_set_current(allocating->rig->context));
    ok(cuda->mem_alloc(&memory, 16));
    atomic_store(&allocating->done, true);
    ok(cuda->mem_free(memory));
}

// As reality may. A thread that allocates while a stream waits for that thread hangs.
static void test_allocating_waits_for_the_device(void **state)
{
    (void)state;
    for (int relaxed = 0; relaxed < 2; relaxed++) {
        struct rig rig;
        struct thread thread;
        fake_gpu_weather(relaxed ? "FAKE_CUDA_SYNC=0" : "FAKE_CUDA_SYNC=1", NULL);
        rig_open(&rig, 0, CUDA_STREAM_NON_BLOCKING);
        struct allocating allocating = {.rig = &rig};
        rig.host[0] = 0;
        ok(cuda->stream_wait_value32(rig.a, (uintptr_t)rig.host, 1, CUDA_WAIT_VALUE_AT_LEAST));
        assert_int_equal(thread_start(&thread, "allocate", allocate, &allocating), 0);
        if (relaxed)
            thread_join(&thread);
        else
            usleep(20000);
        assert_int_equal(atomic_load(&allocating.done), relaxed);
        __atomic_store_n(rig.host, 1, __ATOMIC_RELEASE);
        if (!relaxed)
            thread_join(&thread);
        ok(cuda->stream_synchronize(rig.a));
        rig_close(&rig);
    }
}

#define with_fair_weather(test) \
    cmocka_unit_test_setup_teardown(test, fake_weather_fair, fake_nothing_left)

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_fair_weather(test_the_host_cannot_touch_device_memory),
        with_fair_weather(test_kernels_may_not_touch_everything),
        with_fair_weather(test_copies_are_checked),
        with_fair_weather(test_copies_from_the_host_are_late),
        with_fair_weather(test_copies_between_devices),
        with_fair_weather(test_pointers_say_what_they_are),
        with_fair_weather(test_everywhere),
        with_fair_weather(test_allocating_waits_for_the_device),
    };
    return cmocka_run_group_tests(tests, fake_rig_load, NULL);
}
