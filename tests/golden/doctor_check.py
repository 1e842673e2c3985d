#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether reports of `lockstep doctor --json` are complete and true.

doctor_check.py machine docs/cli.md REPORT           every documented member, nothing else
doctor_check.py finding REPORT NAME STATUS VALUE     one finding; VALUE '*' is any
doctor_check.py job REPORT API NAME STATUS           a job says what the coordinator's API says
"""

import json
import re
import sys

NUMBERS = ("cores", "line", "memcpy", "tcp_latency", "tcp_bandwidth")
STATUSES = ("ok", "warning", "missing")


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def finding_of(report, name):
    found = [finding for finding in report["findings"] if finding["name"] == name]
    assert len(found) == 1, f"{name}: {found}"
    return found[0]


def documented(path):
    """The first column of the two tables of docs/cli.md: findings, and members."""
    with open(path, encoding="utf-8") as file:
        text = file.read().split("## lockstep doctor", 1)[1].split("\n## ", 1)[0]
    return [re.findall(r"^\| `(\w+)`", table, re.M)
            for table in re.split(r"\n\| (?:finding|member) \|", text)[1:]]


def check_machine(docs, path):
    report = load(path)
    findings, members = documented(docs)
    assert list(report) == members, list(report)
    assert [finding["name"] for finding in report["findings"]] == findings[:-1]
    assert findings[-1] == "coordinator" and report["jobs"] == []
    for finding in report["findings"]:
        assert list(finding) == ["name", "value", "unit", "status", "meaning"], finding
        assert finding["status"] in STATUSES and len(finding["meaning"]) > 10, finding
    for name in NUMBERS:
        finding = finding_of(report, name)
        assert finding["value"] > 0 and finding["unit"], finding
    worst = max(STATUSES.index(finding["status"]) for finding in report["findings"])
    assert report["status"] == STATUSES[worst], report


def check_finding(path, name, status, value):
    finding = finding_of(load(path), name)
    assert finding["status"] == status, finding
    assert value in ("*", str(finding["value"])), finding


def check_job(path, api, name, status):
    report, said = load(path), load(api)
    job = [job for job in report["jobs"] if job["name"] == name][0]
    assert job["status"] == status, job
    for key in ("state", "world_size", "hosts"):
        assert job[key] == said[key], (key, job, said)
    tuning, theirs = job["tuning"], said["tuning"]
    if theirs is None:
        assert tuning is None, tuning
        return
    ours = [{"most_bytes": each["most_bytes"], "algorithm": each["reduction"]}
            for each in tuning.pop("algorithms")]
    assert ours == theirs.pop("algorithms"), (ours, said)
    assert tuning == theirs, (tuning, theirs)
    assert ours[-1]["most_bytes"] is None and all(each["most_bytes"] for each in ours[:-1]), ours
    if job["hosts"] == 1 and tuning["wish"] == "auto" and name == "memory":
        shared = finding_of(report, "shared_memory")["value"] == "yes"
        assert tuning["shares"] == shared, "what the doctor tried is not what ranks do"


if __name__ == "__main__":
    {"machine": check_machine, "finding": check_finding, "job": check_job}[sys.argv[1]](
        *sys.argv[2:])
