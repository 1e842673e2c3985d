# SPDX-License-Identifier: Apache-2.0
"""Builds the native parts (hooks.cpp and backend.cpp) for the installed PyTorch.

    python -m lockstep.torch.build

A build is a file in a cache folder, named by the version of PyTorch and by its source. It is made
when it is needed first, if there is a compiler: hooks when the first module is wrapped, the backend
in init_process_group("lockstep"). LOCKSTEP_TORCH_HOOKS=python and LOCKSTEP_TORCH_BACKEND=python go
without.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import importlib.util
import logging
import os
import runpy
import shlex
import shutil
import subprocess
import sys
from typing import Any, Iterator, List, Optional, Tuple

# `lockstep doctor` runs this file alone, so nothing at the top may import PyTorch or the package.

log = logging.getLogger("lockstep.torch")
PARTS = ("hooks", "backend")
_HERE = os.path.dirname(os.path.abspath(__file__))
_TIMEOUT_S = 600
_TRY_S = 10
_FLAGS = ["-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w"]
_CXX20 = (2, 10)
"""Headers of this PyTorch and later ones need C++20."""
_OLDEST = {"hooks": (2, 0), "backend": (2, 10)}
"""The first PyTorch whose headers have what a part needs."""


class BuildFailed(Exception):
    """There is no build; the text says why."""


def choice(part: str = "hooks") -> str:
    """ "native", "python", or "auto": native if possible."""
    name = "LOCKSTEP_TORCH_" + part.upper()
    value = os.environ.get(name) or "auto"
    if value not in ("native", "python", "auto"):
        raise BuildFailed(f"{name} is '{value}', and not native, python or auto")
    return value


def cache_folder() -> str:
    """Where builds are."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "lockstep")


def torch_folder() -> str:
    """Where the installed PyTorch is, which need not be imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildFailed("PyTorch is not installed")
    return os.path.dirname(os.path.abspath(spec.origin))


def torch_version() -> str:
    """torch.__version__ of the installed PyTorch."""
    return str(runpy.run_path(os.path.join(torch_folder(), "version.py"))["__version__"])


def _source(part: str) -> str:
    return os.path.join(_HERE, part + ".cpp")


def _include() -> str:
    """The folder of lockstep/lockstep.h."""
    from lockstep._library import include_path

    return include_path()


def path(part: str = "hooks") -> str:
    """The file of the build for the installed PyTorch, whether it exists or not."""
    files = [_source(part)]
    if part == "backend":
        files += [os.path.join(_HERE, f"backend_{name}.h")
                  for name in ("calls", "jobs", "library", "threads")]
        files.append(os.path.join(_include(), "lockstep", "lockstep.h"))
    digest = hashlib.sha256()
    for name in files:
        with open(name, "rb") as file:
            digest.update(file.read())
    digest.update(" ".join(_FLAGS).encode())
    return os.path.join(cache_folder(), f"{part}-{torch_version()}-{digest.hexdigest()[:12]}.so")


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


def _major_minor() -> Tuple[int, ...]:
    return tuple(int(part) for part in torch_version().split(".")[:2])


def standard() -> str:
    """The C++ that the headers of PyTorch need."""
    return f"c++{20 if _major_minor() >= _CXX20 else 17}"


def command(cxx: List[str], part: str, target: str) -> List[str]:
    """The command that makes a build."""
    import torch

    root = torch_folder()
    include, lib = os.path.join(root, "include"), os.path.join(root, "lib")
    return [*cxx, *_FLAGS, f"-std={standard()}",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", "-o", target,
            _source(part), "-I", _include(), "-isystem", include, "-isystem",
            os.path.join(include, "torch", "csrc", "api", "include"), f"-L{lib}", "-ltorch_cpu",
            "-lc10", f"-Wl,-rpath,{lib}"]


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    """One process builds; others wait for it."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "lock"), "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(part: str = "hooks", say: bool = False) -> Tuple[str, bool]:
    """The file of the build, and whether it was made now. Raises BuildFailed."""
    target = path(part)
    if os.path.exists(target):
        return target, False
    oldest = _OLDEST[part]
    if _major_minor() < oldest:
        raise BuildFailed(f"the native {part} needs PyTorch {oldest[0]}.{oldest[1]} or later, and "
                          f"{torch_version()} is installed")
    cxx = compiler()
    if cxx is None:
        raise BuildFailed("there is no C++ compiler (c++, g++ or clang++, or CXX)")
    try:
        with _alone(os.path.dirname(target)):
            if os.path.exists(target):
                return target, False
            _compile(cxx, part, target, say)
    except OSError as error:
        raise BuildFailed(f"{error.filename}: {error.strerror}") from error
    return target, True


def _compile(cxx: List[str], part: str, target: str, say: bool) -> None:
    new = f"{target}.{os.getpid()}"
    words = command(cxx, part, new)
    if say:
        print(shlex.join(words), flush=True)
    else:
        log.warning("lockstep: compiling the native %s for PyTorch %s, once: about a minute", part,
                    torch_version())
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"the compiler took more than {_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise BuildFailed(f"{words[0]} has failed: {(done.stderr.strip().splitlines() or ['?'])[0]}")
    os.replace(new, target)


def load(part: str, file: str) -> Any:
    """A build. Its operators are in torch.ops from now on. Raises BuildFailed."""
    import torch

    torch.ops.load_library(file)
    library = ctypes.CDLL(file)
    version = getattr(library, f"lockstep_{part}_torch")
    version.restype = ctypes.c_char_p
    built = version().decode()
    if built != torch.__version__.split("+")[0]:
        raise BuildFailed(f"{file} was built for PyTorch {built}, and PyTorch {torch.__version__} is "
                          "installed: delete the file")
    return library


# --- lockstep doctor -----------------------------------------------------------------------------


def _refusal(cxx: List[str]) -> Optional[str]:
    """Why the compiler cannot compile for PyTorch, or None."""
    try:
        done = subprocess.run([*cxx, f"-std={standard()}", "-fsyntax-only", "-x", "c++", "-"],
                              input="#include <string>\n", capture_output=True, text=True,
                              timeout=_TRY_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {_TRY_S} s"
    except OSError as error:
        return error.strerror
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[0]


def _writable(folder: str) -> bool:
    """True if the folder can be written, or made."""
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


def _problem(where: str) -> Optional[str]:
    """Why there can be no build, and what to do."""
    cxx = compiler()
    if cxx is None:
        return ("there is no C++ compiler (c++, g++ or clang++, or CXX): install one, for example "
                f"with apt-get install g++, and then run {where}")
    refusal = _refusal(cxx)
    if refusal is not None:
        return (f"{shlex.join(cxx)} cannot compile {standard()} ({refusal}): name another compiler "
                f"with CXX, and then run {where}")
    if not _writable(cache_folder()):
        return (f"{cache_folder()} cannot be written: set XDG_CACHE_HOME to a folder that can, and "
                f"then run {where}")
    return None


def diagnosis() -> Tuple[str, str, str]:
    """A finding of `lockstep doctor` about native hooks: status, value, and meaning."""
    python = sys.executable
    what = f"PyTorch {torch_version()} of {python}"
    try:
        chosen = choice()
    except BuildFailed as error:
        return "missing", "none", str(error)
    if chosen == "python":
        return "ok", "python", (f"LOCKSTEP_TORCH_HOOKS is python: hooks of Python report the "
                                f"gradients of {what}, more slowly than native ones")
    if os.path.exists(path()):
        return "ok", "built", f"native hooks report the gradients of {what}: {path()}"
    where = f"{python} -m lockstep.torch.build"
    problem = _problem(where)
    if problem is None:
        return "ok", "possible", (
            f"{shlex.join(compiler() or [])} compiles native hooks for {what} when the first module "
            f"is wrapped, which takes about a minute, or before that with {where}; the build goes "
            f"into {cache_folder()}")
    if chosen == "native":
        return "missing", "none", f"LOCKSTEP_TORCH_HOOKS is native, and {problem}"
    return "warning", "python", (f"hooks of Python report the gradients of {what}, more slowly than "
                                 f"native ones, because {problem}")


def answer_doctor() -> None:
    """Prints the diagnosis in three lines."""
    for part in diagnosis():
        print(" ".join(part.split()))


def main() -> int:
    for part in PARTS:
        try:
            made, new = build(part, say=True)
        except BuildFailed as error:
            print(f"lockstep.torch.build: {error}", file=sys.stderr)
            return 1
        print(f"{'built' if new else 'there is'} {made}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
