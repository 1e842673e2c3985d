// SPDX-License-Identifier: Apache-2.0
//
// Conformance: groups and collectives of every kind that are called wrong, that wait for each
// other, and that the trainer does not wait for. Every rank of the job gets an error for members
// that disagree; no rank gets one because a rank outside a group does something else.

#include "base/clock.h"
#include "protos/limits.h"
#include "tests/support/trainer.h"

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FOREVER LOCKSTEP_WAIT_FOREVER
#define ROOM 400000
#define LATE_MS 1300 // Longer than the coordinator needs for a verdict.

static struct lockstep_collective describe(lockstep_collective_kind kind, const char *name,
                                           uint64_t count, const void *input, void *output)
{
    struct lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
    what.kind = kind;
    what.name = name;
    what.count = count;
    what.input = input;
    what.output = output;
    return what;
}

static lockstep_group *make_group(struct rank *rank, const char *name, const uint32_t *ranks,
                                  uint32_t count)
{
    lockstep_group *group = NULL;
    RANK_OK(rank, lockstep_group_create(rank->session, ranks, count, name, &group));
    return group;
}

static lockstep_group *make_whole(struct rank *rank, const char *name)
{
    uint32_t ranks[CLUSTER_MAX_WORLD] = {0};
    for (uint32_t i = 0; i < rank->world_size; i++)
        ranks[i] = rank->world_size - 1 - i;
    return make_group(rank, name, ranks, rank->world_size);
}

// ---- Members that disagree ---------------------------------------------------------------------

struct odd_call {
    lockstep_collective_kind kind;
    uint64_t count;
    lockstep_dtype dtype;
    lockstep_op op;
    uint32_t root;
    bool counts; // True if the parts have counts, all of them `count`.
    const char *form; // What the text says of the call; NULL: the text may not have it.
};

struct odd_pair {
    struct odd_call others;
    struct odd_call last;
};

#define F32 LOCKSTEP_FLOAT32
#define SUM LOCKSTEP_SUM

static const struct odd_pair odd_pairs[] = {
    // Another count.
    {{LOCKSTEP_REDUCE_SCATTER, 4, F32, SUM, 0, false,
      "reduce_scatter%s with 4 elements of float32, sum"},
     {LOCKSTEP_REDUCE_SCATTER, 5, F32, SUM, 0, false,
      "reduce_scatter%s with 5 elements of float32, sum"}},
    {{LOCKSTEP_ALL_GATHER, 1, F32, SUM, 0, false, "all_gather%s with 1 element of float32"},
     {LOCKSTEP_ALL_GATHER, 90000, F32, SUM, 0, false,
      "all_gather%s with 90000 elements of float32"}},
    {{LOCKSTEP_ALL_TO_ALL, 90000, F32, SUM, 0, false,
      "all_to_all%s with 90000 elements of float32"},
     {LOCKSTEP_ALL_TO_ALL, 0, F32, SUM, 0, false, "all_to_all%s with 0 elements of float32"}},
    {{LOCKSTEP_GATHER, 3, F32, SUM, 0, false, "gather%s with 3 elements of float32, root 0"},
     {LOCKSTEP_GATHER, 2, F32, SUM, 0, false, "gather%s with 2 elements of float32, root 0"}},
    // Another root, dtype, op, kind.
    {{LOCKSTEP_REDUCE, 8, F32, SUM, 0, false, "reduce%s with 8 elements of float32, sum, root 0"},
     {LOCKSTEP_REDUCE, 8, F32, SUM, 1, false, "reduce%s with 8 elements of float32, sum, root 1"}},
    {{LOCKSTEP_SCATTER, 8, F32, SUM, 1, false, "scatter%s with 8 elements of float32, root 1"},
     {LOCKSTEP_SCATTER, 8, F32, SUM, 0, false, "scatter%s with 8 elements of float32, root 0"}},
    {{LOCKSTEP_REDUCE_SCATTER, 8, LOCKSTEP_INT32, LOCKSTEP_MAX, 0, false,
      "reduce_scatter%s with 8 elements of int32, max"},
     {LOCKSTEP_REDUCE_SCATTER, 8, LOCKSTEP_INT32, LOCKSTEP_MIN, 0, false,
      "reduce_scatter%s with 8 elements of int32, min"}},
    {{LOCKSTEP_ALL_GATHER, 8, LOCKSTEP_INT32, SUM, 0, false,
      "all_gather%s with 8 elements of int32"},
     {LOCKSTEP_ALL_GATHER, 8, F32, SUM, 0, false, "all_gather%s with 8 elements of float32"}},
    {{LOCKSTEP_ALL_GATHER, 8, F32, SUM, 0, false, "all_gather%s with 8 elements of float32"},
     {LOCKSTEP_ALL_TO_ALL, 8, F32, SUM, 0, false, "all_to_all%s with 8 elements of float32"}},
    {{LOCKSTEP_GATHER, 8, F32, SUM, 0, false, "gather%s with 8 elements of float32, root 0"},
     {LOCKSTEP_REDUCE, 8, F32, SUM, 0, false, "reduce%s with 8 elements of float32, sum, root 0"}},
    // Counts on some members only, and other counts.
    {{LOCKSTEP_ALL_GATHER, 8, F32, SUM, 0, true, "all_gather%s with parts of float32 (sends 8, 8"},
     {LOCKSTEP_ALL_GATHER, 8, F32, SUM, 0, false, "all_gather%s with 8 elements of float32"}},
    {{LOCKSTEP_REDUCE_SCATTER, 8, F32, SUM, 0, true,
      "reduce_scatter%s with parts of float32 (sends 8, 8"},
     {LOCKSTEP_REDUCE_SCATTER, 7, F32, SUM, 0, true,
      "reduce_scatter%s with parts of float32 (sends 7, 7"}},
    {{LOCKSTEP_GATHER, 8, F32, SUM, 0, true, NULL}, {LOCKSTEP_GATHER, 7, F32, SUM, 0, true, NULL}},
    {{LOCKSTEP_GATHER, 90000, F32, SUM, 0, true, NULL},
     {LOCKSTEP_GATHER, 80000, F32, SUM, 0, true, NULL}},
    {{LOCKSTEP_ALL_TO_ALL, 8, F32, SUM, 0, true, NULL},
     {LOCKSTEP_ALL_TO_ALL, 7, F32, SUM, 0, true, NULL}},
};
#define ODD_PAIRS (sizeof(odd_pairs) / sizeof(odd_pairs[0]))

struct play {
    const struct odd_pair *pair;
    bool grouped;
};

static struct lockstep_collective odd_describe(const struct odd_call *call, uint64_t *counts,
                                               void *memory)
{
    struct lockstep_collective what =
        describe(call->kind, "odd", call->count, memory, (char *)memory + ROOM * 8);
    what.dtype = call->dtype;
    what.op = call->op;
    what.root = call->root;
    for (uint32_t i = 0; i < CLUSTER_MAX_WORLD; i++)
        counts[i] = call->count;
    if (call->counts)
        what.input_counts = what.output_counts = counts;
    return what;
}

static void expect_form(struct rank *rank, const struct odd_call *call, bool grouped)
{
    char wanted[256];
    if (!call->form)
        return;
    const char *at = strchr(call->form, '%');
    snprintf(wanted, sizeof(wanted), "calls lockstep_collective_run %.*s%s%s%s",
             (int)(at - call->form), call->form, grouped ? " of group 'g'" : "", at + 2,
             call->counts ? "" : "; ");
    RANK_SAYS(rank, wanted);
}

static void odd_body(struct rank *rank)
{
    const struct play *play = rank->context;
    const bool last = rank->rank == rank->world_size - 1;
    const struct odd_call *call = last ? &play->pair->last : &play->pair->others;
    char *memory = calloc(2 * ROOM, 8);
    uint64_t counts[CLUSTER_MAX_WORLD];
    struct lockstep_collective what = odd_describe(call, counts, memory);
    what.group = play->grouped ? make_whole(rank, "g") : NULL;
    rank_meet(rank); // All have the group when the session fails.
    int status = RANK_CALL(rank, lockstep_collective_run(rank->session, &what, FOREVER));
    // Where only pairs know their counts, a member that does not meet the wrong one may have its
    // result.
    if (status == 0 && !call->form)
        status = RANK_CALL(rank, lockstep_barrier(rank->session, "next", FOREVER));
    RANK_EQUAL(rank, status, LOCKSTEP_E_MISMATCH);
    RANK_SAYS(rank, "'odd'");
    expect_form(rank, &play->pair->others, play->grouped);
    expect_form(rank, &play->pair->last, play->grouped);
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
    free(memory);
}

static void members_that_disagree(const struct setting *setting)
{
    for (size_t i = 0; i < ODD_PAIRS; i++) {
        struct play play = {.pair = &odd_pairs[i], .grouped = i % 2 == 0};
        ranks_run(setting, odd_body, &play);
    }
}

// A send and a receive of other counts. A small send is done before its receive is called.
static void pair_body(struct rank *rank)
{
    const uint64_t *count = rank->context;
    char *memory = calloc(ROOM, sizeof(float));
    struct lockstep_collective what = describe(LOCKSTEP_SEND, "pair", *count, memory, NULL);
    int status = 0;
    rank_meet(rank); // The third rank has opened its session when the others fail.
    what.peer = 1;
    if (rank->rank == 1) {
        what = describe(LOCKSTEP_RECEIVE, "pair", *count + 1, NULL, memory);
        what.peer = 0;
    }
    if (rank->rank < 2)
        status = RANK_CALL(rank, lockstep_collective_run(rank->session, &what, FOREVER));
    if (status == 0)
        status = RANK_CALL(rank, lockstep_barrier(rank->session, "next", FOREVER));
    RANK_EQUAL(rank, status, LOCKSTEP_E_MISMATCH);
    RANK_SAYS(rank, "'pair'");
    RANK_SAYS(rank, *count == 3 ? "receive from rank 0 with 4 elements of float32"
                                : "receive from rank 0 with 100001 elements of float32");
    free(memory);
}

static void a_pair_that_disagrees(const struct setting *setting)
{
    uint64_t counts[] = {3, 100000};
    ranks_run(setting, pair_body, &counts[0]);
    ranks_run(setting, pair_body, &counts[1]);
}

// ---- Calls that are wrong by themselves --------------------------------------------------------

static void refused(struct rank *rank, const struct lockstep_collective *what, const char *text)
{
    lockstep_work *work;
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_collective_run(rank->session, what, FOREVER));
    RANK_SAYS(rank, text);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_collective_begin(rank->session, what, &work));
    RANK_TRUE(rank, work == NULL);
}

static void refuse_groups(struct rank *rank)
{
    const uint32_t own[] = {rank->rank};
    const uint32_t twice[] = {rank->rank, rank->rank};
    const uint32_t beyond[] = {rank->rank, rank->world_size};
    const uint32_t other[] = {(rank->rank + 1) % rank->world_size};
    lockstep_group *groups[LOCKSTEP_MAX_GROUPS];
    lockstep_group *none;
    char name[128];
    memset(name, 'x', sizeof(name));
    name[64] = '\0';
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_group_create(rank->session, twice, 2, "g", &none));
    RANK_SAYS(rank, "named twice");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_group_create(rank->session, beyond, 2, "g", &none));
    RANK_SAYS(rank, "there is no rank");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_group_create(rank->session, other, 1, "g", &none));
    RANK_SAYS(rank, "is not one of its ranks");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_group_create(rank->session, own, 0, "g", &none));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_group_create(rank->session, NULL, 1, "g", &none));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_group_create(rank->session, own, 1, "", &none));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_group_create(rank->session, own, 1, name, &none));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_group_create(rank->session, own, 1, "g", NULL));
    for (uint32_t i = 0; i < LOCKSTEP_MAX_GROUPS; i++)
        groups[i] = make_group(rank, "many", own, 1);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_group_create(rank->session, own, 1, "many", &none));
    RANK_SAYS(rank, "64 open groups");
    RANK_TRUE(rank, none == NULL);
    for (uint32_t i = 0; i < LOCKSTEP_MAX_GROUPS; i++)
        RANK_OK(rank, lockstep_group_close(groups[i]));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_group_close(groups[0]));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_group_close(NULL));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_group_world(groups[0], NULL, NULL));
    struct lockstep_collective what = describe(LOCKSTEP_BARRIER, "b", 0, NULL, NULL);
    what.group = groups[0];
    refused(rank, &what, "not a group");
}

static void refuse_calls(struct rank *rank)
{
    float memory[64] = {0};
    const uint64_t counts[CLUSTER_MAX_WORLD] = {1, 1, 1};
    const uint64_t offsets[CLUSTER_MAX_WORLD] = {0};
    const uint64_t nothing[CLUSTER_MAX_WORLD] = {0};
    struct lockstep_collective what = describe(LOCKSTEP_SEND, "s", 1, memory, NULL);
    what.peer = rank->rank;
    refused(rank, &what, "the peer is this rank itself");
    what.peer = rank->world_size;
    refused(rank, &what, "there is no member");
    what = describe(LOCKSTEP_GATHER, "s", 1, memory, memory + 32);
    what.root = rank->world_size;
    refused(rank, &what, "there is no member");
    what = describe(LOCKSTEP_ALL_GATHER, "s", 4, memory, memory + 2);
    refused(rank, &what, "overlap");
    what = describe(LOCKSTEP_ALL_GATHER, "s", 4, memory, NULL);
    refused(rank, &what, "output is NULL");
    what = describe(LOCKSTEP_SCATTER, "s", 4, NULL, memory);
    what.root = rank->rank;
    what.input_counts = counts;
    refused(rank, &what, "input");
    what = describe(LOCKSTEP_ALL_GATHER, "s", 1, memory, memory + 8);
    what.output_counts = counts;
    what.output_offsets = offsets;
    refused(rank, &what, "parts of output overlap");
    what = describe(LOCKSTEP_ALL_TO_ALL, "s", 1, memory, memory + 8);
    what.output_counts = counts;
    refused(rank, &what, "go together");
    what = describe(LOCKSTEP_ALL_TO_ALL, "s", 1, NULL, memory + 8);
    what.input_counts = counts;
    refused(rank, &what, "go together");
    what.output_counts = counts;
    refused(rank, &what, "input is NULL");
    what.input_counts = nothing;
    refused(rank, &what, "differ in this rank's own part");
    what = describe(LOCKSTEP_ALL_GATHER, "s", UINT64_MAX / 8, memory, memory);
    refused(rank, &what, "do not fit");
    what = describe(LOCKSTEP_REDUCE, "s", 1, memory, memory + 8);
    what.weight = 2;
    refused(rank, &what, "only LOCKSTEP_MEAN has a weight");
    what.op = LOCKSTEP_MEAN;
    what.weight = LOCKSTEP_MAX_WEIGHT + 1;
    refused(rank, &what, "weight");
    what.weight = 1;
    what.dtype = LOCKSTEP_INT32;
    refused(rank, &what, "a mean of int32");
    what = describe((lockstep_collective_kind)12, "s", 1, memory, memory + 8);
    refused(rank, &what, "no kind 12");
    what = describe(LOCKSTEP_REDUCE, "lockstep/x", 1, memory, memory + 8);
    refused(rank, &what, "are the library's");
    what = describe(LOCKSTEP_REDUCE, NULL, 1, memory, memory + 8);
    refused(rank, &what, "name");
    what = describe(LOCKSTEP_REDUCE, "s", 1, memory, memory + 8);
    what.struct_bytes--;
    refused(rank, &what, "LOCKSTEP_COLLECTIVE_INIT");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_collective_run(rank->session, NULL, FOREVER));
}

// Memory that another collective has borrowed. Two of them may read the same.
static void refuse_lent(struct rank *rank)
{
    float memory[16] = {0};
    float results[64];
    lockstep_work *works[2];
    struct lockstep_collective what = describe(LOCKSTEP_ALL_GATHER, "first", 2, memory, results);
    RANK_OK(rank, lockstep_collective_begin(rank->session, &what, &works[0]));
    what = describe(LOCKSTEP_ALL_GATHER, "second", 2, memory, results + 20);
    RANK_OK(rank, lockstep_collective_begin(rank->session, &what, &works[1]));
    what = describe(LOCKSTEP_ALL_GATHER, "third", 1, memory + 4, results + 1);
    refused(rank, &what, "overlap in memory");
    what = describe(LOCKSTEP_ALL_GATHER, "third", 1, memory + 4, memory);
    refused(rank, &what, "overlap");
    // Gaps between parts count as borrowed: the memory of "second" lies in one.
    uint64_t offsets[CLUSTER_MAX_WORLD];
    for (uint32_t p = 0; p < rank->world_size; p++)
        offsets[p] = p == 0 ? 0 : 30 + p;
    what = describe(LOCKSTEP_ALL_GATHER, "third", 1, memory + 4, results + 12);
    what.output_offsets = offsets;
    refused(rank, &what, "in common, gaps between parts included. Wait for");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID,
               lockstep_allreduce(rank->session, "third", memory + 1, 1, F32, SUM, FOREVER));
    RANK_SAYS(rank, "'first' (use 1)");
    RANK_OK(rank, lockstep_work_wait(works[0], FOREVER));
    RANK_OK(rank, lockstep_work_wait(works[1], FOREVER));
    RANK_OK(rank, lockstep_allreduce(rank->session, "third", memory + 1, 1, F32, SUM, FOREVER));
}

static void refuse_body(struct rank *rank)
{
    refuse_groups(rank);
    refuse_calls(rank);
    refuse_lent(rank);
}

static void calls_that_are_refused(const struct setting *setting)
{
    ranks_run(setting, refuse_body, NULL);
}

// A group is not closed while work of it was not waited for.
static void busy_body(struct rank *rank)
{
    lockstep_group *group = make_whole(rank, "g");
    struct lockstep_collective what = describe(LOCKSTEP_BARRIER, "b", 0, NULL, NULL);
    lockstep_work *work;
    what.group = group;
    RANK_OK(rank, lockstep_collective_begin(rank->session, &what, &work));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_group_close(group));
    RANK_SAYS(rank, "were not waited for");
    RANK_OK(rank, lockstep_work_wait(work, FOREVER));
    RANK_OK(rank, lockstep_group_close(group));
    make_whole(rank, "left open"); // lockstep_close frees it.
}

static void a_group_with_work(const struct setting *setting)
{
    ranks_run(setting, busy_body, NULL);
}

// ---- Members that wait for each other ----------------------------------------------------------

static void barrier_of(struct rank *rank, lockstep_group *group, int wanted)
{
    struct lockstep_collective what = describe(LOCKSTEP_BARRIER, "b", 0, NULL, NULL);
    what.group = group;
    RANK_STATUS(rank, wanted, lockstep_collective_run(rank->session, &what, FOREVER));
}

// Three groups of two: each rank waits in another one.
static void crosswise_body(struct rank *rank)
{
    static const uint32_t ranks[3][2] = {{0, 1}, {1, 2}, {2, 0}};
    static const char *const names[] = {"a", "b", "c"};
    lockstep_group *groups[3] = {NULL};
    for (uint32_t i = 0; i < 3; i++)
        if (ranks[i][0] == rank->rank || ranks[i][1] == rank->rank)
            groups[i] = make_group(rank, names[i], ranks[i], 2);
    rank_meet(rank);
    const uint64_t began_ms = clock_now_ms();
    barrier_of(rank, groups[rank->rank], LOCKSTEP_E_MISMATCH);
    RANK_SAYS(rank, "rank 0 waits in lockstep_collective_run 'b' (use 1, barrier of group 'a')");
    RANK_SAYS(rank, "lockstep_collective_run 'b' (use 1, barrier of group 'b') before the first "
                    "step, which rank 2 has not called");
    RANK_TRUE(rank, clock_now_ms() - began_ms < test_bound_ms(2000));
}

// Members make the group with other ranks; another member makes another group.
static void other_ranks_body(struct rank *rank)
{
    static const uint32_t all[] = {0, 1, 2};
    static const uint32_t two[] = {1, 0, 2};
    lockstep_group *group;
    rank_meet(rank);
    RANK_FAILS(rank, LOCKSTEP_E_MISMATCH,
               lockstep_group_create(rank->session, rank->rank == 2 ? two : all, 3, "g", &group));
    RANK_SAYS(rank, "lockstep_group_create 'g' (use 1, ranks 0, 1, 2)");
    RANK_SAYS(rank, "lockstep_group_create 'g' (use 1, ranks 1, 0, 2)");
    RANK_TRUE(rank, group == NULL);
}

// A receive whose sender waits for something else.
static void receive_body(struct rank *rank)
{
    float value = 0;
    struct lockstep_collective what = describe(LOCKSTEP_RECEIVE, "r", 1, NULL, &value);
    what.peer = 1;
    what.tag = 7;
    rank_meet(rank);
    if (rank->rank == 0) {
        RANK_FAILS(rank, LOCKSTEP_E_MISMATCH,
                   lockstep_collective_run(rank->session, &what, FOREVER));
    } else {
        RANK_FAILS(rank, LOCKSTEP_E_MISMATCH, lockstep_barrier(rank->session, "epoch", FOREVER));
    }
    RANK_SAYS(
        rank,
        "rank 0 waits in lockstep_collective_run 'r' (use 1, receive from rank 1 with tag 7)");
    RANK_SAYS(rank, "wait in lockstep_barrier 'epoch' (use 1)");
}

static void groups_that_wait_crosswise(const struct setting *setting)
{
    ranks_run(setting, crosswise_body, NULL);
}

static void groups_of_other_ranks(const struct setting *setting)
{
    ranks_run(setting, other_ranks_body, NULL);
}

static void a_receive_without_a_send(const struct setting *setting)
{
    ranks_run(setting, receive_body, NULL);
}

// ---- Waits that end ----------------------------------------------------------------------------

// Ranks 0 and 1 are late in a group; rank 2, which is no member, waits for them meanwhile. It has
// done nothing of what rank 0 waits for, and need not. Then rank 2 waits for a receive from rank 0,
// which waits for rank 1.
static void late_body(struct rank *rank)
{
    static const uint32_t members[] = {0, 1};
    float value = 1;
    struct lockstep_collective what = describe(LOCKSTEP_SEND, "s", 1, &value, NULL);
    lockstep_group *group = rank->rank < 2 ? make_group(rank, "two", members, 2) : NULL;
    rank_meet(rank);
    if (rank->rank == 1)
        usleep(LATE_MS * 1000);
    if (rank->rank < 2)
        barrier_of(rank, group, 0);
    RANK_OK(rank, lockstep_barrier(rank->session, "epoch", FOREVER));
    if (rank->rank == 2) {
        what = describe(LOCKSTEP_RECEIVE, "s", 1, NULL, &value);
        RANK_OK(rank, lockstep_collective_run(rank->session, &what, FOREVER));
    } else {
        if (rank->rank == 1)
            usleep(LATE_MS * 1000);
        barrier_of(rank, group, 0);
        what.peer = 2;
        if (rank->rank == 0)
            RANK_OK(rank, lockstep_collective_run(rank->session, &what, FOREVER));
    }
    RANK_OK(rank, lockstep_barrier(rank->session, "epoch", FOREVER));
}

static void a_group_that_others_wait_for(const struct setting *setting)
{
    ranks_run(setting, late_body, NULL);
}

// ---- Without waiting ---------------------------------------------------------------------------

struct bell {
    struct rank *rank;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t calls;
    int status; // Of a call of the library by the function.
};

static void bell_ring(void *context)
{
    struct bell *bell = context;
    pthread_mutex_lock(&bell->mutex);
    bell->calls++;
    bell->status = lockstep_barrier(bell->rank->session, "never", 0);
    pthread_cond_signal(&bell->cond);
    pthread_mutex_unlock(&bell->mutex);
}

static void bell_await(struct bell *bell, uint32_t calls)
{
    pthread_mutex_lock(&bell->mutex);
    while (bell->calls < calls)
        pthread_cond_wait(&bell->cond, &bell->mutex);
    pthread_mutex_unlock(&bell->mutex);
}

static void notify_body(struct rank *rank)
{
    struct bell bell = {
        .rank = rank, .mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    lockstep_work *work;
    // The function runs without a thread that waits.
    RANK_OK(rank, lockstep_barrier_async(rank->session, "bell", &work));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_work_notify(work, NULL, NULL));
    RANK_OK(rank, lockstep_work_notify(work, bell_ring, &bell));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_work_notify(work, bell_ring, &bell));
    RANK_SAYS(rank, "has a function already");
    bell_await(&bell, 1);
    RANK_EQUAL(rank, bell.status, LOCKSTEP_E_INVALID);
    RANK_OK(rank, lockstep_work_wait(work, 0));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_work_notify(work, bell_ring, &bell));
    // Work that is done already: the function runs at once.
    RANK_OK(rank, lockstep_barrier_async(rank->session, "bell", &work));
    RANK_OK(rank, lockstep_barrier(rank->session, "after", FOREVER));
    while (lockstep_work_notify(work, bell_ring, &bell) < 0)
        rank_fail(rank, __FILE__, __LINE__, "%s", lockstep_error_text());
    bell_await(&bell, 2);
    RANK_OK(rank, lockstep_work_wait(work, FOREVER));
    RANK_EQUAL(rank, bell.calls, 2);
}

static void a_function_is_called(const struct setting *setting)
{
    ranks_run(setting, notify_body, NULL);
}

// The function is called although the session fails.
static void notify_failure_body(struct rank *rank)
{
    struct bell bell = {
        .rank = rank, .mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    lockstep_work *work;
    int fd;
    RANK_OK(rank, lockstep_session_fd(rank->session, &fd));
    rank_meet(rank);
    if (rank->rank == 0) {
        RANK_OK(rank, lockstep_barrier_async(rank->session, "alone", &work));
        RANK_OK(rank, lockstep_work_notify(work, bell_ring, &bell));
    }
    rank_meet(rank);
    if (rank->rank == 1)
        RANK_OK(rank, lockstep_abort(rank->session, "on purpose"));
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    RANK_EQUAL(rank, poll(&ready, 1, -1), 1);
    if (rank->rank != 0)
        return;
    bell_await(&bell, 1);
    RANK_FAILS(rank, LOCKSTEP_E_PEER_LOST, lockstep_work_wait(work, FOREVER));
    RANK_EQUAL(rank, bell.calls, 1);
}

static void a_failure_is_told(const struct setting *setting)
{
    ranks_run(setting, notify_failure_body, NULL);
}

#define FLIGHTS 20

// Waits for all works by the descriptor alone.
static void poll_body(struct rank *rank)
{
    lockstep_work *works[FLIGHTS];
    int32_t values[FLIGHTS];
    uint32_t left = FLIGHTS;
    char name[16];
    uint64_t rung;
    int fd;
    int again;
    RANK_OK(rank, lockstep_session_fd(rank->session, &fd));
    RANK_OK(rank, lockstep_session_fd(rank->session, &again));
    RANK_EQUAL(rank, fd, again);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_session_fd(rank->session, NULL));
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    RANK_OK(rank, lockstep_barrier(rank->session, "blocking", FOREVER));
    RANK_EQUAL(rank, poll(&ready, 1, 0), 0); // A call that blocks does not count.
    for (uint32_t i = 0; i < FLIGHTS; i++) {
        struct lockstep_collective what = describe(LOCKSTEP_ALLREDUCE, name, 1, NULL, &values[i]);
        what.dtype = LOCKSTEP_INT32;
        values[i] = (int32_t)i;
        snprintf(name, sizeof(name), "flight %" PRIu32, i % 5);
        RANK_OK(rank, lockstep_collective_begin(rank->session, &what, &works[i]));
    }
    while (left > 0) {
        RANK_EQUAL(rank, poll(&ready, 1, -1), 1);
        RANK_EQUAL(rank, read(fd, &rung, sizeof(rung)), sizeof(rung));
        for (uint32_t i = 0; i < FLIGHTS; i++) {
            if (!works[i] || lockstep_work_wait(works[i], 0) == LOCKSTEP_E_TIMEOUT)
                continue;
            RANK_EQUAL(rank, values[i], i * rank->world_size);
            works[i] = NULL;
            left--;
        }
    }
}

static void a_descriptor_is_polled(const struct setting *setting)
{
    ranks_run(setting, poll_body, NULL);
}

// ---- Names of closed groups --------------------------------------------------------------------

#define MANY_GROUPS 4300 // Each has two names, and rank 0 is in all of them.

static void use_both(struct rank *rank, lockstep_group *kept, int32_t expected)
{
    int32_t one = 1;
    int32_t sum = 0;
    struct lockstep_collective what = describe(LOCKSTEP_ALLREDUCE, "kept", 1, &one, &sum);
    what.dtype = LOCKSTEP_INT32;
    what.op = LOCKSTEP_SUM;
    what.group = kept;
    RANK_OK(rank, lockstep_collective_run(rank->session, &what, FOREVER));
    RANK_EQUAL(rank, sum, expected);
    RANK_OK(rank, lockstep_allreduce(rank->session, "all", &one, 1, LOCKSTEP_INT32, LOCKSTEP_SUM,
                                     FOREVER));
    RANK_EQUAL(rank, one, expected);
}

// Rank 0 is in twice as many groups as the others, so it forgets other names than they do. The
// names of all ranks and of the group that stays open have to keep their numbers on every rank.
static void many_groups_body(struct rank *rank)
{
    lockstep_group *const kept = make_whole(rank, "kept");
    const int32_t size = (int32_t)rank->world_size;
    use_both(rank, kept, size);
    use_both(rank, kept, size);
    for (uint32_t i = 0; i < MANY_GROUPS; i++) {
        const uint32_t ranks[2] = {0, 1 + i % (rank->world_size - 1)};
        char name[32];
        snprintf(name, sizeof(name), "group %" PRIu32, i % (MANY_GROUPS - 2));
        if (rank->rank != ranks[0] && rank->rank != ranks[1])
            continue;
        lockstep_group *const group = make_group(rank, name, ranks, 2);
        struct lockstep_collective what = describe(LOCKSTEP_BARRIER, "b", 0, NULL, NULL);
        what.group = group;
        RANK_OK(rank, lockstep_collective_run(rank->session, &what, FOREVER));
        RANK_OK(rank, lockstep_group_close(group));
    }
    use_both(rank, kept, size);
    RANK_OK(rank, lockstep_group_close(kept));
}

static void names_of_closed_groups_make_room(const struct setting *setting)
{
    if (strcmp(setting->name, "loopback") == 0)
        ranks_run(setting, many_groups_body, NULL);
}

// ---- The same group again ----------------------------------------------------------------------

// Two groups of one name and the same ranks are open. Each has names of its own: the members use
// them in opposite orders.
static void twins_body(struct rank *rank)
{
    lockstep_group *const twins[2] = {make_whole(rank, "twin"), make_whole(rank, "twin")};
    int32_t values[2] = {0};
    lockstep_work *works[2];
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t twin = rank->rank == 0 ? i : 1 - i;
        struct lockstep_collective what = describe(LOCKSTEP_ALLREDUCE, "x", 1, NULL, &values[twin]);
        values[twin] = twin == 0 ? 1 : 100;
        what.dtype = LOCKSTEP_INT32;
        what.op = LOCKSTEP_SUM;
        what.group = twins[twin];
        RANK_OK(rank, lockstep_collective_begin(rank->session, &what, &works[twin]));
    }
    for (uint32_t i = 0; i < 2; i++)
        RANK_OK(rank, lockstep_work_wait(works[i], FOREVER));
    RANK_EQUAL(rank, values[0], rank->world_size);
    RANK_EQUAL(rank, values[1], 100 * rank->world_size);
    RANK_OK(rank, lockstep_group_close(twins[0]));
    RANK_OK(rank, lockstep_group_close(twins[1]));
}

static void twins_have_their_own_names(const struct setting *setting)
{
    ranks_run(setting, twins_body, NULL);
}

static void shift(struct rank *rank, lockstep_group *pair, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        int32_t value = rank->rank == 0 ? (int32_t)i : -1;
        struct lockstep_collective what =
            describe(rank->rank == 0 ? LOCKSTEP_SEND : LOCKSTEP_RECEIVE, "m", 1,
                     rank->rank == 0 ? &value : NULL, rank->rank == 0 ? NULL : &value);
        what.dtype = LOCKSTEP_INT32;
        what.peer = 1 - rank->rank;
        what.group = pair;
        RANK_OK(rank, lockstep_collective_run(rank->session, &what, FOREVER));
        RANK_EQUAL(rank, value, i);
    }
}

// Ranks 0 and 1 make a group again after rank 0 has forgotten its names, and rank 1 has not.
static void again_body(struct rank *rank)
{
    const uint32_t pair[2] = {0, 1};
    const uint32_t other[2] = {0, 2};
    lockstep_group *group;
    for (uint32_t i = 0; rank->rank < 2 && i < 2; i++) {
        group = make_group(rank, "again", pair, 2);
        shift(rank, group, 10 * i, 2);
        RANK_OK(rank, lockstep_group_close(group));
    }
    for (uint32_t i = 0; rank->rank != 1 && i < MANY_GROUPS; i++) {
        char name[32];
        snprintf(name, sizeof(name), "other %" PRIu32, i);
        group = make_group(rank, name, other, 2);
        struct lockstep_collective what = describe(LOCKSTEP_BARRIER, "b", 0, NULL, NULL);
        what.group = group;
        RANK_OK(rank, lockstep_collective_run(rank->session, &what, FOREVER));
        RANK_OK(rank, lockstep_group_close(group));
    }
    if (rank->rank < 2) {
        group = make_group(rank, "again", pair, 2);
        shift(rank, group, 20, 4);
        RANK_OK(rank, lockstep_group_close(group));
    }
}

static void a_group_that_one_member_has_forgotten(const struct setting *setting)
{
    if (strcmp(setting->name, "loopback") == 0)
        ranks_run(setting, again_body, NULL);
}

int main(void)
{
    static const uint32_t several[] = {2, 3, 0};
    static const uint32_t three[] = {3, 0};
    static const struct stamp stamps[] = {
        {"groups_that_wait_crosswise", groups_that_wait_crosswise, three},
        {"groups_of_other_ranks", groups_of_other_ranks, three},
        {"a_receive_without_a_send", a_receive_without_a_send, three},
        {"a_group_that_others_wait_for", a_group_that_others_wait_for, three},
        {"case_41_members_that_disagree", members_that_disagree, several},
        {"case_41_a_pair_that_disagrees", a_pair_that_disagrees, several},
        {"calls_that_are_refused", calls_that_are_refused, several},
        {"names_of_closed_groups_make_room", names_of_closed_groups_make_room, three},
        {"twins_have_their_own_names", twins_have_their_own_names, several},
        {"a_group_that_one_member_has_forgotten", a_group_that_one_member_has_forgotten, three},
        {"a_group_with_work", a_group_with_work, several},
        {"a_function_is_called", a_function_is_called, several},
        {"a_failure_is_told", a_failure_is_told, several},
        {"a_descriptor_is_polled", a_descriptor_is_polled, several},
    };
    return stamp_run_whole("groups", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
