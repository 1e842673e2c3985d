// SPDX-License-Identifier: Apache-2.0
//
// Frame headers to bytes and back. Pure functions, any thread.
//
// The wire, byte by byte:
//
//    0 magic       4 kind  5 flags  6 dtype  7 zero    8 payload_bytes  12 used_bytes
//   16 generation.number                              24 generation.incarnation
//   32 step                                           40 space
//   48 slot       52 part                             56 chunk          60 credit
//   64 weight                                         72 signature
//   80 zeros                                          92 checksum of bytes 0 to 91

#include "protos/frame.h"

#include <stddef.h>
#include <string.h>

enum frame_offset {
    AT_MAGIC = 0,
    AT_KIND = 4,
    AT_FLAGS = 5,
    AT_DTYPE = 6,
    AT_ZERO = 7,
    AT_PAYLOAD_BYTES = 8,
    AT_USED_BYTES = 12,
    AT_NUMBER = 16,
    AT_INCARNATION = 24,
    AT_STEP = 32,
    AT_SPACE = 40,
    AT_SLOT = 48,
    AT_PART = 52,
    AT_CHUNK = 56,
    AT_CREDIT = 60,
    AT_WEIGHT = 64,
    AT_SIGNATURE = 72,
    AT_ZEROS = 80,
    AT_CHECKSUM = 92,
};

static_assert(AT_CHECKSUM + 4 == LOCKSTEP_FRAME_HEADER_BYTES, "the checksum comes last");
static_assert(AT_CHECKSUM % 4 == 0, "the checksum is over whole words");

static uint32_t frame_get32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

static uint64_t frame_get64(const uint8_t *bytes)
{
    return (uint64_t)frame_get32(bytes) | (uint64_t)frame_get32(bytes + 4) << 32;
}

static void frame_put32(uint8_t *bytes, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
}

static void frame_put64(uint8_t *bytes, uint64_t value)
{
    frame_put32(bytes, (uint32_t)value);
    frame_put32(bytes + 4, (uint32_t)(value >> 32));
}

// FNV-1a over little-endian words instead of bytes, with a shift that also spreads the high bits.
// Each round is a bijection of the state and of the word, so the checksum finds any damage that is
// within one word.
static uint32_t frame_checksum(const uint8_t *bytes)
{
    uint32_t hash = 2166136261u;
    for (size_t at = 0; at < AT_CHECKSUM; at += 4) {
        hash = (hash ^ frame_get32(bytes + at)) * 16777619u;
        hash ^= hash >> 15;
    }
    return hash;
}

const char *frame_status_name(enum frame_status status)
{
    switch (status) {
    case FRAME_OK:
        return "ok";
    case FRAME_FOREIGN:
        return "foreign";
    case FRAME_DAMAGED:
        return "damaged";
    case FRAME_INVALID:
        return "invalid";
    case FRAME_TOO_LONG:
        return "too long";
    }
    return "unknown";
}

const char *frame_kind_name(enum frame_kind kind)
{
    switch (kind) {
    case FRAME_HELLO:
        return "hello";
    case FRAME_STEP_HEADER:
        return "step_header";
    case FRAME_REDUCE:
        return "reduce";
    case FRAME_GATHER:
        return "gather";
    case FRAME_BROADCAST:
        return "broadcast";
    case FRAME_WAVE:
        return "wave";
    case FRAME_CREDIT:
        return "credit";
    case FRAME_LEAVE:
        return "leave";
    case FRAME_PAIR:
        return "pair";
    case FRAME_MEASURE:
        return "measure";
    case FRAME_RUN:
        return "run";
    case FRAME_CHALLENGE:
        return "challenge";
    case FRAME_WELCOME:
        return "welcome";
    case FRAME_LOST:
        return "lost";
    case FRAME_DIRECT:
        return "direct";
    }
    return "unknown";
}

static bool frame_carries_tensor(enum frame_kind kind)
{
    return kind == FRAME_REDUCE || kind == FRAME_GATHER || kind == FRAME_BROADCAST ||
           kind == FRAME_PAIR || kind == FRAME_MEASURE || kind == FRAME_DIRECT;
}

uint32_t frame_payload_max(enum frame_kind kind)
{
    if (kind < FRAME_HELLO || kind > FRAME_DIRECT)
        return 0;
    if (kind == FRAME_STEP_HEADER)
        return LOCKSTEP_NOTE_BYTES;
    return frame_carries_tensor(kind) ? LOCKSTEP_FRAME_BYTES : LOCKSTEP_WAVE_BYTES;
}

static enum frame_status frame_check(const struct frame_header *header, const char **detail)
{
    if (header->kind < FRAME_HELLO || header->kind > FRAME_DIRECT) {
        *detail = "the kind of the frame is unknown";
        return FRAME_INVALID;
    }
    if ((header->flags & ~FRAME_FLAGS) != 0) {
        *detail = "a flag of the frame is unknown";
        return FRAME_INVALID;
    }
    if ((uint32_t)header->dtype > DTYPE_LAST) {
        *detail = "the dtype of the frame is unknown";
        return FRAME_INVALID;
    }
    if (header->payload_bytes > frame_payload_max(header->kind)) {
        *detail = "the payload is above what this kind of frame may carry";
        return FRAME_TOO_LONG;
    }
    if (header->used_bytes > (frame_carries_tensor(header->kind) ? LOCKSTEP_USED_BYTES : 0)) {
        *detail = "the used bits are above what this kind of frame may carry";
        return FRAME_TOO_LONG;
    }
    return FRAME_OK;
}

void frame_encode(const struct frame_header *header, uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES])
{
    const char *detail = NULL;
    const enum frame_status status = frame_check(header, &detail);
    assert(status == FRAME_OK);
    (void)status;

    memset(bytes, 0, LOCKSTEP_FRAME_HEADER_BYTES);
    frame_put32(bytes + AT_MAGIC, FRAME_MAGIC);
    bytes[AT_KIND] = (uint8_t)header->kind;
    bytes[AT_FLAGS] = header->flags;
    bytes[AT_DTYPE] = (uint8_t)header->dtype;
    frame_put32(bytes + AT_PAYLOAD_BYTES, header->payload_bytes);
    frame_put32(bytes + AT_USED_BYTES, header->used_bytes);
    frame_put64(bytes + AT_NUMBER, header->generation.number);
    frame_put64(bytes + AT_INCARNATION, header->generation.incarnation);
    frame_put64(bytes + AT_STEP, header->step);
    frame_put64(bytes + AT_SPACE, header->space);
    frame_put32(bytes + AT_SLOT, header->slot);
    frame_put32(bytes + AT_PART, header->part);
    frame_put32(bytes + AT_CHUNK, header->chunk);
    frame_put32(bytes + AT_CREDIT, header->credit);
    frame_put64(bytes + AT_WEIGHT, header->weight);
    frame_put64(bytes + AT_SIGNATURE, header->signature);
    frame_put32(bytes + AT_CHECKSUM, frame_checksum(bytes));
}

static void frame_read(const uint8_t *bytes, struct frame_header *header)
{
    header->kind = (enum frame_kind)bytes[AT_KIND];
    header->flags = bytes[AT_FLAGS];
    header->dtype = (enum dtype)bytes[AT_DTYPE];
    header->payload_bytes = frame_get32(bytes + AT_PAYLOAD_BYTES);
    header->used_bytes = frame_get32(bytes + AT_USED_BYTES);
    header->generation.number = frame_get64(bytes + AT_NUMBER);
    header->generation.incarnation = frame_get64(bytes + AT_INCARNATION);
    header->step = frame_get64(bytes + AT_STEP);
    header->space = frame_get64(bytes + AT_SPACE);
    header->slot = frame_get32(bytes + AT_SLOT);
    header->part = frame_get32(bytes + AT_PART);
    header->chunk = frame_get32(bytes + AT_CHUNK);
    header->credit = frame_get32(bytes + AT_CREDIT);
    header->weight = frame_get64(bytes + AT_WEIGHT);
    header->signature = frame_get64(bytes + AT_SIGNATURE);
}

static bool frame_zeros(const uint8_t *bytes)
{
    uint8_t any = bytes[AT_ZERO];
    for (size_t at = AT_ZEROS; at < AT_CHECKSUM; at++)
        any |= bytes[at];
    return any == 0;
}

static enum frame_status frame_parse(const uint8_t *bytes, struct frame_header *header,
                                     const char **detail)
{
    if (frame_get32(bytes + AT_MAGIC) != FRAME_MAGIC) {
        *detail = "the bytes are not a frame of this protocol";
        return FRAME_FOREIGN;
    }
    if (frame_get32(bytes + AT_CHECKSUM) != frame_checksum(bytes)) {
        *detail = "the checksum of the frame header is wrong";
        return FRAME_DAMAGED;
    }
    if (!frame_zeros(bytes)) {
        *detail = "a reserved byte of the frame header is not zero";
        return FRAME_INVALID;
    }
    frame_read(bytes, header);
    return frame_check(header, detail);
}

enum frame_status frame_decode(const uint8_t bytes[LOCKSTEP_FRAME_HEADER_BYTES],
                               struct frame_header *header, const char **detail)
{
    const char *why = NULL;
    memset(header, 0, sizeof(*header));
    const enum frame_status status = frame_parse(bytes, header, &why);
    if (status == FRAME_OK)
        return FRAME_OK;
    memset(header, 0, sizeof(*header));
    if (detail)
        *detail = why;
    return status;
}
