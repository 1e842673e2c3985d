// SPDX-License-Identifier: Apache-2.0
//
// Memory that is taken before collectives need it, so that a step allocates nothing. Each call adds
// to what was reserved before. Engine thread.

#ifndef WORKER_TRANSPORT_RESERVE_H
#define WORKER_TRANSPORT_RESERVE_H

#include <stdint.h>

struct device;
struct transport;

// From now on so many collectives in flight allocate nothing. After transport_form.
void transport_reserve(struct transport *transport, uint32_t collectives);
// For so many collectives on devices, each with so many bytes, extents and units at most. May
// synchronize with the device. 0, or -1: the device has no memory.
int transport_reserve_device(struct transport *transport, uint32_t collectives, uint64_t bytes,
                             uint32_t extents, uint32_t units);
// Room for the tables of so many more collectives with so many bytes and extents at most, each, on
// one of this rank's devices. Every array of extents keeps its own, in flight or not. Returns the
// same.
int transport_reserve_tables(struct transport *transport, struct device *device,
                             uint32_t collectives, uint64_t bytes, uint32_t extents);
// Room on one of this rank's devices for so many more rows of replicas, of so many bytes and units
// at most, each. Returns the same.
int transport_reserve_rows(struct transport *transport, struct device *device, uint32_t rows,
                           uint64_t bytes, uint32_t units);
// Room for results that wait for what `behind` is told: for so many collectives of so many bytes in
// all, in memory of the host that is not touched before it is needed, and for the way of the
// largest one there and back, of so many bytes and units. Returns the same.
int transport_reserve_offload(struct transport *transport, uint32_t collectives, uint64_t bytes,
                              uint64_t largest, uint32_t units);

#endif
