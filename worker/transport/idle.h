// SPDX-License-Identifier: Apache-2.0
//
// What a driver (the thread that calls transport_progress) asks before it stops driving the
// transport. Driver, except transport_doze.

#ifndef WORKER_TRANSPORT_IDLE_H
#define WORKER_TRANSPORT_IDLE_H

#include <stdbool.h>

struct transport;

// transport_own: the calling thread is the driver from now on. transport_disown: it no longer is.
void transport_own(struct transport *transport);
void transport_disown(struct transport *transport);
// True if no collective is launched, no wave is joined and no frame is queued: then no other rank
// waits for this one.
bool transport_idle(const struct transport *transport);
// Returns for how many milliseconds an idle transport needs no driver unless something arrives; 0:
// it needs one now. After a return value above 0, data that peers write into shared memory makes
// transport_doze return, too.
int transport_rest(struct transport *transport);
// Sleeps until something arrives, the descriptor `bell` is readable, or timeout_ms are over.
// Changes no state of the transport, so another thread may drive meanwhile. Any thread.
void transport_doze(const struct transport *transport, int bell, int timeout_ms);

#endif
