# SPDX-License-Identifier: Apache-2.0
"""What a process group of PyTorch is in the session.

PyTorch has the ranks and the size of a process group, and neither can change. So after the death of
a member that the session survives every call of the group fails, and a new group is made.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Optional, Sequence, Tuple

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


def make(session: Session, ranks: Sequence[int], name: str) -> Tuple[Optional[Group], bytes]:
    """What a process group is in the session: a group, or None for the session itself, and the name
    of its collectives. ranks: none for the default group. name: PyTorch's, new for each group.

    A group of all ranks is the session itself with a name of its own, because a session has at most
    64 open groups. A session keeps such a name for good, and has room for some thousands. So groups
    of all ranks after the first _OWN_NAMES are groups as others. All ranks make all of these, in
    one order, so they count alike. A group that is made after a change of the world is another one,
    with another count of its collectives."""
    change = session.world_change()
    world = NAME + (f"@{change.generation}".encode() if change.changes else b"")
    if not ranks:
        return None, world
    if list(ranks) == list(range(session.size)):
        number = _made.get(session, 0)
        _made[session] = number + 1
        if number < _OWN_NAMES:
            return None, world + b"/" + name.encode()[-_NAME_BYTES:]
    return _some(session, ranks, name), NAME


def _some(session: Session, ranks: Sequence[int], name: str) -> Group:
    """A group that is named as PyTorch names its group."""
    try:
        return session.group(ranks, name[-63:] or "group")
    except Invalid as error:
        if "open group" in str(error) or "groups" in str(error):
            raise Invalid(f"group '{name}': {error.text}; a session has at most "
                          f"{_native.MAX_GROUPS} groups besides the first {_OWN_NAMES} of all "
                          "ranks: free one with "
                          "torch.distributed.destroy_process_group(group)") from error
        raise
