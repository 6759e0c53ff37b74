"""Graders of chapter 15: servers by hand, sums of fractions, roots of polynomials, singular values, whole runs."""

from fractions import Fraction
from math import inf, sqrt

import numpy as np
import pytest

from minidist import all_reduce as real_all_reduce
from minidist.course.authoring.assertions import FLOAT64, bytes_sent, check_numbers, number, same, trained
from minidist.course.sandbox.values import generator, working_dtype
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run

CONFIG = TrainConfig(layers=2, heads=2, width=16, context=8, global_batch=6, micro_batch=1, steps=4, warmup=1)


def answers(*forbidden):
    """Answers may not call these parts of the library."""
    return pytest.mark.answers("ch15_loosening", forbidden=forbidden)


pytestmark = answers()


def check_same_run(student, warm_ranks, names, text: str, config=CONFIG, single: bool = False) -> None:
    """Assert that a run with these functions ends on the bits of the library's own, or of one process."""
    layout = Layout.parse(text)
    right = run(warm_ranks(1 if single else layout.world_size), config, Layout() if single else layout).fingerprint
    seen = [one.value for one in student.on_ranks(layout.world_size, trained, names, config, layout)]
    for name in names:
        assert any(calls.get(name) for _, calls in seen), f"{text}: the run never calls {name}"
    for rank, (found, _) in enumerate(seen):
        assert found == right, (
            f"{text}, rank {rank}: with your {' and '.join(names)} the fingerprint is {found[:8]}, expected "
            f"{right[:8]}, {'of one process' if single else 'of the same run with the library'}"
        )


def losses_of(world, module, names, config, layout):
    """Return, in a rank, the losses of a run with these functions of ``module``, and how often each was called."""
    from minidist import overrides
    from minidist.train.result import RunOptions
    from minidist.train.trainer import train_rank

    overrides.override({name: getattr(module, name) for name in names})
    try:
        return list(train_rank(world, config, layout, RunOptions()).losses), dict(overrides.calls)
    finally:
        overrides.override({})


def check_losses(student, warm_ranks, names, text: str, rel: float = 1e-5) -> None:
    """Assert that a run with these functions has the losses of the library's own, up to rounding in another order."""
    layout = Layout.parse(text)
    right = run(warm_ranks(layout.world_size), CONFIG, layout).losses
    for rank, one in enumerate(student.on_ranks(layout.world_size, losses_of, names, CONFIG, layout)):
        losses, calls = one.value
        assert all(map(calls.get, names)), f"{text}, rank {rank}: the run calls only {', '.join(calls) or 'none'}"
        assert losses == pytest.approx(right, rel=rel), (
            f"{text}, rank {rank}: with your {' and '.join(names)} the losses are {losses}, expected {right}"
        )


# 15.1


def shards_by_hand(sizes: dict[str, int], servers: int) -> list[list[str]]:
    left = list(sizes)
    found: list[list[str]] = [[] for _ in range(servers)]
    while left:
        largest = max(left, key=sizes.get)  # the first of them
        left.remove(largest)
        emptiest = min(range(servers), key=lambda server: sum(sizes[name] for name in found[server]))
        found[emptiest].append(largest)
    return found


def run_shard_map(world, module, cases):
    seen = []
    for sizes, servers in cases:
        lent = dict(sizes)
        found = module.shard_map(lent, servers)
        seen.append(([list(names) for names in found], list(lent.items()) == list(sizes.items())))
    return seen


@answers("minidist.parallel.loosened.server:shard_map")
@pytest.mark.task(
    "15.1",
    points=2,
)
class TestShardMap:
    """shard_map: which parameter server holds which parameters"""

    def check(self, student, cases) -> None:
        for (sizes, servers), (found, kept) in zip(
            cases, student.on_ranks(1, run_shard_map, cases)[0].value, strict=True
        ):
            what = f"shard_map({sizes!s:.150}, servers={servers})"
            right = shards_by_hand(sizes, servers)
            assert kept, f"{what}: expected the sizes unmodified"
            assert len(found) == servers, f"{what}: expected {servers} lists, got {len(found)}"
            placed = sorted(name for names in found for name in names)
            assert placed == sorted(sizes), f"{what}: expected each parameter once, got {placed}"
            assert found == right, f"{what}: expected {right}, got {found}"

    def test_small(self, student):
        sizes = {"wte": 40, "wpe": 8, "weight": 24, "bias": 2, "norm": 1}
        self.check(student, [(sizes, servers) for servers in (1, 2, 3, 4, 5, 7)])
        self.check(student, [({}, 2), ({"a": 5}, 3)])

    def test_largest_first(self, student):
        """Another order gives one server far more."""
        self.check(student, [({"a": 1, "b": 1, "c": 2}, 2), ({f"p{i}": i for i in range(1, 20)}, 3)])

    def test_as_large(self, student):
        self.check(student, [({name: 7 for name in "dbacfe"}, servers) for servers in (2, 3, 4)])
        self.check(student, [({"x": 3, "b": 5, "a": 5, "y": 3, "c": 5}, 2), ({"a": 0, "b": 0, "c": 0}, 2)])

    def test_random(self, student):
        rng = generator(15, 1)
        cases = []
        for _ in range(30):
            names = [f"p{i}" for i in rng.permutation(int(rng.integers(1, 25)))]
            cases.append(({name: int(rng.integers(1, 12)) for name in names}, int(rng.integers(1, 6))))
        self.check(student, cases)

    def test_trains_a_transformer(self, student, warm_ranks):
        for text in ("dp=2,sync=server,servers=2", "dp=3,sync=server,servers=2"):
            check_same_run(student, warm_ranks, ["shard_map"], text, single=True)


# 15.2


def simulate(may_begin, workers: int, staleness: float, steps: int, rng) -> list[tuple[int, int, list[int]]]:
    """Workers of random speeds: (worker, the steps it may be ahead, clocks) of each step that began."""
    clocks, working, begun = [0] * workers, {}, []
    while min(clocks) < steps:
        for worker in range(workers):
            if worker not in working and clocks[worker] < steps and may_begin(clocks, worker, staleness):
                working[worker] = int(rng.integers(1, 1 + 4 * (worker + 1)))
                begun.append((worker, clocks[worker] - min(clocks), list(clocks)))
        assert working, f"clocks {clocks}, staleness {staleness}: nobody may begin, and nobody computes: a deadlock"
        for worker in list(working):
            working[worker] -= 1
            if not working[worker]:
                del working[worker]
                clocks[worker] += 1
    return begun


def run_simulations(world, module, cases):
    found = []
    for workers, staleness, seed in cases:
        try:
            begun = simulate(module.may_begin, workers, staleness, 12, generator(15, 2, seed))
            found.append(max(ahead for _, ahead, _ in begun))
        except AssertionError as error:
            found.append(str(error))
    return found


@answers("minidist.parallel.loosened.arrivals:may_begin")
@pytest.mark.task(
    "15.2",
    points=2,
)
class TestMayBegin:
    """may_begin: how far a worker may run ahead of the slowest one"""

    def test_rule(self, student):
        cases = []
        for clocks in ([0], [5], [0, 0], [1, 0], [0, 1], [3, 5, 4], [7, 2, 2, 9], [4, 4, 4], (2, 0, 1)):
            for worker in range(len(clocks)):
                for staleness in (0, 1, 2, 3, 7, inf):
                    cases.append((clocks, worker, staleness))
        for args, found in zip(cases, student.call_each("may_begin", cases), strict=True):
            clocks, worker, staleness = args
            ahead = clocks[worker] - sorted(clocks)[0]
            assert found in (True, False), f"may_begin{args}: expected True or False, got {found!r}"
            assert bool(found) == (ahead <= staleness), (
                f"may_begin{args}: the worker is {ahead} steps ahead of the slowest: expected {ahead <= staleness}"
            )

    def test_run(self, student):
        """No run waits forever, and each uses the bound up."""
        cases = [(workers, staleness, seed) for workers in (1, 2, 3, 5) for staleness in (0, 1, 3) for seed in range(3)]
        seen = student.on_ranks(1, run_simulations, cases)[0].value
        for (workers, staleness, _), ahead in zip(cases, seen, strict=True):
            assert not isinstance(ahead, str), ahead
            most = staleness if workers > 1 else 0
            assert ahead <= most, f"{workers} workers: one began {ahead} steps ahead, with staleness {staleness}"
        for staleness in (0, 1, 3):
            reached = max(ahead for case, ahead in zip(cases, seen, strict=True) if case[1] == staleness)
            assert reached == staleness, f"staleness {staleness}: nobody ever began more than {reached} steps ahead"

    def test_trains_a_transformer(self, student, warm_ranks):
        for text in ("dp=3,sync=server,staleness=1,arrivals=1+1+3", "dp=2,sync=server,staleness=2,arrivals=1+2"):
            check_same_run(student, warm_ranks, ["may_begin"], text)


# 15.3


def served(order) -> list[tuple[int, int]]:
    """(version read, version applied to) of each update, as a server would log them."""
    holds, log = dict.fromkeys(order, 0), []
    for version, worker in enumerate(order):
        log.append((holds[worker], version))
        holds[worker] = version + 1
    return log


def run_orders(world, module, orders):
    return [(list(module.versions_read(order)), list(module.staleness_of(order))) for order in orders]


def order_of(seconds, updates: int) -> list[int]:
    """Return who comes when, in exact fractions; of two at once the first."""
    done = [Fraction(each).limit_denominator(10**6) for each in seconds]
    order = []
    for _ in range(updates):
        worker = min(range(len(done)), key=lambda one: done[one])
        order.append(worker)
        done[worker] += Fraction(seconds[worker]).limit_denominator(10**6)
    return order


SPEEDS = (
    [1.0],
    [1.0, 1.0],
    [2.0, 2.0, 2.0],
    [1.0, 1.0, 4.0],
    [1.0, 2.0, 3.0, 4.0],
    [0.5, 7.0],
    [3.0, 1.0, 0.7, 0.2, 5.0],
)


@answers("minidist.parallel.loosened.arrivals", "minidist.parallel.loosened.server")
@pytest.mark.task(
    "15.3",
    points=3,
    kind="worksheet",
)
class TestStaleness:
    """Staleness: versions read, of a worker, of all, and what waiting costs"""

    def test_log(self, student):
        rng = generator(15, 3)
        orders = [[], [0], [2], [0, 0, 0], [0, 1, 2, 0, 1, 2, 0, 1, 2], [1, 0, 0, 0, 1], (1, 1, 0)]
        orders += [rng.integers(0, workers, 40).tolist() for workers in (2, 3, 5, 8)]
        for order, (versions, stale) in zip(orders, student.on_ranks(1, run_orders, orders)[0].value, strict=True):
            log = served(order)
            right = [read for read, _ in log]
            assert versions == right, f"versions_read({order}): expected {right}, got {versions}"
            right = [applied - read for read, applied in log]
            assert stale == right, f"staleness_of({order}): expected {right}, got {stale}"

    def test_of_a_worker(self, student):
        cases = {}
        for seconds in SPEEDS:
            for worker in range(len(seconds)):
                cases[tuple(seconds), worker] = float(
                    sum(Fraction(seconds[worker]) / Fraction(each) for each in seconds) - 1
                )
        for args, found in zip(cases, student.call_each("workers_staleness", list(cases)), strict=True):
            assert number(found, "workers_staleness") == pytest.approx(cases[args], rel=FLOAT64, abs=FLOAT64), (
                f"workers_staleness{args}: expected {cases[args]:g}, the updates of others in its time, got {found:g}"
            )

    def test_of_all(self, student):
        """Counted in a long run, whose first updates and last ones are a small part."""
        for seconds in SPEEDS:
            log = served(order_of(seconds, 20000))
            counted = np.mean([applied - read for read, applied in log])
            found = number(student.call("mean_staleness", seconds), "mean_staleness")
            assert found == pytest.approx(counted, abs=0.02), (
                f"mean_staleness({seconds}): in a run of 20,000 updates it is {counted:.3f}, got {found:.3f}"
            )
            assert found == pytest.approx(round(counted), abs=1e-9), (
                f"mean_staleness({seconds}): in the long run exactly {round(counted)}, got {found}"
            )

    def test_updates(self, student):
        cases = {}
        for seconds in SPEEDS:
            cases[tuple(seconds), inf] = float(sum(1 / Fraction(each) for each in seconds))
            for staleness in (0, 1, 10):
                cases[tuple(seconds), staleness] = len(seconds) / max(seconds)
        check_numbers(student, "updates_per_second", cases, "whoever waits for the slowest takes no more steps than it")


# 15.4


def matrix_of(lr: float, delay: int) -> np.ndarray:
    """One step of the delayed descent as a matrix on (x(t), ..., x(t - delay))."""
    step = np.eye(delay + 1, k=-1)
    step[0, 0] = 1.0
    step[0, delay] -= lr
    return step


def largest_root(lr: float, delay: int) -> float:
    return float(np.abs(np.linalg.eigvals(matrix_of(lr, delay))).max())


@pytest.mark.task(
    "15.4",
    points=3,
)
class TestDelayedDescent:
    """delayed_descent, largest_stable_lr, quickest_lr: what a delay costs, on a parabola"""

    def test_descent(self, student):
        cases = [(lr, delay, steps) for lr in (0.1, 0.9, 1.3) for delay in (0, 1, 2, 5) for steps in (0, 1, 2, 7, 30)]
        for args, found in zip(cases, student.call_each("delayed_descent", cases), strict=True):
            lr, delay, steps = args
            waiting, x, right = [], 1.0, [1.0]
            for _ in range(steps):
                waiting.append(x)
                if len(waiting) > delay:
                    x -= lr * waiting.pop(0)
                right.append(x)
            assert len(found) == steps + 1, f"delayed_descent{args}: expected {steps + 1} numbers, got {len(found)}"
            for step, (one, expected) in enumerate(zip(found, right, strict=True)):
                assert one == pytest.approx(expected, rel=1e-9, abs=1e-12), (
                    f"delayed_descent{args}: x({step}) is {expected:.6g}, got {one:.6g}"
                )

    def test_stable(self, student):
        """A root is on the unit circle at this rate; a little below all are within, a little above one is outside."""
        delays = (0, 1, 2, 3, 5, 10, 30)
        for delay, lr in zip(
            delays, student.call_each("largest_stable_lr", [(delay,) for delay in delays]), strict=True
        ):
            number(lr, "largest_stable_lr")
            for share, within in ((1 - 1e-4, True), (1 + 1e-4, False)):
                root = largest_root(share * lr, delay)
                assert (root < 1) == within, (
                    f"largest_stable_lr({delay}) = {lr:.6g}: at {share:.4f} times that the largest root is {root:.6f}"
                )
            assert largest_root(lr, delay) == pytest.approx(1, abs=1e-9), (
                f"largest_stable_lr({delay}) = {lr:.9g}: the largest root is {largest_root(lr, delay):.9f}, not 1"
            )

    def test_quickest(self, student):
        for delay in (0, 1, 2, 3, 5, 8):
            found = student.call("quickest_lr", delay)
            assert isinstance(found, tuple) and len(found) == 2, f"quickest_lr({delay}): expected two numbers"
            lr, factor = (number(one, "quickest_lr") for one in found)
            best = min((largest_root(one, delay), one) for one in np.linspace(0.002, 1.2, 1200))
            assert lr == pytest.approx(best[1], abs=0.002), (
                f"quickest_lr({delay}): of many rates {best[1]:.3f} is the quickest, got {lr:.4f}"
            )
            # a double root's error is the square root of the rounding's, and more for each further root beside it
            assert factor == pytest.approx(largest_root(lr, delay), abs=1e-6), (
                f"quickest_lr({delay}): at rate {lr:.6g} the largest root is {largest_root(lr, delay):.6f}, "
                f"got {factor:.6f}"
            )


# 15.5


def deliver(seed: int, workers: int, updates: int, again: float):
    """Messages of workers in their order, and some of them again, sooner or later: (worker, step, gradient)."""
    rng = generator(15, 5, seed)
    clocks, sent, messages = [0] * workers, [], []
    while len(sent) < updates:
        if sent and rng.random() < again:
            messages.append(sent[int(rng.integers(max(0, len(sent) - 5), len(sent)))])
            continue
        worker = int(rng.integers(workers))
        sent.append((worker, clocks[worker], rng.integers(-9, 10, 3).astype(np.float64)))
        clocks[worker] += 1
        messages.append(sent[-1])
    return messages


def run_server(world, module, messages):
    """Return the server's answers at once, what they hold at the end, and whether it changed what it was lent."""
    start = np.arange(3.0)
    server = module.Server(start, 0.5)
    answers, kept, unchanged = [], [], True
    for worker, step, gradient in messages:
        lent = gradient.copy()
        version, weights = server.push(worker, step, lent)
        answers.append((version, np.array(weights)))
        kept.append(weights)
        unchanged = unchanged and np.array_equal(lent, gradient)
        lent[:] = 777.0  # the buffer of the next message
    return answers, kept, unchanged and np.array_equal(start, np.arange(3.0))


@answers("minidist.parallel.loosened.server")
@pytest.mark.task(
    "15.5",
    points=3,
    kind="debugging",
)
class TestServer:
    """Server: updates applied twice, and weights that no version ever had. Find out why and fix it"""

    def check(self, student, messages) -> None:
        answers, kept, unchanged = student.on_ranks(1, run_server, messages)[0].value
        weights, applied, version = np.arange(3.0), set(), 0
        for number_, ((worker, step, gradient), (found, seen), later) in enumerate(
            zip(messages, answers, kept, strict=True)
        ):
            what = f"message {number_}, gradient {step} of worker {worker}"
            if again := (worker, step) in applied:
                what += ", which had arrived before"
            if not again:
                weights, version = weights - 0.5 * gradient, version + 1
                applied.add((worker, step))
            assert found == version, f"{what}: expected version {version}, got {found}"
            same(seen, weights, f"{what}: the weights of version {version}")
            assert np.array_equal(later, weights), (
                f"{what}: the worker goes on with version {version}, and the weights in its hands change under it"
            )
        assert unchanged, "expected the gradients and the first weights unmodified"

    def test_one_worker(self, student):
        self.check(student, deliver(1, 1, 6, 0.0))

    def test_at_once(self, student):
        """A message comes twice in a row."""
        self.check(student, [message for message in deliver(2, 2, 5, 0.0) for _ in range(2)])

    def test_between(self, student):
        """A message comes again, after those of others."""
        for seed in range(4):
            self.check(student, deliver(3 + seed, 3, 20, 0.4))

    def test_much_later(self, student):
        messages = deliver(8, 3, 12, 0.0)
        self.check(student, messages + messages)

    def test_workers_beyond_the_first(self, student):
        """Steps of one worker say nothing of another's."""
        gradient = np.array([1.0, 2.0, 3.0])
        self.check(student, [(0, 0, gradient), (0, 1, gradient), (5, 0, gradient), (5, 1, gradient), (5, 0, gradient)])


# 15.6


def run_top_k(world, module, cases):
    seen = []
    for array, k in cases:
        lent = array.copy()
        indices, values = module.top_k(lent, k)
        same_memory = np.shares_memory(values, lent) and bool(k)
        seen.append((np.array(indices), np.array(values), np.array_equal(lent, array), bool(same_memory)))
    return seen


@answers("minidist.parallel.compression.gathered:top_k")
@pytest.mark.task(
    "15.6",
    points=3,
    dtypes=("float64", "float32"),
)
class TestTopK:
    """top_k: the largest elements and where they are"""

    def check(self, student, cases) -> None:
        for (array, k), (indices, values, kept, lent) in zip(
            cases, student.on_ranks(1, run_top_k, cases)[0].value, strict=True
        ):
            what = f"top_k({np.array2string(array[:8], precision=4)}{'...' if array.size > 8 else ''}, {k})"
            by_size = sorted(range(array.size), key=lambda i: (-abs(float(array[i])), i))
            right = np.array(sorted(by_size[:k]), np.int32)
            assert kept, f"{what}: expected the array unmodified"
            same(indices, right, f"{what}: the indices")
            same(values, array[right], f"{what}: the values")
            assert not lent, f"{what}: the values are a view of the array, which the next step overwrites"

    def test_values(self, student):
        rng = generator(15, 6)
        arrays = [rng.standard_normal(size).astype(working_dtype()) for size in (1, 2, 5, 7, 64, 1000)]
        cases = [
            (array, k)
            for array in arrays
            for k in sorted({1, 2, 5, array.size // 2, array.size})
            if 0 < k <= len(array)
        ]
        self.check(student, cases)

    def test_signs(self, student):
        self.check(student, [(np.array([1, -5, 3, -4, 2], working_dtype()), k) for k in range(1, 6)])

    def test_as_large(self, student):
        """The lower index counts for numbers as large, whatever the sign."""
        rng = generator(15, 66)
        arrays = [np.array([2, -2, 2, -2, 2]), np.zeros(6), np.array([0, 0, 1, 0]), np.array([-1, 1, 3, 1, -3, 1, -1])]
        arrays += [rng.integers(-3, 4, 300), rng.integers(-1, 2, 50)]
        self.check(
            student, [(array.astype(working_dtype()), k) for array in arrays for k in range(1, min(9, array.size + 1))]
        )
        self.check(student, [(arrays[-2].astype(working_dtype()), k) for k in (40, 137, 299)])

    def test_any_magnitude(self, student):
        """Neighbours in this dtype, and numbers whose squares it does not have."""
        limits = np.finfo(working_dtype())
        near = np.array([1.0, 1 + limits.eps, 1 - limits.epsneg], working_dtype())
        arrays = [near, -near, near * limits.tiny * 4, near * (limits.max / 2)]
        self.check(student, [(array, k) for array in arrays for k in (1, 2)])

    def test_nothing(self, student):
        self.check(student, [(np.empty(0, working_dtype()), 0)])

    @pytest.mark.one_dtype
    def test_trains_a_transformer(self, student, warm_ranks):
        check_same_run(student, warm_ranks, ["top_k"], "dp=2,compress=topk:1,bucket_mb=0.01", single=True)
        check_same_run(student, warm_ranks, ["top_k"], "dp=3,compress=topk:0.1,bucket_mb=0.01")


# 15.7


def message_of(kind: str, array: np.ndarray) -> np.ndarray:
    """Return what a message stands for; every difference to what it was made from is a float of its own."""
    if kind == "everything":
        return array.copy()
    if kind == "nothing":
        return np.zeros_like(array)
    if kind == "the largest":
        sent = np.zeros_like(array)
        sent.flat[np.abs(array).argmax()] = array.flat[np.abs(array).argmax()]
        return sent
    if kind == "whole numbers":
        return np.floor(array)
    return np.where(array < 0, -2, 2).astype(array.dtype)  # signs


KINDS_OF_MESSAGES = ("everything", "nothing", "the largest", "whole numbers", "signs")


def gradients_of(steps: int, shape, kind: str, exact: bool = False) -> list[np.ndarray]:
    """Numbers whose sums round, where messages consist of elements; else, for exact differences, multiples of 1/64."""
    rng = generator(15, 7, len(kind), steps)
    if exact or kind in ("whole numbers", "signs"):
        return [(rng.integers(-900, 900, shape) / 64).astype(working_dtype()) for _ in range(steps)]
    scales = [10.0 ** rng.uniform(-3, 0, shape) for _ in range(steps)]
    return [(scale * rng.standard_normal(shape)).astype(working_dtype()) for scale in scales]


def run_feed_back(world, module, kind, gradients):
    """Return by step what was sent, the residual, what ``send`` got, how often, and whether the arguments changed."""
    residual, seen = np.zeros_like(gradients[0]), []
    for gradient in gradients:
        got, returned = [], []

        def send(corrected, got=got, returned=returned):
            got.append(corrected.copy())
            returned.append(message_of(kind, corrected))
            return returned[-1]

        before = gradient.copy(), residual.copy()
        sent, left = module.feed_back(gradient, residual, send)
        kept = np.array_equal(gradient, before[0]) and np.array_equal(residual, before[1])
        shared = any(np.shares_memory(left, other) for other in (gradient, residual, sent))
        seen.append((sent.copy(), left.copy(), got, kept, bool(shared and left.size)))
        residual = left
    return seen


@answers("minidist.parallel.compression.feedback:feed_back")
@pytest.mark.task(
    "15.7",
    points=3,
    dtypes=("float64", "float32"),
)
class TestFeedBack:
    """feed_back: what a message leaves out is added to the next gradient"""

    @pytest.mark.parametrize("kind", KINDS_OF_MESSAGES)
    def test_steps(self, student, kind):
        for shape in ((5,), (3, 4), (1,), (0,)):
            if not np.prod(shape) and kind == "the largest":
                continue
            gradients = gradients_of(7, shape, kind)
            owed = np.zeros_like(gradients[0])
            for step, (sent, left, got, kept, shared) in enumerate(
                student.on_ranks(1, run_feed_back, kind, gradients)[0].value
            ):
                what = f"messages of {kind}, shape {shape}, step {step}"
                assert len(got) == 1, f"{what}: expected one call of send, got {len(got)}"
                corrected = gradients[step] + owed
                same(got[0], corrected, f"{what}: what send gets")
                same(sent, message_of(kind, corrected), f"{what}: what the message stood for")
                same(left, corrected - sent, f"{what}: the residual")
                assert kept, f"{what}: expected the gradient and the old residual unmodified"
                assert not shared, f"{what}: expected a residual in an array of its own"
                owed = left

    def test_nothing_is_lost(self, student):
        """All that was sent, and the last residual: the sum of all gradients, exactly where no sum rounds."""
        for kind in KINDS_OF_MESSAGES:
            gradients = gradients_of(40, (6,), kind, exact=True)
            seen = student.on_ranks(1, run_feed_back, kind, gradients)[0].value
            total = [sum(map(Fraction, column.tolist())) for column in np.stack(gradients, axis=1)]
            sent = [sum(map(Fraction, column.tolist())) for column in np.stack([one[0] for one in seen], axis=1)]
            for element, (right, so_far, left) in enumerate(zip(total, sent, seen[-1][1].tolist(), strict=True)):
                assert so_far + Fraction(left) == right, (
                    f"messages of {kind}, 40 steps, element {element}: the gradients add up to {float(right)}, sent "
                    f"are {float(so_far)} and left {left}"
                )

    @pytest.mark.one_dtype
    def test_trains_a_transformer(self, student, warm_ranks):
        check_same_run(student, warm_ranks, ["feed_back"], "dp=2,compress=topk:1,bucket_mb=0.01", single=True)
        check_same_run(student, warm_ranks, ["feed_back"], "dp=3,compress=topk:0.1,bucket_mb=0.01")
        check_same_run(student, warm_ranks, ["feed_back"], "dp=2,compress=onebit,bucket_mb=0.01")


# 15.8


def run_rounding(world, module, values, unit, seed, times):
    """The mean of many roundings, the first one, whether values were kept, and how far the generator has gone."""
    rng, lent, total, first = np.random.default_rng(seed), values.copy(), np.zeros(values.shape), None
    low, high = np.full(values.shape, inf), np.full(values.shape, -inf)
    for _ in range(times):
        found = module.stochastic_round(lent, unit, rng)
        first = found.copy() if first is None else first
        total += found
        low, high = np.minimum(low, found), np.maximum(high, found)
    again = module.stochastic_round(lent, unit, np.random.default_rng(seed))
    expected = np.random.default_rng(seed)
    expected.random((times, *values.shape))
    return (
        total / times, low, high, first, np.array_equal(lent, values), np.array_equal(again, first),
        rng.bit_generator.state["state"]["state"] == expected.bit_generator.state["state"]["state"],
    )  # fmt: skip


def run_least(world, module, values):
    class Least(np.random.Generator):
        def random(self, size=None, *_, **__):
            return np.zeros(size)

    return module.stochastic_round(values, 1.0, Least(np.random.PCG64(0)))


@answers("minidist.parallel.compression.gathered:stochastic_round")
@pytest.mark.task(
    "15.8",
    points=3,
    dtypes=("float64", "float32"),
)
class TestStochasticRound:
    """stochastic_round: up or down by chance, with the right mean"""

    TIMES = 4000

    def check(self, student, values, unit, seed: int) -> None:
        values = values.astype(working_dtype())
        seen = student.on_ranks(1, run_rounding, values, unit, seed, self.TIMES)[0].value
        mean, low, high, first, kept, again, drawn = seen
        what = f"{values.size} values, unit {unit if np.ndim(unit) == 0 else 'an array'}"
        assert kept, f"{what}: expected the values unmodified"
        assert first.dtype == values.dtype and first.shape == values.shape, (
            f"{what}: expected {values.dtype} {values.shape}, got {first.dtype} {first.shape}"
        )
        units = np.broadcast_to(unit, values.shape)
        exact = values.astype(np.float64) / units  # a power of two: exact
        for name, one, right in (("least", low, np.floor(exact)), ("largest", high, np.ceil(exact))):
            beyond = (one / units < right) if name == "least" else (one / units > right)
            assert not beyond.any(), (
                f"{what}: {values[beyond][0]:.15g} is {exact[beyond][0]:.15g} units, and was rounded to "
                f"{(one / units)[beyond][0]:.15g}"
            )
        whole = exact == np.floor(exact)
        assert np.array_equal(first[whole], values[whole]), f"{what}: expected multiples of the unit unchanged"
        multiples = first / units
        assert np.array_equal(multiples, np.round(multiples)), f"{what}: expected multiples of the unit"
        share = exact - np.floor(exact)
        # the mean of n draws is off by sqrt(share (1 - share) / n); 6 of those: less than 1e-8 for each value
        bound = 6 * np.sqrt(share * (1 - share) / self.TIMES) + 20 * share * (1 - share) / self.TIMES
        off = np.abs(mean / units - exact)
        wrong = np.flatnonzero((off > bound + 1e-9 * np.abs(exact)).ravel())
        assert not len(wrong), (
            f"{what}: the mean of {self.TIMES} roundings: expected about {exact.flat[wrong[0]]:.6g} units, got "
            f"{(mean / units).flat[wrong[0]]:.6g}"
        )
        assert again, f"{what}: with the same generator once more: expected the same result"
        assert drawn, f"{what}: expected one rng.random(values.shape) in each call"
        random = np.random.default_rng(seed).random(values.shape)
        right = np.floor(exact) + (random < share)
        wrong = np.flatnonzero(multiples != right)
        assert not len(wrong), (
            f"{what}: {exact.flat[wrong[0]]:.6g} units with the random number {random.flat[wrong[0]]:.6g}: expected "
            f"{right.flat[wrong[0]]:g} units, got {multiples.flat[wrong[0]]:g}"
        )

    def test_mean(self, student):
        self.check(student, np.array([0.25, 2.25, 2.5, 2.75, 0.5, 7.0, 0.0]), 1.0, 1)
        self.check(student, np.array([[0.3, 1.9, 100.01], [0.001, 3.999, 12.5]]), 0.5, 2)

    def test_negative(self, student):
        self.check(student, np.array([-0.25, -2.25, -2.75, -7.0, -0.001, -3.999]), 1.0, 3)

    def test_units(self, student):
        """A unit for each value, or for each row."""
        self.check(
            student, np.array([0.3, 0.3, 0.3, -0.3]), np.array([1.0, 0.25, 0.125, 0.5]).astype(working_dtype()), 4
        )
        self.check(student, np.array([[0.3, 0.7], [5.3, -0.2]]), np.array([[2.0], [0.25]]), 5)  # of float64 in any case
        self.check(student, np.array([3e-9, -5e-9]), 2.0**-27, 6)

    def test_random(self, student):
        self.check(student, generator(15, 8).standard_normal(300), 2.0**-3, 7)

    def test_multiples(self, student):
        """Whatever their size: a sum with a random number may round up."""
        whole = generator(15, 88).integers(-(2**39), 2**39, 3000).astype(np.float64)
        self.check(student, whole, 1.0, 8)
        found = student.on_ranks(1, run_least, whole.astype(working_dtype()))[0].value
        same(found, whole.astype(working_dtype()), "multiples of the unit, where rng.random gives 0, its least number")

    def test_nothing(self, student):
        self.check(student, np.empty(0), 1.0, 9)

    @pytest.mark.one_dtype
    def test_trains_a_transformer(self, student, warm_ranks):
        for text in ("dp=3,compress=int8,bucket_mb=0.01", "dp=2,compress=bf16,bucket_mb=0.01"):
            check_same_run(student, warm_ranks, ["stochastic_round"], text)


# 15.9


def run_one_bit(world, module, arrays):
    seen = []
    for array in arrays:
        lent = array.copy()
        negative, scale = module.one_bit(lent)
        seen.append((np.array(negative), scale, type(scale) is float, np.array_equal(lent, array)))
    return seen


@answers("minidist.parallel.compression.gathered:one_bit")
@pytest.mark.task(
    "15.9",
    points=2,
    dtypes=("float64", "float32"),
)
class TestOneBit:
    """one_bit: signs, and one magnitude for all"""

    def check(self, student, arrays) -> None:
        arrays = [array.astype(working_dtype()) for array in arrays]
        for array, (negative, scale, is_float, kept) in zip(
            arrays, student.on_ranks(1, run_one_bit, arrays)[0].value, strict=True
        ):
            what = f"one_bit({np.array2string(array[:6], precision=4)}{'...' if array.size > 6 else ''})"
            assert kept, f"{what}: expected the array unmodified"
            same(negative, np.array([value < 0 for value in array.tolist()], bool), f"{what}: the signs")
            right = float(sum(abs(Fraction(value)) for value in array.tolist()) / max(1, array.size))
            assert is_float, f"{what}: expected a Python float, got {scale!r}"
            assert scale == pytest.approx(right, rel=FLOAT64, abs=0), (
                f"{what}: the mean magnitude: expected {right:.15g}, got {scale:.15g}"
            )

    def test_values(self, student):
        rng = generator(15, 9)
        self.check(student, [np.array([1.0, -3.0, 2.0, 0.5]), np.array([-1.0]), np.array([5.0])])
        self.check(student, [rng.standard_normal(size) for size in (3, 7, 8, 9, 1000)])

    def test_zeros(self, student):
        """Zero is not below zero, and counts in the mean."""
        self.check(student, [np.array([0.0, -0.0, 3.0, -1.0]), np.zeros(4)])

    def test_nothing(self, student):
        self.check(student, [np.empty(0)])

    def test_sum_in_float64(self, student):
        """Many float32 numbers are summed."""
        self.check(student, [1 + generator(15, 99).random(5000), np.array([1e30, -1e30, 1.0])])

    @pytest.mark.one_dtype
    def test_trains_a_transformer(self, student, warm_ranks):
        check_losses(student, warm_ranks, ["one_bit"], "dp=3,compress=onebit,bucket_mb=0.01")


# 15.10

SHAPES = [(6, 4, 1), (4, 6, 2), (5, 5, 3), (1, 7, 1), (7, 1, 1), (8, 3, 3), (33, 20, 4)]


def matrices(shape, ranks: int, seed: int) -> list[np.ndarray]:
    m, n, _ = shape
    rng = generator(15, 10, seed, m, n)
    return [rng.standard_normal((m, n)).astype(working_dtype()) for _ in range(ranks)]


def first_guess(shape, seed: int = 0) -> np.ndarray:
    _, n, r = shape
    return generator(15, 100, seed, n, r).standard_normal((n, r)).astype(working_dtype())


def run_power_sgd(world, module, per_rank, q, steps=1):
    """P and Q after some steps on the same matrices, the calls of the all-reduce, and whether what was lent is kept."""
    calls = []

    def all_reduce(array):
        assert isinstance(array, np.ndarray), f"expected an array to all-reduce, got {array!r:.40}"
        calls.append((array.shape, str(array.dtype)))
        joined = np.ascontiguousarray(array)
        real_all_reduce(joined, group=world)
        array[...] = joined

    matrix = per_rank[world.rank].copy()
    kept = True
    for _ in range(steps):
        lent = q.copy()
        p, found = module.power_sgd_step(matrix, lent, all_reduce)
        kept = kept and np.array_equal(lent, q) and np.array_equal(matrix, per_rank[world.rank])
        kept = kept and not np.shares_memory(found, lent) and not np.shares_memory(p, matrix)
        q = found
    return p, q, calls, bool(kept)


@answers(
    "minidist.parallel.compression.power_sgd:power_sgd_step", "minidist.parallel.compression.power_sgd:orthonormal"
)
@pytest.mark.task(
    "15.10",
    points=5,
    dtypes=("float64", "float32"),
)
class TestPowerSGD:
    """power_sgd_step: two thin matrices in place of a sum of large ones"""

    SIZES = (1, 2, 3, 5)

    @property
    def near(self) -> float:
        return 1e-9 if working_dtype() == np.float64 else 2e-3

    def results(self, student, shape, seed=0, steps=1, make=matrices):
        for size in self.SIZES:
            per_rank = make(shape, size, seed)
            seen = student.on_ranks(size, run_power_sgd, per_rank, first_guess(shape), steps)
            yield size, np.sum(per_rank, axis=0, dtype=np.float64), [one.value for one in seen], seen

    def test_step(self, student):
        """P spans what M Q does, and Q is M^T P."""
        for shape in SHAPES:
            m, n, r = shape
            for size, total, seen, _ in self.results(student, shape):
                for rank, (p, q, _, kept) in enumerate(seen):
                    what = f"({m}, {n}), rank {r}, on rank {rank} of {size}"
                    assert (p.shape, q.shape) == ((m, r), (n, r)), (
                        f"{what}: expected P {(m, r)} and Q {(n, r)}, got {p.shape} and {q.shape}"
                    )
                    assert p.dtype == q.dtype == working_dtype(), f"{what}: expected {working_dtype()}, got {p.dtype}"
                    assert np.allclose(p.T @ p, np.eye(r), atol=self.near), f"{what}: P's columns are not orthonormal"
                    spanned = np.linalg.qr(total @ first_guess(shape))[0]
                    outside = np.abs(p - spanned @ (spanned.T @ p)).max()
                    assert outside < self.near, f"{what}: P does not span what (the sum of M) Q spans"
                    scale = np.abs(total).max() * m
                    assert np.abs(q - total.T @ p).max() < self.near * scale, f"{what}: Q is not (the sum of M)^T P"
                    assert kept, f"{what}: expected the matrix and the old Q unmodified, in arrays of their own"

    def test_all_ranks_agree(self, student):
        for shape in SHAPES[:3]:
            for size, _, seen, _ in self.results(student, shape, seed=1):
                for rank, (p, q, *_) in enumerate(seen):
                    same(p, seen[0][0], f"P on rank {rank} of {size}, beside rank 0's")
                    same(q, seen[0][1], f"Q on rank {rank} of {size}, beside rank 0's")

    def test_two_all_reduces(self, student):
        """Thin matrices are summed; nothing else is sent."""
        shape = (33, 20, 4)
        for size, _, seen, results in self.results(student, shape):
            for rank, (_, _, calls, _) in enumerate(seen):
                right = [((33, 4), str(working_dtype())), ((20, 4), str(working_dtype()))]
                assert calls == right, f"rank {rank} of {size}: expected all-reduces of {right}, got {calls}"
            most = 2 * (33 + 20) * 4 * working_dtype().itemsize * 2
            assert bytes_sent(results).sum(axis=1).max() <= most, f"{size} ranks: more is sent than the thin matrices"

    def test_low_rank_is_exact(self, student):
        """A sum of rank r or less comes back whole, in one step."""

        def low(shape, ranks, seed):
            m, n, r = shape
            left = generator(15, 11, seed, m).standard_normal((m, r))
            rng = generator(15, 12, seed, n)
            return [(left @ rng.standard_normal((r, n))).astype(working_dtype()) for _ in range(ranks)]

        for shape in SHAPES:
            for size, total, seen, _ in self.results(student, shape, make=low):
                p, q, *_ = seen[0]
                wrong = np.abs(p @ q.T - total).max() / max(1e-9, np.abs(total).max())
                assert wrong < self.near * 100, (
                    f"{shape[:2]}, {size} ranks: a sum of rank {shape[2]} should come back exactly, off by {wrong:.2g}"
                )

    def test_warm_start(self, student):
        """Each step is nearer to the best matrix of that rank (the singular value decomposition's)."""
        shape = (33, 20, 4)
        for size, total, seen, _ in self.results(student, shape, steps=40):
            p, q, *_ = seen[0]
            best = sqrt((np.linalg.svd(total, compute_uv=False)[4:] ** 2).sum())
            found = np.linalg.norm(p @ q.T - total)
            assert found < 1.02 * best, (
                f"{size} ranks: after 40 steps on the same matrix the error is {found:.4f}, the best is {best:.4f}"
            )

    @pytest.mark.one_dtype
    def test_trains_a_transformer(self, student, warm_ranks):
        check_losses(student, warm_ranks, ["power_sgd_step"], "dp=3,compress=powersgd:2,bucket_mb=0.01", 1e-3)


# 15.11


def nesterov(data, gradients, lr: float, momentum: float) -> list[Fraction]:
    """One weight, in exact fractions, as torch.optim.SGD(nesterov=True) documents it."""
    weight, buffer, found = Fraction(data), Fraction(0), []
    for gradient in gradients:
        buffer = Fraction(momentum) * buffer + Fraction(gradient)
        weight -= Fraction(lr) * (Fraction(gradient) + Fraction(momentum) * buffer)
        found.append(weight)
    return found


def run_outer_steps(world, module, data, gradients, lr, momentum):
    weights, buffer, seen = data.copy(), np.zeros_like(data) if momentum else None, []
    for gradient in gradients:
        lent = gradient.copy()
        returned = module.outer_step(weights, lent, buffer, lr, momentum)
        still = ["weights"] * np.array_equal(weights, data) + ["buffer"] * (buffer is not None and not buffer.any())
        seen.append((weights.copy(), np.array_equal(lent, gradient), returned is None, still))
    return seen


def run_joins(world, module, start, rounds, lr, momentum):
    """Rounds in which each worker moves by a given amount: the start, and all workers, after each."""
    weights, buffer = start.copy(), np.zeros_like(start) if momentum else None
    workers = [start.copy() for _ in rounds[0]]
    seen = []
    for moves in rounds:
        for worker, move in zip(workers, moves, strict=True):
            worker += move
        lent, before = [weights, *workers], [one.copy() for one in (weights, *workers)]
        module.join(weights, workers, buffer, lr, momentum)
        own = all(not np.shares_memory(a, b) for i, a in enumerate(workers) for b in [*workers[:i], weights])
        still = [np.array_equal(one, was) for one, was in zip(lent, before, strict=True)]
        seen.append(([one.copy() for one in lent], own, still))
    return seen


@answers("minidist.parallel.loosened.local:outer_step", "minidist.parallel.loosened.local:due")
@pytest.mark.task(
    "15.11",
    points=4,
    dtypes=("float64", "float32"),
)
class TestLocalSteps:
    """outer_step, due and join: local steps, and the optimizer around them"""

    @property
    def rel(self) -> float:
        return 1e-12 if working_dtype() == np.float64 else 1e-5

    @pytest.mark.parametrize(("lr", "momentum"), [(0.7, 0.9), (1.0, 0.0), (0.5, 0.5), (0.25, 0.0)])
    def test_outer_step(self, student, lr, momentum):
        data = generator(15, 13).integers(-50, 50, (3, 4)).astype(working_dtype())
        gradients = [generator(15, 14, step).integers(-50, 50, (3, 4)).astype(working_dtype()) for step in range(6)]
        seen = student.on_ranks(1, run_outer_steps, data, gradients, lr, momentum)[0].value
        for element in range(data.size):
            right = nesterov(data.flat[element].item(), [one.flat[element].item() for one in gradients], lr, momentum)
            for step, (weights, kept, silent, still) in enumerate(seen):
                assert kept, f"step {step}: expected the pseudo-gradient unmodified"
                assert silent, f"step {step}: expected weights changed in place, and None returned"
                assert not still, f"step {step}: expected {still[0]} changed in place, got the same array as before"
                assert weights.dtype == working_dtype()
                assert weights.flat[element] == pytest.approx(float(right[step]), rel=self.rel, abs=100 * self.rel), (
                    f"lr {lr}, momentum {momentum}, step {step}: expected {float(right[step]):.6g}, got "
                    f"{weights.flat[element]:.6g}"
                )

    def test_due(self, student):
        """Step by step, with a plan of each round."""
        cases = []
        for local_steps, fragments in ((1, 1), (4, 1), (4, 2), (4, 4), (5, 2), (7, 3), (10, 4)):
            cases += [(step, local_steps, fragments) for step in range(1, 3 * local_steps + 1)]
        for args, found in zip(cases, student.call_each("due", cases), strict=True):
            step, local_steps, fragments = args
            right = []
            for fragment in range(fragments):
                early = (fragment * local_steps) // fragments  # so many steps before the end of each round
                if step in range(local_steps - early, step + 1, local_steps):
                    right.append(fragment)
            assert list(found) == right, f"due{args}: expected {right}, got {found}"

    @pytest.mark.parametrize("workers", [1, 2, 3, 5])
    def test_join(self, student, workers):
        rng = generator(15, 15, workers)
        start, *moves = rng.standard_normal((1 + 4 * workers, 4)).astype(working_dtype())
        rounds = [moves[i : i + workers] for i in range(0, len(moves), workers)]
        for lr, momentum in ((1.0, 0.0), (0.5, 0.5), (0.75, 0.875)):
            seen = student.on_ranks(1, run_joins, start, rounds, lr, momentum)[0].value
            weights = [Fraction(float(one)) for one in start]
            buffer = [Fraction(0)] * 4
            for number_, (moves, (arrays, own, still)) in enumerate(zip(rounds, seen, strict=True)):
                for i in range(4):
                    g = -sum(Fraction(float(move[i])) for move in moves) / workers
                    buffer[i] = Fraction(momentum) * buffer[i] + g
                    weights[i] -= Fraction(lr) * (g + Fraction(momentum) * buffer[i])
                what = f"{workers} workers, lr {lr}, momentum {momentum}, round {number_}"
                names = ["the start", *[f"worker {i}" for i in range(workers)]]
                for name, array, same_as_before in zip(names, arrays, still, strict=True):
                    right = [float(one) for one in weights]
                    assert array.tolist() == pytest.approx(right, rel=self.rel, abs=1e3 * self.rel), (
                        f"{what}: {name}: expected {np.round(right, 6)}, got {np.round(array, 6)}"
                        + ", as before: change it in place" * same_as_before
                    )
                assert own, f"{what}: expected everything in place, and weights of its own for each worker"

    @pytest.mark.one_dtype
    def test_trains_a_transformer(self, student, warm_ranks):
        exact = TrainConfig(
            layers=2, heads=2, width=16, context=8, global_batch=6, micro_batch=1, steps=4, warmup=1, optimizer="sgd",
            clip=inf, weight_decay=0.0,
        )  # fmt: skip
        names = ["outer_step", "due"]
        plain = "dp=3,sync=local,local_steps=1,outer_lr=1,outer_momentum=0"
        check_same_run(student, warm_ranks, names, plain, exact, single=True)
        check_losses(student, warm_ranks, names, "dp=2,sync=local,local_steps=3,fragments=2")


# 15.12

MATRICES = [(1, 1), (3, 5), (64, 64), (4096, 4096), (7, 1000), (1024, 50257)]
RANKS = (1, 2, 3, 8, 64)


@answers(
    "minidist.parallel.compression.method",
    "minidist.parallel.compression.gathered",
    "minidist.parallel.compression.power_sgd",
)
@pytest.mark.task(
    "15.12",
    points=3,
    kind="worksheet",
)
class TestBytes:
    """Bytes of each method, how far top-k scales, and local steps over slow links"""

    def check(self, student, name, cases, because):
        for args, found in zip(cases, student.call_each(name, list(cases)), strict=True):
            right = float(cases[args])
            assert number(found, name) == pytest.approx(right, rel=FLOAT64, abs=1e-9), (
                f"{name}{args}: expected {right:,.6g}, {because}, got {found:,.6g}"
            )

    def test_all_reduce(self, student):
        cases = {(m, n, N): Fraction(2 * (N - 1), N) * 4 * m * n for m, n in MATRICES for N in RANKS}
        self.check(student, "all_reduce_bytes", cases, "a reduce-scatter and an all-gather")

    def test_int8(self, student):
        cases = {(m, n, N): sum(m * n + 4 for _ in range(N - 1)) for m, n in MATRICES for N in RANKS}
        self.check(student, "int8_bytes", cases, "N - 1 messages of bytes and a scale")

    def test_one_bit(self, student):
        cases = {(m, n, N): (N - 1) * (len(range(0, m * n, 8)) + 4) for m, n in MATRICES[:5] for N in RANKS}
        self.check(student, "one_bit_bytes", cases, "N - 1 messages of packed bits and a scale")

    def test_top_k(self, student):
        cases = {}
        for m, n in MATRICES:
            for N in RANKS:
                for share in (0.5, 2.0**-7, 2.0**-10, 1.0):
                    k = -(-Fraction(share) * m * n // 1)
                    cases[m, n, N, share] = (N - 1) * abs(k) * 8
        self.check(student, "top_k_bytes", cases, "N - 1 messages of values and indices")

    def test_power_sgd(self, student):
        cases = {}
        for m, n in MATRICES:
            for N in RANKS:
                for rank in (1, 2, 32, 4096):
                    numbers = m * n if rank * (m + n) >= m * n else rank * m + rank * n
                    cases[m, n, N, rank] = Fraction(2 * (N - 1), N) * 4 * numbers
        self.check(student, "power_sgd_bytes", cases, "two all-reduces of thin matrices")

    def test_most_ranks(self, student):
        """Tried out, one number of ranks after the other."""
        cases = {}
        for i in range(1, 11):
            elements, k, ranks = 1 << 12, 1 << (12 - i), 1
            while (ranks + 1 - 1) * k * 8 < Fraction(2 * ranks, ranks + 1) * 4 * elements:
                ranks += 1
            cases[(2.0**-i,)] = ranks
        self.check(student, "most_ranks", cases, "tried out")

    def test_local_steps(self, student):
        cases = []
        for compute, parameters, ranks, bandwidth in (
            (30.0, 10_000_000_000, 14, 125e6), (1.0, 1000, 2, 400.0), (0.5, 7, 3, 1e9), (2.0, 10**9, 8, 1e9),
            (1.0, 10**6, 1, 1e3),
        ):  # fmt: skip
            for busy in (0.1, 0.5, 0.9, 0.99):
                cases.append((compute, parameters, ranks, bandwidth, busy))
        for args, found in zip(cases, student.call_each("fewest_local_steps", cases), strict=True):
            compute, parameters, ranks, bandwidth, busy = args
            assert number(found, "fewest_local_steps") == int(found) >= 1, f"fewest_local_steps{args}: got {found}"
            wait = 2 * (ranks - 1) / ranks * 4 * parameters / bandwidth

            def share(steps, compute=compute, wait=wait):
                return steps * compute / (steps * compute + wait)

            assert share(found) >= busy * (1 - 1e-9), (
                f"fewest_local_steps{args}: with {found} steps workers compute {share(found):.4f} of the time"
            )
            assert found == 1 or share(found - 1) < busy * (1 + 1e-9), (
                f"fewest_local_steps{args}: got {found}, but with one less it is {share(found - 1):.4f} already"
            )


# 15.13

PARAMETERS = {"wq": (6, 4), "wk": (4, 6), "up": (5, 8), "down": (8, 5), "head": (7, 3)}


def bucketings(kind: str, steps: int) -> list[list[list[str]]]:
    """Return the buckets that the parameters are in, step by step."""
    names = list(PARAMETERS)
    if kind == "one bucket":
        return [[names]] * steps
    if kind == "one bucket, in another order":
        return [[names if step % 2 else names[::-1]] for step in range(steps)]
    if kind == "made anew after the first step":
        return [[names[:2], names[2:]]] + [[names[3:][::-1], names[:3][::-1]]] * (steps - 1)
    if kind == "of the same size, made anew":
        return [[["wq"], ["wk"], ["up"], ["down"]], *[[["wk"], ["wq"], ["down"], ["up"]]] * (steps - 1)]
    rng = generator(15, 16)
    found = []
    for _ in range(steps):
        order, cut = [names[i] for i in rng.permutation(len(names))], int(rng.integers(1, len(names)))
        found.append([order[:cut], order[cut:]])
    return found


def run_low_rank(world, module, rank, per_step, buckets):
    one = module.LowRank(rank)
    other = module.LowRank(rank)  # of another model: it has seen nothing
    other.compress(0, {name: np.ones(shape) for name, shape in PARAMETERS.items()})
    seen = []
    for gradients, step_buckets in zip(per_step, buckets, strict=True):
        found = {}
        for number_, names in enumerate(step_buckets):
            lent = {name: gradients[name].copy() for name in names}
            sent = one.compress(number_, lent)
            found.update({name: np.array(array) for name, array in sent.items()})
            assert all(np.array_equal(lent[name], gradients[name]) for name in names), "expected gradients unmodified"
        seen.append(found)
    return seen


def first_q_by_hand(name: str, n: int, r: int) -> np.ndarray:
    return np.random.default_rng(sum(name.encode())).standard_normal((n, r))


@answers("minidist.parallel.compression.power_sgd", "minidist.parallel.compression.feedback")
@pytest.mark.task(
    "15.13",
    points=4,
    kind="debugging",
)
class TestLowRank:
    """LowRank: residuals that get lost, and a start that is never warm. Find out why and fix it"""

    def check(self, student, kind: str, steps: int = 6, rank: int = 2) -> None:
        rng = generator(15, 17, len(kind))
        per_step = [{name: rng.standard_normal(shape) for name, shape in PARAMETERS.items()} for _ in range(steps)]
        buckets = bucketings(kind, steps)
        seen = student.on_ranks(1, run_low_rank, rank, per_step, buckets)[0].value
        residuals = {name: np.zeros(shape) for name, shape in PARAMETERS.items()}
        qs = {name: first_q_by_hand(name, shape[1], rank) for name, shape in PARAMETERS.items()}
        for step, (gradients, found) in enumerate(zip(per_step, seen, strict=True)):
            for name in (name for names in buckets[step] for name in names):
                corrected = gradients[name] + residuals[name]
                p = np.linalg.qr(corrected @ qs[name])[0]
                qs[name] = corrected.T @ p
                right = p @ qs[name].T
                residuals[name] = corrected - right
                what = f"buckets: {kind}; step {step}, {name}"
                assert name in found and found[name].shape == right.shape, f"{what}: expected a matrix {right.shape}"
                off = np.abs(found[name] - right).max()
                assert off < 1e-8, f"{what}: what the message stands for is off by {off:.3g}"

    @pytest.mark.parametrize(
        "kind",
        [
            "one bucket",
            "one bucket, in another order",
            "made anew after the first step",
            "of the same size, made anew",
            "made anew in each step",
        ],
    )
    def test_buckets(self, student, kind):
        self.check(student, kind)

    def test_rank_one(self, student):
        self.check(student, "made anew in each step", rank=1)
