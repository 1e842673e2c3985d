# SPDX-License-Identifier: Apache-2.0
"""The cluster's name server: A records of services and pods, over UDP. It knows nothing of outside.

A thread of its own answers; `lookup` is asked for each name, without the last dot, and gives a list
of addresses or None for a name that does not exist.
"""

import socket
import struct
import threading

NO_SUCH_NAME = 3
TYPE_A = 1


def question_of(packet):
    """The name that is asked for, the type, and the bytes of the question."""
    labels, at = [], 12
    while packet[at]:
        labels.append(packet[at + 1:at + 1 + packet[at]].decode("ascii"))
        at += 1 + packet[at]
    return ".".join(labels).lower(), struct.unpack_from("!H", packet, at + 1)[0], packet[12:at + 5]


def answer_to(packet, lookup):
    name, kind, question = question_of(packet)
    addresses = lookup(name)
    code = NO_SUCH_NAME if addresses is None else 0
    records = b""
    count = 0
    if kind == TYPE_A:
        for address in addresses or ():
            records += struct.pack("!HHHIH", 0xC00C, TYPE_A, 1, 1, 4) + socket.inet_aton(address)
            count += 1
    head = packet[:2] + struct.pack("!HHHHH", 0x8580 | code, 1, count, 0, 0)
    return head + question + records


class NameServer:
    def __init__(self, address, lookup):
        self.address = address
        self.lookup = lookup
        self.asked = set()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((address, 53))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            packet, client = self.socket.recvfrom(4096)
            try:
                self.asked.add(question_of(packet)[0])
                self.socket.sendto(answer_to(packet, self.lookup), client)
            except (IndexError, struct.error, UnicodeDecodeError):
                pass  # Not a question.
