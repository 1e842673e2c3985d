// SPDX-License-Identifier: Apache-2.0
//
// Shared by the files of `lockstep bench`: the options, the record of one row of the table, and the
// state of a rank while it measures. These words have the same meaning in all these files:
//
//     row         one dtype and one size
//     iteration   what is repeated in a row: one collective (blocking), a batch of several
//                 (async), or one step in three forms (step)
//     series      one time for each iteration, in microseconds
//
// Trainer's thread of each rank, unless a function says otherwise.

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
#define BENCH_MIN_ITERATIONS 5 // The fewest iterations of a row if --seconds decides.
#define BENCH_MAX_IN_FLIGHT 64
#define BENCH_MAX_SERIES 4
#define BENCH_BUCKETS 3
#define BENCH_GAP_BYTES 16384 // The largest sum of gaps between the gradients of a row.

enum bench_mode {
    BENCH_BLOCKING,
    BENCH_ASYNC,
    BENCH_STEP
};

struct bench_dtype {
    const char *name;
    lockstep_dtype value;
    size_t size;
    unsigned char one[8]; // The number 1 of this type, in little-endian order.
    bool is_float;
};

struct bench_options {
    uint32_t ranks;
    uint64_t sizes[BENCH_MAX_SIZES]; // Bytes.
    uint32_t size_count;
    const struct bench_dtype *dtypes[BENCH_DTYPES];
    uint32_t dtype_count;
    enum bench_mode mode;
    lockstep_transport_kind transport; // --transport, else LOCKSTEP_TRANSPORT.
    bool transport_given;
    bool registered; // True if the payloads are in memory of the library (lockstep_alloc).
    bool cold;
    bool json;
    bool buckets_given;
    // Largest bytes of the first bucket, of the others, and of the last one.
    size_t buckets[BENCH_BUCKETS];
    uint32_t in_flight; // Collectives of an asynchronous batch.
    double backward_ms;
    double seconds; // Time of a row.
    uint64_t iterations; // Iterations of a row; 0: as many as fit into seconds.
    uint64_t warmup;
    const char *raw; // The raw file; NULL: none.
};

// Returns 0, an exit status after a sentence on stderr, or -1 if the help was printed.
int bench_read_options(struct bench_options *options, int argc, char **argv);

const char *bench_mode_name(enum bench_mode mode);
const char *bench_transport_name(lockstep_transport_kind transport);

// Returns the number of cores that this process may use.
uint32_t bench_cores(void);

// The cost of this process so far: all threads, those of the library included.
struct bench_cost {
    double cpu_s;
    double cycles; // NAN: the machine has no counter.
};

struct bench_spread {
    double min_us, p25_us, p50_us, p75_us, p90_us, p99_us, mean_us;
};

struct bench_row {
    const struct bench_dtype *dtype;
    uint64_t count; // Elements of one payload.
    uint64_t bytes; // Size of one payload.
    uint64_t iterations;
    double payload_bytes; // Bytes that one rank contributes to the reductions of one iteration.
    struct bench_spread time; // Time of an iteration; in step mode, of the synchronized step.
    // Cost of all ranks during the time from which the bandwidth is computed.
    struct bench_cost cost;
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
    int cycles_error; // The errno value if cycles cannot be counted; 0: they are counted.
    uint32_t row_count;
    struct bench_row rows[BENCH_MAX_ROWS];
};

struct bench_worker {
    const struct bench_options *options;
    lockstep_session *session;
    uint32_t rank;
    FILE *raw; // The raw file on rank 0; NULL without --raw and on other ranks.
    unsigned char *arena; // Memory of payloads; slots of it are used in turn.
    size_t arena_bytes;
    uint64_t turn; // Slots used so far in this row.
    struct bench_report *report; // Filled in on every rank, printed by rank 0.
};

// One rank's own times in a row: samples has [iterations]. bench_measure replaces them by the
// maxima over all ranks.
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
    bool own_cost; // True if iterate sums the cost itself; else the cost of all iterations counts.
    struct bench_cost cost;
};

// argv[0] is the subcommand's name. Returns the exit status of the process.
int bench_main(int argc, char **argv);

#endif
