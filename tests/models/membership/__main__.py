# SPDX-License-Identifier: Apache-2.0
"""Checks the model of membership. README.md beside this file has the modes."""
import argparse
import sys
import time

import events
import explore
import scenarios
from rules import RULES, Violation
from seeds import SEEDS, UNSEEN


def show(kind, name, runs, count, bad, begin):
    unit = "states" if kind == "explore" else "runs"
    print(f"{kind:8} {name:40} {unit} {runs:8}  events {count:9}  violations {len(bad):3}"
          f"  {time.process_time() - begin:6.1f} s", flush=True)
    for x in bad[:3]:
        print("   ", x, flush=True)


def sweep(o, stride):
    failed = False
    for name, scenario in scenarios.SCENARIOS.items():
        if o.only not in name:
            continue
        begin, runs, count, bad = time.process_time(), 0, 0, []
        for seed in range(o.first, o.first + o.seeds):
            r, e, b = scenarios.sweep(scenario, seed, o.off, stride)
            runs, count, bad = runs + r, count + e, bad + [(seed, *x) for x in b]
        show("sweep", name, runs, count, bad, begin)
        failed |= bool(bad)
    return failed


def fuzz(o):
    begin = time.process_time()
    runs, count, bad = scenarios.fuzz(o.first, o.seconds, o.off)
    show("fuzz", f"from seed {o.first}", runs, count, bad, begin)
    return bool(bad)


def found(rule, entry):
    """What an entry of seeds.py violates without the rule, and with it."""
    if isinstance(entry, int):
        entry = entry, ()
    if len(entry) == 2:
        seed, others = entry
        return [scenarios.fuzz(seed, 0, off, seeds=1)[2] for off in ((rule, *others), others)]
    name, seed, *only = entry
    return [scenarios.sweep(scenarios.SCENARIOS[name], seed, off, only=only)[2]
            for off in ((rule,), ())]


def repeat(o):
    """Known counterexamples: a rule off has to be found, and all rules on must hold."""
    failed = False
    for rule, seeds in SEEDS.items():
        for entry in seeds if o.only in rule else ():
            begin = time.process_time()
            without, whole = found(rule, entry)
            failed |= bool(whole) or not without
            print(f"repeat   {rule:10} {str(entry):30} without it: "
                  f"{'violated' if without else 'NOT VIOLATED'}, with it: "
                  f"{'VIOLATED' if whole else 'none'}  {time.process_time() - begin:5.1f} s",
                  flush=True)
            for x in whole[:1]:
                print("   ", x)
    return failed


def broken(o):
    """Each rule off in random worlds, until a world is violated only without the rule."""
    failed = False
    for rule in RULES:
        if o.only in rule:
            begin = time.process_time()
            runs, count, bad = scenarios.fuzz(o.first, o.seconds, [rule], stop=True)
            show("broken", rule, runs, count, bad, begin)
            failed |= not bad and rule not in UNSEEN and not SEEDS.get(rule)
            if bad and scenarios.fuzz(bad[0][0], 0, seeds=1)[2]:
                print("    the same world is violated with all rules on")
                failed = True
    return failed


def exhaust(o, only):
    failed = False
    for name in explore.WORLDS:
        if only in name:
            begin = time.process_time()
            count, bad = explore.explore(name, o.seconds, o.off)
            show("explore", name, count.pop("states"), count.pop("events"), bad, begin)
            print("        ", count, flush=True)
            failed |= bool(bad)
    return failed


def trace(o):
    """Every event of one random world."""
    w, faults = scenarios.random_world(o.first, o.off)
    try:
        events.run(w, faults, lambda w, a: print(w.events, *a))
    except Violation as x:
        print(x)
        return True
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    modes = {"repeat": repeat, "fuzz": fuzz, "broken": broken, "trace": trace,
             "sweep": lambda o: sweep(o, o.stride), "explore": lambda o: exhaust(o, o.only)}
    parser.add_argument("mode", choices=["quick", *modes])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, for sweep")
    parser.add_argument("--seconds", type=float, default=10,
                        help="of the processor, for fuzz, a rule of broken, a world of explore")
    parser.add_argument("--stride", type=int, default=1, help="a fault before every n-th event")
    parser.add_argument("--only", default="", help="scenarios, rules, worlds with this in the name")
    parser.add_argument("--off", nargs="*", default=[], help="rules to switch off")
    o = parser.parse_args()
    if o.mode == "quick":
        parts = [repeat, lambda o: sweep(o, 40), fuzz, lambda o: exhaust(o, "small")]
        failed = any([part(o) for part in parts])
    else:
        failed = modes[o.mode](o)
    print("FAILED" if failed else "as expected")
    sys.exit(failed)


if __name__ == "__main__":
    main()
