# SPDX-License-Identifier: Apache-2.0
"""The example, alone and as a job."""

import os
import subprocess
import sys
import unittest

from support import BIN, ROOT, TIMEOUT_S

HELLO = [sys.executable, os.path.join(ROOT, "examples", "python", "hello.py")]


class Hello(unittest.TestCase):
    def said(self, command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return sorted(done.stdout.splitlines())

    def test_one_worker(self):
        self.assertEqual(self.said(HELLO), ["rank 0 of 1: w = 2.000, largest error 0.000"])

    def test_two_workers(self):
        run = [os.path.join(BIN, "lockstep"), "run", "-n", "2", "--no-prefix", "--"]
        self.assertEqual(self.said(run + HELLO), [
            f"rank {rank} of 2: w = 2.000, largest error 0.000" for rank in range(2)])
