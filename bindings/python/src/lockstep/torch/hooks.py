# SPDX-License-Identifier: Apache-2.0
"""Hooks that report each gradient to the library as soon as it is complete.

Native hooks (hooks.cpp) run without the GIL. Python hooks take it once for each parameter. Both do
the same: while a call is open they make .grad the library's tensor and report it. Every other case
goes to Member.slow, in Python.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Generator, List, Optional, Sequence, Set, Tuple

import torch

from .._library import lib, library_path
from . import build

if TYPE_CHECKING:
    from .member import Member

log = logging.getLogger("lockstep.torch")
_TEXT_BYTES = 8192
_IDLE, _SLOW = 0, 1
_ALL_COME = 2  # What lockstep_hooks_will returns then.

# lockstep_grad_ready never waits, so its calls keep the GIL.
_ready = ctypes.PyDLL(library_path()).lockstep_grad_ready
_ready.restype = ctypes.c_int
_ready.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p,
                   ctypes.c_void_p]


def _text() -> str:
    return (lib.lockstep_error_text() or b"").decode("utf-8", "replace")


def report(member: "Member", i: int, address: Optional[int] = None) -> None:
    """Reports a gradient. A failure is raised at the end of the backward pass."""
    status = _ready(member.handle, None, i, address, member.stream_of(i))
    if status < 0:
        member.failed(status, _text())


def node_of(parameter: torch.Tensor) -> Any:
    """The accumulator of the gradient."""
    with torch.enable_grad():
        return parameter.view_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


class PythonHooks:
    """Hooks of Python: about 2 us for each parameter."""

    kind = "python"
    sure = False  # True if `will` sees a re-entrant checkpoint, which may bring more gradients.

    def __init__(self, member: "Member") -> None:
        self._member = member
        self._parameters = member.parameters
        self._kinds: List[Any] = []
        self._touched: Set[int] = set()
        self._handles = [p.register_post_accumulate_grad_hook(_hook(member, self._touched, i))
                         for i, p in enumerate(member.parameters)]
        self._nodes: List[Any] = []
        self.all: Sequence[int] = [True] * len(self._parameters)
        """What will returns if all parameters get gradients; it may return an equal list."""
        self.renew()

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def expect(self, expected: bool) -> None:
        """True from a forward pass to the end of its backward pass."""

    def open(self, planned: Optional[Sequence[int]]) -> None:
        """A call is open: hooks report from now on. planned: reports that complete a gradient."""

    def touched(self) -> Set[int]:
        """Gradients that came while none was expected, since the last call of this function."""
        touched = set(self._touched)
        self._touched.clear()
        return touched

    def error(self) -> Tuple[int, str]:
        """Errors of Python's hooks are with the member already."""
        return 0, ""

    def current(self) -> bool:
        """True while the hooks are those of the parameters, and these are of the same kind."""
        return not any(p.dtype is not dtype or p.device != device or p.stride() != strides
                       for p, (dtype, device, strides) in zip(self._parameters, self._kinds))

    def renew(self) -> None:
        """Hooks anew, after current was False."""
        self._kinds = [(p.dtype, p.device, p.stride()) for p in self._parameters]
        self._nodes = list(map(node_of, self._parameters))

    def missing(self) -> List[int]:
        """Parameters whose .grad is not the library's tensor, or has other memory."""
        member = self._member
        return [i for i, (p, gradient, address) in enumerate(
                    zip(member.parameters, member.gradients, member.addresses))
                if p.grad is not gradient or gradient.data_ptr() != address]

    def will(self) -> Tuple[Optional[Sequence[int]], bool]:
        """In a hook: the parameters that get gradients in this backward pass, and whether it is
        known that a re-entrant checkpoint may bring more. None under torch.autograd.grad."""
        will = torch._C._will_engine_execute_node
        try:
            if self._exact():
                return [will(node) for node in self._nodes], False
            return self.all if any(map(will, self._nodes)) else [], False
        except RuntimeError:
            return None, False

    def _exact(self) -> bool:
        """True if it makes a difference which parameters get gradients. Otherwise a parameter
        without one is an error at the end, or was counted in the first step."""
        return bool(self._touched) or self._member.accept and not self._member.static


def _hook(member: "Member", touched: Set[int], i: int) -> Callable[[torch.Tensor], None]:
    """A hook. Everything that it needs is at hand, because it runs once for each gradient. While
    member.fast is True nothing records what the hook does, so a copy needs no torch.no_grad."""
    own = member.gradients[i]
    copy, address, addresses = own.copy_, own.data_ptr, member.addresses
    # Objects of ctypes are not converted in each call.
    ready = functools.partial(_ready, ctypes.c_void_p(member.handle), None, ctypes.c_uint32(i),
                              None, None)

    def hook(parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        moved = address() != addresses[i]
        if gradient is not own or moved or not member.fast:
            if gradient is None:  # The gradient of an output that is not part of the loss.
                return
            if not member.fast:
                if member.expect:
                    member.slow(i)
                else:
                    touched.add(i)
                return
            try:
                if moved:
                    member.take(i, gradient)
                else:
                    copy(gradient)
            except RuntimeError:  # It is sparse.
                member.slow(i)
                return
            parameter.grad = own
        status = ready()
        if status < 0:
            member.failed(status, _text())
    return hook


# --- native ----------------------------------------------------------------------------------------

_SLOW_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_uint32)


class _Library:
    """hooks.cpp, compiled."""

    def __init__(self, path: str) -> None:
        torch.ops.load_library(path)
        self.attach = torch.ops.lockstep_hooks.attach
        library = ctypes.PyDLL(path)  # No function waits.
        library.lockstep_hooks_torch.restype = ctypes.c_char_p
        built = library.lockstep_hooks_torch().decode()
        if built != torch.__version__.split("+")[0]:
            raise build.BuildFailed(f"{path} was built for PyTorch {built}, and PyTorch "
                                    f"{torch.__version__} is installed: delete the file")
        pointer = ctypes.c_void_p
        for name, returns, parameters in (
                ("detach", None, []), ("state", None, [ctypes.c_int]), ("open", None, [pointer]),
                ("will", ctypes.c_int, [pointer]), ("touched", ctypes.c_bool, [pointer]),
                ("missing", ctypes.c_bool, [pointer]),
                ("error", ctypes.c_int, [pointer, ctypes.c_size_t]),
                ("current", ctypes.c_bool, []), ("renew", None, [])):
            function = getattr(library, "lockstep_hooks_" + name)
            function.restype, function.argtypes = returns, [pointer, *parameters]
            setattr(self, name, function)


def _slow_calls(weak: Callable[[], Optional["Member"]]) -> Generator[None, int, None]:
    """Calls Member.slow for each parameter that is sent. ctypes drops an exception that leaves a
    function which C calls. Ctrl-C is raised where Python code begins to run: in a function this is
    before any `try`, and in a generator it is at `yield`."""
    while True:
        try:
            i = yield
            member = weak()
            if member is not None:
                member.slow(i)
        except GeneratorExit:
            return
        except BaseException as error:
            member = weak()
            if member is not None:
                member.error = member.error or error
        member = None


class NativeHooks:
    """Hooks of hooks.cpp: a fifth of a microsecond for each parameter."""

    kind = "native"
    sure = True

    def __init__(self, member: "Member", library: Any) -> None:
        self._library = library
        slow = _slow_calls(weakref.ref(member))
        next(slow)
        self._slow = _SLOW_FUNCTION(slow.send)
        self._count = len(member.parameters)
        self.all = bytes([1]) * self._count
        self._flags = ctypes.create_string_buffer(max(1, self._count))
        self._text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._set = library.attach(
            member.parameters, member.gradients, member.homes, _address(_ready),
            _address(lib.lockstep_error_text), _address(self._slow), member.handle)

    def detach(self) -> None:
        held, self._set = self._set, None
        if held is not None:
            self._library.detach(held)

    def expect(self, expected: bool) -> None:
        if self._set is not None:
            self._library.state(self._set, _SLOW if expected else _IDLE)

    def open(self, planned: Optional[Sequence[int]]) -> None:
        counts = None if planned is None else (ctypes.c_uint32 * self._count)(*planned)
        self._library.open(self._set, counts)

    def _flagged(self) -> List[int]:
        return [i for i, flag in enumerate(self._flags.raw[:self._count]) if flag]

    def touched(self) -> Set[int]:
        return set(self._flagged()) if self._library.touched(self._set, self._flags) else set()

    def missing(self) -> List[int]:
        return self._flagged() if self._library.missing(self._set, self._flags) else []

    def error(self) -> Tuple[int, str]:
        status = self._library.error(self._set, self._text, _TEXT_BYTES)
        return status, self._text.value.decode("utf-8", "replace") if status < 0 else ""

    def current(self) -> bool:
        return bool(self._library.current(self._set))

    def renew(self) -> None:
        self._library.renew(self._set)

    def will(self) -> Tuple[Optional[Sequence[int]], bool]:
        status = self._library.will(self._set, self._flags)
        if status == _ALL_COME:
            return self.all, False
        return (None if status < 0 else self._flags.raw[:self._count]), status > 0


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_lock = threading.Lock()
_library: Optional[_Library] = None
_asked = False


def _native() -> Optional[_Library]:
    """The native hooks, or None. Says once which hooks run."""
    global _asked, _library
    with _lock:
        if _asked:
            return _library
        _asked = True
        choice = build.choice()
        try:
            if choice == "python":
                raise build.BuildFailed("LOCKSTEP_TORCH_HOOKS is python")
            path, new = build.build()
            _library = _Library(path)
            log.info("gradients are reported by native hooks: %s%s", path,
                     " (built now)" if new else "")
        except (build.BuildFailed, OSError, RuntimeError) as error:
            if choice == "native":
                raise RuntimeError(f"LOCKSTEP_TORCH_HOOKS is native, and {error}") from error
            log.info("gradients are reported by hooks of Python, because %s", error)
        return _library


def hooks_for(member: "Member") -> Any:
    """Native hooks if there is a build for this PyTorch, else Python's."""
    library = _native()
    return NativeHooks(member, library) if library is not None else PythonHooks(member)


def kind() -> str:
    """Which hooks run in this process: "native" or "python"."""
    return "native" if _native() is not None else "python"
