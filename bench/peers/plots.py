#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws report.json of run.py: for each place, times over sizes, and how many times faster we are.

    plots.py REPORT.json      writes PLACE.png and PLACE.svg beside it; needs matplotlib

A line is a family of variants, at each size the best of them. Looks are those of bench/plot.py.
"""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import plot  # noqa: E402  pylint: disable=wrong-import-position
import report as reports  # noqa: E402  pylint: disable=wrong-import-position

SMALL = 16 * 1024
OURS = {"Lockstep registered": "#0b3c6f", "Lockstep private": "#0072b2", "Lockstep tcp": "#56b4e9"}
PEERS = {
    "OpenMPI shared memory": "#d55e00", "OpenMPI TCP": "#e69f00", "OpenMPI two levels": "#d55e00",
    "MPICH shared memory": "#a0338a", "MPICH TCP": "#cc79a7", "MPICH two levels": "#a0338a",
    "Gloo": "#009e73", "PyTorch (Gloo)": "#8a8a8a",
}


def family_line(figures, place, family):
    """[(size, median in µs, low, high)] of warm buffers; low and high are quartiles of launches."""
    points = []
    for size in figures.sizes(place):
        found = [figures.figure(place, name, size, False)
                 for name, variant in figures.variants.items() if variant["family"] == family]
        found = [figure for figure in found if figure]
        if found:
            best = min(found, key=lambda figure: figure["median_ns"])
            half = best["median_ns"] * (best["spread"] or 0) / 2e3
            middle = best["median_ns"] / 1e3
            points.append((size, middle, max(middle - half, middle / 3), middle + half))
    return points


def draw_times(axes, lines, colors):
    for family, points in lines.items():
        sizes = [point[0] for point in points]
        ours = family in OURS
        axes.plot(sizes, [point[1] for point in points], color=colors[family], label=family,
                  linewidth=2.6 if ours else 1.4, marker="o" if ours else "s",
                  markersize=6 if ours else 4, zorder=3 if ours else 2)
        axes.fill_between(sizes, [point[2] for point in points], [point[3] for point in points],
                          color=colors[family], alpha=0.12, linewidth=0)
    axes.set_title("Time of an allreduce, warm buffers", loc="left")


def draw_limit(axes, figures, place):
    # The limit says nothing about small payloads, and would stretch the axis.
    limits = [(size, figures.limit_ns(place, size, "ring")) for size in figures.sizes(place)
              if size >= SMALL]
    if limits and limits[0][1]:
        axes.plot([size for size, _ in limits], [ns / 1e3 for _, ns in limits], color=plot.FAINT,
                  linewidth=1.2, linestyle=(0, (5, 3)), label="a ring at the link's rate", zorder=1)


def draw_ratios(axes, lines, colors):
    peers = {}
    for family, points in lines.items():
        if family not in OURS:
            for size, middle, _, _ in points:
                peers[size] = min(middle, peers.get(size, middle))
    for family, points in lines.items():
        both = [(size, peers[size] / middle) for size, middle, _, _ in points if size in peers]
        if family in OURS and both:
            axes.plot([size for size, _ in both], [ratio for _, ratio in both],
                      color=colors[family], marker="o", linewidth=2.6)
            axes.annotate(f"{both[-1][1]:.2g}x", both[-1], xytext=(6, 6), fontsize=9,
                          textcoords="offset points", color=colors[family], va="center")
    axes.axhline(1, color=plot.FAINT, linewidth=1.2)
    axes.set_title("Times faster than the best peer of any kind", loc="left")


def draw_place(figures, place, folder, subtitle):
    from matplotlib import pyplot, ticker

    colors = {**OURS, **PEERS}
    lines = {family: family_line(figures, place, family) for family in colors}
    lines = {family: points for family, points in lines.items() if points}
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5.8))
    draw_times(left, lines, colors)
    draw_limit(left, figures, place)
    draw_ratios(right, lines, colors)
    for axes in (left, right):
        plot.style_axes(axes, figures.sizes(place), ticker)
    left.yaxis.set_major_formatter(ticker.FuncFormatter(plot.time_text))
    right.set_yscale("log", base=2)
    right.yaxis.set_major_formatter(ticker.FuncFormatter(lambda ratio, _: f"{ratio:g}x"))
    figure.legend(*left.get_legend_handles_labels(), frameon=False, loc="lower center", ncol=5,
                  fontsize=9)
    figure.suptitle(figures.places[place]["title"], x=0.01, ha="left", fontsize=15,
                    fontweight="bold")
    figure.text(0.01, 0.895, subtitle, color=plot.FAINT, ha="left")
    figure.tight_layout(rect=(0, 0.08, 1, 0.92))
    for kind in ("png", "svg"):
        path = os.path.join(folder, f"{place}.{kind}")
        figure.savefig(path, dpi=140)
        print(path)
    pyplot.close(figure)


def main():
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({
        "font.size": 10, "axes.titlesize": 12, "axes.titleweight": "bold", "text.color": plot.INK,
        "svg.fonttype": "none", "svg.hashsalt": "lockstep",
    })
    with open(sys.argv[1], encoding="utf-8") as file:
        report = json.load(file)
    figures = reports.Figures(report)
    machine = report["machine"]
    subtitle = (f"{machine['cores']} cores, {report['started'][:10]}, commit {report['commit']}. Lines "
                "are medians over launches, bands the distance of their quartiles.")
    for place in figures.measured_places():
        draw_place(figures, place, os.path.dirname(os.path.abspath(sys.argv[1])), subtitle)


if __name__ == "__main__":
    main()
