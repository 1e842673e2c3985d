// SPDX-License-Identifier: Apache-2.0
//
// The coordinator's state of stalls: parts of struct job and struct worker, shared by stall.c,
// beat.c, blame.c, bounds.c, culprit.c, rates.c and the rest of the core. Only the core includes
// this header. The rules are at the head of stall.c, the contract is coordinator.h.

#ifndef COORDINATOR_STALL_H
#define COORDINATOR_STALL_H

#include "coordinator/coordinator.h"
#include "protos/limits.h"
#include "protos/types.h"

#include <stdbool.h>
#include <stdint.h>

struct coordinator;
struct job;
struct worker;
struct text;

enum stall_limit {
    STALL_BOUNDS = 256, // Entries of the table of usual times; half of them are used at most.
    // Length of a turn. Usual times are kept for the present turn and the last one, so the times of
    // a place that no rank visits are forgotten after one to two turns.
    STALL_BOUNDS_TURN_MS = 600000,
    STALL_USUAL_MOST_MS = 3600000, // A longer usual time that a worker reports counts as this.
    STALL_RATE_MS = 1000, // Time between two samples of the step times.
    STALL_LOOK_SAMPLES = 5, // Samples between two looks for stragglers.
    // A straggler's score covers the time since the fifth last look.
    STALL_SCORES = 5,
};

// ---- Part of a worker --------------------------------------------------------------------------

struct beat {
    uint64_t place_ms; // When the worker's place last changed; 0: it has not reported a place.
    // When a mate last reported that the worker's process is stopped; 0: not since the worker's
    // last heartbeat.
    uint64_t stopped_ms;
    bool traced; // True if that mate saw a debugger.
    uint32_t tracer; // Process id of the debugger; 0: not known.
    uint64_t silent_ms; // Time in the present place during which the worker was silent.
    // Bit i: link i of the last heartbeat was also in the heartbeat before it, and received
    // nothing in between.
    uint32_t still;
    // place.waited_us at the last looks for stragglers; look n is at index n % STALL_SCORES.
    uint64_t waited_us[STALL_SCORES];
    uint32_t straggler_permille; // As in struct worker_view.
};

// ---- Parts of a job ----------------------------------------------------------------------------

// How long ranks with one class of device usually stay in one place. Index 0 is the present turn,
// index 1 the last turn.
struct bound_entry {
    uint64_t key; // Hash of device and place; 0: the entry is not in use.
    uint64_t usual_ms[2];
    uint64_t longest_ms[2];
};

struct bounds {
    uint64_t turn_ms; // When the next turn begins.
    uint32_t used; // Number of entries in use.
    struct bound_entry entries[STALL_BOUNDS]; // Open addressing.
};

struct stall_bound {
    uint64_t plain_ms; // A rank that is longer in its place is shown as slow.
    uint64_t bound_ms; // A rank that is longer in its place may be a culprit.
    char why[LOCKSTEP_MARK_BYTES]; // Where bound_ms comes from, for people.
};

// A rank that the others wait for, and why.
struct blame {
    uint32_t rank;
    enum stall_kind kind;
    uint32_t peer; // STALL_LINK: the rank at the other end.
    uint64_t unsent; // STALL_LINK: bytes that the peer's process has not read.
};

// A culprit of the present stall, and its answer to an inspection.
struct culprit {
    struct blame blame;
    uint64_t asked; // Number of the inspection that is not answered yet; 0: none.
    bool answered;
    // Number of the inspection whose answer is arriving or has arrived. All fields below are from
    // this answer.
    uint64_t answer;
    uint32_t threads; // Number of threads described so far.
    uint32_t trainer; // Index of the trainer's thread among them; UINT32_MAX: not seen yet.
    // True if a busy machine may be the reason that the trainer's thread has no frames.
    bool silent;
    uint32_t tid; // Id of the trainer's thread.
    enum stack_awaits awaits; // The kind of thing that the trainer's thread waits for.
    uint32_t owner; // Id of the thread that the trainer's thread waits for.
    char owner_name[LOCKSTEP_THREAD_BYTES];
    bool top_python; // True if `top` is a Python frame.
    // True if `top` is a frame of Python's standard library, and its caller is not known yet.
    bool top_library;
    char top[CULPRIT_TOP_BYTES]; // As in struct culprit_view.
    char phase[LOCKSTEP_NAME_BYTES];
    uint32_t missing_total;
    uint32_t missing_count;
    char missing[LOCKSTEP_MISSING_NAMED][LOCKSTEP_NAME_BYTES];
    char awaited[LOCKSTEP_AWAITED_BYTES];
    uint64_t stream;
};

// The facts that are kept of a stall that is over.
struct stall_past {
    uint64_t number;
    enum stall_kind kind;
    uint64_t step;
    uint64_t began_ms;
    uint64_t ended_ms;
    uint32_t waiting;
    char phase[LOCKSTEP_NAME_BYTES];
    char text[LOCKSTEP_TEXT_BYTES];
    uint32_t culprit_total;
    uint32_t culprit_count;
    struct {
        uint32_t rank;
        uint32_t pid;
        enum stall_kind kind;
        char host[LOCKSTEP_HOST_BYTES];
    } culprits[LOCKSTEP_MAX_CULPRITS];
};

struct stall {
    // Valid for the life of the job.
    uint64_t number; // Number of the last stall.
    uint32_t past_count; // All past stalls; stall n is at past[n % LOCKSTEP_STALLS_KEPT].
    struct stall_past past[LOCKSTEP_STALLS_KEPT];

    // Valid for the life of the generation.
    bool watched; // True if some member has reported its place.
    uint64_t hold_ms; // No stall begins before this time.
    uint64_t looked_ms; // When the core last looked for stalls.
    uint64_t next_ms; // When the core looks for stalls again.
    // The low, as (low_settled, low_position): the lowest place of all members that are not silent.
    uint64_t low_settled;
    uint32_t low_position;
    uint32_t low_silent; // Number of silent members, which do not count for the low.
    uint64_t moved; // Sum of numbers that grow only when the job makes progress.
    uint64_t progress_ms; // When the low or `moved` last grew.
    uint64_t traffic; // Sum of the bytes that all members have sent and received.
    uint64_t traffic_ms; // When `traffic` last grew.
    // When the waits of the members last had an explanation: some member was in the way, silent, or
    // had not reported its place; or no member waited.
    uint64_t excused_ms;
    struct bounds bounds;

    // The present stall.
    bool active;
    bool announced; // True if the stall has a number, and is in the log and the views.
    uint64_t announce_ms; // When the stall is announced at the latest, with or without answers.
    enum stall_kind kind;
    uint64_t step;
    uint64_t began_ms;
    uint32_t waiting; // Number of members that wait for the culprits.
    char text[LOCKSTEP_TEXT_BYTES]; // The sentence that was announced last.
    uint32_t culprit_total;
    uint32_t culprit_count;
    struct culprit culprits[LOCKSTEP_MAX_CULPRITS];
};

struct rate_sample {
    uint64_t at_ms;
    uint64_t bytes_per_s; // Bytes that all members sent together, per second.
    uint32_t steps; // Steps that a member finished, on average.
    uint32_t step_us; // Mean time of a step.
    uint32_t exposed_us; // The part of step_us in which the trainer waited in lockstep_step_end.
    uint32_t hidden_us; // Time before lockstep_step_end in which gradients were in flight.
};

struct rates {
    uint64_t next_ms; // When the present sample ends; 0: not set, or no sample has begun.
    // When the present sample began; 0: none has. The first one of a generation begins when the
    // world forms, and only the history has it.
    uint64_t from_ms;
    bool ended; // True if the last sample has ended, with the generation.
    // Sums over all members at that time, or at the last heartbeat after the end.
    uint64_t steps;
    uint64_t exposed_us;
    uint64_t hidden_us;
    uint64_t bytes;
    uint64_t median_step; // The step that the median member has opened.
    uint32_t until_look; // Samples until the next look for stragglers.
    uint32_t looks; // All looks so far; look n is at index n % STALL_SCORES.
    uint64_t scored_ms[STALL_SCORES]; // Times of the last looks.
    uint64_t scored_steps[STALL_SCORES]; // Sums of steps at the last looks.
    uint32_t count; // All samples so far; sample n is at samples[n % LOCKSTEP_RATE_SAMPLES].
    struct rate_sample samples[LOCKSTEP_RATE_SAMPLES];
};

// ---- stall.c -----------------------------------------------------------------------------------

// Called when a job is created: forgets its past stalls and its log.
void stall_init(struct job *job);
// Called when a generation forms: no stall is active, nothing is known of its members.
void stall_reset(struct job *job);

// Called after a heartbeat of a member was stored. last: the member's heartbeat before it.
void stall_heartbeat(struct coordinator *core, struct worker *worker,
                     const struct up_heartbeat *last);
// Looks for stalls if stall_deadline has passed.
void stall_tick(struct coordinator *core, struct job *job);
// A user asked for an inspection of a rank of the named job. what: bits of enum inspect.
void stall_asked(struct coordinator *core, const char *name, uint32_t rank, uint32_t what);
// A member sent a part of its answer to an inspection.
void stall_answer(struct coordinator *core, struct worker *worker, const struct up_answer *answer);
uint64_t stall_deadline(const struct job *job); // When stall_tick is due; UINT64_MAX: never.

// ---- beat.c ------------------------------------------------------------------------------------

// The steps that a silent rank may be in, from its last heartbeat and those of the other ranks.
struct beat_steps {
    uint64_t least;
    uint64_t most;
};

// ---- blame.c -----------------------------------------------------------------------------------

// The state of a job when the core looks for stalls. The terms are those of stall.c.
struct picture {
    uint32_t unknown; // Members that have not reported their place.
    uint32_t waiting; // Members that wait and are not silent.
    uint32_t busy; // Members that do not wait, are not silent, and are within their bound.
    // Members that are idle at the low, not silent, and perhaps in the way: some rank may wait for
    // them, or no rank waits.
    uint32_t idle;
    uint32_t silent; // Members that are frozen or stopped.
    uint32_t streams; // Members whose device waits for a stream of the trainer.
    bool any; // True if settled and position are valid.
    uint64_t settled; // With `position`: the low.
    uint32_t position;
    uint64_t moved; // Grows whenever a rank settles a step or completes a plain collective.
    uint64_t traffic; // Sum of the bytes that all members have sent and received.
    // The waits of waiting members, each once, and the ranks that further waits need.
    const struct await *awaits[LOCKSTEP_MAX_AWAITED];
    uint32_t await_count;
    uint64_t others[LOCKSTEP_RANK_WORDS];
    bool fresh; // True if a member has waited too short a time to say what it waits for.
};

// The ranks that the others wait for: their number, and the first `count` of them.
struct found {
    uint32_t total;
    uint32_t count;
    struct blame blames[LOCKSTEP_MAX_CULPRITS];
};

#endif
