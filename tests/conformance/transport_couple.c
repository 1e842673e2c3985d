// SPDX-License-Identifier: Apache-2.0
//
// Two ranks of one host in one thread; see transport_couple.h.

#include "tests/conformance/transport_couple.h"

#include "worker/transport/lifecycle.h"

#include "base/clock.h"
#include "tests/conformance/transport_fleet.h"
#include "worker/transport/host/host.h"
#include "worker/transport/state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#define GUARDED 12345678.0f

static void on_formed(void *context)
{
    ((struct couple_rank *)context)->formed = true;
}

static void on_done(void *context, struct collective *collective)
{
    (void)collective;
    ((struct couple_rank *)context)->done++;
}

static void on_mismatch(void *context, struct collective *collective, uint32_t rank,
                        const char *text)
{
    (void)context;
    (void)collective;
    (void)rank;
    (void)text;
}

static void on_lost(void *context, uint32_t number, enum peer_loss loss, const char *text)
{
    struct couple_rank *rank = context;
    assert_int_equal(number, 1 - rank->number);
    assert_int_equal(loss, LOSS_IMPOSSIBLE);
    rank->lost++;
    snprintf(rank->text, sizeof(rank->text), "%s", text);
}

static void rank_open(struct couple_rank *rank, uint32_t number)
{
    void *memory = NULL;
    memset(rank, 0, sizeof(*rank));
    rank->number = number;
    rank->regions = regions_open();
    assert_non_null(rank->regions);
    assert_int_equal(
        regions_make(rank->regions, (COUPLE_ROW + COUPLE_GUARD) * sizeof(float), &memory), 0);
    rank->memory = memory;
    const struct transport_config config = {.kind = TRANSPORT_TCP,
                                            .host = "127.0.0.1",
                                            .shares = true,
                                            .latency_ns = 1000,
                                            .bytes_per_s = 1000000000,
                                            .regions = rank->regions,
                                            .events = {.formed = on_formed,
                                                       .done = on_done,
                                                       .mismatch = on_mismatch,
                                                       .peer_lost = on_lost,
                                                       .context = rank}};
    char error[256] = "";
    if (transport_open(&config, &rank->transport, error, sizeof(error)) < 0)
        fail_msg("%s", error);
}

static void rank_form(struct couple_rank *rank, const char *address)
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
                                    .form_timeout_ms = fleet_bound_ms(COUPLE_BOUND_MS)};
    assert_int_equal(transport_form(rank->transport, &world), 0);
}

void couple_work(struct couple_rank *rank, uint32_t turns)
{
    for (uint32_t i = 0; i < turns && rank->lost == 0; i++)
        transport_progress(rank->transport, 0);
}

// The input of a rank at an element.
static float input(uint32_t rank, uint64_t element)
{
    return (float)(element % 1000 + 1000 * rank + 1);
}

static void rank_launch(struct couple *couple, struct couple_rank *rank, uint64_t elements)
{
    for (uint64_t e = 0; e < COUPLE_ROW; e++)
        rank->memory[e] = input(rank->number, e);
    for (uint64_t e = elements; e < COUPLE_ROW + COUPLE_GUARD; e++)
        rank->memory[e] = GUARDED;
    rank->extent = (struct extent){rank->memory, rank->memory, elements};
    rank->collective = (struct collective){.kind = COLLECTIVE_ALLREDUCE,
                                           .dtype = DTYPE_FLOAT32,
                                           .op = couple->op,
                                           .weight = 1,
                                           .algorithm = ALGORITHM_SHARED,
                                           .tag = {.step = couple->step, .space = 2},
                                           .signature = 3,
                                           .extents = &rank->extent,
                                           .extent_count = 1,
                                           .elements = elements};
    transport_launch(rank->transport, &rank->collective);
}

void couple_check_guard(const struct couple_rank *rank, uint64_t elements)
{
    for (uint64_t e = elements; e < COUPLE_ROW + COUPLE_GUARD; e++)
        assert_true(rank->memory[e] == GUARDED);
}

void couple_check_intact_or_final(const struct couple_rank *rank, uint64_t elements)
{
    for (uint64_t e = 0; e < elements; e++) {
        const float own = input(rank->number, e);
        const float final = input(0, e) + input(1, e);
        assert_true(rank->memory[e] == own || rank->memory[e] == final);
    }
}

void couple_sum(struct couple *couple, uint64_t elements)
{
    const uint64_t since_ms = clock_now_ms();
    const uint32_t done = couple->ranks[0].done;
    couple->step++;
    for (int i = 0; i < 2; i++)
        rank_launch(couple, &couple->ranks[i], elements);
    while (couple->ranks[0].done == done || couple->ranks[1].done == done) {
        for (int i = 0; i < 2; i++)
            transport_progress(couple->ranks[i].transport, 0);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(COUPLE_BOUND_MS));
    }
}

void couple_begin(struct couple *couple, uint32_t victim)
{
    memset(couple, 0, sizeof(*couple));
    couple->op = REDUCE_SUM;
    couple->victim = &couple->ranks[victim];
    couple->liar = &couple->ranks[1 - victim];
    for (uint32_t i = 0; i < 2; i++)
        rank_open(&couple->ranks[i], i);
    for (uint32_t i = 0; i < 2; i++)
        rank_form(&couple->ranks[i], transport_address(couple->ranks[1 - i].transport));
}

void couple_open(struct couple *couple, uint32_t victim)
{
    const uint64_t since_ms = clock_now_ms();
    couple_begin(couple, victim);
    while (!couple->ranks[0].formed || !couple->ranks[1].formed) {
        for (int i = 0; i < 2; i++)
            transport_progress(couple->ranks[i].transport, 0);
        assert_true(clock_now_ms() - since_ms < fleet_bound_ms(COUPLE_BOUND_MS));
    }
    for (int k = 0; k < 4; k++) {
        couple_sum(couple, COUPLE_TINY);
        couple_sum(couple, COUPLE_LARGE);
    }
}

void couple_launch(struct couple *couple, uint64_t elements)
{
    couple->step++;
    rank_launch(couple, couple->liar, elements);
    rank_launch(couple, couple->victim, elements);
    if (couple->liar->number == 0)
        couple_work(couple->liar, 1);
}

void couple_close(struct couple *couple)
{
    for (int i = 0; i < 2; i++) {
        transport_close(couple->ranks[i].transport);
        regions_close(couple->ranks[i].regions);
    }
}

struct board_head *couple_board(const struct couple_rank *rank)
{
    return rank->transport->flows.shared->board.head;
}

struct board_seat *couple_seat(const struct couple_rank *rank)
{
    return &couple_board(rank)->seat[rank->number];
}
