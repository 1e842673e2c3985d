// SPDX-License-Identifier: Apache-2.0
//
// Modules: how they are registered and closed, and their first bucket layout. declare.c checks and
// copies the declarations of parameters and buffers. Registration runs on the trainer's thread and
// sends nothing. worker/session/session.h says which threads touch which fields later.
// worker/session/module/manifest.c has what all ranks compare, and
// worker/session/module/contribution.c has what happens in a step.

#include "worker/api/module.h"

#include "base/hash64.h"
#include "base/text.h"
#include "base/utf8.h"
#include "worker/api/declare.h"
#include "worker/api/grouped.h"
#include "worker/api/memory.h"
#include "worker/api/step_device.h"
#include "worker/kernels/kernels.h"
#include "worker/session/group.h"
#include "worker/session/module/calls.h"
#include "worker/session/module/contribution.h"
#include "worker/session/module/deferral.h"
#include "worker/session/module/leaves.h"
#include "worker/session/module/overlap.h"
#include "worker/session/module/owners.h"
#include "worker/session/module/replicas.h"
#include "worker/session/module/residency.h"
#include "worker/session/module/sets.h"
#include "worker/session/module/spares.h"
#include "worker/session/session.h"
#include "worker/support/error.h"
#include "worker/support/handle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Making a module ---------------------------------------------------------------------------

void module_free(struct lockstep_module *module)
{
    if (!module)
        return;
    for (uint32_t i = 0; module->parameters && i < module->parameter_count; i++)
        free(module->parameters[i].name);
    for (uint32_t i = 0; module->buffers && i < module->buffer_count; i++)
        free(module->buffers[i].name);
    for (uint32_t i = 0; module->contributions && i < module->contribution_count; i++)
        contribution_fini(&module->contributions[i]);
    free(module->contributions);
    deferral_end(module);
    leaves_free(module->leaves);
    spares_release(module);
    free(module->replica_data);
    free(module->homes);
    free(module->awaits);
    free(module->parameters);
    free(module->buffers);
    free(module->shapes);
    sets_free(module);
    free(module->sets.next.order);
    free(module->sets.next.buckets);
    free(module->bucket_of);
    free(module->frozen);
    free(module->unused_in);
    free(module->sets.words);
    free(module->calls);
    memory_free_gradients(module);
    free(module->name);
    free(module);
}

// Allocates a zeroed array. It has at least one element, because calloc(0) may return NULL.
static void *module_array(uint32_t count, size_t size)
{
    return calloc(count == 0 ? 1 : count, size);
}

static bool module_allocate_tensors(struct lockstep_module *module,
                                    const struct lockstep_module_config *config)
{
    module->parameter_count = config->parameter_count;
    module->buffer_count = config->buffer_count;
    module->name = strdup(config->name);
    module->parameters = module_array(config->parameter_count, sizeof(*module->parameters));
    module->buffers = module_array(config->buffer_count, sizeof(*module->buffers));
    module->shapes = module_array(config->parameter_count, sizeof(*module->shapes));
    module->bucket_of = module_array(config->parameter_count, sizeof(*module->bucket_of));
    module->homes = module_array(config->parameter_count, sizeof(*module->homes));
    module->awaits = module_array(config->parameter_count, sizeof(*module->awaits));
    module->replica_data = module_array(config->parameter_count * (module->replicas - 1),
                                        sizeof(*module->replica_data));
    module->frozen = module_array(config->parameter_count, sizeof(*module->frozen));
    module->unused_in = module_array(config->parameter_count, sizeof(*module->unused_in));
    module->calls = module_array((uint32_t)config->calls_per_step, sizeof(*module->calls));
    return module->name && module->parameters && module->buffers && module->shapes &&
           module->bucket_of && module->homes && module->awaits && module->replica_data &&
           module->frozen && module->unused_in && module->calls;
}

static bool module_allocate_layouts(struct lockstep_module *module)
{
    const uint32_t count = module->parameter_count;
    module->sets.word_capacity = 1 + 2 * count;
    module->sets.words = module_array(module->sets.word_capacity, sizeof(*module->sets.words));
    return sets_allocate_layout(&module->sets.next, count) && module->sets.words;
}

static bool module_allocate_contributions(struct lockstep_module *module)
{
    bool whole;
    module->contributions =
        module_array(module->contribution_count, sizeof(*module->contributions));
    whole = module->contributions != NULL;
    for (uint32_t i = 0; whole && i < module->contribution_count; i++)
        whole = contribution_init(&module->contributions[i], module, i);
    return whole;
}

// Copies one element of an array of the trainer. stride: the element's size in the header with
// which the trainer was compiled. The fields that a shorter, older element lacks become zero.
static void module_element(void *to, size_t size, const void *array, size_t index, size_t stride)
{
    memset(to, 0, size);
    memcpy(to, (const char *)array + index * stride, stride < size ? stride : size);
}

static int module_fill_replicas(struct lockstep_module *module,
                                const struct lockstep_module_config *config)
{
    const uint32_t count = config->parameter_count;
    int status = 0;
    for (uint32_t i = 0; i < (module->replicas - 1) * count && status == 0; i++) {
        struct lockstep_parameter first;
        struct lockstep_parameter copy;
        module_element(&first, sizeof(first), config->parameters, i % count,
                       config->parameter_bytes);
        module_element(&copy, sizeof(copy), config->parameters, (size_t)count + i,
                       config->parameter_bytes);
        status = replica_declare(module, 1 + i / count, i % count, &first, &copy);
    }
    return status;
}

static int module_fill(struct lockstep_module *module, const struct lockstep_module_config *config)
{
    int status = 0;
    for (uint32_t i = 0; i < config->parameter_count && status == 0; i++) {
        struct lockstep_parameter parameter;
        module_element(&parameter, sizeof(parameter), config->parameters, i,
                       config->parameter_bytes);
        status = declare_parameter(module, config, i, &parameter);
    }
    for (uint32_t i = 0; i < config->buffer_count && status == 0; i++) {
        struct lockstep_buffer buffer;
        module_element(&buffer, sizeof(buffer), config->buffers, i, config->buffer_bytes);
        status = declare_buffer(module, config, i, &buffer);
    }
    if (status == 0)
        status = declare_check_unique(module->parameters, module->parameter_count, "parameters");
    if (status == 0)
        status = declare_check_unique(module->buffers, module->buffer_count, "buffers");
    if (status == 0)
        status = module_fill_replicas(module, config);
    if (status == 0)
        status = residency_check_module(module);
    if (status == 0)
        status = owner_find(module);
    return status == 0 ? overlap_check(module->session, module) : status;
}

// Adds the handles of the module and of its calls.
static int module_add_handles(struct lockstep_module *module)
{
    int result = handle_add(HANDLE_MODULE, module);
    for (uint32_t i = 0; i < module->calls_per_step && result == 0; i++)
        result = handle_add(HANDLE_CALL, &module->calls[i]);
    return result < 0 ? error_set(LOCKSTEP_E_SYSTEM,
                                  "this process has %d handles of sessions, modules, calls and "
                                  "work at most, and module '%s' needs %" PRIu32
                                  ": close modules or sessions first",
                                  LOCKSTEP_MAX_HANDLES, module->name, 1 + module->calls_per_step)
                      : 0;
}

// Removes the handles. A handle that was never added is ignored.
void module_remove_handles(struct lockstep_module *module)
{
    for (uint32_t i = 0; module->calls && i < module->calls_per_step; i++)
        handle_remove(&module->calls[i]);
    handle_remove(module);
}

static void module_take_options(struct lockstep_module *module,
                                const struct lockstep_module_config *config)
{
    module->gradient_kind = config->gradient_kind;
    module->unused = config->unused;
    module->on_abort = config->on_abort;
    module->calls_per_step = (uint32_t)config->calls_per_step;
    module->separate_calls = config->separate_calls != 0;
    module->replicas = (uint32_t)config->replicas;
    module->wire = config->wire;
    module->float16_exponent = config->float16_exponent;
    module->caps = (struct bucket_caps){config->bucket_first_bytes, config->bucket_bytes,
                                        config->bucket_last_bytes};
    module->spares.wanted = config->means_on_demand != 0;
    module->contribution_count = module->separate_calls ? module->calls_per_step : 1;
}

// Makes the parts of a module whose tensors are not declared yet. Returns 0, or a failure.
static int module_allocate(struct lockstep_module *module,
                           const struct lockstep_module_config *config)
{
    module_take_options(module, config);
    if (!module_allocate_tensors(module, config) || !module_allocate_layouts(module) ||
        !module_allocate_contributions(module))
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    for (uint32_t i = 0; i < module->calls_per_step; i++)
        module->calls[i] = (struct lockstep_call){
            .module = module,
            .contribution = &module->contributions[module->separate_calls ? i : 0],
            .number = i};
    return 0;
}

static int module_build(struct lockstep_session *session,
                        const struct lockstep_module_config *config, struct lockstep_module **made)
{
    struct lockstep_module *module = calloc(1, sizeof(*module));
    int status;
    *made = module;
    if (!module)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    module->session = session;
    module->index = session->module_count;
    module->grouped.group = config->group;
    if (config->group)
        text_copy(module->grouped.name, sizeof(module->grouped.name), config->group->name);
    status = module_allocate(module, config);
    if (status == 0)
        status = module_fill(module, config);
    if (status == 0 && config->group)
        status = grouped_check(module);
    if (status == 0)
        status = spares_reserve(module);
    if (status == 0)
        status = sets_enter_module(module, 0);
    return status < 0 ? status : module_add_handles(module);
}

int module_make_absent(struct lockstep_session *session, const struct grouped *grouped,
                       const char *name, uint32_t calls, struct lockstep_module **made)
{
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    struct lockstep_module *module = calloc(1, sizeof(*module));
    int status;
    *made = module;
    if (!module)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    config.name = name;
    config.replicas = 1;
    config.calls_per_step = calls;
    config.separate_calls = calls > 1;
    module->session = session;
    module->grouped = *grouped;
    status = module_allocate(module, &config);
    return status < 0 ? status : sets_enter_module(module, 0);
}

// Copies the caller's description. If the caller was compiled with an older header, the fields that
// it lacks get their defaults. In the first version the description ended before calls_per_step,
// and the elements of its arrays ended before strides.
static int module_widen(const struct lockstep_module_config *given,
                        struct lockstep_module_config *whole)
{
    const struct lockstep_module_config defaults = LOCKSTEP_MODULE_INIT;
    *whole = defaults;
    if (!given)
        return error_set(LOCKSTEP_E_INVALID, "the module's description is NULL");
    const struct {
        const char *field;
        size_t given, least, most;
    } sizes[] = {
        {"struct_bytes", given->struct_bytes,
         offsetof(struct lockstep_module_config, calls_per_step), sizeof(*whole)},
        {"parameter_bytes", given->parameter_bytes, offsetof(struct lockstep_parameter, strides),
         sizeof(struct lockstep_parameter)},
        {"buffer_bytes", given->buffer_bytes, offsetof(struct lockstep_buffer, strides),
         sizeof(struct lockstep_buffer)},
    };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i].given < sizes[i].least || sizes[i].given > sizes[i].most)
            return error_set(LOCKSTEP_E_INVALID,
                             "%s of the module's description is %zu, and has to be %zu to %zu; "
                             "begin with LOCKSTEP_MODULE_INIT, and load a library that is not "
                             "older than the header",
                             sizes[i].field, sizes[i].given, sizes[i].least, sizes[i].most);
    }
    memcpy(whole, given, given->struct_bytes);
    whole->struct_bytes = sizeof(*whole);
    return 0;
}

static int module_check_patterns(const struct lockstep_module_config *config)
{
    int status = 0;
    if (config->ignore_count > LOCKSTEP_MAX_IGNORE)
        return error_set(LOCKSTEP_E_INVALID,
                         "ignore_count is %" PRIu64 "; a module has at most %d patterns",
                         config->ignore_count, LOCKSTEP_MAX_IGNORE);
    if (config->ignore_count > 0 && !config->ignore)
        return error_set(LOCKSTEP_E_INVALID, "the module's description has an ignore_count and no "
                                             "patterns");
    for (uint32_t i = 0; i < config->ignore_count && status == 0; i++) {
        if (!config->ignore[i] || config->ignore[i][0] == '\0')
            return error_set(LOCKSTEP_E_INVALID, "ignore pattern %" PRIu32 " is empty", i);
        status = declare_check_name(config->ignore[i], "ignore pattern", i);
    }
    return status;
}

static int module_config(const struct lockstep_module_config *given,
                         struct lockstep_module_config *whole)
{
    const int status = module_widen(given, whole);
    if (status < 0)
        return status;
    if (whole->calls_per_step == 0)
        whole->calls_per_step = 1;
    if (whole->replicas == 0)
        whole->replicas = 1;
    if (whole->replicas > LOCKSTEP_MAX_REPLICAS)
        return error_set(LOCKSTEP_E_INVALID,
                         "replicas is %" PRIu64 "; a process has at most %d of a module",
                         whole->replicas, LOCKSTEP_MAX_REPLICAS);
    if (whole->calls_per_step > LOCKSTEP_MAX_CALLS)
        return error_set(LOCKSTEP_E_INVALID,
                         "calls_per_step is %" PRIu64 "; a module has at most %d in a step",
                         whole->calls_per_step, LOCKSTEP_MAX_CALLS);
    if ((whole->parameter_count > 0 && !whole->parameters) ||
        (whole->buffer_count > 0 && !whole->buffers))
        return error_set(LOCKSTEP_E_INVALID, "the module's description has a count and no array");
    if ((unsigned)whole->gradient_kind > LOCKSTEP_GRADIENT_SUM ||
        (unsigned)whole->unused > LOCKSTEP_UNUSED_ACCEPT)
        return error_set(LOCKSTEP_E_INVALID, "the module's gradient_kind or unused policy is "
                                             "unknown");
    if ((unsigned)whole->wire > LOCKSTEP_WIRE_FLOAT32)
        return error_set(LOCKSTEP_E_INVALID, "the module's wire is %d, which is unknown",
                         (int)whole->wire);
    if (whole->float16_exponent < LOCKSTEP_FLOAT16_EXPONENT_MIN || whole->float16_exponent > 0)
        return error_set(LOCKSTEP_E_INVALID,
                         "the module's float16_exponent is %" PRId32 "; it is from %d to 0",
                         whole->float16_exponent, LOCKSTEP_FLOAT16_EXPONENT_MIN);
    if (module_check_patterns(whole) < 0)
        return LOCKSTEP_E_INVALID;
    if (whole->group && !handle_is(HANDLE_GROUP, whole->group))
        return error_set(LOCKSTEP_E_INVALID, "the module's group is not a group, or it was closed");
    if (whole->separate_calls > 1 || (unsigned)whole->on_abort > LOCKSTEP_ABORT_ACCEPT)
        return error_set(LOCKSTEP_E_INVALID, "the module's separate_calls is not 0 or 1, or its "
                                             "on_abort is unknown");
    if (whole->means_on_demand > 1 || whole->reserved != 0)
        return error_set(LOCKSTEP_E_INVALID,
                         "the module's means_on_demand is not 0 or 1, or its reserved is not 0");
    if (whole->means_on_demand != 0 && whole->replicas > 1)
        return error_set(LOCKSTEP_E_UNSUPPORTED,
                         "module '%s': means_on_demand does not go together with replicas",
                         !whole->name ? "" : whole->name);
    return declare_check_name(whole->name, "module", 0);
}

static int module_check_room(const struct lockstep_session *session,
                             const struct lockstep_module_config *config)
{
    if (session->step.is_open || session->step.window_open)
        return error_set(
            LOCKSTEP_E_INVALID, "module '%s' is registered inside a %s: end step %" PRIu64 " first",
            config->name, session->step.is_open ? "step" : "window", session->step.number);
    if (config->group && config->group->session != session)
        return error_set(LOCKSTEP_E_INVALID, "module '%s': group '%s' is of another session",
                         config->name, config->group->name);
    if (session->module_count == LOCKSTEP_MAX_MODULES)
        return error_set(LOCKSTEP_E_INVALID, "a session has at most %d modules",
                         LOCKSTEP_MAX_MODULES);
    if ((uint64_t)config->parameter_count + config->buffer_count + session->tensor_count >
        LOCKSTEP_MAX_PARAMETERS)
        return error_set(
            LOCKSTEP_E_INVALID,
            "with module '%s' the session would have %" PRIu64
            " parameters and buffers; a session has at most %d: leave out "
            "tensors that are not reduced, or describe small tensors that lie side by side as one",
            config->name,
            (uint64_t)config->parameter_count + config->buffer_count + session->tensor_count,
            LOCKSTEP_MAX_PARAMETERS);
    for (uint32_t i = 0; i < session->module_count; i++) {
        if (!session->modules[i]->grouped.absent &&
            strcmp(session->modules[i]->name, config->name) == 0)
            return error_set(LOCKSTEP_E_INVALID, "there is a module named '%s' already",
                             config->name);
    }
    return 0;
}

// With config.virtual_ranks a leaf has to give the same bits, whatever else its rank does.
static int module_check_leaves(const struct lockstep_session *session,
                               const struct lockstep_module_config *config)
{
    const char *field = config->separate_calls != 0                 ? "separate_calls"
                        : config->replicas > 1                      ? "replicas"
                        : config->on_abort == LOCKSTEP_ABORT_ACCEPT ? "LOCKSTEP_ABORT_ACCEPT"
                        : config->means_on_demand != 0              ? "means_on_demand"
                        : config->group                             ? "a group"
                                                                    : NULL;
    if (session->config.virtual_ranks == 0 || !field)
        return 0;
    return error_set(LOCKSTEP_E_UNSUPPORTED,
                     "module '%s': %s does not go together with config.virtual_ranks", config->name,
                     field);
}

static void module_unregister(struct lockstep_module *module)
{
    if (!module)
        return;
    module_remove_handles(module);
    module_free(module);
}

// Forgets the module's layouts, as the next lockstep_start requires. The module learns them again.
static int module_unlearn(struct lockstep_module *module)
{
    module->sets.next_agreed = false;
    sets_forget(module);
    return sets_enter_module(module, 0);
}

int module_stop(struct lockstep_session *session)
{
    int status = 0;
    grouped_forget(session);
    for (uint32_t i = 0; session->started && i < session->module_count && status == 0; i++)
        status = module_unlearn(session->modules[i]);
    session->started = false;
    return status;
}

void module_place(struct lockstep_session *session, uint32_t index, struct lockstep_module *module)
{
    session->modules[index] = module;
    module->index = index;
    trace_module(&session->trace, index, module->name);
}

// Adds a module that was built to the session. Modules that all ranks have come first.
static int module_enter(struct lockstep_session *session, struct lockstep_module *made)
{
    int status = owner_join(made);
    if (status < 0)
        return status;
    status = module_stop(session);
    if (status < 0) {
        (void)owner_leave(made);
        return status;
    }
    const uint32_t at = module_is_grouped(made) ? session->module_count : session->common_count++;
    for (uint32_t i = session->module_count++; i > at; i--)
        module_place(session, i, session->modules[i - 1]);
    module_place(session, at, made);
    if (made->grouped.group)
        made->grouped.group->modules++;
    session->training.changed = session->places.moved = true;
    session->tensor_count += made->parameter_count + made->buffer_count;
    return 0;
}

int lockstep_module_register(lockstep_session *session, const struct lockstep_module_config *config,
                             lockstep_module **module)
{
    struct lockstep_module_config whole;
    struct lockstep_module *made = NULL;
    int status = session_check(session);
    if (module)
        *module = NULL;
    if (status == 0 && !module)
        status = error_set(LOCKSTEP_E_INVALID, "module is NULL: nowhere to put the handle");
    if (status == 0)
        status = module_config(config, &whole);
    if (status == 0)
        status = module_check_room(session, &whole);
    if (status == 0)
        status = module_check_leaves(session, &whole);
    if (status == 0)
        status = step_device_land(session, COND_NO_DEADLINE);
    if (status < 0)
        return status;
    status = module_build(session, &whole, &made);
    if (status == 0)
        status = module_enter(session, made);
    if (status < 0) {
        module_unregister(made);
        return status;
    }
    declare_warn_of_patterns(made, &whole);
    *module = made;
    return 0;
}

// ---- Ending a module ---------------------------------------------------------------------------

static void module_take_out(struct lockstep_session *session, const struct lockstep_module *module)
{
    session->module_count--;
    session->tensor_count -= module->parameter_count + module->buffer_count;
    session->training.changed = true;
    session->common_count -= !module_is_grouped(module);
    if (module->grouped.group)
        module->grouped.group->modules--;
    for (uint32_t i = module->index; i < session->module_count; i++)
        module_place(session, i, session->modules[i + 1]);
}

int lockstep_module_close(lockstep_module *module)
{
    int status = module_check(module);
    struct lockstep_session *session;
    if (status < 0)
        return status;
    session = module->session;
    if (session->step.is_open || session->step.window_open)
        return error_set(
            LOCKSTEP_E_INVALID, "module '%s' is closed inside a %s: end step %" PRIu64 " first",
            module->name, session->step.is_open ? "step" : "window", session->step.number);
    status = step_device_land(session, COND_NO_DEADLINE);
    if (status == 0)
        status = owner_leave(module);
    if (status < 0)
        return status;
    module_take_out(session, module);
    overlap_forget(session);
    session->places.moved = true;
    module_unregister(module);
    return module_stop(session);
}
