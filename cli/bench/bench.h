// SPDX-License-Identifier: Apache-2.0
//
// Shared by the files of `lockstep bench`: its options, the record of one row of the table, and
// what a rank holds while it measures. The words, as everywhere in these files:
//
//     row         one dtype and one size
//     iteration   what is repeated in a row: one collective (blocking), a batch of several
//                 (async), or one step in three forms (step)
//     series      one time for each iteration, in microseconds
//
// Trainer's thread of each rank, but where said otherwise.

#ifndef LOCKSTEP_CLI_BENCH_BENCH_H
#define LOCKSTEP_CLI_BENCH_BENCH_H

#include "lockstep/lockstep.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define BENCH_MAX_SIZES 32
#define BENCH_DTYPES 7
#define BENCH_MAX_ROWS 64
#define BENCH_MAX_BYTES (UINT64_C(1) << 36)
#define BENCH_MAX_ITERATIONS 1000000
#define BENCH_MIN_ITERATIONS 5 // When --seconds decides.
#define BENCH_MAX_IN_FLIGHT 64
#define BENCH_MAX_SERIES 4
#define BENCH_BUCKETS 3
#define BENCH_GAP_BYTES 16384 // Between the gradients of a row, at most.

enum bench_mode {
    BENCH_BLOCKING,
    BENCH_ASYNC,
    BENCH_STEP
};

struct bench_dtype {
    const char *name;
    lockstep_dtype value;
    size_t size;
    unsigned char one[8]; // The number 1, as it lies in the memory of a little-endian machine.
    bool is_float;
};

struct bench_options {
    uint32_t ranks;
    uint64_t sizes[BENCH_MAX_SIZES]; // Bytes.
    uint32_t size_count;
    const struct bench_dtype *dtypes[BENCH_DTYPES];
    uint32_t dtype_count;
    enum bench_mode mode;
    lockstep_transport_kind transport;
    bool registered; // Memory is the library's.
    bool cold;
    bool json;
    bool buckets_given;
    size_t buckets[BENCH_BUCKETS]; // Caps of the first bucket, the others, the last one.
    uint32_t in_flight; // Collectives of an asynchronous batch.
    double backward_ms;
    double seconds; // Time of a row.
    uint64_t iterations; // Iterations of a row; 0: as many as fit into seconds.
    uint64_t warmup;
    const char *raw; // NULL: none
};

// 0, an exit status after a sentence on stderr, or -1 when the help was printed.
int bench_read_options(struct bench_options *options, int argc, char **argv);

const char *bench_mode_name(enum bench_mode mode);
const char *bench_transport_name(lockstep_transport_kind transport);

// Cores that this process may run on.
uint32_t bench_cores(void);

// The cost of this process so far: all threads, those of the library included.
struct bench_cost {
    double cpu_s;
    double cycles; // NAN: there is no counter.
};

struct bench_spread {
    double min_us, p25_us, p50_us, p75_us, p90_us, p99_us, mean_us;
};

struct bench_row {
    const struct bench_dtype *dtype;
    uint64_t count; // Elements of one payload.
    uint64_t bytes; // Size of one payload.
    uint64_t iterations;
    double payload_bytes; // Bytes that one rank gives to be reduced in one iteration.
    struct bench_spread time; // Time of an iteration; in step mode, of the synchronized step.
    struct bench_cost cost; // Cost of all ranks in the time that bandwidth is computed from.
    // step only
    uint32_t tensors;
    struct bench_spread compute; // Backward alone.
    struct bench_spread communication; // The same step without a backward.
    struct bench_spread exposed; // Step minus backward, iteration by iteration.
    struct bench_spread waited; // Time waited in lockstep_step_end, as the library counts it.
};

struct bench_report {
    const struct bench_options *options;
    double memcpy_bytes_per_s;
    double tcp_bytes_per_s;
    double line_ns;
    uint64_t runs_cached; // Runs of rank 0 through slots that were filled through the caches.
    uint64_t runs_past; // Runs of rank 0 through slots that were filled past the caches.
    int cycles_error; // errno: why there are no cycles; 0: there are.
    uint32_t row_count;
    struct bench_row rows[BENCH_MAX_ROWS];
};

struct bench_worker {
    const struct bench_options *options;
    lockstep_session *session;
    uint32_t rank;
    FILE *raw; // Rank 0 with --raw, else NULL.
    unsigned char *arena; // Memory of payloads; slots of it are used in turn.
    size_t arena_bytes;
    uint64_t turn; // Slots used so far in this row.
    struct bench_report *report; // Filled in on every rank, printed by rank 0.
};

// One rank's own times in a row, each [iterations]. gather makes of them the maxima over all ranks.
struct bench_series {
    const char *name; // Its name in the raw file.
    double *samples; // owned
};

// The work of a mode: one iteration, which leaves a time in every series.
struct bench_program {
    void (*iterate)(void *context, uint64_t iteration);
    void *context;
    struct bench_series series[BENCH_MAX_SERIES];
    uint32_t series_count;
    bool own_cost; // iterate adds up the cost itself; else it is that of all iterations.
    struct bench_cost cost;
};

// argv[0] is the subcommand's name. Returns the exit status of the process.
int bench_main(int argc, char **argv);

#endif
