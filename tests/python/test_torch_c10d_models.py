# SPDX-License-Identifier: Apache-2.0
"""What PyTorch builds on a process group: over the backend lockstep it trains as over Gloo."""

import unittest
import warnings

try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed")
import torch.distributed as dist
from torch.distributed._composable.replicate import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import lockstep.torch  # The backend is known from here on.
from torch_ranks import ranks

STEPS = 6


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.a, self.b, self.c = (torch.nn.Linear(i, o) for i, o in ((12, 40), (40, 40), (40, 5)))

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.tanh(self.a(x)))))


def run(model, optimizer, rank):
    """Losses, and the parameters at the end."""
    generator, losses = torch.Generator().manual_seed(rank), []
    for _ in range(STEPS):
        x = torch.randn(8, 12, generator=generator)
        y = torch.randint(0, 5, (8,), generator=generator)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return losses, torch.cat([p.detach().flatten() for p in whole])


def ddp(group, rank, **more):
    model = DistributedDataParallel(Net(), process_group=group, **more)
    return run(model, torch.optim.Adam(model.parameters(), 0.01), rank)


def ddp_views(group, rank):
    return ddp(group, rank, gradient_as_bucket_view=True, find_unused_parameters=True)


def zero(group, rank):
    model = DistributedDataParallel(Net(), process_group=group)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, process_group=group, lr=0.01)
    return run(model, optimizer, rank)


def composed(group, rank):
    model = replicate(Net(), process_group=group)
    return run(model, torch.optim.Adam(model.parameters(), 0.01), rank)


def sharded(group, rank):
    model = Net()
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in (model.a, model.b, model.c):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return run(model, torch.optim.Adam(model.parameters(), 0.01), rank)


def both(train):
    def body(rank):
        warnings.simplefilter("ignore")
        group = dist.new_group(backend="lockstep")
        mine, mine_values = train(group, rank)
        other, other_values = train(dist.group.WORLD, rank)
        everywhere = [torch.empty_like(mine_values) for _ in range(dist.get_world_size())]
        dist.all_gather(everywhere, mine_values)
        return (mine == other, torch.equal(mine_values, other_values),
                (mine_values - other_values).abs().max().item(),
                all(torch.equal(t, mine_values) for t in everywhere))

    return body


class Models(unittest.TestCase):
    def check(self, train):
        for result in ranks(2, both(train)):  # Two ranks: a sum has one order.
            self.assertEqual(result[:2], (True, True), result)
            self.assertTrue(result[3])
        for result in ranks(3, both(train)):
            self.assertLess(result[2], 1e-3, result)
            self.assertTrue(result[3])

    def test_ddp(self):
        self.check(ddp)

    def test_ddp_with_views_and_unused(self):
        self.check(ddp_views)

    def test_zero(self):
        self.check(zero)

    def test_replicate(self):
        self.check(composed)

    def test_fsdp2(self):
        self.check(sharded)
