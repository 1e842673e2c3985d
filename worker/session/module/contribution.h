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

// Prepares a bucket for its launch: fills in its collective. zero: this rank contributes nothing.
// held: the result must not be written to user memory before the step has settled. Driver.
struct collective *contribution_collective(struct contribution *contribution, uint32_t bucket,
                                           uint32_t algorithm, bool zero, bool held);
// Sets the dtypes in which a bucket of this module and of the collective's dtype travels. By
// default they are the bucket's own dtype.
void contribution_wire(const struct lockstep_module *module, struct collective *collective);
// The most buckets that a layout of the module has.
uint32_t contribution_bucket_room(const struct lockstep_module *module);
// A collective is done: notes which of its parameters some rank has used, and whether
// they have a mean. Driver.
void contribution_collective_done(struct contribution *contribution,
                                  const struct collective *collective);
// Sets a gradient to zeros, in all replicas. Its memory is on the host. Trainer, after the step has
// settled.
void contribution_clear(const struct contribution *contribution, uint32_t parameter);
// Sets the gradients on the host to zeros that only ranks with weight 0 have contributed. Trainer,
// after the step has settled.
void contribution_clear_weightless(const struct contribution *contribution);
// The sum of the squares of all elements of the contribution's gradients, in the order of
// parameters. Only with config.gradient_norm. Trainer, after the step has settled.
double contribution_squares(const struct contribution *contribution);
// Resets the state of the module's buckets and calls for a new step. Trainer, at step_begin.
void module_step_begin(struct lockstep_module *module);
// Forgets the reports of the last window and the memory that they gave: the trainer may have freed
// that memory. Trainer, before the first step of a window.
void module_window_begin(struct lockstep_module *module);
// Allocates the arrays of a contribution. False: no memory. Trainer.
bool contribution_init(struct contribution *contribution, struct lockstep_module *module,
                       uint32_t index);
void contribution_fini(struct contribution *contribution);
// Where the result of a gradient goes in this step: to its memory, or to memory of the library
// (spares.h). NULL: nowhere. Driver while a step is open, trainer after it has settled.
void *contribution_place(const struct contribution *contribution, uint32_t parameter);
// The first parameter that some rank has used, and whose gradient has no memory in one of this
// rank's replicas; parameter_count: there is none. Trainer, after the step has settled.
uint32_t contribution_homeless(const struct contribution *contribution);
// True if the gradient of a trained parameter has no memory on this rank. Trainer.
bool contribution_lacks_memory(const struct contribution *contribution);

#endif
