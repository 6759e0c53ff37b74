"""Backward of ring attention: keys and values go round again, and their gradients follow, gathering a term per rank."""

import numpy as np

from minidist.show.demos.context_parallel.forward import MOVING, chunks_of, ranks_in_words, tiles, words
from minidist.show.demos.context_parallel.pictures import gathered, matrix, ring
from minidist.show.demos.context_parallel.pictures.gathered import Term
from minidist.show.demos.context_parallel.pictures.ring import GRADIENTS, KEYS, Traveller
from minidist.show.demos.context_parallel.run import Pass
from minidist.show.player.scene import Frame, Scene

TITLE = "Backward: the gradients of keys and values follow them round, and come home"
HOP_1 = 3  # the frame in which hop 1 has been computed


def wrong_visits(run: Pass, right: Pass) -> set[tuple[int, int]]:
    """(hop, rank) wherever a rank adds something else to the gradients than in the run without the bug."""
    return {
        (hop, rank)
        for hop, (visits, others) in enumerate(zip(run.visits, right.visits, strict=True))
        for rank, (visit, other) in enumerate(zip(visits, others, strict=True))
        if not np.array_equal(visit.gradients, other.gradients)
    }


def scene_of(name: str, run: Pass, right: Pass, loss: float, verdict: str, **more) -> Scene:
    """The scene.

    Args:
        right: the pass without the bug, which may be ``run``.
        loss: loss of the step.
        more: further fields of the Scene.
    """
    last = run.ranks - 1
    frames = [_frame(run, right, loss, -1, -1)]
    for hop in range(run.ranks):
        if hop:
            frames.append(_frame(run, right, loss, hop, hop - 1))
        frames.append(_frame(run, right, loss, hop, hop))
    frames.append(_frame(run, right, loss, last + 1, last))
    wrong = wrong_visits(run, right)
    first_wrong = HOP_1 + 2 * (min(hop for hop, _ in wrong) - 1) if wrong else None
    key = {"idle": "faint", "computed in this hop": "ink"} | ({"wrong": "wrong"} if wrong else {})
    stills = (HOP_1, len(frames) - 1)
    return Scene(name, TITLE, tuple(frames), ring.HEIGHT, key, verdict, first_wrong, stills, **more)


def _frame(run: Pass, right: Pass, loss: float, hop: int, done: int) -> Frame:
    """Keys and values have made ``hop`` hops, and hop ``done`` has been computed. After the last, gradients go home."""
    ranks, chunks, home = run.ranks, chunks_of("ring", run.ranks), hop == run.ranks
    computing = hop == done >= 0
    wrong = {(step, rank) for step, rank in wrong_visits(run, right) if step <= done}
    spoilt = {run.visits[step][rank].owner for step, rank in wrong}
    at = [(rank - max(0, hop)) % ranks for rank in range(ranks)]  # whose keys and values each rank has
    behind = [(rank - max(0, done + home)) % ranks for rank in range(ranks)]  # and whose gradients
    travellers = [Traveller(KEYS, owner, rank) for rank, owner in enumerate(at) if not home]
    if done >= 0:
        travellers += [Traveller(GRADIENTS, owner, rank, owner in spoilt) for rank, owner in enumerate(behind)]
    moves = GRADIENTS if home or (computing and hop) else KEYS if hop > done >= 0 else ""
    idle = [computing and not visit.pairs for visit in run.visits[min(max(0, hop), ranks - 1)]]
    shapes = (
        *ring.draw([words(mine) for mine in chunks], idle, computing, travellers, moves),
        *matrix.draw(ranks, tiles(run, done), hop if computing else None),
        *gathered.draw(
            _terms(run, wrong, done), {owner: d_k for owner, (d_k, _) in errors(run, right).items()} if home else None
        ),
    )
    now = run.end(done) if done >= 0 else 0
    facts = {
        "hops of K, V": f"{min(max(0, hop), ranks - 1)} of {ranks - 1}",
        "hops of dK, dV": f"{max(0, done + home)} of {ranks}",
        "loss of the step": f"{loss:.6f}",
        "a rank sends": f"{run.nbytes:,} B",
    }
    return Frame(shapes, _note(run, hop, done, wrong, spoilt), facts, at=now + MOVING * (hop > done >= 0))


def _terms(run: Pass, wrong: set[tuple[int, int]], done: int) -> list[list[Term]]:
    """Return the terms of the gradient of each rank's keys and values."""
    found: list[list[Term]] = [[] for _ in range(run.ranks)]
    for hop, visits in enumerate(run.visits):
        for rank, visit in enumerate(visits):
            if visit.pairs:
                found[visit.owner].append(Term(rank, hop <= done, (hop, rank) in wrong))
    return found


def _note(run: Pass, hop: int, done: int, wrong: set[tuple[int, int]], spoilt: set[int]) -> str:
    if hop < 0:
        return "Backward. A key's gradient is a sum over all queries that used it: they are on other ranks."
    if hop == run.ranks:
        if spoilt:
            return f"Home: the gradients of {ranks_in_words(sorted(spoilt))} are wrong. The loss of this step is right."
        return "One more hop, and every gradient is home, with a term from each rank that used the keys."
    if hop > done:
        return f"Hop {hop}: keys and values move on; their gradients wait for the next term."
    now = [rank for step, rank in sorted(wrong) if step == hop]
    if now:
        return f"Wrong: {ranks_in_words(now)} used their own keys, so what they add is wrong. Forward was right."
    if not hop:
        return "Hop 0: each rank begins the gradients of its own keys and values: dK, dV."
    return f"Hop {hop}: dK, dV follow, and each rank adds its queries' term."


def errors(run: Pass, right: Pass) -> dict[int, tuple[float, float]]:
    """Relative error of dK and dV of each rank's keys and values, by norm; 0 where no bit differs."""
    found = {}
    for owner in range(run.ranks):
        pairs = zip(run.gradients(owner), right.gradients(owner), strict=True)
        d_k, d_v = (float(np.linalg.norm(mine - other) / np.linalg.norm(other)) for mine, other in pairs)
        found[owner] = d_k, d_v
    return found


def harm(run: Pass, right: Pass, proof: str) -> str:
    """What the bug spoils."""
    off = errors(run, right)
    keys = [rank for rank in off if any(off[rank])]
    d_k, d_v = (max(values) for values in zip(*off.values(), strict=True))
    return (
        f"Wrong gradients of keys and values on {len(keys)} of {run.ranks} ranks. The loss of the step has the "
        f"right bits, but dK is off by up to {d_k:.0%} of its norm, and dV by {d_v:.1%}. {proof}"
    )
