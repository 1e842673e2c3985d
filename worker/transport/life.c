// SPDX-License-Identifier: Apache-2.0
//
// The life of a transport: descriptors, open and close, a generation from its forming to its end.
// Engine thread, but for transport_forked.

#include "worker/transport/life.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/link/loopback.h"
#include "worker/link/tcp.h"
#include "worker/link/unix.h"
#include "worker/transport/device/meet.h"
#include "worker/transport/doors.h"
#include "worker/transport/farewell.h"
#include "worker/transport/flow/flow.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/waves.h"
#include "worker/transport/form.h"
#include "worker/transport/host/host.h"
#include "worker/transport/measure.h"
#include "worker/transport/ring/schedule.h"
#include "worker/transport/wait.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define TRANSPORT_RESERVE_BYTES (64 * 1024 * 1024) // Address space of the scratch reserved.

// ---- descriptors --------------------------------------------------------------------------------

static void transport_register(struct transport *transport, int fd)
{
    for (size_t i = 0; i < TRANSPORT_DESCRIPTORS; i++) {
        int free_place = -1;
        if (atomic_compare_exchange_strong(&transport->descriptors[i], &free_place, fd))
            return;
    }
    assert(false && "more descriptors than peers, guests and four");
}

static void transport_unregister(struct transport *transport, int fd)
{
    for (size_t i = 0; i < TRANSPORT_DESCRIPTORS; i++) {
        int expected = fd;
        if (atomic_compare_exchange_strong(&transport->descriptors[i], &expected, -1))
            return;
    }
}

bool transport_watch(struct transport *transport, int fd, struct endpoint *endpoint, bool link)
{
    struct epoll_event event = {.data.ptr = endpoint};
    event.events = link ? EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET : EPOLLIN;
    transport_register(transport, fd);
    const int added = epoll_ctl(transport->epoll, EPOLL_CTL_ADD, fd, &event);
    if (added < 0)
        (void)doors_lack(transport, errno); // Any other reason: a descriptor of ours was closed.
    return added == 0;
}

void transport_unwatch(struct transport *transport, int fd)
{
    transport_unregister(transport, fd);
    (void)epoll_ctl(transport->epoll, EPOLL_CTL_DEL, fd, NULL);
}

void transport_forked(struct transport *transport)
{
    for (size_t i = 0; i < TRANSPORT_DESCRIPTORS; i++) {
        const int fd = atomic_load(&transport->descriptors[i]);
        if (fd >= 0)
            (void)close(fd);
    }
}

// ---- open and close -----------------------------------------------------------------------------

static uint32_t transport_processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) < 0)
        return 1;
    return (uint32_t)CPU_COUNT(&set);
}

static void transport_init(struct transport *transport, const struct transport_config *config)
{
    transport->kind = config->kind;
    transport->ways = &transport_ways;
    transport->torn_bytes = config->kind == TRANSPORT_LOOPBACK ? config->torn_bytes : 0;
    transport->processors = transport_processors();
    transport->given_latency_ns = config->latency_ns;
    transport->given_bytes_per_s = config->bytes_per_s;
    transport->slot_fill = config->slot_fill;
    transport->encrypts = config->encrypts;
    transport->events = config->events;
    transport->regions = config->regions;
    transport->epoll = -1;
    transport->wake = -1;
    transport->wake_endpoint.kind = ENDPOINT_WAKE;
    transport->listener_endpoint.kind = ENDPOINT_LISTENER;
    transport->mates_endpoint.kind = ENDPOINT_MATES;
    atomic_init(&transport->attention, ATTENTION_AWAKE);
    for (size_t i = 0; i < TRANSPORT_DESCRIPTORS; i++)
        atomic_init(&transport->descriptors[i], -1);
    for (size_t i = 0; i < TRANSPORT_FLOW_BUCKETS; i++)
        list_init(&transport->flows[i]);
    struct list *const lists[] = {&transport->active,     &transport->feed,
                                  &transport->local,      &transport->done,
                                  &transport->mismatched, &transport->waves,
                                  &transport->waves_done, &transport->wave_arrived};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        list_init(lists[i]);
    scratch_init(&transport->chunks, LOCKSTEP_FRAME_BYTES);
    scratch_init(&transport->frames, sizeof(struct out_frame));
    scratch_init(&transport->heads, LOCKSTEP_FRAME_HEADER_BYTES + LOCKSTEP_USED_BYTES);
    scratch_init(&transport->flow_pool, sizeof(struct flow) + transport_room());
    scratch_init(&transport->parkings, sizeof(struct parking));
    scratch_init(&transport->wave_blocks, sizeof(struct wave_block));
    scratch_init(&transport->notes, LOCKSTEP_NOTE_BYTES);
    scratch_init(&transport->wave_states, sizeof(struct wave_state));
    scratch_init(&transport->pairs, pair_bytes);
}

static void transport_fail(char *error, size_t error_bytes, const char *what)
{
    char reason[64];
    struct text text;
    const int number = errno;
    text_init(&text, error, error_bytes);
    text_append(&text, "%s: %s", what, strerror_r(number, reason, sizeof(reason)));
}

// The way in for processes of this host. Without it, as without room in the address, they come by
// the other one.
static void transport_open_mates(struct transport *transport)
{
    char error[TRANSPORT_TEXT_BYTES];
    struct text text;
    struct listener *mates = listener_open_unix(error, sizeof(error));
    if (!mates)
        return;
    text_init(&text, transport->address, sizeof(transport->address));
    if (!text_append(&text, "%s;%s", transport->listener->address, mates->address)) {
        text_copy(transport->address, sizeof(transport->address), transport->listener->address);
        mates->ops->close(mates);
        return;
    }
    transport->mates = mates;
}

static int transport_open_descriptors(struct transport *transport,
                                      const struct transport_config *config, char *error,
                                      size_t error_bytes)
{
    transport->epoll = epoll_create1(EPOLL_CLOEXEC);
    transport->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (transport->epoll < 0 || transport->wake < 0) {
        transport_fail(error, error_bytes, "descriptors for the data plane");
        return -1;
    }
    transport_register(transport, transport->epoll);
    if (!transport_watch(transport, transport->wake, &transport->wake_endpoint, false)) {
        transport_fail(error, error_bytes, "descriptors for the data plane");
        return -1;
    }
    transport->listener =
        config->kind == TRANSPORT_LOOPBACK
            ? listener_open_loopback(transport->torn_bytes, error, error_bytes)
            : listener_open_tcp(config->host ? config->host : "127.0.0.1", config->port_first,
                                config->port_last, error, error_bytes);
    if (!transport->listener)
        return -1;
    text_copy(transport->address, sizeof(transport->address), transport->listener->address);
    if (config->kind == TRANSPORT_TCP && config->shares)
        transport_open_mates(transport);
    if (doors_open(transport))
        return 0;
    transport_fail(error, error_bytes, "descriptors for the data plane");
    return -1;
}

int transport_open(const struct transport_config *config, struct transport **transport, char *error,
                   size_t error_bytes)
{
    struct transport *made = calloc(1, sizeof(*made));
    *transport = NULL;
    if (!made) {
        errno = ENOMEM;
        transport_fail(error, error_bytes, "data plane");
        return -2;
    }
    transport_init(made, config);
    errno = 0;
    if (transport_open_descriptors(made, config, error, error_bytes) < 0) {
        const bool lack = doors_lack(made, errno);
        transport_close(made);
        return lack ? -2 : -1;
    }
    if (devices_open(made, config) < 0) {
        text_copy(error, error_bytes, "no memory for collectives on the device");
        transport_close(made);
        return -2;
    }
    *transport = made;
    return 0;
}

const char *transport_address(const struct transport *transport)
{
    return transport->address;
}

void transport_close(struct transport *transport)
{
    thread_disown(&transport->thread);
    for (uint32_t i = 0; i < transport->peer_count; i++)
        transport_close_stream(&transport->peers[i], false);
    form_forget_guests(transport);
    flow_forget(transport);
    wave_forget(transport);
    measure_forget(transport);
    devices_close(transport);
    transport_close_doors(transport);
    if (transport->wake >= 0)
        (void)close(transport->wake);
    if (transport->epoll >= 0)
        (void)close(transport->epoll);
    struct scratch *const pools[] = {
        &transport->chunks,      &transport->frames,   &transport->heads,
        &transport->flow_pool,   &transport->parkings, &transport->wave_blocks,
        &transport->wave_states, &transport->notes,    &transport->pairs};
    for (size_t i = 0; i < sizeof(pools) / sizeof(pools[0]); i++)
        scratch_fini(pools[i]);
    free(transport);
}

// ---- a generation -------------------------------------------------------------------------------

static void transport_peer_init(struct transport *transport, struct peer_link *peer,
                                const struct peer *from)
{
    memset(peer, 0, offsetof(struct peer_link, stream));
    memset(&peer->stream, 0, offsetof(struct stream, staging));
    list_init(&peer->stream.queue);
    list_init(&peer->stream.taken);
    peer->endpoint.kind = ENDPOINT_PEER;
    peer->transport = transport;
    peer->rank = from->rank;
    peer->connects = transport->world.rank > from->rank;
    peer->pause_ms = 1;
    text_copy(peer->address, sizeof(peer->address), from->address);
}

// What so many collectives in flight can need at most, up to a bound that only very large worlds
// reach.
void transport_reserve(struct transport *transport, uint32_t collectives)
{
    const uint64_t n = transport->world.world_size;
    const uint64_t chunks =
        n * ring_window(transport->world.world_size, transport->world.chunk_bytes);
    const uint64_t most = TRANSPORT_RESERVE_BYTES / transport->chunks.block_bytes;
    const uint64_t wanted = collectives * chunks;
    const uint64_t flows = 4 * (uint64_t)collectives;
    scratch_reserve(&transport->chunks, wanted < most ? wanted : most);
    scratch_reserve(&transport->frames, wanted < most ? 2 * wanted : 2 * most);
    // A unit is in two frames of a step, but for those at the edges of chunks.
    scratch_reserve(&transport->heads, 2 * LOCKSTEP_MAX_PARAMETERS / (8 * STREAM_USED_BYTES));
    scratch_reserve(&transport->flow_pool, flows);
    scratch_reserve(&transport->parkings, flows);
    scratch_reserve(&transport->pairs, collectives);
    scratch_reserve(&transport->wave_blocks, LOCKSTEP_EARLY_WAVES / 4);
    scratch_reserve(&transport->wave_states, LOCKSTEP_WINDOW);
    scratch_reserve(&transport->notes, LOCKSTEP_EARLY_HEADERS);
}

static void transport_form_hosts(struct transport *transport)
{
    const struct locality *locality = &transport->world.locality;
    transport->hosts = (struct ring_group){.size = 0};
    if (locality->hosts < 2 || locality->local >= locality->rings)
        return;
    transport->hosts =
        (struct ring_group){.rank = locality->host,
                            .size = locality->hosts,
                            .successor = transport_peer(transport, locality->successor),
                            .predecessor = transport_peer(transport, locality->predecessor)};
}

int transport_form(struct transport *transport, const struct transport_world *world)
{
    thread_own(&transport->thread);
    assert(!transport->has_world);
    assert(world->chunk_bytes >= 8 && world->chunk_bytes % 8 == 0 &&
           world->chunk_bytes <= LOCKSTEP_FRAME_BYTES);
    if (world->peer_count > LOCKSTEP_MAX_NEIGHBOURS)
        return -1;
    transport->world = *world;
    transport->world.peers = NULL;
    transport->peer_count = world->peer_count;
    for (uint32_t i = 0; i < world->peer_count; i++)
        transport_peer_init(transport, &transport->peers[i], &world->peers[i]);
    const uint32_t n = world->world_size;
    transport->ring =
        (struct ring_group){.rank = world->rank,
                            .size = n,
                            .successor = transport_peer(transport, (world->rank + 1) % n),
                            .predecessor = transport_peer(transport, (world->rank + n - 1) % n)};
    transport_form_hosts(transport);
    if (n > 1 && (!transport->ring.successor || !transport->ring.predecessor))
        return -1;
    if (transport->chunks.block_bytes != (world->chunk_bytes + 63) / 64 * 64) {
        scratch_fini(&transport->chunks);
        scratch_init(&transport->chunks, world->chunk_bytes);
    }
    if (n > 1)
        transport_reserve(transport, LOCKSTEP_WINDOW);
    if (measure_form(transport) < 0 || shared_form(transport) < 0)
        return -1;
    transport->has_world = true;
    transport->formed = false;
    transport->formed_reported = false;
    transport->form_failed = false;
    transport->form_differs = false;
    transport->lack = 0;
    transport->form_deadline_ms = clock_now_ms() + world->form_timeout_ms;
    devices_form(transport);
    wait_prepare(transport);
    return 0;
}

void transport_close_stream(struct peer_link *peer, bool reset)
{
    struct transport *transport = peer->transport;
    if (!peer->stream.link)
        return;
    transport_unwatch(transport, peer->stream.link->fd);
    stream_close(&peer->stream, reset);
    transport->totals.bytes_sent += peer->stream.bytes_sent;
    transport->totals.bytes_received += peer->stream.bytes_received;
    transport->totals.frames_sent += peer->stream.frames_sent;
}

static void transport_forget(struct transport *transport)
{
    flow_forget(transport);
    wave_forget(transport);
    measure_forget(transport);
    farewell_forget(transport);
    transport->header_count = 0;
    transport->header_sent = 0;
    transport->header_received = 0;
    transport->peer_count = 0;
    transport->ring = transport->hosts = (struct ring_group){.size = 0};
    transport->has_world = false;
    transport->formed = false;
    transport->form_failed = false;
}

void transport_abandon(struct transport *transport)
{
    thread_assert(&transport->thread);
    for (uint32_t i = 0; i < transport->peer_count; i++)
        transport_close_stream(&transport->peers[i], true);
    devices_forget(transport, false);
    transport_forget(transport);
}

// ---- the end ------------------------------------------------------------------------------------

// Sends, drops what arrives, ends its direction when all is sent. True: the link is at its end.
static bool transport_part(struct peer_link *peer)
{
    struct stream *stream = &peer->stream;
    if (!stream->link)
        return true;
    stream_flush(stream);
    if (stream_idle(stream) && peer->state == PEER_PROVEN) {
        stream->link->ops->shut(stream->link);
        peer->state = PEER_GONE;
    }
    return stream->readable && stream_discard(stream) == STREAM_ENDED;
}

// A connection that is closed with unread bytes in it is reset, and a reset can overtake what the
// peer has not read. So the links end when the peers have ended theirs, or when the time is over.
static void transport_leave_links(struct transport *transport, uint64_t linger_ms)
{
    const uint64_t deadline_ms = clock_now_ms() + linger_ms;
    for (uint32_t i = 0; i < transport->peer_count; i++) {
        if (transport->peers[i].state == PEER_PROVEN)
            farewell_goodbye(&transport->peers[i]);
        else
            transport_close_stream(&transport->peers[i], true);
        if (!transport->peers[i].stream.link)
            transport->peers[i].state = PEER_GONE;
    }
    for (;;) {
        bool open = false;
        for (uint32_t i = 0; i < transport->peer_count; i++) {
            if (transport_part(&transport->peers[i]))
                transport_close_stream(&transport->peers[i], false);
            else
                open = true;
        }
        const uint64_t now_ms = clock_now_ms();
        if (!open || now_ms >= deadline_ms)
            break;
        const uint64_t left_ms = deadline_ms - now_ms;
        wait_for_work(transport, left_ms > 1000 ? 1000 : (int)left_ms);
        (void)wait_asked(transport);
    }
    for (uint32_t i = 0; i < transport->peer_count; i++)
        transport_close_stream(&transport->peers[i], false);
}

void transport_leave(struct transport *transport, uint64_t linger_ms)
{
    thread_assert(&transport->thread);
    transport_leave_links(transport, linger_ms);
    devices_forget(transport, true);
    transport_forget(transport);
}

void transport_retreat(struct transport *transport, uint64_t linger_ms)
{
    thread_assert(&transport->thread);
    transport_leave_links(transport, linger_ms);
    devices_forget(transport, false);
    transport_forget(transport);
}
