# SPDX-License-Identifier: Apache-2.0
"""One client that begins as many jobs as it can. Its jobs never get all their workers, so each holds a place in the
coordinator's table until its open timeout."""

import json
import time

import sockets
import strangers

PLACES, OF_ONE_ADDRESS = 64, 32  # LOCKSTEP_MAX_JOBS, LOCKSTEP_ORIGIN_GATHERING
FEWER = 30  # Jobs of each of two addresses: together more than the places that the first address has left.
TIMEOUT_S, LATE_S = 15, 4  # The open timeout of each job; how much later its place has to be free.
ANSWER_S = 10
LIMIT = b"jobs that began at this worker's address are waiting"


def begin_jobs(victim, address, count):
    """Connections from one address, each of which begins a job of two workers."""
    context = sockets.h2_context(victim, f"{victim.pki}/worker")  # It allows every job.
    version, streams = strangers.protocol_version(), []
    for number in range(count):
        name = f"held-{address}-{number}"
        stream = sockets.h2_connect(victim, None, context, address)
        said = sockets.hello(name, version, name.encode()[-16:], 2, 1000 * TIMEOUT_S)
        stream.sendall(sockets.h2_headers(sockets.SESSION) + sockets.h2_message(said))
        streams.append(stream)
    return streams


def held(victim):
    """How many jobs of ours wait for their workers now."""
    jobs = json.loads(victim.get("/api/v1/jobs", victim.token).split("\r\n\r\n", 1)[1])["jobs"]
    return sum(job["name"].startswith("held-") and job["state"] == "gathering" and job["joined"] > 0 for job in jobs)


def wait_held(victim, count, seconds):
    """Until that many wait, or the time is over; how many do."""
    begun = time.monotonic()
    while (found := held(victim)) != count and time.monotonic() - begun < seconds:
        time.sleep(0.1)
    return found


def job_table(victim):
    """A worker's certificate for every job asks for every place of the table, then waits for its timeouts; then two
    addresses hold more places than there were left."""
    begun = time.monotonic()
    streams = begin_jobs(victim, "127.0.0.2", PLACES)
    try:
        found = wait_held(victim, OF_ONE_ADDRESS, ANSWER_S)
        assert found == OF_ONE_ADDRESS, f"one address holds {found} places of {PLACES}"
        refused = sum(LIMIT in sockets.hear(stream, 0.1)[0] for stream in streams[OF_ONE_ADDRESS:])
        assert refused == PLACES - OF_ONE_ADDRESS, f"{refused} hellos above the limit were answered with its sentence"
        took = victim.newcomer()
        assert held(victim) == OF_ONE_ADDRESS, "the jobs ended before the newcomer did: nothing was shown"
        left = wait_held(victim, 0, TIMEOUT_S + LATE_S)
        free_s = time.monotonic() - begun
        assert left == 0, f"{left} places are held {free_s:.0f} s after a timeout of {TIMEOUT_S} s began"
        for address in ("127.0.0.3", "127.0.0.4"):
            streams += begin_jobs(victim, address, FEWER)
        found = wait_held(victim, 2 * FEWER, ANSWER_S)
        assert found == 2 * FEWER, f"{found} of {2 * FEWER} places could be had after the timeouts"
        victim.newcomer()
    finally:
        sockets.close(streams)
    return (f"{PLACES} jobs asked for, {OF_ONE_ADDRESS} held; a newcomer needed {1000 * took:.0f} ms; free after {free_s:.1f} s, "
            f"then {2 * FEWER} places were had")
