// SPDX-License-Identifier: Apache-2.0
//
// Processes with a (fake) device each, whose buckets NCCL carries, or two with one that meet beside
// one without, and one of them is killed while the others wait for it in an allreduce. They learn
// it from their links, give the communicator up within their time, and hold the gradients that they
// had. Then the survivors form another world and reduce there what they kept.
//
// The processes are forks of this one that load the fakes themselves, because no driver survives a
// fork.

#include "base/clock.h"
#include "protos/topology.h"
#include "tests/support/bounds.h"
#include "tests/support/fake_gpu.h"
#include "worker/device/cuda.h"
#include "worker/device/device.h"
#include "worker/device/open.h"
#include "worker/kernels/kernels.h"
#include "worker/transport/lifecycle.h"
#include "worker/transport/transport.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORLD 3
#define ALL ((1u << WORLD) - 1)
#define ELEMENTS 5000
#define ABORT_MS 400
#define BOUND_MS 30000

// Memory that the processes share.
struct meeting {
    pthread_barrier_t all;
    pthread_barrier_t survivors;
    char addresses[WORLD][LOCKSTEP_ADDRESS_BYTES];
};

struct rank {
    struct meeting *meeting;
    uint32_t rank;
    uint64_t devices; // Set of ranks.
    bool abort_hangs;
    struct device *device; // NULL: it has none.
    struct transport *transport;
    void *stream;
    uint64_t gradient; // [ELEMENTS] of float32, of the device, or `host`.
    float *host; // [ELEMENTS]
    uint32_t formed;
    uint32_t done;
    uint32_t lost;
};

static void require(const struct rank *rank, bool holds, const char *what)
{
    if (holds)
        return;
    const char *failed = rank->device ? device_failed(rank->device) : NULL;
    fprintf(stderr, "rank %u: %s (%u formed, %u done, %u lost, device: %s)\n", rank->rank, what,
            rank->formed, rank->done, rank->lost, failed ? failed : "good");
    _exit(1);
}

#define REQUIRE(rank, condition) require(rank, condition, #condition)

// ---- events -------------------------------------------------------------------------------------

static void on_formed(void *context)
{
    ((struct rank *)context)->formed++;
}

static void on_done(void *context, struct collective *collective)
{
    (void)collective;
    ((struct rank *)context)->done++;
}

static void on_lost(void *context, uint32_t peer, enum peer_loss loss, const char *text)
{
    (void)peer;
    (void)loss;
    (void)text;
    ((struct rank *)context)->lost++;
}

static void until(struct rank *rank, const uint32_t *count, uint32_t least, const char *what)
{
    const uint64_t since_ms = clock_now_ms();
    while (*count < least) {
        transport_progress(rank->transport, 50);
        require(rank, clock_now_ms() - since_ms < test_bound_ms(BOUND_MS), what);
    }
}

// ---- a process ----------------------------------------------------------------------------------

static void rank_open_device(struct rank *rank, const struct cuda *cuda)
{
    char choice[32];
    char error[256] = "";
    void *context = NULL;
    snprintf(choice, sizeof(choice), "cuda:%u", rank->rank);
    require(rank, device_open(choice, &rank->device, error, sizeof(error)) == 0, error);
    REQUIRE(rank, cuda->device_primary_ctx_retain(&context, (int)rank->rank) == 0);
    REQUIRE(rank, cuda->ctx_set_current(context) == 0);
    REQUIRE(rank,
            cuda->stream_create_with_priority(&rank->stream, CUDA_STREAM_NON_BLOCKING, 0) == 0);
    REQUIRE(rank, cuda->mem_alloc(&rank->gradient, ELEMENTS * sizeof(float)) == 0);
    REQUIRE(rank, cuda->mem_host_alloc((void **)&rank->host, ELEMENTS * sizeof(float), 0) == 0);
}

static void rank_open(struct rank *rank, const struct cuda *cuda)
{
    char error[256] = "";
    if (rank->devices >> rank->rank & 1) {
        rank_open_device(rank, cuda);
    } else {
        rank->host = calloc(ELEMENTS, sizeof(float));
        rank->gradient = (uint64_t)(uintptr_t)rank->host;
    }
    const struct transport_config config = {
        .kind = TRANSPORT_TCP,
        .host = "127.0.0.1",
        .device = rank->device,
        .abort_ms = ABORT_MS,
        .events = {.formed = on_formed, .done = on_done, .peer_lost = on_lost, .context = rank}};
    require(rank, transport_open(&config, &rank->transport, error, sizeof(error)) == 0, error);
    snprintf(rank->meeting->addresses[rank->rank], LOCKSTEP_ADDRESS_BYTES, "%s",
             transport_address(rank->transport));
}

static void rank_form(struct rank *rank, uint32_t world_size, uint64_t generation)
{
    uint32_t ranks[LOCKSTEP_MAX_NEIGHBOURS];
    struct peer peers[LOCKSTEP_MAX_NEIGHBOURS] = {0};
    const uint32_t count = topology_neighbours(rank->rank, world_size, ranks);
    for (uint32_t i = 0; i < count; i++) {
        peers[i].rank = ranks[i];
        memcpy(peers[i].address, rank->meeting->addresses[ranks[i]], LOCKSTEP_ADDRESS_BYTES);
    }
    const struct transport_world world = {.generation = {.number = generation, .incarnation = 5},
                                          .rank = rank->rank,
                                          .world_size = world_size,
                                          .chunk_bytes = 65536,
                                          .devices = {rank->devices & ((1u << world_size) - 1)},
                                          .devices_meet = true,
                                          .peer_count = count,
                                          .peers = peers,
                                          .form_timeout_ms = test_bound_ms(BOUND_MS)};
    const uint32_t before = rank->formed;
    REQUIRE(rank, transport_form(rank->transport, &world) == 0);
    until(rank, &rank->formed, before + 1, "the world does not form");
}

static void rank_copy(const struct rank *rank, const struct cuda *cuda, bool to_device)
{
    const uint64_t host = (uint64_t)(uintptr_t)rank->host;
    if (!rank->device)
        return;
    REQUIRE(rank,
            cuda->memcpy_async(to_device ? rank->gradient : host, to_device ? host : rank->gradient,
                               ELEMENTS * sizeof(float), rank->stream) == 0);
    REQUIRE(rank, cuda->stream_synchronize(rank->stream) == 0);
}

static void rank_launch(struct rank *rank, struct collective *collective, struct extent *extent)
{
    float *memory = (float *)(uintptr_t)rank->gradient;
    *extent = (struct extent){.in = memory, .out = memory, .elements = ELEMENTS};
    *collective = (struct collective){.dtype = DTYPE_FLOAT32,
                                      .op = REDUCE_MEAN,
                                      .tag = {.step = 1, .space = 2},
                                      .extents = extent,
                                      .extent_count = 1,
                                      .elements = ELEMENTS,
                                      .weight = 1,
                                      .on_devices = true,
                                      .device = rank->device};
    transport_launch(rank->transport, collective);
}

static bool rank_holds(const struct rank *rank, float value)
{
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        if (rank->host[i] < value || rank->host[i] > value)
            return false;
    }
    return true;
}

// The survivors' part, after the death.
static void rank_survive(struct rank *rank, const struct cuda *cuda)
{
    struct collective collective;
    struct extent extent;
    const uint64_t since_ms = clock_now_ms();
    transport_abandon(rank->transport);
    REQUIRE(rank, clock_now_ms() - since_ms < test_bound_ms(3 * ABORT_MS));
    rank_copy(rank, cuda, false);
    REQUIRE(rank, rank_holds(rank, (float)(rank->rank + 1)));
    if (rank->abort_hangs) {
        REQUIRE(rank, !rank->device || device_failed(rank->device));
        _exit(0);
    }
    pthread_barrier_wait(&rank->meeting->survivors);
    rank_form(rank, WORLD - 1, 2);
    rank_launch(rank, &collective, &extent);
    until(rank, &rank->done, 1, "the survivors' allreduce");
    rank_copy(rank, cuda, false);
    REQUIRE(rank, rank_holds(rank, 1.5f));
}

static void rank_main(struct rank *rank)
{
    struct collective collective;
    struct extent extent;
    char error[256] = "";
    (void)fake_gpu_install();
    fake_gpu_weather("FAKE_CUDA_DEVICES=4", "FAKE_NCCL_ABORT=own",
                     rank->abort_hangs ? "FAKE_NCCL_ABORT_HANGS=1" : NULL, NULL);
    const struct cuda *cuda = cuda_load(error, sizeof(error));
    require(rank, cuda && cuda->init(0) == 0, error);
    kernels_environment();
    rank_open(rank, cuda);
    for (uint32_t i = 0; i < ELEMENTS; i++)
        rank->host[i] = (float)(rank->rank + 1);
    rank_copy(rank, cuda, true);
    pthread_barrier_wait(&rank->meeting->all);
    rank_form(rank, WORLD, 1);
    pthread_barrier_wait(&rank->meeting->all);
    if (rank->rank == WORLD - 1)
        (void)raise(SIGKILL);
    rank_launch(rank, &collective, &extent);
    until(rank, &rank->lost, 1, "the death");
    REQUIRE(rank, rank->done == 0);
    rank_survive(rank, cuda);
    _exit(0);
}

// ---- the tests ----------------------------------------------------------------------------------

static void barrier_init(pthread_barrier_t *barrier, uint32_t count)
{
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    assert_int_equal(pthread_barrier_init(barrier, &shared, count), 0);
    pthread_barrierattr_destroy(&shared);
}

static void run(uint64_t devices, bool abort_hangs)
{
    pid_t children[WORLD];
    struct meeting *meeting =
        mmap(NULL, sizeof(*meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(meeting != MAP_FAILED);
    barrier_init(&meeting->all, WORLD);
    barrier_init(&meeting->survivors, WORLD - 1);
    for (uint32_t r = 0; r < WORLD; r++) {
        children[r] = fork();
        assert_true(children[r] >= 0);
        if (children[r] == 0) {
            struct rank rank = {
                .meeting = meeting, .rank = r, .devices = devices, .abort_hangs = abort_hangs};
            (void)alarm((unsigned)(2 * test_bound_ms(BOUND_MS) / 1000));
            rank_main(&rank);
        }
    }
    for (uint32_t r = 0; r < WORLD; r++) {
        int status = 0;
        assert_int_equal(waitpid(children[r], &status, 0), children[r]);
        if (r == WORLD - 1)
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        else
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    (void)munmap(meeting, sizeof(*meeting));
}

static void test_killed_in_an_allreduce(void **state)
{
    (void)state;
    run(ALL, false);
}

static void test_killed_and_the_abort_hangs(void **state)
{
    (void)state;
    run(ALL, true);
}

// A rank with a device dies, for which NCCL waits on the other one.
static void test_killed_before_a_share(void **state)
{
    (void)state;
    run(1u << 0 | 1u << (WORLD - 1), false);
    run(1u << 0 | 1u << (WORLD - 1), true);
}

// A rank without a device dies, for which the hosts wait when NCCL has done its part.
static void test_killed_behind_a_share(void **state)
{
    (void)state;
    run(1u << 0 | 1u << 1, false);
    run(1u << 0 | 1u << 1, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_in_an_allreduce),
        cmocka_unit_test(test_killed_and_the_abort_hangs),
        cmocka_unit_test(test_killed_before_a_share),
        cmocka_unit_test(test_killed_behind_a_share),
    };
    return cmocka_run_group_tests_name("device deaths", tests, NULL, NULL);
}
