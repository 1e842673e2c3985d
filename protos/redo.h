// SPDX-License-Identifier: Apache-2.0
//
// What ranks report about a slot that a lost rank left unfinished, and how its elements are to be
// repeated. docs/internals/recovery.md has the rules. Any thread.

#ifndef PROTOS_REDO_H
#define PROTOS_REDO_H

#include "protos/basic.h"
#include "protos/limits.h"

#include <stdbool.h>
#include <stdint.h>

// A half-open range of elements of a slot.
struct redo_run {
    uint64_t first;
    uint64_t end;
};

// What one rank reports about one slot. Runs are ascending, not empty, and do not touch each other.
// A slot without elements that is final has one run, from 0 to 0.
struct redo_report {
    bool contributed; // True if the rank has given its gradients, or zeros, to the slot.
    uint32_t run_count;
    const struct redo_run *runs; // The elements that are final in the rank's memory. Borrowed.
};

enum redo_kind {
    REDO_REDUCE = 0, // The elements are inputs on every rank: they are summed and given to all.
    REDO_HAVE = 1, // The owner has the final bytes: it gives them to all.
};

// One row of the table of chunks of a repeated slot. Rows are ascending and do not overlap;
// elements between rows are final on every rank.
struct redo_row {
    uint64_t first;
    uint64_t end;
    uint32_t owner; // A rank of the new generation.
    enum redo_kind kind;
};

// The most words of a record of this kind; 0: it does not travel in this direction. up: true for a
// part of a report, false for a part of a decision.
static inline uint32_t record_bound(enum record_kind kind, bool up)
{
    switch (kind) {
    case RECORD_RUNS:
        return up ? LOCKSTEP_MAX_RECORD_WORDS : 0;
    case RECORD_ROWS:
        return up ? 0 : LOCKSTEP_MAX_RECORD_WORDS;
    case RECORD_USED:
        return LOCKSTEP_BUCKET_PARAMETERS / 64;
    case RECORD_FINAL:
    case RECORD_GIVEN:
        return up ? LOCKSTEP_SLOT_WORDS : 0;
    case RECORD_OPENING:
    case RECORD_CLOSING:
    case RECORD_COMMIT:
        return LOCKSTEP_WAVE_BYTES / 8;
    case RECORD_NONE:
        break;
    }
    return 0;
}

#endif
