// SPDX-License-Identifier: Apache-2.0
//
// The fast path of shots: for a small collective that its caller waits for, while nothing else is
// in flight here. Then the next shot of every mate is most likely of the same collective, and no
// match is needed. A rank puts its shot into a record as always, and also into a *notice*, whose
// first cache line has all that a mate must compare. It reads the next notice of every mate. When
// all have arrived with the same tag, signature and shape, it computes the result. Engine thread.
//
// The fast path gives the same result as shots.c. If a notice does not match, or does not arrive at
// once, the shot is launched like any other, and all mates find its record. A rank on the fast path
// and a rank on the normal path take the same shots.
//
// Where ranks share cores, an awaited mate may need this rank's core, or may run on another core
// and arrive in a moment. Each rank publishes on the board on which core it waits (spread.c). So a
// rank yields when it awaits a mate on its own core, and polls otherwise. Each rank that gets the
// core finds the shots of all ranks for the previous call, completes that call and begins the next,
// so one time slice per rank and call is enough.
//
// At most EXCHANGES_MOST collectives in a row take the fast path, so that regions, joins, frames
// and goodbyes of mates are handled in between.
//
// Order of stores. Mates are woken (host_tell) after the polls, not before: host_tell waits until
// all earlier stores are visible, which takes as long as the notices of mates take to arrive. A
// sleeping mate is woken that much later, but always.
//
// Cost: one cache line from each mate, two for payloads of 17 bytes or more, and the lines of the
// payload itself for 81 bytes or more.

#include "worker/transport/host/exchange.h"

#include "base/bits.h"
#include "worker/kernels/combine.h"
#include "worker/transport/host/host.h"
#include "worker/transport/host/moment.h"
#include "worker/transport/host/moves.h"
#include "worker/transport/host/shots.h"

#include "worker/kernels/kernels.h"
#include "worker/memory/regions.h"

#include <string.h>

#define EXCHANGES_MOST 256 // Exchanges in a row.
#define NOTICE_BYTES (BOARD_NOTICE_WORDS * sizeof(uint64_t))

enum seen {
    SEEN_NOTHING, // The notice has not arrived.
    SEEN_SAME,
    SEEN_OTHER, // The notice is of another collective, or is overwritten.
};

// The state of one exchange.
struct exchange {
    struct collective *collective;
    uint32_t record; // This rank's record.
    uint64_t bytes;
    uint32_t seen; // One bit per seat: its notice has arrived.
    uint32_t records[LOCKSTEP_MAX_MATES]; // By seat.
    uint32_t uses[LOCKSTEP_MAX_MATES];
    const void *sources[LOCKSTEP_MAX_MATES];
    _Alignas(64) uint64_t payloads[LOCKSTEP_MAX_MATES][BOARD_NOTICE_WORDS];
};

// ---- notices ------------------------------------------------------------------------------------

static struct board_notice *notice_of(const struct shared *shared, uint32_t seat, uint64_t shot)
{
    return &host_seat(shared, seat)->notices[shot % BOARD_NOTICES];
}

static void notice_set(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, value, memory_order_release); // Visible only after `shot` is 0.
}

static uint64_t notice_get(const _Atomic uint64_t *word)
{
    // Loaded before `shot` is checked again.
    return atomic_load_explicit(word, memory_order_acquire);
}

void exchange_note(struct shared *shared, uint32_t index, uint64_t bytes)
{
    const struct board_record *record = &host_seat(shared, shared->seat)->records[index];
    const uint64_t shot = shared->shots.announced;
    struct board_notice *notice = notice_of(shared, shared->seat, shot - 1);
    atomic_store_explicit(&notice->shot, 0, memory_order_relaxed);
    if (record->tag.step != 0 || record->weight > 1 || record->factor != 1)
        return;
    notice_set(&notice->space, record->tag.space);
    notice_set(&notice->slot_use, (uint64_t)record->use << 32 | record->tag.slot);
    notice_set(&notice->signature, record->signature);
    notice_set(&notice->shape, record->shape);
    notice_set(&notice->bytes, (uint64_t)record->payload << 32 | bytes);
    for (uint32_t i = 0; bytes <= NOTICE_BYTES && i * sizeof(uint64_t) < bytes; i++) {
        uint64_t word;
        memcpy(&word, record->tiny + i * sizeof(word), sizeof(word));
        notice_set(&notice->payload[i], word);
    }
    atomic_store_explicit(&notice->shot, shot << BOARD_SHOT_BITS | index, memory_order_release);
}

// Reads the next notice of a seat and compares it with this rank's record.
static enum seen exchange_see(const struct shared *shared, struct exchange *exchange, uint32_t seat)
{
    const struct shots *shots = &shared->shots;
    const struct board_record *own = &host_seat(shared, shared->seat)->records[exchange->record];
    const struct board_notice *notice = notice_of(shared, seat, shots->taken[seat]);
    const uint64_t shot = atomic_load_explicit(&notice->shot, memory_order_acquire);
    const uint32_t index = shot & ((1u << BOARD_SHOT_BITS) - 1);
    if (shot >> BOARD_SHOT_BITS != shots->taken[seat] + 1)
        return shot >> BOARD_SHOT_BITS > shots->taken[seat] ? SEEN_OTHER : SEEN_NOTHING;
    const uint64_t slot_use = notice_get(&notice->slot_use);
    const uint64_t all_bytes = notice_get(&notice->bytes);
    const bool same =
        notice_get(&notice->space) == own->tag.space && (uint32_t)slot_use == own->tag.slot &&
        notice_get(&notice->signature) == own->signature &&
        notice_get(&notice->shape) == own->shape && (uint32_t)all_bytes == exchange->bytes;
    const uint64_t bytes = exchange->bytes <= NOTICE_BYTES ? exchange->bytes : 0;
    for (uint32_t i = 0; i * sizeof(uint64_t) < bytes; i++)
        exchange->payloads[seat][i] = notice_get(&notice->payload[i]);
    if (!same || atomic_load_explicit(&notice->shot, memory_order_relaxed) != shot ||
        index >= BOARD_RECORDS || bits_has(shots->held[seat], index))
        return SEEN_OTHER;
    exchange->records[seat] = index;
    exchange->uses[seat] = (uint32_t)(slot_use >> 32);
    exchange->sources[seat] = exchange->payloads[seat];
    if (bytes != exchange->bytes)
        exchange->sources[seat] =
            shots_place(shared, seat, index, (uint32_t)(all_bytes >> 32), exchange->bytes);
    return exchange->sources[seat] ? SEEN_SAME : SEEN_OTHER;
}

// ---- an exchange --------------------------------------------------------------------------------

// True if a payload can be a shot: it has room, and its memory is not registered.
static bool exchange_fits(const struct shared *shared, const struct collective *collective)
{
    struct regions *regions = shared->flows->regions;
    const uint64_t bytes = host_elements(collective) * dtype_size(collective->dtype);
    uint32_t number;
    uint64_t offset;
    if (bytes <= BOARD_TINY_BYTES)
        return true;
    if (host_moves(collective))
        return shared->shots.block_count > 0;
    return bytes <= shared->shots.most_bytes && shared->shots.block_count > 0 &&
           (!regions ||
            regions_find(regions, collective->extents->in, bytes, &number, &offset) == 0);
}

static bool exchange_may(const struct flows *flows, const struct collective *collective)
{
    const struct shared *shared = flows->shared;
    return shared && shared->stands && !shared->two_level &&
           collective->algorithm == ALGORITHM_SHARED &&
           (host_moves(collective) ||
            (collective->kind == COLLECTIVE_ALLREDUCE && collective->extent_count == 1)) &&
           !collective->device && collective->unit_count == 0 && collective->tag.step == 0 &&
           collective->weight == 1 && collective->final == DTYPE_NONE &&
           list_empty(&shared->waiting) && shared->sequence.pool.used == 0 &&
           shared->shots.starving == 0;
}

// Announces this rank's shot.
static void exchange_announce(struct shared *shared, struct exchange *exchange)
{
    const struct collective *collective = exchange->collective;
    struct board_record *record = &host_seat(shared, shared->seat)->records[exchange->record];
    host_describe(shared, collective, ALGORITHM_SHARED, exchange->record);
    record->memory.rows = 0;
    record->memory.block = BOARD_NONE;
    shared->registered.joined[exchange->record] = (struct rows){.block = BOARD_NONE};
    uint8_t *place = shots_load(shared, exchange->record, exchange->bytes);
    if (host_moves(collective))
        moves_fill(shared, collective, place);
    else
        memcpy(place, collective->extents->in, exchange->bytes);
    exchange->sources[shared->seat] = place;
    exchange->seen = 1u << shared->seat;
    shots_announce(shared, exchange->record, exchange->bytes);
    if (host_moves(collective))
        moves_keep(shared, collective);
}

// Reads the notices that have not arrived yet. False: one is of another collective.
static bool exchange_look(const struct shared *shared, struct exchange *exchange)
{
    for (uint32_t i = 0; i < shared->seats; i++) {
        if ((exchange->seen >> i & 1) != 0)
            continue;
        const enum seen seen = exchange_see(shared, exchange, i);
        if (seen == SEEN_OTHER)
            return false;
        exchange->seen |= (uint32_t)(seen == SEEN_SAME) << i;
    }
    return true;
}

// True if an awaited mate waits on the core of this rank, as far as this rank knows.
static bool exchange_awaits_beside(const struct shared *shared, const struct exchange *exchange)
{
    const uint64_t core = board_read(&host_seat(shared, shared->seat)->core);
    for (uint32_t i = 0; i < shared->seats; i++) {
        if ((exchange->seen >> i & 1) == 0 && board_read(&host_seat(shared, i)->core) == core)
            return true;
    }
    return false;
}

static bool exchange_is_seen(const struct shared *shared, const struct exchange *exchange)
{
    return exchange->seen == ((uint32_t)1 << shared->seats) - 1;
}

static void exchange_combine(struct shared *shared, const struct exchange *exchange)
{
    const struct collective *collective = exchange->collective;
    const struct extent *extent = &collective->extents[0];
    uint8_t *out = (uintptr_t)extent->out % 64 == 0 ? extent->out : shared->shots.result;
    const struct kernel_combination what = {.dtype = collective->dtype,
                                            .op = collective->op,
                                            .count = shared->seats,
                                            .sources = exchange->sources,
                                            .total = host_is_mean(collective) ? shared->seats : 1};
    kernel_combine(&what, out, collective->elements);
    if (out != extent->out)
        kernel_copy(extent->out, out, exchange->bytes, false);
}

static void exchange_compute(struct shared *shared, const struct exchange *exchange)
{
    struct collective *collective = exchange->collective;
    if (host_moves(collective))
        moves_finish(shared, collective, exchange->sources, NULL, shared->seats);
    else
        exchange_combine(shared, exchange);
    collective->weight_total = host_is_mean(collective) ? shared->seats : 0;
    shared->flows->totals.payload_bytes_sent += exchange->bytes;
    shared->flows->totals.bytes_copied += exchange->bytes;
}

// Marks the shots of all ranks as read.
static void exchange_take(struct shared *shared, const struct exchange *exchange)
{
    struct board_seat *own = host_seat(shared, shared->seat);
    for (uint32_t i = 0; i < shared->seats; i++) {
        shared->shots.taken[i]++;
        if (i != shared->seat)
            atomic_store_explicit(&own->read[i][exchange->records[i]], exchange->uses[i],
                                  memory_order_release);
    }
    (void)shots_spend(shared, exchange->record);
}

bool exchange_shots(struct flows *flows, struct collective *collective, bool patient)
{
    struct shared *shared = flows->shared;
    if (!exchange_may(flows, collective) ||
        shared->shots.exchanged++ % EXCHANGES_MOST == EXCHANGES_MOST - 1 || !shots_refill(shared) ||
        !exchange_fits(shared, collective))
        return false;
    struct exchange exchange;
    exchange.collective = collective;
    exchange.record = shared->records[--shared->record_count];
    exchange.bytes = host_elements(collective) * dtype_size(collective->dtype);
    exchange_announce(shared, &exchange);
    for (struct moment moment = {.looks = 0}; exchange_look(shared, &exchange);) {
        if (exchange_is_seen(shared, &exchange)) {
            exchange_compute(shared, &exchange);
            exchange_take(shared, &exchange);
            host_tell(shared);
            return true;
        }
        if (!moment_pass(flows, &moment, patient, exchange_awaits_beside(shared, &exchange)))
            break;
    }
    shared->shots.tried = exchange.record;
    return false;
}

bool exchange_continues(struct shared *shared, struct flow *flow)
{
    const uint32_t record = shared->shots.tried;
    if (record == BOARD_NONE)
        return false;
    shared->shots.tried = BOARD_NONE;
    shared->joined[record] = flow;
    host_tell(shared);
    return true;
}
