// SPDX-License-Identifier: Apache-2.0
//
// Ends the workers of a job that the user has stopped; stop.h has the rules. The dispositions of a
// worker are those of the first process of its group, in /proc/PID/status.

#include "cli/run/stop.h"

#include "cli/common/cli.h"
#include "cli/run/report.h"
#include "cli/run/run.h"

#include "base/clock.h"
#include "base/text.h"

#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define NEVER UINT64_MAX

void stop_init(struct stop *stop)
{
    *stop = (struct stop){.look_at = NEVER, .kill_at = NEVER};
}

void stop_begin(struct stop *stop, int signal_number)
{
    stop->by = signal_number;
    stop->look_at = clock_now_ms() + STOP_LOOK_MS;
}

uint64_t stop_due(const struct stop *stop)
{
    return stop->look_at < stop->kill_at ? stop->look_at : stop->kill_at;
}

// How a process treats a signal that was sent to it, if it still runs.
enum manner {
    HANDLES, // A handler or a thread takes the signal. Also if /proc cannot be read.
    BLOCKS, // The signal is pending until the process unblocks it.
    IGNORES,
    SUFFERS, // The signal should have ended the process, but the process is stuck in the kernel.
};

static enum manner manner_of(pid_t pid, int signal_number)
{
    static const char *const names[] = {"ShdPnd", "SigBlk", "SigIgn", "SigCgt"};
    char path[64];
    char line[256];
    char name[16];
    uint64_t mask = 0;
    bool has[4] = {false};
    unsigned count = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file)) {
        if (count == 4 || sscanf(line, "%15[^:]: %" SCNx64, name, &mask) != 2 ||
            strcmp(name, names[count]) != 0)
            continue;
        has[count++] = (mask >> (signal_number - 1) & 1) != 0;
    }
    if (file)
        fclose(file);
    const bool pending = has[0], blocked = has[1], ignored = has[2], caught = has[3];
    if (ignored)
        return IGNORES;
    if (caught || count < 4 || (blocked && !pending))
        return HANDLES;
    return blocked ? BLOCKS : SUFFERS;
}

// Collects the running ranks of `among` that have this manner; NULL: of all ranks. Returns their
// number.
static uint32_t collect(const struct run_options *options, struct run_result *result,
                        const struct run_set *among, int signal_number, enum manner manner,
                        struct run_set *set)
{
    run_set_clear(set);
    for (uint32_t i = 0; i < result->count; i++) {
        const struct run_rank *rank = &result->ranks[i];
        if (rank->pid > 0 && !rank->end.ended &&
            (!among || run_set_has(among, options->first_rank + i)) &&
            manner_of(rank->pid, signal_number) == manner)
            run_set_add(set, options->first_rank + i);
    }
    return set->count;
}

static void signal_set(const struct run_options *options, struct run_result *result,
                       const struct run_set *set, int signal_number)
{
    for (uint32_t i = 0; i < result->count; i++) {
        struct run_rank *rank = &result->ranks[i];
        if (!run_set_has(set, options->first_rank + i) || rank->end.ended)
            continue;
        rank->end.stopped = signal_number == SIGKILL;
        kill(-rank->pid, signal_number);
    }
}

static void add_all(struct run_set *set, const struct run_set *more)
{
    for (uint32_t rank = 0; rank < LOCKSTEP_MAX_WORLD; rank++) {
        if (run_set_has(more, rank) && !run_set_has(set, rank))
            run_set_add(set, rank);
    }
}

// Says on stderr that the run waits for these ranks.
static void say_waits(const struct stop *stop, const struct run_options *options,
                      const struct run_set *set, const char *does)
{
    char ranks[RUN_SET_BYTES];
    const char *s = set->count == 1 ? "s" : "";
    const char *name = sigabbrev_np(stop->by);
    run_set_text(set, ranks, sizeof(ranks));
    cli_say(options->command,
            "%s still run%s after SIG%s and %s%s it: waiting for the end, with no limit; another "
            "SIG%s kills at once",
            ranks, s, name, does, s, name);
}

// Workers that have not ended STOP_LOOK_MS after the signal.
static void look(struct stop *stop, const struct run_options *options, struct run_result *result)
{
    struct run_set set;
    char ranks[RUN_SET_BYTES];
    const char *name = sigabbrev_np(stop->by);
    const int by = stop->by;
    run_set_clear(&stop->deaf);
    if (collect(options, result, NULL, by, IGNORES, &set) > 0) {
        run_set_text(&set, ranks, sizeof(ranks));
        add_all(&stop->deaf, &set);
        if (by != SIGTERM)
            signal_set(options, result, &set, SIGTERM);
        cli_say(options->command, "%s ignore%s SIG%s: %sSIGKILL follows in %d s", ranks,
                set.count == 1 ? "s" : "", name,
                by == SIGTERM ? "" : "SIGTERM is sent now; if that is ignored as well, ",
                STOP_KILL_MS / 1000);
    }
    if (collect(options, result, NULL, by, SUFFERS, &set) > 0) {
        run_set_text(&set, ranks, sizeof(ranks));
        add_all(&stop->deaf, &set);
        cli_say(options->command,
                "%s still run%s after SIG%s and %s not handle it: SIGKILL follows in %d s", ranks,
                set.count == 1 ? "s" : "", name, set.count == 1 ? "does" : "do",
                STOP_KILL_MS / 1000);
    }
    if (stop->deaf.count > 0)
        stop->kill_at = clock_now_ms() + STOP_KILL_MS;
    if (collect(options, result, NULL, by, BLOCKS, &set) > 0)
        say_waits(stop, options, &set, "block");
    if (collect(options, result, NULL, by, HANDLES, &set) > 0)
        say_waits(stop, options, &set, "handle");
}

static void kill_those(const struct run_options *options, struct run_result *result,
                       const struct run_set *set, const char *does, const char *what)
{
    char ranks[RUN_SET_BYTES];
    run_set_text(set, ranks, sizeof(ranks));
    cli_say(options->command, "%s %s%s%s: killed by SIGKILL", ranks, does,
            set->count == 1 ? "s" : "", what);
    signal_set(options, result, set, SIGKILL);
}

static void kill_deaf(const struct stop *stop, const struct run_options *options,
                      struct run_result *result)
{
    struct run_set set;
    if (collect(options, result, &stop->deaf, SIGTERM, IGNORES, &set) > 0)
        kill_those(options, result, &set, "ignore", " SIGTERM");
    if (collect(options, result, &stop->deaf, SIGTERM, SUFFERS, &set) > 0)
        kill_those(options, result, &set, "still run", "");
}

void stop_turn(struct stop *stop, const struct run_options *options, struct run_result *result)
{
    const uint64_t now = clock_now_ms();
    if (now >= stop->look_at) {
        stop->look_at = NEVER;
        look(stop, options, result);
    }
    if (now >= stop->kill_at) {
        stop->kill_at = NEVER;
        kill_deaf(stop, options, result);
    }
}
