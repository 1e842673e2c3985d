// SPDX-License-Identifier: Apache-2.0
//
// How two ranks prove to each other that they are members of one generation. They do so on every
// connection, before any other message. A proof is computed from values that both sides know.
// worker/transport/form.c says which side sends which message when.
//
//   acceptor  -> connector   CHALLENGE  its nonce
//   connector -> acceptor    HELLO      its rank, the acceptor's rank, its nonce, its proof
//   acceptor  -> connector   WELCOME    its proof
//
// The members of a generation share a secret of 256 random bits. The coordinator has given the
// secret to each member over its control stream; the secret never travels over a link. A proof is
// an HMAC-SHA256 with the secret as key. Its input is a label (the protocol, its version, and the
// side that proves), whether that side encrypts, and everything that distinguishes this connection
// from every other connection: generation, world size, the ranks of both sides, and both nonces. So
// recorded proofs are useless:
// - a proof of another connection has other nonces, because this side chose its nonce at random;
// - a proof of another generation, of another pair, or of the same pair in the other direction has
//   another input, and a proof of another generation also another secret;
// - a side's own proof that an attacker sends back has the label of the wrong side.
// The acceptor sends only random bytes until the connector has proven membership. So a stranger
// learns neither rank nor generation from the acceptor, and cannot use the acceptor to make proofs.
//
// Proofs do not stop an attacker on the path. Such an attacker can forward both proofs, and then
// read or change the bytes that follow, or send bytes in a member's name. Encryption stops such an
// attacker, and so does a network without attackers (docs/internals/data-plane.md, Who may
// connect).

#ifndef WORKER_LINK_HELLO_H
#define WORKER_LINK_HELLO_H

#include "protos/types.h"

#include <stdbool.h>
#include <stdint.h>

// The side that makes a proof.
enum hello_side {
    HELLO_CONNECTOR,
    HELLO_ACCEPTOR,
};

// The input of a proof. Equal on both sides of a connection.
struct hello {
    const uint8_t *secret; // LOCKSTEP_SECRET_BYTES bytes, borrowed.
    struct generation_id generation;
    uint32_t world_size;
    uint32_t connector; // The rank that connected.
    uint32_t acceptor; // The rank that accepted.
    bool encrypts; // True if the side that makes the proof encrypts the bytes that follow.
    uint8_t challenge[LOCKSTEP_NONCE_BYTES]; // The acceptor's nonce.
    uint8_t nonce[LOCKSTEP_NONCE_BYTES]; // The connector's nonce.
};

// Computes a proof. Returns false if crypto_mac fails.
bool hello_prove(const struct hello *hello, enum hello_side side,
                 uint8_t proof[LOCKSTEP_PROOF_BYTES]);
// True if `proof` is the proof of that side. Takes constant time.
bool hello_check(const struct hello *hello, enum hello_side side,
                 const uint8_t proof[LOCKSTEP_PROOF_BYTES]);
// Computes the key of this connection. Both sides compute the same key from the secret and from
// everything that they have proven to each other, with HKDF-Expand (RFC 5869) and SHA-256. Returns
// false if crypto_mac fails.
bool hello_key(const struct hello *hello, uint8_t key[LOCKSTEP_PROOF_BYTES]);

#endif
