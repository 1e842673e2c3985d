// SPDX-License-Identifier: Apache-2.0
//
// Running out of file descriptors. This gRPC's listener is deaf for ever after one accept that
// failed; the daemon must open it again, and streams that stand must not notice. Real processes.

#include "tests/fault/test_server_daemon.h"

#include <sys/un.h>

#define DESCRIPTORS 64 // Hard limit of the daemon; about 25 are in use when it is idle.
#define CONNECTIONS 100
#define DESCRIPTORS_AT_REST 2688 // As SECURITY.md states it.

static void take_all_descriptors(struct daemon *daemon, int *fds)
{
    for (int i = 0; i < CONNECTIONS; i++)
        fds[i] = raw_connect(daemon->grpc);
    daemon_expect(daemon, "event=listener_deaf");
}

static void give_them_back(const int *fds)
{
    for (int i = 0; i < CONNECTIONS; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
}

static void forget_output(struct daemon *daemon)
{
    daemon->size = 0;
    daemon->output[0] = '\0';
}

// Condition: every descriptor of the daemon was taken, then given back. Decision: new workers and
// the old one form a world together.
static void listener_hears_again(void **state)
{
    (void)state;
    static struct daemon daemon;
    static struct worker old, new;
    static char answer[64 * 1024];
    int fds[CONNECTIONS];
    daemon_start(&daemon, NULL, DESCRIPTORS);
    worker_open(&old, daemon.grpc);
    worker_hello(&old, "job", 1, 2);
    worker_expect(&old, DOWN_WELCOME);

    take_all_descriptors(&daemon, fds);
    give_them_back(fds);
    daemon_expect(&daemon, "event=listener_reopened");

    worker_open(&new, daemon.grpc);
    worker_hello(&new, "job", 2, 2);
    worker_expect(&new, DOWN_GENERATION);
    worker_expect(&old, DOWN_GENERATION);
    http_get(daemon.http, "/metrics", answer, sizeof(answer));
    const char *failures = strstr(answer, "\nlockstep_coordinator_accept_failures_total ");
    assert_non_null(failures);
    assert_true(strtoul(strchr(failures, ' '), NULL, 10) >
                0); // Several events at once may be seen as one.
    assert_non_null(strstr(answer, "lockstep_coordinator_listening 1\n"));
    worker_close(&new);
    worker_close(&old);
    daemon_stop(&daemon);
}

// Exhausts the descriptors several times, while one worker keeps its stream.
static void it_hears_again_each_time(void **state)
{
    (void)state;
    static struct daemon daemon;
    static struct worker old, new;
    int fds[CONNECTIONS];
    daemon_start(&daemon, NULL, DESCRIPTORS);
    worker_open(&old, daemon.grpc);
    worker_hello(&old, "old", 1, 2);
    worker_expect(&old, DOWN_WELCOME);
    for (uint8_t round = 0; round < 4; round++) {
        forget_output(&daemon);
        take_all_descriptors(&daemon, fds);
        give_them_back(fds);
        daemon_expect(&daemon, "event=listener_reopened");
        worker_open(&new, daemon.grpc);
        worker_hello(&new, "new", (uint8_t)(2 + round), 2);
        worker_expect(&new, DOWN_WELCOME);
        worker_close(&new);
    }
    assert_false(worker_has_ended(&old));
    worker_close(&old);
    daemon_stop(&daemon);
}

// Condition: HTTP clients take all descriptors, and go on connecting. Decision: the gRPC and the
// HTTP side accept connections again as soon as descriptors are free.
static void http_side_takes_them_all(void **state)
{
    (void)state;
    static struct daemon daemon;
    static struct worker worker;
    static char answer[1024];
    int fds[CONNECTIONS];
    int kept[CONNECTIONS];
    daemon_start(&daemon, NULL, DESCRIPTORS);
    for (int i = 0; i < CONNECTIONS; i++)
        kept[i] = raw_connect(daemon.http);
    take_all_descriptors(&daemon, fds);
    give_them_back(fds);
    give_them_back(kept);
    daemon_expect(&daemon, "event=listener_reopened");
    worker_open(&worker, daemon.grpc);
    worker_hello(&worker, "job", 1, 2);
    worker_expect(&worker, DOWN_WELCOME);
    http_get(daemon.http, "/healthz", answer, sizeof(answer));
    assert_non_null(strstr(answer, "200 OK"));
    worker_close(&worker);
    daemon_stop(&daemon);
}

static int path_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
        return fd;
    close(fd);
    return -1;
}

// Starts a daemon at this path, and takes all its descriptors.
static void path_start(struct daemon *daemon, const char *path, int *fds)
{
    char listen[128];
    snprintf(listen, sizeof(listen), "--listen=unix:%s", path);
    daemon_start(daemon, (const char *[]){listen, NULL}, DESCRIPTORS);
    for (int i = 0; i < CONNECTIONS; i++) {
        fds[i] = path_connect(path);
        poll(NULL, 0, 1);
    }
    daemon_expect(daemon, "event=listener_deaf");
}

// Condition: connections to a Unix socket take all descriptors; some of them stay until the
// listener was opened again, and end then. Decision: the socket's file stays, and is gone with the
// daemon.
static void path_stays(void **state)
{
    (void)state;
    static struct daemon daemon;
    int fds[CONNECTIONS];
    char path[64];
    snprintf(path, sizeof(path), "/tmp/lockstep-test-%ld.sock", (long)getpid());
    path_start(&daemon, path, fds);
    for (int i = 0; i < CONNECTIONS; i += 2)
        close(fds[i]);
    daemon_expect(&daemon, "event=listener_reopened");
    for (int i = 1; i < CONNECTIONS; i += 2)
        close(fds[i]);
    for (int i = 0; i < 30; i++) {
        assert_int_equal(access(path, F_OK), 0);
        poll(NULL, 0, 10);
    }
    const int fd = path_connect(path);
    assert_true(fd >= 0);
    close(fd);
    daemon_stop(&daemon);
    assert_int_equal(access(path, F_OK), -1);
    path_start(&daemon, path, fds);
    daemon_stop(&daemon); // While it is deaf.
    assert_int_equal(access(path, F_OK), -1);
    give_them_back(fds);
}

static rlim_t soft_limit(const struct daemon *daemon)
{
    struct rlimit limit;
    assert_int_equal(prlimit(daemon->pid, RLIMIT_NOFILE, NULL, &limit), 0);
    if (limit.rlim_max <= DESCRIPTORS_AT_REST)
        print_message("the hard limit here is %llu: that it is not reached cannot be seen\n",
                      (unsigned long long)limit.rlim_max);
    return limit.rlim_cur;
}

static void await_soft_limit(const struct daemon *daemon, rlim_t limit)
{
    const uint64_t until_ms = clock_now_ms() + wait_bound_ms();
    while (soft_limit(daemon) != limit) {
        assert_true(clock_now_ms() < until_ms);
        usleep(1000);
    }
}

// Condition: the hard limit allows many more. Decision: no more than the bound are taken, so that
// strangers who only connect cannot take more memory than is stated; and a stream that stands takes
// no place from newcomers.
static void descriptors_have_a_bound(void **state)
{
    (void)state;
    static struct daemon daemon;
    static struct worker workers[2];
    daemon_start(&daemon, NULL, 0);
    const rlim_t rest = soft_limit(&daemon);
    assert_true(rest <= DESCRIPTORS_AT_REST);
    const rlim_t each = rest == DESCRIPTORS_AT_REST ? 1 : 0; // 0: the hard limit is what bounds.
    for (uint8_t i = 0; i < 2; i++) {
        worker_open(&workers[i], daemon.grpc);
        worker_hello(&workers[i], "job", (uint8_t)(1 + i), 3);
        worker_expect(&workers[i], DOWN_WELCOME);
        await_soft_limit(&daemon, rest + (1 + (rlim_t)i) * each);
    }
    for (uint8_t i = 0; i < 2; i++)
        worker_close(&workers[i]);
    await_soft_limit(&daemon, rest);
    daemon_stop(&daemon);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(listener_hears_again),     cmocka_unit_test(it_hears_again_each_time),
        cmocka_unit_test(http_side_takes_them_all), cmocka_unit_test(path_stays),
        cmocka_unit_test(descriptors_have_a_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
