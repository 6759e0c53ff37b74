"""What the audience predicts before a step shows it, and what a speaker says."""

from collections.abc import Sequence

import numpy as np

from minidist.show.demos.collectives.kinds import Kind
from minidist.show.demos.collectives.training import Harm
from minidist.show.player.scene import Cue, Question

DOUBLES = "Every rank that has the array passes it on, so twice as many have it after each step."
ONE_RING = "Each chunk goes around the ring once, one rank in each step, and is at its end after N−1."
WHY_STEPS = {
    ("broadcast", "tree"): ("⌈log2 N⌉", DOUBLES),
    ("broadcast", "naive"): ("N−1", "Rank 0 sends to one rank after the other."),
    ("broadcast", "ring"): ("N−1", "The array moves by one rank in each step, and the last rank is N−1 away."),
    ("ring", "ring"): (
        "2 (N−1)", "N−1 steps until each rank has one whole sum (reduce-scatter), N−1 to pass them on (all-gather)."
    ),
    ("ring", "naive"): ("2 (N−1)", "Rank 0 receives N−1 arrays and sends N−1, one after the other."),
    ("ring", "halving-doubling"): ("2 log2 N", "log2 N swaps of halves, and as many to collect the results."),
    ("reduce-scatter", "ring"): ("N−1", ONE_RING),
    ("all-gather", "ring"): ("N−1", ONE_RING),
    ("all-to-all", "pairwise"): ("N−1", "In each step a rank sends to one other rank, and there are N−1 others."),
}  # fmt: skip
WHY_BYTES = {
    ("broadcast", "tree"): "Rank 0 sends the whole array once in each step.",
    ("broadcast", "naive"): "Rank 0 sends the whole array to each other rank: its link is the bottleneck.",
    ("broadcast", "ring"): "Rank 0 sends the array once, to its neighbour, however many ranks there are.",
    ("ring", "ring"): "A message is a chunk, M/N, and there are 2 (N−1) of them: hardly more with more ranks.",
    ("ring", "naive"): "Rank 0 sends the sum to each other rank: with 1,000 ranks, 999 times.",
    ("ring", "halving-doubling"): "A half, a quarter, an eighth, and the same again on the way back.",
    ("reduce-scatter", "ring"): "One chunk, M/N, in each of N−1 steps: half an all-reduce.",
    ("all-gather", "ring"): "One chunk, M/N, in each of N−1 steps: the other half of an all-reduce.",
    ("all-to-all", "pairwise"): "Every chunk but its own, M/N each.",
}
UNTIL = {
    "broadcast": "every rank has the array",
    "ring": "every rank has the whole sum",
    "reduce-scatter": "every rank has its chunk of the sum",
    "all-gather": "every rank has all chunks",
    "all-to-all": "every rank has what was meant for it",
}


def questions(kind: Kind, algorithm: str, ranks: int, nbytes: int, last: int) -> tuple[Question, ...]:
    """How many steps, and how many bytes: asked of a run that ends with frame ``last``, on arrays of ``nbytes``.

    The audience watches the steps until the end; a frame can answer one question only.
    """
    steps = {
        "⌈log2 N⌉": (ranks - 1).bit_length(), "N−1": ranks - 1, "N": ranks, "2 log2 N": 2 * (ranks.bit_length() - 1),
        "2 (N−1)": 2 * (ranks - 1), "N²": ranks**2,
    }  # fmt: skip
    text, count = kind.formula[algorithm]
    traffic = {
        "M": nbytes, "2 M (N−1)/N": 2 * nbytes * (ranks - 1) / ranks, "N M": ranks * nbytes,
        "M (N−1)/N": nbytes * (ranks - 1) / ranks,
    }  # fmt: skip
    right_steps, why = WHY_STEPS[kind.name, algorithm]
    choices, answer = _choices(right_steps, steps[right_steps], steps, "{} = {:,.0f}")
    watched = last > 2
    text_of_steps = f"After how many steps does {UNTIL[kind.name]}?".replace(" has ", " have ", 1)
    asked = [Question(last if watched else 1, text_of_steps, choices, answer, why, 1)]
    if last > 1:
        choices, answer = _choices(text, count(ranks, nbytes), traffic, "{} = {:,.0f} B")
        why = WHY_BYTES[kind.name, algorithm]
        text_of_bytes = "How many bytes does rank 0 send in all? (M: one array)"
        asked.append(Question(last - 1 if watched else last, text_of_bytes, choices, answer, why))
    return tuple(asked)


def question_of_numbers(ranks: int) -> tuple[Question, ...]:
    """Which number comes out, if rank r begins with r + 1 in chunk a."""
    total = ranks * (ranks + 1) // 2
    wanted = {f"{total}": total, f"{ranks}": ranks, f"{ranks * ranks}": ranks * ranks, f"{total + 1}": total + 1}
    choices, answer = _choices(f"{total}", total, wanted, "{}")
    reason = f"{' + '.join(map(str, range(1, ranks + 1)))} = {total}, whatever the order."
    whole = max(1, ranks - 1)  # the frame with the first whole sums
    return (Question(whole, "Which number will be the whole sum of chunk a?", choices, answer, reason, 1),)


def question_of_bug(kind: Kind, wrong: np.ndarray, total: int, first: int, last: int) -> Question:
    """How far it spreads, from frame ``first`` to ``last``; ``wrong`` marks the cells of the result that are."""
    count, ranks = int(wrong.sum()), len(wrong)
    wanted = {f"{number}": number for number in (count, 1, ranks, total // 2, total)}
    choices, answer = _choices(f"{count}", count, wanted, f"{{}} of {total}", 4)
    spread = "No rank can tell a wrong chunk from a right one: it " + (
        "is added to and passed on like any other." if kind.adds else "is kept, and passed on, like any other."
    )
    alone = "It goes wrong in the last step of its chunk: nobody passes it on."
    text = f"{kind.bug[0].upper()}{kind.bug[1:]}. How many chunks are wrong at the end?"
    return Question(last, text, choices, answer, spread if count > 1 else alone, first)


def question_of_harm(harm: Harm, frame: int) -> Question:
    """What a training run with the bug looks like."""
    falls = bool(np.isfinite(harm.wrong).all() and harm.wrong[-1] < harm.wrong[0])
    return Question(
        frame,
        "Data-parallel training with this bug: what does the loss do?",
        ("it explodes: one sees it at once", "it falls, as if nothing were wrong"),
        int(falls),
        f"It goes from {harm.wrong[0]:.2f} to {harm.wrong[-1]:.2f}, where {harm.right[-1]:.2f} is right. "
        "No error, no hang: only a comparison with one process finds it.",
    )


def cues(kind: Kind, steps: int) -> tuple[Cue, ...]:
    found = [Cue(0, 1, f"{kind.title}. Let the class find rank 1's first message before you step on.")]
    if steps > 2:
        found.append(Cue(steps // 2, 1, "Follow one box around: click it for its history."))
    return (*found, Cue(steps, 1.5, "Compare the bytes below each rank's name: is one link busier than the others?"))


def cues_of_bug(first: int, steps: int, harm: Harm | None) -> tuple[Cue, ...]:
    found = [Cue(first, 1, "One message is wrong. Ask who will be wrong next, then step on.")]
    if harm is not None:
        found.append(Cue(steps + 1, 2, "Ask who would have noticed. Then show where the weights of the ranks are."))
    return tuple(found)


def _choices(
    right: str, value: float, others: dict[str, float], form: str, most: int = 3
) -> tuple[tuple[str, ...], int]:
    """Up to ``most`` answers of different values, in ascending order, and the number of the right one."""
    chosen = {value: right}
    for text, other in others.items():
        if len(chosen) < most:
            chosen.setdefault(other, text)
    ordered: Sequence[float] = sorted(chosen)
    return tuple(form.format(chosen[one], one) for one in ordered), ordered.index(value)
