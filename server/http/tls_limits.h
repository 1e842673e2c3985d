// SPDX-License-Identifier: Apache-2.0
//
// The bound on the memory that one connection can make OpenSSL hold, for every user of TLS in this
// process: gRPC, whose handshakes only gRPC sees, and HTTP. A stranger needs no certificate for it:
// OpenSSL takes as much memory as the first bytes of a message announce before the others have
// come, 170 KiB for a client's hello and 130 KiB for its certificates.
//
// So messages of a handshake have a bound, and empty buffers of records are given back. A client
// with a larger message gets an alert, and its connection ends. The bytes that a connection to gRPC
// sends at once have a bound elsewhere (server/rpc/sockets.h), with TLS and without.

#ifndef LOCKSTEP_SERVER_HTTP_TLS_LIMITS_H
#define LOCKSTEP_SERVER_HTTP_TLS_LIMITS_H

// The largest message of a handshake that is sure to be taken; above 21 KiB none is. A client's
// hello has less than 2 KiB, a certificate with those between it and the authority 1 to 8 KiB.
#define TLS_MESSAGE_BYTES (16 * 1024)

// Authorities in ca.crt at most. Their names are one message of ours, about 100 bytes each.
#define TLS_AUTHORITIES 64

// Once, at the start of the process, before anything else of OpenSSL; for good. Returns 0, or -1:
// OpenSSL holds memory already, and nothing was limited.
int tls_limits_set(void);

#endif
