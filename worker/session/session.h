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
#include "base/ring_buffer.h"
#include "base/thread.h"
#include "worker/control/control.h"
#include "worker/memory/arena.h"
#include "worker/memory/region.h"
#include "worker/order/order.h"
#include "worker/session/await.h"
#include "worker/session/drive.h"
#include "worker/session/losses.h"
#include "worker/session/module/buckets.h"
#include "worker/session/module/stash.h"
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

// ---- Plain collectives -------------------------------------------------------------------------

enum work_state {
    WORK_FREE = 0,
    WORK_IN_FLIGHT,
    WORK_DONE,
};

struct lockstep_work {
    struct lockstep_session *session;
    uint32_t uses; // trainer; of work that repeats, see collective_repeat.
    // driver only while in flight
    struct collective collective;
    struct collective confirmation; // Of a broadcast: that all ranks began the same one.
    bool confirmed; // It has one.
    uint32_t missing; // Of the two: not done yet.
    struct extent extent;
    struct extent barrier_extent;
    int32_t barrier; // The element of a barrier, or of a confirmation.
    // guarded by session.mutex
    enum work_state state;
    struct lockstep_work *next_free;
    uint32_t lent; // 1 + its number among session->lent; 0: it has no memory of others.
    // set when it is begun, then constant
    uint64_t begun_ms; // Of the trainer's work; by clock_coarse_ms.
    char name[LOCKSTEP_NAME_BYTES];
};

// The memory that plain collectives have borrowed, until they were waited for.
struct lent_range {
    uintptr_t begin;
    uintptr_t end;
};

// How often a name was used, so that the k-th use meets the k-th use.
struct name_use {
    uint64_t hash; // 0: free.
    uint32_t uses;
};
#define SESSION_MAX_NAMES 4096

// What the trainer called last: called again, it needs not be checked, nor found out about.
struct plain_form {
    char name[LOCKSTEP_NAME_BYTES]; // "": nothing.
    size_t name_bytes; // With its NUL.
    enum collective_kind kind;
    enum dtype dtype;
    enum reduce_op op;
    uint32_t root;
    uint64_t elements;
    enum plan_algorithm algorithm;
    uint64_t signature;
    struct name_use *use;
};
// Work of the trainer, then of the groups of buffers.
#define SESSION_MAX_WORK (LOCKSTEP_MAX_PLAIN + LOCKSTEP_MAX_BUFFER_GROUPS)

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

// ---- From the other threads to the engine ------------------------------------------------------

enum command_kind {
    COMMAND_STEP_OPEN, // value: step
    COMMAND_STEP_BEGIN, // value: phase hash
    COMMAND_READY, // module, call, bucket
    COMMAND_CALL_BEGIN, // module, call. This one and the next with config.wait_while_open only.
    COMMAND_CALL_END, // module, call
    COMMAND_WAIT_BEGIN, // module, call. Each is answered once, see struct call_waiter.
    COMMAND_WAIT_ASK, // module, call
    COMMAND_WAIT_END, // module, call: its time is over
    COMMAND_STEP_END, // value: 1 by a stream
    COMMAND_PLAIN, // pointer: struct lockstep_work
    COMMAND_START, // lockstep_start: send the manifest's hash
    COMMAND_RESERVE, // lockstep_start, where ranks have devices: make room for what was agreed
    // From here on not of the trainer's work: also heard after an abort.
    COMMAND_MESSAGE, // pointer: struct down_message, given
    COMMAND_CONTROL_ENDED, // pointer: text, given
    COMMAND_ABORT, // pointer: text, given; value: the status without its sign
    COMMAND_INSPECT, // The watch asks what only the driver knows.
    COMMAND_STOP, // value: 1 leave in good order, 0 at once
};

struct command {
    enum command_kind kind;
    uint32_t module;
    uint32_t call; // The index of its contribution.
    uint32_t bucket;
    uint64_t value;
    void *pointer;
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

// ---- Counters ----------------------------------------------------------------------------------

struct counter {
    uint64_t hash; // 0: free.
    int64_t total; // As of the last settled step.
    int64_t pending; // Added here since step_end.
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
    struct usual *usual; // Owned by worker/watch/progress.c.
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
    atomic_bool noted; // There is a note, and it is not over (session_note_over).
    atomic_bool failed; // failure != 0
    atomic_bool aborting; // This rank gives up: failure is about to be set.
    atomic_uint waiting; // Threads in lockstep_call_wait.
    struct thread_callers callers;
    atomic_uint control_messages;
    atomic_uint buckets_travelled;
    atomic_uint zero_filled;
    atomic_uint put_off; // Buckets.
    _Atomic(uint64_t) runs;
    _Atomic(uint64_t) weight_total;
};

// ---- session.c ---------------------------------------------------------------------------------

// First line of every public function: 0 when the handle is a live session of this process that has
// not failed; else the status, with the error text set. Any thread.
int session_check(struct lockstep_session *session);
// The same, but a failed session passes.
int session_check_handle(struct lockstep_session *session);
// Puts a command into the inbox and wakes the driver. Any thread. A full inbox fails the session.
void session_post(struct lockstep_session *session, struct command command);
// Frees what a command was given, if anything: it was carried out, or never will be.
void session_drop(const struct command *command);
// This rank gives up: the other ranks are told why, and every call that waits or comes later
// returns this status and text. Any thread. 0, or LOCKSTEP_E_SYSTEM.
int session_abort(struct lockstep_session *session, int status, const char *reason);
// Records the first failure and wakes all waiters. Any thread. The driver must have let go of user
// memory before. Later failures change nothing.
void session_fail(struct lockstep_session *session, int status, const char *text);
// 0, or the failure with its text set for this thread. Caller holds the mutex.
int session_failure_locked(struct lockstep_session *session);

// What later error texts end with: "; the coordinator is gone ...", or "" while it is there. Any
// thread.
const char *session_alone_text(const struct lockstep_session *session);
// What the text of a wait whose time is over ends with: which coordinator is gone since when, or ""
// while it is there. Any thread.
#define SESSION_LATE_BYTES (LOCKSTEP_ADDRESS_BYTES + 128)
void session_late_text(const struct lockstep_session *session, char text[SESSION_LATE_BYTES]);

// ---- note.c ------------------------------------------------------------------------------------

// A call has failed, which the session may survive: what it said is the reason when the session is
// closed next. Any thread.
void session_note(struct lockstep_session *session, int status, const char *text);
// lockstep_start, a step or a collective has ended well: what failed before was no reason to close.
static inline void session_note_over(struct lockstep_session *session)
{
    if (atomic_load_explicit(&session->noted, memory_order_relaxed))
        atomic_store_explicit(&session->noted, false, memory_order_relaxed);
}
// What a session that is closed gives as its reason: "LOCKSTEP_E_INVALID: ...", or "".
void session_read_note(struct lockstep_session *session, char *text, size_t bytes);

// ---- worker/engine/engine.c --------------------------------------------------------------------

int engine_start(struct lockstep_session *session);
// Ends the thread; leave: in good order. Afterwards nothing touches user memory.
void engine_stop(struct lockstep_session *session, bool leave);

// What a driver does. Driver only.
void engine_command(struct lockstep_session *session, const struct command *command);
// Carries out a command whose caller waits for it if that is possible at once and without leaving
// anything in flight. False: it is for engine_command, before anything else.
bool engine_exchange(struct lockstep_session *session, const struct command *command);
// Carries out what is in the inbox, and what its time or a failure brings with it. Whether anything
// was done that somebody may wait for.
bool engine_attend(struct lockstep_session *session);
// Whether engine_attend has something to look at with an empty inbox.
bool engine_is_due(const struct lockstep_session *session);
// For how many milliseconds it has not; -1: for ever.
int engine_patience(const struct lockstep_session *session);
// Something is in flight, so that somebody has to drive.
bool engine_busy(const struct lockstep_session *session);
// The session is being closed. A close right after an abort waits for the answer to it.
bool engine_stops(const struct lockstep_session *session);
// The last that is driven: user memory is not touched any more.
void engine_finish(struct lockstep_session *session);

// ---- worker/engine/landing.c -------------------------------------------------------------------

// All that a bucket does on this rank's device is enqueued: an event of the transport. Driver, like
// all here.
void engine_enqueued(void *context, struct collective *collective);
// Of a bucket there only the trainer's part is left: the same.
void engine_summed(void *context, struct collective *collective);
// The trainer ends the step by a stream: what is enqueued counts as final from now on.
void engine_end_by_stream(struct lockstep_session *session);
// The order core has to hear of something that is enqueued.
bool engine_device_is_due(const struct lockstep_session *session);
void engine_device_attend(struct lockstep_session *session);
// A bucket on this rank's device is done. Whether the order core takes it for final already.
bool engine_device_done(struct lockstep_session *session, struct collective *collective);
// What a stream has not made yet, for a person: "the gradient of 'fc.weight'".
void engine_describe_held(const struct lockstep_session *session, const struct device_held *held,
                          char *text, size_t bytes);
// Makes room for buckets on this rank's device, and for groups of buffers. -1: the device has none.
int engine_reserve(struct lockstep_session *session);
// The same for layouts that have just come into force. Nothing of this rank is in flight.
int engine_reserve_layouts(struct lockstep_session *session);
// worker/engine/engine.c: the order core takes the bucket for final from now on.
void engine_slot_final(struct lockstep_session *session, const struct collective *collective);

// ---- worker/engine/waits.c ---------------------------------------------------------------------

// A thread waits, asks, or waits no longer. Driver, like all here.
void engine_wait(struct lockstep_session *session, const struct command *command);
// The order core was told that one more bucket of a contribution is ready.
void engine_wait_announced(struct lockstep_session *session, uint32_t module, uint32_t call);
// ORDER_RELEASE: the order core answers a wait.
void engine_wait_released(struct lockstep_session *session, const struct order_action *action);
// The coordinator is lost.
void engine_wait_alone(struct lockstep_session *session);
// A wait has gone on for too long without it, once: the text says so.
bool engine_wait_overdue(struct lockstep_session *session, char *bytes, size_t size);

// ---- worker/engine/tune.c ----------------------------------------------------------------------

// What this rank tells the coordinator when its links stand.
void tune_links(const struct lockstep_session *session, struct up_links *links);
// Whether this world can run what the coordinator says: the tuning, and an algorithm of a plan.
bool tune_possible(const struct lockstep_session *session, const struct tuning *tuning);
bool tune_runs(const struct lockstep_session *session, uint32_t algorithm);
// All ranks have; now lockstep_open returns.
void tune_agreed(struct lockstep_session *session, const struct tuning *tuning);
// The manifests are equal, and with them what was loaded.
void tune_started(struct lockstep_session *session);
// How a collective of such a kind, dtype and elements travels: the same on all ranks. Any thread.
enum plan_algorithm tune_algorithm(const struct lockstep_session *session,
                                   const struct collective *collective);

// ---- worker/api/module.c -----------------------------------------------------------------------

void module_free(struct lockstep_module *module);
// The handles that were given out for it and its calls become foreign.
void module_remove_handles(struct lockstep_module *module);

// ---- worker/session/module/manifest.c ----------------------------------------------------------

// Item `index` of the manifest; false beyond its end.
bool module_manifest_item(const struct lockstep_session *session, uint32_t index,
                          struct manifest_item *item);
uint32_t module_manifest_count(const struct lockstep_session *session);
uint64_t module_manifest_hash(const struct lockstep_session *session);

// ---- worker/session/module/contribution.c ------------------------------------------------------

// Prepares bucket run `bucket` for launch: extents, signature. zero: nothing is contributed. held:
// its result must not be in user memory before the step has settled. Driver.
struct collective *contribution_collective(struct contribution *contribution, uint32_t bucket,
                                           uint32_t algorithm, bool zero, bool held);
// Takes from a collective that is done which of its parameters some rank has used. Driver.
void contribution_collective_done(struct contribution *contribution,
                                  const struct collective *collective);
// Makes every counter of missing gradients full again. Trainer, at step_begin.
void module_step_begin(struct lockstep_module *module);
// Forgets what the calls of the last window said, and where gradients were in it: a trainer may
// have freed that memory. Trainer, before the first step of a window.
void module_window_begin(struct lockstep_module *module);
// Its arrays, for a module with parameter_count parameters; false without memory. Trainer.
bool contribution_init(struct contribution *contribution, struct lockstep_module *module,
                       uint32_t index);
void contribution_fini(struct contribution *contribution);
// The first parameter that some rank has used and that has no memory here, of whatever replica;
// parameter_count: none. Trainer, after the step has settled.
uint32_t contribution_homeless(const struct contribution *contribution);
// Some parameter that is trained has no memory here. Trainer.
bool contribution_lacks_memory(const struct contribution *contribution);

// ---- worker/session/module/deferral.c ----------------------------------------------------------

// Sees to it that modules can put contributions off where the configuration may ask for it.
// Trainer, at start.
int deferral_start(struct lockstep_session *session);
// The module ends: what is left of it is said in the log, and freed.
void deferral_end(struct lockstep_module *module);
// Whether something that was put off in an earlier step may travel with a call of this one.
// Trainer, between steps.
bool deferral_waits(const struct lockstep_module *module);
// Refuses the weight of a step if, with what was put off before, some call could come to carry more
// than LOCKSTEP_MAX_WEIGHT. Trainer, between steps.
int deferral_check_weight(const struct lockstep_session *session, uint64_t weight);
// What its call has made of a bucket is in memory, and counts later. Driver, when it is ready.
void deferral_put_off(struct contribution *contribution, uint32_t bucket);
// Or it travels in this step, with what was put off: when it is ready, and before it is launched.
// Driver; nothing when it was put off, or was said before.
void deferral_take(struct contribution *contribution, uint32_t bucket);
// Makes all memory what the other ranks hold. Trainer, when the step has settled.
void deferral_put_back(struct lockstep_session *session);

// ---- worker/session/module/sets.c --------------------------------------------------------------

// Before a step of this phase: what is trained in it, and the layouts for that. Costs nothing when
// nothing has changed. Trainer, between steps.
int sets_enter(struct lockstep_session *session, const char *phase);
// The same for one module before its session has begun a step.
int sets_enter_module(struct lockstep_module *module, uint32_t view);
// What the order core calls the phase: a hash of its label and of what is trained.
uint64_t sets_phase(const struct lockstep_session *session);
// The caps for the buckets of what is trained in a module now.
struct bucket_caps sets_caps(const struct lockstep_module *module);
// Some layout was learned, or loaded. Trainer, between steps.
bool sets_are_learned(const struct lockstep_module *module);
// Where gradients are has been agreed: layouts that nobody has learned are made anew, and those
// that were loaded are to fit. Trainer, at start.
int sets_renew(struct lockstep_module *module);
// Forgets all of a module; sets_enter_module is to follow. Trainer, between steps.
void sets_forget(struct lockstep_module *module);
// A layout that was learned for a set; what was there before is in *layout then. Trainer, between
// steps; engine, at the end of one.
void sets_install(struct lockstep_module *module, uint64_t hash, struct bucket_layout *layout);
// The agreed layouts come into force. Driver, between the last slot and the next step. Whether
// there are any.
bool sets_adopt_layouts(struct lockstep_session *session);
// What the step header says of the open step. Driver.
void sets_note(const struct lockstep_session *session, struct step_note *note);
// How the open step differs from what the ring predecessor began. Driver.
void sets_difference(const struct lockstep_session *session, const char *predecessor, char *bytes,
                     size_t size);
// Of a module's parameters as they are marked trainable; never 0.
uint64_t sets_hash(const struct bucket_parameter *parameters, uint32_t count);
// Arrays for a layout of so many parameters; false without memory.
bool sets_allocate_layout(struct bucket_layout *layout, uint32_t count);
void sets_free(struct lockstep_module *module);

// ---- worker/api/step.c -------------------------------------------------------------------------

// A world of one: what the data plane would have done for a contribution. Trainer.
int step_settle_contribution(struct contribution *contribution, uint64_t weight);

// ---- worker/api/step_device.c ------------------------------------------------------------------

// Results of the last step that a stream waits for are in the memory of this rank's device, or the
// deadline has passed: LOCKSTEP_E_TIMEOUT. Trainer, outside a step.
int step_land(struct lockstep_session *session, uint64_t deadline_ms);
// The step has settled, and its results may still be on their way on the device: the stream waits
// for them there, or this thread, where there is none or what is to be said needs them. Trainer.
int step_await_device(struct lockstep_session *session, void *stream);
// The mean of sums over samples in a world of one. On the device by way of the host, piece by
// piece: rare, and not in any job that several ranks make.
int step_divide(const struct lockstep_module *module, uint32_t parameter, char *memory,
                uint64_t weight);

// ---- worker/api/call.c, worker/session/module/claims.c -----------------------------------------

// First line of every public function of a module: 0 when the handle is a live module of a session
// that has not failed; else the status, with the error text set. Any thread.
int module_check(struct lockstep_module *module);
// The same for a function of a call.
int call_check(struct lockstep_call *call);
// Of a contribution that was handed over: which of its gradients were withdrawn, for when buckets
// are other ones. Trainer.
void call_note_withdrawn(struct contribution *contribution);
// Gradients that the module's open call, if it has one, does not have yet: how many, and the names
// of the first. Driver, while a step is open.
void call_missing(struct lockstep_module *module, struct answer_place *place);
// What the calls of the step have left over travels now. Trainer, at step_end.
void call_finish(struct lockstep_session *session);

// ---- worker/session/module/overlap.c -----------------------------------------------------------

// Refuses tensors that overlap in memory, among those of the session and of a module that is being
// registered. further: NULL, no such module. Trainer, when the owners are known.
int overlap_check(const struct lockstep_session *session, const struct lockstep_module *further);
// The same when something was registered or has moved since it was last right; keeps the list for
// worker/session/module/places.c. Trainer, outside a step.
int overlap_check_moved(struct lockstep_session *session);
// What the list has is not there any more. Trainer, outside a step.
void overlap_forget(struct lockstep_session *session);
// "the gradient of parameter 'w' (replica 1) of module 'net'". Returns text.
const char *overlap_name(const struct overlap_place *place, char *text, size_t bytes);

// ---- worker/session/module/places.c ------------------------------------------------------------

// A gradient whose place is looked at.
struct placed {
    struct contribution *contribution; // That it travels in.
    uint32_t parameter; // Its number there.
    uint32_t replica;
    struct home by; // The name under which it is reported.
    void *memory; // NULL: where it was.
};
// Forgets the places that were given in the last window. Trainer, before a window.
void places_window_begin(struct lockstep_session *session);
// Refuses a place that overlaps that of another gradient which travels in the window, or a value or
// buffer, and a second place for a shared parameter. Any thread, with places_mutex held.
int places_check_locked(struct lockstep_session *session, const struct placed *placed);
// The place was looked at, and the report is taken. Any thread, in the same critical section.
void places_take_locked(struct lockstep_session *session, const struct placed *placed);
// Whether the registered memory of a gradient that this rank has not used is another one's in this
// window. Any thread.
bool places_is_lost(struct lockstep_session *session, const struct placed *placed);

// ---- worker/session/module/owners.c ------------------------------------------------------------

// True if the parameter travels under its own name: it is not shared, or it is the owner.
static inline bool home_is_own(const struct lockstep_module *module, uint32_t parameter)
{
    const struct home *home = &module->homes[parameter];
    return home->module == module && home->parameter == parameter;
}
// Finds the owner of every parameter. Refuses data that an earlier parameter has and that is not
// marked as shared, and owners that do not fit. Trainer, when the module is registered.
int shared_find(struct lockstep_module *module);
// From now on owners wait for the reports of this module, too. Refuses more than can be counted.
int shared_join(struct lockstep_module *module);
// The module is closed: owners wait for it no more. Refuses that while others share what it owns.
int shared_leave(struct lockstep_module *module);
// The value of a parameter has moved, also for those that share it.
void shared_move(struct lockstep_module *module, uint32_t parameter);

// ---- worker/session/module/replicas.c ----------------------------------------------------------

// What belongs to one gradient of a further replica: from 1.
struct replica_gradient *replica_gradient(const struct contribution *contribution, uint32_t replica,
                                          uint32_t parameter);
// Takes a parameter of a further replica; it has to be declared like that of the first. Trainer,
// when the module is registered.
int replica_declare(struct lockstep_module *module, uint32_t replica, uint32_t parameter,
                    const struct lockstep_parameter *first, const struct lockstep_parameter *copy);
// Adds up what the replicas reported of a gradient, where it travels from. The thread that hands it
// over.
void replica_combine(struct contribution *contribution, uint32_t parameter);
// What its replicas have of a gradient is on devices of this rank: there it is added up and given
// back by what carries it. Any thread.
bool replica_is_on_devices(const struct lockstep_module *module, uint32_t parameter);
// World of one: the same as replica_combine, of a gradient on devices that is complete. Trainer. 0,
// or LOCKSTEP_E_SYSTEM: a device has failed.
int replica_settle(struct contribution *contribution, uint32_t parameter);
// Gives every replica what came back, where that is not the data plane's: of one contribution, and
// of all that did not have it yet. Trainer, when it is final. The same.
int replica_copy_contribution(struct contribution *contribution);
int replica_copy_results(struct lockstep_session *session);
// Makes the values of every replica those of the first. Trainer, at start. The same.
int replica_copy_values(struct lockstep_session *session);

// ---- worker/api/collective.c -------------------------------------------------------------------

uint64_t collective_signature(const struct collective *collective);
// Sets the collective of the trainer that a thread waits for, and the oldest ones that are in
// flight for longer than LOCKSTEP_OVERDUE_MS. Watch thread.
void collective_tell(struct lockstep_session *session, struct up_heartbeat *beat);
// How the trainer calls it: "lockstep_allreduce with 4 elements of float32, sum". "": the library
// does. text has room for LOCKSTEP_FORM_BYTES.
void work_form(const struct lockstep_work *work, char *text, size_t bytes);
// Launches what the work consists of; one part of it is done. Driver.
void work_launch(struct lockstep_work *work);
void work_done(struct lockstep_work *work);
// Work that its caller waits for and drives may be complete without a launch; else it is to be
// launched at once. Driver. Then it is done: only its caller knows of it.
bool work_exchange(struct lockstep_work *work);
void work_exchanged_locked(struct lockstep_work *work);

// The public collectives without the checks of the public layer; trainer. kind, dtype, op and root
// are taken from `like`. On success *work is in flight.
int collective_begin(struct lockstep_session *session, const char *name, void *data, uint64_t count,
                     const struct collective *like, struct lockstep_work **work);
int collective_wait(struct lockstep_work *work, uint32_t timeout_ms);
// The tuning has changed.
void collective_forget_form(struct lockstep_session *session);
// Both in one, in which the caller drives where it can. With LOCKSTEP_E_TIMEOUT it is in flight.
int collective_call(struct lockstep_session *session, const char *name, void *data, uint64_t count,
                    const struct collective *like, uint32_t timeout_ms,
                    struct lockstep_work **work);
// Begins work that its caller keeps and has named, over the extents of `like`: the n-th time here
// meets the n-th time on the other ranks. kind, dtype, op, root, extents and elements are taken
// from `like`. Allocates nothing and cannot fail. Trainer; not in a solo session.
void collective_repeat(struct lockstep_work *work, const struct collective *like);

// ---- worker/api/start.c ------------------------------------------------------------------------

// Makes the values of all parameters and buffers those of rank root. Trainer; blocks.
int state_broadcast(struct lockstep_session *session, uint32_t root);
// Begins to make those buffers equal that are due in this step, or with step 0 all whose policy
// repeats; and waits for it. stream: what it was given until now is to be done before those on the
// device are read; NULL: it is. Trainer.
void state_begin(struct lockstep_session *session, uint64_t step, void *stream);
int state_await(struct lockstep_session *session);
void state_fini(struct lockstep_session *session);

// ---- worker/api/memory.c -----------------------------------------------------------------------

// Frees what lockstep_alloc gave and was not given back.
// Memory can be made that mates reach. Before the transport opens.
void memory_share(struct lockstep_session *session);
void memory_fini(struct lockstep_session *session);
void memory_free_gradients(struct lockstep_module *module);

// ---- worker/api/saved.c ------------------------------------------------------------------------

enum saved_kind {
    SAVED_LAYOUT = 0,
    SAVED_SESSION = 1,
};

// Writes what is to be saved, all but the checksum. Trainer, outside a step.
void saved_write(struct lockstep_session *session, enum saved_kind kind, FILE *file);
// Checks the text of a file, and takes it over when nothing is wrong with it; path is for texts.
// Trainer, before lockstep_start.
int saved_read(struct lockstep_session *session, enum saved_kind kind, const char *path,
               const char *bytes, size_t size);

// ---- worker/api/counter.c ----------------------------------------------------------------------

void counter_contribute(struct lockstep_session *session, struct commit_wave *wave);
void counter_apply(struct lockstep_session *session, const struct commit_wave *result);

// ---- fork.c ------------------------------------------------------------------------------------

// ---- exit.c ------------------------------------------------------------------------------------

// While the control stream of a session may be used: a failure of a call is told to the
// coordinator, and a process that exits waits, for EXIT_MS at most, until the last one is on its
// way.
void exit_watch(struct lockstep_session *session);
void exit_unwatch(struct lockstep_session *session);
// A call has failed. Any thread.
void exit_note(struct lockstep_session *session);

void fork_watch(struct lockstep_session *session); // From open to close.
void fork_unwatch(struct lockstep_session *session);
bool fork_in_child(void);

#endif
