# SPDX-License-Identifier: Apache-2.0
"""Ranks for tests of lockstep.torch: forked children of this process, with Gloo beside lockstep.

`ranks(n, function)` calls function(rank) in n processes and gives the list of what they returned.
"""

import faulthandler
import os
import pickle
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings

import torch
import torch._dynamo  # Every DistributedDataParallel needs it: it is imported once, before the fork.
import torch.distributed as dist

LIMIT_S = 120.0
"""Only a test that hangs takes so long."""


class Failed(AssertionError):
    """A rank has raised; the text has its traceback."""


def _child(rank, n, function, out, store, more):
    faulthandler.enable()
    faulthandler.dump_traceback_later(LIMIT_S - 10, exit=True)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.excepthook = lambda *_: None
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(n), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
                      LOCKSTEP_JOB=f"test-{os.getppid()}", GLOO_SOCKET_IFNAME="lo", **more)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=n)
        dist.barrier()  # A rank that destroys the group at once would end the connects of others.
        answer = ("ok", function(rank))
    except BaseException as error:
        answer = ("error", f"rank {rank}: {traceback.format_exc()}")
        if os.environ.get("TORCH_RANKS_TRACE"):
            traceback.print_exc()
        sys.excepthook(type(error), error, error.__traceback__)  # As the interpreter does.
    try:
        data = pickle.dumps(answer)
    except Exception as error:
        data = pickle.dumps(("error", f"rank {rank}: {error}"))
    with os.fdopen(out, "wb") as file:
        file.write(data)
    code = 0
    try:
        from lockstep.torch import bootstrap
        bootstrap.close()
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


def ranks(n, function, *, expect=None, **more):
    """What function(rank) returned on each rank. expect: the ranks that have to end well; None is
    all of them. Others give None."""
    store = tempfile.mktemp(prefix="torch-ranks-")
    sys.stdout.flush()
    sys.stderr.flush()
    children = []
    for rank in range(n):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            for _, other in children:
                os.close(other)
            os.close(reader)
            _child(rank, n, function, writer, store, more)
        os.close(writer)
        children.append((pid, reader))
    answers = [_read(pid, reader) for pid, reader in children]
    if os.path.exists(store):
        os.unlink(store)
    results = []
    for rank, answer in enumerate(answers):
        if expect is not None and rank not in expect:
            results.append(None)
        elif answer is None:
            raise Failed(f"rank {rank} has ended without an answer")
        elif answer[0] == "error":
            raise Failed("\n".join(a[1] for a in answers if a and a[0] == "error"))
        else:
            results.append(answer[1])
    return results


def _read(pid, reader):
    data, deadline = b"", time.monotonic() + LIMIT_S
    while True:
        ready, _, _ = select.select([reader], [], [], max(0, deadline - time.monotonic()))
        if not ready:
            os.kill(pid, signal.SIGKILL)
            break
        part = os.read(reader, 1 << 16)
        if not part:
            break
        data += part
    os.close(reader)
    os.waitpid(pid, 0)
    return pickle.loads(data) if data else None
