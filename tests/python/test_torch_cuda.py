# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel and the backend lockstep with tensors on a GPU. Two ranks are rank 0 on the
first GPU and rank 1 without one, because a world in which two ranks use one GPU is refused."""

import os
import tempfile
import unittest

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # Asking must not begin CUDA: we fork.
try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed")
if not torch.cuda.is_available():
    raise unittest.SkipTest("there is no GPU for PyTorch")

import torch.distributed as dist
from lockstep import BadConfig
from lockstep.torch import DistributedDataParallel as Ours
from lockstep.torch import sync
from torch_ranks import ranks

Stock = torch.nn.parallel.DistributedDataParallel


def net(device="cuda:0"):
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(),
                               torch.nn.Linear(64, 4)).to(device)


def train(model, rank, call=None):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    device = next(model.parameters()).device
    for i in range(6):
        generator = torch.Generator().manual_seed(10 * rank + i)
        x = torch.randn(16, 8, generator=generator).to(device)
        optimizer.zero_grad()
        (call or model)(x).square().mean().backward()
        optimizer.step()
    if device.type == "cuda":
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

    def test_two_ranks_of_which_one_has_the_gpu(self):
        def run(rank):
            device = "cpu" if rank else "cuda:0"
            model = Ours(net(device))
            self.assertIsNotNone(model.lockstep_member, "the reducer of PyTorch was used")
            return train(model, rank), train(Stock(net("cpu")), rank)
        for mine, stock in ranks(2, run):
            self.assertLessEqual(far(mine, stock), 1e-5)

    def test_two_ranks_on_one_gpu_are_refused(self):
        def run(rank):
            try:
                Ours(net())
            except BadConfig as error:
                return str(error)
            return "no error"
        for text in ranks(2, run):
            self.assertIn("compute on the same GPU", text)

    def test_backend(self):
        def run(rank):
            device = torch.device("cpu" if rank else "cuda:0")
            torch.zeros(1, device=device)  # Now the context of CUDA is this thread's.
            dist.destroy_process_group()
            store = dist.FileStore(os.environ["BACKEND_STORE"], 2)
            dist.init_process_group("lockstep", store=store, rank=rank, world_size=2)
            found = []
            for shape in (1, 70000):
                x = torch.full((shape,), rank + 1.0, device=device)
                dist.all_reduce(x)
                y = torch.full((shape,), rank + 1.0, device=device)
                dist.broadcast(y, 1)
                z = torch.full((shape,), rank + 1.0, device=device)
                future = dist.all_reduce(z, async_op=True).get_future()
                parts = [torch.empty_like(z) for _ in range(2)]
                dist.all_gather(parts, y * (rank + 1))
                future.wait()
                found += [t.unique().tolist() for t in (x, y, z, *parts)]
            dist.destroy_process_group()
            return found
        with tempfile.TemporaryDirectory() as folder:
            for found in ranks(2, run, BACKEND_STORE=os.path.join(folder, "store")):
                self.assertEqual(found, [[3.0], [2.0], [3.0], [2.0], [4.0]] * 2)

    def test_backend_without_a_gpu(self):
        def run(rank):
            dist.destroy_process_group()
            dist.init_process_group("lockstep", store=dist.HashStore(), rank=0, world_size=1)
            try:
                dist.all_reduce(torch.zeros(3, device="cuda:0"))
            except RuntimeError as error:
                return str(error)
            return "no error"
        self.assertIn("has no GPU", ranks(1, run)[0])

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
