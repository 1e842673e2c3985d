// SPDX-License-Identifier: Apache-2.0
//
// The session and what hangs on it: the internal structures of the library, shared by its files.
// Who may touch which field is said beside it; docs/internals/threading.md has the whole picture:
//
//   trainer   the thread(s) of the program that calls the public functions
//   driver    whoever has the right to drive (drive.h): owns the transport, the order core, every
//             collective. The engine thread, one a session, or a trainer inside a call that blocks
//   control   one thread a session, inside worker/control/grpc.c: moves control messages
//
// Lock order: session.mutex is a leaf; nothing else is locked while it is held, and no callback of
// the user runs under it.

#ifndef WORKER_SESSION_SESSION_H
#define WORKER_SESSION_SESSION_H

#include "base/log.h"
#include "base/mutex.h"
#include "base/ring_buffer.h"
#include "base/thread.h"
#include "worker/control/control.h"
#include "worker/memory/arenas.h"
#include "worker/memory/regions.h"
#include "worker/order/order.h"
#include "worker/session/await.h"
#include "worker/session/command.h"
#include "worker/session/counters.h"
#include "worker/session/drive.h"
#include "worker/session/gate.h"
#include "worker/session/losses.h"
#include "worker/session/module/buckets.h"
#include "worker/session/module/stash.h"
#include "worker/session/work.h"
#include "worker/support/callers.h"
#include "worker/support/config.h"
#include "worker/transport/transport.h"
#include "worker/watch/progress.h"
#include "worker/watch/trace.h"

#include <lockstep/lockstep.h>
#include <stdatomic.h>
#include <stdio.h>

// ---- Modules -----------------------------------------------------------------------------------

struct tensor {
    char *name; // Owned.
    enum dtype dtype;
    uint32_t dims;
    int64_t shape[LOCKSTEP_MAX_DIMS];
    int64_t strides[LOCKSTEP_MAX_DIMS];
    uint64_t elements;
    void *data; // Borrowed from the trainer.
    uint32_t flags; // Parameters: LOCKSTEP_PARAMETER_*. Buffers: the policy.
    bool ignored; // Matches a pattern of its module: declared, and never touched.
    bool on_device; // Its value is in the memory of this rank's device.
    bool on_devices; // Buffers: agreed by lockstep_start: it is so on all ranks that have one.
    uint64_t every; // Buffers with a policy that repeats: steps between two exchanges.
    uint32_t ready_count; // Parameters: reports of one replica in one call.
};

// Under which module and number a parameter travels: its own, or, shared, those of its owner, which
// may be an earlier parameter of the same module.
struct home {
    struct lockstep_module *module;
    uint32_t parameter;
};

// What the calls of a module say of one gradient, of one replica.
struct report {
    _Atomic(uint64_t) claim; // Who spoke for it last: see worker/session/module/claims.c.
    _Atomic(uint64_t) settled; // How many of the claimed reports are not in flight any more.
    atomic_bool used; // A call of this step reported it.
    // True if reports of the gradient look at worker/session/module/places.c: a place was given for
    // it, or one that overlaps its registered memory. That of the first replica counts for all.
    atomic_bool watched;
    uint32_t rest; // trainer; reports that the end of the last call has claimed.
};

// A gradient, one for each parameter in each contribution. A step here is a whole window of
// accumulation.
struct gradient {
    // Of a shared parameter these are those of its owner.
    void *registered; // Set at register, then constant. Where it is when no other place is given.
    // trainer threads until the bucket is handed over, then driver
    _Atomic(void *) memory; // Borrowed; where it is in this step. NULL: nowhere.
    atomic_uint awaited; // Reports that are not there, in the calls that hand it over.
    bool unused; // Of the open step: contributes zeros. Set when it is handed over.
    bool excused; // trainer; a call of this step declared it unused.
    bool withdrawn; // trainer; its bucket contributed nothing. Set at step_end.
    atomic_bool used; // A call of this step reported it, of whatever replica or module.

    struct report report; // Of the first replica.
};

// The memory of a gradient that was given with a report. A node of the tree of
// worker/session/module/places.c. guarded by places_mutex
struct given_place {
    struct given_place *before; // Subtrees; no two places in the tree overlap.
    struct given_place *behind;
    uintptr_t begin;
    uintptr_t end;
    uint64_t window; // It is in the tree while this is the session's.
    uint64_t priority; // set at register, then constant
    struct home by; // The name under which it was given.
    struct contribution *contribution; // That the gradient travels in, ...
    uint32_t parameter; // ... with its number there ...
    uint32_t replica; // ... and its replica.
};

enum overlap_kind {
    OVERLAP_DATA = 0,
    OVERLAP_GRADIENT,
    OVERLAP_BUFFER,
};

// The registered memory of one tensor.
struct overlap_place {
    uintptr_t begin;
    uintptr_t end;
    const struct lockstep_module *module;
    uint32_t index; // Of the parameter or buffer.
    uint32_t replica;
    enum overlap_kind kind;
};

// The gradient of a further replica.
struct replica_gradient {
    void *registered; // As of the first one.
    _Atomic(void *) memory;
    struct report report;
};

// What is in flight for one bucket of the present layout.
struct bucket_run {
    atomic_uint missing; // Gradients that were not handed over in this step.
    bool withdrawn; // trainer; a call was given up: contributes nothing.

    // driver only; worker/engine/landing.c
    bool enqueued; // All that it does on this rank's device is, and the order core does not know.
    bool told; // It does, and takes the bucket for final; it is not done yet.

    // driver only; worker/session/module/deferral.c
    bool put_off; // What the call has made of it counts later.
    bool decided; // It does not, and takes what was put off ...
    bool taken; // ... where that can be; ...
    uint64_t taken_weight; // ... and has this weight.

    struct collective collective; // driver only
};

// What one travelling call of a module brings into a step: its gradients, and what is in flight for
// them. The layout that cuts them into buckets is the module's.
struct contribution {
    // set at register, then constant
    struct lockstep_module *module;
    uint32_t index; // The call of its slots.

    struct gradient *gradients; // [parameter_count]
    struct replica_gradient *replicas; // [(replicas - 1) * parameter_count], replica by replica.
    struct given_place *places; // [replicas * parameter_count], replica by replica.
    atomic_bool handed; // Its last call of the open step has ended.
    bool has_rest; // trainer; the end of the last call has claimed reports.
    bool withdrawn; // trainer; some of its buckets are.
    bool returned; // trainer; lockstep_call_wait has given back its results in the open step.

    // driver while a step is open, trainer between steps
    struct bucket_run *runs; // [buckets of a layout]
    // What results come behind where nothing was reported: see
    // worker/session/module/device_events.h. Atomic; trainer threads say it while a step is open.
    struct device_behind behind;
    // [replicas][buckets of a layout]: see worker/session/module/device_events.h. NULL: this rank
    // has no device.
    struct ready_gate *gates;
    struct extent *extents; // [parameter_count]: in layout order.
    // With replicas on devices; else NULL.
    struct collective_replica *copies; // [buckets of a layout][replicas]
    struct extent *copy_extents; // [replicas][parameter_count]: in layout order.
    uint64_t *unit_ends; // [parameter_count]: of the gradients in their bucket, in layout order.
    uint64_t *used; // [parameter_count]: used bits of a bucket's gradients, from its first place.
    uint32_t announced; // Buckets of which the order core knows that they are ready.
    uint32_t waits_held; // Waits that have come before that was all of them.

    // [parameter_count]: some rank has used the parameter in the step. The trainer clears it at
    // step_begin, the driver sets it when a bucket is done, the trainer reads it after the step has
    // settled. In a solo session step_end sets it.
    bool *used_anywhere;

    // Order of readiness in the step; a learning step makes a layout of it.
    uint32_t *ready_order; // [parameter_count]
    atomic_uint ready_count;
};

struct lockstep_call {
    // set at register, then constant
    struct lockstep_module *module;
    struct contribution *contribution; // That its gradients belong to.
    uint32_t number; // Of the module in the step, from 0.

    // trainer, before it opens the call; any thread while it is open
    uint64_t serial; // Of all calls of the module, from 1.
    uint64_t step; // That it was begun in.
    bool last; // Gradients travel with this one.
    bool ended;
    bool given_up; // By lockstep_call_abort.
    uint32_t gradients; // That are to be reported in it.
};

// A set of parameters of a module that are trained together, and how they are cut into buckets.
struct module_set {
    uint64_t hash; // Of the set; 0: free.
    uint64_t used; // Last step in which it was in force; 0 in a set that was loaded.
    bool learned; // The layout was agreed; until then it follows the definition.
    struct bucket_layout layout;
};

struct lockstep_module {
    // set at register, then constant
    struct lockstep_session *session;
    uint32_t index; // In session->modules; lower when one before it was closed.
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
    bool separate_calls; // Each travels by itself.
    uint32_t replicas; // At least 1.
    void **replica_data; // [(replicas - 1) * parameter_count]: values of the further ones.
    struct device *devices[LOCKSTEP_MAX_REPLICAS]; // Of each replica; NULL: it is on the host.
    struct home *homes; // [parameter_count]
    uint32_t *awaits; // [parameter_count]: reports that complete a gradient, of all that share it.
    uint32_t shared_count; // Parameters that another one owns, of this module or of another.

    struct contribution *contributions; // [contribution_count]
    uint32_t contribution_count; // Calls of a step that travel.
    struct lockstep_call *calls; // [calls_per_step]
    _Atomic(uint64_t) open; // The call under way, or 0: see worker/session/module/claims.h.

    // trainer
    uint64_t called_step; // Last step with a call.
    uint64_t touched_step; // Last step with a call of a module that shares a parameter of it.
    uint32_t calls_made; // In the open step.
    uint64_t serial; // Of the last call.
    uint64_t window_serial; // Of the last call before the open window.
    uint64_t aborted_step; // Last step with a call that was given up.
    bool carries; // Something was put off before the open step.
    bool *frozen; // [parameter_count]
    uint32_t *unused_in; // [parameter_count]: set of declared phases, by their bits.

    // driver while a step is open, trainer between steps
    struct stash *stash; // Made at start; NULL: nothing is ever put off.
    struct bucket_parameter *shapes; // [parameter_count]: what the layout is made from.
    uint32_t trainable_count; // In the layout.
    struct module_set sets[LOCKSTEP_MAX_SETS];
    struct module_set *set; // In force.
    struct bucket_layout layout; // Its layout; the arrays are the set's.
    struct bucket_layout next; // Agreed, in force from the next step.
    bool next_agreed;
    uint32_t next_words; // Layout words received so far.
    uint32_t *bucket_of; // [parameter_count]: bucket of each parameter in the layout.
    uint32_t *words; // [LAYOUT words of this module]: to and from the coordinator.
    uint32_t word_capacity;

    // trainer
    void *gradient_memory; // From lockstep_module_gradients; NULL: none.
    size_t gradient_memory_bytes;
};

// A thread that waits for a contribution (worker/api/call_wait.c). On its stack.
struct call_waiter {
    struct list waiters; // guarded by session.mutex
    const struct contribution *contribution;
    // guarded by session.mutex
    bool leaves; // It only asks, or its time is over.
    bool answered;
    enum order_release answer;
};

// ---- Buffers
// -------------------------------------------------------------------------------------

// Buffers of one policy and dtype, which are made equal by one collective.
struct buffer_group {
    // set at start, then constant
    lockstep_buffer_policy policy;
    enum dtype dtype;
    bool on_devices; // On the ranks that have one.
    const struct tensor **tensors; // [count], in manifest order.
    struct extent *extents; // [count]: of those that are due. driver while in flight
    uint32_t count;
    struct lockstep_work *work; // Its own, so that no trainer can use it up.

    bool in_flight; // trainer
    struct device_ready ready; // trainer; of the stream by which the step ends, ...
    struct device *ready_device; // ... which is one of this device.
};

// Memory given by lockstep_alloc.
struct memory_block {
    struct memory_block *next;
    void *memory;
    size_t bytes;
};

#define SESSION_INBOX 8192

// What a step header says for people: the phase's name with its NUL, and one bit for every
// parameter of the session that is trained in the step.
struct step_note {
    uint64_t step;
    uint32_t count; // Of bytes.
    uint8_t bytes[LOCKSTEP_NOTE_BYTES];
};

// A phase in which parameters are declared unused.
struct declared_phase {
    char name[LOCKSTEP_NAME_BYTES];
};

// Times of the step under way, in clock_now_us; 0: not yet.
struct step_times {
    uint64_t begin; // trainer
    _Atomic(uint64_t) first_ready; // The last one is in struct progress.
    uint64_t end; // Guarded by the session's mutex.

    // driver, read by the trainer after the step settled
    uint64_t first_sent;
    uint64_t last_received;
    uint32_t in_flight; // Buckets on their way ...
    uint64_t in_flight_since; // ... and since when there is one.
    uint64_t in_flight_us; // Spans: how long there was one, ...
    uint64_t overlap_us; // ... and of that, before `end`.
};

struct lockstep_session {
    // set at open, then constant
    struct config config;
    struct log log;
    struct uuid uuid;
    char address[LOCKSTEP_ADDRESS_BYTES]; // Of the data plane.
    struct control *control; // NULL in a solo session.
    struct transport *transport; // NULL in a solo session.
    struct device *device; // This rank's GPU, the first of several; NULL: none.
    struct device *devices[LOCKSTEP_MAX_OWN_DEVICES]; // All of them, ...
    uint32_t own_devices; // ... so many.
    char
        device_problem[LOCKSTEP_NAME_BYTES]; // Why it has not the one it was told to have; else "".
    struct thread engine;
    bool engine_runs;
    struct lockstep_session *next_telling; // guarded by the list of exit.c
    struct lockstep_session *next_open; // guarded by the list of open sessions (fork.c)
    struct trace trace; // What it holds is atomic.
    struct progress *progress; // In it.
    struct tracker tracker; // Of the trainer.
    struct watch *watch; // NULL in a solo session.

    // set when the generation formed, then constant
    struct generation_id generation;
    uint32_t rank;
    uint32_t world_size;
    uint32_t chunk_bytes;
    uint32_t hosts; // Of struct locality.
    uint32_t device_count; // Ranks with a device.
    struct tuning tuning; // Before the first lockstep_start what was loaded takes its place.
    uint32_t peer_count;
    struct peer peers[LOCKSTEP_MAX_NEIGHBOURS];

    // trainer; the driver reads them while a step is open or lockstep_start has not been answered
    struct lockstep_module *modules[LOCKSTEP_MAX_MODULES];
    uint32_t module_count;
    uint32_t tensor_count; // Parameters and buffers of all modules.
    uint64_t manifest_hash;

    // trainer
    bool started; // And no module was closed since.
    uint64_t starts; // Calls of lockstep_start that have asked the other ranks.
    uint64_t openings; // The last step whose open wave this rank has joined.
    bool step_open;
    bool accumulating; // The open step is not the last of its window.
    bool window_open; // The next step belongs to the window of the one before.
    bool ending; // The open step is in its end: see lockstep_step_wait.
    bool exhausted; // This rank has said that it has no data any more.
    bool finished; // All ranks know that there is no next step.
    bool learning; // The open step is.
    uint64_t step; // Of all steps of a window.
    uint64_t weight;
    char phase[LOCKSTEP_NAME_BYTES];
    struct lockstep_report report;
    struct step_times times;
    struct buffer_group groups[LOCKSTEP_MAX_BUFFER_GROUPS];
    uint32_t group_count;
    const struct tensor **group_tensors; // What the groups point into.
    struct extent *group_extents;
    struct regions *regions; // Set at open; what is given is taken from them. NULL: private pages.
    struct arenas arenas; // Of them.
    struct memory_block *allocations;
    uint32_t allocation_count;
    struct declared_phase declared[LOCKSTEP_MAX_PHASES];
    uint32_t declared_count;
    uint32_t view; // Of the open step: 1 + the declared phase that it is in, or 0.
    bool sets_changed; // What is trained is to be found out again.
    bool moved; // Memory of some tensor; that none overlap is to be looked at again.
    uint64_t set_hash; // Of what all modules train.
    uint8_t trained[LOCKSTEP_MAX_PARAMETERS / 8]; // The same as bits, module after module.
    uint32_t trained_bytes; // In use.
    char loaded[LOCKSTEP_MARK_BYTES]; // What was loaded, for the manifest.
    // What streams of its devices had been given at lockstep_step_end, and at lockstep_call_wait.
    // Any thread; see worker/session/module/device_events.h.
    struct device_ready end_ready[LOCKSTEP_MAX_OWN_DEVICES];
    struct device_ready wait_ready[LOCKSTEP_MAX_OWN_DEVICES];
    bool has_loaded_tuning; // Of a world of this size.
    uint64_t loaded_doubling_bytes;
    uint64_t loaded_halving_bytes;

    // driver only
    struct order *order;
    char engine_phase[LOCKSTEP_NAME_BYTES]; // Of the open step, for texts.
    struct step_note heard[2]; // Of the predecessor, by step modulo 2.
    bool linked; // All links stand.
    bool stop;
    bool leave;
    bool over; // Failed: nothing is launched any more.
    bool over_abruptly; // A rank is lost: no device waits for the others.
    bool let_go; // And have ended; the failure is known to all threads.
    int over_status;
    char over_text[LOCKSTEP_REPORT_BYTES];
    bool starting; // lockstep_start has sent its message, and not been answered.
    uint32_t plain_in_flight; // Collectives.
    bool by_stream; // Of the open step, which the trainer has ended: enqueued counts as final.
    bool any_enqueued; // Some bucket_run is.
    uint32_t unlanded; // Collectives that the order core takes for final and that are not done.
    uint64_t
        room[LOCKSTEP_WINDOW]; // Bytes of buckets that the device has pools for, largest first,
    uint32_t room_members; // ... and extents and units of each; ...
    uint32_t room_rows; // ... and how many rows of replicas to each.
    uint32_t room_late_rows; // The same of what comes back after it was put aside.
    uint32_t buffers_in_flight; // Of these: of groups of buffers ...
    bool commit_held; // ... for which the commit wave waits.
    bool left_held; // A verdict waits until no plain collective is in flight.
    uint32_t waits; // Of which the order core knows.
    uint64_t halt_deadline_ms; // Without a coordinator they go on so long; 0: for ever.
    uint64_t verdict_deadline_ms; // A peer was lost; the coordinator's sentence is waited for.
    char abort_text[LOCKSTEP_TEXT_BYTES]; // This rank gave up; empty: it did not.
    int abort_status; // What its trainer is told then.
    bool control_gone;
    char control_text[LOCKSTEP_TEXT_BYTES];
    struct down_halt lost_here; // What this rank saw, used when no verdict comes.
    struct losses losses; // Ranks that are gone, as far as this one has seen or was told.
    struct farewell left_seen; // A rank that left and was needed; used when no verdict comes.
    struct wave_bounds wave_bounds; // Of the open step.
    struct wave open_wave;
    struct wave close_wave;
    struct wave commit_wave;
    uint64_t step_bytes_sent; // As of the beginning of the step.
    uint64_t step_bytes_received;
    uint64_t step_bytes_copied;

    // guarded by mutex
    struct mutex mutex;
    struct drive drive;
    struct ring_buffer inbox;
    struct list call_waiters; // struct call_waiter, in the order in which they came.
    bool formed;
    bool verified; // The present lockstep_start, or the last one.
    bool reserved; // COMMAND_RESERVE was carried out, since it was given last.
    bool landed; // Nothing is unlanded.
    uint64_t opened; // Step whose open wave is complete.
    struct open_wave opening; // What this rank says in it, then what all say.
    uint64_t settled; // Step.
    int failure; // 0, or the status that every call returns.
    char failure_text[LOCKSTEP_REPORT_BYTES];
    struct lockstep_work *work; // [SESSION_MAX_WORK]
    struct lent_range lent[LOCKSTEP_MAX_PLAIN]; // [lent_count], ...
    struct lockstep_work *lent_to[LOCKSTEP_MAX_PLAIN]; // ... of these.
    uint32_t lent_count;
    struct lockstep_work *free_work; // The trainer's, the one that was free last first.
    uint32_t works_taken; // Of the trainer's: not free.
    const struct standing *standing; // What the trainer is blocked in; NULL: nothing to be told.
    uint64_t standing_number; // Of its waits, counted.
    uint32_t blocked_threads; // Inside calls that block.
    bool several_block; // Once more than one thread was, or one began a collective meanwhile.
    const struct lockstep_work *awaited; // That a call waits for, or NULL; of several the last.
    struct name_use *names; // [SESSION_MAX_NAMES]
    struct plain_form form;
    struct counter counters[LOCKSTEP_MAX_COUNTERS];
    bool counter_overflow;
    struct commit_wave contribution; // Filled at step_end, taken by the driver at the commit.
    struct commit_wave outcome; // Of the last settled step.

    // guarded by places_mutex, a leaf
    struct mutex places_mutex;
    struct given_place *given; // The root of the tree of worker/session/module/places.c, or NULL.
    uint64_t window; // Counts windows, from 1.
    struct overlap_place *known; // [known_count]: sorted by where they begin. Owned.
    size_t known_count;

    // guarded by note_mutex, a leaf
    struct mutex note_mutex;
    char note[LOCKSTEP_FAREWELL_TEXT_BYTES]; // The last failure of a call, with its status.

    // atomic
    atomic_bool alone; // The coordinator is gone; the session goes on without it.
    _Atomic(uint64_t) alone_ms; // clock_now_ms when it became so.
    atomic_bool tells; // The watch and the control stream are there (exit.c).
    atomic_bool noted; // There is a note, and it is not over (progress_leave).
    atomic_bool failed; // failure != 0
    atomic_bool aborting; // This rank gives up: failure is about to be set.
    atomic_uint waiting; // Threads in lockstep_call_wait.
    struct callers callers;
    atomic_uint control_messages;
    atomic_uint buckets_travelled;
    atomic_uint zero_filled;
    atomic_uint put_off; // Buckets.
    _Atomic(uint64_t) runs;
    _Atomic(uint64_t) weight_total;
};

// ---- worker/session/module/places.c ------------------------------------------------------------

// A gradient whose place is looked at.
struct placed {
    struct contribution *contribution; // That it travels in.
    uint32_t parameter; // Its number there.
    uint32_t replica;
    struct home by; // The name under which it is reported.
    void *memory; // NULL: where it was.
};

// ---- worker/session/module/owners.c ------------------------------------------------------------

// True if the parameter travels under its own name: it is not shared, or it is the owner.
static inline bool home_is_own(const struct lockstep_module *module, uint32_t parameter)
{
    const struct home *home = &module->homes[parameter];
    return home->module == module && home->parameter == parameter;
}

// ---- worker/api/saved.c ------------------------------------------------------------------------

enum saved_kind {
    SAVED_LAYOUT = 0,
    SAVED_SESSION = 1,
};

#endif
