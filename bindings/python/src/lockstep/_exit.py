# SPDX-License-Identifier: Apache-2.0
"""Sessions that are still open when the interpreter ends.

With on_failure continue a process that ends badly ends like one that is killed: it neither aborts
nor closes its sessions, because both would end the job, and the other ranks go on.
"""

from __future__ import annotations

import atexit
import builtins
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, List, NoReturn

if TYPE_CHECKING:
    from .session import Session

_open: "List[Session]" = []
_exit: Any = None  # sys.exit of Python.
_bad = False  # True if the last sys.exit or exit had a bad status, and the program has not gone on.


def _note(status: Any) -> None:
    global _bad
    if threading.current_thread() is threading.main_thread():  # Else a thread ends.
        _bad = not ends_well(SystemExit(status))


def _noted_exit(status: Any = None) -> NoReturn:
    _note(status)
    _exit(status)
    raise AssertionError("sys.exit has returned")


def _watch_exits() -> None:
    """Nothing else tells functions of atexit the status."""
    global _exit
    _exit, sys.exit = sys.exit, _noted_exit
    quitter: Any = type(getattr(builtins, "exit", None))  # exit and quit are of one class.
    if quitter.__name__ == "Quitter":
        call = quitter.__call__

        def noted_call(self: Any, code: Any = None) -> Any:
            _note(code)
            return call(self, code)

        quitter.__call__ = noted_call


def goes_on() -> None:
    """The program calls a session: it has handled the last SystemExit, unless that one is on its way
    through a handler."""
    global _bad
    if _bad and not isinstance(sys.exc_info()[1], SystemExit):
        _bad = False


def ends_well(error: BaseException) -> bool:
    """True if an exception that nobody handles ends the process with status 0."""
    return isinstance(error, SystemExit) and error.code in (None, 0)


def watch(session: "Session") -> None:
    """The session is closed at exit unless unwatch is called before."""
    if _exit is None:
        _watch_exits()
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


def ended_well() -> bool:
    """True if no exception and no bad status ends the process, so that it has handled others."""
    return not _bad and getattr(sys, "last_value", None) is None


def dies(session: "Session") -> bool:
    """True if the process ends badly, and the other ranks may go on without it."""
    return session.outlived and not session._failed and (
        session.left or session.in_step or not ended_well())


def _end(session: "Session") -> None:
    error = getattr(sys, "last_value", None)
    where = (f"lockstep: rank {session.rank} of job '{session.job}' exits with an open session"
             f"{_forgotten(session)}")
    if session.closes:
        print(f"{where}, whose close was interrupted: it may count as lost", file=sys.stderr)
        return
    try:
        if session._closing is not None:  # A close that was interrupted, and has ended since.
            session.close(at_exit=True)
            return
        if ended_well() and not session.left:
            session._settle()
        if dies(session):
            why = f", because of {type(error).__name__}" if error is not None else ""
            print(f"{where}{why}: it counts as lost, and the session lets the others go on",
                  file=sys.stderr)
            return
        if session._failed:  # The other ranks know why, or have gone on without this one.
            print(f"{where}, which has failed: it is closed", file=sys.stderr)
        elif error is not None:
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
