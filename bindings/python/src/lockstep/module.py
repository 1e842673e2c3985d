# SPDX-License-Identifier: Apache-2.0
"""Modules: parameters and buffers that are synchronized together."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import _native
from ._library import check, lib
from ._native import BufferPolicy, Dtype, ModuleOptions
from ._options import enum_of, fill, set_number, text_of, whole, whole32
from ._outlive import outlive
from .arrays import Memory, dtype_of, memory_of
from .errors import Invalid

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .session import Session
    from .step import Call

_OPTIONS = set(ModuleOptions.__annotations__)
Index = Union[int, str]


@dataclass
class Parameter:
    """A trained tensor.

    gradient: where the backward pass puts the gradient, and where the mean is after the step.
    None: the address is given to Call.ready in each step, or Module.gradients makes memory.
    more: further fields of struct lockstep_parameter, by name.
    """

    name: str
    data: Any
    gradient: Any = None
    frozen: bool = False
    shared: bool = False
    """A second name of an earlier parameter (tied weights)."""
    ready_count: int = 0
    more: Optional[Dict[str, int]] = None
    gradient_dtype: Any = None
    """The type of the gradient if it is not that of the value: "float32" beside bfloat16."""


@dataclass
class Buffer:
    """Other state of a module. policy: "at_start", "ignore", "broadcast", "mean" or "sum"."""

    name: str
    data: Any
    policy: Union[BufferPolicy, str] = BufferPolicy.AT_START
    every: int = 0


Parameters = Union[Mapping[str, Any], Sequence[Union[Parameter, Tuple[str, Any]]]]
Buffers = Union[Mapping[str, Any], Sequence[Union[Buffer, Tuple[str, Any]]]]


def _list_of(what: Any, kind: Any) -> List[Any]:
    pairs = what.items() if isinstance(what, Mapping) else what
    return [item if isinstance(item, kind) else kind(*item) for item in pairs]


def _describe(struct: Any, name: str, memory: Memory, keep: List[Any]) -> None:
    dims = len(memory.shape)
    shape = (ctypes.c_int64 * dims)(*memory.shape)
    keep.append(shape)
    struct.name = text_of(name)
    struct.dtype = int(memory.dtype)
    struct.dims = dims
    struct.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    struct.data = memory.address
    if memory.strides is not None:
        strides = (ctypes.c_int64 * dims)(*memory.strides)
        keep.append(strides)
        struct.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))


def _same_layout(one: Memory, other: Memory) -> bool:
    """Strides of dimensions of one element do not matter."""
    if one.shape != other.shape:
        return False
    if one.contiguous or other.contiguous:
        return one.contiguous and other.contiguous
    return all(n == 1 or a == b
               for n, a, b in zip(one.shape, one.strides or (), other.strides or ()))


class Module:
    """Parameters that are synchronized together. Session.register makes it."""

    def __init__(self, session: "Session", name: str, parameters: Parameters, buffers: Buffers,
                 ignore: Sequence[str], **options: "Unpack[ModuleOptions]") -> None:
        self.session = session
        self.name = name
        self.parameters: List[Parameter] = _list_of(parameters, Parameter)
        self.buffers: List[Buffer] = _list_of(buffers, Buffer)
        self._handle = ctypes.c_void_p()
        self._keep: List[Any] = []  # No memory: what has moved must be free.
        replicas = whole(options.get("replicas", 0) or 1, "replicas")
        self.count, rest = divmod(len(self.parameters), replicas)
        if rest:
            raise Invalid(f"module '{name}': {len(self.parameters)} parameters are not the same "
                          f"number for each of {replicas} replicas")
        self._index = {p.name: i for i, p in enumerate(self.parameters[:self.count])}
        self._memories: List[Memory] = []  # Of values.
        self._registered: List[Optional[Memory]] = []  # Of gradients.
        self._buffer_memories: List[Memory] = []
        self._gradient_dtypes: List[Dtype] = []
        self._blocks: "weakref.WeakSet[Memory]" = weakref.WeakSet()
        self._register(ignore, options)

    def _register(self, ignore: Sequence[str], options: Any) -> None:
        config = _native.lockstep_module_config(name=text_of(self.name))
        fill(config, options, _OPTIONS, "register()", self._keep)
        table = (_native.lockstep_parameter * max(1, len(self.parameters)))(
            *(self._parameter(parameter) for parameter in self.parameters))
        buffers = (_native.lockstep_buffer * max(1, len(self.buffers)))(
            *(self._buffer(buffer) for buffer in self.buffers))
        patterns = (ctypes.c_char_p * max(1, len(ignore)))(*(text_of(text) for text in ignore))
        config.parameters = ctypes.cast(table, ctypes.POINTER(_native.lockstep_parameter))
        config.parameter_count = self.count
        config.buffers = ctypes.cast(buffers, ctypes.POINTER(_native.lockstep_buffer))
        config.buffer_count = len(self.buffers)
        if ignore:
            config.ignore, config.ignore_count = patterns, len(ignore)
        check(lib.lockstep_module_register(
            self.session.handle, ctypes.byref(config), ctypes.byref(self._handle)))

    def _parameter(self, parameter: Parameter) -> Any:
        struct = _native.lockstep_parameter()
        memory = memory_of(parameter.data)
        _describe(struct, parameter.name, memory, self._keep)
        self._memories.append(memory)
        struct.flags = ((_native.PARAMETER_FROZEN if parameter.frozen else 0)
                        | (_native.PARAMETER_SHARED if parameter.shared else 0))
        set_number(struct, "ready_count", parameter.ready_count, "ready_count")
        for name, value in (parameter.more or {}).items():
            set_number(struct, name, value, name)
        if parameter.gradient_dtype is not None:
            struct.gradient_dtype = int(dtype_of(parameter.gradient_dtype))
        dtype = Dtype(struct.gradient_dtype or int(memory.dtype))
        self._gradient_dtypes.append(dtype)
        gradient = None
        if parameter.gradient is not None:
            gradient = memory_of(parameter.gradient)
            self._check_gradient(parameter.name, memory, dtype, gradient)
            struct.gradient = gradient.address
        self._registered.append(gradient)
        return struct

    def _check_gradient(self, name: str, memory: Memory, dtype: Dtype, gradient: Memory) -> None:
        where = f"module '{self.name}': the gradient of '{name}'"
        if not _same_layout(memory, gradient):
            raise Invalid(
                f"{where} has shape {gradient.shape} and strides {gradient.strides}, and its value "
                f"{memory.shape} and {memory.strides}")
        if gradient.dtype != dtype:
            raise Invalid(
                f"{where} is {gradient.dtype.name.lower()}, and not {dtype.name.lower()}")

    def _buffer(self, buffer: Buffer) -> Any:
        struct = _native.lockstep_buffer()
        memory = memory_of(buffer.data)
        _describe(struct, buffer.name, memory, self._keep)
        self._buffer_memories.append(memory)
        struct.policy = int(enum_of(BufferPolicy, buffer.policy, "policy"))
        set_number(struct, "every", buffer.every, "every")
        return struct

    @property
    def handle(self) -> int:
        """The lockstep_module. 0 once it or the session is closed."""
        return (self._handle.value or 0) if self.session.handle else 0

    def index(self, parameter: Index) -> int:
        """The number of a parameter that is named by its name or its number."""
        if isinstance(parameter, str):
            try:
                return self._index[parameter]
            except KeyError:
                raise Invalid(f"module '{self.name}' has no parameter '{parameter}'") from None
        return parameter if type(parameter) is int and 0 <= parameter < 2**32 else whole32(
            parameter, f"module '{self.name}': the number of a parameter")

    def _numbers(self, parameters: Sequence[Index]) -> Any:
        return (ctypes.c_uint32 * len(parameters))(*(self.index(p) for p in parameters))

    def _known(self, number: int) -> Memory:
        if not 0 <= number < self.count:
            raise Invalid(f"module '{self.name}' has no parameter {number}")
        return self._memories[number]

    def _gradient_of(self, number: int) -> Memory:
        """A gradient's type and layout; its address is the value's."""
        known = self._known(number)
        dtype = self._gradient_dtypes[number]
        return known if dtype == known.dtype else Memory(
            known.address, dtype, known.shape, known.strides, known.owner)

    def gradients(self) -> List[Optional[Memory]]:
        """Gradient memory of the library, one for each parameter, None where there is none. It
        becomes the registered memory. Ranks of one host reduce it without copies.
        numpy.asarray(memory) is a view. When the module is closed, memory that is still used
        becomes memory of this process alone."""
        addresses = (ctypes.c_void_p * max(1, self.count))()
        with outlive(self._blocks):  # That of an earlier call is freed.
            check(lib.lockstep_module_gradients(self._handle, addresses, self.count))
        gradients = [
            Memory(address, dtype, memory.shape, memory.strides, self,
                   on_device=memory.on_device) if address else None
            for address, memory, dtype in zip(addresses, self._memories, self._gradient_dtypes)]
        self._blocks = weakref.WeakSet(memory for memory in gradients if memory is not None)
        return gradients

    def call(self) -> "Call":
        """Begins a backward pass in the open step."""
        from .step import Call

        return Call(self)

    def freeze(self, parameters: Sequence[Index], frozen: bool = True) -> None:
        """Takes parameters out of training, or puts them in, from the next step on."""
        check(lib.lockstep_module_freeze(
            self._handle, self._numbers(parameters), len(parameters), frozen))

    def phase_unused(self, phase: Optional[str], parameters: Sequence[Index]) -> None:
        """Declares parameters that get no gradient in the steps of a phase."""
        check(lib.lockstep_phase_unused(
            self._handle, None if phase is None else text_of(phase), self._numbers(parameters),
            len(parameters)))

    def move(self, parameter: Index, data: Any = None, gradient: Any = None) -> None:
        """The memory of a parameter has moved. data None: the value stays where it is.
        gradient None: there is no registered gradient from now on."""
        number = self.index(parameter)
        memory = memory_of(data) if data is not None else None
        known = self._known(number)
        where = memory_of(gradient) if gradient is not None else None
        for given, dtype in ((memory, known.dtype), (where, self._gradient_dtypes[number])):
            if given is not None and (given.dtype != dtype or not _same_layout(known, given)):
                raise Invalid(
                    f"module '{self.name}': the {'value' if given is memory else 'gradient'} of "
                    f"'{self.parameters[number].name}' has another shape, strides or dtype than "
                    "the parameter: close the module and register it again")
        check(lib.lockstep_parameter_move(
            self._handle, number, memory.address if memory else None,
            where.address if where else None))
        if memory is not None:
            self._memories[number] = memory
            self.parameters[number] = replace(self.parameters[number], data=data)
        self._registered[number] = where
        self.parameters[number] = replace(self.parameters[number], gradient=gradient)

    def move_buffer(self, buffer: int, data: Any) -> None:
        """The memory of a buffer has moved."""
        memory = memory_of(data)
        buffer = whole32(buffer, f"module '{self.name}': the number of a buffer")
        check(lib.lockstep_buffer_move(self._handle, buffer, memory.address))
        self._buffer_memories[buffer] = memory
        self.buffers[buffer] = replace(self.buffers[buffer], data=data)

    def usage(self) -> List[int]:
        """The number of ranks that used each parameter in the last step. All ranks call it, or all
        members of the module's group."""
        array = (ctypes.c_uint32 * max(1, self.count))()
        _, ranks = self.session._block(
            ("usage", self),
            lambda: int(lib.lockstep_module_usage(self._handle, array, self.count)), array)
        return list(ranks)[:self.count]

    def used(self) -> List[bool]:
        """Which parameters any rank used in the last step. Exchanges nothing."""
        used = (ctypes.c_uint8 * max(1, self.count))()
        check(lib.lockstep_module_used(self._handle, used, self.count))
        return [bool(value) for value in used[:self.count]]

    def bucket(self, number: int) -> List[int]:
        """The parameters whose gradients travel in a bucket of the open step."""
        found, count = ctypes.POINTER(ctypes.c_uint32)(), ctypes.c_uint32()
        check(lib.lockstep_bucket_parameters(
            self._handle, number, ctypes.byref(found), ctypes.byref(count)))
        return [int(found[i]) for i in range(count.value)]

    def close(self) -> None:
        """Ends the module. A module that is closed already stays closed."""
        if self.handle:
            with outlive(self._blocks):
                check(lib.lockstep_module_close(self._handle))
            self._handle.value = None
            self.session._forget(self)

    def __enter__(self) -> "Module":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
