// SPDX-License-Identifier: Apache-2.0
//
// The behaviour of lockstep-coordinator for programs that start it, connect to it, or end it. The
// coordinator is a real process on real sockets. The workers use the library's control stream.

#include "tests/fault/test_server_daemon.h"
#include "worker/control/grpc.h"

static struct daemon server;
static struct worker first, second;
static char answer[256 * 1024];

static void http_expect(const char *path, const char *text)
{
    http_await(server.http, path, text, answer, sizeof(answer));
}

// ---- starting ---------------------------------------------------------------------------------

struct refusal_case {
    const char *arguments[3];
    int code;
    const char *says;
};

// Condition: the coordinator's options do not allow a start. Decision: it prints one sentence that
// says what to do, and ends.
static void refuses_in_one_sentence(void **state)
{
    (void)state;
    static const struct refusal_case cases[] = {
        {{"--bogus"}, 2, "--help lists the flags"},
        {{"--listen=0.0.0.0:0"}, 2, "allow it with --insecure-plaintext"},
        {{"--listen=[::]:0"}, 2, "only loopback"},
        {{"--http=192.0.2.1:0"}, 2, "only loopback"},
        {{"--listen=nonsense"}, 2, "HOST:PORT"},
        {{"--listen=example.org:1"}, 2, "numeric address or localhost"},
        {{"extra"}, 2, "unexpected argument"},
        {{"--listen=127.0.0.1:0", "--port-file=/nonexistent/ports", "--http=off"},
         1,
         "--port-file"},
        {{"--listen=127.0.0.1:0", "--parent-death=1", "--http=off"}, 1, "ended already"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *arguments[4] = {0};
        memcpy(arguments, cases[i].arguments, sizeof(cases[i]).arguments);
        daemon_spawn(&server, arguments, 0);
        daemon_expect_exit(&server, cases[i].code);
        if (!daemon_said(&server, cases[i].says))
            fail_msg("case %zu: '%s' is missing in: %s", i, cases[i].says, server.output);
        assert_ptr_equal(strchr(server.output, '\n'), server.output + server.size - 1);
    }
}

static void expect_port_in_use(const char *flag, uint16_t port)
{
    static struct daemon other;
    char argument[64];
    snprintf(argument, sizeof(argument), "%s=127.0.0.1:%u", flag, port);
    const char *arguments[] = {"--listen=127.0.0.1:0", "--http=127.0.0.1:0", argument, NULL};
    daemon_spawn(&other, arguments, 0);
    daemon_expect_exit(&other, 1);
    if (!daemon_said(&other, "Address already in use") || !daemon_said(&other, "port 0 takes any"))
        fail_msg("not a good sentence: %s", other.output);
    assert_ptr_equal(strchr(other.output, '\n'), other.output + other.size - 1);
}

static void names_a_port_in_use(void **state)
{
    (void)state;
    daemon_start(&server, NULL, 0);
    expect_port_in_use("--listen", server.grpc);
    expect_port_in_use("--http", server.http);
    daemon_stop(&server);
}

static void listens_on_ipv6(void **state)
{
    (void)state;
    const char *arguments[] = {"--listen=[::1]:0", "--http=off", NULL};
    int probe = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    bool six = probe >= 0 && bind(probe, (struct sockaddr *)&address, sizeof(address)) == 0;
    if (probe >= 0)
        close(probe);
    if (!six)
        skip();
    daemon_spawn(&server, arguments, 0);
    daemon_expect(&server, "event=coordinator_ready");
    assert_true(daemon_said(&server, "grpc=[::1]:"));
    daemon_stop(&server);
}

// Condition: a coordinator starts. Decision: its first line has every flag that holds.
static void says_its_configuration(void **state)
{
    (void)state;
    const char *arguments[] = {"--listen=127.0.0.1:0",  "--http=off",
                               "--drain-ms=7",          "--parent-death",
                               "--outlive-ms=9",        "--chunk-bytes=65536",
                               "--http-host=a.example", "--http-token-file=/tmp/token",
                               "--insecure-plaintext",  NULL};
    static const char *const parts[] = {"drain_ms=7",
                                        "outlive_ms=9",
                                        "chunk_bytes=65536",
                                        "stall_floor_ms=10000",
                                        "log_level=info",
                                        "launcher=0",
                                        "memory_mib=544",
                                        "plaintext_allowed=1",
                                        "http_tls=0",
                                        "port_file=",
                                        "tls_dir=none",
                                        "http_host=a.example",
                                        "http_token_file=/tmp/token",
                                        "parent=",
                                        "grpc_core="};
    daemon_spawn(&server, arguments, 0);
    daemon_expect(&server, "event=coordinator_ready");
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (!daemon_said(&server, parts[i]))
            fail_msg("no %s", parts[i]);
    }
    daemon_stop(&server);
}

// Condition: an option lets other hosts reach the coordinator without protection. Decision: it
// prints a warning for people at any log level, and also logs one.
static void warns_when_it_is_exposed(void **state)
{
    (void)state;
    const char *quiet[] = {"--listen=0.0.0.0:0", "--insecure-plaintext", "--http=off",
                           "--log-level=error", NULL};
    daemon_spawn(&server, quiet, 0);
    daemon_expect(&server, "warning: --insecure-plaintext: whoever reaches 0.0.0.0:");
    daemon_stop(&server);
    assert_false(daemon_said(&server, "event=insecure_plaintext"));

    const char *loud[] = {"--listen=127.0.0.1:0", "--insecure-plaintext", "--http=0.0.0.0:0", NULL};
    daemon_spawn(&server, loud, 0);
    daemon_expect(&server, "event=insecure_plaintext grpc=loopback http=0.0.0.0:");
    assert_true(daemon_said(&server, "can read the state of all jobs, and nothing is encrypted"));
    assert_true(daemon_said(&server, "hint=\"not encrypted, not authenticated: let only hosts"));
    daemon_stop(&server);

    const char *loopback[] = {"--insecure-plaintext", NULL};
    daemon_start(&server, loopback, 0);
    daemon_stop(&server);
    assert_false(daemon_said(&server, "insecure"));
}

// The port file is complete as soon as it exists, and is deleted at a normal end.
static void writes_the_port_file(void **state)
{
    (void)state;
    char path[64];
    char argument[96];
    char text[64] = "";
    unsigned grpc = 0, http = 0;
    snprintf(path, sizeof(path), "/tmp/lockstep_ports_%d", (int)getpid());
    snprintf(argument, sizeof(argument), "--port-file=%s", path);
    const char *more[] = {argument, NULL};
    daemon_start(&server, more, 0);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof(text), file));
    fclose(file);
    assert_int_equal(sscanf(text, "grpc=%u http=%u", &grpc, &http), 2);
    assert_int_equal(grpc, server.grpc);
    assert_int_equal(http, server.http);
    daemon_stop(&server);
    assert_int_equal(access(path, F_OK), -1);
}

// ---- streams ----------------------------------------------------------------------------------

// Starts the daemon, and a job of the first and the second worker.
static void form_a_world(void)
{
    daemon_start(&server, NULL, 0);
    worker_open(&first, server.grpc);
    worker_open(&second, server.grpc);
    worker_hello(&first, "job", 1, 2);
    worker_hello(&second, "job", 2, 2);
    worker_expect(&first, DOWN_GENERATION);
    worker_expect(&second, DOWN_GENERATION);
}

static void two_workers_form_a_world(void **state)
{
    (void)state;
    form_a_world();
    http_expect("/api/v1/jobs/job", "\"world_size\":2");
    assert_non_null(strstr(answer, "\"rank\":1"));
    worker_close(&first);
    worker_expect(&second, DOWN_HALT); // The first worker ended its stream without a leave.
    worker_close(&second);
    http_expect("/metrics", "lockstep_coordinator_halts_total{kind=\"lost\"} 1\n");
    http_expect("/metrics", "lockstep_coordinator_messages_received_total{kind=\"hello\"} 2\n");
    daemon_stop(&server);
}

// A refused worker gets a message, its stream ends, and the metric counts the reason.
static void refused_worker_is_told(void **state)
{
    (void)state;
    daemon_start(&server, NULL, 0);
    worker_open(&first, server.grpc);
    worker_open(&second, server.grpc);
    worker_hello(&first, "job", 1, 2);
    worker_expect(&first, DOWN_WELCOME);
    worker_hello(&second, "job", 2, 3);
    worker_expect(&second, DOWN_REFUSED);
    worker_expect_end(&second, "");
    http_expect("/metrics", "lockstep_coordinator_refusals_total{kind=\"invalid\"} 1\n");
    worker_close(&second);
    worker_close(&first);
    daemon_stop(&server);
}

// A worker that is refused for a while comes again, later each time. The log says so once.
static void worker_that_comes_early_is_patient(void **state)
{
    static struct worker early;
    (void)state;
    form_a_world();
    const struct up_message leave = {.kind = UP_LEAVE};
    assert_int_equal(control_send(first.control, &leave), 0);
    worker_close(&first);
    worker_open(&early, server.grpc);
    worker_hello(&early, "job", 3, 2);
    poll(NULL, 0, 2000);
    http_get(server.http, "/metrics", answer, sizeof(answer));
    const char *found = strstr(answer, "lockstep_coordinator_refusals_total{kind=\"draining\"} ");
    assert_non_null(found);
    // After 10, 20, 40, 80, 160 and then 250 ms, or up to half of that.
    assert_in_range(strtoul(strchr(found, ' '), NULL, 10), 2, 22);
    worker_close(&early);
    worker_close(&second);
    daemon_stop(&server);
    const char *said = strstr(server.output, "event=worker_refused");
    assert_non_null(said);
    assert_null(strstr(said + 1, "event=worker_refused"));
}

// ---- questions to workers ---------------------------------------------------------------------

static void answer_with(const struct down_message *asked, uint64_t id, uint32_t tid)
{
    static struct up_message message;
    message = (struct up_message){.kind = UP_ANSWER, .generation = asked->generation};
    message.u.answer.id = id;
    message.u.answer.last = true;
    message.u.answer.kind = ANSWER_THREADS;
    message.u.answer.u.threads.count = 1;
    message.u.answer.u.threads.threads[0] = (struct stack_thread){.tid = tid, .state = 'R'};
    assert_int_equal(control_send(first.control, &message), 0);
}

static const struct down_message *message_of(enum down_kind kind)
{
    worker_expect(&first, kind);
    return worker_message(&first, kind);
}

// Condition: an HTTP client asks for the stack of a rank, whose worker also sends an unasked
// answer. Decision: the coordinator asks the worker and shows its answer, but not the unasked one.
static void stack_comes_from_the_worker(void **state)
{
    (void)state;
    static const char get[] = "GET /api/v1/jobs/job/ranks/0/stack?fresh=1 HTTP/1.1\r\n"
                              "Host: localhost\r\nConnection: close\r\n\r\n";
    daemon_start(&server, NULL, 0);
    worker_open(&first, server.grpc);
    worker_hello(&first, "job", 1, 1);
    answer_with(message_of(DOWN_GENERATION), 12345, 666);
    http_expect("/metrics", "messages_received_total{kind=\"answer\"} 1\n");
    http_expect("/api/v1/jobs/job/ranks/0/stack", "404 Not Found");
    int fd = raw_connect(server.http);
    assert_int_equal(write(fd, get, sizeof(get) - 1), sizeof(get) - 1);
    const struct down_message *asked = message_of(DOWN_INSPECT);
    assert_true(asked->u.inspect.what & INSPECT_STACKS);
    struct down_message other = {.generation = asked->generation};
    other.generation.number++;
    answer_with(asked, asked->u.inspect.id + 1, 666);
    answer_with(&other, asked->u.inspect.id, 667);
    answer_with(asked, asked->u.inspect.id, 42);
    raw_read_all(fd, answer, sizeof(answer));
    close(fd);
    // An answer that comes too late for this request is kept for the next one.
    if (!strstr(answer, "HTTP/1.1 503")) {
        assert_non_null(strstr(answer, "HTTP/1.1 200"));
        assert_non_null(strstr(answer, "\"threads\":[{\"tid\":42,"));
    }
    http_expect("/api/v1/jobs/job/ranks/0/stack", "\"threads\":[{\"tid\":42,");
    worker_close(&first);
    daemon_stop(&server);
}

// Condition: a rank has left, and no rank of its job was ever asked for its stack. Decision: both
// paths say so, and no request waits for an answer.
static void stack_of_a_rank_that_has_left(void **state)
{
    const struct up_message leave = {.kind = UP_LEAVE};
    char path[64];
    char says[64];
    (void)state;
    form_a_world();
    const uint32_t rank = worker_message(&first, DOWN_GENERATION)->u.generation_start.rank;
    assert_int_equal(control_send(first.control, &leave), 0);
    worker_close(&first);
    snprintf(says, sizeof(says), "\"rank %u has left the job\"", rank);
    snprintf(path, sizeof(path), "/api/v1/jobs/job/ranks/%u/stack", rank);
    http_expect(path, says);
    snprintf(path, sizeof(path), "/api/v1/jobs/job/ranks/%u/stack?fresh=1", rank);
    http_expect(path, says);
    worker_close(&second);
    daemon_stop(&server);
}

// An invalid token file is refused. With a valid one, requests need the token, even on loopback.
static void token_file_is_read(void **state)
{
    (void)state;
    char path[64];
    char argument[96];
    snprintf(path, sizeof(path), "/tmp/lockstep_token_%d", (int)getpid());
    snprintf(argument, sizeof(argument), "--http-token-file=%s", path);
    const char *arguments[] = {"--listen=127.0.0.1:0", "--http=127.0.0.1:0", argument, NULL};
    static const char *const texts[] = {"short\n", "with a space in it\n", ""};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        FILE *file = fopen(path, "we");
        assert_non_null(file);
        fputs(texts[i], file);
        fclose(file);
        daemon_spawn(&server, arguments, 0);
        daemon_expect_exit(&server, 1);
        assert_true(daemon_said(&server, "16 to 256 visible characters"));
    }
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs("0123456789abcdef\n", file);
    fclose(file);
    const char *more[] = {argument, NULL};
    daemon_start(&server, more, 0);
    worker_open(&first, server.grpc);
    worker_hello(&first, "job", 1, 1);
    http_expect("/readyz", "200 OK");
    http_expect("/api/v1/jobs/job", "401 Unauthorized");
    http_expect("/api/v1/jobs/job/ranks/0/stack", "401 Unauthorized");
    worker_close(&first);
    daemon_stop(&server);
    unlink(path);
}

// ---- hostile bytes ----------------------------------------------------------------------------

static void throw_at(uint16_t port, const void *bytes, size_t size)
{
    int fd = raw_connect(port);
    assert_true(fd >= 0);
    (void)!send(fd, bytes, size, MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    raw_read_all(fd, answer, sizeof(answer));
    close(fd);
}

static uint32_t random_next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

// Random bytes on both ports, also after a valid HTTP/2 preface. The coordinator keeps serving.
static void survives_hostile_bytes(void **state)
{
    (void)state;
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";
    static char bytes[4096];
    uint32_t seed = 1;
    daemon_start(&server, NULL, 0);
    for (int round = 0; round < 60; round++) {
        size_t begin = round % 2 ? sizeof(preface) - 1 : 0;
        memcpy(bytes, preface, begin);
        size_t size = begin + random_next(&seed) % (sizeof(bytes) - begin);
        for (size_t i = begin; i < size; i++)
            bytes[i] = (char)random_next(&seed);
        throw_at(server.grpc, bytes, size);
        throw_at(server.http, bytes, size);
    }
    memset(bytes, 'a', sizeof(bytes));
    memcpy(bytes, "GET /", 5); // A request line without an end, longer than the limit of a header.
    throw_at(server.http, bytes, sizeof(bytes));
    worker_open(&first, server.grpc);
    worker_hello(&first, "job", 1, 2);
    worker_expect(&first, DOWN_WELCOME);
    worker_close(&first);
    http_expect("/healthz", "200 OK");
    daemon_stop(&server);
}

// ---- ending -----------------------------------------------------------------------------------

// Condition: SIGTERM while a worker is connected. Decision: the coordinator is not ready, refuses
// new workers, waits until the worker leaves, and ends with status 0.
static void drains_until_members_left(void **state)
{
    (void)state;
    const char *more[] = {"--drain-ms=60000", NULL};
    daemon_start(&server, more, 0);
    worker_open(&first, server.grpc);
    worker_hello(&first, "job", 1, 1);
    worker_expect(&first, DOWN_GENERATION);
    http_expect("/readyz", "200 OK");

    kill(server.pid, SIGTERM);
    daemon_expect(&server, "event=drain_started");
    http_expect("/readyz", "503");
    http_expect("/healthz", "200 OK");
    // A worker that is told to come again tries again until its timeout.
    worker_open_patient(&second, server.grpc, NULL, NULL, 300);
    worker_hello(&second, "job", 2, 2);
    worker_expect(&second, DOWN_REFUSED);
    assert_int_equal(worker_message(&second, DOWN_REFUSED)->u.refused.refusal, REFUSAL_DRAINING);
    worker_close(&second);
    assert_false(worker_has_ended(&first));
    worker_close(&first);
    daemon_expect_exit(&server, 0);
}

// A drain ends after its time limit. Workers that are still connected get the reason why their
// streams end.
static void drain_is_bounded(void **state)
{
    (void)state;
    const char *more[] = {"--drain-ms=100", NULL};
    daemon_start(&server, more, 0);
    worker_open(&first, server.grpc);
    worker_hello(&first, "job", 1, 1);
    worker_expect(&first, DOWN_GENERATION);
    kill(server.pid, SIGTERM);
    worker_expect_end(&first, "shutting down");
    daemon_expect_exit(&server, 0);
    worker_close(&first);
}

static void second_signal_ends_at_once(void **state)
{
    (void)state;
    const char *more[] = {"--drain-ms=60000", NULL};
    daemon_start(&server, more, 0);
    worker_open(&first, server.grpc);
    worker_hello(&first, "job", 1, 1);
    worker_expect(&first, DOWN_GENERATION);
    kill(server.pid, SIGINT);
    daemon_expect(&server, "event=drain_started");
    kill(server.pid, SIGTERM);
    daemon_expect_exit(&server, 128 + SIGTERM);
    worker_close(&first);
}

// A private coordinator ends when its launcher ends, in whatever way.
static void ends_with_its_parent(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t launcher = fork();
    if (launcher == 0) {
        char *arguments[] = {NULL, "--listen=127.0.0.1:0", "--http=off", "--parent-death", NULL};
        if (fork() == 0) {
            char path[4096];
            daemon_path(path, sizeof(path));
            dup2(ends[1], STDERR_FILENO);
            arguments[0] = path;
            execv(path, arguments);
            _exit(127);
        }
        pause();
        _exit(0);
    }
    close(ends[1]);
    memset(&server, 0, sizeof(server));
    server.errors = ends[0];
    daemon_expect(&server, "event=coordinator_ready");
    kill(launcher, SIGKILL);
    waitpid(launcher, NULL, 0);
    daemon_expect(&server, "event=parent_ended");
    daemon_expect(&server, "event=coordinator_ended");
    close(server.errors);
}

// Condition: all processes of a job get signals, the private coordinator among them. Decision: it
// takes only those of its launcher.
static void obeys_only_its_parent(void **state)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR2};
    const char *more[] = {"--parent-death", NULL};
    (void)state;
    daemon_start(&server, more, 0);
    const pid_t other = fork();
    if (other == 0) {
        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
            kill(server.pid, numbers[i]);
        _exit(0);
    }
    waitpid(other, NULL, 0);
    worker_open(&first, server.grpc);
    worker_hello(&first, "job", 1, 1);
    worker_expect(&first, DOWN_GENERATION);
    assert_false(daemon_said(&server, "event=drain_started"));
    kill(server.pid, SIGTERM);
    daemon_expect(&server, "event=drain_started");
    worker_close(&first);
    daemon_expect_exit(&server, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_in_one_sentence),
        cmocka_unit_test(names_a_port_in_use),
        cmocka_unit_test(says_its_configuration),
        cmocka_unit_test(listens_on_ipv6),
        cmocka_unit_test(warns_when_it_is_exposed),
        cmocka_unit_test(writes_the_port_file),
        cmocka_unit_test(two_workers_form_a_world),
        cmocka_unit_test(refused_worker_is_told),
        cmocka_unit_test(worker_that_comes_early_is_patient),
        cmocka_unit_test(stack_comes_from_the_worker),
        cmocka_unit_test(stack_of_a_rank_that_has_left),
        cmocka_unit_test(token_file_is_read),
        cmocka_unit_test(survives_hostile_bytes),
        cmocka_unit_test(drains_until_members_left),
        cmocka_unit_test(drain_is_bounded),
        cmocka_unit_test(second_signal_ends_at_once),
        cmocka_unit_test(ends_with_its_parent),
        cmocka_unit_test(obeys_only_its_parent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
