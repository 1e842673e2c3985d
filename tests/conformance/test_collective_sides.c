// SPDX-License-Identifier: Apache-2.0
//
// Conformance: a collective that the last rank calls with other arguments than the other ranks.
// Every rank gets the same error text, which contains both calls.

#include "tests/support/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FOREVER LOCKSTEP_WAIT_FOREVER
#define COUNT 100000
#define LATE_US 20000 // After this time the data of the other ranks has reached the last rank.

enum function {
    ALLREDUCE,
    BROADCAST,
    BARRIER,
};

struct call {
    enum function function;
    uint64_t count;
    lockstep_dtype dtype;
    lockstep_op op;
    uint32_t root;
    const char *form; // The call as the error text prints it.
};

struct odd_pair {
    struct call others;
    struct call last;
};

static const struct odd_pair pairs[] = {
    {{ALLREDUCE, 2, LOCKSTEP_FLOAT32, LOCKSTEP_SUM, 0,
      "lockstep_allreduce with 2 elements of float32, sum"},
     {ALLREDUCE, 4, LOCKSTEP_FLOAT32, LOCKSTEP_SUM, 0,
      "lockstep_allreduce with 4 elements of float32, sum"}},
    {{ALLREDUCE, 1, LOCKSTEP_FLOAT32, LOCKSTEP_SUM, 0,
      "lockstep_allreduce with 1 element of float32, sum"},
     {ALLREDUCE, COUNT, LOCKSTEP_FLOAT32, LOCKSTEP_SUM, 0,
      "lockstep_allreduce with 100000 elements of float32, sum"}},
    {{ALLREDUCE, 3, LOCKSTEP_FLOAT32, LOCKSTEP_MEAN, 0,
      "lockstep_allreduce with 3 elements of float32, mean"},
     {ALLREDUCE, 0, LOCKSTEP_FLOAT32, LOCKSTEP_MEAN, 0,
      "lockstep_allreduce with 0 elements of float32, mean"}},
    {{ALLREDUCE, 8, LOCKSTEP_INT64, LOCKSTEP_MIN, 0,
      "lockstep_allreduce with 8 elements of int64, min"},
     {ALLREDUCE, 8, LOCKSTEP_FLOAT64, LOCKSTEP_MIN, 0,
      "lockstep_allreduce with 8 elements of float64, min"}},
    {{ALLREDUCE, 8, LOCKSTEP_INT32, LOCKSTEP_MAX, 0,
      "lockstep_allreduce with 8 elements of int32, max"},
     {ALLREDUCE, 8, LOCKSTEP_INT32, LOCKSTEP_OR, 0,
      "lockstep_allreduce with 8 elements of int32, or"}},
    {{ALLREDUCE, 8, LOCKSTEP_UINT16, LOCKSTEP_AND, 0,
      "lockstep_allreduce with 8 elements of uint16, and"},
     {ALLREDUCE, 8, LOCKSTEP_INT16, LOCKSTEP_AND, 0,
      "lockstep_allreduce with 8 elements of int16, and"}},
    {{ALLREDUCE, 8, LOCKSTEP_BOOL, LOCKSTEP_XOR, 0,
      "lockstep_allreduce with 8 elements of bool, xor"},
     {ALLREDUCE, 8, LOCKSTEP_BOOL, LOCKSTEP_PRODUCT, 0,
      "lockstep_allreduce with 8 elements of bool, product"}},
    {{BROADCAST, 8, LOCKSTEP_INT32, LOCKSTEP_SUM, 0,
      "lockstep_broadcast with 8 elements of int32, root 0"},
     {BROADCAST, 8, LOCKSTEP_INT32, LOCKSTEP_SUM, 1,
      "lockstep_broadcast with 8 elements of int32, root 1"}},
    {{BROADCAST, 8, LOCKSTEP_INT32, LOCKSTEP_SUM, 0,
      "lockstep_broadcast with 8 elements of int32, root 0"},
     {ALLREDUCE, 8, LOCKSTEP_INT32, LOCKSTEP_SUM, 0,
      "lockstep_allreduce with 8 elements of int32, sum"}},
    {{BARRIER, 0, LOCKSTEP_INT32, LOCKSTEP_SUM, 0, "lockstep_barrier"},
     {ALLREDUCE, 2, LOCKSTEP_FLOAT32, LOCKSTEP_SUM, 0,
      "lockstep_allreduce with 2 elements of float32, sum"}},
};

struct play {
    struct odd_pair pair;
    bool late; // True if the last rank is late.
    bool asynchronous;
};

static int make(struct rank *rank, const struct call *call, void *data)
{
    switch (call->function) {
    case BROADCAST:
        return lockstep_broadcast(rank->session, "loss", data, call->count, call->dtype, call->root,
                                  FOREVER);
    case BARRIER:
        return lockstep_barrier(rank->session, "loss", FOREVER);
    case ALLREDUCE:
        break;
    }
    return lockstep_allreduce(rank->session, "loss", data, call->count, call->dtype, call->op,
                              FOREVER);
}

// The asynchronous call may already fail if the other ranks have found the mismatch before.
static int make_async(struct rank *rank, const struct call *call, void *data)
{
    lockstep_work *work;
    int status;
    if (call->function == BROADCAST)
        status = lockstep_broadcast_async(rank->session, "loss", data, call->count, call->dtype,
                                          call->root, &work);
    else if (call->function == BARRIER)
        status = lockstep_barrier_async(rank->session, "loss", &work);
    else
        status = lockstep_allreduce_async(rank->session, "loss", data, call->count, call->dtype,
                                          call->op, &work);
    return status < 0 ? status : lockstep_work_wait(work, FOREVER);
}

static void odd_body(struct rank *rank)
{
    const struct play *play = rank->context;
    const uint32_t last = rank->world_size - 1;
    const struct call *mine = rank->rank == last ? &play->pair.last : &play->pair.others;
    double *data = calloc(COUNT, sizeof(*data));
    char wanted[512];
    RANK_OK(rank, lockstep_barrier(rank->session, "loss", FOREVER)); // Use 1 of the name.
    rank_meet(rank);
    if (play->late && rank->rank == last)
        usleep(LATE_US);
    const int status =
        RANK_CALL(rank, play->asynchronous ? make_async(rank, mine, data) : make(rank, mine, data));
    free(data);
    RANK_EQUAL(rank, status, LOCKSTEP_E_MISMATCH);
    RANK_SAYS(rank, "collective 'loss' (use 2) differs: rank ");
    snprintf(wanted, sizeof(wanted), " calls %s; rank %" PRIu32 " (host ", play->pair.others.form,
             last);
    RANK_SAYS(rank, wanted);
    snprintf(wanted, sizeof(wanted), ") calls %s; make both calls alike", play->pair.last.form);
    RANK_SAYS(rank, wanted);
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
}

static void one_pair(const struct setting *setting, const struct odd_pair *pair, bool late,
                     bool asynchronous)
{
    struct play play = {.pair = *pair, .late = late, .asynchronous = asynchronous};
    ranks_run(setting, odd_body, &play);
}

static void every_pair(const struct setting *setting, bool late, bool asynchronous)
{
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        one_pair(setting, &pairs[i], late, asynchronous);
}

// Runs each pair with the roles exchanged: the last rank makes the call of the other ranks.
static void every_pair_the_other_way(const struct setting *setting)
{
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        const struct odd_pair pair = {.others = pairs[i].last, .last = pairs[i].others};
        one_pair(setting, &pair, false, false);
    }
}

static void case_41_both_sides(const struct setting *setting)
{
    every_pair(setting, false, false);
}

static void case_41_both_sides_late(const struct setting *setting)
{
    every_pair(setting, true, false);
}

static void case_41_both_sides_asynchronous(const struct setting *setting)
{
    every_pair(setting, false, true);
}

static void case_41_both_sides_the_other_way(const struct setting *setting)
{
    every_pair_the_other_way(setting);
}

// The algorithm decides which rank receives data of which other rank first. Some mismatches no rank
// can detect by itself; the coordinator finds them by heartbeats. Normally each algorithm runs in
// one world; with LOCKSTEP_TEST_ALGORITHMS=all in several worlds, on one to three hosts.
static void over_algorithm(const char *algorithm, uint32_t world_size, uint32_t hosts)
{
    struct setting setting = setting_named(algorithm);
    setting.world_size = world_size;
    if (hosts > 0)
        setting.hosts = hosts;
    every_pair(&setting, false, false);
    every_pair_the_other_way(&setting);
}

static void over_algorithms(const char *const *algorithms, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        over_algorithm(algorithms[i], 3, 0);
        for (uint32_t world = 4; world <= 5 && test_everything(); world++)
            over_algorithm(algorithms[i], world, 0);
    }
}

// The setting only selects the algorithms of this run.
static void case_41_every_algorithm(const struct setting *setting)
{
    static const char *const pairwise[] = {"doubling", "halving"};
    static const char *const ring[] = {"ring"};
    if (strcmp(setting->name, "loopback") == 0)
        over_algorithms(pairwise, 2);
    if (strcmp(setting->name, "tcp") == 0)
        over_algorithms(ring, 1);
    if (strcmp(setting->name, "shared") != 0)
        return;
    over_algorithm("two_level", 3, 2);
    for (uint32_t world = 4; world <= 5 && test_everything(); world++)
        for (uint32_t hosts = 2; hosts <= 3; hosts++)
            over_algorithm("two_level", world, hosts);
}

int main(void)
{
    static const uint32_t three[] = {3, 0};
    static const struct stamp stamps[] = {
        {"case_41_both_sides", case_41_both_sides, NULL},
        {"case_41_both_sides_late", case_41_both_sides_late, NULL},
        {"case_41_both_sides_asynchronous", case_41_both_sides_asynchronous, NULL},
        {"case_41_both_sides_the_other_way", case_41_both_sides_the_other_way, three},
        {"case_41_every_algorithm", case_41_every_algorithm, three},
    };
    return stamp_run_whole("collective sides", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
