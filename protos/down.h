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
    DOWN_WELCOME, // The hello is accepted; the world is still forming.
    DOWN_REFUSED, // The hello is refused, or the world did not form. The stream ends.
    DOWN_GENERATION, // The world has formed: rank, world size, neighbours.
    DOWN_VERIFIED, // All manifests are equal, as far as all ranks have the modules.
    DOWN_MANIFEST_REQUEST, // The worker has to send manifest items [first, first + count).
    DOWN_GRANT, // Learning: the worker appends this slot to the order.
    DOWN_LAYOUT_PART, // Part of an agreed layout, before the plan that uses it.
    DOWN_PLAN_PART, // Part of a plan; the last part publishes it.
    DOWN_HALT, // The step, or the generation, cannot go on.
    DOWN_TUNING, // All links of the generation are connected; struct tuning has the result.
    DOWN_QUERY, // Another rank is blocked in this step: the worker has to report its own waits.
    DOWN_INSPECT, // The worker has to report where its trainer is (struct up_answer).
    DOWN_ADDRESSES, // Answer to UP_REACH.
    DOWN_PREPARE, // Recovery: freeze, and report what is final.
    DOWN_RECORD_PART, // Recovery: part of a record, before the DOWN_DECISION that it belongs to.
    // Recovery: how the members go on. The DOWN_GENERATION behind it puts it into force.
    DOWN_DECISION,
    DOWN_EXCLUDED, // Recovery: the receiver is no member of the new generation.
};

struct down_welcome {
    uint32_t version;
    uint32_t heartbeat_ms;
};

// Why a worker was refused. Each comment says what the user should do.
enum refusal {
    REFUSAL_NONE = 0,
    REFUSAL_VERSION = 1, // Install matching versions.
    REFUSAL_INVALID = 2, // Fix the configuration; text says what.
    REFUSAL_TIMEOUT = 3, // The world did not form in time; text says who is missing.
    REFUSAL_FULL = 4, // The coordinator's limits are reached.
    REFUSAL_DRAINING = 5, // The coordinator is shutting down; try again.
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

// The mates of a worker, that is the workers that share memory with it, and its neighbours on other
// hosts. A "host" here is a group of at most LOCKSTEP_MAX_MATES workers with the same host_id. If a
// machine has more workers, they form several groups of nearly the same size.
struct locality {
    uint32_t host; // Index of this worker's host, in the order of the hosts' lowest ranks.
    uint32_t hosts;
    uint32_t mate_count; // Workers of this host, including this worker.
    uint32_t mates[LOCKSTEP_MAX_MATES]; // Ranks of the workers of this host, ascending.
    // pid and started of each of these workers' processes, as in struct up_hello. A process with
    // the same pid and another `started` is a different process.
    uint32_t mate_pids[LOCKSTEP_MAX_MATES];
    uint64_t mate_started[LOCKSTEP_MAX_MATES];
    uint32_t local; // Index of this worker in mates.
    // Number of rings between hosts: the number of workers of the smallest host. Ring k joins
    // mates[k] of every host, in the order of hosts. If local < rings and hosts > 1, this worker is
    // in ring `local`, and successor and predecessor are its neighbours there.
    uint32_t rings;
    uint32_t successor; // Rank.
    uint32_t predecessor; // Rank.
};

struct data_port {
    uint32_t rank;
    char address[LOCKSTEP_ADDRESS_BYTES];
};

// A worker learns the addresses only of the peers that it has links to, and of a few further ranks,
// not of the whole world. It asks for others when it needs them (UP_REACH).
struct down_generation {
    uint32_t rank;
    uint32_t world_size;
    uint32_t local_rank; // Index of this worker among the workers of its host.
    uint32_t local_size; // Number of workers on this host.
    // Payload bytes of a ring frame, equal on all ranks. See worker/transport/ring/schedule.h.
    uint32_t chunk_bytes;
    uint8_t secret[LOCKSTEP_SECRET_BYTES];
    struct locality locality; // All zero: no rank shares a host with another.
    // Set of ranks that compute on a GPU: bit r % 64 of word r / 64 is set for rank r.
    uint64_t gpus[LOCKSTEP_RANK_WORDS];
    // True if some ranks have no GPU, and the ranks with GPUs first sum among themselves by NCCL.
    bool gpus_meet;
    // Number of ranks that share CPU cores with this one, including itself; 0: not known.
    uint32_t core_ranks;
    uint32_t peer_count;
    struct peer peers[LOCKSTEP_MAX_NEIGHBOURS]; // Sorted by rank, without this worker.
    // Data ports of ranks that are no peers: the next ones after this rank, behind the last rank
    // from rank 0 on. Only in jobs that go on after a death.
    uint32_t further_count;
    struct data_port further[LOCKSTEP_MAX_FURTHER_PORTS];
};

struct down_verified {
    bool grouped; // True if some rank has registered modules with a group.
};

struct down_manifest_request {
    uint32_t first;
    uint32_t count; // At most LOCKSTEP_MANIFEST_PART.
};

struct down_grant {
    uint64_t step;
    struct slot_id slot;
    bool forced; // True if the receiver has not made the slot and has to contribute zeros to it.
};

struct down_query {
    uint64_t step;
    // Answers a report that the receiver is not blocked any more: the coordinator no longer counts
    // it as blocked.
    bool withdrawn;
    // The things that ranks wait for in different functions. A blocked rank reports which of these
    // it has not done. A query with keys has no step.
    uint32_t key_count;
    struct await_key keys[LOCKSTEP_MAX_AWAITED];
    // True if ranks call the collective that keys[0], the only key, names differently. A rank on
    // which this collective is in flight reports by UP_FAIL how it calls the collective.
    bool form;
};

enum inspect { // Bits.
    INSPECT_PLACE = 1,
    INSPECT_STACKS = 2,
    INSPECT_EVENTS = 4,
};
#define INSPECT_ALL 7u

struct down_inspect {
    uint64_t id; // Id of the question; every part of the answer repeats it.
    uint32_t what; // Bits of enum inspect, at least one.
};

// The ranks of an UP_REACH, in its order.
struct down_addresses {
    uint32_t count; // At least 1.
    struct peer peers[LOCKSTEP_REACH_RANKS];
};

// The number of a ballot is that of the generation that the ballot decides.
struct down_prepare {
    struct generation_id ballot;
    // Set of ranks of the present generation that are to be replaced: bit r % 64 of word r / 64.
    uint64_t suspects[LOCKSTEP_RANK_WORDS];
    char text[LOCKSTEP_TEXT_BYTES]; // Why: the sentence about the first suspect.
};

// The same on every member, as are its records.
struct down_decision {
    struct generation_id ballot; // Also the id of the new generation.
    uint64_t settled; // The last step that is committed: RECORD_COMMIT has its wave.
    uint64_t step; // As in struct up_report, of the members that are furthest.
    // REPORT_OPENED, REPORT_BEGUN, REPORT_CLOSED and REPORT_SKIPPED, if they are true of any member
    // that has committed `settled`.
    uint32_t flags;
    // Set of ranks of the newest generation that ends.
    uint64_t removed[LOCKSTEP_RANK_WORDS];
    // The generations that were open, and the new one: what a member reports from now on (M3).
    uint32_t chain_count;
    struct lineage chain[LOCKSTEP_CHAIN];
    uint64_t dead[LOCKSTEP_RANK_WORDS]; // As in struct up_resume.
    char text[LOCKSTEP_TEXT_BYTES]; // "rank 2 on host b died"; for logs and lockstep_world_change.
};

struct down_excluded {
    struct generation_id ballot;
    char text[LOCKSTEP_TEXT_BYTES];
};

struct plan_slot {
    struct slot_id id;
    uint32_t algorithm; // enum plan_algorithm, or ALGORITHM_BY_SIZE.
};

struct down_plan_part {
    uint64_t number; // Plans of a generation are numbered from 1, over all phases.
    uint64_t replaces; // If closes_step is false: number of the plan that this plan replaces.
    uint64_t phase; // Hash of the phase's name and of the set of parameters that it trains.
    uint64_t hash; // Hash of the phase, the slots and the layouts of the modules in the plan.
    bool closes_step; // True if the plan ends the learning step whose number is `step`.
    uint64_t step;
    uint32_t slot_total;
    uint32_t slot_first;
    uint32_t slot_count;
    bool last;
    bool strict; // True if some rank's data plane matches collectives by their order.
    struct plan_slot slots[LOCKSTEP_PLAN_PART];
};

struct down_halt {
    uint64_t step; // The halt takes effect when every earlier step is settled; 0: at once.
    enum halt_kind kind;
    bool has_rank; // True if `rank` is valid: HALT_LOST and HALT_LEFT.
    uint32_t rank; // The rank that was lost, or that left.
    char text[LOCKSTEP_REPORT_BYTES]; // The same on every rank.
    // HALT_LOST: the last failure that the lost rank reported in a heartbeat. Empty: none is known.
    char cause[LOCKSTEP_FAREWELL_TEXT_BYTES];
};

struct down_message {
    enum down_kind kind;
    struct generation_id generation;
    union {
        struct down_welcome welcome;
        struct down_refused refused;
        struct down_generation generation_start;
        struct down_verified verified;
        struct down_manifest_request manifest_request;
        struct down_grant grant;
        struct layout_part layout_part;
        struct down_plan_part plan_part;
        struct down_halt halt;
        struct tuning tuning;
        struct down_query query;
        struct down_inspect inspect;
        struct down_addresses addresses;
        struct down_prepare prepare;
        struct record_part record_part;
        struct down_decision decision;
        struct down_excluded excluded;
    } u;
};

#endif
