// SPDX-License-Identifier: Apache-2.0
//
// Frames over a link: a queue of frames to send, and a decoder that puts each payload where its
// owner wants it. A stream knows headers and bytes, not collectives. Its owner (worker/transport/)
// says through struct stream_owner what a frame means. Engine thread.
//
// Sending never copies a payload: a frame names its bytes, which must not change until sent() gives
// the frame back. Urgent frames overtake other frames, but only between frames.
//
// Receiving writes user memory in whole elements only (docs/internals/data-plane.md, "Whole
// elements"). A fraction of an element waits in the staging buffer.

#ifndef WORKER_LINK_STREAM_H
#define WORKER_LINK_STREAM_H

#include "base/list.h"
#include "protos/frame.h"
#include "worker/link/link.h"
#include "worker/memory/extents.h"
#include "worker/memory/scratch.h"

#define STREAM_STAGING_BYTES (40 * 1024)
#define STREAM_STAGING_LEAST (8 * 1024)
#define STREAM_CALL_BYTES (1024 * 1024) // About the most that one system call moves.
// A payload is useful when it is whole, so a wake-up for a part of it is wasted, unless the payload
// is so large that it may fill the kernel's buffer. For small payloads the link is not told.
#define STREAM_AWAIT_BYTES (128 * 1024)
#define STREAM_AWAIT_LEAST (16 * 1024)
#define STREAM_VECTORS 128
#define STREAM_USED_BYTES 32 // Bytes of used bits that fit into struct out_frame.

enum frame_source {
    SOURCE_NONE, // No payload.
    SOURCE_BUFFER,
    SOURCE_IN, // User memory, as input; NULL stands for zeros.
    SOURCE_OUT, // User memory, as output.
};

struct out_frame {
    struct list queue;
    uint8_t *head; // Header and used bits: `bytes`, or the owner's memory.
    uint32_t head_bytes;
    uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES + STREAM_USED_BYTES];
    uint64_t sent; // Bytes of head and payload that the link has taken.
    uint32_t payload_bytes;
    enum frame_source source;
    bool urgent;
    const uint8_t *buffer; // SOURCE_BUFFER
    struct extent_cursor cursor; // SOURCE_IN, SOURCE_OUT: the first byte not sent.
    // For the owner.
    void *block; // Memory that goes back to `pool` when the frame is sent.
    struct scratch *pool;
    struct flow *flow;
    uint64_t stripe;
};

enum target_kind {
    TARGET_SINK, // Dropped.
    TARGET_BUFFER,
    TARGET_OUT, // User memory, in whole elements.
};

struct stream_target {
    enum target_kind kind;
    uint8_t *buffer; // Moves on as bytes arrive.
    struct extent_cursor cursor;
};

struct stream;

struct stream_owner {
    // A header and its used bits have arrived. The function sets stream->target, which is
    // TARGET_SINK, to where the payload goes. Returns NULL, or why the frame is impossible; then it
    // is not called again.
    const char *(*begin)(struct stream *stream);
    // The payload of stream->header is complete. Returns as begin does.
    const char *(*end)(struct stream *stream);
    // The link has taken all bytes of a frame; dropped: it never will.
    void (*sent)(struct stream *stream, struct out_frame *frame, bool dropped);
};

enum stream_status {
    STREAM_MORE, // Something was received, and there may be more.
    STREAM_DRY, // Nothing is there now.
    STREAM_ENDED, // The peer has ended its direction, or the link is broken: stream->error.
    STREAM_IMPOSSIBLE, // The peer broke the protocol: stream->text.
};

struct stream {
    // set at open, then constant
    const struct stream_owner *owner;
    void *context; // The owner's.
    struct link *link; // NULL when closed.
    // engine thread only
    struct list queue; // Frames (struct out_frame) that the link has not taken.
    struct list taken; // Frames that the link has taken, and may still hold.
    uint64_t queued_bytes; // Bytes that the link has not taken.
    bool writable; // True if the link may take more.
    bool readable; // True if the link may have more.
    bool ending; // True if epoll has reported an end behind the bytes that are there.
    bool broken; // True if sending failed with `error`; receiving goes on to the end.
    int error; // errno; 0: an orderly end.
    const char *text;
    // Receiving.
    uint32_t awaited; // Bytes that ops->await was told last.
    bool in_used;
    bool in_payload;
    struct frame_header header;
    uint32_t used_received; // Bytes of used bits received so far.
    struct stream_target target;
    uint32_t payload_left;
    uint32_t staged_first;
    uint32_t staged_end;
    // For the owner, about the frame that is being received.
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

// Takes the link. The stream must not move in memory.
void stream_open(struct stream *stream, struct link *link, const struct stream_owner *owner,
                 void *context);
// Gives back every queued frame as dropped and closes the link. Harmless when closed.
void stream_close(struct stream *stream, bool reset);

// Queues a frame; it is given back through sent(), at once when the stream is closed or broken.
void stream_queue(struct stream *stream, struct out_frame *frame);
// Hands to the link what it takes, and has it hand on what it holds.
void stream_flush(struct stream *stream);
// Nothing is queued, or held by the link.
static inline bool stream_idle(const struct stream *stream)
{
    return list_empty(&stream->queue) && !(stream->link && stream->link->held);
}

// One call of receive and all that follows from it.
enum stream_status stream_receive(struct stream *stream);
// Receives and drops, for the time after the goodbye. STREAM_ENDED, or STREAM_DRY.
enum stream_status stream_discard(struct stream *stream);

#endif
