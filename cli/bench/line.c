// SPDX-License-Identifier: Apache-2.0
//
// Measures the distance of two cores: the time in which a cache line moves from the first core of
// this process to the second one and back. Ranks that share memory pay this time to read each
// other's words. On a virtual machine it changes when the host moves the virtual cores. The result
// is the best of many spells, because disturbances only make a spell slower. Trainer's thread of
// rank 0, or the main thread of `lockstep doctor`.

#include "cli/bench/line.h"

#include "cli/bench/bench.h"
#include "cli/bench/worker.h"

#include "base/thread.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>

#define SPELLS 50
#define ROUNDS 200
#define LINE_BYTES 128 // Two cache lines, because processors fetch lines in pairs.
#define LOOKS 1024 // Reads of the word between two reads of the clock.
// Time for all spells together. A spell that is not done by then is left out.
#define ENOUGH_US 500000.0
#define GIVE_UP_US 5000000.0 // Time for the first spell, without which there is no result.

struct line {
    _Alignas(LINE_BYTES) _Atomic(uint32_t) asked;
    _Alignas(LINE_BYTES) _Atomic(uint32_t) answered;
    _Alignas(LINE_BYTES) _Atomic(bool) over;
    cpu_set_t core; // The core of the thread that answers.
};

static void line_answer(void *argument)
{
    struct line *line = argument;
    (void)sched_setaffinity(0, sizeof(line->core), &line->core);
    while (!atomic_load_explicit(&line->over, memory_order_relaxed)) {
        const uint32_t asked = atomic_load_explicit(&line->asked, memory_order_acquire);
        if (asked != atomic_load_explicit(&line->answered, memory_order_relaxed))
            atomic_store_explicit(&line->answered, asked, memory_order_release);
    }
}

// Returns the time of one spell in microseconds, or NAN if there was no answer before until_us.
static double line_spell_us(struct line *line, double until_us)
{
    const double since_us = bench_now_us();
    for (uint32_t i = 0; i < ROUNDS; i++) {
        const uint32_t asked = atomic_load_explicit(&line->asked, memory_order_relaxed) + 1;
        atomic_store_explicit(&line->asked, asked, memory_order_release);
        for (uint32_t looks = 1;
             atomic_load_explicit(&line->answered, memory_order_acquire) != asked; looks++)
            if (looks % LOOKS == 0 && bench_now_us() > until_us)
                return NAN;
    }
    return bench_now_us() - since_us;
}

static double line_best_ns(struct line *line)
{
    const double since_us = bench_now_us();
    double best_us = NAN;
    for (int i = 0; i < SPELLS; i++) {
        const double us = line_spell_us(line, since_us + (i == 0 ? GIVE_UP_US : ENOUGH_US));
        if (isnan(us))
            break;
        best_us = fmin(best_us, us);
    }
    return best_us * 1000 / ROUNDS;
}

// Finds the first two cores of a set. Returns false if it has fewer.
static bool line_cores(const cpu_set_t *allowed, cpu_set_t cores[2])
{
    int count = 0;
    for (size_t core = 0; core < CPU_SETSIZE && count < 2; core++) {
        if (!CPU_ISSET(core, allowed))
            continue;
        CPU_ZERO(&cores[count]);
        CPU_SET(core, &cores[count++]);
    }
    return count == 2;
}

double bench_limit_line_ns(void)
{
    static struct line line;
    cpu_set_t allowed;
    cpu_set_t cores[2];
    struct thread thread;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0 || !line_cores(&allowed, cores))
        return NAN;
    atomic_store(&line.over, false);
    line.core = cores[1];
    if (thread_start(&thread, "bench-line", line_answer, &line) != 0)
        return NAN;
    (void)sched_setaffinity(0, sizeof(cores[0]), &cores[0]);
    const double best_ns = line_best_ns(&line);
    atomic_store(&line.over, true);
    thread_join(&thread);
    (void)sched_setaffinity(0, sizeof(allowed), &allowed);
    return best_ns;
}
