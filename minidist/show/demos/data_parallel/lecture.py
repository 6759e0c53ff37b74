"""What the demonstration of data parallelism asks before it shows it; the answers are computed from what was run."""

from collections.abc import Mapping, Sequence

from minidist.show.demos.data_parallel.steps import Step
from minidist.show.demos.shared.lanes import MS
from minidist.show.player.scene import Question


def place(value: float, limits: Sequence[float]) -> int:
    """The number of the choice that a value is in: below the first limit, below the second, ..."""
    return sum(value >= limit for limit in limits)


def hidden(step: Step, frame: int, link: str) -> Question:
    late = sum(event.end > step.backward_ends for event in step.sent)
    return Question(
        frame,
        f"How much of the all-reduces does backward hide at {link}?",
        ("none", "less than half", "more than half", "all of it"),
        place(step.hidden, (0.005, 0.5, 0.995)),
        f"{step.hidden:.0%}. The last bucket is full only when backward ends, so it is always exposed; here {late} of "
        f"{len(step.sent)} messages are on the network after backward.",
    )


def after_backward(steps: Mapping[str, Step], frame: int) -> Question:
    step, overlapped = steps["bucketed"], steps["overlapped"]
    more = step.end / overlapped.end - 1
    return Question(
        frame,
        f"The same {len(step.sent)} messages, all of them after backward: how much longer is the step?",
        ("not longer", "up to a quarter", "up to a half", "more than that"),
        place(more, (0.01, 0.25, 0.5)),
        f"By {more:.0%}: {step.end / MS:.1f} ms instead of {overlapped.end / MS:.1f} ms. What was hidden is exposed.",
    )


def many_messages(steps: Mapping[str, Step], frame: int, latency: str) -> Question:
    step, bucketed = steps["naive"], steps["bucketed"]
    times = [(one.summed - one.backward_ends) / MS for one in (step, bucketed)]
    more = times[0] / times[1] - 1
    return Question(
        frame,
        f"{len(step.sent)} all-reduces instead of {len(bucketed.sent)}, the same bytes: how much longer do they take "
        f"with {latency} of latency?",
        ("not longer", "up to a half longer", "up to twice as long", "even longer"),
        place(more, (0.02, 0.5, 1)),
        f"{times[0]:.1f} ms instead of {times[1]:.1f} ms: every all-reduce pays the latency of all its hops, however "
        "short it is.",
    )


def gain(steps: Mapping[str, Step]) -> float:
    """The share of bucketed's step that overlap saves."""
    return 1 - steps["overlapped"].end / steps["bucketed"].end


def gains_here(measured: Mapping[str, Step], on_gpus: Mapping[str, Step], frame: int, cores: int) -> Question:
    here, there = gain(measured), gain(on_gpus)
    times = " and ".join(f"{measured[sync].end / MS:.1f} ms ({sync})" for sync in ("overlapped", "bucketed"))
    return Question(
        frame,
        f"On GPUs, overlap saves {there:.0%} of bucketed's step. And here, where {cores} cores do both?",
        ("nothing", "less than that", "as much or more"),
        place(here, (0.005, there)),
        f"{times}: {here:.0%} saved, and it varies from run to run. A core that carries a message computes nothing "
        "meanwhile, so hiding it slows backward down. A GPU's network needs no core.",
    )


def exact(frame: int, steps: int) -> Question:
    return Question(
        frame,
        f"Sums over ranks round. How far are the ranks from the single-process run after {steps} steps?",
        ("0: not a bit", "about 1e-7, one rounding", "it grows with every step"),
        0,
        "Gradients are summed in float64 and rounded once, so the order of the ranks does not show.",
    )


def unnoticed(frame: int, losses: str) -> Question:
    return Question(
        frame,
        "One bucket is never summed. What will you notice?",
        ("the step hangs", "the loss explodes", "nothing"),
        2,
        f"The loss falls as it should ({losses}). Only the weights show it: each rank trains its own model.",
    )
