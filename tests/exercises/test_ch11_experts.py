"""Graders of chapter 11: a real mixture counted, finite differences, exact sums, rows in real ranks, one process."""

from dataclasses import replace
from fractions import Fraction
from math import ceil, sqrt

import numpy as np
import pytest

from minidist import flops
from minidist.course.authoring.assertions import (
    FLOAT64,
    LARGE,
    MANY,
    brief,
    by_group,
    check_numbers,
    compared,
    in_groups,
    number,
    same,
    sizes,
    trained,
)
from minidist.course.sandbox.values import generator, many_digits, working_dtype
from minidist.nn.config import MoEConfig
from minidist.nn.gpt import Block, GPTConfig
from minidist.nn.moe.balance import Balance
from minidist.nn.tensor import Tensor
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run

BALANCE, ROUTER = "minidist.nn.moe.balance", "minidist.nn.moe.router"
PERMUTATION, EXCHANGE = "minidist.nn.moe.permutation", "minidist.parallel.expert"


def answers(*forbidden):
    """Answers may not call these parts of the library."""
    return pytest.mark.answers("ch11_experts", forbidden=forbidden)


pytestmark = answers()


def run_each(world, module, name: str, cases: list[tuple]) -> list[tuple]:
    """Return, in a rank, the function's result for each case, and whether it has left the arrays as they were."""
    found = []
    for case in cases:
        lent = [one.copy() if isinstance(one, np.ndarray) else one for one in case]
        result = getattr(module, name)(*lent)
        kept = all(
            one.tobytes() == again.tobytes()
            for one, again in zip(case, lent, strict=True)
            if isinstance(one, np.ndarray)
        )
        found.append((result, kept))
    return found


def each(student, name: str, cases: list[tuple]) -> list:
    """Return the function's result for each case; asserts that it modifies none of its arrays."""
    seen = student.on_ranks(1, run_each, name, cases)[0].value
    for case, (_, kept) in zip(cases, seen, strict=True):
        assert kept, f"{name}, {shapes(case)}: expected the arguments unmodified"
    return [result for result, _ in seen]


def shapes(case) -> str:
    """The arguments of a call, in words."""
    return ", ".join(f"{one.dtype} {one.shape}" if isinstance(one, np.ndarray) else repr(one) for one in case)


def pair(found, what: str) -> tuple:
    assert isinstance(found, tuple) and len(found) == 2, f"{what}: expected two arrays, got {found!r:.60}"
    return found


def integers(found, expected: np.ndarray, what: str) -> None:
    """Assert that an array has integers, of any dtype, and which."""
    assert isinstance(found, np.ndarray) and found.dtype.kind in "iu", (
        f"{what}: expected an array of integers, got {brief(found)}"
    )
    same(found.astype(np.int64), expected.astype(np.int64), what)


def close(found, expected: np.ndarray, what: str, relative: float, absolute: float = 0) -> None:
    """Assert that an array has the dtype, the shape and about the values of another."""
    assert isinstance(found, np.ndarray) and found.dtype == expected.dtype and found.shape == expected.shape, (
        f"{what}: expected an array {expected.shape} of {expected.dtype}, got {getattr(found, 'shape', '')} "
        f"{getattr(found, 'dtype', type(found).__name__)}"
    )
    assert np.isfinite(found).all(), f"{what}: expected finite numbers"
    limit = max(relative * np.abs(expected).max(initial=0), absolute)
    wrong = np.flatnonzero(np.abs(found - expected) > limit)
    assert not len(wrong), (
        f"{what}: element {wrong[0]}: {compared(expected.flat[wrong[0]], found.flat[wrong[0]], digits=9)}"
    )


# Training on an answer

CONFIG = TrainConfig(
    layers=1, heads=2, width=8, context=8, sequence_chunks=2, global_batch=4, micro_batch=1, steps=3, warmup=1,
    experts=4, expert_hidden=6, aux_loss=0.01, bias_rate=0.0,
)  # fmt: skip


def check_training(
    student, warm_ranks, names: list[str], config: TrainConfig, *layouts: str, own: bool = False
) -> None:
    """Assert that runs with these functions land on the library's bits; with ``own`` on those of one rank with them."""
    whose = "one rank with it" if own else "the library in one process"
    if own:
        right = student.on_ranks(1, trained, names, config, Layout())[0].value[0]
    else:
        right = run(warm_ranks(1), config, Layout()).fingerprint
    for text in layouts:
        layout = Layout.parse(text)
        for rank, one in enumerate(student.on_ranks(layout.world_size, trained, names, config, layout)):
            found, calls = one.value
            for name in names:
                assert calls.get(name, 0) > 0, f"{text}: the run has not called {name}"
            assert found == right, (
                f"{text}, rank {rank}: trained with your {' and '.join(names)} the fingerprint is {found[:8]}, that of "
                f"{whose} is {right[:8]}"
            )


# 11.1

MIXTURES = (
    (8, 4, 2, 12, 0),
    (6, 5, 1, 4, 0),
    (4, 8, 3, 6, 10),
    (2, 1, 1, 2, 2),
    (10, 7, 7, 2, 4),
)  # C, E, k, hidden, shared


def real_mixture(width: int, experts: int, k: int, hidden: int, shared: int):
    """A mixture of the library, with its initial weights."""
    moe = MoEConfig(experts, k, hidden, shared)
    config = GPTConfig(layers=1, heads=2, width=width, moe=moe)
    block = Block(config, 0, balance=Balance(moe, 1))
    block.init_parameters(0, np.float32)
    return block.mlp


@answers("minidist.nn.moe.experts")
@pytest.mark.task(
    "11.1",
    points=3,
    kind="worksheet",
)
class TestMixtureSizes:
    """A mixture's parameters, those that a token uses, and its FLOPs"""

    def test_parameters(self, student):
        cases = {}
        for width, experts, k, hidden, shared in MIXTURES:
            mixture = real_mixture(width, experts, k, hidden, shared)
            sizes = [parameter.data.size for parameter in mixture.parameters() if "bias" not in parameter.name]
            cases[width, experts, hidden, shared] = sum(sizes)
        cases[4096, 8, 14_336] = 4096 * 8 + 8 * 2 * 4096 * 14_336
        check_numbers(student, "mixture_parameters", cases, "as the library's mixture has without biases")

    def test_active(self, student):
        """Counted by hand: every column of the router, and the two matrices of each expert that is used."""
        cases = {}
        for width, experts, k, hidden, shared in MIXTURES:
            used = [hidden] * k + [shared]
            cases[width, experts, k, hidden, shared] = sum(width for _ in range(experts)) + sum(
                2 * width * units for units in used
            )
        cases[4096, 8, 2, 14_336] = 4096 * 8 + 4 * 4096 * 14_336
        check_numbers(student, "active_parameters", cases, "the router, k experts and the shared one")

    def test_flops(self, student):
        cases = {}
        for width, experts, k, hidden, shared in MIXTURES:
            for tokens in (1, 6):
                mixture = real_mixture(width, experts, k, hidden, shared)
                before = flops.snapshot()
                mixture(Tensor(np.ones((1, tokens, width), np.float32)))
                cases[tokens, width, experts, k, hidden, shared] = (flops.snapshot() - before)["forward"]
        cases[0, 4, 8, 2, 6] = 0
        check_numbers(student, "mixture_flops", cases, "as the library has counted")

    def test_experts_for(self, student):
        """The fewest, found by trying."""
        cases = {}
        inputs = (
            (4, 2, 14_336),
            (1, 1, 8),
            (1, 3, 8, 8),
            (8, 1, 5, 3),
            (2, 2, 7, 5),
            (10, 8, 4, 4),
            (32, 8, 2048, 2048),
        )
        for times, k, hidden, *shared in inputs:
            more = sum(shared)
            experts = k
            while experts * hidden + more < times * (k * hidden + more):
                experts += 1
            cases[times, k, hidden, *shared] = experts
        check_numbers(student, "experts_for", cases, "the fewest with so many times the parameters")


# 11.2

SCORES = ((6, 4), (5, 7), (1, 3), (3, 1), (0, 5), (7, 16))  # tokens, experts


def probabilities(dtype, count: int, experts: int) -> np.ndarray:
    scores = generator(count, experts).random((count, experts)) + 0.01
    return (scores / scores.sum(axis=1, keepdims=True)).astype(dtype)


def by_hand(scores: np.ndarray, k: int) -> np.ndarray:
    best = [sorted(range(scores.shape[1]), key=lambda expert: (-row[expert], expert))[:k] for row in scores.tolist()]
    return np.array(best, np.int64).reshape(len(scores), k)


@answers(f"{ROUTER}:top_k_experts")
@pytest.mark.task(
    "11.2",
    points=3,
    dtypes=("float64", "float32"),
)
class TestRouting:
    """top_k_experts, gate_weights and route: who is chosen, and how much that counts"""

    def check_choices(self, student, cases) -> None:
        for (scores, k), found in zip(cases, each(student, "top_k_experts", cases), strict=True):
            integers(found, by_hand(scores, k), f"top_k_experts, scores {scores.shape} of {scores.dtype}, k={k}")

    def test_choices(self, student):
        self.check_choices(
            student,
            [
                (probabilities(working_dtype(), *shape), k)
                for shape in SCORES
                for k in {1, ceil(shape[1] / 2), shape[1]}
            ],
        )

    def test_ties(self, student):
        """Scores of three values only, as close to each other as they can be, and rows in which all are equal."""
        few = generator(3).integers(0, 3, (40, 20)).astype(working_dtype())
        close_by = 1 + few * np.finfo(few.dtype).eps
        self.check_choices(student, [(few, 5), (few, 1), (few, 20), (close_by, 5), (np.ones_like(few), 4)])

    def test_forbidden_experts(self, student):
        """Experts of nodes that are out of reach have -inf."""
        scores = probabilities(working_dtype(), 6, 8)
        scores[:, 2:6] = -np.inf
        scores[0] = -np.inf
        self.check_choices(student, [(scores, 3), (scores, 6), (-scores, 2)])

    def test_weights(self, student):
        cases = []
        for shape in SCORES:
            scores = probabilities(working_dtype(), *shape)
            chosen = by_hand(scores, ceil(shape[1] / 2))[:, ::-1].copy()  # in any order
            cases += [(scores, chosen, True), (scores, chosen, False), (scores, chosen[:, :1].copy(), False)]
        self.check_weights(student, cases)

    def test_weights_of_nothing(self, student):
        """Sigmoids that are all 0: no NaN."""
        scores = np.zeros((2, 4), working_dtype())
        scores[1, 2] = 0.25
        self.check_weights(student, [(scores, np.array([[0, 1], [3, 2]]), True)])

    def check_weights(self, student, cases) -> None:
        for (scores, chosen, normalize), found in zip(cases, each(student, "gate_weights", cases), strict=True):
            right = np.take_along_axis(scores, chosen, axis=1).astype(np.float64)
            if normalize:
                total = right.sum(axis=1, keepdims=True)
                right = np.divide(right, total, out=np.zeros_like(right), where=total > 0)
            what = f"gate_weights, scores {scores.shape} of {scores.dtype}, k={chosen.shape[1]}, normalize={normalize}"
            close(found, right.astype(scores.dtype), what, 1e-6 if scores.dtype == np.float32 else FLOAT64)

    def test_route(self, student):
        """A bias changes who is chosen, and not the weights; a single weight is the score itself."""
        cases = []
        for count, experts in SCORES:
            scores = probabilities(working_dtype(), count, experts) / 2  # sigmoids need not add up to 1
            bias = generator(experts).standard_normal(experts).astype(working_dtype())
            cases += [(scores, bias, k) for k in {1, min(2, experts), experts}]
        cases.append((probabilities(working_dtype(), 4, 6), np.array([-9, -8, -7, -6, -5, -4], working_dtype()), 2))
        for (scores, bias, k), found in zip(cases, each(student, "route", cases), strict=True):
            what = f"route, scores {scores.shape} of {scores.dtype}, k={k}"
            chosen, weights = pair(found, what)
            right = by_hand(scores + bias, k)
            integers(chosen, right, f"{what}: choices, by score + bias")
            taken = np.take_along_axis(scores, right, axis=1)
            if k > 1:
                taken = taken / taken.sum(axis=1, keepdims=True)
            because = "scores without the bias" + (", divided by their sum" if k > 1 else ": divided, they would be 1")
            close(weights, taken, f"{what}: weights, the {because}", 1e-6 if scores.dtype == np.float32 else FLOAT64)

    @pytest.mark.one_dtype
    def test_trains_a_transformer(self, student, warm_ranks):
        nodes = replace(CONFIG, gate="sigmoid", bias_rate=0.1, expert_nodes=2, route_nodes=1, top_k=1)
        check_training(student, warm_ranks, ["top_k_experts"], CONFIG, "dp=2,ep=2")
        check_training(student, warm_ranks, ["top_k_experts"], nodes, "dp=2,ep=2")


# 11.3


def loss_by_hand(scores: np.ndarray, shares: np.ndarray, coefficient: float, normalized: bool) -> float:
    if not normalized:
        scores = scores / scores.sum(axis=1, keepdims=True)
    return coefficient * scores.shape[1] * float(np.sum(shares * scores.mean(axis=0)))


def differences(scores: np.ndarray, *rest) -> np.ndarray:
    """The gradient of ``loss_by_hand`` by central differences, in float64."""
    scores, step = scores.astype(np.float64), 1e-5
    gradient = np.zeros(scores.shape)
    for place in np.ndindex(scores.shape):
        up, down = scores.copy(), scores.copy()
        up[place] += step
        down[place] -= step
        gradient[place] = (loss_by_hand(up, *rest) - loss_by_hand(down, *rest)) / (2 * step)
    return gradient


@answers(f"{BALANCE}:balance_loss_gradient")
@pytest.mark.task(
    "11.3",
    points=3,
)
class TestBalanceLoss:
    """balance_loss and its gradient: shares of choices times mean scores"""

    def test_loss(self, student):
        """The oracle is a sum over experts, exact in fractions."""
        cases = []
        for count, experts in ((6, 4), (5, 7), (1, 3), (3, 1), (7, 16)):
            scores = probabilities(np.float64, count, experts)
            counts = generator(experts).integers(0, 9, experts)
            counts[0] += 1
            cases += [(scores, counts), (scores.astype(np.float32), counts * 10**9)]
        for (scores, counts), found in zip(cases, each(student, "balance_loss", cases), strict=True):
            total = int(counts.sum())
            terms = [
                Fraction(int(count), total) * sum(map(Fraction, column)) / len(scores)
                for count, column in zip(counts, scores.T.tolist(), strict=True)
            ]
            right = float(scores.shape[1] * sum(terms))
            what = f"balance_loss, scores {scores.shape} of {scores.dtype}"
            # a mean of float32 numbers may be taken in float32
            assert number(found, what) == pytest.approx(right, rel=1e-6 if scores.dtype == np.float32 else FLOAT64), (
                f"{what}: {compared(right, found)}"
            )

    def test_even_and_uneven(self, student):
        """1 where all is even; E where one expert gets all."""
        even = np.full((6, 4), 0.25)
        one = np.eye(4)[[2] * 6]
        cases = [(even, np.array([3, 3, 3, 3])), (even, np.array([12, 0, 0, 0])), (one, np.array([0, 0, 6, 0]))]
        for (_, counts), right, found in zip(cases, (1, 1, 4), each(student, "balance_loss", cases), strict=True):
            assert number(found, "balance_loss") == pytest.approx(right, rel=FLOAT64), (
                f"balance_loss, counts {counts.tolist()}: {compared(right, found)}"
            )

    def test_loss_of_nothing(self, student):
        cases = [(np.full((2, 3), 1 / 3), np.zeros(3, np.int64)), (np.zeros((0, 3)), np.array([1, 2, 3]))]
        for case, found in zip(cases, each(student, "balance_loss", cases), strict=True):
            assert number(found, "balance_loss") == 0, f"balance_loss, {shapes(case)}: expected 0, got {found}"

    def check_gradient(self, student, normalized: bool) -> None:
        cases = []
        for count, experts in ((6, 4), (5, 7), (1, 3), (3, 1)):
            scores = probabilities(np.float64, count, experts)
            if not normalized:
                scores = scores * generator(7).random((count, 1)) * 3 + 0.1
            for coefficient in (1.0, 0.01 * 2**16):
                shares = generator(experts, count, int(coefficient)).random(experts)
                cases += [(scores, shares / shares.sum(), coefficient, normalized)]
                cases += [(scores.astype(np.float32), shares / shares.sum(), coefficient, normalized)]
        for case, found in zip(cases, each(student, "balance_loss_gradient", cases), strict=True):
            scores = case[0]
            what = (
                f"balance_loss_gradient, scores {scores.shape} of {scores.dtype}, coefficient {case[2]:g}, "
                f"normalized={normalized}"
            )
            # the error of the differences; with one expert the gradient is 0
            close(found, differences(*case).astype(scores.dtype), what, 1e-5, absolute=1e-7 * case[2])

    def test_gradient_of_softmax(self, student):
        self.check_gradient(student, normalized=True)

    def test_gradient_of_sigmoid(self, student):
        self.check_gradient(student, normalized=False)

    def test_gradient_of_nothing(self, student):
        cases = [(np.zeros((0, 3), np.float32), np.full(3, 1 / 3), 0.01, normalized) for normalized in (True, False)]
        for found in each(student, "balance_loss_gradient", cases):
            same(found, np.zeros((0, 3), np.float32), "balance_loss_gradient, no tokens")

    def test_trains_a_transformer(self, student, warm_ranks):
        names = ["balance_loss_gradient"]
        check_training(student, warm_ranks, names, replace(CONFIG, aux_loss=0.1), "dp=4,ep=2", own=True)
        check_training(student, warm_ranks, names, replace(CONFIG, gate="sigmoid"), "dp=2,ep=2", own=True)


# 11.4


def bias_by_hand(bias: np.ndarray, counts: np.ndarray, rate: float) -> np.ndarray:
    moved = bias.copy()
    for layer, row in enumerate(counts.tolist()):
        mean = Fraction(sum(row), len(row))
        for expert, count in enumerate(row):
            if count != mean:
                moved[layer, expert] += np.float32(rate) if count < mean else -np.float32(rate)
    return moved


@answers(f"{BALANCE}:moved_bias")
@pytest.mark.task(
    "11.4",
    points=2,
)
class TestMovedBias:
    """moved_bias: a step down where an expert had too much, from counts that are integers"""

    def check(self, student, all_counts: list, rate: float = 0.001) -> None:
        cases = []
        for number_of, counts in enumerate(all_counts):
            counts = np.asarray(counts, np.int64)
            bias = generator(number_of).standard_normal(counts.shape).astype(np.float32)
            cases.append((bias, counts, rate))
        for (bias, counts, rate), found in zip(cases, each(student, "moved_bias", cases), strict=True):
            what = f"moved_bias, counts {counts.tolist()!s:.80}, rate {rate}"
            same(found, bias_by_hand(bias, counts, rate), what)

    def test_signs(self, student):
        self.check(student, [[[9, 1, 2]], [[0, 0, 12, 0, 0]], [[5]], [[0, 0, 0, 0]]])

    def test_at_the_mean(self, student):
        """The bias stays where the count is the mean."""
        self.check(student, [[[4, 4, 4, 4]], [[3, 5, 4]], [[7, 7, 7]], [[1, 2, 3, 4, 5]]])

    def test_layers(self, student):
        """The mean is that of a layer, not of an expert, and not of all."""
        self.check(student, [[[1, 2, 3], [30, 20, 10]], [[100, 101], [1, 0], [5, 5]]])
        self.check(student, [generator(1).integers(0, 20, (4, 7))], rate=0.03125)

    def test_large_counts(self, student):
        """Near 41,000 bfloat16 numbers are 256 apart; float16 ends at 65,504; float32 has all integers up to 2^24."""
        self.check(
            student,
            [[[40_840, 41_160]], [[41_000, 41_050]], [[2**24, 2**24 + 1, 2**24 + 1]], [[70_000, 70_001, 90_000, 1]]],
        )
        self.check(student, [[[2**40 + 1, 2**40, 2**40 + 2, 2**40 + 1]], [[2**40, 2**40 + 1, 0]]])

    def test_trains_a_transformer(self, student, warm_ranks):
        config = replace(CONFIG, bias_rate=0.02, aux_loss=0.0)
        check_training(student, warm_ranks, ["moved_bias"], config, "dp=4,ep=2", "dp=2,ep=2,recompute=full")


# 11.5


def choices(seed: int, count: int, experts: int, k: int) -> np.ndarray:
    """The choices of some tokens, far more of them for the first experts."""
    random = generator(seed, count, experts)
    likely = 1 / np.arange(1, experts + 1)
    rows = [random.choice(experts, k, replace=False, p=likely / likely.sum()) for _ in range(count)]
    return np.array(rows, np.int64).reshape(count, k)


def sorted_by_hand(chosen: np.ndarray, experts: int, capacity: int | None) -> tuple[np.ndarray, np.ndarray]:
    lists: list[list[int]] = [[] for _ in range(experts)]
    for place, expert in enumerate(chosen.reshape(-1).tolist()):
        if capacity is None or len(lists[expert]) < capacity:
            lists[expert].append(place)
    return np.array([place for some in lists for place in some], np.int64), np.array([len(some) for some in lists])


@answers(f"{PERMUTATION}:sort_by_expert")
@pytest.mark.task(
    "11.5",
    points=4,
)
class TestSortByExpert:
    """sort_by_expert: the choices expert by expert, in the order of the tokens, up to a capacity"""

    SIZES = ((6, 4, 2), (50, 5, 3), (33, 7, 1), (8, 8, 8), (1, 1, 1), (1, 5, 2), (0, 3, 2))  # tokens, experts, k

    def check(self, student, cases) -> None:
        for case, found in zip(cases, each(student, "sort_by_expert", cases), strict=True):
            chosen, experts, capacity = case
            what = f"{len(chosen)} tokens, {experts} experts, k={chosen.shape[1]}, capacity {capacity}"
            order, counts = pair(found, what)
            right_order, right_counts = sorted_by_hand(*case)
            integers(counts, right_counts, f"{what}: counts")
            integers(order, right_order, f"{what}: numbers of the choices")

    def test_order(self, student):
        self.check(student, [(choices(n, *size), size[1], None) for n, size in enumerate(self.SIZES)])

    def test_capacity(self, student):
        """The capacity cuts off the later tokens of those experts that have too many."""
        for capacity in (1, 2, 5, 1000):
            self.check(student, [(choices(n, *size), size[1], capacity) for n, size in enumerate(self.SIZES)])

    def test_capacity_of_nothing(self, student):
        self.check(student, [(choices(n, *size), size[1], 0) for n, size in enumerate(self.SIZES)])

    def test_experts_without_tokens(self, student):
        """First, last and in between; and one that gets all."""
        chosen = np.array([[3, 1], [1, 3], [3, 1]])
        self.check(student, [(chosen, 6, None), (chosen, 6, 2), (chosen, 4, None)])
        self.check(student, [(np.full((9, 1), 4), 5, None), (np.full((9, 1), 0), 5, 3), (np.full((9, 1), 2), 5, None)])

    def test_many(self, student):
        """A sort that is not stable shows on long lists only."""
        self.check(student, [(choices(1, 400, 6, 3), 6, None), (choices(2, 400, 6, 3), 6, 100)])

    def test_trains_a_transformer(self, student, warm_ranks):
        check_training(student, warm_ranks, ["sort_by_expert"], CONFIG, "dp=4,ep=2")
        check_training(student, warm_ranks, ["sort_by_expert"], replace(CONFIG, capacity=0.75), "dp=2,ep=2", "tp=2")


# 11.6


def mixed(seed: int, count: int, experts: int, k: int, capacity: int | None, width: int, dtype) -> dict:
    """Rows of a mixture with what belongs to them: sums are exact, in float64 too long for float32, and infinities."""
    chosen = choices(seed, count, experts, k)
    order, _ = sorted_by_hand(chosen, experts, capacity)
    places = np.full(chosen.size, -1)
    places[order] = np.arange(len(order))
    random, most = generator(seed, width), 1 << (20 if dtype == np.float64 else 6)
    rows, gradient = (random.integers(-most, most, (many, width)).astype(dtype) for many in (len(order), count))
    for row in {0, len(order) - 1} if len(order) else ():  # as if a layer had overflowed: other tokens must not notice
        rows[row, 0], gradient[order[row] // k, 0] = np.inf, 1
    return {
        "rows": rows,
        "weights": (random.integers(1, 64, (count, k)) / 64).astype(dtype),
        "places": places.reshape(chosen.shape),
        "order": order,
        "token": order // k,
        "gradient": gradient,
    }


BACKWARD = ("gradient", "rows", "order", "token", "places", "weights")
SHAPES = (  # tokens, experts, k, capacity, width
    (6, 4, 2, None, 3), (20, 5, 3, 4, 5), (9, 7, 1, None, 1), (5, 5, 5, 2, 4), (1, 1, 1, None, 2), (0, 3, 2, None, 4),
    (4, 3, 2, 0, 3),
)  # fmt: skip


@answers(f"{PERMUTATION}:combine_rows", f"{PERMUTATION}:combine_rows_backward")
@pytest.mark.task(
    "11.6",
    points=4,
    dtypes=("float64", "float32"),
)
class TestCombine:
    """combine_rows and combine_rows_backward: a token's weighted sum, in the order of its choices"""

    def case(self, number_of: int, shape) -> dict:
        return mixed(number_of, *shape, working_dtype())

    def what(self, shape) -> str:
        count, experts, k, capacity, width = shape
        return f"{count} tokens, {experts} experts, k={k}, capacity {capacity}, width {width}, {working_dtype()}"

    def test_values(self, student):
        cases = [self.case(n, shape) for n, shape in enumerate(SHAPES)]
        found = each(student, "combine_rows", [(one["rows"], one["weights"], one["places"]) for one in cases])
        for shape, one, values in zip(SHAPES, cases, found, strict=True):
            right = np.zeros((shape[0], shape[4]))
            for token, choice in np.ndindex(one["places"].shape):
                if one["places"][token, choice] >= 0:
                    right[token] += one["weights"][token, choice] * one["rows"][one["places"][token, choice]]
            same(values, right.astype(working_dtype()), f"combine_rows, {self.what(shape)}")

    def test_order_of_choices(self, student):
        """Sums that round: in another order, or in another dtype, they have other bits."""
        cases = []
        for n in range(3):
            one = self.case(n, (40, 8, 6, 12 if n else None, 5))
            random = generator(n, 1)
            one["rows"] = (random.standard_normal(one["rows"].shape) * 1e3).astype(working_dtype())
            one["weights"] = random.random(one["weights"].shape).astype(working_dtype())
            cases.append((one["rows"], one["weights"], one["places"]))
        for (rows, weights, places), found in zip(cases, each(student, "combine_rows", cases), strict=True):
            right = np.zeros((len(weights), rows.shape[1]), working_dtype())
            for token, choice in np.ndindex(places.shape):
                if places[token, choice] >= 0:
                    right[token] += weights[token, choice] * rows[places[token, choice]]
            same(found, right, f"combine_rows, 40 tokens, k=6, {working_dtype()}, added in the order of the choices")

    def test_backward(self, student):
        cases = [self.case(n, shape) for n, shape in enumerate(SHAPES)]
        found = each(student, "combine_rows_backward", [tuple(one[name] for name in BACKWARD) for one in cases])
        for shape, one, results in zip(SHAPES, cases, found, strict=True):
            what = f"combine_rows_backward, {self.what(shape)}"
            grad_rows, grad_weights = pair(results, what)
            right_rows = np.zeros(one["rows"].shape, working_dtype())
            right_weights = np.zeros(one["weights"].shape, working_dtype())
            for token, choice in np.ndindex(one["places"].shape):
                row = one["places"][token, choice]
                if row >= 0:
                    right_rows[row] = one["weights"][token, choice] * one["gradient"][token]
                    right_weights[token, choice] = np.sum(one["gradient"][token] * one["rows"][row])
            same(grad_rows, right_rows, f"{what}: gradient of the rows")
            same(grad_weights, right_weights, f"{what}: gradient of the weights")

    @pytest.mark.one_dtype
    def test_trains_a_transformer(self, student, warm_ranks):
        for config in (CONFIG, replace(CONFIG, capacity=0.75, top_k=3)):
            names = ["combine_rows", "combine_rows_backward"]
            check_training(student, warm_ranks, names, config, "dp=4,ep=2", "tp=2", own=True)


# 11.7


def row_counts(rank: int, experts: int, kind: str) -> list[int]:
    """Return how many rows of a rank go to each expert."""
    counts = generator(rank, experts, len(kind)).integers(0, 6, experts)
    if kind == "one rank without tokens" and rank == 1:
        counts[:] = 0
    if kind == "one expert gets all":
        counts[1:] = 0
    if kind == "nobody has tokens":
        counts[:] = 0
    return counts.tolist()


def many_counts(*which) -> list[int]:
    """Like ``row_counts``, of more rows than 24 bits count."""
    return [100_000_001 * count for count in row_counts(*which)]


KINDS = ("uneven", "one rank without tokens", "one expert gets all", "nobody has tokens")


def splits(rank: int, size: int, experts: int, kind: str) -> tuple[list[int], list[int]]:
    """Return how many rows a rank sends to, and receives from, each rank."""
    each_has = experts // size
    sent = [
        [sum(row_counts(source, experts, kind)[to * each_has : (to + 1) * each_has]) for to in range(size)]
        for source in range(size)
    ]
    return sent[rank], [row[rank] for row in sent]


def rows_of(rank: int, rows: int, width: int) -> np.ndarray:
    return many_digits(rank, rows * width).reshape(rows, width)


def run_exchange_counts(world, module, each_has, kind):
    counts = many_counts(world.rank, each_has * world.size, kind)
    lent = list(counts)
    found = module.exchange_counts(lent, world)
    return found, lent == counts


def run_exchange_rows(world, module, each_has, kind, width):
    send, receive = splits(world.rank, world.size, each_has * world.size, kind)
    mine = rows_of(world.rank, sum(send), width)
    found = module.exchange_rows(mine, send, receive, world)
    return found, mine.tobytes() == rows_of(world.rank, sum(send), width).tobytes()


def run_there_and_back(world, module, each_has, kind):
    """Run as forward does: the counts, the rows to their experts, and back."""
    counts = row_counts(world.rank, each_has * world.size, kind)
    arriving = module.exchange_counts(counts, world)
    send, _ = splits(world.rank, world.size, each_has * world.size, kind)
    receive = [sum(some) for some in arriving]
    there = module.exchange_rows(rows_of(world.rank, sum(send), 2), send, receive, world)
    return module.exchange_rows(there, receive, send, world), there


def run_many_rows(world, module, rows):
    """Rank r has more rows for rank r + 1 than a queue holds, and none for the others."""
    to, source = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    send = [rows * (other == to) for other in range(world.size)]
    receive = [rows * (other == source) for other in range(world.size)]
    found = module.exchange_rows(rows_of(world.rank, rows, 4), send, receive, world)
    return bool(np.array_equal(found, rows_of(source, rows, 4)))


def elements_sent(one) -> list[int]:
    """Elements of the working dtype that a rank sent to each rank."""
    return [nbytes // working_dtype().itemsize for nbytes in one.traffic.sent[:, 0].tolist()]


@answers(f"{EXCHANGE}:exchange_counts", f"{EXCHANGE}:exchange_rows")
@pytest.mark.task(
    "11.7",
    points=4,
    dtypes=("float64", "float32", "int32"),
)
class TestExchange:
    """exchange_counts and exchange_rows: rows to the ranks that have their experts"""

    def check_counts(self, results, each_has: int, kind: str) -> None:
        for rank, size, (found, kept) in results:
            what = f"exchange_counts, rank {rank} of {size}, {each_has} experts each, {kind}"
            here = slice(rank * each_has, (rank + 1) * each_has)
            right = [many_counts(source, each_has * size, kind)[here] for source in range(size)]
            is_list = isinstance(found, list) and all(
                isinstance(some, list) and all(type(count) is int for count in some) for some in found
            )
            assert is_list, f"{what}: expected lists of Python integers, got {found!r:.80}"
            assert found == right, f"{what}: expected {right}, got {found}"
            assert kept, f"{what}: expected counts unmodified"

    def check_rows(self, results, each_has: int, kind: str, width: int) -> None:
        for rank, size, (found, kept) in results:
            what = f"exchange_rows, rank {rank} of {size}, {each_has} experts each, width {width}, {kind}"
            parts = []
            for source in range(size):
                send, _ = splits(source, size, each_has * size, kind)
                start = sum(send[:rank])
                parts.append(rows_of(source, sum(send), width)[start : start + send[rank]])
            same(found, np.concatenate(parts), what)
            assert kept, f"{what}: expected rows unmodified"

    @pytest.mark.one_dtype
    def test_counts(self, student):
        for size in (1, 2, 3, 5):
            for each_has, kind in ((2, "uneven"), (3, "one rank without tokens"), (1, "nobody has tokens")):
                seen = student.on_ranks(size, run_exchange_counts, each_has, kind)
                self.check_counts([(rank, size, one.value) for rank, one in enumerate(seen)], each_has, kind)
        grouped = by_group(student.on_ranks(5, in_groups, run_exchange_counts, 2, "uneven"))
        self.check_counts(grouped, 2, "uneven")

    def test_rows(self, student):
        for size in sizes((1, 2, 3, 5)):
            for kind in KINDS:
                seen = student.on_ranks(size, run_exchange_rows, 2, kind, 3)
                self.check_rows([(rank, size, one.value) for rank, one in enumerate(seen)], 2, kind, 3)

    @pytest.mark.one_dtype
    def test_sizes_of_groups(self, student):
        seen = student.on_ranks(MANY, run_exchange_rows, 1, "uneven", 1)
        self.check_rows([(rank, MANY, one.value) for rank, one in enumerate(seen)], 1, "uneven", 1)
        self.check_rows(by_group(student.on_ranks(5, in_groups, run_exchange_rows, 2, "uneven", 3)), 2, "uneven", 3)

    @pytest.mark.one_dtype
    def test_there_and_back(self, student):
        for size in (2, 3, 5):
            for kind in KINDS:
                for rank, one in enumerate(student.on_ranks(size, run_there_and_back, 2, kind)):
                    send, receive = splits(rank, size, 2 * size, kind)
                    what = f"rank {rank} of {size}, {kind}"
                    same(one.value[0], rows_of(rank, sum(send), 2), f"{what}: rows that have been there and back")
                    arrived = len(one.value[1])
                    assert arrived == sum(receive), f"{what}: expected {sum(receive)} rows there, got {arrived}"

    @pytest.mark.one_dtype
    def test_large(self, student):
        for rank, one in enumerate(student.on_ranks(3, run_many_rows, LARGE // 4)):
            assert one.value, f"rank {rank} of 3: the {LARGE // 4:,} rows of rank {(rank - 1) % 3} arrive wrong"

    @pytest.mark.one_dtype
    def test_messages(self, student):
        """No rank sends more than its rows: no padding, and no row to ranks that do not need it."""
        for kind in KINDS:
            for size in (2, 3, 5):
                for rank, one in enumerate(student.on_ranks(size, run_exchange_rows, 2, kind, 3)):
                    send, _ = splits(rank, size, 2 * size, kind)
                    right = [0 if other == rank else rows * 3 for other, rows in enumerate(send)]
                    found = elements_sent(one)
                    assert found == right, (
                        f"exchange_rows, rank {rank} of {size}, {kind}: elements to each rank: expected {right}, got "
                        f"{found}"
                    )
        for rank, one in enumerate(student.on_ranks(3, run_exchange_counts, 4, "uneven")):
            right, found = [0 if other == rank else 4 for other in range(3)], elements_sent(one)
            assert max(found) <= 4, (
                f"exchange_counts, rank {rank} of 3: integers to each rank: expected {right}, got {found}"
            )

    @pytest.mark.one_dtype
    def test_trains_a_transformer(self, student, warm_ranks):
        names = ["exchange_counts", "exchange_rows"]
        for precision in ("fp32", "bf16"):
            check_training(student, warm_ranks, names, replace(CONFIG, precision=precision), "dp=4,ep=2", "dp=2,ep=2")


# 11.8

MESHES = (
    (1, 1, 1, 1), (1, 2, 1, 1), (1, 4, 1, 1), (1, 6, 1, 1), (2, 4, 1, 1), (1, 4, 2, 1), (1, 4, 1, 2), (2, 4, 3, 2),
    (3, 6, 2, 1), (1, 15, 1, 7),
)  # fmt: skip


@answers("minidist.parallel.expert:expert_groups")
@pytest.mark.task(
    "11.8",
    points=3,
)
class TestExpertGroups:
    """expert_groups: who exchanges tokens, and who has the same experts"""

    def cases(self) -> list:
        found = []
        for shape in MESHES:
            for ranks in (n for n in range(1, shape[1] + 1) if shape[1] % n == 0):
                mesh = np.arange(np.prod(shape)).reshape(shape)
                mixed_up = generator(*shape).permutation(mesh.size).reshape(shape)
                found += [(mesh, ranks), (mixed_up, ranks)]
        return found

    def check(self, student, number_of: int, name: str, by_hand) -> None:
        cases = self.cases()
        for (mesh, ranks), found in zip(cases, each(student, "expert_groups", cases), strict=True):
            what = f"expert_groups, mesh {mesh.shape}, ranks={ranks}, groups {name}"
            lists = pair(found, what)[number_of]
            proper = isinstance(lists, list) and all(
                isinstance(group, list) and all(type(rank) is int for rank in group) for group in lists
            )
            assert proper, f"{what}: expected lists of Python integers, got {lists!r:.80}"
            once = sorted(rank for group in lists for rank in group)
            assert once == list(range(mesh.size)), f"{what}: expected each of {mesh.size} ranks once, got {once}"
            right = sorted(by_hand(mesh, ranks))
            assert sorted(lists) == right, f"{what}: expected {right!s:.200}, got {sorted(lists)!s:.200}"

    def test_exchanging(self, student):
        def by_hand(mesh, ranks):
            pp, dp, cp, tp = mesh.shape
            return [
                [int(mesh[p, start + n, c, t]) for n in range(ranks)]
                for p in range(pp) for c in range(cp) for t in range(tp) for start in range(0, dp, ranks)
            ]  # fmt: skip

        self.check(student, 0, "that exchange tokens", by_hand)

    def test_same_experts(self, student):
        def by_hand(mesh, ranks):
            pp, dp, cp, tp = mesh.shape
            return [
                [int(mesh[p, d, c, t]) for d in range(n, dp, ranks) for c in range(cp)]
                for p in range(pp) for t in range(tp) for n in range(ranks)
            ]  # fmt: skip

        self.check(student, 1, "with the same experts", by_hand)

    def test_trains_a_transformer(self, student, warm_ranks):
        check_training(student, warm_ranks, ["expert_groups"], CONFIG, "dp=4,ep=2", "dp=2,ep=2,cp=2", "dp=2,ep=2,tp=2")
        deep = replace(CONFIG, layers=2)
        check_training(student, warm_ranks, ["expert_groups"], deep, "dp=2,ep=2,pp=2", "dp=4,ep=2,zero=1")


# 11.9


def own_loss(rank: int, dense: int, experts: int) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of one rank's loss: of the dense parameters, and of all experts, (E, 3). Sums of them are exact."""
    random = generator(rank, dense, experts)
    return random.integers(-500, 500, dense) / 4, random.integers(-500, 500, (experts, 3)) / 4


def run_sync(world, module, ranks, dense, experts, limit):
    """Return what each rank has after ``sync_gradients``, and after ``clip``."""
    sync = module.ExpertSync(ranks, world)
    group = range(world.rank // ranks * ranks, (world.rank // ranks + 1) * ranks)
    each_has = experts // ranks
    here = slice(world.rank % ranks * each_has, (world.rank % ranks + 1) * each_has)
    mine = own_loss(world.rank, dense, experts)[0]
    # the experts' tokens come from all ranks that exchange them with this one
    of_experts = sum(own_loss(other, dense, experts)[1][here] for other in group)
    sync.sync_gradients(mine, of_experts)
    synced = mine.copy(), of_experts.copy()
    return *synced, sync.clip(mine, of_experts, limit), mine, of_experts


@pytest.mark.task(
    "11.9",
    points=4,
    kind="debugging",
)
class TestExpertSync:
    """ExpertSync: another run as soon as ranks share the experts. Find out why and fix it"""

    def check(self, student, size: int, ranks: int, dense: int = 5, experts: int = 6, limit: float = 100.0) -> None:
        losses = [own_loss(rank, dense, experts) for rank in range(size)]
        right_dense, right_experts = (sum(parts) / size for parts in zip(*losses, strict=True))
        norm = sqrt(np.sum(right_dense**2) + np.sum(right_experts**2))
        scale = min(1.0, limit / (norm + 1e-6))
        each_has = experts // ranks
        exact = size & (size - 1) == 0  # nothing rounds where the ranks are a power of two
        for rank, one in enumerate(student.on_ranks(size, run_sync, ranks, dense, experts, limit)):
            what = f"rank {rank} of {size}, experts shared by {ranks}"
            here = right_experts[rank % ranks * each_has : (rank % ranks + 1) * each_has]
            found_dense, found_experts, found_norm, clipped_dense, clipped_experts = one.value
            for name, found, right in (("dense", found_dense, right_dense), ("experts", found_experts, here)):
                close(found, right, f"{what}: gradients of {name} in step", 0 if exact else FLOAT64)
            # a root rounds, and other formulas round elsewhere: as the root of a sum of squares, or the norm of norms
            assert number(found_norm, "clip") == pytest.approx(norm, rel=FLOAT64, abs=0), (
                f"{what}: the norm: {compared(norm, found_norm, ', that of one process')}"
            )
            close(clipped_dense, right_dense * scale, f"{what}: clipped gradients of dense", FLOAT64)
            close(clipped_experts, here * scale, f"{what}: clipped gradients of experts", FLOAT64)

    def test_without_sharing(self, student):
        self.check(student, 1, 1)
        self.check(student, 4, 1)

    def test_experts_shared_by_two(self, student):
        self.check(student, 4, 2)
        self.check(student, 2, 2)
        self.check(student, 6, 2)

    def test_experts_shared_by_more(self, student):
        self.check(student, 4, 4, experts=8)
        self.check(student, 3, 3)
        self.check(student, 9, 3)

    def test_no_clipping(self, student):
        self.check(student, 4, 2, limit=1e9)

    def test_no_dense_parameters(self, student):
        self.check(student, 4, 2, dense=0)
        self.check(student, 4, 2, experts=2)


# 11.10

SPEEDS = ((4.0, 1.0), (450e9, 50e9), (1.0, 8.0), (3e9, 1e9))  # inside a node, across nodes
RANKS = ((1, 4), (4, 4), (2, 8), (8, 4), (64, 8), (6, 3), (5, 1), (2, 1))  # ranks, ranks of a node


@pytest.mark.task(
    "11.10",
    points=3,
    kind="worksheet",
)
class TestAllToAllCost:
    """When does the all-to-all cost more than tensor parallelism's all-reduce?"""

    def copies(self, k: int, ranks: int, leaves) -> Fraction:
        """Return how many of a token's copies leave, on average over all ranks that an expert may be on; four ways."""
        return 4 * k * Fraction(sum(leaves(other) for other in range(ranks)), ranks)

    def inside(self, k: int, ranks: int, node: int) -> Fraction:
        return self.copies(k, ranks, lambda other: 0 < other < node)  # seen from rank 0

    def crossing(self, k: int, ranks: int, node: int) -> Fraction:
        return self.copies(k, ranks, lambda other: other >= node)

    def test_all_to_all(self, student):
        cases = {
            (tokens, width, k, ranks): float(tokens * width * self.copies(k, ranks, lambda other: other > 0))
            for tokens, width, k in ((1, 1, 1), (4096, 7168, 8), (10, 3, 2), (0, 4, 2))
            for ranks in (1, 2, 3, 8, 64)
        }
        check_numbers(student, "all_to_all_elements", cases, "what goes to other ranks, there and back, twice")

    def test_all_reduce(self, student):
        """Every step of the ring, twice."""
        cases = {
            (tokens, width, ranks): float(2 * sum(Fraction(tokens * width, ranks) for _ in range(2 * (ranks - 1))))
            for tokens, width in ((1, 1), (4096, 7168), (10, 3))
            for ranks in (1, 2, 3, 8)
        }
        check_numbers(student, "all_reduce_elements", cases, "2 (N - 1) steps of a ring, in forward and in backward")

    def test_crossing(self, student):
        cases = {
            (tokens, width, k, ranks, node): float(tokens * width * self.crossing(k, ranks, node))
            for tokens, width, k in ((1, 1, 1), (4096, 7168, 8), (10, 3, 2))
            for ranks, node in RANKS
        }
        check_numbers(student, "crossing_elements", cases, "what goes to ranks of other nodes")

    def test_seconds(self, student):
        cases = {}
        for tokens, width, k in ((1, 1, 1), (4096, 7168, 8), (10, 3, 2)):
            for ranks, node in RANKS:
                for fast, slow in SPEEDS:
                    stays, leaves = self.inside(k, ranks, node), self.crossing(k, ranks, node)
                    seconds = max(float(stays) / fast, float(leaves) / slow)
                    cases[tokens, width, k, ranks, node, fast, slow] = tokens * width * seconds
        check_numbers(student, "all_to_all_seconds", cases, "the slower of the two kinds of links")

    def test_limited(self, student):
        cases = {}
        for tokens, width, k, most in ((1, 1, 1, 1), (4096, 7168, 8, 4), (10, 3, 4, 2), (7, 5, 3, 3)):
            for ranks, node in ((8, 4), (64, 8), (6, 3), (32, 8), (5, 1)):
                if most <= ranks // node:
                    for fast, slow in SPEEDS:
                        stays, leaves = self.inside(k, node, node), self.crossing(most, ranks, node)
                        seconds = max(float(stays) / fast, float(leaves) / slow)
                        cases[tokens, width, k, most, ranks, node, fast, slow] = tokens * width * seconds
        check_numbers(
            student, "limited_seconds", cases, "a token crosses once for each node, and its copies stay in it"
        )

    def test_smallest_k(self, student):
        """Found by trying, exact in fractions. Just as long is not longer."""
        cases = {}
        for ranks, node, tensor, fast, slow in (
            (8, 8, 8, 4.0, 1.0), (8, 8, 2, 4.0, 1.0), (2, 8, 8, 4.0, 1.0), (64, 8, 8, 450e9, 50e9),
            (16, 8, 8, 1.0, 64.0), (32, 8, 4, 1.0, 4.0), (6, 3, 2, 3.0, 100.0), (4, 2, 2, 1.0, 16.0),
            (2, 4, 4, 8.0, 1.0),
        ):  # fmt: skip
            all_reduce = 4 * Fraction(tensor - 1, tensor) / Fraction(fast)
            k = 1
            while max(
                self.inside(k, ranks, node) / Fraction(fast), self.crossing(k, ranks, node) / Fraction(slow)
            ) <= all_reduce:  # fmt: skip
                k += 1
            cases[ranks, node, tensor, fast, slow] = k
        check_numbers(student, "smallest_k", cases, "the first with which the all-to-alls take longer")
