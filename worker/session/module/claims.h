// SPDX-License-Identifier: Apache-2.0
//
// The functions of claims.c that end calls. worker/api/call.c, which begins and ends calls, and the
// test of interleavings include this header.

#ifndef WORKER_SESSION_MODULE_CLAIMS_H
#define WORKER_SESSION_MODULE_CLAIMS_H

#include "worker/session/module/calls.h"
#include "worker/session/session.h"

// Claims all reports that are still to come under a serial, and waits until every report that other
// threads have claimed is settled. Later reports are refused. Returns how many gradients were
// complete before. The thread that ends the call or the step.
uint32_t claim_rest(struct contribution *contribution, uint64_t serial);
// Settles the reports that claim_rest has claimed, which hands over their gradients.
void claim_hand_rest(struct contribution *contribution);
// The same for an aborted call: a bucket with a missing gradient contributes nothing.
void claim_withdraw(struct contribution *contribution);
// No gradient of the contribution was reported. Clears the memory of each gradient whose registered
// memory was given for another gradient in this window. Trainer, at the end of the step.
void claim_leave_all(struct contribution *contribution);

#endif
