# SPDX-License-Identifier: Apache-2.0
"""The numbered cases: what they are called, and which tests of the sources belong to them."""

import glob
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(ROOT, "tests", "conformance")


def read_table():
    """{case: (title, None)}, or (title, (transport, worlds, programs)) for those with an @."""
    table = {}
    with open(os.path.join(FOLDER, "cases.txt"), encoding="utf-8") as file:
        for line in file:
            if re.match(r"\d\d ", line):
                title, _, elsewhere = line[3:].strip().partition(" @ ")
                words = elsewhere.split()
                worlds = [int(world) for world in words[1].split(",")] if words else []
                table[int(line[:2])] = (title, (words[0], worlds, words[2:]) if words else None)
    return table


def read_programs():
    """{"conformance/test_x": the cases of its tests}."""
    programs = {}
    for path in sorted(glob.glob(os.path.join(FOLDER, "test_*.c"))):
        with open(path, encoding="utf-8") as file:
            named = {int(number) for number in re.findall(r'"case_(\d\d)_', file.read())}
        if named:
            programs["conformance/" + os.path.basename(path)[:-2]] = named
    return programs
