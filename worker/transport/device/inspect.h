// SPDX-License-Identifier: Apache-2.0
//
// The functions of inspect.c that other files call.

#ifndef WORKER_TRANSPORT_DEVICE_INSPECT_H
#define WORKER_TRANSPORT_DEVICE_INSPECT_H

#include "worker/transport/transport.h"

#include <stddef.h>

struct transport;

struct device_held transport_inspect_device(struct transport *transport);
// What NCCL has said last of whatever went wrong, in one line; "": nothing.
void transport_inspect_nccl(const struct transport *transport, char *text, size_t bytes);

#endif
