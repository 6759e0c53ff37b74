"""Chapter 9: composing, several ways of splitting one run at the same time.

**Mesh.** The N ranks are laid out as an array, the mesh, with a dimension for each way of splitting: in minidist pp, dp
and tp, in this order. Ranks are numbered row by row, so the last dimension changes fastest. A mesh of shape (2, 3) is

    [[0, 1, 2],
     [3, 4, 5]]

Rank 5 stands at (1, 2). Ranks that differ along one dimension alone form a group: along the last one [0, 1, 2] and
[3, 4, 5], along the first one [0, 3], [1, 4] and [2, 5]. In each dimension a rank is in one group, and a collective of
that axis is called on that group.

**Machines.** G GPUs stand in each machine: ranks 0 to G - 1 in the first, the next G in the second, and so on. Inside a
machine the wires are fast, between machines slow. (NVLink and InfiniBand, for instance.)

You may use what is imported below, NumPy, and what you write here. ``minidist check 9`` judges,
``minidist check --hint 9.2`` helps. The functions of 9.1 and 9.2 have the names and arguments of minidist's own, so the
library can train on them:

    minidist verify --impl exercises dp=2,tp=2 dp=2,tp=2,pp=2,zero=1
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from math import prod

import numpy as np

from minidist import ProcessGroup, ReduceOp, all_reduce, init_device_mesh


def mesh_coordinate(rank: int, mesh_shape: tuple[int, ...]) -> tuple[int, ...]:
    """9.1  A rank's place along every dimension of a mesh, the first dimension's first.

    Args:
        rank: from 0 to the number of ranks - 1.
        mesh_shape: the length of each dimension, at least one dimension; lengths may be 1.

    Returns:
        A tuple with a whole number for each dimension, from 0 to its length - 1.
    """
    # >>> 9.1
    place = []
    for length in reversed(mesh_shape):
        rank, digit = divmod(rank, length)
        place.append(digit)
    return tuple(reversed(place))
    # <<<


def mesh_groups(mesh_shape: tuple[int, ...], dim: int) -> list[list[int]]:
    """9.2  The groups along one dimension of a mesh: ranks that differ in their place along ``dim`` alone.

    Args:
        mesh_shape: as for ``mesh_coordinate``.
        dim: the dimension, from 0 on.

    Returns:
        A list of groups, in any order, each a list of ``mesh_shape[dim]`` ranks, in the order of their places along
        ``dim``. Each rank is in one of them.
    """
    # >>> 9.2
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(prod(mesh_shape)):
        place = mesh_coordinate(rank, mesh_shape)
        others = place[:dim] + place[dim + 1 :]  # what the ranks of a group have in common
        groups.setdefault(others, []).append(rank)
    return list(groups.values())
    # <<<


# 9.3  Worksheet: what goes along each axis, and along which wires
#
# All of these are bytes that one rank sends in one step, for the axis of that name alone. An axis of one rank sends
# nothing. Collectives go round a ring. ``micro_batches`` is how many of them a rank takes part in, in a step.
# ``activation_bytes`` is the size of one array (B, T, C): what a micro-batch hands from layer to layer.


def dp_bytes(model_bytes: int, dp: int, zero: int, micro_batches: int) -> float:
    """Data parallelism, with ZeRO of stage 0 (none), 1, 2 or 3.

    ``model_bytes`` are those of the parameters that a rank would have without ZeRO; their gradients are as many. Stage
    0 all-reduces the gradients once a step. Stage 1 reduce-scatters the gradients and all-gathers the parameters, both
    once a step. Stage 2 does the same, but reduce-scatters in every micro-batch. Stage 3 all-gathers the parameters
    twice in every micro-batch, before forward and before backward, and reduce-scatters the gradients in every one.
    """
    # >>> 9.3
    calls = (2, 2, micro_batches + 1, 3 * micro_batches)[zero]  # an all-reduce counts as two
    return calls * (dp - 1) / dp * model_bytes
    # <<<


def tp_bytes(activation_bytes: int, tp: int, layers: int, micro_batches: int) -> float:
    """Tensor parallelism of so many layers.

    Each layer has two all-reduces of an array (B, T, C) forward and two backward, in every micro-batch. (The embedding
    and the loss have some too; leave them out.)
    """
    # >>> 9.3
    return 4 * layers * micro_batches * 2 * (tp - 1) / tp * activation_bytes
    # <<<


def pp_bytes(activation_bytes: int, pp: int, micro_batches: int) -> int:
    """Pipeline parallelism with one stage on each rank: of the ranks the one that sends the most.

    Every micro-batch crosses each border between two ranks as one array (B, T, C) forward, and its gradient backward.
    """
    # >>> 9.3
    return min(pp - 1, 2) * micro_batches * activation_bytes
    # <<<


def crosses_machines(mesh_shape: tuple[int, ...], dim: int, in_machine: int) -> bool:
    """Whether any group along ``dim`` has ranks in more than one machine.

    ``in_machine`` is G. It need not be a multiple of a dimension's length, and the last machine need not be full.
    """
    # >>> 9.3
    return any(len({rank // in_machine for rank in ranks}) > 1 for ranks in mesh_groups(mesh_shape, dim))
    # <<<


def best_order(
    lengths: Mapping[str, int], sent: Mapping[str, float], in_machine: int, fast: float, slow: float
) -> tuple[str, ...]:
    """In which order the axes are best made the dimensions of a mesh, from the first to the last.

    An axis takes the time of ``sent[axis] / fast`` seconds, or ``sent[axis] / slow`` if it crosses machines in a mesh
    of that order. The best order is the one with the least sum of these times; if several have it, any of them.

    Args:
        lengths: how many ranks each axis has, such as ``{"pp": 2, "dp": 4, "tp": 8}``: one to four axes.
        sent: for each axis, the bytes that a rank sends.
        in_machine: as for ``crosses_machines``.
        fast, slow: bytes a second inside a machine, and between machines.

    Returns:
        The names of all axes.
    """

    # >>> 9.3
    def seconds(order: tuple[str, ...]) -> float:
        shape = tuple(lengths[axis] for axis in order)
        wires = [slow if crosses_machines(shape, dim, in_machine) else fast for dim in range(len(order))]
        return sum(sent[axis] / wire for axis, wire in zip(order, wires, strict=True))

    return min(permutations(lengths), key=seconds)
    # <<<


# 9.4  Which layout for which cluster?


@dataclass(frozen=True)
class Model:
    """Given: a model, and how much of it is in one step."""

    layers: int  # L
    heads: int  # H
    width: int  # C
    context: int  # T, tokens in a sequence
    global_batch: int  # sequences in a step, over all GPUs; a micro-batch is one sequence

    @property
    def parameters(self) -> int:
        """Of all layers, which have equally many each. (What is not in a layer is left out.)"""
        return 12 * self.layers * self.width**2


@dataclass(frozen=True)
class Hardware:
    """Given: what there is to train on."""

    gpus: int  # in all
    in_machine: int  # of them in one machine
    memory: float  # bytes that a GPU has
    flops: float  # floating-point operations that a GPU does in a second
    fast: float  # bytes that a GPU sends in a second inside a machine
    slow: float  # and between machines


def memory_bytes(model: Model, dp: int, tp: int, pp: int, zero: int) -> float:
    """9.4  What the fullest GPU holds, the sum of four things.

    The parameters are split evenly over tp x pp GPUs: that is a GPU's part of the model. Each of the dp replicas has
    global_batch / dp micro-batches in a step.

    - Parameters: 2 bytes for each in the GPU's part; with ZeRO of stage 3 only 1/dp of that.
    - Gradients: 2 bytes for each; with stage 2 or 3 only 1/dp of that.
    - Optimizer state: 12 bytes for each; with stage 1, 2 or 3 only 1/dp of that.
    - Activations: 34 T C / tp bytes for each of the L / pp layers, of each micro-batch in flight. As many are in flight
      as the pipeline has ranks (1F1B), or all that a replica has in a step, if those are fewer.
    """
    # >>> 9.4
    mine = model.parameters / (tp * pp)
    parameters = 2 * mine / (dp if zero == 3 else 1)
    gradients = 2 * mine / (dp if zero >= 2 else 1)
    optimizer = 12 * mine / (dp if zero >= 1 else 1)
    in_flight = min(model.global_batch // dp, pp)
    activations = in_flight * (model.layers // pp) * 34 * model.context * model.width / tp
    return parameters + gradients + optimizer + activations
    # <<<


def step_seconds(model: Model, hardware: Hardware, dp: int, tp: int, pp: int, zero: int) -> float:
    """9.4  How long one step takes, the sum of computing and sending. (Nothing overlaps here.)

    - Computing: one micro-batch takes 6 operations for each of its T tokens and each parameter in the GPU's part of the
      model, whatever ZeRO does; that is forward and backward together. If a replica has m micro-batches in a step, the
      time of m + pp - 1 of them passes: the bubble is in it.
    - Sending: for each of the three axes the bytes that task 9.3 counts, for the GPU's part of the model, divided by
      the bandwidth. Parameters, gradients and activations have 2 bytes an element, and in (B, T, C) B is 1. The mesh
      has the shape (pp, dp, tp). An axis that crosses machines has the slow bandwidth for all that it sends, the others
      have the fast one.
    """
    # >>> 9.4
    micro_batches = model.global_batch // dp
    mine = model.parameters / (tp * pp)
    computing = (micro_batches + pp - 1) * 6 * mine * model.context / hardware.flops
    activation = 2 * model.context * model.width
    sent = [
        pp_bytes(activation, pp, micro_batches),
        dp_bytes(2 * mine, dp, zero, micro_batches),
        tp_bytes(activation, tp, model.layers // pp, micro_batches),
    ]
    slow = [crosses_machines((pp, dp, tp), dim, hardware.in_machine) for dim in range(3)]
    wires = [hardware.slow if crosses else hardware.fast for crosses in slow]
    return computing + sum(nbytes / wire for nbytes, wire in zip(sent, wires, strict=True))
    # <<<


def choose_layout(model: Model, hardware: Hardware) -> tuple[int, int, int, int]:
    """9.4  The layout with the fastest step among all that are allowed and fit into memory.

    Allowed are those with dp x tp x pp equal to the number of GPUs, of which tp divides the heads, pp the layers, and
    dp the global batch. ZeRO's stage is 0 to 3; it is 0 where dp is 1, and 0 or 1 where pp is more than 1. A layout
    fits if a GPU has at least ``memory_bytes``.

    Times that differ by less than one part in a million count as equal. Of the layouts that are as fast as the fastest,
    it is the one that needs the least memory.

    There may be a thousand GPUs: with three loops over all dp, tp and pp up to there it would take too long.

    Returns:
        (dp, tp, pp, zero).

    Raises:
        ValueError: if no layout is allowed, or none fits. The message says so, and has the number of GPUs.
    """
    # >>> 9.4
    sizes = [n for n in range(1, hardware.gpus + 1) if hardware.gpus % n == 0]
    seconds: dict[tuple[int, int, int, int], float] = {}
    for tp, pp in product(sizes, sizes):
        dp, rest = divmod(hardware.gpus, tp * pp)
        if rest or model.heads % tp or model.layers % pp or model.global_batch % dp:
            continue
        stages = 1 if dp == 1 else 2 if pp > 1 else 4
        for zero in range(stages):
            if memory_bytes(model, dp, tp, pp, zero) <= hardware.memory:
                seconds[dp, tp, pp, zero] = step_seconds(model, hardware, dp, tp, pp, zero)
    if not seconds:
        raise ValueError(f"on {hardware.gpus} GPUs of {hardware.memory:,.0f} bytes no layout is allowed and fits")
    limit = min(seconds.values()) * (1 + 1e-6)
    fastest = [layout for layout in seconds if seconds[layout] <= limit]
    return min(fastest, key=lambda layout: memory_bytes(model, *layout))
    # <<<


def covering(rows: Sequence[Mapping[str, object]]) -> list[int]:
    """9.5  Some of the rows in which every two settings meet that meet in any row.

    A setting is a key with its value, and two settings meet in a row if both stand in it. What has the value None has
    no meaning in its row, and meets nothing.

    The rows are chosen one after the other: always the one with the most pairs of settings that meet in none of those
    chosen before. Of two that have as many, the earlier is taken. It ends when no pair is missing.

    Args:
        rows: a dict for each; all have the same keys. Values are numbers, strings or None, and may be 0. There may be
            no rows at all. Not changed. With 300 rows of 10 keys it should take a few seconds at most.

    Returns:
        The places of the chosen rows in ``rows``, in the order of choice.
    """
    # >>> 9.5
    pairs = []
    for row in rows:
        known = [(key, value) for key, value in row.items() if value is not None]
        pairs.append({frozenset(pair) for pair in combinations(known, 2)})
    missing = set().union(*pairs)
    chosen = []
    while missing:
        best = max(range(len(rows)), key=lambda i: len(pairs[i] & missing))  # max takes the first of equals
        chosen.append(best)
        missing -= pairs[best]
    return chosen
    # <<<


def train_on_mesh(
    samples: np.ndarray,
    targets: np.ndarray,
    shape: tuple[int, int],
    steps: int,
    lr: float,
    clip: float,
    world: ProcessGroup,
) -> tuple[list[float], np.ndarray]:
    """9.6  Debugging: a linear layer, trained by gradient descent on a mesh of shape (dp, tp).

    The samples are split over dp, the rows of the weight, and so the features, over tp. The weight starts from zero.
    On a mesh of shape (1, 1) all is well, and on (1, 2) and (1, 4) too, to the last digits. On (2, 2) and (4, 1) the
    first loss is right, the loss falls, and all ranks agree with each other. But it falls more slowly than in one
    process, the more so the larger dp is, and somebody has raised the learning rate already to make up for it. Find out
    why, and mend it: every mesh has to do what one process does.

    Args:
        samples: (samples, features) float64, the same on every rank.
        targets: (samples, outputs) float64, the same on every rank.
        shape: dp and tp, which need not divide samples and features.
        steps, lr: of gradient descent.
        clip: if the whole gradient has a norm above this, it is scaled down to it.
        world: all ranks, dp x tp of them.

    Returns:
        The loss before each step, and the rows of the trained weight that are on this rank, (features here, outputs).
    """
    mesh = init_device_mesh(shape, mesh_dim_names=("dp", "tp"), group=world)
    dp, tp = mesh.get_group("dp"), mesh.get_group("tp")
    mine = np.array_split(samples, dp.size)[dp.rank]
    x = np.array_split(mine, tp.size, axis=1)[tp.rank]  # (samples here, features here)
    y = np.array_split(targets, dp.size)[dp.rank]  # (samples here, outputs)
    weight = np.zeros((x.shape[1], y.shape[1]))
    losses = []
    for _ in range(steps):
        output = x @ weight  # (samples here, outputs)
        all_reduce(output, ReduceOp.SUM, tp)
        errors = output - y
        loss = np.array([np.sum(errors**2)])
        all_reduce(loss, ReduceOp.SUM, dp)
        losses.append(float(loss[0] / len(samples)))
        gradient = x.T @ errors * (2 / len(samples))  # (features here, outputs)
        all_reduce(gradient, ReduceOp.SUM, dp)
        squares = np.array([np.sum(gradient**2)])
        # >>> 9.6
        all_reduce(squares, ReduceOp.SUM, tp)
        # === given to the learner
        # all_reduce(squares, ReduceOp.SUM, world)
        # <<<
        norm = float(np.sqrt(squares[0]))
        weight -= lr * min(1.0, clip / (norm + 1e-6)) * gradient
    return losses, weight
