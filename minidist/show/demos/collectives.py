"""The animations of collectives: their boards step by step, beside what each should cost, and where a bug shows."""

from dataclasses import replace

import numpy as np

from minidist import overrides
from minidist.show.demos import board, broken_collectives
from minidist.show.demos.kinds import Kind, programs_for
from minidist.show.demos.runs import WarmRanks, told, warm_ranks
from minidist.show.demos.steps import Step, numbers_of, watched
from minidist.show.player.animation import Animation
from minidist.show.player.scene import Frame, Scene
from minidist.train.config import TrainConfig
from minidist.train.trainer import train_rank
from minidist.verify.ulps import in_words, ulps_between

MODEL = TrainConfig(layers=2, heads=4, width=32, context=16, global_batch=16, micro_batch=1, steps=2)


def animation(kind: Kind, ranks: int, size: int, seed: int) -> Animation:
    """Run the collective as it should be and broken, on so many ranks with ``size`` numbers in each chunk."""
    size *= ranks  # from here on: numbers in each array
    with warm_ranks() as warm:
        runs = {
            name: watched(kind, program, warm, ranks, size, seed) for name, program in programs_for(kind, ranks).items()
        }
        first = next(iter(kind.programs))
        bad, _ = watched(kind, kind.broken, warm, ranks, size, seed)
        right = _one_process(kind, ranks, size, seed)
        for name, (steps, _) in runs.items():
            if not _same(steps[-1].numbers, right).all():
                raise RuntimeError(f"{kind.name}, {name}, differs from one process: this is a fault of minidist")
        consequence = _consequence(kind, warm, ranks, seed)
    scenes = tuple(_scene(kind, name, steps, name, steps) for name, (steps, _) in runs.items())
    verdict = " ".join(filter(None, (_verdict(kind, bad, runs[first][0], right), consequence)))
    broken = _scene(kind, "broken", bad, first, runs[first][0], verdict)
    return Animation(kind.name, kind.title, scenes, broken, kind.bug, runs[first][1])


def _one_process(kind: Kind, ranks: int, size: int, seed: int) -> np.ndarray:
    return kind.ends(np.stack([numbers_of(rank, size, seed) for rank in range(ranks)]))


def _same(found: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Bit for bit, but anything where the right answer is NaN."""
    return np.isnan(right) | (found.view(np.uint64) == right.view(np.uint64))


def _scene(kind: Kind, name: str, steps: list[Step], algorithm: str, right: list[Step], verdict: str = "") -> Scene:
    formula, count = kind.formula[algorithm]
    ranks, size = steps[0].numbers.shape
    limit = count(ranks, 8 * size)
    frames, first_wrong, was_wrong = [], None, np.zeros((ranks, ranks), bool)
    for number, step in enumerate(steps):
        as_it_should_be = right[min(number, len(right) - 1)].values
        wrong = step.values != as_it_should_be
        if wrong.any() and first_wrong is None:
            first_wrong = number
        before = steps[max(0, number - 1)].values
        facts = {
            "step": f"{number} of {len(steps) - 1}",
            "busiest rank so far": f"{max(step.nbytes):,} B",
            f"formula {formula}": f"{limit:,.0f} B",
            "M": f"{8 * size:,} B",
        }
        shapes = board.draw(step.values, before, step.messages, step.nbytes, wrong, kind.columns)
        frames.append(
            Frame(shapes, _note(number, kind.says[algorithm](number, ranks), wrong & ~was_wrong, wrong), facts)
        )
        was_wrong = wrong
    if not verdict:
        verdict = "At the end every number is the same as in one process, bit for bit."
    title = f"{kind.title} · {algorithm}, {ranks} ranks, {size:,} float64 each"
    last = len(steps) - 1
    stills = tuple(sorted({0, 1, 2, last // 2, last // 2 + 1, last} & set(range(last + 1))))
    key = (
        {"just changed": "ink", "not as it should be": "wrong"} if first_wrong is not None else {"just changed": "ink"}
    )
    return Scene(name, title, tuple(frames), board.height(ranks), key, verdict, first_wrong, stills)


def _note(number: int, says: str, newly_wrong: np.ndarray, wrong: np.ndarray) -> str:
    if not number:
        return "Before: a letter is a chunk, a digit and a colour the rank that it comes from."
    text = f"Step {number}: {says}."
    if newly_wrong.any():
        places = [f"{'abcdefgh'[chunk]} on rank {rank}" for rank, chunk in np.argwhere(newly_wrong)]
        text += f" Wrong from now on: {', '.join(places[:3])}{' and more' if len(places) > 3 else ''}."
    elif wrong.any():
        text += f" {wrong.sum()} of {wrong.size} chunks are wrong."
    return text


def _verdict(kind: Kind, bad: list[Step], good: list[Step], right: np.ndarray) -> str:
    """Where the broken collective parts: step, rank, and of its result the first wrong number."""
    step = next(i for i, (one, other) in enumerate(zip(bad, good, strict=True)) if (one.values != other.values).any())
    rank, chunk = (int(i) for i in np.argwhere(bad[step].values != good[step].values)[0])
    text = f"First wrong in step {step}: {kind.columns.format('abcdefgh'[chunk])} on rank {rank}."
    place = np.argwhere(~_same(bad[-1].numbers, right))[0]
    found, expected = bad[-1].numbers[tuple(place)], right[tuple(place)]
    return text + (
        f" At the end element {place[1]} of rank {place[0]} is {found:.6g} instead of {expected:.6g}, "
        f"{in_words(ulps_between(found, expected))} apart."
    )


def _consequence(kind: Kind, warm: WarmRanks, ranks: int, seed: int) -> str:
    """What the bug does to a training run, where one uses this collective."""
    if kind.trains_on is None:
        return ""
    layout_of, function = kind.trains_on
    config = replace(MODEL, seed=seed)

    def plugged(world, config, layout, options):
        overrides.override({function: getattr(broken_collectives, function)})
        try:
            return train_rank(world, config, layout, options)
        finally:
            overrides.override({})

    layout = layout_of(ranks)
    return told(warm.parting(config, warm.train(config, layout, plugged), plugged))
