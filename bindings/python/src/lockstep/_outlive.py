# SPDX-License-Identifier: Apache-2.0
"""Memory of the library under arrays that live longer than it.

The library unmaps its memory when a session or a module is closed. An array over that memory would
then end the process at the next access. So memory that an array still uses is copied, and mapped
anew at its old address as memory of this process alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import weakref
from typing import Iterable, Iterator, List, Tuple

from .arrays import Memory

_MAP_FIXED_NOREPLACE = 0x100000
_PAGE = mmap.PAGESIZE
_FAILED = 2**64 - 1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype, _libc.mmap.argtypes = ctypes.c_void_p, [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.restype, _libc.munmap.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t]


def _pages(memories: Iterable[Memory]) -> List[Tuple[int, int, List[Memory]]]:
    """Begin and end of the runs of pages in which the memories lie, and the memories of each."""
    runs: List[Tuple[int, int, List[Memory]]] = []
    for memory in sorted(memories, key=lambda memory: memory.address):
        begin = memory.address // _PAGE * _PAGE
        end = -(-(memory.address + memory.nbytes) // _PAGE) * _PAGE
        if runs and begin <= runs[-1][1]:
            first, last, members = runs.pop()
            runs.append((first, max(last, end), members + [memory]))
        else:
            runs.append((begin, end, [memory]))
    return runs


def _map(begin: int, size: int) -> bool:
    """False if something else lies at the address now."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED_NOREPLACE
    got = _libc.mmap(begin, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if got == begin:
        return True
    if got is not None and got != _FAILED:  # A kernel that does not know the flag.
        _libc.munmap(got, size)
    return False


class _Run:
    """Pages that are unmapped when the last memory in them is gone."""

    def __init__(self, begin: int, size: int, memories: List[Memory]) -> None:
        self._left = len(memories)
        for memory in memories:
            memory.owner = None  # The session is not needed any more.
            gone = weakref.finalize(memory, self._gone, begin, size)
            setattr(gone, "atexit", False)  # Arrays may live until the process ends.

    def _gone(self, begin: int, size: int) -> None:
        self._left -= 1
        if self._left == 0:
            _libc.munmap(begin, size)


@contextlib.contextmanager
def outlive(memories: Iterable[Memory]) -> Iterator[None]:
    """The library frees these memories inside. They can be used afterwards, with what was in them.
    Only memory that an array or a variable refers to is kept."""
    kept = [(memory, ctypes.string_at(memory.address, memory.nbytes)) for memory in memories
            if memory.nbytes and not memory.on_device]
    contents = {id(memory): data for memory, data in kept}
    yield
    for begin, end, members in _pages(memory for memory, _ in kept):
        if not _map(begin, end - begin):
            logging.getLogger("lockstep").error(
                "arrays over memory of the library cannot be kept: do not use them any more")
            continue
        for memory in members:
            data = contents[id(memory)]
            ctypes.memmove(memory.address, data, len(data))
        _Run(begin, end - begin, members)
