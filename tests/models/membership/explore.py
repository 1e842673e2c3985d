# SPDX-License-Identifier: Apache-2.0
"""Every schedule of a small world: depth first, each state once.

Faults may come at any time, at most `budget` of them. What chance decides elsewhere (which bytes of
a stream or frames of a generation are lost) is a choice here, too. Two things bound a world: a
HELLO that has not left its worker is replaced by a newer one, and a coordinator sends PREPARE at
most `tries` times. Branches that want more are counted as cut off.
"""
import time

from events import actions, apply, calm, check, fault, timers
from rules import Config, Violation
from scenarios import split
from world import World


def each(kind, *what):
    return [[(kind, x)] for x in what]


TWO = split(2, ((0,),))
# name -> (world, faults of which each may come once, most faults, most PREPAREs of a coordinator)
WORLDS = {
    "small: two, split": (dict(n=2), TWO, 1, 2),
    "small: two, one coordinator, death": (dict(n=2, coordinators=1), each("kill", 1), 1, 1),
    "small: one, newcomer": (dict(n=1, newcomers=1), [], 0, 1),
    "two, split, two steps": (dict(n=2, steps=2), TWO, 1, 2),
    "two, split and heal": (dict(n=2), TWO + each("heal", None), 2, 1),
    "two, cut": (dict(n=2), each("cut", (0, 1)), 1, 1),
    "two, cut and block": (dict(n=2), [[("cut", (0, 1)), ("block", (0, 1))]], 1, 2),
    "two, death": (dict(n=2), each("kill", 1), 1, 1),
    "two, early timer": (dict(n=2), each("timer", 0, 1) + TWO, 2, 1),
    "two, coordinator dies": (dict(n=2), each("coordinator", 0) + TWO, 2, 1),
    "two, leaver": (dict(n=2, leavers=(1,), steps=2), [], 0, 1),
    "two, leaver and death": (dict(n=2, leavers=(1,)), each("kill", 0), 1, 1),
    "one, newcomer, death": (dict(n=1, newcomers=1), each("kill", 1), 1, 1),
    "two, newcomer": (dict(n=2, newcomers=1), [], 0, 1),
    "two, newcomer, split": (dict(n=2, newcomers=1), split(3, ((0, 2),)), 1, 1),
    "three, one coordinator, death": (dict(n=3, coordinators=1), each("kill", 2), 1, 1),
    "three, split": (dict(n=3), split(3, ((0,),)), 1, 1),
}


class Choices:
    """Stands for random.Random: repeats given choices, then takes the first and notes how many."""

    def __init__(self, given):
        self.given, self.taken = list(given), []

    def randrange(self, n):
        i = len(self.taken)
        self.taken.append((self.given[i] if i < len(self.given) else 0, n))
        return self.taken[-1][0]

    def random(self):
        return float(self.randrange(2))


def outcomes(w, event):
    """Every world that the event may lead to."""
    todo = [()]
    while todo:
        given = todo.pop()
        new = w.clone()
        new.chance = Choices(given)
        event(new)
        taken = new.chance.taken
        for i in range(len(given), len(taken)):
            head = tuple(x for x, _ in taken[:i])
            todo += [head + (x,) for x in range(1, taken[i][1])]
        new.chance = None
        yield new


def inject(faults):
    def event(w):
        for f in faults:
            fault(w, f)
    return event


def settled(config):
    """A world in which every worker has introduced itself to every coordinator."""
    w = World(config, Choices(()))
    while True:
        acts = [a for a in actions(w) if a[0] in ("open", "up")]
        if not acts:
            return w
        apply(w, acts[0])


def events_of(w, faults, left, quiet):
    """-> (what, function of a world, faults that are left, how many, quiet) for all that can be."""
    acts = actions(w)
    out = [(a, lambda new, a=a: apply(new, a), faults, left, quiet) for a in acts]
    if left and not quiet:
        out += [(("fault", *map(str, f)), inject(f), faults[:i] + faults[i + 1:], left - 1, quiet)
                for i, f in enumerate(faults)]
    if not acts:
        if not quiet:
            out.append((("calm",), calm, faults, 0, True))
        else:
            out += [(a, lambda new, a=a: apply(new, a), faults, left, quiet) for a in timers(w)]
    return out


def explore(name, seconds, off=(), stop=True):
    """-> dict with states, events, ends, cut off, complete, and violations as (trace, what)."""
    shape, faults, budget, tries = WORLDS[name]
    start = settled(Config(**{"steps": 1, "elements": 1, "slices": 1, "coordinators": 2,
                              "off": off, "coalesce": True, **shape}))
    seen, bad, end = set(), [], time.process_time() + seconds
    count = dict(states=0, events=0, ends=0, cut_off=0, complete=True)
    stack = [(start, tuple(faults), budget, False, None)]
    while stack:
        w, faults, left, quiet, trace = stack.pop()
        key = hash((w.key(), str(faults), left, quiet))
        if key in seen:
            continue
        seen.add(key)
        count["states"] += 1
        if any(c.tries > tries for c in w.coordinators.values()):
            count["cut_off"] += 1
            continue
        what = None
        try:
            following = events_of(w, faults, left, quiet)
            if not following:
                count["ends"] += 1
                check(w)
            for what, event, *rest in following:
                for new in outcomes(w, event):
                    count["events"] += 1
                    stack.append((new, *rest, (what, trace)))
        except Violation as x:
            bad.append((list(unfold((what, trace) if what else trace)), str(x)))
            if stop:
                break
        if count["states"] % 256 == 0 and time.process_time() > end:
            count["complete"] = False
            break
    return count, bad


def unfold(trace):
    events = []
    while trace:
        events.append(trace[0])
        trace = trace[1]
    return reversed(events)
