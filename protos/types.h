// SPDX-License-Identifier: Apache-2.0
//
// The messages of the control stream and what they are made of, as plain structs: what the
// coordinator's core and the worker's core read and write. protos/codec.h turns them into bytes
// and back. The .proto file beside this one has the same fields under the same names.
//
// No pointers: every message owns what it says, so it can be copied, queued and compared.
// The words (generation, slot, plan, ...) are those of docs/internals/design.md, section "Words".

#ifndef PROTOS_TYPES_H
#define PROTOS_TYPES_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

// Element types. The numbers are on the wire and in the public header.
enum dtype {
    DTYPE_NONE = 0,
    DTYPE_FLOAT32 = 1,
    DTYPE_FLOAT64 = 2,
    DTYPE_INT32 = 3,
    DTYPE_INT64 = 4,
    DTYPE_FLOAT16 = 5,
    DTYPE_BFLOAT16 = 6,
    DTYPE_UINT8 = 7,
};

struct uuid {
    uint8_t bytes[LOCKSTEP_UUID_BYTES];
};

// One planned collective of a step.
struct slot_id {
    uint32_t module; // Index of the module in the manifest.
    uint32_t call; // Call number of that module in the step, from 0.
    uint32_t bucket; // Index of the bucket in the module's layout.
};

// A call of a module in a step.
struct call_id {
    uint32_t module;
    uint32_t call; // From 0, as in a slot.
};

// A set of positions in the plan of a step: bit p % 64 of word p / 64.
struct slot_set {
    uint64_t words[LOCKSTEP_SLOT_WORDS];
};

// A fixed membership is named by its number and by who made it: a restarted coordinator may count
// from one again, but never with the same incarnation.
struct generation_id {
    uint64_t number; // From 1; 0 is "none yet".
    uint64_t incarnation; // Random id of the coordinator that made it.
};

// ---- Where a worker is -------------------------------------------------------------------------

// A function of the library that the trainer is in, or was in last. On the wire and in trace files:
// numbers are never used twice.
enum api_function {
    API_NONE = 0,
    API_OPEN = 1,
    API_START = 2,
    API_STEP_BEGIN = 3,
    API_CALL_BEGIN = 4,
    API_GRAD_READY = 5,
    API_CALL_END = 6,
    API_CALL_WAIT = 7,
    API_CALL_NEXT = 8,
    API_CALL_ABORT = 9,
    API_STEP_END = 10,
    API_COLLECTIVE = 11,
    API_WORK_WAIT = 12,
    API_STATE = 13,
    API_PAUSE = 14,
    API_RESUME = 15,
    API_CLOSE = 16,
    // Only in struct await, which tells apart what API_COLLECTIVE and API_STATE name together.
    API_BARRIER = 17,
    API_ALLREDUCE = 18,
    API_BROADCAST = 19,
    API_STATE_CHECK = 20,
    API_STATE_SYNC = 21,
    API_MODULE_USAGE = 22,
};

// Its name, without lockstep_.
static inline const char *api_function_name(uint64_t api)
{
    static const char *const names[] = {
        [API_NONE] = "none",
        [API_OPEN] = "open",
        [API_START] = "start",
        [API_STEP_BEGIN] = "step_begin",
        [API_CALL_BEGIN] = "call_begin",
        [API_GRAD_READY] = "grad_ready",
        [API_CALL_END] = "call_end",
        [API_CALL_WAIT] = "call_wait",
        [API_CALL_NEXT] = "call_next",
        [API_CALL_ABORT] = "call_abort",
        [API_STEP_END] = "step_end",
        [API_COLLECTIVE] = "collective",
        [API_WORK_WAIT] = "work_wait",
        [API_STATE] = "state",
        [API_PAUSE] = "pause",
        [API_RESUME] = "resume",
        [API_CLOSE] = "close",
        [API_BARRIER] = "barrier",
        [API_ALLREDUCE] = "allreduce",
        [API_BROADCAST] = "broadcast",
        [API_STATE_CHECK] = "state_check",
        [API_STATE_SYNC] = "state_sync",
        [API_MODULE_USAGE] = "module_usage",
    };
    return api < sizeof(names) / sizeof(names[0]) ? names[api] : "unknown";
}

// How far a rank has come, and where its trainer is. Ranks are compared by (settled, position):
// positions count the slots of the step in the agreed order, and the end of the step is one more.
// All zero: nothing is known.
struct place {
    uint32_t position; // Lowest slot that is not final here; count + 1: in the commit wave.
    uint32_t count; // Slots of the open step, as far as known; 0 between steps.
    bool done; // This rank has done its part of `position`: launched it, or ended the step.
    bool open; // A step is open.
    bool learning;
    bool waits; // The trainer is blocked in the library, with every thread that matters.
    struct slot_id slot; // At position, when that is below count.
    enum api_function api; // That the trainer entered last, ...
    bool inside; // ... in which it still is ...
    uint64_t api_ms; // ... since so long; outside: since it returned.
    uint32_t module; // Of that function; LOCKSTEP_MAX_MODULES: it has none.
    uint32_t call; // Of the module in the step, from 0.
    uint32_t calls_open; // Calls under way, ...
    uint32_t ready; // ... and of the longest of them: gradients reported, ...
    uint32_t gradients; // ... of so many.
    uint64_t plain; // Plain collectives completed.
    uint64_t usual_us; // Time to the next place, as a rule: the 99th percentile, ...
    uint64_t longest_us; // ... and the longest of the last 64. 0: not known yet.
    uint64_t waited_us; // Time blocked on other ranks since the generation began.
};

// Why no bound holds for a worker. Bits.
enum place_flag {
    PLACE_PAUSED = 1, // By lockstep_pause.
    PLACE_TRACED = 2, // A debugger holds it.
    PLACE_THROTTLED = 4, // By its control group.
    PLACE_DISK = 8, // Its trainer sleeps in state D.
    PLACE_FIRST = 16, // It is in one of its first steps.
};
#define PLACE_FLAGS 31u // All of them.

// What the first of a rank's collectives on its device waits for.
enum device_hold {
    DEVICE_HOLD_NONE = 0, // Nothing of its device: there is none, or it waits for other ranks.
    DEVICE_HOLD_STREAM = 1, // For what a stream of the trainer makes.
    DEVICE_HOLD_NCCL = 2, // For NCCL, which has its input, and maybe not that of others.
};

// A link with something on its way and no progress for a second.
struct link_state {
    uint32_t rank; // Of the peer.
    bool awaited; // This rank waits for bytes of it.
    bool reached; // True if the unsent bytes only wait for the peer's process, not for the network.
    uint64_t unsent; // Bytes handed to the link that the peer has not taken yet.
    uint64_t received; // Bytes received from it, in all.
    uint64_t still_ms; // Time without progress in either direction.
};

// What a blocked trainer waits for: the thing that every rank must do before the wait can end.
enum await_kind {
    AWAIT_NONE = 0, // The trainer is not blocked, or not for long, or the wait may end by itself.
    AWAIT_STEP = 1, // Every rank ends step `number`.
    AWAIT_OPENING = 2, // Every rank begins step `number` (uneven data).
    AWAIT_START = 3, // Every rank calls lockstep_start for the time `number`.
    AWAIT_COLLECTIVE = 4, // Every rank begins use `number` of the collective whose hash is `space`.
    AWAIT_CALL = 5, // Every rank makes a call in step `number`, or ends that step.
};

struct await_key {
    enum await_kind kind;
    uint64_t space; // AWAIT_CALL: the module, and the call above 32 bits.
    uint64_t number; // A use counts from 0.
};

static inline bool await_key_equal(const struct await_key *a, const struct await_key *b)
{
    return a->kind == b->kind && a->space == b->space && a->number == b->number;
}

// A rank whose only trainer thread is blocked. All of it is true at one moment, and stays true
// until the wait is over. docs/internals/protocol.md, "Different functions".
struct await {
    struct await_key key; // AWAIT_NONE: the rest is zero.
    enum api_function function; // That the trainer is in.
    uint32_t module; // Of that function; LOCKSTEP_MAX_MODULES: it has none.
    bool rooted; // Only rank `root` must do it: a broadcast of the library.
    uint32_t root;
    uint64_t step; // That the trainer has begun last; 0: none.
    bool open; // That step has not ended on this rank.
    char name[LOCKSTEP_NAME_BYTES]; // Of the trainer's collective; else empty.
    // Of the keys that the coordinator has asked about: those that this rank has not done yet.
    uint32_t lack_count;
    struct await_key lacks[LOCKSTEP_MAX_AWAITED];
};

// A mate that does not run.
struct mate_state {
    uint32_t rank;
    char state; // A letter, of /proc/PID/stat: 'T', 't', 'D', 'Z'.
    uint32_t tracer; // Process id of the debugger that is attached to it; 0: none.
};

// ---- What a worker says about itself when it is asked -------------------------------------------

// Why a thread has frames, or has none.
enum stack_how {
    STACK_SIGNAL = 0, // It was interrupted and wrote its frames.
    STACK_BLOCKED = 1, // It blocks the signal.
    STACK_SILENT = 2, // It did not answer.
    STACK_DISK = 3, // It sleeps in state D, where nothing interrupts it.
    STACK_TAKEN = 4, // The program uses every signal that could be used.
    STACK_ASLEEP = 5, // It sleeps, and its frames were read without disturbing it.
    STACK_CUT = 6, // The same, but the frames are not known up to its beginning.
    STACK_NO_ROOM = 7, // It runs, and its stack may have no room for a signal.
    STACK_LEFT_ALONE = 8, // It sleeps where a signal would disturb it.
    STACK_NOT_ASKED = 9, // It runs, and has not called the library: no signal for it.
};

// What another thread has that a thread waits for.
enum stack_awaits {
    AWAITS_NOTHING = 0, // It does not wait for a thread, or that is not known.
    AWAITS_LOCK = 1, // A mutex that the other thread holds.
    AWAITS_END = 2, // The end of the other thread.
};

struct stack_thread {
    uint32_t tid;
    char name[LOCKSTEP_THREAD_BYTES];
    char state; // A letter, of /proc/PID/task/TID/stat; 0: not known.
    bool trainer; // It called the library last.
    bool other; // It has not called the library.
    int32_t syscall; // Number of the system call; -1: it runs, -2: not known.
    char wchan[LOCKSTEP_WCHAN_BYTES]; // Empty: not known.
    enum stack_how how;
    enum stack_awaits awaits;
    uint32_t owner; // The thread that this one waits for; 0: none.
    char owner_name[LOCKSTEP_THREAD_BYTES];
};

struct stack_frame {
    uint32_t thread; // Index of its thread, over all threads of the answer.
    bool python;
    bool library; // True if the file is of Python's own library.
    bool guessed; // True if a search of the stack found it, and nothing proves it.
    char object[LOCKSTEP_OBJECT_BYTES]; // "libc.so.6", or the Python file.
    char symbol[LOCKSTEP_SYMBOL_BYTES]; // Empty: not known.
    uint64_t offset; // In the object, for addr2line; of Python: the line.
};

// As in a trace file (protos/trace.h), without its sequence.
struct trace_event {
    uint64_t time_ns; // CLOCK_MONOTONIC
    uint64_t step;
    uint64_t value; // What it means depends on the kind.
    uint16_t kind; // enum trace_kind
    uint16_t thread;
    uint16_t module; // 0xffff: none
    uint16_t call;
    uint32_t bucket;
};

// ---- Worker to coordinator ---------------------------------------------------------------------

enum up_kind {
    UP_NONE = 0,
    UP_HELLO, // First message of a stream: join the job.
    UP_START, // lockstep_start: compare my manifest.
    UP_MANIFEST_PART, // Answer to DOWN_MANIFEST_REQUEST.
    UP_READY, // Learning: a slot is ready here.
    UP_WAIT, // Learning: the trainer blocks in call_wait.
    UP_LAYOUT_PART, // Learning, rank 0 only, before its UP_END: proposed layout of a module.
    UP_END, // Learning: step_end was called.
    UP_HEARTBEAT,
    UP_FAIL, // A disagreement seen here; answered by DOWN_HALT to all.
    UP_LOST, // The data plane lost a peer; answered by DOWN_HALT to all.
    UP_LEAVE, // lockstep_close. No stream error follows.
    UP_LINKS, // All links of this worker stand and were measured.
    UP_BLOCKED, // A planned step: the trainer is blocked in call_wait, or is no more.
    UP_MODULES, // Rank 0, in lockstep_start: what the modules are called.
    UP_ANSWER, // Part of the answer to DOWN_INSPECT.
    UP_REPLAN, // Steps differ from their plan alike, time and again: what it should be.
};

enum failure_policy {
    FAILURE_ERROR = 0, // A death ends the generation with an error on every survivor.
    FAILURE_CONTINUE = 1, // Survivors finish the step. Refused until recovery is built.
};

// The GPU that a worker computes on, and the libraries that it found there.
struct gpu {
    struct uuid uuid; // As the driver gives it: of a device, or of a part of one.
    uint32_t capability; // Of computing, in tenths: 90 is 9.0.
    uint32_t driver_version; // Of CUDA: 1000 for each major one, 10 for each minor one.
    uint32_t nccl_version; // As NCCL numbers them; 0: there is none.
    char nccl_missing[LOCKSTEP_NAME_BYTES]; // Why there is none; else empty.
};

struct up_hello {
    uint32_t version; // LOCKSTEP_PROTOCOL_VERSION
    char job[LOCKSTEP_JOB_NAME_BYTES];
    struct uuid uuid; // Of the worker, for life.
    char host_id[LOCKSTEP_HOST_BYTES]; // Equal on workers that can share memory.
    char host[LOCKSTEP_HOST_BYTES]; // For people.
    char address[LOCKSTEP_ADDRESS_BYTES]; // Of the data plane: "tcp:10.0.0.1:4711", "loopback:3".
    uint32_t pid;
    uint32_t world_min; // Both equal: an exact world size.
    uint32_t world_max;
    uint32_t window_ms; // How long to wait for more than world_min workers.
    bool has_rank_hint;
    uint32_t rank_hint;
    uint32_t open_timeout_ms; // How long this worker is willing to wait for the world.
    enum failure_policy on_failure;
    char device[LOCKSTEP_DEVICE_BYTES]; // Class of device that it computes on; empty: not known.
    // When the process began, in clock ticks since its host did: with the pid it names one process,
    // whoever reuses the number. 0: not known.
    uint64_t started;
    // Equal on workers that may run on the same cores of one kernel, whatever hosts they are on:
    // pods of one node have hosts of their own. 0: not known.
    uint64_t cores;
    bool has_gpu;
    struct gpu gpu;
    // What it uses besides that one, for replicas of modules.
    uint32_t further_gpu_count;
    struct uuid further_gpus[LOCKSTEP_MAX_OWN_DEVICES - 1];
    // Why the GPU that it was told to compute on cannot be used: it joins to let all others know.
    char gpu_problem[LOCKSTEP_NAME_BYTES]; // Else empty.
};

struct up_start {
    uint64_t manifest_hash;
    uint32_t item_count; // Items of the manifest, see struct manifest_item.
    uint32_t root; // Rank whose state is broadcast; compared like the manifest.
    uint64_t settled; // Last step that is settled here; 0 before the first one.
    // What a wait of this rank gives up: calls that are planned before it and not made yet. In the
    // manifest, too, so it is equal on all ranks.
    bool zero_defer;
    bool strict; // Its data plane pairs collectives by their order.
};

enum manifest_kind {
    MANIFEST_SESSION = 1, // Options of the session (name is empty) and what it loaded, as text.
    MANIFEST_MODULE = 2, // A module: value holds its options as text.
    MANIFEST_PARAMETER = 3,
    MANIFEST_BUFFER = 4,
};

// One line of the manifest. Items are in order: those of the session, then each module followed by
// its parameters and its buffers. Two manifests are equal when all items are.
struct manifest_item {
    enum manifest_kind kind;
    uint32_t module; // Index of the module it belongs to.
    char name[LOCKSTEP_NAME_BYTES];
    enum dtype dtype;
    uint32_t flags; // Of a parameter: public LOCKSTEP_PARAMETER_*.
    uint32_t dims;
    int64_t shape[LOCKSTEP_MAX_DIMS]; // Elements.
    int64_t strides[LOCKSTEP_MAX_DIMS]; // Elements.
    char value[LOCKSTEP_MARK_BYTES]; // Options as "key=value key=value", else empty.
};

struct up_manifest_part {
    uint32_t first; // Index of items[0].
    uint32_t count;
    struct manifest_item items[LOCKSTEP_MANIFEST_PART];
};

struct up_ready {
    uint64_t step;
    uint64_t phase; // Hash of the phase's name and of what is trained in it.
    struct slot_id slot;
    enum dtype dtype;
    uint64_t elements;
};

struct up_wait {
    uint64_t step;
    uint64_t phase;
    struct slot_id slot;
    uint32_t also_count; // What the trainer's other threads wait for.
    struct slot_id also[LOCKSTEP_MAX_WAITS - 1];
};

// Part of the layout that rank 0 proposes for a module: the known one, or a new one. The words
// are: bucket count k, then k ends (exclusive, into the parameter list), then the parameter
// indices in the order in which they became ready.
struct layout_part {
    uint32_t module;
    uint32_t total; // Words of the whole layout.
    uint32_t first; // Index of words[0].
    uint32_t count;
    uint32_t words[LOCKSTEP_LAYOUT_PART];
};

struct up_end {
    uint64_t step;
    uint64_t phase;
};

// Where the trainer is. On the wire and on the dashboard.
enum worker_activity {
    ACTIVITY_OUTSIDE = 0, // In the trainer's own code.
    ACTIVITY_OPENING = 1, // In lockstep_open.
    ACTIVITY_STARTING = 2, // In lockstep_start.
    ACTIVITY_IN_CALL = 3, // A call is open: backward is running.
    ACTIVITY_WAITING = 4, // Blocked in the library.
    ACTIVITY_PAUSED = 5, // Between lockstep_pause and lockstep_resume.
};

// Sums over the steps that a worker has finished since its generation began.
struct step_totals {
    uint64_t steps;
    uint64_t bytes_copied; // Results that passed through scratch.
    uint64_t in_flight_us; // Time during which a bucket was on its way, ...
    uint64_t overlap_us; // ... the part of it before lockstep_step_end was called, ...
    uint64_t exposed_us; // ... and how long the trainer waited there.
    uint64_t zero_filled; // Buckets that this worker contributed as zeros.
    uint64_t unused; // Gradients that its calls did not produce.
};

// A collective of the trainer that has been in flight for longer than LOCKSTEP_OVERDUE_MS.
struct overdue {
    uint64_t space; // Hash of its name, as in the key of AWAIT_COLLECTIVE.
    uint64_t use; // Which use of the name, from 0.
    uint64_t signature; // Hash of what must be equal on all ranks.
};

struct up_heartbeat {
    uint64_t step; // Step the trainer has opened.
    uint64_t settled; // Last step that is final on every rank.
    enum worker_activity activity;
    uint64_t since_ms; // How long it has been in that activity.
    char mark[LOCKSTEP_MARK_BYTES];
    uint64_t bytes_sent;
    uint64_t bytes_received;
    struct step_totals totals;
    struct place place;
    uint32_t flags; // Bits of enum place_flag.
    uint64_t pause_ms; // How long the pause was to last, as lockstep_pause was told.
    uint32_t link_count; // Links without progress.
    struct link_state links[LOCKSTEP_LINKS_NAMED];
    uint32_t mate_count; // Mates that do not run.
    struct mate_state mates[LOCKSTEP_MATES_NAMED];
    enum device_hold held; // Only while the place does not change.
    // With PLACE_DISK: the system call and the function of the kernel that the trainer sleeps in,
    // as "read (nfs_wait_bit_killable)". Empty: not known.
    char sleeps[LOCKSTEP_KERNEL_BYTES];
    struct await await;
    uint32_t overdue_count; // The oldest ones.
    struct overdue overdue[LOCKSTEP_OVERDUE_NAMED];
    // The trainer's collective that a thread waits for, for the sentence of a stall. The wait may
    // have a timeout, and other threads may wait, too. Empty: none.
    char collective[LOCKSTEP_NAME_BYTES];
    uint64_t collective_use; // Which use of it, from 0.
    // The last failure of a call that nothing has ended well after, as "LOCKSTEP_E_INVALID: ...".
    // Empty: there is none.
    char failure[LOCKSTEP_FAREWELL_TEXT_BYTES];
};

enum halt_kind {
    HALT_NONE = 0,
    HALT_MANIFEST = 1, // Manifests differ (text is the two-sided report), or some ranks are in
                       // lockstep_start and others in a step.
    HALT_PHASE = 2, // Ranks are in different phases of the same step.
    HALT_ORDER = 3, // Synchronous waits form a cycle.
    HALT_UNPLANNED = 4, // A call outside the plan, or a wait for one.
    HALT_COLLECTIVE = 5, // A plain collective differs between ranks.
    HALT_LOST = 6, // A worker died.
    HALT_LEFT = 7, // A worker closed its session while another still needed it.
    HALT_PROTOCOL = 8, // A worker said something impossible: a bug, named.
    HALT_LAYOUT = 9, // Bucket layouts or learned slots differ between ranks.
    HALT_TUNING = 10, // Ranks ask for different algorithms, or for one that the world cannot run.
};

struct up_fail {
    uint64_t step;
    enum halt_kind kind;
    char text[LOCKSTEP_TEXT_BYTES]; // This rank's side, in one sentence.
    // HALT_COLLECTIVE: how this rank calls it, for a text with both sides. form "": not said.
    uint64_t space; // The collective, as in the key of AWAIT_COLLECTIVE, ...
    uint64_t use; // ... and which use of it, from 0.
    char name[LOCKSTEP_NAME_BYTES]; // Of the collective.
    char form[LOCKSTEP_FORM_BYTES]; // "lockstep_allreduce with 4 elements of float32, sum"
};

struct up_lost {
    uint32_t rank; // Of the peer that was lost.
    bool left; // It said goodbye on the data plane.
    bool silent; // Its host acknowledged nothing any more.
    bool impossible; // It sent what cannot be; it may be alive.
    uint64_t step; // The first step that cannot be completed without it, by the reporter's word.
    char text[LOCKSTEP_TEXT_BYTES]; // What the data plane saw: "connection reset by peer".
};

// How the bytes of a collective travel. It decides the order of summation, so the bits: agreed once
// for every slot, never chosen by one rank. docs/internals/data-plane.md says what each one does.
enum plan_algorithm {
    ALGORITHM_RING = 0, // Any world; the least bytes.
    ALGORITHM_DOUBLING = 1, // Recursive doubling of the whole payload; the fewest rounds.
    ALGORITHM_HALVING = 2, // Recursive halving, then doubling: few rounds, the least bytes.
    ALGORITHM_SHARED = 3, // Through memory; all ranks are on one host.
    ALGORITHM_TWO_LEVEL = 4, // Through memory inside each host, a ring between hosts.
};
#define PLAN_ALGORITHMS 5
// In the place of one of them, in a plan or as a wish: what tuning_choose (tuning.h) answers.
#define ALGORITHM_BY_SIZE 5u

// What a worker has seen of its links when the last of them stood. 0: not measured.
struct up_links {
    bool shares; // Its mates and it have mapped their host's memory; true also without mates.
    uint64_t latency_ns; // One way, of a few bytes; the slowest of its links.
    uint64_t bytes_per_s; // Of one link in one direction while all are busy; the slowest.
    uint32_t wish; // enum plan_algorithm that LOCKSTEP_ALGORITHM names, or ALGORITHM_BY_SIZE.
};

struct up_leave {
    uint64_t settled;
    char reason[LOCKSTEP_MARK_BYTES];
    char cause[LOCKSTEP_FAREWELL_TEXT_BYTES]; // The failure before it; "": there was none.
};

// One call that a thread of a trainer waits for.
struct blocked_wait {
    struct call_id call;
    struct slot_set needs; // Positions that every rank must make before its slots can complete.
};

// A call of the plan that a blocked trainer has not made.
struct blocked_lack {
    uint32_t position; // Its lowest slot that is not ready.
    struct call_id call;
};

// A rank whose trainer is blocked in a planned step (docs/internals/order.md, R9). A report takes
// the place of the rank's last one; without waits it is blocked no more (another thread goes on, or
// a wait has timed out).
struct up_blocked {
    uint64_t step;
    uint64_t space; // Hash of the plan: positions of another one mean something else.
    uint32_t wait_count;
    struct blocked_wait waits[LOCKSTEP_MAX_WAITS];
    struct slot_set lacks; // Positions of the plan that are not ready here.
    uint32_t lack_count; // Named of them: one for each call, in the order of positions.
    struct blocked_lack lacking[LOCKSTEP_LACKS_NAMED];
};

// What the plan of a phase should be: its calls in another order, or more of them. Nobody has to
// hear it; the steps are right without it, and only slower.
struct up_replan {
    uint64_t step; // Settled; in it, and in those of the phase before it, ranks did the same.
    uint64_t phase;
    uint64_t replaces; // Number of the plan in force.
    uint64_t in_force; // The highest number of any phase that is.
    uint32_t call_count;
    struct call_id calls[LOCKSTEP_REPLAN_CALLS]; // Each with all its buckets.
};

// Names of modules [first, first + count) of total, for texts.
struct up_modules {
    uint32_t total;
    uint32_t first;
    uint32_t count;
    char names[LOCKSTEP_NAMES_PART][LOCKSTEP_NAME_BYTES];
};

// What a part of an answer holds. A worker answers with the parts that it was asked for, in this
// order; a list goes over as many parts as it needs.
enum answer_kind {
    ANSWER_PLACE = 1,
    ANSWER_THREADS = 2,
    ANSWER_FRAMES = 3,
    ANSWER_EVENTS = 4,
};

struct answer_place {
    char phase[LOCKSTEP_NAME_BYTES];
    char doing[LOCKSTEP_NAME_BYTES]; // "allreduce 'loss' #12"; empty: nothing outside the order.
    uint32_t missing_total; // Parameters of the longest open call without a gradient, ...
    uint32_t missing_count;
    char missing[LOCKSTEP_MISSING_NAMED][LOCKSTEP_NAME_BYTES]; // ... and the first of their names.
    // DEVICE_HOLD_STREAM: "the gradient of 'fc.weight'"; DEVICE_HOLD_NCCL: "NCCL (it said last: 'no
    // socket')", or empty.
    char awaited[LOCKSTEP_AWAITED_BYTES];
    uint64_t stream; // DEVICE_HOLD_STREAM: the one that makes it; 0: the default stream.
};

struct answer_threads {
    uint32_t count;
    struct stack_thread threads[LOCKSTEP_THREADS_PART];
};

struct answer_frames { // Innermost first, thread after thread.
    uint32_t count;
    struct stack_frame frames[LOCKSTEP_FRAMES_PART];
};

struct answer_events { // Oldest first.
    uint32_t count;
    struct trace_event events[LOCKSTEP_EVENTS_PART];
};

struct up_answer {
    uint64_t id; // Of the question.
    uint64_t clock_ns; // CLOCK_MONOTONIC as the worker answered: lays ranks beside each other.
    bool last; // No part follows.
    enum answer_kind kind;
    union {
        struct answer_place place;
        struct answer_threads threads;
        struct answer_frames frames;
        struct answer_events events;
    } u;
};

struct up_message {
    enum up_kind kind;
    struct generation_id generation; // Messages of another generation than the present are dropped.
    union {
        struct up_hello hello;
        struct up_start start;
        struct up_manifest_part manifest_part;
        struct up_ready ready;
        struct up_wait wait;
        struct layout_part layout_part;
        struct up_end end;
        struct up_heartbeat heartbeat;
        struct up_fail fail;
        struct up_lost lost;
        struct up_leave leave;
        struct up_links links;
        struct up_blocked blocked;
        struct up_modules modules;
        struct up_answer answer;
        struct up_replan replan;
    } u;
};

// ---- Coordinator to worker ---------------------------------------------------------------------

enum down_kind {
    DOWN_NONE = 0,
    DOWN_WELCOME, // Hello accepted; the world is still forming.
    DOWN_REFUSED, // Hello refused, or the world did not form. The stream ends.
    DOWN_GENERATION, // The world has formed: rank, world size, neighbours.
    DOWN_VERIFIED, // All manifests are equal.
    DOWN_MANIFEST_REQUEST, // Send manifest items [first, first + count).
    DOWN_GRANT, // Learning: append this slot to the order.
    DOWN_LAYOUT_PART, // Part of an agreed layout, before the plan that uses it.
    DOWN_PLAN_PART, // Part of a plan; the last part publishes it.
    DOWN_HALT, // The step, or the generation, cannot go on.
    DOWN_TUNING, // All links of the generation stand: what follows from their speed.
    DOWN_QUERY, // Another rank is blocked in this step: say so when you are.
    DOWN_INSPECT, // Say where you are.
};

struct down_welcome {
    uint32_t version;
    uint32_t heartbeat_ms;
};

// Why a worker was turned away; named for what it does next.
enum refusal {
    REFUSAL_NONE = 0,
    REFUSAL_VERSION = 1, // Install matching versions.
    REFUSAL_INVALID = 2, // Fix the configuration; text says what.
    REFUSAL_TIMEOUT = 3, // The world did not form in time; text says who is missing.
    REFUSAL_FULL = 4, // The coordinator's limits are reached.
    REFUSAL_DRAINING = 5, // The coordinator is going down; try again.
};

struct down_refused {
    enum refusal refusal;
    char text[LOCKSTEP_TEXT_BYTES];
};

struct peer {
    uint32_t rank;
    char address[LOCKSTEP_ADDRESS_BYTES];
    char host[LOCKSTEP_HOST_BYTES];
};

// Who shares memory with a worker, and whom it meets between hosts. A host here is a group of
// workers with one host_id, of LOCKSTEP_MAX_MATES at most. Workers of a host that has more are
// several such groups, of nearly the same size.
struct locality {
    uint32_t host; // Index of this worker's host, in the order of the hosts' lowest ranks.
    uint32_t hosts;
    uint32_t mate_count; // Workers of this host, this one among them.
    uint32_t mates[LOCKSTEP_MAX_MATES]; // Their ranks, ascending, ...
    uint32_t
        mate_pids[LOCKSTEP_MAX_MATES]; // ... and their processes, as their hellos name them. ...
    uint64_t mate_started[LOCKSTEP_MAX_MATES]; // ... Another start is another process.
    uint32_t local; // Index of this worker in mates.
    // Rings between hosts: as many as the smallest host has workers. Ring k joins mates[k] of every
    // host, in the order of hosts. Of ring `local`, when local < rings and hosts > 1:
    uint32_t rings;
    uint32_t successor; // A rank.
    uint32_t predecessor;
};

// What was measured of the links when the generation formed, and what follows from it. Equal on all
// ranks of a generation.
struct tuning {
    uint64_t latency_ns; // One way, of a few bytes; the worst link.
    uint64_t bytes_per_s; // Of one link in one direction while all are busy; the worst link.
    uint64_t doubling_bytes; // Payloads up to so many travel by ALGORITHM_DOUBLING, ...
    uint64_t halving_bytes; // ... above that and up to so many by ALGORITHM_HALVING.
    bool shares; // All mates of every host have mapped their host's memory.
    uint32_t wish; // enum plan_algorithm that every rank asks for, or ALGORITHM_BY_SIZE.
};

// A worker is told only the peers that it has links to, never the whole world.
struct down_generation {
    uint32_t rank;
    uint32_t world_size;
    uint32_t local_rank; // Index among the workers of this host.
    uint32_t local_size; // Workers on this host.
    // Payload of a ring frame, agreed for the generation. See worker/transport/ring/schedule.h.
    uint32_t chunk_bytes;
    uint8_t secret[LOCKSTEP_SECRET_BYTES];
    struct locality locality; // All zero: no rank shares a host with another.
    uint64_t gpus[LOCKSTEP_RANK_WORDS]; // Bit r % 64 of word r / 64: rank r computes on a GPU.
    bool gpus_meet; // Some ranks have none, and the GPUs of the others sum by NCCL first.
    uint32_t core_ranks; // Ranks that name the same cores, this one among them; 0: not known.
    uint32_t peer_count;
    struct peer peers[LOCKSTEP_MAX_NEIGHBOURS]; // Sorted by rank, without this worker.
};

struct down_manifest_request {
    uint32_t first;
    uint32_t count; // At most LOCKSTEP_MANIFEST_PART.
};

struct down_grant {
    uint64_t step;
    struct slot_id slot;
    bool forced; // The receiver has not made it, and gives it up.
};

struct down_query {
    uint64_t step;
    bool withdrawn; // The receiver said that it is blocked no more: nobody counts on it now.
    // What ranks wait for in different functions: a blocked rank says which of it is lacking. With
    // keys the query has no step.
    uint32_t key_count;
    struct await_key keys[LOCKSTEP_MAX_AWAITED];
    // Ranks call the collective of the only key differently. A rank in which it is in flight says
    // its own call of it by UP_FAIL.
    bool form;
};

enum inspect { // Bits.
    INSPECT_PLACE = 1,
    INSPECT_STACKS = 2,
    INSPECT_EVENTS = 4,
};
#define INSPECT_ALL 7u

struct down_inspect {
    uint64_t id; // Comes back in every part of the answer.
    uint32_t what; // Bits of enum inspect, at least one.
};

struct plan_slot {
    struct slot_id id;
    uint32_t algorithm; // enum plan_algorithm, or ALGORITHM_BY_SIZE.
};

struct down_plan_part {
    uint64_t number; // From 1, over all phases of the generation.
    uint64_t replaces; // Without closes_step: number of the plan whose place it takes.
    uint64_t phase; // Hash of the phase's name and of what is trained in it.
    uint64_t hash; // Of phase, slots and the layouts they use.
    bool closes_step; // True: it ends the learning step named by `step`.
    uint64_t step;
    uint32_t slot_total;
    uint32_t slot_first;
    uint32_t slot_count;
    bool last;
    bool strict; // Some rank's data plane pairs collectives by their order.
    struct plan_slot slots[LOCKSTEP_PLAN_PART];
};

struct down_halt {
    uint64_t step; // Takes effect when every step before it is settled; 0: at once.
    enum halt_kind kind;
    bool has_rank; // HALT_LOST and HALT_LEFT: which rank.
    uint32_t rank;
    char text[LOCKSTEP_REPORT_BYTES]; // The same on every rank.
    // HALT_LOST: the last failure of that rank, which ended without a goodbye. Empty: not known.
    char cause[LOCKSTEP_FAREWELL_TEXT_BYTES];
};

struct down_message {
    enum down_kind kind;
    struct generation_id generation;
    union {
        struct down_welcome welcome;
        struct down_refused refused;
        struct down_generation generation_start;
        struct down_manifest_request manifest_request;
        struct down_grant grant;
        struct layout_part layout_part;
        struct down_plan_part plan_part;
        struct down_halt halt;
        struct tuning tuning;
        struct down_query query;
        struct down_inspect inspect;
    } u;
};

enum reduce_op {
    REDUCE_SUM = 0,
    REDUCE_MEAN = 1, // sum(w g) / sum(w), one division at the owner. Floating point only.
    REDUCE_MIN = 2,
    REDUCE_MAX = 3,
    REDUCE_OR = 4, // Integers only.
};

#endif
