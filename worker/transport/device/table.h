// SPDX-License-Identifier: Apache-2.0
//
// Makes the tables that device kernels read (worker/device/kernels.h) from a collective's extents
// and units. It fills the caller's arrays; the caller copies them to the device. Pure functions;
// any thread.

#ifndef WORKER_TRANSPORT_DEVICE_TABLE_H
#define WORKER_TRANSPORT_DEVICE_TABLE_H

#include "worker/device/kernels.h"
#include "worker/transport/flow/collective.h"

// The most pieces that a collective can have. The array needs one more entry, for the end.
static inline uint32_t device_pieces_most(const struct collective *collective)
{
    return collective->extent_count + collective->unit_count;
}

// Fills pieces[], and a last entry that marks the end of the row. Returns the number of pieces
// without that entry. Extents are cut where units end. In buckets the units do not move, so the
// cuts are the same in every step. Without units each extent that has elements is one piece.
uint32_t device_pieces(const struct collective *collective, struct device_piece *pieces);

// Fills tiles[device_tiles(elements)] from pieces that device_pieces has filled.
void device_piece_tiles(const struct device_piece *pieces, uint32_t count, uint32_t *tiles);

#endif
