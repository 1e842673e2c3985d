// SPDX-License-Identifier: Apache-2.0
//
// The coordinator is killed and started again, or stopped, while real workers train. No step ends
// with an error, the results are right, and the coordinator knows the job again.

#include "tests/fault/process_world.h"

#include "base/clock.h"
#include "tests/support/bounds.h"
#include "tests/support/port.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <lockstep/lockstep.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE 3
#define STRANGERS 8 // Ranks of a world in which some ranks are no neighbours of some others.
#define MOST 5 // Ranks of a world in which some ranks have no link to some others.
#define ROUNDS 3
#define MORE_STEPS (test_slow() > 1 ? 20u : 50u)
// The pause of a trainer after each step. Trainers go on training while the test waits.
#define REST_MS (test_slow() > 1 ? 20u : 2u)
#define PROVEN_MS slow_ms(3000) // Attempts to reach a coordinator are up to a second apart.
#define SILENT_MS slow_ms(8000) // Until ranks have gone on without a coordinator that is stopped.
#define BACK_MS slow_ms(3000) // From the return of the coordinator to the full view of the job.

static struct coordinator_process coordinator;
static struct coordinator_process successor; // At another address of the list.
static struct world world;
static uint32_t leaves_ms; // As in struct script.

static int teardown(void **state)
{
    (void)state;
    world_teardown(&world, &coordinator);
    if (successor.pid > 0) {
        coordinator_signal(&successor, SIGKILL);
        coordinator_wait(&successor);
    }
    successor = (struct coordinator_process){0};
    coordinator.list = NULL;
    return 0;
}

static void train(void)
{
    struct script scripts[SIZE];
    for (uint32_t rank = 0; rank < SIZE; rank++)
        scripts[rank] =
            (struct script){.report_every = 5, .rest_ms = REST_MS, .leaves_ms = leaves_ms};
    world_start(&world, &coordinator, "job", SIZE, scripts);
}

// Starts a coordinator, at the address of the one that has ended.
static void start(void)
{
    const char *const arguments[] = {"--http=127.0.0.1:0", NULL};
    coordinator_start(&coordinator, arguments);
}

static void begin(void)
{
    start();
    train();
}

static void coordinator_kill(void)
{
    coordinator_signal(&coordinator, SIGKILL);
    coordinator_wait(&coordinator);
}

// Fills text with what the coordinator says about its jobs; empty: it did not answer.
static void ask(char *text, size_t capacity)
{
    static const char request[] = "GET /api/v1/jobs HTTP/1.0\r\nHost: localhost\r\n\r\n";
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(coordinator.http_port)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t size = 0;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 &&
        write(fd, request, sizeof(request) - 1) == (ssize_t)sizeof(request) - 1) {
        for (ssize_t got = 1; got > 0 && size<capacity - 1; size += got> 0 ? (size_t)got : 0)
            got = read(fd, text + size, capacity - 1 - size);
    }
    text[size] = '\0';
    if (fd >= 0)
        close(fd);
}

// Waits until the coordinator says this of the job. Returns how long that took.
static uint64_t expect_said(const char *piece, uint64_t ms)
{
    static char text[1 << 16];
    const uint64_t since_ms = clock_now_ms();
    do {
        ask(text, sizeof(text));
        if (strstr(text, piece))
            return clock_now_ms() - since_ms;
        pause_us(20000);
    } while (clock_now_ms() - since_ms < ms);
    fail_msg("the coordinator does not say %s within %llu ms: %s", piece, (unsigned long long)ms,
             text);
    return 0;
}

static void train_to(uint64_t step)
{
    for (uint32_t rank = 0; rank < SIZE; rank++)
        world_expect_step(&world, rank, step);
}

static void expect_good_end(void)
{
    world_stop(&world);
    world_expect_done(&world);
}

// Condition: the coordinator is killed and comes back, again and again. Decision: no step fails;
// the new one knows all ranks within its bound; at the end the job is finished for it.
static void it_comes_back_again_and_again(void **state)
{
    (void)state;
    uint64_t step = 10;
    begin();
    train_to(step);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        coordinator_kill();
        train_to(step += MORE_STEPS);
        start();
        const uint64_t took_ms = expect_said("\"state\":\"running\"", BACK_MS);
        printf("round %u: all ranks are back after %llu ms\n", round, (unsigned long long)took_ms);
        train_to(step += MORE_STEPS);
    }
    expect_good_end();
    expect_said("\"state\":\"finished\"", BACK_MS);
}

// Condition: the coordinator comes back at another address of the list, and goes back to the first.
// Decision: no step fails, and each new one knows all ranks.
static void it_comes_back_at_another_address(void **state)
{
    static const char *const at[] = {"--listen=127.0.0.3", "--listen=127.0.0.2"};
    static char list[128];
    char listen[64];
    const char *const arguments[] = {listen, "--http=127.0.0.1:0", NULL};
    uint64_t step = 10;
    (void)state;
    const uint16_t port = test_port();
    snprintf(listen, sizeof(listen), "%s:%u", at[1], port);
    coordinator_start(&coordinator, arguments);
    snprintf(list, sizeof(list), "127.0.0.2:%u,127.0.0.3:%u", port, port);
    coordinator.list = list;
    train();
    train_to(step);
    for (uint32_t round = 0; round < 2; round++) {
        coordinator_kill();
        snprintf(listen, sizeof(listen), "%s:%u", at[round], port);
        coordinator_start(&coordinator, arguments);
        const uint64_t took_ms = expect_said("\"state\":\"running\"", BACK_MS);
        printf("%s: all ranks are there after %llu ms\n", listen, (unsigned long long)took_ms);
        train_to(step += MORE_STEPS);
    }
    expect_good_end();
    coordinator.list = NULL;
}

// Condition: the coordinator is away, and at its address is a listener that answers nothing, while
// the workers end. Decision: they end well, and keep no connection to it for long
// (process_trainer.c counts descriptors).
static void nothing_is_left_of_a_silent_one(void **state)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    const int one = 1;
    (void)state;
    leaves_ms = 10000; // gRPC would keep the connection for 20 s.
    begin();
    train_to(10);
    coordinator_kill();
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct pollfd connects = {.fd = fd, .events = POLLIN};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(coordinator.port);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(fd, SIZE), 0);
    assert_int_equal(poll(&connects, 1, (int)WAIT_MS), 1);
    expect_good_end();
    close(fd);
    leaves_ms = 0;
}

static uint64_t messages_total(void)
{
    static const char field[] = "\"messages_total\":";
    static char text[1 << 16];
    ask(text, sizeof(text));
    const char *at = strstr(text, field);
    return at ? strtoull(at + strlen(field), NULL, 10) : 0;
}

// Condition: a rank closes its session while the coordinator is away, and another one when the next
// coordinator is there. Decision: the others tell the coordinator each goodbye, soon; it awaits
// nobody, and the job is finished at the end.
static void who_has_left_meanwhile_is_told(void **state)
{
    struct script scripts[SIZE];
    (void)state;
    start();
    for (uint32_t rank = 0; rank < SIZE; rank++)
        scripts[rank] = (struct script){
            .place = PLACE_OPTIMIZER, .place_step = 10, .last_step = 9, .hold = HOLD_SLEEP};
    world_start(&world, &coordinator, "job", SIZE, scripts);
    for (uint32_t rank = 0; rank < SIZE; rank++)
        world_expect(&world, rank, REPORT_PLACE, NULL);
    coordinator_kill();
    world_release(&world, 2);
    world_expect(&world, 2, REPORT_DONE, NULL);
    start();
    expect_said("\"state\":\"running\"", BACK_MS);
    const uint64_t before = messages_total();
    const uint64_t until_ms = clock_now_ms() + BACK_MS;
    world_release(&world, 1);
    world_expect(&world, 1, REPORT_DONE, NULL);
    while (messages_total() < before + 2 && clock_now_ms() < until_ms)
        pause_us(20000);
    assert_true(messages_total() >= before + 2); // Its own word, and that of rank 0.
    world_release(&world, 0);
    world_expect(&world, 0, REPORT_DONE, NULL);
    expect_said("\"state\":\"finished\"", BACK_MS);
    world_join(&world);
}

// Condition: a rank is killed after the return. Decision: the others learn its name at once, and
// the new coordinator says so.
static void a_death_after_its_return_is_reported(void **state)
{
    struct report report;
    (void)state;
    begin();
    train_to(10);
    coordinator_kill();
    start();
    expect_said("\"state\":\"running\"", BACK_MS);
    const uint64_t killed_us = world_kill(&world, 1);
    for (uint32_t rank = 0; rank < SIZE; rank += 2) {
        world_expect(&world, rank, REPORT_FAILED, &report);
        assert_int_equal(report.status, LOCKSTEP_E_PEER_LOST);
        assert_non_null(strstr(report.text, "rank 1"));
        assert_true(report.at_us - killed_us < LOST_MS * 1000);
    }
    expect_said("\"state\":\"halted\"", BACK_MS);
    expect_said("rank 1 on host", BACK_MS);
    world_join(&world);
}

// Condition: a rank is killed while the coordinator is away. Decision: the survivors name it, and
// tell the coordinator that comes after.
static void a_death_in_its_absence_is_told(void **state)
{
    struct report report;
    (void)state;
    begin();
    train_to(10);
    coordinator_kill();
    train_to(20);
    const uint64_t killed_us = world_kill(&world, 1);
    for (uint32_t rank = 0; rank < SIZE; rank += 2) {
        world_expect(&world, rank, REPORT_FAILED, &report);
        assert_int_equal(report.status, LOCKSTEP_E_PEER_LOST);
        assert_non_null(strstr(report.text, "rank 1"));
        assert_true(report.at_us - killed_us < LOST_MS * 1000);
    }
    world_join(&world);
}

// Condition: all ranks are killed at once. Decision: the coordinator finds their ports closed, and
// the name is free for the next world at once.
static void all_die_at_once(void **state)
{
    (void)state;
    begin();
    train_to(10);
    for (uint32_t rank = 0; rank < SIZE; rank++)
        world_kill(&world, rank);
    expect_said("\"state\":\"halted\"", BACK_MS);
    world_join(&world);
}

// Returns the step at which a rank stands, because it cannot go on.
static uint64_t stands_at(uint32_t rank)
{
    struct report report;
    assert_false(world_next(&world, rank, 300, &report));
    return world.workers[rank].last.step;
}

// The ranks of this set go on from the steps at which they stand. Returns how long that takes.
static uint64_t go_on(const bool *set, const uint64_t *stand)
{
    const uint64_t since_ms = clock_now_ms();
    for (uint32_t rank = 0; rank < world.size; rank++)
        if (set[rank])
            world_expect_step(&world, rank, stand[rank] + MORE_STEPS);
    return clock_now_ms() - since_ms;
}

// ---- Proofs for a coordinator that did not see the death ---------------------------------------

// The upper half of the ranks says that it is on another host. All ranks but those from `first` to
// before `end` die with the coordinator, and these finish the step within PROVEN_MS of the return
// of the coordinator.
static void die_with_it(uint32_t size, uint32_t first, uint32_t end)
{
    struct script scripts[MOST];
    bool left[MOST] = {false};
    uint64_t stand[MOST] = {0};
    coordinator_start(&coordinator, NULL);
    for (uint32_t rank = 0; rank < size; rank++)
        scripts[rank] = (struct script){
            .report_every = 20, .rest_ms = REST_MS, .survives = true, .way = {.two_hosts = true}};
    world_start(&world, &coordinator, "job", size, scripts);
    for (uint32_t rank = 0; rank < size; rank++)
        world_expect_step(&world, rank, 20);
    coordinator_kill();
    for (uint32_t rank = 0; rank < size; rank++) {
        left[rank] = rank >= first && rank < end;
        if (!left[rank])
            world_kill(&world, rank);
    }
    for (uint32_t rank = first; rank < end; rank++)
        stand[rank] = stands_at(rank);
    start();
    const uint64_t took_ms = go_on(left, stand);
    printf("%u of %u ranks go on after %llu ms\n", end - first, size, (unsigned long long)took_ms);
    assert_true(took_ms < PROVEN_MS);
    world_stop(&world);
    for (uint32_t rank = first; rank < end; rank++) {
        struct report done;
        world_expect(&world, rank, REPORT_DONE, &done);
    }
    world_join(&world);
}

// Condition: a rank that is alone on its host dies with the coordinator. Decision: the others see
// that its data port is closed, and go on as soon as there is a coordinator.
static void a_rank_alone_on_its_host_dies_with_it(void **state)
{
    (void)state;
    die_with_it(SIZE, 0, 2);
}

// Condition: of three ranks on two hosts, one is left when the coordinator has died. Decision: the
// deaths of both others are proven, so it goes on alone.
static void all_others_die_with_it(void **state)
{
    (void)state;
    die_with_it(SIZE, 0, 1);
}

// Condition: of five ranks on two hosts, one is left when the coordinator has died. It has no link
// to rank 4. Decision: it knows the data port of that rank, and proves this death, too.
static void a_rank_without_a_link_to_it_dies_with_it(void **state)
{
    (void)state;
    die_with_it(MOST, 2, 3);
}

// ---- Links that are made without a coordinator -------------------------------------------------

// The memory that the processes of the test share. Each rank says that it is on a host of its own.
struct meeting {
    _Atomic(uint32_t) opened; // Ranks that have opened their sessions.
    _Atomic(bool) alone; // The coordinator is gone.
};

static void add_up(struct meeting *meeting, uint32_t rank)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    lockstep_session *session;
    char host[16];
    char address[64];
    float sum = (float)rank;
    snprintf(address, sizeof(address), "127.0.0.1:%u", coordinator.port);
    snprintf(host, sizeof(host), "host-%u", rank);
    config.coordinator = address;
    config.job = "strangers";
    config.world_size = STRANGERS;
    config.rank_hint = (int32_t)rank;
    config.host_id = host;
    config.transport = LOCKSTEP_TRANSPORT_TCP;
    setenv("LOCKSTEP_ALGORITHM", "direct", 1); // It wants links between all ranks.
    if (lockstep_open(&config, &session) < 0)
        _exit(1);
    atomic_fetch_add(&meeting->opened, 1);
    while (!atomic_load(&meeting->alone))
        pause_us(1000);
    if (lockstep_allreduce(session, "sum", &sum, 1, LOCKSTEP_FLOAT32, LOCKSTEP_SUM,
                           LOCKSTEP_WAIT_FOREVER) < 0) {
        fprintf(stderr, "rank %u: %s\n", rank, lockstep_error_text());
        _exit(2);
    }
    if (sum != (float)(STRANGERS * (STRANGERS - 1) / 2))
        _exit(3);
    _exit(lockstep_close(session) < 0 ? 4 : 0);
}

// Condition: ranks need links to ranks that are no neighbours when the coordinator, which knows
// their addresses, is gone. Another one takes its place, which does not know them before these
// ranks have come. Decision: the ranks wait for it, and the links are made.
static void links_wait_for_it(void **state)
{
    struct meeting *meeting =
        mmap(NULL, sizeof(*meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pids[STRANGERS];
    int status = 0;
    (void)state;
    assert_true(meeting != MAP_FAILED);
    start();
    for (uint32_t rank = 0; rank < STRANGERS; rank++) {
        pids[rank] = process_fork();
        assert_true(pids[rank] >= 0);
        if (pids[rank] == 0)
            add_up(meeting, rank);
    }
    const uint64_t until_ms = clock_now_ms() + slow_ms(5000);
    while (atomic_load(&meeting->opened) < STRANGERS && clock_now_ms() < until_ms)
        pause_us(1000);
    coordinator_kill();
    atomic_store(&meeting->alone, true);
    pause_us(300000);
    assert_int_equal(waitpid(-1, &status, WNOHANG), 0);
    start();
    for (uint32_t rank = 0; rank < STRANGERS; rank++) {
        assert_true(process_reap(pids[rank], slow_ms(10000), &status));
        assert_int_equal(status, 0);
    }
    munmap(meeting, sizeof(*meeting));
}

// ---- Two coordinators --------------------------------------------------------------------------

// Both are alive, and the workers, which go on after a death, are with the first one.
static void begin_with_two(void)
{
    static char list[128];
    char listen[64];
    const char *const arguments[] = {listen, "--http=127.0.0.1:0", NULL};
    struct script scripts[SIZE];
    snprintf(listen, sizeof(listen), "--listen=127.0.0.2:%u", test_port());
    coordinator_start(&coordinator, arguments);
    snprintf(list, sizeof(list), "127.0.0.2:%u,127.0.0.3:%u", coordinator.port, coordinator.port);
    coordinator.list = list;
    for (uint32_t rank = 0; rank < SIZE; rank++)
        // Slow and silent enough that no report fills a socket while the others are read.
        scripts[rank] = (struct script){.report_every = 20, .rest_ms = REST_MS, .survives = true};
    world_start(&world, &coordinator, "job", SIZE, scripts);
    train_to(10);
    snprintf(listen, sizeof(listen), "--listen=127.0.0.3:%u", coordinator.port);
    coordinator_start(&successor, arguments);
}

// Ranks 0 and 2 are at this step, and then end well.
static void survivors_end_well(uint64_t step)
{
    struct report done[SIZE];
    for (uint32_t rank = 0; rank < SIZE; rank += 2)
        world_expect_step(&world, rank, step);
    world_stop(&world);
    for (uint32_t rank = 0; rank < SIZE; rank += 2)
        world_expect(&world, rank, REPORT_DONE, &done[rank]);
    assert_int_equal(done[0].value, done[2].value);
    world_join(&world);
}

// Condition: a rolling update: the new coordinator runs, then the old one gets SIGTERM, and then a
// rank dies. Decision: the ranks go to the new one, which decides; the others go on.
static void a_rolling_update(void **state)
{
    (void)state;
    begin_with_two();
    coordinator_signal(&coordinator, SIGTERM);
    coordinator_wait(&coordinator);
    const char *list = coordinator.list;
    coordinator = successor;
    coordinator.list = list;
    successor.pid = 0;
    const uint64_t took_ms = expect_said("\"state\":\"running\"", BACK_MS);
    printf("all ranks are at the new one after %llu ms\n", (unsigned long long)took_ms);
    train_to(20);
    world_kill(&world, 1);
    survivors_end_well(4 * MORE_STEPS);
}

// Condition: the old coordinator is stopped, and then a rank dies. Decision: the others notice that
// it does not answer, and go on by the word of the other one. When it wakes, nobody else is lost.
static void the_old_one_is_stopped(void **state)
{
    const bool left[SIZE] = {true, false, true};
    uint64_t stand[SIZE] = {0};
    (void)state;
    begin_with_two();
    coordinator_signal(&coordinator, SIGSTOP);
    pause_us(500000);
    world_kill(&world, 1);
    for (uint32_t rank = 0; rank < SIZE; rank += 2)
        stand[rank] = stands_at(rank);
    const uint64_t took_ms = go_on(left, stand);
    printf("the others go on after %llu ms\n", (unsigned long long)took_ms);
    assert_true(took_ms < SILENT_MS);
    coordinator_signal(&coordinator, SIGCONT);
    survivors_end_well(stand[0] + 4 * MORE_STEPS);
}

#define TEST(name) cmocka_unit_test_teardown(name, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(it_comes_back_again_and_again),
        TEST(who_has_left_meanwhile_is_told),
        TEST(it_comes_back_at_another_address),
        TEST(nothing_is_left_of_a_silent_one),
        TEST(a_death_after_its_return_is_reported),
        TEST(a_death_in_its_absence_is_told),
        TEST(all_die_at_once),
        TEST(a_rank_alone_on_its_host_dies_with_it),
        TEST(all_others_die_with_it),
        TEST(a_rank_without_a_link_to_it_dies_with_it),
        TEST(links_wait_for_it),
        TEST(a_rolling_update),
        TEST(the_old_one_is_stopped),
    };
    return cmocka_run_group_tests_name("coordinator_return", tests, NULL, NULL);
}
