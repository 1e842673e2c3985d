// SPDX-License-Identifier: Apache-2.0
// JSON of a coordinator, as the commands look for values in it.

#include "cli/ask/json_read.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static void json_walk(const char *value, int depth)
{
    char text[32];
    uint64_t number;
    bool flag;
    int items = 0;
    (void)json_read_u64(value, &number);
    (void)json_read_bool(value, &flag);
    (void)json_read_string(value, text, sizeof(text));
    FUZZ_CHECK(memchr(text, 0, sizeof(text)) != NULL);
    for (const char *c = text; *c != '\0'; c++)
        FUZZ_CHECK((unsigned char)*c >= ' ' && *c != 0x7f);
    if (depth == 0)
        return;
    json_walk(json_read_member(value, "jobs"), depth - 1);
    json_walk(json_read_member(value, "name"), depth - 1);
    for (const char *item = json_read_first(value); item && items < 8; item = json_read_next(item))
        json_walk(item, items++ < 2 ? depth - 1 : 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char *text = malloc(size + 1);
    FUZZ_CHECK(text != NULL);
    memcpy(text, bytes, size);
    text[size] = '\0';
    json_walk(text, 4);
    free(text);
    return 0;
}
