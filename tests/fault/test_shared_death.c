// SPDX-License-Identifier: Apache-2.0
//
// Ranks as processes of one host that reduce in memory they share, and one of them is killed, or
// stopped, at some instant. The others see the loss, let go of their memory in time, hold in every
// element their input or the final value, and leave nothing behind. Nothing but transports runs
// here; a page that all processes share says what is expected and what went wrong.

#include "base/clock.h"
#include "protos/topology.h"
#include "tests/support/bounds.h"
#include "worker/kernels/kernels.h"
#include "worker/memory/regions.h"
#include "worker/transport/lifecycle.h"
#include "worker/transport/transport.h"

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

#define RANKS 3 // At most. Odd: no power of it is 0 in 32 bits.
#define ELEMENTS 150001 // Elements of a collective: several pieces, and many blocks.
#define EXTENTS 150 // Where the memory is scattered: blocks have several.
#define REGIONS 3
#define REGION_ELEMENTS (ELEMENTS / 2) // Elements that fit into one region.
#define WARM_STEPS 20 // By then all have mapped the memory of all.
#define SCALE_MOST 0x1p64f // Sums of floats are made small again before they are infinite.
#define BOUND_MS 20000
#define GIVE_UP_MS 100 // Time that a rank waits for a stopped mate.
#define STOPPED_MS 3000 // To let go of memory that a stopped mate may be writing to.

struct plan {
    bool pair; // Two ranks, and floats: in registered memory one loop stores to both.
    bool registered;
    bool scattered; // Each rank has its extents in an order of its own, in several regions.
    bool stops; // The last rank is stopped, not killed.
};

// Shared by all processes of a round.
struct page {
    struct plan plan;
    char addresses[RANKS][LOCKSTEP_ADDRESS_BYTES];
    atomic_uint opened;
    atomic_uint running; // Ranks that are warm.
    atomic_uint let_go; // Survivors that have given up on the stopped one.
    atomic_bool stopped; // True if the last rank is stopped.
    atomic_bool resumed; // True if the stopped rank has run again and ended.
    atomic_uint intact; // Elements, to know that the test meets both.
    atomic_uint final;
    uint32_t memory[RANKS][ELEMENTS]; // Memory of each survivor, in the end.
};

static uint32_t plan_ranks(const struct plan *plan)
{
    return plan->pair ? 2 : RANKS;
}

struct rank {
    struct page *page;
    uint32_t rank;
    struct transport *transport;
    struct regions *regions;
    uint32_t *memory[REGIONS]; // The regions. Only the first one is used unless plan.scattered.
    uint32_t *places[ELEMENTS]; // Addresses of the elements.
    struct extent extents[EXTENTS];
    uint32_t extent_count;
    uint64_t copied_warm; // Bytes of results, by the time when all memory is mapped.
    uint64_t step;
    uint32_t ranks;
    uint32_t power; // The number of ranks to the power of the final steps minus one.
    float scale; // The same factor for floats, because floats were made small.
    uint32_t done;
    uint32_t lost;
    bool formed;
};

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

static void on_lost(void *context, uint32_t rank, enum peer_loss loss, const char *text)
{
    struct rank *self = context;
    (void)rank; // The one that was hit, or one that has noticed it earlier and given up.
    (void)text;
    RANK_CHECK(self, loss == LOSS_ENDED);
    self->lost++;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

// Sums of integers, which wrap, or of floats, which stay exact. From the second step on all ranks
// put in what the step before has left, so that nearly all of the time is spent inside of
// collectives.
static uint32_t first_input(const struct rank *self, uint32_t rank, uint64_t element)
{
    const uint32_t value = (uint32_t)element * 2654435761u + rank * 40503 + 1;
    return self->page->plan.pair ? bits_of((float)(value % 65536 + 1)) : value;
}

// The value of an element after so many final steps.
static uint32_t value_after(const struct rank *self, uint64_t steps, uint64_t element)
{
    uint32_t value = 0;
    float sum = 0;
    if (steps == 0)
        return first_input(self, self->rank, element);
    for (uint32_t r = 0; r < self->ranks; r++) {
        value += first_input(self, r, element);
        sum += float_of(first_input(self, r, element));
    }
    return self->page->plan.pair ? bits_of(sum * self->scale) : value * self->power;
}

// The sum over ranks of which all have put in the same.
static uint32_t sum_of_same(const struct rank *self, uint32_t input)
{
    return self->page->plan.pair ? bits_of(float_of(input) * (float)self->ranks)
                                 : input * self->ranks;
}

static void rank_count_step(struct rank *self)
{
    self->power = self->step == 1 ? 1 : self->power * self->ranks;
    self->scale = self->step == 1 ? 1 : self->scale * (float)self->ranks;
    if (!self->page->plan.pair || self->scale < SCALE_MOST)
        return;
    for (uint64_t e = 0; e < ELEMENTS; e++)
        *self->places[e] = bits_of(float_of(*self->places[e]) / self->scale);
    self->scale = 1;
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
    while (atomic_load(&self->page->opened) < self->ranks)
        (void)usleep(100);
}

static void rank_form(struct rank *self)
{
    struct peer peers[RANKS];
    memset(peers, 0, sizeof(peers));
    struct transport_world world = {.generation = {.number = 1, .incarnation = 5},
                                    .rank = self->rank,
                                    .world_size = self->ranks,
                                    .chunk_bytes = 65536,
                                    .peers = peers,
                                    .form_timeout_ms = test_bound_ms(BOUND_MS)};
    for (uint32_t r = 0; r < self->ranks; r++) {
        world.locality.mates[r] = r;
        if (r == self->rank)
            continue;
        peers[world.peer_count].rank = r;
        snprintf(peers[world.peer_count++].address, LOCKSTEP_ADDRESS_BYTES, "%s",
                 self->page->addresses[r]);
    }
    world.locality.hosts = 1;
    world.locality.rings = 1;
    world.locality.mate_count = self->ranks;
    world.locality.local = self->rank;
    RANK_CHECK(self, transport_form(self->transport, &world) == 0);
    while (!self->formed)
        transport_progress(self->transport, 100);
}

// After an unfinished step every element holds its input or its sum.
static void rank_examine(struct rank *self)
{
    for (uint64_t e = 0; e < ELEMENTS; e++) {
        const uint32_t value = *self->places[e];
        const uint32_t input = value_after(self, self->step - 1, e);
        const uint32_t sum = self->step == 1 ? value_after(self, 1, e) : sum_of_same(self, input);
        RANK_CHECK(self, value == input || value == sum);
        atomic_fetch_add(value == sum ? &self->page->final : &self->page->intact, 1);
        self->page->memory[self->rank][e] = value;
    }
}

// No rank gives up before the last rank is stopped, however slow the machine is.
static bool rank_gives_up(const struct rank *self, uint64_t since_ms)
{
    const uint64_t waited_ms = clock_now_ms() - since_ms;
    return waited_ms >= (atomic_load(&self->page->stopped) ? GIVE_UP_MS : test_bound_ms(BOUND_MS));
}

// One collective. False: it has not ended, and this rank has let go of its memory.
static bool rank_step(struct rank *self)
{
    struct collective collective = {.dtype = self->page->plan.pair ? DTYPE_FLOAT32 : DTYPE_INT32,
                                    .op = REDUCE_SUM,
                                    .algorithm = ALGORITHM_SHARED,
                                    .tag = {.step = ++self->step},
                                    .signature = 9,
                                    .extents = self->extents,
                                    .extent_count = self->extent_count,
                                    .elements = ELEMENTS};
    const uint32_t before = self->done;
    const uint64_t since_ms = clock_now_ms();
    transport_launch(self->transport, &collective);
    while (self->done == before && self->lost == 0 && !rank_gives_up(self, since_ms))
        transport_progress(self->transport, 20);
    if (self->done != before) {
        rank_count_step(self);
        return true;
    }
    const uint64_t from_ms = clock_now_ms();
    transport_abandon(self->transport);
    RANK_CHECK(self, clock_now_ms() - from_ms < test_bound_ms(STOPPED_MS));
    rank_examine(self);
    return false;
}

static uint64_t bytes_copied(const struct rank *self)
{
    struct transport_statistics statistics;
    transport_statistics(self->transport, &statistics);
    return statistics.bytes_copied;
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

// Number of mappings of memory that this process shares with other ranks.
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

// A stopped rank that goes on later does not change what this rank's memory holds by then.
static void rank_outlives(struct rank *self)
{
    for (uint64_t e = 0; e < ELEMENTS; e++)
        *self->places[e] = 0x11111111;
    atomic_fetch_add(&self->page->let_go, 1);
    while (!atomic_load(&self->page->resumed))
        (void)usleep(1000);
    for (uint64_t e = 0; e < ELEMENTS; e++)
        RANK_CHECK(self, *self->places[e] == 0x11111111);
}

// Extents of different lengths, a part of them in each region, in an order of this rank.
static void rank_scatter(struct rank *self)
{
    static const uint32_t strides[RANKS] = {7, 11, 149}; // No divisors of EXTENTS.
    uint64_t filled[REGIONS] = {0};
    uint64_t first[EXTENTS + 1];
    for (uint32_t i = 0; i <= EXTENTS; i++)
        first[i] = (uint64_t)ELEMENTS * i * i / (EXTENTS * EXTENTS);
    self->extent_count = EXTENTS;
    for (uint32_t k = 0; k < EXTENTS; k++) {
        const uint32_t i = k * strides[self->rank] % EXTENTS;
        const uint64_t elements = first[i + 1] - first[i];
        uint32_t region = (i + self->rank) % REGIONS;
        RANK_CHECK(self, !self->extents[i].in);
        if (filled[region] + elements > REGION_ELEMENTS)
            region = (region + 1) % REGIONS;
        RANK_CHECK(self, filled[region] + elements <= REGION_ELEMENTS);
        uint32_t *memory = self->memory[region] + filled[region];
        self->extents[i] = (struct extent){memory, memory, elements};
        filled[region] += elements;
    }
}

static void rank_place(struct rank *self)
{
    if (self->page->plan.scattered)
        rank_scatter(self);
    else
        self->extents[self->extent_count++] =
            (struct extent){self->memory[0], self->memory[0], ELEMENTS};
    uint32_t **place = self->places;
    for (uint32_t i = 0; i < self->extent_count; i++) {
        for (uint64_t e = 0; e < self->extents[i].elements; e++)
            *place++ = (uint32_t *)self->extents[i].out + e;
    }
    RANK_CHECK(self, place == self->places + ELEMENTS);
}

static void rank_take_memory(struct rank *self)
{
    const struct plan *plan = &self->page->plan;
    const size_t bytes = (plan->scattered ? REGION_ELEMENTS : ELEMENTS) * sizeof(uint32_t);
    if (plan->registered)
        self->regions = regions_open();
    for (uint32_t i = 0; i < (plan->scattered ? REGIONS : 1); i++) {
        void *made = NULL;
        if (plan->registered)
            RANK_CHECK(self, self->regions && regions_make(self->regions, bytes, &made) == 0);
        else
            made = malloc(bytes);
        self->memory[i] = made;
    }
}

static void rank_give_memory(struct rank *self)
{
    for (uint32_t i = 0; i < REGIONS && self->memory[i]; i++) {
        if (self->regions)
            RANK_CHECK(self, regions_free(self->regions, self->memory[i]) == 0);
        else
            free(self->memory[i]);
    }
    regions_close(self->regions);
}

static void rank_main(struct page *page, uint32_t number)
{
    static struct rank self; // The rank of this process.
    const bool stops = page->plan.stops;
    self.page = page;
    self.rank = number;
    self.ranks = plan_ranks(&page->plan);
    kernels_environment();
    const uint32_t descriptors = open_descriptors();
    rank_take_memory(&self);
    rank_place(&self);
    rank_open(&self);
    rank_form(&self);
    for (uint64_t e = 0; e < ELEMENTS; e++)
        *self.places[e] = first_input(&self, number, e);
    while (rank_step(&self)) {
        if (self.step == WARM_STEPS) {
            self.copied_warm = bytes_copied(&self);
            atomic_fetch_add(&page->running, 1);
        }
    }
    RANK_CHECK(&self, stops || self.lost > 0 || number == self.ranks - 1);
    RANK_CHECK(&self, !page->plan.registered || bytes_copied(&self) == self.copied_warm);
    if (stops && number != self.ranks - 1)
        rank_outlives(&self);
    transport_close(self.transport);
    rank_give_memory(&self);
    RANK_CHECK(&self, open_descriptors() == descriptors);
    RANK_CHECK(&self, shared_mappings() == 0);
    _exit(0);
}

// ---- rounds -------------------------------------------------------------------------------------

static void wait_until(const atomic_uint *count, uint32_t least)
{
    const uint64_t since_ms = clock_now_ms();
    while (atomic_load(count) < least) {
        assert_true(clock_now_ms() - since_ms < test_bound_ms(BOUND_MS));
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
    pid_t children[RANKS];
    const uint32_t last = plan_ranks(plan) - 1;
    memset(page, 0, sizeof(*page));
    page->plan = *plan;
    (void)fflush(stdout);
    for (uint32_t r = 0; r <= last; r++) {
        children[r] = fork();
        if (children[r] == 0)
            rank_main(page, r);
        assert_true(children[r] > 0);
    }
    wait_until(&page->running, last + 1);
    (void)usleep(after_us);
    assert_int_equal(kill(children[last], plan->stops ? SIGSTOP : SIGKILL), 0);
    int status = 0;
    if (plan->stops) {
        atomic_store(&page->stopped, true);
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
    // An element that is final in registered memory is final on all survivors.
    for (uint32_t r = 1; plan->registered && r < last; r++)
        assert_memory_equal(page->memory[0], page->memory[r], sizeof(page->memory[0]));
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

static void rounds(struct plan plan, uint32_t count)
{
    struct page *page =
        mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(page, MAP_FAILED);
    const uint32_t before = named_memory();
    uint32_t both = 0;
    count = test_slow() > 1 ? (count + 2) / 3 : count; // Under a sanitizer they take long.
    for (uint32_t i = 0; i < count; i++) {
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
    rounds((struct plan){0}, 20);
}

static void test_killed_registered(void **state)
{
    (void)state;
    rounds((struct plan){.registered = true}, 15);
}

static void test_killed_scattered(void **state)
{
    (void)state;
    rounds((struct plan){.registered = true, .scattered = true}, 20);
}

static void test_killed_pair(void **state)
{
    (void)state;
    rounds((struct plan){.pair = true}, 10);
    rounds((struct plan){.pair = true, .registered = true}, 20);
    rounds((struct plan){.pair = true, .registered = true, .scattered = true}, 15);
}

static void test_stopped(void **state)
{
    (void)state;
    rounds((struct plan){.pair = true, .registered = true, .stops = true}, 6);
    rounds((struct plan){.stops = true}, 2);
    rounds((struct plan){.registered = true, .stops = true}, 6);
    rounds((struct plan){.registered = true, .scattered = true, .stops = true}, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_private),   cmocka_unit_test(test_killed_registered),
        cmocka_unit_test(test_killed_scattered), cmocka_unit_test(test_killed_pair),
        cmocka_unit_test(test_stopped),
    };
    return cmocka_run_group_tests_name("shared death", tests, NULL, NULL);
}
