// SPDX-License-Identifier: Apache-2.0
//
// Hooks of autograd that report gradients without the GIL. build.py compiles this file against the
// installed PyTorch. It uses no header and no symbol of Python, so one build serves every Python of
// one PyTorch.
//
// A set belongs to one module. Each gradient accumulator gets a post hook, as the reducer of
// PyTorch has it. The set keeps the accumulators, because PyTorch holds them weakly. The trainer's
// thread calls all functions here; hooks run on the threads of autograd.

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>
#include <torch/version.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace
{

namespace autograd = torch::autograd;

// The pointer to a gradient accumulator: its type depends on the version of PyTorch.
using accumulator =
    decltype(autograd::impl::grad_accumulator(std::declval<const autograd::Variable &>()));

using ready_function = int (*)(void *, void *, uint32_t, void *, void *); // lockstep_grad_ready
using text_function = const char *(*)(); // lockstep_error_text
using slow_function = void (*)(uint32_t); // Member.slow, in Python

enum state {
    IDLE = 0, // No step is expected: gradients only accumulate.
    SLOW = 1, // Python handles each gradient.
    OPEN = 2, // A call is open: each gradient is reported.
};

struct hook_set {
    // Set by attach, then constant.
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> gradients; // The library's tensors.
    std::vector<accumulator> accumulators;
    std::vector<uintptr_t> keys;
    ready_function ready = nullptr;
    text_function text = nullptr;
    slow_function slow = nullptr;
    void *module = nullptr;
    // Changed between backward passes only.
    int state = IDLE;
    std::vector<uint32_t> planned; // Reports that complete a gradient. Empty: one.
    // One entry for each parameter: its hooks do not run at the same time.
    std::vector<uint32_t> seen;
    std::vector<uint8_t> touched; // 1: a gradient came while the set was idle.
    // Guarded by mutex: the first failure.
    std::mutex mutex;
    int status = 0;
    std::string failure;

    void came(uint32_t i);
    void fail(int code);
};

void hook_set::fail(int code)
{
    const char *said = text();
    std::lock_guard<std::mutex> guard(mutex);
    if (status == 0) {
        status = code;
        failure = said;
    }
}

// A gradient has been accumulated.
void hook_set::came(uint32_t i)
{
    const at::Tensor &parameter = parameters[i];
    const at::Tensor &gradient = parameter.grad();
    if (!gradient.defined()) // The gradient of an output that is not part of the loss.
        return;
    if (state == IDLE) {
        touched[i] = 1;
        return;
    }
    if (state == SLOW || gradient.layout() != at::kStrided) {
        slow(i);
        return;
    }
    if (!gradient.is_same(gradients[i])) {
        at::NoGradGuard no_grad;
        gradients[i].copy_(gradient);
        parameter.mutable_grad() = gradients[i];
    }
    if (!planned.empty() && ++seen[i] != planned[i])
        return;
    const int code = ready(module, nullptr, i, nullptr, nullptr);
    if (code < 0)
        fail(code);
}

struct post_hook : autograd::FunctionPostHook {
    hook_set *set;
    uint32_t index;

    post_hook(hook_set *s, uint32_t i) : set(s), index(i) {}
    autograd::variable_list operator()(const autograd::variable_list &outputs,
                                       const autograd::variable_list &) override
    {
        set->came(index);
        return outputs;
    }

    // Compiled autograd asks for these. Which one is virtual depends on the version of PyTorch.
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs &) const
    {
        refuse();
    }
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs &)
    {
        refuse();
    }

    static void refuse()
    {
        TORCH_CHECK(false, "compiled autograd does not run the hooks of lockstep.torch: set "
                           "torch._dynamo.config.optimize_ddp = 'python_reducer' before the module "
                           "is wrapped, or leave compiled autograd out");
    }
};

void add_hooks(hook_set *set)
{
    for (uint32_t i = 0; i < set->parameters.size(); i++) {
        auto node = autograd::impl::grad_accumulator(set->parameters[i]);
        set->keys.push_back(node->add_post_hook(std::make_unique<post_hook>(set, i)));
        set->accumulators.push_back(std::move(node));
    }
}

void remove_hooks(hook_set *set)
{
    for (size_t i = 0; i < set->accumulators.size(); i++)
        set->accumulators[i]->del_post_hook(set->keys[i]);
    set->accumulators.clear();
    set->keys.clear();
}

// Addresses pass as integers. Returns the set.
int64_t attach(at::TensorList parameters, at::TensorList gradients, int64_t ready, int64_t text,
               int64_t slow, int64_t module)
{
    auto set = std::make_unique<hook_set>();
    set->parameters = parameters.vec();
    set->gradients = gradients.vec();
    set->ready = reinterpret_cast<ready_function>(ready);
    set->text = reinterpret_cast<text_function>(text);
    set->slow = reinterpret_cast<slow_function>(slow);
    set->module = reinterpret_cast<void *>(module);
    set->seen.assign(set->parameters.size(), 0);
    set->touched.assign(set->parameters.size(), 0);
    add_hooks(set.get());
    return reinterpret_cast<int64_t>(set.release());
}

// True for a checkpoint with use_reentrant=True. It is a function of Python, and name() of another
// node would cost a microsecond.
bool is_checkpoint(autograd::Node *node)
{
    return strcmp(typeid(*node).name(), "N5torch8autograd6PyNodeE") == 0 &&
           node->name() == "CheckpointFunctionBackward";
}

} // namespace

// Removes the hooks and frees the set. No backward pass may run.
EXPORT void lockstep_hooks_detach(hook_set *set)
{
    remove_hooks(set);
    delete set;
}

EXPORT void lockstep_hooks_state(hook_set *set, int state)
{
    set->state = state;
}

// A call begins. planned: [parameters], or NULL.
EXPORT void lockstep_hooks_open(hook_set *set, const uint32_t *planned)
{
    set->planned.clear();
    if (planned)
        set->planned.assign(planned, planned + set->parameters.size());
    set->seen.assign(set->parameters.size(), 0);
    set->status = 0;
    set->failure.clear();
    set->state = OPEN;
}

// In a hook. will: [parameters], 1 if the backward pass that runs accumulates into the parameter.
// Returns 1 if a re-entrant checkpoint may bring more, and -1 under torch.autograd.grad.
EXPORT int lockstep_hooks_will(hook_set *set, uint8_t *will)
{
    const auto *nodes = autograd::get_current_graph_task_nodes_in_graph();
    const auto *info = autograd::get_current_graph_task_exec_info();
    bool all = true;
    for (size_t i = 0; i < set->accumulators.size(); i++) {
        autograd::Node *node = set->accumulators[i].get();
        will[i] = nodes->count(node) > 0;
        if (will[i] && !info->empty()) {
            const auto found = info->find(node);
            if (found != info->end() && found->second.captures_)
                return -1;
            will[i] = found != info->end() && found->second.needed_;
        }
        all = all && will[i];
    }
    if (all)
        return 0;
    for (autograd::Node *node : *nodes)
        if (is_checkpoint(node))
            return 1;
    return 0;
}

// touched: [parameters], 1 for gradients that came while the set was idle. Forgets them.
EXPORT void lockstep_hooks_touched(hook_set *set, uint8_t *touched)
{
    memcpy(touched, set->touched.data(), set->touched.size());
    set->touched.assign(set->touched.size(), 0);
}

// The first failed report since the call began: its status, or 0. text: [bytes].
EXPORT int lockstep_hooks_error(hook_set *set, char *text, size_t bytes)
{
    std::lock_guard<std::mutex> guard(set->mutex);
    strncpy(text, set->failure.c_str(), bytes - 1);
    text[bytes - 1] = '\0';
    return set->status;
}

// True if the accumulators are still those of the parameters. module.to(dtype) makes others.
EXPORT bool lockstep_hooks_current(hook_set *set)
{
    for (size_t i = 0; i < set->accumulators.size(); i++)
        if (autograd::impl::try_get_grad_accumulator(set->parameters[i]) != set->accumulators[i])
            return false;
    return true;
}

// Hooks anew, after lockstep_hooks_current was false.
EXPORT void lockstep_hooks_renew(hook_set *set)
{
    remove_hooks(set);
    add_hooks(set);
}

// The PyTorch that this file was compiled for.
EXPORT const char *lockstep_hooks_torch(void)
{
    return TORCH_VERSION;
}

TORCH_LIBRARY(lockstep_hooks, library)
{
    library.def("attach(Tensor[] parameters, Tensor[] gradients, int ready, int text, int slow, "
                "int module) -> int",
                &attach);
}
