# SPDX-License-Identifier: Apache-2.0
"""Synchronization around any function, for modules that no DistributedDataParallel wraps."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import weakref
from typing import (Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple,
                    TypeVar, Union)

import torch

from .._native import Report
from ..arrays import Memory
from ..errors import Changed, Invalid
from . import world as worlds
from .member import Member
from .memory import describe, problem_of, settle
from .reducer import watch

Function = TypeVar("Function", bound=Callable[..., Any])
Modules = Union[torch.nn.Module, Sequence[torch.nn.Module]]


class _Shared:
    """The member of a list of modules. Functions over the same modules share it."""

    def __init__(self, modules: List[torch.nn.Module], ignore: Tuple[str, ...],
                 name: Optional[str]) -> None:
        self.modules = modules
        self.ignore = ignore
        self.name = name
        self.member: Optional[Member] = None

    def _named(self, buffers: bool) -> Dict[str, torch.Tensor]:
        """Parameters or buffers, without those that are ignored, each once."""
        found: Dict[str, torch.Tensor] = {}
        seen = set()
        for number, module in enumerate(self.modules):
            prefix = f"{number}." if len(self.modules) > 1 else ""
            named: Any = module.named_buffers() if buffers else module.named_parameters()
            for name, tensor in named:
                if id(tensor) in seen or any(fnmatch.fnmatchcase(prefix + name, pattern)
                                             for pattern in self.ignore):
                    continue
                seen.add(id(tensor))
                found[prefix + name] = tensor
        return found

    def ready(self) -> Member:
        """The member. All ranks call it: the first call makes their values equal."""
        trained = {name: p for name, p in self._named(False).items() if p.requires_grad}
        member = self.member
        known = {} if member is None else dict(zip(member.names, member.parameters))
        if member is not None and not member.dead and (
                member.world is worlds.world()
                and all(known.get(name) is p for name, p in trained.items())):
            member.world.prepare(member)
            return member
        return self._register(trained)

    def _register(self, trained: Dict[str, torch.Tensor]) -> Member:
        if not trained:
            raise Invalid("no parameter of the module needs a gradient: call requires_grad_() on "
                          "those that are trained, or shorten ignore")
        for name, parameter in trained.items():
            problem = problem_of(parameter)
            if problem is not None:
                raise Invalid(f"parameter '{name}' cannot be synchronized: {problem}; put it into "
                              "ignore, or use DistributedDataParallel")
        world = worlds.world(next(iter(trained.values())).device)
        first = self.member is None
        for name, tensor in self._rest(trained).items() if first else ():
            _place_of(name, tensor)  # Before other ranks wait.
        if self.member is not None:
            self.member.stop()
        kind = self.name or type(self.modules[0]).__name__
        self.member = Member(world, world.name_of(kind), list(trained.values()), list(trained),
                             accept=True)
        world.add(self.member)
        self.member.owner = weakref.ref(self)
        weakref.finalize(self, _stop, self.member).atexit = False
        if first:
            self._broadcast(trained)
        return self.member

    def _rest(self, trained: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
        """Buffers and parameters that are not trained."""
        rest = {name: p for name, p in self._named(False).items() if name not in trained}
        return {**rest, **self._named(True)}

    def _broadcast(self, trained: Dict[str, torch.Tensor]) -> None:
        """The rest gets the values of rank 0."""
        with torch.no_grad():
            for name, tensor in self._rest(trained).items():
                _broadcast("lockstep.torch/state", name, tensor)

    def broadcast_buffers(self) -> None:
        for name, tensor in self._named(True).items():
            _broadcast("lockstep.torch/buffers", name, tensor)


def _place_of(name: str, tensor: torch.Tensor) -> Memory:
    place = describe(tensor)
    if not place.contiguous:
        raise Invalid(f"'{name}' is not contiguous, and would get the values of rank 0: put "
                      "tensor.contiguous() in its place, or its name into ignore")
    return place


def _broadcast(collective: str, name: str, tensor: torch.Tensor) -> None:
    """The tensor gets the values of rank 0. If a rank dies meanwhile, those of the first rank that
    is left."""
    session, place = worlds.world().session, _place_of(name, tensor)
    before = tensor.detach().clone() if session.outlived else None
    while True:
        if place.on_device:
            settle([tensor.device])
        try:
            session.broadcast(collective, place)
            return
        except Changed:
            assert before is not None
            with torch.no_grad():
                tensor.copy_(before)


def _stop(member: Member) -> None:
    member.stop()


class Synchronized:
    """A function whose outputs carry synchronization. sync makes it."""

    def __init__(self, function: Callable[..., Any], shared: _Shared, phase: str,
                 broadcast_buffers: bool) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._shared = shared
        self._phase = phase
        self._broadcast_buffers = broadcast_buffers
        self._sync = True

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        synchronizes = self._ready()
        result = self._function(*arguments, **options)
        if synchronizes:
            self._watch(result)
        return result

    @torch._disable_dynamo
    def _ready(self) -> bool:
        """A call begins. True if the backward pass through it is synchronized."""
        member = self._shared.ready()
        synchronizes = self._sync and torch.is_grad_enabled()
        if synchronizes:
            member.world.give_up()
            if self._broadcast_buffers:
                self._shared.broadcast_buffers()
        return synchronizes

    @torch._disable_dynamo
    def _watch(self, result: Any) -> None:
        member = self._shared.member
        assert member is not None
        if not watch(member.world, member, result, self._phase):
            raise Invalid(f"{self.__name__}() has returned no tensor with a gradient: return the "  # type: ignore[attr-defined]
                          "loss, or what it is computed from")

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A method, if the function was defined in a class."""
        return self if instance is None else functools.partial(self, instance)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients only accumulate. The next backward pass outside synchronizes them."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def step(self, weight: Optional[int] = None,
             phase: Optional[str] = None) -> ContextManager[None]:
        """Options of the steps whose backward passes begin inside the context."""
        return worlds.world().options(weight, phase)

    @property
    def member(self) -> Optional[Member]:
        """The module of the session. None before the first call."""
        return self._shared.member


_known: "List[weakref.ref[_Shared]]" = []


def sync(module: Modules, *, ignore: Sequence[str] = (), phase: str = "",
         name: Optional[str] = None,
         broadcast_buffers: bool = False) -> Callable[[Function], Synchronized]:
    """A decorator. The backward pass through what the function returns averages the gradients of
    module over all ranks. Parameters that a backward pass does not reach are no error.

        @lockstep.torch.sync(actor)
        def actor_loss(states):
            return -critic(states, actor(states)).mean()

    module: a module, or several. ignore: shell patterns of parameters and buffers that belong to
    each rank, such as "target.*". With several modules a name begins with the number of its module.
    phase: a label of the steps of this function. name: how errors and the page call the module.
    broadcast_buffers: buffers get the values of rank 0 before each call.

    The first call of a function is made by all ranks, because it makes their values equal.
    """
    modules = [module] if isinstance(module, torch.nn.Module) else list(module)
    if not modules:
        raise Invalid("sync() needs a module")
    for one in modules:
        if isinstance(one, torch.nn.parallel.DistributedDataParallel):
            raise Invalid("the module is a DistributedDataParallel, which synchronizes by itself: "
                          "pass model.module, or call the wrapper without sync()")
    shared = _shared_of(modules, tuple(ignore), name)

    def wrap(function: Function) -> Synchronized:
        return Synchronized(function, shared, phase, broadcast_buffers)

    return wrap


def _shared_of(modules: List[torch.nn.Module], ignore: Tuple[str, ...],
               name: Optional[str]) -> _Shared:
    _known[:] = [ref for ref in _known if ref() is not None]
    for ref in _known:
        shared = ref()
        if shared is not None and [id(m) for m in shared.modules] == [id(m) for m in modules]:
            if shared.ignore != ignore:
                raise Invalid("two functions over the same module have different ignore patterns: "
                              "give both the same")
            return shared
    shared = _Shared(modules, ignore, name)
    _known.append(weakref.ref(shared))
    return shared


def report() -> Optional[Report]:
    """The report of the last step of this process: times, bytes, overlap. None before the first
    step."""
    world = worlds.current()
    return None if world is None else world.report()
