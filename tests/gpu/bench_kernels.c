// SPDX-License-Identifier: Apache-2.0
//
// How fast a GPU packs and finishes buckets of 25 MiB, beside its own copy of as many bytes, and
// what a launch costs the host. Prints a table, and with --json FILE writes the same as JSON.
//
// A figure is the median of 15 rounds; a round is 40 launches, one after the other on a stream,
// between two events. They go through SETS sets of memory in turn, together larger than any
// cache. Bytes are those read plus those written; the copy moves as many, so ratios compare times.
// Decisions of lockstep_finish are all made anew.

#include "tests/gpu/gpu.h"
#include "worker/kernels/kernels.h"
#include "worker/transport/device/table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BUCKET_BYTES_MAX = 25 << 20,
    SETS = 8,
    ROUNDS_MAX = 15,
    TENSORS_MAX = 500,
};

// A stand-in takes a thousand times longer, and its times mean nothing.
struct effort {
    uint64_t bucket_bytes;
    int launches;
    int rounds;
    size_t shape_step; // Every so many shapes.
};
static const struct effort full = {BUCKET_BYTES_MAX, 40, ROUNDS_MAX, 1};
static const struct effort little = {1 << 19, 2, 1, 3};
static const struct effort *effort = &full;

static struct gpu_rig gpu;
static const char *label; // Begins every line: what a stand-in measures says so.
static FILE *json;
static bool json_begun;

static void *on_device(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

// ---- buckets on the device ----------------------------------------------------------------------

// Random, and in every format numbers of an ordinary size: zeros may take another time.
static uint64_t numbers; // [effort->bucket_bytes * 2]

static void numbers_make(void)
{
    const size_t count = effort->bucket_bytes; // Of 16 bits.
    uint16_t *words = malloc(count * sizeof(*words));
    uint64_t random = 1;
    for (size_t i = 0; words && i < count; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        words[i] = (uint16_t)(0x3c00 | (random >> 48 & 0x83ff));
    }
    if (!words)
        exit(1);
    numbers = gpu_copy(&gpu, words, count * sizeof(*words));
    free(words);
}

struct bucket {
    uint64_t user; // Tensors, read or written.
    uint64_t packed;
    struct device_row row;
};

struct shape {
    const char *name;
    uint32_t tensors;
    bool odd; // Sizes that are odd, so that packed elements begin anywhere.
};

struct work {
    const char *name;
    enum dtype dtype;
    enum dtype wire;
    uint64_t weight; // Total weight for finish.
    bool finishes;
    bool bytes_only; // gather, scatter.
};

// Tensors begin at multiples of 256 bytes, as an allocator of device memory gives them.
static uint64_t cut(const struct shape *shape, const struct work *work, struct device_piece *pieces,
                    uint64_t user)
{
    const size_t size = dtype_size(work->dtype);
    const uint64_t elements = effort->bucket_bytes / size;
    const uint64_t each = elements / shape->tensors / 64 * 64;
    uint64_t at = 0;
    uint64_t place = 0;
    for (uint32_t t = 0; t < shape->tensors; t++) {
        const uint64_t count = t == shape->tensors - 1 ? elements - at
                               : shape->odd            ? each - 63 + t % 61
                                                       : each;
        pieces[t] = (struct device_piece){
            .in = on_device(user + place), .out = on_device(user + place), .first = at, .unit = t};
        at += count;
        place += (count * size + 255) / 256 * 256;
    }
    pieces[shape->tensors] = (struct device_piece){.first = at, .unit = DEVICE_NO_UNIT};
    return at;
}

static struct bucket bucket_make(const struct shape *shape, const struct work *work)
{
    static struct device_piece pieces[TENSORS_MAX + 1];
    static uint32_t tiles[BUCKET_BYTES_MAX / DEVICE_TILE_ELEMENTS + 1];
    struct bucket bucket;
    bucket.user = gpu_alloc(&gpu, effort->bucket_bytes * 2 + TENSORS_MAX * 256);
    bucket.packed = gpu_alloc(&gpu, effort->bucket_bytes * 2);
    gpu_check(&gpu,
              gpu.cuda->memcpy_dtod_async(bucket.user, numbers, effort->bucket_bytes, gpu.stream),
              "cuMemcpyDtoDAsync");
    gpu_check(
        &gpu,
        gpu.cuda->memcpy_dtod_async(bucket.packed, numbers, effort->bucket_bytes * 2, gpu.stream),
        "cuMemcpyDtoDAsync");
    const uint64_t elements = cut(shape, work, pieces, bucket.user);
    device_piece_tiles(pieces, shape->tensors, tiles);
    bucket.row = (struct device_row){
        .pieces = on_device(gpu_copy(&gpu, pieces, (shape->tensors + (size_t)1) * sizeof(*pieces))),
        .tiles = on_device(gpu_copy(&gpu, tiles, device_tiles(elements) * sizeof(*tiles))),
        .elements = elements,
        .count = shape->tensors};
    return bucket;
}

static void bucket_free(const struct bucket *bucket)
{
    gpu_free(&gpu, bucket->user);
    gpu_free(&gpu, bucket->packed);
    gpu_free(&gpu, (uint64_t)(uintptr_t)bucket->row.pieces);
    gpu_free(&gpu, (uint64_t)(uintptr_t)bucket->row.tiles);
}

// ---- launches -----------------------------------------------------------------------------------

static void *pack_kernel, *finish_kernel, *gather_kernel, *scatter_kernel;
static uint64_t header; // [1 + TENSORS_MAX], all of it above 0.
static uint64_t decisions; // [effort->launches], cleared before each round.
static uint64_t revoked; // Pinned, as in a job.

static void launch_pack(const struct work *work, const struct bucket *bucket)
{
    const struct device_pack pack = {.row = bucket->row,
                                     .packed = on_device(bucket->packed),
                                     .weight = work->weight,
                                     .dtype = work->dtype,
                                     .wire = work->wire};
    gpu_launch(&gpu, pack_kernel, bucket->row.elements, &pack);
}

static void launch_finish(const struct work *work, const struct bucket *bucket, int launch)
{
    const struct device_finish finish = {
        .row = bucket->row,
        .packed = on_device(bucket->packed),
        .header = on_device(header),
        .revoked = on_device(revoked),
        .decision = on_device(decisions + (uint64_t)launch * sizeof(uint32_t)),
        .dtype = work->dtype,
        .wire = work->wire,
        .final = work->wire == DTYPE_BFLOAT16 ? DTYPE_BFLOAT16 : work->dtype,
        .divides = 1};
    gpu_launch(&gpu, finish_kernel, bucket->row.elements, &finish);
}

static void launch_bytes(const struct work *work, const struct bucket *bucket)
{
    const struct device_gather gather = {
        .row = bucket->row, .packed = on_device(bucket->packed), .dtype = work->dtype};
    const struct device_scatter scatter = {
        .row = bucket->row, .packed = on_device(bucket->packed), .dtype = work->dtype};
    if (work->finishes)
        gpu_launch(&gpu, scatter_kernel, bucket->row.elements, &scatter);
    else
        gpu_launch(&gpu, gather_kernel, bucket->row.elements, &gather);
}

// work NULL: a copy of `bytes`.
static void launch(const struct work *work, const struct bucket *bucket, uint64_t bytes, int launch)
{
    if (!work)
        gpu_check(&gpu,
                  gpu.cuda->memcpy_dtod_async(bucket->packed, bucket->user, bytes, gpu.stream),
                  "cuMemcpyDtoDAsync");
    else if (work->bytes_only)
        launch_bytes(work, bucket);
    else if (work->finishes)
        launch_finish(work, bucket, launch);
    else
        launch_pack(work, bucket);
}

struct figures {
    double device_us; // Time of one launch.
    double host_us;
};

static struct figures measure(const struct work *work, const struct bucket *buckets, uint64_t bytes)
{
    double device_us[ROUNDS_MAX];
    double host_us[ROUNDS_MAX];
    void *begin = NULL;
    void *end = NULL;
    gpu_check(&gpu, gpu.cuda->event_create(&begin, 0), "cuEventCreate");
    gpu_check(&gpu, gpu.cuda->event_create(&end, 0), "cuEventCreate");
    for (int round = -2; round < effort->rounds; round++) { // Two to warm up.
        float elapsed_ms = 0;
        gpu_check(&gpu,
                  gpu.cuda->memset_d32_async(decisions, 0, (size_t)effort->launches, gpu.stream),
                  "cuMemsetD32Async");
        gpu_wait(&gpu);
        gpu_check(&gpu, gpu.cuda->event_record(begin, gpu.stream), "cuEventRecord");
        const double before_us = gpu_now_us();
        for (int i = 0; i < effort->launches; i++)
            launch(work, &buckets[i % SETS], bytes, i);
        const double after_us = gpu_now_us();
        gpu_check(&gpu, gpu.cuda->event_record(end, gpu.stream), "cuEventRecord");
        gpu_wait(&gpu);
        gpu_check(&gpu, gpu.cuda->event_elapsed_time(&elapsed_ms, begin, end),
                  "cuEventElapsedTime");
        if (round < 0)
            continue;
        device_us[round] = (double)elapsed_ms * 1e3 / effort->launches;
        host_us[round] = (after_us - before_us) / effort->launches;
    }
    gpu_check(&gpu, gpu.cuda->event_destroy(begin), "cuEventDestroy");
    gpu_check(&gpu, gpu.cuda->event_destroy(end), "cuEventDestroy");
    return (struct figures){gpu_median(device_us, effort->rounds),
                            gpu_median(host_us, effort->rounds)};
}

// ---- the table ----------------------------------------------------------------------------------

// A launch moves as many bytes as a copy of half of those that it reads and writes.
static void bench(const struct work *work, const struct shape *shape)
{
    struct bucket buckets[SETS];
    for (int s = 0; s < SETS; s++)
        buckets[s] = bucket_make(shape, work);
    const uint64_t moved =
        buckets[0].row.elements * (dtype_size(work->dtype) + dtype_size(work->wire));
    const struct figures copy = measure(NULL, buckets, moved / 2);
    const struct figures own = measure(work, buckets, 0);
    for (int s = 0; s < SETS; s++)
        bucket_free(&buckets[s]);
    const double rate = (double)moved / own.device_us * 1e-3; // GB/s
    const double copy_rate = (double)moved / copy.device_us * 1e-3;
    printf("%s%-26s %-17s %8.1f us %7.0f GB/s %7.0f GB/s %6.0f %% %8.1f us\n", label, work->name,
           shape->name, own.device_us, rate, copy_rate, 100 * copy.device_us / own.device_us,
           own.host_us);
    fflush(stdout);
    if (!json)
        return;
    fprintf(json,
            "%s\n    {\"work\": \"%s\", \"shape\": \"%s\", \"device_us\": %.2f, "
            "\"bytes_per_s\": %.4g, \"copy_bytes_per_s\": %.4g, \"host_us\": %.2f}",
            json_begun ? "," : "", work->name, shape->name, own.device_us, rate * 1e9,
            copy_rate * 1e9, own.host_us);
    json_begun = true;
}

static const struct work works[] = {
    {"pack float32", DTYPE_FLOAT32, DTYPE_FLOAT32, 1, false, false},
    {"pack float32, weight 32", DTYPE_FLOAT32, DTYPE_FLOAT32, 32, false, false},
    {"pack float32 as bfloat16", DTYPE_FLOAT32, DTYPE_BFLOAT16, 32, false, false},
    {"pack bfloat16, weight 32", DTYPE_BFLOAT16, DTYPE_BFLOAT16, 32, false, false},
    {"pack float16 as float32", DTYPE_FLOAT16, DTYPE_FLOAT32, 32, false, false},
    {"finish float32, over 128", DTYPE_FLOAT32, DTYPE_FLOAT32, 128, true, false},
    {"finish float32, over 96", DTYPE_FLOAT32, DTYPE_FLOAT32, 96, true, false},
    {"finish float32 as bfloat16", DTYPE_FLOAT32, DTYPE_BFLOAT16, 96, true, false},
    {"finish bfloat16, over 96", DTYPE_BFLOAT16, DTYPE_BFLOAT16, 96, true, false},
    {"finish float64, over 96", DTYPE_FLOAT64, DTYPE_FLOAT64, 96, true, false},
    {"gather 4 bytes", DTYPE_INT32, DTYPE_INT32, 1, false, true},
    {"scatter 4 bytes", DTYPE_INT32, DTYPE_INT32, 1, true, true},
};

static const struct shape shapes[] = {
    {"1 tensor", 1, false},         {"10 tensors", 10, false},    {"100 tensors", 100, false},
    {"500 tensors", 500, false},    {"10 odd tensors", 10, true}, {"100 odd tensors", 100, true},
    {"500 odd tensors", 500, true},
};

static void header_set(uint64_t total)
{
    uint64_t words[1 + TENSORS_MAX];
    for (int i = 0; i <= TENSORS_MAX; i++)
        words[i] = 1;
    words[0] = total;
    gpu_upload(&gpu, header, words, sizeof(words));
}

static void prepare(void)
{
    uint32_t *word = NULL;
    numbers_make();
    pack_kernel = gpu_kernel(&gpu, DEVICE_PACK);
    finish_kernel = gpu_kernel(&gpu, DEVICE_FINISH);
    gather_kernel = gpu_kernel(&gpu, DEVICE_GATHER);
    scatter_kernel = gpu_kernel(&gpu, DEVICE_SCATTER);
    header = gpu_alloc(&gpu, (1 + TENSORS_MAX) * sizeof(uint64_t));
    decisions = gpu_alloc(&gpu, (size_t)effort->launches * sizeof(uint32_t));
    gpu_check(&gpu, gpu.cuda->mem_host_alloc((void **)&word, sizeof(*word), CUDA_HOST_ALLOC_MAPPED),
              "cuMemHostAlloc");
    *word = 0;
    gpu_check(&gpu, gpu.cuda->mem_host_get_device_pointer(&revoked, word, 0),
              "cuMemHostGetDevicePointer");
}

int main(int argc, char **argv)
{
    gpu_open_or_skip(&gpu);
    label = gpu.fake ? "fake: " : "";
    effort = gpu.fake ? &little : &full;
    if (argc == 3 && strcmp(argv[1], "--json") == 0)
        json = fopen(argv[2], "w");
    prepare();
    if (json)
        fprintf(json,
                "{\"device\": \"%s\", \"fake\": %s, \"sm\": %d, \"bucket_bytes\": %" PRIu64 ", "
                "\"figures\": [",
                gpu.name, gpu.fake ? "true" : "false", gpu.capability, effort->bucket_bytes);
    printf("%s%s, sm_%d: buckets of %" PRIu64 " MiB; median of %d rounds of %d launches\n", label,
           gpu.name, gpu.capability, effort->bucket_bytes >> 20, effort->rounds, effort->launches);
    printf("%s%-26s %-17s %11s %12s %12s %8s %11s\n", label, "work", "of", "time", "own", "copy",
           "of copy", "host");
    for (size_t w = 0; w < sizeof(works) / sizeof(works[0]); w++) {
        header_set(works[w].weight);
        for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s += effort->shape_step)
            bench(&works[w], &shapes[s]);
    }
    if (json && (fputs("\n]}\n", json) == EOF || fclose(json) != 0)) {
        perror(argv[2]);
        return 1;
    }
    gpu_close(&gpu);
    return 0;
}
