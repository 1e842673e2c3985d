// SPDX-License-Identifier: Apache-2.0
//
// The functions of world.c that other files call.

#ifndef WORKER_SESSION_WORLD_H
#define WORKER_SESSION_WORLD_H

#include "protos/tuning.h"
#include "protos/types.h"
#include "worker/session/deal.h"

#include <stdatomic.h>

struct collective;
struct lockstep_session;

struct session_world {
    // Written by the driver under the session's mutex when a generation forms. After a death the
    // next one forms while other threads run; only rank, size and root are read by threads without
    // the mutex.
    struct generation_id generation;
    _Atomic(uint32_t) rank;
    _Atomic(uint32_t) size;
    // The rank whose parameters and buffers the others receive: config.root of the first
    // generation, or the next rank that is left after it.
    _Atomic(uint32_t) root;
    uint32_t chunk_bytes;
    uint32_t hosts; // As in struct locality.
    uint32_t devices; // Number of ranks with a device.
    struct tuning tuning; // The first lockstep_start replaces parts of it by loaded tuning, if any.
    uint32_t tuned_size; // Size of the world that agreed on `tuning`; `size` may be ahead.
    uint32_t peer_count; // Peers to which this rank has links.
    struct peer peers[LOCKSTEP_MAX_NEIGHBOURS];
    uint16_t origins[LOCKSTEP_MAX_WORLD]; // [size]: the number of each rank in the first world.

    bool formed; // guarded by the session's mutex
    // Written by the driver under the session's mutex, read by other threads under it. Only with
    // config.virtual_ranks.
    struct leaf_deal deal;
};

// The facts about the world that the rules of protos/tuning.h need.
struct tuning_world world_of_tuning(const struct lockstep_session *session);
// The algorithm for a collective of this kind, dtype and number of elements. It is the same on all
// ranks.
enum plan_algorithm world_algorithm(const struct lockstep_session *session,
                                    const struct collective *collective);

#endif
