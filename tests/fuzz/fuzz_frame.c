// SPDX-License-Identifier: Apache-2.0
// The header of a frame between workers. A header that decodes is within its bounds, and encodes to
// itself.

#include "protos/frame.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    uint8_t given[LOCKSTEP_FRAME_HEADER_BYTES] = {0};
    uint8_t encoded[LOCKSTEP_FRAME_HEADER_BYTES];
    struct frame_header header;
    const char *detail = NULL;
    memcpy(given, bytes, size < sizeof(given) ? size : sizeof(given));
    if (frame_decode(given, &header, &detail) != FRAME_OK) {
        FUZZ_CHECK(detail != NULL);
        return 0;
    }
    FUZZ_CHECK(header.payload_bytes <= frame_payload_max(header.kind));
    FUZZ_CHECK(header.used_bytes <= LOCKSTEP_USED_BYTES);
    frame_encode(&header, encoded);
    FUZZ_CHECK(memcmp(encoded, given, sizeof(given)) == 0);
    return 0;
}
