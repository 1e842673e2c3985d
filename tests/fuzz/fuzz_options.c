// SPDX-License-Identifier: Apache-2.0
// The command line of the coordinator: words with a newline between them.

#include "server/options.h"
#include "tests/fuzz/fuzz.h"

#include <getopt.h>
#include <string.h>

#define WORDS 32

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static FILE *nowhere;
    char *argv[WORDS + 2] = {(char *)(uintptr_t) "lockstep-coordinator"};
    int argc = 1;
    struct options options;
    char error[512] = "";
    char *text = malloc(size + 1);
    char *rest = NULL;
    FUZZ_CHECK(text != NULL);
    if (!nowhere)
        nowhere = fopen("/dev/null", "w");
    memcpy(text, bytes, size);
    text[size] = '\0';
    for (char *word = strtok_r(text, "\n", &rest); word && argc <= WORDS;
         word = strtok_r(NULL, "\n", &rest))
        argv[argc++] = word;
    optind = 0;
    if (options_parse(argc, argv, &options, nowhere, error, sizeof(error)) == OPTIONS_USAGE)
        FUZZ_CHECK(error[0] != '\0');
    free(text);
    return 0;
}
