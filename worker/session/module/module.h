// SPDX-License-Identifier: Apache-2.0
//
// A module, its gradients, its calls and what one of them brings into a step. The files of this
// folder and of worker/api/ share these structs; who may touch which field is said beside it, in
// the words of worker/session/session.h.

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
struct ready_gate;

struct tensor {
    char *name; // Owned.
    enum dtype dtype;
    uint32_t dims;
    int64_t shape[LOCKSTEP_MAX_DIMS];
    int64_t strides[LOCKSTEP_MAX_DIMS];
    uint64_t elements;
    void *data; // Borrowed from the trainer.
    uint32_t flags; // Parameters: LOCKSTEP_PARAMETER_*. Buffers: the policy.
    bool ignored; // True if it matches an ignore pattern: declared, and never touched.
    bool on_device; // True if its value is in the memory of this rank's device.
    bool on_devices; // Buffers: true on all ranks that have a device; agreed by lockstep_start.
    uint64_t every; // Buffers with a policy that repeats: steps between two exchanges.
    uint32_t ready_count; // Parameters: reports of one replica in one call.
};

// The module and the number under which a parameter travels. A shared parameter travels under those
// of its owner, which may be an earlier parameter of the same module.
struct home {
    struct lockstep_module *module;
    uint32_t parameter;
};

// The reports of one gradient of one replica, over the calls of its module.
struct report {
    _Atomic(uint64_t) claim; // The last claim: see worker/session/module/claims.c.
    _Atomic(uint64_t) settled; // Claimed reports that are not in flight any more.
    atomic_bool used; // True if a call of this step reported it.
    // True if reports of the gradient look at worker/session/module/places.c: a place was given for
    // it, or one that overlaps its registered memory. The first replica's counts for all replicas.
    atomic_bool watched;
    uint32_t rest; // trainer; reports that the end of the last call has claimed.
};

// A gradient, one for each parameter in each contribution. A step here is a whole window of
// accumulation.
struct gradient {
    // For a shared parameter the fields of its owner's gradient count.
    void *registered; // Set at register, then constant. Its place when no other place is given.
    // trainer threads until the bucket is handed over, then driver
    _Atomic(void *) memory; // Borrowed; its place in this step. NULL: it has none.
    atomic_uint awaited; // Reports still to come, in the calls that hand it over.
    bool unused; // True if it contributes zeros to the open step. Set when it is handed over.
    bool excused; // trainer; true if a call of this step declared it unused.
    bool withdrawn; // trainer; true if its bucket contributed nothing. Set at step_end.
    atomic_bool used; // True if a call of this step reported it, of any replica or module.

    struct report report; // The first replica's.
};

// The gradient of a further replica.
struct replica_gradient {
    void *registered; // As in struct gradient.
    _Atomic(void *) memory;
    struct report report;
};

// The state of one bucket of the present layout in the open step.
struct bucket_run {
    atomic_uint missing; // Gradients that were not handed over in this step.
    bool withdrawn; // trainer; true if a call was given up: the bucket contributes nothing.

    // driver only; worker/engine/landing.c
    // True if all its work on this rank's device is enqueued, and the order core was not told.
    bool enqueued;
    bool told; // True if the order core takes the bucket for final, and it is not done yet.

    // driver only; worker/session/module/deferral.c
    bool put_off; // True if the bucket is deferred: what the call made of it counts later.
    bool decided; // True if the bucket travels in this step.
    bool taken; // True if it takes deferred gradients along.
    uint64_t taken_weight; // Its weight with those.

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
    atomic_bool handed; // True if its last call of the open step has ended.
    bool has_rest; // trainer; true if the end of the last call has claimed reports.
    bool withdrawn; // trainer; true if a bucket of it is withdrawn.
    bool returned; // trainer; true if lockstep_call_wait has returned its results in the open step.

    // driver while a step is open, trainer between steps
    struct bucket_run *runs; // [buckets of a layout]
    // The work of streams behind which results are written where nothing was reported: see
    // worker/session/module/device_events.h. Atomic; trainer threads set it while a step is open.
    struct device_behind behind;
    // [replicas][buckets of a layout]: see worker/session/module/device_events.h. NULL: this rank
    // has no device.
    struct ready_gate *gates;
    struct extent *extents; // [parameter_count]: in layout order.
    // NULL: no replica is on a device.
    struct collective_replica *copies; // [buckets of a layout][replicas]
    struct extent *copy_extents; // [replicas][parameter_count]: in layout order.
    uint64_t *unit_ends; // [parameter_count]: ends of gradients in their bucket, in layout order.
    uint64_t *used; // [parameter_count]: used bits of a bucket's gradients, from its first place.
    uint32_t announced; // Buckets that are ready and that the order core knows.
    uint32_t waits_held; // Waits that came before all buckets were announced.

    // [parameter_count]: true if a rank has used the parameter in the step. The trainer clears it
    // at step_begin, the driver sets it when a bucket is done, the trainer reads it after the step
    // has settled. In a solo session step_end sets it.
    bool *used_anywhere;

    // Order of readiness in the step; a learning step makes a layout of it.
    uint32_t *ready_order; // [parameter_count]
    atomic_uint ready_count;
};

struct lockstep_call {
    // set at register, then constant
    struct lockstep_module *module;
    struct contribution *contribution; // The contribution of its gradients.
    uint32_t number; // Counts the module's calls in the step, from 0.

    // trainer, before it opens the call; any thread while it is open
    uint64_t serial; // Counts all calls of the module, from 1.
    uint64_t step; // The step in which it was begun.
    bool last; // True if gradients travel with this call.
    bool ended;
    bool given_up; // True if lockstep_call_abort ended it.
    uint32_t gradients; // Gradients that are to be reported in it.
};

// A set of parameters of a module that are trained together, and how they are cut into buckets.
struct module_set {
    uint64_t hash; // Hash of the set; 0: free.
    uint64_t used; // Last step in which the set was in force; 0 in a set that was loaded.
    bool learned; // True if the layout was agreed; until then it follows the definition.
    struct bucket_layout layout;
};

// The sets of a module. Driver while a step is open, trainer between steps.
struct module_sets {
    struct module_set all[LOCKSTEP_MAX_SETS];
    struct module_set *set; // The set in force.
    struct bucket_layout next; // Agreed, in force from the next step.
    bool next_agreed;
    uint32_t next_words; // Layout words received so far.
    uint32_t *words; // [LAYOUT words of this module]: to and from the coordinator.
    uint32_t word_capacity;
};

// The state of a module's calls. trainer
struct module_calls {
    uint64_t called_step; // Last step with a call.
    uint64_t touched_step; // Last step with a call of a module that shares a parameter of it.
    uint32_t count; // Calls in the open step.
    uint64_t serial; // Serial of the last call.
    uint64_t window_serial; // Serial of the last call before the open window.
    uint64_t aborted_step; // Last step with a call that was given up.
    bool carries; // True if a bucket was deferred before the open step.
};

struct lockstep_module {
    // set at register, then constant
    struct lockstep_session *session;
    uint32_t index; // Place in session->modules; falls when a module before it is closed.
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
    bool separate_calls; // True if each call travels by itself.
    uint32_t replicas; // At least 1.
    void **replica_data; // [(replicas - 1) * parameter_count]: values of the further ones.
    struct device *devices[LOCKSTEP_MAX_REPLICAS]; // One for each replica; NULL: the host.
    struct home *homes; // [parameter_count]
    uint32_t
        *awaits; // [parameter_count]: reports that complete a gradient, from all that share it.
    uint32_t shared_count; // Parameters that another parameter owns, in this module or another.

    struct contribution *contributions; // [contribution_count]
    uint32_t contribution_count; // Calls of a step that travel.
    struct lockstep_call *calls; // [calls_per_step]
    _Atomic(uint64_t) open; // The open call, or 0: see worker/session/module/calls.h.

    struct module_calls made; // trainer
    bool *frozen; // [parameter_count]
    uint32_t *unused_in; // [parameter_count]: set of declared phases, by their bits.

    // driver while a step is open, trainer between steps
    struct stash *stash; // Made at start; NULL: no bucket is ever deferred.
    struct bucket_parameter *shapes; // [parameter_count]: what the layout is made from.
    uint32_t trainable_count; // Parameters in the layout.
    struct bucket_layout layout; // The layout of the set in force; the arrays are the set's.
    uint32_t *bucket_of; // [parameter_count]: bucket of each parameter in the layout.
    struct module_sets sets;

    // trainer
    void *gradient_memory; // From lockstep_module_gradients; NULL: none.
    size_t gradient_memory_bytes;
};

// A thread that waits for a contribution (worker/api/call_wait.c). On its stack.
struct call_waiter {
    struct list waiters; // guarded by session.mutex
    const struct contribution *contribution;
    // guarded by session.mutex
    bool leaves; // True if the thread only asks, or its time is over.
    bool answered;
    enum order_release answer;
};

// True if the parameter travels under its own name: it is not shared, or it is the owner.
static inline bool home_is_own(const struct lockstep_module *module, uint32_t parameter)
{
    const struct home *home = &module->homes[parameter];
    return home->module == module && home->parameter == parameter;
}

#endif
