# SPDX-License-Identifier: Apache-2.0
"""Every status of lockstep.h has an exception, and docs/python.md has a row for each."""

import os
import re
import unittest

from support import ROOT, alone, job


class Errors(unittest.TestCase):
    side_by_side = True

    def test_every_status_has_a_class(self):
        import lockstep
        from lockstep import errors

        failures = {status for status in lockstep.Status if status < 0}
        self.assertEqual(set(errors.classes()), failures)
        for status in failures:
            error = errors.error_of(status, "rank 3 (host a) is gone")
            kind = type(error)
            self.assertIsNot(kind, lockstep.LockstepError, status)
            self.assertIs(getattr(lockstep, kind.__name__), kind)
            self.assertEqual((error.status, error.text), (status, "rank 3 (host a) is gone"))
        with open(os.path.join(ROOT, "docs", "python.md"), encoding="utf-8") as file:
            rows = dict(re.findall(r"^\| `(\w+)` \| `LOCKSTEP_(E_\w+)` \|", file.read(), re.M))
        self.assertEqual(rows, {kind.__name__: kind.status.name
                                for kind in errors.classes().values()})

    def test_a_death_in_a_collective_is_changed(self):
        said = job(3, """
            total = np.array([2.0**rank])
            session.barrier("all are here")
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            while True:
                try:
                    total[:] = 2.0**rank
                    session.allreduce("total", total)
                    break
                except lockstep.Changed:
                    pass
            say(total[0])
            """, survive=True)
        self.assertEqual((said.code, said.lines), (0, ["5.0"] * 2), said)

    def test_a_mean_of_integers(self):
        said = alone("""
            session = lockstep.Session()
            try:
                session.allreduce("x", np.zeros(1, np.int64), "mean")
            except lockstep.Invalid as error:
                say(error)
            """)
        self.assertIn("a mean of int64 does not exist; take the sum", said.out)

    def test_a_session_that_is_closed(self):
        said = alone("""
            session = lockstep.Session()
            session.start()
            session.close()
            for call in (session.start, session.step, session.world_change,
                         lambda: session.allreduce("x", np.zeros(1))):
                try:
                    call()
                except lockstep.Closed as error:
                    say(error)
            """)
        self.assertEqual((said.code, said.lines), (0, ["the session is closed"] * 4), said)


if __name__ == "__main__":
    unittest.main()
