# SPDX-License-Identifier: Apache-2.0
"""Entry points of the wheel. This module imports nothing of the package, and loads no library."""

import os
import sys
from typing import Any, NoReturn

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run(name: str) -> NoReturn:
    path = os.path.join(_HERE, "lockstep", "bin", name)
    if not os.path.exists(path):  # A checkout.
        path = os.path.normpath(os.path.join(_HERE, "..", "..", "..", "build", "bin", name))
    try:
        os.execv(path, [name] + sys.argv[1:])
    except OSError as error:
        sys.exit(f"{name}: {path}: {error.strerror}")


def lockstep() -> NoReturn:
    """The program `lockstep` of the package."""
    _run("lockstep")


def coordinator() -> NoReturn:
    """The program `lockstep-coordinator` of the package."""
    _run("lockstep-coordinator")


def _create_group(*arguments: Any) -> Any:
    from lockstep.torch.c10d import create

    return create(*arguments)


def torch_backend(*_: Any) -> None:
    """Makes init_process_group("lockstep") work. PyTorch calls this when it is imported, where an
    exception would break the import."""
    try:
        import torch.distributed as dist

        if "LOCKSTEP" not in dist.Backend._plugins:
            dist.Backend.register_backend(
                "lockstep", _create_group, extended_api=True, devices=["cpu", "cuda"])
    except Exception:
        pass  # This PyTorch has no torch.distributed, or an older one.
