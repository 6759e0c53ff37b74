"""Graders of chapter 17: counting one by one, orders under many keys, probes of what a token sees, whole runs."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from minidist import all_reduce
from minidist.course.authoring.assertions import (
    FLOAT64,
    bytes_sent,
    check_numbers,
    compared,
    number,
    peak_bytes,
    same,
    trained,
)
from minidist.course.sandbox.values import generator
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run

IGNORED = -100


def answers(*forbidden):
    """Answers may not call these parts of the library."""
    return pytest.mark.answers("ch17_documents", forbidden=forbidden)


pytestmark = answers()


def check_lists(student, name: str, cases: dict[tuple, list], what: str) -> None:
    """Assert which list a function returns for each tuple of arguments, and that it leaves their lists as they were."""
    seen = student.on_ranks(1, run_lists, name, list(cases))[0].value
    for (case, expected), (found, kept) in zip(cases.items(), seen, strict=True):
        call = f"{name}{case}" if len(repr(case)) < 200 else f"{name}, {repr(case)[:200]}...)"
        assert kept, f"{call}: expected the arguments unmodified"
        assert found == expected, f"{call}: expected {what}: {expected!r:.200}, got {found!r:.200}"


def run_lists(world, module, name: str, cases: list[tuple]) -> list[tuple]:
    found = []
    for case in cases:
        lent = [list(one) if isinstance(one, tuple) else one for one in case]
        result = getattr(module, name)(*lent)
        found.append((result, all(map(np.array_equal, lent, case))))
    return found


# Training on documents

CONFIG = TrainConfig(
    layers=1, heads=2, width=8, context=16, sequence_chunks=4, global_batch=4, micro_batch=1, steps=3, warmup=1
)


def write_documents(folder: str) -> str:
    """A file of documents of 1 to 40 tokens, some with a prompt."""
    rng, path = generator(17), Path(folder) / "documents.jsonl"
    lines = []
    for size in rng.integers(1, 40, 60).tolist():
        text = bytes(rng.integers(97, 123, size).tolist()).decode()
        lines.append({"text": text} if size % 3 else {"prompt": text[: size // 2], "answer": text[size // 2 :]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def check_training(student, warm_ranks, names: list[str], layout: str, own: bool = False) -> None:
    """Assert that a run with these functions lands on the library's bits; or, ``own``, on those of one rank with them.

    All of them must be called.
    """
    layout = Layout.parse(layout)
    with TemporaryDirectory() as folder:
        config = replace(CONFIG, text=write_documents(folder), packing="first-fit")
        if own:
            right = student.on_ranks(1, trained, names, config, Layout())[0].value[0]
        else:
            right = run(warm_ranks(1), config, Layout()).fingerprint
        for rank, one in enumerate(student.on_ranks(layout.world_size, trained, names, config, layout)):
            found, calls = one.value
            unused = [name for name in names if not calls.get(name)]
            assert not unused, f"{layout}: the run has not called {', '.join(unused)}"
            assert found == right, (
                f"{layout}, rank {rank}: trained with your {', '.join(names)} the fingerprint is {found[:8]}, that of "
                f"{'one rank with them' if own else 'the library in one process'} is {right[:8]}"
            )


# 17.1


def packed_first_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    packs: list[list[int]] = []
    for piece, length in enumerate(lengths):
        fitting = [pack for pack in packs if sum(lengths[other] for other in pack) + length <= capacity]
        if fitting:
            fitting[0].append(piece)
        else:
            packs.append([piece])
    return packs


@answers("minidist.data.packing:first_fit")
@pytest.mark.task(
    "17.1",
    points=3,
)
class TestFirstFit:
    """pieces, first_fit and wasted: documents in packs"""

    def test_pieces(self, student):
        cases = {}
        for capacity in (1, 2, 7, 8, 2048):
            for places in (0, 1, capacity - 1, capacity, capacity + 1, 2 * capacity, 5 * capacity + 3):
                left, right = places, []
                while left:
                    right.append(min(left, capacity))
                    left -= right[-1]
                cases[places, capacity] = right
        check_lists(student, "pieces", cases, "full pieces, and then the rest")

    def test_a_few(self, student):
        cases = {
            ((6, 5, 4, 3), 10): [[0, 2], [1, 3]],
            ((6, 5, 3, 1, 4), 10): [[0, 2, 3], [1, 4]],
            ((5, 7, 3), 10): [[0, 2], [1]],  # best fit would fill the second pack
            ((5, 5, 5), 10): [[0, 1], [2]],
            ((10, 1, 10, 1), 10): [[0], [1, 3], [2]],
            ((4,), 4): [[0]],
            ((1, 1, 1), 1): [[0], [1], [2]],
            ((), 8): [],
        }
        check_lists(student, "first_fit", cases, "each piece in the first pack that has room")

    def test_many(self, student):
        rng = generator(171)
        cases = {}
        for count, capacity in ((40, 10), (60, 100), (200, 64)):
            lengths = tuple(rng.integers(1, capacity + 1, count).tolist())
            cases[lengths, capacity] = packed_first_fit(lengths, capacity)
        check_lists(student, "first_fit", cases, "each piece in the first pack that has room")

    def test_wasted(self, student):
        """Places are counted one by one."""
        rng, cases = generator(172), {}
        for count, capacity in ((5, 10), (40, 16), (3, 2048)):
            lengths = tuple(rng.integers(1, capacity + 1, count).tolist())
            order = rng.permutation(count).tolist()
            for packs in ([[n] for n in order], packed_first_fit(lengths, capacity), [[order[0]], [order[1]]], [[]]):
                taken = np.zeros((len(packs), capacity), bool)
                for row, pack in zip(taken, packs, strict=True):
                    row[: sum(lengths[n] for n in pack)] = True
                cases[lengths, capacity, tuple(map(tuple, packs))] = 1 - taken.mean()
        cases |= {((4, 4), 4, ((0,), (1,))): 0.0, ((), 8, ()): 0.0, ((3,), 4, ()): 0.0}
        check_numbers(student, "wasted", cases, "padding over all places")

    def test_trains_a_transformer(self, student, warm_ranks):
        check_training(student, warm_ranks, ["first_fit"], "dp=2")


# 17.2


def samples(places: int, *lengths: Sequence[int]) -> np.ndarray:
    """The first place that each token sees, of several samples."""
    found = np.tile(np.arange(places), (len(lengths), 1))
    for row, of_row in zip(found, lengths, strict=True):
        for place in range(sum(of_row)):
            row[place] = max(begin for begin in np.cumsum([0, *of_row]).tolist() if begin <= place)
    return found


def run_masks(world, module, cases: list[tuple], name: str) -> list[tuple]:
    found = []
    for first, queries, keys in cases:
        lent = first.copy()
        found.append((getattr(module, name)(lent, slice(*queries), slice(*keys)), np.array_equal(lent, first)))
    return found


def run_mask_costs(world, module, places: int) -> tuple[int, int]:
    """Peak memory of a small tile far back in a long sample, and of a question about a large one."""
    first = np.zeros((1, places), np.int64)
    tile, large = slice(places - 8, places), slice(0, places)
    return (
        peak_bytes(lambda: module.hidden_keys(first, tile, tile)),
        peak_bytes(lambda: module.any_key_seen(first, large, large)),
    )


@answers("minidist.nn.documents:hidden_keys", "minidist.nn.documents:any_key_seen")
@pytest.mark.task(
    "17.2",
    points=4,
)
class TestMask:
    """first_seen, hidden_keys and any_key_seen: the mask as one number per token"""

    PACKS = ((12,), (5, 7), (1, 1, 3), (4, 4, 4), (), (11, 1), (2,), (3, 6, 2), (6, 5, 1))

    def cases(self) -> list[tuple]:
        """Tiles of a sample, of all sizes, some of them across the diagonal."""
        spans = [(0, 12), (0, 4), (4, 8), (8, 12), (5, 6), (3, 10), (11, 12), (0, 1)]
        firsts = [samples(12, pack) for pack in self.PACKS]
        firsts += [samples(12, *self.PACKS[:3]), samples(12, (4, 8), (8, 4)), samples(12, (4, 4, 4), (4, 8))]
        return [(first, queries, keys) for first in firsts for queries in spans for keys in reversed(spans)]

    def check(self, student, name: str, right) -> None:
        cases = self.cases()
        for case, (found, kept) in zip(cases, student.on_ranks(1, run_masks, cases, name)[0].value, strict=True):
            first, queries, keys = case
            what = f"{name}, first {first.tolist()}, queries {queries[0]} to {queries[1] - 1}, keys {keys[0]} to "
            what += f"{keys[1] - 1}"
            assert kept, f"{what}: expected first unmodified"
            seen = np.array([
                [[mine[query] <= key <= query for query in range(*queries)] for key in range(*keys)] for mine in first
            ])  # fmt: skip
            right(found, seen, what)

    def test_first_seen(self, student):
        cases = {(pack, 12): samples(12, pack)[0] for pack in self.PACKS}
        cases |= {(pack, 12): samples(12, [n for n in pack if n])[0] for pack in ((5, 0, 7), (0, 3), (4, 2, 0), (0,))}
        cases |= {((1,), 1): np.array([0]), ((300, 200), 512): samples(512, (300, 200))[0]}
        for case, found in zip(cases, student.call_each("first_seen", list(cases)), strict=True):
            same(found, cases[case].astype(np.int64), f"first_seen{case}")

    def test_hidden_keys(self, student):
        self.check(student, "hidden_keys", lambda found, seen, what: same(found, ~seen, what))

    def test_any_key_seen(self, student):
        def right(found, seen, what):
            assert isinstance(found, bool | np.bool_), f"{what}: expected a bool, got {found!r:.60}"
            assert bool(found) == bool(seen.any()), f"{what}: expected {seen.any()}, got {found}"

        self.check(student, "any_key_seen", right)

    def test_costs(self, student):
        places = 2048
        tile, question = student.on_ranks(1, run_mask_costs, places)[0].value
        assert tile < 100_000, f"hidden_keys, 8 by 8 of {places:,}: expected less than 100 kB, got {tile:,} bytes"
        assert question < 200_000, (
            f"any_key_seen, {places:,} by {places:,}: expected less than 200 kB, got {question:,} bytes"
        )

    @pytest.mark.parametrize("layout", ["dp=1", "cp=2,cp_kind=balanced"])
    def test_trains_a_transformer(self, student, warm_ranks, layout):
        check_training(student, warm_ranks, ["hidden_keys", "any_key_seen"], layout)


# 17.3


def micro_batches(counts: Sequence[int], rank: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Losses and targets of a rank's micro-batches, in which so many targets count. Other losses are NaN, or large."""
    losses, targets = [], []
    for place, count in enumerate(counts):
        rng = generator(173, rank, place)
        shape = 1 + place % 2, count + place + 1
        target = np.full(shape, IGNORED, np.int32)
        target.flat[rng.permutation(target.size)[:count]] = rng.integers(0, 99, count)
        nothing = rng.choice([np.nan, 1e6], shape)
        losses.append(np.where(target == IGNORED, nothing, 5 + 3 * rank + place + rng.standard_normal(shape)))
        targets.append(target)
    return losses, targets


def run_means(world, module, cases: list) -> list[tuple]:
    """Each case has for each rank the numbers of targets that count in its micro-batches."""
    found = []
    for case in cases:
        losses, targets = micro_batches(case[world.rank], world.rank)
        lent = [one.copy() for one in losses], [one.copy() for one in targets]
        with np.errstate(divide="raise", invalid="raise"):
            mean = module.global_mean(*lent, world)
        weight = module.gradient_weight(lent[1], world)
        kept = all(
            np.array_equal(a, b, equal_nan=True) for a, b in zip([*lent[0], *lent[1]], losses + targets, strict=True)
        )
        every = [micro_batches(counts, rank) for rank, counts in enumerate(case)]
        counting = [loss[target != IGNORED] for one in every for loss, target in zip(*one, strict=True)]
        terms = np.concatenate([np.empty(0), *counting])
        found.append((mean, weight, kept, float(terms.sum() / max(1, terms.size)), terms.size))
    return found


def run_dtypes(world, module) -> list[str]:
    """The dtypes of what ``global_mean`` sums over the ranks."""
    summed = []

    def watched(tensor, *args, **kwargs):
        summed.append(str(tensor.dtype))
        return all_reduce(tensor, *args, **kwargs)

    module.all_reduce = watched
    module.global_mean(*micro_batches([2, 1], world.rank), world)
    return summed


def run_many_targets(world, module, count: int) -> int:
    """More targets than float32 can count. They are one number in memory."""
    return module.gradient_weight([np.broadcast_to(np.int32(1), (1, count))], world)


@answers()
@pytest.mark.task(
    "17.3",
    points=4,
)
class TestGlobalMean:
    """global_mean, gradient_weight, and what the mean of local means does"""

    CASES = (
        [[[5]]],
        [[[3, 7, 1]], [[]], [[0]], [[0, 4]]],
        [[[5], [9]], [[8, 2], [1]], [[1, 1, 1], [60]], [[0], [7]], [[], [3, 3]], [[4, 0], []]],
        [[[], []], [[0], [0, 0]], [[0], []]],
        [[[2, 9], [4], [1, 1, 5]], [[], [40], [1]], [[0], [], [0, 6]], [[], [], []]],
        [[[1], [2], [3], [4], [50]], [[7, 0], [], [0], [9, 9, 9], [1]]],
    )

    def test_values(self, student):
        for cases in self.CASES:
            size = len(cases[0])
            results = student.on_ranks(size, run_means, cases)
            for place, case in enumerate(cases):
                for rank, one in enumerate(results):
                    mean, weight, kept, right, count = one.value[place]
                    what = f"rank {rank} of {size}, whose micro-batches have {case} targets that count"
                    assert kept, f"{what}: expected losses and targets unmodified"
                    mean = number(mean, f"global_mean, {what}")
                    assert mean == pytest.approx(right, rel=FLOAT64, abs=0), (
                        f"global_mean, {what}: {compared(right, mean)}"
                    )
                    weight, right = number(weight, f"gradient_weight, {what}"), max(1, count)
                    assert weight == right, f"gradient_weight, {what}: {compared(right, weight)}"
                means = {one.value[place][0] for one in results}
                assert len(means) == 1, f"global_mean, {case}: expected one number on all ranks, got {sorted(means)}"

    def test_sends_no_losses(self, student):
        case = [[2000, 1000], [3000], [], [500]]
        for rank, row in enumerate(bytes_sent(student.on_ranks(4, run_means, [case]))):
            assert row.sum() < 2000, f"rank {rank} of 4: expected some numbers to be sent, got {row.sum():,} bytes"

    def test_counts_are_integers(self, student):
        """Two odd counts above 2^24, so that no rank's fits float32."""
        count = (1 << 24) + 1
        for rank, one in enumerate(student.on_ranks(2, run_many_targets, count)):
            assert one.value == 2 * count, f"rank {rank}: expected a weight of {2 * count}, got {one.value}"
        summed = student.on_ranks(2, run_dtypes)[0].value
        assert not summed or any("int" in dtype for dtype in summed), (
            f"global_mean: expected counts to be summed as integers, got sums of {', '.join(summed)}"
        )

    COUNTS = ((4,), (2, 2), (1, 9), (30, 10, 20), (8, 0), (0, 5, 0, 7), (0, 0))

    def test_worksheet(self, student):
        """Each target has a loss, and each rank's targets a loss of their own."""
        cases, weights = {}, {}
        for counts in self.COUNTS:
            means = [float(count and 2 + 3 * rank**2) for rank, count in enumerate(counts)]
            every = [mean for count, mean in zip(counts, means, strict=True) for _ in range(count)]
            cases[counts, tuple(means)] = float(np.mean(means) - (np.mean(every) if every else 0))
            # the weight of a target of rank r in the wrong mean: by how much that grows if the target's loss does
            weights[counts,] = [sum(counts) / len(counts) / count if count else 0.0 for count in counts]
        seen = student.call_each("local_mean_error", list(cases))
        for case, found in zip(cases, seen, strict=True):
            found = number(found, "local_mean_error")
            assert found == pytest.approx(cases[case], rel=1e-9, abs=1e-12), (
                f"local_mean_error{case}: {compared(cases[case], found)}"
            )
        for case, found in zip(weights, student.call_each("token_weights", list(weights)), strict=True):
            assert isinstance(found, list | tuple) and len(found) == len(case[0]), (
                f"token_weights{case}: expected {len(case[0])} numbers, got {found!r:.80}"
            )
            for rank, (one, right) in enumerate(zip(found, weights[case], strict=True)):
                assert number(one, "token_weights") == pytest.approx(right, rel=FLOAT64, abs=0), (
                    f"token_weights{case}, rank {rank}: {compared(right, one)}"
                )


# 17.4

DRAWS = 4000  # of keys
SIGMAS = 7  # by so many standard deviations a count is off once in 10^11 times


def draw_keys(draws: int, *seed: int) -> list[tuple[int, ...]]:
    return [tuple(keys) for keys in generator(174, *seed).integers(1 << 63, size=(draws, 6)).tolist()]


def run_orders(world, module, count: int, draws: int) -> list[list[int]]:
    return [[module.permuted(place, count, keys) for place in range(count)] for keys in draw_keys(draws, count)]


def run_changed_keys(world, module, count: int) -> list[list[int]]:
    """An order, the same once more, and that with each key changed in its lowest, in its highest bit."""
    (keys,) = draw_keys(1, count)
    changed = [(*keys[:n], keys[n] ^ bit, *keys[n + 1 :]) for n in range(6) for bit in (1, 1 << 62)]
    return [[module.permuted(place, count, each) for place in range(count)] for each in (keys, keys, *changed)]


def run_few_places(world, module, count: int) -> list[int]:
    (keys,) = draw_keys(1, count)
    return [module.permuted(place, count, keys) for place in [*range(200), *range(count - 200, count)]]


def run_order_cost(world, module, count: int) -> int:
    (keys,) = draw_keys(1)
    return peak_bytes(lambda: module.permuted(count // 3, count, keys))


@answers("minidist.data.order:permuted")
@pytest.mark.task(
    "17.4",
    points=4,
)
class TestPermuted:
    """permuted: an order of samples that is not stored"""

    @pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17, 64, 65, 1000])
    def test_each_sample_once(self, student, count):
        for order in student.on_ranks(1, run_orders, count, 3)[0].value:
            places = Counter(order)
            wrong = [sample for sample in places if sample not in range(count)]
            assert not wrong, f"{count} samples: expected numbers from 0 to {count - 1}, got {wrong[0]!r:.60}"
            twice = [sample for sample, times in places.items() if times > 1]
            assert not twice, f"{count} samples: sample {twice[0]} stands at {places[twice[0]]} places"

    def test_keys(self, student):
        order, again, *others = student.on_ranks(1, run_changed_keys, 1000)[0].value
        assert order == again, "the same keys: expected the same order"
        for place, other in enumerate(others):
            assert other != order, f"key {place // 2} has another value: expected another order, got the same one"

    @pytest.mark.parametrize("count", [2, 3, 5])
    def test_all_places_are_alike(self, student, count):
        orders = np.array(student.on_ranks(1, run_orders, count, DRAWS)[0].value)  # (draws, places)
        for place in range(count):
            for sample in range(count):
                self.check_share((orders[:, place] == sample).sum(), 1 / count, count, f"{sample} at place {place}")
        for first, second in ((a, b) for a in range(count) for b in range(count) if a != b and count > 2):
            times = ((orders[:, 0] == first) & (orders[:, 1] == second)).sum()
            self.check_share(times, 1 / (count * (count - 1)), count, f"{first} and {second} at places 0 and 1")

    def check_share(self, times: int, share: float, count: int, what: str) -> None:
        expected, spread = DRAWS * share, SIGMAS * sqrt(DRAWS * share * (1 - share))
        assert abs(times - expected) < spread, (
            f"{count} samples, orders of {DRAWS:,} sets of keys: expected sample {what} in {expected - spread:.0f} to "
            f"{expected + spread:.0f} of them, got {times}"
        )

    def test_no_list(self, student):
        peak = student.on_ranks(1, run_order_cost, 1 << 16)[0].value
        assert peak < 20_000, f"one place of {1 << 16:,}: expected less than 20 kB of memory, got {peak:,} bytes"
        for count in (1 << 32, 10**12 + 1, (1 << 50) + 7):
            found = student.on_ranks(1, run_few_places, count)[0].value
            assert all(sample in range(count) for sample in found), f"{count:,} samples: one beyond them came"
            assert len(set(found)) == len(found), f"{count:,} samples: one came twice"

    def test_no_pattern(self, student):
        """The steps between neighbours in a random order of 1,000 have about 632 different lengths."""
        for order in student.on_ranks(1, run_orders, 1000, 3)[0].value:
            lengths = {(b - a) % len(order) for a, b in pairwise(order)}
            assert len(lengths) > 400, (
                f"1,000 samples: expected steps of about 632 different lengths between neighbours, got {len(lengths)}"
            )

    def test_trains_a_transformer(self, student, warm_ranks):
        check_training(student, warm_ranks, ["permuted"], "dp=2", own=True)


# 17.5


def run_samples(world, module, cases: list[tuple]) -> list[tuple]:
    """Return what each rank gets for each case, and whether the batches are as they were."""
    found = []
    for step, ranks, batches, *more in cases:
        lent = list(batches)
        shares = [module.samples_of(step, rank, ranks, lent, *more) for rank in range(ranks)]
        found.append((shares, tuple(lent) == batches))
    return found


@answers("minidist.parallel.data:share_of", "minidist.train.config", "minidist.data")
@pytest.mark.task(
    "17.5",
    points=3,
)
class TestSamplesOf:
    """samples_of: a sampler that may go on on any number of ranks"""

    RUNS = (  # sizes of the batches, samples in a micro-batch, samples in an epoch
        ((8,), 2, 100),
        ((8,), 1, 5),
        ((12,), 4, 7),
        ((2, 2, 4, 6), 2, 9),
        ((1, 2, 3, 4, 5), 1, 1000),
        ((3, 9), 3, 1),
    )
    STEPS = (0, 1, 2, 3, 4, 5, 6, 17)

    def check(self, student, runs, ranks_of) -> None:
        """Assert, step by step, that the ranks take the micro-batches that come next, in order."""
        for batches, micro_batch, count in runs:
            cases = [(step, ranks_of(step), batches, micro_batch, count) for step in self.STEPS]
            for case, (found, kept) in zip(cases, student.on_ranks(1, run_samples, cases)[0].value, strict=True):
                step, ranks = case[:2]
                assert kept, f"step {step}, batches of {batches}: expected the batches unmodified"
                sizes = [batches[min(n, len(batches) - 1)] for n in range(step + 1)]
                every = [(n // count, n % count) for n in range(sum(sizes[:-1]), sum(sizes))]
                right = [every[n : n + micro_batch] for n in range(0, len(every), micro_batch)]
                for rank, mine in enumerate(found):
                    what = (
                        f"step {step}, rank {rank} of {ranks}, batches of {batches}, micro-batches of {micro_batch}, "
                        f"{count} samples in an epoch"
                    )
                    few, more = divmod(len(right), ranks)
                    start = sum(few + (other < more) for other in range(rank))
                    expected = right[start : start + few + (rank < more)]
                    assert isinstance(mine, list) and len(mine) == len(expected), (
                        f"{what}: expected {len(expected)} micro-batches, got {mine!r:.80}"
                    )
                    mine = [[tuple(sample) for sample in each] for each in mine]
                    assert mine == expected, f"{what}: expected {str(expected)[:200]}, got {str(mine)[:200]}"

    def test_one_rank(self, student):
        self.check(student, self.RUNS[:1], lambda step: 1)

    def test_epochs(self, student):
        self.check(student, self.RUNS[:3], lambda step: 1)

    def test_ranks(self, student):
        for ranks in (2, 3, 4, 5):
            self.check(student, self.RUNS[:3], lambda step, ranks=ranks: ranks)

    def test_ramp(self, student):
        self.check(student, self.RUNS, lambda step: 1)

    def test_other_ranks_in_each_step(self, student):
        self.check(student, self.RUNS, lambda step: 1 + step * 3 % 5)


# 17.6


def run_work(world, module, cases: list[tuple]) -> list[tuple]:
    found = []
    for first, chunks in cases:
        lent = first.copy()
        found.append(([int(one) for one in module.work_of_chunks(lent, chunks)], np.array_equal(lent, first)))
    return found


@answers("minidist.parallel.context:deal_chunks", "minidist.parallel.context:work_of_chunks")
@pytest.mark.task(
    "17.6",
    points=4,
)
class TestDealChunks:
    """work_of_chunks, deal_chunks and imbalance: chunks dealt by the work that documents make"""

    def test_work(self, student):
        """Each tile is looked at, pair by pair."""
        cases = [
            (samples(12, *packs), chunks)
            for packs in (((12,),), ((1, 2, 9),), ((4, 8), (8, 4)), ((),), ((3, 3), (12,), (5,)))
            for chunks in (1, 2, 3, 4, 12)
        ]
        seen = student.on_ranks(1, run_work, cases)[0].value
        for (first, chunks), (found, kept) in zip(cases, seen, strict=True):
            pairs = ((query, key) for row in first for query in range(12) for key in range(row[query], query + 1))
            tiles = {(query * chunks // 12, key * chunks // 12) for query, key in pairs}
            right = [sum(tile[0] == chunk for tile in tiles) for chunk in range(chunks)]
            what = f"work_of_chunks, first {first.tolist()}, {chunks} chunks"
            assert kept, f"{what}: expected first unmodified"
            assert found == right, f"{what}: expected {right}, got {found}"

    def test_a_few(self, student):
        cases = {
            ((1, 2, 3, 4), 2): [[0, 3], [1, 2]],
            ((4, 3, 2, 1), 2): [[0, 3], [1, 2]],
            ((9, 1, 1, 1), 2): [[0, 3], [1, 2]],
            ((5, 5, 5, 5), 2): [[0, 2], [1, 3]],
            ((1, 1, 8, 4, 2, 2), 3): [[1, 2], [0, 3], [4, 5]],
            ((7, 3), 1): [[0, 1]],
            ((1, 3, 2), 3): [[1], [2], [0]],
        }
        check_lists(student, "deal_chunks", cases, "the largest first, to the rank with the least")

    def test_many(self, student):
        rng, cases = generator(176), {}
        for ranks, each in ((2, 4), (3, 3), (4, 8), (5, 2), (7, 1)):
            for top in (3, 50, 10**6):
                work = tuple(rng.integers(1, top, ranks * each).tolist())
                cases[work, ranks] = dealt(work, ranks)
        check_lists(student, "deal_chunks", cases, "the largest first, to the rank with the least")

    def test_imbalance(self, student):
        cases = {
            ((1, 2, 3, 4), ((0, 3), (1, 2))): 1.0,
            ((1, 2, 3, 4), ((0, 1), (2, 3))): 1.4,
            ((6, 1, 1), ((1,), (0,), (2,))): 18 / 8,
            ((5, 5), ((0, 1),)): 1.0,
            ((1, 0, 0, 0), ((0,), (1,), (2,), (3,))): 4.0,
        }
        check_numbers(student, "imbalance", cases, "the largest over the mean")

    @answers("minidist.parallel.context:deal_chunks")
    def test_trains_a_transformer(self, student, warm_ranks):
        check_training(student, warm_ranks, ["deal_chunks"], "cp=2,cp_kind=balanced")


def dealt(work: Sequence[int], ranks: int) -> list[list[int]]:
    """Longest processing time first, of which each rank takes as many."""
    left, shares = [(-amount, chunk) for chunk, amount in enumerate(work)], [[] for _ in range(ranks)]
    for _, chunk in sorted(left):
        loads = [
            (sum(work[one] for one in share), rank)
            for rank, share in enumerate(shares)
            if len(share) * ranks < len(work)
        ]
        shares[min(loads)[1]].append(chunk)
    return [sorted(share) for share in shares]


# 17.7


def run_packed(world, module, cases: list[tuple]) -> list[tuple]:
    seen = []
    for *arrays, lengths in cases:
        lent = [array.copy() for array in arrays]
        seen.append((module.attend_packed(*lent, list(lengths)), all(map(np.array_equal, lent, arrays))))
    return seen


def one_by_one(q, k, v, lengths) -> np.ndarray:
    """Each document by itself."""
    outputs, begin = [], 0
    for length in lengths:
        mine = slice(begin, begin + length)
        scores = np.where(np.tri(length) > 0, q[mine] @ k[mine].T / sqrt(q.shape[1]), -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        outputs.append(weights / weights.sum(axis=1, keepdims=True) @ v[mine])
        begin += length
    return np.concatenate(outputs)


@pytest.mark.task(
    "17.7",
    points=3,
    kind="debugging",
)
class TestAttendPacked:
    """attend_packed: a document that sees the one before it. Find the leak and fix it"""

    def test_one_document(self, student):
        self.check(student, [(1,), (6,), (13,)])

    def test_probe(self, student):
        """Two equal documents, of which one token of the first changes. Nothing of the second may move."""
        for length in (1, 2, 5):
            one = generator(177, length).standard_normal((3, length, 4))
            before, cases = np.concatenate([one, one], axis=1), []
            for token in range(length):
                after = before.copy()
                after[:, token] += 1
                cases.append((*after, (length, length)))
            plain, *seen = [found for found, _ in student.on_ranks(
                1, run_packed, [(*before, (length, length)), *cases]
            )[0].value]  # fmt: skip
            for token, found in enumerate(seen):
                moved = np.abs(found - plain)[length:].max(axis=1)
                assert not moved.any(), (
                    f"two equal documents of {length} tokens: token {token} of the first is changed, and the output "
                    f"of token {moved.argmax()} of the second moves by {moved.max():.3g}; expected no change"
                )
                assert np.abs(found - plain)[token].any(), f"token {token} is changed: expected its own output to move"

    def test_values(self, student):
        self.check(student, [(2, 2), (1, 5), (5, 1), (3, 4, 2), (1, 1, 1), (2, 7, 1, 4)])

    def check(self, student, packs: list[tuple]) -> None:
        cases = [(*generator(178, *pack).standard_normal((3, sum(pack), 6)), pack) for pack in packs]
        for case, (found, kept) in zip(cases, student.on_ranks(1, run_packed, cases)[0].value, strict=True):
            right, what = one_by_one(*case), f"documents of {case[-1]} tokens"
            assert kept, f"{what}: expected q, k and v unmodified"
            assert isinstance(found, np.ndarray) and found.shape == right.shape, f"{what}: expected shape {right.shape}"
            off = np.abs(found - right).max(axis=1)
            wrong = np.flatnonzero(~(off <= 1e-12))
            assert not len(wrong), (
                f"{what}: the output of token {wrong[0]} is off by {off[wrong[0]]:.3g} from that of its document alone "
                f"({len(wrong)} of {len(off)} tokens are wrong)"
            )
