# SPDX-License-Identifier: Apache-2.0
# PyTorch declares the functions of a group with overloads, which one function here takes together.
# mypy: disable-error-code="override,assignment,call-arg,attr-defined,no-untyped-call"
"""The backend "lockstep" of torch.distributed.

    dist.init_process_group("lockstep")

Tensors are in host memory, or on the GPU of the session. The k-th collective of a group on one rank meets the k-th one on the
others, so ranks that call different collectives get an error that has both calls.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from datetime import timedelta
from typing import Any, Dict, List, Optional, Sequence, Union

import torch
import torch.distributed as dist

from .. import _native
from .._native import CollectiveKind as Kind
from .._native import Op
from ..collectives import Group
from ..errors import Closed, LockstepError, Unsupported
from ..session import Session
from . import _groups, backend, bootstrap
from ._plan import (COMPLEX_OPS, DTYPES, QUOTIENTS, Plan, check_like, counted, elements_of, joined, lists_of,
                    op_of, tensors_of)
from ._work import COLLECTIVES, RECEIVES, SENDS, Engine, Job, Work

__all__ = ["LockstepGroup", "create"]

_TAGS = 2**32


class LockstepGroup(dist.ProcessGroup):
    """A process group over a session."""

    supports_splitting = True
    options = None  # PyTorch copies them for split_group.

    def __init__(self, session: Session, engine: Engine, store: Any, rank: int, size: int,
                 ranks: Sequence[int], name: str, timeout: Optional[timedelta]) -> None:
        super().__init__(rank, size)
        self._session = session
        self._engine = engine
        self._store = store
        self._place = rank
        self._members = size
        self._world_size = session.size
        self._ranks = list(ranks)
        self._name = name
        self._text = "undefined"
        self._splits: List[LockstepGroup] = []
        self._seconds: Optional[float] = None
        self._serial = 0
        self._gone = False  # True if the session's group was freed.
        self._holds = False  # True if the session ends with this group.
        if timeout is not None:
            self.set_timeout(timeout)
        self._group, self._collective_name = _groups.make(session, self._ranks, name)

    # --- facts -----------------------------------------------------------------------------------

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, text: str) -> None:
        self._text = text

    def getGroupDesc(self) -> str:
        return self._text

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._text

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, text: str) -> None:
        self._text = text

    def getBackendName(self) -> str:
        return "lockstep"

    def getRank(self) -> int:
        return self._place

    def getSize(self) -> int:
        return self._members

    def rank(self) -> int:
        return self._place

    def size(self) -> int:
        return self._members

    def _get_backend(self, device: torch.device) -> "LockstepGroup":
        return self  # For all kinds of devices.

    def eager_connect_single_device(self, device: Optional[torch.device]) -> None:
        pass  # The session is connected.

    def get_group_store(self) -> Any:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        seconds = timeout.total_seconds()
        self._seconds = seconds if seconds > 0 else None

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

    def _set_sequence_number_for_group(self) -> None:
        pass  # It is 0 from the beginning.

    def _get_sequence_number_for_group(self) -> int:
        return self._serial

    # --- one collective --------------------------------------------------------------------------

    def _struct(self, kind: Kind, **fields: Any) -> Any:
        if self._gone:
            raise Closed(f"{kind.name.lower()}: this process group was destroyed")
        what = _native.lockstep_collective(kind=int(kind), name=self._collective_name)
        if self._group is not None:
            what.group = self._group.handle
        for name, value in fields.items():
            setattr(what, name, value)
        return what

    def _move(self, kind: Kind, source: Optional[torch.Tensor], target: Optional[torch.Tensor],
              parts: int, **fields: Any) -> Any:
        """A collective that moves elements. parts: the parts among which `count` is divided."""
        like = source if source is not None else target
        assert like is not None
        count, dtype = counted(like)
        return self._struct(
            kind, dtype=int(dtype), count=count // parts,
            input=source.data_ptr() if source is not None else None,
            output=target.data_ptr() if target is not None else None, **fields)

    def _reduction(self, plan: Plan, kind: Kind, source: Optional[torch.Tensor],
                   target: Optional[torch.Tensor], options: Any, complex_: bool, parts: int = 1,
                   **fields: Any) -> Any:
        op = op_of(options)
        like = source if source is not None else target
        assert like is not None
        dtype = DTYPES.get(like.dtype)
        if dtype is None:
            raise Unsupported(f"the backend lockstep has no reductions of {like.dtype}")
        if complex_ and op not in COMPLEX_OPS:
            raise Unsupported(f"the backend lockstep has no {op.name.lower()} of complex numbers")
        if op == Op.MEAN and dtype in QUOTIENTS:
            op = Op.SUM
            plan.divide(target, self._members)
        return self._struct(
            kind, dtype=int(dtype), op=int(op), count=like.numel() // parts,
            input=source.data_ptr() if source is not None else None,
            output=target.data_ptr() if target is not None else None, **fields)

    def _counts(self, plan: Plan, counts: Sequence[int], like: torch.Tensor) -> Any:
        """Counts of parts, as the library counts elements."""
        times = 1 if like.dtype in DTYPES else like.element_size()
        array = (ctypes.c_uint64 * len(counts))(*(count * times for count in counts))
        plan.keep.append(array)
        return ctypes.cast(array, ctypes.POINTER(ctypes.c_uint64))

    def _begin(self, what: str, plan: Plan, result: List[torch.Tensor], options: Any = None,
               lane: int = COLLECTIVES, source: Union[int, ctypes.c_uint32] = -1) -> Work:
        if lane == COLLECTIVES:
            self._serial += 1
        plan.begin()
        job = Job(self._engine, what, plan.structs, lane, (plan, result), result, plan.finish(),
                  self._group or self._session, self._members)
        timeout = getattr(options, "timeout", None)
        seconds = self._seconds
        if isinstance(timeout, timedelta) and timeout.total_seconds() > 0:
            seconds = timeout.total_seconds()
        return Work(self._engine.begin(job), seconds, source)

    # --- reductions ------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Each tensor becomes op over the tensors of all ranks."""
        return self._allreduce("all_reduce", tensors_of(tensors), opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Work:
        return self._allreduce("all_reduce_coalesced", tensors_of(tensors), opts)

    def _allreduce(self, what: str, tensors: List[torch.Tensor], opts: Any) -> Work:
        if any(tensor.is_sparse for tensor in tensors):
            return self._allreduce_sparse(what, tensors, opts)
        plan = Plan()
        for tensor in tensors:
            dense = plan.output(tensor, reads=True)
            plan.structs.append(
                self._reduction(plan, Kind.ALLREDUCE, None, dense, opts, tensor.is_complex()))
        return self._begin(what, plan, tensors, opts)

    def _allreduce_sparse(self, what: str, tensors: List[torch.Tensor], opts: Any) -> Work:
        """A sum of sparse tensors: all indices and values go to all ranks. Waits for them."""
        if op_of(opts) not in (Op.SUM, Op.MEAN):
            raise Unsupported("the backend lockstep has only sums of sparse tensors")
        for tensor in tensors:
            mine = tensor.detach().coalesce()
            counts = torch.empty(self._members, dtype=torch.int64)
            self.all_gather_single(counts, torch.tensor([mine._nnz()])).wait()
            numbers = counts.tolist()
            indices = self._all_of(mine.indices().t().contiguous(), numbers)
            values = self._all_of(mine.values(), numbers)
            whole = torch.sparse_coo_tensor(indices.t(), values, mine.shape).coalesce()
            if op_of(opts) == Op.MEAN:
                whole = whole / self._members
            with torch.no_grad():
                tensor.copy_(whole)
        return self._begin(what, Plan(), tensors, opts)

    def _all_of(self, rows: torch.Tensor, numbers: List[int]) -> torch.Tensor:
        """The rows of all ranks. numbers: of how many rows each."""
        whole = rows.new_empty((sum(numbers), *rows.shape[1:]))
        self.allgather([list(whole.split(numbers))], [rows]).wait()
        return whole

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Work:
        """The root's tensor becomes op over the tensors of all ranks."""
        root, op = (opts, op) if isinstance(opts, int) else (opts.rootRank, opts)
        plan, list_ = Plan(), tensors_of(tensors)
        for tensor in list_:
            if root == self._place:
                dense = plan.output(tensor, reads=True)
                struct = self._reduction(plan, Kind.REDUCE, None, dense, op, tensor.is_complex())
            else:
                struct = self._reduction(plan, Kind.REDUCE, plan.input(tensor), None, op,
                                         tensor.is_complex())
            struct.root = root
            plan.structs.append(struct)
        return self._begin("reduce", plan, list_, opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None,
                       timeout: Any = None) -> Work:
        """The output becomes op over this rank's part of the inputs."""
        plan, targets = Plan(), tensors_of(outputs)
        for target, parts in zip(targets, lists_of(inputs)):
            self._check_parts("reduce_scatter", parts)
            check_like("reduce_scatter", parts, target, False)
            check_like("reduce_scatter", [parts[self._place]], target, True)
            counts = [elements_of(part).numel() for part in parts]
            whole = joined(plan, parts)
            struct = self._reduction(plan, Kind.REDUCE_SCATTER, whole, plan.output(target), opts,
                                     target.is_complex(), self._members)
            if len(set(counts)) > 1:
                struct.input_counts = self._counts(plan, counts, whole)
            plan.structs.append(struct)
        return self._begin("reduce_scatter", plan, targets, opts)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor,
                              opts: Any = None) -> Work:
        """The same for one tensor with all parts."""
        return self._reduce_scatter_all("reduce_scatter_single", [output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        return self._reduce_scatter_all("reduce_scatter_single_coalesced", tensors_of(outputs),
                                        tensors_of(inputs), opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter_all(self, what: str, outputs: List[torch.Tensor],
                            inputs: List[torch.Tensor], opts: Any) -> Work:
        plan = Plan()
        for output, source in zip(outputs, inputs):
            self._check_whole(what, source, output)
            plan.structs.append(self._reduction(
                plan, Kind.REDUCE_SCATTER, plan.input(source), plan.output(output), opts,
                output.is_complex(), self._members))
        return self._begin(what, plan, outputs, opts)

    # --- moves -----------------------------------------------------------------------------------

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None,
                  root: Optional[int] = None) -> Work:
        """Each tensor becomes the root's."""
        if root is None:
            root = opts if isinstance(opts, int) else opts.rootRank
        plan, list_ = Plan(), tensors_of(tensors)
        for tensor in list_:
            dense = plan.output(tensor, reads=root == self._place)
            plan.structs.append(self._move(Kind.BROADCAST, None, dense, 1, root=root))
        return self._begin("broadcast", plan, list_, opts)

    def _check_parts(self, what: str, parts: Sequence[Any]) -> None:
        if len(parts) != self._members:
            raise ValueError(f"{what}: {len(parts)} tensors are given for {self._members} ranks: "
                             "incorrect list size")

    def _check_whole(self, what: str, whole: torch.Tensor, part: torch.Tensor) -> None:
        check_like(what, [whole], part, False)
        if whole.numel() != part.numel() * self._members:
            raise ValueError(f"{what}: a tensor of {whole.numel()} elements is not {self._members} "
                             f"times one of {part.numel()}: invalid tensor size")

    def _gather_parts(self, plan: Plan, kind: Kind, what: str, parts: List[torch.Tensor],
                      source: torch.Tensor, **fields: Any) -> None:
        """The sources of all ranks become parts."""
        self._check_parts(what, parts)
        check_like(what, parts, source, False)
        check_like(what, [parts[self._place]], source, True)
        counts = [elements_of(part).numel() for part in parts]
        dense = plan.input(source)
        whole = torch.empty(sum(counts), dtype=dense.dtype, device=dense.device)
        struct = self._move(kind, dense, whole, 1, **fields)
        if len(set(counts)) > 1:
            struct.output_counts = self._counts(plan, counts, dense)
        plan.structs.append(struct)
        plan.keep.append(whole)
        for part, elements in zip(parts, whole.split(counts)):
            plan.copy(part, elements)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        """Each list of outputs becomes the inputs of all ranks."""
        return self._allgather("all_gather", outputs, inputs, opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """The same; outputs has a list for each rank, as Gloo has it."""
        turned = [list(parts) for parts in zip(*outputs)]
        return self._allgather("all_gather_coalesced", turned, inputs, opts)

    def _allgather(self, what: str, outputs: Any, inputs: Any, opts: Any) -> Work:
        plan, lists = Plan(), lists_of(outputs)
        for parts, source in zip(lists, tensors_of(inputs)):
            self._gather_parts(plan, Kind.ALL_GATHER, what, parts, source)
        return self._begin(what, plan, [part for parts in lists for part in parts], opts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor,
                          opts: Any = None) -> Work:
        """The output becomes the inputs of all ranks, one after the other."""
        return self._all_gather_all("all_gather_single", [output], [input], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        return self._all_gather_all("all_gather_single_coalesced", tensors_of(outputs),
                                    tensors_of(inputs), opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _all_gather_all(self, what: str, outputs: List[torch.Tensor], inputs: List[torch.Tensor],
                        opts: Any) -> Work:
        plan = Plan()
        for output, source in zip(outputs, inputs):
            self._check_whole(what, output, source)
            plan.structs.append(
                self._move(Kind.ALL_GATHER, plan.input(source), plan.output(output), 1))
        return self._begin(what, plan, outputs, opts)

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        """The root's outputs become the inputs of all ranks."""
        root = opts if isinstance(opts, int) else opts.rootRank
        plan, lists = Plan(), lists_of(outputs)
        for i, source in enumerate(tensors_of(inputs)):
            if root == self._place:
                self._gather_parts(plan, Kind.GATHER, "gather", lists[i], source, root=root)
            else:
                plan.structs.append(
                    self._move(Kind.GATHER, plan.input(source), None, 1, root=root))
        return self._begin("gather", plan, [part for parts in lists for part in parts], opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        """The output becomes this rank's part of the root's inputs."""
        root = opts if isinstance(opts, int) else opts.rootRank
        plan, targets, lists = Plan(), tensors_of(outputs), lists_of(inputs)
        for i, target in enumerate(targets):
            source = None
            if root == self._place:
                self._check_parts("scatter", lists[i])
                check_like("scatter", lists[i], target, True)
                source = joined(plan, lists[i])
            plan.structs.append(self._move(
                Kind.SCATTER, source, plan.output(target),
                self._members if source is not None else 1, root=root))
        return self._begin("scatter", plan, targets, opts)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> Work:
        """outputs[i] becomes rank i's input for this rank."""
        plan, targets, sources = Plan(), tensors_of(outputs), tensors_of(inputs)
        self._check_parts("all_to_all", sources)
        self._check_parts("all_to_all", targets)
        check_like("all_to_all", [*sources, *targets], sources[0], False)
        counts = [elements_of(target).numel() for target in targets]
        source = joined(plan, sources)
        whole = torch.empty(sum(counts), dtype=source.dtype, device=source.device)
        plan.keep.append(whole)
        plan.structs.append(self._move(
            Kind.ALL_TO_ALL, source, whole, 1,
            input_counts=self._counts(plan, [elements_of(t).numel() for t in sources], source),
            output_counts=self._counts(plan, counts, source)))
        for target, elements in zip(targets, whole.split(counts)):
            plan.copy(target, elements)
        return self._begin("all_to_all", plan, targets, opts)

    def all_to_all_single(self, output: torch.Tensor, input: torch.Tensor,
                          output_split_sizes: Any = (), input_split_sizes: Any = (),
                          opts: Any = None, timeout: Any = None) -> Work:
        """The same for tensors that are split along their first dimension."""
        plan = Plan()
        check_like("all_to_all_single", [output], input, False)
        source, target = plan.input(input), plan.output(output)
        split = bool(output_split_sizes or input_split_sizes)
        if not split and (input.numel() % self._members or input.numel() != output.numel()):
            raise ValueError(f"all_to_all_single: {input.numel()} and {output.numel()} elements "
                             f"cannot be split among {self._members} ranks")
        # Another rank may name the sizes of equal parts, so counts travel in any case.
        equal = self._counts(plan, [input.numel() // self._members] * self._members, source)
        plan.structs.append(self._move(
            Kind.ALL_TO_ALL, source, target, 1,
            input_counts=self._split(plan, source, input_split_sizes) if split else equal,
            output_counts=self._split(plan, target, output_split_sizes) if split else equal))
        return self._begin("all_to_all_single", plan, [output], opts)

    alltoall_base = all_to_all_single

    def _split(self, plan: Plan, tensor: torch.Tensor, sizes: Sequence[int]) -> Any:
        """Counts of parts from sizes along the first dimension."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not sizes:
            if rows % self._members:
                raise ValueError(f"all_to_all_single: {rows} rows cannot be split among "
                                 f"{self._members} ranks")
            sizes = [rows // self._members] * self._members
        if len(sizes) != self._members or sum(sizes) != rows:
            raise ValueError(f"all_to_all_single: split sizes {list(sizes)} do not match {rows} "
                             f"rows and {self._members} ranks")
        row = tensor.numel() // rows if rows else 0
        return self._counts(plan, [size * row for size in sizes], tensor)

    def barrier(self, opts: Any = None, timeout: Any = None) -> Work:
        """Completes on no rank before every rank has called it."""
        plan = Plan()
        plan.structs.append(self._struct(Kind.BARRIER))
        if timeout is not None:
            opts = dist.BarrierOptions()
            opts.timeout = timeout
        return self._begin("barrier", plan, [], opts)

    # --- from rank to rank -----------------------------------------------------------------------

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Work:
        return self._pair(Kind.SEND, "send", tensors_of(tensors), peer, tag)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Work:
        return self._pair(Kind.RECEIVE, "recv", tensors_of(tensors), peer, tag)

    def _pair(self, kind: Kind, what: str, tensors: List[torch.Tensor], peer: int,
              tag: int) -> Work:
        plan = Plan()
        for tensor in tensors:
            source = plan.input(tensor) if kind == Kind.SEND else None
            target = plan.output(tensor) if kind == Kind.RECEIVE else None
            plan.structs.append(self._move(kind, source, target, 1, peer=peer, tag=tag % _TAGS))
        return self._begin(f"{what} of rank {self._place} with rank {peer}, tag {tag},", plan,
                           tensors, None, SENDS if kind == Kind.SEND else RECEIVES, peer)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """The tensor becomes what any rank sends to this one. The work's source_rank says which."""
        plan, (tensor,), sender = Plan(), tensors_of(tensors), ctypes.c_uint32()
        plan.structs.append(self._move(
            Kind.RECEIVE, None, plan.output(tensor), 1, peer=_native.ANY_SOURCE, tag=tag % _TAGS,
            sender=ctypes.pointer(sender)))
        return self._begin(f"recv of rank {self._place} from any rank, tag {tag},", plan,
                           [tensor], None, RECEIVES, sender)

    # --- groups from this one, and the end -------------------------------------------------------

    def splitGroup(self, ranks: Sequence[int], timeout: Any = None, opts: Any = None,
                   group_name: Optional[str] = None, group_desc: Optional[str] = None,
                   devices: Any = None) -> "Optional[LockstepGroup]":
        """A group of some ranks of this one. All ranks of this one call it."""
        if self._place not in ranks:
            return None
        _groups.check(self._session, self._world_size, "split_group")
        world = self._ranks or list(range(self._members))
        self._serial += 1
        name = group_name or f"{self._name}:split:{self._serial}"
        child = LockstepGroup(
            self._session, self._engine, dist.PrefixStore(f"{name}/", self._store),
            list(ranks).index(self._place), len(ranks), [world[rank] for rank in ranks], name,
            timeout or (timedelta(seconds=self._seconds) if self._seconds else None))
        child.setGroupDesc(group_desc or "undefined")
        self._splits.append(child)  # C++ does not keep the Python object.
        return child

    def split_group(self, new_ranks: Sequence[int], timeout: Any = None, opts: Any = None,
                    group_name: Optional[str] = None, group_desc: Optional[str] = None,
                    device_types: Any = None) -> "Optional[LockstepGroup]":
        return self.splitGroup(new_ranks, timeout, opts, group_name, group_desc, device_types)

    def abort(self) -> None:
        """Gives up the session: other ranks that wait get an error."""
        self._session.abort("torch.distributed aborted the process group")

    def shutdown(self) -> None:
        """Frees the group. The default group ends the session, unless lockstep.torch.session() has
        been called."""
        if self._group is not None:
            _close_group(self._engine, self._group)
            self._group, self._gone = None, True
        if self._holds:
            self._holds = False
            self._engine.drain()
            bootstrap.release()


# --- creation ------------------------------------------------------------------------------------

_lock = threading.Lock()
_engines: List[Engine] = []  # One for each open session.


def _engine_of(session: Session) -> Engine:
    with _lock:
        for engine in _engines:
            if engine.session is session:
                return engine
        engine = Engine(session)
        _engines[:] = [engine]
        bootstrap.before_close(engine.fail)
        return engine


def _close_group(engine: Engine, group: Group) -> None:
    """A group whose work is not done is freed with the session."""
    if not engine.in_flight or engine.session.handle == 0:
        try:
            group.close()
        except LockstepError:
            pass  # The session has failed, and frees its groups.


_made: Dict[Any, Any] = {}  # Open groups of the native backend, by their names and ranks.


def _create_native(native: backend.Native, opts: Any, combined: bool) -> Any:
    ranks = list(opts.global_ranks_in_group)
    key = (opts.group_id, tuple(ranks))
    if key not in _made:
        session = _session_of(opts)
        group, name = _groups.make(session, ranks, opts.group_id)

        def closed() -> None:
            _made.pop(key, None)
            if not ranks:
                bootstrap.release()

        if not _made:
            bootstrap.before_close(_made.clear)
        timeout = opts.timeout.total_seconds() if opts.timeout is not None else 0.0
        _made[key] = native.create(session, opts.store, opts.group_rank,
                                   ranks or list(range(session.size)),
                                   (group.handle or 0) if group is not None else 0, name,
                                   round(timeout * 1000), closed)
    # PyTorch takes a process group as it is, and asks for a backend once for each kind of device.
    return _made[key]._get_backend(torch.device("cpu")) if combined else _made[key]


def _combined() -> bool:
    """True if PyTorch makes a group of several backends, such as "cpu:lockstep,cuda:nccl". Nothing
    but a variable of the function that calls says so."""
    frame = sys._getframe()
    while frame is not None and "backend_config" not in frame.f_locals:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return True
    return set(frame.f_locals["backend_config"].get_device_backend_map().values()) != {"lockstep"}


def _session_of(opts: Any) -> Session:
    if not opts.global_ranks_in_group:  # The default group keeps the session open.
        return bootstrap.hold(opts.store, opts.group_rank, opts.group_size)
    session = bootstrap.of_world()
    if session.world_change().changes:  # The default group may be from before.
        _groups.check(session, dist.get_world_size(), "new_group")
    bootstrap.check_place(session, dist.get_rank(), dist.get_world_size())
    return session


def create(opts: Any, pg_options: Any = None) -> Any:
    """What torch.distributed calls for a group with this backend."""
    native = backend.native()
    if native is not None:
        return _create_native(native, opts, _combined())
    session, ranks = _session_of(opts), list(opts.global_ranks_in_group)
    group = LockstepGroup(session, _engine_of(session), opts.store, opts.group_rank,
                          opts.group_size, ranks, opts.group_id, opts.timeout)
    group._holds = not ranks
    return group
