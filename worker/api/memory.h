// SPDX-License-Identifier: Apache-2.0
//
// The functions of memory.c that other files call.

#ifndef WORKER_API_MEMORY_H
#define WORKER_API_MEMORY_H

struct lockstep_module;
struct lockstep_session;

// Prepares shared memory, which other ranks on this host can access. Call it before the transport
// opens.
void memory_share(struct lockstep_session *session);
// Frees all blocks of lockstep_alloc that the trainer has not freed.
void memory_fini(struct lockstep_session *session);
// Frees the memory of lockstep_module_gradients.
void memory_free_gradients(struct lockstep_module *module);

#endif
