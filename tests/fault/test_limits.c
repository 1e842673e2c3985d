// SPDX-License-Identifier: Apache-2.0
//
// The process is the trainer's: whatever limit of it runs out, a session ends with an error that
// names the limit, in time, and no rank is blamed that has enough of everything (life_sweep.h).

#include "protos/limits.h"
#include "tests/fault/life.h"
#include "tests/fault/life_sweep.h"
#include "worker/support/handle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#define MIB ((uint64_t)1024 * 1024)
#define FIRST_UID 61200 // Users without a name. The number of threads is limited for each user.

static void limit_to(__rlimit_resource_t resource, uint64_t value)
{
    const struct rlimit limit = {value, value};
    if (setrlimit(resource, &limit) < 0)
        _exit(4);
}

#ifndef SANITIZED

// Sizes from /proc/self/statm, in bytes: all address space, or data and stack.
static uint64_t size_now(bool data)
{
    unsigned long long fields[6] = {0};
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file || fscanf(file, "%llu %llu %llu %llu %llu %llu", &fields[0], &fields[1], &fields[2],
                        &fields[3], &fields[4], &fields[5]) != 6)
        _exit(4);
    fclose(file);
    return fields[data ? 5 : 0] * (uint64_t)sysconf(_SC_PAGESIZE);
}

#endif

// A user of its own, so that nobody else's threads count. Limits that do not bind root bind that
// user.
static void become(uid_t user)
{
    if (geteuid() != 0)
        return;
    if (setresuid(user, user, user) < 0)
        _exit(4);
    prctl(PR_SET_DUMPABLE, 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static void use_handles(uint32_t count)
{
    static uint64_t places[LOCKSTEP_MAX_HANDLES];
    for (uint32_t i = 0; i < count; i++)
        if (handle_add(HANDLE_WORK, &places[i]) < 0)
            _exit(4);
}

static void few_descriptors(uint64_t value, uint32_t world)
{
    (void)world;
    limit_to(RLIMIT_NOFILE, value); // The highest one, and one.
}

static void few_threads(uint64_t value, uint32_t world)
{
    become((uid_t)(FIRST_UID + world));
    limit_to(RLIMIT_NPROC, value);
}

#ifndef SANITIZED

// In MiB more than there is.
static void little_space(uint64_t value, uint32_t world)
{
    (void)world;
    limit_to(RLIMIT_AS, size_now(false) + value * MIB);
}

static void little_data(uint64_t value, uint32_t world)
{
    (void)world;
    limit_to(RLIMIT_DATA, size_now(true) + value * MIB);
}

#endif

static void small_files(uint64_t value, uint32_t world)
{
    (void)world;
    limit_to(RLIMIT_FSIZE, value * 1024);
}

static void few_handles(uint64_t value, uint32_t world)
{
    (void)world;
    use_handles(LOCKSTEP_MAX_HANDLES - (uint32_t)value);
}

// The first value is too small for something that the last value is enough for.
static void sweep_limit(const char *name, void (*apply)(uint64_t value, uint32_t world),
                        uint64_t first, uint64_t last, uint64_t step)
{
    const struct squeeze squeeze = {.name = name, .says = name, .apply = apply};
    const struct swept swept = life_sweep(&squeeze, first, last, step);
    assert_int_equal(swept.faults, 0);
    assert_true(swept.well > 0 && swept.refused > 0);
}

// Not a limit: the numbers 0 to 2 are free, and the library must not take them.
static void close_standard(uint64_t value, uint32_t world)
{
    (void)value;
    (void)world;
    for (int fd = 0; fd <= 2; fd++)
        close(fd);
}

// The number of standard descriptors that do not lead to /dev/null.
static uint64_t standard_taken(void)
{
    uint64_t taken = 0;
    for (int fd = 0; fd <= 2; fd++) {
        char path[32];
        char to[32] = "";
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        taken += readlink(path, to, sizeof(to) - 1) < 0 || strcmp(to, "/dev/null") != 0;
    }
    return taken;
}

// ---- The limits ---------------------------------------------------------------------------------

static void standard_descriptors_stay_free(void **state)
{
    static const struct squeeze squeeze = {
        .name = "closed", .apply = close_standard, .used = standard_taken};
    (void)state;
    const struct swept swept = life_sweep(&squeeze, 1, 1, 1);
    assert_int_equal(swept.faults, 0);
    assert_int_equal(swept.used, 0);
}

static void descriptors_run_out(void **state)
{
    (void)state;
    sweep_limit("ulimit -n", few_descriptors, 4, 64, 3);
}

// Shared blocks have descriptors, in the process that allocates them and for a moment in the other.
// A block that does not fit is private, and nothing fails.
static void blocks_leave_descriptors(void **state)
{
    const struct squeeze squeeze = {.name = "blocks", .apply = few_descriptors};
    (void)state;
    life_blocks = 60;
    const struct swept swept = life_sweep(&squeeze, 32, 192, 32);
    life_blocks = 0;
    assert_int_equal(swept.faults, 0);
    assert_int_equal(swept.refused, 0);
}

static void threads_run_out(void **state)
{
    (void)state;
    sweep_limit("ulimit -u", few_threads, 1, 80, 7);
}

// ---- Threads that others take meanwhile ---------------------------------------------------------

// How many threads may still be started. The other ranks of the user or of the container take
// threads, too, between the proof and the starts that follow it.
static _Atomic int64_t threads_left = INT64_MAX;

// The library and gRPC call this one, so it is visible.
__attribute__((visibility("default"))) int pthread_create(pthread_t *thread,
                                                          const pthread_attr_t *attributes,
                                                          void *(*body)(void *), void *argument)
{
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
    if (atomic_fetch_sub(&threads_left, 1) <= 0)
        return EAGAIN;
    return create(thread, attributes, body, argument);
}

static void take_threads(uint64_t value, uint32_t world)
{
    (void)world;
    atomic_store(&threads_left, (int64_t)value);
}

// gRPC starts its threads with the session's. One that it cannot start has no error: gRPC works on
// without it, or does not, and waits for it as it shuts down.
static void threads_run_out_after_the_proof(void **state)
{
    const struct squeeze squeeze = {.name = "threads", .apply = take_threads};
    (void)state;
    const struct swept swept = life_sweep(&squeeze, 12, 40, 1);
    assert_int_equal(swept.faults, 0);
    assert_true(swept.well > 0 && swept.refused > 0);
}

static void address_space_runs_out(void **state)
{
    (void)state;
#ifdef SANITIZED
    print_message(
        "not under this sanitizer: it reserves more address space than any limit allows\n");
    skip();
#else
    sweep_limit("ulimit -v", little_space, 8, 5000, 180);
#endif
}

static void data_runs_out(void **state)
{
    (void)state;
#ifdef SANITIZED
    print_message("not under this sanitizer: its own data counts as well\n");
    skip();
#else
    sweep_limit("ulimit -d", little_data, 1, 1200, 110);
#endif
}

static void files_are_too_small(void **state)
{
    (void)state;
    sweep_limit("ulimit -f", small_files, 0, 16384, 1000);
}

static void handles_run_out(void **state)
{
    (void)state;
    sweep_limit("handles", few_handles, 0, 264, 64);
    sweep_limit("handles", few_handles, LOCKSTEP_MAX_PLAIN, LOCKSTEP_MAX_PLAIN + 4, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(standard_descriptors_stay_free),
        cmocka_unit_test(descriptors_run_out),
        cmocka_unit_test(blocks_leave_descriptors),
        cmocka_unit_test(threads_run_out),
        cmocka_unit_test(threads_run_out_after_the_proof),
        cmocka_unit_test(address_space_runs_out),
        cmocka_unit_test(data_runs_out),
        cmocka_unit_test(files_are_too_small),
        cmocka_unit_test(handles_run_out),
    };
    return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
