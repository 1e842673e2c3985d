// SPDX-License-Identifier: Apache-2.0
//
// Where a worker is, as its heartbeats tell it; and its threads, frames and events, which a worker
// tells when it is asked. Any thread.

#ifndef LOCKSTEP_PROTOS_PLACE_H
#define LOCKSTEP_PROTOS_PLACE_H

#include "protos/basic.h"

#include <stdbool.h>
#include <stdint.h>

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
    enum api_function api; // The function that the trainer entered last.
    bool inside; // True while the trainer is in that function.
    uint64_t api_ms; // Time since it entered the function, or since it returned from it.
    uint32_t module; // The module of that function; LOCKSTEP_MAX_MODULES: none.
    uint32_t call; // The module's call in the step, from 0.
    uint32_t calls_open; // Calls under way.
    uint32_t ready; // Gradients reported in the call that is open longest.
    uint32_t gradients; // Gradients that this call has in all.
    uint64_t plain; // Plain collectives completed.
    uint64_t usual_us; // Time to the next place, 99th percentile. 0: not known yet.
    uint64_t longest_us; // Time to the next place, longest of the last 64. 0: not known yet.
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

// The thing that the first of a rank's collectives on its device waits for.
enum device_hold {
    DEVICE_HOLD_NONE = 0, // Nothing of its device: there is none, or it waits for other ranks.
    DEVICE_HOLD_STREAM = 1, // An input that a stream of the trainer makes.
    DEVICE_HOLD_NCCL = 2, // NCCL. It has the input of this rank, and perhaps not that of others.
};

// A link with something on its way and no progress for a second.
struct link_state {
    uint32_t rank; // The peer's.
    bool awaited; // This rank waits for bytes of it.
    bool reached; // True if the unsent bytes only wait for the peer's process, not for the network.
    uint64_t unsent; // Bytes handed to the link that the peer has not taken yet.
    uint64_t received; // Bytes received from it, in all.
    uint64_t still_ms; // Time without progress in either direction.
};

// The thing that a blocked trainer waits for: the thing that every rank must do before the wait can
// end.
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
    enum api_function function; // The function that the trainer is in.
    uint32_t module; // The module of that function; LOCKSTEP_MAX_MODULES: none.
    bool rooted; // Only rank `root` must do it: a broadcast of the library.
    uint32_t root;
    uint64_t step; // The step that the trainer has begun last; 0: none.
    bool open; // True if that step has not ended on this rank.
    char name[LOCKSTEP_NAME_BYTES]; // Name of the trainer's collective; else empty.
    // The keys, of those that the coordinator has asked about, that this rank has not done yet.
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

// The thing of another thread that a thread waits for.
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
    uint64_t value; // Its meaning depends on the kind.
    uint16_t kind; // enum trace_kind
    uint16_t thread;
    uint16_t module; // 0xffff: none
    uint16_t call;
    uint32_t bucket;
};

#endif
