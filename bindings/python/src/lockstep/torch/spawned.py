# SPDX-License-Identifier: Apache-2.0
"""What `python -m lockstep.torch` replaces, in its process and in processes that it spawns.

multiprocessing sends a spawned process a dictionary of what to prepare before the program's main
module runs there. One more entry makes the new process run this file, by its path. So this file
imports nothing of the package until the program has imported PyTorch.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing.spawn
import runpy
import sys
import types
from typing import Any, Dict, Optional, Sequence, Tuple

_NAME = "lockstep_spawned"  # The name of this file as a module of a spawned process.


def _replace() -> None:
    """DistributedDataParallel becomes that of lockstep wherever a program imports it from."""
    import torch.nn.parallel as package
    import torch.nn.parallel.distributed as home

    from lockstep.torch.ddp import DistributedDataParallel

    home.DistributedDataParallel = DistributedDataParallel  # type: ignore[misc]
    package.DistributedDataParallel = DistributedDataParallel  # type: ignore[misc]


class _Finder(importlib.abc.MetaPathFinder):
    """Replaces the class as soon as the program has imported PyTorch. A process that does not
    import PyTorch is not made to."""

    def find_spec(self, name: str, path: Optional[Sequence[str]],
                  target: Optional[types.ModuleType] = None
                  ) -> Optional[importlib.machinery.ModuleSpec]:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader = spec.loader if spec is not None else None
        if loader is not None:
            execute = loader.exec_module

            def execute_and_replace(module: types.ModuleType) -> None:
                execute(module)
                _replace()

            loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


class _Entry:
    """To unpickle this is to run this file."""

    def __reduce__(self) -> Tuple[Any, Tuple[Any, ...]]:
        return runpy.run_path, (__file__, None, _NAME)


_prepare = multiprocessing.spawn.get_preparation_data


def _prepare_and_replace(name: str) -> Dict[str, Any]:
    return {**_prepare(name), "lockstep": _Entry()}  # Entries of other names are ignored.


def install() -> None:
    """Replaces the class, now or when PyTorch is imported, also in what this process spawns."""
    multiprocessing.spawn.get_preparation_data = _prepare_and_replace
    if "torch" in sys.modules:
        _replace()
    else:
        sys.meta_path.insert(0, _Finder())


if __name__ == _NAME:
    install()
