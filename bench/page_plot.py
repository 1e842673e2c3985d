#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the first table of docs/performance.md as docs/pictures/performance.svg, with the standard
library only. --check says whether the picture is of the table."""

import math
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs", "performance.md")
PICTURE = os.path.join(ROOT, "docs", "pictures", "performance.svg")
MARK = "<!-- The table that bench/page_plot.py draws. -->"
WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 200, 20, 50
COLOURS = ("#2a5db0", "#2f8f4e", "#b3541e", "#7a4fb3", "#8a6d00")


def table():
    """The names of the sizes, and the rows: a name and microseconds."""
    with open(PAGE, encoding="utf-8") as file:
        lines = file.read().split(MARK, 1)[1].strip().split("\n")
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows[0][1:], [(row[0], list(map(float, row[1:]))) for row in rows[2:]]


def draw():
    sizes, rows = table()
    lowest = math.floor(math.log10(min(min(values) for _, values in rows)))
    highest = math.ceil(math.log10(max(max(values) for _, values in rows)))

    def x(column):
        return LEFT + column / (len(sizes) - 1) * (WIDTH - LEFT - RIGHT)

    def y(value):
        share = (math.log10(value) - lowest) / (highest - lowest)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="sans-serif" font-size="12">',
           "<!-- Drawn by bench/page_plot.py from docs/performance.md. -->",
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for power in range(lowest, highest + 1):
        name = f"{10 ** power:g} us" if power < 3 else f"{10 ** (power - 3):g} ms"
        at = y(10 ** power)
        out.append(f'<line x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{name}</text>')
    for column, name in enumerate(sizes):
        out.append(f'<text x="{x(column):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{name}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text x="{middle:.1f}" y="{HEIGHT - 10}" text-anchor="middle">'
               "payload of one allreduce of float32</text>")
    ends = []
    for (name, values), colour in zip(rows, COLOURS):
        points = [(x(column), y(value)) for column, value in enumerate(values)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points]
        ends.append([points[-1][1], name, colour])
    ends.sort()
    for before, end in zip(ends, ends[1:]):
        end[0] = max(end[0], before[0] + 15)  # Names of lines that end close to each other.
    for at, name, colour in ends:
        out.append(f'<text x="{WIDTH - RIGHT + 12}" y="{at + 4:.1f}" fill="{colour}">{name}</text>')
    return "\n".join(out) + "\n</svg>\n"


def main():
    if sys.argv[1:] == ["--check"]:
        with open(PICTURE, encoding="utf-8") as file:
            if file.read() == draw():
                return 0
        print("docs/pictures/performance.svg is not of the table: run bench/page_plot.py")
        return 1
    with open(PICTURE, "w", encoding="utf-8") as file:
        file.write(draw())
    return 0


if __name__ == "__main__":
    sys.exit(main())
