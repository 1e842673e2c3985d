// SPDX-License-Identifier: Apache-2.0
//
// The calls of a module, as reports and the end of a call see them: see calls.c.

#ifndef WORKER_SESSION_MODULE_CALLS_H
#define WORKER_SESSION_MODULE_CALLS_H

#include "worker/session/session.h"

struct answer_place;

// ---- The open call -----------------------------------------------------------------------------

// The content of module->open in one word, so that a reader never mixes two calls: the number of
// the call in the low bits, whether it is a last one, and its serial. 0: no call is open.
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

// ---- calls.c -----------------------------------------------------------------------------------

// True if the parameter has a gradient; a shared one has it with its owner.
static inline bool call_has_gradient(const struct lockstep_module *module, uint32_t parameter)
{
    const struct home *home = &module->homes[parameter];
    return home->module->shapes[home->parameter].trainable;
}

// A live call that is the open one of its module. Any thread.
int call_check_open(struct lockstep_call *call);
// The module contributes to the open step: it was called, or a module that shares a parameter of it
// was. Trainer.
bool call_takes_part(const struct lockstep_module *module);
// First line of every public function of a module: 0 when the handle is a live module of a session
// that has not failed; else the status, with the error text set. Any thread.
int module_check(struct lockstep_module *module);
// The same check for a function of a call.
int call_check(struct lockstep_call *call);
// The status of a report that came too often, or of a declaration that did: `before` is what the
// claim was. The text of a report reads the call's number and the step's as any thread may.
int call_ready_error(const struct opened *open, uint32_t parameter, uint32_t before);
int call_unused_error(const struct lockstep_module *module, uint32_t parameter, uint32_t before);
// Gradients that the module's open call, if it has one, does not have yet: how many, and the names
// of the first. Driver, while a step is open.
void call_missing(struct lockstep_module *module, struct answer_place *place);

#endif
