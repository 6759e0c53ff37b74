"""What the animation of ZeRO says: each rank's memory during a step, next to the bytes by formula."""

from collections.abc import Sequence
from dataclasses import replace

from minidist.show.demos.shared.memory_log import MemoryLog
from minidist.show.demos.shared.stacks import Mark, Stacks
from minidist.show.demos.zero.bug import STALE as STALE_PARAMETERS
from minidist.show.player.scene import Cue, Question, Scene

STAGES = ("replicated", "stage 1", "stage 2", "stage 3")
ALL = {"parameters": ("4", lambda n: 4), "optimizer": ("8", lambda n: 8), "gradients": ("8 + 4", lambda n: 12)}
SHARDS = {
    "parameters": ("4/N", lambda n: 4 / n),
    "optimizer": ("8/N", lambda n: 8 / n),
    "gradients": ("12/N", lambda n: 12 / n),
}
STAGE_1 = SHARDS | {"parameters": ALL["parameters"]}
FORMULAS = (ALL, STAGE_1, STAGE_1, SHARDS)  # bytes per parameter that a rank keeps: as text, and for N ranks
UPDATES_SHARD = "Each rank updates its shard, and the parameters are gathered from all ranks."
NOTES = (
    {
        "zero grad": "Every rank holds all parameters and the whole optimizer state; the old gradients are freed.",
        "forward": "Forward stores activations.",
        "backward": "Activations are freed as float64 gradients appear; every rank gets the sum of all gradients.",
        "optimizer": "Gradients are averaged into float32 copies, and every rank updates everything.",
    },
    {
        "zero grad": "Memory for all gradients is allocated; each rank holds its shard of the optimizer state alone.",
        "forward": "Forward stores activations.",
        "backward": "Gradients are filled in; after backward they are summed, and each rank keeps its shard.",
        "optimizer": UPDATES_SHARD,
    },
    {
        "zero grad": "Each rank holds only its shard of the optimizer state and of the gradients.",
        "forward": "Forward stores activations.",
        "backward": "As soon as a block's gradients are complete, they are summed, and each rank keeps its shard.",
        "optimizer": UPDATES_SHARD,
    },
    {
        "zero grad": "Between steps, a rank holds its shard of everything and nothing else.",
        "forward": "A block's parameters are gathered just before it runs, and resharded after it.",
        "backward": "Parameters are gathered once more, and gradients are reduce-scattered, block by block.",
        "optimizer": "Each rank updates its shard; the next forward gathers what it needs.",
    },
)


def stale_mark(held: MemoryLog, nbytes: int) -> Mark:
    """Mark from the gather that skips a block to the next gather."""
    (start, _), (end, _) = held.places("sync parameters")
    return Mark(start, end, "wrong", "last block stale", nbytes)


def stale_marks(held: MemoryLog, nbytes: int) -> list[Mark]:
    """Mark each time in stage 3 that the block is unsharded."""
    return [Mark(start, end, "wrong", "last block stale", nbytes) for start, end in held.places(STALE_PARAMETERS)]


def of_stage(
    stage: int, held: MemoryLog, ranks: int, most: int, total: int, verdict: str, details: str,
    marks: Sequence[Mark] = (), before: MemoryLog | None = None,
) -> Scene:  # fmt: skip
    """What rank 0 of ``ranks`` holds.

    Args:
        most: the bytes that fill the height.
        total: the number of parameters.
        marks: marks of a bug.
        before: what it holds one stage earlier.
    """
    formulas = FORMULAS[stage]
    keeps = {kind: (words, count(ranks)) for kind, (words, count) in formulas.items()}

    def facts(rank: MemoryLog, place: float) -> dict[str, str]:
        now = rank.at(place)
        found = {}
        for kind, (words, value) in keeps.items():
            formula = words + (f" = {value:g}" if words != f"{value:g}" else "")
            most_so_far = rank.highest(kind, end=place) / total
            found[kind] = f"{now[kind] / total:.2f}, peak {most_so_far:.2f}, formula {formula}"
        highest = rank.highest("activations", end=place)
        found["activations"] = f"{now['activations'] / total:.2f}, peak {highest / total:.2f}"
        found["total, rank 0"] = (
            f"{sum(now.values()) / total:.2f}, peak {rank.highest(end=place) / total:.2f} B per parameter"
        )
        return found

    kept = total * sum(value for _, value in keeps.values())
    key = {"kept, by formula": "ink"} | ({"stale parameters": "wrong"} if marks else {})
    shown = Stacks([held], most, kept, NOTES[stage], facts, [marks], key)
    name = f"broken {STAGES[stage]}" if marks and stage > 1 else "broken" if marks else STAGES[stage]
    title = f"As measured here, {STAGES[stage]}: rank 0 of {ranks}, two steps, float32, {total:,} parameters"
    made = shown.scene(name, title, verdict)
    backward = int(held.places("backward")[0][0] * len(made.frames))
    if marks:
        return replace(made, details=details, twin=STAGES[stage], cues=(Cue(0, 2, STALE),))
    return replace(
        made,
        details=details,
        questions=(_peak(held, before, max(1, backward), total),),
        cues=(Cue(0, 1, CUE), Cue(backward, 1, NOTES[stage]["backward"])),
    )


CUE = "The horizontal axis is not time: every change of the ledger takes the same width. Two steps are shown."
STALE = "No height changes: the ledger counts bytes and knows nothing of their contents. Only the bits tell."


def _peak(held: MemoryLog, before: MemoryLog | None, frame: int, total: int) -> Question:
    """Asked before backward."""
    if before is None:
        kinds = ("parameters", "optimizer", "gradients", "activations")
        most = [held.highest(kind) / total for kind in kinds]
        sizes = ", ".join(f"{kind} {size:.1f}" for kind, size in zip(kinds, most, strict=True))
        text = "What takes the most memory at its peak?"
        return Question(frame, text, kinds, most.index(max(most)), f"Bytes per parameter at most: {sizes}.")
    ratio = held.highest() / before.highest()
    return Question(
        frame,
        "How high is the peak, next to one stage earlier?",
        ("as high", "lower by up to a quarter", "lower by more"),
        sum(ratio < limit for limit in (0.98, 0.75)),
        f"{held.highest() / total:.1f} instead of {before.highest() / total:.1f} bytes per parameter. What is kept "
        "between steps and the peak within a step are two things.",
    )
