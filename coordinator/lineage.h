// SPDX-License-Identifier: Apache-2.0
//
// The open generations of a job, and the quorum of a decision (rules M2 and M3 of
// docs/internals/membership.md). A member is named by the rank that it had in the job's first
// generation. Survivors keep their order, so the rank r of a generation is the r-th of its members.
// Runs inside coordinator_step.

#ifndef COORDINATOR_LINEAGE_H
#define COORDINATOR_LINEAGE_H

#include "protos/limits.h"
#include "protos/types.h"

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;
struct worker;

// A coordinator's knowledge of a job's generations, from its workers and its own decisions.
struct descent {
    struct generation_id founder; // The first generation: it tells jobs of one name apart.
    // The open generations, in the order of ballots. The last one is the job's. Empty in a job
    // whose ranks do not go on after a loss, if another coordinator has formed it.
    uint32_t count;
    struct lineage chain[LOCKSTEP_CHAIN];
    // True once all links of some generation stood. Until then no lockstep_open has returned.
    bool established;
    uint64_t dead[LOCKSTEP_RANK_WORDS]; // Members that are proven dead.
};

uint32_t lineage_size(const uint64_t *set);
// Returns the member with this rank of a generation.
uint32_t lineage_member(const struct lineage *generation, uint32_t rank);
// Returns the rank of a member of a generation.
uint32_t lineage_rank(const struct lineage *generation, uint32_t member);

// A world has formed: its generation is the first one.
void lineage_found(struct job *job);
// Returns the newest generation, or NULL.
const struct lineage *lineage_newest(const struct job *job);
// The job is rebuilt from what a worker says.
void lineage_adopt(struct job *job, const struct up_resume *resume);
// Takes the chain that a worker reports. Returns false, and changes nothing, if too many
// generations are open.
bool lineage_join(struct job *job, const struct up_resume *resume);
// Every member has started the job's generation: no earlier one is open any more.
void lineage_establish(struct job *job);
// Adds the generation of a ballot, without its suspects. Returns false if too many are open.
bool lineage_decide(struct job *job, struct generation_id ballot);
// Notes that a member is proven dead.
void lineage_note_dead(struct job *job, uint32_t member);
// Notes which ranks of the job's generation are.
void lineage_note_all_dead(struct coordinator *core, struct job *job);
// True if the ranks in `counted`, a set of ranks of the job's generation, are a quorum of every
// open generation (M2).
bool lineage_quorum(struct coordinator *core, struct job *job, const uint64_t *counted);

#endif
