# SPDX-License-Identifier: Apache-2.0
"""lockstep.torch.sync: synchronization around functions, as reinforcement learning needs it."""

import unittest
from unittest import mock

try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed")

import lockstep
import lockstep.torch
from lockstep.torch import DistributedDataParallel, functions, memory, report, sync
from torch_ranks import ranks


def batch(rank, i=0):
    generator = torch.Generator().manual_seed(1000 * rank + i)
    return torch.randn(16, 8, generator=generator)


def values(module):
    return [p.tolist() for p in module.parameters()]


class Agent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.actor = torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)
        self.critic, self.target = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)
        self.register_buffer("replay", torch.zeros(4, 8))
        self.register_buffer("scale", torch.ones(()))


class Functions(unittest.TestCase):
    def both(self, function, n=2):
        results = ranks(n, function)
        for result in results:
            self.assertEqual(result, results[0])
        return results[0]

    def test_a_broadcast_waits_for_streams(self):
        """As on a GPU: a tensor has its values only when its stream has ended."""
        def run(rank):
            tensor = torch.tensor([100.0 + rank])

            def describe(it):
                place = memory.describe(it)
                place.on_device = True
                return place

            with mock.patch("torch.cuda.synchronize", lambda _: tensor.fill_(5.0 + rank)), \
                    mock.patch.object(functions, "describe", describe):
                functions._broadcast("state", "tensor", tensor)
            return tensor.item()
        self.assertEqual(self.both(run), 5.0)

    def test_two_losses_of_one_agent(self):
        """Each phase leaves other parameters out. The target network and the replay buffer are
        each rank's own."""
        def run(rank):
            torch.manual_seed(rank)
            agent = Agent()
            agent.replay.fill_(rank)
            agent.scale.fill_(rank + 5.0)
            own = ("target.*", "replay")

            @sync(agent, ignore=own, phase="actor")
            def actor_loss(x):
                return agent.actor(agent.body(x)).square().mean()

            @sync(agent, ignore=own, phase="critic")
            def critic_loss(x):
                return (agent.critic(agent.body(x)) - agent.target(x)).square().mean()

            shared = [*agent.body.parameters(), *agent.actor.parameters(),
                      *agent.critic.parameters()]
            first = torch.optim.SGD([*agent.body.parameters(), *agent.actor.parameters()], 0.1)
            second = torch.optim.Adam([*agent.body.parameters(), *agent.critic.parameters()], 0.1)
            for i in range(4):
                agent.zero_grad()
                actor_loss(batch(rank, i)).backward()
                assert agent.critic.weight.grad is None
                first.step()
                agent.zero_grad()
                critic_loss(batch(rank, i)).backward()
                second.step()
            return ([p.tolist() for p in shared], agent.scale.item(),
                    agent.replay[0, 0].item() == rank, agent.target.weight.grad is not None)
        _, scale, mine, target = self.both(run)
        self.assertEqual((scale, mine, target), (5.0, True, True))

    def test_mean_and_accumulation(self):
        """Three micro-batches of each rank have the gradient of one process with all of them."""
        def run(rank):
            torch.manual_seed(1)
            line = torch.nn.Linear(8, 1)

            @sync(line)
            def loss(x):
                return line(x).square().mean()

            for i in range(2):
                with loss.no_sync():
                    (loss(batch(rank, i)) / 3).backward()
            (loss(batch(rank, 2)) / 3).backward()
            twin = torch.nn.Linear(8, 1)
            twin.load_state_dict(line.state_dict())
            for r in range(2):
                for i in range(3):
                    (twin(batch(r, i)).square().mean() / 6).backward()
            return [(p.grad - q.grad).abs().max().item() < 1e-6
                    for p, q in zip(line.parameters(), twin.parameters())]
        self.assertEqual(self.both(run), [True, True])

    def test_several_modules_and_weights(self):
        def run(rank):
            a, b = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)

            @sync([a, b], name="pair")
            def loss(x):
                return (a(x) + b(x)).sum()

            with loss.step(weight=1 + rank):
                loss(torch.full((1, 1), 3.0 * rank)).backward()
            return a.weight.grad.item(), b.weight.grad.item(), loss.member.names, \
                loss.member.name, report().weight_total
        self.assertEqual(self.both(run), (2.0, 2.0, ["0.weight", "1.weight"], "pair", 3))

    def test_beside_a_wrapper(self):
        """An auxiliary loss beside DistributedDataParallel, in one backward pass."""
        def run(rank):
            torch.manual_seed(1)
            model, head = DistributedDataParallel(torch.nn.Linear(8, 4)), torch.nn.Linear(4, 1)

            @sync(head)
            def auxiliary(h):
                return head(h).square().mean()

            for i in range(3):
                h = model(batch(rank, i))
                (h.square().mean() + auxiliary(h)).backward()
            return [p.grad.tolist() for p in [*model.parameters(), *head.parameters()]]
        self.both(run)

    def test_parameters_that_are_thawed(self):
        def run(rank):
            torch.manual_seed(1)
            net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
            net[0].requires_grad_(False)

            @sync(net)
            def loss(x):
                return net(x).square().mean()

            loss(batch(rank)).backward()
            net[0].requires_grad_(True)
            net.zero_grad()
            loss(batch(rank)).backward()
            return [p.grad.tolist() for p in net.parameters()]
        self.both(run)

    def test_method(self):
        def run(rank):
            class Learner:
                net = torch.nn.Linear(8, 1)

                @sync(net)
                def loss(self, x):
                    return self.net(x).sum()

            learner = Learner()
            learner.loss(batch(rank)).backward()
            return learner.net.weight.grad.tolist()
        self.both(run)

    def test_wrong_use(self):
        def run(rank):
            said = []

            def attempt(function):
                try:
                    function()
                except lockstep.Invalid as error:
                    said.append(error.text.split(":")[0])
            frozen, line = torch.nn.Linear(2, 2).requires_grad_(False), torch.nn.Linear(2, 2)
            attempt(lambda: sync(frozen)(lambda: None)())
            attempt(lambda: sync(line)(lambda: line(torch.ones(1, 2)).sum().item())())
            attempt(lambda: sync([]))
            attempt(lambda: sync(DistributedDataParallel(torch.nn.Linear(2, 2))))
            attempt(lambda: sync(line, ignore=["x"]))
            return said
        self.assertEqual([text.split(" (")[0][:40] for text in self.both(run)], [
            "no parameter of the module needs a gradi", "<lambda>() has returned no tensor with a",
            "sync() needs a module", "the module is a DistributedDataParallel,"])

    def test_weights_that_are_no_numbers_of_samples(self):
        def run(rank):
            line = torch.nn.Linear(1, 1, bias=False)
            model, said = DistributedDataParallel(line), []
            for weight in (0.5, -1, 1 << 49, float("nan"), "3", torch.tensor(1.5), torch.ones(2)):
                try:
                    with model.step(weight=weight):
                        model(torch.ones(1, 1)).sum().backward()
                except lockstep.Invalid as error:
                    said.append("weight is" in error.text)
            for weight in ((1, 3), (torch.tensor(1), 3.0)):
                model.zero_grad()
                with model.step(weight=weight[rank]):
                    model(torch.full((1, 1), 1.0 + 4 * rank)).sum().backward()
                said.append(line.weight.grad.item())
            return said
        self.assertEqual(self.both(run), [True] * 7 + [4.0, 4.0])

    def test_buffers_that_are_not_contiguous(self):
        def run(rank):
            line, said = torch.nn.Linear(2, 2), []
            line.frozen = torch.nn.Parameter(torch.ones(2, 3).t(), requires_grad=False)
            line.register_buffer("window", torch.ones(3, 4)[:, :2])
            for _ in range(4):
                try:
                    sync(line)(lambda: line(torch.ones(1, 2)).sum())()
                except lockstep.Invalid as error:
                    name = error.text.split("'")[1]
                    said.append(name)
                    getattr(line, name).data = getattr(line, name).data.contiguous()
            return said
        self.assertEqual(self.both(run), ["frozen", "window"])

    def test_more_virtual_ranks_than_ranks(self):
        def run(_):
            line, said = torch.nn.Linear(8, 1), []
            for wrap in DistributedDataParallel, lambda module: sync(module)(lambda: None)():
                try:
                    wrap(line)
                except lockstep.Invalid as error:
                    said.append("Set LOCKSTEP_VIRTUAL_RANKS to 0 or 2" in error.text)
            return said
        for said in ranks(2, run, LOCKSTEP_VIRTUAL_RANKS="4"):
            self.assertEqual(said, [True, True])


if __name__ == "__main__":
    unittest.main()
