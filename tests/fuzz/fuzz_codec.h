// SPDX-License-Identifier: Apache-2.0
//
// One direction of the control protocol (up, down). A message that decodes can be encoded, and
// decodes to the same message again.

#ifndef LOCKSTEP_TESTS_FUZZ_CODEC_H
#define LOCKSTEP_TESTS_FUZZ_CODEC_H

#include "protos/codec/codec.h"
#include "protos/codec/down.h"
#include "protos/codec/up.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

#define FUZZ_CODEC(direction) \
    int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) \
    { \
        static struct direction##_message message; \
        static struct direction##_message again; \
        static uint8_t encoded[LOCKSTEP_MESSAGE_BYTES]; \
        static uint8_t twice[LOCKSTEP_MESSAGE_BYTES]; \
        const char *detail = NULL; \
        size_t first = 0; \
        size_t second = 0; \
        if (codec_decode_##direction(bytes, size, &message, &detail) != CODEC_OK) { \
            FUZZ_CHECK(detail != NULL); \
            return 0; \
        } \
        FUZZ_CHECK(codec_encode_##direction(&message, encoded, sizeof(encoded), &first) == \
                   CODEC_OK); \
        FUZZ_CHECK(codec_decode_##direction(encoded, first, &again, NULL) == CODEC_OK); \
        FUZZ_CHECK(codec_encode_##direction(&again, twice, sizeof(twice), &second) == CODEC_OK); \
        FUZZ_CHECK(first == second && memcmp(encoded, twice, first) == 0); \
        return 0; \
    }

#endif
