# SPDX-License-Identifier: Apache-2.0
"""What can happen next, faults, and what must hold at the end.

actions() lists every atomic event that can happen next, apply() does one, fault() injects a fault.
"""
import coordinator
import worker
from rules import Violation
from world import OPENED, Coordinator

LIMIT = 6000  # events of one run


def actions(w):
    out, config = [], w.config
    for (r, i), stream in sorted(w.streams.items()):
        c = w.coordinators[i]
        if c.alive and not c.stopped:
            if stream.up:
                out.append(("up", r, i))
            elif stream.dead == "worker":
                out.append(("eof", r, i))
        if w.acting(r):
            if stream.down:
                out.append(("down", r, i))
            elif stream.dead == "coordinator":
                out.append(("eof", r, i))
    trouble = w.cuts or any(not k.alive or k.told for k in w.workers.values())
    for k in w.workers.values():
        r = k.rank
        if not w.acting(r):
            continue
        for i, c in w.coordinators.items():
            if (c.alive and not c.stopped and (r, i) not in w.streams and
                    (r, i) not in w.blocked):
                out.append(("open", r, i))
        if trouble or not config.on("proof"):
            evidence(w, k, out)
        if k.generation is None:
            out += [("start", r, b) for x, b in w.start if x == r and b > k.promised]
        elif k.done < config.steps:
            step_actions(w, k, out)
    for i, c in w.coordinators.items():
        if c.alive and not c.stopped:
            what = coordinator.next_of(w, c)
            if what:
                out.append((what[0], i))
    return out


def evidence(w, k, out):
    """What a worker sees of the others: M4."""
    newest = k.vote or k.held
    known = {m for g in k.chain for m in g.members} | set(newest.members if newest else ())
    for x in sorted(known - {k.rank} - k.dead):
        # A process ends when its last words are taken.
        speaks = w.workers[x].alive and any(
            s.up for (y, _), s in w.streams.items() if y == x)
        if w.ended(x) and not w.workers[x].power and not speaks:
            out.append(("see", k.rank, x))
        if not w.config.on("proof") and w.workers[x].frozen and not k.frozen:
            out.append(("see", k.rank, x))
    for x in sorted(known - {k.rank} - k.cut):
        if frozenset((k.rank, x)) in w.cuts or w.workers[x].power:
            out.append(("accuse", k.rank, x))


def step_actions(w, k, out):
    r, ballot, members = k.rank, k.generation.ballot, k.generation.members
    if not k.full:
        if not k.frozen and (ballot, k.done) in w.donor:
            out += [("slice", r, i) for i, v in enumerate(k.slices) if v is None]
    elif not k.begun:
        if not k.frozen and (len(members) >= w.config.minimum or k.must):
            out.append(("begin", r))
    elif all(x is None for x in k.input):
        out.append(("contribute", r, False))
        if w.config.defer:
            out.append(("contribute", r, True))
    if k.frozen or (r, ballot) in w.lost or all(x is None for x in k.input):
        return
    complete = True
    for slot, final in enumerate(k.final):
        if r in w.config.group(slot, members) and None in final:
            complete = False
            out += [("final", r, slot, e) for e, v in enumerate(final)
                    if v is None and worker.can_final(w, k, slot, e)]
    if complete:
        if (ballot, k.done, r) not in w.wave:
            out.append(("join", r))
        elif all((ballot, k.done, m) in w.wave for m in members):
            out.append(("complete", r))


def timers(w):
    """What time alone does. A timer is much longer than a round trip, so the rest comes first."""
    return [("timer", i) for i, c in w.coordinators.items() if c.alive and not c.stopped and
            (c.backoff or (not c.forced and coordinator.connected(w, c)))]


def apply(w, a):
    w.events += 1
    kind = a[0]
    if kind == "up":
        stream = w.streams[a[1], a[2]]
        w.streams[a[1], a[2]] = stream._replace(up=stream.up[1:])
        coordinator.take_message(w, w.coordinators[a[2]], a[1], stream.up[0])
    elif kind == "down":
        stream = w.streams[a[1], a[2]]
        w.streams[a[1], a[2]] = stream._replace(down=stream.down[1:])
        worker.take_message(w, w.workers[a[1]], a[2], stream.down[0])
    elif kind == "eof":
        end_stream(w, (a[1], a[2]))
    elif kind == "open":
        w.streams[a[1], a[2]] = OPENED
        w.coordinators[a[2]].next = None
        w.say_up(a[1], a[2], ("hello", worker.record(w, w.workers[a[1]])))
    elif kind in ("prepare", "plan"):
        c = w.coordinators[a[1]]
        (coordinator.prepare if kind == "prepare" else coordinator.publish)(
            w, c, coordinator.next_of(w, c)[1])
    elif kind == "timer":
        coordinator.expire(w, w.coordinators[a[1]])
    else:
        work(w, w.workers[a[1]], *a)


def end_stream(w, key):
    if w.streams.pop(key, None):
        w.coordinators[key[1]].next = None
        if w.acting(key[0]):
            worker.tell(w, w.workers[key[0]])


def work(w, k, kind, _, *a):
    """An event of one worker."""
    if kind == "see":
        k.dead |= {a[0]}
        worker.tell(w, k)
    elif kind == "accuse":
        k.cut |= {a[0]}
        worker.tell(w, k)
    elif kind == "start":
        k.done, chain, k.gone, k.left = w.start[k.rank, a[0]]
        worker.enter(w, k, chain[-1], chain)
    elif kind == "slice":
        state = w.donor[k.generation.ballot, k.done]
        k.slices = worker.put(k.slices, a[0], (k.done, state))
        if None not in k.slices:
            if set(k.slices) != {(k.done, state)}:
                raise Violation(f"rank {k.rank} put its state together from different steps")
            k.full, k.state = True, state
            worker.tell(w, k)
    elif kind == "begin":
        k.begun = True
    elif kind == "contribute":
        worker.contribute(w, k, a[0])
    elif kind == "final":
        worker.make_final(w, k, a[0], a[1])
    elif kind == "join":
        worker.join_wave(w, k)
    elif kind == "complete":
        worker.complete_wave(w, k)


# ----------------------------------------------------------------------------------------- faults
def end_streams(w, ends, side):
    """The other side sees the end after a part of what was on its way, as with TCP."""
    for key, s in [x for x in w.streams.items() if ends(x[0])]:
        kept = len(s.up if side == "worker" else s.down)
        kept -= w.chance.randrange(kept + 1)
        w.streams[key] = s._replace(
            up=s.up[:kept] if side == "worker" else (),
            down=s.down[:kept] if side == "coordinator" else (), dead=side)


def fault(w, f):
    kind, x = f
    for c in w.coordinators.values():
        c.next = None
    if kind in ("kill", "power"):
        k = w.workers[x]
        if not k.alive:
            return
        k.alive = False
        worker.lose_frames(w, k)
        if kind == "kill":
            end_streams(w, lambda key: key[0] == x, "worker")
        else:  # the whole host: no end of a stream, no proof, just silence
            k.power = True
            w.ever_cut |= {x}
            w.streams = {key: s for key, s in w.streams.items() if key[0] != x}
    elif kind in ("stop", "wake"):
        w.workers[x].stopped = kind == "stop"
    elif kind == "leave":
        w.workers[x].leaving = True
        worker.tell(w, w.workers[x])
    elif kind == "coordinator":
        if x in w.coordinators and w.coordinators[x].alive:
            w.coordinators[x].alive = False
            end_streams(w, lambda key: key[1] == x, "coordinator")
    elif kind == "new coordinator":
        number = max(w.coordinators) + 1
        w.coordinators[number] = Coordinator(number)
    elif kind in ("pause coordinator", "resume coordinator"):
        if x in w.coordinators:
            w.coordinators[x].stopped = kind[0] == "p"
    elif kind == "block":  # the control network between a worker and a coordinator
        w.blocked |= {x}
        end_stream(w, x)
    elif kind == "drop":  # one control stream ends, and may be opened again at once
        end_stream(w, x)
    elif kind == "unblock":
        w.blocked -= {x}
    elif kind == "cut":
        w.cuts |= {frozenset(x)}
        w.ever_cut |= set(x)
    elif kind == "heal":
        w.cuts = frozenset()
        for k in w.workers.values():
            cut = frozenset(x for x in k.cut if w.workers[x].power)
            if cut != k.cut:
                k.cut = cut
                worker.tell(w, k)
    elif kind == "timer":
        if x in w.coordinators and ("timer", x) in timers(w):
            coordinator.expire(w, w.coordinators[x])
    else:
        raise ValueError(kind)


def calm(w):
    """All faults are over. From here on no rank may wait for ever.

    Everything wakes, networks are whole, an operator vouches for hosts without power, and every
    worker reaches a coordinator.
    """
    for k in w.workers.values():
        k.stopped = k.power = False
    for c in w.coordinators.values():
        c.stopped = False
    w.blocked = frozenset()
    fault(w, ("heal", None))
    if not any(c.alive for c in w.coordinators.values()):
        fault(w, ("new coordinator", None))


# ----------------------------------------------------------------------------------------- checks
def check(w):
    """What must hold when nothing can happen any more."""
    live = [k for k in w.workers.values() if k.alive and not k.told]
    whole = [k for k in live if k.full]
    for k in w.workers.values():
        if k.alive and k.told == "excluded" and k.rank not in w.ever_cut:
            raise Violation(f"rank {k.rank} was excluded, but its links were good: silence alone")
        if k.told == "left" and not k.leaving:
            raise Violation(f"rank {k.rank} was told that it left, but it did not ask")
    for k in live if whole else ():  # newcomers alone have no state to go on with
        if k.generation is None:
            if any(q.done < w.config.steps for q in whole):
                raise Violation(f"newcomer {k.rank} waits for ever")
        elif k.done < w.config.steps:
            members = k.generation.members
            if len(members) >= w.config.minimum or any(q.generation is None for q in live):
                raise Violation(
                    f"rank {k.rank} waits for ever in step {k.done} of {w.config.steps}, generation"
                    f" {k.generation.ballot} {members}, {'frozen' if k.frozen else 'running'}")
    for k in w.workers.values():
        if k.alive and k.told != "excluded" and k.generation:
            check_samples(w, k)


def check_samples(w, k):
    """Each sample is in exactly one result, or in the stash."""
    for sample in k.made:
        slot = sample[2]
        if sample[1] > k.done or (sample[1] == k.done and k.input[slot] is not None):
            continue  # its step is still open, below the minimum
        results = [dict(r)[slot] for r in k.results if slot in dict(r)]
        for e in range(w.config.slots[slot][1]):
            n = sum(sample in r[e][1] for r in results) + (sample in k.stash)
            if n != 1 or (k.told == "left" and sample in k.stash):
                raise Violation(f"sample {sample} is in {n} results or stashes of rank {k.rank} "
                                f"({k.told or 'member'})")


def run(w, faults=(), see=lambda w, what: None):
    """faults: (events from now, fault). When nothing else can happen, the next fault comes."""
    pending = sorted(((w.events + d, i, f) for i, (d, f) in enumerate(faults)),
                     key=lambda x: x[:2])
    quiet = False

    def strike():
        f = pending.pop(0)[2]
        see(w, ("fault", *f))
        fault(w, f)

    while True:
        while pending and pending[0][0] <= w.events:
            strike()
        acts = actions(w)
        if not acts:
            if pending:
                strike()
                continue
            if not quiet:
                quiet = True
                see(w, ("calm",))
                calm(w)
                continue
            acts = timers(w)
            if not acts:
                break
        a = acts[w.chance.randrange(len(acts))]
        see(w, a)
        apply(w, a)
        if w.events > LIMIT:
            raise Violation("does not end")
    check(w)


def attempt(w, faults):
    """-> what was violated, or None."""
    try:
        run(w, faults)
    except Violation as x:
        return str(x)
    return None
