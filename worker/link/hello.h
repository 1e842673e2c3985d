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
// label (the protocol, its version, and which side the proof is of), of whether that side encrypts,
// and of everything that distinguishes this connection from every other one: generation, world
// size, the ranks of both sides, and both nonces. So recorded proofs are of no use:
// - a proof of another connection has other nonces, because this side chose its nonce at random;
// - a proof of another generation, of another pair, or of the same pair the other way round is made
// of
//   other bytes; of another generation, also under another secret;
// - a side's own proof that is sent back to it has the label of the wrong side.
// The acceptor proves nothing before the connector has, and sends nothing but random bytes until
// then. So a stranger learns neither rank nor generation from it, and cannot use it to make proofs.
//
// Proofs do not stop an attacker on the path, who can pass both proofs on, and then read or change
// the bytes that follow, or speak in a member's name. Encryption stops such an attacker, and so
// does a network without attackers (docs/internals/data-plane.md, Who may connect).

#ifndef WORKER_LINK_HELLO_H
#define WORKER_LINK_HELLO_H

#include "protos/types.h"

#include <stdbool.h>
#include <stdint.h>

// The side that a proof is of.
enum hello_side {
    HELLO_CONNECTOR,
    HELLO_ACCEPTOR,
};

// What is proven. Equal on both sides of a connection.
struct hello {
    const uint8_t *secret; // [LOCKSTEP_SECRET_BYTES], borrowed.
    struct generation_id generation;
    uint32_t world_size;
    uint32_t connector; // The rank that connected.
    uint32_t acceptor; // The rank that accepted.
    bool encrypts; // True if the side that proves encrypts the bytes that follow.
    uint8_t challenge[LOCKSTEP_NONCE_BYTES]; // The acceptor's nonce.
    uint8_t nonce[LOCKSTEP_NONCE_BYTES]; // The connector's.
};

// False if there is no proof (crypto_mac).
bool hello_prove(const struct hello *hello, enum hello_side side,
                 uint8_t proof[LOCKSTEP_PROOF_BYTES]);
// True if the other side has sent its proof. Takes constant time.
bool hello_check(const struct hello *hello, enum hello_side side,
                 const uint8_t proof[LOCKSTEP_PROOF_BYTES]);
// The key of this connection. Both sides make it of the secret and of everything that they have
// proven to each other: HKDF-Expand (RFC 5869) with SHA-256. False if there is no key.
bool hello_key(const struct hello *hello, uint8_t key[LOCKSTEP_PROOF_BYTES]);

#endif
