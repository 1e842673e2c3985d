// SPDX-License-Identifier: Apache-2.0
//
// The trace of one worker: where it is, and its last events, as a block of memory that outlives the
// process when it is mapped from a file. Little endian, version 1. Whoever reads it trusts nothing:
// the writer may be dead, or be writing.
//
//      0  struct trace_header, written at open and when the generation forms
//    512  the number of events begun, on a cache line of its own
//   1024  struct progress, of which the header says the bytes: new words come last
//   2048  a cell with what lockstep_mark said last, at 2304 one with the reason of the pause
//   4096  names of modules, by index
//  20480  struct trace_thread, by the number that events have for a thread
//  24576  struct trace_slot, event n in slot n modulo LOCKSTEP_TRACE_EVENTS
//
// A cell is a version, odd while it is written, and a text; readers take it when the version is
// even and the same before and after. A slot has a sequence for that.
//
// Only the format: nothing here opens, writes or reads a trace.

#ifndef PROTOS_TRACE_H
#define PROTOS_TRACE_H

#include "protos/limits.h"

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_MAGIC "LSTRACE" // With its NUL: the first 8 bytes.
#define TRACE_VERSION 1
#define TRACE_NO_RANK UINT32_MAX
#define TRACE_NO_MODULE 0xffffu
#define TRACE_WRITING UINT64_MAX // No event has such a number.

enum trace_offset {
    TRACE_NEXT = 512,
    TRACE_PROGRESS = 1024,
    TRACE_MARK = 2048,
    TRACE_PAUSE_REASON = 2304,
    TRACE_NAMES = 4096,
    TRACE_THREADS = 20480,
    TRACE_EVENTS = 24576,
};

struct trace_header {
    char magic[8];
    uint32_t version;
    uint32_t event_bytes; // sizeof(struct trace_slot)
    uint32_t event_count;
    uint32_t progress_bytes;
    uint32_t pid;
    uint32_t rank; // TRACE_NO_RANK: none yet.
    uint32_t world_size;
    uint32_t closed; // 1: lockstep_close was called.
    uint64_t real_ns; // CLOCK_REALTIME at open.
    uint64_t monotonic_ns; // CLOCK_MONOTONIC at open.
    uint64_t generation;
    uint64_t incarnation;
    uint8_t uuid[LOCKSTEP_UUID_BYTES];
    char job[LOCKSTEP_JOB_NAME_BYTES];
    char host[LOCKSTEP_HOST_BYTES];
};

struct trace_cell {
    _Atomic(uint64_t) version;
    char text[LOCKSTEP_MARK_BYTES];
};

struct trace_thread {
    uint32_t tid;
    char name[LOCKSTEP_THREAD_BYTES];
};

// An event may be read when sequence is its number + 1 before and after it was copied.
struct trace_slot {
    _Atomic(uint64_t) sequence; // 0: none yet; TRACE_WRITING while it is written.
    uint64_t time_ns; // CLOCK_MONOTONIC
    uint64_t step;
    uint64_t value; // Its meaning depends on the kind.
    uint16_t kind; // enum trace_kind
    uint16_t thread; // Index of a struct trace_thread.
    uint16_t module; // TRACE_NO_MODULE: none.
    uint16_t call;
    uint32_t bucket;
    uint32_t reserved;
};

enum trace_kind { // Numbers are never used twice.
    TRACE_NONE = 0,
    TRACE_API_ENTER = 1, // value: enum api_function
    TRACE_API_LEAVE = 2, // value: the same, and the status in the upper half.
    TRACE_STEP_BEGIN = 3,
    TRACE_CALL_BEGIN = 4,
    TRACE_CALL_END = 5,
    TRACE_BUCKET_READY = 6,
    TRACE_LAUNCH = 7, // value: bytes
    TRACE_FINAL = 8,
    TRACE_STEP_END = 9,
    TRACE_CLOSED = 10,
    TRACE_SETTLED = 11,
    TRACE_WAIT = 12,
    TRACE_RELEASE = 13,
    TRACE_GRANT = 14,
    TRACE_PLAN = 15,
    TRACE_BLOCKED = 16,
    TRACE_QUERY = 17,
    TRACE_HALT = 18, // value: enum halt_kind
    TRACE_PAUSE = 19,
    TRACE_RESUME = 20,
    TRACE_PLAIN = 21, // A plain collective. One that blocks for less than a tick leaves no events.
    TRACE_PLAIN_DONE = 22, // value: status
    TRACE_INSPECTED = 23,
};

#define TRACE_BYTES ((size_t)TRACE_EVENTS + LOCKSTEP_TRACE_EVENTS * sizeof(struct trace_slot))

// Where the trainer is. Every word is true by itself, and may be read at any time. Milliseconds are
// CLOCK_MONOTONIC_COARSE, microseconds CLOCK_MONOTONIC.
struct progress {
    // The trainer's.
    _Atomic(uint64_t) step; // The step that it has opened.
    _Atomic(uint64_t) api; // See PROGRESS_*: the function that it entered last.
    _Atomic(uint64_t) api_ms; // When it entered it, or left it.
    _Atomic(uint64_t) ready_us; // The last gradient of the step was reported; 0: none yet.
    _Atomic(uint64_t) calls_open; // Calls under way.
    _Atomic(uint64_t) gradients; // Gradients to be reported in these calls.
    _Atomic(uint64_t) ready; // Gradients reported in these calls.
    _Atomic(uint64_t) waiting; // Threads that are blocked on other ranks.
    _Atomic(uint64_t) waited_ms; // In functions that block, in all.
    _Atomic(uint64_t) plain; // Plain collectives that it has waited for.
    _Atomic(uint64_t) paused_ms; // lockstep_pause was called; 0: it is not paused.
    _Atomic(uint64_t) pause_ms; // How long that was to last.
    // Sums over the finished steps of the generation, the trainer's too.
    _Atomic(uint64_t) steps;
    _Atomic(uint64_t) bytes_copied;
    _Atomic(uint64_t) in_flight_us;
    _Atomic(uint64_t) overlap_us;
    _Atomic(uint64_t) exposed_us;
    _Atomic(uint64_t) zero_filled;
    _Atomic(uint64_t) unused; // Gradients that this rank's calls did not produce.
    // The driver's, on a cache line of their own.
    _Alignas(64) _Atomic(uint64_t) settled; // Step.
    _Atomic(uint64_t) place; // See worker/watch/progress.h.
    _Atomic(uint64_t) bytes_sent;
    _Atomic(uint64_t) bytes_received;
    _Atomic(uint64_t) generation; // 0: not formed.
    _Atomic(uint64_t) incarnation;
};

// The word `api`: number of the function, its module and call, and whether the trainer is inside.
#define PROGRESS_MODULE_SHIFT 8
#define PROGRESS_CALL_SHIFT 16
#define PROGRESS_INSIDE ((uint64_t)1 << 32)
#define PROGRESS_NO_MODULE 0xffu

static_assert(LOCKSTEP_MAX_MODULES < PROGRESS_NO_MODULE && LOCKSTEP_MAX_CALLS <= 65536,
              "a module and a call fit");
static_assert(sizeof(struct progress) <= TRACE_MARK - TRACE_PROGRESS, "the words fit");
static_assert(offsetof(struct trace_header, real_ns) == 40 && sizeof(struct trace_header) == 280,
              "the format has no holes that a compiler may choose");
static_assert(sizeof(struct trace_slot) == 48, "the format is fixed");
static_assert(sizeof(struct trace_header) <= TRACE_NEXT, "the header fits");
static_assert(TRACE_MARK + sizeof(struct trace_cell) <= TRACE_PAUSE_REASON &&
                  TRACE_PAUSE_REASON + sizeof(struct trace_cell) <= TRACE_NAMES,
              "both cells fit");
static_assert(TRACE_NAMES + LOCKSTEP_MAX_MODULES * LOCKSTEP_NAME_BYTES <= TRACE_THREADS,
              "the names fit");
static_assert(TRACE_THREADS + LOCKSTEP_STACK_THREADS * sizeof(struct trace_thread) <= TRACE_EVENTS,
              "the threads fit");

#endif
