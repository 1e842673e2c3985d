// SPDX-License-Identifier: Apache-2.0
// zero1: plain data parallelism with a sharded optimizer (ZeRO-1). Every rank has all parameters
// and computes all gradients, but keeps the optimizer's state of one shard only. A step is: reduce-
// scatter the gradients, update the own shard, all-gather the parameters. Beside it every rank
// trains a second copy in the usual way, and compares both at the end.
#include <lockstep/lockstep.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARAMETERS 1003 // Not a multiple of the world: the last shards are smaller.
#define STEPS 20

static void check(int status)
{
    if (status < 0) {
        fprintf(stderr, "%s\n", lockstep_error_text());
        exit(1);
    }
}

// Momentum, for `count` parameters.
static void update(float *parameters, float *momentum, const float *gradients, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        momentum[i] = 0.9f * momentum[i] + gradients[i];
        parameters[i] -= 0.05f * momentum[i];
    }
}

// The gradient on this rank's data, of a function with its minimum at 1, 2, 3, ...
static void backward(const float *parameters, float *gradients, uint32_t rank, int step)
{
    for (int i = 0; i < PARAMETERS; i++) {
        const float noise = (float)((rank * 7 + (uint32_t)(i + step) * 3) % 11) - 5;
        gradients[i] = parameters[i] - (float)(i % 10 + 1) + 0.01f * noise;
    }
}

int main(void)
{
    lockstep_session *session;
    uint32_t rank, world_size;
    check(lockstep_open(NULL, &session));
    check(lockstep_world(session, &rank, &world_size));

    uint64_t *counts = calloc(world_size, sizeof(*counts));
    uint64_t first = 0;
    static float parameters[PARAMETERS], plain[PARAMETERS], gradients[PARAMETERS];
    static float momentum[PARAMETERS], shard[PARAMETERS], shard_momentum[PARAMETERS];
    if (!counts)
        return 1;
    for (uint32_t r = 0; r < world_size; r++) {
        counts[r] = PARAMETERS / world_size + (r < PARAMETERS % world_size);
        first += r < rank ? counts[r] : 0;
    }

    struct lockstep_collective reduce = LOCKSTEP_COLLECTIVE_INIT;
    reduce.kind = LOCKSTEP_REDUCE_SCATTER;
    reduce.name = "gradients";
    reduce.input = gradients;
    reduce.output = shard; // Only the gradients of this rank's shard.
    reduce.input_counts = counts;
    reduce.dtype = LOCKSTEP_FLOAT32;
    reduce.op = LOCKSTEP_MEAN;

    struct lockstep_collective gather = LOCKSTEP_COLLECTIVE_INIT;
    gather.kind = LOCKSTEP_ALL_GATHER;
    gather.name = "parameters";
    gather.output = parameters; // In place: this rank's shard is there already.
    gather.output_counts = counts;
    gather.dtype = LOCKSTEP_FLOAT32;

    for (int step = 0; step < STEPS; step++) {
        backward(parameters, gradients, rank, step);
        check(lockstep_collective_run(session, &reduce, LOCKSTEP_WAIT_FOREVER));
        update(parameters + first, shard_momentum, shard, counts[rank]);
        check(lockstep_collective_run(session, &gather, LOCKSTEP_WAIT_FOREVER));

        // The usual way: all ranks have all gradients, and the whole state of the optimizer.
        backward(plain, gradients, rank, step);
        check(lockstep_allreduce(session, "plain", gradients, PARAMETERS, LOCKSTEP_FLOAT32,
                                 LOCKSTEP_MEAN, LOCKSTEP_WAIT_FOREVER));
        update(plain, momentum, gradients, PARAMETERS);
    }
    // Sums of several ranks may be added in another order there, so the last bits may differ.
    float farthest = 0;
    for (int i = 0; i < PARAMETERS; i++)
        farthest = fmaxf(farthest, fabsf(parameters[i] - plain[i]));
    check(lockstep_close(session));
    printf("rank %u of %u: %u parameters, the optimizer's state of %u, %s plain training\n",
           (unsigned)rank, (unsigned)world_size, PARAMETERS, (unsigned)counts[rank],
           farthest < 1e-4f ? "as in" : "NOT as in");
    free(counts);
    return farthest < 1e-4f ? 0 : 1;
}
