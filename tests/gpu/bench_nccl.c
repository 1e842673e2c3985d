// SPDX-License-Identifier: Apache-2.0
//
// The library's cost beside NCCL: an allreduce of 25 MiB in a communicator of one rank, called
// directly, beside the same in the row of operations that the library enqueues for a bucket (its
// worker/transport/device/nccl.c). One rank is all that one GPU allows; what travels is nothing,
// so what is left is cost. Prints a table, and with --json FILE writes it as JSON.

#include "tests/gpu/gpu.h"
#include "worker/device/nccl.h"
#include "worker/transport/device/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TENSORS = 100,
    LAUNCHES_MAX = 40,
    ROUNDS_MAX = 15,
    WORDS = 1 + TENSORS, // Words of a header.
};

static struct gpu_rig gpu;
static const struct nccl *nccl;
static void *comm;

static void *on_device(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static void nccl_check(int result, const char *call)
{
    if (result == NCCL_OK)
        return;
    fprintf(stderr, "%s: %s\n", call, nccl->get_error_string(result));
    exit(1);
}

// ---- a bucket -----------------------------------------------------------------------------------

static uint64_t elements;
static uint64_t user, packed, result, header, note; // note: pinned.
static uint64_t revoked, decisions;
static struct device_row row;
static void *pack_kernel, *finish_kernel;

static uint64_t pinned(size_t bytes)
{
    void *memory = NULL;
    uint64_t address = 0;
    gpu_check(&gpu, gpu.cuda->mem_host_alloc(&memory, bytes, CUDA_HOST_ALLOC_MAPPED),
              "cuMemHostAlloc");
    memset(memory, 0, bytes);
    gpu_check(&gpu, gpu.cuda->mem_host_get_device_pointer(&address, memory, 0),
              "cuMemHostGetDevicePointer");
    return address;
}

static void bucket_make(uint64_t bytes)
{
    static struct device_piece pieces[TENSORS + 1];
    static uint32_t tiles[(25 << 20) / sizeof(float) / DEVICE_TILE_ELEMENTS + 1];
    elements = bytes / sizeof(float) / TENSORS / 64 * 64 * TENSORS;
    user = gpu_alloc(&gpu, elements * sizeof(float));
    packed = gpu_alloc(&gpu, elements * sizeof(float));
    result = gpu_alloc(&gpu, elements * sizeof(float));
    header = gpu_alloc(&gpu, WORDS * sizeof(uint64_t));
    decisions = gpu_alloc(&gpu, LAUNCHES_MAX * sizeof(uint32_t));
    note = pinned(WORDS * sizeof(uint64_t));
    revoked = pinned(sizeof(uint32_t));
    for (uint32_t t = 0; t <= TENSORS; t++) {
        const uint64_t first = elements / TENSORS * t;
        pieces[t] = (struct device_piece){.in = on_device(user + first * sizeof(float)),
                                          .out = on_device(user + first * sizeof(float)),
                                          .first = first,
                                          .unit = t};
    }
    device_piece_tiles(pieces, TENSORS, tiles);
    row = (struct device_row){
        .pieces = on_device(gpu_copy(&gpu, pieces, sizeof(pieces))),
        .tiles = on_device(gpu_copy(&gpu, tiles, device_tiles(elements) * sizeof(*tiles))),
        .elements = elements,
        .count = TENSORS};
    gpu_check(&gpu, gpu.cuda->memset_d8_async(user, 0, elements * sizeof(float), gpu.stream),
              "cuMemsetD8Async");
}

static void reduce(uint64_t in, uint64_t out)
{
    nccl_check(nccl->all_reduce(on_device(in), on_device(out), elements, NCCL_FLOAT32, NCCL_SUM,
                                comm, gpu.stream),
               "ncclAllReduce");
}

static void launch_directly(int launch)
{
    (void)launch;
    reduce(user, result);
}

static void reduce_with_header(uint64_t in)
{
    nccl_check(nccl->group_start(), "ncclGroupStart");
    reduce(in, packed);
    nccl_check(nccl->all_reduce(on_device(header), on_device(header), WORDS, NCCL_UINT64, NCCL_SUM,
                                comm, gpu.stream),
               "ncclAllReduce");
    nccl_check(nccl->group_end(), "ncclGroupEnd");
}

static void finish(int launch)
{
    const struct device_finish finish = {
        .row = row,
        .packed = on_device(packed),
        .header = on_device(header),
        .revoked = on_device(revoked),
        .decision = on_device(decisions + (uint64_t)launch * sizeof(uint32_t)),
        .dtype = DEVICE_FLOAT32,
        .wire = DEVICE_FLOAT32,
        .final = DEVICE_FLOAT32,
        .divides = 1};
    gpu_launch(&gpu, finish_kernel, elements, &finish);
    gpu_check(&gpu, gpu.cuda->memcpy_async(note, header, WORDS * sizeof(uint64_t), gpu.stream),
              "cuMemcpyAsync");
}

static void launch_packed(int launch)
{
    const struct device_pack pack = {.row = row,
                                     .packed = on_device(packed),
                                     .weight = 1,
                                     .dtype = DEVICE_FLOAT32,
                                     .wire = DEVICE_FLOAT32,
                                     .header_words = WORDS,
                                     .header_from = on_device(note),
                                     .header_to = on_device(header)};
    gpu_launch(&gpu, pack_kernel, elements, &pack);
    reduce_with_header(packed);
    finish(launch);
}

static void launch_view(int launch)
{
    gpu_check(&gpu, gpu.cuda->memcpy_async(header, note, WORDS * sizeof(uint64_t), gpu.stream),
              "cuMemcpyAsync");
    reduce_with_header(user);
    finish(launch);
}

// ---- the table ----------------------------------------------------------------------------------

static void measure(const char *name, void (*launch)(int), FILE *json, bool last)
{
    const int launches = gpu.fake ? 2 : LAUNCHES_MAX;
    const int rounds = gpu.fake ? 1 : ROUNDS_MAX;
    double device_us[ROUNDS_MAX];
    double host_us[ROUNDS_MAX];
    void *begin = NULL;
    void *end = NULL;
    gpu_check(&gpu, gpu.cuda->event_create(&begin, 0), "cuEventCreate");
    gpu_check(&gpu, gpu.cuda->event_create(&end, 0), "cuEventCreate");
    for (int round = -2; round < rounds; round++) {
        float elapsed_ms = 0;
        gpu_check(&gpu, gpu.cuda->memset_d32_async(decisions, 0, LAUNCHES_MAX, gpu.stream),
                  "cuMemsetD32Async");
        gpu_wait(&gpu);
        gpu_check(&gpu, gpu.cuda->event_record(begin, gpu.stream), "cuEventRecord");
        const double before_us = gpu_now_us();
        for (int i = 0; i < launches; i++)
            launch(i);
        const double after_us = gpu_now_us();
        gpu_check(&gpu, gpu.cuda->event_record(end, gpu.stream), "cuEventRecord");
        gpu_wait(&gpu);
        gpu_check(&gpu, gpu.cuda->event_elapsed_time(&elapsed_ms, begin, end),
                  "cuEventElapsedTime");
        if (round < 0)
            continue;
        device_us[round] = (double)elapsed_ms * 1e3 / launches;
        host_us[round] = (after_us - before_us) / launches;
    }
    gpu_check(&gpu, gpu.cuda->event_destroy(begin), "cuEventDestroy");
    gpu_check(&gpu, gpu.cuda->event_destroy(end), "cuEventDestroy");
    const double device = gpu_median(device_us, rounds);
    const double host = gpu_median(host_us, rounds);
    printf("%s%-44s %8.1f us %8.1f us\n", gpu.fake ? "fake: " : "", name, device, host);
    if (json)
        fprintf(json, "  \"%s\": {\"device_us\": %.2f, \"host_us\": %.2f}%s\n", name, device, host,
                last ? "" : ",");
}

static void nccl_open(void)
{
    struct nccl_config config = NCCL_CONFIG_INIT;
    struct nccl_unique_id id;
    char why[256];
    int version = 0;
    nccl = nccl_load(why, sizeof(why));
    if (!nccl) {
        printf("no usable NCCL: %s\n", why);
        exit(GPU_SKIPPED);
    }
    config.blocking = 1;
    nccl_check(nccl->get_version(&version), "ncclGetVersion");
    nccl_check(nccl->get_unique_id(&id), "ncclGetUniqueId");
    nccl_check(nccl->comm_init_rank_config(&comm, 1, id, 0, &config), "ncclCommInitRankConfig");
    printf("%sNCCL %d.%d.%d, one rank\n", gpu.fake ? "fake: " : "", version / 10000,
           version % 10000 / 100, version % 100);
}

int main(int argc, char **argv)
{
    FILE *json = NULL;
    gpu_open_or_skip(&gpu);
    nccl_open();
    if (argc == 3 && strcmp(argv[1], "--json") == 0)
        json = fopen(argv[2], "w");
    pack_kernel = gpu_kernel(&gpu, DEVICE_PACK);
    finish_kernel = gpu_kernel(&gpu, DEVICE_FINISH);
    bucket_make(gpu.fake ? 1 << 18 : 25 << 20);
    printf("%s%-44s %11s %11s\n", gpu.fake ? "fake: " : "", "work", "device", "host");
    if (json)
        fputs("{\n", json);
    measure("ncclAllReduce alone", launch_directly, json, false);
    measure("as the library enqueues it, one tensor", launch_view, json, false);
    measure("as the library enqueues it, 100 tensors", launch_packed, json, true);
    if (json && (fputs("}\n", json) == EOF || fclose(json) != 0)) {
        perror(argv[2]);
        return 1;
    }
    nccl_check(nccl->comm_destroy(comm), "ncclCommDestroy");
    return 0;
}
