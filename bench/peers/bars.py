# SPDX-License-Identifier: Apache-2.0
"""How fast the library means to be beside its peers, and which figures say whether it is.

A case is a line of the table; it gives checks, and a check compares one figure of ours with one of a
peer, a limit, or ourselves elsewhere. Its ratio is always such that more is better and the bar is the
least. Nothing here knows where figures come from: they are asked of a Figures (report.py).
"""

import dataclasses

K, M = 1024, 1024 * 1024
MIDDLE = (32 * K, 256 * K, M)
TCP_BARS = {4: 1.2, 4 * K: 1.2, 32 * K: 1.2, 256 * K: 1.2, M: 1.1, 4 * M: 1.1, 25 * M: 1.3,
            100 * M: 1.3}


@dataclasses.dataclass
class Check:
    place: str
    bytes: int
    cold: bool
    bar: float
    ours: dict = None  # As Figures.best answers; None: not measured.
    other: dict = None  # The same, of whom we are compared with.
    ratio: float = None
    unit: str = "x"  # Or "%": of a limit.

    @property
    def met(self):
        return None if self.ratio is None else self.ratio >= self.bar


@dataclasses.dataclass
class Case:
    title: str
    bar: str
    checks: list
    note: str = ""


def against(figures, places, sizes, ours, bars, **peers):
    """Checks beside the best peer: bars are for each size, or one for all."""
    for place in places:
        for size in sizes:
            for cold in (False, True):
                check = Check(place, size, cold, bars[size] if isinstance(bars, dict) else bars)
                check.ours = figures.best(place, size, cold, ours=ours)
                check.other = figures.best(place, size, cold, **peers)
                if check.ours and check.other:
                    check.ratio = check.other["median_ns"] / check.ours["median_ns"]
                yield check


def of_limit(figures, places, bars, ours="lockstep tcp", algorithm="ring"):
    """Checks beside what the link could carry: the algorithm's bytes at the payload's rate."""
    for place in places:
        for size, bar in bars.items():
            for cold in (False, True):
                check = Check(place, size, cold, bar, unit="%")
                check.ours = figures.best(place, size, cold, ours=ours)
                limit_ns = figures.limit_ns(place, size, algorithm)
                if check.ours and limit_ns:
                    check.other = {"name": "limit of the link", "median_ns": limit_ns, "spread": 0}
                    check.ratio = limit_ns / check.ours["median_ns"]
                yield check


def cpu(figures, places, size):
    """Checks of processor time beside Gloo's, for one sum."""
    for place in places:
        check = Check(place, size, False, 1.0)
        check.ours = figures.best(place, size, False, ours="lockstep tcp", member="cpu_ns")
        check.other = figures.best(place, size, False, family="Gloo", member="cpu_ns")
        if check.ours and check.other:
            check.ratio = check.other["median_ns"] / check.ours["median_ns"]
        yield check


def beside_idle(figures, size, bar):
    """Checks of ourselves with a hog on every core beside ourselves without."""
    for ours in ("lockstep registered", "lockstep private", "lockstep tcp"):
        for cold in (False, True):
            check = Check("hogs-2", size, cold, bar)
            check.ours = figures.best("hogs-2", size, cold, ours=ours)
            check.other = figures.best("host-2", size, cold, ours=ours)
            if check.ours and check.other:
                check.other = dict(check.other, name=check.other["name"] + ", idle")
                check.ratio = check.other["median_ns"] / check.ours["median_ns"]
            yield check


def moves(figures, word):
    """Another collective than a sum, on all our ways and on TCP alone."""
    places, sizes = ("host-2", "host-4", "veth-2"), (32 * K, M, 25 * M)
    yield Case(f"{word}, one host, private memory", "1x the best peer, none below 0.9",
               list(against(figures, places[:2], sizes, "lockstep private", 1.0)))
    yield Case(f"{word}, TCP", "1x the best TCP peer, none below 0.9",
               list(against(figures, places, sizes, "lockstep tcp", 1.0, wire="tcp")))


def cases(figures):
    two, four = ("host-2",), ("host-4",)
    private = "lockstep private"
    yield Case("one host, registered, 1 to 100 MiB, n = 2 and 4", "6x the best peer of any kind",
               list(against(figures, two + four, (M, 4 * M, 25 * M, 100 * M), "lockstep registered",
                            6.0)))
    yield Case("one host, private, 25 / 100 MiB", "1.6x / 3x",
               list(against(figures, two + four, (25 * M, 100 * M), private,
                            {25 * M: 1.6, 100 * M: 3.0})))
    yield Case("one host, private, 32 KiB to 1 MiB, n = 2", "0.9x",
               list(against(figures, two, MIDDLE, private, 0.9)))
    yield Case("one host, private, 32 KiB to 1 MiB, n = 4", "1.5x",
               list(against(figures, four, MIDDLE, private, 1.5)))
    yield Case("one host, 4 B to 4 KiB, n = 2", "0.5x of OpenMPI",
               list(against(figures, two, (4, 4 * K), private, 0.5, kind="OpenMPI")))
    yield Case("one host, 4 B to 4 KiB, n = 4", "ahead: 1x the best peer",
               list(against(figures, four, (4, 4 * K), private, 1.0)))
    tcp = ("host-2", "host-4", "veth-2", "veth-4")
    yield Case("TCP, loopback and unshaped links, 25 and 100 MiB", "1.3x the best TCP peer",
               list(against(figures, tcp, (25 * M, 100 * M), "lockstep tcp", TCP_BARS, wire="tcp")))
    yield Case("the same, 1 to 4 MiB", "1.1x",
               list(against(figures, tcp, (M, 4 * M), "lockstep tcp", TCP_BARS, wire="tcp")))
    yield Case("the same, 4 B to 256 KiB", "1.2x",
               list(against(figures, tcp, (4, 32 * K, 256 * K), "lockstep tcp", TCP_BARS,
                            wire="tcp")))
    yield Case("10 Gbit/s, n = 2", "95 % of the link from 1 to 4 MiB, 88 % at 25 MiB",
               list(of_limit(figures, ("10g-2",), {M: 0.95, 4 * M: 0.95, 25 * M: 0.88})))
    yield Case("10 Gbit/s, n = 4, 1 to 25 MiB", "1.2x the best peer",
               list(against(figures, ("10g-4",), (M, 4 * M, 25 * M), "lockstep tcp", 1.2)))
    slow = ("1g-2", "1g-4", "1g-8")
    yield Case("1 Gbit/s, n = 2, 4, 8", "99 % of the ring's limit from 256 KiB, 95 % at 32 KiB",
               list(of_limit(figures, slow, {32 * K: 0.95, 256 * K: 0.99, 25 * M: 0.99})))
    yield Case("1 Gbit/s, processor time, 25 MiB", "no more than Gloo's",
               list(cpu(figures, slow, 25 * M)))
    yield Case("2 hosts x 2 ranks, 1 Gbit/s, 25 MiB", "1.4x the best flat algorithm of a peer",
               list(against(figures, ("2x2",), (25 * M,), private, 1.4, wire="tcp")))
    yield Case("the same, ranks interleaved", "1.4x",
               list(against(figures, ("2x2-interleaved",), (25 * M,), private, 1.4, wire="tcp")))
    yield Case("both placements, 1 to 25 MiB", "98 % of the limit of two levels",
               list(of_limit(figures, ("2x2", "2x2-interleaved"), {M: 0.98, 25 * M: 0.98}, private,
                             "two levels")))
    yield Case("one compute hog per core, n = 2, 25 MiB", "at most 2.5x the idle time",
               list(beside_idle(figures, 25 * M, 0.4)))
    yield Case("the same at 32 KiB", "no cliff: ahead of the best TCP peer",
               list(against(figures, ("hogs-2",), (32 * K,), "lockstep tcp", 1.0, wire="tcp")))
