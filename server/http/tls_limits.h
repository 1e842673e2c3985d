// SPDX-License-Identifier: Apache-2.0
//
// The bound on the memory that one connection can make OpenSSL hold. It covers every user of TLS in
// this process: gRPC, whose handshakes only gRPC sees, and HTTP. An attacker needs no certificate
// to use this memory: OpenSSL allocates the size that the first bytes of a message announce before
// the message has come, 170 KiB for a client's hello and 130 KiB for its certificates.
//
// So handshake messages have a bound, and empty record buffers are freed. A client with a larger
// message gets an alert, and its connection ends. server/rpc/sockets.h bounds the bytes that a
// connection to gRPC sends at once, with TLS and without.
//
// The function that bounds a connection can also ask OpenSSL why it refuses a client's certificate.

#ifndef LOCKSTEP_SERVER_HTTP_TLS_LIMITS_H
#define LOCKSTEP_SERVER_HTTP_TLS_LIMITS_H

// Every handshake message up to this size is accepted; none above 21 KiB is. A client's hello has
// less than 2 KiB. A certificate with its intermediate certificates has 1 to 8 KiB.
#define TLS_MESSAGE_BYTES (16 * 1024)

// Largest number of authorities in ca.crt. The server sends their names in one message, about 100
// bytes each.
#define TLS_AUTHORITIES 64

// Sets the limits for the whole life of the process. Call it once, at the start, before any other
// use of OpenSSL. Returns 0, or -1 if OpenSSL has already allocated memory; then nothing is
// limited.
int tls_limits_set(void);

// Returns why the last client's certificate that was refused on this thread was refused. gRPC's log
// says only that one was refused. A constant. Any thread; call it after tls_limits_set.
const char *tls_limits_refusal(void);

#endif
