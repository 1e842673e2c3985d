// SPDX-License-Identifier: Apache-2.0
//
// The header of every frame on the data plane: fixed size, little-endian, followed by used_bytes of
// used bits and then by payload_bytes of payload. This file has the header only; the transport
// decides which frames are sent, and when.
//
// The decoder accepts any 96 bytes: it returns a header that obeys the bounds below, or an error.
// The transport compares generation, step, space, slot and signature with what it expects. The
// checksum finds bugs, corrupted streams and foreign programs. It does not authenticate the peer;
// the payloads of HELLO and WELCOME do. Pure functions, any thread.

#ifndef PROTOS_FRAME_H
#define PROTOS_FRAME_H

#include "protos/types.h"

#define FRAME_MAGIC 0x31534b4cu // "LKS1" as the first four bytes on the wire.

// Small frames have at most LOCKSTEP_WAVE_BYTES of payload (step headers LOCKSTEP_NOTE_BYTES) and
// no used bits, so the first frame of an unknown peer cannot make the receiver allocate much
// memory. Tensor frames have at most LOCKSTEP_FRAME_BYTES of payload and LOCKSTEP_USED_BYTES of
// used bits.
enum frame_kind {
    FRAME_HELLO = 1, // Small. First frame of the side that connected: its rank, nonce and proof.
    FRAME_STEP_HEADER = 2, // Small. Sent to the ring successor at step_begin.
    FRAME_REDUCE = 3, // Tensor. Partial sums on their way to the chunk's owner.
    FRAME_GATHER = 4, // Tensor. Final bytes from the chunk's owner.
    FRAME_BROADCAST = 5, // Tensor. Bytes from the root.
    FRAME_WAVE = 6, // Small. One message of a wave.
    FRAME_CREDIT = 7, // Small. The receiver has room for more frames of a collective.
    FRAME_LEAVE = 8, // Small. Last frame of a connection: the sender closes it and is not lost.
    FRAME_PAIR = 9, // Tensor. An exchange of recursive doubling or halving.
    FRAME_MEASURE = 10, // Tensor. Measures the link's speed; only while a generation forms.
    FRAME_RUN = 11, // Small. Leaders of hosts agree which collective runs next.
    FRAME_CHALLENGE = 12, // Small. First frame of the side that accepted the connection: a nonce.
    FRAME_WELCOME = 13, // Small. Answers HELLO: the proof of the side that accepted.
    FRAME_LOST = 14, // Small. A rank was lost. Each rank that hears of it tells its neighbours.
    FRAME_DIRECT = 15, // Tensor. A piece from the rank that has it to a rank that needs it.
};

// No flags are defined yet. The decoder refuses a set bit outside FRAME_FLAGS.
#define FRAME_FLAGS 0u
// Values of `part` in CREDIT.
#define FRAME_CREDIT_PAIR 1u
#define FRAME_CREDIT_SENDS 2u

// The fields that each kind uses. A field that a kind does not use is zero; the decoder does not
// check that.
//
// all          generation and step; step is 0 in HELLO, WELCOME, LEAVE and LOST; generation and
//              step are 0 in CHALLENGE
// CHALLENGE    payload: the nonce of the side that accepted; no other field, because the peer is
//              not authenticated yet
// HELLO        chunk: the sender's rank; part: the rank that the sender wants to reach; payload:
//              nonce and proof (worker/link/hello.h) of the side that connected
// WELCOME      chunk: the sender's rank; part: the rank that sent HELLO; payload: the sender's
//              proof
// STEP_HEADER  space: plan hash (0 when learning); signature: hash of the phase and of the set of
//              parameters that it trains; weight: plan number; part: starts (struct step_header);
//              chunk: 1 if an open wave follows, then there is no payload; payload: the phase's
//              name with its NUL, and one bit for every parameter: 1 if it is trained; slot: what
//              happens when ranks run out of data, 0 to 2
// REDUCE, GATHER, BROADCAST
//              dtype; space and slot: which collective; part: stripe; chunk: rank of the chunk's
//              owner (REDUCE, GATHER) or the root (BROADCAST); weight: samples summed so far;
//              signature
// PAIR         dtype, space, slot, weight and signature as above; part: round; chunk: the sender's
//              rank; credit: stripe
// DIRECT       dtype, space, slot and signature as above; part: enum direct_part; chunk: the
//              sender's rank; credit: index of the piece, or the number of pieces granted; weight:
//              the sender's weight, or the elements of the whole part (worker/transport/direct/)
// RUN          space and slot: which collective; signature; weight: hash of its shape; part: 1 if
//              all hosts from this one on have joined the collective, 2 if it runs; chunk: the
//              sender's rank
// MEASURE      part: kind of the measuring frame (worker/transport/measure.c); slot: number of the
//              frame; credit: 1 in the last frame of a burst; chunk: the sender's rank
// WAVE         slot: kind of the wave; part: round; chunk: the sender's rank
// CREDIT       space, slot and signature as in the frames that it allows; part: 0 for REDUCE,
//              GATHER and BROADCAST, FRAME_CREDIT_PAIR for PAIR; credit: stripes granted
//              so far. With FRAME_CREDIT_SENDS the frame is of no collective, and credit is the
//              number of short parts that its sender has taken (worker/transport/direct/ahead.c)
// LEAVE        chunk: the sender's rank; payload: why the sender leaves (farewell.h), or none
// LOST         chunk: the sender's rank; payload: which rank was lost (farewell.h)
struct frame_header {
    enum frame_kind kind;
    uint8_t flags;
    enum dtype dtype;
    uint32_t payload_bytes;
    uint32_t used_bytes;
    struct generation_id generation;
    uint64_t step;
    uint64_t space; // Hash of the plan, or of a plain collective's name.
    uint32_t slot; // Index in the plan, or sequence number of the plain collective.
    uint32_t part; // Stripe, or round of a wave.
    uint32_t chunk; // A rank: the owner of the chunk, the root, or the sender.
    // CREDIT: number of stripes granted, from the first of the collective. PAIR: index of a stripe.
    uint32_t credit;
    uint64_t weight; // Sum of samples. STEP_HEADER and RUN: see above.
    uint64_t signature; // Hash of what is equal on all ranks: kind, dtype, elements, op, root.
};

enum frame_status {
    FRAME_OK = 0,
    // The magic is wrong: the peer speaks another protocol, or the stream is corrupted.
    FRAME_FOREIGN = -1,
    FRAME_DAMAGED = -2, // The checksum is wrong.
    FRAME_INVALID = -3, // An unknown kind, flag or dtype, or a reserved byte that is not zero.
    FRAME_TOO_LONG = -4, // payload_bytes or used_bytes is above what this kind may carry.
};

const char *frame_status_name(enum frame_status status);
const char *frame_kind_name(enum frame_kind kind);

// Returns the largest payload of a frame of this kind, in bytes; 0 for an unknown kind.
uint32_t frame_payload_max(enum frame_kind kind);

// Encodes the header into bytes. Asserts that frame_decode would accept the header: a refused one
// is a bug of the sender.
void frame_encode(const struct frame_header *header, uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES]);

// Decodes and checks a header. On failure *header is zeroed and *detail, if detail is not NULL, is
// set to a static sentence for people.
enum frame_status frame_decode(const uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES],
                               struct frame_header *header, const char **detail);

// The contents of a STEP_HEADER frame, which a rank sends to its ring successor at step_begin
// (order protocol, R1).
struct step_header {
    uint64_t step;
    uint64_t phase; // Hash of the phase and of the set of parameters that it trains.
    uint64_t plan_number; // 0 when learning.
    uint64_t plan_hash;
    uint32_t starts; // How often the sender has called lockstep_start.
    uint32_t uneven; // The sender's rule for ranks that run out of data: enum lockstep_uneven.
    // True if the sender joins the open wave of the step; phase and plan are not known yet.
    bool opening;
};

#endif
