#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the Python package, and ends with one line as tools/run-tests does.

ONLY in the environment is a piece of the name of a test: ONLY=test_collectives, ONLY=fork.
"""

import concurrent.futures
import os
import signal
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SIDE_BY_SIDE = 4


def tests_in(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from tests_in(item)
        else:
            yield item


def run(tests):
    """The result of tests one after the other."""
    return unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(tests))


def run_all(tests):
    """The results of all tests. Classes that say `side_by_side` mostly wait for processes, and run
    at the same time while deadlines have room."""
    together = [test for test in tests
                if os.environ.get("CI") == "true" and getattr(test, "side_by_side", False)]
    with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        results = list(pool.map(lambda test: run([test]), together))
    return results + [run([test for test in tests if test not in together])]


def main():
    # What a shell starts in the background ignores SIGINT, and so would the programs of the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path.insert(0, HERE)
    only = os.environ.get("ONLY", "")
    every = list(tests_in(unittest.defaultTestLoader.discover(HERE, top_level_dir=HERE)))
    # A module that cannot be loaded is a test whose name does not say where it is.
    chosen = [test for test in every if only in test.id() or "_FailedTest" in test.id()]
    results = run_all(chosen)
    wrong = [entry for result in results for entry in result.failures + result.errors]
    skipped = [entry for result in results for entry in result.skipped]
    failed = len(wrong) + sum(len(result.unexpectedSuccesses) for result in results)
    for test, text in wrong:
        print(f"FAILED {test.id()}: {text.strip().splitlines()[-1]}")
    for test, why in skipped:
        print(f"skipped {test.id()}: {why}")
    passed = sum(result.testsRun for result in results) - failed - len(skipped)
    print(f"{max(passed, 0)} passed, {failed} failed, {len(skipped)} skipped")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
