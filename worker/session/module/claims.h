// SPDX-License-Identifier: Apache-2.0
//
// The functions of claims.c that end calls. worker/api/call.c, which begins and ends calls, and the
// test of interleavings include this header.

#ifndef WORKER_SESSION_MODULE_CLAIMS_H
#define WORKER_SESSION_MODULE_CLAIMS_H

#include "worker/session/module/calls.h"
#include "worker/session/session.h"

// The thread that ends a call, or the step, speaks for all reports that are still to come under a
// serial, and waits until every report that other threads have claimed is settled. A report that
// comes later is refused. Returns how many gradients were complete before.
uint32_t claim_rest(struct contribution *contribution, uint64_t serial);
// Hands over what claim_rest has claimed.
void claim_hand_rest(struct contribution *contribution);
// The same, of a call that was given up: a bucket of which something is missing contributes
// nothing.
void claim_withdraw(struct contribution *contribution);
// Nothing was reported of the contribution: gradients whose registered memory is another one's in
// this window have no place in it. Trainer, at the end of the step.
void claim_leave_all(struct contribution *contribution);

#endif
