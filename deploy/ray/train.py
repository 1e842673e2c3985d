#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts a trainer on the CPUs of a Ray cluster, once for each worker, by Ray Core.

    export LOCKSTEP_COORDINATOR=10.0.0.1:50051
    python train.py -n 4 --job mnist -- ./train --epochs 6

Ray gives all workers their places at once (a placement group), or none. Each worker is an actor that
runs the trainer as a process of its own and hands on what it prints. The variables LOCKSTEP_* of this
script go to every trainer; files that they name have to be on every node. When a trainer fails, the
others end with the reason, and all are started again as often as --max-restarts says.

For GPUs, write {"CPU": 1, "GPU": 1} in the placement group and num_gpus=1 in the actor's options.
"""

import argparse
import os
import subprocess
import sys

# Otherwise Ray shows one of several lines that differ in their numbers alone.
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

import ray  # noqa: E402
from ray.exceptions import GetTimeoutError, RayActorError  # noqa: E402
from ray.util.placement_group import placement_group, remove_placement_group  # noqa: E402
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: E402

UNSTARTED = 127  # The status of a trainer that cannot be started, as in a shell.
INTERRUPTED = 130  # The status after Ctrl-C, as in a shell.
LOST = 255  # The status of a worker whose actor is gone, or that had to be killed.


class Worker:
    """One rank. Ray ends its trainer with it."""

    def run(self, command, variables):
        """Returns the trainer's exit status, as a shell has it."""
        try:
            trainer = subprocess.Popen(
                command, env={**os.environ, **variables}, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace")
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", flush=True)
            return UNSTARTED
        with trainer:
            for line in trainer.stdout:
                print(line, end="", flush=True)
        return trainer.returncode if trainer.returncode >= 0 else 128 - trainer.returncode


def variables_of(rank, options):
    """What a trainer needs to find its place."""
    result = {key: value for key, value in os.environ.items() if key.startswith("LOCKSTEP_")}
    result.update(LOCKSTEP_JOB=options.job, LOCKSTEP_RANK_HINT=str(rank),
                  LOCKSTEP_WORLD_SIZE=str(options.workers))
    return result


def wait_for(runs, grace):
    """The status of each worker, by rank. After a failure the others have `grace` seconds."""
    statuses, failed = {}, False
    while len(statuses) < len(runs):
        waiting = [run for rank, run in enumerate(runs) if rank not in statuses]
        ready, _ = ray.wait(waiting, timeout=grace if failed else None)
        if not ready:
            late = [rank for rank in range(len(runs)) if rank not in statuses]
            print(f"ranks {late} did not end in {grace:g} s and are killed", file=sys.stderr, flush=True)
            return {**statuses, **{rank: LOST for rank in late}}
        rank = runs.index(ready[0])
        try:
            statuses[rank] = ray.get(ready[0])
        except RayActorError as error:
            print(f"rank {rank}: {error}", file=sys.stderr)
            statuses[rank] = LOST
        if statuses[rank] != 0:
            print(f"rank {rank} ended with status {statuses[rank]}", file=sys.stderr, flush=True)
            failed = True
    return statuses


def run_once(options):
    """Starts all workers and waits for them. Returns 0, or the status of the first rank that has one."""
    group = placement_group([{"CPU": 1}] * options.workers)
    actors = []
    try:
        ray.get(group.ready(), timeout=options.timeout)
        for rank in range(options.workers):
            place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
            actors.append(ray.remote(Worker).options(num_cpus=1, scheduling_strategy=place).remote())
        statuses = wait_for([actor.run.remote(options.command, variables_of(rank, options))
                             for rank, actor in enumerate(actors)], options.grace)
        return next((statuses[rank] for rank in sorted(statuses) if statuses[rank] != 0), 0)
    except GetTimeoutError:
        sys.exit(f"the cluster had no place for {options.workers} workers in {options.timeout:g} s: "
                 f"it has {ray.cluster_resources().get('CPU', 0):g} CPUs, of which "
                 f"{ray.available_resources().get('CPU', 0):g} are free")
    finally:
        for actor in actors:
            ray.kill(actor)
        remove_placement_group(group)


def main():
    parser = argparse.ArgumentParser(description="Starts a trainer on a Ray cluster.")
    parser.add_argument("-n", "--workers", type=int, required=True)
    parser.add_argument("--job", default="ray", help="the job's name (ray)")
    parser.add_argument("--max-restarts", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=300,
                        help="seconds that the cluster has to find places (300)")
    parser.add_argument("--grace", type=float, default=60,
                        help="seconds that the others have to end after a failure (60)")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    if options.workers > 1 and "LOCKSTEP_COORDINATOR" not in os.environ:
        parser.error("set LOCKSTEP_COORDINATOR=host:port, an address that every node reaches")
    ray.init()
    status = run_once(options)
    for restart in range(options.max_restarts):
        if status == 0:
            break
        print(f"restart {restart + 1} of {options.max_restarts}", file=sys.stderr, flush=True)
        status = run_once(options)
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
