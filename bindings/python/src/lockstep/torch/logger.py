# SPDX-License-Identifier: Apache-2.0
"""What DistributedDataParallel asks of its logger, without the one of C++."""

from __future__ import annotations

import os
import types
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Set

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from .reducer import Reducer

_FIRST, _OTHER = 1 << 20, 4 << 20
_RECORDED = 10
"""The first steps are recorded; after them one in `sample_rate`."""


class Logger:
    """Texts and numbers of _get_ddp_logging_data, with the names that PyTorch has."""

    def __init__(self, ddp: Any, reducer: "Reducer") -> None:
        self._reducer = reducer
        self.sample_rate = 100
        self._passes = 0
        self._sums: Dict[str, int] = {}
        self._recorded = 0
        parameters = reducer.parameters
        bytes_ = sum(p.numel() * p.element_size() for p in parameters)
        mode = dist.get_debug_level().name
        self.strings: Dict[str, str] = {
            "backend_name": dist.get_backend(ddp.process_group),
            "dtypes": ", ".join(sorted({_name_of(p.dtype) for p in parameters})),
            "bucket_sizes": ", ".join(map(str, _buckets(parameters, reducer.member.options))),
            "device_ids": "",
            "torch_distributed_debug": mode,
            "reducer": "lockstep",
        }
        for key, variable in (("master_addr", "MASTER_ADDR"), ("master_port", "MASTER_PORT"),
                              ("torch_distributed_debug", "TORCH_DISTRIBUTED_DEBUG"),
                              ("cuda_visible_devices", "CUDA_VISIBLE_DEVICES"),
                              ("gloo_socket_ifname", "GLOO_SOCKET_IFNAME"),
                              ("gloo_device_transport", "GLOO_DEVICE_TRANSPORT")):
            self.strings[key] = os.environ.get(variable, "N/A")
        self.integers: Dict[str, int] = {
            "world_size": dist.get_world_size(ddp.process_group),
            "rank": dist.get_rank(ddp.process_group),
            "num_parameter_tensors": len(parameters),
            "total_parameter_size_bytes": bytes_,
            "bucket_cap_bytes": ddp.bucket_bytes_cap,
            "find_unused_parameters": int(ddp.find_unused_parameters),
            "gradient_as_bucket_view": int(ddp.gradient_as_bucket_view),
            "has_rebuilt_buckets": 0,
            "unused_parameter_size": 0,
            "iteration": 0,
        }

    def set_construction_data_and_log(self, name: str, ids: Any, output: int, buffers: bool,
                                      sync_bn: bool, static: bool) -> None:
        self.strings["module_name"] = name
        self.strings["device_ids"] = ", ".join(map(str, ids))
        self.integers.update(output_device=output, broadcast_buffers=int(buffers),
                             has_sync_bn=int(sync_bn), static_graph=int(static))

    @torch._disable_dynamo
    def set_runtime_stats_and_log(self) -> None:
        """A forward pass begins. The report of the step before is read when it is wanted."""
        passes, self._passes = self._passes, self._passes + 1
        if passes == 0 or passes > _RECORDED and passes % self.sample_rate:
            return
        times = self._reducer.times()
        self.integers["iteration"] = self._reducer.member.steps
        if not times:
            return
        self._recorded += 1
        for name, value in times.items():
            self.integers[name] = value
            self._sums[name] = self._sums.get(name, 0) + value
            self.integers["avg_" + name] = self._sums[name] // self._recorded
        self._rebuilt()

    def _rebuilt(self) -> None:
        if self.integers["has_rebuilt_buckets"]:
            return
        order = [str(i) for i in self._reducer.member.order]
        self.integers["has_rebuilt_buckets"] = 1
        self.strings["rebuilt_bucket_sizes"] = self.strings["bucket_sizes"]
        self.strings["prev_iteration_grad_ready_order_indices"] = ", ".join(order)
        self.strings["rebuilt_per_bucket_param_indices"] = " ".join(order)

    def set_error_and_log(self, text: str) -> None:
        self.strings["error"] = text
        self.integers["has_error"] = 1

    def _set_comm_hook_name(self, name: str) -> None:
        self.strings["comm_hook"] = name

    def _set_uneven_input_join(self) -> None:
        self.integers["join_uneven_inputs"] = 1

    def _set_static_graph(self) -> None:
        self.integers["static_graph"] = 1

    def _get_ddp_logging_data(self) -> Any:
        return types.SimpleNamespace(strs_map=dict(self.strings), ints_map=dict(self.integers))


def _buckets(parameters: Sequence[torch.Tensor], caps: Dict[str, Any]) -> List[int]:
    """Sizes of buckets before the order of gradients is learned: those of each dtype are filled
    from the last parameter to the first, and one is full when it has reached its cap. The library
    may divide the end of the list otherwise."""
    first, other = caps.get("bucket_first_bytes") or _FIRST, caps.get("bucket_bytes") or _OTHER
    sizes: List[int] = []
    filling: Dict[torch.dtype, int] = {}
    begun: Set[torch.dtype] = set()
    for p in reversed(parameters):
        if p.dtype not in filling:
            filling[p.dtype] = len(sizes)
            sizes.append(0)
        sizes[filling[p.dtype]] += p.numel() * p.element_size()
        if sizes[filling[p.dtype]] >= (other if p.dtype in begun else first):
            del filling[p.dtype]
            begun.add(p.dtype)
    return sizes


def _name_of(dtype: torch.dtype) -> str:
    names = {torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half",
             torch.bfloat16: "c10::BFloat16"}
    return names.get(dtype, str(dtype).rsplit(".", 1)[-1])
