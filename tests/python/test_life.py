# SPDX-License-Identifier: Apache-2.0
"""How sessions end: signals, deaths, forks, programs that forget to close, and two at a time."""

import os
import subprocess
import tempfile
import unittest

from support import BIN, ROOT, SLOW, alone, environment, job

# Rank 0 waits for rank 1, which sleeps. A signal comes after half a second.
INTERRUPTED = """
place = sys.argv[1] if len(sys.argv) > 1 else os.environ["PLACE"]
if rank == 1 and place == "open":
    time.sleep(60)
def wait_there(session):
    net = session.register("net", [("w", np.zeros(1, np.float32), np.zeros(1, np.float32))])
    if place == "start":
        return session.start()
    session.start()
    if place == "step.end":
        with session.step() as step, step.call(net) as call:
            call.ready("w")
    elif place == "allreduce":
        session.allreduce("sum", np.zeros(4))
    elif place == "work.wait":
        session.begin(lockstep.allreduce("sum", np.zeros(4))).wait()
    elif place == "group":
        session.group([0, 1], "both")
    elif place == "state_check":
        session.state_check()
    elif place == "call.wait":
        with session.step() as step:
            with step.call(net) as call:
                call.ready("w")
            call.wait()
    elif place == "step":
        session.set_uneven("all")
        session.step()
    raise AssertionError("nothing waited")
if rank == 0:
    due = time.monotonic() + (1.5 if place == "open" else 1.0)
    interrupt(due - time.monotonic())
try:
    with lockstep.Session() as session:
        if rank == 1:
            if place != "start":
                session.register("net", [("w", np.zeros(1, np.float32), np.zeros(1, np.float32))])
                session.start()
            time.sleep(60)
        wait_there(session)
except KeyboardInterrupt:
    say(f"{time.monotonic() - due:.3f}")
    sys.exit(3)
"""
# SIGINT comes while the thread of a wait starts, as it may on a busy machine.
AT_THREAD = """
def interrupt(_):
    left, start = int(os.environ["WAITS"]), threading.Thread.start
    def interrupted(thread):
        nonlocal left
        start(thread)
        left -= thread.name == "lockstep-wait"
        if left == 0:
            os.kill(os.getpid(), signal.SIGINT)
    threading.Thread.start = interrupted
"""
HANDLED = """
if rank == 0:
    work = session.begin(lockstep.barrier("late"))
    try:
        interrupt(0.5)
        work.wait()
    except KeyboardInterrupt:
        say("again")
    open(os.environ["GO"], "w").close()
    work.wait()
    work.wait()
else:
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.01)  # A wait in the library would be one for rank 0.
    session.barrier("late")
session.barrier("end")
"""
# Calls without a timeout are interrupted on rank 0, and made again. Rank 1 comes after that.
AGAIN = """
def interrupted(call):
    call_in, said = os.environ["GO"] + place, []
    if rank == 1:
        while not os.path.exists(call_in):
            time.sleep(0.01)
        return call()
    try:
        interrupt(0.3)
        call()
    except KeyboardInterrupt:
        for other in (session.state_sync, lambda: session.barrier("other"),
                      lambda: session.step(weight=3)):
            try:
                other()
                raise AssertionError("a second call beside the first one")
            except lockstep.Invalid as error:
                assert f"{place} was interrupted" in str(error), error
        threading.Timer(0.3, lambda: open(call_in, "w").close()).start()
        return call()
    raise AssertionError("no interrupt")
g = np.full(2, 1.0 + rank, np.float32)
net = session.register("net", [("w", np.zeros(2, np.float32), g)])
place = "start"
interrupted(session.start)
place = "group"
group = interrupted(lambda: session.group([0, 1], "both"))
assert (group.rank, group.size) == (rank, 2)
place = "state_check"
interrupted(session.state_check)
session.set_uneven("all")
place = "step"
step = interrupted(lambda: session.step(weight=1))
with step, step.call(net) as call:
    call.ready("w")
assert (g == 1.5).all() and step.view.world_size == 2
place = "usage"
assert interrupted(net.usage) == [2]
place = "collective 'sum'"
total = np.full(3, 1.0 + rank)
assert interrupted(lambda: session.allreduce("sum", total, timeout=60)) is total
assert (total == 3).all()
group.barrier("end")
"""
# SIGINT comes when the session is open, and Session() has not returned.
JUST_OPEN = """
from lockstep import _exit
lockstep.Session(log=False).close()
before = len(os.listdir("/proc/self/fd"))
_exit.watch = lambda session: os.kill(os.getpid(), signal.SIGINT)
try:
    lockstep.Session(log=False)
    raise AssertionError("no interrupt")
except KeyboardInterrupt:
    assert len(os.listdir("/proc/self/fd")) == before, "it is still open"
"""
PLACES = ("open", "start", "step.end", "allreduce", "work.wait", "group", "state_check",
          "call.wait", "step")
INTERRUPTED_S = 2

DEATH = """
net = session.register("net", [("w", np.zeros(1, np.float32), np.zeros(1, np.float32))])
session.start()
died = np.array([time.monotonic() + 0.5])
session.broadcast("time", died, 1)
try:
    session.barrier("all know the time")  # Rank 1 may be through it, and dead, first.
    if rank == 1:
        time.sleep(max(0, died[0] - time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(10):
        with session.step() as step, step.call(net) as call:
            call.ready("w")
    raise AssertionError("the death was not noticed")
except lockstep.PeerLost as error:
    if rank == 0:
        say(f"{time.monotonic() - died[0]:.3f}", error.rank, error.host == os.uname().nodename)
"""

FORK = """
def body(session):
    session.barrier("ready")
    child = os.fork()
    if child == 0:
        try:
            session.barrier("in the child")
        except lockstep.Forked as error:
            say("the child is told")
        try:
            session.start()
        except lockstep.Forked:
            say("twice")
        session.close()
        sys.exit(5)  # atexit runs in the child, too.
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 5
    a = np.ones(1)
    session.allreduce("after", a)
    assert a[0] == 2
with lockstep.Session() as session:
    import multiprocessing
    body(session)
    worker = multiprocessing.get_context("fork").Process(target=lambda: None)
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    session.barrier("last")
"""

TWO = """
with lockstep.Session(job="first") as first, lockstep.Session(job="second") as second:
    a, b = np.ones(3), np.ones(3)
    works = [first.begin(lockstep.allreduce("a", a)), second.begin(lockstep.allreduce("b", b))]
    for work in reversed(works):
        work.wait()
    for session in (second, first):
        net = session.register("net", [("w", np.zeros(1, np.float32), np.zeros(1, np.float32))])
        session.start()
    for session in (first, second):
        with session.step() as step, step.call(session._modules[0]) as call:
            call.ready(0)
    assert a[0] == 2 and b[0] == 2
"""

LOGS = """
lines = []
class Keep(logging.Handler):
    def emit(self, record):
        lines.append((record.name, record.levelname, record.getMessage(),
                      threading.current_thread().name))
logger = logging.getLogger("mine")
logger.setLevel(logging.DEBUG)
logger.addHandler(Keep())
logger.propagate = False
with lockstep.Session(log=logger) as session:
    session.register("net", {"w": np.zeros(1, np.float32)}, ignore=["other.*", "x" * 200])
    session.start()
assert any("other.*" in text for _, _, text, _ in lines), lines
assert {(name, thread) for name, _, _, thread in lines} == {("mine", "lockstep-log")}, lines
assert {level for _, level, _, _ in lines} == {"WARNING"}, lines
del lines[:]
with lockstep.Session(log=False) as session:
    session.register("net", {"w": np.zeros(1, np.float32)}, ignore=["other.*"])
    session.start()
assert not lines
before = len(os.listdir("/proc/self/fd"))
for _ in range(5):
    lockstep.Session().close()
assert len(os.listdir("/proc/self/fd")) == before
"""

VIEWS = """
session = lockstep.Session()
net = session.register("net", {"w": np.zeros(1000, np.float32)})
(memory,) = net.gradients()
view, block = np.asarray(memory), np.asarray(session.zeros(5000, "float64"))
session.start()
view[:], block[:] = 3, 4
session.close()
for _ in range(50):  # The addresses are not given away.
    bytearray(1 << 20)
assert (view == 3).all() and (block == 4).all()
view += 1
assert view.sum() == 4000
place = view.ctypes.data
def mapped():
    ranges = [line.split()[0].split("-") for line in open("/proc/self/maps")]
    return any(int(begin, 16) <= place < int(end, 16) for begin, end in ranges)
assert mapped()
del memory, view, block
gc.collect()
assert not mapped()
"""


class Life(unittest.TestCase):
    side_by_side = True

    def works(self, said):
        self.assertEqual(said.code, 0, said)
        return said

    def interrupted(self, place, code=INTERRUPTED, env=None):
        said = job(2, code, {"PLACE": place, **(env or {})}, opened=False)
        self.assertEqual(len(said.lines), 1, said)
        self.assertLess(float(said.lines[0]), INTERRUPTED_S * SLOW, said)
        self.assertNotIn("open session", said.error)

    def test_close_can_be_interrupted(self):
        """lockstep_close may wait for a device without a limit. A mutex stands for the device."""
        said = self.works(alone("""
            library = lockstep.session.lib
            close, mutex = library.lockstep_close, ctypes.create_string_buffer(64)
            libc = ctypes.CDLL(None)
            def slow(handle):
                libc.pthread_mutex_lock(mutex)  # No signal ends this wait.
                return close(handle)
            session = lockstep.Session()
            view = np.asarray(session.zeros(1000))
            view[:] = 3
            libc.pthread_mutex_lock(mutex)
            late = threading.Timer(20, libc.pthread_mutex_unlock, [mutex])
            late.daemon = True
            late.start()
            library.lockstep_close = slow
            began = time.monotonic()
            interrupt(0.2)
            try:
                session.close()
            except KeyboardInterrupt:
                say(time.monotonic() - began < 15)
            libc.pthread_mutex_unlock(mutex)
            session.close()
            say(session.handle, (view == 3).all())
            """))
        self.assertEqual(said.lines, ["0 True", "True"], said)
        self.assertNotIn("open session", said.error)

    def test_a_close_that_finds_no_thread(self):
        """An interpreter that ends starts no thread."""
        said = self.works(alone("""
            def refuse(thread):
                raise RuntimeError("can't create new thread at interpreter shutdown")
            session = lockstep.Session()
            threading.Thread.start = refuse
            session.close()
            say(session.handle)
            """))
        self.assertEqual(said.lines, ["0"], said)

    def test_a_close_that_was_left(self):
        """Ctrl-C in a close ends the process, which does not close the session again."""
        said = alone("""
            session = lockstep.Session()
            lockstep.session.lib.lockstep_close = lambda handle: time.sleep(60)
            interrupt(0.2)
            session.close()
            """)
        self.assertNotEqual(said.code, 0, said)
        self.assertIn("whose close was interrupted", said.error)

    def test_a_close_that_was_left_and_ends(self):
        """The program handles the Ctrl-C, and the close is over before its end."""
        said = self.works(alone("""
            close = lockstep.session.lib.lockstep_close
            def slow(handle):
                time.sleep(1)
                return close(handle)
            session = lockstep.Session()
            lockstep.session.lib.lockstep_close = slow
            interrupt(0.2)
            try:
                session.close()
            except KeyboardInterrupt:
                say(session.closes)
            while session.closes:
                time.sleep(0.01)
            """))
        self.assertEqual(said.lines, ["True"], said)
        self.assertNotIn("open session", said.error)

    def test_shared_blocks_have_a_limit(self):
        said = self.works(job(2, """
            def descriptors():
                links = [os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
                return sum("memfd" in os.readlink(link) for link in links if os.path.islink(link))
            session.barrier("the ranks of the host have met")
            if rank == 0:
                before = descriptors()
                blocks = [session.zeros(2**20 + 1, "uint8") for _ in range(270)]
                say(descriptors() - before)
            session.barrier("looked")
            """))
        self.assertEqual(said.lines, ["256"], said)

    def test_a_killed_rank_is_named_within_a_second(self):
        said = job(3, DEATH)
        seconds, rank, host = said.lines[0].split()
        self.assertEqual((rank, host), ("1", "True"), said)
        self.assertLess(float(seconds), 1 * SLOW, said)

    def test_fork(self):
        said = self.works(job(2, FORK, opened=False))
        self.assertEqual(said.lines, sorted(["the child is told", "twice"] * 2))
        self.assertNotIn("open session", said.error)

    def test_two_sessions(self):
        # LOCKSTEP_JOB would override both names.
        self.works(job(2, "os.environ.pop('LOCKSTEP_JOB')\n" + TWO, opened=False))

    def test_logs(self):
        self.works(alone(LOGS))

    def test_arrays_outlive_the_session(self):
        self.works(alone(VIEWS))
        self.works(job(2, VIEWS.replace("session = lockstep.Session()\n", "")))

    def test_an_exit_without_close(self):
        said = job(2, "session = lockstep.Session()\nsession.barrier('b')", opened=False)
        self.assertEqual(said.code, 0, said)
        for rank in range(2):
            self.assertIn(f"rank {rank} of job", said.error)
        self.assertEqual(said.error.count("it is closed; call close() or use 'with'"), 2, said)

    def test_an_exit_without_a_wait(self):
        said = job(2, """
            session = lockstep.Session()
            works = [session.begin(lockstep.allreduce(name, np.ones(2))) for name in ("x", "y")]
            session.begin(lockstep.allreduce("z", np.ones(2))).wait()
            session.barrier("b")
            """, opened=False)
        self.assertEqual(said.code, 0, said)
        self.assertEqual(said.error.count("an open session, without a wait for 'x', 'y': it is"), 2,
                         said)

    def test_an_exception_without_close(self):
        said = job(2, """
            session = lockstep.Session()
            if rank == 0:
                session.receive("ready", np.zeros(1), 1)
                raise KeyError("gone")
            try:
                session.send("ready", np.zeros(1), 0)
                session.barrier("late")
            except lockstep.PeerLost as error:
                say(error.rank, "KeyError" in str(error))
                session.close()
            """, opened=False)
        self.assertEqual(said.lines, ["0 True"], said)
        self.assertIn("it is aborted, because of KeyError", said.error)

    def test_an_exit_inside_a_step(self):
        said = job(2, """
            session = lockstep.Session()
            session.register("net", [("w", np.zeros(1, np.float32), np.zeros(1, np.float32))])
            if rank == 0:
                session.start()
                session.receive("ready", np.zeros(1), 1)
                step = session.step()
                sys.exit(0)
            try:
                session.start()
                session.send("ready", np.zeros(1), 0)
                session.step().end()
            except lockstep.PeerLost as error:
                say("the program ended inside a step" in str(error))
            session.close()
            """, opened=False)
        self.assertEqual(said.lines, ["True"], said)

    def test_an_interrupt_that_the_program_handles(self):
        for how in ("", AT_THREAD):
            with tempfile.TemporaryDirectory() as folder:
                said = job(2, how + HANDLED, {"WAITS": "1", "GO": os.path.join(folder, "go")})
            self.assertEqual((said.code, said.lines), (0, ["again"]), said)

    def test_interrupted_calls_are_made_again(self):
        with tempfile.TemporaryDirectory() as folder:
            self.works(job(2, AGAIN, {"GO": os.path.join(folder, "go")}))

    def test_a_collective_that_is_late(self):
        said = job(2, """
            if rank == 1:
                session.receive("late", np.zeros(1), 0)
            try:
                session.barrier("alone", timeout=0.3)
            except lockstep.Timeout as error:
                say("'alone' did not complete within 300 ms" in str(error))
            """)
        self.assertEqual(said.lines, ["True"], said)

    def test_interrupt_at_the_end_of_open(self):
        self.works(alone(JUST_OPEN))

    def test_interrupt_while_a_thread_starts(self):
        for waits, place in ((2, "start"), (3, "allreduce"), (3, "call.wait")):
            self.interrupted(place, AT_THREAD + INTERRUPTED, {"WAITS": str(waits)})

    def test_ranks_that_wait_for_each_other(self):
        said = job(2, """
            try:
                for name in ("ab" if rank == 0 else "ba"):
                    session.allreduce(name, np.zeros(2))
            except lockstep.Mismatch as error:
                say("'a'" in str(error) and "'b'" in str(error))
            """)
        self.assertEqual(said.lines, ["True", "True"], said)


for place in PLACES:
    def test(self, place=place):
        self.interrupted(place)
    setattr(Life, f"test_interrupt_in_{place.replace('.', '_')}", test)


class Library(unittest.TestCase):
    """Libraries that do not fit, and LOCKSTEP_LIBRARY."""

    def refused(self, source, *parts):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "liblockstep.so.0")
            subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", path, "-x", "c",
                            "-"], input=source, text=True, check=True)
            said = alone("", {"LOCKSTEP_LIBRARY": path})
        self.assertNotEqual(said.code, 0)
        for part in ("LibraryMismatch", *parts):
            self.assertIn(part, said.error)

    def stub(self, version, text):
        """Every function of the package, from a library of another time."""
        from lockstep import _native

        special = {"lockstep_version": f'const char *{{}}(void) {{{{ return "{version}"; }}}}',
                   "lockstep_error_text": f'const char *{{}}(void) {{{{ return "{text}"; }}}}'}
        return "\n".join(special.get(name, "int {}(void) {{ return -1; }}").format(name)
                         for name in _native.FUNCTIONS)

    def test_another_version(self):
        self.refused(self.stub("9.8.7", ""), "version 9.8.7")

    def test_shorter_structs(self):
        self.refused(self.stub("0.1.0", "config.struct_bytes is 999"), "lockstep_config",
                     "older than this Python package")

    def test_a_function_is_missing(self):
        self.refused("int lockstep_open(void) { return 0; }", "has no lockstep_")

    def test_no_library(self):
        said = alone("", {"LOCKSTEP_LIBRARY": "/nowhere/liblockstep.so"})
        self.assertIn("there is no liblockstep.so: tried /nowhere/liblockstep.so", said.error)

    def test_the_library_of_this_build(self):
        path = os.path.join(os.environ["LOCKSTEP_TEST_LIB"], "liblockstep.so.0")
        said = alone("""
            session = lockstep.Session()
            session.close()
            say(lockstep.library_path(), os.path.exists(os.path.join(lockstep.include_path(),
                "lockstep", "lockstep.hpp")))""", {"LOCKSTEP_LIBRARY": path})
        self.assertEqual(said.lines, [f"{path} True"], said)


class Types(unittest.TestCase):
    def test_mypy(self):
        import sys

        package = os.path.join(ROOT, "bindings", "python")
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--config-file", os.path.join(package, "pyproject.toml"),
             "--cache-dir", os.path.join(os.environ["BUILD"], "mypy"),
             os.path.join(package, "src")],
            capture_output=True, text=True, env=environment(), check=False)
        self.assertEqual(done.returncode, 0, done.stdout)


class Tools(unittest.TestCase):
    def test_the_programs_of_the_package(self):
        import sys

        for name, function in (("lockstep", "lockstep"), ("lockstep-coordinator", "coordinator")):
            done = subprocess.run(
                [sys.executable, "-c", f"import _lockstep_entry; _lockstep_entry.{function}()",
                 "--version"], capture_output=True, text=True, env=environment(), check=False)
            there = subprocess.run([os.path.join(BIN, name), "--version"], capture_output=True,
                                   text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (0, there.stdout), done.stderr)
