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

// The set of trained parameters, and what was loaded from a file. trainer; the driver reads it
// while a step is open or lockstep_start has not been answered
struct training {
    struct declared_phase declared[LOCKSTEP_MAX_PHASES];
    uint32_t declared_count;
    uint32_t view; // 1 + the index of the step's declared phase; 0: the phase is not declared.
    bool changed; // True if the set has to be computed again.
    uint64_t hash; // Hash of the set of trained parameters of all modules.
    uint8_t bits[LOCKSTEP_MAX_PARAMETERS / 8]; // That set: a bit for each parameter of all modules.
    uint32_t bytes; // Bytes of `bits` in use.
    char loaded[LOCKSTEP_MARK_BYTES]; // The loaded file's entry in the manifest; "": none.
    // The loaded file's tuning, for a world of this size; 0: none. Guarded by the session's mutex.
    uint32_t loaded_world;
    uint64_t loaded_doubling_bytes;
    uint64_t loaded_halving_bytes;
};

// Computes the set of parameters that are trained in a step of this phase, and puts the layouts for
// it into force. Returns at once if nothing has changed. Trainer, between steps.
int sets_enter(struct lockstep_session *session, const char *phase);
// The same for one module. view: the declarations that apply, see sets.c.
int sets_enter_module(struct lockstep_module *module, uint32_t view);
// The number of the phase for the order core: a hash of its label and of the set.
uint64_t sets_phase(const struct lockstep_session *session);
// The caps for the buckets of the parameters that are trained now.
struct bucket_caps sets_caps(const struct lockstep_module *module);
// True if a step of some phase trains the parameter, as far as the trainer has declared. Trainer.
bool sets_may_train(const struct lockstep_module *module, uint32_t parameter);
// True if a layout of the module was learned or loaded. Trainer, between steps.
bool sets_are_learned(const struct lockstep_module *module);
// All ranks have agreed on where gradients are. Makes layouts anew that were not learned. A failure
// if a loaded layout does not fit. Trainer, at start.
int sets_renew(struct lockstep_module *module);
// Forgets all sets of a module. The caller then calls sets_enter_module. Trainer, between steps.
void sets_forget(struct lockstep_module *module);
// Installs the learned layout of a set. *layout becomes the layout that it replaces. Trainer
// between steps, driver at the end of a step.
void sets_install(struct lockstep_module *module, uint64_t hash, struct bucket_layout *layout);
// Puts the agreed layouts into force. True if there are any. Driver, between the last slot and the
// next step.
bool sets_adopt_layouts(struct lockstep_session *session);
// Fills in the step header's note on the open step. Driver.
void sets_note(const struct lockstep_session *session, struct step_note *note);
// Writes how the open step differs from the step that the ring predecessor began. Driver.
void sets_difference(const struct lockstep_session *session, const char *predecessor, char *bytes,
                     size_t size);
// The hash of a module's parameters as they are marked trainable; never 0.
uint64_t sets_hash(const struct bucket_parameter *parameters, uint32_t count);
// Allocates arrays for a layout of `count` parameters. False: no memory.
bool sets_allocate_layout(struct bucket_layout *layout, uint32_t count);
void sets_free(struct lockstep_module *module);

#endif
