// SPDX-License-Identifier: Apache-2.0
//
// Connections that have come in and have proven nothing yet (guests). Engine thread.
//
// Rules for a connection that has come in (a guest):
// - garbage, a frame that is no hello, bytes after a hello, or a hello that takes longer than
//   LOCKSTEP_HELLO_MS: refused;
// - a hello for another generation, rank or world size, or with a wrong proof: refused;
// - a member that encrypts when this rank does not, or the other way round: refused, and forming
//   has failed;
// - no place is free: the oldest guest without a whole hello is refused, else the oldest guest
//   whose hello waits for transport_form.
// The connection of a refused guest is closed, and a member tries again until its deadline. So a
// stranger that fills all places can delay a member, which needs one round trip for its hello, only
// by opening more than LOCKSTEP_MAX_UNPROVEN connections in that time, again and again.

#include "worker/transport/guests.h"

#include "base/clock.h"
#include "worker/link/crypto.h"
#include "worker/link/tls.h"
#include "worker/transport/descriptors.h"
#include "worker/transport/doors.h"
#include "worker/transport/form.h"
#include "worker/transport/frames.h"
#include "worker/transport/state.h"
#include "worker/transport/transport.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

static void guest_end(struct transport *transport, struct guest *guest)
{
    transport_unwatch(transport, guest->link->fd);
    guest->link->ops->close(guest->link, false);
    guest->link = NULL;
    transport->forming.guest_count--;
}

void guest_refuse(struct transport *transport, struct guest *guest)
{
    transport->flows.totals.strangers_refused++;
    guest_end(transport, guest);
}

// True if the header that the guest sent can belong to a hello.
static bool guest_is_hello(const struct guest *guest)
{
    struct frame_header header;
    return frame_decode(guest->bytes, &header, NULL) == FRAME_OK && header.kind == FRAME_HELLO &&
           header.payload_bytes == LOCKSTEP_NONCE_BYTES + LOCKSTEP_PROOF_BYTES &&
           header.used_bytes == 0;
}

// Receives the rest of the hello, as far as it has arrived. False: the guest was refused.
static bool guest_receive(struct transport *transport, struct guest *guest)
{
    while (guest->received < LOCKSTEP_HELLO_BYTES) {
        // The payload is read only after the header was checked.
        const uint32_t end = guest->received < LOCKSTEP_FRAME_HEADER_BYTES
                                 ? LOCKSTEP_FRAME_HEADER_BYTES
                                 : LOCKSTEP_HELLO_BYTES;
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

void guests_ready(struct transport *transport, struct guest *guest)
{
    if (!guest->link)
        return;
    const bool heard_before = guest->heard;
    if (!heard_before && (!guest_receive(transport, guest) || !guest->heard))
        return;
    if (!heard_before && transport->forming.has_world) {
        form_decide_guest(transport, guest);
        return;
    }
    // A guest that has sent its hello must wait for the welcome: more bytes, or the end of the
    // connection, are refused. They may have come with the hello, and no event tells of them then.
    uint8_t byte = 0;
    const struct iovec vector = {.iov_base = &byte, .iov_len = 1};
    if (guest->link->ops->receive(guest->link, &vector, 1) >= 0 || errno != EAGAIN)
        guest_refuse(transport, guest);
}

// Returns the oldest guest that has sent a whole hello (heard), or that has not; NULL: none.
static struct guest *guest_oldest(struct transport *transport, bool heard)
{
    struct guest *oldest = NULL;
    for (uint32_t i = 0; i < LOCKSTEP_MAX_UNPROVEN; i++) {
        struct guest *guest = &transport->forming.guests[i];
        if (guest->link && guest->heard == heard && (!oldest || guest->number < oldest->number))
            oldest = guest;
    }
    return oldest;
}

// Returns a free place. If all are taken, refuses the oldest guest first.
static struct guest *guest_place(struct transport *transport)
{
    if (transport->forming.guest_count == LOCKSTEP_MAX_UNPROVEN) {
        struct guest *oldest = guest_oldest(transport, false);
        guest_refuse(transport, oldest ? oldest : guest_oldest(transport, true));
    }
    struct guest *guest = transport->forming.guests;
    while (guest->link)
        guest++;
    return guest;
}

// Sends the challenge. These are the first bytes on the connection, so the socket buffer has room
// for them, however slow the other side is.
static bool guest_challenge(struct guest *guest)
{
    const struct frame_header header = {.kind = FRAME_CHALLENGE,
                                        .payload_bytes = LOCKSTEP_NONCE_BYTES};
    uint8_t bytes[LOCKSTEP_CHALLENGE_BYTES];
    uint32_t done = 0;
    if (!crypto_random(guest->challenge, sizeof(guest->challenge)))
        return false;
    frame_encode(&header, bytes);
    memcpy(bytes + LOCKSTEP_FRAME_HEADER_BYTES, guest->challenge, sizeof(guest->challenge));
    while (done < sizeof(bytes)) {
        const struct iovec vector = {.iov_base = bytes + done, .iov_len = sizeof(bytes) - done};
        const ssize_t sent = guest->link->ops->send(guest->link, &vector, 1);
        if (sent <= 0)
            return false;
        done += (uint32_t)sent;
    }
    return true;
}

// Accepts the next connection, which is encrypted if the transport encrypts. NULL: no connection
// waits, or this rank lacks descriptors or memory to accept it.
static struct link *guest_next(struct transport *transport, struct listener *listener)
{
    errno = 0;
    struct link *link = listener->ops->accept(listener);
    if (link && transport->encrypts && listener != transport->doors.mates)
        link = link_encrypt(link, true);
    if (link)
        doors_have(transport);
    else if (doors_lack(transport, errno))
        doors_rest(transport);
    return link;
}

void guests_accept(struct transport *transport, struct listener *listener)
{
    struct link *link = NULL;
    while ((link = guest_next(transport, listener))) {
        struct guest *guest = guest_place(transport);
        *guest = (struct guest){.endpoint = {ENDPOINT_GUEST},
                                .link = link,
                                .since_ms = clock_now_ms(),
                                .number = transport->forming.guest_number++};
        transport->forming.guest_count++;
        if (transport_watch(transport, link->fd, &guest->endpoint, true) && guest_challenge(guest))
            guests_ready(transport, guest);
        else
            guest_refuse(transport, guest);
    }
    transport->flows.totals.strangers_refused += listener->refused;
    listener->refused = 0;
}

void guests_forget(struct transport *transport)
{
    for (uint32_t i = 0; i < LOCKSTEP_MAX_UNPROVEN; i++)
        if (transport->forming.guests[i].link)
            guest_end(transport, &transport->forming.guests[i]);
}

void guests_tick(struct transport *transport, uint64_t now_ms)
{
    for (uint32_t i = 0; transport->forming.guest_count > 0 && i < LOCKSTEP_MAX_UNPROVEN; i++) {
        struct guest *guest = &transport->forming.guests[i];
        if (!guest->link)
            continue;
        if (guest->heard && transport->forming.has_world)
            form_decide_guest(transport, guest);
        else if (!guest->heard && now_ms >= guest->since_ms + LOCKSTEP_HELLO_MS)
            guest_refuse(transport, guest);
    }
}

uint64_t guests_deadline(const struct transport *transport)
{
    uint64_t deadline = UINT64_MAX;
    for (uint32_t i = 0; transport->forming.guest_count > 0 && i < LOCKSTEP_MAX_UNPROVEN; i++) {
        const struct guest *guest = &transport->forming.guests[i];
        if (guest->link && !guest->heard && guest->since_ms + LOCKSTEP_HELLO_MS < deadline)
            deadline = guest->since_ms + LOCKSTEP_HELLO_MS;
    }
    return deadline;
}
