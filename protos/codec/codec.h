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
// No state. Any thread. A call uses at most 16 KiB of stack besides the caller's structs, and
// allocates nothing.

#ifndef LOCKSTEP_PROTOS_CODEC_CODEC_H
#define LOCKSTEP_PROTOS_CODEC_CODEC_H

#include <stdbool.h>
#include <stdint.h>

struct _wire_GenerationId;
struct _wire_LayoutPart;
struct _wire_SlotId;
struct codec_fault;
struct generation_id;
struct layout_part;
struct pb_msgdesc_s;
struct slot_id;

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

// grpc.health.v1, for the server: decodes a HealthCheckRequest's service name (NUL-terminated,
// bounded by capacity) and encodes a HealthCheckResponse. status: 0 unknown, 1 serving, 2 not
// serving, 3 service unknown.
enum codec_status codec_decode_health_request(const uint8_t *bytes, size_t size, char *service,
                                              size_t capacity);
enum codec_status codec_encode_health_response(int status, uint8_t *bytes, size_t capacity,
                                               size_t *size);

// Keeps the first fault; later ones change nothing.
void codec_fault_set(struct codec_fault *fault, enum codec_status status, const char *detail);
// nanopb. wire is the generated struct that belongs to the descriptor; codec_read wants it zeroed.
enum codec_status codec_write(const struct pb_msgdesc_s *descriptor, const void *wire,
                              uint8_t *bytes, size_t capacity, size_t *size);
void codec_read(const struct pb_msgdesc_s *descriptor, void *wire, const uint8_t *bytes,
                size_t size, struct codec_fault *fault);
// Both arrays have the same size; a string was checked before it goes out. Coming in, a string that
// holds a NUL would be cut there in silence: it is a fault instead.
void codec_text_out(char *wire, const char *text, size_t bytes);
void codec_text_in(char *text, const char *wire, size_t bytes, struct codec_fault *fault);
// Fixed lengths, such as a uuid, are exact.
void codec_bytes_in(uint8_t *to, size_t size, const uint8_t *wire, size_t wire_size,
                    struct codec_fault *fault);
// Writes a set: the words up to the last one that is not zero. Returns the number of words.
uint32_t codec_words_out(uint64_t *wire, const uint64_t *words, uint32_t count);
// The messages that both directions use. An absent generation is "none yet", both zero; an absent
// slot is a fault.
bool codec_generation_out(struct _wire_GenerationId *wire, const struct generation_id *id);
void codec_generation_in(struct generation_id *id, const struct _wire_GenerationId *wire,
                         bool present);
void codec_slot_out(struct _wire_SlotId *wire, const struct slot_id *slot);
void codec_slot_in(struct slot_id *slot, const struct _wire_SlotId *wire, bool present,
                   struct codec_fault *fault);
void codec_layout_out(struct _wire_LayoutPart *wire, const struct layout_part *part);
void codec_layout_in(struct layout_part *part, const struct _wire_LayoutPart *wire);

#endif
