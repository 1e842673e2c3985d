// SPDX-License-Identifier: Apache-2.0
//
// Ranks as threads of one process, each with its own transport, for the conformance suite. A
// member's script runs on its thread; what goes wrong there ends the program with a sentence about
// who waited for whom.

#ifndef TESTS_TRANSPORT_FLEET_H
#define TESTS_TRANSPORT_FLEET_H

#include "worker/transport/transport.h"

#include <pthread.h>
#include <stdatomic.h>

#define FLEET_MAX 16
#define FLEET_BOUND_MS 30000 // A hang, in a release build.

enum fleet_devices {
    FLEET_ON_HOSTS,
    FLEET_STAGED, // Ranks have a device, but for the last one of several.
    FLEET_MIXED, // Even ranks and the last but one have, and meet; in a world of two as
                 // FLEET_STAGED.
    FLEET_NCCL, // All ranks have a device.
};

struct fleet_options {
    const char *name;
    enum transport_kind kind;
    uint32_t torn_bytes;
    uint32_t world;
    uint32_t chunk_bytes;
    bool mates; // Ranks share hosts; over TCP, links between mates go through memory.
    // Number of hosts whose ranks are mates; the last hosts have one rank more. 0: one host.
    uint32_t hosts;
    bool registered; // Their memory is of regions.
    bool encrypts; // Links that are not in memory.
    struct regions **regions; // [world], when registered.
    enum slot_fill fills[FLEET_MAX]; // By rank.
    enum fleet_devices devices;
    uint32_t first_device; // First device of rank 0; the next rank has the next device.
    uint64_t abort_ms; // As in struct transport_config.
    uint64_t segment_bytes; // As in struct transport_config.
    // For collectives of a job; broadcasts take any algorithm that there is.
    enum plan_algorithm algorithm;
};

struct member {
    struct fleet *fleet;
    uint32_t rank;
    struct transport *transport;
    struct device *device; // NULL: it has none.
    bool closed; // The script has ended the transport itself.
    bool skip_formed; // The script itself waits for formed.
    // Facts from the events.
    bool formed;
    bool form_failed;
    uint32_t done_count;
    uint32_t wave_count;
    uint32_t mismatch_count;
    uint32_t lost_count;
    uint32_t lost_rank;
    bool lost_left;
    char lost_text[256];
    uint32_t enqueued_count;
    uint32_t summed_count;
    uint32_t failed_count; // How often its device failed.
    char failed_text[256];
    uint32_t header_count;
    struct step_header headers[8];
    uint32_t note_bytes; // Bytes of the last note.
    uint8_t note[LOCKSTEP_NOTE_BYTES];
    // Called in addition, when set.
    void (*on_done)(struct member *member, struct collective *collective);
    void *extra;
    // The present wait, as a text for people.
    const char *waits_for;
};

struct fleet {
    struct fleet_options options;
    void (*script)(struct member *member);
    void *argument;
    pthread_barrier_t barrier;
    _Atomic(uint32_t) formed; // Members whose world stands.
    char addresses[FLEET_MAX][LOCKSTEP_ADDRESS_BYTES];
    struct member members[FLEET_MAX];
};

// Forms a world, runs the script on every rank, leaves and closes.
void fleet_run(const struct fleet_options *options, void (*script)(struct member *member),
               void *argument);

// The parts, for tests that want to do it differently.
bool fleet_has_device(const struct fleet *fleet, uint32_t rank);
struct transport *fleet_open(struct member *member);
void fleet_world(const struct fleet *fleet, uint32_t rank, struct transport_world *world,
                 struct peer peers[LOCKSTEP_MAX_NEIGHBOURS]);

// Progress until *count has reached `least`; a hang ends the program.
void member_until(struct member *member, const uint32_t *count, uint32_t least, const char *what);
void member_until_true(struct member *member, const bool *flag, const char *what);
// Progress for so long.
void member_idle(struct member *member, uint32_t ms);
// All ranks, outside the library.
void member_barrier(struct member *member);

// The memory of a collective of the fleet's jobs is where the fleet says.
void member_place(const struct member *member, struct collective *collective);
// Whether it may launch in another order than other ranks: NCCL sums nothing of it.
bool member_has_any_order(const struct member *member);

// Ends the program.
void fleet_fail(const struct member *member, const char *file, int line, const char *text);
#define MEMBER_CHECK(member, condition) \
    do { \
        if (!(condition)) \
            fleet_fail(member, __FILE__, __LINE__, #condition); \
    } while (0)

uint64_t fleet_bound_ms(uint64_t ms); // test_bound_ms().

#endif
