// SPDX-License-Identifier: Apache-2.0
//
// How the links of a generation are made, and which connections are refused. Engine thread.
//
// Every pair of neighbours (protos/topology.h) has one connection, and so has any other pair of
// ranks for which a collective wants one (further.c); the higher rank makes it. The accepting rank
// sends a challenge. The connecting rank answers with a hello, which carries its proof of
// membership. Then the accepting rank sends a welcome with its own proof (worker/link/hello.h). A
// connection that has not proven membership takes one of LOCKSTEP_MAX_UNPROVEN places and the bytes
// of one hello, nothing else: this rank decodes no other frame of it and sends it only the
// challenge. A peer may learn of the generation before this rank does: a whole hello that comes
// early waits in its place for transport_form.
//
// Mates (ranks of one host) are connected through shared memory where that is possible. The address
// of a rank also names a unix socket, and the connecting side tries that socket first. A missing
// socket, a socket of another user and missing memory are noticed at once; then the mates connect
// by TCP, as all other ranks do.
//
// guests.c has the connections that have come in and have proven nothing yet.

#include "worker/transport/form.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/link/crypto.h"
#include "worker/link/tls.h"
#include "worker/link/unix.h"
#include "worker/transport/descriptors.h"
#include "worker/transport/doors.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/waves.h"
#include "worker/transport/frames.h"
#include "worker/transport/further.h"
#include "worker/transport/guests.h"
#include "worker/transport/host/setup.h"
#include "worker/transport/lifecycle.h"
#include "worker/transport/measure.h"
#include "worker/transport/ports.h"
#include "worker/transport/state.h"
#include "worker/transport/transport.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

// The first pause between two attempts to connect. Each pause is twice the one before.
#define FORM_PAUSE_MS 2
#define FORM_PAUSE_MOST_MS 200
#define FORM_ATTEMPT_MS 3000 // The time limit of one attempt to connect.
#define FORM_WAITER_MS 500 // How much longer than others a rank waits that connects to nobody.
#define FORM_MATE_MS 2000 // How long a mate is tried through shared memory before TCP is tried.

// ---- proofs -------------------------------------------------------------------------------------

// What two ranks prove to each other, except the nonces.
static struct hello form_hello(const struct transport *transport, uint32_t connector,
                               uint32_t acceptor)
{
    const struct transport_world *world = &transport->flows.world;
    return (struct hello){.secret = world->secret,
                          .generation = world->generation,
                          .world_size = world->world_size,
                          .encrypts = transport->encrypts,
                          .connector = connector,
                          .acceptor = acceptor};
}

// Queues a HELLO or WELCOME frame; without memory for it the peer is lost. nonce NULL: the frame
// has none.
static void form_say(struct peer_link *peer, enum frame_kind kind, const uint8_t *nonce,
                     const uint8_t *proof)
{
    struct transport *transport = transport_of(peer);
    const uint32_t nonce_bytes = nonce ? LOCKSTEP_NONCE_BYTES : 0;
    const struct frame_header header = {
        .kind = kind,
        .payload_bytes = nonce_bytes + LOCKSTEP_PROOF_BYTES,
        .generation = transport->flows.world.generation,
        .part = peer->rank,
        .chunk = transport->flows.world.rank,
        .credit = transport->encrypts,
    };
    struct wave_block *block = scratch_get(&transport->flows.pools.wave_blocks);
    struct out_frame *frame = block ? flows_frame(&transport->flows, &header) : NULL;
    if (!frame) {
        if (block)
            scratch_put(&transport->flows.pools.wave_blocks, block);
        peer_lose(peer, peer_no_memory);
        return;
    }
    if (nonce)
        memcpy(block->payload, nonce, nonce_bytes);
    memcpy(block->payload + nonce_bytes, proof, LOCKSTEP_PROOF_BYTES);
    frame->block = block;
    frame->pool = &transport->flows.pools.wave_blocks;
    frame->buffer = block->payload;
    frame->source = SOURCE_BUFFER;
    stream_queue(&peer->stream, frame);
}

// Answers a challenge with a hello. Returns NULL, or why that is impossible.
static const char *form_say_hello(struct peer_link *peer)
{
    uint8_t proof[LOCKSTEP_PROOF_BYTES];
    if (!crypto_random(peer->hello.nonce, sizeof(peer->hello.nonce)) ||
        !hello_prove(&peer->hello, HELLO_CONNECTOR, proof))
        return "this process cannot make proofs";
    form_say(peer, FRAME_HELLO, peer->hello.nonce, proof);
    peer->state = PEER_PROVING;
    return NULL;
}

void form_check_complete(struct transport *transport)
{
    if (!transport->forming.has_world || transport->flows.formed || transport->forming.failed)
        return;
    for (uint32_t i = 0; i < transport->flows.peer_count; i++) {
        const struct peer_link *peer = &transport->flows.peers[i];
        struct link *link = peer->stream.link;
        if (peer->state != PEER_PROVEN || (link && link->ops->ready && !link->ops->ready(link)))
            return;
    }
    if (host_settled(&transport->flows) && measure_settled(transport, clock_now_ms()))
        transport->flows.formed = true;
}

// The other side has proven membership: the link may receive descriptors from now on, and an
// encrypted link gets its key. Without a key the link never becomes ready.
static void form_trust(struct peer_link *peer)
{
    struct link *link = peer->stream.link;
    uint8_t key[LOCKSTEP_PROOF_BYTES];
    if (link->ops->proven && hello_key(&peer->hello, key))
        link->ops->proven(link, key);
    crypto_forget(key, sizeof(key));
}

// A member encrypts and this rank does not, or the other way round: more attempts would not help.
static void form_differ(struct peer_link *peer)
{
    peer->differs = true;
    transport_of(peer)->forming.differs = true;
    transport_of(peer)->forming.failed = true;
}

static void form_stands(struct peer_link *peer)
{
    peer->state = PEER_PROVEN;
    peer->text[0] = '\0';
    peer->flows->links.unmade -= peer->further;
    host_proven(peer);
    form_check_complete(transport_of(peer));
}

const char *form_frame_begins(struct peer_link *peer)
{
    struct stream *stream = &peer->stream;
    const bool challenge = stream->header.kind == FRAME_CHALLENGE;
    if (stream->header.kind == FRAME_HELLO || peer->state != (challenge ? PEER_MET : PEER_PROVING))
        return "nobody awaits it";
    if (stream->header.payload_bytes != (challenge ? LOCKSTEP_NONCE_BYTES : LOCKSTEP_PROOF_BYTES))
        return "its length is wrong";
    stream->target.kind = TARGET_BUFFER;
    stream->target.buffer = challenge ? peer->hello.challenge : peer->proof;
    return NULL;
}

const char *form_frame_ended(struct peer_link *peer)
{
    const struct frame_header *header = &peer->stream.header;
    const struct generation_id *own = &peer->flows->world.generation;
    if (header->kind == FRAME_CHALLENGE)
        return form_say_hello(peer);
    if (header->generation.number != own->number ||
        header->generation.incarnation != own->incarnation)
        return "its generation is another one";
    if (header->chunk != peer->rank || header->part != peer->flows->world.rank)
        return "its rank is another one";
    if (header->credit != transport_of(peer)->encrypts)
        return "its encryption is another one";
    if (!hello_check(&peer->hello, HELLO_ACCEPTOR, peer->proof))
        return "it proves no membership";
    form_trust(peer);
    form_stands(peer);
    return NULL;
}

// ---- guests -------------------------------------------------------------------------------------

// Turns a guest that has proven membership into a peer. hello: the data of both proofs.
static void guest_admit(struct transport *transport, struct guest *guest, struct peer_link *peer,
                        const struct hello *hello, const uint8_t proof[LOCKSTEP_PROOF_BYTES])
{
    struct link *link = guest->link;
    peer->hello = *hello;
    guest->link = NULL;
    transport->forming.guest_count--;
    transport_unwatch(transport, link->fd);
    const bool watched = transport_watch(transport, link->fd, &peer->endpoint, true);
    stream_open(&peer->stream, link, &transport_stream_owner, peer);
    if (!watched) {
        peer_lose(peer, peer_no_memory);
        return;
    }
    form_trust(peer);
    form_say(peer, FRAME_WELCOME, NULL, proof);
    form_stands(peer);
}

// True if a guest can be the rank that its hello names: a higher rank of this generation that wants
// this rank. peer: the struct of the link to that rank; NULL: there is none yet.
static bool guest_can_be(const struct transport *transport, const struct frame_header *header,
                         const struct peer_link *peer)
{
    const struct transport_world *world = &transport->flows.world;
    if (transport->forming.leaving || header->generation.number != world->generation.number ||
        header->generation.incarnation != world->generation.incarnation ||
        header->part != world->rank || header->credit > 1 || header->chunk <= world->rank ||
        header->chunk >= world->world_size)
        return false;
    return !peer || (peer->state == PEER_WAITING && !peer->lost);
}

// Admits or refuses a guest. Its whole hello has arrived and the generation is known.
void form_decide_guest(struct transport *transport, struct guest *guest)
{
    struct frame_header header;
    uint8_t proof[LOCKSTEP_PROOF_BYTES];
    const enum frame_status status = frame_decode(guest->bytes, &header, NULL);
    assert(status == FRAME_OK);
    (void)status;
    const uint8_t *nonce = guest->bytes + LOCKSTEP_FRAME_HEADER_BYTES;
    struct peer_link *peer = peer_of_rank(&transport->flows, header.chunk);
    if (!guest_can_be(transport, &header, peer)) {
        guest_refuse(transport, guest);
        return;
    }
    struct hello hello = form_hello(transport, header.chunk, transport->flows.world.rank);
    memcpy(hello.challenge, guest->challenge, LOCKSTEP_NONCE_BYTES);
    memcpy(hello.nonce, nonce, LOCKSTEP_NONCE_BYTES);
    hello.encrypts = header.credit != 0;
    const bool member = hello_check(&hello, HELLO_CONNECTOR, nonce + LOCKSTEP_NONCE_BYTES);
    const bool differs = hello.encrypts != transport->encrypts;
    if (member && differs && peer && !peer->further)
        form_differ(peer);
    const bool proven = member && !differs && hello_prove(&hello, HELLO_ACCEPTOR, proof);
    if (proven && !peer)
        peer = further_admit(transport, header.chunk);
    if (proven && peer)
        guest_admit(transport, guest, peer, &hello, proof);
    else
        guest_refuse(transport, guest);
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

// An attempt to connect has failed. The text names the address, which may be of no use here.
static void form_cannot(struct peer_link *peer, const char *why)
{
    char buffer[TRANSPORT_TEXT_BYTES];
    struct text text;
    text_init(&text, buffer, sizeof(buffer));
    text_append(&text, "cannot connect to %.*s: %s; see LOCKSTEP_ADVERTISE there",
                (int)strcspn(peer->address, ";"), peer->address, why);
    form_peer_ended(peer, buffer);
}

static void form_connected(struct peer_link *peer)
{
    const int connected = peer->stream.link->ops->connected(peer->stream.link);
    char text[64];
    if (connected == 0)
        return;
    if (connected < 0) {
        form_cannot(peer, strerror_r(errno, text, sizeof(text)));
        return;
    }
    peer->state = PEER_MET;
    peer->hello = form_hello(transport_of(peer), peer->flows->world.rank, peer->rank);
}

static bool form_is_mate(const struct transport *transport, uint32_t rank)
{
    const struct locality *locality = &transport->flows.world.locality;
    for (uint32_t i = 0; i < locality->mate_count; i++)
        if (locality->mates[i] == rank)
            return true;
    return false;
}

// Connects to a mate through shared memory. NULL: the peer is no mate, or this is not possible. A
// rank that is not in this generation yet can accept such a link and then close it, so a mate is
// tried this way for FORM_MATE_MS before it is tried by TCP.
static struct link *form_connect_mate(struct peer_link *peer, uint64_t now_ms)
{
    const struct transport *transport = transport_of(peer);
    char token[LINK_TOKEN_BYTES];
    if (!transport->doors.mates || !form_is_mate(transport, peer->rank) ||
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
    struct transport *transport = transport_of(peer);
    errno = 0;
    struct link *link = form_connect_mate(peer, now_ms);
    const bool mate = link != NULL;
    if (!mate)
        link = link_connect(peer->address, transport->torn_bytes, peer->text, sizeof(peer->text));
    if (link && !mate && transport->encrypts)
        link = link_encrypt(link, false);
    if (!link) {
        (void)doors_lack(transport, errno);
        form_retry(peer, now_ms);
        return;
    }
    doors_have(transport);
    stream_open(&peer->stream, link, &transport_stream_owner, peer);
    peer->state = PEER_CONNECTING;
    peer->retry_ms = now_ms + FORM_ATTEMPT_MS;
    if (transport_watch(transport, link->fd, &peer->endpoint, true))
        form_connected(peer);
    else
        form_peer_ended(peer, "this rank cannot wait for it");
}

void form_peer_ready(struct peer_link *peer)
{
    if (peer->state == PEER_CONNECTING)
        form_connected(peer);
}

// The time in ms at which this rank gives up. Only the side that connects knows why it could not,
// and every rank says what the first report says. So a rank that only waits for connections gives
// up later than those that try to connect.
static uint64_t form_fails_ms(const struct transport *transport)
{
    for (uint32_t i = 0; i < transport->flows.peer_count; i++) {
        const struct peer_link *peer = &transport->flows.peers[i];
        if (peer->connects && peer->state != PEER_PROVEN)
            return transport->flows.form_deadline_ms;
    }
    return transport->flows.form_deadline_ms + FORM_WAITER_MS;
}

static void form_fail(struct transport *transport)
{
    transport->forming.failed = true;
    for (uint32_t i = 0; i < transport->flows.peer_count; i++) {
        struct peer_link *peer = &transport->flows.peers[i];
        if (peer->state != PEER_PROVEN && peer->text[0] == '\0')
            text_copy(peer->text, sizeof(peer->text),
                      peer->connects ? "it did not answer" : "it did not connect");
    }
}

void form_tick_peer(struct peer_link *peer, uint64_t now_ms)
{
    if (!peer->connects || now_ms < peer->retry_ms)
        return;
    if (peer->state == PEER_WAITING)
        form_connect(peer, now_ms);
    else if (peer->state == PEER_CONNECTING)
        form_cannot(peer, "no answer");
}

void form_tick(struct transport *transport, uint64_t now_ms)
{
    doors_tick(transport, now_ms);
    if (!transport->ports.met || now_ms >= transport->ports.due_ms)
        ports_tick(transport, now_ms);
    guests_tick(transport, now_ms);
    if (transport->forming.has_world)
        further_tick(transport, now_ms);
    if (!transport->forming.has_world || transport->flows.formed || transport->forming.failed)
        return;
    for (uint32_t i = 0; i < transport->flows.peer_count; i++)
        form_tick_peer(&transport->flows.peers[i], now_ms);
    form_check_complete(transport);
    if (!transport->flows.formed &&
        (now_ms >= form_fails_ms(transport) || doors_despair(transport, now_ms)))
        form_fail(transport);
}

uint64_t form_deadline(const struct transport *transport)
{
    uint64_t deadline = doors_deadline(transport);
    if (ports_deadline(transport) < deadline)
        deadline = ports_deadline(transport);
    if (guests_deadline(transport) < deadline)
        deadline = guests_deadline(transport);
    if (further_deadline(transport) < deadline)
        deadline = further_deadline(transport);
    if (!transport->forming.has_world || transport->flows.formed || transport->forming.failed)
        return deadline;
    if (form_fails_ms(transport) < deadline)
        deadline = form_fails_ms(transport);
    if (host_deadline(&transport->flows) < deadline)
        deadline = host_deadline(&transport->flows);
    if (measure_deadline(transport) < deadline)
        deadline = measure_deadline(transport);
    for (uint32_t i = 0; i < transport->flows.peer_count; i++) {
        const struct peer_link *peer = &transport->flows.peers[i];
        const bool waits = peer->state == PEER_WAITING || peer->state == PEER_CONNECTING;
        if (peer->connects && waits && peer->retry_ms < deadline)
            deadline = peer->retry_ms;
    }
    return deadline;
}
