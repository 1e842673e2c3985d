#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures steps of PyTorch over this library beside DistributedDataParallel with Gloo, in one run.

    bench/peers/torch_run.py              about 6 minutes
    bench/peers/torch_run.py --quick      about 90 seconds
    bench/peers/torch_run.py --compile aot_eager     torch.compile, too: much slower to start

`make torch-bench` builds everything first. A round launches each case once, in a new order; the ways of
a case take turns in one process (torch_step.py). What a way costs is the time of its step less that of
the step without synchronization in the same turn. A step is that of its slowest rank.
"""

import argparse
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
import peers
import places
import samples
from run import ROOT, enter_namespaces, rank_texts, stop

WAYS = {"none": "no synchronization", "ddp": "DDP, Gloo", "native": "lockstep, native hooks",
        "python": "lockstep, Python hooks", "c10d": "DDP, c10d backend lockstep"}
ALL = tuple(WAYS)
COMPILED = ("none", "ddp", "native", "python")
DISTURBED = 0.1  # Share of the cores that others use beside a launch.
CHAINS = (100, 400)
START_S = 8.0  # What a launch takes beside its measurements; a floor for its share.


class Case:
    """A place and a model. options are those of torch_step.py."""

    def __init__(self, name, place, title, weight, *options, ways=ALL):
        self.name, self.place, self.title, self.weight = name, place, title, weight
        self.options, self.ways = list(options), ways


ONE = places.Place("host-1", "one process", 1, 1)


def cases(arguments):
    def model(step_ms):
        return ["--bytes", str(arguments.bytes), "--step-ms", str(step_ms)]

    chains = ["--chains", ",".join(map(str, CHAINS))]
    host, four = places.PLACES["host-2"], places.PLACES["host-4"]
    yield Case("host-2", host, "one host, n = 2", 3, *model(60))
    yield Case("host-4", four, "one host, n = 4", 3, *model(60))
    yield Case("1g-2", places.PLACES["1g-2"], "1 Gbit/s, n = 2", 3, *model(100))
    yield Case("hooks", ONE, "one process, small parameters", 2, *chains, ways=ALL[:4])
    yield Case("host-2-gil", host, "one host, n = 2, a thread spins on the GIL", 3, *model(60), "--gil")
    if not arguments.quick:
        yield Case("hooks-gil", ONE, "one process, small parameters, a thread spins on the GIL", 2,
                   *chains, "--gil", ways=ALL[:4])
    for optimize in (1, 0) if arguments.compile else ():
        yield Case(f"compile-{('off', 'on')[optimize]}", host,
                   f"one host, n = 2, torch.compile, optimize_ddp {('off', 'on')[optimize]}", 6,
                   *model(60), "--compile", arguments.compile, "--optimize-ddp", str(optimize),
                   ways=COMPILED)


class Run:
    def __init__(self, arguments):
        self.arguments = arguments
        self.programs = peers.Programs(arguments.build)
        self.cores = len(os.sched_getaffinity(0))
        self.random = random.Random(arguments.seed)
        self.scratch = tempfile.mkdtemp(prefix="torch-run-")
        self.began = time.monotonic()
        self.launches = []
        self.version, self.hooks = None, None

    def start(self, launch, case, deadline):
        source = os.path.join(ROOT, "bindings", "python", "src")
        launch.spawn_ranks(
            [self.programs.python, os.path.join(peers.HERE, "torch_step.py"), *case.options,
             "--ways", ",".join(case.ways), "--deadline", str(deadline),
             "--out", os.path.join(launch.folder, "rank")],
            {**launch.coordinator(), "PEER_STORE": launch.store(), "OMP_NUM_THREADS": "1",
             "GLOO_SOCKET_IFNAME": case.place.interface, "PYTHONWARNINGS": "ignore",
             "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1",
             "LOCKSTEP_LIBRARY": os.path.join(self.arguments.build, "lib", "liblockstep.so.0")})

    def launch(self, case, turn, seconds):
        record = {"case": case.name, "round": turn, "error": None, "models": []}
        variant = peers.Variant(case.name, "PyTorch", "pytorch", "both")
        folder = tempfile.mkdtemp(dir=self.scratch)
        load = machine.Load(self.cores, False)
        with places.open_place(case.place, folder) as hosts:
            launch = peers.Launch(self.programs, hosts, variant, tempfile.mkdtemp(dir=self.scratch))
            try:
                self.start(launch, case, time.monotonic() + seconds)
                record["error"] = launch.wait(seconds + self.arguments.timeout)
                if not record["error"]:
                    self.read(record, launch)
            except (OSError, ValueError, KeyError, IndexError, RuntimeError) as error:
                record["error"] = record["error"] or f"no figures: {error!r}"
            finally:
                machine.end_others(hosts.pids())
                launch.close()
        record.update(load.end())
        self.launches.append(record)
        word = record["error"] or f"{len(record['models'][0]['series_us']['none'])} turns"
        print(f"{time.monotonic() - self.began:6.0f} s  round {turn + 1}  {case.name:<12} {word}, "
              f"foreign load {100 * record['foreign_share']:.0f} %", file=sys.stderr, flush=True)

    def read(self, record, launch):
        ranks = [[json.loads(line) for line in text.splitlines()]
                 for text in rank_texts(launch.folder, launch.place.ranks)]
        self.version, self.hooks = ranks[0][0]["version"], ranks[0][0]["hooks"]
        for models in zip(*(lines[1:-1] for lines in ranks)):
            record["models"].append(dict(
                models[0], series_us=samples.slowest_of([model["series_us"] for model in models])))

    def everything(self, chosen):
        a = self.arguments
        plan = [(case, turn) for turn in range(a.rounds)
                for case in self.random.sample(chosen, len(chosen))]
        while plan:
            left = a.minutes * 60 - (time.monotonic() - self.began)
            case, turn = plan[0]
            share = left * case.weight / sum(one.weight for one, _ in plan)
            self.launch(case, turn, max(share, START_S))
            del plan[0]


# ---- from launches to figures --------------------------------------------------------------------


def added(series, name):
    """What each turn's step took longer than that without synchronization."""
    return [step - alone for step, alone in zip(series[name], series["none"])]


def way_of(models, name):
    """The figures of one way, over all launches of a case."""
    steps = [value for model in models for value in model["series_us"][name]]
    figures = {"step_us": samples.median(steps), "turns": len(steps),
               "first_s": max(model["first_s"][name] for model in models)}
    if name == "none":
        return figures
    more = [value for model in models for value in added(model["series_us"], name)]
    figures.update(overhead_us=samples.median(more), overhead_q1_us=samples.quantile(more, 0.25),
                   overhead_q3_us=samples.quantile(more, 0.75))
    if all("ddp" in model["series_us"] for model in models):
        stock = [value for model in models for value in added(model["series_us"], "ddp")]
        each = [ratio(samples.median(added(model["series_us"], name)),
                      samples.median(added(model["series_us"], "ddp"))) for model in models]
        figures.update(ratio=ratio(figures["overhead_us"], samples.median(stock)),
                       ratios=[value for value in each if value is not None])
    return figures


def ratio(value, stock):
    """None if DDP costs nothing that can be measured."""
    return value / stock if stock > 0 else None


def hooks_of(few, many):
    """What each parameter and each step cost, from two numbers of parameters."""
    found = {}
    for name in few["ways"]:
        if name != "none":
            low, high = few["ways"][name]["overhead_us"], many["ways"][name]["overhead_us"]
            each = (high - low) / (many["parameters"] - few["parameters"])
            found[name] = {"us_per_parameter": each,
                           "us_per_step": low - each * few["parameters"]}
    return found


def summary(launches, chosen):
    found = []
    for case in chosen:
        good = [record for record in launches if record["case"] == case.name and not record["error"]]
        entry = {"case": case.name, "title": case.title, "launches": len(good), "models": [],
                 "errors": [record["error"] for record in launches
                            if record["case"] == case.name and record["error"]],
                 "foreign_share": max((record["foreign_share"] for record in good), default=None)}
        for models in zip(*(record["models"] for record in good)):
            entry["models"].append({
                "parameters": models[0]["parameters"], "bytes": models[0]["bytes"],
                "ways": {name: way_of(models, name) for name in models[0]["series_us"]}})
        if len(entry["models"]) == 2:
            entry["hooks"] = hooks_of(*entry["models"])
        found.append(entry)
    return found


# ---- words ---------------------------------------------------------------------------------------


def ms(value):
    return f"{value / 1e3:.2f}"


def row(entry, name, figures):
    words = [entry["title"], WAYS[name], ms(figures["step_us"])]
    if name == "none":
        return words + ["", "", ""]
    spread = f"{ms(figures['overhead_q1_us'])} to {ms(figures['overhead_q3_us'])}"
    said = "-"
    if name != "ddp" and figures.get("ratio") is not None:
        said = f"{figures['ratio']:.2f}"
        if len(figures["ratios"]) > 1:
            said += f" ({min(figures['ratios']):.2f} to {max(figures['ratios']):.2f})"
    return words + [ms(figures["overhead_us"]), spread, said]


def print_table(head, rows):
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for words in rows:
        print("| " + " | ".join(words) + " |")
    print()


def tell(report):
    print(f"\n{report['started']}, {report['machine']['cores']} cores of {report['machine']['cpu']}, "
          f"Linux {report['machine']['kernel']}, {report['version']}, commit {report['commit']}.")
    print("Times in ms: medians of the slowest rank. Overhead: step less the step without "
          "synchronization\nof the same turn, with its quartiles. Ratio: overhead by that of DDP over "
          "Gloo (launches apart in brackets).\n")
    steps = [entry for entry in report["cases"] if len(entry["models"]) == 1]
    if steps:
        print_table(["case", "way", "step", "overhead", "quartiles", "ratio"],
                    [row(entry, name, figures) for entry in steps
                     for name, figures in entry["models"][0]["ways"].items()])
    hooks = [entry for entry in report["cases"] if "hooks" in entry]
    if hooks:
        print(f"From models of {CHAINS[0]} and {CHAINS[1]} parameters, times in us:\n")
        print_table(["case", "way", "each parameter", "each step"],
                    [[entry["title"], WAYS[name], f"{one['us_per_parameter']:.2f}",
                      f"{one['us_per_step']:.0f}"]
                     for entry in hooks for name, one in entry["hooks"].items()])
    for entry in report["cases"]:
        for error in entry["errors"]:
            print(f"{entry['case']}: {error}")
    tell_load(report)


def tell_load(report):
    shares = [record["foreign_share"] for record in report["launches"]]
    disturbed = sum(share > DISTURBED for share in shares)
    if shares:
        print(f"Foreign load beside the launches: {100 * samples.median(shares):.0f} % of the cores "
              f"(median), {100 * max(shares):.0f} % at most; {disturbed} of {len(shares)} launches had "
              f"more than {100 * DISTURBED:.0f} %.")
    if disturbed:
        print("Do not quote these figures: run again on a quiet machine.")
    if report["hooks"] == "python":
        print("There are no native hooks: `python -m lockstep.torch.build` says why.")
    if not report["compile"]:
        print("torch.compile was left out, because it takes long to start: --compile aot_eager adds it.")


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="about 90 seconds")
    parser.add_argument("--only", default="", help="words of cases, by comma")
    parser.add_argument("--compile", default="", metavar="BACKEND", help="torch.compile, too")
    parser.add_argument("--bytes", type=int, default=20_000_000, help="of the model's gradients")
    parser.add_argument("--minutes", type=float, help="for everything (6, with --quick 1.4)")
    parser.add_argument("--rounds", type=int, help="launches of each case (2, with --quick 1)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds beyond a launch's share")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the order")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--json", metavar="FILE", help="everything, with all times; - is standard "
                        "output instead of the table")
    arguments = parser.parse_args()
    arguments.build = os.path.abspath(arguments.build)
    arguments.only = [word for word in arguments.only.split(",") if word]
    arguments.minutes = arguments.minutes or (1.4 if arguments.quick else 6)
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 2)
    return arguments


def main():
    arguments = read_arguments()
    if "LOCKSTEP_TEST_PEERS_INSIDE" not in os.environ:
        enter_namespaces()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    run = Run(arguments)
    if not run.programs.torch_version:
        sys.exit(f"torch_run.py: {run.programs.python} has no PyTorch: `make torch-bench` installs it")
    chosen = [case for case in cases(arguments)
              if not arguments.only or any(word in case.name for word in arguments.only)]
    if not chosen:
        sys.exit("torch_run.py: --only leaves no case; those of torch.compile need --compile")
    interrupted = False
    try:
        run.everything(chosen)
    except KeyboardInterrupt:
        interrupted = True
        print("interrupted: the report has what there is", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(run.scratch, ignore_errors=True)
    report = {"schema": 1, "started": started, "command": " ".join(sys.argv),
              "commit": machine.output_of("git", "-C", ROOT, "describe", "--always", "--dirty"),
              "machine": machine.describe(), "version": run.version, "hooks": run.hooks,
              "compile": arguments.compile, "interrupted": interrupted, "cases": summary(run.launches, chosen),
              "launches": run.launches}
    if arguments.json == "-":
        print(json.dumps(report))
    else:
        tell(report)
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(report, file)
    return 130 if interrupted else 1 if any(record["error"] for record in run.launches) else 0


if __name__ == "__main__":
    sys.exit(main())
