# SPDX-License-Identifier: Apache-2.0
"""Hooks that report each gradient to the library as soon as it is complete.

Native hooks run without the GIL; Python hooks take it once for each parameter. Both do the same:
when a call is open they make .grad the library's tensor and report it. Every other case goes to
Member.slow, in Python.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Tuple

import torch

from .._library import library_path, lib


if TYPE_CHECKING:
    from .member import Member

log = logging.getLogger("lockstep.torch")
_SLOW = ctypes.CFUNCTYPE(None, ctypes.c_uint32)
_said = False

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


def nodes_of(parameters: List[torch.Tensor]) -> List[Any]:
    """The node of autograd that accumulates each gradient."""
    with torch.enable_grad():
        return [p.view_as(p).grad_fn.next_functions[0][0] for p in parameters]  # type: ignore


class PythonHooks:
    """Hooks of Python: about 2 us for each parameter."""

    kind = "python"

    def __init__(self, member: "Member") -> None:
        weak = weakref.ref(member)
        self._nodes = nodes_of(member.parameters)
        self._handles = [p.register_post_accumulate_grad_hook(_hook(weak, i))
                         for i, p in enumerate(member.parameters)]

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def open(self) -> None:
        """A call is open: hooks report from now on."""

    def shut(self) -> None:
        """The call has ended."""

    def error(self) -> None:
        """Errors of Python's hooks are with the member already."""

    def current(self) -> bool:
        """True while the hooks are those of the parameters."""
        return True

    def renew(self) -> None:
        """Hooks anew, after current was False."""

    def will(self) -> Tuple[Optional[List[bool]], bool]:
        """In a hook: the parameters that get gradients in this backward pass, and whether a
        re-entrant checkpoint may bring more. None under torch.autograd.grad."""
        try:
            return [torch._C._will_engine_execute_node(node) for node in self._nodes], False
        except RuntimeError:
            return None, False


def _hook(weak: "weakref.ref[Member]", i: int) -> Callable[[torch.Tensor], None]:
    def hook(parameter: torch.Tensor) -> None:
        member = weak()
        if member is None:
            return
        gradient = parameter.grad
        if not member.fast or gradient is None or gradient.is_sparse:
            member.slow(i)
            return
        if gradient is not member.gradients[i]:
            member.take(i, gradient)
        status = _ready(member.handle, None, i, None, None)
        if status < 0:
            member.failed(status, _text())
    return hook


def hooks_for(member: "Member") -> Any:
    """Native hooks if there is a build for this PyTorch, else Python's."""
    return PythonHooks(member)
