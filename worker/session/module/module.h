// SPDX-License-Identifier: Apache-2.0
//
// A module, its gradients, its calls, and the contribution of a call to a step. The files of this
// folder and of worker/api/ share these structs. The comment beside a field says which threads may
// touch it, in the words of worker/session/session.h.

#ifndef WORKER_SESSION_MODULE_MODULE_H
#define WORKER_SESSION_MODULE_MODULE_H

#include "base/list.h"
#include "worker/order/waits.h"
#include "worker/session/module/buckets.h"
#include "worker/session/module/stash.h"
#include "worker/transport/flow/collective.h"

#include <lockstep/lockstep.h>
#include <stdatomic.h>

struct device;
struct given_place;
struct leaves;
struct ready_gate;

struct tensor {
    char *name; // Owned.
    enum dtype dtype;
    enum dtype gradient_dtype; // Parameters: the dtype of the gradient; usually dtype.
    uint32_t dims;
    int64_t shape[LOCKSTEP_MAX_DIMS];
    int64_t strides[LOCKSTEP_MAX_DIMS];
    uint64_t elements;
    void *data; // Borrowed from the trainer.
    uint32_t flags; // Parameters: LOCKSTEP_PARAMETER_*. Buffers: the policy.
    bool ignored; // True if its name matches an ignore pattern: the library never touches it.
    bool on_device; // True if its value is in the memory of this rank's device.
    // Buffers: true if ranks with a device have it in device memory. lockstep_start agrees on it.
    bool on_devices;
    uint64_t every; // Buffers with the policy broadcast, mean or sum: exchanged each n-th step.
    uint32_t ready_count; // Parameters: reports that one replica makes in one call.
};

// The module and the index under which a parameter travels. A shared parameter travels under the
// module and index of its owner, which may be an earlier parameter of the same module.
struct home {
    struct lockstep_module *module;
    uint32_t parameter;
};

// The reports of one gradient of one replica, over the calls of its module.
struct report {
    _Atomic(uint64_t) claim; // The last claim: see worker/session/module/claims.c.
    _Atomic(uint64_t) settled; // Claimed reports that are settled: see claims.c.
    atomic_bool used; // True if a call of this step reported the gradient.
    // True if reports of the gradient have to check worker/session/module/places.c: memory was
    // given for it, or memory was given that overlaps its registered memory. The value of the first
    // replica counts for all replicas.
    atomic_bool watched;
    uint32_t rest; // trainer; reports that the end of the last call has claimed.
};

// A gradient, one for each parameter in each contribution. "Step" in these comments means a whole
// window of accumulation. For a shared parameter the fields of its owner's gradient count, but each
// of its names has claims of its own in `report`.
struct gradient {
    // Set at register, then constant. The gradient's memory unless a report gives other memory.
    void *registered;
    // trainer threads until the bucket is handed over, then driver
    _Atomic(void *) memory; // Borrowed; the gradient's memory in this step. NULL: it has none.
    atomic_uint awaited; // Reports still to come before the gradient is handed over.
    bool unused; // True if it contributes zeros to the open step. Set when it is handed over.
    bool excused; // trainer; true if a call of this step declared it unused.
    bool withdrawn; // trainer; true if its bucket contributed nothing. Set at step_end.
    // True if a call of this step reported the gradient, in any replica or in any module that
    // shares the parameter.
    atomic_bool used;

    struct report report; // Reports of the first replica.
};

// The gradient of a further replica.
struct replica_gradient {
    void *registered; // As in struct gradient.
    _Atomic(void *) memory;
    struct report report;
};

// The state of one bucket of the layout in force, in the open step.
struct bucket_run {
    atomic_uint missing; // Gradients of the bucket that were not handed over yet in this step.
    bool withdrawn; // trainer; true if the bucket contributes nothing, because a call was aborted.

    // driver only; worker/engine/landing.c
    // True if all work of the bucket on this rank's device is enqueued, and the order core does not
    // know it yet.
    bool enqueued;
    bool told; // True if the order core was told that the bucket is final, and it is not done yet.

    bool listed; // driver only; worker/engine/waits.c; true if the bucket is in finished[].

    // driver only; worker/session/module/deferral.c
    bool put_off; // True if the bucket is deferred: its gradients count in a later step.
    bool decided; // True if the bucket travels in this step.
    bool taken; // True if the bucket carries deferred gradients, too.
    uint64_t taken_weight; // The bucket's weight together with the deferred gradients.

    struct collective collective; // driver only
};

// The part of one travelling call of a module in a step: its gradients and its buckets. The layout
// that cuts gradients into buckets is the module's.
struct contribution {
    // set at register, then constant
    struct lockstep_module *module;
    uint32_t index; // The number of the call in the names of its slots.

    struct gradient *gradients; // [parameter_count]
    struct replica_gradient *replicas; // [(replicas - 1) * parameter_count], replica by replica.
    struct given_place *places; // [replicas * parameter_count], replica by replica.
    atomic_bool handed; // True if the last call of this contribution has ended in the open step.
    bool has_rest; // trainer; true if the end of the last call has claimed reports.
    bool withdrawn; // trainer; true if a bucket of this contribution is withdrawn.
    bool returned; // trainer; true if lockstep_call_wait has returned its results in the open step.

    // driver while a step is open, trainer between steps
    struct bucket_run *runs; // [buckets of a layout]
    // Results of gradients that were not reported are written after this work of streams: see
    // worker/session/module/device_events.h. Atomic; trainer threads set it while a step is open.
    struct device_behind behind;
    // [replicas][buckets of a layout]: see worker/session/module/device_events.h. NULL: this rank
    // has no device.
    struct ready_gate *gates;
    struct extent *extents; // [parameter_count]: in layout order.
    // NULL: no replica is on a device.
    struct collective_replica *copies; // [buckets of a layout][replicas]
    struct extent *copy_extents; // [replicas][parameter_count]: in layout order.
    // [parameter_count]: where each gradient ends in its bucket, in elements; in layout order.
    uint64_t *unit_ends;
    // [parameter_count]: bits for used gradients. Those of a bucket begin at the position of its
    // first gradient in the layout.
    uint64_t *used;
    // [buckets of a layout]: buckets whose results are in user memory, in the order in which they
    // came. The driver writes an element, then the count.
    uint32_t *finished;
    atomic_uint finished_count;
    uint32_t taken; // Of these, those that lockstep_call_next has returned. Guarded by the mutex.
    bool asked; // True if lockstep_call_next has waited in the open step. Guarded by the mutex.
    atomic_uint takers; // Threads in lockstep_call_next that wait for a bucket.
    uint32_t announced; // Buckets of which the order core knows that they are ready.
    uint32_t waits_held; // Waits that the order core is not told before all buckets are announced.

    // [parameter_count]: true if a rank has used the parameter in the step. The trainer clears it
    // at step_begin, the driver sets it when a bucket is done, the trainer reads it after the step
    // has settled. In a solo session step_end sets it.
    bool *used_anywhere;
    // [parameter_count]: true if ranks used the parameter in the step, but no rank that contributed
    // to its bucket has a weight, so that there is no mean. Written and read as used_anywhere.
    bool *weightless;
    atomic_bool any_weightless;

    // [parameter_count]: the sum of the squares of each gradient's elements, 0 if no rank used it.
    // Written and read as used_anywhere. NULL without config.gradient_norm.
    double *squares;

    // Parameters in the order in which they became ready in the step. A learning step derives a
    // layout from it.
    uint32_t *ready_order; // [parameter_count]
    atomic_uint ready_count;
};

struct lockstep_call {
    // set at register, then constant
    struct lockstep_module *module;
    struct contribution *contribution; // The contribution in which its gradients travel.
    uint32_t number; // Counts the module's calls in the step, from 0.

    // trainer, before it opens the call; any thread while it is open
    uint64_t serial; // Counts all calls of the module, from 1.
    uint64_t step; // The step in which the call was begun.
    bool last; // True if gradients travel with this call.
    bool ended;
    bool given_up; // True if lockstep_call_abort ended it.
    uint32_t gradients; // Gradients that are to be reported in the call.
};

// A set of parameters of a module that are trained together, and how they are cut into buckets.
struct module_set {
    uint64_t hash; // Hash of the set; 0: this entry is free.
    uint64_t used; // Last step in which the set was in force; 0 in a set that was loaded.
    bool learned; // True if all ranks agreed on the layout. Before, it follows the definition.
    struct bucket_layout layout;
};

// The sets of a module. Driver while a step is open, trainer between steps.
struct module_sets {
    struct module_set all[LOCKSTEP_MAX_SETS];
    struct module_set *set; // The set in force.
    struct bucket_layout next; // The layout that comes into force with the next step.
    bool next_agreed;
    uint32_t next_words; // Layout words received so far.
    uint32_t *words; // [word_capacity]: a layout as it travels to or from the coordinator.
    uint32_t word_capacity;
};

// The state of a module's calls. trainer
struct module_calls {
    uint64_t called_step; // Last step with a call.
    uint64_t touched_step; // Last step with a call of a module that shares a parameter of this one.
    uint32_t count; // Calls in the open step.
    uint64_t serial; // Serial of the last call.
    uint64_t window_serial; // Serial of the last call before the open window.
    uint64_t aborted_step; // Last step with an aborted call.
    bool missed; // True if the log has said that only other ranks called the module in a step.
    bool carries; // True if gradients of earlier steps were deferred and have not travelled yet.
};

// Memory for means that have no other place: worker/session/module/spares.h. Set at register, then
// constant.
struct module_spares {
    bool wanted; // The module's means_on_demand.
    char *memory; // One part for each contribution. NULL: none.
    size_t stride; // Bytes of a part.
    size_t *at; // [parameter_count]: where each gradient lies in its part.
};

// A module that only the members of a group have. Modules have the same index on all ranks, so a
// rank that is no member has an *absent* module in its place: one without tensors and handles.
// worker/api/grouped.c makes it in lockstep_start. All zero: all ranks have the module.
struct grouped {
    struct lockstep_group *group; // NULL also in an absent module.
    char name[LOCKSTEP_GROUP_NAME_BYTES]; // The group's name; "": all ranks have the module.
    bool absent;
    // Of an absent module: what the members have.
    uint32_t parameters;
    uint32_t buckets; // In the layout in force.
    uint32_t next_buckets; // In the layout that comes into force with the next step.
};

struct lockstep_module {
    // set at register, then constant
    struct lockstep_session *session;
    uint32_t index; // Index in session->modules. Other modules that come or go may change it.
    struct grouped grouped;
    char *name; // Owned.
    struct tensor *parameters;
    uint32_t parameter_count;
    struct tensor *buffers;
    uint32_t buffer_count;
    lockstep_gradient_kind gradient_kind;
    lockstep_unused_policy unused;
    lockstep_abort_policy on_abort;
    uint32_t calls_per_step;
    lockstep_wire wire;
    int32_t float16_exponent;
    struct bucket_caps caps; // 0: the session's.
    bool separate_calls; // True if each call travels by itself.
    uint32_t replicas; // At least 1.
    void **replica_data; // [(replicas - 1) * parameter_count]: values of the further replicas.
    struct device *devices[LOCKSTEP_MAX_REPLICAS]; // One for each replica; NULL: the host.
    struct home *homes; // [parameter_count]
    uint32_t
        *awaits; // [parameter_count]: reports that complete a gradient, from all that share it.
    uint32_t shared_count; // Parameters that another parameter owns, in this module or another.

    struct contribution *contributions; // [contribution_count]
    uint32_t contribution_count; // Calls of a step with which gradients travel.
    struct lockstep_call *calls; // [calls_per_step]
    _Atomic(uint64_t) open; // The open call, or 0: see worker/session/module/calls.h.

    struct module_calls made; // trainer
    bool *frozen; // [parameter_count]
    uint32_t *unused_in; // [parameter_count]: bit i is set if it is unused in declared phase i.

    // driver while a step is open, trainer between steps
    struct stash *stash; // Made at start; NULL: no bucket is ever deferred.
    struct leaves *leaves; // Made at start; NULL: no config.virtual_ranks.
    struct bucket_parameter *shapes; // [parameter_count]: what the layout is made from.
    uint32_t trainable_count; // Parameters in the layout.
    struct bucket_layout layout; // The layout of the set in force; the arrays are the set's.
    uint32_t *bucket_of; // [parameter_count]: bucket of each parameter in the layout.
    struct module_sets sets;

    // trainer
    void *gradient_memory; // From lockstep_module_gradients; NULL: none.
    size_t gradient_memory_bytes;

    struct module_spares spares;
};

// A thread that waits for a contribution, or for a bucket of it (worker/api/call_wait.c). On its
// stack.
struct call_waiter {
    struct list waiters; // guarded by session.mutex
    const struct contribution *contribution;
    bool takes; // True if the thread waits for a bucket.
    bool asks; // True if the thread asks whether the results are there, and does not wait.
    // guarded by session.mutex
    bool leaves; // True if the thread only asks, or its timeout is over.
    bool stirred; // True if it is answered, or if it waits for a bucket and one is there.
    bool answered;
    enum order_release answer;
};

static inline bool module_is_grouped(const struct lockstep_module *module)
{
    return module->grouped.name[0] != '\0';
}

// True if the parameter travels under its own name: it is not shared, or it is the owner.
static inline bool home_is_own(const struct lockstep_module *module, uint32_t parameter)
{
    const struct home *home = &module->homes[parameter];
    return home->module == module && home->parameter == parameter;
}

#endif
