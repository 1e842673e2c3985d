// SPDX-License-Identifier: Apache-2.0
//
// How the engine waits for work, and how it is woken. Engine thread, but for transport_wake.

#ifndef WORKER_TRANSPORT_WAIT_H
#define WORKER_TRANSPORT_WAIT_H

#include <stdbool.h>
#include <stdint.h>

struct transport;

// How long to look again and again before blocking; see worker/transport/wait.c.
struct patience {
    uint32_t credit; // Grows when looking helped, shrinks when it did not.
    uint32_t waits; // Waits without looking since the last one with.
    uint32_t probe; // Without credit one wait in so many looks.
    uint32_t hits; // Waits in which looking helped, since somebody who computes had the core.
    uint32_t unpolled; // Waits since the kernel was last asked.
};

// How long to look, by the ranks of this host. When the generation forms.
void wait_prepare(struct transport *transport);
// Waits until something may be done, or for so long (-1: no bound).
void wait_for_work(struct transport *transport, int timeout_ms);
// No thread drives for a while: peers in memory are told to ring. False: there is work to do.
bool wait_leave_alone(struct transport *transport);
void transport_wake(struct transport *transport); // Any thread.

#endif
