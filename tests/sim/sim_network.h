// SPDX-License-Identifier: Apache-2.0
//
// A simulated cluster: one coordinator core, any number of worker processes, the streams between
// them and the links among them, under a simulated clock. Everything that is random comes from one
// seed, so a run is the same every time. Single-threaded; not a model of bandwidth.
//
// How a worker behaves is a struct of functions (sim_model); the network moves its messages.
//
// - Control streams are FIFO in each direction, with random delays, and reliable until they break.
//   A break loses the messages in flight from some message on, and both ends learn of the break.
// - Data messages go over the links between neighbours of one generation, FIFO per link.
// - A *collective* is an oracle for the data plane. When every rank has joined the collective of a
//   key, each rank gets the merged contributions after a random delay of its own. If a rank dies or
//   leaves before it has joined, no other rank gets the result.
// - A crash ends a process between two events. Its neighbours see their links to it as lost. If the
//   run is *lossy*, a link that ends may lose the messages in flight on it, and ranks that have not
//   got the result of a collective yet may never get it.
// - When the coordinator crashes, every stream breaks, and no worker can connect any more.
//
// Trace lines are kept in a ring and printed when something fails:
//
//     [   12] rank 2 -> coordinator: ready step 1 slot 0#0.3

#ifndef TESTS_SIM_SIM_NETWORK_H
#define TESTS_SIM_SIM_NETWORK_H

#include "coordinator/coordinator.h"
#include "protos/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sim_limit {
    SIM_MAX_WORKERS = 1100,
    SIM_TRACE_LINES = 6000,
    SIM_TRACE_BYTES = 240, // Longer lines are cut.
    SIM_PAYLOAD_BYTES = LOCKSTEP_WAVE_BYTES,
};

struct sim;
struct sim_worker;

// The key that pairs the contributions of a collective within a generation.
struct sim_key {
    uint32_t kind; // A number that the model chooses.
    uint32_t number;
    uint64_t step;
    uint64_t space;
};

struct sim_model {
    size_t bytes; // Size of worker->state, which is zeroed when the process starts.
    void (*started)(struct sim_worker *worker);
    void (*received)(struct sim_worker *worker, const struct down_message *message);
    void (*disconnected)(struct sim_worker *worker); // The control stream is gone.
    void (*timer)(struct sim_worker *worker);
    void (*data)(struct sim_worker *worker, uint32_t from, const void *bytes, size_t size);
    void (*collective)(struct sim_worker *worker, const struct sim_key *key, const void *payload);
    // The link to a neighbour ended. left: true if the neighbour called sim_goodbye. settled: the
    // number that it gave to sim_goodbye.
    void (*peer_gone)(struct sim_worker *worker, uint32_t rank, bool left, uint64_t settled);
    // Joins what two ranks contribute to a collective.
    void (*merge)(const struct sim_key *key, void *into, const void *from);
    // Describes what a process that has not exited waits for, as a text for people.
    void (*waits_for)(const struct sim_worker *worker, char *text, size_t bytes);
};

enum sim_end {
    SIM_RUNNING = 0,
    SIM_DONE, // The model's program has finished.
    SIM_REFUSED, // The coordinator refused the worker.
    SIM_HALTED, // The worker ended by a verdict, or because its control stream was gone.
    SIM_CRASHED,
};

struct sim_worker {
    struct sim *sim;
    const struct sim_model *model;
    void *state;
    uint32_t index;
    enum sim_end end;
    uint64_t ended_ms;

    // The coordinator's number of the control stream; 0: no stream.
    coordinator_peer peer;
    uint64_t up_ms; // Delivery time of the last message sent up.
    uint64_t down_ms; // Delivery time of the last message sent down.
    uint64_t hello_ms;
    uint32_t open_timeout_ms;
    char job[LOCKSTEP_JOB_NAME_BYTES];
    bool broken; // True if the control stream is broken: it carries no more messages.
    bool disconnected; // True if the process knows that its stream is broken.

    // Content of the DOWN_GENERATION that the coordinator has sent, and its delivery time.
    uint64_t assigned_number;
    uint32_t assigned_rank;
    uint64_t assigned_ms;

    // Set by DOWN_GENERATION.
    struct generation_id generation;
    uint32_t rank;
    uint32_t world_size;
    bool gone; // True if its links are closed.
    bool left; // True if it left in good order.
    bool gave_up; // True if it has said that it aborts.
    bool agreed; // True if the ranks agreed on the worker's verdict without the coordinator.
    // Delivery time of the last message sent on each link.
    uint64_t data_ms[LOCKSTEP_MAX_NEIGHBOURS];

    uint64_t timer_token;

    // Belongs to sim_check.c: how much of the generation's history this worker has seen.
    void *history;
    uint32_t grants_seen;
    uint32_t plans_seen;
    uint32_t halts_seen;
};

struct sim_event;

struct sim {
    uint64_t seed;
    uint64_t random;
    uint64_t now_ms;
    uint32_t delay_ms; // Delays are drawn from 1 to this.
    bool lossy;
    bool core_dead; // The coordinator has crashed.
    bool forces; // True if the coordinator may grant slots that are given up (zero_defer).

    struct coordinator *core;
    void *memory;
    uint64_t tick_ms; // Time of the scheduled tick of the coordinator; UINT64_MAX: none.
    coordinator_peer next_peer;
    uint64_t steps; // Number of events handled.

    struct sim_worker **workers;
    uint32_t worker_count;

    struct sim_event **heap;
    size_t heap_count;
    size_t heap_capacity;
    uint64_t sequence;
    struct sim_collective *collectives;
    struct sim_history *histories;

    char (*trace)[SIM_TRACE_BYTES];
    uint64_t trace_count;
    uint64_t trace_hash;
    bool trace_off;
};

// The memory of the coordinator core is reused from run to run without being cleared.
void sim_begin(struct sim *sim, uint64_t seed);
void sim_end(struct sim *sim);

uint64_t sim_random(struct sim *sim, uint64_t bound); // Returns a number below bound.
bool sim_chance(struct sim *sim, uint32_t percent);

// Handles events until none is left or limit_ms has come. True: none is left.
bool sim_run(struct sim *sim, uint64_t limit_ms);

// A new process, started after delay_ms.
struct sim_worker *sim_spawn(struct sim *sim, const struct sim_model *model, uint64_t delay_ms);
void sim_crash_at(struct sim_worker *worker, uint64_t at_ms);
void sim_break_at(struct sim_worker *worker, uint64_t at_ms); // Breaks its control stream.
void sim_drain_at(struct sim *sim, uint64_t at_ms);
void sim_core_crash_at(struct sim *sim, uint64_t at_ms);

// ---- For models: what a worker can do --------------------------------------------------------

void sim_connect(struct sim_worker *worker, const struct up_hello *hello);
void sim_send(struct sim_worker *worker, const struct up_message *message);
void sim_timer(struct sim_worker *worker, uint64_t delay_ms); // Replaces an earlier timer.
void sim_data(struct sim_worker *worker, uint32_t rank, const void *bytes, size_t size);
void sim_join(struct sim_worker *worker, const struct sim_key *key, const void *payload,
              size_t size);
// Closes the links at once; the process lives.
void sim_reset(struct sim_worker *worker);
// Closes the links in good order.
void sim_goodbye(struct sim_worker *worker, uint64_t settled);
// Ends the process: its streams and links close. Without a goodbye its peers see lost links.
void sim_exit(struct sim_worker *worker, enum sim_end end);

void sim_trace(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
// Prints the trace, the seed and the formatted text, and fails the test.
void sim_fail(struct sim *sim, const char *format, ...)
    __attribute__((format(printf, 2, 3), noreturn));
// The worker's name: "rank 2 of j", or "worker 5" before the worker has a rank.
const char *sim_name(const struct sim_worker *worker);
const char *sim_end_name(enum sim_end end);

// ---- sim_check.c: the invariants -------------------------------------------------------------

void check_begin(struct sim *sim);
void check_end(struct sim *sim);
// check_up: before the coordinator gets the message. check_sent: when the coordinator has sent it.
void check_up(struct sim_worker *worker, const struct up_message *message);
void check_sent(struct sim_worker *worker, const struct down_message *message);
// Before the model of the worker gets the message.
void check_received(struct sim_worker *worker, const struct down_message *message);
// After the last event.
void check_finished(struct sim *sim);

#endif
