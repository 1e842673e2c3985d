// SPDX-License-Identifier: Apache-2.0
//
// Encodes and decodes control messages. Only the codec knows nanopb.
//
// A decoder accepts any bytes: it returns a value or an error and never crashes. A decoded value
// obeys every bound of limits.h and every enum of types.h: strings are terminated valid UTF-8,
// counts are within their arrays, indices are below their maxima. The numbers of a hello are an
// exception: the coordinator checks them and refuses them with a sentence. Encoders refuse a struct
// that breaks these bounds, so a peer never receives a message that its decoder refuses. Therefore
// a caller that shortens a text must cut it between UTF-8 characters.
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
    CODEC_SPACE = -4, // Encoding: the buffer is too small. LOCKSTEP_MESSAGE_BYTES are enough.
};

const char *codec_status_name(enum codec_status status);

// grpc.health.v1, for the server. The first function decodes the service name of a
// HealthCheckRequest (NUL-terminated, at most capacity bytes), the second encodes a
// HealthCheckResponse. status: 0 unknown, 1 serving, 2 not serving, 3 service unknown.
enum codec_status codec_decode_health_request(const uint8_t *bytes, size_t size, char *service,
                                              size_t capacity);
enum codec_status codec_encode_health_response(int status, uint8_t *bytes, size_t capacity,
                                               size_t *size);

// Stores a fault. Only the first fault of a message is kept.
void codec_fault_set(struct codec_fault *fault, enum codec_status status, const char *detail);
// Encode and decode by nanopb. wire: the generated struct that belongs to the descriptor; the
// caller of codec_read zeroes it.
enum codec_status codec_write(const struct pb_msgdesc_s *descriptor, const void *wire,
                              uint8_t *bytes, size_t capacity, size_t *size);
void codec_read(const struct pb_msgdesc_s *descriptor, void *wire, const uint8_t *bytes,
                size_t size, struct codec_fault *fault);
// Copy a string between a plain and a generated struct; both arrays have the same size. The caller
// of codec_text_out has checked the string. A received string that contains a NUL is a fault,
// because the copy would silently end there.
void codec_text_out(char *wire, const char *text, size_t bytes);
void codec_text_in(char *text, const char *wire, size_t bytes, struct codec_fault *fault);
// Copies bytes of a fixed size, such as a uuid. Another size is a fault.
void codec_bytes_in(uint8_t *to, size_t size, const uint8_t *wire, size_t wire_size,
                    struct codec_fault *fault);
// Copies the words of a set up to the last word that is not zero. Returns the number of words.
uint32_t codec_words_out(uint64_t *wire, const uint64_t *words, uint32_t count);
// Messages that both directions use. An absent generation decodes as zeros: no generation yet. An
// absent slot is a fault.
bool codec_generation_out(struct _wire_GenerationId *wire, const struct generation_id *id);
void codec_generation_in(struct generation_id *id, const struct _wire_GenerationId *wire,
                         bool present);
void codec_slot_out(struct _wire_SlotId *wire, const struct slot_id *slot);
void codec_slot_in(struct slot_id *slot, const struct _wire_SlotId *wire, bool present,
                   struct codec_fault *fault);
void codec_layout_out(struct _wire_LayoutPart *wire, const struct layout_part *part);
void codec_layout_in(struct layout_part *part, const struct _wire_LayoutPart *wire);

#endif
