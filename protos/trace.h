// SPDX-License-Identifier: Apache-2.0
//
// The format of a trace: where one worker is, and its last events, in a block of memory. A block
// that is mapped from a file outlives the process. Little endian, version 1. A reader must check
// every value, because the writer may be dead or may be writing at the same time.
//
//      0  struct trace_header, written at open and when the generation forms
//    512  number of events begun, on a cache line of its own
//   1024  struct progress; the header has its size, and new words are added at the end
//   2048  struct trace_cell with the last text of lockstep_mark
//   2304  struct trace_cell with the reason of lockstep_pause
//   4096  names of modules, by index
//  20480  struct trace_thread, by the number that events use for a thread
//  24576  struct trace_slot, event n in slot n modulo LOCKSTEP_TRACE_EVENTS
//
// A cell has a version and a text. The version is odd while the text is being written. A reader may
// use the text if the version was even, and the same, before and after it copied the text. A slot
// has a sequence for the same purpose.
//
// This file has the format only; nothing here opens, writes or reads a trace.

#ifndef PROTOS_TRACE_H
#define PROTOS_TRACE_H

#include "protos/limits.h"

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_MAGIC "LSTRACE" // The first 8 bytes, with its NUL.
#define TRACE_VERSION 1
#define TRACE_NO_RANK UINT32_MAX
#define TRACE_NO_MODULE 0xffffu
#define TRACE_WRITING UINT64_MAX // Sequence of a slot that is being written; no event has it.

enum trace_offset {
    TRACE_NEXT = 512,
    TRACE_PROGRESS = 1024,
    TRACE_MARK = 2048,
    TRACE_PAUSE_REASON = 2304,
    TRACE_NAMES = 4096,
    TRACE_THREADS = 20480,
    TRACE_EVENTS = 24576,
};
#define TRACE_THREAD_PLACES 204 // As many as lie before the events.

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

// A reader may use its copy of an event if sequence was the event's number + 1 before and after it
// copied the slot.
struct trace_slot {
    // The event's number + 1; 0: no event yet; TRACE_WRITING: the slot is being written.
    _Atomic(uint64_t) sequence;
    uint64_t time_ns; // CLOCK_MONOTONIC
    uint64_t step;
    uint64_t value; // The meaning depends on the kind: see enum trace_kind.
    uint16_t kind; // enum trace_kind
    uint16_t thread; // Index of a struct trace_thread.
    uint16_t module; // TRACE_NO_MODULE: none.
    uint16_t call;
    uint32_t bucket;
    uint32_t reserved;
};

enum trace_kind { // A number is never used again for another kind.
    TRACE_NONE = 0,
    TRACE_API_ENTER = 1, // value: enum api_function
    TRACE_API_LEAVE = 2, // value: enum api_function, and the status in the upper 32 bits.
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
    // A plain collective. A collective that blocks for less than a tick writes no events.
    TRACE_PLAIN = 21,
    TRACE_PLAIN_DONE = 22, // value: status
    TRACE_INSPECTED = 23,
};

#define TRACE_BYTES ((size_t)TRACE_EVENTS + LOCKSTEP_TRACE_EVENTS * sizeof(struct trace_slot))

// Where the trainer is. A reader may read every word at any time, but two words may be from
// different moments. Milliseconds are CLOCK_MONOTONIC_COARSE, microseconds CLOCK_MONOTONIC.
struct progress {
    // Written by the trainer's threads.
    _Atomic(uint64_t) step; // Step that the trainer has opened last.
    _Atomic(uint64_t) api; // Function that the trainer entered last: see PROGRESS_*.
    _Atomic(uint64_t) api_ms; // When the trainer entered that function, or returned from it.
    _Atomic(uint64_t) ready_us; // When the last gradient of the step was reported; 0: none yet.
    _Atomic(uint64_t) calls_open; // Calls that have begun and not ended.
    _Atomic(uint64_t) gradients; // Gradients to be reported in these calls.
    _Atomic(uint64_t) ready; // Gradients reported in these calls.
    _Atomic(uint64_t) waiting; // Threads that are blocked on other ranks.
    _Atomic(uint64_t) waited_ms; // Total time in functions that block.
    _Atomic(uint64_t) plain; // Plain collectives that the trainer has waited for.
    _Atomic(uint64_t) paused_ms; // When lockstep_pause was called; 0: not paused.
    _Atomic(uint64_t) pause_ms; // Expected length of the pause.
    // Written by the trainer's threads: sums over the finished steps of the generation.
    _Atomic(uint64_t) steps;
    _Atomic(uint64_t) bytes_copied;
    _Atomic(uint64_t) in_flight_us;
    _Atomic(uint64_t) overlap_us;
    _Atomic(uint64_t) exposed_us;
    _Atomic(uint64_t) zero_filled;
    _Atomic(uint64_t) unused; // Gradients that this rank's calls did not produce.
    // Written by the thread that drives the engine, on a cache line of their own.
    _Alignas(64) _Atomic(uint64_t) settled; // Last settled step.
    _Atomic(uint64_t) place; // See worker/watch/progress.h.
    _Atomic(uint64_t) bytes_sent;
    _Atomic(uint64_t) bytes_received;
    _Atomic(uint64_t) generation; // Number of the generation; 0: not formed yet.
    _Atomic(uint64_t) incarnation;
};

// Layout of the word `api`: number of the function in the low 8 bits, module, call, and a bit that
// is set while the trainer is in the function.
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
static_assert(TRACE_THREADS + TRACE_THREAD_PLACES * sizeof(struct trace_thread) <= TRACE_EVENTS,
              "the threads fit");

#endif
