# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients: every rank gets the indices and values of all ranks, and adds them up."""

from __future__ import annotations

from typing import Dict, List, Optional

import torch

from ..errors import Changed
from ..session import Session
from .memory import describe


def reduce(session: Session, module: str, parameters: Dict[str, torch.Tensor], weight: int, *,
           joined: bool = False) -> None:
    """Gives each parameter the mean of its gradient. All ranks call it. joined: this rank has no
    data any more, and its .grad stays as it is. After a death the mean is over the ranks that are
    left."""
    for name, parameter in parameters.items():
        while True:
            try:
                _reduce(session, f"lockstep.torch/{module}/{name}", parameter, weight, joined)
                break
            except Changed:
                pass  # On every rank that is left: again, among these.


def _reduce(session: Session, label: str, parameter: torch.Tensor, weight: int,
            joined: bool) -> None:
    change = session.world_change()
    if change.changes:  # Ranks may have begun some of the collectives of the world before.
        label += f"@{change.generation}"
    gradient = None if joined else parameter.grad
    if gradient is None:
        mine = torch.sparse_coo_tensor(
            torch.zeros((1, 0), dtype=torch.int64, device=parameter.device),
            parameter.new_zeros((0, *_row(parameter))), tuple(parameter.shape),
            device=parameter.device, is_coalesced=True)
    else:
        mine = (gradient if gradient.is_sparse else gradient.to_sparse(1)).coalesce()
    # The program may have a default device.
    facts = torch.zeros((session.world_size, 3), dtype=torch.int64, device="cpu")
    mine_facts = torch.tensor([mine._nnz(), int(gradient is not None), weight], device="cpu")
    session.all_gather(label + "/facts", describe(mine_facts), describe(facts))
    counts: List[int] = facts[:, 0].tolist()
    if not int(facts[:, 1].sum()):
        return
    total = int(facts[:, 2].sum())
    result = _gather(session, label, mine, counts, weight, parameter)
    if result is not None and not joined:
        parameter.grad = result.div_(total) if total else result


def _row(parameter: torch.Tensor) -> List[int]:
    return list(parameter.shape[1:])


def _gather(session: Session, label: str, mine: torch.Tensor, counts: List[int], weight: int,
            parameter: torch.Tensor) -> Optional[torch.Tensor]:
    """The sum over all ranks."""
    rows = sum(counts)
    width = parameter[:1].numel()
    indices = torch.zeros(rows, dtype=torch.int64, device="cpu")
    session.all_gather(label + "/indices", describe(mine.indices()[0].contiguous().cpu()),
                       describe(indices), counts=counts)
    values = torch.zeros((rows, *_row(parameter)), dtype=parameter.dtype, device="cpu")
    part = mine.values().detach().contiguous().cpu()
    if weight != 1:
        part = part * weight
    session.all_gather(label + "/values", describe(part.reshape(-1)), describe(values.reshape(-1)),
                       counts=[count * width for count in counts])
    return torch.sparse_coo_tensor(
        indices.unsqueeze(0).to(parameter.device), values.to(parameter.device),
        tuple(parameter.shape), device=parameter.device).coalesce()
