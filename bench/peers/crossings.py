# SPDX-License-Identifier: Apache-2.0
"""What an allreduce sends over the link of a host, by its algorithm and by where its ranks live.

All in shares of the payload, in one direction, on the host that sends most: divided by what a link can
carry this is a limit that no implementation of the algorithm can pass. Pure. The algorithms are
described in worker/transport/pair/schedule.h and worker/transport/ring/schedule.h; the peers' exchange with the same ranks in the same order.
"""

# The words of variants behind the slash, and of our own, by what they do.
ALGORITHMS = {
    "ring": "ring", "segmented-ring": "ring", "ring_chunked": "ring",
    "doubling": "doubling", "recursive_doubling": "doubling",
    "rabenseifner": "halving", "reduce_scatter_allgather": "halving", "halving_doubling": "halving",
    "bcube": "halving",
    "lockstep private": "two levels", "lockstep registered": "two levels",
}


def algorithm_of(variant):
    """None: it chooses by itself."""
    return ALGORITHMS.get(variant.split("/")[-1])


def hosts_of(place):
    """The host of each rank of a place (as a report has it)."""
    if place.get("interleaved"):
        return [rank % place["hosts"] for rank in range(place["ranks"])]
    return [rank // place["per_host"] for rank in range(place["ranks"])]


def sent_by_ring(ranks):
    return [((rank + 1) % ranks, rank, 2 * (ranks - 1) / ranks) for rank in range(ranks)]


def sent_by_pairs(ranks, share):
    """Rounds between powers of two; those that are left hand over all of it, and get all of it."""
    core = 1 << (ranks.bit_length() - 1)
    for rank in range(core, ranks):
        yield rank - core, rank, 1
        yield rank, rank - core, 1
    for turn in range(core.bit_length() - 1):
        for rank in range(core):
            yield rank ^ (1 << turn), rank, share(turn)


def crossings(hosts, algorithm):
    """Of `hosts`, the host of each rank."""
    count = len(set(hosts))
    if algorithm == "two levels":
        return 2 * (count - 1) / count
    if algorithm == "ring":
        sent = sent_by_ring(len(hosts))
    elif algorithm == "doubling":
        sent = sent_by_pairs(len(hosts), lambda turn: 1)
    else:
        sent = sent_by_pairs(len(hosts), lambda turn: 2 * 0.5 ** (turn + 1))
    totals = dict.fromkeys(hosts, 0)
    for to, rank, share in sent:
        if hosts[to] != hosts[rank]:
            totals[hosts[rank]] += share
    return max(totals.values())


def limit_ns(place, size, algorithm):
    """None: the links of the place are not shaped."""
    rate = place["payload_bytes_per_s"]
    return crossings(hosts_of(place), algorithm) * size / rate * 1e9 if rate else None
