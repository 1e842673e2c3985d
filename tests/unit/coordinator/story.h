// SPDX-License-Identifier: Apache-2.0
//
// A coordinator core with scripted workers, and a readable trace of its inputs and outputs, which
// tests assert. A worker is the number of its stream. Single-threaded; time is simulated.
//
//     story_join(&story, 1, "a");
//     story_expect(&story, "1 > hello job j world 2 host a\n"
//                          "1 < welcome\n");

#ifndef TESTS_UNIT_COORDINATOR_STORY_H
#define TESTS_UNIT_COORDINATOR_STORY_H

#include "coordinator/coordinator.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    STORY_PEERS = 8192,
    STORY_LAST = 256,
    STORY_INCARNATION = 0xc0,
    STORY_TRACE_BYTES = 256 * 1024
};

struct story {
    void *memory;
    struct coordinator *core;
    uint64_t now_ms;
    bool logging; // True if log lines are part of the trace.
    bool quiet; // True if no trace is kept, for large worlds.
    bool zero_defer; // The order policy that the ranks send in their start message.
    char *trace;
    size_t used;
    uint32_t secrets;

    // State of each stream, by number.
    bool known[STORY_PEERS]; // True if the worker has sent something and its stream is open.
    bool closed[STORY_PEERS]; // True if the core closed it.
    struct generation_id generation[STORY_PEERS];
    uint32_t rank[STORY_PEERS];
    uint32_t received[STORY_PEERS];
    uint8_t secret[STORY_PEERS][LOCKSTEP_SECRET_BYTES];
    struct down_message last[STORY_LAST]; // The last message, by stream modulo STORY_LAST.
};

void story_begin(struct story *story);
// The same with a coordinator of this incarnation; story_begin has STORY_INCARNATION.
void story_begin_as(struct story *story, uint64_t incarnation);
void story_end(struct story *story);
// The cmocka setup of a test whose state is the story.
int story_setup(void **state);
int story_teardown(void **state);

// Asserts that the trace since the last assertion is exactly this text.
void story_expect(struct story *story, const char *trace);
// Asserts that the trace contains a piece of text, and clears the trace.
void story_expect_piece(struct story *story, const char *piece);
void story_forget(struct story *story);

// ---- Facts -----------------------------------------------------------------------------------

struct up_hello story_hello(const char *job, uint32_t world, const char *host);
void story_say_hello(struct story *story, uint32_t peer, const struct up_hello *hello);
// A worker joins job "j" of two workers.
void story_join(struct story *story, uint32_t peer, const char *host);
// Streams 1..n of job "j" on hosts h1..hn form a world; the trace is cleared.
void story_form(struct story *story, uint32_t world);
// The same as story_form; then all workers start with equal manifests.
void story_run(struct story *story, uint32_t world);
// The same two for a job whose ranks go on after a loss.
void story_form_on(struct story *story, uint32_t world);
void story_run_on(struct story *story, uint32_t world);

// A worker sends a message, in the generation that its stream was given.
void story_say(struct story *story, uint32_t peer, struct up_message *message);
// A worker reports that its links are connected.
void story_links(struct story *story, uint32_t peer, const struct up_links *links);
void story_start(struct story *story, uint32_t peer, uint64_t hash, uint32_t items, uint32_t root);
void story_ready(struct story *story, uint32_t peer, uint64_t step, struct slot_id slot);
// A worker says again that the slot is granted. The slot has the given place in the order of
// grants, and the worker has `grants` grants of the step.
void story_granted(struct story *story, uint32_t peer, uint64_t step, struct slot_id slot,
                   uint32_t place, uint32_t grants, bool unmade);
void story_wait(struct story *story, uint32_t peer, uint64_t step, struct slot_id slot);
// A worker sends two messages: its part of the slot is ready, and it waits for the result.
void story_await(struct story *story, uint32_t peer, uint64_t step, struct slot_id slot);
void story_step_end(struct story *story, uint32_t peer, uint64_t step);
void story_layout(struct story *story, uint32_t peer, uint32_t module, const uint32_t *words,
                  uint32_t count);
void story_fail(struct story *story, uint32_t peer, uint64_t step, enum halt_kind kind,
                const char *text);
void story_lost(struct story *story, uint32_t peer, uint32_t rank, uint64_t step, bool left);
void story_leave(struct story *story, uint32_t peer, uint64_t settled);
// A worker's process ends.
void story_close(struct story *story, uint32_t peer, const char *text);
// The stream of a worker ends; its process may be alive.
void story_cut(struct story *story, uint32_t peer);
// The data port of a worker was probed.
void story_probed(struct story *story, uint32_t peer, bool reached, bool refused);
void story_drain(struct story *story);
// A worker of the job has ended and never said hello.
void story_absent(struct story *story, const char *job, const char *text);
void story_stopping(struct story *story, const char *signal_name); // The user stops all jobs.
// A client asks where a rank is.
void story_ask(struct story *story, const char *job, uint32_t rank, uint32_t what);
// Time passes; ticks come when they are due.
void story_sleep(struct story *story, uint64_t ms);

struct job_view story_job(const struct story *story, uint32_t index);
struct worker_view story_worker(const struct story *story, uint32_t job, uint32_t index);

static inline struct slot_id slot(uint32_t module, uint32_t call, uint32_t bucket)
{
    struct slot_id id = {module, call, bucket};
    return id;
}

#endif
