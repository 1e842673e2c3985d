#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From report.json of run.py to a table and plots beside it.

    report.py REPORT.json [--no-plots]

Writes table.md (each case with its bar and verdict, every check, and all medians) and one plot for each
place. docs/internals/peers.md says how to read them. Pure but for these files.
"""

import argparse
import json
import os
import subprocess
import sys

import bars
import crossings
import samples

HERE = os.path.dirname(os.path.abspath(__file__))
NOISY = 0.25  # Quartiles of launches farther apart than that share of the median.
HIDDEN_BAR = 0.95
ADDED_BAR = 0.03


# ---- words ---------------------------------------------------------------------------------------


def size_text(size):
    for unit in ("B", "KiB", "MiB"):
        if size < 1024 or unit == "MiB":
            return f"{size:g} {unit}"
        size /= 1024
    return None


def time_text(ns):
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if ns >= scale:
            return f"{ns / scale:.3g} {unit}" if ns < 1000 * scale else f"{ns / scale:.0f} {unit}"
    return f"{ns:.3g} ns"


def ratio_text(check):
    if check.ratio is None:
        return "-"
    return f"{100 * check.ratio:.1f} %" if check.unit == "%" else f"{check.ratio:.2f}x"


def bar_text(check):
    return f"{100 * check.bar:.0f} %" if check.unit == "%" else f"{check.bar:g}x"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows] + [""]


# ---- figures -------------------------------------------------------------------------------------


def place_and_variant(launch):
    return launch["place"], launch["variant"]


def left_out(report):
    """Launches of any variant that say more of the machine than of their variant, and are not needed
    because a quieter or nearer launch of it in the same place is left."""
    good = [launch for launch in report["launches"] if launch["cells"]]
    kept = {id(launch) for launch in samples.kept(good, place_and_variant)}
    return [launch for launch in good if id(launch) not in kept]


class Figures:
    """Medians over the launches that are kept, by place, variant, size and whether buffers were cold."""

    def __init__(self, report):
        self.places = {place["name"]: place for place in report["places"]}
        self.variants = {variant["name"]: variant for variant in report["variants"]}
        self.values = {}
        self.unlike = set()  # (place, variant) of which only disturbed or far launches are left.
        good = [launch for launch in report["launches"] if launch["cells"]]
        nearest = samples.nearest_ns(good)
        for launch in samples.kept(good, place_and_variant):
            if samples.is_disturbed(launch) or samples.is_far(launch, nearest):
                self.unlike.add(place_and_variant(launch))
            for cell in launch["cells"]:
                key = (launch["place"], launch["variant"], cell["bytes"], cell["cold"])
                self.values.setdefault(key, []).append(cell)

    def figure(self, place, variant, size, cold, member="mean_ns"):
        cells = self.values.get((place, variant, size, cold))
        if not cells:
            return None
        values = [cell[member] for cell in cells]
        return {"name": variant, "median_ns": samples.median(values), "launches": len(values),
                "spread": samples.spread(values), "unlike": (place, variant) in self.unlike}

    def best(self, place, size, cold, ours=None, wire=None, family=None, kind=None,
             member="mean_ns"):
        """Of ours, that one; else the fastest variant of the peers that are meant."""
        def meant(variant):
            if ours:
                return variant["name"] == ours
            return (not variant["ours"] and wire in (None, variant["wire"])
                    and family in (None, variant["family"])
                    and (kind is None or variant["family"].startswith(kind)))

        # The fastest is chosen by its time, also when something else of it is compared.
        found = [(self.figure(place, name, size, cold), name)
                 for name, variant in self.variants.items() if meant(variant)]
        found = [(figure["median_ns"], name) for figure, name in found if figure]
        return self.figure(place, min(found)[1], size, cold, member) if found else None

    def limit_ns(self, place, size, algorithm):
        """None: a place without a rate, or one that this report does not know yet."""
        known = self.places.get(place)
        return crossings.limit_ns(known, size, algorithm) if known else None

    def sizes(self, place):
        return sorted({key[2] for key in self.values if key[0] == place})

    def measured_places(self):
        return [name for name in self.places if self.sizes(name)]


def is_noisy(check):
    spreads = [figure["spread"] for figure in (check.ours, check.other)]
    return any(spread is not None and spread > NOISY for spread in spreads)


def is_unlike(check):
    """True if a figure is only of launches beside others, or of cores that were far apart."""
    return any(figure.get("unlike") for figure in (check.ours, check.other))


def is_single(check):
    return any(figure["spread"] is None for figure in (check.ours, check.other))


def verdict(check):
    if check.met is None:
        return "not measured"
    word = "met" if check.met else "short"
    if is_unlike(check):
        return word + ", disturbed"
    if is_noisy(check):
        return word + ", noisy"
    return word + (", one launch" if is_single(check) else "")


# ---- overlap -------------------------------------------------------------------------------------


def overlap_rows(report):
    """A row for each case and variant, of all its rounds."""
    found = {}
    for record in report["overlap"]:
        found.setdefault((record["case"], record["variant"], record["ours"]), []).append(record)
    for (case, name, ours), records in found.items():
        good = samples.kept([record for record in records if not record["error"]],
                            lambda record: name)
        row = {"case": case, "variant": name, "ours": ours, "error": records[0]["error"],
               "launches": len(good)}
        for member in ("compute_us", "communication_us", "exposed_us", "hidden_of_hideable"):
            row[member] = samples.median([r[member] for r in good]) if good else None
        if good:
            # Pairs of all launches together: a step and the computation just before it.
            pairs = [(step - alone) / r["compute_us"] for r in good
                     for step, alone in zip(r["series_us"]["step"], r["series_us"]["compute"])]
            row["added"] = samples.mean_interval(pairs)
        yield row


def overlap_verdict(row):
    if row["error"] and not row["launches"]:
        return row["error"].split(":")[0]
    if not row["ours"]:
        return ""
    if row["case"] == "overlap-1g":
        return "met" if row["hidden_of_hideable"] >= HIDDEN_BAR else "short"
    if row["variant"] == "lockstep registered":
        _, low, high = row["added"]
        return "met" if high <= ADDED_BAR else "short" if low > ADDED_BAR else "undecided"
    return ""


def overlap_lines(report):
    rows = []
    for row in overlap_rows(report):
        figures = ["-"] * 5
        if row["launches"]:
            mean, low, high = (100 * value for value in row["added"])
            figures = [time_text(1e3 * row["compute_us"]), time_text(1e3 * row["communication_us"]),
                       f"{row['exposed_us'] / 1e3:.1f} ms",
                       f"{100 * row['hidden_of_hideable']:.0f} %",
                       f"{mean:.1f} % ({low:.1f} to {high:.1f})"]
        rows.append([row["case"], row["variant"], *figures, overlap_verdict(row)])
    if not rows:
        return []
    return ["## Training overlap, 80 MB of gradients, n = 2", "",
            "Bars: at 1 Gbit/s, 95 % of the hideable time (the smaller of backward pass and "
            "communication) is hidden; on one host with registered gradients, the upper end of the "
            "95 % interval of the added time is at most 3 %.", ""] + table(
        ["case", "variant", "compute", "communication", "exposed", "hidden of hideable",
         "added to a step (95 %)", "verdict"], rows)


# ---- the table -----------------------------------------------------------------------------------


def count_text(checks):
    judged = [check for check in checks if check.met is not None]
    return f"{sum(check.met for check in judged)} of {len(judged)}" if judged else "-"


def case_verdict(checks):
    judged = [check for check in checks if check.met is not None]
    if not judged:
        return "not measured"
    if all(check.met for check in judged):
        return "met" + (" (noisy)" if any(map(is_noisy, judged)) else "")
    if all(check.met for check in judged if not check.cold) and any(c.cold for c in judged):
        return "warm only"
    return "short"


def worst_text(checks):
    judged = [check for check in checks if check.ratio is not None]
    if not judged:
        return "-"
    worst = min(judged, key=lambda check: check.ratio / check.bar)
    return (f"{ratio_text(worst)}: {worst.place}, {size_text(worst.bytes)}"
            f"{', cold' if worst.cold else ''}, {worst.other['name']}")


def cases_of(figures, report):
    word = report["settings"].get("collective", "allreduce")
    return bars.cases(figures) if word == "allreduce" else bars.moves(figures, word)


def summary_lines(cases):
    rows = [[case.title, case.bar, worst_text(case.checks),
             count_text([check for check in case.checks if not check.cold]),
             count_text([check for check in case.checks if check.cold]),
             case_verdict(case.checks)] for case in cases]
    rows.append(["steady state", "no control message, no allocation, no needless system call", "-",
                 "-", "-", "held by tests, not measured here"])
    return ["## Cases", ""] + table(
        ["case", "at least", "worst of it", "warm met", "cold met", "verdict"], rows)


def check_lines(cases):
    lines = ["## Checks", "", "Times are medians over launches of the mean of calls that follow each "
             "other; of processor time, of one rank. ± is the distance of the quartiles of launches.",
             ""]
    for case in cases:
        rows = [[check.place, size_text(check.bytes), "cold" if check.cold else "warm",
                 figure_text(check.ours), check.other["name"], figure_text(check.other),
                 ratio_text(check), bar_text(check), verdict(check)]
                for check in case.checks if check.ours and check.other]
        if rows:
            lines += [f"### {case.title}: {case.bar}", ""] + table(
                ["place", "size", "buffers", "ours", "beside", "its time", "ratio", "bar",
                 "verdict"], rows)
    return lines


def figure_text(figure):
    spread = "" if figure["spread"] is None else f" ±{100 * figure['spread']:.0f} %"
    return time_text(figure["median_ns"]) + (spread if figure["spread"] != 0 else "")


def crossing_rows(figures, name):
    """Of each algorithm its fastest variant, with warm buffers, at the largest size of a place."""
    place = figures.places[name]
    size = figures.sizes(name)[-1]
    best = {}
    for variant in figures.variants:
        algorithm = crossings.algorithm_of(variant)
        figure = figures.figure(name, variant, size, False)
        if algorithm and figure:
            key = (figures.variants[variant]["ours"], algorithm)
            best[key] = min(best.get(key, figure), figure, key=lambda one: one["median_ns"])
    for (_, algorithm), figure in sorted(best.items(), key=lambda item: item[1]["median_ns"]):
        limit_ns = figures.limit_ns(name, size, algorithm)
        share = crossings.crossings(crossings.hosts_of(place), algorithm)
        yield [name, size_text(size), algorithm, f"{share:.2f}x", time_text(limit_ns),
               figure["name"], figure_text(figure), f"{100 * limit_ns / figure['median_ns']:.1f} %"]


def crossing_lines(figures):
    rows = []
    for name in figures.measured_places():
        place = figures.places[name]
        if place["hosts"] > 1 and place["per_host"] > 1 and place["mbit"]:
            rows += crossing_rows(figures, name)
    if not rows:
        return []
    return ["## Across the link of a host", "", "What an algorithm sends there, of the payload, "
            "depends on which ranks share a host; what it takes then, at the least, is its limit.",
            ""] + table(["place", "size", "algorithm", "crosses", "its limit", "fastest variant",
                         "its time", "of its limit"], rows)


def place_lines(figures, report):
    lines = ["## All medians", ""]
    for place in figures.measured_places():
        sizes = figures.sizes(place)
        for cold in (False, True):
            rows = []
            for name in figures.variants:
                found = [figures.figure(place, name, size, cold) for size in sizes]
                if any(found):
                    rows.append([name] + [time_text(f["median_ns"]) if f else "-" for f in found]
                                + [str(max(f["launches"] for f in found if f))])
            if rows:
                title = figures.places[place]["title"]
                lines += [f"### {place} ({title}), {'cold' if cold else 'warm'}", ""] + table(
                    ["variant", *map(size_text, sizes), "launches"], rows)
    return lines + failure_lines(report)


def failure_lines(report):
    failed = {}
    for launch in report["launches"]:
        if launch["error"]:
            key = (launch["variant"], launch["error"])
            failed.setdefault(key, []).append(f"{launch['place']} round {launch['round'] + 1}")
    if not failed:
        return []
    rows = [[name, ", ".join(where[:6]) + (", ..." if len(where) > 6 else ""),
             error.replace("|", "/")] for (name, error), where in failed.items()]
    return ["## What did not run", ""] + table(["variant", "where", "why"], rows)


def noise_text(report):
    shares = [launch["foreign_share"] for launch in report["launches"]
              if launch.get("foreign_share") is not None]
    stolen = [launch["steal_share"] for launch in report["launches"] if "steal_share" in launch]
    if not shares:
        return "nothing was measured"
    count = len(left_out(report))
    noted = (f"; {count} launches beside which it was more than {100 * samples.DISTURBED:.0f} %, or whose "
             "cores were far apart, are left out" if count else "")
    return (f"beside the launches, other processes used {100 * samples.median(shares):.0f} % of the "
            f"cores (at most {100 * max(shares):.0f} %), and the host of this machine took "
            f"{100 * samples.median(stolen):.0f} % (at most {100 * max(stolen):.0f} %){noted}")


def distance_text(report):
    """Of its cores from each other; a virtual machine is moved about while it runs."""
    lines = [launch["line_ns"] for launch in report["launches"] if launch.get("line_ns")]
    if not lines:
        return ""
    text = (f" Before each launch a cache line went from one core to another and back in "
            f"{samples.median(lines):.0f} ns ({min(lines)} to {max(lines)}).")
    nearest = samples.nearest_ns(report["launches"])
    far = sum(samples.is_far(launch, nearest) for launch in report["launches"])
    if far:
        text += (f" In {far} of {len(lines)} launches it took more than twice the lower quartile: the host of this "
                 "machine had moved its cores apart, and what goes from one to the other took longer.")
    return text


def head_lines(report):
    machine, settings = report["machine"], report["settings"]
    versions = ", ".join(sorted(report["versions"].values()))
    ended = ", interrupted" if report["interrupted"] else ""
    return [
        "# Beside the peers", "",
        f"{report['started']} to {report['ended']}{ended}, commit {report['commit']}: "
        f"`{report['command']}`", "",
        f"{machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_bytes'] / 2 ** 30:.0f} GiB, Linux {machine['kernel']}; {versions}.", "",
        f"float32, sums in place, {settings['seconds']:g} s for each cell of a launch, ranks not "
        f"pinned, order of launches from seed {settings['seed']}. Noise: {noise_text(report)}."
        f"{distance_text(report)}", "",
    ]


def markdown(report):
    figures = Figures(report)
    cases = list(cases_of(figures, report))
    return "\n".join(head_lines(report) + summary_lines(cases) + overlap_lines(report)
                     + crossing_lines(figures) + check_lines(cases) + place_lines(figures, report))


def summary(report):
    """What is printed at the end of a run: one line for each case that was measured."""
    for case in cases_of(Figures(report), report):
        if any(check.met is not None for check in case.checks):
            yield f"{case_verdict(case.checks):<13} {case.title} ({worst_text(case.checks)})"
    for row in overlap_rows(report):
        if overlap_verdict(row):
            yield f"{overlap_verdict(row):<13} {row['case']}, {row['variant']}"


def with_plots():
    """A Python that has matplotlib: ours, or the system's."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import matplotlib"], capture_output=True,
                          check=False).returncode == 0:
            return python
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("report", metavar="REPORT.json")
    parser.add_argument("--no-plots", action="store_true")
    arguments = parser.parse_args()
    with open(arguments.report, encoding="utf-8") as file:
        report = json.load(file)
    path = os.path.join(os.path.dirname(os.path.abspath(arguments.report)), "table.md")
    with open(path, "w", encoding="utf-8") as file:
        file.write(markdown(report))
    for line in summary(report):
        print(line)
    print(path)
    if arguments.no_plots:
        return
    python = with_plots()
    if not python:
        sys.exit("report.py: no plots without matplotlib (python3-matplotlib)")
    subprocess.run([python, os.path.join(HERE, "plots.py"), arguments.report], check=True)


if __name__ == "__main__":
    main()
