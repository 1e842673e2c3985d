// SPDX-License-Identifier: Apache-2.0
//
// Buffers that steps make equal: those with the policy broadcast, mean or sum. lockstep_start puts
// them into groups by policy, dtype and place. A buffer is due in every n-th step (`every`). At the
// end of a step the due buffers of a group travel as one collective. The collective begins before
// the engine learns that the step ends, so it runs beside the last buckets. The commit wave waits
// for the collective, so when step_end returns on a rank, the buffers are equal on all ranks. All
// ranks have the same step number, so the same buffers are due on all of them. Trainer.
//
// With config.on_failure continue each rank keeps a copy of the due buffers. If a rank dies before
// the step is settled, the survivors put the copies back and exchange all of them again
// (worker/engine/repeat.c).

#include "worker/api/buffers.h"

#include "worker/device/device.h"
#include "worker/device/memory.h"
#include "worker/kernels/kernels.h"
#include "worker/session/session.h"
#include "worker/session/work.h"
#include "worker/support/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool buffers_repeats(const struct tensor *buffer)
{
    return !buffer->ignored && buffer->elements > 0 && buffer->flags != LOCKSTEP_BUFFER_AT_START &&
           buffer->flags != LOCKSTEP_BUFFER_IGNORE;
}

// Writes the buffers with the group's policy, dtype and place to group->tensors, and counts them.
static void buffers_fill_group(const struct lockstep_session *session, struct buffer_group *group)
{
    for (uint32_t m = 0; m < session->common_count; m++) {
        const struct lockstep_module *module = session->modules[m];
        for (uint32_t i = 0; i < module->buffer_count; i++) {
            const struct tensor *buffer = &module->buffers[i];
            if (buffers_repeats(buffer) && buffer->flags == (uint32_t)group->policy &&
                buffer->dtype == group->dtype && buffer->on_devices == group->on_devices)
                group->tensors[group->count++] = buffer;
        }
    }
}

static void buffers_name_group(const struct buffer_group *group)
{
    static const char *const policies[] = {[LOCKSTEP_BUFFER_BROADCAST] = "broadcast",
                                           [LOCKSTEP_BUFFER_MEAN] = "mean",
                                           [LOCKSTEP_BUFFER_SUM] = "sum"};
    snprintf(group->work->name, sizeof(group->work->name), "lockstep/buffers/%s/%s%s",
             policies[group->policy], dtype_name(group->dtype),
             group->on_devices ? "/devices" : "");
}

// The work reserved for a group. The same policy, dtype and place always get the same work, because
// the work counts the uses of its name.
static struct lockstep_work *buffers_work(const struct lockstep_session *session,
                                          const struct buffer_group *group)
{
    const int dtypes = DTYPE_LAST - DTYPE_FLOAT32 + 1;
    static_assert(2 * 3 * (DTYPE_LAST - DTYPE_FLOAT32 + 1) == LOCKSTEP_MAX_BUFFER_GROUPS,
                  "one for each policy that repeats, each dtype, and each place");
    const int kind = (int)group->policy - LOCKSTEP_BUFFER_BROADCAST + (group->on_devices ? 3 : 0);
    return &session->works
                .all[LOCKSTEP_MAX_PLAIN + kind * dtypes + (int)group->dtype - DTYPE_FLOAT32];
}

static void buffers_make_group(struct lockstep_session *session, struct buffer_group *group,
                               uint32_t *used)
{
    group->tensors = session->buffers.tensors + *used;
    group->extents = session->buffers.extents + *used;
    group->kept = NULL;
    group->work = buffers_work(session, group);
    buffers_fill_group(session, group);
    if (group->count == 0)
        return;
    buffers_name_group(group);
    session->buffers.groups[session->buffers.group_count++] = *group;
    *used += group->count;
}

static int buffers_make_groups(struct lockstep_session *session)
{
    uint32_t used = 0;
    session->buffers.tensors = calloc(session->tensor_count + 1, sizeof(*session->buffers.tensors));
    session->buffers.extents = calloc(session->tensor_count + 1, sizeof(*session->buffers.extents));
    if (!session->buffers.tensors || !session->buffers.extents)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    for (int policy = LOCKSTEP_BUFFER_BROADCAST; policy <= LOCKSTEP_BUFFER_SUM; policy++) {
        for (int dtype = DTYPE_FLOAT32; dtype <= DTYPE_LAST; dtype++) {
            for (int place = 0; place < 2; place++) {
                struct buffer_group group = {.policy = (lockstep_buffer_policy)policy,
                                             .dtype = (enum dtype)dtype,
                                             .on_devices = place == 1};
                buffers_make_group(session, &group, &used);
            }
        }
    }
    return 0;
}

static uint64_t buffers_bytes(const struct buffer_group *group)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < group->count; i++)
        bytes += group->tensors[i]->elements * dtype_size(group->dtype);
    return bytes;
}

// Allocates the copies of the buffers for sessions that go on after a death.
static int buffers_make_copies(struct lockstep_session *session)
{
    uint64_t bytes = 0;
    if (session->config.on_failure != LOCKSTEP_ON_FAILURE_CONTINUE || session->config.solo)
        return 0;
    for (uint32_t g = 0; g < session->buffers.group_count; g++)
        bytes += buffers_bytes(&session->buffers.groups[g]);
    if (session->devices.first)
        session->buffers.block = device_pin(session->devices.first, bytes + 1);
    else
        session->buffers.kept = malloc(bytes + 1);
    if (session->buffers.block)
        session->buffers.kept = session->buffers.block->host;
    if (!session->buffers.kept)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory for a copy of the buffers");
    bytes = 0;
    for (uint32_t g = 0; g < session->buffers.group_count; g++) {
        session->buffers.groups[g].kept = session->buffers.kept + bytes;
        bytes += buffers_bytes(&session->buffers.groups[g]);
    }
    return 0;
}

// Makes one group for each combination of policy, dtype and place that occurs. All ranks make the
// same groups, because their manifests are equal and they have agreed on the places.
int buffers_make(struct lockstep_session *session)
{
    const int status = buffers_make_groups(session);
    return status < 0 ? status : buffers_make_copies(session);
}

void buffers_fini(struct lockstep_session *session)
{
    for (uint32_t g = 0; g < session->buffers.group_count; g++) {
        if (session->buffers.groups[g].ready.event)
            device_event_free(session->buffers.groups[g].ready_device,
                              session->buffers.groups[g].ready.event);
    }
    free(session->buffers.tensors);
    free(session->buffers.extents);
    if (session->buffers.block)
        device_unpin(session->devices.first, session->buffers.block);
    else
        free(session->buffers.kept);
    session->buffers.block = NULL;
    session->buffers.kept = NULL;
    session->buffers.tensors = NULL;
    session->buffers.extents = NULL;
    session->buffers.group_count = 0;
}

// Makes the group's collective read its buffers only after the work that `stream` has been given by
// now: records an event behind that work. A device that fails here fails again when the collective
// reads the buffers, and is reported there.
static void buffers_follow(const struct lockstep_session *session, struct buffer_group *group,
                           void *stream, struct collective *like)
{
    struct device_ready *ready = &group->ready;
    struct device *device = session->devices.first;
    if (!group->on_devices || !session->devices.first)
        return;
    like->device = session->devices.first;
    ready->pending = stream != NULL;
    if (!stream)
        return;
    for (uint32_t i = 1; i < session->devices.count && !device_has_stream(device, stream); i++)
        device = session->devices.all[i];
    if (group->ready_device != device && ready->event) {
        device_event_free(group->ready_device, ready->event);
        ready->event = NULL;
    }
    if (!ready->event)
        ready->event = device_event_make(device);
    group->ready_device = device;
    ready->stream = stream;
    if (!ready->event || device_event_record(device, ready->event, stream) < 0)
        return;
    like->ready = ready;
    like->ready_count = 1;
}

// Copies what the group exchanges in this step: from a device behind the work that `stream` has
// been given by now, or at once. A device that fails here fails again in the exchange.
static void buffers_keep(const struct lockstep_session *session, const struct buffer_group *group,
                         uint32_t count, void *stream)
{
    struct device *device = group->on_devices ? session->devices.first : NULL;
    uint8_t *kept = group->kept;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t bytes = group->extents[i].elements * dtype_size(group->dtype);
        if (!device)
            memcpy(kept, group->extents[i].in, bytes);
        else if (stream)
            (void)device_copy_on(device, stream, kept, group->extents[i].in, bytes);
        else
            (void)device_copy(device, kept, group->extents[i].in, bytes);
        kept += bytes;
    }
}

static void buffers_begin_group(const struct lockstep_session *session, struct buffer_group *group,
                                uint64_t step, void *stream)
{
    struct collective like = {
        .kind = group->policy == LOCKSTEP_BUFFER_BROADCAST ? COLLECTIVE_BROADCAST
                                                           : COLLECTIVE_ALLREDUCE,
        .dtype = group->dtype,
        .op = group->policy == LOCKSTEP_BUFFER_MEAN ? REDUCE_MEAN : REDUCE_SUM,
        .root = group->policy == LOCKSTEP_BUFFER_BROADCAST ? session->world.root : 0,
        .extents = group->extents};
    for (uint32_t i = 0; i < group->count; i++) {
        const struct tensor *tensor = group->tensors[i];
        if (step % tensor->every != 0)
            continue;
        group->extents[like.extent_count++] =
            (struct extent){.in = tensor->data, .out = tensor->data, .elements = tensor->elements};
        like.elements += tensor->elements;
    }
    group->in_flight = like.extent_count > 0;
    if (group->kept)
        buffers_keep(session, group, like.extent_count, stream);
    if (group->in_flight)
        buffers_follow(session, group, stream, &like);
    if (group->in_flight)
        work_repeat(group->work, &like);
}

void buffers_begin(struct lockstep_session *session, uint64_t step, void *stream)
{
    for (uint32_t g = 0; g < session->buffers.group_count && !session->config.solo; g++)
        buffers_begin_group(session, &session->buffers.groups[g], step, stream);
}

int buffers_await(struct lockstep_session *session)
{
    int status = 0;
    for (uint32_t g = 0; g < session->buffers.group_count; g++) {
        struct buffer_group *group = &session->buffers.groups[g];
        const int waited = group->in_flight ? work_wait(group->work, LOCKSTEP_WAIT_FOREVER) : 0;
        group->in_flight = false;
        if (status == 0)
            status = waited;
    }
    return status;
}
