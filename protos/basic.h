// SPDX-License-Identifier: Apache-2.0
//
// Types that messages of both directions contain: element types, ids of slots, calls and
// generations, reduce operations, reasons to halt. Any thread.

#ifndef LOCKSTEP_PROTOS_BASIC_H
#define LOCKSTEP_PROTOS_BASIC_H

#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

// Element types. The numbers are on the wire and in the public header.
enum dtype {
    DTYPE_NONE = 0,
    DTYPE_FLOAT32 = 1,
    DTYPE_FLOAT64 = 2,
    DTYPE_INT32 = 3,
    DTYPE_INT64 = 4,
    DTYPE_FLOAT16 = 5,
    DTYPE_BFLOAT16 = 6,
    DTYPE_UINT8 = 7,
    DTYPE_INT8 = 8,
    DTYPE_INT16 = 9,
    DTYPE_UINT16 = 10,
    DTYPE_UINT32 = 11,
    DTYPE_UINT64 = 12,
    DTYPE_BOOL = 13, // A byte: 0 is false, every other value is true.
};

#define DTYPE_LAST DTYPE_BOOL

struct uuid {
    uint8_t bytes[LOCKSTEP_UUID_BYTES];
};

// One planned collective of a step.
struct slot_id {
    uint32_t module; // Index of the module in the manifest.
    uint32_t call; // Call number of that module in the step, from 0.
    uint32_t bucket; // Index of the bucket in the module's layout.
};

// A call of a module in a step.
struct call_id {
    uint32_t module;
    uint32_t call; // Call number of that module in the step, from 0.
};

// A set of positions in the plan of a step: bit p % 64 of word p / 64.
struct slot_set {
    uint64_t words[LOCKSTEP_SLOT_WORDS];
};

static inline bool slot_set_has(const struct slot_set *set, uint32_t position)
{
    return (set->words[position / 64] >> position % 64 & 1) != 0;
}

static inline void slot_set_add(struct slot_set *set, uint32_t position)
{
    set->words[position / 64] |= UINT64_C(1) << position % 64;
}

// Names a generation, that is a fixed set of members. A restarted coordinator may count generations
// from 1 again, but its incarnation is different.
struct generation_id {
    uint64_t number; // From 1; 0: no generation yet.
    uint64_t incarnation; // Random id of the coordinator that formed the generation.
};

// Returns a negative number, 0 or a positive number if a is below, equal to or above b in the order
// of ballots.
static inline int generation_compare(const struct generation_id *a, const struct generation_id *b)
{
    if (a->number != b->number)
        return a->number < b->number ? -1 : 1;
    if (a->incarnation != b->incarnation)
        return a->incarnation < b->incarnation ? -1 : 1;
    return 0;
}

// A generation and its members, named by the ranks that they had in the job's first generation.
struct lineage {
    struct generation_id id;
    uint64_t members[LOCKSTEP_RANK_WORDS];
};

enum reduce_op {
    REDUCE_SUM = 0,
    // sum(w g) / sum(w); the owner of a chunk divides once. Floating point only.
    REDUCE_MEAN = 1,
    REDUCE_MIN = 2,
    REDUCE_MAX = 3,
    REDUCE_OR = 4, // Bitwise; not for floats. So are AND and XOR.
    REDUCE_PRODUCT = 5,
    REDUCE_AND = 6,
    REDUCE_XOR = 7,
};

#define REDUCE_LAST REDUCE_XOR

// What becomes of the values of a metric. The numbers are those of lockstep_metric_kind.
enum metric_kind {
    METRIC_SUM = 1,
    METRIC_MEAN = 2,
    METRIC_MIN = 3,
    METRIC_MAX = 4,
};

// How the bytes of a collective travel. The algorithm decides the order of summation, and so the
// bits of the result. All ranks agree on the algorithm of a slot; no rank chooses it alone.
// docs/internals/data-plane.md describes each algorithm.
enum plan_algorithm {
    ALGORITHM_RING = 0, // Any world; each rank sends the fewest bytes.
    ALGORITHM_DOUBLING = 1, // Recursive doubling of the whole payload; the fewest rounds.
    ALGORITHM_HALVING = 2, // Recursive halving, then doubling: few rounds, the fewest bytes.
    ALGORITHM_SHARED = 3, // Through shared memory; all ranks are on one host.
    ALGORITHM_TWO_LEVEL = 4, // Through shared memory inside each host, a ring between hosts.
    // Each rank sends its part of a chunk to the chunk's owner, which adds in the order of ranks.
    ALGORITHM_DIRECT = 5,
};
#define PLAN_ALGORITHMS 6
// Stands for an algorithm in a plan or in a user's request: tuning_choose (tuning.h) chooses one by
// the size of the payload.
#define ALGORITHM_BY_SIZE 6u

enum halt_kind {
    HALT_NONE = 0,
    HALT_MANIFEST = 1, // Manifests differ (text is the two-sided report), or some ranks are in
                       // lockstep_start and others in a step.
    HALT_PHASE = 2, // Ranks are in different phases of the same step.
    HALT_ORDER = 3, // Synchronous waits form a cycle.
    HALT_UNPLANNED = 4, // The trainer made a call that is not in the plan, or waits for one.
    HALT_COLLECTIVE = 5, // Ranks call a plain collective differently.
    HALT_LOST = 6, // A worker was lost, or called lockstep_abort.
    HALT_LEFT = 7, // A worker closed its session while another still needed it.
    HALT_PROTOCOL = 8, // A worker sent a message that is impossible: a bug. The text names it.
    HALT_LAYOUT = 9, // Bucket layouts or learned slots differ between ranks.
    // Settings that have to be equal on all ranks differ, or the world cannot run the algorithm
    // that they request.
    HALT_TUNING = 10,
    HALT_LIMIT = 11, // A step has more than LOCKSTEP_MAX_SLOTS slots.
};

// The speed of the links, measured when the generation formed, and the thresholds that follow from
// it. All ranks of a generation have the same tuning.
struct tuning {
    uint64_t latency_ns; // One-way time of a few bytes on the slowest link.
    // Bandwidth of the slowest link in one direction, while all links are busy.
    uint64_t bytes_per_s;
    uint64_t doubling_bytes; // Payloads up to this size travel by ALGORITHM_DOUBLING.
    // Payloads above doubling_bytes and up to this size travel by ALGORITHM_HALVING.
    uint64_t halving_bytes;
    bool shares; // True if all workers have mapped the shared memory of their host.
    uint32_t wish; // enum plan_algorithm that every rank requests, or ALGORITHM_BY_SIZE.
};

// Part of the layout that rank 0 proposes for a module. The layout may be new, or the one that the
// module has already. A layout is a list of words: the bucket count k, then the exclusive end of
// each of the k buckets in the list of parameters, then the indices of the parameters in the order
// in which their gradients became ready.
struct layout_part {
    uint32_t module;
    uint32_t total; // Number of words of the whole layout.
    uint32_t first; // Index of words[0] in the whole layout.
    uint32_t count;
    uint32_t words[LOCKSTEP_LAYOUT_PART];
};

// What a record of recovery says. The words of each kind:
enum record_kind {
    RECORD_NONE = 0, // Never sent.
    // Up. A slot that this rank has launched and that is not final here: the number of its
    // elements, then the first element and the end of each run that is final (struct redo_run).
    RECORD_RUNS = 1,
    // Down. The rows of a slot that is repeated (struct redo_row): three words each, the first
    // element, the end, and twice the owner's rank plus the kind.
    RECORD_ROWS = 2,
    // Both. The used units of that slot of which an element is final, or that have no elements, as
    // a set: bit u % 64 of word u / 64.
    RECORD_USED = 3,
    // Up. Positions of the step that are final on this rank, as a set.
    RECORD_FINAL = 4,
    // Up. Positions of the step to which this rank has contributed, as a set.
    RECORD_GIVEN = 5,
    // Both. Payload of a wave that is complete: 8 bytes in a word, the first byte lowest. Zeros at
    // the end are left out.
    RECORD_OPENING = 6,
    RECORD_CLOSING = 7,
    RECORD_COMMIT = 8,
};

// Part of one record of a rank's report (before UP_REPORT), or of a decision (before
// DOWN_DECISION). Its ballot is that of the report or decision.
struct record_part {
    enum record_kind kind;
    uint32_t position; // The slot's position in its step: RUNS, ROWS, USED; else 0.
    uint32_t total; // Number of words of the whole record.
    uint32_t first; // Index of words[0] in the whole record.
    uint32_t count;
    uint64_t words[LOCKSTEP_RECORD_PART];
};

#endif
