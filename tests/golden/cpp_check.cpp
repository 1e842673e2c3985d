// SPDX-License-Identifier: Apache-2.0
// What lockstep.hpp promises, for test_cpp.sh. Arguments: what to check.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <lockstep/lockstep.hpp>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            std::fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition); \
            std::exit(1); \
        } \
    } while (0)

template <class T>
constexpr bool moves =
    std::is_nothrow_move_constructible_v<T> &&std::is_nothrow_move_assignable_v<T> &&
    !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
static_assert(moves<lockstep::session> && moves<lockstep::module> && moves<lockstep::group>);
static_assert(moves<lockstep::work> && moves<lockstep::memory<float>>);
static_assert(!std::is_move_constructible_v<lockstep::step>);
static_assert(!std::is_move_constructible_v<lockstep::call>);
static_assert(lockstep::dtype_of<float> == LOCKSTEP_FLOAT32);
static_assert(lockstep::dtype_of<double> == LOCKSTEP_FLOAT64);
static_assert(lockstep::dtype_of<signed char> == LOCKSTEP_INT8);
static_assert(lockstep::dtype_of<unsigned char> == LOCKSTEP_UINT8);
static_assert(lockstep::dtype_of<short> == LOCKSTEP_INT16);
static_assert(lockstep::dtype_of<unsigned short> == LOCKSTEP_UINT16);
static_assert(lockstep::dtype_of<int> == LOCKSTEP_INT32);
static_assert(lockstep::dtype_of<unsigned> == LOCKSTEP_UINT32);
static_assert(lockstep::dtype_of<long> == LOCKSTEP_INT64);
static_assert(lockstep::dtype_of<unsigned long long> == LOCKSTEP_UINT64);
static_assert(lockstep::dtype_of<bool> == LOCKSTEP_BOOL);

struct half {
    uint16_t bits;
};
template <> inline constexpr lockstep_dtype lockstep::dtype_of<half> = LOCKSTEP_FLOAT16;

struct oops {
}; // The trainer's own exception.

// The failure of an action; its status is LOCKSTEP_OK if there is none.
static lockstep::error failure_of(const std::function<void()> &action)
{
    try {
        action();
    } catch (const lockstep::error &error) {
        return error;
    }
    return lockstep::error(LOCKSTEP_OK, "");
}

struct trainer {
    float value = 1, gradient = 0;
    lockstep::session session;
    lockstep::module module = make();

    lockstep::module make()
    {
        lockstep::description made("net");
        made.parameter("w", &value, {}, &gradient);
        made.buffer("mean", &value_of_buffer, {1});
        lockstep::description moved = std::move(made);
        return lockstep::module(session, moved);
    }

    // A step whose gradient is `of` on this rank. Returns the mean.
    float step(float of, uint64_t number)
    {
        lockstep::step step(session);
        CHECK(!step.finished() && step.view().step == number);
        lockstep::call call(step, module);
        gradient = of;
        call.ready(0);
        call.end();
        CHECK(call.wait() == LOCKSTEP_OK);
        step.end();
        return gradient;
    }

    // A step that an exception leaves inside its call.
    void step_given_up()
    {
        bool caught = false;
        try {
            lockstep::step step(session);
            lockstep::call call(step, module);
            throw oops();
        } catch (const oops &) {
            caught = true;
        }
        CHECK(caught);
    }

    double value_of_buffer = 0;
};

static void alone()
{
    trainer trainer;
    lockstep::session &session = trainer.session;
    CHECK(session.rank() == 0 && session.world_size() == 1);
    const lockstep::session::leaf_range leaves = session.leaves();
    CHECK(leaves.first == 0 && leaves.count == 1 && leaves.total == 1);

    // Failures have the status and the text.
    const lockstep::error early = failure_of([&] { lockstep::step step(session); });
    CHECK(early.status() == LOCKSTEP_E_INVALID && std::strlen(early.what()) > 0);
    CHECK(std::strcmp(early.name(), "LOCKSTEP_E_INVALID") == 0);
    session.start();
    CHECK(trainer.step(3, 1) == 3);
    CHECK(session.report(1).step == 1 && trainer.module.used() == std::vector<uint8_t>{1});
    trainer.step_given_up();
    CHECK(trainer.step(4, 3) == 4); // The step that was given up was number 2.

    // A step with an open call does not end, and is no less open for having tried.
    {
        lockstep::step step(session);
        lockstep::call call(step, trainer.module);
        CHECK(failure_of([&] { step.end(); }).status() == LOCKSTEP_E_INVALID);
        call.ready(0);
        call.end();
        CHECK(step.wait(LOCKSTEP_WAIT_FOREVER));
    }
    {
        lockstep::step step(session);
        lockstep::call call(step, trainer.module);
        CHECK(failure_of([&] { step.end(); }).status() == LOCKSTEP_E_INVALID);
    }
    CHECK(trainer.step(5, 6) == 5);

    // Collectives, work, memory.
    lockstep::memory<int32_t> memory = session.allocate<int32_t>(4);
    CHECK(memory[3] == 0);
    const int32_t part[2] = {6, 7};
    session.run(lockstep::collective<int32_t>(LOCKSTEP_ALL_GATHER, "part", part, &memory[0], 2));
    CHECK(memory[0] == 6 && memory[1] == 7);
    half one = {0x3c00};
    {
        lockstep::work work = session.begin(lockstep::allreduce("half", &one, 1));
        lockstep::work moved = std::move(work); // Its destructor waits.
    }
    CHECK(one.bits == 0x3c00);
    CHECK(session.world_change().changes == 0);
    lockstep::group group(session, {0}, "alone");
    CHECK(group.rank() == 0 && group.size() == 1);
    lockstep::work work = group.begin(lockstep::broadcast("x", &memory[0], 2));
    CHECK(work.wait());
    group.run(lockstep::barrier("all"));
    group.close();

    // A session that has moved works, and one that was closed is nobody's.
    lockstep::session moved = std::move(trainer.session);
    CHECK(trainer.session.get() == nullptr && moved.world_size() == 1);
    trainer.module.close();
    memory.reset();
    moved.close();
    CHECK(moved.get() == nullptr);
}

// Buckets one by one, gradients of another type, means without a place, a module of a group, and
// ranks without data.
static void further()
{
    double wide = 3;
    float narrow = 1, given = 0, norm = 0;
    float values[2] = {1, 2}, gradients[2] = {0, 0};
    lockstep_config config = LOCKSTEP_CONFIG_INIT;
    config.gradient_norm = 1;
    lockstep::session session(config);
    lockstep::description made("net");
    made.config.unused = LOCKSTEP_UNUSED_ACCEPT;
    made.config.means_on_demand = 1;
    made.parameter("pair", values, {2}, gradients);
    made.mixed_parameter("wide", &wide, {}, &narrow);
    made.parameter("given", &norm, {});
    lockstep::module module(session, made);
    float shard = 0, shard_gradient = 0;
    lockstep::group both(session, {1, 0}, "both");
    lockstep::description of_both("expert");
    of_both.config.group = both.get();
    of_both.parameter("shard", &shard, {}, &shard_gradient);
    lockstep::module expert(session, of_both); // It is closed before its group.
    session.start();
    const float rank = static_cast<float>(session.rank());
    session.uneven(LOCKSTEP_UNEVEN_ALL);
    {
        lockstep::step step(session);
        lockstep::call call(step, module);
        gradients[0] = gradients[1] = narrow = 2 * rank;
        given = 6;
        call.ready(0);
        call.ready(1);
        if (session.rank() == 0)
            call.ready(2, &given);
        call.end();
        uint32_t bucket = 0;
        std::vector<bool> seen(3);
        while (call.next(bucket) == LOCKSTEP_OK) {
            for (uint32_t parameter : module.bucket(bucket))
                seen[parameter] = true;
        }
        CHECK(seen[0] && seen[1] && seen[2]);
        CHECK(failure_of([&] { module.bucket(99); }).status() == LOCKSTEP_E_INVALID);
        lockstep::description uneven("uneven");
        float three[3];
        for (float &one : three)
            uneven.parameter(std::to_string(&one - three), &one, {});
        uneven.config.replicas = 2;
        CHECK(
            std::strstr(failure_of([&] { uneven.made(); }).what(), "3 parameters for 2 replicas"));
        lockstep::call of_group(step, expert);
        shard_gradient = 4 * rank;
        of_group.ready(0);
        of_group.end();
        step.end();
    }
    CHECK(shard_gradient == 2);
    CHECK(gradients[0] == 1 && gradients[1] == 1 && narrow == 1);
    const std::vector<void *> means = module.means();
    CHECK(means[0] == gradients && means[1] == &narrow && means[2]);
    CHECK((means[2] == &given) == (session.rank() == 0));
    CHECK(*static_cast<float *>(means[2]) == 3);
    CHECK(session.report(1).gradient_norm == std::sqrt(3.0 + 9.0 + 4.0));
    lockstep_step_options options = LOCKSTEP_STEP_INIT;
    options.exhausted = 1;
    CHECK(lockstep::step(session, options).finished());
    session.uneven(LOCKSTEP_UNEVEN_NONE);
    lockstep::step step(session);
    CHECK(!step.finished() && step.view().step == 3);
    step.end();
}

// One of two ranks is left by an exception inside a call: every rank is told, and goes on.
static void given_up()
{
    trainer trainer;
    trainer.session.start();
    const float rank = static_cast<float>(trainer.session.rank());
    CHECK(trainer.step(rank, 1) == 0.5f);
    if (trainer.session.rank() == 1)
        trainer.step_given_up();
    else {
        const lockstep::error told = failure_of([&] { trainer.step(rank, 2); });
        CHECK(told.status() == LOCKSTEP_E_UNUSED && std::strstr(told.what(), "rank 1"));
    }
    CHECK(trainer.step(2 + rank, 3) == 2.5f);

    // Work that nobody waits for is done when it is gone.
    std::vector<double> ones(1 << 20, 1);
    {
        lockstep::work work =
            trainer.session.begin(lockstep::allreduce("ones", ones.data(), ones.size()));
        CHECK(work.get());
    }
    CHECK(ones.front() == 2 && ones.back() == 2);
}

// One of two ranks leaves a step without a call, after an end that the library has refused because
// this rank has no device: the others do not take it for a whole one.
static void left()
{
    trainer trainer;
    trainer.session.start();
    CHECK(trainer.step(1, 1) == 1);
    if (trainer.session.rank() == 1) {
        {
            lockstep::step step(trainer.session);
            CHECK(failure_of([&] { step.end(&trainer); }).status() == LOCKSTEP_E_INVALID);
        }
        const lockstep::error next = failure_of([&] { trainer.step(1, 2); });
        CHECK(next.status() == LOCKSTEP_E_CLOSED);
    } else {
        const lockstep::error told = failure_of([&] { trainer.step(1, 2); });
        CHECK(told.status() == LOCKSTEP_E_PEER_LOST);
        CHECK(std::strstr(told.what(), "a step was left before its end"));
    }
}

// The same by an exception, which a catch in the step may have told the others.
static void thrown(bool told)
{
    trainer trainer;
    trainer.session.start();
    CHECK(trainer.step(1, 1) == 1);
    if (trainer.session.rank() == 1) {
        try {
            lockstep::step step(trainer.session);
            try {
                throw std::runtime_error("no batch 7");
            } catch (const std::exception &error) {
                if (told)
                    trainer.session.abort(error.what());
                throw;
            }
        } catch (const std::runtime_error &error) {
            CHECK(std::strstr(error.what(), "no batch 7"));
        }
    } else {
        const lockstep::error failure = failure_of([&] { trainer.step(1, 2); });
        CHECK(failure.status() == LOCKSTEP_E_PEER_LOST);
        CHECK(std::strstr(failure.what(),
                          told ? "no batch 7" : "an exception left a step before its end"));
    }
}

int main(int argc, char **argv)
{
    const std::string what = argc == 2 ? argv[1] : "";
    CHECK(what == "alone" || what == "given-up" || what == "further" || what == "left" ||
          what == "thrown" || what == "told");
    if (what == "alone")
        alone();
    else if (what == "given-up")
        given_up();
    else if (what == "further")
        further();
    else if (what == "left")
        left();
    else
        thrown(what == "told");
    std::printf("%s: as promised\n", argv[1]);
    return 0;
}
