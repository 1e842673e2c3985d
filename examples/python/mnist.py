# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on the 60,000 MNIST digits with PyTorch, alone or as several processes.

    python examples/python/mnist.py                                          # alone
    torchrun --nproc-per-node 2 examples/python/mnist.py                     # one line: the import
    torchrun --nproc-per-node 2 examples/python/mnist.py --door c10d         # one word: the backend
    torchrun --nproc-per-node 2 -m lockstep.torch examples/python/mnist.py --door main  # no line

No coordinator has to be started: rank 0 starts one. The files are those of tools/get-mnist.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def read(folder, name, header):
    with open(os.path.join(folder, name), "rb") as file:
        return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)[header:]


def load(folder, kind):
    """Images in [-0.4, 2.8] and labels."""
    images = read(folder, f"{kind}-images-idx3-ubyte", 16).view(-1, 784).float()
    labels = read(folder, f"{kind}-labels-idx1-ubyte", 8).long()
    return (images / 255 - 0.1307) / 0.3081, labels


def arguments():
    parser = argparse.ArgumentParser(description="Trains MNIST.")
    parser.add_argument("--door", choices=("ddp", "main", "c10d"), default="ddp")
    parser.add_argument("--data", default=os.environ.get(
        "MNIST_DIR", os.path.join(ROOT, "build", "data", "mnist")))
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many; 0: never")
    parser.add_argument("--batch", type=int, default=128, help="samples of a step, over all ranks")
    return parser.parse_args()


def wrapped(model, door):
    """The model as one of several copies that stay equal."""
    if door == "ddp":
        from lockstep.torch import DistributedDataParallel
    else:  # With --door main this is the class of lockstep, too.
        from torch.nn.parallel import DistributedDataParallel
    return DistributedDataParallel(model)


def evaluate(model, images, labels):
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum().item()
    model.train()
    return 100 * right / len(labels)


def train(model, options, rank, size):
    images, labels = load(options.data, "train")
    test = load(options.data, "t10k")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    each, step = options.batch // size, 0
    began = time.monotonic()
    for epoch in range(options.epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for first in range(0, len(labels) - options.batch + 1, options.batch):
            if options.steps and step == options.steps:
                break
            mine = order[first + rank * each:first + (rank + 1) * each]
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[mine]), labels[mine])
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and step % 100 == 0:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)
        accuracy = evaluate(getattr(model, "module", model), *test)  # Of this rank alone.
        if rank == 0:
            print(f"epoch {epoch + 1}: {accuracy:.2f} % of the test images are right, "
                  f"{time.monotonic() - began:.1f} s", flush=True)
    return sum(p.detach().double().sum().item() for p in model.parameters())


def main():
    options = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128), torch.nn.ReLU(),
        torch.nn.Linear(128, 10))
    rank, size = 0, 1
    if "RANK" in os.environ:  # torchrun has started this process.
        if options.door == "c10d":
            import lockstep.torch  # Not needed after `pip install`: the wheel makes it known.
        dist.init_process_group("lockstep" if options.door == "c10d" else "gloo")
        rank, size = dist.get_rank(), dist.get_world_size()
        model = wrapped(model, options.door)
    total = train(model, options, rank, size)
    if size > 1:
        mine = torch.tensor([total], dtype=torch.float64)
        totals = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(totals, mine)
        assert all(torch.equal(each, mine) for each in totals), f"the copies differ: {totals}"
    if rank == 0:
        print(f"door {options.door}, {size} rank{'s' * (size > 1)}: parameters add up to "
              f"{total:.6f} on every rank", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
