# SPDX-License-Identifier: Apache-2.0
"""Known counterexamples: without the rule the run is violated, and with all rules it is not.

An entry is the seed of a random world, or (seed, other rules that are off in both runs), or a run
of a sweep: (scenario, seed, event, number of the choice).
"""

SEEDS = {
    "quorum": (210100,),
    "kept": (52111, 55752),  # two worlds after a split
    "absolute": (210280,),
    "tie": (210129,),
    "open": (210008,),
    "stillborn": (401504,),
    "own": (404528,),
    "overtaken": (471163,),
    "newest": ((60110, ("taken", "barred", "overtaken")),),
    "extinct": (202388,),
    "proof": (210003,),
    "silence": (210000,),
    "ready": (210082,),
    "stale": (210133,),
    "vote": (210954,),
    "voted": ((210773, ("barred",)),),
    "barred": (307039, 310288, 310711, 316685),
    "invited": (201118, (50443, ("taken",))),
    "outranked": (51526,),
    "unanimous": (210016,),
    "wait": (210111,),
    "flush": (210016,),
    "forfeit": (210003,),
    "group": (210003,),
    "below": (210008,),
    "taken": (54727,),
    "finish": (210071,),
    "closed": (210006,),
    "holder": (210082,),
}

# With one of these rules off, no violation was found. "orphan" and "resend" only save time.
UNSEEN = ("orphan", "resend", "version")
