// SPDX-License-Identifier: Apache-2.0
//
// Links in shared memory between real processes: a mate that is killed or stopped at any instant, a
// mate that cannot share memory, strangers on this host, and a rank whose transport no thread runs.
// test_transport.c tests collectives over such links.

#include "base/clock.h"
#include "tests/conformance/transport_fleet.h"
#include "tests/conformance/transport_job.h"
#include "worker/kernels/kernels.h"
#include "worker/link/link.h"
#include "worker/link/loopback.h"
#include "worker/link/unix.h"
#include "worker/memory/regions.h"
#include "worker/transport/headers.h"
#include "worker/transport/idle.h"
#include "worker/transport/lifecycle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ELEMENTS 800000
#define BOUND_MS 20000
#define KILLS 20

// One of two ranks.
struct rank {
    uint32_t number;
    struct transport *transport;
    bool formed;
    uint32_t done;
    uint32_t headers;
    uint32_t lost;
    bool left;
    char text[256];
    char address[LOCKSTEP_ADDRESS_BYTES];
    float memory[ELEMENTS];
};

static void on_formed(void *context)
{
    ((struct rank *)context)->formed = true;
}

static void on_done(void *context, struct collective *collective)
{
    (void)collective;
    ((struct rank *)context)->done++;
}

static void on_header(void *context, const struct step_header *header, const uint8_t *note,
                      uint32_t note_bytes)
{
    (void)header;
    (void)note;
    (void)note_bytes;
    ((struct rank *)context)->headers++;
}

static void on_lost(void *context, uint32_t number, enum peer_loss loss, const char *text)
{
    struct rank *rank = context;
    (void)number;
    rank->lost++;
    rank->left = loss == LOSS_LEFT;
    snprintf(rank->text, sizeof(rank->text), "%s", text);
}

static void rank_open(struct rank *rank, uint32_t number, bool shares)
{
    const struct transport_config config = {.kind = TRANSPORT_TCP,
                                            .host = "127.0.0.1",
                                            .shares = shares,
                                            .events = {.formed = on_formed,
                                                       .done = on_done,
                                                       .header = on_header,
                                                       .peer_lost = on_lost,
                                                       .context = rank}};
    char error[256] = "";
    memset(rank, 0, sizeof(*rank));
    rank->number = number;
    if (transport_open(&config, &rank->transport, error, sizeof(error)) < 0)
        fail_msg("%s", error);
    snprintf(rank->address, sizeof(rank->address), "%s", transport_address(rank->transport));
}

static void rank_form(struct rank *rank, const char *address)
{
    struct peer peer = {.rank = 1 - rank->number};
    snprintf(peer.address, sizeof(peer.address), "%s", address);
    struct transport_world world = {.generation = {.number = 4, .incarnation = 5},
                                    .rank = rank->number,
                                    .world_size = 2,
                                    .chunk_bytes = 65536,
                                    .locality = {.hosts = 1,
                                                 .mate_count = 2,
                                                 .mates = {0, 1},
                                                 .local = rank->number,
                                                 .rings = 1},
                                    .peer_count = 1,
                                    .peers = &peer,
                                    .form_timeout_ms = fleet_bound_ms(BOUND_MS)};
    memset(world.secret, 0x21, sizeof(world.secret));
    assert_int_equal(transport_form(rank->transport, &world), 0);
}

static void rank_until(struct rank *rank, const uint32_t *count, uint32_t least)
{
    const uint64_t since_ms = clock_now_ms();
    while (*count < least) {
        transport_progress(rank->transport, 1000);
        if (clock_now_ms() - since_ms >= fleet_bound_ms(BOUND_MS)) {
            fprintf(stderr, "rank %u hangs: %u done, %u lost (%s)\n", rank->number, rank->done,
                    rank->lost, rank->text);
            abort();
        }
    }
}

static void rank_until_formed(struct rank *rank)
{
    const uint64_t since_ms = clock_now_ms();
    while (!rank->formed) {
        transport_progress(rank->transport, 100);
        if (clock_now_ms() - since_ms >= fleet_bound_ms(BOUND_MS)) {
            fprintf(stderr, "rank %u is not formed\n", rank->number);
            abort();
        }
    }
}

static uint32_t memory_links(const struct rank *rank)
{
    struct transport_statistics statistics;
    transport_statistics(rank->transport, &statistics);
    return statistics.memory_links;
}

static void rank_fill(struct rank *rank, float value)
{
    for (size_t i = 0; i < ELEMENTS; i++)
        rank->memory[i] = value;
}

static void rank_launch(struct rank *rank, struct collective *collective, struct extent *extent,
                        uint32_t slot, uint64_t elements)
{
    *extent = (struct extent){rank->memory, rank->memory, elements};
    *collective = (struct collective){.kind = COLLECTIVE_ALLREDUCE,
                                      .dtype = DTYPE_FLOAT32,
                                      .op = REDUCE_SUM,
                                      .algorithm = ALGORITHM_RING,
                                      .tag = {.step = 1, .space = 2, .slot = slot},
                                      .signature = 3,
                                      .extents = extent,
                                      .extent_count = 1,
                                      .elements = elements};
    transport_launch(rank->transport, collective);
}

// ---- real processes -----------------------------------------------------------------------------

static void pipe_exchange(int out, int in, const char *own, char *other)
{
    assert_int_equal(write(out, own, LOCKSTEP_ADDRESS_BYTES), LOCKSTEP_ADDRESS_BYTES);
    size_t done = 0;
    while (done < LOCKSTEP_ADDRESS_BYTES) {
        const ssize_t got = read(in, other + done, LOCKSTEP_ADDRESS_BYTES - done);
        if (got <= 0)
            abort();
        done += (size_t)got;
    }
}

// The child runs collectives of many sizes, one after the other, until it is killed.
static void child_reduces(struct rank *rank)
{
    struct collective collective;
    struct extent extent;
    for (uint32_t i = 0;; i++) {
        rank_fill(rank, 2);
        rank_launch(rank, &collective, &extent, i, i % 3 == 0 ? ELEMENTS : 1 + i % 1000);
        while (rank->done <= i && rank->lost == 0)
            transport_progress(rank->transport, 100);
        if (rank->lost > 0)
            _exit(3);
    }
}

struct child {
    pid_t id;
    int out;
    int in;
};

static struct child child_start(uint32_t number, char address[LOCKSTEP_ADDRESS_BYTES],
                                const char *own, void (*run)(struct rank *rank))
{
    int down[2];
    int up[2];
    assert_int_equal(pipe(down), 0);
    assert_int_equal(pipe(up), 0);
    const pid_t id = fork();
    assert_true(id >= 0);
    if (id == 0) {
        char other[LOCKSTEP_ADDRESS_BYTES];
        struct rank *rank = malloc(sizeof(*rank));
        (void)close(down[1]);
        (void)close(up[0]);
        rank_open(rank, number, true);
        pipe_exchange(up[1], down[0], rank->address, other);
        rank_form(rank, other);
        rank_until_formed(rank);
        run(rank);
        _exit(0);
    }
    (void)close(down[0]);
    (void)close(up[1]);
    pipe_exchange(down[1], up[0], own, address);
    return (struct child){.id = id, .out = down[1], .in = up[0]};
}

static int child_end(struct child *child)
{
    int status = 0;
    assert_int_equal(waitpid(child->id, &status, 0), child->id);
    (void)close(child->out);
    (void)close(child->in);
    return status;
}

// One side of the connection is killed at a random instant: the connecting or the accepting side.
static void killed_at_any_instant(void **state)
{
    (void)state;
    struct rank *rank = malloc(sizeof(*rank));
    uint64_t random = 77;
    for (uint32_t k = 0; k < KILLS; k++) {
        char address[LOCKSTEP_ADDRESS_BYTES];
        struct collective collective;
        struct extent extent;
        rank_open(rank, k % 2, true);
        struct child child = child_start(1 - k % 2, address, rank->address, child_reduces);
        rank_form(rank, address);
        rank_until_formed(rank);
        assert_int_equal(memory_links(rank), rank->lost > 0 ? 0 : 1);
        const uint64_t end_us = clock_now_us() + job_random(&random) % 4000;
        uint64_t killed_ms = 0;
        for (uint32_t i = 0; rank->lost == 0; i++) {
            rank_fill(rank, 1);
            rank_launch(rank, &collective, &extent, i, i % 3 == 0 ? ELEMENTS : 1 + i % 1000);
            while (rank->done <= i && rank->lost == 0) {
                if (killed_ms == 0 && clock_now_us() >= end_us) {
                    assert_int_equal(kill(child.id, SIGKILL), 0);
                    killed_ms = clock_now_ms();
                }
                transport_progress(rank->transport, killed_ms == 0 ? 0 : 1000);
                assert_true(killed_ms == 0 ||
                            clock_now_ms() - killed_ms < fleet_bound_ms(BOUND_MS));
            }
        }
        assert_int_equal(rank->lost, 1);
        assert_false(rank->left);
        transport_abandon(rank->transport);
        // Each element is unchanged or final.
        for (size_t e = 0; e < ELEMENTS; e++)
            assert_true(rank->memory[e] == 1 || rank->memory[e] == 3);
        transport_close(rank->transport);
        assert_true(WIFSIGNALED(child_end(&child)));
    }
    free(rank);
}

static void child_waits(struct rank *rank)
{
    struct collective collective;
    struct extent extent;
    rank_launch(rank, &collective, &extent, 0, ELEMENTS);
    rank_until(rank, &rank->done, 1);
    transport_leave(rank->transport, fleet_bound_ms(BOUND_MS));
    transport_close(rank->transport);
}

// A rank waits for a stopped mate. After the mate is continued, the collective completes.
static void stopped_and_continued(void **state)
{
    (void)state;
    struct rank *rank = malloc(sizeof(*rank));
    char address[LOCKSTEP_ADDRESS_BYTES];
    struct collective collective;
    struct extent extent;
    int status = 0;
    rank_open(rank, 0, true);
    struct child child = child_start(1, address, rank->address, child_waits);
    rank_form(rank, address);
    rank_until_formed(rank);
    assert_int_equal(kill(child.id, SIGSTOP), 0);
    assert_int_equal(waitpid(child.id, &status, WUNTRACED), child.id);
    assert_true(WIFSTOPPED(status));
    // More data than the link's ring buffer holds, so the writer has to wait. It checks the mate
    // every second.
    rank_launch(rank, &collective, &extent, 0, ELEMENTS);
    for (int i = 0; i < 12; i++)
        transport_progress(rank->transport, 100);
    assert_int_equal(rank->done, 0);
    assert_int_equal(rank->lost, 0);
    assert_int_equal(kill(child.id, SIGCONT), 0);
    rank_until(rank, &rank->done, 1);
    assert_true(rank->memory[ELEMENTS - 1] == 0);
    transport_leave(rank->transport, fleet_bound_ms(BOUND_MS));
    transport_close(rank->transport);
    assert_int_equal(child_end(&child), 0);
    assert_int_equal(rank->lost, 0);
    free(rank);
}

// ---- both ranks here ----------------------------------------------------------------------------

static void both_until_formed(struct rank *ranks[2])
{
    const uint64_t since_ms = clock_now_ms();
    while (!ranks[0]->formed || !ranks[1]->formed) {
        for (int i = 0; i < 2; i++)
            transport_progress(ranks[i]->transport, 0);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(BOUND_MS));
    }
}

static void both_open(struct rank *ranks[2], bool shares0, bool shares1)
{
    for (uint32_t i = 0; i < 2; i++) {
        ranks[i] = malloc(sizeof(*ranks[i]));
        rank_open(ranks[i], i, i == 0 ? shares0 : shares1);
    }
}

static void both_close(struct rank *ranks[2])
{
    for (uint32_t i = 0; i < 2; i++) {
        transport_close(ranks[i]->transport);
        free(ranks[i]);
    }
}

// Mates that cannot share memory connect over TCP, without a delay.
static void other_ways_are_found(void **state)
{
    (void)state;
    static const struct {
        bool shares[2];
        const char *behind; // Appended to the address of rank 0; NULL: nothing.
        uint32_t memory_links;
    } cases[] = {
        {{true, true}, NULL, 1},
        {{false, true}, NULL, 0},
        {{true, false}, NULL, 0},
        {{true, true}, "", 0},
        {{true, true},
         ";unix:0123456789abcdef0123456789abcdef",
         0}, // A socket that does not exist, or not in this namespace.
        {{true, true}, ";unix:0123", 0},
        {{true, true}, ";other:1;more", 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rank *ranks[2];
        char address[LOCKSTEP_ADDRESS_BYTES];
        both_open(ranks, cases[i].shares[0], cases[i].shares[1]);
        char *part = strchr(ranks[0]->address, ';');
        assert_true((part != NULL) == cases[i].shares[0]);
        if (part && cases[i].behind)
            *part = '\0';
        snprintf(address, sizeof(address), "%.80s%s", ranks[0]->address,
                 cases[i].behind ? cases[i].behind : "");
        const uint64_t since_ms = clock_now_ms();
        rank_form(ranks[0], ranks[1]->address);
        rank_form(ranks[1], address);
        both_until_formed(ranks);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(1000));
        for (int r = 0; r < 2; r++)
            assert_int_equal(memory_links(ranks[r]), cases[i].memory_links);
        both_close(ranks);
    }
}

// Another user of this host who knows the socket's name is refused before the first byte.
static void other_users_are_refused(void **state)
{
    (void)state;
    struct rank *rank = malloc(sizeof(*rank));
    char token[LINK_TOKEN_BYTES];
    int status = 0;
    if (geteuid() != 0) {
        free(rank);
        skip();
    }
    rank_open(rank, 0, true);
    assert_true(link_token(rank->address, token));
    const pid_t child = fork();
    if (child == 0) {
        char error[256];
        if (setresuid(65534, 65534, 65534) < 0)
            _exit(2);
        // The process that connects checks the other side, too.
        _exit(!link_connect_unix(token, error, sizeof(error)) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    const uint64_t since_ms = clock_now_ms();
    struct transport_statistics statistics = {0};
    while (statistics.strangers_refused == 0) {
        transport_progress(rank->transport, 10);
        transport_statistics(rank->transport, &statistics);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(BOUND_MS));
    }
    transport_close(rank->transport);
    free(rank);
}

static uint64_t dozes_ms(struct rank *rank, int bell, int rest_ms)
{
    const uint64_t since_ms = clock_now_ms();
    transport_doze(rank->transport, bell, rest_ms);
    return clock_now_ms() - since_ms;
}

// While no thread runs the transport, data in shared memory and the end of a link still wake it.
static void nobody_drives(void **state)
{
    (void)state;
    struct rank *ranks[2];
    const struct step_header header = {.step = 1};
    const uint8_t note = 0;
    const int bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    const int longest_ms = (int)fleet_bound_ms(BOUND_MS);
    both_open(ranks, true, true);
    for (int i = 0; i < 2; i++)
        rank_form(ranks[i], ranks[1 - i]->address);
    both_until_formed(ranks);
    for (uint32_t i = 1; i <= 3; i++) {
        while (transport_rest(ranks[0]->transport) == 0)
            transport_progress(ranks[0]->transport, 0);
        transport_header(ranks[1]->transport, &header, &note, 0);
        transport_progress(ranks[1]->transport, 0);
        assert_true(dozes_ms(ranks[0], bell, longest_ms) < (uint64_t)longest_ms);
        rank_until(ranks[0], &ranks[0]->headers, i);
    }
    // The data is already there when the rank wants to sleep.
    transport_header(ranks[1]->transport, &header, &note, 0);
    transport_progress(ranks[1]->transport, 0);
    assert_int_equal(transport_rest(ranks[0]->transport), 0);
    rank_until(ranks[0], &ranks[0]->headers, 4);
    while (transport_rest(ranks[0]->transport) == 0)
        transport_progress(ranks[0]->transport, 0);
    transport_abandon(ranks[1]->transport);
    assert_true(dozes_ms(ranks[0], bell, longest_ms) < (uint64_t)longest_ms);
    rank_until(ranks[0], &ranks[0]->lost, 1);
    both_close(ranks);
    (void)close(bell);
}

// ---- a link that comes late ---------------------------------------------------------------------

#define MATES 3
#define LATE_MS 150 // Long after the board is made.
#define KNOCKS 128 // Length of the queue of unaccepted connections; the next one is refused.

struct mate {
    struct transport *transport;
    struct regions *regions;
    void *memory;
    bool formed;
};

static void on_mate_formed(void *context)
{
    ((struct mate *)context)->formed = true;
}

static void mate_open(struct mate *mate)
{
    char error[256] = "";
    *mate = (struct mate){.regions = regions_open()};
    assert_non_null(mate->regions);
    assert_int_equal(regions_make(mate->regions, LOCKSTEP_REGION_BYTES, &mate->memory), 0);
    const struct transport_config config = {.kind = TRANSPORT_LOOPBACK,
                                            .regions = mate->regions,
                                            .events = {.formed = on_mate_formed, .context = mate}};
    if (transport_open(&config, &mate->transport, error, sizeof(error)) < 0)
        fail_msg("%s", error);
}

static void mate_form(struct mate mates[MATES], uint32_t rank)
{
    struct peer peers[MATES - 1] = {{.rank = rank == 0 ? 1 : 0}, {.rank = rank == 2 ? 1 : 2}};
    struct transport_world world = {.generation = {.number = 4, .incarnation = 5},
                                    .rank = rank,
                                    .world_size = MATES,
                                    .chunk_bytes = 65536,
                                    .locality = {.hosts = 1,
                                                 .mate_count = MATES,
                                                 .mates = {0, 1, 2},
                                                 .local = rank,
                                                 .rings = 1},
                                    .peer_count = MATES - 1,
                                    .peers = peers,
                                    .form_timeout_ms = fleet_bound_ms(BOUND_MS)};
    for (uint32_t i = 0; i < MATES - 1; i++)
        snprintf(peers[i].address, sizeof(peers[i].address), "%s",
                 transport_address(mates[peers[i].rank].transport));
    memset(world.secret, 0x21, sizeof(world.secret));
    assert_int_equal(transport_form(mates[rank].transport, &world), 0);
}

// Opens silent connections until the mate's queue is full.
static void mate_occupy(const struct mate *mate, struct link *knocks[KNOCKS])
{
    const char *number = transport_address(mate->transport) + strlen("loopback:");
    char error[256];
    for (uint32_t i = 0; i < KNOCKS; i++) {
        if (knocks[i])
            knocks[i]->ops->close(knocks[i], false);
        knocks[i] = NULL;
    }
    for (uint32_t i = 0; i < KNOCKS; i++)
        knocks[i] = link_connect_loopback(number, 0, error, sizeof(error));
}

// Condition: rank 2 cannot connect to rank 1 for a while. Both have links to rank 0, so the board
// exists. Decision: ranks 1 and 2 still pass each other their memory once they are connected.
static void a_late_link_passes_memory(void **state)
{
    (void)state;
    struct mate mates[MATES];
    struct link *knocks[KNOCKS] = {NULL};
    uint32_t number = 0;
    uint64_t offset = 0;
    for (uint32_t i = 0; i < MATES; i++)
        mate_open(&mates[i]);
    for (uint32_t i = 0; i < MATES; i++)
        mate_form(mates, i);
    const uint64_t late_ms = clock_now_ms() + LATE_MS;
    while (clock_now_ms() < late_ms) {
        mate_occupy(&mates[1], knocks);
        for (uint32_t i = MATES; i-- > 0;)
            transport_progress(mates[i].transport, 0);
    }
    assert_true(!mates[1].formed && !mates[2].formed);
    for (uint32_t i = 0; i < KNOCKS; i++) {
        if (knocks[i])
            knocks[i]->ops->close(knocks[i], false);
    }
    for (uint32_t found = 0; found < MATES;) {
        assert_true(clock_now_ms() < late_ms + fleet_bound_ms(BOUND_MS));
        found = 0;
        for (uint32_t i = 0; i < MATES; i++) {
            transport_progress(mates[i].transport, 1);
            found += regions_find(mates[i].regions, mates[i].memory, 1, &number, &offset) > 0;
        }
    }
    for (uint32_t i = 0; i < MATES; i++) {
        transport_close(mates[i].transport);
        regions_close(mates[i].regions);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_at_any_instant),   cmocka_unit_test(stopped_and_continued),
        cmocka_unit_test(other_ways_are_found),    cmocka_unit_test(nobody_drives),
        cmocka_unit_test(other_users_are_refused), cmocka_unit_test(a_late_link_passes_memory),
    };
    kernels_environment();
    return cmocka_run_group_tests_name("mates", tests, NULL, NULL);
}
