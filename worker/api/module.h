// SPDX-License-Identifier: Apache-2.0
//
// The functions of module.c that other files call.

#ifndef WORKER_API_MODULE_H
#define WORKER_API_MODULE_H

struct lockstep_module;

void module_free(struct lockstep_module *module);
// Makes the handles of the module and of its calls invalid.
void module_remove_handles(struct lockstep_module *module);

#endif
