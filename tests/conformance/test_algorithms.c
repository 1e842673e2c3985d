// SPDX-License-Identifier: Apache-2.0
//
// Algorithms that the user selects by name. An available algorithm is used. An unavailable one
// makes lockstep_open fail on every rank, with the reason. So does a setting that differs between
// ranks and has to be the same.

#include "base/clock.h"
#include "tests/support/cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ELEMENTS 5000

static void sum_body(struct rank *rank)
{
    static const uint32_t counts[] = {1, 7, ELEMENTS};
    float data[ELEMENTS];
    for (size_t c = 0; c < 3; c++) {
        for (uint32_t i = 0; i < counts[c]; i++)
            data[i] = (float)(rank->rank + i);
        RANK_OK(rank, lockstep_allreduce(rank->session, "sum", data, counts[c], LOCKSTEP_FLOAT32,
                                         LOCKSTEP_SUM, LOCKSTEP_WAIT_FOREVER));
        const uint32_t n = rank->world_size;
        for (uint32_t i = 0; i < counts[c]; i++)
            RANK_EQUAL(rank, data[i], n * i + n * (n - 1) / 2);
    }
}

static void refused_body(struct rank *rank)
{
    const struct lockstep_config config = rank_config(rank);
    RANK_FAILS(rank, LOCKSTEP_E_CONFIG, lockstep_open(&config, &rank->session));
    RANK_SAYS(rank, rank->context);
}

static void run_refused(const struct setting *setting, char *reason)
{
    const struct cluster_test test = {
        .setting = setting, .body = refused_body, .context = reason, .without_session = true};
    ranks_run_test(&test);
}

static struct setting world_of(uint32_t size, lockstep_transport_kind transport,
                               const char *algorithm)
{
    return (struct setting){
        .name = algorithm, .transport = transport, .algorithm = algorithm, .world_size = size};
}

static void test_what_can_be_had_is_used(void **state)
{
    static const char *const algorithms[] = {"auto", "ring", "doubling", "halving"};
    (void)state;
    for (size_t a = 0; a < 4; a++)
        for (uint32_t size = 1; size <= 5; size += 2) {
            const struct setting setting = world_of(size, LOCKSTEP_TRANSPORT_TCP, algorithms[a]);
            ranks_run(&setting, sum_body, NULL);
        }
}

// The algorithm "shared" is refused unless the ranks share memory.
static void test_ranks_of_one_host_share_memory(void **state)
{
    (void)state;
    for (uint32_t size = 1; size <= 5; size += 2) {
        const struct setting setting = world_of(size, LOCKSTEP_TRANSPORT_AUTO, "shared");
        ranks_run(&setting, sum_body, NULL);
    }
}

// Number of mappings of shared boards in this process, whose threads are the ranks.
static uint32_t boards_mapped(void)
{
    uint32_t count = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps)
        return 0;
    while (fgets(line, sizeof(line), maps))
        count += strstr(line, "memfd:lockstep-board") != NULL;
    fclose(maps);
    return count;
}

static void sum_in_groups_body(struct rank *rank)
{
    sum_body(rank);
    rank_meet(rank);
    RANK_EQUAL(rank, boards_mapped(), rank->world_size); // Each rank maps its group's board.
    rank_meet(rank);
}

// If a host has more ranks than can share one board, they share memory in groups, with rings
// between the groups.
static void test_many_ranks_of_one_host_share_memory_in_groups(void **state)
{
    (void)state;
    for (uint32_t size = 17; size <= 20; size += 3) {
        const struct setting setting = world_of(size, LOCKSTEP_TRANSPORT_AUTO, "two_level");
        ranks_run(&setting, sum_in_groups_body, NULL);
    }
}

static void test_sockets_share_no_memory(void **state)
{
    static char reason[] =
        "LOCKSTEP_ALGORITHM=shared cannot be had here: the ranks of a host share "
        "no memory (rank ";
    (void)state;
    const struct setting setting = world_of(3, LOCKSTEP_TRANSPORT_TCP, "shared");
    run_refused(&setting, reason);
}

static void test_two_hosts_share_no_memory(void **state)
{
    static char reason[] =
        "the ranks do not all share one memory: it holds the ranks of one host, 16 at most";
    (void)state;
    struct setting setting = world_of(3, LOCKSTEP_TRANSPORT_AUTO, "shared");
    setting.hosts = 2;
    run_refused(&setting, reason);
}

static void test_unknown_names_are_refused(void **state)
{
    static char reason[] = "LOCKSTEP_ALGORITHM='tree' is not auto, ring";
    static char link[] = "LOCKSTEP_LINK='7' is not two numbers";
    static char bounds[] = "LOCKSTEP_LINK='0,1' is not two numbers, both 1 or more";
    (void)state;
    struct setting setting = world_of(1, LOCKSTEP_TRANSPORT_TCP, "tree");
    run_refused(&setting, reason);
    setting = world_of(1, LOCKSTEP_TRANSPORT_TCP, "auto");
    setting.link = "7";
    run_refused(&setting, link);
    setting.link = "0,1";
    run_refused(&setting, bounds);
}

// LOCKSTEP_TRANSPORT of a launcher selects sockets, even if the program selects shared memory.
static void test_a_launcher_takes_sockets(void **state)
{
    static char reason[] = "the ranks of a host share no memory";
    (void)state;
    const struct setting setting = world_of(2, LOCKSTEP_TRANSPORT_AUTO, "shared");
    setenv("LOCKSTEP_TRANSPORT", "tcp", 1);
    run_refused(&setting, reason);
    unsetenv("LOCKSTEP_TRANSPORT");
}

// Settings that have to be equal on all ranks, and one rank that has another value.
struct odd {
    struct lockstep_config others;
    struct lockstep_config odd;
    uint32_t rank; // The rank that has `odd`.
    const char *says[2]; // Both are in the error text of every rank.
};

static void differs_body(struct rank *rank)
{
    const struct odd *odd = rank->context;
    const struct lockstep_config *own = rank->rank == odd->rank ? &odd->odd : &odd->others;
    struct lockstep_config config = rank_config(rank);
    const uint64_t began_ms = clock_now_ms();
    config.on_failure = own->on_failure;
    config.data_encryption = own->data_encryption;
    config.sum = own->sum;
    config.open_timeout_ms = 60000; // Nobody waits for it.
    RANK_FAILS(rank, LOCKSTEP_E_CONFIG, lockstep_open(&config, &rank->session));
    RANK_TRUE(rank, clock_now_ms() - began_ms < (uint64_t)test_bound_ms(5000));
    for (int i = 0; i < 2; i++)
        RANK_SAYS(rank, odd->says[i]);
    char name[32];
    snprintf(name, sizeof(name), "rank %u (", (unsigned)odd->rank);
    RANK_SAYS(rank, name);
}

static void run_differs(struct odd *odd)
{
    static const char *const ways[] = {"tcp", "shared"};
    for (uint32_t world = 2; world <= 3; world++) {
        for (size_t i = 0; i < 2 * 2; i++) {
            struct setting setting = setting_named(ways[i / 2]);
            setting.world_size = world;
            odd->rank = i % 2 == 0 ? 0 : world - 1;
            const struct cluster_test test = {
                .setting = &setting, .body = differs_body, .context = odd, .without_session = true};
            ranks_run_test(&test);
        }
    }
}

// One rank has the second value and the others the first, and then the reverse.
static void run_differs_both(struct odd *odd)
{
    const struct lockstep_config others = odd->others;
    run_differs(odd);
    odd->others = odd->odd;
    odd->odd = others;
    run_differs(odd);
}

static void test_encryption_that_differs(void **state)
{
    struct odd odd = {
        .others = LOCKSTEP_CONFIG_INIT,
        .odd = LOCKSTEP_CONFIG_INIT,
        .says = {"has LOCKSTEP_DATA_ENCRYPTION=off", "has LOCKSTEP_DATA_ENCRYPTION=tls"}};
    (void)state;
    odd.odd.data_encryption = "tls";
    run_differs_both(&odd);
    // It is no death, so nobody goes on without the odd rank.
    odd.others.on_failure = odd.odd.on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    run_differs(&odd);
}

static void test_a_policy_that_differs(void **state)
{
    struct odd odd = {
        .others = LOCKSTEP_CONFIG_INIT,
        .odd = LOCKSTEP_CONFIG_INIT,
        .says = {"has LOCKSTEP_ON_FAILURE=error", "has LOCKSTEP_ON_FAILURE=continue"}};
    (void)state;
    odd.odd.on_failure = LOCKSTEP_ON_FAILURE_CONTINUE;
    run_differs_both(&odd);
}

static void test_a_sum_that_differs(void **state)
{
    struct odd odd = {.others = LOCKSTEP_CONFIG_INIT,
                      .odd = LOCKSTEP_CONFIG_INIT,
                      .says = {"has LOCKSTEP_SUM=fast", "has LOCKSTEP_SUM=ranks"}};
    (void)state;
    odd.odd.sum = LOCKSTEP_SUM_RANKS;
    run_differs_both(&odd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_can_be_had_is_used),
        cmocka_unit_test(test_ranks_of_one_host_share_memory),
        cmocka_unit_test(test_many_ranks_of_one_host_share_memory_in_groups),
        cmocka_unit_test(test_sockets_share_no_memory),
        cmocka_unit_test(test_two_hosts_share_no_memory),
        cmocka_unit_test(test_unknown_names_are_refused),
        cmocka_unit_test(test_a_launcher_takes_sockets),
        cmocka_unit_test(test_encryption_that_differs),
        cmocka_unit_test(test_a_policy_that_differs),
        cmocka_unit_test(test_a_sum_that_differs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
