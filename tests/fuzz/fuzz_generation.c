// SPDX-License-Identifier: Apache-2.0
// The generation that a coordinator sends. A world that passes its check can be formed: every link
// that a schedule needs is there, and no schedule asserts.

#include "protos/codec/codec.h"
#include "protos/codec/down.h"
#include "protos/topology.h"
#include "tests/fuzz/fuzz.h"
#include "worker/transport/flow/wave.h"
#include "worker/transport/lifecycle.h"
#include "worker/transport/pair/schedule.h"
#include "worker/transport/ring/schedule.h"
#include "worker/transport/transport.h"

#include <string.h>

static bool is_peer(const struct down_generation *start, uint32_t rank)
{
    for (uint32_t i = 0; i < start->peer_count; i++)
        if (start->peers[i].rank == rank)
            return true;
    return false;
}

static void use_locality(const struct down_generation *start)
{
    const struct locality *locality = &start->locality;
    if (locality->hosts == 0)
        return;
    FUZZ_CHECK(locality->mate_count <= LOCKSTEP_MAX_MATES &&
               locality->mates[locality->local] == start->rank);
    FUZZ_CHECK(locality->rings > 0 && locality->rings <= locality->mate_count);
    FUZZ_CHECK(locality->hosts > 1 || locality->mate_count == start->world_size);
    for (uint32_t i = 0; i < locality->mate_count; i++)
        FUZZ_CHECK(i == locality->local || is_peer(start, locality->mates[i]));
    if (locality->hosts > 1 && locality->local < locality->rings)
        FUZZ_CHECK(is_peer(start, locality->successor) && is_peer(start, locality->predecessor));
}

static void use_schedules(const struct down_generation *start)
{
    const uint32_t rank = start->rank;
    const uint32_t world = start->world_size;
    struct ring ring;
    struct pair pair;
    ring_init_allreduce(&ring, world, rank, 1000, 8, start->chunk_bytes, RING_SPLIT_BYTES);
    ring_init_broadcast(&ring, world, rank, world - 1, 1000, 8, start->chunk_bytes);
    pair_init(&pair, true, world, rank, 1000, 8, start->chunk_bytes);
    for (uint32_t i = 0; world > 1 && i < pair_moves(&pair); i++)
        FUZZ_CHECK(is_peer(start, pair_move(&pair, i).peer));
    for (uint32_t i = 0; world > 1 && i < wave_moves(rank, world); i++)
        FUZZ_CHECK(is_peer(start, wave_move(rank, world, i).peer));
    if (world > 1)
        FUZZ_CHECK(is_peer(start, topology_successor(rank, world)) &&
                   is_peer(start, topology_predecessor(rank, world)));
}

static void use_transport(const struct down_generation *start)
{
    const struct transport_config config = {.kind = TRANSPORT_LOOPBACK, .host = "127.0.0.1"};
    struct transport *transport;
    struct transport_world world = {.generation = {.number = 1, .incarnation = 2},
                                    .rank = start->rank,
                                    .world_size = start->world_size,
                                    .chunk_bytes = start->chunk_bytes,
                                    .locality = start->locality,
                                    .core_ranks = start->core_ranks,
                                    .peer_count = start->peer_count,
                                    .peers = start->peers,
                                    .form_timeout_ms = 1000};
    char error[256] = "";
    FUZZ_CHECK(transport_open(&config, &transport, error, sizeof(error)) == 0);
    FUZZ_CHECK(transport_form(transport, &world) == 0);
    transport_abandon(transport);
    transport_close(transport);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static struct down_message message;
    const char *detail = NULL;
    if (codec_decode_down(bytes, size, &message, &detail) != CODEC_OK ||
        message.kind != DOWN_GENERATION)
        return 0;
    use_locality(&message.u.generation_start);
    use_schedules(&message.u.generation_start);
    use_transport(&message.u.generation_start);
    return 0;
}
