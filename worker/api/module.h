// SPDX-License-Identifier: Apache-2.0
//
// The functions of module.c that other files call.

#ifndef WORKER_API_MODULE_H
#define WORKER_API_MODULE_H

#include <stdint.h>

struct grouped;
struct lockstep_module;
struct lockstep_session;

void module_free(struct lockstep_module *module);
// Makes a module that this rank does not have: see struct grouped. *made is to be freed also after
// a failure. calls: contributions of the module in a step.
int module_make_absent(struct lockstep_session *session, const struct grouped *grouped,
                       const char *name, uint32_t calls, struct lockstep_module **made);
// Puts the module into the session's list.
void module_place(struct lockstep_session *session, uint32_t index, struct lockstep_module *module);
// The modules of the session are other ones now: steps are possible after the next lockstep_start.
int module_stop(struct lockstep_session *session);
// Makes the handles of the module and of its calls invalid.
void module_remove_handles(struct lockstep_module *module);

#endif
