"""Chapter 9: composing several axes of parallelism in one run.

**Mesh.** The N ranks form an array, the mesh, with one dimension per axis: in minidist pp, dp, cp (chapter 10) and tp,
in this order. Ranks are numbered row by row, so the last dimension changes fastest. A mesh of shape (2, 3) is

    [[0, 1, 2],
     [3, 4, 5]]

Rank 5 is at (1, 2). Ranks that differ along one dimension only form a group: along the last one [0, 1, 2] and
[3, 4, 5], along the first one [0, 3], [1, 4] and [2, 5]. In each dimension a rank is in one group, and that axis calls
its collectives on that group.

**Nodes.** A node (a machine) has G GPUs: ranks 0 to G - 1 are in the first node, the next G in the second, and so on.
Links are fast within a node and slow between nodes (NVLink and InfiniBand, for instance).

You may use the imports below, NumPy, and what you write here. ``minidist check 9`` grades this file,
``minidist check --hint 9.2`` gives a hint. The functions of 9.1 and 9.2 have the names and arguments of minidist's own,
so the library can train with them:

    minidist verify --impl exercises dp=2,tp=2 dp=2,tp=2,pp=2,zero=1
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from math import prod

import numpy as np

from minidist import ProcessGroup, ReduceOp, all_reduce, init_device_mesh


def mesh_coordinate(rank: int, mesh_shape: tuple[int, ...]) -> tuple[int, ...]:
    """9.1  A rank's coordinate in a mesh, from the first dimension to the last.

    Args:
        rank: 0 to the number of ranks - 1.
        mesh_shape: the length of each dimension; at least one dimension, lengths may be 1.

    Returns:
        A tuple with an integer for each dimension, from 0 to its length - 1.
    """
    # >>> 9.1
    place = []
    for length in reversed(mesh_shape):
        rank, digit = divmod(rank, length)
        place.append(digit)
    return tuple(reversed(place))
    # <<<


def mesh_groups(mesh_shape: tuple[int, ...], dim: int) -> list[list[int]]:
    """9.2  The groups along one dimension of a mesh: ranks whose coordinates differ along ``dim`` only.

    Args:
        mesh_shape: as for ``mesh_coordinate``.
        dim: the dimension, from 0 on.

    Returns:
        A new list of groups, in any order. Each is a new list of ``mesh_shape[dim]`` ranks, ordered by their coordinate
        along ``dim``. Each rank is in one group.
    """
    # >>> 9.2
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(prod(mesh_shape)):
        place = mesh_coordinate(rank, mesh_shape)
        others = place[:dim] + place[dim + 1 :]  # the same for all ranks of a group
        groups.setdefault(others, []).append(rank)
    return list(groups.values())
    # <<<


# 9.3  Worksheet: what each axis sends, and on which links
#
# These are the bytes that one rank sends in one step for that axis alone. An axis of one rank sends nothing.
# Collectives use a ring. ``micro_batches`` is the number of micro-batches that a rank takes part in per step.
# ``activation_bytes`` is the size of one array (B, T, C), a micro-batch's activations between two layers.


def dp_bytes(model_bytes: int, dp: int, zero: int, micro_batches: int) -> float:
    """Data parallelism with ZeRO stage 0 (none), 1, 2 or 3.

    ``model_bytes`` is the size of the parameters that a rank would hold without ZeRO; their gradients have the same
    size. Stage 0 all-reduces the gradients once a step. Stage 1 reduce-scatters the gradients and all-gathers the
    parameters, each once a step. Stage 2 does the same, but reduce-scatters in every micro-batch. Stage 3 all-gathers
    the parameters twice in every micro-batch, before forward and before backward, and reduce-scatters the gradients in
    every one.
    """
    # >>> 9.3
    calls = (2, 2, micro_batches + 1, 3 * micro_batches)[zero]  # an all-reduce counts as two
    return calls * (dp - 1) / dp * model_bytes
    # <<<


def tp_bytes(activation_bytes: int, tp: int, layers: int, micro_batches: int) -> float:
    """Tensor parallelism of ``layers`` layers.

    In every micro-batch each layer all-reduces an array (B, T, C) twice in forward and twice in backward. (Ignore the
    all-reduces of the embedding and the loss.)
    """
    # >>> 9.3
    return 4 * layers * micro_batches * 2 * (tp - 1) / tp * activation_bytes
    # <<<


def pp_bytes(activation_bytes: int, pp: int, micro_batches: int) -> int:
    """Pipeline parallelism with one stage on each rank: the bytes of the rank that sends the most.

    Every micro-batch crosses each stage boundary as one array (B, T, C) in forward, and as its gradient in backward.
    """
    # >>> 9.3
    return min(pp - 1, 2) * micro_batches * activation_bytes
    # <<<


def crosses_machines(mesh_shape: tuple[int, ...], dim: int, in_machine: int) -> bool:
    """Whether any group along ``dim`` spans more than one node.

    ``in_machine`` is G, the GPUs per node. It need not be a multiple of a dimension's length, and the last node need
    not be full.
    """
    # >>> 9.3
    return any(len({rank // in_machine for rank in ranks}) > 1 for ranks in mesh_groups(mesh_shape, dim))
    # <<<


def best_order(
    lengths: Mapping[str, int], sent: Mapping[str, float], in_machine: int, fast: float, slow: float
) -> tuple[str, ...]:
    """The best order of the axes as the dimensions of a mesh, from first to last.

    An axis takes ``sent[axis] / fast`` seconds, or ``sent[axis] / slow`` if it crosses nodes in a mesh of that order.
    The best order has the smallest sum of these times; if several do, any of them.

    Args:
        lengths: the number of ranks of each axis, such as ``{"pp": 2, "dp": 4, "tp": 8}``; one to four axes
            of any names.
        sent: for each axis, the bytes that a rank sends; the axes may be in another order.
        in_machine: as for ``crosses_machines``.
        fast, slow: bytes per second within a node, and between nodes.

    Returns:
        The names of all axes.
    """

    # >>> 9.3
    def seconds(order: tuple[str, ...]) -> float:
        shape = tuple(lengths[axis] for axis in order)
        links = [slow if crosses_machines(shape, dim, in_machine) else fast for dim in range(len(order))]
        return sum(sent[axis] / link for axis, link in zip(order, links, strict=True))

    return min(permutations(lengths), key=seconds)
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
    """9.4  Debugging: a linear layer, trained by gradient descent on a mesh of shape (dp, tp).

    The samples are split over dp; the rows of the weight, and so the features, over tp. The weight starts from zero. On
    meshes of shape (1, 1), (1, 2) and (1, 4) all is well, up to the last digits. On (2, 2) and (4, 1) the first loss is
    correct, the loss falls, and all ranks agree with each other. But it falls more slowly than in one process, and ever
    more slowly as dp grows; someone has already raised the learning rate to compensate. Find out why, and fix it: every
    mesh has to match one process.

    Args:
        samples: (samples, features) float64, the same on every rank; not modified.
        targets: (samples, outputs) float64, the same on every rank; not modified.
        shape: (dp, tp), which need not divide samples and features.
        steps, lr: of gradient descent.
        clip: the largest norm of the full gradient; a larger gradient is scaled down to it.
        world: all dp x tp ranks.

    Returns:
        The loss before each step, and this rank's rows of the trained weight, (local features, outputs) float64.
    """
    mesh = init_device_mesh(shape, mesh_dim_names=("dp", "tp"), group=world)
    dp, tp = mesh.get_group("dp"), mesh.get_group("tp")
    mine = np.array_split(samples, dp.size)[dp.rank]
    x = np.array_split(mine, tp.size, axis=1)[tp.rank]  # (local samples, local features)
    y = np.array_split(targets, dp.size)[dp.rank]  # (local samples, outputs)
    weight = np.zeros((x.shape[1], y.shape[1]))
    losses = []
    for _ in range(steps):
        output = x @ weight  # (local samples, outputs)
        all_reduce(output, ReduceOp.SUM, tp)
        errors = output - y
        loss = np.array([np.sum(errors**2)])
        all_reduce(loss, ReduceOp.SUM, dp)
        losses.append(float(loss[0] / len(samples)))
        gradient = x.T @ errors * (2 / len(samples))  # (local features, outputs)
        all_reduce(gradient, ReduceOp.SUM, dp)
        squares = np.array([np.sum(gradient**2)])
        # >>> 9.4
        all_reduce(squares, ReduceOp.SUM, tp)
        # === given to the learner
        # all_reduce(squares, ReduceOp.SUM, world)
        # <<<
        norm = float(np.sqrt(squares[0]))
        weight -= lr * min(1.0, clip / (norm + 1e-6)) * gradient
    return losses, weight


# 9.5  Which layout for which cluster?


@dataclass(frozen=True)
class Model:
    """Given: a model, and the batch of one step."""

    layers: int  # L
    heads: int  # H
    width: int  # C
    context: int  # T, tokens in a sequence
    global_batch: int  # sequences in a step, over all GPUs; a micro-batch is one sequence

    @property
    def parameters(self) -> int:
        """The parameters of all layers, the same number in each. (Parameters outside the layers are ignored.)"""
        return 12 * self.layers * self.width**2


@dataclass(frozen=True)
class Hardware:
    """Given: the cluster."""

    gpus: int  # total
    in_machine: int  # GPUs per node
    memory: float  # bytes per GPU
    flops: float  # floating-point operations per second and GPU
    fast: float  # bytes that a GPU sends per second within a node
    slow: float  # and between nodes


def memory_bytes(model: Model, dp: int, tp: int, pp: int, zero: int) -> float:
    """9.5  The bytes that the fullest GPU holds, the sum of four parts.

    The parameters are split evenly over tp x pp GPUs; each GPU has its part of the model. Each of the dp replicas has
    global_batch / dp micro-batches in a step.

    - Parameters: 2 bytes for each in the GPU's part; with ZeRO stage 3 only 1/dp of that.
    - Gradients: 2 bytes for each; with stage 2 or 3 only 1/dp of that.
    - Optimizer state: 12 bytes for each; with stage 1, 2 or 3 only 1/dp of that.
    - Activations: 34 T C / tp bytes per layer and micro-batch in flight, in each of the L / pp layers. The number in
      flight is the number of pipeline ranks (1F1B), or of the replica's micro-batches in a step if that is smaller.
    """
    # >>> 9.5
    mine = model.parameters / (tp * pp)
    parameters = 2 * mine / (dp if zero == 3 else 1)
    gradients = 2 * mine / (dp if zero >= 2 else 1)
    optimizer = 12 * mine / (dp if zero >= 1 else 1)
    in_flight = min(model.global_batch // dp, pp)
    activations = in_flight * (model.layers // pp) * 34 * model.context * model.width / tp
    return parameters + gradients + optimizer + activations
    # <<<


def step_seconds(model: Model, hardware: Hardware, dp: int, tp: int, pp: int, zero: int) -> float:
    """9.5  The duration of one step: computing plus sending, without overlap.

    - Computing: forward and backward of one micro-batch take 6 operations for each of its T tokens and each parameter
      in the GPU's part of the model, whatever the ZeRO stage. With m micro-batches per replica, the step takes the time
      of m + pp - 1 of them, which includes the bubble.
    - Sending: for each of the three axes the bytes of task 9.3, for the GPU's part of the model, divided by the
      bandwidth. Parameters, gradients and activations have 2 bytes per element, and in (B, T, C) B is 1. The mesh has
      the shape (pp, dp, tp). An axis that crosses nodes sends everything at the slow bandwidth, the others at the fast
      one.
    """
    # >>> 9.5
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
    links = [hardware.slow if crosses else hardware.fast for crosses in slow]
    return computing + sum(nbytes / link for nbytes, link in zip(sent, links, strict=True))
    # <<<


def choose_layout(model: Model, hardware: Hardware) -> tuple[int, int, int, int]:
    """9.5  The layout with the fastest step among all that are allowed and fit into memory.

    A layout is allowed if dp x tp x pp is the number of GPUs, tp divides the heads, pp the layers, and dp the global
    batch. The ZeRO stage is 0 to 3, but 0 if dp is 1, and at most 1 if pp is more than 1. A layout fits if a GPU's
    memory is at least ``memory_bytes``.

    Times that differ by less than one part in a million count as equal. Of the fastest layouts, return the one that
    needs the least memory.

    There may be a thousand GPUs: three loops over all dp, tp and pp up to that number take too long.

    Returns:
        (dp, tp, pp, zero).

    Raises:
        ValueError: if no layout is allowed, or none fits. The message says so, with the number of GPUs.
    """
    # >>> 9.5
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
        raise ValueError(f"no allowed layout fits on {hardware.gpus} GPUs of {hardware.memory:,.0f} bytes")
    limit = min(seconds.values()) * (1 + 1e-6)
    fastest = [layout for layout in seconds if seconds[layout] <= limit]
    return min(fastest, key=lambda layout: memory_bytes(model, *layout))
    # <<<


def covering(rows: Sequence[Mapping[str, object]]) -> list[int]:
    """9.6  Choose rows that cover every pair of settings that occurs in any row.

    A setting is a key with its value. Two settings meet in a row that has both. A key whose value is None does not
    apply in its row and meets nothing.

    Choose one row after the other: always the row with the most pairs that no chosen row covers yet, the first one on a
    tie. Stop when no pair is missing.

    Args:
        rows: dicts, all with the same keys, in any order; not modified. Values are numbers, strings or None; 0 and ""
            are settings, and 0 and "0" are different ones. There may be no rows. With 300 rows of 10 keys the function
            should take a few seconds at most.

    Returns:
        The indices of the chosen rows, in the order of choice.
    """
    # >>> 9.6
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
