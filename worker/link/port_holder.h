// SPDX-License-Identifier: Apache-2.0
//
// Finds the process that listens on a port of this network namespace, so that an error can say more
// than "in use". Reading /proc is slow, so only failures do this. Any thread.

#ifndef WORKER_LINK_PORT_HOLDER_H
#define WORKER_LINK_PORT_HOLDER_H

#include "base/text.h"

#include <stdint.h>

// Appends "20000 by process 4711 (python3)", or the part of it that is known.
void port_holder_append(struct text *text, uint16_t port);

#endif
