// SPDX-License-Identifier: Apache-2.0
//
// The worker's control stream: against a real coordinator process, against one that is killed or
// stopped, and against sockets of other programs. This test checks that messages travel and how the
// end of a stream is reported; other tests check what the messages mean.

#include "base/clock.h"
#include "base/cond.h"
#include "base/mutex.h"
#include "tests/support/bounds.h"
#include "tests/support/port.h"
#include "worker/control/control.h"
#include "worker/control/grpc.h"
#include "worker/control/local_address.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define PATIENCE_MS 10000
// Long enough for a connection attempt and its refusal, even if the thread is delayed.
#define REFUSED_MS 2000
#define KINDS (DOWN_HALT + 1)

// ---- Events of a control stream ----------------------------------------------------------------

struct record {
    struct mutex mutex;
    struct cond changed;
    unsigned received[KINDS];
    unsigned ended;
    char text[LOCKSTEP_TEXT_BYTES];
    unsigned starved_ms; // How long DOWN_GENERATION holds the control thread up.
};

static void on_received(void *context, const struct down_message *message)
{
    struct record *record = context;
    mutex_lock(&record->mutex);
    record->received[message->kind]++;
    cond_broadcast(&record->changed);
    mutex_unlock(&record->mutex);
    if (message->kind == DOWN_GENERATION && record->starved_ms > 0)
        poll(NULL, 0, (int)record->starved_ms);
}

static void on_ended(void *context, const char *text)
{
    struct record *record = context;
    mutex_lock(&record->mutex);
    record->ended++;
    snprintf(record->text, sizeof(record->text), "%s", text);
    cond_broadcast(&record->changed);
    mutex_unlock(&record->mutex);
}

static void record_init(struct record *record)
{
    memset(record, 0, sizeof(*record));
    mutex_init(&record->mutex);
    cond_init(&record->changed);
}

// Waits until *count is at least `wanted`. False: not within this time.
static bool reaches(struct record *record, const unsigned *count, unsigned wanted,
                    uint64_t within_ms)
{
    uint64_t deadline = clock_now_ms() + within_ms;
    mutex_lock(&record->mutex);
    while (*count < wanted && cond_wait_until(&record->changed, &record->mutex, deadline))
        ;
    bool reached = *count >= wanted;
    mutex_unlock(&record->mutex);
    return reached;
}

static struct control *open_to(const char *address, uint64_t timeout_ms, struct record *record)
{
    struct control_events events = {.received = on_received, .ended = on_ended, .context = record};
    struct control *control = NULL;
    char error[LOCKSTEP_TEXT_BYTES] = "";
    record_init(record);
    const struct control_target target = {.address = address, .connect_timeout_ms = timeout_ms};
    if (control_open(&target, &events, &control, error, sizeof(error)) != 0)
        fail_msg("control_open %s: %s", address, error);
    return control;
}

static void assert_ended(struct record *record, const char *sentence)
{
    assert_true(reaches(record, &record->ended, 1, PATIENCE_MS));
    assert_string_equal(record->text, sentence);
    assert_int_equal(record->ended, 1);
}

// ---- A coordinator process ---------------------------------------------------------------------

struct daemon {
    pid_t pid;
    unsigned port;
    char address[64];
};

static void exec_daemon(unsigned port, int output)
{
    char program[4096];
    char listen[64];
    const char *directory = getenv("LOCKSTEP_TEST_BIN");
    snprintf(program, sizeof(program), "%s/lockstep-coordinator",
             directory ? directory : "build/bin");
    snprintf(listen, sizeof(listen), "127.0.0.1:%u", port);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(output, STDOUT_FILENO);
    execl(program, program, "--listen", listen, "--http", "off", "--json", "--log-level", "error",
          (char *)NULL);
    _exit(127);
}

// Starts a coordinator and returns when it listens. port 0: any port.
static void daemon_start(struct daemon *daemon, unsigned port)
{
    int output[2];
    char line[512];
    size_t size = 0;
    assert_int_equal(pipe2(output, O_CLOEXEC), 0);
    daemon->pid = fork();
    if (daemon->pid == 0)
        exec_daemon(port, output[1]);
    close(output[1]);
    while (size + 1 < sizeof(line) && !memchr(line, '\n', size)) {
        ssize_t got = read(output[0], line + size, sizeof(line) - 1 - size);
        if (got <= 0)
            fail_msg("lockstep-coordinator did not start (LOCKSTEP_TEST_BIN?)");
        size += (size_t)got;
    }
    line[size] = '\0';
    close(output[0]);
    const char *found = strstr(line, "\"grpc\":\"127.0.0.1:");
    assert_non_null(found);
    daemon->port = (unsigned)strtoul(found + strlen("\"grpc\":\"127.0.0.1:"), NULL, 10);
    snprintf(daemon->address, sizeof(daemon->address), "127.0.0.1:%u", daemon->port);
}

static void daemon_stop(struct daemon *daemon)
{
    kill(daemon->pid, SIGKILL);
    kill(daemon->pid, SIGCONT);
    assert_int_equal(waitpid(daemon->pid, NULL, 0), daemon->pid);
}

static struct up_message hello(const char *job, uint32_t world)
{
    static unsigned workers;
    struct up_message message = {.kind = UP_HELLO};
    struct up_hello *body = &message.u.hello;
    body->version = LOCKSTEP_PROTOCOL_VERSION;
    snprintf(body->job, sizeof(body->job), "%s", job);
    unsigned number = ++workers;
    memcpy(body->uuid.bytes, &number, sizeof(number));
    snprintf(body->host_id, sizeof(body->host_id), "host");
    snprintf(body->host, sizeof(body->host), "host");
    snprintf(body->address, sizeof(body->address), "tcp:127.0.0.1:%u", 1000 + number);
    body->pid = (uint32_t)getpid();
    body->world_min = world;
    body->world_max = world;
    body->open_timeout_ms = PATIENCE_MS;
    return message;
}

static struct up_message leave(void)
{
    struct up_message message = {.kind = UP_LEAVE};
    snprintf(message.u.leave.reason, sizeof(message.u.leave.reason), "done");
    return message;
}

// ---- A running coordinator ---------------------------------------------------------------------

static void hello_is_answered_with_a_rank(void **state)
{
    struct daemon daemon;
    struct record record;
    (void)state;
    daemon_start(&daemon, 0);
    struct control *control = open_to(daemon.address, PATIENCE_MS, &record);
    struct up_message message = hello("one", 1);
    assert_int_equal(control_send(control, &message), 0);
    assert_true(reaches(&record, &record.received[DOWN_WELCOME], 1, PATIENCE_MS));
    assert_true(reaches(&record, &record.received[DOWN_GENERATION], 1, PATIENCE_MS));
    assert_false(reaches(&record, &record.ended, 1, 0)); // After the leave it may end at any time.
    message = leave();
    assert_int_equal(control_send(control, &message), 0);
    control_close(control, 1000);
    daemon_stop(&daemon);
}

// The control thread of a rank that closes gets no processor until the close has waited for it for
// longer than for the coordinator. The goodbye is sent all the same: the other rank is not told
// that this one was lost.
static void a_late_goodbye_is_sent(void **state)
{
    struct daemon daemon;
    struct record late;
    struct record other;
    struct up_message message = hello("late", 2);
    (void)state;
    daemon_start(&daemon, 0);
    struct control *leaver = open_to(daemon.address, PATIENCE_MS, &late);
    late.starved_ms = 1000;
    assert_int_equal(control_send(leaver, &message), 0);
    struct control *stayer = open_to(daemon.address, PATIENCE_MS, &other);
    message = hello("late", 2);
    assert_int_equal(control_send(stayer, &message), 0);
    assert_true(reaches(&late, &late.received[DOWN_GENERATION], 1, PATIENCE_MS));
    assert_true(reaches(&other, &other.received[DOWN_GENERATION], 1, PATIENCE_MS));
    message = leave();
    assert_int_equal(control_send(leaver, &message), 0);
    control_close(leaver, 50);
    assert_false(reaches(&other, &other.received[DOWN_HALT], 1, 300));
    assert_int_equal(control_send(stayer, &message), 0);
    assert_true(reaches(&other, &other.ended, 1, PATIENCE_MS));
    assert_int_equal(other.received[DOWN_HALT], 0);
    control_close(stayer, 0);
    daemon_stop(&daemon);
}

// A heartbeat is refused while another one is still queued. No stream empties the queue here.
static void a_heartbeat_that_waits_is_enough(void **state)
{
    struct record record;
    struct up_message heartbeat = {.kind = UP_HEARTBEAT};
    struct up_message other = leave();
    (void)state;
    heartbeat.u.heartbeat.place.module = LOCKSTEP_MAX_MODULES;
    struct control *control = open_to("127.0.0.1:1", PATIENCE_MS, &record);
    assert_int_equal(control_send(control, &heartbeat), 0);
    assert_int_equal(control_send(control, &heartbeat), -2);
    assert_int_equal(control_send(control, &other), 0);
    assert_int_equal(control_send(control, &heartbeat), -2);
    control_close(control, 0);
}

static void localhost_is_the_loopback(void **state)
{
    struct daemon daemon;
    struct record record;
    char address[64];
    (void)state;
    daemon_start(&daemon, 0);
    snprintf(address, sizeof(address), "localhost:%u", daemon.port);
    struct control *control = open_to(address, PATIENCE_MS, &record);
    struct up_message message = hello("name", 1);
    assert_int_equal(control_send(control, &message), 0);
    assert_true(reaches(&record, &record.received[DOWN_WELCOME], 1, PATIENCE_MS));
    control_close(control, 0);
    daemon_stop(&daemon);
}

static void several_in_one_process_have_streams_of_their_own(void **state)
{
    enum {
        COUNT = 8
    };
    struct daemon daemon;
    struct record records[COUNT];
    struct control *controls[COUNT];
    (void)state;
    daemon_start(&daemon, 0);
    for (unsigned i = 0; i < COUNT; i++)
        controls[i] = open_to(daemon.address, PATIENCE_MS, &records[i]);
    for (unsigned i = 0; i < COUNT; i++) {
        struct up_message message = hello("several", COUNT);
        assert_int_equal(control_send(controls[i], &message), 0);
    }
    for (unsigned i = 0; i < COUNT; i++)
        assert_true(reaches(&records[i], &records[i].received[DOWN_GENERATION], 1, PATIENCE_MS));
    for (unsigned i = 0; i < COUNT; i++)
        control_close(controls[i], 0);
    daemon_stop(&daemon);
}

static unsigned open_descriptors(void)
{
    unsigned count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static void join_and_leave(const char *address)
{
    struct record record;
    struct control *control = open_to(address, PATIENCE_MS, &record);
    struct up_message message = hello("again", 1);
    assert_int_equal(control_send(control, &message), 0);
    assert_true(reaches(&record, &record.received[DOWN_GENERATION], 1, PATIENCE_MS));
    message = leave();
    assert_int_equal(control_send(control, &message), 0);
    control_close(control, 1000);
}

static void opening_again_and_again_keeps_nothing(void **state)
{
    struct daemon daemon;
    (void)state;
    daemon_start(&daemon, 0);
    join_and_leave(daemon.address);
    unsigned before = open_descriptors();
    for (unsigned i = 0; i < 20; i++)
        join_and_leave(daemon.address);
    // gRPC closes the descriptor of a connection on a thread of its own, some time after the stream
    // has ended.
    for (unsigned waited = 0; open_descriptors() > before && waited < PATIENCE_MS; waited += 10)
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    assert_true(open_descriptors() <= before);
    daemon_stop(&daemon);
}

static void a_coordinator_that_starts_later_is_found(void **state)
{
    struct daemon daemon;
    struct record record;
    char address[64];
    (void)state;
    const unsigned port = test_port();
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    struct control *control = open_to(address, PATIENCE_MS, &record);
    struct up_message message = hello("later", 1);
    assert_int_equal(control_send(control, &message), 0);
    assert_false(reaches(&record, &record.ended, 1, 300)); // Long enough for several refusals.
    daemon_start(&daemon, port);
    assert_true(reaches(&record, &record.received[DOWN_WELCOME], 1, PATIENCE_MS));
    control_close(control, 0);
    daemon_stop(&daemon);
}

// ---- Several addresses -------------------------------------------------------------------------

static int taken_port(char *address, size_t capacity);
static int listener(char *address, size_t capacity);

// Condition: of three addresses one refuses, one is silent, and a coordinator is at the last one.
// Decision: it is found, in less than the time to connect.
static void each_address_is_tried(void **state)
{
    struct daemon daemon;
    struct record record;
    char refusing[64];
    char silent[64];
    char list[256];
    (void)state;
    const int taken = taken_port(refusing, sizeof(refusing));
    const int deaf = listener(silent, sizeof(silent));
    daemon_start(&daemon, 0);
    snprintf(list, sizeof(list), "%s, %s,%s", refusing, silent, daemon.address);
    struct control *control = open_to(list, test_bound_ms(60000), &record);
    struct up_message message = hello("list", 1);
    assert_int_equal(control_send(control, &message), 0);
    assert_true(reaches(&record, &record.received[DOWN_WELCOME], 1, test_bound_ms(PATIENCE_MS)));
    control_close(control, 0);
    daemon_stop(&daemon);
    close(taken);
    close(deaf);
}

// Condition: no address leads to a coordinator. Decision: the sentence has each of them, and why.
static void every_address_is_named_with_its_reason(void **state)
{
    struct record record;
    char refusing[64];
    char list[256];
    char piece[128];
    (void)state;
    const int taken = taken_port(refusing, sizeof(refusing));
    snprintf(list, sizeof(list), "%s,nowhere.invalid:7,unix:/nowhere/at,all", refusing);
    struct control *control = open_to(list, REFUSED_MS, &record);
    assert_true(reaches(&record, &record.ended, 1, test_bound_ms(PATIENCE_MS)));
    print_message("several addresses: %s\n", record.text);
    snprintf(piece, sizeof(piece), "LOCKSTEP_COORDINATOR: %s: connection refused; ", refusing);
    assert_non_null(strstr(record.text, piece));
    assert_non_null(strstr(record.text, "; nowhere.invalid:7: "));
    assert_null(strstr(record.text, "no answer yet"));
    assert_non_null(strstr(record.text, "; unix:/nowhere/at,all: "));
    control_close(control, 0);
    close(taken);
}

// ---- A coordinator that ends -------------------------------------------------------------------

static void a_killed_coordinator_ends_the_stream(void **state)
{
    struct daemon daemon;
    struct record record;
    (void)state;
    daemon_start(&daemon, 0);
    struct control *control = open_to(daemon.address, PATIENCE_MS, &record);
    struct up_message message = hello("killed", 1);
    assert_int_equal(control_send(control, &message), 0);
    assert_true(reaches(&record, &record.received[DOWN_GENERATION], 1, PATIENCE_MS));
    daemon_stop(&daemon);
    assert_true(reaches(&record, &record.ended, 1, test_bound_ms(3000)));
    print_message("killed: %s\n", record.text);
    assert_non_null(strstr(record.text, "lost the connection to coordinator 127.0.0.1:"));
    assert_int_equal(control_send(control, &message), -1);
    control_close(control, 1000);
    assert_int_equal(record.ended, 1);
}

// While its world has not formed, a worker that loses the coordinator sends its hello again, until
// its time is over.
static void a_worker_that_waits_says_hello_again(void **state)
{
    struct daemon daemon;
    struct record record;
    char address[64];
    (void)state;
    const unsigned port = test_port();
    snprintf(address, sizeof(address), "127.0.0.1:%u", port);
    daemon_start(&daemon, port);
    struct control *control = open_to(address, PATIENCE_MS, &record);
    struct up_message message = hello("again", 2);
    assert_int_equal(control_send(control, &message), 0);
    assert_true(reaches(&record, &record.received[DOWN_WELCOME], 1, PATIENCE_MS));
    daemon_stop(&daemon);
    assert_false(reaches(&record, &record.ended, 1, 300));
    daemon_start(&daemon, port);
    assert_true(reaches(&record, &record.received[DOWN_WELCOME], 2, PATIENCE_MS));
    assert_int_equal(record.ended, 0);
    control_close(control, 0);
    daemon_stop(&daemon);
}

static void the_coordinators_own_words_come_through(void **state)
{
    struct daemon daemon;
    struct record record;
    (void)state;
    daemon_start(&daemon, 0);
    struct control *control = open_to(daemon.address, PATIENCE_MS, &record);
    struct up_message message = leave(); // A stream cannot begin with this message.
    assert_int_equal(control_send(control, &message), 0);
    assert_true(reaches(&record, &record.ended, 1, PATIENCE_MS));
    print_message("own words: %s\n", record.text);
    assert_ptr_equal(strstr(record.text, "the coordinator closed the stream"), record.text);
    control_close(control, 0);
    daemon_stop(&daemon);
}

static void a_stopped_coordinator_fills_the_queue_and_no_more(void **state)
{
    struct daemon daemon;
    struct record record;
    (void)state;
    daemon_start(&daemon, 0);
    struct control *control = open_to(daemon.address, PATIENCE_MS, &record);
    struct up_message message = hello("stopped", 2);
    assert_int_equal(control_send(control, &message), 0);
    assert_true(reaches(&record, &record.received[DOWN_WELCOME], 1, PATIENCE_MS));
    kill(daemon.pid, SIGSTOP);
    message = (struct up_message){.kind = UP_FAIL};
    memset(message.u.fail.text, 'x', sizeof(message.u.fail.text) - 1);
    message.u.fail.kind = HALT_PROTOCOL;
    int result = 0;
    unsigned sent = 0;
    while (result == 0 && sent < 100 * LOCKSTEP_SEND_QUEUE) {
        result = control_send(control, &message);
        sent++;
    }
    assert_int_equal(result, -2);
    uint64_t before = clock_now_ms();
    control_close(control, 50);
    assert_true(clock_now_ms() - before < test_bound_ms(8000));
    assert_int_equal(record.ended, 0);
    daemon_stop(&daemon);
}

// ---- No coordinator ----------------------------------------------------------------------------

// Binds a port without listening on it. Returns the socket.
static int taken_port(char *address, size_t capacity)
{
    struct sockaddr_in name = {.sin_family = AF_INET};
    socklen_t size = sizeof(name);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&name, sizeof(name)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&name, &size), 0);
    snprintf(address, capacity, "127.0.0.1:%u", ntohs(name.sin_port));
    return fd;
}

static int listener(char *address, size_t capacity)
{
    const int fd = taken_port(address, capacity);
    assert_int_equal(listen(fd, 16), 0);
    return fd;
}

static void a_refused_port_is_told_in_a_sentence(void **state)
{
    struct record record;
    char sentence[256];
    char address[64];
    (void)state;
    const int fd = taken_port(address, sizeof(address));
    snprintf(sentence, sizeof(sentence),
             "cannot reach coordinator %s: connection refused (nothing listens there: is the "
             "coordinator started, and is LOCKSTEP_COORDINATOR right?)",
             address);
    uint64_t before = clock_now_ms();
    struct control *control = open_to(address, REFUSED_MS, &record);
    assert_ended(&record, sentence);
    assert_true(clock_now_ms() - before >= REFUSED_MS - 10);
    assert_true(clock_now_ms() - before < test_bound_ms(REFUSED_MS + 3000));
    control_close(control, 1000);
    close(fd);
}

static void an_unknown_name_is_told_in_a_sentence(void **state)
{
    struct record record;
    (void)state;
    struct control *control = open_to("nowhere.invalid:1", 200, &record);
    assert_true(reaches(&record, &record.ended, 1, PATIENCE_MS));
    print_message("unknown name: %s\n", record.text);
    assert_ptr_equal(strstr(record.text, "cannot reach coordinator nowhere.invalid:1: "),
                     record.text);
    control_close(control, 0);
}

static void a_silent_port_is_given_up_at_the_deadline(void **state)
{
    struct record record;
    char address[64];
    char sentence[256];
    (void)state;
    int fd = listener(address, sizeof(address));
    snprintf(sentence, sizeof(sentence),
             "cannot reach coordinator %s: no answer within 0.2 s (is LOCKSTEP_COORDINATOR right, "
             "and does a firewall let its port through?)",
             address);
    struct control *control = open_to(address, 200, &record);
    assert_ended(&record, sentence);
    control_close(control, 1000);
    close(fd);
}

// Answers each connection with these bytes until the stream has ended.
static void answer_with(const char *answer, size_t size, const char *wanted)
{
    struct record record;
    char address[64];
    const int fd = listener(address, sizeof(address));
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    const uint64_t before = clock_now_ms();
    struct control *control = open_to(address, 60000, &record);
    while (!reaches(&record, &record.ended, 1, 20)) {
        assert_true(clock_now_ms() - before < test_bound_ms(10000));
        if (poll(&ready, 1, 20) <= 0)
            continue;
        const int peer = accept(fd, NULL, NULL);
        char bytes[512]; // Unread bytes would make the close a reset.
        ready.fd = peer;
        if (poll(&ready, 1, 1000) > 0)
            (void)!read(peer, bytes, sizeof(bytes));
        ready.fd = fd;
        assert_int_equal(write(peer, answer, size), size);
        close(peer);
    }
    print_message("not gRPC: %s\n", record.text);
    assert_ptr_equal(strstr(record.text, "cannot reach coordinator 127.0.0.1:"), record.text);
    assert_non_null(strstr(record.text, wanted));
    control_close(control, 0);
    close(fd);
}

// The port of the coordinator's page, of another web server, and of neither: the end comes long
// before the deadline.
static void something_else_on_the_port_is_told(void **state)
{
    static const char *const answers[] = {
        "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        "<!DOCTYPE HTML PUBLIC \"-//W3C//DTD HTML 4.01//EN\"><html></html>",
        "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n"};
    (void)state;
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++)
        answer_with(answers[i], strlen(answers[i]),
                    ": what answers there is no coordinator: is that the port of its page");
}

static void an_unusable_address_is_refused_at_once(void **state)
{
    static const char *const addresses[] = {"",       "localhost", "127.0.0.1:0", "::1:80",
                                            ":5000",  "host:",     "host:port",   "host:70000",
                                            "[::1]:", "a b:c:5000"};
    struct control_events events = {.ended = on_ended};
    (void)state;
    for (size_t i = 0; i < sizeof(addresses) / sizeof(addresses[0]); i++) {
        struct control *control = NULL;
        char error[LOCKSTEP_TEXT_BYTES] = "";
        const struct control_target target = {.address = addresses[i], .connect_timeout_ms = 1};
        assert_int_equal(control_open(&target, &events, &control, error, sizeof(error)), -1);
        assert_non_null(strstr(error, "HOST:PORT"));
    }
}

static void closing_while_connecting_is_quick_and_silent(void **state)
{
    struct record record;
    char address[64];
    (void)state;
    int fd = listener(address, sizeof(address));
    struct up_message message = hello("nobody", 1);
    for (unsigned i = 0; i < 10; i++) {
        uint64_t before = clock_now_ms();
        struct control *control = open_to(address, PATIENCE_MS, &record);
        assert_int_equal(control_send(control, &message), 0);
        control_close(control, i);
        assert_true(clock_now_ms() - before < test_bound_ms(3000));
        assert_int_equal(record.ended, 0);
    }
    close(fd);
}

// ---- Threads and signals of the trainer's process ----------------------------------------------

static bool blocks_interrupts(const char *thread)
{
    char path[64];
    char line[256];
    unsigned long long mask = 0;
    snprintf(path, sizeof(path), "/proc/self/task/%.16s/status", thread);
    FILE *file = fopen(path, "re");
    if (!file)
        return true; // The thread has just ended.
    while (fgets(line, sizeof(line), file)) {
        if (sscanf(line, "SigBlk: %llx", &mask) == 1)
            break;
    }
    fclose(file);
    return (mask & (1ULL << (SIGINT - 1))) != 0;
}

// Counts the threads that do not block SIGINT, so that the kernel could run a handler on them.
static unsigned interruptible_threads(void)
{
    unsigned count = 0;
    DIR *directory = opendir("/proc/self/task");
    for (struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
        if (entry->d_name[0] != '.' && !blocks_interrupts(entry->d_name))
            count++;
    }
    closedir(directory);
    return count;
}

static void its_threads_take_no_signals(void **state)
{
    struct daemon daemon;
    struct record record;
    sigset_t mask;
    (void)state;
    daemon_start(&daemon, 0);
    unsigned before = interruptible_threads();
    struct control *control = open_to(daemon.address, PATIENCE_MS, &record);
    struct up_message message = hello("signals", 1);
    assert_int_equal(control_send(control, &message), 0);
    assert_true(reaches(&record, &record.received[DOWN_GENERATION], 1, PATIENCE_MS));
    assert_int_equal(interruptible_threads(), before);
    control_close(control, 0);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    assert_false(sigismember(&mask, SIGINT));
    daemon_stop(&daemon);
}

static void the_local_address_faces_the_coordinator(void **state)
{
    char text[LOCKSTEP_ADDRESS_BYTES];
    (void)state;
    assert_int_equal(control_local_address("127.0.0.1:5000", text, sizeof(text)), 0);
    assert_string_equal(text, "127.0.0.1");
    assert_int_equal(control_local_address("nonsense", text, sizeof(text)), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_is_answered_with_a_rank),
        cmocka_unit_test(a_late_goodbye_is_sent),
        cmocka_unit_test(a_heartbeat_that_waits_is_enough),
        cmocka_unit_test(localhost_is_the_loopback),
        cmocka_unit_test(several_in_one_process_have_streams_of_their_own),
        cmocka_unit_test(opening_again_and_again_keeps_nothing),
        cmocka_unit_test(a_coordinator_that_starts_later_is_found),
        cmocka_unit_test(a_killed_coordinator_ends_the_stream),
        cmocka_unit_test(a_worker_that_waits_says_hello_again),
        cmocka_unit_test(the_coordinators_own_words_come_through),
        cmocka_unit_test(a_stopped_coordinator_fills_the_queue_and_no_more),
        cmocka_unit_test(each_address_is_tried),
        cmocka_unit_test(every_address_is_named_with_its_reason),
        cmocka_unit_test(a_refused_port_is_told_in_a_sentence),
        cmocka_unit_test(an_unknown_name_is_told_in_a_sentence),
        cmocka_unit_test(a_silent_port_is_given_up_at_the_deadline),
        cmocka_unit_test(something_else_on_the_port_is_told),
        cmocka_unit_test(an_unusable_address_is_refused_at_once),
        cmocka_unit_test(closing_while_connecting_is_quick_and_silent),
        cmocka_unit_test(its_threads_take_no_signals),
        cmocka_unit_test(the_local_address_faces_the_coordinator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
