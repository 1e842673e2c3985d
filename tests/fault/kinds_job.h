// SPDX-License-Identifier: Apache-2.0
//
// A collective of any kind for tests of recovery: what a rank gives, and what it has to get. Each
// element says from which rank it comes and for which rank it is.

#ifndef LOCKSTEP_TESTS_KINDS_JOB_H
#define LOCKSTEP_TESTS_KINDS_JOB_H

#include <lockstep/lockstep.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    KINDS_RANKS = 4,
    KINDS_MOST = 70000, // Elements of a part: above what may be sent before its credit.
};

enum operation {
    REDUCE,
    GATHER,
    GATHER_V, // V: parts of unequal size.
    SCATTER,
    SCATTER_V,
    ALL_GATHER,
    ALL_GATHER_V,
    ALL_GATHER_IN_PLACE,
    REDUCE_SCATTER,
    REDUCE_SCATTER_V,
    REDUCE_SCATTER_IN_PLACE,
    ALL_TO_ALL,
    ALL_TO_ALL_V,
    ALL_TO_ALL_IN_PLACE,
    SUM,
    COPY,
    GROUP_SUM, // A group of all ranks in another order; a new one after some turns.
    GROUP_GATHER, // A group of three, as the next one.
    GROUP_COPY,
    PAIRS, // These two are no collectives.
    ANY_SOURCE,
    OPERATIONS,
};

struct kinds_job {
    // given
    enum operation operation;
    uint32_t turn;
    uint32_t id; // This rank, by its number in the first world, as the members.
    uint32_t members[KINDS_RANKS]; // [n], by place.
    uint32_t n;
    uint32_t own; // This rank's place.
    int32_t *input; // [KINDS_RANKS * KINDS_MOST]
    int32_t *output; // [KINDS_RANKS * KINDS_MOST]
    lockstep_group *group;
    // made by kinds_lay
    struct lockstep_collective what;
    char name[8];
    uint64_t counts[KINDS_RANKS]; // By place.
    uint64_t received[KINDS_RANKS]; // Of an ALL_TO_ALL: counts of the output.
    bool parts; // True if the input has a part for each member.
    bool sums;
};

// Element e of what a rank gives to another one; KINDS_RANKS: to all. Sums tell which ranks are in
// them.
int32_t kinds_value(uint32_t id, uint32_t to, uint32_t turn, uint64_t e);
// Describes the collective and fills its memory in.
void kinds_lay(struct kinds_job *job);
// True if each element that this rank has got is right.
bool kinds_right(const struct kinds_job *job);
// True if the input is as it was filled in, or lies in the output. Overwrites the output.
bool kinds_untouched(const struct kinds_job *job);

// Opens a session of KINDS_RANKS ranks that goes on after a death, with one small module, and
// starts it. transport: "tcp" or "auto". device: as config.device. Returns 0, or the failure.
int kinds_open(lockstep_session **session, uint32_t id, uint16_t port, const char *transport,
               const char *device);

#endif
