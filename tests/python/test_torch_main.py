# SPDX-License-Identifier: Apache-2.0
"""python -m lockstep.torch: the program sees what it sees without lockstep, but for one class."""

import os
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest

try:
    import torch
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed")

PROGRAM = """
    import pickle, sys
    import __main__
    import torch
    from torch.nn.parallel import DistributedDataParallel as A
    from torch.nn.parallel.distributed import DistributedDataParallel as B

    class Kept:
        pass

    def main():
        print(sys.argv, __name__, __file__, sys.path[0], __main__.Kept is Kept,
              type(pickle.loads(pickle.dumps(Kept()))) is Kept)
        print("class", A.__module__, A is B)
        if sys.argv[1:] == ["raise"]:
            raise ValueError("no luck")
        if sys.argv[1:] == ["exit"]:
            sys.exit(7)

    main()
"""


# Two ranks train in processes that multiprocessing starts, below a process that never trains. A
# process without PyTorch says whether it got any.
CHILDREN = """
    import multiprocessing, os, sys, tempfile

    def light(answers):
        answers.put("torch" in sys.modules)

    def rank(rank, store, answers):
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        torch.set_num_threads(1)
        torch.manual_seed(rank)
        dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
        model = DistributedDataParallel(torch.nn.Linear(4, 2))
        model(torch.full((2, 4), 1.0 + rank)).square().sum().backward()
        answers.put((rank, [p.grad.tolist() for p in model.parameters()],
                     DistributedDataParallel.__module__))
        dist.destroy_process_group()

    def both(store, answers):
        import torch.multiprocessing
        torch.multiprocessing.start_processes(rank, (store, answers), 2,
                                              start_method=sys.argv[1])

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        answers = context.SimpleQueue()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            child = context.Process(target=light, args=(answers,))
            child.start()
            print("PyTorch is there:", answers.get())
            child.join()
            child = context.Process(target=both, args=(os.path.join(folder, "store"), answers))
            child.start()
            child.join()
            found = sorted(answers.get() for _ in range(0 if child.exitcode else 2))
            os.chdir("/")
        print([gradients for _, gradients, _ in found], child.exitcode)
        print("class", *(module for _, _, module in found))
"""


class Main(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(os.path.join(self.folder, "program.py"), "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(PROGRAM))
        with open(os.path.join(self.folder, "children.py"), "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(CHILDREN))
        with open(os.path.join(self.folder, "wrong.py"), "w", encoding="utf-8") as file:
            file.write("x = = 3\n")

    def run_python(self, *arguments):
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True,
                              timeout=120, check=False, cwd=self.folder)
        lines = done.stdout.splitlines()
        classes = [line for line in lines if line.startswith("class ")]
        return (done.returncode, [line for line in lines if line not in classes],
                done.stderr), classes

    def both(self, *arguments, own=""):
        """What the program does with and without lockstep is the same, but for lines of standard
        error that match own."""
        plain, _ = self.run_python(*arguments)
        (code, lines, error), classes = self.run_python("-m", "lockstep.torch", *arguments)
        error = "".join(line for line in error.splitlines(True) if not own or not re.match(own, line))
        self.assertEqual((code, lines, error), plain)
        return plain, classes

    def test_file(self):
        (code, _, _), classes = self.both("program.py", "a", "--b")
        self.assertEqual((code, classes), (0, ["class lockstep.torch.ddp True"]))

    def test_module(self):
        _, classes = self.both("-m", "program", "a")
        self.assertEqual(classes, ["class lockstep.torch.ddp True"])

    def children(self, *arguments):
        (code, lines, _), classes = self.both(*arguments, own="lockstep: (the page of this job is|compiling the native) ")
        self.assertEqual((code, classes), (0, ["class lockstep.torch.ddp lockstep.torch.ddp"]))
        self.assertEqual(lines[0], "PyTorch is there: False")

    def test_children_that_are_spawned(self):
        self.children("children.py", "spawn")

    def test_children_of_a_module(self):
        self.children("-m", "children", "spawn")

    def test_children_of_a_server(self):
        self.children("children.py", "forkserver")

    def test_exception(self):
        (code, _, text), _ = self.both("program.py", "raise")
        self.assertEqual(code, 1)
        self.assertIn("ValueError: no luck", text)

    def test_exit_status(self):
        (code, _, _), _ = self.both("program.py", "exit")
        self.assertEqual(code, 7)

    def test_wrong_syntax(self):
        self.both("wrong.py")

    def test_entry_point_makes_the_backend_known(self):
        """As in a wheel: the package is imported when the first group is made, and not before."""
        facts = os.path.join(self.folder, "lockstep-0.dist-info")
        os.mkdir(facts)
        with open(os.path.join(facts, "METADATA"), "w", encoding="utf-8") as file:
            file.write("Metadata-Version: 2.1\nName: lockstep\nVersion: 0\n")
        with open(os.path.join(facts, "entry_points.txt"), "w", encoding="utf-8") as file:
            file.write("[torch.backends]\nlockstep = _lockstep_entry:torch_backend\n")
        (code, lines, text), _ = self.run_python("-c", textwrap.dedent("""
            import sys
            import torch
            import torch.distributed as dist
            print("lockstep" in sys.modules)
            dist.init_process_group("lockstep", store=dist.HashStore(), rank=0, world_size=1)
            numbers = torch.ones(2)
            dist.all_reduce(numbers)
            print(numbers.tolist(), "lockstep" in sys.modules)
            dist.destroy_process_group()
        """))
        self.assertEqual((code, lines), (0, ["False", "[1.0, 1.0] True"]), text)

    def test_usage(self):
        for arguments in ((), ("-m",), ("--help",), ("missing.py",)):
            (code, _, text), _ = self.run_python("-m", "lockstep.torch", *arguments)
            self.assertEqual(code, 1)
            self.assertTrue("usage" in text or "missing.py" in text, text)
