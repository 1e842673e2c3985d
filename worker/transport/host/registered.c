// SPDX-License-Identifier: Apache-2.0
//
// Runs in registered memory: every rank's inputs and outputs lie in regions
// (worker/memory/regions.h) that all mates have mapped, so nothing is copied to be summed. Seat s
// owns slice s of the elements. Block by block it sums the memory of all ranks into its own, in the
// order of the seats, and copies the final bytes to the memory of its mates; with one mate, one
// loop stores to both. The result has the same bits as with pieces.c. Passing regions to the mates
// is in passing.c.
//
// Rows. The elements of a rank may be in many runs of memory, which may be cut differently on its
// mates (rows.h). A join lists these rows; several rows are listed in a row block of the seat,
// which does not change until its rank has done the run, when all have read it. A block of elements
// is cut at every row of any rank that begins inside it.
//
// Intact or final. Only its owner writes an element, and only with final bytes, in whole elements.
// An owner that dies or stops while it sums a block has only written its own memory: the block is
// intact on the mates. After the sum the owner announces the block (`filled` is above `spread`).
// The block is then final in the owner's memory, which mates still have mapped, and each mate
// copies it from there behind the fence (fence.c). So in each slice all survivors have the same
// blocks: final up to one place, intact after it.
//
// Between two ranks one loop stores to both, which saves a fifth of the time. It announces
// REGISTERED_BLOCKS blocks as one, when they are stored. If the owner dies inside of them, its mate
// is the only survivor, and the mean over that rank alone is its own input: each element is final,
// whether the owner came to it or not. That is not so if an input is a sum of samples, or if
// results are rounded; then the ranks of a job that recovers announce single blocks, too.
//
// Cost of E bytes with n ranks: each rank reads E and writes E bytes of user memory; all other
// accesses stay in the cache. Engine thread.

#include "worker/transport/host/registered.h"

#include "worker/kernels/combine.h"
#include "worker/transport/host/host.h"
#include "worker/transport/host/passing.h"
#include "worker/transport/host/pieces.h"

#include "base/clock.h"
#include "worker/kernels/kernels.h"
#include "worker/memory/regions.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define REGISTERED_TURNS 4 // Rounds of REGISTERED_BLOCKS before links are handled again.

static struct board_block *registered_block(const struct shared *shared, uint32_t seat)
{
    return &host_seat(shared, seat)->block;
}

// ---- where memory is ----------------------------------------------------------------------------

int registered_open(struct shared *shared)
{
    struct registered *registered = &shared->registered;
    if (!shared->flows->regions)
        return 0;
    registered->rows = calloc((size_t)shared->seats * BOARD_ROW_BLOCKS, sizeof(*registered->rows));
    return registered->rows ? 0 : -1;
}

void registered_close(struct shared *shared)
{
    free(shared->registered.rows);
}

static struct row *registered_rows(const struct shared *shared, uint32_t seat, uint32_t block)
{
    return shared->registered.rows[seat * BOARD_ROW_BLOCKS + block];
}

// Returns a row block of this rank that no run uses; BOARD_NONE: none.
static uint32_t registered_free_block(const struct shared *shared)
{
    for (uint32_t block = 0; block < BOARD_ROW_BLOCKS; block++) {
        if ((shared->registered.taken[shared->seat] >> block & 1) == 0)
            return block;
    }
    return BOARD_NONE;
}

static bool registered_may(const struct shared *shared, const struct flow *flow)
{
    const struct collective *collective = flow->collective;
    const struct unit_range all = {0, collective->unit_count};
    return shared->flows->regions && !shared->two_level &&
           collective->elements * flow->map.element_bytes > BOARD_TINY_BYTES &&
           collective->kind == COLLECTIVE_ALLREDUCE &&
           units_usage(collective->used, all) == USAGE_ALL;
}

// If the memory has several rows and no row block is free, the run uses slots, with the same
// result.
void registered_join(struct shared *shared, const struct flow *flow, uint32_t record)
{
    struct registered *registered = &shared->registered;
    struct board_seat *seat = host_seat(shared, shared->seat);
    struct board_memory *said = &seat->records[record].memory;
    struct rows *own = &registered->joined[record];
    *own = (struct rows){.block = BOARD_NONE};
    if (registered_may(shared, flow)) {
        const struct collective *collective = flow->collective;
        const uint32_t block = registered_free_block(shared);
        const bool several = block != BOARD_NONE;
        struct board_row *rows = several ? seat->rows[block] : &said->row;
        struct row *list = several ? registered_rows(shared, shared->seat, block) : &own->only;
        own->count =
            rows_collect(shared->flows->regions, collective->extents, collective->extent_count,
                         flow->map.element_bytes, several ? BOARD_ROWS : 1, rows, list);
        // Memory that has not landed yet is never in a region.
        assert(own->count == 0 || !collective->landed);
        if (own->count == 1) {
            said->row = rows[0];
            own->only = list[0];
        } else if (own->count > 1) {
            own->block = block;
            own->list = list;
            registered->taken[shared->seat] |= 1u << block;
        }
    }
    said->rows = own->count;
    said->block = own->block;
    said->sums = flow->collective->input_is_sum;
}

static void registered_leave_block(struct shared *shared, uint32_t seat, uint32_t block)
{
    if (block != BOARD_NONE)
        shared->registered.taken[seat] &= ~(1u << block);
}

void registered_drop(struct shared *shared, uint32_t record)
{
    registered_leave_block(shared, shared->seat, shared->registered.joined[record].block);
}

// The oldest run that is not done here.
static struct host_run *registered_oldest(struct shared *shared)
{
    struct registered *registered = &shared->registered;
    if (registered->finish < shared->runs_done)
        registered->finish = shared->runs_done;
    while (registered->finish < shared->runs_seen) {
        struct host_run *run = host_run(shared, registered->finish);
        if (run->flow && run->registered)
            return run;
        registered->finish++;
    }
    return NULL;
}

// True if all ranks have stored their slices.
static bool registered_is_done(const struct shared *shared, const struct host_run *run)
{
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (board_read(&host_seat(shared, i)->stored) <= run->ordinal)
            return false;
    }
    return true;
}

// Completes the runs that all ranks have stored, and frees their row blocks. True if there were
// any.
static bool registered_end_runs(struct shared *shared)
{
    for (bool any = false;; any = true) {
        struct host_run *run = registered_oldest(shared);
        if (!run || !registered_is_done(shared, run))
            return any;
        for (uint32_t i = 0; i < shared->seats; i++)
            registered_leave_block(shared, i, run->memory[i].block);
        host_run_done(shared, run);
        host_tell(shared);
    }
}

// Reads where a mate's memory is. False: impossible.
static bool registered_read_mate(struct shared *shared, uint32_t seat,
                                 const struct board_memory *from, const struct flow *flow,
                                 struct rows *rows)
{
    struct registered *registered = &shared->registered;
    const struct regions *regions = shared->flows->regions;
    const uint64_t elements = flow->collective->elements;
    const uint32_t element = flow->map.element_bytes;
    const uint32_t count = from->rows;
    const uint32_t block = from->block;
    *rows = (struct rows){.count = count, .block = BOARD_NONE};
    if (count == 1)
        return rows_read(regions, seat, &from->row, 1, elements, element, &rows->only);
    if (count == 0 || count > BOARD_ROWS || block >= BOARD_ROW_BLOCKS ||
        (registered->taken[seat] >> block & 1) != 0)
        return false;
    struct row *list = registered_rows(shared, seat, block);
    rows->block = block;
    rows->list = list;
    registered->taken[seat] |= 1u << block;
    return rows_read(regions, seat, host_seat(shared, seat)->rows[block], count, elements, element,
                     list);
}

// True if blocks are announced before they are copied. The same on all ranks.
static bool registered_announces(const struct shared *shared, const struct board_run *from,
                                 const struct collective *collective)
{
    if (shared->seats > 2)
        return true;
    if (!shared->flows->recovers)
        return false;
    return collective->final != DTYPE_NONE || collective->dtype == DTYPE_BOOL ||
           from->memory[0].sums != 0 || from->memory[1].sums != 0;
}

const char *registered_read(struct shared *shared, const struct board_run *from,
                            const struct flow *flow, struct host_run *run, uint32_t *seat)
{
    const uint32_t record = from->records[shared->seat];
    // A mate may have finished an earlier run and reused its row block before this rank has
    // noticed. The end of that run is visible here by now, because the mate published it before its
    // join.
    (void)registered_end_runs(shared);
    for (uint32_t i = 0; i < shared->seats; i++) {
        *seat = i;
        if (i == shared->seat && record < BOARD_RECORDS)
            run->memory[i] = shared->registered.joined[record];
        else if (!shared->flows->regions ||
                 !registered_read_mate(shared, i, &from->memory[i], flow, &run->memory[i]))
            return "sent memory that is not mapped here";
        if (run->memory[i].count == 0)
            return "sent a run of memory that is private";
    }
    run->announces = registered_announces(shared, from, flow->collective);
    return NULL;
}

// ---- runs ---------------------------------------------------------------------------------------

struct ring_span registered_slice(const struct shared *shared, const struct host_run *run,
                                  uint32_t seat)
{
    const struct ring_span whole = {0, run->flow->collective->elements};
    return pieces_part(whole, shared->seats, seat);
}

// Returns the run whose slice this rank stores next; NULL: none.
static struct host_run *registered_next(struct shared *shared)
{
    struct registered *registered = &shared->registered;
    if (registered->run < shared->runs_done)
        registered->run = shared->runs_done;
    while (registered->run < shared->runs_seen) {
        struct host_run *run = host_run(shared, registered->run);
        if (run->flow && run->registered && run->ordinal >= registered->stored)
            return run;
        registered->run++;
    }
    return NULL;
}

// Sets `writing` before this rank writes to the memory of its mates. False: a rank has revoked its
// memory.
static bool registered_enter(struct shared *shared)
{
    struct board_block *block = registered_block(shared, shared->seat);
    atomic_store(&block->writing.value, 1);
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (atomic_load(&host_seat(shared, i)->revoked.value) == 0)
            continue;
        atomic_store(&block->writing.value, 0);
        shared->registered.stopped = true;
        return false;
    }
    return true;
}

// Finds the beginning of a span that is in one row on every rank. Returns its number of elements;
// memory[]: its address in the memory of each rank.
static uint64_t registered_place(const struct shared *shared, const struct host_run *run,
                                 struct ring_span span, uint8_t **memory)
{
    uint64_t count = span.count;
    for (uint32_t i = 0; i < shared->seats; i++) {
        uint64_t left = 0;
        memory[i] = rows_at(&run->memory[i], span.first, run->flow->map.element_bytes, &left);
        count = left < count ? left : count;
    }
    return count;
}

// Sums into this rank's memory. both: also into the memory of its only mate, in the same loop.
static void registered_combine(const struct shared *shared, const struct host_run *run,
                               uint8_t *const *memory, uint64_t count, bool both)
{
    const void *sources[LOCKSTEP_MAX_MATES];
    for (uint32_t i = 0; i < shared->seats; i++)
        sources[i] = run->factors[i] > 0 ? memory[i] : NULL;
    struct kernel_combination what = pieces_combination(run->flow, run, sources, shared->seats);
    what.also = both ? memory[1 - shared->seat] : NULL;
    kernel_combine(&what, memory[shared->seat], count);
}

// Copies final bytes from the memory of seat `from` to that of seat `to`; to BOARD_NONE: to all
// other seats.
static void registered_copy(const struct shared *shared, const struct host_run *run,
                            uint8_t *const *memory, uint64_t count, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (i != from && (to == BOARD_NONE || to == i))
            kernel_copy(memory[i], memory[from], count * run->flow->map.element_bytes, false);
    }
}

void registered_copy_span(const struct shared *shared, const struct host_run *run,
                          struct ring_span span, uint32_t from, uint32_t to)
{
    uint8_t *memory[LOCKSTEP_MAX_MATES] = {NULL};
    while (span.count > 0) {
        const uint64_t count = registered_place(shared, run, span, memory);
        registered_copy(shared, run, memory, count, from, to);
        span.first += count;
        span.count -= count;
    }
}

// Sums a block into the memory of two ranks at once. Each element of the mate is intact or final at
// every instant.
static void registered_spread_pair(struct shared *shared, const struct host_run *run,
                                   struct ring_span span)
{
    uint8_t *memory[LOCKSTEP_MAX_MATES] = {NULL};
    while (span.count > 0) {
        const uint64_t count = registered_place(shared, run, span, memory);
        registered_combine(shared, run, memory, count, true);
        span.first += count;
        span.count -= count;
    }
}

// Sums a block into this rank's memory, and copies it to that of the mates. Most blocks are a
// single part, whose addresses are then reused for the copy.
static void registered_spread(struct shared *shared, const struct host_run *run,
                              struct ring_span span)
{
    struct registered *registered = &shared->registered;
    struct board_block *block = registered_block(shared, shared->seat);
    uint8_t *memory[LOCKSTEP_MAX_MATES] = {NULL};
    struct ring_span rest = span;
    uint64_t count = 0;
    board_describe(block, registered->run, span.first, span.count);
    while (rest.count > 0) {
        count = registered_place(shared, run, rest, memory);
        registered_combine(shared, run, memory, count, false);
        rest.first += count;
        rest.count -= count;
    }
    board_publish(&block->filled, ++registered->blocks);
    if (count == span.count)
        registered_copy(shared, run, memory, count, shared->seat, BOARD_NONE);
    else
        registered_copy_span(shared, run, span, shared->seat, BOARD_NONE);
    board_publish(&block->spread, registered->blocks);
}

// Stores some blocks of the slice. False: all are stored, or a rank has revoked its memory.
static bool registered_advance(struct shared *shared, const struct host_run *run)
{
    struct registered *registered = &shared->registered;
    struct board_block *block = registered_block(shared, shared->seat);
    const struct ring_span slice = registered_slice(shared, run, shared->seat);
    const uint64_t most = BOARD_BLOCK_BYTES / run->flow->map.element_bytes;
    if (registered->done == slice.count || !registered_enter(shared))
        return false;
    const uint64_t rest = slice.count - registered->done;
    if (!run->announces)
        board_describe(block, registered->run, slice.first + registered->done,
                       rest < REGISTERED_BLOCKS * most ? rest : REGISTERED_BLOCKS * most);
    for (uint32_t i = 0; i < REGISTERED_BLOCKS && registered->done < slice.count; i++) {
        const uint64_t left = slice.count - registered->done;
        const struct ring_span span = {slice.first + registered->done, left < most ? left : most};
        if (run->announces)
            registered_spread(shared, run, span);
        else
            registered_spread_pair(shared, run, span);
        registered->done += span.count;
        shared->flows->totals.payload_bytes_sent +=
            span.count * run->flow->map.element_bytes * (shared->seats - 1);
    }
    if (!run->announces) {
        board_publish(&block->filled, ++registered->blocks);
        board_publish(&block->spread, registered->blocks);
    }
    board_publish(&block->writing, 0);
    return true;
}

static bool registered_store(struct shared *shared)
{
    struct registered *registered = &shared->registered;
    struct host_run *run = registered->stopped ? NULL : registered_next(shared);
    if (!run)
        return false;
    if (run->flow->collective->first_sent_us == 0)
        run->flow->collective->first_sent_us = clock_now_us();
    for (uint32_t i = 0; i < REGISTERED_TURNS; i++) {
        if (!registered_advance(shared, run))
            break;
    }
    if (registered->stopped || registered->done < registered_slice(shared, run, shared->seat).count)
        return !registered->stopped;
    registered->done = 0;
    registered->run++;
    board_publish(&host_seat(shared, shared->seat)->stored, ++registered->stored);
    host_tell(shared);
    return true;
}

bool registered_work(struct shared *shared)
{
    if (!shared->flows->regions)
        return false;
    if (shared->registered.again || passing_has_news(shared))
        passing_exchange(shared);
    const bool stores = registered_store(shared);
    return registered_end_runs(shared) || stores;
}

bool registered_pending(const struct shared *shared)
{
    const struct registered *registered = &shared->registered;
    if (!shared->flows->regions)
        return false;
    if (passing_has_news(shared))
        return true;
    for (uint64_t i = shared->runs_done; i < shared->runs_seen; i++) {
        const struct host_run *run = &shared->runs[i % BOARD_RUNS];
        if (run->flow && run->registered &&
            ((run->ordinal >= registered->stored && !registered->stopped) ||
             registered_is_done(shared, run)))
            return true;
    }
    return false;
}
