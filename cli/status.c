// SPDX-License-Identifier: Apache-2.0
//
// `lockstep status`: the jobs of a coordinator, from its HTTP side, as a table or as it came.
// Main thread.

#include "cli/cli.h"
#include "cli/http.h"
#include "cli/json_read.h"
#include "protos/limits.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ASK_TIMEOUT_MS 5000
#define JOBS_PATH "/api/v1/jobs"
#define HTTP_DEFAULT "127.0.0.1:8080" // Of the daemon.

struct status_options {
    char address[LOCKSTEP_ADDRESS_BYTES];
    bool json;
};

static const char help_text[] =
    "usage: lockstep status [--http HOST:PORT] [--json]\n"
    "\n"
    "Shows the jobs of a coordinator.\n"
    "\n"
    "      --http HOST:PORT  Where its dashboard is (default: LOCKSTEP_DASHBOARD,\n"
    "                        else " HTTP_DEFAULT ")\n"
    "      --json            Print what the coordinator says as it is\n"
    "  -h, --help            Show this\n";

static const struct option long_options[] = {
    {"http", required_argument, NULL, 'a'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static int set_address(struct status_options *options, const char *value)
{
    if (http_read_address(value, options->address, sizeof(options->address)))
        return 0;
    return cli_misuse("status", "%s: not HOST:PORT or [IPV6]:PORT", value);
}

static int set_option(void *given, int key, char *value)
{
    struct status_options *options = given;
    switch (key) {
    case 'a':
        return set_address(options, value);
    case 'j':
        options->json = true;
        return 0;
    default:
        return CLI_MISUSE; // No other key is in the table.
    }
}

static const struct cli_syntax syntax = {.name = "status",
                                         .letters = ":h",
                                         .options = long_options,
                                         .help = help_text,
                                         .take = set_option};

// 0, an exit status, or -1 when the help was printed.
static int read_options(struct status_options *options, int argc, char **argv)
{
    *options = (struct status_options){.json = false};
    const int read = cli_read_options(&syntax, options, argc, argv);
    if (read != 0)
        return read;
    const char *dashboard = getenv("LOCKSTEP_DASHBOARD");
    if (optind < argc)
        return cli_misuse("status", "unexpected argument '%s'", argv[optind]);
    if (options->address[0])
        return 0;
    return set_address(options, dashboard && dashboard[0] ? dashboard : HTTP_DEFAULT);
}

// A number of a job as text; "-" when it is not there.
static const char *number(const char *job, const char *key, char *text, size_t capacity)
{
    uint64_t value = 0;
    if (!json_read_u64(json_member(job, key), &value))
        return "-";
    snprintf(text, capacity, "%" PRIu64, value);
    return text;
}

// "812", or "812-813" while ranks are in different steps.
static void steps(const char *job, char *text, size_t capacity)
{
    uint64_t low = 0;
    uint64_t high = 0;
    if (!json_read_u64(json_member(job, "step_min"), &low) ||
        !json_read_u64(json_member(job, "step_max"), &high))
        snprintf(text, capacity, "-");
    else if (low == high)
        snprintf(text, capacity, "%" PRIu64, low);
    else
        snprintf(text, capacity, "%" PRIu64 "-%" PRIu64, low, high);
}

// How much of the transfers ran beside the backward pass: "83 %".
static void overlap(const char *totals, char *text, size_t capacity)
{
    uint64_t in_flight = 0;
    uint64_t hidden = 0;
    if (!json_read_u64(json_member(totals, "in_flight_us"), &in_flight) || in_flight == 0 ||
        !json_read_u64(json_member(totals, "overlap_us"), &hidden))
        snprintf(text, capacity, "-");
    else
        snprintf(text, capacity, "%.0f %%", 100 * ((double)hidden / (double)in_flight));
}

// How long one rank has waited for one step, on average: "1.4 ms".
static void exposed(const char *totals, char *text, size_t capacity)
{
    uint64_t steps_made = 0;
    uint64_t waited = 0;
    if (!json_read_u64(json_member(totals, "steps"), &steps_made) || steps_made == 0 ||
        !json_read_u64(json_member(totals, "exposed_us"), &waited))
        snprintf(text, capacity, "-");
    else
        snprintf(text, capacity, "%.1f ms", (double)waited / (double)steps_made / 1000);
}

static void print_job(const char *job)
{
    const char *totals = json_member(job, "totals");
    char hidden[32];
    char waited[32];
    char name[LOCKSTEP_JOB_NAME_BYTES];
    char state[32];
    char joined[24];
    char size[24];
    char workers[64];
    char generation[24];
    char step[48];
    char halt[LOCKSTEP_TEXT_BYTES];
    json_read_string(json_member(job, "name"), name, sizeof(name));
    json_read_string(json_member(job, "state"), state, sizeof(state));
    snprintf(workers, sizeof(workers), "%s/%s", number(job, "joined", joined, sizeof(joined)),
             number(job, "world_size", size, sizeof(size)));
    steps(job, step, sizeof(step));
    overlap(totals, hidden, sizeof(hidden));
    exposed(totals, waited, sizeof(waited));
    printf("%-24s %-10s %9s %10s %8s %10s  %s\n", name, state, workers,
           number(json_member(job, "generation"), "number", generation, sizeof(generation)), hidden,
           waited, step);
    if (json_read_string(json_member(job, "halt_text"), halt, sizeof(halt)))
        printf("    %s\n", halt);
}

static int print_table(const char *body)
{
    const char *jobs = json_member(body, "jobs");
    if (!jobs) {
        cli_say("status", "this coordinator's answer has no list of jobs");
        return CLI_FAILED;
    }
    const char *job = json_first(jobs);
    if (!job) {
        printf("no jobs\n");
        return CLI_OK;
    }
    printf("%-24s %-10s %9s %10s %8s %10s  %s\n", "JOB", "STATE", "WORKERS", "GENERATION",
           "OVERLAP", "EXPOSED", "STEP");
    for (; job; job = json_next(job))
        print_job(job);
    return CLI_OK;
}

int cli_status(int argc, char **argv)
{
    struct status_options options;
    char error[LOCKSTEP_TEXT_BYTES];
    char *body = NULL;
    int result = read_options(&options, argc, argv);
    if (result != 0)
        return result < 0 ? CLI_OK : result;
    int code = http_get(options.address, JOBS_PATH, ASK_TIMEOUT_MS, &body, error, sizeof(error));
    if (code < 0) {
        cli_say("status", "%s", error);
        return CLI_FAILED;
    }
    if (code != 200) {
        cli_say("status", "%s answered %d to GET %s", options.address, code, JOBS_PATH);
        result = CLI_FAILED;
    } else if (options.json) {
        printf("%s\n", body);
    } else {
        result = print_table(body);
    }
    free(body);
    return result;
}
