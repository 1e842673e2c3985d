// SPDX-License-Identifier: Apache-2.0
// mnist: trains a small network on the 60,000 MNIST digits with the C++ frontend of PyTorch, alone
// or as any number of ranks. The files are those of tools/get-mnist.
//
//     make libtorch
//     build/examples/libtorch/mnist                                        # alone
//     build/bin/lockstep run -n 2 -- build/examples/libtorch/mnist         # two ranks
//
// Data parallel training takes two lines: the session, and the data_parallel.
#include <torch/torch.h>

#include <lockstep/torch.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace
{

namespace nn = torch::nn;

struct Options {
    std::string data = "build/data/mnist";
    int64_t epochs = 1;
    int64_t steps = 0; // Stop after so many. 0: when the epochs are over.
    int64_t batch = 128; // Samples of a step, over all ranks.
};

struct Digits {
    torch::Tensor images; // [count, 784], scaled to mean 0 and deviation 1
    torch::Tensor labels; // [count]
};

Digits load(const std::string &folder, bool training)
{
    using torch::data::datasets::MNIST;
    const MNIST files(folder, training ? MNIST::Mode::kTrain : MNIST::Mode::kTest);
    return {(files.images().reshape({-1, 784}) - 0.1307) / 0.3081, files.targets()};
}

double percent_right(nn::Sequential &net, const Digits &test)
{
    const torch::NoGradGuard no_grad;
    const torch::Tensor guess = net->forward(test.images).argmax(1);
    return 100.0 * guess.eq(test.labels).sum().item<double>() /
           static_cast<double>(test.labels.size(0));
}

void train(lockstep::session &session, const Options &options)
{
    const int64_t rank = session.rank(), ranks = session.world_size();
    const Digits training = load(options.data, true), test = load(options.data, false);
    nn::Sequential net(nn::Linear(784, 256), nn::Tanh(), nn::Linear(256, 128), nn::Tanh(),
                       nn::Linear(128, 10));
    lockstep::torch::data_parallel model(session, net, "digits");
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));

    int64_t step = 0;
    for (int64_t epoch = 0; epoch < options.epochs; epoch++) {
        torch::manual_seed(static_cast<uint64_t>(epoch)); // The order is the same on every rank.
        const torch::Tensor order = torch::randperm(training.labels.size(0));
        for (int64_t at = 0; at < order.size(0); at += options.batch) {
            if (options.steps > 0 && step == options.steps)
                break;
            // This rank's part of the batch. Its number of samples is its weight.
            const int64_t count = std::min(options.batch, order.size(0) - at);
            const int64_t first = at + count * rank / ranks;
            const int64_t mine = at + count * (rank + 1) / ranks - first;
            const torch::Tensor samples = order.narrow(0, first, mine);
            model.weight(static_cast<uint64_t>(mine));
            optimizer.zero_grad(false); // Gradients stay in memory that the ranks share.
            const torch::Tensor loss = nn::functional::cross_entropy(
                net->forward(training.images.index_select(0, samples)),
                training.labels.index_select(0, samples));
            loss.backward(); // The gradients are averaged when it returns.
            optimizer.step();
            if (++step % 100 == 0 && rank == 0)
                std::printf("step %" PRId64 ": loss %.3f\n", step, loss.item<double>());
        }
        if (rank == 0)
            std::printf("epoch %" PRId64 ": %.2f %% of the test images are right\n", epoch + 1,
                        percent_right(net, test));
    }
    session.state_check(); // Compares the ranks.
    double sum = 0;
    for (const torch::Tensor &parameter : net->parameters())
        sum += parameter.detach().to(torch::kDouble).sum().item<double>();
    std::printf("rank %" PRId64 " of %" PRId64 ": parameters add up to %.6f, hash %016" PRIx64 "\n",
                rank, ranks, sum, session.state_hash());
}

Options parse(int count, char **words)
{
    Options options;
    if (const char *folder = std::getenv("MNIST_DIR"))
        options.data = folder;
    for (int i = 1; i < count; i += 2) {
        const std::string name = words[i];
        if (i + 1 == count)
            throw std::invalid_argument(name + " needs a value");
        if (name == "--data")
            options.data = words[i + 1];
        else if (name == "--epochs")
            options.epochs = std::stoll(words[i + 1]);
        else if (name == "--steps")
            options.steps = std::stoll(words[i + 1]);
        else if (name == "--batch")
            options.batch = std::max(1LL, std::stoll(words[i + 1]));
        else
            throw std::invalid_argument(name + " is unknown: --data --epochs --steps --batch");
    }
    return options;
}

} // namespace

int main(int count, char **words)
{
    try {
        const Options options = parse(count, words);
        torch::set_num_threads(1);
        torch::manual_seed(1);
        lockstep::session session;
        try {
            train(session, options);
        } catch (const std::exception &error) {
            session.abort(error.what()); // The other ranks get this text.
            throw;
        }
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "mnist: %s\n", error.what());
        return 1;
    }
}
