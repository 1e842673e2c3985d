# SPDX-License-Identifier: Apache-2.0
"""Tensors of c10d as the library takes them: elements, operations, and what is copied."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from .._native import Dtype, Op
from ..errors import Unsupported
from . import bootstrap

DTYPES = {
    torch.float32: Dtype.FLOAT32, torch.float64: Dtype.FLOAT64, torch.float16: Dtype.FLOAT16,
    torch.bfloat16: Dtype.BFLOAT16, torch.int8: Dtype.INT8, torch.int16: Dtype.INT16,
    torch.int32: Dtype.INT32, torch.int64: Dtype.INT64, torch.uint8: Dtype.UINT8,
    torch.uint16: Dtype.UINT16, torch.uint32: Dtype.UINT32, torch.uint64: Dtype.UINT64,
    torch.bool: Dtype.BOOL,
}
_REDUCE = dist.ReduceOp
# A ReduceOp is equal to its RedOpType, but has another hash.
_OPS = [
    (_REDUCE.SUM, Op.SUM), (_REDUCE.AVG, Op.MEAN), (_REDUCE.MIN, Op.MIN), (_REDUCE.MAX, Op.MAX),
    (_REDUCE.PRODUCT, Op.PRODUCT), (_REDUCE.BAND, Op.AND), (_REDUCE.BOR, Op.OR),
    (_REDUCE.BXOR, Op.XOR),
]
COMPLEX_OPS = {Op.SUM, Op.MEAN}
# Integers of which AVG is the sum, divided and rounded towards zero, as NCCL has it. The library has
# no such mean, and PyTorch does not divide the other integers.
QUOTIENTS = {Dtype.INT8, Dtype.INT16, Dtype.INT32, Dtype.INT64, Dtype.UINT8}


def op_of(options: Any) -> Op:
    asked = getattr(options, "reduceOp", options)
    if asked is None:
        return Op.SUM
    for op, number in _OPS:
        if asked == op:
            return number
    raise Unsupported(f"the backend lockstep has no {asked}")


def tensors_of(what: Any) -> List[torch.Tensor]:
    """Functions of a group take a tensor or a list of tensors."""
    return [what] if isinstance(what, torch.Tensor) else list(what)


def lists_of(what: Any) -> List[List[torch.Tensor]]:
    """The same, one level further down."""
    if not what:
        return []
    return [list(what)] if isinstance(what[0], torch.Tensor) else [list(inner) for inner in what]


def elements_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of elements that the library has, over the same memory."""
    if tensor.is_sparse or tensor.layout != torch.strided:
        raise Unsupported(f"the backend lockstep has no tensors of layout {tensor.layout} here")
    if tensor.device.type not in ("cpu", "cuda"):
        raise Unsupported(f"the backend lockstep has tensors in host memory and on GPUs of CUDA, "
                          f"and not on {tensor.device}")
    tensor = tensor.detach()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def counted(tensor: torch.Tensor) -> Tuple[int, Dtype]:
    """Elements to move, as the library counts them: any dtype can be moved."""
    dtype = DTYPES.get(tensor.dtype)
    if dtype is not None:
        return tensor.numel(), dtype
    return tensor.numel() * tensor.element_size(), Dtype.UINT8


def check_like(what: str, tensors: Sequence[torch.Tensor], like: torch.Tensor, shape: bool) -> None:
    for tensor in tensors:
        if tensor.dtype != like.dtype:
            raise ValueError(f"{what}: tensors of {tensor.dtype} and {like.dtype} do not match: "
                             "invalid tensor type")
        if shape and tensor.numel() != like.numel():
            raise ValueError(f"{what}: tensors of sizes {tuple(tensor.shape)} and "
                             f"{tuple(like.shape)} do not match: invalid tensor size")


class Plan:
    """The collectives of one call, and the copies that are due when they are done."""

    def __init__(self) -> None:
        self.structs: List[Any] = []
        self.keep: List[Any] = []
        self.quotients: List[Tuple[torch.Tensor, int]] = []
        self.copies: List[Tuple[torch.Tensor, torch.Tensor]] = []
        self.device: Optional[torch.device] = None
        """Where tensors are that are not in host memory."""

    def elements(self, tensor: torch.Tensor) -> torch.Tensor:
        """elements_of, and notes the device."""
        elements = elements_of(tensor)
        if elements.device.type != "cpu":
            self.device = elements.device
        return elements

    def input(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with its elements side by side."""
        dense = self.elements(tensor).contiguous()
        self.keep.append(dense)
        return dense

    def output(self, tensor: torch.Tensor, reads: bool = False) -> torch.Tensor:
        """Memory with elements side by side that becomes the tensor. reads: it is input, too."""
        elements = self.elements(tensor)
        if elements.is_contiguous():
            self.keep.append(elements)
            return elements
        dense = elements.contiguous() if reads else torch.empty(
            elements.shape, dtype=elements.dtype, device=elements.device)
        self.copies.append((elements, dense))
        return dense

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """target becomes source at the end."""
        self.copies.append((self.elements(target), source))

    def divide(self, target: Optional[torch.Tensor], by: int) -> None:
        """target is divided at the end, and rounded towards zero."""
        if target is not None:
            self.quotients.append((target, by))

    def begin(self) -> None:
        """Waits for the GPU: the library reads inputs at once."""
        if self.device is not None:
            bootstrap.need_device(self.device)
            torch.cuda.current_stream(self.device).synchronize()

    def finish(self) -> Optional[Callable[[], None]]:
        """What is left to do when the collectives are done."""
        quotients, copies, device = self.quotients, self.copies, self.device
        if not quotients and not copies:
            return None

        def finish() -> None:
            with torch.no_grad():
                for tensor, by in quotients:
                    tensor.div_(by, rounding_mode="trunc")
                for target, source in copies:
                    target.copy_(source.view(target.shape))
            if device is not None:  # The stream of this thread is not that of the caller.
                torch.cuda.current_stream(device).synchronize()

        return finish


def joined(plan: Plan, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One memory with the elements of all tensors."""
    with torch.no_grad():
        flat = torch.cat([plan.elements(tensor).reshape(-1) for tensor in tensors])
    plan.keep.append(flat)
    return flat
