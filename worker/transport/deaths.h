// SPDX-License-Identifier: Apache-2.0
//
// Mates whose processes end: epoll watches their pidfds, so a rank that is well spends nothing on
// it. Engine thread.

#ifndef WORKER_TRANSPORT_DEATHS_H
#define WORKER_TRANSPORT_DEATHS_H

#include <stdbool.h>
#include <stdint.h>

struct mate_process;
struct transport;

// A generation forms: watches the processes of its mates.
void deaths_form(struct transport *transport);
// The end of the transport: closes all descriptors.
void deaths_close(struct transport *transport);
// epoll has an event for the process of a mate.
void deaths_event(struct transport *transport, struct mate_process *mate);
// Loses mates whose processes ended a while ago and whose links still stand, because other
// processes hold them. Called every deaths_check_ms.
void deaths_check(struct transport *transport);
// Milliseconds between two checks for such mates and for silent hosts. Short while the process of a
// mate is known to be gone and the end of its link is awaited.
uint64_t deaths_check_ms(const struct transport *transport);
// Makes the event mate_gone. Returns false if there is none to make.
bool deaths_report(struct transport *transport);
// True if it is proven that the process of this rank is gone. Then mate_gone does not follow.
bool transport_take_death(struct transport *transport, uint32_t rank);

#endif
