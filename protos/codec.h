// SPDX-License-Identifier: Apache-2.0
//
// Control messages to bytes and back. The only place that knows nanopb.
//
// Decoders are total: any bytes give a value or a named error, never a crash, and a value that
// decodes obeys every bound of limits.h and every enum of types.h: strings are terminated valid
// UTF-8, counts are within their arrays, indices are below their maxima. Only the numbers of a
// hello are left to the coordinator, which refuses them with a sentence. Encoders refuse a struct
// that breaks these bounds, so a peer never gets what its decoder refuses; so a text that is cut to
// fit must be cut between characters.
//
// Pure functions, any thread. A call uses at most 16 KiB of stack besides the caller's structs, and
// allocates nothing.

#ifndef PROTOS_CODEC_H
#define PROTOS_CODEC_H

#include "protos/types.h"

#include <stddef.h>

enum codec_status {
    CODEC_OK = 0,
    CODEC_TRUNCATED = -1, // The bytes end inside a field.
    CODEC_TOO_LONG = -2, // A string, an array or the message is above its bound.
    CODEC_INVALID = -3, // A value outside its enum or above its maximum, bad UTF-8, a missing or
                        // unknown kind, or no message at all.
    CODEC_SPACE = -4, // Encoding: the buffer is too small. LOCKSTEP_MESSAGE_BYTES suffices.
};

const char *codec_status_name(enum codec_status status);

// Encodes into bytes[0, capacity). *size receives the number of bytes written, 0 on failure.
enum codec_status codec_encode_up(const struct up_message *message, uint8_t *bytes, size_t capacity,
                                  size_t *size);
enum codec_status codec_encode_down(const struct down_message *message, uint8_t *bytes,
                                    size_t capacity, size_t *size);

// Decodes bytes[0, size) into *message. On failure *message is zeroed and detail, when not NULL,
// receives a static sentence for people.
enum codec_status codec_decode_up(const uint8_t *bytes, size_t size, struct up_message *message,
                                  const char **detail);
enum codec_status codec_decode_down(const uint8_t *bytes, size_t size, struct down_message *message,
                                    const char **detail);

// grpc.health.v1, for the server: decodes a HealthCheckRequest's service name (NUL-terminated,
// bounded by capacity) and encodes a HealthCheckResponse. status: 0 unknown, 1 serving, 2 not
// serving, 3 service unknown.
enum codec_status codec_decode_health_request(const uint8_t *bytes, size_t size, char *service,
                                              size_t capacity);
enum codec_status codec_encode_health_response(int status, uint8_t *bytes, size_t capacity,
                                               size_t *size);

#endif
