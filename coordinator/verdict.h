// SPDX-License-Identifier: Apache-2.0
//
// The verdict that ends a generation. Runs inside coordinator_step.

#ifndef COORDINATOR_VERDICT_H
#define COORDINATOR_VERDICT_H

#include "protos/types.h"

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;
struct text;
struct worker;

struct verdict {
    enum halt_kind kind;
    uint64_t step; // As in struct down_halt; 0: at once.
    bool has_rank;
    uint32_t rank;
    const char *text; // Borrowed.
};

const char *verdict_kind_name(enum halt_kind kind);
void verdict_halt(struct coordinator *core, struct job *job, const struct verdict *verdict);
// A member sent an impossible message: makes HALT_PROTOCOL with this sentence, and ends the
// member's stream.
void verdict_protocol(struct coordinator *core, struct worker *worker, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// If a member has left, though `needer` needs all members from `step` on: makes HALT_LEFT and
// returns true.
bool verdict_left_behind(struct coordinator *core, const struct worker *needer, uint64_t step);
void verdict_fail(struct coordinator *core, struct worker *worker, const struct up_fail *fail);
void verdict_lost(struct coordinator *core, struct worker *worker, const struct up_lost *lost);
void verdict_leave(struct coordinator *core, struct worker *worker, const struct up_leave *leave);
// A member that is away has said goodbye to another member.
void verdict_parted(struct coordinator *core, struct worker *worker);
// The process of a member that is away is known to be gone.
void verdict_gone(struct coordinator *core, struct worker *worker);
// A member was accused by another one, and no proof of its death has come.
void verdict_unproven(struct coordinator *core, struct worker *worker);
// A ballot waits for a member that is away, and that has not come back.
void verdict_missed(struct coordinator *core, struct worker *worker);
// Sends the verdict of the ended generation to a member that has come back.
void verdict_repeat(struct coordinator *core, const struct job *job, const struct worker *worker);
// The stream of a worker has ended without UP_LEAVE. text: the reason; may be NULL.
void verdict_death(struct coordinator *core, struct worker *worker, const char *text);

#endif
