// SPDX-License-Identifier: Apache-2.0
//
// Runs in registered memory: every rank's inputs and outputs lie in regions (region.h) that all
// mates have mapped, so nothing is copied to be summed. Seat s owns slice s of the elements. Block
// by block it sums the memory of all ranks into its own, in the order of the seats, and copies the
// final bytes from there to that of the others. The bits are those of transport_pieces.c.
// Also here: how regions get to the mates, which is said on the board.
//
// Intact or final. Nobody but its owner writes an element, and it writes final bytes only, in whole
// elements. An owner that dies, or stands still, while it sums a block has written nowhere but to
// its own memory: with the mates the block is intact. Later it has announced the block (`filled` is
// above `spread`), which is final in its memory, which mates still have mapped: each takes it from
// there when it lets go. So of a slice each survivor has all blocks in front of some place final,
// and all behind it intact, and it is the same place for all.
//
// Letting go. When a rank gives its memory back to the trainer with a run unfinished (a mate has
// died), no mate may write to it any more. An owner says `writing` before some blocks, then looks
// whether anybody has `revoked`; who lets go says `revoked`, then waits until nobody is `writing`.
// Both words are written and read with sequential consistency: of the two stores one is the first,
// and the side that made the other sees it. If the owner's was first, the one that lets go sees
// `writing` and waits for the end of those blocks; else the owner sees `revoked` and writes
// nothing. The wait is bounded. A mate whose link has ended is not waited for: its process has
// died, or has left its blocks behind. For one that stands still the regions are detached: this
// rank goes on with copies of its pages, and what the mate may still write goes to pages that
// nobody reads.
//
// Cost of E bytes of n ranks: each reads E and writes E bytes of user memory, nothing else leaves
// the cache. Engine thread.

#include "worker/transport_shared.h"

#include "base/clock.h"
#include "worker/kernels.h"
#include "worker/region.h"

#include <assert.h>
#include <sched.h>
#include <string.h>

#define REGISTERED_BLOCKS 16 // Written between two looks at who has revoked its memory.
#define REGISTERED_TURNS 4 // So often in one run, before links have their turn.
#define REGISTERED_LET_GO_MS 50

static struct board_block *registered_block(const struct shared *shared, uint32_t seat)
{
    return &shared_seat(shared, seat)->block;
}

// ---- regions ------------------------------------------------------------------------------------

void registered_begin(struct shared *shared)
{
    if (!shared->transport->regions)
        return;
    regions_begin(shared->transport->regions, shared->seat, shared->seats);
    shared->registered.news = regions_news(shared->transport->regions);
    shared->registered.again = true;
}

static void news_say(struct board_news *news, uint32_t number)
{
    const uint64_t said = board_read(&news->said);
    news->number[said % BOARD_NEWS] = number;
    board_publish(&news->said, said + 1);
}

void registered_take(struct shared *shared, uint32_t seat, const struct link_note *note, int fd)
{
    struct regions *regions = shared->transport->regions;
    const char *text = regions_map(regions, seat, note->number, note->bytes, fd);
    if (text) {
        shared_impossible(shared, seat, text);
        return;
    }
    if (!regions_of(regions, seat, note->number, 0, 1))
        return; // No room for it here: it is never found there.
    news_say(&shared_seat(shared, shared->seat)->mapped_of[seat], note->number);
    shared_tell(shared);
}

// Hands new regions to a mate, as far as its link takes them.
static void registered_pass(struct shared *shared, uint32_t seat)
{
    struct regions *regions = shared->transport->regions;
    struct link *link = shared->mates[seat]->stream.link;
    for (;;) {
        struct link_note note = {.kind = LINK_NOTE_REGION};
        const int fd = link ? regions_to_pass(regions, seat, &note.number, &note.bytes) : -1;
        if (fd < 0)
            return;
        if (link->ops->pass(link, &note, fd) < 0) {
            shared->registered.again = true;
            return;
        }
        regions_passed(regions, seat, note.number);
        link->ops->wake(link);
    }
}

// What a mate says of regions: it has mapped some of this rank's, it has freed some of its own.
static void registered_hear(struct shared *shared, uint32_t seat)
{
    struct registered *registered = &shared->registered;
    struct regions *regions = shared->transport->regions;
    struct board_seat *own = shared_seat(shared, shared->seat);
    const struct board_seat *mate = shared_seat(shared, seat);
    const struct board_news *mapped = &mate->mapped_of[shared->seat];
    bool possible = true;
    const uint64_t said = board_read(&mapped->said);
    while (possible && registered->mapped_heard[seat] != said)
        possible = regions_mapped(regions, seat,
                                  mapped->number[registered->mapped_heard[seat]++ % BOARD_NEWS]);
    uint64_t heard = board_read(&own->freed_heard[seat]);
    const uint64_t freed = board_read(&mate->freed.said);
    while (possible && heard != freed)
        possible = regions_unmap(regions, seat, mate->freed.number[heard++ % BOARD_NEWS]);
    if (heard != board_read(&own->freed_heard[seat]))
        board_publish(&own->freed_heard[seat], heard);
    if (!possible)
        shared_impossible(shared, seat, "sent news of a region that is none");
}

static void registered_say_freed(struct shared *shared)
{
    struct board_seat *own = shared_seat(shared, shared->seat);
    uint32_t number = 0;
    for (;;) {
        for (uint32_t i = 0; i < shared->seats; i++) {
            const struct board_seat *mate = shared_seat(shared, i);
            if (i != shared->seat &&
                board_read(&own->freed.said) - board_read(&mate->freed_heard[shared->seat]) >=
                    BOARD_NEWS)
                return;
        }
        if (!regions_freed(shared->transport->regions, &number))
            return;
        news_say(&own->freed, number);
        shared_tell(shared);
    }
}

static bool registered_has_news(const struct shared *shared)
{
    const struct registered *registered = &shared->registered;
    const struct board_seat *own = shared_seat(shared, shared->seat);
    for (uint32_t i = 0; i < shared->seats; i++) {
        const struct board_seat *mate = shared_seat(shared, i);
        if (i != shared->seat &&
            (board_read(&mate->mapped_of[shared->seat].said) != registered->mapped_heard[i] ||
             board_read(&mate->freed.said) != board_read(&own->freed_heard[i])))
            return true;
    }
    return regions_news(shared->transport->regions) != registered->news;
}

// A link that takes no more descriptors is tried again when something else has happened: when its
// mate has mapped one, it says so.
static void registered_exchange(struct shared *shared)
{
    if (!shared->registered.again && !registered_has_news(shared))
        return;
    shared->registered.again = false;
    shared->registered.news = regions_news(shared->transport->regions);
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (i == shared->seat)
            continue;
        registered_hear(shared, i);
        registered_pass(shared, i);
    }
    registered_say_freed(shared);
}

// ---- what may run -------------------------------------------------------------------------------

// The collective's memory, where its inputs are its outputs and lie in one row. NULL: not so.
static void *registered_row(const struct collective *collective, uint32_t element)
{
    uint8_t *row = NULL;
    uint8_t *end = NULL;
    for (uint32_t i = 0; i < collective->extent_count; i++) {
        const struct extent *extent = &collective->extents[i];
        if (extent->elements == 0)
            continue;
        if (!extent->out || extent->in != extent->out || (row && end != extent->out))
            return NULL;
        if (!row)
            row = extent->out;
        end = (uint8_t *)extent->out + extent->elements * element;
    }
    return row;
}

bool registered_find(const struct shared *shared, const struct flow *flow, uint32_t *region,
                     uint64_t *offset)
{
    const struct collective *collective = flow->collective;
    const uint32_t element = flow->map.element_bytes;
    struct regions *regions = shared->transport->regions;
    const uint64_t bytes = collective->elements * element;
    const struct unit_range all = {0, collective->unit_count};
    if (!regions || bytes <= BOARD_TINY_BYTES || collective->kind != COLLECTIVE_ALLREDUCE ||
        units_usage(collective->used, all) != USAGE_ALL)
        return false;
    void *row = registered_row(collective, element);
    // Inside of an element a mate could tear what is not aligned.
    return row && (uintptr_t)row % element == 0 &&
           regions_find(regions, row, bytes, region, offset) && *region > 0;
}

const char *registered_read(struct shared *shared, const struct board_run *from,
                            const struct flow *flow, struct shared_run *run, uint32_t *seat)
{
    const uint32_t element = flow->map.element_bytes;
    const uint64_t bytes = flow->collective->elements * element;
    for (uint32_t i = 0; i < shared->seats; i++) {
        const uint32_t region = from->regions[i];
        const uint64_t offset = from->offsets[i];
        *seat = i;
        if (i == shared->seat)
            run->memory[i] = registered_row(flow->collective, element);
        else if (shared->transport->regions)
            run->memory[i] = regions_of(shared->transport->regions, i, region, offset, bytes);
        if (!run->memory[i] || (uintptr_t)run->memory[i] % element != 0)
            return "sent memory that is not mapped here";
    }
    run->registered = true;
    return NULL;
}

// ---- runs ---------------------------------------------------------------------------------------

static struct ring_span registered_slice(const struct shared *shared, const struct shared_run *run)
{
    const struct ring_span whole = {0, run->flow->collective->elements};
    return pieces_part(whole, shared->seats, shared->seat);
}

// The run of which this rank has to store its slice next.
static struct shared_run *registered_next(struct shared *shared)
{
    struct registered *registered = &shared->registered;
    if (registered->run < shared->runs_done)
        registered->run = shared->runs_done;
    while (registered->run < shared->runs_seen) {
        struct shared_run *run = shared_run(shared, registered->run);
        if (run->flow && run->registered && run->ordinal >= registered->stored)
            return run;
        registered->run++;
    }
    return NULL;
}

// Says that this rank is about to write to the memory of all. False: somebody has revoked it.
static bool registered_enter(struct shared *shared)
{
    struct board_block *block = registered_block(shared, shared->seat);
    atomic_store(&block->writing.value, 1);
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (atomic_load(&shared_seat(shared, i)->revoked.value) == 0)
            continue;
        atomic_store(&block->writing.value, 0);
        shared->registered.stopped = true;
        return false;
    }
    return true;
}

// Sums a block into this rank's memory, and copies it to that of the mates.
static void registered_spread(struct shared *shared, const struct shared_run *run,
                              struct ring_span span)
{
    struct registered *registered = &shared->registered;
    struct board_block *block = registered_block(shared, shared->seat);
    const uint32_t element = run->flow->map.element_bytes;
    const uint64_t offset = span.first * element;
    uint8_t *own = run->memory[shared->seat] + offset;
    const void *sources[LOCKSTEP_MAX_MATES];
    for (uint32_t i = 0; i < shared->seats; i++)
        sources[i] = run->factors[i] > 0 ? run->memory[i] + offset : NULL;
    block->run = registered->run;
    block->first = span.first;
    block->count = span.count;
    pieces_combine(run->flow, run, own, sources, shared->seats, span.count);
    board_publish(&block->filled, ++registered->blocks);
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (i != shared->seat)
            kernel_copy(run->memory[i] + offset, own, span.count * element, false);
    }
    board_publish(&block->spread, registered->blocks);
}

// Some blocks of the slice. False: there are no more, or they may not be written.
static bool registered_advance(struct shared *shared, const struct shared_run *run)
{
    struct registered *registered = &shared->registered;
    const struct ring_span slice = registered_slice(shared, run);
    const uint64_t most = BOARD_BLOCK_BYTES / run->flow->map.element_bytes;
    if (registered->done == slice.count || !registered_enter(shared))
        return false;
    for (uint32_t i = 0; i < REGISTERED_BLOCKS && registered->done < slice.count; i++) {
        const uint64_t left = slice.count - registered->done;
        const struct ring_span span = {slice.first + registered->done, left < most ? left : most};
        registered_spread(shared, run, span);
        registered->done += span.count;
        shared->transport->totals.payload_bytes_sent +=
            span.count * run->flow->map.element_bytes * (shared->seats - 1);
    }
    board_publish(&registered_block(shared, shared->seat)->writing, 0);
    return true;
}

static bool registered_store(struct shared *shared)
{
    struct registered *registered = &shared->registered;
    struct shared_run *run = registered->stopped ? NULL : registered_next(shared);
    if (!run)
        return false;
    if (run->flow->collective->first_sent_us == 0)
        run->flow->collective->first_sent_us = clock_now_us();
    for (uint32_t i = 0; i < REGISTERED_TURNS; i++) {
        if (!registered_advance(shared, run))
            break;
    }
    if (registered->stopped || registered->done < registered_slice(shared, run).count)
        return !registered->stopped;
    registered->done = 0;
    registered->run++;
    board_publish(&shared_seat(shared, shared->seat)->stored, ++registered->stored);
    shared_tell(shared);
    return true;
}

// The oldest run that is not done here.
static struct shared_run *registered_oldest(struct shared *shared)
{
    struct registered *registered = &shared->registered;
    if (registered->finish < shared->runs_done)
        registered->finish = shared->runs_done;
    while (registered->finish < shared->runs_seen) {
        struct shared_run *run = shared_run(shared, registered->finish);
        if (run->flow && run->registered)
            return run;
        registered->finish++;
    }
    return NULL;
}

// Whether all have stored their slices.
static bool registered_is_done(const struct shared *shared, const struct shared_run *run)
{
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (board_read(&shared_seat(shared, i)->stored) <= run->ordinal)
            return false;
    }
    return true;
}

bool registered_work(struct shared *shared)
{
    if (!shared->transport->regions)
        return false;
    registered_exchange(shared);
    bool any = registered_store(shared);
    for (;;) {
        struct shared_run *run = registered_oldest(shared);
        if (!run || !registered_is_done(shared, run))
            return any;
        shared_run_done(shared, run);
        shared_tell(shared);
        any = true;
    }
}

bool registered_pending(const struct shared *shared)
{
    const struct registered *registered = &shared->registered;
    if (!shared->transport->regions)
        return false;
    if (registered_has_news(shared))
        return true;
    for (uint64_t i = shared->runs_done; i < shared->runs_seen; i++) {
        const struct shared_run *run = &shared->runs[i % BOARD_RUNS];
        if (run->flow && run->registered &&
            ((run->ordinal >= registered->stored && !registered->stopped) ||
             registered_is_done(shared, run)))
            return true;
    }
    return false;
}

// ---- letting go ---------------------------------------------------------------------------------

static bool registered_has_unfinished(const struct shared *shared)
{
    for (uint64_t i = shared->runs_done; i < shared->runs_seen; i++) {
        const struct shared_run *run = &shared->runs[i % BOARD_RUNS];
        if (run->flow && run->registered)
            return true;
    }
    return false;
}

// Whether a mate that may be alive is inside of a block.
static bool registered_is_written(const struct shared *shared)
{
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (i != shared->seat && (shared->registered.ended >> i & 1) == 0 &&
            atomic_load(&registered_block(shared, i)->writing.value) != 0)
            return true;
    }
    return false;
}

// What a mate has summed and not brought to everybody is taken from its memory.
static void registered_finish_block(struct shared *shared, uint32_t seat)
{
    const struct board_block *block = registered_block(shared, seat);
    if (board_read(&block->filled) == board_read(&block->spread))
        return;
    const uint64_t at = block->run;
    const uint64_t first = block->first;
    const uint64_t count = block->count;
    if (at < shared->runs_done || at >= shared->runs_seen)
        return;
    const struct shared_run *run = shared_run(shared, at);
    if (!run->flow || !run->registered)
        return;
    const uint32_t element = run->flow->map.element_bytes;
    const uint64_t elements = run->flow->collective->elements;
    if (first > elements || count > elements - first || count * element > BOARD_BLOCK_BYTES)
        return;
    kernel_copy(run->memory[shared->seat] + first * element, run->memory[seat] + first * element,
                count * element, false);
}

void registered_let_go(struct shared *shared)
{
    struct regions *regions = shared->transport->regions;
    if (!shared->stands || !regions)
        return;
    atomic_store(&shared_seat(shared, shared->seat)->revoked.value, 1);
    if (registered_has_unfinished(shared)) {
        const uint64_t end_ms = clock_now_ms() + REGISTERED_LET_GO_MS;
        bool written = registered_is_written(shared);
        while (written && clock_now_ms() < end_ms) {
            (void)sched_yield();
            written = registered_is_written(shared);
        }
        if (written)
            (void)regions_detach(regions);
        for (uint32_t i = 0; i < shared->seats; i++) {
            if (i != shared->seat)
                registered_finish_block(shared, i);
        }
    }
    regions_begin(regions, 0, 0);
}
