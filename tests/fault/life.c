// SPDX-License-Identifier: Apache-2.0

#include "tests/fault/life.h"

#include "base/clock.h"

#include <limits.h>
#include <lockstep/lockstep.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define LIFE_STEPS 3
// Elements of the large parameter, which has a region of its own.
#define LIFE_ELEMENTS (1280 * 1024)
#define LIFE_BLOCK_BYTES (1024 * 1024 + 1)
#define LIFE_DESCRIPTORS 256
#define LIFE_CALL_MS 20000

uint32_t life_blocks;

static bool life_is(struct outcome *outcome, const char *function)
{
    snprintf(outcome->function, sizeof(outcome->function), "%s", function);
    return outcome->status == 0;
}

static void life_has(struct outcome *outcome, int status)
{
    if (status >= 0)
        return;
    outcome->status = status;
    snprintf(outcome->text, sizeof(outcome->text), "%s", lockstep_error_text());
}

#define LIVE(outcome, function, ...) \
    do { \
        if (outcome->status == 0 && life_is(outcome, #function)) \
            life_has(outcome, function(__VA_ARGS__)); \
    } while (0)

static void life_open(const struct life *life, struct outcome *outcome, lockstep_session **session)
{
    struct lockstep_config config = LOCKSTEP_CONFIG_INIT;
    char address[64];
    const uint64_t from_ms = clock_now_ms();
    snprintf(address, sizeof(address), "127.0.0.1:%u", life->port);
    config.coordinator = address;
    config.job = life->job;
    config.world_size = 2;
    config.rank_hint = (int32_t)life->rank;
    config.open_timeout_ms = life->open_ms;
    LIVE(outcome, lockstep_open, &config, session);
    outcome->open_ms = clock_now_ms() - from_ms;
}

// Checks that only the data port of this process listens: a rank closes its listener for ranks of
// this host when its world forms.
static void life_listens(struct outcome *outcome)
{
    uint32_t ports = 0;
    for (int fd = 0; outcome->status == 0 && fd < LIFE_DESCRIPTORS; fd++) {
        int listens = 0, domain = 0;
        socklen_t size = sizeof(listens);
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) < 0 || listens == 0)
            continue;
        size = sizeof(domain);
        if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_INET &&
            ports++ == 0)
            continue;
        outcome->status = INT_MIN;
        snprintf(outcome->text, sizeof(outcome->text), "descriptor %d still listens", fd);
    }
    if (outcome->status == 0 && ports == 0) {
        outcome->status = INT_MIN;
        snprintf(outcome->text, sizeof(outcome->text), "the data port does not listen any more");
    }
}

static void life_register(struct outcome *outcome, lockstep_session *session,
                          lockstep_module **module)
{
    static float few[2][7];
    static float many[LIFE_ELEMENTS];
    static const int64_t shapes[2][1] = {{7}, {LIFE_ELEMENTS}};
    struct lockstep_parameter parameters[2] = {LOCKSTEP_PARAMETER_INIT, LOCKSTEP_PARAMETER_INIT};
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    void *gradient = NULL;
    for (uint32_t i = 0; i < life_blocks; i++)
        LIVE(outcome, lockstep_alloc, session, LIFE_BLOCK_BYTES, &gradient);
    LIVE(outcome, lockstep_alloc, session, sizeof(many), &gradient);
    for (int i = 0; i < 2; i++) {
        parameters[i].name = i == 0 ? "few" : "many";
        parameters[i].dims = 1;
        parameters[i].shape = shapes[i];
        parameters[i].data = i == 0 ? few[0] : many;
        parameters[i].gradient = i == 0 ? few[1] : gradient;
    }
    config.name = "life";
    config.parameters = parameters;
    config.parameter_count = 2;
    LIVE(outcome, lockstep_module_register, session, &config, module);
}

static void life_step(struct outcome *outcome, lockstep_session *session, lockstep_module *module)
{
    lockstep_call *call = NULL;
    LIVE(outcome, lockstep_step_begin, session, NULL, NULL);
    LIVE(outcome, lockstep_call_begin, module, &call);
    for (uint32_t i = 0; i < 2; i++)
        LIVE(outcome, lockstep_grad_ready, module, call, i, NULL, NULL);
    LIVE(outcome, lockstep_call_end, call);
    LIVE(outcome, lockstep_step_end, session, NULL);
}

static void life_collect(struct outcome *outcome, lockstep_session *session)
{
    float values[5] = {1, 2, 3, 4, 5};
    LIVE(outcome, lockstep_allreduce, session, "life", values, 5, LOCKSTEP_FLOAT32, LOCKSTEP_SUM,
         LIFE_CALL_MS);
    LIVE(outcome, lockstep_barrier, session, "life", LIFE_CALL_MS);
    LIVE(outcome, lockstep_state_check, session);
}

void life_live(const struct life *life, struct outcome *outcome)
{
    lockstep_session *session = NULL;
    lockstep_module *module = NULL;
    life_open(life, outcome, &session);
    life_listens(outcome);
    life_register(outcome, session, &module);
    LIVE(outcome, lockstep_start, session);
    for (int i = 0; i < LIFE_STEPS; i++)
        life_step(outcome, session, module);
    life_collect(outcome, session);
    if (session && outcome->status < 0 && life->abrupt)
        outcome->failed = lockstep_barrier(session, "failed", 0) == outcome->status;
    else if (session)
        life_has(outcome, lockstep_close(session));
    if (outcome->status == 0)
        (void)life_is(outcome, "nothing");
}
