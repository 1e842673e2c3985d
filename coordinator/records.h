// SPDX-License-Identifier: Apache-2.0
//
// The records that the members of a job report in a ballot, as long words of one pool. Runs inside
// coordinator_step.

#ifndef COORDINATOR_RECORDS_H
#define COORDINATOR_RECORDS_H

#include "protos/limits.h"
#include "protos/types.h"

#include <stdbool.h>
#include <stdint.h>

// Records one behind the other in `words`, each with a head of two words: its kind, rank and
// position, then its total, the number of words that have arrived, and the place of the rank's
// record before it. A place is 1 + the index of a record's head in `words`; 0: there is no record.
struct records {
    uint32_t used; // Words of the pool that are in use.
    uint32_t last[LOCKSTEP_MAX_WORLD]; // By rank: the place of its last record.
    uint64_t *words; // The job's row of the pool. Set at init, then constant.
};

struct record {
    enum record_kind kind;
    uint32_t rank;
    uint32_t position;
    uint32_t total; // Number of words.
    bool whole; // True if all words have arrived.
    const uint64_t *words; // Borrowed from the pool.
};

// Forgets all records.
void records_reset(struct records *records);
// Adds a part. Returns NULL, or what is impossible about the part; records_full if the pool has no
// room.
const char *records_add(struct records *records, uint32_t rank, const struct record_part *part);
extern const char records_full[];
// Forgets the records of a rank.
void records_drop(struct records *records, uint32_t rank);
// Iterates: *at is 0 at first. Returns false after the last record.
bool records_next(const struct records *records, uint32_t *at, struct record *record);
// True if every record of the rank is whole.
bool records_whole(const struct records *records, uint32_t rank);

#endif
