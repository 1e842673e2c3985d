// SPDX-License-Identifier: Apache-2.0
//
// Saving in a directory where other processes create files, and saving where the path itself is a
// link, or no regular file.

#include <lockstep/lockstep.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define NAMES 20 // Number of names that other processes use for temporary files.

static lockstep_session *open_alone(float *data, float *gradient)
{
    lockstep_session *session;
    lockstep_module *module;
    struct lockstep_parameter parameter = LOCKSTEP_PARAMETER_INIT;
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    unsetenv("LOCKSTEP_COORDINATOR");
    parameter.name = "w";
    parameter.data = data;
    parameter.gradient = gradient;
    config.name = "line";
    config.parameters = &parameter;
    config.parameter_count = 1;
    assert_int_equal(lockstep_open(NULL, &session), LOCKSTEP_OK);
    assert_int_equal(lockstep_module_register(session, &config, &module), LOCKSTEP_OK);
    assert_int_equal(lockstep_start(session), LOCKSTEP_OK);
    return session;
}

// Condition: a process of another container, which has the same pid, writes to the same path; some
// of its temporary files are links to a victim's file. Decision: saving succeeds, and touches none
// of these files.
static void files_of_others_are_left_alone(void **state)
{
    char directory[] = "/tmp/lockstep-links-XXXXXX";
    char victim[64], path[64], name[128], line[16] = "";
    float data = 0, gradient = 0;
    struct stat status;
    (void)state;
    assert_non_null(mkdtemp(directory));
    snprintf(victim, sizeof(victim), "%s/victim", directory);
    snprintf(path, sizeof(path), "%s/saved", directory);
    FILE *file = fopen(victim, "w");
    assert_non_null(file);
    assert_true(fputs("precious", file) >= 0);
    assert_int_equal(fclose(file), 0);
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof(name), "%s.%ld.%d.tmp", path, (long)getpid(), i);
        assert_int_equal(i % 2 == 0 ? symlink(victim, name) : link(victim, name), 0);
    }
    lockstep_session *session = open_alone(&data, &gradient);
    for (int i = 0; i < NAMES; i++)
        assert_int_equal(lockstep_session_save(session, path), LOCKSTEP_OK);
    assert_int_equal(lockstep_close(session), LOCKSTEP_OK);
    file = fopen(victim, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    assert_string_equal(line, "precious");
    fclose(file);
    for (int i = 0; i < NAMES; i++) {
        snprintf(name, sizeof(name), "%s.%ld.%d.tmp", path, (long)getpid(), i);
        assert_int_equal(unlink(name), 0);
    }
    assert_int_equal(lstat(path, &status), 0);
    assert_true(S_ISREG(status.st_mode) && status.st_size > 0);
    unlink(path);
    unlink(victim);
    assert_int_equal(rmdir(directory), 0); // No temporary file is left.
}

// The type of what the path names, as in st_mode. A link is not followed.
static mode_t type_of(const char *path)
{
    struct stat status;
    assert_int_equal(lstat(path, &status), 0);
    return status.st_mode & S_IFMT;
}

// Condition: the path is a FIFO, a link to it, a directory, or a link to nothing. Decision: saving
// fails, the text names the path, and all of them stay. A link to a file stays a link, and the file
// is replaced.
static void only_a_file_is_replaced(void **state)
{
    static const char *const names[] = {"fifo", "link_to_fifo", "directory", "link_to_nothing"};
    static const int wanted[] = {LOCKSTEP_E_INVALID, LOCKSTEP_E_INVALID, LOCKSTEP_E_INVALID,
                                 LOCKSTEP_E_SYSTEM};
    static const mode_t types[] = {S_IFIFO, S_IFLNK, S_IFDIR, S_IFLNK};
    char directory[] = "/tmp/lockstep-links-XXXXXX";
    float data = 0, gradient = 0;
    struct stat status;
    (void)state;
    assert_non_null(mkdtemp(directory));
    lockstep_session *session = open_alone(&data, &gradient);
    assert_int_equal(chdir(directory), 0);
    assert_int_equal(mkfifo("fifo", 0600), 0);
    assert_int_equal(symlink("fifo", "link_to_fifo"), 0);
    assert_int_equal(mkdir("directory", 0700), 0);
    assert_int_equal(symlink("nothing", "link_to_nothing"), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_int_equal(lockstep_session_save(session, names[i]), wanted[i]);
        assert_non_null(strstr(lockstep_error_text(), names[i]));
        assert_int_equal(type_of(names[i]), types[i]);
    }
    FILE *file = fopen("directory/file", "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(symlink("directory/file", "link"), 0);
    assert_int_equal(lockstep_layout_save(session, "link"), LOCKSTEP_OK);
    assert_int_equal(type_of("link"), S_IFLNK);
    assert_int_equal(lstat("directory/file", &status), 0);
    assert_true(S_ISREG(status.st_mode) && status.st_size > 0);
    assert_int_equal(lockstep_close(session), LOCKSTEP_OK);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        assert_true(unlink(names[i]) == 0 || types[i] == S_IFDIR);
    assert_true(unlink("link") == 0 && unlink("directory/file") == 0 && rmdir("directory") == 0);
    assert_int_equal(rmdir(directory), 0); // No temporary file is left.
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(files_of_others_are_left_alone),
                                       cmocka_unit_test(only_a_file_is_replaced)};
    return cmocka_run_group_tests_name("save_links", tests, NULL, NULL);
}
