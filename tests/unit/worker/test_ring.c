// SPDX-License-Identifier: Apache-2.0
//
// The ring schedule against a slow one: every frame of every hop of every chunk, written down in
// order; what a rank sends and receives in that list must be what worker/transport/ring/schedule.h
// says of it.

#include "worker/transport/ring/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#define WORLD_MAX 9

static const uint64_t sizes[] = {0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 255, 256, 257, 1000, 4095, 9973};
static const uint32_t chunk_bytes[] = {8, 64, 1024, 4096, 65536};
static const uint32_t element_bytes[] = {1, 4, 8};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

typedef void check_function(const struct ring *rings, uint32_t world);

// Runs a check on the rings of all ranks, for every size, chunk and element.
static void every_shape(check_function *check, bool broadcast)
{
    for (uint32_t world = 1; world <= WORLD_MAX; world++)
        for (size_t s = 0; s < LENGTH(sizes); s++)
            for (size_t c = 0; c < LENGTH(chunk_bytes); c++)
                for (size_t e = 0; e < LENGTH(element_bytes); e++) {
                    struct ring rings[WORLD_MAX];
                    const uint32_t root = (uint32_t)(s + c) % world;
                    for (uint32_t r = 0; r < world && broadcast; r++)
                        ring_init_broadcast(&rings[r], world, r, root, sizes[s], element_bytes[e],
                                            chunk_bytes[c]);
                    for (uint32_t r = 0; r < world && !broadcast; r++)
                        ring_init_allreduce(&rings[r], world, r, sizes[s], element_bytes[e],
                                            chunk_bytes[c], RING_SPLIT_BYTES);
                    check(rings, world);
                }
}

// Chunks, in order, cover every element once; none is above its bound; in a stripe they differ by
// one element at most, and the longer ones come first. An element is found in its stripe.
static void check_partition(const struct ring *rings, uint32_t world)
{
    const struct ring *ring = &rings[0];
    uint64_t next = 0;
    for (uint64_t stripe = 0; stripe < ring->stripes; stripe++) {
        uint64_t before = UINT64_MAX;
        uint64_t longest = 0;
        uint32_t chunks = 0;
        for (uint32_t owner = 0; owner < world; owner++) {
            if (!ring_present(ring, stripe, owner))
                continue;
            const struct ring_span span = ring_chunk(ring, stripe, owner);
            assert_int_equal(span.first, next);
            assert_true(span.count == 0 || ring_stripe_of(ring, span.first) == stripe);
            assert_true(span.count == 0 || ring_stripe_of(ring, next + span.count - 1) == stripe);
            assert_true(span.count <= ring->chunk_elements && span.count <= before);
            next += span.count;
            before = span.count;
            longest = longest > span.count ? longest : span.count;
            assert_true(longest - span.count <= 1);
            chunks++;
        }
        assert_true(chunks >= 1);
    }
    assert_int_equal(next, ring->elements);
    assert_false(ring_present(ring, ring->stripes, 0));
    for (uint32_t r = 1; r < world; r++) {
        assert_int_equal(rings[r].stripes, ring->stripes);
        assert_int_equal(rings[r].window, ring->window);
        assert_int_equal(rings[r].eager, ring->eager);
    }
}

static void chunks_partition_the_elements(void **state)
{
    (void)state;
    every_shape(check_partition, false);
    every_shape(check_partition, true);
}

// The actions of each rank in one stripe, by the slow schedule.
struct slow {
    uint32_t sends[WORLD_MAX];
    uint32_t receives[WORLD_MAX];
};

static void slow_hop(struct slow *slow, uint32_t from, uint32_t to)
{
    slow->sends[from]++;
    slow->receives[to]++;
}

// The reduce of one chunk: c+1 -> ... -> c. The first to send has received nothing before.
static void slow_reduce(const struct ring *rings, uint32_t world, uint64_t stripe, uint32_t owner,
                        struct slow *slow)
{
    uint32_t first = 0;
    for (uint32_t hop = 0; hop + 1 < world; hop++) {
        const uint32_t from = (owner + 1 + hop) % world;
        const uint32_t to = (from + 1) % world;
        slow_hop(slow, from, to);
        assert_true(ring_sends_reduce(&rings[from], owner));
        assert_true(ring_receives_reduce(&rings[to], owner));
        assert_int_equal(hop == 0, ring_first(&rings[from], stripe, &first) && first == owner);
    }
    assert_false(ring_sends_reduce(&rings[owner], owner));
    assert_false(ring_receives_reduce(&rings[(owner + 1) % world], owner));
}

static void slow_gather(const struct ring *rings, uint32_t world, uint32_t owner, struct slow *slow)
{
    for (uint32_t hop = 0; hop + 1 < world; hop++) {
        const uint32_t from = (owner + hop) % world;
        const uint32_t to = (from + 1) % world;
        slow_hop(slow, from, to);
        assert_true(ring_sends_gather(&rings[from], owner));
        assert_true(ring_receives_gather(&rings[to], owner));
    }
    assert_false(ring_receives_gather(&rings[owner], owner));
    assert_false(ring_sends_gather(&rings[(owner + world - 1) % world], owner));
}

static void check_hops(const struct ring *rings, uint32_t world)
{
    uint64_t sends[WORLD_MAX] = {0};
    uint64_t receives[WORLD_MAX] = {0};
    for (uint64_t stripe = 0; stripe < rings[0].stripes; stripe++) {
        struct slow slow = {{0}, {0}};
        for (uint32_t owner = 0; owner < world; owner++) {
            if (!ring_present(&rings[0], stripe, owner))
                continue;
            if (rings[0].reduces)
                slow_reduce(rings, world, stripe, owner, &slow);
            slow_gather(rings, world, owner, &slow);
        }
        for (uint32_t r = 0; r < world; r++) {
            assert_int_equal(slow.sends[r], ring_sends(&rings[r], stripe));
            assert_int_equal(slow.receives[r], ring_receives(&rings[r], stripe));
            sends[r] += slow.sends[r];
            receives[r] += slow.receives[r];
        }
    }
    for (uint32_t r = 0; r < world; r++) {
        assert_int_equal(sends[r], ring_sends_total(&rings[r]));
        assert_int_equal(receives[r], ring_receives_total(&rings[r]));
    }
}

static void every_hop_is_known_at_both_ends(void **state)
{
    (void)state;
    every_shape(check_hops, false);
    every_shape(check_hops, true);
}

// The values, by the schedule: each rank adds its own when a frame of partial sums passes.
static void check_sums(const struct ring *rings, uint32_t world)
{
    const struct ring *ring = &rings[0];
    uint32_t *result = calloc(ring->elements + 1, sizeof(uint32_t));
    for (uint64_t stripe = 0; stripe < ring->stripes; stripe++) {
        for (uint32_t owner = 0; owner < world; owner++) {
            if (!ring_present(ring, stripe, owner))
                continue;
            const struct ring_span span = ring_chunk(ring, stripe, owner);
            for (uint32_t hop = 0; hop < world; hop++)
                for (uint64_t e = span.first; e < span.first + span.count; e++)
                    result[e] += 1u << ((owner + 1 + hop) % world);
        }
    }
    for (uint64_t e = 0; e < ring->elements; e++)
        assert_int_equal(result[e], (1u << world) - 1);
    free(result);
}

static void every_rank_is_added_once(void **state)
{
    (void)state;
    every_shape(check_sums, false);
}

// The data that can come before a rank has launched is bounded.
static void check_eager(const struct ring *rings, uint32_t world)
{
    if (!rings[0].eager)
        return;
    for (uint32_t r = 0; r < world; r++) {
        uint64_t bytes = 0;
        uint32_t frames = 0;
        for (uint32_t owner = 0; owner < world; owner++) {
            const bool comes = rings[r].reduces ? ring_receives_reduce(&rings[r], owner)
                                                : ring_receives_gather(&rings[r], owner);
            if (!ring_present(&rings[r], 0, owner) || !comes)
                continue;
            bytes += ring_chunk(&rings[r], 0, owner).count * rings[r].element_bytes;
            frames++;
        }
        assert_true(bytes <= LOCKSTEP_EAGER_BYTES);
        assert_true(frames <= LOCKSTEP_EAGER_FRAMES);
    }
}

static void eager_collectives_are_small(void **state)
{
    (void)state;
    every_shape(check_eager, false);
    every_shape(check_eager, true);
    struct ring ring;
    const uint64_t most = 2 * LOCKSTEP_EAGER_BYTES / 4;
    ring_init_allreduce(&ring, 2, 0, most, 4, 524288, RING_SPLIT_NEVER);
    assert_true(ring.eager); // Each rank sends half of it.
    ring_init_allreduce(&ring, 2, 0, most + 2, 4, 524288, RING_SPLIT_NEVER);
    assert_false(ring.eager);
    ring_init_allreduce(&ring, LOCKSTEP_MAX_WORLD, 5, 2048, 4, 8, RING_SPLIT_BYTES);
    assert_false(ring.eager); // So many frames are not for parking.
}

static void small_stripes_have_few_chunks(void **state)
{
    (void)state;
    struct ring ring;
    ring_init_allreduce(&ring, 8, 3, 1, 4, 262144, RING_SPLIT_BYTES);
    assert_true(ring_present(&ring, 0, 0));
    assert_false(ring_present(&ring, 0, 1));
    ring_init_allreduce(&ring, 8, 3, RING_GRAIN_BYTES / 4 * 3, 4, 262144, RING_SPLIT_BYTES);
    assert_true(ring_present(&ring, 0, 2));
    assert_false(ring_present(&ring, 0, 3));
}

// No stripe is left over that is much shorter than the others; one that is long becomes two.
static void stripes_are_equally_long(void **state)
{
    (void)state;
    struct ring ring;
    const uint64_t full = 2 * 262144 / 4;
    for (uint64_t extra = 0; extra < 3; extra++) {
        ring_init_allreduce(&ring, 2, 0, 5 * full + extra, 4, 262144, RING_SPLIT_BYTES);
        assert_int_equal(ring.stripes, extra == 0 ? 5 : 6);
        const struct ring_span first = ring_chunk(&ring, 0, 0);
        const struct ring_span last = ring_chunk(&ring, ring.stripes - 1, 0);
        assert_in_range(first.count - last.count, 0, 100);
        assert_int_equal(ring_chunk(&ring, 0, 1).first % (RING_LINE_BYTES / 4), 0);
        assert_int_equal(ring_chunk(&ring, 1, 0).first % (RING_LINE_BYTES / 4), 0);
    }
    ring_init_allreduce(&ring, 2, 0, 2 * RING_SPLIT_BYTES / 4 - 2, 4, 524288, RING_SPLIT_BYTES);
    assert_int_equal(ring.stripes, 1);
    ring_init_allreduce(&ring, 2, 0, 2 * RING_SPLIT_BYTES / 4, 4, 524288, RING_SPLIT_BYTES);
    assert_int_equal(ring.stripes, 2);
    ring_init_allreduce(&ring, 2, 0, 2 * 524288 / 4, 4, 524288, RING_SPLIT_NEVER);
    assert_int_equal(ring.stripes, 1);
    ring_init_allreduce(&ring, 2, 0, 2 * 524288 / 4 + 1, 4, 524288, RING_SPLIT_NEVER);
    assert_int_equal(ring.stripes, 2);
}

static void windows_are_bounded(void **state)
{
    (void)state;
    struct ring ring;
    ring_init_allreduce(&ring, 2, 0, 1u << 24, 4, 65536, RING_SPLIT_BYTES);
    assert_int_equal(ring.window, LOCKSTEP_STRIPES_IN_FLIGHT);
    ring_init_allreduce(&ring, 4, 0, 1u << 24, 4, 262144, RING_SPLIT_BYTES);
    assert_int_equal(ring.window, LOCKSTEP_FLIGHT_BYTES / (4 * 262144));
    ring_init_allreduce(&ring, 64, 0, 1u << 24, 4, 1048576, RING_SPLIT_BYTES);
    assert_int_equal(ring.window, 2);
}

// More than 2^31 bytes, and than 2^32 elements.
static void large_collectives(void **state)
{
    (void)state;
    struct ring ring;
    const uint64_t elements = ((uint64_t)5 << 32) + 3;
    ring_init_allreduce(&ring, 3, 1, elements, 4, 1048576, RING_SPLIT_BYTES);
    const uint64_t last = ring.stripes - 1;
    uint32_t owner = 2;
    while (!ring_present(&ring, last, owner))
        owner--;
    const struct ring_span span = ring_chunk(&ring, last, owner);
    assert_int_equal(span.first + span.count, elements);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_partition_the_elements),
        cmocka_unit_test(every_hop_is_known_at_both_ends),
        cmocka_unit_test(every_rank_is_added_once),
        cmocka_unit_test(eager_collectives_are_small),
        cmocka_unit_test(small_stripes_have_few_chunks),
        cmocka_unit_test(stripes_are_equally_long),
        cmocka_unit_test(windows_are_bounded),
        cmocka_unit_test(large_collectives),
    };
    return cmocka_run_group_tests_name("ring", tests, NULL, NULL);
}
