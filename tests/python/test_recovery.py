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


class Recovery(unittest.TestCase):
    side_by_side = True

    def survived(self, said, lines):
        self.assertEqual((said.code, said.lines), (0, lines), said)

    def test_ranks_and_counts_of_now(self):
        self.survived(job(4, DEATH + PLACES + COLLECTIVES, survive=True), ["good"] * 3)

    def test_counts_of_the_old_world(self):
        self.survived(job(3, UNTOLD, survive=True), ["good"] * 2)


if __name__ == "__main__":
    unittest.main()
