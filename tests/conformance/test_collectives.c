// SPDX-License-Identifier: Apache-2.0
//
// Conformance: plain collectives, counters and the comparison of state, at the public functions on
// every transport. Case numbers are those of the list of cases for reducers.

#include "base/clock.h"
#include "protos/limits.h"
#include "tests/support/trainer.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <math.h>

#define FOREVER LOCKSTEP_WAIT_FOREVER
#define COUNT 300
#define RANKS_MOST 8 // Ranks of the worlds of these tests.

#define DTYPES 13
#define OPS 8

static const lockstep_dtype dtypes[DTYPES] = {
    LOCKSTEP_FLOAT32,  LOCKSTEP_FLOAT64, LOCKSTEP_INT32, LOCKSTEP_INT64, LOCKSTEP_FLOAT16,
    LOCKSTEP_BFLOAT16, LOCKSTEP_UINT8,   LOCKSTEP_INT8,  LOCKSTEP_INT16, LOCKSTEP_UINT16,
    LOCKSTEP_UINT32,   LOCKSTEP_UINT64,  LOCKSTEP_BOOL};
static const lockstep_op ops[OPS] = {LOCKSTEP_SUM, LOCKSTEP_MEAN,    LOCKSTEP_MIN, LOCKSTEP_MAX,
                                     LOCKSTEP_OR,  LOCKSTEP_PRODUCT, LOCKSTEP_AND, LOCKSTEP_XOR};

// ---- Numbers of all types ----------------------------------------------------------------------
//
// The numbers are integers of magnitudes up to 50, so that every floating-point type holds their
// sums exactly. Integers wrap: a reference computes with 64 bits and compares the lower ones.
// Products of floating-point numbers take the remainders by 3, and booleans are 0 for a third of
// all numbers.

static const struct {
    size_t bytes;
    bool is_float;
    bool has_sign;
} facts[] = {
    [LOCKSTEP_FLOAT32] = {4, true, true},  [LOCKSTEP_FLOAT64] = {8, true, true},
    [LOCKSTEP_INT32] = {4, false, true},   [LOCKSTEP_INT64] = {8, false, true},
    [LOCKSTEP_FLOAT16] = {2, true, true},  [LOCKSTEP_BFLOAT16] = {2, true, true},
    [LOCKSTEP_UINT8] = {1, false, false},  [LOCKSTEP_INT8] = {1, false, true},
    [LOCKSTEP_INT16] = {2, false, true},   [LOCKSTEP_UINT16] = {2, false, false},
    [LOCKSTEP_UINT32] = {4, false, false}, [LOCKSTEP_UINT64] = {8, false, false},
    [LOCKSTEP_BOOL] = {1, false, false},
};

static size_t dtype_bytes(lockstep_dtype dtype)
{
    return facts[dtype].bytes;
}

static bool is_float(lockstep_dtype dtype)
{
    return facts[dtype].is_float;
}

static bool is_bitwise(lockstep_op op)
{
    return op == LOCKSTEP_OR || op == LOCKSTEP_AND || op == LOCKSTEP_XOR;
}

// Encodes a small integer exactly as a 16-bit float with this exponent bias and this number of
// fraction bits.
static uint16_t small_encode(int64_t value, int bias, int fraction)
{
    int exponent = 0;
    const double magnitude = frexp(value < 0 ? -(double)value : (double)value, &exponent);
    if (value == 0)
        return 0;
    const unsigned bits = (unsigned)ldexp(magnitude * 2 - 1, fraction);
    return (uint16_t)((value < 0 ? 0x8000u : 0u) | (unsigned)(exponent - 1 + bias) << fraction |
                      bits);
}

static double small_decode(uint16_t bits, int bias, int fraction)
{
    const int exponent = (bits & 0x7fff) >> fraction;
    const double part = ldexp(bits & ((1 << fraction) - 1), -fraction);
    const double magnitude =
        exponent == 0 ? ldexp(part, 1 - bias) : ldexp(1 + part, exponent - bias);
    return bits & 0x8000 ? -magnitude : magnitude;
}

static void number_set(void *data, lockstep_dtype dtype, uint64_t index, int64_t value)
{
    if (dtype == LOCKSTEP_FLOAT32)
        ((float *)data)[index] = (float)value;
    else if (dtype == LOCKSTEP_FLOAT64)
        ((double *)data)[index] = (double)value;
    else if (dtype == LOCKSTEP_FLOAT16)
        ((uint16_t *)data)[index] = small_encode(value, 15, 10);
    else if (dtype == LOCKSTEP_BFLOAT16)
        ((uint16_t *)data)[index] = small_encode(value, 127, 7);
    else
        memcpy((uint8_t *)data + index * dtype_bytes(dtype), &value, dtype_bytes(dtype));
}

static double float_get(const void *data, lockstep_dtype dtype, uint64_t index)
{
    if (dtype == LOCKSTEP_FLOAT32)
        return (double)((const float *)data)[index];
    if (dtype == LOCKSTEP_FLOAT64)
        return ((const double *)data)[index];
    if (dtype == LOCKSTEP_FLOAT16)
        return small_decode(((const uint16_t *)data)[index], 15, 10);
    return small_decode(((const uint16_t *)data)[index], 127, 7);
}

// The bits of an integer, as a number of 64 bits that follows the sign of the dtype.
static uint64_t integer_from(const void *at, lockstep_dtype dtype)
{
    const unsigned unused = 64 - 8 * (unsigned)dtype_bytes(dtype);
    uint64_t bits = 0;
    memcpy(&bits, at, dtype_bytes(dtype));
    return facts[dtype].has_sign ? (uint64_t)((int64_t)(bits << unused) >> unused) : bits;
}

static int64_t number_of(uint32_t rank, uint64_t index, uint32_t salt)
{
    return (int64_t)((rank * 31 + index * 7 + salt * 11) % 101) - 50;
}

// What a rank brings to an allreduce.
static int64_t number_in(lockstep_dtype dtype, lockstep_op op, uint32_t rank, uint64_t index,
                         uint32_t salt)
{
    const int64_t number = number_of(rank, index, salt);
    if (is_float(dtype) && op == LOCKSTEP_PRODUCT)
        return number % 3;
    return dtype == LOCKSTEP_BOOL && number % 3 == 0 ? 0 : number;
}

static void numbers_fill_for(const struct rank *rank, void *data, lockstep_dtype dtype,
                             lockstep_op op, uint64_t count, uint32_t salt)
{
    for (uint64_t i = 0; i < count; i++)
        number_set(data, dtype, i, number_in(dtype, op, rank->rank, i, salt));
}

static void numbers_fill(const struct rank *rank, void *data, lockstep_dtype dtype, uint64_t count,
                         uint32_t salt)
{
    numbers_fill_for(rank, data, dtype, LOCKSTEP_SUM, count, salt);
}

static bool number_is_less(lockstep_dtype dtype, int64_t a, int64_t b)
{
    return facts[dtype].has_sign ? a < b : (uint64_t)a < (uint64_t)b;
}

static int64_t number_join(lockstep_dtype dtype, lockstep_op op, int64_t a, int64_t b)
{
    switch (op) {
    case LOCKSTEP_MIN:
        return number_is_less(dtype, b, a) ? b : a;
    case LOCKSTEP_MAX:
        return number_is_less(dtype, a, b) ? b : a;
    case LOCKSTEP_PRODUCT:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case LOCKSTEP_OR:
        return a | b;
    case LOCKSTEP_AND:
        return a & b;
    case LOCKSTEP_XOR:
        return a ^ b;
    case LOCKSTEP_SUM:
    case LOCKSTEP_MEAN:
        break;
    }
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

// Counts the true values of all ranks.
static int64_t bool_reduced(const struct rank *rank, lockstep_op op, uint64_t index, uint32_t salt)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < rank->world_size; r++)
        count += number_in(LOCKSTEP_BOOL, op, r, index, salt) != 0;
    if (op == LOCKSTEP_XOR)
        return count % 2;
    if (op == LOCKSTEP_SUM || op == LOCKSTEP_MAX || op == LOCKSTEP_OR)
        return count > 0;
    return count == rank->world_size;
}

// The reduction without a division, of integers modulo 2^64. The magnitude of a float's is small.
static int64_t number_reduced(const struct rank *rank, lockstep_dtype dtype, lockstep_op op,
                              uint64_t index, uint32_t salt)
{
    int64_t result = 0;
    if (dtype == LOCKSTEP_BOOL)
        return bool_reduced(rank, op, index, salt);
    for (uint32_t r = 0; r < rank->world_size; r++) {
        int64_t value = number_in(dtype, op, r, index, salt);
        if (!is_float(dtype))
            value = (int64_t)integer_from(&value, dtype);
        result = r == 0 ? value : number_join(dtype, op, result, value);
    }
    return result;
}

static void expect_float(struct rank *rank, const void *data, lockstep_dtype dtype, lockstep_op op,
                         uint64_t index, uint32_t salt)
{
    const int64_t result = number_reduced(rank, dtype, op, index, salt);
    const double found = float_get(data, dtype, index);
    double expected = (double)result;
    if (op == LOCKSTEP_MEAN)
        expected = dtype != LOCKSTEP_FLOAT64 ? (double)((float)result / (float)rank->world_size)
                                             : (double)result / rank->world_size;
    // A mean in a 16-bit type is rounded once more, by at most 2^-8 in bfloat16.
    const double error = op == LOCKSTEP_MEAN && dtype_bytes(dtype) == 2 ? 1.0 / 256 : 0;
    if (fabs(found - expected) > error * fabs(expected))
        rank_fail(rank, __FILE__, __LINE__,
                  "dtype %d op %d: element %" PRIu64 " is %.17g, not %.17g", (int)dtype, (int)op,
                  index, found, expected);
}

static void expect_reduced(struct rank *rank, const void *data, lockstep_dtype dtype,
                           lockstep_op op, uint64_t count, uint32_t salt)
{
    for (uint64_t i = 0; i < count; i++) {
        if (is_float(dtype)) {
            expect_float(rank, data, dtype, op, i, salt);
            continue;
        }
        const int64_t result = number_reduced(rank, dtype, op, i, salt);
        const uint64_t expected = integer_from(&result, dtype);
        const uint64_t found = integer_from((const uint8_t *)data + i * dtype_bytes(dtype), dtype);
        if (found != expected)
            rank_fail(rank, __FILE__, __LINE__,
                      "dtype %d op %d: element %" PRIu64 " is %" PRId64 ", not %" PRId64,
                      (int)dtype, (int)op, i, (int64_t)found, (int64_t)expected);
    }
}

// ---- Allreduce, broadcast, barrier -------------------------------------------------------------

static void allreduce_body(struct rank *rank)
{
    static const uint64_t counts[] = {COUNT, 1, 0, 2};
    int64_t data[COUNT];
    for (uint32_t i = 0; i < DTYPES * OPS * 4; i++) {
        const lockstep_dtype dtype = dtypes[i % DTYPES];
        const lockstep_op op = ops[i / DTYPES % OPS];
        const uint64_t count = counts[i / (DTYPES * OPS)];
        if (is_float(dtype) ? is_bitwise(op) : op == LOCKSTEP_MEAN) {
            RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                       lockstep_allreduce(rank->session, "all", data, count, dtype, op, FOREVER));
            RANK_SAYS(rank, "does not exist");
            continue;
        }
        numbers_fill_for(rank, data, dtype, op, count, i);
        RANK_OK(rank, lockstep_allreduce(rank->session, "all", data, count, dtype, op, FOREVER));
        expect_reduced(rank, data, dtype, op, count, i);
        rank_digest(rank, data, count * dtype_bytes(dtype));
    }
}

static void allreduce_ops_and_dtypes(const struct setting *setting)
{
    ranks_run(setting, allreduce_body, NULL);
}

// More than one chunk and more than one part of a rank, and one more element than a vector has.
static void large_body(struct rank *rank)
{
    static const lockstep_op some[] = {LOCKSTEP_PRODUCT, LOCKSTEP_AND, LOCKSTEP_XOR, LOCKSTEP_MIN};
    const uint64_t count = 100001;
    uint8_t *memory = malloc(count * 8);
    RANK_TRUE(rank, memory != NULL);
    for (uint32_t d = 0; d < DTYPES; d++) {
        for (uint32_t o = 0; o < 4; o++) {
            if (is_float(dtypes[d]) && is_bitwise(some[o]))
                continue;
            numbers_fill_for(rank, memory, dtypes[d], some[o], count, d);
            RANK_OK(rank, lockstep_allreduce(rank->session, "large", memory, count, dtypes[d],
                                             some[o], FOREVER));
            expect_reduced(rank, memory, dtypes[d], some[o], count, d);
            rank_digest(rank, memory, count * dtype_bytes(dtypes[d]));
        }
    }
    free(memory);
}

static void allreduce_large(const struct setting *setting)
{
    if (setting->torn_bytes == 0) // Too slow on torn loopbacks.
        ranks_run(setting, large_body, NULL);
}

// All dtypes and ops in a world of one, without a coordinator.
static void solo_body(struct rank *rank)
{
    RANK_OK(rank, lockstep_open(NULL, &rank->session));
    allreduce_body(rank);
}

static void allreduce_alone(const struct setting *setting)
{
    const struct cluster_test test = {
        .setting = setting, .body = solo_body, .without_session = true};
    ranks_run(setting, allreduce_body, NULL);
    ranks_run_test(&test);
}

// A broadcast sends bytes: a boolean that is neither 0 nor 1 stays as it is.
static void expect_sent(struct rank *rank, const uint8_t *data, lockstep_dtype dtype, uint32_t root,
                        uint64_t index, uint32_t salt)
{
    uint64_t expected = 0;
    number_set(&expected, dtype, 0, number_in(dtype, LOCKSTEP_SUM, root, index, salt));
    RANK_TRUE(rank, memcmp(data + index * dtype_bytes(dtype), &expected, dtype_bytes(dtype)) == 0);
}

static void broadcast_body(struct rank *rank)
{
    static const uint64_t counts[] = {COUNT, 1, 0};
    int64_t data[COUNT];
    for (uint32_t root = 0; root < rank->world_size; root++) {
        for (uint32_t i = 0; i < DTYPES * 3; i++) {
            const lockstep_dtype dtype = dtypes[i % DTYPES];
            const uint64_t count = counts[i / DTYPES];
            numbers_fill(rank, data, dtype, count, i);
            RANK_OK(rank, lockstep_broadcast(rank->session, "from one", data, count, dtype, root,
                                             FOREVER));
            for (uint64_t e = 0; e < count; e++)
                expect_sent(rank, (const uint8_t *)data, dtype, root, e, i);
        }
    }
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_broadcast(rank->session, "from none", data, 1, LOCKSTEP_INT64,
                                  rank->world_size, FOREVER));
    RANK_SAYS(rank, "no rank");
}

static void broadcast_from_each_root(const struct setting *setting)
{
    ranks_run(setting, broadcast_body, NULL);
}

// No rank leaves the barrier before the last rank has called it.
static void barrier_body(struct rank *rank)
{
    atomic_uint *came = rank->context;
    for (uint32_t round = 1; round <= 20; round++) {
        atomic_fetch_add(came, 1);
        RANK_OK(rank, lockstep_barrier(rank->session, "all here", FOREVER));
        RANK_TRUE(rank, atomic_load(came) >= round * rank->world_size);
    }
}

static void barrier_holds_everybody(const struct setting *setting)
{
    atomic_uint came = 0;
    ranks_run(setting, barrier_body, &came);
}

// ---- Many in flight ----------------------------------------------------------------------------

#define FLIGHTS 40

struct flight {
    lockstep_work *work;
    int64_t data[COUNT];
    uint64_t count;
};

static void flight_begin(struct rank *rank, struct flight *flight, uint32_t number)
{
    char name[16];
    snprintf(name, sizeof(name), "flight %" PRIu32, number % 100);
    flight->count = number * 7 % COUNT;
    numbers_fill(rank, flight->data, dtypes[number % 4], flight->count, number);
    if (number % 5 == 4)
        RANK_OK(rank, lockstep_broadcast_async(rank->session, name, flight->data, flight->count,
                                               dtypes[number % 4], number % rank->world_size,
                                               &flight->work));
    else
        RANK_OK(rank, lockstep_allreduce_async(rank->session, name, flight->data, flight->count,
                                               dtypes[number % 4], LOCKSTEP_SUM, &flight->work));
}

static void flight_end(struct rank *rank, struct flight *flight, uint32_t number)
{
    RANK_OK(rank, lockstep_work_wait(flight->work, FOREVER));
    if (number % 5 != 4)
        expect_reduced(rank, flight->data, dtypes[number % 4], LOCKSTEP_SUM, flight->count, number);
    rank_digest(rank, flight->data, flight->count * dtype_bytes(dtypes[number % 4]));
}

// Every rank begins the collectives in an order of its own. Three rounds use the same names.
static void flights_body(struct rank *rank)
{
    struct flight *flights = calloc(FLIGHTS, sizeof(*flights));
    uint32_t order[FLIGHTS];
    RANK_TRUE(rank, flights != NULL);
    for (uint32_t round = 0; round < 3; round++) {
        lockstep_work *barrier;
        for (uint32_t i = 0; i < FLIGHTS; i++)
            order[i] = i;
        trainer_shuffle(order, FLIGHTS, round * 100 + rank->rank);
        RANK_OK(rank, lockstep_barrier_async(rank->session, "round", &barrier));
        for (uint32_t i = 0; i < FLIGHTS; i++)
            flight_begin(rank, &flights[order[i]], order[i]);
        for (uint32_t i = 0; i < FLIGHTS; i++)
            flight_end(rank, &flights[i], i);
        RANK_OK(rank, lockstep_work_wait(barrier, FOREVER));
    }
    free(flights);
}

static void many_in_flight_in_different_orders(const struct setting *setting)
{
    ranks_run(setting, flights_body, NULL);
}

// The k-th use of a name matches the k-th use on the other ranks, even with several in flight.
static void reuse_body(struct rank *rank)
{
    struct flight flights[4];
    for (uint32_t i = 0; i < 4; i++) {
        numbers_fill(rank, flights[i].data, LOCKSTEP_INT64, 10, i);
        RANK_OK(rank, lockstep_allreduce_async(rank->session, "again", flights[i].data, 10,
                                               LOCKSTEP_INT64, LOCKSTEP_SUM, &flights[i].work));
    }
    for (uint32_t i = 4; i-- > 0;) {
        RANK_OK(rank, lockstep_work_wait(flights[i].work, FOREVER));
        expect_reduced(rank, flights[i].data, LOCKSTEP_INT64, LOCKSTEP_SUM, 10, i);
    }
}

static void names_are_used_again(const struct setting *setting)
{
    ranks_run(setting, reuse_body, NULL);
}

// A collective inside a step, between call_begin and call_end, with gradients in flight.
static void inside_body(struct rank *rank)
{
    static const uint64_t sizes[3] = {100, 5, 300};
    const struct module_shape shape = {.name = "net", .count = 3, .elements = sizes};
    struct trained_module module;
    int64_t data[10];
    trainer_make(rank, &shape, 0, &module);
    numbers_fill(rank, data, LOCKSTEP_INT64, 10, 0);
    RANK_OK(rank, lockstep_allreduce(rank->session, "norm", data, 10, LOCKSTEP_INT64, LOCKSTEP_SUM,
                                     FOREVER)); // Before lockstep_start.
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t i = 0; i < 3; i++) {
        trainer_begin(rank, NULL);
        trainer_fill_known(&module, rank->rank, atomic_load(&rank->step));
        trainer_call(rank, &module);
        numbers_fill(rank, data, LOCKSTEP_INT64, 10, i);
        RANK_OK(rank, lockstep_allreduce(rank->session, "norm", data, 10, LOCKSTEP_INT64,
                                         LOCKSTEP_SUM, FOREVER));
        expect_reduced(rank, data, LOCKSTEP_INT64, LOCKSTEP_SUM, 10, i);
        trainer_end(rank);
        trainer_expect_mean(rank, &module, atomic_load(&rank->step), NULL);
    }
    trainer_free(&module);
}

static void collectives_inside_a_step(const struct setting *setting)
{
    ranks_run(setting, inside_body, NULL);
}

// ---- Waits with a timeout ----------------------------------------------------------------------

// Rank 0 polls the work before the other ranks have made the call. The work is still in flight, and
// its handle stays valid.
static void polling_body(struct rank *rank)
{
    int64_t data[10];
    lockstep_work *work;
    int status = LOCKSTEP_E_TIMEOUT;
    numbers_fill(rank, data, LOCKSTEP_INT64, 10, 3);
    if (rank->rank != 0)
        rank_meet(rank);
    RANK_OK(rank, lockstep_allreduce_async(rank->session, "polled", data, 10, LOCKSTEP_INT64,
                                           LOCKSTEP_SUM, &work));
    if (rank->rank == 0) {
        RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT, lockstep_work_wait(work, 0));
        RANK_SAYS(rank, "'polled'");
        RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT, lockstep_work_wait(work, 1));
        rank_meet(rank);
    }
    while (status == LOCKSTEP_E_TIMEOUT)
        status = RANK_CALL(rank, lockstep_work_wait(work, 0));
    RANK_EQUAL(rank, status, LOCKSTEP_OK);
    expect_reduced(rank, data, LOCKSTEP_INT64, LOCKSTEP_SUM, 10, 3);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_work_wait(work, 0));
}

static void polling_with_no_timeout(const struct setting *setting)
{
    ranks_run(setting, polling_body, NULL);
}

// The wait of rank 0 times out, and the work that is left is waited for by its descriptor.
static void expect_left(struct rank *rank, struct lockstep_collective *what, int fd)
{
    lockstep_work *work = (lockstep_work *)&work;
    uint64_t rung;
    if (rank->rank != 0) {
        rank_meet(rank);
        RANK_OK(rank, lockstep_collective_wait(rank->session, what, FOREVER, &work));
        RANK_TRUE(rank, work == NULL);
        return;
    }
    RANK_FAILS(rank, LOCKSTEP_E_TIMEOUT, lockstep_collective_wait(rank->session, what, 1, &work));
    RANK_SAYS(rank, what->name);
    rank_meet(rank);
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    RANK_EQUAL(rank, poll(&ready, 1, -1), 1);
    RANK_EQUAL(rank, read(fd, &rung, sizeof(rung)), sizeof(rung));
    RANK_OK(rank, lockstep_work_wait(work, 0));
}

static void left_body(struct rank *rank)
{
    struct lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
    lockstep_work *work = (lockstep_work *)&work;
    int64_t data[10];
    int64_t whole[RANKS_MOST];
    int64_t part = 5 + rank->rank;
    int fd;
    RANK_OK(rank, lockstep_session_fd(rank->session, &fd));
    what.dtype = LOCKSTEP_INT64;
    what.name = "left";
    what.output = data;
    what.count = 10;
    numbers_fill(rank, data, LOCKSTEP_INT64, 10, 3);
    expect_left(rank, &what, fd);
    expect_reduced(rank, data, LOCKSTEP_INT64, LOCKSTEP_SUM, 10, 3);
    what.kind = LOCKSTEP_ALL_GATHER;
    what.name = "gathered";
    what.input = &part;
    what.output = whole;
    what.count = 1;
    expect_left(rank, &what, fd);
    for (uint32_t i = 0; i < rank->world_size; i++)
        RANK_EQUAL(rank, whole[i], 5 + i);
    what.output = NULL;
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_collective_wait(rank->session, &what, 1, &work));
    RANK_TRUE(rank, work == NULL);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_collective_wait(rank->session, &what, 1, NULL));
}

static void a_late_wait_leaves_its_work(const struct setting *setting)
{
    ranks_run(setting, left_body, NULL);
}

// The blocking call of rank 0 times out, which fails its session. The other ranks get an error that
// names rank 0.
static void timeout_body(struct rank *rank)
{
    int64_t data[10] = {0};
    if (rank->rank == 0) {
        RANK_FAILS(
            rank, LOCKSTEP_E_TIMEOUT,
            lockstep_allreduce(rank->session, "alone", data, 10, LOCKSTEP_INT64, LOCKSTEP_SUM, 50));
        RANK_SAYS(rank, "'alone'");
        RANK_TRUE(rank, lockstep_barrier(rank->session, "after", FOREVER) < 0);
        rank_meet(rank);
        return;
    }
    rank_meet(rank);
    // The data of rank 0 may already be in shared memory. Then this sum succeeds, and the next
    // collective fails.
    int status = RANK_CALL(rank, lockstep_allreduce(rank->session, "alone", data, 10,
                                                    LOCKSTEP_INT64, LOCKSTEP_SUM, FOREVER));
    if (status == 0)
        status = RANK_CALL(rank, lockstep_barrier(rank->session, "next", FOREVER));
    RANK_EQUAL(rank, status, LOCKSTEP_E_PEER_LOST);
    RANK_SAYS(rank, "rank 0");
}

static void timeout_of_a_blocking_one(const struct setting *setting)
{
    ranks_run(setting, timeout_body, NULL);
}

// ---- Case 41 -----------------------------------------------------------------------------------

struct odd_one {
    uint64_t count;
    lockstep_dtype dtype;
    lockstep_op op;
    bool broadcast;
    uint32_t root;
};

// Rank 1 makes the call of `context`; the other ranks make the usual call of the same function.
static void differing_body(struct rank *rank)
{
    static const struct odd_one usual[2] = {
        {100, LOCKSTEP_INT64, LOCKSTEP_SUM, false, 0},
        {100, LOCKSTEP_INT64, LOCKSTEP_SUM, true, 0},
    };
    const struct odd_one *odd = rank->context;
    const struct odd_one *mine = rank->rank == 1 ? odd : &usual[odd->broadcast];
    int64_t data[COUNT] = {0};
    rank_meet(rank); // All sessions are open.
    if (mine->broadcast)
        RANK_FAILS(rank, LOCKSTEP_E_MISMATCH,
                   lockstep_broadcast(rank->session, "odd", data, mine->count, mine->dtype,
                                      mine->root, FOREVER));
    else
        RANK_FAILS(rank, LOCKSTEP_E_MISMATCH,
                   lockstep_allreduce(rank->session, "odd", data, mine->count, mine->dtype,
                                      mine->op, FOREVER));
    RANK_SAYS(rank, "'odd'");
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
}

// A count of elements that no memory can hold is refused before a ring computes its stripes.
static void immense_body(struct rank *rank)
{
    float value = 1;
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_allreduce(rank->session, "immense", &value, UINT64_C(1) << 60,
                                  LOCKSTEP_FLOAT32, LOCKSTEP_SUM, FOREVER));
    RANK_SAYS(rank, "do not fit in memory");
    RANK_OK(rank, lockstep_barrier(rank->session, "after", FOREVER));
}

static void an_immense_collective_is_refused(const struct setting *setting)
{
    ranks_run(setting, immense_body, NULL);
}

static void case_41_collectives_differ(const struct setting *setting)
{
    static struct odd_one odds[] = {
        {101, LOCKSTEP_INT64, LOCKSTEP_SUM, false, 0},
        {1, LOCKSTEP_INT64, LOCKSTEP_SUM, false, 0},
        {0, LOCKSTEP_INT64, LOCKSTEP_SUM, false, 0},
        {100, LOCKSTEP_FLOAT64, LOCKSTEP_SUM, false, 0},
        {200, LOCKSTEP_INT32, LOCKSTEP_SUM, false, 0},
        {100, LOCKSTEP_INT64, LOCKSTEP_MAX, false, 0},
        {100, LOCKSTEP_INT64, LOCKSTEP_SUM, true, 1},
        {99, LOCKSTEP_INT64, LOCKSTEP_SUM, true, 0},
        {100, LOCKSTEP_FLOAT64, LOCKSTEP_SUM, true, 0},
    };
    for (size_t i = 0; i < sizeof(odds) / sizeof(odds[0]); i++)
        ranks_run(setting, differing_body, &odds[i]);
}

// ---- Counters ----------------------------------------------------------------------------------

static int64_t counter_value(struct rank *rank, const char *name)
{
    int64_t total = -1;
    RANK_OK(rank, lockstep_counter_read(rank->session, name, &total));
    return total;
}

static void counters_body(struct rank *rank)
{
    const int64_t world = rank->world_size;
    RANK_OK(rank, lockstep_start(rank->session));
    for (int64_t step = 1; step <= 5; step++) {
        char own[32];
        snprintf(own, sizeof(own), "of rank %" PRIu32, rank->rank);
        trainer_begin(rank, NULL);
        RANK_OK(rank, lockstep_counter_add(rank->session, "samples", rank->rank + 1));
        RANK_OK(rank, lockstep_counter_add(rank->session, "samples", 10));
        RANK_OK(rank, lockstep_counter_add(rank->session, own, -3));
        RANK_EQUAL(rank, counter_value(rank, "samples"),
                   (step - 1) * (10 * world + world * (world + 1) / 2));
        trainer_end(rank);
        RANK_EQUAL(rank, counter_value(rank, "samples"),
                   step * (10 * world + world * (world + 1) / 2));
        for (uint32_t r = 0; r < rank->world_size; r++) {
            snprintf(own, sizeof(own), "of rank %" PRIu32, r);
            RANK_EQUAL(rank, counter_value(rank, own), -3 * step);
        }
        RANK_EQUAL(rank, counter_value(rank, "unknown"), 0);
    }
}

static void counters_are_exact_on_all_ranks(const struct setting *setting)
{
    ranks_run(setting, counters_body, NULL);
}

// An addition between steps counts in the next step. A large addition is exact.
static void late_counters_body(struct rank *rank)
{
    RANK_OK(rank, lockstep_counter_add(rank->session, "early", 1));
    RANK_OK(rank, lockstep_start(rank->session));
    trainer_begin(rank, NULL);
    trainer_end(rank);
    RANK_EQUAL(rank, counter_value(rank, "early"), rank->world_size);
    RANK_OK(rank, lockstep_counter_add(rank->session, "early", 1));
    RANK_EQUAL(rank, counter_value(rank, "early"), rank->world_size);
    if (rank->rank == 0)
        RANK_OK(rank, lockstep_counter_add(rank->session, "large", LOCKSTEP_MAX_COUNT - 1));
    trainer_begin(rank, NULL);
    trainer_end(rank);
    RANK_EQUAL(rank, counter_value(rank, "early"), 2 * rank->world_size);
    RANK_EQUAL(rank, counter_value(rank, "large"), LOCKSTEP_MAX_COUNT - 1);
}

static void counters_between_steps(const struct setting *setting)
{
    ranks_run(setting, late_counters_body, NULL);
}

// A rank adds the maximum of a step, positive and negative. A refused addition changes nothing.
static void bounded_counters_body(struct rank *rank)
{
    const int64_t most = LOCKSTEP_MAX_COUNT;
    RANK_OK(rank, lockstep_start(rank->session));
    for (int64_t step = 1; step <= 2; step++) {
        trainer_begin(rank, NULL);
        RANK_OK(rank, lockstep_counter_add(rank->session, "up", most - 1));
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_counter_add(rank->session, "up", 2));
        RANK_SAYS(rank, "counter 'up'");
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_counter_add(rank->session, "up", INT64_MAX));
        RANK_OK(rank, lockstep_counter_add(rank->session, "up", 1));
        RANK_OK(rank, lockstep_counter_add(rank->session, "down", -most));
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_counter_add(rank->session, "down", -1));
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_counter_add(rank->session, "down", INT64_MIN));
        trainer_end(rank);
        RANK_TRUE(rank, counter_value(rank, "up") == step * most * rank->world_size);
        RANK_TRUE(rank, counter_value(rank, "down") == -step * most * rank->world_size);
    }
}

static void counters_are_bounded(const struct setting *setting)
{
    ranks_run(setting, bounded_counters_body, NULL);
}

// A world of n ranks reaches the end of the range after 2^63 / (n * 2^52) steps: 683 for n = 3.
static void end_of_range_body(struct rank *rank)
{
    int64_t total = 0;
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t step = 0; total < INT64_MAX && step < 2048; step++) {
        trainer_begin(rank, NULL);
        RANK_OK(rank, lockstep_counter_add(rank->session, "end", LOCKSTEP_MAX_COUNT));
        trainer_end(rank);
        RANK_TRUE(rank, counter_value(rank, "end") > total);
        total = counter_value(rank, "end");
    }
    RANK_TRUE(rank, total == INT64_MAX);
    trainer_begin(rank, NULL);
    RANK_OK(rank, lockstep_counter_add(rank->session, "end", 1));
    trainer_end(rank);
    RANK_TRUE(rank, counter_value(rank, "end") == INT64_MAX);
    trainer_begin(rank, NULL);
    RANK_OK(rank, lockstep_counter_add(rank->session, "end", -1));
    trainer_end(rank);
    RANK_TRUE(rank, counter_value(rank, "end") == INT64_MAX - rank->world_size);
}

static void totals_stop_at_the_end_of_the_range(const struct setting *setting)
{
    if (setting->torn_bytes == 0) // Too slow on torn loopbacks.
        ranks_run(setting, end_of_range_body, NULL);
}

static void sixteen_counters(struct rank *rank, uint32_t first)
{
    char name[32];
    for (uint32_t i = 0; i < 16; i++) {
        snprintf(name, sizeof(name), "counter %" PRIu32, first + i);
        RANK_OK(rank, lockstep_counter_add(rank->session, name, i + 1));
    }
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_counter_add(rank->session, "one more", 1));
    RANK_SAYS(rank, "'one more'");
}

// All ranks use the same sixteen counters, which is the limit. A name to which only 0 was added is
// none of them.
static void sixteen_body(struct rank *rank)
{
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_OK(rank, lockstep_counter_add(rank->session, "nothing", 0));
    sixteen_counters(rank, 0);
    trainer_begin(rank, NULL);
    trainer_end(rank);
    RANK_EQUAL(rank, counter_value(rank, "counter 15"), 16 * rank->world_size);
    RANK_EQUAL(rank, counter_value(rank, "one more"), 0);
}

// Reads the counters of sixteen_counters of all ranks: sixteen of them are known, the same on every
// rank.
static void sixteen_are_known(struct rank *rank)
{
    uint32_t known = 0;
    char name[32];
    for (uint32_t i = 0; i < 15 + rank->world_size; i++) {
        snprintf(name, sizeof(name), "counter %" PRIu32, i);
        const int64_t total = counter_value(rank, name);
        rank_digest(rank, &total, sizeof(total));
        known += total != 0;
    }
    RANK_EQUAL(rank, known, 16);
}

// Every rank has a counter that other ranks do not have, so the total exceeds the limit. All ranks
// get an error, and have the same totals.
static void overflow_body(struct rank *rank)
{
    RANK_OK(rank, lockstep_start(rank->session));
    sixteen_counters(rank, rank->rank);
    trainer_begin(rank, NULL);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_end(rank->session, NULL));
    RANK_SAYS(rank, "16 counters");
    sixteen_are_known(rank);
    trainer_begin(rank, NULL);
    trainer_end(rank);
    sixteen_are_known(rank);
}

// In the first step the ranks use the same fifteen counters, and in the second step each rank uses
// one more.
static void late_overflow_body(struct rank *rank)
{
    char name[32];
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t i = 0; i < 15; i++) {
        snprintf(name, sizeof(name), "counter %" PRIu32, i);
        RANK_OK(rank, lockstep_counter_add(rank->session, name, 1));
    }
    trainer_begin(rank, NULL);
    trainer_end(rank);
    snprintf(name, sizeof(name), "counter %" PRIu32, 15 + rank->rank);
    RANK_OK(rank, lockstep_counter_add(rank->session, name, 1));
    trainer_begin(rank, NULL);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_end(rank->session, NULL));
    RANK_SAYS(rank, "16 counters");
    sixteen_are_known(rank);
    RANK_EQUAL(rank, counter_value(rank, "counter 0"), rank->world_size);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_counter_add(rank->session, "one more", 1));
    trainer_begin(rank, NULL);
    trainer_end(rank);
}

// Adds to counters "NAME 0", "NAME 1" and so on.
static void add_to_counters(struct rank *rank, const char *prefix, uint32_t count, int64_t delta)
{
    char name[32];
    for (uint32_t i = 0; i < count; i++) {
        snprintf(name, sizeof(name), "%s %" PRIu32, prefix, i);
        RANK_OK(rank, lockstep_counter_add(rank->session, name, delta));
    }
}

// Rank 0 adds 1 and -1 to sixteen counters, so only rank 0 knows them, and the others add to
// fifteen. In the next step rank 0 adds to all of these.
static void known_to_one_body(struct rank *rank)
{
    RANK_OK(rank, lockstep_start(rank->session));
    if (rank->rank == 0) {
        add_to_counters(rank, "own", 16, 1);
        add_to_counters(rank, "own", 16, -1);
    } else {
        add_to_counters(rank, "common", 15, 1);
    }
    trainer_begin(rank, NULL);
    trainer_end(rank);
    if (rank->rank == 0) {
        add_to_counters(rank, "own", 16, 1);
        add_to_counters(rank, "common", 15, 1);
    }
    trainer_begin(rank, NULL);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_step_end(rank->session, NULL));
    RANK_SAYS(rank, "16 counters");
    trainer_begin(rank, NULL);
    trainer_end(rank);
}

static void counters_overflow(const struct setting *setting)
{
    ranks_run(setting, sixteen_body, NULL);
    ranks_run(setting, overflow_body, NULL);
    ranks_run(setting, late_overflow_body, NULL);
    ranks_run(setting, known_to_one_body, NULL);
}

// ---- State -------------------------------------------------------------------------------------

static void state_body(struct rank *rank)
{
    static const uint64_t sizes[3] = {100, 5, 300};
    const struct module_shape shape = {.name = "net", .count = 3, .elements = sizes};
    struct trained_module module;
    uint64_t before;
    uint64_t after;
    char line[128];
    trainer_make(rank, &shape, 0, &module);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_state_check(rank->session));
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_OK(rank, lockstep_state_hash(rank->session, &before));
    RANK_OK(rank, lockstep_state_check(rank->session));
    if (rank->rank == 1)
        ((float *)module.data[1])[4] = 1;
    RANK_OK(rank, lockstep_state_hash(rank->session, &after));
    RANK_EQUAL(rank, before == after, rank->rank != 1);
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_state_check(rank->session));
    snprintf(line, sizeof(line),
             "1 of 3 tensors differ from those of rank 0:\n  module 'net' parameter 'p1' on 1 of "
             "%" PRIu32 " ranks",
             rank->world_size);
    RANK_TRUE(rank, strcmp(lockstep_error_text(), line) == 0);
    ((float *)module.data[1])[4] = 1; // The values are equal again, and the session goes on.
    RANK_OK(rank, lockstep_state_check(rank->session));
    RANK_OK(rank, lockstep_state_hash(rank->session, &after));
    rank_digest(rank, &after, sizeof(after));
    trainer_step_known(rank, &module, 1);
    trainer_free(&module);
}

static void state_check_names_what_differs(const struct setting *setting)
{
    ranks_run(setting, state_body, NULL);
}

// ---- Leaving -----------------------------------------------------------------------------------

// Rank 0 closes its session. Ranks that still need it get an error that says so.
static void leave_body(struct rank *rank)
{
    int64_t data[10] = {0};
    RANK_OK(rank, lockstep_barrier(rank->session, "together", FOREVER));
    if (rank->rank == 0) {
        lockstep_session *session = rank->session;
        rank->session = NULL;
        RANK_OK(rank, lockstep_close(session));
        return;
    }
    RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST,
               lockstep_allreduce(rank->session, "without 0", data, 10, LOCKSTEP_INT64,
                                  LOCKSTEP_SUM, FOREVER));
    RANK_SAYS(rank, "rank 0");
    RANK_SAYS(rank, "closed its session");
}

static void a_rank_leaves(const struct setting *setting)
{
    ranks_run(setting, leave_body, NULL);
}

static void abort_body(struct rank *rank)
{
    int64_t data[10] = {0};
    uint64_t began_ms;
    rank_meet(rank); // All sessions are open.
    began_ms = clock_now_ms();
    if (rank->rank == 0) {
        RANK_OK(rank, lockstep_abort(rank->session, "the loss is NaN"));
        RANK_FAILS(rank, LOCKSTEP_E_CLOSED,
                   lockstep_allreduce(rank->session, "aborted", data, 10, LOCKSTEP_INT64,
                                      LOCKSTEP_SUM, FOREVER));
        RANK_SAYS(rank, "the loss is NaN");
        return;
    }
    RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST,
               lockstep_allreduce(rank->session, "aborted", data, 10, LOCKSTEP_INT64, LOCKSTEP_SUM,
                                  FOREVER));
    RANK_SAYS(rank, "the loss is NaN");
    RANK_TRUE(rank, clock_now_ms() - began_ms < test_bound_ms(3000));
}

static void a_rank_aborts(const struct setting *setting)
{
    ranks_run(setting, abort_body, NULL);
}

// ---- Memory ------------------------------------------------------------------------------------

static void overlap_body(struct rank *rank)
{
    float data[8] = {0};
    lockstep_work *first;
    lockstep_work *second;
    RANK_OK(rank, lockstep_allreduce_async(rank->session, "a", data, 4, LOCKSTEP_FLOAT32,
                                           LOCKSTEP_SUM, &first));
    RANK_FAILS(
        rank, LOCKSTEP_E_INVALID,
        lockstep_broadcast_async(rank->session, "b", data + 3, 4, LOCKSTEP_FLOAT32, 0, &second));
    RANK_SAYS(rank, "collective 'b' (use 1) and collective 'a' (use 1), which was not waited for, "
                    "overlap in memory: they have 4 bytes at 0x");
    RANK_SAYS(rank, "Wait for that one first, or give each memory of its own");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_allreduce(rank->session, "a", data, 1, LOCKSTEP_FLOAT32, LOCKSTEP_SUM,
                                  LOCKSTEP_WAIT_FOREVER));
    RANK_SAYS(rank, "collective 'a' (use 2) and collective 'a' (use 1)");
    RANK_OK(rank, lockstep_broadcast_async(rank->session, "b", data + 4, 4, LOCKSTEP_FLOAT32, 0,
                                           &second));
    RANK_OK(rank, lockstep_work_wait(first, LOCKSTEP_WAIT_FOREVER));
    RANK_OK(rank, lockstep_allreduce(rank->session, "a", data, 4, LOCKSTEP_FLOAT32, LOCKSTEP_SUM,
                                     LOCKSTEP_WAIT_FOREVER));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_allreduce(rank->session, "a", data + 7, 1, LOCKSTEP_FLOAT32, LOCKSTEP_SUM,
                                  LOCKSTEP_WAIT_FOREVER));
    RANK_SAYS(rank, "collective 'b' (use 1)");
    RANK_OK(rank, lockstep_work_wait(second, LOCKSTEP_WAIT_FOREVER));
    RANK_OK(rank, lockstep_allreduce(rank->session, "a", data, 8, LOCKSTEP_FLOAT32, LOCKSTEP_SUM,
                                     LOCKSTEP_WAIT_FOREVER));
}

static void memory_of_two_collectives(const struct setting *setting)
{
    ranks_run(setting, overlap_body, NULL);
}

// The root of a broadcast only reads, so two of them may have its memory.
static void root_body(struct rank *rank)
{
    const bool root = rank->rank == 1;
    float data[2][4] = {{1, 2, 3, 4}, {0}};
    float *second = root ? data[0] : data[1];
    lockstep_work *works[2], *none;
    RANK_OK(rank, lockstep_broadcast_async(rank->session, "a", data[0], 4, LOCKSTEP_FLOAT32, 1,
                                           &works[0]));
    RANK_OK(rank, lockstep_broadcast_async(rank->session, "b", second, 4, LOCKSTEP_FLOAT32, 1,
                                           &works[1]));
    RANK_FAILS(
        rank, LOCKSTEP_E_INVALID,
        lockstep_broadcast_async(rank->session, "c", data[0], 4, LOCKSTEP_FLOAT32, 0, &none));
    RANK_SAYS(rank, "overlap in memory");
    for (int i = 0; i < 2; i++)
        RANK_OK(rank, lockstep_work_wait(works[i], LOCKSTEP_WAIT_FOREVER));
    for (int i = 0; i < 4; i++)
        RANK_TRUE(rank, data[0][i] == (float)(i + 1) && second[i] == (float)(i + 1));
}

static void memory_that_two_roots_read(const struct setting *setting)
{
    ranks_run(setting, root_body, NULL);
}

int main(void)
{
    static const uint32_t worlds[] = {2, 3, 5, 0};
    static const uint32_t one[] = {1, 0};
    static const struct stamp stamps[] = {
        {"allreduce_ops_and_dtypes", allreduce_ops_and_dtypes, worlds},
        {"allreduce_large", allreduce_large, NULL},
        {"allreduce_alone", allreduce_alone, one},
        {"broadcast_from_each_root", broadcast_from_each_root, worlds},
        {"barrier_holds_everybody", barrier_holds_everybody, worlds},
        {"many_in_flight_in_different_orders", many_in_flight_in_different_orders, worlds},
        {"names_are_used_again", names_are_used_again, NULL},
        {"collectives_inside_a_step", collectives_inside_a_step, NULL},
        {"memory_of_two_collectives", memory_of_two_collectives, worlds},
        {"memory_that_two_roots_read", memory_that_two_roots_read, worlds},
        {"polling_with_no_timeout", polling_with_no_timeout, NULL},
        {"a_late_wait_leaves_its_work", a_late_wait_leaves_its_work, NULL},
        {"timeout_of_a_blocking_one", timeout_of_a_blocking_one, NULL},
        {"case_41_collectives_differ", case_41_collectives_differ, NULL},
        {"an_immense_collective_is_refused", an_immense_collective_is_refused, NULL},
        {"counters_are_exact_on_all_ranks", counters_are_exact_on_all_ranks, NULL},
        {"counters_between_steps", counters_between_steps, NULL},
        {"counters_are_bounded", counters_are_bounded, NULL},
        {"totals_stop_at_the_end_of_the_range", totals_stop_at_the_end_of_the_range, NULL},
        {"counters_overflow", counters_overflow, NULL},
        {"state_check_names_what_differs", state_check_names_what_differs, NULL},
        {"a_rank_leaves", a_rank_leaves, NULL},
        {"a_rank_aborts", a_rank_aborts, NULL},
    };
    return stamp_run("collectives", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
