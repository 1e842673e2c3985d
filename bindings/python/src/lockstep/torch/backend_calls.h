// SPDX-License-Identifier: Apache-2.0
//
// Collectives of the backend in C++: each function makes a job from tensors.

#pragma once

#include "backend_threads.h"

namespace
{

// --- tensors -------------------------------------------------------------------------------------

struct known_op {
    c10d::ReduceOp::RedOpType asked;
    const char *name; // As PyTorch has it.
    int op; // A lockstep_op; -1: the library has none.
};

constexpr known_op OPS[] = {
    {c10d::ReduceOp::SUM, "SUM", LOCKSTEP_SUM},
    {c10d::ReduceOp::AVG, "AVG", LOCKSTEP_MEAN},
    {c10d::ReduceOp::PRODUCT, "PRODUCT", LOCKSTEP_PRODUCT},
    {c10d::ReduceOp::MIN, "MIN", LOCKSTEP_MIN},
    {c10d::ReduceOp::MAX, "MAX", LOCKSTEP_MAX},
    {c10d::ReduceOp::BAND, "BAND", LOCKSTEP_AND},
    {c10d::ReduceOp::BOR, "BOR", LOCKSTEP_OR},
    {c10d::ReduceOp::BXOR, "BXOR", LOCKSTEP_XOR},
    {c10d::ReduceOp::PREMUL_SUM, "PREMUL_SUM", -1},
    {c10d::ReduceOp::UNUSED, "UNUSED", -1},
};

std::string name_of(const c10d::ReduceOp &asked)
{
    for (const known_op &known : OPS)
        if (known.asked == asked.op_)
            return c10::str("ReduceOp.", known.name);
    return c10::str("ReduceOp ", int(asked.op_));
}

lockstep_op op_of(const c10d::ReduceOp &asked)
{
    for (const known_op &known : OPS)
        if (known.asked == asked.op_ && known.op >= 0)
            return lockstep_op(known.op);
    unsupported(name_of(asked));
}

// True for integers of which AVG is the sum, divided and rounded towards zero, as NCCL has it. The
// library has no such mean, and PyTorch does not divide the other integers.
bool is_quotient(at::ScalarType type)
{
    return type == at::kChar || type == at::kShort || type == at::kInt || type == at::kLong ||
           type == at::kByte;
}

// A tensor of elements that the library has, over the same memory.
Tensor elements(job &one, const Tensor &tensor)
{
    if (tensor.layout() != at::kStrided)
        unsupported(c10::str("tensors of layout ", tensor.layout(), " here"));
    if (!tensor.is_cpu()) {
        if (!tensor.is_cuda())
            unsupported(c10::str("tensors on ", tensor.device()));
        one.device = tensor.device();
    }
    const Tensor plain = tensor.requires_grad() ? tensor.detach() : tensor;
    return plain.is_complex() ? at::view_as_real(plain) : plain;
}

// The tensor with its elements side by side.
Tensor input(job &one, const Tensor &tensor)
{
    one.keep.push_back(elements(one, tensor).contiguous());
    return one.keep.back();
}

// Memory with elements side by side that becomes the tensor. reads: it is input, too.
Tensor output(job &one, const Tensor &tensor, bool reads = false)
{
    const Tensor there = elements(one, tensor);
    if (there.is_contiguous()) {
        one.keep.push_back(there);
        return there;
    }
    const Tensor dense = reads ? there.contiguous() : at::empty(there.sizes(), there.options());
    one.copies.emplace_back(there, dense);
    return dense;
}

// One memory with the elements of all tensors.
Tensor joined(job &one, const tensors &parts)
{
    at::NoGradGuard no_grad;
    tensors flat;
    for (const Tensor &part : parts)
        flat.push_back(elements(one, part).reshape(-1));
    one.keep.push_back(at::cat(flat));
    return one.keep.back();
}

std::vector<int64_t> sizes_of(job &one, const tensors &parts)
{
    std::vector<int64_t> sizes;
    for (const Tensor &part : parts)
        sizes.push_back(elements(one, part).numel());
    return sizes;
}

int64_t sum_of(const std::vector<int64_t> &sizes)
{
    return std::accumulate(sizes.begin(), sizes.end(), int64_t(0));
}

tensors flat(const lists &all)
{
    tensors result;
    for (const tensors &list : all)
        result.insert(result.end(), list.begin(), list.end());
    return result;
}

// Memory for all parts, which become it at the end.
Tensor parted(job &one, const tensors &parts, const Tensor &like)
{
    const auto sizes = sizes_of(one, parts);
    const Tensor whole = at::empty({sum_of(sizes)}, like.options());
    one.keep.push_back(whole);
    const tensors pieces = whole.split_with_sizes(sizes);
    for (size_t i = 0; i < parts.size(); i++)
        one.copies.emplace_back(elements(one, parts[i]), pieces[i]);
    return whole;
}

bool equal(const std::vector<int64_t> &sizes)
{
    return std::equal(sizes.begin() + 1, sizes.end(), sizes.begin());
}

// Counts of parts, as the library counts elements.
std::vector<uint64_t> counts_of(const std::vector<int64_t> &sizes, const Tensor &like)
{
    const uint64_t times = dtype_of(like.scalar_type()) ? 1 : like.element_size();
    std::vector<uint64_t> counts;
    for (const int64_t size : sizes)
        counts.push_back(uint64_t(size) * times);
    return counts;
}

void check_like(const char *what, const Tensor &tensor, const Tensor &like, bool shape)
{
    TORCH_CHECK_VALUE(tensor.scalar_type() == like.scalar_type(), what, ": tensors of ",
                      tensor.scalar_type(), " and ", like.scalar_type(),
                      " do not match: invalid tensor type");
    TORCH_CHECK_VALUE(!shape || tensor.numel() == like.numel(), what, ": tensors of sizes ",
                      tensor.sizes(), " and ", like.sizes(), " do not match: invalid tensor size");
}

// --- the work and the group ----------------------------------------------------------------------

struct work : public c10d::Work {
    job_ptr one;
    milliseconds limit;

    work(const job_ptr &j, milliseconds l) : Work(j->rank, j->type), one(j), limit(l) {}
    ~work() override
    {
        if (!one->done)
            one->attend();
    }
    bool isCompleted() override
    {
        if (!one->done && one->claim(clock::now())) {
            one->ask(0);
            one->release();
        }
        return one->done;
    }
    bool isSuccess() const override
    {
        return one->done && !one->error;
    }
    std::exception_ptr exception() const override
    {
        return one->done ? one->error : nullptr;
    }
    int sourceRank() const override
    {
        return one->peer >= 0 ? one->peer : int(one->sender);
    }
    tensors result() override
    {
        return one->result;
    }
    void synchronize() override
    {
        wait(kNoTimeout);
    }
    bool wait(milliseconds timeout) override
    {
        one->wait(timeout.count() > 0 ? timeout : limit);
        return true;
    }
    c10::intrusive_ptr<at::ivalue::Future> getFuture() override
    {
        return one->future();
    }
    uint64_t getSequencenumber() const override
    {
        return one->serial;
    }
};

using work_ptr = c10::intrusive_ptr<c10d::Work>;

struct collectives : public c10d::Backend {
    std::shared_ptr<engine> owner;
    std::shared_ptr<const std::string> name; // The name of the group's collectives.
    std::vector<int64_t> ranks; // Ranks of the world.
    lockstep_group *handle; // NULL: all ranks.
    int world_size; // Ranks of the session when the group was made.
    milliseconds limit; // 0: none.
    std::atomic<uint64_t> serial{0};
    std::atomic<bool> gone{false}; // True if the handle was freed.

    collectives(int rank, int size) : Backend(rank, size) {}

    job_ptr make(const char *text, OpType type)
    {
        if (gone)
            throw failure(LOCKSTEP_E_CLOSED, c10::str(text, ": this process group was destroyed"));
        auto one = std::make_shared<job>();
        one->owner = owner;
        one->name = name;
        one->text = text;
        one->type = type;
        one->rank = rank_;
        one->group = handle;
        one->size = size_;
        return one;
    }

    // A collective of the job. parts: the parts among which the elements are divided. op: NULL for
    // collectives that only move elements; these have tensors of every type.
    call &add(job &one, lockstep_collective_kind kind, const Tensor &source, const Tensor &target,
              int parts = 1, const c10d::ReduceOp *op = nullptr, bool complex = false)
    {
        one.calls.emplace_back();
        call &added = one.calls.back();
        added.what.kind = kind;
        added.what.group = handle;
        added.what.name = one.name->c_str();
        const Tensor &like = source.defined() ? source : target;
        if (!like.defined())
            return added;
        lockstep_dtype dtype = dtype_of(like.scalar_type());
        uint64_t count = uint64_t(like.numel());
        if (op) {
            added.what.op = op_of(*op);
            if (!dtype)
                unsupported(c10::str("reductions of ", like.scalar_type()));
            if (complex && added.what.op != LOCKSTEP_SUM && added.what.op != LOCKSTEP_MEAN)
                unsupported(name_of(*op) + " of complex numbers");
            if (added.what.op == LOCKSTEP_MEAN && is_quotient(like.scalar_type())) {
                added.what.op = LOCKSTEP_SUM;
                if (target.defined())
                    one.quotients.push_back(target);
            }
        } else if (!dtype) {
            dtype = LOCKSTEP_UINT8;
            count *= like.element_size();
        }
        added.what.dtype = dtype;
        added.what.count = count / unsigned(parts);
        if (source.defined())
            added.what.input = source.data_ptr();
        if (target.defined())
            added.what.output = target.data_ptr();
        return added;
    }

    work_ptr begin(const job_ptr &one, tensors result, bool async = true,
                   milliseconds timeout = c10d::kUnsetTimeout)
    {
        for (call &each : one->calls) {
            if (!each.input_counts.empty())
                each.what.input_counts = each.input_counts.data();
            if (!each.output_counts.empty())
                each.what.output_counts = each.output_counts.data();
        }
        one->serial = one->lane == COLLECTIVES ? ++serial : serial.load();
        one->result = std::move(result);
        owner->start(one, !async);
        return c10::make_intrusive<work>(one, timeout.count() > 0 ? timeout : limit);
    }

    void check_parts(const char *what, const tensors &parts) const
    {
        TORCH_CHECK_VALUE(int(parts.size()) == size_, what, ": ", parts.size(),
                          " tensors are given for ", size_, " ranks: incorrect list size");
    }

    void check_whole(const char *what, const Tensor &whole, const Tensor &part) const
    {
        check_like(what, whole, part, false);
        TORCH_CHECK_VALUE(whole.numel() == part.numel() * size_, what, ": a tensor of ",
                          whole.numel(), " elements is not ", size_, " times one of ", part.numel(),
                          ": invalid tensor size");
    }

    // The sources of all ranks become parts.
    call &gather_parts(job &one, lockstep_collective_kind kind, const tensors &parts,
                       const Tensor &source)
    {
        check_parts(one.text, parts);
        for (const Tensor &part : parts)
            check_like(one.text, part, source, false);
        check_like(one.text, parts[size_t(rank_)], source, true);
        const Tensor dense = input(one, source);
        call &added = add(one, kind, dense, parted(one, parts, dense));
        const auto sizes = sizes_of(one, parts);
        if (!equal(sizes))
            added.output_counts = counts_of(sizes, dense);
        return added;
    }

    // --- reductions ------------------------------------------------------------------------------

    work_ptr allreduce(tensors &list, const c10d::AllreduceOptions &opts) override
    {
        for (const Tensor &tensor : list)
            if (tensor.is_sparse())
                return sum_sparse(list, opts);
        const auto one = make("all_reduce", OpType::ALLREDUCE);
        for (const Tensor &tensor : list)
            add(*one, LOCKSTEP_ALLREDUCE, {}, output(*one, tensor, true), 1, &opts.reduceOp,
                tensor.is_complex());
        return begin(one, list, opts.asyncOp, opts.timeout);
    }

    work_ptr allreduce_sparse(tensors &list, const c10d::AllreduceOptions &opts) override
    {
        return sum_sparse(list, opts);
    }

    work_ptr allreduce_coalesced(tensors &list,
                                 const c10d::AllreduceCoalescedOptions &opts) override
    {
        return allreduce(list, opts);
    }

    // The rows of all ranks. numbers: of how many rows each.
    Tensor all_of(const Tensor &rows, const std::vector<int64_t> &numbers)
    {
        std::vector<int64_t> shape = rows.sizes().vec();
        shape[0] = sum_of(numbers);
        const Tensor whole = at::empty(shape, rows.options());
        lists outputs = {whole.split_with_sizes(numbers)};
        tensors inputs = {rows};
        allgather(outputs, inputs, {})->wait();
        return whole;
    }

    // A sum of sparse tensors: all indices and values go to all ranks. Waits for them.
    work_ptr sum_sparse(const tensors &list, const c10d::AllreduceOptions &opts)
    {
        const lockstep_op op = op_of(opts.reduceOp);
        if (op != LOCKSTEP_SUM && op != LOCKSTEP_MEAN)
            unsupported("such operation on sparse tensors, only sums");
        at::NoGradGuard no_grad;
        for (const Tensor &tensor : list) {
            const Tensor mine = tensor.detach().coalesce();
            Tensor counts = at::empty({size_}, at::kLong);
            Tensor count = at::full({1}, mine._nnz(), at::kLong);
            _allgather_base(counts, count, {})->wait();
            const std::vector<int64_t> numbers(counts.data_ptr<int64_t>(),
                                               counts.data_ptr<int64_t>() + size_);
            const Tensor indices = all_of(mine.indices().t().contiguous(), numbers);
            const Tensor values = all_of(mine.values(), numbers);
            Tensor whole = at::sparse_coo_tensor(indices.t(), values, mine.sizes()).coalesce();
            if (op == LOCKSTEP_MEAN)
                whole = whole / size_;
            Tensor(tensor).copy_(whole);
        }
        return begin(make("all_reduce", OpType::ALLREDUCE), list);
    }

    work_ptr reduce(tensors &list, const c10d::ReduceOptions &opts) override
    {
        const auto one = make("reduce", OpType::REDUCE);
        for (const Tensor &tensor : list) {
            const bool root = opts.rootRank == rank_;
            add(*one, LOCKSTEP_REDUCE, root ? Tensor() : input(*one, tensor),
                root ? output(*one, tensor, true) : Tensor(), 1, &opts.reduceOp,
                tensor.is_complex())
                .what.root = uint32_t(opts.rootRank);
        }
        return begin(one, list, opts.asyncOp, opts.timeout);
    }

    work_ptr reduce_scatter(tensors &outputs, lists &inputs,
                            const c10d::ReduceScatterOptions &opts) override
    {
        const auto one = make("reduce_scatter", OpType::REDUCE_SCATTER);
        for (size_t i = 0; i < std::min(outputs.size(), inputs.size()); i++) {
            check_parts(one->text, inputs[i]);
            for (const Tensor &part : inputs[i])
                check_like(one->text, part, outputs[i], false);
            check_like(one->text, inputs[i][size_t(rank_)], outputs[i], true);
            const auto sizes = sizes_of(*one, inputs[i]);
            const Tensor whole = joined(*one, inputs[i]);
            call &added = add(*one, LOCKSTEP_REDUCE_SCATTER, whole, output(*one, outputs[i]), size_,
                              &opts.reduceOp, outputs[i].is_complex());
            if (!equal(sizes))
                added.input_counts = counts_of(sizes, whole);
        }
        return begin(one, outputs, opts.asyncOp, opts.timeout);
    }

    work_ptr _reduce_scatter_base(Tensor &target, Tensor &source,
                                  const c10d::ReduceScatterOptions &opts) override
    {
        tensors outputs = {target}, inputs = {source};
        return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
    }

    work_ptr reduce_scatter_tensor_coalesced(tensors &outputs, tensors &inputs,
                                             const c10d::ReduceScatterOptions &opts) override
    {
        const auto one = make("reduce_scatter_single", OpType::_REDUCE_SCATTER_BASE);
        for (size_t i = 0; i < std::min(outputs.size(), inputs.size()); i++) {
            check_whole(one->text, inputs[i], outputs[i]);
            add(*one, LOCKSTEP_REDUCE_SCATTER, input(*one, inputs[i]), output(*one, outputs[i]),
                size_, &opts.reduceOp, outputs[i].is_complex());
        }
        return begin(one, outputs, opts.asyncOp, opts.timeout);
    }

    // --- moves -----------------------------------------------------------------------------------

    work_ptr broadcast(tensors &list, const c10d::BroadcastOptions &opts) override
    {
        const auto one = make("broadcast", OpType::BROADCAST);
        for (const Tensor &tensor : list)
            add(*one, LOCKSTEP_BROADCAST, {}, output(*one, tensor, opts.rootRank == rank_))
                .what.root = uint32_t(opts.rootRank);
        return begin(one, list, opts.asyncOp, opts.timeout);
    }

    work_ptr allgather(lists &outputs, tensors &inputs, const c10d::AllgatherOptions &opts) override
    {
        const auto one = make("all_gather", OpType::ALLGATHER);
        for (size_t i = 0; i < std::min(outputs.size(), inputs.size()); i++)
            gather_parts(*one, LOCKSTEP_ALL_GATHER, outputs[i], inputs[i]);
        return begin(one, flat(outputs), opts.asyncOp, opts.timeout);
    }

    // outputs has a list for each rank, as Gloo has it.
    work_ptr allgather_coalesced(lists &outputs, tensors &inputs,
                                 const c10d::AllgatherOptions &opts) override
    {
        lists turned(inputs.size());
        for (const tensors &parts : outputs) {
            TORCH_CHECK_VALUE(parts.size() == inputs.size(), "all_gather_coalesced: ", parts.size(),
                              " outputs for ", inputs.size(), " inputs: incorrect list size");
            for (size_t i = 0; i < parts.size(); i++)
                turned[i].push_back(parts[i]);
        }
        return allgather(turned, inputs, opts);
    }

    work_ptr _allgather_base(Tensor &target, Tensor &source,
                             const c10d::AllgatherOptions &opts) override
    {
        tensors outputs = {target}, inputs = {source};
        return allgather_into_tensor_coalesced(outputs, inputs, opts);
    }

    work_ptr allgather_into_tensor_coalesced(tensors &outputs, tensors &inputs,
                                             const c10d::AllgatherOptions &opts) override
    {
        const auto one = make("all_gather_single", OpType::_ALLGATHER_BASE);
        for (size_t i = 0; i < std::min(outputs.size(), inputs.size()); i++) {
            check_whole(one->text, outputs[i], inputs[i]);
            add(*one, LOCKSTEP_ALL_GATHER, input(*one, inputs[i]), output(*one, outputs[i]));
        }
        return begin(one, outputs, opts.asyncOp, opts.timeout);
    }

    work_ptr gather(lists &outputs, tensors &inputs, const c10d::GatherOptions &opts) override
    {
        const auto one = make("gather", OpType::GATHER);
        const bool root = opts.rootRank == rank_;
        TORCH_CHECK_VALUE(!root || outputs.size() == inputs.size(), "gather: ", outputs.size(),
                          " lists of outputs for ", inputs.size(), " inputs: incorrect list size");
        for (size_t i = 0; i < inputs.size(); i++)
            (root ? gather_parts(*one, LOCKSTEP_GATHER, outputs[i], inputs[i])
                  : add(*one, LOCKSTEP_GATHER, input(*one, inputs[i]), {}))
                .what.root = uint32_t(opts.rootRank);
        return begin(one, flat(outputs), opts.asyncOp, opts.timeout);
    }

    work_ptr scatter(tensors &outputs, lists &inputs, const c10d::ScatterOptions &opts) override
    {
        const auto one = make("scatter", OpType::SCATTER);
        const bool root = opts.rootRank == rank_;
        TORCH_CHECK_VALUE(!root || outputs.size() == inputs.size(), "scatter: ", inputs.size(),
                          " lists of inputs for ", outputs.size(), " outputs: incorrect list size");
        for (size_t i = 0; i < outputs.size(); i++) {
            Tensor source;
            if (root) {
                check_parts(one->text, inputs[i]);
                for (const Tensor &part : inputs[i])
                    check_like(one->text, part, outputs[i], true);
                source = joined(*one, inputs[i]);
            }
            add(*one, LOCKSTEP_SCATTER, source, output(*one, outputs[i]), root ? size_ : 1)
                .what.root = uint32_t(opts.rootRank);
        }
        return begin(one, outputs, opts.asyncOp, opts.timeout);
    }

    work_ptr alltoall(tensors &outputs, tensors &inputs, const c10d::AllToAllOptions &opts) override
    {
        const auto one = make("all_to_all", OpType::ALLTOALL);
        check_parts(one->text, inputs);
        check_parts(one->text, outputs);
        for (const tensors *list : {&inputs, &outputs})
            for (const Tensor &tensor : *list)
                check_like(one->text, tensor, inputs[0], false);
        const Tensor source = joined(*one, inputs);
        call &added = add(*one, LOCKSTEP_ALL_TO_ALL, source, parted(*one, outputs, source));
        added.input_counts = counts_of(sizes_of(*one, inputs), source);
        added.output_counts = counts_of(sizes_of(*one, outputs), source);
        return begin(one, outputs, opts.asyncOp, opts.timeout);
    }

    // Counts of parts from sizes along the first dimension.
    std::vector<uint64_t> split_sizes(const Tensor &tensor, std::vector<int64_t> sizes) const
    {
        const int64_t rows = tensor.dim() ? tensor.size(0) : 1;
        if (sizes.empty()) {
            TORCH_CHECK_VALUE(rows % size_ == 0, "all_to_all_single: ", rows,
                              " rows cannot be split among ", size_, " ranks");
            sizes.assign(size_t(size_), rows / size_);
        }
        TORCH_CHECK_VALUE(int(sizes.size()) == size_ && sum_of(sizes) == rows,
                          "all_to_all_single: split sizes [", c10::Join(", ", sizes),
                          "] do not match ", rows, " rows and ", size_, " ranks");
        for (int64_t &size : sizes)
            size *= rows ? tensor.numel() / rows : 0;
        return counts_of(sizes, tensor);
    }

    work_ptr alltoall_base(Tensor &target, Tensor &source, std::vector<int64_t> &output_sizes,
                           std::vector<int64_t> &input_sizes,
                           const c10d::AllToAllOptions &opts) override
    {
        const auto one = make("all_to_all_single", OpType::ALLTOALL_BASE);
        check_like(one->text, target, source, false);
        const bool split = !output_sizes.empty() || !input_sizes.empty();
        TORCH_CHECK_VALUE(split ||
                              (source.numel() % size_ == 0 && source.numel() == target.numel()),
                          "all_to_all_single: ", source.numel(), " and ", target.numel(),
                          " elements cannot be split among ", size_, " ranks");
        const Tensor from = input(*one, source), to = output(*one, target);
        call &added = add(*one, LOCKSTEP_ALL_TO_ALL, from, to);
        // Another rank may name the sizes of equal parts, so counts travel in any case.
        const std::vector<int64_t> equal(size_t(size_), source.numel() / size_);
        added.input_counts = split ? split_sizes(from, input_sizes) : counts_of(equal, from);
        added.output_counts = split ? split_sizes(to, output_sizes) : counts_of(equal, from);
        return begin(one, {target}, opts.asyncOp, opts.timeout);
    }

    work_ptr barrier(const c10d::BarrierOptions &opts) override
    {
        const auto one = make("barrier", OpType::BARRIER);
        add(*one, LOCKSTEP_BARRIER, {}, {});
        return begin(one, {}, opts.asyncOp, opts.timeout);
    }
};

} // namespace
