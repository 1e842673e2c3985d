// SPDX-License-Identifier: Apache-2.0
//
// Where tensors are, and how ranks agree on it; see residency.h.
//
// Ranks agree by one allreduce, an OR of one byte for each tensor. One bit says that a rank has the
// tensor on a device, another bit that a rank with a device has it in host memory. A rank without a
// device sets neither. If both bits are set, the program differs between ranks; all ranks see this,
// because all have the same result.

#include "worker/session/module/residency.h"

#include "worker/session/module/sets.h"
#include "worker/session/work.h"

#include "base/text.h"
#include "worker/device/device.h"
#include "worker/support/error.h"

#include <inttypes.h>
#include <stdlib.h>

#define RESIDENCY_ON_DEVICE 1u
#define RESIDENCY_ON_HOST 2u // Set only by a rank that has a device.
#define RESIDENCY_NAMED 16 // How many tensors an error text names.

// ---- Tensors of this rank ----------------------------------------------------------------------

// Writes the names of this rank's devices: "cuda:0", or "cuda:0, cuda:1".
static void residency_name_devices(const struct lockstep_session *session, char *text, size_t bytes)
{
    struct text into;
    text_init(&into, text, bytes);
    for (uint32_t i = 0; i < session->devices.count; i++)
        text_append(&into, "%scuda:%d", i == 0 ? "" : ", ",
                    device_facts(session->devices.all[i])->ordinal);
}

static int residency_say_elsewhere(const struct lockstep_session *session,
                                   const struct passed_memory *passed)
{
    char names[LOCKSTEP_NAME_BYTES];
    residency_name_devices(session, names, sizeof(names));
    return error_set(LOCKSTEP_E_INVALID,
                     "module '%s': the %s of '%s' is in the memory of another device than %s, "
                     "which %s this session's (config.device)",
                     passed->module, passed->field, passed->tensor, names,
                     session->devices.count == 1 ? "is" : "are");
}

// *device becomes the device of this rank that has the memory; NULL: it is in host memory. Managed
// memory is on several devices: it then counts as on `expected`.
static int residency_find_device(const struct lockstep_session *session,
                                 const struct passed_memory *passed, struct device *expected,
                                 struct device **device)
{
    enum memory_place place = MEMORY_ON_HOST;
    *device = NULL;
    if (!session->devices.first || !passed->memory)
        return 0;
    if (expected && device_place(expected, passed->memory) == MEMORY_ON_DEVICE) {
        *device = expected;
        return 0;
    }
    for (uint32_t i = 0; i < session->devices.count && place != MEMORY_ON_DEVICE; i++) {
        place = device_place(session->devices.all[i], passed->memory);
        *device = place == MEMORY_ON_DEVICE ? session->devices.all[i] : NULL;
    }
    return place == MEMORY_ELSEWHERE ? residency_say_elsewhere(session, passed) : 0;
}

int residency_find(const struct lockstep_session *session, const struct passed_memory *passed,
                   bool *device)
{
    struct device *found;
    const int status = residency_find_device(session, passed, session->devices.first, &found);
    *device = found != NULL;
    if (status < 0 || !found || found == session->devices.first)
        return status;
    return error_set(LOCKSTEP_E_INVALID,
                     "module '%s': the %s of '%s' is on cuda:%d, and what is not a further "
                     "replica's is on the first device of this session, cuda:%d (config.device)",
                     passed->module, passed->field, passed->tensor, device_facts(found)->ordinal,
                     device_facts(session->devices.first)->ordinal);
}

static int residency_find_tensor(const struct lockstep_module *module, struct tensor *tensor)
{
    const struct passed_memory passed = {module->name, tensor->name, "data",
                                         tensor->elements > 0 ? tensor->data : NULL, 0};
    return residency_find(module->session, &passed, &tensor->on_device);
}

// *device becomes true if the gradient that was registered for a parameter is on the device. A
// parameter without one will have its gradient where its value is.
static int residency_find_gradient(const struct lockstep_module *module, uint32_t parameter,
                                   bool *device)
{
    const struct tensor *tensor = &module->parameters[parameter];
    const struct passed_memory passed = {
        module->name, tensor->name, "gradient",
        tensor->elements > 0 ? module->contributions[0].gradients[parameter].registered : NULL, 0};
    *device = tensor->on_device;
    return !passed.memory ? 0 : residency_find(module->session, &passed, device);
}

static const char *residency_name(bool device)
{
    return device ? "in the memory of a device" : "in host memory";
}

// Checks memory of a further replica. It must be on a device if and only if that of the first
// replica is (`first`). All memory of one replica must be on the same device.
static int residency_check_copy(struct lockstep_module *module, const struct passed_memory *passed,
                                bool first)
{
    struct device **home = &module->devices[passed->replica];
    struct device *found;
    const int status = residency_find_device(module->session, passed, *home, &found);
    if (status < 0 || !passed->memory)
        return status;
    if ((found != NULL) != first)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': the %s of '%s' is %s in replica %" PRIu32
                         ", and %s in replica 0",
                         module->name, passed->field, passed->tensor, residency_name(!first),
                         passed->replica, residency_name(first));
    if (found && *home && found != *home)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': the %s of '%s' in replica %" PRIu32
                         " is on cuda:%d, and others of that replica are on cuda:%d",
                         module->name, passed->field, passed->tensor, passed->replica,
                         device_facts(found)->ordinal, device_facts(*home)->ordinal);
    if (found)
        *home = found;
    return 0;
}

// gradient: true if the gradient of the first replica is on a device.
static int residency_check_replicas(struct lockstep_module *module, uint32_t parameter,
                                    bool gradient)
{
    const struct tensor *tensor = &module->parameters[parameter];
    int status = 0;
    for (uint32_t r = 1; r < module->replicas && status == 0 && tensor->elements > 0; r++) {
        const size_t at = (size_t)(r - 1) * module->parameter_count + parameter;
        const struct passed_memory values = {module->name, tensor->name, "data",
                                             module->replica_data[at], r};
        const struct passed_memory gradients = {module->name, tensor->name, "gradient",
                                                module->contributions[0].replicas[at].registered,
                                                r};
        status = residency_check_copy(module, &values, tensor->on_device);
        if (status == 0)
            status = residency_check_copy(module, &gradients, gradient);
    }
    return status;
}

int residency_check_module(struct lockstep_module *module)
{
    int status = 0;
    if (!module->session->devices.first)
        return 0;
    module->devices[0] = module->session->devices.first;
    for (uint32_t p = 0; p < module->parameter_count && status == 0; p++) {
        bool device = false;
        status = residency_find_tensor(module, &module->parameters[p]);
        if (status == 0)
            status = residency_find_gradient(module, p, &device);
        if (status == 0)
            status = residency_check_replicas(module, p, device);
    }
    for (uint32_t b = 0; b < module->buffer_count && status == 0; b++)
        status = residency_find_tensor(module, &module->buffers[b]);
    return status;
}

// ---- Agreement of all ranks --------------------------------------------------------------------

// Parameters and buffers of the modules that all ranks have. A module with a group has no tensor on
// a device.
static uint32_t residency_count(const struct lockstep_session *session)
{
    uint32_t count = 0;
    for (uint32_t m = 0; m < session->common_count; m++)
        count += session->modules[m]->parameter_count + session->modules[m]->buffer_count;
    return count;
}

bool residency_matters(const struct lockstep_session *session)
{
    return session->config.solo ? session->devices.first != NULL : session->world.devices > 0;
}

static uint8_t residency_bits(const struct lockstep_session *session, const struct tensor *tensor,
                              bool device)
{
    if (!session->devices.first || tensor->elements == 0 || tensor->ignored)
        return 0;
    return device ? RESIDENCY_ON_DEVICE : RESIDENCY_ON_HOST;
}

// Fills in this rank's bits for all tensors. A shared parameter has no bits of its own: the owner's
// count. A gradient whose place cannot be found out gets no device bit, and is no failure here:
// this rank must take part in the exchange.
static void residency_collect(const struct lockstep_session *session, uint8_t *places)
{
    for (uint32_t m = 0; m < session->common_count; m++) {
        const struct lockstep_module *module = session->modules[m];
        for (uint32_t p = 0; p < module->parameter_count; p++) {
            bool device = false;
            if (home_is_own(module, p) && residency_find_gradient(module, p, &device) == 0)
                places[p] = residency_bits(session, &module->parameters[p], device);
        }
        places += module->parameter_count;
        for (uint32_t b = 0; b < module->buffer_count; b++)
            places[b] = residency_bits(session, &module->buffers[b], module->buffers[b].on_device);
        places += module->buffer_count;
    }
}

static int residency_exchange(struct lockstep_session *session, uint8_t *places)
{
    const struct collective gather = {
        .kind = COLLECTIVE_ALLREDUCE, .dtype = DTYPE_UINT8, .op = REDUCE_OR};
    struct lockstep_work *work;
    return work_call(session, "lockstep/state/places", places, residency_count(session), &gather,
                     LOCKSTEP_WAIT_FOREVER, &work);
}

// The tensor with this index in the session. *what becomes "parameter" or "buffer".
static const struct tensor *residency_tensor(const struct lockstep_session *session, uint32_t index,
                                             const struct lockstep_module **module,
                                             const char **what)
{
    for (uint32_t m = 0;; m++) {
        *module = session->modules[m];
        *what = index < (*module)->parameter_count ? "parameter" : "buffer";
        if (index < (*module)->parameter_count)
            return &(*module)->parameters[index];
        index -= (*module)->parameter_count;
        if (index < (*module)->buffer_count)
            return &(*module)->buffers[index];
        index -= (*module)->buffer_count;
    }
}

// A failure if a tensor is on a device on one rank and on the host on another rank with a device.
// The error text is the same on all ranks.
static int residency_report(const struct lockstep_session *session, const uint8_t *places)
{
    char bytes[LOCKSTEP_REPORT_BYTES];
    struct text text;
    const uint32_t count = residency_count(session);
    uint32_t split = 0;
    text_init(&text, bytes, sizeof(bytes));
    for (uint32_t i = 0; i < count; i++)
        split += places[i] == (RESIDENCY_ON_DEVICE | RESIDENCY_ON_HOST);
    if (split == 0)
        return 0;
    text_append(&text,
                "%" PRIu32 " tensors are in the memory of a device on some ranks, and in host "
                "memory on others that have a device, too:",
                split);
    for (uint32_t i = 0, named = 0; i < count && named < RESIDENCY_NAMED; i++) {
        const struct lockstep_module *module;
        const char *what;
        const struct tensor *tensor = residency_tensor(session, i, &module, &what);
        if (places[i] != (RESIDENCY_ON_DEVICE | RESIDENCY_ON_HOST))
            continue;
        text_append(&text, "\n  module '%s' %s '%s'", module->name, what, tensor->name);
        named++;
    }
    if (split > RESIDENCY_NAMED)
        text_append(&text, "\n  and %" PRIu32 " more", split - RESIDENCY_NAMED);
    return error_set(LOCKSTEP_E_MISMATCH, "%s", bytes);
}

// A failure if gradients on devices may have to be deferred: the stash is in host memory.
static int residency_check_policies(const struct lockstep_session *session, const uint8_t *places)
{
    const struct config *config = &session->config;
    const bool gives_up = config->order == LOCKSTEP_ORDER_ZERO_DEFER;
    if (config->solo || (!gives_up && config->unplanned != LOCKSTEP_UNPLANNED_DEFER))
        return 0;
    const uint32_t count = residency_count(session);
    for (uint32_t i = 0; i < count; i++) {
        const struct lockstep_module *module;
        const char *what;
        const struct tensor *tensor = residency_tensor(session, i, &module, &what);
        if ((places[i] & RESIDENCY_ON_DEVICE) != 0 && what[0] == 'p')
            return error_set(LOCKSTEP_E_UNSUPPORTED,
                             "module '%s': the gradient of '%s' is on devices, where nothing can "
                             "be put off yet, and %s asks for it",
                             module->name, tensor->name,
                             gives_up ? "order=zero_defer" : "unplanned=defer");
    }
    return 0;
}

// A failure if norms are to be reported and a gradient is on devices.
static int residency_check_norm(const struct lockstep_session *session, const uint8_t *places)
{
    for (uint32_t i = 0; session->config.gradient_norm && i < residency_count(session); i++) {
        const struct lockstep_module *module;
        const char *what;
        const struct tensor *tensor = residency_tensor(session, i, &module, &what);
        if ((places[i] & RESIDENCY_ON_DEVICE) != 0 && what[0] == 'p')
            return error_set(LOCKSTEP_E_UNSUPPORTED,
                             "module '%s': the gradient of '%s' is on devices, where the library "
                             "computes no norm (config.gradient_norm)",
                             module->name, tensor->name);
    }
    return 0;
}

// True if a parameter counts as on devices. An empty parameter counts as where the first other one
// of its dtype is, so that it needs no bucket of its own.
static bool residency_of_parameter(const struct lockstep_module *module, uint32_t parameter,
                                   const uint8_t *places)
{
    const struct bucket_parameter *shape = &module->shapes[parameter];
    if (shape->elements > 0)
        return (places[parameter] & RESIDENCY_ON_DEVICE) != 0;
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        if (module->shapes[p].dtype == shape->dtype && module->shapes[p].elements > 0)
            return (places[p] & RESIDENCY_ON_DEVICE) != 0;
    }
    return false;
}

// Applies the agreement to a module. Layouts loaded from a file stay, and must fit; others are made
// anew.
static int residency_place(struct lockstep_module *module, const uint8_t *places)
{
    bool changed = false;
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        const bool device = residency_of_parameter(module, p, places);
        changed |= module->shapes[p].device != device;
        module->shapes[p].device = device;
    }
    for (uint32_t b = 0; b < module->buffer_count; b++)
        module->buffers[b].on_devices =
            (places[module->parameter_count + b] & RESIDENCY_ON_DEVICE) != 0;
    return changed || sets_are_learned(module) ? sets_renew(module) : 0;
}

static int residency_apply(struct lockstep_session *session, const uint8_t *places)
{
    int status = residency_report(session, places);
    if (status == 0)
        status = residency_check_policies(session, places);
    if (status == 0)
        status = residency_check_norm(session, places);
    for (uint32_t m = 0; m < session->common_count && status == 0; m++) {
        struct lockstep_module *module = session->modules[m];
        status = residency_place(module, places);
        places += module->parameter_count + module->buffer_count;
    }
    return status;
}

int residency_agree(struct lockstep_session *session)
{
    uint8_t *places = calloc((size_t)session->tensor_count + 1, sizeof(*places));
    int status;
    if (!places)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    residency_collect(session, places);
    status = residency_exchange(session, places);
    if (status == 0)
        status = residency_apply(session, places);
    free(places);
    return status;
}

bool residency_is_on_device(const struct lockstep_module *module)
{
    bool device = false;
    for (uint32_t p = 0; p < module->parameter_count && !device; p++) {
        if (residency_find_gradient(module, p, &device) == 0)
            device |= module->parameters[p].on_device;
    }
    for (uint32_t b = 0; b < module->buffer_count; b++)
        device |= module->buffers[b].on_device;
    return device;
}

int residency_check_loaded(struct lockstep_session *session)
{
    int status = 0;
    for (uint32_t m = 0; m < session->common_count && status == 0; m++) {
        if (sets_are_learned(session->modules[m]))
            status = sets_renew(session->modules[m]);
    }
    return status;
}

// ---- Memory that is passed later ---------------------------------------------------------------

static int residency_check_place(const struct lockstep_module *module, uint32_t parameter,
                                 bool device)
{
    const bool agreed = module->shapes[parameter].device;
    if (device == agreed)
        return 0;
    return error_set(LOCKSTEP_E_INVALID,
                     "module '%s': the gradient of '%s' is %s here, and lockstep_start has agreed "
                     "that it is %s on the ranks that have a device",
                     module->name, module->parameters[parameter].name, residency_name(device),
                     residency_name(agreed));
}

int residency_move(struct lockstep_module *module, uint32_t parameter, const void *data,
                   const void *gradient)
{
    const struct lockstep_session *session = module->session;
    struct tensor *tensor = &module->parameters[parameter];
    const struct passed_memory values = {module->name, tensor->name, "data", data, 0};
    const struct passed_memory gradients = {module->name, tensor->name, "gradient", gradient, 0};
    bool data_on_device;
    bool on_device;
    int status;
    if (!session->devices.first || tensor->elements == 0)
        return 0;
    status = residency_find(session, &values, &data_on_device);
    if (status == 0)
        status = residency_find(session, &gradients, &on_device);
    if (status == 0 && gradient && session->started)
        status = residency_check_place(module, parameter, on_device);
    if (status == 0 && data)
        tensor->on_device = data_on_device;
    return status;
}

int residency_move_buffer(struct lockstep_module *module, uint32_t buffer, const void *data)
{
    struct tensor *tensor = &module->buffers[buffer];
    const struct passed_memory passed = {module->name, tensor->name, "data", data, 0};
    bool device;
    int status;
    if (!module->session->devices.first || tensor->elements == 0)
        return 0;
    status = residency_find(module->session, &passed, &device);
    if (status < 0)
        return status;
    if (module->session->started && !tensor->ignored && device != tensor->on_devices)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': buffer '%s' is %s here, and lockstep_start has agreed that "
                         "it is %s on the ranks that have a device",
                         module->name, tensor->name, residency_name(device),
                         residency_name(tensor->on_devices));
    tensor->on_device = device;
    return 0;
}

// *device becomes true if the gradient's memory is on a device. A failure if this is not the device
// of the replica.
static int residency_find_gradient_of(const struct lockstep_module *module, uint32_t parameter,
                                      const struct passed_gradient *passed, bool *device)
{
    const struct passed_memory memory = {module->name, module->parameters[parameter].name,
                                         "gradient", passed->memory, passed->replica};
    struct device *home = module->devices[passed->replica];
    struct device *found;
    int status;
    if (passed->replica == 0)
        return residency_find(module->session, &memory, device);
    status = residency_find_device(module->session, &memory, home, &found);
    *device = found != NULL;
    if (status < 0 || !found || found == home)
        return status;
    return error_set(LOCKSTEP_E_INVALID,
                     "module '%s': the gradient of '%s' in replica %" PRIu32
                     " is on cuda:%d, and that replica was registered on %s%d",
                     module->name, memory.tensor, passed->replica, device_facts(found)->ordinal,
                     !home ? "no device, not " : "cuda:",
                     !home ? device_facts(found)->ordinal : device_facts(home)->ordinal);
}

static int residency_check_stream(const struct lockstep_module *module, uint32_t parameter,
                                  const struct passed_gradient *passed)
{
    struct device *home = module->devices[passed->replica];
    const char *trouble;
    if (!home)
        return 0;
    if (device_has_stream(home, passed->stream)) {
        trouble = device_stream_trouble(home, passed->stream);
        return !trouble ? 0
                        : error_set(LOCKSTEP_E_INVALID,
                                    "module '%s': the stream that is given for '%s' %s",
                                    module->name, module->parameters[parameter].name, trouble);
    }
    return error_set(LOCKSTEP_E_INVALID,
                     "module '%s': the stream that is given for '%s' in replica %" PRIu32
                     " belongs to another device than its gradient, which is on cuda:%d",
                     module->name, module->parameters[parameter].name, passed->replica,
                     device_facts(home)->ordinal);
}

int residency_check_gradient(const struct lockstep_module *module, uint32_t parameter,
                             const struct passed_gradient *passed)
{
    const struct tensor *tensor = &module->parameters[parameter];
    bool device = module->shapes[parameter].device;
    int status = 0;
    if (!module->session->devices.first || tensor->elements == 0)
        return 0;
    if (passed->memory)
        status = residency_find_gradient_of(module, parameter, passed, &device);
    if (status == 0)
        status = residency_check_place(module, parameter, device);
    if (status < 0 || !passed->stream)
        return status;
    if (!device)
        return error_set(LOCKSTEP_E_INVALID,
                         "module '%s': a stream is given for '%s', whose gradient is in host "
                         "memory: wait until it is there, and give none",
                         module->name, tensor->name);
    return residency_check_stream(module, parameter, passed);
}
