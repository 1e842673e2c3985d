# SPDX-License-Identifier: Apache-2.0
"""What is abused: a coordinator with certificates and a token, and a job of three ranks on it.

Also who watches it, in a thread: steps, the longest time without one, memory. Attacks nothing itself.
"""

import glob
import json
import os
import re
import secrets
import socket
import ssl
import struct
import subprocess
import threading
import time


BUILD = os.environ.get("BUILD", "build")
BIN = os.environ.get("LOCKSTEP_TEST_BIN", os.path.join(BUILD, "bin"))
RANKS = 3
JOB = "secret-job"
MODULE = "secret_module"
WATCHER = "127.0.0.99"  # Bounds of one address hold for the others.
LOOK_S = 0.02


def resident_mib(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1)) / 1024


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def listening_now(process):
    """A TCP port on which a process listens; None: it listens on none."""
    inodes = set()
    for path in glob.glob(f"/proc/{process.pid}/fd/*"):
        try:
            inodes.add(os.readlink(path))
        except FileNotFoundError:
            pass
    with open(f"/proc/{process.pid}/net/tcp", encoding="utf-8") as file:
        for line in file.readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                return int(fields[1].split(":")[1], 16)
    return None


def listening_port(process):
    """The TCP port on which a process listens, once it does."""
    while process.poll() is None:
        port = listening_now(process)
        if port is not None:
            return port
        time.sleep(0.05)
    raise AssertionError("the rank that waits has ended")


def free_ports(count):
    """Of TCP on loopback; nobody else has them now."""
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in taken]
    for server in taken:
        server.close()
    return ports


class Victim:
    """Started and watched until `end`."""

    def __init__(self, folder, *flags):
        """flags: of the coordinator, beside the usual ones."""
        self.flags = flags
        self.folder = folder
        self.pki = os.path.join(folder, "pki")
        self.job = JOB
        self.token = secrets.token_hex(32)
        self.log = os.path.join(folder, "daemon.log")
        self.standstill = 0.0
        self.daemon_mib = self.worker_mib = 0.0
        self.held = 0  # Descriptors of the coordinator.
        self.workers = []
        self.waiting = None
        self.daemon = None
        self.watching = True
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def lockstep(self, *arguments):
        subprocess.run([f"{BIN}/lockstep", *arguments], check=True, stdout=subprocess.DEVNULL)

    def start(self):
        self.lockstep("certs", "init", "--dir", self.pki, "--name", "127.0.0.1")
        self.lockstep("certs", "issue", "--dir", self.pki, "--role", "observer",
                      "--out", f"{self.pki}/observer")
        self.lockstep("certs", "issue", "--dir", self.pki, "--role", "worker", "--job", "other",
                      "--out", f"{self.pki}/other")
        self.lockstep("certs", "init", "--dir", f"{self.folder}/rogue", "--name", "127.0.0.1")
        token_file, ports = f"{self.folder}/token", f"{self.folder}/ports"
        with open(os.open(token_file, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
            file.write(self.token + "\n")
        with open(self.log, "w", encoding="utf-8") as log:
            self.daemon = subprocess.Popen(
                [f"{BIN}/lockstep-coordinator", "--listen=127.0.0.1:0", "--http=127.0.0.1:0",
                 *self.certificates(), f"--http-token-file={token_file}", f"--port-file={ports}",
                 f"--parent-death={os.getpid()}", *self.flags], stderr=log)
        while not os.path.exists(ports):
            assert self.daemon.poll() is None, open(self.log, encoding="utf-8").read()
            time.sleep(0.02)
        with open(ports, encoding="utf-8") as file:
            self.grpc, self.http = (int(port) for port in re.findall(r"=(\d+)", file.read()))
        self.training = free_ports(RANKS)
        self.workers = [self.worker(f"{BUILD}/tests/abuse/trainer", self.folder, job=JOB, world=RANKS,
                                    LOCKSTEP_DATA_PORTS=f"{port}-{port}") for port in self.training]
        while self.steps() < 20:
            self.must_run()
            time.sleep(0.05)
        # Strangers meet a rank that waits for another, too.
        self.waiting = self.worker(f"{BUILD}/examples/hello", job="waiting", world=2,
                                   LOCKSTEP_OPEN_TIMEOUT_MS="3000000")
        self.data = [listening_port(self.waiting)]
        self.ports = [self.grpc, self.http, *self.data]
        self.secrets = [JOB, MODULE, "\"threads\"", socket.gethostname()] + [
            f":{port}" for port in self.data + self.training]
        self.thread.start()

    def certificates(self):
        """Flags of the coordinator."""
        return ["--http-tls", f"--tls-dir={self.pki}/coordinator"]

    def worker(self, *command, job, world, **more):
        environment = {**os.environ, "LOCKSTEP_JOB": job, "LOCKSTEP_WORLD_SIZE": str(world),
                       "LOCKSTEP_COORDINATOR": f"127.0.0.1:{self.grpc}", "LOCKSTEP_TRANSPORT": "tcp",
                       "LOCKSTEP_TLS_DIR": f"{self.pki}/worker", "LOCKSTEP_OPEN_TIMEOUT_MS": "20000", **more}
        if not self.certificates():
            del environment["LOCKSTEP_TLS_DIR"]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)

    def newcomer(self):
        """Another job begins and ends; how long it took."""
        begun = time.monotonic()
        process = self.worker(f"{BUILD}/examples/hello", job="newcomer", world=1)
        assert process.wait(30) == 0, "a newcomer was kept out"
        return time.monotonic() - begun

    def must_run(self):
        assert self.daemon.poll() is None, "the coordinator has ended"
        for worker in self.workers:
            assert worker.poll() is None, "a rank has ended"

    @staticmethod
    def listens(worker):
        return listening_now(worker) is not None

    def steps(self):
        try:
            with open(f"{self.folder}/steps", "rb") as file:
                return struct.unpack("=I", file.read(4))[0]
        except (FileNotFoundError, struct.error):
            return 0

    def watch(self):
        last, since = self.steps(), time.monotonic()
        while self.watching:
            steps, now = self.steps(), time.monotonic()
            self.standstill = max(self.standstill, now - since)
            if steps != last:
                last, since = steps, now
            try:
                self.daemon_mib = max(self.daemon_mib, resident_mib(self.daemon.pid))
                self.held = max(self.held, descriptors(self.daemon.pid))
                self.worker_mib = max([self.worker_mib] + [resident_mib(w.pid) for w in self.workers])
            except (FileNotFoundError, AttributeError):
                pass  # It has ended, which must_run says.
            time.sleep(LOOK_S)

    def forget(self):
        """What is measured begins anew."""
        self.standstill = self.daemon_mib = self.worker_mib = 0.0
        self.held = 0

    def context(self, certificate=None):
        """Believes the coordinator; shows a certificate of that directory."""
        context = ssl.create_default_context(cafile=f"{self.pki}/ca.crt")
        if certificate:
            context.load_cert_chain(f"{certificate}/tls.crt", f"{certificate}/tls.key")
        return context

    def https(self, source=WATCHER, timeout=10):
        plain = socket.create_connection(("127.0.0.1", self.http), timeout, (source, 0))
        return self.context().wrap_socket(plain, server_hostname="127.0.0.1")

    def get(self, path, token=None):
        """Status line, headers and body, as text."""
        authorization = f"Authorization: Bearer {token}\r\n" if token else ""
        with self.https() as stream:
            stream.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{authorization}Connection: close\r\n\r\n"
                           .encode())
            parts = []
            while part := stream.recv(65536):
                parts.append(part)
        return b"".join(parts).decode(errors="replace")

    def metric(self, name):
        """The value of a metric without labels."""
        return int(re.search(rf"^lockstep_coordinator_{name} (\d+)$", self.get("/metrics"), re.MULTILINE).group(1))

    def no_alarm(self):
        """The job is as it was: no stall was ever seen, nothing ended, nobody joined."""
        self.must_run()
        stalls = self.get("/api/v1/stalls", self.token).split("\r\n\r\n", 1)[1]
        assert json.loads(stalls) == {"stalls": []}, stalls
        job = json.loads(self.get(f"/api/v1/jobs/{JOB}", self.token).split("\r\n\r\n", 1)[1])
        state = [job[key] for key in ("state", "joined", "left", "stalled")]
        assert state == ["running", RANKS, 0, False] and job["generation"]["number"] == 1, state
        return job

    def end(self):
        """The job ends well, and then the coordinator does."""
        open(f"{self.folder}/enough", "w", encoding="utf-8").close()
        codes = [worker.wait(30) for worker in self.workers]
        assert codes == [0] * RANKS, f"the ranks ended with {codes}"
        self.watching = False
        self.waiting.kill()
        self.waiting.wait()
        self.daemon.terminate()
        assert self.daemon.wait(30) == 0, "the coordinator did not end well"

    def kill(self):
        self.watching = False
        for process in [*self.workers, self.waiting, self.daemon]:
            if process and process.poll() is None:
                process.kill()
                process.wait()


class PlainVictim(Victim):
    """The same on loopback in plaintext, as without certificates."""

    def certificates(self):
        return []

    def https(self, source=WATCHER, timeout=10):
        return socket.create_connection(("127.0.0.1", self.http), timeout, (source, 0))
