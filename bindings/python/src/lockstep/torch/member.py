# SPDX-License-Identifier: Apache-2.0
"""One module of a session: its parameters, their gradient memory, and the backward pass that runs.

A member does not know DistributedDataParallel. Its owner is a reducer (reducer.py) or a function
(sync.py). world.py begins and ends steps.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Set

import torch

from ..errors import Invalid, error_of
from ..module import Module, Parameter
from ..step import Call
from . import sparse
from .hooks import hooks_for, node_of, report
from .memory import Gradients, describe, problem_of

if TYPE_CHECKING:
    from .world import World


class Member:
    """Parameters that are synchronized together.

    parameters: the trained ones, each once. names: one for each. accept: a parameter without a
    gradient is no error. sparse: parameters whose gradients are sparse, by name. They travel at
    the end of the step.
    """

    def __init__(self, world: "World", name: str, parameters: Sequence[torch.Tensor],
                 names: Sequence[str], *, accept: bool = False,
                 sparse_parameters: Optional[Dict[str, torch.Tensor]] = None,
                 **options: Any) -> None:
        self.world = world
        self.name = name
        self.parameters = list(parameters)
        self.names = list(names)
        self.accept = accept
        self.sparse = dict(sparse_parameters or {})
        self.options = options
        self.on_device = any(p.device.type != "cpu" for p in self.parameters)
        self.gradients: List[torch.Tensor] = []
        self.homes: List[torch.Tensor] = []  # See memory.Gradients.
        self.addresses: List[int] = []  # Of homes.
        self.module: Optional[Module] = None
        self.handle: Optional[int] = None
        self.call: Optional[Call] = None
        self.owner: Optional["weakref.ref[Any]"] = None
        self.wrapped: Optional["weakref.ref[torch.nn.Module]"] = None  # By DistributedDataParallel.
        self.dead = False
        self._expect = False
        self.waits = False  # expect was True before a forward pass under no_sync.
        # Forward passes whose outputs have hooks, and whose backward passes may come.
        self.forwards: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self.syncs: Callable[[], bool] = lambda: True  # False under no_sync of the wrapper.
        self.armed: Set[Any] = set()  # Forward passes that the backward pass goes through.
        self.fast = False  # True while a Python hook only has to report.
        self.static = False
        self.planned: Optional[List[int]] = None  # static: reports that complete a gradient.
        self.seen = [0] * len(self.parameters)
        self.will: Optional[Sequence[int]] = None
        self.touched: Set[int] = set()  # Gradients that came while no step was expected.
        self.late: List[int] = []  # Gradients to report at the end, unless hooks have reported them.
        self.error: Optional[BaseException] = None  # To be raised at the end of the backward pass.
        self.steps = 0
        self.arranged = False
        self.order: List[int] = []  # Parameters in the order of their first gradients.
        self._memory: Optional[Gradients] = None
        self._kinds: List[Any] = []
        self.hooks: Any = None
        self.futures: List[Any] = []  # Of hooks for buffers.

    # --- what the library knows -----------------------------------------------------------------

    def register(self) -> None:
        """Declares the module, and makes gradient memory. World.start compares it."""
        self._memory = Gradients(self.world.session, self.parameters)
        self.arranged = False
        self.gradients, self.homes = self._memory.tensors, self._memory.homes
        self.addresses = self._memory.addresses
        self._kinds = list(map(_kind, self.parameters))
        table = [Parameter(name, describe(p), self._memory.place_of(i))
                 for i, (name, p) in enumerate(zip(self.names, self.parameters))]
        if not table:  # Only sparse gradients.
            self._one = torch.zeros(1, device="cpu")
            table = [Parameter("(none)", describe(self._one), frozen=True)]
        try:
            self.module = self.world.session.register(
                self.name, table, unused="accept" if self.accept else "error", **self.options)
        except Invalid as error:
            text, found, _ = error.text.partition(": mark it LOCKSTEP_PARAMETER_SHARED")
            if not found:
                raise
            raise Invalid(f"{text}: use one Parameter in both places") from None
        self.handle = self.module.handle
        self.hooks = hooks_for(self)

    def refresh(self) -> None:
        """Tells the library where parameters are now."""
        assert self.module is not None
        for i, (parameter, known) in enumerate(zip(self.parameters, self.module._memories)):
            if parameter.data_ptr() != known.address:
                # There is none after release.
                gradient = self._memory.place_of(i) if self._memory and self.homes else None
                self.module.move(i, describe(parameter), gradient)

    def arrange(self) -> None:
        """After the first step: gradients lie in the order in which they come, so that buckets
        are pieces of memory. Outside a step."""
        self.arranged = True
        if self._memory is None or self.on_device or not self.parameters:
            return
        assert self.module is not None
        came = set(self.order)
        rest = [i for i in reversed(range(len(self.parameters))) if i not in came]
        before = self._memory.rearrange(self.order + rest)
        for i in range(len(self.homes)):
            self.module.move(i, gradient=self._memory.place_of(i))
        self.world.keep(before)

    @property
    def changed(self) -> bool:
        """True if parameters have another dtype, device or memory format than the library knows."""
        return list(map(_kind, self.parameters)) != self._kinds

    def check(self) -> None:
        """Raises if the library cannot take the parameters as they are now."""
        for name, parameter in zip(self.names, self.parameters):
            problem = problem_of(parameter)
            if problem is not None:
                raise Invalid(
                    f"module '{self.name}': a program has changed parameter '{name}', which cannot "
                    f"be synchronized now: {problem}. Change it back (p.data = "
                    "p.data.contiguous() makes memory dense), or wrap the module again")

    def hooked_names(self) -> List[str]:
        """Parameters with a hook of the program that runs when .grad is complete."""
        own = 1 if self.hooks is not None and self.hooks.kind == "python" else 0
        return [name for name, p in zip(self.names, self.parameters)
                if len(p._post_accumulate_grad_hooks or ()) > own]

    def stop(self) -> None:
        """No hook reports from now on."""
        self.dead, self.expect, self.waits = True, False, False
        if self.hooks is not None:
            self.hooks.detach()

    def release(self) -> None:
        """Every gradient keeps its value, in memory of PyTorch."""
        if self._memory is not None:
            self.gradients, self.homes = [], []
            self._memory.release()

    def close(self) -> Optional[Gradients]:
        """Ends the module. All ranks do the same before the next start. Returns gradient memory
        that is still to be freed."""
        self.stop()
        self.release()
        if self.module is not None:
            self.module.close()
            self.module, self.handle = None, None
        memory, self._memory = self._memory, None
        return memory

    @property
    def expect(self) -> bool:
        """True from a forward pass to the end of the step of its backward pass."""
        return self._expect

    @expect.setter
    def expect(self, expected: bool) -> None:
        if self._expect != expected:
            self._expect = expected
            if self.hooks is not None:
                self.hooks.expect(expected)

    def only_adds(self) -> None:
        """A forward pass under no_sync: gradients begin no step, until an output of an earlier
        forward pass says so."""
        if self.call is None:
            self.waits, self.expect = self.waits or self.expect, False

    # --- the backward pass ----------------------------------------------------------------------

    def stream_of(self, i: int) -> Optional[int]:
        """The stream that produces a gradient. None: it is in host memory."""
        device = self.parameters[i].device
        return stream_of(device) if device.type != "cpu" else None

    def sparse_comes(self, nested: bool) -> bool:
        """In a hook: True if this backward pass brings sparse gradients. nested: a checkpoint may
        hide parameters."""
        try:
            return any(nested or torch._C._will_engine_execute_node(node_of(p))
                       for p in self.sparse.values())
        except RuntimeError:  # Under torch.autograd.grad.
            return False

    def begin(self) -> None:
        """The call begins. World has begun the step."""
        if self.call is not None:
            return
        assert self.module is not None
        self.expect = True
        self.seen = [0] * len(self.parameters)
        self.call = Call(self.module)
        self.touched = self.hooks.touched()
        self._part()
        self._declare()
        # The first step is made in Python, which notes the order of gradients.
        if not self.arranged:
            self.order = []
        elif not self.on_device and (not self.static or self.planned is not None):
            self.fast = not self.static and not torch.is_grad_enabled()  # As with create_graph.
            self.hooks.open(self.planned)

    def _part(self) -> None:
        """A parameter whose .grad is the library's tensor of another one gets a copy, because that
        tensor gets the gradient of the other."""
        ours: Set[int] = set()
        for parameter, own in zip(self.parameters, self.gradients):
            gradient = parameter.grad
            if gradient is not None and gradient is not own:
                ours = ours or set(map(id, self.gradients))
                if id(gradient) in ours:
                    parameter.grad = gradient.detach().clone()

    def _declare(self) -> None:
        """Says which gradients will not come, so that no bucket waits for them."""
        will, sure = self.will, self.hooks.sure
        if self.static:
            will, sure = self.planned, True
        self.late = []
        if will is not None and (will is self.hooks.all or all(will)):
            return
        unused = []
        for i, parameter in enumerate(self.parameters):
            if will is not None and will[i]:
                continue
            if self._has_gradient(i):
                if will is not None and sure:
                    self.take(i, parameter.grad)
                    report(self, i)
                    continue
                self.late.append(i)
                if parameter.grad is self.gradients[i]:  # It is so again if a gradient comes.
                    parameter.grad = self.gradients[i].clone()
            elif will is not None and self.accept:
                unused.append(i)
        if unused:
            assert self.call is not None
            self.call.unused(unused)

    def _has_gradient(self, i: int) -> bool:
        """True if .grad has a value of backward passes before, which the other ranks need."""
        gradient = self.parameters[i].grad
        return gradient is not None and (
            i in self.touched or self.accept and bool(gradient.any()))

    def take(self, i: int, gradient: Any) -> None:
        """The library's tensor gets the values of .grad, and is .grad from now on."""
        assert self._memory is not None
        with torch.no_grad():
            if self._memory.moved(i):
                gradient = gradient.clone()  # .grad may be the tensor that is moved now.
                self._memory.bring_back(i)
            self.gradients[i].copy_(gradient)
        self.parameters[i].grad = self.gradients[i]

    def slow(self, i: int) -> None:
        """A gradient has come: everything that is not usual."""
        parameter = self.parameters[i]
        if parameter.grad is None:  # An output that is not part of the loss.
            return
        try:
            self.world.need(self)
            gradient = parameter.grad
            if gradient.is_sparse:
                raise Invalid(
                    f"module '{self.name}': the gradient of '{self.names[i]}' is sparse, and the "
                    "module that made it is no torch.nn.Embedding(sparse=True) or EmbeddingBag: "
                    "pass sparse=False there")
            assert self._memory is not None
            if gradient is not self.gradients[i] or self._memory.moved(i):
                self.take(i, gradient)
            self.seen[i] += 1
            if self.seen[i] == 1:
                self.order.append(i)
            if not self.static or (self.planned is not None and self.seen[i] == self.planned[i]):
                report(self, i)
        except BaseException as error:  # Also Ctrl-C: native hooks can raise nothing.
            self.error = self.error or error

    def failed(self, status: int, text: str) -> None:
        """A report has failed."""
        if self.error is None:
            self.error = error_of(status, text)

    def _close(self) -> Optional[Call]:
        """The backward pass has ended. The call that was open."""
        self.fast = self.expect = self.waits = False
        for forward in self.armed:
            forward.done = True
        self.armed.clear()
        call, self.call = self.call, None
        return call

    def end(self) -> None:
        """The backward pass has ended. Raises what hooks could not."""
        call = self._close()
        if call is None:
            return
        status, text = self.hooks.error()
        if status < 0:
            self.failed(status, text)
        for i in self.late:
            gradient = self.parameters[i].grad
            if gradient is not None and gradient is not self.gradients[i]:
                self.take(i, gradient)
                report(self, i)
        if self.error is not None:
            call.abort()
            return
        if self.static and self.planned is None:
            self.planned = list(self.seen)
            for i, count in enumerate(self.seen):
                if count:
                    report(self, i)
            if self.error is not None:
                call.abort()
                return
        call.end()

    def after(self, weight: int) -> None:
        """The step has ended: gradients that this rank did not produce get their places, and those
        that a hook of the program has moved."""
        self.steps += 1
        for future in self.futures:
            future.wait()
        self.futures.clear()
        if self.sparse:
            sparse.reduce(self.world.session, self.name, self.sparse, weight)
        assert self.module is not None and self._memory is not None
        missing = self.hooks.missing()
        if missing:
            used = self.module.used()
            for i in missing:
                if used[i]:
                    self._memory.bring_back(i)
                    self.parameters[i].grad = self.gradients[i]

    def leave(self) -> None:
        """An exception has left the backward pass, and the library may still write into the
        gradients. The program gets copies, and hooks do not report."""
        self.fast = self.expect = self.waits = False
        with torch.no_grad():
            for parameter, gradient in zip(self.parameters, self.gradients):
                if parameter.grad is gradient:
                    parameter.grad = gradient.clone()

    def give_up(self) -> None:
        """Ends a call that `leave` has left."""
        call, self.error = self._close(), None
        if call is not None:
            call.abort()

    def contribute_zeros(self) -> None:
        """A call in which all gradients are zero. .grad stays as it is."""
        assert self.module is not None
        call = Call(self.module)
        for i, home in enumerate(self.homes):
            zeros = torch.zeros_like(home)
            call._keep.append(zeros)
            report(self, i, zeros.data_ptr())
        call.end()

    def after_shadow(self, weight: int) -> None:
        """The same for a step in which this rank has no data."""
        if self.sparse:
            sparse.reduce(self.world.session, self.name, self.sparse, weight, joined=True)


def _kind(parameter: torch.Tensor) -> Any:
    """What the library is told once. Strides of dimensions of one element do not matter."""
    places = [(n, step) for n, step in zip(parameter.shape, parameter.stride()) if n != 1]
    return parameter.dtype, parameter.device, parameter.shape, places


def stream_of(device: torch.device) -> int:
    """The current stream of a device, as the library takes it."""
    return int(torch.cuda.current_stream(device).cuda_stream) or 1
