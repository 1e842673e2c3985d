// SPDX-License-Identifier: Apache-2.0
//
// Modules: what a trainer declares, its lines in the manifest, its bucket layout, and the runs of
// its buckets in a step. Registration is on the trainer's thread and local; who touches what later
// stands in session.h.

#include "base/hash.h"
#include "base/text.h"
#include "worker/error.h"
#include "worker/handle.h"
#include "worker/kernels.h"
#include "worker/session.h"
#include "worker/units.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- Checking what was declared ----------------------------------------------------------------

static int module_check_name(const char *name, const char *what, uint32_t index)
{
    if (name == NULL || name[0] == '\0')
        return error_set(LOCKSTEP_E_INVALID, "%s %" PRIu32 " has no name", what, index);
    if (strlen(name) >= LOCKSTEP_NAME_BYTES)
        return error_set(LOCKSTEP_E_INVALID,
                         "the name of %s %" PRIu32 " is too long: %zu bytes, at "
                         "most %d",
                         what, index, strlen(name), LOCKSTEP_NAME_BYTES - 1);
    if (!utf8_valid(name, strlen(name)))
        return error_set(LOCKSTEP_E_INVALID, "the name of %s %" PRIu32 " is not valid UTF-8", what,
                         index);
    return 0;
}

// The number of elements of a shape, or a failure when it is negative or does not fit in memory.
static int module_count_elements(const char *name, uint32_t dims, const int64_t *shape, size_t size,
                                 uint64_t *elements)
{
    uint64_t count = 1;
    bool empty = false;
    if (dims > LOCKSTEP_MAX_DIMS || (dims > 0 && shape == NULL))
        return error_set(LOCKSTEP_E_INVALID,
                         "'%s' has %" PRIu32 " dimensions%s; at most %d are "
                         "possible",
                         name, dims, shape == NULL ? " and no shape" : "", LOCKSTEP_MAX_DIMS);
    for (uint32_t i = 0; i < dims; i++) {
        if (shape[i] < 0)
            return error_set(LOCKSTEP_E_INVALID,
                             "'%s' has the negative size %" PRId64 " in dimension %" PRIu32, name,
                             shape[i], i);
        if (shape[i] == 0)
            empty = true;
        else if (count > (uint64_t)INT64_MAX / size / (uint64_t)shape[i])
            return error_set(LOCKSTEP_E_INVALID, "'%s' has more elements than memory can hold",
                             name);
        else
            count *= (uint64_t)shape[i];
    }
    *elements = empty ? 0 : count;
    return 0;
}

struct tensor_source {
    const char *what;
    const char *name;
    lockstep_dtype dtype;
    uint32_t dims;
    const int64_t *shape;
    void *data;
    uint32_t flags;
};

static int module_fill_tensor(struct tensor *tensor, const struct tensor_source *from,
                              uint32_t index)
{
    int status = module_check_name(from->name, from->what, index);
    if (status < 0)
        return status;
    tensor->dtype = (enum dtype)from->dtype;
    if (!kernel_supported(tensor->dtype, REDUCE_SUM))
        return error_set(dtype_size(tensor->dtype) == 0 ? LOCKSTEP_E_INVALID
                                                        : LOCKSTEP_E_UNSUPPORTED,
                         "'%s' has dtype %d (%s), which this build does not support", from->name,
                         (int)from->dtype, dtype_name(tensor->dtype));
    status = module_count_elements(from->name, from->dims, from->shape, dtype_size(tensor->dtype),
                                   &tensor->elements);
    if (status < 0)
        return status;
    if (from->data == NULL && tensor->elements > 0)
        return error_set(LOCKSTEP_E_INVALID, "'%s' has %" PRIu64 " elements and data NULL",
                         from->name, tensor->elements);
    tensor->dims = from->dims;
    for (uint32_t i = 0; i < from->dims; i++)
        tensor->shape[i] = from->shape[i];
    tensor->data = from->data;
    tensor->flags = from->flags;
    tensor->name = strdup(from->name);
    return tensor->name == NULL ? error_set(LOCKSTEP_E_SYSTEM, "no memory") : 0;
}

static int module_fill_parameter(struct lockstep_module *module, uint32_t index,
                                 const struct lockstep_parameter *parameter)
{
    struct tensor *tensor = &module->parameters[index];
    const struct tensor_source from = {"parameter",     parameter->name,  parameter->dtype,
                                       parameter->dims, parameter->shape, parameter->data,
                                       parameter->flags};
    const int status = module_fill_tensor(tensor, &from, index);
    if (status < 0)
        return status;
    if ((parameter->flags & ~LOCKSTEP_PARAMETER_FROZEN) != 0)
        return error_set(LOCKSTEP_E_INVALID, "'%s' has unknown flags 0x%" PRIx32, tensor->name,
                         parameter->flags);
    module->shapes[index] =
        (struct bucket_parameter){.dtype = tensor->dtype,
                                  .trainable = (tensor->flags & LOCKSTEP_PARAMETER_FROZEN) == 0,
                                  .elements = tensor->elements};
    if (!module->shapes[index].trainable)
        return 0;
    module->trainable_count++;
    module->gradients[index].memory = parameter->gradient;
    if (!dtype_is_float(tensor->dtype))
        return error_set(LOCKSTEP_E_INVALID,
                         "'%s' is %s: a mean of integers does not exist; mark "
                         "it LOCKSTEP_PARAMETER_FROZEN or declare a buffer",
                         tensor->name, dtype_name(tensor->dtype));
    return 0;
}

static int module_check_unique(const struct tensor *tensors, uint32_t count, const char *what)
{
    // Sorting would need a copy; a hash set of the names is shorter. Open addressing, half full.
    uint32_t capacity = 16;
    uint32_t *seen;
    int status = 0;
    while (capacity < count * 2)
        capacity *= 2;
    seen = calloc(capacity, sizeof(*seen));
    if (seen == NULL)
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    for (uint32_t i = 0; i < count && status == 0; i++) {
        uint32_t at = (uint32_t)hash64(tensors[i].name, strlen(tensors[i].name)) & (capacity - 1);
        while (seen[at] != 0 && strcmp(tensors[seen[at] - 1].name, tensors[i].name) != 0)
            at = (at + 1) & (capacity - 1);
        if (seen[at] != 0)
            status = error_set(LOCKSTEP_E_INVALID,
                               "%s %" PRIu32 " and %" PRIu32 " are both named "
                               "'%s'",
                               what, seen[at] - 1, i, tensors[i].name);
        seen[at] = i + 1;
    }
    free(seen);
    return status;
}

// ---- Making a module ---------------------------------------------------------------------------

void module_free(struct lockstep_module *module)
{
    if (module == NULL)
        return;
    for (uint32_t i = 0; module->parameters != NULL && i < module->parameter_count; i++)
        free(module->parameters[i].name);
    for (uint32_t i = 0; module->buffers != NULL && i < module->buffer_count; i++)
        free(module->buffers[i].name);
    free(module->parameters);
    free(module->buffers);
    free(module->shapes);
    free(module->gradients);
    free(module->layout.order);
    free(module->layout.buckets);
    free(module->next.order);
    free(module->next.buckets);
    free(module->bucket_of);
    free(module->runs);
    free(module->extents);
    free(module->unit_ends);
    free(module->used);
    free(module->used_anywhere);
    free(module->ready_order);
    free(module->words);
    free(module->name);
    free(module);
}

// calloc(0) may be NULL; every array has at least one element.
static void *module_array(uint32_t count, size_t size)
{
    return calloc(count == 0 ? 1 : count, size);
}

static bool module_allocate_layout(struct bucket_layout *layout, uint32_t count)
{
    const uint32_t buckets = count < LOCKSTEP_MAX_BUCKETS ? count : LOCKSTEP_MAX_BUCKETS;
    layout->order = module_array(count, sizeof(*layout->order));
    layout->buckets = module_array(buckets, sizeof(*layout->buckets));
    layout->order_capacity = count;
    layout->bucket_capacity = buckets;
    return layout->order != NULL && layout->buckets != NULL;
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
    module->gradients = module_array(config->parameter_count, sizeof(*module->gradients));
    module->bucket_of = module_array(config->parameter_count, sizeof(*module->bucket_of));
    module->used_anywhere = module_array(config->parameter_count, sizeof(*module->used_anywhere));
    return module->name != NULL && module->parameters != NULL && module->buffers != NULL &&
           module->shapes != NULL && module->gradients != NULL && module->bucket_of != NULL &&
           module->used_anywhere != NULL;
}

static bool module_allocate_runs(struct lockstep_module *module)
{
    const uint32_t count = module->trainable_count;
    module->word_capacity = 1 + 2 * count;
    module->runs = module_array(count, sizeof(*module->runs));
    module->extents = module_array(count, sizeof(*module->extents));
    module->unit_ends = module_array(count, sizeof(*module->unit_ends));
    module->used = module_array(count, sizeof(*module->used));
    module->ready_order = module_array(count, sizeof(*module->ready_order));
    module->words = module_array(module->word_capacity, sizeof(*module->words));
    return module_allocate_layout(&module->layout, count) &&
           module_allocate_layout(&module->next, count) && module->runs != NULL &&
           module->extents != NULL && module->unit_ends != NULL && module->used != NULL &&
           module->ready_order != NULL && module->words != NULL;
}

// Arrays in the trainer's memory are walked with the element size that it was compiled with.
static int module_fill(struct lockstep_module *module, const struct lockstep_module_config *config)
{
    int status = 0;
    for (uint32_t i = 0; i < config->parameter_count && status == 0; i++) {
        struct lockstep_parameter parameter;
        memcpy(&parameter, (const char *)config->parameters + i * config->parameter_bytes,
               sizeof(parameter));
        status = module_fill_parameter(module, i, &parameter);
    }
    for (uint32_t i = 0; i < config->buffer_count && status == 0; i++) {
        struct lockstep_buffer buffer;
        memcpy(&buffer, (const char *)config->buffers + i * config->buffer_bytes, sizeof(buffer));
        const struct tensor_source from = {
            "buffer",     buffer.name, buffer.dtype,           buffer.dims,
            buffer.shape, buffer.data, (uint32_t)buffer.policy};
        status = module_fill_tensor(&module->buffers[i], &from, i);
        if (status == 0 && (unsigned)buffer.policy > LOCKSTEP_BUFFER_IGNORE)
            status = error_set(LOCKSTEP_E_INVALID, "'%s' has the unknown policy %d", buffer.name,
                               (int)buffer.policy);
    }
    if (status == 0)
        status = module_check_unique(module->parameters, module->parameter_count, "parameters");
    if (status == 0)
        status = module_check_unique(module->buffers, module->buffer_count, "buffers");
    return status;
}

static void module_index_buckets(struct lockstep_module *module)
{
    const struct bucket_layout *layout = &module->layout;
    for (uint32_t b = 0; b < layout->bucket_count; b++) {
        for (uint32_t i = 0; i < layout->buckets[b].count; i++)
            module->bucket_of[layout->order[layout->buckets[b].first + i]] = b;
    }
}

static int module_first_layout(struct lockstep_module *module)
{
    const struct config *config = &module->session->config;
    const struct bucket_caps caps = {config->bucket_first_bytes, config->bucket_bytes,
                                     config->bucket_last_bytes};
    char text[LOCKSTEP_TEXT_BYTES];
    if (buckets_layout(module->shapes, module->parameter_count, NULL, 0, caps, &module->layout,
                       text, sizeof(text)) != BUCKET_OK)
        return error_set(LOCKSTEP_E_INVALID, "module '%s' cannot be cut into buckets: %s",
                         module->name, text);
    module_index_buckets(module);
    return 0;
}

static int module_build(struct lockstep_session *session,
                        const struct lockstep_module_config *config, struct lockstep_module **made)
{
    struct lockstep_module *module = calloc(1, sizeof(*module));
    int status;
    *made = module;
    if (module == NULL || !module_allocate_tensors(module, config))
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    module->session = session;
    module->index = session->module_count;
    module->gradient_kind = config->gradient_kind;
    module->call.module = module;
    status = module_fill(module, config);
    if (status < 0)
        return status;
    if (!module_allocate_runs(module))
        return error_set(LOCKSTEP_E_SYSTEM, "no memory");
    status = module_first_layout(module);
    if (status == 0 &&
        (handle_add(HANDLE_MODULE, module) < 0 || handle_add(HANDLE_CALL, &module->call) < 0))
        status = error_set(LOCKSTEP_E_SYSTEM, "too many modules in this process");
    return status;
}

// A copy of the caller's description, widened when the caller is older than this library.
static int module_config(const struct lockstep_module_config *given,
                         struct lockstep_module_config *whole)
{
    const struct lockstep_module_config defaults = LOCKSTEP_MODULE_INIT;
    *whole = defaults;
    if (given == NULL)
        return error_set(LOCKSTEP_E_INVALID, "the module's description is NULL");
    if (given->struct_bytes < sizeof(*whole) ||
        given->parameter_bytes < sizeof(struct lockstep_parameter) ||
        given->buffer_bytes < sizeof(struct lockstep_buffer))
        return error_set(LOCKSTEP_E_INVALID, "the module's description is too short; begin with "
                                             "LOCKSTEP_MODULE_INIT");
    memcpy(whole, given, sizeof(*whole));
    if ((whole->parameter_count > 0 && whole->parameters == NULL) ||
        (whole->buffer_count > 0 && whole->buffers == NULL))
        return error_set(LOCKSTEP_E_INVALID, "the module's description has a count and no array");
    if ((unsigned)whole->gradient_kind > LOCKSTEP_GRADIENT_SUM ||
        whole->unused != LOCKSTEP_UNUSED_ERROR)
        return error_set(LOCKSTEP_E_INVALID, "the module's gradient_kind or unused policy is "
                                             "unknown");
    return module_check_name(whole->name, "module", 0);
}

static int module_check_room(const struct lockstep_session *session,
                             const struct lockstep_module_config *config)
{
    if (session->started)
        return error_set(LOCKSTEP_E_INVALID, "modules are registered before lockstep_start");
    if (session->module_count == LOCKSTEP_MAX_MODULES)
        return error_set(LOCKSTEP_E_INVALID, "a session has at most %d modules",
                         LOCKSTEP_MAX_MODULES);
    if ((uint64_t)config->parameter_count + config->buffer_count + session->tensor_count >
        LOCKSTEP_MAX_PARAMETERS)
        return error_set(LOCKSTEP_E_INVALID, "a session has at most %d parameters and buffers",
                         LOCKSTEP_MAX_PARAMETERS);
    for (uint32_t i = 0; i < session->module_count; i++) {
        if (strcmp(session->modules[i]->name, config->name) == 0)
            return error_set(LOCKSTEP_E_INVALID, "there is a module named '%s' already",
                             config->name);
    }
    return 0;
}

static void module_unregister(struct lockstep_module *module)
{
    if (module == NULL)
        return;
    handle_remove(&module->call);
    handle_remove(module);
    module_free(module);
}

int lockstep_module_register(lockstep_session *session, const struct lockstep_module_config *config,
                             lockstep_module **module)
{
    struct lockstep_module_config whole;
    struct lockstep_module *made = NULL;
    int status = session_check(session);
    if (module != NULL)
        *module = NULL;
    if (status == 0 && module == NULL)
        status = error_set(LOCKSTEP_E_INVALID, "module is NULL: nowhere to put the handle");
    if (status == 0)
        status = module_config(config, &whole);
    if (status == 0)
        status = module_check_room(session, &whole);
    if (status < 0)
        return status;
    status = module_build(session, &whole, &made);
    if (status < 0) {
        module_unregister(made);
        return status;
    }
    session->modules[session->module_count++] = made;
    session->tensor_count += made->parameter_count + made->buffer_count;
    *module = made;
    return 0;
}

// ---- The manifest ------------------------------------------------------------------------------

uint32_t module_manifest_count(const struct lockstep_session *session)
{
    return 1 + session->module_count + session->tensor_count;
}

static void manifest_tensor(const struct tensor *tensor, enum manifest_kind kind, uint32_t module,
                            struct manifest_item *item)
{
    int64_t stride = 1;
    item->kind = kind;
    item->module = module;
    text_copy(item->name, sizeof(item->name), tensor->name);
    item->dtype = tensor->dtype;
    item->flags = tensor->flags;
    item->dims = tensor->dims;
    for (uint32_t i = tensor->dims; i-- > 0;) {
        item->shape[i] = tensor->shape[i];
        item->strides[i] = stride;
        stride *= tensor->shape[i] > 0 ? tensor->shape[i] : 1;
    }
}

static void manifest_session(const struct lockstep_session *session, struct manifest_item *item)
{
    const struct config *config = &session->config;
    item->kind = MANIFEST_SESSION;
    snprintf(item->value, sizeof(item->value),
             "bucket_first_bytes=%" PRIu64 " bucket_bytes=%" PRIu64 " bucket_last_bytes=%" PRIu64,
             config->bucket_first_bytes, config->bucket_bytes, config->bucket_last_bytes);
}

static void manifest_module(const struct lockstep_module *module, struct manifest_item *item)
{
    item->kind = MANIFEST_MODULE;
    item->module = module->index;
    text_copy(item->name, sizeof(item->name), module->name);
    snprintf(item->value, sizeof(item->value), "gradient_kind=%s unused=error",
             module->gradient_kind == LOCKSTEP_GRADIENT_SUM ? "sum" : "mean");
}

bool module_manifest_item(const struct lockstep_session *session, uint32_t index,
                          struct manifest_item *item)
{
    memset(item, 0, sizeof(*item));
    if (index == 0) {
        manifest_session(session, item);
        return true;
    }
    index--;
    for (uint32_t m = 0; m < session->module_count; m++) {
        const struct lockstep_module *module = session->modules[m];
        if (index == 0) {
            manifest_module(module, item);
            return true;
        }
        index--;
        if (index < module->parameter_count) {
            manifest_tensor(&module->parameters[index], MANIFEST_PARAMETER, m, item);
            return true;
        }
        index -= module->parameter_count;
        if (index < module->buffer_count) {
            manifest_tensor(&module->buffers[index], MANIFEST_BUFFER, m, item);
            return true;
        }
        index -= module->buffer_count;
    }
    return false;
}

uint64_t module_manifest_hash(const struct lockstep_session *session)
{
    struct hash64 hash;
    struct manifest_item item;
    hash64_init(&hash, 0);
    for (uint32_t i = 0; module_manifest_item(session, i, &item); i++)
        hash64_update(&hash, &item, sizeof(item)); // The item was zeroed: padding is equal.
    return hash64_final(&hash);
}

// ---- A step ------------------------------------------------------------------------------------

void module_step_begin(struct lockstep_module *module)
{
    for (uint32_t b = 0; b < module->layout.bucket_count; b++)
        atomic_store_explicit(&module->runs[b].missing, module->layout.buckets[b].count,
                              memory_order_relaxed);
    atomic_store_explicit(&module->ready_count, 0, memory_order_relaxed);
    memset(module->used_anywhere, 0, module->parameter_count * sizeof(*module->used_anywhere));
    module->call.ended = false;
}

void module_adopt_layout(struct lockstep_module *module)
{
    const struct bucket_layout old = module->layout;
    if (!module->next_agreed)
        return;
    module->layout = module->next;
    module->next = old;
    module->next_agreed = false;
    module->learned = true;
    module_index_buckets(module);
}

// One extent for each run of gradients that lie side by side: those are reduced as one, in place.
static uint32_t module_extents(struct lockstep_module *module, const struct bucket *bucket,
                               bool zero)
{
    struct extent *extents = &module->extents[bucket->first];
    const size_t size = dtype_size(bucket->dtype);
    uint32_t count = 0;
    for (uint32_t i = 0; i < bucket->count; i++) {
        const uint32_t parameter = module->layout.order[bucket->first + i];
        const struct gradient *gradient = &module->gradients[parameter];
        const uint64_t elements = module->shapes[parameter].elements;
        char *out = gradient->memory;
        const char *in = zero || gradient->unused ? NULL : out;
        struct extent *last = count > 0 ? &extents[count - 1] : NULL;
        if (elements == 0)
            continue;
        if (last != NULL && last->out != NULL && out == (char *)last->out + last->elements * size &&
            (in == NULL) == (last->in == NULL))
            last->elements += elements;
        else
            extents[count++] = (struct extent){.in = in, .out = out, .elements = elements};
    }
    return count;
}

// The gradients of a bucket are the units of its collective. A bucket of n gradients has n words
// for its bits, more than it needs.
static void module_units(struct lockstep_module *module, const struct bucket *bucket, bool zero)
{
    uint64_t *ends = &module->unit_ends[bucket->first];
    uint64_t *used = &module->used[bucket->first];
    uint64_t end = 0;
    memset(used, 0, units_words(bucket->count) * sizeof(*used));
    for (uint32_t i = 0; i < bucket->count; i++) {
        const uint32_t parameter = module->layout.order[bucket->first + i];
        end += module->shapes[parameter].elements;
        ends[i] = end;
        if (!zero && !module->gradients[parameter].unused)
            units_set_used(used, i);
    }
}

void module_collective_done(struct lockstep_module *module, const struct collective *collective)
{
    const uint32_t *order = module->layout.order + (collective->unit_ends - module->unit_ends);
    for (uint32_t i = 0; i < collective->unit_count; i++) {
        if (units_is_used(collective->used, i))
            module->used_anywhere[order[i]] = true;
    }
}

struct collective *module_collective(struct lockstep_module *module, uint32_t bucket, bool zero)
{
    const struct bucket *shape = &module->layout.buckets[bucket];
    struct collective *collective = &module->runs[bucket].collective;
    const uint64_t identity[] = {module->index, bucket, (uint64_t)module->gradient_kind};
    module_units(module, shape, zero);
    *collective = (struct collective){
        .kind = COLLECTIVE_ALLREDUCE,
        .dtype = shape->dtype,
        .op = REDUCE_MEAN,
        .extents = &module->extents[shape->first],
        .extent_count = module_extents(module, shape, zero),
        .elements = shape->elements,
        .weight = zero ? 0 : module->session->weight,
        .input_is_sum = module->gradient_kind == LOCKSTEP_GRADIENT_SUM,
        .unit_ends = &module->unit_ends[shape->first],
        .unit_count = shape->count,
        .used = &module->used[shape->first],
        .context = module,
    };
    collective->signature = collective_signature(collective) ^ hash64(identity, sizeof(identity));
    return collective;
}
