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


_NAMED = 8  # More collectives than these are counted and not named.


def _forgotten(session: "Session") -> str:
    """Collectives that have begun, and that the program has not waited for."""
    names = sorted(repr(name) for name in session.in_flight)
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f", without a wait for {', '.join(names[:_NAMED])}{more}"


def _end(session: "Session") -> None:
    error = getattr(sys, "last_value", None)
    where = (f"lockstep: rank {session.rank} of job '{session.job}' exits with an open session"
             f"{_forgotten(session)}")
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
