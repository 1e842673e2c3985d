// SPDX-License-Identifier: Apache-2.0
//
// Which process listens on a port of this network namespace, for an error that says more than "in
// use". Reads /proc, which is slow, so it is for failures only. Any thread.

#ifndef WORKER_LINK_PORT_HOLDER_H
#define WORKER_LINK_PORT_HOLDER_H

#include "base/text.h"

#include <stdint.h>

// Appends "20000 by process 4711 (python3)", or as much of it as is known.
void port_holder_append(struct text *text, uint16_t port);

#endif
