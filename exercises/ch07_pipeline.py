"""Chapter 7: pipeline parallelism. Every rank has some of the layers, and micro-batches follow each other through them.

The layers are cut into stages 0, 1, ..., which go to the ranks in turn: stage s is on rank s % p. There are p ranks,
and m micro-batches in a step. If each rank has one stage, rank r has stage r. A schedule is plain data: for each rank
the list of its actions, in order.

**Actions.** ``Action(stage, kind, micro_batch)`` is written ``2F0``: the forward of micro-batch 0 through stage 2.
Stages and micro-batches count from 0. Two actions are equal if all three fields are, and an Action can be a key of a
dict. The kinds are

    F    forward
    B    backward: the gradients of the stage's input and of its weights
    I    the first half of a backward: the gradient of the input
    W    the second half: the gradients of the weights

**What an action waits for**, besides the previous actions on its own rank:

    F    the F of the same micro-batch on the previous stage, for its output
    B    the F of the same micro-batch on its own stage, and the backward of that micro-batch on the next stage, for its
         gradient: the next stage's B or I, whichever the schedule has
    I    the same as B
    W    its own I

**Slots.** Schedules are compared as if messages took no time, an F took one slot, a B two, and an I and a W one each.
The bubble is the share of all ranks' slots, from the start of the first action to the end of the last, in which the
ranks are idle.

Unless a task says so, the order of a schedule's actions is free: any schedule that can run and meets the task's
requirements passes. You may use the imports below, NumPy, and what you write here.

``minidist check 7`` grades this file, ``minidist check --hint 7.5`` gives a hint. A function with the name of one of
minidist's own takes the same arguments, so the library can train with it:

    minidist verify --impl exercises --layers 4 pp=2 pp=2,schedule=gpipe pp=2,virtual=2 pp=2,schedule=zb-h1
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from minidist import ProcessGroup, irecv, isend, recv, send, sendrecv
from minidist.parallel.tools.schedule_check import SLOTS, ScheduleError, Slot
from minidist.parallel.tools.schedules import Action

# 7.1  Worksheet: the bubble, and what crosses the stage boundaries
#
# ``virtual``, or v, is the number of stages on each rank. A rank works as long with v stages as with one, because each
# of them has 1/v of its layers.


def bubble_share(ranks: int, micro_batches: int, virtual: int) -> float:
    """The bubble, as a share of the total time, 0 to 1: of GPipe and of 1F1B with ``virtual`` 1, and of interleaved
    1F1B with more.
    """
    raise NotImplementedError("task 7.1")


def fewest_micro_batches(ranks: int, virtual: int, percent: int) -> int:
    """The fewest micro-batches in a step for which the bubble is at most ``percent`` per cent.

    At least one. If ``virtual`` is more than 1, it must also be a multiple of the ranks. ``percent`` is an integer from
    1 to 99.
    """
    raise NotImplementedError("task 7.1")


def pipeline_bytes(rank: int, ranks: int, virtual: int, micro_batches: int, activation_bytes: int) -> int:
    """The bytes that one rank sends in a step, forward and backward together.

    ``activation_bytes`` is the size of the output that a stage sends to the next one per micro-batch, and of its
    gradient. If ``virtual`` is more than 1, there are at least two ranks. A pipeline of one rank sends nothing.
    """
    raise NotImplementedError("task 7.1")


def tensor_to_pipeline(layers: int, ranks: int) -> float:
    """The bytes that a rank sends with tensor parallelism, divided by those with pipeline parallelism.

    Both put the same model on ``ranks`` ranks. Tensor parallelism does four ring all-reduces per layer and micro-batch,
    each of as many bytes as a pipeline stage sends to the next one per micro-batch. The pipeline has one stage on each
    rank; count a rank in its middle.
    """
    raise NotImplementedError("task 7.1")


def gpipe(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """7.2  GPipe: one rank's actions. All micro-batches go forward, and then all of them go backward.

    Args:
        rank: 0 to ``ranks`` - 1; it has the stage of that number.
        ranks, micro_batches: at least 1 each.

    Returns:
        The rank's actions, F and B. The lists of all ranks together can run, with a bubble of (p-1)/(m+p-1).
    """
    raise NotImplementedError("task 7.2")


# 7.3  When does everything happen?
#
# A Slot is an action and its time: ``Slot(action, start, end)``.


def slots_of(action: Action) -> float:
    """Given: how long an action takes, in slots."""
    return SLOTS[action.kind]


def needs(action: Action, stages: int) -> list[tuple[Action, ...]]:
    """7.3  The actions, on any rank, that an action waits for in a pipeline of ``stages`` stages.

    Returns:
        A list of tuples, in any order. At least one action of each tuple has to be done. Most tuples have one action.
        The gradient from the next stage is a tuple of two, B or I, in any order.
    """
    raise NotImplementedError("task 7.3")


def timeline(schedule: Sequence[Sequence[Action]], duration: Callable[[Action], float] = slots_of) -> list[list[Slot]]:
    """7.3  The time of each action on each rank: every action starts as early as it can.

    An action can start when the rank's previous action and all that it waits for have finished. Time starts at 0.

    Args:
        schedule: the actions of each rank; not modified. The number of stages is its highest stage plus one.
        duration: how long an action takes.

    Returns:
        For each rank the Slots of its actions, in order.

    Raises:
        ScheduleError: if the schedule deadlocks, because ranks wait for each other in a cycle, or for an action that no
            rank does. The message names the action at which each stuck rank waits, as in ``1F0``.
    """
    raise NotImplementedError("task 7.3")


def bubble(slots: Sequence[Sequence[Slot]]) -> float:
    """7.3  The share of all ranks' time, from the start of the first action to the end of the last, that is idle.

    Args:
        slots: for each rank, as ``timeline`` returns it. There is at least one action. The first may start at any time.

    Returns:
        A number from 0 to 1.
    """
    raise NotImplementedError("task 7.3")


def check_schedule(schedule: Sequence[Sequence[Action]], micro_batches: int) -> None:
    """7.4  Prove that every micro-batch goes once forward and once backward through every stage, without deadlock.

    Args:
        schedule: the actions of each rank; not modified. Its stages are 0 to the highest stage in it, none missing. A
            rank may have any number of stages, but all actions of a stage are on one rank.
        micro_batches: their number; they are 0 to ``micro_batches`` - 1.

    Raises:
        ScheduleError: otherwise. A backward is one B, or one I and one W, never both. The message names an action that
            is duplicated, misplaced or missing, as in ``1F0``. (For a missing backward, any of B, I and W will do.) If
            nothing is missing but the schedule deadlocks, it names the action at which each stuck rank waits.
    """
    raise NotImplementedError("task 7.4")


def one_f_one_b(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """7.5  1F1B: one rank's actions. As soon as its first backward can run, forwards and backwards alternate.

    Args:
        rank, ranks, micro_batches: as for ``gpipe``; there may be fewer micro-batches than ranks.

    Returns:
        The rank's actions, F and B. The lists of all ranks together can run, with GPipe's bubble, (p-1)/(m+p-1). But no
        rank ever has more than p - rank micro-batches in flight, that is with F started and B not finished.
    """
    raise NotImplementedError("task 7.5")


# 7.6  Worksheet: what is in flight
#
# A rank holds a micro-batch's activations from its F until its B, or its W, is done. Each rank has one stage; in
# ``in_flight`` it may have several. Ranks and micro-batches are numbered as in ``gpipe``.


def in_flight(actions: Sequence[Action]) -> int:
    """The most micro-batches whose activations a rank holds at once, from its actions in any schedule.

    A micro-batch counts once for each of the rank's stages that holds it.
    """
    raise NotImplementedError("task 7.6")


def gpipe_in_flight(rank: int, ranks: int, micro_batches: int) -> int:
    """The most micro-batches that a rank holds at once with GPipe, as a formula."""
    raise NotImplementedError("task 7.6")


def one_f_one_b_in_flight(rank: int, ranks: int, micro_batches: int) -> int:
    """The most micro-batches that a rank holds at once with 1F1B, as a formula."""
    raise NotImplementedError("task 7.6")


def activation_bytes(held: int, layers: int, ranks: int, layer_bytes: int) -> int:
    """The bytes that ``held`` micro-batches in flight take on one rank.

    The model's ``layers`` are spread evenly over the ranks. A layer keeps ``layer_bytes`` per micro-batch.
    """
    raise NotImplementedError("task 7.6")


def gpipe_micro_batches(memory: int, layers: int, ranks: int, layer_bytes: int) -> int:
    """The most micro-batches that GPipe can run with ``memory`` bytes for activations on each rank; 0 if none."""
    raise NotImplementedError("task 7.6")


# 7.7 and 7.8 run a pipeline on real ranks, with simple stages that need no autograd.


class Stage:
    """Given: one stage, y = max(x @ weight, 0), with a split backward. Other kinds of stages have the same methods."""

    def __init__(self, weight: np.ndarray) -> None:
        self.weight, self.grad = weight, np.zeros_like(weight)

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, object]:
        """The output, of x's shape, and the activations that backward needs; they live as long as you keep them."""
        y = np.maximum(x @ self.weight, 0)
        return y, (x, y)

    def backward_input(self, kept: object, grad_y: np.ndarray) -> tuple[np.ndarray, object]:
        """The gradient of x, and what the second half needs, from the activations and the gradient of y."""
        x, y = kept
        grad = grad_y * (y > 0)
        return grad @ self.weight.T, (x, grad)

    def backward_weight(self, rest: object) -> None:
        """The second half, from the first half's ``rest``: adds to the weights' gradients."""
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
    """7.7  Run one rank's actions in order, for any schedule.

    The first stage takes a micro-batch's input. The output of the last stage goes into ``squared_error`` with the
    micro-batch's target. Stages send each other messages: outputs forward, gradients of inputs backward. They are
    contiguous and have the shape and dtype of an input.

    Args:
        actions: F, B, I and W, of a schedule that can run. The other ranks run theirs. Two ranks may take the
            micro-batches in different orders: tags tell messages apart (the ``tag`` of ``isend`` and ``irecv`` is any
            integer from 0 on, the same on both sides of a message).
        stages: this rank's stages, by number. Stage s is on rank s % p.
        last: the number of the last stage.
        inputs, targets: of each micro-batch, given to every rank.
        group: the p ranks. If p is 1, there is one stage.

    Returns:
        The sum of the micro-batches' losses on the rank with the last stage; 0.0 on the other ranks.

    Cost: one message per micro-batch, stage boundary and direction. Messages may be larger than the queues, so no
    action may wait for a send. Free at once what is no longer needed, activations as well as messages that have left
    (``work.is_completed()``), so that only micro-batches in flight take memory. All messages have left when the
    function returns.
    """
    raise NotImplementedError("task 7.7")


def train_1f1b(stage: Stage, inputs: Sequence[np.ndarray], targets: Sequence[np.ndarray], group: ProcessGroup) -> float:
    """7.8  Debugging: 1F1B, written out without a schedule, with one stage on each rank.

    Its authors tested it with a width of 16, and it was always right. For the first user with a real width all ranks
    hung in the first step, without an error. Find out who waits for whom, and fix it: it must work with messages of any
    size, whatever the capacity of the queues.

    Args:
        stage: this rank's stage.
        inputs, targets: of each micro-batch, given to every rank; the first rank uses the inputs, the last one the
            targets. Messages between stages have an input's shape and dtype.
        group: the ranks.

    Returns:
        The sum of the micro-batches' losses on the last rank; 0.0 on the others.

    Cost: one message per micro-batch, stage boundary and direction, and no more.
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


def interleaved_1f1b(rank: int, ranks: int, micro_batches: int, virtual: int) -> list[Action]:
    """7.9  Interleaved 1F1B: one rank's actions, with several stages on each rank.

    Args:
        rank, ranks, micro_batches: as for ``gpipe``.
        virtual: v, the number of stages on each rank, at least 1. Rank r has stages r, r + p, r + 2p, ...

    Returns:
        The rank's actions, F and B. The lists of all ranks together can run, with a bubble of (p-1)/(v m + p-1) if all
        actions of a kind take equally long. No rank has more than 2 (p - 1 - rank) + (v - 1) p + 1 in flight, where a
        micro-batch counts once for each of the rank's stages that holds it.

    Raises:
        ValueError: if the number of micro-batches is not a multiple of the ranks; the message has both numbers.
    """
    raise NotImplementedError("task 7.9")


def zero_bubble_h1(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    """7.10  ZB-H1: one rank's actions. 1F1B with every backward split in two: the half that can wait fills the bubble.

    Args:
        rank, ranks, micro_batches: as for ``gpipe``; there may be fewer micro-batches than ranks.

    Returns:
        The rank's actions: F, I and W. The lists of all ranks together can run, with a bubble of (p-1)/(3m + p-1) if
        there are at least as many micro-batches as ranks; with fewer, they finish no later than 1F1B. No rank ever has
        more than p micro-batches in flight, from F until W is done: as many as 1F1B has on its first rank.
    """
    raise NotImplementedError("task 7.10")
