# SPDX-License-Identifier: Apache-2.0
"""lockstep/torch.h: the C++ frontend of PyTorch. `make libtorch` builds the programs."""

import os
import re
import subprocess
import unittest

import support

try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed")

BUILD = os.path.dirname(support.BIN)
CHECK = os.path.join(BUILD, "tests", "python", "libtorch_check")
MNIST = os.path.join(BUILD, "examples", "libtorch", "mnist")
DATA = os.environ.get("MNIST_DIR", os.path.join(support.ROOT, "build", "data", "mnist"))


def run(ranks, *command):
    tool = [os.path.join(support.BIN, "lockstep"), "run", "-n", str(ranks), "--no-prefix", "--"]
    return support.Said(subprocess.run(
        [*(tool if ranks > 1 else []), *command], capture_output=True, text=True, check=False,
        env=support.environment({"OMP_NUM_THREADS": "1"}), timeout=support.TIMEOUT_S))


class Test(unittest.TestCase):
    def scenario(self, name, ranks=2, code=0):
        """What each rank has printed under each key."""
        said = run(ranks, CHECK, name)
        self.assertEqual(said.code, code, said)
        found = [{} for _ in range(ranks)]
        for rank, key, rest in re.findall(r"^(\d) (\w+) (.*(?:\n  .*)*)", said.out, re.M):
            found[int(rank)][key] = rest
        return found

    def numbers(self, text):
        return [float(word) for word in text.split()]


@unittest.skipUnless(os.path.exists(CHECK), "make libtorch has not built libtorch_check")
class Libtorch(Test):
    def test_equal(self):
        """Two ranks are equal to the bit, and to one rank that has the whole batch."""
        one, other = self.scenario("train")
        self.assertEqual(one["steps"], "12")
        self.assertEqual(one, other)
        self.near_one_rank(one)

    def near_one_rank(self, one):
        [alone] = self.scenario("train", ranks=1)
        pairs = list(zip(self.numbers(one["parameters"]), self.numbers(alone["parameters"])))
        self.assertEqual(len(pairs), 3 + 8 * 16 + 16 + 2 * (16 * 4 + 4))
        self.assertLess(max(abs(a - b) for a, b in pairs), 1e-6)

    def test_equal_four(self):
        first, *others = self.scenario("train", ranks=4)
        self.assertEqual(others, [first] * 3)
        self.near_one_rank(first)

    def test_wrappers_keep_nothing(self):
        for rank in self.scenario("wrappers"):
            size, descriptors, threads = map(int, rank["grown"].split())
            self.assertLess(size, 1 << 20, rank)  # 2.6 KB for each wrapper.
            self.assertLessEqual(descriptors, 2, rank)
            self.assertLessEqual(threads, 0, rank)

    def test_branches(self):
        """A parameter that only one rank used, that no rank used, one of a window, and one that the
        last pass of a rank leaves out."""
        one, other = self.scenario("branches")
        self.assertEqual(one, other)
        self.assertEqual(one["spare_defined"], "0")
        for key in ("above", "spare", "window"):
            self.assertGreater(max(map(abs, self.numbers(one[key]))), 0.01, key)
        self.assertEqual(self.numbers(one["left_out"]), [1.5] * 4)

    def test_unused(self):
        one, other = self.scenario("unused")
        self.assertEqual(one, other)
        self.assertRegex(one["said"], r"^LOCKSTEP_E_UNUSED: [^$]*'spare\.weight' on rank 1")
        self.assertGreater(max(map(abs, self.numbers(one["grad"]))), 0.01)

    def test_weights(self):
        """Rank 0 has one sample with gradient 0, rank 1 two with 3."""
        for rank in self.scenario("weights"):
            self.assertEqual(rank, {"start": "5 5", "weighted": "2", "buffer": "7 7"})

    def test_together(self):
        one, other = self.scenario("together")
        self.assertEqual(one, other)
        self.assertEqual(one["steps"], "3")
        self.assertEqual(len(self.numbers(one["grad"])), 32)

    def test_killed(self):
        one, _ = self.scenario("killed", code=137)
        self.assertRegex(one["said"], r"^LOCKSTEP_E_PEER_LOST: .*rank 1")

    def test_exception_in_backward(self):
        one, other = self.scenario("backward")
        self.assertRegex(one["said"], r"^LOCKSTEP_E_UNUSED: [^$]*given up[^$]*'net' on rank 1")
        self.assertEqual(other["said"], "bad data")
        self.assertEqual(one["grad"], other["grad"])

    def test_exception_in_forward(self):
        """It ends no step if the rank goes on. If it gives up, the others get its text."""
        one, other = self.scenario("forward")
        self.assertRegex(one["said"], r"^LOCKSTEP_E_PEER_LOST: .*rank 1 .*mat1 and mat2")
        self.assertEqual(other["said"], "given up")
        self.assertEqual(one["grad"], other["grad"])

    def test_gradients_with_other_memory(self):
        one, other = self.scenario("moved")
        self.assertEqual(one, other)
        self.assertNotEqual(one["grad1"], one["grad2"])

    def test_parameters_that_are_changed(self):
        one, other = self.scenario("changed")
        self.assertEqual(one, other)
        self.assertRegex(one["gaps"], r"^LOCKSTEP_E_UNSUPPORTED: .*'above\.weight' was changed")
        self.assertRegex(one["grown"], r"^LOCKSTEP_E_UNSUPPORTED: .*'spare\.weight' was changed")
        pairs = list(zip(self.numbers(one["grad"]), self.numbers(one["turned"])))
        self.assertEqual(len(pairs), 4 * 16)
        self.assertLess(max(abs(a - b) for a, b in pairs), 1e-6)

    def test_differ(self):
        one, other = self.scenario("differ")
        self.assertEqual(one, other)
        self.assertRegex(one["said"], r"^LOCKSTEP_E_MISMATCH: [^$]*weight: shape \[4, 4\] on rank 0")


@unittest.skipUnless(os.path.exists(MNIST), "make libtorch has not built the example")
@unittest.skipUnless(os.path.exists(os.path.join(DATA, "train-images-idx3-ubyte")),
                     "no MNIST files: tools/get-mnist fetches them")
class Mnist(Test):
    def ended(self, ranks):
        said = run(ranks, MNIST, "--data", DATA, "--steps", "40")
        self.assertEqual(said.code, 0, said)
        found = re.findall(r"rank \d of \d: parameters add up to (\S+), hash (\w+)", said.out)
        self.assertEqual(len(found), ranks, said)
        self.assertEqual(len(set(found)), 1, said)
        return float(found[0][0])

    def test_equal(self):
        alone = self.ended(1)
        for ranks in (3, 4):
            self.assertAlmostEqual(self.ended(ranks), alone, delta=0.01)
