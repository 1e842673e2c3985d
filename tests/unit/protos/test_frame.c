// SPDX-License-Identifier: Apache-2.0
//
// Frame headers: golden bytes, round trips, every bound, and hostile bytes.

#include "protos/frame.h"
#include "tests/support/choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define SEED 0x5eed5eed5eed5eedu
#define ROUNDS 2000

static struct frame_header random_header(uint64_t *state)
{
    struct frame_header header;
    memset(&header, 0, sizeof(header));
    header.kind = (enum frame_kind)(FRAME_HELLO + choice_random(state) % FRAME_LOST);
    header.dtype = (enum dtype)(choice_random(state) % (DTYPE_LAST + 1));
    header.payload_bytes = (uint32_t)(choice_random(state) % (frame_payload_max(header.kind) + 1));
    if (frame_payload_max(header.kind) == LOCKSTEP_FRAME_BYTES)
        header.used_bytes = (uint32_t)(choice_random(state) % (LOCKSTEP_USED_BYTES + 1));
    header.generation.number = choice_random(state);
    header.generation.incarnation = choice_random(state);
    header.step = choice_random(state);
    header.space = choice_random(state);
    header.slot = (uint32_t)choice_random(state);
    header.part = (uint32_t)choice_random(state);
    header.chunk = (uint32_t)choice_random(state);
    header.credit = (uint32_t)choice_random(state);
    header.weight = choice_random(state);
    header.signature = choice_random(state);
    return header;
}

static void assert_headers_equal(const struct frame_header *a, const struct frame_header *b)
{
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->flags, b->flags);
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->payload_bytes, b->payload_bytes);
    assert_int_equal(a->used_bytes, b->used_bytes);
    assert_true(a->generation.number == b->generation.number);
    assert_true(a->generation.incarnation == b->generation.incarnation);
    assert_true(a->step == b->step);
    assert_true(a->space == b->space);
    assert_int_equal(a->slot, b->slot);
    assert_int_equal(a->part, b->part);
    assert_int_equal(a->chunk, b->chunk);
    assert_int_equal(a->credit, b->credit);
    assert_true(a->weight == b->weight);
    assert_true(a->signature == b->signature);
}

// The checksum as frame.c describes it, so that a test can forge a header that passes it.
static void forge_checksum(uint8_t *bytes)
{
    uint32_t hash = 2166136261u;
    for (size_t at = 0; at < LOCKSTEP_FRAME_HEADER_BYTES - 4; at += 4) {
        uint32_t word = 0;
        for (size_t i = 0; i < 4; i++)
            word |= (uint32_t)bytes[at + i] << (8 * i);
        hash = (hash ^ word) * 16777619u;
        hash ^= hash >> 15;
    }
    for (size_t i = 0; i < 4; i++)
        bytes[LOCKSTEP_FRAME_HEADER_BYTES - 4 + i] = (uint8_t)(hash >> (8 * i));
}

static void put32(uint8_t *bytes, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
}

// A change of these bytes is a new protocol version.
static void test_golden_bytes(void **state)
{
    static const uint8_t golden[LOCKSTEP_FRAME_HEADER_BYTES] = {
        'L',  'K',  'S',  '1',  3,    0,    1,    0, // magic, kind, flags, dtype
        0x00, 0x00, 0x10, 0x00, 0x00, 0x10, 0x00, 0x00, // payload_bytes, used_bytes
        0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, // generation.number
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, // generation.incarnation
        0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, // step
        0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31, // space
        0x44, 0x43, 0x42, 0x41, 0x48, 0x47, 0x46, 0x45, // slot, part
        0x54, 0x53, 0x52, 0x51, 0x58, 0x57, 0x56, 0x55, // chunk, credit
        0x68, 0x67, 0x66, 0x65, 0x64, 0x63, 0x62, 0x61, // weight
        0x78, 0x77, 0x76, 0x75, 0x74, 0x73, 0x72, 0x71, // signature
        0,    0,    0,    0,    0,    0,    0,    0, // zeros
        0,    0,    0,    0,    0x6c, 0x36, 0xf6, 0x6d, // zeros, checksum
    };
    const struct frame_header header = {
        .kind = FRAME_REDUCE,
        .dtype = DTYPE_FLOAT32,
        .payload_bytes = LOCKSTEP_FRAME_BYTES,
        .used_bytes = LOCKSTEP_USED_BYTES,
        .generation = {.number = 0x0102030405060708u, .incarnation = 0x1112131415161718u},
        .step = 0x2122232425262728u,
        .space = 0x3132333435363738u,
        .slot = 0x41424344u,
        .part = 0x45464748u,
        .chunk = 0x51525354u,
        .credit = 0x55565758u,
        .weight = 0x6162636465666768u,
        .signature = 0x7172737475767778u,
    };
    uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES];
    struct frame_header decoded;
    (void)state;

    frame_encode(&header, bytes);
    assert_memory_equal(bytes, golden, sizeof(golden));
    assert_int_equal(frame_decode(golden, &decoded, NULL), FRAME_OK);
    assert_headers_equal(&header, &decoded);
}

static void test_round_trip(void **state)
{
    uint64_t seed = SEED;
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        const struct frame_header header = random_header(&seed);
        uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES];
        struct frame_header decoded;
        frame_encode(&header, bytes);
        assert_int_equal(frame_decode(bytes, &decoded, NULL), FRAME_OK);
        assert_headers_equal(&header, &decoded);
    }
}

// Frames that a hostile peer would build with care: the checksum is right, one field is not.
static void test_bounds(void **state)
{
    static const struct {
        enum frame_kind kind;
        size_t at;
        bool wide;
        uint32_t value;
        enum frame_status status;
    } cases[] = {
        {FRAME_REDUCE, 4, false, 0, FRAME_INVALID},
        {FRAME_REDUCE, 4, false, FRAME_DIRECT + 1, FRAME_INVALID},
        {FRAME_REDUCE, 5, false, 1, FRAME_INVALID},
        {FRAME_REDUCE, 6, false, DTYPE_LAST + 1, FRAME_INVALID},
        {FRAME_REDUCE, 7, false, 1, FRAME_INVALID},
        {FRAME_REDUCE, 80, false, 1, FRAME_INVALID},
        {FRAME_REDUCE, 91, false, 0x80, FRAME_INVALID},
        {FRAME_REDUCE, 8, true, LOCKSTEP_FRAME_BYTES, FRAME_OK},
        {FRAME_REDUCE, 8, true, LOCKSTEP_FRAME_BYTES + 1, FRAME_TOO_LONG},
        {FRAME_GATHER, 8, true, LOCKSTEP_FRAME_BYTES + 1, FRAME_TOO_LONG},
        {FRAME_BROADCAST, 8, true, LOCKSTEP_FRAME_BYTES + 1, FRAME_TOO_LONG},
        {FRAME_REDUCE, 12, true, LOCKSTEP_USED_BYTES, FRAME_OK},
        {FRAME_REDUCE, 12, true, LOCKSTEP_USED_BYTES + 1, FRAME_TOO_LONG},
        {FRAME_REDUCE, 12, true, UINT32_MAX, FRAME_TOO_LONG},
        {FRAME_HELLO, 8, true, LOCKSTEP_WAVE_BYTES, FRAME_OK},
        {FRAME_HELLO, 8, true, LOCKSTEP_WAVE_BYTES + 1, FRAME_TOO_LONG},
        {FRAME_STEP_HEADER, 8, true, LOCKSTEP_NOTE_BYTES, FRAME_OK},
        {FRAME_STEP_HEADER, 8, true, LOCKSTEP_NOTE_BYTES + 1, FRAME_TOO_LONG},
        {FRAME_WAVE, 8, true, LOCKSTEP_WAVE_BYTES + 1, FRAME_TOO_LONG},
        {FRAME_CREDIT, 8, true, LOCKSTEP_WAVE_BYTES + 1, FRAME_TOO_LONG},
        {FRAME_LEAVE, 8, true, UINT32_MAX, FRAME_TOO_LONG},
        {FRAME_LOST, 8, true, LOCKSTEP_WAVE_BYTES + 1, FRAME_TOO_LONG},
        {FRAME_WAVE, 12, true, 1, FRAME_TOO_LONG},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct frame_header header = {.kind = cases[i].kind, .step = 812};
        const char *detail = NULL;
        struct frame_header decoded;
        uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES];
        frame_encode(&header, bytes);
        if (cases[i].wide)
            put32(bytes + cases[i].at, cases[i].value);
        else
            bytes[cases[i].at] = (uint8_t)cases[i].value;
        forge_checksum(bytes);
        if (frame_decode(bytes, &decoded, &detail) != cases[i].status)
            fail_msg("case %zu: %s", i, detail ? detail : "decoded");
        assert_true((!detail) == (cases[i].status == FRAME_OK));
        assert_int_equal(decoded.step, cases[i].status == FRAME_OK ? 812 : 0);
    }
}

// Any one byte changed in any way is found, because it is within one word of the checksum.
static void test_every_byte_changed(void **state)
{
    uint64_t seed = SEED;
    const struct frame_header header = random_header(&seed);
    uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES];
    struct frame_header decoded;
    (void)state;

    frame_encode(&header, bytes);
    for (size_t at = 0; at < sizeof(bytes); at++) {
        for (unsigned change = 1; change < 256; change++) {
            bytes[at] ^= (uint8_t)change;
            const enum frame_status status = frame_decode(bytes, &decoded, NULL);
            assert_int_equal(status, at < 4 ? FRAME_FOREIGN : FRAME_DAMAGED);
            bytes[at] ^= (uint8_t)change;
        }
    }
    assert_int_equal(frame_decode(bytes, &decoded, NULL), FRAME_OK);
}

// Random headers with a right checksum: what decodes encodes to the same bytes.
static void test_hostile_bytes(void **state)
{
    uint64_t seed = SEED;
    unsigned accepted = 0;
    (void)state;
    for (int round = 0; round < 20 * ROUNDS; round++) {
        const struct frame_header header = random_header(&seed);
        struct frame_header decoded;
        uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES];
        uint8_t again[LOCKSTEP_FRAME_HEADER_BYTES];
        frame_encode(&header, bytes);
        bytes[choice_random(&seed) % sizeof(bytes)] = (uint8_t)choice_random(&seed);
        forge_checksum(bytes);
        if (frame_decode(bytes, &decoded, NULL) != FRAME_OK)
            continue;
        frame_encode(&decoded, again);
        assert_memory_equal(bytes, again, sizeof(bytes));
        accepted++;
    }
    assert_true(accepted > 0);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(frame_kind_name(FRAME_STEP_HEADER), "step_header");
    assert_string_equal(frame_kind_name((enum frame_kind)77), "unknown");
    assert_string_equal(frame_status_name(FRAME_TOO_LONG), "too long");
    assert_int_equal(frame_payload_max((enum frame_kind)0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_bytes),  cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_bounds),        cmocka_unit_test(test_every_byte_changed),
        cmocka_unit_test(test_hostile_bytes), cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
