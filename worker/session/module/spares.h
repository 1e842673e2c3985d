// SPDX-License-Identifier: Apache-2.0
//
// Memory for means that have no other place on this rank, for modules with means_on_demand. Only
// address space is reserved: the kernel provides a page when a mean is written to it.

#ifndef WORKER_SESSION_MODULE_SPARES_H
#define WORKER_SESSION_MODULE_SPARES_H

#include <stdint.h>

struct contribution;
struct lockstep_module;

// Reserves the memory of a module that has been declared. Returns 0 or LOCKSTEP_E_SYSTEM. Trainer.
int spares_reserve(struct lockstep_module *module);
void spares_release(struct lockstep_module *module);
// Where the mean of a gradient without memory goes. NULL: nowhere, because the module has no spare
// memory or the gradient is on this rank's device. Any thread.
void *spares_place(const struct contribution *contribution, uint32_t parameter);

#endif
