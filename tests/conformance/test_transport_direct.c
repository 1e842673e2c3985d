// SPDX-License-Identifier: Apache-2.0
//
// Parts that go from rank to rank: exchanges and reduce-scatters between any members, and
// allreduces of a part of the world. Lengths from nothing to several windows, ranks that launch
// late, and ranks that disagree about a length. Small parts go over the board, too. Every element
// is compared with what the test computes itself, bit by bit.

#include "base/clock.h"
#include "tests/conformance/transport_fleet.h"
#include "tests/support/bounds.h"
#include "worker/kernels/kernels.h"
#include "worker/transport/lifecycle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define GUARD 0x5a // The byte behind each memory.

static const struct fleet_options variants[] = {
    {.name = "loopback", .kind = TRANSPORT_LOOPBACK, .chunk_bytes = 4096},
    {.name = "torn 7", .kind = TRANSPORT_LOOPBACK, .torn_bytes = 7, .chunk_bytes = 512},
    {.name = "tcp", .kind = TRANSPORT_TCP, .chunk_bytes = 256 * 1024},
    {.name = "memory", .kind = TRANSPORT_TCP, .mates = true, .chunk_bytes = 64 * 1024},
    {.name = "unread", .kind = TRANSPORT_TCP, .mates = true, .chunk_bytes = 64 * 1024},
    {.name = "half read", .kind = TRANSPORT_TCP, .mates = true, .chunk_bytes = 64 * 1024},
    {.name = "tls", .kind = TRANSPORT_TCP, .encrypts = true, .chunk_bytes = 64 * 1024},
};

// ---- reading a mate's memory --------------------------------------------------------------------

static atomic_uint reads; // Reads of parts in the memory of a mate that have succeeded.
static atomic_bool may_read; // False: the kernel refuses, as between containers.
static atomic_bool reads_fail; // True: each third read of a part fails.
static atomic_uint read_attempts;

// In place of the C library's.
ssize_t process_vm_readv(pid_t pid, const struct iovec *here, unsigned long here_count,
                         const struct iovec *there, unsigned long there_count, unsigned long flags)
{
    const bool part = here->iov_len > sizeof(uint64_t);
    if (!atomic_load(&may_read) ||
        (part && atomic_load(&reads_fail) && atomic_fetch_add(&read_attempts, 1) % 3 == 2)) {
        errno = EPERM;
        return -1;
    }
    if (part)
        atomic_fetch_add(&reads, 1);
    return syscall(SYS_process_vm_readv, pid, here, here_count, there, there_count, flags);
}

static void readers_set(const struct fleet_options *variant)
{
    atomic_store(&may_read, strcmp(variant->name, "unread") != 0);
    atomic_store(&reads_fail, strcmp(variant->name, "half read") == 0);
    atomic_store(&reads, 0);
}

static void readers_check(const struct fleet_options *variant)
{
    if (variant->mates && strcmp(variant->name, "unread") != 0)
        assert_true(atomic_load(&reads) > 0);
    else
        assert_int_equal(atomic_load(&reads), 0);
}

// ---- plans --------------------------------------------------------------------------------------

// What a member does; the same on all members.
struct plan {
    const char *name;
    enum collective_kind kind;
    enum dtype dtype;
    enum reduce_op op;
    bool in_place;
    bool input_is_sum;
    uint32_t late; // This member launches late; no member has this number: none does.
    uint32_t members[FLEET_MAX]; // [count], in the order of summation.
    uint32_t count; // 0: all ranks.
    uint64_t elements;
    bool uneven; // Each length is another one, and some are 0.
    uint32_t without; // In an exchange, nothing goes from this member to any; FLEET_MAX: none.
    bool rows; // By ALGORITHM_SHARED. All ranks are members.
};

static uint64_t elements_of(const struct plan *plan, uint32_t from, uint32_t to)
{
    if (!plan->uneven)
        return plan->elements;
    return (from + 2 * to) % 4 == 0 ? 0 : plan->elements * ((from + 2 * to) % 4) / 3 + from;
}

// The element as a small integer: every dtype has it, and products with weights are exact.
static int value_of(uint32_t from, uint32_t to, uint64_t element)
{
    return (int)((element * 31 + from * 17 + to * 7 + 3) % 101);
}

static uint64_t weight_of(uint32_t rank)
{
    return rank % 3 == 1 ? 0 : rank + 1;
}

static void put(enum dtype dtype, uint8_t *at, float value)
{
    const double wide = value;
    const int32_t whole = (int32_t)value;
    if (dtype == DTYPE_FLOAT32)
        memcpy(at, &value, sizeof(value));
    else if (dtype == DTYPE_FLOAT64)
        memcpy(at, &wide, sizeof(wide));
    else if (dtype == DTYPE_INT32)
        memcpy(at, &whole, sizeof(whole));
    else
        kernel_narrow(dtype, (void *)at, &value, 1);
}

// Values whose sum depends on the order of the additions: thirds of the small integers. In float64
// the integers themselves, because the reference adds in float32.
static float fine_of(const struct plan *plan, uint32_t from, uint32_t to, uint64_t element)
{
    const float value = (float)value_of(from, to, element);
    const bool fine = plan->dtype == DTYPE_FLOAT32 || dtype_is_small(plan->dtype);
    return fine && plan->kind != COLLECTIVE_EXCHANGE ? value / 3 : value;
}

static float narrowed(enum dtype dtype, float value)
{
    uint16_t half;
    if (!dtype_is_small(dtype))
        return value;
    kernel_narrow(dtype, &half, &value, 1);
    kernel_widen(dtype, &value, &half, 1);
    return value;
}

// The reduction of one element by a loop over the members, in their order. Volatile: every
// operation is rounded.
static void reduced(const struct plan *plan, const uint32_t *members, uint32_t count, uint32_t to,
                    uint64_t element, uint8_t *at)
{
    volatile float sum = 0;
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t weight = plan->op == REDUCE_MEAN ? weight_of(members[i]) : 1;
        volatile float own = narrowed(plan->dtype, fine_of(plan, members[i], to, element));
        if (plan->op == REDUCE_MEAN && !plan->input_is_sum)
            own = own * (float)weight;
        if (weight == 0)
            own = 0;
        total += weight;
        if (i == 0)
            sum = own;
        else if (plan->op == REDUCE_MAX)
            sum = own > sum ? own : sum;
        else
            sum = sum + own;
    }
    if (plan->op == REDUCE_MEAN)
        sum = sum / (float)total;
    put(plan->dtype, at, sum);
}

struct memory {
    uint8_t *bytes;
    size_t size;
};

static struct memory memory_take(uint64_t elements, enum dtype dtype)
{
    struct memory memory = {.size = elements * dtype_size(dtype)};
    memory.bytes = malloc(memory.size + 1);
    memset(memory.bytes, 0xee, memory.size);
    memory.bytes[memory.size] = GUARD;
    return memory;
}

static void memory_fill(const struct plan *plan, struct memory *memory, uint32_t from, uint32_t to)
{
    const size_t size = dtype_size(plan->dtype);
    for (uint64_t e = 0; e < memory->size / size; e++)
        put(plan->dtype, memory->bytes + e * size, fine_of(plan, from, to, e));
}

static uint32_t members_of(const struct member *member, const struct plan *plan, uint32_t *members)
{
    const uint32_t count = plan->count > 0 ? plan->count : member->fleet->options.world;
    for (uint32_t i = 0; i < count; i++)
        members[i] = plan->count > 0 ? plan->members[i] : i;
    return count;
}

static bool is_member(const uint32_t *members, uint32_t count, uint32_t rank)
{
    for (uint32_t i = 0; i < count; i++)
        if (members[i] == rank)
            return true;
    return false;
}

// What a member gives and gets, in the order of members.
struct sides {
    uint32_t members[FLEET_MAX];
    uint32_t count;
    struct memory inputs[FLEET_MAX];
    struct memory outputs[FLEET_MAX];
    struct collective_part sends[FLEET_MAX];
    struct collective_part receives[FLEET_MAX];
    struct collective_parts parts;
    struct extent extent;
};

// Elements in the row of a member before its part for member `end` of the list.
static uint64_t before(const struct plan *plan, const struct sides *sides, uint32_t from,
                       uint32_t end)
{
    uint64_t elements = 0;
    for (uint32_t i = 0; i < end; i++)
        elements +=
            elements_of(plan, plan->kind == COLLECTIVE_EXCHANGE ? from : 0, sides->members[i]);
    return elements;
}

static void sides_lay(struct member *member, const struct plan *plan, struct sides *sides)
{
    uint32_t own = 0;
    while (sides->members[own] != member->rank)
        own++;
    for (uint32_t i = 0; i < sides->parts.send_count; i++)
        sides->sends[i].offset = before(plan, sides, member->rank, i);
    for (uint32_t i = 0; i < sides->parts.receive_count; i++)
        sides->receives[i].offset = before(plan, sides, sides->receives[i].rank, own);
    for (uint32_t i = 0; i < sides->count; i++) {
        const uint64_t row = before(plan, sides, sides->members[i], sides->count);
        sides->parts.row = row > sides->parts.row ? row : sides->parts.row;
    }
    MEMBER_CHECK(member, sides->parts.row * dtype_size(plan->dtype) <= COLLECTIVE_ROW_BYTES);
}

static void sides_make(struct member *member, const struct plan *plan, struct sides *sides)
{
    const uint32_t me = member->rank;
    memset(sides, 0, sizeof(*sides));
    sides->count = members_of(member, plan, sides->members);
    for (uint32_t i = 0; i < sides->count; i++) {
        const uint32_t other = sides->members[i];
        const bool exchange = plan->kind == COLLECTIVE_EXCHANGE;
        const uint64_t out = elements_of(plan, exchange ? me : 0, other);
        const uint64_t in = elements_of(plan, exchange ? other : 0, me);
        sides->inputs[i] = memory_take(out, plan->dtype);
        memory_fill(plan, &sides->inputs[i], me, plan->kind == COLLECTIVE_ALLREDUCE ? 0 : other);
        if (!exchange || me != plan->without)
            sides->sends[sides->parts.send_count++] =
                (struct collective_part){other, sides->inputs[i].bytes, out, 0};
        if (exchange ? other == plan->without : other != me)
            continue;
        sides->outputs[i] = memory_take(in, plan->dtype);
        if (plan->in_place && other == me) {
            free(sides->outputs[i].bytes);
            sides->outputs[i] = sides->inputs[i];
        }
        sides->receives[sides->parts.receive_count++] =
            (struct collective_part){other, sides->outputs[i].bytes, in, 0};
    }
    sides->parts.sends = sides->sends;
    sides->parts.receives = sides->receives;
    if (plan->rows)
        sides_lay(member, plan, sides);
}

static void check(struct member *member, const struct plan *plan, const struct memory *memory,
                  const uint32_t *members, uint32_t count, uint32_t from, uint32_t to)
{
    const size_t size = dtype_size(plan->dtype);
    uint8_t expected[8];
    MEMBER_CHECK(member, memory->bytes[memory->size] == GUARD);
    for (uint64_t e = 0; e < memory->size / size; e++) {
        if (plan->kind == COLLECTIVE_EXCHANGE)
            put(plan->dtype, expected, fine_of(plan, from, to, e));
        else
            reduced(plan, members, count, to, e, expected);
        if (memcmp(memory->bytes + e * size, expected, size) != 0) {
            fprintf(stderr, "%s: element %llu of %u to %u\n", plan->name, (unsigned long long)e,
                    from, to);
            fleet_fail(member, __FILE__, __LINE__, "an element is wrong");
        }
    }
}

static void sides_check(struct member *member, const struct plan *plan, const struct sides *sides)
{
    for (uint32_t i = 0; i < sides->count; i++) {
        const struct memory *memory =
            plan->kind == COLLECTIVE_ALLREDUCE ? &sides->inputs[i] : &sides->outputs[i];
        if (memory->bytes && (plan->kind != COLLECTIVE_ALLREDUCE || i == 0))
            check(member, plan, memory, sides->members, sides->count, sides->members[i],
                  plan->kind == COLLECTIVE_ALLREDUCE ? 0 : member->rank);
    }
}

static void sides_free(struct sides *sides)
{
    for (uint32_t i = 0; i < sides->count; i++) {
        if (sides->outputs[i].bytes != sides->inputs[i].bytes)
            free(sides->outputs[i].bytes);
        free(sides->inputs[i].bytes);
    }
}

static struct collective collective_of(const struct member *member, const struct plan *plan,
                                       struct sides *sides, uint32_t slot)
{
    struct collective collective = {.kind = plan->kind,
                                    .dtype = plan->dtype,
                                    .op = plan->op,
                                    .algorithm = plan->rows ? ALGORITHM_SHARED : ALGORITHM_DIRECT,
                                    .tag = {.step = 3, .space = 9, .slot = slot},
                                    .signature = 77,
                                    .weight = weight_of(member->rank),
                                    .input_is_sum = plan->input_is_sum,
                                    .parts = &sides->parts};
    if (plan->kind == COLLECTIVE_ALLREDUCE) {
        sides->extent = (struct extent){sides->inputs[0].bytes, sides->inputs[0].bytes,
                                        sides->inputs[0].size / dtype_size(plan->dtype)};
        collective.extents = &sides->extent;
        collective.extent_count = 1;
        collective.elements = sides->extent.elements;
    }
    return collective;
}

// All plans are launched before the first one is awaited.
struct task {
    const struct plan *plans;
    uint32_t count;
    bool crosses; // Odd ranks launch them in the opposite order.
};

// Some rows have travelled through slots.
static void check_slots(struct member *member)
{
    struct transport_statistics statistics;
    transport_statistics(member->transport, &statistics);
    MEMBER_CHECK(member, statistics.runs_filled[0] + statistics.runs_filled[1] > 0);
}

static void script_plans(struct member *member)
{
    const struct task *task = member->fleet->argument;
    struct sides *sides = calloc(task->count, sizeof(*sides));
    struct collective *collectives = calloc(task->count, sizeof(*collectives));
    uint32_t launched = 0;
    for (uint32_t i = 0; i < task->count; i++) {
        const uint32_t p = task->crosses && member->rank % 2 == 1 ? task->count - 1 - i : i;
        const struct plan *plan = &task->plans[p];
        sides_make(member, plan, &sides[p]);
        if (!is_member(sides[p].members, sides[p].count, member->rank))
            continue;
        if (plan->late == member->rank)
            member_idle(member, 20);
        collectives[p] = collective_of(member, plan, &sides[p], p);
        transport_launch(member->transport, &collectives[p]);
        launched++;
    }
    member_until(member, &member->done_count, launched, "the collectives");
    for (uint32_t p = 0; p < task->count; p++) {
        if (collectives[p].parts)
            sides_check(member, &task->plans[p], &sides[p]);
        // A member that owns nothing of a reduce-scatter does not hear of the weights.
        if (task->plans[p].kind == COLLECTIVE_ALLREDUCE && task->plans[p].op == REDUCE_MEAN)
            MEMBER_CHECK(member, collectives[p].weight_total > 0);
        sides_free(&sides[p]);
    }
    if (task->crosses)
        check_slots(member);
    free(collectives);
    free(sides);
}

static bool is_short(void)
{
    const char *sanitizer = getenv("LOCKSTEP_TEST_SANITIZER");
    return sanitizer && sanitizer[0] != '\0' && !test_everything();
}

static uint32_t most_ranks(const struct fleet_options *variant)
{
    return variant->torn_bytes > 0 || is_short() ? 3 : 5;
}

// The sizes of a world; UINT64_MAX ends them. Two ranks also fill several windows.
static uint64_t sizes_of(const struct fleet_options *variant, uint32_t world, size_t index)
{
    static const uint64_t sizes[] = {0, 1, 1000, 66000, 400000};
    const size_t count = variant->torn_bytes > 0 ? 3 : world > 2 ? 4 : 5;
    if (index >= count)
        return UINT64_MAX;
    return test_slow() > 1 && sizes[index] > 200000 ? 200000 : sizes[index];
}

static void run_plans(const struct fleet_options *variant, uint32_t world, const struct plan *plans,
                      uint32_t count)
{
    struct fleet_options options = *variant;
    struct task task = {.plans = plans, .count = count};
    options.world = world;
    options.hosts = world > LOCKSTEP_MAX_MATES ? world : 0;
    options.algorithm = ALGORITHM_DIRECT;
    readers_set(variant);
    fleet_run(&options, script_plans, &task);
}

static void test_exchanges(void **state)
{
    const struct fleet_options *variant = *state;
    for (uint32_t world = 2; world <= most_ranks(variant); world = 2 * world - 1) {
        struct plan plans[24];
        uint32_t count = 0;
        for (size_t s = 0; sizes_of(variant, world, s) != UINT64_MAX; s++) {
            for (uint32_t k = 0; k < 4; k++)
                plans[count++] = (struct plan){.name = "exchange",
                                               .kind = COLLECTIVE_EXCHANGE,
                                               .dtype = k % 2 ? DTYPE_FLOAT32 : DTYPE_BFLOAT16,
                                               .in_place = k == 1,
                                               .late = k == 0 ? world - 1 : FLEET_MAX,
                                               .elements = sizes_of(variant, world, s),
                                               .uneven = k >= 2,
                                               .without = k == 3 ? 0 : FLEET_MAX};
        }
        run_plans(variant, world, plans, count);
        readers_check(variant);
    }
}

static void test_reductions(void **state)
{
    static const struct {
        enum dtype dtype;
        enum reduce_op op;
        bool input_is_sum;
    } forms[] = {{DTYPE_FLOAT32, REDUCE_SUM, false},  {DTYPE_FLOAT32, REDUCE_MEAN, false},
                 {DTYPE_FLOAT32, REDUCE_MEAN, true},  {DTYPE_BFLOAT16, REDUCE_SUM, false},
                 {DTYPE_FLOAT16, REDUCE_MEAN, false}, {DTYPE_INT32, REDUCE_MAX, false}};
    const struct fleet_options *variant = *state;
    for (uint32_t world = 2; world <= most_ranks(variant); world = 2 * world - 1) {
        struct plan plans[2 * 6 * LENGTH(forms)];
        uint32_t count = 0;
        for (size_t s = 0; sizes_of(variant, world, s) != UINT64_MAX; s++) {
            // A sanitizer sees half of the forms in large sizes.
            for (size_t f = 0; f < LENGTH(forms); f++)
                for (uint32_t k = 0; k < 2 && !(is_short() && s > 2 && (s + f + world) % 2); k++)
                    plans[count++] = (struct plan){.name = "reduction",
                                                   .kind = k == 0 ? COLLECTIVE_REDUCE_SCATTER
                                                                  : COLLECTIVE_ALLREDUCE,
                                                   .dtype = forms[f].dtype,
                                                   .op = forms[f].op,
                                                   .input_is_sum = forms[f].input_is_sum,
                                                   .in_place = f % 2 == 0,
                                                   .late = f == 0 ? 0 : FLEET_MAX,
                                                   .elements = sizes_of(variant, world, s),
                                                   .uneven = k == 0 && f == 1};
        }
        for (uint32_t at = 0; at < count; at += 8)
            run_plans(variant, world, plans + at, count - at < 8 ? count - at : 8);
    }
}

// Odd ranks launch in the opposite order, so no rank has enough blocks for what its mates await:
// some rows travel through slots.
static void test_rows(void **state)
{
    static const uint32_t worlds[] = {2, 3, 4, 5, 8};
    const struct fleet_options *variant = *state;
    struct fleet_options options = *variant;
    options.algorithm = ALGORITHM_SHARED;
    readers_set(variant);
    for (size_t w = 0; w < (!variant->mates ? 0 : is_short() ? 2 : LENGTH(worlds)); w++) {
        struct plan plans[6 * 5];
        const uint32_t world = options.world = worlds[w];
        const uint64_t most = COLLECTIVE_ROW_BYTES / sizeof(float) / world;
        const uint64_t sizes[] = {0, 1, 77, 900, most - 1, most};
        struct task task = {.plans = plans, .crosses = true};
        for (size_t s = 0; s < LENGTH(sizes); s++) {
            for (uint32_t k = 0; k < 5; k++) {
                struct plan *plan = &plans[task.count++];
                *plan =
                    (struct plan){.name = "rows",
                                  .kind = k < 2 ? COLLECTIVE_EXCHANGE : COLLECTIVE_REDUCE_SCATTER,
                                  .dtype = k == 4 ? DTYPE_BFLOAT16 : DTYPE_FLOAT32,
                                  .op = k >= 3 ? REDUCE_MEAN : REDUCE_SUM,
                                  .in_place = s % 2 == 0,
                                  .late = k == 0 && s == 1 ? world - 1 : FLEET_MAX,
                                  .elements = sizes[s],
                                  .uneven = k % 2 == 1 && s < 4,
                                  .without = FLEET_MAX,
                                  .count = k == 3 ? world : 0,
                                  .rows = true};
                for (uint32_t i = 0; i < plan->count; i++)
                    plan->members[i] = world - 1 - i;
            }
        }
        fleet_run(&options, script_plans, &task);
    }
}

// Some ranks of a world, in an order of their own.
static void test_members(void **state)
{
    const struct fleet_options *variant = *state;
    const struct plan plans[] = {
        {.name = "two of five",
         .kind = COLLECTIVE_REDUCE_SCATTER,
         .dtype = DTYPE_FLOAT32,
         .late = FLEET_MAX,
         .members = {4, 1},
         .count = 2,
         .elements = 1000},
        {.name = "overlapping",
         .kind = COLLECTIVE_EXCHANGE,
         .dtype = DTYPE_FLOAT32,
         .late = 3,
         .members = {1, 3, 0},
         .count = 3,
         .elements = 70000,
         .without = FLEET_MAX},
        {.name = "one alone",
         .kind = COLLECTIVE_REDUCE_SCATTER,
         .dtype = DTYPE_FLOAT32,
         .late = FLEET_MAX,
         .members = {2},
         .count = 1,
         .elements = 100},
        {.name = "reversed",
         .kind = COLLECTIVE_ALLREDUCE,
         .dtype = DTYPE_FLOAT32,
         .late = FLEET_MAX,
         .members = {4, 3, 2, 1, 0},
         .count = 5,
         .elements = 5000},
    };
    if (variant->torn_bytes == 0)
        run_plans(variant, 5, plans, LENGTH(plans));
}

// More members than a kernel adds at a time.
static void test_many_members(void **state)
{
    const struct fleet_options *variant = *state;
    struct plan plans[4];
    static const enum dtype dtypes[] = {DTYPE_FLOAT32, DTYPE_FLOAT64, DTYPE_BFLOAT16, DTYPE_INT32};
    for (uint32_t i = 0; i < LENGTH(plans); i++)
        plans[i] = (struct plan){.name = "many",
                                 .kind = COLLECTIVE_REDUCE_SCATTER,
                                 .dtype = dtypes[i],
                                 .op = i == 0 ? REDUCE_MEAN : REDUCE_SUM,
                                 .late = FLEET_MAX,
                                 .elements = 3000};
    if (variant->kind == TRANSPORT_LOOPBACK && variant->torn_bytes == 0)
        run_plans(variant, 18, plans, LENGTH(plans));
}

// ---- ranks that disagree ------------------------------------------------------------------------

struct quarrel {
    uint64_t sent;
    uint64_t awaited;
    uint32_t late;
};

static atomic_bool noticed;

static void script_quarrel(struct member *member)
{
    const struct quarrel *quarrel = member->fleet->argument;
    const uint64_t elements = member->rank == 0 ? quarrel->sent : quarrel->awaited;
    float *memory = calloc(elements + 1, sizeof(float));
    const struct collective_part part = {1 - member->rank, memory, elements, 0};
    const struct collective_parts parts = {.sends = &part,
                                           .receives = &part,
                                           .send_count = member->rank == 0,
                                           .receive_count = member->rank == 1};
    struct collective collective = {.kind = COLLECTIVE_EXCHANGE,
                                    .dtype = DTYPE_FLOAT32,
                                    .algorithm = ALGORITHM_DIRECT,
                                    .tag = {.step = 1, .space = 2},
                                    .parts = &parts};
    const uint64_t since_ms = clock_now_ms();
    if (quarrel->late == member->rank)
        member_idle(member, 10);
    transport_launch(member->transport, &collective);
    while (!atomic_load(&noticed)) {
        transport_progress(member->transport, 1);
        if (member->mismatch_count > 0)
            atomic_store(&noticed, true);
        MEMBER_CHECK(member, clock_now_ms() - since_ms < fleet_bound_ms(FLEET_BOUND_MS));
    }
    MEMBER_CHECK(member, member->lost_count == 0);
    member_barrier(member);
    transport_abandon(member->transport);
    transport_close(member->transport);
    member->closed = true;
    free(memory);
}

// A part may be longer or shorter than awaited, with and without the need of credit on each side.
static void test_other_lengths(void **state)
{
    static const uint64_t lengths[] = {0, 1, 65536, 65537, 300000};
    struct fleet_options options = *(const struct fleet_options *)*state;
    options.world = 2;
    options.algorithm = ALGORITHM_DIRECT;
    const size_t pairs = options.torn_bytes > 0 || options.encrypts ? 0 : LENGTH(lengths);
    readers_set(*state);
    for (size_t i = 0; i < pairs * LENGTH(lengths); i++) {
        struct quarrel quarrel = {lengths[i / LENGTH(lengths)], lengths[i % LENGTH(lengths)],
                                  (uint32_t)(i / 7 % 3)};
        if (quarrel.sent == quarrel.awaited)
            continue;
        atomic_store(&noticed, false);
        fleet_run(&options, script_quarrel, &quarrel);
    }
}

// Under a sanitizer the plain links show what there is to see.
static bool left_out(const struct fleet_options *variant)
{
    return is_short() && (variant->encrypts || variant->mates || variant->torn_bytes > 0);
}

int main(void)
{
    static const struct CMUnitTest each[] = {
        cmocka_unit_test(test_exchanges),    cmocka_unit_test(test_reductions),
        cmocka_unit_test(test_rows),         cmocka_unit_test(test_members),
        cmocka_unit_test(test_many_members), cmocka_unit_test(test_other_lengths)};
    static struct CMUnitTest stamped[LENGTH(each) * LENGTH(variants)];
    static char names[LENGTH(stamped)][80];
    size_t count = 0;
    for (size_t i = 0; i < LENGTH(stamped); i++) {
        const struct fleet_options *variant = &variants[i % LENGTH(variants)];
        const bool reads_less = strstr(variant->name, "read") != NULL;
        const bool rows = variant->mates && each[i / LENGTH(variants)].test_func == test_rows;
        if ((left_out(variant) && !rows) ||
            (reads_less && each[i / LENGTH(variants)].test_func != test_exchanges))
            continue;
        stamped[count] = each[i / LENGTH(variants)];
        snprintf(names[count], sizeof(names[count]), "%s/%s", stamped[count].name, variant->name);
        stamped[count].name = names[count];
        stamped[count++].initial_state = (void *)variant;
    }
    return _cmocka_run_group_tests("direct", stamped, count, NULL, NULL);
}
