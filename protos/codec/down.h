// SPDX-License-Identifier: Apache-2.0
//
// Encodes and decodes messages of the coordinator; codec/up.h explains the arguments. Any thread.

#ifndef LOCKSTEP_PROTOS_CODEC_DOWN_H
#define LOCKSTEP_PROTOS_CODEC_DOWN_H

#include "protos/codec/codec.h"

#include <stddef.h>
#include <stdint.h>

struct down_message;

enum codec_status codec_encode_down(const struct down_message *message, uint8_t *bytes,
                                    size_t capacity, size_t *size);
enum codec_status codec_decode_down(const uint8_t *bytes, size_t size, struct down_message *message,
                                    const char **detail);

#endif
