// SPDX-License-Identifier: Apache-2.0
//
// Modules with a group: their place among the modules of the job. Trainer.

#ifndef WORKER_API_GROUPED_H
#define WORKER_API_GROUPED_H

struct lockstep_module;
struct lockstep_session;

// A failure if a module with a group has what such modules cannot have.
int grouped_check(struct lockstep_module *module);
// Removes the absent modules. Between steps.
void grouped_forget(struct lockstep_session *session);
// All ranks tell each other the modules of groups that they have registered. Gives each of them an
// index that is the same on all ranks, and makes the absent modules. A failure, the same on all
// ranks, if the members of a group have registered different modules. All ranks call it if some
// rank has such modules, after their manifests are verified, in attempt_run. context: not used.
// Blocks.
int grouped_agree(struct lockstep_session *session, void *context);

#endif
