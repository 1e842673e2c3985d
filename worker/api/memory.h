// SPDX-License-Identifier: Apache-2.0
//
// The functions of memory.c that other files call.

#ifndef WORKER_API_MEMORY_H
#define WORKER_API_MEMORY_H

struct lockstep_module;
struct lockstep_session;

// Frees what lockstep_alloc gave and was not given back.
// Memory can be made that mates reach. Before the transport opens.
void memory_share(struct lockstep_session *session);
void memory_fini(struct lockstep_session *session);
void memory_free_gradients(struct lockstep_module *module);

#endif
