// SPDX-License-Identifier: Apache-2.0
//
// Conformance: the results of collectives of every kind, in the world and in groups. A case is one
// collective: kind, dtype, op, count, and how memory is given. The test computes the whole output
// memory that each member must have afterwards, and compares all of its bytes.
//
// Inputs are integers from 0 to 6, so every sum is exact in every dtype.

#include "protos/limits.h"
#include "tests/support/device_trainer.h"
#include "tests/support/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define FOREVER LOCKSTEP_WAIT_FOREVER
#define LARGE 70000 // Elements of float32: more than a part that is sent without credit.
#define SENTINEL 0xa5
#define SANITIZED_WORLD 3

// How the parts of a case lie in memory.
enum layout {
    EQUAL, // Parts of equal size, one after the other.
    COUNTS, // Parts of unequal size, some empty, one after the other.
    OFFSETS, // The same, the last part first, with a gap after each.
};

struct collective_case {
    lockstep_collective_kind kind;
    lockstep_dtype dtype;
    lockstep_op op;
    uint64_t count;
    enum layout layout;
    bool in_place;
    bool asynchronous;
    bool weighted;
};

// The collective as one member sees it.
struct member {
    struct rank *rank;
    lockstep_group *group; // NULL: all ranks.
    uint32_t place;
    uint32_t size;
    uint32_t root;
    uint32_t salt; // Differs from case to case, so that old results are noticed.
};

// The device of each rank, by rank. NULL: the rank's memory is the host's.
static const struct device_trainer *devices[CLUSTER_MAX_WORLD];

// ---- Numbers -----------------------------------------------------------------------------------

static size_t element_bytes(lockstep_dtype dtype)
{
    if (dtype == LOCKSTEP_FLOAT64 || dtype == LOCKSTEP_INT64)
        return 8;
    if (dtype == LOCKSTEP_FLOAT32 || dtype == LOCKSTEP_INT32)
        return 4;
    return dtype == LOCKSTEP_UINT8 ? 1 : 2;
}

// 16-bit floats are only moved here, never added, so any bits will do.
static void put(void *memory, lockstep_dtype dtype, uint64_t index, int64_t value, int64_t divisor)
{
    if (dtype == LOCKSTEP_FLOAT32)
        ((float *)memory)[index] = (float)value / (float)divisor;
    else if (dtype == LOCKSTEP_FLOAT64)
        ((double *)memory)[index] = (double)value / (double)divisor;
    else if (dtype == LOCKSTEP_INT32)
        ((int32_t *)memory)[index] = (int32_t)value;
    else if (dtype == LOCKSTEP_INT64)
        ((int64_t *)memory)[index] = value;
    else if (dtype == LOCKSTEP_UINT8)
        ((uint8_t *)memory)[index] = (uint8_t)value;
    else
        ((uint16_t *)memory)[index] = (uint16_t)value;
}

// Element `index` of part `part` of a member's input.
static int64_t input_of(const struct member *member, uint32_t place, uint32_t part, uint64_t index)
{
    return (int64_t)((place * 5 + part * 3 + index * 2 + member->salt) % 7);
}

static uint64_t weight_of(const struct collective_case *what, uint32_t place)
{
    return what->weighted ? place * 3 : 1;
}

static int64_t reduced(const struct member *member, const struct collective_case *what,
                       uint32_t part, uint64_t index)
{
    int64_t result = 0;
    for (uint32_t i = 0; i < member->size; i++) {
        const int64_t value = input_of(member, i, part, index);
        if (what->op == LOCKSTEP_SUM || what->op == LOCKSTEP_MEAN)
            result += value * (int64_t)weight_of(what, i);
        else if (what->op == LOCKSTEP_OR)
            result |= value;
        else if (i == 0 || (what->op == LOCKSTEP_MIN) == (value < result))
            result = value;
    }
    return result;
}

static int64_t divisor_of(const struct member *member, const struct collective_case *what)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < member->size; i++)
        total += weight_of(what, i);
    return what->op == LOCKSTEP_MEAN ? (int64_t)total : 1;
}

// ---- Parts -------------------------------------------------------------------------------------

// Elements that go from one member to another; kinds with one sender or one receiver of each part
// use the other number only.
static uint64_t count_of(const struct collective_case *what, uint32_t from, uint32_t to)
{
    if (what->layout == EQUAL)
        return what->count;
    return (from + to) % 3 == 1 ? 0 : what->count + from * 2 + to;
}

struct side {
    uint64_t counts[CLUSTER_MAX_WORLD];
    uint64_t offsets[CLUSTER_MAX_WORLD];
    uint64_t elements; // Of the whole memory, with gaps.
};

static void side_lay(const struct member *member, const struct collective_case *what,
                     struct side *side)
{
    side->elements = 0;
    for (uint32_t i = 0; i < member->size; i++) {
        const uint32_t part = what->layout == OFFSETS ? member->size - 1 - i : i;
        side->offsets[part] = side->elements;
        side->elements += side->counts[part] + (what->layout == OFFSETS);
    }
}

static bool has_parts(const struct collective_case *what, bool output)
{
    const lockstep_collective_kind kind = what->kind;
    if (kind == LOCKSTEP_SCATTER || kind == LOCKSTEP_REDUCE_SCATTER)
        return !output;
    if (kind == LOCKSTEP_GATHER || kind == LOCKSTEP_ALL_GATHER)
        return output;
    return kind == LOCKSTEP_ALL_TO_ALL;
}

static bool is_rooted(lockstep_collective_kind kind)
{
    return kind == LOCKSTEP_BROADCAST || kind == LOCKSTEP_REDUCE || kind == LOCKSTEP_GATHER ||
           kind == LOCKSTEP_SCATTER;
}

// Elements of the part that is this member's alone.
static uint64_t own_count(const struct member *member, const struct collective_case *what)
{
    const lockstep_collective_kind kind = what->kind;
    if (kind == LOCKSTEP_SCATTER || kind == LOCKSTEP_REDUCE_SCATTER)
        return count_of(what, 0, member->place);
    if (kind == LOCKSTEP_GATHER || kind == LOCKSTEP_ALL_GATHER)
        return count_of(what, member->place, 0);
    return what->count;
}

static void side_of(const struct member *member, const struct collective_case *what, bool output,
                    struct side *side)
{
    const uint32_t place = member->place;
    for (uint32_t i = 0; i < member->size; i++) {
        const bool all = what->kind == LOCKSTEP_ALL_TO_ALL;
        if (output)
            side->counts[i] = count_of(what, i, all ? place : 0);
        else
            side->counts[i] = count_of(what, all ? place : 0, i);
    }
    // In place, each pair exchanges equal parts.
    for (uint32_t i = 0; what->kind == LOCKSTEP_ALL_TO_ALL && what->in_place && i < member->size;
         i++)
        side->counts[i] = place < i ? count_of(what, place, i) : count_of(what, i, place);
    if (has_parts(what, output))
        side_lay(member, what, side);
    else
        side->elements = own_count(member, what);
}

// ---- Memory ------------------------------------------------------------------------------------

struct memory {
    struct side input;
    struct side output;
    uint8_t *in;
    uint8_t *out;
    uint8_t *in_before;
    uint8_t *expected;
    size_t in_bytes;
    size_t out_bytes;
};

static uint8_t *memory_new(size_t bytes)
{
    uint8_t *memory = malloc(bytes + 16);
    memset(memory, SENTINEL, bytes + 16);
    return memory;
}

static bool is_output_written(const struct member *member, const struct collective_case *what)
{
    if (what->kind == LOCKSTEP_REDUCE || what->kind == LOCKSTEP_GATHER)
        return member->place == member->root;
    return what->kind != LOCKSTEP_BARRIER;
}

// Writes the member's own input, or what of it lies in `memory`, whose parts `side` describes.
static void write_input(const struct member *member, const struct collective_case *what,
                        const struct side *side, uint8_t *memory)
{
    if (!has_parts(what, false)) {
        for (uint64_t e = 0; e < own_count(member, what); e++)
            put(memory, what->dtype, e, input_of(member, member->place, 0, e), 1);
        return;
    }
    for (uint32_t p = 0; p < member->size; p++)
        for (uint64_t e = 0; e < side->counts[p]; e++)
            put(memory, what->dtype, side->offsets[p] + e, input_of(member, member->place, p, e),
                1);
}

static void write_part(const struct member *member, const struct collective_case *what,
                       uint8_t *memory, uint64_t at, uint64_t count, uint32_t from, uint32_t part)
{
    const bool reduces = what->kind == LOCKSTEP_ALLREDUCE || what->kind == LOCKSTEP_REDUCE ||
                         what->kind == LOCKSTEP_REDUCE_SCATTER;
    const int64_t divisor = reduces ? divisor_of(member, what) : 1;
    for (uint64_t e = 0; e < count && divisor > 0; e++)
        put(memory, what->dtype, at + e,
            reduces ? reduced(member, what, part, e) : input_of(member, from, part, e), divisor);
}

// Writes what the output must be into `memory`, which is the output as it was before.
static void write_expected(const struct member *member, const struct collective_case *what,
                           const struct side *side, uint8_t *memory)
{
    const uint32_t place = member->place;
    if (!is_output_written(member, what))
        return;
    if (!has_parts(what, true)) {
        const bool splits = has_parts(what, false);
        write_part(member, what, memory, 0, side->elements, member->root, splits ? place : 0);
        return;
    }
    for (uint32_t i = 0; i < member->size; i++)
        write_part(member, what, memory, side->offsets[i], side->counts[i], i,
                   what->kind == LOCKSTEP_ALL_TO_ALL ? place : 0);
}

// ---- One collective ----------------------------------------------------------------------------

static void fill_in(const struct member *member, const struct collective_case *what,
                    struct memory *memory, struct lockstep_collective *call)
{
    *call = (struct lockstep_collective)LOCKSTEP_COLLECTIVE_INIT;
    call->kind = what->kind;
    call->group = member->group;
    call->name = "a";
    call->count = what->count;
    call->dtype = what->dtype;
    call->op = what->op;
    call->root = member->root;
    call->weight = what->op == LOCKSTEP_MEAN ? weight_of(what, member->place) : 1;
    call->input = memory->in;
    call->output = memory->out;
    if (what->layout != EQUAL && has_parts(what, false))
        call->input_counts = memory->input.counts;
    if (what->layout != EQUAL && has_parts(what, true))
        call->output_counts = memory->output.counts;
    if (what->layout == OFFSETS && has_parts(what, false))
        call->input_offsets = memory->input.offsets;
    if (what->layout == OFFSETS && has_parts(what, true))
        call->output_offsets = memory->output.offsets;
}

// Gives one memory for both sides, where the kind allows it, and moves what is expected there.
static void go_in_place(const struct member *member, const struct collective_case *what,
                        struct memory *memory, struct lockstep_collective *call)
{
    const size_t element = element_bytes(what->dtype);
    const bool is_root = member->place == member->root;
    if (what->kind == LOCKSTEP_ALLREDUCE || what->kind == LOCKSTEP_BROADCAST ||
        what->kind == LOCKSTEP_REDUCE) {
        memcpy(memory->out, memory->in, memory->in_bytes);
        if (!is_output_written(member, what) || divisor_of(member, what) == 0)
            memcpy(memory->expected, memory->in, memory->in_bytes);
        call->input = what->count % 2 == 0 ? NULL : memory->out;
    } else if (what->kind == LOCKSTEP_ALL_GATHER || (what->kind == LOCKSTEP_GATHER && is_root)) {
        memcpy(memory->out + memory->output.offsets[member->place] * element, memory->in,
               memory->in_bytes);
        call->input = NULL;
    } else if (what->kind == LOCKSTEP_REDUCE_SCATTER) {
        // The result goes to the place of this member's part in the input.
        if (divisor_of(member, what) > 0)
            memcpy(memory->in_before + memory->input.offsets[member->place] * element,
                   memory->expected, memory->out_bytes);
        memcpy(memory->expected, memory->out, memory->out_bytes);
        call->output = memory->in;
        call->input = NULL;
    } else if (what->kind == LOCKSTEP_SCATTER && is_root) {
        memcpy(memory->expected, memory->out, memory->out_bytes);
        call->output = NULL;
    } else if (what->kind == LOCKSTEP_ALL_TO_ALL) {
        memcpy(memory->out, memory->in, memory->in_bytes);
        call->input = NULL;
        call->input_counts = NULL;
        call->input_offsets = NULL;
    }
}

static void make_call(struct rank *rank, const struct collective_case *what,
                      const struct lockstep_collective *call)
{
    lockstep_work *work;
    if (!what->asynchronous) {
        RANK_OK(rank, lockstep_collective_run(rank->session, call, FOREVER));
        return;
    }
    RANK_OK(rank, lockstep_collective_begin(rank->session, call, &work));
    RANK_OK(rank, lockstep_work_wait(work, FOREVER));
}

// Copies to memory of the rank's device, and back. That memory is as large as memory_new makes it.
static uint8_t *device_put(struct rank *rank, const uint8_t *memory, size_t bytes)
{
    const struct device_trainer *device = devices[rank->rank];
    uint8_t *there = device_trainer_allocate(rank, device, (int64_t)(bytes + 19) / 4);
    DEVICE_CUDA(rank, device,
                memcpy_htod_async((uint64_t)(uintptr_t)there, memory, bytes + 16, device->reads));
    DEVICE_CUDA(rank, device, stream_synchronize(device->reads));
    return there;
}

static void device_get(struct rank *rank, uint8_t *there, uint8_t *memory, size_t bytes)
{
    const struct device_trainer *device = devices[rank->rank];
    DEVICE_CUDA(rank, device,
                memcpy_dtoh_async(memory, (uint64_t)(uintptr_t)there, bytes + 16, device->reads));
    DEVICE_CUDA(rank, device, stream_synchronize(device->reads));
    device_trainer_release(rank, device, there);
}

// The same call, with the memory on the rank's device if it has one.
static void make_call_there(struct rank *rank, const struct collective_case *what,
                            struct memory *memory, struct lockstep_collective *call)
{
    if (!devices[rank->rank]) {
        make_call(rank, what, call);
        return;
    }
    uint8_t *in = device_put(rank, memory->in, memory->in_bytes);
    uint8_t *out = device_put(rank, memory->out, memory->out_bytes);
    if (call->input)
        call->input = call->input == memory->in ? in : out;
    if (call->output)
        call->output = call->output == memory->in ? in : out;
    make_call(rank, what, call);
    device_get(rank, in, memory->in, memory->in_bytes);
    device_get(rank, out, memory->out, memory->out_bytes);
}

static void expect(const struct member *member, const struct collective_case *what,
                   const uint8_t *found, const uint8_t *wanted, size_t bytes, const char *side)
{
    for (size_t i = 0; memcmp(found, wanted, bytes + 16) != 0 && i < bytes + 16; i++)
        if (found[i] != wanted[i])
            rank_fail(member->rank, __FILE__, __LINE__,
                      "kind %d dtype %d op %d count %" PRIu64
                      " layout %d in place %d, member %u of %u, root %u: byte %zu of %zu of the "
                      "%s is 0x%02x, not 0x%02x",
                      (int)what->kind, (int)what->dtype, (int)what->op, what->count,
                      (int)what->layout, (int)what->in_place, member->place, member->size,
                      member->root, i, bytes, side, found[i], wanted[i]);
}

static void run_case(const struct member *member, const struct collective_case *what)
{
    const size_t element = element_bytes(what->dtype);
    struct lockstep_collective call;
    struct memory memory;
    side_of(member, what, false, &memory.input);
    side_of(member, what, true, &memory.output);
    memory.in_bytes = memory.input.elements * element;
    memory.out_bytes = memory.output.elements * element;
    memory.in = memory_new(memory.in_bytes);
    memory.out = memory_new(memory.out_bytes);
    memory.in_before = memory_new(memory.in_bytes);
    memory.expected = memory_new(memory.out_bytes);
    write_input(member, what, &memory.input, memory.in);
    memcpy(memory.in_before, memory.in, memory.in_bytes + 16);
    fill_in(member, what, &memory, &call);
    if (what->in_place && what->kind == LOCKSTEP_ALL_TO_ALL)
        memcpy(memory.expected, memory.in, memory.in_bytes); // Gaps of both lie alike.
    write_expected(member, what, &memory.output, memory.expected);
    if (what->in_place)
        go_in_place(member, what, &memory, &call);
    make_call_there(member->rank, what, &memory, &call);
    expect(member, what, memory.in, memory.in_before, memory.in_bytes, "input");
    expect(member, what, memory.out, memory.expected, memory.out_bytes, "output");
    free(memory.in);
    free(memory.out);
    free(memory.in_before);
    free(memory.expected);
}

// ---- All cases ---------------------------------------------------------------------------------

static const struct collective_case kinds[] = {
    {.kind = LOCKSTEP_ALLREDUCE, .dtype = LOCKSTEP_FLOAT32, .op = LOCKSTEP_SUM},
    {.kind = LOCKSTEP_ALLREDUCE, .dtype = LOCKSTEP_FLOAT64, .op = LOCKSTEP_MEAN, .weighted = true},
    {.kind = LOCKSTEP_ALLREDUCE, .dtype = LOCKSTEP_UINT8, .op = LOCKSTEP_OR},
    {.kind = LOCKSTEP_BROADCAST, .dtype = LOCKSTEP_BFLOAT16},
    {.kind = LOCKSTEP_REDUCE, .dtype = LOCKSTEP_INT64, .op = LOCKSTEP_MAX},
    {.kind = LOCKSTEP_REDUCE, .dtype = LOCKSTEP_FLOAT32, .op = LOCKSTEP_MEAN},
    {.kind = LOCKSTEP_REDUCE_SCATTER, .dtype = LOCKSTEP_FLOAT32, .op = LOCKSTEP_SUM},
    {.kind = LOCKSTEP_REDUCE_SCATTER,
     .dtype = LOCKSTEP_FLOAT64,
     .op = LOCKSTEP_MEAN,
     .weighted = true},
    {.kind = LOCKSTEP_REDUCE_SCATTER, .dtype = LOCKSTEP_INT32, .op = LOCKSTEP_MIN},
    {.kind = LOCKSTEP_GATHER, .dtype = LOCKSTEP_UINT8},
    {.kind = LOCKSTEP_SCATTER, .dtype = LOCKSTEP_FLOAT16},
    {.kind = LOCKSTEP_ALL_GATHER, .dtype = LOCKSTEP_FLOAT32},
    {.kind = LOCKSTEP_ALL_GATHER, .dtype = LOCKSTEP_INT64},
    {.kind = LOCKSTEP_ALL_TO_ALL, .dtype = LOCKSTEP_INT32},
    {.kind = LOCKSTEP_BARRIER, .dtype = LOCKSTEP_INT32},
};

static void run_kind(struct member *member, struct collective_case what)
{
    const bool parts = has_parts(&what, true) || has_parts(&what, false);
    for (enum layout layout = EQUAL; layout <= (parts ? OFFSETS : EQUAL); layout++) {
        for (uint32_t in_place = 0; in_place < 2; in_place++) {
            what.layout = layout;
            what.in_place = in_place == 1;
            what.asynchronous = (layout + in_place) % 2 == 1;
            member->root = is_rooted(what.kind) ? member->salt % member->size : 0;
            run_case(member, &what);
            member->salt++;
        }
    }
}

static void run_all(struct rank *rank, lockstep_group *group, const uint64_t *counts)
{
    struct member member = {.rank = rank, .group = group};
    if (group)
        RANK_OK(rank, lockstep_group_world(group, &member.place, &member.size));
    else
        member = (struct member){.rank = rank, .place = rank->rank, .size = rank->world_size};
    for (; *counts != UINT64_MAX; counts++) {
        for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
            struct collective_case what = kinds[i];
            what.count = *counts;
            run_kind(&member, what);
        }
    }
}

// ---- Pairs -------------------------------------------------------------------------------------

static struct lockstep_collective pair_call(const struct member *member, bool sends, uint32_t peer,
                                            uint32_t tag, void *memory, uint64_t count)
{
    struct lockstep_collective call = LOCKSTEP_COLLECTIVE_INIT;
    call.kind = sends ? LOCKSTEP_SEND : LOCKSTEP_RECEIVE;
    call.group = member->group;
    call.name = "pair";
    call.peer = peer;
    call.tag = tag;
    call.dtype = LOCKSTEP_INT32;
    call.count = count;
    call.input = sends ? memory : NULL;
    call.output = sends ? NULL : memory;
    return call;
}

// Calls it, and waits, with the memory on the rank's device if it has one.
static void pair_run(struct rank *rank, struct lockstep_collective call)
{
    uint8_t *memory = call.output;
    const size_t bytes = call.count * sizeof(int32_t); // 16 more are there.
    if (devices[rank->rank])
        call.output = device_put(rank, memory, bytes);
    RANK_OK(rank, lockstep_collective_run(rank->session, &call, FOREVER));
    if (devices[rank->rank])
        device_get(rank, call.output, memory, bytes);
}

#define TAGS 4

// Each member sends four messages to the next one, and receives them in the other order. The third
// and the fourth message have the same tag.
static void run_pairs(struct rank *rank, lockstep_group *group, uint64_t count)
{
    static const uint32_t tags[TAGS] = {7, 0, 3, 3};
    static const uint32_t order[TAGS] = {2, 3, 1, 0};
    struct member member = {
        .rank = rank, .group = group, .place = rank->rank, .size = rank->world_size};
    lockstep_work *sends[TAGS];
    int32_t *sent[TAGS];
    uint8_t *there[TAGS]; // The same on the rank's device.
    if (group)
        RANK_OK(rank, lockstep_group_world(group, &member.place, &member.size));
    const uint32_t next = (member.place + 1) % member.size;
    const uint32_t last = (member.place + member.size - 1) % member.size;
    for (uint32_t i = 0; i < TAGS && member.size > 1; i++) {
        sent[i] = malloc((count + 4) * sizeof(*sent[i]));
        for (uint64_t e = 0; e < count; e++)
            sent[i][e] = (int32_t)(member.place * 1000 + i * 100 + e % 97);
        struct lockstep_collective call = pair_call(&member, true, next, tags[i], sent[i], count);
        if (devices[rank->rank])
            call.input = there[i] = device_put(rank, (uint8_t *)sent[i], count * sizeof(int32_t));
        RANK_OK(rank, lockstep_collective_begin(rank->session, &call, &sends[i]));
    }
    for (uint32_t k = 0; k < TAGS && member.size > 1; k++) {
        const uint32_t i = order[k];
        int32_t *got = calloc(count + 4, sizeof(*got));
        // Every other receive is one from any source: only one member sends to this one.
        const uint32_t peer = k % 2 == 0 ? last : LOCKSTEP_ANY_SOURCE;
        uint32_t sender = member.size;
        struct lockstep_collective call = pair_call(&member, false, peer, tags[i], got, count);
        call.sender = &sender;
        pair_run(rank, call);
        RANK_EQUAL(rank, sender, last);
        for (uint64_t e = 0; e < count; e++)
            if (got[e] != (int32_t)(last * 1000 + i * 100 + e % 97))
                rank_fail(rank, __FILE__, __LINE__, "element %" PRIu64 " is %d", e, got[e]);
        free(got);
    }
    for (uint32_t i = 0; i < TAGS && member.size > 1; i++) {
        RANK_OK(rank, lockstep_work_wait(sends[i], FOREVER));
        if (devices[rank->rank])
            device_get(rank, there[i], (uint8_t *)sent[i], count * sizeof(int32_t));
        free(sent[i]);
    }
}

// ---- Worlds and groups -------------------------------------------------------------------------

static const uint64_t small_counts[] = {0, 1, 7, UINT64_MAX};
static const uint64_t large_counts[] = {LARGE, UINT64_MAX};

// Makes a group if this rank is in it, and runs everything there.
static void in_group(struct rank *rank, const char *name, const uint32_t *ranks, uint32_t count)
{
    lockstep_group *group;
    bool is_member = false;
    for (uint32_t i = 0; i < count; i++)
        is_member = is_member || ranks[i] == rank->rank;
    if (!is_member) {
        RANK_FAILS(rank, LOCKSTEP_E_INVALID,
                   lockstep_group_create(rank->session, ranks, count, name, &group));
        RANK_SAYS(rank, "is not one of its ranks");
        return;
    }
    RANK_OK(rank, lockstep_group_create(rank->session, ranks, count, name, &group));
    run_all(rank, group, small_counts);
    run_pairs(rank, group, 5);
    RANK_OK(rank, lockstep_group_close(group));
}

static void kinds_body(struct rank *rank)
{
    // Rows of 32 KiB in memory, and longer ones: of one part, and of one for each rank.
    const uint64_t part = 32768 / sizeof(float) / rank->world_size;
    const uint64_t row_counts[] = {part, part + 1, 8192, 8193, UINT64_MAX};
    run_all(rank, NULL, small_counts);
    run_all(rank, NULL, row_counts);
    run_all(rank, NULL, large_counts);
    run_pairs(rank, NULL, 5);
    run_pairs(rank, NULL, LARGE);
}

static void groups_body(struct rank *rank)
{
    const uint32_t n = rank->world_size;
    uint32_t all[CLUSTER_MAX_WORLD] = {0};
    uint32_t evens[CLUSTER_MAX_WORLD] = {0};
    for (uint32_t i = 0; i < n; i++)
        all[i] = n - 1 - i; // The world, reordered.
    for (uint32_t i = 0; 2 * i < n; i++)
        evens[i] = 2 * i;
    in_group(rank, "turned", all, n);
    in_group(rank, "evens", evens, (n + 1) / 2);
    in_group(rank, "nested", evens, 1);
    for (uint32_t i = 0; i + 1 < n; i++) {
        const uint32_t pair[] = {i + 1, i}; // Each group overlaps with the next one.
        in_group(rank, "pair", pair, 2);
    }
    if (n > 2)
        in_group(rank, "most", all, n - 1);
}

// A large reduction, for the night.
static void huge_body(struct rank *rank)
{
    static const struct collective_case huge[] = {
        {.kind = LOCKSTEP_REDUCE_SCATTER, .dtype = LOCKSTEP_FLOAT32, .op = LOCKSTEP_SUM},
        {.kind = LOCKSTEP_ALL_GATHER, .dtype = LOCKSTEP_FLOAT32},
        {.kind = LOCKSTEP_ALL_TO_ALL, .dtype = LOCKSTEP_FLOAT32},
    };
    struct member member = {.rank = rank, .place = rank->rank, .size = rank->world_size};
    for (size_t i = 0; i < sizeof(huge) / sizeof(huge[0]); i++) {
        struct collective_case what = huge[i];
        what.count = 100u * 1024 * 1024 / sizeof(float) / rank->world_size;
        run_case(&member, &what);
    }
}

static void world(const char *name, uint32_t size, uint32_t hosts, void (*body)(struct rank *rank))
{
    struct setting setting = setting_named(name);
    if (test_slow() > 1 && size > SANITIZED_WORLD)
        size = SANITIZED_WORLD; // A sanitizer takes minutes for larger worlds.
    setting.world_size = size;
    if (hosts > 0)
        setting.hosts = hosts;
    ranks_run(&setting, body, NULL);
}

// The memory of ranks with a device is there, where the host cannot access it.
static void devices_body(struct rank *rank)
{
    struct device_trainer trainer;
    device_trainer_open(rank, &trainer);
    devices[rank->rank] = trainer.cuda ? &trainer : NULL;
    run_all(rank, NULL, small_counts);
    run_all(rank, NULL, large_counts);
    run_pairs(rank, NULL, 5);
    run_pairs(rank, NULL, LARGE);
    groups_body(rank);
    devices[rank->rank] = NULL;
    device_trainer_close(rank, &trainer);
}

static void world_of_devices(const char *name, uint32_t size)
{
    struct setting setting = setting_named(name);
    setting.world_size = size;
    setting.device_memory_only = true;
    ranks_run(&setting, devices_body, NULL);
    device_expect_nothing_is_left();
}

static void on_one_device(void **state)
{
    (void)state;
    world_of_devices("staged", 1);
    world_of_devices("staged", 3);
}

static void on_two_devices(void **state)
{
    (void)state;
    world_of_devices("mixed", 3);
}

static void on_all_devices(void **state)
{
    (void)state;
    world_of_devices("nccl", 3);
}

static void one_rank(void **state)
{
    (void)state;
    world("tcp", 1, 0, kinds_body);
    world("shared", 1, 0, groups_body);
}

static void every_kind_over_memory(void **state)
{
    (void)state;
    world("shared", 2, 0, kinds_body);
    world("shared", 5, 0, kinds_body);
}

static void every_kind_over_tcp(void **state)
{
    (void)state;
    world("tcp", 3, 0, kinds_body);
    if (test_slow() == 1)
        world("tcp", 4, 0, kinds_body);
}

static void every_kind_over_loopback(void **state)
{
    (void)state;
    world("loopback", 3, 0, kinds_body);
    world("torn_7", 2, 0, groups_body);
}

static void every_kind_on_two_hosts(void **state)
{
    (void)state;
    world("two_level", 4, 2, kinds_body);
    world("two_level", 5, 2, groups_body);
}

static void groups_over_memory(void **state)
{
    (void)state;
    world("shared", 3, 0, groups_body);
    if (test_slow() == 1)
        world("shared", 8, 0, groups_body);
}

static void groups_over_tcp(void **state)
{
    (void)state;
    world("tcp", 2, 0, groups_body);
    world("tcp", 5, 0, groups_body);
    if (test_slow() == 1)
        world("tcp", 8, 0, groups_body);
}

static void a_hundred_mebibytes(void **state)
{
    (void)state;
    if (!test_everything())
        skip();
    world("tcp", 3, 0, huge_body);
    world("shared", 3, 0, huge_body);
}

// ---- Gaps --------------------------------------------------------------------------------------

// An all-to-all in place. Each part is the end of a page, and the pages between them cannot be
// accessed.
static void gaps_body(struct rank *rank)
{
    const uint32_t world_size = rank->world_size;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint64_t offsets[CLUSTER_MAX_WORLD];
    struct lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
    uint8_t *memory = mmap(NULL, 2 * world_size * page, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RANK_TRUE(rank, memory != MAP_FAILED);
    for (uint32_t p = 0; p < world_size; p++) {
        offsets[p] = (2 * p + 1) * page - 4;
        memset(memory + offsets[p], (int)(10 * rank->rank + p), 4);
        RANK_EQUAL(rank, mprotect(memory + (2 * p + 1) * page, page, PROT_NONE), 0);
    }
    what.kind = LOCKSTEP_ALL_TO_ALL;
    what.name = "gaps";
    what.dtype = LOCKSTEP_UINT8;
    what.count = 4;
    what.output = memory;
    what.output_offsets = offsets;
    RANK_OK(rank, lockstep_collective_run(rank->session, &what, FOREVER));
    for (uint32_t p = 0; p < world_size; p++)
        for (uint32_t i = 0; i < 4; i++)
            RANK_EQUAL(rank, memory[offsets[p] + i], 10 * p + rank->rank);
    munmap(memory, 2 * world_size * page);
}

static void gaps_without_memory(void **state)
{
    (void)state;
    world("shared", 3, 0, gaps_body);
    world("tcp", 2, 0, gaps_body);
    world("loopback", 1, 0, gaps_body);
}

// ---- A member that sends nothing ---------------------------------------------------------------

// The last member sends nothing, and has no input. Member i sends i + 1 elements to each of the
// others and to itself.
static void nothing_sent_body(struct rank *rank)
{
    const uint32_t n = rank->world_size;
    const bool silent = rank->rank == n - 1;
    uint64_t sent[CLUSTER_MAX_WORLD] = {0};
    uint64_t received[CLUSTER_MAX_WORLD] = {0};
    int32_t input[CLUSTER_MAX_WORLD * CLUSTER_MAX_WORLD];
    int32_t output[CLUSTER_MAX_WORLD * CLUSTER_MAX_WORLD];
    struct lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
    for (uint32_t p = 0; p < n; p++) {
        sent[p] = silent ? 0 : rank->rank + 1;
        received[p] = p == n - 1 ? 0 : p + 1;
    }
    for (uint32_t i = 0; i < n * n; i++)
        input[i] = (int32_t)rank->rank;
    memset(output, -1, sizeof(output));
    what.kind = LOCKSTEP_ALL_TO_ALL;
    what.name = "silent";
    what.dtype = LOCKSTEP_INT32;
    what.input = silent ? NULL : input;
    what.input_counts = sent;
    what.output = output;
    what.output_counts = received;
    RANK_OK(rank, lockstep_collective_run(rank->session, &what, FOREVER));
    uint32_t at = 0;
    for (uint32_t p = 0; p < n; p++)
        for (uint64_t i = 0; i < received[p]; i++)
            RANK_EQUAL(rank, output[at++], p);
    RANK_EQUAL(rank, output[at], -1);
}

static void all_to_all_without_input(void **state)
{
    (void)state;
    world("shared", 3, 0, nothing_sent_body);
    world("tcp", 3, 0, nothing_sent_body);
    world("loopback", 1, 0, nothing_sent_body);
}

// Every kind without elements: rank 0 has memory for them, and the other ranks have none.
static void no_elements_body(struct rank *rank)
{
    const uint64_t zeros[CLUSTER_MAX_WORLD] = {0};
    int32_t memory[2] = {0};
    char name[24];
    for (int kind = LOCKSTEP_ALLREDUCE; kind <= LOCKSTEP_ALL_TO_ALL; kind++) {
        for (uint32_t counted = 0; counted < 2; counted++) {
            struct lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
            snprintf(name, sizeof(name), "none %d %" PRIu32, kind, counted);
            what.kind = (lockstep_collective_kind)kind;
            what.name = name;
            what.dtype = LOCKSTEP_INT32;
            what.input = rank->rank == 0 ? &memory[0] : NULL;
            what.output = rank->rank == 0 ? &memory[1] : NULL;
            what.input_counts = what.output_counts = counted ? zeros : NULL;
            RANK_OK(rank, lockstep_collective_run(rank->session, &what, FOREVER));
        }
    }
}

static void every_kind_without_elements(void **state)
{
    (void)state;
    world("shared", 3, 0, no_elements_body);
    world("tcp", 2, 0, no_elements_body);
    world("loopback", 1, 0, no_elements_body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),
        cmocka_unit_test(every_kind_over_memory),
        cmocka_unit_test(every_kind_over_tcp),
        cmocka_unit_test(every_kind_over_loopback),
        cmocka_unit_test(every_kind_on_two_hosts),
        cmocka_unit_test(groups_over_memory),
        cmocka_unit_test(groups_over_tcp),
        cmocka_unit_test(a_hundred_mebibytes),
        cmocka_unit_test(gaps_without_memory),
        cmocka_unit_test(all_to_all_without_input),
        cmocka_unit_test(every_kind_without_elements),
        {"kinds_on_devices/staged/world_3", on_one_device, NULL, NULL, NULL},
        {"kinds_on_devices/mixed/world_3", on_two_devices, NULL, NULL, NULL},
        {"kinds_on_devices/nccl/world_3", on_all_devices, NULL, NULL, NULL},
    };
    return cmocka_run_group_tests_name("kinds of collectives", tests, NULL, NULL);
}
