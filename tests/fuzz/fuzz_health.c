// SPDX-License-Identifier: Apache-2.0
// Requests of any client to grpc.health.v1.

#include "protos/codec/codec.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char service[128];
    memset(service, 'x', sizeof(service));
    if (codec_decode_health_request(bytes, size, service, sizeof(service)) == CODEC_OK)
        FUZZ_CHECK(memchr(service, 0, sizeof(service)) != NULL);
    return 0;
}
