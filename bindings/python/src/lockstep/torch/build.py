# SPDX-License-Identifier: Apache-2.0
"""Builds the native hooks (hooks.cpp) for the installed PyTorch.

    python -m lockstep.torch.build

A build is a file in a cache folder, named by the version of PyTorch and by its source. It is made
when the first module is wrapped, if there is a compiler. LOCKSTEP_TORCH_HOOKS=python goes without.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from typing import Iterator, List, Optional, Tuple

import torch

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hooks.cpp")
_TIMEOUT_S = 600
_FLAGS = ["-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w"]
_CXX20 = (2, 10)
"""Headers of this PyTorch and later ones need C++20."""


class BuildFailed(Exception):
    """There is no build; the text says why."""


def choice() -> str:
    """ "native", "python", or "auto": native if possible."""
    value = os.environ.get("LOCKSTEP_TORCH_HOOKS", "auto")
    if value not in ("native", "python", "auto"):
        raise BuildFailed(f"LOCKSTEP_TORCH_HOOKS is '{value}', and not native, python or auto")
    return value


def cache_folder() -> str:
    """Where builds are."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "lockstep")


def path() -> str:
    """The file of the build for the installed PyTorch, whether it exists or not."""
    with open(SOURCE, "rb") as file:
        digest = hashlib.sha256(file.read())
    digest.update(" ".join(_FLAGS).encode())
    return os.path.join(cache_folder(), f"hooks-{torch.__version__}-{digest.hexdigest()[:12]}.so")


def compiler() -> Optional[List[str]]:
    """The C++ compiler, or None. CXX in the environment names another."""
    given = os.environ.get("CXX")
    if given:
        return shlex.split(given)
    for name in ("c++", "g++", "clang++"):
        found = shutil.which(name)
        if found:
            return [found]
    return None


def command(cxx: List[str], target: str) -> List[str]:
    """The command that makes a build."""
    root = os.path.dirname(os.path.abspath(torch.__file__))
    include, lib = os.path.join(root, "include"), os.path.join(root, "lib")
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return [*cxx, *_FLAGS, f"-std=c++{20 if version >= _CXX20 else 17}",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", "-o", target,
            SOURCE, "-isystem", include, "-isystem",
            os.path.join(include, "torch", "csrc", "api", "include"), f"-L{lib}", "-ltorch_cpu",
            "-lc10", f"-Wl,-rpath,{lib}"]


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    """One process builds; others wait for it."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "lock"), "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(say: bool = False) -> Tuple[str, bool]:
    """The file of the build, and whether it was made now. Raises BuildFailed."""
    target = path()
    if os.path.exists(target):
        return target, False
    cxx = compiler()
    if cxx is None:
        raise BuildFailed("there is no C++ compiler (c++, g++ or clang++, or CXX)")
    try:
        with _alone(os.path.dirname(target)):
            if os.path.exists(target):
                return target, False
            _compile(cxx, target, say)
    except OSError as error:
        raise BuildFailed(f"{error.filename}: {error.strerror}") from error
    return target, True


def _compile(cxx: List[str], target: str, say: bool) -> None:
    part = f"{target}.{os.getpid()}"
    words = command(cxx, part)
    if say:
        print(shlex.join(words), flush=True)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"the compiler took more than {_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise BuildFailed(f"{words[0]} has failed: {(done.stderr.strip().splitlines() or ['?'])[0]}")
    os.replace(part, target)


def main() -> int:
    try:
        made, new = build(say=True)
    except BuildFailed as error:
        print(f"lockstep.torch.build: {error}", file=sys.stderr)
        return 1
    print(f"{'built' if new else 'there is'} {made}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
