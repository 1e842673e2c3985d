// SPDX-License-Identifier: Apache-2.0
//
// Conformance: a collective that the last rank calls differently. Every rank gets the same error,
// and it has both calls: what the other ranks wrote, and what the last rank wrote.

#include "tests/support/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define FOREVER LOCKSTEP_WAIT_FOREVER
#define COUNT 100000
#define LATE_US 20000 // What the others have sent waits there when the last rank calls.

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
    const char *form; // As the sentence has it.
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
    const struct odd_pair *pair;
    bool late; // The last rank is.
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

static int make_async(struct rank *rank, const struct call *call, void *data)
{
    lockstep_work *work;
    if (call->function == BROADCAST)
        RANK_OK(rank, lockstep_broadcast_async(rank->session, "loss", data, call->count,
                                               call->dtype, call->root, &work));
    else if (call->function == BARRIER)
        RANK_OK(rank, lockstep_barrier_async(rank->session, "loss", &work));
    else
        RANK_OK(rank, lockstep_allreduce_async(rank->session, "loss", data, call->count,
                                               call->dtype, call->op, &work));
    return lockstep_work_wait(work, FOREVER);
}

static void odd_body(struct rank *rank)
{
    const struct play *play = rank->context;
    const uint32_t last = rank->world_size - 1;
    const struct call *mine = rank->rank == last ? &play->pair->last : &play->pair->others;
    double *data = calloc(COUNT, sizeof(*data));
    char wanted[512];
    RANK_OK(rank, lockstep_barrier(rank->session, "loss", FOREVER)); // Its use 1.
    rank_meet(rank);
    if (play->late && rank->rank == last)
        usleep(LATE_US);
    const int status =
        RANK_CALL(rank, play->asynchronous ? make_async(rank, mine, data) : make(rank, mine, data));
    free(data);
    RANK_EQUAL(rank, status, LOCKSTEP_E_MISMATCH);
    RANK_SAYS(rank, "collective 'loss' (use 2) differs: rank ");
    snprintf(wanted, sizeof(wanted), " calls %s; rank %" PRIu32 " (host ", play->pair->others.form,
             last);
    RANK_SAYS(rank, wanted);
    snprintf(wanted, sizeof(wanted), ") calls %s; make both calls alike", play->pair->last.form);
    RANK_SAYS(rank, wanted);
    rank_digest(rank, lockstep_error_text(), strlen(lockstep_error_text()));
}

static void every_pair(const struct setting *setting, bool late, bool asynchronous)
{
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        struct play play = {.pair = &pairs[i], .late = late, .asynchronous = asynchronous};
        ranks_run(setting, odd_body, &play);
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

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_41_both_sides", case_41_both_sides, NULL},
        {"case_41_both_sides_late", case_41_both_sides_late, NULL},
        {"case_41_both_sides_asynchronous", case_41_both_sides_asynchronous, NULL},
    };
    return stamp_run_whole("collective sides", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
