// SPDX-License-Identifier: Apache-2.0
//
// The backend "lockstep" of torch.distributed in C++: a c10d::Backend over a session. build.py
// compiles this file against the installed PyTorch. It uses no header of Python, so one build
// serves every Python of one PyTorch. c10d.py does the same in Python where there is no build.

#include "backend_calls.h"

#include <torch/library.h>
#include <torch/version.h>

// splitGroup takes devices since PyTorch 2.13.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
#define DEVICES_PARAMETER , const std::optional<std::vector<at::Device>> &devices
#define DEVICES_ARGUMENT , devices
#else
#define DEVICES_PARAMETER
#define DEVICES_ARGUMENT
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace
{

struct group : public collectives {
    void (*closed)(int64_t) = nullptr; // Called once at the end with the key, in Python.
    int64_t key = 0;
    c10::intrusive_ptr<Backend> child; // The last one of split, which is called for each device.

    group(int rank, int size) : collectives(rank, size) {}

    // --- from rank to rank -----------------------------------------------------------------------

    work_ptr pair(lockstep_collective_kind kind, tensors &list, int peer, int tag)
    {
        const bool sends = kind == LOCKSTEP_SEND;
        const auto one = make(sends ? "send" : "recv", sends ? OpType::SEND : OpType::RECV);
        one->lane = sends ? SENDS : RECEIVES;
        one->peer = peer;
        one->tag = tag;
        for (const Tensor &tensor : list) {
            call &added = add(*one, kind, sends ? input(*one, tensor) : Tensor(),
                              sends ? Tensor() : output(*one, tensor));
            added.what.peer = uint32_t(peer);
#ifdef LOCKSTEP_ANY_SOURCE
            if (peer == -1) {
                added.what.peer = LOCKSTEP_ANY_SOURCE;
                added.what.sender = &one->sender;
            }
#endif
            added.what.tag = uint32_t(tag);
        }
        return begin(one, list);
    }

    work_ptr send(tensors &list, int peer, int tag) override
    {
        return pair(LOCKSTEP_SEND, list, peer, tag);
    }

    work_ptr recv(tensors &list, int peer, int tag) override
    {
        return pair(LOCKSTEP_RECEIVE, list, peer, tag);
    }

    work_ptr recvAnysource(tensors &list, int tag) override
    {
#ifdef LOCKSTEP_ANY_SOURCE
        return pair(LOCKSTEP_RECEIVE, list, -1, tag);
#else
        unsupported("receive from any source: name the source");
#endif
    }

    // --- the group -------------------------------------------------------------------------------

    const std::string getBackendName() const override
    {
        return "lockstep";
    }
    void monitoredBarrier(const c10d::BarrierOptions &opts, bool) override
    {
        const auto one = make("monitored_barrier", OpType::BARRIER);
        one->name = std::make_shared<std::string>(*name + "/monitored");
        add(*one, LOCKSTEP_BARRIER, {}, {});
        const auto began = begin(one, {});
        const milliseconds least(1);
        try {
            began->wait(opts.timeout.count() < 0 ? limit : std::max(opts.timeout, least));
        } catch (const failure &error) {
            if (error.status != LOCKSTEP_E_TIMEOUT)
                throw;
            throw failure(error.status, c10::str("Rank ", rank_,
                                                 " timed out in monitoredBarrier "
                                                 "after ",
                                                 opts.timeout.count(), " ms"));
        }
    }

    void setTimeout(milliseconds timeout) override
    {
        limit = std::max(timeout, milliseconds(0));
    }
    void setSequenceNumberForGroup() override {} // It is 0 from the beginning.
    uint64_t getSequenceNumberForGroup() override
    {
        return serial;
    }
    c10d::ErrorType getError() override
    {
        return c10d::ErrorType::SUCCESS;
    }
    bool supportsSplitting() const override
    {
        return true;
    }
    c10::intrusive_ptr<Options> getBackendOptions() override
    {
        auto options = c10::make_intrusive<Options>("lockstep", limit);
        options->global_ranks_in_group.assign(ranks.begin(), ranks.end());
        return options;
    }

    c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store> &,
                                      const std::vector<int> &members,
                                      const c10::intrusive_ptr<Options> &options) override
    {
        const auto me = std::find(members.begin(), members.end(), rank_);
        if (me == members.end())
            return nullptr;
        if (child && child->getGroupUid() == options->group_name)
            return child;
        if (members_of(*owner, nullptr) != world_size) // The ranks that it knows are from before.
            member_lost(*owner, "split");
        auto made = c10::make_intrusive<group>(int(me - members.begin()), int(members.size()));
        std::vector<uint32_t> places;
        for (const int member : members)
            places.push_back(uint32_t(ranks.at(size_t(member))));
        made->ranks.assign(places.begin(), places.end());
        made->owner = owner;
        made->world_size = world_size;
        made->name = name;
        made->limit = options->timeout;
        made->setGroupUid(options->group_name);
        std::string called = options->group_name.empty() ? "group" : options->group_name;
        if (called.size() > 63)
            called.erase(0, called.size() - 63);
        const int status = lib.group_create(owner->session, places.data(), uint32_t(places.size()),
                                            called.c_str(), &made->handle);
        if (status < 0)
            throw failure_of(status);
        child = made;
        return made;
    }

    void abort() override
    {
        std::lock_guard<std::mutex> guard(owner->mutex);
        if (!owner->ended)
            lib.abort(owner->session, "torch.distributed aborted the process group");
    }

    // Frees the group. Work that is not done soon ends with the session.
    void shutdown() override
    {
        if (handle)
            owner->look_at_all();
        else
            owner->drain();
        {
            std::lock_guard<std::mutex> guard(owner->mutex);
            if (handle && !owner->ended)
                lib.group_close(handle);
            gone = gone || handle;
            handle = nullptr;
        }
        child.reset();
        const auto call = closed;
        closed = nullptr;
        if (call)
            call(key);
    }
};

// PyTorch calls every backend "custom" that it does not know, and gives it no sequence numbers.
struct named_group : public c10d::ProcessGroup {
    c10::intrusive_ptr<c10d::Backend> backend;

    named_group(const ProcessGroup &like, const c10::intrusive_ptr<c10d::Backend> &made)
        : ProcessGroup(like.getStore(), made->getRank(), made->getSize()), backend(made)
    {
        for (const auto device : {at::kCPU, at::kCUDA})
            setBackend(device, CUSTOM, made);
        setDefaultBackend(CUSTOM);
    }
    const std::string getBackendName() const override
    {
        return backend->getBackendName();
    }
    void setSequenceNumberForGroup() override {}
    uint64_t getSequenceNumberForGroup() override
    {
        return backend->getSequenceNumberForGroup();
    }
    c10::intrusive_ptr<ProcessGroup>
    splitGroup(const std::vector<int> &ranks, const std::optional<milliseconds> &timeout,
               const std::optional<c10::intrusive_ptr<c10d::Backend::Options>> &opts,
               const std::optional<std::string> &name,
               const std::optional<std::string> &desc DEVICES_PARAMETER) override
    {
        const auto made =
            ProcessGroup::splitGroup(ranks, timeout, opts, name, desc DEVICES_ARGUMENT);
        if (!made)
            return made;
        auto split = c10::make_intrusive<named_group>(*made, made->getDefaultBackend());
        split->setGroupName(made->getGroupName());
        split->setGroupDesc(made->getGroupDesc());
        return split;
    }
};

// --- what Python calls ---------------------------------------------------------------------------

std::mutex engines_mutex;
std::map<int64_t, std::shared_ptr<engine>> engines; // One for each open session.

// functions: addresses, in the order of struct functions. classes: the exception of each status.
void load(std::vector<int64_t> functions, std::vector<int64_t> statuses,
          std::vector<int64_t> classes)
{
    TORCH_CHECK(functions.size() * sizeof(int64_t) == sizeof lib, "other functions are expected");
    memcpy(&lib, functions.data(), sizeof lib);
    for (size_t i = 0; i < statuses.size(); i++)
        exceptions[int(statuses[i])] = reinterpret_cast<_object *>(classes.at(i));
}

void fail(int64_t status, std::string text)
{
    throw failure(int(status), text);
}

// A process group that has the backend. like: one with the store. ranks: of the world. group: an
// address, 0 for all ranks.
c10::intrusive_ptr<c10d::ProcessGroup> create(c10::intrusive_ptr<c10d::ProcessGroup> like,
                                              int64_t session, bool has_device, int64_t rank,
                                              std::vector<int64_t> ranks, int64_t group_address,
                                              std::string name, int64_t timeout_ms, int64_t closed,
                                              int64_t key)
{
    std::shared_ptr<engine> owner;
    {
        std::lock_guard<std::mutex> guard(engines_mutex);
        auto &found = engines[session];
        if (!found) {
            found = std::make_shared<engine>();
            found->session = reinterpret_cast<lockstep_session *>(session);
            found->has_device = has_device;
        }
        owner = found;
    }
    auto made = c10::make_intrusive<group>(int(rank), int(ranks.size()));
    made->owner = owner;
    made->world_size = members_of(*owner, nullptr);
    made->name = std::make_shared<std::string>(std::move(name));
    made->ranks = std::move(ranks);
    made->handle = reinterpret_cast<lockstep_group *>(group_address);
    made->closed = reinterpret_cast<void (*)(int64_t)>(closed);
    made->key = key;
    made->limit = milliseconds(std::max<int64_t>(timeout_ms, 0));
    return c10::make_intrusive<named_group>(*like, made);
}

} // namespace

// The session is about to close.
EXPORT void lockstep_backend_stop(int64_t session)
{
    std::shared_ptr<engine> owner;
    {
        std::lock_guard<std::mutex> guard(engines_mutex);
        const auto found = engines.find(session);
        if (found == engines.end())
            return;
        owner = found->second;
        engines.erase(found);
    }
    owner->stop();
}

// The PyTorch that this file was compiled for.
EXPORT const char *lockstep_backend_torch(void)
{
    return TORCH_VERSION;
}

TORCH_LIBRARY(lockstep_c10d, library)
{
    library.def("load", &load);
    library.def("fail", &fail);
    library.def("create", &create);
}
