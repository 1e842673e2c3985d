// SPDX-License-Identifier: Apache-2.0
//
// The worker of each stream, and the records of workers. Runs inside coordinator_step.

#ifndef COORDINATOR_TABLE_H
#define COORDINATOR_TABLE_H

#include "coordinator/coordinator.h"

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;
struct worker;

// Returns the index in core->peers of this peer, or the index of the empty entry where it belongs.
uint32_t table_find(const struct coordinator *core, coordinator_peer peer);

// Returns the worker of this peer, or NULL.
struct worker *table_worker(struct coordinator *core, coordinator_peer peer);

// Ends the stream of a worker. The worker's record stays.
void core_close(struct coordinator *core, struct worker *worker);

// Forgets the stream of a worker after it has ended. The worker's record stays.
void core_disconnect(struct coordinator *core, struct worker *worker);

// Returns a new record for this peer, or NULL if all are in use.
struct worker *core_worker_new(struct coordinator *core, coordinator_peer peer);

// Returns a new record without a stream, or NULL if all are in use.
struct worker *core_worker_absent(struct coordinator *core);

// Takes `count` records without a stream, and forgets other jobs if there is no room. Fills
// `workers` with their indices. Returns false if there is no room even so.
bool core_workers_absent(struct coordinator *core, uint32_t count, uint16_t *workers);

void core_workers_free(struct coordinator *core, const uint16_t *workers, uint32_t count);

// Gives a member whose record has no stream this one.
void core_reconnect(struct coordinator *core, struct worker *worker, coordinator_peer peer);

void core_worker_free(struct coordinator *core, struct worker *worker);

uint16_t core_worker_index(const struct coordinator *core, const struct worker *worker);

struct job *core_job_of(struct coordinator *core, const struct worker *worker);

#endif
