# SPDX-License-Identifier: Apache-2.0
"""What a process group of PyTorch is in the session.

PyTorch has the ranks and the size of a process group, and neither can change. So after the death of
a member that the session survives every call of the group fails, and a new group is made.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Sequence

from .. import _native
from ..collectives import Collectives, Group
from ..errors import Invalid, LockstepError, PeerLost
from ..session import Session

NAME = b"c10d"
_NAME_BYTES = 200
_OWN_NAMES = 256
# How many groups of all ranks were made in a session.
_made: "weakref.WeakKeyDictionary[Session, int]" = weakref.WeakKeyDictionary()


def error_of_change(session: Session, what: str) -> PeerLost:
    """Why a group cannot go on. what: the call that fails. backend_jobs.h has the same text."""
    why = ""
    with contextlib.suppress(LockstepError):
        why = session.world_change().text
    return PeerLost(
        f"{why or 'the world has changed'}\n{what}: a process group cannot go on after a death, "
        "because its ranks and its size are fixed: call torch.distributed.destroy_process_group() "
        "and then init_process_group() on the ranks that are left, with the numbers of "
        "lockstep.torch.session(), or start the job again")


def check(members: Collectives, size: int, what: str) -> None:
    """Raises if members have died. members: the session or the group. size: their number when the
    process group was made."""
    if members.handle and members.size != size:
        raise error_of_change(members._session, what)


def name_of(session: Session, group: str) -> bytes:
    """The name of the collectives of a group of all ranks; "": of the default group. A group that
    is made after a change of the world is another one, with another count of its collectives.

    PyTorch has a new name for each group, and a session has room for some thousands, which it keeps
    for good. So groups after the first _OWN_NAMES share that many other names in turn. All ranks
    make all of these groups, in one order. Groups that are open at the same time share a name only
    if that many were made between them. Then ranks that begin their collectives in different orders
    mix the data of the two groups: docs/torch-distributed.md says so."""
    change = session.world_change()
    world = f"@{change.generation}".encode() if change.changes else b""
    if not group:
        return NAME + world
    number = _made.get(session, 0)
    _made[session] = number + 1
    if number >= _OWN_NAMES:
        group = f"again/{number % _OWN_NAMES}"
    return NAME + world + b"/" + group.encode()[-_NAME_BYTES:]


def make(session: Session, ranks: Sequence[int], name: str) -> Group:
    """A group of some ranks, which is named as PyTorch names its group."""
    try:
        return session.group(ranks, name[-63:] or "group")
    except Invalid as error:
        if "open group" in str(error) or "groups" in str(error):
            raise Invalid(f"group '{name}': {error.text}; a session has at most "
                          f"{_native.MAX_GROUPS} groups of some of its ranks: free one with "
                          "torch.distributed.destroy_process_group(group)") from error
        raise
