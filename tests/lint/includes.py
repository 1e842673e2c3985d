#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may include whom: the directions of docs/internals/source.md, and the fences round foreign libraries.

--self-test runs the same check over fixtures/, where exactly the lines marked '// forbidden' must
be reported.
"""

import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')

# For the files of a directory: the project headers they may include, and why not others.
PLAIN_PROTOS = tuple(f"protos/{name}.h" for name in (
    "limits types basic place up down topology tuning job_name redo").split())
DIRECTIONS = {
    "base": (("base/",), "base is below everything"),
    "protos": (("protos/", "base/"), "protos is the contract and sees only base"),
    "coordinator": (
        ("coordinator/", "base/bits.h", "base/text.h", "base/utf8.h") + PLAIN_PROTOS,
        "the coordinator decides and does no I/O: the plain headers of protos/, three of base/, and itself",
    ),
    "server": (("server/", "coordinator/", "protos/", "base/"), "the server does I/O for the core"),
    "worker": (("worker/", "lockstep/", "protos/", "base/"), "the worker never sees the daemon"),
    "include": (("lockstep/",), "the public header stands alone"),
    "cli": (("cli/", "lockstep/", "protos/", "base/"), "the tool links neither daemon nor worker"),
    "examples": (("examples/", "lockstep/"), "examples see the public header only"),
    "bench": (("bench/", "lockstep/"), "benchmarks see the public header only"),
    "bindings": (("bindings/", "lockstep/"), "bindings see the public header only"),
}

# The pure parts: C11 headers without clock, thread or signal.
PURE_DIRECTORIES = ("coordinator",)
PURE_HEADERS = {
    f"{name}.h"
    for name in (
        "assert ctype errno float inttypes iso646 limits stdalign stdarg stdbool stddef stdint"
        " stdio stdlib stdnoreturn string"
    ).split()
}

# Foreign libraries: who may include headers of this pattern. One that begins with < is for those only.
FENCES = (
    (re.compile(r"grpc/"),
     r"(worker/control/(ask|call|channel|credentials|streams)|server/rpc/\w+)\.c|server/rpc/parts\.h",
     "gRPC stays where the streams are, and their credentials"),
    (re.compile(r"(.*\.pb\.h|pb(_\w+)?\.h)$"), r"protos/codec/[^/]+\.c", "nanopb stays in protos/codec/*.c"),
    (re.compile(r"<openssl/"),
     r"(worker/(link/(crypto|tls_channel)|control/probe)|base/tls_(files|context)"
     r"|server/http/(tls|token|guard|tls_limits)|cli/(certs/(make|show)|ask/http_tls))\.c",
     "OpenSSL stays in worker/link/{crypto,tls_channel}.c, where certificates are read and made, and what limits it"),
    (re.compile(r"(event2/|event\.h$|evhttp\.h$|evutil\.h$)"), r"server/http/\w+\.c",
     "libevent stays in server/http/*.c"),
    (re.compile(r"<(.*/)?(cuda|cudart|nccl|curand|cublas|cooperative_groups)\w*\.h$"),
     r"(worker/device|examples)/\w+\.cuh?",
     "NVIDIA's headers are for *.cu only: worker/device/cuda.h and worker/device/nccl.h declare what is used"),
    (re.compile(r"<dlfcn\.h$"), ("worker/support/foreign.c", "worker/stacks/python.c", "bench/peers/cubic.c"),
     "libraries are loaded in worker/support/foreign.c"),
)


def may_pass_fence(path, allowed):
    return path in allowed if isinstance(allowed, tuple) else re.fullmatch(allowed, path)


def fault(path, quote, header):
    """Why a file may not include a header, or None."""
    top = path.split("/")[0]
    if top not in DIRECTIONS:
        return None
    for pattern, allowed, reason in FENCES:
        if any(map(pattern.match, (header, os.path.basename(header), quote + header))):
            return None if may_pass_fence(path, allowed) else reason
    plain = path in PLAIN_PROTOS
    if quote == "<":
        if (plain or top in PURE_DIRECTORIES) and header not in PURE_HEADERS:
            return "only C11 headers without clock, thread or signal belong here"
        if "/" in header and header.split("/")[0] in DIRECTIONS:
            return 'project headers are written with "quotes"'
        return None
    if top == "bindings" and "/" not in header:
        return None  # The package's files lie side by side wherever it is installed.
    if "/" not in header or header.startswith((".", "/")):
        return 'write the path from the root: "base/log.h"'
    if plain:
        return None if header in PLAIN_PROTOS else "the plain headers of protos/ stand alone"
    allowed, reason = DIRECTIONS[top]
    return None if header.startswith(allowed) else reason


def scan(root):
    """Yields (path, line number, message) for every forbidden include below root."""
    for top in sorted(DIRECTIONS):
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in sorted(names):
                if not name.endswith((".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".cuh")):
                    continue
                full = os.path.join(folder, name)
                path = os.path.relpath(full, root)
                with open(full, encoding="utf-8") as file:
                    for number, line in enumerate(file, 1):
                        match = INCLUDE.match(line)
                        why = match and fault(path, *match.groups())
                        if why:
                            yield path, number, f"must not include {match.group(2)}: {why}"


def marked(root):
    """The (path, line number) of every line marked as forbidden below root."""
    for folder, _, names in os.walk(root):
        for name in names:
            full = os.path.join(folder, name)
            with open(full, encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    if line.rstrip().endswith("// forbidden"):
                        yield os.path.relpath(full, root), number


def self_test():
    root = os.path.join(HERE, "fixtures")
    found = {(path, number) for path, number, _ in scan(root)}
    wanted = set(marked(root))
    for path, number in sorted(wanted - found):
        print(f"fixtures/{path}:{number}: should have been reported")
    for path, number in sorted(found - wanted):
        print(f"fixtures/{path}:{number}: should not have been reported")
    if not wanted:
        print("fixtures/: nothing is marked '// forbidden'")
    return 1 if found != wanted or not wanted else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    found = [f"{path}:{number}: {message}" for path, number, message in scan(ROOT)]
    if found:
        print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
