# SPDX-License-Identifier: Apache-2.0
"""The session: membership of this process in one job."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
import time
import weakref
from typing import (TYPE_CHECKING, Any, Callable, Iterator, List, NamedTuple, Optional, Sequence,
                    Set, Tuple, Union)

from . import _exit, _native
from ._library import (SLICE_MS, TIMEOUT, Pending, check, error_text, lib, on_main_thread,
                       seconds_of)
from ._log import LogPipe, level_of
from ._native import MetricKind, OnFailure, Report, SessionOptions, Uneven, WorldChange
from ._options import enum_of, fill, text_of, whole
from ._outlive import outlive
from .arrays import Memory, dtype_of, item_bytes
from .collectives import Collectives, Group, Work
from .errors import Forked, Invalid, LockstepError, Timeout, error_of
from .module import Buffers, Module, Parameters
from .step import Step

if TYPE_CHECKING:
    from typing_extensions import Unpack

_OPTIONS = set(SessionOptions.__annotations__)
_CLOSE_S = 5.0  # How long close waits for a wait that abort has ended.
_WAIT_FOREVER = _native.WAIT_FOREVER


class _Blocked(NamedTuple):
    """A call that blocks and has no timeout. An exception of a signal handler may leave it."""

    what: Tuple[Any, ...]  # Its name and arguments.
    pending: Pending
    got: Any  # What it fills.

    @property
    def begun(self) -> bool:
        """True if it is a step that is open in the library."""
        return self.what[0] == "step" and self.pending.succeeded


class Session(Collectives):
    """Membership of this process in one job. Opening waits until the world has formed.

    Options are the fields of struct lockstep_config, and environment variables override them
    (docs/environment.md). log: the logger that gets the library's lines; None is
    logging.getLogger("lockstep"), False is silence, unless LOCKSTEP_LOG is set. As a context
    manager the session is closed at the end, and an exception inside aborts it first.

    One thread makes the calls of a session, except where the documentation says otherwise.
    """

    def __init__(self, *, log: Union[logging.Logger, bool, None] = None,
                 **options: "Unpack[SessionOptions]") -> None:
        self._session = self
        self._handle = ctypes.c_void_p()
        self._blocked: Optional[_Blocked] = None
        self._closing: Optional[Tuple[Pending, contextlib.ExitStack]] = None
        self._pendings: Set[Pending] = set()
        self._works: Set[Work] = set()
        self._modules: List[Module] = []
        self._blocks: "weakref.WeakSet[Memory]" = weakref.WeakSet()
        self._step: Optional[Step] = None
        self._last: Optional[int] = None  # The number of the last step that has ended.
        self._window: List[Any] = []  # Gradients of steps that the window of accumulation uses.
        self._before_close: List[Callable[[], None]] = []
        self._before_state: List[Callable[[], None]] = []
        self._log: Optional[LogPipe] = None
        self.pid = os.getpid()
        """The process that has opened the session."""
        self.outlived = False
        """True if the other ranks go on when this one dies (on_failure continue)."""
        self.left = False
        """True if an exception has left the session, of which the other ranks are not told, because
        this process ends."""
        self.job: str = os.environ.get("LOCKSTEP_JOB") or options.get("job") or "default"
        config = _native.lockstep_config()
        keep: List[Any] = []
        fill(config, options, _OPTIONS, "Session()", keep)
        self.uneven = Uneven(config.uneven)
        self.outlived = (config.on_failure == OnFailure.CONTINUE
                         or os.environ.get("LOCKSTEP_ON_FAILURE") == "continue")
        self._set_log(config, log, "log_level" in options)
        self._place = 0, 1
        self._changes = 0  # Changes of the world that the program has been told of.
        try:
            self._open(config)
            self._ask_place()
            _exit.watch(self)
        except BaseException:
            self.close()
            self._end_log()
            raise

    # --- opening and closing --------------------------------------------------------------------

    def _set_log(self, config: Any, log: Union[logging.Logger, bool, None], level: bool) -> None:
        if log is False:
            return
        logger = log if isinstance(log, logging.Logger) else logging.getLogger("lockstep")
        self._log = LogPipe(logger)
        config.log = _native.lockstep_log_sink(
            ctypes.cast(lib.lockstep_log_to_fd, ctypes.c_void_p).value or 0)
        config.log_context = self._log.fd
        if not level:
            config.log_level = int(level_of(logger))

    def _end_log(self) -> None:
        if self._log is not None and self.pid == os.getpid():
            self._log.close()
        self._log = None

    def _open(self, config: Any) -> None:
        """Opening is not divided into slices, so it has a thread of its own. If the program is
        interrupted meanwhile, that thread closes the session that comes too late."""
        if not on_main_thread():
            check(lib.lockstep_open(ctypes.byref(config), ctypes.byref(self._handle)))
            return
        first = threading.Lock()  # Of the thread that has opened, or of this one that gives up.
        handle = ctypes.c_void_p()
        current = _device_of_this_thread()

        def run() -> int:
            current()
            status = int(lib.lockstep_open(ctypes.byref(config), ctypes.byref(handle)))
            if not first.acquire(blocking=False) and status == 0:
                lib.lockstep_close(handle)
            return status

        try:
            Pending(run).result()
            self._handle.value = handle.value
        except LockstepError:
            raise
        except BaseException:
            self._handle.value = None
            if not first.acquire(blocking=False) and handle.value:
                lib.lockstep_close(handle)
            self._log = None  # The library may still write to it.
            raise

    @staticmethod
    def _world(handle: Any, rank: Any, size: Any) -> int:
        return int(lib.lockstep_world(handle, rank, size))

    @property
    def world_size(self) -> int:
        """Number of ranks that are left."""
        return self.size

    def world_change(self) -> WorldChange:
        """The last change of the world, with on_failure "continue". changes is the number of
        changes so far; with 0 the other fields are 0. lost has the numbers that lost ranks had in
        the world before. Collectives count in the new world from now on."""
        struct = _native.lockstep_change()
        check(lib.lockstep_world_change(self.handle, ctypes.byref(struct)))
        facts = {name: getattr(struct, name) for name in WorldChange._fields}
        facts["lost"] = tuple(struct.lost[:min(struct.lost_count, len(struct.lost))])
        facts["text"] = struct.text.decode("utf-8", "replace")
        change = WorldChange(**facts)
        self._changes = change.changes
        return change

    def _learns_of_change(self) -> bool:
        """True if the world has changed, and the program is told so only now."""
        before = self._changes
        with contextlib.suppress(LockstepError):  # The session is closed, or has failed.
            return self.world_change().changes != before
        return False

    @property
    def _failed(self) -> bool:
        """True if the session has failed: every call of it raises."""
        try:
            check(lib.lockstep_world_change(self._handle, ctypes.byref(_native.lockstep_change())))
        except LockstepError:
            return True
        return False

    @property
    def leaves(self) -> range:
        """The leaves of this rank. Without virtual_ranks it is one leaf, its rank. With them each
        leaf is a step, all but the last with accumulate."""
        first, count = ctypes.c_uint32(), ctypes.c_uint32()
        check(lib.lockstep_leaves(self._handle, ctypes.byref(first), ctypes.byref(count), None))
        return range(first.value, first.value + count.value)

    @property
    def leaf_total(self) -> int:
        """The leaves of the job: virtual_ranks, or else the number of ranks."""
        total = ctypes.c_uint32()
        check(lib.lockstep_leaves(self._handle, None, None, ctypes.byref(total)))
        return total.value

    @property
    def in_step(self) -> bool:
        """True while a step is open."""
        return self._step is not None

    @property
    def closes(self) -> bool:
        """True while a close that was interrupted goes on."""
        return self._closing is not None and not self._closing[0].done

    @property
    def in_flight(self) -> List[str]:
        """Names of collectives that have begun, and that nobody has waited for."""
        return [work.name for work in self._works]

    def start(self) -> None:
        """Compares what all ranks have registered, then makes their state equal."""
        self._tell_places()
        self._block(("start",), lambda: int(lib.lockstep_start(self.handle)))

    def abort(self, reason: str = "aborted") -> None:
        """Gives up at once. The other ranks get PeerLost with this reason. Any thread. The session
        still has to be closed."""
        if self.handle and self.pid == os.getpid():
            check(lib.lockstep_abort(self._handle, text_of(reason[:900].replace("\0", " "))))

    def before_close(self, function: Callable[[], None]) -> None:
        """close calls the function before the library's memory goes away. Only in the process that
        has opened the session."""
        self._before_close.append(function)

    def before_state(self, function: Callable[[], None]) -> None:
        """start, state_check and state_hash call the function first. It tells the session where
        parameters are now (Module.move)."""
        self._before_state.append(function)

    def _tell_places(self) -> None:
        if (self.handle and self.pid == os.getpid() and not self.in_step
                and (self._blocked is None or not self._blocked.pending.waits)):
            for function in self._before_state:
                function()

    def close(self, *, at_exit: bool = False) -> None:
        """Leaves the job in good order. Sends what other ranks still need as long as they take
        bytes of it, and waits a few seconds more (lockstep_close). On a GPU it first waits for the
        results of the last step. A session that is closed already stays closed. In a forked child
        nothing happens. Memory of the library that arrays use becomes memory of this process alone,
        unless at_exit: then nothing may use it. An exception of a signal handler leaves the close
        running: another close() waits for it, and until then nothing may use such memory."""
        if not self.handle:
            return
        if self.pid == os.getpid():
            with contextlib.suppress(LockstepError):
                self._settle()
            left = [pending for pending in list(self._pendings) if pending.waits]
            if left:
                self.abort("the program left a wait")
                for pending in left:
                    pending.join(_CLOSE_S)
            while self._before_close:
                self._before_close.pop()()
            if self._closing is None:
                blocks = [memory for module in self._modules for memory in module._blocks]
                self._ask_place()
                kept = contextlib.ExitStack()
                kept.enter_context(outlive([] if at_exit else [*self._blocks, *blocks]))
                self._closing = Pending(lambda: int(lib.lockstep_close(self._handle))), kept
            closing, kept = self._closing
            try:
                if on_main_thread() and not at_exit:
                    closing.start()
                else:
                    closing.run()
            except RuntimeError:
                closing.run()  # An interpreter that ends starts no thread.
            closing.finish()  # A signal handler may raise here.
            self._closing = None
            with kept:
                closing.result()
            _exit.unwatch(self)
            self._end_log()
        self._handle.value = None
        self._works.clear()
        self._modules.clear()
        self._window.clear()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and self.outlived and not _exit.ends_well(error):
            self.left = True  # The process ends: an abort or a goodbye would end the job.
            return
        if kind is not None:
            with contextlib.suppress(LockstepError):
                self.abort(f"{kind.__name__}: {error}")
        self.close()

    def _settle(self) -> None:
        """The program goes on after an exception that has left a step or a call: the other ranks
        are told only now (Step)."""
        _exit.goes_on()
        if self._step is not None:
            self._step._settle()

    # --- waiting --------------------------------------------------------------------------------

    def _await(self, owner: Any, ask: Callable[[int], int],
               timeout: Optional[float] = None, *, here: bool = False) -> int:
        """Waits in slices, so that the main thread sees signals. ask(milliseconds) waits.

        A wait that takes longer than one slice goes on, on a thread of its own and without a
        timeout, because the library finds ranks that wait for each other only among waits without
        one. An exception of a signal handler leaves it there. owner._pending is the place where
        the next call for the same thing finds it. here: it goes on on this thread, and handlers of
        signals run when it has ended.
        """
        self._settle()
        timeout = seconds_of(timeout)
        if owner._pending is None:
            if timeout is None and not on_main_thread():
                return check(ask(_WAIT_FOREVER))
            deadline = None if timeout is None else time.monotonic() + timeout
            while True:
                left = SLICE_MS if deadline is None else min(
                    SLICE_MS, max(0, round((deadline - time.monotonic()) * 1000)))
                status = ask(left)
                if status != TIMEOUT:
                    return check(status)
                if deadline is None:
                    if here:
                        return check(ask(_WAIT_FOREVER))
                    break
                if time.monotonic() >= deadline:
                    raise error_of(status, error_text())
            owner._pending = Pending(lambda: ask(_WAIT_FOREVER))
            self._pendings.add(owner._pending)
        elif timeout is not None and not owner._pending.join(timeout):
            raise Timeout(f"not done within {timeout} s")
        return self._result(owner)

    def _enter(self, what: Tuple[Any, ...] = ()) -> None:
        """Before a call of the library. what: its name and arguments. While an interrupted call
        waits, only the same call may be made."""
        left = self._blocked
        # A step that has begun is open, so the program has to get it.
        if left is not None and left.what != what:
            if left.pending.waits or left.begun:
                raise Invalid(f"{left.what[0]} was interrupted, and its result was not fetched: "
                              "make the same call again, or abort or close the session")
            self._blocked = None
        self._settle()

    def _block(self, what: Tuple[Any, ...], function: Callable[[], int],
               got: Any = None) -> Tuple[int, Any]:
        """Calls a function that blocks and has no timeout, and gives its status and what it fills.
        what: its name and arguments. An exception of a signal handler leaves the call running:
        the next call with the same name and arguments gets the result."""
        if self.pid != os.getpid():
            raise Forked("the session belongs to the parent process")
        self._enter(what)
        left = self._blocked
        if left is None or left.what != what:
            if not on_main_thread():
                return check(function()), got
            self._blocked = left = _Blocked(what, Pending(function), got)
            self._pendings.add(left.pending)
        left.pending.finish()  # A signal handler may raise here.
        self._blocked = None
        self._pendings.discard(left.pending)
        return left.pending.result(), left.got

    def _result(self, owner: Any) -> int:
        pending: Pending = owner._pending
        pending.finish()  # A signal handler may raise here.
        owner._pending = None
        self._pendings.discard(pending)
        return pending.result()

    # --- what belongs to a session --------------------------------------------------------------

    def register(self, name: str, parameters: Parameters, buffers: Buffers = (), *,
                 ignore: Sequence[str] = (), **options: "Unpack[_native.ModuleOptions]") -> Module:
        """Declares a module. parameters: Parameter objects, pairs of name and array (a third entry
        is the gradient), or a mapping from names to arrays. ignore: patterns of names that are
        declared and never touched. Options are the fields of struct lockstep_module_config."""
        module = Module(self, name, parameters, buffers, ignore, **options)
        self._modules.append(module)
        return module

    def _forget(self, module: Module) -> None:
        if module in self._modules:
            self._modules.remove(module)

    def step(self, **options: "Unpack[_native.StepOptions]") -> Step:
        """Begins a step: phase, weight, accumulate, exhausted."""
        return Step(self, **options)

    def set_uneven(self, uneven: Union[Uneven, str]) -> None:
        """Sets the rule for ranks that run out of data, from the next step on: "none", "all" or
        "first". Every rank counts as a rank with data again. All ranks call it."""
        rule = enum_of(Uneven, uneven, "uneven")
        check(lib.lockstep_uneven_set(self._handle, int(rule)))
        self.uneven = rule

    def group(self, ranks: Sequence[int], name: str) -> Group:
        """Makes a group of ranks. All members call it; it waits for them."""
        return Group(self, ranks, name)

    def report(self, step: Optional[int] = None) -> Report:
        """The report of the last step. step: the number that it has to have."""
        if step is None:
            step = self._last
        if step is None:
            raise Invalid("no step has ended, so there is no report")
        struct = _native.lockstep_report()
        check(lib.lockstep_step_report(self._handle, step, 0, ctypes.byref(struct)))
        return Report(*(getattr(struct, name) for name in Report._fields))

    def zeros(self, shape: Union[int, Tuple[int, ...]], dtype: Any = "float32") -> Memory:
        """Memory that ranks of one host share: gradients in it are reduced without copies.
        numpy.asarray(memory) is a view. It is freed by free, or with the session; see close."""
        sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
        shape = tuple(whole(size, "zeros(): a size") for size in sizes)
        address = ctypes.c_void_p()
        memory = Memory(0, dtype_of(dtype), shape, owner=self)
        if min(shape, default=0) < 0 or memory.nbytes >= 2**63:
            raise Invalid(f"zeros(): there is no memory of shape {shape}")
        check(lib.lockstep_alloc(
            self._handle, memory.count * item_bytes(memory.dtype), ctypes.byref(address)))
        memory.address = address.value or 0
        self._blocks.add(memory)
        return memory

    def free(self, memory: Memory) -> None:
        """Frees what zeros gave. Nothing may use it any more."""
        check(lib.lockstep_free(self._handle, memory.address))
        self._blocks.discard(memory)

    def fileno(self) -> int:
        """An eventfd that becomes readable each time that work is done, and when the session
        fails. Read 8 bytes first, then ask the works in flight: work.done()."""
        fd = ctypes.c_int()
        check(lib.lockstep_session_fd(self._handle, ctypes.byref(fd)))
        return fd.value

    # --- counters, metrics, where the trainer is ------------------------------------------------

    def counter_add(self, name: str, delta: int = 1) -> None:
        """Adds to a total of the job. Any thread."""
        delta = whole(delta, f"counter '{name}': what is added")
        if not -2**63 <= delta < 2**63:
            raise Invalid(f"counter '{name}': {delta} is not a number of 64 bits")
        check(lib.lockstep_counter_add(self._handle, text_of(name), delta))

    def counter_read(self, name: str) -> int:
        """The total as of the last finished step."""
        total = ctypes.c_int64()
        check(lib.lockstep_counter_read(self._handle, text_of(name), ctypes.byref(total)))
        return total.value

    def metric_add(self, name: str, value: float,
                   kind: Union[MetricKind, str] = MetricKind.MEAN) -> None:
        """Adds a value to a metric of this step: "sum", "mean", "min" or "max" of the values of all
        ranks. It costs no collective. Any thread."""
        check(lib.lockstep_metric_add(
            self._handle, text_of(name), int(enum_of(MetricKind, kind, "kind")), value))

    def metric_read(self, name: str) -> Tuple[float, int]:
        """The value of the last step in which a rank added to the metric, and the number of values
        that the ranks added. (0.0, 0) for a name that no rank has used."""
        value, count = ctypes.c_double(), ctypes.c_uint64()
        check(lib.lockstep_metric_read(
            self._handle, text_of(name), ctypes.byref(value), ctypes.byref(count)))
        return value.value, count.value

    def mark(self, text: str) -> None:
        """Says where the trainer is, for people who look at the job. Any thread."""
        check(lib.lockstep_mark(self._handle, text_of(text)))

    @contextlib.contextmanager
    def pause(self, reason: str, expected: float) -> Iterator[None]:
        """The job shows the time inside as a pause, and not as a stall. expected: in seconds."""
        check(lib.lockstep_pause(self._handle, text_of(reason), round(expected * 1000)))
        try:
            yield
        finally:
            check(lib.lockstep_resume(self._handle))

    # --- state ----------------------------------------------------------------------------------

    def state_check(self) -> None:
        """Compares a hash of every parameter and buffer across ranks. All ranks call it. Raises
        Mismatch with the names of tensors that differ; the session goes on."""
        self._tell_places()
        self._block(("state_check",), lambda: int(lib.lockstep_state_check(self.handle)))

    def state_hash(self) -> int:
        """One hash over all parameters and buffers of this rank."""
        self._tell_places()
        value = ctypes.c_uint64()
        check(lib.lockstep_state_hash(self._handle, ctypes.byref(value)))
        return value.value

    def state_sync(self) -> None:
        """Exchanges all buffers with a policy that repeats now. All ranks call it."""
        self._block(("state_sync",), lambda: int(lib.lockstep_state_sync(self.handle)))

    def save_layout(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the bucket layouts that were learned."""
        check(lib.lockstep_layout_save(self._handle, text_of(path)))

    def load_layout(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Reads a file of save_layout, before start."""
        check(lib.lockstep_layout_load(self._handle, text_of(path)))

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes layouts, the number of the last step, and the totals of counters."""
        check(lib.lockstep_session_save(self._handle, text_of(path)))

    def load(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Reads a file of save, before start."""
        check(lib.lockstep_session_load(self._handle, text_of(path)))


def context_of_this_thread() -> Optional[int]:
    """The CUDA context that is current on the calling thread. None: there is none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        context = ctypes.c_void_p()
        if cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0:
            return context.value
    except (OSError, AttributeError):
        pass  # CUDA's driver is not in the process.
    return None


def _device_of_this_thread() -> Callable[[], None]:
    """A function that gives the calling thread the CUDA context of this thread. config.device
    "auto" means the context of the thread that opens the session."""
    context = context_of_this_thread()
    if context is None:
        return lambda: None
    cuda = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    return lambda: cuda.cuCtxSetCurrent(ctypes.c_void_p(context)) and None
