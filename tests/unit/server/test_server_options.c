// SPDX-License-Identifier: Apache-2.0
//
// The flags of the daemon, as a table: arguments in, options or a sentence out.

#include "server/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

static struct options options;
static char error[512];

// Parses "name a b c", cut at spaces.
static enum options_result parse(const char *line)
{
    static char copy[512];
    char *argv[24] = {0};
    int argc = 0;
    snprintf(copy, sizeof(copy), "coordinator %s", line);
    for (char *word = strtok(copy, " "); word && argc < 23; word = strtok(NULL, " "))
        argv[argc++] = word;
    error[0] = '\0';
    FILE *out = fopen("/dev/null", "we");
    enum options_result result = options_parse(argc, argv, &options, out, error, sizeof(error));
    fclose(out);
    return result;
}

static void defaults_are_loopback(void **state)
{
    (void)state;
    char text[64];
    assert_int_equal(parse(""), OPTIONS_RUN);
    endpoint_text(&options.listen, text, sizeof(text));
    assert_string_equal(text, "127.0.0.1:50051");
    endpoint_text(&options.http, text, sizeof(text));
    assert_string_equal(text, "127.0.0.1:8080");
    assert_int_equal(options.drain_ms, 5000);
    assert_int_equal(options.stall_floor_ms, 0);
    assert_int_equal(options.memory_mib, 544);
    assert_int_equal(options.log_level, LOG_LEVEL_INFO);
    assert_null(options.port_file);
    assert_false(options.parent_death || options.http_off || options.json);
}

static void every_flag_is_read(void **state)
{
    (void)state;
    assert_int_equal(
        parse("--listen [::1]:7 --http=off --log-level debug --port-file /p "
              "--parent-death=42 --drain-ms 0 --chunk-bytes 65536 --json "
              "--outlive-ms 9 --stall-floor-ms 500 --http-token-file /t --memory-mib 96"),
        OPTIONS_RUN);
    char text[64];
    endpoint_text(&options.listen, text, sizeof(text));
    assert_string_equal(text, "[::1]:7");
    assert_true(options.http_off && options.json && options.parent_death);
    assert_int_equal(options.parent, 42);
    assert_int_equal(options.log_level, LOG_LEVEL_DEBUG);
    assert_string_equal(options.port_file, "/p");
    assert_int_equal(options.drain_ms, 0);
    assert_int_equal(options.outlive_ms, 9);
    assert_int_equal(options.chunk_bytes, 65536);
    assert_int_equal(options.stall_floor_ms, 500);
    assert_int_equal(options.memory_mib, 96);
    assert_string_equal(options.token_file, "/t");
    assert_int_equal(parse("--http localhost:0 --parent-death"), OPTIONS_RUN);
    assert_string_equal(options.http.host, "127.0.0.1");
    assert_int_equal(options.parent, 0);
}

static void help_and_version_are_answers(void **state)
{
    (void)state;
    assert_int_equal(parse("--help"), OPTIONS_DONE);
    assert_int_equal(parse("--version"), OPTIONS_DONE);
}

static void misuse_gets_a_sentence(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"--nothing", "--nothing"},
        {"-x", "--help lists"},
        {"word", "unexpected argument 'word'"},
        {"--listen", "a value is missing after '--listen'"},
        {"--listen 127.0.0.1", "HOST:PORT"},
        {"--listen 127.0.0.1:70000", "HOST:PORT"},
        {"--listen :1", "HOST:PORT"},
        {"--listen 0.0.0.0:1", "only loopback"},
        {"--listen [::]:1", "only loopback"},
        {"--listen 10.0.0.1:1", "--listen '10.0.0.1:1': only loopback"},
        {"--listen 10.0.0.1:1", "allow it with --insecure-plaintext"},
        {"--http 0.0.0.0:1", "--http '0.0.0.0:1': only loopback"},
        {"--http [fe80::1]:1", "--http '[fe80::1]:1': only loopback"},
        {"--insecure-plaintext=1", "--insecure-plaintext=1"},
        {"--insecure-plaintext --listen example.org:1", "numeric address"},
        {"--listen [::ffff:127.0.0.1]:1", "only loopback"},
        {"--http example.org:80", "numeric address"},
        {"--listen 10.0.0.1:1", "certificates with --tls-dir"},
        {"--tls-dir /t --http 10.0.0.1:1", "encrypt it with --http-tls"},
        {"--http-tls", "--http-tls needs --tls-dir"},
        {"--tls-dir=", "a directory is needed"},
        {"--listen unix:relative", "a path from the root"},
        {"--listen unix:", "a path from the root"},
        {"--listen unix:/run/a,b", "workers find no path"},
        {"--http unix:/run/x", "HOST:PORT"},
        {"--log-level loud", "error, warn, info or debug"},
        {"--drain-ms 1s", "milliseconds"},
        {"--drain-ms 600001", "600000"},
        {"--outlive-ms 600001", "600000"},
        {"--outlive-ms 9", "--outlive-ms 9 (LOCKSTEP_COORDINATOR_OUTLIVE_MS) needs --parent-death"},
        {"--chunk-bytes 1000", "multiple of 64"},
        {"--chunk-bytes 2097152", "1048576"},
        {"--stall-floor-ms 99", "100 to 3600000"},
        {"--stall-floor-ms 3600001", "100 to 3600000"},
        {"--memory-mib 95", "96 to 1048576"},
        {"--memory-mib 1g", "mebibytes"},
        {"--http-token-file=", "a path is needed"},
        {"--parent-death=0", "process id"},
        {"--json=yes", "--json=yes"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        enum options_result result = parse(cases[i][0]);
        if (result != OPTIONS_USAGE || !strstr(error, cases[i][1]))
            fail_msg("'%s' gave %d and '%s'", cases[i][0], (int)result, error);
    }
}

static void certificates_allow_any_address(void **state)
{
    (void)state;
    assert_int_equal(parse("--tls-dir /t --http 0.0.0.0:1 --http-tls"), OPTIONS_RUN);
    assert_true(options.http_tls);
    assert_int_equal(parse("--tls-dir /t --listen 0.0.0.0:1"), OPTIONS_RUN);
    assert_false(options.http_tls);
    assert_string_equal(options.tls_dir, "/t");
    assert_true(options.listen.exposed);
}

static void a_path_can_be_listened_on(void **state)
{
    (void)state;
    char text[256];
    char line[300] = "--listen unix:/";
    assert_int_equal(parse("--listen unix:/run/lockstep.sock"), OPTIONS_RUN);
    endpoint_text(&options.listen, text, sizeof(text));
    assert_string_equal(text, "unix:/run/lockstep.sock");
    assert_false(options.listen.exposed);
    memset(line + strlen(line), 'a', 107); // One too many, with the slash.
    assert_int_equal(parse(line), OPTIONS_USAGE);
    assert_non_null(strstr(error, "at most 107"));
}

static void environment_is_below_flags(void **state)
{
    (void)state;
    setenv("LOCKSTEP_COORDINATOR_DRAIN_MS", "7", 1);
    assert_int_equal(parse(""), OPTIONS_RUN);
    assert_int_equal(options.drain_ms, 7);
    assert_int_equal(parse("--drain-ms 8"), OPTIONS_RUN);
    assert_int_equal(options.drain_ms, 8);
    setenv("LOCKSTEP_COORDINATOR_DRAIN_MS", "soon", 1);
    assert_int_equal(parse(""), OPTIONS_USAGE);
    assert_non_null(strstr(error, "LOCKSTEP_COORDINATOR_DRAIN_MS 'soon'"));
    unsetenv("LOCKSTEP_COORDINATOR_DRAIN_MS");
    static const char *const names[] = {"LISTEN",    "HTTP",        "LOG_LEVEL",  "MEMORY_MIB",
                                        "DRAIN_MS",  "CHUNK_BYTES", "OUTLIVE_MS", "STALL_FLOOR_MS",
                                        "PORT_FILE", "TLS_DIR"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char name[64];
        snprintf(name, sizeof(name), "LOCKSTEP_COORDINATOR_%s", names[i]);
        setenv(name, "", 1);
        assert_int_equal(parse("--drain-ms 8"), OPTIONS_RUN);
        assert_null(options.port_file);
        unsetenv(name);
    }
}

static void plaintext_is_asked_for_by_name(void **state)
{
    (void)state;
    // Before or after the address that needs it.
    assert_int_equal(parse("--insecure-plaintext --listen 0.0.0.0:1"), OPTIONS_RUN);
    assert_true(options.listen.exposed && !options.http.exposed);
    assert_int_equal(parse("--listen [::]:1 --http 10.0.0.1:2 --insecure-plaintext"), OPTIONS_RUN);
    assert_true(options.listen.exposed && options.http.exposed);
    assert_int_equal(parse("--insecure-plaintext --listen 127.9.9.9:1"), OPTIONS_RUN);
    assert_false(options.listen.exposed);
    // Only the address that counts in the end needs it.
    assert_int_equal(parse("--listen 0.0.0.0:1 --listen 127.0.0.1:1"), OPTIONS_RUN);
    assert_int_equal(parse("--http 0.0.0.0:1 --http off"), OPTIONS_RUN);
    assert_false(options.http.exposed);
}

static void plaintext_is_asked_for_by_the_environment(void **state)
{
    (void)state;
    setenv("LOCKSTEP_INSECURE_PLAINTEXT", "1", 1);
    assert_int_equal(parse("--listen 0.0.0.0:1"), OPTIONS_RUN);
    assert_true(options.listen.exposed);
    setenv("LOCKSTEP_INSECURE_PLAINTEXT", "0", 1);
    assert_int_equal(parse("--listen 0.0.0.0:1"), OPTIONS_USAGE);
    assert_int_equal(parse("--listen 0.0.0.0:1 --insecure-plaintext"), OPTIONS_RUN);
    setenv("LOCKSTEP_INSECURE_PLAINTEXT", "yes", 1);
    assert_int_equal(parse(""), OPTIONS_USAGE);
    assert_non_null(strstr(error, "LOCKSTEP_INSECURE_PLAINTEXT 'yes'"));
    unsetenv("LOCKSTEP_INSECURE_PLAINTEXT");
    setenv("LOCKSTEP_COORDINATOR_LISTEN", "0.0.0.0:1", 1);
    assert_int_equal(parse(""), OPTIONS_USAGE);
    assert_non_null(strstr(error, "LOCKSTEP_COORDINATOR_LISTEN '0.0.0.0:1': only loopback"));
    unsetenv("LOCKSTEP_COORDINATOR_LISTEN");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_loopback),
        cmocka_unit_test(every_flag_is_read),
        cmocka_unit_test(help_and_version_are_answers),
        cmocka_unit_test(misuse_gets_a_sentence),
        cmocka_unit_test(certificates_allow_any_address),
        cmocka_unit_test(a_path_can_be_listened_on),
        cmocka_unit_test(environment_is_below_flags),
        cmocka_unit_test(plaintext_is_asked_for_by_name),
        cmocka_unit_test(plaintext_is_asked_for_by_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
