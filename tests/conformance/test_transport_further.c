// SPDX-License-Identifier: Apache-2.0
//
// Conformance: links to ranks that are no neighbours, which are made when they are wanted. In a
// world of eight, ranks 0 and 5 are no neighbours. The second half has one transport and a puppet
// that connects to it, as in transport_stage.h.

#include "tests/conformance/transport_fleet.h"
#include "tests/conformance/transport_stage.h"
#include "worker/transport/further.h"
#include "worker/transport/inspect.h"
#include "worker/transport/lifecycle.h"
#include "worker/transport/state.h"

#include "base/clock.h"
#include "worker/link/tcp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define WORLD 8
#define LOW 0u
#define HIGH 5u

// ---- worlds -------------------------------------------------------------------------------------

static struct peer_link *link_of(struct member *member, uint32_t rank)
{
    return peer_of_rank(&member->transport->flows, rank);
}

static struct peer_link *want(struct member *member, uint32_t rank)
{
    struct peer_link *peer = peer_want(&member->transport->flows, rank);
    MEMBER_CHECK(member, peer != NULL);
    MEMBER_CHECK(member, peer_want(&member->transport->flows, rank) == peer);
    return peer;
}

// Runs the transport until this rank has a proven link to `rank`.
static void until_linked(struct member *member, uint32_t rank)
{
    const uint64_t since_ms = clock_now_ms();
    member->waits_for = "a further link";
    while (!link_of(member, rank) || link_of(member, rank)->state != PEER_PROVEN) {
        transport_progress(member->transport, 10);
        MEMBER_CHECK(member, member->lost_count == 0);
        MEMBER_CHECK(member, clock_now_ms() - since_ms < fleet_bound_ms(FLEET_BOUND_MS));
    }
    member->waits_for = NULL;
}

static void until_lost(struct member *member, uint32_t rank)
{
    member_until(member, &member->lost_count, 1, "the loss");
    MEMBER_CHECK(member, member->lost_rank == rank);
}

static void expect_no_links(struct member *member)
{
    MEMBER_CHECK(member, !link_of(member, member->rank == LOW ? HIGH : LOW));
    MEMBER_CHECK(member,
                 member->transport->flows.links.count == member->transport->flows.peer_count);
}

// The two ranks have a link, which only the higher one asked for.
static void expect_linked(struct member *member)
{
    until_linked(member, member->rank == LOW ? HIGH : LOW);
    MEMBER_CHECK(member, member->reach_count == (member->rank == HIGH ? 1u : 0u));
    MEMBER_CHECK(member, member->transport->flows.links.unmade == 0);
    MEMBER_CHECK(member,
                 member->transport->flows.links.count == member->transport->flows.peer_count + 1);
    if (member->rank == HIGH)
        MEMBER_CHECK(member, strcmp(transport_further_host(member->transport, LOW), "far") == 0);
}

static bool is_of_the_two(const struct member *member)
{
    return member->rank == LOW || member->rank == HIGH;
}

static void higher_script(struct member *member)
{
    if (is_of_the_two(member))
        expect_no_links(member);
    member_barrier(member);
    if (member->rank == HIGH)
        (void)want(member, LOW);
    if (is_of_the_two(member))
        expect_linked(member);
    member_barrier(member);
    MEMBER_CHECK(member, member->lost_count == 0);
}

// The link that only the lower rank wants stays unmade, however long it takes.
static void lower_script(struct member *member)
{
    if (member->rank == LOW) {
        member->transport->flows.world.form_timeout_ms = 1;
        MEMBER_CHECK(member, want(member, HIGH)->state == PEER_WAITING);
        for (int i = 0; i < 20; i++)
            transport_progress(member->transport, 1);
        MEMBER_CHECK(member, want(member, HIGH)->state == PEER_WAITING);
        MEMBER_CHECK(member, member->reach_count == 0 && member->lost_count == 0);
    }
    member_barrier(member);
    if (member->rank == HIGH)
        (void)want(member, LOW);
    if (is_of_the_two(member))
        expect_linked(member);
    member_barrier(member);
    MEMBER_CHECK(member, member->lost_count == 0);
}

// Every rank wants a link to every other one, at once.
static void all_script(struct member *member)
{
    const uint32_t world = member->fleet->options.world;
    const struct flows *flows = &member->transport->flows;
    uint32_t below = 0;
    for (uint32_t rank = 0; rank < world; rank++) {
        if (rank == member->rank)
            continue;
        below += rank < member->rank && !link_of(member, rank);
        (void)want(member, rank);
    }
    for (uint32_t rank = 0; rank < world; rank++)
        if (rank != member->rank)
            until_linked(member, rank);
    MEMBER_CHECK(member, flows->links.count == world - 1 && flows->links.unmade == 0);
    // A link may have come before this rank wanted it, so there may be fewer questions.
    MEMBER_CHECK(member, member->reach_count == below);
    member_barrier(member);
    MEMBER_CHECK(member, member->lost_count == 0);
}

// The death of a rank is the loss of that rank for a rank that has only a further link to it.
static void death_script(struct member *member)
{
    if (member->rank == HIGH)
        (void)want(member, LOW);
    if (is_of_the_two(member))
        expect_linked(member);
    member_barrier(member);
    if (member->rank == HIGH) {
        transport_close(member->transport);
        member->closed = true;
    }
    if (member->rank == LOW)
        until_lost(member, HIGH);
    if (member->rank == LOW)
        MEMBER_CHECK(member, !member->lost_left);
    member_barrier(member);
}

// A goodbye is no loss, and further links end with it.
static void goodbye_script(struct member *member)
{
    if (member->rank == HIGH)
        (void)want(member, LOW);
    if (is_of_the_two(member))
        expect_linked(member);
    member_barrier(member);
    if (member->rank == HIGH) {
        transport_leave(member->transport, fleet_bound_ms(5000));
        MEMBER_CHECK(member, member->transport->flows.links.count == 0);
    }
    const uint64_t since_ms = clock_now_ms();
    while (member->rank == LOW && !link_of(member, HIGH)->left) {
        transport_progress(member->transport, 10);
        MEMBER_CHECK(member, clock_now_ms() - since_ms < fleet_bound_ms(FLEET_BOUND_MS));
    }
    MEMBER_CHECK(member, member->lost_count == 0);
    if (member->rank == HIGH) {
        transport_close(member->transport);
        member->closed = true;
    }
}

// Where no peer listens, the peer is lost in time, with its address.
static void nowhere_script(struct member *member)
{
    const char *elsewhere =
        member->fleet->options.kind == TRANSPORT_TCP ? "tcp:127.0.0.1:1" : "loopback:0";
    if (member->rank == HIGH) {
        member->elsewhere = elsewhere;
        member->transport->flows.world.form_timeout_ms = 50;
        (void)want(member, LOW);
        until_lost(member, LOW);
        MEMBER_CHECK(member, strstr(member->lost_text, "no link to it could be made in 50 ms"));
        MEMBER_CHECK(member, strstr(member->lost_text, "refused"));
        MEMBER_CHECK(member, strstr(member->lost_text, elsewhere));
    }
    member_barrier(member);
}

// The peer ends each connection before its welcome.
static void dying_script(struct member *member)
{
    char error[256] = "";
    if (member->rank == HIGH) {
        uint32_t ended = 0;
        struct listener *listener = tcp_listener_open("127.0.0.1", 0, 0, error, sizeof(error));
        MEMBER_CHECK(member, listener != NULL);
        member->elsewhere = listener->address;
        member->transport->flows.world.form_timeout_ms = fleet_bound_ms(300);
        (void)want(member, LOW);
        while (member->lost_count == 0) {
            struct link *link = listener->ops->accept(listener);
            if (link) {
                link->ops->close(link, ended % 2 == 0);
                ended++;
            }
            transport_progress(member->transport, 1);
        }
        MEMBER_CHECK(member, ended > 1); // It tries again.
        MEMBER_CHECK(member, member->lost_rank == LOW);
        MEMBER_CHECK(member, strstr(member->lost_text, "no link to it could be made"));
        listener->ops->close(listener);
    }
    member_barrier(member);
}

// A rank without descriptors blames itself. Meanwhile the other ranks open none.
static void lacking_script(struct member *member)
{
    struct rlimit limit;
    member_barrier(member);
    if (member->rank == HIGH) {
        MEMBER_CHECK(member, getrlimit(RLIMIT_NOFILE, &limit) == 0);
        const struct rlimit none = {.rlim_cur = 3, .rlim_max = limit.rlim_max};
        member->transport->flows.world.form_timeout_ms = 100;
        MEMBER_CHECK(member, setrlimit(RLIMIT_NOFILE, &none) == 0);
        (void)want(member, LOW);
        until_lost(member, LOW);
        MEMBER_CHECK(member, setrlimit(RLIMIT_NOFILE, &limit) == 0);
        MEMBER_CHECK(member, strstr(member->lost_text, "this rank could not make its links: Too "
                                                       "many open files; raise the limit"));
    }
    member_barrier(member);
}

// While the answer is missing, the link waits.
static void unanswered_script(struct member *member)
{
    struct peer answer = {.rank = LOW};
    uint32_t rank = 99;
    if (member->rank == HIGH) {
        member->answers_late = true;
        member->transport->flows.world.form_timeout_ms = 1;
        MEMBER_CHECK(member, !transport_awaits_address(member->transport, &rank));
        (void)want(member, LOW);
        member_until(member, &member->reach_count, 1, "the question");
        for (int i = 0; i < 20; i++)
            transport_progress(member->transport, 1);
        MEMBER_CHECK(member, transport_awaits_address(member->transport, &rank) && rank == LOW);
        MEMBER_CHECK(member, member->lost_count == 0 && member->reach_count == 1);
        member->transport->flows.world.form_timeout_ms = fleet_bound_ms(FLEET_BOUND_MS);
        // Answers about other ranks are ignored.
        snprintf(answer.address, sizeof(answer.address), "loopback:0");
        for (answer.rank = 1; answer.rank < WORLD + 1; answer.rank++)
            transport_reach(member->transport, &answer);
        answer.rank = LOW;
        memcpy(answer.address, member->fleet->addresses[LOW], sizeof(answer.address));
        transport_reach(member->transport, &answer);
        MEMBER_CHECK(member, !transport_awaits_address(member->transport, &rank));
        // A second answer is ignored.
        snprintf(answer.address, sizeof(answer.address), "loopback:0");
        transport_reach(member->transport, &answer);
    }
    if (is_of_the_two(member))
        until_linked(member, member->rank == LOW ? HIGH : LOW);
    member_barrier(member);
    MEMBER_CHECK(member, member->lost_count == 0);
}

// An exchange that the lower rank launches first. Until the higher rank launches it, its link is
// named as one that stands still, although it is not made. Then the exchange completes.
static void exchange_script(struct member *member)
{
    enum {
        ELEMENTS = 100000,
        STILL_MS = 1000
    };
    const bool low = member->rank == LOW;
    struct link_state links[2];
    struct collective_part send = {.rank = low ? HIGH : LOW, .elements = ELEMENTS};
    struct collective_part receive = send;
    const struct collective_parts parts = {&send, &receive, 1, 1, 0};
    struct collective collective = {.kind = COLLECTIVE_EXCHANGE,
                                    .dtype = DTYPE_INT32,
                                    .algorithm = ALGORITHM_DIRECT,
                                    .tag = {.step = 1, .space = 7},
                                    .signature = 9,
                                    .parts = &parts};
    int32_t *out = calloc(ELEMENTS, sizeof(*out));
    int32_t *in = calloc(ELEMENTS, sizeof(*in));
    send.memory = out;
    receive.memory = in;
    for (int32_t i = 0; i < ELEMENTS; i++)
        out[i] = i + (int32_t)member->rank;
    if (low) {
        transport_launch(member->transport, &collective);
        MEMBER_CHECK(member, transport_inspect(member->transport, clock_now_ms(), links, 2) == 0);
        member_idle(member, STILL_MS + 200);
        MEMBER_CHECK(member, transport_inspect(member->transport, clock_now_ms(), links, 2) == 1);
        MEMBER_CHECK(member, links[0].rank == HIGH && links[0].awaited && links[0].unsent == 0);
    }
    member_barrier(member);
    if (member->rank == HIGH)
        transport_launch(member->transport, &collective);
    if (is_of_the_two(member)) {
        member_until(member, &member->done_count, 1, "the exchange");
        for (int32_t i = 0; i < ELEMENTS; i++)
            MEMBER_CHECK(member, in[i] == i + (int32_t)send.rank);
    }
    member_barrier(member);
    MEMBER_CHECK(member, member->lost_count == 0);
    free(out);
    free(in);
}

static const struct fleet_options fleets[] = {
    {.name = "loopback", .kind = TRANSPORT_LOOPBACK, .world = WORLD, .chunk_bytes = 4096},
    {.name = "torn",
     .kind = TRANSPORT_LOOPBACK,
     .torn_bytes = 7,
     .world = WORLD,
     .chunk_bytes = 4096},
    {.name = "tcp", .kind = TRANSPORT_TCP, .world = WORLD, .chunk_bytes = 4096},
    {.name = "tls", .kind = TRANSPORT_TCP, .encrypts = true, .world = WORLD, .chunk_bytes = 4096},
    // Ranks 0 to 3 share a host, and 4 to 7.
    {.name = "hosts",
     .kind = TRANSPORT_TCP,
     .mates = true,
     .hosts = 2,
     .world = WORLD,
     .chunk_bytes = 4096},
};

static void run_all(void (*script)(struct member *member))
{
    for (size_t i = 0; i < LENGTH(fleets); i++)
        fleet_run(&fleets[i], script, NULL);
}

static void the_higher_rank_wants_it(void **state)
{
    (void)state;
    run_all(higher_script);
}

static void the_lower_rank_wants_it_first(void **state)
{
    (void)state;
    run_all(lower_script);
}

static void all_want_all(void **state)
{
    (void)state;
    run_all(all_script);
    struct fleet_options options = fleets[2];
    options.world = FLEET_MAX;
    options.hosts = 4;
    fleet_run(&options, all_script, NULL);
}

static void an_exchange_makes_its_link(void **state)
{
    (void)state;
    run_all(exchange_script);
}

static void a_death_is_a_loss(void **state)
{
    (void)state;
    run_all(death_script);
}

static void a_goodbye_is_no_loss(void **state)
{
    (void)state;
    run_all(goodbye_script);
}

static void a_rank_that_cannot_be_reached_is_lost(void **state)
{
    (void)state;
    run_all(nowhere_script);
}

static void a_rank_that_ends_each_connection_is_lost(void **state)
{
    (void)state;
    fleet_run(&fleets[2], dying_script, NULL);
    fleet_run(&fleets[3], dying_script, NULL);
}

static void a_rank_without_descriptors_blames_itself(void **state)
{
    (void)state;
    fleet_run(&fleets[2], lacking_script, NULL);
}

static void an_answer_that_is_late_is_awaited(void **state)
{
    (void)state;
    run_all(unanswered_script);
}

// ---- one rank and a puppet ----------------------------------------------------------------------

static const struct stage_variant variants[] = {
    {.name = "loopback", .kind = TRANSPORT_LOOPBACK},
    {.name = "tcp", .kind = TRANSPORT_TCP},
    {.name = "tls", .kind = TRANSPORT_TCP, .encrypts = true},
};

// Rank 0 of `world` ranks, whose neighbours do not come. The puppet is rank 5.
static void far_open(struct stage *stage, const struct stage_variant *variant, uint32_t world)
{
    stage_open(stage, variant);
    stage->world.world_size = world;
    stage->peers[1].rank = world - 1;
    stage->world.peer_count = 2;
    stage->plays = HIGH;
    assert_int_equal(transport_form(stage->transport, &stage->world), 0);
}

static struct peer_link *far_link(const struct stage *stage)
{
    return peer_of_rank(&stage->transport->flows, stage->plays);
}

static void a_member_is_admitted(void **state)
{
    (void)state;
    for (size_t v = 0; v < LENGTH(variants); v++) {
        struct stage stage;
        far_open(&stage, &variants[v], WORLD);
        assert_null(far_link(&stage));
        stage_greet(&stage);
        assert_non_null(far_link(&stage));
        assert_int_equal(far_link(&stage)->state, PEER_PROVEN);
        assert_true(far_link(&stage)->further);
        // The same member does not get a second link.
        struct link *first = stage.puppet;
        uint8_t challenge[LOCKSTEP_NONCE_BYTES];
        uint8_t payload[STAGE_PROOF_BYTES];
        const struct frame_header header = stage_hello(&stage);
        stage.puppet = stage_connect(&stage);
        stage_challenge(&stage, stage.puppet, challenge);
        const struct hello hello = stage_secrets(&stage, challenge);
        stage_proof(&hello, payload);
        assert_true(stage_send_frame(&stage, &header, payload));
        stage_until_refused(&stage, 1);
        assert_int_equal(stage.lost, 0);
        first->ops->close(first, false);
        stage_until_count(&stage, &stage.lost, 1);
        assert_int_equal(stage.lost_rank, HIGH);
        stage_close(&stage);
    }
}

enum flaw {
    FLAW_PROOF,
    FLAW_SECRET,
    FLAW_NUMBER,
    FLAW_INCARNATION,
    FLAW_OUTSIDE,
    FLAW_ITSELF,
    FLAW_OTHER_PART,
    FLAW_WORLD_SIZE,
    FLAW_ENCRYPTION,
    FLAWS,
};

static void stranger(struct stage *stage, enum flaw flaw)
{
    uint8_t challenge[LOCKSTEP_NONCE_BYTES];
    uint8_t payload[STAGE_PROOF_BYTES];
    uint8_t other[LOCKSTEP_SECRET_BYTES] = {1};
    struct frame_header header = stage_hello(stage);
    stage->puppet = stage_connect(stage);
    stage_challenge(stage, stage->puppet, challenge);
    struct hello hello = stage_secrets(stage, challenge);
    header.generation.number += flaw == FLAW_NUMBER;
    header.generation.incarnation += flaw == FLAW_INCARNATION;
    header.part += flaw == FLAW_OTHER_PART;
    if (flaw == FLAW_SECRET)
        hello.secret = other;
    if (flaw == FLAW_OUTSIDE)
        header.chunk = hello.connector = WORLD;
    if (flaw == FLAW_ITSELF)
        header.chunk = hello.connector = 0;
    hello.world_size += flaw == FLAW_WORLD_SIZE;
    if (flaw == FLAW_ENCRYPTION) {
        hello.encrypts = !hello.encrypts;
        header.credit = hello.encrypts;
    }
    hello.generation = header.generation;
    stage_proof(&hello, payload);
    payload[STAGE_PROOF_BYTES - 1] ^= flaw == FLAW_PROOF;
    assert_true(stage_send_frame(stage, &header, payload));
}

// A stranger gets no link, and takes no memory of a link.
static void strangers_are_refused(void **state)
{
    (void)state;
    for (size_t v = 0; v < LENGTH(variants); v++) {
        struct stage stage;
        far_open(&stage, &variants[v], WORLD);
        for (int flaw = 0; flaw < FLAWS; flaw++) {
            const uint64_t before = stage_refused(&stage);
            stranger(&stage, (enum flaw)flaw);
            stage_until_refused(&stage, before + 1);
            assert_int_equal(stage.transport->flows.links.count, 2);
            stage.puppet->ops->close(stage.puppet, false);
        }
        // They keep no member out.
        stage_greet(&stage);
        assert_int_equal(far_link(&stage)->state, PEER_PROVEN);
        assert_int_equal(stage.lost, 0);
        assert_false(stage.form_failed);
        stage_close(&stage);
    }
}

static void only_neighbours_send_their_frames(void **state)
{
    static const enum frame_kind kinds[] = {FRAME_STEP_HEADER, FRAME_REDUCE, FRAME_GATHER,
                                            FRAME_BROADCAST,   FRAME_PAIR,   FRAME_WAVE,
                                            FRAME_MEASURE,     FRAME_RUN,    FRAME_CREDIT};
    (void)state;
    for (size_t k = 0; k < LENGTH(kinds); k++) {
        struct stage stage;
        far_open(&stage, &variants[0], WORLD);
        stage_greet(&stage);
        struct frame_header header = stage_small(&stage, kinds[k]);
        header.chunk = HIGH;
        header.dtype = DTYPE_FLOAT32;
        assert_true(stage_send_frame(&stage, &header, NULL));
        stage_expect_impossible(&stage);
        assert_non_null(strstr(stage.text, "it does not come from a neighbour"));
        stage_close(&stage);
    }
}

// The bound keeps members out, and a rank that wants one more link blames itself.
static void links_are_bounded(void **state)
{
    static struct link *links[LOCKSTEP_MAX_FURTHER_LINKS];
    struct stage stage;
    (void)state;
    far_open(&stage, &variants[0], LOCKSTEP_MAX_WORLD);
    for (uint32_t i = 0; i < LOCKSTEP_MAX_FURTHER_LINKS; i++) {
        stage.plays = 2 + i;
        stage_greet(&stage);
        assert_int_equal(far_link(&stage)->state, PEER_PROVEN);
        links[i] = stage.puppet;
    }
    const struct flows *flows = &stage.transport->flows;
    assert_int_equal(flows->links.count, LOCKSTEP_MAX_LINKS - LOCKSTEP_MAX_NEIGHBOURS + 2);
    stage.plays++;
    uint8_t challenge[LOCKSTEP_NONCE_BYTES];
    uint8_t payload[STAGE_PROOF_BYTES];
    const struct frame_header header = stage_hello(&stage);
    stage.puppet = stage_connect(&stage);
    stage_challenge(&stage, stage.puppet, challenge);
    const struct hello hello = stage_secrets(&stage, challenge);
    stage_proof(&hello, payload);
    assert_true(stage_send_frame(&stage, &header, payload));
    stage_until_refused(&stage, 1);
    assert_null(far_link(&stage));
    assert_int_equal(stage.lost, 0);
    assert_non_null(peer_want(&stage.transport->flows, 2)); // It stands.
    assert_null(peer_want(&stage.transport->flows, stage.plays));
    stage_until_count(&stage, &stage.lost, 1);
    assert_true(stage.here);
    assert_string_equal(stage.text, "this rank can have 256 links to ranks that are not its "
                                    "neighbours, and needs more");
    for (uint32_t i = 0; i < LOCKSTEP_MAX_FURTHER_LINKS; i++)
        links[i]->ops->close(links[i], false);
    stage_close(&stage);
}

// A link of one generation is no link of the next one.
static void links_end_with_their_generation(void **state)
{
    (void)state;
    for (size_t v = 0; v < LENGTH(variants); v++) {
        struct stage stage;
        far_open(&stage, &variants[v], WORLD);
        for (int i = 0; i < 3; i++) {
            stage_greet(&stage);
            assert_int_equal(far_link(&stage)->state, PEER_PROVEN);
            transport_abandon(stage.transport);
            assert_null(far_link(&stage));
            stage.puppet->ops->close(stage.puppet, false);
            stage.puppet = NULL;
            stage.world.generation.number++;
            assert_int_equal(transport_form(stage.transport, &stage.world), 0);
            assert_null(far_link(&stage));
        }
        assert_int_equal(stage.lost, 0);
        stage_close(&stage);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_higher_rank_wants_it),
        cmocka_unit_test(the_lower_rank_wants_it_first),
        cmocka_unit_test(all_want_all),
        cmocka_unit_test(an_exchange_makes_its_link),
        cmocka_unit_test(a_death_is_a_loss),
        cmocka_unit_test(a_goodbye_is_no_loss),
        cmocka_unit_test(a_rank_that_cannot_be_reached_is_lost),
        cmocka_unit_test(a_rank_that_ends_each_connection_is_lost),
        cmocka_unit_test(a_rank_without_descriptors_blames_itself),
        cmocka_unit_test(an_answer_that_is_late_is_awaited),
        cmocka_unit_test(a_member_is_admitted),
        cmocka_unit_test(strangers_are_refused),
        cmocka_unit_test(only_neighbours_send_their_frames),
        cmocka_unit_test(links_are_bounded),
        cmocka_unit_test(links_end_with_their_generation),
    };
    return cmocka_run_group_tests_name("transport_further", tests, NULL, NULL);
}
