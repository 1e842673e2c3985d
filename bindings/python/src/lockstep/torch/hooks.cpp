// SPDX-License-Identifier: Apache-2.0
//
// Hooks of autograd that report gradients without the GIL. build.py compiles this file against the
// installed PyTorch. It uses no header and no symbol of Python, so one build serves every Python of
// one PyTorch.
//
// A set belongs to one module. Each gradient accumulator gets a post hook, as the reducer of
// PyTorch has it. The set keeps the accumulators, because PyTorch holds them weakly. The trainer's
// thread calls all functions here; hooks run on the threads of autograd.

#include <ATen/ops/from_blob.h>
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

// A copy of at most so many bytes is made here. Operators of PyTorch need half a microsecond before
// they copy. They copy more than this with several threads.
constexpr size_t SMALL = 1 << 17;

// A parameter. The fields that a hook reads lie side by side.
struct slot {
    at::Tensor parameter;
    at::Tensor gradient; // The library's tensor.
    at::TensorImpl *place; // Of that tensor.
    at::Tensor home; // The memory that the library reduces, in a tensor that no program gets.
    uint32_t planned; // Reports that complete the gradient. Set between backward passes.
    uint32_t seen; // Reports so far. Hooks of one parameter do not run at the same time.
    bool touched; // A gradient came while the set was idle.
    accumulator node;
    uintptr_t key; // Of the hook at the node.
};

struct hook_set {
    // Set by attach, then constant.
    std::vector<slot> slots;
    ready_function ready = nullptr;
    text_function text = nullptr;
    slow_function slow = nullptr;
    void *module = nullptr;
    // Changed between backward passes only.
    int state = IDLE;
    bool counts = false; // A gradient may need several reports.
    // Guarded by mutex: the first failure.
    std::mutex mutex;
    int status = 0;
    std::string failure;

    void came(uint32_t i);
    void other(uint32_t i);
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

// True if the memory of both tensors has the same elements in the same places. Tensors with equal
// keys are of one kind: dense, on the host, and with no lazy conjugation.
bool alike(const at::Tensor &a, const at::Tensor &b)
{
    return a.key_set() == b.key_set() && a.dtype() == b.dtype() && a.sizes() == b.sizes() &&
           a.strides() == b.strides();
}

// True if both tensors have their elements in the same places of their memory.
bool same_format(const at::Tensor &a, const at::Tensor &b)
{
    if (a.sizes() != b.sizes())
        return false;
    for (int64_t i = 0; i < a.dim(); i++)
        if (a.size(i) != 1 && a.stride(i) != b.stride(i))
            return false;
    return true;
}

// True if the program has given the library's tensor other memory, as p.grad.data = ... does.
bool moved(const slot &at)
{
    const at::TensorImpl *home = at.home.unsafeGetTensorImpl();
    return at.place->data() != home->data() || at.place->strides() != home->strides() ||
           at.place->dtype() != home->dtype();
}

// Ends that. The storage is a new one, because share_memory() moves a storage.
void bring_back(slot &at)
{
    const at::Tensor held = at.home.detach(); // Keeps the memory.
    at.gradient.set_data(at::from_blob(
        held.data_ptr(), held.sizes(), held.strides(), [held](void *) {}, held.options()));
}

// The library's tensor gets the values of the gradient, and takes its place.
void take(slot &at, at::Tensor gradient)
{
    if (moved(at)) {
        at::NoGradGuard no_grad;
        gradient = gradient.clone(); // It may be the tensor that bring_back changes.
        bring_back(at);
    }
    const size_t bytes = at.place->numel() * at.place->itemsize();
    if (bytes <= SMALL && at.gradient.is_cpu() && alike(gradient, at.gradient)) {
        if (bytes > 0)
            memcpy(at.place->mutable_data(), gradient.unsafeGetTensorImpl()->data(), bytes);
    } else {
        at::NoGradGuard no_grad;
        at.gradient.copy_(gradient);
    }
    at.parameter.mutable_grad() = at.gradient;
}

// A gradient has been accumulated. TensorImpl::grad does not ask whether the tensor is a leaf.
void hook_set::came(uint32_t i)
{
    slot &at = slots[i];
    const at::Tensor &gradient = at.parameter.unsafeGetTensorImpl()->grad();
    if (!gradient.defined()) // The gradient of an output that is not part of the loss.
        return;
    if (state != OPEN) {
        other(i);
        return;
    }
    if (gradient.unsafeGetTensorImpl() != at.place || moved(at)) {
        if (gradient.layout() != at::kStrided) {
            slow(i);
            return;
        }
        take(at, gradient);
    }
    if (counts && ++at.seen != at.planned)
        return;
    const int code = ready(module, nullptr, i, nullptr, nullptr);
    if (code < 0)
        fail(code);
}

// The same while no call is open for hooks.
void hook_set::other(uint32_t i)
{
    if (state == IDLE)
        slots[i].touched = true;
    else
        slow(i);
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
    for (uint32_t i = 0; i < set->slots.size(); i++) {
        slot &at = set->slots[i];
        at.node = autograd::impl::grad_accumulator(at.parameter);
        at.key = at.node->add_post_hook(std::make_unique<post_hook>(set, i));
    }
}

void remove_hooks(hook_set *set)
{
    for (slot &at : set->slots) {
        at.node->del_post_hook(at.key);
        at.node.reset();
    }
}

// Addresses pass as integers. Returns the set.
int64_t attach(at::TensorList parameters, at::TensorList gradients, at::TensorList homes,
               int64_t ready, int64_t text, int64_t slow, int64_t module)
{
    auto set = std::make_unique<hook_set>();
    for (size_t i = 0; i < parameters.size(); i++)
        set->slots.push_back({parameters[i], gradients[i], gradients[i].unsafeGetTensorImpl(),
                              homes[i], 1, 0, false, nullptr, 0});
    set->ready = reinterpret_cast<ready_function>(ready);
    set->text = reinterpret_cast<text_function>(text);
    set->slow = reinterpret_cast<slow_function>(slow);
    set->module = reinterpret_cast<void *>(module);
    add_hooks(set.get());
    return reinterpret_cast<int64_t>(set.release());
}

// True if the weak pointer of a parameter is to this accumulator. No count of references changes.
// The first function is for PyTorch before 2.13.
template <typename T> bool refers(const std::weak_ptr<T> &weak, const std::shared_ptr<T> &node)
{
    return !weak.owner_before(node) && !node.owner_before(weak);
}

template <typename T>
bool refers(const c10::weak_intrusive_ptr<T> &weak, const c10::intrusive_ptr<T> &node)
{
    return weak._unsafe_get_target() == node.get();
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
    set->counts = planned != nullptr;
    for (size_t i = 0; planned && i < set->slots.size(); i++) {
        set->slots[i].planned = planned[i];
        set->slots[i].seen = 0;
    }
    set->status = 0;
    set->state = OPEN;
}

// In a hook. will: [parameters], 1 if the backward pass that runs accumulates into the parameter.
// Returns 2 if it does so for all parameters, 1 if a re-entrant checkpoint may bring more than will
// says, and -1 under torch.autograd.grad.
EXPORT int lockstep_hooks_will(hook_set *set, uint8_t *will)
{
    const auto *nodes = autograd::get_current_graph_task_nodes_in_graph();
    const auto *info = autograd::get_current_graph_task_exec_info();
    const bool some = !info->empty(); // Only some nodes are executed.
    bool all = true;
    for (size_t i = 0; i < set->slots.size(); i++) {
        autograd::Node *node = set->slots[i].node.get();
        will[i] = nodes->count(node) > 0;
        if (will[i] && some) {
            const auto found = info->find(node);
            if (found != info->end() && found->second.captures_)
                return -1;
            will[i] = found != info->end() && found->second.needed_;
        }
        all = all && will[i];
    }
    if (all)
        return 2;
    for (autograd::Node *node : *nodes)
        if (is_checkpoint(node))
            return 1;
    return 0;
}

// touched: [parameters], 1 for gradients that came while the set was idle. Forgets them. Returns
// whether there is one.
EXPORT bool lockstep_hooks_touched(hook_set *set, uint8_t *touched)
{
    bool any = false;
    for (size_t i = 0; i < set->slots.size(); i++) {
        touched[i] = set->slots[i].touched;
        any = any || touched[i];
        set->slots[i].touched = false;
    }
    return any;
}

// missing: [parameters], 1 for parameters whose .grad is not the library's tensor, or has other
// memory. Returns whether there is one.
EXPORT bool lockstep_hooks_missing(hook_set *set, uint8_t *missing)
{
    bool any = false;
    for (size_t i = 0; i < set->slots.size(); i++) {
        const slot &at = set->slots[i];
        missing[i] = at.parameter.unsafeGetTensorImpl()->grad().unsafeGetTensorImpl() != at.place ||
                     moved(at);
        any = any || missing[i];
    }
    return any;
}

// The first failed report since the call began: its status, or 0. text: [bytes], written if there
// is one.
EXPORT int lockstep_hooks_error(hook_set *set, char *text, size_t bytes)
{
    std::lock_guard<std::mutex> guard(set->mutex);
    if (set->status == 0)
        return 0;
    strncpy(text, set->failure.c_str(), bytes - 1);
    text[bytes - 1] = '\0';
    return set->status;
}

// True if the accumulators are still those of the parameters, and the memory format is that of the
// gradients. module.to(dtype) makes other accumulators.
EXPORT bool lockstep_hooks_current(hook_set *set)
{
    for (const slot &at : set->slots)
        if (!same_format(at.parameter, at.home) ||
            !refers(autograd::impl::get_autograd_meta(at.parameter)->grad_accumulator_, at.node))
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
    library.def(
        "attach(Tensor[] parameters, Tensor[] gradients, Tensor[] homes, int ready, int text, "
        "int slow, int module) -> int",
        &attach);
}
