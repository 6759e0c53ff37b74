"""Graders of chapter 14: random models, layouts and clusters; matrices counted one by one, schedules, brute force."""

from dataclasses import astuple, dataclass, replace
from fractions import Fraction
from itertools import count, product
from math import exp, inf, isinf, log, prod, sqrt

import numpy as np
import pytest

from minidist import ReduceOp, all_reduce
from minidist.course.authoring.assertions import FLOAT64, brief, compared, number, trained
from minidist.course.sandbox.values import generator, working_dtype
from minidist.nn.optim import lamb
from minidist.parallel.tools.schedules import schedule
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout as RunLayout
from minidist.train.trainer import run

SERIES = 1e-9  # relative: a sum of up to a million terms
FIVE_DIGITS = 1e-5


def answers(*forbidden):
    """Answers may not call these parts of the library."""
    return pytest.mark.answers("ch14_planning", forbidden=forbidden)


pytestmark = answers()


@dataclass(frozen=True)
class Model:
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocab: int
    context: int


@dataclass(frozen=True)
class Layout:
    dp: int = 1
    tp: int = 1
    pp: int = 1
    virtual: int = 1
    zero: int = 0
    recompute: str = "none"
    micro_batch: int = 1


@dataclass(frozen=True)
class Cluster:
    gpus: int
    node: int
    memory: float
    flops: float
    fast: float
    slow: float


@dataclass(frozen=True)
class Law:
    E: float
    A: float
    B: float
    alpha: float
    beta: float


GIVEN = (Model, Layout, Cluster, Law)
MODES = ("none", "mlp", "full")
LLAMA_8B = Model(32, 4096, 32, 8, 14336, 128256, 8192)
LLAMA_70B = Model(80, 8192, 64, 8, 28672, 128256, 8192)
LLAMA_405B = Model(126, 16384, 128, 8, 53248, 128256, 8192)
H100 = Cluster(16384, 8, 80e9, 989.4e12, 450e9, 50e9)


def given(module, value):
    """A dataclass of the grader as that of the answers; anything else as it is."""
    return getattr(module, type(value).__name__)(*astuple(value)) if isinstance(value, GIVEN) else value


def run_each(world, module, name, cases):
    """Return, in a rank, the value for each tuple of arguments, or "ValueError"."""
    found = []
    for args in cases:
        try:
            found.append(getattr(module, name)(*(given(module, arg) for arg in args)))
        except ValueError:
            found.append("ValueError")
    return found


def found_for(student, name: str, cases) -> list:
    return student.on_ranks(1, run_each, name, list(cases))[0].value


def check(student, name: str, cases: dict[tuple, float], because: str, rel: float = FLOAT64) -> None:
    """Assert what a function returns for each tuple of arguments, up to rounding."""
    for args, found in zip(cases, found_for(student, name, cases), strict=True):
        right = float(cases[args])
        assert number(found, f"{name}{args}") == pytest.approx(right, rel=rel, abs=0), (
            f"{name}{args}: {compared(right, found, f', {because}')}"
        )


def some_models(seed: int, amount: int = 12) -> list[Model]:
    """Return models of 12 n layers, which pipelines divide: like published ones, and some with no two numbers alike."""
    rng = generator(14, seed)
    found = [replace(LLAMA_8B, layers=36), replace(LLAMA_405B, layers=120)]
    for _ in range(amount):
        kv_heads, each, size = int(rng.integers(1, 9)), int(rng.integers(1, 5)), 8 * int(rng.integers(1, 17))
        layers, hidden = 12 * int(rng.integers(1, 9)), 8 * int(rng.integers(1, 5000))
        vocab, context = 8 * int(rng.integers(1, 20000)), 16 * int(rng.integers(1, 600))
        found.append(Model(layers, kv_heads * each * size, kv_heads * each, kv_heads, hidden, vocab, context))
    return found


def some_layouts(seed: int, amount: int = 4) -> list[Layout]:
    """Return layouts for models of 12 n layers."""
    rng = generator(14, seed)
    found = []
    for _ in range(amount):
        pp = int(rng.choice([1, 2, 3, 6, 12]))
        virtual = int(rng.choice([v for v in (1, 2, 3, 6) if 12 % (v * pp) == 0])) if pp > 1 else 1
        dp, tp = int(2 ** rng.integers(0, 6)), int(2 ** rng.integers(0, 4))
        zero, recompute = int(rng.integers(0, 4)), str(rng.choice(MODES))
        found.append(Layout(dp, tp, pp, virtual, zero, recompute, int(rng.integers(1, 5))))
    return found


# 14.1


def matrices(model: Model) -> list[tuple[int, int]]:
    """Return the matrices of one layer."""
    h, keys = model.width, model.kv_heads * (model.width // model.heads)
    gated = [(h, model.hidden), (h, model.hidden), (model.hidden, h)]
    return [(h, h), (h, keys), (h, keys), (h, h), *gated]


def states_of_stage(model: Model, tp: int, pp: int, stage: int) -> Fraction:
    """Layer after layer, matrix after matrix."""
    found = Fraction(0)
    for layer in range(model.layers):
        if layer * pp // model.layers == stage:
            found += sum(Fraction(prod(shape), tp) for shape in matrices(model)) + 2 * model.width
    if stage == 0:
        found += Fraction(model.vocab * model.width, tp)
    if stage == pp - 1:
        found += Fraction(model.vocab * model.width, tp) + model.width
    return found


def bytes_of_states(parameters, replicas: int, zero: int, gradient: int):
    split = [replicas if zero >= stage else 1 for stage in (3, 2, 1)]
    return sum(Fraction(each * parameters) / n for each, n in zip((2, gradient, 12), split, strict=True))


@answers("minidist.plan.memory", "minidist.plan.models")
@pytest.mark.task(
    "14.1",
    points=3,
    kind="worksheet",
)
class TestModelStates:
    """Model states: parameters of a model, of a stage, and their bytes on the fullest GPU"""

    def test_layer(self, student):
        cases = {(model,): sum(map(prod, matrices(model))) + 2 * model.width for model in some_models(1)}
        check(student, "layer_parameters", cases, "matrix by matrix")

    def test_model(self, student):
        """Published counts, and counting."""
        cases = {(model,): states_of_stage(model, 1, 1, 0) for model in some_models(2)}
        cases |= {(LLAMA_8B,): 8_030_261_248, (LLAMA_70B,): 70_553_706_496, (LLAMA_405B,): 405_853_388_800}
        check(student, "model_parameters", cases, "layer by layer")

    def test_stage(self, student):
        cases = {}
        for model, layout in product(some_models(3, 6), some_layouts(4, 6)):
            for stage in {0, layout.pp // 2, layout.pp - 1}:
                args = model, layout.tp, layout.pp, stage
                cases[args] = states_of_stage(*args)
        check(student, "stage_parameters", cases, "layer by layer")

    def test_bytes(self, student):
        cases = {
            (parameters, replicas, zero, gradient): bytes_of_states(parameters, replicas, zero, gradient)
            for parameters in (1, 1000, 7_000_000_000) for replicas in (1, 3, 64) for zero in range(4)
            for gradient in (2, 4)
        }  # fmt: skip
        check(student, "state_bytes", cases, "2 + gradient + 12, over the replicas where ZeRO shards it")

    def test_fullest(self, student):
        cases = {}
        for model, layout, gradient in product(some_models(5, 6), some_layouts(6, 8), (2, 4)):
            most = max(states_of_stage(model, layout.tp, layout.pp, stage) for stage in range(layout.pp))
            cases[model, layout, gradient] = bytes_of_states(most, layout.dp, layout.zero, gradient)
        check(student, "fullest_state_bytes", cases, "the stage with the most parameters")


# 14.2


def saved(model: Model, layout: Layout) -> Fraction:
    """Return the saved bytes of one layer, array after array: elements times bytes."""
    n, h = layout.micro_batch * model.context, model.width
    keys = model.kv_heads * (h // model.heads)
    inputs = [(n * h, 2)] * 4
    attention = [(n * h, 2)] * 2 + [(n * keys, 2)] * 2 + [(n * model.heads, 4)]
    hidden = [(n * model.hidden, 2)] * 3
    kept = {"none": inputs + attention + hidden, "mlp": inputs + attention, "full": inputs[:1]}[layout.recompute]
    return Fraction(sum(elements * each for elements, each in kept), layout.tp)


def counted_in_flight(layout: Layout, stage: int, micro_batches: int) -> int:
    """Count in the schedule itself: forwards without their backward."""
    name = "interleaved" if layout.virtual > 1 else "1f1b"
    held = most = 0
    for action in schedule(name, layout.pp, micro_batches, layout.virtual)[stage]:
        held += 1 if action.kind == "F" else -1
        most = max(most, held)
    return most


PIPELINES = [
    (Layout(pp=pp, virtual=virtual), m)
    for pp, virtual, m in (
        (1, 1, 1), (1, 1, 5), (2, 1, 1), (2, 1, 8), (4, 1, 3), (4, 1, 8), (4, 2, 4), (4, 2, 8), (4, 3, 16), (2, 4, 2),
        (2, 2, 6), (3, 2, 3), (3, 4, 9), (8, 1, 64), (8, 2, 8), (8, 3, 32),
    )
]  # fmt: skip


@answers("minidist.plan.memory", "minidist.parallel.tools.schedules", "minidist.parallel.tools.schedule_check")
@pytest.mark.task(
    "14.2",
    points=3,
    kind="worksheet",
)
class TestActivations:
    """Activations: of a layer by modes of recomputation, and of all micro-batches that a pipeline holds"""

    def test_layer(self, student):
        cases = {
            (model, replace(layout, recompute=mode)): saved(model, replace(layout, recompute=mode))
            for model in some_models(7, 6) for layout in some_layouts(8) for mode in MODES
        }  # fmt: skip
        check(student, "layer_activations", cases, "line by line")

    def test_in_flight(self, student):
        """Counted in the schedules of chapter 7."""
        cases = {
            (layout, stage, m): counted_in_flight(layout, stage, m)
            for layout, m in PIPELINES
            for stage in range(layout.pp)
        }
        check(student, "chunks_in_flight", cases, "as the schedule shows")

    def test_stage(self, student):
        cases = {}
        for seed, (model, (layout, m)) in enumerate(product(some_models(9, 3), PIPELINES)):
            layers = layout.pp * layout.virtual * 2
            other = replace(some_layouts(seed, 1)[0], pp=layout.pp, virtual=layout.virtual)
            model, batch = replace(model, layers=layers), m * other.dp * other.micro_batch
            for stage in {0, layout.pp // 2, layout.pp - 1}:
                right = counted_in_flight(other, stage, m) * 2 * saved(model, other)
                if stage == layout.pp - 1:
                    right += Fraction(4 * other.micro_batch * model.context * model.vocab, other.tp)
                cases[model, other, stage, batch] = right
        check(student, "stage_activations", cases, "all chunks in flight, and the last rank's logits")


# 14.3


def flops_by_hand(model: Model, causal: bool) -> dict[str, Fraction]:
    """Forward for one token, by parts: matrices of layers, pairs of tokens, the head."""
    pairs = 2 * (2 * model.width * model.context)  # with keys, and with values
    return {
        "layers": Fraction(model.layers * sum(2 * a * b for a, b in matrices(model))),
        "pairs": Fraction(model.layers * pairs, 2 if causal else 1),
        "head": Fraction(2 * model.width * model.vocab),
    }


def again_by_hand(model: Model, causal: bool, recompute: str) -> Fraction:
    parts = flops_by_hand(model, causal)
    gate_and_up = Fraction(model.layers * 2 * (2 * model.width * model.hidden))
    return {"none": Fraction(0), "mlp": gate_and_up, "full": parts["layers"] + parts["pairs"]}[recompute]


@answers("minidist.plan.models", "minidist.plan.planned_run", "minidist.analysis.utilization")
@pytest.mark.task(
    "14.3",
    points=3,
    kind="worksheet",
)
class TestFlops:
    """FLOPs, MFU and HFU as authors count them, and days of training"""

    def test_forward(self, student):
        cases = {
            (model, causal): sum(flops_by_hand(model, causal).values())
            for model in some_models(10) for causal in (False, True)
        }  # fmt: skip
        check(student, "forward_flops", cases, "products with matrices, and pairs of tokens")

    def test_recomputed(self, student):
        cases = {
            (model, causal, mode): again_by_hand(model, causal, mode)
            for model in some_models(11, 4) for causal in (False, True) for mode in MODES
        }  # fmt: skip
        for args, found in zip(cases, found_for(student, "recomputed_flops", cases), strict=True):
            right = float(cases[args])
            assert number(found, "recomputed_flops") == pytest.approx(right, rel=FLOAT64, abs=0), (
                f"recomputed_flops{args}: {compared(right, found)}"
            )

    def test_utilization(self, student):
        cases = {}
        for model, causal, mode in product(some_models(12, 4), (False, True), MODES):
            for speed, cluster in ((2.9e6, H100), (7.0, Cluster(3, 1, 1.0, 11.0, 1.0, 1.0))):
                flops = 3 * sum(flops_by_hand(model, causal).values()) + again_by_hand(model, causal, mode)
                cases[model, speed, cluster, causal, mode] = speed * float(flops) / (cluster.gpus * cluster.flops)
        check(student, "utilization", cases, "FLOPs of a second over those of all GPUs")

    def test_llama(self, student):
        """400 TFLOP/s of each of 16,384 GPUs, as Llama 3's authors count, are their 41 % (40.4 % of 989.4)."""
        flops = 3 * float(sum(flops_by_hand(LLAMA_405B, True).values()))
        speed = 400e12 * 16384 / flops  # tokens/s
        check(student, "utilization", {(LLAMA_405B, speed, H100, True, "none"): 400 / 989.4}, "TFLOP/s over the peak")

    def test_other_count(self, student):
        cases = {}
        for model, causal in product([*some_models(13, 4), replace(LLAMA_405B, context=131072)], (False, True)):
            mine, other = (sum(flops_by_hand(model, way).values()) for way in (causal, not causal))
            cases[model, 0.4, causal] = 0.4 * other / mine
        check(student, "other_count", cases, "the same tokens/s, with the FLOPs of the other count")

    def test_days(self, student):
        cases = {}
        for model, causal in product(some_models(14, 4), (False, True)):
            for tokens, cluster, mfu in ((15.6e12, H100, 0.4), (1e9, Cluster(8, 8, 1.0, 312e12, 1.0, 1.0), 0.55)):
                each = 3 * float(sum(flops_by_hand(model, causal).values()))
                speed = mfu * cluster.gpus * cluster.flops / each  # tokens/s
                cases[model, tokens, cluster, mfu, causal] = tokens / speed / 24 / 3600
        check(student, "training_days", cases, "tokens over tokens/s")


# 14.4

CLUSTERS = (
    H100,
    Cluster(64, 4, 1.0, 1.0, 3.0, 7.0),
    Cluster(64, 4, 1.0, 1.0, 7.0, 3.0),
    Cluster(64, 1, 1.0, 1.0, 5.0, 2.0),
    Cluster(64, 8, 1.0, 1.0, 9.0, 9.0),
)
GROUPS = [(size, stride) for size in (1, 2, 4, 8, 16, 64) for stride in (1, 2, 4, 8, 32)]


def nodes_of(size: int, stride: int, node: int) -> list[int]:
    """The node of each rank of a group that begins with GPU 0."""
    return [stride * rank // node for rank in range(size)]


def bandwidth_by_hand(size: int, stride: int, cluster: Cluster) -> float:
    nodes = nodes_of(size, stride, cluster.node)
    if len(set(nodes)) == 1:
        return cluster.fast
    together = nodes.count(nodes[0])
    return min(cluster.fast if together > 1 else inf, together * cluster.slow)


def gathered(size: int, stride: int, cluster: Cluster, nbytes: float) -> float:
    """Hop after hop around the ring."""
    hop = nbytes / size / bandwidth_by_hand(size, stride, cluster)
    return sum(hop for _ in range(size - 1))


def power_of_two_layouts(seed: int, amount: int) -> list[Layout]:
    return [replace(layout, zero=(0, 1, 3)[i % 3]) for i, layout in enumerate(some_layouts(seed, amount))]


@answers("minidist.plan.step", "minidist.plan.step.collectives", "minidist.plan.time")
@pytest.mark.task(
    "14.4",
    points=4,
    kind="worksheet",
)
class TestWhatAStepWaitsFor:
    """What a step waits for: links of a group, tensor parallelism, what hides of data parallelism, the bubble"""

    def test_in_a_node(self, student):
        cases = {(*group, node): nodes_of(*group, node).count(0) for group in GROUPS for node in (1, 2, 4, 8, 64)}
        check(student, "ranks_in_a_node", cases, "ranks on the first node")

    def test_bandwidth(self, student):
        cases = {(*group, cluster): bandwidth_by_hand(*group, cluster) for group in GROUPS for cluster in CLUSTERS}
        check(student, "ring_bandwidth", cases, "the slowest part of the ring")

    def test_tensor_parallel(self, student):
        cases = {}
        for model, layout, cluster in product(some_models(15, 3), some_layouts(16, 8), CLUSTERS):
            array = 2 * layout.micro_batch * model.context * model.width
            per_layer = {"none": 4 + 4, "mlp": 4 + 1 + 4, "full": 4 + 4 + 4}[layout.recompute]
            layers = model.layers / layout.pp
            cases[model, layout, cluster] = layers * per_layer * gathered(layout.tp, 1, cluster, array)
        for args, found in zip(cases, found_for(student, "tp_seconds", cases), strict=True):
            assert number(found, "tp_seconds") == pytest.approx(cases[args], rel=1e-11, abs=0), (
                f"tp_seconds{args}: expected {cases[args]:.9g} s, got {found:.9g}"
            )

    def test_data_parallel(self, student):
        cases = {}
        for layout, cluster, m in product(power_of_two_layouts(17, 12), CLUSTERS, (1, 5)):
            parameters = 3e9 / layout.tp
            size, stride = layout.dp, layout.tp
            gradients, params = (gathered(size, stride, cluster, each * parameters) for each in (4, 2))
            for share in (0.0, 0.3, 0.7, 1.1, 2.5):  # of what takes longest
                forward, backward = share * params, share * (params + gradients)
                kinds = {
                    0: [(1, 2 * gradients, backward)],
                    1: [(1, gradients, backward), (1, params, forward)],
                    3: [(m, params, forward), (m, params + gradients, backward)],
                }
                right = sum(times * max(0.0, taken - hidden) for times, taken, hidden in kinds[layout.zero])
                cases[parameters, layout, cluster, m, forward, backward] = right
        found = found_for(student, "dp_exposed", cases)
        for args, one in zip(cases, found, strict=True):
            assert number(one, "dp_exposed") == pytest.approx(cases[args], rel=1e-9, abs=0), (  # a difference
                f"dp_exposed{args}: expected {cases[args]:.9g} s, got {one:.9g}"
            )

    def test_step(self, student):
        """1F1B as a chart: forward and backward of a chunk take a third and two thirds of its slot."""
        cases = {}
        for pp, virtual, m in ((1, 1, 4), (2, 1, 6), (4, 1, 4), (4, 1, 16), (8, 2, 16), (4, 4, 8)):
            cases[3.0, Layout(pp=pp, virtual=virtual), m, 0.5] = m * 3.0 + 3.0 * (pp - 1) / virtual + 0.5
        check(student, "step_seconds", cases, "all slots, the bubble, and what is exposed")


# 14.5


def broken_rule(layout: Layout, model: Model, cluster: Cluster, batch: int) -> str | None:
    """Return what the first rule that a layout breaks is about."""
    m, rest = divmod(batch, layout.dp * layout.micro_batch)
    rules = {
        "the GPUs": layout.dp * layout.tp * layout.pp == cluster.gpus,
        "tp": model.kv_heads % layout.tp == 0 and layout.tp <= cluster.node,
        "pp x virtual": model.layers % (layout.pp * layout.virtual) == 0 and (layout.pp > 1 or layout.virtual == 1),
        "dp x micro_batch": rest == 0 and (layout.virtual == 1 or m % layout.pp == 0),
        "zero": layout.zero == 0 or (layout.dp > 1 and (layout.zero == 1 or (layout.zero == 3 and layout.pp == 1))),
        "recompute": layout.recompute in MODES,
    }
    return next((name for name, kept in rules.items() if not kept), None)


def legal_by_hand(model: Model, cluster: Cluster, batch: int) -> set[tuple]:
    """All combinations of divisors, and then the rules, one by one."""

    def divisors(value):
        return [n for n in range(1, value + 1) if value % n == 0]

    found = set()
    for tp, chunks in product(divisors(model.kv_heads), divisors(model.layers)):
        for pp in divisors(chunks):
            dp = max(1, cluster.gpus // (tp * pp))
            for micro_batch, zero, mode in product(divisors(batch // dp), (0, 1, 3), MODES):
                one = Layout(dp, tp, pp, chunks // pp, zero, mode, micro_batch)
                found |= set() if broken_rule(one, model, cluster, batch) else {astuple(one)}
    return found


def run_legal(world, module, cases):
    found = []
    for args in cases:
        layouts = module.legal_layouts(*(given(module, arg) for arg in args))
        assert isinstance(layouts, list), f"legal_layouts: expected a list, got {brief(layouts)}"
        for one in layouts[:1]:
            assert isinstance(one, module.Layout), f"legal_layouts: expected Layouts in the list, got {one!r:.60}"
        found.append([astuple(layout) for layout in layouts])
    return found


def run_search(world, module, plans, top, limit):
    """Plans: (memory, bound, seconds) of each layout. What is returned, and for which ones ``seconds`` was called."""
    layouts = [module.Layout(dp=i + 1) for i in range(len(plans))]
    asked = []

    def seconds(layout):
        asked.append(layout.dp - 1)
        return plans[layout.dp - 1][2]

    before = list(layouts)
    best = module.best_layouts(
        layouts, top, limit, lambda one: plans[one.dp - 1][0], lambda one: plans[one.dp - 1][1], seconds
    )
    assert isinstance(best, list), f"best_layouts: expected a list, got {brief(best)}"
    return [layout.dp - 1 for layout in best], asked, layouts == before


LEGAL = [
    (LLAMA_8B, replace(H100, gpus=1), 4),
    (LLAMA_8B, replace(H100, gpus=8), 8),
    (LLAMA_8B, replace(H100, gpus=8, node=2), 16),
    (LLAMA_8B, replace(H100, gpus=12, node=4), 12),
    (LLAMA_8B, replace(H100, gpus=64), 64),
    (LLAMA_8B, replace(H100, gpus=7), 14),
    (LLAMA_8B, replace(H100, gpus=11), 4),  # none: 11 divides nothing here
    (Model(15, 45, 45, 15, 99, 100, 64), replace(H100, gpus=45, node=5), 30),
    (Model(12, 48, 24, 6, 99, 100, 64), replace(H100, gpus=36, node=6), 24),
    (LLAMA_405B, replace(H100, gpus=128), 32),
    (LLAMA_405B, H100, 2048),
    (LLAMA_70B, replace(H100, gpus=102_400), 5120),
]


@answers("minidist.plan.search", "minidist.plan.layout")
@pytest.mark.task(
    "14.5",
    points=5,
)
class TestSearch:
    """legal_layouts and best_layouts: all layouts, the best of them, and few that are planned in full"""

    def test_legal(self, student):
        for case, found in zip(LEGAL, student.on_ranks(1, run_legal, LEGAL)[0].value, strict=True):
            what, right = f"legal_layouts{case}", legal_by_hand(*case)
            assert len(set(found)) == len(found), f"{what}: the same layout occurs twice"
            missing, wrong = right - set(found), set(found) - right
            one = Layout(*min(wrong, default=()))
            assert not wrong, f"{what}: {one} breaks the rule of {broken_rule(one, *case)}"
            assert not missing, f"{what}: {Layout(*min(missing))} is missing ({len(missing)} of {len(right)})"

    def plans(self, seed: int, count: int):
        """Bounds that are more or less close to seconds, in no order."""
        rng = generator(14, 5, seed)
        seconds = rng.permutation(count) + rng.random(count) / 2
        bounds = seconds * rng.uniform((1.0, 0.9, 0.3, 0.0)[seed % 4], 1.0, count)
        return list(zip((rng.random(count) * 100).tolist(), bounds.tolist(), seconds.tolist(), strict=True))

    def searches(self, student):
        for seed, count_, top, limit in product(range(4), (1, 7, 200), (1, 5), (50, 200)):
            plans = self.plans(seed, count_)
            best, asked, same_list = student.on_ranks(1, run_search, plans, top, limit)[0].value
            fitting = sorted((i for i, plan in enumerate(plans) if plan[0] <= limit), key=lambda i: plans[i][2])
            what = f"{count_} layouts, of which {len(fitting)} fit; top={top}"
            yield what, plans, top, fitting, best, asked, same_list

    def test_best(self, student):
        for what, plans, top, fitting, best, _, same_list in self.searches(student):
            right = [plans[i][2] for i in fitting[:top]]
            assert [plans[i][2] for i in best] == right, (
                f"{what}: expected the layouts of {right} s, got those of {[plans[i][2] for i in best]} s"
            )
            assert same_list, f"{what}: layouts was modified"

    def test_calls(self, student):
        for what, plans, top, fitting, _, asked, _ in self.searches(student):
            assert len(set(asked)) == len(asked), f"{what}: seconds was called twice for the same layout"
            wrong = [i for i in asked if i not in fitting]
            assert not wrong, f"{what}: seconds was called for a layout that does not fit"
            if len(fitting) >= top:
                last = plans[fitting[top - 1]][2]
                needless = [i for i in asked if plans[i][1] > last]
                assert not needless, (
                    f"{what}: seconds was called for a layout with a bound of {plans[needless[0]][1]:.4g} s; the last "
                    f"of the best takes {last:.4g} s ({len(asked)} calls, {len(needless)} of them needless)"
                )

    def test_exact_fit(self, student):
        plans = [(100.0, 1.0, 2.0), (100.5, 1.0, 1.5), (99.0, 2.5, 3.0)]
        best, _, _ = student.on_ranks(1, run_search, plans, 2, 100.0)[0].value
        assert best == [0, 2], f"of 100, 100.5 and 99 bytes, 100 and 99 fit into 100; got those at {best}"

    def test_none_fits(self, student):
        best, asked, _ = student.on_ranks(1, run_search, [(2.0, 1.0, 1.0)], 3, 1.0)[0].value
        assert best == [] and asked == [], f"if nothing fits, expected no layout and no call, got {best}, {len(asked)}"


# 14.6


def page(model: Model, layout: Layout, accumulation: int) -> tuple[int, Fraction, Fraction]:
    each = layout.tp * layout.pp
    states = Fraction(states_of_stage(model, 1, 1, 0), each)
    held = Fraction(model.layers, layout.pp) * saved(model, layout)
    sequences = sum(layout.micro_batch for _ in range(accumulation) for _ in range(layout.dp))
    return sequences, bytes_of_states(states, layout.dp, layout.zero, 4), min(layout.pp, accumulation) * held


@answers("minidist.plan.memory", "minidist.plan.models")
@pytest.mark.task(
    "14.6",
    points=3,
    kind="debugging",
)
class TestSummary:
    """summary: a proposal's batch and bytes, right for data parallelism alone. Find four errors, and fix them"""

    def check(self, student, layouts) -> None:
        cases = [
            (model, replace(layout, virtual=1, zero=layout.zero % 2), accumulation)
            for model, (layout, accumulation) in product(some_models(18, 3), layouts)
        ]
        for case, found in zip(cases, found_for(student, "summary", cases), strict=True):
            assert isinstance(found, tuple) and len(found) == 3, (
                f"summary{case}: expected three numbers, got {found!r:.60}"
            )
            names = "sequences in a step", "bytes of model states", "bytes of activations"
            for name, one, right in zip(names, found, page(*case), strict=True):
                assert number(one, name) == pytest.approx(float(right), rel=FLOAT64, abs=0), (
                    f"summary{case}, {name}: {compared(float(right), one)}"
                )

    def test_data_parallel(self, student):
        self.check(student, [(Layout(dp=dp, zero=zero), 1) for dp in (1, 8) for zero in (0, 1)])

    def test_accumulation(self, student):
        self.check(student, [(Layout(dp=4, micro_batch=3), 5), (Layout(zero=0), 16)])

    def test_pipeline(self, student):
        self.check(student, [(Layout(pp=6), 6), (Layout(dp=2, pp=3), 12)])

    def test_all_axes(self, student):
        layouts = [(layout, n * layout.pp) for layout in some_layouts(19, 8) for n in (1, 3)]
        self.check(student, layouts)


# 14.7

HOUR, DAY = 3600.0, 86400.0
FAILING = [  # MTBF of a GPU, GPUs, save, restart
    (50_677 * HOUR, 16384, 60.0, 600.0), (50_677 * HOUR, 16384, 300.0, 60.0), (50_677 * HOUR, 8, 60.0, 600.0),
    (1000 * HOUR, 512, 10.0, 3600.0), (100.0, 1, 1.0, 0.0), (30 * DAY, 24, 120.0, 1800.0),
]  # fmt: skip


def useful_by_hand(mtbf_of_gpu: float, gpus: int, save: float, restart: float) -> float:
    """The mean number of saves between failures, as a sum of probabilities, over the mean time between restarts."""
    mtbf = mtbf_of_gpu / gpus
    interval = sqrt(2 * save * mtbf)
    saves = 0.0
    for k in count(1):
        more = exp(-k * (interval + save) / mtbf)
        saves += more
        if more < 1e-14:
            break
    return saves * interval / (mtbf * exp(restart / mtbf))


@answers("minidist.plan.goodput", "minidist.plan.planned_run")
@pytest.mark.task(
    "14.7",
    points=3,
    kind="worksheet",
)
class TestCost:
    """Days and money with failures, and the fewest GPUs that end in time"""

    def test_share(self, student):
        cases = {case: useful_by_hand(*case) for case in FAILING}
        check(student, "useful_share", cases, "saves that count between two failures", SERIES)

    def test_seconds(self, student):
        cases = {(15.6e12, 2.7e6, 0.9): 15.6e12 / 2.7e6 / 0.9, (6.0, 2.0, 0.5): 6.0, (1.0, 1.0, 1.0): 1.0}
        check(student, "run_seconds", cases, "all tokens, in the time that is useful")

    def test_failures(self, student):
        """Llama 3: 419 failures in 54 days on 16,384 GPUs."""
        cases = {(54 * DAY, 54 * DAY * 16384 / 419, 16384): 419, (10.0, 5.0, 1): 2, (10.0, 5.0, 3): 6}
        check(student, "failures_of", cases, "GPU-seconds over a GPU's mean time between failures")

    def test_cost(self, student):
        cases = {(HOUR, 8, 2.0): 16, (54 * DAY, 16384, 2.5): 54 * 24 * 16384 * 2.5, (1800.0, 1, 3.0): 1.5}
        check(student, "run_cost", cases, "hours of all GPUs")

    def test_fewest(self, student):
        """Tried out, node after node."""
        cases = []
        for tokens, speed, most in ((15.6e12, 160.0, 32768), (1e12, 500.0, 8192), (1e9, 1000.0, 64)):
            for days, node, (mtbf, _, save, restart) in product((5.0, 20.0, 90.0), (8, 3), FAILING[:4]):
                cases.append((tokens, speed, days, node, most, mtbf, save, restart))
        cases.append((1e13, 100.0, 60.0, 8, 100_000, 500 * HOUR, 300.0, 3600.0))  # more GPUs only fail more
        cases.append((64 * 1000 * 0.9 * 5 * DAY, 1000.0, 5.0, 8, 64, 1e6 * HOUR, 1.0, 1.0))  # all of them, or one less
        cases.append((56 * 1000 * 0.9 * 5 * DAY, 1000.0, 5.0, 8, 56, 1e6 * HOUR, 1.0, 1.0))
        for case, found in zip(cases, found_for(student, "fewest_gpus", cases), strict=True):
            tokens, speed, days, node, most, mtbf, save, restart = case

            def needed(gpus, case=case):
                tokens, speed, _, _, _, mtbf, save, restart = case
                interval, each = sqrt(2 * save * mtbf / gpus), mtbf / gpus
                share = interval / each * exp(-restart / each) / (exp((interval + save) / each) - 1)
                return tokens / (gpus * speed * share) / DAY if share else inf

            fitting = (gpus for gpus in range(node, most + 1, node) if needed(gpus) <= days)
            right = next(fitting, "ValueError")
            assert found == right, f"fewest_gpus{case}: expected {right}, got {found!r:.40}"


# 14.8

LAWS = (
    Law(1.69, 406.4, 410.7, 0.34, 0.28),
    Law(1.8172, 482.01, 2085.43, 0.3478, 0.3658),
    Law(0.5, 10.0, 30.0, 0.5, 0.2),
    Law(2.0, 100.0, 5.0, 0.25, 0.5),
)


def loss_of(law: Law, parameters: float, tokens: float) -> float:
    return law.E + law.A * parameters**-law.alpha + law.B * tokens**-law.beta


def root(rising, low: float, high: float) -> float:
    """Return where a function goes from below 0 to above, by bisection."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2


def best_by_hand(law: Law, flops: float) -> float:
    """N where the two terms' slopes over log N, at N D = C / 6, cancel."""

    def slope(size):
        tokens = log(flops / 6) - size
        return law.beta * law.B * exp(-law.beta * tokens) - law.alpha * law.A * exp(-law.alpha * size)

    return exp(root(slope, 0.0, log(flops / 6)))


def cheapest_by_hand(law: Law, loss: float, served: float) -> float:
    """N where 6 N D(N) + 2 N served has no slope over log N."""

    def slope(size):
        """Divided by N."""
        term = law.A * exp(-law.alpha * size)
        rest = loss - law.E - term
        tokens = (law.B / rest) ** (1 / law.beta)
        return 6 * tokens + 2 * served - 6 * tokens * law.alpha * term / (law.beta * rest)

    smallest = log(law.A / (loss - law.E)) / law.alpha
    return exp(root(slope, smallest + 1e-9, smallest + 60))


@answers("minidist.plan.scaling.laws")
@pytest.mark.task(
    "14.8",
    points=4,
)
class TestScaling:
    """best_size, tokens_to_reach, cheapest and overtraining: compute-optimal models, and those that are used a lot"""

    BUDGETS = (1e15, 5.76e23, 1e26)

    def test_best_size(self, student):
        cases = [(law, budget) for law in LAWS for budget in self.BUDGETS]
        for (law, budget), found in zip(cases, found_for(student, "best_size", cases), strict=True):
            what, right = f"best_size({law}, {budget:g})", best_by_hand(law, budget)
            assert isinstance(found, tuple) and len(found) == 2, f"{what}: expected (N, D), got {found!r:.60}"
            for name, one, expected in zip("ND", found, (right, budget / 6 / right), strict=True):
                assert number(one, name) == pytest.approx(expected, rel=FIVE_DIGITS), (
                    f"{what}: expected {name} = {expected:.6g}, got {one:.6g}"
                )

    def test_tokens(self, student):
        cases = [(law, loss, size) for law in LAWS for loss in (2.0, 2.2, 3.0) for size in (1e6, 1e9, 1e12)]
        cases += [(law, law.E * 0.9, 1e9) for law in LAWS]
        cases += [(LAWS[3], 12.0, 1e4)]  # 2 + 100 / 10: only without end
        for (law, loss, size), found in zip(cases, found_for(student, "tokens_to_reach", cases), strict=True):
            what = f"tokens_to_reach({law}, {loss:g}, {size:g})"
            if loss_of(law, size, 1e300) >= loss:
                assert found == inf, f"{what}: expected inf, which no number of tokens brings it to; got {found!r:.40}"
                continue
            assert 0 < number(found, what) < inf, f"{what}: expected a number of tokens, got {found}"
            assert loss_of(law, size, found) == pytest.approx(loss, rel=1e-9), (
                f"{what}: after {found:.6g} tokens the loss is {loss_of(law, size, found):.6g}"
            )

    def test_cheapest(self, student):
        cases = [
            (law, law.E + above, served) for law in LAWS for above in (0.1, 0.5) for served in (0.0, 1e9, 1e13, 1e15)
        ]
        cases += [(law, law.E + 0.3) for law in LAWS]  # nobody uses it
        for (law, loss, *served), found in zip(cases, found_for(student, "cheapest", cases), strict=True):
            what = f"cheapest({law}, {loss:g}, {', '.join(f'{s:g}' for s in served)})"
            assert isinstance(found, tuple) and len(found) == 2, f"{what}: expected (N, D), got {found!r:.60}"
            right = cheapest_by_hand(law, loss, *(served or [0.0]))
            assert number(found[0], what) == pytest.approx(right, rel=FIVE_DIGITS), (
                f"{what}: expected N = {right:.6g}, got {found[0]:.6g}"
            )
            assert not isinf(number(found[1], what)) and loss_of(law, *found) == pytest.approx(loss, rel=1e-9), (
                f"{what}: the loss of N = {found[0]:.6g} and D = {found[1]:.6g} is {loss_of(law, *found):.6g}"
            )

    def test_overtraining(self, student):
        cases = {}
        for law, budget, factor in product(LAWS[:2], self.BUDGETS, (0.05, 0.3, 1.0, 4.0)):
            size = factor * best_by_hand(law, budget)
            tokens = budget / 6 / size
            best = cheapest_by_hand(law, loss_of(law, size, tokens), 0.0)
            rest = loss_of(law, size, tokens) - law.E - law.A * best**-law.alpha
            cases[law, size, tokens] = size * tokens / (best * (law.B / rest) ** (1 / law.beta))
        check(student, "overtraining", cases, "FLOPs over those of the cheapest with its loss", 1e-6)


# 14.9


def ramped(start: int, increment: int, ramp: int, final: int, samples: int) -> Fraction:
    """The batch after so many samples, from the ends of the stages."""
    batch, stages = start, (final - start) // increment
    for stage in range(1, stages + 1):
        if samples >= Fraction(ramp * stage, stages):
            batch = start + stage * increment
    return batch


def ramps() -> list[tuple[int, int, int, int]]:
    """Some by hand, and any: stages begin on a sample or between two."""
    found = [(32, 32, 120_000, 1536), (8, 4, 100, 16), (1, 1, 10, 4), (16, 16, 1000, 32), (4, 3, 7, 10), (8, 8, 9, 24)]
    for n in range(40):
        start, increment, stages, ramp = map(int, generator(14, n).integers(1, (20, 20, 120, 1000)))
        found.append((start, increment, ramp if n % 2 else stages * ramp, start + stages * increment))
    return found


@answers("minidist.plan.batches", "minidist.train.measuring.noise_scale", "minidist.train.config")
@pytest.mark.task(
    "14.9",
    points=3,
    kind="worksheet",
)
class TestLargeBatches:
    """The gradient noise scale, the critical batch of two runs, and a batch that grows"""

    def test_noise(self, student):
        """The gradient and the noise are known."""
        cases = {}
        for small, large, signal, noise in (
            (1, 64, 1.0, 100.0),
            (8, 512, 4.0, 2.0),
            (3, 4, 0.01, 7.0),
            (2, 1000, 5.0, 0.0),
        ):
            cases[small, large, signal + noise / small, signal + noise / large] = noise / signal
        for args, found in zip(cases, found_for(student, "noise_scale", cases), strict=True):
            assert number(found, "noise_scale") == pytest.approx(cases[args], rel=1e-9, abs=1e-9), (
                f"noise_scale{args}: {compared(cases[args], found, ', the noise over the signal')}"
            )

    def test_critical(self, student):
        """Both runs were made from what is asked for."""
        cases = []
        for least, batch, (a, b) in product((1000.0, 37.5), (64.0, 1e4), ((8, 512), (1, 2), (100_000, 4000))):
            runs = [(one, least * (1 + batch / one)) for one in (a, b)]
            cases.append((*runs, (least, least * batch, batch)))
        for (one, other, right), found in zip(
            cases, found_for(student, "critical_batch", [case[:2] for case in cases]), strict=True
        ):
            what = f"critical_batch({one}, {other})"
            assert isinstance(found, tuple) and len(found) == 3, f"{what}: expected three numbers, got {found!r:.60}"
            for name, value, expected in zip(("S_min", "E_min", "B_crit"), found, right, strict=True):
                assert number(value, name) == pytest.approx(expected, rel=1e-6), (
                    f"{what}: expected {name} = {expected:.6g}, got {value:.6g}"
                )

    def test_ramp(self, student):
        cases = {}
        for start, increment, ramp, final in ramps():
            stages = (final - start) // increment
            ends = [ramp * stage // stages for stage in range(stages + 1)]
            for samples in {0, 5 * ramp, *(end + more for end in ends for more in (-1, 0, 1) if end + more >= 0)}:
                cases[samples, start, increment, ramp, final] = ramped(start, increment, ramp, final, samples)
        check(student, "batch_after", cases, "the stage that this sample is in")

    def test_steps(self, student):
        cases = {}
        for start, increment, ramp, final in ramps()[:16]:
            for samples in (0, 1, start, ramp // 2, ramp, ramp + 1, ramp + final, 3 * ramp):
                seen = steps = 0
                while seen < samples:
                    here = seen // 1 if seen < ramp else ramp
                    seen, steps = seen + ramped(start, increment, ramp, final, here), steps + 1
                cases[samples, start, increment, ramp, final] = steps
        for args, found in zip(cases, found_for(student, "steps_with_ramp", cases), strict=True):
            assert number(found, "steps_with_ramp") == cases[args], (
                f"steps_with_ramp{args}: expected {cases[args]} steps, got {found}"
            )


# 14.10

SIZES_OF = {
    "a": (6, 4),
    "b": (5,),
    "c": (3, 2, 2),
    "d": (1,),
    "few": (2,),
    "zero": (40,),
    "no weights": (7,),
    "no update": (3, 3),
}
OWNED = ("b", "d")  # in whole, by one rank
CONFIG = TrainConfig(
    layers=2, heads=2, width=8, context=8, global_batch=4, micro_batch=1, steps=3, warmup=1, optimizer="lamb"
)  # fmt: skip


def matrices_of(kind: str, scale: float) -> dict[str, np.ndarray]:
    """Numbers of many sizes, so that a float sum of squares depends on how they are cut."""
    found = {}
    for i, (name, shape) in enumerate(SIZES_OF.items()):
        rng = generator(14, 10, i, len(kind))
        array = scale * rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 3, shape)
        is_zero = name == "zero" or name == f"no {kind}"
        found[name] = (0 * array if is_zero else array).astype(working_dtype())
    return found


def counted_by(arrays: dict[str, np.ndarray], rank: int, size: int) -> dict[str, np.ndarray]:
    """Return what a rank counts, in an order of its own; shards may have no elements."""
    found = {
        name: array.copy() if name in OWNED else np.array_split(array.reshape(-1), size)[rank].copy()
        for name, array in arrays.items()
        if name not in OWNED or rank == size - 1
    }
    return dict(sorted(found.items(), reverse=rank % 2 == 1))


def run_ratios(world, module, scale):
    """The ratios, whether what was lent is unmodified, and the calls of both joins."""
    calls = []

    def join(op, kind):
        def joined(vector):
            assert isinstance(vector, np.ndarray) and vector.dtype == kind and vector.ndim == 1, (
                f"expected a vector of {kind.__name__} to join, got {brief(vector)}"
            )
            calls.append((kind.__name__, len(vector)))
            found = vector.copy()
            all_reduce(found, op, world)
            return found

        return joined

    weights, updates = (counted_by(matrices_of(kind, scale), world.rank, world.size) for kind in ("weights", "update"))
    before = [array.copy() for array in (*weights.values(), *updates.values())]
    sizes = {name: int(np.prod(shape)) for name, shape in SIZES_OF.items()}
    ratios = module.trust_ratios(weights, updates, sizes, join(ReduceOp.MAX, np.float64), join(ReduceOp.SUM, np.int64))
    lent = (*weights.values(), *updates.values())
    return dict(ratios), all((a == b).all() for a, b in zip(lent, before, strict=True)), calls


@answers("minidist.nn.optim.lamb:trust_ratios", "minidist.nn.optim.lamb:norms")
@pytest.mark.task(
    "14.10",
    points=4,
    dtypes=("float64", "float32"),
)
class TestTrustRatios:
    """trust_ratios: LAMB's norms of full matrices from shards, with the same bits in every layout"""

    SIZES = (1, 2, 3, 5)

    def results(self, student, scale: float = 1.0):
        for size in self.SIZES:
            for rank, one in enumerate(student.on_ranks(size, run_ratios, scale)):
                yield f"rank {rank} of {size}", one.value

    def check(self, student, scale: float = 1.0) -> None:
        weights, updates = (matrices_of(kind, scale) for kind in ("weights", "update"))
        right = lamb.trust_ratios(weights, updates, {name: array.size for name, array in weights.items()})
        exact = {
            name: sqrt(np.sum(weights[name].astype(float) ** 2) / np.sum(updates[name].astype(float) ** 2))
            for name in ("a", "b", "c", "d")
        }
        for what, (found, unchanged, _) in self.results(student, scale):
            assert list(found) == list(right), f"{what}: expected ratios of {list(right)}, got {list(found)}"
            for name, value in found.items():
                assert type(value) is float, f"{what}, {name}: expected a Python float, got {value!r:.40}"
                near = name not in exact or value == pytest.approx(exact[name], rel=1e-6)  # of the grid
                assert near, f"{what}, {name}: expected {exact[name]:.9g}, got {value:.9g}"
                assert value == right[name], (
                    f"{what}, {name}: expected {right[name]!r}, got {value!r}: near, but other bits"
                    if name in exact
                    else f"{what}, {name}: expected {right[name]}, got {value}"
                )
            assert unchanged, f"{what}: expected weights and updates unmodified"

    def test_ratios(self, student):
        self.check(student)

    def test_large_and_small_numbers(self, student):
        """Squares that float32 cannot hold."""
        self.check(student, 2.0**70)
        self.check(student, 2.0**-80)

    def test_joined_once(self, student):
        for what, (_, _, calls) in self.results(student):
            for kind in ("float64", "int64"):
                mine = [length for name, length in calls if name == kind]
                assert mine in ([2 * len(SIZES_OF)], 2 * [len(SIZES_OF)]), (
                    f"{what}: expected one vector of {2 * len(SIZES_OF)} {kind}, or two of {len(SIZES_OF)}, got {mine}"
                )

    @pytest.mark.one_dtype
    def test_trains_a_transformer(self, student, warm_ranks):
        right = run(warm_ranks(1), CONFIG, RunLayout()).fingerprint
        for text in ("dp=2,zero=1", "tp=2", "dp=2,zero=3", "pp=2"):
            layout = RunLayout.parse(text)
            for rank, one in enumerate(student.on_ranks(layout.world_size, trained, ["trust_ratios"], CONFIG, layout)):
                found, calls = one.value
                assert calls.get("trust_ratios"), f"{text}: the run never calls trust_ratios"
                assert found == right, (
                    f"{text}, rank {rank}: with your trust_ratios the fingerprint is {found[:8]}, in one process "
                    f"{right[:8]}"
                )
