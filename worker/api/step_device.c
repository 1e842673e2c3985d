// SPDX-License-Identifier: Apache-2.0
//
// The end of a step whose gradients are on this rank's device: a stream or this thread waits for
// them. worker/engine/landing.c decides when they count as final. Runs on the trainer's thread.

#include "worker/api/step_device.h"

#include "worker/device/device.h"
#include "worker/kernels/kernels.h"
#include "worker/session/module/contribution.h"
#include "worker/session/module/device_events.h"
#include "worker/session/session.h"

#define STEP_PIECE 512 // Words of 8 bytes that are copied from a device at a time.

int step_device_land(struct lockstep_session *session, uint64_t deadline_ms)
{
    const struct wish wish = {.flag = &session->landing.landed, .deadline_ms = deadline_ms};
    int status = 0;
    if (!session->devices.first || session->config.solo)
        return 0;
    mutex_lock(&session->mutex);
    if (!session->landing.landed)
        drive_until_locked(session, NULL, &wish);
    if (!session->landing.landed)
        status = session->gate.failure != 0 ? session_failure_locked(session) : LOCKSTEP_E_TIMEOUT;
    mutex_unlock(&session->mutex);
    return status;
}

// True if some gradient has no memory on this rank. step_verdict then needs to know whether another
// rank has used the parameter, which is known only when the step has landed.
static bool step_lacks_memory(const struct lockstep_session *session)
{
    for (uint32_t m = 0; m < session->module_count; m++) {
        const struct lockstep_module *module = session->modules[m];
        for (uint32_t i = 0; i < module->contribution_count; i++) {
            if (contribution_lacks_memory(&module->contributions[i]))
                return true;
        }
    }
    return false;
}

// A stream that follows the first device's work follows that of all devices. The handle of a
// default stream stands for one stream on each device, so each of them is made to follow.
int step_device_await(struct lockstep_session *session, void *stream)
{
    if (!session->devices.first || session->config.solo)
        return 0;
    if (!stream || step_lacks_memory(session))
        return step_device_land(session, COND_NO_DEADLINE);
    int status = device_stream_follow(session->devices.first, stream);
    for (uint32_t i = 1; i < session->devices.count && status == 0; i++) {
        if (device_is_default_stream(stream))
            status =
                device_stream_follow_at(session->devices.first, session->devices.all[i], stream);
    }
    return status < 0 ? device_events_failed(session) : 0;
}

int step_device_divide(const struct lockstep_module *module, uint32_t parameter, char *memory,
                       uint64_t weight)
{
    const struct bucket_parameter *shape = &module->shapes[parameter];
    struct device *device = shape->device ? module->session->devices.first : NULL;
    uint64_t piece[STEP_PIECE];
    const size_t size = dtype_size(shape->dtype);
    const uint64_t most = sizeof(piece) / size;
    if (!device)
        kernel_divide(shape->dtype, memory, memory, weight, shape->elements);
    for (uint64_t at = 0; device && at < shape->elements; at += most) {
        const uint64_t count = shape->elements - at < most ? shape->elements - at : most;
        if (device_copy(device, piece, memory + at * size, count * size) < 0)
            return device_events_failed(module->session);
        kernel_divide(shape->dtype, piece, piece, weight, count);
        if (device_copy(device, memory + at * size, piece, count * size) < 0)
            return device_events_failed(module->session);
    }
    return 0;
}
