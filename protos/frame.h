// SPDX-License-Identifier: Apache-2.0
//
// The header of every frame on the data plane: fixed size, little-endian, followed by used_bytes of
// used bits and then by payload_bytes of payload. This is the header only; who sends which frame
// when is the transport's business.
//
// The decoder is total: any 96 bytes give a header that obeys the bounds below, or a named error.
// Whether the frame belongs here (generation, tag, signature) is for the transport to compare. The
// checksum finds bugs, torn streams and strangers; it is no proof of membership, that is in the
// payloads of HELLO and WELCOME. Pure functions, any thread.

#ifndef PROTOS_FRAME_H
#define PROTOS_FRAME_H

#include "protos/types.h"

#define FRAME_MAGIC 0x31534b4cu // "LKS1" as the first four bytes on the wire.

// Small frames have at most LOCKSTEP_WAVE_BYTES of payload (step headers LOCKSTEP_NOTE_BYTES) and
// no used bits, so that a stranger's first frame cannot ask for much memory. Those that carry
// tensors have at most LOCKSTEP_FRAME_BYTES and LOCKSTEP_USED_BYTES.
enum frame_kind {
    FRAME_HELLO = 1, // Small. First from who has connected: who I am, nonce, proof.
    FRAME_STEP_HEADER = 2, // Small. To the ring successor at step_begin.
    FRAME_REDUCE = 3, // Tensor. Partial sums on their way to the chunk's owner.
    FRAME_GATHER = 4, // Tensor. Final bytes from the chunk's owner.
    FRAME_BROADCAST = 5, // Tensor. Bytes from the root.
    FRAME_WAVE = 6, // Small. One message of a wave.
    FRAME_CREDIT = 7, // Small. The receiver has room for more of a collective.
    FRAME_LEAVE = 8, // Small. Last on a connection: the end that follows is no death.
    FRAME_PAIR = 9, // Tensor. An exchange of recursive doubling or halving.
    FRAME_MEASURE = 10, // Tensor. How fast is this link? Only while a generation forms.
    FRAME_RUN = 11, // Small. Leaders of hosts agree which collective runs next.
    FRAME_CHALLENGE = 12, // Small. First from who has accepted: a nonce.
    FRAME_WELCOME = 13, // Small. Answers a hello: the proof of who has accepted.
    FRAME_LOST = 14, // Small. A rank was lost; whoever hears of it first passes it on.
};

// Flags are for later; a set bit outside FRAME_FLAGS is refused.
#define FRAME_FLAGS 0u
#define FRAME_CREDIT_PAIR 1u

// A field that a kind does not use is zero; the decoder does not insist.
//
//              generation, step: always, but step is 0 in HELLO, WELCOME, LEAVE and LOST, and both
//              are in CHALLENGE
// CHALLENGE    payload: the nonce of who has accepted; nothing else is said to a stranger
// HELLO        chunk: the sender's rank; part: the rank that it means to reach; payload: nonce and
//              proof (worker/link/hello.h) of who has connected
// WELCOME      chunk: the sender's rank; part: the rank that it answers; payload: its proof
// STEP_HEADER  space: plan hash (0 when learning); signature: hash of the phase and of what it
//              trains; weight: plan number; part: starts; chunk: 1 in front of an open wave, which
//              has no payload; payload: phase and what it trains in plain, the phase's name with
//              its NUL and one bit for every parameter
// REDUCE, GATHER, BROADCAST
//              dtype; space and slot: which collective; part: stripe; chunk: rank of the chunk's
//              owner (REDUCE, GATHER) or the root (BROADCAST); weight: samples summed so far;
//              signature
// PAIR         dtype, space, slot, weight and signature as above; part: round; chunk: the sender's
//              rank; credit: stripe
// RUN          space and slot: which collective; signature; weight: hash of its shape; part: 1 all
//              have joined it from this host on, 2 it runs; chunk: the sender's rank
// MEASURE      part: what it is (worker/transport/measure.c); slot: its number; credit: 1 in the
//              last frame of a burst; chunk: the sender's rank
// WAVE         slot: kind of the wave; part: round; chunk: the sender's rank
// CREDIT       space, slot and signature as in the frames that it allows; part: 0 for REDUCE,
//              GATHER and BROADCAST, FRAME_CREDIT_PAIR for PAIR; credit: stripes granted in all
// LEAVE        chunk: the sender's rank; payload: why it leaves (farewell.h), or none
// LOST         chunk: the sender's rank; payload: who was lost (farewell.h)
struct frame_header {
    enum frame_kind kind;
    uint8_t flags;
    enum dtype dtype;
    uint32_t payload_bytes;
    uint32_t used_bytes;
    struct generation_id generation;
    uint64_t step;
    uint64_t space; // The plan's hash, or the hash of a plain collective's name.
    uint32_t slot; // Index in the plan, or sequence number of the plain collective.
    uint32_t part; // Stripe, or round of a wave.
    uint32_t chunk; // A rank: owner of the chunk, or source.
    uint32_t credit; // Stripes of the collective, counted from its first; in PAIR, which one.
    uint64_t weight; // Samples, summed.
    uint64_t signature; // Hash of what is equal on all ranks: kind, dtype, elements, op, root.
};

enum frame_status {
    FRAME_OK = 0,
    FRAME_FOREIGN = -1, // Another magic: this peer speaks something else, or the stream is torn.
    FRAME_DAMAGED = -2, // The checksum is wrong.
    FRAME_INVALID = -3, // An unknown kind, flag or dtype, or a reserved byte that is not zero.
    FRAME_TOO_LONG = -4, // payload_bytes or used_bytes is above what this kind may carry.
};

const char *frame_status_name(enum frame_status status);
const char *frame_kind_name(enum frame_kind kind);

// Most bytes of payload that a frame of this kind may carry; 0 for what is no kind.
uint32_t frame_payload_max(enum frame_kind kind);

// Writes the header as it stands. A header that frame_decode would refuse is a bug of the sender:
// this asserts.
void frame_encode(const struct frame_header *header, uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES]);

// On failure *header is zeroed and detail, when not NULL, receives a static sentence for people.
enum frame_status frame_decode(const uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES],
                               struct frame_header *header, const char **detail);

// Sent to the ring successor at step_begin (order protocol, R1).
struct step_header {
    uint64_t step;
    uint64_t phase; // Hash of the phase and of what it trains.
    uint64_t plan_number; // 0 when learning.
    uint64_t plan_hash;
    uint32_t starts; // How often its rank has called lockstep_start.
    bool opening; // Its rank joins the open wave of the step; phase and plan are not known yet.
};

#endif
