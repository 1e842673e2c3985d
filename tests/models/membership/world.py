# SPDX-License-Identifier: Apache-2.0
"""The state of the model: workers, coordinators, streams, and what is on the wire.

Every value inside is immutable, and is replaced as a whole. So a copy of a world is cheap, and two
worlds can be compared (World.key).
"""
from collections import namedtuple

from rules import NOBODY

# A ballot is (number, coordinator). maker: the coordinator that made the generation.
Generation = namedtuple("Generation", "ballot members maker")
# A planned change. after: the ballot of the generation that it follows.
Change = namedtuple("Change", "ballot members maker after")
# What a worker tells, in HELLO and in REPORT. It describes memory, never history.
Record = namedtuple(
    "Record", "rank new generation chain promised frozen gone left done final_all begun contributed"
    " final full leaving flushed held dead cut told orphan")
Decision = namedtuple("Decision", "kind generation chain done redo removed begun left")
# up and down: messages on their way. dead: the side that ended the stream, or None.
Stream = namedtuple("Stream", "up down dead")
OPENED = Stream((), (), None)


def put(values, at, value):
    """The tuple with one place replaced."""
    return values[:at] + (value,) + values[at + 1:]


def copy_of(x):
    new = object.__new__(type(x))
    new.__dict__.update(x.__dict__)
    return new


class Worker:
    """One process. A newcomer has no generation."""

    def __init__(self, rank, first, config, leaving):
        self.rank, self.alive, self.stopped = rank, True, False
        self.power = False  # True if it died with its host, so that nobody can prove it
        self.told = None  # None, "excluded" or "left"; afterwards the process does nothing any more
        self.out = None  # the ballot of the decision that excluded it
        self.generation = first
        # From the last generation known to be established to the newest one that it started.
        self.chain = (first,) if first else ()
        self.promised, self.frozen = (first.ballot if first else NOBODY), False
        self.gone = frozenset()  # ranks that decisions removed
        self.left = frozenset()  # (rank that left in order, first step without it)
        self.dead, self.cut = frozenset(), frozenset()  # proven dead; not reached by its links
        self.held = None  # the planned change that it knows
        self.leaving = leaving
        self.done = 0  # steps committed
        self.full, self.state = first is not None, ()
        self.slices = (None,) * config.slices
        self.stash = frozenset()  # deferred gradients
        self.results, self.made = (), ()  # for the checks
        self.open_step(config)

    def open_step(self, config):
        self.input = (None,) * len(config.slots)  # the samples that it contributes to each slot
        self.final = tuple((None,) * size for _, size in config.slots)
        self.redo = (None,) * len(config.slots)  # rows of a decision: "reduce", or the owner
        self.begun = False  # step_begin returned
        self.must = False  # another member has begun this step
        self.vote = None  # the change that rides in its contribution to the wave


class Coordinator:
    """One incarnation. It holds what workers told it, and its own last decision and plan."""

    def __init__(self, number):
        self.number, self.alive, self.stopped = number, True, False
        self.seen = 0  # the highest number of a ballot that it has heard of
        self.ballot, self.collecting, self.reason = None, False, None
        self.records, self.reports = {}, {}
        self.backoff = False  # it was refused, and waits for the timer
        self.forced = False  # the timer has expired
        self.decision, self.removed = None, frozenset()
        self.plan = None
        self.tries = 0
        self.next = None  # what it would do next, remembered until it hears something


class World:
    def __init__(self, config, chance):
        """chance: random.Random, or what chooses in its place."""
        self.config, self.chance, self.events = config, chance, 0
        first = Generation((1, 0), tuple(range(config.n)), 0)
        self.workers = {r: Worker(r, first if r < config.n else None, config, r in config.leavers)
                        for r in range(config.n + config.newcomers)}
        self.coordinators = {i: Coordinator(i) for i in range(config.coordinators)}
        self.streams = {}  # (worker, coordinator) -> Stream
        self.blocked = frozenset()  # (worker, coordinator) that do not reach each other
        self.cuts = frozenset()  # pairs of workers that do not reach each other
        self.ever_cut = frozenset()  # workers that ever had a cut link
        self.sent = {}  # (ballot, step, slot, worker) -> its input, on the wire
        self.given = {}  # (ballot, step, slot, element) -> final value, handed on by its owner
        self.wave = {}  # (ballot, step, worker) -> the change in its contribution, or None
        self.donor = {}  # (ballot, step) -> state of a member that started there whole
        self.start = {}  # (newcomer, ballot) -> what a member tells it that has switched
        self.lost = frozenset()  # (worker, ballot): it will never get all frames of that generation
        self.ledger = {}  # (step, worker) -> (generation, values) that it committed
        self.after = {}  # ballot of a decision or change -> that of the generation it follows

    def clone(self):
        new = copy_of(self)
        new.workers = {r: copy_of(k) for r, k in self.workers.items()}
        new.coordinators = {i: copy_of(c) for i, c in self.coordinators.items()}
        for name in ("streams", "sent", "given", "wave", "donor", "start", "ledger",
                     "after"):
            setattr(new, name, dict(getattr(self, name)))
        return new

    def key(self):
        """Two worlds with equal keys have the same future."""
        parts = [tuple(k.__dict__.values()) for k in self.workers.values()]
        for c in self.coordinators.values():
            parts.append(tuple(frozenset(v.items()) if type(v) is dict else v
                               for name, v in c.__dict__.items() if name != "next"))
        for table in (self.streams, self.sent, self.given, self.wave, self.donor, self.start,
                      self.ledger, self.after):
            parts.append(frozenset(table.items()))
        return hash((tuple(parts), self.blocked, self.cuts, self.ever_cut, self.lost))

    def acting(self, rank):
        k = self.workers[rank]
        return k.alive and not k.stopped and not k.told

    def ended(self, rank):
        k = self.workers[rank]
        return not k.alive or k.told is not None

    def reach(self, rank, number):
        """The stream between a worker and a coordinator, if it can carry a message."""
        stream = self.streams.get((rank, number))
        return stream if stream and not stream.dead else None

    def follows(self, ballot, generation):
        """True if the decision of that ballot follows the generation, directly or not."""
        while ballot is not None and ballot != generation.ballot:
            ballot = self.after.get(ballot)
        return ballot is not None

    def say_up(self, rank, number, message):
        stream = self.reach(rank, number)
        if stream:
            up = stream.up
            if self.config.coalesce and up and up[-1][0] == message[0] == "hello":
                up = up[:-1]
            self.streams[rank, number] = stream._replace(up=up + (message,))

    def say_down(self, rank, number, message):
        stream = self.reach(rank, number)
        if stream:
            self.streams[rank, number] = stream._replace(down=stream.down + (message,))
