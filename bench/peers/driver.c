// SPDX-License-Identifier: Apache-2.0
//
// The program of every rank of every peer: sums, or another collective (--collective), of each
// size, one after the other, each with one warm buffer and with buffers that come back only when no
// cache can hold them any more. Nothing here knows whom it measures. Main thread.
//
// A cell is one size, warm or cold. First its sum is checked, every element. Then it runs, after
// one iteration in which ranks wait for the last one, in rounds of twice as many iterations until a
// round takes a tenth of the time that is given: that warms up and tells how many iterations fit.
// Rank 0 alone decides, and its word travels as a sum to which the others add nothing: so every
// rank does the same, whatever their clocks say.
//
// A sample is one iteration. Where more than MAX_SAMPLES fit, it is the mean of several that follow
// each other: reading the clock costs a tenth of the fastest ones.
//
// The file that --out names gets one JSON object on a line: first about the peer, then for each
// cell, and {"done":true} in the end.

#include "bench/peers/driver.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define MAX_SIZES 32
#define MAX_SAMPLES 2000
#define MIN_ITERATIONS 3
#define PAGE 4096
// Used where the system does not say how large its last cache is.
#define CACHE_BYTES ((size_t)32 << 20)
#define MAX_ITERATIONS 20e6

struct driver {
    struct peer_world world;
    size_t sizes[MAX_SIZES];
    size_t size_count;
    double seconds;
    bool warm;
    bool cold;
    enum peer_move move;
    FILE *out;
    char *arena;
    size_t arena_bytes;
    float *word; // A word of rank 0, for all ranks.
    double samples[MAX_SAMPLES];
};

struct cell {
    size_t bytes;
    size_t count;
    size_t stride;
    size_t slots; // 1: warm.
    size_t turn;
};

void peer_fail(const char *what, const char *why)
{
    fprintf(stderr, "driver: %s: %s\n", what, why);
    exit(1);
}

const char *peer_variable(const char *name)
{
    const char *value = getenv(name);
    if (!value)
        peer_fail(name, "it is not in the environment; bench/peers/run.py starts this program");
    return value;
}

void *peer_map(size_t bytes)
{
    const size_t huge = (size_t)2 << 20;
    bytes = (bytes + huge - 1) / huge * huge;
    char *memory =
        mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        peer_fail("memory", "not enough of it");
    memory += (huge - (uintptr_t)memory % huge) % huge;
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 0, bytes);
    return memory;
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double cpu_ns(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e9 +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e3;
}

// ---- options ----------------------------------------------------------------------------------

static void read_sizes(struct driver *driver, char *list)
{
    for (char *word = strtok(list, ","); word; word = strtok(NULL, ",")) {
        size_t bytes = strtoull(word, NULL, 10);
        if (bytes == 0 || bytes % sizeof(float) != 0 || driver->size_count == MAX_SIZES)
            peer_fail("--sizes", "at most 32, in bytes, each a multiple of 4");
        driver->sizes[driver->size_count++] = bytes;
    }
}

// --out gets the number of the rank appended.
static void open_out(struct driver *driver, const char *name)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s.%d.jsonl", name, driver->world.rank);
    driver->out = fopen(path, "we");
    if (!driver->out)
        peer_fail("--out", path);
}

static enum peer_move read_move(const char *word)
{
    static const char *const words[] = {"allreduce", "reduce_scatter", "all_gather", "all_to_all"};
    for (int i = 0; i < 4; i++)
        if (strcmp(word, words[i]) == 0)
            return (enum peer_move)i;
    peer_fail("--collective", "allreduce, reduce_scatter, all_gather or all_to_all");
    return MOVE_NONE;
}

static const char *read_arguments(struct driver *driver, int argc, char **argv)
{
    const char *out = NULL;
    for (int i = 1; i < argc; i++) {
        char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--warm") == 0) {
            driver->warm = true;
            continue;
        }
        if (strcmp(argv[i], "--cold") == 0) {
            driver->cold = true;
            continue;
        }
        if (!value)
            peer_fail(argv[i], "unknown, or its value is missing");
        i++;
        if (strcmp(argv[i - 1], "--sizes") == 0)
            read_sizes(driver, value);
        else if (strcmp(argv[i - 1], "--seconds") == 0)
            driver->seconds = strtod(value, NULL);
        else if (strcmp(argv[i - 1], "--out") == 0)
            out = value;
        else if (strcmp(argv[i - 1], "--collective") == 0)
            driver->move = read_move(value);
        else if (strcmp(argv[i - 1], "--dtype") != 0 || strcmp(value, "float32") != 0)
            peer_fail(argv[i - 1], "unknown; and --dtype is float32");
    }
    if (!out || driver->size_count == 0 || !(driver->seconds > 0) ||
        !(driver->warm || driver->cold))
        peer_fail("usage", "--sizes LIST --seconds S --out NAME [--dtype float32] --warm --cold");
    return out;
}

// ---- buffers ----------------------------------------------------------------------------------

static size_t stride_of(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static size_t cold_bytes(void)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return 2 * (cache > 0 ? (size_t)cache : CACHE_BYTES);
}

static void open_arena(struct driver *driver)
{
    size_t largest = 0;
    for (size_t i = 0; i < driver->size_count; i++) {
        if (2 * stride_of(driver->sizes[i]) > largest)
            largest = 2 * stride_of(driver->sizes[i]);
    }
    driver->arena_bytes = driver->cold && cold_bytes() > 2 * largest ? cold_bytes() : 2 * largest;
    driver->word = peer_allocate(PAGE);
    driver->arena = peer_allocate(driver->arena_bytes);
}

static struct cell cell_of(const struct driver *driver, size_t bytes, bool cold)
{
    // A slot has input and output of a collective that is not in place.
    size_t stride = stride_of(bytes) * (driver->move == MOVE_NONE ? 1 : 2);
    return (struct cell){.bytes = bytes,
                         .count = bytes / sizeof(float),
                         .stride = stride,
                         .slots = cold ? driver->arena_bytes / stride : 1};
}

static float *next_slot(struct driver *driver, struct cell *cell)
{
    return (float *)(void *)(driver->arena + cell->turn++ % cell->slots * cell->stride);
}

// ---- measuring --------------------------------------------------------------------------------

// Returns rank 0's value on every rank. A float holds it exactly enough, and the same everywhere.
static double agree(struct driver *driver, double value)
{
    *driver->word = driver->world.rank == 0 ? (float)value : 0;
    peer_allreduce(driver->word, 1);
    return (double)*driver->word;
}

// One collective of the whole `count` elements. Of sums `payload` is both input and output.
static void run(struct driver *driver, float *payload, size_t count)
{
    float *output = payload + stride_of(count * sizeof(float)) / sizeof(float);
    if (driver->move == MOVE_NONE)
        peer_allreduce(payload, count);
    else
        peer_move(driver->move, payload, output, count / (size_t)driver->world.size);
}

static int value_of(int rank, size_t element)
{
    return (rank + 1) * (int)(element % 61 + 1);
}

// Returns the value that element i of the output has after a collective other than a sum.
static int moved(const struct driver *driver, size_t i, size_t part)
{
    const int rank = driver->world.rank;
    const int size = driver->world.size;
    if (driver->move == MOVE_REDUCE_SCATTER)
        return size * (size + 1) / 2 * value_of(0, (size_t)rank * part + i);
    if (driver->move == MOVE_ALL_GATHER)
        return value_of((int)(i / part), i % part);
    return value_of((int)(i / part), (size_t)rank * part + i % part);
}

static void verify_move(struct driver *driver, size_t bytes)
{
    const size_t part = bytes / sizeof(float) / (size_t)driver->world.size;
    const size_t count = part * (size_t)driver->world.size;
    float *payload = (float *)(void *)driver->arena;
    const float *output = payload + stride_of(bytes) / sizeof(float);
    for (size_t i = 0; i < count; i++)
        payload[i] = (float)value_of(driver->world.rank, i);
    run(driver, payload, bytes / sizeof(float));
    for (size_t i = 0; i < (driver->move == MOVE_REDUCE_SCATTER ? part : count); i++) {
        if (output[i] != (float)moved(driver, i, part))
            peer_fail("verify", "an element of the output is wrong");
    }
    memset(payload, 0, stride_of(bytes) + bytes);
}

// A figure for a wrong sum is worth nothing. Afterwards all is zero, and stays so when it is
// summed.
static void verify(struct driver *driver, size_t bytes)
{
    const size_t count = bytes / sizeof(float);
    float *payload = (float *)(void *)driver->arena;
    const int size = driver->world.size;
    for (size_t i = 0; i < count; i++)
        payload[i] = (float)((driver->world.rank + 1) * (int)(i % 61 + 1));
    peer_allreduce(payload, count);
    for (size_t i = 0; i < count; i++) {
        if (payload[i] != (float)(size * (size + 1) / 2 * (int)(i % 61 + 1)))
            peer_fail("verify", "an element of the sum is wrong");
    }
    memset(payload, 0, bytes);
}

static double iterate(struct driver *driver, struct cell *cell, uint64_t count)
{
    double begin_ns = now_ns();
    for (uint64_t i = 0; i < count; i++)
        run(driver, next_slot(driver, cell), cell->count);
    return now_ns() - begin_ns;
}

// How many iterations fit into the time.
static double warm_up(struct driver *driver, struct cell *cell)
{
    (void)iterate(driver, cell, 1);
    for (uint64_t count = 1;; count *= 2) {
        double took_ns = agree(driver, iterate(driver, cell, count));
        double fit = driver->seconds * 1e9 / (took_ns / (double)count);
        if (took_ns > driver->seconds * 1e8)
            return fit < MIN_ITERATIONS   ? MIN_ITERATIONS
                   : fit > MAX_ITERATIONS ? MAX_ITERATIONS
                                          : fit;
    }
}

static void measure(struct driver *driver, struct cell *cell)
{
    double iterations = warm_up(driver, cell);
    uint64_t batch = (uint64_t)(iterations / MAX_SAMPLES) + 1;
    uint64_t samples = (uint64_t)iterations / batch;
    memset(driver->samples, 0, sizeof(driver->samples)); // Touched now.
    agree(driver, 0); // Together from here.
    double cpu_before_ns = cpu_ns();
    double begin_ns = now_ns();
    for (uint64_t i = 0; i < samples; i++)
        driver->samples[i] = iterate(driver, cell, batch) / (double)batch;
    double wall_ns = now_ns() - begin_ns;
    double cpu_took_ns = cpu_ns() - cpu_before_ns;
    fprintf(driver->out,
            "{\"bytes\":%zu,\"cold\":%s,\"batch\":%llu,\"iterations\":%llu,\"wall_ns\":%.0f,"
            "\"cpu_ns\":%.0f,\"samples_ns\":[",
            cell->bytes, cell->slots > 1 ? "true" : "false", (unsigned long long)batch,
            (unsigned long long)(batch * samples), wall_ns, cpu_took_ns);
    for (uint64_t i = 0; i < samples; i++)
        fprintf(driver->out, batch > 1 ? "%s%.1f" : "%s%.0f", i > 0 ? "," : "", driver->samples[i]);
    fprintf(driver->out, "]}\n");
    fflush(driver->out);
}

int main(int argc, char **argv)
{
    static struct driver driver; // Too large for a stack.
    const char *out = read_arguments(&driver, argc, argv);
    peer_open(argc, argv, &driver.world);
    open_out(&driver, out);
    open_arena(&driver);
    fprintf(driver.out, "{\"version\":\"%s\",\"rank\":%d,\"ranks\":%d}\n", peer_version(),
            driver.world.rank, driver.world.size);
    for (size_t i = 0; i < driver.size_count; i++) {
        (driver.move == MOVE_NONE ? verify : verify_move)(&driver, driver.sizes[i]);
        for (int cold = 0; cold < 2; cold++) {
            struct cell cell = cell_of(&driver, driver.sizes[i], cold);
            if (cold ? driver.cold : driver.warm)
                measure(&driver, &cell);
        }
    }
    fprintf(driver.out, "{\"done\":true}\n"); // Some hang in their end: that costs no figures.
    bool written = fclose(driver.out) == 0;
    peer_close();
    return written ? 0 : 1;
}
