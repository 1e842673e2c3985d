// SPDX-License-Identifier: Apache-2.0
//
// Permissions on the control plane, with certificates of `lockstep certs` and a real daemon. The
// workers here join jobs that their certificate does not allow. The library itself would refuse to
// try that; the test checks that the daemon refuses it.

#include "tests/fault/test_server_daemon.h"
#include "worker/control/grpc.h"

#include <ftw.h>

static struct daemon server;
static struct worker first, second;
static char answer[256 * 1024];
static char folder[64];

static const char *below(const char *name)
{
    static char paths[4][256];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static void certs(const char *arguments)
{
    const char *bin = getenv("LOCKSTEP_TEST_BIN");
    char command[1024];
    snprintf(command, sizeof(command), "cd %s && %s/lockstep certs %s >/dev/null", folder,
             bin ? bin : "build/bin", arguments);
    assert_int_equal(system(command), 0);
}

static void http_expect(const char *path, const char *text)
{
    http_await(server.http, path, text, answer, sizeof(answer));
}

static void start(void)
{
    const char *more[] = {"--tls-dir", below("ca/coordinator"), NULL};
    daemon_start(&server, more, 0);
}

static void names_nothing(const char *text)
{
    static const char *const secrets[] = {"alpha", "beta", "rank", "127.0.0.1:100", "host"};
    for (size_t i = 0; i < sizeof(secrets) / sizeof(secrets[0]); i++) {
        const char *found = strstr(text, secrets[i]);
        if (found)
            fail_msg("'%s' tells '%s'", text, secrets[i]);
    }
}

// ---- at the hello -----------------------------------------------------------------------------

static void a_worker_joins_its_own_job(void **state)
{
    (void)state;
    start();
    worker_open_tls(&first, server.grpc, below("alpha"), "alpha");
    worker_hello(&first, "alpha", 1, 2);
    worker_expect(&first, DOWN_WELCOME);
    // A certificate for any job.
    worker_open_tls(&second, server.grpc, below("ca/worker"), "alpha");
    worker_hello(&second, "alpha", 2, 2);
    worker_expect(&second, DOWN_GENERATION);
    worker_close(&second);
    worker_close(&first);
    daemon_stop(&server);
}

// Sends a hello to this job with a certificate of job beta. Returns the refusal in `text`.
static void hello_is_refused(const char *job, char *text, size_t capacity)
{
    worker_open_tls(&second, server.grpc, below("beta"), "beta");
    worker_hello(&second, job, 2, 2);
    worker_expect_end(&second, "this certificate does not allow what was asked for");
    assert_int_equal(second.count, 0);
    const char *sentence = strstr(second.text, "refused this worker: ");
    assert_non_null(sentence);
    snprintf(text, capacity, "%s", sentence);
    names_nothing(text);
    worker_close(&second);
}

// Condition: a worker with a certificate of job beta sends a hello to alpha. Decision: it gets one
// sentence, which is the same whether alpha exists or not. The daemon stores nothing under that
// name, and alpha goes on.
static void a_worker_of_another_job_learns_nothing(void **state)
{
    (void)state;
    char missing[LOCKSTEP_TEXT_BYTES];
    char there[LOCKSTEP_TEXT_BYTES];
    start();
    hello_is_refused("alpha", missing, sizeof(missing));
    http_expect("/metrics", "streams_unauthorized_total 1\n");
    http_expect("/api/v1/jobs", "\"jobs\":[]");

    worker_open_tls(&first, server.grpc, below("alpha"), "alpha");
    worker_hello(&first, "alpha", 1, 2);
    worker_expect(&first, DOWN_WELCOME);
    hello_is_refused("alpha", there, sizeof(there));
    assert_string_equal(missing, there);
    http_expect("/metrics", "streams_unauthorized_total 2\n");
    http_expect("/api/v1/jobs/alpha", "\"joined\":1");
    assert_false(worker_has_ended(&first));
    worker_close(&first);
    daemon_stop(&server);
    assert_true(daemon_said(&server, "event=unauthorized"));
}

// A member that sends a second hello, to a job that its certificate does not allow, loses its
// stream.
static void a_second_hello_is_asked_for_its_job_too(void **state)
{
    (void)state;
    start();
    worker_open_tls(&first, server.grpc, below("beta"), "beta");
    worker_hello(&first, "beta", 1, 2);
    worker_expect(&first, DOWN_WELCOME);
    worker_hello(&first, "alpha", 1, 2);
    worker_expect_end(&first, "this certificate does not allow what was asked for");
    worker_close(&first);
    daemon_stop(&server);
}

// ---- before the hello -------------------------------------------------------------------------

static void own_certificate_is_checked_first(void **state)
{
    static const struct {
        const char *directory;
        const char *job;
        const char *says;
    } cases[] = {
        {"beta", "alpha", "/tls.crt: is not a worker's of job alpha, but of another job"},
        {"ca/coordinator", "alpha", "/tls.crt: must not be used by a client of TLS"},
        {"observer", "alpha", "have no URI lockstep://job/alpha/worker"},
        {"nowhere", "alpha", "nowhere/tls.crt: cannot be read: No such file or directory"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char error[LOCKSTEP_TEXT_BYTES] = "";
        struct control_events events = {
            .received = worker_received, .ended = worker_ended, .context = &first};
        const struct control_target target = {"127.0.0.1:1", 1000, below(cases[i].directory),
                                              cases[i].job};
        assert_int_equal(control_open(&target, &events, &first.control, error, sizeof(error)), -1);
        if (!strstr(error, cases[i].says))
            fail_msg("case %zu: '%s' is not in '%s'", i, cases[i].says, error);
    }
}

// Condition: a client without a certificate. Decision: it cannot send any message.
static void plaintext_gets_nowhere(void **state)
{
    (void)state;
    char error[LOCKSTEP_TEXT_BYTES];
    char address[64];
    start();
    memset(&first, 0, sizeof(first));
    mutex_init(&first.mutex);
    cond_init(&first.changed);
    struct control_events events = {
        .received = worker_received, .ended = worker_ended, .context = &first};
    snprintf(address, sizeof(address), "127.0.0.1:%u", server.grpc);
    const struct control_target target = {address, test_bound_ms(500), NULL, NULL};
    assert_int_equal(control_open(&target, &events, &first.control, error, sizeof(error)), 0);
    worker_hello(&first, "alpha", 1, 2);
    worker_expect_end(&first, "set LOCKSTEP_TLS_DIR");
    assert_int_equal(first.count, 0);
    worker_close(&first);
    daemon_stop(&server);
    assert_true(daemon_said(&server, "event=tls_handshake_failed text=\"a client does not speak"));
}

// ---- fixture ----------------------------------------------------------------------------------

static int make_material(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/lockstep_tls_XXXXXX");
    assert_non_null(mkdtemp(folder));
    certs("init --dir ca --name 127.0.0.1");
    certs("issue --dir ca --role worker --job alpha --out alpha");
    certs("issue --dir ca --role worker --job beta --out beta");
    certs("issue --dir ca --role observer --out observer");
    return 0;
}

static int forget(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status;
    (void)kind;
    (void)walk;
    return remove(path);
}

static int remove_material(void **state)
{
    (void)state;
    return nftw(folder, forget, 8, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_joins_its_own_job),
        cmocka_unit_test(a_worker_of_another_job_learns_nothing),
        cmocka_unit_test(a_second_hello_is_asked_for_its_job_too),
        cmocka_unit_test(own_certificate_is_checked_first),
        cmocka_unit_test(plaintext_gets_nowhere),
    };
    return cmocka_run_group_tests(tests, make_material, remove_material);
}
