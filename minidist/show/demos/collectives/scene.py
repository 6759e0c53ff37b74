"""What the animation of a collective says: its frames, next to the cost by formula, and where the bug shows."""

from dataclasses import replace

import numpy as np

from minidist.show.demos.collectives import lecture
from minidist.show.demos.collectives.code import CODE
from minidist.show.demos.collectives.kinds import Kind
from minidist.show.demos.collectives.pictures import cells, harm, height, network
from minidist.show.demos.collectives.pictures.travel import journeys
from minidist.show.demos.collectives.run import Step
from minidist.show.demos.collectives.training import Harm
from minidist.show.figures.contributions import LETTERS
from minidist.show.player.scene import Frame, Scene
from minidist.verify.ulps import in_words, ulps_between

NUMBERS = "numbers"  # the scene that shows the first algorithm on small integers


def same(found: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Where the bits are the same, or the right answer is NaN, which means undefined."""
    return np.isnan(right) | (found.view(np.uint64) == right.view(np.uint64))


def of_steps(
    kind: Kind, algorithm: str, steps: list[Step], right: list[Step], defined: np.ndarray, in_numbers: bool = False
) -> Scene:
    """A scene of a run.

    Args:
        right: the same run without the bug, which may be ``steps``.
        defined: (ranks, chunks) bool, what of the arrays is the collective's result.
        in_numbers: show sums of small integers above whose contributions they are.
    """
    ranks, size = steps[0].numbers.shape
    wrongs = [step.values != other.values for step, other in zip(steps, right, strict=True)]
    first_wrong = next((number for number, wrong in enumerate(wrongs) if wrong.any()), None)
    places, travelling, code = kind.places_of(algorithm, ranks), journeys(steps), CODE[kind.name, algorithm]
    frames = []
    for number, (step, wrong) in enumerate(zip(steps, wrongs, strict=True)):
        text_of = _sum_in(step) if in_numbers else None
        changed = step.values != steps[max(0, number - 1)].values
        done = defined & (step.values == right[-1].values)
        shapes = (
            *network.draw(places, step, travelling, number, wrong, kind.adds, text_of),
            *cells.draw(step.values, changed, wrong, done, kind.columns, kind.adds, text_of),
        )
        note = _note(kind, algorithm, number, ranks, wrong, wrongs[max(0, number - 1)], in_numbers)
        facts = _facts(kind, algorithm, number, steps)
        frames.append(Frame(shapes, note, facts, lines=code.at(number, ranks)))
    last = len(steps) - 1
    key = {"just changed": "ink", "result": "right"} | ({} if first_wrong is None else {"wrong": "wrong"})
    return Scene(
        NUMBERS if in_numbers else algorithm,
        f"{kind.title} · {algorithm}" + (" in small integers" if in_numbers else ""),
        tuple(frames),
        height(ranks),
        key,
        "At the end, every number matches the single-process result bit for bit.",
        first_wrong,
        tuple(sorted({0, 1, 2, last // 2, last // 2 + 1, last} & set(range(last + 1)))),
        questions=lecture.question_of_numbers(ranks)
        if in_numbers
        else lecture.questions(kind, algorithm, ranks, 8 * size, last),
        cues=lecture.cues(kind, last),
        code=code.lines,
    )


def broken(
    kind: Kind,
    algorithm: str,
    steps: list[Step],
    right: list[Step],
    defined: np.ndarray,
    details: str,
    training: Harm | None = None,
    in_numbers: bool = False,
) -> Scene:
    """Draw the scene with the bug, and after it what the bug does to a training run."""
    scene = of_steps(kind, algorithm, steps, right, defined, in_numbers)
    wrong = defined & (steps[-1].values != right[-1].values)
    asked = [lecture.question_of_bug(kind, wrong, int(defined.sum()), scene.first_wrong, len(steps) - 1)]
    frames = scene.frames
    if training is not None:
        asked.append(lecture.question_of_harm(training, len(frames)))
        frames = (*frames, *_harm(training, frames[-1], wrong, defined))
    name = "broken" if training is not None or scene.name == next(iter(kind.programs)) else f"broken {scene.name}"
    return replace(
        scene,
        name=name,
        frames=frames,
        twin=scene.name,
        verdict=f"Wrong {'sum' if kind.adds else 'data'} in {wrong.sum()} of {defined.sum()} chunks.",
        details=details,
        stills=tuple(sorted({*scene.stills, len(frames) - 1})),
        questions=tuple(asked),
        cues=lecture.cues_of_bug(scene.first_wrong, len(steps) - 1, training),
    )


def _harm(training: Harm, last: Frame, wrong: np.ndarray, defined: np.ndarray) -> list[Frame]:
    """Two frames, whose facts are those of the collective's last one."""
    loss = f"{len(training.right)} training steps with this bug: the loss falls, as if nothing were wrong."
    drift = "But the weights leave the right ones. 100 % is as far as the right ones have moved in all these steps."
    return [
        replace(last, shapes=harm.draw(training, shown, wrong, defined), note=note, lines=())
        for shown, note in ((False, loss), (True, drift))
    ]


def _sum_in(step: Step):
    return lambda rank, chunk: str(step.integers[rank, chunk])


def _facts(kind: Kind, algorithm: str, number: int, steps: list[Step]) -> dict[str, str]:
    ranks, size = steps[0].numbers.shape
    formula, count = kind.formula[algorithm]
    return {
        "step": f"{number} of {len(steps) - 1}",
        "busiest rank so far": f"{max(steps[number].nbytes):,} B",
        f"formula {formula}": f"{count(ranks, 8 * size):,.0f} B",
        "M": f"{8 * size:,} B",
    }


def _note(
    kind: Kind, algorithm: str, number: int, ranks: int, wrong: np.ndarray, was_wrong: np.ndarray, in_numbers: bool
) -> str:
    if not number and in_numbers:
        return "Before: rank 0 has 1, 2, 3 and so on, rank 1 twice as much. Colours: whose numbers are in a sum."
    if not number:
        return "Before: a letter is a chunk; a digit and a colour are the rank it comes from."
    text = f"Step {number}: {kind.says[algorithm](number, ranks)}."
    if (newly_wrong := wrong & ~was_wrong).any():
        places = [f"{LETTERS[chunk]} on rank {rank}" for rank, chunk in np.argwhere(newly_wrong)]
        text += f" Wrong from now on: {', '.join(places[:3])}{' and more' if len(places) > 3 else ''}."
    elif wrong.any():
        text += f" {wrong.sum()} of {wrong.size} chunks are wrong."
    return text


def details(kind: Kind, bad: list[Step], good: list[Step], right: np.ndarray) -> str:
    """Where the broken collective goes wrong: step, rank, and the first wrong number of its result."""
    step = next(i for i, (one, other) in enumerate(zip(bad, good, strict=True)) if (one.values != other.values).any())
    rank, chunk = (int(i) for i in np.argwhere(bad[step].values != good[step].values)[0])
    text = f"First wrong in step {step}: {kind.columns.format(LETTERS[chunk])} on rank {rank}."
    place = np.argwhere(~same(bad[-1].numbers, right))[0]
    found, expected = bad[-1].numbers[tuple(place)], right[tuple(place)]
    return text + (
        f" At the end, element {place[1]} of rank {place[0]}: expected {expected:.6g}, got {found:.6g}, "
        f"{in_words(ulps_between(found, expected))} apart."
    )
