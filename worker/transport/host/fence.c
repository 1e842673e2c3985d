// SPDX-License-Identifier: Apache-2.0
//
// When a rank returns its memory to the trainer while a registered run is unfinished (a mate has
// died), or tells which elements are final, no mate may write to that memory any more.
//
// Revoking. An owner sets `writing` before some blocks, then checks `revoked` of all ranks; a rank
// that makes the fence sets `revoked`, then waits until no mate has `writing` set. Both words are
// stored and loaded with sequential consistency, so the side whose store is second sees the other
// store. If the owner's store is first, this rank sees `writing` and waits for the end of those
// blocks; otherwise the owner sees `revoked` and writes nothing. So a mate that is stopped outside
// of its blocks, and wakes long after it was excluded, writes nothing either.
//
// Dead mates. This rank does not wait for a mate whose link has ended: the kernel closes the
// descriptors of a process after no thread of it has memory, and a living process closes a link
// between two blocks.
//
// Isolating. The wait is bounded, because a mate may be stopped inside of its blocks. Then the
// regions are detached: this rank goes on with copies of its pages, and later writes of the mate go
// to pages that no rank reads. It makes no difference whether the mate is excluded or only slow.
// After that the mate ends at most the blocks that it has begun.
//
// What is final. A mate says how many runs it has stored, and describes its present block. All
// before that block is final here, and the block itself if it is filled; if it is not spread, this
// rank copies it from the mate's memory, which is mapped until the end. The pages of an isolated
// rank may lack any of the last REGISTERED_BLOCKS blocks. These are final in the mate's memory, and
// are copied from there. Blocks after them are intact here, although the mate may yet sum them: it
// adds this rank's input from the pages that are shared, where nothing changes any more.
//
// Blocks that are not announced (host_run.announces) are all final here if their owner has died.
// If it is alive and inside of them, nothing exact can be said. Engine thread.

#include "worker/transport/host/fence.h"

#include "worker/memory/regions.h"
#include "worker/transport/flow/finals.h"
#include "worker/transport/host/host.h"
#include "worker/transport/host/registered.h"

#include "base/clock.h"

#include <poll.h>
#include <sched.h>

#define FENCE_LET_GO_MS 50
#define FENCE_FREEZE_MS 1000
#define FENCE_TRIES 1000 // After memory is revoked a mate describes only a few more blocks.

static const char fence_stands_still[] = "a rank of its host stands still inside of its memory";

static bool fence_has_unfinished(const struct shared *shared)
{
    for (uint64_t i = shared->runs_done; i < shared->runs_seen; i++) {
        const struct host_run *run = &shared->runs[i % BOARD_RUNS];
        if (run->flow && run->registered)
            return true;
    }
    return false;
}

// Returns the registered run of that number; NULL: it is done, or none.
static const struct host_run *fence_run(const struct shared *shared, uint64_t number)
{
    if (number < shared->runs_done || number >= shared->runs_seen)
        return NULL;
    const struct host_run *run = &shared->runs[number % BOARD_RUNS];
    return run->flow && run->registered ? run : NULL;
}

// ---- waiting ------------------------------------------------------------------------------------

// True if the mate's link has ended. The links may be closed here already.
static bool fence_has_ended(const struct shared *shared, uint32_t seat)
{
    const struct peer_link *mate = shared->mates[seat];
    if (shared->registered.ended >> seat & 1)
        return true;
    if (!mate || !mate->stream.link)
        return false;
    struct pollfd socket = {.fd = mate->stream.link->fd};
    return poll(&socket, 1, 0) > 0 && (socket.revents & POLLHUP) != 0;
}

// One bit per seat: a mate that may be alive is writing blocks.
static uint32_t fence_writers(const struct shared *shared)
{
    uint32_t writers = 0;
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (i != shared->seat && atomic_load(&host_seat(shared, i)->block.writing.value) != 0 &&
            !fence_has_ended(shared, i))
            writers |= 1u << i;
    }
    return writers;
}

// Revokes this rank's memory, and waits. Returns the mates that are writing even so.
static uint32_t fence_revoke(struct shared *shared, uint64_t most_ms)
{
    const uint64_t end_ms = clock_now_ms() + most_ms;
    shared->registered.stopped = true;
    atomic_store(&host_seat(shared, shared->seat)->revoked.value, 1);
    uint32_t writers = fence_writers(shared);
    while (writers != 0 && clock_now_ms() < end_ms) {
        (void)sched_yield();
        writers = fence_writers(shared);
    }
    return writers;
}

// ---- how far mates are --------------------------------------------------------------------------

// Reads the counts of a mate, which may still end its last blocks. False: they keep changing.
static bool fence_look(const struct shared *shared, uint32_t seat, uint64_t *stored,
                       struct board_place *block)
{
    const struct board_seat *mate = host_seat(shared, seat);
    for (uint32_t i = 0; i < FENCE_TRIES; i++) {
        *stored = board_read(&mate->stored);
        if (board_take_block(&mate->block, block) && board_read(&mate->stored) == *stored)
            return true;
        (void)sched_yield();
    }
    return false;
}

// Copies blocks that are final in the memory of a mate, and may not be final here.
static void fence_copy(const struct shared *shared, const struct host_run *run, uint32_t seat,
                       const struct board_place *block, uint64_t end, bool isolated)
{
    const struct ring_span slice = registered_slice(shared, run, seat);
    const uint64_t most = BOARD_BLOCK_BYTES / run->flow->map.element_bytes * REGISTERED_BLOCKS;
    uint64_t first = block->filled && !block->spread ? block->first : end;
    if (isolated)
        first = end - slice.first > most ? end - most : slice.first;
    if (first < end)
        registered_copy_span(shared, run, (struct ring_span){first, end - first}, seat,
                             shared->seat);
}

// Reads how far a mate has come, and makes final what is final in its memory.
static void fence_settle(struct shared *shared, uint32_t seat, bool isolated)
{
    struct fence_place *place = &shared->registered.places[seat];
    struct board_place block;
    *place = (struct fence_place){.run = UINT64_MAX};
    if (!fence_look(shared, seat, &place->stored, &block)) {
        shared->registered.unclear = fence_stands_still;
        return;
    }
    const struct host_run *run = fence_run(shared, block.run);
    if (!run)
        return;
    const struct ring_span slice = registered_slice(shared, run, seat);
    const uint64_t slice_end = slice.first + slice.count;
    if (isolated && !run->announces)
        shared->registered.unclear = fence_stands_still;
    place->run = block.run;
    place->end = block.first;
    if (block.filled || !run->announces)
        place->end += block.count;
    if (place->stored > run->ordinal || place->end > slice_end)
        place->end = slice_end;
    if (place->end < slice.first)
        place->end = slice.first;
    if (run->announces)
        fence_copy(shared, run, seat, &block, place->end, isolated);
}

void fence_freeze(struct flows *flows)
{
    struct shared *shared = flows->shared;
    if (!shared || !shared->stands || !flows->regions)
        return;
    const uint32_t writers =
        fence_revoke(shared, flows->fence_ms == 0 ? FENCE_FREEZE_MS : flows->fence_ms);
    if (writers != 0 && regions_detach(flows->regions) < 0)
        shared->registered.unclear = "its memory cannot be made private";
    // Mates may have begun runs that this rank has not seen. Runs that are appended from now on are
    // begun by no rank.
    (void)host_see_runs(shared);
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (i != shared->seat)
            fence_settle(shared, i, writers >> i & 1);
    }
    shared->registered.fenced = true;
}

void fence_finals(const struct shared *shared, const struct host_run *run, uint64_t number,
                  struct finals *finals)
{
    const struct registered *registered = &shared->registered;
    if (registered->unclear || !registered->fenced) {
        finals->unknown = registered->unclear ? registered->unclear : fence_stands_still;
        return;
    }
    for (uint32_t i = 0; i < shared->seats; i++) {
        const struct fence_place *place = &registered->places[i];
        const uint64_t stored = i == shared->seat ? registered->stored : place->stored;
        struct ring_span span = registered_slice(shared, run, i);
        if (stored > run->ordinal)
            finals_add(finals, span);
        else if (i == shared->seat && stored == run->ordinal)
            finals_add(finals, (struct ring_span){span.first, registered->done});
        else if (i != shared->seat && place->run == number)
            finals_add(finals, (struct ring_span){span.first, place->end - span.first});
    }
}

// ---- the end of a generation --------------------------------------------------------------------

// Copies a block that a mate has summed and not yet copied to all ranks, from the mate's memory to
// this rank's.
static void fence_finish_block(struct shared *shared, uint32_t seat)
{
    struct board_place block;
    if (!board_take_block(&host_seat(shared, seat)->block, &block) || !block.filled || block.spread)
        return;
    const struct host_run *run = fence_run(shared, block.run);
    if (!run)
        return;
    const uint32_t element = run->flow->map.element_bytes;
    const uint64_t elements = run->flow->collective->elements;
    if (block.first > elements || block.count > elements - block.first ||
        block.count > BOARD_BLOCK_BYTES / element)
        return;
    registered_copy_span(shared, run, (struct ring_span){block.first, block.count}, seat,
                         shared->seat);
}

// A mate may be about to freeze and to copy a last block from the memory of this rank. So where
// generations are frozen, the trainer gets private pages.
static void fence_end(struct shared *shared)
{
    uint32_t writers = fence_revoke(shared, FENCE_LET_GO_MS);
    if (writers != 0 || shared->flows->recovers)
        (void)regions_detach(shared->flows->regions);
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (i != shared->seat)
            fence_finish_block(shared, i);
    }
}

void fence_let_go(struct shared *shared)
{
    struct regions *regions = shared->flows->regions;
    if (!shared->stands || !regions)
        return;
    atomic_store(&host_seat(shared, shared->seat)->revoked.value, 1);
    if (!shared->registered.fenced && fence_has_unfinished(shared))
        fence_end(shared);
    regions_begin(regions, 0, 0);
}
