// SPDX-License-Identifier: Apache-2.0
//
// Shots: collectives with payloads so small that every rank computes its result for itself. A
// rank puts its payload next to its record, where all can see it; each rank that sees the shots of
// all adds them up, in the order of the seats. So data makes one hop, from each rank to each other,
// and no rank waits for a leader. Engine thread.
//
// All ranks get the same bits: they read the same bytes, with the same kernel, into memory with the
// same alignment to cache lines (which decides where the kernel's loops begin). They also agree on
// whether there is a result: it needs a shot from each rank, with one signature and one shape.
// Otherwise no rank computes it, and the leader, which knows all joins, appends a run: pieces, or a
// mismatch.
//
// Order. Shots are matched by tag, so ranks may launch them in any order. They cannot deadlock:
// each is in a record of its own rank, and a rank has more records than collectives that can be
// launched early. A payload without a free block becomes no shot, and no rank waits for a block.
//
// Reuse. A record may be reused when all mates have read it: each mate writes the record's `use`
// into its row `read`. A rank checks these rows only when SHOTS_SPENT records are spent: then one
// cache line of each mate covers sixteen records. A rank without free records sets `starves`, and
// mates then wake it after each record that they read. No wake-up is missed: a rank that starves
// sets the flag and then wakes its mates; each of them sees the flag, and wakes it once. All that
// the mate has read until then is visible with that wake-up, and later reads cause further ones.
//
// Cost of E bytes with n seats, on each rank: E written, (n - 1) E read from the caches of others,
// n E added up. The smallest shots need two cache lines from each mate. The payload of a collective
// of parts is a row (moves.c), of which only what is for this rank is read.

#include "worker/transport/host/shots.h"

#include "base/bits.h"
#include "worker/transport/flow/reduce.h"
#include "worker/transport/host/exchange.h"
#include "worker/transport/host/host.h"
#include "worker/transport/host/moves.h"
#include "worker/transport/host/pieces.h"
#include "worker/transport/host/sequence.h"

#define SHOTS_SPENT 16 // Number of spent records at which a rank checks which are read.
// The largest shot where every rank has a core: larger payloads are faster in pieces.
#define SHOTS_BYTES (4 * 1024)

// The block that was free for the longest time is taken. The lines of a block that mates have just
// read are in their first caches, and take a fifth longer to write.
static uint32_t shots_take_block(struct shots *shots)
{
    const uint32_t block = shots->blocks[shots->first_block];
    shots->first_block = (shots->first_block + 1) % BOARD_SHOT_BLOCKS;
    shots->block_count--;
    return block;
}

static void shots_put_block(struct shots *shots, uint32_t block)
{
    shots->blocks[(shots->first_block + shots->block_count++) % BOARD_SHOT_BLOCKS] = block;
}

void shots_init(struct shared *shared)
{
    struct shots *shots = &shared->shots;
    for (uint32_t i = 0; i < BOARD_RECORDS; i++)
        shots->payloads[i] = BOARD_NONE;
    shots->tried = BOARD_NONE;
    for (uint32_t i = 0; i < BOARD_SHOT_BLOCKS; i++)
        shots_put_block(shots, i);
}

uint64_t shots_most_bytes(const struct flows *flows)
{
    return flows->crowded ? BOARD_SHOT_BYTES : SHOTS_BYTES;
}

void shots_begin(struct shared *shared)
{
    const uint64_t most = board_long(&shared->board.head->shot_bytes);
    shared->shots.most_bytes = most < BOARD_SHOT_BYTES ? most : BOARD_SHOT_BYTES;
}

static uint64_t shots_bytes(const struct flow *flow)
{
    return host_elements(flow->collective) * flow->map.element_bytes;
}

bool shots_fits(const struct shared *shared, const struct flow *flow)
{
    const uint64_t most =
        host_moves(flow->collective) ? BOARD_SHOT_BYTES : shared->shots.most_bytes;
    return !shared->two_level && shots_bytes(flow) <= most &&
           units_words(flow->collective->unit_count) <= BOARD_UNIT_WORDS;
}

// ---- this rank's --------------------------------------------------------------------------------

uint8_t *shots_place(const struct shared *shared, uint32_t seat, uint32_t index, uint32_t payload,
                     uint64_t bytes)
{
    struct board_seat *from = host_seat(shared, seat);
    if (payload == BOARD_TINY && bytes <= BOARD_TINY_BYTES)
        return from->records[index].tiny;
    return payload < BOARD_SHOT_BLOCKS ? from->payloads[payload] : NULL;
}

uint8_t *shots_load(struct shared *shared, uint32_t index, uint64_t bytes)
{
    struct shots *shots = &shared->shots;
    struct board_record *record = &host_seat(shared, shared->seat)->records[index];
    uint32_t payload = BOARD_TINY;
    if (bytes > BOARD_TINY_BYTES && shots->block_count == 0)
        return NULL;
    if (bytes > BOARD_TINY_BYTES)
        payload = shots_take_block(shots);
    shots->payloads[index] = payload;
    record->payload = payload;
    record->use = ++shots->uses[index];
    return shots_place(shared, shared->seat, index, payload, bytes);
}

bool shots_fill(struct shared *shared, const struct flow *flow, uint32_t index)
{
    uint8_t *place = shots_load(shared, index, shots_bytes(flow));
    if (place && host_moves(flow->collective))
        moves_fill(shared, flow->collective, place);
    else if (place)
        pieces_gather(shared, flow, (struct ring_span){0, flow->collective->elements}, place,
                      false);
    return place != NULL;
}

void shots_announce(struct shared *shared, uint32_t index, uint64_t bytes)
{
    struct shots *shots = &shared->shots;
    struct board_seat *seat = host_seat(shared, shared->seat);
    seat->shot[shots->announced++ % BOARD_QUEUE] = index;
    atomic_store_explicit(&seat->shots.last, shots->announced << BOARD_SHOT_BITS | index,
                          memory_order_release);
    // Written last: a mate that reads the notice also finds the shot announced.
    exchange_note(shared, index, bytes);
}

bool shots_spend(struct shared *shared, uint32_t index)
{
    struct shots *shots = &shared->shots;
    if (shots->payloads[index] == BOARD_NONE)
        return false;
    shots->spent[shots->spent_count++] = index;
    shots->spent_block |= shots->payloads[index] < BOARD_SHOT_BLOCKS;
    return true;
}

// True if all mates have read the shot in a record.
static bool shots_is_read(const struct shared *shared, uint32_t index)
{
    for (uint32_t i = 0; i < shared->seats; i++) {
        const _Atomic uint32_t *read = &host_seat(shared, i)->read[shared->seat][index];
        if (i != shared->seat &&
            atomic_load_explicit(read, memory_order_acquire) != shared->shots.uses[index])
            return false;
    }
    return true;
}

static void shots_rest(struct shared *shared, uint32_t index)
{
    struct shots *shots = &shared->shots;
    if (shots->payloads[index] < BOARD_SHOT_BLOCKS)
        shots_put_block(shots, shots->payloads[index]);
    shots->payloads[index] = BOARD_NONE;
    shared->records[shared->record_count++] = index;
}

bool shots_refill(struct shared *shared)
{
    struct shots *shots = &shared->shots;
    uint32_t left = 0;
    if (shots->spent_count < SHOTS_SPENT && !shots->spent_block && shared->record_count > 0)
        return true;
    shots->spent_block = false;
    for (uint32_t i = 0; i < shots->spent_count; i++) {
        const uint32_t index = shots->spent[i];
        if (shots_is_read(shared, index)) {
            shots_rest(shared, index);
            continue;
        }
        shots->spent_block |= shots->payloads[index] < BOARD_SHOT_BLOCKS;
        shots->spent[left++] = index;
    }
    shots->spent_count = left;
    return shared->record_count > 0;
}

bool shots_may_refill(const struct shared *shared)
{
    for (uint32_t i = 0; i < shared->shots.spent_count; i++) {
        if (shots_is_read(shared, shared->shots.spent[i]))
            return true;
    }
    return false;
}

void shots_starve(struct shared *shared, bool starves)
{
    if (shared->shots.starves == starves)
        return;
    shared->shots.starves = starves;
    atomic_store_explicit(&host_seat(shared, shared->seat)->shots.starves, starves,
                          memory_order_release);
    if (starves)
        host_tell(shared);
}

// ---- all ranks' ---------------------------------------------------------------------------------

void shots_read(struct shared *shared, const struct match *match)
{
    struct shots *shots = &shared->shots;
    struct board_seat *own = host_seat(shared, shared->seat);
    for (uint32_t i = 0; i < shared->seats; i++) {
        const uint32_t index = match->records[i];
        if ((match->shots >> i & 1) == 0)
            continue;
        bits_remove(shots->held[i], index);
        atomic_store_explicit(&own->read[i][index], host_seat(shared, i)->records[index].use,
                              memory_order_release);
    }
    if (shots->starving != 0)
        host_tell(shared);
}

static void shots_forget(struct shared *shared, struct match *match)
{
    shots_read(shared, match);
    sequence_forget(&shared->sequence, match);
}

// Computes the final bytes in user memory: directly if it is aligned like the board, else through a
// copy.
static void shots_compute(struct shared *shared, const struct flow *flow,
                          const struct host_run *how, const void *const *sources)
{
    const struct collective *collective = flow->collective;
    const struct extent *extent = &collective->extents[0];
    uint8_t *out = shared->shots.result;
    const bool direct = collective->extent_count == 1 && collective->unit_count == 0 &&
                        extent->out && (uintptr_t)extent->out % 64 == 0;
    if (direct)
        out = extent->out;
    pieces_combine(flow, how, out, sources, shared->seats, collective->elements);
    if (!direct)
        reduce_store(flow, (struct ring_span){0, collective->elements}, out);
}

static void shots_finish(struct shared *shared, struct flow *flow, const struct match *match,
                         const struct host_run *how, const void *const *sources)
{
    struct collective *collective = flow->collective;
    const uint64_t bytes = shots_bytes(flow);
    for (uint32_t i = 0; collective->unit_count > 0 && i < shared->seats; i++)
        host_use(collective, host_seat(shared, i)->records[match->records[i]].used);
    if (host_matters(collective, how->weight)) {
        if (host_moves(collective)) {
            moves_keep(shared, collective);
            moves_finish(shared, collective, sources, how->scales ? how->factors : NULL,
                         how->weight);
        } else if (collective->kind == COLLECTIVE_ALLREDUCE)
            shots_compute(shared, flow, how, sources);
        else if (collective->root != shared->flows->world.rank)
            reduce_store(flow, (struct ring_span){0, collective->elements},
                         sources[host_seat_of(shared, collective->root)]);
        shared->flows->totals.payload_bytes_sent += bytes;
        shared->flows->totals.bytes_copied += bytes;
    }
    host_flow_done(shared, flow, how->weight);
}

// Collects the sources of a match that all ranks have joined with shots of one shape. False: one of
// the shots is impossible.
static bool shots_gather(struct shared *shared, const struct flow *flow, const struct match *match,
                         struct host_run *how, const void **sources)
{
    const struct collective *collective = flow->collective;
    const bool mean = host_is_mean(collective);
    for (uint32_t i = 0; i < shared->seats; i++) {
        const uint32_t index = match->records[i];
        const struct board_record *record = &host_seat(shared, i)->records[index];
        const uint64_t factor = board_long(&record->factor);
        const uint64_t weight = board_long(&record->weight);
        const void *place =
            shots_place(shared, i, index, board_word(&record->payload), shots_bytes(flow));
        if (!place || (!mean && factor != 1)) {
            host_impossible(shared, i,
                            place ? "sent a shot with a weight that it has no use for"
                                  : "sent a shot without a payload");
            return false;
        }
        if (weight > LOCKSTEP_MAX_WEIGHT) {
            host_impossible(shared, i, "sent a shot with a weight that no rank can have");
            return false;
        }
        how->weight += weight;
        how->factors[i] = factor;
        how->scales |= factor > 1;
        sources[i] = factor > 0 ? place : NULL;
    }
    return true;
}

// Computes the collective if all ranks have shots of it. Otherwise the leader may append a run, and
// other ranks wait.
static void shots_joined(struct shared *shared, struct match *match)
{
    const void *sources[LOCKSTEP_MAX_MATES];
    struct host_run how = {.flow = NULL};
    const bool all = match->differs == BOARD_NONE && match->count == shared->seats &&
                     match->shots == ((uint32_t)1 << shared->seats) - 1;
    struct flow *flow = all ? shared->joined[match->records[shared->seat]] : NULL;
    if (flow && shots_gather(shared, flow, match, &how, sources)) {
        (void)host_release(shared, match->records[shared->seat]);
        shots_finish(shared, flow, match, &how, sources);
        shots_forget(shared, match);
    } else if (shared->seat == 0) {
        sequence_joined(shared, match);
    }
}

// Takes a shot of a seat. False: the shot is impossible.
static bool shots_take(struct shared *shared, uint32_t seat, uint32_t index)
{
    uint64_t *held = shared->shots.held[seat];
    if (index >= BOARD_RECORDS || bits_has(held, index)) {
        host_impossible(shared, seat, "sent a shot that was not read");
        return false;
    }
    struct match *match = sequence_join(shared, seat, index, true);
    if (!match)
        return false;
    bits_add(held, index);
    shots_joined(shared, match);
    return true;
}

static bool shots_take_seat(struct shared *shared, uint32_t seat)
{
    struct shots *shots = &shared->shots;
    const struct board_seat *from = host_seat(shared, seat);
    const uint64_t word = atomic_load_explicit(&from->shots.last, memory_order_acquire);
    const uint64_t last = word >> BOARD_SHOT_BITS;
    if (last == shots->taken[seat])
        return false;
    if (last < shots->taken[seat] || last - shots->taken[seat] > BOARD_RECORDS) {
        host_impossible(shared, seat, "sent more shots than it has records");
        return false;
    }
    while (shots->taken[seat] < last) {
        const uint64_t at = shots->taken[seat]++;
        const uint32_t index = at + 1 == last ? word & ((1u << BOARD_SHOT_BITS) - 1)
                                              : board_word(&from->shot[at % BOARD_QUEUE]);
        if (!shots_take(shared, seat, index))
            break;
    }
    return true;
}

static uint32_t shots_starving(const struct shared *shared)
{
    uint32_t starving = 0;
    for (uint32_t i = 0; i < shared->seats; i++) {
        const _Atomic uint64_t *starves = &host_seat(shared, i)->shots.starves;
        if (i != shared->seat && atomic_load_explicit(starves, memory_order_acquire) != 0)
            starving |= 1u << i;
    }
    return starving;
}

bool shots_work(struct shared *shared)
{
    bool any = false;
    const uint32_t starving = shots_starving(shared);
    const bool news = (starving & ~shared->shots.starving) != 0;
    shared->shots.starving = starving;
    for (uint32_t i = 0; i < shared->seats; i++)
        any |= shots_take_seat(shared, i);
    if (news)
        host_tell(shared);
    return any;
}

bool shots_pending(const struct shared *shared)
{
    for (uint32_t i = 0; i < shared->seats; i++) {
        const struct board_shots *shots = &host_seat(shared, i)->shots;
        if (atomic_load_explicit(&shots->last, memory_order_acquire) >> BOARD_SHOT_BITS !=
            shared->shots.taken[i])
            return true;
    }
    return (shots_starving(shared) & ~shared->shots.starving) != 0;
}

void shots_run_seen(struct shared *shared, const struct collective_tag *tag)
{
    if (shared->seat == 0 || shared->two_level)
        return;
    // Shots that were announced before the leader appended the run are visible by now.
    (void)shots_work(shared);
    struct match *match = sequence_find(&shared->sequence, tag);
    if (match)
        shots_forget(shared, match);
}
