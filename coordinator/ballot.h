// SPDX-License-Identifier: Apache-2.0
//
// Recovery: how the members of a job go on after a death. Runs inside coordinator_step.

#ifndef COORDINATOR_BALLOT_H
#define COORDINATOR_BALLOT_H

#include "coordinator/lineage.h"
#include "coordinator/records.h"
#include "protos/types.h"

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;
struct worker;

// The last word of a member that has left (rule M10): the result of its last wave. It may be the
// only rank that has it.
struct parting {
    uint64_t settled; // The last step that it has settled.
    uint32_t flags; // They say which wave it is, as in struct up_leave.
    uint32_t word_count; // 0: no member has left such a word.
    uint64_t words[LOCKSTEP_WAVE_BYTES / 8];
};

// A ballot, and what recoveries have cost so far.
struct ballot {
    // True if the members are to freeze, and are not asked yet: the connected ones do not suffice
    // for a decision (M5), or a rank has refused (M1).
    bool wanted;
    bool active; // True while reports are collected.
    bool forming; // True from the decision until all links of the new generation stand.
    uint64_t number; // Number of the last ballot of the job; 0: none.
    uint64_t began_ms; // When the first rank of this recovery became a suspect.
    // When a ballot ends that too few members answer; UINT64_MAX: they are enough.
    uint64_t proof_ms;
    uint64_t retry_ms; // When members may be asked after a refusal; 0: at once.
    uint64_t suspicion_ms; // When suspicion_tick is due; UINT64_MAX: never.
    uint32_t cause; // The first suspect: its rank in the generation that ends.
    uint64_t suspects[LOCKSTEP_RANK_WORDS]; // Set of ranks of the generation that ends.
    char text[LOCKSTEP_TEXT_BYTES]; // The sentence about the first suspect.
    uint64_t settled; // The last step that is committed, by the last decision.
    struct records records;
    struct parting parting; // The word of the member that had settled the most steps.
    struct descent descent; // The open generations, whether a ballot runs or not.
    // Valid for the life of the job.
    uint32_t recoveries; // Recoveries that are complete.
    uint64_t spent_ms; // Time that they took, from suspicion until the links stood.
    uint64_t lasted_ms; // The time that the last one took.
};

// A member of the job was lost. text: the sentence about it. Returns true if the others go on, or
// if a verdict was made. Otherwise the caller makes the verdict, and *why is NULL, or the reason
// why the others cannot go on though they should.
bool ballot_suspect(struct coordinator *core, struct job *job, struct worker *worker,
                    const char *text, const char **why);
// A member has left in good order, and others have not. Returns true if a recovery goes on without
// it.
bool ballot_left(struct coordinator *core, struct job *job, struct worker *worker);
// Keeps the last word of a member that leaves.
void ballot_part(struct job *job, const struct up_leave *leave);
// Links have ended between members, and none of them is known to be dead. All freeze, report
// and connect anew. rank: one of these members; text: the sentence about it.
void ballot_anew(struct coordinator *core, struct job *job, uint32_t rank, const char *text);
void ballot_record(struct coordinator *core, struct worker *worker, const struct record_part *part);
void ballot_report(struct coordinator *core, struct worker *worker, const struct up_report *report);
void ballot_refuse(struct coordinator *core, struct worker *worker, const struct up_refuse *refuse);
// A stream of a member has resumed: it may have lost the messages of the present ballot, or of the
// last decision.
void ballot_resumed(struct coordinator *core, struct worker *worker);
// A rank that was removed has promised a ballot above that of its removal, so it does not obey. The
// others decide once more, with a higher ballot.
void ballot_outranked(struct coordinator *core, struct job *job, struct generation_id promised);
// True if a ballot waits for nothing but the proof that this member, which was removed, has ended.
// member: its rank in the job's first generation.
bool ballot_lacks(struct coordinator *core, struct job *job, uint32_t member);
// True from the reason for a ballot to its decision.
bool ballot_runs(const struct job *job);
// True if the connected members suffice for decisions (M2).
bool ballot_suffices(struct coordinator *core, struct job *job);
// The members that were asked are not all connected any more: they are asked again later.
void ballot_postpone(struct job *job);
// All links of a generation stand.
void ballot_linked(struct coordinator *core, struct job *job);
void ballot_tick(struct coordinator *core, struct job *job);
// When ballot_tick is due; UINT64_MAX: never.
uint64_t ballot_deadline(const struct job *job);
void ballot_reset(struct job *job);

#endif
