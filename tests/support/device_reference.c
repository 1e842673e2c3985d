// SPDX-License-Identifier: Apache-2.0
//
// The reference kernels. They process piece after piece, a stretch of elements at a time: a stretch
// is widened to the type of the computation, computed, and narrowed. worker/device/kernels.h
// defines the order of operations and the rounding. Pure; any thread.

#include "tests/support/device_reference.h"

#include "worker/kernels/kernels.h"
#include "worker/memory/units.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

// ---- memory -------------------------------------------------------------------------------------

// Returns the host address of `bytes` bytes at a kernel's address, or NULL. Casts const away,
// because kernels take memory that they only read as const.
static void *reached(device_reach *reach, const void *address, uint64_t bytes)
{
    return reach ? reach(address, bytes) : (void *)(uintptr_t)address;
}

// Returns the pieces of a row; NULL if there are none or their memory is not accessible. Asserts
// that the tables are correct, because only Lockstep makes them.
static const struct device_piece *row_pieces(const struct device_row *row, device_reach *reach)
{
    if (row->elements == 0)
        return NULL;
    const uint64_t tile_count = device_tiles(row->elements);
    const struct device_piece *pieces =
        reached(reach, row->pieces, (row->count + (uint64_t)1) * sizeof(*pieces));
    const uint32_t *tiles = reached(reach, row->tiles, tile_count * sizeof(*tiles));
    if (!pieces || !tiles)
        return NULL;
    assert(pieces[0].first == 0 && pieces[row->count].first == row->elements);
    for (uint32_t p = 0; p < row->count; p++)
        assert(pieces[p].first < pieces[p + 1].first);
    for (uint64_t t = 0; t < tile_count; t++) {
        const uint64_t first = t * DEVICE_TILE_ELEMENTS;
        assert(tiles[t] < row->count && pieces[tiles[t]].first <= first &&
               first < pieces[tiles[t] + 1].first);
    }
    return pieces;
}

static uint64_t piece_elements(const struct device_piece *piece)
{
    return piece[1].first - piece[0].first;
}

// ---- a stretch in the type of the computation ---------------------------------------------------

#define STRETCH 256 // Elements.

// Some elements, widened: float64 stays float64, all other types become float32.
struct stretch {
    bool wide; // True if the elements are float64.
    size_t count;
    float narrow_values[STRETCH];
    double wide_values[STRETCH];
};

// Replaces any NaN by one NaN with fixed bits, as every computing kernel does.
static float one_nan(float value)
{
    return isnan(value) ? nanf("") : value;
}

static double one_wide_nan(double value)
{
    return isnan(value) ? nan("") : value;
}

static void stretch_load(struct stretch *stretch, uint32_t dtype, const void *from, size_t count)
{
    stretch->wide = dtype == DEVICE_FLOAT64;
    stretch->count = count;
    if (stretch->wide)
        memcpy(stretch->wide_values, from, count * sizeof(double));
    else if (dtype == DEVICE_FLOAT32)
        memcpy(stretch->narrow_values, from, count * sizeof(float));
    else
        kernel_widen((enum dtype)dtype, stretch->narrow_values, from, count);
}

static void stretch_store(const struct stretch *stretch, uint32_t dtype, void *to)
{
    if (stretch->wide)
        memcpy(to, stretch->wide_values, stretch->count * sizeof(double));
    else if (dtype == DEVICE_FLOAT32)
        memcpy(to, stretch->narrow_values, stretch->count * sizeof(float));
    else
        kernel_narrow((enum dtype)dtype, to, stretch->narrow_values, stretch->count);
}

static void stretch_multiply(struct stretch *stretch, float factor, double wide_factor)
{
    for (size_t i = 0; i < stretch->count && !stretch->wide; i++)
        stretch->narrow_values[i] = one_nan(stretch->narrow_values[i] * factor);
    for (size_t i = 0; i < stretch->count && stretch->wide; i++)
        stretch->wide_values[i] = one_wide_nan(stretch->wide_values[i] * wide_factor);
}

static void stretch_divide(struct stretch *stretch, uint64_t total)
{
    for (size_t i = 0; i < stretch->count && !stretch->wide; i++)
        stretch->narrow_values[i] = one_nan(stretch->narrow_values[i] / (float)total);
    for (size_t i = 0; i < stretch->count && stretch->wide; i++)
        stretch->wide_values[i] = one_wide_nan(stretch->wide_values[i] / (double)total);
}

static void stretch_power(struct stretch *stretch, int exponent)
{
    if (exponent != 0)
        stretch_multiply(stretch, ldexpf(1, exponent), ldexp(1, exponent));
}

// Rounds the elements to the format `final` and widens them again.
static void stretch_round(struct stretch *stretch, uint32_t final)
{
    uint16_t rounded[STRETCH];
    if (stretch->wide || final == DEVICE_FLOAT32)
        return;
    kernel_narrow((enum dtype) final, rounded, stretch->narrow_values, stretch->count);
    kernel_widen((enum dtype) final, stretch->narrow_values, rounded, stretch->count);
}

static uint64_t stretch_next(uint64_t left)
{
    return left < STRETCH ? left : STRETCH;
}

static size_t element_bytes(uint32_t dtype)
{
    return dtype_size((enum dtype)dtype);
}

// ---- pack ---------------------------------------------------------------------------------------

static void pack_elements(const struct device_pack *pack, const uint8_t *in, uint8_t *to,
                          uint64_t elements)
{
    if (pack->weight == 1 && pack->exponent == 0 && pack->wire == pack->dtype) {
        memcpy(to, in, elements * element_bytes(pack->dtype));
        return;
    }
    for (uint64_t left = elements; left > 0;) {
        const uint64_t count = stretch_next(left);
        struct stretch stretch;
        stretch_load(&stretch, pack->dtype, in, count);
        stretch_power(&stretch, pack->exponent);
        if (pack->weight != 1)
            stretch_multiply(&stretch, (float)pack->weight, (double)pack->weight);
        stretch_store(&stretch, pack->wire, to);
        in += count * element_bytes(pack->dtype);
        to += count * element_bytes(pack->wire);
        left -= count;
    }
}

static void pack_piece(const struct device_pack *pack, const struct device_piece *piece,
                       device_reach *reach)
{
    const uint64_t elements = piece_elements(piece);
    const uint64_t bytes = elements * element_bytes(pack->wire);
    uint8_t *to = (uint8_t *)pack->packed + piece->first * element_bytes(pack->wire);
    const uint8_t *in = NULL;
    to = reached(reach, to, bytes);
    if (!to)
        return;
    if (!piece->in || pack->weight == 0) {
        memset(to, 0, bytes);
        return;
    }
    in = reached(reach, piece->in, elements * element_bytes(pack->dtype));
    if (in)
        pack_elements(pack, in, to, elements);
}

static void pack_header(const struct device_pack *pack, device_reach *reach)
{
    const uint64_t bytes = (uint64_t)pack->header_words * sizeof(uint64_t);
    if (bytes == 0)
        return;
    const void *from = reached(reach, pack->header_from, bytes);
    void *to = reached(reach, pack->header_to, bytes);
    if (from && to)
        memcpy(to, from, bytes);
}

void device_reference_pack(const struct device_pack *pack, device_reach *reach)
{
    const struct device_piece *pieces = row_pieces(&pack->row, reach);
    assert((uintptr_t)pack->packed % DEVICE_ALIGNMENT == 0);
    for (uint32_t p = 0; pieces && p < pack->row.count; p++)
        pack_piece(pack, &pieces[p], reach);
    pack_header(pack, reach);
}

// ---- finish -------------------------------------------------------------------------------------

// The fields of the header that a finish needs.
struct finish_header {
    const uint64_t *used; // Ranks that have used each unit; NULL: all are used.
    uint64_t total;
};

// True if this launch writes its output. The host may revoke the launch at any time; it clears the
// decision before the launch.
static bool finish_decides(const struct device_finish *finish, device_reach *reach)
{
    if (!finish->revoked)
        return true;
    const uint32_t *revoked = reached(reach, finish->revoked, sizeof(*revoked));
    uint32_t *decision = reached(reach, finish->decision, sizeof(*decision));
    if (!revoked || !decision)
        return false;
    uint32_t decided = __atomic_load_n(decision, __ATOMIC_ACQUIRE);
    if (decided == DEVICE_UNDECIDED) {
        decided = __atomic_load_n(revoked, __ATOMIC_ACQUIRE) != 0 ? DEVICE_SKIPS : DEVICE_WRITES;
        __atomic_store_n(decision, decided, __ATOMIC_RELEASE);
    }
    return decided == DEVICE_WRITES;
}

static void finish_elements(const struct device_finish *finish, uint64_t total, const uint8_t *from,
                            uint8_t *out, uint64_t elements)
{
    const bool divides = finish->divides != 0 && total != 1;
    if (!divides && finish->exponent == 0 && finish->wire == finish->dtype &&
        finish->final == finish->dtype) {
        memcpy(out, from, elements * element_bytes(finish->dtype));
        return;
    }
    for (uint64_t left = elements; left > 0;) {
        const uint64_t count = stretch_next(left);
        struct stretch stretch;
        stretch_load(&stretch, finish->wire, from, count);
        if (divides)
            stretch_divide(&stretch, total);
        stretch_power(&stretch, -finish->exponent);
        stretch_round(&stretch, finish->final);
        stretch_store(&stretch, finish->dtype, out);
        from += count * element_bytes(finish->wire);
        out += count * element_bytes(finish->dtype);
        left -= count;
    }
}

static void finish_piece(const struct device_finish *finish, const struct finish_header *header,
                         const struct device_piece *piece, device_reach *reach)
{
    const uint64_t elements = piece_elements(piece);
    const size_t wire_bytes = element_bytes(finish->wire);
    const bool used =
        !header->used || piece->unit == DEVICE_NO_UNIT || header->used[piece->unit] > 0;
    if (!piece->out || !used)
        return;
    const uint8_t *from = reached(
        reach, (const uint8_t *)finish->packed + piece->first * wire_bytes, elements * wire_bytes);
    uint8_t *out = reached(reach, piece->out, elements * element_bytes(finish->dtype));
    if (from && out)
        finish_elements(finish, header->total, from, out, elements);
}

// Number of units in the header: the highest unit of the row's pieces, plus 1.
static uint32_t row_units(const struct device_row *row, const struct device_piece *pieces)
{
    uint32_t units = 0;
    for (uint32_t p = 0; p < row->count; p++) {
        if (pieces[p].unit != DEVICE_NO_UNIT && pieces[p].unit >= units)
            units = pieces[p].unit + 1;
    }
    return units;
}

void device_reference_finish(const struct device_finish *finish, device_reach *reach)
{
    const struct device_piece *pieces = row_pieces(&finish->row, reach);
    struct finish_header header = {.used = NULL, .total = 1};
    assert((uintptr_t)finish->packed % DEVICE_ALIGNMENT == 0);
    assert(finish->header || finish->divides == 0);
    if (!finish_decides(finish, reach) || !pieces)
        return;
    if (finish->header) {
        const uint64_t words = 1 + (uint64_t)row_units(&finish->row, pieces);
        const uint64_t *at = reached(reach, finish->header, words * sizeof(*at));
        if (!at)
            return;
        header = (struct finish_header){.used = at + 1, .total = at[0]};
    }
    if (finish->divides != 0 && header.total == 0)
        return;
    for (uint32_t p = 0; p < finish->row.count; p++)
        finish_piece(finish, &header, &pieces[p], reach);
}

// ---- gather and scatter -------------------------------------------------------------------------

void device_reference_gather(const struct device_gather *gather, device_reach *reach)
{
    const struct device_piece *pieces = row_pieces(&gather->row, reach);
    const size_t size = element_bytes(gather->dtype);
    assert((uintptr_t)gather->packed % DEVICE_ALIGNMENT == 0);
    for (uint32_t p = 0; pieces && p < gather->row.count; p++) {
        const uint64_t bytes = piece_elements(&pieces[p]) * size;
        void *to = reached(reach, (uint8_t *)gather->packed + pieces[p].first * size, bytes);
        const void *in = pieces[p].in ? reached(reach, pieces[p].in, bytes) : NULL;
        if (to && !pieces[p].in)
            memset(to, 0, bytes);
        else if (to && in)
            memcpy(to, in, bytes);
    }
}

void device_reference_scatter(const struct device_scatter *scatter, device_reach *reach)
{
    const struct device_piece *pieces = row_pieces(&scatter->row, reach);
    const size_t size = element_bytes(scatter->dtype);
    const uint64_t *used = NULL;
    assert((uintptr_t)scatter->packed % DEVICE_ALIGNMENT == 0);
    if (!pieces)
        return;
    const uint32_t units = row_units(&scatter->row, pieces);
    if (scatter->used && units > 0) {
        used = reached(reach, scatter->used, units_words(units) * sizeof(*used));
        if (!used)
            return;
    }
    for (uint32_t p = 0; p < scatter->row.count; p++) {
        const uint64_t bytes = piece_elements(&pieces[p]) * size;
        const uint32_t unit = pieces[p].unit;
        if (!pieces[p].out || (used && unit != DEVICE_NO_UNIT && !units_is_used(used, unit)))
            continue;
        const void *from =
            reached(reach, (const uint8_t *)scatter->packed + pieces[p].first * size, bytes);
        void *out = reached(reach, pieces[p].out, bytes);
        if (from && out)
            memcpy(out, from, bytes);
    }
}

// ---- add ----------------------------------------------------------------------------------------

// Adds the elements of `in` to a stretch; does nothing if `in` is NULL.
static void add_stretch(struct stretch *sum, const struct device_add *add, const uint8_t *in,
                        uint64_t count)
{
    struct stretch other;
    if (!in)
        return;
    stretch_load(&other, add->dtype, in, count);
    for (size_t i = 0; i < count && !sum->wide; i++)
        sum->narrow_values[i] = one_nan(sum->narrow_values[i] + other.narrow_values[i]);
    for (size_t i = 0; i < count && sum->wide; i++)
        sum->wide_values[i] = one_wide_nan(sum->wide_values[i] + other.wide_values[i]);
}

static void add_floats(const struct device_add *add, uint8_t *acc, const uint8_t *in)
{
    const size_t size = element_bytes(add->dtype);
    for (uint64_t left = add->elements; left > 0;) {
        const uint64_t count = stretch_next(left);
        struct stretch sum;
        stretch_load(&sum, add->dtype, acc, count);
        add_stretch(&sum, add, in, count);
        if (add->divisor != 1) {
            stretch_round(&sum, add->dtype);
            stretch_divide(&sum, add->divisor);
        }
        stretch_store(&sum, add->dtype, acc);
        acc += count * size;
        in += !in ? 0 : count * size;
        left -= count;
    }
}

void device_reference_add(const struct device_add *add, device_reach *reach)
{
    const uint64_t bytes = add->elements * element_bytes(add->dtype);
    const bool floats = dtype_is_float((enum dtype)add->dtype);
    assert(add->divisor > 0 && (floats || add->divisor == 1));
    if (bytes == 0 || (!add->in && add->divisor == 1))
        return;
    void *acc = reached(reach, add->acc, bytes);
    const void *in = !add->in ? NULL : reached(reach, add->in, bytes);
    if (!acc || (!in && add->in))
        return;
    if (floats)
        add_floats(add, acc, in);
    else
        kernel_reduce((enum dtype)add->dtype, REDUCE_SUM, acc, in, add->elements);
}

// ---- by name ------------------------------------------------------------------------------------

#define BY_NAME(kernel) \
    static void run_##kernel(const void *parameters, device_reach *reach) \
    { \
        device_reference_##kernel(parameters, reach); \
    }

BY_NAME(pack)
BY_NAME(finish)
BY_NAME(gather)
BY_NAME(scatter)
BY_NAME(add)

const struct device_reference *device_reference_find(const char *name)
{
    static const struct device_reference references[] = {
        {DEVICE_PACK, sizeof(struct device_pack), run_pack},
        {DEVICE_FINISH, sizeof(struct device_finish), run_finish},
        {DEVICE_GATHER, sizeof(struct device_gather), run_gather},
        {DEVICE_SCATTER, sizeof(struct device_scatter), run_scatter},
        {DEVICE_ADD, sizeof(struct device_add), run_add},
    };
    for (size_t i = 0; i < sizeof(references) / sizeof(references[0]); i++) {
        if (strcmp(references[i].name, name) == 0)
            return &references[i];
    }
    return NULL;
}
