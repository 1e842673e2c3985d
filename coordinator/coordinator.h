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
// fixes its wanted world (min, max, window); a later hello with other values is refused with a text
// that has both. The world forms when max workers are present, or when at least min are present and
// window_ms has passed since the last one joined. When a worker's own open_timeout (0:
// LOCKSTEP_OPEN_TIMEOUT_MS) passes first, the worker is refused with "3 of 4 workers joined job 'x'
// in 10.0 s; missing rank hints: 2; ...". If other workers were refused before it, the text has the
// largest number of workers that were present. A worker whose rank hint is taken, or is not below
// world_max, is refused. A worker that disconnects before the world has formed is forgotten. A
// running job accepts no workers.
//
// GPUs. A hello says which GPU its worker computes on, if any, and which NCCL version the worker
// found; or why the GPU that the user chose cannot be used. A world does not form if a chosen GPU
// cannot be used, if two workers compute on one GPU, or if several workers have GPUs and one of
// these has no NCCL, an NCCL older than LOCKSTEP_NCCL_OLDEST, or another major or minor version
// than the others. Then all workers are refused with one sentence that names the faulty workers.
// DOWN_GENERATION says which ranks have a GPU.
//
// Ranks. Workers with a hint get the rank they ask for when all hints are below the world size.
// The others fill the free ranks grouped by host_id (hosts in order of first arrival, workers of a
// host in order of arrival). Without any hint all ranks are grouped by host.
//
// Generations. number counts up within a job, incarnation is the coordinator's random id. A
// message of another generation is dropped (and counted). When a generation has ended (a member was
// lost, a verdict, all members left), its workers are no longer members, though their streams may
// stay open; new hellos with the same job name gather a new generation at once. One event forms at
// most one generation, because each needs its own entropy; when more are due, coordinator_deadline
// is due again immediately.
//
// Jobs. When there is no room for a new job or worker, the oldest job without connected workers is
// forgotten. A later job of the same name does not number its generations from 1 again, but goes on
// from a higher number.
//
// Links. When all links of a member are connected, the member reports once how fast they are,
// whether it shares memory with its mates, and which algorithm its user requests (the wish). When
// all members have reported, all get the tuning: the slowest latency, the lowest bandwidth, the
// thresholds that follow from these, and whether all members share memory. Different wishes, or a
// wish that the world cannot run, are HALT_TUNING; the text names two ranks or the reason. So are
// different policies for failures or numbers of leaves, as soon as the world has formed. If a
// member leaves before all have reported, HALT_LEFT ends the generation as soon as another member
// has reported.
//
// Start. Manifest hashes, item counts and roots are compared as they arrive. At the first
// difference the core requests the items of two ranks part by part: those of the lowest rank, and
// of the lowest rank that differs from it. Every member gets the same two-sided report
// (HALT_MANIFEST); the report does not wait for ranks that have not called lockstep_start. If a
// rank does not send its items for five seconds, the report names it and ends where it is. When all
// manifests are equal, all members get DOWN_VERIFIED, and the round of lockstep_start is complete.
// In a running job members may call lockstep_start again, all of them after the same step s. The
// first call begins the next round, with the same rules. Verdicts of that round have step s + 1,
// because a member may still have to settle s. Plan numbers go on counting, and a learned step
// stays learned. If a member learns step s + 1 while another member is in the round: HALT_MANIFEST,
// the text names both. A second UP_START of one member in one round is an impossible message.
//
// Learning (order protocol, section 6, states SERVING). A slot is complete when every member has
// reported it ready or has ended the step. Slots are granted to all in the order in which they
// become complete. If two members report different dtypes or elements for one slot, the verdict
// names both. Messages of another phase than that of the step's first message are ignored, so
// nothing is granted or planned any more: the ranks notice the difference in each other's step
// headers and report it by UP_FAIL, because they know the names of phases and parameters. Ranks
// that wait for each other are HALT_ORDER, at the wait that closes the cycle. With the policy
// zero_defer (given to lockstep_start) there is no verdict: once every member waits or has ended,
// the core grants the smallest slot (module, call, bucket) that some member waits for, and members
// that have neither made it nor ended contribute zeros. When all members have ended the step, the
// plan is published: the calls in the order of their first grant, each with the buckets of its
// module's layout. The layouts are those that rank 0 proposed before its UP_END, at most one for
// each module. All layouts are published before the plan. A plan has a number and a hash over
// phase, slots and layouts, see publish.c. How a learning step goes on after a loss, also the loss
// of a coordinator, is in relearn.h. Step numbers increase and begin at 1 or later. A learned step
// is never learned again, but a phase may be, because workers keep a bounded number of plans.
//
// Addresses. A member learns the addresses of its neighbours when the world forms, and asks for
// others when a collective wants links to them (UP_REACH). The answer has the addresses of all
// ranks asked for. A coordinator that has restarted sends those of members that have not come back
// to it as soon as they come. A question about the member itself, or about a rank that is not in
// the job, is an impossible message.
//
// Waits of planned steps. A rank whose wait may be part of a deadlock reports what it needs and
// what it lacks. At the first report of a step the core asks all other ranks to report their waits
// in that step. Ranks that wait for each other are HALT_ORDER, at the report that closes the cycle;
// see knot.c. No timeout is involved.
//
// New plans of a phase (order protocol, R13). When several steps of a member differ from their plan
// in the same way, the member says which calls the plan should have, and in which order
// (UP_REPLAN). All members get that plan with the next number and the number of the plan that it
// replaces; they put it into force themselves. The message is ignored if it is not about the last
// plan of its phase, if the last new plan is not in force yet, or if plans of the phase were
// replaced LOCKSTEP_REPLAN_TIMES since it was learned.
//
// Silence. A stream that ends without UP_LEAVE before the links are tuned is a death. Afterwards it
// is silence: the member is away until it comes back, and nothing ends. See resume.c, which also
// rebuilds the jobs of a coordinator that has ended from what their members say.
//
// Failure. A worker is lost when its process is proven to be gone, or when any member sends UP_LOST
// with left == false. All connected members get HALT_LOST (also the lost worker, when only its
// links are broken), whose text names rank and host ("rank 2 on host b was lost: ..."), and the
// generation has ended. The first cause wins; further losses in the same generation change nothing.
// UP_LOST with left == true, or about a rank that has sent UP_LEAVE, is HALT_LEFT; so is a member
// that leaves while others are in lockstep_start or in a learning step. UP_FAIL is a verdict with
// the kind and text of the reporter, after its rank and host. With kind HALT_LOST the reporter
// itself is lost (lockstep_abort). When a collective differs, all ranks are asked how they call it,
// and the text has the calls of two ranks if a second rank reports within LOCKSTEP_SIDES_MS. After
// a verdict of step s an UP_FAIL of an earlier step makes another verdict, and an UP_LOST of an
// earlier step repeats the same verdict for its step (members that got the verdict close their
// links). Heartbeats and UP_LEAVE still count; all other messages are dropped. A missed heartbeat
// ends nothing.
//
// Impossible messages. A worker without a rank is refused. A message of a member is HALT_PROTOCOL
// to all, with a sentence that names the member, and the core closes the member's stream.
//
// Texts are for people: what happened, on which rank, what to do. Calls have the names that rank 0
// gave to modules, and are counted from 1: "'actor' (call 3)". Slots have numbers: "module 2 call 0
// bucket 1". Every text is valid UTF-8 without control characters except the newlines between the
// lines of a report.
//
// Where workers are. Heartbeats say how far each worker is and what its trainer does. Rank 0 sends
// the names of the modules once in every round of lockstep_start. EVENT_ASK inspects one member
// (DOWN_INSPECT): for its stacks, and for its events, at most once in LOCKSTEP_INSPECT_PAUSE_MS. An
// inspection for its place alone is not sent. The server gets the answer from the member's message;
// the core keeps only the parts that the sentence about a stall needs.
//
// Stalls. From heartbeats the core finds the ranks that the others wait for (the culprits): the
// rules are at the head of stall.c. A stall is found at most LOCKSTEP_WATCH_MS after the heartbeat
// that shows it. The core inspects the culprits. When they have answered, or LOCKSTEP_INSPECT_MS
// have passed, the views and the log show the stall, in one sentence. A stall is not a verdict: it
// ends nothing, and it is over when the job makes progress. A job has at most one stall at a time.
// A job in which no worker has reported its place has no stalls.
//
// The launcher. EVENT_STOPPING says that the user has stopped all jobs by a signal, or that the
// launcher stops them, because a worker or a host has failed. Ranks that end afterwards are lost as
// usual, but the texts name the signal, or the launcher, and do not ask to start the job again, and
// the log line is job_stopped. EVENT_ABSENT says that one worker of a job has ended before all had
// said hello. If the job's world must be complete, its gathering workers and all later ones are
// refused with the text of the event.
//
// Draining. After EVENT_DRAIN every new hello is refused, and workers that wait for a world are
// refused, too. Members get no message: training goes on without a coordinator until the streams
// end.

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
    // Payload bytes of a ring frame in every generation; 0: CORE_CHUNK_BYTES or, in a world of two
    // ranks, CORE_CHUNK_BYTES_OF_TWO.
    uint32_t chunk_bytes;
    uint32_t heartbeat_ms; // Time between two heartbeats of a worker; 0: LOCKSTEP_HEARTBEAT_MS.
    // The smallest time after which a rank counts as stalled; 0: LOCKSTEP_STALL_FLOOR_MS.
    uint32_t stall_floor_ms;
};

// The server's number of a stream. The server does not reuse a number while the core knows it.
typedef uint64_t coordinator_peer;

enum coordinator_event_kind {
    EVENT_MESSAGE, // `peer` sent `message`. The core knows a peer from its first message on.
    // The stream of `peer` has ended; `text` has the reason. This is silence, not a death, unless
    // `proven` is set or the world has not formed yet.
    EVENT_CLOSED,
    EVENT_PROBED, // Answers ACTION_PROBE of `peer`: `reached` or `refused`, or neither.
    EVENT_TICK, // The time of coordinator_deadline has come.
    EVENT_DRAIN, // The coordinator shuts down: the core accepts no new workers.
    EVENT_STOPPING, // All jobs are stopped; `text` has the signal's name, or the launcher's.
    EVENT_ABSENT, // A worker of job `job` ended before all had said hello; `text` says how.
    EVENT_ASK, // A user inspects rank `rank` of job `job`; `what` says which facts.
};

struct coordinator_event {
    enum coordinator_event_kind kind;
    coordinator_peer peer;
    const struct up_message *message; // EVENT_MESSAGE; borrowed for the call.
    bool proven; // EVENT_CLOSED: true if the worker's process is known to be gone.
    bool reached; // EVENT_PROBED: true if the data port accepted a connection.
    bool refused; // EVENT_PROBED: true if the host answered that nothing listens there.
    // Hash of the address that a hello came from; limits the jobs of one address. 0: no limit.
    uint64_t origin;
    // EVENT_CLOSED, where it may be NULL; EVENT_STOPPING; EVENT_ABSENT. Borrowed.
    const char *text;
    const char *job; // EVENT_ASK, EVENT_ABSENT: name of the job; borrowed.
    uint32_t rank; // EVENT_ASK
    uint32_t what; // EVENT_ASK: bits of enum inspect.
    uint8_t entropy[LOCKSTEP_SECRET_BYTES]; // Fresh random bytes; used when a generation forms.
};

enum coordinator_action_kind {
    ACTION_SEND, // The server sends `message` to `peer`.
    // The server ends the stream of `peer` after all messages already sent. EVENT_CLOSED need not
    // follow. No EVENT_MESSAGE of this peer may follow: the core would take it for a new stream.
    ACTION_CLOSE,
    // The server tries to connect to the data port at the address `text` of `peer`, a worker whose
    // stream may have ended, and reports EVENT_PROBED. It may drop the request.
    ACTION_PROBE,
    ACTION_LOG, // One line for the log: log_id is a fixed snake_case id, text has logfmt fields.
};

struct coordinator_action {
    enum coordinator_action_kind kind;
    coordinator_peer peer;
    const struct down_message *message; // Borrowed for the call of the sink.
    const char *log_id;
    const char *text;
    enum halt_kind halt; // ACTION_LOG of a verdict: its kind. HALT_NONE: another line.
};

// Receives the actions of one step, in order. It must not call into the core.
struct coordinator_sink {
    void (*action)(void *context, const struct coordinator_action *action);
    void *context;
};

// Returns the bytes of memory that coordinator_init needs, at most 344 MiB. The memory need not be
// zero, and most of it is touched only when there are many jobs, workers and parameters.
size_t coordinator_bytes(void);
struct coordinator *coordinator_init(void *memory, const struct coordinator_config *config);

// Handles one event and passes the actions to the sink. now_ms is a monotonic time.
void coordinator_step(struct coordinator *coordinator, const struct coordinator_event *event,
                      uint64_t now_ms, struct coordinator_sink sink);

// Returns the time at which EVENT_TICK is due, in the clock of now_ms; UINT64_MAX: never.
uint64_t coordinator_deadline(const struct coordinator *coordinator);

// ---- Views: copies of the state for HTTP and tests; nothing is borrowed. ------------------------

enum job_state {
    JOB_GATHERING = 0, // The job waits for workers.
    JOB_STARTING = 1, // A round of lockstep_start: members open links, manifests are compared.
    JOB_RUNNING = 2,
    JOB_HALTED = 3, // A verdict ended the generation; halt_text says why.
    JOB_FINISHED = 4, // All members have closed their sessions.
    // Only in views: the job runs, and this coordinator has not heard of all members since its own
    // start.
    JOB_RESUMING = 5,
};

// The metrics and counters of a job.
struct numbers_view {
    uint32_t metric_count;
    struct metric_state metrics[LOCKSTEP_MAX_METRICS];
    uint32_t counter_count;
    struct counter_state counters[LOCKSTEP_MAX_COUNTERS];
};

struct job_view {
    char name[LOCKSTEP_JOB_NAME_BYTES];
    enum job_state state;
    struct generation_id generation;
    uint32_t world_size; // Size of the generation, or the wanted one (max) while gathering.
    uint32_t joined; // Connected workers.
    uint32_t left; // Members that have closed their sessions.
    uint64_t plan_number; // Highest number of a published plan; 0: none yet.
    uint32_t hosts; // Groups of workers that may share memory; 0 while gathering.
    bool tuned; // True if all links are connected and measured; `tuning` is valid then.
    struct tuning tuning;
    // Lowest and highest step of the job's members. The step of a member is at least `settled`,
    // even if its last heartbeat says less. The step of a member that left is its last settled
    // step.
    uint64_t step_min;
    uint64_t step_max;
    struct step_totals totals; // Sums over the job's workers, as of their last heartbeats.
    uint64_t messages_total; // Control messages from the job's members, without heartbeats.
    uint64_t dropped_total; // Dropped messages: of another generation, or of one that has ended.
    char halt_text[LOCKSTEP_TEXT_BYTES];
    const char *halt_kind; // "lost"; NULL: no verdict. Static.
    bool halt_has_rank; // True if the verdict is about one rank, halt_rank.
    uint32_t halt_rank;
    uint64_t settled; // The last step that some rank reported as final on every rank.
    // Times in the clock of now_ms; 0: it has not happened.
    uint64_t settled_ms; // When the first rank reported `settled`.
    uint64_t formed_ms; // When the generation formed; 0 also if another coordinator formed it.
    uint64_t ended_ms; // When a verdict ended the generation, or its last rank left.
    // Recovery: true while the members freeze, or form the next generation.
    bool recovering;
    uint32_t recoveries; // Deaths, or several at one time, after which the job went on.
    uint64_t recovery_spent_ms; // The time of all of them, from suspicion to links that stand.
    uint64_t recovery_lasted_ms; // The time of the last one.
    char recovery_text[LOCKSTEP_TEXT_BYTES]; // The sentence about the rank that was lost last, or
                                             // empty.
    // Number of the ranks that left after a failure; the lowest of these ranks, and its failure.
    uint32_t failed;
    uint32_t failed_rank;
    char failed_text[LOCKSTEP_FAREWELL_TEXT_BYTES];
    // Names of the numbers that the job keeps over time.
    uint32_t metric_count;
    char metrics[LOCKSTEP_JOB_METRICS][LOCKSTEP_METRIC_NAME_BYTES];
    struct numbers_view numbers; // As of the last heartbeat of rank 0.
};

// Why a job makes no progress: the state of a rank that the others wait for (a culprit).
enum stall_kind {
    STALL_NONE = 0,
    STALL_OUTSIDE, // The trainer is in its own code, outside the library.
    STALL_IN_CALL, // A call is open, and gradients are missing.
    STALL_FROZEN, // No heartbeat has arrived for some time.
    STALL_STOPPED, // A mate reports that the process is stopped.
    STALL_LOST, // The worker's stream has ended.
    STALL_LINK, // Bytes that the rank sent do not reach the peer's host.
    STALL_UNKNOWN, // The rank is inside the library and does not wait; or no rank is a culprit.
    STALL_DEVICE, // Work on the rank's device does not end.
};

// The GPU of a worker, from its hello.
struct gpu_view {
    struct uuid uuid;
    uint32_t capability;
    uint32_t driver_version;
    uint32_t nccl_version; // 0: no NCCL.
};

struct worker_view {
    uint32_t rank;
    bool has_rank; // False while gathering.
    char host[LOCKSTEP_HOST_BYTES];
    uint32_t pid;
    uint64_t step;
    uint64_t settled;
    enum worker_activity activity;
    uint64_t activity_ms; // Time in that activity until now.
    uint64_t heartbeat_age_ms;
    // True if no heartbeat has arrived for LOCKSTEP_FROZEN_HEARTBEATS intervals and
    // LOCKSTEP_FROZEN_SLACK_MS.
    bool frozen;
    bool left;
    bool lost;
    // True while a rank of a job that another coordinator formed has not come to this one. Its host
    // is unknown, and its numbers are 0.
    bool awaited;
    char mark[LOCKSTEP_MARK_BYTES];
    uint64_t bytes_sent;
    uint64_t bytes_received;
    struct step_totals totals;
    char device[LOCKSTEP_DEVICE_BYTES]; // Empty: not known.
    bool has_gpu;
    struct gpu_view gpu;
    struct place place; // From the last heartbeat.
    uint32_t flags; // Bits of enum place_flag.
    char sleeps[LOCKSTEP_KERNEL_BYTES]; // As in struct up_heartbeat.
    // Set if the worker is frozen, stopped, lost, or a culprit of the present stall; else
    // STALL_NONE.
    enum stall_kind kind;
    bool slow; // True if the worker is in its place longer than usual, but not a culprit.
    uint64_t bound_ms; // How long the worker may stay in its place; 0: its place is not known.
    uint64_t lag_steps; // Number of steps behind the median member of the job.
    uint64_t waited_ms; // Time blocked on other ranks since the generation formed.
    // Share of the time, in 1/1000, that the job would save at most if this rank were as fast as
    // the median rank.
    uint32_t straggler_permille;
};

struct module_view {
    char name[LOCKSTEP_NAME_BYTES];
};

// Text of two Python frames: one of Python's standard library, and the one that called it.
#define CULPRIT_TOP_BYTES (2 * (LOCKSTEP_SYMBOL_BYTES + LOCKSTEP_OBJECT_BYTES + 24))

struct culprit_view {
    uint32_t rank;
    char host[LOCKSTEP_HOST_BYTES];
    uint32_t pid;
    enum stall_kind kind;
    // Time that the rank has been in its place; STALL_FROZEN and STALL_STOPPED: time since its last
    // heartbeat.
    uint64_t age_ms;
    uint64_t bound_ms; // The bound of age_ms; `why` says where it comes from.
    char why[LOCKSTEP_MARK_BYTES]; // Reason of the bound: "8 x p99 of 'critic' call 2 (1.4 s)".
    struct place place;
    uint32_t flags; // Bits of enum place_flag.
    char sleeps[LOCKSTEP_KERNEL_BYTES]; // As in struct up_heartbeat.
    char mark[LOCKSTEP_MARK_BYTES];
    bool answered; // True if the rank has answered an inspection; the fields below are valid then.
    // Innermost frame of the trainer: "read_batch (a.out+0x1a2b)", or "wait (threading.py:320),
    // called from load (train.py:41)".
    char top[CULPRIT_TOP_BYTES];
    uint32_t missing_total;
    uint32_t missing_count;
    char missing[LOCKSTEP_MISSING_NAMED][LOCKSTEP_NAME_BYTES];
    char awaited[LOCKSTEP_AWAITED_BYTES]; // STALL_DEVICE: as in struct answer_place.
    // STALL_DEVICE: handle of the trainer's stream that makes the awaited thing; 0: the default
    // stream, or none.
    uint64_t stream;
};

// A group of ranks that wait for rank `to`.
struct stall_edge {
    uint32_t from; // The lowest rank of the group.
    uint32_t to;
    uint32_t members; // Number of ranks of the group.
};

struct stall_view {
    uint64_t number; // Stalls of a job are numbered from 1.
    bool active;
    enum stall_kind kind;
    uint64_t step;
    uint64_t age_ms; // Time since the stall began.
    uint64_t lasted_ms; // Length of a stall that is over; 0 while it is active.
    uint32_t waiting; // Number of ranks that wait for the culprits.
    char phase[LOCKSTEP_NAME_BYTES];
    char sentence[LOCKSTEP_TEXT_BYTES];
    uint32_t culprit_total;
    uint32_t culprit_count;
    struct culprit_view culprits[LOCKSTEP_MAX_CULPRITS];
    uint32_t edge_count;
    struct stall_edge edges[LOCKSTEP_MAX_EDGES];
};

// Mean step times in an interval of about one second.
struct rate_view {
    uint64_t age_ms; // Time since the interval ended.
    uint64_t steps; // Steps that a rank finished on average; 0: none, then the times are 0.
    uint64_t step_us; // Time from one step to the next.
    uint64_t exposed_us; // The part of step_us in which the trainer waited in lockstep_step_end.
    uint64_t hidden_us; // Time before lockstep_step_end in which gradients were in flight.
    uint64_t bytes_per_s; // Bytes that all ranks sent together, per second.
};

// An interval of the whole run of a job. Intervals are one second long at first; the longer the job
// runs, the longer they are.
struct history_view {
    uint64_t age_ms; // Time since the interval ended.
    uint64_t span_ms; // Length of the interval.
    double steps; // Steps that a rank finished on average; 0: none, then the next three are 0.
    double step_us; // This and the next three: as in struct rate_view.
    double exposed_us;
    double hidden_us;
    double bytes_per_s;
    uint32_t known; // Bit i: some rank has reported metric i in this interval.
    // The metrics, counters and numbers in marks (the mean over the ranks); 0: not reported.
    float metrics[LOCKSTEP_JOB_METRICS];
};

// A line of a job's log.
struct event_view {
    uint64_t age_ms; // Time since the line was written.
    char id[24]; // "stall_began"
    char text[LOCKSTEP_TEXT_BYTES / 2];
    uint32_t number; // 1 for the first line of the job.
};

// The worker to which a stream belongs.
struct peer_view {
    char job[LOCKSTEP_JOB_NAME_BYTES];
    uint64_t generation;
    uint64_t incarnation; // Incarnation of the coordinator that formed the generation.
    uint32_t rank;
    char host[LOCKSTEP_HOST_BYTES];
    uint32_t pid;
    // Number of the inspection that the worker has not answered completely; 0: none.
    uint64_t asked;
};

// Fills *view. Returns false if the peer is not a member of the present generation of a job.
bool coordinator_peer_view(const struct coordinator *coordinator, coordinator_peer peer,
                           struct peer_view *view);

const char *core_kind_name(enum up_kind kind);

const char *coordinator_job_state_name(enum job_state state);

#endif
