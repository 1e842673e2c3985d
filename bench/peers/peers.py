# SPDX-License-Identifier: Apache-2.0
"""Whom we measure, and how each is started in a place with its best settings.

A variant is one way to run one implementation: its own word comes before the slash of its name, what
is forced comes behind. Variants of one family compete with each other first: what counts in the table
is the best of them for each size.
"""

import dataclasses
import os
import shutil
import subprocess
import time

import samples
from places import address

HERE = os.path.dirname(os.path.abspath(__file__))
END_S = 2.0  # For a peer to end by itself; MPICH's finalize hangs at times.
AGENT = os.path.join(HERE, "agent")


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str
    family: str
    kind: str  # Kind of program: lockstep, openmpi, mpich, gloo, pytorch.
    wire: str  # "memory", "tcp", or "both": memory inside a host, TCP between hosts.
    settings: tuple = ()  # Pairs; what they mean depends on the kind.
    warm_only: bool = False
    essential: bool = False  # Also in a quick run.
    rounds: int = 1000  # At most; some take long to start.

    @property
    def ours(self):
        return self.kind == "lockstep"


def lockstep_variants(place):
    def one(name, transport, memory):
        return Variant(f"lockstep {name}", f"Lockstep {name}", "lockstep",
                       "tcp" if transport == "tcp" else "both",
                       (("PEER_TRANSPORT", transport), ("PEER_MEMORY", memory)), essential=True)

    if place.per_host > 1:
        yield one("registered", "auto", "registered")
        yield one("private", "auto", "private")
    yield one("tcp", "tcp", "private")


def openmpi_variants(place, cores):
    crowded = place.ranks > cores or place.hogs
    yields = (True,) if crowded else (False,) if place.hosts == 1 else (False, True)
    wires = ["memory", "tcp"] if place.hosts == 1 else ["tcp"]
    if place.hosts > 1 and place.per_host > 1:
        wires.append("both")
    names = {"memory": "shared memory", "tcp": "TCP", "both": "two levels"}
    forced = {"ring": 4, "segmented-ring": 5, "rabenseifner": 6, "doubling": 3}
    for wire in wires:
        for idle in yields:
            base = (("mpi_yield_when_idle", str(int(idle))),)
            word = f"openmpi {names[wire]}" + (" yield" if idle else "")
            family = f"OpenMPI {names[wire]}"
            yield Variant(word, family, "openmpi", wire, base, essential=idle == yields[-1])
            for algorithm, number in forced.items():
                yield Variant(f"{word}/{algorithm}", family, "openmpi", wire, base + (
                    ("coll_tuned_use_dynamic_rules", "1"),
                    ("coll_tuned_allreduce_algorithm", str(number))))


def mpich_variants(place, cores):
    transports = {"memory": "posix,cma,self", "tcp": "tcp,self", "both": "posix,cma,tcp,self"}
    names = {"memory": "shared memory", "tcp": "TCP", "both": "two levels"}
    wires = ["memory", "tcp"] if place.hosts == 1 else ["tcp"]
    if place.hosts > 1 and place.per_host > 1:
        wires.append("both")
    for wire in wires:
        base = (("UCX_TLS", transports[wire]), ("UCX_NET_DEVICES", place.interface),
                ("MPIR_CVAR_NOLOCAL", str(int(wire == "tcp"))))
        if place.ranks > cores or place.hogs:
            base += (("MPIR_CVAR_POLLS_BEFORE_YIELD", "1"),)
        family = f"MPICH {names[wire]}"
        yield Variant(f"mpich {names[wire]}", family, "mpich", wire, base, essential=True)
        for algorithm in ("reduce_scatter_allgather", "recursive_doubling"):
            yield Variant(f"mpich {names[wire]}/{algorithm}", family, "mpich", wire,
                          base + (("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM", algorithm),))


def gloo_variants():
    for algorithm in ("ring", "bcube", "halving_doubling", "ring_chunked"):
        yield Variant(f"gloo/{algorithm}", "Gloo", "gloo", "tcp", (("PEER_ALGORITHM", algorithm),),
                      warm_only=algorithm in ("halving_doubling", "ring_chunked"),
                      essential=algorithm in ("ring", "halving_doubling"))


def variants(place, cores):
    """All that make sense in a place."""
    everything = list(lockstep_variants(place))
    everything += openmpi_variants(place, cores)
    everything += mpich_variants(place, cores)
    everything += gloo_variants()
    if place.ranks <= 4:
        everything.append(Variant("pytorch", "PyTorch (Gloo)", "pytorch", "tcp", rounds=2))
    return everything


class Programs:
    """Where the drivers and launchers are. Why one is missing is a sentence."""

    def __init__(self, build):
        self.build = build
        self.lockstep = os.path.join(build, "bin", "lockstep")
        self.coordinator = os.path.join(build, "bin", "lockstep-coordinator")
        self.python = os.environ.get("TORCH_PYTHON",
                                     os.path.join(build, "venv-torch", "bin", "python"))
        self.torch_version = self.ask_torch()

    def driver(self, kind):
        return os.path.join(self.build, "peers", kind)

    def ask_torch(self):
        code = "import torch; print(torch.__version__)"
        try:
            return subprocess.run([self.python, "-c", code], capture_output=True, text=True,
                                  timeout=120, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return None

    def missing(self, kind):
        if kind == "pytorch":
            return None if self.torch_version else "not installed: `make torch` installs it"
        launcher = {"openmpi": "mpirun.openmpi", "mpich": "mpiexec.hydra"}.get(kind)
        if not os.path.exists(self.driver(kind)) or (launcher and not shutil.which(launcher)):
            return "not installed: see bench/peers/deps.txt"
        return None


class Launch:
    """The processes of one variant in one place, from their start to their end."""

    def __init__(self, programs, hosts, variant, folder):
        self.programs = programs
        self.hosts = hosts
        self.place = hosts.place
        self.variant = variant
        self.folder = folder  # Empty, for this launch alone.
        self.processes = []
        self.errors = open(os.path.join(folder, "errors"), "w+", encoding="utf-8")

    def start(self, arguments):
        """Starts the ranks with the driver's arguments. --out is ours."""
        arguments = arguments + ["--out", os.path.join(self.folder, "rank")]
        getattr(self, "start_" + self.variant.kind)(arguments)

    def spawn(self, host, command, environment):
        self.processes.append(subprocess.Popen(
            self.hosts.inside(host) + command, stdin=subprocess.DEVNULL,
            stdout=self.errors, stderr=self.errors, start_new_session=True,
            env=dict(os.environ, TMPDIR=self.folder, **self.congestion(), **environment)))

    def congestion(self):
        return {} if self.variant.ours else {"LD_PRELOAD": self.programs.driver("cubic.so")}

    def spawn_ranks(self, command, environment):
        """One process for each rank: for those that need no launcher of their own."""
        size = self.place.ranks
        for rank in range(size):
            self.spawn(self.place.host_of(rank), command, dict(
                environment, PEER_RANK=str(rank), PEER_SIZE=str(size), LOCKSTEP_RANK_HINT=str(rank)))

    def host_list(self, per_host):
        return ",".join(f"host{host}:{per_host}" for host in range(self.place.hosts))

    def start_lockstep(self, arguments):
        self.spawn_ranks([self.programs.driver("lockstep"), *arguments],
                         dict(self.variant.settings, **self.coordinator()))

    def coordinator(self):
        """Starts one on the first host and returns what its workers need to know."""
        ports = os.path.join(self.folder, "ports")
        at = address(self.place, 0)
        command = [self.programs.coordinator, "--listen", f"{at}:0", "--http", "off",
                   "--port-file", ports]
        command += ["--log-level", "warn"]
        self.spawn(0, command + ["--insecure-plaintext"] * (self.place.hosts > 1), {})
        daemon = self.processes.pop()
        deadline = time.monotonic() + 20
        while not os.path.exists(ports):
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the coordinator did not start: " + self.said())
            time.sleep(0.01)
        with open(ports, encoding="utf-8") as file:
            port = file.read().split()[0].removeprefix("grpc=")
        return {"LOCKSTEP_COORDINATOR": f"{at}:{port}", "LOCKSTEP_JOB": "peers",
                "LOCKSTEP_INSECURE_PLAINTEXT": "1" if self.place.hosts > 1 else "0",
                "LOCKSTEP_WORLD_SIZE": str(self.place.ranks), "LOCKSTEP_OPEN_TIMEOUT_MS": "30000"}

    def start_openmpi(self, arguments):
        wires = {"memory": "vader,self", "tcp": "tcp,self", "both": "vader,tcp,self"}
        settings = [("pml", "ob1"), ("btl", wires[self.variant.wire]), ("plm_rsh_agent", AGENT),
                    ("btl_tcp_if_include", self.place.interface),
                    ("oob_tcp_if_include", self.place.interface), *self.variant.settings]
        command = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                   "--map-by", "node" if self.place.interleaved else "slot",
                   "-np", str(self.place.ranks), "-H", self.host_list(self.place.per_host)]
        for name, value in settings:
            command += ["--mca", name, value]
        self.spawn(0, command + [self.programs.driver("openmpi"), *arguments],
                   {"PEER_HOSTS": self.hosts.folder})

    def start_mpich(self, arguments):
        # It goes round the hosts again when it has filled them.
        at_once = 1 if self.place.interleaved else self.place.per_host
        command = ["mpiexec.hydra", "-launcher", "ssh", "-launcher-exec", AGENT, "-iface",
                   self.place.interface, "-hosts", self.host_list(at_once), "-n",
                   str(self.place.ranks)]
        self.spawn(0, command + [self.programs.driver("mpich"), *arguments],
                   dict(self.variant.settings, PEER_HOSTS=self.hosts.folder))

    def store(self):
        path = os.path.join(self.folder, "store")
        os.mkdir(path)
        return path

    def start_gloo(self, arguments):
        self.spawn_ranks([self.programs.driver("gloo"), *arguments], dict(
            self.variant.settings, PEER_STORE=self.store(), PEER_INTERFACE=self.place.interface))

    def start_pytorch(self, arguments):
        self.spawn_ranks([self.programs.python, os.path.join(HERE, "pytorch.py"), *arguments], {
            "PEER_STORE": self.store(), "GLOO_SOCKET_IFNAME": self.place.interface,
            "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"})

    def wait(self, timeout_s):
        """None when all ended well, or have measured everything; else a sentence."""
        deadline = time.monotonic() + timeout_s
        ending = None
        for process in self.processes:
            while True:
                try:
                    code = process.wait(0.25)
                    break
                except subprocess.TimeoutExpired:
                    now = time.monotonic()
                    ending = ending or (now + END_S if self.done() else None)
                    if ending and now > ending:
                        return None
                    if now > deadline:
                        return f"killed after {timeout_s:.0f} s: {self.said()}"
            if code != 0 and not self.done():
                return f"ended with {code}: {self.said()}"
        return None

    def done(self):
        """Whether every rank has written its last line."""
        for rank in range(self.place.ranks):
            try:
                with open(os.path.join(self.folder, f"rank.{rank}.jsonl"), "rb") as file:
                    file.seek(-len(samples.DONE) - 1, os.SEEK_END)
                    if file.read().strip() != samples.DONE.encode():
                        return False
            except OSError:
                return False
        return True

    def said(self):
        """The last lines of its processes."""
        self.errors.flush()
        with open(self.errors.name, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file.read().split("\n") if line.strip(" -=")]
        return " | ".join(lines[-4:])[:400] or "it said nothing"

    def close(self):
        self.errors.close()
