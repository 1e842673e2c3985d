// SPDX-License-Identifier: Apache-2.0
//
// The cost model against what was measured with prototypes, and against itself: the thresholds that
// it gives must be where its own predictions cross.

#include "coordinator/cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#define KIB ((uint64_t)1024)
#define MIB (1024 * KIB)
#define GIGABIT 119500000u // Payload bytes in a second.

static struct tuning tuned(uint32_t world, uint64_t latency_ns, uint64_t bytes_per_s)
{
    struct tuning tuning = {.shares = true};
    cost_tuning(world, latency_ns, bytes_per_s, &tuning);
    assert_true(tuning.shares);
    assert_int_equal(tuning.latency_ns, latency_ns);
    assert_int_equal(tuning.bytes_per_s, bytes_per_s);
    return tuning;
}

static enum plan_algorithm chosen(const struct tuning *tuning, uint64_t bytes)
{
    if (bytes <= tuning->doubling_bytes)
        return ALGORITHM_DOUBLING;
    return bytes <= tuning->halving_bytes ? ALGORITHM_HALVING : ALGORITHM_RING;
}

// 4 ranks on one host of 2 cores: doubling up to 64 KiB, halving up to 2 MiB.
static void loopback_of_four(void **state)
{
    (void)state;
    const struct tuning tuning = tuned(4, 9500, 2000000000);
    assert_in_range(tuning.doubling_bytes, 32 * KIB, 96 * KIB);
    assert_in_range(tuning.halving_bytes, 3 * MIB / 2, 3 * MIB);
}

// At 1 Gbit/s doubling has lost at 32 KiB, and halving is far ahead of a ring of 8.
static void a_gigabit(void **state)
{
    (void)state;
    for (uint64_t latency_ns = 7000; latency_ns <= 40000; latency_ns += 3000) {
        const struct tuning four = tuned(4, latency_ns, GIGABIT);
        const struct tuning eight = tuned(8, latency_ns, GIGABIT);
        assert_int_equal(chosen(&four, 4), ALGORITHM_DOUBLING);
        assert_int_equal(chosen(&four, 32 * KIB), ALGORITHM_HALVING);
        assert_int_equal(chosen(&eight, 32 * KIB), ALGORITHM_HALVING);
        assert_int_equal(chosen(&four, 25 * MIB), ALGORITHM_RING);
    }
    const double ring = cost_ns(ALGORITHM_RING, 8, 22000, GIGABIT, 32 * KIB);
    const double halving = cost_ns(ALGORITHM_HALVING, 8, 22000, GIGABIT, 32 * KIB);
    const double wire = 2.0 * 7 / 8 * 32768 * 1e9 / GIGABIT;
    assert_in_range((uint64_t)(100 * wire / ring), 56, 66); // 61 percent were seen.
    assert_true(halving < 0.8 * ring);
}

// With two ranks a ring and halving do the same, and doubling sends as much in one round.
static void two_ranks(void **state)
{
    (void)state;
    const struct tuning tuning = tuned(2, 5000, 3000000000);
    assert_int_equal(tuning.halving_bytes, 0);
    assert_in_range(tuning.doubling_bytes, 32 * KIB, 128 * KIB);
    assert_int_equal(chosen(&tuning, 25 * MIB), ALGORITHM_RING);
}

// Extras send all of the payload twice more: halving pays for that only where rounds are dear.
static void worlds_with_extras(void **state)
{
    (void)state;
    const struct tuning three = tuned(3, 20000, GIGABIT);
    assert_int_equal(three.halving_bytes, 0);
    assert_in_range(three.doubling_bytes, 1, 4 * KIB);
    const struct tuning five = tuned(5, 20000, GIGABIT);
    assert_true(five.doubling_bytes < 32 * KIB && five.halving_bytes < 32 * KIB);
}

static void nothing_measured(void **state)
{
    (void)state;
    const struct tuning none[] = {tuned(1, 1000, 1000), tuned(4, 0, 1000), tuned(4, 1000, 0)};
    for (size_t i = 0; i < 3; i++)
        assert_true(none[i].doubling_bytes == 0 && none[i].halving_bytes == 0);
}

static double least(uint32_t world, uint64_t latency_ns, uint64_t bytes_per_s, uint64_t bytes)
{
    double best = cost_ns(ALGORITHM_RING, world, latency_ns, bytes_per_s, bytes);
    for (int a = ALGORITHM_DOUBLING; a <= ALGORITHM_HALVING; a++) {
        const double cost = cost_ns((enum plan_algorithm)a, world, latency_ns, bytes_per_s, bytes);
        best = cost < best ? cost : best;
    }
    return best;
}

// For any measured costs the chosen algorithm is the cheapest one below the clamp, and thresholds
// are in order.
static void thresholds_are_where_costs_cross(void **state)
{
    (void)state;
    for (uint32_t world = 2; world <= 33; world++)
        for (uint64_t latency = 100; latency <= 10000000; latency *= 10)
            for (uint64_t speed = 1000000; speed <= 100000000000; speed *= 10) {
                const struct tuning tuning = tuned(world, latency, speed);
                assert_true(tuning.halving_bytes == 0 ||
                            tuning.halving_bytes > tuning.doubling_bytes);
                assert_true(tuning.doubling_bytes <= COST_MOST_BYTES &&
                            tuning.halving_bytes <= COST_MOST_BYTES);
                for (uint64_t bytes = 1; bytes <= COST_MOST_BYTES; bytes *= 2) {
                    const double cost =
                        cost_ns(chosen(&tuning, bytes), world, latency, speed, bytes);
                    assert_true(cost <= 1.000001 * least(world, latency, speed, bytes));
                }
            }
}

// A longer latency or a faster link never makes fewer payloads go by doubling, but for rounding.
static void thresholds_are_monotone(void **state)
{
    (void)state;
    for (uint32_t world = 2; world <= 33; world++) {
        struct tuning before = tuned(world, 100, GIGABIT);
        for (uint64_t latency = 200; latency < 100000000; latency *= 2) {
            const struct tuning after = tuned(world, latency, GIGABIT);
            assert_true(after.doubling_bytes >= before.doubling_bytes);
            assert_true(after.halving_bytes >= before.halving_bytes || after.halving_bytes == 0);
            before = after;
        }
        before = tuned(world, 5000, 1000000);
        for (uint64_t speed = 2000000; speed < 100000000000; speed *= 2) {
            const struct tuning after = tuned(world, 5000, speed);
            assert_true(after.doubling_bytes + 1 >= before.doubling_bytes);
            before = after;
        }
    }
}

// ---- two levels ---------------------------------------------------------------------------------

static const uint32_t rows[] = {0, 0, 1, 1};
static const uint32_t turns[] = {0, 1, 0, 1};

static struct tuning tuned_on(const uint32_t *host_of, uint64_t bytes_per_s)
{
    const struct cost_placement placement = cost_place(host_of, 4, 2);
    struct tuning tuning = tuned(4, 15000, bytes_per_s);
    cost_tuning_two_levels(4, &placement, &tuning);
    return tuning;
}

static void placed(const uint32_t *host_of, uint32_t world, uint32_t hosts, double doubling,
                   double halving)
{
    const struct cost_placement placement = cost_place(host_of, world, hosts);
    assert_int_equal(placement.hosts, hosts);
    assert_true(placement.doubling == doubling && placement.halving == halving);
}

// Bytes that the first exchange does not send over a link. The first exchange is half of what
// halving sends.
static void what_crosses_a_link(void **state)
{
    (void)state;
    placed(rows, 4, 2, 2, 1);
    placed(turns, 4, 2, 2, 2);
    placed((const uint32_t[]){0, 1, 2, 3}, 4, 4, 2, 1.5);
    placed((const uint32_t[]){0, 0, 1}, 3, 2, 1, 1); // The extra alone crosses.
    placed((const uint32_t[]){0, 1, 1}, 3, 2, 2, 2); // It and an exchange.
    placed((const uint32_t[]){0, 0, 0, 0, 1, 1, 1, 1}, 8, 2, 4, 1);
}

// In rows halving sends as little over the link as two levels do, and begins earlier.
static void ranks_in_rows(void **state)
{
    (void)state;
    const struct tuning tuning = tuned_on(rows, GIGABIT);
    assert_in_range(tuning.doubling_bytes, KIB, 16 * KIB);
    assert_in_range(tuning.halving_bytes, MIB, COST_MOST_BYTES);
}

// Interleaved it sends twice as much: 32 KiB took 285 us on two levels, and 555 by halving.
static void ranks_in_turn(void **state)
{
    (void)state;
    const struct tuning tuning = tuned_on(turns, GIGABIT);
    assert_in_range(tuning.doubling_bytes, KIB, 16 * KIB);
    assert_int_equal(tuning.halving_bytes, 0);
    const struct tuning fast = tuned_on(turns, 2000000000);
    assert_in_range(fast.doubling_bytes, 32 * KIB, 256 * KIB);
}

static void nothing_measured_on_hosts(void **state)
{
    (void)state;
    const struct tuning tuning = tuned_on(turns, 0);
    assert_true(tuning.doubling_bytes == 0 && tuning.halving_bytes == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loopback_of_four),
        cmocka_unit_test(a_gigabit),
        cmocka_unit_test(two_ranks),
        cmocka_unit_test(worlds_with_extras),
        cmocka_unit_test(nothing_measured),
        cmocka_unit_test(thresholds_are_where_costs_cross),
        cmocka_unit_test(thresholds_are_monotone),
        cmocka_unit_test(what_crosses_a_link),
        cmocka_unit_test(ranks_in_rows),
        cmocka_unit_test(ranks_in_turn),
        cmocka_unit_test(nothing_measured_on_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
