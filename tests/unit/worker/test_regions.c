// SPDX-License-Identifier: Apache-2.0
//
// Regions without links: two or three ranks of this process hand each other descriptors directly.

#include "worker/memory/regions.h"

#include "base/thread.h"
#include "worker/support/spare.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define SOME (64 * 1024)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

// ---- what this process holds --------------------------------------------------------------------

static int count_descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;
    assert_non_null(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static int count_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024];
    int count = 0;
    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps))
        count += strstr(line, "memfd:lockstep-region") != NULL;
    fclose(maps);
    return count;
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

// ---- two ranks ----------------------------------------------------------------------------------

struct pair {
    struct regions *a; // Local 0.
    struct regions *b; // Local 1.
};

static struct pair pair_open(void)
{
    const struct pair pair = {regions_open(), regions_open()};
    assert_non_null(pair.a);
    assert_non_null(pair.b);
    regions_begin(pair.a, 0, 2);
    regions_begin(pair.b, 1, 2);
    return pair;
}

static void pair_close(struct pair pair)
{
    regions_close(pair.a);
    regions_close(pair.b);
    assert_int_equal(count_mappings(), 0);
}

static uint8_t *make(struct regions *regions, size_t bytes)
{
    void *memory = NULL;
    assert_int_equal(regions_make(regions, bytes, &memory), 0);
    assert_non_null(memory);
    return memory;
}

// Plays the transport of `to`, a mate with number `local` of `from`, for new regions.
static uint32_t hand_over(struct regions *from, uint32_t from_local, struct regions *to,
                          uint32_t local)
{
    uint32_t number = 0, count = 0;
    uint64_t bytes = 0;
    for (int fd; (fd = regions_to_pass(from, local, &number, &bytes)) >= 0; count++) {
        assert_null(regions_map(to, from_local, number, bytes, dup(fd)));
        regions_passed(from, local, number);
        assert_true(regions_mapped(from, local, number));
    }
    return count;
}

// ---- tests --------------------------------------------------------------------------------------

static void test_made_and_found(void **state)
{
    struct pair pair = pair_open();
    uint8_t *memory = make(pair.a, SOME + 1), *other = make(pair.a, SOME);
    uint32_t number = 0;
    uint64_t offset = 0;
    (void)state;
    for (int i = 0; i <= SOME; i++)
        assert_int_equal(memory[i], 0);
    assert_int_equal((uintptr_t)memory % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
    assert_false(regions_find(pair.a, memory, 1, &number, &offset));
    assert_int_equal(hand_over(pair.a, 0, pair.b, 1), 2);
    assert_int_equal(regions_find(pair.a, memory + 100, SOME - 99, &number, &offset), SOME - 99);
    assert_int_equal(number, 1);
    assert_int_equal(offset, 100);
    assert_int_equal(regions_find(pair.a, other, SOME, &number, &offset), SOME);
    assert_int_equal(number, 2);
    assert_int_equal(offset, 0);
    // For memory that goes beyond the region, the part inside it is found.
    assert_int_equal(regions_find(pair.a, other + 1, SOME, &number, &offset), SOME - 1);
    assert_int_equal(offset, 1);
    assert_int_equal(regions_find(pair.a, other + 1, SIZE_MAX, &number, &offset), SOME - 1);
    assert_false(regions_find(pair.a, &number, 1, &number, &offset));
    assert_false(regions_find(pair.b, memory, 1, &number, &offset));
    pair_close(pair);
}

static void test_written_by_both(void **state)
{
    struct pair pair = pair_open();
    uint8_t *memory = make(pair.a, SOME);
    (void)state;
    assert_int_equal(hand_over(pair.a, 0, pair.b, 1), 1);
    uint8_t *there = regions_of(pair.b, 0, 1, 0, SOME);
    assert_non_null(there);
    assert_ptr_not_equal(there, memory);
    memory[5] = 6;
    there[SOME - 1] = 7;
    assert_int_equal(there[5], 6);
    assert_int_equal(memory[SOME - 1], 7);
    assert_ptr_equal(regions_of(pair.b, 0, 1, SOME, 0), there + SOME);
    assert_null(regions_of(pair.b, 0, 1, 1, SOME));
    assert_null(regions_of(pair.b, 0, 1, 1, UINT64_MAX));
    assert_null(regions_of(pair.b, 0, 1, UINT64_MAX, 1));
    assert_null(regions_of(pair.b, 0, 2, 0, 1));
    assert_null(regions_of(pair.b, 1, 1, 0, 1));
    assert_null(regions_of(pair.b, LOCKSTEP_MAX_MATES, 1, 0, 1));
    pair_close(pair);
}

static void test_found_when_all_have_it(void **state)
{
    struct regions *ranks[3];
    uint32_t number;
    uint64_t offset;
    (void)state;
    for (uint32_t r = 0; r < 3; r++) {
        ranks[r] = regions_open();
        regions_begin(ranks[r], r, 3);
    }
    uint8_t *memory = make(ranks[1], SOME);
    assert_int_equal(hand_over(ranks[1], 1, ranks[0], 0), 1);
    assert_false(regions_find(ranks[1], memory, SOME, &number, &offset));
    assert_int_equal(hand_over(ranks[1], 1, ranks[2], 2), 1);
    assert_true(regions_find(ranks[1], memory, SOME, &number, &offset));
    assert_int_equal(hand_over(ranks[1], 1, ranks[1], 1), 0); // Not to itself.
    assert_int_equal(hand_over(ranks[1], 1, ranks[1], 3), 0); // There is no such mate.
    for (uint32_t r = 0; r < 3; r++)
        regions_close(ranks[r]);
}

static void test_too_little_and_too_many(void **state)
{
    struct pair pair = pair_open();
    void *memory[LOCKSTEP_MAX_REGIONS], *more = &more;
    (void)state;
    assert_int_equal(regions_make(pair.a, 0, &more), -EINVAL);
    assert_null(more);
    assert_int_equal(regions_make(pair.a, LOCKSTEP_REGION_BYTES - 1, &more), -EINVAL);
    assert_int_equal(regions_make(pair.a, SIZE_MAX, &more), -EINVAL);
    // More than there is: refused before anything is allocated.
    assert_int_equal(regions_make(pair.a, (size_t)1 << 50, &more), -ENOSPC);
    for (int i = 0; i < LOCKSTEP_MAX_REGIONS; i++)
        memory[i] = make(pair.a, LOCKSTEP_REGION_BYTES);
    assert_int_equal(regions_make(pair.a, SOME, &more), -ENOSPC);
    assert_int_equal(regions_free(pair.a, (uint8_t *)memory[7] + 1), -ENOENT);
    assert_int_equal(regions_free(pair.a, memory[7]), 0);
    assert_int_equal(regions_free(pair.a, memory[7]), -ENOENT);
    make(pair.a, SOME);
    assert_int_equal(hand_over(pair.a, 0, pair.b, 1), LOCKSTEP_MAX_REGIONS);
    pair_close(pair);
}

static void test_no_descriptor_left(void **state)
{
    struct pair pair = pair_open();
    struct rlimit limit, none;
    void *memory;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(regions_make(pair.a, SOME, &memory), -EMFILE);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    make(pair.a, SOME);
    pair_close(pair);
}

// Regions leave the descriptors that the links of a recovery need.
static void test_descriptors_are_left(void **state)
{
    struct pair pair = pair_open();
    struct rlimit limit, low;
    void *memory;
    uint32_t count = 0;
    int status;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    low = limit;
    low.rlim_cur = LOCKSTEP_SESSION_DESCRIPTORS_MOST + 40;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    while ((status = regions_make(pair.a, SOME, &memory)) == 0)
        count++;
    assert_int_equal(status, -EMFILE);
    assert_true(count > 0 && count <= 40);
    assert_int_equal(spare_room(LOCKSTEP_SESSION_DESCRIPTORS_MOST),
                     LOCKSTEP_SESSION_DESCRIPTORS_MOST - 1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    make(pair.a, SOME);
    pair_close(pair);
}

// Ascending, again until it is passed, and the descriptor outlives the region.
static void test_passing(void **state)
{
    struct pair pair = pair_open();
    uint8_t *first = make(pair.a, SOME);
    uint32_t number = 0;
    uint64_t bytes = 0;
    const uint32_t news = regions_news(pair.a);
    (void)state;
    make(pair.a, 2 * SOME);
    assert_int_not_equal(regions_news(pair.a), news);
    for (int i = 0; i < 2; i++) {
        assert_true(is_open(regions_to_pass(pair.a, 1, &number, &bytes)));
        assert_true(number == 1 && bytes == SOME);
    }
    const int fd = regions_to_pass(pair.a, 1, &number, &bytes);
    assert_int_equal(regions_free(pair.a, first), 0);
    assert_true(is_open(fd));
    assert_null(regions_map(pair.b, 0, number, bytes, dup(fd)));
    regions_passed(pair.a, 1, number);
    assert_false(is_open(fd));
    assert_true(is_open(regions_to_pass(pair.a, 1, &number, &bytes)));
    assert_true(number == 2 && bytes == 2 * SOME);
    regions_passed(pair.a, 1, number);
    assert_int_equal(regions_to_pass(pair.a, 1, &number, &bytes), -1);
    // The mate hears of the end of the first when it has said that it has it.
    assert_false(regions_freed(pair.a, &number));
    assert_true(regions_mapped(pair.a, 1, 1));
    assert_false(regions_mapped(pair.a, 1, 1));
    assert_false(regions_mapped(pair.a, 1, 3));
    assert_false(regions_mapped(pair.a, 2, 2));
    assert_true(regions_freed(pair.a, &number));
    assert_int_equal(number, 1);
    assert_false(regions_freed(pair.a, &number));
    regions_unmap(pair.b, 0, 1);
    regions_unmap(pair.b, 0, 1);
    assert_null(regions_of(pair.b, 0, 1, 0, 1));
    pair_close(pair);
}

// A mate that cannot map a region does not hear of its end; one that has mapped it does.
static void test_not_mapped(void **state)
{
    struct regions *regions = regions_open();
    uint32_t number = 0;
    uint64_t bytes = 0, offset;
    (void)state;
    regions_begin(regions, 0, 3);
    for (int mapped_too = 0; mapped_too < 2; mapped_too++) {
        uint8_t *memory = make(regions, SOME);
        for (uint32_t mate = 1; mate <= 2; mate++) {
            assert_true(regions_to_pass(regions, mate, &number, &bytes) >= 0);
            regions_passed(regions, mate, number);
        }
        const uint32_t refused = number | REGION_UNMAPPED;
        assert_true(regions_mapped(regions, 1, refused));
        assert_false(regions_mapped(regions, 1, refused));
        assert_false(regions_mapped(regions, 1, number));
        assert_int_equal(regions_to_pass(regions, 1, &number, &bytes), -1);
        assert_int_equal(regions_free(regions, memory), 0);
        assert_false(regions_freed(regions, &number));
        assert_true(regions_mapped(regions, 2, mapped_too ? number : refused));
        assert_false(regions_find(regions, memory, 1, &number, &offset));
        assert_int_equal(regions_freed(regions, &number), mapped_too);
    }
    regions_close(regions);
}

// Offered, but freed before it was on its way: nobody needs to be told.
static void test_withdrawn(void **state)
{
    struct pair pair = pair_open();
    uint8_t *memory = make(pair.a, SOME);
    uint32_t number = 0;
    uint64_t bytes = 0;
    (void)state;
    assert_true(regions_to_pass(pair.a, 1, &number, &bytes) >= 0);
    assert_int_equal(regions_free(pair.a, memory), 0);
    assert_int_equal(regions_to_pass(pair.a, 1, &number, &bytes), -1);
    assert_false(regions_freed(pair.a, &number));
    for (int i = 0; i < LOCKSTEP_MAX_REGIONS; i++) // Its place is free again.
        make(pair.a, LOCKSTEP_REGION_BYTES);
    pair_close(pair);
}

static int memory_file(size_t bytes, int seals)
{
    const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    assert_int_equal(fallocate(fd, 0, 0, (off_t)bytes), 0);
    if (seals != 0)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static int memory_with_a_hole(size_t bytes, int seals)
{
    const int fd = memory_file(bytes, seals);
    assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096), 0);
    return fd;
}

static void refused(struct regions *regions, uint32_t number, uint64_t bytes, int fd,
                    const char *text)
{
    const char *wrong = regions_map(regions, 0, number, bytes, fd);
    assert_non_null(wrong);
    assert_non_null(strstr(wrong, text));
    assert_false(is_open(fd));
    assert_null(regions_of(regions, 0, number, 0, 1));
}

static void test_hostile_descriptors(void **state)
{
    struct pair pair = pair_open();
    int ends[2];
    (void)state;
    assert_int_equal(pipe(ends), 0);
    refused(pair.b, 1, SOME, ends[0], "no memory");
    close(ends[1]);
    refused(pair.b, 1, SOME, open("/proc/self/exe", O_RDONLY), "cut");
    refused(pair.b, 1, SOME, memory_file(SOME, 0), "cut");
    refused(pair.b, 1, SOME, memory_file(SOME, F_SEAL_GROW), "cut");
    refused(pair.b, 1, SOME, memory_file(SOME - 1, SEALS), "smaller");
    refused(pair.b, 1, 0, memory_file(SOME, SEALS), "smaller");
    refused(pair.b, 1, UINT64_MAX, memory_file(SOME, SEALS), "smaller");
    refused(pair.b, 1, SOME, memory_with_a_hole(SOME, SEALS), "holes");
    refused(pair.b, 0, SOME, memory_file(SOME, SEALS), "twice");
    refused(pair.b, 1, SOME, memory_file(SOME, SEALS | F_SEAL_WRITE), "mapped");
    assert_null(regions_map(pair.b, 0, 2, SOME, memory_file(SOME, SEALS)));
    refused(pair.b, 1, SOME, memory_file(SOME, SEALS), "twice");
    for (uint32_t i = 1; i < LOCKSTEP_MAX_REGIONS; i++)
        assert_null(regions_map(pair.b, 0, 2 + i, 4096, memory_file(4096, SEALS)));
    refused(pair.b, 1000, SOME, memory_file(SOME, SEALS), "many");
    pair_close(pair);
}

static void test_another_generation(void **state)
{
    struct pair pair = pair_open();
    uint8_t *memory = make(pair.a, SOME);
    uint32_t number;
    uint64_t offset;
    (void)state;
    assert_int_equal(hand_over(pair.a, 0, pair.b, 1), 1);
    memory[9] = 1;
    regions_begin(pair.a, 1, 2);
    regions_begin(pair.b, 0, 2);
    assert_int_equal(count_mappings(), 1);
    assert_int_equal(memory[9], 1);
    assert_false(regions_find(pair.a, memory, 1, &number, &offset));
    assert_int_equal(hand_over(pair.a, 1, pair.b, 0), 1);
    assert_true(regions_find(pair.a, memory, 1, &number, &offset));
    regions_begin(pair.a, 0, 0);
    assert_false(regions_find(pair.a, memory, 1, &number, &offset));
    pair_close(pair);
}

// ---- apart --------------------------------------------------------------------------------------

struct watch {
    volatile uint8_t *memory;
    atomic_bool ends;
    atomic_uint rounds;
    uint32_t wrong;
};

static void watch_run(void *argument)
{
    struct watch *watch = argument;
    while (!atomic_load(&watch->ends)) {
        for (int i = 0; i < SOME; i += 512)
            watch->wrong += watch->memory[i] != 3;
        atomic_fetch_add(&watch->rounds, 1);
    }
}

static void test_detached(void **state)
{
    struct pair pair = pair_open();
    uint8_t *memory = make(pair.a, SOME);
    struct watch watch = {.memory = memory};
    struct thread thread;
    uint32_t number;
    uint64_t offset;
    (void)state;
    memset(memory, 3, SOME);
    assert_int_equal(hand_over(pair.a, 0, pair.b, 1), 1);
    uint8_t *there = regions_of(pair.b, 0, 1, 0, SOME);
    assert_int_equal(thread_start(&thread, "watch", watch_run, &watch), 0);
    while (atomic_load(&watch.rounds) == 0)
        ;
    assert_int_equal(regions_detach(pair.a), 0);
    const uint32_t rounds = atomic_load(&watch.rounds);
    while (atomic_load(&watch.rounds) < rounds + 2)
        ;
    atomic_store(&watch.ends, true);
    thread_join(&thread);
    assert_int_equal(watch.wrong, 0);
    memset(there, 4, SOME);
    for (int i = 0; i < SOME; i++)
        assert_int_equal(memory[i], 3);
    memory[0] = 5;
    assert_int_equal(there[0], 4);
    assert_false(regions_find(pair.a, memory, 1, &number, &offset));
    assert_int_equal(hand_over(pair.a, 0, pair.b, 1), 0);
    assert_int_equal(regions_free(pair.a, memory), 0);
    assert_true(regions_freed(pair.a, &number));
    pair_close(pair);
}

// Counts in every page, as a trainer does that goes on through its backward pass.
#define COUNTED_PAGES 512
#define PAGE_BYTES 4096

struct counts {
    uint8_t *memory;
    atomic_bool ends;
    atomic_uint rounds;
};

static void counts_run(void *argument)
{
    struct counts *counts = argument;
    while (!atomic_load(&counts->ends)) {
        for (size_t page = 0; page < COUNTED_PAGES; page++) {
            uint32_t *count = (uint32_t *)(void *)(counts->memory + page * PAGE_BYTES + 64);
            *count += 1;
        }
        atomic_fetch_add(&counts->rounds, 1);
    }
}

static void test_detached_while_written(void **state)
{
    struct pair pair = pair_open();
    struct counts counts = {.memory = make(pair.a, (size_t)COUNTED_PAGES * PAGE_BYTES)};
    struct thread thread;
    (void)state;
    memset(counts.memory, 0, (size_t)COUNTED_PAGES * PAGE_BYTES);
    assert_int_equal(hand_over(pair.a, 0, pair.b, 1), 1);
    assert_int_equal(thread_start(&thread, "counts", counts_run, &counts), 0);
    while (atomic_load(&counts.rounds) < 2)
        ;
    assert_int_equal(regions_detach(pair.a), 0);
    atomic_store(&counts.ends, true);
    thread_join(&thread);
    for (size_t page = 0; page < COUNTED_PAGES; page++) {
        const uint32_t *count = (uint32_t *)(void *)(counts.memory + page * PAGE_BYTES + 64);
        assert_int_equal(*count, atomic_load(&counts.rounds));
    }
    assert_int_equal(regions_free(pair.a, counts.memory), 0);
    pair_close(pair);
}

// A forked child shares the regions of this rank, and does not have those of mates: it would keep
// their memory when both ranks have given it up.
static void test_forked(void **state)
{
    struct pair pair = pair_open();
    uint8_t *memory = make(pair.a, SOME);
    int status = -1;
    (void)state;
    assert_int_equal(hand_over(pair.a, 0, pair.b, 1), 1);
    assert_int_equal(count_mappings(), 2);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        memory[7] = 9;
        _exit(count_mappings());
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_int_equal(memory[7], 9);
    pair_close(pair);
}

// ---- trainer and engine at once -----------------------------------------------------------------

struct trainer {
    struct regions *regions;
    atomic_bool done;
    bool found; // Some region was mapped by the mate while the trainer had it.
};

static void trainer_run(void *argument)
{
    struct trainer *trainer = argument;
    uint8_t *memory[8] = {0};
    for (int i = 0; i < 600 || !trainer->found; i++) {
        uint8_t **slot = &memory[i % 8];
        uint32_t number;
        uint64_t offset;
        trainer->found |=
            *slot && regions_find(trainer->regions, *slot, LOCKSTEP_REGION_BYTES, &number, &offset);
        if (*slot)
            assert_int_equal(regions_free(trainer->regions, *slot), 0);
        *slot = make(trainer->regions, LOCKSTEP_REGION_BYTES);
        memset(*slot, i, LOCKSTEP_REGION_BYTES);
    }
    atomic_store(&trainer->done, true);
}

static void engine_turn(struct pair pair)
{
    uint32_t number;
    (void)hand_over(pair.a, 0, pair.b, 1);
    while (regions_freed(pair.a, &number))
        regions_unmap(pair.b, 0, number);
}

static void test_threads(void **state)
{
    struct pair pair = pair_open();
    struct trainer trainer = {.regions = pair.a};
    struct thread thread;
    (void)state;
    assert_int_equal(thread_start(&thread, "trainer", trainer_run, &trainer), 0);
    while (!atomic_load(&trainer.done))
        engine_turn(pair);
    thread_join(&thread);
    engine_turn(pair);
    assert_true(trainer.found);
    assert_int_equal(count_mappings(), 2 * 8);
    pair_close(pair);
}

static void test_nothing_left(void **state)
{
    const int descriptors = *(int *)*state;
    assert_int_equal(count_descriptors(), descriptors);
    assert_int_equal(count_mappings(), 0);
}

static int descriptors_before;

static int count_before(void **state)
{
    descriptors_before = count_descriptors();
    *state = &descriptors_before;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_made_and_found),
        cmocka_unit_test(test_written_by_both),
        cmocka_unit_test(test_found_when_all_have_it),
        cmocka_unit_test(test_too_little_and_too_many),
        cmocka_unit_test(test_no_descriptor_left),
        cmocka_unit_test(test_descriptors_are_left),
        cmocka_unit_test(test_passing),
        cmocka_unit_test(test_not_mapped),
        cmocka_unit_test(test_withdrawn),
        cmocka_unit_test(test_hostile_descriptors),
        cmocka_unit_test(test_another_generation),
        cmocka_unit_test(test_detached),
        cmocka_unit_test(test_detached_while_written),
        cmocka_unit_test(test_forked),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_nothing_left),
    };
    return cmocka_run_group_tests_name("region", tests, count_before, NULL);
}
