// SPDX-License-Identifier: Apache-2.0
//
// The processes of a rank's mates. The end of a connection is no proof that a process is gone; a
// pidfd is one. Engine thread.
//
// A mate has no descriptor if its process is in another namespace of pids, if it is this process,
// if it is gone already, or if descriptors are missing. Then nothing is known of it here.
//
// The descriptors are opened when a generation forms, and stay until the next one forms: a rank
// that has frozen its generation still sees its mates end.

#ifndef WORKER_TRANSPORT_FLOW_MATES_H
#define WORKER_TRANSPORT_FLOW_MATES_H

#include "protos/limits.h"
#include "worker/transport/flow/peers.h"

#include <stdbool.h>
#include <stdint.h>

struct locality;

struct mate_process {
    struct endpoint endpoint; // Must be the first field: epoll events point at it.
    uint32_t rank;
    uint32_t pid;
    uint64_t started;
    int process; // The pidfd; -1: none.
    bool gone; // True if the process was seen to be gone.
    bool checked; // True if it was gone at the last check, and its link still stood.
    bool told; // True if that was reported, or need not be.
};

struct mates {
    uint32_t count; // Without this rank.
    uint32_t untold; // Number of mates that are gone and not told.
    struct mate_process all[LOCKSTEP_MAX_MATES];
};

// Forms the list anew. A mate that was in the last generation keeps its descriptor. Those that are
// of no use any more are in `dropped`, which has room for LOCKSTEP_MAX_MATES; the caller closes
// them. Returns their number.
uint32_t mates_form(struct mates *mates, const struct locality *locality, int *dropped);
// True if it is proven that the process of this rank, a mate, is gone. It looks at once.
bool mates_is_gone(struct mates *mates, uint32_t rank);
// The mate of this rank; NULL: it is none.
struct mate_process *mates_of_rank(struct mates *mates, uint32_t rank);

#endif
