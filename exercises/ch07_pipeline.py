"""Chapter 7: pipeline parallelism, in which every rank has some of the layers, and micro-batches follow each other.

The layers are cut into stages 0, 1, ..., which lie on the ranks in turn: stage s on rank s % p, p being the number of
ranks, and m that of the micro-batches in a step. So if each rank has one stage, it has the number of its rank. A
schedule is plain data: for each rank the list of its actions, in order.

**Actions.** ``Action(stage, kind, micro_batch)``, all counted from 0, is written ``2F0``: the forward of micro-batch 0
through stage 2. Two actions are equal if all three are, and an Action can be a key of a dict. The kinds are

    F    forward
    B    backward: the gradient of the stage's input, and those of its weights
    I    the first half of a backward: the gradient of the input
    W    the second half: the gradients of the weights

**What an action waits for**, besides the actions before it on its own rank:

    F    the F of the same micro-batch on the stage before, whose output it takes
    B    the F of the same micro-batch on its own stage, and the backward of that micro-batch on the stage behind, whose
         gradient it takes: its B or its I, whichever there is
    I    the same
    W    its own I

**Slots.** Schedules are compared as if messages took no time, an F took one slot, a B two, an I and a W one each. The
bubble is the share of all ranks' slots, from the first action to the last, in which they are idle.

A schedule's actions need not stand in one certain order, unless a task says so: any schedule that can run and has what
the task asks for will do. You may use what is imported below, NumPy, and what you write here.

``minidist check 7`` judges, ``minidist check --hint 7.3`` helps. Whatever has the name of one of minidist's own pieces
has its arguments too, so the library can train on it:

    minidist verify --impl exercises --layers 4 pp=2 pp=2,schedule=gpipe pp=2,virtual=2 pp=2,schedule=zb-h1
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from minidist import ProcessGroup, irecv, isend, recv, send, sendrecv
from minidist.parallel.tools.schedule_check import SLOTS, ScheduleError, Slot
from minidist.parallel.tools.schedules import Action

# 7.1  Worksheet: the bubble, and what crosses the borders
#
# ``virtual``, or v, is how many stages each rank has. A rank works for as long with v stages as with one, since each of
# them has 1/v of its layers.


def bubble_share(ranks: int, micro_batches: int, virtual: int) -> float:
    """The bubble, as a share of the whole: 0 to 1. With ``virtual`` 1 it is that of GPipe and of 1F1B; with more, that
    of interleaved 1F1B.
    """
    raise NotImplementedError("task 7.1")


def fewest_micro_batches(ranks: int, virtual: int, percent: int) -> int:
    """How many micro-batches a step needs, at least, so that the bubble is no more than so many per cent.

    It is at least one. If ``virtual`` is more than 1, it has to be a multiple of the ranks too. ``percent`` is a whole
    number from 1 to 99.
    """
    raise NotImplementedError("task 7.1")


def pipeline_bytes(rank: int, ranks: int, virtual: int, micro_batches: int, activation_bytes: int) -> int:
    """What one rank sends in a step, forward and backward together.

    ``activation_bytes`` is the size of what a micro-batch hands from one stage to the next, and that of its gradient.
    With ``virtual`` more than 1 there are at least two ranks. A pipeline of one rank sends nothing.
    """
    raise NotImplementedError("task 7.1")


def tensor_to_pipeline(layers: int, ranks: int) -> float:
    """How many times as many bytes a rank sends with tensor parallelism as a rank with pipeline parallelism.

    The same model is on ``ranks`` ranks, once by tensor parallelism: four all-reduces for each layer and micro-batch,
    round a ring, each of as many bytes as a micro-batch hands from one stage to the next. And once as a pipeline with
    one stage on each rank, of which a rank in the middle is looked at.
    """
    raise NotImplementedError("task 7.1")


def gpipe(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """7.2  GPipe: one rank's actions. It takes all micro-batches forward, and then all of them backward.

    Args:
        rank: from 0 to ``ranks`` - 1; it has the stage of that number.
        ranks, micro_batches: at least 1 each.

    Returns:
        Its actions, F and B. The ranks' lists together can run, and have a bubble of (p-1)/(m+p-1).
    """
    raise NotImplementedError("task 7.2")


def one_f_one_b(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """7.3  1F1B: one rank's actions. As soon as its first backward can run, forward and backward take turns.

    Args:
        rank, ranks, micro_batches: as for ``gpipe``; there may be fewer micro-batches than ranks.

    Returns:
        Its actions, F and B. The ranks' lists together can run, and have GPipe's bubble, (p-1)/(m+p-1). But no rank
        ever has more than p - rank micro-batches in flight: with their F begun and their B not yet done.
    """
    raise NotImplementedError("task 7.3")


# 7.4  When does everything happen?
#
# A Slot is an action and its time: ``Slot(action, start, end)``.


def slots_of(action: Action) -> float:
    """Given: how long an action takes, in slots."""
    return SLOTS[action.kind]


def needs(action: Action, stages: int) -> list[tuple[Action, ...]]:
    """7.4  What an action waits for, wherever it is, of a pipeline of so many stages.

    Returns:
        A list in any order, of tuples: of each tuple one action has to be done. Most hold one action only. For what it
        takes from the backward of the stage behind there is one tuple of two: B or I, in any order.
    """
    raise NotImplementedError("task 7.4")


def timeline(schedule: Sequence[Sequence[Action]], duration: Callable[[Action], float] = slots_of) -> list[list[Slot]]:
    """7.4  When each rank does what: every action begins as soon as it can.

    It can when the action before it on its rank has ended, and all that it waits for. The first begin at 0.

    Args:
        schedule: the actions of each rank; not changed. There are as many stages as its highest stage says, plus one.
        duration: how long an action takes.

    Returns:
        For each rank the Slots of its actions, in order.

    Raises:
        ScheduleError: if it can never end, because ranks wait for each other in a circle, or for what no rank does. The
            message has, for each rank that waits for ever, the action at which it waits, as in ``1F0``.
    """
    raise NotImplementedError("task 7.4")


def bubble(slots: Sequence[Sequence[Slot]]) -> float:
    """7.4  The share of all ranks' time, from the start of the first action to the end of the last, in which they idle.

    Args:
        slots: for each rank, as ``timeline`` returns it. There is at least one action. The first may begin at any time.

    Returns:
        0 to 1.
    """
    raise NotImplementedError("task 7.4")


def check_schedule(schedule: Sequence[Sequence[Action]], micro_batches: int) -> None:
    """7.5  Prove that a schedule takes every micro-batch once forward and once backward through every stage, and ends.

    Args:
        schedule: the actions of each rank; not changed. Its stages are 0 to the highest that is in it, and each has to
            be there; any number of them may be on any rank, but the actions of a stage are all on one.
        micro_batches: how many there are, 0 to ``micro_batches`` - 1.

    Raises:
        ScheduleError: if not. Backward is one B, or one I and one W, and not both. The message has an action that is
            too many, or in the wrong place, or missing, as in ``1F0``. (For a backward that is missing any of B, I and
            W will do.) If all are there, but ranks wait for ever, it has the action at which each of them waits.
    """
    raise NotImplementedError("task 7.5")


def interleaved_1f1b(rank: int, ranks: int, micro_batches: int, virtual: int) -> list[Action]:
    """7.6  Interleaved 1F1B: one rank's actions, with several stages on each rank.

    Args:
        rank, ranks, micro_batches: as for ``gpipe``.
        virtual: v, how many stages each rank has, at least 1. Rank r has r, r + p, r + 2p, ...

    Returns:
        Its actions, F and B. The ranks' lists together can run, and have a bubble of (p-1)/(v m + p-1), each action of
        a kind taking as long as any other. No rank has more than 2 (p - 1 - rank) + (v - 1) p + 1 in flight, where a
        micro-batch counts once for each of the rank's stages that holds it.

    Raises:
        ValueError: if the micro-batches are no multiple of the ranks; the message has both numbers.
    """
    raise NotImplementedError("task 7.6")


# 7.7 and 7.9 run a pipeline on real ranks. Its stages are simple ones, without autograd.


class Stage:
    """Given: one stage, y = max(x @ weight, 0), and its backward in two halves. All other stages have these methods."""

    def __init__(self, weight: np.ndarray) -> None:
        self.weight, self.grad = weight, np.zeros_like(weight)

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, object]:
        """The output, of x's shape, and what backward needs, the activations: they live as long as you keep them."""
        y = np.maximum(x @ self.weight, 0)
        return y, (x, y)

    def backward_input(self, kept: object, grad_y: np.ndarray) -> tuple[np.ndarray, object]:
        """From what forward kept, and the gradient of y: the gradient of x, and what the second half will need."""
        x, y = kept
        grad = grad_y * (y > 0)
        return grad @ self.weight.T, (x, grad)

    def backward_weight(self, rest: object) -> None:
        """The second half, from what the first one left: it adds to the gradients of the weights."""
        x, grad = rest
        self.grad += x.T @ grad


def squared_error(y: np.ndarray, target: np.ndarray) -> tuple[float, np.ndarray]:
    """Given: the loss of one micro-batch, and the gradient of the last stage's output."""
    errors = y - target
    return float(np.sum(errors**2)), 2 * errors


def run_schedule(
    actions: Sequence[Action],
    stages: Mapping[int, Stage],
    last: int,
    inputs: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    group: ProcessGroup,
) -> float:
    """7.7  Run one rank's actions, in their order, whatever schedule they come from.

    The first stage takes a micro-batch's input, the last one's output goes with its target into ``squared_error``. All
    in between are messages: outputs on the way forward, gradients of inputs on the way back. They are contiguous, and
    have the shape and dtype of an input.

    Args:
        actions: F, B, I and W, of a schedule that can run. The other ranks run theirs. Two ranks need not take the
            micro-batches in the same order: labels tell messages apart (``isend`` and ``irecv`` have ``tag``, any whole
            number from 0 on, which the two ends of a message share).
        stages: those of this rank, by number. Stage s lies on rank s % p.
        last: the number of the last stage.
        inputs, targets: of each micro-batch, given to every rank.
        group: the ranks, p of them. If p is 1 there is one stage.

    Returns:
        The sum of the micro-batches' losses, where the last stage is; 0.0 on the other ranks.

    Cost: a message for each micro-batch, border between stages, and way. They may be larger than the queues: no action
    may wait for a send. What is no longer needed is let go at once, be it what forward keeps or a message that has
    left (``work.is_completed()``), so that only micro-batches in flight take memory. But all messages have left when
    the function returns.
    """
    raise NotImplementedError("task 7.7")


# 7.8  Worksheet: what is in flight
#
# A rank holds a micro-batch's activations from its F on until its B is done, or its W. Each rank has one stage, but in
# ``in_flight`` it may have several. Ranks and micro-batches are numbered and counted as in ``gpipe``.


def in_flight(actions: Sequence[Action]) -> int:
    """The most micro-batches that a rank ever holds activations of, found from its actions, of any schedule.

    A micro-batch counts once for each of the rank's stages that holds it.
    """
    raise NotImplementedError("task 7.8")


def gpipe_in_flight(rank: int, ranks: int, micro_batches: int) -> int:
    """The same for GPipe, as a formula."""
    raise NotImplementedError("task 7.8")


def one_f_one_b_in_flight(rank: int, ranks: int, micro_batches: int) -> int:
    """The same for 1F1B, as a formula."""
    raise NotImplementedError("task 7.8")


def activation_bytes(held: int, layers: int, ranks: int, layer_bytes: int) -> int:
    """What ``held`` micro-batches in flight take on one rank.

    The model has so many layers, equally many on each rank; a layer keeps ``layer_bytes`` for each micro-batch.
    """
    raise NotImplementedError("task 7.8")


def gpipe_micro_batches(memory: int, layers: int, ranks: int, layer_bytes: int) -> int:
    """The most micro-batches that GPipe can run, if each rank has ``memory`` bytes for activations; 0 if none."""
    raise NotImplementedError("task 7.8")


def train_1f1b(stage: Stage, inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray], group: ProcessGroup) -> float:
    """7.9  Debugging: 1F1B, written out without a schedule, with one stage on each rank.

    In the tests of its authors, with a width of 16, it was always right. The first user with a real width saw all ranks
    stand still, in the first step, and no error. Find out who waits for whom, and mend it: it has to work with
    messages of any size, whatever the queues hold.

    Args:
        stage: this rank's.
        inputs, targets: of each micro-batch, given to every rank; the first rank takes the inputs, the last one the
            targets. What goes from stage to stage has an input's shape and dtype.
        group: the ranks.

    Returns:
        The sum of the micro-batches' losses on the last rank; 0.0 on the others.

    Cost: a message for each micro-batch, border and way, and no more.
    """
    left, right = group.rank - 1, group.rank + 1
    first, last = group.rank == 0, right == group.size
    kept, total = [], 0.0  # the oldest micro-batch first

    def forward(i: int) -> np.ndarray:
        x = inputs[i]
        if not first:
            x = np.empty_like(x)
            recv(x, left, group)
        y, activations = stage.forward(x)
        kept.append(activations)
        return y

    def backward(grad_y: np.ndarray) -> None:
        grad_x, rest = stage.backward_input(kept.pop(0), grad_y)
        if not first:
            send(grad_x, left, group)
        stage.backward_weight(rest)

    ahead = min(group.size - right, len(inputs))
    for i in range(ahead):  # the pipeline fills
        send(forward(i), right, group)
    for i in range(ahead, len(inputs)):  # one forward, one backward
        y = forward(i)
        if last:
            loss, grad_y = squared_error(y, targets[i])
            total += loss
        else:
            grad_y = np.empty_like(y)
            send(y, right, group)
            recv(grad_y, right, group)
        backward(grad_y)
    for _ in range(ahead):  # it drains
        grad_y = np.empty_like(inputs[0])
        recv(grad_y, right, group)
        backward(grad_y)
    return total


def zero_bubble_h1(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """7.10  ZB-H1: one rank's actions. 1F1B, with every backward in its two halves: what can wait fills the bubble.

    Args:
        rank, ranks, micro_batches: as for ``gpipe``; there may be fewer micro-batches than ranks.

    Returns:
        Its actions: F, I and W. The ranks' lists together can run, and have a bubble of (p-1)/(3m + p-1) if there are
        at least as many micro-batches as ranks; if there are fewer, they end no later than 1F1B. No rank ever has more
        micro-batches in flight than 1F1B has on its first rank, p, from the F on until W is done.
    """
    raise NotImplementedError("task 7.10")
