"""Ulysses: an all-to-all turns some tokens of all heads into all tokens of one head; a second one turns them back."""

from collections.abc import Sequence

from minidist.show.demos.context_parallel.heads_run import Exchanged, Place, same
from minidist.show.palette import of_rank
from minidist.show.player.scene import WIDTH, Box, Frame, Label, Scene, Shape

NAME = "Ulysses"
TITLE = "Ulysses: some tokens of all heads become all tokens of one head"
HEIGHT, TOP = 13.0, 4.0  # lines; where the squares begin
QKV, Y = "QKV", "y"


def scene_of(
    name: str, run: Sequence[Sequence[Exchanged]], right: Sequence[Sequence[Exchanged]], ring_bytes: int, verdict: str,
    **more,
) -> Scene:  # fmt: skip
    """The scene.

    Args:
        run: both all-to-alls, each with an entry for every rank.
        right: those without the bug, which may be ``run``.
        ring_bytes: what a rank sends in forward of a ring with as many tokens and as wide heads.
        more: further fields of the Scene.
    """
    there, back = run
    stale = {place for one in there for place in one.after} - same(there, right[0])
    wrong = {place for one in back for place in one.after} - same(back, right[1])
    sent = [sum(exchange[0].nbytes for exchange in run[:count]) for count in (0, 1, 2)]
    ranks = len(there)
    moments = (
        ("Each rank has some tokens (a row of chunks), with the queries, keys and values of every head.",
         there, False, QKV, set(), False, 0),
        ("All-to-all: each rank sends every other rank one head. Then it has all tokens of its own head.",
         there, True, QKV, stale, False, 1),
        ("Attention as on one GPU: all tokens of a head are here. Same work on each rank, no message.",
         back, False, Y, wrong, True, 1),
        ("A second all-to-all brings the outputs home: again some tokens, all heads.",
         back, True, Y, wrong, False, 2),
    )  # fmt: skip
    frames = []
    for note, exchange, after, text, bad, working, count in moments:
        if bad:
            note = _wrong(text, len(bad), ranks * ranks)
        facts = {"a rank has sent": f"{sent[count]:,} B", "a ring would send": f"{ring_bytes:,} B", "heads": str(ranks)}
        frames.append(Frame(_draw(exchange, after, text, bad, working), note, facts))
    key = {f"tokens of rank {rank}": of_rank(rank) for rank in range(ranks)} | ({"wrong": "wrong"} if stale else {})
    return Scene(name, TITLE, tuple(frames), HEIGHT, key, verdict, 1 if stale else None, (0, 1, 3), **more)


def _wrong(text: str, count: int, places: int) -> str:
    if text == QKV:
        return f"Wrong: each rank put its own keys and values in {count} of {places} places. All shapes fit."
    return f"Wrong outputs in {count} of {places} places: a head has seen the same keys again and again."


def _draw(exchange: Sequence[Exchanged], after: bool, text: str, wrong: set[Place], working: bool) -> tuple[Shape, ...]:
    """A square for each rank, tokens down and heads across, in which it fills what it has."""
    ranks = len(exchange)
    pitch = WIDTH / ranks
    left = 2.0 if ranks <= 5 else 0.6  # of a square in its part
    wide, high = (pitch - left - 0.6) / ranks, (HEIGHT - TOP - 2.2) / ranks
    shapes: list[Shape] = []
    for rank, one in enumerate(exchange):
        x = rank * pitch
        shapes.append(Box(x + left, 0.1, pitch - left - 0.8, 1.2, of_rank(rank), f"rank {rank}", str(rank),
                          "ink" if working else None))  # fmt: skip
        if not rank:
            shapes.append(Label(left, 2.4, "heads → tokens ↓" if ranks <= 4 else "heads →", "faint"))
        for head in range(ranks):
            number = f"{head}" if rank or wide < 2 else f"h{head}"
            shapes.append(Label(x + left + (head + 0.5) * wide, 3.4, number, "ink", "middle"))
            if ranks <= 5:
                shapes.append(Label(x + left - 0.5, TOP + (head + 0.5) * high, str(head), "ink", "end"))
            for chunk in range(ranks):
                box = x + left + head * wide, TOP + chunk * high, wide - 0.2, high - 0.15
                shapes.append(Box(*box, None, outline="faint", mark=" "))
        for chunk, head in one.after if after else one.before:
            place = x + left + head * wide, TOP + chunk * high, wide - 0.2, high - 0.15
            bad = (chunk, head) in wrong
            fill, mark = ("wrong", "!") if bad else (of_rank(chunk), str(chunk))
            written = "!" if bad else text if len(text) <= wide - 0.2 else ""
            thing = f"tokens {chunk} of head {head}"
            outline = "ink" if working else "faint"
            shapes.append(Box(*place, fill, written, mark, outline, thing))
        for line, words in enumerate(_has(one, after)):
            if len(words) < pitch:
                shapes.append(Label(x + left + (pitch - left - 0.8) / 2, HEIGHT - 1.7 + line, words, "ink", "middle"))
    return tuple(shapes)


def _has(one: Exchanged, after: bool) -> tuple[str, str]:
    """What a rank has, in words."""
    places = list(one.after if after else one.before)
    chunks, heads = ({place[axis] for place in places} for axis in (0, 1))
    if len(heads) > 1:
        return f"1/{len(heads)} of tokens", "all heads"
    return "all tokens" if len(chunks) > 1 else "", f"head {min(heads)}"


def harm(run: Sequence[Sequence[Exchanged]], right: Sequence[Sequence[Exchanged]], proof: str) -> str:
    """What the bug spoils."""
    places = {place for one in run[1] for place in one.after}
    wrong = places - same(run[1], right[1])
    return f"Wrong outputs in {len(wrong)} of {len(places)} places. {proof}"
