// SPDX-License-Identifier: Apache-2.0
//
// A request of a session to the machine can fail at any time: the n-th allocation, or the n-th
// descriptor, for every n of a whole life (life_sweep.h), once or from then on. The functions that
// give memory and descriptors are interposed in this program. Only calls that our own code makes
// count: what gRPC asks for ends the process when it fails, which is not ours to change.
//
// Under a sanitizer its allocator is in the place of ours, and the tests are skipped.

#include "tests/fault/life_sweep.h"
#include "tests/support/interposer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>

#if !INTERPOSER

static void nothing_can_fail(void **state)
{
    (void)state;
    print_message("not under a sanitizer: its allocator is in the place of ours\n");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_can_fail)};
    return cmocka_run_group_tests_name("lacks", tests, NULL, NULL);
}

#else

#include <errno.h>
#include <fcntl.h>
#include <lockstep/lockstep.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

// ---- What fails ---------------------------------------------------------------------------------

enum resource {
    MEMORY,
    DESCRIPTOR,
    RESOURCES
};

// Counts for one resource. All zero: nothing is counted.
struct scarce {
    atomic_bool counts;
    atomic_bool lasts; // True if all later requests fail, too.
    _Atomic(uint64_t) fails; // The number of the first request that fails.
    _Atomic(uint64_t) asked;
};

static struct scarce scarce[RESOURCES];

static bool fails(enum resource resource, const void *caller)
{
    struct scarce *one = &scarce[resource];
    if (!atomic_load_explicit(&one->counts, memory_order_relaxed) || !interposer_is_ours(caller))
        return false;
    const uint64_t number = atomic_fetch_add(&one->asked, 1);
    const uint64_t first = atomic_load(&one->fails);
    if (number < first || (number > first && !atomic_load(&one->lasts)))
        return false;
    errno = resource == MEMORY ? ENOMEM : EMFILE;
    return true;
}

#define FAILS(resource) fails(resource, __builtin_return_address(0))

// ---- Memory -------------------------------------------------------------------------------------

static bool allocation_fails(const void *caller)
{
    return fails(MEMORY, caller);
}

INTERPOSED void *mmap(void *at, size_t size, int access, int flags, int fd, off_t offset)
{
    if (FAILS(MEMORY))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, size, access, flags, fd, offset);
}

// ---- Descriptors --------------------------------------------------------------------------------

// Not accept4, which the daemon interposes; test_transport_doors.c is about it.

INTERPOSED int socket(int domain, int type, int protocol)
{
    return FAILS(DESCRIPTOR) ? -1 : (int)syscall(SYS_socket, domain, type, protocol);
}

INTERPOSED int eventfd(unsigned count, int flags)
{
    return FAILS(DESCRIPTOR) ? -1 : (int)syscall(SYS_eventfd2, count, flags);
}

INTERPOSED int epoll_create1(int flags)
{
    return FAILS(DESCRIPTOR) ? -1 : (int)syscall(SYS_epoll_create1, flags);
}

INTERPOSED int memfd_create(const char *name, unsigned flags)
{
    return FAILS(DESCRIPTOR) ? -1 : (int)syscall(SYS_memfd_create, name, flags);
}

// ---- Sweeps -------------------------------------------------------------------------------------

static void begin(enum resource resource, uint64_t fails_at, bool lasts)
{
    atomic_store(&scarce[resource].fails, fails_at);
    atomic_store(&scarce[resource].lasts, lasts);
    atomic_store(&scarce[resource].counts, true);
}

static uint64_t memory_used(void)
{
    atomic_store(&scarce[MEMORY].counts, false);
    return atomic_load(&scarce[MEMORY].asked);
}

static uint64_t descriptors_used(void)
{
    atomic_store(&scarce[DESCRIPTOR].counts, false);
    return atomic_load(&scarce[DESCRIPTOR].asked);
}

static void one_allocation(uint64_t value, uint32_t world)
{
    (void)world;
    begin(MEMORY, value, false);
}

static void all_allocations(uint64_t value, uint32_t world)
{
    (void)world;
    begin(MEMORY, value, true);
}

static void one_descriptor(uint64_t value, uint32_t world)
{
    (void)world;
    begin(DESCRIPTOR, value, false);
}

static void all_descriptors(uint64_t value, uint32_t world)
{
    (void)world;
    begin(DESCRIPTOR, value, true);
}

// First runs a session in which nothing fails, to count its requests.
static void sweep_lacks(const struct squeeze *squeeze, uint64_t samples)
{
    struct swept swept = life_sweep(squeeze, UINT64_MAX, UINT64_MAX, 1);
    const uint64_t step = swept.used / samples + 1;
    assert_true(swept.used > 0);
    assert_int_equal(swept.faults, 0);
    assert_int_equal(swept.well, 1);
    print_message("%s: %llu in a life\n", squeeze->name, (unsigned long long)swept.used);
    swept = life_sweep(squeeze, 0, swept.used + step, step);
    assert_int_equal(swept.faults, 0);
    assert_true(swept.refused > 0);
}

static void an_allocation_fails(void **state)
{
    const struct squeeze squeeze = {
        .name = "one allocation", .apply = one_allocation, .used = memory_used};
    (void)state;
    sweep_lacks(&squeeze, 40);
}

static void an_allocation_fails_and_the_process_ends(void **state)
{
    const struct squeeze squeeze = {.name = "one allocation, and then the process",
                                    .apply = one_allocation,
                                    .abrupt = true,
                                    .used = memory_used};
    (void)state;
    sweep_lacks(&squeeze, 40);
}

static void memory_runs_out(void **state)
{
    const struct squeeze squeeze = {
        .name = "all allocations from", .apply = all_allocations, .used = memory_used};
    (void)state;
    sweep_lacks(&squeeze, 20);
}

static void a_descriptor_fails(void **state)
{
    const struct squeeze squeeze = {
        .name = "one descriptor", .apply = one_descriptor, .used = descriptors_used};
    (void)state;
    sweep_lacks(&squeeze, 20);
}

static void descriptors_run_out(void **state)
{
    const struct squeeze squeeze = {
        .name = "all descriptors from", .apply = all_descriptors, .used = descriptors_used};
    (void)state;
    sweep_lacks(&squeeze, 20);
}

// Condition: each allocation of lockstep_group_create fails once, in a world of one. Decision: it
// is LOCKSTEP_E_SYSTEM and says so, and a later call makes the group.
static void a_group_without_memory(void **state)
{
    static const uint32_t ranks[] = {0};
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    lockstep_session *session = NULL;
    lockstep_group *group = NULL;
    uint64_t number = 0;
    (void)state;
    assert_int_equal(lockstep_open(&config, &session), 0);
    for (;; number++) {
        atomic_store(&scarce[MEMORY].asked, 0);
        begin(MEMORY, number, false);
        const int status = lockstep_group_create(session, ranks, 1, "poor", &group);
        if (memory_used() <= number && status == 0)
            break;
        assert_int_equal(status, LOCKSTEP_E_SYSTEM);
        assert_non_null(strstr(lockstep_error_text(), "no memory"));
        assert_null(group);
    }
    assert_true(number >= 3);
    assert_int_equal(lockstep_barrier(session, "goes on", 0), 0);
    assert_int_equal(lockstep_group_close(group), 0);
    assert_int_equal(lockstep_close(session), 0);
}

// Condition: each allocation of a gather with offsets fails once, in a world of one. Decision: the
// gather is LOCKSTEP_E_SYSTEM and says so, and a later one completes.
static void a_gather_without_memory(void **state)
{
    static const uint64_t counts[] = {2}, offsets[] = {1};
    float input[2] = {5, 6}, output[3] = {0};
    struct lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    lockstep_session *session = NULL;
    uint64_t number = 0;
    (void)state;
    what.kind = LOCKSTEP_GATHER;
    what.name = "poor";
    what.input = input;
    what.output = output;
    what.count = 2;
    what.output_counts = counts;
    what.output_offsets = offsets;
    assert_int_equal(lockstep_open(&config, &session), 0);
    for (;; number++) {
        atomic_store(&scarce[MEMORY].asked, 0);
        begin(MEMORY, number, false);
        const int status = lockstep_collective_run(session, &what, LOCKSTEP_WAIT_FOREVER);
        if (memory_used() <= number && status == 0)
            break;
        assert_int_equal(status, LOCKSTEP_E_SYSTEM);
        assert_non_null(strstr(lockstep_error_text(), "no memory"));
        assert_true(output[1] == 0);
    }
    assert_true(number >= 1);
    assert_true(output[0] == 0 && output[1] == 5 && output[2] == 6);
    assert_int_equal(lockstep_close(session), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_without_memory),
        cmocka_unit_test(a_gather_without_memory),
        cmocka_unit_test(an_allocation_fails),
        cmocka_unit_test(an_allocation_fails_and_the_process_ends),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(a_descriptor_fails),
        cmocka_unit_test(descriptors_run_out),
    };
    return cmocka_run_group_tests_name("lacks", tests, NULL, NULL);
}

#endif
