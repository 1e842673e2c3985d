// SPDX-License-Identifier: Apache-2.0
//
// struct await (the thing that a blocked trainer waits for): conversion between types.h and the
// generated structs, and the checks of its bounds. No state. Any thread.

#include "protos/codec/await.h"

#include "protos/codec/check.h"
#include "protos/codec/codec.h"
#include "protos/codec/internal.h"

#include "protos/control.pb.h"

#include <string.h>

static_assert(sizeof(((struct await *)NULL)->name) == sizeof(((wire_Await *)NULL)->name),
              "both names have the same bytes");
static_assert(sizeof(((struct await *)NULL)->detail) == sizeof(((wire_Await *)NULL)->detail),
              "both details have the same bytes");
static_assert(sizeof(((struct await *)NULL)->members) == sizeof(((wire_Await *)NULL)->members),
              "both sets of members have the same words");

void codec_await_keys_out(struct _wire_AwaitKey *wire, const struct await_key *keys, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        wire[i].kind = (uint8_t)keys[i].kind;
        wire[i].space = keys[i].space;
        wire[i].number = keys[i].number;
    }
}

void codec_await_keys_in(struct await_key *keys, const struct _wire_AwaitKey *wire, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        keys[i].kind = (enum await_kind)wire[i].kind;
        keys[i].space = wire[i].space;
        keys[i].number = wire[i].number;
    }
}

// Returns true if the trainer is blocked: only then the message contains the await.
bool codec_await_out(struct _wire_Await *wire, const struct await *await)
{
    wire->has_key = true;
    codec_await_keys_out(&wire->key, &await->key, 1);
    wire->function = (wire_ApiFunction)await->function;
    wire->module = await->module;
    wire->has_root = await->rooted;
    wire->root = await->root;
    wire->step = await->step;
    wire->open = await->open;
    codec_text_out(wire->name, await->name, sizeof(wire->name));
    wire->lacks_count = (pb_size_t)await->lack_count;
    codec_await_keys_out(wire->lacks, await->lacks, await->lack_count);
    wire->members_count = 0;
    for (uint32_t i = 0; i < LOCKSTEP_RANK_WORDS; i++) {
        wire->members[i] = await->members[i];
        if (await->members[i] != 0)
            wire->members_count = (pb_size_t)(i + 1);
    }
    codec_text_out(wire->detail, await->detail, sizeof(wire->detail));
    return await->key.kind != AWAIT_NONE;
}

void codec_await_in(struct await *await, const struct _wire_Await *wire, struct codec_fault *fault)
{
    codec_await_keys_in(&await->key, &wire->key, 1);
    if (!wire->has_key || await->key.kind == AWAIT_NONE)
        codec_fault_set(fault, CODEC_INVALID, "a blocked worker does not say what it waits for");
    await->function = (enum api_function)wire->function;
    await->module = wire->module;
    await->rooted = wire->has_root;
    await->root = wire->root;
    await->step = wire->step;
    await->open = wire->open;
    codec_text_in(await->name, wire->name, sizeof(await->name), fault);
    await->lack_count = wire->lacks_count;
    codec_await_keys_in(await->lacks, wire->lacks, wire->lacks_count);
    memset(await->members, 0, sizeof(await->members));
    memcpy(await->members, wire->members, wire->members_count * sizeof(wire->members[0]));
    codec_text_in(await->detail, wire->detail, sizeof(await->detail), fault);
}

void codec_check_await_keys(const struct await_key *keys, uint32_t count, struct codec_fault *fault)
{
    if (count > LOCKSTEP_MAX_AWAITED)
        codec_fault_set(fault, CODEC_TOO_LONG, "too many things are waited for");
    for (uint32_t i = 0; i < count && fault->status == CODEC_OK; i++) {
        if (keys[i].kind == AWAIT_NONE || (uint32_t)keys[i].kind > AWAIT_CALL)
            codec_fault_set(fault, CODEC_INVALID, "what is waited for is unknown");
    }
}

void codec_check_await(const struct await *await, struct codec_fault *fault)
{
    if (await->key.kind == AWAIT_NONE)
        return;
    codec_check_await_keys(&await->key, 1, fault);
    codec_check_await_keys(await->lacks, await->lack_count, fault);
    codec_check_text(await->name, sizeof(await->name), fault);
    codec_check_text(await->detail, sizeof(await->detail), fault);
    if ((uint32_t)await->function > API_GROUP_CREATE)
        codec_fault_set(fault, CODEC_INVALID, "a function of the library is unknown");
    if (await->module > LOCKSTEP_MAX_MODULES)
        codec_fault_set(fault, CODEC_INVALID, "a module is above LOCKSTEP_MAX_MODULES");
    if (await->root >= LOCKSTEP_MAX_WORLD)
        codec_fault_set(fault, CODEC_INVALID, "a rank is above LOCKSTEP_MAX_WORLD");
}
