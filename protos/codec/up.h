// SPDX-License-Identifier: Apache-2.0
//
// Encodes and decodes messages of workers. Any thread.

#ifndef LOCKSTEP_PROTOS_CODEC_UP_H
#define LOCKSTEP_PROTOS_CODEC_UP_H

#include "protos/codec/codec.h"

#include <stddef.h>
#include <stdint.h>

struct up_message;

// Encodes into bytes[0, capacity). *size receives the number of bytes written, 0 on failure.
enum codec_status codec_encode_up(const struct up_message *message, uint8_t *bytes, size_t capacity,
                                  size_t *size);
// Decodes bytes[0, size) into *message. On failure *message is zeroed and *detail, if detail is not
// NULL, is set to a static sentence for people.
enum codec_status codec_decode_up(const uint8_t *bytes, size_t size, struct up_message *message,
                                  const char **detail);

#endif
