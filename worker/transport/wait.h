// SPDX-License-Identifier: Apache-2.0
//
// How the engine waits for work, and how it is woken. Engine thread, except transport_wake.

#ifndef WORKER_TRANSPORT_WAIT_H
#define WORKER_TRANSPORT_WAIT_H

#include <stdbool.h>
#include <stdint.h>

struct transport;

// How long the engine polls before it blocks; see worker/transport/wait.c.
struct patience {
    // Grows when polling found work, shrinks when it did not. 0: most waits do not poll.
    uint32_t credit;
    uint32_t waits; // Number of waits since the last one that polled.
    uint32_t probe; // Without credit one wait in `probe` polls.
    // Waits in which polling found work, since a computing thread last took the core.
    uint32_t hits;
    uint32_t unpolled; // Number of waits since the last epoll_wait.
    uint32_t ranks; // Number of ranks on the cores of this rank.
};

// Called when the generation forms: decides how to poll from the number of ranks that share this
// rank's cores.
void wait_prepare(struct transport *transport);
// How long a wait looks for data that may come through a socket, before it blocks.
uint64_t wait_socket_us(const struct transport *transport);
// Waits until there may be work, at most timeout_ms (-1: no bound).
void wait_for_work(struct transport *transport, int timeout_ms);
// Called before no thread drives for a while: asks peers in shared memory to ring the bell when
// they write. False: there is work to do now.
bool wait_leave_alone(struct transport *transport);
void transport_wake(struct transport *transport); // Makes transport_progress return. Any thread.
// Makes transport_progress return as soon as something else ends its sleep. Any thread.
void transport_note(struct transport *transport);
// True if the ranks leave less than half of a core free. Each of them uses used_us of processor
// time in elapsed_us.
static inline bool wait_cores_are_full(uint64_t ranks, uint64_t processors, uint64_t used_us,
                                       uint64_t elapsed_us)
{
    return 2 * ranks * used_us > (2 * processors - 1) * elapsed_us;
}
// True if a launch of this rank can wait: all ranks share memory, the engine thread has seen no
// mate that has launched more than this rank, and since the given moment the cores were full.
// begin_us: by clock_now_us. begin_used_us: by clock_process_us. Any thread.
bool transport_can_wait(const struct transport *transport, uint64_t begin_us,
                        uint64_t begin_used_us);

#endif
