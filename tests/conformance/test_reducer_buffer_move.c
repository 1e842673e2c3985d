// SPDX-License-Identifier: Apache-2.0
//
// Conformance: buffers whose memory moves between steps. Case numbers are those of the list of
// cases for reducers.

#include "tests/support/trainer.h"

#include <cmocka.h>

#define BUFFERS 3
#define ELEMENTS 20

static const lockstep_buffer_policy policies[BUFFERS] = {LOCKSTEP_BUFFER_MEAN, LOCKSTEP_BUFFER_SUM,
                                                         LOCKSTEP_BUFFER_BROADCAST};

static lockstep_module *register_buffers(struct rank *rank, float (*places)[ELEMENTS])
{
    static const int64_t shape[] = {ELEMENTS};
    static const char *const names[BUFFERS] = {"mean", "sum", "root"};
    struct lockstep_buffer buffers[BUFFERS];
    struct lockstep_module_config config = LOCKSTEP_MODULE_INIT;
    lockstep_module *module;
    for (uint32_t b = 0; b < BUFFERS; b++)
        buffers[b] = (struct lockstep_buffer){.name = names[b],
                                              .dtype = LOCKSTEP_FLOAT32,
                                              .dims = 1,
                                              .shape = shape,
                                              .data = places[b],
                                              .policy = policies[b]};
    config.name = "statistics";
    config.buffers = buffers;
    config.buffer_count = BUFFERS;
    RANK_OK(rank, lockstep_module_register(rank->session, &config, &module));
    return module;
}

static float expected(struct rank *rank, uint32_t buffer, float base)
{
    const float n = (float)rank->world_size;
    const float total = n * base + n * (n - 1) / 2;
    return policies[buffer] == LOCKSTEP_BUFFER_BROADCAST ? base
           : policies[buffer] == LOCKSTEP_BUFFER_SUM     ? total
                                                         : total / n;
}

// In every step each buffer has other memory, once the former memory of another buffer. Lockstep
// does not write to memory that a buffer has left.
static void moved_body(struct rank *rank)
{
    float places[2 * BUFFERS][ELEMENTS] = {{0}};
    lockstep_module *module = register_buffers(rank, places);
    RANK_OK(rank, lockstep_start(rank->session));
    for (uint32_t step = 0; step < 6; step++) {
        const float base = (float)(step * 10);
        for (uint32_t p = 0; p < 2 * BUFFERS; p++) {
            for (uint32_t e = 0; e < ELEMENTS; e++)
                places[p][e] = -7;
        }
        for (uint32_t b = 0; b < BUFFERS; b++) {
            float *place = places[(b + step) % (2 * BUFFERS)];
            RANK_OK(rank, lockstep_buffer_move(module, b, place));
            for (uint32_t e = 0; e < ELEMENTS; e++)
                place[e] = base + (float)rank->rank;
        }
        trainer_begin(rank, NULL);
        RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_buffer_move(module, 0, places[0]));
        RANK_SAYS(rank, "memory is placed and moved outside a step");
        trainer_end(rank);
        for (uint32_t b = 0; b < 2 * BUFFERS; b++) {
            const float value = b < BUFFERS ? expected(rank, b, base) : -7;
            for (uint32_t e = 0; e < ELEMENTS; e++)
                RANK_TRUE(rank, places[(b + step) % (2 * BUFFERS)][e] == value);
        }
    }
    RANK_OK(rank, lockstep_state_sync(rank->session));
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
}

static void case_09_buffers_move(const struct setting *setting)
{
    ranks_run(setting, moved_body, NULL);
}

static void misuse_body(struct rank *rank)
{
    float places[BUFFERS][ELEMENTS] = {{0}};
    lockstep_module *module = register_buffers(rank, places);
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_buffer_move(NULL, 0, places[0]));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_buffer_move(module, BUFFERS, places[0]));
    RANK_SAYS(rank, "module 'statistics' has 3 buffers; there is no number 3");
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_buffer_move(module, 1, NULL));
    RANK_SAYS(rank, "buffer 'sum' has 20 elements and data NULL");
    RANK_OK(rank, lockstep_buffer_move(module, 1, places[0] + 1));
    RANK_FAILS(rank, LOCKSTEP_E_INVALID, lockstep_start(rank->session));
    RANK_SAYS(rank, "the buffer 'mean' of module 'statistics' and the buffer 'sum' of module "
                    "'statistics' overlap in memory");
    RANK_OK(rank, lockstep_buffer_move(module, 1, places[1]));
    RANK_OK(rank, lockstep_start(rank->session));
    RANK_OK(rank, lockstep_close(rank->session));
    rank->session = NULL;
}

static void buffer_misuse(const struct setting *setting)
{
    ranks_run(setting, misuse_body, NULL);
}

int main(void)
{
    static const struct stamp stamps[] = {
        {"case_09_buffers_move", case_09_buffers_move, NULL},
        {"buffer_misuse", buffer_misuse, NULL},
    };
    return stamp_run("reducer: buffers that move", stamps, sizeof(stamps) / sizeof(stamps[0]));
}
