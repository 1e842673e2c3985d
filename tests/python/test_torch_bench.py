# SPDX-License-Identifier: Apache-2.0
"""From the times of steps to the figures of `make torch-bench`."""

import os
import sys
import unittest

from support import ROOT

sys.path.insert(0, os.path.join(ROOT, "bench", "peers"))
import torch_run  # noqa: E402

try:
    import torch_hooks
except ImportError:  # It needs PyTorch.
    torch_hooks = None


def model(parameters, none, **others):
    series = {"none": none, **others}
    return {"parameters": parameters, "bytes": 4 * parameters, "series_us": series,
            "first_s": {name: 1.0 for name in series}}


def record(*models, round=0, error=None):
    return {"case": "c", "round": round, "error": error, "models": list(models),
            "foreign_share": 0.1 * (round + 1)}


CASE = torch_run.Case("c", None, "a case", 1)


class Figures(unittest.TestCase):
    def test_overheads_are_those_of_the_same_turn(self):
        """Steps without synchronization become slower: differences of medians would be wrong."""
        one = model(1, [100, 200, 300], ddp=[120, 220, 320], native=[105, 205, 305])
        two = model(1, [100, 100, 100], ddp=[110, 110, 110], native=[105, 105, 105])
        entry, = torch_run.summary([record(one), record(two, round=1),
                                    record(round=2, error="killed")], [CASE])
        ways = entry["models"][0]["ways"]
        self.assertEqual((entry["launches"], entry["errors"]), (2, ["killed"]))
        self.assertEqual(entry["foreign_share"], 0.2)
        self.assertEqual(ways["ddp"]["overhead_us"], 15)
        self.assertEqual(ways["native"]["overhead_us"], 5)
        self.assertAlmostEqual(ways["native"]["ratio"], 1 / 3)
        self.assertEqual(ways["native"]["ratios"], [0.25, 0.5])
        self.assertNotIn("ratio", ways["none"])

    def test_free_ddp_has_no_ratio(self):
        entry, = torch_run.summary([record(model(1, [5], ddp=[5], native=[6]))], [CASE])
        self.assertIsNone(entry["models"][0]["ways"]["native"]["ratio"])

    def test_parameters_and_steps(self):
        """2 us for each parameter and 50 us for each step."""
        entry, = torch_run.summary([record(model(100, [1000], python=[1250]),
                                           model(400, [4000], python=[4850]))], [CASE])
        self.assertEqual(entry["hooks"]["python"], {"us_per_parameter": 2.0, "us_per_step": 50.0})

    @unittest.skipIf(torch_hooks is None, "PyTorch is not installed")
    def test_parts_of_hooks(self):
        """A parameter costs 2 us in the backward pass and 3 us in the step, and a step 50 us. Half
        of the turns are disturbed."""
        def turns(count):
            quick = ((10.0 * count, 20.0 * count), (12.0 * count, 23.0 * count + 50.0))
            slow = tuple((5 * back, 7 * whole) for back, whole in quick)
            return [quick, slow] * 10

        found = torch_hooks.figures_of({count: turns(count)
                                        for count in (torch_hooks.FEW, torch_hooks.MANY)})
        self.assertEqual(found["turns"], 20)
        self.assertAlmostEqual(found["backward"]["us_per_parameter"], 2.0)
        self.assertAlmostEqual(found["step"]["us_per_parameter"], 3.0)
        self.assertAlmostEqual(found["step"]["us_besides"], 50.0)


if __name__ == "__main__":
    unittest.main()
