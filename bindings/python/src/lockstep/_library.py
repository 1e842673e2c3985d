# SPDX-License-Identifier: Apache-2.0
"""Finds and loads liblockstep.so, and calls its functions.

`lib` has the functions of lockstep.h with their types. A call of `lib` lets other Python threads
run. lockstep_error_text holds for one thread: `check` is called on the thread that called `lib`.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from typing import Any, Callable, List, Optional, Tuple

from . import _native
from .errors import Invalid, LibraryMismatch, LockstepError, error_of

SLICE_MS = 100
"""How long a wait keeps the main thread before the interpreter looks for signals."""
_SONAME = "liblockstep.so.0"
_HERE = os.path.dirname(os.path.abspath(__file__))


def _checkout() -> Optional[str]:
    """The checkout in which this package lies, or None."""
    root = os.path.normpath(os.path.join(_HERE, "..", "..", "..", ".."))
    header = os.path.join(root, "include", "lockstep", "lockstep.h")
    return root if os.path.exists(header) else None


def _candidates() -> List[str]:
    override = os.environ.get("LOCKSTEP_LIBRARY")
    if override:
        return [override]
    found = [os.path.join(_HERE, "lib", _SONAME)]
    root = _checkout()
    if root:
        found.append(os.path.join(root, "build", "lib", _SONAME))
    return found


def library_path() -> str:
    """The file of liblockstep.so that this package uses."""
    tried = _candidates()
    for path in tried:
        if os.path.exists(path):
            return path
    raise LibraryMismatch(
        f"there is no liblockstep.so: tried {', '.join(tried)}; in a checkout run `make`, or set "
        "LOCKSTEP_LIBRARY to the file")


def include_path() -> str:
    """The directory to give to a compiler (-I) for lockstep/lockstep.h and lockstep.hpp."""
    inside = os.path.join(_HERE, "include")
    root = _checkout()
    return os.path.join(root, "include") if root and not os.path.exists(inside) else inside


def bin_path(name: str) -> str:
    """The file of a program of this package: "lockstep" or "lockstep-coordinator"."""
    inside = os.path.join(_HERE, "bin", name)
    root = _checkout()
    if root and not os.path.exists(inside):
        return os.path.join(root, "build", "bin", name)
    return inside


def _check_layout() -> None:
    """The types of ctypes are laid out as lockstep.json says."""
    for struct, (size, alignment, fields) in _native.LAYOUT.items():
        there = {name: (getattr(struct, name).offset, getattr(struct, name).size)
                 for name in fields}
        if ((ctypes.sizeof(struct), ctypes.alignment(struct)) != (size, alignment)
                or there != fields):
            raise LibraryMismatch(
                f"struct {struct.__name__} is laid out differently on this machine: the package "
                "is for 64-bit Linux")


def _check_structs(library: Any, path: str) -> None:
    """The library takes a configuration of the size that this package has. The library refuses
    the configuration in any case, because its transport is none."""
    config = _native.lockstep_config(transport=2**32 - 1)
    session = ctypes.c_void_p()
    status = library.lockstep_open(ctypes.byref(config), ctypes.byref(session))
    text = (library.lockstep_error_text() or b"").decode("utf-8", "replace")
    if status == _native.Status.E_INVALID and "struct_bytes" in text:
        raise LibraryMismatch(
            f"{path} is older than this Python package: struct lockstep_config has "
            f"{ctypes.sizeof(config)} bytes here. Library: {text}")


def _load() -> Any:
    _check_layout()
    path = library_path()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise LibraryMismatch(f"{path} cannot be loaded: {error}") from error
    for name, (returns, parameters) in _native.FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise LibraryMismatch(
                f"{path} has no {name}: it is older than this Python package") from None
        function.restype, function.argtypes = returns, parameters
    version = library.lockstep_version().decode()
    if version != _native.VERSION:
        raise LibraryMismatch(
            f"{path} is version {version}, and this Python package is {_native.VERSION}")
    _check_structs(library, path)
    return library


lib: Any = _load()
TIMEOUT = int(_native.Status.E_TIMEOUT)


def error_text() -> str:
    """The text of the last failure on this thread."""
    return (lib.lockstep_error_text() or b"").decode("utf-8", "replace")


def check(status: int) -> int:
    """Raises the exception of a negative status; returns any other."""
    if status < 0:
        raise error_of(status, error_text())
    return status


def seconds_of(timeout: Optional[float]) -> Optional[float]:
    """A timeout that Python can wait for. None and infinity are for ever."""
    if timeout is None or timeout == math.inf:
        return None
    if math.isnan(timeout):
        raise Invalid("the timeout is NaN, and not a number of seconds")
    return min(timeout, threading.TIMEOUT_MAX)


def milliseconds(seconds: Optional[float]) -> int:
    """A timeout as the library takes it; None is for ever."""
    seconds = seconds_of(seconds)
    if seconds is None:
        return _native.WAIT_FOREVER
    return min(max(0, round(seconds * 1000)), _native.WAIT_FOREVER - 1)


class Pending:
    """A call of the library that blocks, on a thread of its own.

    The main thread waits for it where signal handlers of Python can run. Such a handler may raise
    at any moment, also while the thread starts. So the owner keeps the object before it starts,
    and start may be called again.
    """

    def __init__(self, function: Callable[[], int]) -> None:
        self._function = function
        self._result: Optional[Tuple[int, str]] = None
        self._error: Optional[BaseException] = None
        self._done = threading.Event()
        self._claim = threading.Lock()  # Of the first thread; a second one has nothing to do.
        self._begun = False
        self._started = False

    def run(self) -> None:
        """Makes the call on this thread, unless another thread has begun it."""
        if not self._claim.acquire(blocking=False):
            return
        try:
            status = self._function()
            self._result = (status, error_text() if status < 0 else "")
        except BaseException as error:  # Raised again by the thread that waits.
            self._error = error
        finally:
            self._done.set()

    def start(self) -> "Pending":
        if not self._started and not self.done:
            self._begun = True
            threading.Thread(target=self.run, name="lockstep-wait", daemon=True).start()
            self._started = True
        return self

    @property
    def done(self) -> bool:
        return self._done.is_set()

    @property
    def waits(self) -> bool:
        """True while a thread may be in the call."""
        return self._begun and not self.done

    @property
    def succeeded(self) -> bool:
        """True if the call has returned, and has not failed."""
        return self._result is not None and self._result[0] >= 0

    def finish(self) -> None:
        """Waits until the call has returned. An exception of a signal handler leaves the call
        running: finish() may be called again."""
        self.start()
        while not self._done.wait(SLICE_MS / 1000):
            pass

    def result(self) -> int:
        """Waits. The function's status; raises what it raised."""
        self.finish()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        status, text = self._result
        if status < 0:
            raise error_of(status, text)
        return status

    def join(self, seconds: float) -> bool:
        """Waits until the call has returned. False if it has not."""
        return self.start()._done.wait(seconds)


def on_main_thread() -> bool:
    """True on the thread on which Python runs signal handlers."""
    return threading.current_thread() is threading.main_thread()


__all__ = ["LockstepError", "Pending", "SLICE_MS", "TIMEOUT", "bin_path", "check", "error_text",
           "include_path", "lib", "library_path", "milliseconds", "on_main_thread"]
