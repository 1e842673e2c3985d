#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the Python package, and ends with one line as tools/run-tests does.

ONLY in the environment is a piece of the name of a test: ONLY=test_collectives, ONLY=fork.
"""

import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


def tests_in(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from tests_in(item)
        else:
            yield item


def main():
    sys.path.insert(0, HERE)
    only = os.environ.get("ONLY", "")
    every = list(tests_in(unittest.defaultTestLoader.discover(HERE, top_level_dir=HERE)))
    # A module that cannot be loaded is a test whose name does not say where it is.
    chosen = [test for test in every if only in test.id() or "_FailedTest" in test.id()]
    result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(chosen))
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    for test, text in result.failures + result.errors:
        print(f"FAILED {test.id()}: {text.strip().splitlines()[-1]}")
    for test, why in result.skipped:
        print(f"skipped {test.id()}: {why}")
    passed = result.testsRun - failed - len(result.skipped)
    print(f"{max(passed, 0)} passed, {failed} failed"
          + (f", {len(result.skipped)} skipped" if result.skipped else ""))
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
