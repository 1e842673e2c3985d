# SPDX-License-Identifier: Apache-2.0
"""Lockstep for PyTorch.

    python -m lockstep.torch train.py                             # no line changed
    from lockstep.torch import DistributedDataParallel as DDP     # one line
    dist.init_process_group("lockstep")                           # one word

docs/pytorch.md is the guide.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from _lockstep_entry import torch_backend

from .bootstrap import close, session

if TYPE_CHECKING:
    from .ddp import DistributedDataParallel
    from .functions import report, sync

__all__ = ["DistributedDataParallel", "close", "report", "session", "sync"]

# Imported when they are wanted: `import torch` may import this package.
_HOME = {"DistributedDataParallel": "ddp", "report": "functions", "sync": "functions"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


torch_backend()  # In a checkout no entry point of a wheel has made the backend known.
