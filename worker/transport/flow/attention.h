// SPDX-License-Identifier: Apache-2.0
//
// How any thread wakes the thread that drives the transport: by one word and one eventfd. The
// waiting itself is in worker/transport/wait.c, with the proof that no request is missed. Any
// thread may call attention_ask; only the engine thread calls attention_take.

#ifndef WORKER_TRANSPORT_FLOW_ATTENTION_H
#define WORKER_TRANSPORT_FLOW_ATTENTION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

enum attention_state {
    ATTENTION_AWAKE, // No request is pending; the engine runs.
    // The engine is blocked or about to block: a request must write to the descriptor.
    ATTENTION_ASLEEP,
    ATTENTION_ASKED, // A request is pending: attention_ask was called.
    // A request is pending that does not end the engine's sleep: attention_note was called.
    ATTENTION_NOTED,
};

struct attention {
    _Atomic uint32_t word; // enum attention_state
    int descriptor; // An eventfd. Set at open, then constant.
};

// Asks the engine thread to return from transport_progress. Any thread.
static inline void attention_ask(struct attention *attention)
{
    const uint64_t one = 1;
    const uint32_t before =
        atomic_exchange_explicit(&attention->word, ATTENTION_ASKED, memory_order_acq_rel);
    if (before != ATTENTION_ASLEEP && before != ATTENTION_NOTED)
        return;
    const ssize_t written = write(attention->descriptor, &one, sizeof(one));
    (void)written; // The write fails only if the counter is full, which wakes the engine as well.
}

// Asks the engine thread to return from transport_progress as soon as something else ends its
// sleep. Any thread.
static inline void attention_note(struct attention *attention)
{
    uint32_t seen = ATTENTION_ASLEEP;
    uint32_t next = ATTENTION_NOTED;
    while (!atomic_compare_exchange_weak_explicit(&attention->word, &seen, next,
                                                  memory_order_acq_rel, memory_order_relaxed)) {
        if (seen >= ATTENTION_ASKED)
            return;
        next = seen == ATTENTION_ASLEEP ? ATTENTION_NOTED : ATTENTION_ASKED;
    }
}

// Returns true if attention_ask or attention_note was called since the last call of attention_take,
// and clears the request.
static inline bool attention_take(struct attention *attention)
{
    // A request that comes after this load is found before the engine blocks.
    return atomic_load_explicit(&attention->word, memory_order_acquire) >= ATTENTION_ASKED &&
           atomic_exchange_explicit(&attention->word, ATTENTION_AWAKE, memory_order_acq_rel) >=
               ATTENTION_ASKED;
}

#endif
