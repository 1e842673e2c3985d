// SPDX-License-Identifier: Apache-2.0
//
// A rank's memory, streams and collective on a fake device; see transport_rig.h.

#include "tests/conformance/transport_rig.h"

#include "worker/device/memory.h"
#include "worker/transport/reserve.h"

#include "worker/device/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct fake_controls *fake;
const struct cuda *cuda;

const struct play *rig_play(const struct member *member)
{
    return member->fleet->argument;
}

uint32_t rig_elements(const struct member *member)
{
    const uint32_t elements = rig_play(member)->elements;
    return elements == 0 ? ELEMENTS : elements;
}

size_t rig_bytes(const struct member *member)
{
    return rig_elements(member) * sizeof(float);
}

// ---- a rank's memory and streams ----------------------------------------------------------------

static int rig_ordinal(const struct member *member)
{
    return (int)(member->fleet->options.first_device + member->rank);
}

void rig_open(struct member *member, struct rig *rig)
{
    *rig = (struct rig){.context = NULL};
    if (!member->device) {
        rig->host = calloc(rig_elements(member), sizeof(float));
        return;
    }
    CUDA(member, device_primary_ctx_retain(&rig->context, rig_ordinal(member)));
    CUDA(member, ctx_set_current(rig->context));
    CUDA(member, stream_create_with_priority(&rig->makes, CUDA_STREAM_NON_BLOCKING, 0));
    CUDA(member, stream_create_with_priority(&rig->reads, CUDA_STREAM_NON_BLOCKING, 0));
    CUDA(member, module_load_data(&rig->module, "anything"));
    CUDA(member, module_get_function(&rig->fill, rig->module, "fake_fill"));
    CUDA(member, mem_alloc(&rig->address, rig_bytes(member)));
    CUDA(member, mem_host_alloc((void **)&rig->host, rig_bytes(member), 0));
    rig->event = device_event_make(member->device);
    MEMBER_CHECK(member, rig->event != NULL);
    MEMBER_CHECK(member, transport_reserve_device(member->transport, 1, rig_bytes(member), PIECES,
                                                  PIECES) == 0);
}

void rig_close(struct member *member, struct rig *rig)
{
    if (!member->device) {
        free(rig->host);
        return;
    }
    if (!device_failed(member->device)) {
        device_event_free(member->device, rig->event);
        CUDA(member, mem_free_host(rig->host));
        CUDA(member, mem_free(rig->address));
        CUDA(member, module_unload(rig->module));
        CUDA(member, stream_destroy(rig->makes));
        CUDA(member, stream_destroy(rig->reads));
    }
    CUDA(member, ctx_set_current(NULL));
    CUDA(member, device_primary_ctx_release(rig_ordinal(member)));
}

void rig_fill(struct member *member, const struct rig *rig, float value)
{
    const uint32_t elements = rig_elements(member);
    struct fake_fill fill = {.to = (uint32_t *)(uintptr_t)rig->address, .count = elements};
    void *parameters[] = {&fill};
    for (uint32_t i = 0; !member->device && i < elements; i++)
        rig->host[i] = value;
    if (!member->device)
        return;
    memcpy(&fill.value, &value, sizeof(value));
    CUDA(member, launch_kernel(rig->fill, 1, 1, 1, 32, 1, 1, 0, rig->makes, parameters, NULL));
}

bool rig_some_are(const float *values, uint32_t count, float value)
{
    for (uint32_t i = 0; i < count; i++) {
        if (memcmp(&values[i], &value, sizeof(value)) != 0)
            return false;
    }
    return true;
}

bool rig_all_are(const struct member *member, const float *values, float value)
{
    return rig_some_are(values, rig_elements(member), value);
}

const float *rig_look(const struct member *member, const struct rig *rig)
{
    return member->device ? fake->peek(rig->address, rig_bytes(member)) : rig->host;
}

const float *rig_read(struct member *member, const struct rig *rig)
{
    if (!member->device)
        return rig->host;
    CUDA(member, memcpy_dtoh_async(rig->host, rig->address, rig_bytes(member), rig->reads));
    CUDA(member, stream_synchronize(rig->reads));
    return rig->host;
}

// ---- one collective -----------------------------------------------------------------------------

// Lays out the collective. The pieces lie in memory in the reverse of their order in the row.
static void shot_lay(struct shot *shot, const struct member *member, const struct rig *rig,
                     bool pieces)
{
    float *memory = member->device ? (float *)(uintptr_t)rig->address : rig->host;
    const uint32_t count = pieces ? PIECES : 1;
    const uint64_t each = rig_elements(member) / count;
    for (uint32_t i = 0; i < count; i++) {
        float *piece = memory + (count - 1 - i) * each;
        shot->extents[i] = (struct extent){.in = piece, .out = piece, .elements = each};
        shot->ends[i] = (i + 1) * each;
    }
    shot->used = ((uint64_t)1 << count) - 1;
    shot->collective.extents = shot->extents;
    shot->collective.extent_count = count;
    shot->collective.unit_ends = shot->ends;
    shot->collective.unit_count = count;
    shot->collective.used = &shot->used;
}

// Removes the input of the first piece of the row, which lies behind the others in memory.
static void shot_leave_out(struct shot *shot)
{
    shot->extents[0].in = NULL;
    shot->used &= ~(uint64_t)1;
    shot->collective.behind = &shot->behind;
}

void shot_make(struct member *member, struct shot *shot, const struct rig *rig, uint32_t round)
{
    const struct play *play = rig_play(member);
    const bool idle = play->idle && member->rank == 0;
    const bool leaves_out = play->leaves_out && member->rank == 0 && round == 0;
    *shot =
        (struct shot){.collective = {.dtype = DTYPE_FLOAT32,
                                     .op = REDUCE_MEAN,
                                     .tag = {.step = round, .space = 3},
                                     .signature = 4,
                                     .algorithm = play->memory ? ALGORITHM_SHARED : ALGORITHM_RING,
                                     .elements = rig_elements(member),
                                     .weight = idle || play->weightless ? 0 : member->rank + 1,
                                     .ready = &shot->ready,
                                     .ready_count = 1}};
    shot_lay(shot, member, rig, play->pieces);
    for (uint32_t i = 0; idle && i < PIECES; i++)
        shot->extents[i].in = NULL;
    if (idle)
        shot->used = 0;
    if (leaves_out)
        shot_leave_out(shot);
    member_place(member, &shot->collective);
    if (member->device) {
        MEMBER_CHECK(member, device_event_record(member->device, rig->event, rig->makes) == 0);
        shot->ready =
            (struct device_ready){.event = rig->event, .stream = rig->makes, .pending = true};
    }
}

void shot_launch(struct member *member, struct shot *shot, const struct rig *rig, uint32_t round)
{
    shot_make(member, shot, rig, round);
    transport_launch(member->transport, &shot->collective);
}

float shot_value(uint32_t rank, uint32_t round)
{
    return (float)(8 * rank + round + 1);
}

float shot_mean_from(const struct member *member, uint32_t round, uint32_t first, uint32_t weighs)
{
    float sum = 0;
    float weights = 0;
    for (uint32_t r = 0; r < member->fleet->options.world; r++) {
        sum += r < first ? 0 : (float)(r + 1) * shot_value(r, round);
        weights += r < weighs ? 0 : (float)(r + 1);
    }
    return sum / weights;
}

float shot_mean(const struct member *member, uint32_t round)
{
    const uint32_t first = rig_play(member)->idle ? 1 : 0;
    return shot_mean_from(member, round, first, first);
}

// ---- a world ------------------------------------------------------------------------------------

const char *rig_name(enum fleet_devices devices)
{
    return devices == FLEET_NCCL ? "nccl" : devices == FLEET_MIXED ? "mixed" : "staged";
}

void rig_run(enum fleet_devices devices, uint32_t world, void (*script)(struct member *),
             struct play *play)
{
    const struct fleet_options options = {.name = rig_name(devices),
                                          .kind = play->memory ? TRANSPORT_TCP : TRANSPORT_LOOPBACK,
                                          .world = world,
                                          .mates = play->memory,
                                          .chunk_bytes = 4096,
                                          .abort_ms = play->hangs ? ABORT_MS : 0,
                                          .segment_bytes = play->segment_bytes,
                                          .devices = devices};
    fleet_run(&options, script, play);
}

int rig_setup(void **state)
{
    char error[300];
    (void)state;
    fake = fake_gpu_install();
    fake_gpu_weather(DEVICES, NULL);
    cuda = cuda_load(error, sizeof(error));
    return cuda && cuda->init(0) == CUDA_OK ? 0 : -1;
}

int rig_nothing_left(void **state)
{
    const struct fake_gpu_live none = {0};
    struct fake_gpu_live live;
    (void)state;
    fake->live(&live);
    if (memcmp(&live, &none, sizeof(live)) == 0)
        return 0;
    print_message("left: %u contexts, %u streams, %u events, %u modules, %u and %u allocations\n",
                  live.contexts, live.streams, live.events, live.modules, live.device_allocations,
                  live.host_allocations);
    return -1;
}
