# SPDX-License-Identifier: Apache-2.0
"""A coordinator: when it begins a recovery, what it decides, and which changes it plans.

A decision is a function of records and of the coordinator's own last decision.
"""
from rules import Violation
from world import Change, Decision, Generation


def connected(w, c):
    """Ranks that have said HELLO on a stream that stands, and take part."""
    return {r for r, i in w.streams
            if i == c.number and r in c.records and not c.records[r].told}


def here(w, c):
    return [c.records[r] for r in sorted(connected(w, c))]


# ------------------------------------------------------------------------------ what records mean
def quorum(config, generation, promised, dead, number):
    """M2 for one generation."""
    members = set(generation.members)
    if not config.on("absolute"):
        members -= dead
    have = len(members & promised)
    maker = generation.maker == number or not config.on("tie")
    if 2 * have > len(members) or (2 * have == len(members) and maker):
        return True
    return members - promised <= dead


def open_generations(w, c, records):
    """M3: the newest generation that is known to be established, and every later one.

    A vote for a change of an older generation never comes into force: the members of the
    established one did not vote for it.
    """
    old = [p for p in records if p.chain]
    if not old:
        return []
    base = max(p.chain[0].ballot for p in old)
    found = {g.ballot: g for p in old for g in p.chain if g.ballot >= base and (
        g.ballot <= p.generation.ballot or p.generation.ballot >= base or
        not w.config.on("stillborn"))}
    if w.config.on("own") and c.decision and c.decision.generation.ballot > base:
        found[c.decision.generation.ballot] = c.decision.generation
    if not w.config.on("open"):
        return [found[max(found)]]
    if w.config.on("overtaken"):
        for chain in [p.chain[:len(p.chain) - (p.chain[-1] != p.generation)] for p in old]:
            found = {b: g for b, g in found.items() if not overtaken(g, chain)}
    return [found[ballot] for ballot in sorted(found)]


def overtaken(generation, chain):
    """True if a later one has a member in common, which had not started this one before that."""
    return generation not in chain and any(
        generation.ballot < g.ballot and set(generation.members) & set(g.members) for g in chain)


def removals(w, c, records, generations, dead):
    """Ranks that were removed, unless a newer open generation has them as members (M3)."""
    said = [(p.generation.ballot, p.gone | {m for m, _ in p.left})
            for p in records if p.generation]
    if w.config.on("own") and c.decision and not (
            w.config.on("extinct") and dead.issuperset(c.decision.generation.members)):
        said.append((c.decision.generation.ballot, c.removed))
    newest = {}
    for ballot, ranks in said:
        for m in ranks:
            newest[m] = max(ballot, newest.get(m, ballot))
    return {m for m, ballot in newest.items() if not w.config.on("newest") or not any(
        g.ballot > ballot and m in g.members for g in generations)}


def view(w, c, records, asked):
    """-> open generations, ranks that have to report, ranks to exclude, ranks proven dead."""
    generations = open_generations(w, c, records)
    dead = {r for r, p in c.records.items() if p.told}.union(
        *(p.dead for p in c.records.values()))
    need = {m for g in generations for m in g.members}
    need -= removals(w, c, records, generations, dead) | dead
    out = set()
    accused = {(p.rank, x) for p in records if p.rank in need for x in p.cut & need}
    for rank, other in sorted(accused):  # M4
        if rank not in out and other not in out:
            out.add(max(other, rank) if (other, rank) in accused else other)
    if not w.config.on("silence"):
        out |= need - asked
    return generations, need - out, out, dead


def enough(w, c, records, promised, members, barred=frozenset()):
    """M2 for every open generation, with the ranks that a decision keeps."""
    generations, _, _, dead = view(w, c, records, promised)
    counted = promised
    if w.config.on("kept"):
        counted = promised & {p.rank for p in records if p.new or p.rank in members}
    return not w.config.on("quorum") or all(
        quorum(w.config, g, counted, dead | barred, c.number) for g in generations)


def decidable(w, c, records, promised):
    generations, need, _, _ = view(w, c, records, promised)
    if not generations or not need <= promised:
        return False
    if w.config.on("holder") and not any(p.full and p.rank in need for p in records):
        return False
    return enough(w, c, records, promised, need)


def barred(w, c, records, promised):
    """Removed ranks that end first, because there is no decision before or without that (M6)."""
    generations, need, _, dead = view(w, c, records, promised)
    gone = removals(w, c, records, generations, dead) & promised
    if not w.config.on("barred") or not need or not need <= promised:
        return frozenset()
    return gone if enough(w, c, records, promised, need, gone) else frozenset()


# --------------------------------------------------------------------------------------- recovery
def cause(w, c):
    """Why this coordinator should begin a recovery now, or None."""
    on, records, now = w.config.on, here(w, c), connected(w, c)
    generations, need, out, dead = view(w, c, records, now)
    if not generations:
        return None
    old = [p for p in records if not p.new]
    # A rank that waits for its last wave gets time to see the end of it.
    leaving = set() if c.forced else {r for r, p in c.records.items() if p.told == "left"}
    for p in old:
        members = set(p.generation.members) & dead
        fresh = members - p.gone - {m for m, _ in p.left} - leaving
        if fresh and (c.forced or members & set(p.chain[-1].members)):
            return "dead"
    if out:
        return "cut"
    if any(p.frozen and (c.forced or (p.orphan and on("orphan"))) for p in old):
        return "frozen"
    if c.forced:
        newest = generations[-1].ballot
        if on("invited") and any(p.frozen and p.new and p.rank in need for p in records):
            return "invited"
        if on("outranked") and any(p.rank not in need and p.promised > newest for p in old):
            return "outranked"
        if len(generations) > 1 and any(p.chain[-1].ballot < newest for p in old):
            return "behind"
    if on("below") and len(need) < w.config.minimum and need <= now and not any(
            c.records[r].begun for r in need):
        if any(p.new for p in records):
            return "newcomers"
        go = {r for r in need if c.records[r].leaving and c.records[r].flushed}
        if go and any(c.records[r].full for r in need - go) and enough(
                w, c, records, now, need - go):
            return "leavers"
    return None


def next_of(w, c):
    """What it would do next without a message: ("prepare", reason), ("plan", change) or ()."""
    if c.next is None:
        c.next = ()
        if not c.collecting and not c.backoff:
            reason = cause(w, c)
            if reason:
                now = here(w, c), connected(w, c)
                if not w.config.on("ready") or decidable(w, c, *now) or barred(w, c, *now):
                    c.next = "prepare", reason
            else:
                change = planned(w, c)
                if change:
                    c.next = "plan", change
    return c.next


def prepare(w, c, reason):
    c.seen += 1
    c.ballot, c.collecting, c.reason = (c.seen, c.number), True, reason
    c.reports, c.forced, c.next = {}, False, None
    c.tries += 1
    if c.tries > 40:
        raise Violation("PREPARE without end")
    for r in sorted(connected(w, c)):
        w.say_down(r, c.number, ("prepare", c.ballot))


def expire(w, c):
    """The timer of the coordinator."""
    c.backoff, c.forced, c.collecting, c.next = False, True, False, None
    for p in here(w, c):
        answer_removed(w, c, p)


def take_message(w, c, r, m):
    c.next = None
    if m[0] == "hello":
        p = note(c, r, m[1])
        if c.collecting and r not in c.reports and p.promised <= c.ballot and not p.told:
            w.say_down(r, c.number, ("prepare", c.ballot))
        elif (c.decision and p.frozen and p.promised == c.decision.generation.ballot and
              w.config.on("resend")):
            give_decision(w, c, p)
        elif c.plan and p.chain and p.chain[-1].ballot == c.plan.after and p.held != c.plan:
            w.say_down(r, c.number, ("change", c.plan))
        for q in here(w, c):
            answer_removed(w, c, q)
        if c.collecting:
            try_decide(w, c)
    elif m[0] == "refuse":
        c.seen = max(c.seen, m[1][0])
        if c.collecting and m[1] > c.ballot:
            c.collecting, c.backoff = False, True
    elif m[0] == "report":
        p = note(c, r, m[2])
        if c.collecting and m[1] == c.ballot:
            c.reports = {**c.reports, r: p}
            try_decide(w, c)
        elif (c.decision and m[1] == c.decision.generation.ballot and
              r not in c.decision.generation.members):
            give_decision(w, c, p)  # too late for the decision


def note(c, r, p):
    c.records = {**c.records, r: p}
    c.seen = max([c.seen, p.promised[0]] + [g.ballot[0] for g in p.chain])
    return p


def answer_removed(w, c, p):
    """EXCLUDED for a removed rank, AGAIN for one whose generation never stood (M6, M18)."""
    others = [x for x in c.records.values() if x.chain and x.rank != p.rank]
    if p.new or not others or c.collecting:
        return
    base = max(others, key=lambda x: x.chain[0].ballot)
    established, left = base.chain[0], {m for m, _ in base.left}
    if (p.chain[-1].ballot < established.ballot and
            p.rank not in {*established.members, *base.gone, *left}):
        w.say_down(p.rank, c.number, ("again", established.ballot))
        return
    top = max(others, key=lambda x: x.generation.ballot)
    generations = open_generations(w, c, [*others, p])
    if w.config.on("overtaken") and p.generation not in generations and not any(
            p.rank in {*g.members, *top.gone, *dict(top.left)} for g in generations):
        w.say_down(p.rank, c.number, ("again", top.generation.ballot))
        return
    ballot, left = top.generation.ballot, dict(top.left)
    voted = (p.chain[-1] != p.generation and left.get(p.rank) == p.done + 1 and
             w.config.on("voted"))
    if ballot < p.promised and not voted:
        return
    exclude(w, c, p, ballot, left, top.gone)


def exclude(w, c, p, ballot, left, gone):
    if p.rank in left:  # its last wave may not have reached it
        w.say_down(p.rank, c.number, ("excluded", ballot, left[p.rank], True))
    elif p.rank in gone:
        w.say_down(p.rank, c.number, ("excluded", ballot, 0, False))


def try_decide(w, c):
    """Reports of one ballot -> the next generation."""
    on, records, reporters = w.config.on, list(c.reports.values()), set(c.reports)
    if not decidable(w, c, records, reporters):
        for r in sorted(barred(w, c, records, reporters)):
            w.after[c.ballot] = max(p.generation.ballot for p in records if p.generation)
            exclude(w, c, c.reports[r], c.ballot, left_of(w, c, records), {r})
        return
    generations, need, _, _ = view(w, c, records, reporters)
    # Only reports count: a record may be older than the generation that its rank has started.
    if any(p.new and p.rank in generations[0].members for p in records):
        raise Violation("a newcomer counts for the quorum of an established generation")
    old = [c.reports[r] for r in sorted(need) if not c.reports[r].new]
    if not old:
        return
    if not any(p.full for p in old):
        raise Violation("a decision keeps no rank that has the whole state")
    done = max(p.done for p in old)
    for p in old:
        if p.done < done - 1 or (p.done == done - 1 and not p.final_all):
            raise Violation(f"rank {p.rank} lacks a result of step {p.done} that others committed")
    begun = any(p.begun for p in old if p.done == done)
    fresh = tuple(sorted(r for r, p in c.reports.items() if p.new))
    if on("taken") and c.reason == "newcomers" and not fresh and not begun:
        return
    go = {p.rank for p in old if p.leaving and p.flushed}
    if begun or not any(p.full for p in old if p.rank not in go) or not enough(
            w, c, records, reporters, {p.rank for p in old} - go):
        go = set()
    members = tuple(p.rank for p in old if p.rank not in go)
    if not begun or not on("closed"):
        members += fresh
    left = left_of(w, c, records)
    left.update({r: done for r in go})
    if on("newest"):
        left = {r: first for r, first in left.items() if r not in members}
    removed = ({m for g in generations for m in g.members} | {p.rank for p in old}).union(
        *(p.gone for p in records)) - {*members, *fresh, *left}
    generation = Generation(c.ballot, members, c.number)
    w.after[c.ballot] = generations[-1].ballot
    c.decision = Decision(
        "decision", generation, (*generations, generation), done,
        tuple(rows_of(w, c.reports, slot, members, done) for slot in range(len(w.config.slots))),
        frozenset(removed), begun, frozenset(left.items()))
    c.collecting, c.backoff, c.plan = False, False, None
    c.removed = frozenset(removed) | set(left)
    for p in here(w, c):
        give_decision(w, c, c.reports.get(p.rank, p))


def left_of(w, c, records):
    """Ranks that left in order, each with the first step without it."""
    left = {} if not w.config.on("own") or not c.decision else dict(c.decision.left)
    for p in records:
        left.update(p.left)
    return left


def rows_of(w, reports, slot, members, done):
    """Who hands on which element of the slot; None if nothing is final, and it runs again."""
    part = w.config.group(slot, members) if w.config.on("group") else members
    final = {r: reports[r].final[slot] for r in part if reports[r].done == done}
    if not any(final.values()):
        return None
    for r in part:
        if reports[r].done != done or not reports[r].contributed[slot]:
            raise Violation(f"step {done} slot {slot} is final somewhere without member {r}")
    return tuple(next((r for r in part if e in final[r]), "reduce")
                 for e in range(w.config.slots[slot][1]))


def give_decision(w, c, p):
    """The decision for a member, LATER for a newcomer, EXCLUDED for a rank that it removed."""
    d = c.decision
    ballot, left = d.generation.ballot, dict(d.left)
    if p.rank in d.generation.members:
        message = d
    elif p.new:
        message = "later", ballot
    elif p.rank in left:
        message = "excluded", ballot, left[p.rank], True
    elif p.rank in d.removed:
        message = "excluded", ballot, d.done, False
    else:
        return
    w.say_down(p.rank, c.number, message)


# ---------------------------------------------------------------------------------- planned change
def planned(w, c):
    """The next planned change, or None."""
    records, now = here(w, c), connected(w, c)
    generations, need, out, _ = view(w, c, records, now)
    if len(generations) != 1 or not need <= now or out:
        return None
    g = generations[0]
    if (set(g.members) != need or len(need) < w.config.minimum or
            any(c.records[r].frozen for r in need)):
        return None
    if c.plan and c.plan.after == g.ballot and set(c.plan.members) - need <= now:
        return None  # it is published, and its newcomers are still there
    go = {r for r in need if c.records[r].leaving}
    come = tuple(sorted(r for r in now if c.records[r].new))
    if not any(c.records[r].full for r in need - go):  # M17
        return None
    if not go and not come or all(c.records[r].done >= w.config.steps for r in need):
        return None
    return tuple(r for r in g.members if r not in go) + come, g.ballot


def publish(w, c, change):
    c.seen += 1
    c.plan, c.next = Change((c.seen, c.number), change[0], c.number, change[1]), None
    w.after[c.plan.ballot] = change[1]
    for r in sorted(connected(w, c)):
        w.say_down(r, c.number, ("change", c.plan))
