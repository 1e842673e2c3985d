// SPDX-License-Identifier: Apache-2.0
//
// How far two cores are from each other: the nanoseconds in which a cache line goes from the first
// core of this process to its second one and back, the best of many short spells. On a virtual
// machine that changes while it runs, when its host moves the cores: four times on one where this
// was written. Prints one number; nothing where there is one core only.

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#define SPELLS 100
#define ROUNDS 300

static _Alignas(128) _Atomic(uint32_t) ask;
static _Alignas(128) _Atomic(uint32_t) answer;
static _Alignas(128) _Atomic(uint32_t) over;

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof(set), &set);
}

static void *echo(void *core)
{
    pin(*(int *)core);
    while (!atomic_load_explicit(&over, memory_order_relaxed)) {
        const uint32_t asked = atomic_load(&ask);
        if (asked != atomic_load_explicit(&answer, memory_order_relaxed))
            atomic_store(&answer, asked);
    }
    return NULL;
}

int main(void)
{
    cpu_set_t allowed;
    int cores[2];
    int count = 0;
    pthread_t thread;
    uint64_t best_ns = UINT64_MAX;
    sched_getaffinity(0, sizeof(allowed), &allowed);
    for (int core = 0; core < CPU_SETSIZE && count < 2; core++)
        if (CPU_ISSET(core, &allowed))
            cores[count++] = core;
    if (count < 2)
        return 0;
    pin(cores[0]);
    if (pthread_create(&thread, NULL, echo, &cores[1]) != 0)
        return 1;
    for (int i = 0; i < SPELLS; i++) {
        const uint64_t since_ns = now_ns();
        for (uint32_t round = 0; round < ROUNDS; round++) {
            const uint32_t asked = atomic_load_explicit(&ask, memory_order_relaxed) + 1;
            atomic_store(&ask, asked);
            while (atomic_load(&answer) != asked)
                continue;
        }
        const uint64_t round_ns = (now_ns() - since_ns) / ROUNDS;
        if (round_ns < best_ns)
            best_ns = round_ns;
    }
    atomic_store(&over, 1);
    pthread_join(thread, NULL);
    printf("%llu\n", (unsigned long long)best_ns);
    return 0;
}
