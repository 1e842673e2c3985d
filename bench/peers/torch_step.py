#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank of torch_run.py: a step of one model, synchronized in several ways that take turns.

All ways live in one process, each with a copy of the model. The copies get the same data, so their
gradients are compared before anything is timed. A step is zero_grad, forward and backward, with one
thread of computation. The first line of the file that it writes says what runs, each further line has
the times of a model.
"""

import argparse
import copy
import json
import logging
import os
import threading
import time

import torch
import torch._dynamo
import torch.distributed as dist

import lockstep.torch
from lockstep.torch import hooks, member
from pytorch import agree, model_of, timed

Stock = torch.nn.parallel.DistributedDataParallel
LEAST = 5  # Turns, even when the time is over.
TOLERANCE = 1e-4


def chain(parameters):
    """A model of so many small parameters, whose steps are mostly hooks."""
    width = 8
    layers = (torch.nn.Linear(width, width) for _ in range(parameters // 2))
    return torch.nn.Sequential(*layers), width


def ours(module, kind):
    """Our DistributedDataParallel with hooks of a kind, or None where there is no such kind."""
    if kind == "native" and hooks.kind() != "native":
        return None
    before = member.hooks_for
    try:
        if kind == "python":
            member.hooks_for = hooks.PythonHooks
        wrapped = lockstep.torch.DistributedDataParallel(module)
    finally:
        member.hooks_for = before
    assert wrapped.lockstep_member.hooks.kind == kind, "another reducer or other hooks are in use"
    return wrapped


def ways(module, chosen, group):
    """Name and model of each way."""
    make = {
        "none": lambda: copy.deepcopy(module),
        "ddp": lambda: Stock(copy.deepcopy(module)),
        "native": lambda: ours(copy.deepcopy(module), "native"),
        "python": lambda: ours(copy.deepcopy(module), "python"),
        "c10d": lambda: Stock(copy.deepcopy(module), process_group=group),
    }
    made = {name: make[name]() for name in chosen}
    return {name: model for name, model in made.items() if model is not None}


def step(call, model, data):
    model.zero_grad()
    call(data).square().mean().backward()


def compare(models):
    """The synchronized ways have the same gradients."""
    if "ddp" not in models:
        return
    right = [p.grad for p in models["ddp"].parameters()]
    scale = max(float(gradient.abs().max()) for gradient in right)
    for name, model in models.items():
        if name != "none":
            for gradient, parameter in zip(right, model.parameters()):
                error = float((gradient - parameter.grad).abs().max())
                assert error <= TOLERANCE * scale, f"gradients of {name} are wrong: {error}"


def data_for(module, shape, step_ms):
    """As many rows as make the computation last as long as was asked for."""
    rows = 8
    data = torch.randn(*shape(rows))
    for _ in range(4 if step_ms else 0):
        took_ms = agree(min(timed(lambda: step(module, module, data)) for _ in range(2))) / 1e3
        rows = max(1, min(4096, int(rows * step_ms / took_ms)))
        data = torch.randn(*shape(rows))
    return data


def spin(stop):
    while not stop:
        pass


def measure(arguments, module, shape, deadline, group):
    """The record of one model."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    data = data_for(module, shape, arguments.step_ms)
    data = torch.randn(data.shape, generator=generator)
    models = ways(module, arguments.ways.split(","), group)
    calls = {name: torch.compile(model, backend=arguments.compile) if arguments.compile else model
             for name, model in models.items()}
    first_s = {}
    for name, model in models.items():
        first_s[name] = timed(lambda name=name, model=model: step(calls[name], model, data)) / 1e6
    for _ in range(2):  # DDP has its buckets in the order of readiness from the second step on.
        for name, model in models.items():
            step(calls[name], model, data)
    compare(models)
    stop = []
    if arguments.gil:
        threading.Thread(target=spin, args=[stop], daemon=True).start()
    series = {name: [] for name in models}
    names = list(models)
    turn = 0
    while agree(float(time.monotonic() < deadline or turn < LEAST)):
        for i in range(len(names)):
            name = names[(i + turn) % len(names)]
            series[name].append(timed(lambda name=name: step(calls[name], models[name], data)))
        turn += 1
    stop.append(True)
    parameters = list(module.parameters())
    return {"parameters": len(parameters), "bytes": 4 * sum(p.numel() for p in parameters),
            "rows": data.numel() // data.shape[-1], "first_s": first_s, "series_us": series}


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--ways", required=True, help="by comma: none, ddp, native, python, c10d")
    parser.add_argument("--deadline", type=float, required=True, help="of the monotonic clock")
    parser.add_argument("--bytes", type=int, default=0, help="of the gradients of a transformer")
    parser.add_argument("--step-ms", type=float, default=0, help="of a step without synchronization")
    parser.add_argument("--chains", default="", help="numbers of small parameters instead, by comma")
    parser.add_argument("--gil", action="store_true", help="a thread that does nothing in Python")
    parser.add_argument("--compile", default="", help="backend of torch.compile")
    parser.add_argument("--optimize-ddp", type=int, default=1)
    return parser.parse_args()


def main():
    arguments = read_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.config.optimize_ddp = bool(arguments.optimize_ddp)
    logging.getLogger("lockstep.torch").setLevel(logging.ERROR)
    rank, size = int(os.environ["PEER_RANK"]), int(os.environ["PEER_SIZE"])
    dist.init_process_group("gloo", init_method="file://" + os.environ["PEER_STORE"] + "/store",
                            rank=rank, world_size=size)
    group = dist.new_group(backend="lockstep") if "c10d" in arguments.ways else None
    if arguments.chains:
        models = [(*chain(int(count)), 2) for count in arguments.chains.split(",")]
    else:
        models = [(*model_of(arguments.bytes), 3)]
    with open(f"{arguments.out}.{rank}.jsonl", "w", encoding="utf-8") as out:
        out.write(json.dumps({"version": "PyTorch " + torch.__version__, "hooks": hooks.kind()}) + "\n")
        for i, (module, width, dimensions) in enumerate(models):
            left = arguments.deadline - time.monotonic()
            deadline = time.monotonic() + left / (len(models) - i)
            record = measure(
                arguments, module,
                lambda rows, w=width, d=dimensions: (1, rows, w)[3 - d:], deadline, group)
            out.write(json.dumps(record) + "\n")
        out.write('{"done":true}\n')
    dist.barrier()
    lockstep.torch.bootstrap.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
