// SPDX-License-Identifier: Apache-2.0
//
// Memory that is allocated before collectives need it, so that a step allocates nothing. Each call
// adds to what earlier calls reserved. Engine thread.

#ifndef WORKER_TRANSPORT_RESERVE_H
#define WORKER_TRANSPORT_RESERVE_H

#include <stdint.h>

struct device;
struct transport;

// Reserves memory for `collectives` collectives in flight, in this generation and in later ones.
// Call it after transport_form.
void transport_reserve(struct transport *transport, uint32_t collectives);
// Reserves for `collectives` collectives on this rank's device, each of at most `bytes`, `extents`
// and `units`. May synchronize with the device. Returns 0, or -1 if the device has no memory.
int transport_reserve_device(struct transport *transport, uint32_t collectives, uint64_t bytes,
                             uint32_t extents, uint32_t units);
// Reserves the extent tables of `collectives` more collectives on `device`, each of at most `bytes`
// and `extents`. Every array of extents keeps its own table, also while its collective is not in
// flight. Returns as transport_reserve_device.
int transport_reserve_tables(struct transport *transport, struct device *device,
                             uint32_t collectives, uint64_t bytes, uint32_t extents);
// Reserves `rows` more rows of replicas on `device`, each of at most `bytes` and `units`. Returns
// as transport_reserve_device.
int transport_reserve_rows(struct transport *transport, struct device *device, uint32_t rows,
                           uint64_t bytes, uint32_t units);
// Reserves for results that wait until collective.behind names its events. The results of
// `collectives` collectives wait in host memory of `bytes` in all, which is not touched before it
// is needed. The largest of them, of `largest` bytes and `units`, also gets buffers for its copies
// to the host and back. Returns as transport_reserve_device.
int transport_reserve_offload(struct transport *transport, uint32_t collectives, uint64_t bytes,
                              uint64_t largest, uint32_t units);

#endif
