# SPDX-License-Identifier: Apache-2.0
"""Frames of the data plane, as a stranger makes them, and those that he records on the wire.

Not the library's encoder: that one asserts what a stranger need not keep to (protos/frame.c).
"""

import socket
import struct
import threading

HEADER_BYTES = 96
CHALLENGE_BYTES = 128
HELLO_BYTES = 160
HELLO, KINDS = 1, range(1, 14)
ETH_P_ALL = 3


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


def generation_of(hello):
    return struct.unpack_from("<QQ", hello, 16)


def sender_of(hello):
    return struct.unpack_from("<I", hello, 56)[0]


class Hellos:
    """Records the hellos that pass on loopback while it is open: found has (port, bytes). Empty
    without the right to listen there."""

    def __enter__(self):
        self.found = []
        try:
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
            self.socket.bind(("lo", ETH_P_ALL))
        except (PermissionError, OSError):
            self.socket = None
            return self
        self.socket.settimeout(0.2)
        self.open = True
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()
        return self

    def listen(self):
        while self.open:
            try:
                packet = self.socket.recv(65536)
            except TimeoutError:
                continue
            if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
                continue
            tcp = packet[(packet[0] & 15) * 4:]
            payload = tcp[(tcp[12] >> 4) * 4:]
            port = struct.unpack_from(">H", tcp, 2)[0]
            if payload[:5] == b"LKS1\x01" and (port, payload[:HELLO_BYTES]) not in self.found:
                self.found.append((port, payload[:HELLO_BYTES]))

    def __exit__(self, *_):
        if self.socket:
            self.open = False
            self.thread.join()
            self.socket.close()
