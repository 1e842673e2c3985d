// SPDX-License-Identifier: Apache-2.0
//
// GPUs of a world: the ranks that are told of them, and the worlds that do not form because of
// them. All workers that are refused get the same sentence.

#include "tests/unit/coordinator/story.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define NCCL 22105

static int setup(void **state)
{
    static struct story story;
    story_begin(&story);
    *state = &story;
    return 0;
}

static int teardown(void **state)
{
    story_end(*state);
    return 0;
}

// Worker `peer` of job "j" on host h<peer>, whose GPU's uuid begins with `gpu`; 0: it has none.
static void join(struct story *story, uint32_t world, uint32_t peer, uint8_t gpu, uint32_t nccl)
{
    char host[16];
    snprintf(host, sizeof(host), "h%" PRIu32, peer);
    struct up_hello hello = story_hello("j", world, host);
    hello.has_gpu = gpu != 0;
    hello.gpu.uuid.bytes[0] = gpu;
    hello.gpu.capability = 90;
    hello.gpu.nccl_version = nccl;
    if (gpu != 0 && nccl == 0)
        strcpy(hello.gpu.nccl_missing, "cannot load\nlibnccl.so.2");
    story_say_hello(story, peer, &hello);
}

// The last `world` streams were refused with this sentence, and nothing is left of them.
static void expect_refused(struct story *story, uint32_t world, const char *text)
{
    for (uint32_t peer = 1; peer <= world; peer++) {
        assert_int_equal(story->last[peer].kind, DOWN_REFUSED);
        assert_int_equal(story->last[peer].u.refused.refusal, REFUSAL_INVALID);
        assert_string_equal(story->last[peer].u.refused.text, text);
        assert_true(story->closed[peer]);
    }
    assert_int_equal(story_job(story, 0).state, JOB_GATHERING);
    assert_int_equal(story_job(story, 0).joined, 0);
    assert_int_equal(coordinator_deadline(story->core), UINT64_MAX);
    story_forget(story);
}

static void test_all_are_told_who_has_a_gpu(void **state)
{
    struct story *story = *state;
    join(story, 3, 1, 1, NCCL);
    join(story, 3, 2, 0, 0);
    join(story, 3, 3, 3, NCCL);
    story_expect(story, "1 > hello job j world 3 host h1\n"
                        "1 < welcome\n"
                        "2 > hello job j world 3 host h2\n"
                        "2 < welcome\n"
                        "3 > hello job j world 3 host h3\n"
                        "3 < welcome\n"
                        "1 < generation 1: rank 0 of 3, local 0 of 1, peers 1@w2 2@w3, gpus 0 2\n"
                        "2 < generation 1: rank 1 of 3, local 0 of 1, peers 0@w1 2@w3, gpus 0 2\n"
                        "3 < generation 1: rank 2 of 3, local 0 of 1, peers 0@w1 1@w2, gpus 0 2\n");
}

// Ranks, not the order of arrival.
static void test_bits_are_of_ranks(void **state)
{
    struct story *story = *state;
    for (uint32_t peer = 1; peer <= 70; peer++) {
        struct up_hello hello = story_hello("j", 70, "a");
        hello.has_rank_hint = true;
        hello.rank_hint = 70 - peer;
        hello.has_gpu = peer == 1 || peer == 5;
        hello.gpu.uuid.bytes[1] = (uint8_t)peer;
        hello.gpu.nccl_version = NCCL;
        story_say_hello(story, peer, &hello);
    }
    for (uint32_t peer = 1; peer <= 70; peer++) {
        const struct down_generation *start = &story->last[peer].u.generation_start;
        assert_int_equal(story->last[peer].kind, DOWN_GENERATION);
        assert_int_equal(start->gpus[0], 0);
        assert_int_equal(start->gpus[1], 1 << (69 - 64) | 1 << (65 - 64));
        assert_int_equal(start->gpus[2], 0);
    }
}

// A worker of job "j" on that host, with a GPU or without.
static void join_on(struct story *story, uint32_t world, uint32_t peer, const char *host, bool gpu)
{
    struct up_hello hello = story_hello("j", world, host);
    hello.has_gpu = gpu;
    hello.gpu.uuid.bytes[0] = (uint8_t)peer;
    hello.gpu.nccl_version = NCCL;
    story_say_hello(story, peer, &hello);
}

// Worlds by their workers, a letter for the host of each: a capital has a GPU.
static void test_gpus_of_one_host_meet(void **state)
{
    static const struct {
        const char *world;
        bool meet;
    } cases[] = {
        {"AAa", true},  {"AAb", true},     {"bAcA", true},   {"AAABB", false},
        {"ABa", false}, {"Aab", false},    {"AA", false},    {"ab", false},
        {"A", false},   {"AaAaAab", true}, {"AABBc", false}, {"AB", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        static struct story story;
        const uint32_t world = (uint32_t)strlen(cases[i].world);
        story_begin(&story);
        for (uint32_t w = 0; w < world; w++) {
            const char letter = cases[i].world[w];
            const char host[] = {(char)(letter | 0x20), '\0'};
            join_on(&story, world, w + 1, host, letter < 'a');
        }
        for (uint32_t peer = 1; peer <= world; peer++) {
            assert_int_equal(story.last[peer].kind, DOWN_GENERATION);
            assert_int_equal(story.last[peer].u.generation_start.gpus_meet, cases[i].meet);
        }
        story_end(&story);
    }
}

// A rank with the only GPU of the world has no peer for NCCL.
static void test_one_gpu_needs_no_nccl(void **state)
{
    struct story *story = *state;
    join(story, 2, 1, 1, 0);
    join(story, 2, 2, 0, 0);
    story_expect_piece(story, "2 < generation 1: rank 1 of 2, local 0 of 1, peers 0@w1, gpus 0\n");
}

// A worker whose GPU cannot be used joins all the same, so that the others learn of it at once. Its
// fault is reported before other faults.
static void test_a_gpu_that_cannot_be_used(void **state)
{
    struct story *story = *state;
    struct up_hello hello = story_hello("j", 3, "b");
    snprintf(hello.gpu_problem, sizeof(hello.gpu_problem), "cuda:9: cuDeviceGet:\n(101)");
    join(story, 3, 1, 1, 0);
    story_say_hello(story, 2, &hello);
    assert_int_equal(story->last[2].kind, DOWN_WELCOME);
    join(story, 3, 3, 1, 0);
    expect_refused(story, 3,
                   "the worker on b (pid 102) cannot compute on its GPU, cuda:9: "
                   "cuDeviceGet:?(101); LOCKSTEP_DEVICE=none does without");
}

// A worker whose GPU cannot be used is refused in a world of one, too, where no rank has a GPU.
static void test_a_world_of_one_without_its_gpu(void **state)
{
    struct story *story = *state;
    struct up_hello hello = story_hello("j", 1, "a");
    snprintf(hello.gpu_problem, sizeof(hello.gpu_problem), "cuda:0: no driver");
    story_say_hello(story, 1, &hello);
    expect_refused(story, 1,
                   "the worker on a (pid 101) cannot compute on its GPU, cuda:0: no driver; "
                   "LOCKSTEP_DEVICE=none does without");
}

static void test_two_workers_on_one_gpu(void **state)
{
    struct story *story = *state;
    join(story, 3, 1, 0xab, NCCL);
    join(story, 3, 2, 7, 21400); // Too old as well; what comes first is said.
    join(story, 3, 3, 0xab, NCCL);
    expect_refused(story, 3,
                   "the worker on h1 (pid 101) and the worker on h3 (pid 103) compute on the same "
                   "GPU, GPU-ab000000-0000-0000-0000-000000000000: give each worker one of its own "
                   "(LOCKSTEP_DEVICE=cuda:N, or CUDA_VISIBLE_DEVICES), or none "
                   "(LOCKSTEP_DEVICE=none)");
}

// A worker of job "j" with a GPU of its own, and one for further replicas besides.
static void join_with_replicas(struct story *story, uint32_t world, uint32_t peer, uint8_t gpu,
                               uint8_t further)
{
    struct up_hello hello = story_hello("j", world, "a");
    hello.has_gpu = true;
    hello.gpu.uuid.bytes[0] = gpu;
    hello.gpu.nccl_version = NCCL;
    hello.further_gpu_count = 2;
    hello.further_gpus[0].bytes[0] = (uint8_t)(gpu + 100);
    hello.further_gpus[1].bytes[0] = further;
    story_say_hello(story, peer, &hello);
}

// Each worker's own, and its further one.
static void test_two_workers_with_replicas_on_one_gpu(void **state)
{
    static const uint8_t shared[][4] = {
        {1, 0xab, 0xab, 3}, {0xab, 3, 1, 0xab}, {1, 0xab, 2, 0xab}, {0xab, 3, 0xab, 4}};
    struct story *story = *state;
    uint32_t peer = 0;
    for (size_t i = 0; i < sizeof(shared) / sizeof(shared[0]); i++) {
        join_with_replicas(story, 2, ++peer, shared[i][0], shared[i][1]);
        join_with_replicas(story, 2, ++peer, shared[i][2], shared[i][3]);
        assert_int_equal(story->last[peer].kind, DOWN_REFUSED);
        assert_non_null(strstr(story->last[peer].u.refused.text,
                               " compute on the same GPU, GPU-ab000000-0000-0000-0000-"
                               "000000000000: give each worker one of its own "));
        assert_string_equal(story->last[peer - 1].u.refused.text, story->last[peer].u.refused.text);
    }
    join_with_replicas(story, 2, ++peer, 1, 3);
    join_with_replicas(story, 2, ++peer, 2, 4);
    assert_int_equal(story->last[peer].kind, DOWN_GENERATION);
}

static void test_workers_without_a_gpu_share_none(void **state)
{
    struct story *story = *state;
    struct up_hello hello = story_hello("j", 2, "a");
    hello.gpu.uuid.bytes[0] = 9; // The uuid of a GPU that it does not have.
    story_say_hello(story, 1, &hello);
    story_say_hello(story, 2, &hello);
    assert_int_equal(story->last[2].kind, DOWN_GENERATION);
}

static void test_no_nccl(void **state)
{
    struct story *story = *state;
    join(story, 3, 1, 1, NCCL);
    join(story, 3, 2, 0, 0);
    join(story, 3, 3, 2, 0);
    expect_refused(story, 3,
                   "the worker on h3 (pid 103) computes on a GPU and has no NCCL: cannot "
                   "load?libnccl.so.2; workers with GPUs exchange gradients by NCCL, 2.18 or "
                   "newer: install it, or name its file with LOCKSTEP_NCCL_LIBRARY");
}

static void test_an_old_nccl(void **state)
{
    struct story *story = *state;
    join(story, 2, 1, 1, 21703);
    join(story, 2, 2, 2, 21703);
    expect_refused(story, 2,
                   "the worker on h1 (pid 101) has NCCL 2.17.3; workers with GPUs exchange "
                   "gradients by NCCL, 2.18 or newer: install it, or name its file with "
                   "LOCKSTEP_NCCL_LIBRARY");
    join(story, 2, 3, 1, LOCKSTEP_NCCL_OLDEST);
    join(story, 2, 4, 2, LOCKSTEP_NCCL_OLDEST);
    assert_int_equal(story->last[4].kind, DOWN_GENERATION);
}

static void test_two_versions_of_nccl(void **state)
{
    struct story *story = *state;
    join(story, 3, 1, 1, 22105);
    join(story, 3, 2, 0, 0);
    join(story, 3, 3, 2, 22003);
    expect_refused(story, 3,
                   "the worker on h1 (pid 101) has NCCL 2.21.5, the worker on h3 (pid 103) has "
                   "2.20.3: install the same NCCL for all workers with GPUs");
    // A patch is none.
    join(story, 2, 4, 1, 22105);
    join(story, 2, 5, 2, 22100);
    assert_int_equal(story->last[5].kind, DOWN_GENERATION);
}

// The window of an elastic world ends in a tick, which forms it or turns it away like a hello.
static void test_a_tick_turns_away(void **state)
{
    struct story *story = *state;
    struct up_hello hello = story_hello("j", 2, "a");
    hello.world_max = 4;
    hello.window_ms = 500;
    hello.has_gpu = true;
    hello.gpu.nccl_version = NCCL;
    story_say_hello(story, 1, &hello);
    story_say_hello(story, 2, &hello);
    assert_int_equal(story->last[2].kind, DOWN_WELCOME);
    story_sleep(story, 500);
    assert_non_null(strstr(story->last[1].u.refused.text, "compute on the same GPU"));
    expect_refused(story, 2, story->last[1].u.refused.text);
    // The next ones are a world of their own.
    join(story, 2, 3, 1, NCCL);
    join(story, 2, 4, 2, NCCL);
    assert_int_equal(story->last[4].kind, DOWN_GENERATION);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_all_are_told_who_has_a_gpu),
        TEST(test_bits_are_of_ranks),
        cmocka_unit_test(test_gpus_of_one_host_meet),
        TEST(test_one_gpu_needs_no_nccl),
        TEST(test_a_gpu_that_cannot_be_used),
        TEST(test_a_world_of_one_without_its_gpu),
        TEST(test_two_workers_on_one_gpu),
        TEST(test_two_workers_with_replicas_on_one_gpu),
        TEST(test_workers_without_a_gpu_share_none),
        TEST(test_no_nccl),
        TEST(test_an_old_nccl),
        TEST(test_two_versions_of_nccl),
        TEST(test_a_tick_turns_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
