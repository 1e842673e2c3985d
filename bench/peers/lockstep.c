// SPDX-License-Identifier: Apache-2.0
//
// Ourselves, by the public header alone: blocking sums of one session. LOCKSTEP_COORDINATOR and its
// kin say where the others are; PEER_TRANSPORT and PEER_MEMORY, which of our ways is measured.

#include "bench/peers/driver.h"

#include <lockstep/lockstep.h>

#include <stdio.h>
#include <string.h>

static lockstep_session *session;

static void check(int status, const char *what)
{
    if (status < 0)
        peer_fail(what, lockstep_error_text());
}

void peer_open(int argc, char **argv, struct peer_world *world)
{
    (void)argc;
    (void)argv;
    uint32_t rank = 0;
    uint32_t size = 0;
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    if (strcmp(peer_variable("PEER_TRANSPORT"), "tcp") == 0)
        config.transport = LOCKSTEP_TRANSPORT_TCP;
    check(lockstep_open(&config, &session), "lockstep_open");
    check(lockstep_world(session, &rank, &size), "lockstep_world");
    *world = (struct peer_world){.rank = (int)rank, .size = (int)size};
}

void *peer_allocate(size_t bytes)
{
    void *memory = NULL;
    if (strcmp(peer_variable("PEER_MEMORY"), "registered") != 0)
        return peer_map(bytes);
    check(lockstep_alloc(session, bytes, &memory), "lockstep_alloc");
    memset(memory, 0, bytes);
    return memory;
}

void peer_allreduce(float *payload, size_t count)
{
    check(lockstep_allreduce(session, "peers", payload, count, LOCKSTEP_FLOAT32, LOCKSTEP_SUM,
                             LOCKSTEP_WAIT_FOREVER),
          "lockstep_allreduce");
}

void peer_move(enum peer_move move, const float *input, float *output, size_t count)
{
    static const lockstep_collective_kind kinds[] = {
        [MOVE_REDUCE_SCATTER] = LOCKSTEP_REDUCE_SCATTER,
        [MOVE_ALL_GATHER] = LOCKSTEP_ALL_GATHER,
        [MOVE_ALL_TO_ALL] = LOCKSTEP_ALL_TO_ALL,
    };
    struct lockstep_collective what = LOCKSTEP_COLLECTIVE_INIT;
    what.kind = kinds[move];
    what.name = "move";
    what.input = input;
    what.output = output;
    what.count = count;
    check(lockstep_collective_run(session, &what, LOCKSTEP_WAIT_FOREVER),
          "lockstep_collective_run");
}

void peer_close(void)
{
    check(lockstep_close(session), "lockstep_close");
}

const char *peer_version(void)
{
    static char text[64];
    snprintf(text, sizeof(text), "Lockstep %s", lockstep_version());
    return text;
}
