// SPDX-License-Identifier: Apache-2.0
//
// A short wait for data that a mate is about to write into shared memory. How the engine waits for
// work is in worker/transport/wait.c. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_MOMENT_H
#define WORKER_TRANSPORT_HOST_MOMENT_H

#include <stdbool.h>
#include <stdint.h>

#define MOMENT_LOOKS 64 // Polls before this rank yields or gives up.
#define MOMENT_YIELDS 100 // Most yields in one wait.
#define MOMENT_CROWDED_US 50 // Most time of yielding, where ranks share cores.

struct flows;

// The state of one short wait; call moment_pass between two polls.
struct moment {
    uint32_t looks; // Number of polls since the last yield.
    uint32_t turns; // Number of yields.
    uint64_t end_us;
};

static inline void moment_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

// Pauses or yields between two polls. The flags count only where ranks share cores. patient:
// polling has found work lately. beside: an awaited rank may share this rank's core. Returns false
// if this rank has polled enough and should wait in another way.
bool moment_pass(struct flows *flows, struct moment *moment, bool patient, bool beside);

#endif
