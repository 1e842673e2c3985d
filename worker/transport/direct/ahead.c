// SPDX-License-Identifier: Apache-2.0
//
// Short parts of exchanges that go one way, as the messages of sends do. Engine thread.
//
// A part that needs no credit is sent at its launch, and its sender is done when the link has taken
// it. Nothing comes back, so nothing else keeps a rank that only sends from being any number of
// parts ahead of their receiver, which parks them all. This file bounds that number.
//
// Words. A part is *paced* if it is short (direct_is_eager) and no part goes the other way. Each
// side of a link counts paced parts: the sender those that it has *sent*, the receiver those that
// it has *taken*, because they have arrived whole and their receive has begun.
//
//     CREDIT  the receiver has taken so many paced parts of this link (FRAME_CREDIT_SENDS)
//     ASK     the receive of a part has begun that was announced (DIRECT_ASK)
//
// Rules. The receiver says how many parts it has taken when these are LOCKSTEP_SENDS_TOLD more than
// it has said before. The sender *knows* the last number that it was told.
//
// 1. A part goes at once while less than LOCKSTEP_SENDS_AHEAD parts are sent and not known to be
//    taken.
// 2. Otherwise the part *waits*. Its sender announces it, so a receive from any source finds it,
//    and ranks that disagree about its length find out.
// 3. A part that waits goes when the receiver asks for it, and also when rule 1 lets it go; the
//    part that was launched first goes first.
//
// So a receiver may begin its receives in any order, as it may with long parts: a part that waits
// for more than room waits for its own receive only. And a rank may send LOCKSTEP_SENDS_AHEAD minus
// LOCKSTEP_SENDS_TOLD parts to each other rank before that rank begins a receive, whatever the two
// have sent before. While ranks keep together no part waits: CREDIT leaves the receiver before
// what its trainer sends in answer to the part.
//
// ASK and a part that goes by rule 1 may cross on the link. The collective of such an ASK may be
// complete here. So it is dropped (ahead_is_late). No other collective can have its tag.
//
// What the receiver keeps. A part that goes by rule 1 is one of at most LOCKSTEP_SENDS_AHEAD that
// are not taken; one that was asked for is taken as it arrives. The announcements are those of
// collectives in flight, which LOCKSTEP_MAX_PLAIN bounds. So the parkings of a peer have a bound:
// LOCKSTEP_PARKINGS_OF_PEER.
//
// Why nothing waits for a part that waits but its caller. It has no frame in the queue of a link
// and no place in a window, so other collectives of this rank go on, also those that its receiver
// has to complete before it begins the receive.
//
// Whose wait is told. A rank that waits in a send waits for the receiver only while the part waits
// (collective.held_ms). Before that it waits for the link. It also waits for the link while bytes
// move between the two: parts may be on their way to the receiver, or a CREDIT behind other bytes
// of it. So held_ms counts from the last movement. If a packet is lost, nothing arrives for some
// round trips, so these pass first.

#include "worker/transport/direct/ahead.h"

#include "base/clock.h"
#include "worker/transport/direct/direct.h"
#include "worker/transport/flow/flow.h"

#include <stdatomic.h>

#define AHEAD_LOOK_MS 200 // Least time between two looks at a link.
#define AHEAD_ROUND_TRIPS 4

static_assert(2 * LOCKSTEP_SENDS_TOLD <= LOCKSTEP_SENDS_AHEAD,
              "the receiver says that it took parts before the sender has to wait");

void ahead_launch(const struct flow *flow, struct direct_member *member)
{
    const struct collective_part *part = member->send ? member->send : member->receive;
    member->paced = (!member->send || !member->receive) && direct_is_eager(flow, part->elements);
    member->waits = member->paced && member->send;
    if (member->waits)
        member->finals_out.granted = 0;
}

// ---- the sender ---------------------------------------------------------------------------------

static void ahead_go(const struct flow *flow, struct direct_member *member)
{
    member->waits = false;
    member->finals_out.granted = member->finals_out.count;
    member->peer->sends.sent++;
    atomic_store_explicit(&flow->collective->held_ms, 0, memory_order_relaxed);
}

static bool ahead_announce(struct flows *flows, const struct flow *flow,
                           struct direct_member *member)
{
    member->announced = true;
    atomic_store_explicit(&flow->collective->held_ms, clock_coarse_ms(), memory_order_relaxed);
    return direct_say(
        flows, flow, member->peer,
        (struct direct_word){.part = DIRECT_ANNOUNCE, .weight = member->send->elements});
}

// The part waits, and is announced. The driver comes here once a second at least.
static void ahead_watch(const struct flow *flow, struct direct_member *member)
{
    struct stream *stream = &member->peer->stream;
    struct peer_sends *sends = &member->peer->sends;
    const uint64_t now_ms = clock_coarse_ms();
    if (now_ms - sends->looked_ms >= AHEAD_LOOK_MS) {
        const uint64_t trip_ms = stream_round_trip_ms(stream);
        sends->looked_ms = now_ms;
        if (stream_unsent(stream) > 0 || stream->bytes_received != sends->received)
            sends->moved_ms = now_ms + AHEAD_ROUND_TRIPS * trip_ms;
        sends->received = stream->bytes_received;
    }
    if (atomic_load_explicit(&flow->collective->held_ms, memory_order_relaxed) < sends->moved_ms)
        atomic_store_explicit(&flow->collective->held_ms, sends->moved_ms, memory_order_relaxed);
}

bool ahead_feed(struct flows *flows, const struct flow *flow, struct direct_member *member)
{
    const struct peer_sends *sends = &member->peer->sends;
    if (member->asks) {
        member->asks = false;
        return direct_say(flows, flow, member->peer,
                          (struct direct_word){.part = DIRECT_ASK,
                                               .credit = member->finals_in.count,
                                               .weight = member->receive->elements});
    }
    if (!member->waits)
        return false;
    if (sends->sent - sends->known < LOCKSTEP_SENDS_AHEAD) {
        ahead_go(flow, member);
        return false;
    }
    if (!member->announced)
        return ahead_announce(flows, flow, member);
    ahead_watch(flow, member);
    return false;
}

const char *ahead_check(const struct direct_member *member, const struct frame_header *header)
{
    return member->paced && member->announced && header->payload_bytes == 0 &&
                   header->credit == member->finals_out.count
               ? NULL
               : "it asks for a part that was not announced";
}

void ahead_asked(const struct flow *flow, struct direct_member *member)
{
    if (member->waits)
        ahead_go(flow, member);
}

bool ahead_is_late(struct flows *flows, const struct frame_header *header)
{
    const struct flow *flow = flow_known(flows, header);
    return header->payload_bytes == 0 && header->used_bytes == 0 &&
           (!flow || (flow->collective && !flow->part));
}

const char *ahead_credit(struct peer_link *peer, const struct frame_header *header)
{
    struct peer_sends *sends = &peer->sends;
    const uint32_t more = header->credit - sends->known; // The numbers may wrap.
    if (more == 0 || more > sends->sent - sends->known)
        return "it has taken parts that this rank has not sent";
    sends->known = header->credit;
    return NULL;
}

// ---- the receiver -------------------------------------------------------------------------------

void ahead_taken(struct flows *flows, const struct direct_member *member)
{
    struct peer_link *peer = member->peer;
    if (++peer->sends.taken - peer->sends.told < LOCKSTEP_SENDS_TOLD || peer->left)
        return;
    peer->sends.told = peer->sends.taken;
    const struct frame_header header = {.kind = FRAME_CREDIT,
                                        .generation = flows->world.generation,
                                        .part = FRAME_CREDIT_SENDS,
                                        .credit = peer->sends.taken};
    struct out_frame *frame = flows_frame(flows, &header);
    if (frame)
        stream_queue(&peer->stream, frame);
    else
        peer_lose(peer, peer_no_memory);
}
