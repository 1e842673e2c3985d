#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the coordinator costs with many workers that say once a second where they are: `make load`.

The workers are simulated, in processes of 100, but their streams are real. One client listens to the
page's events meanwhile, another one scrapes the metrics. Prints one line, and fails above the bounds.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

BUILD = os.environ.get("BUILD", "build")
BIN = os.environ.get("LOCKSTEP_TEST_BIN", os.path.join(BUILD, "bin"))
SECONDS = 15
PART = 100
MOST_SHARE = 0.15  # Share of one core.
MOST_MIB = 100


def ticks(pid):
    """Processor time of a process, in seconds."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1)) / 1024


def listen(url, heard):
    """The page's stream, as the page reads it."""
    with urllib.request.urlopen(url) as stream:
        for line in stream:
            if line.startswith(b"data: {\"job\""):
                heard.append((time.monotonic(), len(line)))


def start(folder, workers):
    ports = os.path.join(folder, "ports")
    daemon = subprocess.Popen([f"{BIN}/lockstep-coordinator", "--listen=127.0.0.1:0",
                               "--http=127.0.0.1:0", "--log-level=warn", f"--port-file={ports}",
                               f"--parent-death={os.getpid()}"])
    while not os.path.exists(ports):
        time.sleep(0.02)
    grpc, http = re.findall(r"=(\d+)", open(ports, encoding="utf-8").read())
    fleets = [subprocess.Popen([os.path.join(BUILD, "tests/load/fleet"), f"--workers={workers}",
                                f"--address=127.0.0.1:{grpc}", f"--first={first}",
                                f"--count={min(PART, workers - first)}"], stdout=subprocess.PIPE)
              for first in range(0, workers, PART)]
    return daemon, fleets, f"http://127.0.0.1:{http}"


def measure(daemon, url, workers):
    heard = []
    threading.Thread(target=listen, args=(url + "/events", heard), daemon=True).start()
    time.sleep(2)  # Starting is not what is measured.
    heard.clear()
    begun, used = time.monotonic(), ticks(daemon.pid)
    time.sleep(SECONDS)
    share = (ticks(daemon.pid) - used) / (time.monotonic() - begun)
    with urllib.request.urlopen(url + "/api/v1/jobs") as answer:
        job = json.load(answer)["jobs"][-1]
    assert job["state"] == "running" and job["joined"] == workers, job
    assert len(heard) >= SECONDS - 2, f"{len(heard)} states in {SECONDS} s"
    return share, resident_mib(daemon.pid), heard[-1][1]


def main():
    workers = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        daemon, fleets, url = start(folder, workers)
        try:
            for fleet in fleets:
                assert b"train" in fleet.stdout.readline(), "a fleet did not start"
            share, mib, state_bytes = measure(daemon, url, workers)
        finally:
            for process in fleets:
                process.kill()
            daemon.terminate()
            daemon.wait(30)
    print(f"{workers} workers at 1 Hz: {100 * share:.1f} % of a core, {mib:.0f} MiB, "
          f"a state of the page has {state_bytes / 1024:.0f} KiB")
    return int(share > MOST_SHARE or mib > MOST_MIB)


if __name__ == "__main__":
    sys.exit(main())
