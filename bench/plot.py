#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws reports of `lockstep bench --json`: time and bus bandwidth over size, with both limits.

plot.py REPORT.json... [-o NAME]     writes NAME.png and NAME.svg (default: the first report's name)

Every dtype of every report is a line. Needs matplotlib.
"""

import argparse
import json
import os
import sys

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = "os^DvPX"
INK = "#222222"
FAINT = "#8a8a8a"
GRID = "#e3e3e3"


def size_text(size, _=None):
    """1048576 -> 1 MiB"""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:g} {unit}"
        size /= 1024


def time_text(us, _=None):
    for unit, scale in (("s", 1e6), ("ms", 1e3)):
        if us >= scale:
            return f"{us / scale:g} {unit}"
    return f"{us:g} µs"


def rate_text(gb_per_s, _=None):
    for unit, scale in (("GB/s", 1), ("MB/s", 1e-3)):
        if gb_per_s >= 0.9 * scale:
            return f"{gb_per_s / scale:g} {unit}"
    return f"{gb_per_s / 1e-6:g} kB/s"


def load(paths):
    reports = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            reports.append(json.load(file))
    return reports


def lines(reports):
    """(label, time member, results of one dtype by size) for each line to draw."""
    for report in reports:
        by_dtype = {}
        for result in report["results"]:
            by_dtype.setdefault(result["dtype"], []).append(result)
        for dtype, results in by_dtype.items():
            label = f"{dtype}, {report['ranks']} ranks, {report['mode']}"
            if report["mode"] == "async":
                label += f" ({report['in_flight']} in flight)"
            if report["cold"]:
                label += ", cold"
            time = "communication_us" if report["mode"] == "step" else "p50_us"
            yield label, time, sorted(results, key=lambda result: result["bytes"])


def draw_time(axes, drawn):
    """Medians, and for plain collectives a band up to the 90th percentile."""
    for (label, time, results), color, marker in zip(drawn, cycle(COLORS), cycle(MARKERS)):
        sizes = [result["bytes"] for result in results]
        axes.plot(sizes, [result[time] for result in results], color=color, marker=marker,
                  label=label)
        if time == "p50_us":
            axes.fill_between(sizes, [result["min_us"] for result in results],
                              [result["p90_us"] for result in results], color=color, alpha=0.13,
                              linewidth=0)
    axes.set_title("Time of an iteration", loc="left")


def draw_bandwidth(axes, drawn, reports):
    for (_, _, results), color, marker in zip(drawn, cycle(COLORS), cycle(MARKERS)):
        axes.plot([result["bytes"] for result in results],
                  [result["bus_gb_per_s"] for result in results], color=color, marker=marker)
    for member, text in (("tcp_gb_per_s", "one TCP stream"), ("memcpy_gb_per_s", "memcpy")):
        limits = [report["limits"][member] for report in reports if report["limits"][member]]
        if limits:
            axes.axhline(max(limits), color=FAINT, linewidth=1.2, linestyle=(0, (5, 3)))
            axes.annotate(f"{text}, {max(limits):.1f} GB/s", (0.02, max(limits)),
                          xycoords=("axes fraction", "data"), xytext=(0, 3),
                          textcoords="offset points", color=FAINT, fontsize=9)
    axes.set_title("Bus bandwidth", loc="left")


def cycle(items):
    while True:
        yield from items


def style_axes(axes, sizes, ticker):
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks(sizes))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(size_text))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.05, y=0.14)
    axes.set_xlabel("payload", color=INK)
    axes.tick_params(colors=INK, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)


def ticks(sizes):
    """The sizes themselves, without those so close to the one before that texts would touch."""
    kept = []
    span = max(sizes) / min(sizes)
    for size in sorted(set(sizes)):
        if not kept or size / kept[-1] > max(1.01, span ** 0.095):
            kept.append(size)
    return kept


def subtitle(reports):
    cores = sorted({report["cores"] for report in reports})
    transports = sorted({report["transport"] for report in reports})
    text = f"{', '.join(map(str, cores))} cores, transport {', '.join(transports)}"
    if any(report["mode"] != "step" for report in reports):
        text += ". Lines are medians over iterations on the slowest rank, bands min to p90"
    if any(report["oversubscribed"] for report in reports):
        text += ". Some with more ranks than cores"
    return text + "."


def draw(reports, name):
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({
        "font.size": 10, "axes.titlesize": 12, "axes.titleweight": "bold", "text.color": INK,
        "lines.linewidth": 2, "lines.markersize": 6, "svg.fonttype": "none",
        "svg.hashsalt": "lockstep",
    })
    from matplotlib import pyplot, ticker

    drawn = list(lines(reports))
    sizes = [result["bytes"] for _, _, results in drawn for result in results]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5.2))
    draw_time(left, drawn)
    draw_bandwidth(right, drawn, reports)
    for axes in (left, right):
        style_axes(axes, sizes, ticker)
    left.yaxis.set_major_formatter(ticker.FuncFormatter(time_text))
    right.yaxis.set_major_formatter(ticker.FuncFormatter(rate_text))
    left.legend(frameon=False, loc="upper left")
    figure.suptitle(f"lockstep bench {reports[0]['lockstep']}", x=0.01, ha="left",
                    fontsize=15, fontweight="bold")
    figure.text(0.01, 0.895, subtitle(reports), color=FAINT, ha="left")
    figure.tight_layout(rect=(0, 0, 1, 0.92))
    for kind in ("png", "svg"):
        figure.savefig(f"{name}.{kind}", dpi=160)
        print(f"{name}.{kind}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("reports", nargs="+", metavar="REPORT.json")
    parser.add_argument("-o", "--output", metavar="NAME", help="without .png and .svg")
    arguments = parser.parse_args()
    try:
        draw(load(arguments.reports), arguments.output or os.path.splitext(arguments.reports[0])[0])
    except ModuleNotFoundError as error:
        sys.exit(f"plot.py: {error}; for example: pip install matplotlib")
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"plot.py: not a report of `lockstep bench --json`: {error!r}")


if __name__ == "__main__":
    main()
