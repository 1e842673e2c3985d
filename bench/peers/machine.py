# SPDX-License-Identifier: Apache-2.0
"""What this machine is and does, and the end of processes that a launch has left behind."""

import os
import platform
import signal
import subprocess
import time


def read_text(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def describe():
    cpu = [line.split(":", 1)[1].strip() for line in read_text("/proc/cpuinfo").split("\n")
           if line.startswith("model name")]
    return {
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "compiler": output_of("gcc", "--version").split("\n", maxsplit=1)[0],
    }


def ticks():
    """(busy, stolen) processor ticks of the machine since its start."""
    fields = [int(word) for word in read_text("/proc/stat").split("\n", 1)[0].split()[1:9]]
    user, nice, system, _, _, irq, softirq, steal = fields
    return user + nice + system + irq + softirq, steal


def own_cpu_s():
    """Of all children that have ended."""
    usage = os.times()
    return usage.children_user + usage.children_system


def line_ns(program):
    """In which a cache line goes from one core to another and back; None: not known here."""
    said = output_of(program)
    return int(said) if said.isdigit() else None


class Load:
    """What else used the cores during a launch: the noise that its figures have."""

    def __init__(self, cores, hogs):
        self.cores = cores
        self.hogs = hogs
        self.before = read_text("/proc/loadavg").split()[0]
        self.begin = (*ticks(), own_cpu_s(), time.monotonic())

    def end(self):
        busy, stolen = (now - then for now, then in zip(ticks(), self.begin))
        tick = os.sysconf("SC_CLK_TCK")
        seconds = time.monotonic() - self.begin[3]
        foreign = busy / tick - (own_cpu_s() - self.begin[2])
        return {
            "seconds": round(seconds, 3),
            "load_before": float(self.before),
            "load_after": float(read_text("/proc/loadavg").split()[0]),
            # Hogs are meant to be there, and have not ended: nothing can be said beside them.
            "foreign_share": None if self.hogs else round(
                max(0.0, foreign) / (seconds * self.cores), 3),
            "steal_share": round(stolen / tick / (seconds * self.cores), 3),
        }


def end_others(keep):
    """Ends all processes of this process namespace but those: all of them are ours."""
    for _ in range(200):
        left = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        left = [pid for pid in left if pid != os.getpid() and pid not in keep
                and not is_zombie(pid)]
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        reap(keep)
        if not left:
            return
        time.sleep(0.01)


def is_zombie(pid):
    return read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()[:1] in ([], ["Z"])


def reap(keep):
    """Orphans become ours. Keepers are waited for by who has started them."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in keep and int(name) != os.getpid():
            try:
                os.waitpid(int(name), os.WNOHANG)
            except ChildProcessError:
                pass
