// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzzer without libFuzzer: on every file of a directory, and on small changes of each file,
// which are the same on every run.
//
//     fuzz_up tests/fuzz/seeds/up 200     200 changes of each file
//
// Prints the number of inputs. The sanitizer that the program was built with reports a crash. With
// LOCKSTEP_TEST_FUZZ_LAST=path each input is written to that file before it is tried.

#include "tests/fuzz/fuzz.h"

#include "tests/support/choice.h"

#include <dirent.h>
#include <string.h>

#define REPLAY_BYTES (256 * 1024)

static void replay_keep(const uint8_t *bytes, size_t size)
{
    const char *path = getenv("LOCKSTEP_TEST_FUZZ_LAST");
    FILE *file = path ? fopen(path, "wb") : NULL;
    if (!file)
        return;
    (void)fwrite(bytes, 1, size, file);
    fclose(file);
}

// Copies the input into memory of exactly its size, so that a sanitizer sees a read behind its end.
static void replay_try(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1);
    if (!copy)
        abort();
    memcpy(copy, bytes, size);
    replay_keep(copy, size);
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

// Changes one to four bytes, or removes a piece, or doubles a piece. Returns the new size.
static size_t replay_change(uint8_t *bytes, size_t size, uint64_t *random)
{
    const uint64_t kind = choice_random(random) % 4;
    const size_t at = size > 0 ? choice_random(random) % size : 0;
    const size_t piece = size > at ? 1 + choice_random(random) % (size - at) : 0;
    if (size == 0)
        return 0;
    if (kind == 0) { // Cut out.
        memmove(bytes + at, bytes + at + piece, size - at - piece);
        return size - piece;
    }
    if (kind == 1 && size + piece <= REPLAY_BYTES) { // Twice.
        memmove(bytes + at + piece, bytes + at, size - at);
        return size + piece;
    }
    for (uint64_t i = 0; i < 1 + kind; i++) {
        static const uint8_t telling[] = {0, 1, 0x7f, 0x80, 0xff, '"', '\n', ' '};
        const uint64_t value = choice_random(random);
        bytes[choice_random(random) % size] =
            value % 2 ? (uint8_t)(value >> 8) : telling[(value >> 8) % sizeof(telling)];
    }
    return size;
}

static size_t replay_read(const char *directory, const char *name, uint8_t *bytes)
{
    char path[4096];
    size_t size;
    FILE *file;
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(2);
    }
    size = fread(bytes, 1, REPLAY_BYTES, file);
    fclose(file);
    return size;
}

int main(int argc, char **argv)
{
    static uint8_t seed[REPLAY_BYTES];
    static uint8_t changed[REPLAY_BYTES];
    const uint64_t changes = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    uint64_t random = 1;
    uint64_t tried = 0;
    uint64_t files = 0;
    DIR *directory = argc > 1 ? opendir(argv[1]) : NULL;
    const struct dirent *entry;
    if (!directory) {
        fprintf(stderr, "usage: %s DIRECTORY [CHANGES]\n", argv[0]);
        return 2;
    }
    while ((entry = readdir(directory))) {
        if (entry->d_name[0] == '.')
            continue;
        const size_t size = replay_read(argv[1], entry->d_name, seed);
        replay_try(seed, size);
        for (uint64_t i = 0; i < changes; i++) {
            memcpy(changed, seed, size);
            replay_try(changed, replay_change(changed, size, &random));
        }
        files++;
        tried += 1 + changes;
    }
    closedir(directory);
    printf("%llu files, %llu inputs\n", (unsigned long long)files, (unsigned long long)tried);
    return files > 0 ? 0 : 2;
}
