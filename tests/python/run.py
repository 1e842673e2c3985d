#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the Python package, and ends as tools/run-tests does: with what failed, and one line.

With CI=true a test whose checks failed runs once more at the end, alone, and is named as UNSTEADY if
it passes then. A crash, a hang and a module that cannot be loaded count at once.

ONLY in the environment is a piece of the name of a test: ONLY=test_collectives, ONLY=fork.
"""

import concurrent.futures
import os
import re
import runpy
import signal
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SIDE_BY_SIDE = 4
CI = os.environ.get("CI") == "true"
RUN_TESTS = runpy.run_path(os.path.join(HERE, "..", "..", "tools", "run-tests"))
# These failures have no second try either: a program that a signal of a crash has ended (support.Said), a
# program that has run into its bound, and a rank of torch_ranks with which either has happened.
NO_CHANCE = re.compile(RUN_TESTS["NO_CHANCE"].pattern +
                       r"|\bcode -(4|6|7|8|11)$|TimeoutExpired|has ended without an answer", re.M)


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
    together = [test for test in tests if CI and getattr(test, "side_by_side", False)]
    with concurrent.futures.ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        results = list(pool.map(lambda test: run([test]), together))
    return results + [run([test for test in tests if test not in together])]


def run_again(wrong):
    """Takes (test, text) of all failures. Those that count, after a second try of tests whose checks
    failed, and those of tests that passed then."""
    counts, unsteady, said = [], [], {}
    for test, text in wrong:
        said.setdefault(getattr(test, "test_case", test), []).append((test, text))
    for test, entries in said.items():
        loaded = isinstance(test, unittest.TestCase) and "_FailedTest" not in test.id()
        if not loaded or any(NO_CHANCE.search(text) for _, text in entries):
            counts += entries
            continue
        again = run([test])
        counts += again.failures + again.errors
        unsteady += entries if again.wasSuccessful() else []
    return counts, unsteady


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
    wrong, unsteady = run_again(wrong) if CI else (wrong, [])
    skipped = [entry for result in results for entry in result.skipped]
    failed = len(wrong) + sum(len(result.unexpectedSuccesses) for result in results)
    for word, entries in (("UNSTEADY", unsteady), ("FAILED", wrong)):
        for test, text in entries:
            print(f"{word} {test.id()}: {text.strip().splitlines()[-1]}")
    for test, why in skipped:
        print(f"skipped {test.id()}: {why}")
    passed = sum(result.testsRun for result in results) - failed - len(skipped)
    print(f"{max(passed, 0)} passed, {failed} failed, {len(skipped)} skipped")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
