# SPDX-License-Identifier: Apache-2.0
"""The reducer that DistributedDataParallel of PyTorch talks to.

It has the methods that DDP's Python calls. Steps are made by world.py; most methods only say that
there is nothing to do.
"""

from __future__ import annotations

import logging
import time
import types
import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch.nn.parallel import distributed

from ..errors import Invalid
from .member import Member
from .world import World

log = logging.getLogger("lockstep.torch")
_STATIC = ("_set_static_graph() should be called before training loop starts and after "
           "DistributedDataParallel is constructed. ")


_Replaced = Tuple[Dict[str, Any], str, torch.Tensor]
"""The table of parameters of a module, the key in it, and the other parameter there."""


class _Work:
    """What join waits for: the step has ended already."""

    def wait(self, timeout: Any = None) -> bool:
        return True


class Reducer:
    """Reduces the gradients of one module."""

    def __init__(self, world: World, member: Member, parameters: Sequence[torch.Tensor],
                 module: torch.nn.Module) -> None:
        self.world = world
        self.member = member
        self.parameters = list(parameters)
        mine = set(self.parameters)
        self._places = [(part._parameters, key, p) for part in module.modules()
                        for key, p in part._parameters.items() if p in mine]
        self.logger: Any = None
        self._divide_by_initial = True
        self._removed = False
        self._rebuilt = False
        self._futures: List[Any] = []
        self._started: Dict[str, int] = {}
        self._mine: Optional[int] = None
        member.owner = weakref.ref(self)
        # The member stays in the world until all ranks agree that its owner is gone.
        weakref.finalize(self, _stop, member).atexit = False

    # --- forward and backward -------------------------------------------------------------------

    @torch._disable_dynamo
    def prepare_for_forward(self) -> None:
        """A forward pass begins that a backward pass follows."""
        if self.member.dead:
            if self._removed:
                return
            raise Invalid(
                f"module '{self.member.name}' cannot train: it was wrapped again by another "
                "DistributedDataParallel, which has taken its parameters, or its session has "
                "ended. Use the newest wrapper")
        self.world.prepare(self.member)
        self._started["forward_compute_time_start"] = time.time_ns()

    @torch._disable_dynamo
    def prepare_for_backward(self, outputs: Any) -> None:
        self.member.expect = not self._removed
        self._started["backward_compute_time_start"] = time.time_ns()

    def watch(self, output: Any) -> None:
        """A hook on each output finds the begin of the backward pass."""
        if self._removed:
            return
        watch(self.world, self.member, output, replaced=self._replaced())

    def _replaced(self) -> Optional[_Replaced]:
        """Another parameter that is where one of ours was. None: there is none."""
        for place, key, parameter in self._places:
            now = place.get(key)
            if now is not parameter and isinstance(now, torch.nn.Parameter) and now.requires_grad:
                return place, key, now
        return None

    def times(self) -> Dict[str, int]:
        """Times of the last step, in nanoseconds. Empty if another module made it."""
        if self.member.steps == 0 or self.world.last is None:
            return {}
        report = self.world.report()
        if report is None:
            return {}
        wire = max(1, report.in_flight_us)
        first = self._started.get("forward_compute_time_start", 0)
        second = self._started.get("backward_compute_time_start", first)
        backward = max(1, report.end_us)
        times = {
            "forward_compute_time": max(1, second - first),
            "backward_compute_time": backward * 1000,
            "backward_comm_time": wire * 1000,
            "backward_compute_comm_overlap_time": min(report.overlap_us, backward, wire) * 1000,
        }
        times.update(self._started)
        end = second + backward * 1000
        times.update(backward_compute_time_end=end, backward_comm_time_start=second + 1,
                     backward_comm_time_end=end + report.exposed_us * 1000)
        return times

    # --- join -----------------------------------------------------------------------------------

    def joins(self, divide_by_initial: bool) -> None:
        self._divide_by_initial = divide_by_initial

    def _set_forward_pass_work_handle(self, work: Any, divide_by_initial: bool) -> None:
        self._divide_by_initial = divide_by_initial
        work.wait()

    def _get_zeros_like_grad_buckets(self) -> List[Any]:
        return [None]

    def _run_comm_hook(self, bucket: Any) -> Any:
        """A rank that has joined makes a step in which it has nothing."""
        self.world.shadow(self.member, self._divide_by_initial)
        return _Work()

    _run_allreduce_hook = _run_comm_hook

    def _push_all_rebuilt_params(self) -> None:
        pass

    # --- the rest of what DDP calls ---------------------------------------------------------------

    def _rebuild_buckets(self) -> bool:
        """True once: buckets are learned in the first step."""
        if self._rebuilt or self.member.steps == 0 or self.member.accept and not self.member.static:
            return False
        self._rebuilt = True
        return True

    def _set_static_graph(self) -> None:
        if self.member.steps:
            if self.logger is not None:
                self.logger.set_error_and_log(_STATIC)
            raise RuntimeError(_STATIC)
        self.member.static = True

    def _ddp_graph_static(self) -> bool:
        return True

    def _delay_all_reduce(self) -> None:
        pass

    def _autograd_hook(self, index: int) -> None:
        self.member.slow(index)

    def _install_post_backward_futures(self, futures: Any) -> None:
        self.member.futures.extend(futures)

    def _remove_autograd_hooks(self) -> None:
        self._removed = True
        self.member.stop()

    def _reset_state(self) -> None:
        self.world.give_up()

    def _update_process_group(self, group: Any) -> None:
        """DistributedDataParallel has compared the groups."""

    def _check_reducer_finalized(self) -> None:
        if self.member.call is not None:
            raise RuntimeError("the backward pass of this module has not ended")

    def _get_local_used_map(self) -> torch.Tensor:
        used = [int(count > 0) for count in self.member.seen]
        return torch.tensor(used, dtype=torch.int32, device="cpu")

    def _set_optimizer_in_backward(self) -> None:
        pass

    def _set_mixed_precision_param_dtype(self, dtype: Any) -> None:
        raise NotImplementedError("mixed_precision uses the reducer of PyTorch")

    def _set_sparse_metadata(self, indices: Any) -> None:
        pass

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        self.logger.sample_rate = rate

    def set_logger(self, logger: Any) -> None:
        self.logger = logger


def _stop(member: Member) -> None:
    member.stop()


class Later:
    """The reducer of a wrapper that was copied or loaded, until the wrapper trains. A rank may copy
    one alone, for example to keep the best values. All ranks train it, so they declare its module
    then. Until then it has no module in the session, and no memory for gradients."""

    def __init__(self, ddp: Any, parameters: Sequence[torch.Tensor]) -> None:
        self._ddp = weakref.ref(ddp)
        self.parameters = list(parameters)
        self.member = types.SimpleNamespace(options={}, steps=0, order=[])  # What Logger asks for.
        self._removed = False

    @torch._disable_dynamo
    def prepare_for_forward(self) -> None:
        ddp = self._ddp()
        if ddp is not None and not self._removed:
            ddp._train_now()
            ddp.reducer.prepare_for_forward()

    def _remove_autograd_hooks(self) -> None:
        self._removed = True

    def times(self) -> Dict[str, int]:
        return {}

    def _rebuild_buckets(self) -> bool:
        return False

    def _ddp_graph_static(self) -> bool:
        return True

    def _nothing(self, *_: Any) -> None:
        """There is no step yet."""

    prepare_for_backward = set_logger = _set_static_graph = _set_optimizer_in_backward = _nothing
    _set_ddp_runtime_logging_sample_rate = _reset_state = _check_reducer_finalized = _nothing
    _set_sparse_metadata = _delay_all_reduce = _nothing


def watch(world: World, member: Member, output: Any, phase: str = "",
          replaced: Optional[_Replaced] = None) -> int:
    """A hook on each tensor in output that has a gradient. The first backward pass through one of
    them that brings gradients is synchronized. replaced: what the forward pass has used instead of
    a parameter. Returns the number of such tensors."""
    once = _Once(world, member, phase, replaced)
    hooked = 0
    for tensor in distributed._find_tensors(output):  # type: ignore[no-untyped-call]
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            tensor.register_hook(once.arm)
            hooked += 1
    if hooked:
        member.forwards.add(once)
    return hooked


class _Once:
    """One forward pass. After a step, a second backward pass through it (retain_graph) is not
    synchronized, as in PyTorch. torch.autograd.grad makes no step."""

    def __init__(self, world: World, member: Member, phase: str,
                 replaced: Optional[_Replaced]) -> None:
        self._world, self._member = weakref.ref(world), weakref.ref(member)
        self._phase = phase
        self._replaced = replaced
        self.done = False  # A pass through it was part of a step.

    @torch._disable_dynamo
    def arm(self, gradient: Any) -> None:
        world, member = self._world(), self._member()
        if world is None or member is None or self.done:
            return
        self._check_replaced(member)
        world.arm(member, self._phase)
        member.armed.add(self)

    def _check_replaced(self, member: Member) -> None:
        """torch.func.functional_call puts parameters into a module for one forward pass. They are
        averaged by nobody, as in PyTorch. Those that are still there now were put there to stay."""
        if self._replaced is None:
            return
        place, key, other = self._replaced
        if place.get(key) is other:
            raise Invalid(
                f"module '{member.name}' cannot train: a program has put another parameter in the "
                f"place of '{key}', as load_state_dict(..., assign=True) does. Wrap model.module "
                "again, or load without assign=True")
