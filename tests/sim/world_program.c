// SPDX-License-Identifier: Apache-2.0
//
// Reads the programs and plans of a small world; the language is told in world.h. Pure.

#include "tests/sim/world.h"

#include <string.h>

uint32_t world_buckets(const struct world_config *config, uint32_t module)
{
    return config->buckets[module] == 0 ? 1 : config->buckets[module];
}

// ---- Words -------------------------------------------------------------------------------------

struct reader {
    const struct world_config *config;
    const char *at;
    uint32_t rank;
    struct world_row *row;
    struct world_part *part; // The thread that the words are for.
    uint8_t calls[WORLD_MODULES]; // Begun in this step.
    bool fails;
};

static void reader_add(struct reader *reader, enum world_op_kind kind, uint8_t module,
                       uint8_t bucket)
{
    struct world_part *part = reader->part;
    const uint8_t call = reader->calls[module] == 0 ? 0 : (uint8_t)(reader->calls[module] - 1);
    if (part->count == WORLD_OPS) {
        reader->fails = true;
        return;
    }
    part->ops[part->count++] = (struct world_op){(uint8_t)kind, module, call, bucket};
}

static void reader_open(struct reader *reader, uint8_t module)
{
    if (++reader->calls[module] > WORLD_CALLS)
        reader->fails = true;
    reader_add(reader, OP_OPEN, module, 0);
}

static void reader_close(struct reader *reader, uint8_t module)
{
    const uint32_t buckets = world_buckets(reader->config, module);
    const bool reversed = (reader->config->reversed >> reader->rank & 1) != 0;
    for (uint32_t i = 0; i < buckets; i++)
        reader_add(reader, OP_MAKE, module, (uint8_t)(reversed ? buckets - 1 - i : i));
    reader_add(reader, OP_CLOSE, module, 0);
}

static void reader_call(struct reader *reader, uint8_t module)
{
    const char tail = reader->at[1];
    const bool tailed = tail != '\0' && strchr("!()?%", tail);
    reader->at += tailed ? 2 : 1;
    if (tail == '(' || tail == '!' || !tailed)
        reader_open(reader, module);
    if (tail == ')' || tail == '!' || !tailed)
        reader_close(reader, module);
    if (reader->calls[module] == 0)
        reader->fails = true;
    if (tail == '!' || tail == '?')
        reader_add(reader, OP_WAIT, module, 0);
    if (tail == '%')
        reader_add(reader, OP_TRY, module, 0);
}

static void reader_word(struct reader *reader)
{
    const char word = *reader->at;
    if (word == ' ') {
        reader->at++;
    } else if (word == ':' && reader->at[1] != '\0') {
        reader->row->phase = reader->at[1];
        reader->at += 2;
    } else if (word == '&' && reader->part + 1 < reader->row->threads + WORLD_THREADS) {
        reader->part++;
        reader->at++;
    } else if (word >= 'A' && word < 'A' + WORLD_MODULES) {
        reader_call(reader, (uint8_t)(word - 'A'));
    } else {
        reader->fails = true;
    }
}

// One step, up to a slash or the end.
static void reader_step(struct reader *reader, struct world_row *row)
{
    memset(row, 0, sizeof(*row));
    memset(reader->calls, 0, sizeof(reader->calls));
    row->phase = 'p';
    reader->row = row;
    reader->part = row->threads;
    reader_add(reader, OP_BEGIN, 0, 0);
    while (!reader->fails && *reader->at != '\0' && *reader->at != '/')
        reader_word(reader);
    reader->part = row->threads;
    reader_add(reader, OP_END, 0, 0);
}

// ---- Programs ----------------------------------------------------------------------------------

static bool program_read_rank(struct world_program *program, const struct world_config *config,
                              uint32_t rank)
{
    struct reader reader = {.config = config, .rank = rank};
    uint32_t step = 0;
    for (; step < WORLD_PLANS && config->plans[step]; step++) {
        reader.at = config->plans[step];
        reader_step(&reader, &program->rows[rank][step]);
    }
    program->plans = step;
    for (reader.at = config->programs[rank]; reader.at && step < WORLD_STEPS;) {
        reader_step(&reader, &program->rows[rank][step++]);
        if (reader.fails || *reader.at == '\0')
            break;
        reader.at++;
    }
    if (rank > 0 && program->steps != step)
        return false;
    program->steps = step;
    return !reader.fails && reader.at && *reader.at == '\0';
}

bool world_program_read(struct world_program *program, const struct world_config *config)
{
    memset(program, 0, sizeof(*program));
    if (config->ranks < 2 || config->ranks > WORLD_RANKS || config->threads > WORLD_THREADS)
        return false;
    for (uint32_t module = 0; module < WORLD_MODULES; module++)
        if (config->buckets[module] > WORLD_BUCKETS)
            return false;
    for (uint32_t rank = 0; rank < config->ranks; rank++)
        if (!program_read_rank(program, config, rank))
            return false;
    return true;
}

bool world_plan_read(const char *text, const struct world_config *config, char *phase,
                     struct slot_id slots[WORLD_SLOTS], uint32_t *count)
{
    struct world_row row;
    struct reader reader = {.config = config, .at = text};
    uint32_t used = 0;
    reader_step(&reader, &row);
    for (uint32_t i = 0; i < row.threads[0].count; i++) {
        const struct world_op *op = &row.threads[0].ops[i];
        if (op->kind != OP_MAKE)
            continue;
        if (used == WORLD_SLOTS)
            return false;
        slots[used++] =
            (struct slot_id){.module = op->module, .call = op->call, .bucket = op->bucket};
    }
    *phase = row.phase;
    *count = used;
    return !reader.fails && *reader.at == '\0';
}

// ---- Of a step ---------------------------------------------------------------------------------

static bool row_waits(const struct world_row *row)
{
    for (uint32_t thread = 0; thread < WORLD_THREADS; thread++)
        for (uint32_t i = 0; i < row->threads[thread].count; i++)
            if (row->threads[thread].ops[i].kind == OP_WAIT ||
                row->threads[thread].ops[i].kind == OP_TRY)
                return true;
    return false;
}

bool world_step_waits(const struct world_program *program, uint32_t ranks, uint32_t step)
{
    for (uint32_t rank = 0; rank < ranks; rank++)
        if (row_waits(&program->rows[rank][step]))
            return true;
    return false;
}

static void row_count(const struct world_row *row, uint8_t calls[WORLD_MODULES])
{
    memset(calls, 0, WORLD_MODULES);
    for (uint32_t thread = 0; thread < WORLD_THREADS; thread++)
        for (uint32_t i = 0; i < row->threads[thread].count; i++)
            if (row->threads[thread].ops[i].kind == OP_OPEN)
                calls[row->threads[thread].ops[i].module]++;
}

bool world_step_conforms(const struct world_program *program, uint32_t ranks, uint32_t step)
{
    uint8_t calls[WORLD_MODULES];
    uint8_t planned[WORLD_MODULES];
    const char phase = program->rows[0][step].phase;
    uint32_t plan = 0;
    while (plan < step && program->rows[0][plan].phase != phase)
        plan++;
    row_count(&program->rows[0][plan], planned);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        row_count(&program->rows[rank][step], calls);
        if (program->rows[rank][step].phase != phase || memcmp(calls, planned, sizeof(calls)) != 0)
            return false;
    }
    return true;
}
