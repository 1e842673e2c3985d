#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures small all_reduce calls of torch.distributed: Gloo, and the backend lockstep.

    PYTHONPATH=bindings/python/src bench/peers/torch_c10d.py --ways gloo,native,python

Ranks are processes of this host. All ways live in the same ranks and take turns. Figures are times
of one call in us: the median over the turns of the slowest rank's mean. A call is all_reduce with
async_op=False, or with async_op=True and get_future().wait().
"""

import argparse
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist

import lockstep.torch
from lockstep.torch import backend

SIZES = (4, 256, 4096, 16384, 65536)
TURN_S = 0.02


def group_of(way):
    """A group of all ranks, over Gloo or over one of the two backends of this package."""
    if way == "gloo":
        return dist.new_group(backend="gloo")
    if way == "python":
        kept, backend._native = backend._native, (None,)
    try:
        return dist.new_group(backend="lockstep")
    finally:
        if way == "python":
            backend._native = kept


def sync(tensor, group):
    dist.all_reduce(tensor, group=group)


def future(tensor, group):
    dist.all_reduce(tensor, group=group, async_op=True).get_future().wait()


def measure(call, tensor, group, count):
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        call(tensor, group)
    return (time.perf_counter() - begin) / count * 1e6


def run(rank, arguments, store):
    torch.set_num_threads(1)
    os.environ.setdefault("LOCKSTEP_COORDINATOR_HTTP", "off")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank,
                            world_size=arguments.ranks)
    groups = {way: group_of(way) for way in arguments.ways.split(",")}
    for call in (sync, future):
        for size in SIZES:
            tensors = {way: torch.zeros(size // 4) for way in groups}
            counts, times = {}, {way: [] for way in groups}
            for way, group in groups.items():
                took = torch.tensor([measure(call, tensors[way], group, 50)])
                dist.all_reduce(took, dist.ReduceOp.MAX)
                counts[way] = max(20, int(TURN_S * 1e6 / took.item()))
            for _ in range(arguments.turns):
                for way, group in groups.items():
                    took = torch.tensor([measure(call, tensors[way], group, counts[way])])
                    dist.all_reduce(took, dist.ReduceOp.MAX)
                    times[way].append(took.item())
            if rank == 0:
                words = "  ".join(f"{way} {statistics.median(took):8.1f}" for way, took in times.items())
                print(f"{call.__name__:6} {size:6} bytes  {words}", flush=True)
    dist.barrier()
    lockstep.torch.bootstrap.close()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--ways", default="gloo,native,python")
    arguments = parser.parse_args()
    store = tempfile.mktemp(prefix="torch-c10d-")
    children = []
    for rank in range(arguments.ranks):
        pid = os.fork()
        if pid == 0:
            run(rank, arguments, store)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
