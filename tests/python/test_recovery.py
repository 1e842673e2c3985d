# SPDX-License-Identifier: Apache-2.0
"""Survivors of a death go on (on_failure continue), with the ranks and counts of the new world."""

import unittest

from support import job

# Rank 1 of four dies in the third step. Then there are ranks 0, 2, 3 in the places 0, 1, 2.
DEATH = """
w, g = np.zeros(4, np.float32), np.zeros(4, np.float32)
net = session.register("net", [lockstep.Parameter("w", w, g)])
session.start()
group = session.group([3, 1, 0, 2], "some")
for i in range(4):
    with session.step() as step, step.call(net) as call:
        if i == 2 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        g[:] = 1
        call.ready("w")
"""
PLACES = """
place = [0, None, 1, 2][rank]
view = step.view
assert (session.rank, session.size, session.world_size) == (view.rank, view.world_size, 3)
assert session.rank == place
assert (group.rank, group.size) == ([1, None, 2, 0][rank], 3)
change = session.world_change()
assert (change.changes, change.step, change.world_size_before) == (1, 3, 4), change
assert (change.rank, change.world_size, change.rank_before) == (place, 3, rank), change
assert (change.lost_count, change.lost) == (1, (1,)) and "rank 1" in change.text, change
"""
COLLECTIVES = """
x = np.array([float(rank)])
assert session.broadcast("root", x, root=session.size - 1) == 3
whole = np.zeros(3)
session.all_gather("parts", np.array([float(rank)]), whole)
assert whole.tolist() == [0, 2, 3], whole
group.all_gather("parts of the group", np.array([float(rank)]), whole)
assert whole.tolist() == [3, 0, 2], whole
rows = np.array([rank * 10.0, rank * 10 + 1, rank * 10 + 2])
session.all_to_all("rows", rows, whole)
assert whole.tolist() == [place, 20 + place, 30 + place], whole
try:
    session.all_gather("parts", np.array([1.0]), np.zeros(4), counts=[1, 1, 1, 1])
    raise AssertionError("four counts for three ranks")
except lockstep.Invalid as error:
    assert "3 members" in str(error), error
last = session.rank, session.size
session.close()
assert (session.rank, session.size) == last
say("good")
"""
# The survivors do not make a step after the death, so they learn of it from a collective.
UNTOLD = """
net = session.register("net", [("w", np.zeros(4, np.float32), np.zeros(4, np.float32))])
session.start()
session.barrier("all are here")
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
deadline = time.monotonic() + 30
while session.size == 3:
    assert time.monotonic() < deadline
    time.sleep(0.01)
parts = [float(rank)] * 3
told = []
while True:
    try:  # The first call has the counts of the old world.
        out = np.zeros(len(parts))
        session.all_to_all("parts", np.array(parts), out, source_counts=[1] * len(parts),
                           target_counts=[1] * len(parts))
        break
    except lockstep.Changed as error:
        told.append(error)
        parts = [float(rank)] * session.size
assert told and all(error.status == lockstep.Status.E_CHANGED for error in told), told
assert out.tolist() == [0, 2], out
say("good")
"""
# Four of six ranks end badly, each in another way. The first and the last make all steps.
ENDS = """
w, g = np.zeros(4, np.float32), np.zeros(4, np.float32)
def steps(session):
    net = session.register("net", [lockstep.Parameter("w", w, g)])
    session.start()
    for i in range(8):
        if i == 2 and rank == 1:
            raise ValueError("between two steps")
        with session.step() as step:
            if i == 3 and rank == 2:
                sys.exit("inside a step")
            with step.call(net) as call:
                if i == 4 and rank == 3:
                    raise ValueError("inside a call")
                g[:] = 1
                call.ready("w")
                if i == 5 and rank == 4:
                    sys.exit(7)
        assert (g == 1).all()
if rank % 2:
    with lockstep.Session() as session:
        steps(session)
else:
    session = lockstep.Session()
    steps(session)
    if rank == 0:
        session.close()
say(rank, session.world_size)
"""
# Ranks 1 and 2 end badly. Rank 3 and rank 4 catch a bad exit before, and make all steps.
EXITS = """
session = lockstep.Session()
w, g = np.zeros(4, np.float32), np.zeros(4, np.float32)
net = session.register("net", [lockstep.Parameter("w", w, g)])
session.start()
for i in range(6):
    if i == 2 and rank in (1, 2):
        (exit if rank == 1 else quit)(1)
    if i == 3 and rank >= 3:
        try:
            (sys.exit if rank == 3 else exit)(2)
        except SystemExit:
            pass
    with session.step() as step, step.call(net) as call:
        g[:] = 1
        call.ready("w")
say(rank, session.world_size)
"""
# The exception of rank 1 is handled, so the others are told that it has given up the call.
HANDLED = """
w, g = np.zeros(4, np.float32), np.zeros(4, np.float32)
net = session.register("net", [lockstep.Parameter("w", w, g)])
session.start()
for i in range(3):
    try:
        with session.step() as step, step.call(net) as call:
            if i == 1 and rank == 1:
                raise KeyError("bad sample")
            g[:] = 1
            call.ready("w")
    except (KeyError, lockstep.Unused) as error:
        say(i, rank, type(error).__name__)
say(rank, session.world_size)
"""
# The same in the last step. No rank closes its session.
LAST = "session = lockstep.Session()\n" + HANDLED.replace("i == 1", "i == 2")
# The job is over on all ranks, so no rank goes on without another one.
OVER = """
session.start()
session.barrier("all are here")
if rank == 0:
    session.abort("enough")
while True:
    session.barrier("more")
"""


class Recovery(unittest.TestCase):
    side_by_side = True

    def survived(self, said, lines):
        self.assertEqual((said.code, said.lines), (0, lines), said)

    def test_ranks_and_counts_of_now(self):
        self.survived(job(4, DEATH + PLACES + COLLECTIVES, survive=True), ["good"] * 3)

    def test_counts_of_the_old_world(self):
        self.survived(job(3, UNTOLD, survive=True), ["good"] * 2)

    def test_processes_that_end_badly(self):
        said = job(6, ENDS, opened=False, survive=True)
        self.survived(said, ["0 2", "5 2"])
        self.assertEqual(said.error.count("the session lets the others go on"), 4, said)

    def test_exit_and_quit_and_exits_that_are_caught(self):
        said = job(5, EXITS, opened=False, survive=True)
        self.survived(said, ["0 3", "3 3", "4 3"])
        self.assertEqual(said.error.count("the session lets the others go on"), 2, said)

    def test_an_exception_that_is_handled(self):
        self.survived(job(2, HANDLED, survive=True),
                      ["0 2", "1 0 Unused", "1 1 KeyError", "1 2"])

    def test_an_exception_that_is_handled_at_the_end(self):
        self.survived(job(2, LAST, opened=False, survive=True),
                      ["0 2", "1 2", "2 0 Unused", "2 1 KeyError"])

    def test_a_session_that_has_failed(self):
        said = job(3, OVER, survive=True)
        self.assertEqual(said.error.count("exits with an open session, which has failed"), 3, said)
        self.assertNotIn("lets the others go on", said.error)


if __name__ == "__main__":
    unittest.main()
