# SPDX-License-Identifier: Apache-2.0
"""The session of a process and its coordinator: what they leave behind, however ranks end."""

import glob
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed")
import torch.distributed as dist

import lockstep.torch
from lockstep.torch import DistributedDataParallel as DDP, bootstrap
from torch_ranks import ranks

SLOW = float(os.environ.get("LOCKSTEP_TEST_SLOW", "5" if os.environ.get("CI") == "true" else "1"))
CONTINUE = {"LOCKSTEP_ON_FAILURE": "continue", "LOCKSTEP_AWAY_TIMEOUT_MS": "5000"}
CLOSE_S = 2.0
"""From Ctrl-C until a rank has closed its session and ended its coordinator. It took at most 0.1 s
in 5 runs on two cores with a load of 9."""
PROGRAM = """
    import atexit, contextlib, os, sys, time
    # The last function that is registered runs first, so this one runs when all is closed.
    atexit.register(lambda: print("closed", time.monotonic(), flush=True))
    import lockstep, lockstep.torch, torch
    how = sys.argv[1]
    if how == "hosts":  # One host stands in for several.
        lockstep.torch.bootstrap._network = lambda: os.environ["RANK"]
    if how == "late" and os.environ["RANK"] == "0":
        time.sleep(1)  # The others wait for the address meanwhile.
    session = lockstep.torch.session()
    assert session is lockstep.torch.session()
    assert (session.rank, session.size) == (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    session.barrier("all")
    print("ready", session.rank, flush=True)
    if how == "raise" and session.rank == 1:
        raise ValueError("no luck")
    if how == "leave":
        session.start()
        if session.rank == 1:
            step = session.step()
            sys.exit(0)
    if how == "go on":
        size = session.size
        while session.size > 1:
            with contextlib.suppress(lockstep.Changed):
                session.barrier("more")
            if session.size == 2 < size:
                size = 2
                print("ready", session.rank, flush=True)
        net = torch.nn.Linear(1, 1)
        loss = lockstep.torch.sync(net)(lambda: net(torch.ones(1)))
        loss().backward()  # A new module needs the coordinator.
    if how.startswith("/") and not os.path.exists(how):  # The first attempt.
        session.barrier("more")
        if session.rank == session.size - 1:
            open(how, "w").close()
            os._exit(1)
        time.sleep(600)
    if how in ("wait", "raise", "leave"):
        if session.rank == 1:
            time.sleep(600)
        session.barrier("more")
"""


def coordinators(pid):
    """Processes that a process has started as coordinators."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if b"--parent-death=%d" % pid in words:
            found.append(int(path.split("/")[2]))
    return found


def begin(folder, name, rank, size, backend="gloo"):
    """Another default process group, over another Store."""
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(backend, init_method=f"file://{folder}/{name}", rank=rank,
                            world_size=size)


def gradient(rank, **options):
    """The mean of rank + 1 over the ranks of a group. The session is open then."""
    model = DDP(torch.nn.Linear(1, 1), **options)
    model(torch.full((1, 1), rank + 1.0)).sum().backward()
    return model.module.weight.grad.item()


def total(rank):
    """The sum of rank + 1 over the ranks of a group with the backend lockstep."""
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor)
    return tensor.item()


class Again(unittest.TestCase):
    """A process opens a session after another one."""

    def same(self, size, function, expected):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(ranks(size, lambda rank: function(rank, folder)), expected)

    def test_over_one_store(self):
        """Ranks come at different times, and find the keys of the session before."""
        def run(rank, _):
            means = []
            for i in range(6):
                time.sleep(0.05 * ((rank + i) % dist.get_world_size()))
                means.append(gradient(rank))
                lockstep.torch.close()
            return means
        for size in (2, 3):
            self.same(size, run, [[(size + 1) / 2] * 6] * size)

    def test_one_rank_was_alone_before(self):
        def run(rank, folder):
            dist.destroy_process_group()
            if rank == 0:
                begin(folder, "alone", 0, 1)
                gradient(0)
                lockstep.torch.close()
            begin(folder, "both", rank, 2)
            return gradient(rank)
        self.same(2, run, [1.5] * 2)

    def test_backend_with_fewer_ranks_and_more(self):
        def run(rank, folder):
            dist.destroy_process_group()
            sums = []
            for i, size in enumerate((3, 2, 3)):
                if rank < size:
                    begin(folder, i, rank, size, "lockstep")
                    sums.append(total(rank))
                    dist.destroy_process_group()
            return sums
        self.same(3, run, [[6, 3, 6], [6, 3, 6], [6, 6]])

    def test_group_whose_members_are_others(self):
        """The default group is made again in another order. Its ranks 0 and 1 are a group."""
        def run(rank, folder):
            means = []
            for i, place in enumerate((rank, 2 - rank)):
                begin(folder, i, place, 3)
                group = dist.new_group([0, 1])
                means.append(gradient(place, process_group=group) if place < 2 else None)
                dist.barrier()
                lockstep.torch.close()
            return means
        self.same(3, run, [[1.5, None], [1.5, 1.5], [None, 1.5]])

    def test_groups_over_one_store(self):
        """Groups of other ranks do not read each other's keys, also if they have one Store."""
        def run(rank, _):
            store = dist.distributed_c10d._get_default_store()
            mine = [sorted(pair) for pair in ((0, 1), (1, 2), (0, 2)) if rank in pair]
            return [bootstrap.of_group(pair, store).size for pair in mine]
        self.same(3, run, [[2, 2]] * 3)


class Bootstrap(unittest.TestCase):
    def write(self):
        """The program, in a folder of its own."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "program.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(PROGRAM))
        return path

    def start(self, how, size=2, **more):
        path = self.write()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        self.ranks = [subprocess.Popen(
            [sys.executable, path, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_PORT": port,
                 "MASTER_ADDR": "127.0.0.1", **more}) for rank in range(size)]
        for rank in self.ranks:
            self.addCleanup(rank.kill)

    def ready(self):
        for i, rank in enumerate(self.ranks):
            line = rank.stdout.readline()
            self.assertEqual(line, f"ready {i}\n", rank.stderr.read() if not line else "")

    def end(self, seconds=60):
        """Exit statuses and standard error of all ranks, and that no coordinator is left."""
        ended = [rank.communicate(timeout=seconds * SLOW) for rank in self.ranks]
        self.said = [text for text, _ in ended]
        began = time.monotonic()
        while coordinators(self.ranks[0].pid):
            self.assertLess(time.monotonic() - began, 10 * SLOW, "the coordinator is still there")
            time.sleep(0.05)
        return [rank.returncode for rank in self.ranks], [text for _, text in ended]

    def restarted(self, *launchers):
        """Launchers of torchrun start one job. Its last rank dies, and all are started again."""
        path = self.write()
        launched = [subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "2",
             "--monitor-interval", "0.1", "--nproc-per-node", "2", *options, path,
             os.path.join(os.path.dirname(path), "died")],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "LOCKSTEP_OPEN_TIMEOUT_MS": "10000", "OMP_NUM_THREADS": "1"})
            for options in launchers]
        for each in launched:
            self.addCleanup(each.terminate)
        texts = [each.communicate(timeout=100 * SLOW)[0] for each in launched]
        self.assertEqual([each.returncode for each in launched], [0] * len(launched), texts)
        self.assertEqual("".join(texts).count("ready"), 2 * 2 * len(launched), texts)

    def test_torchrun_starts_ranks_again(self):
        self.restarted(["--standalone"])

    def test_torchrun_starts_ranks_of_two_launchers_again(self):
        """TORCHELASTIC_RESTART_COUNT is 1 only where the rank has died."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            place = f"127.0.0.1:{free.getsockname()[1]}"
        self.restarted(*[["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", place,
                          "--rdzv-id", "restarted", "--local-addr", "127.0.0.1"]] * 2)

    def test_good_end(self):
        self.start("late")
        self.ready()
        codes, texts = self.end()
        self.assertEqual(codes, [0, 0], texts)
        self.assertEqual(texts[0].count("the page of this job is http://127.0.0.1:"), 1)
        self.assertEqual(texts[1], "")

    def test_alone(self):
        self.start("late", size=1)
        self.ready()
        self.assertEqual(self.end(), ([0], [""]))

    def test_other_coordinator_is_used(self):
        self.start("late", LOCKSTEP_COORDINATOR="127.0.0.1:1", LOCKSTEP_OPEN_TIMEOUT_MS="200")
        codes, texts = self.end()
        self.assertEqual(codes, [1, 1])
        self.assertIn("127.0.0.1:1", texts[1])
        self.assertNotIn("the page of this job", texts[0])

    def test_several_hosts_need_certificates(self):
        self.start("hosts")
        codes, texts = self.end()
        self.assertEqual(codes, [1, 1])
        for text in texts:
            self.assertIn("set LOCKSTEP_COORDINATOR_TLS_DIR to its certificates", text)
            self.assertIn("LOCKSTEP_INSECURE_PLAINTEXT=1 on all hosts", text)
        self.start("hosts", LOCKSTEP_INSECURE_PLAINTEXT="1")
        self.ready()
        codes, texts = self.end()
        self.assertEqual(codes, [0, 0], texts)

    def test_exception_is_told(self):
        self.start("raise")
        self.ready()
        codes, texts = self.end()
        self.assertEqual(codes, [1, 1])
        self.assertIn("ValueError: no luck", texts[1])
        self.assertIn("rank 1", texts[0])
        self.assertIn("ValueError: no luck", texts[0])

    def test_exit_inside_a_step_is_told(self):
        self.start("leave")
        self.ready()
        codes, texts = self.end()
        self.assertEqual(codes, [1, 0])
        self.assertRegex(texts[1], "rank 1 of job '.*' exits inside a step: the session is aborted")
        self.assertIn("the program ended inside a step", texts[0])

    def test_interrupt_ends_all(self):
        """What follows in each process is the end of the interpreter. With PyTorch in it, it alone
        takes 0.5 to 2 s on a loaded machine, with lockstep and without."""
        self.start("wait")
        self.ready()
        self.assertEqual(len(coordinators(self.ranks[0].pid)), 1)
        began = time.monotonic()
        for rank in self.ranks:
            rank.send_signal(signal.SIGINT)
        codes, texts = self.end()
        self.assertEqual(codes, [-signal.SIGINT] * 2, texts)
        for text in self.said:
            word, when = text.split()
            self.assertEqual(word, "closed")
            self.assertLess(float(when) - began, CLOSE_S, texts)

    def test_killed_rank_0_leaves_no_coordinator(self):
        self.start("wait")
        self.ready()
        self.ranks[0].kill()
        self.ranks[1].kill()
        codes, _ = self.end()
        self.assertEqual(codes, [-signal.SIGKILL] * 2)

    def test_killed_ranks_leave_no_coordinator(self):
        self.start("wait", LOCKSTEP_COORDINATOR_OUTLIVE_MS="500", **CONTINUE)
        self.ready()
        self.ranks[0].kill()
        self.ranks[1].kill()
        codes, _ = self.end()
        self.assertEqual(codes, [-signal.SIGKILL] * 2)

    def test_coordinator_of_a_killed_rank_0_serves_the_others(self):
        self.start("go on", size=3, LOCKSTEP_COORDINATOR_OUTLIVE_MS="3000", **CONTINUE)
        self.ready()
        self.ranks[0].kill()
        for i, rank in enumerate(self.ranks[1:]):
            self.assertEqual(rank.stdout.readline(), f"ready {i}\n")
        time.sleep(2)  # A coordinator that drained would be gone.
        self.assertEqual(len(coordinators(self.ranks[0].pid)), 1)
        began = time.monotonic()
        self.ranks[1].kill()
        codes, texts = self.end()
        self.assertEqual(codes, [-signal.SIGKILL] * 2 + [0], texts)
        self.assertLess(float(self.said[2].split()[-1]) - began, 4 * SLOW, texts)
