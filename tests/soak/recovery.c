// SPDX-License-Identifier: Apache-2.0
//
// A soak of recovery (make recovery-soak): one job of five ranks after the other, real processes on
// one coordinator. Ranks are killed at random instants until one or two are left, about one in ten
// steps. Ranks and the coordinator are stopped for a while, and the coordinator is killed and
// started again. Every step of every survivor has to end with OK, and its results have to be the
// exact weighted means over sets that contain every survivor, with equal bits.
//
//     recovery [--seconds S] [--seed N] [--job N] [--jobs M] [--hold] [--ranks N]
//              [--one-death | --one-death-of-both]
//
// --one-death: in each job one rank is killed, and nothing else happens. --one-death-of-both: a
// rank and the coordinator, within some milliseconds. --ranks: in place of five. What happens in a
// job, and at which step, depends on the seed and the job's number only. --job N: job N alone, or
// with --jobs M the M jobs from N on, again and again until the time is over; once if S is 0.
// --hold: after a failure everything stays as it is, for a debugger. A line of JSON is printed
// every minute and at the end. Ends with code 0 if nothing failed.

#include "base/clock.h"
#include "tests/fault/process_world.h"
#include "tests/soak/ranks.h"
#include "tests/support/choice.h"

#include <inttypes.h>
#include <lockstep/lockstep.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    EVENTS_MAX = 24,
    GAP = 15, // The most steps between two events.
    TAIL = 20, // Steps after the last event.
    HANG_MS = 60000, // A rank that makes no step for so long hangs.
    LATENCIES_MAX = 1 << 20,
    SAY_MS = 60000,
    SLOW_US = 1000000, // A recovery that takes longer is described.
    SLOW_BESIDE_US = 5000000, // The same, if something was stopped or away meanwhile.
};

enum kind {
    KILL,
    KILL_TWO, // At once.
    KILL_SOON, // A second one while the others recover.
    KILL_STOPPED, // A rank that is stopped.
    KILL_BESIDE, // Another rank is stopped meanwhile.
    KILL_BOTH, // A rank and the coordinator, in the same millisecond.
    PAUSE,
    COORDINATOR_KILL,
    COORDINATOR_PAUSE,
    KINDS
};

static const char *const kind_names[KINDS] = {
    "kill",      "kill two", "kill soon",        "kill stopped",     "kill beside",
    "kill both", "pause",    "coordinator kill", "coordinator pause"};
static const uint32_t shares[KINDS] = {50, 6, 8, 6, 8, 5, 10, 5, 2}; // Of a hundred.

struct event {
    enum kind kind;
    uint64_t step;
    uint32_t victim;
    uint32_t other; // The second victim, or the one that is stopped.
    uint64_t delay_us; // After the victim has begun the step.
    uint64_t rest_us; // How long something is stopped, or away, or until the second death.
    // When it happened:
    uint64_t at_us; // 0: it did not.
    uint32_t left; // Ranks that are left after it.
};

// Times from a death to the end of the step that the survivors finished, by what was beside it.
enum beside {
    BESIDE_NOTHING,
    BESIDE_PAUSE,
    BESIDE_COORDINATOR,
    BESIDES
};

static struct {
    uint64_t jobs, steps, kills, pauses, coordinator_kills, failures;
    uint64_t slowest_us; // The longest lockstep_step_end.
    uint32_t *latencies[BESIDES];
    uint32_t latency_count[BESIDES];
} total;

static struct {
    struct told *told; // Of each member.
    struct event events[EVENTS_MAX];
    uint32_t event_count;
    struct rank_job job;
    pid_t pids[MEMBERS]; // 0: it has ended.
    uint32_t alive; // A set of members.
} run;

static struct coordinator_process coordinator;
static char address[64];
static volatile sig_atomic_t enough;
static enum kind only = KINDS; // If it is set: what happens, once in each job.

static void on_signal(int number)
{
    (void)number;
    enough = 1;
}

// ---- The plan of a job --------------------------------------------------------------------------

static uint32_t draw_member(uint64_t *random, uint32_t set)
{
    for (uint32_t n = (uint32_t)(choice_random(random) % (uint32_t)__builtin_popcount(set));; n--) {
        const uint32_t member = (uint32_t)__builtin_ctz(set);
        if (n == 0)
            return member;
        set &= ~(1u << member);
    }
}

static uint32_t deaths_of(enum kind kind)
{
    return kind == KILL_TWO || kind == KILL_SOON ? 2 : kind < PAUSE ? 1 : 0;
}

static enum kind draw_kind(uint64_t *random, uint32_t count)
{
    uint32_t share = (uint32_t)(choice_random(random) % 100);
    uint32_t kind = KILL;
    while (share >= shares[kind])
        share -= shares[kind++];
    return count > deaths_of((enum kind)kind) ? (enum kind)kind : KILL;
}

static void plan(uint64_t seed, uint64_t number)
{
    uint64_t random = seed * 1000003 + number;
    const uint32_t left = 1 + (uint32_t)(choice_random(&random) % 2);
    uint32_t alive = (1u << run.job.members) - 1;
    uint64_t step = 0;
    run.job.way = (enum exchange)(number % WAYS);
    run.job.coordinator = address;
    run.job.seed = choice_random(&random);
    for (run.event_count = 0; run.event_count < EVENTS_MAX; run.event_count++) {
        struct event *event = &run.events[run.event_count];
        const uint32_t count = (uint32_t)__builtin_popcount(alive);
        step += 1 + choice_random(&random) % GAP;
        if (count <= left || step + TAIL > STEPS_MAX || (only != KINDS && run.event_count == 1))
            break;
        *event =
            (struct event){.kind = only != KINDS ? only : draw_kind(&random, count), .step = step};
        if ((event->kind == KILL_BOTH || event->kind == COORDINATOR_KILL) && step < 3)
            event->step = step = 3; // The learning step is over on all ranks.
        event->victim = draw_member(&random, alive);
        event->other = count > 1 ? draw_member(&random, alive & ~(1u << event->victim)) : 0;
        event->delay_us = choice_random(&random) % 6000;
        event->rest_us = choice_random(&random) % (event->kind == KILL_SOON ? 20000 : 400000);
        if (event->kind == PAUSE && choice_random(&random) % 16 == 0)
            event->rest_us = 3000000;
        if (deaths_of(event->kind) > 0)
            alive &= ~(1u << event->victim);
        if (deaths_of(event->kind) > 1)
            alive &= ~(1u << event->other);
    }
    run.job.steps = (run.event_count > 0 ? run.events[run.event_count - 1].step : 0) + TAIL;
}

static void describe(uint64_t seed, uint64_t number)
{
    printf("  --seed %" PRIu64 " --job %" PRIu64 ", way %d, %" PRIu64 " steps, coordinator %d\n",
           seed, number, (int)run.job.way, run.job.steps, (int)coordinator.pid);
    for (uint32_t i = 0; i < run.event_count; i++) {
        const struct event *event = &run.events[i];
        printf("  step %" PRIu64 " + %" PRIu64 " us: %s, victim %u, other %u, rest %" PRIu64
               " us%s\n",
               event->step, event->delay_us, kind_names[event->kind], event->victim, event->other,
               event->rest_us, event->at_us == 0 ? " (not reached)" : "");
    }
    for (uint32_t member = 0; member < run.job.members; member++)
        printf("  member %u: pid %d, begun %" PRIu64 ", failed %d %s\n", member,
               (int)run.pids[member], atomic_load(&run.told[member].begun),
               atomic_load(&run.told[member].failed), run.told[member].text);
}

// ---- What happens -------------------------------------------------------------------------------

static void kill_member(uint32_t member)
{
    int status;
    kill(run.pids[member], SIGKILL);
    run.alive &= ~(1u << member);
    total.kills++;
    process_reap(run.pids[member], WAIT_MS, &status);
    run.pids[member] = 0;
}

// Kills the coordinator, and `victim` right before or after it unless that is MEMBERS. Another one
// comes at the same address.
static void kill_coordinator(uint32_t victim, uint64_t rest_us, bool rank_first)
{
    const pid_t pid = coordinator.pid;
    if (victim < MEMBERS) {
        if (rank_first)
            kill(run.pids[victim], SIGKILL);
        if (rank_first && rest_us % 3 != 0)
            pause_us(rest_us % 6000); // The others recover.
        kill(pid, SIGKILL);
        kill_member(victim);
    } else {
        kill(pid, SIGKILL);
    }
    coordinator_wait(&coordinator);
    total.coordinator_kills++;
    pause_us(rest_us);
    coordinator_start(&coordinator, NULL);
}

static void stop_for(pid_t pid, uint64_t us)
{
    kill(pid, SIGSTOP);
    pause_us(us);
    kill(pid, SIGCONT);
    total.pauses++;
}

static void happen(struct event *event)
{
    event->at_us = clock_now_us();
    switch (event->kind) {
    case KILL_TWO:
        kill(run.pids[event->other], SIGKILL);
        kill_member(event->victim);
        kill_member(event->other);
        break;
    case KILL_SOON:
        kill_member(event->victim);
        pause_us(event->rest_us);
        event->at_us = clock_now_us();
        kill_member(event->other);
        break;
    case KILL_STOPPED:
        kill(run.pids[event->victim], SIGSTOP);
        pause_us(event->rest_us);
        event->at_us = clock_now_us();
        kill_member(event->victim);
        break;
    case KILL_BESIDE:
        kill(run.pids[event->other], SIGSTOP);
        pause_us(event->delay_us);
        kill_member(event->victim);
        stop_for(run.pids[event->other], event->rest_us);
        event->at_us = clock_now_us();
        break;
    case KILL_BOTH:
        kill_coordinator(event->victim, event->rest_us, event->rest_us % 2 == 0);
        break;
    case PAUSE:
        stop_for(run.pids[event->victim], event->rest_us);
        break;
    case COORDINATOR_KILL:
        kill_coordinator(MEMBERS, event->rest_us, false);
        break;
    case COORDINATOR_PAUSE:
        stop_for(coordinator.pid, event->rest_us);
        break;
    case KILL:
    case KINDS:
        kill_member(event->victim);
    }
    event->left = (uint32_t)__builtin_popcount(run.alive);
}

// ---- What is found ------------------------------------------------------------------------------

// The rest of a step that one of its ranks has ended: every rank that has ended it has the same
// results, which hold the gradients of all of these ranks.
static const char *look_at_step(uint64_t step)
{
    const struct told_step *first = NULL;
    uint32_t ended = 0;
    for (uint32_t member = 0; member < MEMBERS; member++)
        if (run.told[member].steps[step].ended_us != 0)
            ended |= 1u << member;
    for (uint32_t member = 0; member < MEMBERS; member++) {
        const struct told_step *said = &run.told[member].steps[step];
        if ((ended >> member & 1) == 0)
            continue;
        first = first ? first : said;
        if (said->hash != first->hash)
            return "survivors have other bits";
        if ((ended & ~said->everywhere) != 0)
            return "an element lacks a survivor's gradient";
        if (said->took_us > total.slowest_us)
            total.slowest_us = said->took_us;
    }
    return (run.alive & ~ended) != 0 ? "a survivor has not ended a step" : NULL;
}

static const char *look(void)
{
    for (uint64_t step = 1; step <= run.job.steps; step++) {
        const char *wrong = look_at_step(step);
        if (wrong) {
            printf("step %" PRIu64 ": ", step);
            return wrong;
        }
    }
    // A rank that dies at the end of a step may be in the view with which the next one begins.
    for (uint32_t member = 0; member < MEMBERS; member++)
        if ((run.alive >> member & 1) == 0 &&
            atomic_load(&run.told[member].begun) + 1 >= run.job.steps)
            return NULL;
    for (uint32_t member = 0; member < MEMBERS; member++)
        if ((run.alive >> member & 1) != 0 && run.told[member].steps[run.job.steps].world_size !=
                                                  (uint32_t)__builtin_popcount(run.alive))
            return "a survivor's world has another size";
    return NULL;
}

// When the last survivor has ended the first step in a world of so few ranks.
static uint64_t ended_with_us(uint32_t left)
{
    uint64_t last_us = 0;
    for (uint32_t member = 0; member < MEMBERS; member++) {
        const struct told_step *steps = run.told[member].steps;
        uint64_t step = 2;
        if ((run.alive >> member & 1) == 0)
            continue;
        while (step <= run.job.steps && steps[step].world_size > left)
            step++;
        if (steps[step - 1].ended_us > last_us)
            last_us = steps[step - 1].ended_us;
    }
    return last_us;
}

// What was beside a death: also what happened before the survivors had finished their step.
static enum beside beside_of(const struct event *event, uint64_t until_us)
{
    enum beside beside = event->kind == KILL_BESIDE ? BESIDE_PAUSE : BESIDE_NOTHING;
    for (; event < &run.events[run.event_count] && event->at_us < until_us; event++) {
        if (event->kind == KILL_BOTH || event->kind >= COORDINATOR_KILL)
            return BESIDE_COORDINATOR;
        if (event->kind == PAUSE)
            beside = BESIDE_PAUSE;
    }
    return beside;
}

// Adds the time from each death to the end of the step that the last survivor finished after it.
static void add_latencies(uint64_t seed, uint64_t number)
{
    for (uint32_t i = 0; i < run.event_count; i++) {
        const struct event *event = &run.events[i];
        const uint64_t last_us = deaths_of(event->kind) > 0 ? ended_with_us(event->left) : 0;
        if (last_us <= event->at_us)
            continue;
        const enum beside beside = beside_of(event, last_us);
        const uint32_t took_us = (uint32_t)(last_us - event->at_us);
        if (total.latency_count[beside] < LATENCIES_MAX)
            total.latencies[beside][total.latency_count[beside]++] = took_us;
        if (took_us < (beside == BESIDE_NOTHING ? SLOW_US : SLOW_BESIDE_US))
            continue;
        printf("slow: %u ms after event %u\n", took_us / 1000, i);
        describe(seed, number);
    }
}

// ---- A job --------------------------------------------------------------------------------------

static bool await_step(uint32_t member, uint64_t step)
{
    const uint64_t deadline = clock_now_ms() + HANG_MS;
    while (atomic_load(&run.told[member].begun) < step) {
        if (clock_now_ms() > deadline || atomic_load(&run.told[member].failed) != 0)
            return false;
        pause_us(200);
    }
    return true;
}

static const char *play(void)
{
    const char *wrong = NULL;
    memset(run.told, 0, MEMBERS * sizeof(*run.told));
    run.alive = (1u << run.job.members) - 1;
    for (uint32_t member = 0; member < run.job.members; member++) {
        run.pids[member] = process_fork();
        if (run.pids[member] == 0)
            rank_train(&run.told[member], &run.job, member);
    }
    // A death while others are in lockstep_start is the end of those.
    for (uint32_t member = 0; member < run.job.members && !wrong; member++)
        if (!await_step(member, 1))
            wrong = "a rank does not start";
    for (uint32_t i = 0; i < run.event_count && !wrong; i++) {
        struct event *event = &run.events[i];
        if (!await_step(event->victim, event->step))
            wrong = "a rank does not come to its step";
        pause_us(event->delay_us);
        if (!wrong)
            happen(event);
    }
    for (uint32_t member = 0; member < MEMBERS; member++) {
        int status = 0;
        if (run.pids[member] == 0)
            continue;
        if (!process_reap(run.pids[member], wrong ? 2000 : HANG_MS, &status))
            wrong = wrong ? wrong : "a rank does not end";
        else
            run.pids[member] = 0;
        if (status != 0)
            wrong = wrong ? wrong : "a rank ends with an error";
    }
    return wrong ? wrong : look();
}

static void one_job(uint64_t seed, uint64_t number, bool hold)
{
    plan(seed, number);
    const char *wrong = play();
    total.jobs++;
    for (uint32_t member = 0; member < MEMBERS; member++)
        total.steps +=
            member == (uint32_t)__builtin_ctz(run.alive) ? atomic_load(&run.told[member].begun) : 0;
    if (!wrong) {
        add_latencies(seed, number);
    } else {
        total.failures++;
        printf("FAILED: %s\n", wrong);
        describe(seed, number);
        fflush(stdout);
        while (hold && !enough)
            pause_us(1000000);
    }
    for (uint32_t member = 0; member < MEMBERS; member++) {
        int status;
        if (run.pids[member] == 0)
            continue;
        kill(run.pids[member], SIGKILL);
        process_reap(run.pids[member], WAIT_MS, &status);
    }
}

// ---- The soak -----------------------------------------------------------------------------------

static int compare(const void *a, const void *b)
{
    const uint32_t one = *(const uint32_t *)a;
    const uint32_t other = *(const uint32_t *)b;
    return (one > other) - (one < other);
}

static void say_latencies(const char *name, enum beside beside)
{
    uint32_t *values = total.latencies[beside];
    const uint32_t count = total.latency_count[beside];
    qsort(values, count, sizeof(*values), compare);
    const double last = count > 0 ? count - 1 : 0;
    printf(
        ", \"%s\": {\"count\": %u, \"median\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"max\": %.1f}",
        name, count, values[(uint32_t)(last * 0.5)] / 1e3, values[(uint32_t)(last * 0.9)] / 1e3,
        values[(uint32_t)(last * 0.99)] / 1e3, values[(uint32_t)last] / 1e3);
}

// Resident memory of the coordinator, in MiB.
static double coordinator_mib(void)
{
    char path[64];
    long pages = 0;
    snprintf(path, sizeof(path), "/proc/%d/statm", (int)coordinator.pid);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%*d %ld", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

static void say(uint64_t seed, uint64_t since_ms)
{
    printf("{\"seed\": %" PRIu64 ", \"seconds\": %" PRIu64 ", \"jobs\": %" PRIu64
           ", \"steps\": %" PRIu64 ", \"kills\": %" PRIu64 ", \"pauses\": %" PRIu64
           ", \"coordinator_kills\": %" PRIu64 ", \"failures\": %" PRIu64
           ", \"coordinator_mib\": %.1f, \"slowest_step_end_ms\": %.1f",
           seed, (clock_now_ms() - since_ms) / 1000, total.jobs, total.steps, total.kills,
           total.pauses, total.coordinator_kills, total.failures, coordinator_mib(),
           (double)total.slowest_us / 1e3);
    say_latencies("recovery_ms", BESIDE_NOTHING);
    say_latencies("recovery_beside_a_pause_ms", BESIDE_PAUSE);
    say_latencies("recovery_without_coordinator_ms", BESIDE_COORDINATOR);
    printf("}\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    uint64_t seconds = 60;
    uint64_t seed = (uint64_t)getpid();
    uint64_t first = 0;
    uint64_t jobs = UINT64_MAX;
    bool hold = false;
    run.job.members = MEMBERS_USUAL;
    for (int i = 1; i < argc; i++) {
        const uint64_t value = i + 1 < argc ? strtoull(argv[i + 1], NULL, 10) : 0;
        if (strcmp(argv[i], "--seconds") == 0)
            seconds = value;
        else if (strcmp(argv[i], "--seed") == 0)
            seed = value;
        else if (strcmp(argv[i], "--job") == 0) {
            first = value;
            jobs = jobs == UINT64_MAX ? 1 : jobs;
        } else if (strcmp(argv[i], "--jobs") == 0)
            jobs = value > 0 ? value : 1;
        else if (strcmp(argv[i], "--ranks") == 0 && value >= 2 && value <= MEMBERS)
            run.job.members = (uint32_t)value;
        else if (strcmp(argv[i], "--one-death") == 0)
            only = KILL;
        else if (strcmp(argv[i], "--one-death-of-both") == 0)
            only = KILL_BOTH;
        else if (strcmp(argv[i], "--hold") == 0)
            hold = true;
    }
    for (uint32_t beside = 0; beside < BESIDES; beside++)
        total.latencies[beside] = calloc(LATENCIES_MAX, sizeof(uint32_t));
    run.told = mmap(NULL, MEMBERS * sizeof(*run.told), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (run.told == MAP_FAILED)
        abort();
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    coordinator_start(&coordinator, NULL);
    snprintf(address, sizeof(address), "127.0.0.1:%u", coordinator.port);
    const uint64_t since_ms = clock_now_ms();
    uint64_t said_ms = since_ms;
    for (uint64_t n = 0;
         !enough && (seconds == 0 ? n < jobs : clock_now_ms() - since_ms < seconds * 1000); n++) {
        one_job(seed, first + n % jobs, hold);
        if (clock_now_ms() - said_ms < SAY_MS)
            continue;
        said_ms = clock_now_ms();
        say(seed, since_ms);
    }
    say(seed, since_ms);
    coordinator_stop(&coordinator);
    return total.failures == 0 && total.kills > 0 ? 0 : 1;
}
