// SPDX-License-Identifier: Apache-2.0
//
// The manifest: a list of items that describes everything that a session has registered.
// lockstep_start verifies that the manifests of all ranks are equal. Nothing here changes the
// session. The trainer calls it in lockstep_start, the driver when the coordinator asks for items.

#include "worker/session/module/manifest.h"

#include "base/hash64.h"
#include "base/text.h"
#include "worker/session/session.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

uint32_t manifest_module_count(const struct lockstep_module *module)
{
    return 1 + module->parameter_count + module->buffer_count;
}

uint32_t module_manifest_count(const struct lockstep_session *session)
{
    uint32_t count = LOCKSTEP_SESSION_ITEMS;
    for (uint32_t m = 0; m < session->common_count; m++)
        count += manifest_module_count(session->modules[m]);
    return count;
}

// Appends to the value of an item. All of it must fit, because text that is cut off would not be
// compared.
static __attribute__((format(printf, 2, 3))) void manifest_say(struct manifest_item *item,
                                                               const char *format, ...)
{
    const size_t used = strlen(item->value);
    va_list arguments;
    int length;
    va_start(arguments, format);
    length = vsnprintf(item->value + used, sizeof(item->value) - used, format, arguments);
    va_end(arguments);
    assert(length >= 0 && (size_t)length < sizeof(item->value) - used);
    (void)length;
}

// Writes the properties of a tensor that have no field of their own, as "key=value key=value".
static void manifest_options(const struct tensor *tensor, enum manifest_kind kind,
                             struct manifest_item *item)
{
    static const char *const policies[] = {"at_start", "ignore", "broadcast", "mean", "sum"};
    if (kind == MANIFEST_PARAMETER)
        manifest_say(item, "ready_count=%" PRIu32, tensor->ready_count);
    if (kind == MANIFEST_PARAMETER && tensor->gradient_dtype != tensor->dtype)
        manifest_say(item, " gradient_dtype=%s", dtype_name(tensor->gradient_dtype));
    if (kind == MANIFEST_BUFFER)
        manifest_say(item, "policy=%s", policies[tensor->flags]);
    if (kind == MANIFEST_BUFFER && tensor->flags >= LOCKSTEP_BUFFER_BROADCAST)
        manifest_say(item, " every=%" PRIu64, tensor->every);
    if (tensor->ignored)
        manifest_say(item, " ignored=1");
}

static void manifest_tensor(const struct tensor *tensor, enum manifest_kind kind, uint32_t module,
                            struct manifest_item *item)
{
    item->kind = kind;
    item->module = module;
    text_copy(item->name, sizeof(item->name), tensor->name);
    item->dtype = tensor->dtype;
    item->flags = kind == MANIFEST_PARAMETER ? tensor->flags : 0;
    item->dims = tensor->dims;
    memcpy(item->shape, tensor->shape, sizeof(item->shape));
    memcpy(item->strides, tensor->strides, sizeof(item->strides));
    manifest_options(tensor, kind, item);
}

static void manifest_session(const struct lockstep_session *session, struct manifest_item *item)
{
    static const char *const uneven[] = {"none", "all", "first"};
    const struct config *config = &session->config;
    item->kind = MANIFEST_SESSION;
    manifest_say(item,
                 "bucket_first_bytes=%" PRIu64 " bucket_bytes=%" PRIu64
                 " bucket_last_bytes=%" PRIu64 " uneven=%s",
                 config->buckets.first_bytes, config->buckets.bytes, config->buckets.last_bytes,
                 uneven[session->step.uneven]);
}

// The policies that must be equal on all ranks: otherwise one rank would defer a bucket that others
// wait for, or run a call that others refuse. The keys are what a user can set, because reports of
// differences show them.
static void manifest_policies(const struct lockstep_session *session, struct manifest_item *item)
{
    item->kind = MANIFEST_SESSION;
    text_copy(item->name, sizeof(item->name), "policies");
    manifest_say(item, "LOCKSTEP_ORDER=%s LOCKSTEP_UNPLANNED=%s",
                 config_orders[session->config.order], config_unplanned[session->config.unplanned]);
    if (session->config.virtual_ranks > 0)
        manifest_say(item, " LOCKSTEP_VIRTUAL_RANKS=%" PRIu32, session->config.virtual_ranks);
    if (session->config.gradient_norm)
        manifest_say(item, " config.gradient_norm=1");
}

// The loaded file. It affects bits, step numbers and counters, so it must be the same on all ranks.
static void manifest_loaded(const struct lockstep_session *session, struct manifest_item *item)
{
    item->kind = MANIFEST_SESSION;
    text_copy(item->name, sizeof(item->name), MANIFEST_LOADED);
    text_copy(item->value, sizeof(item->value),
              session->training.loaded[0] == '\0' ? "checksum=none" : session->training.loaded);
}

// A cap that the module does not set is the session's, which has an item of its own.
static void manifest_cap(const char *key, uint64_t bytes, struct manifest_item *item)
{
    if (bytes > 0)
        manifest_say(item, " %s=%" PRIu64, key, bytes);
}

// A module of a group may have different indices on its members before they have compared it.
static uint32_t manifest_index(const struct lockstep_module *module)
{
    return module_is_grouped(module) ? 0 : module->index;
}

static void manifest_module(const struct lockstep_module *module, struct manifest_item *item)
{
    static const char *const policies[] = {"error", "warn", "accept"};
    static const char *const wires[] = {"same", "bfloat16", "float32"};
    item->kind = MANIFEST_MODULE;
    item->module = manifest_index(module);
    text_copy(item->name, sizeof(item->name), module->name);
    manifest_say(item,
                 "gradient_kind=%s unused=%s calls_per_step=%" PRIu32
                 " separate_calls=%d on_abort=%s wire=%s float16_exponent=%" PRId32,
                 module->gradient_kind == LOCKSTEP_GRADIENT_SUM ? "sum" : "mean",
                 policies[module->unused], module->calls_per_step, module->separate_calls,
                 module->on_abort == LOCKSTEP_ABORT_ACCEPT ? "accept" : "error",
                 wires[module->wire], module->float16_exponent);
    manifest_cap("bucket_first_bytes", module->caps.first_bytes, item);
    manifest_cap("bucket_bytes", module->caps.bytes, item);
    manifest_cap("bucket_last_bytes", module->caps.last_bytes, item);
}

// A parameter of the first replica. Further replicas are not compared: ranks may have different
// numbers of them.
static void manifest_parameter(const struct lockstep_module *module, uint32_t parameter,
                               struct manifest_item *item)
{
    const struct home *home = &module->homes[parameter];
    manifest_tensor(&module->parameters[parameter], MANIFEST_PARAMETER, manifest_index(module),
                    item);
    if (!home_is_own(module, parameter))
        manifest_say(item, " owner=module_%" PRIu32 "_parameter_%" PRIu32,
                     manifest_index(home->module), home->parameter);
}

void manifest_module_item(const struct lockstep_module *module, uint32_t index,
                          struct manifest_item *item)
{
    memset(item, 0, sizeof(*item));
    if (index == 0)
        manifest_module(module, item);
    else if (index <= module->parameter_count)
        manifest_parameter(module, index - 1, item);
    else
        manifest_tensor(&module->buffers[index - 1 - module->parameter_count], MANIFEST_BUFFER,
                        manifest_index(module), item);
}

bool module_manifest_item(const struct lockstep_session *session, uint32_t index,
                          struct manifest_item *item)
{
    memset(item, 0, sizeof(*item));
    if (index < LOCKSTEP_SESSION_ITEMS) {
        if (index == 0)
            manifest_session(session, item);
        else if (index == 1)
            manifest_policies(session, item);
        else
            manifest_loaded(session, item);
        return true;
    }
    index -= LOCKSTEP_SESSION_ITEMS;
    for (uint32_t m = 0; m < session->common_count; m++) {
        const uint32_t count = manifest_module_count(session->modules[m]);
        if (index < count) {
            manifest_module_item(session->modules[m], index, item);
            return true;
        }
        index -= count;
    }
    return false;
}

uint64_t module_manifest_hash(const struct lockstep_session *session)
{
    struct hash64 hash;
    struct manifest_item item;
    hash64_init(&hash, 0);
    for (uint32_t i = 0; module_manifest_item(session, i, &item); i++)
        hash64_update(&hash, &item, sizeof(item)); // The item was zeroed, so its padding is equal.
    return hash64_final(&hash);
}
