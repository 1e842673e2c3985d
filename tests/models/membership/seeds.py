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
    "own": (211857,),
    "newest": ((60110, ("taken",)),),
    "extinct": (202388,),
    "proof": (210000,),
    "silence": (210000,),
    "ready": (210082,),
    "voted": (("leave", 101, 43, 0), 210773),
    "invited": (201118, (50443, ("taken",))),
    "outranked": (51526,),
    "taken": (54727,),
}

# With one of these rules off, no violation was found. "orphan" only saves time.
UNSEEN = ("orphan", "version")
