// SPDX-License-Identifier: Apache-2.0
// hello.c in C++: learns w = 2 from y = 2 x, and says how far off all ranks are.
#include <cmath>
#include <cstdio>
#include <lockstep/lockstep.hpp>

static void train()
{
    float w = 0, gradient = 0;
    lockstep::session session;
    lockstep::description line("line");
    line.parameter("w", &w, {}, &gradient);
    lockstep::module module(session, line);
    session.start();

    const float x = static_cast<float>(session.rank() + 1);
    const float largest = static_cast<float>(session.world_size());
    for (int i = 0; i < 50; i++) {
        lockstep::step step(session);
        lockstep::call call(step, module);
        gradient = (w * x - 2 * x) * x;
        call.ready(0);
        call.end();
        step.end(); // Now gradient is the mean over all workers.
        w -= gradient / (largest * largest);
    }
    double error = std::fabs(w - 2.0);
    session.run(lockstep::allreduce("error", &error, 1, LOCKSTEP_MAX));
    std::printf("rank %u of %u: w = %.3f, largest error %.3f\n",
                static_cast<unsigned>(session.rank()), static_cast<unsigned>(session.world_size()),
                static_cast<double>(w), error);
    module.close();
    session.close();
}

int main()
{
    try {
        train();
    } catch (const lockstep::error &error) {
        std::fprintf(stderr, "%s: %s\n", error.name(), error.what());
        return 1;
    }
    return 0;
}
