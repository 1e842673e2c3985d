// SPDX-License-Identifier: Apache-2.0
//
// Every bound of Lockstep, in one place. What grows has its maximum here, and every maximum that
// follows from another one is derived from it and asserted.
//
// This file holds numbers only. Strings are bounded in bytes including the terminating NUL.

#ifndef PROTOS_LIMITS_H
#define PROTOS_LIMITS_H

#include <assert.h>

// The version of the control protocol. Fields are only ever added; a change of meaning is a new
// version, and a worker and a coordinator of different versions refuse each other by name.
#define LOCKSTEP_PROTOCOL_VERSION 7

// ---- Names and texts ---------------------------------------------------------------------------

#define LOCKSTEP_JOB_NAME_BYTES 64 // A Kubernetes label value has at most 63 characters.
#define LOCKSTEP_HOST_BYTES 128 // A host as shown to people; Linux host names have 64.
#define LOCKSTEP_ADDRESS_BYTES 160 // "tcp:[2001:db8::1]:65535", or a DNS name and a port.
#define LOCKSTEP_FORM_BYTES 128 // How a rank calls a collective.
#define LOCKSTEP_NAME_BYTES 256 // A module, a parameter, a phase, a counter, a collective.
// The thing that a stream makes, with its name.
#define LOCKSTEP_AWAITED_BYTES (LOCKSTEP_NAME_BYTES + 32)
#define LOCKSTEP_MARK_BYTES 128 // lockstep_mark and the reason of lockstep_pause.
#define LOCKSTEP_TEXT_BYTES 1024 // One sentence about one failure.
#define LOCKSTEP_REPORT_BYTES 4096 // A two-sided difference of manifests, several lines.
#define LOCKSTEP_UUID_BYTES 16
#define LOCKSTEP_SECRET_BYTES 32

// ---- The world ---------------------------------------------------------------------------------

#define LOCKSTEP_MAX_JOBS 64 // Per coordinator.
#define LOCKSTEP_ORIGIN_GATHERING 32 // Jobs begun from one address that still wait for workers.
#define LOCKSTEP_MAX_WORLD 1024 // Workers of one job.
#define LOCKSTEP_RANK_WORDS (LOCKSTEP_MAX_WORLD / 64) // A set of ranks.
#define LOCKSTEP_MAX_WORKERS 4096 // Workers of all jobs of one coordinator.
#define LOCKSTEP_MAX_MATES 16 // Workers of one host that share memory.
// Peers one worker has links to: ring 2, doubling log2 n and an extra, mates, ring between hosts 2.
#define LOCKSTEP_MAX_NEIGHBOURS 32

static_assert(LOCKSTEP_MAX_WORLD % 64 == 0, "sets of ranks are whole words");

#define LOCKSTEP_MAX_WEIGHT_BITS 48
// The weight of one rank in one step.
#define LOCKSTEP_MAX_WEIGHT (1ull << LOCKSTEP_MAX_WEIGHT_BITS)
// The weights of all ranks together.
#define LOCKSTEP_MAX_WEIGHT_SUM (LOCKSTEP_MAX_WORLD * LOCKSTEP_MAX_WEIGHT)

// A receiver adds its own weight, or that of one peer in each of at most 16 rounds, to a sum that
// it has checked.
static_assert(LOCKSTEP_MAX_WORLD <= 1ull << (60 - LOCKSTEP_MAX_WEIGHT_BITS),
              "sums of weights do not wrap");

#define LOCKSTEP_MAX_COUNT_BITS 52
#define LOCKSTEP_MAX_COUNT (1ll << LOCKSTEP_MAX_COUNT_BITS) // That a rank adds in one step.
static_assert(LOCKSTEP_MAX_WORLD <= 1ull << (62 - LOCKSTEP_MAX_COUNT_BITS),
              "the sum of a step does not wrap");

// As NCCL numbers its versions: 10000 for each major one, 100 for each minor one.
#define LOCKSTEP_NCCL_OLDEST 21800

// ---- What a session declares -------------------------------------------------------------------

#define LOCKSTEP_MAX_DIMS 8
#define LOCKSTEP_MAX_MODULES 64
#define LOCKSTEP_MAX_PARAMETERS 16384 // Parameters and buffers of one session, together.
#define LOCKSTEP_MAX_PHASES 16 // With parameters that are declared unused in them.
// Sets of trainable parameters of a module whose layouts are remembered.
#define LOCKSTEP_MAX_SETS 8
#define LOCKSTEP_MAX_PLANS 32 // Remembered by a worker: one for a phase and what it trains.
#define LOCKSTEP_MAX_CALLS 256 // Calls of one module in one step.
#define LOCKSTEP_MAX_READY_COUNT 32768 // Reports of one gradient in one call.
#define LOCKSTEP_MAX_REPLICAS 16 // Copies of one module in one process.
#define LOCKSTEP_MAX_OWN_DEVICES LOCKSTEP_MAX_REPLICAS // That one process uses.
#define LOCKSTEP_FLOAT16_EXPONENT_MIN (-14) // The exponent of the smallest normal float16.
#define LOCKSTEP_MAX_BUCKETS 1024 // Buckets of one session.
#define LOCKSTEP_MAX_SLOTS 1024 // Slots of one plan.
#define LOCKSTEP_MAX_COUNTERS 16
#define LOCKSTEP_MAX_EXTRA_CALLS 8 // Calls outside the plan that one close wave can name.
#define LOCKSTEP_MAX_IGNORE 64 // Patterns of one module.
#define LOCKSTEP_MAX_HANDLES 8192 // Handles given out and not yet closed, of one process.

// Allocations of lockstep_alloc: a value, a gradient and two of an optimizer for each parameter.
#define LOCKSTEP_MAX_ALLOCATIONS (4 * LOCKSTEP_MAX_PARAMETERS)

// Memory that mates can reach. Each region costs a descriptor, and a mapping in every mate: what is
// small is not worth them, and many are more than a process may have.
#define LOCKSTEP_MAX_REGIONS 256 // Regions of one session; further memory is private.
#define LOCKSTEP_REGION_BYTES (16 * 1024) // Smaller memory is private.

// The layout of one module as it travels: bucket count, the end of each bucket, parameter indices.
#define LOCKSTEP_MAX_LAYOUT_WORDS \
    (LOCKSTEP_MAX_MODULES + LOCKSTEP_MAX_BUCKETS + LOCKSTEP_MAX_PARAMETERS)

// A file of lockstep_layout_save: a line for each parameter of each set, names with three bytes for
// each of theirs at most, and few others.
#define LOCKSTEP_SAVED_LINE_BYTES (3 * LOCKSTEP_NAME_BYTES + 64)
#define LOCKSTEP_SAVED_BYTES \
    ((LOCKSTEP_MAX_SETS * 2 * LOCKSTEP_MAX_PARAMETERS + 1024) * LOCKSTEP_SAVED_LINE_BYTES)

// ---- Messages on the control stream ------------------------------------------------------------

#define LOCKSTEP_MANIFEST_PART 16 // Manifest items in one message.
#define LOCKSTEP_LAYOUT_PART 256 // Layout words in one message.
#define LOCKSTEP_PLAN_PART 128 // Plan slots in one message.
#define LOCKSTEP_MESSAGE_BYTES 32768 // One encoded message. nanopb's sizes have 16 bits.
#define LOCKSTEP_SEND_QUEUE 4096 // Messages that may wait for one slow stream.

static_assert(LOCKSTEP_MESSAGE_BYTES < 65535, "nanopb's pb_size_t has 16 bits");
static_assert(LOCKSTEP_REPORT_BYTES * 2 < LOCKSTEP_MESSAGE_BYTES, "a report fits in a message");

// ---- The order ---------------------------------------------------------------------------------

#define LOCKSTEP_SLOT_WORDS (LOCKSTEP_MAX_SLOTS / 64) // A set of positions in a plan.
#define LOCKSTEP_MAX_WAITS 16 // Calls that the threads of one trainer wait for at a time.
#define LOCKSTEP_LACKS_NAMED 16 // Calls not made that one report of a blocked rank names.
#define LOCKSTEP_MAX_AWAITED 16 // Different things that ranks of one job wait for at a time.
#define LOCKSTEP_REPLAN_STEPS 3 // Steps of a phase that differ from its plan alike, for a new one.
// Calls of a plan; a plan with more calls stays as it was learned.
#define LOCKSTEP_REPLAN_CALLS 256
#define LOCKSTEP_REPLAN_TIMES 8 // That a learned plan is replaced.

static_assert(LOCKSTEP_MAX_SLOTS % 64 == 0, "sets of positions are whole words");

// ---- Where a worker is, and its stalls ---------------------------------------------------------

#define LOCKSTEP_DEVICE_BYTES 32 // Class of device: "cpu".
#define LOCKSTEP_LINKS_NAMED 4 // Links without progress in one heartbeat.
#define LOCKSTEP_KERNEL_BYTES 64 // A system call and a function of the kernel, with its NUL.
#define LOCKSTEP_MATES_NAMED 4 // Mates that do not run, in one heartbeat.
#define LOCKSTEP_MISSING_NAMED 16 // Parameters of an open call that an answer names.
#define LOCKSTEP_TRACE_EVENTS 2048 // In the ring of one worker.
#define LOCKSTEP_EVENTS_PART 128 // Events in one message.
#define LOCKSTEP_NAMES_PART 16 // Names of modules in one message.

#define LOCKSTEP_STACK_THREADS 64 // Threads of one process that are known by their calls.
#define LOCKSTEP_STACK_FRAMES 48 // Frames of one thread, and again so many of Python.
#define LOCKSTEP_THREADS_PART 16 // Threads in one message.
#define LOCKSTEP_FRAMES_PART 32 // Frames in one message.
#define LOCKSTEP_THREAD_BYTES 16 // Name of a thread, as Linux bounds it.
#define LOCKSTEP_WCHAN_BYTES 32 // Function of the kernel that a thread sleeps in; cut.
#define LOCKSTEP_SYMBOL_BYTES 128 // A function; longer names are cut.
#define LOCKSTEP_OBJECT_BYTES 64 // Base name of an object or of a Python file; cut.

#define LOCKSTEP_MAX_CULPRITS 8 // Named in one verdict; the others are counted.
#define LOCKSTEP_MAX_EDGES 64 // Edges between ranks in one picture; beyond, groups are drawn.
#define LOCKSTEP_STALLS_KEPT 32 // The last stalls of one job.
#define LOCKSTEP_JOB_EVENTS 64 // Lines of a job's log of events.
#define LOCKSTEP_RATE_SAMPLES 300 // Seconds of step times that a job remembers.
#define LOCKSTEP_HISTORY_SLOTS 512 // Parts of a job's whole run that it remembers. Even.
#define LOCKSTEP_JOB_METRICS 8 // Names of numbers that the marks of a job's ranks may say.
#define LOCKSTEP_METRIC_NAME_BYTES 24

static_assert((LOCKSTEP_TRACE_EVENTS & (LOCKSTEP_TRACE_EVENTS - 1)) == 0, "a mask selects a place");

// ---- The data plane ----------------------------------------------------------------------------

#define LOCKSTEP_FRAME_HEADER_BYTES 96
#define LOCKSTEP_FRAME_BYTES (1024 * 1024) // Payload of one frame.
#define LOCKSTEP_WINDOW 8 // W of the order protocol: slots in flight.
#define LOCKSTEP_EAGER_BYTES (256 * 1024) // Payload that may be sent before its credit.
#define LOCKSTEP_FAREWELL_TEXT_BYTES 512 // Why a rank ends, as it tells the others.
#define LOCKSTEP_WAVE_BYTES 1024 // Payload of one wave message.
#define LOCKSTEP_USED_BYTES 4096 // Used bits of one frame, one bit for a parameter.
#define LOCKSTEP_READY_STREAMS 8 // Streams of a device that produce the gradients of one bucket.
#define LOCKSTEP_MAX_PLAIN 256 // Plain collectives outstanding in one session.
// Collectives that make buffers equal, outstanding in one session: three policies, seven dtypes,
// on devices or not.
#define LOCKSTEP_MAX_BUFFER_GROUPS (3 * 7 * 2)

#define LOCKSTEP_CHUNK_LEAST_BYTES 8 // The largest element: a chunk is a multiple of it.

// A chunk is not cut smaller than this: a frame costs about as much as so many bytes.
#define LOCKSTEP_CHUNK_GRAIN_BYTES 1024
// Stripes of one collective in flight: what fits in so many bytes, 2 at least, so many at most.
#define LOCKSTEP_FLIGHT_BYTES (4 * 1024 * 1024)
#define LOCKSTEP_STRIPES_IN_FLIGHT 16

// A peer may be 2W - 1 slots ahead (order protocol, R4), and may have plain collectives pending
// (each is two, the second one confirms) and those of its buffers. Each may park its eager frames
// here before this rank launches it: all but the first have at least a grain, together at most
// LOCKSTEP_EAGER_BYTES.
#define LOCKSTEP_EARLY_COLLECTIVES \
    (2 * LOCKSTEP_WINDOW - 1 + 2 * LOCKSTEP_MAX_PLAIN + LOCKSTEP_MAX_BUFFER_GROUPS)
#define LOCKSTEP_EAGER_FRAMES (2 * LOCKSTEP_EAGER_BYTES / LOCKSTEP_CHUNK_GRAIN_BYTES + 1)
// Pieces of a collective over several hosts, each of which is a collective between two of them.
#define LOCKSTEP_EARLY_PIECES 3
// Bounds on the memory that one peer can cause here, so that it takes none from the others. A peer
// is heard of as the predecessor, by its frames, and as the successor, by its credits. Frames are
// parked by the collective, 317 KiB for each: 177 MiB for a peer at most.
#define LOCKSTEP_EARLY_FLOWS_OF_PEER (2 * (LOCKSTEP_EARLY_COLLECTIVES + LOCKSTEP_EARLY_PIECES))
#define LOCKSTEP_PARKINGS_OF_PEER (LOCKSTEP_EARLY_COLLECTIVES + LOCKSTEP_EARLY_PIECES)
// A peer may be two steps ahead with each kind of wave, and sends one message of each.
#define LOCKSTEP_EARLY_WAVES_OF_PEER (2 * 4)
#define LOCKSTEP_EARLY_WAVES (LOCKSTEP_EARLY_WAVES_OF_PEER * LOCKSTEP_MAX_NEIGHBOURS)
#define LOCKSTEP_EARLY_HEADERS 2 // Step headers (order protocol, R1).
// The part of a step header that is for people: the phase's name, and a bit for every parameter.
#define LOCKSTEP_NOTE_BYTES (LOCKSTEP_NAME_BYTES + LOCKSTEP_MAX_PARAMETERS / 8)

// Connections that have not authenticated yet. Each costs a worker the bytes of one hello read and
// of one challenge sent, for LOCKSTEP_HELLO_MS.
#define LOCKSTEP_MAX_UNPROVEN 64
#define LOCKSTEP_NONCE_BYTES 32 // Random, fresh on each connection, one of each side.
#define LOCKSTEP_PROOF_BYTES 32 // An HMAC-SHA256.
#define LOCKSTEP_CHALLENGE_BYTES (LOCKSTEP_FRAME_HEADER_BYTES + LOCKSTEP_NONCE_BYTES)
#define LOCKSTEP_HELLO_BYTES \
    (LOCKSTEP_FRAME_HEADER_BYTES + LOCKSTEP_NONCE_BYTES + LOCKSTEP_PROOF_BYTES)
#define LOCKSTEP_WELCOME_BYTES (LOCKSTEP_FRAME_HEADER_BYTES + LOCKSTEP_PROOF_BYTES)

static_assert(2 + 10 + 1 + (LOCKSTEP_MAX_MATES - 1) + 2 <= LOCKSTEP_MAX_NEIGHBOURS &&
                  LOCKSTEP_MAX_WORLD <= 1 << 10,
              "the peers of any worker fit");
static_assert(LOCKSTEP_USED_BYTES * 8 >= LOCKSTEP_MAX_PARAMETERS, "one bit for every parameter");
static_assert((LOCKSTEP_WINDOW & (LOCKSTEP_WINDOW - 1)) == 0, "the window is a power of two");

// ---- What a session takes of its process -------------------------------------------------------

// lockstep_open proves that these can be had before it starts gRPC, which ends the process or hangs
// when they cannot (worker/session/headroom.h).

// File descriptors: the bell of the engine thread, the trace, epoll, the wake-up and two listeners.
#define LOCKSTEP_OWN_DESCRIPTORS 6
// File descriptors of gRPC: two of epoll, two wake-ups and the connection are open at the same
// time. The others are for an attempt to connect beside the old connection, a look at a name, a
// file.
#define LOCKSTEP_CONTROL_DESCRIPTORS 9
// File descriptors that are kept for reading /proc when a rank stands still and none is left.
#define LOCKSTEP_SPARE_DESCRIPTORS 2
// File descriptors of one link while it forms: its socket, the memory that it passes, and the
// socket of an earlier attempt.
#define LOCKSTEP_LINK_DESCRIPTORS 3
#define LOCKSTEP_BOARD_DESCRIPTORS 1 // File descriptors of the memory that all mates share.
// A world has two ranks or more; how many links a rank has is known when the world has formed.
#define LOCKSTEP_SESSION_DESCRIPTORS \
    (LOCKSTEP_OWN_DESCRIPTORS + LOCKSTEP_CONTROL_DESCRIPTORS + LOCKSTEP_SPARE_DESCRIPTORS + \
     LOCKSTEP_LINK_DESCRIPTORS + LOCKSTEP_BOARD_DESCRIPTORS)
#define LOCKSTEP_SOLO_DESCRIPTORS (2 + LOCKSTEP_SPARE_DESCRIPTORS) // The bell, the trace, spares.

#define LOCKSTEP_OWN_THREADS 3 // Engine, watch, control stream.
// Threads of gRPC: one for each processor within these two bounds, and so many more.
#define LOCKSTEP_CONTROL_THREADS_MIN 2
#define LOCKSTEP_CONTROL_THREADS_MAX 32
#define LOCKSTEP_CONTROL_THREADS_MORE 7
#define LOCKSTEP_SESSION_THREADS_MAX \
    (LOCKSTEP_OWN_THREADS + LOCKSTEP_CONTROL_THREADS_MAX + LOCKSTEP_CONTROL_THREADS_MORE)

#define LOCKSTEP_STACK_BYTES (256 * 1024) // The smallest stack that is enough for a thread of ours.
// Address space that malloc reserves for a thread, and that a session needs beside that.
#define LOCKSTEP_ARENA_BYTES (64 * 1024 * 1024)
#define LOCKSTEP_SESSION_BYTES (128 * 1024 * 1024)

// ---- Times, in milliseconds --------------------------------------------------------------------

#define LOCKSTEP_HEARTBEAT_MS 1000
// A worker is shown as frozen when so many of its heartbeats are missing and the slack is over. It
// is not evicted.
#define LOCKSTEP_FROZEN_HEARTBEATS 2
#define LOCKSTEP_FROZEN_SLACK_MS 500
#define LOCKSTEP_WATCH_MS 250 // How often a worker's watch and the coordinator look for stalls.
// A place becomes a stall after this factor times its usual time (the 99th percentile), but not
// before the floor. The first steps and learning steps have a factor of their own.
#define LOCKSTEP_STALL_FLOOR_MS 10000
#define LOCKSTEP_STALL_FACTOR 8
#define LOCKSTEP_STALL_FIRST_FACTOR 10
#define LOCKSTEP_STALL_FIRST_STEPS 3
#define LOCKSTEP_STALL_DISK_FACTOR 3 // The factor of a trainer that sleeps in state D.
#define LOCKSTEP_INSPECT_MS 500 // How long a verdict waits for a culprit's answer.
#define LOCKSTEP_INSPECT_PAUSE_MS 5000 // Stacks of one rank are taken at most so often.
// How long a verdict on ranks that wait in different functions waits for the reports of the others,
// so that its text names all of them.
#define LOCKSTEP_AWAIT_MS 500
// Collectives of the trainer that one heartbeat names because they have been in flight for so long.
#define LOCKSTEP_OVERDUE_NAMED 8
#define LOCKSTEP_OVERDUE_MS 300
// How long a verdict on a collective that differs waits for the other side's call of it.
#define LOCKSTEP_SIDES_MS 300
#define LOCKSTEP_OPEN_TIMEOUT_MS 60000
#define LOCKSTEP_OPEN_TIMEOUT_MAX_MS 86400000 // A longer one counts as this: a day.
#define LOCKSTEP_HELLO_MS 5000 // How long a new connection may take to prove membership.
// How long a worker that saw a reset waits for the verdict, which comes at once but on busy
// machines.
#define LOCKSTEP_HALT_GRACE_MS 3000
// Without a coordinator: how long a worker that saw or heard of a loss waits for what others say of
// it, so that all of them name the same rank. And how many losses it remembers.
#define LOCKSTEP_LOSS_SETTLE_MS 100
#define LOCKSTEP_LOSSES 16

#endif
