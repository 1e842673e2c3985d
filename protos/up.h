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
    uint32_t capability; // Compute capability in tenths: 90 is 9.0.
    uint32_t driver_version; // CUDA's version: 1000 for each major one, 10 for each minor one.
    uint32_t nccl_version; // As NCCL numbers them; 0: there is none.
    char nccl_missing[LOCKSTEP_NAME_BYTES]; // Why there is none; else empty.
};

struct up_hello {
    uint32_t version; // LOCKSTEP_PROTOCOL_VERSION
    char job[LOCKSTEP_JOB_NAME_BYTES];
    struct uuid uuid; // Names the worker, as long as it lives.
    char host_id[LOCKSTEP_HOST_BYTES]; // Equal on workers that can share memory.
    char host[LOCKSTEP_HOST_BYTES]; // For people.
    char address[LOCKSTEP_ADDRESS_BYTES]; // Address of its data plane: "tcp:10.0.0.1:4711",
                                          // "loopback:3".
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
    // The GPUs that it uses besides that one, for replicas of modules.
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
    // True if a wait gives up the slots that are planned before it and not made yet. It is in the
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
    uint32_t flags; // A parameter's: public LOCKSTEP_PARAMETER_*.
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
    uint32_t also_count; // Slots that the trainer's other threads wait for.
    struct slot_id also[LOCKSTEP_MAX_WAITS - 1];
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
    uint64_t in_flight_us; // Time during which a bucket was on its way.
    uint64_t overlap_us; // The part of in_flight_us before lockstep_step_end was called.
    uint64_t exposed_us; // Time that the trainer waited in lockstep_step_end.
    uint64_t zero_filled; // Buckets that this worker contributed as zeros.
    uint64_t unused; // Gradients that its calls did not produce.
};

// A collective of the trainer that has been in flight for longer than LOCKSTEP_OVERDUE_MS.
struct overdue {
    uint64_t space; // Hash of its name, as in the key of AWAIT_COLLECTIVE.
    uint64_t use; // Number of this use of the name, from 0.
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
    uint64_t collective_use; // Number of this use of it, from 0.
    // The last failure of a call that nothing has ended well after, as "LOCKSTEP_E_INVALID: ...".
    // Empty: there is none.
    char failure[LOCKSTEP_FAREWELL_TEXT_BYTES];
};

struct up_fail {
    uint64_t step;
    enum halt_kind kind;
    char text[LOCKSTEP_TEXT_BYTES]; // This rank's side, in one sentence.
    // HALT_COLLECTIVE: how this rank calls it, for a text with both sides. form "": not said.
    uint64_t space; // The collective, as in the key of AWAIT_COLLECTIVE.
    uint64_t use; // Number of this use of it, from 0.
    char name[LOCKSTEP_NAME_BYTES]; // Name of the collective.
    char form[LOCKSTEP_FORM_BYTES]; // "lockstep_allreduce with 4 elements of float32, sum"
};

struct up_lost {
    uint32_t rank; // The peer that was lost.
    bool left; // True if it said goodbye on the data plane.
    bool silent; // True if its host acknowledged nothing any more.
    bool impossible; // True if it broke the protocol; it may be alive.
    uint64_t step; // The first step that cannot be completed without it, by the reporter's word.
    char text[LOCKSTEP_TEXT_BYTES]; // The data plane's error: "connection reset by peer".
};

// A worker's measurements of its links, once all of them are connected. 0: not measured.
struct up_links {
    bool shares; // Its mates and it have mapped their host's memory; true also without mates.
    uint64_t latency_ns; // One way, of a few bytes; the slowest of its links.
    uint64_t bytes_per_s; // One link, one direction, while all are busy; the slowest link.
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

// A better plan of a phase: its calls in another order, or more of them. The message may be
// ignored; the steps are right without it, and only slower.
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

// The contents of a part of an answer. A worker answers with the parts that it was asked for, in
// this order; a list goes over as many parts as it needs.
enum answer_kind {
    ANSWER_PLACE = 1,
    ANSWER_THREADS = 2,
    ANSWER_FRAMES = 3,
    ANSWER_EVENTS = 4,
};

struct answer_place {
    char phase[LOCKSTEP_NAME_BYTES];
    char doing[LOCKSTEP_NAME_BYTES]; // "allreduce 'loss' #12"; empty: nothing outside the order.
    uint32_t missing_total; // Parameters without a gradient, of the call that is open longest.
    uint32_t missing_count;
    char missing[LOCKSTEP_MISSING_NAMED]
                [LOCKSTEP_NAME_BYTES]; // Names of the first missing_count of them.
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
    uint64_t id; // The id of the question.
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

#endif
