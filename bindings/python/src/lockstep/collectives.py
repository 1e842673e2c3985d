# SPDX-License-Identifier: Apache-2.0
"""Collectives: their descriptions, work in flight, and groups of ranks.

A function describes a collective. A session or a group runs it, or begins it and gives a Work:

    session.run(lockstep.allreduce("loss", loss, "mean"))
    work = group.begin(lockstep.broadcast("state", state))

docs/collectives.md is the guide. Sizes are checked here, so that no wrong count reaches memory.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple, Union

from . import _native
from ._library import (SLICE_MS, TIMEOUT, Pending, check, error_text, lib, milliseconds,
                       on_main_thread, seconds_of)
from ._native import CollectiveKind, Op
from ._options import enum_of, set_number, text_of, whole, whole32
from .arrays import Memory, memory_of
from .errors import Changed, Invalid, LockstepError, Timeout, error_of

if TYPE_CHECKING:
    from .session import Session

_SOURCE_PARTS = {CollectiveKind.REDUCE_SCATTER, CollectiveKind.SCATTER, CollectiveKind.ALL_TO_ALL}
_TARGET_PARTS = {CollectiveKind.GATHER, CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL}
Counts = Optional[Sequence[int]]


@dataclass
class Collective:
    """What one rank calls. The functions of this module make it.

    Counts and offsets are in elements. source and target are `input` and `output` of lockstep.h.
    """

    kind: CollectiveKind
    name: str
    source: Optional[Any] = None
    target: Optional[Any] = None
    op: Union[Op, str] = Op.SUM
    root: int = 0
    peer: int = 0
    tag: int = 0
    weight: int = 1
    source_counts: Counts = None
    source_offsets: Counts = None
    target_counts: Counts = None
    target_offsets: Counts = None
    keep: List[Any] = field(default_factory=list, repr=False)
    _sender: Any = field(default_factory=lambda: ctypes.c_uint32(_native.ANY_SOURCE), repr=False,
                         compare=False)

    @property
    def result(self) -> Any:
        """The array that gets the result."""
        return self.target if self.target is not None else self.source

    @property
    def sender(self) -> int:
        """A receive that is done: the member that has sent."""
        return int(self._sender.value)

    def struct(self, rank: int, size: int) -> Any:
        """The struct for this place among the members. Raises Invalid if sizes do not fit."""
        self.keep = []  # What an earlier use needs is kept by its Work.
        source = self._memory(self.source, False)
        target = self._memory(self.target, True)
        what = _native.lockstep_collective(kind=int(self.kind), name=text_of(self.name))
        like = source or target
        if like is not None:
            if source and target and source.dtype != target.dtype:
                raise Invalid(f"collective '{self.name}': {source.dtype.name.lower()} cannot "
                              f"become {target.dtype.name.lower()}")
            what.dtype = int(like.dtype)
            what.count = self._count(source, target, rank, size)
        if self.kind == CollectiveKind.REDUCE and rank == self.root and target is None:
            raise Invalid(f"collective '{self.name}': the source cannot be written, and the result "
                          "has to go somewhere: pass a target")
        what.input = source.address if source else None
        what.output = target.address if target else None
        if self.kind == CollectiveKind.RECEIVE:
            what.sender = ctypes.pointer(self._sender)
        what.op = int(enum_of(Op, self.op, "op"))
        for name, value in (("root", self.root), ("peer", self.peer), ("tag", self.tag),
                            ("weight", self.weight)):
            set_number(what, name, value, name)
        for name, counts in (
                ("input_counts", self.source_counts), ("input_offsets", self.source_offsets),
                ("output_counts", self.target_counts), ("output_offsets", self.target_offsets)):
            if counts is not None:
                setattr(what, name, self._array(counts, size, name))
        self.keep.append((source, target))
        return what

    def _memory(self, what: Any, writable: bool) -> Optional[Memory]:
        if what is None:
            return None
        memory = memory_of(what, writable)
        if not memory.contiguous:
            raise Invalid(f"collective '{self.name}': the elements of the array do not lie side by "
                          "side: pass a contiguous array")
        return memory

    def _array(self, counts: Sequence[int], size: int, name: str) -> Any:
        one = f"collective '{self.name}': a number in {name}"
        values = [whole(value, one) for value in counts]
        if len(values) != size or any(value < 0 for value in values):
            raise Invalid(f"collective '{self.name}': {name} has {values}, and not one number for "
                          f"each of {size} members")
        array = (ctypes.c_uint64 * size)(*values)
        self.keep.append(array)
        return ctypes.cast(array, ctypes.POINTER(ctypes.c_uint64))

    def _need(self, memory: Optional[Memory], elements: int, which: str) -> None:
        if memory is not None and memory.count < elements:
            raise Invalid(f"collective '{self.name}': the {which} has {memory.count} elements, and "
                          f"{elements} are needed")

    def _extent(self, counts: Sequence[int], offsets: Counts, size: int) -> int:
        """Elements up to the end of the last part."""
        if len(counts) != size or (offsets is not None and len(offsets) != size):
            raise Invalid(f"collective '{self.name}': counts and offsets have one number for each "
                          f"of {size} members")
        if offsets is None:
            return sum(int(count) for count in counts)
        return max((int(o) + int(c) for o, c in zip(offsets, counts) if c), default=0)

    def _count(self, source: Optional[Memory], target: Optional[Memory], rank: int,
               size: int) -> int:
        """Elements of the whole or of each part; checks that the memories have room."""
        source_parts, target_parts = self.kind in _SOURCE_PARTS, self.kind in _TARGET_PARTS
        # Reduce-scatter in place: the target has all parts.
        in_place = self.kind == CollectiveKind.REDUCE_SCATTER and source is None
        whole = None
        if not source_parts and not target_parts:
            whole = source if source is not None else target
            assert whole is not None
            self._need(target, whole.count, "target")
            return whole.count
        if self.source_counts is not None or self.target_counts is not None:
            return self._check_counts(source, target, rank, size, in_place)
        one, parts = (target, source) if self.kind in (
            CollectiveKind.REDUCE_SCATTER, CollectiveKind.SCATTER) else (source, target)
        if in_place:
            one, parts = None, target
        if self.kind == CollectiveKind.ALL_TO_ALL:
            one, parts = None, target
        if one is not None:
            count = one.count
        else:
            if parts is None:
                raise Invalid(f"collective '{self.name}': there is no target")
            count = parts.count // size
            if count * size != parts.count:
                raise Invalid(f"collective '{self.name}': {parts.count} elements are not {size} "
                              "equal parts")
        if one is None or parts is not None:
            self._need(parts, count * size, "source" if parts is source else "target")
        if self.kind == CollectiveKind.ALL_TO_ALL:
            self._need(source, count * size, "source")
        return count

    def _check_counts(self, source: Optional[Memory], target: Optional[Memory], rank: int,
                      size: int, in_place: bool) -> int:
        """The same for parts of unequal size."""
        if self.source_counts is not None:
            extent = self._extent(self.source_counts, self.source_offsets, size)
            self._need(target if in_place else source, extent, "target" if in_place else "source")
            if self.kind != CollectiveKind.ALL_TO_ALL and not in_place:
                self._need(target, int(self.source_counts[rank]), "target")
        if self.target_counts is not None:
            extent = self._extent(self.target_counts, self.target_offsets, size)
            self._need(target, extent, "target")
            if self.kind != CollectiveKind.ALL_TO_ALL:
                self._need(source, int(self.target_counts[rank]), "source")
        return 0


# --- the functions ------------------------------------------------------------------------------


def allreduce(name: str, target: Any, op: Union[Op, str] = Op.SUM, *, source: Any = None,
              weight: int = 1) -> Collective:
    """target becomes op over the sources of all members. source None: target has it."""
    return Collective(CollectiveKind.ALLREDUCE, name, source, target, op, weight=weight)


def broadcast(name: str, target: Any, root: int = 0, *, source: Any = None) -> Collective:
    """target becomes the root's source, or the root's target if it has no source."""
    return Collective(CollectiveKind.BROADCAST, name, source, target, root=root)


def barrier(name: str) -> Collective:
    """Completes on no member before every member has begun it."""
    return Collective(CollectiveKind.BARRIER, name)


def reduce(name: str, source: Any, op: Union[Op, str] = Op.SUM, root: int = 0, *,
           target: Any = None, weight: int = 1) -> Collective:
    """target of the root becomes op over the sources. On the root, target None is the source."""
    if target is None:  # Another member's output is not written.
        memory = memory_of(source, writable=False)
        target = source if not memory.readonly else None
    return Collective(CollectiveKind.REDUCE, name, source, target, op, root, weight=weight)


def reduce_scatter(name: str, source: Any, target: Any, op: Union[Op, str] = Op.SUM, *,
                   counts: Counts = None, offsets: Counts = None, weight: int = 1) -> Collective:
    """target becomes op over this member's part of the sources. source None: target has all parts
    and keeps them, but for this member's part."""
    return Collective(CollectiveKind.REDUCE_SCATTER, name, source, target, op, weight=weight,
                      source_counts=counts, source_offsets=offsets)


def gather(name: str, source: Any, target: Any = None, root: int = 0, *, counts: Counts = None,
           offsets: Counts = None) -> Collective:
    """target of the root becomes the sources of all members, in the order of the members."""
    return Collective(CollectiveKind.GATHER, name, source, target, root=root,
                      target_counts=counts, target_offsets=offsets)


def scatter(name: str, source: Any, target: Any, root: int = 0, *, counts: Counts = None,
            offsets: Counts = None) -> Collective:
    """target becomes this member's part of the root's source. Other members: source None."""
    return Collective(CollectiveKind.SCATTER, name, source, target, root=root,
                      source_counts=counts, source_offsets=offsets)


def all_gather(name: str, source: Any, target: Any, *, counts: Counts = None,
               offsets: Counts = None) -> Collective:
    """target becomes the sources of all members. source None: the target has it in its place."""
    return Collective(CollectiveKind.ALL_GATHER, name, source, target,
                      target_counts=counts, target_offsets=offsets)


def all_to_all(name: str, source: Any, target: Any, *, source_counts: Counts = None,
               source_offsets: Counts = None, target_counts: Counts = None,
               target_offsets: Counts = None) -> Collective:
    """Part r of member i's source becomes part i of member r's target. source None and no
    source_counts: the target has the parts to send. source None with source_counts of 0: nothing is
    sent."""
    return Collective(CollectiveKind.ALL_TO_ALL, name, source, target,
                      source_counts=source_counts, source_offsets=source_offsets,
                      target_counts=target_counts, target_offsets=target_offsets)


def send(name: str, source: Any, peer: int, tag: int = 0) -> Collective:
    """Goes to member `peer`, which receives the same name and tag."""
    return Collective(CollectiveKind.SEND, name, source, peer=peer, tag=tag)


def receive(name: str, target: Any, peer: int, tag: int = 0) -> Collective:
    """target becomes what member `peer` sends with the same name and tag. ANY_SOURCE: any other
    member; sender says which."""
    return Collective(CollectiveKind.RECEIVE, name, None, target, peer=peer, tag=tag)


# --- work, and what can run collectives ---------------------------------------------------------


class Work:
    """A collective in flight. Its arrays belong to the library until it is done."""

    def __init__(self, session: "Session", what: Collective) -> None:
        self._session = session
        self._what = what
        self._keep = what.keep
        self._handle = ctypes.c_void_p()
        self._pending: Optional[Pending] = None
        self._finished = False
        self._error: Optional[LockstepError] = None

    @property
    def handle(self) -> int:
        """The lockstep_work. 0 once it is done."""
        return self._handle.value or 0

    @property
    def name(self) -> str:
        """The name of the collective."""
        return self._what.name

    @property
    def result(self) -> Any:
        """The array that gets the result."""
        return self._what.result

    @property
    def sender(self) -> int:
        """A receive that is done: the member that has sent."""
        return self._what.sender

    def _ask(self, timeout_ms: int) -> int:
        status: int = lib.lockstep_work_wait(self._handle, timeout_ms)
        return status

    def _finish(self, error: Optional[LockstepError] = None) -> None:
        self._finished, self._error, self._handle.value = True, error, None
        self._session._works.discard(self)

    def done(self) -> bool:
        """True if the collective is done. Raises if it has failed. Does not wait."""
        if not self._finished:
            if self._pending is None:
                status = self._ask(0)
                if status == TIMEOUT:
                    return False
                self._finish(error_of(status, error_text()) if status < 0 else None)
            elif not self._pending.start().done:
                return False
            else:
                self.wait()
        if self._error is not None:
            raise self._error
        return True

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Waits until the collective is done, and gives the array with the result. timeout: in
        seconds; then Timeout is raised, the collective is still in flight, and wait may be called
        again."""
        if not self._finished:
            try:
                self._session._await(self, self._ask, timeout)
            except LockstepError as error:
                if not isinstance(error, Timeout):
                    self._finish(error)
                raise
            self._finish()
        if self._error is not None:
            raise self._error
        return self.result


class Collectives:
    """What a session and a group have in common. Names are matched between members."""

    _session: "Session"
    _handle: ctypes.c_void_p
    _place: Tuple[int, int]  # Rank and size when the library was asked last.

    @property
    def handle(self) -> int:
        """The lockstep_session or lockstep_group. 0 once it is closed."""
        return self._handle.value or 0

    def _ask_place(self) -> Tuple[int, int]:
        """Rank and size of now: a death changes both (on_failure continue). After close and in a
        forked child they are those of the last time."""
        if self.handle:
            rank, size = ctypes.c_uint32(), ctypes.c_uint32()
            if self._world(self._handle, ctypes.byref(rank), ctypes.byref(size)) == 0:
                self._place = rank.value, size.value
        return self._place

    @staticmethod
    def _world(handle: Any, rank: Any, size: Any) -> int:
        """The function of the library that says rank and size."""
        raise NotImplementedError

    @property
    def rank(self) -> int:
        """This process's place among the members. After a death it may be another one."""
        return self._ask_place()[0]

    @property
    def size(self) -> int:
        """Number of members that are left."""
        return self._ask_place()[1]

    def _group_handle(self) -> Optional[int]:
        return None

    def _struct(self, what: Collective) -> Any:
        """The struct for the library. Sizes that do not fit raise Invalid. If a death is the
        reason, of which the program has not been told, they raise Changed, as the library does."""
        self._session._enter()
        try:
            struct = what.struct(*self._ask_place())
        except Invalid as error:
            if self._session._learns_of_change():
                raise Changed(f"{error.text}; the world has changed: ask world_change(), and call "
                              "it again with the numbers and counts of now") from error
            raise
        struct.group = self._group_handle()
        return struct

    def begin(self, what: Collective) -> Work:
        """Begins a collective."""
        session = self._session
        struct = self._struct(what)
        work = Work(session, what)
        session._works.add(work)
        try:
            check(lib.lockstep_collective_begin(
                session.handle, ctypes.byref(struct), ctypes.byref(work._handle)))
        except BaseException:
            if not work.handle:
                session._works.discard(work)
            raise
        return work

    def run(self, what: Collective, timeout: Optional[float] = None) -> Any:
        """Runs a collective and gives the array with the result. timeout: in seconds. A collective
        that is not done by then fails the session, because other members may have the result."""
        session, timeout = self._session, seconds_of(timeout)
        if timeout is not None and timeout * 1000 > SLICE_MS and on_main_thread():
            return self._run_timed(what, timeout)
        struct = self._struct(what)
        if timeout is not None or not on_main_thread():
            check(lib.lockstep_collective_run(
                session.handle, ctypes.byref(struct), milliseconds(timeout)))
            return what.result
        work = Work(session, what)
        session._works.add(work)  # An exception of a signal handler may leave it in flight.
        status = lib.lockstep_collective_wait(
            session.handle, ctypes.byref(struct), SLICE_MS, ctypes.byref(work._handle))
        if status == TIMEOUT and work.handle:
            return work.wait()
        work._finish(error_of(status, error_text()) if status < 0 else None)
        return work.wait()

    def _run_timed(self, what: Collective, timeout: float) -> Any:
        """One call of the library has to cover the whole wait, because it says which ranks are late.
        So a thread makes the call, and the main thread sees signals."""
        session = self._session
        key = (f"collective '{what.name}'", what.kind, id(what.source), id(what.target), timeout,
               id(self))
        session._enter(key)
        struct: Any = None if session._blocked is not None else self._struct(what)
        limit = milliseconds(timeout)
        _, done = session._block(key, lambda: int(lib.lockstep_collective_run(
            session.handle, ctypes.byref(struct), limit)), what)
        return done.result

    def allreduce(self, name: str, target: Any, op: Union[Op, str] = Op.SUM, *,
                  source: Any = None, weight: int = 1, timeout: Optional[float] = None) -> Any:
        """Runs lockstep.allreduce."""
        return self.run(allreduce(name, target, op, source=source, weight=weight), timeout)

    def broadcast(self, name: str, target: Any, root: int = 0, *, source: Any = None,
                  timeout: Optional[float] = None) -> Any:
        """Runs lockstep.broadcast."""
        return self.run(broadcast(name, target, root, source=source), timeout)

    def barrier(self, name: str, timeout: Optional[float] = None) -> None:
        """Runs lockstep.barrier."""
        self.run(barrier(name), timeout)

    def reduce(self, name: str, source: Any, op: Union[Op, str] = Op.SUM, root: int = 0, *,
               target: Any = None, weight: int = 1, timeout: Optional[float] = None) -> Any:
        """Runs lockstep.reduce."""
        return self.run(reduce(name, source, op, root, target=target, weight=weight), timeout)

    def reduce_scatter(self, name: str, source: Any, target: Any, op: Union[Op, str] = Op.SUM, *,
                       counts: Counts = None, offsets: Counts = None, weight: int = 1,
                       timeout: Optional[float] = None) -> Any:
        """Runs lockstep.reduce_scatter."""
        return self.run(reduce_scatter(name, source, target, op, counts=counts, offsets=offsets,
                                       weight=weight), timeout)

    def gather(self, name: str, source: Any, target: Any = None, root: int = 0, *,
               counts: Counts = None, offsets: Counts = None,
               timeout: Optional[float] = None) -> Any:
        """Runs lockstep.gather."""
        return self.run(gather(name, source, target, root, counts=counts, offsets=offsets),
                        timeout)

    def scatter(self, name: str, source: Any, target: Any, root: int = 0, *,
                counts: Counts = None, offsets: Counts = None,
                timeout: Optional[float] = None) -> Any:
        """Runs lockstep.scatter."""
        return self.run(scatter(name, source, target, root, counts=counts, offsets=offsets),
                        timeout)

    def all_gather(self, name: str, source: Any, target: Any, *, counts: Counts = None,
                   offsets: Counts = None, timeout: Optional[float] = None) -> Any:
        """Runs lockstep.all_gather."""
        return self.run(all_gather(name, source, target, counts=counts, offsets=offsets), timeout)

    def all_to_all(self, name: str, source: Any, target: Any, *, source_counts: Counts = None,
                   source_offsets: Counts = None, target_counts: Counts = None,
                   target_offsets: Counts = None, timeout: Optional[float] = None) -> Any:
        """Runs lockstep.all_to_all."""
        return self.run(all_to_all(
            name, source, target, source_counts=source_counts, source_offsets=source_offsets,
            target_counts=target_counts, target_offsets=target_offsets), timeout)

    def send(self, name: str, source: Any, peer: int, tag: int = 0, *,
             timeout: Optional[float] = None) -> None:
        """Runs lockstep.send."""
        self.run(send(name, source, peer, tag), timeout)

    def receive(self, name: str, target: Any, peer: int, tag: int = 0, *,
                timeout: Optional[float] = None) -> Any:
        """Runs lockstep.receive."""
        return self.run(receive(name, target, peer, tag), timeout)


class Group(Collectives):
    """Ranks that make collectives among themselves. Session.group makes it. ranks has the numbers
    of the members when the group was made, also of members that have died since."""

    def __init__(self, session: "Session", ranks: Sequence[int], name: str) -> None:
        self._session = session
        self._handle = ctypes.c_void_p()
        self.ranks = tuple(whole32(rank, f"group '{name}': a rank") for rank in ranks)
        self.name = name
        array = (ctypes.c_uint32 * len(self.ranks))(*self.ranks)
        handle = self._handle
        _, self._handle = session._block(
            ("group", self.ranks, name),
            lambda: int(lib.lockstep_group_create(
                session.handle, array, len(array), text_of(name), ctypes.byref(handle))), handle)
        self._place = 0, len(self.ranks)
        self._ask_place()

    @staticmethod
    def _world(handle: Any, rank: Any, size: Any) -> int:
        return int(lib.lockstep_group_world(handle, rank, size))

    def _group_handle(self) -> Optional[int]:
        if not self.handle:
            raise Invalid(f"group '{self.name}' is closed")
        return self.handle

    def close(self) -> None:
        """Frees the group on this rank. A group that is closed already stays closed."""
        if self.handle and self._session.handle:
            self._ask_place()
            check(lib.lockstep_group_close(self._handle))
        self._handle.value = None

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
