// SPDX-License-Identifier: Apache-2.0
//
// The functions of owners.c that other files call.

#ifndef WORKER_SESSION_MODULE_OWNERS_H
#define WORKER_SESSION_MODULE_OWNERS_H

#include <stdint.h>

struct lockstep_module;

// Finds the owner of every parameter. Refuses data that an earlier parameter has and that is not
// marked as shared, and owners that do not fit. Trainer, when the module is registered.
int owner_find(struct lockstep_module *module);
// Owners wait for the reports of this module, too, from now on. Refuses more than can be counted.
int owner_join(struct lockstep_module *module);
// The module is closed: owners wait for it no more. Refuses that while others share what it owns.
int owner_leave(struct lockstep_module *module);
// The value of a parameter has moved, also for those that share it.
void owner_move(struct lockstep_module *module, uint32_t parameter);

#endif
