// SPDX-License-Identifier: Apache-2.0
//
// The worker of each stream, and the records of workers. Runs inside coordinator_step.

#ifndef COORDINATOR_TABLE_H
#define COORDINATOR_TABLE_H

#include "coordinator/coordinator.h"
#include <stdint.h>

struct coordinator;
struct job;
struct worker;

// The place of this peer, or the empty one where it would be.
uint32_t table_find(const struct coordinator *core, coordinator_peer peer);

struct worker *table_worker(struct coordinator *core, coordinator_peer peer);

// Ends the stream of a worker and forgets the stream, not the worker.
void core_close(struct coordinator *core, struct worker *worker);

// Forgets the stream of a worker that is gone.
void core_disconnect(struct coordinator *core, struct worker *worker);

struct worker *core_worker_new(struct coordinator *core, coordinator_peer peer); // NULL: full.

void core_worker_free(struct coordinator *core, struct worker *worker);

uint16_t core_worker_index(const struct coordinator *core, const struct worker *worker);

struct job *core_job_of(struct coordinator *core, const struct worker *worker);

#endif
