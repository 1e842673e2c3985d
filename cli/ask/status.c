// SPDX-License-Identifier: Apache-2.0
//
// `lockstep status`: prints the jobs of a coordinator, or the workers of one job, from its HTTP
// API, as a table or as the original JSON. Main thread.

#include "cli/ask/status.h"

#include "cli/ask/colour.h"
#include "cli/ask/culprit.h"
#include "cli/ask/json_read.h"
#include "cli/ask/watch.h"
#include "cli/common/cli.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOBS_PATH "/api/v1/jobs"

static const char help_text[] =
    "usage: lockstep status [--http ADDRESS] [--job NAME] [--watch[=SECONDS]] [--json]\n"
    "\n"
    "Shows the jobs of a coordinator, or the workers of one job. A job that stands still is\n"
    "`stalled`, and the line below it says why. Where the others always wait for one rank, a line\n"
    "says how much of the last 25 seconds they did.\n"
    "\n"
    "      --http ADDRESS     HOST:PORT or https://HOST:PORT of its dashboard (default:\n"
    "                         LOCKSTEP_DASHBOARD, else the page of a job that\n"
    "                         lockstep run has started here, else " ASK_DEFAULT ")\n"
    "      --job NAME         Only this job, and its workers\n"
    "      --watch[=SECONDS]  Again and again (1), until interrupted\n" ASK_HELP
    "      --json             Print what the coordinator says as it is, in one line\n"
    "  -h, --help             Show this\n";

#define JOB_WIDTH 10 // Width of the column, unless a name is longer.
#define HOST_WIDTH 8

// Returns the width of a column for a text of each item: the longest one, but at least `least`. So
// a table of short names fits into 80 columns.
static int widest(const char *first, const char *key, int least)
{
    char text[LOCKSTEP_TEXT_BYTES];
    size_t width = (size_t)least;
    for (const char *item = first; item; item = json_read_next(item)) {
        json_read_string(json_read_member(item, key), text, sizeof(text));
        width = strlen(text) > width ? strlen(text) : width;
    }
    return (int)width;
}

// ---- Jobs --------------------------------------------------------------------------------------

// Returns a number of a job as text, or "-" if the job does not have it.
static const char *number(const char *job, const char *key, char *text, size_t capacity)
{
    uint64_t value = 0;
    if (!json_read_u64(json_read_member(job, key), &value))
        return "-";
    snprintf(text, capacity, "%" PRIu64, value);
    return text;
}

// Writes the step of a job: "812", or "812-813" while ranks are in different steps.
static void steps(const char *job, char *text, size_t capacity)
{
    uint64_t low = 0;
    uint64_t high = 0;
    if (!json_read_u64(json_read_member(job, "step_min"), &low) ||
        !json_read_u64(json_read_member(job, "step_max"), &high))
        snprintf(text, capacity, "-");
    else if (low == high)
        snprintf(text, capacity, "%" PRIu64, low);
    else
        snprintf(text, capacity, "%" PRIu64 "-%" PRIu64, low, high);
}

// Writes which share of the transfer time ran during the backward pass: "83 %".
static void overlap(const char *totals, char *text, size_t capacity)
{
    uint64_t in_flight = 0;
    uint64_t hidden = 0;
    if (!json_read_u64(json_read_member(totals, "in_flight_us"), &in_flight) || in_flight == 0 ||
        !json_read_u64(json_read_member(totals, "overlap_us"), &hidden))
        snprintf(text, capacity, "-");
    else
        snprintf(text, capacity, "%.0f %%", 100 * ((double)hidden / (double)in_flight));
}

// Writes how long a rank waited in a step, on average: "1.4 ms".
static void exposed(const char *totals, char *text, size_t capacity)
{
    uint64_t steps_made = 0;
    uint64_t waited = 0;
    if (!json_read_u64(json_read_member(totals, "steps"), &steps_made) || steps_made == 0 ||
        !json_read_u64(json_read_member(totals, "exposed_us"), &waited))
        snprintf(text, capacity, "-");
    else
        snprintf(text, capacity, "%.1f ms", (double)waited / (double)steps_made / 1000);
}

// Prints a text of a job on a line below the job.
static void print_below(FILE *out, const struct palette *palette, const char *value)
{
    char text[LOCKSTEP_TEXT_BYTES];
    if (json_read_string(value, text, sizeof(text)) && text[0])
        fprintf(out, "    %s%s%s\n", palette->alarm, text, palette->off);
}

// Prints a line such as "others wait 65 % for rank 2, 12 % for rank 5", if the shares are large
// enough to matter.
static void print_stragglers(FILE *out, const char *stragglers)
{
    const double least = 0.05;
    const char *before = "    others wait ";
    uint64_t rank = 0;
    double score = 0;
    for (const char *item = json_read_first(stragglers); item; item = json_read_next(item)) {
        if (!json_read_u64(json_read_member(item, "rank"), &rank) ||
            !json_read_double(json_read_member(item, "score"), &score) || score < least)
            continue;
        fprintf(out, "%s%.0f %% for rank %" PRIu64, before, 100 * score, rank);
        before = ", ";
    }
    if (before[0] == ',')
        fprintf(out, "\n");
}

// Prints the job's metrics and counters on a line: "    loss 0.41, samples 61440".
static void print_numbers(FILE *out, const char *job)
{
    const char *before = "    ";
    char name[LOCKSTEP_METRIC_NAME_BYTES];
    double value = 0;
    for (const char *item = json_read_first(json_read_member(job, "metrics")); item;
         item = json_read_next(item)) {
        json_read_string(json_read_member(item, "name"), name, sizeof(name));
        if (json_read_double(json_read_member(item, "value"), &value))
            fprintf(out, "%s%s %.6g", before, name, value);
        else
            fprintf(out, "%s%s is no number", before, name);
        before = ", ";
    }
    for (const char *item = json_read_first(json_read_member(job, "counters")); item;
         item = json_read_next(item)) {
        json_read_string(json_read_member(item, "name"), name, sizeof(name));
        const char *total = json_read_member(item, "total");
        const size_t digits = total ? strspn(total, "-0123456789") : 0;
        if (digits == 0)
            continue;
        fprintf(out, "%s%s %.*s", before, name, (int)digits, total);
        before = ", ";
    }
    if (before[0] == ',')
        fprintf(out, "\n");
}

// Prints a line about the rank that was lost last: the other ranks are finishing the step, or how
// often they have gone on after a loss.
static void print_recovery(FILE *out, const struct palette *palette, const char *recovery)
{
    char text[LOCKSTEP_TEXT_BYTES];
    char count[24];
    char last[24];
    bool active = false;
    if (!json_read_string(json_read_member(recovery, "text"), text, sizeof(text)))
        return;
    json_read_bool(json_read_member(recovery, "active"), &active);
    if (active)
        fprintf(out, "    %sthe other ranks finish the step:%s %s\n", palette->alarm, palette->off,
                text);
    else
        fprintf(out, "    recoveries: %s, the last in %s ms: %s\n",
                number(recovery, "count", count, sizeof(count)),
                number(recovery, "last_ms", last, sizeof(last)), text);
}

static void print_job(FILE *out, const char *job, int width)
{
    const char *totals = json_read_member(job, "totals");
    const struct palette *palette = colour_palette();
    char hidden[32];
    char waited[32];
    char name[LOCKSTEP_JOB_NAME_BYTES];
    char state[32];
    char joined[24];
    char size[24];
    char workers[64];
    char generation[24];
    char step[48];
    bool stalled = false;
    json_read_string(json_read_member(job, "name"), name, sizeof(name));
    json_read_string(json_read_member(job, "state"), state, sizeof(state));
    json_read_bool(json_read_member(job, "stalled"), &stalled);
    snprintf(workers, sizeof(workers), "%s/%s", number(job, "joined", joined, sizeof(joined)),
             number(job, "world_size", size, sizeof(size)));
    steps(job, step, sizeof(step));
    overlap(totals, hidden, sizeof(hidden));
    exposed(totals, waited, sizeof(waited));
    fprintf(out, "%-*s %s%-10s%s %9s %10s %8s %10s  %s\n", width, name,
            stalled ? palette->alarm : "", stalled ? "stalled" : state, stalled ? palette->off : "",
            workers,
            number(json_read_member(job, "generation"), "number", generation, sizeof(generation)),
            hidden, waited, step);
    print_below(out, palette, json_read_member(job, "halt_text"));
    if (stalled)
        print_below(out, palette, json_read_member(job, "verdict"));
    print_recovery(out, palette, json_read_member(job, "recovery"));
    print_stragglers(out, json_read_member(job, "stragglers"));
    print_numbers(out, job);
}

static void print_jobs(FILE *out, const char *first)
{
    if (!first) {
        fprintf(out, "no jobs\n");
        return;
    }
    const int width = widest(first, "name", JOB_WIDTH);
    fprintf(out, "%-*s %-10s %9s %10s %8s %10s  %s\n", width, "JOB", "STATE", "WORKERS",
            "GENERATION", "OVERLAP", "EXPOSED", "STEP");
    for (const char *job = first; job; job = json_read_next(job))
        print_job(out, job, width);
}

// ---- Workers -----------------------------------------------------------------------------------

// Returns how long the trainer has been at its current place: "34.2 s".
static const char *age(const char *worker, char *text)
{
    uint64_t ms = 0;
    return json_read_u64(json_read_member(worker, "activity_ms"), &ms) ? culprit_duration(ms, text)
                                                                       : "-";
}

// Prints why the worker is in the way of the others, or its labels, or its mark.
static void print_note(FILE *out, const struct palette *palette, const char *worker)
{
    char text[LOCKSTEP_TEXT_BYTES];
    const char *comma = "  ";
    bool slow = false;
    if (json_read_string(json_read_member(worker, "verdict"), text, sizeof(text)) && text[0]) {
        fprintf(out, "%s%s%s%s", comma, palette->alarm, text, palette->off);
        comma = ", ";
    } else if (json_read_bool(json_read_member(worker, "slow"), &slow) && slow) {
        fprintf(out, "%sslow", comma);
        comma = ", ";
    }
    for (const char *flag = json_read_first(json_read_member(worker, "flags")); flag;
         flag = json_read_next(flag)) {
        json_read_string(flag, text, sizeof(text));
        fprintf(out, "%s%s", comma, text);
        comma = ", ";
    }
    if (json_read_string(json_read_member(worker, "sleeps"), text, sizeof(text)) && text[0])
        fprintf(out, "%sasleep in %s", comma, text);
    if (json_read_string(json_read_member(worker, "mark"), text, sizeof(text)) && text[0])
        fprintf(out, "%s\"%s\"", comma, text);
    fprintf(out, "\n");
}

static void print_worker(FILE *out, const struct palette *palette, const char *worker, int width)
{
    char rank[24];
    char host[LOCKSTEP_HOST_BYTES];
    char pid[24];
    char state[32];
    char step[24];
    char doing[32];
    char time[CULPRIT_DURATION_BYTES];
    json_read_string(json_read_member(worker, "host"), host, sizeof(host));
    json_read_string(json_read_member(worker, "state"), state, sizeof(state));
    json_read_string(json_read_member(worker, "activity"), doing, sizeof(doing));
    const bool gone = strcmp(state, "left") == 0;
    fprintf(out, "%4s %-*s %7s %-8s %8s  %-8s %11s", number(worker, "rank", rank, sizeof(rank)),
            width, host, number(worker, "pid", pid, sizeof(pid)), state,
            number(worker, "step", step, sizeof(step)), gone ? "-" : doing,
            gone ? "-" : age(worker, time));
    print_note(out, palette, worker);
}

static void print_workers(FILE *out, const char *workers)
{
    const struct palette *palette = colour_palette();
    if (!json_read_first(workers))
        return;
    const int width = widest(json_read_first(workers), "host", HOST_WIDTH);
    fprintf(out, "\n%4s %-*s %7s %-8s %8s  %-8s %11s  %s\n", "RANK", width, "HOST", "PID", "STATE",
            "STEP", "TRAINER", "SINCE", "NOTE");
    for (const char *worker = json_read_first(workers); worker; worker = json_read_next(worker))
        print_worker(out, palette, worker, width);
}

// ---- The command -------------------------------------------------------------------------------

static void print_answer(FILE *out, const struct ask *ask, const char *body)
{
    if (ask->job[0]) {
        print_jobs(out, body);
        print_workers(out, json_read_member(body, "workers"));
    } else {
        print_jobs(out, json_read_first(json_read_member(body, "jobs")));
    }
}

static int paint(struct watch *watch, FILE *out)
{
    struct ask *ask = &watch->ask;
    char path[ASK_PATH_BYTES];
    char *body;
    snprintf(path, sizeof(path), "%s%s%s", JOBS_PATH, ask->job[0] ? "/" : "", ask->job);
    if (!ask_get(ask, path, &body))
        return CLI_FAILED;
    const bool known = json_read_member(body, ask->job[0] ? "name" : "jobs") != NULL;
    if (!known)
        snprintf(ask->error, sizeof(ask->error), "%s has no list of jobs: is it a coordinator?",
                 ask->peer.address);
    else if (watch->json)
        fprintf(out, "%s\n", body);
    else
        print_answer(out, ask, body);
    free(body);
    return known ? CLI_OK : CLI_FAILED;
}

int status_main(int argc, char **argv)
{
    static const struct watch_command command = {
        .name = "status", .help = help_text, .paint = paint};
    return watch_main(&command, argc, argv);
}
