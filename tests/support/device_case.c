// SPDX-License-Identifier: Apache-2.0
//
// Random rows for the kernels of a device; see device_case.h. Any thread.

#include "tests/support/device_case.h"

#include "worker/kernels/kernels.h"
#include "worker/memory/units.h"
#include "worker/transport/device/table.h"

#include <stdlib.h>
#include <string.h>

#define SPACE 64 // Minimum number of bytes before and behind every piece.
#define TIDY 256

const struct device_pair device_pairs[DEVICE_PAIRS] = {
    {DTYPE_FLOAT32, DTYPE_FLOAT32},  {DTYPE_FLOAT64, DTYPE_FLOAT64},
    {DTYPE_FLOAT16, DTYPE_FLOAT16},  {DTYPE_BFLOAT16, DTYPE_BFLOAT16},
    {DTYPE_FLOAT32, DTYPE_BFLOAT16}, {DTYPE_FLOAT16, DTYPE_FLOAT32},
    {DTYPE_BFLOAT16, DTYPE_FLOAT32},
};

static uint64_t random_word(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * 0x2545f4914f6cdd1du;
}

static uint64_t random_below(uint64_t *state, uint64_t limit)
{
    return (random_word(state) >> 11) % limit;
}

static void *checked(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

// ---- numbers ------------------------------------------------------------------------------------

#define SPECIALS 10

// Bits of a special number: +0, -0, smallest and largest denormal, largest number, infinities,
// quiet and signalling NaNs.
static uint64_t special(enum dtype dtype, uint64_t which)
{
    static const uint64_t of_float64[SPECIALS] = {
        0,
        0x8000000000000000,
        1,
        0x000fffffffffffff,
        0x7fefffffffffffff,
        0x7ff0000000000000,
        0xfff0000000000000,
        0x7ff8000000000abc,
        0xfff0000000000abc,
        0x7fffffffffffffff,
    };
    static const uint32_t of_float32[SPECIALS] = {0,          0x80000000, 1,          0x007fffff,
                                                  0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00abc,
                                                  0xffa0beef, 0x7fffffff};
    static const uint16_t of_float16[SPECIALS] = {0,      0x8000, 1,      0x03ff, 0x7bff,
                                                  0x7c00, 0xfc00, 0x7e01, 0xfc0b, 0x7fff};
    static const uint16_t of_bfloat16[SPECIALS] = {0,      0x8000, 1,      0x007f, 0x7f7f,
                                                   0x7f80, 0xff80, 0x7fc1, 0xff8b, 0x7fff};
    if (dtype == DTYPE_FLOAT16)
        return of_float16[which];
    if (dtype == DTYPE_BFLOAT16)
        return of_bfloat16[which];
    return dtype == DTYPE_FLOAT32 ? of_float32[which] : of_float64[which];
}

void device_numbers(uint64_t *random, enum dtype dtype, void *into, uint64_t count)
{
    const size_t size = dtype_size(dtype);
    uint8_t *at = into;
    for (uint64_t i = 0; i < count; i++, at += size) {
        uint64_t bits = random_word(random);
        if (dtype_is_float(dtype) && bits % 16 == 0)
            bits = special(dtype, (bits >> 32) % SPECIALS);
        memcpy(at, &bits, size);
    }
}

// ---- pieces -------------------------------------------------------------------------------------

static struct case_block block_make(size_t size, uint8_t filling)
{
    struct case_block block = {.size = (size + TIDY - 1) / TIDY * TIDY};
    block.bytes = checked(aligned_alloc(TIDY, block.size));
    memset(block.bytes, filling, block.size);
    return block;
}

// Chooses the offset of a piece, at least `at`.
static size_t place(struct device_case *made, const struct device_draw *draw, size_t at)
{
    const size_t size = dtype_size(draw->dtype);
    if (draw->tidy)
        return (at + TIDY - 1) / TIDY * TIDY;
    return (at + size - 1) / size * size + random_below(&made->random, 2 * DEVICE_ALIGNMENT) * size;
}

// Draws the size of a piece: sometimes the maximum, sometimes at most 40 elements, else any size.
static uint64_t piece_size(struct device_case *made, const struct device_draw *draw)
{
    const uint64_t most = draw->piece_elements;
    const uint64_t kind = random_below(&made->random, 4);
    if (kind == 0)
        return 1 + random_below(&made->random, most < 40 ? most : 40);
    if (kind == 1)
        return most;
    return 1 + random_below(&made->random, most);
}

// Places all pieces. Returns the bytes that they need.
static size_t lay_out(struct device_case *made, const struct device_draw *draw)
{
    const size_t size = dtype_size(draw->dtype);
    size_t at = SPACE;
    for (uint32_t p = 0; p < made->piece_count; p++) {
        const uint64_t elements = piece_size(made, draw);
        at = place(made, draw, at);
        made->places[p] = at;
        made->pieces[p] = (struct device_piece){.first = made->elements,
                                                .unit = made->units > 0 ? p / 2 : DEVICE_NO_UNIT};
        at += elements * size + SPACE;
        made->elements += elements;
    }
    made->pieces[made->piece_count] =
        (struct device_piece){.first = made->elements, .unit = DEVICE_NO_UNIT};
    return at;
}

// Sets the addresses of all pieces. Some pieces have no input, some no output.
static void point(struct device_case *made)
{
    for (uint32_t p = 0; p < made->piece_count; p++) {
        const bool has_in = made->piece_count == 1 || random_below(&made->random, 8) != 0;
        const bool has_out = made->piece_count == 1 || random_below(&made->random, 8) != 0;
        made->pieces[p].in = has_in ? made->in.bytes + made->places[p] : NULL;
        made->pieces[p].out = has_out ? made->out.bytes + made->places[p] : NULL;
    }
}

void device_case_draw(struct device_case *made, const struct device_draw *draw)
{
    *made = (struct device_case){.random = draw->seed,
                                 .dtype = draw->dtype,
                                 .wire = draw->wire,
                                 .piece_count = draw->pieces,
                                 .units = draw->seed % 3 == 0 ? 0 : (draw->pieces + 1) / 2};
    made->pieces = checked(calloc((size_t)draw->pieces + 1, sizeof(*made->pieces)));
    made->places = checked(calloc(draw->pieces, sizeof(*made->places)));
    const size_t bytes = lay_out(made, draw);
    made->in = block_make(bytes, 0);
    made->out = block_make(bytes, 0xee);
    made->packed = block_make(made->elements * dtype_size(draw->wire) + SPACE, 0xdd);
    point(made);
    device_numbers(&made->random, draw->dtype, made->in.bytes,
                   made->in.size / dtype_size(draw->dtype));
    device_numbers(&made->random, draw->wire, made->packed.bytes, made->elements);
    made->tiles = checked(calloc(device_tiles(made->elements) + 1, sizeof(*made->tiles)));
    device_piece_tiles(made->pieces, made->piece_count, made->tiles);
    made->header = checked(calloc((size_t)made->units + 1, sizeof(*made->header)));
    made->used = checked(calloc(units_words(made->units) + (size_t)1, sizeof(*made->used)));
    made->header[0] = draw->weight;
    for (uint32_t u = 0; u < made->units; u++) {
        made->header[1 + u] = random_below(&made->random, 3);
        if (made->header[1 + u] > 0)
            units_set_used(made->used, u);
    }
}

void device_case_free(struct device_case *made)
{
    free(made->pieces);
    free(made->places);
    free(made->tiles);
    free(made->in.bytes);
    free(made->out.bytes);
    free(made->packed.bytes);
    free(made->header);
    free(made->used);
}
