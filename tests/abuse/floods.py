# SPDX-License-Identifier: Apache-2.0
"""Too much, too slow, or never read. What is held here is what the daemon and the ranks may not."""

import os
import random
import resource
import socket
import tempfile
import time

import frames
import sockets
import strangers
import victim as victims

UNPROVEN = 64  # LOCKSTEP_MAX_UNPROVEN
LORIS_S = 13  # Above each time that a connection may take: 5 s, 10 s, 5 s.
MANY = 10000
OTHERS = 300
CALLS = 15000  # At once on a connection, without their messages, and without heed of what the coordinator allows.
HELLO_OPENSSL, HELLO_HERE = 131000, 21800  # The longest hellos that are read; TLS_MESSAGE_BYTES of server/http/tls_limits.h.
CHAIN_BYTES, HELD_BACK = 15000, 1000
RECORD = b"\x16\x03\x01\x40\x00"
DESCRIPTORS = 2688 + 8  # DESCRIPTORS of server/main.c, RPC_NEWCOMERS, and streams: of the job and of newcomers.
CERTIFICATES_S = 4  # How long clients come that hold back their certificates: they are cut after 5 s.
MEMBERS, AT_ONCE = 600, 10  # Connections with a worker's certificate.
GONE_S = 60
MEMBERS_MIB = 160  # Memory that all of them may cost, with the coordinator itself.
WORLD = 1024  # LOCKSTEP_MAX_WORLD
RESETS, RESETTERS, RESET_S = 1310720, 16, 5  # 35 MB of calls; connections at a time that say a sixteenth each, for so long.
PLAIN_MIB = 192  # A coordinator in plaintext, with its job.
ANSWERS = 10500  # gRPC hears no more of a connection while 10,000 answers of its own wait.
OWN_DESCRIPTORS = 40  # Descriptors of a process whose limit is lowered.


def garbage(victim):
    """Random bytes, half of them behind what the port expects first."""
    draw = random.Random(1)
    count = 0
    for number in range(200):
        for port in victim.ports:
            begin = [b"", sockets.PREFACE, b"GET / HTTP/1.1\r\n", b"LKS1\x01", b"\x16\x03\x01"][number % 5]
            with sockets.connect(port) as stream:
                try:
                    stream.sendall(begin + draw.randbytes(draw.randrange(1, 4096)))
                except ConnectionError:
                    pass
            count += 1
    return f"{count} connections"


def slow_loris(victim):
    """A byte now and then, on every port, before and behind the handshake of HTTPS."""
    said = {victim.grpc: b"\x16\x03\x01\x02\x00" + b"a" * 200, victim.http: b"\x16\x03\x01\x02\x00" + b"a" * 200}
    streams = {port: [sockets.connect(port, f"127.0.0.{2 + i}") for i in range(40)] for port in victim.ports}
    polite = [victim.https(f"127.0.1.{1 + i}") for i in range(20)]
    done = dict.fromkeys(victim.ports, 0)
    begun = time.monotonic()
    longest = {}
    while time.monotonic() - begun < LORIS_S:
        at = int((time.monotonic() - begun) / 0.5)
        for port, own in streams.items():
            text = said.get(port) or frames.frame(frames.HELLO, bytes(64))
            for stream in own:
                drip(stream, text[at:at + 1])
            done[port] = sockets.ended(own)
            if done[port] == len(own):
                longest.setdefault(port, time.monotonic() - begun)
        for stream in polite:
            drip(stream, (b"GET / HTTP/1.1\r\n" + b"a" * 200)[at:at + 1])
        time.sleep(0.5)
    assert len(longest) == len(victim.ports), f"not all were cut: {done}"
    for stream in polite:
        with stream:
            sockets.read_all(stream, 2)
    for own in streams.values():
        sockets.close(own)
    times = "/".join(f"{longest[port]:.0f}" for port in victim.ports)
    return f"{sum(map(len, streams.values())) + len(polite)} connections; all cut, after {times} s (gRPC, HTTP, ranks)"


def drip(stream, byte):
    try:
        stream.send(byte)
    except OSError:
        pass  # It was cut.


def half_open(victim):
    """Connections that never say anything, to all ports; a rank holds so many of them and no more."""
    own = victims.descriptors(victim.waiting.pid)
    streams = sockets.flood(victim.ports, 2500)
    time.sleep(0.5)
    held = victims.descriptors(victim.waiting.pid) - own
    assert held <= UNPROVEN + 1, f"a rank holds {held} strangers"
    took = victim.newcomer()
    sockets.close(streams)
    return f"{len(streams)} connections; a rank held {held}; a newcomer needed {1000 * took:.0f} ms"


def long_hello(size):
    """A hello of TLS that claims so many bytes, in records, of which the last is torn."""
    first = RECORD + b"\x01" + size.to_bytes(3, "big") + b"\x03\x03" + bytes(16378)
    return [first, *[RECORD + bytes(16384)] * ((size - 1) // 16384 - 1), RECORD + bytes(16000)]


def ten_thousand(victim):
    """At once, to the coordinator, silent; as many as it holds, with the longest hellos that OpenSSL reads
    and then with the longest that it is let read, which never end; and 10,000 to a rank."""
    ended = {}
    for count, size in ((MANY, 0), (DESCRIPTORS - OTHERS, HELLO_OPENSSL), (DESCRIPTORS - OTHERS, HELLO_HERE)):
        streams = sockets.flood([victim.grpc], count)
        begun = time.monotonic()
        for record in long_hello(size) if size else []:
            for stream in streams:
                drip(stream, record)
            time.sleep(0.3)  # So that it is taken.
        ended[size] = sockets.ended(streams)
        time.sleep(max(0, 8 - (time.monotonic() - begun)))
        sockets.close(streams)
    assert DESCRIPTORS / 2 < victim.held <= DESCRIPTORS, f"the coordinator held {victim.held} descriptors"
    assert ended[HELLO_OPENSSL] > DESCRIPTORS / 2, f"{ended[HELLO_OPENSSL]} connections with hellos that are too long were ended"
    took = victim.newcomer()
    rank = sockets.flood(victim.data[:1], MANY)
    time.sleep(0.5)
    own = victims.descriptors(victim.waiting.pid)
    sockets.close(rank)
    return (f"and twice {DESCRIPTORS - OTHERS} long hellos, the coordinator held {victim.held}; a newcomer needed {1000 * took:.0f} ms after them; "
            f"the rank held {own}")


def foreign_chain(victim, size):
    """A certificate of another authority with about so many bytes of others behind it, in PEM."""
    path, rogue = f"{victim.folder}/chain.crt", f"{victim.folder}/rogue"
    with open(f"{rogue}/ca.crt", encoding="utf-8") as other, open(f"{rogue}/worker/tls.crt", encoding="utf-8") as own:
        pem = other.read()
        text = own.read() + pem * (size * 4 // 3 // len(pem))
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path, f"{rogue}/worker/tls.key"


def long_certificates(victim):
    """Handshakes up to their last message but two: certificates that are long, foreign, and never all there."""
    context = victim.context()
    context.load_cert_chain(*foreign_chain(victim, CHAIN_BYTES))
    streams, begun = [], time.monotonic()
    while time.monotonic() - begun < CERTIFICATES_S:
        streams.append(sockets.hold_back(victim.grpc, context, HELD_BACK))
    time.sleep(1)
    took = victim.newcomer()
    sockets.close(streams)
    return f"{len(streams)} clients; a newcomer needed {1000 * took:.0f} ms"


def never_reads(victim):
    """Asks and asks, and reads no answer: HTTPS, its events, and gRPC with an observer's certificate."""
    ask = f"GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {victim.token}\r\n\r\n".encode()
    events = ask.replace(b"/metrics", b"/events")
    streams = [victim.https(f"127.0.0.{2 + i}", 1) for i in range(40)]
    for number, stream in enumerate(streams):
        say(stream, events if number % 2 else ask * 2000)
    observer = f"{victim.pki}/observer"
    said = [sockets.h2_frame(sockets.SETTINGS) * 20000, sockets.h2_frame(sockets.PING, bytes(8)) * 20000,
            b"".join(sockets.h2_headers("/grpc.health.v1.Health/Watch", i) for i in range(1, 2 * CALLS, 2)),
            b"".join(sockets.h2_headers(sockets.SESSION, i) +
                     sockets.h2_frame(sockets.RESET, bytes(4), 0, i) for i in range(1, 8001, 2))]
    for text in said * 4:
        streams.append(sockets.h2_connect(victim, observer))
        streams[-1].settimeout(1)
        say(streams[-1], text)
    time.sleep(2)
    took = victim.newcomer()
    sockets.close(streams)
    return f"{len(streams)} clients; a newcomer needed {1000 * took:.0f} ms"


def members(victim):
    """Certificates of workers, against a coordinator and a job of their own, where less memory is allowed than these
    connections may cost: half of them have joined, all say much that has to be answered, and read nothing."""
    folder = f"{victim.folder}/members"
    os.mkdir(folder)
    own = victims.Victim(folder, f"--memory-mib={MEMBERS_MIB}")
    try:
        own.start()
        said = come_and_never_read(own)
        own.no_alarm()
        own.end()
        assert own.daemon_mib < MEMBERS_MIB, f"that coordinator took {own.daemon_mib:.0f} MiB"
    finally:
        own.kill()
    return f"{own.daemon_mib:.0f} MiB of {MEMBERS_MIB}; {said}"


def come_and_never_read(victim):
    certificate = f"{victim.pki}/other"
    settings = sockets.h2_frame(sockets.SETTINGS) * ANSWERS
    context = sockets.h2_context(victim, certificate)
    version = strangers.protocol_version()
    idle = victim.metric("memory_bytes")  # The room of the core is in it.
    with sockets.Pinged() as pinged:
        for number in range(MEMBERS):
            stream = sockets.h2_connect(victim, certificate, context)
            if number % 2:
                said = sockets.hello("other", version, number.to_bytes(16, "big"), WORLD, 600000)
                stream.sendall(sockets.h2_headers(sockets.SESSION) + sockets.h2_message(said))
            pinged.streams.append(stream)
        joined = victim.metric("streams") - victims.RANKS
        pinged.stop()
        for number, stream in enumerate(pinged.streams):
            stream.settimeout(1)
            say(stream, settings)
            if number % AT_ONCE == 0:
                victim.metric("streams")  # It has heard these. Processor time is not what is looked at.
        ended = victim.metric("budget_ended_total")
        assert ended > 0, "nothing was ended: they cost less than is allowed, and nothing was seen"
    begun = time.monotonic()  # While they last a newcomer may be ended with them.
    while victim.metric("memory_bytes") > idle + MEMBERS_MIB * (1 << 20) / 4:
        assert time.monotonic() - begun < GONE_S, "the memory of connections that have ended is not given back"
        time.sleep(0.1)
    took = victim.newcomer()
    return f"{MEMBERS} connections, {joined} of them had joined; {ended} were ended; after them a newcomer needed {1000 * took:.0f} ms"


def plaintext(_):
    """Calls that are begun and reset, without certificates: as many as fit into 35 MB on one connection, then less on many,
    against a coordinator and a job of their own."""
    with tempfile.TemporaryDirectory() as folder:
        own = victims.PlainVictim(folder)
        try:
            own.start()
            said = begin_and_reset(own)
            own.no_alarm()
            own.end()
            assert own.daemon_mib < PLAIN_MIB, f"that coordinator took {own.daemon_mib:.0f} MiB"
        finally:
            own.kill()
    return f"{own.daemon_mib:.0f} MiB, a gap of {1000 * own.standstill:.0f} ms; {said}"


def begin_and_reset(victim):
    said = sockets.h2_resets(RESETS)
    with sockets.connect(victim.grpc) as stream:
        stream.settimeout(5)
        say(stream, said)
        assert sockets.hear(stream, 5)[1], "a connection that said 35 MB at once goes on"
    begun, count = time.monotonic(), 1
    while time.monotonic() - begun < RESET_S:
        streams = [sockets.connect(victim.grpc) for _ in range(RESETTERS)]
        for stream in streams:
            stream.settimeout(1)
            say(stream, said[:len(said) // RESETTERS])
        sockets.close(streams)
        count += RESETTERS
    took = victim.newcomer()
    return f"{count} clients; a newcomer needed {1000 * took:.0f} ms"


def say(stream, text):
    try:
        stream.sendall(text)
    except OSError:
        pass  # It does not listen any more, as it should.


def impossible_messages(victim):
    """Frames of HTTP/2 and messages of gRPC that are too long, lie, or end too early."""
    path = sockets.h2_headers(sockets.SESSION)
    pieces = [b"\0\0\0\x84\0" + b"x" * 8000, *[b"x" * 8000] * 4]
    said = {"4 GiB announced": path + sockets.h2_message(b"x" * 9000, says=0xFFFFFFFF),
            "33 KiB": path + b"".join(sockets.h2_frame(0, piece, 0, 1) for piece in pieces),
            "a torn message": path + sockets.h2_message(b"x", says=100),
            "a frame of 16 MiB": sockets.h2_frame(0, b"x" * 60000, 0, 1, says=0xFFFFFF),
            "a frame that lies": path + sockets.h2_frame(0, b"xx", 0, 1, says=9000),
            "metadata of 11 KiB": sockets.h2_headers(sockets.SESSION, 1, [("k", "v" * 120)] * 90),
            "headers without end": sockets.h2_frame(1, b"\0\1a\1b" * 2000, 0, 1) * 40,
            "noise": os.urandom(60000)}
    for what, text in said.items():
        for certificate in ("observer", "other"):
            with sockets.h2_connect(victim, f"{victim.pki}/{certificate}") as stream:
                say(stream, text)
                strangers.learns_nothing(victim, sockets.hear(stream, 0.3)[0], what)
    with victim.https("127.0.0.2") as stream:
        say(stream, b"GET / HTTP/1.1\r\nX: " + b"a" * 100000)
        sockets.hear(stream, 1)
    return f"{2 * len(said) + 1} clients"


def no_descriptors(victim):
    """None is left to the coordinator, then to a rank; and then they are given back."""
    limits = {}
    few = 0
    for pid in (victim.waiting.pid, victim.daemon.pid):
        limits[pid] = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        few = victims.descriptors(pid) + OWN_DESCRIPTORS
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, limits[pid][1]))
    streams = sockets.flood([victim.grpc, victim.http, victim.data[0]], 900)
    time.sleep(2)
    sockets.close(streams)
    assert victim.held >= few - 1, f"{victim.held} of {few} descriptors were taken"
    for pid, limit in limits.items():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
    begun = time.monotonic()
    while "lockstep_coordinator_listening 1" not in ask_again(victim):
        assert time.monotonic() - begun < 20, "the coordinator hears nothing any more"
        time.sleep(0.1)
    victim.newcomer()
    with open(victim.log, encoding="utf-8") as log:
        deaf = "event=listener_deaf" in log.read()
    with sockets.connect(victim.data[0]) as stream:
        challenge = stream.recv(frames.CHALLENGE_BYTES, socket.MSG_WAITALL)
        assert len(challenge) == frames.CHALLENGE_BYTES, "the rank hears nothing any more"
    return (f"{victim.held} descriptors and none left, listener {'was deaf' if deaf else 'not deaf'}; "
            f"a newcomer was served {time.monotonic() - begun:.1f} s after they were back")


def ask_again(victim):
    try:
        return victim.get("/metrics")
    except OSError:
        return ""
