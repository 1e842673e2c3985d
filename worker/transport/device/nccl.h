// SPDX-License-Identifier: Apache-2.0
//
// DEVICE_WAY_NCCL: collectives that NCCL reduces. The driver's thread.

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
// Adds to collective->used the units that some rank has used, from the note that NCCL has summed.
void nccl_read_used(const struct device_flow *flow);
// Makes DEVICE_REDUCE wait for the gradients, or enqueues the sum of replicas on it. 0 or -1.
int nccl_collect(struct devices *devices, struct device_flow *flow);
// Enqueues on DEVICE_REDUCE: packs the row and copies the note into the scratch of the flow. 0 or
// -1.
int nccl_pack(struct devices *devices, struct device_flow *flow, enum dtype wire);
// Continues a flow with NCCL; flows get NCCL in the order of their launch. 1: all enqueued work of
// the flow has finished, and NCCL had no error before its sum was whole; 0: not yet; -1: failed.
int nccl_advance(struct devices *devices, struct device_flow *flow, const struct nccl_part *part);
// True if NCCL gets the flow only later, because a stream of the trainer has not made its
// gradients.
bool nccl_waits_for_trainer(const struct devices *devices, const struct device_flow *flow);
// True if NCCL has reported no error. After an error finished work may have left garbage.
bool nccl_is_sound(struct devices *devices);
int nccl_work(struct devices *devices, struct device_flow *flow);
size_t nccl_row_bytes(const struct collective *collective); // Bytes of the row as NCCL sends it.
// Called when the offloaded sum and note of a flow are in pinned memory again: enqueues their
// delivery. 0 or -1.
int nccl_come_back(struct devices *devices, struct device_flow *flow);

#endif
