// SPDX-License-Identifier: Apache-2.0
//
// Reads memory of the other process of a link in memory: shm_pull.c. Thread: the owner of the link.

#ifndef WORKER_LINK_SHM_PULL_H
#define WORKER_LINK_SHM_PULL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct link;
struct shm_link;

// Lets the peer find this process. Called when this side has mapped the memory of the link.
void shm_pull_offer(struct shm_link *shm);
// See link_ops.
int shm_pull(struct link *link, uint64_t address, void *to, size_t bytes, bool last);
bool shm_pull_may(const struct link *link);

#endif
