#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a hook of lockstep.torch costs, in parts. `make torch-hooks-bench` runs it, in 40 seconds.

One process makes steps of two models of many small parameters. The way that is measured and a step
without hooks take turns, and the cost of a parameter is the slope between the two models. So costs of
a step do not count. Each way has a process and a session of its own.

    empty    a hook that does nothing: what autograd itself takes for a hook
    hook     our hook, with a function of the C library that returns at once in place of the report
    report   the same with lockstep_grad_ready, in a step of a session without DistributedDataParallel
    all      DistributedDataParallel of lockstep.torch
    ddp      that of PyTorch, with Gloo

Native and Python hooks are measured apart. `backward` is the time of backward() alone, `step` also has
zero_grad, the forward pass, and the begin and the end of the step.
"""

import argparse
import copy
import ctypes
import gc
import json
import logging
import multiprocessing
import os
import tempfile
import time

import torch
import torch.distributed as dist

import lockstep.torch
from lockstep.module import Parameter
from lockstep.step import Call
from lockstep.torch import hooks, memory, world
from samples import quantile
from torch_step import Stock, chain, ours

FEW, MANY = 100, 400
QUANTILE = 0.1
WAYS = {"native": ("empty", "hook", "report", "all"), "python": ("empty", "hook", "report", "all"),
        "stock": ("none", "ddp")}


class Bare:
    """What hooks want of a Member."""

    def __init__(self, parameters, gradients, homes, handle=0):
        self.parameters, self.gradients, self.handle = parameters, gradients, handle
        self.homes, self.addresses = homes, [home.data_ptr() for home in homes]
        self.fast = self.expect = True
        self.accept = self.static = False

    def take(self, i, gradient):
        with torch.no_grad():
            self.gradients[i].copy_(gradient)
        self.parameters[i].grad = self.gradients[i]


class Nothing:
    """No step around the backward pass."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Opened(Nothing):
    """Hooks that report, but not to the library."""

    def __init__(self, kind, member):
        self._member, self._hooks = member, make_hooks(kind, member)

    def __enter__(self):
        self._hooks.open(None)


class Step(Nothing):
    """A step of a session, with hooks that report."""

    def __init__(self, kind, module):
        self._session = world.world().session
        parameters = list(module.parameters())
        self._memory = memory.Gradients(self._session, parameters)
        self._module = self._session.register(f"chain {len(parameters)}", [
            Parameter(str(i), memory.describe(p), memory.describe(g))
            for i, (p, g) in enumerate(zip(parameters, self._memory.tensors))])
        self._session.start()
        self._member = Bare(parameters, self._memory.tensors, self._memory.homes,
                            self._module.handle)
        self._hooks = make_hooks(kind, self._member)

    def __enter__(self):
        self._step = self._session.step()
        self._call = Call(self._module)
        self._hooks.open(None)

    def __exit__(self, *_):
        self._call.end()
        self._step.end()


def make_hooks(kind, member):
    return hooks.NativeHooks(member, hooks._native()) if kind == "native" else hooks.PythonHooks(member)


def quick_report():
    """A function that takes what lockstep_grad_ready takes, and returns at once, without a failure."""
    function = ctypes.PyDLL(None).toascii
    function.restype, function.argtypes = hooks._ready.restype, hooks._ready.argtypes
    return function


def way_of(kind, way, module):
    """(model, context of a step)"""
    if way == "none":
        return module, Nothing()
    if way == "ddp":
        return Stock(module), Nothing()
    if way == "all":
        return ours(module, kind), Nothing()
    if way == "report":
        return module, Step(kind, module)
    parameters = list(module.parameters())
    gradients = [torch.zeros_like(p) for p in parameters]
    member = Bare(parameters, gradients, gradients)
    if way == "hook":
        hooks._ready = quick_report()
        return module, Opened(kind, member)
    if kind == "native":  # Its hooks are idle: they look whether there is a gradient.
        member.hooks = make_hooks(kind, member)
        module.idle = member
    else:
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(lambda parameter: None)
    return module, Nothing()


def timed(model, data, context, to_none):
    """Microseconds of the backward pass, and of the step."""
    begin = time.perf_counter_ns()
    model.zero_grad(set_to_none=to_none)
    with context:
        loss = model(data).square().mean()
        before = time.perf_counter_ns()
        loss.backward()
        after = time.perf_counter_ns()
    return (after - before) / 1e3, (time.perf_counter_ns() - begin) / 1e3


def measure(kind, way, arguments, store, answer):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gc.disable()
    logging.getLogger("lockstep.torch").setLevel(logging.ERROR)
    dist.init_process_group("gloo", init_method="file://" + store, rank=0, world_size=1)
    more = {}
    for count in (FEW, MANY):
        module, width = chain(count)
        data = torch.randn(2, width)
        plain, nothing = copy.deepcopy(module), Nothing()
        model, context = way_of(kind, way, copy.deepcopy(module))
        for _ in range(20):
            timed(model, data, context, arguments.to_none)
        more[count] = []
        deadline = time.monotonic() + arguments.seconds / 2
        while time.monotonic() < deadline:
            more[count].append((timed(plain, data, nothing, arguments.to_none),
                                timed(model, data, context, arguments.to_none)))
    answer.send(more)
    lockstep.torch.bootstrap.close()


def launch(kind, way, arguments):
    """For each model, the turns: times without hooks, and times of the way."""
    fork = multiprocessing.get_context("fork")
    mine, theirs = fork.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        child = fork.Process(target=measure, args=(
            kind, way, arguments, os.path.join(folder, "store"), theirs))
        child.start()
        theirs.close()
        try:
            return mine.recv()
        except EOFError:
            raise SystemExit(f"torch_hooks.py: {kind} {way} has ended without figures") from None
        finally:
            child.join()


def added(turns, i, share):
    """What the way costs more than a step without hooks. i: 0 is the backward pass, 1 the step."""
    plain, way = ([turn[k][i] for turn in turns] for k in range(2))
    return quantile(way, share) - quantile(plain, share)


def figures_of(turns):
    """The cost of each parameter, and of a step besides. Times of the fastest tenth count: others
    were disturbed. The spread is that between quantiles."""
    found = {"turns": len(turns[MANY])}
    for i, name in enumerate(("backward", "step")):
        few, many = (added(turns[count], i, QUANTILE) for count in (FEW, MANY))
        each = (many - few) / (MANY - FEW)
        others = [added(turns[MANY], i, share) for share in (0.02, 0.05, 0.2, 0.3)]
        found[name] = {"us_per_parameter": each, "us_besides": few - each * FEW,
                       "spread_us": max(abs(other - many) for other in others) / MANY}
    return found


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=4, help="for each way")
    parser.add_argument("--only", default="", help="kinds or ways, by comma")
    parser.add_argument("--keep", dest="to_none", action="store_false",
                        help="zero_grad(set_to_none=False): gradients are zeroed where they are")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    arguments.only = [word for word in arguments.only.split(",") if word]
    return arguments


def main():
    arguments = read_arguments()
    found = {}
    print("| hooks | way | backward: us per parameter | step: us per parameter | per step besides |")
    print("|---|---|---|---|---|", flush=True)
    for kind, ways in WAYS.items():
        if kind == "native" and hooks.kind() != "native":
            print("There are no native hooks: `python -m lockstep.torch.build` says why.")
            continue
        for way in ways:
            if arguments.only and kind not in arguments.only and way not in arguments.only:
                continue
            figures = found.setdefault(kind, {})[way] = figures_of(launch(kind, way, arguments))
            backward, step = figures["backward"], figures["step"]
            print(f"| {kind} | {way} | {backward['us_per_parameter']:.2f} (+- "
                  f"{backward['spread_us']:.2f}) | {step['us_per_parameter']:.2f} (+- "
                  f"{step['spread_us']:.2f}) | {step['us_besides']:.0f} |", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"version": torch.__version__, "to_none": arguments.to_none, "ways": found}, file)


if __name__ == "__main__":
    main()
