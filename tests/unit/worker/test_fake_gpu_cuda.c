// SPDX-License-Identifier: Apache-2.0
//
// The fake driver against what is known of the real one: contexts, order within streams and between
// them, errors that stay, and faults that were asked for. Through the fence of
// worker/device/cuda.h, as the library uses it. A fake that forgives would let faults of the
// library pass.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/thread.h"
#include "tests/unit/worker/fake_rig.h"

enum {
    OLD = 7,
    NEW = 11,
    ROUNDS = 10
};

// ---- devices and contexts -----------------------------------------------------------------------

static void test_devices(void **state)
{
    (void)state;
    int count, major;
    struct cuda_uuid first, second;
    char name[100];
    fake_gpu_weather("FAKE_CUDA_DEVICES=3", "FAKE_CUDA_CAPABILITY=80", NULL);
    ok(cuda->init(0));
    ok(cuda->device_get_count(&count));
    assert_int_equal(count, 3);
    ok(cuda->device_get_uuid(&first, 0));
    ok(cuda->device_get_uuid(&second, 2));
    assert_memory_not_equal(&first, &second, sizeof(first));
    ok(cuda->device_get_name(name, sizeof(name), 1));
    assert_string_equal(name, "Fake GPU");
    ok(cuda->device_get_attribute(&major, CUDA_DEVICE_CAPABILITY_MAJOR, 2));
    assert_int_equal(major, 8);
    assert_int_equal(cuda->device_get(&count, 3), CUDA_INVALID_DEVICE);
    fake_gpu_weather("FAKE_CUDA_DEVICES=0", NULL);
    assert_int_equal(cuda->init(0), CUDA_NO_DEVICE);
}

static void test_contexts_are_current_by_thread_and_die(void **state)
{
    (void)state;
    void *context, *current;
    uint64_t memory;
    int device;
    ok(cuda->init(0));
    ok(cuda->device_primary_ctx_retain(&context, 2));
    assert_int_equal(cuda->mem_alloc(&memory, 16), CUDA_INVALID_CONTEXT);
    assert_complaint("no context is current");
    ok(cuda->ctx_push_current(context));
    ok(cuda->ctx_get_device(&device));
    assert_int_equal(device, 2);
    ok(cuda->ctx_pop_current(&current));
    assert_ptr_equal(current, context);
    ok(cuda->ctx_get_current(&current));
    assert_null(current);
    ok(cuda->device_primary_ctx_release(2));
    assert_int_equal(cuda->ctx_set_current(context), CUDA_INVALID_CONTEXT);
    void *again;
    ok(cuda->device_primary_ctx_retain(&again, 2));
    assert_int_equal(cuda->ctx_set_current(context), CUDA_INVALID_CONTEXT);
    ok(cuda->device_primary_ctx_release(2));
}

// The driver does not survive a fork: its threads are the parent's.
static void test_a_child_has_no_driver(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, 0, CUDA_STREAM_NON_BLOCKING);
    const pid_t child = fork();
    if (child == 0)
        _exit(cuda->init(0) == CUDA_NOT_INITIALIZED &&
                      cuda->stream_synchronize(rig.a) == CUDA_NOT_INITIALIZED
                  ? 0
                  : 1);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    rig_close(&rig);
}

// ---- order --------------------------------------------------------------------------------------

static void test_a_stream_is_in_order(void **state)
{
    (void)state;
    struct rig rig;
    fake_gpu_weather("FAKE_CUDA_DELAY_US=300", NULL);
    rig_open(&rig, 0, CUDA_STREAM_NON_BLOCKING);
    uint64_t other;
    ok(cuda->mem_alloc(&other, RIG_BYTES));
    for (uint32_t i = 0; i < ROUNDS; i++) {
        struct fake_add add = {(void *)rig.memory, (const void *)other, RIG_COUNT};
        void *parameters[] = {&add};
        ok(rig_fill(&rig, rig.a, 5 * i));
        ok(cuda->memset_d32_async(other, 3, RIG_COUNT, rig.a));
        ok(cuda->launch_kernel(rig.add, 1, 1, 1, 1, 1, 1, 0, rig.a, parameters, NULL));
        ok(cuda->memcpy_dtod_async(rig.memory, rig.memory + 4, RIG_BYTES - 4, rig.a));
        ok(rig_fetch(&rig, rig.a));
        ok(cuda->stream_synchronize(rig.a));
        assert_int_equal(rig.host[0], 5 * i + 3);
        assert_int_equal(rig.host[RIG_COUNT - 1], 5 * i + 3);
    }
    ok(cuda->mem_free(other));
    rig_close(&rig);
}

struct filling {
    struct rig rig;
    atomic_bool done;
};

static void fill_often(void *argument)
{
    struct filling *filling = argument;
    ok(cuda->ctx_set_current(filling->rig.context));
    for (uint32_t i = 0; i < 2000; i++)
        ok(rig_fill_at(&filling->rig, filling->rig.a, filling->rig.memory, 1, i));
    atomic_store(&filling->done, true);
}

// As on a device: a thread that launches more than a queue holds waits for the queue.
static void test_a_queue_has_an_end(void **state)
{
    (void)state;
    struct filling filling = {.done = false};
    struct thread thread;
    rig_open(&filling.rig, 0, CUDA_STREAM_NON_BLOCKING);
    fake->hold(0, true);
    assert_int_equal(thread_start(&thread, "fill", fill_often, &filling), 0);
    usleep(20000);
    assert_false(atomic_load(&filling.done));
    fake->hold(0, false);
    thread_join(&thread);
    ok(rig_fetch(&filling.rig, filling.rig.a));
    ok(cuda->stream_synchronize(filling.rig.a));
    assert_int_equal(filling.rig.host[0], 1999);
    rig_close(&filling.rig);
}

// The producer fills on one stream, the consumer fetches on another one.
static uint32_t produce_and_fetch(struct rig *rig, void *producer, void *consumer, void *event)
{
    ok(rig_fill(rig, producer, OLD));
    ok(cuda->stream_synchronize(producer));
    ok(rig_fill(rig, producer, NEW));
    if (event) {
        ok(cuda->event_record(event, producer));
        ok(cuda->stream_wait_event(consumer, event, 0));
    }
    ok(rig_fetch(rig, consumer));
    ok(cuda->stream_synchronize(consumer));
    const uint32_t seen = rig->host[RIG_COUNT / 2];
    ok(cuda->stream_synchronize(producer));
    return seen;
}

// This is what the fakes are for: it must be seen each time, not now and then. A trainer's stream
// that is not waited for is lazy; a library's, of higher priority, is late.
static void test_a_missing_wait_gives_old_data(void **state)
{
    (void)state;
    static const char *const weathers[] = {"FAKE_CUDA_LAZY_US=5000000",
                                           "FAKE_CUDA_URGENT_US=50000"};
    for (size_t i = 0; i < 2; i++) {
        struct rig rig;
        void *event;
        fake_gpu_weather(weathers[i], NULL);
        rig_open(&rig, 0, CUDA_STREAM_NON_BLOCKING);
        void *producer = i == 0 ? rig.a : rig.b;
        void *consumer = i == 0 ? rig.b : rig.a;
        ok(cuda->event_create(&event, CUDA_EVENT_DISABLE_TIMING));
        for (int round = 0; round < 2; round++) {
            assert_int_equal(produce_and_fetch(&rig, producer, consumer, NULL), OLD);
            assert_int_equal(produce_and_fetch(&rig, producer, consumer, event), NEW);
        }
        ok(cuda->event_destroy(event));
        rig_close(&rig);
    }
}

static void test_a_wait_is_for_the_record_that_was_the_latest(void **state)
{
    (void)state;
    struct rig rig;
    void *event;
    rig_open(&rig, 0, CUDA_STREAM_NON_BLOCKING);
    rig.host[0] = 0;
    ok(cuda->event_create(&event, 0));
    ok(cuda->event_query(event)); // Never recorded: nothing to wait for.
    ok(cuda->stream_wait_event(rig.b, event, 0));
    ok(cuda->event_record(event, rig.a));
    ok(cuda->stream_wait_event(rig.b, event, 0));
    ok(cuda->stream_wait_value32(rig.a, (uintptr_t)rig.host, 1, CUDA_WAIT_VALUE_AT_LEAST));
    ok(cuda->event_record(event, rig.a));
    ok(cuda->stream_synchronize(rig.b));
    assert_int_equal(cuda->event_query(event), CUDA_NOT_READY);
    __atomic_store_n(rig.host, 1, __ATOMIC_RELEASE);
    ok(cuda->event_synchronize(event));
    ok(cuda->event_query(event));
    ok(cuda->event_destroy(event));
    assert_int_equal(cuda->event_query(event), CUDA_INVALID_HANDLE);
    rig_close(&rig);
}

static void test_events_tell_time(void **state)
{
    (void)state;
    struct rig rig;
    void *events[2];
    float ms;
    rig_open(&rig, 0, CUDA_STREAM_NON_BLOCKING);
    fake_gpu_weather("FAKE_CUDA_KERNEL_US=3000", NULL);
    ok(cuda->event_create(&events[0], 0));
    ok(cuda->event_create(&events[1], 0));
    ok(cuda->event_record(events[0], rig.a));
    ok(rig_fill(&rig, rig.a, NEW));
    ok(cuda->event_record(events[1], rig.a));
    assert_int_equal(cuda->event_elapsed_time(&ms, events[0], events[1]), CUDA_NOT_READY);
    ok(cuda->event_synchronize(events[1]));
    ok(cuda->event_elapsed_time(&ms, events[0], events[1]));
    assert_true(ms >= 3);
    ok(cuda->event_destroy(events[0]));
    ok(cuda->event_destroy(events[1]));
    rig_close(&rig);
}

// Blocking streams are ordered with the legacy stream, in both directions; others are not.
static void test_the_legacy_stream(void **state)
{
    (void)state;
    void *const legacy[] = {NULL, CUDA_STREAM_LEGACY};
    fake_gpu_weather("FAKE_CUDA_LAZY_US=5000000", NULL);
    for (size_t i = 0; i < 2; i++)
        for (unsigned flags = 0; flags < 2; flags++) {
            struct rig rig;
            const uint32_t expected = flags == CUDA_STREAM_NON_BLOCKING ? OLD : NEW;
            rig_open(&rig, 1, flags);
            ok(rig_fill(&rig, rig.a, OLD));
            ok(cuda->stream_synchronize(rig.a));
            ok(rig_fill(&rig, rig.a, NEW));
            ok(rig_fetch(&rig, legacy[i]));
            ok(cuda->stream_synchronize(legacy[i]));
            assert_int_equal(rig.host[0], expected);
            ok(rig_fill(&rig, CUDA_STREAM_PER_THREAD, OLD)); // Is blocking.
            ok(cuda->stream_synchronize(CUDA_STREAM_PER_THREAD));
            ok(rig_fill(&rig, legacy[i], NEW));
            ok(rig_fetch(&rig, rig.b));
            ok(cuda->stream_synchronize(rig.b));
            assert_int_equal(rig.host[0], expected);
            ok(cuda->stream_synchronize(legacy[i]));
            rig_close(&rig);
        }
}

struct noted {
    const struct rig *rig;
    uint32_t seen;
    int result;
};

static void note(void *argument)
{
    struct noted *noted = argument;
    noted->seen = noted->rig->host[0];
    noted->result = cuda->stream_query(noted->rig->b);
}

static void test_host_functions_are_in_order_and_call_nothing(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, 0, CUDA_STREAM_NON_BLOCKING);
    struct noted noted = {.rig = &rig};
    ok(rig_fill(&rig, rig.a, NEW));
    ok(rig_fetch(&rig, rig.a));
    ok(cuda->launch_host_func(rig.a, note, &noted));
    ok(cuda->stream_synchronize(rig.a));
    assert_int_equal(noted.seen, NEW);
    assert_int_equal(noted.result, 800);
    assert_complaint("host function");
    rig_close(&rig);
}

static void test_words_of_streams(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, 0, CUDA_STREAM_NON_BLOCKING);
    rig.host[0] = 0;
    rig.host[1] = UINT32_MAX;
    ok(cuda->stream_wait_value32(rig.a, (uintptr_t)&rig.host[0], 5, CUDA_WAIT_VALUE_EQUAL));
    ok(cuda->stream_wait_value32(rig.a, (uintptr_t)&rig.host[1], 1, CUDA_WAIT_VALUE_AT_LEAST));
    assert_int_equal(cuda->stream_query(rig.a), CUDA_NOT_READY);
    ok(cuda->stream_write_value32(rig.b, (uintptr_t)&rig.host[1], 2, 0)); // Cyclically greater.
    ok(cuda->stream_write_value32(rig.b, (uintptr_t)&rig.host[0], 5, 0));
    ok(cuda->stream_synchronize(rig.a));
    rig_close(&rig);
}

// ---- faults that were asked for -----------------------------------------------------------------

static void test_calls_fail(void **state)
{
    (void)state;
    struct rig rig;
    uint64_t memory;
    rig_open(&rig, 0, CUDA_STREAM_NON_BLOCKING);
    fake_gpu_weather("FAKE_CUDA_FAIL=cuLaunchKernel:3:1,cuMemAlloc_v2:1+:2,cuStreamQuery:1:999@5",
                     NULL);
    ok(rig_fill(&rig, rig.a, 1));
    ok(rig_fill(&rig, rig.a, 1));
    assert_int_equal(rig_fill(&rig, rig.a, 1), CUDA_INVALID_VALUE);
    ok(rig_fill(&rig, rig.a, 1));
    assert_int_equal(cuda->mem_alloc(&memory, 1), CUDA_OUT_OF_MEMORY);
    assert_int_equal(cuda->mem_alloc(&memory, 1), CUDA_OUT_OF_MEMORY);
    ok(cuda->stream_synchronize(rig.a));
    ok(cuda->stream_query(rig.a)); // Is for device 5.
    assert_int_equal(fake->calls("cuLaunchKernel"), 4);
    assert_int_equal(fake->calls("cuMemAlloc_v2"), 2);
    rig_close(&rig);
}

static void count_it(void *argument)
{
    atomic_fetch_add((_Atomic int *)argument, 1);
}

// Queued operations are dropped, threads that wait are told, and other devices do not notice.
static void test_a_device_is_lost(void **state)
{
    (void)state;
    static const char *const ways[] = {"FAKE_CUDA_FAIL=kernel:2:719@1",
                                       "FAKE_CUDA_FAIL=fake_fill:2:719@1",
                                       "FAKE_CUDA_FAIL=op:2:719@1"};
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct rig other, rig;
        _Atomic int called = 0;
        fake_gpu_weather(NULL);
        rig_open(&other, 0, CUDA_STREAM_NON_BLOCKING);
        rig_open(&rig, 1, CUDA_STREAM_NON_BLOCKING);
        fake_gpu_weather(ways[i], NULL);
        ok(rig_fill(&rig, rig.a, 1));
        (void)rig_fill(&rig, rig.a, 2);
        (void)cuda->launch_host_func(rig.a, count_it, &called);
        assert_int_equal(cuda->stream_synchronize(rig.a), CUDA_LAUNCH_FAILED);
        assert_int_equal(cuda->stream_query(rig.b), CUDA_LAUNCH_FAILED);
        rig_abandon(&rig);
        ok(cuda->ctx_set_current(other.context));
        ok(rig_fill(&other, other.a, 3));
        ok(cuda->launch_host_func(other.a, count_it, &called));
        ok(cuda->stream_synchronize(other.a));
        assert_int_equal(atomic_load(&called), 1);
        rig_close(&other);
    }
}

static void test_a_stream_hangs_until_its_device_is_lost(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, 0, CUDA_STREAM_NON_BLOCKING);
    fake_gpu_weather("FAKE_CUDA_FAIL=fake_add_u32:1:hang", NULL);
    struct fake_add add = {(void *)rig.memory, (const void *)rig.memory, RIG_COUNT};
    void *parameters[] = {&add};
    ok(cuda->launch_kernel(rig.add, 1, 1, 1, 1, 1, 1, 0, rig.a, parameters, NULL));
    ok(rig_fill(&rig, rig.b, 1));
    ok(cuda->stream_synchronize(rig.b));
    usleep(5000);
    assert_int_equal(cuda->stream_query(rig.a), CUDA_NOT_READY);
    fake->lose(0, 999);
    assert_int_equal(cuda->stream_synchronize(rig.a), 999);
    rig_abandon(&rig);
}

static void test_the_fakes_know_the_kernels(void **state)
{
    (void)state;
    struct rig rig;
    void *function;
    rig_open(&rig, 0, CUDA_STREAM_NON_BLOCKING);
    ok(cuda->module_get_function(&function, rig.module, "lockstep_pack"));
    assert_int_equal(cuda->module_get_function(&function, rig.module, "nonsense"), 500);
    rig_close(&rig);
}

#define with_fair_weather(test) \
    cmocka_unit_test_setup_teardown(test, fake_weather_fair, fake_nothing_left)

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_fair_weather(test_devices),
        with_fair_weather(test_contexts_are_current_by_thread_and_die),
        with_fair_weather(test_a_child_has_no_driver),
        with_fair_weather(test_a_stream_is_in_order),
        with_fair_weather(test_a_queue_has_an_end),
        with_fair_weather(test_a_missing_wait_gives_old_data),
        with_fair_weather(test_a_wait_is_for_the_record_that_was_the_latest),
        with_fair_weather(test_events_tell_time),
        with_fair_weather(test_the_legacy_stream),
        with_fair_weather(test_host_functions_are_in_order_and_call_nothing),
        with_fair_weather(test_words_of_streams),
        with_fair_weather(test_calls_fail),
        with_fair_weather(test_a_device_is_lost),
        with_fair_weather(test_a_stream_hangs_until_its_device_is_lost),
        with_fair_weather(test_the_fakes_know_the_kernels),
    };
    return cmocka_run_group_tests(tests, fake_rig_load, NULL);
}
