// SPDX-License-Identifier: Apache-2.0
//
// The functions of module.c that other files call.

#ifndef WORKER_API_MODULE_H
#define WORKER_API_MODULE_H

struct lockstep_module;

void module_free(struct lockstep_module *module);
// The handles that were given out for it and its calls become foreign.
void module_remove_handles(struct lockstep_module *module);

#endif
