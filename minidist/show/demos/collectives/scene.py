"""What the animation of a collective says: its frames, next to the cost by formula, and where the bug shows."""

import numpy as np

from minidist.show.demos.collectives import picture
from minidist.show.demos.collectives.kinds import Kind
from minidist.show.demos.collectives.run import Step
from minidist.show.player.scene import Frame, Scene
from minidist.verify.ulps import in_words, ulps_between


def same(found: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Where the bits are the same, or the right answer is NaN, which means undefined."""
    return np.isnan(right) | (found.view(np.uint64) == right.view(np.uint64))


def of_steps(kind: Kind, name: str, steps: list[Step], algorithm: str, right: list[Step], outcome: str = "") -> Scene:
    """A scene of a run; ``right`` is the same run without the bug, and ``outcome`` the verdict of a broken run."""
    formula, count = kind.formula[algorithm]
    ranks, size = steps[0].numbers.shape
    limit = count(ranks, 8 * size)
    frames, first_wrong, was_wrong = [], None, np.zeros((ranks, ranks), bool)
    for number, step in enumerate(steps):
        expected = right[min(number, len(right) - 1)].values
        wrong = step.values != expected
        if wrong.any() and first_wrong is None:
            first_wrong = number
        before = steps[max(0, number - 1)].values
        facts = {
            "step": f"{number} of {len(steps) - 1}",
            "busiest rank so far": f"{max(step.nbytes):,} B",
            f"formula {formula}": f"{limit:,.0f} B",
            "M": f"{8 * size:,} B",
        }
        shapes = picture.draw(step.values, before, step.messages, step.nbytes, wrong, kind.columns)
        frames.append(
            Frame(shapes, _note(number, kind.says[algorithm](number, ranks), wrong & ~was_wrong, wrong), facts)
        )
        was_wrong = wrong
    outcome = outcome or "At the end, every number matches the single-process result bit for bit."
    title = f"{kind.title} · {algorithm}, {ranks} ranks, {size:,} float64 each"
    last = len(steps) - 1
    stills = tuple(sorted({0, 1, 2, last // 2, last // 2 + 1, last} & set(range(last + 1))))
    key = {"just changed": "ink", "wrong": "wrong"} if first_wrong is not None else {"just changed": "ink"}
    return Scene(name, title, tuple(frames), picture.height(ranks), key, outcome, first_wrong, stills)


def _note(number: int, says: str, newly_wrong: np.ndarray, wrong: np.ndarray) -> str:
    if not number:
        return "Before: a letter is a chunk; a digit and a colour are the rank it comes from."
    text = f"Step {number}: {says}."
    if newly_wrong.any():
        places = [f"{'abcdefgh'[chunk]} on rank {rank}" for rank, chunk in np.argwhere(newly_wrong)]
        text += f" Wrong from now on: {', '.join(places[:3])}{' and more' if len(places) > 3 else ''}."
    elif wrong.any():
        text += f" {wrong.sum()} of {wrong.size} chunks are wrong."
    return text


def verdict(kind: Kind, bad: list[Step], good: list[Step], right: np.ndarray) -> str:
    """Where the broken collective goes wrong: step, rank, and the first wrong number of its result."""
    step = next(i for i, (one, other) in enumerate(zip(bad, good, strict=True)) if (one.values != other.values).any())
    rank, chunk = (int(i) for i in np.argwhere(bad[step].values != good[step].values)[0])
    text = f"First wrong in step {step}: {kind.columns.format('abcdefgh'[chunk])} on rank {rank}."
    place = np.argwhere(~same(bad[-1].numbers, right))[0]
    found, expected = bad[-1].numbers[tuple(place)], right[tuple(place)]
    return text + (
        f" At the end, element {place[1]} of rank {place[0]}: expected {expected:.6g}, got {found:.6g}, "
        f"{in_words(ulps_between(found, expected))} apart."
    )
