# SPDX-License-Identifier: Apache-2.0
"""The backend "lockstep" of torch.distributed beside Gloo, on the same tensors."""

import datetime
import logging
import os
import signal
import tempfile
import threading
import time
import unittest
from unittest import mock

try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed")
import torch.distributed as dist

import lockstep
import lockstep.torch  # The backend is known from here on.
from lockstep.torch import _groups, backend, build
from lockstep.torch._plan import Plan
from torch_ranks import ranks

OPS = dist.ReduceOp
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
OTHERS = (torch.int16, torch.uint16, torch.bool, torch.complex64, torch.float8_e4m3fn)


def some(rank, dtype, *shape):
    """Small whole numbers, so that every order of additions has the same result."""
    generator = torch.Generator().manual_seed(100 + rank)
    numbers = torch.randint(0, 4, shape, generator=generator)
    if dtype.is_complex:
        return torch.complex(numbers.float(), numbers.float() + rank).to(dtype)
    return numbers.to(dtype)


def ours(members=None):
    return dist.new_group(members, backend="lockstep")


def same(mine, other):
    if mine.dtype.itemsize == 1:
        mine, other = (t.contiguous().view(torch.uint8) for t in (mine, other))
    return torch.equal(mine, other)


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


# --- bodies: they run on each rank ---------------------------------------------------------------


def averages_of_integers(rank, group, n):
    """They are rounded towards zero, as by NCCL."""
    for dtype, sign in [(dtype, 1) for dtype in INTEGERS] + [(torch.int64, -1), (torch.int8, -1)]:
        total = sum(2 * r + 3 for r in range(n))
        mine = torch.full((3, 4), sign * (2 * rank + 3), dtype=dtype).t()  # With gaps.
        dist.all_reduce(mine, OPS.AVG, group)
        expect(same(mine, torch.full((4, 3), sign * (total // n), dtype=dtype)), f"AVG {dtype}")
        mine = torch.full((5,), sign * (2 * rank + 3), dtype=dtype)
        dist.reduce(mine, n - 1, OPS.AVG, group)
        expect(same(mine, torch.full((5,), sign * (total // n if rank == n - 1 else 2 * rank + 3),
                                     dtype=dtype)), f"reduce AVG {dtype}")
        part = torch.empty(2, dtype=dtype)
        dist.reduce_scatter_single(part, torch.full((2 * n,), sign * (2 * rank + 3), dtype=dtype),
                                   OPS.AVG, group)
        expect(same(part, torch.full((2,), sign * (total // n), dtype=dtype)),
               f"reduce_scatter AVG {dtype}")


def reductions(rank):
    group, n = ours(), dist.get_world_size()
    for op, dtypes in ((OPS.SUM, FLOATS + INTEGERS), (OPS.PRODUCT, FLOATS + INTEGERS),
                       (OPS.MIN, FLOATS + INTEGERS), (OPS.MAX, FLOATS + INTEGERS),
                       (OPS.BAND, INTEGERS), (OPS.BOR, INTEGERS), (OPS.BXOR, INTEGERS)):
        for dtype in dtypes:
            mine, other = some(rank, dtype, 5, 3), some(rank, dtype, 5, 3)
            dist.all_reduce(mine, op, group)
            dist.all_reduce(other, op)
            expect(same(mine, other), f"all_reduce {op} {dtype}")
            mine = some(rank, dtype, 5, 3)
            dist.reduce(mine, n - 1, op, group)
            expect(same(mine, other if rank == n - 1 else some(rank, dtype, 5, 3)),
                   f"reduce {op} {dtype}")
            part, whole = torch.empty(2, dtype=dtype), some(rank, dtype, 2 * n)
            dist.reduce_scatter_single(part, whole.clone(), op, group)
            dist.all_reduce(whole, op)
            expect(same(part, whole[2 * rank:2 * rank + 2]), f"reduce_scatter {op} {dtype}")
    mean = torch.full((3,), float(rank))
    dist.all_reduce(mean, OPS.AVG, group)
    expect(mean.tolist() == [(n - 1) / 2] * 3, "AVG")
    averages_of_integers(rank, group, n)
    for op, result in ((OPS.BAND, n == 1), (OPS.BOR, True), (OPS.MAX, True), (OPS.MIN, n == 1)):
        flag = torch.tensor([rank == 0])
        dist.all_reduce(flag, op, group)
        expect(flag.item() is result, f"{op} of bool")
    pieces = [torch.full((i + 1,), float(rank)) for i in range(n)]  # Of unequal sizes.
    part = torch.empty(rank + 1)
    dist.reduce_scatter(part, pieces, group=group)
    expect(part.tolist() == [n * (n - 1) / 2] * (rank + 1), "reduce_scatter of lists")
    mine = [some(rank, torch.float32, 3), some(rank, torch.float32, 7)]
    other = [t.clone() for t in mine]
    dist.all_reduce_coalesced(mine, group=group)
    for t in other:
        dist.all_reduce(t)
    expect(all(map(same, mine, other)), "all_reduce_coalesced")
    sparse = torch.sparse_coo_tensor([[rank, 5]], [1.0, 2.0], (8,))
    dist.all_reduce(sparse, group=group)
    dense = torch.zeros(8)
    dense[:n], dense[5] = 1.0, 2.0 * n
    expect(torch.equal(sparse.to_dense(), dense), "sparse")


def moves(rank):
    group, n = ours(), dist.get_world_size()
    for dtype in FLOATS + INTEGERS + OTHERS:
        each = [some(r, dtype, 4, 2) for r in range(n)]
        for root in range(n):
            mine = each[rank].clone()
            dist.broadcast(mine, root, group)
            expect(same(mine, each[root]), f"broadcast {dtype}")
        outputs = [torch.empty_like(each[0]) for _ in range(n)]
        dist.all_gather(outputs, each[rank], group)
        expect(all(map(same, outputs, each)), f"all_gather {dtype}")
        whole = torch.empty(4 * n, 2, dtype=dtype)
        dist.all_gather_single(whole, each[rank], group)
        expect(same(whole, torch.cat(each)), f"all_gather_single {dtype}")
        outputs = [torch.empty_like(each[0]) for _ in range(n)]
        dist.gather(each[rank], outputs if rank == 1 else None, dst=1, group=group)
        expect(rank != 1 or all(map(same, outputs, each)), f"gather {dtype}")
        mine = torch.empty_like(each[0])
        dist.scatter(mine, each if rank == 1 else None, src=1, group=group)
        expect(same(mine, each[rank]), f"scatter {dtype}")
        mine = torch.empty(4 * n, 2, dtype=dtype)
        dist.all_to_all_single(mine, torch.cat([each[rank]] * n), group=group)
        expect(same(mine, torch.cat(each)), f"all_to_all_single {dtype}")
    sizes = [r + 1 for r in range(n)]
    mine = torch.empty(n * (rank + 1), 2)
    dist.all_to_all_single(mine, torch.full((sum(sizes), 2), float(rank)), [rank + 1] * n, sizes,
                           group=group)
    expect(mine[:, 1].tolist() == [float(r) for r in range(n) for _ in range(rank + 1)],
           "all_to_all_single with sizes")
    mine, sizes = torch.empty(n, 2), [1] * n if rank == 0 else None
    dist.all_to_all_single(mine, torch.full((n, 2), float(rank)), sizes, sizes, group=group)
    expect(mine[:, 0].tolist() == list(range(n)), "all_to_all_single with sizes on one rank")
    sizes = [0 if r == n - 1 else r + 1 for r in range(n)]  # The last rank sends nothing.
    mine = torch.empty(sum(sizes))
    dist.all_to_all_single(mine, torch.full((n * sizes[rank],), float(rank)), sizes,
                           [sizes[rank]] * n, group=group)
    expect(mine.tolist() == [float(r) for r in range(n) for _ in range(sizes[r])],
           "all_to_all_single of a rank that sends nothing")
    outputs = [torch.empty(r + 1) for r in range(n)]
    dist.all_to_all(outputs, [torch.full((rank + 1,), float(r)) for r in range(n)], group=group)
    expect(all(t.tolist() == [float(rank)] * (r + 1) for r, t in enumerate(outputs)), "all_to_all")
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": rank}, group)
    expect(objects == [{"rank": r} for r in range(n)], "all_gather_object")


def layouts(rank):
    """Tensors with gaps, turned ones, empty ones, scalars, ones of a graph."""
    group, n = ours(), dist.get_world_size()
    for make in (lambda t: t[:, ::2], lambda t: t.t(), lambda t: t[1:2, 3], lambda t: t[0, 0],
                 lambda t: t[:0]):
        mine = make(some(rank, torch.float32, 6, 6))
        other = sum(make(some(r, torch.float32, 6, 6)) for r in range(n))
        dist.all_reduce(mine, group=group)
        expect(same(mine, other), "all_reduce")
        dist.broadcast(mine, 0, group)
    base = torch.zeros(n, 6, 4)
    dist.all_gather(list(base[:, ::2].unbind(0)), torch.full((3, 4), rank + 1.0), group)
    expect([base[r].sum().item() for r in range(n)] == [12.0 * (r + 1) for r in range(n)], "gaps")
    leaf = torch.ones(4, requires_grad=True)
    dist.all_reduce(leaf, group=group)
    expect(leaf.tolist() == [n] * 4 and leaf.requires_grad, "a leaf")
    whole = torch.arange(2.0 * n)  # In place, as FSDP does.
    dist.all_gather_single(whole, whole[2 * rank:2 * rank + 2], group)
    expect(whole.tolist() == [float(i) for i in range(2 * n)], "all_gather in place")


def asynchronous(rank):
    group, n = ours(), dist.get_world_size()
    works = [dist.all_reduce(torch.ones(10), group=group, async_op=True) for _ in range(300)]
    expect(all(work.wait() for work in works) and all(w.is_completed() for w in works), "300 works")
    tensors = [torch.ones(4) for _ in range(40)]

    second = ours()  # Ranks make the collectives of this group in any order: all are equal.

    def again(future):  # A callback that waits needs a thread that nobody else waits for.
        return dist.all_reduce(future.value()[0], group=second, async_op=True).get_future().wait()

    futures = [dist.all_reduce(t, group=group, async_op=True).get_future().then(again)
               for t in tensors]
    for future in futures:
        future.wait()
    expect(all(t.tolist() == [n * n] * 4 for t in tensors), "futures")
    for _ in range(20):  # Nobody waits for them.
        dist.all_reduce(torch.ones(3), group=group, async_op=True)
    peer = (rank + 1) % n
    receives = [dist.irecv(torch.empty(3), (rank - 1) % n, group, tag=i) for i in range(80)]
    sends = [dist.isend(torch.full((3,), float(i)), peer, group, tag=i) for i in range(80)]
    for work in receives + sends:
        work.wait()
    expect(receives[7].result()[0].tolist() == [7.0] * 3, "receive")
    work = dist.barrier(group, async_op=True) if rank == 0 else None
    if work is not None:
        began = time.monotonic()
        try:
            work.wait(datetime.timedelta(seconds=0.2))
            expect(False, "no timeout")
        except lockstep.Timeout as error:
            expect("barrier" in str(error) and time.monotonic() - began < 20, str(error))
    dist.barrier()  # Of Gloo.
    (work or dist.barrier(group, async_op=True)).wait()
    any_source(rank, group, n)
    far_ahead(rank, group)


def far_ahead(rank, group):
    """Rank 0 is 2,000 small messages ahead of rank 1: in flight during an allreduce, and blocking."""
    count, got = 2000, torch.zeros(1)
    works = [dist.isend(torch.full((1,), float(i)), 1, group, tag=7)
             for i in range(count if rank == 0 else 0)]
    dist.all_reduce(torch.ones(1), group=group)
    for blocking in (False, True):
        for i in range(count if rank == 0 and blocking else 0):
            dist.send(torch.full((1,), float(i)), 1, group, tag=7)
        if rank == 1:
            time.sleep(0.1 if blocking else 0)
            for i in range(count):
                dist.recv(got, 0, group, tag=7)
                expect(got.item() == i, f"message {i} is {got.item()}")
        for work in works:
            work.wait()


def any_source(rank, group, n):
    got, strided = torch.zeros(3), torch.zeros(3, 2).t()[0]
    if rank != n - 1:
        for tag in (0, 5):
            dist.send(torch.full((3,), float(rank)), n - 1, group, tag=tag)
        return
    senders = [dist.recv(got, group=group, tag=5) for _ in range(n - 1)]
    expect(sorted(senders) == list(range(n - 1)) and got.tolist() == [senders[-1]] * 3,
           f"received from {senders}")
    works = [group.recv_anysource([strided], 0) for _ in range(n - 1)]
    for work in works:
        work.wait()
    senders = [work.source_rank() for work in works]
    expect(sorted(senders) == list(range(n - 1)) and strided.tolist() == [senders[-1]] * 3,
           f"irecv from {senders}")


def groups(rank):
    n = dist.get_world_size()
    world = ours()
    if rank < 2:
        for i in range(70):  # Groups that were freed leave their places.
            pair = dist.new_group([0, 1], backend="lockstep", use_local_synchronization=True)
            if i % 10 == 0:
                t = torch.ones(2)
                dist.all_reduce(t, group=pair)
                expect(t.tolist() == [2.0, 2.0], "group of two")
            dist.destroy_process_group(pair)
    odd = ours([n - 1, 0])
    if rank in (0, n - 1):
        t = torch.full((1,), float(rank))
        dist.broadcast(t, n - 1, odd)
        expect(t.item() == n - 1 and dist.get_rank(odd) == (0 if rank == 0 else 1), "ranks")
        kept = []
        try:
            for _ in range(70):
                kept.append(dist.new_group([0, n - 1], backend="lockstep",
                                           use_local_synchronization=True))
            expect(False, "70 open groups")
        except lockstep.Invalid as error:
            expect("at most 64" in str(error) and "destroy_process_group" in str(error), str(error))
    t = torch.ones(1)
    dist.all_reduce(t, group=world)
    expect(t.item() == n, "the world goes on")


def crossing_groups(rank):
    """Open groups of all ranks, more than have a name of their own, in another order on rank 1."""
    n = dist.get_world_size()
    data = [(ours(), torch.full((3,), float(i))) for i in range(14)]
    works = [dist.all_reduce(t, group=group, async_op=True)
             for group, t in (data if rank == 0 else reversed(data))]
    for work in works:
        work.wait()
    expect([t.tolist() for _, t in data] == [[i * n] * 3 for i in range(14)], str(data))
    for group, _ in data:
        dist.destroy_process_group(group)
    for _ in range(70):  # Groups that were freed leave their places.
        dist.destroy_process_group(ours())


def mismatch(rank):
    group = ours()
    try:
        if rank == 0:
            dist.all_reduce(torch.ones(4), group=group)
        else:
            dist.broadcast(torch.ones(4), 0, group)
    except lockstep.Mismatch as error:
        return str(error)
    raise AssertionError("no error")


def unknown_operation(rank):
    try:
        dist.all_reduce(torch.ones(2), dist.ReduceOp.PREMUL_SUM, group=ours())
    except Exception as error:
        return str(error)
    return "no error"


def death(rank):
    group = ours()
    dist.barrier(group)
    if rank == 1:
        os._exit(3)
    future = dist.all_reduce(torch.ones(4), group=group, async_op=True).get_future()
    texts = []
    for wait in (future.wait, lambda: dist.all_reduce(torch.ones(4), group=group)):
        try:
            wait()
        except RuntimeError as error:
            texts.append(str(error))
    return texts


def interrupted(rank):
    """A signal handler's exception ends a wait, and the collective goes on."""
    group = ours()

    def handler(*_):
        raise KeyError("from the handler")

    signal.signal(signal.SIGALRM, handler)
    dist.barrier(group)
    if rank == 0:
        work = dist.barrier(group, async_op=True)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            work.wait()
            expect(False, "no exception")
        except KeyError as error:
            expect(error.args == ("from the handler",), repr(error))
        dist.barrier()  # Of Gloo.
        work.wait()
    else:
        dist.barrier()
        dist.barrier(group)


def another_future(rank):
    group = ours()
    for _ in range(20):
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        work.get_future().wait()
        expect(work.get_future().done(), "a future of a work that is done")


def no_member(rank):
    try:
        ours().recv([torch.ones(1)], -2, 0).wait()
    except lockstep.Invalid as error:
        return str(error)
    return "no error"


def facts(rank):
    """What a group of its own says. PyTorch calls other backends that it does not know custom."""
    group = ours()
    before = group._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1), group=group)
    calls = group._get_sequence_number_for_group() - before
    part = group.split_group([1, 0], group_name="part")
    t = torch.ones(2)
    part.allreduce([t]).wait()
    return group.name(), calls, part.name(), part.size(), t.tolist()


def split(rank):
    """dist.split_group, as on a machine with an accelerator."""
    n = dist.get_world_size()
    dist.destroy_process_group()
    dist.init_process_group("lockstep", init_method="file://" + os.environ["TEST_STORE"], rank=rank,
                            world_size=n)
    dist.group.WORLD.bound_device_id = torch.device("cuda:0")
    with mock.patch("torch.accelerator.is_available", lambda: True), \
            mock.patch("torch.accelerator.current_accelerator", lambda: torch.device("cpu")):
        part = dist.split_group(split_ranks=[[0], [1, 2]], group_desc="a part")
        whole = dist.split_group(split_ranks=[list(range(n))])
        t = torch.full((1,), float(rank))
        dist.broadcast(t, group_src=0, group=part)
        dist.all_reduce(t, group=whole)
        facts = [t.item(), dist.get_process_group_ranks(part), part.group_desc]
    dist.group.WORLD.bound_device_id = None
    dist.new_group(device_id=torch.device("cuda:0"))
    dist.barrier()
    dist.destroy_process_group()
    return facts


def after_the_end(rank):
    """Calls of a group that was destroyed."""
    texts = []
    for members in ([0, 1], [1, 2]):
        group = ours(members)
        if rank in members:
            dist.destroy_process_group(group)
            try:
                dist.barrier(group)
            except lockstep.Closed as error:
                texts.append(str(error))
    return texts


def combined(rank):
    """The backend beside another one."""
    group = dist.new_group(backend="cpu:lockstep,cuda:gloo")
    t = torch.full((3,), rank + 1.0)
    dist.all_reduce(t, group=group)
    dist.destroy_process_group(group)
    return t.tolist(), group._get_backend(torch.device("cpu")).name()


def threads(rank):
    """Groups of their own, each used by a thread: waits and futures of several threads at once."""
    n = dist.get_world_size()
    groups = [ours() for _ in range(4)]
    said = []

    def run(group):
        for i in range(100):
            t = torch.full((5,), float(i))
            work = dist.all_reduce(t, group=group, async_op=True)
            if i % 3 == 0:
                work.get_future().wait()
            if i % 3 != 1:
                work.wait()
            else:
                while not work.is_completed():
                    time.sleep(0)
            expect(t.tolist() == [i * n] * 5, f"{i}: {t}")
        said.append(group)

    running = [threading.Thread(target=run, args=[group]) for group in groups]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    expect(len(said) == 4, "a thread has failed")


def destroyed(rank):
    """A process group is destroyed while its calls are in flight, and rank 0 is late."""
    dist.destroy_process_group()
    dist.init_process_group("lockstep", init_method="file://" + os.environ["TEST_STORE"], rank=rank,
                            world_size=3)
    if rank == 0:
        time.sleep(0.5)
    data = [torch.ones(100000) for _ in range(20)]
    works = [dist.all_reduce(one, async_op=True) for one in data]
    dist.destroy_process_group()
    expect(all(work.is_completed() for work in works), "a call is in flight")
    expect(all((one == 3).all() for one in data), [work.exception() for work in works])


def closing(rank):
    """The end of a session with a collective that never ends."""
    group = ours()
    dist.barrier(group)
    dist.barrier()
    if rank == 0:
        work = dist.all_reduce(torch.ones(4), group=group, async_op=True)
        future = work.get_future()
        lockstep.torch.bootstrap.close()
        try:
            future.wait()
        except RuntimeError as error:
            return str(error)
    return ""


# --- tests ---------------------------------------------------------------------------------------

try:
    build.build("backend")
    WAYS = ("native", "python")
except build.BuildFailed:
    WAYS = ("python",)  # The other one is not tested without a compiler.


class Backend(unittest.TestCase):
    def each(self, n, body, **more):
        """The body on n ranks, with each backend: [what it returned on the ranks]."""
        return [ranks(n, body, LOCKSTEP_TORCH_BACKEND=way, **more) for way in WAYS]

    def test_reductions(self):
        for n in (2, 3):
            self.each(n, reductions)

    def test_moves(self):
        for n in (2, 3):
            self.each(n, moves)

    def test_layouts(self):
        self.each(3, layouts)

    def test_asynchronous(self):
        self.each(3, asynchronous)

    def test_groups(self):
        self.each(3, groups)

    def test_groups_of_all_ranks_in_another_order(self):
        with mock.patch.object(_groups, "_OWN_NAMES", 4):
            self.each(2, crossing_groups)

    def test_an_exception_of_a_signal_handler(self):
        self.each(2, interrupted)

    def test_threads(self):
        self.each(2, threads)

    def test_close_ends_what_is_in_flight(self):
        if "native" in WAYS:
            texts = ranks(2, closing, LOCKSTEP_TORCH_BACKEND="native")
            self.assertIn("in flight when the session closed", texts[0])

    def test_destroy_waits_for_what_is_in_flight(self):
        for way in WAYS:
            with self.subTest(way=way), tempfile.TemporaryDirectory() as folder:
                ranks(3, destroyed, LOCKSTEP_TORCH_BACKEND=way,
                      TEST_STORE=os.path.join(folder, "store"))

    def test_facts(self):
        for answers in self.each(2, facts):
            for answer in answers:
                self.assertEqual(answer, ("lockstep", 1, "lockstep", 2, [2.0, 2.0]))

    def test_split_group(self):
        for way in WAYS:
            with self.subTest(way=way), tempfile.TemporaryDirectory() as folder:
                said = ranks(3, split, LOCKSTEP_TORCH_BACKEND=way,
                             TEST_STORE=os.path.join(folder, "store"))
                self.assertEqual(said, [[2.0, [0], "a part"], [2.0, [1, 2], "a part"],
                                        [2.0, [1, 2], "a part"]])

    def test_a_group_that_was_destroyed(self):
        for texts in self.each(3, after_the_end):
            self.assertEqual([len(each) for each in texts], [1, 2, 1])
            self.assertIn("this process group was destroyed", texts[0][0])

    def test_futures_of_a_work_that_is_done(self):
        self.each(2, another_future)

    def test_a_receive_from_no_member(self):
        for texts in self.each(2, no_member):
            self.assertIn("there is no member", texts[0])

    def test_beside_another_backend(self):
        if "native" in WAYS:
            for answer in ranks(2, combined, LOCKSTEP_TORCH_BACKEND="native"):
                self.assertEqual(answer, ([3.0] * 3, "lockstep"))

    def test_a_gpu_tensor_wants_a_session_with_a_gpu(self):
        def run(rank):
            plan = Plan()
            plan.device = torch.device("cuda:0")
            try:
                ours()._begin("all_reduce", plan, [])
            except lockstep.Unsupported as error:
                return str(error)
            return "no error"
        for device in ("none", "auto"):  # auto: nothing has made a context of CUDA here.
            texts = ranks(1, run, LOCKSTEP_DEVICE=device, LOCKSTEP_TORCH_BACKEND="python")
            self.assertIn("has no GPU", texts[0])

    def test_an_unknown_operation_is_named(self):
        for texts in self.each(1, unknown_operation):
            self.assertIn("PREMUL_SUM", texts[0])

    def test_mismatch_has_both_calls(self):
        for texts in self.each(2, mismatch):
            for text in texts:
                self.assertIn("allreduce", text)
                self.assertIn("broadcast", text)

    def test_death_names_the_rank(self):
        for texts in self.each(3, death, expect=[0, 2]):
            for rank in (0, 2):
                self.assertEqual(len(texts[rank]), 2)
                for text in texts[rank]:
                    self.assertIn("rank 1", text)


class Names(unittest.TestCase):
    """A session has room for some thousands of names, and PyTorch never uses one again."""

    def test_first_groups_of_all_ranks_are_names(self):
        session = mock.Mock(size=2)
        session.world_change.return_value.changes = 0
        made = [_groups.make(session, [0, 1], str(number)) for number in range(5000)]
        self.assertEqual(made[5], (None, _groups.NAME + b"/5"))
        self.assertEqual(len({name for group, name in made if group is None}), 256)
        self.assertEqual(session.group.call_count, 5000 - 256)
        self.assertEqual(_groups.make(session, [], "0"), (None, _groups.NAME))


class Choice(unittest.TestCase):
    """Which backend runs."""

    def setUp(self):
        patch = mock.patch.object(backend, "_native", None)
        patch.start()
        self.addCleanup(patch.stop)

    def test_without_a_compiler(self):
        with tempfile.TemporaryDirectory() as empty, \
                mock.patch.dict(os.environ, {"XDG_CACHE_HOME": empty, "PATH": empty}):
            os.environ.pop("CXX", None)
            with self.assertLogs("lockstep.torch", logging.INFO) as said:
                self.assertIsNone(backend.native())
                self.assertIsNone(backend.native())
            self.assertEqual(len(said.output), 1)
            self.assertIn("no C++ compiler", said.output[0])

    def test_native_without_a_compiler(self):
        with tempfile.TemporaryDirectory() as empty, mock.patch.dict(
                os.environ, {"XDG_CACHE_HOME": empty, "CXX": "false",
                             "LOCKSTEP_TORCH_BACKEND": "native"}):
            with self.assertRaisesRegex(RuntimeError, "BACKEND is native, and false has failed"):
                backend.native()

    @unittest.skipUnless("native" in WAYS, "there is no C++ compiler")
    def test_a_build_for_another_pytorch(self):
        path, new = build.build("backend")
        self.assertFalse(new)
        with mock.patch.object(torch, "__version__", "2.99.0"), \
                self.assertRaisesRegex(build.BuildFailed, f"was built for PyTorch {build.torch_version().split('+')[0]}"):
            build.load("backend", path)
