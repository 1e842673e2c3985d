# SPDX-License-Identifier: Apache-2.0
"""The steps of a session: one synchronized backward pass is one step.

A hook on the outputs of a forward pass finds the begin of the backward pass (`arm`). The step and
the calls of all modules in the pass begin there. The end is a callback that autograd runs after
the last gradient (`finish`). It waits for the other ranks, on the thread that called backward.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
import threading
import weakref
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch.autograd import Variable

from .._native import Report
from .._options import whole
from ..errors import Changed, Forked, Invalid, LockstepError, Timeout, Unused
from ..session import Session
from ..step import Step
from . import bootstrap
from .member import Member, stream_of
from .memory import Gradients, settle

log = logging.getLogger("lockstep.torch")
_PATIENCE_S = 1.0
"""How long the other ranks wait for a step that this rank has left with an exception."""
_PHASE_BYTES = 60
_WEIGHT_MAX = 1 << 48
# The name of a collective. Errors show it when one rank is in it alone.
_ADDS = "lockstep.torch: a module is wrapped, or a copy trains for the first time"
_MISSING = "not produced by the backward pass"  # What the library says of a gradient.
_ADVICE = ("Pass find_unused_parameters=True to DistributedDataParallel if parameters may have no "
           "gradient. Otherwise make every output of forward part of the loss.")
_HOOKED = ("The program has a hook there (register_post_accumulate_grad_hook). A hook that steps the "
           "optimizer and sets .grad to None takes the gradient before it is averaged, and with "
           "find_unused_parameters=True ranks would train apart silently: step after backward().")


class World:
    """The modules of a session, and the step that is open."""

    def __init__(self, session: Session) -> None:
        if session.leaf_total > session.size:
            raise Invalid(f"the session has {session.leaf_total} virtual ranks, and {session.size} "
                          "ranks: a backward pass here is one step, and each virtual rank needs a "
                          f"step. Set LOCKSTEP_VIRTUAL_RANKS to 0 or {session.size}")
        self.session = session
        self.members: List[Member] = []
        self.lock = threading.RLock()
        self.serial = 0
        self.weight = 1  # Of the next step.
        self.phase = ""  # Label of the next step, beside the modules in it.
        self.step: Optional[Step] = None
        self.opened: List[Member] = []  # Members with a call in the open step.
        self.last: Optional[Step] = None
        # Queued in the backward pass that runs. Autograd has the only reference.
        self._end: Optional["weakref.ref[_End]"] = None
        self._early: Optional[LockstepError] = None  # How the step has ended, before finish ran.
        self._unmade: List[Gradients] = []  # Memory of closed modules that may be in use.
        self.aborted = False
        session.before_close(self.release)
        session.before_state(self.refresh)

    # --- members --------------------------------------------------------------------------------

    def name_of(self, kind: str) -> str:
        """A name for the next module: the same on every rank."""
        self.serial += 1
        return kind if self.serial == 1 else f"{kind}.{self.serial}"

    def add(self, member: Member) -> None:
        """Declares a module, and makes the values of all ranks equal. All ranks call it."""
        with self.lock:
            self.give_up()
            self._bury()
            self._check_changed()
            try:
                changed = [(other, other.dead) for other in self.members if other.changed]
                for other, _ in changed:
                    self._remove(other)
                self.refresh()  # Memory that a parameter had before may be that of a new one.
                for other, dead in [*changed, (member, False)]:
                    other.register()
                    other.dead = dead
                    self.members.append(other)
                self.session.start()
            except BaseException:
                if member in self.members:
                    self.members.remove(member)
                with contextlib.suppress(LockstepError):
                    member.close()
                raise

    def _check_changed(self) -> None:
        """Raises before any module is closed."""
        for member in self.members:
            if member.changed and not member.dead:
                member.check()

    def _bury(self) -> None:
        """Closes the modules whose owners are gone on every rank."""
        if self.members:
            dead = bytearray(member.dead for member in self.members)
            while self.session.world_size > 1:
                try:
                    self.session.allreduce(_ADDS, dead, "min")
                    break
                except Changed:  # A rank has died, and dead is undefined.
                    dead[:] = bytes(member.dead for member in self.members)
            for member, gone in zip(list(self.members), dead):
                if gone:
                    self._remove(member)
        self._unmade = [memory for memory in self._unmade if not memory.free()]

    def _remove(self, member: Member) -> None:
        self.members.remove(member)
        memory = member.close()
        if memory is not None:
            self.keep(memory)

    def prepare(self, member: Member) -> None:
        """A forward pass of the module begins. All ranks are in the same place."""
        self.give_up()
        if not member.hooks.current():
            if member.changed:
                self.renew(member)
            else:
                member.hooks.renew()
        elif member.steps and not member.arranged and self.step is None:
            with self.lock:
                member.arrange()

    def keep(self, memory: Gradients) -> None:
        """Memory that is freed when no tensor has it any more."""
        if not memory.free():
            self._unmade.append(memory)

    def renew(self, member: Member) -> None:
        """Declares a module anew, after its parameters got another dtype, device or memory format.
        All ranks call it."""
        with self.lock:
            self.give_up()
            self._check_changed()
            self._remove(member)
            self.add(member)

    def refresh(self) -> None:
        """Before the session reads parameters. It is told where they are: p.data = ... moves them.
        On a GPU streams may still write them: an optimizer, load_state_dict."""
        with self.lock:
            for member in self.members:
                if not member.changed:
                    member.refresh()
                elif not member.dead:
                    raise Invalid(
                        f"module '{member.name}': a program has changed the dtype, device or memory "
                        "format of its parameters: make a forward pass, which declares them anew, "
                        "before their state is compared")
            settle(m.parameters[0].device for m in self.members if m.on_device and not m.dead)

    def release(self) -> None:
        """The session ends: gradients keep their values."""
        for member in self.members:
            member.stop()
            member.release()

    # --- a step ---------------------------------------------------------------------------------

    def arm(self, member: Member, phase: str = "") -> None:
        """In a hook on an output of the module's forward pass."""
        if member.dead:
            return
        self._check()
        with self.lock:
            self.give_up()  # The step before may have been left with an exception.
            member.expect = True
            if member.call is not None:
                return
            self._queue()
            if self.step is None:
                self._begin(member, phase)
            else:
                member.will = self._will(member)
                self._open(member)

    def _check(self) -> None:
        if self.session.pid != os.getpid():
            raise Forked("the session belongs to the parent process: wrap the module in the "
                         "process that trains it")
        compiled: Any = sys.modules.get("torch._dynamo.compiled_autograd")
        if compiled is not None and (getattr(compiled, "in_compiled_autograd_region", False)
                                     or torch._C._current_graph_task_id() == -1):
            raise RuntimeError(
                "compiled autograd does not run the hooks of lockstep.torch: set "
                "torch._dynamo.config.optimize_ddp = 'python_reducer' before the module is "
                "wrapped, or leave compiled autograd out")

    def _will(self, member: Member) -> Optional[Sequence[int]]:
        """Which gradients of a module come in this backward pass. None: not known."""
        will, nested = member.hooks.will()
        return None if nested else will

    def _queue(self) -> None:
        if self._end is None:
            for member in self.members:  # A pass without a step, or with an exception, was before.
                member.armed.clear()
            end = _End(self)
            self._end = weakref.ref(end)
            Variable._execution_engine.queue_callback(end.run)  # type: ignore[attr-defined]

    def _begin(self, first: Member, phase: str) -> None:
        """Begins the step, if a module gets gradients in this backward pass."""
        chosen = []
        for member in self.members:
            if member.dead or not (member.expect or member.waits):
                continue
            will, nested = member.hooks.will()
            member.will = None if nested else will
            if will is not None and any(will) or member is first and member.sparse_comes(nested):
                chosen.append(member)
        if chosen:
            self._step(chosen, phase)

    def need(self, member: Member) -> None:
        """A gradient has come. Nobody has begun the call if no output was part of the loss, or if
        a re-entrant checkpoint hides the parameters."""
        if member.call is not None:
            return
        with self.lock:
            self.give_up()
            self._queue()
            self._check_part(member)
            member.will = None
            if self.step is None:
                self._step([member])
            else:
                self._open(member)

    def _check_part(self, member: Member) -> None:
        """Raises if the program has called a part of the module under no_sync, while a forward pass
        of the wrapper waits. Without such a forward pass, the gradient may be that of one whose
        outputs were not found."""
        if member.syncs() or all(forward.done for forward in member.forwards):
            return
        raise Invalid(
            f"module '{member.name}': a backward pass under no_sync reaches its parameters and goes "
            "through no output of it, while a forward pass outside of no_sync waits for its backward "
            "pass: call the wrapper instead of a part of the module, or make this backward pass "
            "before that forward pass")

    def _step(self, members: Iterable[Member], phase: str = "") -> None:
        labels = [label for label in (self.phase, phase) if label]
        phase = "+".join([*labels, *(member.name for member in members)])
        if len(phase) > _PHASE_BYTES:
            phase = hashlib.sha256(phase.encode()).hexdigest()[:32]
        self.opened = []
        self.step = self.session.step(phase=phase, weight=self.weight)
        for member in members:
            self._open(member)

    def _open(self, member: Member) -> None:
        self.opened.append(member)
        member.begin()

    def end_calls(self) -> None:
        """The backward pass has ended: what this rank has for the step is complete."""
        with self.lock:
            for member in self.opened:
                member.end()
            if self.step is not None and self._early is None:
                try:
                    self.step.end(self._stream(), timeout=0)
                except Timeout:
                    pass
                except LockstepError as error:  # For finish.
                    self._early = error

    def finish(self) -> None:
        """The backward pass has ended. Modules without a call in it expect one still."""
        with self.lock:
            for member in self.opened:
                member.end()
            failure = next((m.error for m in self.members if m.error is not None), None)
            for member in self.members:
                member.error = None
            step = self.step
            if step is None:
                if failure is not None:
                    raise failure
                return
            self._wait(step, failure)
            for member in self.opened:
                member.after(self.weight)
            self.opened = []

    def _wait(self, step: Step, failure: Optional[BaseException]) -> None:
        """Waits for the other ranks. An interrupted wait leaves the step open."""
        early, self._early = self._early, None
        try:
            if early is not None:
                raise early
            step.end(self._stream())
        except LockstepError as error:
            self._ended(step)
            if failure is not None:
                raise failure from error
            raise explain(error, self.opened) from None
        except BaseException:
            self._leave()
            raise
        self._ended(step)
        if failure is not None:
            raise failure

    def _stream(self) -> Optional[int]:
        for member in self.opened:
            if member.on_device:
                return stream_of(member.parameters[0].device)
        return None

    def _ended(self, step: Step) -> None:
        global _latest
        self.step, self.last = None, step
        _latest = self

    def dropped(self) -> None:
        """The backward pass has ended with an exception."""
        if self.step is None or self.session.pid != os.getpid():
            return
        self._leave()
        timer = threading.Timer(_PATIENCE_S, self._too_late, [self.step])
        timer.daemon = True
        timer.start()

    def _leave(self) -> None:
        """An exception leaves the step open. The means of its buckets may still come."""
        for member in self.opened:
            member.leave()

    def _too_late(self, step: Step) -> None:
        with self.lock, contextlib.suppress(LockstepError):
            if self.step is step and not self.aborted:
                self.give_up()

    def give_up(self) -> None:
        """Ends a step that was left with an exception, if there is one. The other ranks get Unused
        for it."""
        if self.step is None or self._end is not None:
            return
        step = self.step
        for member in self.opened:
            member.give_up()
        self.opened = []
        try:
            step.end(None)
        except Unused as error:
            log.warning("step %d was given up after an exception: %s", step.number, error)
        self.step = None

    def shadow(self, member: Member, zeros: bool) -> None:
        """A step for a rank that has joined: it has no data any more."""
        with self.lock:
            self.give_up()
            step = self.session.step(phase=member.name, weight=1 if zeros else 0)
            if zeros:
                member.contribute_zeros()
            step.end(None)
            self.last = step
            member.after_shadow(1 if zeros else 0)

    # --- what users see -------------------------------------------------------------------------

    @contextlib.contextmanager
    def options(self, weight: Optional[int] = None, phase: Optional[str] = None) -> Iterator[None]:
        """Options of the steps that begin inside."""
        before = self.weight, self.phase
        if weight is not None:
            samples = whole(weight, "weight")
            if not 0 <= samples <= _WEIGHT_MAX:
                raise Invalid(f"weight is {weight}, and not a number from 0 to 2^48")
            self.weight = samples
        if phase is not None:
            self.phase = phase
        try:
            yield
        finally:
            self.weight, self.phase = before

    def report(self) -> Optional[Report]:
        """The report of the last step. None before the first one, and while there is none: after
        a failure, or when another user of the session has made a step."""
        if self.last is None:
            return None
        try:
            return self.session.report(self.last.number)
        except LockstepError:
            return None

    def abort(self, text: str) -> None:
        """Tells the other ranks why this one ends. Those that go on without it are not told."""
        self.aborted = True
        if self.session.outlived:
            return
        with contextlib.suppress(LockstepError):
            self.session.abort(text)


class _End:
    """The callback at the end of a backward pass. Autograd drops it when there is an exception."""

    def __init__(self, world: World) -> None:
        self._world = weakref.ref(world)
        self._ran = False

    def run(self) -> None:
        self._ran = True
        world = self._world()
        if world is not None:
            # Callbacks run when the last gradient has come. A step of another group must not wait
            # for this one: ranks may be in several groups, which would wait for each other in turn.
            for other in _all():
                if other is not world and other._end is not None:
                    other.end_calls()
            world._end = None
            world.finish()

    def __del__(self) -> None:
        world = self._world()
        if not self._ran and world is not None:
            world._end = None
            world.dropped()


def explain(error: LockstepError, opened: Sequence[Member]) -> LockstepError:
    """The same error, with what to do about a gradient that is missing. Other errors say it.
    opened: the members with a call in the step."""
    if isinstance(error, Unused) and _MISSING in error.text:
        hooked = any(f"'{name}'" in error.text for member in opened
                     for name in member.hooked_names())
        return type(error)(f"{error.text}\n{_HOOKED if hooked else _ADVICE}")
    return error


_world: Optional[World] = None
_worlds: Dict[Tuple[int, ...], World] = {}  # Those of groups of some ranks.
_latest: Optional[World] = None  # It has made the last step.
_hook: Any = None


def world(device: Any = None) -> World:
    """The world of the session of this process. device: where the first module is, if this call
    opens the session. A device of CUDA is that of the session from then on."""
    global _world
    on_device = device is not None and device.type == "cuda" and not bootstrap.is_open()
    options: Dict[str, Any] = {"device": f"cuda:{device.index}"} if on_device else {}
    session = bootstrap.session(**options)
    if dist.is_initialized():
        bootstrap.check_place(session, dist.get_rank(), dist.get_world_size())
    if _world is None or _world.session is not session:
        _world = World(session)
        _watch_exceptions()
    return _world


def of_group(group: Any) -> World:
    """The world of a process group that does not have all ranks. Its steps are those of its
    members. All members make the first call."""
    ranks = tuple(dist.get_process_group_ranks(group))
    store = dist.distributed_c10d._get_process_group_store(group)
    session = bootstrap.of_group(ranks, store)
    bootstrap.check_place(session, ranks.index(dist.get_rank()), len(ranks))
    there = _worlds.get(ranks)
    if there is None or there.session is not session:
        there = _worlds[ranks] = World(session)
        _watch_exceptions()
    return there


def current() -> Optional[World]:
    """The world that has made the last step. Without a step: that of all ranks, if there is one."""
    return _latest if _latest is not None and _latest.session.handle else _world


def _all() -> List[World]:
    return [world for world in [_world, *_worlds.values()] if world is not None]


def members() -> Iterator[Member]:
    """The members of all worlds."""
    for world in _all():
        yield from world.members


def _settle() -> None:
    """The program has handled the exceptions that have left its last backward passes."""
    for world in _all():
        if world.session.handle and world.session.pid == os.getpid() and not world.aborted:
            with world.lock, contextlib.suppress(LockstepError):
                world.give_up()


def _watch_exceptions() -> None:
    """An exception that ends this process is told to the other ranks at once."""
    global _hook
    if _hook is not None:
        return
    before = sys.excepthook
    bootstrap.at_good_end(_settle)

    def hook(kind: Any, error: Any, trace: Any) -> None:
        for world in _all():
            if world.session.handle and world.session.pid == os.getpid():
                world.abort(f"{kind.__name__}: {error}")
        before(kind, error, trace)

    _hook = sys.excepthook = hook
