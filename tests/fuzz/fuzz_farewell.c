// SPDX-License-Identifier: Apache-2.0
// The farewell of a peer that ends, or its report of a lost rank. A farewell that decodes is within
// its bounds, and is the same after it is encoded and decoded again.

#include "base/utf8.h"
#include "protos/farewell.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    uint8_t encoded[FAREWELL_BYTES];
    struct farewell farewell;
    struct farewell again;
    if (farewell_decode(bytes, size, 5, &farewell))
        return 0;
    FUZZ_CHECK(farewell.rank < 5 && farewell.witness < 5 && farewell.kind <= FAREWELL_FROZEN);
    FUZZ_CHECK(strnlen(farewell.host, sizeof(farewell.host)) < sizeof(farewell.host));
    FUZZ_CHECK(strnlen(farewell.text, sizeof(farewell.text)) < sizeof(farewell.text));
    FUZZ_CHECK(utf8_valid(farewell.text, strlen(farewell.text)));
    for (const char *at = farewell.text; *at != '\0'; at++)
        FUZZ_CHECK((unsigned char)*at >= 0x20 && *at != 0x7f);
    const size_t written = farewell_encode(&farewell, encoded);
    FUZZ_CHECK(written == size);
    FUZZ_CHECK(!farewell_decode(encoded, written, 5, &again));
    FUZZ_CHECK(memcmp(&again, &farewell, sizeof(again)) == 0);
    return 0;
}
