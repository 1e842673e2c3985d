// SPDX-License-Identifier: Apache-2.0
//
// Ranks as processes of one host that reduce in memory they share, and one of them is killed, or
// stopped, at some instant. The others see the loss, let go of their memory in time, hold in every
// element their input or the final value, and leave nothing behind. Nothing but transports runs
// here; a page that all processes share says what is expected and what went wrong.

#include "base/clock.h"
#include "protos/topology.h"
#include "worker/kernels.h"
#include "worker/region.h"
#include "worker/transport.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS_MOST 3
#define ELEMENTS 150001 // Of a collective: several pieces, and many blocks.
#define BOUND_MS 20000
#define STOPPED_MS 3000 // To let go of memory that a stopped mate may be writing to.

struct plan {
    uint32_t ranks;
    bool registered;
    bool stops; // The last rank is stopped, not killed.
};

// Shared by all processes of a round.
struct page {
    struct plan plan;
    char addresses[RANKS_MOST][LOCKSTEP_ADDRESS_BYTES];
    atomic_uint opened;
    atomic_uint running; // Ranks whose first collective is done.
    atomic_uint let_go; // Survivors that have given up on the stopped one.
    atomic_bool resumed; // It runs again, and has ended.
    atomic_uint intact; // Elements, to know that the test meets both.
    atomic_uint final;
    // Of each survivor: which elements are final in the end.
    bool finals[RANKS_MOST][ELEMENTS];
};

struct rank {
    struct page *page;
    uint32_t rank;
    struct transport *transport;
    struct regions *regions;
    float *memory;
    uint64_t step;
    uint32_t done;
    uint32_t lost;
    bool formed;
};

static uint64_t bound_ms(uint64_t ms)
{
    const char *slow = getenv("LOCKSTEP_TEST_SLOW");
    return ms * (slow ? strtoull(slow, NULL, 10) : 1);
}

#define RANK_CHECK(self, condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: rank %u: %s\n", __FILE__, __LINE__, (self)->rank, #condition); \
            _exit(1); \
        } \
    } while (0)

// ---- a rank -------------------------------------------------------------------------------------

static void on_formed(void *context)
{
    ((struct rank *)context)->formed = true;
}

static void on_done(void *context, struct collective *collective)
{
    (void)collective;
    ((struct rank *)context)->done++;
}

static void on_lost(void *context, uint32_t rank, bool left, const char *text)
{
    struct rank *self = context;
    (void)rank; // The one that was hit, or one that has noticed it earlier and given up.
    (void)text;
    RANK_CHECK(self, !left);
    self->lost++;
}

// Small integers: every order of summation is exact, and no two steps look alike.
static float input_of(uint32_t rank, uint64_t step, uint64_t element)
{
    return (float)((element * 7 + step * 13 + rank * 101) % 1000 + 1);
}

static float final_of(const struct rank *self, uint64_t element)
{
    float sum = 0;
    for (uint32_t r = 0; r < self->page->plan.ranks; r++)
        sum += input_of(r, self->step, element);
    return sum;
}

static void rank_open(struct rank *self)
{
    const struct transport_config config = {
        .kind = TRANSPORT_TCP,
        .host = "127.0.0.1",
        .shares = true,
        .regions = self->regions,
        .events = {.formed = on_formed, .done = on_done, .peer_lost = on_lost, .context = self}};
    char error[256];
    RANK_CHECK(self, transport_open(&config, &self->transport, error, sizeof(error)) == 0);
    snprintf(self->page->addresses[self->rank], LOCKSTEP_ADDRESS_BYTES, "%s",
             transport_address(self->transport));
    atomic_fetch_add(&self->page->opened, 1);
    while (atomic_load(&self->page->opened) < self->page->plan.ranks)
        (void)usleep(100);
}

static void rank_form(struct rank *self)
{
    const uint32_t ranks = self->page->plan.ranks;
    struct peer peers[RANKS_MOST];
    memset(peers, 0, sizeof(peers));
    struct transport_world world = {.generation = {.number = 1, .incarnation = 5},
                                    .rank = self->rank,
                                    .world_size = ranks,
                                    .chunk_bytes = 65536,
                                    .peers = peers,
                                    .form_timeout_ms = bound_ms(BOUND_MS)};
    for (uint32_t r = 0; r < ranks; r++) {
        world.locality.mates[r] = r;
        if (r == self->rank)
            continue;
        peers[world.peer_count].rank = r;
        snprintf(peers[world.peer_count++].address, LOCKSTEP_ADDRESS_BYTES, "%s",
                 self->page->addresses[r]);
    }
    world.locality.hosts = 1;
    world.locality.rings = 1;
    world.locality.mate_count = ranks;
    world.locality.local = self->rank;
    RANK_CHECK(self, transport_form(self->transport, &world) == 0);
    while (!self->formed)
        transport_progress(self->transport, 100);
}

// Until all mates have the memory of all: as long as one has not, runs go through slots.
static void rank_step(struct rank *self, uint64_t give_up_ms)
{
    struct extent extent = {self->memory, self->memory, ELEMENTS};
    struct collective collective = {.dtype = DTYPE_FLOAT32,
                                    .op = REDUCE_SUM,
                                    .algorithm = ALGORITHM_SHARED,
                                    .tag = {.step = ++self->step},
                                    .signature = 9,
                                    .extents = &extent,
                                    .extent_count = 1,
                                    .elements = ELEMENTS};
    const uint32_t before = self->done;
    const uint64_t since_ms = clock_now_ms();
    for (uint64_t e = 0; e < ELEMENTS; e++)
        self->memory[e] = input_of(self->rank, self->step, e);
    transport_launch(self->transport, &collective);
    while (self->done == before && self->lost == 0) {
        transport_progress(self->transport, 20);
        if (clock_now_ms() - since_ms > give_up_ms)
            break;
    }
    if (self->done == before) {
        const uint64_t from_ms = clock_now_ms();
        transport_abandon(self->transport);
        RANK_CHECK(self, clock_now_ms() - from_ms < bound_ms(STOPPED_MS));
    }
    for (uint64_t e = 0; e < ELEMENTS; e++) {
        const float input = input_of(self->rank, self->step, e);
        const bool is_final = self->memory[e] == final_of(self, e);
        RANK_CHECK(self, is_final || (self->done == before && self->memory[e] == input));
        if (self->done == before)
            atomic_fetch_add(is_final ? &self->page->final : &self->page->intact, 1);
        self->page->finals[self->rank][e] = is_final && self->done == before;
    }
}

static uint32_t open_descriptors(void)
{
    uint32_t count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (directory && readdir(directory))
        count++;
    if (directory)
        (void)closedir(directory);
    return count;
}

// Memory that somebody else has, or had, too.
static uint32_t shared_mappings(void)
{
    char line[512];
    uint32_t count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof(line), maps))
        count += strstr(line, "memfd:") != NULL;
    if (maps)
        (void)fclose(maps);
    return count;
}

// What the stopped one does when it goes on is none of this rank's memory.
static void rank_outlives(struct rank *self)
{
    float *before = malloc(ELEMENTS * sizeof(*before));
    memcpy(before, self->memory, ELEMENTS * sizeof(*before));
    atomic_fetch_add(&self->page->let_go, 1);
    while (!atomic_load(&self->page->resumed))
        (void)usleep(1000);
    RANK_CHECK(self, memcmp(before, self->memory, ELEMENTS * sizeof(*before)) == 0);
    free(before);
}

static void rank_main(struct page *page, uint32_t number)
{
    struct rank self = {.page = page, .rank = number};
    const bool stops = page->plan.stops;
    kernels_environment();
    const uint32_t descriptors = open_descriptors();
    void *made = NULL;
    if (page->plan.registered) {
        self.regions = regions_open();
        RANK_CHECK(&self, self.regions &&
                              regions_make(self.regions, ELEMENTS * sizeof(float), &made) == 0);
    } else {
        made = malloc(ELEMENTS * sizeof(float));
    }
    self.memory = made;
    rank_open(&self);
    rank_form(&self);
    const uint32_t before = self.done;
    while (self.done == before + self.step) {
        rank_step(&self, stops ? 300 : bound_ms(BOUND_MS));
        if (self.step == 1)
            atomic_fetch_add(&page->running, 1);
    }
    RANK_CHECK(&self, stops || self.lost > 0 || number == page->plan.ranks - 1);
    if (stops && number != page->plan.ranks - 1)
        rank_outlives(&self);
    transport_close(self.transport);
    if (self.regions) {
        RANK_CHECK(&self, regions_free(self.regions, self.memory) == 0);
        regions_close(self.regions);
    } else {
        free(self.memory);
    }
    RANK_CHECK(&self, open_descriptors() == descriptors);
    RANK_CHECK(&self, shared_mappings() == 0);
    _exit(0);
}

// ---- rounds -------------------------------------------------------------------------------------

static void wait_until(const atomic_uint *count, uint32_t least)
{
    const uint64_t since_ms = clock_now_ms();
    while (atomic_load(count) < least) {
        assert_true(clock_now_ms() - since_ms < bound_ms(BOUND_MS));
        (void)usleep(200);
    }
}

static void reap(pid_t child)
{
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// The last rank is hit after so many microseconds of work.
static void round_run(struct page *page, const struct plan *plan, uint32_t after_us)
{
    pid_t children[RANKS_MOST];
    const uint32_t last = plan->ranks - 1;
    memset(page, 0, sizeof(*page));
    page->plan = *plan;
    (void)fflush(stdout);
    for (uint32_t r = 0; r < plan->ranks; r++) {
        children[r] = fork();
        if (children[r] == 0)
            rank_main(page, r);
        assert_true(children[r] > 0);
    }
    wait_until(&page->running, plan->ranks);
    (void)usleep(after_us);
    assert_int_equal(kill(children[last], plan->stops ? SIGSTOP : SIGKILL), 0);
    int status = 0;
    if (plan->stops) {
        wait_until(&page->let_go, last);
        assert_int_equal(kill(children[last], SIGCONT), 0);
        reap(children[last]);
        atomic_store(&page->resumed, true);
    } else {
        assert_int_equal(waitpid(children[last], &status, 0), children[last]);
        assert_true(WIFSIGNALED(status));
    }
    for (uint32_t r = 0; r < last; r++)
        reap(children[r]);
    // What is final in registered memory is so with all survivors.
    for (uint32_t r = 1; plan->registered && r < last; r++)
        assert_memory_equal(page->finals[0], page->finals[r], sizeof(page->finals[0]));
}

static uint32_t named_memory(void)
{
    uint32_t count = 0;
    DIR *directory = opendir("/dev/shm");
    const struct dirent *entry = NULL;
    while (directory && (entry = readdir(directory)))
        count += strstr(entry->d_name, "lockstep") != NULL;
    if (directory)
        (void)closedir(directory);
    return count;
}

static void rounds(bool registered, bool stops, uint32_t count)
{
    struct page *page =
        mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(page, MAP_FAILED);
    const uint32_t before = named_memory();
    uint32_t both = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct plan plan = {.ranks = 2 + i % 2, .registered = registered, .stops = stops};
        // Somewhere in the few collectives of the next 3 ms.
        round_run(page, &plan, i * 7919 % 3000);
        both += atomic_load(&page->final) > 0 && atomic_load(&page->intact) > 0;
    }
    print_message("in %u of %u rounds some elements were final, others intact\n", both, count);
    assert_int_equal(named_memory(), before);
    (void)munmap(page, sizeof(*page));
}

static void test_killed_private(void **state)
{
    (void)state;
    rounds(false, false, 25);
}

static void test_killed_registered(void **state)
{
    (void)state;
    rounds(true, false, 25);
}

static void test_stopped(void **state)
{
    (void)state;
    rounds(false, true, 2);
    rounds(true, true, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_private),
        cmocka_unit_test(test_killed_registered),
        cmocka_unit_test(test_stopped),
    };
    return cmocka_run_group_tests_name("shared death", tests, NULL, NULL);
}
