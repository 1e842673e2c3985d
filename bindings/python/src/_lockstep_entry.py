# SPDX-License-Identifier: Apache-2.0
"""Entry points of the wheel. This module imports nothing of the package, and loads no library."""

import os
import sys
from typing import NoReturn

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
