"""The matrix: every legal combination of the settings that split a run, and a small set of them that tries every pair.

There are thousands of combinations, too many to run. Most faults need only two settings to meet: a schedule and
recomputation, sequence parallelism and an odd number of ranks. So a set is run in which every two settings that can
meet do so at least once ("pairwise testing"; Cohen et al., "The AETG System", 1997; Kuhn et al., "Software
Fault Interactions", 2004, count how many faults that finds).
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

from minidist.comm.runtime.clusters import WarmClusters, preload
from minidist.nn.precision.policy import POLICIES, PRODUCTS
from minidist.nn.recompute import MODES
from minidist.parallel.context import KINDS
from minidist.parallel.tools.schedules import SCHEDULES
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import Run, RunOptions
from minidist.train.rules import check, of_loosened_run
from minidist.train.trainer import run
from minidist.verify.comparison import agrees

KEYS = (
    "precision", "products", "experts", "dp", "ep", "zero", "shard", "tp", "sp", "cp", "cp_kind", "pp", "schedule",
    "virtual", "recompute", "node_size", "sync", "compress",
)  # fmt: skip
NAMES = [*POLICIES, *PRODUCTS, *SCHEDULES, *MODES]  # values that are not numbers, in their order
SAME, DIFFERENT, IMPOSSIBLE = "same", "different", "impossible"
Pair = frozenset[tuple[str, object]]


@dataclass(frozen=True)
class Combination:
    """A precision, a layout, the number of experts (0; None if no combination has any), and the products."""

    precision: str
    layout: Layout
    experts: int | None = None
    products: str = "fast"

    def config(self, base: TrainConfig) -> TrainConfig:
        """Return the settings of a run in this precision, with these products, with experts or without."""
        model = base if self.experts else base.without_experts()
        return replace(model, precision=self.precision, products=self.products)

    @property
    def settings(self) -> dict[str, Any]:
        """The value of each of KEYS; None for a key without a meaning here, such as a schedule without a pipeline."""
        layout = self.layout
        meaningless = {
            "zero": layout.replicas == 1,
            "shard": not layout.zero,
            "ep": not self.experts or layout.dp == 1,
            "sp": layout.tp == 1,
            "cp": layout.cp == 1,  # most runs have no sequence chunks, and then no other value
            "cp_kind": layout.cp == 1,
            "schedule": layout.pp == 1,
            "virtual": layout.schedule != "interleaved",
            "node_size": layout.world_size == 1,
            "sync": not layout.servers,  # looser steps are settings only if there are any
            "compress": not layout.compress,
        }
        return {
            key: None if meaningless.get(key) else getattr(layout if hasattr(layout, key) else self, key)
            for key in KEYS
        }

    @property
    def pairs(self) -> set[Pair]:
        """Pairs of settings that meet here."""
        return pairs_of(self.settings)


@dataclass(frozen=True)
class Outcome:
    """Outcome of running one combination."""

    combination: Combination
    same: bool  # whether the bits are those of one process in this precision
    seconds: float  # per step
    memory: int  # bytes, the peak of the fullest rank
    traffic: int  # bytes per step that the busiest rank sent

    @classmethod
    def of(cls, combination: Combination, result: Run, same: bool) -> "Outcome":
        steps = len(result.losses)
        return cls(
            combination,
            same,
            max(rank.seconds for rank in result.ranks) / steps,
            max(rank.memory["peak"] for rank in result.ranks),
            max(rank.traffic.as_dict()["bytes_sent"] for rank in result.ranks) // steps,
        )


def pairs_of(settings: dict[str, object]) -> set[Pair]:
    """Return the pairs of settings that have a meaning in a combination."""
    known = [(key, value) for key, value in settings.items() if value is not None]
    return {frozenset(pair) for pair in combinations(known, 2)}


def every_combination(config: TrainConfig, max_ranks: int) -> list[Combination]:
    """Return all legal combinations for a run on up to ``max_ranks`` ranks, fewest ranks first."""
    sizes, dense = range(1, max_ranks + 1), config.without_experts()
    layouts = []
    for dp, tp, cp, pp in product(sizes, repeat=4):
        if dp * tp * cp * pp > max_ranks or config.heads % tp or config.sequence_chunks % cp:
            continue
        data = dp * cp  # ranks over which ZeRO may shard
        choices = {
            "zero": (0, 1, 2, 3) if data > 1 else (0,),
            "ep": [n for n in range(1, dp + 1) if dp % n == 0] if config.experts else (1,),
            "shard": (0, *(n for n in range(2, data) if data % n == 0)),
            "sp": (0, 1),
            "cp_kind": KINDS if cp > 1 else (Layout.cp_kind,),
            "schedule": SCHEDULES if pp > 1 else (Layout.schedule,),
            "virtual": (1, 2),
            "node_size": node_sizes(dp * tp * cp * pp),
            "sync": (Layout.sync, "server") if dp < max_ranks else (Layout.sync,),  # the server is one more rank
            "compress": ("", "topk:1"),  # all of each gradient: the trivial setting
        }
        for values in product(*choices.values()):
            try:
                layout = Layout(dp=dp, tp=tp, cp=cp, pp=pp, **dict(zip(choices, values, strict=True)))
                (config if layout.ep > 1 else dense).check(layout)  # more layouts are legal without experts
            except ValueError:
                continue
            layouts.append(layout)
    layouts = sorted(dict.fromkeys(layouts), key=lambda layout: layout.world_size)
    numbers = (0, config.experts) if config.experts else (None,)
    configs = {(p, experts): Combination(p, Layout(), experts).config(config) for p in POLICIES for experts in numbers}
    return [
        Combination(precision, replace(layout, recompute=mode), experts, products)
        for layout in layouts
        for precision in POLICIES
        for mode in MODES
        for experts in numbers
        if _fits(configs[precision, experts], layout)
        for products in PRODUCTS
    ]


def _fits(config: TrainConfig, layout: Layout) -> bool:
    if layout.ep > 1 and not config.experts:
        return False
    try:
        check(of_loosened_run(config, layout))  # all else holds for every precision, with experts or without
    except ValueError:
        return False
    return True


def node_sizes(ranks: int) -> tuple[int, ...]:
    """Return 0, for one node, and the size of the fewest nodes otherwise: two nodes for an even number of ranks."""
    return (0, *(n for n in range(ranks // 2, 0, -1) if ranks % n == 0))[:2]


def covering(rows: Sequence[dict[str, object]]) -> list[int]:
    """Choose rows in which every two settings meet that meet in any row. Greedy: near the fewest, not the fewest.

    The gain of a row never grows, so a row that still adds as much as the next one ever did is the best of all, and few
    rows are evaluated again ("lazy greedy"; Minoux, 1978).

    Args:
        rows: combinations, each a value for every setting, None if it has no meaning. Of two rows with the same gain,
            the earlier is chosen.

    Returns:
        The indices of the chosen rows, in the order of choice.
    """
    settings: dict[tuple[str, object], int] = {}  # a number for each
    pairs: dict[tuple[int, int], int] = {}
    masks = []  # for each row a bit for each of its pairs: much faster than sets
    for row in rows:
        own = sorted(settings.setdefault(one, len(settings)) for one in row.items() if one[1] is not None)
        masks.append(sum(1 << pairs.setdefault(pair, len(pairs)) for pair in combinations(own, 2)))
    missing = (1 << len(pairs)) - 1
    chosen = []
    gains = [(-mask.bit_count(), place) for place, mask in enumerate(masks)]  # minus each gain, as last computed
    heapq.heapify(gains)
    while missing:
        _, best = heapq.heappop(gains)
        gain = (masks[best] & missing).bit_count()
        if gain and gains and (-gain, best) > gains[0]:  # its gain has shrunk, and another row may have more
            heapq.heappush(gains, (-gain, best))
        elif gain:
            chosen.append(best)
            missing &= ~masks[best]
    return chosen


def covering_set(everything: Sequence[Combination]) -> list[Combination]:
    """Choose combinations in which every two settings meet that meet in any, those that add most pairs first."""
    return [everything[i] for i in covering([combination.settings for combination in everything])]


def run_all(
    chosen: Sequence[Combination],
    config: TrainConfig,
    on_start: Callable[[Combination], None] = lambda _: None,
    rank_function: Callable | None = None,
) -> Iterator[tuple[Outcome, Run, Run]]:
    """Run combinations, fewest ranks first; yield the outcome of each, its run, and the run of one process.

    One process is run first in each of their precisions, with their products and experts, and yielded, too.
    ``rank_function`` runs in place of ``train_rank`` in all other runs: tests inject a bug with it.
    """
    references: dict[TrainConfig, Run] = {}
    options = RunOptions(step_digests=True)  # so that the first difference can be found
    firsts = list(dict.fromkeys(replace(c, layout=Layout()) for c in chosen))
    ordered = firsts + sorted((c for c in chosen if c not in firsts), key=lambda c: c.layout.world_size)
    preload("minidist.train.trainer")
    with WarmClusters() as clusters:
        for combination in ordered:
            on_start(combination)
            own = combination.config(config)
            function = rank_function if own in references else None
            cluster = clusters(combination.layout.world_size)
            result = run(cluster, own, combination.layout, options, rank_function=function)
            reference = references.setdefault(own, result)
            yield Outcome.of(combination, result, agrees(reference, result)), result, reference


# ── What many runs say about every pair of settings ──────────────────────────────────────────────────────────────────


def values_of(combinations: Sequence[Combination]) -> list[tuple[str, object]]:
    """Return every (setting, value) that occurs, in the order of the settings."""
    found = {pair for combination in combinations for pair in combination.settings.items() if pair[1] is not None}
    return [
        (key, value)
        for key in KEYS
        for value in sorted((v for k, v in found if k == key), key=lambda v: NAMES.index(v) if v in NAMES else v)
    ]


def bad_and_all(outcomes: Sequence[Outcome]) -> dict[Pair, tuple[int, int]]:
    """Count, for every pair of settings that met, the runs with wrong bits and all runs."""
    met: Counter = Counter()
    bad: Counter = Counter()
    for outcome in outcomes:
        met.update(outcome.combination.pairs)
        if not outcome.same:
            bad.update(outcome.combination.pairs)
    return {pair: (bad[pair], count) for pair, count in met.items()}


def suspicious_pairs(outcomes: Sequence[Outcome]) -> list[Pair]:
    """Return the pairs to blame for a bug: those without a good run, and among them those with the most bad ones.

    A bug that shows when two settings meet spoils every run in which they meet, and each such run contains many other
    pairs. But those pairs have also met in good runs.
    """
    always = {pair: bad for pair, (bad, met) in bad_and_all(outcomes).items() if bad == met}
    most = max(always.values(), default=0)
    return sorted((pair for pair, bad in always.items() if bad == most), key=lambda pair: sorted(map(str, pair)))


def triangle(outcomes: Sequence[Outcome]) -> tuple[list[tuple[str, object]], list[list[str]]]:
    """Return all (setting, value), and for each a row: SAME, DIFFERENT or IMPOSSIBLE with each one before it."""
    values, met = values_of([outcome.combination for outcome in outcomes]), bad_and_all(outcomes)

    def verdict(pair: Pair) -> str:
        bad, count = met.get(pair, (0, 0))
        return IMPOSSIBLE if not count else DIFFERENT if bad else SAME

    return values, [[verdict(frozenset((row, one))) for one in values[:place]] for place, row in enumerate(values)]
