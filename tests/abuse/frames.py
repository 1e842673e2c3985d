# SPDX-License-Identifier: Apache-2.0
"""Frames of the data plane, as a stranger makes them.

Not the library's encoder: that one asserts what a stranger need not keep to (protos/frame.c).
"""

import struct

CHALLENGE_BYTES = 128
HELLO, KINDS = 1, range(1, 14)


def checksum(header):
    """As frame_checksum."""
    value = 2166136261
    for word in struct.unpack("<23I", header[:92]):
        value = ((value ^ word) * 16777619) & 0xFFFFFFFF
        value ^= value >> 15
    return struct.pack("<I", value)


def frame(kind, payload=b"", number=1, incarnation=1, source=1, target=0, says=None, used=0):
    """A frame with the right checksum. says: the bytes of payload that it claims to have."""
    header = struct.pack("<4s4BIIQQQQIIIIQQ12x", b"LKS1", kind, 0, 0, 0,
                         len(payload) if says is None else says, used, number, incarnation, 0, 0,
                         0, target, source, 0, 0, 0)
    return header + checksum(header) + payload
