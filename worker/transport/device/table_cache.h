// SPDX-License-Identifier: Apache-2.0
//
// A cache of the tables that kernels read, kept for the next step. The driver's thread.

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

// Finds or makes the table of a collective's extents on `device`, whose memory the extents point
// to. NULL: no memory is free now.
struct cached_table *table_cache_hold(struct devices *devices, struct device *device,
                                      const struct collective *collective);
// The pieces of a table in host memory: [cached->count + 1].
const struct device_piece *table_cache_pieces(const struct cached_table *cached);
// Sets *row to the table, for kernels on `stream` of its device; first enqueues the copy of the
// table there if it has changed. 0 or -1.
int table_cache_row(struct cached_table *cached, enum device_stream stream, struct device_row *row);
void table_cache_release(struct cached_table **cached);
// Reserves memory on `device` for `count` tables of at most `pieces` and `elements`. 0, or -1
// without memory.
int table_cache_reserve(struct devices *devices, struct device *device, uint32_t pieces,
                        uint64_t elements, uint32_t count);
void table_cache_fini(struct devices *devices);

#endif
