# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel with its reducer and its logger replaced.

Everything else is that of the installed PyTorch. What our reducer cannot do is done by the reducer
of PyTorch, over the same process group, and one line in the log says so.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import logging
import weakref
from typing import Any, Callable, ContextManager, Dict, List, Optional, Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import distributed as home

from ..errors import Invalid, Unsupported
from . import bootstrap
from . import world as worlds
from .logger import Logger
from .member import Member
from .memory import problem_of
from .reducer import Later, Reducer

log = logging.getLogger("lockstep.torch")
Stock = home.DistributedDataParallel
_MIB = 1 << 20
_SIGNATURE = inspect.signature(Stock.__init__)

class DistributedDataParallel(Stock):
    """torch.nn.parallel.DistributedDataParallel over lockstep. The arguments are the same."""

    def __init__(self, module: torch.nn.Module, *arguments: Any, init_sync: bool = True,
                 **options: Any) -> None:
        given = _SIGNATURE.bind_partial(self, module, *arguments, **options).arguments
        buffers = (given.get("forward_sync_buffers") is not None
                   or given.get("broadcast_buffers") is not False)
        caps = given.get("bucket_cap_mb"), given.get("bucket_cap_mb_list")
        # Module.__init__ has not run yet, and __setattr__ of a module needs it.
        self.__dict__.update(_lockstep_init_sync=init_sync, _lockstep_init_buffers=buffers,
                             _lockstep_caps=caps)
        _check_parameters(module)
        super().__init__(module, *arguments, init_sync=False, **options)

    def __setstate__(self, state: Dict[str, Any]) -> None:
        """One rank may copy or load a wrapper alone, so this needs no other rank."""
        self.__dict__["_lockstep_later"] = True
        super().__setstate__(state)

    # --- which reducer --------------------------------------------------------------------------

    def _ddp_init_helper(self, parameters: Any, expect_sparse_gradient: Any,
                         param_to_name_mapping: Any, static_graph: Any) -> None:
        later = self.__dict__.pop("_lockstep_later", False)
        reason = self._why_stock(parameters)
        if reason is None and later:
            self.reducer: Any = Later(self, parameters)
            self._use_logger(static_graph)
            return
        if reason is None:
            try:
                self._use_lockstep(parameters, expect_sparse_gradient, param_to_name_mapping,
                                   static_graph)
            except Unsupported as error:
                reason = error.text
            except Invalid as error:
                if parameters[0].device.type == "cpu":
                    raise
                reason = error.text  # The session has no device, or another one.
        if reason is not None:
            log.warning("module %s: the reducer of PyTorch is used, because %s",
                        type(self.module).__name__, reason)
            if self.__dict__.get("_lockstep_init_sync", False):
                home._verify_param_shape_across_processes(self.process_group, parameters)
            self._sync_states(None)
            super()._ddp_init_helper(parameters, expect_sparse_gradient, param_to_name_mapping,
                                     static_graph)
        self.__dict__["_lockstep_init_sync"] = False

    def _why_stock(self, parameters: Sequence[torch.Tensor]) -> Optional[str]:
        """Why our reducer cannot reduce this module. None: it can."""
        if self.mixed_precision is not None:
            return "mixed_precision is set"
        if getattr(self, "_use_python_reducer", False):
            return "torch._dynamo.config.optimize_ddp is 'python_reducer'"
        if not self._of_all_ranks():
            problem = ("it is on a GPU" if parameters[0].device.type != "cpu"
                       else bootstrap.why_no_group())
            if problem is not None:
                return f"its process group does not have all ranks, and {problem}"
        devices = {p.device for p in parameters}
        if len(devices) > 1:
            return f"its parameters are on {len(devices)} devices"
        for i, parameter in enumerate(parameters):
            problem = problem_of(parameter)
            if problem is not None:
                return f"of parameter {i}: {problem}"
        return None

    def _use_lockstep(self, parameters: Any, expect_sparse_gradient: Any, names: Dict[int, str],
                      static_graph: bool, **options: Any) -> None:
        world = (worlds.world(parameters[0].device) if self._of_all_ranks()
                 else worlds.of_group(self.process_group))
        for member in worlds.members():
            _take_over(member, self.module, parameters)
        named = [names[i].lstrip(".") for i in range(len(parameters))]
        dense = [i for i, sparse in enumerate(expect_sparse_gradient) if not sparse]
        member = Member(
            world, world.name_of(type(self.module).__name__), [parameters[i] for i in dense],
            [named[i] for i in dense], accept=self.find_unused_parameters or static_graph,
            sparse_parameters={named[i]: parameters[i] for i in range(len(parameters))
                               if expect_sparse_gradient[i]},
            **self._caps(), **options)
        member.wrapped = weakref.ref(self.module)
        ref = weakref.ref(self)
        member.syncs = lambda: getattr(ref(), "require_backward_grad_sync", True)
        world.add(member)
        self._sync_states(set(member.parameters))
        self.reducer = Reducer(world, member, parameters, self.module)
        self._use_logger(static_graph)

    def _use_logger(self, static_graph: bool) -> None:
        self.logger: Any = Logger(self, self.reducer)
        self.reducer.set_logger(self.logger)
        has_sync_bn = any(isinstance(m, torch.nn.SyncBatchNorm) for m in self.module.modules())
        self.logger.set_construction_data_and_log(
            type(self.module).__name__, self.device_ids or [],
            -1 if self.output_device is None else self.output_device,
            self.broadcast_buffers, has_sync_bn, static_graph)
        self._passing_sync_batchnorm_handle(self.module)

    def _of_all_ranks(self) -> bool:
        """False for a process group of some ranks, or of all ranks in another order."""
        ranks: List[int] = dist.get_process_group_ranks(self.process_group)
        return ranks == list(range(dist.get_world_size()))

    def _caps(self) -> Dict[str, int]:
        """Caps of buckets, if the user has set them. Else those of lockstep."""
        one, several = self.__dict__.get("_lockstep_caps", (None, None))
        if several:
            return {"bucket_first_bytes": int(several[0] * _MIB),
                    "bucket_bytes": int(several[-1] * _MIB)}
        if one:
            cap = max(1, int(one * _MIB))
            small = {"bucket_first_bytes": cap, "bucket_last_bytes": cap} if cap < _MIB else {}
            return {"bucket_bytes": cap, **small}
        return {}

    def _sync_states(self, but: Optional[set]) -> None:
        """Gives all ranks the values of rank 0. but: tensors that have them already."""
        if not self.__dict__.get("_lockstep_init_sync", False):
            return
        ignored = self.parameters_to_ignore
        states = [p.detach() for name, p in self.module.named_parameters()
                  if name not in ignored and (but is None or p not in but)]
        if self.__dict__.get("_lockstep_init_buffers", True):
            states += [b.detach() for name, b in self.module.named_buffers()
                       if name not in ignored]
        if states:
            dist._broadcast_coalesced(self.process_group, states, self.broadcast_bucket_size, 0)

    @property
    def lockstep_member(self) -> Optional[Member]:
        """The module of the session. None if the reducer of PyTorch is used."""
        reducer = self.__dict__.get("reducer")
        return reducer.member if isinstance(reducer, Reducer) else None

    def _train_now(self) -> None:
        """A wrapper that was copied or loaded gets its reducer. All ranks call it."""
        if not isinstance(self.__dict__.get("reducer"), Later):
            return
        parameters, sparse = self._build_params_for_reducer()
        self._ddp_init_helper(parameters, sparse,
                              self._build_debug_param_to_name_mapping(parameters),
                              self.static_graph)
        if self.static_graph:
            self.reducer._set_static_graph()
            self.logger._set_static_graph()

    def _to_stock(self, reason: str) -> None:
        """The reducer of PyTorch takes over, also after construction."""
        member = self.lockstep_member
        if member is None:
            return
        log.warning("module %s: the reducer of PyTorch is used, because %s", member.name, reason)
        self.reducer._remove_autograd_hooks()
        member.release()
        parameters, sparse = self._build_params_for_reducer()
        Stock._ddp_init_helper(self, parameters, sparse,
                               self._build_debug_param_to_name_mapping(parameters),
                               self.static_graph)
        if self.static_graph:
            self.reducer._set_static_graph()

    # --- forward, backward, join ----------------------------------------------------------------

    def _post_forward(self, output: Any) -> Any:
        output = super()._post_forward(output)
        if torch.is_grad_enabled():
            self._watch(output)
        return output

    @torch._disable_dynamo
    def _watch(self, output: Any) -> None:
        reducer = self.__dict__.get("reducer")
        if isinstance(reducer, Reducer):
            if self.require_backward_grad_sync:
                reducer.watch(output)
            else:
                reducer.member.only_adds()

    def join_hook(self, **options: Any) -> Any:
        self._train_now()
        if isinstance(self.__dict__.get("reducer"), Reducer):
            self.reducer.joins(options.get("divide_by_initial_world_size", True))
        return super().join_hook(**options)

    def _match_unused_params_allreduce(self) -> None:
        """Ranks agree on used parameters in their steps: a joined rank has nothing to send."""
        if self.lockstep_member is None:
            super()._match_unused_params_allreduce()

    def _update_process_group(self, new_process_group: Any) -> None:
        self._train_now()
        if self.lockstep_member is not None and not home._rank_not_in_group(new_process_group):
            ranks = dist.get_process_group_ranks
            if ranks(new_process_group) != ranks(self.process_group):
                self._to_stock("its process group has other ranks now")
        super()._update_process_group(new_process_group)

    # --- communication hooks --------------------------------------------------------------------

    def register_comm_hook(self, state: object, hook: Callable) -> None:
        self._train_now()
        name = getattr(hook, "__name__", type(hook).__name__)
        wire = _WIRES.get((getattr(hook, "__module__", ""), name))
        if self.lockstep_member is None or wire is None or not self._of_own_group(state):
            self._to_stock(f"it has the communication hook {name}")
            super().register_comm_hook(state, hook)
            return
        self.logger._set_comm_hook_name(hook.__qualname__)
        self._comm_hooks.append((hook, state))
        self._set_wire(wire)

    def _register_builtin_comm_hook(self, comm_hook_type: Any) -> None:
        self._train_now()
        if (self.lockstep_member is not None
                and comm_hook_type == dist.BuiltinCommHookType.ALLREDUCE):
            self.logger._set_comm_hook_name(str(comm_hook_type))
            return
        self._to_stock(f"it has the communication hook {comm_hook_type}")
        super()._register_builtin_comm_hook(comm_hook_type)

    def _of_own_group(self, state: object) -> bool:
        """True if hooks of PyTorch with this state reduce over the ranks of the module."""
        return state is self.process_group or state is None and self._of_all_ranks()

    def _set_wire(self, wire: str) -> None:
        """All ranks declare the module anew."""
        member = self.lockstep_member
        assert member is not None
        if member.options.get("wire", "same") != wire:
            member.options["wire"] = wire
            member.world.renew(member)

    # --- what stock DDP does not have -----------------------------------------------------------

    def step(self, weight: Optional[int] = None,
             phase: Optional[str] = None) -> ContextManager[None]:
        """Options of the steps whose backward passes begin inside the context. weight: number of
        samples behind this rank's gradients; the result is the mean over all samples. phase: a
        label of steps that use the same parameters."""
        self._train_now()
        member = self.lockstep_member
        if member is None:
            if weight is not None:
                raise Invalid("the reducer of PyTorch has no weights: the log says why it is used")
            return contextlib.nullcontext()
        return member.world.options(weight, phase)

_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"
_WIRES = {(_HOOKS, "allreduce_hook"): "same", (_HOOKS, "bf16_compress_hook"): "bfloat16"}

def _check_parameters(module: torch.nn.Module) -> None:
    """What DistributedDataParallel finds too late, or says in other words."""
    meta = [name for name, p in module.named_parameters() if p.device.type == "meta"]
    if meta:
        raise Invalid(f"parameter '{meta[0]}' is on the meta device and has no memory: call "
                      "module.to_empty(device=...) and set its values before it is wrapped")
    if isinstance(module, Stock):
        raise Invalid("the module is a DistributedDataParallel already: pass model.module, or use "
                      "it as it is")
    types = {p.device.type for p in module.parameters()}
    if len(types) > 1:
        raise Invalid(f"the parameters of the module are on {' and '.join(sorted(types))}: move "
                      "all of them with module.to(device) before it is wrapped")

def _take_over(member: Member, module: torch.nn.Module,
               parameters: Sequence[torch.Tensor]) -> None:
    """The newest wrapper has the parameters. The one before does not train any more. A wrapper of
    the same module may have had others, because layers are frozen and thawed."""
    theirs = {id(p) for p in [*member.parameters, *member.sparse.values()]}
    mine = {id(p) for p in parameters}
    if member.dead or not theirs & mine:
        return
    wrapped = member.wrapped is not None and (
        member.wrapped() is module or theirs <= mine or mine <= theirs)
    if theirs != mine and not wrapped:
        gc.collect()  # A wrapper that nobody uses may be there still: it is in a cycle.
        if member.dead:
            return
        raise Invalid(
            f"{len(theirs & mine)} parameters belong to module '{member.name}' already, which is "
            "wrapped by another DistributedDataParallel: wrap one module that has both, or share "
            "no parameters")
    member.stop()

