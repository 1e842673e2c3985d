#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages: every link between them works, every page that a file cites exists, and so does every
source file that a page names; lines are at most 100 columns wide, the index names every page, and
docs/environment.md has every variable.

--self-test runs the same check over fixtures/pages, where exactly the lines that end in
'<!-- wrong -->' must be reported, and every page must be in the index but missing.md.
"""

import os
import re
import sys

from sources import files, text_of

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
COLUMNS = 100
TOPS = ("docs/", "deploy/README.md", "README.md", "SECURITY.md")
FIXTURES = "tests/lint/fixtures/pages"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|<img src=\"([^\"]+)\"")
CITED = re.compile(r"(?<![\w./-])(?:docs/[\w/-]+\.md|SECURITY\.md|deploy/README\.md)")
HEADING = re.compile(r"#{1,6} +(.*)")
HISTORY = "docs/CHANGES.md"  # It names files that are gone.
MARK = "<!-- wrong -->"
TREES = "base|bench|cli|coordinator|examples|include|protos|server|tests|tools|worker"
SOURCE = re.compile(rf"`((?:{TREES})/[\w./-]+)`")
VARIABLE_ROW = re.compile(r"\| `(LOCKSTEP_[A-Z_]+)`")


def slug(heading):
    """The anchor that GitHub makes of a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def lines_of(text):
    """Yields (line number, line, whether it is inside a fenced block)."""
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("```"):
            fenced = not fenced
            yield number, line, True
        else:
            yield number, line, fenced


def anchors(text):
    found = set()
    for _, line, fenced in lines_of(text):
        match = not fenced and HEADING.match(line)
        if match:
            found.add(slug(match.group(1).replace(MARK, "")))
    return found


def is_printed(line, fenced):
    """Tables and what programs print cannot be wrapped."""
    return fenced or line.startswith(("|", "    "))


def exists(root, path):
    """A path, or a test without its ending."""
    full = os.path.join(root, path)
    return any(os.path.exists(full + ending) for ending in ("", ".c", ".sh", ".py"))


class Pages:
    def __init__(self, root, paths):
        self.root = root
        self.pages = {path: self.read(path) for path in paths
                      if path.startswith(TOPS) and path.endswith(".md")}

    def read(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8") as file:
            return file.read()

    def broken(self, page, target):
        """What is wrong with a link, or None."""
        if re.match(r"[a-z]+:", target):
            return None
        path, _, anchor = target.partition("#")
        full = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if not os.path.exists(os.path.join(self.root, full)):
            return f"there is no {full}"
        if anchor and full in self.pages and anchor not in anchors(self.pages[full]):
            return f"{full} has no heading '{anchor}'"
        return None

    def problems_of(self, page):
        for number, line, fenced in lines_of(self.pages[page]):
            if len(line.replace(MARK, "").rstrip()) > COLUMNS and not is_printed(line, fenced):
                yield page, number, f"wider than {COLUMNS} columns"
            for match in () if fenced else LINK.finditer(line):
                why = self.broken(page, match.group(1) or match.group(2))
                if why:
                    yield page, number, f"a link that does not work: {why}"

    def missing_sources(self, page):
        """The files and folders of the tree that a page names and that do not exist."""
        for number, line, fenced in lines_of(self.pages[page]):
            for match in () if fenced else SOURCE.finditer(line):
                placeholder = re.search(r"NAME|NN", match.group(1))
                if not placeholder and not exists(self.root, match.group(1)):
                    yield page, number, f"there is no {match.group(1)}"

    def unlisted(self, folder):
        """The pages of a folder that its README.md does not link to."""
        index = folder + "README.md"
        links = {os.path.normpath(os.path.join(folder, match.group(1).partition("#")[0]))
                 for match in LINK.finditer(self.pages[index]) if match.group(1)}
        for page in sorted(self.pages):
            if page.startswith(folder) and page != index and page not in links:
                yield index, 1, f"does not link to {page}"


def cited(root, path, text):
    """Yields the pages that a file names and that do not exist."""
    for number, line in enumerate(text.split("\n"), 1):
        for match in CITED.finditer(line):
            if not os.path.exists(os.path.join(root, match.group(0))):
                yield path, number, f"there is no {match.group(0)}"


def variables():
    """Known variables without a row in docs/environment.md, and rows of unknown ones."""
    source = text_of("base/variables.c").split("known[] = {", 1)[1].split("};", 1)[0]
    known = {"LOCKSTEP_" + name for name in re.findall(r'"([A-Z_]+)"', source)}
    page = "docs/environment.md"
    rows = {match.group(1): number for number, line in enumerate(text_of(page).split("\n"), 1)
            for match in [VARIABLE_ROW.match(line)] if match}
    for name in sorted(known - set(rows)):
        yield page, 1, f"has no row for {name}, which base/variables.c knows"
    for name in sorted(set(rows) - known):
        yield page, rows[name], f"base/variables.c does not know {name}"


def scan():
    """Yields (path, line number, message) for everything that is wrong."""
    paths = [path for path in files() if not path.startswith("tests/lint/fixtures/")]
    pages = Pages(ROOT, paths)
    for page in sorted(pages.pages):
        yield from pages.problems_of(page)
        if page != HISTORY:
            yield from pages.missing_sources(page)
    yield from pages.unlisted("docs/")
    for path in paths:
        yield from cited(ROOT, path, text_of(path) or "")
    yield from variables()


def self_test():
    root = os.path.join(ROOT, FIXTURES)
    paths = ["docs/" + name for name in sorted(os.listdir(os.path.join(root, "docs")))]
    pages = Pages(root, paths)
    found, wanted = set(), {("docs/README.md", 1)}
    for path in paths:
        found.update(place[:2] for place in pages.problems_of(path))
        found.update(place[:2] for place in pages.missing_sources(path))
        found.update(place[:2] for place in cited(root, path, pages.pages[path]))
        wanted.update((path, number) for number, line, _ in lines_of(pages.pages[path])
                      if line.rstrip().endswith(MARK))
    found.update(place[:2] for place in pages.unlisted("docs/"))
    for path, number in sorted(wanted - found):
        print(f"{FIXTURES}/{path}:{number}: should have been reported")
    for path, number in sorted(found - wanted):
        print(f"{FIXTURES}/{path}:{number}: should not have been reported")
    return 1 if found != wanted or len(wanted) < 5 else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    found = [f"{path}:{number}: {message}" for path, number, message in scan()]
    if found:
        print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
