# SPDX-License-Identifier: Apache-2.0
"""A worker: its part of the data plane, and what it does with messages of coordinators.

A value is (ballot of the generation that computed it, set of samples in it). Two values are the
same bits only if both parts are equal. A sample is (rank, step, slot): the gradient that one rank
made for one slot.
"""
from rules import Violation
from world import Generation, Record, put


def record(w, k):
    slots = w.config.slots
    mine = [i for i in range(len(slots))
            if k.generation and k.rank in w.config.group(i, k.generation.members)]
    chain = k.chain
    if k.vote and w.config.on("vote") and k.vote.ballot > chain[-1].ballot:
        chain += (k.vote,)
    return Record(
        k.rank, k.generation is None, k.generation, chain, k.promised, k.frozen, k.gone, k.left,
        k.done, bool(mine) and all(None not in k.final[i] for i in mine), k.begun,
        tuple(x is not None for x in k.input),
        tuple(frozenset(e for e, v in enumerate(f) if v is not None) for f in k.final), k.full,
        k.leaving, not k.stash, k.held, k.dead, k.cut, k.told,
        k.frozen and (k.rank, k.promised[1]) not in w.streams)


def tell(w, k):
    """HELLO on every stream: something has changed."""
    hello = None
    for rank, number in list(w.streams):
        if rank == k.rank:
            hello = hello or ("hello", record(w, k))
            w.say_up(rank, number, hello)


# ------------------------------------------------------------------------------------- data plane
def contribute(w, k, forfeit):
    """The trainer made its gradients. forfeit: slot 0 was given up, so its gradient is deferred."""
    for slot in range(len(w.config.slots)):
        if k.rank not in w.config.group(slot, k.generation.members):
            continue
        sample = k.rank, k.done, slot
        k.made += (sample,)
        if forfeit and slot == 0:
            k.stash |= {sample}
            k.input = put(k.input, slot, frozenset())
        else:
            deferred = frozenset(x for x in k.stash if x[2] == slot)
            k.stash -= deferred
            k.input = put(k.input, slot, deferred | {sample})
        if not k.frozen:
            send(w, k, slot)


def send(w, k, slot):
    """The input of a slot goes out in the present generation. Owners hand on what is final."""
    ballot, rows = k.generation.ballot, k.redo[slot]
    for e, value in enumerate(k.final[slot]):
        row = rows[e] if rows else "reduce" if value is None else None
        if row == "reduce" and value is not None:
            raise Violation(f"step {k.done} slot {slot} element {e}: rank {k.rank} is to reduce, "
                            "but its input is gone")
        if row == k.rank:
            w.given[ballot, k.done, slot, e] = value
    w.sent[ballot, k.done, slot, k.rank] = k.input[slot]


def lose_frames(w, k):
    """It closes its connections, or is dead: what others have not received may never come."""
    for m in k.generation.members if k.generation else ():
        if m != k.rank and w.chance.random() < .3:
            w.lost |= {(m, k.generation.ballot)}


def can_final(w, k, slot, e):
    """True if the element may become final: every member has sent its input, or its owner did.

    It does not matter who has frozen or died since.
    """
    ballot, rows = k.generation.ballot, k.redo[slot]
    if not rows or rows[e] == "reduce":
        return all((ballot, k.done, slot, m) in w.sent
                   for m in w.config.group(slot, k.generation.members))
    return (ballot, k.done, slot, e) in w.given


def make_final(w, k, slot, e):
    ballot, rows = k.generation.ballot, k.redo[slot]
    if not rows or rows[e] == "reduce":
        total = [x for m in w.config.group(slot, k.generation.members)
                 for x in w.sent[ballot, k.done, slot, m]]
        if len(total) != len(set(total)):
            raise Violation(f"step {k.done} slot {slot}: a sample is counted twice")
        value = ballot, frozenset(total)
    else:
        value = w.given[ballot, k.done, slot, e]
    k.final = put(k.final, slot, put(k.final[slot], e, value))


def all_final(w, k):
    return all(None not in f for i, f in enumerate(k.final)
               if k.rank in w.config.group(i, k.generation.members))


def join_wave(w, k):
    """M8, M9, M11: the change that this rank holds rides in its contribution to the wave."""
    held = k.held
    if held and (held.after != k.generation.ballot or held.ballot <= k.promised):
        held = None
    if held and k.rank not in held.members and k.stash and w.config.on("flush"):
        held = None
    k.vote = held and Generation(held.ballot, held.members, held.maker)
    if k.vote and w.config.on("vote"):
        k.promised = k.vote.ballot
    w.wave[k.generation.ballot, k.done, k.rank] = k.vote
    if k.vote and k.rank not in k.vote.members and not w.config.on("wait"):
        finish(w, k)
        k.told = "left"
        tell(w, k)


def complete_wave(w, k):
    old = k.generation
    votes = {w.wave[old.ballot, k.done, m] for m in old.members}
    change = votes.pop() if len(votes) == 1 else None
    if not w.config.on("unanimous"):
        change = k.vote
    finish(w, k)
    k.chain = (old,)  # every member has run in it: it is established
    if not change:
        if len(old.members) < w.config.minimum:
            tell(w, k)  # step_begin waits for members now
        return
    if k.rank not in change.members:
        k.told = "left"
        tell(w, k)
        return
    k.left = leave(k.left, set(old.members) - set(change.members), k.done)
    enter(w, k, change, (old, change))
    for j in change.members:
        if w.workers[j].generation is None:
            w.start[j, change.ballot] = k.done, (old, change), k.gone, k.left


def leave(left, ranks, step):
    return frozenset(x for x in left if x[0] not in ranks) | {(m, step) for m in ranks}


def finish(w, k):
    """The step is committed: step_end returns, and the trainer may overwrite its gradients."""
    values = {i: k.final[i] for i in range(len(w.config.slots))
              if k.rank in w.config.group(i, k.generation.members)}
    for i, value in values.items():
        for v in value:
            if v is None or not k.input[i] <= v[1]:
                raise Violation(f"step {k.done} slot {i}: rank {k.rank} commits a result without "
                                "its own samples")
    if not k.full:
        raise Violation(f"rank {k.rank} committed a step without the state")
    for q in w.workers:
        generation, theirs = w.ledger.get((k.done, q), (None, ()))
        theirs = dict(theirs)
        if any(theirs.get(i, v) != v for i, v in values.items()) and alive_in(w, q, generation):
            raise Violation(f"step {k.done}: rank {q} committed {theirs}, rank {k.rank} commits "
                            f"{values}")
    w.ledger[k.done, k.rank] = k.generation, tuple(values.items())
    k.results += (tuple(values.items()),)
    k.state += (values.get(0),)
    k.done += 1
    for q in w.workers.values():
        if (q.rank != k.rank and q.full and q.done == k.done and q.state != k.state and
                alive_in(w, q.rank, q.generation)):
            raise Violation(f"after step {k.done - 1}: ranks {q.rank} and {k.rank} have different "
                            "states")
    k.open_step(w.config)


def alive_in(w, rank, generation):
    """False if nobody of that generation takes part: older ranks may go on from older state.

    An excluded rank takes part no more, unless a decision excluded it that overlooked the
    generation.
    """
    ranks = {rank, *generation.members} if generation else {rank}
    return any(k.alive and not (generation and k.out and w.follows(k.out, generation))
               for k in map(w.workers.get, ranks))


def enter(w, k, generation, chain):
    """Start to run in a generation: by a decision, by a wave, or as a newcomer that is told so."""
    k.generation, k.chain, k.frozen, k.vote, k.held = generation, chain, False, None, None
    k.promised = max(k.promised, generation.ballot)
    if w.config.on("newest"):
        k.gone -= set(generation.members)  # a newcomer may have been removed before it started
    if k.full:
        w.donor[generation.ballot, k.done] = k.state
    elif w.config.on("version"):
        k.slices = tuple(v if v and v[0] == k.done else None for v in k.slices)
    tell(w, k)


# ---------------------------------------------------------------------------------- control plane
def take_message(w, k, number, m):
    """A message of coordinator `number`."""
    on = w.config.on
    if m[0] == "prepare":
        take_prepare(w, k, number, m[1])
    elif m[0] == "decision":
        if k.frozen and m.generation.ballot == k.promised:
            obey(w, k, m)
    elif m[0] == "again":  # M18
        if k.generation and k.generation.ballot < m[1]:
            become_newcomer(w, k)
    elif m[0] == "later":
        if k.frozen and m[1] == k.promised and not k.generation:
            k.frozen = False
            tell(w, k)
    elif m[0] == "excluded":  # M6
        _, ballot, first, orderly = m
        voted = orderly and k.vote and k.rank not in k.vote.members and first == k.done + 1
        if ballot >= k.promised or not on("stale") or (voted and on("voted")):
            if not orderly and k.generation and k.generation.ballot > ballot:
                raise Violation(f"rank {k.rank} is excluded by a decision older than its own")
            if orderly and k.generation and k.done == first - 1:
                finish(w, k)  # its last step is committed
            k.told = "left" if orderly else "excluded"
            k.out = None if orderly else ballot
            tell(w, k)
    elif m[0] == "change":
        fits = not k.generation or m[1].after == k.generation.ballot
        newer = m[1].ballot > max(k.promised, k.held.ballot if k.held else k.promised)
        if fits and newer and not k.frozen:
            k.held = m[1]


def take_prepare(w, k, number, ballot):
    if ballot > k.promised:
        k.promised = ballot
        if not k.frozen:
            k.frozen = True
            lose_frames(w, k)
    elif ballot < k.promised or not k.frozen:
        w.say_up(k.rank, number, ("refuse", k.promised))
        return
    w.say_up(k.rank, number, ("report", ballot, record(w, k)))


def obey(w, k, decision):
    if k.generation is None:
        k.done = decision.done
    elif k.done == decision.done - 1:
        finish(w, k)
    k.gone |= decision.removed
    k.left = leave_all(k.left, decision.left)
    k.redo, k.must = decision.redo, decision.begun and w.config.on("finish")
    enter(w, k, decision.generation, decision.chain)
    if not w.config.on("forfeit") and k.input[0] is not None:
        k.input = put(k.input, 0, k.input[0] | {
            x for x in k.stash if x == (k.rank, k.done, 0)})
    for slot, x in enumerate(k.input):
        if x is not None:
            send(w, k, slot)


def leave_all(left, more):
    named = {m for m, _ in more}
    return frozenset(x for x in left if x[0] not in named) | more


def become_newcomer(w, k):
    if k.results:
        raise Violation(f"rank {k.rank} is to join again, but it has committed steps")
    k.generation, k.chain, k.frozen, k.held = None, (), False, None
    k.full, k.made, k.stash = False, (), frozenset()
    if w.config.on("version"):
        k.slices = (None,) * w.config.slices
    k.gone = k.left = frozenset()
    k.open_step(w.config)
    tell(w, k)
