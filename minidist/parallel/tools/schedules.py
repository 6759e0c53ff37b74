"""Pipeline schedules as plain data: the list of actions of each rank, in order.

The layers are cut into stages 0, 1, ...; a micro-batch goes forward through all of them and backward again. An action
names a stage, what it does and a micro-batch, and is written in the field's form: ``2F0`` is stage 2's forward of
micro-batch 0. The kinds of actions are

    F    forward
    B    backward: the gradient of the stage's input and those of its weights
    I    the first half of a backward: the gradient of the input, which the previous stage waits for
    W    the second half: the gradients of the weights, which nobody waits for

(PyTorch's ``torch.distributed.pipelining.schedules`` writes them alike.) A schedule is a pure function of the rank, the
number of ranks and of micro-batches; nothing here runs or sends anything. ``schedule_check.py`` proves a schedule and
computes when each of its actions happens; ``pipeline.py`` runs any.
"""

import re
from dataclasses import dataclass

from minidist.overrides import overridable


@dataclass(frozen=True, order=True)
class Action:
    """One stage's work for one micro-batch; stages and micro-batches are counted from 0."""

    stage: int
    kind: str  # "F", "B", "I" or "W"
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """Parse an action such as ``2F0``.

        Raises:
            ValueError: if the text is not an action.
        """
        match = re.fullmatch(r"([0-9]+)([FBIW])([0-9]+)", text)
        if not match:
            raise ValueError(f"{text!r} is not an action: write stage, F, B, I or W, and micro-batch, as in 2F0")
        return cls(int(match[1]), match[2], int(match[3]))


def naive(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """Naive schedule: one micro-batch at a time, so only one rank works at any moment."""
    return [Action(rank, kind, i) for i in range(micro_batches) for kind in "FB"]


@overridable
def gpipe(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """GPipe: all forwards, then all backwards (Huang et al., "GPipe", 2019). Every micro-batch is in flight at once."""
    return [Action(rank, kind, i) for kind in "FB" for i in range(micro_batches)]


@overridable
def one_f_one_b(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """1F1B: as soon as a backward can run, backward and forward take turns, so that few micro-batches are in flight.

    (PipeDream-Flush: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", 2021.) Before its first
    backward a rank runs one forward for each rank after it, and one more.
    """
    ahead = min(ranks - 1 - rank, micro_batches)
    actions = [Action(rank, "F", i) for i in range(ahead)]
    for i in range(micro_batches - ahead):
        actions += [Action(rank, "F", ahead + i), Action(rank, "B", i)]
    return actions + [Action(rank, "B", i) for i in range(micro_batches - ahead, micro_batches)]


@overridable
def interleaved_1f1b(rank: int, ranks: int, micro_batches: int, virtual: int) -> list[Action]:
    """1F1B with several stages on each rank: rank r has stages r, r + ranks, r + 2 ranks, ... (``virtual`` of them).

    A stage is shorter, so the pipeline fills and drains in 1/virtual of the time. There are ``virtual`` times as many
    messages, and more micro-batches in flight (with ``virtual`` 1 too: up to 2 (ranks - rank) - 1). Micro-batches go
    in rounds of ``ranks``: each round through a rank's first stage, then through its second, and so on.
    (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", 2021.)

    Raises:
        ValueError: if ``micro_batches`` is not a multiple of ``ranks``.
    """
    if micro_batches % ranks:
        raise ValueError(
            f"interleaved 1F1B takes micro-batches in rounds of {ranks}, but {micro_batches} is not a multiple of "
            f"{ranks}"
        )
    total = micro_batches * virtual

    def nth(kind: str, n: int) -> Action:
        """Return the rank's n-th forward, or backward, over all of its stages."""
        round_of_all, place = divmod(n, ranks * virtual)
        turn, within = divmod(place, ranks)
        chunk = turn if kind == "F" else virtual - 1 - turn
        return Action(chunk * ranks + rank, kind, round_of_all * ranks + within)

    ahead = min((ranks - 1 - rank) * 2 + (virtual - 1) * ranks, total)
    actions = [nth("F", n) for n in range(ahead)]
    for n in range(total - ahead):
        actions += [nth("F", ahead + n), nth("B", n)]
    return actions + [nth("B", n) for n in range(total - ahead, total)]


@overridable
def zero_bubble_h1(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """ZB-H1: 1F1B with each backward in two halves; the second fills slots that would be idle.

    I, which the previous rank waits for, runs at once; W, which nobody waits for, runs ``rank`` micro-batches later. So
    no rank holds more than 1F1B's first rank. (Qi et al., "Zero Bubble Pipeline Parallelism", 2023.)
    """
    ahead = min(ranks - 1 - rank, micro_batches)
    actions = [Action(rank, "F", i) for i in range(ahead)]
    for i in range(micro_batches):
        if ahead + i < micro_batches:
            actions.append(Action(rank, "F", ahead + i))
        actions.append(Action(rank, "I", i))
        if i >= rank:
            actions.append(Action(rank, "W", i - rank))
    return actions + [Action(rank, "W", i) for i in range(max(0, micro_batches - rank), micro_batches)]


SCHEDULES = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved_1f1b,
    "zb-h1": zero_bubble_h1,
}


def schedule(name: str, ranks: int, micro_batches: int, virtual: int = 1) -> list[list[Action]]:
    """Return the actions of every rank.

    Args:
        name: one of SCHEDULES.
        ranks, micro_batches: number of ranks, and of micro-batches.
        virtual: number of stages on each rank, for the interleaved schedule.

    Raises:
        ValueError: if there is no such schedule, or it does not support that number of micro-batches.
    """
    if name not in SCHEDULES:
        raise ValueError(f"schedule {name!r}: choose from {', '.join(SCHEDULES)}")
    more = (virtual,) if name == "interleaved" else ()
    return [SCHEDULES[name](rank, ranks, micro_batches, *more) for rank in range(ranks)]


def written(actions: list[Action]) -> str:
    """Write a rank's actions in one line: ``0F0 0F1 0B0 0B1``."""
    return " ".join(map(str, actions))
