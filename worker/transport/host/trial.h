// SPDX-License-Identifier: Apache-2.0
//
// Chooses between two ways of doing the same work, by doing the work both ways now and then. This
// is for choices that cannot be made in advance and that change: how far two cores are from each
// other on a virtual machine whose host moves its cores. Pure; any thread.
//
// Words. Work comes in *tasks*. Most tasks are done the *chosen* way. Now and then there is a
// *trial*: TRIAL_TASKS tasks the chosen way, then as many the other way. The first task of each way
// does not count, because it finds the caches as the other way has left them. Of the rest the
// fastest counts, because disturbances only make tasks slower. The other way is chosen if it was
// faster by a twentieth.
//
// Cost: nothing is measured between trials. The first trial begins at once. While trials confirm
// the choice, the pause between them grows up to TRIAL_PAUSE_MOST_NS. It is also at least
// TRIAL_LOSS times the time that the last trial has lost.

#ifndef WORKER_TRANSPORT_HOST_TRIAL_H
#define WORKER_TRANSPORT_HOST_TRIAL_H

#include <stdint.h>

#define TRIAL_TASKS 4
#define TRIAL_PAUSE_NS UINT64_C(100000000) // The shortest pause between two trials.
#define TRIAL_PAUSE_MOST_NS UINT64_C(1600000000) // The longest pause, unless trials lose more time.
#define TRIAL_LOSS 50 // The shortest pause, as a multiple of the time that the last trial has lost.

// All zero: way 0 is chosen, and a trial is due.
struct trial {
    uint32_t chosen; // 0 or 1.
    uint32_t given; // Number of tasks of this trial that were given out.
    uint32_t heard; // Number of these tasks whose time was reported.
    uint64_t best[2]; // By way: the shortest time for TRIAL_UNIT bytes, in ns; 0: none yet.
    uint64_t spent_ns[2]; // By way: the time of all its tasks.
    uint64_t pause_ns;
    uint64_t next_ns; // When the next trial is due.
};

#define TRIAL_NONE 0 // The number of a task that is in no trial.

// Sets *way to how the next task is to be done. Returns the number of the task in its trial, to be
// passed to trial_took(); TRIAL_NONE: do not report its time.
uint32_t trial_give(struct trial *trial, uint64_t now_ns, uint32_t *way);

// Reports that the task with this number had `bytes` bytes and took took_ns. bytes 0: there was
// nothing to do. Report every task of a trial once, in any order: a task with nothing to do can end
// before earlier ones.
void trial_took(struct trial *trial, uint32_t task, uint64_t took_ns, uint64_t bytes,
                uint64_t now_ns);

#endif
