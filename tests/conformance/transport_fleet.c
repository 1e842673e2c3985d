// SPDX-License-Identifier: Apache-2.0
//
// A world of ranks as threads; see transport_fleet.h.

#include "tests/conformance/transport_fleet.h"

#include "worker/transport/further.h"
#include "worker/transport/lifecycle.h"

#include "base/clock.h"
#include "protos/topology.h"
#include "tests/support/bounds.h"
#include "worker/device/device.h"
#include "worker/device/open.h"
#include "worker/kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t fleet_bound_ms(uint64_t ms)
{
    return test_bound_ms(ms);
}

void fleet_fail(const struct member *member, const char *file, int line, const char *text)
{
    const struct fleet *fleet = member->fleet;
    fflush(stdout);
    fprintf(stderr, "%s:%d: rank %u of %u (%s): %s\n", file, line, member->rank,
            fleet->options.world, fleet->options.name, text);
    for (uint32_t i = 0; i < fleet->options.world; i++) {
        const struct member *other = &fleet->members[i];
        fprintf(stderr, "  rank %u: %u done, %u waves, %u lost (%s), waits for %s\n", i,
                other->done_count, other->wave_count, other->lost_count, other->lost_text,
                other->waits_for ? other->waits_for : "nothing");
    }
    fflush(stderr);
    _exit(1);
}

static void on_formed(void *context)
{
    ((struct member *)context)->formed = true;
}

static void on_done(void *context, struct collective *collective)
{
    struct member *member = context;
    member->done_count++;
    if (member->on_done)
        member->on_done(member, collective);
}

static void on_wave_done(void *context, struct wave *wave)
{
    (void)wave;
    ((struct member *)context)->wave_count++;
}

static void on_header(void *context, const struct step_header *header, const uint8_t *note,
                      uint32_t note_bytes)
{
    struct member *member = context;
    MEMBER_CHECK(member, member->header_count < 8);
    member->headers[member->header_count++] = *header;
    member->note_bytes = note_bytes;
    memcpy(member->note, note, note_bytes);
}

static void on_peer_lost(void *context, uint32_t rank, enum peer_loss loss, const char *text)
{
    struct member *member = context;
    member->lost_count++;
    member->lost_rank = rank;
    member->lost_left = loss == LOSS_LEFT;
    snprintf(member->lost_text, sizeof(member->lost_text), "%s", text);
}

static void on_mismatch(void *context, struct collective *collective, uint32_t rank,
                        const char *text)
{
    (void)collective;
    (void)rank;
    (void)text;
    ((struct member *)context)->mismatch_count++;
}

static void on_form_failed(void *context, uint32_t rank, const char *text)
{
    struct member *member = context;
    member->form_failed = true;
    member->lost_rank = rank;
    snprintf(member->lost_text, sizeof(member->lost_text), "%s", text);
}

static void on_reach(void *context, const uint32_t *ranks, uint32_t count)
{
    struct member *member = context;
    MEMBER_CHECK(member, count > 0 && count <= LOCKSTEP_REACH_RANKS);
    for (uint32_t i = 0; i < count; i++) {
        struct peer answer = {.rank = ranks[i], .host = "far"};
        MEMBER_CHECK(member, ranks[i] < member->rank);
        snprintf(answer.address, sizeof(answer.address), "%s",
                 member->elsewhere ? member->elsewhere : member->fleet->addresses[ranks[i]]);
        member->reach_count++;
        if (!member->answers_late)
            transport_reach(member->transport, &answer);
    }
}

static void on_enqueued(void *context, struct collective *collective)
{
    (void)collective;
    ((struct member *)context)->enqueued_count++;
}

static void on_summed(void *context, struct collective *collective)
{
    (void)collective;
    ((struct member *)context)->summed_count++;
}

static void on_device_failed(void *context, const char *text)
{
    struct member *member = context;
    member->failed_count++;
    snprintf(member->failed_text, sizeof(member->failed_text), "%s", text);
}

bool fleet_has_device(const struct fleet *fleet, uint32_t rank)
{
    const uint32_t n = fleet->options.world;
    if (fleet->options.devices == FLEET_STAGED)
        return n == 1 || rank < n - 1;
    if (fleet->options.devices == FLEET_MIXED)
        return rank + 1 < n && (rank % 2 == 0 || rank + 2 == n);
    return fleet->options.devices == FLEET_NCCL;
}

static void member_open_device(struct member *member)
{
    char error[256] = "";
    char choice[32];
    if (!fleet_has_device(member->fleet, member->rank))
        return;
    snprintf(choice, sizeof(choice), "cuda:%u", member->fleet->options.first_device + member->rank);
    if (device_open(choice, &member->device, error, sizeof(error)) < 0)
        fleet_fail(member, __FILE__, __LINE__, error);
}

void member_place(const struct member *member, struct collective *collective)
{
    collective->device = member->device;
    collective->on_devices = member->fleet->options.devices != FLEET_ON_HOSTS;
}

bool member_has_any_order(const struct member *member)
{
    return !member->device || member->fleet->options.devices == FLEET_STAGED;
}

struct transport *fleet_open(struct member *member)
{
    const struct fleet_options *options = &member->fleet->options;
    const struct transport_config config = {
        .kind = options->kind,
        .host = "127.0.0.1",
        .shares = options->mates,
        .encrypts = options->encrypts,
        .torn_bytes = options->torn_bytes,
        .regions = options->regions ? options->regions[member->rank] : NULL,
        .slot_fill = options->fills[member->rank],
        .device = member->device,
        .abort_ms = options->abort_ms,
        .segment_bytes = options->segment_bytes,
        .recovers = options->recovers,
        .events = {.formed = on_formed,
                   .done = on_done,
                   .wave_done = on_wave_done,
                   .header = on_header,
                   .peer_lost = on_peer_lost,
                   .mismatch = on_mismatch,
                   .form_failed = on_form_failed,
                   .reach = on_reach,
                   .enqueued = on_enqueued,
                   .summed = on_summed,
                   .device_failed = on_device_failed,
                   .context = member},
    };
    char error[256] = "";
    struct transport *transport = NULL;
    if (transport_open(&config, &transport, error, sizeof(error)) < 0)
        fleet_fail(member, __FILE__, __LINE__, error);
    return transport;
}

// The first rank of a host.
static uint32_t fleet_host_begin(const struct fleet *fleet, uint32_t host)
{
    const uint32_t hosts = fleet->options.hosts == 0 ? 1 : fleet->options.hosts;
    const uint32_t least = fleet->options.world / hosts;
    const uint32_t larger = fleet->options.world % hosts; // Hosts with one rank more: the last.
    const uint32_t before = hosts - larger;
    return host * least + (host > before ? host - before : 0);
}

static struct locality fleet_locality(const struct fleet *fleet, uint32_t rank)
{
    struct locality locality = {.hosts = fleet->options.hosts == 0 ? 1 : fleet->options.hosts};
    while (fleet_host_begin(fleet, locality.host + 1) <= rank)
        locality.host++;
    const uint32_t begin = fleet_host_begin(fleet, locality.host);
    const uint32_t before = (locality.host + locality.hosts - 1) % locality.hosts;
    const uint32_t behind = (locality.host + 1) % locality.hosts;
    locality.mate_count = fleet_host_begin(fleet, locality.host + 1) - begin;
    for (uint32_t i = 0; i < locality.mate_count; i++)
        locality.mates[i] = begin + i;
    locality.local = rank - begin;
    locality.rings = fleet->options.world / locality.hosts;
    if (locality.local >= locality.rings)
        return locality;
    locality.predecessor = fleet_host_begin(fleet, before) + locality.local;
    locality.successor = fleet_host_begin(fleet, behind) + locality.local;
    return locality;
}

void fleet_world(const struct fleet *fleet, uint32_t rank, struct transport_world *world,
                 struct peer peers[LOCKSTEP_MAX_NEIGHBOURS])
{
    uint32_t ranks[LOCKSTEP_MAX_NEIGHBOURS];
    const struct locality locality = fleet_locality(fleet, rank);
    uint32_t count = topology_neighbours(rank, fleet->options.world, ranks);
    for (uint32_t i = 0; fleet->options.mates && i < locality.mate_count; i++)
        count = topology_add(ranks, count, rank, locality.mates[i]);
    if (fleet->options.mates && locality.hosts > 1 && locality.local < locality.rings) {
        count = topology_add(ranks, count, rank, locality.predecessor);
        count = topology_add(ranks, count, rank, locality.successor);
    }
    for (uint32_t i = 0; fleet->options.algorithm == ALGORITHM_DIRECT && i < fleet->options.world;
         i++)
        count = topology_add(ranks, count, rank, i);
    memset(peers, 0, LOCKSTEP_MAX_NEIGHBOURS * sizeof(peers[0]));
    for (uint32_t i = 0; i < count; i++) {
        peers[i].rank = ranks[i];
        memcpy(peers[i].address, fleet->addresses[ranks[i]], LOCKSTEP_ADDRESS_BYTES);
    }
    *world = (struct transport_world){
        .generation = {.number = 7, .incarnation = 0xabcdef},
        .rank = rank,
        .world_size = fleet->options.world,
        .chunk_bytes = fleet->options.chunk_bytes,
        .peer_count = count,
        .peers = peers,
        .form_timeout_ms = fleet_bound_ms(FLEET_BOUND_MS),
    };
    memset(world->secret, 0x5a, sizeof(world->secret));
    for (uint32_t r = 0; r < fleet->options.world; r++)
        world->devices[r / 64] |= (uint64_t)fleet_has_device(fleet, r) << (r % 64);
    world->devices_meet = fleet->options.devices == FLEET_MIXED;
    if (fleet->options.mates)
        world->locality = locality;
}

static void member_expired(struct member *member, const uint32_t *count, uint64_t since_ms)
{
    if (member->lost_count > 0 && count == &member->done_count)
        fleet_fail(member, __FILE__, __LINE__, "a peer is lost");
    if (member->failed_count > 0 && count == &member->done_count)
        fleet_fail(member, __FILE__, __LINE__, member->failed_text);
    if (clock_now_ms() - since_ms > fleet_bound_ms(FLEET_BOUND_MS))
        fleet_fail(member, __FILE__, __LINE__, "hangs");
}

void member_until(struct member *member, const uint32_t *count, uint32_t least, const char *what)
{
    const uint64_t since_ms = clock_now_ms();
    member->waits_for = what;
    while (*count < least) {
        transport_progress(member->transport, 100);
        member_expired(member, count, since_ms);
    }
    member->waits_for = NULL;
}

void member_until_true(struct member *member, const bool *flag, const char *what)
{
    const uint64_t since_ms = clock_now_ms();
    member->waits_for = what;
    while (!*flag) {
        transport_progress(member->transport, 100);
        member_expired(member, NULL, since_ms);
    }
    member->waits_for = NULL;
}

void member_idle(struct member *member, uint32_t ms)
{
    const uint64_t end_ms = clock_now_ms() + ms;
    while (clock_now_ms() < end_ms)
        transport_progress(member->transport, 5);
}

void member_barrier(struct member *member)
{
    pthread_barrier_wait(&member->fleet->barrier);
}

// Runs the transport until all ranks have formed the world, as the coordinator does. A rank that
// stopped earlier would not answer the pings of ranks that still measure their links.
static void member_form(struct member *member)
{
    struct fleet *fleet = member->fleet;
    const uint64_t since_ms = clock_now_ms();
    member_until_true(member, &member->formed, "the world to form");
    atomic_fetch_add(&fleet->formed, 1);
    member->waits_for = "the world to form everywhere";
    while (atomic_load(&fleet->formed) < fleet->options.world) {
        transport_progress(member->transport, 1);
        member_expired(member, NULL, since_ms);
    }
    member->waits_for = NULL;
}

static void *member_main(void *argument)
{
    struct member *member = argument;
    struct fleet *fleet = member->fleet;
    struct transport_world world;
    struct peer peers[LOCKSTEP_MAX_NEIGHBOURS];
    kernels_environment();
    member_open_device(member);
    member->transport = fleet_open(member);
    snprintf(fleet->addresses[member->rank], LOCKSTEP_ADDRESS_BYTES, "%s",
             transport_address(member->transport));
    member_barrier(member);
    fleet_world(fleet, member->rank, &world, peers);
    MEMBER_CHECK(member, transport_form(member->transport, &world) == 0);
    member_form(member);
    struct transport_statistics statistics;
    transport_statistics(member->transport, &statistics);
    const bool in_memory = fleet->options.mates && fleet->options.kind == TRANSPORT_TCP;
    MEMBER_CHECK(member,
                 member->lost_count > 0 ||
                     statistics.memory_links == (in_memory ? world.locality.mate_count - 1 : 0));
    fleet->script(member);
    if (!member->closed) {
        transport_leave(member->transport, fleet_bound_ms(5000));
        transport_close(member->transport);
    }
    device_close(member->device);
    return NULL;
}

void fleet_run(const struct fleet_options *options, void (*script)(struct member *member),
               void *argument)
{
    struct fleet *fleet = calloc(1, sizeof(*fleet));
    pthread_t threads[FLEET_MAX];
    fleet->options = *options;
    fleet->script = script;
    fleet->argument = argument;
    pthread_barrier_init(&fleet->barrier, NULL, options->world);
    for (uint32_t i = 0; i < options->world; i++) {
        fleet->members[i].fleet = fleet;
        fleet->members[i].rank = i;
        pthread_create(&threads[i], NULL, member_main, &fleet->members[i]);
    }
    for (uint32_t i = 0; i < options->world; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&fleet->barrier);
    free(fleet);
}
