// SPDX-License-Identifier: Apache-2.0
//
// The functions of wait.c that other files call.

#ifndef WORKER_TRANSPORT_WAIT_H
#define WORKER_TRANSPORT_WAIT_H

#include <stdbool.h>

struct transport;
struct wait_moment;

// How long to look, by the ranks of this host. When the generation forms.
void wait_prepare(struct transport *transport);
// Waits until something may be done, or for so long (-1: no bound).
void wait_for_work(struct transport *transport, int timeout_ms);
// beside: where ranks share cores, it comes from one that may share this one.
bool wait_a_moment(struct transport *transport, struct wait_moment *moment, bool beside);
// Nobody drives for a while: peers in memory are told to ring. False: there is something to do.
bool wait_leave_alone(struct transport *transport);
// Whether transport_wake was called since the last time. Forgets it.
bool wait_asked(struct transport *transport);
void transport_wake(struct transport *transport); // Any thread.

#endif
