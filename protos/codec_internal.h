// SPDX-License-Identifier: Apache-2.0
//
// What the files of the codec share. Nobody else includes this.
//
// codec_up.c, codec_place.c and codec_down.c move fields between the plain structs of types.h and
// the structs that nanopb generates from control.proto; codec_check.c says which plain structs are
// allowed, for both directions; codec.c holds what both directions use and calls nanopb. Generated
// types are only named here, so that this header needs none of nanopb's.

#ifndef PROTOS_CODEC_INTERNAL_H
#define PROTOS_CODEC_INTERNAL_H

#include "protos/codec.h"

struct pb_msgdesc_s;
struct _wire_Await;
struct _wire_AwaitKey;
struct _wire_GenerationId;
struct _wire_LayoutPart;
struct _wire_SlotId;
struct _wire_UpAnswer;
struct _wire_UpBlocked;
struct _wire_UpHeartbeat;
struct _wire_UpReplan;
struct _wire_UpModules;

// The first thing that is wrong with a message. Starts as zeros: nothing is.
struct codec_fault {
    enum codec_status status;
    const char *detail; // A static sentence for people.
};

// Keeps the first fault; later ones change nothing.
void codec_fault_set(struct codec_fault *fault, enum codec_status status, const char *detail);

// Whether a plain struct obeys every bound: both directions ask this, so they cannot differ.
void codec_check_up(const struct up_message *message, struct codec_fault *fault);
void codec_check_down(const struct down_message *message, struct codec_fault *fault);
void codec_check_text(const char *text, size_t bytes, struct codec_fault *fault);

// nanopb. wire is the generated struct that belongs to the descriptor; codec_read wants it zeroed.
enum codec_status codec_write(const struct pb_msgdesc_s *descriptor, const void *wire,
                              uint8_t *bytes, size_t capacity, size_t *size);
void codec_read(const struct pb_msgdesc_s *descriptor, void *wire, const uint8_t *bytes,
                size_t size, struct codec_fault *fault);

// Both arrays have the same size; a string was checked before it goes out. Coming in, a string that
// holds a NUL would be cut there in silence: it is a fault instead.
void codec_text_out(char *wire, const char *text, size_t bytes);
void codec_text_in(char *text, const char *wire, size_t bytes, struct codec_fault *fault);

// Fixed lengths, such as a uuid, are exact.
void codec_bytes_in(uint8_t *to, size_t size, const uint8_t *wire, size_t wire_size,
                    struct codec_fault *fault);

// Of a set: the words up to the last one that is not zero. Returns how many.
uint32_t codec_words_out(uint64_t *wire, const uint64_t *words, uint32_t count);

// The messages that both directions use. An absent generation is "none yet", both zero; an absent
// slot is a fault.
bool codec_generation_out(struct _wire_GenerationId *wire, const struct generation_id *id);
void codec_generation_in(struct generation_id *id, const struct _wire_GenerationId *wire,
                         bool present);
void codec_slot_out(struct _wire_SlotId *wire, const struct slot_id *slot);
void codec_slot_in(struct slot_id *slot, const struct _wire_SlotId *wire, bool present,
                   struct codec_fault *fault);
void codec_layout_out(struct _wire_LayoutPart *wire, const struct layout_part *part);
void codec_layout_in(struct layout_part *part, const struct _wire_LayoutPart *wire);

// codec_place.c. Of a heartbeat: what follows the totals.
void codec_heartbeat_out(struct _wire_UpHeartbeat *wire, const struct up_heartbeat *heartbeat);
void codec_heartbeat_in(struct up_heartbeat *heartbeat, const struct _wire_UpHeartbeat *wire,
                        struct codec_fault *fault);
void codec_blocked_out(struct _wire_UpBlocked *wire, const struct up_blocked *blocked);
void codec_blocked_in(struct up_blocked *blocked, const struct _wire_UpBlocked *wire,
                      struct codec_fault *fault);
void codec_replan_out(struct _wire_UpReplan *wire, const struct up_replan *replan);
void codec_replan_in(struct up_replan *replan, const struct _wire_UpReplan *wire);
void codec_modules_out(struct _wire_UpModules *wire, const struct up_modules *modules);
void codec_modules_in(struct up_modules *modules, const struct _wire_UpModules *wire,
                      struct codec_fault *fault);
void codec_answer_out(struct _wire_UpAnswer *wire, const struct up_answer *answer);
void codec_answer_in(struct up_answer *answer, const struct _wire_UpAnswer *wire,
                     struct codec_fault *fault);

// codec_await.c
void codec_await_keys_out(struct _wire_AwaitKey *wire, const struct await_key *keys,
                          uint32_t count);
void codec_await_keys_in(struct await_key *keys, const struct _wire_AwaitKey *wire, uint32_t count);
bool codec_await_out(struct _wire_Await *wire, const struct await *await);
void codec_await_in(struct await *await, const struct _wire_Await *wire, struct codec_fault *fault);
void codec_check_await_keys(const struct await_key *keys, uint32_t count,
                            struct codec_fault *fault);
void codec_check_await(const struct await *await, struct codec_fault *fault);

#endif
