"""The best layout of the ranks that are left: a run whose ranks die goes on with fewer, and all of them should be busy.

A layout is judged by arithmetic that fits on a line. With M micro-batches in a step, of which the busiest rank has
m = ceil(M / dp), L layers, of which the fullest rank of a pipeline has l, p = pp and v stages on each rank:

    time of a step  =  m  x  l / L  x  1 / tp  x  1 / cp  x  (1 + (p - 1) / (m v))

in units of one micro-batch through the whole model. The last factor is the pipeline's bubble (Narayanan et al.,
"Efficient Large-Scale Language Model Training on GPU Clusters", 2021); the naive schedule takes p in its place.
Communication, embeddings and memory do not count: where a model fits a GPU only when it is split, a real system keeps
tp and pp, and gives up whole replicas.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from fractions import Fraction
from itertools import product

from minidist.overrides import overridable
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

SIZES = ("dp", "tp", "cp", "pp")
KEPT = ("zero", "recompute")  # they save memory that a run may need: zero falls to 0 only where nothing can be sharded


@overridable
def step_time(config: TrainConfig, layout: Layout) -> Fraction:
    """Return the time of a step, in units of one micro-batch through the whole model on one rank."""
    micro_batches = -(-config.micro_batches // layout.dp)  # of the busiest rank
    stages = config.stages(layout)
    layers = max(sum(stages[rank :: layout.pp]) for rank in range(layout.pp))
    work = Fraction(micro_batches * layers, config.layers * layout.tp * layout.cp)
    if layout.schedule == "naive":
        return work * layout.pp
    return work * (1 + Fraction(layout.pp - 1, micro_batches * layout.virtual))


def best_layout(config: TrainConfig, layout: Layout, ranks: int) -> Layout:
    """Return the layout on at most ``ranks`` ranks with the shortest step, among those in which the run can go on.

    Ties go to the layout with the fewest settings changed, then to the one with the fewest ranks. Settings stay as they
    are wherever they can: for each choice of sizes, the layout with the fewest changed is tried.

    Raises:
        ValueError: if no rank is left.
    """
    if ranks < 1:
        raise ValueError(f"a run needs at least 1 rank to go on, but {ranks} are left")
    return min(legal_layouts(config, layout, ranks), key=lambda new: (
        step_time(config, new), len(changes(layout, new)), new.world_size, str(new)
    ))  # fmt: skip


def legal_layouts(config: TrainConfig, layout: Layout, ranks: int) -> Iterator[Layout]:
    """Yield, for each way to arrange at most ``ranks`` ranks, the legal layout that changes the fewest settings."""
    for dp in range(1, min(ranks, config.micro_batches) + 1):
        for tp in divisors(config.heads, ranks // dp):
            for cp in divisors(config.sequence_chunks, ranks // (dp * tp)):
                for pp in range(1, min(ranks // (dp * tp * cp), config.layers) + 1):
                    found = closest(config, layout, {"dp": dp, "tp": tp, "cp": cp, "pp": pp})
                    if found is not None:
                        yield found


def divisors(number: int, most: int) -> list[int]:
    return [n for n in range(1, most + 1) if number % n == 0]


def closest(config: TrainConfig, layout: Layout, sizes: dict[str, int]) -> Layout | None:
    """Return the layout of these sizes with the fewest other settings changed to their defaults; None if none is legal.

    ``ep`` may also become a smaller divisor of the number of experts.
    """
    before = {field.name: getattr(layout, field.name) for field in fields(Layout) if field.name not in SIZES}
    ways: dict[str, Sequence] = {name: (value, default) for name, value in before.items()
            if value != (default := getattr(Layout, name)) and name not in KEPT}  # fmt: skip
    ways["ep"] = [n for n in divisors(config.experts, layout.ep)[::-1] if sizes["dp"] % n == 0]
    zero = layout.zero if sizes["dp"] * sizes["cp"] > 1 else 0
    choices = [dict(zip(ways, values, strict=True)) for values in product(*ways.values())]
    choices.sort(key=lambda choice: (sum(before[name] != value for name, value in choice.items()), -choice["ep"]))
    for choice in choices:
        try:
            found = Layout(**sizes, **{**before, **choice, "zero": zero})
            config.check(found)
            return found
        except ValueError:
            continue
    return None


def changes(before: Layout, after: Layout) -> list[str]:
    """Return the names of the settings that differ."""
    return [field.name for field in fields(Layout) if getattr(before, field.name) != getattr(after, field.name)]
