// SPDX-License-Identifier: Apache-2.0
//
// A worker logs a warning if other users of the machine can read or change its key. The test needs
// no coordinator, because the warning comes before the worker connects.

#include <lockstep/lockstep.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static char said[4096]; // The log line about the key; empty: there was none.

// The log sink. LOCKSTEP_LOG sets the level.
static void keep(void *context, lockstep_log_level level, const char *line)
{
    (void)context;
    (void)level;
    if (strstr(line, "event=secret_exposed"))
        snprintf(said, sizeof(said), "%s", line);
}

static void try_to_open(const char *directory)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    lockstep_session *session;
    said[0] = '\0';
    config.coordinator = "127.0.0.1:9";
    config.tls_dir = directory;
    config.open_timeout_ms = 50;
    config.world_size = 1;
    config.log = keep;
    config.log_level = LOCKSTEP_LOG_WARN;
    assert_true(lockstep_open(&config, &session) < 0);
}

static void a_worker_warns_of_its_key(void **state)
{
    static const struct {
        mode_t mode;
        const char *warning;
    } cases[] = {
        {0600, NULL}, {0440, NULL}, {0644, "mode=0644"}, {0602, "mode=0602"}, {0660, "mode=0660"}};
    char pki[] = "/tmp/lockstep-key-XXXXXX";
    char command[512], worker[64], key[128];
    const char *bin = getenv("LOCKSTEP_TEST_BIN");
    (void)state;
    assert_non_null(mkdtemp(pki));
    snprintf(command, sizeof(command),
             "%s/lockstep certs init --dir %s/pki --name 127.0.0.1 >/dev/null",
             bin ? bin : "build/bin", pki);
    assert_int_equal(system(command), 0);
    snprintf(worker, sizeof(worker), "%s/pki/worker", pki);
    snprintf(key, sizeof(key), "%s/tls.key", worker);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(chmod(key, cases[i].mode), 0);
        try_to_open(worker);
        if (!cases[i].warning) {
            assert_string_equal(said, "");
            continue;
        }
        assert_non_null(strstr(said, cases[i].warning));
        assert_non_null(strstr(said, key));
    }
    snprintf(command, sizeof(command), "rm -rf %s", pki);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_worker_warns_of_its_key)};
    return cmocka_run_group_tests_name("key_mode", tests, NULL, NULL);
}
