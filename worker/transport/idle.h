// SPDX-License-Identifier: Apache-2.0
//
// What a driver asks before it stops driving the transport. Driver, but for transport_doze.

#ifndef WORKER_TRANSPORT_IDLE_H
#define WORKER_TRANSPORT_IDLE_H

#include <stdbool.h>

struct transport;

// The calling thread drives from now on; it does not any more.
void transport_own(struct transport *transport);
void transport_disown(struct transport *transport);
// Nothing is launched, joined or to be sent: no other rank waits for what this one may do next.
bool transport_idle(const struct transport *transport);
// How many milliseconds an idle transport may be left alone, unless something arrives; 0: it is to
// be driven now. From its return on, what peers put into memory makes transport_doze return, too.
int transport_rest(struct transport *transport);
// Sleeps until something arrives, the bell (a descriptor) can be read, or the time is over. Touches
// nothing and takes nothing: another thread may drive meanwhile. Any thread.
void transport_doze(const struct transport *transport, int bell, int timeout_ms);

#endif
