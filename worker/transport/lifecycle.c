// SPDX-License-Identifier: Apache-2.0
//
// The life of a transport: open and close, and a generation from its forming to its end. Engine
// thread, except functions that lifecycle.h marks "any thread".

#include "worker/transport/lifecycle.h"

#include "base/clock.h"
#include "base/text.h"
#include "worker/link/loopback.h"
#include "worker/link/tcp.h"
#include "worker/link/unix.h"
#include "worker/transport/deaths.h"
#include "worker/transport/descriptors.h"
#include "worker/transport/device/devices.h"
#include "worker/transport/device/rendezvous.h"
#include "worker/transport/device/teardown.h"
#include "worker/transport/doors.h"
#include "worker/transport/farewell.h"
#include "worker/transport/flow/flow.h"
#include "worker/transport/flow/flows.h"
#include "worker/transport/flow/waves.h"
#include "worker/transport/guests.h"
#include "worker/transport/headers.h"
#include "worker/transport/host/setup.h"
#include "worker/transport/measure.h"
#include "worker/transport/ports.h"
#include "worker/transport/state.h"
#include "worker/transport/transport.h"
#include "worker/transport/wait.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

// How often a rank that leaves looks whether its peers have taken bytes.
#define LEAVE_LOOK_MS 200
#define LEAVE_ROUND_TRIPS 4

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
    transport->torn_bytes = config->kind == TRANSPORT_LOOPBACK ? config->torn_bytes : 0;
    transport->flows.processors = transport_processors();
    transport->measure.given_latency_ns = config->latency_ns;
    transport->measure.given_bytes_per_s = config->bytes_per_s;
    transport->flows.slot_fill = config->slot_fill;
    transport->encrypts = config->encrypts;
    transport->flows.events = config->events;
    transport->flows.regions = config->regions;
    transport->flows.recovers = config->recovers;
    transport->flows.fence_ms = config->fence_ms;
    transport->descriptors.epoll = -1;
    transport->flows.attention.descriptor = -1;
    transport->descriptors.wake_endpoint.kind = ENDPOINT_WAKE;
    transport->doors.listener_endpoint.kind = ENDPOINT_LISTENER;
    transport->doors.mates_endpoint.kind = ENDPOINT_MATES;
    atomic_init(&transport->flows.attention.word, ATTENTION_AWAKE);
    atomic_init(&transport->unawaited_ranks, 0);
    for (size_t i = 0; i < DESCRIPTORS_MOST; i++)
        atomic_init(&transport->descriptors.open[i], -1);
    flows_init(&transport->flows, &transport_ways);
    freeze_init(&transport->freezer);
    redo_init(&transport->redos);
    transport->ports.due_ms = UINT64_MAX;
}

static void transport_fail(char *error, size_t error_bytes, const char *what)
{
    char reason[64];
    struct text text;
    const int number = errno;
    text_init(&text, error, error_bytes);
    text_append(&text, "%s: %s", what, strerror_r(number, reason, sizeof(reason)));
}

// Opens the unix listener, through which ranks of this host connect. If that fails, or if the
// address has no room for it, they connect to the TCP listener.
static void transport_open_mates(struct transport *transport)
{
    char error[TRANSPORT_TEXT_BYTES];
    struct text text;
    struct listener *mates = unix_listener_open(error, sizeof(error));
    if (!mates)
        return;
    text_init(&text, transport->doors.address, sizeof(transport->doors.address));
    if (!text_append(&text, "%s;%s", transport->doors.listener->address, mates->address)) {
        text_copy(transport->doors.address, sizeof(transport->doors.address),
                  transport->doors.listener->address);
        mates->ops->close(mates);
        return;
    }
    transport->doors.mates = mates;
}

static int transport_open_descriptors(struct transport *transport,
                                      const struct transport_config *config, char *error,
                                      size_t error_bytes)
{
    transport->descriptors.epoll = epoll_create1(EPOLL_CLOEXEC);
    transport->flows.attention.descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (transport->descriptors.epoll < 0 || transport->flows.attention.descriptor < 0) {
        transport_fail(error, error_bytes, "descriptors for the data plane");
        return -1;
    }
    transport_register(transport, transport->descriptors.epoll);
    if (!transport_watch(transport, transport->flows.attention.descriptor,
                         &transport->descriptors.wake_endpoint, false)) {
        transport_fail(error, error_bytes, "descriptors for the data plane");
        return -1;
    }
    transport->doors.listener =
        config->kind == TRANSPORT_LOOPBACK
            ? loopback_listener_open(transport->torn_bytes, error, error_bytes)
            : tcp_listener_open(config->host ? config->host : "127.0.0.1", config->port_first,
                                config->port_last, error, error_bytes);
    if (!transport->doors.listener)
        return -1;
    text_copy(transport->doors.address, sizeof(transport->doors.address),
              transport->doors.listener->address);
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
    if (devices_open(&made->flows, config) < 0) {
        text_copy(error, error_bytes, "no memory for collectives on the device");
        transport_close(made);
        return -2;
    }
    *transport = made;
    return 0;
}

const char *transport_address(const struct transport *transport)
{
    return transport->doors.address;
}

void transport_close(struct transport *transport)
{
    thread_disown(&transport->flows.thread);
    for (uint32_t i = 0; i < transport->flows.links.count; i++)
        transport_close_stream(transport->flows.links.all[i], false);
    guests_forget(transport);
    flow_forget(&transport->flows);
    redo_forget(&transport->redos);
    freeze_fini(&transport->freezer);
    wave_forget(&transport->flows);
    measure_forget(transport);
    devices_close(&transport->flows);
    peers_forget(&transport->flows);
    deaths_close(transport);
    ports_close(transport);
    transport_close_doors(transport);
    if (transport->flows.attention.descriptor >= 0)
        (void)close(transport->flows.attention.descriptor);
    if (transport->descriptors.epoll >= 0)
        (void)close(transport->descriptors.epoll);
    flows_fini(&transport->flows);
    free(transport);
}

// ---- a generation -------------------------------------------------------------------------------

static void transport_form_hosts(struct transport *transport)
{
    const struct locality *locality = &transport->flows.world.locality;
    transport->flows.hosts = (struct ring_group){.size = 0};
    if (locality->hosts < 2 || locality->local >= locality->rings)
        return;
    transport->flows.hosts =
        (struct ring_group){.rank = locality->host,
                            .size = locality->hosts,
                            .successor = peer_of_rank(&transport->flows, locality->successor),
                            .predecessor = peer_of_rank(&transport->flows, locality->predecessor)};
}

int transport_form(struct transport *transport, const struct transport_world *world)
{
    thread_own(&transport->flows.thread);
    assert(!transport->forming.has_world);
    assert(world->chunk_bytes >= 8 && world->chunk_bytes % 8 == 0 &&
           world->chunk_bytes <= LOCKSTEP_FRAME_BYTES);
    if (world->peer_count > LOCKSTEP_MAX_NEIGHBOURS ||
        world->further_count > LOCKSTEP_MAX_FURTHER_PORTS)
        return -1;
    peers_forget(&transport->flows);
    transport->flows.world = *world;
    transport->flows.world.peers = NULL;
    transport->flows.world.further = NULL;
    for (uint32_t i = 0; i < world->peer_count; i++) {
        struct peer_link *peer = peer_add_neighbour(&transport->flows, world->peers[i].rank);
        text_copy(peer->address, sizeof(peer->address), world->peers[i].address);
    }
    const uint32_t n = world->world_size;
    transport->flows.ring = (struct ring_group){
        .rank = world->rank,
        .size = n,
        .successor = peer_of_rank(&transport->flows, (world->rank + 1) % n),
        .predecessor = peer_of_rank(&transport->flows, (world->rank + n - 1) % n)};
    transport_form_hosts(transport);
    if (n > 1 && (!transport->flows.ring.successor || !transport->flows.ring.predecessor))
        return -1;
    flows_size_pools(&transport->flows);
    flows_reserve(&transport->flows);
    if (measure_form(transport) < 0 || host_form(&transport->flows) < 0)
        return -1;
    transport->forming.has_world = true;
    transport->flows.formed = false;
    transport->flows.formed_reported = false;
    transport->forming.failed = false;
    transport->forming.differs = false;
    transport->forming.leaving = false;
    transport->doors.lack = 0;
    transport->flows.form_deadline_ms = clock_now_ms() + world->form_timeout_ms;
    rendezvous_form(&transport->flows, &transport->rendezvous);
    deaths_form(transport);
    ports_form(transport, world);
    wait_prepare(transport);
    return 0;
}

void transport_close_stream(struct peer_link *peer, bool reset)
{
    struct transport *transport = transport_of(peer);
    if (!peer->stream.link)
        return;
    transport_unwatch(transport, peer->stream.link->fd);
    stream_close(&peer->stream, reset);
    transport->flows.totals.bytes_sent += peer->stream.bytes_sent;
    transport->flows.totals.bytes_received += peer->stream.bytes_received;
    transport->flows.totals.frames_sent += peer->stream.frames_sent;
}

void transport_forget(struct transport *transport)
{
    flow_forget(&transport->flows);
    redo_forget(&transport->redos);
    wave_forget(&transport->flows);
    measure_forget(transport);
    farewell_forget(transport);
    headers_forget(transport);
    peers_forget(&transport->flows);
    transport->flows.ring = transport->flows.hosts = (struct ring_group){.size = 0};
    transport->forming.has_world = false;
    transport->flows.formed = false;
    transport->forming.failed = false;
}

void transport_abandon(struct transport *transport)
{
    thread_assert(&transport->flows.thread);
    ports_close(transport);
    for (uint32_t i = 0; i < transport->flows.links.count; i++)
        transport_close_stream(transport->flows.links.all[i], true);
    teardown_forget(&transport->flows, false);
    transport_forget(transport);
}

// ---- the end ------------------------------------------------------------------------------------

// Sends queued frames, drops what arrives, and closes this rank's direction once all is sent. True:
// the peer has closed its direction, or the link is closed already.
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

// What is left to send on the links of a rank that leaves.
struct remains {
    bool open; // True if a peer has not closed its direction.
    uint64_t unsent; // Bytes that the peers have not taken.
    uint64_t round_trip_ms; // The longest one.
};

static void transport_part_all(struct transport *transport, struct remains *remains)
{
    *remains = (struct remains){.open = false};
    for (uint32_t i = 0; i < transport->flows.links.count; i++) {
        struct peer_link *peer = transport->flows.links.all[i];
        if (transport_part(peer)) {
            transport_close_stream(peer, false);
            continue;
        }
        const uint64_t trip_ms = stream_round_trip_ms(&peer->stream);
        remains->open = true;
        remains->unsent += stream_unsent(&peer->stream);
        if (trip_ms > remains->round_trip_ms)
            remains->round_trip_ms = trip_ms;
    }
}

// Sends what is queued, until all peers have closed their direction, or until no peer has taken
// bytes for `still_ms`, or until `last_ms`. If a packet is lost, no byte is taken for some round
// trips, so the links also have LEAVE_ROUND_TRIPS of the longest round trip.
//
// The kernel would send on after the process has closed a connection. But it resets a connection
// that is closed with unread bytes in it, and one on which bytes arrive after that. A reset drops
// what the peer has not taken. So this rank reads and drops what arrives, and each link is closed
// when its peer has closed its direction, or at the end.
static void transport_leave_links(struct transport *transport, uint64_t still_ms, uint64_t last_ms)
{
    uint64_t moved_ms = 0;
    uint64_t least_unsent = UINT64_MAX;
    transport->forming.leaving = true;
    ports_close(transport);
    for (uint32_t i = 0; i < transport->flows.links.count; i++) {
        if (transport->flows.links.all[i]->state == PEER_PROVEN)
            farewell_goodbye(transport->flows.links.all[i]);
        else
            transport_close_stream(transport->flows.links.all[i], true);
        if (!transport->flows.links.all[i]->stream.link)
            transport->flows.links.all[i]->state = PEER_GONE;
    }
    for (;;) {
        struct remains remains;
        transport_part_all(transport, &remains);
        const uint64_t now_ms = clock_now_ms();
        if (remains.unsent < least_unsent) {
            least_unsent = remains.unsent;
            moved_ms = now_ms;
        }
        const uint64_t trips_ms = LEAVE_ROUND_TRIPS * remains.round_trip_ms;
        uint64_t deadline_ms = moved_ms + (trips_ms > still_ms ? trips_ms : still_ms);
        if (deadline_ms > last_ms)
            deadline_ms = last_ms;
        if (!remains.open || now_ms >= deadline_ms)
            break;
        // No event says that a peer has taken bytes that the kernel held.
        const uint64_t left_ms = deadline_ms - now_ms;
        wait_for_work(transport, left_ms > LEAVE_LOOK_MS ? LEAVE_LOOK_MS : (int)left_ms);
        (void)attention_take(&transport->flows.attention);
    }
    for (uint32_t i = 0; i < transport->flows.links.count; i++)
        transport_close_stream(transport->flows.links.all[i], false);
}

void transport_leave(struct transport *transport, uint64_t still_ms)
{
    thread_assert(&transport->flows.thread);
    transport_leave_links(transport, still_ms, UINT64_MAX);
    teardown_forget(&transport->flows, true);
    transport_forget(transport);
}

void transport_retreat(struct transport *transport, uint64_t linger_ms, bool lost)
{
    thread_assert(&transport->flows.thread);
    transport_leave_links(transport, linger_ms, clock_now_ms() + linger_ms);
    teardown_forget(&transport->flows, !lost);
    transport_forget(transport);
}
