# SPDX-License-Identifier: Apache-2.0
"""Modules, steps and calls on one rank and on several."""

import unittest

from support import alone, job

TWO_RANKS = """
w, b = np.full((2, 3), float(rank), np.float32), np.full(2, float(rank))
gw, gb, count = np.zeros_like(w), np.zeros_like(b), np.full(1, rank, np.int64)
net = session.register("net", [lockstep.Parameter("w", w, gw), ("b", b, gb)],
                       [lockstep.Buffer("count", count, "sum")])
session.start()
assert (w == 0).all() and (b == 0).all(), "the values of rank 0"
count[:] = rank + 1
with session.step(weight=1 + 2 * rank) as step:
    assert (step.number, step.view.rank, step.view.world_size) == (1, rank, 2)
    with step.call(net) as call:
        gw[:], gb[:] = rank, 2 * rank
        call.ready("w")
        call.ready(1)
assert np.allclose(gw, 0.75) and np.allclose(gb, 1.5), (gw, gb)
assert count[0] == 3, count
assert step.report().weight_total == 4 and step.report().step == 1
assert net.used() == [True, True] and net.usage() == [2, 2]
# A gradient elsewhere, and waiting for one call.
own = np.full((2, 3), 4.0 + rank, np.float32)
with session.step() as step:
    with step.call(net) as call:
        call.ready("w", own)
        call.ready("b")
    assert call.wait() is True
    assert np.allclose(own, 4.5)
with session.step() as step:
    with step.call(net) as call:
        gb[:], gw[:] = 1, rank
        call.ready("b")
        call.ready("w")
    got = sorted(p for bucket in call.buckets() for p in bucket)
    assert got == [0, 1] and np.allclose(gw, 0.5)
# Metrics, counters, marks.
session.counter_add("samples", 5)
session.metric_add("loss", 1.0 + rank)
session.metric_add("most", rank, "max")
session.mark("epoch 1")
with session.pause("checkpoint", 2.5):
    pass
with session.step(phase="other") as step, step.call(net) as call:
    call.ready("w")
    call.ready("b")
assert session.counter_read("samples") == 10
assert session.metric_read("loss") == (1.5, 2) and session.metric_read("most") == (1.0, 2)
assert session.metric_read("none") == (0.0, 0)
session.state_check()
hashes = np.zeros(2, np.uint64)
session.all_gather("hashes", np.array([session.state_hash()], np.uint64), hashes)
assert hashes[0] == hashes[1] != 0
w[0, 0] += rank
try:
    session.state_check()
    raise AssertionError("w differs")
except lockstep.Mismatch as error:
    assert "'w'" in str(error) or "net.w" in str(error) or "w" in str(error)
session.state_sync()
net.freeze(["b"])
with session.step() as step, step.call(net) as call:
    call.ready("w")
net.freeze([1], False)
net.close()
net.close()
"""

UNEVEN = """
g = np.zeros(1, np.float32)
net = session.register("net", [("w", np.zeros(1, np.float32), g)])
session.start()
session.set_uneven("all")
steps = 0
while True:
    with session.step(exhausted=steps >= 2 + rank) as step:
        if step.finished:
            break
        if steps < 2 + rank:
            with step.call(net) as call:
                g[:] = 1 + rank
                call.ready("w")
    steps += 1
    assert g[0] == (1.5 if steps < 3 else 2), (steps, g)
assert steps == 3, steps
"""

GRADIENTS = """
shapes = [(300, 5), (), (7,)]
values = [np.zeros(shape, np.float32) for shape in shapes]
values[0] = np.asfortranarray(values[0])
net = session.register("net", [(str(i), v) for i, v in enumerate(values)])
views = [np.asarray(memory) for memory in net.gradients()]
session.start()
assert views[0].strides == values[0].strides and [v.shape for v in views] == shapes
for _ in range(3):
    with session.step() as step, step.call(net) as call:
        for i, view in enumerate(views):
            view[...] = i + rank
            call.ready(i)
    for i, view in enumerate(views):
        assert np.allclose(view, i + 0.5), (i, view)
# Gradients of another type than their values.
half = session.register("half", [lockstep.Parameter(
    "w", np.zeros(4, np.float16), gradient_dtype="float32")])
(memory,) = half.gradients()
session.start()
with session.step() as step, step.call(half) as call:
    np.asarray(memory)[:] = 70000 * (1 + rank)
    call.ready("w")
assert memory.dtype == lockstep.Dtype.FLOAT32 and np.allclose(np.asarray(memory), 105000)
with session.step() as step, step.call(half) as call:
    own = np.full(4, 1.0 + rank, np.float32)
    call.ready("w", own)
assert np.allclose(own, 1.5)
shared = np.asarray(session.zeros((4, 4), "float64"))
shared += 1
session.allreduce("shared", shared)
assert (shared == 2).all()
"""

GIVEN_UP = """
w, g = np.zeros(1, np.float32), np.zeros(1, np.float32)
net = session.register("net", [lockstep.Parameter("w", w, g)])
session.start()
def train(fail):
    with session.step() as step, step.call(net) as call:
        if fail:
            raise RuntimeError("no data")
        g[:] = 1
        call.ready("w")
try:
    train(rank == 0)
    raise AssertionError("nothing was raised")
except (RuntimeError if rank == 0 else lockstep.Unused) as error:
    assert isinstance(error, lockstep.LockstepError) == (rank == 1), error
    assert rank == 0 or (error.rank == 0 and "net" in error.text), error
train(False)
assert g[0] == 1
"""

LEFT = """
import contextlib
net = session.register("net", {"w": np.zeros(1, np.float32)})
if rank == 0:
    session.start()
    try:
        with session:
            with session.step():
                raise KeyError("lost")
    except KeyError:
        say("rank 0 goes")
else:
    try:
        session.start()  # Rank 0 may leave while this call still waits.
        with session.step() as step, step.call(net) as call:
            call.ready("w", np.zeros(1, np.float32))
        raise AssertionError("rank 0 was not missed")
    except lockstep.PeerLost as error:
        assert error.rank == 0 and "KeyError" in str(error) and "lost" in str(error), error
        assert isinstance(error, ConnectionError)
        say("rank 1 knows")
"""

MOVE = """
import weakref
session = lockstep.Session()
arrays = [np.zeros((2, 3), np.float32) for _ in range(4)]
gone = [weakref.ref(array) for array in arrays]
net = session.register("net", [lockstep.Parameter("w", *arrays[:2])],
                       [lockstep.Buffer("b", arrays[2], "broadcast")])
session.start()
new = [np.ones((2, 3), np.float32) for _ in range(3)]
net.move("w", new[0], arrays[3])
net.move("w", None, new[1])
net.move_buffer(0, new[2])
del arrays
gc.collect()
assert not any(ref() is not None for ref in gone), gone
session.state_hash()
session.close()
"""

MISUSE = """
def refused(kind, *parts):
    class Refused:
        def __enter__(self):
            return self
        def __exit__(self, got, error, trace):
            assert got is not None and issubclass(got, kind), (kind, got, error)
            for part in parts:
                assert part in str(error), (part, str(error))
            return True
    return Refused()
with refused(TypeError, "wrold_size", "world_size"):
    lockstep.Session(wrold_size=2)
with refused(lockstep.Invalid, "transport", "loopback"):
    lockstep.Session(transport="pigeon")
with refused(lockstep.Invalid, "world_size"):
    lockstep.Session(world_size=-1)
with refused(lockstep.Invalid, "coordinator"):
    lockstep.Session(coordinator=5)
with refused(lockstep.BadConfig, "nowhere"):
    lockstep.Session(coordinator="nowhere", world_size=2)
with refused(lockstep.Unreachable):
    lockstep.Session(coordinator="127.0.0.1:1", world_size=2, open_timeout_ms=200)
session = lockstep.Session()
w = np.zeros((2, 3), np.float32)
with refused(lockstep.Invalid, "'w'", "(3, 2)"):
    session.register("a", [lockstep.Parameter("w", w, np.zeros((3, 2), np.float32))])
with refused(lockstep.Invalid, "no array"):
    session.register("a", {"w": 3})
with refused(lockstep.Invalid):
    session.register("a", {"w": w, "v": w})
with refused(TypeError, "calls_per_stp"):
    session.register("a", {"w": w}, calls_per_stp=2)
net = session.register("net", {"w": w}, ignore=["nothing.*"], unused="accept")
with refused(lockstep.Invalid):
    session.step()
with refused(lockstep.Invalid, "replicas", "1.5"):
    session.register("b", {"w": w}, replicas=1.5)
group = session.group([0], "gone")
group.close()
with refused(lockstep.Invalid, "group is closed"):
    session.register("b", {"w": w}, group=group)
with refused(lockstep.Invalid, "'g'", "0.5"):
    session.group([0.5], "g")
session.start()
with refused(lockstep.Invalid, "4294967296"):
    net.freeze([2**32])
with refused(lockstep.Invalid, "-1"):
    net.freeze([-1])
with refused(lockstep.Invalid, "4294967296"):
    session.group([2**32], "g")
with refused(lockstep.Invalid, "no memory of shape"):
    session.zeros(2**62)
assert session.zeros(np.int64(3)).shape == (3,) and session.zeros(()).shape == ()
with refused(lockstep.Invalid, "0.5"):
    session.counter_add("x", 0.5)
session.counter_add("x", 1.0)
with refused(lockstep.Invalid, "NaN"):
    session.barrier("b", timeout=float("nan"))
session.barrier("b", timeout=float("inf"))
session.barrier("b", timeout=1e300)
session.begin(lockstep.barrier("b")).wait(float("inf"))
assert session.reduce("r", w) is w
with refused(lockstep.Invalid, "pass a target"):
    session.reduce("scalar", np.float32(1))
with refused(lockstep.Invalid, "no target"):
    session.all_to_all("a", w, None)
again = lockstep.allreduce("again", w)
for _ in range(3):
    session.run(again)
assert len(again.keep) == 1
with refused(lockstep.Invalid, "no step has ended"):
    session.report()
with refused(lockstep.Invalid):
    net.call()
with refused(lockstep.Invalid, "weight"):
    session.step(weight=-1)
with session.step() as step:
    with refused(lockstep.Invalid):
        session.step()
    with step.call(net) as call:
        with refused(lockstep.Invalid):
            step.end()
        assert session.in_step
        with refused(lockstep.Invalid, "'v'"):
            call.ready("v")
        with refused(lockstep.Invalid, "6"):
            call.ready("w", np.zeros(5, np.float32))
        with refused(lockstep.Invalid):
            call.ready("w", np.zeros((2, 3), np.float64))
        with refused(lockstep.Invalid):
            call.ready(7)
        with refused(lockstep.Invalid):
            call.ready(7, w)
        with refused(lockstep.Invalid, "0.5"):
            call.ready(0.5, w)
    call.end()
step.end()
assert not session.in_step
with session.step(weight=0) as step, step.call(net) as call:
    call.ready("w", np.zeros((2, 3), np.float32))
    with refused(lockstep.Invalid):
        call.end()
        step.end()
    assert not session.in_step
assert session.report().step == step.number > 0
with refused(lockstep.Invalid):
    session.report(99)
with refused(lockstep.Invalid):
    net.move("w", np.zeros((3, 3), np.float32))
try:
    net.move("w", lockstep.Memory(w.ctypes.data, "float32", (2, 3), (1, 2)))
except lockstep.Invalid as error:
    assert "the value of 'w' has another shape, strides or dtype" in error.text, error.text
else:
    raise AssertionError("other strides were accepted")
net.move("w", np.ones((2, 3), np.float32))
session.close()
session.close()
session.abort()
with refused(lockstep.Closed):
    session.register("late", {"w": w})
with refused(lockstep.LockstepError):
    session.allreduce("late", w)
with refused(lockstep.LockstepError):
    net.used()
assert net.handle == 0 and session.handle == 0
"""


LEAVES = """
session = lockstep.Session(virtual_ranks=5)
g = np.zeros(3, np.float32)
net = session.register("net", [("w", np.zeros(3, np.float32), g)])
session.start()
assert session.leaf_total == 5 and len(session.leaves) in (2, 3), session.leaves
for leaf in session.leaves:
    with session.step(weight=leaf, accumulate=leaf != session.leaves[-1]) as step:
        with step.call(net) as call:
            g += 10 * leaf
            call.ready("w")
assert (g == np.float32(300 / 10)).all(), g
session.close()
"""
# A window whose last step does not report `a` again: the library adds up in the first step's memory.
WINDOW = """
import weakref
class Gradient(np.ndarray):
    pass
count = 100000
b = np.zeros(count, np.float32)
net = session.register("net", [lockstep.Parameter("a", np.zeros(count, np.float32)),
                               lockstep.Parameter("b", np.zeros(count, np.float32), b)],
                       unused="accept")
session.start()
for _ in range(3):
    with session.step(accumulate=1), net.call() as call:
        a = np.full(count, 1.0 + rank, np.float32).view(Gradient)
        gone = weakref.ref(a)
        call.ready("a", a)
        b[:] = 1
        call.ready("b")
    del call, a
    gc.collect()
    a = gone()
    assert a is not None, "the window has borrowed it"
    with session.step(), net.call() as call:
        call.ready("b")
    assert (b == 1).all() and (a == 1.5).all()
    del call, a
    gc.collect()
    assert gone() is None, "it is kept for ever"
"""


# The stream of CUDA's handle 2 is the calling thread's, so this thread makes every call.
PER_THREAD = """
import threading
from unittest import mock
from lockstep import _library
from lockstep.session import SLICE_MS, _WAIT_FOREVER
session = lockstep.Session()
session.start()
calls, real = [], _library.lib.lockstep_step_wait
def wait(handle, stream, ms):
    calls.append((threading.get_ident(), stream, ms))
    return _library.TIMEOUT if len(calls) < 2 else real(handle, None, ms)
step = session.step()
with mock.patch.object(_library.lib, "lockstep_step_wait", wait):
    step.end(stream=2)
session.close()
here = threading.get_ident()
assert calls == [(here, 2, SLICE_MS), (here, 2, _WAIT_FOREVER)], calls
"""


class Steps(unittest.TestCase):
    side_by_side = True

    def works(self, said):
        self.assertEqual(said.code, 0, said)
        return said

    def test_a_step_of_two_ranks(self):
        self.works(job(2, TWO_RANKS))

    def test_ranks_that_run_out_of_data(self):
        self.works(job(2, UNEVEN))

    def test_leaves(self):
        self.works(job(2, LEAVES, opened=False))

    def test_gradients_of_a_window_stay(self):
        self.works(job(2, WINDOW))

    def test_memory_of_the_library(self):
        self.works(job(2, GRADIENTS))

    def test_an_exception_gives_up_the_call(self):
        self.works(job(2, GIVEN_UP))

    def test_an_exception_outside_a_call_aborts(self):
        said = job(2, LEFT)
        self.assertEqual(said.lines, ["rank 0 goes", "rank 1 knows"], said)

    def test_memory_that_has_moved_is_not_kept(self):
        self.works(alone(MOVE))

    def test_misuse(self):
        self.works(alone(MISUSE))

    def test_the_stream_of_a_thread(self):
        self.works(alone(PER_THREAD))
