// SPDX-License-Identifier: Apache-2.0
//
// Libraries that are found at run time: there, not there, without a symbol, loaded by somebody else
// from elsewhere; and the two fences on this machine, whatever it has. Small libraries of the C
// library stand for foreign ones.

#include "base/mutex.h"
#include "base/thread.h"
#include "worker/device/cuda.h"
#include "worker/device/nccl.h"
#include "worker/support/foreign.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VARIABLE "LOCKSTEP_TEST_FOREIGN"
#define THREADS 4

// Loaded by nothing else in this process, one for each test that wants a fresh one.
#define RARE_FILE "libBrokenLocale.so.1"
#define RARE_SYMBOL "__ctype_get_mb_cur_max"

struct functions {
    void (*first)(void);
    void (*second)(void);
};

static struct functions table;
static char error[256];

static struct foreign library_of(const char *file, const struct foreign_symbol *symbols,
                                 size_t count)
{
    memset(&table, 0, sizeof(table));
    memset(error, 0, sizeof(error));
    return (struct foreign){
        .file = file,
        .variable = VARIABLE,
        .advice = "; it grows on trees",
        .age = "it is too old",
        .symbols = symbols,
        .symbol_count = count,
        .table = &table,
        .mutex = MUTEX_INITIALIZER,
    };
}

static const struct foreign_symbol cosines[] = {
    {"cos", offsetof(struct functions, first), false},
    {"no_such_cosine", offsetof(struct functions, second), true},
};
static const struct foreign_symbol tangents[] = {
    {"tan", offsetof(struct functions, first), false},
    {"no_such_tangent", offsetof(struct functions, second), false},
};
static const struct foreign_symbol rare[] = {
    {RARE_SYMBOL, offsetof(struct functions, first), false},
};

static void test_loads(void **state)
{
    (void)state;
    struct foreign library = library_of("libm.so.6", cosines, 2);
    assert_string_equal(foreign_path(&library), "");
    assert_true(foreign_load(&library, FOREIGN_ANYWHERE, error, sizeof(error)));
    assert_non_null(table.first);
    assert_null(table.second); // It is optional.
    assert_non_null(strstr(foreign_path(&library), "libm.so.6"));
    assert_string_equal(error, "");
}

static void test_missing_file(void **state)
{
    (void)state;
    struct foreign library = library_of("libno-such-thing.so.1", cosines, 2);
    assert_false(foreign_load(&library, FOREIGN_ANYWHERE, error, sizeof(error)));
    assert_non_null(strstr(error, "cannot load libno-such-thing.so.1: "));
    assert_non_null(strstr(error, "; it grows on trees"));
    assert_null(table.first);
}

// The next call looks again: somebody may have loaded what was missing.
static void test_missing_symbol(void **state)
{
    (void)state;
    struct foreign library = library_of("libm.so.6", tangents, 2);
    for (int i = 0; i < 2; i++) {
        assert_false(foreign_load(&library, FOREIGN_ANYWHERE, error, sizeof(error)));
        assert_string_equal(error, "libm.so.6 has no no_such_tangent: it is too old");
        assert_string_equal(foreign_path(&library), "");
    }
    library.symbol_count = 1;
    assert_true(foreign_load(&library, FOREIGN_ANYWHERE, error, sizeof(error)));
}

static void test_variable(void **state)
{
    (void)state;
    struct foreign library = library_of("libm.so.6", cosines, 2);
    setenv(VARIABLE, "/nowhere/libm.so.6", 1);
    assert_false(foreign_load(&library, FOREIGN_ANYWHERE, error, sizeof(error)));
    assert_non_null(strstr(error, "cannot load /nowhere/libm.so.6: "));
    assert_non_null(strstr(error, " (" VARIABLE " names it)"));
    assert_null(strstr(error, "trees")); // A user who named the file needs no advice.
    setenv(VARIABLE, "", 1);
    assert_true(foreign_load(&library, FOREIGN_ANYWHERE, error, sizeof(error)));
    unsetenv(VARIABLE);
}

// Where a library lies, by loading it for a moment.
static void copy_of(const char *file, const char *symbol, char *copy, size_t bytes)
{
    void *handle = dlopen(file, RTLD_NOW);
    assert_non_null(handle);
    Dl_info info;
    assert_true(dladdr(dlsym(handle, symbol), &info) != 0);
    char command[2 * PATH_MAX];
    snprintf(copy, bytes, "/tmp/lockstep-foreign-%d.so", (int)getpid());
    snprintf(command, sizeof(command), "cp '%s' '%s'", info.dli_fname, copy);
    assert_int_equal(system(command), 0);
    dlclose(handle);
}

// As in a trainer whose framework has brought a library along: that one is taken, although a search
// by name would have found another file.
static void test_present(void **state)
{
    (void)state;
    char copy[64];
    copy_of(RARE_FILE, RARE_SYMBOL, copy, sizeof(copy));

    struct foreign library = library_of(RARE_FILE, rare, 1);
    assert_false(foreign_load(&library, FOREIGN_PRESENT, error, sizeof(error)));
    assert_string_equal(error, "this process has not loaded " RARE_FILE);

    void *theirs = dlopen(copy, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(theirs);
    assert_true(foreign_load(&library, FOREIGN_PRESENT, error, sizeof(error)));
    assert_string_equal(foreign_path(&library), copy);
    struct foreign again = library_of(RARE_FILE, rare, 1);
    assert_true(foreign_load(&again, FOREIGN_ANYWHERE, error, sizeof(error)));
    assert_string_equal(foreign_path(&again), copy);
    unlink(copy);
}

static struct foreign shared;
static struct thread threads[THREADS];

static void load_shared(void *argument)
{
    char mine[256];
    bool *loaded = argument;
    *loaded = foreign_load(&shared, FOREIGN_ANYWHERE, mine, sizeof(mine)) && table.first;
}

static void test_threads(void **state)
{
    (void)state;
    bool loaded[THREADS] = {false};
    shared = library_of("libm.so.6", cosines, 2);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(thread_start(&threads[i], "loader", load_shared, &loaded[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        thread_join(&threads[i]);
        assert_true(loaded[i]);
    }
}

// A library that is something else altogether, and none: in the fences' own words.
static void test_fences(void **state)
{
    (void)state;
    setenv("LOCKSTEP_CUDA_LIBRARY", "libm.so.6", 1);
    assert_null(cuda_load(error, sizeof(error)));
    assert_string_equal(error, "libm.so.6 has no cuInit: its driver is older than 11.4");
    assert_true(cuda_is_misnamed(error, sizeof(error)));
    assert_string_equal(error, "libm.so.6 has no cuInit: its driver is older than 11.4");
    setenv("LOCKSTEP_CUDA_LIBRARY", "/nowhere/libcuda.so", 1);
    assert_null(cuda_load(error, sizeof(error)));
    assert_null(cuda_present(error, sizeof(error)));
    assert_string_equal(error, "this process has not loaded /nowhere/libcuda.so");
    assert_string_equal(cuda_path(), "");
    assert_true(cuda_is_misnamed(error, sizeof(error)));
    assert_non_null(strstr(error, "cannot load /nowhere/libcuda.so: "));
    assert_non_null(strstr(error, "(LOCKSTEP_CUDA_LIBRARY names it)"));
    unsetenv("LOCKSTEP_CUDA_LIBRARY");
    assert_false(cuda_is_misnamed(error, sizeof(error)));

    setenv("LOCKSTEP_NCCL_LIBRARY", "libm.so.6", 1);
    assert_null(nccl_load(error, sizeof(error)));
    assert_string_equal(error, "libm.so.6 has no ncclGetVersion: it is older than 2.14");
    assert_string_equal(nccl_path(), "");
    unsetenv("LOCKSTEP_NCCL_LIBRARY");
}

// The libraries of this machine. Either way there is an answer, and it is the same one twice.
static void test_here(void **state)
{
    (void)state;
    const struct cuda *cuda = cuda_load(error, sizeof(error));
    if (!cuda) {
        printf("no libcuda here: %s\n", error);
        return;
    }
    assert_ptr_equal(cuda_load(error, sizeof(error)), cuda);
    assert_ptr_equal(cuda_present(error, sizeof(error)), cuda);
    assert_non_null(cuda->launch_kernel);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loads),          cmocka_unit_test(test_missing_file),
        cmocka_unit_test(test_missing_symbol), cmocka_unit_test(test_variable),
        cmocka_unit_test(test_present),        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_fences),         cmocka_unit_test(test_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
