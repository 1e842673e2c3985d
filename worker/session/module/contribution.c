// SPDX-License-Identifier: Apache-2.0
//
// The contribution of a module to a step. Each bucket of a travelling call is a collective over the
// gradients' own memory. worker/session/session.h says which threads touch which fields.

#include "worker/session/module/contribution.h"

#include "base/hash64.h"
#include "worker/kernels/kernels.h"
#include "worker/memory/units.h"
#include "worker/session/group.h"
#include "worker/session/module/deferral.h"
#include "worker/session/module/device_events.h"
#include "worker/session/module/leaves.h"
#include "worker/session/module/replicas.h"
#include "worker/session/module/spares.h"
#include "worker/session/session.h"
#include "worker/session/work.h"
#include "worker/session/world.h"

#include <stdlib.h>
#include <string.h>

// ---- Arrays ------------------------------------------------------------------------------------

uint32_t contribution_bucket_room(const struct lockstep_module *module)
{
    const uint32_t count = module->parameter_count == 0 ? 1 : module->parameter_count;
    return count < LOCKSTEP_MAX_BUCKETS ? count : LOCKSTEP_MAX_BUCKETS;
}

// Allocates the arrays for replicas on devices.
static bool contribution_init_copies(struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    if (module->replicas == 1 || !module->session->devices.first)
        return true;
    contribution->copies = calloc((size_t)contribution_bucket_room(module) * module->replicas,
                                  sizeof(*contribution->copies));
    contribution->copy_extents = calloc((size_t)(module->parameter_count + 1) * module->replicas,
                                        sizeof(*contribution->copy_extents));
    return contribution->copies && contribution->copy_extents;
}

static bool contribution_init_places(struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    const size_t count = (size_t)module->parameter_count * module->replicas;
    for (size_t i = 0; contribution->places && i < count; i++) {
        struct given_place *place = &contribution->places[i];
        place->contribution = contribution;
        place->parameter = (uint32_t)(i % module->parameter_count);
        place->replica = (uint32_t)(i / module->parameter_count);
        place->priority = hash64(&place, sizeof(place));
    }
    return contribution->places != NULL;
}

bool contribution_init(struct contribution *contribution, struct lockstep_module *module,
                       uint32_t index)
{
    // calloc(0) may be NULL; every array has at least one element.
    const uint32_t count = module->parameter_count == 0 ? 1 : module->parameter_count;
    contribution->module = module;
    contribution->index = index;
    contribution->gradients = calloc(count, sizeof(*contribution->gradients));
    contribution->replicas =
        calloc((size_t)count * (module->replicas - 1) + 1, sizeof(*contribution->replicas));
    contribution->places = calloc((size_t)count * module->replicas, sizeof(*contribution->places));
    contribution->runs = calloc(contribution_bucket_room(module), sizeof(*contribution->runs));
    contribution->extents = calloc(count, sizeof(*contribution->extents));
    contribution->unit_ends = calloc(count, sizeof(*contribution->unit_ends));
    contribution->used = calloc(count, sizeof(*contribution->used));
    contribution->used_anywhere = calloc(count, sizeof(*contribution->used_anywhere));
    contribution->weightless = calloc(count, sizeof(*contribution->weightless));
    if (module->session->config.gradient_norm)
        contribution->squares = calloc(count, sizeof(*contribution->squares));
    contribution->ready_order = calloc(count, sizeof(*contribution->ready_order));
    contribution->finished =
        calloc(contribution_bucket_room(module), sizeof(*contribution->finished));
    return device_events_init(contribution) && contribution_init_copies(contribution) &&
           contribution->gradients && contribution->replicas &&
           contribution_init_places(contribution) && contribution->runs && contribution->extents &&
           contribution->unit_ends && contribution->used && contribution->used_anywhere &&
           contribution->weightless &&
           (contribution->squares || !module->session->config.gradient_norm) &&
           contribution->ready_order && contribution->finished;
}

void contribution_fini(struct contribution *contribution)
{
    device_events_fini(contribution);
    free(contribution->gradients);
    free(contribution->replicas);
    free(contribution->places);
    free(contribution->runs);
    free(contribution->extents);
    free(contribution->copies);
    free(contribution->copy_extents);
    free(contribution->unit_ends);
    free(contribution->used);
    free(contribution->used_anywhere);
    free(contribution->weightless);
    free(contribution->squares);
    free(contribution->ready_order);
    free(contribution->finished);
}

// ---- Between steps -----------------------------------------------------------------------------

static void contribution_step_begin(struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    for (uint32_t b = 0; b < module->layout.bucket_count; b++) {
        atomic_store_explicit(&contribution->runs[b].missing, module->layout.buckets[b].count,
                              memory_order_relaxed);
        contribution->runs[b].withdrawn = false;
        contribution->runs[b].put_off = contribution->runs[b].decided = false;
        contribution->runs[b].taken = false;
        contribution->runs[b].enqueued = contribution->runs[b].told = false;
        contribution->runs[b].listed = false;
    }
    atomic_store_explicit(&contribution->ready_count, 0, memory_order_relaxed);
    memset(contribution->used_anywhere, 0,
           module->parameter_count * sizeof(*contribution->used_anywhere));
    if (atomic_load_explicit(&contribution->any_weightless, memory_order_relaxed))
        memset(contribution->weightless, 0,
               module->parameter_count * sizeof(*contribution->weightless));
    atomic_store_explicit(&contribution->any_weightless, false, memory_order_relaxed);
    if (contribution->squares)
        memset(contribution->squares, 0, module->parameter_count * sizeof(*contribution->squares));
    atomic_store_explicit(&contribution->handed, false, memory_order_relaxed);
    atomic_store_explicit(&contribution->behind.ready, NULL, memory_order_relaxed);
    contribution->withdrawn = contribution->returned = false;
    contribution->announced = contribution->waits_held = 0;
    atomic_store_explicit(&contribution->finished_count, 0, memory_order_relaxed);
    contribution->taken = 0;
    contribution->asked = false;
}

void module_step_begin(struct lockstep_module *module)
{
    for (uint32_t i = 0; i < module->contribution_count; i++)
        contribution_step_begin(&module->contributions[i]);
    module->made.count = 0;
    module->made.carries = deferral_waits(module);
    for (uint32_t i = 0; i < module->calls_per_step; i++)
        module->calls[i].ended = false;
}

static void contribution_window_begin(struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        struct gradient *gradient = &contribution->gradients[p];
        atomic_store_explicit(&gradient->memory, gradient->registered, memory_order_relaxed);
        atomic_store_explicit(&gradient->awaited, module->awaits[p], memory_order_relaxed);
        atomic_store_explicit(&gradient->used, false, memory_order_relaxed);
        atomic_store_explicit(&gradient->report.watched, false, memory_order_relaxed);
        atomic_store_explicit(&gradient->report.used, false, memory_order_relaxed);
        gradient->unused = gradient->excused = gradient->withdrawn = false;
    }
    for (uint32_t i = 0; i < (module->replicas - 1) * module->parameter_count; i++) {
        struct replica_gradient *replica = &contribution->replicas[i];
        atomic_store_explicit(&replica->memory, replica->registered, memory_order_relaxed);
        atomic_store_explicit(&replica->report.used, false, memory_order_relaxed);
    }
    device_events_window_begin(contribution);
}

void module_window_begin(struct lockstep_module *module)
{
    module->made.window_serial = module->made.serial;
    for (uint32_t i = 0; i < module->contribution_count; i++)
        contribution_window_begin(&module->contributions[i]);
}

void *contribution_place(const struct contribution *contribution, uint32_t parameter)
{
    void *memory = atomic_load(&contribution->gradients[parameter].memory);
    return memory ? memory : spares_place(contribution, parameter);
}

static bool contribution_has_memory(const struct contribution *contribution, uint32_t parameter)
{
    const struct lockstep_module *module = contribution->module;
    bool has = contribution_place(contribution, parameter) != NULL;
    for (uint32_t r = 1; r < module->replicas; r++)
        has = has && replica_gradient(contribution, r, parameter)->memory;
    return has;
}

bool contribution_lacks_memory(const struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        if (module->shapes[p].trainable && module->shapes[p].elements > 0 &&
            !contribution_has_memory(contribution, p))
            return true;
    }
    return false;
}

uint32_t contribution_homeless(const struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        // used_anywhere is complete: step_device_await has waited until the step has landed,
        // because a gradient has no memory.
        if (module->shapes[p].elements > 0 && !contribution_has_memory(contribution, p) &&
            contribution->used_anywhere[p])
            return p;
    }
    return module->parameter_count;
}

// ---- A bucket as a collective ------------------------------------------------------------------

// How a bucket is launched.
struct launch {
    const struct bucket *bucket;
    const struct bucket_run *run;
    bool zero; // True if this rank contributes nothing.
    bool held; // True if the result is held in the stash.
    uint32_t replica; // The replica whose memory is meant; LAUNCH_WHOLE: all replicas together.
};

#define LAUNCH_WHOLE UINT32_MAX

static bool contribution_uses(const struct contribution *contribution, const struct launch *launch,
                              uint32_t parameter)
{
    if (launch->zero)
        return false;
    if (launch->run->taken)
        return stash_taken(contribution->module->stash, parameter) != NULL;
    return !contribution->gradients[parameter].unused;
}

// The memory of the gradient that one replica has reported; NULL: the replica has not reported it.
static const void *contribution_of(const struct contribution *contribution, uint32_t replica,
                                   uint32_t parameter)
{
    const struct gradient *first = &contribution->gradients[parameter];
    const struct replica_gradient *further;
    if (replica == 0)
        return atomic_load(&first->report.used) ? atomic_load(&first->memory) : NULL;
    further = replica_gradient(contribution, replica, parameter);
    return atomic_load(&further->report.used) ? atomic_load(&further->memory) : NULL;
}

// The memory of the gradient in the first replica that has reported it. Used for replicas on
// devices, whose gradients the transport adds up.
static const void *contribution_of_any(const struct contribution *contribution, uint32_t parameter)
{
    const void *memory = NULL;
    for (uint32_t r = 0; r < contribution->module->replicas && !memory; r++)
        memory = contribution_of(contribution, r, parameter);
    return memory;
}

static const void *contribution_input(const struct contribution *contribution,
                                      const struct launch *launch, uint32_t parameter)
{
    if (!contribution_uses(contribution, launch, parameter))
        return NULL;
    if (launch->run->taken)
        return stash_taken(contribution->module->stash, parameter);
    if (launch->replica != LAUNCH_WHOLE)
        return contribution_of(contribution, launch->replica, parameter);
    if (contribution->copies && launch->bucket->device)
        return contribution_of_any(contribution, parameter);
    return contribution->gradients[parameter].memory;
}

static void *contribution_output(const struct contribution *contribution,
                                 const struct launch *launch, uint32_t parameter)
{
    if (launch->held)
        return stash_hold(contribution->module->stash, contribution->index, parameter);
    if (launch->replica != LAUNCH_WHOLE && launch->replica > 0)
        return replica_gradient(contribution, launch->replica, parameter)->memory;
    return contribution_place(contribution, parameter);
}

// True if `memory` follows directly after the `bytes` at `before`, or if both are NULL.
static bool contribution_goes_on(const void *before, size_t bytes, const void *memory)
{
    if (!before || !memory)
        return before == memory;
    return (const char *)before + bytes == memory;
}

// Fills in the extents of a bucket: one for each run of gradients that are adjacent in memory. An
// extent is reduced in place, unless it has deferred gradients or its result is held.
static uint32_t contribution_extents(const struct contribution *contribution,
                                     const struct launch *launch, struct extent *extents)
{
    const struct lockstep_module *module = contribution->module;
    const struct bucket *bucket = launch->bucket;
    const size_t size = dtype_size(bucket->dtype);
    uint32_t count = 0;
    for (uint32_t i = 0; i < bucket->count; i++) {
        const uint32_t parameter = module->layout.order[bucket->first + i];
        const uint64_t elements = module->shapes[parameter].elements;
        const void *in = contribution_input(contribution, launch, parameter);
        void *out = contribution_output(contribution, launch, parameter);
        struct extent *last = count > 0 ? &extents[count - 1] : NULL;
        if (elements == 0)
            continue;
        if (last && last->out && contribution_goes_on(last->out, last->elements * size, out) &&
            contribution_goes_on(last->in, last->elements * size, in))
            last->elements += elements;
        else
            extents[count++] = (struct extent){.in = in, .out = out, .elements = elements};
    }
    return count;
}

// Fills in the units of a bucket's collective: each gradient is a unit. The used bits of a bucket
// with n gradients have room for n words, which is more than they need.
static void contribution_units(struct contribution *contribution, const struct launch *launch)
{
    const struct lockstep_module *module = contribution->module;
    const struct bucket *bucket = launch->bucket;
    uint64_t *ends = &contribution->unit_ends[bucket->first];
    uint64_t *used = &contribution->used[bucket->first];
    uint64_t end = 0;
    memset(used, 0, units_words(bucket->count) * sizeof(*used));
    for (uint32_t i = 0; i < bucket->count; i++) {
        const uint32_t parameter = module->layout.order[bucket->first + i];
        end += module->shapes[parameter].elements;
        ends[i] = end;
        if (contribution_uses(contribution, launch, parameter))
            units_set_used(used, i);
    }
}

// Adds up the squares of a bucket's results, while they are in the caches. Each gradient lies in
// one extent. The places and the order of extents differ between ranks, the gradients do not.
static void contribution_square(struct contribution *contribution,
                                const struct collective *collective, const uint32_t *order)
{
    struct extent_cursor cursor = {.extent = collective->extents,
                                   .element_bytes = (uint32_t)dtype_size(collective->dtype)};
    uint64_t at = 0;
    for (uint32_t i = 0; i < collective->unit_count; i++) {
        const uint64_t elements = collective->unit_ends[i] - at;
        uint8_t *out = NULL;
        at = collective->unit_ends[i];
        if (elements == 0)
            continue;
        (void)extent_run(&cursor, EXTENT_OUT, elements * cursor.element_bytes, &out);
        // A gradient without memory here is E_UNUSED at the end of the step.
        if (units_is_used(collective->used, i) && out)
            contribution->squares[order[i]] = kernel_squares(collective->dtype, out, elements);
    }
}

double contribution_squares(const struct contribution *contribution)
{
    double sum = 0;
    for (uint32_t p = 0; p < contribution->module->parameter_count; p++)
        sum += contribution->squares[p];
    return sum;
}

void contribution_collective_done(struct contribution *contribution,
                                  const struct collective *collective)
{
    const uint32_t *order =
        contribution->module->layout.order + (collective->unit_ends - contribution->unit_ends);
    const bool has_mean = collective->weight_total > 0;
    bool *noted = has_mean ? contribution->used_anywhere : contribution->weightless;
    if (!has_mean)
        atomic_store_explicit(&contribution->any_weightless, true, memory_order_relaxed);
    for (uint32_t i = 0; i < collective->unit_count; i++) {
        if (units_is_used(collective->used, i))
            noted[order[i]] = true;
    }
    if (contribution->squares && has_mean)
        contribution_square(contribution, collective, order);
}

void contribution_clear(const struct contribution *contribution, uint32_t parameter)
{
    const struct lockstep_module *module = contribution->module;
    const struct bucket_parameter *shape = &module->shapes[parameter];
    for (uint32_t r = 0; r < module->replicas; r++) {
        void *memory = r == 0 ? atomic_load(&contribution->gradients[parameter].memory)
                              : atomic_load(&replica_gradient(contribution, r, parameter)->memory);
        if (memory)
            memset(memory, 0, shape->elements * dtype_size(shape->dtype));
    }
}

// Buckets on devices may not be done yet, so what the driver writes about them is not read.
void contribution_clear_weightless(const struct contribution *contribution)
{
    const struct lockstep_module *module = contribution->module;
    if (!atomic_load_explicit(&contribution->any_weightless, memory_order_relaxed))
        return;
    for (uint32_t p = 0; p < module->parameter_count; p++) {
        if (!module->shapes[p].device && contribution->weightless[p] &&
            !contribution->used_anywhere[p])
            contribution_clear(contribution, p);
    }
}

void contribution_wire(const struct lockstep_module *module, struct collective *collective)
{
    const enum dtype dtype = collective->dtype;
    if (module->wire == LOCKSTEP_WIRE_BFLOAT16 && dtype == DTYPE_FLOAT32)
        collective->partial = collective->final = DTYPE_BFLOAT16;
    else if (module->wire == LOCKSTEP_WIRE_FLOAT32 && dtype_is_small(dtype))
        collective->partial = DTYPE_FLOAT32;
    else if (dtype == DTYPE_FLOAT16)
        collective->exponent = module->float16_exponent;
}

// Fills in each replica's part of a bucket on devices.
static void contribution_replicas(const struct contribution *contribution,
                                  const struct launch *launch, uint32_t bucket,
                                  struct collective *collective)
{
    const struct lockstep_module *module = contribution->module;
    struct collective_replica *copies = &contribution->copies[bucket * module->replicas];
    for (uint32_t r = 0; r < module->replicas; r++) {
        struct extent *extents =
            &contribution->copy_extents[r * module->parameter_count + launch->bucket->first];
        struct launch one = *launch;
        one.replica = r;
        copies[r] = (struct collective_replica){
            .device = module->devices[r],
            .extents = extents,
            .extent_count = contribution_extents(contribution, &one, extents),
            .ready = device_events_of(contribution, r, bucket),
            .ready_count = LOCKSTEP_READY_STREAMS};
    }
    collective->replicas = copies;
    collective->replica_count = module->replicas;
    collective->replica_divisor =
        module->gradient_kind == LOCKSTEP_GRADIENT_MEAN ? module->replicas : 1;
}

// Fills in what a bucket on devices needs. On a rank without a device its memory is on the host.
static void contribution_on_devices(const struct contribution *contribution,
                                    const struct launch *launch, uint32_t bucket,
                                    struct collective *collective)
{
    const struct lockstep_module *module = contribution->module;
    collective->on_devices = launch->bucket->device;
    if (!collective->on_devices || !module->session->devices.first)
        return;
    collective->device = module->session->devices.first;
    collective->ready = device_events_of(contribution, 0, bucket);
    collective->ready_count = LOCKSTEP_READY_STREAMS;
    if (device_events_leaves_out(contribution, bucket))
        collective->behind = &contribution->behind;
    if (contribution->copies)
        contribution_replicas(contribution, launch, bucket, collective);
}

// Sets the weight of the bucket. A rank without data may keep its weight: then its zeros count.
// With deferred gradients it is the weight of all of them together, and the stash decides whether
// the input is a sum.
static void contribution_weigh(const struct contribution *contribution, const struct launch *launch,
                               struct collective *collective)
{
    const struct lockstep_module *module = contribution->module;
    const struct step *step = &module->session->step;
    collective->weight = launch->zero         ? (step->keeps_weight ? step->weight : 0)
                         : launch->run->taken ? launch->run->taken_weight
                                              : step->weight;
    collective->input_is_sum = launch->run->taken
                                   ? stash_gives_sums(module->stash, collective->dtype)
                                   : module->gradient_kind == LOCKSTEP_GRADIENT_SUM;
}

// The ways for the whole world, or the members of the module's group alone.
static void contribution_route(const struct lockstep_module *module, uint32_t algorithm,
                               struct collective *collective)
{
    const struct lockstep_group *group = module->grouped.group;
    if (module->leaves) {
        collective->algorithm = ALGORITHM_DIRECT;
    } else if (group && !group->whole) {
        collective->algorithm = ALGORITHM_DIRECT;
        collective->parts = &group->everyone;
    } else if (algorithm == ALGORITHM_BY_SIZE) {
        collective->algorithm = world_algorithm(module->session, collective);
    } else {
        collective->algorithm = (enum plan_algorithm)algorithm;
    }
}

struct collective *contribution_collective(struct contribution *contribution, uint32_t bucket,
                                           uint32_t algorithm, bool zero, bool held)
{
    const struct lockstep_module *module = contribution->module;
    struct bucket_run *run = &contribution->runs[bucket];
    const struct launch launch = {.bucket = &module->layout.buckets[bucket],
                                  .run = run,
                                  .zero = zero || run->withdrawn,
                                  .held = held,
                                  .replica = LAUNCH_WHOLE};
    const struct bucket *shape = launch.bucket;
    struct collective *collective = &run->collective;
    const uint64_t identity[] = {module->index, contribution->index, bucket,
                                 (uint64_t)module->gradient_kind};
    contribution_units(contribution, &launch);
    *collective = (struct collective){
        .kind = COLLECTIVE_ALLREDUCE,
        .dtype = shape->dtype,
        .op = REDUCE_MEAN,
        .extents = &contribution->extents[shape->first],
        .extent_count =
            contribution_extents(contribution, &launch, &contribution->extents[shape->first]),
        .elements = shape->elements,
        .unit_ends = &contribution->unit_ends[shape->first],
        .unit_count = shape->count,
        .used = &contribution->used[shape->first],
        .context = contribution,
    };
    contribution_weigh(contribution, &launch, collective);
    contribution_wire(module, collective);
    contribution_on_devices(contribution, &launch, bucket, collective);
    if (module->leaves)
        leaves_launch(contribution, bucket, launch.zero, collective);
    contribution_route(module, algorithm, collective);
    collective->signature = work_signature(collective) ^ hash64(identity, sizeof(identity));
    return collective;
}
