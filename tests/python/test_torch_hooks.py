# SPDX-License-Identifier: Apache-2.0
"""Native hooks and hooks of Python do the same, and somebody says which of them run."""

import logging
import os
import tempfile
import unittest
from unittest import mock

try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed")
import torch.utils.checkpoint as checkpoints

from lockstep.torch import DistributedDataParallel as Ours
from lockstep.torch import build, hooks
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
