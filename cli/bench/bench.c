// SPDX-License-Identifier: Apache-2.0
//
// `lockstep bench`: how fast the library is on this machine. This file reads the options and starts
// the ranks as `lockstep run` would: the same launcher, supervisor and private coordinator. The
// trainer of that job is this program, as `lockstep bench-worker` with the same options; its code
// is in worker.c. Main thread.
//
// The benchmark uses the public header only, so its figures include the costs of every trainer:
// separate processes, a real coordinator, real connections.

#include "cli/bench/bench.h"

#include "cli/common/cli.h"

#include "base/parse.h"
#include "cli/run/run.h"
#include "protos/limits.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_SIZES "4,32K,1M,25M,100M"
#define DEFAULT_RANKS 2
#define DEFAULT_IN_FLIGHT 4
#define DEFAULT_BACKWARD_MS 20
#define DEFAULT_WARMUP 5
#define MAX_WARMUP 10000
#define MAX_SECONDS 3600
#define MAX_BACKWARD_MS 60000
#define WORKER_COMMAND "bench-worker"

static const char help_text[] =
    "usage: lockstep bench [OPTIONS]\n"
    "\n"
    "Measures the library on this machine, with real workers and a real coordinator.\n"
    "\n"
    "      --ranks N               How many workers (2)\n"
    "      --mode MODE             blocking: one allreduce after the other\n"
    "                              async: several in flight\n"
    "                              step: a module, and a backward pass to hide behind\n"
    "      --sizes LIST            Bytes of a payload; K, M, G are powers of 1024\n"
    "                              (" DEFAULT_SIZES ")\n"
    "      --dtypes LIST           float32, float64, float16, bfloat16, int32, int64,\n"
    "                              uint8 (float32)\n"
    "      --transport KIND        auto or tcp (auto)\n"
    "      --memory KIND           private: ours; registered: from lockstep_alloc\n"
    "      --cold                  Payloads that no cache holds\n"
    "      --in-flight N           Collectives of a batch, with --mode async (4)\n"
    "      --backward-ms T         The backward pass, with --mode step (20)\n"
    "      --buckets FIRST,NEXT,LAST\n"
    "                              Caps of buckets, with --mode step; 0: the default\n"
    "      --seconds S             How long one size and dtype is measured (1)\n"
    "      --iterations N          How often, instead\n"
    "      --warmup N              Iterations before (5)\n"
    "      --json                  One JSON object instead of tables\n"
    "      --raw FILE              Every sample of every rank, as CSV\n"
    "  -h, --help                  Show this\n"
    "\n"
    "docs/performance.md explains the columns, docs/cli.md the JSON.\n";

static const struct bench_dtype dtypes[BENCH_DTYPES] = {
    {"float32", LOCKSTEP_FLOAT32, 4, {0, 0, 0x80, 0x3f}, true},
    {"float64", LOCKSTEP_FLOAT64, 8, {0, 0, 0, 0, 0, 0, 0xf0, 0x3f}, true},
    {"float16", LOCKSTEP_FLOAT16, 2, {0, 0x3c}, true},
    {"bfloat16", LOCKSTEP_BFLOAT16, 2, {0x80, 0x3f}, true},
    {"int32", LOCKSTEP_INT32, 4, {1}, false},
    {"int64", LOCKSTEP_INT64, 8, {1}, false},
    {"uint8", LOCKSTEP_UINT8, 1, {1}, false},
};

static const char *const modes[] = {
    [BENCH_BLOCKING] = "blocking", [BENCH_ASYNC] = "async", [BENCH_STEP] = "step"};

static const struct {
    const char *name;
    lockstep_transport_kind kind;
} transports[] = {{"auto", LOCKSTEP_TRANSPORT_AUTO}, {"tcp", LOCKSTEP_TRANSPORT_TCP}};

const char *bench_mode_name(enum bench_mode mode)
{
    return modes[mode];
}

const char *bench_transport_name(lockstep_transport_kind transport)
{
    for (size_t i = 0; i < sizeof(transports) / sizeof(transports[0]); i++) {
        if (transports[i].kind == transport)
            return transports[i].name;
    }
    return "unknown";
}

uint32_t bench_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        return (uint32_t)CPU_COUNT(&set);
    // The machine has more cores than a cpu_set_t holds.
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

// ---- Values ------------------------------------------------------------------------------------

// Calls take for each item of a comma-separated list. Returns 0, or the first result that is not 0.
static int each_item(struct bench_options *options, const char *list,
                     int (*take)(struct bench_options *options, const char *item))
{
    char item[64];
    for (;;) {
        size_t size = strcspn(list, ",");
        snprintf(item, sizeof(item), "%.*s", size < sizeof(item) ? (int)size : 0, list);
        int result = take(options, item);
        if (result != 0 || list[size] == '\0')
            return result;
        list += size + 1;
    }
}

// Parses a size such as "4", "32K", "25M" or "1G".
static bool parse_bytes(const char *value, uint64_t *bytes)
{
    static const char units[] = "KMG";
    char digits[24];
    uint64_t number = 0;
    size_t size = strspn(value, "0123456789");
    const char *unit = value[size] ? strchr(units, value[size]) : NULL;
    if (size >= sizeof(digits) || (value[size] && (!unit || value[size + 1])))
        return false;
    snprintf(digits, sizeof(digits), "%.*s", (int)size, value);
    unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
    if (!parse_u64(digits, &number) || number > BENCH_MAX_BYTES >> shift)
        return false;
    *bytes = number << shift;
    return true;
}

static int add_size(struct bench_options *options, const char *item)
{
    uint64_t bytes = 0;
    if (!parse_bytes(item, &bytes) || bytes == 0)
        return cli_misuse("bench",
                          "--sizes: '%s' is not a size such as 4, 32K, 25M or 1G (64G at "
                          "most)",
                          item);
    if (options->size_count == BENCH_MAX_SIZES)
        return cli_misuse("bench", "--sizes: %d sizes at most", BENCH_MAX_SIZES);
    options->sizes[options->size_count++] = bytes;
    return 0;
}

static int add_dtype(struct bench_options *options, const char *item)
{
    const struct bench_dtype *dtype = NULL;
    for (size_t i = 0; i < BENCH_DTYPES; i++) {
        if (strcmp(item, dtypes[i].name) == 0)
            dtype = &dtypes[i];
    }
    if (!dtype)
        return cli_misuse("bench",
                          "--dtypes: '%s' is not one of float32, float64, float16, "
                          "bfloat16, int32, int64, uint8",
                          item);
    for (uint32_t i = 0; i < options->dtype_count; i++) {
        if (options->dtypes[i] == dtype)
            return cli_misuse("bench", "--dtypes: '%s' is there twice", item);
    }
    options->dtypes[options->dtype_count++] = dtype;
    return 0;
}

static int set_buckets(struct bench_options *options, const char *value)
{
    const char *at = value;
    for (int i = 0; i < BENCH_BUCKETS; i++) {
        char item[32];
        uint64_t bytes = 0;
        size_t size = strcspn(at, ",");
        bool last = i == BENCH_BUCKETS - 1;
        snprintf(item, sizeof(item), "%.*s", size < sizeof(item) ? (int)size : 0, at);
        if (!parse_bytes(item, &bytes) || (at[size] == '\0') != last)
            return cli_misuse("bench", "--buckets %s: not three sizes such as 1M,25M,1M", value);
        options->buckets[i] = (size_t)bytes;
        at += size + 1;
    }
    options->buckets_given = true;
    return 0;
}

static int set_number(const char *name, const char *value, uint64_t low, uint64_t high,
                      uint64_t *number)
{
    if (!parse_u64(value, number) || *number < low || *number > high)
        return cli_misuse("bench", "--%s %s: a number from %llu to %llu", name, value,
                          (unsigned long long)low, (unsigned long long)high);
    return 0;
}

static int set_small(const char *name, const char *value, uint32_t low, uint32_t high,
                     uint32_t *number)
{
    uint64_t wide = 0;
    int result = set_number(name, value, low, high, &wide);
    *number = (uint32_t)wide;
    return result;
}

// Reads a positive number, with or without a decimal point.
static int set_decimal(const char *name, const char *value, double high, double *number)
{
    char *end = NULL;
    *number = strtod(value, &end);
    if (end == value || *end || !(*number > 0) || *number > high)
        return cli_misuse("bench", "--%s %s: a number above 0, at most %g", name, value, high);
    return 0;
}

static int set_mode(struct bench_options *options, const char *value)
{
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (strcmp(value, modes[i]) == 0) {
            options->mode = (enum bench_mode)i;
            return 0;
        }
    }
    return cli_misuse("bench", "--mode %s: not blocking, async or step", value);
}

static int set_transport(struct bench_options *options, const char *value)
{
    for (size_t i = 0; i < sizeof(transports) / sizeof(transports[0]); i++) {
        if (strcmp(value, transports[i].name) == 0) {
            options->transport = transports[i].kind;
            options->transport_given = true;
            return 0;
        }
    }
    if (strcmp(value, "loopback") == 0)
        return cli_misuse("bench", "--transport loopback joins sessions of one process; ranks of "
                                   "a benchmark are processes");
    return cli_misuse("bench", "--transport %s: not auto or tcp", value);
}

static int set_memory(struct bench_options *options, const char *value)
{
    options->registered = strcmp(value, "registered") == 0;
    if (!options->registered && strcmp(value, "private") != 0)
        return cli_misuse("bench", "--memory %s: not private or registered", value);
    return 0;
}

// ---- Options -----------------------------------------------------------------------------------

enum option_key {
    KEY_RANKS = 256,
    KEY_MODE,
    KEY_SIZES,
    KEY_DTYPES,
    KEY_TRANSPORT,
    KEY_MEMORY,
    KEY_COLD,
    KEY_IN_FLIGHT,
    KEY_BACKWARD_MS,
    KEY_BUCKETS,
    KEY_SECONDS,
    KEY_ITERATIONS,
    KEY_WARMUP,
    KEY_JSON,
    KEY_RAW,
};

static const struct option long_options[] = {
    {"ranks", required_argument, NULL, KEY_RANKS},
    {"mode", required_argument, NULL, KEY_MODE},
    {"sizes", required_argument, NULL, KEY_SIZES},
    {"dtypes", required_argument, NULL, KEY_DTYPES},
    {"transport", required_argument, NULL, KEY_TRANSPORT},
    {"memory", required_argument, NULL, KEY_MEMORY},
    {"cold", no_argument, NULL, KEY_COLD},
    {"in-flight", required_argument, NULL, KEY_IN_FLIGHT},
    {"backward-ms", required_argument, NULL, KEY_BACKWARD_MS},
    {"buckets", required_argument, NULL, KEY_BUCKETS},
    {"seconds", required_argument, NULL, KEY_SECONDS},
    {"iterations", required_argument, NULL, KEY_ITERATIONS},
    {"warmup", required_argument, NULL, KEY_WARMUP},
    {"json", no_argument, NULL, KEY_JSON},
    {"raw", required_argument, NULL, KEY_RAW},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

// Takes an option that says what to measure. Returns 0, or an exit status.
static int set_subject(struct bench_options *options, int key, const char *value)
{
    switch (key) {
    case KEY_RANKS:
        return set_small("ranks", value, 2, LOCKSTEP_MAX_WORLD, &options->ranks);
    case KEY_MODE:
        return set_mode(options, value);
    case KEY_SIZES:
        options->size_count = 0;
        return each_item(options, value, add_size);
    case KEY_DTYPES:
        options->dtype_count = 0;
        return each_item(options, value, add_dtype);
    case KEY_TRANSPORT:
        return set_transport(options, value);
    case KEY_MEMORY:
        return set_memory(options, value);
    case KEY_IN_FLIGHT:
        return set_small("in-flight", value, 2, BENCH_MAX_IN_FLIGHT, &options->in_flight);
    case KEY_BACKWARD_MS:
        return set_decimal("backward-ms", value, MAX_BACKWARD_MS, &options->backward_ms);
    default:
        return set_buckets(options, value);
    }
}

// Returns 0, an exit status, or -1 if the help was printed.
static int set_option(void *given, int key, char *value)
{
    struct bench_options *options = given;
    switch (key) {
    case KEY_COLD:
        options->cold = true;
        return 0;
    case KEY_SECONDS:
        return set_decimal("seconds", value, MAX_SECONDS, &options->seconds);
    case KEY_ITERATIONS:
        return set_number("iterations", value, 1, BENCH_MAX_ITERATIONS, &options->iterations);
    case KEY_WARMUP:
        return set_number("warmup", value, 1, MAX_WARMUP, &options->warmup);
    case KEY_JSON:
        options->json = true;
        return 0;
    case KEY_RAW:
        options->raw = value;
        return 0;
    default:
        return set_subject(options, key, value);
    }
}

static const struct cli_syntax syntax = {.name = "bench",
                                         .letters = ":h",
                                         .options = long_options,
                                         .help = help_text,
                                         .take = set_option};

// Checks the rows of the mode `step`. A step averages gradients, and has one phase for each row.
static int check_rows(const struct bench_options *options)
{
    uint32_t rows = options->size_count * options->dtype_count;
    bool step = options->mode == BENCH_STEP;
    uint32_t most = step ? LOCKSTEP_MAX_PHASES : BENCH_MAX_ROWS;
    if (rows > most)
        return cli_misuse("bench", "sizes times dtypes is %u; with --mode %s at most %u", rows,
                          bench_mode_name(options->mode), most);
    if (!step)
        return 0;
    for (uint32_t i = 0; i < options->dtype_count; i++) {
        if (!options->dtypes[i]->is_float)
            return cli_misuse("bench", "--mode step: gradients are floating point, not %s",
                              options->dtypes[i]->name);
    }
    return 0;
}

static int check_options(const struct bench_options *options)
{
    if (options->iterations && options->seconds > 0)
        return cli_misuse("bench", "--seconds and --iterations exclude each other");
    if (options->in_flight && options->mode != BENCH_ASYNC)
        return cli_misuse("bench", "--in-flight belongs to --mode async");
    if (options->backward_ms > 0 && options->mode != BENCH_STEP)
        return cli_misuse("bench", "--backward-ms belongs to --mode step");
    if (options->buckets_given && options->mode != BENCH_STEP)
        return cli_misuse("bench", "--buckets belongs to --mode step");
    return check_rows(options);
}

static void set_defaults(struct bench_options *options)
{
    if (!options->ranks)
        options->ranks = DEFAULT_RANKS;
    if (options->size_count == 0)
        each_item(options, DEFAULT_SIZES, add_size);
    if (options->dtype_count == 0)
        each_item(options, "float32", add_dtype);
    if (!options->warmup)
        options->warmup = DEFAULT_WARMUP;
}

// The session would let LOCKSTEP_TRANSPORT win over the option. A value that means nothing is left
// to the session, which says so.
static void settle_transport(struct bench_options *options)
{
    const char *value = getenv("LOCKSTEP_TRANSPORT");
    if (options->transport_given)
        unsetenv("LOCKSTEP_TRANSPORT");
    else if (value && strcmp(value, "tcp") == 0)
        options->transport = LOCKSTEP_TRANSPORT_TCP;
}

int bench_read_options(struct bench_options *options, int argc, char **argv)
{
    *options = (struct bench_options){.mode = BENCH_BLOCKING};
    const int read = cli_read_options(&syntax, options, argc, argv);
    if (read != 0)
        return read;
    if (optind < argc)
        return cli_misuse("bench", "unexpected argument '%s'", argv[optind]);
    set_defaults(options);
    settle_transport(options);
    int result = check_options(options);
    if (options->in_flight == 0)
        options->in_flight = options->mode == BENCH_ASYNC ? DEFAULT_IN_FLIGHT : 1;
    if (options->backward_ms == 0)
        options->backward_ms = DEFAULT_BACKWARD_MS;
    if (options->seconds == 0)
        options->seconds = 1;
    return result;
}

// ---- The ranks ---------------------------------------------------------------------------------

// Checks that the raw file can be written, so that an error is reported before anything is
// measured.
static int check_raw(const char *path)
{
    FILE *file = path ? fopen(path, "we") : NULL;
    if (path && !file) {
        cli_say("bench", "--raw %s: %s", path, strerror(errno));
        return CLI_FAILED;
    }
    if (file)
        fclose(file);
    return 0;
}

static void warn_cores(uint32_t ranks)
{
    uint32_t cores = bench_cores();
    if (ranks > cores)
        cli_say("bench",
                "%u ranks share %u core%s: times say as much about the scheduler as about "
                "the library",
                ranks, cores, cores == 1 ? "" : "s");
}

// Starts the ranks: this program with the same arguments.
static int launch_ranks(const struct bench_options *options, int argc, char **argv)
{
    char own[PATH_MAX];
    struct run_options run = {.command = "bench",
                              .workers = options->ranks,
                              .world_size = options->ranks,
                              .grace_ms = RUN_GRACE_MS,
                              .http = "off",
                              .quiet = true,
                              .needs_output = true};
    ssize_t size = readlink("/proc/self/exe", own, sizeof(own) - 1);
    run.trainer = calloc((size_t)argc + 2, sizeof(char *));
    if (size < 0 || !run.trainer) {
        cli_say("bench", "cannot find this program again: %s", strerror(errno));
        free(run.trainer);
        return CLI_FAILED;
    }
    own[size] = '\0';
    char command[] = WORKER_COMMAND;
    run.trainer[0] = own;
    run.trainer[1] = command;
    for (int i = 1; i < argc; i++)
        run.trainer[i + 1] = argv[i];
    run_default_job(&run);
    int result = run_launch(&run);
    free(run.trainer);
    return result;
}

int bench_main(int argc, char **argv)
{
    struct bench_options options;
    int result = bench_read_options(&options, argc, argv);
    if (result != 0)
        return result < 0 ? CLI_OK : result;
    result = check_raw(options.raw);
    if (result != 0)
        return result;
    warn_cores(options.ranks);
    return launch_ranks(&options, argc, argv);
}
