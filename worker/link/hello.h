// SPDX-License-Identifier: Apache-2.0
//
// How two ranks prove to each other that they are members of one generation, on every connection,
// before anything else is said. A proof follows from what both sides know. worker/transport/form.c
// says who sends what when.
//
//   acceptor  -> connector   CHALLENGE  its nonce
//   connector -> acceptor    HELLO      who it is, whom it means, its nonce, its proof
//   acceptor  -> connector   WELCOME    its proof
//
// Members of a generation know a secret of 256 random bits, which the coordinator has given to each
// of them over its control stream. It never travels here. A proof is the HMAC-SHA256 under it of a
// label, which says the protocol, its version and whose proof it is, of whether that side encrypts,
// and of all that distinguishes this connection from every other one: generation, world size, the
// ranks of both sides, and both nonces. So of what somebody has recorded, or is told elsewhere,
// - a proof of another connection has other nonces: the one that this side has chosen at random;
// - one of another generation, of another pair, or of the same pair the other way round is of other
//   bytes, and under another secret in the first case;
// - a side's own proof that is sent back to it has the label of the wrong side.
// The acceptor proves nothing before the connector has, and says nothing but random bytes: a
// stranger learns from it neither rank nor generation, and cannot use it to make proofs.
//
// What this does not stop is who sits on the path: he can pass both proofs on, and then read what
// follows, change it, or speak in a member's name. Against him there is encryption, or a network
// that he is not in (docs/internals/data-plane.md, Who may connect).

#ifndef WORKER_LINK_HELLO_H
#define WORKER_LINK_HELLO_H

#include "protos/types.h"

#include <stdbool.h>
#include <stdint.h>

// Whose proof it is.
enum hello_side {
    HELLO_CONNECTOR,
    HELLO_ACCEPTOR,
};

// What is proven, the same on both sides of a connection.
struct hello {
    const uint8_t *secret; // [LOCKSTEP_SECRET_BYTES], borrowed.
    struct generation_id generation;
    uint32_t world_size;
    uint32_t connector; // Ranks.
    uint32_t acceptor;
    bool encrypts; // The side that proves: what follows is to be encrypted.
    uint8_t challenge[LOCKSTEP_NONCE_BYTES]; // The acceptor's nonce.
    uint8_t nonce[LOCKSTEP_NONCE_BYTES]; // The connector's.
};

// False: there is none (crypto_mac).
bool hello_prove(const struct hello *hello, enum hello_side side,
                 uint8_t proof[LOCKSTEP_PROOF_BYTES]);
// Whether what the other side has sent is its proof. In constant time.
bool hello_check(const struct hello *hello, enum hello_side side,
                 const uint8_t proof[LOCKSTEP_PROOF_BYTES]);
// The key of this connection, which both sides make of the secret and of all that they have proven
// to each other: HKDF-Expand (RFC 5869) with SHA-256. False: there is none.
bool hello_key(const struct hello *hello, uint8_t key[LOCKSTEP_PROOF_BYTES]);

#endif
