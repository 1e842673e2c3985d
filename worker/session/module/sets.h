// SPDX-License-Identifier: Apache-2.0
//
// The functions of sets.c that other files call.

#ifndef WORKER_SESSION_MODULE_SETS_H
#define WORKER_SESSION_MODULE_SETS_H

#include "worker/session/module/buckets.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lockstep_module;
struct lockstep_session;
struct step_note;

// A phase in which parameters are declared unused.
struct declared_phase {
    char name[LOCKSTEP_NAME_BYTES];
};

// What is trained, and what was loaded for it. trainer; the driver reads it while a step is open or
// lockstep_start has not been answered
struct training {
    struct declared_phase declared[LOCKSTEP_MAX_PHASES];
    uint32_t declared_count;
    uint32_t view; // 1 + the declared phase that the open step is in, or 0.
    bool changed; // True if what is trained is to be found out again.
    uint64_t hash; // Hash of the set that all modules train.
    uint8_t bits[LOCKSTEP_MAX_PARAMETERS / 8]; // The same as bits, module after module.
    uint32_t bytes; // Bytes of `bits` in use.
    char loaded[LOCKSTEP_MARK_BYTES]; // What was loaded, for the manifest.
    bool has_loaded_tuning; // True if tuning of a world of this size was loaded.
    uint64_t loaded_doubling_bytes;
    uint64_t loaded_halving_bytes;
};

// Before a step of this phase: what is trained in it, and the layouts for that. Costs nothing when
// nothing has changed. Trainer, between steps.
int sets_enter(struct lockstep_session *session, const char *phase);
// The same for one module before its session has begun a step.
int sets_enter_module(struct lockstep_module *module, uint32_t view);
// The number of the phase for the order core: a hash of its label and of what is trained.
uint64_t sets_phase(const struct lockstep_session *session);
// The caps for the buckets of what is trained in a module now.
struct bucket_caps sets_caps(const struct lockstep_module *module);
// Some layout was learned, or loaded. Trainer, between steps.
bool sets_are_learned(const struct lockstep_module *module);
// Where gradients are has been agreed: layouts that were not learned are made anew, and those
// that were loaded are to fit. Trainer, at start.
int sets_renew(struct lockstep_module *module);
// Forgets all of a module; sets_enter_module is to follow. Trainer, between steps.
void sets_forget(struct lockstep_module *module);
// A layout that was learned for a set; what was there before is in *layout then. Trainer, between
// steps; engine, at the end of one.
void sets_install(struct lockstep_module *module, uint64_t hash, struct bucket_layout *layout);
// The agreed layouts come into force. Driver, between the last slot and the next step. Whether
// there are any.
bool sets_adopt_layouts(struct lockstep_session *session);
// Fills in the step header's note on the open step. Driver.
void sets_note(const struct lockstep_session *session, struct step_note *note);
// Writes how the open step differs from what the ring predecessor began. Driver.
void sets_difference(const struct lockstep_session *session, const char *predecessor, char *bytes,
                     size_t size);
// The hash of a module's parameters as they are marked trainable; never 0.
uint64_t sets_hash(const struct bucket_parameter *parameters, uint32_t count);
// Arrays for a layout of so many parameters; false without memory.
bool sets_allocate_layout(struct bucket_layout *layout, uint32_t count);
void sets_free(struct lockstep_module *module);

#endif
