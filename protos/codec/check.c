// SPDX-License-Identifier: Apache-2.0
//
// Checks of the pieces that messages of both directions are made of; check.h has the contract.
// Pure. Any thread.

#include "protos/codec/check.h"

#include "protos/codec/codec.h"
#include "protos/codec/internal.h"

#include "base/utf8.h"

#include <string.h>

void codec_check_text(const char *text, size_t bytes, struct codec_fault *fault)
{
    const char *end = memchr(text, '\0', bytes);
    if (!end) {
        codec_fault_set(fault, CODEC_TOO_LONG, "a string has no end within its bound");
        return;
    }
    const size_t length = (size_t)(end - text);
    if (!utf8_valid(text, length))
        codec_fault_set(fault, CODEC_INVALID, "a string is not UTF-8");
}

void codec_check_number(uint64_t value, uint64_t max, const char *detail, struct codec_fault *fault)
{
    if (value > max)
        codec_fault_set(fault, CODEC_INVALID, detail);
}

void codec_check_count(uint32_t count, uint32_t max, const char *detail, struct codec_fault *fault)
{
    if (count > max)
        codec_fault_set(fault, CODEC_TOO_LONG, detail);
}

void codec_check_rank(uint32_t rank, struct codec_fault *fault)
{
    codec_check_number(rank, LOCKSTEP_MAX_WORLD - 1, "a rank is above LOCKSTEP_MAX_WORLD", fault);
}

void codec_check_dtype(enum dtype dtype, struct codec_fault *fault)
{
    codec_check_number((uint32_t)dtype, DTYPE_LAST, "a dtype is unknown", fault);
}

void codec_check_halt_kind(enum halt_kind kind, struct codec_fault *fault)
{
    if (kind == HALT_NONE || (uint32_t)kind > HALT_LIMIT)
        codec_fault_set(fault, CODEC_INVALID, "the kind of a halt is missing or unknown");
}

void codec_check_algorithm(uint32_t algorithm, struct codec_fault *fault)
{
    codec_check_number(algorithm, ALGORITHM_BY_SIZE, "an algorithm is unknown", fault);
}

void codec_check_module(uint32_t module, struct codec_fault *fault)
{
    codec_check_number(module, LOCKSTEP_MAX_MODULES - 1, "a module is above LOCKSTEP_MAX_MODULES",
                       fault);
}

void codec_check_call(uint32_t call, struct codec_fault *fault)
{
    codec_check_number(call, LOCKSTEP_MAX_CALLS - 1, "a call is above LOCKSTEP_MAX_CALLS", fault);
}

void codec_check_call_id(const struct call_id *id, struct codec_fault *fault)
{
    codec_check_module(id->module, fault);
    codec_check_call(id->call, fault);
}

void codec_check_slot(const struct slot_id *slot, struct codec_fault *fault)
{
    codec_check_module(slot->module, fault);
    codec_check_call(slot->call, fault);
    codec_check_number(slot->bucket, LOCKSTEP_MAX_BUCKETS - 1,
                       "a bucket is above LOCKSTEP_MAX_BUCKETS", fault);
}

void codec_check_part(uint32_t first, uint32_t count, uint32_t total, const char *detail,
                      struct codec_fault *fault)
{
    codec_check_number((uint64_t)first + count, total, detail, fault);
}

void codec_check_layout_part(const struct layout_part *part, struct codec_fault *fault)
{
    codec_check_module(part->module, fault);
    codec_check_count(part->count, LOCKSTEP_LAYOUT_PART, "too many layout words in a part", fault);
    codec_check_number(part->total, LOCKSTEP_MAX_LAYOUT_WORDS,
                       "a layout is above LOCKSTEP_MAX_LAYOUT_WORDS", fault);
    codec_check_part(part->first, part->count, part->total, "a part lies outside its layout",
                     fault);
}
