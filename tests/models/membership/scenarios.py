# SPDX-License-Identifier: Apache-2.0
"""Worlds with faults: those with a name, and random ones."""
import copy
import random
import time

from events import actions, apply, attempt, fault
from rules import Config
from world import World

# name -> (world, script, faults of which one is injected before every event).
# A script is a list of (event, fault). Inside a fault, a number is a delay in events.
RESTART = [("coordinator", 0), ("new coordinator", None)]
TWO = [(6, ("new coordinator", None))]  # a second coordinator appears soon, and both live
LATE = [(0, ("stop", 3)), (12, ("wake", 3))]  # newcomer 3 of a world of three


def kills(n, extra=()):
    return [[("kill", r)] for r in range(n)] + [list(x) for x in extra]


def split(n, sides):
    """Each side reaches one of two coordinators, and its own members only."""
    return [[("block", (r, 0)) for r in side] +
            [("block", (r, 1)) for r in range(n) if r not in side] +
            [("cut", (a, b)) for a in side for b in range(n) if b not in side] for side in sides]


SCENARIOS = {
    "two coordinators, death": (Config(), TWO, kills(3)),
    "two coordinators, one is paused": (
        Config(), TWO + [(40, ("kill", 2)), (70, ("kill", 1))],
        [[("pause coordinator", i), (25, ("resume coordinator", i))] for i in (0, 1)]),
    "two coordinators, control network cut": (
        Config(n=4), TWO + [(45, ("kill", 3))],
        [[("block", (a, 0)), ("block", (b, 1))] for a in range(3) for b in range(3)]),
    "two coordinators, split": (Config(n=4), TWO, split(4, ((0, 1), (2,), (1, 2, 3)))),
    "two coordinators, one dies": (
        Config(), TWO + [(50, ("kill", 2))], [[("coordinator", 0)], [("coordinator", 1)]]),
    "silence": (
        Config(), [(50, ("kill", 2))],
        [[("drop", (r, 0))] for r in range(3)] +
        [[("block", (r, 0)), (30, ("unblock", (r, 0)))] for r in range(3)] +
        [[("stop", r), (40, ("wake", r))] for r in range(3)] + [RESTART]),
    "host loses power": (Config(), [], [[("power", r)] for r in range(3)]),
    "host of two loses power": (Config(n=2), TWO, [[("power", r)] for r in range(2)]),
    "leave": (
        Config(leavers=(2,)), [],
        kills(3, [RESTART, [("kill", 0), (4, ("coordinator", 0)), ("new coordinator", None)],
                  [("kill", 0), (5, ("kill", 1))], [("stop", 0), (30, ("wake", 0))],
                  [("stop", 2), (30, ("wake", 2))]])),
    "two leave, two coordinators": (
        Config(n=4, leavers=(1,)), TWO + [(20, ("leave", 2))], kills(4, [[("drop", (1, 0))]])),
    "stash": (Config(defer=True, steps=4), [], kills(3, [RESTART])),
    "stash, leave": (Config(defer=True, steps=4, leavers=(2,)), [], kills(3)),
    "groups": (Config(n=4, groups=((0, 1), (2, 3))), [],
               kills(4, [[("kill", 0), (3, ("kill", 1))]])),
    "groups that overlap, leave": (
        Config(n=4, groups=((0, 1, 2), (2, 3)), leavers=(1,)), [], kills(4)),
    "below the minimum": (Config(n=3, minimum=3, newcomers=1), LATE, kills(3, [RESTART])),
    "below the minimum, leaver": (
        Config(n=3, minimum=3, newcomers=1, leavers=(0,)),
        [(0, ("stop", 3)), (60, ("wake", 3))], kills(4)),
    "join": (
        Config(newcomers=1), LATE,
        kills(4, [RESTART, [("stop", 3), (30, ("wake", 3))], [("drop", (3, 0))],
                  [("kill", 0), (4, ("kill", 1))], [("kill", 3), (6, ("kill", 0))]])),
    "join and leave, two coordinators": (
        Config(newcomers=1, leavers=(0,)), TWO + LATE, kills(4, [[("coordinator", 0)]])),
    "cut, then split of two": (
        Config(n=2), TWO + [(11, ("cut", (0, 1)))],
        [[("block", (1, 0)), ("block", (0, 1))]]),
    "cut of two, then a death": (
        Config(n=2, newcomers=1), [(3, ("cut", (0, 1)))],
        [[("kill", i), (7, ("drop", (1 - i, 0)))] for i in (0, 1)]),
    "cuts, then split of five": (
        Config(n=5, minimum=2, leavers=(3, 4)),
        [(3, ("cut", (0, 4))), (25, ("cut", (3, 4))), (34, ("new coordinator", None))],
        split(5, ((1, 2, 3), (0, 4)))),
    "below the minimum, two newcomers": (
        Config(n=4, minimum=4, newcomers=2, leavers=(2,)), [(3, ("new coordinator", None))],
        [[("kill", 0), ("cut", (1, 3))], [("cut", (0, 1)), ("cut", (1, 3))]]),
    "below the minimum, coordinator dies": (
        Config(n=2, minimum=2, newcomers=1),
        [(5, ("cut", (0, 1))), (15, ("new coordinator", None))],
        [[("coordinator", i), (9, ("new coordinator", None))] for i in (0, 1)]),
    "two join, stash": (Config(n=2, newcomers=2, defer=True), [], kills(4, [RESTART])),
}


def injected(w, choice, pending):
    """The faults of one run: those of the choice now, and those of the script that are to come."""
    faults, at = [(max(0, d - w.events), x) for d, x in pending], 0
    for x in choice:
        if isinstance(x[0], int):
            at += x[0]
            x = x[1]
        faults.append((at, x))
    return faults


def sweep(scenario, seed, off=(), stride=1, only=None):
    """One schedule; before every event of it each of the choices is injected once.

    -> runs, events, violations as (event, choice, what). only: (event, number of the choice).
    """
    config, script, choices = scenario
    config.off = frozenset(off)
    base = World(config, random.Random(seed))
    pending = sorted(script, key=lambda x: x[0])
    runs, events, bad = 1, 0, []
    what = attempt(copy.deepcopy(base), script)
    if what:
        bad.append((0, None, what))
    while True:
        while pending and pending[0][0] <= base.events:
            fault(base, pending.pop(0)[1])
        acts = actions(base)
        if not acts:
            return runs, events, bad
        for i, choice in enumerate(choices):
            if only != [base.events, i] if only else base.events % stride:
                continue
            w = base.clone()
            w.chance = random.Random((seed * 7919 + base.events) * 31 + i)
            what = attempt(w, injected(w, choice, pending))
            runs += 1
            events += w.events - base.events
            if what:
                bad.append((base.events, choice, what))
        apply(base, acts[base.chance.randrange(len(acts))])


def random_world(seed, off=()):
    """A random world and a random list of faults."""
    g = random.Random(seed)
    n, new = g.randrange(2, 6), g.choice([0, 0, 1, 1, 2])
    groups = g.choice([(), (), [range(0, n // 2), range(n // 2, n)],
                       [range(0, n - 1), range(n - 2, n)]])
    config = Config(
        n=n, steps=g.randrange(2, 5), groups=groups, minimum=g.choice([1, 1, 2, n]),
        defer=g.random() < .4, newcomers=new,
        leavers=[r for r in range(n) if g.random() < .2][:n - 1], off=off)
    faults, t = [], 0
    for j in range(new):
        faults += [(0, ("stop", n + j)), (g.randrange(60), ("wake", n + j))]
    two = g.random() < .6
    if two:
        faults.append((g.randrange(40), ("new coordinator", None)))
    for _ in range(g.randrange(0, 6)):
        t = g.randrange(160) if g.random() < .4 else t + g.randrange(25)
        faults += random_fault(g, t, n, new, two)
    return World(config, random.Random(seed + 1)), faults


def random_fault(g, t, n, new, two):
    r, i = g.randrange(n + new), g.randrange(1 + two)
    kind = g.choice(["kill", "kill", "power", "stop", "coordinator", "pause", "block", "drop",
                     "cut", "split", "leave"])
    if kind in ("kill", "power", "leave"):
        return [(t, (kind, r))]
    if kind == "stop":
        return [(t, (kind, r)), (t + g.randrange(1, 80), ("wake", r))]
    if kind == "coordinator":
        return [(t, (kind, i)), (t + g.randrange(20), ("new coordinator", None))]
    if kind == "pause":
        return [(t, ("pause coordinator", i)),
                (t + g.randrange(1, 80), ("resume coordinator", i))]
    if kind in ("block", "drop"):
        return [(t, (kind, (r, i)))]
    if kind == "cut":
        return [(t, ("cut", tuple(g.sample(range(n), 2))))]
    side = {x for x in range(n + new) if g.random() < .5}
    other = set(range(n + new)) - side
    faults = [(t, ("block", (x, 0))) for x in side if two]
    faults += [(t, ("block", (x, 1))) for x in other if two]
    faults += [(t, ("cut", (x, y))) for x in side for y in other]
    if g.random() < .5:
        faults.append((t + g.randrange(100), ("heal", None)))
    return faults


def fuzz(first, seconds, off=(), stop=False, seeds=10**9):
    """Random worlds. -> runs, events, violations as (seed, faults, what)."""
    events, bad, begin, runs = 0, [], time.process_time(), 0
    for seed in range(first, first + seeds):
        w, faults = random_world(seed, off)
        what = attempt(w, faults)
        runs += 1
        events += w.events
        if what:
            bad.append((seed, faults, what))
        if time.process_time() - begin > seconds or (bad and stop):
            break
    return runs, events, bad
