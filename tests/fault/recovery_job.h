// SPDX-License-Identifier: Apache-2.0
//
// For tests of jobs whose survivors go on (config.on_failure continue): real processes on one
// coordinator, of which some are killed by SIGKILL at random instants. A test gives a job its
// trainer. What a rank finds out about its steps goes into shared memory (struct told), and job_run
// checks what all jobs promise: survivors end well, hold equal bits in each step, and no gradient
// of a survivor is missing.
//
// Gradients are whole numbers that are unique for each rank, step and element, so a mean shows
// whose gradients are in it. Ranks are named by their number in the first world, which is their
// hint.

#ifndef LOCKSTEP_TESTS_RECOVERY_JOB_H
#define LOCKSTEP_TESTS_RECOVERY_JOB_H

#include "tests/fault/process_world.h"

#include <lockstep/lockstep.h>
#include <stdatomic.h>
#include <stdint.h>

enum {
    JOB_RANKS = 4,
    JOB_STEPS = 40,
    JOB_STEPS_MAX = 60,
    JOB_TENSORS = 5,
};

extern uint64_t job_elements[JOB_TENSORS];
#define JOB_UNTOUCHED (-7.0f) // A gradient that a rank has not produced.

// What a rank tells the test. Steps count from 1 in this job, also if it was loaded.
struct told {
    _Atomic(uint64_t) begun; // The last step that it has begun.
    _Atomic(uint64_t) ended;
    _Atomic(int) failed; // A status, or 0.
    _Atomic(uint64_t) allowed; // The rank does not begin a later step yet.
    uint64_t dies_at; // The rank kills itself in this step (job_dies_at); 0: never.
    char text[512];
    uint64_t hash[JOB_STEPS_MAX + 1]; // All that a step gives; 0: the rank has not made the step.
    uint32_t missing[JOB_STEPS_MAX + 1]; // Ranks whose gradients are in no element, as a set.
    uint32_t partial[JOB_STEPS_MAX + 1]; // Ranks whose gradients are in some elements only.
    int64_t total; // What a test counts over the whole job.
    uint64_t generation; // Of the last step that was begun.
    uint32_t changed; // Steps whose view says that the world has changed.
    uint64_t slowest_us; // The slowest step_end.
    struct lockstep_change change;
};

struct job;

// A rank, in its own process.
struct job_rank {
    const struct job *job;
    struct told *told;
    uint32_t rank; // In the first world.
    uint32_t size; // Of the first world.
    lockstep_session *session;
    lockstep_module *module;
    float *gradients[JOB_TENSORS];
    uint32_t epoch; // Counts from 0. All ranks count alike.
    uint64_t epoch_step; // Counts from 1 in each epoch.
};

// When the coordinator is killed. It is started again 0.3 s later.
enum job_away {
    JOB_STAYS,
    JOB_AWAY_BEFORE, // Before a rank dies.
    JOB_AWAY_AFTER, // After that, while the others recover or wait for its word.
};

struct job {
    const char *name;
    uint32_t size;
    uint32_t deaths;
    uint32_t steps; // 0: JOB_STEPS.
    uint32_t first_death; // The first step in which a rank is killed; 0: step 1.
    bool tcp; // Else the transport is chosen by itself: shared memory.
    bool registered; // True if gradients are in registered memory, where mates reduce them.
    bool blind; // True if ranks begin steps without a view, and ask lockstep_world_change.
    bool stops; // True if the last rank is stopped while another one dies.
    enum job_away away;
    uint32_t away_us; // With JOB_AWAY_AFTER: how long after the death at least.
    uint16_t port;
    // Chooses ranks that kill themselves, and writes what ranks find in job_own; NULL: nothing.
    void (*prepares)(const struct job *job, uint32_t round);
    // NULL: nothing more is configured.
    void (*configure)(struct lockstep_config *config, struct lockstep_module_config *module);
    void (*registers)(struct job_rank *rank); // NULL: one module of JOB_TENSORS tensors.
    void (*loads)(struct job_rank *rank); // Before lockstep_start; NULL: nothing.
    // Makes a step, from begin to end. hash: of all that it gives, to be extended.
    void (*step)(struct job_rank *rank, uint64_t step, uint64_t *hash);
    void (*ends)(struct job_rank *rank); // After the last step; NULL: nothing.
};

// ---- In a rank ---------------------------------------------------------------------------------

// Ends the process if the status is a failure.
void job_require(struct job_rank *rank, int status, const char *where);
__attribute__((noreturn, format(printf, 2, 3))) void job_fails(struct job_rank *rank,
                                                               const char *format, ...);
// Ends the process, with the step and the library's error text, if `right` is false.
void job_expect(struct job_rank *rank, bool right, const char *what);
// Starts a thread of this process.
void job_thread(struct job_rank *rank, void *(*run)(void *argument), void *argument);
// Gradient of a rank: below 2^12, and such that any two means of ranks with small weights differ.
float job_gradient(uint32_t rank, uint64_t step, uint64_t element);
// True if rank r has data left in this step of the epoch, in a job that runs out of data.
bool job_has_data(const struct job_rank *rank, uint32_t r);
// step_begin, which counts changes of the world. Returns its status: LOCKSTEP_FINISHED ends an
// epoch.
int job_begin(struct job_rank *rank, const struct lockstep_step_options *options,
              struct lockstep_step_view *view);
// One call with all gradients, which are written first.
lockstep_call *job_backward(struct job_rank *rank, uint64_t step);
// Checks a tensor that only rank `user` has used: all of it is a mean over some ranks, or none of
// it was written.
void job_check_of_one(struct job_rank *rank, uint32_t tensor, uint32_t user, uint64_t step);
// step_end; the status is left to the caller.
int job_end(struct job_rank *rank);
// The set of ranks whose mean this element is, or whose sum; UINT32_MAX: there is none. Rank r has
// the weight weights[r]; NULL: all are 1.
uint32_t job_set_of_mean(const struct job_rank *rank, float value, uint64_t step, uint64_t element,
                         const uint64_t *weights);
uint32_t job_set_of_sum(const struct job_rank *rank, float value, uint64_t step, uint64_t element);
// Looks which ranks' gradients are in the means of all tensors, of which rank r has the weight
// weights[r]. An element that is JOB_UNTOUCHED has those of none. Writes `missing` and `partial`,
// and extends the hash.
void job_look(struct job_rank *rank, uint64_t step, const uint64_t *weights, uint64_t *hash);
void job_hash(uint64_t *hash, const void *bytes, size_t count);
// A plain step with all gradients.
void job_step(struct job_rank *rank, uint64_t step, uint64_t *hash);

// ---- In the test -------------------------------------------------------------------------------

// Once, before any job: memory for what ranks tell, with so many bytes of the test's own for each.
void job_memory(size_t own_bytes);
// The test's own memory of a rank, which is cleared before each job.
void *job_own(uint32_t rank);
// In job.prepares: this rank, which may be a victim of the job, kills itself in this step.
void job_dies_at(uint32_t rank, uint64_t step);
void job_seed(void); // Reads LOCKSTEP_TEST_FAULT_SEED, and prints the seed.
// LOCKSTEP_TEST_FAULT_ROUNDS, which counts the jobs of each kind; under a sanitizer a third
// of `otherwise`.
uint32_t job_rounds(uint32_t otherwise);
uint64_t job_random(uint64_t bound);
// Runs the job on a coordinator of its own and checks it. `round` chooses who dies and when.
// arguments: of the coordinator, or NULL. Returns the set of ranks that were killed.
uint32_t job_run(struct job *job, uint32_t round, const char *const *arguments);
// What rank r has told, also if it was killed. Valid until the next job.
const struct told *job_told(uint32_t rank);
int job_teardown(void **state); // Of a test that failed.

#endif
