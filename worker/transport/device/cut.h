// SPDX-License-Identifier: Apache-2.0
//
// The functions of cut.c that other files call.

#ifndef WORKER_TRANSPORT_DEVICE_CUT_H
#define WORKER_TRANSPORT_DEVICE_CUT_H

#include "worker/device/device.h"

#include <stdint.h>

struct collective;
struct device;
struct device_cut;
struct device_piece;
struct device_row;
struct devices;

// Finds or makes the table of a collective's extents, on one of this rank's devices, which they are
// addresses of. NULL: there is no memory for it now.
struct device_cut *device_cut_hold(struct devices *devices, struct device *device,
                                   const struct collective *collective);
// Its pieces, as the host has them: [cut->count + 1].
const struct device_piece *device_cut_pieces(const struct device_cut *cut);
// The row of a table that is held, for kernels on that stream of its device. 0 or -1.
int device_cut_row(struct device_cut *cut, enum device_stream stream, struct device_row *row);
void device_cut_release(struct device_cut **cut);
// Makes room on a device for rows of so many pieces and elements; NULL memory: -1.
int device_cut_reserve(struct devices *devices, struct device *device, uint32_t pieces,
                       uint64_t elements, uint32_t count);
void device_cut_fini(struct devices *devices);

#endif
