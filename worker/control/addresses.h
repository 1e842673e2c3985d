// SPDX-License-Identifier: Apache-2.0
//
// The addresses at which a worker looks for the coordinator, and what became of the attempts there.
// Control thread; addresses_read any thread.

#ifndef WORKER_CONTROL_ADDRESSES_H
#define WORKER_CONTROL_ADDRESSES_H

#include "protos/limits.h"
#include "worker/control/reach.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text;

struct address {
    char text[LOCKSTEP_ADDRESS_BYTES]; // As the user wrote it.
    char reason[LOCKSTEP_ADDRESS_BYTES]; // Why the last attempt failed; "": none has failed.
    struct reach reach;
    bool rests; // True after a refusal that no attempt can change: none is made here any more.
};

#define ADDRESSES_TELL_MS 1000 // Then the user is told that the coordinator is not reached yet.

struct addresses {
    uint64_t tell_at; // When the user is told; UINT64_MAX: never, or the user was told.
    uint32_t count;
    uint32_t at; // Index of the address that is tried now.
    struct address all[LOCKSTEP_COORDINATORS]; // [count]
};

// Reads a list of addresses (base/parse.h), and clears the rest. The addresses are not checked.
// Returns false if there are too many, or one is too long.
bool addresses_read(struct addresses *addresses, const char *list);
struct address *addresses_now(struct addresses *addresses);
// Stores why the attempt at the present address failed.
void addresses_failed(struct addresses *addresses, const char *reason);
// Goes to the next address that does not rest. With one address this changes nothing.
void addresses_turn(struct addresses *addresses);
// True if all addresses rest.
bool addresses_rest(const struct addresses *addresses);
// True if some address may be tried again.
bool addresses_may_retry(const struct addresses *addresses, uint64_t now_ms, uint64_t deadline_ms);
// True once, soon after the opening: the user must be told that the coordinator is not reached.
// False if at every address one side speaks TLS and the other does not: that ends the stream about
// then.
bool addresses_tells(struct addresses *addresses, uint64_t now_ms);
// Appends every address with the reason why it failed: "a:1: connection refused; b:2: no answer".
void addresses_say(const struct addresses *addresses, struct text *text);

#endif
