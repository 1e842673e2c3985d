// SPDX-License-Identifier: Apache-2.0
//
// Messages from a worker to the coordinator. types.h has the rules of all messages. Any thread.

#ifndef LOCKSTEP_PROTOS_UP_H
#define LOCKSTEP_PROTOS_UP_H

#include "protos/place.h"

#include <stdbool.h>
#include <stdint.h>

enum up_kind {
    UP_NONE = 0,
    UP_HELLO, // First message of a stream: the worker wants to join a job.
    UP_START, // lockstep_start was called: the coordinator compares the worker's manifest.
    UP_MANIFEST_PART, // Answer to DOWN_MANIFEST_REQUEST.
    UP_READY, // Learning: a slot is ready on this rank.
    UP_WAIT, // Learning: the trainer blocks in call_wait.
    UP_LAYOUT_PART, // Learning, rank 0 only, before its UP_END: proposed layout of a module.
    UP_END, // Learning: step_end was called.
    UP_HEARTBEAT,
    UP_FAIL, // This rank noticed a disagreement between ranks; answered by DOWN_HALT to all.
    UP_LOST, // The data plane lost a peer; answered by DOWN_HALT to all.
    UP_LEAVE, // lockstep_close was called. The end of the stream after this message is no error.
    UP_LINKS, // All links of this worker are connected and measured.
    UP_BLOCKED, // A planned step: the trainer is blocked in call_wait, or is no longer blocked.
    // In lockstep_start. Rank 0: the names of the modules. Every rank, if modules have groups:
    // which of them it has.
    UP_MODULES,
    UP_ANSWER, // Part of the answer to DOWN_INSPECT.
    UP_REPLAN, // Several steps differ from their plan in the same way: proposes a better plan.
    UP_REACH, // A collective wants links to other ranks; answered by DOWN_ADDRESSES.
    UP_RECORD_PART, // Recovery: part of a record, before the UP_REPORT that it belongs to.
    UP_REPORT, // Recovery: answer to DOWN_PREPARE. This rank is frozen.
    UP_REFUSE, // Recovery: this rank has promised a higher ballot than that of DOWN_PREPARE.
};

enum failure_policy {
    FAILURE_ERROR = 0, // A lost rank ends the generation with an error on every other rank.
    FAILURE_CONTINUE = 1, // The other ranks finish the step. Not supported yet: it is refused.
};

// The GPU that a worker computes on, and the CUDA and NCCL versions that the worker found.
struct gpu {
    struct uuid uuid; // The driver's UUID of the device, or of a MIG instance.
    uint32_t capability; // Compute capability times 10: 90 is 9.0.
    uint32_t driver_version; // CUDA version of the driver: 1000 x major + 10 x minor.
    uint32_t nccl_version; // NCCL's version code (10000 x major + 100 x minor + patch); 0: no NCCL.
    char nccl_missing[LOCKSTEP_NAME_BYTES]; // Why NCCL cannot be used; empty if it can.
};

struct up_start {
    uint64_t manifest_hash;
    uint32_t item_count; // Items of the manifest, see struct manifest_item.
    uint32_t root; // Rank whose state is broadcast; compared like the manifest.
    uint64_t settled; // Last step that is settled on this rank; 0 before the first one.
    // True if a wait for a slot defers the earlier slots of the plan that this rank has not made
    // yet: they travel as zeros. The manifest contains this option, so it is equal on all ranks.
    bool zero_defer;
    bool strict; // True if the worker's data plane matches collectives by their order.
    bool grouped; // True if the worker has registered modules with a group.
};

// Where a member of a generation is that comes back: its stream had ended, or its coordinator. What
// the coordinator needs of a learning step follows the hello: UP_READY for each slot that the rank
// was granted, in the order of grants, then UP_READY for each other slot that it has made, layouts,
// UP_WAIT and UP_END as if for the first time. The same follows a change of generation.
struct up_resume {
    struct generation_id generation;
    uint32_t rank;
    uint32_t world_size;
    uint64_t settled; // Last step that is settled on this rank.
    uint32_t rounds; // Rounds of lockstep_start that this rank knows to be complete.
    bool starting; // True if the rank is in lockstep_start; UP_START follows.
    bool frozen; // True if the rank waits for the decision of a ballot, or for links after it.
    uint64_t plan_number; // Highest number of a plan that the rank holds.
    // The step that the rank learns, or whose plan it holds, and which is not settled here; 0:
    // none.
    uint64_t learning_step;
    struct tuning tuning; // Tuning of the generation.
    struct up_start start; // The rank's last UP_START; zeros: it has sent none.
    struct generation_id founder; // The job's first generation: it tells jobs of one name apart.
    struct generation_id promised; // The highest ballot that the rank promised; 0: none.
    // From the last generation that every member is known to have started, to the newest one that
    // this rank has started, which is `generation`. Empty on ranks that do not go on after a death.
    uint32_t chain_count;
    struct lineage chain[LOCKSTEP_CHAIN];
    // Members of these generations that are proven dead, as struct lineage.members.
    uint64_t dead[LOCKSTEP_RANK_WORDS];
};

struct up_hello {
    uint32_t version; // LOCKSTEP_PROTOCOL_VERSION
    char job[LOCKSTEP_JOB_NAME_BYTES];
    struct uuid uuid; // Identifies the worker for the life of its session.
    char host_id[LOCKSTEP_HOST_BYTES]; // Equal on workers that can share memory.
    char host[LOCKSTEP_HOST_BYTES]; // Host name that texts show.
    // Address of the worker's data plane: "tcp:10.0.0.1:4711", "loopback:3".
    char address[LOCKSTEP_ADDRESS_BYTES];
    uint32_t pid;
    uint32_t world_min; // Smallest world size that the worker accepts.
    uint32_t world_max; // Largest world size; equal to world_min for an exact size.
    uint32_t window_ms; // How long to wait for more workers when world_min workers have joined.
    bool has_rank_hint;
    uint32_t rank_hint;
    uint32_t open_timeout_ms; // How long this worker waits for the world; 0: the default.
    enum failure_policy on_failure;
    // Class of device that the worker computes on; empty: not known.
    char device[LOCKSTEP_DEVICE_BYTES];
    // When the worker's process started, and in which namespace of pids (process_started in
    // worker/support/process.h). pid and started together identify a process of a host, even after
    // the pid is reused. 0: not known.
    uint64_t started;
    // Hash of the CPU cores that the worker may run on. Equal on workers that may run on the same
    // cores of one kernel, even if their host_id differs, as that of pods on one node. 0: not
    // known.
    uint64_t cores;
    bool has_gpu;
    struct gpu gpu;
    // The GPUs that the worker uses besides `gpu`, for replicas of modules.
    uint32_t further_gpu_count;
    struct uuid further_gpus[LOCKSTEP_MAX_OWN_DEVICES - 1];
    // Why the GPU that the user chose for this worker cannot be used; empty: no problem. The worker
    // joins nevertheless, so that the coordinator can report the problem to all workers.
    char gpu_problem[LOCKSTEP_NAME_BYTES];
    // True if another coordinator may answer when this one sends the worker away: there are several
    // addresses, or a name.
    bool elsewhere;
    uint32_t virtual_ranks; // config.virtual_ranks. Equal on all workers.
    bool resumes; // True if the worker is a member of a generation and comes back: `resume` is
                  // valid.
    struct up_resume resume;
};

#define MANIFEST_LOADED "loaded file"

enum manifest_kind {
    // Options of the session (name ""), its policies (name "policies"), and the checksum of the
    // file that it loaded (name MANIFEST_LOADED), as text.
    MANIFEST_SESSION = 1,
    MANIFEST_MODULE = 2, // A module: value holds its options as text.
    MANIFEST_PARAMETER = 3,
    MANIFEST_BUFFER = 4,
};

// One item of the manifest. The items of the session come first, then each module, followed by its
// parameters and its buffers. Two manifests are equal when all their items are equal.
struct manifest_item {
    enum manifest_kind kind;
    uint32_t module; // Index of the module that the item belongs to.
    char name[LOCKSTEP_NAME_BYTES];
    enum dtype dtype;
    uint32_t flags; // MANIFEST_PARAMETER: bits of the public LOCKSTEP_PARAMETER_*.
    uint32_t dims;
    int64_t shape[LOCKSTEP_MAX_DIMS]; // In elements.
    int64_t strides[LOCKSTEP_MAX_DIMS]; // In elements.
    char value[LOCKSTEP_OPTIONS_BYTES]; // Options as "key=value key=value"; empty: no options.
};

struct up_manifest_part {
    uint32_t first; // Index of items[0].
    uint32_t count;
    struct manifest_item items[LOCKSTEP_MANIFEST_PART];
};

struct up_ready {
    uint64_t step;
    uint64_t phase; // Hash of the phase's name and of the set of parameters that it trains.
    struct slot_id slot;
    enum dtype dtype;
    uint64_t elements;
    // 0: the slot is not granted as far as this rank knows. Otherwise the rank says again that it
    // is: 1 + the slot's place in the order of grants. Then dtype and elements are 0.
    uint32_t granted;
    uint32_t grants; // With `granted`: number of grants of the step that this rank has.
    // With `granted`: this rank has not made the slot, and holds no plan that has the slot's call.
    bool unmade;
};

struct up_wait {
    uint64_t step;
    uint64_t phase;
    struct slot_id slot;
    uint32_t also_count;
    struct slot_id also[LOCKSTEP_MAX_WAITS - 1]; // Slots that the trainer's other threads wait for.
};

struct up_end {
    uint64_t step;
    uint64_t phase;
    // Number and hash of the plan that has closed the step here. Only a rank that says the end
    // again has it. 0: the step is not closed.
    uint64_t plan;
    uint64_t plan_hash;
};

// What the trainer is doing. The numbers are on the wire.
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
    uint64_t bytes_copied; // Bytes of results that were copied out of scratch memory.
    uint64_t in_flight_us; // Time during which at least one bucket was in flight.
    uint64_t overlap_us; // The part of in_flight_us before lockstep_step_end was called.
    uint64_t exposed_us; // Time that the trainer waited in lockstep_step_end.
    uint64_t zero_filled; // Buckets that this worker contributed as zeros.
    uint64_t unused; // Gradients that the calls of this worker did not produce.
};

// A collective of the trainer that has been in flight for longer than LOCKSTEP_OVERDUE_MS.
struct overdue {
    uint64_t space; // Hash of the collective's name, as in the key of AWAIT_COLLECTIVE.
    uint64_t use; // Number of this use of the name, from 0.
    uint64_t signature; // Hash of the arguments that must be equal on all ranks.
};

// A metric of the job, as of the last step that is final on the worker.
struct metric_state {
    char name[LOCKSTEP_METRIC_NAME_BYTES];
    uint32_t kind; // enum metric_kind
    uint32_t count; // Number of values behind it.
    double value;
};

// A counter of the job, as of the last step that is final on the worker.
struct counter_state {
    char name[LOCKSTEP_METRIC_NAME_BYTES]; // The counter's name, or its beginning and a mark.
    int64_t total;
};

struct up_heartbeat {
    uint64_t step; // Step that the trainer has opened last.
    uint64_t settled; // Last step that this worker knows to be final on every rank.
    enum worker_activity activity;
    uint64_t since_ms; // Time that the trainer has been in that activity.
    char mark[LOCKSTEP_MARK_BYTES];
    uint64_t bytes_sent;
    uint64_t bytes_received;
    struct step_totals totals;
    struct place place;
    uint32_t flags; // Bits of enum place_flag.
    uint64_t pause_ms; // PLACE_PAUSED: the expected length that lockstep_pause was given.
    uint32_t link_count;
    struct link_state links[LOCKSTEP_LINKS_NAMED]; // Links without progress.
    uint32_t mate_count;
    struct mate_state mates[LOCKSTEP_MATES_NAMED]; // Mates whose process does not run.
    enum device_hold held; // Set only while the place does not change.
    // With PLACE_DISK: the system call and the function of the kernel that the trainer sleeps in,
    // as "read (nfs_wait_bit_killable)". Empty: not known.
    char sleeps[LOCKSTEP_KERNEL_BYTES];
    struct await await;
    uint32_t overdue_count;
    struct overdue overdue[LOCKSTEP_OVERDUE_NAMED]; // The oldest overdue collectives.
    // Name of the trainer's collective that a thread waits for; the sentence about a stall shows
    // it. The wait may have a timeout, and other threads may wait, too. Empty: no thread waits.
    char collective[LOCKSTEP_NAME_BYTES];
    uint64_t collective_use; // Number of this use of that name, from 0.
    char collective_detail[LOCKSTEP_DETAIL_BYTES]; // As in struct await; empty: nothing to add.
    // The last failure of a library call, as "LOCKSTEP_E_INVALID: ...". Empty: no call has failed,
    // or a later call has succeeded.
    char failure[LOCKSTEP_FAREWELL_TEXT_BYTES];
    // Only rank 0 reports metrics and counters: they are equal on all ranks.
    uint32_t metric_count;
    struct metric_state metrics[LOCKSTEP_MAX_METRICS];
    uint32_t counter_count;
    struct counter_state counters[LOCKSTEP_MAX_COUNTERS]; // Those whose names rank 0 knows.
};

struct up_fail {
    uint64_t step;
    enum halt_kind kind;
    char text[LOCKSTEP_TEXT_BYTES]; // The disagreement as this rank sees it, in one sentence.
    // HALT_COLLECTIVE only: the collective, and how this rank calls it.
    uint64_t space; // Hash of the collective's name, as in the key of AWAIT_COLLECTIVE.
    uint64_t use; // Number of this use of the name, from 0.
    char name[LOCKSTEP_NAME_BYTES]; // Name of the collective.
    // "lockstep_allreduce with 4 elements of float32, sum"; empty: not known.
    char form[LOCKSTEP_FORM_BYTES];
};

// How the reporter of a loss knows that the process is gone. The end of a connection alone is no
// proof: a rank that freezes closes its own connections.
enum loss_proof {
    PROOF_NONE = 0,
    PROOF_PROCESS = 1, // A mate of the same host saw the process end.
    PROOF_PORT = 2, // Its data port refuses connections, or belongs to another worker.
    PROOF_WORD = 3, // The rank said so itself.
};

#define UP_LOST_NEVER UINT64_MAX

struct up_lost {
    uint32_t rank; // The peer that was lost.
    bool left; // True if the peer closed its session: it sent a LEAVE frame.
    bool silent; // True if the peer's host stopped acknowledging data.
    bool impossible; // True if the peer broke the protocol; it may be alive.
    bool told; // True if the rank `witness` has seen the loss, and told the reporter.
    enum loss_proof proof;
    uint32_t witness; // Valid if told.
    // The first step that the reporter cannot complete without the peer. UP_LOST_NEVER: it has
    // heard the goodbye of the peer (PROOF_WORD), and waits for the coordinator only.
    uint64_t step;
    char text[LOCKSTEP_TEXT_BYTES]; // The data plane's error: "connection reset by peer".
};

// A worker's measurements of its links, once all of them are connected. 0: not measured.
struct up_links {
    // True if this worker and its mates have mapped the shared memory of their host, or if it has
    // no mates.
    bool shares;
    uint64_t latency_ns; // One-way time of a few bytes on the worker's slowest link.
    // Bandwidth of the worker's slowest link in one direction, while all its links are busy.
    uint64_t bytes_per_s;
    uint32_t wish; // enum plan_algorithm that LOCKSTEP_ALGORITHM names, or ALGORITHM_BY_SIZE.
    // True if the wish is that of LOCKSTEP_SUM=ranks (config.sum). It changes the words of a
    // verdict only.
    bool sums_ranks;
};

struct up_leave {
    uint64_t settled;
    char reason[LOCKSTEP_MARK_BYTES];
    // The failure after which the trainer closed its session; empty: no failure.
    char cause[LOCKSTEP_FAREWELL_TEXT_BYTES];
    // Where the others go on after a death, the result of the sender's last wave, which others may
    // lack. REPORT_OPENED: the open wave of step settled + 1. REPORT_SKIPPED: the open wave of step
    // `settled`, in which no rank had data. 0: the commit wave of step `settled`.
    uint32_t flags;
    uint32_t word_count; // 0: there was no such wave.
    uint64_t words[LOCKSTEP_WAVE_BYTES / 8];
};

// One call that a thread of a trainer waits for.
struct blocked_wait {
    struct call_id call;
    // Positions of the plan that every rank must make before the slots of this call can complete.
    struct slot_set needs;
};

// A call of the plan that a blocked trainer has not made.
struct blocked_lack {
    uint32_t position; // Position of the call's lowest slot that is not ready.
    struct call_id call;
};

// Reports that the trainer of a rank is blocked in a planned step (docs/internals/order.md, R9). A
// report replaces the rank's last report. A report without waits says that the trainer is no longer
// blocked: another thread runs, or a wait has timed out.
struct up_blocked {
    uint64_t step;
    uint64_t space; // Hash of the plan that all positions below refer to.
    uint32_t wait_count;
    struct blocked_wait waits[LOCKSTEP_MAX_WAITS];
    struct slot_set lacks; // Positions of the plan that are not ready on this rank.
    // The first calls with positions in `lacks`, one entry for each call, in the order of
    // positions.
    uint32_t lack_count;
    struct blocked_lack lacking[LOCKSTEP_LACKS_NAMED];
};

// A better plan of a phase: its calls in another order, or more of them. The coordinator may ignore
// the message: without the better plan steps are slower, but their results are right.
struct up_replan {
    // A settled step. In this step, and in the steps of the phase before it, all ranks made the
    // calls below.
    uint64_t step;
    uint64_t phase;
    uint64_t replaces; // Number of the phase's plan in force.
    uint64_t in_force; // Highest number of the plans in force, over all phases.
    uint32_t call_count;
    struct call_id calls[LOCKSTEP_REPLAN_CALLS]; // Each call stands for all its buckets.
};

// The other ranks of the job whose addresses the worker needs, because it is to connect to them.
struct up_reach {
    uint32_t count; // At least 1.
    uint32_t ranks[LOCKSTEP_REACH_RANKS];
};

enum report_flag { // Bits.
    REPORT_OPENED = 1, // The open wave of `step` is complete here: RECORD_OPENING.
    REPORT_BEGUN = 2, // step_begin has returned for `step`.
    REPORT_CLOSED = 4, // The close wave of `step` is complete here: RECORD_CLOSING.
    REPORT_ALL_FINAL =
        8, // All slots of `step` are final here: the rank has joined the commit wave.
    REPORT_SUSPECT = 16, // This rank is itself among the suspects of the ballot.
    // The step `settled` was opened and not run, because no rank had data: RECORD_OPENING is of it.
    REPORT_SKIPPED = 32,
};
#define REPORT_FLAGS 63u

// What a frozen rank knows, with the records before it. From the report on the rank writes nothing
// and sends nothing of its old generation.
struct up_report {
    struct generation_id ballot; // The ballot that it answers.
    uint64_t settled; // The last step whose commit wave is complete here.
    uint64_t step; // settled + 1 if that step is open or being opened, else settled.
    uint32_t flags; // Bits of enum report_flag.
    uint64_t phase; // Phase of `step` if REPORT_BEGUN, else 0.
    uint64_t space; // Hash of the plan of `step`, as in struct up_blocked.
};

// The answer to a ballot that is not above the promise.
struct up_refuse {
    struct generation_id promised;
};

// Names of modules [first, first + count) of total, and of their groups. Texts show them. Ranks
// other than rank 0 name no modules.
struct up_modules {
    uint32_t total;
    uint32_t first;
    uint32_t count;
    char names[LOCKSTEP_NAMES_PART][LOCKSTEP_NAME_BYTES];
    char groups[LOCKSTEP_NAMES_PART][LOCKSTEP_GROUP_NAME_BYTES]; // Empty: all ranks.
    uint64_t grouped; // Bit m is 1 if module m has a group. Equal on all ranks.
    uint64_t absent; // Bit m is 1 if the worker is no member of that group.
};

// What a part of an answer contains. A worker sends the kinds that the question asked for, in this
// order. A long list takes several parts.
enum answer_kind {
    ANSWER_PLACE = 1,
    ANSWER_THREADS = 2,
    ANSWER_FRAMES = 3,
    ANSWER_EVENTS = 4,
};

struct answer_place {
    char phase[LOCKSTEP_NAME_BYTES];
    // The plain collective that the trainer is in: "allreduce 'loss' #12"; empty: none.
    char doing[LOCKSTEP_NAME_BYTES];
    // Number of parameters of the call that is open longest that have no gradient yet.
    uint32_t missing_total;
    uint32_t missing_count;
    char missing[LOCKSTEP_MISSING_NAMED]
                [LOCKSTEP_NAME_BYTES]; // Names of the first missing_count of these parameters.
    // The thing that the rank's device has not finished. DEVICE_HOLD_STREAM: "the gradient of
    // 'fc.weight'"; DEVICE_HOLD_NCCL: "NCCL (it said last: 'no socket')", or empty.
    char awaited[LOCKSTEP_AWAITED_BYTES];
    // DEVICE_HOLD_STREAM: handle of the stream that makes this thing; 0: the default stream.
    uint64_t stream;
};

struct answer_threads {
    uint32_t count;
    struct stack_thread threads[LOCKSTEP_THREADS_PART];
};

struct answer_frames { // The frames of one thread after another, each innermost first.
    uint32_t count;
    struct stack_frame frames[LOCKSTEP_FRAMES_PART];
};

struct answer_events { // Oldest first.
    uint32_t count;
    struct trace_event events[LOCKSTEP_EVENTS_PART];
};

struct up_answer {
    uint64_t id; // The id of the DOWN_INSPECT that is answered.
    // CLOCK_MONOTONIC when the worker answered; with it the events of different ranks can be put
    // on one time line.
    uint64_t clock_ns;
    bool last; // True if no part of this answer follows.
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
    // The sender's generation. The coordinator drops a message of a generation that is not current.
    struct generation_id generation;
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
        struct up_reach reach;
        struct record_part record_part;
        struct up_report report;
        struct up_refuse refuse;
    } u;
};

#endif
