// SPDX-License-Identifier: Apache-2.0
//
// Computes figures from samples, and prints them as tables for people or as JSON for machines.
// docs/performance.md explains the columns, docs/cli.md lists the members. Rank 0's trainer thread;
// pure except for the printing.

#include "cli/bench/report.h"

#include "cli/bench/bench.h"
#include "cli/common/cli.h"

#include "base/json.h"
#include "cli/run/stream.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define JSON_BYTES STREAM_LINE_BYTES // The relay of `lockstep run` would cut a longer line.
#define JSON_ROW_BYTES 900
#define JSON_HEAD_BYTES 2000
#define CELL_BYTES 24
// A row is noisy if the distance of its quartiles is more than this share of the median.
#define NOISY_SHARE 0.25
#define GB 1e9

static_assert(BENCH_MAX_ROWS * JSON_ROW_BYTES + JSON_HEAD_BYTES <= JSON_BYTES, "one line holds it");

// ---- Figures -----------------------------------------------------------------------------------

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

// Returns the smallest sample for which at least this share of all samples is not larger.
static double percentile(const double *sorted, uint64_t count, double share)
{
    uint64_t index = (uint64_t)ceil(share * (double)count);
    return sorted[index > 0 ? index - 1 : 0];
}

struct bench_spread bench_spread_of(double *samples, uint64_t count)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += samples[i];
    qsort(samples, (size_t)count, sizeof(*samples), compare);
    return (struct bench_spread){.min_us = samples[0],
                                 .p25_us = percentile(samples, count, 0.25),
                                 .p50_us = percentile(samples, count, 0.5),
                                 .p75_us = percentile(samples, count, 0.75),
                                 .p90_us = percentile(samples, count, 0.9),
                                 .p99_us = percentile(samples, count, 0.99),
                                 .mean_us = sum / (double)count};
}

// Figures computed from a row, the limits and the number of ranks. NAN: an input is missing.
struct figures {
    double iqr_us;
    double algorithm_bytes_per_s; // Payload divided by time.
    double bus_bytes_per_s; // A rank of a ring sends 2 (n - 1) / n of the payload.
    double tcp_share;
    double memcpy_share;
    double cpu_s_per_gb; // Processor time of one rank for each GB of its payload.
    double cycles_per_byte;
    double hidden_share;
};

// Returns the hidden share of the communication, or NAN if the exposed time varies by more than the
// communication takes: then it says nothing.
static double hidden_share(const struct bench_row *row)
{
    if (row->exposed.p75_us - row->exposed.p25_us > row->communication.p50_us)
        return NAN;
    return 1 - row->exposed.p50_us / row->communication.p50_us;
}

static struct figures figures_of(const struct bench_report *report, const struct bench_row *row)
{
    const double ranks = report->options->ranks;
    const bool step = report->options->mode == BENCH_STEP;
    const double time_us = step ? row->communication.p50_us : row->time.p50_us;
    const double moved = ranks * row->payload_bytes * (double)row->iterations;
    struct figures figures = {.iqr_us = row->time.p75_us - row->time.p25_us};
    figures.algorithm_bytes_per_s = row->payload_bytes / time_us * 1e6;
    figures.bus_bytes_per_s = figures.algorithm_bytes_per_s * 2 * (ranks - 1) / ranks;
    figures.tcp_share = figures.bus_bytes_per_s / report->tcp_bytes_per_s;
    figures.memcpy_share = figures.bus_bytes_per_s / report->memcpy_bytes_per_s;
    figures.cpu_s_per_gb = row->cost.cpu_s / moved * GB;
    figures.cycles_per_byte = row->cost.cycles / moved;
    figures.hidden_share = step ? hidden_share(row) : NAN;
    return figures;
}

static bool is_noisy(const struct bench_row *row)
{
    return row->time.p75_us - row->time.p25_us > NOISY_SHARE * row->time.p50_us;
}

// ---- Tables ------------------------------------------------------------------------------------

static const char *size_cell(uint64_t bytes, char cell[CELL_BYTES])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
    unsigned unit = 0;
    while (unit < 3 && bytes % 1024 == 0) {
        bytes /= 1024;
        unit++;
    }
    snprintf(cell, CELL_BYTES, "%llu %s", (unsigned long long)bytes, units[unit]);
    return cell;
}

static const char *time_cell(double us, char cell[CELL_BYTES])
{
    snprintf(cell, CELL_BYTES, fabs(us) < 100000 ? "%.1f" : "%.0f", us);
    return cell;
}

// Prints two decimals, or two significant digits if the number is very small or very large.
static const char *number_cell(double value, char cell[CELL_BYTES])
{
    snprintf(cell, CELL_BYTES, value >= 0.01 && value < 10000 ? "%.2f" : "%.1e", value);
    return cell;
}

// Prints at most five characters for a share that is not negative.
static const char *share_cell(double share, char cell[CELL_BYTES])
{
    if (isnan(share))
        snprintf(cell, CELL_BYTES, "-");
    else if (share >= 9.995)
        snprintf(cell, CELL_BYTES, ">999%%");
    else
        snprintf(cell, CELL_BYTES, "%.0f%%", 100 * share);
    return cell;
}

static const char *cycles_cell(double cycles, char cell[CELL_BYTES])
{
    if (isnan(cycles))
        snprintf(cell, CELL_BYTES, "-");
    else
        snprintf(cell, CELL_BYTES, cycles < 100 ? "%.1f" : "%.0f", cycles);
    return cell;
}

static void print_limit(const char *what, double bytes_per_s)
{
    if (isnan(bytes_per_s))
        printf("%s not measured", what);
    else
        printf("%s %.2f GB/s", what, bytes_per_s / GB);
}

void bench_print_head(const struct bench_report *report)
{
    const struct bench_options *options = report->options;
    printf("lockstep %s: %s, %u ranks on %u cores, transport %s, %s memory, %s\n",
           lockstep_version(), bench_mode_name(options->mode), options->ranks, bench_cores(),
           bench_transport_name(options->transport), options->registered ? "registered" : "private",
           options->cold ? "cold" : "warm");
    print_limit("limits measured here: memcpy (one thread)", report->memcpy_bytes_per_s);
    print_limit(", loopback TCP (one stream)", report->tcp_bytes_per_s);
    if (!isnan(report->line_ns))
        printf("\na line of the cache goes to another core and back in %.0f ns", report->line_ns);
    if (options->mode == BENCH_ASYNC)
        printf("\nan iteration is %u collectives in flight together", options->in_flight);
    if (options->mode == BENCH_STEP)
        printf("\na backward pass is %g ms of work", options->backward_ms);
    if (report->cycles_error)
        printf("\ncycles are not counted: perf_event_open: %s", strerror(report->cycles_error));
    printf("\n");
    cli_flush("bench");
}

static void print_columns(const struct bench_report *report, const struct bench_dtype *dtype)
{
    if (report->options->mode == BENCH_STEP) {
        printf("\n%-8s%7s%10s%10s%10s%10s%6s%10s%8s%8s%6s%7s\n", dtype->name, "", "compute",
               "comm.", "step", "step", "step", "exposed", "hidden", "busbw", "of", "cpu");
        printf("%8s%7s%10s%10s%10s%10s%6s%10s%8s%8s%6s%7s\n", "size", "steps", "p50 us", "p50 us",
               "p50 us", "p99 us", "iqr", "us", "", "GB/s", "tcp", "s/GB");
    } else {
        printf("\n%-8s%8s%9s%9s%9s%9s%6s%8s%8s%6s%6s%8s%6s\n", dtype->name, "", "min", "p50", "p90",
               "p99", "", "algbw", "busbw", "of", "of", "cpu", "cyc/");
        printf("%8s%8s%9s%9s%9s%9s%6s%8s%8s%6s%6s%8s%6s\n", "size", "iters", "us", "us", "us", "us",
               "iqr", "GB/s", "GB/s", "tcp", "mem", "s/GB", "byte");
    }
}

static void print_plain(const struct bench_row *row, const struct figures *figures)
{
    char cells[12][CELL_BYTES];
    const struct bench_spread *time = &row->time;
    printf("%8s%8llu%9s%9s%9s%9s%6s%8s%8s%6s%6s%8s%6s\n", size_cell(row->bytes, cells[0]),
           (unsigned long long)row->iterations, time_cell(time->min_us, cells[1]),
           time_cell(time->p50_us, cells[2]), time_cell(time->p90_us, cells[3]),
           time_cell(time->p99_us, cells[4]), share_cell(figures->iqr_us / time->p50_us, cells[5]),
           number_cell(figures->algorithm_bytes_per_s / GB, cells[6]),
           number_cell(figures->bus_bytes_per_s / GB, cells[7]),
           share_cell(figures->tcp_share, cells[8]), share_cell(figures->memcpy_share, cells[9]),
           number_cell(figures->cpu_s_per_gb, cells[10]),
           cycles_cell(figures->cycles_per_byte, cells[11]));
}

static void print_step(const struct bench_row *row, const struct figures *figures)
{
    char cells[11][CELL_BYTES];
    const struct bench_spread *time = &row->time;
    printf("%8s%7llu%10s%10s%10s%10s%6s%10s%8s%8s%6s%7s\n", size_cell(row->bytes, cells[0]),
           (unsigned long long)row->iterations, time_cell(row->compute.p50_us, cells[1]),
           time_cell(row->communication.p50_us, cells[2]), time_cell(time->p50_us, cells[3]),
           time_cell(time->p99_us, cells[4]), share_cell(figures->iqr_us / time->p50_us, cells[5]),
           time_cell(row->exposed.p50_us, cells[6]), share_cell(figures->hidden_share, cells[7]),
           number_cell(figures->bus_bytes_per_s / GB, cells[8]),
           share_cell(figures->tcp_share, cells[9]), number_cell(figures->cpu_s_per_gb, cells[10]));
}

void bench_print_row(const struct bench_report *report, const struct bench_row *row)
{
    struct figures figures = figures_of(report, row);
    if (row == report->rows || row[-1].dtype != row->dtype)
        print_columns(report, row->dtype);
    if (report->options->mode == BENCH_STEP)
        print_step(row, &figures);
    else
        print_plain(row, &figures);
    cli_flush("bench");
}

void bench_print_end(const struct bench_report *report)
{
    uint32_t noisy = 0;
    for (uint32_t i = 0; i < report->row_count; i++)
        noisy += is_noisy(&report->rows[i]);
    if (noisy > 0)
        printf("\nnoisy: in %u of %u rows the quartiles are more than %.0f%% of the median apart\n",
               noisy, report->row_count, 100 * NOISY_SHARE);
    if (report->runs_cached + report->runs_past > 0)
        printf("\nslots of shared memory: %" PRIu64 " runs through the caches, %" PRIu64
               " past them\n",
               report->runs_cached, report->runs_past);
    cli_flush("bench");
}

// ---- JSON --------------------------------------------------------------------------------------

// Writes a figure with six digits; more would be noise.
static void json_figure(struct json *json, const char *key, double value)
{
    char digits[CELL_BYTES];
    snprintf(digits, sizeof(digits), "%.6g", value);
    json_double(json, key, strtod(digits, NULL));
}

static void json_options(struct json *json, const struct bench_options *options)
{
    static const char *const names[BENCH_BUCKETS] = {"first", "next", "last"};
    json_string(json, "mode", bench_mode_name(options->mode));
    json_u64(json, "ranks", options->ranks);
    json_u64(json, "cores", bench_cores());
    json_bool(json, "oversubscribed", options->ranks > bench_cores());
    json_string(json, "transport", bench_transport_name(options->transport));
    json_string(json, "memory", options->registered ? "registered" : "private");
    json_bool(json, "cold", options->cold);
    json_u64(json, "in_flight", options->in_flight);
    json_u64(json, "warmup", options->warmup);
    if (options->mode != BENCH_STEP)
        return;
    json_double(json, "backward_ms", options->backward_ms);
    json_object_begin(json, "buckets");
    for (int i = 0; i < BENCH_BUCKETS; i++)
        json_u64(json, names[i], options->buckets[i]);
    json_object_end(json);
}

static void json_limits(struct json *json, const struct bench_report *report)
{
    json_object_begin(json, "limits");
    json_figure(json, "memcpy_gb_per_s", report->memcpy_bytes_per_s / GB);
    json_figure(json, "tcp_gb_per_s", report->tcp_bytes_per_s / GB);
    json_figure(json, "line_ns", report->line_ns);
    json_object_end(json);
    char missing[128];
    snprintf(missing, sizeof(missing), "perf_event_open: %s", strerror(report->cycles_error));
    json_string(json, "cycles_missing", report->cycles_error ? missing : NULL);
}

static void json_times(struct json *json, const struct bench_row *row,
                       const struct figures *figures)
{
    json_figure(json, "min_us", row->time.min_us);
    json_figure(json, "p50_us", row->time.p50_us);
    json_figure(json, "p90_us", row->time.p90_us);
    json_figure(json, "p99_us", row->time.p99_us);
    json_figure(json, "mean_us", row->time.mean_us);
    json_figure(json, "iqr_us", figures->iqr_us);
    json_bool(json, "noisy", is_noisy(row));
}

static void json_rates(struct json *json, const struct figures *figures)
{
    json_figure(json, "algorithm_gb_per_s", figures->algorithm_bytes_per_s / GB);
    json_figure(json, "bus_gb_per_s", figures->bus_bytes_per_s / GB);
    json_figure(json, "tcp_share", figures->tcp_share);
    json_figure(json, "memcpy_share", figures->memcpy_share);
    json_figure(json, "cpu_s_per_gb", figures->cpu_s_per_gb);
    json_figure(json, "cycles_per_byte", figures->cycles_per_byte);
}

static void json_row(struct json *json, const struct bench_report *report,
                     const struct bench_row *row)
{
    struct figures figures = figures_of(report, row);
    json_object_begin(json, NULL);
    json_string(json, "dtype", row->dtype->name);
    json_u64(json, "bytes", row->bytes);
    json_u64(json, "iterations", row->iterations);
    json_times(json, row, &figures);
    json_rates(json, &figures);
    if (report->options->mode == BENCH_STEP) {
        json_u64(json, "tensors", row->tensors);
        json_figure(json, "compute_us", row->compute.p50_us);
        json_figure(json, "communication_us", row->communication.p50_us);
        json_figure(json, "exposed_us", row->exposed.p50_us);
        json_figure(json, "hidden_share", figures.hidden_share);
        json_figure(json, "waited_us", row->waited.p50_us);
    }
    json_object_end(json);
}

void bench_print_json(const struct bench_report *report)
{
    struct json json;
    json_init(&json, JSON_BYTES);
    json_object_begin(&json, NULL);
    json_string(&json, "lockstep", lockstep_version());
    json_options(&json, report->options);
    json_limits(&json, report);
    json_object_begin(&json, "slots");
    json_u64(&json, "cached_runs", report->runs_cached);
    json_u64(&json, "past_runs", report->runs_past);
    json_object_end(&json);
    json_array_begin(&json, "results");
    for (uint32_t i = 0; i < report->row_count; i++)
        json_row(&json, report, &report->rows[i]);
    json_array_end(&json);
    json_object_end(&json);
    const char *text = json_text(&json, NULL);
    if (text)
        printf("%s\n", text);
    cli_flush("bench");
    json_fini(&json);
}
