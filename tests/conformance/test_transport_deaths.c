// SPDX-License-Identifier: Apache-2.0
//
// Proofs that a rank is dead: the process of a mate has ended, or the data port of a rank on
// another host refuses connections. The end of a link is none. Two real processes; this one is rank
// 0.

#include "base/clock.h"
#include "tests/support/bounds.h"
#include "worker/kernels/kernels.h"
#include "worker/support/process.h"
#include "worker/transport/deaths.h"
#include "worker/transport/freeze.h"
#include "worker/transport/lifecycle.h"
#include "worker/transport/transport.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define BOUND_MS 20000
#define STILL_MS 2500 // More than two checks of links.

enum ending {
    RUNS, // Until it is killed.
    LEAVES,
    HAS_CHILD, // The same as RUNS, and a child holds all its descriptors.
    CUTS, // It closes its links without a goodbye, and lives on.
};

struct rank {
    uint32_t number;
    struct transport *transport;
    bool formed;
    uint32_t lost;
    uint32_t gone;
    uint32_t closed; // Events port_closed.
    uint32_t closed_rank; // The rank of the last of these events.
    bool apart; // True if the two ranks say that they are on different hosts.
    bool walled; // True if the first rank is told a port that refuses it from the start.
    bool third; // True if the first rank is told the data port of a rank to which it has no link.
    int door; // The socket that listens at this data port.
    char address[LOCKSTEP_ADDRESS_BYTES];
    char other_address[LOCKSTEP_ADDRESS_BYTES];
    pid_t pids[2];
    int other[2]; // Pipe to the other process, and from it.
};

static void on_formed(void *context)
{
    ((struct rank *)context)->formed = true;
}

static void on_lost(void *context, uint32_t number, enum peer_loss loss, const char *text)
{
    struct rank *rank = context;
    (void)number;
    (void)loss;
    (void)text;
    rank->lost++;
}

static void on_gone(void *context, uint32_t number)
{
    struct rank *rank = context;
    assert_int_equal(number, 1);
    rank->gone++;
}

static void on_closed(void *context, uint32_t number)
{
    struct rank *rank = context;
    rank->closed_rank = number;
    rank->closed++;
}

static void rank_open(struct rank *rank)
{
    const struct transport_config config = {.kind = TRANSPORT_TCP,
                                            .host = "127.0.0.1",
                                            .shares = !rank->apart,
                                            .recovers = rank->apart,
                                            .events = {.formed = on_formed,
                                                       .peer_lost = on_lost,
                                                       .mate_gone = on_gone,
                                                       .port_closed = on_closed,
                                                       .context = rank}};
    char error[256] = "";
    if (transport_open(&config, &rank->transport, error, sizeof(error)) < 0)
        fail_msg("%s", error);
}

static void door_open(struct rank *rank, struct data_port *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(at);
    rank->door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(rank->door, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(rank->door, 8), 0);
    assert_int_equal(getsockname(rank->door, (struct sockaddr *)&at, &bytes), 0);
    snprintf(port->address, sizeof(port->address), "tcp:127.0.0.1:%u", ntohs(at.sin_port));
}

static void rank_form(struct rank *rank)
{
    struct peer peer = {.rank = 1 - rank->number};
    struct data_port further = {.rank = 2};
    snprintf(peer.address, sizeof(peer.address), "%s", transport_address(rank->transport));
    assert_int_equal(write(rank->other[1], peer.address, sizeof(peer.address)),
                     sizeof(peer.address));
    assert_int_equal(read(rank->other[0], peer.address, sizeof(peer.address)),
                     sizeof(peer.address));
    memcpy(rank->other_address, peer.address, sizeof(peer.address));
    // The other rank connects, so the links stand all the same. Nothing listens at port 1.
    if (rank->walled)
        snprintf(peer.address, sizeof(peer.address), "tcp:127.0.0.1:1");
    struct transport_world world = {
        .generation = {.number = 4, .incarnation = 5},
        .rank = rank->number,
        .world_size = 2,
        .chunk_bytes = 65536,
        .locality = {.hosts = 1,
                     .mate_count = 2,
                     .mates = {0, 1},
                     .mate_pids = {(uint32_t)rank->pids[0], (uint32_t)rank->pids[1]},
                     .mate_started = {process_started((uint32_t)rank->pids[0]),
                                      process_started((uint32_t)rank->pids[1])},
                     .local = rank->number,
                     .rings = 1},
        .peer_count = 1,
        .peers = &peer,
        .form_timeout_ms = test_bound_ms(BOUND_MS)};
    if (rank->apart)
        memset(&world.locality, 0, sizeof(world.locality));
    if (rank->third) {
        door_open(rank, &further);
        world.further = &further;
        world.further_count = 1;
    }
    assert_int_equal(transport_form(rank->transport, &world), 0);
    const uint64_t until_ms = clock_now_ms() + test_bound_ms(BOUND_MS);
    while (!rank->formed && clock_now_ms() < until_ms)
        transport_progress(rank->transport, 100);
    assert_true(rank->formed);
}

static void other_runs(struct rank *rank, enum ending ending)
{
    char formed;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    rank->number = 1;
    rank->walled = rank->third = false;
    rank->pids[0] = getppid();
    rank->pids[1] = getpid();
    rank_open(rank);
    rank_form(rank);
    while (read(rank->other[0], &formed, 1) != 1) // The first rank has formed, too.
        continue;
    const pid_t child = ending == HAS_CHILD ? fork() : -1;
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, 0);
        (void)alarm((unsigned)(3 * test_bound_ms(BOUND_MS) / 1000));
        (void)pause();
        _exit(0);
    }
    if (child > 0)
        assert_int_equal(write(rank->other[1], "c", 1), 1);
    if (ending == CUTS)
        transport_abandon(rank->transport);
    if (ending == LEAVES) {
        transport_leave(rank->transport, BOUND_MS);
        _exit(0);
    }
    for (;;)
        (void)pause();
}

static void rank_begin_at(struct rank *rank, enum ending ending, const struct rank *how)
{
    int down[2];
    int up[2];
    *rank = *how;
    assert_int_equal(pipe(down), 0);
    assert_int_equal(pipe(up), 0);
    rank->pids[0] = getpid();
    rank->pids[1] = fork();
    assert_true(rank->pids[1] >= 0);
    if (rank->pids[1] == 0) {
        rank->other[0] = down[0];
        rank->other[1] = up[1];
        other_runs(rank, ending);
    }
    rank->other[0] = up[0];
    rank->other[1] = down[1];
    (void)close(down[0]);
    (void)close(up[1]);
    rank_open(rank);
    rank_form(rank);
    assert_int_equal(write(rank->other[1], "f", 1), 1);
}

static void rank_begin(struct rank *rank, enum ending ending)
{
    rank_begin_at(rank, ending, &(struct rank){.apart = false});
}

static void rank_end(struct rank *rank)
{
    int status;
    transport_abandon(rank->transport);
    transport_close(rank->transport);
    kill(rank->pids[1], SIGKILL);
    assert_int_equal(waitpid(rank->pids[1], &status, 0), rank->pids[1]);
    (void)close(rank->other[0]);
    (void)close(rank->other[1]);
}

static void rank_progress(struct rank *rank, uint64_t ms)
{
    const uint64_t until_ms = clock_now_ms() + ms;
    while (clock_now_ms() < until_ms)
        transport_progress(rank->transport, 50);
}

// Returns true if the death was proven, by whichever way.
static bool rank_proves(struct rank *rank)
{
    const uint64_t until_ms = clock_now_ms() + test_bound_ms(BOUND_MS);
    bool proven = false;
    while (clock_now_ms() < until_ms && !(rank->lost > 0 && proven)) {
        transport_progress(rank->transport, 50);
        proven = proven || rank->gone > 0 ||
                 (rank->lost > 0 && transport_take_death(rank->transport, 1));
    }
    return proven;
}

static void a_killed_mate_is_lost_and_gone(void **state)
{
    struct rank rank;
    (void)state;
    rank_begin(&rank, RUNS);
    kill(rank.pids[1], SIGKILL);
    assert_true(rank_proves(&rank));
    rank_progress(&rank, 50);
    assert_int_equal(rank.lost, 1);
    assert_true(rank.gone <= 1);
    rank_end(&rank);
}

// Its links stand, because its child has them. It is gone all the same.
static void a_child_does_not_keep_it_alive(void **state)
{
    struct rank rank;
    char child;
    (void)state;
    rank_begin(&rank, HAS_CHILD);
    assert_int_equal(read(rank.other[0], &child, 1), 1);
    kill(rank.pids[1], SIGKILL);
    assert_true(rank_proves(&rank));
    assert_int_equal(rank.lost, 1);
    rank_end(&rank);
}

static void a_stopped_mate_is_neither(void **state)
{
    struct rank rank;
    (void)state;
    rank_begin(&rank, RUNS);
    kill(rank.pids[1], SIGSTOP);
    rank_progress(&rank, STILL_MS);
    assert_int_equal(rank.lost, 0);
    assert_int_equal(rank.gone, 0);
    assert_false(transport_take_death(rank.transport, 1));
    rank_end(&rank);
}

static void a_link_that_ends_is_no_proof(void **state)
{
    struct rank rank;
    (void)state;
    rank_begin(&rank, CUTS);
    rank_progress(&rank, STILL_MS);
    assert_int_equal(rank.lost, 1);
    assert_int_equal(rank.gone, 0);
    assert_false(transport_take_death(rank.transport, 1));
    rank_end(&rank);
}

// A mate that says goodbye ends, too. Nobody is told.
static void a_mate_that_leaves_is_no_news(void **state)
{
    struct rank rank;
    int status;
    (void)state;
    rank_begin(&rank, LEAVES);
    rank_progress(&rank, 200);
    transport_leave(rank.transport, BOUND_MS);
    assert_int_equal(rank.gone, 0);
    assert_int_equal(rank.lost, 0);
    assert_int_equal(waitpid(rank.pids[1], &status, 0), rank.pids[1]);
    transport_close(rank.transport);
    (void)close(rank.other[0]);
    (void)close(rank.other[1]);
}

// ---- Ranks of different hosts -------------------------------------------------------------------

static void await_closed(struct rank *rank, uint32_t of)
{
    const uint64_t until_ms = clock_now_ms() + test_bound_ms(BOUND_MS);
    while (clock_now_ms() < until_ms && rank->closed == 0)
        transport_progress(rank->transport, 50);
    assert_int_equal(rank->closed, 1);
    assert_int_equal(rank->closed_rank, of);
}

static void its_port_closes_when_it_is_killed(void **state)
{
    struct rank rank;
    (void)state;
    rank_begin_at(&rank, RUNS, &(struct rank){.apart = true});
    rank_progress(&rank, 100); // Its port is reached once.
    kill(rank.pids[1], SIGKILL);
    await_closed(&rank, 1);
    assert_int_equal(rank.lost, 1);
    rank_progress(&rank, 200);
    assert_int_equal(rank.closed, 1);
    assert_int_equal(rank.gone, 0);
    rank_end(&rank);
}

// A rank that is frozen has no links: it sees no loss.
static void its_port_closes_while_this_rank_is_frozen(void **state)
{
    const struct generation_id ballot = {.number = 5, .incarnation = 5};
    struct rank rank;
    (void)state;
    rank_begin_at(&rank, RUNS, &(struct rank){.apart = true});
    rank_progress(&rank, 100);
    assert_int_equal(transport_freeze(rank.transport, &ballot), 0);
    rank_progress(&rank, 500);
    assert_int_equal(rank.closed, 0);
    kill(rank.pids[1], SIGKILL);
    await_closed(&rank, 1);
    assert_int_equal(rank.lost, 0);
    rank_end(&rank);
}

// The other rank is a member of the next generation, and dies before it has connected.
static void its_port_closes_while_the_next_generation_forms(void **state)
{
    const struct generation_id ballot = {.number = 5, .incarnation = 5};
    struct peer peer = {.rank = 1};
    struct transport_world world = {.generation = ballot,
                                    .world_size = 2,
                                    .chunk_bytes = 65536,
                                    .peer_count = 1,
                                    .peers = &peer,
                                    .form_timeout_ms = 2 * test_bound_ms(BOUND_MS)};
    struct rank rank;
    (void)state;
    rank_begin_at(&rank, RUNS, &(struct rank){.apart = true});
    rank_progress(&rank, 100);
    assert_int_equal(transport_freeze(rank.transport, &ballot), 0);
    memcpy(peer.address, rank.other_address, sizeof(peer.address));
    assert_int_equal(transport_form(rank.transport, &world), 0);
    rank_progress(&rank, 500);
    assert_int_equal(rank.closed, 0);
    kill(rank.pids[1], SIGKILL);
    await_closed(&rank, 1);
    rank_end(&rank);
}

static void its_port_answers_though_its_link_has_ended(void **state)
{
    struct rank rank;
    (void)state;
    rank_begin_at(&rank, CUTS, &(struct rank){.apart = true});
    rank_progress(&rank, STILL_MS);
    assert_int_equal(rank.lost, 1);
    assert_int_equal(rank.closed, 0);
    kill(rank.pids[1], SIGKILL); // The port is probed again and again.
    await_closed(&rank, 1);
    rank_end(&rank);
}

// A firewall may refuse, too.
static void a_port_that_was_never_reached_proves_nothing(void **state)
{
    struct rank rank;
    (void)state;
    rank_begin_at(&rank, CUTS, &(struct rank){.apart = true, .walled = true});
    rank_progress(&rank, STILL_MS);
    assert_int_equal(rank.lost, 1);
    assert_int_equal(rank.closed, 0);
    rank_end(&rank);
}

// ---- A rank to which this one has no link -------------------------------------------------------

// Nothing is known of the third rank while links stand. When one has ended, its port counts, too.
static void a_port_without_a_link_closes(void **state)
{
    struct rank rank;
    (void)state;
    rank_begin_at(&rank, CUTS, &(struct rank){.apart = true, .third = true});
    rank_progress(&rank, STILL_MS);
    assert_int_equal(rank.lost, 1);
    assert_int_equal(rank.closed, 0);
    (void)close(rank.door);
    await_closed(&rank, 2);
    rank_end(&rank);
}

static void it_is_asked_for_nothing_while_links_stand(void **state)
{
    const struct generation_id ballot = {.number = 5, .incarnation = 5};
    struct rank rank;
    (void)state;
    rank_begin_at(&rank, RUNS, &(struct rank){.apart = true, .third = true});
    rank_progress(&rank, 100);
    (void)close(rank.door);
    rank_progress(&rank, STILL_MS);
    assert_int_equal(rank.closed, 0);
    assert_int_equal(transport_freeze(rank.transport, &ballot), 0);
    await_closed(&rank, 2);
    rank_end(&rank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_mate_is_lost_and_gone),
        cmocka_unit_test(a_child_does_not_keep_it_alive),
        cmocka_unit_test(a_stopped_mate_is_neither),
        cmocka_unit_test(a_link_that_ends_is_no_proof),
        cmocka_unit_test(a_mate_that_leaves_is_no_news),
        cmocka_unit_test(its_port_closes_when_it_is_killed),
        cmocka_unit_test(its_port_closes_while_this_rank_is_frozen),
        cmocka_unit_test(its_port_closes_while_the_next_generation_forms),
        cmocka_unit_test(its_port_answers_though_its_link_has_ended),
        cmocka_unit_test(a_port_that_was_never_reached_proves_nothing),
        cmocka_unit_test(a_port_without_a_link_closes),
        cmocka_unit_test(it_is_asked_for_nothing_while_links_stand),
    };
    kernels_environment();
    return cmocka_run_group_tests_name("deaths", tests, NULL, NULL);
}
