#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures of bench/peers from what ranks have written, and whether docs/internals/peers.md knows
every member of a report.

check.py ROOT
"""

import json
import math
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(sys.argv[1])
sys.path.insert(0, os.path.join(ROOT, "bench", "peers"))
import crossings  # noqa: E402  pylint: disable=wrong-import-position
import samples  # noqa: E402  pylint: disable=wrong-import-position


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def check_ranks():
    """The second rank was ended in its second cell: that one is left out, on both."""
    version, cells = samples.read_ranks([read(HERE, f"rank.{rank}.jsonl") for rank in (0, 1)])
    assert version == "Peer 1.0"
    assert len(cells) == 1, cells
    # The slowest rank of each sample: 90, 120, 110, 140.
    assert cells[0] == {"bytes": 4, "cold": False, "iterations": 40, "batch": 10, "mean_ns": 110.0,
                        "p50_ns": 115.0, "p99_ns": 140.0 - 0.03 * 20, "cpu_ns": 75.0}, cells[0]


def check_figures():
    assert samples.median([3, 1, 2]) == 2 and samples.median([4, 1, 2, 3]) == 2.5
    assert samples.quantile([10, 20], 0.25) == 12.5
    assert samples.spread([1]) is None and samples.spread([1, 2, 3]) == 0.5
    # Ten values of deviation 1 around 5: Student's t for 9 degrees of freedom is 2.262.
    values = [5 + math.sqrt(0.9) * sign for sign in (-1, 1) for _ in range(5)]
    mean, low, high = samples.mean_interval(values)
    assert abs(mean - 5) < 1e-9 and abs(low + high - 10) < 1e-9
    assert abs(high - 5 - 2.262 / math.sqrt(10)) < 0.005
    overlap = samples.overlap_of({"compute": [100.0] * 3, "communication": [40.0] * 3,
                                  "step": [110.0] * 3}, 0.2)
    # Only 20 of 40 could be hidden, and 30 were: computing was slower alone.
    assert overlap["exposed_us"] == 10 and overlap["hideable_us"] == 20
    assert overlap["hidden_of_hideable"] == 1.5 and math.isclose(overlap["added_share_upper"], 0.1)
    ranks = [{"step": [1, 5]}, {"step": [2, 4]}]
    assert samples.slowest_of(ranks) == {"step": [2, 5]}


def check_kept():
    """Disturbed launches go first, then far ones; a variant keeps what is best of what it has."""
    def launch(variant, foreign, line):
        return {"variant": variant, "foreign_share": foreign, "line_ns": line}

    quiet, far, loud = launch("a", 0.01, 100), launch("a", 0.01, 300), launch("a", 0.09, 100)
    only_far, only_loud = launch("b", 0.08, 201), launch("c", None, 100)
    def key(one):
        return one["variant"]

    assert samples.kept([loud, quiet, far, only_far, only_loud], key) == [quiet, only_far, only_loud]
    assert samples.kept([loud, far], key) == [far]
    assert samples.kept([loud, launch("a", 0.5, 400)], key) == [loud]
    assert samples.kept([], key) == []
    # One launch that was measured on one core makes no other one far.
    lucky = launch("a", 0.01, 40)
    near = [launch("a", 0.01, 150 + i) for i in range(4)]
    assert samples.kept([lucky, *near], key) == [lucky, *near]


def check_crossings():
    """In shares of the payload: ranks of two hosts in rows, and interleaved; an odd world."""
    rows, turns = [0, 0, 1, 1], [0, 1, 0, 1]
    found = [[crossings.crossings(hosts, algorithm) for hosts in (rows, turns)]
             for algorithm in ("ring", "halving", "doubling", "two levels")]
    assert found == [[1.5, 3], [1, 2], [2, 2], [1, 1]], found
    # Each on its own host: what a rank sends. An extra hands over all, and its partner gives back all.
    assert crossings.crossings([0, 1, 2], "ring") == 4 / 3
    assert crossings.crossings([0, 1, 2], "halving") == 2
    assert crossings.crossings([0, 0, 1], "doubling") == 1


def check_documented():
    """Every member is named in the table of docs/internals/peers.md, and nothing else is."""
    text = read(ROOT, "docs", "internals", "peers.md").split("## The report", 1)[1]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text.split("\n## ", 1)[0], re.MULTILINE)
    documented = set(re.findall(r"`(\w+)`", " ".join(rows)))
    report = json.loads(read(HERE, "report.json"))
    found = set(report) | set(report["machine"]) | set(report["settings"])
    for part in ("places", "variants", "launches", "overlap"):
        for item in report[part]:
            found |= set(item)
    for launch in report["launches"]:
        for cell in launch["cells"]:
            found |= set(cell)
    assert found == documented, found ^ documented


check_ranks()
check_figures()
check_kept()
check_crossings()
check_documented()
