# SPDX-License-Identifier: Apache-2.0
"""The examples of PyTorch: three doors give the same parameters, an agent and a transformer learn."""

import importlib.util
import os
import re
import subprocess
import sys
import unittest

try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed")

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EXAMPLES = os.path.join(ROOT, "examples", "python")
MNIST = os.path.join(EXAMPLES, "mnist.py")
DATA = os.environ.get("MNIST_DIR", os.path.join(ROOT, "build", "data", "mnist"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def said(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return done.stdout


@unittest.skipUnless(os.path.exists(os.path.join(DATA, "train-images-idx3-ubyte")),
                     "no MNIST files: tools/get-mnist fetches them")
class Mnist(unittest.TestCase):
    def total(self, text):
        found = re.search(r"(\d) ranks?: parameters add up to (\S+) on every rank", text)
        self.assertIsNotNone(found, text)
        return found.group(2)

    def test_doors(self):
        steps = ["--data", DATA, "--steps", "40"]
        totals = {
            "ddp": self.total(said([*TORCHRUN, MNIST, *steps])),
            "c10d": self.total(said([*TORCHRUN, MNIST, "--door", "c10d", *steps])),
            "main": self.total(
                said([*TORCHRUN, "-m", "lockstep.torch", MNIST, "--door", "main", *steps])),
        }
        self.assertEqual(len(set(totals.values())), 1, totals)
        alone = float(self.total(said([sys.executable, MNIST, *steps])))
        self.assertAlmostEqual(float(totals["ddp"]), alone, delta=0.01)


class Mixed(unittest.TestCase):
    def test_ranks_with_and_without_a_gpu(self):
        """Without a GPU all ranks are on processors. The example asserts that their bits agree."""
        text = said([*TORCHRUN, os.path.join(EXAMPLES, "mixed.py"), "--steps", "100"])
        devices, first, last = re.search(r"ranks on (.*): .* loss (\S+) at first, (\S+) at the end",
                                         text).groups()
        self.assertEqual(devices.split(", "), [
            f"cuda:{rank}" if rank < torch.cuda.device_count() else "cpu" for rank in range(2)])
        self.assertLess(float(last), float(first) / 2)

    def test_devices(self):
        spec = importlib.util.spec_from_file_location("mixed", os.path.join(EXAMPLES, "mixed.py"))
        mixed = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(mixed)
        self.assertEqual([str(mixed.device_of(rank, 2)) for rank in range(4)],
                         ["cuda:0", "cuda:1", "cpu", "cpu"])
        self.assertEqual(str(mixed.device_of(0, 0)), "cpu")


class Learning(unittest.TestCase):
    def test_agent(self):
        """The agent asserts that its copies are equal."""
        text = said([*TORCHRUN, os.path.join(EXAMPLES, "agent.py"), "--steps", "400"])
        before, after = re.search(r"2 ranks: the mean reward was (\S+) and is (\S+)", text).groups()
        self.assertLess(float(before), -1)
        self.assertGreater(float(after), -0.3)

    def test_transformer(self):
        text = said([*TORCHRUN, os.path.join(EXAMPLES, "text.py"), "--steps", "60"])
        losses = [float(loss) for loss in re.findall(r"loss (\S+)", text)]
        self.assertGreater(losses[0], 4.5)
        self.assertLess(losses[-1], 3.9)  # The text is docs/*.md: it differs with every page.
