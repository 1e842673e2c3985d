// SPDX-License-Identifier: Apache-2.0
//
// Tables of collectives as kernels read them, kept for the next step. The driver's thread.

#ifndef WORKER_TRANSPORT_DEVICE_TABLE_CACHE_H
#define WORKER_TRANSPORT_DEVICE_TABLE_CACHE_H

#include "worker/device/device.h"

#include <stdint.h>

struct collective;
struct device;
struct cached_table;
struct device_piece;
struct device_row;
struct devices;

// Finds or makes the table of a collective's extents, on one of this rank's devices, which they are
// addresses of. NULL: there is no memory for it now.
struct cached_table *table_cache_hold(struct devices *devices, struct device *device,
                                      const struct collective *collective);
// Its pieces, as the host has them: [cut->count + 1].
const struct device_piece *table_cache_pieces(const struct cached_table *cached);
// The row of a table that is held, for kernels on that stream of its device. 0 or -1.
int table_cache_row(struct cached_table *cached, enum device_stream stream, struct device_row *row);
void table_cache_release(struct cached_table **cached);
// Makes room on a device for rows of so many pieces and elements; NULL memory: -1.
int table_cache_reserve(struct devices *devices, struct device *device, uint32_t pieces,
                        uint64_t elements, uint32_t count);
void table_cache_fini(struct devices *devices);

#endif
