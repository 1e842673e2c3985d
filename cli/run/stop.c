// SPDX-License-Identifier: Apache-2.0
//
// Ends the workers of a job that the user has stopped; stop.h has the rules. The dispositions of a
// worker are those of the first process of its group, in /proc/PID/status.

#include "cli/run/stop.h"

#include "cli/common/cli.h"
#include "cli/run/report.h"
#include "cli/run/run.h"
#include "cli/run/run_set.h"

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

// True if the process ignores the signal. False if its dispositions cannot be read.
static bool ignores(pid_t pid, int signal_number)
{
    char path[64];
    char line[256];
    uint64_t ignored = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    while (fgets(line, sizeof(line), file) && sscanf(line, "SigIgn: %" SCNx64, &ignored) != 1)
        ;
    fclose(file);
    return (ignored >> (signal_number - 1) & 1) != 0;
}

// Collects the running ranks that ignore the signal, or those that do not. Returns their number.
static uint32_t collect(const struct run_options *options, struct run_result *result,
                        int signal_number, bool ignoring, struct run_set *set)
{
    run_set_clear(set);
    for (uint32_t i = 0; i < result->count; i++) {
        const struct run_rank *rank = &result->ranks[i];
        if (rank->pid > 0 && !rank->end.ended && ignores(rank->pid, signal_number) == ignoring)
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

// Workers that have not ended STOP_LOOK_MS after the signal.
static void look(struct stop *stop, const struct run_options *options, struct run_result *result)
{
    struct run_set set;
    char ranks[RUN_SET_BYTES];
    const char *name = sigabbrev_np(stop->by);
    if (collect(options, result, stop->by, true, &set) > 0) {
        run_set_text(&set, ranks, sizeof(ranks));
        if (stop->by != SIGTERM)
            signal_set(options, result, &set, SIGTERM);
        stop->kill_at = clock_now_ms() + STOP_KILL_MS;
        cli_say(options->command, "%s ignore%s SIG%s: %sSIGKILL follows in %d s", ranks,
                set.count == 1 ? "s" : "", name,
                stop->by == SIGTERM ? "" : "SIGTERM is sent now; if that is ignored as well, ",
                STOP_KILL_MS / 1000);
    }
    if (collect(options, result, stop->by, false, &set) > 0) {
        run_set_text(&set, ranks, sizeof(ranks));
        cli_say(options->command,
                "%s still run%s after SIG%s and handle%s it: waiting for the end, with no limit; "
                "another SIG%s kills at once",
                ranks, set.count == 1 ? "s" : "", name, set.count == 1 ? "s" : "", name);
    }
}

static void kill_deaf(const struct run_options *options, struct run_result *result)
{
    struct run_set set;
    char ranks[RUN_SET_BYTES];
    if (collect(options, result, SIGTERM, true, &set) == 0)
        return;
    run_set_text(&set, ranks, sizeof(ranks));
    cli_say(options->command, "%s ignore%s SIGTERM: killed by SIGKILL", ranks,
            set.count == 1 ? "s" : "");
    signal_set(options, result, &set, SIGKILL);
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
        kill_deaf(options, result);
    }
}
