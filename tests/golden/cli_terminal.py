#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a command with --watch does to a terminal of 12 rows and 60 columns.

cli_terminal.py COMMAND...   until it has painted four times; then Control-C has to end it with 0
"""

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time

ROWS, COLUMNS = 12, 60
HOME, CLEAR_BELOW = "\x1b[H", "\x1b[J"

pid, terminal = pty.fork()
if pid == 0:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    os.execv(sys.argv[1], sys.argv[1:])

heard, said = b"", ""
deadline = time.monotonic() + 100 * float(os.environ.get("LOCKSTEP_TEST_SLOW", "1"))
while said.count(CLEAR_BELOW) < 4:
    ready, _, _ = select.select([terminal], [], [], max(0, deadline - time.monotonic()))
    assert ready, f"nothing more came: {said!r}"
    heard += os.read(terminal, 65536)  # May end within a character.
    said = heard.decode(errors="replace")
os.write(terminal, b"\x03")
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, status

pictures = [part for part in said.split(HOME)[1:] if CLEAR_BELOW in part]
for picture in pictures:
    lines = picture.split(CLEAR_BELOW)[0].replace("\r", "").split("\n")[:-1]
    plain = [re.sub("\x1b\\[[0-9;]*[mK]", "", line) for line in lines]
    rows = sum(max(1, -(-len(line) // COLUMNS)) for line in plain)
    assert rows < ROWS, (rows, plain)
assert "nothing stands still" in pictures[0], pictures[0]
assert "\x1b[1;31mmnist: stall 3" in pictures[1], pictures[1]
assert "the coordinator is busy" in pictures[2], pictures[2]
assert "mnist: stall 3" in pictures[3] and "busy" not in pictures[3], pictures[3]
