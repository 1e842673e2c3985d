// SPDX-License-Identifier: Apache-2.0
//
// Sets up the board of a host, and ends it. Its use is in host.c. Engine thread.
//
// Life of the board. When the links to all mates are proven, the leader makes the board and passes
// it to each mate. A rank that has mapped the board sets `mapped`. When all have, the leader writes
// the verdict BOARD_STANDS. If a link cannot pass descriptors, or not all have mapped the board in
// time, the leader writes BOARD_FALLEN. A rank without a verdict at its deadline goes on without a
// board. So ranks may have different outcomes: each tells the coordinator, and no rank uses the
// board unless it stands on all ranks.
//
// Nothing here waits: work that is not possible yet is tried again when the board has changed.

#include "worker/transport/host/setup.h"

#include "base/clock.h"
#include "worker/transport/host/board.h"
#include "worker/transport/host/fence.h"
#include "worker/transport/host/host.h"
#include "worker/transport/host/passing.h"
#include "worker/transport/host/registered.h"
#include "worker/transport/host/sequence.h"
#include "worker/transport/host/shots.h"
#include "worker/transport/host/two_level.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define HOST_SETTLE_MS 3000 // How long a rank waits for a board.

// How long to wait for a board: at most half of the time in which the generation must form.
static uint64_t host_patience(uint64_t form_timeout_ms)
{
    return form_timeout_ms / 2 < HOST_SETTLE_MS ? form_timeout_ms / 2 : HOST_SETTLE_MS;
}

static bool host_begin(struct flows *flows, struct shared *shared)
{
    const struct locality *locality = &flows->world.locality;
    shared->flows = flows;
    shared->seat = locality->local;
    shared->seats = locality->mate_count;
    shared->fd = -1;
    list_init(&shared->waiting);
    sequence_init(&shared->sequence);
    shots_init(shared);
    for (uint32_t i = 0; i < BOARD_RECORDS; i++)
        shared->records[shared->record_count++] = BOARD_RECORDS - 1 - i;
    for (uint32_t i = 0; i < BOARD_WIDE_BLOCKS; i++)
        shared->blocks[shared->block_count++] = i;
    shared->deadline_ms = clock_now_ms() + host_patience(flows->world.form_timeout_ms);
    bool known = true;
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (i == shared->seat)
            continue;
        shared->mates[i] = peer_of_rank(flows, locality->mates[i]);
        known = known && shared->mates[i];
    }
    return known;
}

// True if a rank that is alone on its host needs a board of its own, because other hosts have
// several ranks.
static bool host_meets_hosts(const struct transport_world *world)
{
    const struct locality *locality = &world->locality;
    return locality->mate_count == 1 && locality->hosts > 1 && locality->hosts < world->world_size;
}

int host_form(struct flows *flows)
{
    const struct locality *locality = &flows->world.locality;
    assert(!flows->shared);
    if (locality->mate_count < 2 && !host_meets_hosts(&flows->world))
        return 0;
    assert(locality->mate_count <= LOCKSTEP_MAX_MATES && locality->local < locality->mate_count);
    struct shared *shared = calloc(1, sizeof(*shared));
    if (!shared)
        return -1;
    flows->shared = shared;
    return host_begin(flows, shared) && two_level_begin(shared) == 0 && registered_open(shared) == 0
               ? 0
               : -1;
}

static void host_settle(struct shared *shared, bool stands)
{
    shared->settled = true;
    shared->stands = stands;
    if (stands)
        shots_begin(shared);
    if (stands)
        passing_begin(shared);
    if (shared->fd >= 0)
        (void)close(shared->fd);
    shared->fd = -1;
}

// At the leader: writes the verdict for all ranks that have mapped the board.
static void host_decide(struct shared *shared, bool stands)
{
    if (shared->board.head)
        board_publish(&shared->board.head->verdict, stands ? BOARD_STANDS : BOARD_FALLEN);
    host_settle(shared, stands);
    host_tell(shared);
}

static bool host_can_pass(const struct peer_link *mate)
{
    return mate->stream.link && mate->stream.link->ops->pass && mate->stream.link->ops->wake;
}

void host_proven(struct peer_link *peer)
{
    struct shared *shared = peer->flows->shared;
    if (!shared || shared->settled)
        return;
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (shared->mates[i] != peer)
            continue;
        shared->proven++;
        if (host_can_pass(peer))
            continue;
        if (shared->seat == 0)
            host_decide(shared, false);
        else
            host_settle(shared, false);
    }
}

// Two ranks gain from larger pieces, up to the size of the second cache; more ranks share the last
// cache.
static uint64_t host_slot_bytes(const struct shared *shared)
{
    if (shared->two_level)
        return two_level_slot_bytes(shared);
    return shared->seats == 2 ? 2 * BOARD_SLOT_BYTES : BOARD_SLOT_BYTES;
}

// Passes the board to mates that do not have it yet. False: a link cannot pass it.
static bool host_pass(struct shared *shared)
{
    const struct link_note note = {.kind = LINK_NOTE_BOARD, .bytes = shared->board.bytes};
    for (uint32_t i = 1; i < shared->seats; i++) {
        struct link *link = shared->mates[i]->stream.link;
        if (shared->passed[i])
            continue;
        if (!link)
            return false;
        if (link->ops->pass(link, &note, shared->fd) == 0) {
            shared->passed[i] = true;
            link->ops->wake(link);
        } else if (errno != EAGAIN) {
            return false;
        }
    }
    return true;
}

// Called when the leader has no memory for a board: passes a note with size 0, so that mates do not
// wait. A note needs a descriptor. If none can be made or passed, mates wait until their deadline.
static void host_pass_nothing(struct shared *shared)
{
    const struct link_note note = {.kind = LINK_NOTE_BOARD, .bytes = 0};
    const int nothing = eventfd(0, EFD_CLOEXEC);
    for (uint32_t i = 1; nothing >= 0 && i < shared->seats; i++) {
        struct link *link = shared->mates[i]->stream.link;
        if (link && link->ops->pass(link, &note, nothing) == 0)
            link->ops->wake(link);
    }
    if (nothing >= 0)
        (void)close(nothing);
}

static bool host_all_mapped(const struct shared *shared)
{
    for (uint32_t i = 0; i < shared->seats; i++) {
        if (board_read(&host_seat(shared, i)->mapped) == 0)
            return false;
    }
    return true;
}

static void host_lead(struct shared *shared)
{
    if (shared->proven < shared->seats - 1)
        return;
    if (shared->fd < 0) {
        shared->fd = board_make(&shared->board, shared->seats, host_slot_bytes(shared));
        if (shared->fd < 0) {
            host_pass_nothing(shared);
            host_decide(shared, false);
            return;
        }
        shared->board.head->shot_bytes = shots_most_bytes(shared->flows);
        board_publish(&host_seat(shared, 0)->mapped, 1);
    }
    if (!host_pass(shared))
        host_decide(shared, false);
    else if (host_all_mapped(shared))
        host_decide(shared, true);
}

// Maps the board that the leader has passed.
static void host_map(struct shared *shared, const struct link_note *note, int fd)
{
    const char *text =
        board_map(&shared->board, shared->seats, host_slot_bytes(shared), note->bytes, fd);
    (void)close(fd);
    if (text) {
        host_settle(shared, false);
        return;
    }
    board_publish(&host_seat(shared, shared->seat)->mapped, 1);
    host_tell(shared);
}

// Takes the descriptors that a mate has passed: the board from the leader, then regions from each
// mate. Regions may arrive before this rank knows that the board stands; they are taken after that.
void host_take(struct shared *shared, uint32_t seat)
{
    struct link *link = shared->mates[seat] ? shared->mates[seat]->stream.link : NULL;
    struct link_note note;
    while (link && link->ops->take) {
        const int fd = link->ops->take(link, &note);
        if (fd < 0 && errno != EMFILE)
            return;
        if (note.kind == LINK_NOTE_BOARD && seat == 0 && !shared->board.head) {
            host_map(shared, &note, fd);
            return;
        }
        if (note.kind == LINK_NOTE_REGION && shared->stands) {
            passing_take(shared, seat, &note, fd);
            continue;
        }
        if (fd >= 0)
            (void)close(fd);
        host_impossible(shared, seat, "passed a descriptor that nobody expects");
        return;
    }
}

static void host_hear(struct shared *shared)
{
    if (!shared->board.head)
        host_take(shared, 0);
    if (!shared->board.head || shared->settled)
        return;
    const uint64_t verdict = board_read(&shared->board.head->verdict);
    if (verdict != BOARD_OPEN)
        host_settle(shared, verdict == BOARD_STANDS);
}

void host_negotiate(struct shared *shared)
{
    if (shared->seat == 0)
        host_lead(shared);
    else if (shared->proven > 0)
        host_hear(shared);
    if (!shared->settled && clock_now_ms() >= shared->deadline_ms) {
        if (shared->seat == 0)
            host_decide(shared, false);
        else
            host_settle(shared, false);
    }
}

bool host_settled(const struct flows *flows)
{
    return !flows->shared || flows->shared->settled;
}

bool host_stands(const struct flows *flows)
{
    return flows->shared && flows->shared->stands;
}

uint64_t host_deadline(const struct flows *flows)
{
    const struct shared *shared = flows->shared;
    return shared && !shared->settled ? shared->deadline_ms : UINT64_MAX;
}

void host_forget(struct flows *flows)
{
    struct shared *shared = flows->shared;
    if (!shared)
        return;
    if (shared->fd >= 0)
        (void)close(shared->fd);
    fence_let_go(shared);
    board_unmap(&shared->board);
    sequence_fini(&shared->sequence);
    two_level_end(shared);
    registered_close(shared);
    free(shared);
    flows->shared = NULL;
}

bool host_has_news(const struct shared *shared)
{
    if (!shared->board.head)
        return false;
    return shared->seat == 0 ? host_all_mapped(shared)
                             : board_read(&shared->board.head->verdict) != BOARD_OPEN;
}
