# SPDX-License-Identifier: Apache-2.0
"""Lockstep for PyTorch.

    python -m lockstep.torch train.py                             # no line changed
    from lockstep.torch import DistributedDataParallel as DDP     # one line
    dist.init_process_group("lockstep")                           # one word

docs/pytorch.md is the guide.
"""

from .bootstrap import session

__all__ = ["session"]
