// SPDX-License-Identifier: Apache-2.0
//
// Frames over a link; see stream.h. Engine thread.

#include "worker/link/stream.h"

#include "base/clock.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

// The size of the longest element; the fraction of an element that waits is shorter.
#define STREAM_ELEMENT_BYTES 8
#define STREAM_TORN_MS 1000 // How long a stream waits for the rest of an element.

static_assert(STREAM_STAGING_BYTES >= LOCKSTEP_FRAME_HEADER_BYTES + STREAM_ELEMENT_BYTES,
              "a header must fit, wherever it begins");

void stream_open(struct stream *stream, struct link *link, const struct stream_owner *owner,
                 void *context)
{
    memset(stream, 0, offsetof(struct stream, staging));
    stream->owner = owner;
    stream->context = context;
    stream->link = link;
    stream->writable = true;
    stream->readable = true;
    stream->awaited = 1;
    list_init(&stream->queue);
    list_init(&stream->taken);
}

static void stream_drop_queue(struct stream *stream)
{
    struct list *node = NULL;
    stream->queued_bytes = 0;
    while ((node = list_pop_front(&stream->taken)))
        stream->owner->sent(stream, list_entry(node, struct out_frame, queue), true);
    while ((node = list_pop_front(&stream->queue)))
        stream->owner->sent(stream, list_entry(node, struct out_frame, queue), true);
}

void stream_close(struct stream *stream, bool reset)
{
    if (!stream->link)
        return;
    stream_drop_queue(stream);
    stream->link->ops->close(stream->link, reset);
    stream->link = NULL;
}

// ---- sending ------------------------------------------------------------------------------------

static uint64_t stream_frame_bytes(const struct out_frame *frame)
{
    return frame->head_bytes + (uint64_t)frame->payload_bytes;
}

// Returns the queue position of an urgent frame: behind the frame that has begun and the earlier
// urgent frames.
static struct list *stream_urgent_place(struct stream *stream)
{
    struct list *place = stream->queue.next;
    while (place != &stream->queue) {
        const struct out_frame *frame = list_entry(place, struct out_frame, queue);
        if (frame->sent == 0 && !frame->urgent)
            break;
        place = place->next;
    }
    return place;
}

void stream_queue(struct stream *stream, struct out_frame *frame)
{
    frame->sent = 0;
    list_init(&frame->queue);
    if (!stream->link || stream->broken) {
        stream->owner->sent(stream, frame, true);
        return;
    }
    stream->queued_bytes += stream_frame_bytes(frame);
    list_insert_before(frame->urgent ? stream_urgent_place(stream) : &stream->queue, &frame->queue);
}

// Makes vectors for the rest of a frame. Returns the number of vectors, and in *bytes the number of
// bytes that they cover.
static int stream_frame_vectors(const struct out_frame *frame, struct iovec *vectors, int most,
                                uint64_t *bytes)
{
    int count = 0;
    uint64_t payload_sent = 0;
    *bytes = 0;
    if (frame->sent < frame->head_bytes) {
        const uint64_t rest = frame->head_bytes - frame->sent;
        vectors[count++] = (struct iovec){.iov_base = frame->head + frame->sent, .iov_len = rest};
        *bytes = rest;
    } else {
        payload_sent = frame->sent - frame->head_bytes;
    }
    const uint64_t left = frame->payload_bytes - payload_sent;
    if (left == 0 || count == most)
        return count;
    if (frame->source == SOURCE_BUFFER) {
        vectors[count++] = (struct iovec){
            .iov_base = (uint8_t *)(uintptr_t)frame->buffer + payload_sent, .iov_len = left};
        *bytes += left;
        return count;
    }
    uint64_t covered = 0;
    const enum extent_side side = frame->source == SOURCE_IN ? EXTENT_IN : EXTENT_OUT;
    count += extent_vectors(frame->cursor, side, left, vectors + count, most - count, &covered);
    *bytes += covered;
    return count;
}

static int stream_vectors(const struct stream *stream, struct iovec *vectors)
{
    int count = 0;
    uint64_t total = 0;
    list_for_each (node, &stream->queue) {
        const struct out_frame *frame = list_entry(node, struct out_frame, queue);
        uint64_t bytes = 0;
        if (count == STREAM_VECTORS || total >= STREAM_CALL_BYTES)
            break;
        count += stream_frame_vectors(frame, vectors + count, STREAM_VECTORS - count, &bytes);
        total += bytes;
        if (frame->sent + bytes < stream_frame_bytes(frame))
            break; // The vectors are used up.
    }
    return count;
}

static void stream_advance(struct out_frame *frame, uint64_t bytes)
{
    const uint64_t before = frame->sent;
    frame->sent += bytes;
    if (frame->source != SOURCE_IN && frame->source != SOURCE_OUT)
        return;
    const uint64_t from = before > frame->head_bytes ? before : frame->head_bytes;
    if (frame->sent > from)
        extent_skip(&frame->cursor, frame->sent - from);
}

// All bytes are counted before any frame is given back, because sent() may queue urgent frames, and
// those must not come between the frames of this call. No frame is given back while the link holds
// bytes: an owner that has all frames back may stop driving the stream, and the peer would wait for
// the held bytes.
static void stream_taken(struct stream *stream, uint64_t bytes)
{
    struct list *node = NULL;
    stream->bytes_sent += bytes;
    stream->queued_bytes -= bytes;
    while (bytes > 0) {
        struct out_frame *frame = list_entry(stream->queue.next, struct out_frame, queue);
        const uint64_t left = stream_frame_bytes(frame) - frame->sent;
        const uint64_t part = bytes < left ? bytes : left;
        stream_advance(frame, part);
        bytes -= part;
        if (part < left)
            break;
        list_remove(&frame->queue);
        list_push_back(&stream->taken, &frame->queue);
    }
    while (stream->link && !stream->link->held && (node = list_pop_front(&stream->taken))) {
        stream->frames_sent++;
        stream->owner->sent(stream, list_entry(node, struct out_frame, queue), false);
    }
}

// Returns the bytes that the link has taken; 0: the link has sent the bytes that it held.
static ssize_t stream_send(struct stream *stream)
{
    struct iovec vectors[STREAM_VECTORS];
    if (list_empty(&stream->queue))
        return stream->link->ops->push(stream->link);
    const int count = stream_vectors(stream, vectors);
    return stream->link->ops->send(stream->link, vectors, count);
}

void stream_flush(struct stream *stream)
{
    while (stream->link && stream->writable && !stream->broken && !stream_idle(stream)) {
        const ssize_t sent = stream_send(stream);
        if (sent >= 0) {
            stream_taken(stream, (uint64_t)sent);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            stream->writable = false;
        } else {
            // The end is reported after all bytes that have arrived were read.
            stream->broken = true;
            stream->error = errno;
            stream->readable = true;
            stream->ending = true;
            stream_drop_queue(stream);
        }
    }
}

void stream_part(struct stream *stream, struct out_frame *last)
{
    list_for_each_safe (node, &stream->queue) {
        struct out_frame *frame = list_entry(node, struct out_frame, queue);
        if (frame->sent > 0)
            continue;
        list_remove(node);
        stream->queued_bytes -= stream_frame_bytes(frame);
        stream->owner->sent(stream, frame, true);
    }
    if (last)
        stream_queue(stream, last);
    while (stream->link && !stream->broken && !list_empty(&stream->queue)) {
        const ssize_t sent = stream_send(stream);
        uint64_t left = sent > 0 ? (uint64_t)sent : 0;
        if (sent <= 0)
            break;
        stream->bytes_sent += left;
        while (left > 0) {
            struct out_frame *frame = list_entry(stream->queue.next, struct out_frame, queue);
            const uint64_t rest = stream_frame_bytes(frame) - frame->sent;
            const uint64_t part = left < rest ? left : rest;
            stream_advance(frame, part);
            left -= part;
            if (part == rest) {
                list_remove(&frame->queue);
                list_push_back(&stream->taken, &frame->queue);
            }
        }
    }
    if (stream->link && stream->link->held)
        (void)stream->link->ops->push(stream->link);
    stream_drop_queue(stream);
}

// ---- receiving ----------------------------------------------------------------------------------
//
// One call of receive fills three places, in this order: the rest of a broken element (in the
// staging buffer), the target, and the staging buffer again. The staging buffer gets the bytes
// after the target: the next header and the beginning of its payload, or a fraction of an element.
// So a frame costs about one call, and several small frames share one call. Of a payload longer
// than the staging buffer, only a part shorter than the buffer passes through it.
//
// The staged bytes are staging[staged_first, staged_end). Between calls the staging buffer holds
// less than one header, no used bits, or, inside a payload for user memory, less than one element.

static uint32_t stream_staged(const struct stream *stream)
{
    return stream->staged_end - stream->staged_first;
}

static void stream_compact(struct stream *stream)
{
    const uint32_t staged = stream_staged(stream);
    if (stream->staged_first != 0 && staged > 0)
        memmove(stream->staging, stream->staging + stream->staged_first, staged);
    stream->staged_first = 0;
    stream->staged_end = staged;
}

// Moves staged bytes of the payload to the target. User memory gets whole elements only.
static void stream_unstage(struct stream *stream)
{
    uint32_t bytes = stream_staged(stream);
    if (bytes > stream->payload_left)
        bytes = stream->payload_left;
    if (stream->target.kind == TARGET_OUT)
        bytes -= bytes % stream->target.cursor.element_bytes;
    const uint8_t *from = stream->staging + stream->staged_first;
    if (bytes > 0 && stream->target.kind == TARGET_OUT)
        extent_store(&stream->target.cursor, from, bytes);
    if (bytes > 0 && stream->target.kind == TARGET_BUFFER) {
        memcpy(stream->target.buffer, from, bytes);
        stream->target.buffer += bytes;
    }
    stream->payload_left -= bytes;
    stream->staged_first += bytes;
}

static const char *stream_begin(struct stream *stream)
{
    const char *detail = NULL;
    if (frame_decode(stream->staging + stream->staged_first, &stream->header, &detail) != FRAME_OK)
        return detail;
    stream->staged_first += LOCKSTEP_FRAME_HEADER_BYTES;
    stream->used_received = 0;
    stream->in_used = true;
    return NULL;
}

// Takes used bits out of the staging buffer. The payload begins when all used bits are there.
static const char *stream_use(struct stream *stream)
{
    uint32_t bytes = stream->header.used_bytes - stream->used_received;
    if (bytes > stream_staged(stream))
        bytes = stream_staged(stream);
    memcpy(stream->used + stream->used_received, stream->staging + stream->staged_first, bytes);
    stream->used_received += bytes;
    stream->staged_first += bytes;
    if (stream->used_received < stream->header.used_bytes)
        return NULL;
    stream->in_used = false;
    stream->payload_left = stream->header.payload_bytes;
    stream->target = (struct stream_target){.kind = TARGET_SINK};
    stream->in_payload = true;
    return stream->owner->begin(stream);
}

// Takes all frames out of the staging buffer, and the beginning of the next frame.
static const char *stream_consume(struct stream *stream)
{
    const char *text = NULL;
    while (!text) {
        if (!stream->in_payload && !stream->in_used) {
            if (stream_staged(stream) < LOCKSTEP_FRAME_HEADER_BYTES)
                return NULL;
            text = stream_begin(stream);
            continue;
        }
        if (stream->in_used) {
            text = stream_use(stream);
            if (stream->in_used)
                return text;
            continue;
        }
        stream_unstage(stream);
        if (stream->payload_left > 0)
            return NULL;
        stream->in_payload = false;
        text = stream->owner->end(stream);
    }
    return text;
}

// The memory that one call of receive fills. Its vectors are, in this order: the rest of the broken
// element, of which the staging buffer has the first bytes; the target of the payload; and the
// staging buffer again, for what follows. The first two may be missing.
struct stream_plan {
    struct iovec vectors[STREAM_VECTORS];
    int count;
    uint64_t bytes; // Bytes of all vectors.
    uint32_t mend; // Bytes that complete the broken element in the staging buffer.
    uint64_t direct; // Bytes that go directly to the target.
};

static void plan_add(struct stream_plan *plan, uint8_t *memory, uint64_t bytes)
{
    plan->vectors[plan->count++] = (struct iovec){.iov_base = memory, .iov_len = bytes};
    plan->bytes += bytes;
}

// Plans for user memory: room for the bytes that have certainly arrived, in whole elements, after
// the broken element.
static void plan_out(struct stream *stream, struct stream_plan *plan)
{
    const uint32_t element = stream->target.cursor.element_bytes;
    const uint32_t staged = stream_staged(stream);
    uint64_t sure = stream->link->ops->readable(stream->link);
    if (sure > stream->payload_left - staged)
        sure = stream->payload_left - staged;
    const uint32_t mend = staged == 0 ? 0 : element - staged;
    if (sure < mend + element)
        return; // The bytes go through the staging buffer.
    struct extent_cursor cursor = stream->target.cursor;
    if (mend > 0) {
        plan_add(plan, stream->staging + staged, mend);
        extent_skip(&cursor, element);
        plan->mend = mend;
    }
    const uint64_t whole = (sure - mend) / element * element;
    uint64_t covered = 0;
    plan->count += extent_vectors(cursor, EXTENT_OUT, whole, plan->vectors + plan->count,
                                  STREAM_VECTORS - 1 - plan->count, &covered);
    plan->direct = covered;
    plan->bytes += covered;
}

// Returns how far the staging buffer may be filled. After a long frame the next frame is expected
// to be long, too, and a long frame is better received directly into its target.
static uint32_t stream_room(const struct stream *stream)
{
    return stream->header.payload_bytes > STREAM_STAGING_BYTES ? STREAM_STAGING_LEAST
                                                               : STREAM_STAGING_BYTES;
}

static void stream_plan(struct stream *stream, struct stream_plan *plan)
{
    plan->count = 0; // And not its vectors: they are 2 KiB, and each receive comes here.
    plan->bytes = 0;
    plan->mend = 0;
    plan->direct = 0;
    stream_compact(stream);
    if (stream->in_payload && stream->target.kind == TARGET_BUFFER) {
        plan_add(plan, stream->target.buffer, stream->payload_left);
        plan->direct = stream->payload_left;
    } else if (stream->in_payload && stream->target.kind == TARGET_OUT) {
        plan_out(stream, plan);
    }
    const uint32_t at = stream->staged_end + plan->mend;
    plan_add(plan, stream->staging + at, stream_room(stream) - at);
}

// Counts the bytes of one call. Returns the number of bytes that complete the last element of the
// target; 0 if that element is complete.
static uint32_t stream_account(struct stream *stream, const struct stream_plan *plan,
                               uint64_t received)
{
    const uint64_t mended = received < plan->mend ? received : plan->mend;
    stream->staged_end += (uint32_t)mended;
    received -= mended;
    if (plan->mend > 0 && mended == plan->mend)
        stream_unstage(stream);
    const uint64_t direct = received < plan->direct ? received : plan->direct;
    stream->payload_left -= (uint32_t)direct;
    if (stream->target.kind == TARGET_OUT && direct > 0)
        extent_skip(&stream->target.cursor, direct);
    else if (stream->target.kind == TARGET_BUFFER)
        stream->target.buffer += direct;
    stream->staged_end += (uint32_t)(received - direct);
    if (stream->target.kind != TARGET_OUT || direct == plan->direct)
        return 0;
    const uint32_t torn = (uint32_t)(direct % stream->target.cursor.element_bytes);
    return torn == 0 ? 0 : stream->target.cursor.element_bytes - torn;
}

// A call returned fewer bytes than had certainly arrived, and ended inside an element. That has
// never been seen. This function waits for the missing bytes, because user memory must not have a
// torn element. Returns false if the link ended first, or if the bytes have not come after
// STREAM_TORN_MS; then this element is lost.
static bool stream_complete_element(struct stream *stream, uint32_t bytes)
{
    const uint64_t deadline_ms = clock_now_ms() + STREAM_TORN_MS;
    while (bytes > 0) {
        struct iovec vector;
        uint64_t covered = 0;
        if (extent_vectors(stream->target.cursor, EXTENT_OUT, bytes, &vector, 1, &covered) != 1)
            return false;
        const ssize_t received = stream->link->ops->receive(stream->link, &vector, 1);
        if (received == 0 || (received < 0 && (errno != EAGAIN || clock_now_ms() >= deadline_ms)))
            return false;
        if (received < 0)
            continue;
        extent_skip(&stream->target.cursor, (uint64_t)received);
        stream->payload_left -= (uint32_t)received;
        stream->bytes_received += (uint64_t)received;
        bytes -= (uint32_t)received;
    }
    return true;
}

// The link has no more bytes now: tells the link how many bytes the stream waits for.
static void stream_dry(struct stream *stream)
{
    uint32_t bytes = 1;
    stream->readable = false;
    if (!stream->link->ops->await)
        return;
    if (stream->in_payload && stream->payload_left - stream_staged(stream) > STREAM_AWAIT_LEAST)
        bytes = stream->payload_left - stream_staged(stream);
    if (bytes > STREAM_AWAIT_BYTES)
        bytes = STREAM_AWAIT_BYTES;
    if (bytes != stream->awaited)
        stream->link->ops->await(stream->link, bytes);
    stream->awaited = bytes;
}

static enum stream_status stream_failed(struct stream *stream, ssize_t received)
{
    if (received < 0 && errno == EAGAIN && !stream->broken) {
        stream_dry(stream);
        return STREAM_DRY;
    }
    if (received < 0 && !stream->broken)
        stream->error = errno;
    return STREAM_ENDED;
}

enum stream_status stream_receive(struct stream *stream)
{
    struct stream_plan plan;
    stream_plan(stream, &plan);
    const ssize_t received = stream->link->ops->receive(stream->link, plan.vectors, plan.count);
    if (received <= 0)
        return stream_failed(stream, received);
    stream->bytes_received += (uint64_t)received;
    const bool dry =
        (uint64_t)received < plan.bytes && stream->link->short_is_dry && !stream->ending;
    const uint32_t torn = stream_account(stream, &plan, (uint64_t)received);
    if (torn > 0 && !stream_complete_element(stream, torn)) {
        stream->error = EIO;
        return STREAM_ENDED;
    }
    stream->text = stream_consume(stream);
    if (dry)
        stream_dry(stream);
    return stream->text ? STREAM_IMPOSSIBLE : STREAM_MORE;
}

enum stream_status stream_discard(struct stream *stream)
{
    struct iovec vector = {.iov_base = stream->staging, .iov_len = sizeof(stream->staging)};
    for (;;) {
        const ssize_t received = stream->link->ops->receive(stream->link, &vector, 1);
        if (received <= 0)
            return stream_failed(stream, received);
    }
}
