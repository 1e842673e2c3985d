// SPDX-License-Identifier: Apache-2.0
//
// Bytes from a worker, in pieces of any size: frames with their used bits and payloads. The first
// byte of an input says how large the pieces are, the second where payloads go.

#include "tests/fuzz/fuzz.h"
#include "worker/link/stream.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

struct source {
    struct link link; // First.
    const uint8_t *bytes;
    size_t left;
    size_t piece;
};

static ssize_t source_receive(struct link *link, const struct iovec *iov, int count)
{
    struct source *source = (struct source *)(void *)link;
    size_t taken = 0;
    if (source->left == 0)
        return 0;
    for (int i = 0; i < count && source->left > 0 && taken < source->piece; i++) {
        size_t bytes = iov[i].iov_len < source->left ? iov[i].iov_len : source->left;
        if (bytes > source->piece - taken)
            bytes = source->piece - taken;
        memcpy(iov[i].iov_base, source->bytes, bytes);
        source->bytes += bytes;
        source->left -= bytes;
        taken += bytes;
    }
    return taken > 0 ? (ssize_t)taken : (errno = EAGAIN, -1);
}

static size_t source_readable(struct link *link)
{
    return ((struct source *)(void *)link)->left;
}

static void source_close(struct link *link, bool reset)
{
    (void)link;
    (void)reset;
}

static uint8_t payload[LOCKSTEP_FRAME_BYTES];
static uint8_t user[LOCKSTEP_FRAME_BYTES];
static uint8_t where;
static const struct extent extent = {.in = user, .out = user, .elements = LOCKSTEP_FRAME_BYTES / 4};

static struct extent_map map;

static const char *source_begin(struct stream *stream)
{
    FUZZ_CHECK(stream->header.payload_bytes <= frame_payload_max(stream->header.kind));
    if (where % 3 == 1) {
        stream->target.kind = TARGET_BUFFER;
        stream->target.buffer = payload;
    } else if (where % 3 == 2 && stream->header.payload_bytes % 4 == 0) {
        stream->target.kind = TARGET_OUT;
        stream->target.cursor = extent_seek(&map, 0);
    }
    return NULL;
}

static const char *source_end(struct stream *stream)
{
    FUZZ_CHECK(stream->payload_left == 0);
    return NULL;
}

static void source_sent(struct stream *stream, struct out_frame *frame, bool dropped)
{
    (void)stream;
    (void)frame;
    (void)dropped;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const struct link_ops ops = {
        .receive = source_receive, .readable = source_readable, .close = source_close};
    static const struct stream_owner owner = {source_begin, source_end, source_sent};
    static struct stream stream;
    if (size < 2)
        return 0;
    struct source source = {.link = {.ops = &ops, .fd = -1},
                            .bytes = bytes + 2,
                            .left = size - 2,
                            .piece = 1 + (size_t)bytes[0] * bytes[0]};
    where = bytes[1];
    (void)extent_map_init(&map, &extent, 1, 4);
    memset(&stream, 0, sizeof(stream));
    stream_open(&stream, &source.link, &owner, NULL);
    while (stream_receive(&stream) == STREAM_MORE)
        ;
    stream_close(&stream, true);
    return 0;
}
