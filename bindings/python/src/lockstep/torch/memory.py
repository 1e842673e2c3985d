# SPDX-License-Identifier: Apache-2.0
"""Gradient memory: one tensor for each parameter, each with a storage of its own.

A program can give such a tensor other memory: p.grad.data = ..., share_memory(), a queue of
torch.multiprocessing, module.to(memory_format=...). `moved` finds that, and `bring_back` ends it.

On the host the memory is the library's, which ranks of one host share. The library frees it when
the session ends, so a tensor must not outlive it: `release` gives every tensor memory of PyTorch.
On a device the memory is PyTorch's.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import torch

from ..arrays import Memory
from ..errors import Unsupported
from ..session import Session

_ALIGN = 64
_NUMBERS = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
_COMPLEX = {torch.complex64, torch.complex128}


def problem_of(parameter: torch.Tensor) -> Optional[str]:
    """Why the library cannot reduce the gradient of a parameter. None: it can."""
    if type(parameter.data) is not torch.Tensor:
        return f"it is a {type(parameter.data).__name__}"
    if parameter.dtype not in _NUMBERS and parameter.dtype not in _COMPLEX:
        return f"its dtype is {parameter.dtype}"
    grad_dtype = getattr(parameter, "grad_dtype", parameter.dtype)  # PyTorch 2.9 has it.
    if grad_dtype is not parameter.dtype:
        return f"its grad_dtype is {grad_dtype}"
    if parameter.layout is not torch.strided:
        return f"its layout is {parameter.layout}"
    if parameter.device.type not in ("cpu", "cuda"):
        return f"it is on {parameter.device}"
    if not _dense(parameter):
        return "its memory is not dense"
    if parameter.dim() > 7:
        return f"it has {parameter.dim()} dimensions"
    return None


def _dense(tensor: torch.Tensor) -> bool:
    """True if the elements fill memory without gaps, in any order of the dimensions."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1:
            if stride != step:
                return tensor.numel() == 0
            step *= size
    return True


def describe(tensor: torch.Tensor) -> Memory:
    """The memory of a tensor. A complex number is two numbers."""
    tensor = tensor.detach()
    if tensor.dtype in _COMPLEX:
        tensor = torch.view_as_real(tensor)
    return Memory(tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()),
                  tensor, on_device=tensor.device.type != "cpu")


def settle(devices: Iterable[torch.device]) -> None:
    """Waits for all streams of the devices: the library reads memory of a GPU at once, except
    gradients of a step."""
    for device in set(devices):
        torch.cuda.synchronize(device)


class Gradients:
    """Gradients of parameters. tensors: one for each parameter, zero at first. homes: the same
    memory in tensors that no program gets."""

    def __init__(self, session: Session, parameters: Sequence[torch.Tensor]) -> None:
        self._session = session
        self._parameters = list(parameters)
        self._memory: Optional[Memory] = None
        # Weak references, by parameter: a storage keeps its buffer alive.
        self._buffers: Dict[int, Any] = {}
        self.on_device = any(p.device.type != "cpu" for p in parameters)
        if self.on_device:
            self.homes = [torch.zeros_like(p, requires_grad=False) for p in parameters]
        else:
            # Backward passes go from the last parameter to the first.
            self.homes = self._place(list(reversed(range(len(parameters)))))
        self.tensors = [self._view(i) for i in range(len(parameters))]
        self.addresses = [home.data_ptr() for home in self.homes]

    def place_of(self, i: int) -> Memory:
        """What the session is told of a gradient. It keeps no memory: free asks what does."""
        place = describe(self.homes[i])
        if not self.on_device:
            place.owner = None
        return place

    def _place(self, order: Sequence[int]) -> List[torch.Tensor]:
        """Tensors in memory of their own, side by side in this order."""
        offsets, size = _places(self._parameters, order)
        if size > 0:
            self._memory = self._session.zeros(size, "uint8")
        return [self._tensor(i, offset) for i, offset in enumerate(offsets)]

    def rearrange(self, order: Sequence[int]) -> "Gradients":
        """The same tensors with the same values, in memory in another order. Returns the memory
        that they had."""
        before = Gradients.__new__(Gradients)
        before._session, before._memory, before._buffers = self._session, self._memory, self._buffers
        self._memory, self._buffers = None, {}
        with torch.no_grad():
            for i, place in enumerate(self._place(order)):
                if place.numel():
                    place.copy_(self.tensors[i])
                    self.homes[i].set_(place.untyped_storage(), 0, place.shape, place.stride())
                    self.addresses[i] = self.homes[i].data_ptr()
                    self.bring_back(i)
        return before

    def moved(self, i: int) -> bool:
        """True if the program has given a tensor other memory than the library reduces."""
        tensor, home = self.tensors[i], self.homes[i]
        return (tensor.data_ptr() != home.data_ptr() or tensor.stride() != home.stride()
                or tensor.dtype is not home.dtype)

    def bring_back(self, i: int) -> None:
        """A tensor has the memory that the library reduces, and the values there."""
        self.tensors[i].data = self._view(i)

    def _view(self, i: int) -> torch.Tensor:
        """The memory of a home in a storage of its own, because share_memory() moves a storage."""
        home = self.homes[i]
        if self.on_device or not home.numel():
            return home.detach()
        return _tensor_of(self._buffers[i](), home)

    def _tensor(self, i: int, offset: int) -> torch.Tensor:
        """A tensor in library memory, in the layout of the parameter."""
        like = self._parameters[i]
        if like.numel() == 0:
            return torch.zeros_like(like, requires_grad=False)
        assert self._memory is not None
        size = like.numel() * like.element_size()
        array = (ctypes.c_char * size).from_address(self._memory.address + offset)
        buffer = memoryview(array)
        self._buffers[i] = weakref.ref(buffer)
        return _tensor_of(buffer, like)

    @property
    def in_use(self) -> bool:
        """True while a tensor has library memory."""
        return any(buffer() is not None for buffer in self._buffers.values())

    def release(self) -> None:
        """The tensors keep their values, and have memory of PyTorch from now on."""
        if self._memory is None:
            return
        with torch.no_grad():
            for tensor in self.tensors:
                if tensor.numel():
                    tensor.data = tensor.clone()
        self.tensors, self.homes = [], []

    def free(self) -> bool:
        """Frees library memory, if no tensor has it. False if one has."""
        if self._memory is None:
            return True
        if self.in_use:
            return False
        memory, self._memory = self._memory, None
        if self._session.handle:
            self._session.free(memory)
        return True


def _tensor_of(buffer: Any, like: torch.Tensor) -> torch.Tensor:
    storage = torch.frombuffer(buffer, dtype=like.dtype).untyped_storage()
    return torch.empty(0, dtype=like.dtype, device="cpu").set_(
        storage, 0, like.shape, like.stride())


def _places(parameters: Sequence[torch.Tensor],
            order: Sequence[int]) -> Tuple[List[int], int]:
    """The offset of each parameter, and the size of all. A bucket has gradients of one dtype: these
    lie side by side, so a bucket is one piece of memory."""
    offsets, size = [0] * len(parameters), 0
    for dtype in dict.fromkeys(parameters[i].dtype for i in order):
        size = -(-size // _ALIGN) * _ALIGN
        for i in order:
            if parameters[i].dtype is dtype:
                offsets[i] = size
                size += parameters[i].numel() * parameters[i].element_size()
    return offsets, size
