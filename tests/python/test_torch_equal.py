# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel of lockstep gives what that of PyTorch gives on Gloo: losses, parameters
and gradients. Two ranks: to the bit. Three ranks: but for rounding."""

import contextlib
import copy
import unittest

try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed")
import torch.utils.checkpoint as checkpoints

from lockstep.torch import DistributedDataParallel as Ours
from torch_ranks import ranks

Stock = torch.nn.parallel.DistributedDataParallel
SGD, Adam = torch.optim.SGD, torch.optim.Adam
cross_entropy = torch.nn.functional.cross_entropy


def batch(rank, i):
    generator = torch.Generator().manual_seed(1000 * rank + i)
    return (torch.randn(16, 8, generator=generator),
            torch.randint(0, 4, (16,), generator=generator))


class Net(torch.nn.Module):
    """A bias before a norm has only rounding errors as its gradient, and Adam makes whole steps of
    them. So there is none."""

    def __init__(self):
        super().__init__()
        self.a, self.n = torch.nn.Linear(8, 64, bias=False), torch.nn.BatchNorm1d(64)
        self.b, self.scale = torch.nn.Linear(64, 4), torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.b(torch.tanh(self.n(self.a(x)))) * self.scale


class Branches(torch.nn.Module):
    """A rank uses its own branch. `all` is used by all ranks, `none` by no rank."""

    def __init__(self):
        super().__init__()
        self.branch = torch.nn.ModuleList(torch.nn.Linear(8, 4) for _ in range(3))
        self.none, self.all = torch.nn.Linear(2, 2), torch.nn.Linear(4, 4)
        self.number = 0

    def forward(self, x):
        return self.all(self.branch[self.number](x))


class Checkpointed(torch.nn.Module):
    def __init__(self, reentrant, twice=False):
        super().__init__()
        self.a = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
        self.b, self.reentrant, self.twice = torch.nn.Linear(8, 4), reentrant, twice

    def forward(self, x):
        for _ in range(1 + self.twice):
            x = checkpoints.checkpoint(self.a, x, use_reentrant=self.reentrant)
        return self.b(x)


def train(model, rank, optimizer=SGD, steps=12, micro=1, wants_grad=False, to_none=True):
    """Losses."""
    optimizer, losses = optimizer(model.parameters(), 1e-2), []
    for i in range(steps):
        optimizer.zero_grad(set_to_none=to_none)
        for k in range(micro):
            x, y = batch(rank, 100 * i + k)
            x.requires_grad_(wants_grad)
            if k < micro - 1:
                with model.no_sync():
                    loss = cross_entropy(model(x), y)
                    loss.backward()
            else:
                loss = cross_entropy(model(x), y)
                loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return losses


def branches(model, rank, quiet):
    """Two backward passes a step. quiet: the first one only accumulates. Without that, rank 1
    leaves the branch of the first one out of the second."""
    optimizer = SGD(model.parameters(), 0.1)
    for i in range(4):
        optimizer.zero_grad(set_to_none=i % 2 == 0)
        for k in range(2):
            model.module.number = 2 * k if quiet else k * rank
            with model.no_sync() if quiet and k == 0 else contextlib.nullcontext():
                x, y = batch(rank, 100 * i + k)
                cross_entropy(model(x), y).backward()
        optimizer.step()
    return []


def joined(**options):
    def drive(model, rank):
        optimizer, losses = SGD(model.parameters(), 0.1), []
        try:
            with model.join(**options):
                for i in range(5 + 3 * rank):
                    x, y = batch(rank, i)
                    optimizer.zero_grad()
                    loss = cross_entropy(model(x), y)
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
        except RuntimeError as error:
            if "throw_on_early_termination" not in options or "exhausted" not in str(error):
                raise
        return losses
    return drive


def difference(rank, make, drive, **options):
    """The largest difference to PyTorch in losses, state and gradients."""
    torch.manual_seed(rank)  # Ranks begin differently.
    net = make()
    if isinstance(net, Branches):
        net.number = rank
    ours, stock = Ours(copy.deepcopy(net), **options), Stock(copy.deepcopy(net), **options)
    assert ours.lockstep_member is not None, "the reducer of PyTorch is used"
    losses = drive(ours, rank), drive(stock, rank)
    assert len(losses[0]) == len(losses[1]), losses
    worst = max((abs(a - b) for a, b in zip(*losses)), default=0.0)
    for a, b in zip(ours.state_dict().values(), stock.state_dict().values()):
        worst = max(worst, (a - b).abs().max().item())
    for (name, p), q in zip(ours.named_parameters(), stock.parameters()):
        assert (p.grad is None) == (q.grad is None), f"{name}: {p.grad} and {q.grad}"
        if p.grad is not None and not getattr(drive, "joins", False):
            worst = max(worst, (p.grad - q.grad).abs().max().item())
    return worst


def with_marks(drive):
    drive.joins = True  # A rank that has joined may have other gradients; they are not used.
    return drive


CASES = {
    "adam": (Net, lambda m, r: train(m, r, Adam), {}),
    "sgd": (Net, train, {}),
    "zero_grad": (Net, lambda m, r: train(m, r, to_none=False), {}),
    "no_sync": (Net, lambda m, r: train(m, r, micro=3), {}),
    "find_unused": (Branches, lambda m, r: train(m, r, Adam), {"find_unused_parameters": True}),
    "find_unused_no_sync": (Branches, lambda m, r: train(m, r, micro=2),
                            {"find_unused_parameters": True}),
    "two_passes": (Branches, lambda m, r: branches(m, r, False), {"find_unused_parameters": True}),
    "quiet_branch": (Branches, lambda m, r: branches(m, r, True), {"find_unused_parameters": True}),
    "static_graph": (Branches, train, {"static_graph": True}),
    "static_checkpoint": (lambda: Checkpointed(True, True),
                          lambda m, r: train(m, r, wants_grad=True), {"static_graph": True}),
    "checkpoint": (lambda: Checkpointed(False), train, {}),
    "reentrant": (lambda: Checkpointed(True), lambda m, r: train(m, r, wants_grad=True), {}),
    "join": (lambda: torch.nn.Linear(8, 4), with_marks(joined()), {}),
    "join_rest": (lambda: torch.nn.Linear(8, 4),
                  with_marks(joined(divide_by_initial_world_size=False)), {}),
    "join_throw": (lambda: torch.nn.Linear(8, 4),
                   with_marks(joined(throw_on_early_termination=True)), {}),
    "join_unused": (lambda: torch.nn.Linear(8, 4), with_marks(joined()),
                    {"find_unused_parameters": True}),
    "sparse": (lambda: torch.nn.Sequential(torch.nn.Embedding(10, 4, sparse=True),
                                           torch.nn.Flatten(), torch.nn.Linear(8, 4)),
               lambda m, r: sparsely(m, r), {}),
    "complex": (lambda: Complex(), train, {}),
    "channels_last": (lambda: Images(), lambda m, r: images(m, r), {}),
}


class Complex(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(8, 4, dtype=torch.complex64))

    def forward(self, x):
        return (x.to(torch.complex64) @ self.w).abs()


class Images(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.c = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)

    def forward(self, x):
        return self.c(x).mean((2, 3))


def images(model, rank):
    optimizer, losses = SGD(model.parameters(), 0.1), []
    for i in range(4):
        generator = torch.Generator().manual_seed(1000 * rank + i)
        optimizer.zero_grad()
        loss = model(torch.randn(2, 3, 8, 8, generator=generator)).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sparsely(model, rank):
    optimizer, losses = SGD(model.parameters(), 0.1), []
    for i in range(6):
        generator = torch.Generator().manual_seed(1000 * rank + i)
        x = torch.randint(0, 10, (16, 2), generator=generator)
        y = torch.randint(0, 4, (16,), generator=generator)
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for p in model.parameters():
        if p.grad is not None and p.grad.is_sparse:
            p.grad = p.grad.to_dense()
    return losses


class Equal(unittest.TestCase):
    def differences(self, n, *names, **variables):
        def run(rank):
            return {name: difference(rank, CASES[name][0], CASES[name][1], **CASES[name][2])
                    for name in names}
        return ranks(n, run, **variables)

    def check(self, n, limit, *names, **variables):
        for rank, found in enumerate(self.differences(n, *names, **variables)):
            for name, worst in found.items():
                with self.subTest(name=name, rank=rank):
                    self.assertLessEqual(worst, limit)

    def test_two_ranks_plain(self):
        self.check(2, 0.0, "adam", "sgd", "zero_grad", "no_sync")

    def test_two_ranks_unused(self):
        self.check(2, 0.0, "find_unused", "find_unused_no_sync", "static_graph")

    def test_two_ranks_left_out(self):
        """Gradients of a pass before, of parameters that the last pass leaves out."""
        for kind in "auto", "python":
            self.check(2, 0.0, "two_passes", "quiet_branch", LOCKSTEP_TORCH_HOOKS=kind)

    def test_two_ranks_checkpoint(self):
        self.check(2, 0.0, "static_checkpoint", "checkpoint", "reentrant")

    def test_two_ranks_join(self):
        self.check(2, 0.0, "join", "join_rest", "join_throw", "join_unused")

    def test_two_ranks_layouts(self):
        self.check(2, 0.0, "sparse", "complex", "channels_last")

    def test_three_ranks(self):
        self.check(3, 1e-6, "sgd", "no_sync", "find_unused_no_sync", "static_graph", "join",
                   "join_rest", "join_unused", "sparse", "reentrant")


if __name__ == "__main__":
    unittest.main()
