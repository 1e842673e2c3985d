// SPDX-License-Identifier: Apache-2.0
//
// Hosts: the ranks that share one, and what all ranks are told when their links stand.

#include "protos/codec/codec.h"
#include "protos/codec/down.h"
#include "protos/tuning.h"
#include "tests/unit/coordinator/story.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// ---- Hosts -------------------------------------------------------------------------------------

// The host of each rank as a letter: "aabb". Hints make the rank of a letter its place.
static void form_on(struct story *story, const char *hosts)
{
    const uint32_t world = (uint32_t)strlen(hosts);
    for (uint32_t rank = 0; rank < world; rank++) {
        const char host[] = {hosts[rank], '\0'};
        struct up_hello hello = story_hello("j", world, host);
        hello.has_rank_hint = true;
        hello.rank_hint = rank;
        story_say_hello(story, rank + 1, &hello);
    }
}

static const struct locality *locality_of(const struct story *story, uint32_t rank)
{
    assert_int_equal(story->last[rank + 1].kind, DOWN_GENERATION);
    return &story->last[rank + 1].u.generation_start.locality;
}

// A story gives stream n the pid 100 + n, and rank r is stream r + 1.
static void expect_locality(const struct story *story, uint32_t rank, const struct locality *wanted)
{
    struct locality whole = *wanted;
    for (uint32_t i = 0; i < wanted->mate_count; i++)
        whole.mate_pids[i] = 101 + wanted->mates[i];
    assert_memory_equal(locality_of(story, rank), &whole, sizeof(whole));
}

static void test_ranks_of_one_host_are_mates(void **state)
{
    form_on(*state, "aaa");
    for (uint32_t rank = 0; rank < 3; rank++)
        expect_locality(
            *state, rank,
            &(struct locality){
                .hosts = 1, .mate_count = 3, .mates = {0, 1, 2}, .local = rank, .rings = 3});
}

static void test_rings_join_the_same_places_of_all_hosts(void **state)
{
    // Hosts in the order of their lowest ranks: b with 0, 2 and 5, a with 1 and 3, c with 4 and 6.
    form_on(*state, "babacbc");
    expect_locality(*state, 0,
                    &(struct locality){.host = 0,
                                       .hosts = 3,
                                       .mate_count = 3,
                                       .mates = {0, 2, 5},
                                       .local = 0,
                                       .rings = 2,
                                       .successor = 1,
                                       .predecessor = 4});
    expect_locality(*state, 3,
                    &(struct locality){.host = 1,
                                       .hosts = 3,
                                       .mate_count = 2,
                                       .mates = {1, 3},
                                       .local = 1,
                                       .rings = 2,
                                       .successor = 6,
                                       .predecessor = 2});
    // The third of its host has no place in a ring.
    expect_locality(
        *state, 5,
        &(struct locality){
            .host = 0, .hosts = 3, .mate_count = 3, .mates = {0, 2, 5}, .local = 2, .rings = 2});
}

// Hosts of 20 ranks and of 2: the ranks of the first one share memory in two groups.
static void test_a_host_with_too_many_ranks_shares_in_groups(void **state)
{
    struct story *story = *state;
    enum {
        MANY = LOCKSTEP_MAX_MATES + 4,
        HALF = MANY / 2,
    };
    char hosts[MANY + 3];
    memset(hosts, 'a', sizeof(hosts));
    memset(hosts + MANY, 'b', 2);
    hosts[MANY + 2] = '\0';
    story->logging = true;
    form_on(story, hosts);
    for (uint32_t rank = 0; rank < MANY + 2; rank++) {
        const uint32_t host = rank / HALF;
        struct locality wanted = {.host = host,
                                  .hosts = 3,
                                  .mate_count = host < 2 ? HALF : 2,
                                  .local = rank % HALF,
                                  .rings = 2};
        for (uint32_t i = 0; i < wanted.mate_count; i++)
            wanted.mates[i] = host * HALF + i;
        if (wanted.local < 2) {
            wanted.successor = (host + 1) % 3 * HALF + wanted.local;
            wanted.predecessor = (host + 2) % 3 * HALF + wanted.local;
        }
        expect_locality(story, rank, &wanted);
        assert_int_equal(story->last[rank + 1].u.generation_start.local_size, host < 2 ? MANY : 2);
    }
    story_expect_piece(
        story, "log world_formed job=j generation=1 world=22 hosts=2 memory_groups=3\n"
               "log memory_in_groups job=j generation=1 text=\"host a has 20 ranks, and at most 16 "
               "can share memory: they share it in 2 groups of at most 10\"");
}

// Groups are of the same size, or have one rank more, for any number of ranks.
static void test_groups_are_of_one_size(void **state)
{
    struct story *story = *state;
    for (uint32_t many = LOCKSTEP_MAX_MATES + 1; many < 40; many++) {
        const uint32_t parts = (many + LOCKSTEP_MAX_MATES - 1) / LOCKSTEP_MAX_MATES;
        char hosts[40];
        uint32_t counted = 0;
        memset(hosts, 'a', sizeof(hosts));
        hosts[many] = '\0';
        story_end(story);
        story_begin(story);
        form_on(story, hosts);
        for (uint32_t rank = 0; rank < many; rank += locality_of(story, rank)->mate_count) {
            const struct locality *locality = locality_of(story, rank);
            assert_int_equal(locality->hosts, parts);
            assert_int_equal(locality->host, counted++);
            assert_int_equal(locality->rings, many / parts);
            assert_in_range(locality->mate_count, many / parts, many / parts + 1);
        }
        assert_int_equal(counted, parts);
    }
}

static void test_as_many_as_there_may_be_do_share(void **state)
{
    char hosts[LOCKSTEP_MAX_MATES + 1];
    memset(hosts, 'a', sizeof(hosts));
    hosts[LOCKSTEP_MAX_MATES] = '\0';
    form_on(*state, hosts);
    assert_int_equal(locality_of(*state, 0)->mate_count, LOCKSTEP_MAX_MATES);
    assert_int_equal(locality_of(*state, 0)->hosts, 1);
}

static bool has_peer(const struct down_generation *start, uint32_t rank)
{
    for (uint32_t i = 0; i < start->peer_count; i++)
        if (start->peers[i].rank == rank)
            return true;
    return false;
}

// In a job that goes on after a death a rank knows the data ports of ranks that are no peers: the
// next ones, as many as fit.
static void test_data_ports_of_ranks_that_are_no_peers(void **state)
{
    static const uint32_t of_39[] = {1, 2, 3, 4, 5, 6, 8, 9};
    struct story *story = *state;
    for (uint32_t rank = 0; rank < 40; rank++) {
        char host[8];
        snprintf(host, sizeof(host), "h%u", rank);
        struct up_hello hello = story_hello("j", 40, host);
        hello.has_rank_hint = true;
        hello.rank_hint = rank;
        hello.on_failure = FAILURE_CONTINUE;
        story_say_hello(story, rank + 1, &hello);
    }
    const struct down_generation *start = &story->last[40].u.generation_start;
    assert_int_equal(start->rank, 39);
    assert_true(has_peer(start, 0) && has_peer(start, 7) && !has_peer(start, 4));
    assert_int_equal(start->further_count, LOCKSTEP_MAX_FURTHER_PORTS);
    for (uint32_t i = 0; i < sizeof(of_39) / sizeof(of_39[0]); i++)
        assert_int_equal(start->further[i].rank, of_39[i]);
    assert_string_equal(start->further[3].address, "w5");
}

// The largest world on hosts of every size. Links are symmetrical, and what is sent can be sent.
static void test_links_of_a_large_world_are_symmetrical(void **state)
{
    struct story *story = *state;
    struct down_generation *starts = calloc(LOCKSTEP_MAX_WORLD, sizeof(*starts));
    uint8_t *bytes = malloc(LOCKSTEP_MESSAGE_BYTES);
    story->quiet = true;
    for (uint32_t rank = 0; rank < LOCKSTEP_MAX_WORLD; rank++) {
        // Hosts of 1 to 16 ranks that do not lie side by side.
        const uint32_t block = rank / 64;
        char host[32];
        snprintf(host, sizeof(host), "h%u-%u", block, rank * 7 % (4 + 4 * (block % 16)));
        struct up_hello hello = story_hello("j", LOCKSTEP_MAX_WORLD, host);
        hello.has_rank_hint = true;
        hello.rank_hint = rank;
        story_say_hello(story, rank + 1, &hello);
    }
    // The story keeps the messages of the last streams.
    for (uint32_t rank = LOCKSTEP_MAX_WORLD - STORY_LAST; rank < LOCKSTEP_MAX_WORLD; rank++) {
        const struct down_message *message = &story->last[(rank + 1) % STORY_LAST];
        size_t size = 0;
        assert_int_equal(message->kind, DOWN_GENERATION);
        starts[rank] = message->u.generation_start;
        assert_int_equal(starts[rank].rank, rank);
        assert_int_equal(codec_encode_down(message, bytes, LOCKSTEP_MESSAGE_BYTES, &size),
                         CODEC_OK);
    }
    for (uint32_t a = LOCKSTEP_MAX_WORLD - STORY_LAST; a < LOCKSTEP_MAX_WORLD; a++)
        for (uint32_t b = LOCKSTEP_MAX_WORLD - STORY_LAST; b < LOCKSTEP_MAX_WORLD; b++)
            assert_int_equal(has_peer(&starts[a], b), has_peer(&starts[b], a));
    free(starts);
    free(bytes);
}

// ---- Links -------------------------------------------------------------------------------------

static const struct up_links fast = {
    .shares = true, .latency_ns = 4000, .bytes_per_s = 5000000000, .wish = ALGORITHM_BY_SIZE};
static const struct up_links slow = {
    .shares = true, .latency_ns = 90000, .bytes_per_s = 119000000, .wish = ALGORITHM_BY_SIZE};

static void test_the_slowest_link_counts_for_all(void **state)
{
    struct story *story = *state;
    struct up_links narrow = fast;
    narrow.bytes_per_s = 7;
    narrow.shares = false;
    story_form(story, 3);
    story_links(story, 2, &slow);
    story_links(story, 1, &narrow);
    story_expect(story, "2 > links shared, 90000 ns, 119000000 bytes/s, wish auto\n"
                        "1 > links not shared, 4000 ns, 7 bytes/s, wish auto\n");
    story_links(story, 3, &fast);
    story_expect(story, "3 > links shared, 4000 ns, 5000000000 bytes/s, wish auto\n"
                        "1 < tuning not shared, 90000 ns, 7 bytes/s, wish auto\n"
                        "2 < tuning not shared, 90000 ns, 7 bytes/s, wish auto\n"
                        "3 < tuning not shared, 90000 ns, 7 bytes/s, wish auto\n");
    assert_true(story_job(story, 0).tuned);
    assert_int_equal(story_job(story, 0).tuning.bytes_per_s, 7);
}

static void test_memory_is_shared_when_all_ranks_share_it(void **state)
{
    struct story *story = *state;
    story_form(story, 2);
    story_links(story, 1, &fast);
    story_links(story, 2, &slow);
    story_expect_piece(story, "2 < tuning shared, 90000 ns");
}

static void test_links_that_nobody_measured_are_taken_for_common_ones(void **state)
{
    static const struct up_links unknown = {.wish = ALGORITHM_BY_SIZE};
    struct story *story = *state;
    story_form(story, 2);
    story_links(story, 1, &unknown);
    story_links(story, 2, &unknown);
    assert_int_not_equal(story_job(story, 0).tuning.latency_ns, 0);
    assert_int_not_equal(story_job(story, 0).tuning.bytes_per_s, 0);
}

static void test_different_wishes_name_both_ranks(void **state)
{
    struct story *story = *state;
    struct up_links ring = fast;
    ring.wish = ALGORITHM_RING;
    story_form(story, 3);
    story_links(story, 3, &fast);
    story_forget(story);
    story_links(story, 2, &ring);
    story_expect(story,
                 "2 > links shared, 4000 ns, 5000000000 bytes/s, wish ring\n"
                 "1 < halt tuning step 0: rank 2 (host h3) has LOCKSTEP_ALGORITHM=auto, rank 1 "
                 "(host h2) has LOCKSTEP_ALGORITHM=ring: set it to the same on every rank\n"
                 "2 < halt tuning step 0: rank 2 (host h3) has LOCKSTEP_ALGORITHM=auto, rank 1 "
                 "(host h2) has LOCKSTEP_ALGORITHM=ring: set it to the same on every rank\n"
                 "3 < halt tuning step 0: rank 2 (host h3) has LOCKSTEP_ALGORITHM=auto, rank 1 "
                 "(host h2) has LOCKSTEP_ALGORITHM=ring: set it to the same on every rank\n");
}

static const struct up_links in_rank_order = {.wish = ALGORITHM_DIRECT, .sums_ranks = true};

static void test_a_sum_that_differs_is_named_and_not_its_algorithm(void **state)
{
    struct story *story = *state;
    story_form(story, 2);
    story_links(story, 1, &in_rank_order);
    story_links(story, 2, &fast);
    story_expect_piece(story, "2 < halt tuning step 0: rank 0 (host h1) has LOCKSTEP_SUM=ranks "
                              "(config.sum), rank 1 (host h2) has LOCKSTEP_SUM=fast: set it to the "
                              "same on every rank\n");
}

static void test_a_sum_and_an_algorithm_that_contradict_each_other(void **state)
{
    static const struct up_links ring = {.wish = ALGORITHM_RING};
    struct story *story = *state;
    story_form(story, 2);
    story_links(story, 1, &ring);
    story_forget(story);
    story_links(story, 2, &in_rank_order);
    story_expect_piece(story, "1 < halt tuning step 0: rank 0 (host h1) has "
                              "LOCKSTEP_ALGORITHM=ring, rank 1 (host h2) has LOCKSTEP_SUM=ranks "
                              "(config.sum): set it to the same on every rank\n");
}

static void test_a_wish_of_all_is_granted(void **state)
{
    struct story *story = *state;
    struct up_links ring = fast;
    ring.wish = ALGORITHM_RING;
    story_form(story, 2);
    story_links(story, 1, &ring);
    story_links(story, 2, &ring);
    story_expect_piece(story, "2 < tuning shared, 4000 ns, 5000000000 bytes/s, wish ring\n");
}

static void test_memory_of_several_hosts_cannot_be_one(void **state)
{
    struct story *story = *state;
    struct up_links shared = fast;
    shared.wish = ALGORITHM_SHARED;
    story_form(story, 2);
    story_links(story, 1, &shared);
    story_links(story, 2, &shared);
    story_expect_piece(story, TUNING_HAS_SHARED
                                  ? "1 < halt tuning step 0: LOCKSTEP_ALGORITHM=shared cannot be "
                                    "had here: the ranks do not all share one memory: it holds the "
                                    "ranks of one host, 16 at most\n"
                                  : "1 < halt tuning step 0: LOCKSTEP_ALGORITHM=shared cannot be "
                                    "had here: this version does not have it yet\n");
}

static void test_memory_that_is_not_shared_names_a_rank(void **state)
{
    struct story *story = *state;
    struct up_links shared = fast;
    shared.wish = ALGORITHM_SHARED;
    form_on(story, "aa");
    story_links(story, 1, &shared);
    shared.shares = false;
    story_links(story, 2, &shared);
    story_expect_piece(story, TUNING_HAS_SHARED
                                  ? "cannot be had here: the ranks of a host share no memory (rank "
                                    "1 (host a) does not)\n"
                                  : "this version does not have it yet");
}

static void test_links_stand_only_once(void **state)
{
    struct story *story = *state;
    story_form(story, 2);
    story_links(story, 1, &fast);
    story_links(story, 1, &fast);
    story_expect_piece(story, "halt protocol step 0: rank 0 (host h1) said twice that its links "
                              "stand");
}

static void test_who_leaves_before_the_tuning_is_missed(void **state)
{
    struct story *story = *state;
    story_form(story, 3);
    story_links(story, 1, &fast);
    story_leave(story, 2, 0);
    story_expect_piece(story, "1 < halt left step 0: rank 1 (host h2) closed its session while "
                              "rank 0 (host h1) still needed it before the first step");
}

static void test_who_left_before_is_missed_when_links_stand(void **state)
{
    struct story *story = *state;
    story_form(story, 3);
    story_leave(story, 2, 0);
    story_forget(story);
    story_links(story, 3, &fast);
    story_expect_piece(story, "3 < halt left step 0: rank 1 (host h2) closed its session while "
                              "rank 2 (host h3) still needed it before the first step");
}

static void test_who_dies_before_the_tuning_is_lost(void **state)
{
    struct story *story = *state;
    story_form(story, 2);
    story_links(story, 1, &fast);
    story_close(story, 2, "reset");
    story_expect_piece(story, "1 < halt lost step 0: rank 1 on host h2 was lost");
}

// A later generation begins without what was known of the one before.
static void test_every_generation_is_measured(void **state)
{
    struct story *story = *state;
    story_form(story, 1);
    story_links(story, 1, &slow);
    story_expect_piece(story, "1 < tuning shared, 90000 ns");
    story_leave(story, 1, 0);
    const struct up_hello hello = story_hello("j", 1, "h1");
    story_say_hello(story, 2, &hello);
    assert_false(story_job(story, 0).tuned);
    story_links(story, 2, &fast);
    story_expect_piece(story, "2 < tuning shared, 4000 ns");
}

// ---- Addresses of other ranks ------------------------------------------------------------------

static void reach(struct story *story, uint32_t peer, uint32_t count, const uint32_t *ranks)
{
    struct up_message message = {.kind = UP_REACH, .u.reach.count = count};
    memcpy(message.u.reach.ranks, ranks, count * sizeof(ranks[0]));
    story_say(story, peer, &message);
}

static void test_a_member_gets_the_addresses_that_it_asks_for(void **state)
{
    struct story *story = *state;
    uint32_t all[LOCKSTEP_REACH_RANKS];
    story_form(story, 40);
    // Before and after the tuning, and the same rank again; only the member that asks is told.
    reach(story, 6, 2, (const uint32_t[]){3, 0});
    story_expect(story, "6 > reach 3 0\n"
                        "6 < addresses 3@w4 on h4 0@w1 on h1\n");
    reach(story, 6, 1, (const uint32_t[]){3});
    story_expect(story, "6 > reach 3\n"
                        "6 < addresses 3@w4 on h4\n");
    for (uint32_t i = 0; i < LOCKSTEP_REACH_RANKS; i++)
        all[i] = i;
    reach(story, 40, LOCKSTEP_REACH_RANKS, all);
    assert_int_equal(story->last[40].kind, DOWN_ADDRESSES);
    assert_int_equal(story->last[40].u.addresses.count, LOCKSTEP_REACH_RANKS);
    for (uint32_t i = 0; i < LOCKSTEP_REACH_RANKS; i++)
        assert_int_equal(story->last[40].u.addresses.peers[i].rank, i);
}

// A question of another generation, or after a verdict, gets no answer.
static void test_questions_of_other_generations_are_dropped(void **state)
{
    struct story *story = *state;
    struct up_message message = {.kind = UP_REACH, .u.reach = {.count = 1, .ranks = {0}}};
    story_form(story, 3);
    story->generation[3].number++;
    story_say(story, 3, &message);
    story_expect(story, "3 > reach 0\n");
    story->generation[3].number--;
    story->generation[3].incarnation++;
    message.generation = (struct generation_id){0};
    story_say(story, 3, &message);
    story_expect(story, "3 > reach 0\n");
    story->generation[3].incarnation--;
    // After a verdict nobody needs links.
    story_close(story, 1, "reset");
    story_forget(story);
    message.generation = (struct generation_id){0};
    story_say(story, 3, &message);
    story_expect(story, "3 > reach 0\n");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, story_setup, story_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_ranks_of_one_host_are_mates),
        TEST(test_rings_join_the_same_places_of_all_hosts),
        TEST(test_a_host_with_too_many_ranks_shares_in_groups),
        TEST(test_groups_are_of_one_size),
        TEST(test_as_many_as_there_may_be_do_share),
        TEST(test_data_ports_of_ranks_that_are_no_peers),
        TEST(test_links_of_a_large_world_are_symmetrical),
        TEST(test_the_slowest_link_counts_for_all),
        TEST(test_memory_is_shared_when_all_ranks_share_it),
        TEST(test_links_that_nobody_measured_are_taken_for_common_ones),
        TEST(test_different_wishes_name_both_ranks),
        TEST(test_a_sum_that_differs_is_named_and_not_its_algorithm),
        TEST(test_a_sum_and_an_algorithm_that_contradict_each_other),
        TEST(test_a_wish_of_all_is_granted),
        TEST(test_memory_of_several_hosts_cannot_be_one),
        TEST(test_memory_that_is_not_shared_names_a_rank),
        TEST(test_links_stand_only_once),
        TEST(test_who_leaves_before_the_tuning_is_missed),
        TEST(test_who_left_before_is_missed_when_links_stand),
        TEST(test_who_dies_before_the_tuning_is_lost),
        TEST(test_every_generation_is_measured),
        TEST(test_a_member_gets_the_addresses_that_it_asks_for),
        TEST(test_questions_of_other_generations_are_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
