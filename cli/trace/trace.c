// SPDX-License-Identifier: Apache-2.0
//
// `lockstep trace`: prints where a worker's trainer is or was, and its last events, from the
// worker's trace file; as text, as JSON, or for a viewer of Chrome traces. It asks no daemon. Main
// thread.

#include "cli/trace/trace.h"

#include "base/json.h"
#include "base/parse.h"
#include "base/utf8.h"
#include "cli/common/cli.h"
#include "cli/trace/trace_file.h"

#include <ctype.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define JSON_BYTES (16 * 1024 * 1024)

enum trace_format {
    FORMAT_TEXT,
    FORMAT_JSON,
    FORMAT_PERFETTO,
};

struct trace_options {
    enum trace_format format;
    uint64_t last;
};

static const char help_text[] =
    "usage: lockstep trace FILE [--last N] [--json | --perfetto]\n"
    "\n"
    "Shows where a worker's trainer is, or was when it ended, and its last events.\n"
    "FILE is in the directory that config.trace_dir or LOCKSTEP_TRACE_DIR names.\n"
    "\n"
    "      --last N    Only the last N events\n"
    "      --json      One JSON object\n"
    "      --perfetto  As a Chrome trace, for ui.perfetto.dev\n"
    "  -h, --help      Show this\n";

static const struct option long_options[] = {
    {"last", required_argument, NULL, 'n'},
    {"json", no_argument, NULL, 'j'},
    {"perfetto", no_argument, NULL, 'p'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static int set_format(struct trace_options *options, enum trace_format format)
{
    if (options->format != FORMAT_TEXT && options->format != format)
        return cli_misuse("trace", "--json and --perfetto exclude each other");
    options->format = format;
    return 0;
}

static int set_option(void *given, int key, char *value)
{
    struct trace_options *options = given;
    switch (key) {
    case 'n':
        return parse_u64(value, &options->last)
                   ? 0
                   : cli_misuse("trace", "--last %s: not a number", value);
    case 'j':
        return set_format(options, FORMAT_JSON);
    case 'p':
        return set_format(options, FORMAT_PERFETTO);
    default:
        return CLI_MISUSE; // The options table has no other key.
    }
}

static const struct cli_syntax syntax = {.name = "trace",
                                         .letters = ":h",
                                         .options = long_options,
                                         .help = help_text,
                                         .take = set_option};

// ---- Words -------------------------------------------------------------------------------------

static const char *const kinds[] = {
    [TRACE_NONE] = "none",
    [TRACE_API_ENTER] = "api_enter",
    [TRACE_API_LEAVE] = "api_leave",
    [TRACE_STEP_BEGIN] = "step_begin",
    [TRACE_CALL_BEGIN] = "call_begin",
    [TRACE_CALL_END] = "call_end",
    [TRACE_BUCKET_READY] = "bucket_ready",
    [TRACE_LAUNCH] = "launch",
    [TRACE_FINAL] = "final",
    [TRACE_STEP_END] = "step_end",
    [TRACE_CLOSED] = "closed",
    [TRACE_SETTLED] = "settled",
    [TRACE_WAIT] = "wait",
    [TRACE_RELEASE] = "release",
    [TRACE_GRANT] = "grant",
    [TRACE_PLAN] = "plan",
    [TRACE_BLOCKED] = "blocked",
    [TRACE_QUERY] = "query",
    [TRACE_HALT] = "halt",
    [TRACE_PAUSE] = "pause",
    [TRACE_RESUME] = "resume",
    [TRACE_PLAIN] = "plain",
    [TRACE_PLAIN_DONE] = "plain_done",
    [TRACE_INSPECTED] = "inspected",
};

static const char *kind_name(uint16_t kind)
{
    return kind < sizeof(kinds) / sizeof(kinds[0]) ? kinds[kind] : "unknown";
}

// Replaces characters that a terminal could take as a command by '?'.
static const char *plain(char *text)
{
    for (char *at = text; *at != '\0';) {
        const size_t length = utf8_length(at, strlen(at));
        if (length == 0 || !utf8_harmless(at, length))
            memset(at, '?', length > 0 ? length : 1);
        at += length > 0 ? length : 1;
    }
    return text;
}

static const char *module_name(struct trace_file *file, uint64_t module)
{
    if (module >= LOCKSTEP_MAX_MODULES || file->modules[module][0] == '\0')
        return NULL;
    return plain(file->modules[module]);
}

static uint64_t word(const _Atomic(uint64_t) *at)
{
    return atomic_load_explicit(at, memory_order_relaxed);
}

// Returns the microseconds from the opening of the trace to time_ns; negative for an earlier time.
static int64_t since_open_us(const struct trace_file *file, uint64_t time_ns)
{
    return (int64_t)(time_ns - file->header.monotonic_ns) / 1000;
}

// Returns true if the event's value is a function of the library, possibly with a status.
static bool is_api(const struct trace_event *event)
{
    return event->kind == TRACE_API_ENTER || event->kind == TRACE_API_LEAVE;
}

// Returns true if the event's value has a status.
static bool has_status(const struct trace_event *event)
{
    return event->kind == TRACE_API_LEAVE || event->kind == TRACE_PLAIN_DONE;
}

static int32_t event_status(const struct trace_event *event)
{
    return (int32_t)(event->kind == TRACE_API_LEAVE ? event->value >> 32 : event->value);
}

static bool has_bucket(const struct trace_event *event)
{
    return event->kind == TRACE_BUCKET_READY || event->kind == TRACE_LAUNCH ||
           event->kind == TRACE_FINAL || event->kind == TRACE_GRANT;
}

static uint32_t first_event(const struct trace_file *file, const struct trace_options *options)
{
    return options->last < file->event_count ? file->event_count - (uint32_t)options->last : 0;
}

// ---- Text --------------------------------------------------------------------------------------

static void print_head(struct trace_file *file)
{
    const struct trace_header *header = &file->header;
    const time_t seconds = (time_t)(header->real_ns / 1000000000u);
    struct tm utc;
    char opened[32] = "?";
    if (gmtime_r(&seconds, &utc))
        (void)strftime(opened, sizeof(opened), "%Y-%m-%d %H:%M:%S UTC", &utc);
    printf("job '%s', ", plain(file->header.job));
    if (header->rank == TRACE_NO_RANK)
        printf("no rank yet");
    else
        printf("rank %" PRIu32 " of %" PRIu32, header->rank, header->world_size);
    printf(", host %s, process %" PRIu32 ", opened %s, %s\n", plain(file->header.host), header->pid,
           opened, header->closed != 0 ? "closed" : "not closed");
}

// Prints the function that the trainer is in, or was in last.
static void print_place(struct trace_file *file)
{
    const uint64_t api = word(&file->progress.api);
    const uint64_t at_ns = word(&file->progress.api_ms) * 1000000;
    const char *module = module_name(file, api >> PROGRESS_MODULE_SHIFT & 0xff);
    printf("step %" PRIu64 ", settled %" PRIu64 ", %s %s", word(&file->progress.step),
           word(&file->progress.settled),
           (api & PROGRESS_INSIDE) != 0 ? "inside" : "outside, after",
           api_function_name(api & 0xff));
    if (module)
        printf(" of '%s' (call %" PRIu64 ")", module, (api >> PROGRESS_CALL_SHIFT & 0xffff) + 1);
    printf(", since +%.3f s\n", (double)since_open_us(file, at_ns) / 1e6);
    if (word(&file->progress.calls_open) > 0)
        printf("%" PRIu64 " of %" PRIu64 " gradients reported in the calls under way\n",
               word(&file->progress.ready), word(&file->progress.gradients));
    if (word(&file->progress.paused_ms) != 0)
        printf("paused: %s\n", plain(file->pause_reason));
    else if (file->mark[0] != '\0')
        printf("mark: %s\n", plain(file->mark));
}

static void print_event(struct trace_file *file, const struct trace_event *event)
{
    const char *module = module_name(file, event->module);
    const char *thread = "";
    if (event->thread < TRACE_THREAD_PLACES)
        thread = plain(file->threads[event->thread].name);
    printf("%14.6f s  %-15s  %8" PRIu64 "  %-12s",
           (double)since_open_us(file, event->time_ns) / 1e6, thread, event->step,
           kind_name(event->kind));
    if (module)
        printf("  '%s' call %u", module, event->call + 1u);
    if (has_bucket(event))
        printf(" bucket %" PRIu32, event->bucket);
    if (is_api(event))
        printf("  %s", api_function_name(event->value & 0xffffffff));
    if (has_status(event))
        printf("  status %" PRId32, event_status(event));
    if (event->kind == TRACE_LAUNCH)
        printf("  %" PRIu64 " bytes", event->value);
    printf("\n");
}

static int print_text(struct trace_file *file, const struct trace_options *options)
{
    print_head(file);
    print_place(file);
    if (file->torn > 0)
        printf("%" PRIu32 " events are not whole\n", file->torn);
    if (file->event_count > 0)
        printf("\n%14s    %-15s  %8s  %s\n", "SINCE OPEN", "THREAD", "STEP", "EVENT");
    for (uint32_t i = first_event(file, options); i < file->event_count; i++)
        print_event(file, &file->events[i]);
    return CLI_OK;
}

// ---- JSON --------------------------------------------------------------------------------------

static int print_json(const struct json *json)
{
    const char *text = json_text(json, NULL);
    if (!text) {
        cli_say("trace", "no memory for the answer");
        return CLI_FAILED;
    }
    printf("%s\n", text);
    return CLI_OK;
}

// Writes a module and its call. Calls are shown from 1.
static void json_module(struct json *json, struct trace_file *file, uint64_t module, uint64_t call)
{
    const char *name = module_name(file, module);
    json_string(json, "module", name);
    if (name)
        json_u64(json, "call", call + 1);
}

static void json_place(struct json *json, struct trace_file *file)
{
    const struct progress *progress = &file->progress;
    const uint64_t api = word(&progress->api);
    json_u64(json, "step", word(&progress->step));
    json_u64(json, "settled", word(&progress->settled));
    json_string(json, "api", api_function_name(api & 0xff));
    json_bool(json, "inside", (api & PROGRESS_INSIDE) != 0);
    json_i64(json, "api_at_us", since_open_us(file, word(&progress->api_ms) * 1000000));
    json_module(json, file, api >> PROGRESS_MODULE_SHIFT & 0xff,
                api >> PROGRESS_CALL_SHIFT & 0xffff);
    json_u64(json, "calls_open", word(&progress->calls_open));
    json_u64(json, "ready", word(&progress->ready));
    json_u64(json, "gradients", word(&progress->gradients));
    json_bool(json, "waits", word(&progress->waiting) > 0);
    json_bool(json, "paused", word(&progress->paused_ms) != 0);
}

static void json_event(struct json *json, struct trace_file *file, const struct trace_event *event)
{
    json_object_begin(json, NULL);
    json_i64(json, "at_us", since_open_us(file, event->time_ns));
    json_string(json, "kind", kind_name(event->kind));
    json_u64(json, "step", event->step);
    json_module(json, file, event->module, event->call);
    json_u64(json, "bucket", event->bucket);
    if (is_api(event))
        json_string(json, "api", api_function_name(event->value & 0xffffffff));
    json_u64(json, "value", event->value);
    if (has_status(event))
        json_i64(json, "status", event_status(event));
    json_u64(json, "thread", event->thread);
    json_object_end(json);
}

static int print_object(struct trace_file *file, const struct trace_options *options,
                        const char *path)
{
    const struct trace_header *header = &file->header;
    struct json json;
    json_init(&json, JSON_BYTES);
    json_object_begin(&json, NULL);
    json_string(&json, "file", path);
    json_u64(&json, "version", header->version);
    json_string(&json, "job", header->job);
    if (header->rank == TRACE_NO_RANK)
        json_null(&json, "rank");
    else
        json_u64(&json, "rank", header->rank);
    json_u64(&json, "world_size", header->world_size);
    json_string(&json, "host", header->host);
    json_u64(&json, "pid", header->pid);
    json_u64(&json, "generation", header->generation);
    json_u64(&json, "opened_ns", header->real_ns);
    json_bool(&json, "closed", header->closed != 0);
    json_string(&json, "mark", file->mark);
    json_place(&json, file);
    json_u64(&json, "torn", file->torn);
    json_array_begin(&json, "events");
    for (uint32_t i = first_event(file, options); i < file->event_count; i++)
        json_event(&json, file, &file->events[i]);
    json_array_end(&json);
    json_object_end(&json);
    const int code = print_json(&json);
    json_fini(&json);
    return code;
}

// ---- Chrome trace ------------------------------------------------------------------------------

// How an event is drawn. phase is 'b' if the event begins a span, 'e' if it ends one, and 'i' for
// all others (an instant). The begin and the end of a span have the same name and id, and may be on
// different threads.
struct span {
    char phase;
    char name[LOCKSTEP_NAME_BYTES + 64];
    char id[64];
};

static void span_of(struct trace_file *file, const struct trace_event *event, struct span *span)
{
    const char *module = module_name(file, event->module);
    *span = (struct span){.phase = 'i'};
    snprintf(span->name, sizeof(span->name), "%s", kind_name(event->kind));
    switch (event->kind) {
    case TRACE_STEP_BEGIN:
    case TRACE_SETTLED:
        span->phase = event->kind == TRACE_STEP_BEGIN ? 'b' : 'e';
        snprintf(span->name, sizeof(span->name), "step %" PRIu64, event->step);
        snprintf(span->id, sizeof(span->id), "s%" PRIu64, event->step);
        break;
    case TRACE_CALL_BEGIN:
    case TRACE_CALL_END:
        span->phase = event->kind == TRACE_CALL_BEGIN ? 'b' : 'e';
        snprintf(span->name, sizeof(span->name), "%s#%u", !module ? "?" : module, event->call + 1u);
        snprintf(span->id, sizeof(span->id), "c%" PRIu64 ".%u.%u", event->step, event->module,
                 event->call);
        break;
    case TRACE_LAUNCH:
    case TRACE_FINAL:
        span->phase = event->kind == TRACE_LAUNCH ? 'b' : 'e';
        snprintf(span->name, sizeof(span->name), "%s#%u.%" PRIu32, !module ? "?" : module,
                 event->call + 1u, event->bucket);
        snprintf(span->id, sizeof(span->id), "b%" PRIu64 ".%u.%u.%" PRIu32, event->step,
                 event->module, event->call, event->bucket);
        break;
    case TRACE_API_ENTER:
    case TRACE_API_LEAVE:
        snprintf(span->name, sizeof(span->name), "%s %s", kind_name(event->kind),
                 api_function_name(event->value & 0xffffffff));
        break;
    default:
        break;
    }
}

static void perfetto_event(struct json *json, struct trace_file *file,
                           const struct trace_event *event)
{
    struct span span;
    span_of(file, event, &span);
    const char letter[2] = {span.phase, '\0'};
    json_object_begin(json, NULL);
    json_string(json, "name", span.name);
    json_string(json, "cat", "lockstep");
    json_string(json, "ph", letter);
    if (span.id[0] != '\0')
        json_string(json, "id", span.id);
    else
        json_string(json, "s", "t");
    json_u64(json, "pid", file->header.rank == TRACE_NO_RANK ? 0 : file->header.rank);
    json_u64(json, "tid", event->thread);
    json_double(json, "ts", (double)since_open_us(file, event->time_ns));
    json_object_end(json);
}

static void perfetto_name(struct json *json, const char *what, uint64_t pid, uint64_t tid,
                          const char *name)
{
    json_object_begin(json, NULL);
    json_string(json, "name", what);
    json_string(json, "ph", "M");
    json_u64(json, "pid", pid);
    json_u64(json, "tid", tid);
    json_object_begin(json, "args");
    json_string(json, "name", name);
    json_object_end(json);
    json_object_end(json);
}

static int print_perfetto(struct trace_file *file, const struct trace_options *options)
{
    const uint64_t pid = file->header.rank == TRACE_NO_RANK ? 0 : file->header.rank;
    struct json json;
    char name[64];
    json_init(&json, JSON_BYTES);
    json_object_begin(&json, NULL);
    json_string(&json, "displayTimeUnit", "ms");
    json_array_begin(&json, "traceEvents");
    snprintf(name, sizeof(name), "rank %" PRIu64, pid);
    perfetto_name(&json, "process_name", pid, 0, name);
    for (uint64_t i = 0; i < TRACE_THREAD_PLACES && file->threads[i].tid != 0; i++)
        perfetto_name(&json, "thread_name", pid, i, file->threads[i].name);
    for (uint32_t i = first_event(file, options); i < file->event_count; i++)
        perfetto_event(&json, file, &file->events[i]);
    json_array_end(&json);
    json_object_end(&json);
    const int code = print_json(&json);
    json_fini(&json);
    return code;
}

// ---- The subcommand ----------------------------------------------------------------------------

static int show(struct trace_file *file, const struct trace_options *options, const char *path)
{
    switch (options->format) {
    case FORMAT_JSON:
        return print_object(file, options, path);
    case FORMAT_PERFETTO:
        return print_perfetto(file, options);
    case FORMAT_TEXT:
        break;
    }
    return print_text(file, options);
}

int trace_main(int argc, char **argv)
{
    struct trace_options options = {.last = UINT64_MAX};
    char error[LOCKSTEP_TEXT_BYTES];
    const int read = cli_read_options(&syntax, &options, argc, argv);
    struct trace_file *file;
    int code;
    if (read != 0)
        return read < 0 ? CLI_OK : read;
    if (optind + 1 != argc)
        return cli_misuse("trace", optind == argc ? "no file given" : "more than one file given");
    file = malloc(sizeof(*file));
    if (!file) {
        cli_say("trace", "no memory");
        return CLI_FAILED;
    }
    if (trace_file_read(argv[optind], file, error, sizeof(error)) == 0) {
        code = show(file, &options, argv[optind]);
    } else {
        cli_say("trace", "%s", error);
        code = CLI_FAILED;
    }
    free(file);
    return code;
}
