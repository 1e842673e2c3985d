#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hostile clients against a coordinator and a job of three ranks that trains meanwhile: `make abuse`.

One line for each attack: what was done, for how long, and what the job lost. An attack fails when a
stranger learns or joins anything, when the job stops, raises an alarm or gets a wrong gradient, or when
memory is above the bounds that SECURITY.md states. Arguments: pieces of names, to run only those.
"""

import resource
import sys
import tempfile
import time
import traceback

import crowd
import floods
import strangers
import victim as victims

DAEMON_MIB = 448  # SECURITY.md states these.
LESS_MIB = {"never reads": 192}
WORKER_MIB = 64
STANDSTILL_S = 5.0  # No step for so long is a loss, on a machine whose processors are shared.
QUIET_S = 3

ROWS = [
    ("no certificate", strangers.without_certificate),
    ("wrong certificate", strangers.wrong_certificate),
    ("no token", strangers.without_token),
    ("impossible frames", strangers.impossible_frames),
    ("data ports of ranks that train", strangers.training_ports),
    ("garbage on every port", floods.garbage),
    ("impossible messages", floods.impossible_messages),
    ("slow loris", floods.slow_loris),
    ("all places for jobs", crowd.job_table),
    ("half-open flood", floods.half_open),
    ("no descriptors", floods.no_descriptors),
    ("never reads", floods.never_reads),  # It and the next come last: allocators keep what they had.
    ("long certificates", floods.long_certificates),
    ("10,000 connections", floods.ten_thousand),
    ("members that never read", floods.members),
    ("calls in plaintext", floods.plaintext),
]


def quiet(_):
    """What the job does when nobody attacks it."""
    time.sleep(QUIET_S)
    return "nobody attacks"


def run(victim, name, attack):
    """One line; whether it held."""
    victim.forget()
    steps, begun, why = victim.steps(), time.monotonic(), None
    try:
        said = attack(victim)
        seconds = time.monotonic() - begun
        steps = victim.steps() - steps
        victim.no_alarm()
        assert steps > seconds - 1, f"{steps} steps in {seconds:.0f} s"
        assert victim.standstill < STANDSTILL_S, f"no step for {victim.standstill:.1f} s"
        most = LESS_MIB.get(name, DAEMON_MIB)
        assert victim.daemon_mib < most, f"the coordinator takes {victim.daemon_mib:.0f} MiB"
        assert victim.worker_mib < WORKER_MIB, f"a rank takes {victim.worker_mib:.0f} MiB"
    except Exception as error:  # Any error is the row's result.
        why, said, seconds, steps = error, f"{type(error).__name__}: {error}", time.monotonic() - begun, 0
        if not isinstance(error, AssertionError):
            traceback.print_exc()
    print(f"{'FAIL' if why else 'ok':5}{name:24}{seconds:6.1f}{steps / seconds:9.0f}"
          f"{1000 * victim.standstill:9.0f}{victim.daemon_mib:8.0f}{victim.worker_mib:6.0f}  {said}", flush=True)
    return why is None


def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < floods.MANY + 1000:
        print(f"abuse: {hard} descriptors are too few (ulimit -Hn, now {soft})")
        return 1
    rows = [row for row in ROWS if not sys.argv[1:] or any(text in row[0] for text in sys.argv[1:])]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        victim = victims.Victim(folder)
        try:
            victim.start()
            print(f"{'':5}{'attack':24}{'s':>6}{'steps/s':>9}{'gap ms':>9}{'daemon':>8}{'rank':>6}"
                  "  (MiB, highest; gap: the longest time without a step)")
            good = all([run(victim, name, attack) for name, attack in [("quiet", quiet), *rows]])
            try:
                victim.end()
            except AssertionError as error:
                print(f"FAIL the end: {error}")
                good = False
        finally:
            victim.kill()
    print(f"{'all held' if good else 'FAILED'}, {time.monotonic() - begun:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
