# SPDX-License-Identifier: Apache-2.0
"""Connections of a client that keeps to nothing, and gRPC by hand."""

import select
import socket
import ssl
import struct
import threading
import time

SESSION = "/lockstep.v1.Coordinator/Session"
DATA, HEADERS, RESET, SETTINGS, PING = 0, 1, 3, 4, 6
ACK = 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def connect(port, source="127.0.0.1", timeout=10):
    return socket.create_connection(("127.0.0.1", port), timeout, (source, 0))


def hear(stream, seconds):
    """What comes in so many seconds, or until the other side ends it; and whether it did."""
    parts = []
    deadline = time.monotonic() + seconds
    try:
        while (left := deadline - time.monotonic()) > 0:
            stream.settimeout(left)
            part = stream.recv(65536)
            if not part:
                return b"".join(parts), True
            parts.append(part)
    except (TimeoutError, ssl.SSLWantReadError):
        pass
    except OSError:
        return b"".join(parts), True
    return b"".join(parts), False


def read_all(stream, seconds=7):
    """What came until the other side ended it; it must end within `seconds`."""
    said, over = hear(stream, seconds)
    assert over, f"still open after {seconds} s"
    return said


def ended(streams):
    """How many of these the other side has ended, by now; forgets what came."""
    count = 0
    poll = select.poll()
    by_number = {stream.fileno(): stream for stream in streams}
    for number in by_number:
        poll.register(number, select.POLLIN)
    for number, _ in poll.poll(0):
        try:
            while by_number[number].recv(65536, socket.MSG_DONTWAIT):
                pass
            count += 1
        except BlockingIOError:
            pass
        except OSError:
            count += 1
    return count


def flood(ports, count, address="127.0.0.%d"):
    """`count` connections that say nothing, to these ports in turn. Waits for none of them."""
    streams = []
    for number in range(count):
        stream = socket.socket()
        stream.setblocking(False)
        stream.bind((address % (1 + number % 50), 0))
        stream.connect_ex(("127.0.0.1", ports[number % len(ports)]))
        streams.append(stream)
    return streams


def close(streams):
    for stream in streams:
        stream.close()


# ---- HTTP/2 and protobuf, as little of them as it takes --------------------------------------------


def h2_frame(kind, payload=b"", flags=0, stream=0, says=None):
    """says: the length that it claims to have."""
    length = len(payload) if says is None else says
    return struct.pack(">I", length)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def h2_headers(path, stream=1, more=()):
    pairs = [(":method", "POST"), (":scheme", "https"), (":path", path), (":authority", "127.0.0.1"),
             ("te", "trailers"), ("content-type", "application/grpc"), *more]
    block = b"".join(b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
                     for name, value in pairs)
    return h2_frame(HEADERS, block, 4, stream)


def h2_message(message, stream=1, says=None):
    """says: the length that the message claims to have, in gRPC's own prefix."""
    length = len(message) if says is None else says
    return h2_frame(DATA, b"\0" + struct.pack(">I", length) + message, 0, stream)


def h2_context(victim, certificate):
    context = victim.context(certificate)
    context.set_alpn_protocols(["h2"])
    return context


def h2_connect(victim, certificate, context=None, source="127.0.0.1"):
    """context: made for it already."""
    plain = connect(victim.grpc, source)
    context = context or h2_context(victim, certificate)
    stream = context.wrap_socket(plain, server_hostname="127.0.0.1")
    stream.sendall(PREFACE + h2_frame(SETTINGS))
    return stream


class Pinged:
    """Connections of HTTP/2 on which pings are answered, so that they stand, and nothing else is, while it is open."""

    def __init__(self):
        self.streams = []
        self.open = True
        self.thread = threading.Thread(target=self.answer, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def answer(self):
        while self.open:
            for stream in list(self.streams):
                try:
                    self.answer_one(stream)
                except (ssl.SSLWantReadError, TimeoutError):
                    pass
                except OSError:
                    self.streams.remove(stream)
            time.sleep(1)

    @staticmethod
    def answer_one(stream):
        stream.settimeout(0)
        heard = stream.recv(65536)
        if not heard:
            raise ConnectionError("it was ended")
        begin = heard.find(h2_frame(PING, says=8))
        if begin >= 0:
            stream.sendall(h2_frame(PING, heard[begin + 9:begin + 17], ACK))

    def stop(self):
        """From now on nothing is read."""
        self.open = False
        self.thread.join()

    def __exit__(self, *_):
        self.stop()
        close(self.streams)


def hold_back(port, context, size):
    """A connection whose handshake of TLS is all said but for the client's last `size` bytes."""
    stream = connect(port)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    heard, said = ssl.MemoryBIO(), ssl.MemoryBIO()
    speaker = context.wrap_bio(heard, said, server_hostname="127.0.0.1")
    while True:
        try:
            speaker.do_handshake()
            stream.sendall(said.read()[:-size])
            return stream
        except ssl.SSLWantReadError:
            stream.sendall(said.read())
            if not (part := stream.recv(65536)):
                raise ConnectionError("the handshake was ended") from None
            heard.write(part)


def field(number, value):
    """Of protobuf: bytes or text with their length, a number as a varint (below 2^21)."""
    if isinstance(value, int):
        parts = [value & 127 | 128, value >> 7 & 127 | 128, value >> 14]
        return bytes([number << 3, *parts])
    value = value.encode() if isinstance(value, str) else value
    assert len(value) < 16384
    return bytes([number << 3 | 2, len(value) & 127 | 128, len(value) >> 7]) + value


def hello(job, version, uuid=b"u" * 16, world=3, timeout_ms=5000):
    """The message with which a worker begins (protos/control.proto, Up.hello)."""
    return field(2, field(1, version) + field(2, job) + field(3, uuid) + field(4, "h") +
                 field(5, "stranger") + field(6, "tcp:127.0.0.1:9") + field(7, 1) + field(8, world) +
                 field(9, world) + field(12, timeout_ms) + field(14, "cpu"))


def h2_resets(count):
    """The preface and so many calls that are begun and reset at once, in 28 bytes each: all but the first name
    their headers by HPACK's numbers."""
    names = [(b":authority", b"a"), (b"te", b"trailers"), (b"content-type", b"application/grpc"), (b":path", SESSION.encode())]
    told = b"".join(b"\x40" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in names)
    parts = [PREFACE, h2_frame(SETTINGS)]
    for number in range(count):
        block = b"\x83\x86" + (b"\xbe\xbf\xc0\xc1" if number else told)
        parts += [h2_frame(HEADERS, block, 4, 1 + 2 * number), h2_frame(RESET, bytes(4), 0, 1 + 2 * number)]
    return b"".join(parts)
