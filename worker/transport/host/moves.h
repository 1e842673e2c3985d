// SPDX-License-Identifier: Apache-2.0
//
// Collectives with rows (struct collective_parts): each rank puts into its row what others read of
// it, and reads what is for it in the rows of all. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_MOVES_H
#define WORKER_TRANSPORT_HOST_MOVES_H

#include <stdint.h>

struct collective;
struct shared;

// Copies this rank's row. Parts that stay on this rank are not copied.
void moves_fill(const struct shared *shared, const struct collective *collective, uint8_t *row);
// Copies the part of an exchange that stays on this rank. Before moves_finish or after it.
void moves_keep(const struct shared *shared, const struct collective *collective);
// Computes the other final bytes in user memory. rows: by seat; a row of a reduction that is NULL
// does not count. factors: by seat; NULL: all are 1. weight: of all ranks, for means.
void moves_finish(const struct shared *shared, const struct collective *collective,
                  const void *const *rows, const uint64_t *factors, uint64_t weight);

#endif
