// SPDX-License-Identifier: Apache-2.0
//
// A short wait for something that a mate is about to write into memory. It is not how the engine
// waits for work, which is in worker/transport/wait.c. Engine thread.

#ifndef WORKER_TRANSPORT_HOST_MOMENT_H
#define WORKER_TRANSPORT_HOST_MOMENT_H

#include <stdbool.h>
#include <stdint.h>

#define MOMENT_LOOKS 64 // Looks before a wait.
#define MOMENT_YIELDS 100 // How often others are let run.
#define MOMENT_CROWDED_US 50 // How long they are, where ranks share cores.

struct flows;

// Between two looks into memory for something that is expected at once.
struct moment {
    uint32_t looks; // Since others were let run.
    uint32_t turns; // How often they were.
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

// Lets a moment pass. patient: where ranks share cores, looking has helped lately. beside: there,
// it comes from a rank that may share the core of this one. False: it has looked often enough, and
// is to wait in another way.
bool moment_pass(struct flows *flows, struct moment *moment, bool patient, bool beside);

#endif
