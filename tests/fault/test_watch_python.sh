#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A trainer in Python that sleeps inside a C function with the interpreter's lock: its heartbeats go
# on, and say for how long it has been outside the library.
set -euo pipefail
[ -z "${LOCKSTEP_TEST_SANITIZER:-}" ] || { echo "a sanitizer's library cannot be loaded into Python"; exit 77; }
command -v python3 >/dev/null || { echo "there is no python3"; exit 77; }
exec python3 - "${LOCKSTEP_TEST_BIN:-build/bin}" "${LOCKSTEP_TEST_LIB:-build/lib}" <<'PYTHON'
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request

TRAINER = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1] + "/liblockstep.so")
session = ctypes.c_void_p()
assert library.lockstep_open(None, ctypes.byref(session)) == 0
assert library.lockstep_mark(session, b"holds the lock") == 0
ctypes.PyDLL(None).sleep(60)
"""
PATIENCE_S = 50

binaries, libraries = sys.argv[1:]
with tempfile.TemporaryDirectory() as directory:
    ports = os.path.join(directory, "ports")
    daemon = subprocess.Popen([binaries + "/lockstep-coordinator", "--listen=127.0.0.1:0",
                               "--http=127.0.0.1:0", "--log-level=error", "--port-file=" + ports])
    deadline = time.monotonic() + PATIENCE_S
    while not os.path.exists(ports) and time.monotonic() < deadline:
        time.sleep(0.02)
    with open(ports, encoding="ascii") as file:
        port = dict(part.split("=") for part in file.read().split())
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, libraries], env=dict(
        os.environ, LOCKSTEP_COORDINATOR="127.0.0.1:" + port["grpc"], LOCKSTEP_WORLD_SIZE="1",
        LOCKSTEP_JOB="locked"))
    worker = {}
    try:
        # The age of the last heartbeat counts in it: without any this is never true.
        while (worker.get("activity_ms", 0) < 3000 or worker["heartbeat_age_ms"] >= 2500
               or worker["mark"] != "holds the lock"):
            assert time.monotonic() < deadline, f"the last that was heard: {worker}"
            assert trainer.poll() is None, f"the trainer has ended: {worker}"
            time.sleep(0.1)
            try:
                url = f"http://127.0.0.1:{port['http']}/api/v1/jobs/locked"
                with urllib.request.urlopen(url) as answer:
                    worker = json.load(answer)["workers"][0]
            except (urllib.error.HTTPError, IndexError):
                continue
        assert worker["activity"] == "outside", worker
        assert worker["state"] == "present", worker
    finally:
        trainer.kill()
        trainer.wait()
        daemon.terminate()
        daemon.wait()
PYTHON
