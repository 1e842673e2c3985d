# SPDX-License-Identifier: Apache-2.0
"""Log lines of the library on their way to logging.

Threads of the library never run Python. They write lines into a pipe, and a thread of Python reads
it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from typing import Dict

from ._native import LogLevel

_LEVELS: Dict[int, int] = {
    LogLevel.ERROR: logging.ERROR, LogLevel.WARN: logging.WARNING, LogLevel.INFO: logging.INFO,
    LogLevel.DEBUG: logging.DEBUG,
}
_END = b"\0\n"
_READ_BYTES = 65536
_JOIN_S = 2.0


def level_of(logger: logging.Logger) -> LogLevel:
    """The level at which the library has to log for this logger."""
    level = logger.getEffectiveLevel()
    if level <= logging.DEBUG:
        return LogLevel.DEBUG
    if level <= logging.INFO:
        return LogLevel.INFO
    return LogLevel.WARN if level <= logging.WARNING else LogLevel.ERROR


class LogPipe:
    """The pipe and its reader. fd is what the library writes to."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._reader, self.fd = os.pipe()
        # A line is lost rather than a thread of the library held up.
        flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, flags | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="lockstep-log", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        rest = b""
        while True:
            data = os.read(self._reader, _READ_BYTES)
            if not data:
                return
            rest += data
            *lines, rest = rest.split(b"\n")
            for line in lines:
                if line == _END[:1]:
                    return
                self._emit(line.decode("utf-8", "replace"))

    def _emit(self, line: str) -> None:
        level, _, text = line.partition(" ")
        number = _LEVELS.get(int(level), logging.ERROR) if level.isdigit() else logging.ERROR
        self._logger.log(number, "%s", text)

    def close(self) -> None:
        """Returns when all lines are logged. The library must not write any more."""
        flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, flags & ~os.O_NONBLOCK)
        os.write(self.fd, _END)
        self._thread.join(_JOIN_S)
        os.close(self.fd)
        if not self._thread.is_alive():
            os.close(self._reader)
