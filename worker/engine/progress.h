// SPDX-License-Identifier: Apache-2.0
//
// Writes the progress of the step, as the order core knows it, to struct progress. Driver only.

#ifndef WORKER_ENGINE_PROGRESS_H
#define WORKER_ENGINE_PROGRESS_H

struct lockstep_session;

void progress_order(struct lockstep_session *session);

#endif
