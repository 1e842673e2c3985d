// SPDX-License-Identifier: Apache-2.0
//
// What a module contributes to a step: its buckets as collectives over the gradients' own memory,
// and the layout that says which gradients these are. Who touches what stands in session.h.

#include "base/hash.h"
#include "worker/kernels.h"
#include "worker/session.h"
#include "worker/units.h"

#include <string.h>

void module_step_begin(struct lockstep_module *module)
{
    for (uint32_t b = 0; b < module->layout.bucket_count; b++)
        atomic_store_explicit(&module->runs[b].missing, module->layout.buckets[b].count,
                              memory_order_relaxed);
    atomic_store_explicit(&module->ready_count, 0, memory_order_relaxed);
    memset(module->used_anywhere, 0, module->parameter_count * sizeof(*module->used_anywhere));
    module->calls_made = 0;
    module->handed = false;
    for (uint32_t i = 0; i < module->calls_per_step; i++)
        module->calls[i].ended = false;
}

void module_forget_gradients(struct lockstep_module *module)
{
    for (uint32_t p = 0; p < module->parameter_count; p++)
        module->gradients[p].memory = module->gradients[p].registered;
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
