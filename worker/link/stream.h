// SPDX-License-Identifier: Apache-2.0
//
// Frames over a link: a queue of frames to send, and a decoder that puts each payload where its
// owner wants it. It knows headers and bytes, not collectives: what a frame means is said by the
// owner (worker/transport/transport.c) through struct stream_owner. Engine thread.
//
// Sending never copies a payload: a frame names its bytes, and they must stay as they are until
// sent() gives the frame back. Urgent frames overtake the others where one frame ends and the next
// begins.
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
// A payload is of use when it is whole: a wake-up for a part of it, unless it is so large that it
// may fill the kernel's buffer, is for nothing. For a small one there is no need to say so.
#define STREAM_AWAIT_BYTES (128 * 1024)
#define STREAM_AWAIT_LEAST (16 * 1024)
#define STREAM_VECTORS 128
#define STREAM_USED_BYTES 32 // Used bits that need no memory of their own.

enum frame_source {
    SOURCE_NONE, // No payload.
    SOURCE_BUFFER,
    SOURCE_IN, // User memory, as input; NULL is zeros.
    SOURCE_OUT, // User memory, as output.
};

struct out_frame {
    struct list queue;
    uint8_t *head; // Header and used bits: `bytes`, or memory of the owner.
    uint32_t head_bytes;
    uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES + STREAM_USED_BYTES];
    uint64_t sent; // Bytes of head and payload that the link has taken.
    uint32_t payload_bytes;
    enum frame_source source;
    bool urgent;
    const uint8_t *buffer; // SOURCE_BUFFER
    struct extent_cursor cursor; // SOURCE_IN, SOURCE_OUT: the first byte not sent.
    // For the owner.
    void *block; // Memory to give back when it is sent, ...
    struct scratch *pool; // ... and to whom.
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
    // A header and its used bits have arrived: say in stream->target where its payload goes (it is
    // TARGET_SINK). Returns NULL, or what is impossible about it. Not called again after that.
    const char *(*begin)(struct stream *stream);
    // The payload of stream->header is complete. Returns as begin does.
    const char *(*end)(struct stream *stream);
    // All bytes of a frame were taken by the link, or (dropped) will never be.
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
    struct list queue; // Of struct out_frame.
    struct list taken; // Of frames that the link has taken, and may hold.
    uint64_t queued_bytes; // That the link has not taken.
    bool writable; // The link may take more.
    bool readable; // The link may have more.
    bool ending; // epoll said that an end is behind what is there.
    bool broken; // Sending failed with this error; receiving goes on to the end.
    int error; // 0: an orderly end.
    const char *text;
    // Receiving.
    uint32_t awaited; // What the link was told.
    bool in_used;
    bool in_payload;
    struct frame_header header;
    uint32_t used_received; // Bytes of used bits.
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
    uint8_t used[LOCKSTEP_USED_BYTES]; // Used bits of the frame that is being received.
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
