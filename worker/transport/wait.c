// SPDX-License-Identifier: Apache-2.0
//
// How the engine waits for work and how it is woken. Engine thread, except transport_wake.
//
// If an exchange is answered within a moment, a sleep and a wake-up cost several times as much as
// the exchange itself. So a wait first polls, and then blocks. It polls without system calls where
// all awaited data comes through shared memory. "Looks" below means one such poll:
//
// - If every rank can have a core, and all awaited data comes through shared memory, it looks for
//   WAIT_ALONE_US. A thread that is woken while another one has its core may be put on the core of
//   the rank that woke it, and stay there for milliseconds. So few waits are to end in a sleep.
// - A rank that has just put a small payload on the board (worker/transport/host/exchange.c) looks
//   for a moment before all that: MOMENT_LOOKS times. Where ranks share cores, it yields instead if
//   a mate that it awaits shares its core.
// - If a small payload may come through a socket, or one that a fast link (WAIT_FAST_BYTES_PER_S)
//   carries in the time of a few wake-ups, it looks for WAIT_SOCKET_US, which is longer than
//   a sleeping peer takes to wake up. With less, one sleep causes the next one: each rank would
//   always find the other one late. After WAIT_SPIN_US, or at once where ranks share cores, it
//   yields the core between looks. If such a yield takes WAIT_HOG_US, a thread that computes had
//   the core, which gives way only to threads that wake up.
// - For larger payloads a wake-up is a small part of the time, and a rank that looks may share the
//   execution units of a core with a peer that copies: there it looks for WAIT_SPIN_US only. But
//   two ranks whose link is as fast as a core copies (WAIT_SWIFT_BYTES_PER_S) look for
//   WAIT_TURN_US, in the same way, for payloads up to WAIT_SWIFT_BYTES.
// - If ranks share cores, it looks WAIT_PAUSES times and then yields between looks. Each of the
//   other ranks may have some hundred KiB to add up before this rank runs again. So it yields for
//   WAIT_MEMORY_US if all awaited data comes through shared memory, else for MOMENT_CROWDED_US. The
//   time is bounded: a rank that yields forever takes every other time slice of the core from
//   threads that compute.
// - A rank stops looking where that never helps (far peers, long waits): each wait that looked in
//   vain costs credit, and each wait whose look found work earns more. Without credit only one wait
//   in `probe` looks; at first `probe` is WAIT_PROBE. A rank that looks uses up its share of the
//   core, and then waits for a whole time slice of the threads that compute. Each such slice
//   doubles `probe`, up to WAIT_PROBE_MOST, and WAIT_HITS_CALM waits whose look found work, without
//   such a slice, set it to WAIT_PROBE again.
//
// No wake-up is missed between the last look and the sleep. worker/link/shm.c proves that for links
// in shared memory, and `attention` works the same way: the waking thread and the engine that goes
// to sleep both do a read-modify-write of one word. If the engine's operation comes first, the
// waking thread reads ATTENTION_ASLEEP and writes to the descriptor. Otherwise the engine reads
// ATTENTION_ASKED and does not sleep, and everything that was written before the request is visible
// to it.

#include "worker/transport/wait.h"

#include "base/clock.h"
#include "worker/transport/deaths.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/form.h"
#include "worker/transport/guests.h"
#include "worker/transport/host/host.h"
#include "worker/transport/host/moment.h"
#include "worker/transport/host/spread.h"
#include "worker/transport/measure.h"
#include "worker/transport/ports.h"
#include "worker/transport/state.h"

#include <sched.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define WAIT_EVENTS 64 // Most events of one epoll_wait.

// How long a wait looks. WAIT_HOG_US: a yield that takes so long has met a thread that computes.
#define WAIT_SPIN_US 10
#define WAIT_ALONE_US 100
#define WAIT_SOCKET_US 120
#define WAIT_TURN_US 300 // Longer than a peer copies and adds up a chunk.
#define WAIT_MEMORY_US 300
#define WAIT_HOG_US 500

// Most bytes of a payload that is small: on any link, on a fast link, on a swift link of two ranks.
#define WAIT_SMALL_BYTES (64 * 1024)
#define WAIT_SMALL_FAST_BYTES (256 * 1024)
#define WAIT_SWIFT_BYTES (8 * 1024 * 1024)
#define WAIT_FAST_BYTES_PER_S UINT64_C(1000000000)
#define WAIT_SWIFT_BYTES_PER_S UINT64_C(2000000000)

// How often a wait looks before it does something dearer.
#define WAIT_PAUSES 2 // Looks before the first yield, where ranks share cores.
#define WAIT_CLOCK_ROUNDS 16 // Looks per reading of the clock, where looks are cheap.
#define WAIT_POLL_ROUNDS 8 // Looks into shared memory per epoll_wait.
#define WAIT_SOCKET_LOOKS 2 // The same for a rank that has only sockets.
#define WAIT_UNPOLLED 32 // Waits without an epoll_wait; then sockets are polled in any case.

// Whether a wait looks at all: a look in vain costs a credit of 1.
#define WAIT_CREDIT_MOST 16 // The credit at first, too.
#define WAIT_CREDIT_HIT 4 // Earned by a look that found work.
#define WAIT_PROBE 16 // Without credit one wait in so many looks.
#define WAIT_PROBE_MOST 4096
#define WAIT_HITS_CALM 4096 // Looks that found work, after which `probe` is WAIT_PROBE again.

// ---- events -------------------------------------------------------------------------------------

static void wait_peer_event(struct peer_link *peer, uint32_t happened)
{
    struct stream *stream = &peer->stream;
    if (!stream->link)
        return;
    if (happened & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        stream->ending = true;
    if (happened & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        stream->readable = true;
    if (happened & (EPOLLOUT | EPOLLHUP | EPOLLERR))
        stream->writable = true;
    // While the link is not ready (TLS handshake), sending may wait for data to arrive: both
    // directions are tried.
    if (stream->link->ops->ready && !stream->link->ops->ready(stream->link))
        stream->readable = stream->writable = true;
    form_peer_ready(peer);
}

static void wait_event(struct transport *transport, const struct epoll_event *event)
{
    struct endpoint *endpoint = event->data.ptr;
    uint64_t drained = 0;
    switch (endpoint->kind) {
    case ENDPOINT_WAKE:
        if (read(transport->flows.attention.descriptor, &drained, sizeof(drained)) < 0)
            drained = 0; // `attention` says whether a thread asked, so a failed read does no harm.
        return;
    case ENDPOINT_LISTENER:
        guests_accept(transport, transport->doors.listener);
        return;
    case ENDPOINT_MATES:
        guests_accept(transport, transport->doors.mates);
        return;
    case ENDPOINT_GUEST:
        guests_ready(transport, (struct guest *)(void *)endpoint);
        return;
    case ENDPOINT_PEER:
        wait_peer_event((struct peer_link *)(void *)endpoint, event->events);
        return;
    case ENDPOINT_PROCESS:
        deaths_event(transport, (struct mate_process *)(void *)endpoint);
        return;
    case ENDPOINT_PORT:
        ports_event(transport, (struct port *)(void *)endpoint);
        return;
    }
}

// Calls epoll_wait and handles its events. True if there was any event.
static bool wait_poll(struct transport *transport, int timeout_ms)
{
    struct epoll_event events[WAIT_EVENTS];
    const int count = epoll_wait(transport->descriptors.epoll, events, WAIT_EVENTS, timeout_ms);
    transport->patience.unpolled = 0;
    for (int i = 0; i < count; i++)
        wait_event(transport, &events[i]);
    return count > 0;
}

// ---- looking ------------------------------------------------------------------------------------

// Looks at `attention` and into shared memory, without a system call. True if there is work to do.
static bool wait_look(struct transport *transport)
{
    bool any = atomic_load_explicit(&transport->flows.attention.word, memory_order_acquire) ==
                   ATTENTION_ASKED ||
               host_pending(&transport->flows);
    for (uint32_t i = 0; i < transport->flows.links.count; i++) {
        struct stream *stream = &transport->flows.links.all[i]->stream;
        if (!stream->link || transport->flows.links.all[i]->lost || !stream->link->ops->pending ||
            !stream->link->ops->pending(stream->link))
            continue;
        stream->readable = true;
        stream->writable = true;
        any = true;
    }
    return any;
}

static bool wait_has_links(const struct transport *transport, bool in_memory)
{
    for (uint32_t i = 0; i < transport->flows.links.count; i++) {
        const struct link *link = transport->flows.links.all[i]->stream.link;
        if (link && (link->ops->pending != NULL) == in_memory)
            return true;
    }
    return false;
}

// True if data may come through sockets.
static bool wait_has_sockets(const struct transport *transport)
{
    return !transport->flows.formed || wait_has_links(transport, false);
}

// Polls where every rank has a core and all awaited data comes through shared memory.
static bool wait_spin_alone(struct transport *transport)
{
    uint64_t end_us = UINT64_MAX; // The clock is first read after WAIT_CLOCK_ROUNDS looks.
    for (uint32_t round = 0;; round++) {
        if (wait_look(transport))
            return true;
        if (round % WAIT_CLOCK_ROUNDS == WAIT_CLOCK_ROUNDS - 1) {
            const uint64_t now_us = clock_now_us();
            if (now_us >= end_us)
                return false;
            if (end_us == UINT64_MAX)
                end_us = now_us + WAIT_ALONE_US;
        }
        moment_pause();
    }
}

// Looks into shared memory `looks` times, then at sockets once: an epoll_wait costs as much as
// several looks.
static bool wait_look_everywhere(struct transport *transport, uint32_t looks)
{
    for (uint32_t i = 0; i < looks; i++) {
        if (wait_look(transport))
            return true;
        moment_pause();
    }
    return wait_poll(transport, 0);
}

// Returns the bytes of the oldest collective in flight; 0: none is, or its elements are in parts.
static uint64_t wait_bytes(const struct transport *transport)
{
    const struct list *first = transport->flows.active.next;
    if (first == &transport->flows.active)
        return 0;
    const struct flow *flow = list_entry(first, struct flow, turn);
    return flow->collective->elements * flow->map.element_bytes;
}

uint64_t wait_socket_us(const struct transport *transport)
{
    const uint64_t bytes = wait_bytes(transport);
    const uint64_t speed = transport->flows.agreed_bytes_per_s;
    if (transport->flows.crowded)
        return MOMENT_CROWDED_US;
    if (bytes <= (speed >= WAIT_FAST_BYTES_PER_S ? WAIT_SMALL_FAST_BYTES : WAIT_SMALL_BYTES))
        return WAIT_SOCKET_US;
    return transport->flows.world.world_size == 2 && speed >= WAIT_SWIFT_BYTES_PER_S &&
                   bytes <= WAIT_SWIFT_BYTES
               ? WAIT_TURN_US
               : WAIT_SPIN_US;
}

static void wait_meet_hog(struct patience *patience)
{
    patience->credit = 0;
    patience->hits = 0;
    if (patience->probe < WAIT_PROBE_MOST)
        patience->probe *= 2;
}

static bool wait_spin_sockets(struct transport *transport)
{
    struct patience *patience = &transport->patience;
    const uint32_t looks = wait_has_links(transport, true) ? WAIT_POLL_ROUNDS : WAIT_SOCKET_LOOKS;
    const uint64_t alone_us = transport->flows.crowded ? 0 : WAIT_SPIN_US;
    const uint64_t most_us = wait_socket_us(transport);
    const uint64_t begin_us = clock_now_us();
    uint64_t now_us = begin_us;
    while (!wait_look_everywhere(transport, looks)) {
        const uint64_t before_us = now_us;
        now_us = clock_now_us();
        if (now_us - before_us >= WAIT_HOG_US) {
            wait_meet_hog(patience);
            return false;
        }
        if (now_us - begin_us >= most_us)
            return false;
        if (now_us - begin_us >= alone_us)
            (void)sched_yield();
    }
    return true;
}

static bool wait_spin_crowded(struct transport *transport)
{
    for (uint32_t i = 0; i < WAIT_PAUSES; i++) {
        if (wait_look(transport))
            return true;
        moment_pause();
    }
    spread_wait(&transport->flows);
    const uint64_t end_us = clock_now_us() + WAIT_MEMORY_US;
    for (uint32_t i = 0; i < MOMENT_YIELDS && clock_now_us() < end_us; i++) {
        (void)sched_yield();
        if (wait_look(transport))
            return true;
    }
    return false;
}

static bool wait_spin_now(struct transport *transport)
{
    if (wait_has_sockets(transport))
        return wait_spin_sockets(transport);
    return transport->flows.crowded ? wait_spin_crowded(transport) : wait_spin_alone(transport);
}

// Polls for a moment, if polling has found work lately.
static bool wait_spin(struct transport *transport)
{
    struct patience *patience = &transport->patience;
    if (patience->credit == 0 && ++patience->waits < patience->probe)
        return false;
    patience->waits = 0;
    const bool found = wait_spin_now(transport);
    if (!found && patience->credit > 0)
        patience->credit--;
    if (found)
        patience->credit = patience->credit + WAIT_CREDIT_HIT < WAIT_CREDIT_MOST
                               ? patience->credit + WAIT_CREDIT_HIT
                               : WAIT_CREDIT_MOST;
    if (found && ++patience->hits >= WAIT_HITS_CALM) {
        patience->probe = WAIT_PROBE;
        patience->hits = 0;
    }
    return found;
}

// ---- blocking -----------------------------------------------------------------------------------

static void wait_links_sleep(struct transport *transport, bool asleep)
{
    for (uint32_t i = 0; i < transport->flows.links.count; i++) {
        struct link *link = transport->flows.links.all[i]->stream.link;
        if (link && link->ops->sleep)
            link->ops->sleep(link, asleep);
    }
}

static void wait_block(struct transport *transport, int timeout_ms)
{
    uint32_t awake = ATTENTION_AWAKE;
    uint32_t asleep = ATTENTION_ASLEEP;
    if (!atomic_compare_exchange_strong_explicit(&transport->flows.attention.word, &awake,
                                                 ATTENTION_ASLEEP, memory_order_acq_rel,
                                                 memory_order_acquire))
        return; // A thread has called attention_ask.
    wait_links_sleep(transport, true);
    atomic_store_explicit(&transport->unawaited_ranks,
                          host_leads(&transport->flows) ? transport->patience.ranks : 0,
                          memory_order_relaxed);
    if (!wait_look(transport))
        (void)wait_poll(transport, timeout_ms);
    wait_links_sleep(transport, false);
    // If the word is ATTENTION_ASKED by now, it keeps that value.
    (void)atomic_compare_exchange_strong_explicit(&transport->flows.attention.word, &asleep,
                                                  ATTENTION_AWAKE, memory_order_acq_rel,
                                                  memory_order_acquire);
}

// Links keep the mark "asleep" until the next wait_block. That costs each peer at most one needless
// bell.
bool wait_leave_alone(struct transport *transport)
{
    wait_links_sleep(transport, true);
    if (!wait_look(transport))
        return true;
    wait_links_sleep(transport, false);
    return false;
}

void wait_for_work(struct transport *transport, int timeout_ms)
{
    const bool awaits = !list_empty(&transport->flows.active) ||
                        !list_empty(&transport->flows.waves.joined) || measure_awaits(transport);
    const bool found = wait_look(transport);
    const bool due = ++transport->patience.unpolled >= WAIT_UNPOLLED;
    if (due || (timeout_ms == 0 && !found))
        (void)wait_poll(transport, 0);
    else if (!found && (!awaits || !wait_spin(transport)))
        wait_block(transport, timeout_ms);
}

// ---- waking -------------------------------------------------------------------------------------

void transport_wake(struct transport *transport)
{
    attention_ask(&transport->flows.attention);
}

void transport_note(struct transport *transport)
{
    attention_note(&transport->flows.attention);
}

bool transport_can_wait(const struct transport *transport, uint64_t begin_us,
                        uint64_t begin_used_us)
{
    const uint32_t ranks = atomic_load_explicit(&transport->unawaited_ranks, memory_order_relaxed);
    return ranks > 0 &&
           wait_cores_are_full(ranks, transport->flows.processors,
                               clock_process_us() - begin_used_us, clock_now_us() - begin_us);
}

// ---- who shares the cores -----------------------------------------------------------------------

// If the configuration does not say which ranks share cores, the ranks of one host do. Returns the
// length of the part of an address that names the host: "tcp:10.0.0.7".
static size_t wait_host_length(const char *address)
{
    const size_t first = strcspn(address, ";");
    size_t length = first;
    while (length > 0 && address[length - 1] != ':')
        length--;
    return length > 0 ? length : first;
}

// Number of ranks on the cores of this rank: world.core_ranks if set, else the ranks that are known
// to be on this host: mates, and neighbours with the same address.
static uint32_t wait_ranks_here(const struct transport *transport)
{
    uint32_t here = 1;
    const size_t length = wait_host_length(transport->doors.address);
    if (transport->kind == TRANSPORT_LOOPBACK)
        return transport->flows.world.world_size;
    if (transport->flows.world.core_ranks > 0)
        return transport->flows.world.core_ranks;
    for (uint32_t i = 0; i < transport->flows.peer_count; i++)
        here += strncmp(transport->flows.peers[i].address, transport->doors.address, length) == 0;
    const uint32_t mates = transport->flows.world.locality.mate_count;
    return mates > here ? mates : here;
}

void wait_prepare(struct transport *transport)
{
    const uint32_t ranks = wait_ranks_here(transport);
    transport->flows.crowded = ranks > transport->flows.processors;
    transport->patience = (struct patience){
        .ranks = ranks,
        .credit = WAIT_CREDIT_MOST,
        .probe = WAIT_PROBE,
    };
}
