# SPDX-License-Identifier: Apache-2.0
"""Sessions that are still open when the interpreter ends."""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING, List

if TYPE_CHECKING:
    from .session import Session

_open: "List[Session]" = []


def watch(session: "Session") -> None:
    """The session is closed at exit unless unwatch is called before."""
    if not _open:
        atexit.unregister(_at_exit)  # The last one registered runs first.
        atexit.register(_at_exit)
    _open.append(session)


def unwatch(session: "Session") -> None:
    if session in _open:
        _open.remove(session)


def _at_exit() -> None:
    for session in list(_open):
        if session.pid == os.getpid():
            _end(session)
    _open.clear()


def _end(session: "Session") -> None:
    error = getattr(sys, "last_value", None)
    where = f"lockstep: rank {session.rank} of job '{session.job}' exits with an open session"
    try:
        if error is not None:
            print(f"{where}: it is aborted, because of {type(error).__name__}", file=sys.stderr)
            session.abort(f"{type(error).__name__}: {error}")
        elif session.in_step:
            print(f"{where} and an open step: it is aborted; call close() or use 'with'",
                  file=sys.stderr)
            session.abort("the program ended inside a step")
        else:
            print(f"{where}: it is closed; call close() or use 'with'", file=sys.stderr)
        session.close(at_exit=True)
    except Exception as failure:  # Nobody is left to handle it.
        print(f"{where}: {failure}", file=sys.stderr)
