// SPDX-License-Identifier: Apache-2.0
//
// Every bound of Lockstep, in one place: everything that grows has its maximum here. A maximum that
// follows from another one is derived from it and asserted.
//
// This file holds numbers only. Strings are bounded in bytes including the terminating NUL.

#ifndef PROTOS_LIMITS_H
#define PROTOS_LIMITS_H

#include <assert.h>
#include <stdint.h>

// The version of the control protocol. Adding a field keeps the version; changing the meaning of a
// field needs a new version. A coordinator refuses a worker of another version, and its text names
// both versions.
#define LOCKSTEP_PROTOCOL_VERSION 15

// ---- Names and texts ---------------------------------------------------------------------------

#define LOCKSTEP_JOB_NAME_BYTES 64 // A Kubernetes label value has at most 63 characters.
#define LOCKSTEP_HOST_BYTES 128 // Name of a host as texts show it; Linux host names have 64 bytes.
#define LOCKSTEP_ADDRESS_BYTES 160 // "tcp:[2001:db8::1]:65535", or a DNS name and a port.
#define LOCKSTEP_COORDINATORS 8 // Addresses at which a worker looks for the coordinator.
#define LOCKSTEP_COORDINATOR_BYTES (LOCKSTEP_COORDINATORS * LOCKSTEP_ADDRESS_BYTES)
#define LOCKSTEP_FORM_BYTES 192 // Text of a rank's call of a collective: struct up_fail, `form`.
#define LOCKSTEP_GROUP_NAME_BYTES 64 // Name of a group of ranks.
#define LOCKSTEP_DETAIL_BYTES 128 // Kind and group of a collective: struct await, `detail`.
#define LOCKSTEP_NAME_BYTES 256 // Name of a module, a parameter, a phase, a counter, a collective.
// Description of the result that a stream computes: "the gradient of 'fc.weight'".
#define LOCKSTEP_AWAITED_BYTES (LOCKSTEP_NAME_BYTES + 32)
#define LOCKSTEP_OPTIONS_BYTES 256 // Options of an item of the manifest: "key=value key=value".
#define LOCKSTEP_MARK_BYTES 128 // Text of lockstep_mark, reason of lockstep_pause.
#define LOCKSTEP_TEXT_BYTES 1024 // One sentence about one failure.
#define LOCKSTEP_REPORT_BYTES 4096 // A report of several lines on the differences of two manifests.
#define LOCKSTEP_UUID_BYTES 16
#define LOCKSTEP_SECRET_BYTES 32

// ---- The world ---------------------------------------------------------------------------------

#define LOCKSTEP_MAX_JOBS 64 // Jobs of one coordinator.
// Jobs that one address created and that still wait for workers.
#define LOCKSTEP_ORIGIN_GATHERING 32
#define LOCKSTEP_MAX_WORLD 1024 // Workers of one job.
#define LOCKSTEP_RANK_WORDS (LOCKSTEP_MAX_WORLD / 64) // 64-bit words of a set of ranks.
#define LOCKSTEP_MAX_WORKERS 4096 // Workers of all jobs of one coordinator.
#define LOCKSTEP_MAX_MATES 16 // Workers of one host that share memory.
#define LOCKSTEP_MAX_LEAVES 64 // Virtual ranks of one job.
// Peers that one worker has links to: 2 of the ring, log2 n + 1 of recursive doubling, its mates,
// 2 of the ring between hosts.
#define LOCKSTEP_MAX_NEIGHBOURS 32
// Further peers to which one worker makes a link when a collective first needs it.
#define LOCKSTEP_MAX_FURTHER_LINKS 256
#define LOCKSTEP_MAX_LINKS (LOCKSTEP_MAX_NEIGHBOURS + LOCKSTEP_MAX_FURTHER_LINKS)
// Ranks to which one worker has no link, and whose deaths it can prove by their data ports.
#define LOCKSTEP_MAX_FURTHER_PORTS 32

static_assert(LOCKSTEP_MAX_WORLD % 64 == 0, "sets of ranks are whole words");

#define LOCKSTEP_MAX_WEIGHT_BITS 48
// The weight of one rank in one step.
#define LOCKSTEP_MAX_WEIGHT (1ull << LOCKSTEP_MAX_WEIGHT_BITS)
// The weights of all ranks together.
#define LOCKSTEP_MAX_WEIGHT_SUM (LOCKSTEP_MAX_WORLD * LOCKSTEP_MAX_WEIGHT)

// A receiver checks a sum, then adds its own weight to it, or one weight in each of at most 16
// rounds.
static_assert(LOCKSTEP_MAX_WORLD <= 1ull << (60 - LOCKSTEP_MAX_WEIGHT_BITS),
              "sums of weights do not wrap");

#define LOCKSTEP_MAX_COUNT_BITS 52
// The most that one rank adds to a counter in one step.
#define LOCKSTEP_MAX_COUNT (1ll << LOCKSTEP_MAX_COUNT_BITS)
static_assert(LOCKSTEP_MAX_WORLD <= 1ull << (62 - LOCKSTEP_MAX_COUNT_BITS),
              "the sum of a step does not wrap");

// The oldest NCCL version that works, as NCCL's version code: 10000 x major + 100 x minor + patch.
#define LOCKSTEP_NCCL_OLDEST 21800

// ---- What a session declares -------------------------------------------------------------------

#define LOCKSTEP_MAX_DIMS 8
#define LOCKSTEP_MAX_MODULES 64
#define LOCKSTEP_MAX_PARAMETERS 262144 // Parameters and buffers of one session, together.
// Parameters of one bucket. A bucket closes when it has this number, so bounds of the data plane do
// not grow with the number of parameters of a session.
#define LOCKSTEP_BUCKET_PARAMETERS 16384
#define LOCKSTEP_SESSION_ITEMS 3 // Items of a manifest before those of its modules.
// Items of a manifest.
#define LOCKSTEP_MAX_ITEMS (LOCKSTEP_SESSION_ITEMS + LOCKSTEP_MAX_MODULES + LOCKSTEP_MAX_PARAMETERS)
#define LOCKSTEP_MAX_PHASES 16 // Phases for which the user declares parameters as unused.
// Sets of trainable parameters of one module: a worker remembers a layout for each.
#define LOCKSTEP_MAX_SETS 8
// Plans that a worker remembers: one for each phase and set of parameters that the phase trains.
#define LOCKSTEP_MAX_PLANS 32
#define LOCKSTEP_MAX_CALLS 256 // Calls of one module in one step.
#define LOCKSTEP_MAX_READY_COUNT 32768 // Reports of one gradient in one call.
#define LOCKSTEP_MAX_REPLICAS 16 // Copies of one module in one process.
#define LOCKSTEP_MAX_OWN_DEVICES LOCKSTEP_MAX_REPLICAS // Devices that one process uses.
#define LOCKSTEP_FLOAT16_EXPONENT_MIN (-14) // The exponent of the smallest normal float16.
#define LOCKSTEP_MAX_BUCKETS 1024 // Buckets of one session.
#define LOCKSTEP_MAX_SLOTS 1024 // Slots of one plan.
static_assert(LOCKSTEP_MAX_PARAMETERS / LOCKSTEP_BUCKET_PARAMETERS + LOCKSTEP_MAX_MODULES <=
                  LOCKSTEP_MAX_BUCKETS,
              "full buckets hold all parameters");
#define LOCKSTEP_MAX_COUNTERS 16
#define LOCKSTEP_MAX_METRICS 16
#define LOCKSTEP_METRIC_NAME_BYTES 24
// Values that one rank adds to a metric in one step.
#define LOCKSTEP_MAX_METRIC_VALUES (1u << 21)
#define LOCKSTEP_MAX_EXTRA_CALLS 8 // Calls outside the plan that one close wave can name.
#define LOCKSTEP_MAX_IGNORE 64 // Patterns of one module that name parameters to ignore.
#define LOCKSTEP_MAX_HANDLES 8192 // Open handles of one process.

// Allocations of lockstep_alloc: a value, a gradient and two optimizer states for each parameter.
#define LOCKSTEP_MAX_ALLOCATIONS (4 * LOCKSTEP_MAX_PARAMETERS)

// Memory that mates can access. Each region takes a file descriptor, and a mapping in every mate. A
// process may have a limited number of both, so small allocations stay private.
#define LOCKSTEP_MAX_REGIONS 256 // Regions of one session; further memory is private.
#define LOCKSTEP_REGION_BYTES (16 * 1024) // Smallest region; a smaller allocation is private.

// The layout of one module as it travels: bucket count, the end of each bucket, parameter indices.
#define LOCKSTEP_MAX_LAYOUT_WORDS \
    (LOCKSTEP_MAX_MODULES + LOCKSTEP_MAX_BUCKETS + LOCKSTEP_MAX_PARAMETERS)

// A file of lockstep_layout_save: a line for each parameter of each set, and few other lines.
// Escaping makes a name at most three times as long.
#define LOCKSTEP_SAVED_LINE_BYTES (3 * LOCKSTEP_NAME_BYTES + 64)
#define LOCKSTEP_SAVED_BYTES \
    ((LOCKSTEP_MAX_SETS * 2ll * LOCKSTEP_MAX_PARAMETERS + 1024) * LOCKSTEP_SAVED_LINE_BYTES)

// ---- Messages on the control stream ------------------------------------------------------------

#define LOCKSTEP_MANIFEST_PART 12 // Manifest items in one message.
#define LOCKSTEP_LAYOUT_PART 2048 // Layout words in one message.
#define LOCKSTEP_PLAN_PART 128 // Plan slots in one message.
#define LOCKSTEP_MESSAGE_BYTES 32768 // One encoded message. nanopb's sizes have 16 bits.
#define LOCKSTEP_CHAIN 8 // Open generations (rule M3 of docs/internals/membership.md).
#define LOCKSTEP_RECORD_PART 1024 // Words of a record of recovery in one message.
#define LOCKSTEP_MAX_RECORD_WORDS 65536 // Words of one record of recovery.
// Words of all records of one ballot: the reports of 1,024 ranks with 16 unfinished slots each fit
// (ORDER_REPORT_WORDS).
#define LOCKSTEP_BALLOT_WORDS (384 * LOCKSTEP_MAX_WORLD)
#define LOCKSTEP_RECORD_HEAD 2 // Words of such a record besides its own.
#define LOCKSTEP_ROW_WORDS 3 // Words of a row in RECORD_ROWS.
#define LOCKSTEP_REDO_ROWS (LOCKSTEP_MAX_RECORD_WORDS / LOCKSTEP_ROW_WORDS) // Rows of one slot.
#define LOCKSTEP_REACH_RANKS 32 // Ranks whose addresses one message asks for.
#define LOCKSTEP_SEND_QUEUE 4096 // Messages queued for one slow stream.

static_assert(LOCKSTEP_MESSAGE_BYTES < 65535, "nanopb's pb_size_t has 16 bits");
static_assert(LOCKSTEP_REPORT_BYTES * 2 < LOCKSTEP_MESSAGE_BYTES, "a report fits in a message");

// ---- The order ---------------------------------------------------------------------------------

#define LOCKSTEP_SLOT_WORDS (LOCKSTEP_MAX_SLOTS / 64) // 64-bit words of a set of plan positions.
#define LOCKSTEP_MAX_WAITS 16 // Calls that the threads of one trainer wait for at a time.
// Calls that one report of a blocked rank names because the rank has not made them.
#define LOCKSTEP_LACKS_NAMED 16
#define LOCKSTEP_MAX_AWAITED 16 // Different things that ranks of one job wait for at a time.
// A worker proposes a new plan of a phase after this number of steps that differ from the plan in
// the same way.
#define LOCKSTEP_REPLAN_STEPS 3
// Calls of a new plan; a plan with more calls stays as it was learned.
#define LOCKSTEP_REPLAN_CALLS 256
#define LOCKSTEP_REPLAN_TIMES 8 // How often a learned plan may be replaced.

static_assert(LOCKSTEP_MAX_SLOTS % 64 == 0, "sets of positions are whole words");

// ---- Where a worker is, and its stalls ---------------------------------------------------------

#define LOCKSTEP_DEVICE_BYTES 32 // Class of device: "cpu".
#define LOCKSTEP_LINKS_NAMED 4 // Links without progress that one heartbeat names.
#define LOCKSTEP_KERNEL_BYTES 64 // Text of a system call and a kernel function: "read (pipe_read)".
#define LOCKSTEP_MATES_NAMED 4 // Mates whose process does not run, named by one heartbeat.
#define LOCKSTEP_MISSING_NAMED 16 // Parameters of an open call that an answer names.
// Events in the trace of one worker; new ones overwrite old ones.
#define LOCKSTEP_TRACE_EVENTS 2048
#define LOCKSTEP_EVENTS_PART 128 // Events in one message.
#define LOCKSTEP_NAMES_PART 16 // Names of modules in one message.

#define LOCKSTEP_STACK_THREADS 64 // Threads of one process that Lockstep describes.
#define LOCKSTEP_STACK_FRAMES 48 // Native frames of one thread, and Python frames of one thread.
#define LOCKSTEP_THREADS_PART 16 // Threads in one message.
#define LOCKSTEP_FRAMES_PART 32 // Frames in one message.
#define LOCKSTEP_THREAD_BYTES 16 // Name of a thread, as Linux bounds it.
#define LOCKSTEP_WCHAN_BYTES 32 // Kernel function that a thread sleeps in; longer names are cut.
#define LOCKSTEP_SYMBOL_BYTES 128 // Name of a function; longer names are cut.
#define LOCKSTEP_OBJECT_BYTES 64 // Base name of a library or Python file; longer names are cut.

#define LOCKSTEP_MAX_CULPRITS 8 // Culprits that one stall names; the others are only counted.
#define LOCKSTEP_MAX_EDGES 64 // Edges between ranks in one stall.
#define LOCKSTEP_STALLS_KEPT 32 // Past stalls that the coordinator keeps for one job.
#define LOCKSTEP_JOB_EVENTS 64 // Log lines that the coordinator keeps for one job.
#define LOCKSTEP_RATE_SAMPLES 300 // Samples of step times, one a second, kept for one job.
#define LOCKSTEP_HISTORY_SLOTS 512 // Time slots into which a job's whole run is divided. Even.
// Numbers with different names that a job keeps over time: metrics, counters, and numbers in marks.
#define LOCKSTEP_JOB_METRICS 32

static_assert((uint64_t)LOCKSTEP_MAX_METRIC_VALUES * LOCKSTEP_MAX_WORLD < UINT32_MAX,
              "the values of a metric in one step are counted in 32 bits");
static_assert(LOCKSTEP_MAX_METRICS + LOCKSTEP_MAX_COUNTERS <= LOCKSTEP_JOB_METRICS &&
                  LOCKSTEP_JOB_METRICS <= 32,
              "all metrics and counters are kept, and a word has a bit for each");
static_assert((LOCKSTEP_TRACE_EVENTS & (LOCKSTEP_TRACE_EVENTS - 1)) == 0, "a mask selects a place");

// ---- The data plane ----------------------------------------------------------------------------

#define LOCKSTEP_FRAME_HEADER_BYTES 96
#define LOCKSTEP_FRAME_BYTES (1024 * 1024) // Payload of one frame.
#define LOCKSTEP_WINDOW 8 // W of the order protocol: slots in flight.
#define LOCKSTEP_EAGER_BYTES (256 * 1024) // Payload that may be sent before its credit.
#define LOCKSTEP_FAREWELL_TEXT_BYTES 512 // The text of a struct farewell.
#define LOCKSTEP_WAVE_BYTES 1536 // Payload of one wave message.
#define LOCKSTEP_USED_BYTES 4096 // Used bits of one frame, one bit for each parameter of a bucket.
#define LOCKSTEP_READY_STREAMS 8 // Streams of a device that produce the gradients of one bucket.
#define LOCKSTEP_MAX_PLAIN 256 // Plain collectives outstanding in one session.
// Outstanding collectives of one session that make buffers equal: one for each of three policies
// and thirteen dtypes, on devices and in host memory.
#define LOCKSTEP_MAX_BUFFER_GROUPS (3 * 13 * 2)

// Size of the largest element; the size of a chunk is a multiple of it.
#define LOCKSTEP_CHUNK_LEAST_BYTES 8

// A chunk is not cut smaller than this: the fixed cost of a frame is about that of 1024 bytes.
#define LOCKSTEP_CHUNK_GRAIN_BYTES 1024
// Stripes of one collective in flight: as many as fit in LOCKSTEP_FLIGHT_BYTES, at least 2, at most
// LOCKSTEP_STRIPES_IN_FLIGHT.
#define LOCKSTEP_FLIGHT_BYTES (4 * 1024 * 1024)
#define LOCKSTEP_STRIPES_IN_FLIGHT 16

// Collectives of a peer that this rank has not launched yet. A peer may be 2W - 1 slots ahead
// (order protocol, R4). It may also have plain collectives outstanding, each of which needs a
// second collective that confirms it, and collectives of its buffers. The eager frames of each are
// parked until this rank launches the collective. All these frames but the first have at least
// LOCKSTEP_CHUNK_GRAIN_BYTES, together at most LOCKSTEP_EAGER_BYTES.
#define LOCKSTEP_EARLY_COLLECTIVES \
    (2 * LOCKSTEP_WINDOW - 1 + 2 * LOCKSTEP_MAX_PLAIN + LOCKSTEP_MAX_BUFFER_GROUPS)
#define LOCKSTEP_EAGER_FRAMES (2 * LOCKSTEP_EAGER_BYTES / LOCKSTEP_CHUNK_GRAIN_BYTES + 1)
// Pieces of a collective over several hosts. Each piece is a collective between two hosts.
#define LOCKSTEP_EARLY_PIECES 3
// A send of at most LOCKSTEP_EAGER_BYTES is complete for its sender before the receive begins. So
// many of them may go to one peer that has not said that it took them; further ones wait. A
// receiver says so each time it has taken LOCKSTEP_SENDS_TOLD more of them
// (worker/transport/direct/ahead.h).
#define LOCKSTEP_SENDS_AHEAD 512
#define LOCKSTEP_SENDS_TOLD 64
// Bounds on the memory that one peer can make this rank use, so that enough is left for the other
// peers. A peer can be the predecessor, which sends frames, and the successor, which sends credits.
// The parked frames of one collective take up to 317 KiB, those of one peer up to 346 MiB.
#define LOCKSTEP_EARLY_FLOWS_OF_PEER \
    (2 * (LOCKSTEP_EARLY_COLLECTIVES + LOCKSTEP_EARLY_PIECES) + LOCKSTEP_SENDS_AHEAD)
#define LOCKSTEP_PARKINGS_OF_PEER \
    (LOCKSTEP_EARLY_COLLECTIVES + LOCKSTEP_EARLY_PIECES + LOCKSTEP_SENDS_AHEAD)
// A peer may be two steps ahead, and sends one message of each of the four kinds of wave per step.
#define LOCKSTEP_EARLY_WAVES_OF_PEER (2 * 4)
#define LOCKSTEP_EARLY_WAVES (LOCKSTEP_EARLY_WAVES_OF_PEER * LOCKSTEP_MAX_NEIGHBOURS)
// Step headers that may arrive early (order protocol, R1): that of a step that is opened and
// skipped, and those of the next one, which is opened and begun.
#define LOCKSTEP_EARLY_HEADERS 4
// Payload of a step header, for error texts: the phase's name, and one bit for every parameter.
#define LOCKSTEP_NOTE_BYTES (LOCKSTEP_NAME_BYTES + LOCKSTEP_MAX_PARAMETERS / 8)

// Connections that have not authenticated yet. Each costs a worker the memory for one hello and one
// challenge, for at most LOCKSTEP_HELLO_MS.
#define LOCKSTEP_MAX_UNPROVEN 64
#define LOCKSTEP_NONCE_BYTES 32 // Random bytes; each side makes new ones for each connection.
#define LOCKSTEP_PROOF_BYTES 32 // An HMAC-SHA256.
#define LOCKSTEP_CHALLENGE_BYTES (LOCKSTEP_FRAME_HEADER_BYTES + LOCKSTEP_NONCE_BYTES)
#define LOCKSTEP_HELLO_BYTES \
    (LOCKSTEP_FRAME_HEADER_BYTES + LOCKSTEP_NONCE_BYTES + LOCKSTEP_PROOF_BYTES)
#define LOCKSTEP_WELCOME_BYTES (LOCKSTEP_FRAME_HEADER_BYTES + LOCKSTEP_PROOF_BYTES)

static_assert(2 + 10 + 1 + (LOCKSTEP_MAX_MATES - 1) + 2 <= LOCKSTEP_MAX_NEIGHBOURS &&
                  LOCKSTEP_MAX_WORLD <= 1 << 10,
              "the peers of any worker fit");
static_assert(LOCKSTEP_USED_BYTES * 8 >= LOCKSTEP_BUCKET_PARAMETERS, "one bit for every parameter");
static_assert((LOCKSTEP_WINDOW & (LOCKSTEP_WINDOW - 1)) == 0, "the window is a power of two");

// ---- What a session takes of its process -------------------------------------------------------

// lockstep_open checks that these resources are available before it starts gRPC: without them gRPC
// ends the process or hangs (worker/session/headroom.h).

// File descriptors: the bell of the engine thread, the trace, epoll, the wake-up and two listeners.
#define LOCKSTEP_OWN_DESCRIPTORS 6
// File descriptors of gRPC: two of epoll, two wake-ups and the connection are open at the same
// time. The others are for a second connection while gRPC reconnects, for a name look-up, and for a
// file.
#define LOCKSTEP_CONTROL_DESCRIPTORS 9
// File descriptors that a session reserves, so that it can read /proc in a stall when the process
// has no other descriptor left.
#define LOCKSTEP_SPARE_DESCRIPTORS 2
// File descriptors of one link while it forms: its socket, the shared memory whose descriptor it
// passes to a mate, and the socket of an earlier attempt.
#define LOCKSTEP_LINK_DESCRIPTORS 3
#define LOCKSTEP_BOARD_DESCRIPTORS 1 // File descriptors of the memory that all mates share.
// File descriptors that lockstep_open checks for, with one link: the number of links is known only
// when the world has formed.
#define LOCKSTEP_SESSION_DESCRIPTORS \
    (LOCKSTEP_OWN_DESCRIPTORS + LOCKSTEP_CONTROL_DESCRIPTORS + LOCKSTEP_SPARE_DESCRIPTORS + \
     LOCKSTEP_LINK_DESCRIPTORS + LOCKSTEP_BOARD_DESCRIPTORS)
// File descriptors of a session and of all links of the largest world. lockstep_alloc shares a
// block only while the process can open so many, because a shared block has a descriptor.
#define LOCKSTEP_SESSION_DESCRIPTORS_MOST \
    (LOCKSTEP_SESSION_DESCRIPTORS + LOCKSTEP_MAX_NEIGHBOURS * LOCKSTEP_LINK_DESCRIPTORS)
static_assert(LOCKSTEP_SESSION_DESCRIPTORS_MOST == 117, "lockstep.h and docs/errors.md say so");
#define LOCKSTEP_SOLO_DESCRIPTORS (2 + LOCKSTEP_SPARE_DESCRIPTORS) // The bell, the trace, spares.

#define LOCKSTEP_OWN_THREADS 3 // Engine, watch, control stream.
// Threads of gRPC: one for each processor, but at least THREADS_MIN and at most THREADS_MAX, and
// THREADS_MORE further ones.
#define LOCKSTEP_CONTROL_THREADS_MIN 2
#define LOCKSTEP_CONTROL_THREADS_MAX 32
#define LOCKSTEP_CONTROL_THREADS_MORE 7
#define LOCKSTEP_SESSION_THREADS_MAX \
    (LOCKSTEP_OWN_THREADS + LOCKSTEP_CONTROL_THREADS_MAX + LOCKSTEP_CONTROL_THREADS_MORE)

#define LOCKSTEP_STACK_BYTES (256 * 1024) // The smallest stack that a thread of Lockstep needs.
// Address space that malloc reserves for each thread (ARENA), and other address space that a
// session needs (SESSION).
#define LOCKSTEP_ARENA_BYTES (64 * 1024 * 1024)
#define LOCKSTEP_SESSION_BYTES (128 * 1024 * 1024)

// ---- Times, in milliseconds --------------------------------------------------------------------

#define LOCKSTEP_HEARTBEAT_MS 1000
// A worker is shown as frozen when no heartbeat has arrived for this number of heartbeat intervals
// and the slack. A frozen worker is not evicted.
#define LOCKSTEP_FROZEN_HEARTBEATS 2
#define LOCKSTEP_FROZEN_SLACK_MS 500
#define LOCKSTEP_WATCH_MS 250 // How often a worker's watch and the coordinator look for stalls.
// A rank is stalled when it stays in one place longer than STALL_FACTOR times the 99th percentile
// of the times there, and twice the longest of these times, but never before STALL_FLOOR_MS. In the
// first STALL_FIRST_STEPS steps and in learning steps the bound is STALL_FIRST_FACTOR times that.
#define LOCKSTEP_STALL_FLOOR_MS 10000
#define LOCKSTEP_STALL_FACTOR 8
#define LOCKSTEP_STALL_FIRST_FACTOR 10
#define LOCKSTEP_STALL_FIRST_STEPS 3
// For a trainer that sleeps in state D the bound is this factor times the usual bound.
#define LOCKSTEP_STALL_DISK_FACTOR 3
#define LOCKSTEP_INSPECT_MS 500 // How long the report of a stall waits for the culprits' answers.
// Smallest time between two inspections of one rank for its stacks, and for its events.
#define LOCKSTEP_INSPECT_PAUSE_MS 5000
// How long the verdict on ranks that wait in different functions waits for the reports of other
// ranks, so that its text names all ranks that wait.
#define LOCKSTEP_AWAIT_MS 500
// Collectives of the trainer that one heartbeat names, and the time in flight from which it names
// them.
#define LOCKSTEP_OVERDUE_NAMED 8
#define LOCKSTEP_OVERDUE_MS 300
// How long the verdict on a collective that ranks call differently waits for a second rank's
// report, so that its text has the calls of both.
#define LOCKSTEP_SIDES_MS 300
#define LOCKSTEP_OPEN_TIMEOUT_MS 60000
#define LOCKSTEP_OPEN_TIMEOUT_MAX_MS 86400000 // One day; a longer timeout is reduced to it.
// A running job of which no member has been connected for AWAY_MS gives its name to a new world.
// A worker that comes earlier is sent away and tries again, up to eight times a second. One such
// worker is logged in EARLY_MS.
// The coordinator probes the data port of a member that is away at once, after PROBE_SOON_MS
// (a process that ends closes its descriptors one after another), and then every PROBE_MS.
#define LOCKSTEP_AWAY_MS 30000
#define LOCKSTEP_EARLY_MS 10000
#define LOCKSTEP_PROBE_SOON_MS 100
#define LOCKSTEP_PROBE_MS 2000
// How long a ballot waits for a member that is away (so does a new world of the name, if the others
// have left), and for proofs of death without which the members that are left are too few to
// decide.
#define LOCKSTEP_BALLOT_AWAY_MS 10000
#define LOCKSTEP_BALLOT_PROOF_MS 5000
// How long a ballot waits for a member that may be at another coordinator. A worker notices after
// 30 seconds that its coordinator is stopped.
#define LOCKSTEP_BALLOT_ELSEWHERE_MS 40000
// A coordinator that was refused, because a rank has promised more to another one, waits for
// BALLOT_RETRY_MS before it asks again, and longer by its incarnation, so that two coordinators do
// not do so at the same time. A coordinator to which too few ranks are connected sends them away
// after DIVIDED_MS, later each time.
#define LOCKSTEP_BALLOT_RETRY_MS 500
#define LOCKSTEP_DIVIDED_MS 3000
#define LOCKSTEP_DIVIDED_LAST_MS 60000
// How long a proof is awaited of the death of a member that another one has lost, and the first
// pause between two probes of its data port; pauses grow.
#define LOCKSTEP_ACCUSED_MS 1000
#define LOCKSTEP_ACCUSED_PROBE_MS 2
// How long after a peer's goodbye a worker tells the coordinator of it. The coordinator may not
// have heard the peer itself, and gives the others twice this time before it takes the peer for
// dead.
#define LOCKSTEP_GOODBYE_MS 1000
#define LOCKSTEP_HELLO_MS 5000 // How long a new connection may take to prove membership.
// How long a worker whose connection to a peer was reset waits for the coordinator's verdict. The
// verdict comes at once, except on busy machines.
#define LOCKSTEP_HALT_GRACE_MS 3000
// Without a coordinator: how long a worker that learns of a lost rank waits for the reports of
// other ranks, so that all ranks name the same lost rank; and how many losses it remembers.
#define LOCKSTEP_LOSS_SETTLE_MS 100
#define LOCKSTEP_LOSSES 16

#endif
