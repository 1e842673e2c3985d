#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of torch.distributed, which are in its wheel, over the backend lockstep.

    python tests/python/conformance/torch_suite.py --world 2 --suite S1,S2,S3
    python tests/python/conformance/torch_suite.py --world 2 --backend gloo     # for comparison

One line for each test, and the sum. A test that cannot pass is named in expected.txt, with the
reason. Exit status 1: a test failed that is not named there, or one that is named has passed.
With CI=true a test that is not named there has a second try, as in tests/python/run.py: UNSTEADY.
--door ddp puts lockstep.torch.DistributedDataParallel in the place of PyTorch's.

Suites: S1 collectives and groups, S2 DDP on CPUs, S3 capacities of buckets, S4 everything else of
DDP that runs without a GPU.
"""

import argparse
import contextlib
import multiprocessing
import os
import re
import runpy
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
EXPECTED = os.path.join(HERE, "expected.txt")
S1 = (r"get_|Backend_|destroy_|barrier|new_subgroups|coalescing_|batch_isend_|send_recv|isend|"
      r"irecv|broadcast|reduce|all_reduce|sparse_all|scatter|gather|all_gather|all_to_all|monitored_|"
      r"average_|periodic_|1_level|3_level|dump_DDP|nccl_")
S2 = {
    "test_DistributedDataParallelCPU", "test_DistributedDataParallelCPU_grad_is_view",
    "test_DistributedDataParallel_requires_grad", "test_ddp_create_graph",
    "test_ddp_logging_data_cpu", "test_static_graph_api_cpu", "test_SyncBatchNorm_process_group",
}
# No busy machine causes a crash or a hang.
NO_CHANCE = re.compile(
    runpy.run_path(os.path.join(HERE, "..", "run.py"))["NO_CHANCE"].pattern +
    r"|terminated or timed out|code:? -(4|6|7|8|11)\b", re.M)
NOT_S1 = {"test_get_data_parallel_params", "test_get_future"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="lockstep")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--suite", default="S1,S2,S3")
    parser.add_argument("--only", default="", help="a piece of the name of a test")
    parser.add_argument("--door", choices=("stock", "ddp"), default="stock")
    parser.add_argument("--verbose", action="store_true", help="print what failing tests said")
    return parser.parse_args()


def suite_of(name, case):
    if not hasattr(case, "world_size"):
        return "S3"
    if name in S2:
        return "S2"
    return "S1" if re.match("test_(" + S1 + ")", name) and name not in NOT_S1 else "S4"


def load(options):
    """The cases of PyTorch. The module reads the environment when it is imported: as if for Gloo,
    because it leaves out many tests of CPUs for every other backend."""
    temporary = tempfile.mkdtemp(prefix="lockstep-torch-")
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(options.world), TEMP_DIR=temporary,
                      INIT_METHOD=f"file://{temporary}/shared_init_file", OMP_NUM_THREADS="1")
    os.environ.setdefault("LOCKSTEP_COORDINATOR_HTTP", "off")
    import torch
    torch.set_num_threads(1)
    from torch.testing._internal import common_distributed
    if options.backend == "lockstep":
        import lockstep.torch as ours
        for feature in ("plugin", "ddp", "subgroup"):
            common_distributed.DistTestCases.backend_feature[feature].add("lockstep")
        if options.door == "ddp":
            import torch.nn.parallel.distributed as home
            home.DistributedDataParallel = ours.DistributedDataParallel
            torch.nn.parallel.DistributedDataParallel = ours.DistributedDataParallel
    from torch.testing._internal.distributed import distributed_test as tests
    tests.BACKEND = os.environ["BACKEND"] = options.backend

    class TorchDistributed(tests.TestDistBackend, tests.DistributedTest._DistTestBase):
        """PyTorch's tests, on forked instead of spawned ranks: nothing is imported anew."""

        def setUp(self):
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)

    cases = [TorchDistributed]
    cases += [getattr(tests, name) for name in dir(tests) if name.startswith("TestBucketCapacity")]
    return cases


def expected(options):
    """{name: reason} of tests that cannot pass. A line: worlds or *, door or *, name, reason."""
    found = {}
    if options.backend != "lockstep":
        return found
    with open(EXPECTED, encoding="utf-8") as file:
        for line in file:
            if not line.strip() or line.startswith("#"):
                continue
            worlds, door, name, reason = line.split(None, 3)
            if (worlds == "*" or str(options.world) in worlds.split(",")) and (
                    door in ("*", options.door)):
                found[name] = reason.strip()
    return found


@contextlib.contextmanager
def said(file):
    """What this process and its children print goes into the file."""
    kept = [os.dup(1), os.dup(2)]
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        for fd, old in enumerate(kept, 1):
            sys.stdout.flush()
            os.dup2(old, fd)
            os.close(old)


def run(case, name):
    """One test: its result in a word, why, and what it printed."""
    test, result = case(name), unittest.TestResult()
    with tempfile.TemporaryFile("w+") as output:
        with said(output):
            unittest.TestSuite([test]).run(result)
        output.seek(0)
        text = output.read()
    if result.skipped:
        return "skip", result.skipped[0][1], ""
    if result.failures or result.errors:
        found = (result.failures + result.errors)[0][1]
        return "FAIL", reason(found), found + text
    return "ok", "", ""


def reason(text):
    """The last line of the error of a rank."""
    lines = [line for line in text.strip().splitlines()
             if not line.startswith((" ", "To execute"))]
    errors = [line for line in lines if re.match(
        r"[A-Za-z_.]+(Error|Lost|Exception|Invalid|Mismatch|Timeout|Unsupported|Config)\b", line)]
    return (errors or lines or [""])[-1]


def main():
    options = arguments()
    sys.argv = sys.argv[:1]
    cases, known = load(options), expected(options)
    suites = options.suite.split(",")
    chosen = sorted((suite_of(name, case), name, case) for case in cases for name in dir(case)
                    if name.startswith("test_") and options.only in name)
    count, wrong, told = {}, 0, []
    for suite, name, case in chosen:
        if suite not in suites:
            continue
        began = time.monotonic()
        word, why, text = run(case, name)
        if name in known and word != "skip":
            word, why = ("listed", known[name]) if word == "FAIL" else ("PASSES", "but is listed")
        if word == "FAIL" and os.environ.get("CI") == "true" and not NO_CHANCE.search(text):
            if run(case, name)[0] == "ok":
                word = "UNSTEADY"
        wrong += word in ("FAIL", "PASSES")
        count[suite, word] = count.get((suite, word), 0) + 1
        print(f"{suite} n={options.world} {name:60s} {word:6s} {time.monotonic() - began:5.1f} s"
              + (f"  {why[:150]}" if why else ""), flush=True)
        if word == "UNSTEADY" or word == "FAIL" and options.verbose:
            print(text, flush=True)
        if word in ("UNSTEADY", "FAIL", "PASSES"):
            told.append(f"{'UNSTEADY' if word == 'UNSTEADY' else 'FAILED'} {name}: {why}")
    for suite in suites:
        words = ("ok", "skip", "listed", "UNSTEADY", "PASSES", "FAIL")
        parts = [f"{count[suite, word]} {word}" for word in words if (suite, word) in count]
        print(f"{suite} {options.backend} {options.door} n={options.world}: {', '.join(parts)}")
    print("\n".join(told))
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
