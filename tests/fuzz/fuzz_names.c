// SPDX-License-Identifier: Apache-2.0
// Two lines: a name in a certificate, and the job that its holder wants to join.

#include "base/tls_names.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char *text = malloc(size + 2);
    FUZZ_CHECK(text != NULL);
    memcpy(text, bytes, size);
    text[size] = text[size + 1] = '\0';
    char *job = strchr(text, '\n');
    if (job)
        *job++ = '\0';
    else
        job = text + size;
    const bool any = tls_name_is_worker(text, NULL);
    const bool worker = tls_name_is_worker(text, job);
    FUZZ_CHECK(!worker || any);
    FUZZ_CHECK(!worker || strcmp(text, "lockstep://job/*/worker") == 0 || strstr(text, job));
    FUZZ_CHECK(!worker || !tls_name_is_coordinator(text));
    free(text);
    return 0;
}
