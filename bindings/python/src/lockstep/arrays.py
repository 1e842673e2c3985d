# SPDX-License-Identifier: Apache-2.0
"""Memory of arrays: NumPy, DLPack (PyTorch, JAX, ...), the buffer protocol. Nothing is copied."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Dict, Optional, Tuple, Union

from ._native import Dtype
from .errors import Invalid, Unsupported

_ITEM_BYTES: Dict[Dtype, int] = {
    Dtype.FLOAT32: 4, Dtype.FLOAT64: 8, Dtype.INT32: 4, Dtype.INT64: 8, Dtype.FLOAT16: 2,
    Dtype.BFLOAT16: 2, Dtype.UINT8: 1, Dtype.INT8: 1, Dtype.INT16: 2, Dtype.UINT16: 2,
    Dtype.UINT32: 4, Dtype.UINT64: 8, Dtype.BOOL: 1,
}
# The kind and size of an element as NumPy writes them. bfloat16 is no type of NumPy itself.
_TYPESTR: Dict[str, Dtype] = {
    "f4": Dtype.FLOAT32, "f8": Dtype.FLOAT64, "f2": Dtype.FLOAT16, "b1": Dtype.BOOL,
    "i1": Dtype.INT8, "i2": Dtype.INT16, "i4": Dtype.INT32, "i8": Dtype.INT64,
    "u1": Dtype.UINT8, "u2": Dtype.UINT16, "u4": Dtype.UINT32, "u8": Dtype.UINT64,
}
_TYPESTR_OF: Dict[Dtype, str] = {dtype: text for text, dtype in _TYPESTR.items()}
_TYPESTR_OF[Dtype.BFLOAT16] = "V2"
# Formats of the buffer protocol: kind; the size is the buffer's.
_FORMAT_KIND = {
    **{letter: "f" for letter in "efd"}, **{letter: "i" for letter in "bhilqn"},
    **{letter: "u" for letter in "BHILQNc"}, "?": "b",
}


def item_bytes(dtype: Dtype) -> int:
    """Bytes of one element."""
    return _ITEM_BYTES[dtype]


def dtype_of(what: Union[Dtype, str, Any]) -> Dtype:
    """A Dtype from a Dtype, a name ("float32"), or a dtype of NumPy or PyTorch."""
    if isinstance(what, Dtype):
        return what
    name = str(getattr(what, "name", None) or getattr(what, "__name__", None) or what)
    name = name.rsplit(".", 1)[-1].rstrip("_").upper()
    try:
        return Dtype[name]
    except KeyError:
        raise Unsupported(f"there is no dtype {what!r} in lockstep") from None


class Memory:
    """Elements at an address. Everything that takes an array takes a Memory, too.

    strides: in elements; None if the elements of the last dimension lie side by side. owner: any
    object that keeps the memory alive. A Memory is an array for numpy.asarray.
    """

    __slots__ = ("address", "dtype", "shape", "strides", "owner", "readonly", "on_device",
                 "__weakref__")

    def __init__(self, address: int, dtype: Union[Dtype, str, Any], shape: Tuple[int, ...] = (),
                 strides: Optional[Tuple[int, ...]] = None, owner: Any = None,
                 readonly: bool = False, on_device: bool = False) -> None:
        self.address = address
        self.dtype = dtype_of(dtype)
        self.shape = tuple(shape)
        self.strides = None if strides is None else tuple(strides)
        self.owner = owner
        self.readonly = readonly
        self.on_device = on_device

    @property
    def count(self) -> int:
        """Number of elements."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        return self.count * _ITEM_BYTES[self.dtype]

    @property
    def contiguous(self) -> bool:
        """True if the elements lie side by side in the order of their indices."""
        if self.strides is None:
            return True
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides)):
            if size != 1 and stride != step:
                return self.count == 0
            step *= size
        return True

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        if self.on_device:
            raise AttributeError("the memory is on a device")
        item = _ITEM_BYTES[self.dtype]
        strides = None if self.strides is None else tuple(item * stride for stride in self.strides)
        text = _TYPESTR_OF[self.dtype]
        return {"version": 3, "shape": self.shape, "strides": strides,
                "typestr": ("|" if item == 1 or text == "V2" else "<") + text,
                "data": (self.address, self.readonly)}

    def __repr__(self) -> str:
        return f"Memory({self.address:#x}, {self.dtype.name.lower()}, {self.shape})"


def memory_of(what: Any, writable: bool = True) -> Memory:
    """The memory of an array. writable: an array that cannot be written is an error."""
    memory = _memory_of(what)
    if writable and memory.readonly:
        raise Invalid(f"{type(what).__name__} cannot be written, and the result has to go there")
    return memory


def _memory_of(what: Any) -> Memory:
    if isinstance(what, Memory):
        return what
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(what, torch.Tensor):
        return _from_torch(what)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(what, numpy.generic):
        # The interface of a NumPy scalar is that of a temporary array. This one stays: it is a copy.
        memory = _memory_of(numpy.asarray(what))
        memory.readonly = True
        return memory
    interface = getattr(what, "__array_interface__", None)
    if interface is not None:
        return _from_interface(what, interface)
    if hasattr(what, "__dlpack__"):
        return _from_dlpack(what)
    return _from_buffer(what)


def _from_interface(what: Any, interface: Dict[str, Any]) -> Memory:
    text = interface["typestr"]
    dtype = _TYPESTR.get(text[1:])
    if dtype is None and getattr(getattr(what, "dtype", None), "name", "") == "bfloat16":
        dtype = Dtype.BFLOAT16
    if dtype is None or text[0] == ">":
        raise Unsupported(f"arrays of dtype {getattr(what, 'dtype', text)} are not supported")
    if not isinstance(interface.get("data"), tuple):  # A copy of the elements, or none.
        raise Unsupported(f"{type(what).__name__} does not give its memory: pass numpy.array of it")
    address, readonly = interface["data"]
    strides = _in_elements(interface.get("strides"), _ITEM_BYTES[dtype])
    return Memory(address, dtype, interface["shape"], strides, what, readonly)


def _from_torch(what: Any) -> Memory:
    """A tensor of PyTorch tells its address itself: DLPack costs 60 us more, and refuses parameters.
    """
    dtype = _torch_dtypes.get(what.dtype)
    if dtype is None:
        dtype = _torch_dtypes[what.dtype] = dtype_of(what.dtype)
    kind = what.device.type
    if kind not in ("cpu", "cuda") or str(what.layout) != "torch.strided":
        raise Unsupported(f"tensors on {kind} of layout {what.layout} are not supported")
    if what.is_neg():
        raise Unsupported("the tensor is a view with the sign changed: pass tensor.resolve_neg()")
    return Memory(what.data_ptr(), dtype, tuple(what.shape), what.stride(), what,
                  on_device=kind == "cuda")


_torch_dtypes: Dict[Any, Dtype] = {}


def _in_elements(strides: Optional[Tuple[int, ...]], item: int) -> Optional[Tuple[int, ...]]:
    if strides is None:
        return None
    if any(stride % item for stride in strides):
        raise Unsupported("strides of the array are not whole elements")
    return tuple(stride // item for stride in strides)


# --- DLPack, by the layout of dlpack.h ------------------------------------------------------------

_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_READ_ONLY, _COPIED = 1, 2
_DLPACK_KIND = {_INT: "i", _UINT: "u", _FLOAT: "f", _BOOL: "b"}


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [
    ctypes.py_object, ctypes.c_char_p]
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.restype, _capsule_is.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


def _capsule_of(what: Any) -> Any:
    """The capsule frees what it holds by itself as long as nobody renames it."""
    device = what.__dlpack_device__()[0] if hasattr(what, "__dlpack_device__") else _CPU
    stream = {"stream": -1} if device in (_CUDA, _CUDA_MANAGED) else {}
    try:
        return what.__dlpack__(max_version=(1, 0), **stream)
    except TypeError:  # From before DLPack 1.0.
        return what.__dlpack__(**stream)


def _from_dlpack(what: Any) -> Memory:
    try:
        capsule = _capsule_of(what)
    except (BufferError, RuntimeError) as error:
        raise Unsupported(f"{type(what).__name__} does not give its memory: {error}") from error
    readonly = False
    if _capsule_is(capsule, b"dltensor_versioned"):
        whole = _Versioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        tensor, readonly = whole.tensor, bool(whole.flags & (_READ_ONLY | _COPIED))
    else:
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    if tensor.device_type not in (_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED):
        raise Unsupported(f"memory of DLPack's device {tensor.device_type} is not supported")
    dtype = None
    if tensor.lanes == 1 and tensor.code == _BFLOAT:
        dtype = Dtype.BFLOAT16 if tensor.bits == 16 else None
    elif tensor.lanes == 1:
        dtype = _TYPESTR.get(f"{_DLPACK_KIND.get(tensor.code, '?')}{tensor.bits // 8}")
    if dtype is None:
        raise Unsupported(
            f"elements of DLPack's code {tensor.code} with {tensor.bits} bits are not supported")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
    return Memory((tensor.data or 0) + tensor.byte_offset, dtype, shape, strides, (what, capsule),
                  readonly, tensor.device_type in (_CUDA, _CUDA_MANAGED))


# --- the buffer protocol --------------------------------------------------------------------------


class _PyBuffer(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    ]


_buffer_get = ctypes.pythonapi.PyObject_GetBuffer
_buffer_get.restype, _buffer_get.argtypes = ctypes.c_int, [
    ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_buffer_release = ctypes.pythonapi.PyBuffer_Release
_buffer_release.restype, _buffer_release.argtypes = None, [ctypes.POINTER(_PyBuffer)]


class _Held:
    """A buffer that its exporter must not move."""

    def __init__(self, view: memoryview) -> None:
        self.view = view  # The view holds the buffer; this one only has its address.
        held = _PyBuffer()
        _buffer_get(view, ctypes.byref(held), 0)
        self.address: int = held.buf or 0
        _buffer_release(ctypes.byref(held))


def _from_buffer(what: Any) -> Memory:
    try:
        view = memoryview(what)
    except TypeError:
        raise Invalid(
            f"{type(what).__name__} is no array: pass one of NumPy, one that has DLPack, or an "
            "object with the buffer protocol") from None
    letters = view.format.lstrip("@=<")
    dtype = None
    if len(letters) == 1 and letters in _FORMAT_KIND:
        dtype = _TYPESTR.get(f"{_FORMAT_KIND[letters]}{view.itemsize}")
    if dtype is None:
        raise Unsupported(f"elements of format '{view.format}' are not supported")
    if not view.c_contiguous:
        raise Unsupported("the elements of the buffer do not lie side by side")
    held = _Held(view)
    return Memory(held.address, dtype, tuple(view.shape or ()), None, held, view.readonly)
