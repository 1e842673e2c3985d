// SPDX-License-Identifier: Apache-2.0
//
// An encrypting link over another link. The first bytes of each direction, the proofs (link.h),
// pass unencrypted. When the peer has proven membership, both sides derive a key from a secret that
// only they have (hello.h), and all later bytes go through a channel (tls_channel.h). So a stranger
// never reaches the TLS handshake, and an attacker on the path who has forwarded both proofs fails
// in that handshake. Not here: OpenSSL, connecting. Thread: one owner at a time.
//
// Several small pieces share one record; a large piece is encrypted without a copy into `together`.
// The link keeps bytes that the link below does not take. Then `held` is true, and push sends the
// kept bytes.

#include "worker/link/tls.h"

#include "worker/link/link.h"
#include "worker/link/tls_channel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TLS_VECTORS 8 // Most vectors that one call uses for the proofs.
// Most bytes that OpenSSL may have read beyond the current record. No event reports these bytes.
#define TLS_AHEAD_BYTES (CRYPTO_RECORD_BYTES + 1024)

struct tls_link {
    struct link link;
    // set when made, then constant
    struct link *below;
    bool server; // True if this side accepted the connection.
    // the owner's
    struct tls_channel *channel; // NULL until the peer has proven membership.
    bool stands;
    int error; // 0: none.
    uint32_t plain_out; // Bytes of this side's proofs that are not sent yet.
    uint32_t plain_in; // Bytes of the peer's proofs that have not arrived yet.
    uint8_t together[CRYPTO_RECORD_BYTES];
};

static struct tls_link *tls_of(struct link *link)
{
    return (struct tls_link *)(void *)link;
}

static ssize_t tls_fail(struct tls_link *tls, int number)
{
    tls->error = number;
    errno = number;
    return -1;
}

// ---- below --------------------------------------------------------------------------------------

static ssize_t below_send(void *context, const void *bytes, size_t size)
{
    struct link *below = context;
    const struct iovec vector = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    return below->ops->send(below, &vector, 1);
}

static ssize_t below_receive(void *context, void *bytes, size_t size)
{
    struct link *below = context;
    const struct iovec vector = {.iov_base = bytes, .iov_len = size};
    return below->ops->receive(below, &vector, 1);
}

// Copies the vectors, cut to `bytes` bytes in all. Returns the number of vectors.
static int tls_cut(const struct iovec *iov, int count, size_t bytes, struct iovec cut[TLS_VECTORS])
{
    int used = 0;
    for (int i = 0; i < count && bytes > 0 && used < TLS_VECTORS; i++) {
        const size_t part = iov[i].iov_len < bytes ? iov[i].iov_len : bytes;
        if (part > 0)
            cut[used++] = (struct iovec){.iov_base = iov[i].iov_base, .iov_len = part};
        bytes -= part;
    }
    return used;
}

static ssize_t tls_send_plain(struct tls_link *tls, const struct iovec *iov, int count)
{
    struct iovec cut[TLS_VECTORS];
    const int used = tls_cut(iov, count, tls->plain_out, cut);
    const ssize_t sent = tls->below->ops->send(tls->below, cut, used);
    if (sent > 0)
        tls->plain_out -= (uint32_t)sent;
    return sent;
}

static ssize_t tls_receive_plain(struct tls_link *tls, const struct iovec *iov, int count)
{
    struct iovec cut[TLS_VECTORS];
    const int used = tls_cut(iov, count, tls->plain_in, cut);
    const ssize_t received = tls->below->ops->receive(tls->below, cut, used);
    if (received > 0)
        tls->plain_in -= (uint32_t)received;
    return received;
}

// ---- above --------------------------------------------------------------------------------------

static void tls_note_held(struct tls_link *tls)
{
    tls->link.held = tls->channel && tls_channel_held(tls->channel) > 0;
}

// True if the handshake of the channel is complete; else errno says why.
static bool tls_meets(struct tls_link *tls)
{
    if (tls->stands)
        return true;
    if (!tls->channel || tls->plain_out > 0 || tls->plain_in > 0) {
        errno = EAGAIN;
        return false;
    }
    const int met = tls_channel_meet(tls->channel);
    const int number = errno;
    tls->stands = met == 1;
    tls_note_held(tls);
    if (met < 0)
        (void)tls_fail(tls, number);
    else
        errno = EAGAIN;
    return tls->stands;
}

// Copies the bytes of the vectors into `together`, without the first `skip` bytes. Returns the
// number of bytes.
static size_t tls_gather(struct tls_link *tls, const struct iovec *iov, int count, size_t skip)
{
    size_t bytes = 0;
    for (int i = 0; i < count && bytes < sizeof(tls->together); i++) {
        const size_t left = iov[i].iov_len - skip;
        const size_t room = sizeof(tls->together) - bytes;
        const size_t part = left < room ? left : room;
        if (part > 0)
            memcpy(tls->together + bytes, (const uint8_t *)iov[i].iov_base + skip, part);
        bytes += part;
        skip = 0;
    }
    return bytes;
}

static ssize_t tls_send_channel(struct tls_link *tls, const struct iovec *iov, int count)
{
    size_t total = 0;
    size_t skip = 0; // Bytes of the first vector that were sent.
    for (;;) {
        while (count > 0 && skip >= iov->iov_len) {
            skip -= iov->iov_len;
            iov++;
            count--;
        }
        if (count == 0)
            break;
        const bool whole = iov->iov_len - skip >= CRYPTO_RECORD_BYTES;
        const size_t bytes = whole ? CRYPTO_RECORD_BYTES : tls_gather(tls, iov, count, skip);
        const ssize_t taken = tls_channel_send(
            tls->channel, whole ? (const uint8_t *)iov->iov_base + skip : tls->together, bytes);
        if (taken < 0 && total == 0)
            return -1;
        if (taken < 0)
            break;
        total += (size_t)taken;
        skip += (size_t)taken;
    }
    return (ssize_t)total;
}

static ssize_t tls_send(struct link *link, const struct iovec *iov, int count)
{
    struct tls_link *tls = tls_of(link);
    if (tls->error != 0) {
        errno = tls->error == ECONNRESET ? EPIPE : tls->error;
        return -1;
    }
    if (tls->plain_out > 0)
        return tls_send_plain(tls, iov, count);
    if (!tls_meets(tls))
        return -1;
    ssize_t sent = tls_send_channel(tls, iov, count);
    const int number = errno;
    if (sent > 0 && tls_channel_push(tls->channel) < 0 && errno != EAGAIN)
        sent = tls_fail(tls, errno);
    else if (sent < 0 && number != EAGAIN)
        (void)tls_fail(tls, number);
    tls_note_held(tls);
    if (sent < 0)
        errno = tls->error != 0 ? tls->error : EAGAIN;
    return sent;
}

static int tls_push(struct link *link)
{
    struct tls_link *tls = tls_of(link);
    const int status = tls->channel ? tls_channel_push(tls->channel) : 0;
    const int number = errno;
    tls_note_held(tls);
    errno = number;
    return status;
}

// Receives into one vector. If the vector is not filled, *end is 0 or -1: the end, an error, or no
// bytes now.
static size_t tls_receive_vector(struct tls_link *tls, const struct iovec *vector, ssize_t *end)
{
    uint8_t *bytes = vector->iov_base;
    size_t done = 0;
    while (done < vector->iov_len) {
        *end = tls_channel_receive(tls->channel, bytes + done, vector->iov_len - done);
        if (*end <= 0)
            break;
        done += (size_t)*end;
    }
    return done;
}

static ssize_t tls_receive(struct link *link, const struct iovec *iov, int count)
{
    struct tls_link *tls = tls_of(link);
    ssize_t end = 1;
    size_t total = 0;
    if (tls->error != 0)
        return tls_fail(tls, tls->error);
    if (tls->plain_in > 0)
        return tls_receive_plain(tls, iov, count);
    // A stranger sent more than its proofs. The owner of the link will refuse it.
    if (!tls->channel)
        return tls->below->ops->receive(tls->below, iov, count);
    if (!tls_meets(tls))
        return -1;
    for (int i = 0; i < count; i++) {
        // The last vector is for bytes that follow the target: no record is decrypted for it alone.
        if (total > 0 && i == count - 1 && tls_channel_readable(tls->channel) == 0)
            break;
        const size_t part = tls_receive_vector(tls, &iov[i], &end);
        total += part;
        if (part < iov[i].iov_len)
            break;
    }
    if (total > 0)
        return (ssize_t)total;
    if (end < 0 && errno != EAGAIN)
        return tls_fail(tls, errno);
    return end;
}

static size_t tls_readable(struct link *link)
{
    struct tls_link *tls = tls_of(link);
    return tls->stands && tls->plain_in == 0 ? tls_channel_readable(tls->channel) : 0;
}

static size_t tls_unsent(struct link *link)
{
    struct tls_link *tls = tls_of(link);
    const size_t held = tls->channel ? tls_channel_held(tls->channel) : 0;
    return held + (tls->below->ops->unsent ? tls->below->ops->unsent(tls->below) : 0);
}

static uint32_t tls_round_trip_ms(struct link *link)
{
    struct link *below = tls_of(link)->below;
    return below->ops->round_trip_ms ? below->ops->round_trip_ms(below) : 0;
}

static bool tls_reached(struct link *link)
{
    struct link *below = tls_of(link)->below;
    return below->ops->reached && below->ops->reached(below);
}

static void tls_await(struct link *link, size_t bytes)
{
    struct link *below = tls_of(link)->below;
    if (below->ops->await)
        below->ops->await(below, bytes > TLS_AHEAD_BYTES ? bytes - TLS_AHEAD_BYTES : 1);
}

static int tls_check(struct link *link)
{
    struct link *below = tls_of(link)->below;
    return below->ops->check(below);
}

// ---- life ---------------------------------------------------------------------------------------

static int tls_connected(struct link *link)
{
    struct link *below = tls_of(link)->below;
    return below->ops->connected(below);
}

static void tls_proven(struct link *link, const uint8_t key[LOCKSTEP_PROOF_BYTES])
{
    struct tls_link *tls = tls_of(link);
    const struct crypto_carrier carrier = {
        .send = below_send, .receive = below_receive, .context = tls->below};
    tls->channel = tls_channel_make(tls->server, key, &carrier);
    if (!tls->channel)
        (void)tls_fail(tls, ENOMEM);
    else if (!tls->server)
        (void)tls_meets(tls); // The client sends the first message of the handshake.
}

static bool tls_ready(struct link *link)
{
    return tls_of(link)->stands;
}

static void tls_shut(struct link *link)
{
    struct link *below = tls_of(link)->below;
    below->ops->shut(below);
}

static void tls_close(struct link *link, bool reset)
{
    struct tls_link *tls = tls_of(link);
    tls_channel_free(tls->channel);
    tls->below->ops->close(tls->below, reset);
    free(tls);
}

static const struct link_ops tls_ops = {
    .connected = tls_connected,
    .proven = tls_proven,
    .ready = tls_ready,
    .send = tls_send,
    .push = tls_push,
    .receive = tls_receive,
    .readable = tls_readable,
    .unsent = tls_unsent,
    .round_trip_ms = tls_round_trip_ms,
    .reached = tls_reached,
    .await = tls_await,
    .check = tls_check,
    .shut = tls_shut,
    .close = tls_close,
};

struct link *link_encrypt(struct link *below, bool accepted)
{
    struct tls_link *tls = malloc(sizeof(*tls));
    if (!tls) {
        below->ops->close(below, false);
        return NULL;
    }
    memset(tls, 0, offsetof(struct tls_link, together));
    tls->link = (struct link){.ops = &tls_ops, .fd = below->fd, .short_is_dry = false};
    tls->below = below;
    tls->server = accepted;
    tls->plain_out = accepted ? LINK_ANSWER_BYTES : LINK_HELLO_BYTES;
    tls->plain_in = accepted ? LINK_HELLO_BYTES : LINK_ANSWER_BYTES;
    return &tls->link;
}
