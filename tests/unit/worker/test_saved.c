// SPDX-License-Identifier: Apache-2.0
//
// Reading files of lockstep_layout_save and lockstep_session_save: damaged and forged files. In a
// session without coordinator, through the public functions.

#include "base/hash64.h"
#include "worker/session/session.h" // Looks at the layout in force.

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <inttypes.h>

#define FILE_BYTES 4096

static const char good[] = "lockstep-saved 3\n"
                           "kind session\n"
                           "world_size 1\n"
                           "chunk_bytes 0\n"
                           "tuning 0 0\n"
                           "step 41\n"
                           "counter 7 -5\n"
                           "counter 900 12\n"
                           "module a%20net\n"
                           "set 2 3\n"
                           "bucket 2\n"
                           "parameter float32 6 weight\n"
                           "parameter float32 3 bias\n"
                           "bucket 1\n"
                           "parameter float64 2 100%25\n"
                           "set 1 1\n"
                           "bucket 1\n"
                           "parameter float64 2 100%25\n"
                           "module empty\n";

// A file in memory, because tests write thousands.
static int file;
static char path[64];

// ---- A session with the modules of that file ---------------------------------------------------

struct fixture {
    lockstep_session *session;
    lockstep_module *net;
    float weight[6];
    float bias[3];
    double last[2];
    int32_t count[1];
};

static void fixture_open(struct fixture *fixture)
{
    static const int64_t weight[2] = {2, 3};
    static const int64_t three[1] = {3};
    static const int64_t two[1] = {2};
    const struct lockstep_parameter parameters[] = {
        {.name = "100%", .dtype = LOCKSTEP_FLOAT64, .dims = 1, .shape = two, .data = fixture->last},
        {.name = "bias",
         .dtype = LOCKSTEP_FLOAT32,
         .dims = 1,
         .shape = three,
         .data = fixture->bias},
        {.name = "weight",
         .dtype = LOCKSTEP_FLOAT32,
         .dims = 2,
         .shape = weight,
         .data = fixture->weight},
        {.name = "count",
         .dtype = LOCKSTEP_INT32,
         .data = fixture->count,
         .flags = LOCKSTEP_PARAMETER_FROZEN},
    };
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *empty;
    config.name = "a net";
    config.parameters = parameters;
    config.parameter_count = 4;
    assert_int_equal(lockstep_open(NULL, &fixture->session), 0);
    assert_int_equal(lockstep_module_register(fixture->session, &config, &fixture->net), 0);
    config.name = "empty";
    config.parameter_count = 0;
    assert_int_equal(lockstep_module_register(fixture->session, &config, &empty), 0);
}

static void fixture_again(struct fixture *fixture)
{
    assert_int_equal(lockstep_close(fixture->session), 0);
    fixture_open(fixture);
}

static void write_file(const char *bytes, size_t size)
{
    assert_int_equal(ftruncate(file, 0), 0);
    assert_int_equal(pwrite(file, bytes, size, 0), (ssize_t)size);
}

// With the right checksum.
static void write_sealed(const char *bytes, size_t size)
{
    char whole[FILE_BYTES + 32];
    memcpy(whole, bytes, size);
    const int end =
        snprintf(whole + size, sizeof(whole) - size, "end %016" PRIx64 "\n", hash64(bytes, size));
    write_file(whole, size + (size_t)end);
}

static int setup(void **state)
{
    static struct fixture fixture;
    file = memfd_create("saved", MFD_CLOEXEC);
    assert_true(file >= 0);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    fixture_open(&fixture);
    *state = &fixture;
    return 0;
}

static int teardown(void **state)
{
    const struct fixture *fixture = *state;
    (void)close(file);
    return lockstep_close(fixture->session);
}

// ---- Stories -----------------------------------------------------------------------------------

static void test_a_good_file(void **state)
{
    struct fixture *fixture = *state;
    const struct bucket_layout *layout = &fixture->net->layout;
    struct lockstep_step_view view = LOCKSTEP_STEP_VIEW_INIT;
    write_sealed(good, sizeof(good) - 1);
    assert_int_equal(lockstep_session_load(fixture->session, path), 0);
    assert_int_equal(layout->bucket_count, 2);
    assert_int_equal(layout->order[0], 2);
    assert_int_equal(layout->order[1], 1);
    assert_int_equal(layout->order[2], 0);
    assert_true(fixture->net->sets.set->learned);
    assert_int_equal(lockstep_session_load(fixture->session, path), LOCKSTEP_E_INVALID);
    assert_int_equal(lockstep_start(fixture->session), 0);
    assert_int_equal(lockstep_step_begin(fixture->session, NULL, &view), 0);
    assert_int_equal(view.step, 42);
    assert_int_equal(lockstep_step_end(fixture->session, NULL), 0);
}

// A loaded file is saved again as it was, but for the order of sets: the one in force comes last.
static void test_written_and_read_again(void **state)
{
    struct fixture *fixture = *state;
    char bytes[FILE_BYTES];
    char saved[64];
    snprintf(saved, sizeof(saved), "/tmp/lockstep-saved-%ld", (long)getpid());
    write_sealed(good, sizeof(good) - 1);
    assert_int_equal(lockstep_session_load(fixture->session, path), 0);
    assert_int_equal(lockstep_session_save(fixture->session, saved), 0);
    FILE *stream = fopen(saved, "r");
    assert_non_null(stream);
    const size_t size = fread(bytes, 1, sizeof(bytes) - 1, stream);
    fclose(stream);
    bytes[size] = '\0';
    assert_non_null(strstr(bytes, "step 41\ncounter 7 -5\ncounter 900 12\nmodule a%20net\n"
                                  "set 1 1\nbucket 1\nparameter float64 2 100%25\n"
                                  "set 2 3\nbucket 2\nparameter float32 6 weight\n"
                                  "parameter float32 3 bias\nbucket 1\n"));
    fixture_again(fixture);
    assert_int_equal(lockstep_session_load(fixture->session, saved), 0);
    assert_int_equal(unlink(saved), 0);
}

// The bound on the size of a file stands for a disk that is full: a write fails in the middle. The
// file that was there stays as it was, and nothing is left beside it.
static void test_a_disk_that_is_full(void **state)
{
    struct fixture *fixture = *state;
    struct rlimit before;
    struct stat old;
    struct stat now;
    char directory[] = "/tmp/lockstep-saved-XXXXXX";
    char saved[64];
    assert_non_null(mkdtemp(directory));
    snprintf(saved, sizeof(saved), "%s/file", directory);
    assert_int_equal(lockstep_session_save(fixture->session, saved), 0);
    assert_int_equal(stat(saved, &old), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    struct rlimit small = before;
    small.rlim_cur = (rlim_t)old.st_size / 2;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const int status = lockstep_session_save(fixture->session, saved);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, LOCKSTEP_E_SYSTEM);
    assert_non_null(strstr(lockstep_error_text(), saved));
    assert_non_null(strstr(lockstep_error_text(), strerror(EFBIG)));
    assert_int_equal(stat(saved, &now), 0);
    assert_int_equal(now.st_ino, old.st_ino);
    assert_int_equal(now.st_size, old.st_size);
    assert_int_equal(lockstep_session_load(fixture->session, saved), 0);
    assert_int_equal(unlink(saved), 0);
    assert_int_equal(rmdir(directory), 0); // Fails if there is another file.
}

static void test_every_truncation(void **state)
{
    struct fixture *fixture = *state;
    char whole[FILE_BYTES];
    const int size = snprintf(whole, sizeof(whole), "%send %016" PRIx64 "\n", good,
                              hash64(good, sizeof(good) - 1));
    for (int cut = 0; cut < size; cut++) {
        write_file(whole, (size_t)cut);
        assert_int_equal(lockstep_session_load(fixture->session, path), LOCKSTEP_E_CONFIG);
    }
    // The same with a right checksum: a file that ends where a line ends may be whole.
    for (size_t cut = 0; cut < sizeof(good) - 1; cut++) {
        write_sealed(good, cut);
        assert_int_equal(lockstep_session_load(fixture->session, path), LOCKSTEP_E_CONFIG);
    }
}

static void test_every_flip_is_noticed(void **state)
{
    struct fixture *fixture = *state;
    char whole[FILE_BYTES];
    const int size = snprintf(whole, sizeof(whole), "%send %016" PRIx64 "\n", good,
                              hash64(good, sizeof(good) - 1));
    for (int at = 0; at < size; at++) {
        for (int bit = 0; bit < 8; bit++) {
            whole[at] = (char)(whole[at] ^ 1 << bit);
            write_file(whole, (size_t)size);
            assert_int_equal(lockstep_session_load(fixture->session, path), LOCKSTEP_E_CONFIG);
            whole[at] = (char)(whole[at] ^ 1 << bit);
        }
    }
}

// With a right checksum a flip is what somebody wrote: it is read, or refused by name.
static void test_every_sealed_flip_is_read_or_refused(void **state)
{
    struct fixture *fixture = *state;
    char bytes[sizeof(good)];
    uint32_t read = 0;
    memcpy(bytes, good, sizeof(good));
    for (size_t at = 0; at < sizeof(good) - 1; at++) {
        for (int bit = 0; bit < 8; bit++) {
            bytes[at] = (char)(bytes[at] ^ 1 << bit);
            write_sealed(bytes, sizeof(good) - 1);
            const int status = lockstep_session_load(fixture->session, path);
            assert_true(status == 0 || status == LOCKSTEP_E_CONFIG);
            if (status == 0) {
                read++;
                fixture_again(fixture);
            } else {
                assert_non_null(strstr(lockstep_error_text(), path));
            }
            bytes[at] = (char)(bytes[at] ^ 1 << bit);
        }
    }
    assert_true(read > 0 && read < 200); // Numbers of steps, counters and another world.
}

struct wrong {
    const char *from; // In the good file,
    const char *to; // replaced by this,
    const char *said; // is refused with this.
};

static const struct wrong wrongs[] = {
    {"lockstep-saved 3", "lockstep-saved 4", "line 1: 'lockstep-saved' and a number up to 3"},
    {"lockstep-saved 3", "lockstep-saved 1", "line 5: 'step' and a number"},
    {"bucket 2\n", "bucket 2 device\n", "line 11: 'bucket' and a number"},
    {"bucket 2\n", "bucket x devices\n", "line 11: 'bucket' and a number"},
    {"bucket 2\n", "bucket 2 devices more\n", "line 11: 'bucket' and a number"},
    {"tuning 0 0", "tuning 0 x", "line 5: the tuning with two numbers"},
    {"kind session", "kind layout", "line 2: this is not a file of lockstep_session_save"},
    {"world_size 1\n", "", "line 3: 'world_size' and a number"},
    {"world_size 1", "world_size 1025", "a number up to 1024"},
    {"chunk_bytes 0", "chunk_bytes 4096", "start the coordinator with --chunk-bytes 4096"},
    {"step 41", "step -1", "'step' and a number"},
    {"step 41", "step 41 ", "'step' and a number"},
    {"counter 900", "counter 6", "line 8: this is no counter"},
    {"counter 7", "counter 0", "line 7: this is no counter"},
    {"module a%20net", "module a net", "module 'a net' is expected here"},
    {"module a%20net", "module b", "module 'b' in the place of 'a net'"},
    {"module a%20net", "module a%2", "two hexadecimal digits"},
    {"module a%20net", "module a%00", "two hexadecimal digits"},
    {"module a%20net", "module %ff", "this is no name"},
    {"module empty\n", "", "module 'empty' is expected here"},
    {"module empty\n", "module empty\nmodule more\n", "there is more in the file"},
    {"set 2 3", "set 2 5", "the set has 5 parameters, and module "},
    {"set 2 3", "set 4 3", "as many parameters as buckets"},
    {"set 2 3", "set 2 4", "fewer parameters than it says"},
    {"set 2 3", "set 3 3", "'bucket' and a number"},
    {"bucket 2", "bucket 4", "'bucket' and a number up to 3"},
    {"bucket 2", "bucket 0", "'bucket' and a number"},
    {"float32 6 weight", "float32 7 weight",
     "'weight' of module 'a net' has 6 elements of float32"},
    {"float32 6 weight", "float64 6 weight",
     "'weight' of module 'a net' has 6 elements of float32"},
    {"float32 6 weight", "float32 6 wait", "has no parameter 'wait': the file is of other modules"},
    {"float32 6 weight", "float32 3 bias", "the set names parameter 'bias' twice"},
    {"float32 6 weight", "int32 1 count", "'count' of module 'a net' has 1 elements of int32"},
    {"parameter float32 3 bias\nbucket 1\nparameter float64 2 100%25\nset 1 1",
     "parameter float64 2 100%25\nbucket 1\nparameter float32 3 bias\nset 1 1",
     "bucket 0 has parameter 2 of float32 beside"},
    {"float32 3 bias", "float32 3 bias more", "a parameter with dtype, elements and name"},
    {"set 1 1\nbucket 1\nparameter float64 2 100%25\n",
     "set 1 1\nbucket 1\nparameter float64 2 100%25\nset 1 1\nbucket 1\n"
     "parameter float64 2 100%25\n",
     "module 'a net' has the same set twice"},
};

// Where gradients are is known when the session starts.
static void test_a_file_of_devices_is_not_for_hosts(void **state)
{
    struct fixture *fixture = *state;
    char bytes[FILE_BYTES];
    const char *at = strstr(good, "bucket 2");
    const int size = snprintf(bytes, sizeof(bytes), "%.*sbucket 2 devices%s", (int)(at - good),
                              good, at + strlen("bucket 2"));
    write_sealed(bytes, (size_t)size);
    assert_int_equal(lockstep_session_load(fixture->session, path), 0);
    assert_true(fixture->net->layout.buckets[0].device);
    assert_false(fixture->net->layout.buckets[1].device);
    assert_int_equal(lockstep_start(fixture->session), LOCKSTEP_E_CONFIG);
    assert_non_null(strstr(lockstep_error_text(),
                           "has the gradient of 'weight' of module 'a net' on devices, and it is "
                           "in host memory now"));
}

static void test_wrong_files_are_refused_by_name(void **state)
{
    struct fixture *fixture = *state;
    for (size_t i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); i++) {
        char bytes[FILE_BYTES];
        const char *at = strstr(good, wrongs[i].from);
        assert_non_null(at);
        const int size = snprintf(bytes, sizeof(bytes), "%.*s%s%s", (int)(at - good), good,
                                  wrongs[i].to, at + strlen(wrongs[i].from));
        write_sealed(bytes, (size_t)size);
        assert_int_equal(lockstep_session_load(fixture->session, path), LOCKSTEP_E_CONFIG);
        if (!strstr(lockstep_error_text(), wrongs[i].said))
            print_error("%s -> %s: %s\n", wrongs[i].from, wrongs[i].to, lockstep_error_text());
        assert_non_null(strstr(lockstep_error_text(), wrongs[i].said));
    }
}

static void test_a_long_line(void **state)
{
    static char bytes[FILE_BYTES];
    struct fixture *fixture = *state;
    memset(bytes, 'x', sizeof(bytes));
    memcpy(bytes, "lockstep-saved ", 15);
    bytes[FILE_BYTES - 2] = '\n';
    write_sealed(bytes, FILE_BYTES - 1);
    assert_int_equal(lockstep_session_load(fixture->session, path), LOCKSTEP_E_CONFIG);
    assert_non_null(strstr(lockstep_error_text(), "line 1: this is no line of a saved file"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_a_good_file),
        TEST(test_written_and_read_again),
        TEST(test_a_disk_that_is_full),
        TEST(test_every_truncation),
        TEST(test_every_flip_is_noticed),
        TEST(test_every_sealed_flip_is_read_or_refused),
        TEST(test_wrong_files_are_refused_by_name),
        TEST(test_a_file_of_devices_is_not_for_hosts),
        TEST(test_a_long_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
