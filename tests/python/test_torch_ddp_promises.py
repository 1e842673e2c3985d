# SPDX-License-Identifier: Apache-2.0
"""What PyTorch promises of DistributedDataParallel on CPUs: the stock class over the backend
lockstep, and that of lockstep.torch, each beside one process that has all samples."""

import copy
import unittest
import warnings

try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed")
import torch.distributed as dist

import lockstep.torch
from torch_ranks import ranks

Stock = torch.nn.parallel.DistributedDataParallel
cross_entropy = torch.nn.functional.cross_entropy


def doors():
    """Each way to wrap a module, with its name."""
    warnings.simplefilter("ignore")
    group = dist.new_group(backend="lockstep")
    yield "stock", lambda module, **more: Stock(module, process_group=group, **more)
    yield "ours", lockstep.torch.DistributedDataParallel


def expect(condition, *what):
    if not condition:
        raise AssertionError(" ".join(map(str, what)))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(2, 10, bias=False), torch.nn.Linear(10, 4, bias=False)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class Tasks(torch.nn.Module):
    """Rank 0 uses a, every other rank b, no rank c."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(2, 3) for _ in range(3))

    def forward(self, x, rank):
        return (self.a if rank == 0 else self.b)(x)


def samples(n):
    generator = torch.Generator().manual_seed(5)
    return (torch.randn(2 * n, 2, generator=generator),
            torch.randint(0, 4, (2 * n,), generator=generator))


def cpu_module(rank, **more):
    n = dist.get_world_size()
    for name, wrap in doors():
        torch.manual_seed(3)
        alone = Net()
        model = wrap(copy.deepcopy(alone), **more)
        x, y = samples(n)
        for _ in range(4):
            mine = slice(2 * rank, 2 * rank + 2)
            cross_entropy(alone(x), y).backward()
            cross_entropy(model(x[mine]), y[mine]).backward()
            for p, q in zip(alone.parameters(), model.parameters()):
                expect(torch.allclose(p.grad, q.grad, atol=1e-6), name, p.grad, q.grad)
                with torch.no_grad():
                    p -= 0.1 * p.grad
                    q -= 0.1 * q.grad
                    p.grad = q.grad = None
            expect(not more or model.gradient_as_bucket_view, name)


def cpu_module_views(rank):
    cpu_module(rank, gradient_as_bucket_view=True)


def ignored_output(rank, **more):
    """An output that no loss uses, and a loss from the next one."""
    for name, wrap in doors():
        model = wrap(Net(), **more)
        x, y = samples(dist.get_world_size())
        for _ in range(4):
            model(x)
        for _ in range(4):
            cross_entropy(model(x), y).backward()
        expect(all(p.grad is not None for p in model.parameters()), name)


def ignored_output_unused(rank):
    ignored_output(rank, find_unused_parameters=True)


def unused_here_and_everywhere(rank, **more):
    n = dist.get_world_size()
    for name, wrap in doors():
        torch.manual_seed(4)
        model = wrap(Tasks(), find_unused_parameters=True, **more)
        x = torch.ones(5, 2)
        for _ in range(2):
            model.zero_grad()
            model(x, rank).sum().backward()
            a, b, c = (layer.weight.grad for layer in
                       (model.module.a, model.module.b, model.module.c))
            expect(torch.allclose(a, torch.full((3, 2), 5.0 / n)), name, "a", a)
            expect(torch.allclose(b, torch.full((3, 2), 5.0 * (n - 1) / n)), name, "b", b)
            expect(c is None or not c.any(), name, "c", c)


def unused_views(rank):
    unused_here_and_everywhere(rank, gradient_as_bucket_view=True)


def sparse(rank, **more):
    n = dist.get_world_size()
    for name, wrap in doors():
        torch.manual_seed(9)
        plain = torch.nn.Sequential(torch.nn.EmbeddingBag(10, 3, sparse=True),
                                    torch.nn.Linear(3, 2, bias=False))
        model = wrap(copy.deepcopy(plain), **more)
        every = [torch.randint(0, 10, (4, 3), generator=torch.Generator().manual_seed(r))
                 for r in range(n)]
        for _ in range(2):
            plain.zero_grad()
            model.zero_grad()
            plain(torch.cat(every)).mean().backward()
            model(every[rank]).mean().backward()
            for p, q in zip(plain.parameters(), model.parameters()):
                expect(p.grad.is_sparse == q.grad.is_sparse, name, "layout")
                expect(torch.allclose(p.grad.to_dense(), q.grad.to_dense(), atol=1e-6), name)


def sparse_views(rank):
    sparse(rank, gradient_as_bucket_view=True)


def hook_future(rank):
    """A hook's future decides the gradient."""
    def simple(state, bucket):
        future = torch.futures.Future()
        future.set_result(torch.ones_like(bucket.buffer()))
        return future.then(lambda f: 2 * f.value())

    for name, wrap in doors():
        model = wrap(Net())
        model.register_comm_hook(None, simple)
        model(torch.ones(3, 2)).sum().backward()
        expect(all((p.grad == 2).all() for p in model.parameters()), name)


def hook_collective(rank):
    """A hook that asks a collective, and one that asks another in its callback."""
    for name, wrap in doors():
        group = dist.new_group(backend="lockstep") if name == "stock" else dist.group.WORLD

        def mean(state, bucket):
            n = dist.get_world_size()
            first = dist.all_reduce(bucket.buffer() / n, group=group, async_op=True).get_future()

            def again(future):
                total = dist.all_reduce(future.value()[0], group=group, async_op=True)
                return total.get_future().wait()[0] / n  # Equal on all ranks: it stays the same.

            return first.then(again)

        torch.manual_seed(3)
        plain, x = Net(), torch.full((3, 2), rank + 1.0)
        model, other = wrap(copy.deepcopy(plain)), wrap(copy.deepcopy(plain))
        model.register_comm_hook(None, mean)
        for _ in range(2):
            model(x).sum().backward()
            other(x).sum().backward()
        for p, q in zip(model.parameters(), other.parameters()):
            expect(torch.allclose(p.grad, q.grad, atol=1e-5), name)


def hook_errors(rank):
    def hook(state, bucket):
        return torch.futures.Future()

    def fails(function, kind, piece, name):
        try:
            function()
        except kind as error:
            expect(piece in str(error), name, error)
        else:
            expect(False, name, "no error with", piece)

    for name, wrap in doors():
        model = wrap(Net())
        fails(lambda: model.register_comm_hook(None, 1), TypeError, "callable", name)
        model.register_comm_hook(None, hook)
        fails(lambda: model.register_comm_hook(None, hook), RuntimeError, "only be called once",
              name)


class Critic(torch.nn.Module):
    """Its last bias has no part in the gradient of its input."""

    def __init__(self, sparse=False):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)
        self.e = torch.nn.EmbeddingBag(4, 16, sparse=True) if sparse else None

    def forward(self, x):
        hidden = torch.tanh(self.a(x))
        if self.e is not None:
            hidden = hidden + self.e(torch.arange(len(x)).reshape(-1, 1) % 4)
        return self.b(hidden)


def slope(model, x, loss, wanted=None, **more):
    """The squares of gradients that torch.autograd.grad has made before the backward pass."""
    made = torch.autograd.grad(loss, wanted or [x], **more)
    return sum(g.square().sum() for g in made)


def penalty(model, x):
    score = model(x)
    return score.mean() + slope(model, x, score.sum(), create_graph=True)


def only_penalty(model, x):
    return slope(model, x, model(x).sum(), create_graph=True)


def saliency(model, x):
    score = model(x)
    return score.mean() * slope(model, x, score.sum(), retain_graph=True).detach()


def of_parameters(model, x):
    loss = model(x).square().mean()
    return loss + slope(model, x, loss, list(model.parameters())[:2], create_graph=True)


def of_input_by_backward(model, x):
    score = model(x)
    score.sum().backward(inputs=[x], retain_graph=True)
    return score.mean() * x.grad.square().sum()


LOSSES = penalty, only_penalty, saliency, of_parameters, of_input_by_backward


def same_as_plain(name, wrap, plain, losses):
    """Wrapped modules have the gradients of plain ones, averaged by hand. losses(modules, i) does
    the backward passes."""
    models = [wrap(copy.deepcopy(each)) for each in plain]
    for i in range(3):
        for side in plain, models:
            for each in side:
                each.zero_grad()
            losses(side, i)
        for mine, other in zip(plain, models):
            for (key, p), q in zip(mine.named_parameters(), other.parameters()):
                if p.grad is None and q.grad is None:
                    continue
                mean = (torch.zeros_like(p) if p.grad is None else p.grad.to_dense())
                mean = mean / dist.get_world_size()
                dist.all_reduce(mean)
                got = torch.zeros_like(p) if q.grad is None else q.grad.to_dense()
                expect(torch.allclose(mean, got, atol=1e-5), name, key, mean, got)


def input_of(rank, i, **more):
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(100 * i + rank), **more)


def gradient_first(rank):
    """torch.autograd.grad goes through the outputs of a forward pass before its backward pass."""
    for name, wrap in doors():
        for loss in LOSSES:
            if loss is only_penalty and name == "stock":
                continue  # It waits for the bias that gets no gradient.

            def losses(modules, i):
                loss(modules[0], input_of(rank, i, requires_grad=True)).backward()

            for unused in ((True,) if loss is only_penalty else (False, True)):
                same_as_plain(f"{name} {loss.__name__} {unused}", lambda m: wrap(
                    m, find_unused_parameters=unused), [Critic()], losses)


def gradient_first_sparse(rank):
    for name, wrap in doors():
        def losses(modules, i):
            saliency(modules[0], input_of(rank, i, requires_grad=True)).backward()

        same_as_plain(name, wrap, [Critic(sparse=True)], losses)


def gradient_first_of_function(rank):
    """The same through sync."""
    def synced(module):
        function = lockstep.torch.sync(module)(module.forward)
        function.parameters, function.zero_grad = module.parameters, module.zero_grad
        return function

    for loss in LOSSES:
        same_as_plain(loss.__name__, synced, [Critic()], lambda modules, i: loss(
            modules[0], input_of(rank, i, requires_grad=True)).backward())


def passes_again(rank):
    """A pass that leaves a forward pass unused changes nothing for its own one. A second backward
    pass through a forward pass is not synchronized, as in PyTorch."""
    for name, wrap in doors():
        def losses(modules, i):
            model, x = modules[0], input_of(rank, i, requires_grad=True)
            first, second = model(x), model(2 * x)
            slope(model, x, first.sum(), retain_graph=True)
            second.mean().backward()
            first.mean().backward()

        if name == "ours":
            same_as_plain(name, wrap, [Critic()], losses)
        model = wrap(torch.nn.Linear(8, 1, bias=False))
        score = model(torch.full((1, 8), 1.0 + rank))
        score.sum().backward(retain_graph=True)
        mean = model.module.weight.grad.clone()
        score.sum().backward()
        expect(torch.allclose(model.module.weight.grad, mean + 1 + rank), name)


class Actor(Critic):
    """PyTorch finds no tensor in what it returns."""

    def forward(self, x):
        return torch.distributions.Bernoulli(logits=super().forward(x))


def hidden_output(rank):
    """The backward pass of another module comes between the forward pass and its backward pass."""
    for name, wrap in doors():
        def losses(modules, i):
            x = input_of(rank, i)
            policy, score = modules[0](x), modules[1](x)
            score.square().mean().backward()
            policy.log_prob(torch.ones(5, 1)).mean().backward()

        for unused in (False, True) if name == "ours" else (False,):
            same_as_plain(f"{name} {unused}", lambda m: wrap(m, find_unused_parameters=unused),
                          [Actor(), Critic()], losses)


def default_device(rank):
    """The program makes tensors on another device than that of the modules, unless it says which."""
    plain = [torch.nn.Linear(2, 3), torch.nn.Embedding(4, 2, sparse=True),
             torch.nn.Sequential(torch.nn.Embedding(4, 2, sparse=True), torch.nn.Linear(2, 1))]
    inputs = [torch.ones(1, 2) + rank] + [torch.tensor([rank, 3])] * 2
    for (name, wrap), one, x in ((door, *case) for door in doors() for case in zip(plain, inputs)):
        found = []
        for device in "cpu", "meta":
            module = copy.deepcopy(one)
            with torch.device(device):
                model = wrap(module)
                with model.join():  # Rank 0 has nothing for the last step.
                    for _ in range(3 + rank):
                        model.zero_grad()
                        model(x).square().sum().backward()
            found.append([p.grad.to_dense() for p in model.parameters()])
        expect(all(map(torch.equal, *found)), name, one, *found)


def pass_between(rank):
    """A pass under no_sync comes between a forward pass that synchronizes and its backward pass, on
    the last rank or on all. It only accumulates. The bits are those of averaging by hand."""
    n = dist.get_world_size()
    for several, who in ((several, who) for several in (False, True) for who in ((n - 1,), range(n))):
        torch.manual_seed(2)
        plain = [torch.nn.Linear(2, 3), torch.nn.Linear(3, 2)][:2 if several else 1]
        mine = [lockstep.torch.DistributedDataParallel(copy.deepcopy(one)) for one in plain]
        for i in range(6):
            means = []
            for models in (plain, mine):
                model = torch.nn.Sequential(*models)
                x = torch.arange(8.0).reshape(4, 2) / (rank + i + 1)
                model.zero_grad()
                loss = model(x).square().mean()
                if rank in who and i % 4 != 1:
                    if models is mine:
                        with mine[0].no_sync():
                            mine[0](x + 1).sum().backward()
                    else:
                        plain[0](x + 1).sum().backward()
                loss.backward()
                means.append([p.grad for p in model.parameters()])
            for mean in means[0]:
                dist.all_reduce(mean)
                mean /= n
            expect(all(map(torch.equal, *means)), several, who, i, *means)


def part_between(rank):
    """A part of the module is called directly, and has its backward pass under no_sync, while a
    forward pass waits: an error, in PyTorch a later one. Without such a forward pass it only adds."""
    model = lockstep.torch.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2)),
        find_unused_parameters=True)
    x = torch.ones(2, 2) * (rank + 1)
    model(x).sum().backward()
    model.zero_grad()
    with model.no_sync():
        model.module[0](x).sum().backward()
    expect(model.module[0].bias.grad.tolist() == [2.0] * 3, model.module[0].bias.grad)
    model.zero_grad()
    loss = model(x).sum()
    try:
        with model.no_sync():
            model.module[0](x).sum().backward()
    except lockstep.Invalid as error:
        expect("call the wrapper" in str(error), str(error))
    else:
        expect(False, "no error")
    loss.backward()
    expect(model.module[1].bias.grad.tolist() == [2.0] * 2, model.module[1].bias.grad)


class Promises(unittest.TestCase):
    def check(self, body, worlds=(2, 3), **more):
        for n in worlds:
            with self.subTest(ranks=n):
                ranks(n, body, **more)

    def check_hooks(self, body):
        """With hooks of either kind."""
        for kind in "auto", "python":
            with self.subTest(hooks=kind):
                self.check(body, [2], LOCKSTEP_TORCH_HOOKS=kind)

    def test_gradient_before_the_backward_pass(self):
        self.check_hooks(gradient_first)

    def test_gradient_before_the_backward_pass_of_sparse(self):
        self.check_hooks(gradient_first_sparse)

    def test_gradient_before_the_backward_pass_of_a_function(self):
        self.check_hooks(gradient_first_of_function)

    def test_several_passes_through_forward_passes(self):
        self.check_hooks(passes_again)

    def test_pass_between_a_forward_pass_and_its_backward_pass(self):
        self.check_hooks(pass_between)

    def test_part_between_a_forward_pass_and_its_backward_pass(self):
        self.check_hooks(part_between)

    def test_default_device(self):
        self.check_hooks(default_device)

    def test_output_without_a_tensor(self):
        self.check_hooks(hidden_output)

    def test_cpu_module(self):
        self.check(cpu_module)

    def test_cpu_module_with_views(self):
        self.check(cpu_module_views)

    def test_ignored_output(self):
        self.check(ignored_output)

    def test_ignored_output_and_unused_parameters(self):
        self.check(ignored_output_unused)

    def test_parameters_unused_here_or_everywhere(self):
        self.check(unused_here_and_everywhere)

    def test_parameters_unused_with_views(self):
        self.check(unused_views)

    def test_sparse_gradients(self):
        self.check(sparse)

    def test_sparse_gradients_with_views(self):
        self.check(sparse_views)

    def test_hook_decides_by_its_future(self):
        self.check(hook_future)

    def test_hook_with_collectives(self):
        self.check(hook_collective)

    def test_hook_errors(self):
        self.check(hook_errors)
