// SPDX-License-Identifier: Apache-2.0
//
// How far the step has come, as the order core knows it: written into the words of the trace.
// Driver only.

#ifndef WORKER_ENGINE_PROGRESS_H
#define WORKER_ENGINE_PROGRESS_H

struct lockstep_session;

void progress_order(struct lockstep_session *session);

#endif
