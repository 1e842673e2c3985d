// SPDX-License-Identifier: Apache-2.0
//
// Leaves: the steps of a window, each of which is the part of one virtual rank
// (config.virtual_ranks). See leaves.c.

#ifndef WORKER_SESSION_MODULE_LEAVES_H
#define WORKER_SESSION_MODULE_LEAVES_H

#include "worker/kernels/tree.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct collective;
struct collective_tree;
struct contribution;
struct lockstep_module;
struct lockstep_session;

// The leaves of a module. Trainer; the driver reads it from the begin of the window's last step
// until that step has settled, and writes the rooms and trees.
struct leaves {
    // set at start, then constant
    uint8_t *memory; // [room_count][room_bytes]: a page is used when it is first written.
    size_t room_bytes;
    uint32_t room_count;
    struct collective_tree *trees; // [buckets of a layout]
    // [buckets of a layout]: true if the last leaf is in the rooms. A bucket that is launched again
    // after a death does not add it again, and the leaf's memory may have results by then.
    bool *folded;

    // the open window
    size_t *offsets; // [buckets of a layout]: where each bucket begins in a room, in bytes.
    size_t used_bytes; // Bytes of a room that the layout in force needs.
    struct tree_stack stack; // The blocks of earlier leaves; block i lies in room i.
    uint64_t weight; // The weights of earlier leaves, without those in which nothing was called.
    // True if the module, or one that shares its parameters, was called in this leaf.
    atomic_bool called;
    bool touched; // True if rooms hold sums. Before, all earlier leaves were +0.
};

// Sets the leaves of this rank, and those of the job. Without config.virtual_ranks every rank is
// one leaf. Any thread; not under the session's mutex.
struct tree_block leaves_of(struct lockstep_session *session, uint32_t *total);
// 0, or E_INVALID if a step with these options cannot be the next leaf. Trainer, at step_begin.
int leaves_check(struct lockstep_session *session, uint64_t weight, bool accumulates);
// Opens the leaves of every module. Trainer, at start.
int leaves_start(struct lockstep_session *session);
void leaves_free(struct leaves *leaves); // NULL is allowed.
// A window begins. Trainer, at step_begin.
void leaves_window_begin(struct lockstep_session *session);
// A call of the module begins. Trainer.
void leaves_called(struct lockstep_module *module);
// A leaf that is not the last one of its window ends: adds its gradients to those of earlier leaves
// and sets their memory to zero. Trainer, at step_end.
void leaves_close(struct lockstep_session *session);
// The weight of all leaves of the window that called the module. Trainer and driver, in the last
// step of the window.
uint64_t leaves_weight(const struct lockstep_module *module);
// Adds the last leaf to a bucket, if it has not done so, and makes the bucket's collective a sum
// over the tree. zero: this rank contributes nothing. Driver; the trainer in a solo session.
void leaves_launch(const struct contribution *contribution, uint32_t bucket, bool zero,
                   struct collective *collective);
// Computes the results of a solo session. Trainer.
void leaves_settle(struct contribution *contribution);

#endif
