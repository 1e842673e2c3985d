# SPDX-License-Identifier: Apache-2.0
"""Programs of the tests: each is a text of Python that runs as one process or as a job."""

import os
import subprocess
import sys
import textwrap

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIN = os.environ["LOCKSTEP_TEST_BIN"]
SLOW = float(os.environ.get("LOCKSTEP_TEST_SLOW", "1")) * (
    3 if os.environ.get("CI") == "true" else 1)
TIMEOUT_S = 120 * SLOW
PRELUDE = """
import ctypes, gc, logging, os, signal, subprocess, sys, threading, time
import numpy as np
import lockstep
def say(*what):
    sys.stdout.write(" ".join(str(word) for word in what) + "\\n")
    sys.stdout.flush()
def interrupt(seconds):
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
"""


class Said:
    """What a program has printed, and how it ended."""

    def __init__(self, done):
        self.code = done.returncode
        self.lines = sorted(done.stdout.splitlines())
        self.out, self.error = done.stdout, done.stderr

    def __str__(self):
        return f"code {self.code}\n{self.out}\n{self.error}"


def environment(more=None):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith("LOCKSTEP_") or name.startswith("LOCKSTEP_TEST_")}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", **(more or {})}


def text_of(code):
    return PRELUDE + textwrap.dedent(code)


def alone(code, env=None, python=sys.executable):
    """Runs the program as one process."""
    return Said(subprocess.run([python, "-c", text_of(code)], env=environment(env), text=True,
                               capture_output=True, timeout=TIMEOUT_S, check=False))


def job(ranks, code, env=None, python=sys.executable, lockstep=None, opened=True, survive=False):
    """Runs the program as so many ranks. If opened, session is open, and rank and size are set;
    else rank is what the launcher has said. survive: a rank that fails does not end the others."""
    body = "rank = int(os.environ['LOCKSTEP_RANK_HINT'])\n"
    if opened:
        body = "session = lockstep.Session()\nrank, size = session.rank, session.size\n"
    tool = lockstep or os.path.join(BIN, "lockstep")
    command = [tool, "run", "-n", str(ranks), "--no-prefix", *(["--survive"] if survive else []), "--",
               python, "-c", PRELUDE + body + textwrap.dedent(code) + ("session.close()\n" if opened else "")]
    return Said(subprocess.run(command, env=environment(env), text=True, capture_output=True,
                               timeout=TIMEOUT_S, check=False))
