# SPDX-License-Identifier: Apache-2.0
"""Steps, and the backward passes in them."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Iterator, List, Optional, Sequence

from . import _native
from ._library import Pending, check, lib
from ._native import Report, Status, StepOptions, StepView
from ._options import fill
from .arrays import memory_of
from .errors import Invalid, LockstepError, Timeout, Unused
from .module import Index, Module

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .session import Session

_OPTIONS = set(StepOptions.__annotations__)
Stream = Optional[int]
_PER_THREAD = 2  # CUDA's default stream of the calling thread: another thread has another one.


class Step:
    """A step. Session.step begins it. As a context manager it ends the step.

    An exception inside: calls that are open are given up, and the step ends, so the other ranks go
    on (they get Unused). Without such a call, or for KeyboardInterrupt, the session is aborted.

    With on_failure continue the other ranks are told so when this rank makes its next call of the
    session. A process that makes none, and ends, is lost like one that is killed.
    """

    def __init__(self, session: "Session", **options: "Unpack[StepOptions]") -> None:
        self.session = session
        self._pending: Optional[Pending] = None
        self._open = False
        self._given_up = False
        self._left: Optional[BaseException] = None  # It has left the step, and nobody is told.
        self._calls: List[Call] = []
        self._accumulates = bool(options.get("accumulate"))
        struct = _native.lockstep_step_options()
        fill(struct, options, _OPTIONS, "step()", [])
        view = _native.lockstep_step_view()
        what = ("step", *(getattr(struct, name) for name in sorted(_OPTIONS)))

        def begin() -> int:
            return int(lib.lockstep_step_begin(
                session.handle, ctypes.byref(struct), ctypes.byref(view)))

        if session.uneven:
            status, view = session._block(what, begin, view)
        else:
            session._enter(what)
            status = check(begin())
        self.finished = status == Status.FINISHED
        """True if there is no step any more: every rank is exhausted, or the first one is."""
        self.view = StepView(*(getattr(view, name) for name in StepView._fields))
        """Number, generation, rank, world_size, learning, exhausted, changed."""
        if self.view.changed:
            session.world_change()
        self._open = not self.finished
        session._step = self if self._open else None
        if self.finished:
            session._window.clear()

    @property
    def number(self) -> int:
        """From 1. All steps of a window of accumulation have the same number."""
        return self.view.step

    def call(self, module: Module) -> "Call":
        """Begins a backward pass of a module."""
        return Call(module)

    def end(self, stream: Stream = None, timeout: Optional[float] = None) -> None:
        """Ends the step: all gradients are averaged when it returns. timeout: in seconds; then
        Timeout is raised, nothing is lost, and end may be called again. Unused is raised when the
        step has ended."""
        self._settle()
        if not self._open:
            return
        handle = self.session.handle
        try:
            self.session._await(
                self, lambda ms: int(lib.lockstep_step_wait(handle, stream, ms)), timeout,
                here=stream == _PER_THREAD)
        except LockstepError as error:
            refused = isinstance(error, Invalid) and any(call._open for call in self._calls)
            if not isinstance(error, Timeout) and not refused:
                self._ended()
            raise
        self._ended()

    def _ended(self, borrowed: bool = False) -> None:
        """borrowed: the library may still use the gradients of the calls."""
        self._open = False
        if borrowed or self._accumulates:
            self.session._window += [call._keep for call in self._calls]
        else:
            self.session._window.clear()
            self.session._last = self.number
        if self.session._step is self:
            self.session._step = None

    def report(self) -> Report:
        """The report of this step, after its end and before the next one ends."""
        return self.session.report(self.number)

    def __enter__(self) -> "Step":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.end()
        elif self._open:
            self._leave(error)

    def _leave(self, error: BaseException) -> None:
        """An exception leaves the step. It is the one that the program gets."""
        if self.session.outlived:
            self._left = error
        else:
            self._give_up(error)

    def _settle(self) -> None:
        """The program has handled the exceptions that have left calls and the step."""
        for call in self._calls:
            call._settle()
        if self._left is not None:
            error, self._left = self._left, None
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        session = self.session
        if self._given_up and isinstance(error, Exception):
            try:
                self.end()
            except Unused:
                pass
            except LockstepError as second:
                error.__context__ = second
            return
        session.abort(f"{type(error).__name__} in step {self.number}: {error}")
        self._ended(borrowed=True)


class Call:
    """A backward pass of a module. As a context manager it ends the call, and an exception inside
    gives it up."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._pending: Optional[Pending] = None
        self._handle = ctypes.c_void_p()
        self._keep: List[Any] = []
        self._left = False  # An exception has left it, and nobody is told.
        module.session._enter()
        check(lib.lockstep_call_begin(module._handle, ctypes.byref(self._handle)))
        self._open = True
        self._step = module.session._step
        if self._step is not None:
            self._step._calls.append(self)

    @property
    def handle(self) -> int:
        """The lockstep_call. Valid until the step has ended."""
        return self._handle.value or 0

    def ready(self, parameter: Index, gradient: Any = None, stream: Stream = None,
              replica: int = 0) -> None:
        """Reports that a gradient is complete. gradient None: it is in the registered memory.
        From now until the end of the step (with accumulate: of the window) the memory is the
        library's, and this package keeps the gradient alive. Any thread."""
        number = self.module.index(parameter)
        address = None
        if gradient is not None:
            address = self._place(number, gradient)
        if replica:
            check(lib.lockstep_replica_ready(
                self.module._handle, self._handle, replica, number, address, stream))
        else:
            check(lib.lockstep_grad_ready(
                self.module._handle, self._handle, number, address, stream))

    def _place(self, number: int, gradient: Any) -> int:
        memory = memory_of(gradient)
        known = self.module._gradient_of(number)
        if memory.count != known.count or memory.dtype != known.dtype:
            raise Invalid(
                f"module '{self.module.name}': the gradient of parameter {number} has "
                f"{memory.count} elements of {memory.dtype.name.lower()}, and not {known.count} of "
                f"{known.dtype.name.lower()}")
        if not memory.contiguous:
            raise Invalid(f"module '{self.module.name}': the gradient of parameter {number} is not "
                          "contiguous")
        self._keep.append(memory)
        return memory.address

    def unused(self, parameters: Sequence[Index]) -> None:
        """Declares in advance that parameters get no gradient in this call."""
        check(lib.lockstep_call_unused(
            self._handle, self.module._numbers(parameters), len(parameters)))

    def end(self) -> None:
        """Ends the backward pass. A call that has ended stays ended."""
        if self._open:
            self._open = False
            check(lib.lockstep_call_end(self._handle))

    def abort(self) -> None:
        """Gives up the call."""
        if self._open:
            self._open = False
            check(lib.lockstep_call_abort(self._handle))
            if self._step is not None:
                self._step._given_up = True

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until the gradients of this call are averaged, before the end of the step. False
        if the call counts in a later step. timeout: in seconds; then Timeout is raised."""
        status = self.module.session._await(
            self, lambda ms: int(lib.lockstep_call_wait(self._handle, ms)), timeout)
        return status != Status.DEFERRED

    def buckets(self, timeout: Optional[float] = None) -> Iterator[List[int]]:
        """The parameters of each finished bucket, in the order in which buckets finish. timeout:
        for each bucket, in seconds."""
        bucket = ctypes.c_uint32()
        while True:
            status = self.module.session._await(
                self, lambda ms: int(lib.lockstep_call_next(
                    self._handle, ms, ctypes.byref(bucket))), timeout)
            if status != Status.OK:
                return
            yield self.module.bucket(bucket.value)

    def __enter__(self) -> "Call":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.end()
        elif self._step is not None and self._step.session.outlived:
            self._left = True
        else:
            self._left = True
            self._settle()

    def _settle(self) -> None:
        if self._left:
            self._left = False
            try:
                self.abort()
            except LockstepError:
                pass  # The session has failed: the exception of the program says more.
