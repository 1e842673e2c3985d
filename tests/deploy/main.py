#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make deploy-test`: runs the tests of deploy/, a line each, and one closing line.

What cannot run says why and counts as skipped. Arguments: pieces of test names.
"""

import glob
import os
import subprocess
import sys
import time
import unittest

import setting


class Lines(unittest.TestResult):
    """A line for each test, and all that a failed one said."""

    def __init__(self):
        super().__init__()
        self.passed = 0
        self.began = 0.0

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def line(self, word, test, text=""):
        name = test.id().split(".", 1)[-1]
        print(f"  {word:<4} {name:<58} {time.monotonic() - self.began:6.1f} s", flush=True)
        if text:
            print(text, flush=True)

    def addSuccess(self, test):
        self.passed += 1
        self.line("ok", test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.line("FAIL", test, self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.line("FAIL", test, self.errors[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.line("FAIL", subtest, self._exc_info_to_string(err, test))

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.line("SKIP", test, f"       {reason}")


def main():
    if setting.alone():
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    setting.prepare()
    suite = unittest.TestSuite()
    for path in sorted(glob.glob(os.path.join(os.path.dirname(__file__), "test_*.py"))):
        module = os.path.splitext(os.path.basename(path))[0]
        for group in unittest.defaultTestLoader.loadTestsFromName(module):
            for test in group:
                if not sys.argv[1:] or any(word in test.id() for word in sys.argv[1:]):
                    suite.addTest(test)
    result = Lines()
    suite.run(result)
    failed = len(result.failures) + len(result.errors)
    print(f"{result.passed} passed, {failed} failed, {len(result.skipped)} skipped")
    return 1 if failed or not suite.countTestCases() else 0


if __name__ == "__main__":
    sys.exit(main())
