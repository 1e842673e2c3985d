# SPDX-License-Identifier: Apache-2.0
"""python -m lockstep.torch: the program sees what it sees without lockstep, but for one class."""

import os
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


class Main(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        with open(os.path.join(self.folder, "program.py"), "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(PROGRAM))
        with open(os.path.join(self.folder, "wrong.py"), "w", encoding="utf-8") as file:
            file.write("x = = 3\n")

    def run_python(self, *arguments):
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True,
                              timeout=120, check=False, cwd=self.folder)
        lines = done.stdout.splitlines()
        classes = [line for line in lines if line.startswith("class ")]
        return (done.returncode, [line for line in lines if line not in classes],
                done.stderr), classes

    def both(self, *arguments):
        """What the program does with and without lockstep is the same."""
        plain, _ = self.run_python(*arguments)
        ours, classes = self.run_python("-m", "lockstep.torch", *arguments)
        self.assertEqual(ours, plain)
        return ours, classes

    def test_file(self):
        (code, _, _), classes = self.both("program.py", "a", "--b")
        self.assertEqual((code, classes), (0, ["class lockstep.torch.ddp True"]))

    def test_module(self):
        _, classes = self.both("-m", "program", "a")
        self.assertEqual(classes, ["class lockstep.torch.ddp True"])

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
