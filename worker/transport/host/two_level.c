// SPDX-License-Identifier: Apache-2.0
//
// Two levels: memory inside each host, rings between hosts. A run is cut as in pieces.c, but a
// piece has as many parts as there are rings between hosts: as many as the smallest host has ranks.
// Seat k, below that number, sums part k over the seats of its host, and that sum takes part in an
// *inner* allreduce on ring k, which joins seat k of every host. The result of the inner allreduce
// is final. Seat k publishes it with its used bits and the weight of all hosts, and every seat
// copies it out. Other seats only copy in and out. So each byte crosses a host's link as often as
// in a ring of h hosts, 2 (h - 1) / h times, whatever the number of ranks on the host.
//
// Every host cuts a run into the same pieces, because the cut depends only on the elements and the
// number of rings.
//
// A slot holds a piece, and after it the sum of one part over the host. Sums of 16-bit floats are
// float32 there: only the inner allreduce rounds them, once per host, to the dtype of its frames.
// All ranks copy the bytes that the owner of a chunk on the ring has made final, so they have the
// same bits.
//
// One order on all hosts. A host executes runs in the order in which its leader appends them, and
// pieces of different runs share slots: two hosts with different orders would wait for each other.
// So the leader of host 0 decides. Ring 0 joins the leaders. When all seats of a host have joined a
// collective, and the next host on the ring has reported the same, its leader reports it to the
// previous host (FRAME_RUN, RUN_JOINED): from the last host towards host 0. A collective whose
// report arrives at host 0 is joined on all hosts. The leader of host 0 appends its run and
// announces it (FRAME_RUN, RUN_RUNS) in the other direction, and each leader appends announced runs
// in the order of their arrival. Links keep the order of frames, so all hosts have one order of
// runs, and runs contain only collectives that every rank has launched. The lowest run that is not
// done waits only for its own pieces, a piece only for its copies and its inner allreduces, and
// these are launched on all hosts and cannot deadlock (worker/transport/ring/ring.c). Engine
// thread.

#include "worker/transport/host/two_level.h"

#include "worker/transport/flow/flow.h"
#include "worker/transport/host/host.h"
#include "worker/transport/host/pieces.h"
#include "worker/transport/host/sequence.h"

#include "base/hash64.h"
#include "worker/kernels/kernels.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

// Most bytes of a part, which is the input of one inner allreduce, and of a piece. Between two
// hosts with two ranks each, parts of 64 KiB cost one and a half times the processor time.
#define TWO_LEVEL_PART_BYTES (256 * 1024)
#define TWO_LEVEL_PIECE_BYTES (1024 * 1024)
#define TWO_LEVEL_PART_ALIGN 4096
#define TWO_LEVEL_ELEMENTS (TWO_LEVEL_PART_BYTES / sizeof(float)) // Most 16-bit elements of a part.
#define TWO_LEVEL_BLOCK 1024 // Elements that are converted to float32 at once.

static_assert(BOARD_SLOTS <= LOCKSTEP_EARLY_PIECES, "a host is so many pieces ahead at most");

enum run_news {
    // All ranks of the sender's host, and of all later hosts, have joined this collective.
    RUN_JOINED = 1,
    RUN_RUNS = 2, // This collective is the next run.
};

// The inner allreduce, between hosts, of one seat's part of one piece.
struct inner {
    struct collective collective;
    struct extent extent;
    uint64_t used[BOARD_WIDE_WORDS];
    uint64_t *unit_ends; // [LOCKSTEP_BUCKET_PARAMETERS]
    struct unit_range units; // The units of the outer collective that the part meets.
    struct flow *outer;
    uint64_t piece;
    bool settled; // True if the part is final, or this rank has no part of the piece.
};

struct two_level {
    uint32_t rings;
    // Number of pieces whose part of this rank is final, or that have no part of this rank.
    uint64_t published;
    struct inner inner[BOARD_SLOTS]; // By slot.
    uint16_t narrow[TWO_LEVEL_ELEMENTS];
    uint64_t ends[BOARD_SLOTS][LOCKSTEP_BUCKET_PARAMETERS];
};

int two_level_begin(struct shared *shared)
{
    const struct locality *locality = &shared->flows->world.locality;
    if (locality->hosts < 2)
        return 0;
    shared->two_level = calloc(1, sizeof(*shared->two_level));
    if (!shared->two_level)
        return -1;
    shared->two_level->rings = locality->rings;
    for (uint32_t i = 0; i < BOARD_SLOTS; i++)
        shared->two_level->inner[i].unit_ends = shared->two_level->ends[i];
    return 0;
}

void two_level_end(struct shared *shared)
{
    free(shared->two_level);
    shared->two_level = NULL;
}

// ---- one order on all hosts ---------------------------------------------------------------------

static void two_level_say(struct shared *shared, struct peer_link *peer, enum run_news news,
                          const struct match *match)
{
    struct flows *flows = shared->flows;
    const struct frame_header header = {
        .kind = FRAME_RUN,
        .generation = flows->world.generation,
        .step = match->tag.step,
        .space = match->tag.space,
        .slot = match->tag.slot,
        .part = (uint32_t)news,
        .chunk = flows->world.rank,
        .weight = match->shape,
        .signature = match->signature,
    };
    struct out_frame *frame = flows_frame(flows, &header);
    if (frame)
        stream_queue(&peer->stream, frame);
    else
        peer_lose(peer, peer_no_memory);
}

void two_level_joined(struct shared *shared, struct match *match)
{
    const struct locality *locality = &shared->flows->world.locality;
    const struct ring_group *hosts = &shared->flows->hosts;
    const bool last = locality->host == locality->hosts - 1;
    if (match->count < shared->seats || match->told || (!last && !match->heard))
        return;
    match->foreign =
        !last && (match->heard_signature != match->signature || match->heard_shape != match->shape);
    match->told = true;
    if (match->foreign || locality->host == 0)
        list_push_back(&shared->sequence.ready, &match->ready);
    else
        two_level_say(shared, hosts->predecessor, RUN_JOINED, match);
}

void two_level_appended(struct shared *shared, const struct match *match)
{
    const struct locality *locality = &shared->flows->world.locality;
    if (locality->host < locality->hosts - 1)
        two_level_say(shared, shared->flows->hosts.successor, RUN_RUNS, match);
}

static const char *two_level_hear_joined(struct shared *shared, const struct frame_header *header,
                                         struct match *match)
{
    const struct locality *locality = &shared->flows->world.locality;
    if (locality->host == locality->hosts - 1)
        return "there is no host behind the last one";
    if (match->heard)
        return "it comes twice";
    match->heard = true;
    match->heard_signature = header->signature;
    match->heard_shape = header->weight;
    two_level_joined(shared, match);
    return NULL;
}

static const char *two_level_hear_runs(struct shared *shared, struct match *match)
{
    if (shared->flows->world.locality.host == 0 || !match->told || match->foreign ||
        !list_empty(&match->ready))
        return "it runs what is not joined";
    list_push_back(&shared->sequence.ready, &match->ready);
    return NULL;
}

const char *two_level_hear(struct peer_link *peer, const struct frame_header *header)
{
    struct flows *flows = peer->flows;
    struct shared *shared = flows->shared;
    const struct collective_tag tag = {header->step, header->space, header->slot};
    if (!shared || !shared->two_level || shared->seat != 0)
        return "this rank leads no host";
    const bool joined = header->part == RUN_JOINED;
    if (!joined && header->part != RUN_RUNS)
        return "it says nothing that is known";
    if (header->chunk != peer->rank)
        return "it is of another rank";
    if (peer != (joined ? flows->hosts.successor : flows->hosts.predecessor))
        return "it comes from another host than the neighbour";
    struct match *match = sequence_find(&shared->sequence, &tag);
    if (!match && joined)
        match = sequence_expect(&shared->sequence, &tag);
    if (!match)
        return joined ? "it is of a collective too far ahead" : "it runs what is not joined";
    return joined ? two_level_hear_joined(shared, header, match)
                  : two_level_hear_runs(shared, match);
}

bool two_level_needs(struct shared *shared, const struct peer_link *peer)
{
    const struct ring_group *hosts = &shared->flows->hosts;
    if (!shared->two_level || hosts->size == 0 ||
        (peer != hosts->predecessor && peer != hosts->successor))
        return false;
    if (!list_empty(&shared->waiting) || shared->reduce.piece < shared->pieces)
        return true;
    for (uint32_t i = 0; i < BOARD_RECORDS; i++) {
        if (shared->joined[i])
            return true;
    }
    return false;
}

// ---- cutting ------------------------------------------------------------------------------------

static bool two_level_widens(const struct flow *flow)
{
    return dtype_is_small(flow->collective->dtype);
}

uint32_t two_level_rings(const struct shared *shared)
{
    return shared->two_level->rings;
}

static uint64_t two_level_part_bytes(const struct shared *shared)
{
    const uint64_t share = TWO_LEVEL_PIECE_BYTES / shared->two_level->rings / TWO_LEVEL_PART_ALIGN *
                           TWO_LEVEL_PART_ALIGN;
    return share < TWO_LEVEL_PART_BYTES ? share : TWO_LEVEL_PART_BYTES;
}

uint64_t two_level_piece_bytes(const struct shared *shared, const struct flow *flow)
{
    const uint64_t factor = two_level_widens(flow) ? sizeof(float) / sizeof(uint16_t) : 1;
    return two_level_part_bytes(shared) * shared->two_level->rings / factor;
}

uint64_t two_level_slot_bytes(const struct shared *shared)
{
    return two_level_part_bytes(shared) * (shared->two_level->rings + 1);
}

static uint8_t *two_level_result(const struct shared *shared, uint32_t seat, uint64_t piece)
{
    return board_slot(&shared->board, seat, piece) +
           two_level_part_bytes(shared) * shared->two_level->rings;
}

// ---- the sum of a host --------------------------------------------------------------------------

// sum = the sum of the sources in float32, in the order of the seats; zeros without a source.
static void two_level_sum_wide(const struct flow *flow, const struct host_run *run, uint32_t seats,
                               const void *const *sources, uint64_t at, uint64_t count, float *sum)
{
    const struct collective *collective = flow->collective;
    bool begun = false;
    for (uint32_t i = 0; i < seats; i++) {
        float own[TWO_LEVEL_BLOCK];
        const uint16_t *source = sources[i];
        if (!source)
            continue;
        if ((const void *)source != extent_zeros)
            source += at;
        kernel_widen(collective->dtype, own, source, count);
        if (!begun && run->factors[i] > 1)
            kernel_scale(DTYPE_FLOAT32, sum, own, run->factors[i], count);
        else if (!begun)
            memcpy(sum, own, count * sizeof(*sum));
        else if (run->factors[i] > 1)
            kernel_add_weighted(DTYPE_FLOAT32, sum, own, run->factors[i], count);
        else
            kernel_reduce(DTYPE_FLOAT32, collective->op, sum, own, count);
        begun = true;
    }
    if (!begun)
        memset(sum, 0, count * sizeof(*sum));
}

static void two_level_widen(const struct flow *flow, const struct host_run *run, uint32_t seats,
                            const void *const *sources, uint64_t count, float *out)
{
    for (uint64_t at = 0; at < count; at += TWO_LEVEL_BLOCK) {
        const uint64_t most = count - at < TWO_LEVEL_BLOCK ? count - at : TWO_LEVEL_BLOCK;
        two_level_sum_wide(flow, run, seats, sources, at, most, out + at);
    }
}

// Sums a part over the seats of this host. This rank's inputs may be in many runs of memory; those
// of the others are contiguous.
static void two_level_sum(const struct shared *shared, const struct host_run *run, uint64_t piece,
                          struct ring_span whole, struct ring_span part)
{
    const struct flow *flow = run->flow;
    const uint32_t element = flow->map.element_bytes;
    const uint32_t width = two_level_widens(flow) ? sizeof(float) : element;
    uint8_t *out = two_level_result(shared, shared->seat, piece);
    struct extent_cursor cursor = extent_seek(&flow->map, part.first);
    while (part.count > 0) {
        const void *sources[LOCKSTEP_MAX_MATES];
        uint8_t *in = NULL;
        const uint64_t most = (uint64_t)EXTENT_ZERO_BYTES / element;
        const uint64_t want = part.count < most ? part.count : most;
        const uint64_t count = extent_run(&cursor, EXTENT_IN, want * element, &in) / element;
        for (uint32_t i = 0; i < shared->seats; i++)
            sources[i] =
                run->factors[i] > 0 ? pieces_place(shared, flow, i, piece, whole, part) : NULL;
        if (run->factors[shared->seat] > 0)
            sources[shared->seat] = in ? in : extent_zeros;
        if (two_level_widens(flow))
            two_level_widen(flow, run, shared->seats, sources, count, (float *)(void *)out);
        else
            pieces_combine(flow, run, out, sources, shared->seats, count);
        out += count * width;
        part.first += count;
        part.count -= count;
    }
}

// ---- between hosts ------------------------------------------------------------------------------

// Sets the units and used bits of an inner allreduce, counted from the first element of its part.
static void inner_units(struct inner *inner, const struct collective *outer, struct ring_span part)
{
    inner->units = units_met(outer->unit_ends, outer->unit_count, part);
    memset(inner->used, 0, units_words(inner->units.count) * sizeof(inner->used[0]));
    for (uint32_t i = 0; i < inner->units.count; i++) {
        const uint32_t unit = inner->units.first + i;
        const uint64_t end = outer->unit_ends[unit] - part.first;
        inner->unit_ends[i] = end < part.count ? end : part.count;
        if (units_is_used(outer->used, unit))
            units_set_used(inner->used, i);
    }
}

// Sets the dtypes in the frames of an inner allreduce: those that the ranks would use without two
// levels.
static void inner_formats(struct collective *inner, const struct collective *outer)
{
    inner->dtype = outer->dtype;
    inner->partial = outer->partial;
    inner->final = outer->final;
    if (!dtype_is_small(outer->dtype))
        return;
    inner->dtype = DTYPE_FLOAT32;
    inner->partial = inner->final = DTYPE_NONE;
    if (outer->op != REDUCE_SUM && outer->op != REDUCE_MEAN)
        return;
    if (outer->partial != DTYPE_FLOAT32)
        inner->partial = outer->dtype;
    inner->final = outer->dtype;
    inner->exponent = outer->exponent;
}

// True if some rank of this host contributes to its sum, even with a total weight of 0.
static bool inner_counts(const struct shared *shared, const struct host_run *run)
{
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (run->factors[i] > 0)
            return true;
    }
    return false;
}

static void inner_launch(struct shared *shared, struct host_run *run, uint64_t piece,
                         struct ring_span part)
{
    const struct collective *outer = run->flow->collective;
    struct inner *inner = &shared->two_level->inner[piece % BOARD_SLOTS];
    const uint64_t space[] = {outer->tag.space, outer->tag.slot, 2};
    const uint64_t signature[] = {outer->signature, part.first, part.count};
    uint8_t *memory = two_level_result(shared, shared->seat, piece);
    inner->piece = piece;
    inner->outer = run->flow;
    inner->settled = false;
    inner->extent = (struct extent){.in = memory, .out = memory, .elements = part.count};
    inner_units(inner, outer, part);
    inner->collective = (struct collective){
        .kind = COLLECTIVE_ALLREDUCE,
        .op = outer->op,
        .algorithm = ALGORITHM_RING,
        .tag = {outer->tag.step, hash64(space, sizeof(space)), (uint32_t)(piece - run->first)},
        .signature = hash64(signature, sizeof(signature)),
        .extents = &inner->extent,
        .extent_count = 1,
        .elements = part.count,
        .weight = run->weight,
        .input_is_sum = true,
        .input_counts = inner_counts(shared, run),
        .unit_ends = inner->units.count > 0 ? inner->unit_ends : NULL,
        .unit_count = inner->units.count,
        .used = inner->used,
        .context = inner,
    };
    inner_formats(&inner->collective, outer);
    flow_launch_between_hosts(shared->flows, &inner->collective);
}

// Publishes the pieces whose part is final, in the order of pieces.
static void two_level_publish(struct shared *shared)
{
    struct two_level *two_level = shared->two_level;
    const uint64_t before = two_level->published;
    while (two_level->published < shared->reduce.piece &&
           two_level->inner[two_level->published % BOARD_SLOTS].settled)
        two_level->published++;
    if (two_level->published == before)
        return;
    board_publish(&host_seat(shared, shared->seat)->reduced, two_level->published);
    host_tell(shared);
}

void two_level_reduce(struct shared *shared, struct host_run *run, uint64_t piece)
{
    struct two_level *two_level = shared->two_level;
    const struct ring_span whole = pieces_span(run->flow, run, piece);
    const struct ring_span part = pieces_part(whole, two_level->rings, shared->seat);
    struct inner *inner = &two_level->inner[piece % BOARD_SLOTS];
    inner->settled = true;
    if (shared->seat < two_level->rings && part.count > 0) {
        two_level_sum(shared, run, piece, whole, part);
        inner_launch(shared, run, piece, part);
    }
    two_level_publish(shared);
}

struct collective *two_level_outer(struct flows *flows, struct collective *collective)
{
    const struct two_level *two_level = flows->shared ? flows->shared->two_level : NULL;
    for (uint32_t i = 0; two_level && i < BOARD_SLOTS; i++) {
        if (collective == &two_level->inner[i].collective)
            return two_level->inner[i].outer->collective;
    }
    return NULL;
}

void two_level_done(struct flows *flows, struct collective *collective)
{
    struct shared *shared = flows->shared;
    struct inner *inner = collective->context;
    struct board_final *final = &host_seat(shared, shared->seat)->final[inner->piece % BOARD_SLOTS];
    final->weight = collective->weight_total;
    if (inner->units.count > 0) {
        const uint32_t first = inner->units.first / 64;
        const uint32_t end = units_words(inner->units.first + inner->units.count);
        memset(&final->used[first], 0, (end - first) * sizeof(final->used[0]));
    }
    for (uint32_t i = 0; i < inner->units.count; i++) {
        if (units_is_used(inner->used, i))
            units_set_used(final->used, inner->units.first + i);
    }
    inner->settled = true;
    two_level_publish(shared);
}

// ---- back to the ranks --------------------------------------------------------------------------

static void two_level_store(struct shared *shared, const struct flow *flow, struct ring_span part,
                            const uint8_t *bytes)
{
    if (two_level_widens(flow)) {
        uint16_t *narrow = shared->two_level->narrow;
        kernel_narrow(flow->collective->dtype, narrow, (const float *)(const void *)bytes,
                      part.count);
        bytes = (const uint8_t *)narrow;
    }
    pieces_store(shared, flow, part, bytes);
}

void two_level_copy_out(struct shared *shared, struct host_run *run, uint64_t piece)
{
    const struct flow *flow = run->flow;
    struct collective *collective = flow->collective;
    const struct ring_span whole = pieces_span(flow, run, piece);
    for (uint32_t i = 0; i < shared->two_level->rings; i++) {
        const struct ring_span part = pieces_part(whole, shared->two_level->rings, i);
        const struct board_final *final = &host_seat(shared, i)->final[piece % BOARD_SLOTS];
        const struct unit_range met =
            units_met(collective->unit_ends, collective->unit_count, part);
        if (part.count == 0)
            continue;
        for (uint32_t unit = met.first; unit < met.first + met.count; unit++) {
            if (units_is_used(final->used, unit))
                units_set_used(collective->used, unit);
        }
        run->total = board_long(&final->weight);
        if (run->total > LOCKSTEP_MAX_WEIGHT_SUM) {
            host_impossible(shared, i, "gave a result of more weight than all ranks can have");
            return;
        }
        if (collective->op == REDUCE_MEAN && run->total == 0)
            continue;
        two_level_store(shared, flow, part, two_level_result(shared, i, piece));
    }
}
