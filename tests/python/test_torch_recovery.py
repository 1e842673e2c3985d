# SPDX-License-Identifier: Apache-2.0
"""lockstep.torch after a death that the others survive (LOCKSTEP_ON_FAILURE=continue)."""

import os
import signal
import tempfile
import time
import unittest

try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed")
import torch.distributed as dist

import lockstep
import lockstep.torch
from support import job
from test_torch_c10d import WAYS, expect, ours
from torch_ranks import ranks

CONTINUE = {"LOCKSTEP_ON_FAILURE": "continue"}


def one(rank):
    return torch.tensor([float(rank)])


def said(call):
    """What a call raises: the rank that the error names, and whether it says what to do."""
    try:
        call()
    except lockstep.PeerLost as error:
        return error.rank, "destroy_process_group" in str(error)
    return "nothing"


def after_a_death(rank):
    """Rank 1 of four dies. Ranks 2 and 3 have the places 1 and 2 from then on."""
    group, pair = ours(), ours([3, 0])
    dist.all_reduce(one(rank), group=group)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    parts, rows = [one(-1) for _ in range(4)], torch.zeros(4)
    calls = {
        "all_reduce": lambda: dist.all_reduce(one(rank), group=group),
        "async": lambda: dist.all_reduce(one(rank), group=group, async_op=True).wait(),
        "broadcast": lambda: dist.broadcast(one(rank), 2, group=group),
        "all_gather": lambda: dist.all_gather(parts, one(rank), group=group),
        "gather": lambda: dist.gather(one(rank), parts if rank == 2 else None, 2, group=group),
        "scatter": lambda: dist.scatter(one(rank), parts if rank == 3 else None, 3, group=group),
        "all_to_all": lambda: dist.all_to_all_single(rows, torch.ones(4), group=group),
        "send": lambda: (dist.send if rank else dist.recv)(one(rank), 2 if rank == 0 else 0, group),
        "barrier": lambda: dist.barrier(group),
        "new_group": lambda: ours([0, 2, 3]),
    }
    for name, call in calls.items():
        for _ in range(2):
            text = said(call)
            expect(text == (1, True), f"{name}: {text}")
    if rank in (0, 3):  # No member of this group has died.
        total, root = one(rank + 1), one(rank)
        while True:
            try:
                dist.broadcast(root, 3, group=pair)
                break
            except lockstep.Changed:
                root = one(rank)
        dist.all_reduce(total, group=pair)
        expect((total.item(), root.item()) == (5, 3), f"{total}, {root}")
    return True


def again(rank):
    """The survivors make a process group for the new world."""
    store = os.environ["TEST_STORE"]
    dist.destroy_process_group()
    dist.init_process_group("lockstep", init_method=f"file://{store}0", rank=rank, world_size=4)
    session = lockstep.torch.session()
    dist.all_reduce(one(rank))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    text = said(lambda: dist.all_reduce(one(rank)))
    expect(text == (1, True), text)
    dist.destroy_process_group()
    generation = session.world_change().generation
    dist.init_process_group("lockstep", init_method=f"file://{store}{generation}", rank=session.rank,
                            world_size=session.world_size)
    total, root = one(rank), one(rank)
    dist.all_reduce(total)
    dist.broadcast(root, 1)
    expect((total.item(), root.item()) == (5, 2), f"{total}, {root}")
    two = dist.new_group([0, 2])
    if dist.get_rank() in (0, 2):
        dist.all_reduce(total, group=two)
        expect(total.item() == 10, total)
    return True


def classes(_):
    """The native backend raises the class of each status."""
    loaded = lockstep.torch.backend.native()
    expect(loaded is not None, "there is no native backend")
    for status in lockstep.Status:
        if status < 0:
            try:
                torch.ops.lockstep_c10d.fail(int(status), "a text")
            except lockstep.LockstepError as error:
                expect((error.status, str(error)) == (status, "a text"), f"{status}: {error!r}")
def sparse(rank):
    """Rank 1 of three dies in a step with sparse and dense gradients."""
    net = torch.nn.Sequential(torch.nn.Embedding(6, 1, sparse=True), torch.nn.Linear(1, 1))
    torch.nn.init.ones_(net[1].weight)
    model = lockstep.torch.DistributedDataParallel(net)
    for i in range(4):
        if i == 2 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        model.zero_grad()
        model(torch.tensor([rank, 5])).sum().backward()
        n = 3 if i < 2 else 2
        found = net[0].weight.grad.to_dense().flatten().tolist()
        wanted = [1 / n, 1 / 3 if i < 2 else 0, 1 / n, 0, 0, 1]
        expect(torch.allclose(torch.tensor(found), torch.tensor(wanted)), f"{i}: {found}")
        expect(net[1].bias.grad.item() == 2, f"{i}: {net[1].bias.grad}")
    model = lockstep.torch.DistributedDataParallel(torch.nn.Linear(1, 1), init_sync=False)
    model(torch.ones(1, 1)).sum().backward()


def buffers(rank):
    """Rank 1 of three dies between two steps, before buffers are broadcast."""
    net = torch.nn.Linear(1, 1)
    net.register_buffer("noise", one(rank))

    @lockstep.torch.sync(net, broadcast_buffers=True)
    def loss():
        return net(net.noise[None]).sum()
    for i in range(4):
        if i == 2:
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            while lockstep.torch.session().size == 3:
                time.sleep(0.001)
        net.noise.fill_(rank + 1)
        loss().backward()
        expect(net.noise.item() == 1, net.noise)


# One rank ends by an exception in forward, another one in backward, and a third by sys.exit.
ENDS = """
import torch, lockstep.torch
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
@lockstep.torch.sync(net)
def loss(x):
    if i == 2 and rank == 1:
        raise ValueError("forward")
    return net(x).sum()
def fail(gradient):
    raise ValueError("backward")
for i in range(6):
    if i == 3 and rank == 2:
        sys.exit(3)
    if i == 4 and rank == 3:
        net[0].weight.register_hook(fail)
    net.zero_grad()
    loss(torch.ones(2, 4)).backward()
    assert (net[1].bias.grad == 2).all()
say(rank, lockstep.torch.session().world_size)
"""
# Rank 0 handles an exception in its last backward pass, and ends.
LAST = """
import torch, lockstep.torch
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
@lockstep.torch.sync(net)
def loss(x):
    return net(x).sum()
def fail(gradient):
    raise ValueError("backward")
for i in range(3):
    if i == 2 and rank == 0:
        net[0].weight.register_hook(fail)
    word = "good"
    try:
        loss(torch.ones(2, 4)).backward()
    except (ValueError, lockstep.LockstepError) as error:
        word = type(error).__name__
say(rank, word)
"""


class Recovery(unittest.TestCase):
    @unittest.skipUnless("native" in WAYS, "there is no C++ compiler")
    def test_every_status_of_the_native_backend(self):
        ranks(1, classes, LOCKSTEP_TORCH_BACKEND="native")

    def test_a_process_group_after_a_death(self):
        for way in WAYS:
            with self.subTest(way=way):
                ranks(4, after_a_death, expect=[0, 2, 3], LOCKSTEP_TORCH_BACKEND=way, **CONTINUE)

    def test_the_survivors_make_another_one(self):
        for way in WAYS:
            with self.subTest(way=way), tempfile.TemporaryDirectory() as folder:
                ranks(4, again, expect=[0, 2, 3], LOCKSTEP_TORCH_BACKEND=way,
                      TEST_STORE=os.path.join(folder, "store"), **CONTINUE)

    def test_sparse_gradients(self):
        ranks(3, sparse, expect=[0, 2], **CONTINUE)

    def test_buffers_of_a_function(self):
        ranks(3, buffers, expect=[0, 2], **CONTINUE)

    def test_processes_that_end_badly(self):
        said = job(5, ENDS, opened=False, survive=True)
        self.assertEqual((said.code, said.lines), (0, ["0 2", "4 2"]), said)
        self.assertEqual(said.error.count("the session lets the others go on"), 3, said)

    def test_an_exception_that_is_handled_at_the_end(self):
        for on_failure in ("error", "continue"):
            with self.subTest(on_failure=on_failure):
                said = job(3, LAST, {"LOCKSTEP_ON_FAILURE": on_failure}, opened=False)
                self.assertEqual((said.code, said.lines),
                                 (0, ["0 ValueError", "1 Unused", "2 Unused"]), said)

    def test_a_bad_status_inside_a_step(self):
        said = job(2, LAST + "sys.exit(3 * (word == 'ValueError'))", opened=False)
        self.assertEqual(said.code, 3, said)
        self.assertIn("exits inside a step: the session is aborted", said.error)


if __name__ == "__main__":
    unittest.main()
