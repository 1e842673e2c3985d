// SPDX-License-Identifier: Apache-2.0
//
// The functions of owners.c that other files call.

#ifndef WORKER_SESSION_MODULE_OWNERS_H
#define WORKER_SESSION_MODULE_OWNERS_H

#include <stdint.h>

struct lockstep_module;

// Finds the owner of every parameter of the module. Refuses data of an earlier parameter without
// LOCKSTEP_PARAMETER_SHARED, and owners that do not fit. Trainer, when the module is registered.
int owner_find(struct lockstep_module *module);
// From now on the owners of shared parameters await the reports of this module, too. A failure if
// an owner would have to await more reports than a counter can hold.
int owner_join(struct lockstep_module *module);
// The module is closed: owners no longer await its reports. A failure while other modules share
// parameters that it owns.
int owner_leave(struct lockstep_module *module);
// The value of a parameter has moved: updates the parameters that share it.
void owner_move(struct lockstep_module *module, uint32_t parameter);

#endif
