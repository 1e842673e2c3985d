// SPDX-License-Identifier: Apache-2.0
//
// What one connection may make OpenSSL hold, whoever speaks TLS in this process: gRPC, whose
// handshakes nobody else sees, and HTTP. A stranger needs no certificate for that: OpenSSL takes as
// much memory as the first bytes of a message announce before the others have come, 170 KiB for a
// client's hello and 130 KiB for its certificates.
//
// So messages of a handshake have a bound, what is said at once has one, and buffers of records are
// given back while nothing is in them. A client with a larger message is told of it by an alert,
// and its connection ends.

#ifndef LOCKSTEP_SERVER_TLS_LIMITS_H
#define LOCKSTEP_SERVER_TLS_LIMITS_H

// What a connection may say before the stream thread has taken its next turn. gRPC reads on as long
// as something is there, and a call of 15 bytes costs it 12 KiB until the thread has refused it. A
// client with one stream has at most a window (64 KiB) and a message under way; of one that says
// more nothing is heard any more, and soon its connection ends.
#define TLS_TURN_BYTES (128 * 1024)

// The largest message of a handshake that is sure to be taken; above 21 KiB none is. A client's
// hello has less than 2 KiB, a certificate with those between it and the authority 1 to 8 KiB.
#define TLS_MESSAGE_BYTES (16 * 1024)

// Authorities in ca.crt at most. Their names are one message of ours, about 100 bytes each.
#define TLS_AUTHORITIES 64

// Once, at the start of the process, before anything else of OpenSSL; for good. Returns 0, or -1:
// OpenSSL holds memory already, and nothing was limited.
int tls_limits_set(void);

// The stream thread has heard what was said so far. Before the first turn there is no bound.
void tls_limits_turn(void);

#endif
