# SPDX-License-Identifier: Apache-2.0
"""torch.compile around and inside DistributedDataParallel of lockstep."""

import unittest

try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed")

from lockstep.torch import DistributedDataParallel as Ours
from lockstep.torch import sync
from torch_ranks import ranks

Stock = torch.nn.parallel.DistributedDataParallel


def wide():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 512),
                               *(torch.nn.Linear(512, 512) for _ in range(4)),
                               torch.nn.Linear(512, 4))


def train(model, call, rank):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for i in range(3):
        generator = torch.Generator().manual_seed(10 * rank + i)
        optimizer.zero_grad()
        call(torch.randn(4, 8, generator=generator)).square().mean().backward()
        optimizer.step()
    return [p.tolist() for p in model.parameters()]


def compiled(kind, how, rank, cap=None):
    """Parameters after training, and the number of graphs."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward
    torch._dynamo.reset()
    if how == "outside":
        model = kind(wide(), bucket_cap_mb=cap)
        return train(model, torch.compile(model, backend=backend), rank), len(graphs)
    model = kind(torch.compile(wide(), backend=backend), bucket_cap_mb=cap)
    return train(model, model, rank), len(graphs)


class Compile(unittest.TestCase):
    def test_same_graphs_and_bits(self):
        def run(rank):
            found = []
            for optimize in (True, False):
                torch._dynamo.config.optimize_ddp = optimize
                for how in ("outside", "inside"):
                    mine, theirs = (compiled(kind, how, rank, 2) for kind in (Ours, Stock))
                    found.append((optimize, how, mine[0] == theirs[0], mine[1] == theirs[1],
                                  mine[1] > 1))
            return found
        for found in ranks(2, run):
            for optimize, how, bits, graphs, divided in found:
                with self.subTest(optimize=optimize, how=how):
                    self.assertTrue(bits)
                    self.assertTrue(graphs)
                    if how == "inside":
                        self.assertEqual(divided, optimize)

    def test_aot(self):
        def run(rank):
            both = []
            for kind in (Ours, Stock):
                torch._dynamo.reset()
                model = kind(wide())
                both.append(train(model, torch.compile(model, backend="aot_eager"), rank))
            return both[0] == both[1]
        self.assertEqual(ranks(2, run), [True, True])

    def test_function(self):
        """torch.compile around a function of sync compiles what is inside, and changes no bit."""
        def run(rank):
            found = []
            for how in ("eager", "aot_eager", None):
                torch._dynamo.reset()
                torch.manual_seed(1)
                net, graphs = torch.nn.Linear(8, 4), []
                loss = sync(net)(lambda x: net(x).square().mean())

                def backend(graph, inputs):
                    graphs.append(graph)
                    return torch._dynamo.lookup_backend(how)(graph, inputs)
                call = torch.compile(loss, backend=backend) if how else loss
                for i in range(3):
                    with loss.no_sync():
                        call(torch.full((2, 8), 1.0 + rank)).backward()
                    call(torch.full((2, 8), i + rank * 0.5)).backward()
                found.append(([p.grad.tolist() for p in net.parameters()], len(graphs) > 0))
            return found
        for eager, aot, plain in ranks(2, run):
            self.assertEqual((eager, aot), ((plain[0], True), (plain[0], True)))

    def test_compiled_autograd(self):
        """An error says what to do, and the reducer that it names works."""
        def run(rank):
            model = Ours(torch.nn.Linear(8, 4))
            try:
                with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
                    model(torch.ones(1, 8)).sum().backward()
                text = "nothing"
            except RuntimeError as error:
                text = str(error)
            torch._dynamo.reset()
            torch._dynamo.config.optimize_ddp = "python_reducer"
            torch.manual_seed(1)
            model = Ours(torch.nn.Linear(8, 4))
            model(torch.full((1, 8), 1.0 + rank)).sum().backward()
            return text, model.lockstep_member is None, model.module.weight.grad[0, 0].item()
        for text, stock, mean in ranks(2, run):
            self.assertIn("python_reducer", text)
            self.assertEqual((stock, mean), (True, 1.5))


if __name__ == "__main__":
    unittest.main()
