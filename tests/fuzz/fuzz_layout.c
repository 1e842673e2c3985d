// SPDX-License-Identifier: Apache-2.0
// Words of a bucket layout, from a coordinator or from a file. A layout that decodes encodes to
// itself.

#include "tests/fuzz/fuzz.h"
#include "worker/session/module/buckets.h"

#include <string.h>

#define PARAMETERS 12
#define WORDS 64

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct bucket_parameter parameters[PARAMETERS];
    uint32_t order[PARAMETERS];
    struct bucket buckets[PARAMETERS];
    struct bucket_layout layout = {.order = order,
                                   .order_capacity = PARAMETERS,
                                   .buckets = buckets,
                                   .bucket_capacity = PARAMETERS};
    uint32_t words[WORDS];
    uint32_t again[WORDS];
    char error[256] = "";
    for (uint32_t i = 0; i < PARAMETERS; i++)
        parameters[i] = (struct bucket_parameter){
            .dtype = i % 3 ? DTYPE_FLOAT32 : DTYPE_FLOAT16, .trainable = i != 5, .elements = i * 7};
    if (size > sizeof(words))
        size = sizeof(words);
    memcpy(words, bytes, size / 4 * 4);
    const uint32_t count = (uint32_t)(size / 4);
    if (buckets_decode(words, count, parameters, PARAMETERS, &layout, error, sizeof(error)) !=
        BUCKET_OK) {
        FUZZ_CHECK(error[0] != '\0');
        return 0;
    }
    FUZZ_CHECK(buckets_word_count(&layout) == count);
    FUZZ_CHECK(buckets_encode(&layout, again) == count);
    FUZZ_CHECK(memcmp(words, again, (size_t)count * 4) == 0);
    return 0;
}
