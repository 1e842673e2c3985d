# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one class for each status of lockstep.h."""

from __future__ import annotations

import re
from typing import Dict, Optional, Type

from ._native import Status

_RANK = re.compile(r"\brank (\d+)(?: (?:\(host ([^)]+)\)|on host ([^\s:;,]+)))?")


class LockstepError(RuntimeError):
    """A function of the library has failed.

    status: the status. text: the library's text. rank and host: the first rank that the text
    names, and its host; None if the text names none.
    """

    status: Status = Status.E_INVALID

    def __init__(self, text: str, status: Optional[Status] = None) -> None:
        super().__init__(text)
        self.text = text
        if status is not None:
            self.status = status
        named = _RANK.search(text)
        self.rank = int(named.group(1)) if named else None
        self.host = (named.group(2) or named.group(3)) if named else None


class Invalid(LockstepError, ValueError):
    """This call was wrong: fix the program."""

    status = Status.E_INVALID


class Unsupported(LockstepError):
    """This build or this machine cannot do that: do without."""

    status = Status.E_UNSUPPORTED


class BadConfig(LockstepError):
    """The configuration or the environment is wrong."""

    status = Status.E_CONFIG


class Unreachable(LockstepError, ConnectionError):
    """The coordinator cannot be reached, or takes no worker now: the text says which."""

    status = Status.E_UNREACHABLE


class Timeout(LockstepError, TimeoutError):
    """The stated time has passed."""

    status = Status.E_TIMEOUT


class Mismatch(LockstepError):
    """Ranks run different programs: make them equal."""

    status = Status.E_MISMATCH


class Unused(LockstepError):
    """A gradient was not produced: the text says which. The session goes on."""

    status = Status.E_UNUSED


class PeerLost(LockstepError, ConnectionError):
    """A worker is gone: restart from the last checkpoint."""

    status = Status.E_PEER_LOST


class Closed(LockstepError):
    """The session was closed or aborted: stop using it."""

    status = Status.E_CLOSED


class SystemFailure(LockstepError):
    """The operating system refused: the text says what."""

    status = Status.E_SYSTEM


class Forked(LockstepError):
    """The session belongs to the parent process."""

    status = Status.E_FORKED


class Changed(LockstepError):
    """The world changed, and the session goes on: call again."""

    status = Status.E_CHANGED


class LibraryMismatch(ImportError):
    """liblockstep.so is missing, or does not fit this package: the text says how."""


_CLASSES: Dict[int, Type[LockstepError]] = {
    kind.status: kind for kind in LockstepError.__subclasses__()}


def classes() -> Dict[int, Type[LockstepError]]:
    """The class of each status."""
    return dict(_CLASSES)


def error_of(status: int, text: str) -> LockstepError:
    """The exception for a negative status of the library."""
    if text == "the session is NULL":  # Only a session that was closed has no handle.
        return Closed("the session is closed")
    if status in _CLASSES:
        return _CLASSES[status](text)
    return LockstepError(f"status {status}: {text}")
