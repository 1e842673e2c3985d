// SPDX-License-Identifier: Apache-2.0
//
// Messages from the coordinator to a worker. types.h has the rules of all messages. Any thread.

#ifndef LOCKSTEP_PROTOS_DOWN_H
#define LOCKSTEP_PROTOS_DOWN_H

#include "protos/place.h"

#include <stdbool.h>
#include <stdint.h>

enum down_kind {
    DOWN_NONE = 0,
    DOWN_WELCOME, // Hello accepted; the world is still forming.
    DOWN_REFUSED, // Hello refused, or the world did not form. The stream ends.
    DOWN_GENERATION, // The world has formed: rank, world size, neighbours.
    DOWN_VERIFIED, // All manifests are equal.
    DOWN_MANIFEST_REQUEST, // Send manifest items [first, first + count).
    DOWN_GRANT, // Learning: append this slot to the order.
    DOWN_LAYOUT_PART, // Part of an agreed layout, before the plan that uses it.
    DOWN_PLAN_PART, // Part of a plan; the last part publishes it.
    DOWN_HALT, // The step, or the generation, cannot go on.
    DOWN_TUNING, // All links of the generation stand: what follows from their speed.
    DOWN_QUERY, // Another rank is blocked in this step: say so when you are.
    DOWN_INSPECT, // Say where you are.
};

struct down_welcome {
    uint32_t version;
    uint32_t heartbeat_ms;
};

// Why a worker was turned away; named for what it does next.
enum refusal {
    REFUSAL_NONE = 0,
    REFUSAL_VERSION = 1, // Install matching versions.
    REFUSAL_INVALID = 2, // Fix the configuration; text says what.
    REFUSAL_TIMEOUT = 3, // The world did not form in time; text says who is missing.
    REFUSAL_FULL = 4, // The coordinator's limits are reached.
    REFUSAL_DRAINING = 5, // The coordinator is going down; try again.
};

struct down_refused {
    enum refusal refusal;
    char text[LOCKSTEP_TEXT_BYTES];
};

struct peer {
    uint32_t rank;
    char address[LOCKSTEP_ADDRESS_BYTES];
    char host[LOCKSTEP_HOST_BYTES];
};

// The workers that share memory with a worker, and its neighbours between hosts. A host here is a
// group of workers with one host_id, of LOCKSTEP_MAX_MATES at most. Workers of a host that has more
// are several such groups, of nearly the same size.
struct locality {
    uint32_t host; // Index of this worker's host, in the order of the hosts' lowest ranks.
    uint32_t hosts;
    uint32_t mate_count; // Workers of this host, this one among them.
    uint32_t mates[LOCKSTEP_MAX_MATES]; // Ranks of these workers, ascending.
    // Their processes, as their hellos name them. Another start is another process.
    uint32_t mate_pids[LOCKSTEP_MAX_MATES];
    uint64_t mate_started[LOCKSTEP_MAX_MATES];
    uint32_t local; // Index of this worker in mates.
    // Rings between hosts: as many as the smallest host has workers. Ring k joins mates[k] of every
    // host, in the order of hosts. successor and predecessor are those of ring `local`, when
    // local < rings and hosts > 1.
    uint32_t rings;
    uint32_t successor; // A rank.
    uint32_t predecessor;
};

// The measurements of the links when the generation formed, and the choices that follow from them.
// Equal on all ranks of a generation.
struct tuning {
    uint64_t latency_ns; // One way, of a few bytes; the worst link.
    uint64_t bytes_per_s; // One link, one direction, while all are busy; the worst link.
    uint64_t doubling_bytes; // Payloads up to this size travel by ALGORITHM_DOUBLING.
    uint64_t halving_bytes; // Larger ones up to this size travel by ALGORITHM_HALVING.
    bool shares; // All mates of every host have mapped their host's memory.
    uint32_t wish; // enum plan_algorithm that every rank asks for, or ALGORITHM_BY_SIZE.
};

// A worker is told only the peers that it has links to, never the whole world.
struct down_generation {
    uint32_t rank;
    uint32_t world_size;
    uint32_t local_rank; // Index among the workers of this host.
    uint32_t local_size; // Workers on this host.
    // Payload of a ring frame, agreed for the generation. See worker/transport/ring/schedule.h.
    uint32_t chunk_bytes;
    uint8_t secret[LOCKSTEP_SECRET_BYTES];
    struct locality locality; // All zero: no rank shares a host with another.
    uint64_t gpus[LOCKSTEP_RANK_WORDS]; // Bit r % 64 of word r / 64: rank r computes on a GPU.
    bool gpus_meet; // Some ranks have none, and the GPUs of the others sum by NCCL first.
    uint32_t core_ranks; // Ranks that name the same cores, this one among them; 0: not known.
    uint32_t peer_count;
    struct peer peers[LOCKSTEP_MAX_NEIGHBOURS]; // Sorted by rank, without this worker.
};

struct down_manifest_request {
    uint32_t first;
    uint32_t count; // At most LOCKSTEP_MANIFEST_PART.
};

struct down_grant {
    uint64_t step;
    struct slot_id slot;
    bool forced; // The receiver has not made it, and gives it up.
};

struct down_query {
    uint64_t step;
    bool withdrawn; // The receiver said that it is blocked no more: nobody counts on it now.
    // The things that ranks wait for in different functions. A blocked rank says which of them it
    // has not done. With keys the query has no step.
    uint32_t key_count;
    struct await_key keys[LOCKSTEP_MAX_AWAITED];
    // Ranks call the collective of the only key differently. A rank in which it is in flight says
    // its own call of it by UP_FAIL.
    bool form;
};

enum inspect { // Bits.
    INSPECT_PLACE = 1,
    INSPECT_STACKS = 2,
    INSPECT_EVENTS = 4,
};
#define INSPECT_ALL 7u

struct down_inspect {
    uint64_t id; // Comes back in every part of the answer.
    uint32_t what; // Bits of enum inspect, at least one.
};

struct plan_slot {
    struct slot_id id;
    uint32_t algorithm; // enum plan_algorithm, or ALGORITHM_BY_SIZE.
};

struct down_plan_part {
    uint64_t number; // From 1, over all phases of the generation.
    uint64_t replaces; // Without closes_step: number of the plan whose place it takes.
    uint64_t phase; // Hash of the phase's name and of what is trained in it.
    uint64_t hash; // Hash of phase, slots and the layouts they use.
    bool closes_step; // True: it ends the learning step named by `step`.
    uint64_t step;
    uint32_t slot_total;
    uint32_t slot_first;
    uint32_t slot_count;
    bool last;
    bool strict; // Some rank's data plane pairs collectives by their order.
    struct plan_slot slots[LOCKSTEP_PLAN_PART];
};

struct down_halt {
    uint64_t step; // Takes effect when every step before it is settled; 0: at once.
    enum halt_kind kind;
    bool has_rank; // HALT_LOST and HALT_LEFT: which rank.
    uint32_t rank;
    char text[LOCKSTEP_REPORT_BYTES]; // The same on every rank.
    // HALT_LOST: the last failure of that rank, which ended without a goodbye. Empty: not known.
    char cause[LOCKSTEP_FAREWELL_TEXT_BYTES];
};

struct down_message {
    enum down_kind kind;
    struct generation_id generation;
    union {
        struct down_welcome welcome;
        struct down_refused refused;
        struct down_generation generation_start;
        struct down_manifest_request manifest_request;
        struct down_grant grant;
        struct layout_part layout_part;
        struct down_plan_part plan_part;
        struct down_halt halt;
        struct tuning tuning;
        struct down_query query;
        struct down_inspect inspect;
    } u;
};

#endif
