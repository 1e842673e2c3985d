// SPDX-License-Identifier: Apache-2.0
// What a worker says to its coordinator. What decodes can be encoded, and means the same then.

#include "protos/codec.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static struct up_message message;
    static struct up_message again;
    static uint8_t encoded[LOCKSTEP_MESSAGE_BYTES];
    static uint8_t twice[LOCKSTEP_MESSAGE_BYTES];
    const char *detail = NULL;
    size_t first = 0;
    size_t second = 0;
    if (codec_decode_up(bytes, size, &message, &detail) != CODEC_OK) {
        FUZZ_CHECK(detail != NULL);
        return 0;
    }
    FUZZ_CHECK(codec_encode_up(&message, encoded, sizeof(encoded), &first) == CODEC_OK);
    FUZZ_CHECK(codec_decode_up(encoded, first, &again, NULL) == CODEC_OK);
    FUZZ_CHECK(codec_encode_up(&again, twice, sizeof(twice), &second) == CODEC_OK);
    FUZZ_CHECK(first == second && memcmp(encoded, twice, first) == 0);
    return 0;
}
