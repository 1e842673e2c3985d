// SPDX-License-Identifier: Apache-2.0
//
// Frames over a link: a queue of frames to send, and a decoder that writes each payload to the
// memory that its owner names. A stream knows headers and bytes, but no collectives. Its owner
// (worker/transport/) gives frames their meaning through struct stream_owner. Engine thread.
//
// Sending never copies a payload: a frame names its bytes, which must not change until sent() gives
// the frame back. Urgent frames overtake other frames that have not begun.
//
// Receiving writes only whole elements to user memory (docs/internals/data-plane.md, "Whole
// elements"). A fraction of an element stays in the staging buffer until the rest arrives.

#ifndef WORKER_LINK_STREAM_H
#define WORKER_LINK_STREAM_H

#include "base/list.h"
#include "protos/frame.h"
#include "worker/link/link.h"
#include "worker/memory/extents.h"
#include "worker/memory/scratch.h"

#define STREAM_STAGING_BYTES (40 * 1024)
#define STREAM_STAGING_LEAST (8 * 1024)
#define STREAM_CALL_BYTES (1024 * 1024) // One system call moves about this many bytes at most.
// A payload is used only when it is whole, so a wake-up for a part of a payload is wasted, unless
// the payload is so large that it may fill the kernel's buffer. So a stream tells the link
// (ops->await) to wait for the missing bytes, at most STREAM_AWAIT_BYTES, if more than
// STREAM_AWAIT_LEAST bytes are missing.
#define STREAM_AWAIT_BYTES (128 * 1024)
#define STREAM_AWAIT_LEAST (16 * 1024)
#define STREAM_VECTORS 128
#define STREAM_USED_BYTES 32 // Bytes of used bits that fit into `bytes` of struct out_frame.

enum frame_source {
    SOURCE_NONE, // No payload.
    SOURCE_BUFFER,
    SOURCE_IN, // User memory that is an input; NULL stands for zeros.
    SOURCE_OUT, // User memory that is an output.
};

struct out_frame {
    struct list queue;
    uint8_t *head; // Header and used bits: points to `bytes`, or to the owner's memory.
    uint32_t head_bytes;
    uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES + STREAM_USED_BYTES];
    uint64_t sent; // Bytes of head and payload that the link has taken.
    uint32_t payload_bytes;
    enum frame_source source;
    bool urgent;
    const uint8_t *buffer; // SOURCE_BUFFER
    struct extent_cursor cursor; // SOURCE_IN, SOURCE_OUT: the first byte that was not sent.
    // The next fields are for the owner.
    void *block; // Memory that returns to `pool` when the frame is sent.
    struct scratch *pool;
    struct flow *flow;
    uint64_t stripe;
};

enum target_kind {
    TARGET_SINK, // The payload is dropped.
    TARGET_BUFFER,
    TARGET_OUT, // User memory, which gets whole elements only.
};

struct stream_target {
    enum target_kind kind;
    uint8_t *buffer; // Place of the next byte; it moves on as bytes arrive.
    struct extent_cursor cursor;
};

struct stream;

struct stream_owner {
    // A header and its used bits have arrived. begin sets stream->target, which is TARGET_SINK
    // before, to the place of the payload. It returns NULL, or the reason why the frame is
    // impossible; then the stream calls begin no more.
    const char *(*begin)(struct stream *stream);
    // The payload of stream->header is complete. Returns NULL, or the reason why the frame is
    // impossible.
    const char *(*end)(struct stream *stream);
    // The link has taken all bytes of a frame. dropped: true if the link never will.
    void (*sent)(struct stream *stream, struct out_frame *frame, bool dropped);
};

enum stream_status {
    STREAM_MORE, // Bytes were received, and there may be more.
    STREAM_DRY, // The link has no bytes now.
    // The peer has ended its direction, or the link is broken; stream->error says which.
    STREAM_ENDED,
    STREAM_IMPOSSIBLE, // The peer broke the protocol; stream->text says how.
};

struct stream {
    // set at open, then constant
    const struct stream_owner *owner;
    void *context; // Belongs to the owner.
    struct link *link; // NULL when closed.
    // engine thread only
    struct list queue; // Frames (struct out_frame) of which the link has not taken all bytes.
    // Frames of which the link has taken all bytes; the link may still hold some of the bytes.
    struct list taken;
    uint64_t queued_bytes; // Bytes of queued frames that the link has not taken.
    bool writable; // True if the link may take more bytes.
    bool readable; // True if the link may have more bytes.
    bool ending; // True if epoll has reported an end after the bytes that are still to be received.
    bool broken; // True if sending has failed with `error`; receiving goes on until the end.
    int error; // errno of the break; 0: an orderly end.
    const char *text;
    // Receiving.
    uint32_t awaited; // The value of the last call of ops->await, in bytes.
    bool in_used;
    bool in_payload;
    struct frame_header header;
    uint32_t used_received; // Bytes of used bits received so far.
    struct stream_target target;
    uint32_t payload_left;
    uint32_t staged_first;
    uint32_t staged_end;
    // The next fields are for the owner, about the frame that is being received.
    struct flow *flow;
    void *block;
    void *parked;
    // Counts.
    uint64_t bytes_sent;
    uint64_t bytes_received;
    uint64_t frames_sent;
    uint8_t staging[STREAM_STAGING_BYTES];
    uint8_t used[LOCKSTEP_USED_BYTES]; // Used bits of the frame in `header`.
};

// Takes ownership of the link. The stream must not move in memory.
void stream_open(struct stream *stream, struct link *link, const struct stream_owner *owner,
                 void *context);
// Gives back every queued frame as dropped, and closes the link. Does nothing if the stream is
// closed.
void stream_close(struct stream *stream, bool reset);

// Queues a frame. sent() gives the frame back; it does so at once if the stream is closed or
// broken.
void stream_queue(struct stream *stream, struct out_frame *frame);
// Gives the link as many queued bytes as it takes, and lets the link send the bytes that it holds.
void stream_flush(struct stream *stream);
// Ends sending: gives back as dropped every queued frame of which the link has taken nothing, gives
// the link the rest of the frame that has begun, and then `last`, as far as it takes them without
// waiting. All frames are given back as dropped. Nothing may be queued after that. last NULL: none.
void stream_part(struct stream *stream, struct out_frame *last);
// True if no frame is queued and the link holds no bytes.
static inline bool stream_idle(const struct stream *stream)
{
    return list_empty(&stream->queue) && !(stream->link && stream->link->held);
}

// Returns the bytes of queued frames that the peer has not taken. A link that does not know counts
// those that it has not taken itself. May cost a system call.
static inline uint64_t stream_unsent(const struct stream *stream)
{
    struct link *link = stream->link;
    return stream->queued_bytes + (link && link->ops->unsent ? link->ops->unsent(link) : 0);
}

// Returns the smoothed round trip to the peer's host, in ms. May cost a system call.
static inline uint64_t stream_round_trip_ms(const struct stream *stream)
{
    struct link *link = stream->link;
    return link && link->ops->round_trip_ms ? link->ops->round_trip_ms(link) : 0;
}

// Makes one call of receive, and processes the bytes that it returned.
enum stream_status stream_receive(struct stream *stream);
// Receives bytes and drops them, after the goodbye. Returns STREAM_ENDED or STREAM_DRY.
enum stream_status stream_discard(struct stream *stream);

#endif
