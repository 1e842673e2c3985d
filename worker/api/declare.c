// SPDX-License-Identifier: Apache-2.0
//
// Checks a trainer's declarations of the parameters and buffers of a module, and copies them into
// the module. Trainer.

#include "worker/api/declare.h"

#include "base/hash64.h"
#include "base/utf8.h"
#include "worker/kernels/kernels.h"
#include "worker/session/session.h"
#include "worker/support/error.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int declare_check_name(const char *name, const char *what, uint32_t index)
{
    if (!name || name[0] == '\0')
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

// Counts the elements of a shape. A failure if a dimension is negative, or if so many elements do
// not fit in memory.
static int declare_count_elements(const char *name, uint32_t dims, const int64_t *shape,
                                  size_t size, uint64_t *elements)
{
    uint64_t count = 1;
    bool empty = false;
    if (dims > LOCKSTEP_MAX_DIMS || (dims > 0 && !shape))
        return error_set(LOCKSTEP_E_INVALID,
                         "'%s' has %" PRIu32 " dimensions%s; at most %d are "
                         "possible",
                         name, dims, !shape ? " and no shape" : "", LOCKSTEP_MAX_DIMS);
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

// Checks and copies the strides. They must describe dense memory, with the dimensions in any order.
// Strides of dimensions with one element, and of an empty tensor, do not matter: they become the
// row-major ones, so that all ranks have the same. strides NULL: row-major.
static int declare_strides(struct tensor *tensor, const char *name, const int64_t *strides)
{
    uint32_t left = 0; // One bit for each dimension that has no stride yet.
    int64_t dense = 1;
    for (uint32_t i = tensor->dims; i-- > 0;) {
        tensor->strides[i] = dense;
        dense *= tensor->shape[i] > 0 ? tensor->shape[i] : 1;
        left |= (uint32_t)(tensor->shape[i] > 1) << i;
    }
    if (!strides || tensor->elements == 0)
        return 0;
    for (dense = 1; left != 0;) {
        uint32_t next = 0;
        while (next < tensor->dims && ((left >> next & 1) == 0 || strides[next] != dense))
            next++;
        if (next == tensor->dims)
            return error_set(LOCKSTEP_E_INVALID,
                             "'%s' has strides that leave holes or overlap: no dimension that is "
                             "left has the stride %" PRId64,
                             name, dense);
        tensor->strides[next] = dense;
        dense *= tensor->shape[next];
        left &= ~((uint32_t)1 << next);
    }
    return 0;
}

struct tensor_source {
    const char *what;
    const char *name;
    lockstep_dtype dtype;
    uint32_t gradient_dtype; // 0: dtype.
    uint32_t dims;
    const int64_t *shape;
    const int64_t *strides;
    void *data;
    uint32_t flags;
};

// True if a pattern matches the name. Patterns are those of a shell, but a star also matches dots
// and slashes.
static bool declare_ignores(const struct lockstep_module_config *config, const char *name)
{
    for (uint64_t i = 0; i < config->ignore_count; i++) {
        if (fnmatch(config->ignore[i], name, 0) == 0)
            return true;
    }
    return false;
}

static int declare_gradient_dtype(struct tensor *tensor, const struct tensor_source *from)
{
    tensor->gradient_dtype =
        from->gradient_dtype == 0 ? tensor->dtype : (enum dtype)from->gradient_dtype;
    if (from->gradient_dtype == 0 || dtype_is_float(tensor->gradient_dtype))
        return 0;
    return error_set(LOCKSTEP_E_INVALID,
                     "'%s' has gradient_dtype %" PRIu32 " (%s): a gradient is floating point",
                     from->name, from->gradient_dtype, dtype_name(tensor->gradient_dtype));
}

static int declare_tensor(struct tensor *tensor, const struct lockstep_module_config *config,
                          const struct tensor_source *from, uint32_t index)
{
    int status = declare_check_name(from->name, from->what, index);
    if (status < 0)
        return status;
    tensor->dtype = (enum dtype)from->dtype;
    if (!kernel_supported(tensor->dtype, REDUCE_SUM))
        return error_set(dtype_size(tensor->dtype) == 0 ? LOCKSTEP_E_INVALID
                                                        : LOCKSTEP_E_UNSUPPORTED,
                         "'%s' has dtype %d (%s), which this build does not support", from->name,
                         (int)from->dtype, dtype_name(tensor->dtype));
    status = declare_gradient_dtype(tensor, from);
    if (status < 0)
        return status;
    const size_t size = dtype_size(tensor->dtype);
    const size_t gradient_size = dtype_size(tensor->gradient_dtype);
    status = declare_count_elements(from->name, from->dims, from->shape,
                                    size > gradient_size ? size : gradient_size, &tensor->elements);
    if (status < 0)
        return status;
    if (!from->data && tensor->elements > 0)
        return error_set(LOCKSTEP_E_INVALID, "'%s' has %" PRIu64 " elements and data NULL",
                         from->name, tensor->elements);
    tensor->dims = from->dims;
    for (uint32_t i = 0; i < from->dims; i++)
        tensor->shape[i] = from->shape[i];
    status = declare_strides(tensor, from->name, from->strides);
    if (status < 0)
        return status;
    tensor->data = from->data;
    tensor->flags = from->flags;
    tensor->ignored = declare_ignores(config, from->name);
    tensor->name = strdup(from->name);
    return !tensor->name ? error_set(LOCKSTEP_E_SYSTEM, "no memory") : 0;
}

static int declare_count(struct lockstep_module *module, uint32_t index,
                         const struct lockstep_parameter *parameter)
{
    struct tensor *tensor = &module->parameters[index];
    if (parameter->ready_count > LOCKSTEP_MAX_READY_COUNT)
        return error_set(LOCKSTEP_E_INVALID,
                         "'%s' has the ready_count %" PRIu64 "; a gradient has at most %d reports "
                         "in a call",
                         tensor->name, parameter->ready_count, LOCKSTEP_MAX_READY_COUNT);
    tensor->ready_count = parameter->ready_count == 0 ? 1 : (uint32_t)parameter->ready_count;
    module->awaits[index] = tensor->ready_count * module->replicas;
    return 0;
}

int declare_parameter(struct lockstep_module *module, const struct lockstep_module_config *config,
                      uint32_t index, const struct lockstep_parameter *parameter)
{
    struct tensor *tensor = &module->parameters[index];
    const struct tensor_source from = {.what = "parameter",
                                       .name = parameter->name,
                                       .dtype = parameter->dtype,
                                       .gradient_dtype = parameter->gradient_dtype,
                                       .dims = parameter->dims,
                                       .shape = parameter->shape,
                                       .strides = parameter->strides,
                                       .data = parameter->data,
                                       .flags = parameter->flags};
    int status = declare_tensor(tensor, config, &from, index);
    if (status < 0)
        return status;
    if ((parameter->flags & ~(LOCKSTEP_PARAMETER_FROZEN | LOCKSTEP_PARAMETER_SHARED)) != 0)
        return error_set(LOCKSTEP_E_INVALID, "'%s' has unknown flags 0x%" PRIx32, tensor->name,
                         parameter->flags);
    status = declare_count(module, index, parameter);
    if (status < 0)
        return status;
    module->contributions[0].gradients[index].registered = parameter->gradient;
    module->shapes[index] =
        (struct bucket_parameter){.dtype = tensor->gradient_dtype, .elements = tensor->elements};
    module->frozen[index] = (tensor->flags & LOCKSTEP_PARAMETER_FROZEN) != 0;
    if (tensor->flags == 0 && !tensor->ignored && !dtype_is_float(tensor->gradient_dtype))
        return error_set(LOCKSTEP_E_INVALID,
                         "'%s' is %s: a mean of integers does not exist; mark "
                         "it LOCKSTEP_PARAMETER_FROZEN, give its gradient_dtype, or declare a "
                         "buffer",
                         tensor->name, dtype_name(tensor->dtype));
    return 0;
}

static int declare_check_policy(const struct lockstep_buffer *buffer)
{
    if ((unsigned)buffer->policy > LOCKSTEP_BUFFER_SUM)
        return error_set(LOCKSTEP_E_INVALID, "'%s' has the unknown policy %d", buffer->name,
                         (int)buffer->policy);
    if (buffer->policy == LOCKSTEP_BUFFER_MEAN && !dtype_is_float((enum dtype)buffer->dtype))
        return error_set(LOCKSTEP_E_INVALID,
                         "'%s' is %s: a mean of integers does not exist; use %s"
                         "LOCKSTEP_BUFFER_BROADCAST",
                         buffer->name, dtype_name((enum dtype)buffer->dtype),
                         buffer->dtype == LOCKSTEP_BOOL ? "" : "LOCKSTEP_BUFFER_SUM or ");
    if (buffer->policy == LOCKSTEP_BUFFER_SUM && buffer->dtype == LOCKSTEP_BOOL)
        return error_set(LOCKSTEP_E_INVALID,
                         "'%s' is bool: a sum of booleans does not exist; use "
                         "LOCKSTEP_BUFFER_BROADCAST",
                         buffer->name);
    if (buffer->every != 0 && buffer->policy < LOCKSTEP_BUFFER_BROADCAST)
        return error_set(LOCKSTEP_E_INVALID,
                         "'%s' has every %" PRIu64 " and a policy that does not repeat",
                         buffer->name, buffer->every);
    return 0;
}

int declare_buffer(struct lockstep_module *module, const struct lockstep_module_config *config,
                   uint32_t index, const struct lockstep_buffer *buffer)
{
    struct tensor *tensor = &module->buffers[index];
    const struct tensor_source from = {.what = "buffer",
                                       .name = buffer->name,
                                       .dtype = buffer->dtype,
                                       .dims = buffer->dims,
                                       .shape = buffer->shape,
                                       .strides = buffer->strides,
                                       .data = buffer->data,
                                       .flags = (uint32_t)buffer->policy};
    const int status = declare_tensor(tensor, config, &from, index);
    if (status < 0)
        return status;
    tensor->every = buffer->every == 0 ? 1 : buffer->every;
    return declare_check_policy(buffer);
}

static bool declare_pattern_matches(const struct lockstep_module *module, const char *pattern)
{
    for (uint32_t i = 0; i < module->parameter_count; i++) {
        if (fnmatch(pattern, module->parameters[i].name, 0) == 0)
            return true;
    }
    for (uint32_t i = 0; i < module->buffer_count; i++) {
        if (fnmatch(pattern, module->buffers[i].name, 0) == 0)
            return true;
    }
    return false;
}

// A pattern without a match is probably misspelt, and then a tensor travels that should not.
void declare_warn_of_patterns(struct lockstep_module *module,
                              const struct lockstep_module_config *config)
{
    for (uint64_t i = 0; i < config->ignore_count; i++) {
        if (!declare_pattern_matches(module, config->ignore[i]))
            log_event(&module->session->log, LOG_LEVEL_WARN, "ignore_matches_nothing",
                      "module=%s pattern=%s hint=%s", module->name, config->ignore[i],
                      "compare it with the names of the parameters and buffers");
    }
}

int declare_check_unique(const struct tensor *tensors, uint32_t count, const char *what)
{
    // A hash set of the names, with open addressing, at most half full. Sorting would need a copy.
    uint32_t capacity = 16;
    uint32_t *seen;
    int status = 0;
    while (capacity < count * 2)
        capacity *= 2;
    seen = calloc(capacity, sizeof(*seen));
    if (!seen)
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
