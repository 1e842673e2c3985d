// SPDX-License-Identifier: Apache-2.0
//
// The coordinator's knowledge of stalls: parts of struct job and struct worker, shared by stall.c,
// beat.c, blame.c, bounds.c, culprit.c, rates.c and the rest of the core. Only the core includes
// it. The rules are at the head of stall.c, the contract is coordinator.h.

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
struct sentence;

enum stall_limit {
    STALL_BOUNDS = 256, // Places of a job whose usual times are remembered.
    STALL_BOUNDS_TURN_MS = 600000, // A place not seen for one to two turns is forgotten.
    STALL_USUAL_MOST_MS = 3600000, // Nothing that a worker calls usual counts as more.
    STALL_RATE_MS = 1000, // Time between two samples of the step times.
    STALL_LOOK_SAMPLES = 5, // Samples between two looks for stragglers.
    STALL_SCORES = 5, // Looks that a score reaches back: it is true after one more.
};

// ---- Part of a worker --------------------------------------------------------------------------

struct beat {
    uint64_t place_ms; // When its place was reported first.
    uint64_t stopped_ms; // When a mate said last that it is stopped; 0: it was heard of since.
    bool traced; // True if that mate saw a debugger.
    uint32_t tracer; // The process of the debugger; 0: not known.
    uint64_t silent_ms; // Time in this place during which it was silent.
    uint32_t still; // Bits, by index of its heartbeat's links: this one was still before, too.
    uint64_t waited_us[STALL_SCORES]; // place.waited_us at the last looks, by their number modulo.
    uint32_t straggler_permille;
};

// ---- Parts of a job ----------------------------------------------------------------------------

// How long ranks of one class of device usually are in one place. Of two turns: this one, the last.
struct bound_entry {
    uint64_t key; // 0: not in use.
    uint64_t usual_ms[2];
    uint64_t longest_ms[2];
};

struct bounds {
    uint64_t turn_ms; // When the next turn begins.
    uint32_t used;
    struct bound_entry entries[STALL_BOUNDS]; // Open addressing.
};

struct stall_bound {
    uint64_t plain_ms; // Time in its place from which it is slow.
    uint64_t bound_ms; // Time in its place from which it is stalled.
    char why[LOCKSTEP_MARK_BYTES];
};

// A rank in the way, and why.
struct blame {
    uint32_t rank;
    enum stall_kind kind;
    uint32_t peer; // STALL_LINK: the rank at the other end.
    uint64_t unsent; // STALL_LINK: bytes on their way to the peer.
};

// The same, and what it answered.
struct culprit {
    struct blame blame;
    uint64_t asked; // Number of the question that is not answered yet; 0: none.
    bool answered;
    uint64_t answer; // Number of the answer that is arriving, or has arrived; the rest is of it.
    uint32_t threads; // Threads described so far.
    uint32_t trainer; // Index of the trainer's thread among them; UINT32_MAX: not seen.
    bool silent; // That thread did not say in time where it is.
    enum stack_awaits awaits; // The thing that the trainer's thread waits for.
    uint32_t owner; // The thread that has this thing.
    char owner_name[LOCKSTEP_THREAD_BYTES];
    bool top_python;
    bool top_library; // True if top is of Python's own library, and its caller is not known yet.
    char top[CULPRIT_TOP_BYTES];
    char phase[LOCKSTEP_NAME_BYTES];
    uint32_t missing_total;
    uint32_t missing_count;
    char missing[LOCKSTEP_MISSING_NAMED][LOCKSTEP_NAME_BYTES];
    char awaited[LOCKSTEP_AWAITED_BYTES];
    uint64_t stream;
};

// A stall that is over, as far as it is kept.
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
    // For the life of the job.
    uint64_t number; // Number of the last stall.
    uint32_t past_count; // Ever; the last LOCKSTEP_STALLS_KEPT are kept, by count modulo that.
    struct stall_past past[LOCKSTEP_STALLS_KEPT];

    // For the life of the generation.
    bool watched; // Some member has said where it is.
    uint64_t hold_ms; // No verdict begins before.
    uint64_t looked_ms;
    uint64_t next_ms; // When to look again.
    uint64_t low_settled; // The low: the least place of all members that are not silent.
    uint32_t low_position;
    uint32_t low_silent; // Silent members, which do not count for the low.
    uint64_t moved; // Sum of numbers that grow only when the job moves.
    uint64_t progress_ms; // When the low or moved last grew.
    uint64_t traffic; // Sum of bytes sent and received.
    uint64_t traffic_ms;
    uint64_t excused_ms; // When somebody last was in the way, silent, or not heard of.
    struct bounds bounds;

    // The present stall.
    bool active;
    bool announced; // True if it has a number and people were told.
    uint64_t announce_ms; // When it is told at the latest, with or without answers.
    enum stall_kind kind;
    uint64_t step;
    uint64_t began_ms;
    uint32_t waiting;
    char text[LOCKSTEP_TEXT_BYTES]; // As people were told.
    uint32_t culprit_total;
    uint32_t culprit_count;
    struct culprit culprits[LOCKSTEP_MAX_CULPRITS];
};

struct rate_sample {
    uint64_t at_ms;
    uint64_t bytes_per_s; // Bytes that all members sent.
    uint32_t steps; // Steps that a member finished, on average.
    uint32_t step_us; // Time of each of these steps.
    uint32_t exposed_us; // The part of step_us that was waited at the end of the step.
    uint32_t hidden_us; // Time before the end of the step with gradients on their way.
};

struct rates {
    uint64_t next_ms; // When the next sample is due; 0: the first one.
    uint64_t from_ms; // Beginning of the present sample.
    uint64_t steps; // Sums over the members then.
    uint64_t exposed_us;
    uint64_t hidden_us;
    uint64_t bytes;
    uint64_t median_step; // The step that the median member has opened.
    uint32_t until_look; // Samples until stragglers are looked for.
    uint32_t looks; // Looks ever; kept by their number modulo STALL_SCORES.
    uint64_t scored_ms[STALL_SCORES]; // Times of the last looks.
    uint64_t scored_steps[STALL_SCORES]; // Sums of steps at the last looks.
    uint32_t count; // Samples ever; kept by count modulo LOCKSTEP_RATE_SAMPLES.
    struct rate_sample samples[LOCKSTEP_RATE_SAMPLES];
};

// ---- stall.c -----------------------------------------------------------------------------------

// A job is created; a generation forms; a generation is over, or the job moves on.
void stall_init(struct job *job);
void stall_reset(struct job *job);

// A heartbeat of a member was stored, and before it `last` was.
void stall_heartbeat(struct coordinator *core, struct worker *worker,
                     const struct up_heartbeat *last);
// Looks for standstills, when that is due.
void stall_tick(struct coordinator *core, struct job *job);
// The operator asks a rank of the named job where it is.
void stall_asked(struct coordinator *core, const char *name, uint32_t rank, uint32_t what);
// Part of an answer of a member to a question.
void stall_answer(struct coordinator *core, struct worker *worker, const struct up_answer *answer);
uint64_t stall_deadline(const struct job *job); // UINT64_MAX: never.

// ---- beat.c ------------------------------------------------------------------------------------

// The steps that a silent rank may be in, as its own last word and the other ranks prove.
struct beat_steps {
    uint64_t least;
    uint64_t most;
};

// ---- blame.c -----------------------------------------------------------------------------------

// The state of a job in one look.
struct picture {
    uint32_t unknown; // Members that have not said where they are.
    uint32_t waiting; // Members that wait and are heard of.
    uint32_t busy; // Members that neither wait, nor are silent, nor at the end of their bound.
    uint32_t idle; // Members at the low that are not silent.
    uint32_t silent;
    uint32_t streams; // Members whose device waits for a stream of the trainer.
    bool any;
    uint64_t settled; // The low.
    uint32_t position;
    uint64_t moved; // Grows whenever a rank settles a step or completes a plain collective.
    uint64_t traffic;
};

struct found {
    uint32_t total;
    uint32_t count;
    struct blame blames[LOCKSTEP_MAX_CULPRITS];
};

#endif
