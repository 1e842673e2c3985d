# SPDX-License-Identifier: Apache-2.0
"""Collectives of every kind on three ranks, with equal and unequal parts, and in groups."""

import unittest

from support import alone, job

KINDS = """
def expect(name, have, want):
    assert np.array_equal(have, want), (name, rank, have, want)
def mine(count, r=None):
    return np.arange(count, dtype=np.float64) + 100 * (rank if r is None else r)
every = [mine(6, r) for r in range(size)]
total = sum(every)

a = mine(6)
assert session.allreduce("allreduce", a) is a
expect("allreduce", a, total)
out = np.zeros(6)
session.allreduce("allreduce", out, "max", source=mine(6))
expect("allreduce max", out, every[-1])
session.allreduce("mean", out, lockstep.Op.MEAN, source=mine(6))
expect("mean", out, total / size)
session.allreduce("weighted", out, "mean", source=mine(6), weight=rank)
expect("weighted", out, sum(r * every[r] for r in range(size)) / sum(range(size)))
a = mine(6)
session.broadcast("broadcast", a, 1)
expect("broadcast", a, every[1])
session.broadcast("broadcast", out, 2, source=mine(6) if rank == 2 else None)
expect("broadcast with a source", out, every[2])
session.barrier("barrier")
out = np.full(6, -1.0)
session.reduce("reduce", mine(6), root=1, target=out if rank == 1 else None)
expect("reduce", out, total if rank == 1 else np.full(6, -1.0))
a = mine(6)
session.reduce("reduce in place", a, root=0)
expect("reduce in place", a, total if rank == 0 else mine(6))
part = np.zeros(2)
session.reduce_scatter("reduce_scatter", mine(6), part)
expect("reduce_scatter", part, total[2 * rank:2 * rank + 2])
a = mine(6)
session.reduce_scatter("reduce_scatter in place", None, a)
expect("reduce_scatter in place", a[2 * rank:2 * rank + 2], total[2 * rank:2 * rank + 2])
whole = np.zeros(18)
session.gather("gather", mine(6), whole if rank == 2 else None, root=2)
expect("gather", whole, np.concatenate(every) if rank == 2 else np.zeros(18))
session.scatter("scatter", np.arange(6.0) if rank == 1 else None, part, root=1)
expect("scatter", part, [2 * rank, 2 * rank + 1])
whole = np.zeros((3, 6))
session.all_gather("all_gather", mine(6), whole)
expect("all_gather", whole, every)
out = np.zeros(6)
session.all_to_all("all_to_all", mine(6), out)
expect("all_to_all", out, np.concatenate([e[2 * rank:2 * rank + 2] for e in every]))
if rank == 0:
    session.send("letter", mine(4), 2, tag=7)
if rank == 2:
    out = np.zeros(4)
    session.receive("letter", out, 0, tag=7)
    expect("receive", out, mine(4, 0))
if rank == 1:
    for _ in range(2):
        out = np.zeros(4)
        letter = lockstep.receive("letter", out, lockstep.ANY_SOURCE)
        session.run(letter)
        seen = mine(4, letter.sender)
        expect("receive from any source", out, seen)
        work = session.begin(lockstep.receive("more", out, lockstep.ANY_SOURCE))
        expect("work from any source", work.wait(), mine(4, work.sender))
else:
    session.send("letter", mine(4), 1)
    session.send("more", mine(4), 1)
"""

PARTS = """
counts, offsets = [1, 3, 2], [5, 0, 3]
whole = np.arange(6.0) * (rank + 1)
total = np.arange(6.0) * sum(range(1, size + 1))
def at(r):
    return slice(sum(counts[:r]), sum(counts[:r + 1]))
part = np.zeros(counts[rank])
session.reduce_scatter("reduce_scatter", whole, part, counts=counts)
assert np.array_equal(part, total[at(rank)])
mine = np.full(counts[rank], float(rank))
out = np.full(6, -1.0)
session.all_gather("all_gather", mine, out, counts=counts, offsets=offsets)
assert np.array_equal(out, [1, 1, 1, 2, 2, 0]), out
out = np.full(6, -1.0)
session.gather("gather", mine, out if rank == 0 else None, counts=counts)
assert rank != 0 or np.array_equal(out, [0, 1, 1, 1, 2, 2]), out
session.scatter("scatter", np.arange(6.0) if rank == 0 else None, part, counts=counts)
assert np.array_equal(part, np.arange(6.0)[at(rank)]), part
# Member i sends i + r elements to member r.
send, receive = [rank + r for r in range(size)], [i + rank for i in range(size)]
out = np.zeros(sum(receive))
session.all_to_all("all_to_all", np.full(sum(send), float(rank)), out,
                   source_counts=send, target_counts=receive)
assert np.array_equal(out, np.repeat(np.arange(size), receive)), out
# The last member sends nothing: without a source, and with an empty one.
for number, nothing in enumerate((None, np.zeros(0))):
    last = rank == size - 1
    receive = [i + 1 for i in range(size - 1)] + [0]
    out = np.zeros(sum(receive))
    source = nothing if last else np.full(size * (rank + 1), float(rank))
    session.all_to_all(f"silent {number}", source, out, target_counts=receive,
                       source_counts=[0 if last else rank + 1] * size)
    assert np.array_equal(out, np.repeat(np.arange(size), receive)), out
"""

GROUPS = """
edge = session.group([2, 0], "edge") if rank != 1 else None
if edge is not None:
    assert (edge.rank, edge.size, edge.ranks) == ((0 if rank == 2 else 1), 2, (2, 0))
    out = np.zeros(2)
    work = edge.begin(lockstep.all_gather("members", np.array([float(rank)]), out))
    assert work.wait() is out and work.done() and work.handle == 0
    assert np.array_equal(out, [2, 0])
    edge.close()
    edge.close()
    try:
        edge.barrier("late")
        raise AssertionError("a closed group was used")
    except lockstep.Invalid as error:
        assert "edge" in str(error)
session.barrier("end")
"""

WORKS = """
import select
arrays = [np.full(4, float(rank + i)) for i in range(20)]
works = [session.begin(lockstep.allreduce(f"sum {i % 3}", a)) for i, a in enumerate(arrays)]
left = set(works)
while left:
    select.select([session], [], [])
    os.read(session.fileno(), 8)
    left = {work for work in left if not work.done()}
for i, (work, a) in enumerate(zip(works, arrays)):
    assert work.result is a and np.array_equal(a, np.full(4, 3.0 + 3 * i)), (i, a)
# A wait with a timeout leaves the collective in flight.
if rank == 0:
    work = session.begin(lockstep.barrier("late"))
    started = time.monotonic()
    try:
        work.wait(0.2)
        raise AssertionError("nobody else was there")
    except lockstep.Timeout as error:
        assert isinstance(error, TimeoutError) and 0.15 < time.monotonic() - started
    assert not work.done()
    session.send("now", np.zeros(1), 1)
    session.send("now", np.zeros(1), 2)
    work.wait()
else:
    session.receive("now", np.zeros(1), 0)
    session.barrier("late")
# The memory is kept while a collective is in flight.
gone = np.full(1000, 1.0)
alive = [session.begin(lockstep.allreduce("kept", gone))]
del gone
gc.collect()
assert np.array_equal(alive[0].wait(), np.full(1000, 3.0))
"""

DTYPES = """
for name in "f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 ?".split():
    a = np.ones(5, name)
    session.allreduce("sum", a)
    assert np.array_equal(a, np.ones(5, name) * (1 if name == "?" else size)), (name, a)
# bfloat16 by memory: 1.0 is 0x3f80, and 3.0 is 0x4040.
bits = np.full(5, 0x3f80, np.uint16)
session.allreduce("sum", lockstep.Memory(bits.ctypes.data, "bfloat16", (5,), owner=bits))
assert (bits == 0x4040).all(), [hex(b) for b in bits]
session.allreduce("sum", bytearray(b"\\1\\2"))
"""

SIZES = """
session = lockstep.Session()
a, b = np.zeros(6), np.zeros(4)
def refused(what, *parts):
    try:
        session.run(what)
    except (lockstep.Invalid, lockstep.Unsupported) as error:
        for part in parts:
            assert part in str(error), (part, str(error))
        return
    raise AssertionError(what)
refused(lockstep.allreduce("x", b, source=a), "'x'", "4 elements", "6")
refused(lockstep.allreduce("x", np.zeros((4, 4))[:, 1]), "side by side")
refused(lockstep.allreduce("x", np.zeros(6, np.float32), source=a), "float64", "float32")
refused(lockstep.all_gather("x", a, b), "4 elements")
refused(lockstep.all_gather("x", a, a, counts=[7]), "7")
refused(lockstep.all_gather("x", a, a, counts=[1, 1]), "1")
refused(lockstep.all_gather("x", a, a, counts=[3], offsets=[4]), "7")
refused(lockstep.all_gather("x", a, a, counts=[-1]), "-1")
refused(lockstep.all_gather("x", a, a, counts=[2.5]), "2.5", "whole")
refused(lockstep.reduce_scatter("x", a, b, counts=[5]), "5")
refused(lockstep.scatter("x", b, a), "4 elements")
refused(lockstep.all_to_all("x", a, b, source_counts=[6], target_counts=[6]), "4")
refused(lockstep.allreduce("x", a, "median"), "median", "product")
refused(lockstep.allreduce("x", a, weight=-1), "weight")
refused(lockstep.broadcast("x", a, root=2**32), "root")
refused(lockstep.broadcast("x", a, root=1))
refused(lockstep.allreduce("a\\0b", a), "zero byte")
refused(lockstep.all_gather("x", a, b"123456"), "written")
refused(lockstep.allreduce("", a))
session.allreduce("still", a)
session.close()
"""


class Collectives(unittest.TestCase):
    side_by_side = True

    def works(self, said):
        self.assertEqual(said.code, 0, said)

    def test_every_kind(self):
        self.works(job(3, KINDS))

    def test_parts_of_unequal_size(self):
        self.works(job(3, PARTS))

    def test_groups(self):
        self.works(job(3, GROUPS))

    def test_work_in_flight(self):
        self.works(job(3, WORKS))

    def test_dtypes(self):
        self.works(job(3, DTYPES))

    def test_sizes_are_checked(self):
        self.works(alone(SIZES))
