// SPDX-License-Identifier: Apache-2.0
//
// Where the trainer of a worker is, as heartbeats report it; and the threads, stack frames and
// trace events that a worker reports when the coordinator inspects it. Any thread.

#ifndef LOCKSTEP_PROTOS_PLACE_H
#define LOCKSTEP_PROTOS_PLACE_H

#include "protos/basic.h"

#include <stdbool.h>
#include <stdint.h>

// ---- Where a worker is -------------------------------------------------------------------------

// A function of the library that the trainer is in, or was in last. The numbers are on the wire and
// in trace files, so no number is ever used again for another function.
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
    // Only in struct await. Elsewhere API_COLLECTIVE and API_STATE stand for these functions.
    API_BARRIER = 17,
    API_ALLREDUCE = 18,
    API_BROADCAST = 19,
    API_STATE_CHECK = 20,
    API_STATE_SYNC = 21,
    API_MODULE_USAGE = 22,
    API_COLLECTIVE_RUN = 23,
    API_GROUP_CREATE = 24,
};

// Returns the function's name without "lockstep_".
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
        [API_COLLECTIVE_RUN] = "collective_run",
        [API_GROUP_CREATE] = "group_create",
    };
    return api < sizeof(names) / sizeof(names[0]) ? names[api] : "unknown";
}

// How far a rank is, and where its trainer is. Ranks are compared by (settled, position). A
// position is the index of a slot in the agreed order of the step; the position after the last slot
// is the end of the step. All zero: nothing is known.
struct place {
    // Position of the first slot that is not final on this rank; count + 1: in the commit wave.
    uint32_t position;
    uint32_t count; // Slots of the open step that are known so far; 0 between steps.
    // True if this rank has done its part of `position`: it launched the slot, or ended the step.
    bool done;
    bool open; // True while a step is open.
    bool learning;
    // True while every thread of the trainer that calls the library is blocked in it.
    bool waits;
    struct slot_id slot; // The slot at `position`; valid if position < count.
    enum api_function api; // The function that the trainer entered last.
    bool inside; // True while the trainer is in that function.
    uint64_t api_ms; // Time since the trainer entered that function, or returned from it.
    uint32_t module; // The module of that function; LOCKSTEP_MAX_MODULES: none.
    uint32_t call; // The module's call in the step, from 0.
    uint32_t calls_open; // Calls that have begun and not ended.
    uint32_t ready; // Gradients reported in the call that is open longest.
    uint32_t gradients; // All gradients of that call.
    uint64_t plain; // Plain collectives completed.
    // How long the trainer usually stays in this place: 99th percentile, and the longest of the
    // last 64 times. 0: not known yet.
    uint64_t usual_us;
    uint64_t longest_us;
    uint64_t waited_us; // Time blocked on other ranks since the generation began.
};

// Why a worker may stay in its place longer than usual. Bits.
enum place_flag {
    PLACE_PAUSED = 1, // The trainer called lockstep_pause.
    PLACE_TRACED = 2, // A debugger is attached to the process.
    PLACE_THROTTLED = 4, // The process's control group has used up its CPU quota.
    PLACE_DISK = 8, // The trainer's thread sleeps in state D (uninterruptible).
    PLACE_FIRST = 16, // The worker is in one of its first steps.
};
#define PLACE_FLAGS 31u // All bits of enum place_flag.

// The thing that the oldest collective on a rank's device waits for.
enum device_hold {
    // The rank has no such collective, or the collective waits for other ranks.
    DEVICE_HOLD_NONE = 0,
    DEVICE_HOLD_STREAM = 1, // A stream of the trainer that computes the input.
    // NCCL: it has the input of this rank, and may still wait for the input of other ranks.
    DEVICE_HOLD_NCCL = 2,
};

// A link that has data in transit and has made no progress for a second.
struct link_state {
    uint32_t rank; // The peer's rank.
    bool awaited; // True if this rank waits for bytes of the peer.
    // True if the unsent bytes have reached the peer's host and wait for its process to read them.
    bool reached;
    uint64_t unsent; // Bytes given to the link that the peer's process has not read yet.
    uint64_t received; // All bytes received from the peer so far.
    uint64_t still_ms; // Time without progress in either direction.
};

// What a blocked trainer waits for. A wait ends only when every rank has done the same thing; the
// wait for a collective of a group, when every member has (await.members).
enum await_kind {
    // The trainer is not blocked, or was blocked only a moment ago, or its wait has a timeout.
    AWAIT_NONE = 0,
    AWAIT_STEP = 1, // Every rank ends step `number`.
    AWAIT_OPENING = 2, // Every rank begins step `number` (uneven data).
    AWAIT_START = 3, // Every rank makes its `number`th call of lockstep_start.
    AWAIT_COLLECTIVE = 4, // Every rank begins use `number` of the collective with hash `space`.
    AWAIT_CALL = 5, // Every rank makes a call in step `number`, or ends that step.
};

struct await_key {
    enum await_kind kind;
    // AWAIT_COLLECTIVE: hash of the collective's name. AWAIT_CALL: module in the low 32 bits, call
    // in the high 32 bits.
    uint64_t space;
    uint64_t number; // A step, a call of lockstep_start, or a use (from 0): see enum await_kind.
};

static inline bool await_key_equal(const struct await_key *a, const struct await_key *b)
{
    return a->kind == b->kind && a->space == b->space && a->number == b->number;
}

// A rank whose only trainer thread is blocked. All fields describe one moment, and they stay true
// until the wait ends. docs/internals/protocol.md, "Different functions".
struct await {
    struct await_key key; // AWAIT_NONE: the rest is zero.
    enum api_function function; // The function that the trainer is in.
    uint32_t module; // The module of that function; LOCKSTEP_MAX_MODULES: none.
    // True if the wait needs only rank `root`: a broadcast that the library makes.
    bool rooted;
    uint32_t root;
    uint64_t step; // The step that the trainer has begun last; 0: none.
    bool open; // True if that step has not ended on this rank.
    char name[LOCKSTEP_NAME_BYTES]; // Name of the trainer's collective; empty: not a collective.
    // "all_gather of group 'tp0'"; lockstep_group_create: "ranks 0, 1". Empty: nothing to add.
    char detail[LOCKSTEP_DETAIL_BYTES];
    // The ranks that must do it, one bit for each. All words 0: all ranks of the world.
    uint64_t members[LOCKSTEP_RANK_WORDS];
    // The keys in the coordinator's query that this rank has not done yet.
    uint32_t lack_count;
    struct await_key lacks[LOCKSTEP_MAX_AWAITED];
};

// A mate whose process does not run.
struct mate_state {
    uint32_t rank;
    char state; // State letter of /proc/PID/stat: 'T', 't', 'D', 'Z'.
    uint32_t tracer; // Process id of the debugger that is attached to the mate; 0: none.
};

// ---- What a worker says about itself when it is asked -------------------------------------------

// How the frames of a thread were read, or why there are none.
enum stack_how {
    STACK_SIGNAL = 0, // A signal interrupted the thread, and it wrote its own frames.
    STACK_BLOCKED = 1, // No frames: the thread blocks the signal.
    STACK_SILENT = 2, // No frames: the thread did not handle the signal in time.
    STACK_DISK = 3, // No frames: the thread sleeps in state D (uninterruptible).
    STACK_TAKEN = 4, // No frames: the program itself uses every signal that could be used.
    STACK_ASLEEP = 5, // The thread sleeps; its frames were read without a signal.
    STACK_CUT = 6, // As STACK_SIGNAL or STACK_ASLEEP, but the outermost frames could not be read.
    STACK_NO_ROOM = 7, // No frames: the thread's stack may have no room for a signal handler.
    STACK_LEFT_ALONE = 8, // No frames: the thread sleeps where a signal would disturb it.
    STACK_NOT_ASKED = 9, // No frames: the thread runs and has never called the library.
};

// What a thread waits for, if it waits for another thread.
enum stack_awaits {
    AWAITS_NOTHING = 0, // The thread waits for no other thread, or this is not known.
    // The thread waits for a mutex that the other thread holds. If that is the thread itself, it
    // waits for ever.
    AWAITS_LOCK = 1,
    AWAITS_END = 2, // The thread waits for the other thread to end.
};

struct stack_thread {
    uint32_t tid;
    char name[LOCKSTEP_THREAD_BYTES];
    char state; // State letter of /proc/PID/task/TID/stat; 0: not known.
    bool trainer; // True for the thread that called the library last.
    bool other; // True if the thread has never called the library.
    bool own; // True if the library, or gRPC inside it, has started the thread.
    int32_t syscall; // Number of the thread's system call; -1: the thread runs, -2: not known.
    char
        wchan[LOCKSTEP_WCHAN_BYTES]; // Kernel function that the thread sleeps in; empty: not known.
    enum stack_how how;
    enum stack_awaits awaits;
    uint32_t owner; // Id of the thread that this thread waits for; 0: none.
    char owner_name[LOCKSTEP_THREAD_BYTES];
};

struct stack_frame {
    uint32_t thread; // Index of the frame's thread among all threads of the answer.
    bool python;
    bool library; // True if the file belongs to Python's standard library.
    bool guessed; // True if the frame was guessed from words on the stack, and may be wrong.
    char object[LOCKSTEP_OBJECT_BYTES]; // "libc.so.6", or the Python file.
    char symbol[LOCKSTEP_SYMBOL_BYTES]; // Name of the function; empty: not known.
    uint64_t offset; // Offset in the object, for addr2line; of a Python frame: the line number.
};

// An event of a trace file (struct trace_slot of protos/trace.h), without its sequence.
struct trace_event {
    uint64_t time_ns; // CLOCK_MONOTONIC
    uint64_t step;
    uint64_t value; // The meaning depends on the kind: see enum trace_kind.
    uint16_t kind; // enum trace_kind
    uint16_t thread;
    uint16_t module; // 0xffff: none
    uint16_t call;
    uint32_t bucket;
};

#endif
