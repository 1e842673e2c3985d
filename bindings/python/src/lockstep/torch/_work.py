# SPDX-License-Identifier: Apache-2.0
"""Collectives of c10d in flight: who begins them, who waits for them, who completes their futures.

A collective is begun on the thread that calls it. A thread that waits for it does the engine's work
meanwhile. A collective for which a future was asked, or that nobody holds any more, is looked after
by the thread `lockstep-c10d`, which sleeps on lockstep_session_fd. Futures are completed by threads
of a pool, because the callbacks of a future may wait for other collectives.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import select
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Set

import torch
import torch.distributed as dist

from .. import _native
from .._library import SLICE_MS, TIMEOUT, Pending, error_text, lib
from ..errors import Closed, LockstepError, Timeout, error_of
from ..session import Session

_FOREVER = _native.WAIT_FOREVER
_IDLE_S = 5.0
"""How long a thread of the pool waits for something to do before it ends."""
_JOIN_S = 2.0
# The library has 256 collectives in flight at most. Sends and receives have limits of their own,
# because receives that fill all places would keep back the sends that end them.
COLLECTIVES, SENDS, RECEIVES = 0, 1, 2
_LIMITS = {COLLECTIVES: 96, SENDS: 64, RECEIVES: 64}


class _Pool:
    """Threads that complete futures. There is always one more for something new, because a callback
    may wait for another one."""

    def __init__(self) -> None:
        self._tasks: "queue.SimpleQueue[Callable[[], None]]" = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0

    def submit(self, task: Callable[[], None]) -> None:
        with self._lock:
            start = self._idle == 0
            self._idle -= 0 if start else 1
        if start:
            threading.Thread(
                target=self._run, args=(task,), name="lockstep-future", daemon=True).start()
        else:
            self._tasks.put(task)

    def _run(self, task: Callable[[], None]) -> None:
        while True:
            task()
            with self._lock:
                self._idle += 1
            try:
                task = self._tasks.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._idle > 0:
                        self._idle -= 1
                        return
                task = self._tasks.get()  # A task is on its way to this thread.


class Job:
    """What one call of c10d asks of the library: some collectives, and what is left to do when they
    are done. It keeps all memory alive until then."""

    def __init__(self, engine: "Engine", what: str, structs: List[Any], lane: int, keep: Any,
                 result: List[torch.Tensor], finish: Optional[Callable[[], None]]) -> None:
        self.engine = engine
        self.what = what
        self.lane = lane
        self.structs = structs
        self.keep = keep
        self.result = result
        self.finish = finish
        self.done = not structs
        self.error: Optional[BaseException] = None
        self.claim = threading.Lock()  # Held by the only thread that asks the library.
        self.futures: List[torch.futures.Future[Any]] = []
        self.begun = 0
        self.handles: Deque[ctypes.c_void_p] = deque()
        self.helper: Optional[Pending] = None
        if self.done and finish is not None:
            finish()

    def ask(self, timeout_ms: int) -> bool:
        """True once the job is done. The caller holds the claim."""
        while not self.done:
            if not self.handles:
                self.engine.pump()
                if not self.handles and self.error is None and self.begun < len(self.structs):
                    if timeout_ms == 0:
                        return False
                    time.sleep(0.001)  # Its turn has not come. Others are looked after meanwhile.
                    timeout_ms = max(0, timeout_ms - 1) if timeout_ms != _FOREVER else _FOREVER
                    continue
            while self.handles:
                status = lib.lockstep_work_wait(self.handles[0], timeout_ms)
                if status == TIMEOUT:
                    return False
                if status < 0 and self.error is None:
                    self.error = error_of(status, error_text())
                self.handles.popleft()
                self.engine.ended(self.lane)
            if self.begun == len(self.structs) or self.error is not None:
                self._complete()
        return True

    def _complete(self) -> None:
        self.structs = []
        if self.error is None and self.finish is not None:
            try:
                self.finish()
            except BaseException as error:  # Raised by the thread that waits.
                self.error = error
        self.finish = self.keep = None
        with self.engine.lock:
            self.done = True
            futures, self.futures = self.futures, []
        self.engine.forget(self)
        for future in futures:
            self._settle(future)

    def _settle(self, future: "torch.futures.Future[Any]") -> None:
        error, result = self.error, self.result

        def settle() -> None:
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.engine.pool.submit(settle)

    def future(self) -> "torch.futures.Future[Any]":
        """A future for the result. Nobody has to wait for it."""
        devices = {tensor.device for tensor in self.result if tensor.is_cuda}
        future: "torch.futures.Future[Any]" = torch.futures.Future(devices=list(devices))
        with self.engine.lock:
            done = self.done
            if not done:
                self.futures.append(future)
        if done:
            self._settle(future)
        else:
            self.engine.serve(self)
        return future

    def is_done(self) -> bool:
        """Does not wait."""
        if not self.done and self.claim.acquire(blocking=False):
            try:
                self.ask(0)
            finally:
                self.claim.release()
        return self.done

    def wait(self, seconds: Optional[float]) -> None:
        """Waits. A timeout, and an exception of a signal handler, leave the job in flight."""
        deadline = None if seconds is None else time.monotonic() + seconds
        if not self.done and self.helper is None:
            slice_s = SLICE_MS / 1000 if seconds is None else min(seconds, SLICE_MS / 1000)
            if self.claim.acquire(timeout=slice_s):
                try:
                    self.ask(round(slice_s * 1000))
                finally:
                    self.claim.release()
        # The library finds ranks that wait for each other among waits without a timeout, so a long
        # wait is one of those, on a thread of its own.
        if not self.done and self.helper is None:
            self.helper = self.engine.helper(self)
        while not self.done:
            left = SLICE_MS / 1000
            if deadline is not None:
                left = min(left, deadline - time.monotonic())
                if left <= 0:
                    raise Timeout(f"{self.what}: Timed out after {seconds:.3g} s; it is still in "
                                  "flight, and has its tensors until it is done")
            assert self.helper is not None
            self.helper.join(left)
        if self.error is not None:
            raise self.error


class Engine:
    """The collectives of one session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lock = threading.RLock()
        self.pool = _Pool()
        self._jobs: Set[Job] = set()
        self._served: Set[Job] = set()
        self._waiting: Dict[int, Deque[Job]] = {lane: deque() for lane in _LIMITS}
        self._active = {lane: 0 for lane in _LIMITS}
        self._fd = session.fileno()
        self._bell, self._ring = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._ring, False)
        self._ended = False
        self._thread: Optional[threading.Thread] = None

    # --- beginning -------------------------------------------------------------------------------

    def begin(self, job: Job) -> Job:
        """Begins the job's collectives, or queues those that find no place."""
        if job.done:
            return job
        with self.lock:
            if self._ended:
                raise Closed("the session is closed: there are no more collectives")
            queued = self._waiting[job.lane]
            self._jobs.add(job)
            if queued or not self._begin(job):
                queued.append(job)
                # The jobs before it make place when they are done, also if nobody waits for them.
                self._served.update(other for other in self._jobs if other.lane == job.lane)
                self._serve_locked(job)
            elif job.error is not None:
                self._jobs.discard(job)
                if not job.handles:
                    raise job.error
        return job

    def _begin(self, job: Job) -> bool:
        """False if some of the job's collectives find no place. The caller holds the lock."""
        while job.begun < len(job.structs) and job.error is None:
            if self._active[job.lane] >= _LIMITS[job.lane]:
                return False
            handle = ctypes.c_void_p()
            status = lib.lockstep_collective_begin(
                self.session.handle, ctypes.byref(job.structs[job.begun]), ctypes.byref(handle))
            if status < 0:
                job.error = error_of(status, error_text())
                break
            job.begun += 1
            job.handles.append(handle)
            self._active[job.lane] += 1
        return True

    def pump(self) -> None:
        """Begins what is queued and has a place now."""
        with self.lock:
            for queued in self._waiting.values():
                while queued and self._begin(queued[0]):
                    queued.popleft()

    def ended(self, lane: int) -> None:
        """A collective of the lane has ended."""
        with self.lock:
            self._active[lane] -= 1
            if self._waiting[lane]:
                self.pump()

    def forget(self, job: Job) -> None:
        with self.lock:
            self._jobs.discard(job)
            self._served.discard(job)

    def helper(self, job: Job) -> Pending:
        """A thread that waits for the job."""

        def run() -> int:
            with job.claim:
                job.ask(_FOREVER)
            self.session._pendings.discard(pending)
            return 0

        pending = Pending(run)
        self.session._pendings.add(pending)  # Session.close ends such waits.
        return pending.start()

    # --- looking after jobs that nobody waits for -------------------------------------------------

    def serve(self, job: Job) -> None:
        """The job completes without a thread that waits for it."""
        with self.lock:
            if not job.done:
                self._serve_locked(job)

    def _serve_locked(self, job: Job) -> None:
        self._served.add(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lockstep-c10d", daemon=True)
            self._thread.start()
        with contextlib.suppress(BlockingIOError):
            os.write(self._ring, b"\0")

    def _run(self) -> None:
        while not self._ended:
            # Without jobs it does not hear of the collectives for which other threads wait.
            watched = [self._bell, self._fd] if self._served else [self._bell]
            for fd in select.select(watched, [], [])[0]:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 8 if fd == self._fd else 4096)
            with self.lock:
                jobs = list(self._served)
            for job in jobs:
                job.is_done()

    def fail(self) -> None:
        """The session is about to close: jobs that are not done never will be."""
        with self.lock:
            self._ended = True
            left = list(self._jobs)
            for queued in self._waiting.values():
                queued.clear()
        with contextlib.suppress(BlockingIOError):
            os.write(self._ring, b"\0")
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        for job in left:
            with contextlib.suppress(LockstepError):
                job.is_done()

    @property
    def in_flight(self) -> bool:
        """True if a collective is not done."""
        with self.lock:
            jobs = list(self._jobs)
        return any(not job.is_done() for job in jobs)


class Work(dist._Work):  # type: ignore[misc,name-defined]
    """A call of c10d in flight."""

    def __init__(self, job: Job, seconds: Optional[float], source: int = -1) -> None:
        super().__init__()
        self._job = job
        self._seconds = seconds  # The timeout of the group.
        self._source = source

    def wait(self, timeout: Any = None) -> bool:
        """Waits. timeout: a timedelta; 0 and None are the timeout of the group."""
        seconds = self._seconds
        if timeout is not None and timeout.total_seconds() > 0:
            seconds = timeout.total_seconds()
        self._job.wait(seconds)
        return True

    def is_completed(self) -> bool:
        return self._job.is_done()

    def is_success(self) -> bool:
        return self._job.is_done() and self._job.error is None

    def exception(self) -> Optional[BaseException]:
        return self._job.error

    def result(self) -> List[torch.Tensor]:
        return self._job.result

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self._source

    def _source_rank(self) -> int:
        return self._source

    def get_future(self) -> "torch.futures.Future[Any]":
        return self._job.future()

    def __del__(self) -> None:
        job = getattr(self, "_job", None)
        if job is not None and not job.done:
            with contextlib.suppress(RuntimeError):  # The interpreter starts no thread at its end.
                job.engine.serve(job)
