// SPDX-License-Identifier: Apache-2.0
//
// A fleet: the ranks of a world as threads of one process, each with its own transport, for the
// conformance suite. A member is one rank. The script of the test runs on each member's thread. A
// failure there ends the program with a sentence that says which rank waited for what.

#ifndef TESTS_TRANSPORT_FLEET_H
#define TESTS_TRANSPORT_FLEET_H

#include "worker/transport/transport.h"

#include <pthread.h>
#include <stdatomic.h>

#define FLEET_MAX 20
#define FLEET_BOUND_MS 30000 // Time after which a wait counts as a hang, in a release build.

enum fleet_devices {
    FLEET_ON_HOSTS,
    FLEET_STAGED, // All ranks but the last have a device; a single rank has one.
    // The even ranks and the last but one have a device, but the last rank has none. NCCL first
    // sums over the ranks with devices. In a world of two the same ranks as in FLEET_STAGED.
    FLEET_MIXED,
    FLEET_NCCL, // All ranks have a device.
};

struct fleet_options {
    const char *name;
    enum transport_kind kind;
    uint32_t torn_bytes;
    uint32_t world;
    uint32_t chunk_bytes;
    bool mates; // True if ranks share hosts. With TCP, links between mates then use shared memory.
    // Number of hosts. Ranks on one host are mates; the last hosts may have one rank more. 0: one
    // host.
    uint32_t hosts;
    bool registered; // True if the memory of the ranks lies in regions.
    bool encrypts; // True if links that do not use shared memory are encrypted.
    struct regions **regions; // [world], if registered.
    enum slot_fill fills[FLEET_MAX]; // By rank.
    enum fleet_devices devices;
    uint32_t first_device; // First device of rank 0; the next rank has the next device.
    uint64_t abort_ms; // As in struct transport_config.
    uint64_t segment_bytes; // As in struct transport_config.
    bool recovers; // As in struct transport_config.
    enum plan_algorithm algorithm; // Algorithm of a job's reductions; broadcasts take any.
};

struct member {
    struct fleet *fleet;
    uint32_t rank;
    struct transport *transport;
    struct device *device; // NULL: the rank has no device.
    bool closed; // True if the script has closed the transport itself.
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
    uint32_t failed_count; // How often the rank's device failed.
    char failed_text[256];
    uint32_t header_count;
    struct step_header headers[8];
    uint32_t note_bytes; // Bytes of the last note.
    uint8_t note[LOCKSTEP_NOTE_BYTES];
    // Number of ranks whose addresses the transport has asked for. The fleet answers with their
    // addresses, or with `elsewhere` if that is not NULL.
    uint32_t reach_count;
    const char *elsewhere;
    bool answers_late; // True if the fleet does not answer.
    // Called when a collective is done; NULL: not called.
    void (*on_done)(struct member *member, struct collective *collective);
    void *extra; // Data of the test.
    const char *waits_for; // What the member waits for now, as text; NULL: nothing.
};

struct fleet {
    struct fleet_options options;
    void (*script)(struct member *member);
    void *argument;
    pthread_barrier_t barrier;
    _Atomic(uint32_t) formed; // Number of members that have formed their world.
    char addresses[FLEET_MAX][LOCKSTEP_ADDRESS_BYTES];
    struct member members[FLEET_MAX];
};

// Forms a world, runs the script on every rank, then leaves and closes the transports.
void fleet_run(const struct fleet_options *options, void (*script)(struct member *member),
               void *argument);

// The parts of fleet_run, for tests that run a fleet in another way.
bool fleet_has_device(const struct fleet *fleet, uint32_t rank);
struct transport *fleet_open(struct member *member);
void fleet_world(const struct fleet *fleet, uint32_t rank, struct transport_world *world,
                 struct peer peers[LOCKSTEP_MAX_NEIGHBOURS]);

// Runs the transport until *count has reached `least`; a hang ends the program.
void member_until(struct member *member, const uint32_t *count, uint32_t least, const char *what);
void member_until_true(struct member *member, const bool *flag, const char *what);
// Runs the transport for `ms` milliseconds.
void member_idle(struct member *member, uint32_t ms);
// A barrier of all ranks, outside the library.
void member_barrier(struct member *member);

// Sets the fields of a collective that say on which device its memory lies.
void member_place(const struct member *member, struct collective *collective);
// True if the rank may launch collectives in another order than other ranks, because NCCL does not
// sum its gradients.
bool member_has_any_order(const struct member *member);

// Reports a failure and ends the program.
void fleet_fail(const struct member *member, const char *file, int line, const char *text);
#define MEMBER_CHECK(member, condition) \
    do { \
        if (!(condition)) \
            fleet_fail(member, __FILE__, __LINE__, #condition); \
    } while (0)

uint64_t fleet_bound_ms(uint64_t ms); // test_bound_ms().

#endif
