# SPDX-License-Identifier: Apache-2.0
"""From the files of ranks to figures. Pure: no processes, no clock."""

import json
import math

DONE = '{"done":true}'  # The last line of a rank that has measured everything.
DISTURBED = 0.08  # Share of the cores that others use beside a launch.
FAR = 2  # A cache line takes so many times as long as in the near launches of a run.


def quantile(values, share):
    """By linear interpolation, as numpy's default."""
    values = sorted(values)
    at = share * (len(values) - 1)
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def median(values):
    return quantile(values, 0.5)


def spread(values):
    """Between the quartiles, as a share of the median."""
    if len(values) < 2:
        return None
    return (quantile(values, 0.75) - quantile(values, 0.25)) / median(values)


def is_disturbed(launch):
    """True if other processes used so much of the cores that the launch says little of its variant."""
    return (launch.get("foreign_share") or 0) > DISTURBED


def nearest_ns(launches):
    """The time of a cache line between two near cores; None: not known. It is the lower quartile over
    the launches: the least one may be of a moment in which both threads were on one core."""
    lines = [launch["line_ns"] for launch in launches if launch.get("line_ns")]
    return quantile(lines, 0.25) if lines else None


def is_far(launch, nearest):
    """True if the host of the machine had moved its cores apart before the launch."""
    return bool(nearest and launch.get("line_ns")) and launch["line_ns"] > FAR * nearest


def kept(launches, key):
    """The launches that figures are made of, in their order. key: (place, variant) of a launch.

    Of each variant in a place: the launches that were neither disturbed nor far, else those that
    were not disturbed, else those that were not far, else all.
    """
    nearest = nearest_ns(launches)
    groups = {}
    for launch in launches:
        groups.setdefault(key(launch), []).append(launch)
    chosen = []
    for group in groups.values():
        def rank(launch):
            return 2 * is_disturbed(launch) + is_far(launch, nearest)
        best = min(map(rank, group))
        chosen += [id(launch) for launch in group if rank(launch) == best]
    chosen = set(chosen)
    return [launch for launch in launches if id(launch) in chosen]


def read_ranks(texts):
    """(version, cells) of one launch, from the text of each rank's file.

    The figure of a cell is the mean of calls that follow each other, on the rank where it is largest.
    Percentiles are over samples, of each its slowest rank. A cell that some rank has not written, because
    the launch was ended, is left out.
    """
    ranks = [[json.loads(line) for line in text.splitlines()
              if line.endswith("}") and line != DONE] for text in texts]
    if not all(ranks):
        raise ValueError("a rank has written nothing")
    version = ranks[0][0]["version"]
    cells = []
    for records in zip(*(lines[1:] for lines in ranks)):
        first = records[0]
        assert all(r["bytes"] == first["bytes"] and r["cold"] == first["cold"] for r in records)
        slowest = [max(times) for times in zip(*(r["samples_ns"] for r in records))]
        cells.append({
            "bytes": first["bytes"],
            "cold": first["cold"],
            "iterations": first["iterations"],
            "batch": first["batch"],
            "mean_ns": max(r["wall_ns"] / r["iterations"] for r in records),
            "p50_ns": median(slowest),
            "p99_ns": quantile(slowest, 0.99),
            # Mean over the ranks.
            "cpu_ns": sum(r["cpu_ns"] / r["iterations"] for r in records) / len(records),
        })
    return version, cells


def mean_interval(values):
    """(mean, lower, upper) of 95 %, of independent values: by Student's t."""
    count = len(values)
    mean = sum(values) / count
    if count < 3:
        return mean, -math.inf, math.inf
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    free = count - 1  # The normal quantile and its expansion: within 3 % of Student's t.
    student = 1.96 + 2.372 / free + 2.82 / free ** 2 + 2.56 / free ** 3
    half = student * deviation / math.sqrt(count)
    return mean, mean - half, mean + half


def overlap_of(series, backward_share=1.0):
    """What a step with communication costs, from series that were measured in turn."""
    compute = median(series["compute"])
    communication = median(series["communication"])
    added = [step - alone for step, alone in zip(series["step"], series["compute"])]
    hideable = min(compute * backward_share, communication)
    mean, lower, upper = mean_interval([value / compute for value in added])
    return {
        "compute_us": compute,
        "communication_us": communication,
        "step_us": median(series["step"]),
        "exposed_us": median(added),
        "hideable_us": hideable,
        "hidden_of_hideable": (communication - median(added)) / hideable,
        "added_share": mean,
        "added_share_lower": lower,
        "added_share_upper": upper,
        "iterations": len(added),
    }


def slowest_of(per_rank):
    """Of the series of each rank, the slowest rank at each iteration."""
    return {name: [max(times) for times in zip(*(ranks[name] for ranks in per_rank))]
            for name in per_rank[0]}
