// SPDX-License-Identifier: Apache-2.0
//
// A pool of records: see records.h. Records are only ever appended; a ballot begins with an empty
// pool.

#include "coordinator/records.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#define RECORD_BITS 20
#define RECORD_MASK ((1u << RECORD_BITS) - 1)

const char records_full[] = "reported more than a ballot can hold";

static uint64_t record_key(enum record_kind kind, uint32_t rank, uint32_t position)
{
    return (uint64_t)kind << 56 | (uint64_t)rank << 32 | position;
}

static_assert(LOCKSTEP_BALLOT_WORDS < 1u << RECORD_BITS && 3 * RECORD_BITS <= 64,
              "three numbers of words fit in one");

static uint64_t record_size(uint32_t total, uint32_t arrived, uint32_t before)
{
    return (uint64_t)before << 2 * RECORD_BITS | (uint64_t)total << RECORD_BITS | arrived;
}

static uint32_t record_rank(const uint64_t *head)
{
    return (uint32_t)(head[0] >> 32) & 0xffffff;
}

static uint32_t record_total(const uint64_t *head)
{
    return (uint32_t)(head[1] >> RECORD_BITS) & RECORD_MASK;
}

static uint32_t record_arrived(const uint64_t *head)
{
    return (uint32_t)head[1] & RECORD_MASK;
}

static uint32_t record_before(const uint64_t *head)
{
    return (uint32_t)(head[1] >> 2 * RECORD_BITS);
}

void records_reset(struct records *records)
{
    records->used = 0;
    memset(records->last, 0, sizeof(records->last));
}

// The records stay where they are, as records of no kind.
void records_drop(struct records *records, uint32_t rank)
{
    for (uint32_t place = records->last[rank]; place != 0;) {
        uint64_t *head = &records->words[place - 1];
        head[0] = record_key(RECORD_NONE, rank, 0);
        place = record_before(head);
    }
    records->last[rank] = 0;
}

bool records_next(const struct records *records, uint32_t *at, struct record *record)
{
    const uint64_t *head = &records->words[*at];
    if (*at == records->used)
        return false;
    *record = (struct record){.kind = (enum record_kind)(head[0] >> 56),
                              .rank = record_rank(head),
                              .position = (uint32_t)head[0],
                              .total = record_total(head),
                              .whole = record_total(head) == record_arrived(head),
                              .words = head + LOCKSTEP_RECORD_HEAD};
    *at += LOCKSTEP_RECORD_HEAD + record->total;
    return true;
}

bool records_whole(const struct records *records, uint32_t rank)
{
    for (uint32_t place = records->last[rank]; place != 0;) {
        const uint64_t *head = &records->words[place - 1];
        if (record_arrived(head) < record_total(head))
            return false;
        place = record_before(head);
    }
    return true;
}

// Returns the head of the rank's record that a part belongs to, or NULL. Other ranks have far more
// records in sum.
static uint64_t *records_head(struct records *records, uint32_t rank, uint64_t key)
{
    for (uint32_t place = records->last[rank]; place != 0;) {
        uint64_t *head = &records->words[place - 1];
        if (head[0] == key)
            return head;
        place = record_before(head);
    }
    return NULL;
}

static uint64_t *records_begin(struct records *records, uint32_t rank, uint64_t key, uint32_t total)
{
    uint64_t *head = &records->words[records->used];
    if (LOCKSTEP_BALLOT_WORDS - records->used < LOCKSTEP_RECORD_HEAD + total)
        return NULL;
    head[0] = key;
    head[1] = record_size(total, 0, records->last[rank]);
    records->last[rank] = records->used + 1;
    records->used += LOCKSTEP_RECORD_HEAD + total;
    return head;
}

const char *records_add(struct records *records, uint32_t rank, const struct record_part *part)
{
    const uint64_t key = record_key(part->kind, rank, part->position);
    uint64_t *head = records_head(records, rank, key);
    if (!head && part->first != 0)
        return "reported a record from its middle on";
    if (!head && part->total > LOCKSTEP_BALLOT_WORDS)
        return records_full;
    if (!head)
        head = records_begin(records, rank, key, part->total);
    if (!head)
        return records_full;
    if (record_total(head) != part->total || record_arrived(head) != part->first ||
        part->count > part->total - part->first)
        return "reported a record whose parts do not fit together";
    memcpy(head + LOCKSTEP_RECORD_HEAD + part->first, part->words, part->count * sizeof(head[0]));
    head[1] = record_size(part->total, part->first + part->count, record_before(head));
    return NULL;
}
