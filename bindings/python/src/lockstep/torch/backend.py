# SPDX-License-Identifier: Apache-2.0
"""The backend in C++ (backend.cpp): loads it, and makes groups with it."""

from __future__ import annotations

import ctypes
import itertools
import logging
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from .. import errors
from .._library import lib
from ..session import Session
from . import bootstrap, build

log = logging.getLogger("lockstep.torch")
_FUNCTIONS = ("abort", "collective_begin", "collective_wait", "error_text", "group_close",
              "group_create", "group_world", "work_notify", "work_wait", "world", "world_change")  # As struct functions has them.
_CLOSED = ctypes.CFUNCTYPE(None, ctypes.c_int64)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class Native:
    """backend.cpp, compiled."""

    def __init__(self, path: str) -> None:
        self._stop = build.load("backend", path).lockstep_backend_stop
        self._stop.restype, self._stop.argtypes = None, [ctypes.c_int64]
        operators = torch.ops.lockstep_c10d
        self._create = operators.create
        self._classes = {0: errors.LockstepError, **errors.classes()}  # C++ has their addresses.
        operators.load([_address(getattr(lib, "lockstep_" + name)) for name in _FUNCTIONS],
                       [int(status) for status in self._classes],
                       [id(kind) for kind in self._classes.values()])
        try:
            operators.fail(int(errors.Closed.status), "a test")
        except errors.Closed:
            pass  # Else PyTorch has other exceptions than backend.cpp says.
        self._stops: List[int] = []  # Sessions that stop the backend when they close.
        self._endings: Dict[int, Callable[[], None]] = {}
        self._closed = _CLOSED(lambda key: self._endings.pop(key)())
        self._keys = itertools.count()

    def create(self, session: Session, store: Any, rank: int, ranks: List[int], group: int,
               name: bytes, timeout_ms: int, closed: Callable[[], None]) -> Any:
        """A process group. ranks: of the world. group: a handle, or 0 for all ranks. closed is
        called when the group is shut down."""
        handle = session.handle
        assert handle
        if handle not in self._stops:
            self._stops.append(handle)
            session.before_close(lambda: self._end(handle))
        key = next(self._keys)
        self._endings[key] = closed
        like = dist.ProcessGroup(store, rank, len(ranks)).boxed()
        return dist.ProcessGroup.unbox(self._create(
            like, handle, bootstrap.has_device(), rank, ranks, group, name.decode(), timeout_ms,
            _address(self._closed), key))

    def _end(self, handle: int) -> None:
        self._stops.remove(handle)
        self._stop(handle)


_lock = threading.Lock()
_native: Optional[Tuple[Optional[Native]]] = None


def native() -> Optional[Native]:
    """The backend in C++, or None. Says once which backend runs."""
    global _native
    with _lock:
        if _native is None:
            _native = (_load(),)
        return _native[0]


def _load() -> Optional[Native]:
    choice = build.choice("backend")
    try:
        if choice == "python":
            raise build.BuildFailed("LOCKSTEP_TORCH_BACKEND is python")
        path, new = build.build("backend")
        loaded = Native(path)
        # dist.split_group copies this, and PyTorch's class for backends that it does not know has
        # none. With None a part has the options of the group that is split.
        if not hasattr(Backend, "options"):
            Backend.options = None  # type: ignore[attr-defined]
        log.info("the backend is the native one: %s%s", path, " (built now)" if new else "")
        return loaded
    except (build.BuildFailed, OSError, RuntimeError, AttributeError) as error:
        if choice == "native":
            raise RuntimeError(f"LOCKSTEP_TORCH_BACKEND is native, and {error}") from error
        log.info("the backend is the one in Python, because %s", error)
        return None
