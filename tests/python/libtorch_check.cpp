// SPDX-License-Identifier: Apache-2.0
// What test_torch_libtorch.py asks of lockstep/torch.h. One scenario for each name:
// libtorch_check NAME. A rank prints lines "RANK key value ...".
#include <torch/torch.h>

#include <lockstep/torch.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <dirent.h>
#include <malloc.h>
#include <stdexcept>
#include <unistd.h>

namespace
{

namespace nn = torch::nn;
using lockstep::torch::data_parallel;

constexpr int64_t SAMPLES = 24; // Of a step, over all ranks: also two halves of each of 4 ranks.

struct NetImpl : nn::Module {
    NetImpl()
        : below(register_module("below", nn::Linear(8, 16))),
          above(register_module("above", nn::Linear(16, 4))),
          spare(register_module("spare", nn::Linear(16, 4)))
    {
        frozen = register_parameter("frozen", torch::rand({3}), false);
        total = register_buffer("total", torch::zeros({2}));
        count = register_buffer("count", torch::zeros({}, torch::kLong));
    }
    torch::Tensor forward(const torch::Tensor &x, bool use_spare = false)
    {
        const torch::Tensor hidden = torch::tanh(below(x));
        return use_spare ? spare(hidden) : above(hidden);
    }
    nn::Linear below, above, spare;
    torch::Tensor frozen, total, count;
};
TORCH_MODULE(Net);

struct Rank {
    lockstep::session session;
    unsigned rank = session.rank(), size = session.world_size();

    Rank()
    {
        torch::manual_seed(rank + 1);
    } // Ranks begin with values of their own.

    torch::Tensor batch(int step) const
    {
        torch::manual_seed(1000 + static_cast<uint64_t>(step));
        const torch::Tensor all = torch::randn({SAMPLES, 8});
        return all.narrow(0, rank * SAMPLES / size, SAMPLES / size);
    }
    void print(const char *key, const torch::Tensor &values) const
    {
        std::printf("%u %s", rank, key);
        const torch::Tensor flat = values.detach().to(torch::kDouble).contiguous().view(-1);
        for (int64_t i = 0; i < flat.numel(); i++)
            std::printf(" %.9g", flat[i].item<double>());
        std::printf("\n");
    }
    void print(const nn::Module &net) const
    {
        std::printf("%u hash %016llx\n", rank, (unsigned long long)session.state_hash());
        std::vector<torch::Tensor> all;
        for (const torch::Tensor &p : net.parameters())
            all.push_back(p.detach().reshape(-1));
        print("parameters", torch::cat(all));
    }
};

lockstep::torch::options accepting()
{
    lockstep::torch::options made;
    made.unused = LOCKSTEP_UNUSED_ACCEPT;
    return made;
}

torch::Tensor loss(const torch::Tensor &y)
{
    return (y * y).mean() + y.mean();
}

// What backward() says: "status: text", or "nothing".
template <class Function> void report(const Rank &on, Function function, const char *key = "said")
{
    try {
        function();
        std::printf("%u %s nothing\n", on.rank, key);
    } catch (const lockstep::error &error) {
        std::printf("%u %s %s: %s\n", on.rank, key, error.name(), error.what());
    } catch (const std::exception &error) {
        std::printf("%u %s %s\n", on.rank, key, error.what());
    }
    std::fflush(stdout);
}

// With and without gradients in place, and windows of no_sync.
void train(Rank &on)
{
    Net net;
    data_parallel model(on.session, net, "net", accepting());
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 12; step++) {
        optimizer.zero_grad(step % 3 == 0);
        const torch::Tensor x = on.batch(step);
        if (step % 4 == 3) {
            const int64_t half = x.size(0) / 2;
            {
                const auto guard = model.no_sync();
                (loss(net(x.narrow(0, 0, half))) / 2).backward();
            }
            (loss(net(x.narrow(0, half, half))) / 2).backward();
        } else {
            loss(net(x)).backward();
        }
        optimizer.step();
    }
    std::printf("%u steps %d\n", on.rank, (int)model.last_step());
    on.print(*net);
}

// Rank 0 uses one branch and rank 1 the other; then all the first; then gradients of earlier
// passes.
void branches(Rank &on)
{
    Net net;
    data_parallel model(on.session, net, "net", accepting());
    const torch::Tensor x = torch::ones({2, 8});
    loss(net->forward(x, on.rank == 1)).backward();
    on.print("above", net->above->weight.grad().norm());
    on.print("spare", net->spare->weight.grad().norm());
    net->zero_grad();
    loss(net->forward(x)).backward();
    std::printf("%u spare_defined %d\n", on.rank, net->spare->weight.grad().defined());
    net->zero_grad();
    {
        const auto guard = model.no_sync();
        loss(net->forward(x * (on.rank + 1), true)).backward();
    }
    loss(net->forward(x)).backward();
    on.print("window", net->spare->weight.grad());
    net->zero_grad();
    net->forward(x, true).sum().backward();
    const torch::Tensor first = net->spare->bias.grad().clone();
    net->forward(x, on.rank == 0).sum().backward(); // Half the ranks add the same once more.
    on.print("left_out", net->spare->bias.grad() / first);
}

// A parameter without a gradient is an error, and then training goes on.
void unused(Rank &on)
{
    Net net;
    data_parallel model(on.session, net, "net");
    const torch::Tensor x = torch::ones({2, 8});
    report(on, [&] { loss(net->forward(x)).backward(); });
    net->zero_grad();
    (loss(net->forward(x)) + loss(net->forward(x, true))).backward();
    on.print("grad", net->spare->weight.grad());
}

// The mean is over samples, also if ranks have unequally many. Buffers are those of rank 0.
void weights(Rank &on)
{
    nn::Linear net(1, 1);
    net->register_buffer("seen", torch::full({2}, 5.0 + on.rank));
    data_parallel model(on.session, *net, "net");
    on.print("start", net->named_buffers()["seen"]);
    net->named_buffers()["seen"].fill_(7.0 + on.rank);
    model.weight(on.rank + 1);
    (net(torch::full({1, 1}, 3.0 * on.rank))).sum().backward();
    on.print("weighted", net->weight.grad());
    on.print("buffer", net->named_buffers()["seen"]);
}

// Two modules in one backward pass are one step; tied weights; gradients that outlive the module.
void together(Rank &on)
{
    nn::Linear first(4, 4), second(4, 4);
    nn::Sequential tied(second, second);
    {
        data_parallel a(on.session, first.ptr(), "first");
        data_parallel b(on.session, *tied, "second");
        for (int i = 0; i < 3; i++)
            tied->forward(first(torch::full({1, 4}, 1.0 + on.rank))).sum().backward();
        std::printf("%u steps %d\n", on.rank, (int)a.last_step());
    }
    on.print("grad", torch::cat({first->weight.grad(), second->weight.grad()}));
}

void killed(Rank &on)
{
    Net net;
    data_parallel model(on.session, net, "net", accepting());
    loss(net(on.batch(0))).backward();
    if (on.rank == 1)
        raise(SIGKILL);
    report(on, [&] { loss(net(on.batch(1))).backward(); });
}

// An exception leaves backward() on rank 1, which goes on.
void backward(Rank &on)
{
    Net net;
    data_parallel model(on.session, net, "net", accepting());
    const torch::Tensor x = torch::ones({2, 8});
    loss(net(x)).backward();
    net->zero_grad();
    if (on.rank == 1) {
        const unsigned hook = net->below->weight.register_hook(
            [](const torch::Tensor &) -> torch::Tensor { throw std::runtime_error("bad data"); });
        report(on, [&] { loss(net(x)).backward(); });
        net->below->weight.remove_hook(hook);
    } else {
        report(on, [&] { loss(net(x)).backward(); });
    }
    net->zero_grad();
    loss(net(x * (on.rank + 1))).backward();
    on.print("grad", net->above->weight.grad());
}

// An exception leaves forward on rank 1. First rank 1 skips the batch, then it gives up.
void forward(Rank &on)
{
    Net net;
    data_parallel model(on.session, net, "net", accepting());
    if (on.rank == 1)
        report(on, [&] { net(torch::ones({3, 3})); });
    loss(net(on.batch(0))).backward();
    on.print("grad", net->above->weight.grad());
    report(on, [&] {
        try {
            loss(net(on.rank == 1 ? torch::ones({3, 3}) : on.batch(1))).backward();
        } catch (const c10::Error &error) {
            on.session.abort(error.what_without_backtrace());
            throw std::runtime_error("given up");
        }
    });
}

// The program gives gradients other memory after each step. Rank 1 has no gradient for spare.
void moved(Rank &on)
{
    Net net;
    data_parallel model(on.session, net, "net", accepting());
    for (int step = 0; step < 3; step++) {
        net->zero_grad(step == 1);
        loss(net->forward(torch::ones({2, 8}) + on.rank, step < 2 || on.rank == 0)).backward();
        on.print(("grad" + std::to_string(step)).c_str(), net->spare->weight.grad());
        for (const torch::Tensor &each : net->parameters())
            if (each.grad().defined())
                each.mutable_grad().set_data(each.grad().clamp(-1, 1));
    }
}

// The program gives parameters another shape, and memory that is not dense. Then rank 0 has a
// parameter with its elements in another order.
void changed(Rank &on)
{
    Net net;
    data_parallel model(on.session, net, "net", accepting());
    torch::Tensor &used = net->above->weight, &unused = net->spare->weight;
    const torch::Tensor before = used.detach().clone(), rest = unused.detach().clone();
    const auto train = [&] { loss(net(on.batch(0))).backward(); };
    train();
    used.set_data(torch::ones({4, 32}).narrow(1, 0, 16));
    report(on, train, "gaps");
    used.set_data(before);
    unused.set_data(torch::ones({4, 1000}));
    report(on, train, "grown");
    unused.set_data(rest);
    for (int i = 0; i < 2; i++) {
        net->zero_grad();
        train();
        on.print(i == 0 ? "grad" : "turned", used.grad());
        if (on.rank == 0)
            used.set_data(before.t().contiguous().t());
    }
}

// Ranks whose nets differ.
void differ(Rank &on)
{
    nn::Linear net(4, 4 + on.rank);
    report(on, [&] { data_parallel model(on.session, *net, "net"); });
}

long entries(const char *folder)
{
    long count = 0;
    DIR *listing = opendir(folder);
    while (listing && readdir(listing))
        count++;
    if (listing)
        closedir(listing);
    return count;
}

long resident_pages()
{
    long size = 0, resident = 0;
    FILE *file = std::fopen("/proc/self/statm", "r");
    if (file) {
        if (std::fscanf(file, "%ld %ld", &size, &resident) != 2)
            resident = 0;
        std::fclose(file);
    }
    return resident;
}

// By how much 400 wrappers let the process grow, after 200 others.
void wrappers(Rank &on)
{
    Net net;
    long pages = 0, descriptors = 0, threads = 0;
    for (int i = 0; i < 600; i++) {
        data_parallel model(on.session, net, "net", accepting());
        if (i % 50 == 0) {
            loss(net(on.batch(i))).backward();
            net->zero_grad();
        }
        if (i == 199 || i == 599) {
            malloc_trim(0);
            pages = resident_pages() - pages;
            descriptors = entries("/proc/self/fd") - descriptors;
            threads = entries("/proc/self/task") - threads;
        }
    }
    std::printf("%u grown %ld %ld %ld\n", on.rank, pages * sysconf(_SC_PAGESIZE), descriptors,
                threads);
}

} // namespace

int main(int count, char **words)
{
    torch::set_num_threads(1);
    const struct {
        const char *name;
        void (*run)(Rank &);
    } all[] = {{"train", train},       {"branches", branches}, {"unused", unused},
               {"weights", weights},   {"together", together}, {"killed", killed},
               {"backward", backward}, {"forward", forward},   {"differ", differ},
               {"wrappers", wrappers}, {"moved", moved},       {"changed", changed}};
    for (const auto &one : all)
        if (count == 2 && std::strcmp(words[1], one.name) == 0) {
            Rank on;
            one.run(on);
            return 0;
        }
    std::fprintf(stderr, "usage: libtorch_check SCENARIO\n");
    return 2;
}
