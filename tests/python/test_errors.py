# SPDX-License-Identifier: Apache-2.0
"""Every status of lockstep.h has an exception, and docs/python.md has a row for each."""

import os
import re
import tempfile
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

    def test_another_version_than_the_coordinators(self):
        """A relay changes the version in the worker's first message."""
        with tempfile.TemporaryDirectory() as folder:
            said = job(1, f"""
                import re, socket
                at = {folder!r} + "/relay"
                def pump(source, target, change):
                    while data := source.recv(65536):
                        target.sendall(change(data))
                def older(data):  # Field 1 is the version, field 2 the job.
                    return re.sub(rb"\x08[\x01-\x7f](\x12.another-version)", rb"\x08\x01\\1", data, flags=re.S)
                def relay():
                    while True:
                        worker, there = door.accept()[0], socket.socket(socket.AF_UNIX)
                        there.connect(there_is)
                        for ends in ((worker, there, older), (there, worker, bytes)):
                            threading.Thread(target=pump, args=ends, daemon=True).start()
                there_is = os.environ["LOCKSTEP_COORDINATOR"][len("unix:"):]
                os.environ.update(LOCKSTEP_COORDINATOR="unix:" + at, LOCKSTEP_JOB="another-version")
                door = socket.socket(socket.AF_UNIX)
                door.bind(at)
                door.listen()
                threading.Thread(target=relay, daemon=True).start()
                try:
                    lockstep.Session()
                except lockstep.Mismatch as error:
                    say(error)
                """, opened=False)
        self.assertRegex(said.out, r"speaks protocol version 1, the coordinator version \d+: install "
                                   "the same Lockstep on both")

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
