#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether what `lockstep stalls --json` said names the right ranks, and nobody else.

stall_check.py JSON [never | nobody[:says=TEXT...] | RANK:KIND[,KIND...][:TEXT...]...]

Each further argument is a culprit: its rank, what kinds of it are right, and texts that what is
known of it has to hold. Of these `missing=A,B` are the names of all gradients that are missing,
`pid=N` is its process, `host=NAME` its host (else this one), `late=MS` how long after its bound it
may be named at most, and `says=TEXT` is in the sentence. Without any culprit nothing may stand
still; `never` is that nothing has stood still before, either. `nobody` is a stall for which no rank
and no link is blamed.
"""

import json
import os
import socket
import sys


def check_culprit(stall, culprit, kinds, texts):
    assert culprit["kind"] in kinds.split(","), culprit
    hosts = [text[len("host="):] for text in texts if text.startswith("host=")]
    assert culprit["host"] == (hosts or [socket.gethostname()])[0], culprit
    assert os.path.exists(f"/proc/{culprit['pid']}"), culprit
    assert f"rank {culprit['rank']} " in stall["sentence"], stall["sentence"]
    assert f"pid {culprit['pid']}" in stall["sentence"], stall["sentence"]
    assert not culprit["mark"], culprit
    for text in texts:
        if text.startswith("missing="):
            assert sorted(culprit["missing"]) == text[len("missing="):].split(","), culprit
        elif text.startswith("pid="):
            assert culprit["pid"] == int(text[len("pid="):]), culprit
        elif text.startswith("says="):
            assert text[len("says="):] in stall["sentence"], stall["sentence"]
        elif text.startswith("host="):
            continue
        elif text.startswith("late="):
            late_ms = culprit["age_ms"] - culprit["bound_ms"]
            assert late_ms <= int(text[len("late="):]), culprit
        else:
            assert text in json.dumps(culprit), (text, culprit)


def check_nobody(stall, texts):
    assert stall["kind"] == "unknown" and not stall["culprits"] and not stall["edges"], stall
    assert "network" not in stall["sentence"], stall["sentence"]
    for text in texts:
        assert text in stall["sentence"], stall["sentence"]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        stalls = json.load(file)["stalls"]
    active = [stall for stall in stalls if stall["active"]]
    if sys.argv[2:] in ([], ["never"]):
        assert not (stalls if sys.argv[2:] else active), stalls
        return
    assert len(active) == 1, stalls
    if sys.argv[2].startswith("nobody"):
        check_nobody(active[0], sys.argv[2].split(":says=")[1:])
        return
    wanted = [argument.split(":") for argument in sys.argv[2:]]
    culprits = {culprit["rank"]: culprit for culprit in active[0]["culprits"]}
    assert sorted(culprits) == sorted(int(rank) for rank, *_ in wanted), active[0]
    assert "\n" not in active[0]["sentence"], active[0]
    for rank, kinds, *texts in wanted:
        check_culprit(active[0], culprits[int(rank)], kinds, texts)


main()
