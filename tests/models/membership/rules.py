# SPDX-License-Identifier: Apache-2.0
"""The rules by name, and the shape of a world. docs/internals/membership.md explains each rule.

Each rule can be switched off. `broken` shows that the checks then find a violation.
"""

NOBODY = (0, -1)  # a ballot below every other one

RULES = {
    "quorum": "M2 a decision needs a quorum of every open generation",
    "kept": "M2 only ranks that the decision keeps count for its quorum",
    "absolute": "M2 the size for the quorum counts dead members, too",
    "tie": "M2 only the coordinator that made a generation breaks a tie in it",
    "open": "M3 every generation that may have been started counts, not only the newest one",
    "stillborn": "M3 a vote for a change of a generation before the established one is not open",
    "overtaken": "M3 a generation is not open if a common member of a later one never started it",
    "own": "M3 a coordinator counts its own last decision as a report",
    "newest": "M3 the newest open generation that names a rank says whether it is removed",
    "extinct": "M3 a decision whose members are all dead removes nobody",
    "proof": "M4 a connection that ends proves no death: the peer may be frozen",
    "silence": "M4 a control stream that ends is no evidence",
    "ready": "M5 PREPARE is sent only when the connected ranks suffice for a decision",
    "stale": "M6 EXCLUDED is obeyed only if its ballot is not below the promise",
    "voted": "M6 a leaver whose vote came into force obeys EXCLUDED, whatever it promised since",
    "barred": "M6 a removed rank that is in the way of a decision ends by the ballot it promised",
    "resend": "M7 a frozen rank that returns with the ballot of a decision gets that decision",
    "orphan": "M7 a frozen rank tells the other coordinators that its own one is gone",
    "invited": "M7 a frozen newcomer in an open generation is a reason for PREPARE",
    "outranked": "M7 a removed rank whose promise hides its removal is a reason for PREPARE",
    "unanimous": "M8 a change is in force only if every contribution to the wave names it",
    "vote": "M9 a vote is a promise of its ballot, and is reported",
    "wait": "M10 a leaver waits until its last wave is complete",
    "flush": "M11 a leaver votes only when its stash is empty",
    "forfeit": "M12 a slot that was given up stays given up in the repetition",
    "group": "M13 a decision looks at the group of each slot",
    "below": "M14 below the minimum newcomers come by PREPARE, because no wave runs",
    "taken": "M14 a recovery for newcomers waits for the report of one",
    "finish": "M15 all members finish a step that one of them has begun",
    "closed": "M15 a decision takes newcomers only if no member has begun the step",
    "version": "M16 state that was received for another step is thrown away",
    "holder": "M17 a decision needs a member that has the whole state",
}


class Violation(Exception):
    pass


class Config:
    """A world. slots: (members, or None for all; number of elements). Slot 0 can be deferred."""

    def __init__(self, n=3, steps=3, groups=(), minimum=1, coordinators=1, defer=False, off=(),
                 newcomers=0, leavers=(), slices=2, elements=2, coalesce=False):
        self.n, self.steps, self.minimum, self.coordinators = n, steps, minimum, coordinators
        self.slots = [(None, elements)] + [(frozenset(g), 1) for g in groups]
        self.defer, self.newcomers, self.leavers = defer, newcomers, frozenset(leavers)
        self.slices = slices  # parts in which a newcomer receives its state
        self.coalesce = coalesce  # a HELLO that has not left is replaced by a newer one
        self.off = frozenset(off)
        assert self.off <= set(RULES), self.off - set(RULES)
        self.groups = {}

    def on(self, rule):
        return rule not in self.off

    def group(self, slot, members):
        """Those of the members that belong to the slot."""
        key = slot, members
        if key not in self.groups:
            only = self.slots[slot][0]
            self.groups[key] = tuple(m for m in members if only is None or m in only)
        return self.groups[key]
