#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether a report of `lockstep bench --json` is complete and agrees with itself and its samples.

bench_check.py docs/cli.md report.json samples.csv
"""

import csv
import json
import math
import re
import sys

STEP_ONLY = {"backward_ms", "buckets", "tensors", "compute_us", "communication_us", "exposed_us",
             "hidden_share", "waited_us"}


def documented(path):
    """The members that the two tables of docs/cli.md name: of the report, and of a result."""
    with open(path, encoding="utf-8") as file:
        text = file.read().split("## lockstep bench", 1)[1].split("\n## ", 1)[0]
    tables = re.split(r"\n\| member \|", text)[1:]
    return [set(re.findall(r"`(\w+)`", " ".join(
        line.split("|")[1] for line in table.split("\n")[2:] if line.startswith("|")
    ))) for table in tables]


def close(a, b):
    return math.isclose(a, b, rel_tol=1e-4)


def samples_of(path):
    """{(dtype, bytes, series): {iteration: [us of each rank]}}"""
    samples = {}
    with open(path, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key = (row["dtype"], int(row["bytes"]), row["series"])
            times = samples.setdefault(key, {}).setdefault(int(row["iteration"]), [])
            assert int(row["rank"]) == len(times), row
            times.append(float(row["us"]))
    return samples


def check_times(report, result, samples):
    series = {"blocking": "allreduce", "async": "batch", "step": "step"}[report["mode"]]
    times = samples[(result["dtype"], result["bytes"], series)]
    assert len(times) == result["iterations"], "samples are missing"
    assert all(len(ranks) == report["ranks"] for ranks in times.values()), "ranks are missing"
    slowest = sorted(max(ranks) for ranks in times.values())
    assert close(slowest[0], result["min_us"]), "min_us is not the smallest maximum over ranks"
    for percent in (50, 90, 99):
        wanted = slowest[math.ceil(percent / 100 * len(slowest)) - 1]
        assert close(wanted, result[f"p{percent}_us"]), f"p{percent}_us"
    assert slowest[0] > 0 and result["iqr_us"] >= 0
    assert math.isclose(sum(slowest) / len(slowest), result["mean_us"], rel_tol=1e-4), "mean_us"


def check_rates(report, result):
    step = report["mode"] == "step"
    time_us = result["communication_us"] if step else result["p50_us"]
    payload = result["bytes"] * report["in_flight"]
    assert close(result["algorithm_gb_per_s"], payload / time_us / 1e3), "algorithm_gb_per_s"
    factor = 2 * (report["ranks"] - 1) / report["ranks"]
    assert close(result["bus_gb_per_s"], factor * result["algorithm_gb_per_s"]), "bus_gb_per_s"
    for limit in ("memcpy", "tcp"):
        share = result["bus_gb_per_s"] / report["limits"][limit + "_gb_per_s"]
        assert close(result[limit + "_share"], share), limit
    assert result["cpu_s_per_gb"] > 0
    assert (report["cycles_missing"] or "perf_event_open: ").startswith("perf_event_open: ")
    assert (result["cycles_per_byte"] is None) == (report["cycles_missing"] is not None)


def check_step(result, backward_ms):
    for key in ("tensors", "compute_us", "communication_us"):
        assert result[key] > 0, key
    assert result["waited_us"] >= 0
    # Work on a core takes no less than what was calibrated, but for a clock that went up since.
    assert result["compute_us"] > 0.5 * backward_ms * 1000, "the backward pass was not done"
    share = result["hidden_share"]
    wanted = 1 - result["exposed_us"] / result["communication_us"]
    assert share is None or abs(share - wanted) < 1e-3 * max(1, abs(wanted)), "hidden_share"


def main():
    members, result_members = documented(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as file:
        report = json.load(file)
    samples = samples_of(sys.argv[3])
    step = report["mode"] == "step"
    left_out = set() if step else STEP_ONLY
    assert set(report) == members - left_out, set(report) ^ (members - left_out)
    assert report["results"], "no results"
    limits = dict(report["limits"])
    line_ns = limits.pop("line_ns")
    assert line_ns > 1 if report["cores"] > 1 else line_ns is None, "line_ns"
    assert all(limit > 0 for limit in limits.values()), "a limit is missing"
    for result in report["results"]:
        wanted = result_members - left_out
        assert set(result) == wanted, set(result) ^ wanted
        check_times(report, result, samples)
        check_rates(report, result)
        if step:
            check_step(result, report["backward_ms"])


if __name__ == "__main__":
    main()
