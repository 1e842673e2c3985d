// SPDX-License-Identifier: Apache-2.0
//
// See fake_rig.h.
#include "tests/unit/worker/fake_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

const struct fake_controls *fake;
const struct cuda *cuda;
const struct nccl *nccl;

void rig_open(struct rig *rig, int device, unsigned flags)
{
    *rig = (struct rig){.device = device};
    ok(cuda->init(0));
    ok(cuda->device_primary_ctx_retain(&rig->context, device));
    ok(cuda->ctx_set_current(rig->context));
    ok(cuda->stream_create_with_priority(&rig->a, flags, 0));
    ok(cuda->stream_create_with_priority(&rig->b, flags, -5));
    ok(cuda->module_load_data(&rig->module, "anything"));
    ok(cuda->module_get_function(&rig->fill, rig->module, "fake_fill"));
    ok(cuda->module_get_function(&rig->add, rig->module, "fake_add_u32"));
    ok(cuda->mem_alloc(&rig->memory, RIG_BYTES));
    ok(cuda->mem_host_alloc((void **)&rig->host, RIG_BYTES, CUDA_HOST_ALLOC_PORTABLE));
}

void rig_close(struct rig *rig)
{
    ok(cuda->mem_free_host(rig->host));
    ok(cuda->mem_free(rig->memory));
    ok(cuda->module_unload(rig->module));
    ok(cuda->stream_destroy(rig->b));
    ok(cuda->stream_destroy(rig->a));
    ok(cuda->ctx_set_current(NULL));
    ok(cuda->device_primary_ctx_release(rig->device));
}

void rig_abandon(struct rig *rig)
{
    ok(cuda->ctx_set_current(NULL));
    ok(cuda->device_primary_ctx_release(rig->device));
}

int rig_fill_at(const struct rig *rig, void *stream, uint64_t address, uint64_t count,
                uint32_t value)
{
    struct fake_fill fill = {.to = (uint32_t *)address, .count = count, .value = value};
    void *parameters[] = {&fill};
    return cuda->launch_kernel(rig->fill, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
}

int rig_fill(const struct rig *rig, void *stream, uint32_t value)
{
    return rig_fill_at(rig, stream, rig->memory, RIG_COUNT, value);
}

int rig_fetch(const struct rig *rig, void *stream)
{
    return cuda->memcpy_dtoh_async(rig->host, rig->memory, RIG_BYTES, stream);
}

void assert_complaint(const char *words)
{
    char text[400];
    fake->complaint(text, sizeof(text));
    if (!strstr(text, words))
        fail_msg("\"%s\" does not say \"%s\"", text, words);
}

int fake_rig_load(void **state)
{
    (void)state;
    char error[300];
    fake = fake_gpu_install();
    fake_gpu_weather(NULL);
    cuda = cuda_load(error, sizeof(error));
    nccl = cuda ? nccl_load(error, sizeof(error)) : NULL;
    if (!nccl)
        fprintf(stderr, "%s\n", error);
    return nccl ? 0 : -1;
}

int fake_weather_fair(void **state)
{
    (void)state;
    fake_gpu_weather(NULL);
    return 0;
}

int fake_nothing_left(void **state)
{
    (void)state;
    struct fake_gpu_live live;
    fake->live(&live);
    const struct fake_gpu_live none = {0};
    return memcmp(&live, &none, sizeof(live)) || fake->nccl_live() ? -1 : 0;
}
