# SPDX-License-Identifier: Apache-2.0
"""How much of the communication a backward pass hides: ours and PyTorch's DDP, in turn.

Ours is `lockstep bench --mode step`, whose ranks are started here, in the hosts of a place; PyTorch's is
pytorch.py. Both have 80 MB of gradients of a transformer. Where the links are slow, the backward pass is
long enough to hide behind; on one host, the question is what communication adds to a step.
"""

import csv
import json
import os
import subprocess
import time

import machine
import peers
import places
import samples

BYTES = 80_000_000
BACKWARD_MS = {"overlap-1g": 450, "overlap-host": 300}
PLACE = {"overlap-1g": "1g-2", "overlap-host": "host-2"}
# Times as long as the others: its bar is an interval of a mean, which takes fifty pairs and more.
DECIDES = {("overlap-host", "lockstep registered"): 4}


def variants(name):
    """(variant, options of its program) in a fixed order."""
    def ours(memory):
        return peers.Variant(f"lockstep {memory}", "Lockstep", "lockstep", "both",
                             (("memory", memory),))

    def torch(megabytes):
        return peers.Variant(f"pytorch ddp {megabytes} MB", "PyTorch DDP", "pytorch", "tcp",
                             (("bucket_mb", str(megabytes)),))

    both = [ours("registered"), ours("private")] if name == "overlap-host" else [ours("registered")]
    return both + [torch(25), torch(5)]


def start_ours(launch, name, seconds):
    memory = dict(launch.variant.settings)["memory"]
    raw = os.path.join(launch.folder, "raw.csv")
    command = [launch.programs.lockstep, "bench-worker", "--ranks", str(launch.place.ranks), "--mode",
               "step", "--sizes", str(BYTES), "--backward-ms", str(BACKWARD_MS[name]), "--memory",
               memory, "--warmup", "4", "--raw", raw, "--json",
               "--iterations", str(max(5, int(seconds * 1000 / (3 * BACKWARD_MS[name]))))]
    launch.spawn_ranks(command, launch.coordinator())


def start_torch(launch, name, seconds):
    bucket = dict(launch.variant.settings)["bucket_mb"]
    launch.start_pytorch(["--step-ms", str(1.5 * BACKWARD_MS[name]), "--bucket-mb", bucket, "--seconds",
                          str(seconds), "--out", os.path.join(launch.folder, "rank")])


def read_ours(launch):
    per_rank = [{} for _ in range(launch.place.ranks)]
    with open(os.path.join(launch.folder, "raw.csv"), encoding="utf-8") as file:
        for row in csv.DictReader(file):
            per_rank[int(row["rank"])].setdefault(row["series"], []).append(float(row["us"]))
    return samples.slowest_of(per_rank), 1.0


def read_torch(launch):
    """DDP hides behind the backward pass only, so the share of it counts."""
    per_rank = []
    for rank in range(launch.place.ranks):
        with open(os.path.join(launch.folder, f"rank.{rank}.jsonl"), encoding="utf-8") as file:
            per_rank.append(json.loads(file.read().splitlines()[1])["series_us"])
    series = samples.slowest_of(per_rank)
    backward = 1 - samples.median(series["forward"]) / samples.median(series["compute"])
    return series, backward


def launch_one(run, hosts, name, variant, turn, seconds):
    missing = run.programs.missing(variant.kind)
    record = {"case": name, "place": hosts.place.name, "variant": variant.name, "round": turn,
              "ours": variant.ours, "error": missing}
    if missing:
        return record
    load = machine.Load(run.cores, False)
    launch = peers.Launch(run.programs, hosts, variant, run.folder())
    try:
        (start_ours if variant.ours else start_torch)(launch, name, seconds)
        record["error"] = launch.wait(2 * run.arguments.timeout + 6 * seconds)
        if not record["error"]:
            series, backward = (read_ours if variant.ours else read_torch)(launch)
            record.update(samples.overlap_of(series, backward), series_us=series)
    except (OSError, ValueError, KeyError, IndexError, RuntimeError,
            subprocess.SubprocessError) as error:
        record["error"] = record["error"] or f"no figures: {error!r}"
    finally:
        machine.end_others(hosts.pids())
        launch.close()
    record.update(load.end())
    return record


def measure(run, name, seconds):
    """Rounds of all variants until the time is over."""
    every = {"lockstep registered", "lockstep private", "pytorch ddp 25 MB", "pytorch ddp 5 MB"}
    chosen = run.chosen(every, [variant.name for variant in variants(name)])
    deadline = time.monotonic() + seconds
    shares = sum(DECIDES.get((name, variant.name), 1) for variant in variants(name))
    cell = max(4.0, seconds / (3 * shares))
    with places.open_place(places.PLACES[PLACE[name]], run.folder()) as hosts:
        for turn in range(run.arguments.rounds):
            began = time.monotonic()
            for variant in run.random.sample(variants(name), len(variants(name))):
                if variant.name not in chosen:
                    continue
                times = DECIDES.get((name, variant.name), 1)
                record = launch_one(run, hosts, name, variant, turn, times * cell)
                run.report["overlap"].append(record)
                said = record["error"] or (
                    f"compute {record['compute_us'] / 1e3:.0f} ms, communication "
                    f"{record['communication_us'] / 1e3:.0f} ms, exposed "
                    f"{record['exposed_us'] / 1e3:.0f} ms")
                print(f"{time.monotonic() - run.began:6.0f} s  {name} round {turn + 1}  "
                      f"{variant.name:<34} {said}", flush=True)
            if 2 * time.monotonic() - began > deadline:
                return
