#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the library beside its peers, in one interleaved run, and writes a report.

    bench/peers/run.py                    all places, at most 25 minutes
    bench/peers/run.py --quick            the most telling ones, at most 6 minutes
    bench/peers/run.py --collective all_to_all    another collective than sums, on one host and two
    bench/peers/run.py --only 1g,gloo     places and variants whose names contain one of these words
                                          (words of places and of variants each narrow their kind)

`make bench-peers` builds everything first. A place is made of namespaces (places.py) and lives until
its last launch; a round launches every variant of it once (peers.py), in a new order, and a launch
measures every size. Rounds go on until the time of the place is over. Whatever a launch leaves behind
is killed, and a launch that hangs is killed after a time and reported. Everything that exists only for
a run lives in namespaces that end with this process, however it ends.
"""

import argparse
import dataclasses
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import machine
import overlap
import peers
import places
import samples

ROOT = os.path.dirname(os.path.dirname(peers.HERE))
K, M = 1024, 1024 * 1024
SIZES = {
    "host": (4, 4 * K, 32 * K, 256 * K, M, 4 * M, 25 * M, 100 * M),
    "veth": (4, 32 * K, 256 * K, M, 4 * M, 25 * M, 100 * M),
    "10g": (4, 32 * K, M, 4 * M, 25 * M),
    "1g": (4, 32 * K, 256 * K, 25 * M),
    "2x2": (4, 32 * K, M, 25 * M),
    "hogs": (4, 32 * K, M, 25 * M),
}
# Shares of the time. A quick run leaves out places that have no share.
WEIGHTS = {"host-2": 4, "host-4": 5, "veth-2": 2, "veth-4": 2, "10g-2": 1.5, "10g-4": 1.5, "1g-2": 1.5,
           "1g-4": 2, "1g-8": 2, "2x2": 1.2,
           "2x2-interleaved": 1, "2x2-veth": 0.8, "hogs-2": 1.5, "overlap-host": 3, "overlap-1g": 2}
QUICK = {"host-2": 3, "host-4": 3, "veth-2": 1, "1g-2": 1, "1g-4": 1.5, "2x2": 0.8, "2x2-interleaved": 0.8,
         "overlap-host": 1,
         "overlap-1g": 1}
# Other collectives than sums; a size is that of the larger buffer.
MOVES = ("reduce_scatter", "all_gather", "all_to_all")
MOVE_SIZES = (32 * K, M, 25 * M)
MOVE_WEIGHTS = {"host-2": 1, "host-4": 1, "veth-2": 1}
QUICK_SIZES = (4, 32 * K, M, 25 * M, 100 * M)
AGAIN = 2  # How often a launch is repeated that others have disturbed.
PAUSE_S = 1.0  # Before it is repeated.
PRUNE = 1.25  # A forced setting that nowhere comes so close to the best of its family is dropped.


# ---- one launch ----------------------------------------------------------------------------------


def write_raw(path, texts):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for text in texts:
            file.write(text)


def rank_texts(folder, ranks):
    texts = []
    for rank in range(ranks):
        with open(os.path.join(folder, f"rank.{rank}.jsonl"), encoding="utf-8") as file:
            texts.append(file.read())
    return texts


class Run:
    def __init__(self, arguments):
        self.arguments = arguments
        self.programs = peers.Programs(arguments.build)
        self.cores = len(os.sched_getaffinity(0))
        self.random = random.Random(arguments.seed)
        self.scratch = tempfile.mkdtemp(prefix="run-", dir=arguments.report)
        self.began = time.monotonic()
        self.report = {"schema": 1, "launches": [], "overlap": [], "interrupted": False}
        self.versions = {}

    def folder(self):
        return tempfile.mkdtemp(dir=self.scratch)

    def chosen(self, kind, names):
        """What --only leaves of these names; words that fit none of a kind do not narrow it."""
        words = [word for word in self.arguments.only if any(word in name for name in kind)]
        return [name for name in names if not words or any(word in name for word in words)]

    def variants(self, place):
        found = peers.variants(place, self.cores)
        if self.arguments.quick:
            found = [variant for variant in found if variant.essential]
        if self.arguments.collective in MOVES:  # Forced algorithms are those of sums.
            found = [variant for variant in found
                     if variant.kind in ("lockstep", "openmpi", "mpich") and "/" not in variant.name]
        every = {variant.name for one in places.PLACES.values()
                 for variant in peers.variants(one, self.cores)}
        names = self.chosen(every, [variant.name for variant in found])
        return [variant for variant in found if variant.name in names]

    def sizes(self, place):
        sizes = SIZES[place.name.split("-")[0]]
        if self.arguments.quick:
            sizes = [size for size in sizes if size in QUICK_SIZES]
        if self.arguments.collective in MOVES:
            sizes = MOVE_SIZES
        if self.arguments.sizes:
            sizes = self.arguments.sizes
        return sizes

    def launch(self, hosts, variant, turn):
        place = hosts.place
        missing = self.programs.missing(variant.kind)
        record = {"place": place.name, "variant": variant.name, "round": turn, "error": missing,
                  "cells": []}
        if missing:
            return record
        arguments = ["--sizes", ",".join(map(str, self.sizes(place))), "--dtype", "float32",
                     "--seconds", str(self.arguments.seconds), "--warm"]
        if self.arguments.collective in MOVES:
            arguments += ["--collective", self.arguments.collective]
        if not variant.warm_only:
            arguments.append("--cold")
        if not place.hogs:
            record["line_ns"] = machine.line_ns(os.path.join(self.arguments.build, "peers", "line"))
        load = machine.Load(self.cores, place.hogs)
        launch = peers.Launch(self.programs, hosts, variant, self.folder())
        try:
            launch.start(arguments)
            record["error"] = launch.wait(self.arguments.timeout)
            record["command"] = " ".join(launch.processes[0].args[launch.processes[0].args.index("--") + 1:])
            self.read(record, launch)
        except (OSError, ValueError, RuntimeError) as error:
            record["error"] = record["error"] or f"no figures: {error}"
        finally:
            machine.end_others(hosts.pids())
            launch.close()
        record.update(load.end())
        shutil.rmtree(launch.folder, ignore_errors=True)
        return record

    def read(self, record, launch):
        texts = rank_texts(launch.folder, launch.place.ranks)
        version, record["cells"] = samples.read_ranks(texts)
        self.versions[launch.variant.kind] = version
        name = f"{record['place']}-{record['variant']}-{record['round']}".replace("/", "-")
        record["raw"] = os.path.join("raw", name.replace(" ", "-") + ".jsonl.gz")
        write_raw(os.path.join(self.arguments.report, record["raw"]), texts)

    # ---- one place -------------------------------------------------------------------------------

    def measure(self, place, seconds):
        variants = self.variants(place)
        deadline = time.monotonic() + seconds
        folder = self.folder()
        with places.open_place(place, folder) as hosts:
            for turn in range(self.arguments.rounds):
                began = time.monotonic()
                order = self.random.sample(variants, len(variants))
                if turn == 0:  # The required cells come first, because the time may be short.
                    order.sort(key=lambda variant: (not variant.ours, not variant.essential))
                for variant in order:
                    over = time.monotonic() - deadline
                    late = over > (max(seconds / 2, 30) if turn == 0 and variant.essential else 0)
                    if (variant.ours or not late) and turn < variant.rounds:
                        self.launch_quietly(hosts, variant, turn, deadline)
                variants = self.prune(place, variants)
                took = (time.monotonic() - began) * 0.7  # Later rounds have fewer variants.
                if time.monotonic() + took > deadline:
                    return

    def launch_quietly(self, hosts, variant, turn, deadline):
        """One launch, and another one while others disturbed it and there is time."""
        for again in range(1 + AGAIN):
            record = self.launch(hosts, variant, turn)
            self.tell(hosts.place, turn, variant, record)
            if not samples.is_disturbed(record) or time.monotonic() > deadline or again == AGAIN:
                return
            time.sleep(PAUSE_S)

    def tell(self, place, turn, variant, record):
        self.report["launches"].append(record)
        word = record["error"] or " ".join(
            f"{cell['mean_ns'] / 1e3:.4g}" for cell in record["cells"] if not cell["cold"])
        if samples.is_disturbed(record):
            word += f" (beside others: {100 * record['foreign_share']:.0f} % of the cores)"
        clock = time.monotonic() - self.began
        print(f"{clock:6.0f} s  {place.name} round {turn + 1}  {variant.name:<34} {word}", flush=True)

    def prune(self, place, variants):
        """Forced settings that are of no use here; those that failed or are not installed, too."""
        times = {}
        for record in self.report["launches"]:
            if record["place"] == place.name:
                for cell in record["cells"]:
                    key = (record["variant"], cell["bytes"], cell["cold"])
                    times.setdefault(key, []).append(cell["mean_ns"])
        best = {}
        family = {variant.name: variant.family for variant in variants}
        for (name, size, cold), values in times.items():
            key = (family.get(name), size, cold)
            best[key] = min(best.get(key, float("inf")), min(values))

        def useful(variant):
            own = {key[1:]: min(values) for key, values in times.items() if key[0] == variant.name}
            return any(value <= PRUNE * best[(variant.family, *key)] for key, value in own.items()) \
                or (variant.ours and bool(own))

        return [variant for variant in variants if useful(variant)]

    # ---- all of it -------------------------------------------------------------------------------

    def plan(self):
        weights = QUICK if self.arguments.quick else WEIGHTS
        if self.arguments.collective in MOVES:
            weights = MOVE_WEIGHTS
        names = self.chosen(set(WEIGHTS), list(weights))
        return {name: weights[name] for name in names}

    def everything(self):
        plan = self.plan()
        left = dict(plan)
        total = self.arguments.minutes * 60
        for name, weight in plan.items():
            rest = total - (time.monotonic() - self.began)
            seconds = max(0.0, rest) * weight / sum(left.values())
            del left[name]
            if name.startswith("overlap"):
                overlap.measure(self, name, seconds)
            else:
                self.measure(places.PLACES[name], seconds)

    def write(self, started):
        a = self.arguments
        self.report.update({
            "started": started, "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": " ".join(sys.argv), "commit": machine.output_of("git", "-C", ROOT, "describe",
                                                               "--always", "--dirty"),
            "machine": machine.describe(), "versions": self.versions,
            "settings": {"seconds": a.seconds, "rounds": a.rounds, "seed": a.seed,
                         "minutes": a.minutes, "quick": a.quick, "only": a.only,
                         "collective": a.collective,
                         "pinned": False, "dtype": "float32"},
            "places": [dict(dataclasses.asdict(place), ranks=place.ranks,
                            payload_bytes_per_s=place.payload_bytes_per_s)
                       for place in places.PLACES.values()],
            "variants": self.described(),
        })
        path = os.path.join(a.report, "report.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(self.report, file, indent=1)
            file.write("\n")
        shutil.rmtree(self.scratch, ignore_errors=True)
        return path

    def described(self):
        found = {}
        for place in places.PLACES.values():
            for variant in peers.variants(place, self.cores):
                found[variant.name] = {"name": variant.name, "family": variant.family,
                                       "wire": variant.wire, "ours": variant.ours}
        return list(found.values())


# ---- around it -----------------------------------------------------------------------------------


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="few minutes, the most telling cells")
    parser.add_argument("--only", default="", help="words of places and variants, by comma")
    parser.add_argument("--sizes", default="", help="bytes, by comma, instead of each place's own")
    parser.add_argument("--collective", default="allreduce", choices=("allreduce",) + MOVES)
    parser.add_argument("--minutes", type=float, help="for everything (22, with --quick 4.5)")
    parser.add_argument("--seconds", type=float, help="for one cell of one launch (0.12, 0.08)")
    parser.add_argument("--rounds", type=int, default=7, help="at most so many of a place (7)")
    parser.add_argument("--timeout", type=float, default=30, help="seconds of a launch (30)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the order")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--report", help="folder (build/peers-report/DATE-TIME)")
    arguments = parser.parse_args()
    arguments.build = os.path.abspath(arguments.build)
    arguments.only = [word for word in arguments.only.split(",") if word]
    arguments.sizes = [int(size) for size in arguments.sizes.split(",") if size]
    arguments.minutes = arguments.minutes or (4.5 if arguments.quick else 22)
    arguments.seconds = arguments.seconds or (0.08 if arguments.quick else 0.12)
    arguments.report = os.path.abspath(arguments.report or os.path.join(
        arguments.build, "peers-report", time.strftime("%Y%m%d-%H%M%S")))
    return arguments


def enter_namespaces():
    """Starts this program again where all its processes end with it, and its mounts are its own."""
    command = ["unshare", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        command += ["--user", "--map-root-user"]
    os.environ["LOCKSTEP_TEST_PEERS_INSIDE"] = "1"
    try:
        os.execvp(command[0], command + ["--", sys.executable, *sys.argv])
    except OSError as error:
        sys.exit(f"run.py: {error}: util-linux is needed")


def stop(*_):
    raise KeyboardInterrupt


def main():
    arguments = read_arguments()
    if "LOCKSTEP_TEST_PEERS_INSIDE" not in os.environ:
        enter_namespaces()
    os.makedirs(arguments.report, exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    run = Run(arguments)
    try:
        run.everything()
    except KeyboardInterrupt:
        run.report["interrupted"] = True
        print("interrupted: the report has what there is", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    machine.end_others(set())
    path = run.write(started)
    subprocess.run([sys.executable, os.path.join(peers.HERE, "report.py"), path], check=False)
    return 130 if run.report["interrupted"] else 0


if __name__ == "__main__":
    sys.exit(main())
