// SPDX-License-Identifier: Apache-2.0
// torch.h: the C++ frontend of PyTorch (libtorch) over lockstep.hpp, for C++17 and later.
//
//     lockstep::session session;                          // joins the job
//     Net net;                                            // any torch::nn::Module
//     lockstep::torch::data_parallel model(session, net, "net");
//     torch::optim::SGD optimizer(net->parameters(), 0.1);
//     for (every batch) {
//         optimizer.zero_grad();
//         loss(net->forward(x), y).backward();            // gradients are averaged now
//         optimizer.step();
//     }
//
// The constructor makes the values of all ranks equal. From then on one backward pass is one step.
// Its first gradient begins the step, and the step ends before backward() returns. All modules that
// a backward pass uses are in one step.
//
// Gradients. After a step p.grad() is in memory of the library, which ranks of one host share. With
// zero_grad(false) it stays there, and no gradient is copied. If the program gives p.grad() other
// memory (set_data), the next backward pass copies the values back. The destructor gives every
// gradient memory of PyTorch. A view of a gradient must not outlive the data_parallel.
// With LOCKSTEP_UNUSED_ACCEPT a gradient that is not zero travels in each step of its module, also
// if the backward pass leaves the parameter out.
//
// Failures. backward() throws lockstep::error. After LOCKSTEP_E_UNUSED training can go on. When
// another exception leaves backward(), this rank gives up the step and waits for the other ranks,
// which get LOCKSTEP_E_UNUSED.
//
// Limits. Tensors are dense, real, and in host memory. Convert a net before it is wrapped: if a
// parameter gets another shape or dtype later, or memory that is not dense, backward() throws
// LOCKSTEP_E_UNSUPPORTED. A parameter that needs no gradient when it is wrapped is never reduced.
// One thread makes all backward passes, and none inside another. Every rank makes equally many
// steps.
#ifndef LOCKSTEP_TORCH_H
#define LOCKSTEP_TORCH_H

#include <lockstep/lockstep.hpp>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <list>
#include <map>

namespace lockstep::torch
{

struct options {
    lockstep_unused_policy unused = LOCKSTEP_UNUSED_ERROR; // For a parameter without a gradient.
    // With LOCKSTEP_BUFFER_MEAN buffers of integers are broadcast.
    lockstep_buffer_policy buffers = LOCKSTEP_BUFFER_BROADCAST;
    lockstep_wire wire = LOCKSTEP_WIRE_SAME;
    std::vector<std::string> ignore; // Shell patterns: tensors that belong to each rank.
};

// All ranks make and destroy these objects in the same order. After one was destroyed, the next
// backward pass needs session.start() first. The session outlives the object and does not move.
class data_parallel
{
  public:
    // net: a module, a pointer to one, or its holder (TORCH_MODULE). A tensor with two names counts
    // by its first name. Blocks until all ranks have called it.
    template <class Net>
    data_parallel(session &of, const Net &net, std::string name, const options &how = {})
        : world_(world::find(of)), name_(std::move(name)), unused_(how.unused)
    {
        if constexpr (std::is_base_of_v<::torch::nn::Module, Net>)
            wrap(net, how);
        else
            wrap(*net, how);
    }
    ~data_parallel()
    {
        world_->members.remove(this);
        at::NoGradGuard no_grad;
        for (slot &each : parameters_)
            if (each.accumulator) {
                each.accumulator->del_post_hook(each.key);
                each.gradient.set_(each.gradient.clone());
            }
    }

    // Samples behind this rank's gradients, from the next step on. The mean is over the samples of
    // all ranks. The weight holds for all modules of the session.
    void weight(uint64_t samples) noexcept { world_->weight = samples; }

    // While the result lives, backward passes only add to this rank's gradients. The next pass
    // after that synchronizes the sums.
    [[nodiscard]] std::shared_ptr<void> no_sync()
    {
        quiet_++;
        return std::shared_ptr<void>(this, [](data_parallel *model) { model->quiet_--; });
    }

    lockstep::module &module() noexcept { return *module_; }
    // The number of the last step that ended well, for session::report. 0: none.
    uint64_t last_step() const noexcept { return world_->last_step; }

  private:
    using node = decltype(::torch::autograd::impl::grad_accumulator(std::declval<at::Tensor &>()));
    struct slot {
        at::Tensor tensor;
        std::string name;
        void *known = nullptr; // Where the library has the value.
        void *place = nullptr; // Where the library reduces the gradient. NULL: nowhere.
        at::Tensor home; // This memory, in a tensor that no program gets. Undefined: there is none.
        at::Tensor gradient; // The same memory, for the program.
        node accumulator{}; // PyTorch holds it weakly.
        uintptr_t key = 0; // Removes the hook.
        bool touched = false; // A gradient came that was not synchronized.
        bool will = false; // The backward pass that runs brings a gradient.
    };

    struct pass;
    // The modules of a session.
    struct world {
        explicit world(session &of) : home(of) {}
        static std::shared_ptr<world> find(session &of)
        {
            static std::map<lockstep_session *, std::weak_ptr<world>> all;
            std::shared_ptr<world> found = all[of.get()].lock();
            if (!found)
                all[of.get()] = found = std::make_shared<world>(of);
            return found;
        }
        session &home;
        std::list<data_parallel *> members;
        pass *open = nullptr; // The backward pass that has a step.
        uint64_t weight = 1;
        uint64_t last_step = 0;
    };

    // A backward pass and its step. PyTorch owns the object as a callback for the end of the pass.
    // If an exception leaves the pass, PyTorch drops the callback, and the destructors of call and
    // step give up the step.
    struct pass {
        pass(world &of, const lockstep_step_options &how) : home(of), step(of.home, how)
        {
            if (step.finished())
                throw error(LOCKSTEP_FINISHED, "ranks have run out of data");
            home.open = this;
        }
        ~pass() { home.open = home.open == this ? nullptr : home.open; }

        // In a hook: begins the step, and the calls of all modules that get gradients.
        static void begin(world &of)
        {
            std::vector<data_parallel *> used;
            std::string phase;
            for (data_parallel *member : of.members) {
                member->refresh();
                member->call_ = nullptr;
                if (member->quiet_ == 0 && member->look()) {
                    phase += (used.empty() ? "" : "+") + member->name_;
                    used.push_back(member);
                }
            }
            if (phase.size() > 60) // Too long for the library.
                phase = std::to_string(std::hash<std::string>()(phase));
            lockstep_step_options how = LOCKSTEP_STEP_INIT;
            how.phase = phase.c_str();
            how.weight = of.weight;
            const auto made = std::make_shared<pass>(of, how);
            ::torch::autograd::Engine::get_default_engine().queue_callback(
                [made] { made->finish(); });
            for (data_parallel *member : used)
                made->add(*member);
        }
        void add(data_parallel &member)
        {
            members.push_back(&member);
            member.opened(calls.emplace_back(step, *member.module_));
        }
        void finish()
        {
            home.open = nullptr; // No hook finds this pass from now on.
            for (call &each : calls)
                each.end();
            step.end();
            home.last_step = step.view().step;
            for (data_parallel *member : members)
                member->after();
        }
        world &home;
        lockstep::step step;
        std::deque<call> calls;
        std::vector<data_parallel *> members; // One for each call.
    };

    void wrap(const ::torch::nn::Module &net, const options &how)
    {
        description all(name_);
        std::vector<const char *> patterns;
        for (const std::string &pattern : how.ignore)
            patterns.push_back(pattern.c_str());
        all.config.ignore = patterns.data();
        all.config.ignore_count = patterns.size();
        all.config.unused = how.unused;
        all.config.wire = how.wire;
        for (const auto &item : net.named_parameters())
            if (add(parameters_, item))
                place(all.parameter<char>(item.key(), nullptr, {}), item.value()).flags =
                    item->requires_grad() ? 0 : LOCKSTEP_PARAMETER_FROZEN;
        for (const auto &item : net.named_buffers())
            if (add(buffers_, item))
                place(all.buffer<char>(item.key(), nullptr, {}), item.value()).policy =
                    how.buffers == LOCKSTEP_BUFFER_MEAN && !item->is_floating_point()
                        ? LOCKSTEP_BUFFER_BROADCAST
                        : how.buffers;
        module_ = std::make_unique<lockstep::module>(world_->home, all);
        const std::vector<void *> places = module_->gradients();
        for (data_parallel *other : world_->members)
            other->refresh();
        world_->home.start();
        for (uint32_t i = 0; i < places.size(); i++) {
            slot &each = parameters_[i];
            if (!places[i]) // Frozen, or ignored.
                continue;
            each.place = places[i];
            each.home = at::from_blob(each.place, each.tensor.sizes(), each.tensor.strides(),
                                      each.tensor.options().requires_grad(false));
            each.gradient = view(each);
            each.accumulator = ::torch::autograd::impl::grad_accumulator(each.tensor);
            each.key = each.accumulator->add_post_hook(
                std::make_unique<::torch::autograd::utils::LambdaPostHook>(
                    [this, i](const auto &outputs, const auto &) { return came(i), outputs; }));
        }
        world_->members.push_back(this);
    }
    // False if the tensor is there, or is none.
    template <class Item> static bool add(std::vector<slot> &all, const Item &item)
    {
        const at::Tensor &tensor = item.value();
        const auto same = [&](const slot &each) { return each.tensor.is_same(tensor); };
        if (!tensor.defined() || std::any_of(all.begin(), all.end(), same))
            return false;
        all.emplace_back().tensor = tensor;
        all.back().name = item.key();
        all.back().known = tensor.data_ptr();
        return true;
    }
    template <class Described> Described &place(Described &made, const at::Tensor &tensor) const
    {
        static const std::map<at::ScalarType, lockstep_dtype> types = {
            {at::kFloat, LOCKSTEP_FLOAT32}, {at::kDouble, LOCKSTEP_FLOAT64},
            {at::kHalf, LOCKSTEP_FLOAT16},  {at::kBFloat16, LOCKSTEP_BFLOAT16},
            {at::kByte, LOCKSTEP_UINT8},    {at::kChar, LOCKSTEP_INT8},
            {at::kShort, LOCKSTEP_INT16},   {at::kInt, LOCKSTEP_INT32},
            {at::kLong, LOCKSTEP_INT64},    {at::kBool, LOCKSTEP_BOOL}};
        const auto type = types.find(tensor.scalar_type());
        if (type == types.end() || !tensor.is_cpu() || !tensor.is_non_overlapping_and_dense())
            throw error(LOCKSTEP_E_UNSUPPORTED,
                        "module '" + name_ + "': '" + made.name + "' is " + tensor.toString() +
                            ". A tensor must be dense, in host memory, and of a real dtype");
        made.dtype = type->second;
        made.dims = static_cast<uint32_t>(tensor.dim());
        made.shape = tensor.sizes().data();
        made.strides = tensor.strides().data();
        made.data = tensor.data_ptr();
        return made;
    }
    // A gradient has been accumulated.
    void came(uint32_t index)
    {
        slot &each = parameters_[index];
        const at::Tensor &gradient = each.tensor.grad();
        each.touched = quiet_ > 0 && gradient.defined();
        if (quiet_ > 0 || !gradient.defined()) // Undefined: of an output outside the loss.
            return;
        if (!world_->open)
            pass::begin(*world_);
        if (!call_)
            world_->open->add(*this);
        report(*call_, each, index);
    }
    static at::Tensor view(const slot &each)
    {
        return at::from_blob(each.place, each.home.sizes(), each.home.strides(),
                             each.home.options());
    }
    // True if the program has given the library's tensor other memory (set_data, set_).
    static bool moved(const slot &each)
    {
        return each.gradient.data_ptr() != each.place ||
               each.gradient.sizes() != each.home.sizes() ||
               each.gradient.strides() != each.home.strides() ||
               each.gradient.dtype() != each.home.dtype();
    }
    // Reports a gradient. .grad is the library's tensor from now on.
    static void report(call &to, slot &each, uint32_t index)
    {
        const bool other = moved(each);
        if (other || !each.tensor.grad().is_same(each.gradient)) {
            at::NoGradGuard no_grad;
            at::Tensor gradient = each.tensor.grad();
            if (other) {
                gradient = gradient.clone(); // set_data would change it if it is each.gradient.
                each.gradient.set_data(view(each));
            }
            each.gradient.copy_(gradient);
            each.tensor.mutable_grad() = each.gradient;
        }
        to.ready(index);
    }

    // Tells the library where values are now. Outside a step.
    void refresh()
    {
        for (const slot &each : parameters_)
            if (each.home.defined() && (each.tensor.sizes() != each.home.sizes() ||
                                        each.tensor.dtype() != each.home.dtype() ||
                                        !each.tensor.is_non_overlapping_and_dense()))
                throw error(LOCKSTEP_E_UNSUPPORTED,
                            "module '" + name_ + "': '" + each.name +
                                "' was changed after it was "
                                "wrapped: it has another shape or dtype now, or is not dense. "
                                "Change it back, or wrap the net again");
        for (auto *all : {&parameters_, &buffers_})
            for (uint32_t i = 0; i < all->size(); i++) {
                slot &each = (*all)[i];
                void *now = each.tensor.data_ptr();
                if (now == each.known)
                    continue;
                check(all == &buffers_
                          ? lockstep_buffer_move(module_->get(), i, now)
                          : lockstep_parameter_move(module_->get(), i, now, each.place));
                each.known = now;
            }
    }
    // In a hook: finds the parameters that get gradients. True if there is one.
    bool look()
    {
        const auto *nodes = ::torch::autograd::get_current_graph_task_nodes_in_graph();
        const auto *info = ::torch::autograd::get_current_graph_task_exec_info();
        bool any = false;
        for (slot &each : parameters_) {
            each.will = each.accumulator && nodes->count(each.accumulator.get()) > 0;
            if (each.will && !info->empty()) { // backward() got a list of inputs.
                const auto found = info->find(each.accumulator.get());
                each.will = found != info->end() && found->second.needed_;
            }
            any = any || each.will;
        }
        return any;
    }
    // True if .grad has a value of backward passes before, which the other ranks need.
    bool accumulated(const slot &each) const
    {
        return unused_ == LOCKSTEP_UNUSED_ACCEPT && each.tensor.grad().any().item<bool>();
    }
    // The call has begun. Gradients that do not come are reported or declared unused.
    void opened(call &made)
    {
        std::vector<uint32_t> missing;
        for (uint32_t i = 0; i < parameters_.size(); i++) {
            slot &each = parameters_[i];
            const bool touched = std::exchange(each.touched, false);
            if (!each.accumulator || each.will)
                continue;
            if (each.tensor.grad().defined() && (touched || accumulated(each)))
                report(made, each, i);
            else if (unused_ == LOCKSTEP_UNUSED_ACCEPT)
                missing.push_back(i);
        }
        if (!missing.empty())
            made.unused(missing);
        call_ = &made;
    }
    // The step has ended. Gradients that only other ranks produced get their places.
    void after()
    {
        const std::vector<uint8_t> used = module_->used();
        for (std::size_t i = 0; i < used.size(); i++)
            if (used[i] && parameters_[i].accumulator) {
                slot &each = parameters_[i];
                if (moved(each))
                    each.gradient.set_data(view(each));
                each.tensor.mutable_grad() = each.gradient;
            }
    }

    std::shared_ptr<world> world_;
    std::string name_;
    lockstep_unused_policy unused_;
    std::unique_ptr<lockstep::module> module_;
    std::vector<slot> parameters_; // By their numbers in the library.
    std::vector<slot> buffers_;
    call *call_ = nullptr; // Open in the backward pass that runs.
    unsigned quiet_ = 0; // Number of results of no_sync that live.
};

} // namespace lockstep::torch

#endif
