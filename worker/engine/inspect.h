// SPDX-License-Identifier: Apache-2.0
//
// The driver's answer to the watch: its links, and what the step waits for. Driver only.

#ifndef WORKER_ENGINE_INSPECT_H
#define WORKER_ENGINE_INSPECT_H

struct lockstep_session;

// Hands the watch everything that only the driver knows. For COMMAND_INSPECT.
void inspect_answer(struct lockstep_session *session);

#endif
