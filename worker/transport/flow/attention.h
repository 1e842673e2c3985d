// SPDX-License-Identifier: Apache-2.0
//
// How any thread wakes the thread that drives the transport: one word and one descriptor. It is not
// the waiting itself, which is in worker/transport/wait.c with the proof that no request is missed.
// Any thread asks; the engine thread takes.

#ifndef WORKER_TRANSPORT_FLOW_ATTENTION_H
#define WORKER_TRANSPORT_FLOW_ATTENTION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

enum attention_state {
    ATTENTION_AWAKE, // No thread asks for anything.
    ATTENTION_ASLEEP, // The engine is blocked or about to be: a write to the descriptor is needed.
    ATTENTION_ASKED, // attention_ask was called.
};

struct attention {
    _Atomic uint32_t word; // enum attention_state
    int descriptor; // An eventfd. Set at open, then constant.
};

// Asks the engine thread to look. Any thread.
static inline void attention_ask(struct attention *attention)
{
    const uint64_t one = 1;
    if (atomic_exchange_explicit(&attention->word, ATTENTION_ASKED, memory_order_acq_rel) !=
        ATTENTION_ASLEEP)
        return;
    const ssize_t written = write(attention->descriptor, &one, sizeof(one));
    (void)written; // A full counter wakes as well.
}

// Returns true if attention_ask was called since the last time, and forgets it.
static inline bool attention_take(struct attention *attention)
{
    // A request that this look misses is found before the next sleep.
    return atomic_load_explicit(&attention->word, memory_order_acquire) == ATTENTION_ASKED &&
           atomic_exchange_explicit(&attention->word, ATTENTION_AWAKE, memory_order_acq_rel) ==
               ATTENTION_ASKED;
}

#endif
