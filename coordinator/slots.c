// SPDX-License-Identifier: Apache-2.0
//
// The slots of a learning step; slots.h has the contract. Runs inside coordinator_step.

#include "coordinator/slots.h"

#include "base/bits.h"
#include "coordinator/core.h"
#include "coordinator/hash.h"
#include "coordinator/job.h"
#include "coordinator/sentence.h"

bool slot_absent(const struct worker *worker, const struct slot_id *id)
{
    return (worker->absent >> id->module & 1) != 0;
}

// Returns the number of members that need not make the slot.
static uint32_t slot_spared(struct coordinator *core, const struct job *job,
                            const struct slot_id *id)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < job->count; i++) {
        const struct worker *worker = job_worker(core, job, i);
        count += worker->ended || slot_absent(worker, id);
    }
    return count;
}

static uint32_t slot_place(const struct learning *learning, const struct slot_id *id)
{
    uint64_t hash = hash_number(HASH_START, id->module, 4);
    hash = hash_number(hash, id->call, 4);
    hash = hash_number(hash, id->bucket, 4);
    uint32_t place = (uint32_t)(hash ^ hash >> 32) & (CORE_SLOT_TABLE - 1);
    while (learning->table[place] != 0) {
        const struct slot_id *other = &learning->slots[learning->table[place] - 1].id;
        if (other->module == id->module && other->call == id->call && other->bucket == id->bucket)
            break;
        place = (place + 1) & (CORE_SLOT_TABLE - 1);
    }
    return place;
}

struct learned_slot *slot_find(struct learning *learning, const struct slot_id *id)
{
    const uint16_t entry = learning->table[slot_place(learning, id)];
    return entry == 0 ? NULL : &learning->slots[entry - 1];
}

struct learned_slot *slot_add(struct coordinator *core, struct job *job,
                              const struct up_ready *ready, uint32_t rank)
{
    struct learning *learning = &job->learning;
    const uint32_t place = slot_place(learning, &ready->slot);
    struct learned_slot *slot = &learning->slots[learning->slot_count];
    if (learning->slot_count == LOCKSTEP_MAX_SLOTS)
        return NULL;
    memset(slot, 0, sizeof(*slot));
    slot->id = ready->slot;
    slot->dtype = ready->dtype;
    slot->elements = ready->elements;
    slot->reporter = rank;
    slot->complete = slot_spared(core, job, &slot->id);
    learning->table[place] = (uint16_t)(++learning->slot_count);
    return slot;
}

bool slot_made(const struct learned_slot *slot, uint32_t rank)
{
    return bits_has(slot->ready, rank);
}

bool slot_valid(const struct slot_id *id)
{
    return id->module < LOCKSTEP_MAX_MODULES && id->call < LOCKSTEP_MAX_CALLS &&
           id->bucket < LOCKSTEP_MAX_BUCKETS;
}

void slot_name(struct text *sentence, const struct slot_id *id)
{
    text_append(sentence, "module %" PRIu32 " call %" PRIu32 " bucket %" PRIu32, id->module,
                id->call, id->bucket);
}
