// SPDX-License-Identifier: Apache-2.0
//
// Gloo over TCP. PEER_ALGORITHM: ring and bcube are those of its newer interface, halving_doubling
// and ring_chunked are objects bound to one buffer, made when that buffer is first summed: so they
// are for warm buffers only.

#include "bench/peers/driver.h"

#include <gloo/algorithm.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace
{

std::shared_ptr<gloo::Context> context;
std::unique_ptr<gloo::rendezvous::FileStore> store;
peer_world known;
std::string algorithm;
std::map<std::pair<float *, size_t>, std::unique_ptr<gloo::Algorithm>> bound;

void connect(const peer_world &world)
{
    gloo::transport::tcp::attr attributes;
    attributes.iface = peer_variable("PEER_INTERFACE");
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    store = std::make_unique<gloo::rendezvous::FileStore>(peer_variable("PEER_STORE"));
    auto made = std::make_shared<gloo::rendezvous::Context>(world.rank, world.size);
    made->connectFullMesh(*store, device);
    context = made;
}

std::unique_ptr<gloo::Algorithm> bind(float *payload, size_t count)
{
    const std::vector<float *> pointers{payload};
    const int elements = static_cast<int>(count);
    if (algorithm == "ring_chunked")
        return std::make_unique<gloo::AllreduceRingChunked<float>>(context, pointers, elements);
    return std::make_unique<gloo::AllreduceHalvingDoubling<float>>(context, pointers, elements);
}

void run_bound(float *payload, size_t count)
{
    auto &found = bound[{payload, count}];
    if (!found)
        found = bind(payload, count);
    found->run();
}

void run_newer(float *payload, size_t count)
{
    using Options = gloo::AllreduceOptions;
    Options options(context);
    options.setOutput(payload, count);
    options.setReduceFunction(
        static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
    options.setAlgorithm(algorithm == "bcube" ? Options::Algorithm::BCUBE
                                              : Options::Algorithm::RING);
    gloo::allreduce(options);
}

} // namespace

void peer_open(int, char **, peer_world *world)
{
    world->rank = std::atoi(peer_variable("PEER_RANK"));
    world->size = std::atoi(peer_variable("PEER_SIZE"));
    known = *world;
    algorithm = peer_variable("PEER_ALGORITHM");
    try {
        connect(*world);
    } catch (const std::exception &error) {
        peer_fail("connect", error.what());
    }
}

void *peer_allocate(size_t bytes)
{
    return peer_map(bytes);
}

void peer_allreduce(float *payload, size_t count)
{
    try {
        if (algorithm == "ring" || algorithm == "bcube")
            run_newer(payload, count);
        else
            run_bound(payload, count);
    } catch (const std::exception &error) {
        peer_fail("allreduce", error.what());
    }
}

void peer_move(enum peer_move, const float *, float *, size_t)
{
    peer_fail("move", "only sums are measured of Gloo");
}

// The first rank that closes ends the last sum of the others with an error, so all ranks wait for
// all.
void peer_close()
{
    std::vector<std::string> all;
    for (int rank = 0; rank < known.size; rank++)
        all.push_back("done" + std::to_string(rank));
    store->set(all[static_cast<size_t>(known.rank)], {'1'});
    store->wait(all);
    bound.clear();
    context.reset();
}

const char *peer_version()
{
    return "Gloo " PEER_PACKAGE_VERSION;
}
