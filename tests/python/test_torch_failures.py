# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in training is told to every rank, at once and in words."""

import ctypes
import gc
import mmap
import os
import signal
import struct
import tempfile
import threading
import time
import unittest
from unittest import mock

try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed")
import torch.distributed as dist

import lockstep
import lockstep.torch
from lockstep.torch import DistributedDataParallel as DDP, build, memory, sync
from torch_ranks import ranks

NATIVE = build.compiler() is not None

LIMIT_S = 1.0
"""How long a rank may take to learn of a failure, from the moment it happens. It took at most 42 ms
after 10 deaths on two cores with a load of 7."""


class Moment:
    """A moment that one rank notes, and the ranks that are forked from this process see."""

    def __init__(self):
        self._memory = mmap.mmap(-1, 8)

    def note(self):
        self._memory[:8] = struct.pack("d", time.monotonic())

    def age(self):
        return time.monotonic() - struct.unpack("d", self._memory[:8])[0]


def step(model):
    model.zero_grad()
    model(torch.ones(4, 8)).sum().backward()


def batch(rank, i):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * rank + i))


def failing(model, error, backward=None):
    """A backward pass with an exception after the first gradient."""
    def fail(gradient):
        raise error
    handle = model.module[0].weight.register_hook(fail)
    try:
        step(model) if backward is None else backward()
    finally:
        handle.remove()


def net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))


def said(function, kind=lockstep.LockstepError):
    """The text of the exception, and how long it took."""
    start = time.monotonic()
    try:
        function()
    except kind as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - start
    return "nothing", 0.0


def lost(model, failure):
    """What a rank learns in a step: the text, the rank, whether it is on this host, and how long
    after the failure."""
    try:
        step(model)
    except lockstep.PeerLost as error:
        seconds = failure.age()
        return str(error), error.rank, error.host == os.uname().nodename, seconds
    return "nothing", None, False, 0.0


class Failures(unittest.TestCase):
    def test_killed_rank(self):
        """Rank 0 has started the coordinator, which ends with it."""
        death = Moment()
        for victim in (1, 0):
            def run(rank, victim=victim):
                model = DDP(net())
                step(model)
                if rank == victim:
                    time.sleep(0.2)  # The others wait for this rank meanwhile.
                    death.note()
                    os.kill(os.getpid(), signal.SIGKILL)
                return lost(model, death)
            with self.subTest(victim=victim):
                others = [rank for rank in range(3) if rank != victim]
                results = ranks(3, run, expect=others)
                for rank in others:
                    text, named, here, seconds = results[rank]
                    self.assertEqual((named, here), (victim, True), text)
                    self.assertLess(seconds, LIMIT_S)

    def test_exception_that_ends_a_rank(self):
        failure = Moment()
        for where in ("forward", "backward"):
            def run(rank, where=where):
                model = DDP(net())
                step(model)
                if rank == 1:
                    time.sleep(0.2)  # The other rank waits for this one meanwhile.
                    failure.note()
                    if where == "backward":
                        failing(model, ValueError("the data is bad"))
                    model(torch.ones(3, 3))
                return lost(model, failure)
            with self.subTest(where=where):
                text, named, here, seconds = ranks(2, run, expect=[0])[0]
                cause = "ValueError: the data is bad" if where == "backward" else "RuntimeError: mat1"
                self.assertIn(cause, text)
                self.assertEqual((named, here), (1, True), text)
                self.assertLess(seconds, LIMIT_S)

    def test_exception_that_is_handled(self):
        """The others get an error for this step, and then training goes on."""
        def run(rank):
            model = DDP(net())
            step(model)
            if rank == 1:
                text = said(lambda: failing(model, ValueError("bad")), ValueError)[0]
            else:
                text = said(lambda: step(model))[0]
            step(model)
            return text, [p.grad.tolist() for p in model.parameters()]
        (one, first), (other, second) = ranks(2, run)
        self.assertRegex(one, "Unused: .*given up[^$]*'Sequential' on rank 1")
        self.assertNotIn("find_unused_parameters", one)
        self.assertEqual(other, "ValueError: bad")
        self.assertEqual(first, second)

    def test_gradients_after_an_exception(self):
        """Nothing of the pass that was left is in the gradients of the passes after it."""
        def windows(rank, model, none, quiet):
            found, parameters = [], list(model.parameters())
            for i in range(4):
                model.zero_grad(set_to_none=none)
                try:
                    if quiet:
                        with model.no_sync():
                            model(batch(rank, i)).square().sum().backward()
                    loss = model(batch(rank, i)).square().sum()
                    if i == 2 and rank == 1:
                        failing(model, ValueError("bad"), loss.backward)
                    else:
                        if i == 2:
                            time.sleep(0.1)  # The other rank has left its pass before.
                        loss.backward()
                except (ValueError, lockstep.Unused):
                    continue
                losses = [model.module(batch(r, i)).square().sum() for r in range(2)]
                mean = torch.autograd.grad(sum(losses) * (1 + quiet) / 2, parameters)
                found.append(all(torch.allclose(p.grad, g) for p, g in zip(parameters, mean)))
            return found

        def run(rank):
            return [windows(rank, DDP(net(), bucket_cap_mb=1e-6), none, quiet)
                    for none, quiet in ((False, False), (True, True), (False, True))]
        for kind in ("native", "python") if NATIVE else ("python",):
            with self.subTest(kind=kind):
                for found in ranks(2, run, LOCKSTEP_TORCH_HOOKS=kind):
                    self.assertEqual(found, [[True] * 3] * 3)

    def test_passes_through_earlier_forward_passes(self):
        """They are steps of their own after a pass that was left. hidden: no output is found."""
        class Hidden(torch.nn.Sequential):
            def forward(self, x):
                return torch.distributions.Normal(super().forward(x), 1.0)

        def loss(out):
            return (out.loc if isinstance(out, torch.distributions.Normal) else out).square().sum()

        def run(rank):
            found = []
            for hidden in (False, True):
                first = DDP(net())
                second = DDP(Hidden(*net())) if hidden else first
                for i in range(4):
                    first.zero_grad(), second.zero_grad()
                    try:
                        losses = loss(first(batch(rank, i))), loss(second(batch(rank, i + 9)))
                        if i == 2 and rank == 1:
                            failing(first, ValueError("bad"), backward=losses[0].backward)
                        else:
                            losses[0].backward()
                    except (ValueError, lockstep.Unused):
                        pass
                    second.zero_grad()
                    losses[1].backward()
                    mine = list(second.parameters())
                    mean = torch.autograd.grad(
                        sum(loss(second.module(batch(r, i + 9))) for r in range(2)) / 2, mine)
                    found.append(all(torch.allclose(p.grad, g) for p, g in zip(mine, mean)))
            return found
        for found in ranks(2, run):
            self.assertEqual(found, [True] * 8)

    def test_gradient_that_is_missing(self):
        """The error says which, and what to do."""
        def run(rank):
            model = DDP(net())
            model.module.forward = model.module[0].forward
            return said(lambda: step(model))[0]
        for text in ranks(2, run):
            self.assertRegex(text, "Unused: .*not produced[^$]*'2.bias'")
            self.assertIn("Pass find_unused_parameters=True to DistributedDataParallel", text)

    def test_gradient_that_a_hook_takes(self):
        """The error does not advise what would let ranks train apart."""
        def run(rank):
            model = net()
            model[0].weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
            model = DDP(model)
            return said(lambda: step(model))[0]
        for text in ranks(2, run):
            self.assertRegex(text, "Unused: .*not produced[^$]*'0.weight'")
            self.assertRegex(text, "register_post_accumulate_grad_hook.*step after backward")
            self.assertNotIn("Pass find_unused", text)

    def test_rank_that_does_not_go_on(self):
        """A rank that neither ends nor trains after its exception does not hold up the others."""
        def run(rank):
            model = DDP(net())
            step(model)
            if rank == 1:
                said(lambda: failing(model, ValueError("bad")), ValueError)
                time.sleep(3.0)
                return None
            return said(lambda: step(model))
        text, _ = ranks(2, run)[0]
        self.assertIn("'Sequential' on rank 1", text)

    def test_interrupt(self):
        """Ctrl-C ends a wait for the other rank. Then the step can be waited for again."""
        def run(rank):
            model = DDP(net())
            step(model)
            if rank == 1:
                time.sleep(1.0)
                step(model)
                step(model)
                return None
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            text, seconds = said(lambda: step(model), KeyboardInterrupt)
            step(model)
            return text, seconds < 0.9, [p.grad.tolist() for p in model.parameters()] != []
        self.assertEqual(ranks(2, run)[0], ("KeyboardInterrupt: ", True, True))

    def test_interrupt_in_a_hook(self):
        """Ctrl-C in the first step, whose hooks call Python, is not lost. Then training goes on."""
        def run(rank):
            model = DDP(net(), find_unused_parameters=True)
            member = model.lockstep_member
            if rank == 1:
                member.slow = lambda i: signal.raise_signal(signal.SIGINT)
            text = said(lambda: step(model), (KeyboardInterrupt, lockstep.Unused))[0]
            if rank == 1:
                del member.slow
            step(model)
            return text, [p.grad.tolist() for p in model.parameters()]

        for kind in ("native", "python") if NATIVE else ("python",):
            with self.subTest(hooks=kind):
                (_, one), (text, other) = ranks(2, run, LOCKSTEP_TORCH_HOOKS=kind)
                self.assertEqual((text, one), ("KeyboardInterrupt: ", other))

    def test_gradients_of_another_dtype(self):
        """The reducer of PyTorch takes them."""
        parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        self.assertIsNone(memory.problem_of(parameter))
        if hasattr(parameter, "grad_dtype"):
            parameter.grad_dtype = torch.float32
            self.assertIn("grad_dtype is torch.float32", memory.problem_of(parameter))

    def test_ranks_that_differ(self):
        for make, expected in ((lambda rank: torch.nn.Linear(8, 4 + rank), "shape"),
                               (lambda rank: torch.nn.ModuleDict({"ab"[rank]: torch.nn.Linear(8, 4)}),
                                "a.weight")):
            def run(rank, make=make):
                return said(lambda: DDP(make(rank)))[0]
            with self.subTest(expected=expected):
                results = ranks(2, run)
                self.assertEqual(results[0], results[1])
                self.assertIn("Mismatch", results[0])
                self.assertIn(expected, results[0])

    def test_wrong_modules(self):
        def run(rank):
            mixed = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta"))
            wrapped = DDP(net())
            other = torch.nn.Sequential(wrapped.module[0], torch.nn.Linear(2, 2))
            alias = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
            alias[1].weight = torch.nn.Parameter(alias[0].weight.data)
            return [said(lambda: DDP(torch.nn.Linear(2, 2).requires_grad_(False)), RuntimeError)[0],
                    said(lambda: DDP(mixed))[0], said(lambda: DDP(wrapped))[0],
                    said(lambda: DDP(other))[0], said(lambda: DDP(alias), lockstep.Invalid)[0]]
        none, meta, twice, part, same = ranks(1, run)[0]
        self.assertIn("doesn't have any parameter that requires a gradient", none)
        self.assertIn("to_empty", meta)
        self.assertIn("model.module", twice)
        self.assertIn("belong to module 'Sequential' already", part)
        self.assertRegex(same, "'1.weight' has the memory of parameter '0.weight' of .*: use one "
                               "Parameter in both places$")

    def test_wrapped_again(self):
        """The newest wrapper trains. The one before says so."""
        def run(rank):
            inner = net()
            first = DDP(inner)
            step(first)
            second = DDP(inner)
            step(second)
            grads = [p.grad.tolist() for p in inner.parameters()]
            return said(lambda: step(first))[0], grads
        (text, a), (_, b) = ranks(2, run)
        self.assertIn("wrapped again", text)
        self.assertEqual(a, b)

    def test_wrapped_again_with_other_parameters(self):
        """Layers are frozen and thawed, a part is wrapped alone, and an old wrapper is forgotten."""
        def run(rank):
            inner, old = net(), []
            for frozen in ((), (0,), (2,), ()):
                for i in (0, 2):
                    inner[i].requires_grad_(i not in frozen)
                model = DDP(inner)
                step(model)
                old.append(model)
            part = DDP(inner[0])
            part(torch.full((2, 8), float(rank))).sum().backward()
            grads = [p.grad.tolist() for p in inner.parameters()]
            texts = [said(lambda model=model: step(model))[0] for model in old]
            old.append(part)
            model = DDP(inner)  # All parameters are its own again.
            step(model)
            gc.disable()
            del model
            other = DDP(torch.nn.Sequential(inner[0], torch.nn.Linear(8, 1)))
            step(other)
            return texts, grads, [p.grad.tolist() for p in other.parameters()]
        (texts, *a), (_, *b) = ranks(2, run)
        for text in texts:
            self.assertIn("wrapped again", text)
        self.assertEqual(a, b)

    def test_another_process_group(self):
        """The program makes another default group, with other ranks or fewer."""
        def run(rank, folder):
            model, texts = DDP(net()), []
            step(model)
            for name, place, size in (("swapped", 1 - rank, 2), ("alone", 0, 1)):
                dist.barrier()
                dist.destroy_process_group()
                path = f"{folder}/{name}" if size == 2 else f"{folder}/{name}{rank}"
                dist.init_process_group("gloo", init_method=f"file://{path}", rank=place,
                                        world_size=size)
                texts += [said(lambda: DDP(net()), lockstep.Invalid)[0],
                          said(sync(net())(lambda: None), lockstep.Invalid)[0],
                          said(lambda: dist.new_group(backend="lockstep"), lockstep.Invalid)[0]]
                lockstep.torch.close()
                step(DDP(net()))
                texts.append((lockstep.torch.session().rank, lockstep.torch.session().size))
            return texts
        with tempfile.TemporaryDirectory() as folder:
            for rank, texts in enumerate(ranks(2, lambda rank: run(rank, folder))):
                for i in (0, 1, 2, 4, 5, 6):
                    self.assertIn("lockstep.torch.close()", texts[i])
                self.assertEqual((texts[3], texts[7]), ((1 - rank, 2), (0, 1)))

    def test_streams_end_before_parameters_are_read(self):
        """As on a GPU: parameters have their values only when their streams have ended."""
        def run(rank):
            first = DDP(torch.nn.Linear(8, 1))
            step(first)
            session, member = lockstep.torch.session(), first.lockstep_member
            values = [0.0]

            def late(_):
                with torch.no_grad():
                    for p in member.parameters:
                        p.fill_(values[0])

            def pend(value):
                with torch.no_grad():
                    for p in member.parameters:
                        p.fill_(100.0 + rank)
                values[0] = value

            member.on_device = True
            with mock.patch("torch.cuda.synchronize", late):
                pend(1.0)
                session.state_check()
                pend(2.0)
                hashed = session.state_hash()
                pend(3.0)
                other = DDP(torch.nn.Linear(8, 1))  # Its start gives rank 0's values to all.
                found = [p.flatten().tolist() for p in member.parameters]
            member.on_device = False
            return hashed, found, bool(other)
        results = ranks(2, run)
        self.assertEqual(results[0], results[1])
        self.assertEqual(results[0][1], [[3.0] * 8, [3.0]])

    def test_state_of_moved_parameters(self):
        """p.data = ... gives a parameter other memory: that memory is compared."""
        def run(rank):
            model = DDP(torch.nn.Linear(8, 1))
            step(model)
            session, weight = lockstep.torch.session(), model.module.weight
            session.state_check()
            weight.data = torch.full((1, 8), float(rank))
            differ = said(session.state_check, lockstep.Mismatch)[0]
            weight.data = torch.ones(1, 8)
            session.state_check()
            before = session.state_hash()
            with torch.no_grad():
                weight.add_(1)
            hashed = before != session.state_hash()
            other = DDP(torch.nn.Linear(8, 1))  # Its start compares, too.
            model.double()
            changed = said(session.state_check, lockstep.Invalid)[0]
            model(torch.ones(1, 8).double()).sum().backward()
            session.state_check()
            return differ, hashed, changed, weight[0, 0].item(), bool(other)
        for differ, hashed, changed, value, _ in ranks(2, run):
            self.assertIn("'weight'", differ)
            self.assertTrue(hashed)
            self.assertIn("make a forward pass", changed)
            self.assertEqual(value, 2)

    def test_embedding_with_a_surprise(self):
        """A sparse gradient that nobody has announced."""
        def run(rank):
            inner = torch.nn.Linear(4, 8)
            inner.forward = lambda x: torch.nn.functional.embedding(x, inner.weight, sparse=True)
            model = DDP(inner, find_unused_parameters=True)
            return said(lambda: model(torch.tensor([1, 2])).sum().backward())[0]
        self.assertIn("'weight' is sparse", ranks(2, run)[0])

    def test_gradients_live_on(self):
        """Gradients and what was made of them are valid after the session."""
        def run(rank):
            from lockstep.torch import bootstrap
            model = DDP(net())
            step(model)
            inner = model.module
            before = [p.grad.tolist() for p in inner.parameters()]
            del model
            bootstrap.close()
            gc.collect()
            for p in inner.parameters():
                p.grad.add_(0)
            return [p.grad.tolist() for p in inner.parameters()] == before
        self.assertEqual(ranks(2, run), [True, True])

    def test_thousand_wrappers(self):
        """Nothing that a wrapper has taken is kept."""
        def usage():
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            with open("/proc/self/statm", encoding="ascii") as file:
                resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            return {"bytes": resident, "objects": len(gc.get_objects()),
                    "descriptors": len(os.listdir("/proc/self/fd")),
                    "threads": len(os.listdir("/proc/self/task"))}

        def run(rank):
            inner = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
            found = []
            for i in range(1000):
                model = DDP(inner)
                if i % 100 == 0:
                    model(torch.ones(1, 64)).sum().backward()
                    inner.zero_grad()
                del model
                if i % 100 == 99:
                    found.append(usage())
            from lockstep.torch import world as worlds
            return ({name: found[-1][name] - count for name, count in found[2].items()},
                    len(worlds.current().members))
        for grown, members in ranks(2, run):
            self.assertLess(grown["bytes"], 1 << 20, grown)  # 1.5 KB for each wrapper.
            self.assertLess(grown["objects"], 350, grown)  # One for every second wrapper.
            self.assertLessEqual(grown["descriptors"], 2, grown)
            self.assertLessEqual(grown["threads"], 0, grown)
            self.assertEqual(members, 1)

    def test_workers_of_a_loader(self):
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 32

            def __getitem__(self, i):
                return torch.full((8,), float(i))

        def run(rank):
            model = DDP(net())
            loader = torch.utils.data.DataLoader(Data(), 4, num_workers=2)
            for _ in range(2):
                for x in loader:
                    model.zero_grad()
                    model(x).sum().backward()
            return [p.grad.tolist() for p in model.parameters()]
        one, other = ranks(2, run)
        self.assertEqual(one, other)

    def test_forked_child_that_trains(self):
        def run(rank):
            model = DDP(net())
            step(model)
            reader, writer = os.pipe()
            if os.fork() == 0:
                os.write(writer, said(lambda: step(model))[0].encode())
                os._exit(0)
            text = os.read(reader, 4096).decode()
            os.wait()
            step(model)
            return text
        self.assertIn("parent process", ranks(1, run)[0])


if __name__ == "__main__":
    unittest.main()
