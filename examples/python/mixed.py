# SPDX-License-Identifier: Apache-2.0
"""Trains one model on ranks with a GPU and ranks without one. All copies have the same bits.

    torchrun --nproc-per-node 2 examples/python/mixed.py

Each rank computes where its parameters are: on the GPU of its number on this host, or else on the
processor. Nothing else differs between the ranks.
"""

import argparse
import os

import torch
import torch.distributed as dist

from lockstep.torch import DistributedDataParallel

# A power of two, so that the product with a gradient is exact. Then the update has the same bits
# whether a device rounds the product before it adds, or not.
RATE = 2.0 ** -3


def device_of(local_rank, gpus):
    """Two ranks must not use one GPU, so ranks beyond the number of GPUs use the processor."""
    return torch.device("cuda", local_rank) if local_rank < gpus else torch.device("cpu")


def batch(step, rank, device):
    """Samples of one rank: a smooth function of eight numbers."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.rand(64, 8, generator=generator)
    return x.to(device), x.sum(1, keepdim=True).sin().to(device)


def gathered(mine):
    """This tensor of every rank."""
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return every


def bits(model):
    """The bytes of all parameters and gradients."""
    return torch.cat([tensor.detach().cpu().flatten().view(torch.uint8)
                      for p in model.parameters() for tensor in (p, p.grad)])


def train(model, steps, rank, device):
    """The losses of this rank. After each step all ranks compare their bits."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for step in range(steps):
        x, y = batch(step, rank, device)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        first, *others = gathered(bits(model))
        assert all(torch.equal(first, other) for other in others), f"copies differ in step {step}"
    return losses


def main():
    parser = argparse.ArgumentParser(description="Trains on GPUs and processors in one job.")
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    torch.manual_seed(1)
    device = device_of(int(os.environ["LOCAL_RANK"]), torch.cuda.device_count())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    # The model moves to its device first: the session takes the GPU that PyTorch uses then.
    losses = train(DistributedDataParallel(model.to(device)), steps, rank, device)
    gpus = gathered(torch.tensor(-1 if device.index is None else device.index))
    if rank == 0:
        names = ["cpu" if gpu < 0 else f"cuda:{gpu}" for gpu in gpus]
        print(f"ranks on {', '.join(names)}: the same bits after each of {steps} steps, loss "
              f"{losses[0]:.3f} at first, {losses[-1]:.3f} at the end", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
