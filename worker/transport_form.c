// SPDX-License-Identifier: Apache-2.0
//
// How the links of a generation come to stand, and who is kept out. Engine thread.
//
// Every pair of neighbours (protos/topology.h) has one connection; the higher rank makes it. Its
// first frame is a hello with the generation, its rank, the world's size and the generation's
// secret; the answer is the same from the other side. Before a connection has proven membership it
// may cost this rank one of LOCKSTEP_MAX_UNPROVEN places and the bytes of one hello, nothing else:
// no other frame is decoded, and nothing is answered. A peer may be told of the generation before
// this rank is: a whole hello that comes early waits in its place for transport_form.
//
// Mates (ranks of one host) are reached through memory where that is possible: the address of a
// rank names a unix socket besides, and the connecting side tries that first. Nobody of that name,
// a name of another user or no memory is known at once, and then they meet as all others do.
//
// Rules for a connection that has come in (a guest):
// - garbage, a frame that is no hello, or a hello slower than LOCKSTEP_HELLO_MS: refused;
// - a hello of another generation, rank, size or secret than this generation's: refused;
// - no place is free: the oldest guest without a hello makes room, else the newcomer is refused.
// Whoever is refused finds its connection closed, and a member tries again until its deadline.

#include "base/clock.h"
#include "base/text.h"
#include "worker/transport_parts.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#define FORM_PAUSE_MS 2 // Between attempts at first; it doubles.
#define FORM_PAUSE_MOST_MS 200
#define FORM_ATTEMPT_MS 3000 // One attempt to connect.
#define FORM_MATE_MS 2000 // Attempts to reach a mate through memory.

struct peer_link *transport_peer(struct transport *transport, uint32_t rank)
{
    for (uint32_t i = 0; i < transport->peer_count; i++)
        if (transport->peers[i].rank == rank)
            return &transport->peers[i];
    return NULL;
}

// ---- hello --------------------------------------------------------------------------------------

static void form_put32(uint8_t *bytes, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
}

static void form_proof(const struct transport_world *world, uint8_t proof[TRANSPORT_PROOF_BYTES])
{
    memcpy(proof, world->secret, LOCKSTEP_SECRET_BYTES);
    form_put32(proof + LOCKSTEP_SECRET_BYTES, world->world_size);
}

// Takes the same time wherever the first difference is.
static bool form_proof_equal(const uint8_t *a, const uint8_t *b)
{
    uint8_t differs = 0;
    for (size_t i = 0; i < TRANSPORT_PROOF_BYTES; i++)
        differs |= a[i] ^ b[i];
    return differs == 0;
}

static void form_say_hello(struct peer_link *peer)
{
    struct transport *transport = peer->transport;
    const struct frame_header header = {
        .kind = FRAME_HELLO,
        .payload_bytes = TRANSPORT_PROOF_BYTES,
        .generation = transport->world.generation,
        .part = peer->rank,
        .chunk = transport->world.rank,
    };
    struct wave_block *block = scratch_get(&transport->wave_blocks);
    struct out_frame *frame = block ? transport_frame(transport, &header) : NULL;
    if (!frame) {
        if (block)
            scratch_put(&transport->wave_blocks, block);
        transport_lose(peer, "out of memory here");
        return;
    }
    form_proof(&transport->world, block->payload);
    frame->block = block;
    frame->pool = &transport->wave_blocks;
    frame->buffer = block->payload;
    frame->source = SOURCE_BUFFER;
    stream_queue(&peer->stream, frame);
}

// Whether a hello comes from the peer of this generation with this rank. NULL, or why not.
static const char *form_examine(const struct transport *transport,
                                const struct frame_header *header, const uint8_t *proof)
{
    const struct transport_world *world = &transport->world;
    uint8_t expected[TRANSPORT_PROOF_BYTES];
    if (header->generation.number != world->generation.number ||
        header->generation.incarnation != world->generation.incarnation)
        return "its generation is another one";
    form_proof(world, expected);
    if (!form_proof_equal(expected, proof))
        return "its secret or its world's size is another one";
    return header->part == world->rank ? NULL : "it means another rank";
}

void form_check_complete(struct transport *transport)
{
    if (!transport->has_world || transport->formed || transport->form_failed)
        return;
    for (uint32_t i = 0; i < transport->peer_count; i++) {
        const struct peer_link *peer = &transport->peers[i];
        struct link *link = peer->stream.link;
        if (peer->state != PEER_PROVEN || (link && link->ops->ready && !link->ops->ready(link)))
            return;
    }
    if (shared_settled(transport) && measure_settled(transport, clock_now_ms()))
        transport->formed = true;
}

// The other side has proven membership: it may pass descriptors from now on.
static void form_trust(struct link *link)
{
    if (link->ops->proven)
        link->ops->proven(link);
}

static void form_stands(struct peer_link *peer)
{
    peer->state = PEER_PROVEN;
    peer->text[0] = '\0';
    shared_proven(peer);
    form_check_complete(peer->transport);
}

const char *form_proven(struct peer_link *peer)
{
    const struct frame_header *header = &peer->stream.header;
    const char *text = form_examine(peer->transport, header, peer->proof);
    if (text)
        return text;
    if (header->chunk != peer->rank)
        return "its rank is another one";
    form_trust(peer->stream.link);
    form_stands(peer);
    return NULL;
}

// ---- guests -------------------------------------------------------------------------------------

static void guest_end(struct transport *transport, struct guest *guest)
{
    transport_unwatch(transport, guest->link->fd);
    guest->link->ops->close(guest->link, false);
    guest->link = NULL;
    transport->guest_count--;
}

static void guest_refuse(struct transport *transport, struct guest *guest)
{
    transport->totals.strangers_refused++;
    guest_end(transport, guest);
}

// Makes a peer of a guest whose hello agrees.
static void guest_admit(struct transport *transport, struct guest *guest, struct peer_link *peer)
{
    struct link *link = guest->link;
    guest->link = NULL;
    transport->guest_count--;
    transport_unwatch(transport, link->fd);
    transport_watch(transport, link->fd, &peer->endpoint, true);
    stream_open(&peer->stream, link, &transport_stream_owner, peer);
    form_trust(link);
    form_say_hello(peer);
    form_stands(peer);
}

// A whole hello is there and the generation is known.
static void guest_decide(struct transport *transport, struct guest *guest)
{
    struct frame_header header;
    const enum frame_status status = frame_decode(guest->bytes, &header, NULL);
    assert(status == FRAME_OK);
    (void)status;
    const uint8_t *proof = guest->bytes + LOCKSTEP_FRAME_HEADER_BYTES;
    struct peer_link *peer = NULL;
    if (!form_examine(transport, &header, proof))
        peer = transport_peer(transport, header.chunk);
    if (peer && !peer->connects && peer->state == PEER_WAITING)
        guest_admit(transport, guest, peer);
    else
        guest_refuse(transport, guest);
}

// Whether the header can be the one of a hello.
static bool guest_is_hello(const struct guest *guest)
{
    struct frame_header header;
    return frame_decode(guest->bytes, &header, NULL) == FRAME_OK && header.kind == FRAME_HELLO &&
           header.payload_bytes == TRANSPORT_PROOF_BYTES && header.used_bytes == 0;
}

// Receives what is missing of the hello. False: the guest is gone.
static bool guest_receive(struct transport *transport, struct guest *guest)
{
    while (guest->received < TRANSPORT_HELLO_BYTES) {
        // The payload is read only when the header is right.
        const uint32_t end = guest->received < LOCKSTEP_FRAME_HEADER_BYTES
                                 ? LOCKSTEP_FRAME_HEADER_BYTES
                                 : TRANSPORT_HELLO_BYTES;
        struct iovec vector = {.iov_base = guest->bytes + guest->received,
                               .iov_len = end - guest->received};
        const ssize_t received = guest->link->ops->receive(guest->link, &vector, 1);
        if (received < 0 && errno == EAGAIN)
            return true;
        if (received > 0)
            guest->received += (uint32_t)received;
        if (received <= 0 ||
            (guest->received == LOCKSTEP_FRAME_HEADER_BYTES && !guest_is_hello(guest))) {
            guest_refuse(transport, guest);
            return false;
        }
    }
    guest->heard = true;
    return true;
}

void form_guest_ready(struct transport *transport, struct guest *guest)
{
    if (!guest->link)
        return;
    if (guest->heard) {
        // It has said all that it may say before it is answered: more of it, or its end, is wrong.
        uint8_t byte = 0;
        const struct iovec vector = {.iov_base = &byte, .iov_len = 1};
        if (guest->link->ops->receive(guest->link, &vector, 1) >= 0 || errno != EAGAIN)
            guest_refuse(transport, guest);
        return;
    }
    if (guest_receive(transport, guest) && guest->heard && transport->has_world)
        guest_decide(transport, guest);
}

// The oldest guest without a whole hello, or NULL.
static struct guest *guest_slowest(struct transport *transport)
{
    struct guest *slowest = NULL;
    for (uint32_t i = 0; i < LOCKSTEP_MAX_UNPROVEN; i++) {
        struct guest *guest = &transport->guests[i];
        if (guest->link && !guest->heard && (!slowest || guest->number < slowest->number))
            slowest = guest;
    }
    return slowest;
}

static struct guest *guest_place(struct transport *transport)
{
    if (transport->guest_count == LOCKSTEP_MAX_UNPROVEN) {
        struct guest *slowest = guest_slowest(transport);
        if (!slowest)
            return NULL;
        guest_refuse(transport, slowest);
    }
    for (uint32_t i = 0; i < LOCKSTEP_MAX_UNPROVEN; i++)
        if (!transport->guests[i].link)
            return &transport->guests[i];
    return NULL;
}

void form_accept(struct transport *transport, struct listener *listener)
{
    struct link *link = NULL;
    while ((link = listener->ops->accept(listener)) != NULL) {
        struct guest *guest = guest_place(transport);
        if (!guest) {
            transport->totals.strangers_refused++;
            link->ops->close(link, false);
            continue;
        }
        *guest = (struct guest){.endpoint = {ENDPOINT_GUEST},
                                .link = link,
                                .since_ms = clock_now_ms(),
                                .number = transport->guest_number++};
        transport->guest_count++;
        transport_watch(transport, link->fd, &guest->endpoint, true);
        form_guest_ready(transport, guest);
    }
    transport->totals.strangers_refused += listener->refused;
    listener->refused = 0;
}

void form_forget_guests(struct transport *transport)
{
    for (uint32_t i = 0; i < LOCKSTEP_MAX_UNPROVEN; i++)
        if (transport->guests[i].link)
            guest_end(transport, &transport->guests[i]);
}

// ---- connecting ---------------------------------------------------------------------------------

static void form_retry(struct peer_link *peer, uint64_t now_ms)
{
    peer->state = PEER_WAITING;
    peer->retry_ms = now_ms + peer->pause_ms;
    if (peer->pause_ms < FORM_PAUSE_MOST_MS)
        peer->pause_ms *= 2;
}

void form_peer_ended(struct peer_link *peer, const char *text)
{
    text_copy(peer->text, sizeof(peer->text), text);
    transport_close_stream(peer, false);
    form_retry(peer, clock_now_ms());
}

static void form_connected(struct peer_link *peer)
{
    const int connected = peer->stream.link->ops->connected(peer->stream.link);
    char text[64];
    if (connected == 0)
        return;
    if (connected < 0) {
        form_peer_ended(peer, strerror_r(errno, text, sizeof(text)));
        return;
    }
    peer->state = PEER_PROVING;
    form_say_hello(peer);
}

static bool form_is_mate(const struct transport *transport, uint32_t rank)
{
    const struct locality *locality = &transport->world.locality;
    for (uint32_t i = 0; i < locality->mate_count; i++)
        if (locality->mates[i] == rank)
            return true;
    return false;
}

// A link in memory, to a mate that can be reached so. One that accepts such links and then closes
// them, as a rank does that is not in this generation yet, is given some time before links of
// another kind are tried.
static struct link *form_connect_mate(struct peer_link *peer, uint64_t now_ms)
{
    const struct transport *transport = peer->transport;
    char token[LINK_TOKEN_BYTES];
    if (!transport->mates || !form_is_mate(transport, peer->rank) ||
        !link_token(peer->address, token))
        return NULL;
    if (peer->mate_until_ms == 0)
        peer->mate_until_ms = now_ms + FORM_MATE_MS;
    if (now_ms >= peer->mate_until_ms)
        return NULL;
    return link_connect_unix(token, peer->text, sizeof(peer->text));
}

static void form_connect(struct peer_link *peer, uint64_t now_ms)
{
    struct transport *transport = peer->transport;
    struct link *link = form_connect_mate(peer, now_ms);
    if (!link)
        link = link_connect(peer->address, transport->torn_bytes, peer->text, sizeof(peer->text));
    if (!link) {
        form_retry(peer, now_ms);
        return;
    }
    stream_open(&peer->stream, link, &transport_stream_owner, peer);
    peer->state = PEER_CONNECTING;
    peer->retry_ms = now_ms + FORM_ATTEMPT_MS;
    transport_watch(transport, link->fd, &peer->endpoint, true);
    form_connected(peer);
}

void form_peer_ready(struct peer_link *peer)
{
    if (peer->state == PEER_CONNECTING)
        form_connected(peer);
}

static void form_fail(struct transport *transport)
{
    transport->form_failed = true;
    for (uint32_t i = 0; i < transport->peer_count; i++) {
        struct peer_link *peer = &transport->peers[i];
        if (peer->state != PEER_PROVEN && peer->text[0] == '\0')
            text_copy(peer->text, sizeof(peer->text),
                      peer->connects ? "it did not answer" : "it did not connect");
    }
}

static void form_tick_peer(struct peer_link *peer, uint64_t now_ms)
{
    if (!peer->connects || now_ms < peer->retry_ms)
        return;
    if (peer->state == PEER_WAITING)
        form_connect(peer, now_ms);
    else if (peer->state == PEER_CONNECTING)
        form_peer_ended(peer, "connection timed out");
}

void form_tick(struct transport *transport, uint64_t now_ms)
{
    for (uint32_t i = 0; transport->guest_count > 0 && i < LOCKSTEP_MAX_UNPROVEN; i++) {
        struct guest *guest = &transport->guests[i];
        if (!guest->link)
            continue;
        if (guest->heard && transport->has_world)
            guest_decide(transport, guest);
        else if (!guest->heard && now_ms >= guest->since_ms + LOCKSTEP_HELLO_MS)
            guest_refuse(transport, guest);
    }
    if (!transport->has_world || transport->formed || transport->form_failed)
        return;
    for (uint32_t i = 0; i < transport->peer_count; i++)
        form_tick_peer(&transport->peers[i], now_ms);
    form_check_complete(transport);
    if (!transport->formed && now_ms >= transport->form_deadline_ms)
        form_fail(transport);
}

uint64_t form_deadline(const struct transport *transport)
{
    uint64_t deadline = UINT64_MAX;
    for (uint32_t i = 0; transport->guest_count > 0 && i < LOCKSTEP_MAX_UNPROVEN; i++) {
        const struct guest *guest = &transport->guests[i];
        if (guest->link && !guest->heard && guest->since_ms + LOCKSTEP_HELLO_MS < deadline)
            deadline = guest->since_ms + LOCKSTEP_HELLO_MS;
    }
    if (!transport->has_world || transport->formed || transport->form_failed)
        return deadline;
    if (transport->form_deadline_ms < deadline)
        deadline = transport->form_deadline_ms;
    if (shared_deadline(transport) < deadline)
        deadline = shared_deadline(transport);
    if (measure_deadline(transport) < deadline)
        deadline = measure_deadline(transport);
    for (uint32_t i = 0; i < transport->peer_count; i++) {
        const struct peer_link *peer = &transport->peers[i];
        const bool waits = peer->state == PEER_WAITING || peer->state == PEER_CONNECTING;
        if (peer->connects && waits && peer->retry_ms < deadline)
            deadline = peer->retry_ms;
    }
    return deadline;
}
