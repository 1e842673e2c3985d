// SPDX-License-Identifier: Apache-2.0
//
// struct await (the thing that a blocked trainer waits for): conversion to and from the generated
// structs, and the checks of its bounds. Any thread.

#ifndef LOCKSTEP_PROTOS_CODEC_AWAIT_H
#define LOCKSTEP_PROTOS_CODEC_AWAIT_H

#include <stdbool.h>
#include <stdint.h>

struct _wire_Await;
struct _wire_AwaitKey;
struct await;
struct await_key;
struct codec_fault;

void codec_await_keys_out(struct _wire_AwaitKey *wire, const struct await_key *keys,
                          uint32_t count);
void codec_await_keys_in(struct await_key *keys, const struct _wire_AwaitKey *wire, uint32_t count);
bool codec_await_out(struct _wire_Await *wire, const struct await *await);
void codec_await_in(struct await *await, const struct _wire_Await *wire, struct codec_fault *fault);
void codec_check_await_keys(const struct await_key *keys, uint32_t count,
                            struct codec_fault *fault);
void codec_check_await(const struct await *await, struct codec_fault *fault);

#endif
