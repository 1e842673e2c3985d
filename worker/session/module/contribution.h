// SPDX-License-Identifier: Apache-2.0
//
// The functions of contribution.c that other files call.

#ifndef WORKER_SESSION_MODULE_CONTRIBUTION_H
#define WORKER_SESSION_MODULE_CONTRIBUTION_H

#include <stdbool.h>
#include <stdint.h>

struct collective;
struct contribution;
struct lockstep_module;

// Prepares bucket run `bucket` for launch: extents, signature. zero: nothing is contributed. held:
// its result must not be in user memory before the step has settled. Driver.
struct collective *contribution_collective(struct contribution *contribution, uint32_t bucket,
                                           uint32_t algorithm, bool zero, bool held);
// Takes from a collective that is done which of its parameters some rank has used. Driver.
void contribution_collective_done(struct contribution *contribution,
                                  const struct collective *collective);
// Makes every counter of missing gradients full again. Trainer, at step_begin.
void module_step_begin(struct lockstep_module *module);
// Forgets what the calls of the last window said, and where gradients were in it: a trainer may
// have freed that memory. Trainer, before the first step of a window.
void module_window_begin(struct lockstep_module *module);
// Its arrays, for a module with parameter_count parameters; false without memory. Trainer.
bool contribution_init(struct contribution *contribution, struct lockstep_module *module,
                       uint32_t index);
void contribution_fini(struct contribution *contribution);
// The first parameter that some rank has used and that has no memory here, of whatever replica;
// parameter_count: none. Trainer, after the step has settled.
uint32_t contribution_homeless(const struct contribution *contribution);
// Some parameter that is trained has no memory here. Trainer.
bool contribution_lacks_memory(const struct contribution *contribution);

#endif
