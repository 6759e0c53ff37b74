"""Graders of chapter 1: finite differences in float64, the library's autograd, exact integers, memory, call counts."""

from collections import Counter

import numpy as np
import pytest

from minidist.course.authoring.assertions import brief, peak_bytes

pytestmark = pytest.mark.answers(
    "ch01_transformer",
    forbidden=(
        "minidist.nn.tensor",
        "minidist.nn.arithmetic",
        "minidist.nn.functional",
        "minidist.nn.loss",
        "minidist.nn.optim.optimizers",
    ),
)

ROUNDING = 1e-11  # float64 sums of up to a few hundred terms, relative to the largest element
SLOPES = 1e-6  # central differences with step 1e-5 err by about 1e-9 in float64, a wrong formula by far more
FLOAT32 = 1e-4  # one rounding errs by 6e-8; these functions accumulate a few hundred of them


def integers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Integers in float64: their products and sums are exact in any order."""
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.float64)


def normal(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def run_function(world, answers, name, args):
    """Return the function's result, and which of its arguments it changed. It is called with other values first."""
    with np.errstate(all="ignore"):
        getattr(answers, name)(*map(other_values, args))
    before = [np.copy(argument) for argument in args]
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        value = getattr(answers, name)(*args)
    changed = [n for n, argument in enumerate(args) if not np.array_equal(before[n], argument)]
    return [value, changed]


def other_values(argument):
    """An argument of the same shape and dtype; integers, which are indices, in reverse."""
    if not isinstance(argument, np.ndarray):
        return argument
    return -argument / 2 if argument.dtype.kind == "f" else argument[::-1].copy()


def peak_of(world, answers, name, args):
    return peak_bytes(lambda: getattr(answers, name)(*args))


def found_by(student, name: str, *args):
    """Return the function's result; it must not change its arguments."""
    value, changed = student.on_ranks(1, run_function, name, args)[0].value
    assert not changed, f"{name} changes its argument {changed[0] + 1}; work on a copy"
    return value


def several(value, count: int, name: str) -> tuple:
    assert isinstance(value, tuple | list) and len(value) == count, (
        f"{name}: expected a tuple of {count} results, got {brief(value)}"
    )
    return tuple(value)


def agree(found, expected, what: str, tolerance: float = 0.0) -> None:
    """Assert that an array is as expected, within the tolerance times its largest element (at least 1)."""
    expected = np.asarray(expected)
    assert isinstance(found, np.ndarray | np.generic), f"{what}: expected an array, got {brief(found)}"
    assert found.shape == expected.shape, f"{what}: expected shape {expected.shape}, got {found.shape}"
    if not expected.size:
        return
    error = np.abs(np.asarray(found, np.float64) - expected)
    wrong = np.argwhere(~(error <= tolerance * max(1.0, np.abs(expected).max())))  # NaN is wrong too
    if len(wrong):
        place = tuple(wrong[0].tolist())
        raise AssertionError(
            f"{what}: element {list(place)}: {difference(found[place], expected[place])}"
            f" ({len(wrong)} of {expected.size} elements differ)"
        )


def difference(found: float, expected: float) -> str:
    """The expected number and the one that came, with enough digits to tell them apart."""
    for digits in range(6, 17):
        if f"{found:.{digits}g}" != f"{expected:.{digits}g}":
            break
    return f"expected {expected:.{digits}g}, got {found:.{digits}g}"


def is_dtype(found: np.ndarray, dtype, what: str) -> None:
    assert found.dtype == dtype, f"{what}: expected dtype {np.dtype(dtype)}, got {found.dtype}"


def slopes(function, x: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """The gradient of a scalar function by central differences: each element is moved slightly up and down."""
    found = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[place] += step
        down[place] -= step
        found[place] = (function(up) - function(down)) / (2 * step)
    return found


# 1.1

Plan = list[tuple]  # ("leaf", value) or ("+" or "*", number of a node before, another); the last node is the loss
LOOKS = 10**6  # at rules and parents; the reference looks at each about three times


def run_backward(world, answers, plan):
    """Build the graph, walk it back; return each node's gradient, its calls, and the gradient its rule was given."""
    nodes, calls, given, looks = [], Counter(), {}, Counter()

    class Watched(answers.Node):
        @property
        def parents(self):
            looks["parents"] += 1
            if looks["parents"] > LOOKS:
                raise RuntimeError(f"a graph of {len(plan)} nodes: parents are looked up a million times")
            return self.mine

        @parents.setter
        def parents(self, parents):
            self.mine = parents

    def rule_of(number, kind, x, y):
        def rule(gradient):
            calls[number] += 1
            if calls.total() > LOOKS:
                raise RuntimeError(f"a graph of {len(plan)} nodes: rules are called a million times")
            given[number] = np.copy(gradient)
            if kind == "+":
                return gradient, gradient
            return gradient * y.value, gradient * x.value

        return rule

    for number, (kind, *rest) in enumerate(plan):
        if kind == "leaf":
            nodes.append(Watched(rest[0]))
        elif kind == "sum":
            (x,) = (nodes[n] for n in rest)
            nodes.append(Watched(x.value.sum(), (x,), lambda gradient, x=x: (gradient * np.ones(x.value.shape),)))
        else:
            x, y = (nodes[n] for n in rest)
            value = x.value + y.value if kind == "+" else x.value * y.value
            nodes.append(Watched(value, (x, y), rule_of(number, kind, x, y)))
    answers.backward(nodes[-1])
    return [[node.grad for node in nodes], dict(calls), given]


def described(plan: Plan) -> str:
    """The graph as a program, if it is short."""
    if len(plan) > 14:
        return f"a graph of {len(plan)} nodes"
    lines = [
        f"n{number} = {rest[0]}" if kind == "leaf" else f"n{number} = n{rest[0]} {kind} n{rest[1]}"
        for number, (kind, *rest) in enumerate(plan)
    ]
    return f"with {', '.join(lines)}, the last one being the loss" if len(plan) > 1 else "a loss that is a leaf"


def forward_slopes(plan: Plan) -> list[int]:
    """The loss's slope with respect to each node, in forward mode: move one node, and carry the slope forward."""
    values = []
    for kind, *rest in plan:
        x, y = (values[n] for n in rest) if kind != "leaf" else (rest[0], None)
        values.append(x if y is None else x + y if kind == "+" else x * y)
    found = []
    for moved in range(len(plan)):
        speeds = []
        for number, (kind, *rest) in enumerate(plan):
            if number == moved or kind == "leaf":
                speeds.append(int(number == moved))
            else:
                (a, b), (da, db) = (values[n] for n in rest), (speeds[n] for n in rest)
                speeds.append(da + db if kind == "+" else da * b + a * db)
        found.append(speeds[-1])
    return found


def behind_the_loss(plan: Plan) -> list[int]:
    """The loss and the nodes that it was computed from."""
    reached = {len(plan) - 1}
    for number in reversed(range(len(plan))):
        if number in reached and plan[number][0] != "leaf":
            reached.update(plan[number][1:])
    return sorted(reached)


def random_plan(seed: int) -> Plan:
    rng = np.random.default_rng(seed)
    plan: Plan = [("leaf", int(value)) for value in rng.integers(-3, 4, 3)]
    while len(plan) < 12:
        plan.append((str(rng.choice(["+", "+", "*"])), *(int(n) for n in rng.integers(0, len(plan), 2))))
    return plan


SMALL: list[Plan] = [
    [("leaf", 3), ("leaf", 4), ("*", 0, 1)],
    [("leaf", 3), ("leaf", 4), ("*", 0, 1), ("+", 2, 0)],
    [("leaf", 3), ("*", 0, 0)],
    [("leaf", 3), ("+", 0, 0), ("+", 1, 1)],
    [("leaf", 3), ("*", 0, 0), ("+", 1, 0), ("*", 1, 2)],  # w w (w w + w)
    [("leaf", 2), ("leaf", 5), ("+", 0, 1), ("*", 2, 1), ("*", 3, 3), ("+", 4, 2)],
    [("leaf", 2), ("*", 0, 0), ("*", 1, 0), ("*", 2, 0), ("+", 3, 1), ("*", 4, 1)],  # a long path and a short one
    [("leaf", 2), ("*", 0, 0), ("*", 1, 0), ("*", 2, 0), ("+", 1, 3), ("*", 1, 4)],  # the other way round
    [("leaf", 2), ("*", 0, 0), ("*", 1, 1), ("+", 1, 0), ("+", 2, 3)],  # n1 twice in n2, and once more in n3
    [("leaf", 2), ("*", 0, 0), ("*", 1, 1), ("+", 1, 0), ("+", 3, 2)],
    [("leaf", 7)],
]


@pytest.mark.task(
    "1.1",
    points=5,
)
class TestBackward:
    """backward: each node once, in topological order"""

    def check_values(self, student, plan: Plan) -> None:
        grads, _, _ = student.on_ranks(1, run_backward, plan)[0].value
        for number, (found, expected) in enumerate(zip(grads, forward_slopes(plan), strict=True)):
            # integers far below 2^53: exact
            assert found == expected, (
                f"{described(plan)}: the gradient of n{number}: expected {expected}, got {found:g}"
            )

    def test_small_graphs(self, student):
        for plan in SMALL:
            self.check_values(student, plan)

    def test_random_graphs(self, student):
        for seed in range(20):
            self.check_values(student, random_plan(seed))

    def test_arrays(self, student):
        """A rule may return one array for two parents: adding into it in place changes the other's gradient."""
        p, q = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])
        for order in ((3, 0), (0, 3)):  # (p + q) + p, p + (p + q)
            plan = [("leaf", p), ("leaf", q), ("leaf", q), ("+", 0, 1), ("+", *order), ("sum", 4)]
            grads, _, _ = student.on_ranks(1, run_backward, plan)[0].value
            expected = {0: [2.0] * 3, 1: [1.0] * 3, 3: [1.0] * 3, 4: [1.0] * 3, 5: 1.0}
            for number, value in expected.items():
                what = f"arrays, {'(p + q) + p' if order == (3, 0) else 'p + (p + q)'}: the gradient of node {number}"
                agree(np.asarray(grads[number]), value, what)

    def test_each_rule_once(self, student):
        for plan in (*SMALL, *(random_plan(seed) for seed in range(20))):
            grads, calls, given = student.on_ranks(1, run_backward, plan)[0].value
            reached = behind_the_loss(plan)
            for number, (kind, *_) in enumerate(plan):
                if kind == "leaf":
                    continue
                expected = int(number in reached)
                assert calls.get(number, 0) == expected, (
                    f"{described(plan)}: calls of the rule of n{number}: expected "
                    f"{'1' if expected else '0 (the loss was not computed from it)'}, got {calls.get(number, 0)}"
                )
                assert not expected or given[number] == grads[number], (
                    f"{described(plan)}: the rule of n{number} is called before its gradient is complete: expected "
                    f"{grads[number]:g}, got {given[number]:g}"
                )

    def test_thirty_doublings(self, student):
        plan = [("leaf", 1), *(("+", n, n) for n in range(30))]
        self.check_first(student, plan, 2**30, "x doubled 30 times")

    def test_many_paths(self, student):
        plan: Plan = [("leaf", 1)]
        for _ in range(30):  # y = x + x through two nodes
            top = len(plan) - 1
            plan += [("leaf", 0), ("+", top, top + 1), ("+", top, top + 2)]
        self.check_first(student, plan, 2**30, "a ladder of 30 rungs, with 2^30 paths through it")

    def test_deep(self, student):
        plan = [("leaf", 1), *(("+", n, 0) for n in range(10_000))]
        self.check_first(student, plan, 10_001, "a chain of 10,000 additions of x")

    def check_first(self, student, plan: Plan, expected: int, what: str) -> None:
        grads, calls, _ = student.on_ranks(1, run_backward, plan)[0].value
        assert grads[0] == expected, f"{what}: the gradient of x: expected {expected:,}, got {grads[0]:,.0f}"
        most = max(calls.values())
        assert most == 1, f"{what}: calls of one rule: expected 1, got {most:,}"


# 1.2


def summed_by_hand(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Number the elements, broadcast the numbers, and add each element of the gradient to the bin of its number."""
    count = int(np.prod(shape))
    numbers = np.broadcast_to(np.arange(count).reshape(shape), gradient.shape)
    return np.bincount(numbers.ravel(), gradient.ravel(), minlength=count).reshape(shape)


@pytest.mark.task(
    "1.2",
    points=3,
    shared=("unbroadcast",),
)
class TestUnbroadcast:
    """unbroadcast: sum the gradient over what the broadcast repeated"""

    def check(self, student, pairs) -> None:
        for large, shape in pairs:
            gradient = integers(large)
            found = found_by(student, "unbroadcast", gradient, shape)
            agree(found, summed_by_hand(gradient, shape), f"a gradient of shape {large}, summed to {shape}")

    def test_added_axes(self, student):
        self.check(student, [((2, 3), (3,)), ((2, 5, 3), (3,)), ((4, 2, 5, 3), (5, 3)), ((3,), ()), ((2, 3), ())])

    def test_stretched_axes(self, student):
        pairs = [((4, 3), (1, 3)), ((4, 3), (4, 1)), ((4, 3), (1, 1)), ((2, 5, 3), (2, 1, 3)), ((3, 3), (3, 1))]
        self.check(student, pairs)

    def test_both(self, student):
        self.check(student, [((2, 5, 3), (5, 1)), ((2, 5, 3), (1, 3)), ((7, 2, 5, 3), (2, 1, 1)), ((2, 3), (1,))])

    def test_nothing_was_repeated(self, student):
        self.check(student, [((2, 3), (2, 3)), ((), ()), ((1,), (1,)), ((3, 1), (3, 1)), ((1, 1, 4), (1, 4))])

    def test_no_elements(self, student):
        self.check(student, [((0, 3), (3,)), ((2, 0), (2, 1)), ((0,), ())])

    def test_many_tokens(self, student):
        # 2^24 + 1 is not a float32 number: a float32 sum stays at 2^24, however many ones follow
        gradient = np.ones((1001, 2), np.float32)
        gradient[0] = 2**24
        for shape in ((2,), (1, 2)):
            found = found_by(student, "unbroadcast", gradient, shape)
            expected = np.full(shape, 2.0**24 + 1000)
            agree(found, expected, f"2^24 and a thousand ones, float32 {gradient.shape}, summed to {shape} in float64")


# 1.3


@pytest.mark.task(
    "1.3",
    points=3,
)
class TestMatmulBackward:
    """matmul_backward: two more products, one for each factor"""

    def check(self, student, leading: tuple[int, ...], n: int, k: int, m: int) -> None:
        a, b, gradient = integers((*leading, n, k), 1), integers((k, m), 2), integers((*leading, n, m), 3)
        grad_a, grad_b = several(found_by(student, "matmul_backward", gradient, a, b), 2, "matmul_backward")
        case = f"for a {a.shape} @ b {b.shape}"
        # integers: exact in any order
        agree(grad_a, np.einsum("...nm,km->...nk", gradient, b), f"the gradient of a, {case}")
        agree(grad_b, np.einsum("rm,rk->km", gradient.reshape(-1, m), a.reshape(-1, k)), f"the gradient of b, {case}")

    def test_matrices(self, student):
        for n, k, m in ((3, 3, 3), (2, 3, 4), (5, 1, 2), (1, 4, 1), (1, 1, 1)):
            self.check(student, (), n, k, m)

    def test_shared_weight(self, student):
        for leading in ((2,), (7,), (2, 3), (1,), (1, 2, 2)):
            for n, k, m in ((3, 3, 3), (2, 3, 4), (1, 5, 2)):
                self.check(student, leading, n, k, m)

    def test_no_tokens(self, student):
        self.check(student, (), 0, 3, 2)
        self.check(student, (0,), 2, 3, 2)

    def test_finite_differences(self, student):
        a, b, gradient = normal((2, 3, 4), 1), normal((4, 2), 2), normal((2, 3, 2), 3)
        grad_a, grad_b = several(found_by(student, "matmul_backward", gradient, a, b), 2, "matmul_backward")
        agree(grad_a, slopes(lambda a: (gradient * (a @ b)).sum(), a), "the gradient of a (2, 3, 4)", SLOPES)
        agree(grad_b, slopes(lambda b: (gradient * (a @ b)).sum(), b), "the gradient of b (4, 2)", SLOPES)

    def test_views_and_dtype(self, student):
        a, b, gradient = (
            array.astype(np.float32) for array in (integers((4, 2, 3)), integers((5, 3)), integers((4, 2, 5)))
        )
        found = found_by(student, "matmul_backward", gradient, a.swapaxes(0, 1).copy().swapaxes(0, 1), b.T)
        grad_a, grad_b = several(found, 2, "matmul_backward")
        agree(grad_a, gradient @ b, "the gradient of a, which is a view")
        agree(grad_b, np.einsum("bnm,bnk->km", gradient, a), "the gradient of b, which is a transpose")
        is_dtype(grad_a, np.float32, "the gradient of a, for float32 arguments")
        is_dtype(grad_b, np.float32, "the gradient of b, for float32 arguments")

    def test_memory(self, student):
        a, b, gradient = normal((64, 1, 128)), normal((128, 128)), normal((64, 1, 128))
        peak = student.on_ranks(1, peak_of, "matmul_backward", (gradient, a, b))[0].value
        # both results, a copy of each argument and some slack; a product for each of the 64 entries takes 64 times b
        limit = 2 * (a.nbytes + b.nbytes + gradient.nbytes) + b.nbytes
        assert peak < limit, (
            f"for a {a.shape} @ b {b.shape}: peak memory is {peak / b.nbytes:.0f} times the bytes of b. "
            "Make one product over all rows, not one for each entry of the leading axes"
        )


# 1.4


def library_layer_norm_backward(gradient, x, gain, eps) -> tuple[np.ndarray, ...]:
    from minidist.nn.functional import layer_norm
    from minidist.nn.tensor import Tensor

    leaves = [Tensor(array.astype(np.float64), requires_grad=True) for array in (x, gain, np.zeros_like(gain))]
    layer_norm(*leaves, eps).backward(gradient.astype(np.float64))
    return tuple(leaf.grad for leaf in leaves)


def layer_norm(x, gain, bias, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * gain + bias


def layer_norm_slopes(gradient, x, gain, eps) -> tuple[np.ndarray, ...]:
    """The gradients of x, gain and bias by finite differences."""
    bias = np.zeros_like(gain)
    return (
        slopes(lambda x: (gradient * layer_norm(x, gain, bias, eps)).sum(), x),
        slopes(lambda gain: (gradient * layer_norm(x, gain, bias, eps)).sum(), gain),
        slopes(lambda bias: (gradient * layer_norm(x, gain, bias, eps)).sum(), bias),
    )


@pytest.mark.task(
    "1.4",
    points=4,
)
class TestLayerNormBackward:
    """layer_norm_backward: each value of a token moves all of its outputs"""

    NAMES = ("x", "the gain", "the bias")
    SHAPES = ((1, 2), (1, 5), (3, 4), (2, 3, 5), (4,), (2, 2, 2, 3), (3, 1))

    def found(self, student, gradient, x, gain, eps) -> tuple[np.ndarray, ...]:
        return several(found_by(student, "layer_norm_backward", gradient, x, gain, eps), 3, "layer_norm_backward")

    def arrays(self, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        return normal(shape, 1), 2 * normal(shape, 2) + 1, normal(shape[-1:], 3) + 2  # gradient, x, gain

    def test_finite_differences(self, student):
        for shape in self.SHAPES:
            for eps in (0.5, 1e-3):
                gradient, x, gain = self.arrays(shape)
                expected = layer_norm_slopes(gradient, x, gain, eps)
                for name, one, other in zip(
                    self.NAMES, self.found(student, gradient, x, gain, eps), expected, strict=True
                ):
                    agree(one, other, f"the gradient of {name}, for x of shape {shape} and eps {eps}", SLOPES)

    def test_like_the_library(self, student):
        for shape in ((16, 64), (2, 8, 48), (0, 5)):
            gradient, x, gain = self.arrays(shape)
            expected = library_layer_norm_backward(gradient, x, gain, 1e-5)
            for name, one, other in zip(
                self.NAMES, self.found(student, gradient, x, gain, 1e-5), expected, strict=True
            ):
                agree(one, other, f"the gradient of {name}, for x of shape {shape}", ROUNDING)

    def test_far_from_zero(self, student):
        """Values around 1e6 with a spread of 1: mean(x^2) - mean(x)^2 loses most digits of the variance."""
        gradient, x, gain = self.arrays((4, 32))
        x = x + 1e6
        expected = library_layer_norm_backward(gradient, x, gain, 1e-5)
        for name, one, other in zip(self.NAMES, self.found(student, gradient, x, gain, 1e-5), expected, strict=True):
            # rounding errors: 1e-10 in the mean of such numbers, 1e-4 in mean(x^2)
            agree(one, other, f"the gradient of {name}, for values around a million", 1e-7)

    def test_float32(self, student):
        gradient, x, gain = (array.astype(np.float32) for array in self.arrays((8, 32)))
        expected = library_layer_norm_backward(gradient, x, gain, 1e-5)
        found = self.found(student, gradient, x, gain, 1e-5)
        for name, one, other in zip(self.NAMES, found, expected, strict=True):
            agree(one, other, f"the gradient of {name}, in float32", FLOAT32)
        is_dtype(found[0], np.float32, "the gradient of x, for float32 arguments")


# 1.5


def library_cross_entropy(logits: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    from minidist.nn.loss import cross_entropy
    from minidist.nn.tensor import Tensor

    leaf = Tensor(logits[None], requires_grad=True)  # (1, tokens, vocab): one head
    loss = cross_entropy(leaf, targets, logits.shape[1])
    loss.backward()
    return float(loss.item()), leaf.grad[0]


@pytest.mark.task(
    "1.5",
    points=3,
)
class TestCrossEntropy:
    """cross_entropy: stable, with its gradient"""

    def check(self, student, logits, targets, what: str, tolerance: float = ROUNDING) -> None:
        loss, grad_logits = self.found(student, logits, targets)
        expected_loss, expected = library_cross_entropy(logits.astype(np.float64), targets)
        assert abs(loss - expected_loss) <= tolerance * max(1.0, expected_loss), (
            f"{what}: the loss: {difference(loss, expected_loss)}"
        )
        agree(grad_logits, expected, f"{what}: the gradient", tolerance)
        is_dtype(grad_logits, logits.dtype, f"{what}: the gradient")

    def found(self, student, logits, targets) -> tuple[float, np.ndarray]:
        loss, grad_logits = several(found_by(student, "cross_entropy", logits, targets), 2, "cross_entropy")
        assert np.ndim(loss) == 0 and np.isrealobj(loss), f"the loss: expected one number, got {loss!r}"
        return float(loss), grad_logits

    def test_all_logits_equal(self, student):
        for tokens, vocab in ((1, 2), (5, 7), (3, 1)):
            targets = np.arange(tokens) % vocab
            loss, grad_logits = self.found(student, np.full((tokens, vocab), 3.0), targets)
            assert abs(loss - np.log(vocab)) <= ROUNDING, (
                f"logits ({tokens}, {vocab}), all equal: the loss, log({vocab}): {difference(loss, np.log(vocab))}"
            )
            expected = (np.full((tokens, vocab), 1 / vocab) - np.eye(vocab)[targets]) / tokens
            agree(grad_logits, expected, f"the gradient for logits ({tokens}, {vocab}), all equal", ROUNDING)

    def test_like_the_library(self, student):
        for tokens, vocab in ((1, 1), (1, 5), (2, 3), (7, 11), (64, 256)):
            logits, targets = 3 * normal((tokens, vocab)), np.random.default_rng(1).integers(0, vocab, tokens)
            self.check(student, logits, targets, f"logits {logits.shape}")

    def test_finite_differences(self, student):
        logits, targets = normal((3, 4)), np.array([2, 0, 2])
        _, grad_logits = self.found(student, logits, targets)
        expected = slopes(lambda logits: library_cross_entropy(logits, targets)[0], logits)
        agree(grad_logits, expected, "the gradient for logits (3, 4)", SLOPES)

    def test_large_logits(self, student):
        # float32: near 1e4, the size of the logits, consecutive numbers are 1e-3 apart
        for dtype, tolerance in ((np.float64, ROUNDING), (np.float32, 1e-3)):
            for row in ([1e4, 9999.0, 0.0], [-1e4, -9999.0, -1e4], [1e4, -1e4, 0.0], [0.0, 0.0, -1e4]):
                for target in range(3):
                    logits = np.array([row], dtype)
                    self.check(student, logits, np.array([target]), f"logits {row}, target {target}", tolerance)

    def test_tokens_far_apart(self, student):
        logits = np.array([[1e4, 9998.0], [-1e4, -9999.0], [0.0, 1.0]])
        self.check(student, logits, np.array([1, 0, 0]), f"logits {logits.tolist()}")

    def test_float32(self, student):
        logits, targets = normal((16, 64)).astype(np.float32), np.arange(16)
        self.check(student, logits, targets, "float32 logits (16, 64)", FLOAT32)

    def test_memory(self, student):
        logits, targets = normal((16, 1024)), np.arange(16)
        peak = student.on_ranks(1, peak_of, "cross_entropy", (logits, targets))[0].value
        assert peak < 10 * logits.nbytes, (  # four or five arrays of the logits' size are natural
            f"peak memory is {peak / logits.nbytes:.0f} times the bytes of the logits (16, 1024). A few times "
            "are enough: make no vocab x vocab array, such as np.eye(vocab)"
        )


# 1.6


def tied_loss(embedding, hidden, tokens, wanted) -> float:
    scores = np.tanh(embedding[tokens] @ hidden) @ embedding.T
    return float(((scores - wanted) ** 2).mean())


@pytest.mark.task(
    "1.6",
    points=3,
    kind="debugging",
)
class TestTiedGradients:
    """tied_gradients: one weight, used twice. Find the bug and fix it"""

    def check(self, student, vocab: int, width: int, tokens: list[int]) -> None:
        tokens = np.array(tokens, np.int64)
        embedding, hidden = normal((vocab, width), 1), normal((width, width), 2)
        wanted = normal((len(tokens), vocab), 3)
        found = found_by(student, "tied_gradients", embedding, hidden, tokens, wanted)
        loss, gradients = several(found, 2, "tied_gradients")
        case = f"{vocab} tokens in the vocabulary, width {width}, tokens {tokens.tolist()}"
        expected = tied_loss(embedding, hidden, tokens, wanted)
        assert abs(loss - expected) <= ROUNDING * max(1.0, expected), (
            f"{case}: the loss, which was right before: {difference(loss, expected)}"
        )
        assert isinstance(gradients, dict) and set(gradients) == {"embedding", "hidden"}, (
            f"{case}: the gradients: expected a dict with the keys embedding and hidden"
        )
        slope = slopes(lambda hidden: tied_loss(embedding, hidden, tokens, wanted), hidden)
        agree(gradients["hidden"], slope, f"{case}: the gradient of hidden", SLOPES)
        slope = slopes(lambda embedding: tied_loss(embedding, hidden, tokens, wanted), embedding)
        agree(gradients["embedding"], slope, f"{case}: the gradient of embedding", SLOPES)

    def test_different_tokens(self, student):
        self.check(student, 5, 3, [4, 1, 2])
        self.check(student, 3, 2, [0])
        self.check(student, 4, 1, [3, 2, 1, 0])

    def test_a_text(self, student):
        self.check(student, 5, 3, [4, 1, 4, 2, 1, 4])
        self.check(student, 1, 2, [0, 0, 0])
        self.check(student, 7, 4, [6, 5, 5, 0, 3, 6, 6, 1, 2])


# 1.7


def textbook_adamw(data, gradients, lr, betas, eps, weight_decay) -> tuple[np.ndarray, ...]:
    """AdamW in float64, as in the papers: the weights and both running means after all steps."""
    w, m, v = data.astype(np.float64), np.zeros(data.shape), np.zeros(data.shape)
    for t, gradient in enumerate(gradients, 1):
        g = gradient.astype(np.float64)
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g**2
        m_hat, v_hat = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
        w = w - lr * weight_decay * w - lr * m_hat / (np.sqrt(v_hat) + eps)
    return w, m, v


def run_adamw(world, answers, data, gradients, settings, slices=1):
    """The caller's arrays after all steps, and whether a gradient was changed."""
    arrays = [data.copy(), np.zeros_like(data), np.zeros_like(data)]  # weights and both running means
    other = [np.ones_like(data), np.ones_like(data), np.ones_like(data)]  # of another parameter, updated in turn
    changed = False
    for step, gradient in enumerate(gradients, 1):
        answers.adamw_update(other[0], -gradient, other[1], other[2], step + 3, 0.5, (0.7, 0.6), 0.2, 0.3)
        given = gradient.copy()
        parts = [np.array_split(array, slices) for array in (arrays[0], given, arrays[1], arrays[2])]
        for part in zip(*parts, strict=True):
            answers.adamw_update(*part, step, *settings)
        changed |= not np.array_equal(given, gradient)
    return [arrays, changed]


@pytest.mark.task(
    "1.7",
    points=3,
)
class TestAdamW:
    """adamw_update: one step of AdamW, in place"""

    NAMES = ("data", "exp_avg", "exp_avg_sq")
    SETTINGS = (  # lr, betas, eps, weight_decay
        (0.01, (0.9, 0.95), 1e-8, 0.0),
        (0.01, (0.9, 0.999), 1e-8, 0.1),
        (0.3, (0.5, 0.8), 0.1, 0.5),
        (0.1, (0.0, 0.9), 1e-3, 0.01),
    )

    def check(self, student, data, gradients, settings, tolerance: float, what: str) -> None:
        arrays, changed = student.on_ranks(1, run_adamw, data, gradients, settings)[0].value
        lr, betas, eps, weight_decay = settings
        what += f" with lr {lr}, betas {betas}, eps {eps}, weight_decay {weight_decay}"
        assert not changed, f"{what}: it changes grad"
        for name, found, expected in zip(self.NAMES, arrays, textbook_adamw(data, gradients, *settings), strict=True):
            agree(found, expected, f"{what}: {name}", tolerance)

    def test_in_place(self, student):
        data, gradient = np.array([1.0, 2.0]), np.array([0.5, -0.5])
        arrays, _ = student.on_ranks(1, run_adamw, data, [gradient], self.SETTINGS[0])[0].value
        for name, found, before in zip(self.NAMES, arrays, (data, np.zeros(2), np.zeros(2)), strict=True):
            assert not np.array_equal(found, before), f"{name} has not changed: write into the array itself"

    def test_first_step(self, student):
        data, gradients = normal((5,), 1), [normal((5,), 2)]
        for settings in self.SETTINGS:
            self.check(student, data, gradients, settings, ROUNDING, "one step")

    def test_many_steps(self, student):
        data, gradients = normal((4, 3), 1), [(1 + step % 3) * normal((4, 3), step) for step in range(25)]
        for settings in self.SETTINGS:
            self.check(student, data, gradients, settings, ROUNDING, "25 steps")

    def test_no_gradient(self, student):
        """If the gradient is 0, only the decay acts: it does not pass through the running means."""
        data, gradients = normal((6,), 1), [np.zeros(6)] * 3
        arrays, _ = student.on_ranks(1, run_adamw, data, gradients, (0.1, (0.9, 0.95), 1e-8, 0.5))[0].value
        agree(arrays[0], data * 0.95**3, "data after 3 steps with gradient 0, lr 0.1, weight_decay 0.5", ROUNDING)

    def test_shapes(self, student):
        for shape in ((0,), (1,), (2, 3, 4)):
            self.check(student, normal(shape, 1), [normal(shape, 2)] * 2, self.SETTINGS[1], ROUNDING, f"shape {shape}")

    def test_float32(self, student):
        data = normal((50,), 1).astype(np.float32)
        gradients = [normal((50,), step).astype(np.float32) for step in range(20)]
        for settings in self.SETTINGS:
            # each step rounds weights of up to 3 a few times, by 1e-7: below 1e-5 after 20 steps, in any order
            self.check(student, data, gradients, settings, 1e-5, "20 steps in float32")

    def test_on_slices(self, student):
        """Elementwise: ZeRO relies on this when each rank updates its own part of the weights."""
        data, gradients = normal((10,), 1), [normal((10,), step) for step in range(3)]
        arrays, _ = student.on_ranks(1, run_adamw, data, gradients, self.SETTINGS[1])[0].value
        sliced, _ = student.on_ranks(1, run_adamw, data, gradients, self.SETTINGS[1], 3)[0].value
        for name, one, other in zip(self.NAMES, arrays, sliced, strict=True):
            agree(other, one, f"{name}, updated in three slices instead of at once")
