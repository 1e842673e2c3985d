// SPDX-License-Identifier: Apache-2.0
//
// Collectives that NCCL carries. The driver's thread.

#ifndef WORKER_TRANSPORT_DEVICE_NCCL_H
#define WORKER_TRANSPORT_DEVICE_NCCL_H

#include "protos/types.h"

#include <stdbool.h>
#include <stddef.h>

struct collective;
struct device_flow;
struct devices;
struct nccl_part;

void nccl_write_note(const struct device_flow *flow);
// The units that some rank has used, from the note that has come back.
void nccl_read_used(const struct device_flow *flow);
// What NCCL is to send is there: the gradients, or the sum of replicas. On DEVICE_REDUCE. 0 or -1.
int nccl_collect(struct devices *devices, struct device_flow *flow);
// The row and the note go into the scratch of the flow, on DEVICE_REDUCE. 0 or -1.
int nccl_pack(struct devices *devices, struct device_flow *flow, enum dtype wire);
// Flows are given to NCCL in the order of their launch. 1: what was enqueued behind has happened,
// and NCCL had no error before; 0: not yet; -1.
int nccl_advance(struct devices *devices, struct device_flow *flow, const struct nccl_part *part);
// NCCL has said nothing that makes what has happened garbage.
bool nccl_is_sound(struct devices *devices);
int nccl_work(struct devices *devices, struct device_flow *flow);
size_t nccl_row_bytes(const struct collective *collective); // As it travels.
// Its sum and its note, which were put aside, are in pinned memory again, and may be written.
int nccl_come_back(struct devices *devices, struct device_flow *flow);

#endif
