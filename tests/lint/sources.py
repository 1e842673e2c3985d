#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every source file names its licence, no file names a path of somebody's machine, and no script
under pipefail pipes into `grep -q`.

`grep -q` ends at the first match. A command that still writes then ends by SIGPIPE, and under
pipefail its pipe fails, now and then. `grep -q PATTERN <(COMMAND)` looks at grep alone.

--list-c prints the files of C and C++, for clang-format.
"""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LICENCE = "SPDX-License-Identifier: Apache-2.0"
LICENCE_WITHIN_LINES = 5
C_FILES = (".c", ".h", ".cpp", ".hpp")
SOURCES = C_FILES + (
    ".cc", ".css", ".cu", ".cuh", ".html", ".js", ".map", ".mk", ".options", ".proto",
    ".py", ".sh", ".yaml", ".yml",
)
SOURCE_NAMES = ("Makefile", "Dockerfile", "Containerfile")
PIPEFAIL = re.compile(r"^set -\w*o pipefail|^\. .*(?:run_lib|/lib)\.sh", re.M)
QUIET_GREP = re.compile(r"[^|]\|\s*grep (?:-\w+ )*-\w*q")
MACHINE_PATH = re.compile(r"(?<![\w./-])/(?:home|root|work|Users)/")


def files():
    """All files of the checkout but hidden directories and build output."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(
            name for name in folders
            if name != "__pycache__" and not re.match(r"build(-|$)", name)
            and (not name.startswith(".") or name == ".ci")
        )
        for name in sorted(names):
            path = os.path.join(folder, name)
            # .git is a file in a work tree of its own.
            if not os.path.islink(path) and name != ".git":
                yield os.path.relpath(path, ROOT)


def text_of(path):
    """The text of a file, or None for a binary one."""
    with open(os.path.join(ROOT, path), "rb") as file:
        data = file.read()
    return None if b"\0" in data else data.decode("utf-8", "replace")


def is_source(path, text):
    name = os.path.basename(path)
    return name.endswith(SOURCES) or name in SOURCE_NAMES or text.startswith("#!")


def problems(path):
    text = text_of(path)
    if text is None:
        return
    lines = text.split("\n")
    if is_source(path, text) and text.strip():
        if not any(LICENCE in line for line in lines[:LICENCE_WITHIN_LINES]):
            yield f"{path}:1: no line '{LICENCE}' at its beginning"
    under_pipefail = PIPEFAIL.search(text) is not None
    for number, line in enumerate(lines, 1):
        if under_pipefail and QUIET_GREP.search(line):
            yield f"{path}:{number}: a pipe into grep -q under pipefail: {line.strip()}"
        if MACHINE_PATH.search(line):
            yield f"{path}:{number}: a path of one machine: {line.strip()}"


def main():
    if sys.argv[1:] == ["--list-c"]:
        print("\n".join(path for path in files() if path.endswith(C_FILES)))
        return 0
    found = [problem for path in files() for problem in problems(path)]
    if found:
        print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
