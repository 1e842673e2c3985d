# SPDX-License-Identifier: Apache-2.0
"""Runs a program of PyTorch, unchanged, with DistributedDataParallel of lockstep.

    python -m lockstep.torch train.py ARGUMENTS
    python -m lockstep.torch -m MODULE ARGUMENTS
    torchrun --nproc-per-node 2 -m lockstep.torch train.py ARGUMENTS

The program sees its own sys.argv, __main__ and sys.path, and its tracebacks, as without lockstep.
So do processes that it starts with multiprocessing or torch.multiprocessing.
"""

from __future__ import annotations

import importlib.machinery
import io
import os
import runpy
import sys
import types
import zipfile
from typing import Any, List, Optional, Type

from .spawned import install

_USAGE = "usage: python -m lockstep.torch [-m MODULE | FILE] [ARGUMENTS ...]"


def _hide(own: str) -> None:
    """Tracebacks begin with the frames of the program."""
    hook = sys.excepthook

    def shown(kind: Type[BaseException], error: BaseException,
              trace: Optional[types.TracebackType]) -> Any:
        first = trace
        while first is not None and (first.tb_frame.f_code.co_filename == own
                                     or "runpy" in first.tb_frame.f_code.co_filename
                                     or "importlib" in first.tb_frame.f_code.co_filename):
            first = first.tb_next
        if first is None and not isinstance(error, SyntaxError):
            first = trace
        hook(kind, error.with_traceback(first), first)

    sys.excepthook = shown


def _run_file(path: str) -> None:
    path = os.path.abspath(path)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    vars(module).update(
        __file__=path, __cached__=None, __builtins__=__builtins__,
        __loader__=importlib.machinery.SourceFileLoader("__main__", path))
    exec(code, vars(module))


def main(arguments: List[str]) -> None:
    """Never returns into the caller's __main__: that is the program's from now on."""
    module = arguments[0] == "-m" if arguments else False
    if len(arguments) < (2 if module else 1) or (not module and arguments[0].startswith("-")):
        sys.exit(_USAGE)
    safe = getattr(sys.flags, "safe_path", False)
    install()
    _hide(__file__)
    if module:
        sys.argv = ["-m", *arguments[2:]]
        sys.modules["__main__"] = types.ModuleType("__main__")
        runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
        return
    path = arguments[0]
    sys.argv = list(arguments)
    if os.path.isdir(path) or zipfile.is_zipfile(path):
        if not safe and sys.path:
            del sys.path[0]
        runpy.run_path(path, run_name="__main__")
        return
    if not os.path.exists(path):
        sys.exit(f"{sys.executable}: can't open file {os.path.abspath(path)!r}: there is no such "
                 "file")
    if not safe and sys.path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    _run_file(path)


if __name__ == "__main__":
    main(sys.argv[1:])
