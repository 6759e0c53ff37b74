"""Graders of chapter 9: meshes, bytes against real runs, layouts against trying all, covered pairs, one process."""

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from fractions import Fraction
from itertools import combinations, permutations, product
from math import inf, prod

import numpy as np
import pytest

from minidist.comm import mesh
from minidist.course.authoring.assertions import brief, number
from minidist.nn.gpt import GPT
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run
from minidist.verify.matrix import every_combination

MESH = "minidist.comm.mesh"


def answers(*forbidden):
    """Answers may not call these parts of the library."""
    return pytest.mark.answers("ch09_composing", forbidden=forbidden)


pytestmark = answers()

SHAPES = ((1,), (4,), (2, 3), (3, 2), (1, 5), (2, 3, 4), (4, 3, 2), (3, 1, 2), (2, 2, 2), (2, 1, 3, 2))
LARGE_SHAPES = ((300,), (1, 1), (12, 12, 2), (2, 1, 2, 1, 3))  # more ranks, longer dimensions, more dimensions


# On a rank


def lend(module, *mine: str) -> None:
    """Replace the learner's functions of other tasks by correct ones, so that each task is graded on its own."""
    right = {"mesh_coordinate": mesh.mesh_coordinate, "mesh_groups": mesh.mesh_groups}
    right |= {"dp_bytes": dp_bytes, "tp_bytes": tp_bytes, "pp_bytes": pp_bytes, "crosses_machines": crosses_machines}
    for name, function in right.items():
        if name not in mine:
            setattr(module, name, function)


def run_each(world, module, name, inputs):
    """Return the function's result for each of these arguments, which must stay what they are."""
    lend(module, name)
    found, before = [], repr(inputs)
    for args in inputs:
        found.append(getattr(module, name)(*args))
    assert repr(inputs) == before, f"{name}: expected the arguments unmodified, but it modifies them"
    return found


# In the grader


def found_for(student, name: str, inputs) -> list[tuple]:
    """Pairs of arguments and what the function returns for them."""
    inputs = list(inputs)
    return list(zip(inputs, student.on_ranks(1, run_each, name, inputs)[0].value, strict=True))


def whole_numbers(values) -> bool:
    return all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in values)


def mesh_in_words(shape: tuple[int, ...]) -> str:
    return f"a mesh of shape {shape}"


# 9.1


def coordinate(rank: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(place) for place in np.argwhere(np.arange(prod(shape)).reshape(shape) == rank)[0])


def places_in_a_mesh(world, module, shape, names):
    """Return this rank's coordinate in each dimension of the library's mesh, and its rank in that group."""
    from minidist import init_device_mesh, overrides

    overrides.override({"mesh_coordinate": module.mesh_coordinate})
    try:
        made = init_device_mesh(shape, mesh_dim_names=names, group=world)
        return [(made.get_local_rank(name), made.get_group(name).rank) for name in names], dict(overrides.calls)
    finally:
        overrides.override({})


@answers(f"{MESH}:mesh_coordinate")
@pytest.mark.task(
    "9.1",
    points=2,
)
class TestMeshCoordinate:
    """mesh_coordinate: a rank's coordinate, the last dimension changing fastest"""

    def check(self, student, shapes) -> None:
        inputs = [(rank, shape) for shape in shapes for rank in range(prod(shape))]
        for (rank, shape), found in found_for(student, "mesh_coordinate", inputs):
            right = coordinate(rank, shape)
            assert isinstance(found, tuple) and whole_numbers(found), f"expected a tuple of integers, got {found!r:.60}"
            assert found == right, f"rank {rank} of {mesh_in_words(shape)}: expected {right}, got {found}"

    def test_two_dimensions(self, student):
        self.check(student, [(2, 3), (3, 2)])

    def test_any_shape(self, student):
        self.check(student, SHAPES + LARGE_SHAPES)

    def test_in_the_library(self, student):
        """A rank's coordinate along a dimension of the library's DeviceMesh is its rank in that group."""
        names = "pp", "dp", "tp"
        for rank, seen in enumerate(student.on_ranks(4, places_in_a_mesh, (2, 1, 2), names)):
            places, calls = seen.value
            assert calls.get("mesh_coordinate"), "the library's mesh did not call your mesh_coordinate"
            for name, (place, group_rank) in zip(names, places, strict=True):
                assert place == group_rank, (
                    f"rank {rank} of the mesh pp=2, dp=1, tp=2, coordinate along {name}: expected {group_rank}, "
                    f"got {place}"
                )


# 9.2


def groups(shape: tuple[int, ...], dim: int) -> list[list[int]]:
    """Return by definition each rank, and all ranks that differ from it along this dimension only."""
    places = [coordinate(rank, shape) for rank in range(prod(shape))]
    others = [place[:dim] + place[dim + 1 :] for place in places]
    return [[rank for rank, other in enumerate(others) if other == one] for one in dict.fromkeys(others)]


def train_on_groups(world, module, config, layout):
    """The library's training with the learner's groups: the fingerprint, and the number of calls."""
    from minidist import overrides
    from minidist.train.trainer import train_rank

    lend(module, "mesh_groups")
    overrides.override({"mesh_groups": module.mesh_groups})
    try:
        return train_rank(world, config, layout, RunOptions()).fingerprint, dict(overrides.calls)
    finally:
        overrides.override({})


TINY = TrainConfig(layers=2, heads=2, width=8, context=4, steps=2, global_batch=4, micro_batch=1, warmup=1)
one_process: dict[str, str] = {}  # the fingerprint, computed when first needed


@answers(f"{MESH}:mesh_groups")
@pytest.mark.task(
    "9.2",
    points=3,
)
class TestMeshGroups:
    """mesh_groups: who communicates with whom along one dimension"""

    def check(self, student, shapes) -> None:
        inputs = [(shape, dim) for shape in shapes for dim in range(len(shape))]
        for (shape, dim), found in found_for(student, "mesh_groups", inputs):
            right = groups(shape, dim)
            what = f"{mesh_in_words(shape)}, along dimension {dim}"
            assert isinstance(found, list) and all(isinstance(one, list) and whole_numbers(one) for one in found), (
                f"{what}: expected a list of lists of ranks, got {found!r:.80}"
            )
            sizes = {len(one) for one in found}
            assert sizes == {shape[dim]}, (
                f"{what}: expected groups of {shape[dim]} ranks, got {sorted(sizes)}; the groups are {right}"
            )
            for one in found:
                assert one in right, f"{what}: expected one of the groups {right}, got {one}"
            assert sorted(found) == sorted(right), f"{what}: expected {right}, got {found}"

    def test_two_dimensions(self, student):
        self.check(student, [(2, 3), (3, 2)])

    def test_any_shape(self, student):
        self.check(student, SHAPES + LARGE_SHAPES)

    def test_training(self, student, warm_ranks):
        """The library's training with these groups matches one process bit for bit."""
        if not one_process:
            one_process["fingerprint"] = run(warm_ranks(1), TINY, Layout()).fingerprint
        right = one_process["fingerprint"]
        for text in ("dp=2,tp=2", "pp=2,dp=2,zero=1"):
            for rank, seen in enumerate(student.on_ranks(4, train_on_groups, TINY, Layout.parse(text))):
                fingerprint, calls = seen.value
                assert calls.get("mesh_groups"), "the training loop did not call your mesh_groups"
                assert fingerprint == right, (
                    f"{text}, training with your groups, fingerprint on rank {rank}: expected {right[:16]} as in one "
                    f"process, got {fingerprint[:16]}"
                )


# 9.3


def dp_bytes(model_bytes, dp: int, zero: int, micro_batches: int) -> Fraction:
    reduce_scatters = micro_batches if zero >= 2 else 1
    all_gathers = 2 * micro_batches if zero == 3 else 1
    return (reduce_scatters + all_gathers) * Fraction(dp - 1, dp) * Fraction(model_bytes)


def tp_bytes(activation_bytes, tp: int, layers: int, micro_batches: int) -> Fraction:
    return 4 * layers * micro_batches * Fraction(2 * (tp - 1), tp) * Fraction(activation_bytes)


def pp_bytes(activation_bytes, pp: int, micro_batches: int) -> int:
    return max((rank > 0) + (rank < pp - 1) for rank in range(pp)) * micro_batches * activation_bytes


def crosses_machines(shape: tuple[int, ...], dim: int, in_machine: int) -> bool:
    nodes = np.arange(prod(shape)).reshape(shape) // in_machine
    return bool((nodes != nodes.take([0], axis=dim)).any())


def axis_seconds(lengths, sent, order: Sequence[str], in_machine: int, fast, slow) -> list[Fraction]:
    shape = tuple(lengths[axis] for axis in order)
    links = [slow if crosses_machines(shape, dim, in_machine) else fast for dim in range(len(shape))]
    return [Fraction(sent[axis]) / Fraction(link) for axis, link in zip(order, links, strict=True)]


SMALL = TrainConfig(  # three ranks divide everything that is sent; sums travel in float32, 4 bytes each
    layers=3, heads=6, width=12, context=6, steps=1, global_batch=6, micro_batch=1, warmup=1, reduce_dtype="float32"
)
ARRAY = 4 * SMALL.context * SMALL.width  # bytes of (B, T, C)
AXES = {"dp": ("dp", "shard"), "tp": ("tp",), "pp": ("pp",)}  # ZeRO's messages have another name
runs: dict[tuple[str, str, int], int] = {}  # measured bytes


def measured(warm_ranks, axis: str, text: str, layers: int = SMALL.layers) -> int:
    """The bytes that the rank that sends the most really sends along an axis in one training step."""
    if (axis, text, layers) not in runs:
        layout = Layout.parse(text)
        ranks = run(warm_ranks(layout.world_size), replace(SMALL, layers=layers), layout).ranks
        arrays = [[row for row in r.collectives if row["axis"] in AXES[axis] and row["elements"] > 1] for r in ranks]
        runs[axis, text, layers] = max(sum(row["bytes_sent"] for row in rows) for rows in arrays)
    return runs[axis, text, layers]


def random_order(seed: int) -> tuple:
    """Arguments of best_order, with any names and lengths, and the axes in another order in each dict."""
    random = np.random.default_rng([93, seed])
    axes = random.permutation(["dp", "ep", "pp", "sp", "tp"])[: 2 + seed % 3].tolist()
    lengths = {axis: int(random.integers(1, 7)) for axis in axes}
    sent = {axis: float(random.integers(0, 40)) / 8 for axis in random.permutation(axes).tolist()}
    return lengths, sent, int(random.integers(2, 9)), 10.0, 1.5


def check_number(found, right, name: str, what: str, source: str = "") -> None:
    assert float(number(found, name)) == pytest.approx(float(right), rel=1e-9), (  # a few float operations
        f"{name}, {what}: expected {float(right):,.6g}{source}, got {float(found):,.6g}"
    )


@pytest.mark.task(
    "9.3",
    points=4,
    kind="worksheet",
)
class TestWires:
    """What each axis sends, and which axis belongs on the fast links"""

    REAL = " as counted in a real training step"

    def test_dp_bytes(self, student):
        inputs = list(product((0, 26, 14_000, 3 << 40), (1, 2, 3, 8, 9), (0, 1, 2, 3), (1, 4)))
        for (nbytes, dp, zero, m), found in found_for(student, "dp_bytes", inputs):
            what = f"{nbytes:,} bytes of parameters, dp={dp}, zero={zero}, micro_batches={m}"
            check_number(found, dp_bytes(nbytes, dp, zero, m), "dp_bytes", what)

    def test_dp_bytes_like_real_ones(self, student, warm_ranks):
        nbytes = 4 * sum(parameter.size for parameter in GPT(SMALL.model).parameters())
        inputs = [(nbytes, 3, zero, SMALL.global_batch // 3) for zero in range(4)]
        for (_, _, zero, m), found in found_for(student, "dp_bytes", inputs):
            right = measured(warm_ranks, "dp", f"dp=3,zero={zero}" if zero else "dp=3,algorithm=ring")
            what = f"{nbytes:,} bytes of parameters, dp=3, zero={zero}, micro_batches={m}"
            check_number(found, right, "dp_bytes", what, self.REAL)

    def test_tp_bytes(self, student, warm_ranks):
        inputs = list(product((96, 1_000, 3 << 33), (1, 2, 3, 8, 9), (1, 2, 32), (1, 4)))
        for (nbytes, tp, layers, m), found in found_for(student, "tp_bytes", inputs):
            what = f"arrays of {nbytes:,} bytes, tp={tp}, {layers} layers, micro_batches={m}"
            check_number(found, tp_bytes(nbytes, tp, layers, m), "tp_bytes", what)
        found = number(student.call("tp_bytes", ARRAY, 2, 2, SMALL.micro_batches), "tp_bytes")
        right = measured(warm_ranks, "tp", "tp=2", layers=3) - measured(warm_ranks, "tp", "tp=2", layers=1)
        what = f"arrays of {ARRAY} bytes, tp=2, 2 layers, micro_batches={SMALL.micro_batches}"
        check_number(found, right, "tp_bytes", what, self.REAL)

    def test_pp_bytes(self, student, warm_ranks):
        for (nbytes, pp, m), found in found_for(
            student, "pp_bytes", product((96, 1_000, 3 << 33), (1, 2, 3, 8), (1, 4))
        ):
            what = f"arrays of {nbytes:,} bytes, pp={pp}, micro_batches={m}"
            check_number(found, pp_bytes(nbytes, pp, m), "pp_bytes", what)
        for (_, pp, m), found in found_for(student, "pp_bytes", [(ARRAY, pp, SMALL.micro_batches) for pp in (2, 3)]):
            right = measured(warm_ranks, "pp", f"pp={pp}")
            check_number(found, right, "pp_bytes", f"arrays of {ARRAY} bytes, pp={pp}, micro_batches={m}", self.REAL)

    def test_crosses_machines(self, student):
        inputs = [
            (shape, dim, in_machine)
            for shape in (*SHAPES, (2, 4, 8), (8, 4, 2), (5, 3), (64, 16))
            for dim in range(len(shape))
            for in_machine in (1, 2, 3, 4, 5, 8, 9, 100)
        ]
        for (shape, dim, in_machine), found in found_for(student, "crosses_machines", inputs):
            assert isinstance(found, bool | np.bool_), f"crosses_machines: expected True or False, got {found!r:.60}"
            right = crosses_machines(shape, dim, in_machine)
            assert found == right, (
                f"{mesh_in_words(shape)}, dimension {dim}, {in_machine} GPUs per node: expected {right}, got {found}; "
                f"the groups are {str(groups(shape, dim))[:200] if prod(shape) < 100 else 'many'}"
            )

    ORDERS = (  # lengths, sent, in_machine, fast, slow
        ({"pp": 2, "dp": 4, "tp": 8}, {"pp": 10, "dp": 100, "tp": 1000}, 8, 10, 1),
        ({"tp": 4, "dp": 2}, {"tp": 1000, "dp": 10}, 4, 10, 1),
        ({"tp": 4, "dp": 2}, {"tp": 10, "dp": 1000}, 4, 10, 1),
        (
            {"dp": 4, "tp": 4, "pp": 2},
            {"dp": 500, "tp": 1000, "pp": 300},
            8,
            10,
            1,
        ),  # dp does not fit into a node next to tp
        ({"dp": 8, "tp": 2, "pp": 2}, {"dp": 500, "tp": 1000, "pp": 300}, 4, 10, 1),
        (
            {"dp": 16, "tp": 2, "pp": 2},
            {"dp": 900, "tp": 400, "pp": 300},
            8,
            10,
            1,
        ),  # the axis that sends most crosses anyway
        ({"pp": 4, "dp": 2}, {"pp": 5, "dp": 4}, 8, 10, 1),  # one node: all orders are equal
        ({"pp": 2, "dp": 3, "tp": 3}, {"pp": 70, "dp": 100, "tp": 90}, 4, 10, 1),  # groups that do not divide the nodes
        ({"tp": 8}, {"tp": 100}, 4, 10, 1),
        ({"pp": 2, "dp": 2, "cp": 2, "tp": 2}, {"pp": 1, "dp": 30, "cp": 200, "tp": 1000}, 4, 900, 50),
    )

    def test_best_order(self, student):
        for case, found in found_for(student, "best_order", [*self.ORDERS, *map(random_order, range(60))]):
            lengths, sent, in_machine, fast, slow = case
            what = f"lengths {lengths}, bytes {sent}, {in_machine} GPUs per node, {fast} and {slow} bytes per second"
            assert isinstance(found, tuple | list) and sorted(map(str, found)) == sorted(lengths), (
                f"{what}: expected the names of all axes, each once, got {found!r:.60}"
            )
            totals = {
                order: float(sum(axis_seconds(lengths, sent, order, in_machine, fast, slow)))
                for order in permutations(lengths)
            }
            best = min(totals, key=totals.get)
            assert totals[tuple(found)] == pytest.approx(totals[best], rel=1e-9), (  # equal but for rounding
                f"{what}: expected {best} with {totals[best]:g} seconds, got {tuple(found)} with "
                f"{totals[tuple(found)]:g}"
            )


# 9.4


def run_on_mesh(world, module, cases):
    """Return for each case (samples, targets, shape, steps, lr, clip) the losses and weight on this rank, and whether
    samples and targets are unmodified.
    """
    seen = []
    for samples, targets, *more in cases:
        lent = samples.copy(), targets.copy()
        result = module.train_on_mesh(*lent, *more, world)
        kept = all(a.tobytes() == b.tobytes() for a, b in zip(lent, (samples, targets), strict=True))
        seen.append([*result, kept])
    return seen


def regression(samples: int, features: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng([samples, features])
    return random.standard_normal((samples, features)), random.standard_normal((samples, outputs))


def in_one_process(samples, targets, steps, lr, clip) -> tuple[list[float], np.ndarray]:
    weight = np.zeros((samples.shape[1], targets.shape[1]))
    losses = []
    for _ in range(steps):
        errors = samples @ weight - targets
        losses.append(float(np.sum(errors**2) / len(samples)))
        gradient = 2 / len(samples) * samples.T @ errors
        norm = np.linalg.norm(gradient)
        weight -= lr * gradient * min(1, clip / (norm + 1e-6))
    return losses, weight


@pytest.mark.task(
    "9.4",
    points=3,
    kind="debugging",
)
class TestTrainOnMesh:
    """train_on_mesh: slower than one process, but only with replicas. Find out why and fix it"""

    CLIPS = (inf, 0.3, 0.02)  # never, at first, always
    SIZES = ((12, 6, 2), (7, 5, 1), (2, 2, 3))  # samples, features, outputs: some ranks have no samples, or no features

    def check(self, student, *shapes, steps: int = 6) -> None:
        settings = [(size, clip) for size in self.SIZES for clip in self.CLIPS]
        for shape in shapes:
            cases = [(*regression(*size), shape, steps, 0.1, clip) for size, clip in settings]
            seen = student.on_ranks(prod(shape), run_on_mesh, cases)
            for n, (size, clip) in enumerate(settings):
                samples, targets, _, _, lr, _ = cases[n]
                losses, weight = in_one_process(samples, targets, steps, lr, clip)
                for rank, one in enumerate(seen):
                    found_losses, found, kept = one.value[n]
                    what = (
                        f"the mesh {shape}, rank {rank}, {size[0]} samples of {size[1]} features, {size[2]} outputs, "
                        f"clip={clip}"
                    )
                    assert kept, f"{what}: expected samples and targets unmodified, but train_on_mesh modifies them"
                    right = np.array_split(weight, shape[1])[rank % shape[1]]
                    # the sums have another order: in so few steps the float64 errors stay below 1e-9
                    assert found_losses == pytest.approx(losses, rel=1e-9), (
                        f"{what}, losses: expected {losses_in_words(losses)} as in one process, "
                        f"got {losses_in_words(found_losses)}"
                    )
                    assert isinstance(found, np.ndarray) and found.dtype == np.float64, (
                        f"{what}, weight: expected an array of float64, got {brief(found)}"
                    )
                    assert found.shape == right.shape, (
                        f"{what}, shape of the weight: expected {right.shape}, got {np.shape(found)}"
                    )
                    distance = np.abs(found - right).max(initial=0)
                    assert distance <= 1e-9, (  # as above
                        f"{what}, distance of the trained weight from that of one process: expected at most 1e-9, "
                        f"got {distance:.2g}"
                    )

    def test_one_rank(self, student):
        self.check(student, (1, 1))

    def test_features_split(self, student):
        self.check(student, (1, 2), (1, 3))

    def test_samples_split(self, student):
        self.check(student, (2, 1), (3, 1))

    def test_few_steps(self, student):
        self.check(student, (1, 2), steps=0)
        self.check(student, (2, 2), steps=1)

    def test_both_split(self, student):
        self.check(student, (2, 2), (2, 3), (3, 2))


def losses_in_words(losses) -> str:
    return ", ".join(f"{loss:.5g}" for loss in losses[:4]) + ", ..."


# 9.5


@dataclass(frozen=True)
class Model:
    layers: int
    heads: int
    width: int
    context: int
    global_batch: int


@dataclass(frozen=True)
class Hardware:
    gpus: int
    in_machine: int
    memory: float
    flops: float
    fast: float
    slow: float


SMALLEST = Model(12, 12, 768, 1024, 512)  # GPT-2's size
SEVEN = Model(32, 32, 4096, 4096, 512)  # 7B
FEW = replace(SEVEN, global_batch=16)
PRIME = Model(31, 2, 4096, 4096, 64)  # layers and heads hardly divide
ODD = Model(15, 45, 1237, 999, 45)  # nothing is a power of two
LONG = replace(SEVEN, context=32768)
LARGE = Model(96, 96, 12288, 2048, 1536)  # 175B
LARGEST = Model(128, 128, 16384, 8192, 2048)  # 400B

ONE = Hardware(gpus=1, in_machine=1, memory=80e9, flops=400e12, fast=300e9, slow=25e9)
NODE = replace(ONE, gpus=8, in_machine=8)
EIGHT = replace(NODE, gpus=64)
THOUSAND = replace(NODE, gpus=1024)
ETHERNET = replace(EIGHT, slow=1.25e9)

CASES = (
    (SMALLEST, ONE),
    (SMALLEST, NODE),
    (SMALLEST, ETHERNET),
    (SEVEN, NODE),
    (SEVEN, replace(NODE, memory=16e9)),
    (SEVEN, replace(NODE, memory=53_687_091_200)),  # exactly the bytes of the fastest layout
    (SEVEN, EIGHT),
    (SEVEN, replace(EIGHT, slow=EIGHT.fast)),
    (SEVEN, THOUSAND),
    (FEW, ETHERNET),
    (FEW, replace(EIGHT, slow=EIGHT.fast)),
    (PRIME, replace(NODE, gpus=32, memory=20e9)),
    (PRIME, replace(NODE, gpus=32, memory=16e9)),
    (LARGE, EIGHT),
    (LARGE, replace(EIGHT, in_machine=1)),
    (LARGE, replace(EIGHT, gpus=48, in_machine=6)),
    (LARGE, THOUSAND),
    (LARGE, replace(THOUSAND, memory=8e9)),
    (LARGEST, THOUSAND),
    (ODD, replace(NODE, gpus=45, in_machine=7, memory=6e9)),
    (ODD, replace(NODE, gpus=15, in_machine=4, memory=9e9)),
    (LONG, NODE),
    (replace(SMALLEST, heads=1, global_batch=4), NODE),  # one micro-batch each: stage 2 would be as fast as 1
)

# Two layouts that are almost equally fast. The second needs less memory.
ALMOST = replace(EIGHT, gpus=48, in_machine=6)
FASTER, SMALLER = (1, 4, 12, 0), (1, 6, 8, 0)


def almost_equal(excess: float, speed: float = 1.0) -> tuple[Model, Hardware]:
    """A cluster on which SMALLER takes 1 + excess times as long as FASTER; with a higher speed it is faster as a whole.

    The seconds of a layout are a + b / slow, so one value of slow makes it so.
    """
    at_one, at_half = (
        [step_seconds(LARGE, replace(ALMOST, slow=slow), *layout) for layout in (FASTER, SMALLER)]
        for slow in (Fraction(1), Fraction(1, 2))
    )
    (b, d), factor = (half - one for one, half in zip(at_one, at_half, strict=True)), 1 + Fraction(excess)
    a, c = at_one[0] - b, at_one[1] - d
    slow = (factor * b - d) / (c - factor * a)  # where c + d / slow = factor * (a + b / slow)
    flops, fast = speed * ALMOST.flops, speed * ALMOST.fast
    return LARGE, replace(ALMOST, flops=flops, fast=fast, slow=speed * float(slow))


IMPOSSIBLE = (  # (model, hardware, why)
    (SEVEN, ONE, "needs more memory than one GPU has"),
    (LARGE, NODE, "does not fit into one node, however it is split"),
    (LARGEST, EIGHT, "does not fit into 64 GPUs, however it is split"),
    (SEVEN, replace(NODE, gpus=7, in_machine=7), "cannot be split over 7 GPUs"),
)


def in_gpu(model: Model, tp: int, pp: int) -> Fraction:
    return Fraction(12 * model.layers * model.width**2, tp * pp)


def memory_parts(model: Model, dp: int, tp: int, pp: int, zero: int) -> dict[str, Fraction]:
    kinds = ("parameters", 2, 3), ("gradients", 2, 2), ("optimizer", 12, 1)  # bytes, and the first stage that shards it
    mine = in_gpu(model, tp, pp)
    parts = {kind: mine * nbytes / (dp if zero >= stage else 1) for kind, nbytes, stage in kinds}
    layer = Fraction(34 * model.context * model.width, tp)
    return parts | {"activations": min(pp, model.global_batch // dp) * Fraction(model.layers, pp) * layer}


def memory_bytes(model: Model, *layout: int) -> Fraction:
    return sum(memory_parts(model, *layout).values(), Fraction())


def seconds_parts(model: Model, hardware: Hardware, dp: int, tp: int, pp: int, zero: int) -> dict[str, Fraction]:
    m, array = model.global_batch // dp, 2 * model.context * model.width
    flops = 6 * in_gpu(model, tp, pp) * model.context * (m + pp - 1)
    lengths = {"pp": pp, "dp": dp, "tp": tp}
    sent = {
        "dp": dp_bytes(2 * in_gpu(model, tp, pp), dp, zero, m),
        "tp": tp_bytes(array, tp, model.layers // pp, m),
        "pp": pp_bytes(array, pp, m),
    }
    sending = axis_seconds(lengths, sent, tuple(lengths), hardware.in_machine, hardware.fast, hardware.slow)
    return {"computing": flops / Fraction(hardware.flops)} | dict(zip(lengths, sending, strict=True))


def step_seconds(model: Model, hardware: Hardware, *layout: int) -> Fraction:
    return sum(seconds_parts(model, hardware, *layout).values(), Fraction())


def allowed(model: Model, gpus: int) -> list[tuple[int, int, int, int]]:
    return [
        (dp, tp, pp, zero)
        for pp in range(1, gpus + 1)
        if gpus % pp == 0 and model.layers % pp == 0
        for tp in range(1, gpus // pp + 1)
        if gpus // pp % tp == 0 and model.heads % tp == 0
        for dp in [gpus // pp // tp]
        if model.global_batch % dp == 0
        for zero in range(4)
        if not (zero and dp == 1) and not (zero > 1 and pp > 1)
    ]


all_tried: dict[tuple[Model, Hardware], dict] = {}


def tried(model: Model, hardware: Hardware) -> dict[tuple[int, int, int, int], tuple[Fraction, Fraction]]:
    """The seconds and the memory of all layouts that are allowed and fit."""
    if (model, hardware) not in all_tried:
        memory = {layout: memory_bytes(model, *layout) for layout in allowed(model, hardware.gpus)}
        all_tried[model, hardware] = {
            layout: (step_seconds(model, hardware, *layout), nbytes)
            for layout, nbytes in memory.items()
            if nbytes <= hardware.memory
        }
    return all_tried[model, hardware]


def the_best(model: Model, hardware: Hardware) -> tuple[int, int, int, int]:
    found = tried(model, hardware)
    fastest = min(seconds for seconds, _ in found.values())
    slower = {layout: seconds / fastest - 1 for layout, (seconds, _) in found.items()}
    equal = [layout for layout in found if slower[layout] < 1e-6]
    assert all(abs(excess - Fraction(1e-6)) > 1e-9 for excess in slower.values()), "rounding could decide: another case"
    best = min(equal, key=lambda layout: found[layout][1])
    assert [found[layout][1] for layout in equal].count(found[best][1]) == 1, "two layouts are as good: as above"
    return best


def run_model(world, module, name, cases):
    """Return for each case (a model, hardware or None, and more) the value, or the ValueError."""
    lend(module, name)
    for library in (memory_bytes, step_seconds):
        if library.__name__ != name and name != "choose_layout":
            setattr(module, library.__name__, library)
    found = []
    for model, hardware, *more in cases:
        given = [module.Model(*model)] + ([module.Hardware(*hardware)] if hardware else [])
        try:
            found.append(getattr(module, name)(*given, *more))
        except ValueError as error:
            found.append(f"ValueError: {error}")
    return found


SAMPLES = [
    (model, hardware, layout)
    for model, hardware in CASES
    for layout in allowed(model, hardware.gpus)[:: 1 if hardware.gpus < 16 else 7]
]


def layout_in_words(layout) -> str:
    return "dp={}, tp={}, pp={}, zero={}".format(*layout)


def parts_in_words(parts: dict[str, Fraction]) -> str:
    return f" ({', '.join(f'{name} {float(part):,.6g}' for name, part in parts.items())})"


def model_in_words(model: Model) -> str:
    return f"Model{astuple(model)}"


def cluster_in_words(model: Model, hardware: Hardware) -> str:
    return f"{model_in_words(model)}, Hardware({', '.join(f'{value:.12g}' for value in astuple(hardware))})"


@pytest.mark.task(
    "9.5",
    points=5,
)
class TestChooseLayout:
    """choose_layout: the best layout for a model and a cluster"""

    def found(self, student, name: str, cases) -> list:
        plain = [(astuple(model), hardware and astuple(hardware), *more) for model, hardware, *more in cases]
        return student.on_ranks(1, run_model, name, plain)[0].value

    def test_memory(self, student):
        cases = [(model, None, *layout) for model, _, layout in SAMPLES]
        for (model, _, layout), found in zip(SAMPLES, self.found(student, "memory_bytes", cases), strict=True):
            what, parts = f"{model_in_words(model)}, {layout_in_words(layout)}", memory_parts(model, *layout)
            check_number(found, sum(parts.values()), "memory_bytes", what, parts_in_words(parts))

    def test_seconds(self, student):
        cases = [(model, hardware, *layout) for model, hardware, layout in SAMPLES]
        for (model, hardware, layout), found in zip(SAMPLES, self.found(student, "step_seconds", cases), strict=True):
            what = f"{cluster_in_words(model, hardware)}, {layout_in_words(layout)}"
            parts = seconds_parts(model, hardware, *layout)
            check_number(found, sum(parts.values()), "step_seconds", what, parts_in_words(parts))

    def test_choice(self, student):
        """Compared with trying all layouts."""
        self.check_choices(student, CASES)

    def test_every_limit(self, student):
        """Clusters whose memory is just enough for one of the layouts."""
        model, cluster = replace(PRIME, heads=4), replace(NODE, gpus=8)
        limits = sorted({memory_bytes(model, *layout) for layout in allowed(model, cluster.gpus)})
        self.check_choices(student, [(model, replace(cluster, memory=float(limit) + 1)) for limit in limits])

    def test_almost_equal(self, student):
        """Layouts whose times differ by a little more or less than one part in a million, in seconds and in minutes."""
        cases = [almost_equal(excess, speed) for excess in (0, 4e-7, 8e-7, 1.5e-6, 1e-4) for speed in (1.0, 1e9)]
        assert [the_best(*case) for case in cases] == [SMALLER] * 6 + [FASTER] * 4
        self.check_choices(student, cases)

    def check_choices(self, student, cases) -> None:
        for (model, hardware), found in zip(cases, self.found(student, "choose_layout", cases), strict=True):
            what = cluster_in_words(model, hardware)
            assert not isinstance(found, str), f"{what}: expected a layout, since some fit, got {found}"
            assert isinstance(found, tuple | list) and len(found) == 4 and whole_numbers(found), (
                f"{what}: expected integers (dp, tp, pp, zero), got {found!r:.60}"
            )
            found, right, layouts = tuple(found), the_best(model, hardware), tried(model, hardware)
            problem = "does not fit" if found in allowed(model, hardware.gpus) else "is not allowed"
            assert found in layouts, (
                f"{what}: expected {layout_in_words(right)}, got {layout_in_words(found)}, which {problem}"
            )
            (seconds, nbytes), (best_seconds, best_nbytes) = layouts[found], layouts[right]
            assert found == right, (
                f"{what}: expected {layout_in_words(right)} with {float(best_seconds):.10g} s and "
                f"{float(best_nbytes):,.0f} bytes, got {layout_in_words(found)} with {float(seconds):.10g} s and "
                f"{float(nbytes):,.0f} bytes"
            )

    def test_nothing_fits(self, student):
        cases = [case[:2] for case in IMPOSSIBLE]
        for (model, hardware, why), found in zip(IMPOSSIBLE, self.found(student, "choose_layout", cases), strict=True):
            what = cluster_in_words(model, hardware)
            assert isinstance(found, str), f"{what}: expected a ValueError, since this model {why}, got {found}"
            assert re.search(rf"\b{hardware.gpus}\b", found), (
                f"{what}: this model {why}. Expected a message that says that nothing fits on {hardware.gpus} GPUs, "
                f"got: {found}"
            )


# 9.6


def pairs_of(row: dict) -> set[frozenset]:
    return {frozenset(pair) for pair in combinations([item for item in row.items() if item[1] is not None], 2)}


def run_covering(world, module, cases):
    """Return for each case the result, and whether the rows are unmodified. Earlier, the same list held other rows."""
    found = []
    for rows in cases:
        lent = [dict(row) for row in rows[::-1]]
        module.covering(lent)
        lent[:] = [dict(row) for row in rows]
        found.append((module.covering(lent), repr(lent) == repr(rows)))
    return found


def pair_in_words(pair: frozenset) -> str:
    return " with ".join(sorted(f"{key}={value}" for key, value in pair))


def random_rows(seed: int, count: int, keys: int, values: int) -> list[dict]:
    random = np.random.default_rng([9, seed])
    table = random.integers(-1, values, (count, keys)).tolist()
    rows = [{f"k{i}": None if value < 0 else value for i, value in enumerate(row)} for row in table]
    return [dict(reversed(row.items())) if place % 2 else row for place, row in enumerate(rows)]  # in any order


def full(**values) -> list[dict]:
    """Every combination of these values."""
    return [dict(zip(values, row, strict=True)) for row in product(*values.values())]


@answers("minidist.verify.matrix")
@pytest.mark.task(
    "9.6",
    points=4,
)
class TestCovering:
    """covering: a few rows that cover every pair of settings"""

    def check(self, student, cases, detail: bool = True) -> None:
        cases = list(cases)
        for rows, (found, kept) in zip(cases, student.on_ranks(1, run_covering, cases)[0].value, strict=True):
            what = f"rows {rows}" if len(rows) < 9 else f"{len(rows)} rows of {len(rows[0])} keys"
            assert kept, f"{what}: expected the rows unmodified, but covering modifies them"
            assert isinstance(found, list) and whole_numbers(found), (
                f"{what}: expected a list of integers, got {found!r:.60}"
            )
            outside = [place for place in found if not 0 <= place < len(rows)]
            assert not outside, f"{what}: expected indices below {len(rows)}, got {outside[0]}"
            pairs = [pairs_of(row) for row in rows]
            met = set().union(*(pairs[place] for place in found))
            lost = sorted(map(pair_in_words, set().union(*pairs) - met))
            assert not lost, f"{what}: no chosen row of {found} covers {lost[0]}"
            missing = set().union(*pairs)
            for number_, place in enumerate(found, 1):
                gains = [len(one & missing) for one in pairs]
                best = gains.index(max(gains))
                assert gains[place] > 0, f"{what}: row {place}, choice {number_} of {found}, adds no missing pair"
                assert gains[place] == gains[best], (
                    f"{what}, choice {number_} of {found}: expected row {best}, which adds {gains[best]} missing "
                    f"pairs, got row {place}, which adds {gains[place]}"
                )
                assert place == best, (
                    f"{what}, choice {number_} of {found}: expected row {best}, the first of equals, got row {place}"
                )
                missing -= pairs[place]

    def test_few_rows(self, student):
        three = full(a=(1, 2), b=(1, 2), c=(1, 2))  # 4 of 8 suffice
        self.check(student, [full(a=(1, 2), b=(3, 4)), three, three[::-1], full(a=("x", "y"), b=(0, 1), c=(0, 1, 2))])

    def test_settings_that_do_not_apply(self, student):
        rows = [
            {"dp": 1, "zero": None, "tp": 1},
            {"dp": 2, "zero": 0, "tp": 1},
            {"dp": 2, "zero": 1, "tp": None},
            {"dp": 2, "zero": 1, "tp": 2},
            {"dp": None, "zero": None, "tp": 2},
        ]
        self.check(student, [rows, rows[::-1], [{"dp": 1, "tp": 2}, {"dp": 2, "tp": 1}]])

    def test_any_values(self, student):
        """Numbers and strings, also those that look alike, in rows with their keys in any order."""
        values = (0, "0", "", -1, 1.5, 1, "None", "a=0")
        rows = full(a=values, b=values)
        turned = [dict(reversed(row.items())) for row in rows]
        same_pairs = [{"a": 1, "b": 2, "c": 3}, {"c": 3, "b": 2, "a": 1}, {"b": 1, "a": 2, "c": 3}]
        self.check(student, [rows, turned, rows[:9] + turned[:20], same_pairs, same_pairs[::-1]])

    def test_nothing_to_cover(self, student):
        nothing = {"dp": None, "tp": None}
        self.check(student, [[], [nothing], [{"dp": 1}, {"dp": 2}], [{"dp": 1, "tp": None}, nothing], [{}, {}]])
        self.check(student, [[{"dp": 1, "tp": 2}] * 3, [nothing, {"dp": 0, "tp": 0}]])

    def test_any_rows(self, student):
        self.check(student, [random_rows(seed, 40, keys, 3) for seed in range(3) for keys in (2, 3, 5)])

    def test_layouts(self, student):
        """All layouts that minidist can run on up to three ranks."""
        rows = [one.settings for one in every_combination(TrainConfig(layers=4, heads=6, width=12), 3)]
        self.check(student, [rows])
