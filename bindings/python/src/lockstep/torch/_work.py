# SPDX-License-Identifier: Apache-2.0
"""Collectives in flight of the backend in Python, which runs where backend.cpp cannot be compiled.

A collective is begun on the thread that calls it. A thread that waits for it does the engine's work
meanwhile. A collective for which a future was asked, or that nobody holds any more, has a thread
that waits for it. That thread completes the future, because the callbacks of a future may wait for
other collectives.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Set, Union

import torch
import torch.distributed as dist

from .. import _native
from .._library import SLICE_MS, TIMEOUT, Pending, error_text, lib
from ..collectives import Collectives
from ..errors import Changed, Closed, Invalid, LockstepError, Timeout, error_of
from ..session import Session
from . import _groups

_FOREVER = _native.WAIT_FOREVER
_DRAIN_S = 5.0  # As CLOSE of backend_library.h.
# The library has 256 collectives in flight at most. Sends and receives have limits of their own,
# because receives that fill all places would keep back the sends that end them.
COLLECTIVES, SENDS, RECEIVES = 0, 1, 2
_LIMITS = {COLLECTIVES: 96, SENDS: 64, RECEIVES: 64}


class Job:
    """What one call of c10d asks of the library: some collectives, and what is left to do when they
    are done. It keeps all memory alive until then."""

    def __init__(self, engine: "Engine", what: str, structs: List[Any], lane: int, keep: Any,
                 result: List[torch.Tensor], finish: Optional[Callable[[], None]],
                 members: Collectives, size: int) -> None:
        self.engine = engine
        self.what = what
        self.lane = lane
        self.structs = structs
        self.keep = keep
        self.result = result
        self.finish = finish
        self.members = members  # The session, or a group of some ranks.
        self.size = size  # When the process group was made.
        self.done = not structs
        self.error: Optional[BaseException] = None
        self.claim = threading.Lock()  # Held by the only thread that asks the library.
        self.futures: List[torch.futures.Future[Any]] = []
        self.begun = 0
        self.handles: Deque[ctypes.c_void_p] = deque()
        self.helper: Optional[Pending] = None
        self.attendant: Optional[int] = None  # The thread of the helper.
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
                if self.error is None:
                    self.error = self.error_after(status)
                self.handles.popleft()
                self.engine.ended(self.lane)
            if self.begun == len(self.structs) or self.error is not None:
                self._complete()
        return True

    def error_after(self, status: int) -> Optional[LockstepError]:
        """The exception of a collective that has ended with this status. None: it has its result.
        After the death of a member a result is that of other ranks than PyTorch knows."""
        failed = error_of(status, error_text()) if status < 0 else None
        if failed is None or isinstance(failed, (Changed, Invalid)):
            try:
                _groups.check(self.members, self.size, self.what)
            except LockstepError as error:
                return error
        return failed

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
        """The callbacks of the future may wait for other collectives, so they have a thread."""
        if threading.get_ident() == self.attendant:
            self._fill(future)
        else:
            threading.Thread(target=self._fill, args=[future], name="lockstep-future",
                             daemon=True).start()

    def _fill(self, future: "torch.futures.Future[Any]") -> None:
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(self.result)

    def future(self) -> "torch.futures.Future[Any]":
        """A future for the result. Nobody has to wait for it."""
        devices = {tensor.device for tensor in self.result if tensor.is_cuda}
        future: "torch.futures.Future[Any]" = torch.futures.Future(devices=list(devices))
        with self.engine.lock:
            done = self.done
            if not done:
                self.futures.append(future)
        if not done:
            self.attend()
        else:
            self._fill(future)  # It has no callbacks yet.
        return future

    def attend(self) -> None:
        """A thread waits for the job. The library finds ranks that wait for each other among waits
        without a timeout, so this wait has none."""
        with self.engine.lock:
            if self.done or self.helper is not None:
                return
            self.helper = self.engine.helper(self)

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
        self.attend()
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
        self._jobs: Set[Job] = set()
        self._waiting: Dict[int, Deque[Job]] = {lane: deque() for lane in _LIMITS}
        self._active = {lane: 0 for lane in _LIMITS}
        self._ended = False

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
                for other in list(self._jobs):
                    if other.lane == job.lane:
                        other.attend()
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
            job.error = job.error_after(0)  # A job that was queued may have waited for long.
            if job.error is not None:
                break
            handle = ctypes.c_void_p()
            status = lib.lockstep_collective_begin(
                self.session.handle, ctypes.byref(job.structs[job.begun]), ctypes.byref(handle))
            if status < 0:
                job.error = job.error_after(status)
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

    def helper(self, job: Job) -> Pending:
        """A thread that waits for the job."""

        def run() -> int:
            job.attendant = threading.get_ident()
            with job.claim:
                job.ask(_FOREVER)
            self.session._pendings.discard(pending)
            return 0

        pending = Pending(run)
        self.session._pendings.add(pending)  # Session.close ends such waits.
        return pending.start()

    def fail(self) -> None:
        """The session is about to close: jobs that are not done never will be."""
        with self.lock:
            self._ended = True
            left = list(self._jobs)
            for queued in self._waiting.values():
                queued.clear()
        for job in left:
            with contextlib.suppress(LockstepError):
                job.is_done()

    @property
    def in_flight(self) -> bool:
        """True if a collective is not done."""
        with self.lock:
            jobs = list(self._jobs)
        return any(not job.is_done() for job in jobs)

    def drain(self) -> None:
        """Waits for jobs that all ranks have begun, so that the session does not close while another
        rank needs this one. Returns after _DRAIN_S at the latest."""
        until = time.monotonic() + _DRAIN_S
        while self.in_flight and time.monotonic() < until:
            time.sleep(0.001)


class Work(dist._Work):  # type: ignore[misc,name-defined]
    """A call of c10d in flight."""

    def __init__(self, job: Job, seconds: Optional[float],
                 source: Union[int, ctypes.c_uint32] = -1) -> None:
        super().__init__()
        self._job = job
        self._seconds = seconds  # The timeout of the group.
        # The library writes the sender of a receive from any source there.
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
        return self._source if isinstance(self._source, int) else self._source.value

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> "torch.futures.Future[Any]":
        return self._job.future()

    def __del__(self) -> None:
        job = getattr(self, "_job", None)
        if job is not None and not job.done:
            with contextlib.suppress(RuntimeError):  # The interpreter starts no thread at its end.
                job.attend()
