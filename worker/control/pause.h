// SPDX-License-Identifier: Apache-2.0
//
// The pause between two attempts to reach a coordinator. Control thread.

#ifndef WORKER_CONTROL_PAUSE_H
#define WORKER_CONTROL_PAUSE_H

#include <stdint.h>

struct pause {
    uint64_t until_ms; // When the next attempt begins; UINT64_MAX: none is planned.
    uint64_t length_ms; // Length of the next pause.
};

// The next pause is a short one.
void pause_reset(struct pause *pause);
// Begins a pause of a random length between half of the planned one and all of it, so that the
// workers of a job do not come all at once. The pause after it is twice as long, at most
// longest_ms.
void pause_begin(struct pause *pause, uint64_t now_ms, uint64_t longest_ms);

#endif
