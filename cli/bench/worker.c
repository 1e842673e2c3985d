// SPDX-License-Identifier: Apache-2.0
//
// `lockstep bench-worker`: one rank of a benchmark, which `lockstep bench` starts. It measures row
// by row; rank 0 prints. Trainer's thread.
//
// An iteration takes as long as its slowest rank, so the times of a row are the maxima over ranks,
// iteration by iteration. An allreduce after the row gathers them, so nothing else happens between
// two iterations.
//
// The number of iterations follows from the warm-up, whose times are gathered in the same way. So
// all ranks compute it from the same numbers.

#include "cli/bench/worker.h"

#include "cli/bench/bench.h"
#include "cli/bench/limits.h"
#include "cli/bench/line.h"
#include "cli/bench/report.h"
#include "cli/bench/step.h"
#include "cli/common/cli.h"

#include "base/parse.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define SLOT_ALIGN 4096

void bench_check(const struct bench_worker *worker, int status, const char *what)
{
    if (status >= 0)
        return;
    cli_say("bench", "rank %u: %s: %s: %s", worker->rank, what, lockstep_status_name(status),
            lockstep_error_text());
    exit(CLI_FAILED);
}

static void *allocate(const struct bench_worker *worker, size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (!memory) {
        cli_say("bench", "rank %u: no memory for %zu times %zu bytes", worker->rank, count, size);
        exit(CLI_FAILED);
    }
    return memory;
}

double bench_now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e6 * (double)time.tv_sec + 1e-3 * (double)time.tv_nsec;
}

// ---- Memory of payloads ------------------------------------------------------------------------

static size_t slot_stride(uint64_t bytes)
{
    return (size_t)((bytes + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN);
}

// Returns the size of the arena. With cold caches, a slot is used again only after so many others
// that no cache still holds it.
static size_t arena_size(const struct bench_worker *worker, uint64_t largest)
{
    size_t size = slot_stride(largest) * worker->options->in_flight;
    size_t cold = 2 * bench_cache_bytes() + slot_stride(largest);
    return worker->options->cold && cold > size ? cold : size;
}

unsigned char *bench_slot(struct bench_worker *worker, uint64_t bytes, uint32_t slots)
{
    uint64_t there = worker->arena_bytes / slot_stride(bytes);
    uint64_t turn = worker->turn++ % (worker->options->cold ? there : slots);
    return worker->arena + turn * slot_stride(bytes);
}

static uint64_t largest_row(const struct bench_report *report)
{
    uint64_t largest = 0;
    for (uint32_t i = 0; i < report->row_count; i++) {
        if (report->rows[i].bytes > largest)
            largest = report->rows[i].bytes;
    }
    return largest;
}

static void open_arena(struct bench_worker *worker)
{
    void *memory = NULL;
    worker->arena_bytes = arena_size(worker, largest_row(worker->report) + BENCH_GAP_BYTES);
    if (worker->options->registered) {
        bench_check(worker, lockstep_alloc(worker->session, worker->arena_bytes, &memory),
                    "lockstep_alloc");
    } else {
        memory = mmap(NULL, worker->arena_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            cli_say("bench", "rank %u: no memory for %zu bytes of payload: %s", worker->rank,
                    worker->arena_bytes, strerror(errno));
            exit(CLI_FAILED);
        }
    }
    worker->arena = memory;
    memset(worker->arena, 0, worker->arena_bytes); // Allocates every page before a row is timed.
}

// Frees the arena. The session has already freed registered memory.
static void close_arena(struct bench_worker *worker)
{
    if (!worker->options->registered)
        munmap(worker->arena, worker->arena_bytes);
}

// ---- Gathering ---------------------------------------------------------------------------------

// Writes every rank's own times, one rank after the other.
static void write_raw(struct bench_worker *worker, const struct bench_row *row,
                      const struct bench_series *series)
{
    double *samples = allocate(worker, (size_t)row->iterations, sizeof(*samples));
    for (uint32_t rank = 0; rank < worker->options->ranks; rank++) {
        if (rank == worker->rank)
            memcpy(samples, series->samples, (size_t)row->iterations * sizeof(*samples));
        bench_check(worker,
                    lockstep_broadcast(worker->session, "bench/raw", samples, row->iterations,
                                       LOCKSTEP_FLOAT64, rank, LOCKSTEP_WAIT_FOREVER),
                    "gathering samples");
        for (uint64_t i = 0; worker->raw && i < row->iterations; i++)
            fprintf(worker->raw, "%s,%llu,%s,%u,%llu,%.3f\n", row->dtype->name,
                    (unsigned long long)row->bytes, series->name, rank, (unsigned long long)i,
                    samples[i]);
    }
    free(samples);
}

static void gather_maxima(struct bench_worker *worker, double *samples, uint64_t count)
{
    bench_check(worker,
                lockstep_allreduce(worker->session, "bench/maxima", samples, count,
                                   LOCKSTEP_FLOAT64, LOCKSTEP_MAX, LOCKSTEP_WAIT_FOREVER),
                "gathering times");
}

static void gather_cost(struct bench_worker *worker, struct bench_cost *cost)
{
    double sums[] = {cost->cpu_s, cost->cycles};
    bench_check(worker,
                lockstep_allreduce(worker->session, "bench/cost", sums, 2, LOCKSTEP_FLOAT64,
                                   LOCKSTEP_SUM, LOCKSTEP_WAIT_FOREVER),
                "gathering cost");
    *cost = (struct bench_cost){.cpu_s = sums[0], .cycles = sums[1]};
}

// ---- Measuring ---------------------------------------------------------------------------------

static void allocate_series(struct bench_worker *worker, struct bench_program *program,
                            uint64_t count)
{
    bench_program_fini(program);
    for (uint32_t i = 0; i < program->series_count; i++) {
        double *samples = allocate(worker, (size_t)count, sizeof(*samples));
        for (uint64_t j = 0; j < count; j++)
            samples[j] = NAN; // Allocates the pages now instead of in the first iterations.
        program->series[i].samples = samples;
    }
}

void bench_program_fini(struct bench_program *program)
{
    for (uint32_t i = 0; i < program->series_count; i++) {
        free(program->series[i].samples);
        program->series[i].samples = NULL;
    }
}

static void iterate(struct bench_worker *worker, struct bench_program *program, uint64_t count)
{
    bench_check(worker, lockstep_barrier(worker->session, "bench/begin", LOCKSTEP_WAIT_FOREVER),
                "beginning a row");
    for (uint64_t i = 0; i < count; i++)
        program->iterate(program->context, i);
}

// Warms up. Returns the time of one iteration: the median of the warm-up, summed over all series.
static double warm_up(struct bench_worker *worker, struct bench_program *program)
{
    double total_us = 0;
    uint64_t count = worker->options->warmup;
    allocate_series(worker, program, count);
    iterate(worker, program, count);
    for (uint32_t i = 0; i < program->series_count; i++) {
        gather_maxima(worker, program->series[i].samples, count);
        total_us += bench_spread_of(program->series[i].samples, count).p50_us;
    }
    return total_us;
}

static uint64_t choose_iterations(const struct bench_options *options, double iteration_us)
{
    double fit = options->seconds * 1e6 / iteration_us;
    if (options->iterations)
        return options->iterations;
    if (!(fit > BENCH_MIN_ITERATIONS))
        return BENCH_MIN_ITERATIONS;
    return fit < BENCH_MAX_ITERATIONS ? (uint64_t)fit : BENCH_MAX_ITERATIONS;
}

void bench_measure(struct bench_worker *worker, struct bench_row *row,
                   struct bench_program *program)
{
    struct bench_cost before;
    row->iterations = choose_iterations(worker->options, warm_up(worker, program));
    allocate_series(worker, program, row->iterations);
    program->cost = (struct bench_cost){0};
    before = bench_cost_now();
    iterate(worker, program, row->iterations);
    if (!program->own_cost)
        bench_cost_add(&program->cost, before, bench_cost_now());
    for (uint32_t i = 0; i < program->series_count; i++) {
        if (worker->options->raw)
            write_raw(worker, row, &program->series[i]);
        gather_maxima(worker, program->series[i].samples, row->iterations);
    }
    row->cost = program->cost;
    gather_cost(worker, &row->cost);
}

// ---- Plain collectives -------------------------------------------------------------------------

struct plain {
    struct bench_worker *worker;
    struct bench_row *row;
    struct bench_program program;
};

static void iterate_blocking(void *context, uint64_t iteration)
{
    struct plain *plain = context;
    const struct bench_row *row = plain->row;
    void *payload = bench_slot(plain->worker, row->bytes, 1);
    double begin_us = bench_now_us();
    int status = lockstep_allreduce(plain->worker->session, "bench", payload, row->count,
                                    row->dtype->value, LOCKSTEP_SUM, LOCKSTEP_WAIT_FOREVER);
    plain->program.series[0].samples[iteration] = bench_now_us() - begin_us;
    bench_check(plain->worker, status, "lockstep_allreduce");
}

static void iterate_async(void *context, uint64_t iteration)
{
    struct plain *plain = context;
    struct bench_worker *worker = plain->worker;
    const struct bench_row *row = plain->row;
    lockstep_work *work[BENCH_MAX_IN_FLIGHT];
    double begin_us = bench_now_us();
    for (uint32_t i = 0; i < worker->options->in_flight; i++) {
        void *payload = bench_slot(worker, row->bytes, worker->options->in_flight);
        char name[24];
        snprintf(name, sizeof(name), "bench/%u", i);
        bench_check(worker,
                    lockstep_allreduce_async(worker->session, name, payload, row->count,
                                             row->dtype->value, LOCKSTEP_SUM, &work[i]),
                    "lockstep_allreduce_async");
    }
    for (uint32_t i = 0; i < worker->options->in_flight; i++)
        bench_check(worker, lockstep_work_wait(work[i], LOCKSTEP_WAIT_FOREVER),
                    "lockstep_work_wait");
    plain->program.series[0].samples[iteration] = bench_now_us() - begin_us;
}

static void fill(unsigned char *payload, const struct bench_row *row, const unsigned char *element)
{
    for (uint64_t i = 0; i < row->count; i++)
        memcpy(payload + i * row->dtype->size, element, row->dtype->size);
}

// Checks that the collective works, because a figure for a wrong result is worthless. Rank 0 has
// ones, the others zeros, and the result must be ones on all ranks. Afterwards all payloads are
// zero, and stay zero however often they are summed.
static void verify(struct bench_worker *worker, const struct bench_row *row)
{
    static const unsigned char zero[8];
    const unsigned char *one = row->dtype->one;
    unsigned char *payload = worker->arena;
    fill(payload, row, worker->rank == 0 ? one : zero);
    bench_check(worker,
                lockstep_allreduce(worker->session, "bench/verify", payload, row->count,
                                   row->dtype->value, LOCKSTEP_SUM, LOCKSTEP_WAIT_FOREVER),
                "lockstep_allreduce");
    for (uint64_t i = 0; i < row->count; i++) {
        if (memcmp(payload + i * row->dtype->size, one, row->dtype->size) == 0)
            continue;
        cli_say("bench", "rank %u: %s, %llu bytes: element %llu of the sum is wrong", worker->rank,
                row->dtype->name, (unsigned long long)row->bytes, (unsigned long long)i);
        exit(CLI_FAILED);
    }
    memset(payload, 0, (size_t)row->bytes);
}

static void plain_row(struct bench_worker *worker, struct bench_row *row)
{
    bool async = worker->options->mode == BENCH_ASYNC;
    struct plain plain = {.worker = worker, .row = row};
    plain.program = (struct bench_program){.iterate = async ? iterate_async : iterate_blocking,
                                           .context = &plain,
                                           .series = {{.name = async ? "batch" : "allreduce"}},
                                           .series_count = 1};
    worker->turn = 0;
    verify(worker, row);
    bench_measure(worker, row, &plain.program);
    row->payload_bytes = (double)row->bytes * worker->options->in_flight;
    row->time = bench_spread_of(plain.program.series[0].samples, row->iterations);
    bench_program_fini(&plain.program);
}

// ---- A rank ------------------------------------------------------------------------------------

// Lists the rows. A payload has whole elements, so its size is rounded up.
static void plan_rows(struct bench_report *report, const struct bench_options *options)
{
    for (uint32_t i = 0; i < options->dtype_count; i++) {
        const struct bench_dtype *dtype = options->dtypes[i];
        for (uint32_t j = 0; j < options->size_count; j++) {
            uint64_t count = (options->sizes[j] + dtype->size - 1) / dtype->size;
            report->rows[report->row_count++] =
                (struct bench_row){.dtype = dtype, .count = count, .bytes = count * dtype->size};
        }
    }
}

// Returns the rank for which this process was started. It is used before the session knows the
// rank.
static uint32_t rank_hint(void)
{
    const char *hint = getenv("LOCKSTEP_RANK_HINT");
    uint64_t rank = 0;
    return hint && parse_u64(hint, &rank) ? (uint32_t)rank : 0;
}

// Reads a line of the session's log. At its end the session logs how the slots of shared memory
// were filled.
static void read_log(void *context, lockstep_log_level level, const char *line)
{
    struct bench_report *report = context;
    const char *counts = strstr(line, "event=slots_filled ");
    (void)level;
    if (counts && sscanf(counts, "event=slots_filled cached=%" SCNu64 " past=%" SCNu64,
                         &report->runs_cached, &report->runs_past) != 2)
        cli_say("bench", "this log line is not understood: %s", line);
}

static void open_session(struct bench_worker *worker)
{
    const struct bench_options *options = worker->options;
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    config.world_size = options->ranks;
    config.transport = options->transport;
    config.bucket_first_bytes = options->buckets[0];
    config.bucket_bytes = options->buckets[1];
    config.bucket_last_bytes = options->buckets[2];
    config.log = read_log;
    config.log_context = worker->report;
    config.log_level = LOCKSTEP_LOG_INFO;
    worker->rank = rank_hint();
    bench_check(worker, lockstep_open(&config, &worker->session), "lockstep_open");
    bench_check(worker, lockstep_world(worker->session, &worker->rank, NULL), "lockstep_world");
}

static void open_raw(struct bench_worker *worker)
{
    if (!worker->options->raw || worker->rank != 0)
        return;
    worker->raw = fopen(worker->options->raw, "we");
    if (!worker->raw) {
        cli_say("bench", "--raw %s: %s", worker->options->raw, strerror(errno));
        exit(CLI_FAILED);
    }
    fprintf(worker->raw, "dtype,bytes,series,rank,iteration,us\n");
}

static void close_raw(struct bench_worker *worker)
{
    bool failed = worker->raw && ferror(worker->raw);
    if (worker->raw && (fclose(worker->raw) != 0 || failed)) {
        cli_say("bench", "--raw %s: %s", worker->options->raw, strerror(errno));
        exit(CLI_FAILED);
    }
}

// Rank 0 measures the machine while the others wait for it in the first collective.
static void begin_report(struct bench_worker *worker)
{
    struct bench_report *report = worker->report;
    if (worker->rank != 0)
        return;
    report->memcpy_bytes_per_s = bench_limit_memcpy();
    report->tcp_bytes_per_s = bench_limit_tcp(NULL);
    report->line_ns = bench_limit_line_ns();
    if (!worker->options->json)
        bench_print_head(report);
}

static void measure_rows(struct bench_worker *worker, struct bench_step *steps)
{
    struct bench_report *report = worker->report;
    for (uint32_t i = 0; i < report->row_count; i++) {
        if (steps)
            bench_step_row(worker, steps, i);
        else
            plain_row(worker, &report->rows[i]);
        if (worker->rank == 0 && !worker->options->json)
            bench_print_row(report, &report->rows[i]);
    }
}

static void end_report(const struct bench_worker *worker)
{
    if (worker->rank == 0 && worker->options->json)
        bench_print_json(worker->report);
    else if (worker->rank == 0)
        bench_print_end(worker->report);
}

int worker_main(int argc, char **argv)
{
    static struct bench_report report; // Static, because it is too large for a stack.
    struct bench_options options;
    struct bench_worker worker = {.options = &options, .report = &report};
    struct bench_step *steps = NULL;
    int result = bench_read_options(&options, argc, argv);
    if (result != 0)
        return result < 0 ? CLI_OK : result;
    report.options = &options;
    plan_rows(&report, &options);
    // Must precede the library's threads, so that their cycles count, too.
    report.cycles_error = bench_cost_open();
    open_session(&worker);
    open_raw(&worker);
    open_arena(&worker);
    if (options.mode == BENCH_STEP)
        steps = bench_step_register(&worker);
    begin_report(&worker);
    measure_rows(&worker, steps);
    close_raw(&worker);
    bench_check(&worker, lockstep_close(worker.session), "lockstep_close");
    end_report(&worker);
    bench_step_free(&worker, steps); // Freed only now, because the session had borrowed it.
    close_arena(&worker);
    return CLI_OK;
}
