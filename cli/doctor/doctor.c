// SPDX-License-Identifier: Apache-2.0
//
// `lockstep doctor`: what this machine offers to the data plane, and what running jobs have agreed
// on. This file reads the options, and prints the report as text and as JSON. The checks are in
// place.c, machine.c, pytorch.c, gpu.c and job.c. Main thread.

#include "cli/doctor/doctor.h"

#include "cli/common/cli.h"
#include "cli/doctor/gpu.h"
#include "cli/doctor/job.h"
#include "cli/doctor/machine.h"
#include "cli/doctor/place.h"
#include "cli/doctor/pytorch.h"

#include "base/json.h"
#include "cli/ask/ask.h"
#include "lockstep/lockstep.h"
#include "protos/tuning_json.h"

#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JSON_BYTES (1024 * 1024)
#define TEXT_COLUMNS 100
#define TEXT_INDENT 9
#define VALUE_BYTES (DOCTOR_WORD_BYTES + 32)

struct doctor_options {
    // The coordinator and the job to ask about. An empty address: no coordinator. An empty job: all
    // jobs.
    struct ask ask;
    const char *python; // The interpreter to ask about PyTorch. NULL: python3 of the PATH.
    bool json;
};

static const char help_text[] =
    "usage: lockstep doctor [--http ADDRESS [--job NAME]] [--python PATH] [--json]\n"
    "\n"
    "Looks at what this machine offers to training, measures for half a second, and says\n"
    "what each finding means and what to do about it.\n"
    "\n"
    "      --http ADDRESS     Also ask this coordinator's dashboard, HOST:PORT or\n"
    "                         https://HOST:PORT, what its jobs have agreed: latency, bandwidth,\n"
    "                         and which payload travels how\n"
    "      --job NAME         Only this job\n" ASK_HELP
    "      --python PATH      Ask this Python about the hooks of PyTorch (python3)\n"
    "      --json             One JSON object instead of text\n"
    "  -h, --help             Show this\n"
    "\n"
    "Exit status: 0 when training is possible, 1 when something that it needs is missing.\n"
    "docs/cli.md explains the findings and the JSON.\n";

static const struct option long_options[] = {
    {"http", required_argument, NULL, 'a'},
    {"job", required_argument, NULL, 'n'},
    {"python", required_argument, NULL, 'y'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    ASK_OPTIONS,
    {NULL, 0, NULL, 0},
};

static const char *const status_names[] = {
    [DOCTOR_OK] = "ok", [DOCTOR_WARNING] = "warning", [DOCTOR_MISSING] = "missing"};

// ---- Options -----------------------------------------------------------------------------------

static int set_option(void *given, int key, char *value)
{
    struct doctor_options *options = given;
    switch (key) {
    case 'a':
        return ask_set_address(&options->ask, value);
    case 'n':
        return ask_set_job(&options->ask, value);
    case 'y':
        options->python = value;
        return 0;
    case 'j':
        options->json = true;
        return 0;
    default:
        return ask_set_option(&options->ask, key, value);
    }
}

static const struct cli_syntax syntax = {.name = "doctor",
                                         .letters = ":h",
                                         .options = long_options,
                                         .help = help_text,
                                         .take = set_option};

// Returns 0, an exit status, or -1 if the help was printed.
static int read_options(struct doctor_options *options, int argc, char **argv)
{
    *options = (struct doctor_options){.ask = {.command = syntax.name}};
    const int read = cli_read_options(&syntax, options, argc, argv);
    if (read != 0)
        return read;
    if (optind < argc)
        return cli_misuse("doctor", "unexpected argument '%s'", argv[optind]);
    if (options->ask.job[0] && !options->ask.peer.address[0])
        return cli_misuse("doctor", "--job needs --http, the coordinator that has it");
    return 0;
}

// ---- The report --------------------------------------------------------------------------------

struct doctor_finding *doctor_add(struct doctor_report *report, const char *name)
{
    struct doctor_finding *finding = &report->findings[report->finding_count++];
    *finding = (struct doctor_finding){.name = name, .number = NAN, .unit = ""};
    return finding;
}

void doctor_judge(struct doctor_finding *finding, enum doctor_status status, const char *format,
                  ...)
{
    va_list arguments;
    va_start(arguments, format);
    finding->status = status;
    vsnprintf(finding->meaning, sizeof(finding->meaning), format, arguments);
    va_end(arguments);
}

static uint32_t count_of(const struct doctor_report *report, enum doctor_status status)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < report->finding_count; i++)
        count += report->findings[i].status == status;
    for (uint32_t i = 0; i < report->job_count; i++)
        count += report->jobs[i].finding.status == status;
    return count;
}

static enum doctor_status worst_of(const struct doctor_report *report)
{
    if (count_of(report, DOCTOR_MISSING) > 0)
        return DOCTOR_MISSING;
    return count_of(report, DOCTOR_WARNING) > 0 ? DOCTOR_WARNING : DOCTOR_OK;
}

// ---- Text --------------------------------------------------------------------------------------

// Returns the value as text, such as "12.3 GB/s", "avx2" or "-".
static const char *value_text(const struct doctor_finding *finding, char *text)
{
    if (!isfinite(finding->number))
        snprintf(text, VALUE_BYTES, "%s", finding->word[0] ? finding->word : "-");
    else if (finding->number == floor(finding->number))
        snprintf(text, VALUE_BYTES, "%.0f %s", finding->number, finding->unit);
    else
        snprintf(text, VALUE_BYTES, "%.3g %s", finding->number, finding->unit);
    return text;
}

// Prints a finding's sentence, wrapped to the width of a terminal.
static void print_meaning(const char *meaning)
{
    size_t column = (size_t)printf("%*s", TEXT_INDENT - 1, "");
    for (const char *at = meaning; *at;) {
        const size_t size = strcspn(at, " ");
        if (column + 1 + size >= TEXT_COLUMNS) // Leaves room for the full stop.
            column = (size_t)printf("\n%*s", TEXT_INDENT - 1, "") - 1;
        column += (size_t)printf(" %.*s", (int)size, at);
        at += size;
        at += strspn(at, " ");
    }
    printf(".\n");
}

static void print_finding(const struct doctor_finding *finding)
{
    char value[VALUE_BYTES];
    printf("%-*s%-16s%s\n", TEXT_INDENT, status_names[finding->status], finding->name,
           value_text(finding, value));
    print_meaning(finding->meaning);
}

static void print_range(const struct doctor_range *range)
{
    char most[32] = "any";
    if (range->most_bytes < UINT64_MAX)
        snprintf(most, sizeof(most), "%" PRIu64 " B", range->most_bytes);
    printf("%*s%14s  %-12s%s\n", TEXT_INDENT, "", most, tuning_name(range->reduction),
           tuning_name(range->broadcast));
}

static void print_job(const struct doctor_job *job)
{
    struct doctor_range ranges[DOCTOR_MAX_BOUNDS];
    const struct tuning *tuning = &job->tuning;
    printf("\n%-*sjob %s: %s, %" PRIu32 " rank%s", TEXT_INDENT, status_names[job->finding.status],
           job->name, job->state, job->world.world_size, job->world.world_size == 1 ? "" : "s");
    if (job->world.hosts > 0)
        printf(" on %" PRIu32 " host%s", job->world.hosts, job->world.hosts == 1 ? "" : "s");
    printf("\n");
    print_meaning(job->finding.meaning);
    if (!job->tuned)
        return;
    printf("%*sslowest link: %.1f us, %.2f GB/s; memory shared: %s; algorithm: %s\n", TEXT_INDENT,
           "", (double)tuning->latency_ns / 1e3, (double)tuning->bytes_per_s / 1e9,
           tuning->shares ? "yes" : "no", tuning_name(tuning->wish));
    printf("%*s%14s  %-12s%s\n", TEXT_INDENT, "", "payload up to", "reduction", "broadcast");
    const uint32_t count = doctor_ranges(job, ranges);
    for (uint32_t i = 0; i < count; i++)
        print_range(&ranges[i]);
}

static void print_text(const struct doctor_report *report)
{
    const uint32_t warnings = count_of(report, DOCTOR_WARNING);
    for (uint32_t i = 0; i < report->finding_count; i++)
        print_finding(&report->findings[i]);
    for (uint32_t i = 0; i < report->job_count; i++)
        print_job(&report->jobs[i]);
    printf("\n%s, with %" PRIu32 " warning%s.\n",
           worst_of(report) == DOCTOR_MISSING ? "Something that training needs is missing"
                                              : "Training is possible",
           warnings, warnings == 1 ? "" : "s");
}

// ---- JSON --------------------------------------------------------------------------------------

static void json_judgement(struct json *json, const struct doctor_finding *finding)
{
    json_string(json, "status", status_names[finding->status]);
    json_string(json, "meaning", finding->meaning);
}

// Rounds a measured number to four digits, because more would be noise. A counted number stays
// whole.
static double json_number(double number)
{
    char digits[32];
    if (!isfinite(number) || number == floor(number))
        return number;
    snprintf(digits, sizeof(digits), "%.4g", number);
    return strtod(digits, NULL);
}

static void json_finding(struct json *json, const struct doctor_finding *finding)
{
    json_object_begin(json, NULL);
    json_string(json, "name", finding->name);
    if (isfinite(finding->number) || !finding->word[0])
        json_double(json, "value", json_number(finding->number));
    else
        json_string(json, "value", finding->word);
    json_string(json, "unit", finding->unit[0] ? finding->unit : NULL);
    json_judgement(json, finding);
    json_object_end(json);
}

static void json_algorithms(struct json *json, const struct doctor_job *job)
{
    struct doctor_range ranges[DOCTOR_MAX_BOUNDS];
    const uint32_t count = doctor_ranges(job, ranges);
    json_array_begin(json, "algorithms");
    for (uint32_t i = 0; i < count; i++) {
        json_object_begin(json, NULL);
        if (ranges[i].most_bytes < UINT64_MAX)
            json_u64(json, "most_bytes", ranges[i].most_bytes);
        else
            json_null(json, "most_bytes");
        json_string(json, "reduction", tuning_name(ranges[i].reduction));
        json_string(json, "broadcast", tuning_name(ranges[i].broadcast));
        json_object_end(json);
    }
    json_array_end(json);
}

static void json_tuning(struct json *json, const struct doctor_job *job)
{
    if (!job->tuned) {
        json_null(json, "tuning");
        return;
    }
    json_object_begin(json, "tuning");
    tuning_json_members(json, &job->tuning);
    json_algorithms(json, job);
    json_object_end(json);
}

static void json_job(struct json *json, const struct doctor_job *job)
{
    json_object_begin(json, NULL);
    json_string(json, "name", job->name);
    json_string(json, "state", job->state);
    json_u64(json, "world_size", job->world.world_size);
    json_u64(json, "hosts", job->world.hosts);
    json_judgement(json, &job->finding);
    json_tuning(json, job);
    json_object_end(json);
}

static void print_json(const struct doctor_report *report)
{
    struct json json;
    json_init(&json, JSON_BYTES);
    json_object_begin(&json, NULL);
    json_string(&json, "lockstep", lockstep_version());
    json_string(&json, "status", status_names[worst_of(report)]);
    json_array_begin(&json, "findings");
    for (uint32_t i = 0; i < report->finding_count; i++)
        json_finding(&json, &report->findings[i]);
    json_array_end(&json);
    json_array_begin(&json, "jobs");
    for (uint32_t i = 0; i < report->job_count; i++)
        json_job(&json, &report->jobs[i]);
    json_array_end(&json);
    json_object_end(&json);
    const char *text = json_text(&json, NULL);
    if (text)
        printf("%s\n", text);
    json_fini(&json);
}

int doctor_main(int argc, char **argv)
{
    struct doctor_options options;
    int result = read_options(&options, argc, argv);
    if (result != 0)
        return result < 0 ? CLI_OK : result;
    struct doctor_report *report = calloc(1, sizeof(*report));
    if (!report) {
        cli_say("doctor", "out of memory");
        return CLI_FAILED;
    }
    doctor_place(report);
    doctor_machine(report);
    doctor_pytorch(report, options.python);
    doctor_gpu(report);
    if (options.ask.peer.address[0])
        doctor_jobs(report, &options.ask.peer, options.ask.job);
    if (options.json)
        print_json(report);
    else
        print_text(report);
    result = worst_of(report) == DOCTOR_MISSING ? CLI_FAILED : CLI_OK;
    free(report);
    return result;
}
