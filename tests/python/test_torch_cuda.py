# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel with parameters on a GPU. All ranks use the first GPU: two ranks share it
over host memory, so Gloo is what they are compared with."""

import os
import unittest

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # Asking must not begin CUDA: we fork.
try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed")
if not torch.cuda.is_available():
    raise unittest.SkipTest("there is no GPU for PyTorch")

from lockstep.torch import DistributedDataParallel as Ours
from lockstep.torch import sync
from torch_ranks import ranks

Stock = torch.nn.parallel.DistributedDataParallel


def net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(),
                               torch.nn.Linear(64, 4)).to("cuda:0")


def train(model, rank, call=None):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i in range(6):
        generator = torch.Generator().manual_seed(10 * rank + i)
        x = torch.randn(16, 8, generator=generator).to("cuda:0")
        optimizer.zero_grad()
        (call or model)(x).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    return [p.detach().cpu() for p in model.parameters()]


def far(one, other):
    return max((a - b).abs().max().item() for a, b in zip(one, other))


class Cuda(unittest.TestCase):
    def test_one_rank(self):
        def run(rank):
            model = Ours(net())
            device = model.lockstep_member is not None and model.lockstep_member.on_device
            return device, far(train(model, rank), train(net(), rank))
        device, worst = ranks(1, run)[0]
        self.assertTrue(device, "the reducer of PyTorch was used")
        self.assertLessEqual(worst, 1e-6)

    def test_two_ranks(self):
        def run(rank):
            model, stock = Ours(net()), Stock(net())
            used = "lockstep" if model.lockstep_member is not None else "PyTorch"
            return used, far(train(model, rank), train(stock, rank))
        for used, worst in ranks(2, run):
            print(f"two ranks on one GPU: the reducer of {used}")
            self.assertLessEqual(worst, 1e-6)

    def test_unused_and_static(self):
        def run(rank):
            found = []
            for options in ({"find_unused_parameters": True}, {"static_graph": True}):
                found.append(far(train(Ours(net(), **options), rank), train(net(), rank)))
            return found
        self.assertLessEqual(max(ranks(1, run)[0]), 1e-6)

    def test_function(self):
        def run(rank):
            model = net()
            call = sync(model)(lambda x: model(x))
            return far(train(model, rank, call), train(net(), rank))
        self.assertLessEqual(ranks(1, run)[0], 1e-6)


if __name__ == "__main__":
    unittest.main()
