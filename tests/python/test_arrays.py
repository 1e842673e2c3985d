# SPDX-License-Identifier: Apache-2.0
"""Memory of arrays: addresses, types and layouts of what libraries give."""

import array
import ctypes
import unittest

import numpy as np

import lockstep
try:
    import torch
except ImportError:
    torch = None
from lockstep import Dtype, Memory, memory_of


class Exporter:
    """An array that has only DLPack."""

    def __init__(self, values, code, bits, versioned=False, read_only=False, strides=None):
        from lockstep import arrays

        self.values = values
        self.freed = []
        self.shape = (ctypes.c_int64 * values.ndim)(*values.shape)
        self.strides = (ctypes.c_int64 * values.ndim)(*strides) if strides else None
        self.whole = arrays._Versioned() if versioned else arrays._DLTensor()
        tensor = self.whole.tensor if versioned else self.whole
        tensor.data, tensor.device_type, tensor.ndim = values.ctypes.data - 4, 1, values.ndim
        tensor.code, tensor.bits, tensor.lanes, tensor.byte_offset = code, bits, 1, 4
        tensor.shape = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        if self.strides:
            tensor.strides = ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64))
        if versioned:
            self.whole.major, self.whole.flags = 1, int(read_only)
        self.name = b"dltensor_versioned" if versioned else b"dltensor"

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **options):
        if self.name == b"dltensor" and "max_version" in options:
            raise TypeError("no max_version")
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.whole), self.name, None)


class Arrays(unittest.TestCase):
    def expect(self, memory, address, dtype, shape):
        self.assertEqual((memory.address, memory.dtype, memory.shape), (address, dtype, shape))

    def test_numpy(self):
        for name, dtype in (("f4", Dtype.FLOAT32), ("f8", Dtype.FLOAT64), ("f2", Dtype.FLOAT16),
                            ("i1", Dtype.INT8), ("u8", Dtype.UINT64), ("?", Dtype.BOOL)):
            values = np.ones((2, 3), name)
            memory = memory_of(values)
            self.expect(memory, values.ctypes.data, dtype, (2, 3))
            self.assertTrue(memory.contiguous)
            self.assertEqual(memory.nbytes, values.nbytes)

    def test_a_scalar_has_one_element(self):
        self.assertEqual(memory_of(np.zeros((), np.float32)).count, 1)

    def test_strides_are_in_elements(self):
        values = np.ones((4, 6), np.float32)
        self.assertEqual(memory_of(values.T).strides, (1, 6))
        self.assertFalse(memory_of(values.T).contiguous)
        self.assertFalse(memory_of(values[:, ::2]).contiguous)
        self.assertTrue(memory_of(values[1:2, :]).contiguous)

    def test_what_cannot_be_written(self):
        values = np.ones(3, np.float32)
        values.flags.writeable = False
        with self.assertRaises(lockstep.Invalid):
            memory_of(values)
        self.expect(memory_of(values, writable=False), values.ctypes.data, Dtype.FLOAT32, (3,))
        with self.assertRaises(lockstep.Invalid):
            memory_of(b"text")

    def test_a_scalar_of_numpy_cannot_be_written(self):
        for value in (np.array([1.0, 2.0]).mean(), np.float32(1.5), np.int64(-3), np.bool_(True)):
            with self.assertRaisesRegex(lockstep.Invalid, "cannot be written"):
                memory_of(value)
            memory = memory_of(value, writable=False)
            others = [np.zeros((), value.dtype) for _ in range(8)]  # Memory that is free is theirs.
            self.assertEqual((np.asarray(memory)[()], memory.shape), (value, ()))
            self.assertNotIn(memory.address, [other.ctypes.data for other in others])

    def test_an_interface_over_a_copy(self):
        class Image:
            __array_interface__ = {"shape": (2,), "typestr": "|u1", "version": 3, "data": b"ab"}
        with self.assertRaisesRegex(lockstep.Unsupported, "Image does not give its memory"):
            memory_of(Image(), writable=False)

    def test_what_is_no_array(self):
        for what, error in ((3, lockstep.Invalid), ([1.0], lockstep.Invalid),
                            (np.ones(2, np.complex64), lockstep.Unsupported),
                            (np.ones(2, ">f4"), lockstep.Unsupported),
                            (np.array(["a"]), lockstep.Unsupported),
                            (np.zeros(2, "f4,i2")["f0"], lockstep.Unsupported)):
            with self.assertRaises(error, msg=repr(what)):
                memory_of(what)

    def test_buffers(self):
        for code, dtype in (("f", Dtype.FLOAT32), ("d", Dtype.FLOAT64), ("b", Dtype.INT8),
                            ("H", Dtype.UINT16), ("q", Dtype.INT64)):
            values = array.array(code, [1, 2, 3])
            self.expect(memory_of(values), values.buffer_info()[0], dtype, (3,))
        values = bytearray(5)
        self.expect(memory_of(values), ctypes.addressof(ctypes.c_char.from_buffer(values)),
                    Dtype.UINT8, (5,))
        held = memory_of(values)
        with self.assertRaises(BufferError):
            values.extend(b"more")  # It would move.
        del held
        numbers = (ctypes.c_float * 4)()
        self.expect(memory_of(numbers), ctypes.addressof(numbers), Dtype.FLOAT32, (4,))

    def test_dlpack(self):
        values = np.arange(6, dtype=np.float32).reshape(2, 3)
        for versioned in (False, True):
            memory = memory_of(Exporter(values, 2, 32, versioned))
            self.expect(memory, values.ctypes.data, Dtype.FLOAT32, (2, 3))
        halves = np.zeros(4, np.uint16)
        self.assertEqual(memory_of(Exporter(halves, 4, 16, True)).dtype, Dtype.BFLOAT16)
        memory = memory_of(Exporter(values, 0, 32, True, strides=(1, 2)))
        self.assertEqual((memory.dtype, memory.strides), (Dtype.INT32, (1, 2)))
        with self.assertRaises(lockstep.Invalid):
            memory_of(Exporter(values, 2, 32, True, read_only=True))
        with self.assertRaises(lockstep.Unsupported):
            memory_of(Exporter(values, 5, 64, True))
        copy = Exporter(values, 2, 32, True)
        copy.whole.flags = 2  # The producer says that it has copied.
        with self.assertRaises(lockstep.Invalid):
            memory_of(copy)
        self.assertEqual(memory_of(copy, writable=False).count, 6)

    @unittest.skipIf(torch is None, "PyTorch is not installed")
    def test_tensors(self):
        for dtype, name in ((torch.float32, "FLOAT32"), (torch.bfloat16, "BFLOAT16"),
                            (torch.int64, "INT64"), (torch.bool, "BOOL")):
            values = torch.zeros(2, 3, dtype=dtype)
            self.expect(memory_of(values), values.data_ptr(), Dtype[name], (2, 3))
        weight = torch.nn.Parameter(torch.zeros(4, 3))
        self.expect(memory_of(weight), weight.data_ptr(), Dtype.FLOAT32, (4, 3))
        self.assertEqual(memory_of(weight.t()).strides, (1, 3))
        self.assertEqual(memory_of(torch.tensor(1.0)).count, 1)
        for what in (torch.zeros(2, dtype=torch.complex64), torch.zeros(2, device="meta"),
                     torch.eye(3).to_sparse(), torch._neg_view(torch.ones(2))):
            with self.assertRaises(lockstep.Unsupported):
                memory_of(what)

    def test_a_memory_is_an_array_of_numpy(self):
        values = np.arange(6, dtype=np.float32).reshape(2, 3)
        memory = Memory(values.ctypes.data, "float32", (3, 2), (1, 3), values)
        self.assertTrue(np.array_equal(np.asarray(memory), values.T))
        np.asarray(memory)[0, 0] = 7
        self.assertEqual(values[0, 0], 7)

    def test_dtypes_by_name(self):
        for what in (Dtype.FLOAT32, "float32", np.float32, np.dtype("f4"), "torch.float32"):
            self.assertEqual(Memory(0, what).dtype, Dtype.FLOAT32, what)
        self.assertEqual(Memory(0, bool).dtype, Dtype.BOOL)
        with self.assertRaises(lockstep.Unsupported):
            Memory(0, "complex64")
