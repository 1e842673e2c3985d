// SPDX-License-Identifier: Apache-2.0
//
// The values of modules with a group. Trainer.

#ifndef WORKER_API_GROUPED_STATE_H
#define WORKER_API_GROUPED_STATE_H

struct hash64;
struct lockstep_session;

// Makes the values of the modules of this rank's groups equal to those of one member. Blocks.
int grouped_state_sync(struct lockstep_session *session);
// A failure if these values differ among the members of a group. Blocks.
int grouped_state_check(struct lockstep_session *session);
// Adds the hashes of these values to `hash`. A failure: there is no memory.
int grouped_state_hash(struct lockstep_session *session, struct hash64 *hash);

#endif
