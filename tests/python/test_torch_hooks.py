# SPDX-License-Identifier: Apache-2.0
"""Native hooks and hooks of Python do the same, and somebody says which of them run."""

import contextlib
import copy
import logging
import os
import tempfile
import unittest
from unittest import mock

try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed")
import torch.distributed as dist
import torch.utils.checkpoint as checkpoints

from lockstep.torch import DistributedDataParallel as Ours
from lockstep.torch import build, hooks, sync
from torch_ranks import ranks

NATIVE = build.compiler() is not None


class Net(torch.nn.Module):
    """A layer behind a checkpoint, one that only rank 0 uses, and one that nobody uses."""

    def __init__(self, reentrant):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.some, self.none = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)
        self.rank, self.reentrant = 0, reentrant

    def forward(self, x):
        x = self.b(checkpoints.checkpoint(self.a, x, use_reentrant=self.reentrant))
        return self.some(x) if self.rank == 0 else x


def gradients(rank, reentrant, micro=1):
    torch.manual_seed(1)
    model = Ours(Net(reentrant), find_unused_parameters=True)
    model.module.rank = rank
    for i in range(3):
        model.zero_grad(set_to_none=i != 1)
        for k in range(micro):
            x = torch.full((4, 8), 1.0 + rank + k, requires_grad=True)
            if k < micro - 1:
                with model.no_sync():
                    model(x).square().sum().backward()
            else:
                model(x).square().sum().backward()
    return [None if p.grad is None else p.grad.tolist() for p in model.parameters()]


def new_data(net):
    for p in net.parameters():
        p.grad.data = p.grad.data.clamp(-1, 1)


def other_dtype(net):
    for p in net.parameters():
        p.grad.data = p.grad.data.to(torch.float16)


def new_storage(net):
    for p in net.parameters():
        p.grad.set_(p.grad.clone())


def other_strides(net):
    for p in net.parameters():
        p.grad.transpose_(0, -1).transpose_(0, -1)
        if p.dim() > 1:
            p.grad.data = p.grad.data.contiguous(memory_format=torch.channels_last)


def moved_storage(net):
    """As a queue of torch.multiprocessing does it."""
    for p in net.parameters():
        p.grad.untyped_storage().share_memory_()


def there_and_back(net):
    dtype = net.weight.dtype
    net.to(torch.float64 if dtype is not torch.float64 else torch.float32).to(dtype)


MOVES = (new_data, other_dtype, new_storage, other_strides, moved_storage, there_and_back,
         lambda net: net.share_memory(), lambda net: net.to(memory_format=torch.channels_last))


def moved(rank, move, when, dtype, way):
    """The program gives gradients other memory after step `when`. Each rank's gradients are beside
    those of a module that is not wrapped."""
    torch.manual_seed(1)
    net = torch.nn.Conv2d(3, 2, 2).to(dtype)
    plain, model = copy.deepcopy(net), sync(net)(net.forward) if "sync" in way else Ours(net)
    for i in range(4):
        for each in plain, net:
            if "keep" not in way:
                each.zero_grad(set_to_none="none" in way)
        x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(2 * i + rank))
        if "window" in way:
            plain(2 * x.to(dtype)).square().mean().backward()
            with model.no_sync():
                model(2 * x.to(dtype)).square().mean().backward()
            if i == when:
                move(net), move(plain)
        plain(x.to(dtype)).square().mean().backward()
        model(x.to(dtype)).square().mean().backward()
        for p, q in zip(plain.parameters(), net.parameters()):
            mean = p.grad.double() / 2
            dist.all_reduce(mean)
            near = 1e-5 if dtype is not torch.bfloat16 and move is not other_dtype else 0.03
            if q.grad.dtype is not dtype or not torch.allclose(mean, q.grad.double(), near, near):
                raise AssertionError((move, when, dtype, way, i, mean, q.grad))
            p.grad = q.grad.detach().clone()
        if i == when and "window" not in way:
            move(net), move(plain)


def moved_everywhere(rank):
    for move in MOVES:
        for when in (0, 2):  # Before and after gradients are arranged.
            for way in ("zero", "none", "keep", "window", "sync zero", "sync none window"):
                moved(rank, move, when, torch.float32, way)
        for dtype in (torch.float64, torch.bfloat16):
            moved(rank, move, 2, dtype, "zero")


def moved_where_unused(rank):
    """Gradients that only the other rank produces get their values, also if they were moved."""
    torch.manual_seed(1)
    model = Ours(Net(False), find_unused_parameters=True)
    found = []
    for i in range(3):
        model.module.rank = rank if i == 2 else 0
        model.zero_grad(set_to_none=False)
        model(torch.full((4, 8), 1.0 + rank)).square().sum().backward()
        new_data(model.module.some)
        found.append(model.module.some.bias.grad.tolist())
    return found[-1]


def moved_by_a_hook(rank, before):
    """A hook of the program gives the gradient other memory during the backward pass."""
    def again(p):
        p.grad.data = p.grad.data.clone()

    net = torch.nn.Linear(8, 1, bias=False)
    for wrap in (True, False) if before else (False, True):
        if wrap:
            net.weight.register_post_accumulate_grad_hook(again)
        else:
            model = Ours(net)
    for _ in range(3):
        model.zero_grad(set_to_none=False)
        model(torch.full((1, 8), 1.0 + rank)).sum().backward()
    return net.weight.grad[0, 0].item()


def memory_of_gradients(rank):
    """Shared memory of this process beyond that of the first step, in MiB, after each later step.
    The net has 16 MiB of gradients, and the ranks see those of each other."""
    def shared():
        with open("/proc/self/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("RssShmem")) / 1024

    model, found = Ours(torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4)))), []
    for i in range(5):
        if i == 3:
            model.double()
        model.zero_grad()
        model(torch.ones(1, 1024).to(model.module[0].weight.dtype)).sum().backward()
        if i == 0:
            first = shared()
        found.append(shared() - first)
    return found, len(model.lockstep_member.world._unmade)


def exchanged(rank, last_first):
    """Gradients change their parameters, or move to another one, and are accumulated."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(*(torch.nn.Linear(8, 8, bias=False) for _ in range(3)))
    plain, model = copy.deepcopy(net), Ours(net)
    for i in range(5):
        for each in plain, model:
            each.zero_grad()
            each(torch.ones(1, 8)).square().sum().backward()
            a, b, c = each.parameters() if last_first else reversed(list(each.parameters()))
            if i % 2:
                a.grad, b.grad, c.grad = b.grad, c.grad, a.grad
            else:
                a.grad, b.grad = None, a.grad
            each(torch.ones(1, 8)).square().sum().backward()
        for p, q in zip(plain.parameters(), net.parameters()):
            if not torch.allclose(p.grad, q.grad, 1e-4, 1e-5):
                raise AssertionError((rank, i, p.grad, q.grad))


class Branches(torch.nn.Module):
    """Nobody knows which gradients come in a backward pass: a checkpoint hides parameters, or no
    tensor is found in the output."""

    def __init__(self, reentrant):
        super().__init__()
        self.a, self.reentrant = torch.nn.Linear(8, 8), reentrant
        self.branch = torch.nn.ModuleList(torch.nn.Linear(8, 4) for _ in range(3))

    def forward(self, x, number):
        if self.reentrant:
            x = checkpoints.checkpoint(self.a, x.clone().requires_grad_(), use_reentrant=True)
            return self.branch[number](x).square().sum()
        return torch.distributions.Normal(self.branch[number](self.a(x)), 1.0)


def left_out(rank, reentrant, quiet, accept=True):
    """Steps of two passes, and whether each gradient is the mean. quiet: the first pass only
    accumulates. accept: the passes use several branches."""
    def loss(net, r, i, k):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * i + 10 * k + r))
        out = net(x, (2 * k + r * (1 - k) if quiet else k * r) if accept else 0)
        return out if reentrant else out.loc.square().sum()

    torch.manual_seed(1)
    net = Branches(reentrant)
    if not accept:
        del net.branch[1:]
    model, plain = Ours(net, find_unused_parameters=accept), copy.deepcopy(net)
    found = []
    for i in range(4):
        for each in model, plain:
            each.zero_grad(set_to_none=i % 2 == 0)
        for k in range(2):
            with model.no_sync() if quiet and k == 0 else contextlib.nullcontext():
                loss(model, rank, i, k).backward()
            for r in range(2):
                (loss(plain, r, i, k) / 2).backward()
        for p, q in zip(net.parameters(), plain.parameters()):
            found.append(p.grad is q.grad or torch.allclose(p.grad, q.grad, 1e-4, 1e-5))
    return found


class LeftOut(unittest.TestCase):
    def check(self, *arguments):
        for kind in ("native", "python") if NATIVE else ("python",):
            with self.subTest(hooks=kind, arguments=arguments):
                results = ranks(2, lambda rank: left_out(rank, *arguments),
                                LOCKSTEP_TORCH_HOOKS=kind)
                self.assertEqual(set(results[0] + results[1]), {True})

    def test_parameters_that_a_pass_leaves_out(self):
        """Their gradients of passes before are in the means."""
        self.check(False, False)
        self.check(False, True)

    @unittest.skipUnless(NATIVE, "there is no C++ compiler")
    def test_checkpoint(self):
        for quiet in (False, True):
            with self.subTest(quiet=quiet):
                for found in ranks(2, lambda rank: left_out(rank, True, quiet),
                                   LOCKSTEP_TORCH_HOOKS="native"):
                    self.assertEqual(set(found), {True})

    def test_checkpoint_that_hides_accumulated_gradients(self):
        self.check(True, True, False)
        self.check(True, False, False)


class Moved(unittest.TestCase):
    def test_gradients_of_other_parameters(self):
        for kind in ("native", "python") if NATIVE else ("python",):
            for last_first in (False, True):
                ranks(2, lambda rank: exchanged(rank, last_first), LOCKSTEP_TORCH_HOOKS=kind)

    def test_memory_that_is_left_is_freed(self):
        for found, left in ranks(2, memory_of_gradients):
            self.assertLess(max(found[:3]), 8, found)
            self.assertLess(found[-1], 40, found)  # Of twice the size.
            self.assertEqual(left, 0)

    def test_gradients_with_other_memory(self):
        for kind in ("native", "python") if NATIVE else ("python",):
            with self.subTest(hooks=kind):
                ranks(2, moved_everywhere, LOCKSTEP_TORCH_HOOKS=kind)
                unused = ranks(2, moved_where_unused, LOCKSTEP_TORCH_HOOKS=kind)
                self.assertEqual(unused[0], unused[1])
                for before in (True, False):
                    self.assertEqual(ranks(2, lambda rank: moved_by_a_hook(rank, before),
                                           LOCKSTEP_TORCH_HOOKS=kind), [1.5, 1.5])


class Hooks(unittest.TestCase):
    def made(self, kind, *arguments):
        def run(rank):
            return hooks.kind(), gradients(rank, *arguments)
        results = ranks(2, run, LOCKSTEP_TORCH_HOOKS=kind)
        self.assertEqual([result[0] for result in results], [kind, kind])
        self.assertEqual(results[0][1], results[1][1])
        return results[0][1]

    @unittest.skipUnless(NATIVE, "there is no C++ compiler")
    def test_same_gradients(self):
        for micro in (1, 2):
            python, native = (self.made(kind, False, micro) for kind in ("python", "native"))
            self.assertEqual(python, native)
            self.assertIsNone(native[-1])
            self.assertIsNotNone(native[4])

    @unittest.skipUnless(NATIVE, "there is no C++ compiler")
    def test_checkpoint_that_hides_parameters(self):
        """Native hooks see a re-entrant checkpoint, and wait for what it hides."""
        self.assertIsNotNone(self.made("native", True)[0])

    @unittest.skipUnless(NATIVE, "there is no C++ compiler")
    def test_one_build(self):
        build.build()
        path, new = build.build()
        self.assertFalse(new)
        self.assertIn(torch.__version__, os.path.basename(path))
        with mock.patch.object(torch, "__version__", "2.99.0"):
            with self.assertRaisesRegex(build.BuildFailed, f"was built for PyTorch {build.torch_version().split('+')[0]}"):
                hooks._Library(path)

    def test_an_old_pytorch(self):
        """No compiler is started for headers that lack what the native backend needs."""
        with mock.patch.object(build, "torch_version", return_value="2.9.1+cpu"):
            with self.assertRaisesRegex(build.BuildFailed, "backend needs PyTorch 2.10 or later"):
                build.build("backend")

    def test_without_a_compiler(self):
        with tempfile.TemporaryDirectory() as empty:
            with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": empty, "PATH": empty}):
                os.environ.pop("CXX", None)
                with self.assertRaisesRegex(build.BuildFailed, "no C.. compiler"):
                    build.build()
                with mock.patch.object(hooks, "_asked", False), \
                        mock.patch.object(hooks, "_library", None), \
                        self.assertLogs("lockstep.torch", logging.INFO) as said:
                    self.assertEqual(hooks.kind(), "python")
                self.assertIn("no C++ compiler", said.output[0])
                with mock.patch.dict(os.environ, {"LOCKSTEP_TORCH_HOOKS": "native"}), \
                        mock.patch.object(hooks, "_asked", False), \
                        self.assertRaisesRegex(RuntimeError, "HOOKS is native"):
                    hooks.kind()

    def test_compiler_that_fails(self):
        with tempfile.TemporaryDirectory() as empty:
            with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": empty, "CXX": "false"}), \
                    self.assertLogs("lockstep.torch", logging.WARNING) as said:
                with self.assertRaisesRegex(build.BuildFailed, "false has failed"):
                    build.build()
                self.assertIn("compiling the native hooks for PyTorch", said.output[0])

    def test_variable(self):
        with mock.patch.dict(os.environ, {"LOCKSTEP_TORCH_HOOKS": "none"}):
            with self.assertRaisesRegex(build.BuildFailed, "not native, python or auto"):
                build.choice()
        with mock.patch.dict(os.environ, {"LOCKSTEP_TORCH_HOOKS": ""}):
            self.assertEqual(build.choice(), "auto")


if __name__ == "__main__":
    unittest.main()
