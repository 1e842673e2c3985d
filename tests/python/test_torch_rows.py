# SPDX-License-Identifier: Apache-2.0
"""Each argument and method of DistributedDataParallel works as its row in docs/pytorch.md says."""

import copy
import io
import itertools
import os
import pickle
import unittest
import warnings

try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed")
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

import lockstep
from lockstep.torch import DistributedDataParallel as Ours
from lockstep.torch import report
from torch_ranks import ranks

Stock = torch.nn.parallel.DistributedDataParallel
MIB = 1 << 20


def net(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(),
                               torch.nn.Linear(16, 4))


def batch(rank, i=0):
    generator = torch.Generator().manual_seed(1000 * rank + i)
    return torch.randn(16, 8, generator=generator)


def train(model, rank, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i in range(steps):
        optimizer.zero_grad()
        model(batch(rank, i)).square().mean().backward()
        optimizer.step()
    return model


def states(model):
    return [value.tolist() for value in model.state_dict().values()]


def ours(model):
    return model.lockstep_member is not None


class Rows(unittest.TestCase):
    def both(self, function, n=2):
        """What all ranks return; it has to be the same."""
        results = ranks(n, function)
        for result in results:
            self.assertEqual(result, results[0])
        return results[0]

    def same_as_stock(self, **options):
        """States after some steps are those of PyTorch, and our reducer has made them."""
        def run(rank):
            a, b = Ours(net(), **options), Stock(net(), **options)
            return ours(a), states(train(a, rank)) == states(train(b, rank))
        self.assertEqual(self.both(run), (True, True))

    def test_copies_of_the_wrapper(self):
        def run(rank):
            model = Ours(net())
            keys = list(model.state_dict())
            train(model, rank, 2)
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)),
                      torch.load(file, weights_only=False)]
            after = [states(train(one, rank, 3)) for one in [model, *copies]]
            return (keys[0], isinstance(model, Stock), [ours(one) for one in copies],
                    [one == after[0] for one in after])
        self.assertEqual(self.both(run), ("module.0.weight", True, [True] * 3, [True] * 4))

    def test_copies_of_one_rank(self):
        """A rank copies, loads and uses wrappers alone. Then all train a copy."""
        def run(rank):
            model = Ours(net(), broadcast_buffers=False)
            train(model, rank, 2)
            copies = []
            for _ in range(70 if rank == 0 else 0):  # A session has 64 modules.
                copies += copy.deepcopy(model), pickle.loads(pickle.dumps(model))
                with torch.no_grad():
                    copies[-1].eval()(batch(0))
            train(model, rank, 2)
            second = copy.deepcopy(model)
            with second.no_sync():
                second.eval()(batch(rank, 7)).sum().backward()
            second.train()
            members = len(model.lockstep_member.world.members)
            return (states(train(second, rank)) == states(train(model, rank)), members,
                    second.lockstep_member.name, len(model.lockstep_member.world.members))
        self.assertEqual(self.both(run), (True, 1, "Sequential.2", 2))

    def test_a_copy_that_one_rank_trains(self):
        """The error names what that rank waits for."""
        def run(rank):
            model = Ours(net(), broadcast_buffers=False)  # They go over Gloo.
            train(model, rank, 2)
            try:
                train(copy.deepcopy(model) if rank == 0 else model, rank, 2)
            except lockstep.Mismatch as error:
                return str(error)
            return "no error"
        self.assertIn("a copy trains for the first time", self.both(run))

    def test_copies_and_options(self):
        """What changes a copy before it trains."""
        def run(rank):
            names, logged = [], []
            for change in (lambda one: one.register_comm_hook(None, default_hooks.bf16_compress_hook),
                           lambda one: one._set_static_graph(), lambda one: one.step(weight=2)):
                one = copy.deepcopy(copy.deepcopy(Ours(net())))
                logged.append(one._get_ddp_logging_data()["reducer"])
                change(one)
                train(one, rank)
                names.append((ours(one), one.lockstep_member.options.get("wire"),
                              one.lockstep_member.static))
            return names, logged
        self.assertEqual(self.both(run), (
            [(True, "bfloat16", False), (True, None, True), (True, None, False)], ["lockstep"] * 3))

    def test_init_sync(self):
        def run(rank):
            torch.manual_seed(rank)
            inner = torch.nn.BatchNorm1d(4)
            inner.running_mean.fill_(rank + 1.0)
            inner.frozen = torch.nn.Parameter(torch.full((2,), rank + 1.0), requires_grad=False)
            torch.nn.init.normal_(inner.weight)
            model = Ours(inner)
            return states(model)
        first = self.both(run)
        self.assertIn([1.0, 1.0], first)

    def test_buffers(self):
        self.same_as_stock(broadcast_buffers=True)

    def test_buffers_of_each_rank(self):
        def run(rank):
            a, b = Ours(net(), broadcast_buffers=False), Stock(net(), broadcast_buffers=False)
            a, b = train(a, rank), train(b, rank)
            return states(a) == states(b), a.state_dict()["module.1.running_mean"][0].item()
        results = ranks(2, run)
        self.assertTrue(all(equal for equal, _ in results))
        self.assertNotEqual(results[0][1], results[1][1])

    def test_forward_sync_buffers(self):
        self.same_as_stock(forward_sync_buffers=False)

    def test_group_of_some_ranks(self):
        """Rank 2 does nothing. Steps of the group are those of its members."""
        def run(rank):
            group = dist.new_group([1, 0])
            dist.barrier()  # A rank that ends closes connections that others still make.
            if rank == 2:
                return None
            model = Ours(net(), process_group=group)
            same = states(train(model, rank)) == states(train(Stock(net(), process_group=group), rank))
            return ours(model), same, model.lockstep_member.world.session.world_size
        self.assertEqual(ranks(3, run), [(True, True, 2), (True, True, 2), None])

    def test_groups_in_one_backward_pass(self):
        """Each rank is in two groups, in a circle: a rank that waited for one group before it has
        ended its step of the other would wait for ever. PyTorch's forward pass does so when it
        rebuilds buckets, so there the modules take turns."""
        def run(rank):
            groups = [dist.new_group([r, (r + 1) % 3]) for r in range(3)]
            mine = [groups[rank], groups[(rank + 2) % 3]]
            results = []
            for kind in (Ours, Stock):
                made = {}
                for g in range(3):
                    if groups[g] in mine:
                        made[groups[g]] = kind(net(), process_group=groups[g],
                                               broadcast_buffers=False)
                together = [[made[group] for group in mine]]
                if kind is Stock:
                    together = [[model] for model in made.values()]
                else:
                    assert all(ours(model) for model in made.values())
                for i in range(4):
                    for models in together:
                        for model in models:
                            model.zero_grad()
                        sum(model(batch(rank, i)).square().mean() for model in models).backward()
                results.append([[p.grad.tolist() for p in made[group].parameters()]
                                for group in mine])
            return results[0] == results[1]
        self.assertEqual(ranks(3, run), [True, True, True])

    def test_group_beside_all_ranks(self):
        """A module of a group and one of all ranks. An error of one group is none of the other."""
        def run(rank):
            groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
            group = groups[rank // 2]
            part, whole = Ours(net(), process_group=group), Ours(net())
            stock = Stock(net(), process_group=group), Stock(net())
            for model in (part, *stock, whole):
                train(model, rank)
            near = max((a - b).abs().max().item() for a, b in zip(
                whole.state_dict().values(), stock[1].state_dict().values()))
            same, failed = states(part) == states(stock[0]), False
            if rank == 3:
                part.module.forward = lambda x: part.module[0](x)
            try:
                part(batch(rank, 9)).sum().backward()
            except lockstep.Unused:
                failed = True
            return ours(part), same, near < 1e-6, failed
        self.assertEqual(ranks(4, run), [(True, True, True, rank > 1) for rank in range(4)])

    def test_group_with_a_place_in_the_environment(self):
        """LOCKSTEP_ variables say where a process is among all ranks."""
        def run(rank):
            group = dist.new_group([0, 1])
            os.environ["LOCKSTEP_WORLD_SIZE"] = "3"
            dist.barrier()
            if rank == 2:
                return None
            with self.assertLogs("lockstep.torch", "WARNING") as said:
                model = Ours(net(), process_group=group)
            return ours(model), "LOCKSTEP_WORLD_SIZE" in said.output[0]
        self.assertEqual(ranks(3, run), [(False, True), (False, True), None])

    def test_device_mesh(self):
        def run(rank):
            from torch.distributed.device_mesh import init_device_mesh
            mesh = init_device_mesh("cpu", (2,))
            model = Ours(net(), device_mesh=mesh)
            return ours(model), states(train(model, rank)) == states(train(Stock(net()), rank))
        self.assertEqual(self.both(run), (True, True))

    def test_bucket_caps(self):
        def run(rank):
            found = []
            for cap in (None, 1, 0.0001):
                torch.manual_seed(1)
                inner = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
                model = Ours(inner, bucket_cap_mb=cap)
                for _ in range(2):
                    model(torch.ones(1, 256)).sum().backward()
                found.append((report().buckets, model.bucket_bytes_cap))
            return found
        default, one, tiny = self.both(run)
        self.assertEqual(default[1], 25 * MIB)
        self.assertLess(default[0], tiny[0])
        self.assertLessEqual(default[0], one[0])
        self.assertEqual(tiny[0], 16)

    def test_buckets_are_pieces_of_memory(self):
        """After the first step gradients lie as they travel, and keep their values."""
        def run(rank):
            torch.manual_seed(1)
            inner = torch.nn.Sequential(*(layer for _ in range(4) for layer in (
                torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.Tanh())))
            inner[3].double()  # Two dtypes, which alternate.
            inner[3].forward = lambda x: torch.nn.Linear.forward(inner[3], x.double()).float()
            model, found = Ours(inner), []
            for i in range(3):
                before = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
                output = model(torch.randn(2, 64))
                found.append(all(b is None or torch.equal(b, p.grad)
                                 for b, p in zip(before, model.parameters())))
                model.zero_grad()
                output.sum().backward()
            return found, report().runs == report().buckets, report().bytes_copied
        self.assertEqual(self.both(run), ([True] * 3, True, 0))

    def test_unused_is_an_error_with_names(self):
        def run(rank):
            torch.manual_seed(1)
            inner = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4), "b": torch.nn.Linear(4, 4)})
            inner.forward = lambda x: inner["a"](x) if rank else inner["b"](inner["a"](x))
            model = Ours(inner)
            try:
                model(torch.ones(1, 4)).sum().backward()
            except lockstep.Unused as error:
                text = error.text
            inner.forward = lambda x: inner["b"](inner["a"](x))
            model(torch.ones(1, 4)).sum().backward()  # The session goes on.
            return text
        text = self.both(run)
        self.assertIn("b.weight", text)
        self.assertNotIn("a.weight", text)
        self.assertIn("rank 1", text)
        self.assertIn("find_unused_parameters=True", text)

    def test_skip_unused(self):
        self.same_as_stock(find_unused_parameters=True, skip_all_reduce_unused_params=True)

    def test_view_and_static(self):
        self.same_as_stock(gradient_as_bucket_view=True, static_graph=True)

    def test_hooks_that_lockstep_has(self):
        def run(rank):
            model = Ours(net())
            model.register_comm_hook(None, default_hooks.allreduce_hook)
            same = states(train(model, rank)) == states(train(Stock(net()), rank))
            short = Ours(net())
            short.register_comm_hook(None, default_hooks.bf16_compress_hook)
            short = train(short, rank)
            far = max((a - b).abs().max().item() for a, b in zip(
                short.state_dict().values(), model.state_dict().values()))
            return ours(model), same, ours(short), short.lockstep_member.options["wire"], far
        mine, same, short, wire, far = self.both(run)
        self.assertEqual((mine, same, short, wire), (True, True, True, "bfloat16"))
        self.assertGreater(far, 0)
        self.assertLess(far, 0.01)

    def test_hooks_of_pytorch(self):
        def run(rank):
            results = []
            for state, hook in ((None, default_hooks.fp16_compress_hook),
                                ("power", powerSGD_hook.powerSGD_hook)):
                pair = []
                for kind in (Ours, Stock):
                    model = kind(net())
                    model.register_comm_hook(
                        powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
                        if state else None, hook)
                    pair.append(states(train(model, rank)))
                results.append(pair[0] == pair[1])
            return results
        self.assertEqual(self.both(run), [True, True])

    def test_hook_after_some_steps(self):
        """The reducer of PyTorch takes over, and gradients that were ours stay valid."""
        def run(rank):
            model = train(Ours(net()), rank)
            kept = [p.grad for p in model.parameters()]
            values = [g.tolist() for g in kept]
            model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
            same = [g.tolist() for g in kept] == values
            train(model, rank)
            return same, ours(model)
        self.assertEqual(self.both(run), (True, False))

    def test_delayed(self):
        def make(kind, names):
            inner = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
            torch.manual_seed(2)
            for p in inner.parameters():
                torch.nn.init.normal_(p)
            named = dict(inner.named_parameters())
            return kind(inner, delay_all_reduce_named_params=[(n, named[n]) for n in names],
                        param_to_hook_all_reduce=named[names[-1]])

        def run(rank):
            # PyTorch does not wait for the reduction of delayed gradients on CPUs.
            made = []
            for kind in (Ours, Stock):
                model = make(kind, ["0.weight"])
                model(batch(rank)).square().mean().backward()
                made.append([p.grad.tolist() for n, p in model.named_parameters()
                             if n != "module.0.weight"])
            return made[0] == made[1], len(made[0])
        self.assertEqual(self.both(run), (True, 3))

    def test_optimizer_in_backward(self):
        def run(rank):
            from torch.distributed.optim import _apply_optimizer_in_backward

            def outcome(kind, fused):
                """PyTorch 2.13 needs an accelerator for both. Then the errors are the same."""
                inner = net()
                if not fused:
                    _apply_optimizer_in_backward(torch.optim.SGD, inner.parameters(), {"lr": 0.1})
                model = kind(inner, gradient_as_bucket_view=True)
                if fused:
                    model._register_fused_optim(torch.optim.SGD, 0.1)
                try:
                    for i in range(3):
                        model(batch(rank, i)).square().mean().backward()
                except RuntimeError as error:
                    return str(error)
                return states(model)
            return [outcome(Ours, fused) == outcome(Stock, fused) for fused in (False, True)]
        self.assertEqual(self.both(run), [True, True])

    def test_ignored(self):
        def run(rank):
            inner = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4), "own": torch.nn.Linear(4, 4)})
            inner.forward = lambda x: inner["own"](inner["a"](x))
            torch.nn.init.constant_(inner["own"].weight, rank + 1.0)
            Stock._set_params_and_buffers_to_ignore_for_model(inner, ["own.weight", "own.bias"])
            model = Ours(inner)
            model(torch.ones(1, 4)).sum().backward()
            return (inner["own"].weight[0, 0].item(), inner["a"].weight.grad.tolist(),
                    inner["own"].weight.grad.tolist())
        (a, mean_a, own_a), (b, mean_b, own_b) = ranks(2, run)
        self.assertEqual((a, b), (1.0, 2.0))
        self.assertEqual(mean_a, mean_b)

    def test_logging_data(self):
        def run(rank):
            model = train(Ours(net()), rank, 12)
            model._set_ddp_runtime_logging_sample_rate(2)
            train(model, rank, 8)
            data = model._get_ddp_logging_data()
            return [data[name] for name in (
                "world_size", "module_name", "num_parameter_tensors", "has_rebuilt_buckets",
                "broadcast_buffers", "backend_name", "dtypes")], data["backward_comm_time"] > 0
        self.assertEqual(self.both(run), ([2, "Sequential", 6, 1, 1, "gloo", "float"], True))

    def test_weights(self):
        def run(rank):
            model = Ours(torch.nn.Linear(1, 1, bias=False))
            with model.step(weight=1 + 2 * rank):
                (model(torch.full((1, 1), 1.0 + rank)).sum()).backward()
            one = model.module.weight.grad.item()
            model.zero_grad()
            (model(torch.full((1, 1), 1.0 + rank)).sum()).backward()
            return one, model.module.weight.grad.item(), report().weight_total
        self.assertEqual(self.both(run), ((1 * 1 + 3 * 2) / 4, 1.5, 2))

    def test_two_modules_in_one_backward(self):
        def run(rank):
            made = []
            for kind in (Ours, Stock):
                torch.manual_seed(3)
                first, second = kind(torch.nn.Linear(8, 8)), kind(torch.nn.Linear(8, 4))
                for i in range(4):
                    second(first(batch(rank, i))).square().mean().backward()
                made.append([p.grad.tolist() for m in (first, second) for p in m.parameters()])
                alone = second(batch(rank, 9)).sum()
                alone.backward()
                made[-1] += [p.grad.tolist() for p in second.parameters()]
            return made[0] == made[1]
        self.assertTrue(self.both(run))

    def test_forward_twice(self):
        def run(rank):
            made = []
            for kind in (Ours, Stock):
                model = kind(net(), broadcast_buffers=False)
                (model(batch(rank)).sum() + model(batch(rank, 1)).sum()).backward()
                made.append([p.grad.tolist() for p in model.parameters()])
            return made[0] == made[1]
        self.assertTrue(self.both(run))

    def test_backward_of_each_forward(self):
        """Both are synchronized. PyTorch synchronizes the first one only."""
        def run(rank):
            torch.manual_seed(1)
            model, twin = Ours(torch.nn.Linear(8, 4)), torch.nn.Linear(8, 4)
            twin.load_state_dict(model.module.state_dict())
            losses = [model(batch(rank, i)).square().mean() for i in range(2)]
            for loss in losses:
                loss.backward()
            for r in range(2):
                for i in range(2):
                    (twin(batch(r, i)).square().mean() / 2).backward()
            return [(p.grad - q.grad).abs().max().item() < 1e-6
                    for p, q in zip(model.parameters(), twin.parameters())]
        self.assertEqual(self.both(run), [True, True])

    def test_double_backward_and_retain_graph(self):
        def run(rank):
            torch.manual_seed(1)
            model = Ours(torch.nn.Linear(8, 4))
            loss = model(batch(rank)).square().sum()
            loss.backward(retain_graph=True)
            first = model.module.weight.grad.tolist()
            loss.backward()  # As in PyTorch: not synchronized.
            loss = model(batch(rank)).square().sum()
            grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            model.zero_grad()
            sum(g.square().sum() for g in grads).backward()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.zero_grad()
                model(batch(rank)).square().sum().backward(create_graph=True)
            return first, model.module.weight.grad.tolist()
        first, again = self.both(run)
        self.assertEqual(first, again)

    def test_parameters_that_are_replaced(self):
        """An error for a wrapper, and declared anew by sync. Tensors and parameters of
        functional_call, and the same parameter under another name, are no replacement."""
        def run(rank):
            torch.manual_seed(1)
            inner = torch.nn.Linear(8, 4)
            model = Ours(inner)
            for kind in torch.Tensor.requires_grad_, torch.nn.Parameter:
                other = {f"module.{name}": kind(p.detach().clone())
                         for name, p in inner.named_parameters()}
                for _ in range(2):
                    torch.func.functional_call(model, other, batch(rank)).sum().backward()
                model(batch(rank)).sum().backward()
            self.assertTrue(torch.allclose(other["module.weight"].grad[0],
                                           2 * batch(rank).sum(0), atol=1e-4))
            torch.nn.utils.parametrizations.weight_norm(inner)
            with self.assertRaisesRegex(lockstep.Invalid, "Linear.*the place of 'bias'"):
                model = Ours(inner)
                model(batch(rank)).sum().backward()
                states = {name: p.clone() for name, p in inner.state_dict().items()}
                inner.load_state_dict(states, assign=True)
                model(batch(rank)).sum().backward()
            line = torch.nn.Linear(8, 4)
            loss = lockstep.torch.sync(line)(line.forward)
            found = []
            for _ in range(2):
                for model in Ours(inner), loss:
                    model(batch(rank)).square().mean().backward()
                line.load_state_dict({name: p.clone() for name, p in line.state_dict().items()},
                                     assign=True)
                found += [p.grad.tolist() for p in inner.parameters()]
                loss(batch(rank)).square().mean().backward()
                found += [p.grad.tolist() for p in line.parameters()]
            return found
        self.both(run)

    def test_memory_that_is_not_dense_after_wrapping(self):
        """Training goes on when the program has changed it back."""
        def run(rank):
            torch.manual_seed(1)
            model = Ours(torch.nn.Linear(8, 4))
            model(batch(rank)).sum().backward()
            weight = model.module.weight
            weight.data = torch.ones(4, 16)[:, :8]
            for again in lambda: model(batch(rank)), lambda: Ours(torch.nn.Linear(2, 2)):
                with self.assertRaisesRegex(lockstep.Invalid, "Linear.*'weight'.*not dense"):
                    again()
            weight.data = weight.data.contiguous()
            model.zero_grad()
            model(batch(rank)).sum().backward()
            return weight.grad.tolist()
        self.both(run)

    def test_other_dtype_after_wrapping(self):
        def run(rank):
            torch.manual_seed(1)
            model = Ours(torch.nn.Linear(8, 4))
            model(batch(rank)).sum().backward()
            model.double()
            Ours(torch.nn.Linear(2, 2))  # Tells the library where all parameters are.
            model.zero_grad()
            model(batch(rank).double()).sum().backward()
            return ours(model), str(model.module.weight.grad.dtype), model.module.weight.grad.tolist()
        mine, dtype, _ = self.both(run)
        self.assertEqual((mine, dtype), (True, "torch.float64"))

    def test_other_memory_format_after_wrapping(self):
        """Also before the first step, also if another module is wrapped next, and with a weight
        that has one element for each channel: its elements stay where they are. Beside a module
        that is not wrapped, because PyTorch's means are wrong then."""
        def near(rank, size, when, second):
            torch.manual_seed(1)
            plain = torch.nn.Conv2d(2, 3, size)
            model = Ours(copy.deepcopy(plain))
            for i in range(when + 3):
                if i == when:
                    model.to(memory_format=torch.channels_last)
                    if second:
                        Ours(torch.nn.Linear(2, 2))
                for each in plain, model:
                    each(batch(rank, i).reshape(4, 2, 4, 4)).square().mean().backward()
                for p in plain.parameters():
                    dist.all_reduce(p.grad)
                    p.grad /= 2
            weight = model.module.weight
            return (size == 1 or weight.grad.stride() == weight.stride()) and all(
                torch.allclose(p.grad, q.grad, atol=1e-6)
                for p, q in zip(plain.parameters(), model.parameters()))

        def run(rank):
            return [near(rank, *case) for case in itertools.product((2, 1), range(3), (False, True))]
        self.assertEqual(self.both(run), [True] * 12)

    def test_world_of_one(self):
        def run(rank):
            return states(train(Ours(net()), 0)) == states(train(net_wrapped(), 0))

        def net_wrapped():
            return Stock(net())
        self.assertEqual(ranks(1, run), [True])


if __name__ == "__main__":
    unittest.main()
