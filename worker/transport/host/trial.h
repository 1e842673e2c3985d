// SPDX-License-Identifier: Apache-2.0
//
// A choice between two ways of doing the same work, made by doing the work both ways, now and then.
// It is for where the better way cannot be known beforehand, and changes: how far two cores are
// from each other, on a virtual machine that its host moves about. Pure; any thread.
//
// Words. Work comes in *tasks*. Most are done the way that is *chosen*. Now and then there is a
// *trial*: TRIAL_TASKS tasks the chosen way, then as many the other one. Of each row the first is
// not looked at, because it finds the caches as the other way has left them; of the rest the
// fastest counts, because whatever disturbs one makes it slower. The other way is chosen when it
// was faster by a twentieth.
//
// What it costs: nothing is measured between trials. The first trial is at once. Then they come
// ever more rarely, up to TRIAL_PAUSE_MOST_NS, while they confirm the choice, and so rarely that
// what is lost by trying is a fiftieth of the time at most.

#ifndef WORKER_TRANSPORT_HOST_TRIAL_H
#define WORKER_TRANSPORT_HOST_TRIAL_H

#include <stdint.h>

#define TRIAL_TASKS 4
#define TRIAL_PAUSE_NS UINT64_C(100000000) // Between two trials, ...
#define TRIAL_PAUSE_MOST_NS UINT64_C(1600000000) // ... of which the last ones changed nothing.
#define TRIAL_LOSS 50 // The time between two of them, in what one has lost.

// All zero: way 0 is chosen, and a trial is due.
struct trial {
    uint32_t chosen; // 0 or 1.
    uint32_t given; // Tasks of this trial that were given out, ...
    uint32_t heard; // ... and of which it was said how long they took.
    uint64_t best[2]; // By way: the fastest; 0: none yet.
    uint64_t spent_ns[2]; // By way: all of them together.
    uint64_t pause_ns;
    uint64_t next_ns; // When the next one is due.
};

#define TRIAL_NONE 0 // A task of no trial.

// How the next task is to be done. The task's number in its trial, which trial_took() asks for, or
// TRIAL_NONE: how long it takes is of no interest.
uint32_t trial_give(struct trial *trial, uint64_t now_ns, uint32_t *way);

// The task with this number, of so many bytes, has taken so long. 0 bytes: there was nothing to do.
// Every task of a trial is told of once, in any order: where there is nothing to do a task ends
// before those that were given earlier.
void trial_took(struct trial *trial, uint32_t task, uint64_t took_ns, uint64_t bytes,
                uint64_t now_ns);

#endif
