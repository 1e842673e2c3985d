// SPDX-License-Identifier: Apache-2.0
//
// Runs of collectives through the slots of the board. A run is cut into pieces of at most a slot, a
// piece into as many *parts* as there are seats; part s belongs to seat s. Every seat does the same
// with every piece, in three stages that each go through the pieces in order:
//
//   copy in    its inputs to the parts of the others, into its own slot
//   reduce     its own part: its input in user memory and what lies in the slots of the others, in
//              the order of the seats. The final bytes go to its own slot, where its own input
//              would have been, and from there to its own user memory
//   copy out   the parts of the others, final, from their slots to user memory
//
// A stage of a piece waits for the stage before it on all seats. Copying in also waits for the
// slot, until all seats have copied out its previous piece, and for elements of this rank that have
// not landed on the host yet, which depend on no other seat. So there are as many pieces in flight
// as slots, and while one seat copies a piece, another one reduces the next. There are no locks,
// and a seat waits for readers only to reuse a slot. No function waits here: work that is not
// possible yet is tried again when the board has changed.
//
// Progress: the lowest piece that some seat has not copied out has its slot, so every seat copies
// it in, then reduces it, then copies it out. It waits only for its own stages.
//
// Partial sums exist in registers and slots only. Only its own rank writes user memory, and only
// with final bytes: if a rank dies, the memory of the others is intact or final.
//
// Sums are always in the order of the seats, so how a run is cut does not change the bits. A rank
// of weight 0 is skipped. If a contributing rank has no input, seat 0 adds +0, and the other seats
// add -0 in floating-point sums, which changes no number. 16-bit floats are added in float32 and
// rounded once. Sums that other ways send as bfloat16 are rounded to it once, and keep the dtype of
// memory.
//
// Rows of collectives of parts (moves.c) are one piece: each rank copies in its row, and copies out
// what is for it.
//
// With two levels the hosts reduce their sums between the stages "reduce" and "copy out":
// two_level.c.
//
// Cost of E bytes with n seats: (n - 1) / n E copied in, E read and E / n written to reduce, E
// written to user memory; slots stay in the cache. Engine thread.

#include "worker/transport/host/pieces.h"

#include "worker/kernels/combine.h"
#include "worker/transport/flow/reduce.h"
#include "worker/transport/host/fill.h"
#include "worker/transport/host/host.h"
#include "worker/transport/host/moves.h"
#include "worker/transport/host/two_level.h"

#include "base/clock.h"
#include "worker/kernels/kernels.h"

#include <assert.h>
#include <string.h>

#define PIECES_ALIGN 64 // Elements: parts begin at whole cache lines.

static bool pieces_reduces(const struct flow *flow)
{
    return flow->collective->kind == COLLECTIVE_ALLREDUCE;
}

// ---- arithmetic ---------------------------------------------------------------------------------

struct kernel_combination pieces_combination(const struct flow *flow, const struct host_run *run,
                                             const void *const *sources, uint32_t count)
{
    const struct collective *collective = flow->collective;
    return (struct kernel_combination){
        .dtype = collective->dtype,
        .op = collective->op,
        .count = count,
        .sources = sources,
        .weights = run->scales ? run->factors : NULL,
        .total = collective->op == REDUCE_MEAN && !run->partial ? run->weight : 1,
        .rounded =
            collective->dtype == DTYPE_FLOAT32 && !run->partial ? collective->final : DTYPE_NONE,
    };
}

void pieces_combine(const struct flow *flow, const struct host_run *run, void *out,
                    const void *const *sources, uint32_t count, uint64_t elements)
{
    const struct kernel_combination what = pieces_combination(flow, run, sources, count);
    kernel_combine(&what, out, elements);
}

// ---- cutting ------------------------------------------------------------------------------------

// Number of parts of a piece: one for each seat, or one for each ring between hosts.
static uint32_t pieces_parts(const struct shared *shared)
{
    return shared->two_level ? two_level_rings(shared) : shared->seats;
}

void pieces_cut(const struct shared *shared, struct host_run *run, const struct flow *flow)
{
    const uint64_t elements = host_elements(flow->collective);
    const uint64_t slot =
        run->partial ? two_level_piece_bytes(shared, flow) : shared->board.slot_bytes;
    const uint64_t unit =
        pieces_reduces(flow) ? (uint64_t)PIECES_ALIGN * pieces_parts(shared) : PIECES_ALIGN;
    // Rounded down to whole parts, so that parts that are rounded up also fit.
    const uint64_t most = slot / flow->map.element_bytes / unit * unit;
    run->pieces = (elements + most - 1) / most;
    run->piece_elements = elements;
    if (run->pieces > 1) {
        const uint64_t even = (elements + run->pieces - 1) / run->pieces;
        run->piece_elements = (even + unit - 1) / unit * unit;
        run->pieces = (elements + run->piece_elements - 1) / run->piece_elements;
    }
}

struct ring_span pieces_span(const struct flow *flow, const struct host_run *run, uint64_t piece)
{
    const uint64_t first = (piece - run->first) * run->piece_elements;
    const uint64_t left = flow->collective->elements - first;
    return (struct ring_span){first, left < run->piece_elements ? left : run->piece_elements};
}

struct ring_span pieces_part(struct ring_span whole, uint32_t seats, uint32_t seat)
{
    uint64_t most = (whole.count + seats - 1) / seats;
    most = (most + PIECES_ALIGN - 1) / PIECES_ALIGN * PIECES_ALIGN;
    const uint64_t begin = most * seat < whole.count ? most * seat : whole.count;
    const uint64_t end = begin + most < whole.count ? begin + most : whole.count;
    return (struct ring_span){whole.first + begin, end - begin};
}

static struct ring_span pieces_before(struct ring_span piece, struct ring_span part)
{
    return (struct ring_span){piece.first, part.first - piece.first};
}

static struct ring_span pieces_behind(struct ring_span piece, struct ring_span part)
{
    const uint64_t end = part.first + part.count;
    return (struct ring_span){end, piece.first + piece.count - end};
}

uint8_t *pieces_place(const struct shared *shared, const struct flow *flow, uint32_t seat,
                      uint64_t piece, struct ring_span whole, struct ring_span part)
{
    return board_slot(&shared->board, seat, piece) +
           (part.first - whole.first) * flow->map.element_bytes;
}

// True if no rank has used a unit of the span: then its elements are not copied, and memory stays
// as it is.
static bool pieces_is_unused(const struct flow *flow, struct ring_span span)
{
    const struct collective *collective = flow->collective;
    return units_usage(collective->used, units_met(collective->unit_ends, collective->unit_count,
                                                   span)) == USAGE_NONE;
}

// ---- stages -------------------------------------------------------------------------------------

// Fills memory with the value that stands for a missing input: +0, or -0 in floating-point sums
// unless this is the first operand.
static void pieces_fill(const struct flow *flow, bool begins, uint8_t *bytes, uint64_t count)
{
    const struct collective *collective = flow->collective;
    const size_t size = flow->map.element_bytes;
    memset(bytes, 0, count);
    if (begins || !dtype_is_float(collective->dtype) ||
        (collective->op != REDUCE_SUM && collective->op != REDUCE_MEAN))
        return;
    for (uint64_t at = size - 1; at < count; at += size)
        bytes[at] = 0x80;
}

void pieces_gather(const struct shared *shared, const struct flow *flow, struct ring_span span,
                   uint8_t *bytes, bool streams)
{
    if (span.count == 0)
        return;
    struct extent_cursor cursor = extent_seek(&flow->map, span.first);
    uint64_t left = span.count * flow->map.element_bytes;
    while (left > 0) {
        uint8_t *in = NULL;
        const uint64_t run = extent_run(&cursor, EXTENT_IN, left, &in);
        if (in && streams)
            kernel_stream(bytes, in, run);
        else if (in)
            memcpy(bytes, in, run);
        else
            pieces_fill(flow, shared->seat == 0 || !pieces_reduces(flow), bytes, run);
        bytes += run;
        left -= run;
    }
    if (streams)
        kernel_stream_end();
}

static void pieces_copy_in(struct shared *shared, struct host_run *run, uint64_t piece)
{
    const struct flow *flow = run->flow;
    struct collective *collective = flow->collective;
    const struct ring_span whole = pieces_span(flow, run, piece);
    if (collective->first_sent_us == 0)
        collective->first_sent_us = clock_now_us();
    uint64_t copied = 0;
    if (host_moves(collective)) {
        moves_fill(shared, collective, board_slot(&shared->board, shared->seat, piece));
        copied = host_elements(collective);
    } else if (!pieces_reduces(flow)) {
        if (collective->root == shared->flows->world.rank) {
            pieces_gather(shared, flow, whole, board_slot(&shared->board, shared->seat, piece),
                          run->streams);
            copied = whole.count;
        }
    } else if (run->factors[shared->seat] > 0 && (run->partial || !pieces_is_unused(flow, whole))) {
        const struct ring_span own = pieces_part(whole, pieces_parts(shared), shared->seat);
        const struct ring_span before = pieces_before(whole, own);
        const struct ring_span behind = pieces_behind(whole, own);
        pieces_gather(shared, flow, before,
                      pieces_place(shared, flow, shared->seat, piece, whole, before), run->streams);
        pieces_gather(shared, flow, behind,
                      pieces_place(shared, flow, shared->seat, piece, whole, behind), run->streams);
        copied = before.count + behind.count;
    }
    shared->flows->totals.payload_bytes_sent += copied * flow->map.element_bytes;
}

// Sets sources[] to the inputs in the slots of all seats. The caller replaces this rank's own.
static void pieces_sources(const struct shared *shared, const struct host_run *run, uint64_t piece,
                           struct ring_span whole, struct ring_span part, const void **sources)
{
    for (uint32_t i = 0; i < shared->seats; i++)
        sources[i] =
            run->factors[i] > 0 ? pieces_place(shared, run->flow, i, piece, whole, part) : NULL;
}

// Reduces `part` into out. This rank's inputs may be in many runs of memory; those of the others
// are contiguous.
static void pieces_reduce_part(const struct shared *shared, const struct host_run *run,
                               uint64_t piece, struct ring_span whole, struct ring_span part,
                               uint8_t *out)
{
    const struct flow *flow = run->flow;
    const uint32_t element = flow->map.element_bytes;
    const void *sources[LOCKSTEP_MAX_MATES];
    struct extent_cursor cursor = extent_seek(&flow->map, part.first);
    while (part.count > 0) {
        uint8_t *in = NULL;
        const uint64_t count = extent_run(&cursor, EXTENT_IN, part.count * element, &in) / element;
        pieces_sources(shared, run, piece, whole, part, sources);
        if (!in)
            pieces_fill(flow, shared->seat == 0, out, count * element);
        if (run->factors[shared->seat] > 0)
            sources[shared->seat] = in ? in : out;
        pieces_combine(flow, run, out, sources, shared->seats, count);
        out += count * element;
        part.first += count;
        part.count -= count;
    }
}

void pieces_store(struct shared *shared, const struct flow *flow, struct ring_span span,
                  const uint8_t *bytes)
{
    if (span.count == 0)
        return;
    reduce_store(flow, span, bytes);
    shared->flows->totals.bytes_copied += span.count * flow->map.element_bytes;
}

// Reduces one block, and stores it to user memory while it is in the first cache. If the slot is
// filled past the caches, the block is summed outside the slot first. Returns its number of
// elements.
static uint64_t pieces_reduce_block(struct shared *shared, const struct host_run *run,
                                    uint64_t piece, struct ring_span whole, struct ring_span rest)
{
    _Alignas(BOARD_LINE) uint8_t beside[BOARD_BLOCK_BYTES];
    const uint32_t element = run->flow->map.element_bytes;
    const uint64_t most = BOARD_BLOCK_BYTES / element;
    const struct ring_span block = {rest.first, rest.count < most ? rest.count : most};
    uint8_t *slot = pieces_place(shared, run->flow, shared->seat, piece, whole, block);
    uint8_t *sum = run->streams ? beside : slot;
    pieces_reduce_part(shared, run, piece, whole, block, sum);
    if (run->streams)
        kernel_copy(slot, sum, block.count * element, true);
    pieces_store(shared, run->flow, block, sum);
    return block.count;
}

// Reduces the first run of contiguous memory of a span directly to the slot, past the caches, and
// to user memory in the same loop. Returns its number of elements; 0: not possible (unused units,
// missing memory, or short runs), so pieces_reduce_block must do it.
static uint64_t pieces_reduce_run(struct shared *shared, const struct host_run *run, uint64_t piece,
                                  struct ring_span whole, struct ring_span rest)
{
    const struct flow *flow = run->flow;
    const struct collective *collective = flow->collective;
    const uint32_t element = flow->map.element_bytes;
    const void *sources[LOCKSTEP_MAX_MATES];
    struct extent_cursor ins = extent_seek(&flow->map, rest.first);
    struct extent_cursor outs = ins;
    uint8_t *in = NULL;
    uint8_t *out = NULL;
    const uint64_t bytes = extent_run(&ins, EXTENT_IN, rest.count * element, &in);
    const struct ring_span span = {rest.first, bytes / element};
    // The output is in the same extent, so its run has the same length.
    (void)extent_run(&outs, EXTENT_OUT, bytes, &out);
    const bool small = bytes < BOARD_BLOCK_BYTES && span.count < rest.count;
    if (!in || !out || small ||
        units_usage(collective->used,
                    units_met(collective->unit_ends, collective->unit_count, span)) != USAGE_ALL)
        return 0;
    pieces_sources(shared, run, piece, whole, span, sources);
    if (run->factors[shared->seat] > 0)
        sources[shared->seat] = in;
    struct kernel_combination what = pieces_combination(flow, run, sources, shared->seats);
    what.streams = true;
    what.also = out;
    kernel_combine(&what, pieces_place(shared, flow, shared->seat, piece, whole, span), span.count);
    shared->flows->totals.bytes_copied += bytes;
    return span.count;
}

static void pieces_reduce(struct shared *shared, struct host_run *run, uint64_t piece)
{
    const struct flow *flow = run->flow;
    const uint32_t element = flow->map.element_bytes;
    const struct ring_span whole = pieces_span(flow, run, piece);
    const struct ring_span part = pieces_part(whole, shared->seats, shared->seat);
    if (!pieces_reduces(flow) || pieces_is_unused(flow, whole))
        return;
    for (struct ring_span rest = part; rest.count > 0;) {
        uint64_t count = run->streams ? pieces_reduce_run(shared, run, piece, whole, rest) : 0;
        if (count == 0)
            count = pieces_reduce_block(shared, run, piece, whole, rest);
        rest.first += count;
        rest.count -= count;
    }
    shared->flows->totals.payload_bytes_sent += part.count * element;
}

static void pieces_finish_rows(struct shared *shared, const struct host_run *run, uint64_t piece)
{
    const void *rows[LOCKSTEP_MAX_MATES];
    for (uint32_t i = 0; i < shared->seats; i++)
        rows[i] = run->factors[i] > 0 ? board_slot(&shared->board, i, piece) : NULL;
    moves_keep(shared, run->flow->collective);
    moves_finish(shared, run->flow->collective, rows, run->scales ? run->factors : NULL,
                 run->weight);
}

static void pieces_copy_out(struct shared *shared, const struct host_run *run, uint64_t piece)
{
    const struct flow *flow = run->flow;
    const struct ring_span whole = pieces_span(flow, run, piece);
    if (host_moves(flow->collective)) {
        pieces_finish_rows(shared, run, piece);
        return;
    }
    if (!pieces_reduces(flow)) {
        if (flow->collective->root != shared->flows->world.rank)
            pieces_store(
                shared, flow, whole,
                board_slot(&shared->board, host_seat_of(shared, flow->collective->root), piece));
        return;
    }
    if (pieces_is_unused(flow, whole))
        return;
    for (uint32_t i = 1; i < shared->seats; i++) {
        const uint32_t seat = (shared->seat + i) % shared->seats;
        const struct ring_span part = pieces_part(whole, shared->seats, seat);
        pieces_store(shared, flow, part, pieces_place(shared, flow, seat, piece, whole, part));
    }
}

// ---- the pipeline -------------------------------------------------------------------------------

// Returns the number of the run that has the next piece of a stage. runs_seen: no run that this
// rank has seen has it.
static uint64_t pieces_seek(const struct shared *shared, const struct host_cursor *cursor)
{
    uint64_t at = cursor->run < shared->runs_done ? shared->runs_done : cursor->run;
    for (; at < shared->runs_seen; at++) {
        const struct host_run *run = &shared->runs[at % BOARD_RUNS];
        if (cursor->piece < run->first + run->pieces)
            break;
    }
    return at;
}

// Returns the run of the next piece of a stage. The piece must exist.
static struct host_run *pieces_next(struct shared *shared, struct host_cursor *cursor)
{
    cursor->run = pieces_seek(shared, cursor);
    return host_run(shared, cursor->run);
}

static bool pieces_all_reach(const struct shared *shared, size_t counter, uint64_t least)
{
    for (uint32_t i = 0; i < shared->seats; i++) {
        const struct board_seat *seat = host_seat(shared, i);
        if (board_read((const struct board_counter *)((const char *)seat + counter)) < least)
            return false;
    }
    return true;
}

// True if this rank's elements of the next piece to be copied in have landed.
static bool pieces_have_landed(const struct shared *shared)
{
    const struct host_run *run = &shared->runs[pieces_seek(shared, &shared->in) % BOARD_RUNS];
    const struct ring_span span = pieces_span(run->flow, run, shared->in.piece);
    return span.first + span.count <= flow_landed_elements(run->flow);
}

// True if the stage may take its next piece.
static bool pieces_may_copy_in(const struct shared *shared)
{
    const uint64_t piece = shared->in.piece;
    return piece < shared->pieces &&
           (piece < BOARD_SLOTS || pieces_all_reach(shared, offsetof(struct board_seat, copied_out),
                                                    piece - BOARD_SLOTS + 1)) &&
           pieces_have_landed(shared);
}

static bool pieces_may_reduce(const struct shared *shared)
{
    const uint64_t piece = shared->reduce.piece;
    return piece < shared->in.piece &&
           pieces_all_reach(shared, offsetof(struct board_seat, copied_in), piece + 1);
}

static bool pieces_may_copy_out(const struct shared *shared)
{
    const uint64_t piece = shared->out.piece;
    return piece < shared->reduce.piece &&
           pieces_all_reach(shared, offsetof(struct board_seat, reduced), piece + 1);
}

static void pieces_step_in(struct shared *shared)
{
    struct host_run *run = pieces_next(shared, &shared->in);
    const uint64_t since_ns = fill_begin(run);
    pieces_copy_in(shared, run, shared->in.piece++);
    fill_end(run, since_ns);
    board_publish(&host_seat(shared, shared->seat)->copied_in, shared->in.piece);
    host_tell(shared);
}

static void pieces_step_reduce(struct shared *shared)
{
    struct host_run *run = pieces_next(shared, &shared->reduce);
    const uint64_t piece = shared->reduce.piece++;
    const uint64_t since_ns = fill_begin(run);
    if (run->partial)
        two_level_reduce(shared, run, piece);
    else
        pieces_reduce(shared, run, piece);
    fill_end(run, since_ns);
    if (run->partial)
        return;
    // The final bytes of this rank's part are in its slot, and mates may read them.
    board_publish(&host_seat(shared, shared->seat)->reduced, piece + 1);
    host_tell(shared);
}

static void pieces_step_out(struct shared *shared)
{
    struct host_run *run = pieces_next(shared, &shared->out);
    const uint64_t piece = shared->out.piece++;
    const struct ring_span span = pieces_span(run->flow, run, piece);
    const uint64_t since_ns = fill_begin(run);
    if (run->partial)
        two_level_copy_out(shared, run, piece);
    else
        pieces_copy_out(shared, run, piece);
    fill_end(run, since_ns);
    run->flow->final_elements = span.first + span.count;
    board_publish(&host_seat(shared, shared->seat)->copied_out, shared->out.piece);
    if (shared->out.piece == run->first + run->pieces)
        host_run_done(shared, run);
    host_tell(shared);
}

bool pieces_work(struct shared *shared)
{
    bool any = false;
    if (pieces_may_reduce(shared)) {
        pieces_step_reduce(shared);
        any = true;
    }
    if (pieces_may_copy_out(shared)) {
        pieces_step_out(shared);
        any = true;
    }
    if (pieces_may_copy_in(shared)) {
        pieces_step_in(shared);
        any = true;
    }
    return any;
}

bool pieces_pending(const struct shared *shared)
{
    return pieces_may_reduce(shared) || pieces_may_copy_out(shared) || pieces_may_copy_in(shared);
}
