// SPDX-License-Identifier: Apache-2.0
//
// The words that messages of both directions are made of: element types, ids of slots, calls and
// generations, ways of reducing, reasons to halt. Any thread.

#ifndef LOCKSTEP_PROTOS_BASIC_H
#define LOCKSTEP_PROTOS_BASIC_H

#include "protos/limits.h"

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
};

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
    uint32_t call; // From 0, as in a slot.
};

// A set of positions in the plan of a step: bit p % 64 of word p / 64.
struct slot_set {
    uint64_t words[LOCKSTEP_SLOT_WORDS];
};

// A fixed membership is named by its number and by who made it: a restarted coordinator may count
// from one again, but never with the same incarnation.
struct generation_id {
    uint64_t number; // From 1; 0 is "none yet".
    uint64_t incarnation; // Random id of the coordinator that made it.
};

enum reduce_op {
    REDUCE_SUM = 0,
    REDUCE_MEAN = 1, // sum(w g) / sum(w), one division at the owner. Floating point only.
    REDUCE_MIN = 2,
    REDUCE_MAX = 3,
    REDUCE_OR = 4, // Integers only.
};

// How the bytes of a collective travel. It decides the order of summation, so the bits: agreed once
// for every slot, never chosen by one rank. docs/internals/data-plane.md says what each one does.
enum plan_algorithm {
    ALGORITHM_RING = 0, // Any world; the least bytes.
    ALGORITHM_DOUBLING = 1, // Recursive doubling of the whole payload; the fewest rounds.
    ALGORITHM_HALVING = 2, // Recursive halving, then doubling: few rounds, the least bytes.
    ALGORITHM_SHARED = 3, // Through memory; all ranks are on one host.
    ALGORITHM_TWO_LEVEL = 4, // Through memory inside each host, a ring between hosts.
};
#define PLAN_ALGORITHMS 5
// In the place of one of them, in a plan or as a wish: what tuning_choose (tuning.h) answers.
#define ALGORITHM_BY_SIZE 5u

enum halt_kind {
    HALT_NONE = 0,
    HALT_MANIFEST = 1, // Manifests differ (text is the two-sided report), or some ranks are in
                       // lockstep_start and others in a step.
    HALT_PHASE = 2, // Ranks are in different phases of the same step.
    HALT_ORDER = 3, // Synchronous waits form a cycle.
    HALT_UNPLANNED = 4, // A call outside the plan, or a wait for one.
    HALT_COLLECTIVE = 5, // A plain collective differs between ranks.
    HALT_LOST = 6, // A worker died.
    HALT_LEFT = 7, // A worker closed its session while another still needed it.
    HALT_PROTOCOL = 8, // A worker said something impossible: a bug, named.
    HALT_LAYOUT = 9, // Bucket layouts or learned slots differ between ranks.
    HALT_TUNING = 10, // Ranks ask for different algorithms, or for one that the world cannot run.
};

// Part of the layout that rank 0 proposes for a module: the known one, or a new one. The words
// are: bucket count k, then k ends (exclusive, into the parameter list), then the parameter
// indices in the order in which they became ready.
struct layout_part {
    uint32_t module;
    uint32_t total; // Words of the whole layout.
    uint32_t first; // Index of words[0].
    uint32_t count;
    uint32_t words[LOCKSTEP_LAYOUT_PART];
};

#endif
