// SPDX-License-Identifier: Apache-2.0
//
// What the files of calls share: worker/api/call.c, which begins and ends them, and claims.c, which
// takes reports. Included by these two and by the test of their interleavings.

#ifndef WORKER_SESSION_MODULE_CLAIMS_H
#define WORKER_SESSION_MODULE_CLAIMS_H

struct answer_place;

#include "worker/session/session.h"

// ---- The open call -----------------------------------------------------------------------------

// What module->open says in one word, so that a reader never mixes two calls: the number of the
// call in the low bits, whether it is a last one, and its serial. 0: no call is open.
#define OPEN_LAST_SHIFT 8
#define OPEN_SERIAL_SHIFT 9
static_assert(LOCKSTEP_MAX_CALLS <= 1 << OPEN_LAST_SHIFT, "the number of a call fits");

struct opened {
    struct lockstep_call *call; // NULL: no call is open.
    uint64_t serial;
    bool last;
};

static inline uint64_t opened_word(const struct lockstep_call *call)
{
    return call->serial << OPEN_SERIAL_SHIFT | (uint64_t)call->last << OPEN_LAST_SHIFT |
           call->number;
}

static inline struct opened opened_read(const struct lockstep_module *module)
{
    const uint64_t word = atomic_load_explicit(&module->open, memory_order_acquire);
    return (struct opened){.call = word == 0 ? NULL
                                             : &module->calls[word & ((1u << OPEN_LAST_SHIFT) - 1)],
                           .serial = word >> OPEN_SERIAL_SHIFT,
                           .last = (word >> OPEN_LAST_SHIFT & 1) != 0};
}

// ---- Claims ------------------------------------------------------------------------------------

// A claim is the serial of a call, and in its low bits how many reports there were in it, or why
// none can come any more.
#define CLAIM_BITS 16
#define CLAIM_ENDED 0xfffeu
#define CLAIM_DECLARED 0xffffu
static_assert(LOCKSTEP_MAX_READY_COUNT < CLAIM_ENDED, "a count of reports is none of the marks");

// ---- claims.c ----------------------------------------------------------------------------------

// Parameters of a module that have a gradient; a shared one has it with its owner.
bool call_has_gradient(const struct lockstep_module *module, uint32_t parameter);
// The thread that ends a call, or the step, speaks for all reports that are still to come under a
// serial, and waits until every report that other threads have claimed is settled. A report that
// comes later is refused. Returns how many gradients were complete before.
uint32_t call_claim_rest(struct contribution *contribution, uint64_t serial);
// Hands over what call_claim_rest has claimed.
void call_hand_rest(struct contribution *contribution);
// The same, of a call that was given up: a bucket of which something is missing contributes
// nothing.
void call_withdraw(struct contribution *contribution);
// Nothing was reported of the contribution: gradients whose registered memory is another one's in
// this window have no place in it. Trainer, at the end of the step.
void call_leave_all(struct contribution *contribution);

// Gradients that the module's open call, if it has one, does not have yet: how many, and the names
// of the first. Driver, while a step is open.
void call_missing(struct lockstep_module *module, struct answer_place *place);

#endif
