# SPDX-License-Identifier: Apache-2.0
"""One session for the whole process, under torchrun or any other rendezvous of c10d.

Rank 0 starts the coordinator of this package, and its address travels in the Store of c10d. With
LOCKSTEP_COORDINATOR in the environment no coordinator is started. Ranks are those of PyTorch.

torchrun gives ranks that it starts again the Store of the ones before, and the number of restarts
(TORCHELASTIC_RESTART_COUNT) may differ between hosts. So rank 0 writes a random name for its
attempt, each other rank writes a random name below it, and rank 0 answers each of these names.
Sessions that follow each other over one Store are told apart in the same way. A process does not
count its sessions: ranks that have been in different groups before would have different numbers.

A process group of some ranks gets a session of its own when a module is wrapped for it, because its
members make steps without the other ranks. It has a coordinator of its own, too.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from typing import (TYPE_CHECKING, Any, Callable, Dict, Iterable, List, NamedTuple, Optional,
                    Sequence, Set, Tuple)

import torch.distributed as dist

from .. import _exit
from .._library import bin_path
from .._native import OnFailure
from ..errors import BadConfig, Forked, Invalid, LockstepError, Unreachable, Unsupported
from ..session import Session, context_of_this_thread

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .._native import SessionOptions

_START_S = 30.0
"""How long a coordinator may take to start."""
_STORE_S = 600.0
"""How long ranks wait for the address of the coordinator."""
_DRAIN_MS = 1000
"""How long the coordinator waits at the end for workers that have not left."""
_OUTLIVE_MS = 10000
"""With on_failure continue: how long the coordinator of a rank that has died, and that no worker is
connected to, waits for workers that come back."""
_POLL_S = 0.1
_SECURITY = ("LOCKSTEP_COORDINATOR_TLS_DIR", "LOCKSTEP_INSECURE_PLAINTEXT")
"""One of these is needed if ranks are on several hosts."""
_FAILED = "!"  # What the address begins with if the coordinator could not be started.

__all__ = ["before_close", "check_place", "close", "hold", "is_open", "of_group", "of_world",
           "release", "session", "why_no_group"]


class Place(NamedTuple):
    """Where this process is among the processes of the job. store: None in a world of one."""

    rank: int
    size: int
    store: Any


# --- the coordinator of rank 0 -------------------------------------------------------------------


class _Coordinator:
    """A coordinator that ends with this process, if not before. outlived: if this process dies, it
    serves the ranks that go on, and ends after them."""

    def __init__(self, listen: str, outlived: bool) -> None:
        # The directory is needed until the coordinator has written its ports, and no longer.
        with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
            self._launch(listen, os.path.join(folder, "ports"), _OUTLIVE_MS if outlived else 0)

    def _launch(self, listen: str, ports: str, outlive_ms: int) -> None:
        command = [bin_path("lockstep-coordinator"), "--listen", listen, "--port-file", ports,
                   f"--parent-death={os.getpid()}"]
        for flag, value in (("http", "127.0.0.1:0"), ("log-level", "error"),
                            ("drain-ms", str(_DRAIN_MS)), ("outlive-ms", str(outlive_ms))):
            # A flag would win over the variable.
            if not os.environ.get("LOCKSTEP_COORDINATOR_" + flag.upper().replace("-", "_")):
                command += [f"--{flag}", value]
        try:
            # A session of its own: Ctrl-C is for the workers, which leave first.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                start_new_session=True)
        except OSError as error:
            raise BadConfig(f"the coordinator cannot be started: {command[0]}: {error.strerror}; "
                            "set LOCKSTEP_COORDINATOR to the address of another one") from error
        try:
            self.port, self.http_port = self._ports(ports)
        except BaseException:
            self.end()
            raise

    def _ports(self, path: str) -> Any:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError), open(path, encoding="ascii") as file:
                ports = dict(word.split("=") for word in file.read().split())
                if "grpc" in ports:
                    return int(ports["grpc"]), int(ports.get("http", "0"))
            if self._process.poll() is not None:
                raise BadConfig("the coordinator has ended with exit status "
                                f"{self._process.returncode}; its reason is on standard error")
            time.sleep(0.01)
        raise Unreachable(f"the coordinator did not start within {_START_S:.0f} s")

    def end(self) -> None:
        """Ends it. It waits for workers that have not left, for _DRAIN_MS at most."""
        self._process.terminate()
        try:
            self._process.wait(_DRAIN_MS / 1000 + 0.5)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._process.kill()
            self._process.wait()


# --- the address travels -------------------------------------------------------------------------


def _network() -> str:
    """Equal on processes that reach each other by the loopback address."""
    boot = "?"
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id",
                                            encoding="ascii") as file:
        boot = file.read().strip()
    with contextlib.suppress(OSError):
        boot += f" {os.stat('/proc/self/ns/net').st_ino}"
    return boot


def _get(store: Any, key: str, meanwhile: Callable[[], None] = lambda: None) -> str:
    """The value of a key, once it is there. Signals are seen meanwhile."""
    deadline = time.monotonic() + _STORE_S
    delay = 0.001
    while not store.check([key]):
        if time.monotonic() > deadline:
            raise Unreachable(f"the Store of c10d has no '{key}' after {_STORE_S:.0f} s: the rank "
                              "that writes it has not come")
        meanwhile()
        time.sleep(delay)
        delay = min(_POLL_S, 1.5 * delay)
    value = store.get(key)
    return value.decode() if isinstance(value, bytes) else str(value)


def _start(place: Place, networks: Set[str], what: str,
           outlived: bool) -> Tuple[_Coordinator, str]:
    """Rank 0 starts the coordinator. It, and its address."""
    one_host = networks <= {_network()}
    if not one_host and not any(map(os.environ.get, _SECURITY)):
        raise BadConfig(
            "ranks of other hosts reach the coordinator over the network: set "
            "LOCKSTEP_COORDINATOR_TLS_DIR to its certificates, and LOCKSTEP_TLS_DIR on all hosts "
            "to those of the workers (lockstep certs init makes them); on a network where you "
            "trust everybody, set LOCKSTEP_INSECURE_PLAINTEXT=1 on all hosts")
    started = _Coordinator("127.0.0.1:0" if one_host else "0.0.0.0:0", outlived)
    host = "127.0.0.1" if one_host else _own_host(place)
    if started.http_port:
        print(f"lockstep: the page of {what} is http://127.0.0.1:{started.http_port}/",
              file=sys.stderr, flush=True)
    return started, f"{host}:{started.port}"


def _own_host(place: Place) -> str:
    """The name by which other hosts reach this one. MASTER_ADDR is the host of the first rank."""
    first = not dist.is_initialized() or dist.get_rank() == 0
    return (first and os.environ.get("MASTER_ADDR")) or socket.getfqdn()


def _address(place: Place, prefix: str, what: str,
             outlived: bool) -> Tuple[Optional[_Coordinator], str]:
    """The address of the coordinator that rank 0 starts; on rank 0 also the coordinator."""
    if place.rank != 0:
        address = _ask(place, prefix)
        if address.startswith(_FAILED):
            raise Unreachable(f"rank 0 has no coordinator: {address[len(_FAILED):]}")
        return None, address
    attempt = uuid.uuid4().hex
    place.store.set(prefix + "attempt", attempt)
    asked = dict(_get(place.store, f"{prefix}{attempt}/{rank}").split(" ", 1)
                 for rank in range(1, place.size))
    try:
        started, address = _start(place, set(asked.values()), what, outlived)
    except BaseException as error:
        _answer(place, prefix, asked, f"{_FAILED}{error}")
        raise
    _answer(place, prefix, asked, address)
    return started, address


def _ask(place: Place, prefix: str) -> str:
    """What rank 0 answers this process. What else is in the Store may be of ended processes."""
    name, known = uuid.uuid4().hex, ""

    def ask() -> None:
        nonlocal known
        if known or place.store.check([prefix + "attempt"]):
            attempt = _get(place.store, prefix + "attempt")
            if attempt != known:
                place.store.set(f"{prefix}{attempt}/{place.rank}", f"{name} {_network()}")
                known = attempt

    return _get(place.store, f"{prefix}answer/{name}", ask)


def _answer(place: Place, prefix: str, asked: Iterable[str], text: str) -> None:
    for name in asked:
        place.store.set(f"{prefix}answer/{name}", text)


# --- the session ---------------------------------------------------------------------------------

_lock = threading.RLock()
_session: Optional[Session] = None
_options: "Any" = {}
_coordinator: Optional[_Coordinator] = None
_has_device = False  # True if the session has a GPU.
_held = 0  # Owners that have called hold and not release.
_pinned = False  # True if a caller of session() may use the session until the process ends.
_before_close: List[Callable[[], None]] = []
_at_good_end: List[Callable[[], None]] = []


def _place() -> Optional[Place]:
    """From the default process group, else from torchrun's variables. None: neither is there."""
    if dist.is_initialized():
        store = dist.distributed_c10d._get_default_store()
        return Place(dist.get_rank(), dist.get_world_size(), store)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        if int(os.environ["WORLD_SIZE"]) == 1:
            return Place(0, 1, None)
        store, rank, size = next(iter(dist.rendezvous("env://")))  # type: ignore[attr-defined]
        return Place(rank, size, store)
    return None


def _outlived(settings: Any) -> bool:
    """True if the other ranks go on when this one dies."""
    chosen = os.environ.get("LOCKSTEP_ON_FAILURE") or settings.get("on_failure") or "error"
    return chosen == OnFailure.CONTINUE or str(chosen).lower() == "continue"


def _open(place: Optional[Place], options: Any) -> Session:
    global _has_device, _coordinator
    settings = dict(options)
    device = os.environ.get("LOCKSTEP_DEVICE") or settings.get("device") or "auto"
    _has_device = device != "none" if device != "auto" else context_of_this_thread() is not None
    if place is not None:
        settings.update(world_size=place.size, rank_hint=place.rank)
        if place.size > 1 and not os.environ.get("LOCKSTEP_COORDINATOR"):
            _coordinator, settings["coordinator"] = _address(place, "lockstep/", "this job",
                                                             _outlived(settings))
    opened = Session(**settings)
    if place is not None and (opened.rank, opened.size) != (place.rank, place.size):
        text = (f"PyTorch has rank {place.rank} of {place.size}, and lockstep has rank "
                f"{opened.rank} of {opened.size}: unset LOCKSTEP_RANK_HINT and "
                "LOCKSTEP_WORLD_SIZE, and give each job a LOCKSTEP_JOB of its own")
        opened.abort(text)
        opened.close()
        raise BadConfig(text)
    return opened


def _get_session(place: Optional[Place], options: Any) -> Session:
    """The caller holds the lock."""
    global _session, _options
    if _session is not None and _session.pid != os.getpid():
        raise Forked("the session belongs to the parent process")
    if _session is not None and not _session.handle:  # Somebody has closed it.
        _end()
    if _session is None:
        try:
            _session = _open(place if place is not None else _place(), options)
        except BaseException:
            _end()
            raise
        _options = dict(options)
        # The last function that is registered runs first.
        atexit.unregister(_at_exit)
        atexit.register(_at_exit)
    other: List[str] = [name for name, value in options.items() if _options.get(name) != value]
    if other:
        raise Invalid(f"the session is open already, with other options: {', '.join(other)}; give "
                      "them to the first call of lockstep.torch.session()")
    return _session


def session(**options: "Unpack[SessionOptions]") -> Session:
    """The session of this process. The first call opens it: all ranks make it. It is closed when
    the process ends. options: as lockstep.Session takes them."""
    global _pinned
    with _lock:
        _pinned = True
        return _get_session(None, options)


def hold(store: Any, rank: int, size: int) -> Session:
    """The session, for an owner that knows its place. It calls release when it is done."""
    global _held
    with _lock:
        opened = _get_session(Place(rank, size, store if size > 1 else None), {})
        if (opened.rank, opened.size) != (rank, size):
            raise Invalid(f"rank {rank} of {size} is asked for, and the session of this process "
                          f"has rank {opened.rank} of {opened.size}")
        _held += 1
        return opened


def of_world() -> Session:
    """The session, for an owner that does not keep it open. All ranks make the first call."""
    with _lock:
        return _get_session(None, {})


def check_place(session: Session, rank: int, size: int) -> None:
    """Raises if the program has made another default group since the session was opened. With
    on_failure continue the two may differ after a death."""
    if not session.outlived and (rank, size) != (session.rank, session.size):
        raise Invalid(
            f"PyTorch has rank {rank} of {size} now, and the session of this process has rank "
            f"{session.rank} of {session.size}: call lockstep.torch.close() on all ranks before "
            "they make another default process group, and then make groups and wrap modules again")


# --- sessions of some ranks ----------------------------------------------------------------------


class _Group:
    """The session of a process group of some ranks."""

    def __init__(self, ranks: Tuple[int, ...], store: Any) -> None:
        place = Place(ranks.index(dist.get_rank()), len(ranks), store)
        self.coordinator: Optional[_Coordinator] = None
        settings: Any = {"world_size": place.size, "rank_hint": place.rank}
        try:
            if place.size > 1:
                self.coordinator, settings["coordinator"] = _address(
                    place, f"lockstep/group/{','.join(map(str, ranks))}/",
                    f"the group of ranks {', '.join(map(str, ranks))}", _outlived(settings))
            self.session = Session(**settings)
        except BaseException:
            self.end()
            raise

    def close(self) -> None:
        with contextlib.suppress(LockstepError):
            self.session.close()
        self.end()

    def end(self) -> None:
        if self.coordinator is not None:
            self.coordinator.end()
        self.coordinator = None


_groups: Dict[Tuple[int, ...], _Group] = {}


def why_no_group() -> Optional[str]:
    """Why a group of some ranks cannot have a session. None: it can."""
    for name in ("COORDINATOR", "WORLD_SIZE", "RANK_HINT", "VIRTUAL_RANKS"):
        if os.environ.get("LOCKSTEP_" + name):
            return f"LOCKSTEP_{name} in the environment is that of all ranks"
    return None


def of_group(ranks: Sequence[int], store: Any) -> Session:
    """The session of a process group of some ranks, for an owner that does not keep it open. All
    its members make the first call. store: that of the process group."""
    with _lock:
        key = tuple(ranks)
        there = _groups.get(key)
        if there is not None and there.session.pid != os.getpid():
            raise Forked("the session belongs to the parent process")
        if there is None or not there.session.handle:
            if there is not None:
                there.end()
            _groups[key] = there = _Group(key, store)
            atexit.unregister(_at_exit)
            atexit.register(_at_exit)
        return there.session


def _close_groups() -> None:
    for there in _groups.values():
        if there.session.pid == os.getpid():
            there.close()
    _groups.clear()


def before_close(function: Callable[[], None]) -> None:
    """Calls the function once, before the session that is open now is closed."""
    with _lock:
        _before_close.append(function)


def at_good_end(function: Callable[[], None]) -> None:
    """Calls the function when the process ends, unless an exception or a bad status ends it."""
    _at_good_end.append(function)


def release() -> None:
    """The last release closes the session, unless session() has been called."""
    global _held
    with _lock:
        _held -= 1
        if _held <= 0 and not _pinned:
            close()


def has_device() -> bool:
    """True if the session has a GPU."""
    return _has_device


def need_device(device: Any) -> None:
    """The session has a GPU, so the library sees what is the GPU's memory and what is the host's.
    It says itself if that is another one than this."""
    if not _has_device:
        raise Unsupported(
            f"a tensor is on {device}, and the session of this process has no GPU: set "
            "LOCKSTEP_DEVICE=cuda:N, or make a tensor there before "
            "torch.distributed.init_process_group")


def is_open() -> bool:
    """True if this process has its session."""
    return _session is not None and _session.handle != 0 and _session.pid == os.getpid()


def close() -> None:
    """Closes the session, and ends the coordinator if this rank has started it."""
    global _held, _pinned
    with _lock:
        _held, _pinned = 0, False
        for function in _before_close:
            function()
        _before_close.clear()
        _close_groups()
        if _session is not None and _session.pid == os.getpid():
            with contextlib.suppress(LockstepError):
                _session.close()
        _end()


def _end() -> None:
    """Forgets the session. The coordinator ends when all have left."""
    global _session, _coordinator
    mine = _session is None or _session.pid == os.getpid()
    _session = None
    if _coordinator is not None and mine:
        _coordinator.end()
    _coordinator = None


def _at_exit() -> None:
    error = getattr(sys, "last_value", None)
    for function in _at_good_end if _exit.ended_well() else ():
        function()
    opened = [_session, *(there.session for there in _groups.values())]
    if any(one is not None and one.handle and one.pid == os.getpid()
           and (_exit.dies(one) or one.closes or one.outlived and one._failed)
           for one in opened):
        return  # The coordinator of this rank outlives the process, and the others may need it.
    if is_open():
        assert _session is not None
        with contextlib.suppress(LockstepError):
            if isinstance(error, BaseException):
                _session.abort(f"{type(error).__name__}: {error}")
            elif _session.in_step:
                print(f"lockstep: rank {_session.rank} of job '{_session.job}' exits inside a step: "
                      "the session is aborted", file=sys.stderr)
                _session.abort("the program ended inside a step")
    if _session is None or _session.pid == os.getpid():
        close()
