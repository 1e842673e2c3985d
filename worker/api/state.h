// SPDX-License-Identifier: Apache-2.0
//
// The values of parameters and buffers that all ranks, or the members of a group, are to have in
// common. Trainer. state_compare and state_send block on other ranks.

#ifndef WORKER_API_STATE_H
#define WORKER_API_STATE_H

#include <stdbool.h>
#include <stdint.h>

struct lockstep_group;
struct lockstep_module;
struct lockstep_session;
struct tensor;

struct state_tensor {
    const struct lockstep_module *module;
    const struct tensor *tensor;
    bool buffer;
};

struct shared_state {
    struct lockstep_session *session;
    const struct lockstep_group *group; // NULL: all ranks.
    uint32_t root; // A rank; with a group: a place in it.
    struct state_tensor *tensors; // [count], in manifest order.
    uint64_t *hashes; // [count]: hashes of this rank's tensors.
    int64_t *vector; // [count]: the hashes of the root, then on how many ranks a tensor differs.
    bool *differs; // [count]: true if this rank's tensor differs from the root's.
    void **kept; // [count]: copies of tensors that this rank receives. NULL: there is none.
    uint32_t count;
};

// Lists and hashes the tensors of a module with a group, or, if it is NULL, of all modules that all
// ranks have. Call state_free also after a failure.
int state_open(struct lockstep_session *session, const struct lockstep_module *grouped,
               struct shared_state *state);
void state_free(struct shared_state *state);
// Opens and frees a state, and between them compares all ranks' tensors with the root's and then
// calls `end`, which is one of the next two.
int state_compare(struct lockstep_session *session, const struct lockstep_module *grouped,
                  int (*end)(struct shared_state *state));
// Makes the tensors equal to the root's. After LOCKSTEP_E_CHANGED this rank has the values that it
// had before.
int state_send(struct shared_state *state);
// Returns LOCKSTEP_E_MISMATCH with the names of the tensors that differ, or 0.
int state_report(struct shared_state *state);

#endif
