// SPDX-License-Identifier: Apache-2.0
//
// The calls of a module, as reports and the end of a call use them: see calls.c.

#ifndef WORKER_SESSION_MODULE_CALLS_H
#define WORKER_SESSION_MODULE_CALLS_H

#include "worker/session/session.h"

struct answer_place;

// ---- The open call -----------------------------------------------------------------------------

// module->open has these parts in one word, so that a reader never mixes two calls: in the low bits
// the number of the open call, then whether gradients travel with it, then its serial. 0: no call
// is open.
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

// A claim has the serial of a call in its high bits. Its low bits are the number of claimed reports
// in that call, or one of the marks below if no further report is accepted.
#define CLAIM_BITS 16
#define CLAIM_ENDED 0xfffeu // The call has ended.
#define CLAIM_DECLARED 0xffffu // The gradient was declared unused in the call.
static_assert(LOCKSTEP_MAX_READY_COUNT < CLAIM_ENDED, "a count of reports is none of the marks");

static inline uint64_t claim_word(uint64_t serial, uint32_t count)
{
    return serial << CLAIM_BITS | count;
}

static inline uint64_t claim_serial(uint64_t claim)
{
    return claim >> CLAIM_BITS;
}

// The number of claimed reports, or the mark.
static inline uint32_t claim_count(uint64_t claim)
{
    return (uint32_t)(claim & ((1u << CLAIM_BITS) - 1));
}

// ---- calls.c -----------------------------------------------------------------------------------

// True if the parameter has a gradient. For a shared parameter the owner decides.
static inline bool call_has_gradient(const struct lockstep_module *module, uint32_t parameter)
{
    const struct home *home = &module->homes[parameter];
    return home->module->shapes[home->parameter].trainable;
}

// 0 if the handle is a live call and the open call of its module; else a failure. Any thread.
int call_check_open(struct lockstep_call *call);
// True if the module contributes to the open step: the module, or one that shares its parameters,
// was called. Trainer.
bool call_takes_part(const struct lockstep_module *module);
// The first line of every public function of a module: 0 if the handle is a live module of a
// session that has not failed; else the status, with the error text set. Any thread.
int module_check(struct lockstep_module *module);
// The same for a public function of a call.
int call_check(struct lockstep_call *call);
// The status of a report, or of a declaration, for a gradient that is complete already or whose
// call has ended. before: the low bits of the claim that it found. Any thread.
int call_ready_error(const struct opened *open, uint32_t parameter, uint32_t before);
int call_unused_error(const struct lockstep_module *module, uint32_t parameter, uint32_t before);
// Fills in the gradients that are still missing in the module's open call, if there is one: their
// number, and the names of the first. Driver, while a step is open.
void call_missing(struct lockstep_module *module, struct answer_place *place);

#endif
