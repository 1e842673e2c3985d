// SPDX-License-Identifier: Apache-2.0
//
// Saving in a directory where other users can create files. If a link or a file already exists at
// the name of the temporary file, saving does not follow the link and still succeeds.

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

#define NAMES 20 // Number of temporary file names that an attacker has guessed.

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

// Condition: links to a victim's file exist at the names of the next temporary files; then files of
// an earlier process. Decision: saving succeeds, and the victim's file is unchanged.
static void a_link_is_not_followed(void **state)
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
    assert_int_equal(lstat(path, &status), 0);
    assert_true(S_ISREG(status.st_mode) && status.st_size > 0);
    unlink(path);
    unlink(victim);
    assert_int_equal(rmdir(directory), 0); // No temporary file is left.
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_link_is_not_followed)};
    return cmocka_run_group_tests_name("save_links", tests, NULL, NULL);
}
