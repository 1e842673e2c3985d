# SPDX-License-Identifier: Apache-2.0
"""A trainer of reinforcement learning that stands still: who is named, and at which line."""

import json
import os
import re
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

import lockstep
from lockstep.torch import DistributedDataParallel, sync
from support import BIN, SLOW, TIMEOUT_S, environment
from torch_ranks import ranks

FLOOR_MS = 500
LATE_MS = 2000
"""From the bound to the verdict."""
LIMIT_S = 5.0
"""How long a rank may take to learn that the ranks differ."""
TRAINER = """
    import os, sys, time
    import torch
    import torch.distributed as dist
    import lockstep.torch

    rank, go = int(os.environ["RANK"]), os.environ["GO"]
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", init_method=os.environ["STORE"], rank=rank, world_size=2)
    policy, head = torch.nn.Linear(8, 4), torch.nn.Linear(8, 1)
    both = torch.optim.SGD([*policy.parameters(), *head.parameters()], 0.01)
    replay = torch.randn(1 << 16, 8)

    @lockstep.torch.sync(policy, phase="policy")
    def policy_loss(states):
        return policy(states).square().mean()

    @lockstep.torch.sync(head, phase="auxiliary")
    def auxiliary_loss(states):
        return head(states).square().mean()

    def sample_replay(index, hangs):
        states = replay[index]
        while hangs and not os.access(go, os.F_OK):
            states = replay[index.repeat(1 << 12)]
        return states[:16]

    for step in range(60):
        states = sample_replay(torch.randint(0, len(replay), (16,)), hangs=rank == 1 and step == 50)
        both.zero_grad()
        policy_loss(states).backward()
        auxiliary_loss(states).backward()
        both.step()
        time.sleep(0.05)  # No verdict is made in the first two seconds.
    print([value for p in (*policy.parameters(), *head.parameters()) for value in p.flatten().tolist()])
    dist.destroy_process_group()
"""


STOCK = """
    import os, time
    import torch
    import torch.distributed as dist
    import lockstep.torch

    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("lockstep", init_method=os.environ["STORE"], rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))

    def load_batch(step):
        if rank == 1 and step == 20:
            time.sleep(600)
        return torch.randn(4, 8)

    for step in range(40):
        model(load_batch(step)).sum().backward()
"""


class Replay(unittest.TestCase):
    side_by_side = True

    def start(self, trainer=TRAINER):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "trainer.py")
        self.go = os.path.join(folder.name, "go")
        self.said = os.path.join(folder.name, "said")
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(trainer))
        self.ranks = []
        for rank in range(2):
            with open(f"{self.said}.{rank}", "w", encoding="utf-8") as said:
                self.ranks.append(subprocess.Popen(
                    [sys.executable, self.path], stdout=subprocess.PIPE, stderr=said, text=True,
                    env=environment({"RANK": str(rank), "WORLD_SIZE": "2", "GO": self.go,
                                     "STORE": f"file://{folder.name}/store",
                                     "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1",
                                     "LOCKSTEP_COORDINATOR_STALL_FLOOR_MS": str(FLOOR_MS)})))
            self.addCleanup(self.end, self.ranks[-1])

    @staticmethod
    def end(rank):
        rank.kill()
        rank.communicate()

    def texts(self):
        found = []
        for rank in range(2):
            with open(f"{self.said}.{rank}", encoding="utf-8") as file:
                found.append(file.read())
        return found

    def until(self, find, what):
        """The first answer of find that is not None."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            found = find()
            if found is not None:
                return found
            for rank in self.ranks:
                self.assertIsNone(rank.poll(), self.texts())
            time.sleep(0.05)
        return self.fail(f"{what}: {self.texts()}")

    def page(self):
        return re.search(r"http://(127\.0\.0\.1:\d+)/", self.texts()[0])

    def verdict(self):
        """The stall of the job, once a rank is named."""
        done = subprocess.run([os.path.join(BIN, "lockstep"), "stalls", "--json", "--http", self.at],
                              capture_output=True, text=True, env=environment(), check=False)
        stalls = json.loads(done.stdout)["stalls"] if done.stdout else []
        active = [stall for stall in stalls if stall["active"]]
        return active[0] if active else None

    def lines(self):
        """The lines of the trainer in which rank 1 stands."""
        with open(self.path, encoding="utf-8") as file:
            return [number for number, line in enumerate(file, 1)
                    if "while hangs" in line or "index.repeat" in line]

    def test_replay_buffer(self):
        self.start()
        self.at = self.until(self.page, "rank 0 names no page")[1]
        stall = self.until(self.verdict, "nobody is named")
        self.assertEqual([culprit["rank"] for culprit in stall["culprits"]], [1], stall)
        culprit = stall["culprits"][0]
        self.assertEqual((culprit["kind"], culprit["pid"]), ("outside", self.ranks[1].pid))
        self.assertLess(culprit["age_ms"] - culprit["bound_ms"], LATE_MS * SLOW)
        place = re.search(r"sample_replay \(trainer\.py:(\d+)\)", stall["sentence"])
        self.assertIsNotNone(place, stall["sentence"])
        self.assertIn(int(place[1]), self.lines())
        self.assertIn("rank 1 ", stall["sentence"], stall)
        with open(self.go, "w", encoding="ascii"):
            pass
        out = [rank.communicate(timeout=TIMEOUT_S)[0] for rank in self.ranks]
        self.assertEqual([rank.returncode for rank in self.ranks], [0, 0], self.texts())
        self.assertEqual(out[0], out[1])
        self.assertTrue(out[0].strip())

    def test_stock_wrapper_over_the_backend(self):
        """The other rank waits in a future of PyTorch, which calls no function of the library."""
        self.start(STOCK)
        self.at = self.until(self.page, "rank 0 names no page")[1]
        stall = self.until(self.verdict, "nobody is named")
        self.assertEqual([culprit["rank"] for culprit in stall["culprits"]], [1], stall)
        self.assertIn("load_batch (trainer.py:", stall["sentence"])


class Orders(unittest.TestCase):
    def test_other_order_in_one_pass(self):
        """Ranks may call modules in any order inside one backward pass."""
        def run(rank):
            torch.manual_seed(1)
            one, other = (DistributedDataParallel(torch.nn.Linear(8, 4)) for _ in range(2))
            order = (one, other) if rank == 0 else (other, one)
            for i in range(6):
                x = torch.full((4, 8), 1.0 + rank + i)
                for module in (one, other):
                    module.zero_grad()
                sum(module(x).square().sum() for module in order).backward()
            return [p.grad.tolist() for module in (one, other) for p in module.parameters()]
        first, second = ranks(2, run)
        self.assertEqual(first, second)

    def test_other_order_of_passes(self):
        """A pass of its own for each function, in another order: an error that names both."""
        def run(rank):
            torch.manual_seed(1)
            policy, head = torch.nn.Linear(8, 4), torch.nn.Linear(8, 1)
            policy_loss = sync(policy, phase="policy")(lambda x: policy(x).sum())
            auxiliary_loss = sync(head, phase="auxiliary")(lambda x: head(x).sum())
            x = torch.ones(4, 8)
            for loss in (policy_loss, auxiliary_loss):
                loss(x).backward()
            began = time.monotonic()
            try:
                for loss in ((policy_loss, auxiliary_loss) if rank == 0
                             else (auxiliary_loss, policy_loss)):
                    loss(x).backward()
            except lockstep.LockstepError as error:
                return f"{type(error).__name__}: {error}", time.monotonic() - began
            return "nothing", 0.0
        for text, seconds in ranks(2, run):
            self.assertIn("Mismatch", text)
            self.assertIn("policy+", text)
            self.assertIn("auxiliary+", text)
            self.assertRegex(text, "rank 0")
            self.assertRegex(text, "rank 1")
            self.assertLess(seconds, LIMIT_S)


if __name__ == "__main__":
    unittest.main()
