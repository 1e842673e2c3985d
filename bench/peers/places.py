# SPDX-License-Identifier: Apache-2.0
"""Hosts out of namespaces: where the ranks of a measurement live, and the links between them.

Every host has a network, a name (UTS) and shared memory (IPC) of its own, kept by one sleeping process; the switch between
them is another. None has a name in the file system: when their keepers have ended, for whatever
reason, everything is gone. Whoever uses this runs below `unshare --pid --kill-child` (run.py does),
so that keepers end with it, and with them all that was started.
"""

import contextlib
import dataclasses
import os
import subprocess

MTU = 1500
FRAME = MTU + 14  # Bytes of a packet that the shaper counts.
PAYLOAD = MTU - 52  # Bytes without the headers of IPv4 and TCP with time stamps.


@dataclasses.dataclass(frozen=True)
class Place:
    """So many hosts with so many ranks each."""

    name: str
    title: str
    hosts: int
    per_host: int = 1
    mbit: int = 0  # Rate of each host's link; 0: not shaped.
    interleaved: bool = False  # Ranks go round the hosts; else each host has a row of them.
    hogs: bool = False  # One process on each core that does nothing but compute.

    @property
    def ranks(self):
        return self.hosts * self.per_host

    def host_of(self, rank):
        return rank % self.hosts if self.interleaved else rank // self.per_host

    @property
    def interface(self):
        return "lo" if self.hosts == 1 else "eth0"

    @property
    def payload_bytes_per_s(self):
        """What TCP can carry in one direction of a link, or None."""
        return self.mbit * 1e6 / 8 * PAYLOAD / FRAME if self.mbit else None


def place_list():
    def hosts(link, mbit, counts):
        for count in counts:
            yield Place(f"{link}-{count}", f"{count} hosts, {text[link]}", count, 1, mbit)

    text = {"veth": "unshaped links", "10g": "10 Gbit/s", "1g": "1 Gbit/s"}
    yield Place("host-2", "one host, 2 ranks", 1, 2)
    yield Place("host-4", "one host, 4 ranks", 1, 4)
    yield from hosts("veth", 0, (2, 4))
    yield from hosts("10g", 10000, (2, 4))
    yield from hosts("1g", 1000, (2, 4, 8))
    yield Place("2x2", "2 hosts with 2 ranks each, 1 Gbit/s", 2, 2, 1000)
    yield Place("2x2-interleaved", "2 hosts, ranks 0 and 2 on one, 1 and 3 on the other, 1 Gbit/s",
                2, 2, 1000, interleaved=True)
    yield Place("2x2-veth", "2 hosts with 2 ranks each, unshaped links", 2, 2)
    yield Place("hogs-2", "one host, 2 ranks, one compute hog per core", 1, 2, hogs=True)


PLACES = {place.name: place for place in place_list()}


def address(place, host):
    return "127.0.0.1" if place.hosts == 1 else f"10.77.0.{host + 1}"


def host_name(host):
    return f"host{host}"


class Hosts:
    """The hosts of one place, while it is open."""

    def __init__(self, place, folder):
        self.place = place
        self.folder = folder  # For what launchers read.
        self.keepers = []  # Processes: one for each host, then the switch, then hogs.

    def inside(self, host):
        """What to put in front of a command, to run it on a host."""
        return ["nsenter", f"--target={self.keepers[host].pid}", "--net", "--uts", "--ipc", "--"]

    def pids(self):
        return {keeper.pid for keeper in self.keepers}

    def keep(self, *unshare):
        """A process that keeps new namespaces; they are there when this returns."""
        keeper = subprocess.Popen(
            ["unshare", *unshare, "--", "sh", "-c", "echo; exec sleep infinity"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self.keepers.append(keeper)
        if not keeper.stdout.readline():
            raise RuntimeError("no new namespace: unshare failed")
        return keeper

    def on(self, host, command):
        subprocess.run(self.inside(host) + command.split(), check=True)

    def make(self):
        for host in range(self.place.hosts):
            self.keep("--net", "--uts", "--ipc")
            self.on(host, f"hostname {host_name(host)}")
            self.on(host, "ip link set lo up")
        if self.place.hosts > 1:
            self.link()
        self.write_names()
        if self.place.hogs:
            self.start_hogs()

    def link(self):
        switch = len(self.keepers)
        keeper = self.keep("--net")
        bare = ["nsenter", f"--target={keeper.pid}", "--net", "--"]

        def on_switch(command):
            subprocess.run(bare + command.split(), check=True)

        on_switch("ip link add br0 type bridge")
        on_switch("ip link set br0 up")
        assert switch == self.place.hosts
        for host in range(self.place.hosts):
            pid = self.keepers[host].pid
            on_switch(f"ip link add port{host} type veth peer name eth0 netns {pid}")
            on_switch(f"ip link set port{host} master br0 up")
            self.on(host, f"ip address add {address(self.place, host)}/24 dev eth0")
            self.on(host, "ip link set eth0 up")
            if self.place.mbit:
                # Both directions, so that two senders share the link of one receiver.
                on_switch(self.shape(f"port{host}"))
                self.on(host, self.shape("eth0"))

    def shape(self, device):
        burst_kb = 128 if self.place.mbit <= 1000 else 512
        return (f"tc qdisc add dev {device} root tbf rate {self.place.mbit}mbit "
                f"burst {burst_kb}kb limit 8mb")

    def write_names(self):
        """Names for launchers that resolve them, and for the agent that reaches a host by name."""
        with open(os.path.join(self.folder, "hosts"), "w", encoding="utf-8") as file:
            file.write("127.0.0.1 localhost\n")
            for host in range(self.place.hosts):
                file.write(f"{address(self.place, host)} {host_name(host)}\n")
        subprocess.run(["mount", "--bind", os.path.join(self.folder, "hosts"), "/etc/hosts"],
                       check=True)
        for host in range(self.place.hosts):
            path = os.path.join(self.folder, host_name(host) + ".pid")
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"{self.keepers[host].pid}\n")

    def start_hogs(self):
        for core in sorted(os.sched_getaffinity(0)):
            self.keepers.append(subprocess.Popen(
                ["taskset", "-c", str(core), "sh", "-c", "while :; do :; done"],
                stdin=subprocess.DEVNULL))

    def end(self):
        for keeper in self.keepers:
            keeper.kill()
        for keeper in self.keepers:
            keeper.wait()
            if keeper.stdout:
                keeper.stdout.close()
        subprocess.run(["umount", "/etc/hosts"], check=False, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def open_place(place, folder):
    hosts = Hosts(place, folder)
    try:
        hosts.make()
        yield hosts
    finally:
        hosts.end()
