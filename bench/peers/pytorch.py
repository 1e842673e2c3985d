#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's Gloo: the loop of driver.c again, and the step of DistributedDataParallel.

A rank of `run.py`, which sets PEER_RANK, PEER_SIZE and PEER_STORE. With --step-ms it measures, instead
of sums, an iteration of a transformer-like model its ways: forward alone, without synchronization, its gradients
alone in buckets as DDP has them, and with DDP.
"""

import argparse
import json
import os
import resource
import time

import torch
import torch.distributed as dist

MAX_SAMPLES = 2000
MIN_ITERATIONS = 3
PAGE = 4096
CACHE = 32 << 20


def cpu_ns():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (usage.ru_utime + usage.ru_stime) * 1e9


def agree(value):
    """What rank 0 says, on every rank."""
    word = torch.tensor([value if dist.get_rank() == 0 else 0], dtype=torch.float64)
    dist.all_reduce(word)
    return float(word[0])


def verify(size):
    pattern = torch.arange(size // 4) % 61 + 1
    payload = (pattern * (dist.get_rank() + 1)).float()
    dist.all_reduce(payload)
    ranks = dist.get_world_size()
    assert torch.equal(payload, (pattern * (ranks * (ranks + 1) // 2)).float()), "a sum is wrong"


class Cell:
    def __init__(self, arena, size, cold):
        stride = (size + PAGE - 1) // PAGE * PAGE // 4
        slots = arena.numel() // stride if cold else 1
        self.slots = [arena[i * stride:i * stride + size // 4] for i in range(slots)]
        self.turn = 0

    def iterate(self, count):
        begin = time.perf_counter_ns()
        for _ in range(count):
            dist.all_reduce(self.slots[self.turn % len(self.slots)])
            self.turn += 1
        return time.perf_counter_ns() - begin


def warm_up(cell, seconds):
    cell.iterate(1)  # Ranks wait for the last one.
    count = 1
    while True:
        took_ns = agree(cell.iterate(count))
        if took_ns > seconds * 1e8:
            return max(MIN_ITERATIONS, int(seconds * 1e9 * count / took_ns))
        count *= 2


def measure(arena, size, cold, seconds, out):
    cell = Cell(arena, size, cold)
    iterations = warm_up(cell, seconds)
    batch = iterations // MAX_SAMPLES + 1
    agree(0)
    cpu_before = cpu_ns()
    begin = time.perf_counter_ns()
    samples = [cell.iterate(batch) / batch for _ in range(iterations // batch)]
    record = {"bytes": size, "cold": cold, "batch": batch, "iterations": batch * len(samples),
              "wall_ns": time.perf_counter_ns() - begin, "cpu_ns": cpu_ns() - cpu_before,
              "samples_ns": samples}
    out.write(json.dumps(record) + "\n")


def sums(arguments, out):
    sizes = [int(size) for size in arguments.sizes.split(",")]
    arena = torch.zeros(max(2 * max(sizes), 2 * CACHE if arguments.cold else 0) // 4 + 2 * PAGE)
    for size in sizes:
        verify(size)
        for cold in [False] * arguments.warm + [True] * arguments.cold:
            measure(arena, size, cold, arguments.seconds, out)


# ---- the step of DistributedDataParallel --------------------------------------------------------


def model_of(size):
    """A transformer of twelve layers with so many bytes of gradients in all, small tensors included."""
    width = int((size / 4 * 0.95 / 12 / 12) ** 0.5) // 8 * 8
    layer = torch.nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False), width


def timed(work):
    dist.barrier()
    begin = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - begin) / 1e3


def step(arguments, out):
    torch.manual_seed(0)
    model, width = model_of(arguments.step_bytes)
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=arguments.bucket_mb)
    flat = torch.zeros(sum(p.numel() for p in model.parameters()))
    bucket = int(arguments.bucket_mb * 2 ** 20 / 4)
    tokens = 8

    def run(module):
        module.zero_grad(set_to_none=False)
        module(data).square().mean().backward()

    def alone():
        work = [dist.all_reduce(part, async_op=True) for part in flat.split(bucket)]
        for one in work:
            one.wait()

    def compute():
        with ddp.no_sync():
            run(ddp)

    # As many tokens as make the computation last as long as was asked for; all ranks the same.
    data = torch.randn(1, tokens, width)
    for _ in range(4):
        took_ms = agree(min(timed(compute) for _ in range(2))) / 1e3
        tokens = max(1, min(4096, int(tokens * arguments.step_ms / took_ms)))
        data = torch.randn(1, tokens, width)
    run(ddp)  # The second one has its buckets in the order of readiness.
    run(ddp)
    alone()
    series = {"forward": [], "compute": [], "communication": [], "step": []}
    deadline = time.monotonic() + arguments.seconds
    while agree(float(time.monotonic() < deadline or len(series["step"]) < 3)):
        series["forward"].append(timed(lambda: model(data)))
        series["compute"].append(timed(compute))
        series["communication"].append(timed(alone))
        series["step"].append(timed(lambda: run(ddp)))
    out.write(json.dumps({"bytes": 4 * flat.numel(), "bucket_mb": arguments.bucket_mb,
                          "series_us": series}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--sizes")
    parser.add_argument("--dtype", choices=["float32"], default="float32")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--step-ms", type=float)
    parser.add_argument("--step-bytes", type=int, default=80_000_000)
    parser.add_argument("--bucket-mb", type=float, default=25)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rank = int(os.environ["PEER_RANK"])
    dist.init_process_group("gloo", init_method="file://" + os.environ["PEER_STORE"] + "/store",
                            rank=rank, world_size=int(os.environ["PEER_SIZE"]))
    with open(f"{arguments.out}.{rank}.jsonl", "w", encoding="utf-8") as out:
        out.write(json.dumps({"version": "PyTorch " + torch.__version__, "rank": rank,
                              "ranks": dist.get_world_size()}) + "\n")
        if arguments.step_ms:
            step(arguments, out)
        else:
            sums(arguments, out)
        out.write('{"done":true}\n')
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
