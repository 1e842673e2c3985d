# SPDX-License-Identifier: Apache-2.0
"""Lockstep keeps the copies of a model equal while several processes train it.

    import lockstep
    import numpy as np

    w, gradient = np.zeros(1, np.float32), np.zeros(1, np.float32)
    with lockstep.Session() as session:
        line = session.register("line", [lockstep.Parameter("w", w, gradient)])
        session.start()
        for x in range(10):
            with session.step() as step, step.call(line) as call:
                gradient[:] = (w * x - 2 * x) * x
                call.ready("w")
            w -= 0.1 * gradient  # The mean over all ranks.

docs/python.md is the guide; lockstep.h is the manual.
"""

from ._library import bin_path, include_path, lib, library_path
from ._native import (ANY_SOURCE, PARAMETER_FROZEN, PARAMETER_SHARED, AbortPolicy,
                      BufferPolicy, CollectiveKind, Dtype, GradientKind, LogLevel, MetricKind, OnFailure, Op,
                      Order, Report, Status, StepView, Sum, TransportKind, Uneven, Unplanned,
                      UnusedPolicy, Wire, WorldChange)
from ._native import VERSION as __version__
from .arrays import Memory, memory_of
from .collectives import (Collective, Group, Work, all_gather, all_to_all, allreduce, barrier,
                          broadcast, gather, receive, reduce, reduce_scatter, scatter, send)
from .errors import (BadConfig, Changed, Closed, Forked, Invalid, LibraryMismatch, LockstepError,
                     Mismatch, PeerLost, SystemFailure, Timeout, Unreachable, Unsupported, Unused)
from .module import Buffer, Module, Parameter
from .session import Session
from .step import Call, Step

__all__ = [
    "ANY_SOURCE", "PARAMETER_FROZEN", "PARAMETER_SHARED", "AbortPolicy", "BadConfig", "Buffer",
    "BufferPolicy", "Call", "Changed", "Closed", "Collective", "CollectiveKind", "Dtype", "Forked",
    "GradientKind", "Group",
    "Invalid", "LibraryMismatch", "LockstepError", "LogLevel", "Memory", "MetricKind", "Mismatch",
    "Module", "OnFailure", "Op", "Order", "Parameter", "PeerLost", "Report", "Session", "Status",
    "Step", "StepView", "Sum", "SystemFailure", "Timeout", "TransportKind", "Uneven", "Unplanned",
    "Unreachable", "Unsupported", "Unused", "UnusedPolicy", "Wire", "Work", "WorldChange",
    "__version__",
    "all_gather", "all_to_all", "allreduce", "barrier", "bin_path", "broadcast", "gather",
    "include_path", "lib", "library_path", "memory_of", "receive", "reduce", "reduce_scatter",
    "scatter", "send",
]
