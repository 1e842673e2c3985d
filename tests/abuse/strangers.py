# SPDX-License-Identifier: Apache-2.0
"""Who has no certificate, a wrong one, no token, or no proof: they learn nothing and join nothing."""

import re
import ssl
import subprocess
import time

import frames
import sockets


def learns_nothing(victim, said, who):
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    for secret in victim.secrets:
        assert secret not in text, f"{who} has learned {secret}"


def protocol_version():
    with open("protos/limits.h", encoding="utf-8") as file:
        return int(re.search(r"PROTOCOL_VERSION (\d+)", file.read()).group(1))


def rpc(victim, certificate, *said, seconds=0.7):
    """What a client with this certificate is answered; None: it never got so far."""
    try:
        with sockets.h2_connect(victim, certificate) as stream:
            stream.sendall(b"".join(said))
            return sockets.hear(stream, seconds)[0]
    except (ssl.SSLError, ConnectionError):
        return None


def without_certificate(victim):
    """In plaintext, with none, with one that nobody has signed, with one of another authority."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                    "-nodes", "-subj", "/CN=self", "-addext", "subjectAltName=URI:lockstep://job/*/worker",
                    "-keyout", f"{victim.folder}/tls.key", "-out", f"{victim.folder}/tls.crt"],
                   check=True, stderr=subprocess.DEVNULL)
    said = [sockets.h2_headers(sockets.SESSION),
            sockets.h2_message(sockets.hello(victim.job, protocol_version()))]
    certificates = [None, victim.folder, f"{victim.folder}/rogue/worker"]
    for certificate in certificates:
        answer = rpc(victim, certificate, *said)
        assert not answer, f"{certificate} got {len(answer)} bytes"
    with sockets.connect(victim.grpc) as stream:
        stream.sendall(sockets.PREFACE + sockets.h2_frame(sockets.SETTINGS) + b"".join(said))
        answer = sockets.read_all(stream)
    learns_nothing(victim, answer, "a client in plaintext")
    assert victim.no_alarm()["joined"] == 3
    return f"{len(certificates) + 1} clients heard nothing"


def wrong_certificate(victim):
    """An observer's, and a worker's of another job: one sentence, whether there is such a job or not."""
    answers = []
    for certificate in ("observer", "other"):
        for job in (victim.job, "no-such-job"):
            answer = rpc(victim, f"{victim.pki}/{certificate}", sockets.h2_headers(sockets.SESSION),
                         sockets.h2_message(sockets.hello(job, protocol_version())))
            assert answer and b"this certificate does not allow" in answer, (certificate, job, answer)
            learns_nothing(victim, answer, f"{certificate} who asked for {job}")
            answers.append(re.search(rb"this certificate [ -~]*", answer).group())
    assert len(set(answers)) == 1, "the answers differ"
    assert victim.no_alarm()["joined"] == 3
    return f"{len(answers)} hellos, all answered with PERMISSION_DENIED and one sentence"


def without_token(victim):
    """Every path that knows a job, without a token and with a wrong one."""
    job = f"/api/v1/jobs/{victim.job}"
    paths = ["/api/v1/jobs", job, f"{job}/state", f"{job}/events", f"{job}/stalls", f"{job}/timeline",
             f"{job}/ranks/0/stack", f"{job}/ranks/0/stack?fresh=1", "/api/v1/stalls", "/events",
             "/timeline", "/ranks/0/stack"]
    for path in paths:
        for token in (None, "0" * 64, victim.token[:-1]):
            answer = victim.get(path, token)
            assert answer.startswith("HTTP/1.1 401"), f"{path}: {answer[:80]}"
            learns_nothing(victim, answer, f"GET {path}")
    for path in ("/", "/metrics", "/healthz", "/readyz", f"/{victim.job}"):
        learns_nothing(victim, victim.get(path).replace(f"/{victim.job}", ""), f"GET {path}")
    for path, what in ((job, victim.job), (f"{job}/ranks/0/stack?fresh=1", "\"threads\""),
                       ("/metrics", victim.job)):
        assert what in victim.get(path, victim.token), f"with the token {path} does not say {what}"
    return f"{len(paths)} paths, 401 each; with the token they name the job, and one has its threads"


def refused(port, said, what):
    """One stranger of the data plane: a challenge, and then the end."""
    with sockets.connect(port) as stream:
        try:
            stream.sendall(said)
        except ConnectionError:
            pass  # It has hung up already.
        heard, over = sockets.hear(stream, 7)
    assert over, f"{what} is still open after 7 s"
    assert len(heard) in (0, frames.CHALLENGE_BYTES), f"{what} heard {len(heard)} bytes"


def impossible_frames(victim):
    """First frames of each kind, too long, with lying lengths, torn, damaged."""
    whole = frames.frame(frames.HELLO, bytes(64))
    said = {f"kind {kind}": frames.frame(kind, b"g" * 65536) for kind in (0, *frames.KINDS, 14, 255)}
    for says in (0, 1, 63, 65, 1024, 1 << 20, (1 << 20) + 1, 0x7FFFFFFF, 0xFFFFFFFF):
        said[f"a hello that says {says} bytes"] = frames.frame(frames.HELLO, bytes(64), says=says)
    said["used bits in a hello"] = frames.frame(frames.HELLO, bytes(64), used=4096)
    said["a gradient of 1 MiB"] = frames.frame(3, bytes(1 << 20))
    said["more than a hello"] = whole + b"x"
    said["a damaged hello"] = whole[:20] + b"\xff" + whole[21:]
    for what, bytes_ in said.items():
        for port in victim.data:
            refused(port, bytes_, what)
    for end in range(0, len(whole), 7):
        with sockets.connect(victim.data[0]) as stream:
            stream.sendall(whole[:end])
    return f"{len(said)} frames to a rank that waits, {len(range(0, len(whole), 7))} torn ones: closed, nothing said"


def training_ports(victim):
    """Ranks that train hear a stranger's hello, answer with a challenge, and hang up."""
    knocked = 0
    begun = time.monotonic()
    while time.monotonic() - begun < 2:
        for port in victim.training:
            refused(port, frames.frame(frames.HELLO, bytes(64)), f"a stranger at port {port}")
            knocked += 1
        time.sleep(0.01)
    return f"{knocked} hellos to {len(victim.training)} ranks that train, all refused"
