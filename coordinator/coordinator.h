// SPDX-License-Identifier: Apache-2.0
//
// The coordinator's core: jobs, joining, ranks, generations, comparison of manifests, learning of
// plans, failures. Pure: it is one function, (event, now) -> actions, with no clock, no socket, no
// thread, no lock, no log and no allocation. The server runs it on one thread; the simulator drives
// thousands of workers through it.
//
// Rules, in prose:
//
// Joining. A worker's first message is a hello. The first hello for a job name creates the job and
// fixes its wanted world (min, max, window); a later one that differs is refused with both values.
// The world forms when max workers are there, or when at least min are there and window_ms has
// passed since the last one joined. It fails for a worker when that worker's own open_timeout has
// passed (0: LOCKSTEP_OPEN_TIMEOUT_MS): refused with "3 of 4 workers joined job 'x' in 10.0 s;
// missing rank hints: 2; ..."; one whose peers were turned away before hears how many were there at
// most. A second worker with a rank hint that is taken is refused by name, and so is a hint that is
// not below world_max. A worker that disconnects before the world has formed is simply forgotten. A
// running job takes nobody.
//
// GPUs. A hello says which GPU its worker computes on, if any, and which NCCL it found; or why the
// GPU that it was told to compute on cannot be used. A world with such a worker does not form, nor
// one in which two workers compute on one GPU, or in which several have GPUs and some of these have
// no NCCL, one older than LOCKSTEP_NCCL_OLDEST, or another major or minor version than the others:
// all its workers are refused with one sentence that names who it is. The generation says which
// ranks have a GPU.
//
// Ranks. Workers with a hint get the rank they ask for when all hints are below the world size.
// The others fill the free ranks grouped by host_id (hosts in order of first arrival, workers of a
// host in order of arrival). Without any hint all ranks are grouped by host.
//
// Generations. number counts up within a job, incarnation is the coordinator's random id. A
// message of another generation is dropped (and counted). When a generation has ended (a death, a
// halt, everybody left) its workers are out, though their streams may stand; new hellos under the
// same job name gather a new one at once. One generation forms in one event, because each needs its
// own entropy; when more are due, coordinator_deadline is due again immediately.
//
// Jobs. When a new job or worker finds no room, the oldest job that nobody is connected to is
// forgotten. Its name then counts on from a higher number, never from one again.
//
// Links. Every member says once, when all its links stand, how fast they are, whether it shares
// memory with its mates, and which algorithm its user asks for. When all have said so, all get the
// tuning: the slowest latency, the lowest bandwidth, what follows from these, and whether all
// share. Wishes that differ, or that the world cannot grant: HALT_TUNING, naming two ranks or
// saying why. Who leaves before that is missed by the first member whose links stand.
//
// Start. Manifest hashes, item counts and roots are compared as they arrive; at the first
// difference the items of the two ranks (the lowest rank, and the lowest that differs from it) are
// requested part by part and compared; every member gets the same two-sided report (HALT_MANIFEST)
// without waiting for the ranks that have not called start. A rank that does not send its items for
// five seconds is named, and the report goes out as far as it is. When all are equal:
// DOWN_VERIFIED, and the round of lockstep_start is complete. In a running job members may call it
// again, all of them after the same step s; the first one begins the next round, in which the same
// holds. Verdicts of that round are of step s + 1, for a member may still have to settle s. Plans
// are numbered on, and a learned step stays learned. A member that learns step s + 1 while another
// is in the round: HALT_MANIFEST, naming both. A second UP_START in one round is impossible.
//
// Learning (order protocol, section 6, states SERVING). A slot is granted to all, in the order of
// completion, when on every member it is ready or the step has ended there. Dtype or elements that
// differ for the same slot: halt, naming both sides. Who speaks of another phase than the first one
// that spoke is not heard, so nothing is granted or planned any more: the ranks find out from one
// another's step headers, and say so by UP_FAIL, because they know what phases and parameters are
// called. Ranks that wait for each other: HALT_ORDER, found at the wait that closes the circle.
// Under the policy zero_defer they get on instead: once every member waits or has ended, the
// smallest slot (module, call, bucket) that is waited for is granted, and those who have neither
// made it nor ended give it up. The policy is that of lockstep_start. When all members have ended
// the step, the plan is published: calls in the order of their first grant, each with
// the buckets of its module's layout. The layouts are those that rank 0 proposed before its end, at
// most one for each module; all of them are published before the plan, and forgotten with the step.
// A plan has a number and a hash over phase, slots and layouts, see publish.c. Steps count up from
// 1 or more, a learned step is never learned again, and a phase may be: workers hold a bounded
// number of plans.
//
// Waits of planned steps. A rank whose wait may not end reports what it needs and what it lacks. At
// the first report of a step all others are asked to say so when they wait in it, too. Ranks that
// wait for each other: HALT_ORDER, at the report that closes the circle; see knot.c. Nobody waits
// for time.
//
// Plans in the place of others (order protocol, R13). A member whose steps differ from their plan
// time and again says which calls the plan should have, and in which order (UP_REPLAN). All get
// that plan under the next number, with the number that it replaces; they put it into force
// themselves. Nothing happens when it is not said of the last plan of its phase, when the last plan
// of this kind is not in force yet, or when LOCKSTEP_REPLAN_TIMES have taken the place of what was
// learned.
//
// Failure. A stream that ends without UP_LEAVE, or UP_LOST from any member with left == false, is
// the death of a worker: HALT_LOST to all that are still connected (also to the lost one, when only
// its links are broken), naming rank and host ("rank 2 on host b was lost: ..."), the generation
// has ended. The first cause wins; further deaths of the same generation change nothing. UP_LOST
// with left == true, or about a rank that has said UP_LEAVE: HALT_LEFT. So is one who leaves while
// others are in start or in a learning step. UP_FAIL: HALT with the kind and text of the reporter,
// prefixed by its rank and host; of kind HALT_LOST: it gives up itself (lockstep_abort). Of a
// collective that differs the text has the calls of two ranks, if a second rank says its own within
// LOCKSTEP_SIDES_MS: all are asked. After a
// verdict of step s, only UP_FAIL and UP_LOST of an earlier step are heard: the one makes another
// verdict, the other the same one for that step, because members that were told close their links.
// Everything else is dropped. A missed heartbeat ends nothing.
//
// Impossible messages, by someone who has no rank yet: refused. By a member: HALT_PROTOCOL to all
// with a sentence that names it, and the end of its stream.
//
// Texts are for people: what, who, what to do. Calls are named as rank 0 names modules, and counted
// from 1: "'actor' (call 3)"; slots by their numbers, "module 2 call 0 bucket 1". Every text is
// valid UTF-8 without control characters but the newlines between the lines of a report.
//
// Where workers are. Heartbeats say how far each is and what its trainer does, and rank 0 says what
// the modules are called, once in every round of lockstep_start. EVENT_ASK asks one member where it
// is (DOWN_INSPECT), at most once in LOCKSTEP_INSPECT_PAUSE_MS; what it answers is whoever's who
// asked, and the core keeps what a sentence about a stall needs.
//
// Standstills. From these the core finds who is in the way of the others: the rules are at the head
// of stall.c. A stall is found at most LOCKSTEP_WATCH_MS after the heartbeat that shows it. Its
// culprits are asked what they do, and when they have answered, or LOCKSTEP_INSPECT_MS have passed,
// the stall is in the views and in the log, in one sentence. It is no verdict: nothing ends by it,
// and it is over when the job moves on. At most one of a job goes on at a time. A job in which
// nobody has said where it is has none.
//
// Draining. After EVENT_DRAIN every new hello is refused, and those who wait for a world are turned
// away; members are told nothing (training goes on without a coordinator until its streams end).

#ifndef COORDINATOR_COORDINATOR_H
#define COORDINATOR_COORDINATOR_H

struct job;
struct worker;

#include "protos/limits.h"
#include "protos/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct coordinator; // Opaque; the caller provides its memory.

struct coordinator_config {
    uint64_t incarnation; // Random, never 0.
    uint32_t chunk_bytes; // Handed to every generation; 0: the default.
    uint32_t heartbeat_ms; // 0: LOCKSTEP_HEARTBEAT_MS
    uint32_t stall_floor_ms; // No bound of a stall is lower; 0: LOCKSTEP_STALL_FLOOR_MS
};

// A stream as the server names it. Never reused while the core knows it.
typedef uint64_t coordinator_peer;

enum coordinator_event_kind {
    EVENT_MESSAGE, // peer sent message. The first message of a peer makes it known.
    EVENT_CLOSED, // peer's stream ended, for whatever reason in text.
    EVENT_TICK, // A deadline passed.
    EVENT_DRAIN, // Take no new workers.
    EVENT_ASK, // Somebody wants to know where a rank is: `job`, `rank`, `what`.
};

struct coordinator_event {
    enum coordinator_event_kind kind;
    coordinator_peer peer;
    const struct up_message *message; // EVENT_MESSAGE; borrowed for the call.
    uint64_t origin; // A hello's address, as a hash; 0: jobs from there have no bound.
    const char *text; // EVENT_CLOSED; borrowed, may be NULL.
    const char *job; // EVENT_ASK, borrowed: the latest job of that name.
    uint32_t rank; // EVENT_ASK
    uint32_t what; // EVENT_ASK: bits of enum inspect.
    uint8_t entropy[LOCKSTEP_SECRET_BYTES]; // Fresh random bytes; used when a generation forms.
};

enum coordinator_action_kind {
    ACTION_SEND, // Send message to peer.
    // End peer's stream after what was sent. EVENT_CLOSED need not follow, and no EVENT_MESSAGE of
    // this peer may: to the core it would be a stranger's.
    ACTION_CLOSE,
    ACTION_LOG, // One line for the log: id is a fixed snake_case event, text is logfmt fields.
};

struct coordinator_action {
    enum coordinator_action_kind kind;
    coordinator_peer peer;
    const struct down_message *message; // Borrowed for the call of the sink.
    const char *log_id;
    const char *text;
};

// Receives the actions of one step, in order. It must not call into the core.
struct coordinator_sink {
    void (*action)(void *context, const struct coordinator_action *action);
    void *context;
};

// Memory that coordinator_init needs, below 66 MiB. It need not be zero, and most of it is touched
// only when there are many jobs and workers.
size_t coordinator_bytes(void);
struct coordinator *coordinator_init(void *memory, const struct coordinator_config *config);

// The core is one function. now_ms is monotonic.
void coordinator_step(struct coordinator *coordinator, const struct coordinator_event *event,
                      uint64_t now_ms, struct coordinator_sink sink);

// When EVENT_TICK is due, in the same clock; UINT64_MAX: never.
uint64_t coordinator_deadline(const struct coordinator *coordinator);

// ---- Views, for HTTP and tests. They copy; nothing is borrowed. --------------------------------

enum job_state {
    JOB_GATHERING = 0, // Waiting for workers.
    JOB_STARTING = 1, // Manifests are being compared: the world has formed, or starts again.
    JOB_RUNNING = 2,
    JOB_HALTED = 3, // A verdict ended the generation; text says which.
    JOB_FINISHED = 4, // Everybody left in good order.
};

struct job_view {
    char name[LOCKSTEP_JOB_NAME_BYTES];
    enum job_state state;
    struct generation_id generation;
    uint32_t world_size; // Size of the generation, or the wanted one (max) while gathering.
    uint32_t joined; // Workers present.
    uint32_t left; // Members that left in good order.
    uint64_t plan_number; // Highest plan published; 0: still learning.
    uint32_t hosts; // Groups of workers that may share memory; 0 while gathering.
    bool tuned; // All links stand, and `tuning` says what they are like.
    struct tuning tuning;
    // Lowest and highest step of its members. A member is at least at the last step that is final
    // on every rank, though its heartbeat is older; one that left is at its last final step.
    uint64_t step_min;
    uint64_t step_max;
    struct step_totals totals; // Sums over its workers, as of their last heartbeats.
    uint64_t messages_total; // Control messages from its members, heartbeats not included.
    uint64_t dropped_total; // Messages of other generations, or after the end of theirs.
    char halt_text[LOCKSTEP_TEXT_BYTES];
    const char *halt_kind; // "lost"; NULL: no verdict. Static.
    bool halt_has_rank;
    uint32_t halt_rank; // That the verdict is about.
    uint64_t settled; // The last step that is final on every rank, as far as known.
    // In the clock of now_ms; 0: it has not happened.
    uint64_t settled_ms; // When the first rank said so.
    uint64_t formed_ms; // When the generation formed.
    uint64_t ended_ms; // When a verdict ended it, or the last rank left.
    // The ranks that left with a failure: their number, and the lowest one with its failure.
    uint32_t failed;
    uint32_t failed_rank;
    char failed_text[LOCKSTEP_FAREWELL_TEXT_BYTES];
    uint32_t metric_count;
    char metrics[LOCKSTEP_JOB_METRICS][LOCKSTEP_METRIC_NAME_BYTES];
};

// Why a job makes no progress: what its culprits do.
enum stall_kind {
    STALL_NONE = 0,
    STALL_OUTSIDE, // In the trainer's own code.
    STALL_IN_CALL, // A call is open, and gradients are missing.
    STALL_FROZEN, // Not heard of.
    STALL_STOPPED, // A mate sees that its process is stopped.
    STALL_LOST, // Its stream has ended.
    STALL_LINK, // Bytes are on their way and do not arrive.
    STALL_UNKNOWN, // No rank is in the way of the others.
    STALL_DEVICE, // Work of its device does not end.
};

// As a worker's hello has it.
struct gpu_view {
    struct uuid uuid;
    uint32_t capability;
    uint32_t driver_version;
    uint32_t nccl_version; // 0: there is none.
};

struct worker_view {
    uint32_t rank;
    bool has_rank; // False while gathering.
    char host[LOCKSTEP_HOST_BYTES];
    uint32_t pid;
    uint64_t step;
    uint64_t settled;
    enum worker_activity activity;
    uint64_t activity_ms; // Time in that activity, as of now.
    uint64_t heartbeat_age_ms;
    bool frozen; // Not heard of for LOCKSTEP_FROZEN_HEARTBEATS and LOCKSTEP_FROZEN_SLACK_MS.
    bool left;
    bool lost;
    char mark[LOCKSTEP_MARK_BYTES];
    uint64_t bytes_sent;
    uint64_t bytes_received;
    struct step_totals totals;
    char device[LOCKSTEP_DEVICE_BYTES]; // Empty: not known.
    bool has_gpu;
    struct gpu_view gpu;
    struct place place; // As of its last heartbeat.
    uint32_t flags; // Bits of enum place_flag.
    char sleeps[LOCKSTEP_KERNEL_BYTES]; // As in struct up_heartbeat.
    // Silent, lost, or a culprit of the present stall; else STALL_NONE.
    enum stall_kind kind;
    bool slow; // In its place for longer than usual, though no culprit.
    uint64_t bound_ms; // How long it may be in its place; 0: it has not said where it is.
    uint64_t lag_steps; // Behind the median of its job.
    uint64_t waited_ms; // Time blocked on other ranks since the generation formed.
    uint32_t straggler_permille; // Time that the job would win if this rank were as fast.
};

struct module_view {
    char name[LOCKSTEP_NAME_BYTES];
};

// Two frames of Python: where a thread is in Python's own library, and what has called it.
#define CULPRIT_TOP_BYTES (2 * (LOCKSTEP_SYMBOL_BYTES + LOCKSTEP_OBJECT_BYTES + 24))

struct culprit_view {
    uint32_t rank;
    char host[LOCKSTEP_HOST_BYTES];
    uint32_t pid;
    enum stall_kind kind;
    uint64_t age_ms; // Time in its place, as of now.
    uint64_t bound_ms; // Time that it may be in this place.
    char why[LOCKSTEP_MARK_BYTES]; // Reason of the bound: "8 x p99 of critic#2 (1.4 s)".
    struct place place;
    uint32_t flags; // Bits of enum place_flag.
    char sleeps[LOCKSTEP_KERNEL_BYTES]; // As in struct up_heartbeat.
    char mark[LOCKSTEP_MARK_BYTES];
    bool answered; // True if it was asked and the following fields are known.
    // "read_batch (a.out+0x1a2b)", or "wait (threading.py:320), called from load (train.py:41)"
    char top[CULPRIT_TOP_BYTES];
    uint32_t missing_total;
    uint32_t missing_count;
    char missing[LOCKSTEP_MISSING_NAMED][LOCKSTEP_NAME_BYTES];
    char awaited[LOCKSTEP_AWAITED_BYTES]; // STALL_DEVICE: as in struct answer_place.
    uint64_t stream; // STALL_DEVICE: the trainer's stream that makes it; 0: none with a handle.
};

// `members` ranks, `from` the lowest of them, wait for `to`.
struct stall_edge {
    uint32_t from;
    uint32_t to;
    uint32_t members;
};

struct stall_view {
    uint64_t number; // From 1, over the life of the job.
    bool active;
    enum stall_kind kind;
    uint64_t step;
    uint64_t age_ms; // Since it began.
    uint64_t lasted_ms; // When it is not active any more.
    uint32_t waiting; // Ranks that wait for the culprits.
    char phase[LOCKSTEP_NAME_BYTES];
    char sentence[LOCKSTEP_TEXT_BYTES];
    uint32_t culprit_total;
    uint32_t culprit_count;
    struct culprit_view culprits[LOCKSTEP_MAX_CULPRITS];
    uint32_t edge_count;
    struct stall_edge edges[LOCKSTEP_MAX_EDGES];
};

// Step times of about a second.
struct rate_view {
    uint64_t age_ms; // Since its end.
    uint64_t steps; // Steps that a rank finished on average. 0: none, and the rest is 0.
    uint64_t step_us; // Time from one step to the next.
    uint64_t exposed_us; // The part of step_us that was waited at the end of the step.
    uint64_t hidden_us; // Time before its end during which gradients were on their way.
    uint64_t bytes_per_s; // Bytes that all ranks sent.
};

// Part of the whole run of a job: a second at first, longer the longer the job runs.
struct history_view {
    uint64_t age_ms; // Since its end.
    uint64_t span_ms;
    double steps; // Steps that a rank finished on average. 0: none, and the next three are 0.
    double step_us;
    double exposed_us;
    double hidden_us;
    double bytes_per_s; // Bytes that all ranks sent.
    uint32_t known; // Bits: the metrics that some rank has reported.
    float metrics[LOCKSTEP_JOB_METRICS]; // The mean over the ranks; 0 if not known.
};

// A line of a job's log.
struct event_view {
    uint64_t age_ms;
    char id[24]; // "stall_began"
    char text[LOCKSTEP_TEXT_BYTES / 2];
};

// The worker of a stream.
struct peer_view {
    char job[LOCKSTEP_JOB_NAME_BYTES];
    uint64_t generation;
    uint32_t rank;
    char host[LOCKSTEP_HOST_BYTES];
    uint32_t pid;
    uint64_t asked; // Number of the inspection that it has not answered in full; 0: none.
};

// False: that peer is no member of the present generation of a job.
bool coordinator_peer_view(const struct coordinator *coordinator, coordinator_peer peer,
                           struct peer_view *view);

const char *core_kind_name(enum up_kind kind);

const char *coordinator_job_state_name(enum job_state state);

#endif
